"""``fpemu tune batched``: the fastest configurations of the batched kernels on the GPU here."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.cli.verify import _need_a_gpu
from fpemu.errors import InputError

FORMS = ("real", "complex")


def batched(
    sizes: Annotated[str, typer.Option("--sizes", help="Sizes of the square matrices: 2-128, or 8,16,32.")] = "2-128",
    forms: Annotated[str, typer.Option("--forms", help="real, complex or both.")] = "real,complex",
    batch: Annotated[int, typer.Option("--batch", help="Products of a launch.")] = 1000,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.toml", help="Write the table that fpemu.gpu.batched reads.")
    ] = None,
) -> None:
    """Measure configurations of the batched kernels, and keep the winners.

    For every size the candidates of fpemu.gpu.batched.tuning are compiled and measured: contiguous square matrices,
    fp32 sums. The table gives for each alignment of the matrices' lines a few configurations, each up to a size.
    """
    from fpemu.gpu.batched import tuning

    chosen, which = _sizes(sizes), _forms(forms)
    if batch < 1:
        raise InputError(f"--batch is {batch}: a number from 1 on is needed")
    _need_a_gpu()
    from fpemu.files import write_atomic
    from fpemu.gpu import device

    todo = [(size, form == "complex") for form in which for size in chosen]
    measured: list[tuning.Measured] = []
    with progress() as bars:
        bar = bars.add_task("compiling", total=len(todo))
        tuning.compile_all(tuning.task_of(*one) for one in todo)
        for size, is_complex in todo:
            bars.update(bar, description=f"{FORMS[is_complex]} {size}")
            measured += tuning.measure(size, is_complex, batch)
            bars.update(bar, advance=1)
    found = tuning.winners(measured)
    shown = table(f"{device.describe()['gpu']}, batch {batch}", "form", "up to", "configuration", numbers=0)
    for name, rows in found.items():
        for row in rows:
            shown.add_row(name, str(row["size"]), row["configuration"])
    console().print(shown)
    if out is not None:
        about = {"gpu": device.describe()["gpu"], "batch": batch, "sizes": sizes, "nvrtc": device.describe()["nvrtc"]}
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_atomic(out, tuning.toml(found, about | {"date": day}).encode())
        note(f"{len(measured)} measurements; the winners are in {out}")


def _sizes(text: str) -> list[int]:
    """The numbers that a range or a list names."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        try:
            low, high = int(first), int(last or first)
        except ValueError:
            raise InputError(f"--sizes {text!r}: {part!r} is no number and no range such as 2-128") from None
        if not 1 <= low <= high <= 1024:
            raise InputError(f"--sizes {text!r}: {part!r} must be sizes from 1 to 1024, the smaller first")
        found += range(low, high + 1)
    return sorted(set(found))


def _forms(text: str) -> list[str]:
    from fpemu.errors import unknown_name

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [""]:
        if name not in FORMS:
            raise unknown_name("form", name, FORMS)
    return list(dict.fromkeys(names))
