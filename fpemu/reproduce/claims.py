"""Claims of the papers, numbers that pages measure for them, and the verdicts that follow.

A case of a claim is one reading and one variant. It holds if every seed meets the criterion, does not hold if none
does, and is undecided otherwise, with fewer than 20 seeds, with a number missing at a seed, or with data of a smaller
size than the paper's. An undecided reading leaves the claim undecided if all other readings agree.

The claims and the inventory of a paper are data, in ``experiments/<paper>/paper.toml``::

    title = "H2SGEMM"
    source = "Xue et al.: H2SGEMM, emulating FP32 GEMM on Ascend NPUs using FP16 units (2025)."

    [titles]                     # every page of the folder
    fig8 = "relative error over the offset exponent"
    promotion = "error of a promoted accumulation"

    [[items]]                    # each experiment, figure, table, formula and algorithm of the paper
    item = "Fig. 8"
    what = "error over the offset exponent of the operands"
    status = "reproduced"        # or "partly", "not testable here"
    note = ""                    # partly: what is missing; not testable here: why
    pages = ["h2sgemm/fig8"]

    [[claims]]                   # a published statement, once: see Claim for the fields
    name = "termwise_beats_sgemm"
    kind = "numerics"
    claim = "Term-wise accumulation with sb = 12 is more accurate than SGEMM"
    page = "h2sgemm/fig8"
    quantity = "least over e of error(SGEMM) / error(sb = 12)"
    criterion = "> 1"

    [[checks]]                   # a check of this project, which no paper claims: kind "goal" or "negative control"
"""

from __future__ import annotations

import math
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fpemu.arguments import read_table
from fpemu.errors import InputError
from fpemu.reproduce import pages

Status = Literal["reproduced", "partly", "not testable here"]
Kind = Literal["numerics", "formula", "speed", "definition", "goal", "negative control"]
SPEED, DEFINITION = "speed", "definition"
CLAIM_KINDS = ("numerics", "formula", SPEED, DEFINITION)
CHECK_KINDS = ("goal", "negative control")
HEADLINES = 10
"""The largest number of rows in a paper's summary."""
HOLDS, CONDITION, DEPENDS = "holds", "holds under a stated condition", "depends on the reading"
FAILS, UNDECIDED, UNTESTABLE = "does not hold", "undecided", "not testable here"
VERDICTS = (HOLDS, CONDITION, DEPENDS, FAILS, UNDECIDED, UNTESTABLE)
MET = {HOLDS: "met", CONDITION: "met in part", DEPENDS: "met in part", FAILS: "not met"}
"""The words for a check in place of the verdict on a claim."""
SEEDS = 20
"""The smallest number of seeds that decides a claim on random data."""

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_COMPARISONS = {
    ">": ("above", operator.gt),
    ">=": ("at least", operator.ge),
    "<": ("below", operator.lt),
    "<=": ("at most", operator.le),
    "==": ("exactly", operator.eq),
}


@dataclass(frozen=True)
class Criterion:
    """The values for which a claim holds: ``"> x"``, ``">= x"``, ``"< x"``, ``"<= x"``, ``"== x"`` or ``"a to b"``.

    Both ends of a range are included. InputError if the text has another form.

    >>> Criterion("0.5 to 2").met(2.0), Criterion("> 1").met(1.0), str(Criterion("<= 3"))
    (True, False, 'at most 3')
    """

    text: str

    def __post_init__(self) -> None:
        _, low, high = self._parts()
        if high is not None and float(high) < float(low):
            raise InputError(f"no value meets the criterion {self.text!r}: its first end exceeds its second")

    def _parts(self) -> tuple[str, str, str | None]:
        """The sign and the limit of a comparison, or "to" and both ends of a range."""
        if comparison := re.fullmatch(rf"(>=|<=|==|>|<)\s*{_NUMBER}", self.text):
            return comparison[1], comparison[2], None
        if ends := re.fullmatch(rf"{_NUMBER} to {_NUMBER}", self.text):
            return "to", ends[1], ends[2]
        raise InputError(f"criterion {self.text!r} is not like '> 1', '<= 2', '== 0' or '0.5 to 2'")

    def met(self, value: float) -> bool:
        """Return whether a value fulfils the criterion; NaN does not."""
        sign, low, high = self._parts()
        if high is not None:
            return float(low) <= value <= float(high)
        return bool(_COMPARISONS[sign][1](value, float(low)))

    def __str__(self) -> str:
        sign, limit, high = self._parts()
        return self.text if high is not None else f"{_COMPARISONS[sign][0]} {limit}"


@dataclass(frozen=True)
class Measure:
    """A number that a page measures for a claim or a check.

    Attributes
    ----------
    name : str
        Name of the claim or the check in ``paper.toml``.
    value : float
        The number that the criterion judges.
    reading : str
        Interpretation of what the paper leaves open.
    variant : str
        Case inside the claim: a panel, a GPU model, a size.
    """

    name: str
    value: float
    reading: str = ""
    variant: str = ""


@dataclass(frozen=True)
class Measured:
    """The values of a `Measure` at all seeds, or one number where the data are not random, as in a figure's record.

    Texts stand for NaN and Inf, which JSON lacks.
    """

    name: str
    reading: str
    variant: str
    values: tuple[float | Literal["inf", "-inf", "nan"], ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("values are missing")


@dataclass(frozen=True)
class Record:
    """The JSON of a figure: its words, the command that draws it, its measured numbers and the origin of all files."""

    figure: str
    paper: str
    title: str
    kind: str
    caption: str
    assumptions: tuple[str, ...]
    command: str
    size: str
    cells: int
    parameters: Mapping[str, Any]
    """Distinct values of each parameter of the cells"""
    hardware: tuple[Mapping[str, Any], ...]
    """Fields of the instructions"""
    paper_size: bool
    """Whether the data have the size of the paper's"""
    seeds: int | None
    measures: tuple[Measured, ...]
    finding: str | None
    version: int
    data: Mapping[str, str]
    """Name and SHA-256 of the CSV"""
    picture: Mapping[str, str]
    versions: Mapping[str, str]
    """Of the packages with which the data were first obtained"""


@dataclass(frozen=True)
class Item:
    """An experiment, figure, table, formula or algorithm of a paper, and the pages that show it."""

    item: str
    what: str
    status: Status
    note: str = ""
    """The missing part, or the reason why it cannot be tested here"""
    pages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status != "reproduced" and not self.note:
            raise InputError(f"the item is {self.status}: the note says nothing about the rest")
        if self.status != "not testable here" and not self.pages:
            raise InputError(f"the item is {self.status}, but no page shows it")


@dataclass(frozen=True)
class Claim:
    """A published statement, or a check of this project, with the criterion that decides it.

    Attributes
    ----------
    name : str
        Identifier, unique in the paper.
    kind : str
        "numerics", "formula", "speed" (of another machine) or "definition"; of a check "goal" or "negative control".
    claim : str
        The statement in one line.
    page : str
        Page whose rows decide it; empty if nothing here can decide it.
    quantity, unit : str
        The measured number in words, and its unit.
    criterion : Criterion, optional
        Values for which the claim holds; none for a speed or a definition.
    headline : int, optional
        Row in the paper's summary.
    quote, place : str
        The paper's words and their place.
    given, unstated : str
        Conditions that the paper gives, and conditions that it leaves open.
    readings : str
        What the readings of the claim differ in, such as "SGEMM".
    condition : str
        A restriction of the data here, such as the largest size.
    why : str
        The cause of the verdict in one sentence.
    explained : str
        Page that explains the verdict.
    """

    name: str
    kind: Kind
    claim: str
    page: str = ""
    quantity: str = ""
    unit: str = ""
    criterion: Criterion | None = None
    headline: int | None = None
    quote: str = ""
    place: str = ""
    given: str = ""
    unstated: str = ""
    readings: str = ""
    condition: str = ""
    why: str = ""
    explained: str = ""

    def __post_init__(self) -> None:
        if self.judged and not (self.criterion and self.quantity):
            raise InputError("a claim that a page decides has a quantity and a criterion")

    @property
    def judged(self) -> bool:
        """Whether data of a page decide the claim."""
        return bool(self.page) and self.kind not in (SPEED, DEFINITION)


@dataclass(frozen=True)
class Paper:
    """A folder of experiments: the inventory of a paper, its claims and the checks of this project."""

    folder: str
    title: str
    source: str
    titles: Mapping[str, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()
    claims: tuple[Claim, ...] = ()
    checks: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        names = [claim.name for claim in (*self.claims, *self.checks)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"several claims have the name {repeated[0]!r}")
        ranks = [claim.headline for claim in self.headlines]
        if ranks != list(range(1, len(ranks) + 1)) or len(ranks) > HEADLINES:
            raise InputError(f"the headlines are numbered {ranks}, not 1 to at most {HEADLINES}")
        listed = {f"{self.folder}/{figure}" for figure in self.titles}
        for kinds, claims in ((CLAIM_KINDS, self.claims), (CHECK_KINDS, self.checks)):
            for claim in claims:
                if claim.kind not in kinds:
                    raise InputError(f"{claim.name}: the kind {claim.kind!r} is none of {', '.join(kinds)}")
        named = [(claim.name, page) for claim in (*self.claims, *self.checks) for page in (claim.page, claim.explained)]
        for name, page in [*named, *((item.item, page) for item in self.items for page in item.pages)]:
            if page and page not in listed:
                raise InputError(f"{name} names {page}, which [titles] lacks")

    @property
    def pages(self) -> list[str]:
        """The pages of the items, then the others, each once."""
        others = (f"{self.folder}/{figure}" for figure in self.titles)
        return list(dict.fromkeys([*(page for item in self.items for page in item.pages), *others]))

    @property
    def headlines(self) -> list[Claim]:
        """The claims of the summary, in its order."""
        chosen = [claim for claim in self.claims if claim.headline is not None]
        return sorted(chosen, key=lambda claim: claim.headline or 0)


def papers(root: Path | None = None) -> tuple[Paper, ...]:
    """Read ``paper.toml`` of every folder in ``root`` (default: of the experiments), those with a summary first."""
    paths = sorted((pages.root() if root is None else root).glob("*/paper.toml"))
    return tuple(sorted(map(_paper, paths), key=lambda paper: not paper.headlines))


def on_page(name: str, root: Path | None = None) -> list[Claim]:
    """Return the claims and checks that a page decides, from its paper's file alone."""
    paper = _paper((pages.root() if root is None else root) / name.partition("/")[0] / "paper.toml")
    return [claim for claim in (*paper.claims, *paper.checks) if claim.page == name]


def _paper(path: Path) -> Paper:
    return read_table(Paper, {"folder": path.parent.name} | _joined(pages.table(path)), str(path))


def _joined(value: Any) -> Any:
    """A value of TOML with the lines of each text joined."""
    if isinstance(value, dict):
        return {name: _joined(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_joined(item) for item in value]
    return " ".join(value.split()) if isinstance(value, str) else value


@dataclass(frozen=True)
class Case:
    """The numbers of a claim in one reading and one variant, one a seed, with the verdict on them."""

    reading: str
    variant: str
    values: tuple[float, ...]
    seeds: int | None
    """None where the data are not random"""
    verdict: str
    """Empty where nothing is judged"""

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
    """Return the numbers of a page's ``measures`` at each seed, in the form of a record.

    InputError if some rows have a seed and others have none, or the page measures a case twice.
    """
    seeded = any("seed" in row for row in rows)
    if seeded and not all("seed" in row for row in rows):
        raise InputError("some rows of the page have a seed and others have none: give all of them a seed, or none")
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["seed"] if seeded else None, []).append(row)
    values: dict[tuple[str, str, str], list[float]] = {}
    for group in groups.values():
        numbers: dict[tuple[str, str, str], float] = {}
        for one in measure(group):
            case = (one.name, one.reading, one.variant)
            if case in numbers:
                raise InputError(
                    f"the page measures {', '.join(filter(None, case))} twice: name a reading or a variant"
                )
            numbers[case] = float(one.value)
        for case, value in numbers.items():
            values.setdefault(case, []).append(value)
    measures = tuple(Measured(*case, tuple(map(_as_json, of))) for case, of in values.items())
    return {"seeds": len(groups) if seeded else None, "measures": measures}


def _as_json(value: float) -> Any:
    """A number for JSON, which has neither NaN nor Inf; 9 significant digits as in the CSV."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


def verdict_on(claim: Claim, record: Record | None) -> Judgement:
    """Judge a claim by the record of its page; None if there is no figure."""
    size = "" if record is None else record.size
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


def _cases(claim: Claim, record: Record) -> Iterable[Case]:
    for entry in record.measures:
        if entry.name == claim.name:
            values = tuple(float(value) for value in entry.values)
            seeds = None if record.seeds is None else len(values)
            case = Case(entry.reading, entry.variant, values, seeds, UNDECIDED if claim.judged else "")
            decided = record.paper_size and seeds == record.seeds and (seeds is None or seeds >= SEEDS)
            met = case.met(claim)
            if claim.judged and decided and met in (0, len(values)) and not any(map(math.isnan, values)):
                case = replace(case, verdict=HOLDS if met else FAILS)
            yield case


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
    ends = dict.fromkeys(_in_digits(value) for value in ((min(known), max(known)) if known else ()))
    ends |= dict.fromkeys(["nan"] * (len(known) < len(values)))
    space = "" if unit in ("", "×") else " "
    return f"{' to '.join(ends)}{space}{unit}"


def _in_digits(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e+0" in text and abs(value) < 1e6 else text
