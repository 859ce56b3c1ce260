"""``fpemu verify``: this GPU against the emulation, and the emulation on it against the emulation on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, progress, show, table
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.mma import MmaSpec
    from fpemu.verify.instructions import Verification
    from fpemu.verify.selftest import Findings, Outcome

_SHOWN = 3  # classes of an instruction whose first failure is shown
_LISTED = 20  # failures of the emulation that are shown

Seed = Annotated[int, typer.Option("--seed", help="Seed of the operands.")]


def instructions(
    name: Annotated[str, typer.Argument(metavar="[NAME-PART]", help="Only instructions whose name has this.")] = "",
    outputs: Annotated[
        float, typer.Option("--outputs", "-n", help="Outputs of each, at least, over all classes.")
    ] = 1e9,
    seed: Seed = 0,
    record: Annotated[
        str | None, typer.Option("--record", metavar="FILE.json", help="Write the outcomes, after each instruction.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Verify every matrix instruction of this GPU against its emulation, on operands drawn on the GPU.

    Fifteen classes of operands, among them cancellation, ties, subnormals, overflow, and any bits with NaN and Inf.
    Each mismatch is reduced to a minimal reproducer, shown with the effect of each rounding rule. Exit status 0 if all
    outputs are equal, 1 if not, 2 without a GPU. After an interrupt the record holds the finished instructions.
    """
    from fpemu.files import write_atomic
    from fpemu.gpu.runtime import device
    from fpemu.verify import instructions as verification
    from fpemu.verify import records

    _check_record(record)
    if not (math.isfinite(outputs) and 1 <= outputs < 2**53):
        raise InputError(f"--outputs is {outputs:g}: a number from 1 to 9e15 is needed")
    _need_a_gpu()
    rows = _chosen(name)
    found: list[Verification] = []
    try:
        with progress() as bars:
            bar = bars.add_task("compiling", total=len(rows) * outputs)
            device.compile_all([t for row in rows for t in verification.sources(row)], device.arch())
            for row in rows:
                bars.update(bar, description=row.name)
                found.append(
                    verification.verify(
                        row, outputs=int(outputs), seed=seed, progress=lambda _, count: bars.update(bar, advance=count)
                    )
                )
                if record is not None:
                    write_atomic(record, records.text(records.record(found, seed)).encode())
    finally:
        if len(found) < len(rows) and record is not None:
            note(f"{len(found)} of {len(rows)} instructions done" + (f"; they are in {record}" if found else ""))
    if as_json:
        typer.echo(records.text(records.record(found, seed)), nl=False)
    else:
        _show(found)
    for row, run in zip(rows, found, strict=True):
        if run.mismatches:
            _show_failures(run, row)
    if any(run.mismatches for run in found):
        raise typer.Exit(1)


def emulation(
    quick: Annotated[bool, typer.Option("--quick", help="A sixth of the specs and schemes, no speed.")] = False,
    seed: Seed = 0,
    record: Annotated[
        str | None, typer.Option("--record", metavar="FILE.json", help="Write the outcomes as they are known.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the tables.")] = False,
) -> None:
    """Verify GEMMs emulated on this GPU against the CPU's compiled and NumPy implementations, and measure their speed.

    Every instruction of the catalog and drawn ones, on hostile operands, in all orders over K, trees among them; every
    scheme on every hardware. Exit status 0 if all bits are equal, 1 if not, 2 without a GPU. After an interrupt the
    record holds the finished cases.
    """
    from fpemu.files import write_atomic
    from fpemu.gpu.runtime import device
    from fpemu.verify import selftest, speed

    _check_record(record)
    _need_a_gpu()
    specs, pairs = selftest.names(quick), selftest.pairs(quick)
    found = selftest.Findings(seed)

    def keep() -> None:
        if record is not None:
            write_atomic(record, selftest.text(selftest.record(found)).encode())

    with progress() as bars:
        bar = bars.add_task("compiling", total=len(specs) + len(pairs))
        texts = selftest.sources(specs, seed) + ([] if quick else speed.sources())
        device.compile_all(list(dict.fromkeys(texts)), device.arch())
        try:
            bars.update(bar, description="instructions")
            _gather(found.specs, selftest.check_specs(specs, seed), lambda: bars.update(bar, advance=1), keep)
            bars.update(bar, description="schemes")
            _gather(found.schemes, selftest.check_schemes(pairs, seed), lambda: bars.update(bar, advance=1), keep)
            if not quick:
                bars.update(bar, description="speed")
                _gather(found.rates, speed.rates(seed), lambda: None, keep)
                _gather(found.crossover, speed.crossover(seed), lambda: None, keep)
        finally:
            keep()
    if as_json:
        typer.echo(selftest.text(selftest.record(found)), nl=False)
    else:
        _show_emulation(found, device.describe()["gpu"])
    faults = [o for o in (*found.specs, *found.schemes) if not o.ok]
    for outcome in faults[:_LISTED]:
        _show_fault(outcome)
    if len(faults) > _LISTED:
        note(f"and {len(faults) - _LISTED} more" + ("" if record is None else f": see {record}"))
    if not found.ok:
        raise typer.Exit(1)


def _gather(found: list[Any], rows: Iterator[Any], each: Callable[[], None], keep: Callable[[], None]) -> None:
    """Collect the rows, and save the record after every 25 of them and at the end."""
    for row in rows:
        found.append(row)
        each()
        if len(found) % 25 == 0:
            keep()
    keep()


def missing() -> str | None:
    """What this machine lacks for `fpemu verify`, in one line; None if nothing."""
    from fpemu.gpu.runtime import device

    lacking = device.missing()
    if lacking is None or "pip install" in lacking:
        return lacking
    return f"{lacking}; beside a GPU and its driver: pip install 'fpemu[gpu]'"


def _need_a_gpu() -> None:
    lacking = missing()
    if lacking is not None:
        raise InputError(f"verify: {lacking}")


def _check_record(record: str | None) -> None:
    from fpemu.files import check_writable

    if record is not None:
        if not record.endswith(".json"):
            raise InputError(f"{record!r}: the record is written as .json")
        check_writable(record)


def _chosen(part: str) -> list[MmaSpec]:
    """The instructions of the GPU here whose name has a part."""
    from fpemu.gpu.instructions import run as known

    rows = known.rows()
    chosen = [row for row in rows if part.lower() in row.name.lower()]
    if not chosen:
        raise unknown_name("instruction of this GPU", part, [row.name for row in rows])
    return chosen


def _show(found: list[Verification]) -> None:
    where = found[0].device
    listed = table(
        f"{where.get('gpu', 'GPU')} against the emulation, seed {found[0].seed}",
        "instruction",
        "outputs",
        "mismatches",
        "seconds",
        numbers=3,
    )
    for run in found:
        listed.add_row(run.instruction, f"{run.outputs:,}", f"{run.mismatches:,}", f"{run.seconds:.2f}")
    console().print(listed)


def _show_failures(run: Verification, row: MmaSpec) -> None:
    """The first failures, as the hardware returned them made small; on stderr."""
    from itertools import islice

    from fpemu import gpu
    from fpemu.verify import failures
    from fpemu.verify import instructions as verify

    for failure in islice(verify.first_failures(run, row), _SHOWN):
        note("\n" + failures.describe(failures.shrink(failure, gpu.execute)))


def _show_emulation(found: Findings, gpu: str) -> None:
    from fpemu.verify import trials

    catalog = [o for o in found.specs if not o.name.startswith(trials.CUSTOM)]
    drawn = [o for o in found.specs if o.name.startswith(trials.CUSTOM)]
    listed = table(
        f"emulated on {gpu} against the CPU, seed {found.seed}",
        "what",
        "number",
        "outputs",
        "mismatches",
        "failed",
        numbers=4,
    )
    kinds: dict[str, Sequence[Outcome]] = {
        "instructions of the catalog": catalog,
        "drawn instructions": drawn,
        "schemes on hardware": found.schemes,
    }
    for kind, outcomes in kinds.items():
        sums = [sum(x) for x in zip(*((o.outputs, o.mismatches, o.failed) for o in outcomes), strict=True)]
        listed.add_row(kind, str(len(outcomes)), *(f"{n:,}" for n in sums))
    console().print(listed)
    if found.rates:
        speeds = table("speed", "arithmetic", "n", "ms", "10^9 multiply-adds/s", "checked", "mismatches", numbers=5)
        for row in found.rates:
            if "failed" in row:
                note(f"{row['what']}: {row['failed']}")
                continue
            numbers = (row["ms"], row["rate"], row["checked"], row["mismatches"])
            speeds.add_row(row["what"], str(row["n"]), *map(show, numbers))
        console().print(speeds)
    for row in found.crossover:
        where = "at no size tried" if row["from"] is None else f"from n = {row['from']} on"
        console().print(f"{row['spec']}: faster than the CPU here {where}, transfers included")


def _show_fault(outcome: Outcome) -> None:
    what = [f"{outcome.mismatches:,} outputs differ"] if outcome.mismatches else []
    what += [f"{outcome.failed} products failed"] if outcome.failed else []
    note(f"{outcome.name}: {', '.join(what)}")
    for place in outcome.first:
        note(f"  {place}")
