"""``fpemu sweep FILE``: evaluate the cells of a grid that are not stored yet; options of every command that does so."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fpemu.cli.common import (
    DEVICE,
    JOBS,
    add_command,
    duration,
    note,
    parse_device,
    print_table,
    print_text,
    progress,
    resumable,
    show,
    with_options,
)
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.sweep import Grid, Store

_LINES = 60  # of the table of medians


class _Group(TyperGroup):
    """Take a first word that is no subcommand as a file: ``fpemu sweep FILE`` runs ``fpemu sweep run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    help="Evaluate the errors of schemes over a grid: 'fpemu sweep FILE'; 'fpemu sweep run -h' lists its options.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _sweep(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@dataclass(frozen=True)
class RunOptions:
    """Values of the options about running and exporting that `with_options` adds to a command."""

    jobs: Annotated[int | None, JOBS] = None
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor", "-e", help="processes (default) or dask; dask without --scheduler starts local workers."
        ),
    ] = None
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, such as tcp://host:8786.")
    ] = None
    worker_timeout: Annotated[
        float,
        typer.Option(
            "--worker-timeout", metavar="SECONDS", help="With Dask: seconds to wait for a worker if none is left."
        ),
    ] = 600.0
    device: Annotated[str, DEVICE] = "auto"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the cells and estimate the time.")] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Evaluate stored cells again.")] = False
    export: Annotated[
        list[str] | None,
        typer.Option("--export", metavar="OUT", help="Write all rows to OUT.csv or OUT.parquet; may be repeated."),
    ] = None

    def __post_init__(self) -> None:
        """Raise InputError for an executor, a device or a table to export that is not available."""
        from fpemu.sweep.run import check_executor
        from fpemu.sweep.tables import check_target

        check_executor(self.executor, None)  # a dry run needs no scheduler
        for target in self.export or []:
            check_target(target)
        self._device()

    def _device(self) -> Any:
        # the workers of a scheduler may be on machines with a GPU
        return self.device if self.scheduler is not None and self.device == "cuda" else parse_device(self.device)

    def resumable(self, command: list[str]) -> AbstractContextManager[None]:
        """After Ctrl-C print the command, given without these options, and exit with status 130."""
        return resumable([*command, *self._words()])

    def evaluate(self, grid: Grid) -> list[dict[str, Any]] | None:
        """Evaluate the missing cells, export the tables and return all rows; None after a dry run."""
        from fpemu.sweep import Store
        from fpemu.sweep.run import default_jobs, run
        from fpemu.sweep.tables import export

        with Store() as results:
            if self.dry_run:
                self._show_plan(grid, results)
                return None
            with progress() as bars:
                rows = run(
                    grid,
                    results=results,
                    jobs=self.jobs or default_jobs(),
                    executor=self.executor,
                    scheduler=self.scheduler,
                    worker_timeout=self.worker_timeout,
                    device=self._device(),
                    progress=bars,
                    keep_failures=True,
                    fresh=self.fresh,
                )
        for target in self.export or []:
            export(rows, target)
            note(f"wrote {target}: {len(rows)} rows")
        return rows

    def _show_plan(self, grid: Grid, results: Store) -> None:
        """Print the number of cells that a run would evaluate, and the estimated time."""
        from fpemu.sweep.run import check_memory, default_jobs, estimate, survey

        plan, jobs = survey(grid, "quick", results), self.jobs or default_jobs()
        plan = plan.afresh() if self.fresh else plan
        todo = plan.todo
        if self.scheduler is None:
            check_memory(grid, todo.values())
        again = sum(name in plan.failed_before for name in todo)
        counts = f"{len(plan.cells)} cells: {len(plan.stored)} stored, {len(todo)} to do"
        print_text(f"{grid.name}: {counts}" + (f", {again} of which failed before" if again else ""))
        print_text(f"results: {results.path}")
        if todo:
            seconds, basis = estimate(grid, plan, jobs, "auto" if self.scheduler else self._device())
            by = f" by {jobs} process{'es' * (jobs > 1)}"
            print_text(f"time: {basis}" if seconds is None else f"time: about {duration(seconds)}{by} ({basis})")

    def _words(self) -> list[str]:
        """The options about running and exporting that are not the default, as words of a command line."""
        values = {
            "--executor": self.executor,
            "--scheduler": self.scheduler,
            "--worker-timeout": None if self.worker_timeout == 600 else f"{self.worker_timeout:g}",
            "-j": self.jobs,
            "--device": None if self.device == "auto" else self.device,
        }
        words = [word for name, value in values.items() if value is not None for word in (name, str(value))]
        return words + [word for target in self.export or [] for word in ("--export", target)]


@with_options(RunOptions)
def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A grid: FILE.toml, or FILE.py with the variable GRID.")],
    *,
    options: RunOptions,
) -> None:
    """Evaluate the errors of every cell of a grid: inputs × sizes × seeds × schemes × hardware × orders.

    Finished cells are stored in .fpemu/cells.sqlite, or in the folder FPEMU_CACHE, and an interrupted run resumes
    from them. A failing cell does not stop the other cells; the exit status is then 1, and the next run evaluates
    the cell again.
    """
    from fpemu.sweep import Grid
    from fpemu.sweep.run import check_failures
    from fpemu.sweep.store import default_path

    if not file.endswith((".toml", ".py")) and not Path(file).exists():
        raise InputError(f"{file!r} is neither a file nor a command of 'fpemu sweep'")
    with options.resumable(["fpemu", "sweep", file]):
        grid = Grid.read(file)
        rows = options.evaluate(grid)
    if rows is None:
        return
    if not options.export:
        _medians(grid, rows)
    note(f"{len(rows)} cells, results in {default_path()}")
    check_failures(grid, rows)


def _medians(grid: Grid, rows: list[dict[str, Any]]) -> None:
    from fpemu.sweep.tables import medians

    metrics = grid.cells()[0]["metrics"]
    lines = medians(rows, metrics)
    shown = [(scheme, hardware, *map(show, values), str(count)) for scheme, hardware, values, count in lines[:_LINES]]
    columns = ("scheme", "hardware", *metrics, "cells")
    print_table(f"{grid.name}: median over cells", columns, shown, numbers=len(metrics) + 1)
    if len(lines) > _LINES:
        note(f"and {len(lines) - _LINES} more lines: --export writes all rows")


add_command(app, "run", run)
