"""``fpemu tune batched``: find the fastest configurations of the batched kernels on this GPU."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Annotated

import typer

from fpemu.cli.bench import need_benchmarks
from fpemu.cli.common import check_file, console, note, progress, table
from fpemu.cli.verify import missing
from fpemu.errors import GpuError, InputError

FORMS = ("real", "complex")


def batched(
    sizes: Annotated[str, typer.Option("--sizes", help="Sizes of the square matrices: 2-128, or 8,16,32.")] = "2-128",
    forms: Annotated[str, typer.Option("--forms", help="real, complex or both.")] = "real,complex",
    batch: Annotated[int, typer.Option("--batch", help="Number of products per launch.")] = 1000,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE.toml", help="Write the table that fpemu.gpu.batched reads.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore the measurements of an interrupted run.")] = False,
) -> None:
    """Measure configurations of the batched kernels, and write the fastest.

    For every size the candidates of benchmarks.tuning are compiled and measured, for contiguous square matrices and
    fp32 accumulation. For each alignment of the rows the table lists a few configurations with the largest size of
    each. With --out the measurements are saved in FILE.toml.measured until the command is complete, and the same
    command resumes from this file.
    """
    from fpemu.files import check_writable, write_atomic
    from fpemu.gpu.batched import products

    need_benchmarks("tune batched")
    from benchmarks import tuning

    chosen, selected_forms = _sizes(sizes), _forms(forms)
    if batch < 1:
        raise InputError(f"--batch is {batch}: a number from 1 on is needed")
    check_file(out, "the table", ".toml")
    if out is not None:
        check_writable(f"{out}.measured")
    reason = missing()
    if reason is not None:
        raise InputError(f"tune: {reason}")
    products.need_gpu()
    from fpemu.gpu.runtime import device

    versions = device.describe()
    about = {"gpu": versions["gpu"], "batch": batch, "nvrtc": versions["nvrtc"]}
    partial = None if out is None else Path(f"{out}.measured")
    before = [] if partial is None or fresh else tuning.resumed(partial, about)
    wanted = {
        tuning.place(size, form == "complex"): (size, form == "complex") for form in selected_forms for size in chosen
    }
    measured = [m for m in before if (m.form, m.size) in wanted]
    done = {(m.form, m.size) for m in measured}
    todo = [one for place, one in wanted.items() if place not in done]
    try:
        with progress() as bars:
            bar = bars.add_task("compiling", total=len(wanted), completed=len(wanted) - len(todo))
            tuning.compile_all(tuning.task_of(*one) for one in todo)
            for size, is_complex in todo:
                bars.update(bar, description=f"{FORMS[is_complex]} {size}")
                measured += tuning.measure(size, is_complex, batch)
                if partial is not None:
                    write_atomic(partial, tuning.saved(measured, about))
                bars.update(bar, advance=1)
    except KeyboardInterrupt:
        if partial is not None and measured:
            message = f"interrupted; the measurements are saved in {partial}, and the same command continues from them"
            print(f"fpemu: {message}", file=sys.stderr)
            raise typer.Exit(130) from None
        raise
    if not measured:
        raise GpuError("no configuration ran: 'fpemu verify batched' shows the failures")
    winners = tuning.winners(measured)
    shown = table(f"{versions['gpu']}, batch {batch}", "form", "up to", "configuration", numbers=0)
    for name, rows in winners.items():
        for row in rows:
            shown.add_row(name, str(row["size"]), row["configuration"])
    console().print(shown)
    if out is not None and partial is not None:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_atomic(out, tuning.toml(winners, about | {"sizes": sizes, "date": day}).encode())
        partial.unlink(missing_ok=True)
        note(f"{len(measured)} measurements; the winners are in {out}")


def _sizes(text: str) -> list[int]:
    """Parse a list of sizes and ranges."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(f"--sizes {text!r}: {part!r} is neither a number nor a range such as 2-128") from None
        if not 1 <= low <= high <= 1024:
            raise InputError(f"--sizes {text!r}: {part!r} must be sizes from 1 to 1024, the smaller first")
        numbers += range(low, high + 1)
    return sorted(set(numbers))


def _forms(text: str) -> list[str]:
    from fpemu.errors import unknown_name

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [""]:
        if name not in FORMS:
            raise unknown_name("form", name, FORMS)
    return list(dict.fromkeys(names))
