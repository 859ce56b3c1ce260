"""Ozaki scheme II against Python integers: exponents, residues, the Chinese remainder, the condition."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fpemu
from fpemu.errors import GuaranteeError
from fpemu.mma import KOrder
from fpemu.schemes.errorfree import crt
from fpemu.schemes.ozaki2 import Ozaki2
from tests.oracle import ozaki as oracle

COUNTS = range(2, 21)
RULES = ("accurate", "fast", "invariant")
TOP = float(np.finfo(np.float64).max)


def certify(A, B, **options):
    return fpemu.certify(A, B, scheme="ozaki2", hardware="hopper", **options)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def wide(*shape, seed=0, low=-300, high=300):
    """Entries of any sign and of exponents between two bounds, some of them zero."""
    rng = np.random.default_rng(seed)
    X = np.ldexp(rng.uniform(-1, 1, shape), rng.integers(low, high, shape))
    return np.where(rng.random(shape) < 0.1, 0.0, X)


def python_product(X, Y, largest):
    assert max(abs(X).max(), abs(Y).max()) <= largest
    return (X.astype(np.int64) @ Y.astype(np.int64)).astype(np.float64)


def exponents(A, B, count, rule):
    P = math.prod(oracle.MODULI[:count])
    extra = (python_product,) if rule == "accurate" else ()
    mu, nu = getattr(crt, rule)(A, B, P, *extra)
    assert mu.shape == (len(A), 1)
    assert nu.shape == (1, B.shape[1])
    return mu[:, 0].tolist(), nu[0].tolist()


# --- residues and what they stand for


def test_moduli_are_pairwise_coprime_and_a_basis_is_theirs():
    assert all(math.gcd(p, q) == 1 for i, p in enumerate(crt.MODULI) for q in crt.MODULI[:i])
    for count in COUNTS:
        basis = crt.basis(count)
        P = math.prod(oracle.MODULI[:count])
        assert basis.moduli == oracle.MODULI[:count]
        assert basis.product == P
        assert all(P // p * q % p == 1 for p, q in zip(basis.moduli, basis.inverses, strict=True))
        assert P * (1 - Fraction(1, 2**35)) < Fraction(basis.limit) <= P * (1 - Fraction(1, 2**36))


def hostile_integers():
    near = [s * (2.0**k + d) for k in range(54) for d in (-1, 0, 1) for s in (1, -1)]
    edges = [
        float(s * (p * m + d))
        for p in crt.MODULI
        for m in (0, 1, 2**20, 2**44)
        for d in (p // 2 - 1, p // 2, p // 2 + 1, 0)
        for s in (1, -1)
    ]
    rng = np.random.default_rng(2)
    large = np.ldexp(rng.integers(-(2**53), 2**53, 300).astype(np.float64), rng.integers(0, 32, 300))
    huge = [2.0**200, -(2.0**200), 2.0**1000 - 2.0**950, float(2**53 - 1) * 2.0**300]
    return np.array([*near, *edges, *large, *huge])


@pytest.mark.parametrize("p", crt.MODULI)
def test_residues_are_pythons(p):
    x = hostile_integers()
    r = crt.residues(crt.parts(x), p)
    assert r.tolist() == [(int(v) + p // 2) % p - p // 2 for v in x]
    assert r.min() >= -p / 2
    assert r.max() < p / 2


@given(st.integers(-(2**43), 2**43), st.sampled_from(crt.MODULI))
def test_symmetric_residue_of_one_number(x, p):
    assert crt.symmetric(np.array([float(x)]), p).item() == (x + p // 2) % p - p // 2


@pytest.mark.parametrize("count", COUNTS)
def test_integers_come_back_up_to_the_last_one_allowed(count):
    basis = crt.basis(count)
    P = basis.product
    last = math.floor(P * (1 - Fraction(1, 2**36)) / 2)
    rng = np.random.default_rng(count)
    others = [int.from_bytes(rng.bytes(24), "big") % (2 * last) - last for _ in range(100)]
    C = [0, 1, -1, last, -last, last - 1, 1 - last, *(s * (P // p) for p in basis.moduli[2:] for s in (1, -1)), *others]
    t = np.stack(
        [
            crt.digit(np.array([[float(c % p) for c in C]]), p, q)
            for p, q in zip(basis.moduli, basis.inverses, strict=True)
        ]
    )
    for row in basis.limbs:  # the worst sum of a limb that digits could make
        assert (
            sum(abs(int(w)) * m for w, m in zip(row, [*((p + 1) // 2 for p in basis.moduli), 11], strict=True)) < 2**53
        )
    found, size = np.zeros(len(C), object), 0
    for T, place in crt.integers(t, basis):
        assert abs(T).max() < 2**53
        found = found + np.array([int(v) << place for v in T[0]], object)
        size = max(size, *map(abs, found))
    assert found.tolist() == C
    assert size < 2**basis.bits


# --- exponents


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", COUNTS)
def test_exponents_are_those_of_exact_arithmetic(rule, count):
    A, B = wide(4, 7, seed=count, low=-20, high=20), wide(7, 5, seed=count + 50, low=-20, high=20)
    A[1], B[:, 2] = 0.0, 0.0
    assert exponents(A, B, count, rule) == oracle.ozaki2_exponents(A, B, count, rule)


@pytest.mark.parametrize("rule", RULES)
def test_exponents_at_the_ends_of_the_range(rule):
    """Squares of these rows over- and underflow in float64; one row spans 2000 binades, one only subnormal numbers."""
    A = np.array([[TOP, -TOP, TOP], [2.0**1000, 2.0**-1000, -(2.0**-1074)], [2.0**-1074, 3 * 2.0**-1074, 0], [1, 2, 3]])
    B = np.array([[TOP, 2.0**-1074, 2.0**-1074], [TOP, 2.0**-1074, 2.0**900], [TOP / 2, 0, -(2.0**-900)]])
    assert exponents(A, B, 15, rule) == oracle.ozaki2_exponents(A, B, 15, rule)


@pytest.mark.parametrize("rule", ["accurate", "invariant"])
@pytest.mark.parametrize("count", COUNTS)
def test_the_condition_holds_and_not_a_bit_is_given_away(rule, count):
    """Rows of equal powers of two are the tightest: Cauchy-Schwarz and the 7-bit bound hold with equality there."""
    P = crt.basis(count).product
    for K in (1, 2, 3, 7, 16, 64, 100):
        A, B = np.full((1, K), 2.0**-9), np.full((K, 1), 2.0**60)
        (mu,), (nu,) = exponents(A, B, count, rule)
        sum_of_products = K * Fraction(2) ** (mu - 9 + nu + 60)
        assert 2 * sum_of_products < P
        assert 16 * sum_of_products > P  # each floor gives up less than a factor of two


@pytest.mark.parametrize("count", [6, 8, 11, 15, 20])
def test_the_check_confirms_the_invariant_scaling_to_the_last_bit(count):
    """Cauchy-Schwarz with equality, and squares that sum to (P-1)/2 times a power of four up to a part in 2^d."""
    limit = Fraction(math.prod(oracle.MODULI[:count]) - 1, 2)
    while limit >= 4:
        limit /= 4
    for d in (*range(28, 56), -56, -50, -40, -34, -30):
        left, row = limit * (1 - Fraction(int(math.copysign(1, d)), 2 ** abs(d))), []
        for entry in (2**30, *[None] * 6):  # entries of 30 fraction bits, their squares as near to the target as can be
            row.append(entry or min(math.isqrt(int(left * 4**30)), 2**30))
            left -= Fraction(row[-1] ** 2, 4**30)
        assert 0 <= left < Fraction(1, 2**55)
        A = np.array([row]) / 2.0**30
        report = certify(A, A.T, moduli=count, scaling="invariant").report
        assert report.ok
        assert report.crt_bits[0] < report.crt_bits[1] <= report.crt_bits[0] + 4


def test_sums_of_squares_are_bounded_from_above_and_closely():
    for X in (
        wide(40, 60, seed=1, low=-40, high=1),
        wide(9, 9, seed=2, low=-1074, high=1023),
        np.full((1, 3), 2.0**-1074),
    ):
        S, e = crt._squares(X)
        for row, bound, exponent in zip(X, S[:, 0], e[:, 0], strict=True):
            exact = sum(Fraction(float(v)) ** 2 for v in row) / Fraction(4) ** int(exponent)
            assert exact <= Fraction(float(bound)) <= exact * (1 + Fraction(len(row), 2**28))
            assert 1 <= max(abs(Fraction(float(v))) for v in row) / Fraction(2) ** int(exponent) < 2


def test_power_at_its_steps():
    for limit in (Fraction(65279, 2), Fraction(65279, 8), Fraction(1), Fraction(4), Fraction(2**53 - 1, 2**51)):
        for k in range(-3, 4):
            S = np.array([math.nextafter(float(limit), 0), float(limit), math.nextafter(float(limit), 1e9)]) * 4.0**k
            assert crt._power(S, limit).tolist() == [-k, -k, -k - 1]


@pytest.mark.parametrize("rule", RULES)
def test_rows_and_columns_that_never_meet(rule):
    A, B = np.array([[1.0, 0.0], [0.0, 2.0**-1074]]), np.array([[0.0, 0.0], [1.0, TOP]])
    found = certify(A, B, scaling=rule)
    assert found.report.crt
    assert found.report.ok == (rule != "fast")  # which leaves nothing of the column of TOP
    assert np.array_equal(found.D[0], [0, 0])
    assert rule == "fast" or np.array_equal(found.D[1], [2.0**-1074, 2.0**-1074 * TOP])


def test_one_is_the_bound_of_an_entry_that_underflows():
    """The 7-bit bound of 2^-1074 next to 2^1000 is 1, not what float64 makes of 2^-2069."""
    A, B = np.array([[2.0**1000, 2.0**-1074]]), np.array([[2.0**-1074], [2.0**1000]])
    assert exponents(A, B, 15, "accurate") == oracle.ozaki2_exponents(A, B, 15, "accurate")


# --- the whole scheme


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", COUNTS)
def test_bits_for_every_number_of_moduli(rule, count):
    A, B = wide(5, 9, seed=count, low=-4, high=1), wide(9, 4, seed=count + 30, low=-4, high=1)
    found, want = certify(A, B, moduli=count, scaling=rule), oracle.ozaki2(A, B, count, rule)
    assert want.unique
    assert np.array_equal(found.D, want.D)
    assert found.report.crt
    assert found.report.ok
    assert found.report.products == count + (rule == "accurate")
    assert (
        want.bits
        <= found.report.crt_bits[0]
        < found.report.crt_bits[1]
        == pytest.approx(math.log2(math.prod(oracle.MODULI[:count])), abs=1e-12)
    )


@pytest.mark.parametrize("rule", ["accurate", "invariant"])
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_bits_over_the_whole_range(rule, precision):
    """Rows and columns of any size: results that are zero, subnormal, normal and infinite."""
    fmt = fpemu.FP64 if precision == "fp64" else fpemu.FP32
    rng = np.random.default_rng(11)
    rows, columns = (rng.integers(fmt.emin - fmt.precision, fmt.emax + 1, (24, 1)) for _ in "AB")
    A, B = (np.ldexp(wide(24, 8, seed=s, low=-30, high=1), e) for s, e in ((12, rows), (13, columns)))
    A[0], B[1], A[2], B[3] = 0.0, 0.0, np.sign(A[2]) * fmt.min_subnormal, np.sign(B[3]) * fmt.max
    A, B = A.astype(fmt.dtype), B.T.astype(fmt.dtype)
    with np.errstate(all="raise"):
        found = certify(A, B, scaling=rule, precision=precision)
    want = oracle.ozaki2(A, B, 15 if precision == "fp64" else 8, rule, precision)
    size = np.abs(want.D)
    for kind in (
        size == 0,
        (size > 0) & (size < 2.0**fmt.emin),
        (size >= 2.0**fmt.emin) & (size < np.inf),
        size == np.inf,
    ):
        assert kind.sum() > 3
    assert found.D.dtype == fmt.dtype
    assert np.array_equal(found.D, want.D)
    assert np.array_equal(np.signbit(found.D), np.signbit(want.D))
    assert found.report.ok


@pytest.mark.parametrize("rule", ["accurate", "invariant"])
def test_rows_of_two_thousand_binades(rule):
    A, B = wide(6, 8, seed=1, low=-1074, high=1023), wide(8, 6, seed=2, low=-1074, high=1023)
    A[0], B[:, 0] = 2.0**900, np.ldexp(1.0, np.arange(-900, 900, 225))
    with np.errstate(all="raise"):
        found, want = certify(A, B, scaling=rule), oracle.ozaki2(A, B, 15, rule)
    assert found.report.ok
    assert np.array_equal(found.D, want.D)
    assert want.D.any()


def test_smallest_shapes_and_largest_numbers():
    tiny = 5e-324
    for a, b in ((TOP, 1.0), (TOP, -TOP), (tiny, tiny), (tiny, 1.0), (-3 * tiny, 0.5), (1.5, 1 + 2**-52), (0.0, 7.0)):
        with np.errstate(over="ignore", under="ignore"):
            want = np.float64(a) * np.float64(b)  # IEEE: one rounding
        for rule in ("accurate", "invariant"):
            got = certify([[a]], [[b]], scaling=rule).D
            assert got.shape == (1, 1)
            assert got.item() == want
    outer = certify(normal(7, 1), normal(1, 5, seed=1)).D
    assert np.array_equal(outer, normal(7, 1) * normal(1, 5, seed=1))


def test_many_moduli_round_the_exact_product_once():
    A, B = normal(12, 40, seed=3), normal(40, 12, seed=4)
    A[:, 20:], B[20:] = A[:, :20], -B[:20] * (1 + 2.0**-40)  # all but 40 bits cancel
    found = certify(A, B, moduli=20)
    assert found.report.complete
    assert np.array_equal(found.D, fpemu.reference.matmul(A, B))
    ones = np.ones((40, 40))
    assert not any(certify(X, Y, moduli=8).report.complete for X, Y in ((A, ones), (ones, B), (A, B)))
    assert certify(ones, ones, moduli=8).report.complete


def test_error_falls_by_four_bits_a_modulus():
    """A modulus of about 2^7.8 is shared by A and B, until one rounding to fp64 is all that is lost."""
    A, B = np.abs(normal(24, 64, seed=5)), np.abs(normal(64, 24, seed=6))
    exact = fpemu.reference.matmul(A, B)
    errors = [float(np.median(oracle.errors(certify(A, B, moduli=n).D, A, B) / exact)) for n in COUNTS]
    slope = np.polyfit(np.arange(12), np.log2(errors[:12]), 1)[0]
    assert -4.2 < slope < -3.5
    assert errors[14] < 2.0**-53
    assert errors[18] < 2.0**-53


# --- the condition


def planted():
    return np.full((4, 1024), 2.0**-10), np.full((1024, 3), 2.0**-10)


def test_fast_scaling_breaks_the_condition_and_that_is_found():
    A, B = planted()
    found = certify(A, B, scaling="fast", moduli=8)
    assert [fault.kind for fault in found.report.faults] == ["crt"]
    assert found.report.crt is False
    assert found.report.crt_bits[0] == pytest.approx(oracle.ozaki2(A[:1], B[:, :1], 8, "fast").bits, abs=1e-9)
    assert found.report.crt_bits[0] == pytest.approx(69, abs=1e-9)  # 2 · 1024 · 2^29 · 2^29
    assert (found.D != 2.0**-10).all()  # the fault is real
    with pytest.raises(GuaranteeError, match=r"2\^69\.0 at \[0, 0\], but 8 moduli .* P = 2\^63\.6 .*'invariant'"):
        fpemu.gemm(A, B, scheme="ozaki2", hardware="hopper", scaling="fast", moduli=8)
    for rule in ("accurate", "invariant"):
        assert (fpemu.gemm(A, B, scheme="ozaki2", hardware="hopper", scaling=rule, moduli=8) == 2.0**-10).all()


def test_more_moduli_do_not_mend_the_fast_scaling():
    assert not any(certify(*planted(), scaling="fast", moduli=n).report.ok for n in COUNTS)


@pytest.mark.parametrize("count", COUNTS)
def test_from_which_size_on_the_fast_scaling_is_right(count):
    """The condition holds if the exponents of the largest entries of row and column add up to -2 or more."""
    for a, b, K in ((0, -2, 64), (-1, -1, 64), (5, -7, 64), (-1, -1, 4096), (0, -2, 1000)):
        assert certify(np.full((1, K), 2.0**a), np.full((K, 1), 2.0**b), moduli=count, scaling="fast").report.crt
    assert not certify(np.full((1, 64), 0.25), np.full((64, 1), 0.25), moduli=count, scaling="fast").report.crt


def test_fast_scaling_cuts_large_entries_to_nothing():
    A, B = np.full((2, 4), 2.0**60), np.full((4, 2), 1.0)
    found = certify(A, B, scaling="fast", moduli=15)
    assert (found.D == 0).all()
    assert [fault.kind for fault in found.report.faults] == ["underflow"]
    assert "2 rows of A and 0 columns of B" in found.report.faults[0].message
    assert (certify(A, B, scaling="invariant", moduli=15).D == 2.0**62).all()


def test_the_detector_against_integers():
    """Rows about where the fast scaling begins to fail: never silent, and no alarm without need."""
    verdicts = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        K, count, size = rng.integers(4, 40), int(rng.integers(2, 21)), 2.0 ** rng.integers(-6, 2)
        A, B = size * rng.uniform(0.5, 1, (3, K)), size * rng.uniform(0.5, 1, (K, 3))
        found, want = certify(A, B, scaling="fast", moduli=count), oracle.ozaki2(A, B, count, "fast")
        assert found.report.crt == found.report.ok == want.unique
        assert found.report.crt_bits[0] >= want.bits - 1e-12
        assert np.array_equal(found.D, want.D)  # where the remainder is not unique, the same wrong one
        verdicts.append(want.unique)
    assert 10 < sum(verdicts) < 50


@pytest.mark.parametrize("rule", ["invariant", "accurate"])
@pytest.mark.parametrize("count", [6, 8, 15, 18])
def test_rounding_to_nearest_equals_the_oracle(rule, count):
    A, B = normal(5, 40, seed=count), normal(40, 6, seed=count + 1)
    A[2] *= 2.0**-300
    A[3], B[:, 4] = np.arange(40) + 0.5, 1.0  # ties
    found = certify(A, B, moduli=count, scaling=rule, rounding="nearest")
    want = oracle.ozaki2(A, B, count, rule, nearest=True)
    assert found.report.ok
    assert np.array_equal(found.D, want.D)


# --- what must not matter


@pytest.mark.parametrize("rule", ["invariant", "accurate"])
def test_powers_of_two_of_rows_columns_and_the_whole(rule):
    rng = np.random.default_rng(8)
    A, B = normal(9, 33, seed=8), normal(33, 8, seed=9)
    plain = certify(A, B, moduli=9, scaling=rule)
    for rows, columns in (
        (rng.integers(-200, 200, (9, 1)), rng.integers(-200, 200, (1, 8))),
        (np.full((9, 1), -400), np.full((1, 8), -400)),
        (np.full((9, 1), 500), np.full((1, 8), 480)),
    ):
        scaled = certify(np.ldexp(A, rows), np.ldexp(B, columns), moduli=9, scaling=rule)
        assert np.array_equal(scaled.D, np.ldexp(plain.D, rows + columns))
        assert scaled.report == plain.report


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("K", [1, 33, 2100])
def test_carriers_orders_and_layouts_agree(rule, K):
    A, B = normal(5, K, seed=K), normal(K, 6, seed=K + 1)
    want = certify(A, B, scaling=rule)
    orders = (None, KOrder(split=20, promote=7, join="pairwise"))
    for carrier in ("compiled", "numpy") if K < 2000 else ("compiled",):
        for chip, order in product(("hopper", "turing", "cdna3"), orders):
            got = fpemu.certify(A, B, scheme="ozaki2", hardware=chip, scaling=rule, carrier=carrier, order=order)
            assert np.array_equal(got.D, want.D)
            assert got.report.crt_bits == want.report.crt_bits
    F = certify(np.asfortranarray(A), np.asfortranarray(B), scaling=rule)
    assert np.array_equal(F.D, want.D)
    parts = [certify(A[i : i + 2], B, scaling=rule).D for i in range(0, 5, 2)]
    if rule != "accurate":  # its exponents look at all rows and columns
        assert np.array_equal(np.concatenate(parts), want.D)


@pytest.mark.parametrize(("carrier", "K"), [("blas", 2001), ("blas", 70001), ("compiled", 2**17 + 5)])
def test_long_sums_of_the_largest_residues_stay_exact(carrier, K):
    """In one chain -128 · -128 passes 2^31 after 2^17 products, and 127 · 127 what float32 counts after 1040."""
    scheme = Ozaki2(carrier=carrier)
    spec = fpemu.mma.spec("hopper", "int8")
    for x in (-128, 127):
        X = np.full((1, K), x, np.float32)
        assert scheme._product(X, X.T, 128, spec, None, "cpu").item() == x * x * K


# --- what is said about it


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [2, 5, 10, 15, 20])
def test_error_bound_holds(rule, count):
    for A, B in (
        (normal(5, 20, seed=1), normal(20, 5, seed=2)),
        (wide(5, 20, seed=3, low=-30, high=1), wide(20, 5, seed=4, low=-30, high=1)),
        (wide(5, 6, seed=5, low=-1074, high=400), wide(6, 5, seed=6, low=-1074, high=400)),
        (normal(5, 6, seed=7) * 2.0**-535, normal(6, 5, seed=8) * 2.0**-535),  # results of few bits
        (np.array([[2.0**1000, 2.0**-200]]), np.array([[0.0], [2.0**1000]])),  # the loss underflows next to A's maximum
    ):
        if rule == "fast" and A[0, 0] == 2.0**1000:  # all of A is cut off: its largest entry times B's is beyond fp64
            continue
        found = certify(A, B, moduli=count, scaling=rule)
        bound = Ozaki2(moduli=count, scaling=rule).error_bound(A, B)
        assert np.isinf(bound).any() != found.report.crt
        assert (oracle.errors(found.D, A, B) <= bound).all()
        if found.report.crt and rule != "fast":
            with np.errstate(over="ignore"):
                sizes = np.abs(A).max(1, keepdims=True) * np.abs(B).max(0, keepdims=True)
            assert (bound <= A.shape[1] * sizes * (2.0 ** (12 - 3.5 * count) + 2.0**-52) + 2.0**-1072).all()


def test_nothing_is_promised_where_the_condition_is_broken():
    A, B = planted()
    A[1], B[:, 2] = 1.0, 1.0
    bound = Ozaki2(scaling="fast", moduli=8).error_bound(A, B)
    assert np.isinf(bound).tolist() == [[(i, j) != (1, 2) for j in range(3)] for i in range(4)]


def test_error_bound_of_fp32_and_of_batches():
    A, B = normal(2, 1, 4, 6).astype(np.float32), normal(3, 6, 5, seed=1).astype(np.float32)
    bound = Ozaki2(precision="fp32").error_bound(A, B)
    D = certify(A, B, precision="fp32").D
    assert bound.shape == D.shape == (2, 3, 4, 5)
    for at in np.ndindex(2, 3):
        assert (oracle.errors(D[at], A[at[0], 0], B[at[1]]) <= bound[at]).all()
    assert bound.max() < 2.0**-18
    assert Ozaki2().error_bound(np.zeros((2, 0)), np.zeros((0, 3))).tolist() == [[0.0] * 3] * 2


def test_a_small_entry_may_lose_everything():
    """Why there is no bound relative to |A||B|."""
    A, B = np.array([[1.0, 2.0**-200]]), np.array([[0.0], [1.0]])
    assert certify(A, B, scaling="invariant").D.item() == 0.0


def test_options_and_defaults():
    assert [len(Ozaki2(precision=p).basis().moduli) for p in ("fp64", "fp32")] == [15, 8]
    report = certify(np.ones((2, 300)), np.ones((300, 2)), scaling="invariant").report
    assert (report.products, report.int32, report.int32_bound, report.complete) == (15, True, 300 * 2**14, True)
