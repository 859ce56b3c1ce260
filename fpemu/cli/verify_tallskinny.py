"""``fpemu verify tallskinny``: the tall and skinny kernels on the GPU here against `fpemu.simt`, bit by bit."""

from __future__ import annotations

from typing import Annotated

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.cli.verify import Seed, _check_record, _need_a_gpu
from fpemu.errors import InputError


def tallskinny(
    every: Annotated[int, typer.Option("--every", help="Only every so many of the products.")] = 1,
    huge: Annotated[
        bool, typer.Option("--huge", help="Matrices of more than 2^32 elements, too: 18 to 37 GB of memory.")
    ] = False,
    seed: Seed = 0,
    record: Annotated[str | None, typer.Option("--record", metavar="FILE.json", help="Write what was found.")] = None,
) -> None:
    """TSM2, ISM2 and the versions for Hopper on the GPU here against the emulation, in fp32 and fp64.

    Sizes 1 to 130 as m, as k and as n, larger ones, all layouts, odd leading dimensions, and special values. Exit
    status 0 if all bits are equal, 1 if not, 2 without a GPU.
    """
    from fpemu.files import write_atomic
    from fpemu.gpu.tallskinny import cases, suite
    from fpemu.gpu.tallskinny import huge as large

    _check_record(record)
    if every < 1:
        raise InputError(f"--every is {every}: a number from 1 on is needed")
    _need_a_gpu()
    found: list[suite.Outcome] = []
    beyond: list[large.Huge] = []
    with progress() as bars:
        bar = bars.add_task("compiling", total=len(suite.kernels()) * len(cases.FORMATS) + huge)
        for outcome in suite.check(seed, range(0, cases.CASES, every)):
            found.append(outcome)
            bars.update(bar, advance=1, description=f"{outcome.kernel} in {outcome.fmt}")
        if huge:
            bars.update(bar, description="more than 2^32 elements")
            beyond += large.check(seed=seed)
            bars.update(bar, advance=1)
    if record is not None:
        write_atomic(record, suite.text(suite.record(found, seed, beyond)).encode())
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
