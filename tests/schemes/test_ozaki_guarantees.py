"""What the Ozaki family promises and refuses: reports, the detectors of broken conditions, counts, wrong arguments.

The results themselves, bit for bit, are in test_ozaki_family.py.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma
from fpemu.errors import GuaranteeError
from fpemu.schemes import build, ozaki
from fpemu.schemes.errorfree.plan import Report
from tests.oracle import ozaki as oracle

KINDS = {"inexact-product", "crt", "int32-overflow", "underflow"}
CONFIGURATIONS = [
    ("ozaki", {"mode": "CR"}),
    ("ozaki", {"mode": "CR", "words": "int8"}),
    ("ozaki", {"mode": "CR", "words": "bf16"}),
    ("ozaki", {"mode": "CR", "words": "e4m3"}),
    ("ozaki", {"mode": "CR", "split": "balanced"}),
    ("ozaki", {"mode": "DP"}),
    ("ozaki", {"mode": "DP", "k_block": 16}),
    ("ozaki", {"mode": "SP"}),
    ("ozimmu", {}),
    ("ozimmu", {"split": "nearest"}),
    ("ozimmu", {"sums": "each"}),
    ("ozimmu", {"sums": "group"}),
    ("ozaki2", {}),
    ("ozaki2", {"scaling": "invariant"}),
    ("ozaki2", {"scaling": "accurate"}),
    ("ozaki2", {"precision": "fp32"}),
]
every = pytest.mark.parametrize(("scheme", "options"), CONFIGURATIONS, ids=str)


def uniform(shape, seed=0, dtype=np.float64, low=-1.0):
    return np.random.default_rng(seed).uniform(low, 1, shape).astype(dtype)


def single(shape, seed=0):
    """fp32 numbers, which every mode takes."""
    return uniform(shape, seed, np.float32)


def broken(kind, A, B, scheme="ozaki", hardware="hopper", names=(), **options):
    """The result despite a broken condition, and that gemm raises with a line that names it."""
    got = fpemu.certify(A, B, scheme=scheme, hardware=hardware, **options)
    assert not got.report.ok
    assert {f.kind for f in got.report.faults} <= KINDS
    message = next(f.message for f in got.report.faults if f.kind == kind)
    with pytest.raises(GuaranteeError) as caught:
        fpemu.gemm(A, B, scheme=scheme, hardware=hardware, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    for name in names:
        assert re.search(name, message, re.IGNORECASE), f"{name!r} is not in {message!r}"
    assert re.search(r"\d", message), f"no amount in {message!r}"
    return got


# --- a clean run


@every
def test_a_clean_run_reports_no_fault(scheme, options):
    A, B = single((6, 50)), single((50, 5), 1)
    got = fpemu.certify(A, B, scheme=scheme, hardware="hopper", **options)
    report = got.report
    assert isinstance(report, Report)
    assert report.ok
    assert report.faults == ()
    assert report.scheme == scheme
    assert "hopper" in report.hardware
    assert report.exact in (True, None)
    assert report.underflow in (False, None)
    assert report.crt in ((True,) if scheme == "ozaki2" else (None,))
    assert report.products > 0
    if report.exact:
        assert 0 < report.sum_bound <= report.sum_limit
    same = fpemu.gemm(A, B, scheme=scheme, hardware="hopper", **options)
    assert same.dtype == got.D.dtype
    assert (same == got.D).all()


@pytest.mark.parametrize("options", [{"mode": "DP"}, {"mode": "SP"}, {"mode": "CR"}, {"mode": "CR", "k_block": 64}])
def test_the_sum_bound_covers_the_largest_sum(options):
    """1 - 2^-24 is cut to the digit 2^9, and 64 products of 2^18 are all that fp32 holds."""
    A = np.full((2, 64), 1 - 2.0**-24, np.float32)
    report = fpemu.certify(A, A.T, scheme="ozaki", split="published", hardware="hopper", **options).report
    assert report.ok
    assert report.bits == 9
    assert report.sum_bound == report.sum_limit == 2**24


@pytest.mark.parametrize("words", ["fp16", "bf16", "int8", "tf32"])
@pytest.mark.parametrize("split", ["published", "balanced"])
def test_cr_leaves_nothing(words, split):
    rng = np.random.default_rng(2)
    A = np.ldexp(rng.uniform(-1, 1, (4, 20)), rng.integers(-40, 40, (4, 20)))
    B = np.ldexp(rng.uniform(-1, 1, (20, 3)), rng.integers(-400, 400, (20, 3)))
    report = fpemu.certify(A, B, scheme="ozaki", mode="CR", hardware="hopper", words=words, split=split).report
    assert report.complete
    assert report.exact
    sa, sb = report.slices
    assert report.products == sa * sb
    assert [len(f) for f in report.fill] == [sa, sb]
    assert all(0 <= f <= 1 for part in report.fill for f in part)
    assert all(part[0] > 0 for part in report.fill)
    assert sum(report.fill[0]) * A.size >= np.count_nonzero(A)  # each number has a digit somewhere


def test_fill_counts_the_digits_that_are_not_zero():
    A, B = np.zeros((4, 25)), np.ones((25, 2))
    A[0, 0] = 1.0
    report = fpemu.certify(A, B, scheme="ozaki", mode="CR", hardware="hopper").report
    assert report.fill == ((0.01,), (1.0,))
    assert report.slices == (1, 1)
    assert report.products == 1


def test_fill_of_the_published_split():
    A, B = uniform((5, 24), 3), uniform((24, 4), 4)
    report = fpemu.certify(A, B, scheme="ozaki", mode="CR", hardware="hopper", split="published").report
    bits = oracle.published_bits(24)
    for X, fill in ((A, report.fill[0]), (B.T, report.fill[1])):
        parts = oracle.rows(X, bits)
        expected = [
            sum(bool(d) for row in parts if p < len(row) for d in row[p].digits) / X.size
            for p in range(oracle.count(parts))
        ]
        assert fill == pytest.approx(expected, abs=1e-12)
    assert report.bits == bits


def test_an_incomplete_split_is_not_called_complete():
    A, B = uniform((3, 16), 5), uniform((16, 3), 6)
    for slices, complete in ((2, False), (30, True)):
        for scheme in ("ozaki", "ozimmu"):
            report = fpemu.certify(A, B, scheme=scheme, hardware="hopper", slices=slices).report
            assert report.complete is complete
            assert report.ok  # a requested approximation is no fault


# --- counts


@pytest.mark.parametrize("k", [5, 16, 17, 100, 255, 256, 257, 1000, 1024, 1025, 4096, 16384])
def test_bits_per_slice_of_the_paper(k):
    X = np.ones((1, k))
    for hardware in ("volta", "turing", "ampere", "hopper", "ideal"):
        assert ozaki.counts(X, X.T, hardware=hardware).bits == oracle.published_bits(k)
    assert oracle.published_bits(k) == {16: 10, 256: 8, 1024: 7, 4096: 6, 16384: 5}.get(k, oracle.published_bits(k))


def test_the_paper_multiplies_66_times():
    """Section 5.2: 66 GEMMs at n = 7168, phi = 0.1, hence d = 11 in fast mode."""
    rng = np.random.default_rng(7)
    A, B = ((rng.random(s) - 0.5) * np.exp(0.1 * rng.standard_normal(s)) for s in ((64, 7168), (7168, 64)))
    counts = ozaki.counts(A, B, hardware="Titan RTX", mode="DP")
    assert counts.slices == (11, 11)
    assert counts.products == 66
    assert counts.fast is True
    assert counts.bits == 5
    assert ozaki.algorithm3(A, B) == 11


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "DP"},
        {"mode": "SP"},
        {"mode": "CR"},
        {"slices": 4, "fast": True},
        {"slices": 4, "fast": False},
        {"mode": "CR", "split": "balanced"},
        {"mode": "CR", "words": "int8"},
        {"k_block": 16},
    ],
    ids=str,
)
def test_counts_are_those_of_the_product(options):
    A, B = single((4, 60), 8), single((60, 3), 9)
    counts = ozaki.counts(A, B, hardware="hopper", **options)
    report = fpemu.certify(A, B, scheme="ozaki", hardware="hopper", **options).report
    assert (counts.slices, counts.products, counts.bits) == (report.slices, report.products, report.bits)
    sa, sb = counts.slices
    if counts.fast:
        d = max(sa, sb)
        assert counts.products == sum(p + q <= d + 1 for p in range(1, sa + 1) for q in range(1, sb + 1))
    else:
        assert counts.products == sa * sb


@pytest.mark.parametrize(
    ("words", "hardware", "most"),
    [
        ("bf16", "hopper", 8),
        ("int8", "hopper", 7),
        ("e4m3", "blackwell", 4),
        ("e5m2", "blackwell", 3),
        ("fp16", "hopper", 11),
        ("tf32", "hopper", 11),
    ],
)
def test_digits_are_values_of_the_words(words, hardware, most):
    """At k = 1 the sums leave more bits than the words have."""
    X = np.array([[1 - 2.0**-53]])
    assert ozaki.counts(X, X, hardware=hardware, mode="CR", words=words).bits <= most
    got = fpemu.certify(X, X, scheme="ozaki", hardware=hardware, mode="CR", words=words, carrier="compiled")
    assert got.report.ok
    assert got.D.item() == oracle.product(X, X).item()


@pytest.mark.parametrize("hardware", ["volta", "ampere", "hopper", "cdna1", "cdna2", "cdna3", "ascend910a", "ideal"])
@pytest.mark.parametrize("k", [3, 16, 60, 250])
def test_the_bits_chosen_are_exact_on_the_instruction_for_the_worst_digits(hardware, k):
    """Digits as large as they come, one smallest among them, signs that cancel: the model against plain integers."""
    bits = ozaki.counts(np.ones((1, k)), np.ones((k, 1)), hardware=hardware, mode="CR").bits
    rng = np.random.default_rng(k)
    for case in range(6):
        A, B = np.full((3, k), -1.0), np.full((k, 3), -1.0)  # digits -2^bits
        A[:, case % k] = -(2.0**-bits)  # digit -1, of negative numbers
        B[(case + 1) % k] = -1 + 2.0**-bits
        if case % 2:
            A *= rng.choice([-1, 1], A.shape)
        if case % 3:
            A = np.where(rng.random(A.shape) < 0.5, A, -1 + 2.0**-bits)
        got = fpemu.certify(A, B, scheme="ozaki", mode="CR", hardware=hardware, carrier="compiled")
        assert got.report.ok
        assert (oracle.product(A, B) == got.D).all()


@pytest.mark.parametrize("words", ["fp16", "bf16", "int8", "e4m3", "e5m2"])
@pytest.mark.parametrize("split", ["published", "balanced"])
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_a_split_into_few_bits_comes_to_an_end(words, split, bits):
    """Digits that cannot come nearer to the number would never leave nothing, and CR would run for ever."""
    X = np.array([[1.0, 3.0, 0.75, -1.0, -3.0, -0.75, 2.0**-30]])
    options = {"mode": "DP", "words": words, "split": split, "bits": bits, "slices": 60, "fast": False}
    try:
        got = fpemu.certify(X, X.T, scheme="ozaki", hardware="hopper", **options)
    except InputError as refused:
        assert bits == 1 and "bits" in str(refused)  # noqa: PT017, PT018 (to refuse is as good)
        return
    assert got.report.complete
    assert got.D.item() == oracle.product(X, X.T).item()


# --- detectors


@pytest.mark.parametrize("mode", ["CR", "DP"])
@pytest.mark.parametrize("hardware", ["volta", "ampere", "hopper", "cdna2", "cdna3", "ideal"])
def test_too_many_bits_make_products_inexact(mode, hardware):
    A, B = -uniform((4, 256), 10, low=0.5), -uniform((256, 4), 11, low=0.5)
    got = broken(
        "inexact-product", A, B, mode=mode, hardware=hardware, bits=11, carrier="compiled", names=("bits", "exact")
    )
    assert got.report.exact is False
    assert got.report.sum_bound > got.report.sum_limit
    good = fpemu.certify(A, B, scheme="ozaki", mode=mode, hardware=hardware, bits=8, carrier="compiled")
    assert good.report.ok
    if mode == "CR":  # the alarm is not a false one
        assert (oracle.product(A, B) != got.D).any()
        assert (oracle.product(A, B) == good.D).all()


@pytest.mark.parametrize("carrier", ["blas", "compiled", "numpy"])
def test_every_carrier_reports_the_same_fault(carrier):
    A, B = -uniform((3, 64), 12, low=0.5), -uniform((64, 3), 13, low=0.5)
    got = broken("inexact-product", A, B, mode="CR", bits=10, carrier=carrier)
    assert got.report.sum_limit == 2**24


def test_fp8_on_hopper_keeps_14_bits_and_the_report_states_it():
    """wgmma sums fp8 to 13 fraction bits: 4-bit digits are exact for 64 products, on Blackwell for 65536."""
    A = -np.ones((2, 512))
    options = {"scheme": "ozaki", "mode": "CR", "words": "e4m3", "bits": 4}
    assert fpemu.certify(A, A.T, hardware="blackwell", **options).report.ok
    A = -uniform((2, 512), 14, low=0.5)
    broken("inexact-product", A, A.T, mode="CR", words="e4m3", bits=4, hardware="hopper")


def test_one_exponent_for_all_slices_loses_the_late_ones():
    A, B = uniform((4, 16), 15), uniform((16, 4), 16)
    got = broken("underflow", A, B, mode="CR", exponents="row", carrier="compiled", names=("subnormal|underflow|lost",))
    assert got.report.underflow is True
    assert (oracle.product(A, B) != got.D).any()
    good = fpemu.certify(A, B, scheme="ozaki", mode="CR", hardware="hopper", exponents="slice")
    assert good.report.ok
    assert good.report.underflow is False


def test_one_exponent_for_all_slices_is_no_fault_where_nothing_is_lost():
    A, B = np.ones((2, 16)), np.ones((16, 2))
    got = fpemu.certify(A, B, scheme="ozaki", mode="CR", hardware="hopper", exponents="row")
    assert got.report.ok
    assert (got.D == 16).all()


def test_int32_sums_of_one_product_overflow():
    """127² · 140000 > 2^31: 7 bits are too many at this length."""
    A = np.full((1, 140000), 255 / 256)
    got = broken("int32-overflow", A, A.T, scheme="ozimmu", hardware="ampere", bits=7, headroom=0, names=("int32",))
    assert got.report.int32 is False
    assert got.report.int32_bound > 2**31 - 1
    good = fpemu.certify(A, A.T, scheme="ozimmu", hardware="ampere", slices=8, headroom=0)
    assert good.report.ok
    assert good.report.bits == 6
    assert good.D.item() == pytest.approx(140000 * (255 / 256) ** 2, rel=1e-12)


def test_int32_sums_of_a_group_overflow():
    """k = 2^15: r = 31 - 14 - 15 = 2, so four products share a sum; seven of 127² · 2^15 do not fit."""
    A = np.full((1, 2**15), 1 - 2.0**-53)
    got = broken(
        "int32-overflow",
        A,
        A.T,
        scheme="ozimmu",
        hardware="ampere",
        slices=8,
        sums="group",
        group=64,
        headroom=0,
        carrier="compiled",
        names=("int32", "group|share"),
    )
    assert got.report.int32 is False
    assert got.report.int32_bound >= 7 * 127**2 * 2**15
    exact = oracle.product(A, A.T).item()
    # really wrong: the sums of 5, 6, 7 and 8 products wrap around, by 2^32 units of 2^-42, 2^-49, 2^-56 and 2^-63
    assert exact - got.D.item() == pytest.approx(2.0**-10 + 2.0**-17 + 2.0**-24 + 2.0**-31, rel=1e-6)
    good = fpemu.certify(A, A.T, scheme="ozimmu", hardware="ampere", slices=8, sums="group", headroom=0)
    assert good.report.ok
    assert good.report.int32 is True
    assert 127**2 * 2**15 <= good.report.int32_bound <= 2**31 - 1
    assert abs(good.D.item() - exact) < 1e-13 * exact


def test_a_fault_in_one_matrix_of_a_batch_is_reported():
    good, bad = np.ones((2, 1024)), np.full((2, 1024), 2.0**-10)
    A = np.stack([good, bad])
    B = A.swapaxes(1, 2)
    assert fpemu.certify(good, good.T, scheme="ozaki2", hardware="ampere", scaling="accurate", moduli=8).report.ok
    broken("crt", A, B, scheme="ozaki2", hardware="ampere", scaling="fast", moduli=8)


def test_nan_and_inf_are_no_faults():
    A, B = uniform((3, 20), 20), uniform((20, 3), 21)
    A[0, 0], B[3, 1] = np.nan, np.inf
    for scheme in ("ozaki", "ozimmu", "ozaki2"):
        assert fpemu.certify(A, B, scheme=scheme, hardware="ampere").report.ok


# --- wrong arguments


TENTH, B1 = np.full((3, 8), 0.1), np.ones((8, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "ozaki", "mode": "SP"},
        {"scheme": "ozaki", "mode": "CR", "precision": "fp32"},
        {"scheme": "ozimmu", "precision": "fp32"},
        {"scheme": "ozaki2", "precision": "fp32"},
    ],
    ids=str,
)
def test_fp32_modes_take_fp32_numbers(options):
    with pytest.raises(InputError, match="fp32") as caught:
        fpemu.gemm(TENTH, B1, hardware="hopper", **options)
    assert "\n" not in str(caught.value)
    fpemu.gemm(TENTH.astype(np.float32).astype(np.float64), B1, hardware="hopper", **options)


@pytest.mark.parametrize("mode", ["DP", "CR"])
def test_too_little_memory_is_refused_with_the_least_that_works(mode):
    A, B = uniform((8, 40), 22), uniform((40, 8), 23)
    with pytest.raises(InputError, match="memory") as caught:
        fpemu.gemm(A, B, scheme="ozaki", hardware="hopper", mode=mode, memory=100)
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", str(caught.value))]
    least = max(numbers)
    assert least > 100
    got = fpemu.gemm(A, B, scheme="ozaki", hardware="hopper", mode=mode, memory=least)
    assert (got == fpemu.gemm(A, B, scheme="ozaki", hardware="hopper", mode=mode)).all()
    with pytest.raises(InputError, match="memory"):
        fpemu.gemm(A, B, scheme="ozaki", hardware="hopper", mode=mode, memory=least - 1)


@pytest.mark.parametrize("scheme", ["ozaki", "ozimmu", "ozaki2"])
def test_underflow_within_a_scheme_is_no_error_of_the_caller(scheme):
    A, B = np.array([[1e300, 1e-300], [5e-324, 1.0]]), np.array([[1.0, 1e-200], [1e300, 5e-324]])

    def results():
        bound = fpemu.schemes.get(scheme).error_bound(A, B, "hopper")
        counts = (ozaki.counts(A, B, hardware="hopper"), ozaki.algorithm3(A, B, bits=7))
        return fpemu.gemm(A, B, scheme=scheme, hardware="hopper").tolist(), bound.tolist(), counts

    expected = results()
    with np.errstate(all="raise"):
        assert results() == expected


@pytest.mark.parametrize("K", [1, 2, 3, 8, 9, 2**11, 2**13, 2**13 + 1])
def test_digits_take_all_bits_that_sums_in_fp64_hold(K):
    """The largest b with K · 2^b · 2^b <= 2^53."""
    bits = build("ozaki", {"words": "fp64"}).slice_bits(mma.spec("A100", "fp64"), K)
    assert K * 2 ** (2 * bits) <= 2**53 < K * 2 ** (2 * bits + 2)


@pytest.mark.parametrize(("K", "bits", "shared"), [(1024, None, 128), (1025, None, 64), (1, 7, 2**17), (2, 5, 2**20)])
def test_products_of_int8_digits_share_a_sum_while_int32_holds_it(K, bits, shared):
    """Uchino et al. (2025): 2^r products with r = 31 - 2 b - ceil(log2 K)."""
    assert build("ozimmu", {"sums": "group", "bits": bits}).sharing(K) == shared
