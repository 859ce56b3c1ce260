"""``fpemu invariant``: the sizes and settings at which a GEMM changes the summation order of a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from fpemu import formats as known
from fpemu import library as libraries
from fpemu import mma, probing, simt
from fpemu.cli import options as cli
from fpemu.errors import InputError
from fpemu.probing.callables import as_matrix, load_function


@cli.with_options()
def invariant(
    target: Annotated[str | None, "[FILE.py:FUNCTION]", "A function (A, B) -> D."] = None,
    /,
    *,
    m: Annotated[str, "FIRST:LAST[:STEP] | M,M,...", "Numbers of rows."] = "1:64",
    n: Annotated[int, "Columns of B."] = 64,
    k: Annotated[int, "K of the product."] = 4096,
    vary: Annotated[str | None, "NAME=FIRST:LAST[:STEP] | NAME=V,V,...", "Vary n, k, alignment or a keyword."] = None,
    ranks: Annotated[str | None, "1,2,4,8", "Divide K among so many GPUs, whose products NCCL's ring adds."] = None,
    type_: Annotated[str, "IN[,OUT]", "Formats of A and B, and of D."] = "fp32",
    hardware: str | None = None,
    layout: Annotated[str | None, "NN: A and B are stored by rows; TN (default of --library): B by columns."] = None,
    library: Annotated[str | None, "cublas | openblas", "A library's orders in place of a function."] = None,
    orders: Annotated[bool, "Reveal each order by probes."] = True,
    draw: Annotated[str | None, "FILE.png|svg|pdf", "Draw the intervals into this file."] = None,
    json_: bool = False,
) -> None:
    """Find the sizes or settings at which a GEMM changes the summation order of a row.

    FUNCTION is called for every M as by 'fpemu reveal', with rows of A that are all equal, and the bits of the rows of
    D are compared. Each order is then revealed by probes. --hardware is the hardware of FUNCTION, or the kernel of
    OpenBLAS, such as HASWELL.

    --vary varies N, K (zeros are appended), the alignment of the operands in bytes, or a keyword of FUNCTION, such as
    workspace=0,33554432, for the one M of --m. --ranks compares tensor parallelism on several GPUs.

    Exit status 0 if every row has one order for all values; 1 if the order changes or is not known.
    """
    cli.check_file(draw, "a drawing", ".png", ".svg", ".pdf")
    if (target is None) == (library is None):
        raise InputError("name one thing to compare: FILE.py:FUNCTION, or --library NAME")
    if vary is not None and ranks is not None:
        raise InputError("--vary and --ranks vary one thing each: give one of them")
    rows, varied = _numbers("--m", m), vary if ranks is None else f"ranks={ranks}"
    name, _, values = (varied or "m").partition("=")
    inputs, _, result = type_.partition(",")
    if target is None and ranks is None:
        if vary is not None or result:
            raise InputError("--library takes --m or --ranks, and one --type")
        where: dict[str, str | None] = {"hardware": hardware, "layout": layout or "TN"}
        found = libraries.invariance(str(library), type_, n, k, m=rows, **where)  # type: ignore[arg-type]
    else:
        fmt, out = known.get(inputs).name, known.get(result).name if result else None
        function: Callable[..., Any] = load_function(target) if target else libraries.emulate
        plain = simt.SPECS[fmt] if fmt in ("fp32", "fp64") else None
        spec = plain or (mma.spec(hardware, fmt) if hardware is not None else None)
        given: dict[str, Any] = {} if varied is None else {"vary": name, "values": _values(name, values)}
        if ranks is not None:
            function, orders = _parallel(function if target else str(library), fmt, out), False
        with cli.spinner("comparing") as say:
            found = probing.invariance(
                function, n, k, m=rows if varied is None else _one(rows), spec=spec, fmt=None if spec else fmt, out=out,
                layout=layout or "NN", orders=orders, report=lambda count: say(f"comparing: {count} calls"), **given,  # type: ignore[arg-type]
            )  # fmt: skip
    typer.echo(json.dumps({**asdict(found), "invariant": found.invariant}) if json_ else str(found))
    if draw is not None:
        from fpemu.plotting.intervals import picture

        cli.write_picture(draw, picture(found))
    if not found.invariant:
        raise typer.Exit(1)


def _parallel(function: Any, fmt: str, out: str | None) -> Callable[..., Any]:
    """The product with K divided among ranks."""
    of_library: Any = (
        function if isinstance(function, str) else lambda A, B: as_matrix(function(A, B), "the result").values
    )

    def gemm(A: Any, B: Any, ranks: int) -> Any:
        partial: Any = out if out in ("fp16", "bf16") else None
        ring: Any = {} if ranks in (1, 2, 4) else {"protocol": "LL", "channels": 1}
        return libraries.parallel_linear(A, B.T, ranks=ranks, library=of_library, fmt=fmt, partial=partial, **ring)

    return gemm


def _one(rows: list[int]) -> int:
    if len(rows) > 1:
        raise InputError("another variable than M is varied for one number of rows: --m 64, for example")
    return rows[0]


def _values(name: str, text: str) -> list[Any]:
    """The values that --vary or --ranks names: sizes, or words for a keyword of the function."""
    if not name.isidentifier() or not text:
        raise InputError("--vary is not NAME=FIRST:LAST[:STEP] or NAME=V,V,...")
    if name in ("n", "k", "ranks") or ":" in text:
        return _numbers(f"--vary {name}", text)
    return [cli.parse_value(word.strip()) for word in text.split(",")]


def _numbers(option: str, text: str) -> list[int]:
    """The numbers FIRST:LAST[:STEP] or M,M,... of an option."""
    parts = text.split(":") if ":" in text else text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or (":" in text and not 2 <= len(parts) <= 3):
        raise InputError(f"{option} {text!r} is not FIRST:LAST[:STEP] or M,M,...")
    sizes = [int(part) for part in parts]
    if ":" in text:
        first, last, step = *sizes[:2], sizes[2] if len(sizes) == 3 else 1
        sizes = list(range(first, last + 1, max(step, 1)))
    if not sizes or max(sizes) > 2**20:
        raise InputError(f"{option} {text!r} names no numbers up to 2^20")
    return sizes
