"""``fpemu gemm``: the product of two matrix files by one or more schemes, with its errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import (
    ALPHA,
    BETA,
    C_FILE,
    DEVICE,
    HARDWARE,
    MAX_ENTRIES,
    ON_RANGE,
    OPTION,
    ORDER,
    console,
    finite,
    in_options,
    note,
    parse_device,
    parse_options,
    parse_order,
    read_matrix,
    show,
    spinner,
    table,
)
from fpemu.errors import GuaranteeError, InputError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpemu.mma import KOrder
    from fpemu.schemes import Report

_OPTIONS = {"on_range": "--on-range", "hardware": "--hardware", "order": "--order"}
_ROWS = 1024  # of D that are compared at once: with C, the memory grows with their square


def gemm(
    a: Annotated[str, typer.Argument(metavar="A", help="The matrix A: FILE.npy, FILE.npz[:KEY] or FILE.mtx.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The matrix B, likewise.")],
    scheme: Annotated[
        list[str] | None,
        typer.Option("--scheme", "-s", help="A scheme, or several separated by commas; may be repeated; default: all."),
    ] = None,
    hardware: Annotated[str, HARDWARE] = "A100",
    alpha: Annotated[float, ALPHA] = 1.0,
    beta: Annotated[float, BETA] = 0.0,
    c: Annotated[str | None, C_FILE] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Write the result to this .npy or .mtx file; requires one scheme."),
    ] = None,
    order: Annotated[str | None, ORDER] = None,
    on_range: Annotated[str, ON_RANGE] = "raise",
    option: Annotated[list[str] | None, OPTION] = None,
    device: Annotated[str, DEVICE] = "auto",
    compare: Annotated[bool, typer.Option(help="Add SGEMM to the table, or DGEMM if the operands are fp64.")] = True,
    max_entries: Annotated[int | None, MAX_ENTRIES] = None,
) -> None:
    """Multiply two matrices by split schemes and compare the results with the exact product.

    The result is α·A·B + β·C. The matrices remain in fp64 if every scheme is for fp64 (dgemm, ozaki, ozimmu, ozaki2);
    otherwise they are rounded to fp32. The exact product is computed from the rounded matrices. An option applies to
    the schemes that have it: 'fpemu list schemes NAME' lists the options of a scheme.

    A line below the table certifies each error-free scheme: the number of slices and of products, whether each product
    is exact, and whether the sums of the slices are A and B. Exit status 1 if a condition of such a scheme does not
    hold for these matrices.
    """
    from fpemu import mma, reference, schemes
    from fpemu.cli import matrices
    from fpemu.schemes import words

    names = _schemes(scheme or ["all"])
    every = names == list(schemes.names())
    options = parse_options(option)
    words.policy(on_range)  # otherwise each of several schemes would be left out
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
    architecture = mma.catalog.architecture(hardware)
    chosen = _divide(names, options)
    operands = {schemes.build(name, its_options).operand.name for name, its_options in chosen.items()}
    fmt = "fp64" if operands == {"fp64"} else "fp32"
    A, B, C = _inputs(a, b, c, fmt, max_entries)
    scalars: dict[str, Any] = {"alpha": _scalar("alpha", alpha, fmt), "beta": _scalar("beta", beta, fmt)}
    where = parse_device(device)
    call = {"hardware": hardware, "on_range": on_range, "order": _order(order), "device": where, **scalars}
    R = reference.matmul(A, B, C, **scalars, device=where)
    S = R if fmt == "fp64" else reference.matmul(A, B, C, **scalars, out=fmt, device=where)
    advice = "its errors compare infinities: multiply A or B by a power of two first"
    _note_overflow("the exact product", R, (A, B), advice)
    M, K, N = A.shape[0], A.shape[1], B.shape[1]
    result = table(
        f"{M}×{K} times {K}×{N} on {architecture}: error against the exact result",
        "scheme",
        "relative L2",
        "max relative",
        "max err/|A||B|",
        f"max ulps ({fmt})",
        "effective bits",
        "seconds",
        numbers=6,
    )
    plain = "dgemm" if fmt == "fp64" else "sgemm"
    if compare:
        chosen.setdefault(plain, {})
    certificates, left_out, violated = [], [], False
    for n, (name, its_options) in enumerate(chosen.items(), 1):
        start = time.perf_counter()
        try:
            with spinner(f"{name} ({n} of {len(chosen)})"), in_options(_OPTIONS):
                D, report = _multiply(name, A, B, C, **call, **its_options)
        except (InputError, GuaranteeError) as problem:
            if not every:
                raise
            left_out.append(f"{name} is left out: {problem}")  # this hardware or these data do not allow it
            violated |= isinstance(problem, GuaranteeError)
            continue
        seconds = time.perf_counter() - start
        _note_overflow(name, D, (R,), "the exact product is finite there; --on-range scale may avoid the overflow")
        errors = _errors(D, R, S, A, B, C, fmt=fmt, **scalars)
        result.add_row(name, *[show(error) for error in errors], f"{seconds:.2f}")
        if report is not None:
            certificates.append(_certificate(report))
        if output is not None and name in names:
            matrices.write(output, D)
            note(f"wrote {output}: {D.shape[0]}×{D.shape[1]} {D.dtype}")
    console().print(result)
    for line in certificates:
        console().print(line)
    for reason in left_out:
        note(reason)
    if violated:
        raise typer.Exit(1)


def _note_overflow(name: str, D: NDArray[Any], finite: tuple[NDArray[Any], ...], advice: str) -> None:
    """Note the infinities and NaN in D if all of the arrays ``finite`` are so."""
    import numpy as np

    count = np.count_nonzero(~np.isfinite(D))
    if count and all(np.isfinite(x).all() for x in finite):
        note(f"{name} overflows in {count} of {D.size} entries: {advice}")


def _order(text: str | None) -> KOrder | None:
    from fpemu.mma import KOrder

    order = parse_order(text)
    if order is not None and not isinstance(order, KOrder):
        raise InputError(f"{text} is a tree, which is an order of one plain product: a scheme takes NAME=VALUE,...")
    return order


def _schemes(requested: list[str]) -> list[str]:
    """The schemes of --scheme, each once, in their order; an unknown name is an InputError."""
    from fpemu import schemes

    known = list(schemes.names())
    names = [name.strip() for text in requested for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("no scheme is named")
    if "all" in names:
        if len(names) > 1:
            raise InputError("--scheme all goes alone")
        return known
    for name in names:
        if name not in known:
            raise unknown_name("scheme", name, known)
    return list(dict.fromkeys(names))


def _divide(names: list[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each scheme with those of the options that it has; InputError for an option that none of the schemes has."""
    from fpemu import schemes

    known = {name: [option.name for option in schemes.get(name).info.options] for name in names}
    every = sorted({option for its_options in known.values() for option in its_options})
    for option in options:
        if option not in every:
            raise unknown_name(f"{' or '.join(names)} option", option, every or ["(none)"])
    return {name: {o: value for o, value in options.items() if o in known[name]} for name in names}


def _inputs(a: str, b: str, c: str | None, fmt: str, max_entries: int | None) -> tuple[Any, Any, Any]:
    """A, B and C in a format and of fitting shapes, with a note on each that was rounded."""
    from fpemu.cli import matrices

    names = dict.fromkeys(name for name in (a, b, c) if name is not None)
    read = {name: read_matrix(name, max_entries) for name in names}
    (M, K), (L, N) = read[a].shape, read[b].shape
    if K != L:
        raise InputError(f"{a} is {M}×{K} and {b} is {L}×{N}: A must have as many columns as B has rows")
    if c is not None and read[c].shape != (M, N):
        rows, columns = read[c].shape
        raise InputError(f"{c} is {rows}×{columns} and the product is {M}×{N}: C must have its shape")
    rounded = {}
    for name, matrix in read.items():
        rounded[name], changed = matrices.to_format(matrix, name, fmt)
        if changed:
            note(changed)
    return rounded[a], rounded[b], None if c is None else rounded[c]


def _scalar(name: str, value: float, fmt: str) -> float:
    rounded, changed = finite(name, value, fmt)
    if changed:
        note(changed)
    return rounded


def _multiply(
    name: str, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any] | None, **call: Any
) -> tuple[NDArray[Any], Report | None]:
    """The result of a scheme, and the report of an error-free one."""
    from fpemu import schemes

    if not schemes.get(name).error_free:
        return schemes.gemm(A, B, C, scheme=name, **call), None
    certified = schemes.certify(A, B, C, scheme=name, **call)
    if not certified.report.ok:
        raise GuaranteeError("; ".join(fault.message for fault in certified.report.faults))
    return certified.D, certified.report


def _certificate(report: Report) -> str:
    """A report in a line, without the conditions that the scheme does not check."""
    products = f"{report.products or 0} products"
    if report.slices is not None:
        a, b = report.slices
        products = f"{a} slice{'s' * (a != 1)} of A, {b} of B, {report.products} of {a * b} products"
    checks = {"each exact": report.exact, "slices complete": report.complete}
    results = [f"{name}: {'yes' if true else 'no'}" for name, true in checks.items() if true is not None]
    return f"{report.scheme}: {', '.join([products, *results])}"


def _errors(
    D: NDArray[Any], R: Any, S: Any, A: Any, B: Any, C: Any, *, alpha: float, beta: float, fmt: str
) -> tuple[float, ...]:
    """The numbers of a row: D against the exact result, R in fp64 and S in the operands' format."""
    import numpy as np

    from fpemu import formats, metrics

    with np.errstate(over="ignore", under="ignore"):
        left = alpha * A.astype(np.float64)
        near = D.astype(formats.get(fmt).dtype)  # fp64 results beside fp32 operands: how near in places of fp32

    def normwise(rows: slice) -> float:
        if C is None:
            return metrics.normwise(D[rows], R[rows], left[rows], B)
        # |αA | βI| times |B over C| is |α||A||B| + |β||C|: the size of all that goes into an entry
        extended = np.hstack([left[rows], beta * np.eye(len(left[rows]))])
        return metrics.normwise(D[rows], R[rows], extended, np.vstack([B, C[rows]]))

    return (
        metrics.relative_l2(D, R),
        metrics.max_relative(D, R),
        max(normwise(slice(i, i + _ROWS)) for i in range(0, len(A), _ROWS)),
        metrics.max_ulps(near, S, fmt),
        metrics.effective_bits(D, R),
    )
