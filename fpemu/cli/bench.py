"""``fpemu bench``: speed and memory of the emulation, measured here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fpemu.cli.common import console, show, table
from fpemu.errors import InputError


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
