"""``fpemu sweep``, ``fpemu reproduce``, ``fpemu ledger``: errors over grids and maps, figures of papers, claims."""

from __future__ import annotations

import functools
import math
import os
import re
import signal
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu import metrics, schemes
from fpemu._system import check_writable, cores, write_atomic
from fpemu.arguments import choice
from fpemu.cli import options as cli
from fpemu.errors import GuaranteeError, InputError, require
from fpemu.reproduce import claims, figures, ledger, pages
from fpemu.sweep import Grid, Store, frame, maps
from fpemu.sweep.grid import scheme_of
from fpemu.sweep.ranges import parse_range
from fpemu.sweep.run import CellError, check_failures, check_memory, default_jobs, estimate, run, survey
from fpemu.sweep.store import default_path
from fpemu.sweep.tables import check_target, export, medians
from fpemu.sweep.workers import Workers, chosen_gpus, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from fpemu.reproduce.figures import Written
    from fpemu.sweep.ranges import Number
    from fpemu.sweep.run import Row

_PICTURES = (".png", ".pdf", ".svg")
_LINES = 60  # of the table of medians
_OFFSETS = ("offset_symmetric", "offset_nonnegative")


# --- sweep
@dataclass(frozen=True)
class RunOptions:
    """How the cells of a grid are evaluated, and the tables to which the rows are exported."""

    jobs: int | None = None
    executor: Annotated[str | None, "processes (default) or dask (without --scheduler: local workers)."] = None
    scheduler: Annotated[str | None, "ADDRESS", "A Dask scheduler, such as tcp://host:8786."] = None
    device: str = "auto"
    gpus: Annotated[str | None, "LIST", "GPUs of the local processes, such as 0,2 (default: all, in turn)."] = None
    dry_run: Annotated[bool, "Count the cells and estimate the time."] = False
    fresh: bool = False
    export: Annotated[list[str] | None, "OUT", "Write all rows to OUT.csv or OUT.parquet; may be repeated."] = None

    def evaluate(self, grid: Grid) -> list[dict[str, Any]] | None:
        """Evaluate the missing cells, export the tables and return all rows; None after a dry run."""
        for target in self.export or []:
            check_target(target)
        device: Any = self.device
        if self.scheduler is None or self.device != "cuda":  # the workers of a scheduler may be on machines with a GPU
            device = cli.parse_device(self.device)
        gpus = () if self.gpus is None else chosen_gpus(self.gpus, device)
        jobs: int = self.jobs or len(gpus) or max(default_jobs(), 0 if self.scheduler else len(visible(device)))
        with cli.resumable(), Store() as results:
            if not self.dry_run:
                names = ("executor", "scheduler", "fresh")
                settings: dict[str, Any] = {name: getattr(self, name) for name in names}
                with cli.progress() as bars:
                    settings |= {"jobs": jobs, "device": device, "gpus": gpus, "progress": bars}
                    rows = run(grid, results=results, keep_failures=True, **settings)
                for target in self.export or []:
                    export(rows, target)
                    cli.note(f"wrote {target}: {len(rows)} rows")
                return rows
            plan = survey(grid, "quick", results, () if self.fresh else None)
            todo = plan.todo
            if self.scheduler is None:
                check_memory(grid, todo.values())
            again = sum(name in plan.failed_before for name in todo)
            counts = f"{len(plan.cells)} cells: {len(plan.stored)} stored, {len(todo)} to do"
            typer.echo(f"{grid.name}: {counts}" + f", {again} of which failed before" * bool(again))
            typer.echo(f"results: {results.path}")
            if todo:
                seconds, basis = estimate(grid, plan, jobs, "auto" if self.scheduler else device)
                by = f" by {jobs} process{'es' * (jobs > 1)} ({basis})"
                typer.echo(f"time: {basis}" if seconds is None else f"time: about {_duration(seconds)}{by}")
        return None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.2g} h"


@dataclass(frozen=True)
class SweepOptions(RunOptions):
    """The options of a grid's file: those of every run, and a picture of the table."""

    plot: Annotated[
        str | None,
        "x=COLUMN,...",
        "Draw a picture: x=COLUMN,y=METRIC,hue=COLUMN (hue may be repeated) draws curves; x=COLUMN,y=COLUMN,map=METRIC "
        "draws a map.",
    ] = None
    picture: Annotated[str, "OUT", "The picture: OUT.png, OUT.pdf or OUT.svg; default: the file's name and .png."] = ""
    width: Annotated[str, "Columns of a journal: single or double."] = "single"
    font: Annotated[str, "sans or serif."] = "sans"

    def drawing(self, grid: Grid) -> Callable[[list[dict[str, Any]]], Figure]:
        """The function that draws the rows as --plot describes; InputError for what it cannot show of the grid."""
        from fpemu.plotting import frames

        require("pandas", "matplotlib")
        columns: dict[str, Any] = {}
        hue: list[str] = []
        for word in (self.plot or "").split(","):
            name, _, column = word.strip().partition("=")
            choice("--plot", name, ("x", "y", "hue", "map"))
            if not column:
                raise InputError(f"--plot {word!r}: NAME=COLUMN is expected, such as x=scheme.sb")
            if name == "hue":
                hue.append(column)
            else:
                columns[name] = column
        if not {"x", "y"} <= set(columns):
            raise InputError("--plot needs x=COLUMN and y=COLUMN")
        look: dict[str, Any] = {"width": self.width, "font": self.font}
        value = columns.pop("map", None)
        named = (columns["x"], *hue) if value is None else (columns["x"], columns["y"])
        numbers = dict.fromkeys(grid.cells()[0]["metrics"], math.nan)
        empty = [{name: value for name, value in cell.items() if name != "metrics"} | numbers for cell in grid.cells()]
        frames.check(frame(empty), named, columns["y"] if value is None else value)
        if value is None:
            return lambda rows: frames.curves(frame(rows), **columns, hue=hue, **look)
        return lambda rows: frames.plane(frame(rows), **columns, value=value, **look)


@cli.with_options(SweepOptions)
def sweep(
    file: Annotated[str, "FILE", "A grid: FILE.toml, or FILE.py with the variable GRID."], /, *, options: SweepOptions
) -> None:
    """Evaluate the errors of every cell of a grid: inputs × sizes × seeds × schemes × hardware × orders.

    Finished cells are stored in .fpemu/cells.sqlite, or in the folder FPEMU_CACHE, and an interrupted run resumes
    from them. A failing cell does not stop the other cells; the exit status is then 1, and the next run evaluates
    the cell again.
    """
    grid = Grid.read(file)
    if options.picture and options.plot is None:
        raise InputError(f"--picture {options.picture} needs --plot, which says what it shows")
    picture = options.picture or f"{Path(file).stem}.png"
    if Path(picture).suffix not in _PICTURES:
        raise InputError(f"--picture {picture}: pictures are written as .png, .pdf or .svg")
    draw = None if options.plot is None else options.drawing(grid)
    if draw is not None:
        check_writable(picture)
    rows = options.evaluate(grid)
    if rows is None:
        return
    if draw is not None:
        cli.write_picture(picture, draw(rows))
    if not options.export and options.plot is None:
        names = grid.cells()[0]["metrics"]
        medians_of = medians(rows, names)
        lines = [(scheme, hardware, *map(cli.show, values), str(n)) for scheme, hardware, values, n in medians_of]
        columns = ("scheme", "hardware", *names, "cells")
        cli.print_table(f"{grid.name}: median over cells", columns, lines[:_LINES], numbers=len(names) + 1)
        if len(lines) > _LINES:
            cli.note(f"and {len(lines) - _LINES} more lines: --export writes all rows")
    cli.note(f"{len(rows)} cells, results in {default_path()}")
    _check_failures(grid, rows)


def _check_failures(grid: Grid, rows: list[dict[str, Any]]) -> None:
    try:
        check_failures(grid, rows)
    except CellError as problem:
        raise GuaranteeError(str(problem)) from problem


# --- maps
@dataclass(frozen=True)
class MapOptions(RunOptions):
    """The options of both commands that draw a map."""

    size: Annotated[str, "MxNxK", "Size of the product."] = "48x48x512"
    seeds: Annotated[str, "Number of seeds, or the seeds as a list or range: 0,5,7 or 0:9. The map shows the mean."] = (
        "3"
    )
    metric: Annotated[str, "The error: see 'fpemu list metrics'."] = "relative_l2"
    factor: Annotated[float, "Largest error of a good setting, relative to the smallest error."] = 1.5
    output: Annotated[str, "FOLDER", "Folder for the map."] = "maps"


def _axis(flag: str, pairs: list[str], of: str) -> maps.Axis:
    """The axis of the one option with several values among those of the command line."""
    fixed = cli.parse_options(pairs)
    swept: dict[str, list[Number]] = {}
    for name, pair in zip(fixed, pairs, strict=True):
        text = pair.partition("=")[2]
        if ":" in text or re.fullmatch(r"[-+0-9.eE^* ]*,[-+0-9.eE^*, ]*", text):
            fixed[name], *more = values = parse_range(f"{flag} {name}", text)
            swept |= {name: values} if more else {}
    if len(swept) != 1:
        what = f"has {' and '.join(swept)}" if swept else "has no range of two values or more"
        raise InputError(f"{flag} {what}: a map has one axis from it, NAME=FIRST:LAST")
    ((name, values),) = swept.items()
    del fixed[name]
    return maps.Axis(name, values, fixed, name, name if name in (*maps.SIZES, "seed") else f"{name} ({of})")


@cli.with_options(MapOptions)
def scaling(
    scheme: Annotated[str, "A scheme with a scaled residual."] = "h2sgemm",
    sb: Annotated[str, "RANGE", "Binary exponents of the scale."] = "-2:24",
    offset: Annotated[str, "RANGE", "Offset exponents of the inputs."] = "-20:15",
    hardware: str | None = None,
    inputs: Annotated[str, "offset_symmetric or offset_nonnegative."] = _OFFSETS[0],
    option: Annotated[list[str] | None, "NAME=VALUE", "Another option of the scheme."] = None,
    *,
    options: MapOptions,
) -> None:
    """Map the error over the scaling exponent of the residual and the offset exponent of the inputs.

    The table lists the best scaling exponents for each offset exponent. The last line names the scaling exponent
    that is near the best for the largest number of offset exponents. Overflow is hatched. For schemes of two fp16
    words rounded to nearest the map shows the bounds of equation 6 of the H2SGEMM paper. A range is first:last or
    first:last:step, with both ends included, or a list a,b,c. The command writes PNG, SVG, PDF, CSV and JSON files.
    """
    chosen = schemes.get(scheme)
    named = ("sb", "residual_scale")
    known = {name: one.name for name in schemes.names() for one in schemes.get(name).info.options if one.name in named}
    if chosen.name not in known:
        raise InputError(f"{chosen.name} does not scale a residual; the schemes that do: {', '.join(known)}")
    choice("distribution with an offset exponent", inputs, _OFFSETS)
    scale, fixed, machine = known[chosen.name], cli.parse_options(option), cli.need_hardware(hardware)
    if scale in fixed:
        raise InputError(f"{scale} is what --sb sweeps: leave it out of --option")
    exponents, offsets = parse_range("--sb", sb), parse_range("--offset", offset)
    for flag, values in (("--sb", exponents), ("--offset", offsets)):
        if len(values) < 2 or not all(isinstance(value, int) for value in values):
            raise InputError(f"{flag}: an axis of a map needs two or more integers, FIRST:LAST")
    if min(exponents) < -60 or max(exponents) > 60:
        raise InputError(f"--sb {sb}: a scale lies between 2^-60 and 2^60")
    scales = exponents if scale == "sb" else [2.0**e for e in exponents]
    interval = "[-2^e,\\,2^e]" if inputs == _OFFSETS[0] else "[0,\\,2^e]"
    label = f"offset exponent $e$ of operands in ${interval}$"
    words = ["scaling", "--scheme", chosen.name, "--sb", sb, "--offset", offset, "--hardware", machine]
    _map(
        [*words, "--inputs", inputs, *_repeated("-O", option)],
        chosen.name,
        maps.Axis(scale, scales, fixed, "sb", "scaling exponent sb"),
        maps.Axis("exponent", offsets, {}, "offset exponent", label),
        inputs,
        machine,
        options,
    )


@cli.with_options(MapOptions)
def plane(
    scheme: Annotated[str, "SCHEME", "Name of a scheme, or FILE.py:NAME of a file that registers it."],
    /,
    *,
    option: Annotated[list[str], "NAME=RANGE", "Option on one axis; NAME=VALUE fixes another option."],
    parameter: Annotated[list[str], "NAME=RANGE", "Parameter of the inputs, or M, N, K, seed, on the other axis."],
    inputs: Annotated[str, "Distribution of the inputs: see 'fpemu list inputs'."] = "uniform",
    hardware: str | None = None,
    options: MapOptions,
) -> None:
    """Map the error over a numeric option of a scheme and a parameter of its inputs or a size.

    Example: 'fpemu sweep plane ozimmu --option slices=3:9 --inputs phi --parameter phi=0:4:0.5 --hardware A100'. One
    option and one parameter have several values: first:last or first:last:step, with both ends included, a list a,b,c,
    or powers such as 2^0:2^16. All others have one value. Overflow is hatched. The command writes PNG, SVG, PDF, CSV
    and JSON files.
    """
    chosen = scheme_of(scheme)
    y, x = _axis("--option", option, chosen.name), _axis("--parameter", parameter, f"inputs {inputs}")
    if "name" in (x.name, *x.fixed):
        raise InputError(f"--parameter name: the distribution is {inputs}, and --inputs names another")
    if x.name == y.name:
        x, y = x._replace(short=f"inputs.{x.name}"), y._replace(short=f"scheme.{y.name}")
    machine = cli.need_hardware(hardware) if chosen.needs_hardware else ""
    name = scheme if ":" in scheme else chosen.name
    words = ["plane", name, *_repeated("-O", option), *_repeated("-P", parameter), "--inputs", inputs]
    words += ["--hardware", machine] if machine else []
    _map(words, chosen.name, y, x, inputs, machine, options)


def _map(
    words: list[str], scheme: str, y: maps.Axis, x: maps.Axis, distribution: str, hardware: str, options: MapOptions
) -> None:
    """Evaluate a grid over two axes and draw its map; ``words`` is the command without the options of `MapOptions`."""
    from fpemu.plotting import planes

    metric = metrics.get(options.metric).__name__
    if metric == "effective_bits":
        raise InputError("--metric effective_bits grows as the error shrinks, and a map is of an error")
    axes: dict[str, Any] = dict(zip(maps.SIZES, cli.parse_sizes("--size", options.size), strict=True))
    seeds = parse_range("--seeds", options.seeds)
    axes["seeds"] = seeds if {",", ":"} & set(options.seeds) else seeds[0]
    command = ["fpemu", "sweep", *words, "--size", options.size, "--seeds", options.seeds]
    command += ["--metric", metric, "--factor", f"{options.factor:g}"]
    requested = maps.Map(words[0], scheme, y, x, distribution, hardware, axes, metric, command)
    grid = requested.grid
    paths = requested.paths(options.output)
    for path in paths:
        check_writable(path, make_folders=True)
    file = paths[0].with_suffix("").as_posix()
    rows = options.evaluate(grid)
    if rows is None:
        typer.echo(f"map: {file}")
        return
    maps.write(requested, rows, options.factor, options.output)
    over = requested.plane(rows)
    near = planes.losses(over) <= options.factor
    lines = []
    for index, best in enumerate(planes.best(over)):
        good = [setting for setting, fine in zip(over.ys, near[:, index].tolist(), strict=True) if fine]
        ranges = [planes.spans(settings, over.ys, planes.notation(over.ys)) for settings in (best.ys, good)]
        lines.append((planes.notation(over.xs)(best.x), *ranges, cli.show(best.error)))
    best_within = f"best {over.y} (within {100 * (planes.TIE - 1):.0f} %)"
    columns = (over.x, best_within, f"{over.y} within a factor of {options.factor:g}", f"smallest {metric}")
    cli.print_table(f"{requested.title}: the best {over.y} for each {over.x}", columns, lines, numbers=1)
    typer.echo(maps.answer(over, options.factor))
    typer.echo(f"{file}.{{{','.join(path.suffix[1:] for path in paths)}}}")
    _check_failures(grid, rows)


def _repeated(flag: str, values: list[str] | None) -> list[str]:
    return [word for value in values or [] for word in (flag, value)]


# --- reproduce
def reproduce(
    names: Annotated[
        list[str] | None, "[PAPER[/FIGURE]]...", "Figures, papers or 'all'; default: the figures of the first claims."
    ] = None,
    /,
    *,
    set_: Annotated[
        list[str] | None, "NAME=VALUE", "Replace a published parameter of one figure; may be repeated."
    ] = None,
    full: Annotated[bool, "Use the sizes and the number of runs of the paper, if they take an hour at most."] = False,
    jobs: int | None = None,
    device: str = "auto",
    fresh: bool = False,
    redraw: Annotated[bool, "Draw every picture again, on all cores, whatever has changed."] = False,
    output: Annotated[str, "Folder for the figures; figures of --full are in its subfolder full."] = "figures",
    experiments: str | None = None,
    format_: Annotated[list[str] | None, "Also write the picture as svg or pdf; may be repeated."] = None,
) -> None:
    """Reproduce figures of papers: picture (PNG), data (CSV) and record of provenance and claims (JSON).

    Finished cells (evaluations) are saved in .fpemu/cells.sqlite, or in the folder FPEMU_CACHE, and a later run
    evaluates only the missing cells. A picture is drawn again if its data or the code that draws it changed, and a
    file is written only if its content changes; the last line counts the new, rewritten and unchanged figures. If a
    cell fails or a figure cannot be drawn, the other figures are drawn, and the exit status is 1.

    'fpemu reproduce h2sgemm/fig8 --set hardware=H200' draws a figure with other parameters, which 'fpemu list
    experiments h2sgemm/fig8' prints, into the subfolder changed; its caption states each change.
    """
    size, folder, formats = "full" if full else "quick", Path(output, "full" if full else ""), format_ or []
    rows: dict[str, list[Row]] = {}
    drawn: dict[str, Written | str] = {}  # the files of each figure, or the error of its cells or page
    with cli.resumable():
        # done: with --fresh, a cell that several figures share is evaluated once
        settings: dict[str, Any] = {"fresh": fresh, "device": cli.parse_device(device), "done": set()}
        if names:
            chosen = dict.fromkeys(name for one in names for name in pages.select(None if one == "all" else one))
        else:
            first = [paper.headlines[0].page for paper in claims.papers() if paper.headlines]
            chosen = dict.fromkeys(first or pages.names())
        if (changes := cli.parse_options(set_)) and len(chosen) != 1:
            raise InputError("--set changes the parameters of one figure: name it, as in h2sgemm/fig8")
        loaded, jobs = [pages.load(name).changed(changes) for name in chosen], jobs or default_jobs()
        figures.check_output([one.stem for one in loaded], folder, formats)
        draw = functools.partial(_draw, pages.root(), size, folder, formats, redraw, changes)
        with Store() as results, cli.progress() as bars, Workers(jobs) if jobs > 1 else nullcontext() as workers:
            for one in loaded:
                try:
                    rows[one.name] = run(one, size, results=results, progress=bars, workers=workers, **settings)
                except (Exception, SystemExit) as problem:
                    drawn[one.name] = _error(one.name, one.root, problem)
                else:
                    drawn |= {} if redraw else {one.name: draw(one.name, rows[one.name])}
        if redraw:
            # spawn: a fork would copy the compiled kernels' thread pool in an unusable state
            ignored = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # this process handles Ctrl-C
            with ProcessPoolExecutor(min(cores(), len(chosen)), get_context("spawn"), *ignored) as pool:
                try:
                    drawn |= dict(zip(rows, pool.map(draw, rows, rows.values()), strict=True))
                finally:
                    pool.shutdown(cancel_futures=True)  # after an interrupt
    written = {name: files for name, files in drawn.items() if not isinstance(files, str)}
    for name, files in written.items():
        stem = files.paths[0].with_suffix("").as_posix()
        typer.echo(f"\n{stem}.{{{','.join(path.suffix[1:] for path in files.paths)}}}: {files.state}")
        lines = []
        for claim in claims.on_page(name) if not changes else ():
            judged = claims.verdict_on(claim, files.record)
            verdict = judged.verdict if files.record.paper_size else "needs --full"
            lines.append((claim.claim, str(claim.criterion or ""), claims.number_of(judged), verdict))
        if lines:
            columns = ("claim", "criterion", "measured", "verdict")
            cli.print_table(f"{name} ({size}): claims and checks", columns, lines)
        if files.record.finding:
            typer.echo(files.record.finding)
    if written:
        states = Counter(sorted(files.state for files in written.values()))
        rewritten = ", ".join(name for name, files in written.items() if files.state == figures.REWRITTEN)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        counts += f" (rewritten: {rewritten})" * bool(rewritten)
        typer.echo(f"\n{len(written)} figure{'s' * (len(written) != 1)}: {counts}")
        paths = [files.paths[0].as_posix() for files in written.values()]
        typer.echo(f"Look at {', '.join(paths[:5])}{' ...' * (len(paths) > 5)}")
    errors = {name: error for name, error in drawn.items() if isinstance(error, str)}
    for error in errors.values():
        cli.note(f"fpemu: {error}")
    if errors:
        raise GuaranteeError(f"not drawn: {', '.join(errors)}; the next run tries failed cells again")


def _draw(
    root: Path, size: str, folder: Path, formats: list[str], redraw: bool, changes: Any, name: str, rows: Any
) -> Written | str:
    """Draw a figure; return its files, or the error of its page. A pool of processes calls this function."""
    try:
        return figures.write(pages.load(name, root).changed(changes), size, rows, folder, formats, redraw)
    except (Exception, SystemExit) as problem:
        return _error(name, root, problem)


def _error(name: str, root: Path, problem: BaseException) -> str:
    """The error of a figure, with file and line unless it is an InputError of its page or a CellError."""
    frames = traceback.extract_tb(problem.__traceback__)
    if isinstance(problem, OSError) and not any(Path(frame.filename).is_relative_to(root) for frame in frames):
        raise problem  # results cannot be stored or files not written: every further figure would have this error
    text = f"{type(problem).__name__}: {problem} ({frames[-1].filename}, line {frames[-1].lineno})"
    text = str(problem) if isinstance(problem, InputError | CellError) else text
    return " ".join(f"{'' if isinstance(problem, CellError) else f'{name}: '}{text}".split())


# --- ledger
def write_ledger(
    paper: Annotated[str | None, "[PAPER]", "Print the summary of one paper and write nothing."] = None,
    /,
    *,
    figures: Annotated[str, "Folder of the figures; its subfolder full contains the figures of full size."] = "figures",
    output: Annotated[str | None, "Folder for the ledger; default: the folder of the figures."] = None,
    check: Annotated[bool, "Write nothing; exit status 1 if the ledger or a record is out of date."] = False,
    experiments: str | None = None,
) -> None:
    """Write the ledger of published claims: LEDGER.md, LEDGER.csv and a page of details per paper in ledger/.

    The command reads the records of the figures that 'fpemu reproduce' has drawn, and evaluates nothing. If a figure
    exists at both sizes, the full size counts. With --check a record is out of date if it differs from the page's
    statements about the data of the figure, or if the page has other cells.
    """
    if not figures or not Path(figures).is_dir():
        raise InputError(f"there is no folder {figures!r}: 'fpemu reproduce' makes the figures")
    folder = Path(figures if output is None else output)
    collected = ledger.collect(figures)
    if paper is not None:
        chosen = collected.paper(paper)
        cli.print_table(chosen.title, ("claim", "verdict", "measured", "reason"), ledger.lines(collected, chosen))
        return
    if output is None and not any(Path(figures).rglob("*.json")):
        raise InputError(f"{figures!r} contains no record of a figure: 'fpemu reproduce' makes them")
    to_figures = Path(os.path.relpath(figures, folder)).as_posix()
    prefix = "" if to_figures == "." else f"{to_figures}/"
    contents = {"LEDGER.md": ledger.summary(collected, prefix), "LEDGER.csv": ledger.table(collected)}
    contents |= {f"ledger/{one.folder}.md": ledger.details(collected, one, f"../{prefix}") for one in collected.papers}
    if check:
        if outdated := ledger.stale(collected, figures):
            raise GuaranteeError(f"out of date: the records of {', '.join(outdated)}; run 'fpemu reproduce' for them")
        before = {name: (folder / name).read_bytes() for name in contents if (folder / name).is_file()}
        if stale := [name for name, content in contents.items() if before.get(name) != content]:
            raise GuaranteeError(f"out of date: {', '.join(stale)} in {folder}; run 'fpemu ledger'")
        typer.echo(f"The {len(contents)} files of the ledger in {folder} agree with the figures")
        return
    for name, content in contents.items():
        write_atomic(folder / name, content)
    counts = [(one.title, collected.counts(one)) for one in collected.papers]
    lines = [(title, *(str(numbers[verdict]) for verdict in claims.VERDICTS)) for title, numbers in counts if numbers]
    cli.print_table("claims by verdict", ("paper", *claims.VERDICTS), lines, numbers=len(claims.VERDICTS))
    typer.echo(f"{(folder / 'LEDGER.md').as_posix()}; 'fpemu ledger PAPER' prints the summary of a paper")
