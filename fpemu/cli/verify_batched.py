"""``fpemu verify batched``: the batched kernels on the GPU here against `fpemu.batched`, bit by bit."""

from __future__ import annotations

import os
from math import inf
from typing import Annotated

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.cli.verify import Seed, _check_record, _need_a_gpu
from fpemu.errors import InputError


def batched(
    cases: Annotated[int, typer.Option("--cases", help="Products of each group; 520 go through all sizes once.")] = 520,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Of each group at most, with fewer products.")
    ] = None,
    seed: Seed = 0,
    record: Annotated[str | None, typer.Option("--record", metavar="FILE.json", help="Write what was found.")] = None,
) -> None:
    """Batched products of the kernels on the GPU here against the emulation of its instructions.

    Sizes 1 to 130 in M, N and K, odd leading dimensions, transposes, pointer arrays, alpha, beta and C, all layouts,
    random configurations of all kernels, and special values. Exit status 0 if all bits are equal, 1 if not, 2 without a
    GPU.
    """
    from fpemu.files import write_atomic
    from fpemu.gpu.batched import cases as known
    from fpemu.gpu.batched import products, suite

    _check_record(record)
    if cases < 1 or (seconds is not None and not seconds > 0):
        raise InputError(f"--cases is {cases} and --seconds {seconds}: positive numbers are needed")
    _need_a_gpu()
    products.need_gpu()
    groups = known.groups()
    found: list[suite.Outcome] = []
    with progress() as bars:
        bar = bars.add_task("batched", total=len(groups))
        limit = inf if seconds is None else seconds
        for outcome in suite.check(groups, seed, cases, seconds=limit, jobs=min(os.cpu_count() or 1, 16, len(groups))):
            found.append(outcome)
            bars.update(bar, advance=1, description=outcome.group)
    if record is not None:
        write_atomic(record, suite.text(suite.record(found, seed, cases)).encode())
    shown = table(
        "the GPU here against the emulation", "group", "products", "outputs", "mismatches", "failed", numbers=4
    )
    for o in found:
        shown.add_row(o.group, *(f"{n:,}" for n in (o.products, o.outputs, o.mismatches, o.failed)))
    console().print(shown)
    faults = [o for o in found if not o.ok]
    for o in faults:
        for place in o.first:
            note(f"{o.group}: {place}")
    if faults:
        raise typer.Exit(1)
