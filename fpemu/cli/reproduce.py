"""``fpemu reproduce``: evaluate what is missing, draw, and say which published claims hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, table
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.sweep.run import CellError


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
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Folder for the figures; default figures, with --full figures/full."),
    ] = None,
) -> None:
    """Reproduce figures of the papers: PNG, SVG, PDF, data (CSV) and provenance (JSON).

    Finished cells are kept in .fpemu/results.sqlite (or $FPEMU_CACHE): an interrupted run goes on where it stopped.
    A figure of which a cell fails is left out; the others are drawn, and the exit status is 1.
    """
    from fpemu.sweep import experiments
    from fpemu.sweep.run import default_jobs
    from fpemu.sweep.store import Store

    size = "full" if full else "quick"
    chosen = [experiments.load(name) for name in experiments.select(figure)]
    folder = ("figures/full" if full else "figures") if output is None else output
    if not folder or any(p.exists() and not p.is_dir() for p in (Path(folder), *Path(folder).parents)):
        raise InputError(f"{folder!r} is not a folder, nor can one be made there")
    try:
        with Store() as results:
            failed = _all(chosen, size, results, jobs or default_jobs(), fresh, folder)
    except KeyboardInterrupt:
        again = "fpemu reproduce" + (f" {figure}" if figure else "") + (" --full" if full else "")
        again += "" if output is None else f" -o {output}"
        print(f"fpemu: interrupted; what is finished is kept: '{again}' goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    if failed:
        for problem in failed.values():
            note(f"fpemu: {' '.join(str(problem).split())}")
        note(f"fpemu: not drawn, because cells failed: {', '.join(failed)}; the next run tries them again")
        raise typer.Exit(1)


def _all(chosen: list[Any], size: str, results: Any, jobs: int, fresh: bool, output: str) -> dict[str, CellError]:
    """Evaluate, draw and show the experiments; gives what went wrong with those that could not be drawn."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from fpemu.sweep import figures
    from fpemu.sweep.run import CellError, keys, run

    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    if fresh:
        for experiment in chosen:
            results.forget(keys(experiment, experiment.cells(size)))
    written = []
    failed: dict[str, CellError] = {}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for experiment in chosen:
            try:
                rows = run(experiment, size, results=results, jobs=jobs, progress=progress)
            except CellError as problem:
                failed[experiment.name] = problem
                continue
            written.append((experiment, figures.write(experiment, size, rows, output)))
    for experiment, paths in written:
        stem = paths[0].with_suffix("").as_posix()
        console().print(f"\n{stem}.{{{','.join(path.suffix[1:] for path in paths)}}}")
        record = json.loads(paths[-1].read_text(encoding="utf-8"))
        claims = record["claims"]
        if claims:
            shown = table(f"{experiment.name} ({size}): published claims", "claim", "published", "here", "verdict")
            for claim in claims:
                shown.add_row(claim["claim"], claim["published"], claim["measured"], claim["verdict"])
            console().print(shown)
        if record.get("finding"):
            console().print(record["finding"], soft_wrap=True)
    return failed
