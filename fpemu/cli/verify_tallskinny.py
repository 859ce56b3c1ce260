"""``fpemu verify tallskinny``: the tall and skinny kernels on the GPU here against `fpemu.simt`, bit by bit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.cli.verify import Seed, _check_record, _need_a_gpu
from fpemu.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from fpemu.verify.partial import Partial
    from fpemu.verify.tallskinny_huge import Huge
    from fpemu.verify.tallskinny_suite import Outcome

_HUGE = "huge"
_ROOMS = ("gpu/tallskinny", "roofline")  # whose code decides what is found


def tallskinny(
    every: Annotated[int, typer.Option("--every", help="Only every so many of the products.")] = 1,
    huge: Annotated[
        bool, typer.Option("--huge", help="Matrices of more than 2^32 elements, too: 18 to 37 GB of memory.")
    ] = False,
    seed: Seed = 0,
    record: Annotated[str | None, typer.Option("--record", metavar="FILE.json", help="Write what was found.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compare again what an interrupted run has compared.")] = False,
) -> None:
    """TSM2, ISM2 and the versions for Hopper on the GPU here against the emulation, in fp32 and fp64.

    Sizes 1 to 130 as m, as k and as n, larger ones, all layouts, odd leading dimensions, and special values. Exit
    status 0 if all bits are equal, 1 if not, 2 without a GPU. With --record each kernel that is done in a format
    without a fault is kept in FILE.json.partial until all are: the same command goes on from there.
    """
    from fpemu.verify import partial
    from fpemu.verify import tallskinny_cases as cases
    from fpemu.verify import tallskinny_suite as suite

    _check_record(record)
    if every < 1:
        raise InputError(f"--every is {every}: a number from 1 on is needed")
    _need_a_gpu()
    names = [_part(name, fmt) for name in [*suite.kernels(), *[_HUGE] * huge] for fmt in cases.FORMATS]
    kept = partial.Partial(record, partial.about(_ROOMS, seed=seed, every=every), names, fresh=fresh)
    if kept.parts:
        note(f"{kept} already")
    try:
        with progress() as bars:
            found = _found(kept, seed, range(0, cases.CASES, every), bars)
            beyond = _beyond(kept, seed, bars) if huge else []
        if record is not None:
            kept.finish(suite.text(suite.record(found, seed, beyond)).encode())
    except KeyboardInterrupt:
        print(f"fpemu: {kept.interrupted()}", file=sys.stderr)
        raise typer.Exit(130) from None
    shown = table(
        "the GPU here against the emulation",
        "kernel",
        "format",
        "products",
        "outputs",
        "mismatches",
        "failed",
        numbers=4,
    )
    for o in found:
        shown.add_row(o.kernel, o.fmt, *(f"{n:,}" for n in (o.products, o.outputs, o.mismatches + o.beyond, o.failed)))
    console().print(shown)
    for o in found:
        for place in o.first:
            note(f"{o.kernel} in {o.fmt}: {place}")
    wrong = [h for h in beyond if h.mismatches]
    for h in wrong:
        note(
            f"{h.kernel} in {h.fmt}, {'×'.join(map(str, h.sizes))} by {h.layout}: {h.mismatches} of {h.outputs} differ"
        )
    if huge:
        console().print(f"{len(beyond)} products of more than 2^32 elements, {len(wrong)} of them with differences")
    if wrong or any(not o.ok for o in found):
        raise typer.Exit(1)


def _part(kernel: str, fmt: str) -> str:
    return f"{kernel} in {fmt}"


def _found(kept: Partial, seed: int, numbers: Sequence[int], bars: Progress) -> list[Outcome]:
    """What is kept of the kernels and, kept as it is done, what is not; in the suite's order."""
    from fpemu.verify import tallskinny_cases as cases
    from fpemu.verify import tallskinny_suite as suite

    wanted = [(name, fmt) for fmt in cases.FORMATS for name in suite.kernels()]
    done = {which: suite.restored(kept.parts[_part(*which)]) for which in wanted if _part(*which) in kept.parts}
    bar = bars.add_task("compiling", total=len(wanted), completed=len(done))
    for outcome in suite.check(seed, numbers, done=list(done)):
        done[outcome.kernel, outcome.fmt] = outcome
        if outcome.ok:
            kept.keep(_part(outcome.kernel, outcome.fmt), asdict(outcome))
        bars.update(bar, advance=1, description=f"{outcome.kernel} in {outcome.fmt}")
    return [done[which] for which in wanted]


def _beyond(kept: Partial, seed: int, bars: Progress) -> list[Huge]:
    """The same of the matrices of more than 2^32 elements, a format at a time."""
    from fpemu.verify import tallskinny_cases as cases
    from fpemu.verify import tallskinny_huge as huge

    found: list[Huge] = []
    bar = bars.add_task("more than 2^32 elements", total=len(cases.FORMATS))
    for fmt in cases.FORMATS:
        part = _part(_HUGE, fmt)
        if part in kept.parts:
            rows = [huge.Huge(**row | {"sizes": tuple(row["sizes"])}) for row in kept.parts[part]]
        else:
            rows = list(huge.check([fmt], seed))
            if {row.sizes for row in rows} == {*huge.SHAPES} and not any(row.mismatches for row in rows):
                kept.keep(part, [asdict(row) for row in rows])
        found += rows
        bars.update(bar, advance=1)
    return found
