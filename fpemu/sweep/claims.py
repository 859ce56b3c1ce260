"""A published statement, what was measured here, and the verdict: computed from the data by a rule fixed beforehand."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

HOLDS, PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "cannot be decided"
SIZE_FACTOR = 2.0
"""A measured factor within this factor of the published one agrees in size."""


@dataclass(frozen=True)
class Claim:
    """One line of a figure's claims table."""

    claim: str
    published: str
    measured: str
    verdict: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


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
    return Claim(claim, f"{published:g}×", f"{measured:.3g}×", verdict)


def share(claim: str, published: str, held: ArrayLike, measured: str) -> Claim:
    """The verdict on a statement about a range of points, ``held`` saying at which of them it is true.

    Holds: at all of them. In part: at half of them or more. Does not hold: at fewer. Cannot be decided: no points.
    """
    points = [bool(point) for point in np.asarray(held).ravel()]
    if not points:
        return Claim(claim, published, measured, OPEN)
    verdict = HOLDS if all(points) else PART if 2 * sum(points) >= len(points) else FAILS
    return Claim(claim, published, f"{measured} (at {sum(points)} of {len(points)} points)", verdict)
