"""``fpemu bench``: speed and memory of the emulation, and the speed of the GPU at hand, measured here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, progress, show, table
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.gpu.bench.battery import Task


def cpu(
    size: Annotated[int, typer.Option("--size", "-n", help="M = N = K of the compiled forms.")] = 1024,
    repeat: Annotated[int, typer.Option("--repeat", help="Runs, of which the median counts.")] = 3,
    only: Annotated[str | None, typer.Option("--only", help="Only the lines whose name contains this.")] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the table there too.")] = None,
) -> None:
    """Emulation on this machine's cores: ns per multiply-add, ratio to np.matmul in fp32, extra memory.

    Exit status 1 if a line misses its bar at the default size.
    """
    from fpemu import bench
    from fpemu.files import check_writable, write_atomic

    if json_file is not None:
        if not json_file.endswith(".json"):
            raise InputError(f"{json_file!r}: the table is written as .json")
        check_writable(json_file)
    report = bench.run(size=size, repeat=repeat, only=only)
    shown = table(
        f"emulation on {report['threads']} threads: ns per multiply-add, time over np.matmul's in fp32, extra memory",
        "case", "n", "ns", "bar", "/ matmul", "compile s", "MB", "MB bar", "", numbers=8,
    )  # fmt: skip
    for line in report["lines"]:
        bar = "" if line["bar"] is None else show(line["bar"])
        verdict = "" if line["ok"] is None else "ok" if line["ok"] else "missed"
        shown.add_row(
            line["case"], str(line["n"]), show(line["ns"]), bar, show(line["ratio"]), f"{line['compile']:.1f}",
            f"{line['memory'] / 1e6:.1f}", f"{line['memory_bar'] / 1e6:.1f}", verdict,
        )  # fmt: skip
    console().print(shown)
    if json_file is not None:
        write_atomic(json_file, (json.dumps(report, indent=2) + "\n").encode())
    if any(line["ok"] is False for line in report["lines"]):
        raise typer.Exit(1)


def gpu(
    figure: Annotated[
        list[str] | None, typer.Option("--figure", metavar="PAPER[/PAGE]", help="Only what these figures show.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="MxNxK", help="Only this product (or n for n×n×n), of no figure.")
    ] = None,
    who: Annotated[
        list[str] | None, typer.Option("--contender", metavar="NAME", help='With --shape: "staged stage=128", "sgemm".')
    ] = None,
    data: Annotated[str, typer.Option("--data", metavar="NAME", help="With --shape: its operands.")] = "symmetric",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE.json", help="Keep the rows there; go on from them.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure anew what the file has: its rows are replaced.")
    ] = False,
    budget: Annotated[float | None, typer.Option("--budget", help="Seconds after which no row is begun.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only say what would be measured.")] = False,
) -> None:
    """Products on the GPU here, side by side: the vendor's library and every scheme's kernel, error beside speed.

    A row is kept as soon as it is measured, and a further run with the same --output measures what is missing. Speeds
    are 2·M·N·K operations a second; "first" is the median of ten launches after a pause, "sustained" that of the second
    half of a run without one. Exit status 0; 1 if a kernel's bits are not those of the emulation; 2 without a GPU.
    """
    from fpemu.files import check_writable
    from fpemu.gpu import device
    from fpemu.gpu.bench import battery

    if budget is not None and not budget > 0:
        raise InputError(f"--budget is {budget:g}: seconds above 0 are needed")
    if shape is not None and figure:
        raise InputError("--shape is a product of no figure: leave --figure out")
    if shape is None and who:
        raise InputError("--contender says who computes the product of --shape: give one, such as --shape 4096")
    tasks = battery.tasks(figure or None, quick) if shape is None else battery.chosen(shape, who or (), data)
    if listed:
        _list(tasks)
        return
    if output is not None:
        if not output.endswith(".json"):
            raise InputError(f"{output!r}: the record is written as .json")
        check_writable(output)
    if device.missing() is not None:
        raise InputError(f"bench gpu needs a GPU: {device.missing()}")
    from fpemu.gpu.bench import record, running

    kept = record.resume(output, running.head())
    found: list[dict[str, Any]] = []
    try:
        with progress() as bars:
            todo = running.missing(tasks, kept, again)
            bar = bars.add_task("compiling", total=len(tasks), completed=len(tasks) - len(todo))
            running.compile_all(todo)
            for row in running.rows(todo, kept, budget=budget, again=again):
                found.append(row)
                record.keep(kept, output)
                bars.update(bar, advance=1, description=f"{row['contender']} {row['M']}×{row['N']}×{row['K']}")
    finally:
        left = len(running.missing(tasks, kept, again))
        if left:
            note(f"{left} of {len(tasks)} rows are left" + (f"; the others are in {output}" if output else ""))
    _show_rows(kept.rows, tasks)
    if any(row.get("mismatches") or row.get("again") is False for row in found):
        note("the bits of some rows are not those of the emulation, or not the same twice: see the last column")
        raise typer.Exit(1)


def _list(tasks: list[Task]) -> None:
    from fpemu.gpu.bench import battery

    rows = f"{len(tasks)} row{'s' if len(tasks) != 1 else ''}"
    shown = table(f"{rows}, about {battery.seconds(tasks):.0f} s", "figure", "rows", "s", numbers=2)
    for page in sorted({page for task in tasks for page in task.figures}):
        own = [task for task in tasks if page in task.figures]
        shown.add_row(page, str(len(own)), f"{battery.seconds(own):.0f}")
    console().print(shown)


def _show_rows(rows: list[dict[str, Any]], tasks: list[Task]) -> None:
    """The rows of the tasks, with ratios to the library's on the same product."""
    from fpemu.gpu.bench import kinds, reading, record

    wanted = {record.key(task.wanted) for task in tasks}
    rows = [row for row in rows if record.key(row) in wanted]
    shown = table(
        "TFLOP/s (fp32 or fp64 that it stands for); relative L2 error against fp64", "M×N×K, data", "contender",
        "first", "sustained", "with split", "/ SGEMM", "/ fp16÷3", "error", "W", "MHz", "bits", numbers=9,
    )  # fmt: skip
    others = table("whole calls", "what", "contender", "ms", "TFLOP/s", "GB/s", "/ library", "error", "bits", numbers=5)
    for row in rows:
        product = row["kind"] == "product"
        into, where = shown if product else others, (_where(row), row["contender"])
        if "failed" in row:
            into.add_row(*where, row["failed"][:60])
            continue
        bits = "" if "checked" not in row else f"{row['checked'] - row['mismatches']} / {row['checked']}"
        if product:
            numbers = [reading.rate(row, name) for name in ("first", "sustained", "split_first")]
            numbers += [reading.ratio(rows, row, "sgemm"), reading.ratio(rows, row, "fp16", 3)]
            numbers += [row.get(name) for name in ("relative_l2", "power_W", "clock_MHz")]
        else:
            base = reading.base(rows, row, kinds.base(row["kind"]))
            moved = row["bytes"] / row["first_s"] * 1e-9 if row.get("bytes") else None
            rate = reading.rate(row) if row.get("operations") or row.get("batch", 1) > 1 else None
            ratio = None if base is None else base["first_s"] / row["first_s"]
            numbers = [1e3 * row["first_s"], rate, moved, ratio, row.get("relative_l2")]
        into.add_row(*where, *map(_number, numbers), bits)
    for made in (shown, others):
        if made.row_count:
            console().print(made)


def _where(row: dict[str, Any]) -> str:
    """The product of a row, or what else it is of."""
    if not row["M"]:
        return str(row["kind"])
    many = f" times {row['batch']}" if row.get("batch", 1) > 1 else ""
    return f"{row['M']}×{row['N']}×{row['K']}{many} {row['data']}".strip()


def _number(value: float | None) -> str:
    return "" if value is None else show(value)
