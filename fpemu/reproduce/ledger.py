"""The ledger: every claim with its verdict, from the claims and the records of the figures; nothing is evaluated.

Its pages of Markdown and its table have the same bytes from the same figures.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fpemu.errors import InputError, unknown_name
from fpemu.reproduce import claims, figures, pages
from fpemu.reproduce.claims import (
    CHECK_KINDS,
    CONDITION,
    DEPENDS,
    FAILS,
    HOLDS,
    MET,
    SOME,
    UNDECIDED,
    UNTESTABLE,
    VERDICTS,
    YARDSTICK,
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
from fpemu.reproduce.figures import escape as _escape
from fpemu.sweep.store import canonical

_HEAD = """# Ledger

The main claims of each paper, each with the verdict of this project. `fpemu ledger` generates this page, with all its
numbers, from the records of the figures.

A range extends over the seeds and the cases of a claim. *SGEMM reversed* is the error of SGEMM with the products added
in reverse order, over the error in ascending order, on the same operands: differences within this range are no
difference of accuracy. *Goals* and *negative controls* (variants known to be unsuitable) are checks of this project.
"""
_RULES = {
    HOLDS: "More than 80 % of all runs meet the criterion, with 95 % confidence: 20 of 20 seeds. "
    "Where the paper averages runs: the whole 95 % interval of such a mean meets it.",
    CONDITION: "It holds in some cases only, or on an assumption; the row names them.",
    DEPENDS: "A condition that the paper leaves open decides; the row names it, "
    "and the reading nearest to the published number.",
    SOME: "Neither 'holds' nor 'does not hold'; the row states the seeds, and the 95 % interval of their share.",
    FAILS: "Less than 20 % of all runs meet the criterion, with 95 % confidence: 0 of 20 seeds. "
    "Where the paper averages runs: no part of the interval meets it.",
    UNDECIDED: "Fewer than 20 seeds, a missing number, or data of another size than the paper's.",
    UNTESTABLE: "The hardware is not available; the numbers are measurements on an H200, for information.",
}
_COLUMNS = ("claim", "verdict", "published", "measured")
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
    numbers = ("median", "smallest", "largest", "mean", "mean from", "mean to")
    cases = ("reading", "variant", "published", *numbers, "seeds", "criterion met", "verdict on the case")
    claims = ("paper", "name", "kind", "headline", "claim", "place", "quantity", "unit", "criterion", "figure", "size")
    writer.writerow([*claims, "runs", *cases, "verdict", "condition", "nearest reading", "command"])
    for paper in ledger.papers:
        for one in ledger.judgements[paper.folder]:
            claim = one.claim
            head = [paper.folder, claim.name, claim.kind, claim.headline or "", claim.claim, claim.place]
            head += [claim.quantity, claim.unit, claim.criterion.text if claim.criterion else "", claim.page]
            head += [one.size, claim.runs]
            command = ledger.records[claim.page].command if claim.page in ledger.records else ""
            rows: list[list[Any]] = []
            for case in one.cases:
                values = [f"{value:.9g}" for value in (case.median, min(case.values), max(case.values), *case.mean)]
                values += [""] * (len(numbers) - len(values))
                met = case.met(claim) if claim.judged else ""
                label = [case.reading, case.variant, claim.published_in(case)]
                rows.append([*label, *values, case.seeds or "", met, case.words])
            if not rows:
                rows = [["", "", _published(claim), *[""] * (len(cases) - 3)]]
            writer.writerows([*head, *row, _verdict(one), one.note, one.nearest, command] for row in rows)
    return text.getvalue().encode()


def summary(ledger: Ledger, figures: str = "") -> bytes:
    """LEDGER.md: the summary of each paper, and the number of claims by verdict.

    ``figures`` is the path from the page's folder to the figures: empty, or ending in a slash.
    """
    parts = [_HEAD, _table(("verdict", "rule"), [(verdict, _RULES[verdict]) for verdict in VERDICTS])]
    for paper in ledger.papers:
        if paper.headlines:
            link = f"[All claims, with reasons](ledger/{paper.folder}.md)"
            parts += [f"## {_escape(paper.title)}", f"{_escape(paper.source)} {link}"]
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
    word = _verdict(one)
    verdict = f"**{_escape(word)}**"
    if reason := _condition(one):
        verdict += f"{':' if one.verdict == CONDITION else ';'} {_escape(_short(reason))}"
    here = "; ".join(filter(None, (number_of(one), _yardstick(one, ledger))))
    here = f"{one.claim.quantity}: {here}" if here and one.claim.quantity else here
    return [claim, verdict, _escape(_published(one.claim)), _escape(here)]


def _condition(one: Judgement) -> str:
    """The reason of a verdict in the summary: the cases in which the claim holds, or the readings by their verdict."""
    if one.verdict == CONDITION:
        rest = {case.variant for case in one.cases if case.verdict != HOLDS}
        holds = "; ".join(dict.fromkeys(case.variant for case in one.cases if case.variant not in rest))
        count = f"{sum(case.verdict == HOLDS for case in one.cases)} of {len(one.cases)} cases"
        names = holds if 0 < len(holds) < 60 else count
        return ". ".join(filter(None, [f"for {names}" if rest else "", one.claim.condition]))
    if one.verdict not in (DEPENDS, SOME) or len(one.of_readings) < 2:
        return one.note if one.verdict == SOME and one.note != _verdict(one) else ""
    readings: dict[str, list[str]] = {}
    for reading, verdict in one.of_readings.items():
        readings.setdefault("holds in part" if verdict in (CONDITION, SOME) else verdict, []).append(reading)
    verdict = next(verdict for verdict in (HOLDS, "holds in part", FAILS) if verdict in readings)
    names = ", ".join(readings[verdict])
    count = f"{len(readings[verdict])} of {len(one.of_readings)} readings"
    nearest = f"; nearest to the published number: {one.nearest}" if one.nearest and one.nearest != names else ""
    return f"{verdict}: {names if len(names) < 40 else count}{nearest}"


def _yardstick(one: Judgement, ledger: Ledger) -> str:
    """The range of the error of SGEMM in reverse order over the error of SGEMM, on the data of a claim."""
    record = ledger.records.get(YARDSTICK)
    cases = [measure for measure in (record.measures if record else ()) if measure.variant == one.claim.yardstick]
    values = [float(value) for measure in cases for value in measure.values]
    return f"{one.claim.yardstick.split(',')[0]} reversed: {shown(values, '×')}" if values else ""


def _published(claim: Claim) -> str:
    """The published numbers and the parts of the claim that they belong to."""
    given = claim.published_numbers
    values = [number for number in given.values() if not isinstance(number, str)]
    if len(values) > 4:  # each of them stands in the table of the cases
        given = {"": f"{min(values):.9g} to {_printed(claim, max(values))}"}
    numbers = {label: _printed(claim, number) for label, number in given.items()}
    return "; ".join(f"{label}: {number}" if label else number for label, number in numbers.items())


def _printed(claim: Claim, number: float | str) -> str:
    """A published number with its unit and all its digits."""
    unit = claim.unit if claim.unit in ("", "×") else f" {claim.unit}"
    return number if isinstance(number, str) else f"{number:.9g}{unit}"


def _short(text: str, most: int = 120) -> str:
    """A condition for the summary; of a long one its beginning."""
    return text if len(text) <= most else f"{text[: most - 2].rpartition(' ')[0].rstrip(',;.:')} …"


def _verdict(one: Judgement) -> str:
    if one.claim.kind in CHECK_KINDS:
        return MET.get(one.verdict, one.verdict)
    words = {case.words for case in one.cases}
    if one.verdict in (SOME, UNDECIDED) and len(words) == 1:
        return words.pop()
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
            rows = []
            for one in checks:
                name, verdict, _, measured = _row(one, ledger, figures)
                rows.append([name, verdict, measured, _escape(_criterion(one.claim)), _escape(one.claim.why)])
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
        ("Published", _published(claim)),
        ("Measured", claim.quantity + (f"; means of {claim.runs} runs" if claim.runs > 1 else "")),
        ("Criterion", _criterion(claim)),
        ("Verdict", one.note and ": ".join(dict.fromkeys((_verdict(one), one.note)))),
        ("For comparison", _yardstick(one, ledger)),
        ("Reading nearest to the published numbers", one.nearest),
        ("Reason", claim.why),
    ]
    parts.append("\n".join(f"- {name}: {_escape(text)}" for name, text in entries if text))
    if one.cases:
        rows = [[_escape(text) for text in _case(claim, case)] for case in one.cases]
        parts.append(_table(_case_columns(claim), rows))
    if claim.page in ledger.records:
        text = f"[Figure]({_image(ledger, claim.page, figures)}), `{ledger.records[claim.page].command}`"
        if claim.explained in ledger.records:
            text += f"; explained by [{claim.explained}]({_image(ledger, claim.explained, figures)})"
        parts.append(text)
    return parts


def _case_columns(claim: Claim) -> tuple[str, ...]:
    published = ("published",) if isinstance(claim.published, Mapping) else ()
    numbers = ("median", "smallest to largest") if claim.runs == 1 else ("mean", f"95 % interval of {claim.runs} runs")
    return ("case", *published, *numbers, "seeds", "verdict")


def _case(claim: Claim, case: Case) -> list[str]:
    published = [_printed(claim, claim.published_in(case))] if isinstance(claim.published, Mapping) else []
    spread = shown(case.spread, claim.unit) if len(case.spread) > 1 else ""
    return [case.label, *published, shown([case.number], claim.unit), spread, str(case.seeds or ""), case.words]


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
    """The findings and pictures of a paper's figures, and the assumptions, a list that several figures share once."""
    parts, groups = [], {}  # type: ignore[var-annotated]
    for page in paper.pages:
        if page in ledger.records:
            record = ledger.records[page]
            image, words = _image(ledger, page, figures), _escape(record.finding or record.title)
            parts.append(f"- [{page}]({image}): {words}\n\n  ![{_escape(record.title)}]({image})")
            groups.setdefault(tuple(record.assumptions), []).append(f"`{page}`")
    text = ["## Findings of the figures", "\n\n".join(parts)] if parts else []
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
