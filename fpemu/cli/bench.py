"""``fpemu bench``: speed and memory of the emulation, and the speed of the GPU at hand, measured here."""

from __future__ import annotations

import json
from collections import Counter
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
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE.json", help="Keep the rows there; go on from them.")
    ] = None,
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
    tasks = battery.tasks(figure or None, quick)
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
            bar = bars.add_task("compiling", total=len(tasks), completed=sum(kept.done(t.wanted) for t in tasks))
            running.compile_all(tasks, kept)
            for row in running.rows(tasks, kept, budget=budget):
                found.append(row)
                record.keep(kept, output)
                bars.update(bar, advance=1, description=f"{row['contender']} {row['M']}×{row['N']}×{row['K']}")
    finally:
        left = sum(not kept.done(task.wanted) for task in tasks)
        if left:
            note(f"{left} of {len(tasks)} rows are left" + (f"; the others are in {output}" if output else ""))
    _show_rows(kept.rows, tasks)
    if any(row.get("mismatches") or row.get("again") is False for row in found):
        note("the bits of some rows are not those of the emulation, or not the same twice: see the last column")
        raise typer.Exit(1)


def _list(tasks: list[Task]) -> None:
    counts = Counter(page for task in tasks for page in task.figures)
    shown = table(f"{len(tasks)} rows", "figure", "rows", numbers=1)
    for page in sorted(counts):
        shown.add_row(page, str(counts[page]))
    console().print(shown)


def _show_rows(rows: list[dict[str, Any]], tasks: list[Task]) -> None:
    """The rows of the tasks, with ratios to the library's on the same product."""
    from fpemu.gpu.bench import reading, record

    wanted = {tuple(task.wanted.values()) for task in tasks}
    rows = [row for row in rows if record.key(row) in wanted]
    shown = table(
        "TFLOP/s (fp32 or fp64 that it stands for); relative L2 error against fp64", "M×N×K, data", "contender",
        "first", "sustained", "with split", "/ SGEMM", "/ fp16÷3", "error", "W", "MHz", "bits", numbers=9,
    )  # fmt: skip
    others = table("ms of the whole, GB/s of a copy", "what", "contender", "ms", "/ SGEMM", "error", "GB/s", numbers=4)
    for row in rows:
        into = shown if row["kind"] == "product" else others
        where = f"{row['M']}×{row['N']}×{row['K']} {row['data']}" if row["M"] else row["kind"], row["contender"]
        if "failed" in row:
            into.add_row(*where, row["failed"][:60])
            continue
        if row["kind"] != "product":
            base = reading.base(rows, row, "sgemm")
            speed = [row["bytes"] / row["first_s"] * 1e-9 if row.get("bytes") else None]
            ratio = [None if base is None else base["first_s"] / row["first_s"]]
            into.add_row(*where, *map(_number, [1e3 * row["first_s"], *ratio, row.get("relative_l2"), *speed]))
            continue
        speeds = [reading.rate(row, name) for name in ("first", "sustained", "split_first")]
        ratios = [reading.ratio(rows, row, "sgemm"), reading.ratio(rows, row, "fp16", 3)]
        bits = "" if "checked" not in row else f"{row['checked'] - row['mismatches']} / {row['checked']}"
        numbers = [*speeds, *ratios, row.get("relative_l2"), row.get("power_W"), row.get("clock_MHz")]
        into.add_row(*where, *map(_number, numbers), bits)
    for made in (shown, others):
        if made.row_count:
            console().print(made)


def _number(value: float | None) -> str:
    return "" if value is None else show(value)
