"""``fpemu sweep FILE``: evaluate the cells of a grid that are not stored yet, and export them as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fpemu.cli import planes
from fpemu.cli.common import add_command, note, print_table, show
from fpemu.cli.run_options import RunOptions, with_run_options
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.sweep import Grid

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


@with_run_options
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


for _name, _command in (("run", run), ("scaling", planes.scaling), ("plane", planes.plane)):
    add_command(app, _name, _command)
