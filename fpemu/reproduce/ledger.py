"""The ledger: every published claim with what was found, read from the JSON of drawn figures; nothing is evaluated."""

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
"""What a row of the ledger can come to."""


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
    """One of :data:`STATES`; empty for a check of our own and for a page without a published claim"""
    command: str
    own: str = ""
    """The verdict on a check of our own, which no paper claims"""
    spread: dict[str, Any] = field(default_factory=dict)
    explained: tuple[str, ...] = ()
    """The pages that say why the claim fails"""


@dataclass(frozen=True)
class Ledger:
    """Everything that LEDGER.md and LEDGER.csv say."""

    papers: tuple[Paper, ...]
    records: dict[str, dict[str, Any]]
    """By page, the JSON of the figures that are there; the full one where there are two"""
    lines: tuple[Line, ...]

    def of(self, paper: Paper) -> list[Line]:
        return [line for line in self.lines if line.paper == paper.folder]

    def counts(self, paper: Paper | None = None) -> Counter[str]:
        """How many rows of a paper, or of all, are in each state."""
        return Counter(line.state for line in (self.lines if paper is None else self.of(paper)) if line.state)

    @property
    def failed(self) -> list[Line]:
        return [line for line in self.lines if line.state == FAILS]


def collect(folder: str = "figures") -> Ledger:
    """The ledger of the figures in ``folder`` (quick) and ``folder/full``; full wins where both are.

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
        raise InputError(f"{path} speaks of {record['figure']} at {record['size']} size")
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
    """The figures whose record does not say what the page says of the data now, or whose data were changed."""
    found = []
    for name, record in ledger.records.items():
        made = committed(name, record["size"], folder)
        said = figures.statements(made.experiment, made.size, made.rows)
        if json.loads(json.dumps(said)) != {key: record.get(key) for key in said}:
            found.append(name)
    return found


def _lines(paper: Paper, records: dict[str, dict[str, Any]]) -> list[Line]:
    """The rows of a paper: in the order of its items, the claims of each page where the page comes first."""
    found: list[Line] = []
    for item in (*paper.items, *paper.extras):
        if not item.pages:
            state = ELSEWHERE if set(item.kind) <= set("GA + ") else OPEN
            found.append(Line(paper.folder, item.item, "", "", item.what, "", item.why, state, ""))
        for page in item.pages:
            if page not in {line.page for line in found}:
                found += _page(paper, page, records)
    return found


def _page(paper: Paper, page: str, records: dict[str, dict[str, Any]]) -> list[Line]:
    item = paper.shown_by(page)
    if page not in records:
        return [Line(paper.folder, item, page, "", "", "", "", MISSING, f"fpemu reproduce {page}")]
    record = records[page]
    size, command = record["size"], record["command"]
    if not record["claims"]:
        return [Line(paper.folder, item, page, size, "", "", "", "", command)]
    found = []
    for claim in record["claims"]:
        published, verdict = claim["published"], claim["verdict"]
        line = Line(
            paper.folder,
            item,
            page,
            size,
            claim["claim"],
            published,
            claim["measured"],
            verdict if published else "",
            command,
            "" if published else verdict,
            claim.get("spread") or {},
            tuple(explaining(page, claim["claim"], records)) if published and verdict == FAILS else (),
        )
        found.append(line)
    return found


def explaining(page: str, claim: str, records: dict[str, dict[str, Any]]) -> list[str]:
    """The pages that say why a claim of ``page`` fails."""
    found = []
    for name, record in records.items():
        words = record.get("explains", {}).get(page)
        if words is not None and record.get("finding") and (not words or any(word in claim for word in words)):
            found.append(name)
    return sorted(found)
