"""``fpemu gemm``, ``fpemu split``: products by schemes, and the words of one number."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from fpemu import formats, metrics, mma, reference, schemes
from fpemu.arguments import keywords
from fpemu.cli import matrices
from fpemu.cli import options as cli
from fpemu.errors import GuaranteeError, InputError
from fpemu.schemes import words

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS = 1024  # of D that are compared at once if there is a C: the memory grows with their square


def gemm(
    a: str,
    b: str,
    /,
    *,
    scheme: Annotated[list[str] | None, "A scheme, or several separated by commas; default: all."] = None,
    hardware: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: str | None = None,
    output: Annotated[str | None, "Write the result to this .npy or .mtx file; requires one scheme."] = None,
    order: str | None = None,
    on_range: str = "raise",
    option: list[str] | None = None,
    device: str = "auto",
    form: Annotated[
        str, "Form of a complex product: 4M (one real product of the parts) or 3M (three products)."
    ] = "4M",
    compare: Annotated[bool, "Add SGEMM to the table, or DGEMM if the operands are fp64."] = True,
    max_entries: int = matrices.MAX_ENTRIES,
) -> None:
    """Multiply two matrices by split schemes and compare the results with the exact product.

    The result is α·A·B + β·C. Complex matrices are multiplied as in 'fpemu.gemm'; their parts count as entries of the
    errors. The matrices remain in fp64 if every scheme is for fp64 (dgemm, ozaki, ozimmu, ozaki2);
    otherwise they are rounded to fp32. The exact product is computed from the rounded matrices. An option applies to
    the schemes that have it: 'fpemu list schemes NAME' lists the options of a scheme. Only sgemm and dgemm need no
    hardware.

    A line below the table certifies each error-free scheme: the number of slices and of products, whether each product
    is exact, and whether the sums of the slices are A and B. Exit status 1 if a condition of such a scheme does not
    hold for these matrices.
    """
    names = [name.strip() for text in scheme or ["all"] for name in text.split(",")]
    every = names in (["all"], list(schemes.names()))
    names = list(schemes.names()) if every else list(dict.fromkeys(schemes.get(name).name for name in names))
    options = cli.parse_options(option)
    words.policy(on_range)  # an unknown policy would otherwise leave out each scheme of `all`
    if output is not None:
        if len(names) > 1:
            raise InputError(f"--output writes the result of one scheme, and --scheme names {len(names)}")
        matrices.check_output(output)
    if options and every:
        raise InputError("--option needs --scheme: no option belongs to all the schemes")
    if c is not None and beta == 0:
        raise InputError("C is given but β is 0, so that it would not be used: add --beta")
    if c is None and beta != 0:
        raise InputError("β is given without C: add --c")
    if any(schemes.get(name).needs_hardware for name in names):
        cli.need_hardware(hardware)
    architecture = "" if hardware is None else f" on {mma.catalog.architecture(hardware)}"
    known = {name: [option.name for option in schemes.get(name).info.options] for name in names}
    keywords(f"{' or '.join(names)} option", options, {option for its in known.values() for option in its})
    chosen = {name: {o: value for o, value in options.items() if o in known[name]} for name in names}
    operands = {schemes.build(name, its_options).operand.name for name, its_options in chosen.items()}
    fmt = "fp64" if operands == {"fp64"} else "fp32"
    read: dict[str | None, Any] = {None: None}
    for name in dict.fromkeys((a, b, *([c] if c else []))):
        matrix = matrices.read(name, max_entries=max_entries, complex_numbers=True)
        read[name], rounded = matrices.to_format(matrix, name, fmt)
        if rounded:
            cli.note(rounded)
    A, B, C = read[a], read[b], read[c]
    with np.errstate(over="ignore", under="ignore"):  # α and β in the format of the operands, as the schemes round them
        number = formats.get(fmt).dtype.type
        scalars: dict[str, Any] = {"alpha": float(number(alpha)), "beta": float(number(beta))}
    where = cli.parse_device(device)
    call = {
        "hardware": hardware,
        "on_range": on_range,
        "order": cli.parse_order(order),
        "device": where,
        "form": form,
        **scalars,
    }
    R = reference.matmul(A, B, C, **scalars, device=where)
    S = R if fmt == "fp64" else reference.matmul(A, B, C, **scalars, out=fmt, device=where)
    _note_overflow(
        "the exact product", R, (A, B), "its errors compare infinities: multiply A or B by a power of two first"
    )
    if compare:
        chosen.setdefault("dgemm" if fmt == "fp64" else "sgemm", {})
    lines, certificates, left_out, violated = [], [], [], False
    for n, (name, its_options) in enumerate(chosen.items(), 1):
        start, report = time.perf_counter(), None
        try:
            with cli.spinner(f"{name} ({n} of {len(chosen)})"):
                if schemes.get(name).error_free:
                    certified = schemes.certify(A, B, C, scheme=name, **call, **its_options)
                    D, report = certified.D, certified.report
                    if not report.ok:
                        raise GuaranteeError("; ".join(fault.message for fault in report.faults))
                else:
                    D = schemes.gemm(A, B, C, scheme=name, **call, **its_options)
        except (InputError, GuaranteeError) as problem:
            if not every:
                raise
            left_out.append(f"{name} is left out: {problem}")  # this hardware or these data do not allow it
            violated |= isinstance(problem, GuaranteeError)
            continue
        seconds = time.perf_counter() - start
        _note_overflow(name, D, (R,), "the exact product is finite there; --on-range scale may avoid the overflow")
        in_format = D.astype(S.dtype)  # an fp64 result of fp32 operands is compared in ulps of fp32
        errors = (
            metrics.relative_l2(D, R),
            metrics.max_relative(D, R),
            normwise(D, R, A, B, C, **scalars),
            metrics.max_ulps(in_format, S, fmt),
            metrics.effective_bits(D, R),
        )
        lines.append([name, *map(cli.show, errors), f"{seconds:.2f}"])
        if report is not None:
            products = f"{report.products or 0} products"
            if report.slices is not None:
                i, j = report.slices
                products = f"{i} slice{'s' * (i != 1)} of A, {j} of B, {report.products} of {i * j} products"
            checks = {"each exact": report.exact, "slices complete": report.complete}
            checked = [f"{check}: {'yes' if true else 'no'}" for check, true in checks.items() if true is not None]
            certificates.append(f"{report.scheme}: {', '.join([products, *checked])}")
            if report.certificate is not None:
                certificates.append(f"{report.scheme}: {report.certificate}")
        if output is not None and name in names:
            matrices.write(output, D)
            cli.note(f"wrote {output}: {D.shape[0]}×{D.shape[1]} {D.dtype}")
    shapes = f"{A.shape[0]}×{A.shape[1]} times {B.shape[0]}×{B.shape[1]}"
    columns = ("relative L2", "max relative", "max err/|A||B|", f"max ulps ({fmt})", "effective bits", "seconds")
    cli.print_table(f"{shapes}{architecture}: error against the exact result", ("scheme", *columns), lines, numbers=6)
    for line in certificates:
        typer.echo(line)
    for reason in left_out:
        cli.note(reason)
    if violated:
        raise typer.Exit(1)


def _note_overflow(name: str, D: NDArray[Any], finite: tuple[NDArray[Any], ...], advised: str) -> None:
    """Print a note that counts the infinities and NaN in D, if all arrays in ``finite`` are finite."""
    count = np.count_nonzero(~np.isfinite(D))
    if count and all(np.isfinite(x).all() for x in finite):
        cli.note(f"{name} overflows in {count} of {D.size} entries: {advised}")


@np.errstate(over="ignore", under="ignore")
def normwise(D: Any, R: Any, A: Any, B: Any, C: Any, *, alpha: float, beta: float) -> float:
    """The largest error of D against R relative to |α||A||B| + |β||C|."""
    left = alpha * A.astype(np.result_type(A, np.float64))
    if C is None:
        return metrics.normwise(D, R, left, B)
    errors = []
    for i in range(0, len(A), _ROWS):  # |αA | βI| times |B over C| is |α||A||B| + |β||C|
        rows = slice(i, i + _ROWS)
        block = np.hstack([left[rows], beta * np.eye(len(left[rows]))])
        errors.append(metrics.normwise(D[rows], R[rows], block, np.vstack([B, C[rows]])))
    return max(errors)


def split(
    number: Annotated[str, "NUMBER", "A decimal number, or a hexadecimal float such as 0x1.8p-3."],
    /,
    *,
    scheme: Annotated[str, "Scheme of the split."] = "h2sgemm",
    sb: Annotated[int | None, "Scaling exponent of the residual (h2sgemm)."] = None,
    option: list[str] | None = None,
) -> None:
    """Show the split of one number into words: the value of each word, its bits, and the lost bits."""
    options = cli.parse_options([*(option or []), *([] if sb is None else [f"sb={sb}"])])
    try:
        value = float.fromhex(number) if "0x" in number.lower() else float(number)
    except (ValueError, OverflowError) as problem:
        raise InputError(f"{number!r} is not a number") from problem
    digits = re.split("p" if "0x" in number.lower() else "e", number.lower().replace("0x", ""))[0]
    if not value and re.search("[1-9a-f]", digits):
        raise InputError(f"{number} is no fp64 number: it is below the smallest one, 2^-1074, and would be split as 0")
    typer.echo(schemes.format_split(schemes.split_table(value, scheme, **options)))
