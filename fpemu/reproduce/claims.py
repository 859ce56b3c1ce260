"""Claims: a published statement, the value measured here, and the verdict, which a rule computes from the data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fpemu.sweep.store import canonical

HOLDS, PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "cannot be decided"
VERDICTS = (HOLDS, PART, FAILS, OPEN)
SIZE_FACTOR = 2.0
"""A measured factor within this factor of the published one agrees in size."""


@dataclass(frozen=True)
class Claim:
    """One line of a figure's claims table.

    Attributes
    ----------
    claim : str
        The claim in words.
    published : str
        Statement of the paper; empty for a check that no paper claims.
    measured : str
        The corresponding value of this reproduction, in words.
    verdict : str
        Outcome of the comparison.
    value : float, optional
        The number behind ``measured``, if it is one number.
    unit : str
        Unit of ``value``: "×" a factor, "points" a share of the points; else dimensionless.
    """

    claim: str
    published: str
    measured: str
    verdict: str
    value: float | None = None
    unit: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The claim for JSON, which has neither NaN nor Inf: such a value becomes None."""
        return {**asdict(self), "value": _finite(self.value)}


def reduction(claim: str, published: float, measured: float) -> Claim:
    """The verdict on "this method's error is smaller by a factor of x".

    Holds: smaller, and by a factor within :data:`SIZE_FACTOR` of the published one. In part: smaller, by another
    factor. Does not hold: not smaller. Cannot be decided: the factor is not a number.

    >>> reduction("error of a over error of b", 2.69, 1.9).verdict
    'holds'
    >>> reduction("error of a over error of b", 2.69, 0.9).verdict
    'does not hold'
    """
    if math.isnan(measured):
        verdict = OPEN
    elif measured <= 1:
        verdict = FAILS
    elif published / SIZE_FACTOR <= measured <= published * SIZE_FACTOR:
        verdict = HOLDS
    else:
        verdict = PART
    return Claim(claim, f"{published:g}×", f"{measured:.3g}×", verdict, float(measured), "×")


def share(claim: str, published: str, held: ArrayLike, measured: str, value: float | None = None) -> Claim:
    """The verdict on a statement about a range of points, ``held`` saying at which of them it is true.

    Holds: at all of them. In part: at half of them or more. Does not hold: at fewer. Cannot be decided: no points. The
    claim's value is the share of the points, unless ``value`` gives the number in ``measured``.
    """
    points = [bool(point) for point in np.asarray(held).ravel()]
    if not points:
        return Claim(claim, published, measured, OPEN)
    verdict = HOLDS if all(points) else PART if 2 * sum(points) >= len(points) else FAILS
    text = f"{measured} (at {sum(points)} of {len(points)} points)"
    if value is not None:
        return Claim(claim, published, text, verdict, float(value))
    return Claim(claim, published, text, verdict, sum(points) / len(points), "points")


@dataclass(frozen=True)
class Spread:
    """The verdicts of single seeds on a claim, each judged by the rows of this seed alone."""

    seeds: int
    """Seeds at which the claim can be judged"""
    whole: int
    """Number of these that have rows at every point of the figure"""
    same: int
    """Number of these with the verdict of all rows together"""
    smallest: float | None
    largest: float | None
    """Range of the claim's value over the seeds"""
    text: str
    """The same in words"""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def spreads(
    judge: Callable[[list[dict[str, Any]]], Iterable[Claim]], rows: Sequence[dict[str, Any]], parameters: Iterable[str]
) -> list[Spread | None]:
    """The spread of every claim of ``judge(rows)`` over the seeds, in the same order.

    Parameters
    ----------
    judge : function of rows
        A figure's ``claims``.
    rows : sequence of dict
    parameters : iterable of str
        The columns of ``rows`` that are parameters and not results; without ``seed`` there is no spread, but None.

    Returns
    -------
    list of Spread or None
    """
    together = list(judge(list(rows)))
    names = [name for name in parameters if name != "seed"]
    if not rows or not all("seed" in row for row in rows):
        return [None] * len(together)
    by_seed: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    points = {seed: {canonical({name: row.get(name) for name in names}) for row in of} for seed, of in by_seed.items()}
    every = set().union(*points.values())
    judged = {seed: dict(_numbered(judge(of))) for seed, of in by_seed.items()}
    result: list[Spread | None] = []
    for label, claim in _numbered(together):
        of_seeds = {
            seed: claims[label]
            for seed, claims in judged.items()
            # a seed without rows at the claim's points does not count
            if label in claims and (claims[label].verdict != OPEN or claim.verdict == OPEN or points[seed] == every)
        }
        whole = sum(points[seed] == every for seed in of_seeds)
        result.append(_spread(claim, list(of_seeds.values()), whole, len(by_seed)))
    return result


def _numbered(claims: Iterable[Claim]) -> list[tuple[tuple[str, int], Claim]]:
    """Claims with unique labels: the text, and the number of earlier claims with the same text."""
    seen: Counter[str] = Counter()
    labelled = []
    for claim in claims:
        labelled.append(((claim.claim, seen[claim.claim]), claim))
        seen[claim.claim] += 1
    return labelled


def _spread(claim: Claim, of_seeds: list[Claim], whole: int, seeds: int) -> Spread:
    values = [value for value in (_finite(one.value) for one in of_seeds) if value is not None]
    smallest, largest = (min(values), max(values)) if values else (None, None)
    count, same = len(of_seeds), sum(one.verdict == claim.verdict for one in of_seeds)
    text = "one seed" if seeds == 1 else f"judged at {count} of {seeds} seeds only"
    if count > 1:
        many = f"{count} seeds" if count == seeds else f"{count} of {seeds} seeds"
        many += f", {count - whole} of them at fewer points" if whole < count else ""
        text = f"same verdict at {same} of {count}" if values else f"same verdict at {same} of {many}"
        if smallest is not None and largest is not None:
            text = f"{_range(smallest, largest, claim.unit)} over {many}; {text}"
    return Spread(count, whole, same, smallest, largest, text)


def _range(low: float, high: float, unit: str) -> str:
    if unit == "points":
        shown = [f"{100 * value:.3g} %" for value in dict.fromkeys((low, high))]
        return f"true at {' to '.join(shown)} of the points"
    shown = [f"{value:.3g}{unit}" for value in (low, high)]
    return " to ".join(dict.fromkeys(shown))


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


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
