"""The ledger: every claim with its verdict, from the claims and the records of the figures; nothing is evaluated.

Its pages of Markdown and its table have the same bytes from the same figures.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fpemu.errors import InputError, unknown_name
from fpemu.reproduce import claims, figures, pages
from fpemu.reproduce.claims import (
    CHECK_KINDS,
    CONDITION,
    DEPENDS,
    MET,
    UNDECIDED,
    VERDICTS,
    Case,
    Claim,
    Judgement,
    Paper,
    Record,
    number_of,
    shown,
    verdict_on,
)
from fpemu.reproduce.figures import committed, size_folder
from fpemu.sweep.store import canonical

_HEAD = """# Ledger

The main claims of each paper, each with the verdict of this project. `fpemu ledger` generates this page, with all its
numbers, from the records of the figures.

A range extends over the seeds and the cases of a claim. A claim *holds* or *does not hold* if all of at least 20 seeds
at the paper's size agree, and is *undecided* otherwise. It *holds under a stated condition* if it holds in some of its
cases only, or on an assumption; the row names the cases or the assumption. *Depends on* names a condition that the
paper leaves open and that determines the verdict. Speeds on other GPUs are *not testable here*; the numbers in these
rows are measurements on an H200, for information. *Goals* and *negative controls* (variants known to be unsuitable) are
checks of this project.
"""
_COLUMNS = ("claim", "verdict", "measured", "reason")
_SECTIONS = {"goal": "Goals of this project", "negative control": "Negative controls"}
_INTRODUCTIONS = {
    "goal": "Goals of this project; they are not claims of a paper.",
    "negative control": "Variants that are known to be unsuitable; *met* means that the data show this.",
}


@dataclass(frozen=True)
class Ledger:
    """The content of the ledger's pages."""

    papers: tuple[Paper, ...]
    """The papers and the folders of this project, in the ledger's order"""
    records: dict[str, Record]
    """The record of each drawn figure, by its name; of two sizes the full one"""
    judgements: dict[str, list[Judgement]]
    """The judged claims and checks of each paper, by its folder"""

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
        """Return the paper of a folder, or raise InputError."""
        known = {paper.folder: paper for paper in self.papers}
        if folder not in known:
            raise unknown_name("paper", folder, known)
        return known[folder]


def collect(folder: str = "figures") -> Ledger:
    """Collect the ledger of the figures in ``folder`` (quick) and ``folder/full``; of two sizes the full one counts.

    InputError if there is no ``paper.toml``, one or the record of a figure is broken, a figure is drawn that no
    ``paper.toml`` names, or a figure measures a number that no claim names.
    """
    papers = claims.papers()
    if not papers:
        raise InputError(f"there is no paper.toml in the folders of {pages.root()}")
    records: dict[str, Record] = {}
    listed = {page for paper in papers for page in paper.pages}
    named = {(claim.page, claim.name) for paper in papers for claim in (*paper.claims, *paper.checks)}
    for size in pages.SIZES:
        for path in sorted(size_folder(folder, size).glob("*/*.json")):
            if path.parent.name != "full":
                record, name = figures.load_record(path), f"{path.parent.name}/{path.stem}"
                if (record.figure, record.size) != (name, size):
                    raise InputError(f"{path} is the record of {record.figure} at {record.size} size")
                if name not in listed:
                    raise InputError(f"{name} is drawn, but no paper.toml names this page")
                for measure in record.measures:
                    if (name, measure.name) not in named:
                        raise InputError(f"{name} measures {measure.name}, but no claim of this page has this name")
                records[name] = record
    judgements = {
        paper.folder: [verdict_on(claim, records.get(claim.page)) for claim in (*paper.claims, *paper.checks)]
        for paper in papers
    }
    return Ledger(papers, records, judgements)


def stale(ledger: Ledger, folder: str = "figures") -> list[str]:
    """Return the figures whose data are not of the page's cells, or whose record the page would not write now."""
    names = []
    for name, record in ledger.records.items():
        figure = committed(name, record.size, folder)
        statements = figures.statements(figure.experiment, figure.size, figure.rows)
        cells = figure.experiment.cells(figure.size)
        drawn = [{key: row.get(key) for key in next(iter(cells), {})} for row in figure.rows]
        current = statements == {key: getattr(record, key) for key in statements}
        if not current or canonical(drawn) != canonical(cells):
            names.append(name)
    return names


# --- pages and the table
def table(ledger: Ledger) -> bytes:
    """LEDGER.csv: a row for each case of each claim and each check."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    cases = ("reading", "variant", "median", "smallest", "largest", "seeds", "criterion met", "verdict on the case")
    claims = ("paper", "name", "kind", "headline", "claim", "place", "quantity", "unit", "criterion", "figure", "size")
    writer.writerow([*claims, *cases, "verdict", "condition", "command"])
    for paper in ledger.papers:
        for one in ledger.judgements[paper.folder]:
            claim = one.claim
            head = [paper.folder, claim.name, claim.kind, claim.headline or "", claim.claim, claim.place]
            head += [claim.quantity, claim.unit, claim.criterion.text if claim.criterion else "", claim.page, one.size]
            command = ledger.records[claim.page].command if claim.page in ledger.records else ""
            rows: list[list[Any]] = [[""] * len(cases)] if not one.cases else []
            for case in one.cases:
                numbers = [f"{value:.9g}" for value in (case.median, min(case.values), max(case.values))]
                met = case.met(claim) if claim.judged else ""
                rows.append([case.reading, case.variant, *numbers, case.seeds or "", met, case.verdict])
            writer.writerows([*head, *row, _verdict(one), one.note, command] for row in rows)
    return text.getvalue().encode()


def summary(ledger: Ledger, figures: str = "") -> bytes:
    """LEDGER.md: the summary of each paper, and the number of claims by verdict.

    ``figures`` is the path from the page's folder to the figures: empty, or ending in a slash.
    """
    parts = [_HEAD]
    for paper in ledger.papers:
        if paper.headlines:
            parts += [f"## {_escape(paper.title)}", f"{_escape(paper.source)} [All claims](ledger/{paper.folder}.md)"]
            parts.append(_table(_COLUMNS, [_row(one, ledger, figures) for one in ledger.headlines(paper)]))
    parts += ["## All claims by verdict", _counts(ledger), "[Table of every number](LEDGER.csv)"]
    return _join(parts)


def lines(ledger: Ledger, paper: Paper) -> list[tuple[str, str, str, str]]:
    """Return the rows of a paper's summary as plain text: claim, verdict, number, and cause or missing data."""
    rows = []
    for one in ledger.headlines(paper):
        missing = one.note if one.claim.page in ledger.records else f"the figure {one.claim.page} is not drawn"
        reason = (missing if one.verdict == UNDECIDED else "") or one.claim.why
        rows.append((one.claim.claim, _verdict(one), number_of(one), reason))
    return rows


def _row(one: Judgement, ledger: Ledger, figures: str) -> list[str]:
    claim = _escape(one.claim.claim)
    if one.claim.page in ledger.records:
        claim = f"[{claim}]({_image(ledger, one.claim.page, figures)})"
    verdict = f"**{_escape(_verdict(one))}**"
    if one.verdict == CONDITION:
        verdict += f": {_escape(_short(one.note))}"
    numbers = number_of(one)
    here = f"{one.claim.quantity}: {numbers}" if numbers and one.claim.quantity else numbers
    return [claim, verdict, _escape(here), _escape(one.claim.why)]


def _short(text: str, most: int = 150) -> str:
    """A condition for the summary; of a long one its beginning."""
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0].rstrip(',;.')} … (see all claims)"


def _verdict(one: Judgement) -> str:
    if one.claim.kind in CHECK_KINDS:
        return MET.get(one.verdict, one.verdict)
    return f"depends on: {one.claim.readings}" if one.verdict == DEPENDS and one.claim.readings else one.verdict


def _counts(ledger: Ledger) -> str:
    rows = []
    for paper in ledger.papers:
        counts = ledger.counts(paper)
        checks = [_met(ledger.checks(paper, kind)) for kind in CHECK_KINDS]
        rows.append(
            [f"[{_escape(paper.title)}](ledger/{paper.folder}.md)", *(str(counts[v]) for v in VERDICTS), *checks]
        )
    return _table(["paper", *VERDICTS, "goals met", "negative controls met"], rows)


def _met(checks: list[Judgement]) -> str:
    return f"{sum(_verdict(one) == 'met' for one in checks)} of {len(checks)}" if checks else ""


def details(ledger: Ledger, paper: Paper, figures: str = "../") -> bytes:
    """Page of a paper: each claim with its numbers, the inventory, the checks, and the assumptions of the figures."""
    parts = [f"# {_escape(paper.title)}", _escape(paper.source), "[Summary of all papers](../LEDGER.md)"]
    claims = [one for one in ledger.judgements[paper.folder] if one.claim in paper.claims]
    claims.sort(key=lambda one: one.claim.headline or len(claims) + 1)
    if claims:
        parts.append("## Claims")
        for one in claims:
            parts += _claim(one, ledger, figures)
    if paper.items:
        parts += ["## Inventory", _inventory(paper, ledger, figures)]
    for kind in CHECK_KINDS:
        checks = ledger.checks(paper, kind)
        if checks:
            rows = [
                [*_row(one, ledger, figures)[:3], _escape(_criterion(one.claim)), _escape(one.claim.why)]
                for one in checks
            ]
            head = ("check", "verdict", "measured", "criterion", "reason")
            parts += [f"## {_SECTIONS[kind]}", _INTRODUCTIONS[kind], _table(head, rows)]
    parts += _figures(ledger, paper, figures)
    return _join(parts)


def _claim(one: Judgement, ledger: Ledger, figures: str) -> list[str]:
    claim = one.claim
    verdict = _escape(_verdict(one)) if one.verdict else "definition"
    parts = [f"### {_escape(claim.claim)} ({verdict})"]
    if claim.quote:
        parts.append(f"> {_escape(claim.quote)} ({_escape(claim.place)})")
    entries = [
        ("Given", claim.given),
        ("Left open by the paper", claim.unstated),
        ("Measured", claim.quantity),
        ("Criterion", _criterion(claim)),
        ("Verdict", one.note and f"{_verdict(one)}: {one.note}"),
        ("Reason", claim.why),
    ]
    parts.append("\n".join(f"- {name}: {_escape(text)}" for name, text in entries if text))
    if one.cases:
        rows = [[_escape(text) for text in _case(claim, case)] for case in one.cases]
        parts.append(_table(("case", "median", "smallest to largest", "seeds", "verdict"), rows))
    if claim.page in ledger.records:
        text = f"[Figure]({_image(ledger, claim.page, figures)}), `{ledger.records[claim.page].command}`"
        if claim.explained in ledger.records:
            text += f"; explained by [{claim.explained}]({_image(ledger, claim.explained, figures)})"
        parts.append(text)
    return parts


def _case(claim: Claim, case: Case) -> list[str]:
    spread = shown(case.values, claim.unit) if len(case.values) > 1 else ""
    met = f" (criterion met at {case.met(claim)} of {len(case.values)})" if case.verdict == UNDECIDED else ""
    return [case.label, shown([case.median], claim.unit), spread, str(case.seeds or ""), f"{case.verdict}{met}"]


def _criterion(claim: Claim) -> str:
    unit = f" {claim.unit}" if claim.unit and claim.unit != "×" else claim.unit
    return f"{claim.criterion}{unit}" if claim.criterion else ""


def _inventory(paper: Paper, ledger: Ledger, figures: str) -> str:
    rows = []
    for item in paper.items:
        pages = [
            f"[{page}]({_image(ledger, page, figures)})" if page in ledger.records else page for page in item.pages
        ]
        status = item.status if item.status == "reproduced" else f"{item.status}: {item.note}"
        rows.append([_escape(item.item), _escape(item.what), _escape(status), ", ".join(pages)])
    return _table(("item", "content", "status", "figures"), rows)


def _figures(ledger: Ledger, paper: Paper, figures: str) -> list[str]:
    """The findings of a paper's figures, and the assumptions, a list that several figures share once."""
    parts, groups = [], {}  # type: ignore[var-annotated]
    for page in paper.pages:
        if page in ledger.records:
            record = ledger.records[page]
            if record.finding:
                parts.append(f"- [{page}]({_image(ledger, page, figures)}): {_escape(record.finding)}")
            groups.setdefault(tuple(record.assumptions), []).append(f"`{page}`")
    text = ["## Findings of the figures", "\n".join(parts)] if parts else []
    text += ["## Assumptions"] if any(groups) else []
    for assumptions, sharing in groups.items():
        if assumptions:
            text += [f"{', '.join(sharing)}:", "\n".join(f"- {_escape(one)}" for one in assumptions)]
    return text


def _image(ledger: Ledger, name: str, figures: str) -> str:
    return f"{figures}{'full/' * (ledger.records[name].size == 'full')}{name}.png"


def _join(parts: Iterable[str]) -> bytes:
    return ("\n\n".join(part.strip("\n") for part in parts) + "\n").encode()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    # a bar within a cell would end it, even inside a formula or code
    body = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in body)


def _escape(text: str) -> str:
    """Escape Markdown's markup in a text; formulas between dollars stay as they are."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(text.split()))
    return "".join(part if index % 2 else _escape_words(part) for index, part in enumerate(parts))


def _escape_words(text: str) -> str:
    text = re.sub(r"([\\*`~$\[\]])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)  # an underscore within a word is no markup
