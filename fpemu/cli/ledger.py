"""``fpemu ledger``: every published claim and its verdict, from the records of the drawn figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import EXPERIMENTS, check_folder, note, print_table
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.reproduce.claims import Paper
    from fpemu.reproduce.ledger import Ledger


def ledger(
    paper: Annotated[
        str | None, typer.Argument(metavar="[PAPER]", help="Print the summary of one paper and write nothing.")
    ] = None,
    figures: Annotated[
        str,
        typer.Option("--figures", help="Folder of the figures; its subfolder full contains the figures of full size."),
    ] = "figures",
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Folder for the ledger; default: the folder of the figures.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit status 1 if the ledger or a record is out of date.")
    ] = False,
    experiments: Annotated[str | None, EXPERIMENTS] = None,
) -> None:
    """Write the ledger of published claims: LEDGER.md, LEDGER.csv and a page of details for each paper in ledger/.

    The command reads the records of the figures that 'fpemu reproduce' has drawn, and evaluates nothing. If a figure
    exists at both sizes, the full size counts. With --check a record is out of date if it differs from the page's
    statements about the data of the figure, or if the page has other cells.
    """
    from fpemu.files import write_atomic
    from fpemu.reproduce import ledger as ledgers

    if not Path(figures).is_dir():
        raise InputError(f"there is no folder {figures!r}: 'fpemu reproduce' makes the figures")
    folder = Path(output if output is not None else figures)
    check_folder(figures if output is None else output)
    collected = ledgers.collect(figures)
    if paper is not None:
        _show_paper(collected, collected.paper(paper))
        return
    contents = _contents(collected, figures, folder)
    if check:
        outdated = ledgers.stale(collected, figures)
        if outdated:
            _fail(f"out of date: the records of {', '.join(outdated)}; run 'fpemu reproduce' for them")
        stale = [name for name, content in contents.items() if _bytes(folder / name) != content]
        if stale:
            _fail(f"out of date: {', '.join(stale)} in {folder}; run 'fpemu ledger'")
        print(f"The {len(contents)} files of the ledger in {folder} agree with the figures")
        return
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, content)
    _show(collected)
    print(f"{(folder / 'LEDGER.md').as_posix()}; 'fpemu ledger PAPER' prints the summary of a paper")


def _contents(collected: Ledger, figures: str, folder: Path) -> dict[str, bytes]:
    """The files of the ledger, with paths relative to its folder."""
    from fpemu.reproduce import ledger

    to_figures = Path(os.path.relpath(figures, folder)).as_posix()
    prefix = "" if to_figures == "." else f"{to_figures}/"
    pages = {
        f"ledger/{paper.folder}.md": ledger.details(collected, paper, f"../{prefix}") for paper in collected.papers
    }
    return {"LEDGER.md": ledger.summary(collected, prefix), "LEDGER.csv": ledger.table(collected), **pages}


def _fail(message: str) -> None:
    note(f"fpemu: {message}")
    raise typer.Exit(1)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _show_paper(collected: Ledger, paper: Paper) -> None:
    from fpemu.reproduce import ledger

    print_table(paper.title, ("claim", "verdict", "measured", "reason"), ledger.lines(collected, paper))


def _show(collected: Ledger) -> None:
    from fpemu.reproduce.claims import VERDICTS

    counts = [(paper.title, collected.counts(paper)) for paper in collected.papers]
    rows = [(title, *(str(numbers[verdict]) for verdict in VERDICTS)) for title, numbers in counts if numbers]
    print_table("claims by verdict", ("paper", *VERDICTS), rows, numbers=len(VERDICTS))
