"""A result with mismatches, and the sample of its rows and columns on which deviations are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.conformance.compare import distance
from fpemu.conformance.deviation import Deviation, applied
from fpemu.conformance.evaluation import evaluate
from fpemu.conformance.specification import Specification
from fpemu.errors import GuaranteeError, InputError
from fpemu.formats import names
from fpemu.mma.device import Backend, Device
from fpemu.probing.callables import bits

Array = NDArray[Any]
_WORK = 2e6  # multiply-adds of one deviation on the sample
_LINES = (4, 12)  # least and largest number of rows and columns of the sample


@dataclass(frozen=True)
class Attempt:
    """Deviations with the specification they lead to, and its distance from the result on the sample."""

    deviations: tuple[Deviation, ...]
    specification: Specification
    mismatches: int
    distance: float  # mean of log2(1 + ulps)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the deviations."""
        return tuple(d.kind for d in self.deviations)

    @property
    def text(self) -> str:
        """The deviations in words."""
        return "; ".join(d.text for d in self.deviations)


class Sample:
    """A result D, its operands and its specification's value `expected`, reduced to a few rows and columns."""

    def __init__(
        self,
        specification: Specification,
        A: Array,
        B: Array,
        C: Array | None,
        D: Array,
        expected: Array,
        device: Device = "cpu",
    ):
        self.specification, self.A, self.B, self.C, self.D, self.device = specification, A, B, C, D, device
        wrong = bits(D) != bits(expected)
        self.fmt = specification.out if specification.out in names() else "fp32"
        self.entries = int(wrong.sum())
        self.factor = _factor(D, expected)
        self.rows, self.columns = _sample(wrong, A.shape[1])
        self.part = D[self.rows][:, self.columns]
        value = expected[self.rows][:, self.columns]
        if not np.array_equal(bits(self._evaluate(specification, value.dtype)), bits(value)):
            self.rows, self.columns = np.arange(len(D)), np.arange(D.shape[1])  # the scheme's rows are not independent
            self.part, value = D, expected
        self.tried = 0
        self.base = self._attempt((), specification, value)
        self._values = {bits(value).tobytes()}
        self._specifications = {specification}

    def _evaluate(self, specification: Specification, dtype: Any, *, whole: bool = False) -> Array:
        rows, columns = (None, None) if whole else (self.rows, self.columns)
        # for the sample, the NumPy implementation of a rare arithmetic is faster than its compilation
        spec = specification.spec
        rare = spec is not None and (spec.rules.rank > 1 or spec.evidence == "custom")
        numpy = rare and not whole and spec != self.specification.spec
        backend: Backend = "numpy" if numpy else "compiled"
        device: Device = self.device if whole else "cpu"
        return evaluate(specification, self.A, self.B, self.C, rows, columns, device, backend).astype(dtype, copy=False)

    def attempt(self, deviations: tuple[Deviation, ...]) -> Attempt | None:
        """Evaluate deviations; None if they are impossible, repeated, or give the bits of earlier ones."""
        specification = applied(deviations, self.specification)
        if specification in self._specifications:
            return None
        self._specifications.add(specification)
        self.tried += 1
        try:
            D = self._evaluate(specification, self.part.dtype)
        except (InputError, GuaranteeError):
            return None
        if D.shape != self.part.shape:
            return None
        attempt = self._attempt(deviations, specification, D)
        key = bits(D).tobytes()
        if key in self._values and attempt.mismatches:
            return None
        self._values.add(key)
        return attempt

    def mismatches(self, specification: Specification) -> int:
        """Mismatching entries of the whole result."""
        return int((bits(self._evaluate(specification, self.D.dtype, whole=True)) != bits(self.D)).sum())

    def _attempt(self, deviations: tuple[Deviation, ...], specification: Specification, D: Array) -> Attempt:
        steps = distance(self.part, D, self.fmt)
        mean = float(np.log2(1.0 + np.minimum(steps, 2**40)).mean())
        return Attempt(deviations, specification, int((steps != 0).sum()), mean)


def _factor(D: Array, expected: Array) -> float:
    """The factor between all of a result and the expected one, to 1 %; 1 if there is none."""
    usable = np.isfinite(D) & np.isfinite(expected) & (D != 0) & (expected != 0)
    if usable.sum() < 4:
        return 1.0
    ratio = D[usable].astype(np.float64) / expected[usable].astype(np.float64)
    low, middle, high = np.quantile(ratio, (0.1, 0.5, 0.9))
    return float(middle) if high - low < 0.01 * abs(middle) else 1.0


def _sample(wrong: NDArray[np.bool_], K: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns: half of them with the most mismatches, the others spread over the matrix."""
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
