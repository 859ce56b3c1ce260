"""``fpemu invariant``: the numbers of rows M at which a GEMM changes the summation order of a row."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fpemu import formats as known
from fpemu import library as libraries
from fpemu import mma, probing, simt
from fpemu.cli import options as cli
from fpemu.errors import InputError
from fpemu.probing.callables import load_function


@cli.with_options()
def invariant(
    target: Annotated[str | None, "[FILE.py:FUNCTION]", "A function (A, B) -> D."] = None,
    /,
    *,
    m: Annotated[str, "FIRST:LAST[:STEP] | M,M,...", "Numbers of rows."] = "1:64",
    n: Annotated[int, "Columns of B."] = 64,
    k: Annotated[int, "K of the product."] = 4096,
    type_: Annotated[str, "IN[,OUT]", "Formats of A and B, and of D."] = "fp32",
    hardware: str | None = None,
    layout: Annotated[str | None, "NN: A and B are stored by rows; TN (default of --library): B by columns."] = None,
    library: Annotated[str | None, "cublas | openblas", "A library's orders in place of a function."] = None,
    orders: Annotated[bool, "Reveal each order by probes."] = True,
    json_: bool = False,
) -> None:
    """Find the numbers of rows at which a GEMM changes the summation order of a row.

    FUNCTION is called for every M as by 'fpemu reveal', with rows of A that are all equal, and the bits of the rows of
    D are compared. Each order is then revealed by probes. --hardware is the hardware of FUNCTION, or the kernel of
    OpenBLAS, such as HASWELL.

    Exit status 0 if every row has one order for all M; 1 if the order changes.
    """
    if (target is None) == (library is None):
        raise InputError("name one thing to compare: FILE.py:FUNCTION, or --library NAME")
    rows = _numbers(m)
    if target is None:
        where: dict[str, str | None] = {"hardware": hardware, "layout": layout or "TN"}
        found = libraries.invariance(str(library), type_, n, k, m=rows, **where)  # type: ignore[arg-type]
    else:
        inputs, _, result = type_.partition(",")
        fmt, out = known.get(inputs).name, known.get(result).name if result else None
        plain = simt.SPECS[fmt] if fmt in ("fp32", "fp64") else None
        spec = plain or (mma.spec(hardware, fmt) if hardware is not None else None)
        with cli.spinner("comparing") as say:
            found = probing.invariance(
                load_function(target), n, k, m=rows, spec=spec, fmt=None if spec else fmt, out=out,
                layout=layout or "NN", orders=orders, report=lambda count: say(f"comparing: {count} calls"),  # type: ignore[arg-type]
            )  # fmt: skip
    typer.echo(json.dumps({**asdict(found), "invariant": found.invariant}) if json_ else str(found))
    if not found.invariant:
        raise typer.Exit(1)


def _numbers(m: str) -> list[int]:
    """The numbers of rows that --m names."""
    parts = m.split(":") if ":" in m else m.split(",")
    if not all(part.strip().isdecimal() for part in parts) or (":" in m and not 2 <= len(parts) <= 3):
        raise InputError(f"--m {m!r} is not FIRST:LAST[:STEP] or M,M,...")
    sizes = [int(part) for part in parts]
    if ":" in m:
        first, last, step = *sizes[:2], sizes[2] if len(sizes) == 3 else 1
        sizes = list(range(first, last + 1, max(step, 1)))
    if not sizes or max(sizes) > 2**20:
        raise InputError(f"--m {m!r} names no numbers of rows up to 2^20")
    return sizes
