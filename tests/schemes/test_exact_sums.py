"""Exact sums and their one rounding, against Fractions rounded by tests/oracle/ozaki.py: bits, with ==."""

import itertools
import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpemu.schemes.errorfree.sums import ExactSum
from tests.oracle import ozaki as oracle

DTYPES = {"fp64": np.float64, "fp32": np.float32}
TINY = 5e-324


def power(e):
    return Fraction(2) ** e


def code(x):
    """The bits of an array or number of float64 or float32."""
    x = np.asarray(x)
    return x.view({8: np.uint64, 4: np.uint32}[x.dtype.itemsize])


def rounded(x, name):
    """x, a Fraction, to the nearest number of the format."""
    return DTYPES[name](oracle.rounded(x, name))


class Sum:
    """An ExactSum beside the Fractions that it stands for."""

    def __init__(self, rows, columns, bits):
        self.exact = ExactSum(np.array(rows)[:, None], np.array(columns)[None, :], bits)
        self.units = [power(r + c) for r, c in itertools.product(rows, columns)]
        self.values = [Fraction(0)] * len(self.units)

    def add(self, T, shift):
        self.exact.add(T, shift)
        shifts = np.broadcast_to(shift, T.shape).ravel().tolist()
        for i, (t, s) in enumerate(zip(T.ravel().tolist(), shifts, strict=True)):
            self.values[i] += int(t) * 2**s * self.units[i]

    def check(self, alpha=1.0, beta=0.0, C=None):
        given = () if C is None else (beta, C)
        c = [0.0] * len(self.values) if C is None else C.ravel().tolist()
        results = [Fraction(alpha) * v + Fraction(beta) * Fraction(x) for v, x in zip(self.values, c, strict=True)]
        for name, dtype in DTYPES.items():
            out = self.exact.round_to(name, alpha, *given)
            expected = np.array([rounded(x, name) for x in results], dtype).reshape(self.exact.shape)
            assert out.dtype == dtype
            assert (code(out) == code(expected)).all(), (name, out, expected)


# --- any sums
integers = st.one_of(
    st.integers(-(1 << 53), 1 << 53),
    st.integers(-3, 3),
    st.sampled_from([s * (2**k + d) for k in (24, 26, 27, 51, 52) for d in (-1, 0, 1) for s in (-1, 1)]),
    st.sampled_from([1 << 53, -(1 << 53)]),
)
scalars = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 3.0, TINY, -TINY, 2.0**-1022, 2.0**1023, np.finfo(np.float64).max.item()]),
    st.integers(-1074, 1023).map(lambda e: math.ldexp(1.0, e)),
)


@st.composite
def sums(draw):
    M, N = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    middle = draw(st.sampled_from([0, 0, -540, 480, -1500, 1500]))
    rows = draw(st.lists(st.integers(middle - 60, middle + 60), min_size=M, max_size=M))
    columns = draw(st.lists(st.integers(-60, 60), min_size=N, max_size=N))
    room = draw(st.sampled_from([0, 20, 52, 150, 1200]))  # largest shift
    S = Sum(rows, columns, room + 57)
    for _ in range(draw(st.integers(0, 4))):
        entries = draw(st.lists(integers, min_size=M * N, max_size=M * N))
        T = np.array(entries, dtype=np.int64).reshape(M, N)
        dtype = draw(st.sampled_from([np.int64, np.float64, np.int32, np.float32]))
        if dtype is np.int32:
            T = T % (1 << 31)
        T = T.astype(dtype)
        if draw(st.booleans()):
            S.add(T, draw(st.integers(0, room)))
        else:
            down = draw(st.lists(st.integers(0, room // 2), min_size=M, max_size=M))
            across = draw(st.lists(st.integers(0, room // 2), min_size=N, max_size=N))
            S.add(T, np.array(down)[:, None] + np.array(across))
        if draw(st.booleans()):  # the same with the other sign and nearly the same shift: what is left is small
            S.add(-T, draw(st.integers(0, room)))
    return S


@given(sums(), scalars)
def test_sums_are_rounded_once(S, alpha):
    S.check()
    S.check(alpha)


@given(sums(), scalars, scalars, st.data())
def test_an_addend_anywhere(S, alpha, beta, data):
    C = data.draw(st.lists(scalars, min_size=len(S.values), max_size=len(S.values)))
    S.check(alpha, beta, np.array(C).reshape(S.exact.shape))


@given(sums(), st.sampled_from([1.0, -1.0, 0.75, TINY]), st.integers(-40, 40))
def test_an_addend_that_cancels_what_it_can(S, alpha, e):
    C = np.array([rounded(Fraction(alpha) * v / power(e), "fp64") for v in S.values])
    C = np.where(np.isfinite(C), -C, 1.0).reshape(S.exact.shape)
    S.check(alpha, math.ldexp(1.0, e), C)


@given(st.integers(-(1 << 53), 1 << 53), st.integers(-500, 500), st.integers(-400, 400))
def test_an_exact_cancellation_is_plus_zero(n, r, e):
    S = Sum([r], [0], 54)
    S.add(np.array([[n]]), 0)
    C = np.array([[-math.ldexp(n, r - e)]])
    S.check(1.0, math.ldexp(1.0, e), C)
    assert code(S.exact.round_to("fp64", 1.0, math.ldexp(1.0, e), C)) == 0


# --- the distance between S and C, binade by binade
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [1, 2**52, 2**53 - 1, 2**53, 3])
def test_an_addend_at_every_distance(n, sign):
    exponents = np.arange(-1060, 900)
    for c in (1.0, 1 - 2.0**-53, 1 + 2.0**-52):
        S = Sum([-100], [0] * len(exponents), 160)
        S.add(np.full((1, len(exponents)), float(n)), 70)
        S.check(1.0, sign * 1.0, np.ldexp(c, exponents)[None, :])


@pytest.mark.parametrize("beta", [2.0**-1074, -(2.0**-1074), 2.0**-1000, -(2.0**1000)])
@pytest.mark.parametrize(
    ("n", "e"),
    [
        *((2**54 - 1, 970), (2**53 + 1, 0), (2**53 + 3, 0), (1, -1075), (3, -1075), (2**53 - 1, -1075)),
        *((2**25 - 1, 103), (2**24 + 1, 0), (2**24 + 3, 0), (1, -150), (3, -150), (2**24 - 1, -150)),
        *((-(2**53) - 1, 1), (-(2**54) + 1, 970), (-(2**25) + 1, 103), (-1, -150), (-1, -1075)),
    ],
)
def test_ties_and_thresholds_decided_far_below(n, e, beta):
    """n * 2^e is halfway between two numbers of fp64 or fp32, or between the largest and infinity."""
    S = Sum([e], [0] * 5, 60)
    S.add(np.full((1, 5), n % (1 << 30)), 0)
    S.add(np.full((1, 5), n >> 30), 30)
    S.check()
    S.check(1.0, beta, np.array([[0.0, TINY, -TINY, 2.0**-900, -(2.0**-900)]]))


@pytest.mark.parametrize("n", [2**53 + 1, 2**53 + 3, -(2**53) - 1, 2**24 + 1, -(2**24) - 3])
@pytest.mark.parametrize("bit", [-1, 0, 1])
def test_ties_at_every_place_of_the_limbs(n, bit):
    shifts = np.arange(1, 320)[None, :]
    S = Sum([-40], [0] * shifts.size, 375)
    S.add(np.full(shifts.shape, n - n % 4), shifts)
    S.add(np.full(shifts.shape, n % 4), shifts)
    S.add(np.full(shifts.shape, bit), 0)
    S.check()


@pytest.mark.parametrize("n", [2**53 + 1, 2**53 + 3, 2**24 + 1, -(2**24) - 3])
@pytest.mark.parametrize("bit", [-1, 0, 1])
def test_ties_decided_by_the_lowest_of_3000_bits(n, bit):
    S = Sum([-3000], [0, 1], 3070)
    S.add(np.full((1, 2), n - n % 4), 3000)
    S.add(np.full((1, 2), n % 4), 3000)
    S.add(np.full((1, 2), bit), 0)
    S.check()
    S.check(-3.0)
    S.check(1.0, 1.0, np.array([[2.0**-1000, -TINY]]))


@pytest.mark.parametrize("n", [2**54 + 1, 2**53 + 3, -(2**25) - 1, 5])
def test_ties_of_the_addend_decided_by_the_sum(n):
    """beta * C has up to 106 bits and is halfway; S is a unit 3000 binades further down, or further up."""
    halves = np.array([[float(n // 2), 3.0, 2.0**53 - 1, -(2.0**53) + 1]])
    for r in (-3000, -200, -107, -1, 0, 60, 3000):
        for unit in (-1, 0, 1):
            S = Sum([r], [0] * 4, 10)
            S.add(np.full((1, 4), unit), 0)
            for beta in (1.0, 2.0**53 - 1, 1 + 2.0**-52, 2.0**900 + 2.0**848, 2.0**-1074 * 5):
                S.check(1.0, beta, halves)
                S.check(0.0, beta, halves)


def test_signs_of_zeros():
    S = ExactSum(np.array([[0]]), np.array([[0, 0, 0]]), 10)
    C = np.array([[0.0, -0.0, TINY]])
    assert code(S.round_to("fp64")).tolist() == [[0, 0, 0]]
    assert code(S.round_to("fp64", -1.0, -1.0, C)).tolist() == [[0, 0, (1 << 63) + 1]]
    assert code(S.round_to("fp64", 0.0, -0.25, C)).tolist() == [[0, 0, 1 << 63]]
    assert code(S.round_to("fp32", 1.0, -1.0, C)).tolist() == [[0, 0, 1 << 31]]
    assert code(S.round_to("fp64", 1.0, 0.0, np.full((1, 3), -TINY))).tolist() == [[0, 0, 0]]


# --- many and large
def test_limbs_do_not_overflow_between_carries():
    for n in (2**53, -(2**53), 2**53 - 1, -(2**53) + 1):
        S = ExactSum(np.array([[0]]), np.array([[0]]), 130)
        for _ in range(6000):
            S.add(np.array([[n]]), 51)
        assert S.round_to("fp64").item() == rounded(Fraction(6000 * n * 2**51), "fp64")


def test_adding_goes_on_after_a_result():
    S = Sum([-3], [2, 5], 100)
    for n in (7, 2**53, -(2**53)):
        S.add(np.array([[n, -n]]), 20)
        S.check(2.5)
        S.check()


def test_more_entries_than_a_chunk():
    rng = np.random.default_rng(5)
    M, N = 13, 1300
    S = Sum(rng.integers(-50, 50, M).tolist(), rng.integers(-50, 50, N).tolist(), 160)
    for shift in (0, 26, 77, 100):
        S.add(np.asfortranarray(rng.integers(-(1 << 53), 1 << 53, (M, N)).astype(np.float64)), shift)
    S.add(rng.integers(-(1 << 53), 1 << 53, (M, N)), rng.integers(0, 50, (M, 1)) + rng.integers(0, 50, (1, N)))
    S.check()
    S.check(1.1, -0.7, np.ldexp(rng.standard_normal((M, N)), rng.integers(-1000, 900, (M, N))))


def test_memory_is_that_of_the_limbs():
    M = N = 1024
    matrix = 8 * M * N
    rng = np.random.default_rng(3)
    T, C = np.ones((M, N)), np.ldexp(1.0, rng.integers(-1000, 1000, (M, N)))
    rows, columns = np.full((M, 1), -2000), np.zeros((1, N), dtype=np.int64)
    tracemalloc.start()
    try:
        S = ExactSum(rows, columns, 190)  # four limbs, and one for the sign
        S.add(T, 150)
        assert tracemalloc.get_traced_memory()[1] < 5.5 * matrix
        S.round_to("fp64", 1.5, 3.0, C)
        assert tracemalloc.get_traced_memory()[1] < 8 * matrix
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty(shape):
    S = ExactSum(np.zeros((shape[0], 1), int), np.zeros((1, shape[1]), int), 60)
    S.add(np.zeros(shape), 3)
    out = S.round_to("fp32", 2.0, 1.0, np.zeros(shape))
    assert out.shape == shape
    assert out.dtype == np.float32


# --- wrong use
def test_a_zero_may_be_shifted_anywhere():
    S = Sum([0], [0, 0], 60)
    S.add(np.array([[3, 0]]), np.array([[2, 5000]]))
    S.add(np.zeros((1, 2)), 4000)
    S.check()


@pytest.mark.parametrize("shift", [-1, 61, np.array([[0, 61]]), np.array([[-1, 0]])])
def test_shifts_out_of_range(shift):
    S = ExactSum(np.array([[0]]), np.array([[0, 0]]), 60)
    with pytest.raises(AssertionError, match="60 bits"):
        S.add(np.array([[1, 1]]), shift)


def test_a_sum_beyond_its_bits():
    S = ExactSum(np.array([[0]]), np.array([[0]]), 51)
    S.add(np.array([[-(2**53)]]), 51)
    with pytest.raises(AssertionError, match="exceeds 52"):
        S.round_to("fp64")
