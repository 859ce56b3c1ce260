"""The compiled elementwise operations against their NumPy reference implementations, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fpemu import InputError, _system, formats, inputs, metrics, reference, rounding
from fpemu.formats import FloatFormat
from fpemu.metrics import analysis, papers
from fpemu.reference import slices
from fpemu.rounding import Rounding
from fpemu.schemes import words
from fpemu.schemes.words import Word
from tests import hostile
from tests.hostile import bits

CUSTOM = [
    FloatFormat("flushed", 11, -14, 15, subnormals=False),
    FloatFormat("large", 11, 5, 10, subnormals=False),
    FloatFormat("one-bit", 1, -5, 6),
    FloatFormat("one-bit-finite", 1, -6, 6, inf=False, nan="none"),
    FloatFormat("wide", 30, -1022, 1023),
    FloatFormat("few", 4, -6, 8, max_significand=9),
]
TARGETS = [*(fmt for fmt in vars(formats).values() if isinstance(fmt, FloatFormat) and not fmt.positive), *CUSTOM]
MODES = [mode for mode in Rounding if mode is not Rounding.SR]


@pytest.fixture
def both(monkeypatch):
    """A function that returns the results of a call by both implementations: arrays, or the texts of errors."""

    def results(call, *modules):
        answers = []
        for compiled in (True, False):
            for module in modules:
                monkeypatch.setattr(module, "use_compiled", lambda size, compiled=compiled: compiled and size > 0)
            try:
                answers.append(call())
            except InputError as error:
                answers.append(str(error))
        return answers

    return results


def assert_same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        differ = (bits(a) != bits(b)) if a.dtype.kind == "f" else a != b
        assert not differ.any(), (np.count_nonzero(differ), a[differ][:3], b[differ][:3])
    else:
        assert a == b


def numbers(fmt, count=1500, seed=0):
    """Any float64, and numbers on and next to values, midpoints and limits of a format."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(0, 1 << min(fmt.precision, 50) + 3, count).astype(np.float64)
    near = np.ldexp(steps, rng.integers(fmt.emin - fmt.precision - 3, fmt.emin + 4, count).astype(np.int32))
    special = [0.0, np.inf, np.nan, 5e-324, 2.0**-1022, fmt.max, fmt.min_subnormal, fmt.min_normal, 1.0]
    with np.errstate(over="ignore"):
        limits = np.outer(special, [1, 0.5, 1.5, 0.25, 1 - 2.0**-53, 1 + 2.0**-52]).ravel()
        top = fmt.max * rng.uniform(0.9, 1.2, count)
    x = np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, np.inf), top, limits])
    patterns = [hostile.draw("fp64", kind, rng, (count // 4,)).view(np.float64) for kind in hostile.CLASSES[:5]]
    return np.concatenate([x, -x, *patterns])


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("fmt", TARGETS, ids=str)
def test_rounding(fmt, mode, both):
    x = numbers(fmt)
    for saturate in (False, True):
        y = x if fmt.has_nan else x[np.abs(x) <= fmt.max]
        assert_same(*both(lambda y=y, s=saturate: rounding._round_to(y, fmt, mode, s), rounding))
    if not fmt.has_nan:
        errors = both(lambda: rounding._round_to(x, fmt, mode), rounding)
        assert_same(*errors)
        assert "no NaN" in errors[0] or "no Inf" in errors[0]


def _rules():
    for fmt in ("fp16", "bf16", "tf32", "e4m3", "e5m2"):
        cut = ("bit-cut",) if fmt == "fp16" else ()
        for number, high in enumerate(("RNE", "RNA", "RNZ", "RZ", "RU", "RD", "ODD", "away-from-zero", *cut)):
            for low, exponent in (("RNE", 11), ("RZ", 0), ("away-from-zero", -5), ("RU", 12))[number % 2 :: 2]:
                yield tuple(Word(str(i), fmt, low if i else high, i * exponent) for i in range(3))


@pytest.mark.parametrize("rules", [*_rules()], ids=lambda rules: "-".join((str(rules[0].format), rules[0].rounding)))
def test_splits(rules, both):
    rng = np.random.default_rng(1)
    near = rng.standard_normal((48, 50)) * np.exp2(rng.integers(-30, 14, (48, 50)))
    edge = np.float32([0, -0.0, 65504, 65519.99, 65520, -65536, 2.0**-24, 2.0**-25, 2.0**-149, 3e38])
    x = np.concatenate([near.astype(np.float32), np.resize(edge, (2, 50))])
    hostile_x = hostile.carrier(hostile.draw("fp32", "any-bits", rng, (50, 50)), "fp32")
    with np.errstate(all="ignore"):
        for X, policy in ((x, "raise"), (near.astype(np.float32), "raise"), *((hostile_x, p) for p in words.POLICIES)):
            for name in "AB":
                ready = both(lambda X=X, p=policy, name=name: words.prepare(X, name, rules, p, p, "x"), words)
                if isinstance(ready[1], str):
                    assert ready[0] == ready[1]
                    continue
                for field in ("exponents", "special", "finite"):
                    assert np.array_equal(*(getattr(r, field) for r in ready), equal_nan=field == "finite")
                for a, b in zip(*(r.words for r in ready), strict=True):
                    nan = np.isnan(b)  # the sign of Inf - Inf depends on the processor
                    assert_same(*(np.where(nan, np.float32(np.nan), w) for w in (a, b)))
        finite = x[:48]
        for a, b in zip(*both(lambda: words.split(finite, rules), words), strict=True):
            assert_same(a, b)


@pytest.mark.parametrize("fmt", TARGETS, ids=str)
def test_ulps(fmt, both):
    x = numbers(fmt, 1000)
    x = x if fmt.has_nan else x[~np.isnan(x)]
    x = x if fmt.inf else x[np.abs(x) <= fmt.max]
    C = rounding._round_to(x, fmt)
    R = np.random.default_rng(2).permutation(C)
    distances = both(lambda: metrics.ulps(C, R, fmt), analysis)
    assert_same(*distances)
    assert len(np.unique(distances[0])) > 3
    if fmt.precision < 53:
        other = np.where(np.arange(len(C)) == 7, 1 + 2.0**-52, np.float64(C))
        errors = both(lambda: metrics.ulps(other, R, fmt), analysis)
        assert_same(*errors)
        assert "not values of" in errors[0]


@pytest.mark.parametrize("seed", range(24))
def test_norms(seed, both):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40_000))
    spread = np.exp2(rng.integers(-3 * seed, 3 * seed + 1, count))
    C = rng.standard_normal(count) * spread * 2.0 ** rng.integers(-900, 900)
    R = C * (1 + rng.standard_normal(count) * 2.0 ** -rng.integers(1, 60, count))
    if seed % 3 == 0:
        R[rng.integers(0, count)] = [np.inf, np.nan, 0, 2.0**1001, 1e-310][seed // 3 % 5]
    C, R = (C, np.zeros(count)) if seed == 4 else (R, R) if seed == 5 else (C, R)
    if seed % 2:
        with np.errstate(over="ignore", under="ignore"):
            C = C.astype(np.float32)
    assert_same(*both(lambda: metrics.relative_l2(C, R), papers))


@pytest.mark.parametrize("fmt", ["fp32", "fp16", "fp64", "e2m1"])
@pytest.mark.parametrize("name", inputs.names())
def test_operands(name, fmt, both, monkeypatch):
    """Blocks of any size and both implementations give the numbers of a draw of the whole array."""
    for more in ({}, {"exponent": 14}) if name != "all_bits" else ({},):
        drawn = []
        for block in (1 << 30, 1000):
            monkeypatch.setattr(inputs, "_BLOCK", block)
            drawn += both(lambda more=more: inputs.make(name, (3, 50, 41), 5, fmt, **more), inputs, rounding)
        for other in drawn[1:]:
            assert_same(drawn[0], other)
    A, B = inputs.operands(name, 9, 8, 31, 5)
    for threaded in both(lambda: inputs.operands(name, 9, 8, 31, 5), inputs, rounding):
        assert_same(threaded[0], A)
        assert_same(threaded[1], B)


def test_the_exponential(both):
    rng = np.random.default_rng(3)
    edge = [0.0, -0.0, np.inf, -np.inf, 1e-300, -745.2, -745.1, 709.7, 709.8, -708.5]
    x = np.concatenate([rng.uniform(-810, 810, 100_000), rng.standard_normal(100_000), edge])
    assert_same(*both(lambda: inputs._exp(x), inputs))


@pytest.mark.parametrize("out", ["fp64", "fp32", "fp16", "e4m3", "e5m2fnuz"])
@pytest.mark.parametrize("case", range(12))
def test_exact_products(case, out, both):
    """Both implementations of the slices, and FLINT's integers."""
    rng = np.random.default_rng(case)
    M, N, K = (int(n) for n in rng.integers(1, 40, 3))
    K, batch, spread = 1500 if case % 5 == 0 else K, (2,) * (case % 3 == 0), (0, 3, 20, 60, 200, 400)[case % 6]
    A, B = (
        rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread + 1, shape)) * 2.0 ** rng.integers(-300, 300)
        for shape in ((*batch, M, K), (K, N))
    )
    if case % 4 == 1:
        A, B = (np.round(X * 4 / np.abs(X).max()) * 2.0**-540 for X in (A, B))  # ties, subnormals, zeros
    if case % 4 == 2 and K > 1:  # sums that cancel
        A[..., K // 2 :], B[K // 2 :] = -A[..., : K - K // 2], B[: K - K // 2]
    compiled, plain = both(lambda: reference.matmul(A, B, out=out, method="blas"), slices)
    assert_same(compiled, plain)
    assert_same(compiled, reference.matmul(A, B, out=out, method="flint"))


def test_every_product_of_slices_is_exact():
    """BLAS adds at most `length` integers whose magnitudes a slice bounds; the int64 sums hold all of them."""
    rng = np.random.default_rng(0)
    for K, spread in ((1, 0), (3, 5), (700, 0), (2048, 8), (5000, 30), (70_000, 2)):
        A, B = (rng.standard_normal(s) * np.exp2(rng.integers(-spread, spread + 1, s)) for s in ((3, K), (K, 2)))
        s = slices.choose(A, B)
        for X, top, count in ((A, s.rows, s.slices[0]), (B, s.columns, s.slices[1])):
            cut = slices.cut(X[None], top[None], s.width, count)
            assert np.abs(cut).max() <= 2 ** (s.width - 1)
            back = sum(np.ldexp(x[0], 1 - (i + 1) * s.width + top) for i, x in enumerate(cut))
            assert np.array_equal(back, X)
        assert s.length * 4 ** (s.width - 1) <= 2**53
        assert min(s.slices) * K * 4 ** (s.width - 1) <= 2**62


def test_small_arrays_need_no_numba():
    script = (
        "import sys, numpy as np, fpemu; from fpemu import inputs, metrics, reference, schemes; "
        "fpemu.round_to(0.1, 'fp16'); x = inputs.make('phi', (100, 100), 0); fpemu.round_to(x, 'bf16'); "
        "schemes.get('ootomo').split(x); metrics.relative_l2(x, x); metrics.max_ulps(x, x, 'fp32'); "
        "print('numba' in sys.modules, fpemu._system.use_compiled(2**16), 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "False True True\n", done.stderr


def test_without_numba_s_compiler_numpy_computes(monkeypatch):
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not _system.use_compiled(2**20)
