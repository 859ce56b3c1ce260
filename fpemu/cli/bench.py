"""``fpemu bench``: speed and memory of the emulation on the CPU, and speed of this GPU's kernels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import check_file, console, note, progress, show, table
from fpemu.errors import InputError

if TYPE_CHECKING:
    from benchmarks.gpu.case import Case


_COLUMNS = ("case", "n", "ns", "bar", "/ matmul", "compile s", "MB", "MB bar", "")
_PRODUCT_COLUMNS = ("M×N×K, data", "implementation", "first", "sustained", "with split", "/ SGEMM", "/ fp16÷3", "error")
_CALL_COLUMNS = ("product", "implementation", "ms", "TFLOP/s", "GB/s", "/ library", "error", "bits")


def need_benchmarks(command: str) -> None:
    """Make ``benchmarks`` importable.

    Raises
    ------
    InputError
        If the package was installed without a checkout.
    """
    from fpemu.reproduce import pages

    if not pages.import_benchmarks():
        raise InputError(f"{command}: the benchmarks come with a checkout of fpemu, not with the installed package")


def cpu(
    size: Annotated[int, typer.Option("--size", "-n", help="M = N = K of the compiled implementations.")] = 1024,
    repeat: Annotated[int, typer.Option("--repeat", help="Number of runs; the median is reported.")] = 3,
    only: Annotated[str | None, typer.Option("--only", help="Only the cases whose name contains this.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write the table to this file.")
    ] = None,
) -> None:
    """Measure the emulation on this CPU: ns per multiply-add, ratio to np.matmul in fp32, extra memory.

    Exit status 1 if a case is slower than its limit at the default size.
    """
    need_benchmarks("bench cpu")
    from benchmarks import cpu as cpu_suite
    from fpemu.files import write_atomic

    check_file(json_file, "the table", ".json")
    report = cpu_suite.run(size=size, repeat=repeat, only=only)
    title = (
        f"emulation on {report['threads']} threads: ns per multiply-add, time over np.matmul's in fp32, extra memory"
    )
    shown = table(title, *_COLUMNS, numbers=8)
    for line in report["lines"]:
        numbers = (line["ns"], line["bar"], line["ratio"])
        sizes = (line["memory"] / 1e6, line["memory_bar"] / 1e6)
        verdict = {None: "", True: "ok", False: "missed"}[line["ok"]]
        fixed = (f"{value:.1f}" for value in (line["compile"], *sizes))
        shown.add_row(line["case"], str(line["n"]), *map(_number, numbers), *fixed, verdict)
    console().print(shown)
    if json_file is not None:
        write_atomic(json_file, (json.dumps(report, indent=2) + "\n").encode())
    if any(line["ok"] is False for line in report["lines"]):
        raise typer.Exit(1)


def gpu(
    figure: Annotated[
        list[str] | None, typer.Option("--figure", metavar="PAPER[/PAGE]", help="Only the products of these figures.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", metavar="MxNxK", help="Only this product; n stands for n×n×n.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--implementation",
            "--contender",
            metavar="NAME",
            help='With --shape: such as "staged stage=128" or "sgemm".',
        ),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="NAME", help="With --shape: the distribution of its operands.")
    ] = "symmetric",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE.json", help="Save the rows in this file, and measure only missing rows."
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Measure the rows of the file again and replace them.")
    ] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Time limit in seconds; no further row is measured after it.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list the rows that would be measured.")] = False,
) -> None:
    """Measure speed and error of the vendor's library and of every scheme's kernel on this GPU.

    Each row is saved as soon as it is measured, and another run with the same --output measures the missing rows.
    Speeds are 2·M·N·K / time. The column "first" is the median of ten launches after a pause, and
    "sustained" the median of the second half of a run without a pause. Exit status 0; 1 if a kernel's bits differ
    from the emulation; 2 without a GPU.
    """
    from fpemu.gpu.runtime import device

    need_benchmarks("bench gpu")
    from benchmarks.gpu import record, run, suite

    if budget is not None and not budget > 0:
        raise InputError(f"--budget is {budget:g}: seconds above 0 are needed")
    if shape is not None and figure:
        raise InputError("--shape and --figure both choose products: leave one out")
    if shape is None and names:
        raise InputError("--implementation needs --shape, such as --shape 4096")
    cases = suite.cases(figure or None, quick) if shape is None else suite.chosen(shape, names or (), data)
    if listed:
        _list(cases)
        return
    check_file(output, "the record", ".json")
    if device.missing() is not None:
        raise InputError(f"bench gpu needs a GPU: {device.missing()}")
    kept = record.resume(output, run.head())
    measured: list[dict[str, Any]] = []
    try:
        with progress() as bars:
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
            note(f"{left} of {len(cases)} rows are left" + (f"; the others are in {output}" if output else ""))
    _show_rows(kept.rows, cases)
    if any(row.get("mismatches") or row.get("again") is False for row in measured):
        note("the bits of some rows differ from the emulation or between two runs: see the last column")
        raise typer.Exit(1)


def _list(cases: list[Case]) -> None:
    from benchmarks.gpu import suite

    rows = f"{len(cases)} row{'s' if len(cases) != 1 else ''}"
    shown = table(f"{rows}, about {suite.seconds(cases):.0f} s", "figure", "rows", "s", numbers=2)
    for page in sorted({page for case in cases for page in case.figures}):
        of_page = [case for case in cases if page in case.figures]
        shown.add_row(page, str(len(of_page)), f"{suite.seconds(of_page):.0f}")
    console().print(shown)


def _show_rows(rows: list[dict[str, Any]], cases: list[Case]) -> None:
    """Print the rows of the cases, with ratios to the library's on the same product."""
    from benchmarks.gpu import record, suite

    wanted = {record.key(case.fields) for case in cases}
    rows = [row for row in rows if record.key(row) in wanted]
    title = "effective throughput (2MNK / time), TFLOP/s; relative L2 error against fp64"
    shown = table(title, *_PRODUCT_COLUMNS, "W", "MHz", "bits", numbers=9)
    others = table("whole calls", *_CALL_COLUMNS, numbers=5)
    for row in rows:
        product = row["kind"] == "product"
        listing, name = shown if product else others, (_product(row), row["contender"])
        if "failed" in row:
            listing.add_row(*name, row["failed"][:60])
            continue
        bits = "" if "checked" not in row else f"{row['checked'] - row['mismatches']} / {row['checked']}"
        if product:
            numbers = [record.rate(row, name) for name in ("first", "sustained", "split_first")]
            numbers += [record.ratio(rows, row, "sgemm"), record.ratio(rows, row, "fp16", 3)]
            numbers += [row.get(name) for name in ("relative_l2", "power_W", "clock_MHz")]
        else:
            base = record.base(rows, row, suite.base(row["kind"]))
            moved = row["bytes"] / row["first_s"] * 1e-9 if row.get("bytes") else None
            rate = record.rate(row) if row.get("operations") or row.get("batch", 1) > 1 else None
            ratio = None if base is None else base["first_s"] / row["first_s"]
            numbers = [1e3 * row["first_s"], rate, moved, ratio, row.get("relative_l2")]
        listing.add_row(*name, *map(_number, numbers), bits)
    for rows_of in (shown, others):
        if rows_of.row_count:
            console().print(rows_of)


def _product(row: dict[str, Any]) -> str:
    """Return the product of a row, or its kind if it is not a product."""
    if not row["M"]:
        return str(row["kind"])
    many = f" times {row['batch']}" if row.get("batch", 1) > 1 else ""
    return f"{row['M']}×{row['N']}×{row['K']}{many} {row['data']}".strip()


def _number(value: float | None) -> str:
    return "" if value is None else show(value)
