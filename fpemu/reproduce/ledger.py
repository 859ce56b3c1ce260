"""The ledger: every claim with its verdict, from the claims and the records of the figures; nothing is evaluated."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpemu.errors import InputError, unknown_name
from fpemu.reproduce import experiments, figures, papers
from fpemu.reproduce.papers import Paper
from fpemu.reproduce.reproduction import committed, size_folder
from fpemu.reproduce.verdicts import Judgement, verdict_on
from fpemu.sweep.store import canonical


@dataclass(frozen=True)
class Ledger:
    """The content of the ledger's pages.

    Attributes
    ----------
    papers : tuple of Paper
        The papers and the folders of this project, in the ledger's order.
    records : dict
        The record of each drawn figure, by its name; of two sizes the full one.
    judgements : dict
        The judged claims and checks of each paper, by its folder.
    """

    papers: tuple[Paper, ...]
    records: dict[str, dict[str, Any]]
    judgements: dict[str, list[Judgement]]

    def claims(self, paper: Paper) -> list[Judgement]:
        """Return the judged claims of a paper, without definitions."""
        return [one for one in self.judgements[paper.folder] if one.claim in paper.claims and one.verdict]

    def checks(self, paper: Paper, kind: str) -> list[Judgement]:
        """Return the judged checks of a kind."""
        return [one for one in self.judgements[paper.folder] if one.claim.kind == kind]

    def headlines(self, paper: Paper) -> list[Judgement]:
        """Return the judged claims of the paper's summary, in its order."""
        by_name = {one.claim.name: one for one in self.judgements[paper.folder]}
        return [by_name[claim.name] for claim in paper.headlines]

    def counts(self, paper: Paper) -> Counter[str]:
        """Return the number of claims of a paper with each verdict."""
        return Counter(one.verdict for one in self.claims(paper))

    def paper(self, folder: str) -> Paper:
        """Return the paper of a folder.

        Raises
        ------
        InputError
            If there is no such folder.
        """
        known = {paper.folder: paper for paper in self.papers}
        if folder not in known:
            raise unknown_name("paper", folder, known)
        return known[folder]


def collect(folder: str = "figures") -> Ledger:
    """Collect the ledger of the figures in ``folder`` (quick) and ``folder/full``; of two sizes the full one counts.

    Parameters
    ----------
    folder : str
        Folder of the figures.

    Returns
    -------
    Ledger

    Raises
    ------
    InputError
        If there is no ``paper.toml``, one or the record of a figure is broken, a figure is drawn that no ``paper.toml``
        names, or a figure measures a number that no claim names.
    """
    read = papers.read()
    if not read:
        raise InputError(f"there is no paper.toml in the folders of {experiments.root()}")
    records: dict[str, dict[str, Any]] = {}
    for size in experiments.SIZES:
        for path in sorted(size_folder(folder, size).glob("*/*.json")):
            if path.parent.name != "full":
                records[f"{path.parent.name}/{path.stem}"] = _record(path, size)
    _check_names(read, records)
    judgements = {
        paper.folder: [verdict_on(claim, records.get(claim.page)) for claim in (*paper.claims, *paper.checks)]
        for paper in read
    }
    return Ledger(read, records, judgements)


def _record(path: Path, size: str) -> dict[str, Any]:
    record, name = figures.load_record(path), f"{path.parent.name}/{path.stem}"
    if (record["figure"], record["size"]) != (name, size):
        raise InputError(f"{path} is the record of {record['figure']} at {record['size']} size")
    return record


def _check_names(read: tuple[Paper, ...], records: dict[str, dict[str, Any]]) -> None:
    pages = {page for paper in read for page in paper.pages}
    claims = {(claim.page, claim.name) for paper in read for claim in (*paper.claims, *paper.checks)}
    for page, record in records.items():
        if page not in pages:
            raise InputError(f"{page} is drawn, but no paper.toml names this page")
        for measure in record["measures"]:
            if (page, measure["name"]) not in claims:
                raise InputError(f"{page} measures {measure['name']}, but no claim of this page has this name")


def stale(ledger: Ledger, folder: str = "figures") -> list[str]:
    """Return the figures whose data were changed or are not of the page's cells, or whose record is out of date.

    A record is out of date if it differs from the page's statements about the data.

    Parameters
    ----------
    ledger : Ledger
        From `collect`.
    folder : str
        Folder of the figures.

    Returns
    -------
    list of str
        Names of the figures.
    """
    names = []
    for name, record in ledger.records.items():
        figure = committed(name, record["size"], folder)
        statements = figures.statements(figure.experiment, figure.size, figure.rows)
        cells = figure.experiment.cells(figure.size)
        drawn = [{key: row.get(key) for key in next(iter(cells), {})} for row in figure.rows]
        current = json.loads(json.dumps(statements)) == {key: record.get(key) for key in statements}
        if not current or canonical(drawn) != canonical(cells):
            names.append(name)
    return names
