"""Integers through matrix instructions: exact up to the bound, for every row and order, and not beyond it."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import FloatFormat, formats, mma
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.exactness import (
    holds,
    longest_chain,
    outer_limit,
    published_bits,
    slice_bits,
    sum_bits,
    sum_limit,
    unit_fits,
    word_bits,
)
from tests.hostile import examples
from tests.mma.test_mma_forms import KINDS, orders

ROWS = [row for row in mma.catalog.rows() if "uint8" not in (row.a_format, row.b_format)]  # digits have signs
RUN = [*KINDS, mma.spec("hopper", "e4m3", "fp16", instruction="mma")]
ORDERS = [
    None,
    KOrder(promote=32),
    KOrder(split=50, join="pairwise"),
    KOrder(split=90, tile=16, residue_first=True, promote=32, join="descending"),
]


def multiply(x, y, spec, p, q, order=None, backend="compiled"):
    """x·y of digits, int64, on words x·2^-p and y·2^-q; the model's output in units of 2^-(p+q)."""
    if spec.is_integer:
        assert max(x.max(), y.max()) < 128
        return mma.gemm(x.astype(np.int8), y.astype(np.int8), spec=spec, order=order, backend=backend)
    words = [np.ldexp(digits.astype(np.float64), -shift) for digits, shift in ((x, p), (y, q))]
    D = mma.gemm(*words, spec=spec, order=order, backend=backend)
    return np.ldexp(D.astype(np.float64), p + q)


def digits(rng, top, K):
    """Rows of K digits of magnitude <= top: what makes sums largest, widest apart, and swing."""
    turn = np.where(np.arange(K) % 2, -1, 1)
    near = rng.integers(top - top // 4, top, (2, K), endpoint=True)
    lone = rng.integers(-1, 1, (2, K), endpoint=True)
    lone[0, 0] = lone[1, rng.integers(K)] = top
    swing = np.where(np.arange(K) < K // 2, top, -top)
    swing[-1] = 1
    rows = [np.full(K, top), top * turn, *near, near[0] * turn, *lone, swing, swing[::-1]]
    return np.stack([*rows, *rng.integers(-top, top, (3, K), endpoint=True)])


FIELDS = ("a_format", "b_format", "c_format", "d_format", "k", "block", "arithmetic", "F", "E0", "final")
DISTINCT = {tuple(str(getattr(s, field)) for field in FIELDS): s for s in reversed(ROWS)}
OTHERS = [pytest.param(s, "compiled", marks=pytest.mark.slow) for s in DISTINCT.values() if s not in RUN]


@pytest.mark.parametrize(
    ("spec", "backend"), [(s, b) for s in RUN for b in ("compiled", "numpy")] + OTHERS, ids=lambda value: str(value)
)
def test_digits_of_slice_bits_multiply_exactly(spec, backend):
    rng = np.random.default_rng(7)
    tried = 0
    for K in (1, 5, 64, 2 * spec.k + 3, 256):
        for order in ORDERS:
            b = slice_bits(spec, K, order)
            if b == 0:
                continue
            tried += 1
            top = 2**b - spec.is_integer
            x, y = digits(rng, top, K), digits(rng, top, K).T
            got = multiply(x, y, spec, b, b, order, backend)
            assert np.array_equal(got, x @ y), f"K = {K}, {b} bits, {order}"
    assert tried >= 16


@pytest.mark.parametrize("spec", [s for s in ROWS if not s.is_integer], ids=str)
@pytest.mark.parametrize("K", [1, 5, 64, 300])
def test_one_bit_more_is_too_many(spec, K):
    b, T = slice_bits(spec, K) + 1, sum_bits(spec)
    if b > min(word_bits(spec.a_format), word_bits(spec.b_format)):
        assert not holds(spec, 2**b, 2**b, K)  # no word holds it
        return
    x, y = np.zeros((1, K), np.int64), np.zeros((K, 1), np.int64)
    if K == 1:
        x[:], y[:] = 2**b - 1, 2**b - 1  # an odd number of 2b bits
    elif 2 * b > T:
        x[0, 0], y[0, 0], x[0, -1], y[-1, 0] = 2 ** (T // 2), 2 ** (T - T // 2), 1, 1
    else:
        full = 2 ** (T - 2 * b)
        assert full < K
        x[0, :full], y[:full, 0], x[0, -1], y[-1, 0] = 2**b, 2**b, 1, 1
    assert int(multiply(x, y, spec, b, b).item()) != (x @ y).item()


def ladder(spec, b, total):
    """Powers of two, largest first, that add up to `total` = 2^T, or 2^T - 1: as two factors each, words on 2^-b."""
    most = [7, 7] if spec.is_integer else [f.emax + b for f in spec.operand_formats[:2]]
    T = (total + 1).bit_length() - 1
    exponents = [*range(T - 1, -1, -1)] + ([0] if total == 2**T else [])
    e = np.repeat(np.minimum(exponents, sum(most)), [2 ** max(j - sum(most), 0) for j in exponents])
    sign = -1 if spec.is_integer else 1  # -128 is an int8, 128 is not
    x = np.minimum(e, most[0])
    pair = sign * 2**x, sign * 2 ** (e - x)
    assert np.sum(pair[0] * pair[1]) == total
    return pair


@pytest.mark.parametrize("spec", ROWS, ids=str)
def test_a_chain_is_exact_up_to_2_to_the_t_and_not_beyond(spec):
    T, total = sum_bits(spec), sum_limit(spec)
    # normal words down to 1 as a digit; e3m2, e2m3 and e2m1 have too few and use their subnormals
    b = 0 if spec.is_integer else min((T + 1) // 2, max(-spec.a_format.emin, word_bits(spec.a_format)))
    x, y = ladder(spec, b, total)
    shuffled = np.random.default_rng(11).permutation(len(x))
    for order, sign in ((slice(None), 1), (slice(None, None, -1), 1), (shuffled, 1), (shuffled, -1)):
        sign = np.where(np.arange(len(x)) % 3, 1, 1 if spec.is_integer else sign)  # int8 has no +128
        row, column = (x * sign)[order][None], y[order][:, None]
        assert int(multiply(row, column, spec, b, b).item()) == (row @ column).item()
    row, column = np.append(x, x[-1])[None], np.append(y, y[-1])[:, None]
    assert (row @ column).item() == total + 1
    assert int(multiply(row, column, spec, b, b).item()) != total + 1


def test_int8_goes_wrong_where_the_sum_leaves_int32():
    spec = mma.spec("hopper", "int8")
    K = (2**31 - 1) // 127**2
    assert slice_bits(spec, K) == 7
    assert slice_bits(spec, K + 1) == 6
    for k, exact in ((K, True), (K + 1, False)):
        full = np.full((1, k), 127)
        assert (multiply(full, full.T, spec, 0, 0).item() == k * 127**2) is exact


@pytest.mark.parametrize(("F", "fraction_bits"), [(10, None), (15, 20), (30, 9)])
def test_alignment_and_fraction_bits_limit_a_custom_instruction(F, fraction_bits):
    spec = MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=F, fraction_bits=fraction_bits)
    T = min(F, 23 if fraction_bits is None else fraction_bits) + 1
    assert sum_bits(spec) == T
    x, y = ladder(spec, 8, 2**T)
    assert multiply(x[None], y[:, None], spec, 8, 8) == 2**T
    gap = np.zeros(-len(x) % 8, int)  # the last product in a separate block, with the accumulator
    x, y = np.concatenate([x, gap, [1]]), np.concatenate([y, gap, [1]])
    assert multiply(x[None], y[:, None], spec, 8, 8) == 2**T


def test_a_floor_in_the_way_costs_bits():
    spec = MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=24, E0=20)  # sums are cut at 2^-4
    assert slice_bits(spec, 8) == 2
    one = np.ones((1, 1), int)
    assert [multiply(one, one, spec, b, b).item() for b in (2, 3)] == [1, 0]


def test_subnormal_words_are_counted_as_the_hardware_does():
    # 2^-1 is subnormal in e2m1 and shows the exponent 0; a CDNA2 block makes it zero
    spec = MmaSpec("e2m1", "e2m1", "fp32", k=8, block=8, F=1)
    assert slice_bits(spec, 1) == 0
    one = np.ones((1, 1), int)
    assert multiply(one, one, spec, 1, 1) == 0
    assert slice_bits(spec.replace(F=2), 1) == 1
    assert multiply(one, one, spec.replace(F=2), 1, 1) == 1
    coarse = FloatFormat("coarse", 4, 2, 6)  # up to 4 every number is subnormal and shows the exponent 2
    x, y = np.array([[1, 1]]), np.array([[8], [1]])
    for F, exact in ((5, False), (6, True)):
        spec = MmaSpec(coarse, "fp16", "fp32", k=8, block=8, F=F)
        assert holds(spec, 2, 8, 2) is exact
        assert (multiply(x, y, spec, 1, 3).item() == 9) is exact
        turned = MmaSpec("fp16", coarse, "fp32", k=8, block=8, F=F)
        assert holds(turned, 8, 2, 2) is exact
        assert (multiply(y.T, x.T, turned, 3, 1).item() == 9) is exact
    converted = MmaSpec("e2m1", "e2m1", "fp32", k=4, block=4, arithmetic="via-half", F=1)
    assert slice_bits(converted, 1) == 1  # fp16 holds 2^-1 as a normal number
    assert multiply(one, one, converted, 1, 1) == 1
    flushed = MmaSpec("e2m1", "e2m1", "fp32", k=4, block=4, arithmetic="flushed")
    assert slice_bits(flushed, 1) == 0
    assert multiply(one, one, flushed, 1, 1) == 0


def test_the_smallest_normal_word_is_no_subnormal():
    # the word 1 of A has the exponent emin = 0 of e2m1 and takes no more of the F = 1 places than any other normal word
    spec, one = MmaSpec("e2m1", "fp16", "fp32", k=8, block=8, F=1), np.ones((1, 1), int)
    assert holds(spec, 1, 4, 1)
    assert [multiply(one, y * one, spec, 0, 2).item() for y in (1, 2, 3, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize(("hardware", "least"), [("ideal", -149), ("cdna2", -126)])
def test_units_down_to_the_smallest_result_fit(hardware, least):
    """fp32 has multiples of 2^-149, and normal numbers from 2^-126, which CDNA2 alone keeps."""
    spec = mma.spec(hardware, "bf16", "fp32")
    assert [unit_fits(spec, unit) for unit in (least, least - 1)] == [True, False]
    A, B = np.array([[2.0**-64]], np.float32), np.array([[2.0 ** (least + 64)]], np.float32)
    assert [mma.gemm(A, B * scale, spec=spec).item() for scale in (1, 0.5)] == [2.0**least, 0.0]


@st.composite
def specs(draw):
    """Truncated and converted instructions that no GPU has."""
    converted = draw(st.booleans())
    names = ["e4m3", "e5m2", "e2m3", "e2m1"] if converted else ["fp16", "bf16", "tf32", "e4m3", "e3m2", "e2m3", "e2m1"]
    block = 4 * draw(st.integers(1, 5)) if converted else draw(st.integers(1, 20))
    d = draw(st.sampled_from(["fp32", "fp16"]))
    return MmaSpec(
        draw(st.sampled_from(names)),
        draw(st.sampled_from(names)),
        d,
        k=block if converted else block * draw(st.integers(1, 2)),
        block=block,
        arithmetic="via-half" if converted else "truncated",
        F=draw(st.integers(1, 35)),
        E0=draw(st.none() | st.integers(-40, 8)),
        final=draw(st.sampled_from(["RZ", "RNE"])),
        fraction_bits=draw(st.none() | st.integers(1, 23)) if d == "fp32" else None,
    )


@given(specs(), st.integers(1, 60), orders, st.tuples(st.integers(0, 11), st.integers(0, 11)), st.randoms())
@settings(max_examples=examples(150))
def test_what_holds_is_exact_whatever_the_instruction(spec, K, order, bits, random):
    rng = np.random.default_rng(random.getrandbits(32))
    p, q = (min(b, word_bits(f)) for b, f in zip(bits, spec.operand_formats, strict=False))
    while not holds(spec, 2**p, 2**q, K, order):
        if p == q == 0:
            return
        p, q = (p - 1, q) if p >= q else (p, q - 1)
    x, y = digits(rng, 2**p, K), digits(rng, 2**q, K).T
    assert np.array_equal(multiply(x, y, spec, p, q, order, "numpy"), x @ y)
    b = slice_bits(spec, K, order)
    assert b == 0 or holds(spec, 2**b, 2**b, K, order)
    assert not holds(spec, 2 ** (b + 1), 2 ** (b + 1), K, order)


def test_orders_are_taken_by_their_longest_chain_and_by_all_of_k():
    fp8 = mma.spec("hopper", "e4m3", instruction="wgmma")
    assert [slice_bits(fp8, 4096, KOrder(promote=n)) for n in (32, 64, 128, 1024, 4096)] == [4, 4, 3, 2, 1]
    assert slice_bits(fp8, 4096, KOrder(split=64)) == 4
    assert slice_bits(fp8, 2**20, KOrder(promote=16)) == 2  # joined in fp32: 2^20 · 2^(2·2) = 2^24
    half = mma.spec("hopper", "fp16", "fp16")  # joined in fp32, but handed back in fp16
    assert slice_bits(half, 64, KOrder(promote=16)) == slice_bits(half, 64) == 2
    x = np.ones((1, 64), int)
    x[0, :32] = 64
    assert multiply(x, x.T, half, 6, 6, KOrder(promote=16)) != x @ x.T


@pytest.mark.parametrize(
    ("order", "K", "length"),
    [
        (None, 97, 97),
        (KOrder(), 0, 0),
        (KOrder(tile=16), 97, 97),
        (KOrder(promote=32), 97, 32),
        (KOrder(promote=32), 9, 9),
        (KOrder(split=50), 97, 50),
        (KOrder(split=7, promote=3), 9, 3),
        (KOrder(split=7, tile=2, promote=5), 9, 5),
        (KOrder(tile=4, residue_first=True, promote=8), 9, 5),  # the residue of 1 counts as a tile: 1 + 4, 4
        (KOrder(tile=4, residue_first=True), 9, 9),
    ],
)
def test_the_longest_chain_of_an_order(order, K, length):
    assert longest_chain(K, order) == length


def test_the_bits_of_words_are_what_the_formats_hold():
    known = {"fp16": 11, "bf16": 8, "tf32": 11, "fp32": 24, "fp64": 53, "e4m3": 4, "e5m2": 3, "e4m3fnuz": 4}
    known |= {"e5m2fnuz": 3, "e3m2": 3, "e2m3": 3, "e2m1": 1, "int8": 7}
    assert {name: word_bits(name) for name in known} == known
    for name in set(formats.names()) - {"e8m0", "e8m0fnu", "ue4m3", "int8", "int4"}:  # no -1, or integers alone
        fmt, w = formats.get(name), word_bits(name)
        if w < 20:
            assert fmt.contains(np.arange(2**w + 1) * 2.0**-w).all()
            assert not fmt.contains(np.arange(2 ** (w + 1) + 1) * 2.0 ** -(w + 1)).all()


def test_what_joins_chains_outside():
    limits = {str(spec.d_format): outer_limit(spec) for spec in ROWS}
    assert limits == {"fp32": 2**24, "fp16": 2**11, "fp64": 2**53, "int32": 2**31 - 1}
    assert all(sum_limit(spec) <= outer_limit(spec) for spec in ROWS)


def test_published_bits_are_those_of_the_formula():
    known = {1: 12, 16: 10, 256: 8, 1024: 7, 4096: 6, 7168: 5, 16384: 5, 2**24: 0, 2**30: 0}
    assert {K: published_bits(K) for K in known} == known
    with localcontext() as context:
        context.prec = 50
        two = Decimal(2).ln()
        for K in [*range(1, 3000), *(2**i + j for i in range(12, 24) for j in (-1, 0, 1))]:
            log2 = Decimal(K.bit_length() - 1) if K & (K - 1) == 0 else Decimal(K).ln() / two
            for a in (24, 31, 53):
                assert published_bits(K, a) == max(int((a - log2) // 2), 0)


def test_the_formula_is_right_for_fp16_words_beyond_one_product():
    for spec in (s for s in ROWS if str(s.a_format) in ("fp16", "tf32") and str(s.d_format) == "fp32"):
        assert all(slice_bits(spec, K) == published_bits(K) for K in (2, 3, 16, 100, 1024, 7168, 16384, 2**23))
        assert slice_bits(spec, 1) == 11 < published_bits(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: slice_bits(s, -1),
        lambda s: slice_bits(s, 2.5),
        lambda s: holds(s, -1, 1, 16),
        lambda s: holds(s, 1.5, 1, 16),
        lambda s: published_bits(0),
        lambda s: word_bits("fp17"),
        lambda s: word_bits(FloatFormat("small", 3, -9, -2)),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(call):
    with pytest.raises(InputError) as refused:
        call(mma.spec("hopper"))
    assert "\n" not in str(refused.value)


def test_the_longest_chain_of_many_slices_is_found_without_listing_them():
    order = KOrder(split=100, tile=24, residue_first=True, promote=48)
    for K in (0, 1, 100, 130, 100 * 2**40 + 30):
        listed = order.segments(min(K, 100)) + order.segments(K % 100)
        chains = [sum(b - a for a, b in chain) for slice_ in listed for chain in slice_]
        assert longest_chain(K, order) == max(chains, default=0)
