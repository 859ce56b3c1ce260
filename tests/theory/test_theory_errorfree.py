"""Bounds of the error-free schemes from norms: against errors measured in integer arithmetic, and on random data."""

from __future__ import annotations

import contextlib
import functools
import math
from fractions import Fraction

import numpy as np
import pytest

from fpemu import inputs, metrics, mma, reference, schemes
from fpemu.errors import GuaranteeError, InputError
from fpemu.schemes import gemm
from fpemu.schemes.base import build
from fpemu.theory import Bound, Norms, entrywise
from fpemu.theory.errorfree import bound_parts, slices_for, splits

WIDE = 1200  # every number of these tests is a multiple of 2^-WIDE


def _bound(scheme, norms, hardware="hopper", entries=1, order=None, **options):
    return Bound(bound_parts(build(scheme, options), hardware, norms, order), entries)


def _integers(X):
    return np.array([[int(Fraction(float(x)) * 2**WIDE) for x in row] for row in X], dtype=object)


def _measured(D, A, B):
    """max |D - AB| / |A||B|, in integers."""
    a, b, d = (_integers(X) for X in (A, B, D))
    exact, size = a @ b, abs(a) @ abs(b)
    errors = abs(d * 2**WIDE - exact)
    return max(
        float(Fraction(e, s)) if s else (math.inf if e else 0.0) for e, s in zip(errors.flat, size.flat, strict=True)
    )


# --- the worst case
def _staircase(units, tail):
    """A row whose largest element is just above a power of two, each next one just below what a slice can leave, and
    six that are lost; a column that gives them weight."""
    row = [1 + 2.0**-50, *(unit * (1 - 2.0**-20) for unit in units), *[tail * (1 - 2.0**-20)] * 6]
    return np.array([row]), np.array([[60 * tail], *[[tail * 2.0**-9]] * len(units), *[[1.0]] * 6])


@pytest.mark.parametrize(("rule", "half"), [("published", 1.0), ("balanced", 0.5)])
def test_adaptive_slices_lose_nearly_all_that_the_worst_case_allows(rule, half):
    spec = mma.spec("hopper", "fp16", "fp32")
    unit = 2 * 2.0 ** -mma.exactness.slice_bits(spec, 8)
    options = {"slices": 2, "split": rule, "fast": False}
    A, B = _staircase([unit * half], unit * half * unit / 2 * half)
    error = _measured(schemes.gemm(A, B, scheme="ozaki", hardware="hopper", **options), A, B)
    worst = _bound("ozaki", Norms.of(A, B), **options).worst
    assert 0.3 * worst < error <= worst


def test_a_fixed_grid_loses_nearly_all_that_the_worst_case_allows():
    A, B = _staircase([], 2 * 2.0**-14)
    error = _measured(schemes.gemm(A, B, scheme="ozimmu", hardware="hopper", slices=2, headroom=0), A, B)
    assert 0.15 * _bound("ozimmu", Norms.of(A, B), slices=2, headroom=0).worst < error


@pytest.mark.parametrize("scaling", ["accurate", "invariant"])
@pytest.mark.parametrize(("moduli", "K"), [(15, 700), (6, 5000), (3, 9), (2, 40000)])
def test_rounding_to_nearest_keeps_the_condition_of_the_remainder_theorem(scaling, moduli, K):
    rng = np.random.default_rng(K)
    A, B = np.abs(rng.standard_normal((2, K))), np.ones((K, 2))
    options = {"moduli": moduli, "scaling": scaling, "rounding": "nearest"}
    report = schemes.certify(A, B, scheme="ozaki2", hardware="hopper", **options).report
    assert report.crt
    error = _measured(schemes.certify(A, B, scheme="ozaki2", hardware="hopper", **options).D, A, B)
    found = _bound("ozaki2", Norms.of(A, B), **options)
    assert error <= found.worst
    assert found.bias == 0 or moduli < 6


@pytest.mark.parametrize("scaling", ["accurate", "invariant"])
def test_integers_lose_nearly_all_that_the_worst_case_allows(scaling):
    """Elements of one size and sign lose half a last place on average, of a place that is a power of two."""
    A, B = inputs.operands("uniform", 4, 4, 32, 0, "fp64", low=1.0, high=1.001)
    shares = []
    for moduli in (4, 5, 6, 7):
        error = _measured(schemes.gemm(A, B, scheme="ozaki2", hardware="hopper", moduli=moduli, scaling=scaling), A, B)
        shares.append(error / _bound("ozaki2", Norms.of(A, B), moduli=moduli, scaling=scaling).worst)
    assert 0.25 < max(shares) <= 1


def test_one_rounding_may_be_half_a_unit():
    A, B = np.array([[1.0, 2.0**-53]]), np.ones((2, 1))
    error = _measured(schemes.gemm(A, B, scheme="ozaki", hardware="hopper", mode="CR"), A, B)
    assert 0.99 * 2.0**-53 < error <= _bound("ozaki", Norms.of(A, B), mode="CR").worst < 1.01 * 2.0**-53


def test_underflow_is_part_of_the_worst_case():
    A, B = np.ldexp([[3.0, 1.0]], -540), np.ldexp([[5.0], [2.0]], -536)  # 17 quarters of the least number
    for scheme, options in (("ozaki", {"slices": 8}), ("ozimmu", {}), ("ozaki2", {}), ("ozaki", {"mode": "CR"})):
        found = _bound(scheme, Norms.of(A, B), **options)
        error = _measured(schemes.gemm(A, B, scheme=scheme, hardware="hopper", **options), A, B)
        assert 2.0**-40 < error <= found.worst
        assert found.parts[-1].name == "underflow"


@pytest.mark.parametrize("scheme", ["ozaki", "ozimmu", "ozaki2"])
@pytest.mark.parametrize(("small", "large"), [(2.0**-1074, 2.0**-7), (2.0**-1074, 2.0**1023), (2.0**-540, 2.0**-540)])
def test_the_ends_of_the_range_have_bounds_too(scheme, small, large):
    for A, B in (([[large]], [[small]]), ([[small, large], [0.0, small]], [[small, 0.0], [0.0, small]])):
        A, B = np.array(A), np.array(B)
        for options in ({}, {"precision": "fp64", "split": "published"} if scheme == "ozaki" else {}):
            found = _bound(scheme, Norms.of(A, B), **options)
            assert not any(map(math.isnan, (found.worst, found.bias, found.deviation, found.probable())))
            with contextlib.suppress(GuaranteeError):
                D = schemes.gemm(A, B, scheme=scheme, hardware="hopper", **options)
                assert _measured(D, A, B) <= found.worst


@pytest.mark.parametrize("scheme", ["ozaki", "ozimmu", "ozaki2"])
def test_a_result_that_overflows_has_no_bound(scheme):
    A, B = np.full((1, 4), 2.0**600), np.full((4, 1), 2.0**500)
    options = {"slices": 3} if scheme == "ozaki" else {}
    assert np.isinf(schemes.gemm(A, B, scheme=scheme, hardware="hopper", on_range="propagate", **options)).all()
    assert _bound(scheme, Norms.of(A, B), **options).worst == math.inf
    assert _bound(scheme, Norms.of(A / 2.0**100, B), **options).worst < 1e-8


# --- random data
DATA = [
    ("uniform", {"low": -1.0}),
    ("uniform", {"low": 0.0}),
    ("normal", {}),
    ("phi", {"phi": 0.1}),
    ("phi", {"phi": 1.0}),
    ("phi", {"phi": 2.0}),
]
RANDOM = [
    *(("ozaki", {"slices": d, "split": rule}) for d in (3, 5, 8) for rule in ("published", "balanced")),
    ("ozaki", {"slices": 4, "fast": False}),
    ("ozaki", {}),
    ("ozaki", {"mode": "CR"}),
    ("ozaki", {"slices": "printed"}),
    ("ozaki", {"slices": 5, "words": "int8"}),
    ("ozaki", {"mode": "SP"}),
    ("ozaki", {"slices": 3, "mode": "SP"}),
    *(("ozimmu", {"slices": d}) for d in (3, 5, 8)),
    ("ozimmu", {"slices": 4, "split": "nearest", "headroom": 0}),
    ("ozimmu", {}),
    ("ozimmu", {"precision": "fp32"}),
    ("ozimmu", {"sums": "group"}),
    *(("ozaki2", {"moduli": n, "scaling": rule}) for n in (6, 10, 15) for rule in ("accurate", "fast", "invariant")),
    *(("ozaki2", {"moduli": n, "scaling": "invariant", "rounding": "nearest"}) for n in (8, 12)),
]


@functools.cache
def _problem(name, parameters, K, fmt):
    rows = 16 if K < 4096 else 8
    A, B = inputs.operands(name, rows, rows, K, 11, fmt, **dict(parameters))
    wide = A.astype(np.float64), B.astype(np.float64)
    return A, B, Norms.of(A, B), reference.matmul(*wide), np.abs(wide[0]) @ np.abs(wide[1])


@pytest.mark.parametrize("K", [16, 256, 4096])
@pytest.mark.parametrize(("name", "parameters"), DATA)
def test_the_probable_bound_is_not_below_the_largest_error_and_at_most_ten_times_as_large(name, parameters, K):
    compared = 0
    for scheme, options in RANDOM:
        fmt = build(scheme, options).operand.name
        A, B, norms, exact, size = _problem(name, tuple(parameters.items()), K, fmt)
        found = _bound(scheme, norms, entries=exact.size, **options)
        try:
            D = schemes.gemm(A, B, scheme=scheme, hardware="hopper", **options).astype(np.float64)
        except GuaranteeError:
            assert found.worst == math.inf
            continue
        error, blur = (float(np.max(x / size)) for x in (np.abs(D - exact), np.abs(exact) * 2.0**-53))
        assert error <= found.worst + blur
        if 1e-17 < error < 1e-2 and error > 4 * blur:  # not the rounding of the reference, not elements lost entirely
            compared += 1
            # in fast scaling rows lose as many bits as they are large, which norms do not tell row by row
            own = options.get("scaling") == "fast" and name == "phi"
            times = 20 if scheme == "ozaki2" and parameters.get("phi") == 2.0 else 10  # few elements dominate a row
            assert error <= found.probable() * (1 + own) <= times * (1 + 2 * own) * error, (scheme, options)
    assert compared >= 15


def test_sums_of_one_sign_lose_what_truncation_predicts():
    A, B, norms, exact, size = _problem("uniform", (("low", 0.0),), 4096, "fp64")
    for scheme, options in (("ozimmu", {"slices": 4}), ("ozaki2", {"moduli": 8})):
        lost = (exact - schemes.gemm(A, B, scheme=scheme, hardware="hopper", **options)) / size
        found = _bound(scheme, norms, **options)
        assert found.bias / 3 < lost.mean() < 3 * found.bias
        assert lost.std() < found.bias / 10
    zero_mean = Norms.of(*_problem("uniform", (("low", -1.0),), 4096, "fp64")[:2])
    assert _bound("ozimmu", zero_mean, slices=4).bias < _bound("ozimmu", norms, slices=4).bias / 10


def test_norms_of_a_sample_tell_the_error_of_other_data():
    norms = Norms.sample("normal", 1024, rows=16, dtype="fp64")
    A, B, *_, exact, size = _problem("normal", (), 1024, "fp64")
    for slices in (3, 5):
        error = np.max(np.abs(schemes.gemm(A, B, scheme="ozaki", hardware="ampere", slices=slices) - exact) / size)
        assert error / 10 < _bound("ozaki", norms, "ampere", exact.size, slices=slices).probable() < 10 * error


# --- what the norms cannot say
@pytest.mark.parametrize(
    ("scheme", "options", "reason"),
    [
        ("ozaki", {}, "Algorithm 3"),
        ("ozaki", {"slices": "printed"}, "Algorithm 3"),
        ("ozimmu", {"loss": 2.0}, "mean"),
        ("ozaki", {"bits": 11, "slices": 4}, "not exact"),
        ("ozimmu", {"slices": 200, "bits": 7, "group": 200, "sums": "group"}, "may overflow"),
        ("ozaki2", {"scaling": "fast"}, "too small"),
    ],
)
def test_a_part_without_a_bound_says_why(scheme, options, reason):
    norms = Norms.sample("uniform", 1024, rows=4, low=-(2.0**-9), high=2.0**-9, dtype="fp64")
    parts = bound_parts(build(scheme, options), "hopper", norms)
    unbounded = [part.name for part in parts if math.isinf(part.worst)]
    assert len(unbounded) == 1
    assert reason in unbounded[0]


def test_entries_of_small_rows_sums_may_lose_all_with_algorithm_3():
    """Why there is no bound: Algorithm 3 looks at sums over rows of |A||B|, here ruled by one column."""
    A, B = np.array([[1 / 3, 2.0**-56 / 3, 2.0**-120]]), np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    D = schemes.gemm(A, B, scheme="ozaki", hardware="hopper", slices="printed")
    assert D[0, 1] == 0
    assert _bound("ozaki", Norms.of(A, B), slices="printed").worst == math.inf


def test_an_exhausted_operand_loses_nothing():
    A, B = np.array([[1.0, 3.0, -5.0]]), np.array([[7.0], [2.0], [-1.0]])
    # a multiple of 1 below 8: two slices of 10 bits would hold 53 bits only if there were as many
    norms = Norms(
        **{**vars(Norms.of(A, B)), "min_A": 2.0**52, "max_A": 2.0**52 * 1.5, "min_B": 2.0**52, "max_B": 2.0**52}
    )
    few, many = (_bound("ozaki", norms, slices=d).parts[0].worst for d in (3, 12))
    assert few > 0
    assert many == 0


def test_zeros_have_no_error():
    norms = Norms.of(np.zeros((2, 3)), np.ones((3, 2)))
    assert all(_bound(scheme, norms).worst == 0 for scheme in ("ozaki", "ozimmu", "ozaki2"))


def test_order_and_hardware_change_the_bits_of_a_slice():
    norms = Norms.sample("uniform", 4096, rows=4, low=-1.0, dtype="fp64")
    whole, promoted = (
        _bound("ozaki", norms, slices=3, words="e4m3", order=order).worst
        for order in (mma.KOrder(promote=64), mma.KOrder(promote=16))
    )
    assert promoted <= whole
    assert _bound("ozaki", norms, "ampere", slices=3).worst == _bound("ozaki", norms, "volta", slices=3).worst


# --- how many slices a target needs
@pytest.mark.parametrize("target", [1e-3, 1e-7, 1e-12])
@pytest.mark.parametrize(("scheme", "name"), [("ozaki", "slices"), ("ozimmu", "slices"), ("ozaki2", "moduli")])
def test_the_fewest_slices_meet_the_target_and_one_less_does_not(scheme, name, target):
    A, B = inputs.operands("phi", 8, 8, 256, 0, "fp64", phi=1.0)
    norms = Norms.of(A, B)
    count = slices_for(target, norms, scheme=scheme, hardware="H200")
    assert (
        metrics.normwise(
            schemes.gemm(A, B, scheme=scheme, hardware="H200", **{name: count}), reference.matmul(A, B), A, B
        )
        <= target
    )
    assert _bound(scheme, norms, "H200", **{name: count}).worst <= target
    assert _bound(scheme, norms, "H200", **{name: count - 1}).worst > target


def test_slices_of_all_bits_are_found_where_few_slices_keep_none_of_some_entries():
    norms = Norms.of(*inputs.operands("wide", 4, 4, 64, 1, "fp64", low=-100, high=100))
    count = slices_for(1e-10, norms, scheme="ozimmu")
    assert _bound("ozimmu", norms, slices=count).worst <= 1e-10 < _bound("ozimmu", norms, slices=count - 1).worst
    assert _bound("ozimmu", norms, slices=count // 2).worst > _bound("ozimmu", norms, slices=1).worst


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("ozaki", {"mode": "SP"}), ("ozimmu", {"precision": "fp32"}), ("ozaki2", {"precision": "fp32"})],
)
def test_no_bound_of_an_entry_is_finite_where_the_result_overflows(scheme, options):
    A, B = np.float32([[2.0**100, 0], [1, 2.0**20]]), np.float32([[2.0**100], [2.0**100]])
    D = schemes.gemm(A, B, scheme=scheme, hardware="H200", **options)
    limits = entrywise(scheme, "H200", A=A, B=B, **options)
    assert D[0, 0] == limits[0, 0] == math.inf
    assert abs(D[1, 0] - 2.0**100 * (1 + 2.0**20)) <= limits[1, 0] < 2.0**100


def test_a_target_out_of_reach_is_refused_with_the_best():
    norms = Norms.sample("uniform", 256, rows=8, low=-1.0, dtype="fp64")
    with pytest.raises(InputError, match=r"no number of slices meets the target 1e-17.*the best is .*e-1\d, with slic"):
        slices_for(1e-17, norms, hardware="H200")
    with pytest.raises(InputError, match=r"no bound holds: .*too small for fast scaling"):
        slices_for(1e-3, norms, scheme="ozaki2", hardware="H200", scaling="fast")
    for target in (0, -1.0, math.nan, math.inf, "1e-3"):
        with pytest.raises(InputError, match="target"):
            slices_for(target, norms, hardware="H200")
    with pytest.raises(InputError, match="leave it out"):
        slices_for(1e-3, norms, hardware="H200", slices=3)
    with pytest.raises(InputError, match="has no number of slices"):
        slices_for(1e-3, norms, scheme="ootomo", hardware="H200")
    with pytest.raises(InputError, match="mode='CR' takes all slices"):
        slices_for(1e-3, norms, hardware="H200", mode="CR")


def test_other_schemes_and_missing_hardware_are_refused():
    norms = Norms.sample("uniform", 16, rows=4)
    with pytest.raises(InputError, match="bounds ozaki, ozimmu and ozaki2"):
        bound_parts(build("ootomo", {}), "hopper", norms)
    with pytest.raises(InputError, match="give hardware="):
        bound_parts(build("ozaki", {}), None, norms)


def test_products_of_long_digits_are_exact_while_they_add_up_to_2_to_the_53():
    parts = bound_parts(build("ozaki", {"words": "fp64", "slices": 3}), "A100", Norms.sample("uniform", 16))
    assert all(math.isfinite(part.worst) for part in parts)  # 16 digits of 24 bits: 2^52


def test_the_digits_below_the_last_slice_have_one_size_however_their_number_is_found():
    norms = Norms.sample("uniform", 1024)
    found = bound_parts(build("ozaki", {}), "H200", norms)[0]
    d = int(found.name.removeprefix("digits below slice ").partition(",")[0])
    given = bound_parts(build("ozaki", {"slices": d}), "H200", norms)[0]
    assert (found.bias, found.deviation, found.tail) == (given.bias, given.deviation, given.tail)


def test_integers_of_7_bits_rounded_upward_cost_a_bit_and_a_32nd_of_the_limit():
    """Accurate scaling: the largest 7-bit integer of a row exceeds 32, so that rounding it up adds less than 1/32."""
    norms = Norms.sample("uniform", 1024, low=-1.0)
    accurate, invariant = (
        bound_parts(build("ozaki2", {"moduli": 15, "scaling": scaling}), None, norms)[0].worst
        for scaling in ("accurate", "invariant")
    )
    assert math.isclose(accurate / invariant, math.sqrt(2 * 33 / 32), rel_tol=1e-9)


def test_fast_scaling_gives_short_rows_the_exponent_of_four():
    """A row with K = 1 has S < 4 and loses as much as one with S = 4 would."""
    rng = np.random.default_rng(0)
    A, B = 1 + rng.random((300, 1)) / 8, 1 + rng.random((1, 300)) / 8
    D = gemm(A, B, scheme="ozaki2", hardware="A100", moduli=6, scaling="fast")
    lost = np.mean((A * B - D) / (A * B))  # the error is 2^28 times as large as that of A * B
    bias = bound_parts(build("ozaki2", {"moduli": 6, "scaling": "fast"}), None, Norms.of(A, B))[0].bias
    assert math.isclose(bias, lost, rel_tol=0.15)


def test_partial_sums_of_slices_may_exceed_the_product():
    """Slices of 3 bits alternate in sign: a first slice of A times all of B's slices is larger than a·b."""
    a, b = np.array([[1.2868429018651735]]), np.array([[1.263084025979676]])
    scheme = build("ozaki", {"bits": 3})
    plan = scheme.plan_for(mma.spec("A100", "fp16"), 1)
    first, *_ = np.cumsum([float(np.ldexp(s.digits, s.exponents)[0, 0]) for s in plan.cut(a, 1, None).items])
    others = [float(np.ldexp(np.abs(s.digits), s.exponents)[0, 0]) for s in plan.cut(b, 0, None).items]
    largest = first * sum(others) / (a * b).item()
    assert 1.62 < largest <= splits(Norms.of(a, b), plan, scheme.operand).growth()


@pytest.mark.parametrize(
    "options", [{"scaling": "accurate"}, {"scaling": "invariant"}, {"rounding": "nearest"}], ids=str
)
@pytest.mark.parametrize("data", [("normal", {}), ("phi", {"phi": 2.0}), ("lognormal", {})], ids=str)
def test_few_products_exceed_the_probable_bound(options, data):
    """At most one in a hundred, on average, of products that cut many digits off; three of 60 are improbable."""
    exceeded = 0
    for seed in range(60):
        A, B = inputs.operands(data[0], 8, 8, 32, seed, dtype="fp64", **data[1])
        D = schemes.gemm(A, B, scheme="ozaki2", hardware="hopper", moduli=3, **options)
        bound = _bound("ozaki2", Norms.of(A, B), entries=64, moduli=3, **options)
        exceeded += metrics.normwise(D, reference.matmul(A, B), A, B) > bound.probable()
    assert exceeded < 3
