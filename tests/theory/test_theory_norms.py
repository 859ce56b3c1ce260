"""Norms are what their definitions say, written out entry by entry."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fpemu
from fpemu.theory import Norms, bound


def test_norms_are_the_definitions_written_out() -> None:
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(3, 5)), rng.normal(size=(5, 4)) * np.array([1.0, 1e3, 1e-3, 1.0])
    A[1, 2] = 0.0
    norms = Norms.of(A, B)
    pairs = [(A[i], B[:, j]) for i in range(3) for j in range(4)]
    S = [float(np.sum(np.abs(a * b))) for a, b in pairs]
    top = np.abs(A).max(), np.abs(B).max()

    def largest(ratios: Any) -> float:
        return max(float(r) / s for r, s in zip(ratios, S, strict=True))

    expected = {
        "flat_A": largest(top[0] * np.abs(b).sum() for _, b in pairs),
        "flat_B": largest(np.abs(a).sum() * top[1] for a, _ in pairs),
        "flat_AB": largest(5 * top[0] * top[1] for _ in pairs),
        "row_A": largest(np.abs(a).max() * np.abs(b).sum() for a, b in pairs),
        "row_B": largest(np.abs(a).sum() * np.abs(b).max() for a, b in pairs),
        "row_AB": largest(5 * np.abs(a).max() * np.abs(b).max() for a, b in pairs),
        "max_S": max(S),
        "rms_S": math.sqrt(np.mean(np.square(S))),
        "spread": math.sqrt(np.mean([np.sum((a * b) ** 2) / s**2 for (a, b), s in zip(pairs, S, strict=True)])),
        "peak": max(math.sqrt(np.sum((a * b) ** 2)) / s for (a, b), s in zip(pairs, S, strict=True)),
        "part": math.sqrt(np.mean([(a @ b / s) ** 2 for (a, b), s in zip(pairs, S, strict=True)])),
        "result": float(np.linalg.norm(A @ B) / np.linalg.norm(np.abs(A) @ np.abs(B))),
        "min_A": float(np.abs(A[A != 0]).min()),
        "mean_B": float(np.abs(B).mean()),
        "rms_A": math.sqrt(np.mean(A**2)),
    }
    for name, value in expected.items():
        assert getattr(norms, name) == pytest.approx(value, rel=1e-12), name
    # what a row loses of which every element loses the power of two above the largest
    rows, columns = ([2.0 ** np.ceil(np.log2(np.abs(x).max())) for x in X] for X in (A, B.T))
    signs = [(np.sign(a), np.sign(b)) for a, b in pairs]
    powers = [(r, c) for r in rows for c in columns]
    for cut, units, lost in (
        (norms.cut_A, [r for r, _ in powers], [(s, b) for (s, _), (_, b) in zip(signs, pairs, strict=True)]),
        (norms.cut_B, [c for _, c in powers], [(a, s) for (_, s), (a, _) in zip(signs, pairs, strict=True)]),
        (norms.cut_AB, [r * c for r, c in powers], signs),
    ):
        random = [u * math.sqrt(np.sum((a * b) ** 2)) / s for u, (a, b), s in zip(units, lost, S, strict=True)]
        along = [u * (a @ b) / s for u, (a, b), s in zip(units, lost, S, strict=True)]
        toward = [x * np.sign(a @ b) for x, (a, b) in zip(along, pairs, strict=True)]
        assert cut.random == pytest.approx(math.sqrt(np.mean(np.square(random))), rel=1e-12)
        assert cut.peak == pytest.approx(max(random), rel=1e-12)
        assert cut.aligned == pytest.approx(math.sqrt(np.mean(np.square(along))), rel=1e-12)
        assert cut.bias == pytest.approx(np.mean(toward), rel=1e-12)
    over = (np.array(S) / np.array([r * c for r, c in powers])).reshape(3, 4)
    leads = np.log2([*over.max(axis=0), *over.max(axis=1)])
    assert (norms.lead, norms.lead_spread) == pytest.approx((2 ** leads.mean(), leads.std()), rel=1e-12)


def test_elements_are_multiples_of_the_unit_and_not_of_twice_that() -> None:
    for X, unit in (([[1.0, 3.0, -0.75]], 0.25), ([[2.0**-1074, 1.0, 0.0]], 2.0**-1074), ([[96.0, 0.0, 32.0]], 32.0)):
        norms = Norms.of(X, np.ones((3, 1)))
        assert (norms.unit_A, norms.unit_B) == (unit, 1.0)


def test_ratios_of_an_entry_that_vanishes_beside_its_row_are_unbounded() -> None:
    """A row with elements 2^1500 apart: all of an entry is lost, and no norm of the rest shows it."""
    A, B = np.array([[2.0**900, 2.0**-600]]), np.array([[0.0, 1.0], [2.0**-1000, 1.0]])
    norms = Norms.of(A, B)
    assert norms.flat_AB == norms.row_AB == math.inf
    for scheme in ("dgemm", "ozimmu", "ozaki2"):
        assert bound(scheme, "ampere" if scheme != "dgemm" else None, norms=norms).worst == math.inf
    assert fpemu.gemm(A, B, scheme="ozimmu", hardware="ampere")[0, 0] == 0


def test_norms_written_by_hand_are_checked() -> None:
    norms = Norms.of(np.ones((2, 3)), np.ones((3, 2)))
    for name, value in (
        ("K", -1),
        ("K", 2.5),
        ("flat_A", -1.0),
        ("max_B", math.nan),
        ("max_A", math.inf),
        ("spread", math.nan),
        ("rms_A", -2.0),
    ):
        with pytest.raises(fpemu.InputError, match=rf"Norms: {name} = "):
            replace(norms, **{name: value})


def test_norms_are_taken_of_every_kind_of_number() -> None:
    A, B = np.array([[1, -2, 3]]), np.array([[4], [5], [-6]])
    plain = Norms.of(A.astype(float), B.astype(float))
    for dtype in (np.float16, np.float32, np.int8, np.int64):
        assert Norms.of(A.astype(dtype), B.astype(dtype)) == plain


def test_norms_refuse_what_is_not_two_finite_matrices() -> None:
    for A, B, word in (
        (np.ones((2, 3)), np.ones((2, 3)), "no product"),
        (np.ones(3), np.ones((3, 2)), "not a matrix"),
        ([[1.0, np.nan]], np.ones((2, 2)), "first at"),
        ([[np.inf, 1.0]], np.ones((2, 2)), "NaN or infinite"),
    ):
        with pytest.raises(fpemu.InputError, match=word):
            Norms.of(A, B)


def test_norms_of_huge_and_of_tiny_matrices_neither_overflow_nor_vanish() -> None:
    rng = np.random.default_rng(2)
    A, B = rng.normal(size=(4, 6)), rng.normal(size=(6, 4))
    plain = Norms.of(A, B)
    for scale in (2.0**900, 2.0**-900):
        scaled = Norms.of(A * scale, B * scale)
        for name in ("flat_A", "flat_AB", "row_AB", "spread", "peak", "part", "result"):
            assert getattr(scaled, name) == getattr(plain, name), name


def test_underflow_within_norms_is_no_error_of_the_caller():
    A, B = np.array([[1e300, 1e-300], [5e-324, 1.0]]), np.array([[1.0, 1e-200], [1e300, 5e-324]])
    expected = Norms.of(A, B)
    with np.errstate(all="raise"):
        assert Norms.of(A, B) == expected
