"""``fpemu verify batched``: the batched kernels on this GPU against `fpemu.batched`, bit by bit."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from math import inf
from typing import Annotated

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.cli.verify import Seed, _check_record, _need_a_gpu
from fpemu.errors import InputError

_ROOMS = ("batched", "gpu/batched")  # whose code decides what is found


def batched(
    cases: Annotated[int, typer.Option("--cases", help="Products of each group; 520 go through all sizes once.")] = 520,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Of each group at most, with fewer products.")
    ] = None,
    seed: Seed = 0,
    record: Annotated[str | None, typer.Option("--record", metavar="FILE.json", help="Write the outcomes.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore the outcomes of an interrupted run.")] = False,
) -> None:
    """Verify the batched kernels on this GPU against the emulation of its instructions.

    Sizes 1 to 130 in M, N and K, odd leading dimensions, transposes, pointer arrays, alpha, beta and C, all layouts,
    random configurations of all kernels, and special values. Exit status 0 if all bits are equal, 1 if not, 2 without a
    GPU. With --record each group that ends without a mismatch is saved in FILE.json.partial until the last: the same
    command continues from there.
    """
    from fpemu.gpu.batched import products
    from fpemu.verify import batched_cases as known
    from fpemu.verify import batched_suite as suite
    from fpemu.verify import partial

    _check_record(record)
    if cases < 1 or (seconds is not None and not seconds > 0):
        raise InputError(f"--cases is {cases} and --seconds {seconds}: positive numbers are needed")
    _need_a_gpu()
    products.need_gpu()
    groups = known.groups()
    about = partial.about(_ROOMS, seed=seed, cases=cases, seconds=seconds)
    kept = partial.Partial(record, about, [g.name for g in groups], fresh=fresh)
    if kept.parts:
        note(f"{kept} already")
    found = [suite.Outcome(**part) for part in kept.parts.values()]
    missing = [g for g in groups if g.name not in kept.parts]
    limit, jobs = inf if seconds is None else seconds, min(os.cpu_count() or 1, 16, len(missing))
    try:
        with progress() as bars:
            bar = bars.add_task("batched", total=len(groups), completed=len(found))
            for outcome in suite.check(missing, seed, cases, seconds=limit, jobs=jobs):
                found.append(outcome)
                if outcome.ok:
                    kept.keep(outcome.group, asdict(outcome))
                bars.update(bar, advance=1, description=outcome.group)
        if record is not None:
            kept.finish(suite.text(suite.record(found, seed, cases)).encode())
    except KeyboardInterrupt:
        print(f"fpemu: {kept.interrupted()}", file=sys.stderr)
        raise typer.Exit(130) from None
    shown = table("this GPU against the emulation", "group", "products", "outputs", "mismatches", "failed", numbers=4)
    for o in found:
        shown.add_row(o.group, *(f"{n:,}" for n in (o.products, o.outputs, o.mismatches, o.failed)))
    console().print(shown)
    faults = [o for o in found if not o.ok]
    for o in faults:
        for place in o.first:
            note(f"{o.group}: {place}")
    if faults:
        raise typer.Exit(1)
