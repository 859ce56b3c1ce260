"""A published statement, what was measured here, and the verdict: computed from the data by a rule."""

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
        """For JSON, which has neither NaN nor Inf: there the value is None."""
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
    claim's value is the share of the points, unless the one number that ``measured`` speaks of is given.
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
    """What single seeds say about a claim, each judged by its own rows alone."""

    seeds: int
    """Seeds at which the claim can be judged"""
    whole: int
    """Those of them with rows at every point of the figure"""
    same: int
    """Those of them at which the verdict is that of all rows together"""
    smallest: float | None
    largest: float | None
    """Of the claim's value, over the seeds"""
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
    found: list[Spread | None] = []
    for which, claim in _numbered(together):
        there = {
            seed: one[which]
            for seed, one in judged.items()
            # a seed that was not run at the claim's points cannot speak about it
            if which in one and (one[which].verdict != OPEN or claim.verdict == OPEN or points[seed] == every)
        }
        whole = sum(points[seed] == every for seed in there)
        found.append(_spread(claim, list(there.values()), whole, len(by_seed)))
    return found


def _numbered(claims: Iterable[Claim]) -> list[tuple[tuple[str, int], Claim]]:
    """Claims with what tells them apart: the text, and the how manieth of that text."""
    seen: Counter[str] = Counter()
    found = []
    for claim in claims:
        found.append(((claim.claim, seen[claim.claim]), claim))
        seen[claim.claim] += 1
    return found


def _spread(claim: Claim, there: list[Claim], whole: int, seeds: int) -> Spread:
    values = [value for value in (_finite(one.value) for one in there) if value is not None]
    smallest, largest = (min(values), max(values)) if values else (None, None)
    same = sum(one.verdict == claim.verdict for one in there)
    text = "one seed" if seeds == 1 else f"judged at {len(there)} of {seeds} seeds only"
    if len(there) > 1:
        many = f"{len(there)} seeds" if len(there) == seeds else f"{len(there)} of {seeds} seeds"
        many += f", {len(there) - whole} of them at fewer points" if whole < len(there) else ""
        text = f"same verdict at {same} of {len(there)}" if values else f"same verdict at {same} of {many}"
        if smallest is not None and largest is not None:
            text = f"{_range(smallest, largest, claim.unit)} over {many}; {text}"
    return Spread(len(there), whole, same, smallest, largest, text)


def _range(low: float, high: float, unit: str) -> str:
    if unit == "points":
        shown = [f"{100 * value:.3g} %" for value in dict.fromkeys((low, high))]
        return f"true at {' to '.join(shown)} of the points"
    shown = [f"{value:.3g}{unit}" for value in (low, high)]
    return " to ".join(dict.fromkeys(shown))


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
