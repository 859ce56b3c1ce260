"""Chains of fused multiply-adds in fp16, fp32 and fp64 against exact fractions: no step rounds twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpemu import mma, simt
from fpemu.errors import InputError
from fpemu.mma import KOrder
from tests import hostile, oracle
from tests.hostile import bits, carrier, examples, integers

NAMES = ["fp16", "fp32", "fp64"]
BACKENDS = ["compiled", "numpy"]


def exact_fma(a, b, c, name):
    fmt = oracle.FORMATS[name]
    return [oracle.fma(*(oracle.decode(int(v), fmt) for v in abc), fmt) for abc in zip(a, b, c, strict=True)]


def assert_fma(a, b, c, name, what=""):
    """simt.fma on codes gives the exact result rounded once; any NaN is a NaN."""
    dtype = hostile.code_dtype(oracle.FORMATS[name])
    a, b, c = (np.asarray(x, dtype) for x in (a, b, c))
    with np.errstate(invalid="ignore"):
        got = bits(simt.fma(carrier(a, name), carrier(b, name), carrier(c, name), name))
    want = np.array(exact_fma(a, b, c, name), dtype)
    nan = np.isnan(carrier(want, name))
    assert np.isnan(carrier(got, name))[nan].all()
    wrong = np.flatnonzero((got != want) & ~nan)
    shown = [tuple(hex(int(v[i])) for v in (a, b, c, got, want)) for i in wrong[:3]]
    assert not len(wrong), f"{what}: {len(wrong)} of {len(a)} (a, b, c, got, exact) {shown}"


# --- single steps


@pytest.mark.parametrize("kind", hostile.CLASSES)
@pytest.mark.parametrize("name", NAMES)
def test_fma_on_hostile_operands(name, kind):
    A, B, C = hostile.operands(name, name, name, kind, 4, 1500, 1)
    assert_fma(A[:, 0], B[:, 0], C, name, kind)


def codes_of(values, name):
    """Codes of Python floats that are values of the format."""
    return hostile.bits(np.array(values, {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}[name]))


def midpoint_traps(name, count, seed):
    """a·b on a midpoint between two values of the format, c far below half an ulp of it (and the other way round)."""
    fmt = oracle.FORMATS[name]
    p, rng = fmt.precision, np.random.default_rng(seed)
    A: list = []
    B: list = []
    C: list = []
    while len(A) < count:
        half = p // 2
        a = int(rng.integers(1 << half, 2 << half)) | 1
        b = int(rng.integers(1 << (p - half - 1), 2 << (p - half - 1))) | 1
        if (a * b).bit_length() != p + 1:  # an odd product of p + 1 bits is exactly a midpoint
            continue
        e = int(rng.integers(-p, 3))
        tiny = (
            int(rng.integers(fmt.emin - fmt.fraction_bits, e - p)) if rng.integers(2) else fmt.emin - fmt.fraction_bits
        )
        sign, c_sign = (int(s) for s in rng.integers(0, 2, 2))
        A.append(oracle.code_of(a * (-1) ** sign, -half, fmt))
        B.append(oracle.code_of(b, e - (p - half), fmt))
        C.append(oracle.code_of((-1) ** c_sign, tiny, fmt))
    return A, B, C


@pytest.mark.parametrize("name", NAMES)
def test_product_on_a_midpoint_and_a_tiny_addend(name):
    A, B, C = midpoint_traps(name, 2000, 0)
    assert_fma(A, B, C, name)
    zero = np.zeros(len(C), int)
    assert_fma(A, B, zero, name, "the tie itself")


@pytest.mark.parametrize("name", NAMES)
def test_a_product_just_beside_half_an_ulp_of_the_addend(name):
    """c + (half an ulp of c)·(1 ± 2^-2j): closer to the midpoint than float64 sees."""
    fmt = oracle.FORMATS[name]
    f = fmt.fraction_bits
    rng = np.random.default_rng(1)
    A: list = []
    B: list = []
    C: list = []
    for _ in range(2000):
        j = int(rng.integers(1, f + 1))
        one_plus, one_minus = (1 << f) + (1 << (f - j)), (1 << f) - (1 << (f - j))  # (1 + 2^-j)(1 - 2^-j) = 1 - 2^-2j
        a, b = (one_plus, one_minus) if rng.integers(2) else (one_plus, one_plus)
        scale = int(rng.integers(fmt.emin // 2, 1))
        c = int(rng.integers(1 << f, 2 << f))
        s, t = (int(v) for v in rng.integers(0, 2, 2))
        A.append(oracle.code_of((-1) ** s * a, -f, fmt))
        B.append(
            oracle.code_of(b, -f + scale - f - 1, fmt)
            if scale - f - 1 >= fmt.emin
            else oracle.code_of(1, fmt.emin, fmt)
        )
        C.append(oracle.code_of((-1) ** t * c, scale - f, fmt))
    assert_fma(A, B, C, name)


@pytest.mark.parametrize("name", NAMES)
def test_cancellation_leaves_the_product_s_error(name):
    """c = -(a·b rounded), or a neighbour of it: the result is the rounding error of the product, exactly."""
    fmt = oracle.FORMATS[name]
    rng = np.random.default_rng(2)
    A, B = (hostile.draw(name, k, rng, (2000,)) for k in ("near-one", "mixed"))
    zero = oracle.decode(0, fmt)
    C = []
    for a, b in zip(A, B, strict=True):
        p = oracle.fma(oracle.decode(int(a), fmt), oracle.decode(int(b), fmt), zero, fmt)
        C.append((p ^ 1 << (fmt.width - 1)) + int(rng.integers(-1, 2)) if p << 1 & (1 << fmt.width) - 1 else p)
    assert_fma(A, B, C, name)


@pytest.mark.parametrize("name", NAMES)
def test_around_underflow(name):
    fmt = oracle.FORMATS[name]
    f, rng = fmt.fraction_bits, np.random.default_rng(3)
    A: list = []
    B: list = []
    C: list = []
    lowest = fmt.emin - f
    for _ in range(3000):
        e = int(rng.integers(lowest - 4, fmt.emin + 3))  # of the product
        ea = e // 2
        A.append(oracle.code_of(int(rng.integers(1 << f, 2 << f)) * (-1) ** int(rng.integers(2)), ea - f, fmt))
        B.append(oracle.code_of(int(rng.integers(1 << f, 2 << f)) if rng.integers(2) else 1 << f, e - ea - f, fmt))
        C.append(
            int(rng.choice([0, 1, 2, 3, (1 << f) - 1, 1 << f, (1 << f) + 1])) | int(rng.integers(2)) << (fmt.width - 1)
        )
    assert_fma(A, B, C, name)


@pytest.mark.parametrize("name", NAMES)
def test_around_overflow(name):
    fmt = oracle.FORMATS[name]
    f, rng = fmt.fraction_bits, np.random.default_rng(4)
    top = ((fmt.top - 1) << f) | ((1 << f) - 1)
    A: list = []
    B: list = []
    C: list = []
    for _ in range(2000):
        near = fmt.emax - f - 1 + int(rng.integers(-1, 2))  # half an ulp of the largest number, or its neighbours
        a = (1 << f) + int(rng.choice([0, 0, 1, -1]))
        ea = near // 2
        A.append(oracle.code_of(a, ea - f, fmt))
        B.append(oracle.code_of((1 << f) + int(rng.choice([0, 0, 1])), near - ea - f, fmt))
        C.append(top - int(rng.integers(0, 2)))
    for sign in (0, 1 << (fmt.width - 1)):
        assert_fma([a ^ sign for a in A], B, [c ^ sign for c in C], name)
    # a product beyond the largest number that the addend brings back
    big = oracle.code_of(1, fmt.emax, fmt)
    two = oracle.code_of(1, 1, fmt)
    assert_fma([big, big, big], [two, two, two], [top | 1 << (fmt.width - 1), 1 << (fmt.width - 1), top], name)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_and_specials(name):
    fmt = oracle.FORMATS[name]
    inf = oracle.infinity(fmt, 0)
    some = [
        0,
        1,
        oracle.code_of(1, 0, fmt),
        oracle.code_of(1, fmt.emax, fmt),
        inf,
        inf | 1,
        inf | 1 << (fmt.fraction_bits - 1),
    ]
    some += [x | 1 << (fmt.width - 1) for x in some]
    triples = [(a, b, c) for a in some for b in some for c in some]
    assert_fma(*zip(*triples, strict=True), name)


@settings(max_examples=examples(200))
@given(st.sampled_from(NAMES), st.data())
def test_any_patterns(name, data):
    word = st.integers(0, 2 ** oracle.FORMATS[name].width - 1)
    triples = data.draw(st.lists(st.tuples(word, word, word), min_size=1, max_size=20))
    assert_fma(*zip(*triples, strict=True), name)


def test_fma_broadcasts_and_keeps_shapes():
    a, b, c = np.ones((3, 1), np.float32), np.arange(4, dtype=np.float32), np.float32(0.5)
    assert np.array_equal(simt.fma(a, b, c, "fp32"), np.broadcast_to(b + 0.5, (3, 4)))
    assert simt.fma(np.zeros((0, 2)), np.zeros(2), np.zeros(2), "fp64").shape == (0, 2)
    for name, dtype in (("fp16", np.float16), ("fp32", np.float32), ("fp64", np.float64)):
        assert simt.fma(dtype(1), dtype(2), dtype(3), name).dtype == dtype
    with pytest.raises(InputError):
        simt.fma(np.float16(1), np.float16(1), np.float16(1), "bf17")


# --- chains


@settings(max_examples=examples(120))
@given(st.data())
def test_chains_by_the_oracle(data):
    name = data.draw(st.sampled_from(NAMES))
    K, kind = data.draw(st.integers(1, 40)), data.draw(st.sampled_from(hostile.CLASSES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    A, B = hostile.draw(name, kind, rng, (2, K)), hostile.draw(name, kind, rng, (3, K))
    C = hostile.accumulators(name, name, name, kind, rng, 6).reshape(2, 3) if data.draw(st.booleans()) else None
    order = data.draw(
        st.none()
        | st.builds(
            lambda s, p, j: KOrder(split=s, promote=p, join=j),
            st.none() | st.integers(1, 40),
            st.none() | st.integers(1, 40),
            st.sampled_from(["ascending", "descending", "pairwise"]),
        )
    )
    twin = oracle.Order() if order is None else oracle.Order(order.split, None, False, order.promote, order.join)
    ins = oracle.fma_chain(name, 1)
    for backend in BACKENDS:
        D = simt.gemm(
            carrier(A, name),
            carrier(B, name).T,
            None if C is None else carrier(C, name),
            fmt=name,
            order=order,
            backend=backend,
        )
        assert D.dtype == carrier(A, name).dtype
        got = bits(D)
        for i in range(2):
            for j in range(3):
                c = None if C is None else int(C[i, j])
                want = oracle.ordered(ins, [(integers(A[i]), integers(B[j]))], c, twin)
                if np.isnan(D[i, j]):
                    assert oracle.decode(want, oracle.FORMATS[name]).kind == "nan"
                else:
                    assert got[i, j] == want, f"{name} {kind} {order} {backend}: {int(got[i, j]):#x}, exact {want:#x}"


def test_single_precision_matrix_instructions_are_such_chains():
    rng = np.random.default_rng(5)
    A, B = rng.standard_normal((7, 33)).astype(np.float32), rng.standard_normal((33, 5)).astype(np.float32)
    for hardware in ("cdna1", "cdna2", "cdna3"):
        assert np.array_equal(bits(mma.gemm(A, B, None, mma.spec(hardware, "fp32", "fp32"))), bits(simt.gemm(A, B)))
    A, B = A.astype(np.float64) / 3, B.astype(np.float64) / 7
    for hardware in ("ampere", "hopper", "cdna2"):
        assert np.array_equal(
            bits(mma.gemm(A, B, None, mma.spec(hardware, "fp64", "fp64"))), bits(simt.gemm(A, B, fmt="fp64"))
        )


@pytest.mark.parametrize(
    ("A", "B", "fmt"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((4, 2), np.float32), "fp32"),
        (np.zeros((), np.float32), np.zeros((3, 2), np.float32), "fp32"),
        (np.full((1, 1), 0.1), np.zeros((1, 1)), "fp32"),
        (np.zeros((1, 1)), np.zeros((1, 1)), "fp8"),
        (np.zeros((1, 1), complex), np.zeros((1, 1)), "fp64"),
    ],
)
def test_wrong_operands(A, B, fmt):
    with pytest.raises(InputError):
        simt.gemm(A, B, fmt=fmt)
