"""``fpemu ledger``: every published claim and what was found, from the figures that are drawn."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import EXPERIMENTS, check_folder, console, table
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.reproduce.ledger import Ledger


def ledger(
    figures: Annotated[
        str, typer.Option("--figures", help="Folder of the figures; those of full size in 'full' under it.")
    ] = "figures",
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Folder for LEDGER.md and LEDGER.csv; default: the figures'.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Write nothing; exit status 1 if the files are not what the figures give, or these not what their "
            "pages say of their data.",
        ),
    ] = False,
    experiments: Annotated[str | None, EXPERIMENTS] = None,
) -> None:
    """Write the ledger of published claims, LEDGER.md and LEDGER.csv, from the data of the figures; show a summary.

    Nothing is evaluated: 'fpemu reproduce' draws the figures. Where one is there at both sizes, the full one counts.
    """
    from fpemu.files import write_atomic
    from fpemu.reproduce import ledger_text
    from fpemu.reproduce.ledger import collect
    from fpemu.reproduce.ledger import stale as outdated

    if not Path(figures).is_dir():
        raise InputError(f"there is no folder {figures!r}: 'fpemu reproduce' makes the figures")
    folder = Path(output if output is not None else figures)
    check_folder(figures if output is None else output)
    found = collect(figures)
    way = Path(os.path.relpath(figures, folder)).as_posix()
    contents = {
        "LEDGER.md": ledger_text.page(found, "" if way == "." else f"{way}/"),
        "LEDGER.csv": ledger_text.table(found),
    }
    if check:
        old = outdated(found, figures)
        if old:
            print(
                f"fpemu: not what the pages say of the data now: {', '.join(old)}: run 'fpemu reproduce' for them",
                file=sys.stderr,
            )
            raise typer.Exit(1)
        stale = [name for name, content in contents.items() if _bytes(folder / name) != content]
        if stale:
            print(
                f"fpemu: {' and '.join(stale)} in {folder} are not what the figures give: run 'fpemu ledger'",
                file=sys.stderr,
            )
            raise typer.Exit(1)
        print(f"{' and '.join(contents)} in {folder} are what the figures give")
        return
    for name, content in contents.items():
        write_atomic(folder / name, content)
    _show(found)
    print("\n".join((folder / name).as_posix() for name in contents))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _show(found: Ledger) -> None:
    from fpemu.reproduce.ledger import STATES

    shown = table("published claims", "figure", "claim", "published", "here", "verdict")
    shown.columns[0].no_wrap = shown.columns[-1].no_wrap = True  # the others wrap where the terminal is narrow
    for line in found.lines:
        if line.claim and line.page and line.state:
            shown.add_row(line.page, line.claim, line.published, line.ours, line.state)
        elif line.state and line.page:
            shown.add_row(line.page, f"(all: {line.command})", "", "", line.state)
    console().print(shown)
    counts = table("verdicts: claims of drawn figures, and items without one", "paper", *STATES, numbers=len(STATES))
    counts.columns[0].no_wrap = True
    for title, paper in [*((paper.title, paper) for paper in found.papers), ("all", None)]:
        of = found.counts(paper)
        counts.add_row(title, *(str(of[state]) for state in STATES))
    console().print(counts)
