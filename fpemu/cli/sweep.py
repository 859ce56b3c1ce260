"""``fpemu sweep FILE``: evaluate the cells of a grid that are not stored yet, and export them as a table."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fpemu.cli import planes
from fpemu.cli.common import WORKER_TIMEOUT, console, note, progress, show, show_plan, table
from fpemu.cli.map_arguments import DEVICE, parse_device
from fpemu.errors import InputError, unknown_name

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
    help="Errors over a grid of cells: fpemu sweep FILE [OPTIONS], 'fpemu sweep run -h' lists them.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _sweep(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("run")
def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A grid: FILE.toml, or FILE.py that binds GRID.")],
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor", "-e", help="processes (default) or dask; dask without --scheduler starts workers here."
        ),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, such as tcp://host:8786.")
    ] = None,
    worker_timeout: Annotated[float, WORKER_TIMEOUT] = 600,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, max=256, help="Local processes; default: one a core, at most 4."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help=DEVICE)] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the cells and estimate the time.")] = False,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", metavar="OUT", help="Write all rows to OUT.csv or OUT.parquet; may be repeated."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Evaluate stored cells again.")] = False,
) -> None:
    """Evaluate every cell of a grid: inputs × sizes × seeds × schemes × hardware × orders, the errors of each.

    Finished cells are stored in .fpemu/results.sqlite (or $FPEMU_CACHE): an interrupted run continues from them. A
    cell that fails does not stop the others; the exit status is then 1, and the next run evaluates it again.
    """
    from fpemu import devices
    from fpemu.sweep import Grid, Store
    from fpemu.sweep.export import check_target
    from fpemu.sweep.run import EXECUTORS, default_jobs, survey

    if executor is not None and executor not in EXECUTORS:
        raise unknown_name("executor", executor, EXECUTORS)
    targets = export or []
    for target in targets:
        check_target(target)
    if not file.endswith((".toml", ".py")) and not Path(file).exists():
        raise InputError(f"{file!r} is neither a file nor a command of 'fpemu sweep'")
    count, where = jobs or default_jobs(), parse_device(device, scheduler)
    try:
        grid = Grid.read(file)
        with Store() as results:
            if dry_run:
                plan = survey(grid, "quick", results)
                with devices.on(where if scheduler is None else "auto"):
                    show_plan(grid, plan if not fresh else plan.afresh(), results, count)
                return
            _run(
                grid,
                results,
                targets,
                jobs=count,
                executor=executor,
                scheduler=scheduler,
                device=where,
                fresh=fresh,
                worker_timeout=worker_timeout,
            )
    except KeyboardInterrupt:
        again = ["fpemu", "sweep", file]
        chosen = None if device == "auto" else device
        limit = None if worker_timeout == 600 else f"{worker_timeout:g}"
        given = [("--executor", executor), ("--scheduler", scheduler), ("--worker-timeout", limit), ("-j", jobs)]
        for name, value in (*given, ("--device", chosen)):
            again += [name, str(value)] if value is not None else []
        for target in targets:
            again += ["--export", target]
        print(
            f"fpemu: interrupted; what is finished is kept: '{shlex.join(again)}' goes on from there", file=sys.stderr
        )
        raise typer.Exit(130) from None


def _run(grid: Grid, results: Store, targets: list[str], **how: Any) -> None:
    from fpemu.sweep.export import export
    from fpemu.sweep.run import failure, run

    with progress() as bars:
        rows = run(grid, results=results, progress=bars, keep_failures=True, **how)
    for target in targets:
        export(rows, target)
        note(f"wrote {target}: {len(rows)} rows")
    if not targets:
        _medians(grid, rows)
    note(f"{len(rows)} cells, results in {results.path}")
    failed = [(cell, row["error"]) for cell, row in zip(grid.cells(), rows, strict=True) if "error" in row]
    if failed:
        raise failure(grid.name, failed, len(rows))


def _medians(grid: Grid, rows: list[dict[str, Any]]) -> None:
    from fpemu.sweep.export import medians

    metrics = grid.cells()[0]["metrics"]
    shown = table(f"{grid.name}: median over cells", "scheme", "hardware", *metrics, "cells", numbers=len(metrics) + 1)
    lines = medians(rows, metrics)
    for scheme, hardware, middle, count in lines[:_LINES]:
        shown.add_row(scheme, hardware, *[show(value) for value in middle], str(count))
    console().print(shown)
    if len(lines) > _LINES:
        note(f"and {len(lines) - _LINES} more lines: --export writes all rows")


app.command("scaling")(planes.scaling)
app.command("plane")(planes.plane)
