"""The number of slices or moduli from a target, with its certificate; scaling along k by powers of two."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu import reference, schemes, theory
from fpemu.errors import GuaranteeError, InputError
from fpemu.schemes.errorfree.split import inside
from fpemu.schemes.errorfree.target import least_sizes, limit

CALL = {"hardware": "H200"}
SCHEMES = [
    ("ozaki2", {}),
    ("ozaki2", {"scaling": "invariant", "rounding": "nearest"}),
    ("ozaki2", {"precision": "fp32"}),
    ("ozaki", {}),
    ("ozaki", {"mode": "SP", "words": "bf16"}),
    ("ozimmu", {"sums": "group"}),
]


def _planted(kind, K, seed=0, dtype=np.float64):
    """Operands with rows of tiny entries, a range of 2^±500, grades along k, or zeros."""
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((9, K)), rng.standard_normal((K, 7))
    wide = 500 if dtype == np.float64 else 40
    if kind == "tiny rows":
        A[::2] *= 2.0**-60 * (0.1 if dtype == np.float32 else 2.0**-400)
        B[:, 1] *= 2.0**-50
    elif kind == "ranges":
        A, B = A * 2.0 ** rng.integers(-wide, wide, (9, 1)), B * 2.0 ** rng.integers(-wide, wide, (1, 7))
        if dtype == np.float32:
            B = B / 2.0**20
    elif kind == "graded":
        grade = 2.0 ** np.linspace(-8, 8, K)
        A, B = A * grade, B / grade[:, None]
    elif kind == "spread":
        A *= 2.0 ** rng.integers(-15, 15, A.shape)
    elif kind == "zeros":
        A[3], B[:, 2], A[1, K // 2 :], B[: K // 2, 4] = 0, 0, 0, 0
    return A.astype(dtype), B.astype(dtype)


def _relative_errors(D, A, B):
    """|D - AB| / (|A||B|) from exact products."""
    exact = reference.matmul(A, B, out="exact")
    sizes = reference.matmul(np.abs(A), np.abs(B), out="exact")
    return [
        float(abs(Fraction(float(D[i])) - exact.fraction(*i)) / (sizes.fraction(*i) or 1)) for i in np.ndindex(D.shape)
    ]


@pytest.mark.parametrize("kind", ["random", "tiny rows", "ranges", "graded", "spread", "zeros"])
@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=str)
def test_a_product_meets_its_certificate_in_every_entry(scheme, options, kind):
    single = schemes.build(scheme, options).operand.name == "fp32"
    A, B = _planted(kind, 90, dtype=np.float32 if single else np.float64)
    if kind == "ranges" and single:
        A, B = np.clip(A, -(2.0**40), 2.0**40), np.clip(B, -(2.0**40), 2.0**40)
    target = "sgemm" if single else "dgemm"
    certified = fpemu.certify(A, B, scheme=scheme, target=target, **options, **CALL)
    one = certified.report.certificate
    assert one.target == limit(target, 90)
    errors = _relative_errors(certified.D, A, B)
    if not certified.report.ok:  # results near the least fp32 numbers
        assert kind == "ranges"
        assert single
        assert [fault.kind for fault in certified.report.faults] == ["target"]
        return
    assert max(errors) <= one.bound <= one.target
    given = {one.counted: one.number}
    assert certified.D.tobytes() == fpemu.gemm(A, B, scheme=scheme, **given, **options, **CALL).tobytes()
    if one.number > (2 if scheme == "ozaki2" else 1):  # the number is the least
        given[one.counted] -= 1
        fewer = fpemu.certify(A, B, scheme=scheme, target=target, **given, **options, **CALL).report
        assert one.target < fewer.certificate.bound == (one.fewer or fewer.certificate.bound)
        with pytest.raises(GuaranteeError, match=r"at \[\d+, \d+\].*the target is"):
            fpemu.gemm(A, B, scheme=scheme, target=target, **given, **options, **CALL)


@pytest.mark.parametrize("scheme", ["ozaki2", "ozaki", "ozimmu"])
def test_the_certificate_is_tight_for_data_of_one_sign(scheme):
    rng = np.random.default_rng(1)
    A, B = rng.random((40, 200)), rng.random((200, 30))
    certified = fpemu.certify(A, B, scheme=scheme, target=1e-6, **CALL)
    bound = certified.report.certificate.bound
    assert max(_relative_errors(certified.D, A, B)) > bound / {"ozaki2": 2.5, "ozaki": 200**0.5, "ozimmu": 1.2}[scheme]


@pytest.mark.parametrize("scheme", ["ozaki2", "ozaki", "ozimmu"])
def test_a_target_that_no_number_meets_names_the_entry_and_both_numbers(scheme):
    A, B = np.ones((3, 8)), np.ones((8, 4))
    A[2] = 2.0 ** np.arange(-400, 400, 100)
    B[:, 1] = 2.0 ** -np.arange(-400, 400, 100.0)
    with pytest.raises(GuaranteeError, match=r"at \[\d, \d\].*target is 8.88e-16 \|A\|\|B\|") as error:
        fpemu.gemm(A, B, scheme=scheme, target="dgemm", **CALL)
    assert "\n" not in str(error.value)
    with pytest.raises(GuaranteeError, match="target is 1e-17"):
        fpemu.gemm(A, B, scheme=scheme, target=1e-17, **CALL)


def test_targets_in_stacks_of_complex_numbers_and_with_infinities():
    A, B = _planted("random", 30)
    stack = np.stack([A, A * 2.0 ** np.linspace(-15, 15, 30)])
    certified = fpemu.certify(stack, B, scheme="ozaki2", target=1e-12, **CALL)
    first, second = (r.certificate.number for r in certified.reports)
    assert first < second
    Z = A + 1j * A[::-1]
    one = fpemu.certify(Z, B + 2j, scheme="ozaki2", target="dgemm", **CALL)
    assert one.report.certificate.target == limit("dgemm", 60)
    bound = schemes.build("ozaki2", {"moduli": one.report.certificate.number}).error_bound(Z, B + 2j)
    error = one.D - reference.matmul(Z, B + 2j)
    assert (np.abs(error.real) <= bound.real).all()
    assert (np.abs(error.imag) <= bound.imag).all()
    A[0, 0] = np.inf  # the other entries meet the target
    D = fpemu.gemm(A, B, scheme="ozimmu", target=1e-12, **CALL)
    assert np.isinf(D[0]).all()
    assert max(_relative_errors(D[1:], A[1:], B)) <= 1e-12
    with pytest.raises(GuaranteeError, match=r"slices have an error of at most"):
        fpemu.gemm(A, B, scheme="ozimmu", target="dgemm", **CALL)  # 36 sums of products, and 30 terms of DGEMM
    assert theory.bound("ozaki2", "H200", norms=theory.Norms.sample("uniform", 64), target=1e-9).worst == 1e-9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 0.0}, "target = 0.0 must be a positive number, 'dgemm' or 'sgemm'"),
        ({"target": "gemm"}, "dgemm"),
        ({"target": True}, "target = True"),
        ({"scheme": "ozaki", "target": 1e-9, "mode": "CR"}, "mode"),
        ({"scheme": "ozaki", "target": 1e-9, "slices": "printed"}, "printed"),
        ({"inside_scaling": "k"}, "inside_scaling"),
    ],
)
def test_targets_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        fpemu.gemm([[1.0]], [[1.0]], **{"scheme": "ozaki2", **CALL, **options})


def test_least_sizes():
    A = np.array([[1.0, 0.0, 2.0**-700], [0.0, 0.0, 0.0], [2.0**-600, 1.0, 0.0]])
    B = np.array([[0.0, 3.0], [0.0, 0.0], [2.0**-600, 0.0]])
    sizes = least_sizes(A, B)
    assert sizes[0, 0] == 0  # 2^-1300, of which nothing can be shown
    assert np.isinf(sizes[1]).all()
    assert np.isinf(sizes[2, 0])
    assert 3 * (1 - 2.0**-40) < sizes[0, 1] < 3


# --- inside scaling
@pytest.mark.parametrize("paired", [False, True])
def test_inside_scaling_is_exact_and_balances(paired):
    rng = np.random.default_rng(2)
    for ends in (30, 500, 1000):
        A, B = (
            rng.standard_normal(shape) * 2.0 ** rng.integers(-ends, ends, shape) for shape in ((2, 5, 12), (2, 12, 4))
        )
        A[:, :, 3], B[:, 5], A[0, 1, 1], B[1, 0, 0] = 0, 0, 2.0**-1074, 2.0**-1050
        X, Y = inside(A, B, paired)
        for k in range(12):
            for n in range(2):
                same = [Fraction(x) * Fraction(y) for x, y in zip(X[n, :, k], Y[n, k, :4].repeat(2)[:5], strict=True)]
                assert same == [
                    Fraction(x) * Fraction(y) for x, y in zip(A[n, :, k], B[n, k, :4].repeat(2)[:5], strict=True)
                ]
        a, b = np.abs(X).max(axis=-2), np.abs(Y).max(axis=-1)
        if ends == 30 and not paired:
            free = (a > 0) & (b > 0) & (np.abs(A) > 2.0**-1000).all(axis=-2) & (np.abs(B) > 2.0**-1000).all(axis=-1)
            assert (np.abs(np.log2(a[free] / b[free])) < 3).all()
            assert free.sum() > 15
        if paired:
            ratio = np.divide(X, A, out=np.ones_like(X), where=A != 0).max(axis=-2)
            both = (A != 0).any(axis=-2)
            both = both[:, ::2] & both[:, 1::2]
            assert (ratio[:, ::2][both] == ratio[:, 1::2][both]).all()


@pytest.mark.parametrize(("scheme", "options"), [("ozaki2", {}), ("ozaki", {"slices": 8}), ("ozimmu", {"slices": 8})])
def test_inside_scaling_cures_data_graded_oppositely_in_k(scheme, options):
    rng = np.random.default_rng(3)
    grade = 2.0 ** rng.uniform(-10, 10, 256)
    A, B = rng.standard_normal((32, 256)) * grade, rng.standard_normal((256, 24)) / grade[:, None]
    plain, scaled = (
        max(_relative_errors(fpemu.gemm(A, B, scheme=scheme, inside_scaling=on, **options, **CALL), A, B))
        for on in (None, True)
    )
    assert plain > 100 * scaled
    assert scaled < 2e-15
    balanced = inside(A, B)
    D = fpemu.gemm(*balanced, scheme=scheme, **options, **CALL)
    assert D.tobytes() == fpemu.gemm(A, B, scheme=scheme, inside_scaling=True, **options, **CALL).tobytes()
    built = replace(schemes.build(scheme, options), inside_scaling=True)
    assert (np.abs(D - reference.matmul(A, B)) <= built.error_bound(A, B, "H200")).all()
    Z, W = A + 1j * A[:, ::-1], B + 1j * B[::-1]
    for form in ("4M", "3M"):
        C = fpemu.gemm(Z, W, scheme=scheme, form=form, inside_scaling=True, **options, **CALL)
        assert np.abs(C - reference.matmul(Z, W)).max() < 1e-13 * np.abs(Z @ W).max()
