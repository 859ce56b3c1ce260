"""``fpemu reproduce``: evaluate what is missing, draw, and say which published claims hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fpemu.cli.common import console, table
from fpemu.errors import InputError


def reproduce(
    figure: Annotated[
        str | None, typer.Argument(metavar="[PAPER[/FIGURE]]", help="One figure, or a paper's; default all.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The sizes and runs of the paper, as far as an hour allows.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, max=256, help="Local processes; default: one a core."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Evaluate again what is stored.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for the figures.")] = "figures",
) -> None:
    """Reproduce figures of the papers: PNG, SVG, data (CSV) and provenance (JSON).

    Finished cells are kept in .fpemu/results.sqlite (or $FPEMU_CACHE): an interrupted run goes on where it stopped.
    """
    from fpemu.sweep import experiments
    from fpemu.sweep.run import default_jobs
    from fpemu.sweep.store import Store

    size = "full" if full else "quick"
    chosen = [experiments.load(name) for name in experiments.select(figure)]
    if not output or any(p.exists() and not p.is_dir() for p in (Path(output), *Path(output).parents)):
        raise InputError(f"{output!r} is not a folder, nor can one be made there")
    try:
        with Store() as results:
            _all(chosen, size, results, jobs or default_jobs(), fresh, output)
    except KeyboardInterrupt:
        again = "fpemu reproduce" + (f" {figure}" if figure else "") + (" --full" if full else "")
        again += f" -o {output}" if output != "figures" else ""
        print(f"fpemu: interrupted; what is finished is kept: '{again}' goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None


def _all(chosen: list[Any], size: str, results: Any, jobs: int, fresh: bool, output: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from fpemu.sweep import figures
    from fpemu.sweep.run import keys, run

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    if fresh:
        for experiment in chosen:
            results.forget(keys(experiment, experiment.cells(size)))
    written = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for experiment in chosen:
            rows = run(experiment, size, results=results, jobs=jobs, progress=progress)
            written.append((experiment, figures.write(experiment, size, rows, output)))
    for experiment, paths in written:
        stem = paths[0].with_suffix("").as_posix()
        console().print(f"\n{stem}.{{{','.join(path.suffix[1:] for path in paths)}}}")
        claims = json.loads(paths[-1].read_text(encoding="utf-8"))["claims"]
        shown = table(f"{experiment.name} ({size}): published claims", "claim", "published", "here", "verdict")
        for claim in claims:
            shown.add_row(claim["claim"], claim["published"], claim["measured"], claim["verdict"])
        console().print(shown)
