"""``fpemu ledger``: every published claim and its verdict, from the records of the drawn figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import EXPERIMENTS, check_folder, console, note, table
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
        bool, typer.Option("--check", help="Write nothing; exit status 1 if the ledger or a record is out of date.")
    ] = False,
    experiments: Annotated[str | None, EXPERIMENTS] = None,
) -> None:
    """Write the ledger of published claims, LEDGER.md and LEDGER.csv, from the data of the figures, and a summary.

    Nothing is evaluated: 'fpemu reproduce' draws the figures. Of a figure drawn at both sizes, the full one counts.
    With --check a record is out of date if the page's statements about the data of its figure differ from it.
    """
    from fpemu.files import write_atomic
    from fpemu.reproduce import ledger as ledgers
    from fpemu.reproduce import ledger_text

    if not Path(figures).is_dir():
        raise InputError(f"there is no folder {figures!r}: 'fpemu reproduce' makes the figures")
    folder = Path(output if output is not None else figures)
    check_folder(figures if output is None else output)
    collected = ledgers.collect(figures)
    to_figures = Path(os.path.relpath(figures, folder)).as_posix()
    contents = {
        "LEDGER.md": ledger_text.page(collected, "" if to_figures == "." else f"{to_figures}/"),
        "LEDGER.csv": ledger_text.table(collected),
    }
    if check:
        outdated = ledgers.stale(collected, figures)
        if outdated:
            _fail(f"out of date: the records of {', '.join(outdated)}; run 'fpemu reproduce' for them")
        stale = [name for name, content in contents.items() if _bytes(folder / name) != content]
        if stale:
            _fail(f"out of date: {' and '.join(stale)} in {folder}; run 'fpemu ledger'")
        print(f"{' and '.join(contents)} in {folder} agree with the figures")
        return
    for name, content in contents.items():
        write_atomic(folder / name, content)
    _show(collected)
    print("\n".join((folder / name).as_posix() for name in contents))


def _fail(message: str) -> None:
    note(f"fpemu: {message}")
    raise typer.Exit(1)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _show(ledger: Ledger) -> None:
    from fpemu.reproduce.ledger import STATES

    claims = table("published claims", "figure", "claim", "published", "here", "verdict")
    claims.columns[0].no_wrap = claims.columns[-1].no_wrap = True  # the others wrap where the terminal is narrow
    for line in ledger.lines:
        if line.claim and line.page and line.state:
            claims.add_row(line.page, line.claim, line.published, line.ours, line.state)
        elif line.state and line.page:
            claims.add_row(line.page, f"(all: {line.command})", "", "", line.state)
    console().print(claims)
    counts = table("verdicts: claims of drawn figures, and items without one", "paper", *STATES, numbers=len(STATES))
    counts.columns[0].no_wrap = True
    for title, paper in [*((paper.title, paper) for paper in ledger.papers), ("all", None)]:
        numbers = ledger.counts(paper)
        counts.add_row(title, *(str(numbers[state]) for state in STATES))
    console().print(counts)
