"""Claims of the papers, numbers that pages measure for them, and the verdicts that follow.

A case of a claim is one reading and one variant. It holds if the 95 % interval of the share of seeds that meet the
criterion lies above 80 %, and does not hold if it lies below 20 %; in between the share itself is the verdict. Where
the paper averages N runs (``runs = N``), the 95 % interval of a mean of N runs takes the place of the share: all of it
meets the criterion, none of it does, or a part. A case is undecided only with fewer than 20 seeds, with a number
missing at a seed, or with data of a smaller size than the paper's. Readings with different verdicts make the verdict
"depends on the reading", unless the claim holds in none of them; an undecided reading is left out of this comparison.

The claims and the inventory of a paper are data, in ``experiments/<paper>/paper.toml``::

    title = "H2SGEMM"
    main = "termwise_beats_sgemm"  # the claim in the title of its figure
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
    published = "2 to 3"         # or a number in the unit, or a number for each variant: { MI210 = 2.69, A800 = 1.41 }
    runs = 10                    # if the paper averages 10 runs

    [[checks]]                   # a check of this project, which no paper claims: kind "goal" or "negative control"
"""

from __future__ import annotations

import functools
import math
import operator
import random
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

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
SOME, FAILS = "holds for a part of the seeds", "does not hold"
UNDECIDED, UNTESTABLE = "undecided", "not testable here"
VERDICTS = (HOLDS, CONDITION, DEPENDS, SOME, FAILS, UNDECIDED, UNTESTABLE)
MET = {HOLDS: "met", CONDITION: "met in part", DEPENDS: "met in part", SOME: "met in part", FAILS: "not met"}
"""The words for a check in place of the verdict on a claim."""
SEEDS = 20
"""The smallest number of seeds that decides a claim on random data."""
CERTAIN = 0.8
"""A claim holds if the interval of the share of seeds lies above this share, and fails if it lies below one minus it:
20 of 20 seeds have the interval 84 to 100 %, and 19 of 20 the interval 76 to 99 %."""
YARDSTICK = "reference/reversed"
"""The page with the error of SGEMM in reverse order over the error of SGEMM."""
RESAMPLES = 2000
"""Means of N runs from which the interval of such a mean is taken; the draws have a fixed seed."""

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

    def extremes(self, low: float, high: float) -> list[float]:
        """Return numbers from ``low`` to ``high``: all, some or none of them meet the criterion as those between do."""
        limits = [float(limit) for limit in self._parts()[1:] if limit is not None]
        return [low, high, *(limit for limit in limits if low < limit < high)]

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
    value : float or sequence of float
        The number that the criterion judges; with ``over`` its numerator, of a sequence one at each point, such as n.
    reading : str
        Interpretation of what the paper leaves open.
    variant : str
        Case inside the claim: a panel, a GPU model, a size.
    over : float or sequence of float
        The denominators. The number is the mean over the points of value / over; of several runs, the mean over the
        points of mean(value) / mean(over).
    """

    name: str
    value: float | Sequence[float]
    reading: str = ""
    variant: str = ""
    over: float | Sequence[float] = 1.0


@dataclass(frozen=True)
class Measured:
    """The values of a `Measure` at all seeds, or one number where the data are not random, as in a figure's record.

    Texts stand for NaN and Inf, which JSON lacks.
    """

    name: str
    reading: str
    variant: str
    values: tuple[float | Literal["inf", "-inf", "nan"], ...]
    mean: tuple[float | Literal["inf", "-inf", "nan"], ...] = ()
    """Where the claim judges means of N runs: the mean over all seeds, and the 95 % interval of a mean of N runs"""

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
        The paper's words as printed, " … " for each omission, and their place.
    published : number, str or mapping of str to number or str
        The paper's number: in the claim's unit, in words, or one for each part of a case's label.
    runs : int
        Number of runs that the paper averages; the criterion judges the mean of so many runs.
    yardstick : str
        Variant of the page `YARDSTICK` with the metric and the operands of the claim.
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
    published: float | str | Mapping[str, float | str] = ""
    runs: int = 1
    yardstick: str = ""
    given: str = ""
    unstated: str = ""
    readings: str = ""
    condition: str = ""
    why: str = ""
    explained: str = ""

    def __post_init__(self) -> None:
        if self.judged and not (self.criterion and self.quantity):
            raise InputError("a claim that a page decides has a quantity and a criterion")
        if self.runs < 1:
            raise InputError(f"the mean of {self.runs} runs does not exist")

    @property
    def published_numbers(self) -> Mapping[str, float | str]:
        """The published number of each part of a case's label; of all cases under the empty label."""
        if isinstance(self.published, Mapping):
            return self.published
        return {} if self.published == "" else {"": self.published}

    def published_in(self, case: Case) -> float | str:
        """Return the published number of a case, the one with the longest label that is a part of the case's label."""
        labels = [label for label in self.published_numbers if label in case.label]
        return self.published_numbers[max(labels, key=len)] if labels else ""

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
    main: str = ""
    """The claim whose figure shows the claim and its verdict in its title"""
    titles: Mapping[str, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()
    claims: tuple[Claim, ...] = ()
    checks: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        names = [claim.name for claim in (*self.claims, *self.checks)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if self.main and self.main not in names:
            raise InputError(f"the main claim {self.main!r} is none of the claims")
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


def title(name: str, record: Record, root: Path | None = None) -> str:
    """Return the claim and the verdict for the title of a page; empty unless it decides the paper's main claim."""
    paper = _paper((pages.root() if root is None else root) / name.partition("/")[0] / "paper.toml")
    for claim in (*paper.claims, *paper.checks):
        if claim.page == name and claim.name == paper.main:
            return f"{claim.claim}: {verdict_on(claim, record).verdict if record.paper_size else 'quick size'}"
    return ""


def _paper(path: Path) -> Paper:
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)  # a run over all pages reads the claims of a page twice
def _read(path: Path, changed: int) -> Paper:
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
    words: str = ""
    """The verdict with its share of seeds, or with the reason why it is undecided"""
    mean: tuple[float, ...] = ()
    """Of a claim on means of N runs: the mean over all seeds, and the ends of the interval"""

    @property
    def median(self) -> float:
        """The median over the seeds; NaN if a value is NaN."""
        return math.nan if any(map(math.isnan, self.values)) else statistics.median(self.values)

    @property
    def number(self) -> float:
        """The mean over the seeds of a claim on means of runs, otherwise the median."""
        return self.mean[0] if self.mean else self.median

    @property
    def spread(self) -> tuple[float, ...]:
        """The interval of a mean of runs, otherwise the values of all seeds."""
        return self.mean[1:] or self.values

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

    @property
    def nearest(self) -> str:
        """The reading whose numbers are nearest to the published numbers; empty if fewer than two readings have one."""
        distance: dict[str, float] = {}
        for case in self.cases:
            given = self.claim.published_in(case)
            if not isinstance(given, str) and case.number * given > 0:
                far = abs(math.log(case.number / given))
                distance[case.reading] = max(far, distance.get(case.reading, 0))
        return min(distance, key=distance.__getitem__) if len(distance) > 1 else ""


def collect(
    measure: Callable[[list[dict[str, Any]]], Iterable[Measure]],
    rows: Sequence[dict[str, Any]],
    runs: Mapping[str, int] | None = None,
) -> Any:
    """Return the numbers of a page's ``measures`` at each seed, in the form of a record.

    ``runs`` is the number of runs in a mean by the name of a claim; default 1. InputError if some rows have a seed and
    others have none, the page measures a case twice, or it measures it with another number of points at another seed.
    """
    seeded = any("seed" in row for row in rows)
    if seeded and not all("seed" in row for row in rows):
        raise InputError("some rows of the page have a seed and others have none: give all of them a seed, or none")
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["seed"] if seeded else None, []).append(row)
    parts: dict[tuple[str, str, str], list[Any]] = {}
    for group in groups.values():
        numbers: dict[tuple[str, str, str], Any] = {}
        for one in measure(group):
            case = (one.name, one.reading, one.variant)
            if case in numbers:
                raise InputError(
                    f"the page measures {', '.join(filter(None, case))} twice: name a reading or a variant"
                )
            numbers[case] = np.broadcast_arrays(np.atleast_1d(one.value), np.atleast_1d(one.over))
        for case, fraction in numbers.items():
            parts.setdefault(case, []).append(fraction)
    measures = tuple(_measured(case, of, (runs or {}).get(case[0], 1)) for case, of in parts.items())
    return {"seeds": len(groups) if seeded else None, "measures": measures}


def _measured(case: tuple[str, str, str], parts: list[Any], runs: int) -> Measured:
    """The number at each seed from its numerators and denominators, and the interval of a mean of runs."""
    if len({len(over) for _, over in parts}) > 1:
        raise InputError(f"the page measures {', '.join(filter(None, case))} at other points at another seed")
    top, over = (np.array(of, np.float64) for of in zip(*parts, strict=True))  # seeds × points
    with np.errstate(all="ignore"):
        values = (top / over).mean(-1)
        mean: list[float] = []
        if runs > 1:
            drawn = _draws(len(top), runs)
            means = np.sort((top[drawn].mean(1) / over[drawn].mean(1)).mean(-1))  # NaN last
            outside = len(means) // 40
            mean = [(top.mean(0) / over.mean(0)).mean(), means[outside], means[-1 - outside]]
    return Measured(*case, tuple(map(_as_json, values)), tuple(map(_as_json, mean)))


@functools.cache
def _draws(seeds: int, runs: int) -> Any:
    """Seeds of the resampled means, the same with every version of Python and NumPy."""
    generator = random.Random(0)
    return np.array([[generator.randrange(seeds) for _ in range(runs)] for _ in range(RESAMPLES)])


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
    by_reading = {of: _together(some, claim.condition) for of, some in _by_reading(cases).items()}
    of_readings = {of: verdict for of, (verdict, _) in by_reading.items()}
    verdict, note = next(iter(by_reading.values()))
    if len(set(by_reading.values())) > 1:
        note = ". ".join(f"{of}: {_in_words(claim, *words)}" for of, words in by_reading.items())
    if len(every := set(of_readings.values())) > 1:
        decided = every - {UNDECIDED}
        verdict = SOME if decided == {SOME, FAILS} else DEPENDS if len(decided) > 1 else UNDECIDED
    return Judgement(claim, verdict, cases, size, note, of_readings)


def _cases(claim: Claim, record: Record) -> Iterable[Case]:
    for entry in record.measures:
        if entry.name == claim.name:
            values, mean = (tuple(map(float, of)) for of in (entry.values, entry.mean))
            seeds = None if record.seeds is None else len(values)
            case = Case(entry.reading, entry.variant, values, seeds, "", mean=mean)
            verdict, words = _verdict_on_case(claim, case, record) if claim.judged else ("", "")
            yield replace(case, verdict=verdict, words=words)


def _verdict_on_case(claim: Claim, case: Case, record: Record) -> tuple[str, str]:
    """The verdict on a case, alone and in words."""
    assert claim.criterion is not None
    averaged = claim.runs > 1 and case.seeds is not None
    missing = {
        "data of another size": not record.paper_size,
        f"{case.seeds} seeds, {SEEDS} are required": case.seeds is not None and case.seeds < SEEDS,
        "no number at a seed": case.seeds != record.seeds or any(map(math.isnan, case.spread)),
        f"no means of {claim.runs} runs": averaged and not case.mean,
    }
    if reasons := [reason for reason, applies in missing.items() if applies]:
        return UNDECIDED, f"{UNDECIDED} ({reasons[0]})"
    if averaged:
        met = [claim.criterion.met(value) for value in claim.criterion.extremes(*case.spread)]
        low, high, words = float(all(met)), float(any(met)), f"holds for a part of the means of {claim.runs} runs"
    else:
        count, of = case.met(claim), len(case.values)
        low, high = interval(count, of) if case.seeds is not None else (count / of, count / of)
        words = f"holds for {count} of {of} seeds ({100 * low:.0f} to {100 * high:.0f} %)"
    return (HOLDS, HOLDS) if low > CERTAIN else (FAILS, FAILS) if high < 1 - CERTAIN else (SOME, words)


def interval(met: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in interval(2, 20)]
    [0.028, 0.301]
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    centre, half = met + z * z / 2, z * math.sqrt(met * (of - met) / of + z * z / 4)
    return (centre - half) / (of + z * z), (centre + half) / (of + z * z)


def _by_reading(cases: Iterable[Case]) -> dict[str, list[Case]]:
    result: dict[str, list[Case]] = {}
    for case in cases:
        result.setdefault(case.reading, []).append(case)
    return result


def _together(cases: list[Case], condition: str) -> tuple[str, str]:
    """The verdict on the variants of a reading, and its condition."""
    verdicts = {case.verdict for case in cases}
    if verdicts == {HOLDS}:
        return (CONDITION, condition) if condition else (HOLDS, "")
    if verdicts == {FAILS}:
        return FAILS, condition
    verdict = CONDITION if HOLDS in verdicts else SOME if SOME in verdicts else UNDECIDED
    variants: dict[str, list[str]] = {}
    for case in sorted(cases, key=lambda case: (HOLDS, FAILS, SOME, UNDECIDED).index(case.verdict)):
        variants.setdefault(f"{case.words}{' for' if case.words in (HOLDS, FAILS) else ':'}", []).append(case.variant)
    parts = [f"{words} {'; '.join(of)}" if of != [""] else words[:-1] for words, of in variants.items()]
    parts[1:] = [part[0].upper() + part[1:] for part in parts[1:]]
    return verdict, ". ".join(filter(None, [*parts, condition]))


def _in_words(claim: Claim, verdict: str, note: str) -> str:
    """The verdict on one of several readings: the cases that decide it, or the verdict with the claim's condition."""
    if note and note != claim.condition:
        return note
    word = HOLDS if verdict == CONDITION else verdict
    return f"{word} ({note})" if note else word


def number(claim: Claim, case: Case) -> str:
    """Return the number of a case in words: the median and the range over the seeds, or the mean and its interval."""
    text = shown([case.number], claim.unit)
    return f"{text} ({shown(case.spread, claim.unit)})" if len(set(case.spread)) > 1 else text


def number_of(one: Judgement) -> str:
    """Return the numbers of a claim in words: the range over all readings and variants, apart where it holds."""
    holds = [value for case in one.cases if case.verdict == HOLDS for value in case.spread]
    rest = [value for case in one.cases if case.verdict != HOLDS for value in case.spread]
    text = shown([*holds, *rest], one.claim.unit) if one.cases else ""
    if holds and rest:
        text = f"{shown(holds, one.claim.unit)} (holds), {shown(rest, one.claim.unit)} (otherwise)"
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
