"""``fpemu verify kernels``: every kernel of `fpemu.gpu.gemm` against `fpemu.gemm`, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.cli.verify import Seed, _check_record, _need_a_gpu
from fpemu.errors import InputError
from fpemu.files import read_json

if TYPE_CHECKING:
    from fpemu.verify.kernelcases import Variant
    from fpemu.verify.kernelrecord import Outcome

_LISTED = 30  # variants at fault that are shown


def kernels(
    schemes: Annotated[str | None, typer.Option("--schemes", help="Only these, such as ootomo,staged.")] = None,
    shapes: Annotated[
        int, typer.Option("--shapes", help="Products of each scheme; a sixth of them with other options.")
    ] = 36,
    published: Annotated[bool, typer.Option("--published", help="Only with the published options.")] = False,
    seed: Seed = 0,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Processes; default: one a core, at most 16.")
    ] = None,
    record: Annotated[
        str | None, typer.Option("--record", metavar="FILE.json", help="Write the outcomes, and continue from them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Verify the kernels of the split schemes on this GPU against the emulation of its instructions.

    Every scheme with its options, at odd shapes, K of 1 and of 10,000, batches, any layout, alpha, beta and C, all
    range policies, and hostile operands: subnormals, overflow, cancellation, NaN and Inf; the errors too. Exit status 0
    if all bits are equal, 1 if not, 2 without a GPU. After an interrupt the same command continues from the record, as
    long as the code is the same.
    """
    from fpemu.files import write_atomic
    from fpemu.gpu.gemm.choice import architecture
    from fpemu.verify import kernelcases, kernelrecord

    _check_record(record)
    for option, number in (("--shapes", shapes), ("--jobs", 1 if jobs is None else jobs)):
        if number < 1:
            raise InputError(f"{option} is {number}: a number from 1 on is needed")
    names = None if schemes is None else [name.strip().lower() for name in schemes.split(",") if name.strip()]
    if names == []:
        raise InputError(f"--schemes {schemes!r} names no scheme")
    _need_a_gpu()
    chosen = [v for v in kernelcases.variants(names, architecture()) if not (published and v.options)]
    before = [] if record is None else kernelrecord.kept_from(_read(record), seed, shapes)
    wanted = {str(v) for v in chosen}
    found = [o for o in before if o.variant in wanted]
    if found:
        note(f"{len(found)} of {len(chosen)} variants are in {record} already")
    others = [o for o in before if o.variant not in wanted]  # they stay in the record

    def keep() -> None:
        if record is not None and found:
            made = kernelrecord.record(sorted([*found, *others], key=lambda o: place[o.variant]), seed, shapes)
            write_atomic(record, kernelrecord.text(made).encode())

    place = {str(v): i for i, v in enumerate(kernelcases.variants(None, architecture()))}
    try:
        _gather(found, chosen, seed, shapes, jobs, keep)
    finally:
        found.sort(key=lambda o: place[o.variant])
        keep()
        if len(found) < len(chosen):
            note(f"{len(found)} of {len(chosen)} variants done" + (f"; they are in {record}" if record else ""))
    if as_json:
        typer.echo(kernelrecord.text(kernelrecord.record(found, seed, shapes)), nl=False)
    else:
        _show(found, seed)
    faults = [o for o in found if not o.ok]
    for outcome in faults[:_LISTED]:
        note(f"{outcome.variant}: {outcome.mismatches:,} outputs differ, {outcome.failed} products failed")
        for difference in outcome.first:
            note(f"  {difference}")
    if faults:
        raise typer.Exit(1)


def _gather(
    found: list[Outcome], chosen: list[Variant], seed: int, shapes: int, jobs: int | None, keep: Callable[[], None]
) -> None:
    """Add the missing outcomes to `found`, and save the record after every ten."""
    from fpemu.gpu.runtime import device
    from fpemu.verify import kernelsuite

    done = {o.variant for o in found}
    missing = [v for v in chosen if str(v) not in done]
    jobs = min(os.cpu_count() or 1, 16, max(len(missing), 1)) if jobs is None else jobs
    with progress() as bars:
        bar = bars.add_task("compiling", total=len(chosen), completed=len(found))
        device.compile_all(kernelsuite.sources(missing), device.arch())
        for outcome in kernelsuite.check(missing, seed, shapes, jobs=jobs):
            found.append(outcome)
            bars.update(bar, advance=1, description=outcome.variant)
            if len(found) % 10 == 0:
                keep()


def _read(record: str) -> dict[str, Any] | None:
    """An earlier record; None if there is none that can be read."""
    try:
        made = read_json(record)
    except InputError:
        return None
    return made if isinstance(made, dict) else None


def _show(found: list[Outcome], seed: int) -> None:
    from fpemu.gpu.runtime import device

    listed = table(
        f"{device.describe()['gpu']} against the emulation, seed {seed}",
        "scheme",
        "variants",
        "products",
        "outputs",
        "on the CPU too",
        "errors alike",
        "no kernel",
        "mismatches",
        "failed",
        numbers=8,
    )
    schemes = list(dict.fromkeys(o.variant.partition("(")[0] for o in found))
    for name in [*schemes, "all"]:
        rows = [o for o in found if name in ("all", o.variant.partition("(")[0])]
        numbers = (
            sum(getattr(o, n) for o in rows)
            for n in ("products", "outputs", "on_cpu", "errors", "without", "mismatches", "failed")
        )
        listed.add_row(name, str(len(rows)), *(f"{n:,}" for n in numbers))
    console().print(listed)
