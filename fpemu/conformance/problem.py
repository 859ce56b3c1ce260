"""A result that differs from its claim, and the rows and columns of it on which alternatives are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.conformance import claim as claims
from fpemu.conformance.changes import Change
from fpemu.conformance.claim import Claim
from fpemu.conformance.compare import distance
from fpemu.errors import GuaranteeError, InputError
from fpemu.formats import names
from fpemu.mma._device import Backend, Device
from fpemu.probing.watching import codes

Array = NDArray[Any]
_WORK = 2e6  # multiply-adds of one alternative on the sample
_LINES = (4, 12)  # rows and columns of the sample


@dataclass(frozen=True)
class Tried:
    """Changes of a claim, and how far their value is from the result on the sample.

    Attributes
    ----------
    changes : tuple of Change
        The last has the claim with all of them.
    wrong : int
        Entries that differ.
    far : float
        Mean of log2(1 + ulps).
    """

    changes: tuple[Change, ...]
    wrong: int
    far: float

    @property
    def claim(self) -> Claim:
        return self.changes[-1].claim

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(change.kind for change in self.changes)


class Problem:
    """A result that differs from its claim, and the sample on which alternatives are tried.

    Parameters
    ----------
    claim : Claim
    A, B, C, D : arrays
        The operands and the result.
    expected : array
        The claim's value.
    """

    def __init__(
        self, claim: Claim, A: Array, B: Array, C: Array | None, D: Array, expected: Array, device: Device = "cpu"
    ):
        self.claim, self.A, self.B, self.C, self.D, self.device = claim, A, B, C, D, device
        wrong = codes(D) != codes(expected)
        self.entries = int(wrong.sum())
        self.factor = _factor(D, expected)
        self.rows, self.columns = _sample(wrong, A.shape[1])
        self.part = D[self.rows][:, self.columns]
        here = expected[self.rows][:, self.columns]
        if not np.array_equal(codes(self.evaluate(claim, here.dtype)), codes(here)):
            self.rows, self.columns = np.arange(len(D)), np.arange(D.shape[1])  # rows depend on one another
            self.part, here = D, expected
        self.tried = 0
        self.base = self._judge((Change("", "", claim),), here)
        self.seen = {codes(here).tobytes()}
        self.claims = {claim}

    def evaluate(self, claim: Claim, dtype: Any, *, whole: bool = False) -> Array:
        """A claim's value on the sample, or on the whole."""
        rows, columns = (None, None) if whole else (self.rows, self.columns)
        # compiling a form that few products need takes longer than its readable form takes for the sample
        spec = claim.spec
        rare = spec is not None and (spec.arithmetic not in ("truncated", "fma") or spec.evidence == "custom")
        backend: Backend = "numpy" if rare and not whole and spec != self.claim.spec else "compiled"
        device: Device = self.device if whole else "cpu"
        D = claims.evaluate(claim, self.A, self.B, self.C, rows, columns, device, backend=backend)
        return D.astype(dtype, copy=False)

    def attempt(self, changes: tuple[Change, ...]) -> Tried | None:
        """An alternative on the sample; None if it is not possible, was tried, or gives what was seen before."""
        if changes[-1].claim in self.claims:
            return None
        self.claims.add(changes[-1].claim)
        self.tried += 1
        try:
            D = self.evaluate(changes[-1].claim, self.part.dtype)
        except (InputError, GuaranteeError):
            return None
        if D.shape != self.part.shape:
            return None
        key = codes(D).tobytes()
        judged = self._judge(changes, D)
        if key in self.seen and judged.wrong:
            return None
        self.seen.add(key)
        return judged

    def left(self, claim: Claim) -> int:
        """Entries of the whole result that a claim leaves different."""
        return int((codes(self.evaluate(claim, self.D.dtype, whole=True)) != codes(self.D)).sum())

    def _judge(self, changes: tuple[Change, ...], D: Array) -> Tried:
        fmt = self.claim.out if self.claim.out in names() else "fp32"
        steps = distance(self.part, D, fmt)
        return Tried(changes, int((steps != 0).sum()), float(np.log2(1.0 + np.minimum(steps, 2**40)).mean()))


def _factor(D: Array, expected: Array) -> float:
    """What all of a result is expected times, to 1 %; 1 if there is no such number."""
    usable = np.isfinite(D) & np.isfinite(expected) & (D != 0) & (expected != 0)
    if usable.sum() < 4:
        return 1.0
    ratio = D[usable].astype(np.float64) / expected[usable].astype(np.float64)
    low, middle, high = np.quantile(ratio, (0.1, 0.5, 0.9))
    return float(middle) if high - low < 0.01 * abs(middle) else 1.0


def _sample(wrong: NDArray[np.bool_], K: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns to try on: half of them with differing entries, the rest spread over the matrix."""
    lines = int(np.clip(np.sqrt(_WORK / K), *_LINES))
    chosen = []
    for axis in (1, 0):
        length = wrong.shape[1 - axis]
        worst = np.argsort(-wrong.sum(axis=axis), kind="stable")[: (lines + 1) // 2]
        spread = np.linspace(0, length - 1, min(lines, length)).astype(np.int64)
        rest = spread[~np.isin(spread, worst)]
        keep = np.linspace(0, max(len(rest) - 1, 0), min(lines // 2, len(rest))).astype(np.int64)
        chosen.append(np.sort(np.concatenate([worst, rest[keep]])))
    rows, columns = chosen
    if not wrong[rows][:, columns].any():
        i, j = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        rows, columns = np.union1d(rows, [i]), np.union1d(columns, [j])
    return rows, columns
