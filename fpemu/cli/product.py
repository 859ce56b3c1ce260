"""``fpemu gemm``, ``fpemu split`` and ``fpemu advise``: products by schemes, their words, and the choice of one."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import (
    ALPHA,
    AS_JSON,
    BETA,
    C_FILE,
    DEVICE,
    HARDWARE,
    MAX_ENTRIES,
    ON_RANGE,
    OPTION,
    ORDER,
    note,
    parse_device,
    parse_options,
    parse_order,
    print_table,
    print_text,
    read_matrix,
    show,
    spinner,
)
from fpemu.errors import GuaranteeError, InputError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpemu.advice import Advice, Verdict
    from fpemu.mma import KOrder
    from fpemu.schemes import Report

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
    _note_overflow(
        "the exact product", R, (A, B), "its errors compare infinities: multiply A or B by a power of two first"
    )
    if compare:
        chosen.setdefault("dgemm" if fmt == "fp64" else "sgemm", {})
    lines, certificates, left_out, violated = [], [], [], False
    for n, (name, its_options) in enumerate(chosen.items(), 1):
        start, report = time.perf_counter(), None
        try:
            with spinner(f"{name} ({n} of {len(chosen)})"):
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
        errors = _errors(D, R, S, A, B, C, fmt=fmt, **scalars)
        lines.append([name, *map(show, errors), f"{seconds:.2f}"])
        if report is not None:
            certificates.append(_certificate(report))
        if output is not None and name in names:
            matrices.write(output, D)
            note(f"wrote {output}: {D.shape[0]}×{D.shape[1]} {D.dtype}")
    title = (
        f"{A.shape[0]}×{A.shape[1]} times {B.shape[0]}×{B.shape[1]} on {architecture}: error against the exact result"
    )
    columns = ("relative L2", "max relative", "max err/|A||B|", f"max ulps ({fmt})", "effective bits", "seconds")
    print_table(title, ("scheme", *columns), lines, numbers=6)
    for line in certificates:
        print_text(line)
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

    names = [name.strip() for text in requested for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("no scheme is named")
    if "all" in names:
        if len(names) > 1:
            raise InputError("--scheme all goes alone")
        return list(schemes.names())
    return list(dict.fromkeys(schemes.get(name).name for name in names))


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
    """A scalar rounded to fp32 or fp64, as the product takes it, with a note if that changes it."""
    import numpy as np

    from fpemu import formats

    with np.errstate(over="ignore", under="ignore"):
        rounded = float(formats.get(fmt).dtype.type(value))
    if not math.isfinite(rounded):
        raise InputError(f"{name} is {value}: a finite {fmt} number is needed")
    if rounded != value:
        note(f"{name}: {value!r} rounded to {fmt}, {rounded!r}")
    return rounded


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


def split(
    number: Annotated[str, typer.Argument(help="A decimal number, or a hexadecimal float such as 0x1.8p-3.")],
    scheme: Annotated[str, typer.Option("--scheme", "-s", help="Scheme of the split.")] = "h2sgemm",
    sb: Annotated[int | None, typer.Option("--sb", help="Scaling exponent of the residual (h2sgemm).")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="An option of the scheme.")
    ] = None,
) -> None:
    """Show the split of one number into words: the value of each word, its bits, and the lost bits."""
    from fpemu import schemes

    options = parse_options(option)
    if sb is not None:
        if "sb" in options:
            raise InputError("sb is given twice, by --sb and by --option")
        options["sb"] = sb
    try:
        value = float.fromhex(number) if "0x" in number.lower() else float(number)
    except (ValueError, OverflowError) as problem:
        raise InputError(f"{number!r} is not a number") from problem
    if not math.isfinite(value):
        raise InputError(f"{number} is not a finite number: only finite numbers are split")
    typer.echo(schemes.format_split(schemes.split_table(value, scheme, **options)))


def advise(
    target: Annotated[float, typer.Option("--target", "-t", help="The largest relative error accepted, such as 1e-6.")],
    hardware: Annotated[
        str, typer.Option("--hardware", "-H", help="An architecture, a GPU or FILE.toml: see 'fpemu list hardware'.")
    ],
    k: Annotated[int | None, typer.Option("--k", help="Length K of the sums; required without --data.")] = None,
    m: Annotated[int | None, typer.Option("--m", help="Rows of the product, without --data; default: k.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Columns of the product, without --data; default: k.")] = None,
    data: Annotated[
        tuple[str, str] | None, typer.Option("--data", metavar="A B", help="The matrices A and B, as for 'fpemu gemm'.")
    ] = None,
    measure: Annotated[
        str,
        typer.Option("--measure", help="Error measure: normwise, relative_l2, max_relative, mred or max_error_legemm."),
    ] = "normwise",
    worst: Annotated[
        bool, typer.Option("--worst", help="Use the worst-case bound instead of the probable bound.")
    ] = False,
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="NAME[,X=Y...]", help="Without --data: the distribution of A and B.")
    ] = "uniform",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Without --data: fp32 or fp64; default: according to the target.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of the drawn operands and of the sampled rows and columns.")
    ] = 0,
    max_entries: Annotated[int | None, MAX_ENTRIES] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Find the cheapest scheme whose error bound and whose error measured on the data meet a target.

    The cost of a scheme is the number of matrix instructions, weighted by their rate on the hardware; memory traffic
    decides between equal costs. A scheme whose measured error exceeds the target is never recommended. Exit status 1 if
    no scheme on the hardware meets the target; a line on stderr then names the scheme with the smallest bound.
    """
    from fpemu import advice

    name, *rest = inputs.split(",")
    matrices: dict[str, Any] = {}
    if data is not None:
        if inputs != "uniform" or dtype is not None:
            raise InputError("--inputs and --dtype describe A and B without --data: leave them out")
        matrices = dict(zip("AB", (read_matrix(name, max_entries) for name in data), strict=True))
    try:
        with spinner("analysing A and B") as say:
            advised = advice.advise(
                target,
                hardware=hardware,
                K=k,
                M=m,
                N=n,
                measure=measure,
                confidence="worst" if worst else "probable",
                inputs=name.strip(),
                parameters=parse_options(rest),
                dtype=dtype,  # type: ignore[arg-type]  # checked by advise
                seed=seed,
                progress=say,
                **matrices,
            )
    except advice.TargetError as problem:
        note(f"fpemu: {problem}")
        raise typer.Exit(1) from problem
    if as_json:
        typer.echo(json.dumps(_as_json(advised, data), indent=2))
    else:
        _show(advised, data)


def _show(advised: Advice, data: tuple[str, str] | None) -> None:
    from fpemu.advice.search import FAILURE

    chosen = advised.chosen
    bound = "the worst-case bound" if advised.confidence == "worst" else "the probable bound"
    worst = "; ".join(f"{part} {show(worst)}" for part, worst in chosen.parts() if worst)
    print_text(advised.call())
    typer.echo(advised.command(*(data or ())))  # never wrapped: a line break would end the command
    lines = [
        "",
        f"{advised.measure} error of {advised.M}×{advised.K} times {advised.K}×{advised.N}, "
        f"at most {advised.target:g} by {bound}:",
        f"measured    {show(chosen.measured or 0.0):>9}  on {advised.data}",
        f"probable    {_bound(chosen.probable):>9}  random data exceed it with a probability of {FAILURE:g} at most",
        f"worst case  {_bound(chosen.worst):>9}" + (f"  relative to |A||B|: {worst}" if worst else ""),
        *(f"note: {line}" for line in advised.notes),
        "",
    ]
    print_text("\n".join(lines))
    verdicts = [(chosen, "chosen"), *((v, "meets it") for v in advised.alternatives)]
    rows = [
        (
            verdict.candidate.label,
            text,
            show(verdict.candidate.cost.work),
            show(verdict.candidate.cost.memory / 1e6),
            _bound(verdict.worst),
            _bound(verdict.probable),
            "" if verdict.measured is None else show(verdict.measured),
        )
        for verdict, text in [*verdicts, *((v, v.why) for v in advised.nearest)]
    ]
    print_table(
        f"the cheapest schemes that meet {advised.target:g}, then cheaper ones that fail; work: "
        f"{'fp32' if advised.unit is None else 'fp16'} products ({advised.rates})",
        ("scheme", "verdict", "work", "memory, MB", "worst case", "probable", "measured"),
        rows,
        numbers=5,
    )


def _bound(value: float) -> str:
    return show(value) if math.isfinite(value) else "none"


def _as_json(advised: Advice, data: tuple[str, str] | None) -> dict[str, Any]:
    plain = ("target", "measure", "confidence", "hardware", "M", "N", "K", "data", "rates", "checked", "notes")
    return {
        **{name: getattr(advised, name) for name in plain},
        "python": advised.call(),
        "command": advised.command(*(data or ())),
        "chosen": _verdict(advised.chosen),
        "alternatives": [_verdict(v) for v in advised.alternatives],
        "nearest": [_verdict(v) for v in advised.nearest],
        "considered": len(advised.considered),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict without infinities, which JSON does not have: they are null."""

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    candidate = verdict.candidate
    return {
        "scheme": candidate.scheme,
        "options": dict(candidate.options),
        "on_range": candidate.on_range,
        "cost": {"work": candidate.cost.work, "memory": candidate.cost.memory, "vector": candidate.cost.vector},
        "worst": finite(verdict.worst),
        "probable": finite(verdict.probable),
        "measured": finite(verdict.measured),
        "parts": {name: finite(worst) for name, worst in verdict.parts()},
        "why": verdict.why,
    }
