"""The exact product against Fractions, and its four ways of computing against each other: bits, with ==."""

import itertools
import math
import subprocess
import sys
from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import formats, inputs, metrics, reference
from fpemu.errors import InputError
from fpemu.reference import exact, slices
from tests import oracle
from tests.equal import same

METHODS = ("auto", "blas", "flint", "mpmath")
MODES = ("RNE", "RNA", "RZ", "RU", "RD", "ODD")
CODES = {"fp16": np.uint16, "fp32": np.uint32, "fp64": np.uint64}
same_bits = partial(same, any_nan=True)


# --- the oracle: scalars and Fractions only
def round_fraction(x, fmt, mode="RNE"):
    """x rounded to fmt; beyond a format without Inf and NaN: NaN."""
    try:
        return oracle.round_value(x, oracle.TARGETS[fmt.name], mode)
    except oracle.NotRepresentable:
        return math.nan


def entry(row, column, c=0.0, alpha=Fraction(1), beta=Fraction(0)):
    """The exact value of one entry, a Fraction, or a float for NaN and Inf."""
    terms = [(x, y) for x, y in zip(row, column, strict=True)] if alpha else []
    infinite = []
    for x, y in terms:
        if math.isnan(x) or math.isnan(y) or (math.isinf(x) and y == 0) or (x == 0 and math.isinf(y)):
            return math.nan
        if math.isinf(x) or math.isinf(y):
            infinite.append(math.copysign(1, x) * math.copysign(1, y) * (1 if alpha > 0 else -1))
    if beta and math.isnan(c):
        return math.nan
    if beta and math.isinf(c):
        infinite.append(math.copysign(1, c) * (1 if beta > 0 else -1))
    if infinite:
        return infinite[0] * math.inf if len(set(infinite)) == 1 else math.nan
    total = alpha * sum((Fraction(x) * Fraction(y) for x, y in terms), Fraction(0))
    return total + (beta * Fraction(c) if beta else 0)


def expected(A, B, C=None, alpha=1, beta=0, out="fp64", mode="RNE"):
    fmt = formats.get(out)
    A, B = np.asarray(A, dtype=np.float64), np.asarray(B, dtype=np.float64)
    result = np.empty((A.shape[0], B.shape[1]), dtype=fmt.dtype)
    C = np.zeros(result.shape) if C is None else np.broadcast_to(np.asarray(C, dtype=np.float64), result.shape)
    for i, j in np.ndindex(*result.shape):
        x = entry(A[i].tolist(), B[:, j].tolist(), float(C[i, j]), Fraction(alpha), Fraction(beta))
        result[i, j] = x if isinstance(x, float) else round_fraction(x, fmt, mode)
    return result


def run(method, *args, **options):
    try:
        return reference.matmul(*args, method=method, **options)
    except InputError as error:  # the slices refuse what they cannot scale, and say so
        if method == "blas" and "range too widely" in str(error):
            return None
        raise


# --- fixed cases
H, S, D = 2.0**-11, 2.0**-24, 2.0**-53  # unit roundoffs
TINY, HUGE = 2.0**-1074, 2.0**1023
MAX16, MAX32, MAX64 = (f.max for f in (formats.FP16, formats.FP32, formats.FP64))
CASES = {
    "cancels to the last bit": ([[1e16, 1.0, -1e16]], [[1.0], [1.0], [1.0]]),
    "cancels to zero": ([[3.0, -3.0, 0.0]], [[7.0], [7.0], [5.0]]),
    "minus zero": ([[-0.0, 0.0]], [[1.0], [-1.0]]),
    "full range": ([[HUGE, TINY, -HUGE]], [[HUGE], [TINY], [HUGE]]),
    "full range, subnormal left": ([[HUGE, TINY, -HUGE]], [[1.0], [3.0], [1.0]]),
    "full range, one row": ([[HUGE, TINY], [1.0, TINY]], [[1.0, TINY], [0.5, HUGE]]),
    "products beyond float64": ([[HUGE, HUGE]], [[HUGE], [-HUGE]]),
    "overflow": ([[HUGE, HUGE], [-HUGE, -HUGE]], [[1.0], [1.0]]),
    "products below float64": ([[TINY]], [[TINY]]),
    "negative underflow": ([[-TINY]], [[0.25]]),
    **{
        f"{kind} of {name}": ([[1.0, u, extra]], [[first], [1.0], [1.0]])
        for name, u in (("fp16", H), ("fp32", S), ("fp64", D))
        for kind, first, extra in (
            ("tie to even below", 1.0, 0.0),
            ("tie to even above", 1.0 + 2 * u, 0.0),
            ("above a tie", 1.0, 2.0**-300),
            ("below a tie", 1.0, -(2.0**-300)),
        )
    },
    **{
        f"overflow threshold of {name} {kind}": ([[top, ulp / 2, extra]], [[1.0], [1.0], [1.0]])
        for name, top, ulp in (("fp16", MAX16, 2.0**5), ("fp32", MAX32, 2.0**104), ("fp64", MAX64, 2.0**971))
        for kind, extra in (("met", 0.0), ("just missed", -TINY), ("passed", TINY))
    },
    **{
        f"subnormal {kind} of {name}": ([[least * 3, extra]], [[0.5], [least]])
        for name, least in (("fp16", 2.0**-24), ("fp32", 2.0**-149))
        for kind, extra in (("tie", 0.0), ("above a tie", 2.0**-200), ("below a tie", -(2.0**-200)))
    },
    "half of the least fp64": ([[TINY], [3 * TINY], [-TINY], [TINY * 1.5]], [[0.5]]),
    "largest subnormal rounds to normal": ([[2.0**-1022 - TINY, TINY]], [[1.0], [0.5]]),
    "NaN and Inf": (
        [[math.nan, 1.0], [math.inf, 1.0], [math.inf, -math.inf], [-math.inf, 0.0], [0.0, 2.0]],
        [[1.0, 0.0, math.inf, -1.0], [1.0, 1.0, 1.0, math.inf]],
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_cases(name, method):
    A, B = CASES[name]
    for out in ("fp64", "fp32", "fp16"):
        result = run(method, A, B, out=out)
        if result is not None:
            same_bits(result, expected(A, B, out=out))


def test_signalling_nans_are_silent():
    for fmt in (formats.FP16, formats.FP32, formats.FP64):
        x = fmt.decode(np.array([[(1 << (fmt.width - 1)) - (1 << (fmt.fraction_bits - 1)) - 1, 1]]))
        assert np.isnan(x[0, 0])
        for method in METHODS:
            assert np.isnan(reference.matmul(x, np.ones((2, 1)), np.ones(1), beta=1, method=method)).all()
            assert np.isnan(reference.matmul(np.ones((1, 1)), np.ones((1, 2)), x, beta=1, method=method))[0, 0]
        assert np.isnan(reference.matmul(x.T, x, out="exact").round_to("bf16")[0, 0])


def test_the_slices_refuse_only_what_they_must():
    assert run("blas", *CASES["full range"]) is None
    assert run("blas", [[HUGE]], [[TINY]]) == 2.0**-51


def test_signs_of_zero():
    assert not np.signbit(reference.matmul([[-0.0]], [[1.0]])).any()  # an exact zero is +0
    assert not np.signbit(reference.matmul([[-1.0, 1.0]], [[1.0], [1.0]])).any()
    assert np.signbit(reference.matmul([[-TINY]], [[TINY]])).all()  # a rounded one keeps its sign


# --- raw bit patterns
words = st.integers(0, 2**64 - 1)
halves = st.integers(0, 2**16 - 1).map(lambda b: float(np.uint16(b).view(np.float16)))
singles = st.integers(0, 2**32 - 1).map(lambda b: float(np.uint32(b).view(np.float32)))
doubles = words.map(lambda b: float(np.uint64(b).view(np.float64)))
small = st.integers(-9, 9).map(float)


@st.composite
def problems(draw, entries):
    M, N, K = (draw(st.integers(1, 3)) for _ in range(3))
    A, B, C = (draw(st.lists(entries, min_size=n, max_size=n)) for n in (M * K, K * N, M * N))
    return np.reshape(A, (M, K)), np.reshape(B, (K, N)), np.reshape(C, (M, N))


@settings(max_examples=120, deadline=None)
@given(problems(doubles | halves | small), st.sampled_from(["fp64", "fp32", "fp16"]))
def test_raw_bits(problem, out):
    A, B, _ = problem
    truth = expected(A, B, out=out)
    for method in METHODS:
        result = run(method, A, B, out=out)
        if result is not None:
            same_bits(result, truth)


@settings(max_examples=80, deadline=None)
@given(problems(singles | halves), words, words, st.sampled_from(["fp64", "fp32", "fp16"]))
def test_alpha_and_beta(problem, p, q, out):
    A, B, C = problem
    alpha = Fraction(p % 2001 - 1000, q % 7 + 1)
    beta = float(np.uint64(q).view(np.float64))
    beta = beta if math.isfinite(beta) else 0.5
    truth = expected(A, B, C, alpha, beta, out)
    for method in METHODS:
        result = run(method, A, B, C, alpha=alpha, beta=beta, out=out)
        if result is not None:
            same_bits(result, truth)


SIGNED = [name for name in formats.names() if name in oracle.TARGETS and not formats.get(name).positive]


@settings(max_examples=60, deadline=None)
@given(problems(doubles), st.sampled_from(SIGNED), st.sampled_from(MODES))
def test_formats_and_modes(problem, name, mode):
    fmt = formats.get(name)
    A, B = (np.where(np.isfinite(X), X, 1.0) for X in problem[:2])
    X = reference.matmul(A, B, out="exact")
    truth = expected(A, B, out=fmt, mode=mode)
    if not fmt.negative_zero:
        truth = truth + 0.0
    if fmt.nan == "none" and np.isnan(truth).any():
        with pytest.raises(InputError, match="no Inf and no NaN"):
            X.round_to(fmt, mode)
        clipped = X.round_to(fmt, mode, saturate=True)
        assert (np.abs(clipped[np.isnan(truth)]) == fmt.max).all()
    else:
        same_bits(X.round_to(fmt, mode), truth)


def near_steps(fmt):
    """Fractions on, between and beside the numbers of fmt, near zero, at the foot of the normals and at the top."""
    for base in (Fraction(fmt.min_subnormal), Fraction(fmt.min_normal), Fraction(1), Fraction(fmt.max)):
        ulp = max(Fraction(fmt.min_subnormal), base / 2 ** (fmt.precision - 1))
        for quarters in range(-9, 10):
            for beside in (0, Fraction(1, 2**70), Fraction(-1, 2**70)):
                yield base + ulp * quarters / 4 + ulp * beside


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[pytest.mark.slow] * (name == "fp64" and mode not in ("RNE", "RZ")))
        for name in ("fp16", "bf16", "tf32", "fp32", "fp64", "e4m3", "e5m2", "e5m2fnuz")
        for mode in MODES
    ],
)
def test_rounding_of_exact_numbers(name, mode):
    fmt = formats.get(name)
    values = [sign * v for v in near_steps(fmt) for sign in (1, -1)]
    truth = np.array([round_fraction(v, fmt, mode) for v in values], dtype=fmt.dtype)
    if not fmt.negative_zero:
        truth = truth + np.float32(0)
    V = np.array([v.numerator * 15 for v in values], dtype=object)
    E = np.array([-(v.denominator.bit_length() - 1) for v in values], dtype=np.int64)
    for X in (exact.ExactMatrix(V // 15, E), exact.ExactMatrix(V, E, 15)):
        same_bits(X.round_to(fmt, mode), truth)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64", "e4m3"])
def test_overflow_of_exact_numbers_beyond_float64(name, mode):
    fmt = formats.get(name)
    values = [Fraction(sign * v) for v in (1 << 1024, (1 << 5000) - 1) for sign in (1, -1)]
    truth = np.array([round_fraction(v, fmt, mode) for v in values], dtype=fmt.dtype)
    X = exact.ExactMatrix(np.array([int(v) for v in values], dtype=object), np.zeros(4, np.int64))
    same_bits(X.round_to(fmt, mode), truth)


def test_a_format_without_subnormals():
    flush = formats.FloatFormat("flush", 11, -14, 15, subnormals=False)
    least = 2.0**-14
    A = [[least * 0.5], [least * 0.75], [least * 0.25], [-least * 0.51], [least]]
    result = reference.matmul(A, [[1.0]], out=flush).ravel()
    assert result.tolist() == [0.0, least, 0.0, -least, least]


def test_stochastic_rounding_is_refused():
    with pytest.raises(InputError, match="stochastically"):
        reference.matmul([[1.0]], [[1.0]], out="exact").round_to("fp16", "SR")


# --- larger products: the fast ways against each other
@pytest.mark.parametrize("name", inputs.names())
@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp64"])
def test_distributions(name, dtype):
    parameters = {"wide": {"low": -12, "high": 12}}.get(name, {})
    A, B = inputs.operands(name, 17, 19, 23, seed=[5, 1], dtype=dtype, **parameters)
    truth = reference.matmul(A, B, method="flint")
    for method in ("auto", "blas"):
        result = run(method, A, B)
        assert result is not None or (name == "all_bits" and dtype == "fp64")
        if result is not None:
            same_bits(result, truth)


def test_medium_product_in_every_format():
    A, B = inputs.operands("cancellation", 150, 130, 301, seed=11, dtype="fp64", bits=40)
    X = reference.matmul(A, B, out="exact", method="flint")
    Y = reference.matmul(A, B, out="exact", method="blas")
    for fmt, mode in itertools.product(("fp16", "fp32", "fp64"), MODES):
        same_bits(Y.round_to(fmt, mode), X.round_to(fmt, mode))
    for fmt in ("fp16", "fp32", "fp64"):
        same_bits(reference.matmul(A, B, out=fmt, method="blas"), X.round_to(fmt))


@pytest.mark.parametrize("K", [1, 2, 3, 1023, 1024, 1025, 4096])
def test_slices_full_to_the_last_bit(K):
    x = 1.0 - 2.0**-53
    for sign in (1.0, -1.0):
        result = reference.matmul(np.full((1, K), x), np.full((K, 1), sign * x), out="exact", method="blas")
        assert result.fraction(0, 0) == int(sign) * K * Fraction(x) ** 2


def test_blocks_join(monkeypatch):
    A, B = inputs.operands("normal", 9, 7, 5, seed=3, batch=(2, 3))
    truth = reference.matmul(A, B, method="flint")
    for block in (1, 7, 20, 63, 200):
        monkeypatch.setattr(slices, "BLOCK", block)
        same_bits(reference.matmul(A, B, method="blas"), truth)
        same_bits(reference.matmul(A, B, method="blas", out="exact").round_to("fp64"), truth)


def test_many_slices_go_to_flint(monkeypatch):
    A, B = inputs.operands("wide", 4, 4, 4, seed=1, dtype="fp64", low=-300, high=300)
    seen = []

    def product(*args, exact_product=exact.product):
        seen.append(args)
        return exact_product(*args)

    monkeypatch.setattr(exact, "product", product)
    same_bits(reference.matmul(A, B), expected(A, B))
    same_bits(reference.matmul(A, B, method="blas"), expected(A, B))
    assert len(seen) == 1


def test_flint_context_is_left_alone():
    import flint

    before = (flint.ctx.prec, flint.ctx.threads)
    reference.matmul(np.eye(3), np.eye(3), method="flint")
    assert (flint.ctx.prec, flint.ctx.threads) == before


# --- shapes and dtypes
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("a", "b"),
    [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0, 0), (0, 0)), ((0, 2, 3), (3, 4)), ((4, 0, 2), (2, 0))],
)
def test_empty(a, b, method):
    result = reference.matmul(np.ones(a), np.ones(b), method=method)
    same_bits(result, np.matmul(np.ones(a), np.ones(b)))
    C = np.full(result.shape[-1:], 3.0)
    same_bits(reference.matmul(np.ones(a), np.ones(b), C, beta=2, method=method), result + 6.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("a", "b"), [((2, 1), (3,)), ((), (2, 2)), ((3,), ()), ((1,), (4,))])
def test_leading_axes(a, b, method):
    rng = np.random.default_rng(7)
    A, B = rng.integers(-99, 99, (*a, 2, 3)), rng.integers(-99, 99, (*b, 3, 4))
    truth = np.matmul(A, B)
    result = reference.matmul(A.astype(np.float32), B, out="fp32", method=method)
    same_bits(result, truth.astype(np.float32))
    C = rng.integers(-99, 99, (4,))
    same_bits(reference.matmul(A, B, C, alpha=-3, beta=2, method=method), (2.0 * C - 3 * truth).astype(np.float64))


def test_dtypes():
    x = np.array([[0.1, -3.0], [1e-3, 7.0]])
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, np.uint64):
        A = np.abs(x).astype(dtype)
        same_bits(reference.matmul(A, A), reference.matmul(A.astype(np.float64), A.astype(np.float64)))
    assert reference.matmul(np.int64([[2**53 + 2]]), np.int8([[1]])) == 2.0**53 + 2
    for out, dtype in (("fp16", np.float16), ("half", np.float16), ("bf16", np.float32), ("d", np.float64)):
        assert reference.matmul(x, x, out=out).dtype == dtype
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4))[::2, ::-1]
    same_bits(reference.matmul(fortran, fortran.T), fortran @ fortran.T)


def test_scalars_are_exact():
    A, B, C = [[3.0]], [[5.0]], [[1.0]]
    assert reference.matmul(A, B, alpha=Fraction(1, 3)) == 5.0
    assert reference.matmul(A, B, C, alpha=Fraction(1, 15), beta=-1) == 0.0
    X = reference.matmul(A, B, C, alpha=Fraction(1, 7), beta=Fraction(-3, 20), out="exact")
    assert X.fraction(0, 0) == Fraction(15, 7) - Fraction(3, 20)
    assert X.denominator == 35
    assert reference.matmul([[1.0]], [[1.0]], alpha=0.1, out="exact").fraction(0, 0) == Fraction(0.1)
    assert reference.matmul([[1.0]], [[1.0]], alpha=np.float32(0.1), out="exact").fraction(0, 0) == Fraction(
        float(np.float32(0.1))
    )
    assert reference.matmul([[HUGE]], [[HUGE]], alpha=2.0**-1074) == 2.0**972


@pytest.mark.parametrize("method", METHODS)
def test_a_third_of_a_sum_beside_a_tie(method):
    B = [[1.0]] * 3
    for out, u in (("fp16", H), ("fp32", S), ("fp64", D)):
        for rest, truth in ((2.0**-200, 1 + 2 * u), (0.0, 1.0), (-(2.0**-200), 1.0)):
            assert reference.matmul([[3.0, 3 * u, rest]], B, alpha=Fraction(1, 3), out=out, method=method) == truth


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_read(method):
    bad = [[math.nan]]
    assert reference.matmul([[2.0]], [[3.0]], bad, beta=0, method=method) == 6.0
    assert reference.matmul(bad, [[math.inf]], [[4.0]], alpha=0, beta=0.5, method=method) == 2.0
    assert np.isnan(reference.matmul([[2.0]], [[3.0]], bad, beta=1, method=method)).all()
    assert reference.matmul([[math.inf]], [[3.0]], [[1.0]], alpha=-2, beta=1, method=method) == -math.inf
    assert np.isnan(reference.matmul([[math.inf]], [[3.0]], [[math.inf]], alpha=-2, beta=1, method=method)).all()
    assert reference.matmul([[math.inf]], [[3.0]], [[math.inf]], alpha=-2, beta=-1, method=method) == -math.inf


@pytest.mark.parametrize("method", METHODS)
def test_a_fraction_of_c_beside_the_whole_product(method):
    assert reference.matmul([[2.0]], [[5.0]], [[6.0]], alpha=1, beta=Fraction(1, 3), method=method) == 12.0


# --- the exact object
def test_large_entries_as_fractions():
    X = reference.matmul([[2.0**600, 3.0]], [[2.0**500], [2.0**1000]], out="exact")
    assert X.fraction(0, 0) == 2**1100 + 3 * 2**1000


def test_exact_matrix():
    A, B = inputs.operands("all_bits", 4, 3, 5, seed=2, dtype="fp64")
    X = reference.matmul(A, B, out="exact", method="flint")
    assert X.shape == (4, 3)
    for i, j in np.ndindex(4, 3):
        assert X.fraction(i, j) == entry(A[i].tolist(), B[:, j].tolist())


@settings(max_examples=60, deadline=None)
@given(problems(halves | small | singles), st.integers(0, 2**32))
def test_errors_of_a_result(problem, seed):
    A, B, D = problem
    A, B, D = (np.where(np.isfinite(X), X, 1.0) for X in (A, B, D))
    X = reference.matmul(A, B, out="exact", alpha=Fraction(1, 3))
    D = np.where(np.random.default_rng(seed).random(D.shape) < 0.7, X.round_to("fp16"), D)
    D = np.where(np.isfinite(D), D, 0.0)
    truth = np.empty(D.shape)
    for i, j in np.ndindex(*D.shape):
        x, d = X.fraction(i, j), Fraction(float(D[i, j]))
        if x == 0:
            truth[i, j] = 0.0 if d == 0 else math.inf
        else:
            error = abs(d - x) / abs(x)
            truth[i, j] = error.numerator / error.denominator
    assert (metrics.relative(D, X) == truth).all()
    below = np.array([[Fraction(float(D[i, j])) < X.fraction(i, j) for j in range(D.shape[1])] for i in range(len(D))])
    assert (metrics.relative(D, X, signed=True) == np.where(below, -truth, truth)).all()
    assert metrics.max_relative(D, X) == truth.max()
    if np.isfinite(truth).all():
        assert metrics.mred(D, X) == math.fsum(truth.ravel()) / truth.size
    top = sum((Fraction(float(D[i])) - X.fraction(*i)) ** 2 for i in np.ndindex(*D.shape))
    bottom = sum(X.fraction(*i) ** 2 for i in np.ndindex(*D.shape))
    norm = metrics.relative_l2(D, X)
    if bottom == 0 or top == 0:
        assert norm == (math.inf if top else 0.0)
    else:  # within an ulp of the root
        lower, upper = Fraction(np.nextafter(norm, 0)), Fraction(np.nextafter(norm, np.inf))
        assert lower**2 < top / bottom < upper**2


def test_errors_with_specials():
    A = [[math.nan, 1.0], [math.inf, 1.0], [1.0, 1.0]]
    X = reference.matmul(A, [[1.0], [1.0]], out="exact")
    assert metrics.relative([[math.nan], [math.inf], [2.5]], X).ravel().tolist() == [0.0, 0.0, 0.25]
    assert metrics.relative_l2([[math.nan], [math.inf], [2.5]], X) == 0.25
    assert metrics.relative([[1.0], [-math.inf], [math.nan]], X).ravel().tolist() == [math.inf] * 3
    assert metrics.relative([[1.0], [-math.inf], [1.0]], X, signed=True).ravel().tolist() == [math.inf, -math.inf, -0.5]
    empty = reference.matmul(np.ones((0, 2)), np.ones((2, 2)), out="exact")
    for measure in (metrics.max_relative, metrics.mred, metrics.relative_l2):
        assert measure([[math.nan], [math.inf], [math.inf]], X) == math.inf
        assert measure(np.ones((0, 2)), empty) == 0.0
    with pytest.raises(InputError, match="no fraction"):
        X.fraction(0, 0)
    assert X.fraction(2, 0) == 2
    assert np.isnan(X.round_to("e4m3")[1, 0])  # no Inf there
    assert X.round_to("e4m3", saturate=True)[1, 0] == 448.0


def test_operand_integers():
    X = inputs.make("all_bits", 500, seed=1, dtype="fp64")
    s, e = exact.integers(X)
    assert all(
        Fraction(int(a)) * Fraction(2) ** int(b) == Fraction(x) for a, b, x in zip(s, e, X.tolist(), strict=True)
    )
    assert ((s % 2 == 1) | (X == 0)).all()


# --- wrong arguments
@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((np.ones((2, 3)), np.ones((2, 3))), {}, r"A of shape \(2, 3\) and B of shape \(2, 3\) do not share K"),
        ((np.ones(()), np.ones((3, 2))), {}, r"not A \(\) and B \(3, 2\)"),
        ((np.ones((2, 1, 1)), np.ones((3, 1, 1))), {}, r"of A \(2, 1, 1\) and B \(3, 1, 1\) do not broadcast"),
        ((np.ones((1, 1)), np.ones((1, 1)), np.ones((2, 1))), {"beta": 1}, r"C \(2, 1\) does not broadcast"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"beta": 1}, "C is missing"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"alpha": math.nan}, "alpha must be a finite real number"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"beta": -math.inf}, "beta must be a finite real number"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"alpha": "1/3"}, "alpha must be a finite real number"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"alpha": 1j}, "alpha must be a finite real number"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"method": "flit"}, "did you mean 'flint'"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"out": "fp33"}, "unknown format 'fp33'"),
        ((np.ones((1, 1)), np.ones((1, 1))), {"out": "exact", "method": "mpmath"}, "no exact object"),
        ((np.ones((1, 1), np.clongdouble), np.ones((1, 1))), {}, "complex numbers of at most 64 bits"),
    ],
)
def test_wrong_arguments(args, options, message):
    with pytest.raises(InputError, match=message):
        reference.matmul(*args, **options)


def test_a_shape_that_differs_from_the_exact_matrix():
    X = reference.matmul(np.ones((1, 1)), np.ones((1, 1)), out="exact")
    with pytest.raises(InputError, match=r"result C and reference R differ in shape: \(1,\) and \(1, 1\)"):
        metrics.relative([1.0], X)


def test_import_is_light():
    code = "import sys, fpemu.reference; print(sorted({'flint', 'mpmath'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_all_is_complete():
    public = {
        n
        for n, v in vars(reference).items()
        if not n.startswith("_") and getattr(v, "__module__", "") == "fpemu.reference"
    }
    assert public <= set(reference.__all__)
    assert all(hasattr(reference, n) for n in reference.__all__)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_rounds_alike_to_formats_without_a_fraction_or_without_nan(method):
    ties = np.ldexp(1.5, np.arange(-3, 4))[:, None]
    powers = reference.matmul(ties, [[1.0]], out="e8m0", method=method)
    assert powers.ravel().tolist() == [0.125, 0.5, 0.5, 2.0, 2.0, 8.0, 8.0]
    with pytest.raises(InputError, match=r"e2m1.* of 3 entries, first at \[1, 0\]"):
        reference.matmul([[1.0], [8.0], [math.nan]], [[1.0]], out="e2m1", method=method)


def test_a_relative_norm_beyond_float64_is_infinite():
    exact_product = reference.matmul([[1e-300]], [[1e-300]], out="exact")
    assert metrics.relative_l2([[1e308]], exact_product) == math.inf
