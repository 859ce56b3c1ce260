"""The oracle of the Ozaki schemes against itself: the published algorithms, Python's rounding and NumPy's."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile import examples
from tests.oracle import ozaki as oracle

TINY, MIN_NORMAL, MAX = 2.0**-1074, 2.0**-1022, float(np.finfo(np.float64).max)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_algorithm_1_on_integers_is_the_published_one(precision):
    rng = np.random.default_rng(1)
    low, high = (-1080, 900) if precision == "fp64" else (-150, 60)
    for case in range(200):
        exponents = rng.integers(-30, 5, 9) if case % 2 else rng.integers(low, high, 9)
        significands = rng.integers(-9, 10, 9) / 16 if case % 3 else rng.uniform(-1, 1, 9)
        x = np.ldexp(significands, exponents)
        if precision == "fp32":
            x = x.astype(np.float32)
        bits = case % 10 + 2
        assert oracle.slices(x, bits) == oracle.slices_literal(x, bits, precision)


def test_slices_sum_to_the_vector_at_the_ends_of_the_range():
    for x in ([MAX, -MAX, TINY], [TINY, -3 * TINY], [MAX, 1.0, MIN_NORMAL], [-MAX]):
        for bits in (2, 7, 11):
            parts = oracle.slices(x, bits)
            for i, value in enumerate(x):
                assert sum(oracle.fraction(p.digits[i], p.e) for p in parts) == Fraction(value)
            assert all(abs(d) <= 2**bits for p in parts for d in p.digits)


@settings(max_examples=examples(200))
@given(st.integers(-(2**120), 2**120), st.integers(1, 2**60), st.integers(-1200, 1000))
def test_rounds_as_python_does(n, d, e):
    x = Fraction(n, d) * Fraction(2) ** e
    try:
        expected = float(x)
    except OverflowError:
        expected = math.copysign(math.inf, n)
    assert oracle.rounded(x) == expected
    if n and not expected:
        assert math.copysign(1, oracle.rounded(x)) == math.copysign(1, n)


@settings(max_examples=examples(100))
@given(st.floats(width=64, allow_nan=False, allow_infinity=False))
def test_rounds_to_fp32_as_numpy_does(x):
    with np.errstate(all="ignore"):
        assert oracle.rounded(Fraction(x), "fp32") == float(np.float32(x))


def test_chinese_remainder_is_the_product_where_it_is_unique():
    rng = np.random.default_rng(2)
    x, y = rng.integers(-1000, 1000, (3, 5)).tolist(), rng.integers(-1000, 1000, (4, 5)).tolist()
    expected = [[oracle.dot(row, column) for column in y] for row in x]
    assert oracle.crt(x, y, oracle.MODULI[:4]) == expected
    assert oracle.crt(x, y, oracle.MODULI[:1]) != expected
