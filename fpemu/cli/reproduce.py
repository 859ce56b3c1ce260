"""``fpemu reproduce``: evaluate what is missing, draw, and list which published claims hold."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import (
    DEVICE,
    EXPERIMENTS,
    JOBS,
    check_folder,
    note,
    parse_device,
    print_table,
    progress,
    resumable,
)
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.reproduce import Claim, Experiment
    from fpemu.reproduce.figures import Written
    from fpemu.sweep import Store
    from fpemu.sweep.run import Row


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
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Draw every picture again, on all cores, whatever has changed.")
    ] = False,
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

    Finished cells (evaluations) are saved in .fpemu/cells.sqlite, or in the folder FPEMU_CACHE, and a later run
    evaluates only the missing cells. A picture is drawn again if its data or the code that draws it changed, and a
    file is written only if its content changes; the last line counts the new, rewritten and unchanged figures. If a
    cell fails or a figure cannot be drawn, the other figures are drawn, and the exit status is 1.
    """
    from fpemu.reproduce import figures as files
    from fpemu.sweep.run import CellError, default_jobs
    from fpemu.sweep.store import Store

    again = ["fpemu", "reproduce", *(figures or []), *(["--full"] if full else [])]
    again += [] if device == "auto" else ["--device", device]
    again += [] if output is None else ["-o", output]
    again += [] if experiments is None else ["--experiments", experiments]
    again += ["--redraw"] if redraw else []
    again += [word for name in formats or [] for word in ("--format", name)]
    with resumable(again):
        on = parse_device(device)
        size, where = "full" if full else "quick", "figures" if output is None else output
        folder = Path(where, "full" if full else "")
        chosen = _load(figures or [])
        check_folder(where, folder)
        files.check_output([experiment.name for experiment in chosen], folder, formats or [])
        options = {"device": on, "fresh": fresh}
        with Store() as results:
            failed = _all(chosen, size, folder, formats or [], redraw, results, jobs or default_jobs(), options)
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


def _load(names: list[str]) -> list[Experiment]:
    """The figures that are named, each once; without names the figure of each paper's first claim."""
    from fpemu.reproduce import claims, pages

    if not names:
        first = [paper.headlines[0].page for paper in claims.papers() if paper.headlines]
        return list(map(pages.load, first or pages.names()))
    wanted = [None if name == "all" else name for name in names]
    return list(map(pages.load, dict.fromkeys(name for one in wanted for name in pages.select(one))))


def _all(
    chosen: list[Experiment],
    size: str,
    folder: Path,
    formats: list[str],
    redraw: bool,
    results: Store,
    jobs: int,
    options: dict[str, Any],
) -> dict[str, BaseException]:
    """Evaluate, draw and show the experiments; return the errors of those that could not be drawn."""
    from fpemu.parallel import cores
    from fpemu.reproduce import claims, figures
    from fpemu.sweep.run import Workers, run

    written: dict[str, Written] = {}
    rows: dict[str, list[Row]] = {}
    done: set[str] = set()  # figures that share cells have them evaluated once, however fresh
    failed: dict[str, BaseException] = {}
    with progress() as bars, Workers(jobs) if jobs > 1 else nullcontext() as workers:
        for experiment in chosen:
            with _failure(experiment, failed):
                rows[experiment.name] = run(
                    experiment, size, results=results, progress=bars, done=done, workers=workers, **options
                )
                if not redraw:
                    written[experiment.name] = figures.write(experiment, size, rows[experiment.name], folder, formats)
    if redraw:
        # spawn: a fork would copy the compiled kernels' thread pool in an unusable state; this process handles Ctrl-C
        ignored = signal.signal, (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(min(cores(), len(chosen)), get_context("spawn"), *ignored) as pool:
            drawn = [
                (one, pool.submit(figures.redraw, one.name, one.root, size, rows[one.name], folder, formats))
                for one in chosen
                if one.name in rows
            ]
            try:
                for experiment, figure in drawn:
                    with _failure(experiment, failed):
                        written[experiment.name] = figure.result()
            finally:
                pool.shutdown(cancel_futures=True)  # after an interrupt
    for name, files in written.items():
        _show(name, size, files, claims.on_page(name))
    if written:
        typer.echo(f"\n{_summary(written)}")
        paths = [files.paths[0].as_posix() for files in written.values()]
        typer.echo(f"Look at {', '.join(paths[:5])}{' ...' * (len(paths) > 5)}")
    return failed


@contextmanager
def _failure(experiment: Experiment, failed: dict[str, BaseException]) -> Iterator[None]:
    """Note the error of a page, and raise those that every further figure would have."""
    try:
        yield
    except (Exception, SystemExit) as problem:
        in_page = any(Path(file).is_relative_to(experiment.root) for file, _ in _frames(problem))
        if isinstance(problem, OSError) and not in_page:
            raise  # results cannot be stored or files not written
        failed[experiment.name] = problem


def _frames(problem: BaseException) -> list[tuple[str, str]]:
    """The file and the line of each call that led to an error, also in a process that drew a picture."""
    elsewhere = getattr(problem.__cause__, "tb", "")  # the text that a process pool attaches
    return re.findall(r'File "(.+?)", line (\d+)', elsewhere or "".join(traceback.format_exception(problem)))


def _show(name: str, size: str, files: Written, claims: list[Claim]) -> None:
    """Print a figure's files, its claims and its finding."""
    from fpemu.reproduce.claims import number_of, verdict_on

    stem = files.paths[0].with_suffix("").as_posix()
    typer.echo(f"\n{stem}.{{{','.join(path.suffix[1:] for path in files.paths)}}}: {files.state}")
    judgements = [verdict_on(claim, files.record) for claim in claims]
    if judgements:
        instead = None if files.record.paper_size else "needs --full"
        rows = [
            (one.claim.claim, str(one.claim.criterion or ""), number_of(one), instead or one.verdict)
            for one in judgements
        ]
        columns = ("claim", "criterion", "measured", "verdict")
        print_table(f"{name} ({size}): claims and checks", columns, rows)
    if files.record.finding:
        typer.echo(files.record.finding)


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
        *_, (file, line) = _frames(problem)
        text = f"{name}: {type(problem).__name__}: {problem} ({file}, line {line})"
    return " ".join(text.split())
