"""Error measures against Fractions, at ordinary, huge and tiny scales, and their conventions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import arguments, formats, inputs, metrics, reference
from fpemu.errors import InputError

PAIRWISE = (metrics.relative_l2, metrics.max_relative, metrics.max_error_legemm, metrics.mred, metrics.max_absolute)
SCALES = (0, 1000, -1000, 960, -960)


def root(x):
    """Square root of a Fraction to far more than float64 needs."""
    shift = 200
    return Fraction(math.isqrt(int(x * 4**shift)), 2**shift)


def exact(measure, C, R):
    c, r = ([Fraction(v) for v in np.ravel(X).tolist()] for X in (C, R))
    d = [abs(x - y) for x, y in zip(c, r, strict=True)]
    if measure is metrics.relative_l2:
        return root(sum(x * x for x in d) / sum(y * y for y in r))
    if measure is metrics.max_relative:
        return max(x / abs(y) for x, y in zip(d, r, strict=True))
    if measure is metrics.max_error_legemm:
        return max(x / (abs(y) + abs(z)) for x, y, z in zip(d, r, c, strict=True))
    if measure is metrics.mred:
        return sum(x / abs(y) for x, y in zip(d, r, strict=True)) / len(d)
    return max(d)


def close(value, truth, ulps=4):
    """Within ``ulps`` roundings of float64 of the exact number: the measures are float64 themselves."""
    return abs(Fraction(value) - truth) <= truth * ulps * Fraction(1, 2**53)


def matrices(seed, shape=(7, 5), noise=2.0**-20):
    R = inputs.make("wide", shape, seed, "fp64", low=-5, high=5)
    return R * (1 + noise * inputs.make("uniform", shape, [seed, 9], "fp64")), R


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("measure", PAIRWISE)
def test_against_fractions_at_any_scale(measure, scale):
    for seed, noise in itertools.product(range(4), (2.0**-50, 2.0**-20, 4.0)):
        C, R = (np.ldexp(X, scale) for X in matrices(seed, noise=noise))
        assert close(measure(C, R), exact(measure, C, R))


@pytest.mark.parametrize("measure", PAIRWISE[:4])
def test_scaling_changes_no_bit(measure):
    C, R = matrices(1)
    assert measure(np.ldexp(C, 990), np.ldexp(R, 990)) == measure(C, R) == measure(np.ldexp(C, -960), np.ldexp(R, -960))


def test_known_values():
    assert metrics.relative_l2([[3.0, 4.5]], [[3.0, 4.0]]) == 0.1
    assert metrics.max_relative([1.0, 2.5, -7.0], [1.0, 2.0, -8.0]) == 0.25
    assert metrics.max_error_legemm([3.0, 1.0], [1.0, 1.0]) == 0.5
    assert metrics.max_error_legemm([-1.0], [1.0]) == 1.0
    assert metrics.mred([1.0, 3.0, 5.0, 4.0], [1.0, 2.0, 4.0, 4.0]) == (0.5 + 0.25) / 4
    assert metrics.max_absolute([1.0, 3.0], [2.0, 2.5]) == 1.0
    assert metrics.effective_bits([1.0 + 2.0**-20], [1.0]) == 20.0
    assert metrics.effective_bits([3.0], [1.0], "max_error_legemm") == 1.0
    assert metrics.effective_bits([2.5], [2.0], metrics.max_relative) == 2.0
    assert metrics.effective_bits([2.0], [2.0]) == math.inf
    assert metrics.effective_bits([math.nan], [2.0]) == -math.inf
    assert metrics.normwise([[6.0]], [[5.0]], [[1.0, -2.0]], [[3.0], [-1.0]]) == 0.2


def test_elementwise():
    C, R = np.array([[1.0, 2.5], [-3.0, 0.0]]), np.array([[1.0, 2.0], [-4.0, 0.0]])
    assert metrics.relative(C, R).tolist() == [[0.0, 0.25], [0.25, 0.0]]
    assert metrics.relative(C, R, signed=True).tolist() == [[0.0, 0.25], [0.25, 0.0]]
    assert metrics.relative(R, C, signed=True).tolist() == [[0.0, -0.2], [-1 / 3, 0.0]]
    assert metrics.symmetric(C, -C).tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert metrics.symmetric(R, 3 * R, signed=True).tolist() == [[-0.5, -0.5], [0.5, 0.0]]


def test_extreme_quotients():
    assert metrics.max_relative([2.0**500], [2.0**-500]) == 2.0**1000
    assert metrics.max_relative([2.0**600], [2.0**-600]) == math.inf
    assert metrics.max_relative([2.0**-1074], [2.0**1000]) == 1.0
    assert metrics.max_relative([-(2.0**1023)], [2.0**1023]) == 2.0
    assert metrics.relative_l2([-(2.0**1023)] * 9, [2.0**1023] * 9) == 2.0
    assert metrics.relative_l2([2.0**-1073] * 4, [2.0**-1074] * 4) == 1.0
    assert metrics.relative_l2([2.0**900], [2.0**-900]) == math.inf
    assert metrics.max_error_legemm([-(2.0**1023)], [2.0**1023]) == 1.0
    assert metrics.max_error_legemm([2.0**-1074], [3 * 2.0**-1074]) == 0.5
    assert metrics.mred([2.0**1000] * 4, [2.0**-23] * 4) == 2.0**1023  # the sum leaves float64, the mean does not
    assert metrics.max_absolute([-(2.0**1023)], [2.0**1023]) == math.inf
    assert metrics.max_absolute([2.0**-1074], [0.0]) == 2.0**-1074


# --- conventions
@pytest.mark.parametrize("measure", PAIRWISE)
def test_hits_and_misses(measure):
    nan, inf = math.nan, math.inf
    assert measure([0.0, -0.0, 1.0], [0.0, 0.0, 1.0]) == 0.0
    assert measure([nan, inf, -inf, 1.0], [nan, inf, -inf, 1.0]) == 0.0
    for c, r in ((nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf), (nan, inf), (inf, nan), (inf, 0.0)):
        assert measure([1.0, c], [1.0, r]) == inf
    for empty in ((0,), (0, 3), (2, 0)):
        assert measure(np.ones(empty), np.ones(empty)) == 0.0
    assert type(measure(1.5, 1.0)) is float


@pytest.mark.parametrize("measure", [*PAIRWISE, metrics.relative, metrics.symmetric])
def test_signalling_nans_are_silent(measure):
    for fmt in (formats.FP16, formats.FP32, formats.FP64):
        x = fmt.decode(np.array([(1 << (fmt.width - 1)) - (1 << (fmt.fraction_bits - 1)) - 1, 1]))
        assert np.isnan(x[0])
        assert not np.any(measure(x, x))
        assert np.max(measure(x, np.ones(2))) == math.inf
        assert metrics.ulps(x, x, fmt).tolist() == [0, 0]


def test_zero_references():
    assert metrics.max_relative([1e-300, 1.0], [0.0, 1.0]) == math.inf
    assert metrics.mred([1e-300, 1.0], [0.0, 1.0]) == math.inf
    assert metrics.max_error_legemm([1e-300, 1.0], [0.0, 1.0]) == 1.0
    assert metrics.relative_l2([1.0, 1.0], [0.0, 2.0]) == math.sqrt(2) / 2
    assert metrics.relative_l2([1e-300], [0.0]) == math.inf
    assert metrics.max_absolute([1e-300], [0.0]) == 1e-300


def test_a_matching_infinity_does_not_hide_an_error():
    assert metrics.relative_l2([math.inf, 1.5], [math.inf, 1.0]) == 0.5
    assert metrics.mred([math.nan, 1.5], [math.nan, 1.0]) == 0.25


# --- the componentwise measure
def test_normwise_against_fractions():
    for seed, scale in itertools.product(range(3), SCALES):
        A, B = inputs.operands("normal", 4, 3, 6, seed, "fp64")
        A, B = np.ldexp(A, scale), np.ldexp(B, -scale)
        R, C = reference.matmul(A, B), (A.astype(np.float32).astype(np.float64) if abs(scale) < 100 else A) @ B
        truth = Fraction(0)
        for i, j in np.ndindex(4, 3):
            weight = sum(abs(Fraction(x) * Fraction(y)) for x, y in zip(A[i].tolist(), B[:, j].tolist(), strict=True))
            truth = max(truth, abs(Fraction(float(C[i, j])) - Fraction(float(R[i, j]))) / weight)
        assert close(metrics.normwise(C, R, A, B), truth, ulps=16)


def test_normwise_of_products_that_underflow():
    A = np.array([[1.0, 2.0**-600, 0.0], [0.0, 0.0, 0.0]])
    B = np.array([[0.0, 0.0], [2.0**-600, 0.0], [1.0, 0.0]])
    R = np.zeros((2, 2))
    assert metrics.normwise(R, R, A, B) == 0.0
    C = R.copy()
    C[0, 0] = 2.0**-1074
    assert metrics.normwise(C, R, A, B) == 2.0**126  # the weight is 2^-1200
    C[1, 1] = 2.0**-1074
    assert metrics.normwise(C, R, A, B) == math.inf
    both = np.stack([A, A])
    assert metrics.normwise(np.stack([R, R]), np.stack([R, R]), both, B) == 0.0
    C = np.stack([R, R])
    C[1, 0, 0] = 2.0**-1074
    assert metrics.normwise(C, np.stack([R, R]), both, B) == 2.0**126
    both[1] = [[1.0, 2.0**-602, 0.0], [1.0, 2.0**-600, 0.0]]  # every entry has the weight of its row and matrix
    assert metrics.normwise(C, np.stack([R, R]), both, B) == 2.0**128


def test_normwise_with_specials():
    A, B = [[math.nan, 1.0], [2.0, 2.0]], [[1.0], [1.0]]
    R = reference.matmul(A, B)
    assert metrics.normwise([[math.nan], [5.0]], R, A, B) == 0.25
    assert metrics.normwise([[1.0], [5.0]], R, A, B) == math.inf
    assert metrics.normwise(np.ones((0, 2)), np.ones((0, 2)), np.ones((0, 3)), np.ones((3, 2))) == 0.0
    assert metrics.normwise([[1.5]], [[1.0]], [[math.inf, 1.0]], [[1.0], [1.0]]) == 0.5  # Inf counts as 0 in |A||B|


# --- steps between representable numbers
@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3", "e5m2", "e3m2", "e2m1", "e4m3fnuz"])
def test_ulps_counts_the_numbers_between(name):
    fmt = formats.get(name)
    width = min(fmt.width, 16)
    values = np.unique(arguments.as_float64(fmt.decode(np.arange(2**width)), "test"))  # sorted, the zeros are one
    values = values[~np.isnan(values)]
    places = np.arange(values.size)
    for shift in (1, 2, values.size // 2, values.size - 1):
        expected = places[shift:] - places[:-shift]
        assert (metrics.ulps(values[shift:], values[:-shift], fmt) == expected).all()
        assert (metrics.ulps(values[:-shift], values[shift:], fmt) == expected).all()
    assert metrics.max_ulps(values[:1], values[-1:], fmt) == values.size - 1


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.sampled_from(["fp64", "fp32", "fp16"]))
def test_ulps_of_raw_bits(p, q, name):
    fmt = formats.get(name)
    p, q = p >> (64 - fmt.width), q >> (64 - fmt.width)
    c, r = (fmt.decode(np.array([b], dtype=np.uint64)) for b in (p, q))

    def place(code):  # a Python integer: no width to overflow
        magnitude = code % 2 ** (fmt.width - 1)
        return -magnitude if code >> (fmt.width - 1) else magnitude

    result = metrics.ulps(c, r, fmt)
    assert result.dtype == np.uint64
    if np.isnan(c) or np.isnan(r):
        both = bool(np.isnan(c) and np.isnan(r))
        assert int(result[0]) == (0 if both else 2**64 - 1)
        assert metrics.max_ulps(c, r, fmt) == (0.0 if both else math.inf)
    else:
        assert int(result[0]) == abs(place(p) - place(q))


def test_ulps_special_places():
    for name in ("fp16", "fp32", "fp64"):
        fmt = formats.get(name)
        assert int(metrics.ulps(math.inf, fmt.max, fmt)) == 1
        assert int(metrics.ulps(0.0, -0.0, fmt)) == 0
        assert int(metrics.ulps(fmt.min_subnormal, -fmt.min_subnormal, fmt)) == 2
    assert int(metrics.ulps(math.inf, -math.inf, "fp64")) == 2 * 0x7FF0000000000000
    assert int(metrics.ulps(1.0, 1.0 + 2.0**-10, "tf32")) == 1
    flush = formats.FloatFormat("flush", 11, -14, 15, subnormals=False)
    assert int(metrics.ulps(2.0**-14, 0.0, flush)) == 1
    assert int(metrics.ulps(2.0**-14, -(2.0**-14), flush)) == 2
    assert metrics.max_ulps(np.ones(0), np.ones(0), "fp16") == 0.0
    with pytest.raises(InputError, match="not values of fp16"):
        metrics.ulps([1.0 + 2.0**-11], [1.0], "fp16")


# --- names
def test_every_name_leads_somewhere():
    for name in metrics.names():
        assert metrics.get(name) is getattr(metrics, name)
        assert metrics.get(name).__doc__
    for alias, measure in (
        ("h2sgemm", metrics.relative_l2),
        ("frobenius", metrics.relative_l2),
        ("dgemm-tc", metrics.max_relative),
        ("Max_Error", metrics.max_error_legemm),
        ("MRED", metrics.mred),
    ):
        assert metrics.get(alias) is measure
    with pytest.raises(InputError, match="did you mean 'mred'"):
        metrics.get("mered")


@pytest.mark.parametrize("measure", [*PAIRWISE, metrics.relative, metrics.symmetric, metrics.effective_bits])
def test_shapes_must_agree(measure):
    with pytest.raises(InputError, match=r"\(2, 3\) and \(3, 2\)"):
        measure(np.ones((2, 3)), np.ones((3, 2)))


def test_shapes_of_normwise_and_ulps():
    with pytest.raises(InputError, match=r"\(2, 3\) and \(3, 2\)"):
        metrics.ulps(np.ones((2, 3)), np.ones((3, 2)), "fp32")
    with pytest.raises(InputError, match=r"A of shape \(2, 3\) and B of shape \(2, 3\) do not share K"):
        metrics.normwise(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(InputError, match=r"not C's shape \(2, 3\)"):
        metrics.normwise(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(InputError, match="do not broadcast"):
        metrics.normwise(np.ones((2, 1, 1)), np.ones((2, 1, 1)), np.ones((2, 1, 1)), np.ones((3, 1, 1)))


@pytest.mark.parametrize("name", ["normwise", "max_ulps", metrics.normwise])
def test_effective_bits_take_a_measure_of_two_matrices(name):
    with pytest.raises(InputError, match="takes more than C and R"):
        metrics.effective_bits([[1.0]], [[1.0]], name)


@pytest.mark.parametrize(
    "fmt", [formats.FloatFormat("x", 11, -14, 10), formats.FloatFormat("y", 3, -2, 3, max_significand=5, padding=2)]
)
def test_infinity_follows_the_largest_number_of_any_format(fmt):
    assert metrics.ulps([np.inf, -np.inf, np.inf], [fmt.max, -fmt.max, np.inf], fmt).tolist() == [1, 1, 0]


@np.errstate(all="raise")
def test_underflow_within_a_measure_is_no_error_of_the_caller():
    C, R = np.array([[1e300, 1e-300], [5e-324, 1.0]]), np.array([[1e300, 2e-300], [1e-323, 1.0]])
    assert metrics.relative_l2(C, R) == 0
    assert metrics.normwise(C, R, [[1e-200, 1.0]] * 2, [[1e-200, 5e-324], [1.0, 1.0]]) == 2e-300 - 1e-300
