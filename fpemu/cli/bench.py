"""``fpemu bench``, ``fpemu tune``: speed of the emulation and of this GPU's kernels, and their configurations."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fpemu._system import check_writable, write_atomic
from fpemu.arguments import choice
from fpemu.cli import options as cli
from fpemu.errors import InputError
from fpemu.reproduce import pages
from fpemu.sweep.ranges import parse_range


def _need_benchmarks(command: str) -> None:
    """Make ``benchmarks`` importable; raise InputError if the package was installed without a checkout."""
    if not pages.import_benchmarks():
        raise InputError(f"{command}: the benchmarks come with a checkout of fpemu, not with the installed package")


def cpu(
    size: Annotated[int, "M = N = K of the compiled implementations."] = 1024,
    repeat: Annotated[int, "Number of runs; the median is reported."] = 3,
    only: Annotated[str | None, "Only the cases whose name contains this."] = None,
    json_: Annotated[str | None, "FILE", "Also write the table to this file."] = None,
) -> None:
    """Measure the emulation on this CPU: ns per multiply-add, ratio to np.matmul in fp32, extra memory.

    Exit status 1 if a case is slower than its limit at the default size.
    """
    _need_benchmarks("bench cpu")
    from benchmarks import cpu as cpu_suite

    cli.check_file(json_, "the table", ".json")
    report = cpu_suite.run(size=size, repeat=repeat, only=only)
    rows = []
    for line in report["lines"]:
        times = map(_number, (line["ns"], line["bar"], line["ratio"]))
        sizes = (f"{x:.1f}" for x in (line["compile"], line["memory"] / 1e6, line["memory_bar"] / 1e6))
        verdict = {None: "", True: "ok", False: "missed"}[line["ok"]]
        rows.append((line["case"], str(line["n"]), *times, *sizes, verdict))
    title = (
        f"emulation on {report['threads']} threads: ns per multiply-add, time over np.matmul's in fp32, extra memory"
    )
    columns = ("case", "n", "ns", "bar", "/ matmul", "compile s", "MB", "MB bar", "")
    cli.print_table(title, columns, rows, numbers=8)
    if json_ is not None:
        write_atomic(json_, (json.dumps(report, indent=2) + "\n").encode())
    if any(line["ok"] is False for line in report["lines"]):
        raise typer.Exit(1)


def gpu(
    figure: Annotated[list[str] | None, "PAPER[/PAGE]", "Only the products of these figures."] = None,
    shape: Annotated[str | None, "MxNxK", "Only this product; n stands for n×n×n."] = None,
    implementation: Annotated[list[str] | None, "NAME", "With --shape: such as 'staged stage=128' or 'sgemm'."] = None,
    data: Annotated[str, "NAME", "With --shape: the distribution of its operands."] = "symmetric",
    quick: Annotated[bool, "Fewer sizes."] = False,
    output: Annotated[str | None, "FILE.json", "Save the rows in this file, and measure only missing rows."] = None,
    again: Annotated[bool, "Measure the rows of the file again and replace them."] = False,
    budget: Annotated[float | None, "Time limit in seconds; no further row is measured after it."] = None,
    list_: Annotated[bool, "Only list the rows that would be measured."] = False,
) -> None:
    """Measure speed and error of the vendor's library and of every scheme's kernel on this GPU.

    Each row is saved as soon as it is measured, and another run with the same --output measures the missing rows.
    Speeds are 2·M·N·K / time. The column "first" is the median of ten launches after a pause, and
    "sustained" the median of the second half of a run without a pause. Exit status 0; 1 if a kernel's bits differ
    from the emulation; 2 without a GPU.
    """
    _need_benchmarks("bench gpu")
    from benchmarks.gpu import record, run, suite

    if shape is not None and figure:
        raise InputError("--shape and --figure both choose products: leave one out")
    if shape is None and implementation:
        raise InputError("--implementation needs --shape, such as --shape 4096")
    cases = suite.cases(figure or None, quick) if shape is None else suite.chosen(shape, implementation or (), data)
    if list_:
        counts = []
        for page in sorted({page for case in cases for page in case.figures}):
            of_page = [case for case in cases if page in case.figures]
            counts.append((page, str(len(of_page)), f"{suite.seconds(of_page):.0f}"))
        title = f"{len(cases)} row{'s' if len(cases) != 1 else ''}, about {suite.seconds(cases):.0f} s"
        cli.print_table(title, ("figure", "rows", "s"), counts, numbers=2)
        return
    cli.check_file(output, "the record", ".json")
    cli.need_gpu("bench gpu")
    kept = record.resume(output, run.head())
    measured: list[dict[str, Any]] = []
    try:
        with cli.progress() as bars:
            todo = run.missing(cases, kept, again)
            bar = bars.add_task("compiling", total=len(cases), completed=len(cases) - len(todo))
            run.compile_all(todo)
            for row in run.rows(todo, kept, budget=budget, again=again):
                measured.append(row)
                record.save(kept, output)
                bars.update(bar, advance=1, description=f"{row['contender']} {row['M']}×{row['N']}×{row['K']}")
    finally:
        left = len(run.missing(cases, kept, again))
        if left:
            cli.note(f"{left} of {len(cases)} rows are left" + (f"; the others are in {output}" if output else ""))
    for title, columns, lines, numbers in suite.tables(kept.rows, cases, _number):
        cli.print_table(title, columns, lines, numbers=numbers)
    if any(row.get("mismatches") or row.get("again") is False for row in measured):
        cli.note("the bits of some rows differ from the emulation or between two runs: see the last column")
        raise typer.Exit(1)


def _number(value: float | None) -> str:
    return "" if value is None else cli.show(value)


# --- tune
def tune_batched(
    sizes: Annotated[str, "Sizes of the square matrices: 2-128, or 8,16,32."] = "2-128",
    forms: Annotated[str, "real, complex or both."] = "real,complex",
    batch: Annotated[int, "Number of products per launch."] = 1000,
    out: Annotated[str | None, "FILE.toml", "Write the table that fpemu.gpu.batched reads."] = None,
    fresh: Annotated[bool, "Ignore the measurements of an interrupted run."] = False,
) -> None:
    """Measure configurations of the batched kernels, and write the fastest.

    For every size the candidates of benchmarks.tuning are compiled and measured, for contiguous square matrices and
    fp32 accumulation. For each alignment of the rows the table lists a few configurations with the largest size of
    each. With --out the measurements are saved in FILE.toml.measured until the command is complete, and the same
    command resumes from this file.
    """
    from fpemu.gpu.runtime import device

    _need_benchmarks("tune batched")
    from benchmarks import tuning

    chosen: Any = sorted(parse_range("--sizes", sizes.replace("-", ":")))
    if not all(isinstance(size, int) and 1 <= size <= 1024 for size in chosen):
        raise InputError(f"--sizes {sizes!r}: sizes are integers from 1 to 1024")
    selected = dict.fromkeys(choice("form", name.strip(), ("real", "complex")) for name in forms.split(","))
    cli.check_file(out, "the table", ".toml")
    partial = None if out is None else Path(f"{out}.measured")
    if partial is not None:
        check_writable(partial)
    cli.need_gpu("tune")
    device.need_matrix_unit("tune batched")
    try:
        with cli.progress() as bars:
            tasks = [(size, form == "complex") for form in selected for size in chosen]
            measured, about = tuning.tune(tasks, batch, partial, fresh, bars)
    except KeyboardInterrupt:
        if partial is None or not partial.is_file():
            raise
        raise KeyboardInterrupt(f"the measurements are saved in {partial}") from None
    winners = tuning.winners(measured)
    rows = [(form, str(row["size"]), row["configuration"]) for form, fastest in winners.items() for row in fastest]
    cli.print_table(f"{about['gpu']}, batch {batch}", ("form", "up to", "configuration"), rows)
    if out is not None and partial is not None:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        write_atomic(out, tuning.toml(winners, about | {"sizes": sizes, "date": day}).encode())
        partial.unlink(missing_ok=True)
        cli.note(f"{len(measured)} measurements; the winners are in {out}")
