"""Verdicts on claims, from the numbers that a page measures at each seed.

A case of a claim is one reading and one variant. It holds if every seed meets the criterion, does not hold if none
does, and is undecided otherwise, with fewer than 20 seeds, with a number missing at a seed, or with data of a smaller
size than the paper's. An undecided reading leaves the claim undecided if all other readings agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fpemu.errors import InputError
from fpemu.reproduce.claims import Measure
from fpemu.reproduce.papers import DEFINITION, SPEED, Claim

HOLDS, CONDITION, DEPENDS = "holds", "holds under a stated condition", "depends on the reading"
FAILS, UNDECIDED, UNTESTABLE = "does not hold", "undecided", "not testable here"
VERDICTS = (HOLDS, CONDITION, DEPENDS, FAILS, UNDECIDED, UNTESTABLE)
MET = {HOLDS: "met", CONDITION: "met in part", DEPENDS: "met in part", FAILS: "not met"}
"""The words for a check in place of the verdict on a claim."""
SEEDS = 20
"""The smallest number of seeds that decides a claim on random data."""


@dataclass(frozen=True)
class Case:
    """The numbers of a claim in one reading and one variant.

    Attributes
    ----------
    reading, variant : str
        As in `Measure`.
    values : tuple of float
        One number a seed; one number where the data are not random.
    seeds : int, optional
        Number of seeds; None where the data are not random.
    verdict : str
        Verdict on this case; empty where nothing is judged.
    """

    reading: str
    variant: str
    values: tuple[float, ...]
    seeds: int | None
    verdict: str

    @property
    def median(self) -> float:
        """The median over the seeds; NaN if a value is NaN."""
        return math.nan if any(map(math.isnan, self.values)) else statistics.median(self.values)

    @property
    def label(self) -> str:
        """The reading and the variant."""
        return ", ".join(filter(None, (self.reading, self.variant)))

    def met(self, claim: Claim) -> int:
        """Return the number of values that meet the claim's criterion."""
        return sum(map(claim.criterion.met, self.values)) if claim.criterion else 0


@dataclass(frozen=True)
class Judgement:
    """A claim with its cases and its verdict.

    Attributes
    ----------
    claim : Claim
        The published statement or the check.
    verdict : str
        One of `VERDICTS`; empty for a definition.
    cases : tuple of Case
        The measured numbers; empty if there are none.
    size : str
        Size of the page's data, "quick" or "full".
    note : str
        The condition under which the claim holds, the readings that decide it, or the reason why it is undecided.
    of_readings : dict of str
        The verdict in each reading.
    """

    claim: Claim
    verdict: str
    cases: tuple[Case, ...] = ()
    size: str = ""
    note: str = ""
    of_readings: dict[str, str] = field(default_factory=dict)

    def readings(self) -> dict[str, list[Case]]:
        """Return the cases of each reading."""
        return _by_reading(self.cases)


def collect(measure: Callable[[list[dict[str, Any]]], Iterable[Measure]], rows: Sequence[dict[str, Any]]) -> Any:
    """Return the numbers of every measure of a page, in the form of a record.

    Parameters
    ----------
    measure : function of rows
        The page's ``measures``.
    rows : sequence of dict
        Rows of the page; a column ``seed`` separates random data.

    Returns
    -------
    dict
        "seeds", None where the data are not random, and "measures": dicts with name, reading, variant and values.

    Raises
    ------
    InputError
        Some rows have a seed and others have none, or the page measures a case twice.
    """
    seeded = any("seed" in row for row in rows)
    if seeded and not all("seed" in row for row in rows):
        raise InputError("some rows of the page have a seed and others have none: give all of them a seed, or none")
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["seed"] if seeded else None, []).append(row)
    values: dict[tuple[str, str, str], list[float]] = {}
    for group in groups.values():
        once: set[tuple[str, str, str]] = set()
        for one in measure(group):
            case = (one.name, one.reading, one.variant)
            if case in once:
                raise InputError(
                    f"the page measures {', '.join(filter(None, case))} twice: name a reading or a variant"
                )
            once.add(case)
            values.setdefault(case, []).append(float(one.value))
    measures = [
        {"name": name, "reading": reading, "variant": variant, "values": [_as_json(value) for value in numbers]}
        for (name, reading, variant), numbers in values.items()
    ]
    return {"seeds": len(groups) if seeded else None, "measures": measures}


def _as_json(value: float) -> float | str:
    """A number for JSON, which has neither NaN nor Inf; 9 significant digits as in the CSV."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


def verdict_on(claim: Claim, record: dict[str, Any] | None) -> Judgement:
    """Judge a claim by the record of its page.

    Parameters
    ----------
    claim : Claim
        The published statement or the check.
    record : dict or None
        Record of the page's figure (`fpemu.reproduce.figures.load_record`); None if there is none.

    Returns
    -------
    Judgement
    """
    size = "" if record is None else record["size"]
    cases = () if record is None else tuple(_cases(claim, record))
    if not claim.judged:
        return Judgement(claim, "" if claim.kind == DEFINITION else UNTESTABLE, cases, size)
    if not cases:
        return Judgement(claim, UNDECIDED, cases, size, "no data")
    by_reading = {reading: _together(of, claim.condition) for reading, of in _by_reading(cases).items()}
    of_readings = {reading: verdict for reading, (verdict, _) in by_reading.items()}
    if len(set(of_readings.values())) > 1:
        verdict = DEPENDS if len(set(of_readings.values()) - {UNDECIDED}) > 1 else UNDECIDED
        note = ". ".join(f"{of}: {_in_words(claim, *words)}" for of, words in by_reading.items())
        return Judgement(claim, verdict, cases, size, note, of_readings)
    verdict, note = next(iter(by_reading.values()))
    if len(by_reading) > 1:
        notes = {reading: note for reading, (_, note) in by_reading.items() if note}
        if len(set(notes.values())) > 1:
            note = ". ".join(f"{of}: {_in_words(claim, *by_reading[of])}" for of in notes)
    return Judgement(claim, verdict, cases, size, note, of_readings)


def _cases(claim: Claim, record: dict[str, Any]) -> Iterable[Case]:
    for entry in record["measures"]:
        if entry["name"] == claim.name:
            values = tuple(float(value) for value in entry["values"])
            seeds = None if record["seeds"] is None else len(values)
            complete = record["paper_size"] and seeds == record["seeds"]
            verdict = _verdict(claim, values, seeds, complete) if claim.judged else ""
            yield Case(entry["reading"], entry["variant"], values, seeds, verdict)


def _verdict(claim: Claim, values: tuple[float, ...], seeds: int | None, complete: bool) -> str:
    assert claim.criterion is not None
    met = sum(map(claim.criterion.met, values))
    decided = complete and (seeds is None or seeds >= SEEDS) and not any(map(math.isnan, values))
    if not decided or 0 < met < len(values):
        return UNDECIDED
    return HOLDS if met else FAILS


def _by_reading(cases: Iterable[Case]) -> dict[str, list[Case]]:
    result: dict[str, list[Case]] = {}
    for case in cases:
        result.setdefault(case.reading, []).append(case)
    return result


def _together(cases: list[Case], condition: str) -> tuple[str, str]:
    """The verdict on the variants of a reading, and its condition."""
    of = {verdict: [case.variant for case in cases if case.verdict == verdict] for verdict in (HOLDS, FAILS, UNDECIDED)}
    if len(of[FAILS]) == len(cases):
        return FAILS, condition
    if not of[HOLDS]:
        return UNDECIDED, condition
    if len(of[HOLDS]) == len(cases):
        return (CONDITION, condition) if condition else (HOLDS, "")
    words = {HOLDS: "holds for", FAILS: "Does not hold for", UNDECIDED: "Undecided for"}
    parts = [f"{words[verdict]} {'; '.join(variants)}" for verdict, variants in of.items() if variants]
    return CONDITION, ". ".join(filter(None, (*parts, condition)))


def _in_words(claim: Claim, verdict: str, note: str) -> str:
    """The verdict on one of several readings: the cases that decide it, or the verdict with the claim's condition."""
    if note and note != claim.condition:
        return note
    word = HOLDS if verdict == CONDITION else verdict
    return f"{word} ({note})" if note else word


def number(claim: Claim, case: Case) -> str:
    """Return the number of a case in words: the median, and the range over the seeds."""
    text = shown([case.median], claim.unit)
    return f"{text} ({shown(case.values, claim.unit)})" if len(set(case.values)) > 1 else text


def number_of(one: Judgement) -> str:
    """Return the numbers of a claim in words: for each reading the range over its variants, with its verdict."""
    by_reading, texts = one.readings(), []
    for reading, cases in by_reading.items():
        holds = [value for case in cases if case.verdict == HOLDS for value in case.values]
        rest = [value for case in cases if case.verdict != HOLDS for value in case.values]
        verdict = one.of_readings.get(reading, "")
        if holds and rest:
            text = f"{shown(holds, one.claim.unit)} where it holds, {shown(rest, one.claim.unit)} elsewhere"
        else:
            text = number(one.claim, cases[0]) if len(cases) == 1 else shown([*holds, *rest], one.claim.unit)
            text += f", {HOLDS if verdict == CONDITION else verdict}" if len(by_reading) > 1 and verdict else ""
        texts.append(f"{reading}: {text}" if reading else text)
    text = "; ".join(texts)
    return f"H200: {text}" if text and one.claim.kind == SPEED else text


def shown(values: Sequence[float], unit: str) -> str:
    """Return the range of values in words, with three significant digits."""
    known = [value for value in values if not math.isnan(value)]
    ends = dict.fromkeys(_plain(value) for value in ((min(known), max(known)) if known else ()))
    ends |= dict.fromkeys(["nan"] * (len(known) < len(values)))
    space = "" if unit in ("", "×") else " "
    return f"{' to '.join(ends)}{space}{unit}"


def _plain(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e+0" in text and abs(value) < 1e6 else text
