"""The ledger: every published claim with its verdict, read from the records of drawn figures; nothing is evaluated."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.reproduce import experiments, figures, inventory
from fpemu.reproduce.claims import FAILS, OPEN, VERDICTS
from fpemu.reproduce.inventory import Paper
from fpemu.reproduce.reproduction import committed, size_folder

MISSING, ELSEWHERE = "not drawn yet", "needs other hardware"
STATES = (*VERDICTS, MISSING, ELSEWHERE)
"""The possible states of a row of the ledger."""


@dataclass(frozen=True)
class Line:
    """A row of the ledger: a claim, or a page or an item without one."""

    paper: str
    item: str
    page: str
    size: str
    claim: str
    published: str
    ours: str
    state: str
    """One of :data:`STATES`; empty for a further check and for a page without a published claim"""
    command: str
    check: str = ""
    """The verdict on a further check, which no paper claims"""
    spread: dict[str, Any] = field(default_factory=dict)
    explained: tuple[str, ...] = ()
    """The pages that explain why the claim fails"""


@dataclass(frozen=True)
class Ledger:
    """The content of LEDGER.md and LEDGER.csv."""

    papers: tuple[Paper, ...]
    records: dict[str, dict[str, Any]]
    """The record of each drawn page; of two sizes the full one"""
    lines: tuple[Line, ...]

    def of(self, paper: Paper) -> list[Line]:
        return [line for line in self.lines if line.paper == paper.folder]

    def counts(self, paper: Paper | None = None) -> Counter[str]:
        """The number of rows of a paper, or of all, in each state."""
        return Counter(line.state for line in (self.lines if paper is None else self.of(paper)) if line.state)

    @property
    def failed(self) -> list[Line]:
        return [line for line in self.lines if line.state == FAILS]


def collect(folder: str = "figures") -> Ledger:
    """Collect the ledger of the figures in ``folder`` (quick) and ``folder/full``; of two sizes the full one counts.

    Raises
    ------
    InputError
        If the inventory or the JSON of a figure is broken, or a figure is drawn that the inventory does not name.
    """
    papers = inventory.read()
    records: dict[str, dict[str, Any]] = {}
    named = {page for paper in papers for page in paper.pages}
    for size in experiments.SIZES:
        where = size_folder(folder, size)
        for path in sorted(where.glob("*/*.json")):
            name = f"{path.parent.name}/{path.stem}"
            if size == "quick" and path.parent.name == "full":
                continue
            records[name] = _record(path, name, size)
            if name not in named:
                raise InputError(f"{path}: {experiments.root() / 'items.toml'} does not name {name}")
    lines = [line for paper in papers for line in _lines(paper, records)]
    return Ledger(papers, records, tuple(lines))


def _record(path: Path, name: str, size: str) -> dict[str, Any]:
    record = figures.load_record(path)
    if (record["figure"], record["size"]) != (name, size):
        raise InputError(f"{path} is the record of {record['figure']} at {record['size']} size")
    for claim in record["claims"]:
        if claim["verdict"] not in VERDICTS:
            raise InputError(f"{path}: the verdict {claim['verdict']!r} is none of {', '.join(VERDICTS)}")
        spread = claim.get("spread")
        if spread is not None and not (isinstance(spread, dict) and isinstance(spread.get("text"), str)):
            raise InputError(f"{path}: the spread of {claim['claim']!r} is not one")
    explains = record.get("explains", {})
    if not (isinstance(explains, dict) and all(map(_are_words, explains.values()))):
        raise InputError(f"{path}: explains is not a mapping from figures to lists of words")
    if not isinstance(record.get("finding"), str | None):
        raise InputError(f"{path}: finding is not a text")
    return record


def _are_words(words: Any) -> bool:
    return isinstance(words, list) and all(isinstance(word, str) for word in words)


def stale(ledger: Ledger, folder: str = "figures") -> list[str]:
    """The figures whose data were changed, or whose record differs from the page's statements about the data."""
    names = []
    for name, record in ledger.records.items():
        figure = committed(name, record["size"], folder)
        statements = figures.statements(figure.experiment, figure.size, figure.rows)
        if json.loads(json.dumps(statements)) != {key: record.get(key) for key in statements}:
            names.append(name)
    return names


def _lines(paper: Paper, records: dict[str, dict[str, Any]]) -> list[Line]:
    """The rows of a paper in the order of its items; each page once, at its first item."""
    lines: list[Line] = []
    for item in (*paper.items, *paper.extras):
        if not item.pages:
            state = ELSEWHERE if set(item.kind) <= set("GA + ") else OPEN
            lines.append(Line(paper.folder, item.item, "", "", item.what, "", item.why, state, ""))
        for page in item.pages:
            if page not in {line.page for line in lines}:
                lines += _page(paper, page, records)
    return lines


def _page(paper: Paper, page: str, records: dict[str, dict[str, Any]]) -> list[Line]:
    item = paper.shown_by(page)
    if page not in records:
        return [Line(paper.folder, item, page, "", "", "", "", MISSING, f"fpemu reproduce {page}")]
    record = records[page]
    head, command = (paper.folder, item, page, record["size"]), record["command"]
    lines = []
    for claim in record["claims"]:
        text, published, verdict, spread = (
            claim["claim"],
            claim["published"],
            claim["verdict"],
            claim.get("spread") or {},
        )
        if published:
            reasons = tuple(explaining(page, text, records)) if verdict == FAILS else ()
            lines.append(Line(*head, text, published, claim["measured"], verdict, command, "", spread, reasons))
        else:
            lines.append(Line(*head, text, "", claim["measured"], "", command, verdict, spread))
    return lines or [Line(*head, "", "", "", "", command)]


def explaining(page: str, claim: str, records: dict[str, dict[str, Any]]) -> list[str]:
    """The pages that explain why a claim of ``page`` fails."""
    return sorted(
        name
        for name, record in records.items()
        if page in record.get("explains", {}) and record.get("finding")
        for words in [record["explains"][page]]
        if not words or any(word in claim for word in words)
    )
