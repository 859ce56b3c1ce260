"""``fpemu verify``: the GPU at hand against the emulation, bit by bit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.gpu.verify import Verification
    from fpemu.mma import MmaSpec

_SHOWN = 3  # classes of an instruction whose first failure is shown


def instructions(
    name: Annotated[str, typer.Argument(metavar="[NAME-PART]", help="Only instructions whose name has this.")] = "",
    outputs: Annotated[
        float, typer.Option("--outputs", "-n", help="Outputs of each, at least, over all classes.")
    ] = 1e9,
    seed: Annotated[int, typer.Option("--seed", help="Of the operands.")] = 0,
    record: Annotated[
        str | None, typer.Option("--record", metavar="FILE.json", help="Write what was found, after each instruction.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
) -> None:
    """Every matrix instruction of the GPU here against its emulation, on operands drawn on the GPU.

    Fifteen classes of operands, among them cancellation, ties, subnormals, overflow, and any bits with NaN and Inf.
    What differs is made small and shown with what each rule did. Exit status 0 if all outputs are equal (the codes of
    fp64's NaN apart, which are counted), 1 if not, 2 without a GPU. An interrupt keeps what is recorded.
    """
    from fpemu.files import check_writable, write_atomic
    from fpemu.gpu import device, records
    from fpemu.gpu import verify as verification

    if record is not None:
        if not record.endswith(".json"):
            raise InputError(f"{record!r}: the record is written as .json")
        check_writable(record)
    if not (math.isfinite(outputs) and 1 <= outputs < 2**53):
        raise InputError(f"--outputs is {outputs:g}: a number from 1 to 9e15 is needed")
    rows = _chosen(name)
    found: list[Verification] = []
    try:
        with progress() as bars:
            bar = bars.add_task("compiling", total=len(rows) * outputs)
            device.compile_all([t for row in rows for t in verification.sources(row)], device.arch())
            for row in rows:
                bars.update(bar, description=row.name)
                found.append(verification.verify(
                    row, outputs=int(outputs), seed=seed, progress=lambda _, count: bars.update(bar, advance=count)
                ))  # fmt: skip
                if record is not None:
                    write_atomic(record, records.text(records.record(found, seed)).encode())
    except device.GpuError as problem:
        note(f"fpemu: {' '.join(str(problem).split())}")
        raise typer.Exit(1) from problem
    finally:
        if len(found) < len(rows) and record is not None:
            note(f"{len(found)} of {len(rows)} instructions done" + (f"; they are in {record}" if found else ""))
    if as_json:
        typer.echo(records.text(records.record(found, seed)), nl=False)
    else:
        _show(found)
    for row, run in zip(rows, found, strict=True):
        if run.faults:
            _show_failures(run, row)
    if any(run.faults for run in found):
        raise typer.Exit(1)


def _chosen(part: str) -> list[MmaSpec]:
    """The instructions of the GPU here whose name has a part; InputError if there is no GPU."""
    from fpemu.gpu import device
    from fpemu.gpu import instructions as known

    missing = device.missing()
    if missing is not None:
        install = "" if "pip install" in missing else "; beside a GPU and its driver: pip install 'fpemu[gpu]'"
        raise InputError(f"verify: {missing}{install}")
    rows = known.rows()
    chosen = [row for row in rows if part.lower() in row.name.lower()]
    if not chosen:
        raise unknown_name("instruction of this GPU", part, [row.name for row in rows])
    return chosen


def _show(found: list[Verification]) -> None:
    where = found[0].device
    listed = table(
        f"{where.get('gpu', 'GPU')} against the emulation, seed {found[0].seed}",
        "instruction", "outputs", "mismatches", "seconds", numbers=3,
    )  # fmt: skip
    for run in found:
        listed.add_row(run.instruction, f"{run.outputs:,}", f"{run.faults:,}", f"{run.seconds:.2f}")
    console().print(listed)
    for run in found:
        if run.mismatches > run.faults:
            apart = run.mismatches - run.faults
            console().print(f"{run.instruction}: {apart:,} NaN have another code, which is not counted: the hardware "
                            "keeps payloads, the emulation has one NaN")  # fmt: skip


def _show_failures(run: Verification, row: MmaSpec) -> None:
    """The first failures, as the hardware returned them made small; on stderr."""
    from itertools import islice

    from fpemu import gpu
    from fpemu.gpu import failures, verify

    for failure in islice(verify.first_failures(run, row), _SHOWN):
        note("\n" + failures.describe(failures.shrink(failure, gpu.execute)))
