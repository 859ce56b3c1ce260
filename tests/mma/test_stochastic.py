"""Instructions whose sums are rounded stochastically: an oracle in fractions, random bits by position, statistics."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import numpy as np
import pytest

from fpemu import InputError, mma
from fpemu.mma import KOrder, MmaSpec, tree
from fpemu.mma.codes import values
from tests import hostile
from tests.equal import same
from tests.oracle.values import TARGETS, floor_log2, round_value

BITS, SEED = 7, 11
MODE = {"final": "SR", "random_bits": BITS, "seed": SEED}
SPECS = [
    MmaSpec("fp16", "fp16", "fp32", k=8, block=4, F=25, E0=-133, **MODE),
    MmaSpec("bf16", "e4m3", "fp32", k=8, block=8, F=30, **MODE),
    MmaSpec("fp16", "fp16", "fp16", k=4, block=4, F=24, **MODE),
    MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=35, fraction_bits=9, **MODE),
    MmaSpec("bf16", "bf16", "fp32", k=4, block=2, arithmetic="exact", **MODE),
    MmaSpec("fp16", "e5m2", "fp16", k=4, block=4, arithmetic="exact", **MODE),
]
SCALED = [mma.catalog.block_scaled()[i].replace(fraction_bits=9, **MODE) for i in (0, 7)]


def finaliser(x):
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor % 2**64
    return x ^ x >> 31


def random_word(seed, bits, *indices):
    """SplitMix64 in Python's integers, once for the seed and for each index."""
    state = finaliser((seed + 0x9E3779B97F4A7C15) % 2**64)
    for index in indices:
        state = finaliser((state + (index + 1) * 0x9E3779B97F4A7C15) % 2**64)
    return state >> 64 - bits


def exponent(x, fmt):
    return max(floor_log2(abs(x)), fmt.emin)


def entry(a, b, c, spec, i, j):
    """One output as a fraction or a float: every block of products, its sum on the grid, and its rounding."""
    fa, fb, fc, d = spec.operand_formats
    target = TARGETS[d.name]
    if spec.fraction_bits is not None:
        target = type(target)(spec.fraction_bits + 1, d.emin, d.emax)
    for number in range(len(a) // spec.block):
        pairs = [(Fraction(float(a[k])), Fraction(float(b[k]))) for k in range(number * spec.block, len(a))]
        pairs = [(x, y) for x, y in pairs[: spec.block] if x and y]
        terms = [(x * y, exponent(x, fa) + exponent(y, fb)) for x, y in pairs] + ([(c, exponent(c, fc))] if c else [])
        total = sum((x for x, _ in terms), Fraction(0))
        if spec.rules.truncates and terms:
            unit = Fraction(2) ** (max([e for _, e in terms] + [-2000 if spec.E0 is None else spec.E0]) - spec.F)
            total = sum((int(x / unit) * unit for x, _ in terms), Fraction(0))
        word = random_word(SEED, BITS, i, j, number)
        result = round_value(total, target, "SR", word=word, width=BITS)
        if math.isinf(result):
            return result
        c = Fraction(result)
    return float(c)


def drawn(spec, kind, count, K):
    """A (count, K), B (K, count) and C (count, count) of a class of hostile numbers."""
    names = str(spec.a_format), str(spec.b_format), str(spec.d_format)
    A, B, C = map(hostile.carrier, hostile.operands(*names, kind, 5, count, K), names)
    return A, B.T, np.tile(C, (count, 1))


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("kind", ["near-one", "staircase", "cancel", "small", "finite"])
def test_every_rounding_is_that_of_fractions(spec, kind):
    A, B, C = drawn(spec, kind, 5, 2 * spec.k)
    D = mma.gemm(A, B, C, spec)
    for i, j in np.ndindex(D.shape):
        if np.isfinite(C[i, j]):
            want = entry(A[i], B[:, j], Fraction(float(C[i, j])), spec, i, j)
            assert float(D[i, j]) == want, (i, j)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
@pytest.mark.parametrize("kind", hostile.CLASSES)
def test_compiled_sums_equal_the_reference(spec, kind):
    A, B, C = drawn(spec, kind, 20, 6 * spec.k)
    for order in (None, KOrder(promote=2 * spec.k), KOrder(split=2, join="descending")):
        same(*(mma.gemm(A, B, C, spec, order, backend=how) for how in ("compiled", "numpy")), what=f"{order}")


@pytest.mark.parametrize("spec", SCALED, ids=str)
def test_block_scaled_sums_equal_the_reference(spec):
    rng = np.random.default_rng(2)
    A, B = (
        values(rng.integers(0, 1 << f.width, s).astype(np.uint8), f)
        for f, s in zip((spec.a_format, spec.b_format), ((9, 128), (128, 7)), strict=True)
    )
    A, B = (np.where(np.isfinite(x), x, 1) for x in (A, B))
    scales = [np.exp2(rng.integers(-4, 5, s)) for s in ((9, 128 // spec.scale_block), (128 // spec.scale_block, 7))]
    a, b = scales
    D = mma.gemm(A, B, None, spec, scale_a=a, scale_b=b)
    same(D, mma.gemm(A, B, None, spec, scale_a=a, scale_b=b, backend="numpy"))
    assert (mma.gemm(A, B, None, spec.replace(seed=1), scale_a=a, scale_b=b) != D).any()


def operands(M, N, K, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((K, N)).astype(np.float16)


@pytest.mark.parametrize("backend", ["compiled", "numpy"])
def test_random_bits_follow_seed_row_column_and_block(backend, monkeypatch):
    """Stacks, leading parts, any number of threads and of rows at a time give the same bits."""
    spec, order = SPECS[0], KOrder(split=2)
    A, B = operands(150, 140, 64)
    for over in (None, order):
        D = mma.gemm(A, B, None, spec, over, backend=backend)
        same(mma.gemm(A[:40], B[:, :30], None, spec, over, backend=backend), D[:40, :30])
        same(mma.gemm(np.stack([A, A]), B, None, spec, over, backend=backend), np.stack([D, D]))
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["fpemu.mma.gemm"], "_ENTRIES", 1000)
            patch.setenv("FPEMU_THREADS", "1")
            same(mma.gemm(A, B, None, spec, over, backend=backend), D)
        assert (mma.gemm(A, B, None, spec.replace(seed=SEED + 1), over, backend=backend) != D).mean() > 0.1
    chain = mma.gemm(A, B, None, spec)
    C = mma.gemm(A[:, :32], B[:32], None, spec)
    assert (mma.gemm(A[:, 32:], B[32:], C, spec) != chain).any()  # the blocks of a sum are counted from its start


def test_roundings_are_as_frequent_as_their_distances():
    """1 + f 2^-23 rounds up with probability floor(2^r f) / 2^r: 5.4 standard deviations, 7e-8 false alarms a case."""
    n = 512
    for bits in (1, 3, 8, 28):
        for fraction in (0.0, 0.25, 0.3, 0.5, 0.875):
            spec = mma.spec("A100").replace(F=35, final="SR", random_bits=bits, seed=bits)
            A, B = np.zeros((n, 8), np.float16), np.zeros((8, n), np.float16)
            A[:, :3], B[:3] = [1.0, 2.0**-12, 2.0**-12], [[1.0], [fraction * 2.0**-11], [0.0]]
            ups = np.count_nonzero(mma.gemm(A, B, None, spec) > 1)
            p = math.floor(float(np.float16(fraction)) * 2**bits) / 2**bits
            assert abs(ups - n * n * p) <= 5.4 * math.sqrt(n * n * p * (1 - p)), (bits, fraction)
            if p == 0:
                assert ups == 0


def test_long_sums_are_unbiased_and_truncated_ones_are_not():
    """The mean of 4096 sums is within 5.4 standard deviations of the exact sum; fixed seed, 7e-8 false alarms."""
    x = np.random.default_rng(3).random((1, 2048)).astype(np.float16)
    exact = float(x.astype(np.float64).sum())
    narrow = MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=35, fraction_bits=10)
    ones = np.ones((2048, 4096), np.float16)
    D = mma.gemm(x, ones, None, narrow.replace(final="SR", seed=4)).astype(np.float64)
    assert D.std() > 0.5
    assert abs(D.mean() - exact) < 5.4 * D.std() / 64
    assert abs(mma.gemm(x, ones[:, :1], None, narrow).item() - exact) > 5.4 * D.std()


def test_exact_sums_have_no_random_bit():
    A, B = (np.round(4 * x) for x in operands(20, 20, 64))
    results = [mma.gemm(A, B, None, s.replace(fraction_bits=None)) for s in (SPECS[0], SPECS[0].replace(seed=1))]
    same(*results)
    same(results[0], mma.gemm(A, B, None, mma.spec("A100")))


def test_accumulators_of_a_scheme_have_bits_of_their_own():
    seeds = [SEED, *(SPECS[0].for_sum(number).seed for number in range(1, 4))]
    assert len(set(seeds)) == 4
    assert seeds[2] == random_word(SEED, 63, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final": "SR"}, "needs a seed between 0 and 2\\^63 - 1, not None"),
        ({"final": "SR", "seed": -1}, "not -1"),
        ({"seed": 1}, "no effect with final='RZ'"),
        ({"random_bits": 3}, "no effect with final='RZ'"),
        ({"final": "SR", "seed": 1, "random_bits": 29}, "between 1 and 28"),
        ({"final": "SR", "seed": 1, "random_bits": 0}, "between 1 and 28"),
        ({"final": "SR", "seed": 1, "arithmetic": "via-half", "k": 16, "block": 16, "F": 25}, "stochastic"),
    ],
    ids=str,
)
def test_contradictory_fields_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        mma.spec("A100").replace(**changes)


def test_trees_and_gpus_are_refused():
    A, B = operands(2, 2, 8)
    with pytest.raises(InputError, match="tree"):
        mma.gemm(A, B, None, SPECS[0], tree.Chain((tuple(range(4)), tuple(range(4, 8)))))
    assert not SPECS[0].has_cuda
    from fpemu.gpu.emulation.specification import definition

    with pytest.raises(InputError, match="stochastic rounding has no CUDA implementation"):
        definition(SPECS[0])


def test_a_changed_rounding_drops_the_random_bits():
    assert SPECS[0].replace(final="RNE").seed is None
    assert eval(repr(SPECS[3]), {"MmaSpec": MmaSpec}) == SPECS[3]
