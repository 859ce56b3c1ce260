"""No error exceeds the worst-case bound: operands found by search, errors measured in exact integers.

Hypothesis draws the few numbers that a product is built from and climbs on error / bound, for every scheme, on several
kinds of hardware, with various options and orders.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings, target
from hypothesis import strategies as st

import fpemu
from fpemu import mma, schemes, theory
from fpemu.errors import GuaranteeError, InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.theory import accumulation
from tests.hostile import examples

# --- exact errors


def significands(x):
    """Integers m and exponents e with x = m 2^e."""
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    return [int(m) for m in np.ldexp(fraction, 53)], [int(e) - 53 for e in exponent]


def entry(a, b, d):
    """|d - ab| and |a||b| of one entry, as integers in one unit."""
    (am, ae), (bm, be), (dm, de) = significands(a), significands(b), significands([d])
    least = min(de[0], *(x + y for x, y in zip(ae, be, strict=True)))
    terms = [(p * q) << (x + y - least) for p, q, x, y in zip(am, bm, ae, be, strict=True)]
    return abs((dm[0] << (de[0] - least)) - sum(terms)), sum(map(abs, terms))


def largest_error(A, B, D):
    """The largest error over |A||B|, a Fraction; an entry with |A||B| = 0 must be 0."""
    found = Fraction(0)
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            error, weight = entry(A[i], B[:, j], D[i, j])
            assert weight or not error
            found = max(found, Fraction(error, weight or 1))
    return found


def test_the_error_of_a_product_is_measured_exactly():
    A, B = np.array([[1.0, 2.0**-80, 3.0]]), np.array([[1.0], [1.0], [-1.0]])
    assert largest_error(A, B, np.array([[-2.0]])) == Fraction(1, 4 * 2**80 + 1)
    nearly_half = Fraction(2**994 * (2**81 - 1) - 1, 2**994 * (2**82 + 1))
    assert largest_error(A, -B, np.array([[2.0**-1074]])) == nearly_half
    assert largest_error(np.zeros((1, 2)), np.ones((2, 1)), np.zeros((1, 1))) == 0
    with pytest.raises(AssertionError):
        largest_error(np.zeros((1, 2)), np.ones((2, 1)), np.ones((1, 1)))


# --- operands

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 160, 200]
SHAPES = [(1, 1), (1, 1), (1, 1), (1, 2), (2, 1), (2, 2)]
ARRANGEMENTS = [
    "plain",
    "alternating",
    "huge first",
    "huge last",
    "huge within",
    "falling",
    "rising",
    "undone",
    "sparse",
]


@st.composite
def words(draw, bits):
    """The fraction bits of a number: those at which splits and sums lose most, or any."""
    ones = (1 << bits) - 1
    low = (1 << max(bits - 11, 0)) - 1  # all that the first of two words does not hold
    special = [0, 1, ones, ones - 1, low, low >> 1, (low >> 1) + 1, ones ^ low, ones ^ (low >> 1), ones // 3, low // 3]
    return draw(st.sampled_from(special) | st.integers(0, ones))


@st.composite
def vector(draw, bits, exponent, K):
    """K numbers in a period of at most 6, of few exponents; a disturbed copy where they should not repeat."""
    period = draw(st.integers(1, 6))
    spread = draw(st.sampled_from([0, 0, 1, 2, 5, 12, 24]))
    fractions = np.array([draw(words(bits)) for _ in range(period)])
    exponents = np.array([exponent - draw(st.integers(0, spread)) for _ in range(period)])
    signs = np.array([draw(st.sampled_from([1, 1, 1, -1])) for _ in range(period)])
    k = np.arange(K) % period
    fraction, exponents, signs = fractions[k], exponents[k], signs[k]
    disturbed = draw(st.sampled_from([0, 0, 3, bits]))
    if disturbed:
        noise = np.random.default_rng(draw(st.integers(0, 2**16))).integers(0, 1 << disturbed, K)
        fraction = fraction ^ noise
    x = signs * (1 + np.ldexp(fraction.astype(np.float64), -bits))
    step = draw(st.sampled_from([1, 2, 8, 16]))
    way, far = draw(st.sampled_from(ARRANGEMENTS)), draw(st.integers(0, 30))
    if way == "alternating":
        x = x * np.where(np.arange(K) // step % 2, -1, 1)
    if way.startswith("huge"):
        where = {"first": 0, "last": K - 1, "within": K // 2}[way.split()[1]]
        exponents = np.where(np.arange(K) == where, exponents, exponents - far)
    if way == "falling":
        exponents = exponents - np.arange(K) // step
    if way == "rising":
        exponents = exponents - (K - 1 - np.arange(K)) // step
    if way == "undone":
        x = np.where(np.arange(K) < K // 2, x, -np.roll(x, K // 2))
    if way == "sparse":
        x = np.where(np.arange(K) % (step + 1) == 0, x, 0.0)
    return x, exponents


@st.composite
def matrices(draw, dtype, low, high, lengths=LENGTHS):
    """A (M, K) and B (K, N): values of dtype whose exponents lie between low and high, smaller ones rounded."""
    K, (M, N) = draw(st.sampled_from(lengths)), draw(st.sampled_from(SHAPES))
    bits = np.finfo(dtype).nmant
    found = []
    for rows in (M, N):
        usual = min(max(0, low), high)
        exponent = draw(st.sampled_from([usual, usual, low, high]) | st.integers(low, high))
        parts = [draw(vector(bits, exponent - draw(st.sampled_from([0, 0, 1, 9])), K)) for _ in range(rows)]
        with np.errstate(under="ignore"):
            found.append(np.array([np.ldexp(x, np.maximum(e, low)) for x, e in parts]).astype(dtype))
    return found[0], found[1].T.copy()


# --- schemes

ROUNDINGS = ["RNE", "RZ", "RNA", "RU", "RD", "ODD", "bit-cut"]
PROMOTE = ["instruction", 8, 32, None]
SPECS = [
    MmaSpec("fp16", "fp16", "fp32", k=16, block=8, F=20, E0=-133, final="RNE"),
    MmaSpec("fp16", "fp16", "fp32", k=4, block=2, F=27, E0=None, final="RZ"),
    MmaSpec("fp16", "fp16", "fp32", k=32, block=32, F=13, E0=-133, final="RZ", fraction_bits=13),
    MmaSpec("fp16", "fp16", "fp32", k=8, block=8, arithmetic="exact", final="RNE"),
]
FP16 = ["volta", "turing", "ampere", "hopper", "cdna1", "cdna2", "cdna3", "ascend910a", "ideal", *SPECS]
BF16 = ["ampere", "hopper", "blackwell", "cdna1", "cdna2", "cdna3", "ideal"]
TWO = {
    "high_rounding": ROUNDINGS,
    "residual_rounding": ROUNDINGS,
    "products": [("hh",), ("hh", "hr"), ("rr", "rh", "hr", "hh"), ("hh", "hr", "rh", "rr"), ("rh", "hr", "hh")],
    "accumulators": ["one", "band", "each"],
    "combine_in": ["fp32", "fp64"],
    "promote": PROMOTE,
}
SCALES = {"residual_scale": [1.0, 2.0**6, 2.0**11, 2.0**12]}
STEPS = {"step": ["instruction", 16, None]}
WORDS = {
    "rounding": ["RNE", "RZ", "ODD"],
    "residual_scale": [1.0, 2.0**8],
    "accumulators": ["one", "band", "each"],
    "promote": PROMOTE,
    "combine_in": ["fp32", "fp64"],
    **STEPS,
}
INT8 = ["turing", "ampere", "hopper", "cdna3"]
CASES = {
    "sgemm": ([None], {}),
    "dgemm": ([None], {}),
    "fp16": (FP16, {"high_rounding": ROUNDINGS, "promote": PROMOTE}),
    "markidis": (FP16, {**TWO, **SCALES, **STEPS, "refine": ["A", "both"]}),
    "bf16x9": (BF16, WORDS),
    "bf16x6": (BF16, WORDS),
    "bf16x3": (BF16, WORDS),
    "egemm": (FP16, {**TWO, **SCALES, **STEPS}),
    "ootomo": (FP16, {**TWO, **SCALES, "step": ["instruction", 16, None]}),
    "ootomo-tf32": (
        ["ampere", "hopper", "cdna3", "ideal"],
        {**TWO, **SCALES, "high_rounding": ROUNDINGS[:-1], "residual_rounding": ROUNDINGS[:-1]},
    ),
    "ape": (FP16, {**TWO, **SCALES}),
    "multiword": (
        FP16[:9],
        {
            "words": [1, 2, 3, 4],
            "fmt": ["fp16", "bf16"],
            "accumulators": ["one", "band", "each"],
            "residual_scale": [1.0, 2.0**8, 2.0**11],
            "promote": ["instruction", "4 instructions", None],
        },
    ),
    "legemm": (FP16, {**TWO, **SCALES}),
    "h2sgemm": (FP16, {**TWO, "sb": [0, 6, 12], "combine": ["term-wise", "element-wise"]}),
    "staged": (FP16, {**TWO, **SCALES, "high_rounding": [*ROUNDINGS, "balanced"], "stage": ["instruction", 32, 64]}),
    "staged-int8": (FP16, {"stage": [16, 64], "exact": [None, 1, 2]}),
    "ozaki": (
        ["volta", "turing", "hopper", "cdna2", "cdna3"],
        {
            "mode": ["DP", "SP", "CR"],
            "slices": [1, 2, 3, 4, 6],
            "fast": [True, False, None],
            "split": ["published", "balanced"],
            "words": ["fp16", "int8", "bf16", "e5m2"],
            "bits": [None, 1, 2, 3],
            "exponents": ["slice", "row"],
            "k_block": [None, 4, 16, 64],
            "precision": ["fp32", None],
        },
    ),
    "ozimmu": (
        INT8,
        {
            "slices": [1, 2, 3, 5, 8, None],
            "bits": [None, 1, 3],
            "headroom": [0, 1],
            "split": ["truncate", "nearest"],
            "sums": ["each", "group"],
            "precision": ["fp64", "fp32"],
            "loss": [0.0, 2.0],
        },
    ),
    "ozaki2": (
        INT8,
        {
            "moduli": [2, 4, 8, 12, 15, 20, None],
            "scaling": ["accurate", "fast", "invariant"],
            "precision": ["fp64", "fp32"],
        },
    ),
}
COUNTED = {"ozaki": ["slices"], "ozimmu": ["slices"], "ozaki2": ["moduli"]}
"""What is always chosen: by itself the number follows from the operands, and the bound is infinite or one rounding."""
ORDERS = st.none() | st.builds(
    KOrder,
    split=st.sampled_from([None, 8, 24, 50]),
    tile=st.sampled_from([None, 12, 32]),
    promote=st.sampled_from([None, None, 8, 40]),
    join=st.sampled_from(["ascending", "descending", "pairwise"]),
)


def exponents(scheme, words):
    """Between which the exponents of operands lie: within the words' range, so that most products are finite."""
    if scheme.operand.name == "fp64":
        return (-1000, 400)
    return (-28, 12) if words == "fp16" else (-149, 55)


@st.composite
def cases(draw, name):
    """A scheme with choices made, hardware, an order, and operands."""
    hardware, choices = CASES[name]
    chip = draw(st.sampled_from(hardware))
    changed = draw(st.lists(st.sampled_from(sorted(choices)), max_size=3, unique=True)) if choices else []
    changed = dict.fromkeys([*COUNTED.get(name, ()), *changed])
    options = {option: draw(st.sampled_from(choices[option])) for option in changed}
    order = draw(ORDERS) if draw(st.integers(0, 3)) == 0 else None
    try:
        scheme = schemes.build(name, options)
        scheme.check_order(order, options)
        spec = scheme.spec(chip)
        if isinstance(scheme, SplitScheme):
            scheme.lowering(spec, order)
    except InputError:  # choices that contradict one another, hardware without the instruction
        assume(False)
    words = "" if spec is None else str(spec.a_format)
    A, B = draw(matrices(scheme.operand.dtype, *exponents(scheme, words)))
    return chip, options, order, A, B


def check(name, chip, options, order, A, B):
    """error / bound, after the assertion that it is at most 1."""
    bound = theory.bound(name, chip, norms=theory.Norms.of(A, B), M=A.shape[0], N=B.shape[1], order=order, **options)
    try:
        D = fpemu.gemm(A, B, scheme=name, hardware=chip, order=order, **options)
    except (InputError, GuaranteeError):
        assume(False)  # beyond the range of the words: refused, no result to judge
    assert np.isfinite(D).all() or bound.worst == math.inf
    if bound.worst == math.inf:
        return 0.0
    error = largest_error(A, B, D)
    assert error <= Fraction(bound.worst), (
        f"{name} on {chip}, {options}, {order}: error {float(error):.4g} above the bound {bound.worst:.4g} "
        f"({', '.join(f'{p.name} {p.worst:.3g}' for p in bound.parts)})\nA = {shown(A)}\nB = {shown(B)}"
    )
    return float(error / Fraction(bound.worst)) if bound.worst else 0.0


def shown(X):
    """Enough to make the matrix again."""
    return f"{[[v.hex() for v in row] for row in X.astype(np.float64).tolist()]}"


def test_every_scheme_is_searched():
    assert set(CASES) == set(schemes.names())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=examples(40))
@given(data=st.data())
def test_no_error_found_exceeds_the_worst_case(name, data):
    chip, options, order, A, B = data.draw(cases(name))
    ratio = check(name, chip, options, order, A, B)
    target(ratio, label="error / bound")


# --- chains of instructions, without any scheme

ROWS = [s for s in mma.catalog.rows() if not s.is_integer and str(s.d_format) != "fp64"]
LARGEST = {"fp16": 6, "bf16": 50, "tf32": 50, "e4m3": 7, "e5m2": 12, "e4m3fnuz": 6, "e5m2fnuz": 12}
"""Exponents with which sums of 200 products stay finite; with an fp16 result, 3 for all."""


@st.composite
def chains(draw):
    """An instruction, an order, and operands in its formats."""
    arithmetic = draw(st.sampled_from(sorted({s.arithmetic for s in ROWS})))
    spec = draw(st.sampled_from([s for s in (*ROWS, *SPECS) if s.arithmetic == arithmetic]))
    a, b, _, d = spec.operand_formats
    high = 3 if d.name == "fp16" else min(LARGEST.get(a.name, 2), LARGEST.get(b.name, 2))
    A, B = draw(matrices(np.float32, max(a.emin - a.fraction_bits, -60), high))
    return spec, draw(ORDERS), fpemu.round_to(A, a, "RZ"), fpemu.round_to(B, b, "RZ")


def check_chain(spec, order, A, B):
    """error / bound of a bare chain, after the assertion that it is at most 1."""
    bound = accumulation.chain(spec, theory.Norms.of(A, B), order)
    D = mma.gemm(A, B, spec=spec, order=order)
    assert np.isfinite(D).all() or bound.worst == math.inf
    if bound.worst == math.inf:
        return 0.0
    error = largest_error(A, B, D)
    assert error <= Fraction(bound.worst), (
        f"{spec.name}, {order}: error {float(error):.4g} above {bound.worst:.4g}\nA = {shown(A)}\nB = {shown(B)}"
    )
    return float(error / Fraction(bound.worst)) if bound.worst else 0.0


@settings(max_examples=examples(120))
@given(case=chains())
def test_no_chain_found_exceeds_the_worst_case(case):
    target(check_chain(*case), label="error / bound")


@pytest.mark.parametrize("hardware", ["volta", "turing", "ampere", "ada", "hopper", "blackwell"])
def test_products_that_are_cut_off_whole_come_near_the_worst_case(hardware):
    """One product of 1, the others just below the last place that is kept: a bound a quarter lower would not hold."""
    spec = mma.spec(hardware, "fp16", "fp32")
    A = np.full((1, 40 * spec.block), (2 - 2.0**-10) * 2.0**-13)
    B = np.full((A.size, 1), 2.0 ** (12 - spec.F))
    A[0, 0] = B[0, 0] = 1.0
    assert 0.75 < check_chain(spec, None, A, B) <= 1


@pytest.mark.parametrize(("words", "small"), [("fp16", 2.0**-16), ("bf16", 2.0**-130)])
def test_a_chain_loses_subnormal_operands_where_the_hardware_reads_them_as_zero(words, small):
    """Found by search: all of an entry is lost, which is no rounding of sums."""
    A, B = np.float32([[small, 0.0]]), np.float32([[1.0], [1.0]])
    spec = mma.spec("cdna2", words, "fp32")
    assert mma.gemm(A, B, spec=spec).item() == 0
    assert 0 < check_chain(spec, None, A, B) <= 1
    A[0, 1] = 1.0
    assert 0 < check_chain(spec, None, A, B) <= 1


@pytest.mark.parametrize(
    ("hardware", "a_format", "changes", "a", "b"),
    [
        ("hopper", "fp16", {"final": "RNE", "fraction_bits": 6}, [1.0], [1 + 2.0**-7]),
        ("hopper", "bf16", {"fraction_bits": 7}, [2.0**-67], [1.5 * 2.0**-67]),  # subnormal, so all of it is lost
        ("hopper", "bf16", {"final": "RNE", "fraction_bits": 7}, [2.0**-67], [2.0**-67]),
        ("ideal", "fp16", {"final": "RZ"}, [1.0, 2.0**-12], [1.0, (2 - 2.0**-10) * 2.0**-12]),
        ("hopper mma", "e4m3", {"fraction_bits": 3}, [1.0, 0.25], [1.0, 0.4375]),
    ],
)
def test_the_bound_of_a_chain_counts_the_fraction_bits_and_the_truncation_of_a_changed_instruction(
    hardware, a_format, changes, a, b
):
    arch, _, instruction = hardware.partition(" ")
    spec = mma.spec(arch, a_format, "fp32", instruction or None).replace(**changes)
    A, B = np.float32([a]), np.float32([b]).T
    assert 0.2 < check_chain(spec, None, A, B) <= 1
