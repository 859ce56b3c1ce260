"""``fpemu reproduce``: evaluate what is missing, draw, and list which published claims hold."""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import (
    DEVICE,
    EXPERIMENTS,
    JOBS,
    check_folder,
    console,
    note,
    parse_device,
    progress,
    resumable,
    table,
)
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.mma.device import Device
    from fpemu.reproduce.experiments import Experiment
    from fpemu.reproduce.figures import Written
    from fpemu.reproduce.papers import Claim
    from fpemu.sweep import Store


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER[/FIGURE]]...",
            help="Figures, papers, or 'all'; default: the figure of each paper's first claim.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Use the sizes and the number of runs of the paper, if they take an hour at most."),
    ] = False,
    jobs: Annotated[int | None, JOBS] = None,
    device: Annotated[str, DEVICE] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Evaluate stored cells again.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the figures (default: figures); figures of --full are in its subfolder full.",
        ),
    ] = None,
    experiments: Annotated[str | None, EXPERIMENTS] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Also write the picture as svg or pdf; may be repeated.")
    ] = None,
) -> None:
    """Reproduce figures of the papers: picture (PNG), data (CSV) and record of provenance and claims (JSON).

    Finished cells (evaluations) are saved in .fpemu/results.sqlite, or in the folder FPEMU_CACHE, and a later run
    evaluates only the missing cells. A file is written only if its content changes; the last line counts the new,
    rewritten and unchanged figures. If a cell fails or a figure cannot be drawn, the other figures are drawn, and
    the exit status is 1.
    """
    from fpemu.sweep.run import CellError

    again = ["fpemu", "reproduce", *(figures or []), *(["--full"] if full else [])]
    again += [] if device == "auto" else ["--device", device]
    again += [] if output is None else ["-o", output]
    again += [] if experiments is None else ["--experiments", experiments]
    again += [word for name in formats or [] for word in ("--format", name)]
    with resumable(again):
        size, folder = "full" if full else "quick", "figures" if output is None else output
        failed = _reproduce(figures or [], size, jobs, parse_device(device), fresh, folder, formats or [])
    if failed:
        cells = [name for name, problem in failed.items() if isinstance(problem, CellError)]
        pages = [name for name in failed if name not in cells]
        for name, problem in failed.items():
            note(f"fpemu: {_describe(name, problem)}")
        if cells:
            note(f"fpemu: not drawn, because cells failed: {', '.join(cells)}; the next run tries them again")
        if pages:
            note(f"fpemu: not drawn, because their pages failed: {', '.join(pages)}")
        raise typer.Exit(1)


def _reproduce(
    names: list[str], size: str, jobs: int | None, device: Device, fresh: bool, output: str, formats: list[str]
) -> dict[str, BaseException]:
    from fpemu.reproduce import experiments, figures
    from fpemu.sweep.run import default_jobs
    from fpemu.sweep.store import Store

    chosen = [experiments.load(name) for name in _select(names)]
    folder = Path(output, "full" if size == "full" else "")
    check_folder(output, folder)
    figures.check_output([experiment.name for experiment in chosen], folder, formats)
    with Store() as results:
        return _all(chosen, size, results, jobs or default_jobs(), device, fresh, folder, formats)


def _select(names: list[str]) -> list[str]:
    """The figures that are named, each once; without names the figure of each paper's first claim."""
    from fpemu.reproduce import experiments, papers

    if not names:
        first = [paper.headlines[0].page for paper in papers.read() if paper.headlines]
        return first or experiments.names()
    wanted = [None if name == "all" else name for name in names]
    return list(dict.fromkeys(name for one in wanted for name in experiments.select(one)))


def _all(
    chosen: list[Experiment],
    size: str,
    results: Store,
    jobs: int,
    device: Device,
    fresh: bool,
    folder: Path,
    formats: list[str],
) -> dict[str, BaseException]:
    """Evaluate, draw and show the experiments; return the errors of those that could not be drawn."""
    from fpemu.reproduce import figures, papers
    from fpemu.sweep.executors import LocalWorkers
    from fpemu.sweep.run import run

    written: dict[str, Written] = {}
    done: set[str] = set()  # figures that share cells have them evaluated once, however fresh
    failed: dict[str, BaseException] = {}
    with progress() as bars, LocalWorkers(jobs) if jobs > 1 else nullcontext() as workers:
        for experiment in chosen:
            try:
                rows = run(
                    experiment,
                    size,
                    results=results,
                    device=device,
                    progress=bars,
                    fresh=fresh,
                    done=done,
                    workers=workers,
                )
                written[experiment.name] = figures.write(experiment, size, rows, folder, formats)
            except (Exception, SystemExit) as problem:
                called = [Path(frame.filename) for frame in traceback.extract_tb(problem.__traceback__)]
                if isinstance(problem, OSError) and not any(file.is_relative_to(experiment.root) for file in called):
                    raise  # results cannot be stored or files not written: every further figure would fail
                failed[experiment.name] = problem
    claims = [claim for paper in papers.read() for claim in (*paper.claims, *paper.checks)]
    for name, files in written.items():
        _show(name, size, files, claims)
    if written:
        console().print(f"\n{_summary(written)}", soft_wrap=True)
        paths = [files.paths[0].as_posix() for files in written.values()]
        console().print(f"Look at {', '.join(paths[:5])}{' ...' * (len(paths) > 5)}", soft_wrap=True)
    return failed


def _show(name: str, size: str, files: Written, claims: list[Claim]) -> None:
    """Print a figure's files, its claims and its finding."""
    from fpemu.reproduce.verdicts import number_of, verdict_on

    stem = files.paths[0].with_suffix("").as_posix()
    console().print(f"\n{stem}.{{{','.join(path.suffix[1:] for path in files.paths)}}}: {files.state}", soft_wrap=True)
    judgements = [verdict_on(claim, files.record) for claim in claims if claim.page == name]
    if judgements:
        shown = table(f"{name} ({size}): claims and checks", "claim", "criterion", "measured", "verdict")
        for one in judgements:
            verdict = one.verdict if files.record["paper_size"] else "needs --full"
            shown.add_row(one.claim.claim, str(one.claim.criterion or ""), number_of(one), verdict)
        console().print(shown)
    if files.record.get("finding"):
        console().print(files.record["finding"], soft_wrap=True)


def _summary(written: dict[str, Written]) -> str:
    """One line: how many figures are new, rewritten and unchanged, with the names of those rewritten."""
    from fpemu.reproduce.figures import NEW, REWRITTEN, UNCHANGED

    names = {
        state: [name for name, files in written.items() if files.state == state]
        for state in (NEW, REWRITTEN, UNCHANGED)
    }
    counts = [f"{len(figures)} {state}" for state, figures in names.items() if figures]
    rewritten = f" (rewritten: {', '.join(names[REWRITTEN])})" if names[REWRITTEN] else ""
    return f"{len(written)} figure{'s' * (len(written) != 1)}: {', '.join(counts)}{rewritten}"


def _describe(name: str, problem: BaseException) -> str:
    """The error of a figure; with its place if the page did not raise it on purpose."""
    from fpemu.sweep.run import CellError

    text = str(problem)
    if not isinstance(problem, CellError):
        text = f"{name}: {text}"
    if not isinstance(problem, CellError | InputError):
        *_, last = traceback.extract_tb(problem.__traceback__)
        text = f"{name}: {type(problem).__name__}: {problem} ({last.filename}, line {last.lineno})"
    return " ".join(text.split())
