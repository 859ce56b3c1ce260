"""The options of the commands that evaluate the cells of a grid, and the run with them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import DEVICE, JOBS, duration, note, parse_device, print_text, progress, resumable, with_options

if TYPE_CHECKING:
    from fpemu.sweep import Grid, Store


@dataclass(frozen=True)
class RunOptions:
    """Values of the options that `with_run_options` adds to a command."""

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
        from fpemu.errors import unknown_name
        from fpemu.sweep.run import EXECUTORS
        from fpemu.sweep.tables import check_target

        if self.executor is not None and self.executor not in EXECUTORS:
            raise unknown_name("executor", self.executor, EXECUTORS)
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


with_run_options = with_options(RunOptions)
