"""Complex products: one real product of the parts (4M), or three (3M); against exact rational arithmetic and loops."""

from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu import metrics, reference, schemes, theory
from fpemu.errors import InputError

CALL = {"hardware": "H200"}
SCALINGS = [(s, r) for s in ("accurate", "fast", "invariant") for r in ("truncate", "nearest")]


def _operands(shape, seed=0, dtype=np.complex128, spread=0):
    M, K, N = shape
    rng = np.random.default_rng(seed)

    def one(*size):
        x = rng.standard_normal((2, *size)) * 2.0 ** rng.integers(-spread, spread + 1, (2, *size))
        return (x[0] + 1j * x[1]).astype(dtype)

    return one(M, K), one(K, N), one(M, N)


def _dtype(scheme):
    return np.complex64 if schemes.get(scheme).operand.name == "fp32" else np.complex128


def _by_loops(A, B):
    """The real factors of a complex product, entry by entry."""
    (M, K), N = A.shape, B.shape[1]
    a, b = np.zeros((M, 2 * K), A.real.dtype), np.zeros((2 * K, 2 * N), B.real.dtype)
    for k in range(K):
        for m in range(M):
            a[m, 2 * k], a[m, 2 * k + 1] = A[m, k].real, A[m, k].imag
        for n in range(N):
            b[2 * k, 2 * n], b[2 * k, 2 * n + 1] = B[k, n].real, B[k, n].imag
            b[2 * k + 1, 2 * n], b[2 * k + 1, 2 * n + 1] = -B[k, n].imag, B[k, n].real
    return a, b


def _exact(A, B):
    """Both parts of A B as Fractions."""
    a, b = ([[(Fraction(z.real), Fraction(z.imag)) for z in row] for row in X.tolist()] for X in (A, B))
    return [
        [
            (
                sum(x[0] * b[k][n][0] - x[1] * b[k][n][1] for k, x in enumerate(row)),
                sum(x[0] * b[k][n][1] + x[1] * b[k][n][0] for k, x in enumerate(row)),
            )
            for n in range(B.shape[1])
        ]
        for row in a
    ]


def _rounded(exact, scale=Fraction(1)):
    return np.array([[complex(*(float(scale * part) for part in entry)) for entry in row] for row in exact])


@pytest.mark.parametrize("scheme", schemes.names())
def test_four_products_are_one_real_product_of_the_parts(scheme):
    A, B, C = _operands((5, 19, 3), dtype=_dtype(scheme), spread=3)
    a, b = _by_loops(A, B)
    c = np.stack([C.real, C.imag], axis=-1).reshape(5, 6)
    for more, given in (({}, None), ({"alpha": -2.5, "beta": 0.75}, C)):
        D = fpemu.gemm(A, B, given, scheme=scheme, **CALL, **more)
        expected = fpemu.gemm(a, b, None if given is None else c, scheme=scheme, **CALL, **more)
        assert D.dtype == _dtype(scheme)
        assert D.shape == (5, 3)
        if scheme == "ozaki2":  # the columns of a pair have one power of two: see below
            assert metrics.relative_l2(D, more.get("alpha", 1) * (A @ B) + more.get("beta", 0) * C) < 1e-14
        else:
            assert D.view(expected.dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize("scheme", schemes.names())
def test_three_products(scheme):
    A, B, _ = _operands((4, 9, 3), 1, _dtype(scheme))
    D = fpemu.gemm(A, B, scheme=scheme, form="3M", **CALL)
    if scheme == "ozaki2":
        assert D.tobytes() == fpemu.gemm(A, B, scheme=scheme, **CALL).tobytes()
        return
    operands = (A.real, B.real), (A.imag, B.imag), (A.real + A.imag, B.real + B.imag)
    t1, t2, t3 = (fpemu.gemm(x, y, scheme=scheme, **CALL) for x, y in operands)
    assert D.real.tobytes() == (t1 - t2).tobytes()
    assert D.imag.tobytes() == ((t3 - t1) - t2).tobytes()


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_exact_products_round_each_part_once(precision):
    dtype = np.complex128 if precision == "fp64" else np.complex64
    A, B, _ = _operands((4, 21, 3), 2, dtype, spread=30)
    D = fpemu.gemm(A, B, scheme="ozaki", mode="CR", precision=precision, alpha=0.3125, **CALL)
    exact = _exact(A, B)
    if precision == "fp64":
        assert (_rounded(exact, Fraction(0.3125)) == D).all()
    else:
        R = reference.matmul(A, B, alpha=Fraction(0.3125), out="fp32")
        assert R.dtype == np.complex64
        assert (D == R).all()
    assert (reference.matmul(A, B) == _rounded(exact)).all()
    assert (reference.matmul(A[0], B[:, 0]) == _rounded(exact)[0, 0]).all()
    at = reference.matmul(A, B, out="exact")
    assert at.shape == (4, 6)
    assert [at.fraction(2, 2), at.fraction(2, 3)] == list(exact[2][1])


@pytest.mark.parametrize(("scaling", "rounding"), SCALINGS)
def test_residues_of_both_forms_have_the_same_bits(scaling, rounding):
    options = {"scheme": "ozaki2", "scaling": scaling, "rounding": rounding, **CALL}
    rng = np.random.default_rng(3)
    integers = [rng.integers(-(2**24), 2**24, (2, *shape)).astype(float) for shape in ((6, 33), (33, 4))]
    A, B = (x[0] + 1j * x[1] for x in integers)
    exact = _rounded(_exact(A, B))  # nothing is cut off with 15 moduli, and fast scaling cuts large entries
    for form in ("4M", "3M") if scaling != "fast" else ():
        assert (fpemu.gemm(A, B, form=form, **options) == exact).all()
    for moduli in (2, 5, 13, 20) if scaling != "fast" else (6, 13):
        for spread in (0, 12) if scaling != "fast" else (0,):
            A, B, _ = _operands((7, 70, 5), moduli, spread=spread)
            pair = [fpemu.gemm(A, B, form=form, moduli=moduli, **options) for form in ("4M", "3M")]
            assert pair[0].tobytes() == pair[1].tobytes()
    A, B, _ = _operands((3, 40, 2), 9)
    pair = [fpemu.gemm(A, B, form=form, carrier="compiled", **options) for form in ("4M", "3M")]
    assert pair[0].tobytes() == pair[1].tobytes() == fpemu.gemm(A, B, **options).tobytes()


def test_columns_of_a_pair_have_one_power_of_two():
    from fpemu.schemes.errorfree import crt

    A, B = _by_loops(*_operands((4, 6, 5), 4, spread=20)[:2])
    B[::2, ::2] = 0  # real parts of zero: without pairing, the sums of the two columns differ
    B[1::2, 1::2] = 0
    plain, paired = (crt.accurate(A, B, 2**80, lambda x, y, _: x @ y, paired=p) for p in (False, True))
    assert (plain[0] == paired[0]).all()
    assert (paired[1][..., ::2] == np.minimum(plain[1][..., ::2], plain[1][..., 1::2])).all()
    assert (paired[1][..., ::2] == paired[1][..., 1::2]).all()
    assert (plain[1] != paired[1]).any()


@pytest.mark.parametrize("form", ["4M", "3M"])
@pytest.mark.parametrize("scheme", ["sgemm", "dgemm", "ootomo", "ozimmu", "ozaki2"])
def test_complex_scalars_scale_the_rounded_product(scheme, form):
    dtype = _dtype(scheme)
    A, B, C = _operands((3, 8, 2), 5, dtype)
    T = fpemu.gemm(A, B, scheme=scheme, form=form, **CALL)
    real = T.real.dtype.type
    (p, q), (r, s) = (map(real, z) for z in ((0.7, -1.3), (-0.1, 2.5)))
    D = fpemu.gemm(A, B, C, scheme=scheme, form=form, alpha=0.7 - 1.3j, beta=-0.1 + 2.5j, **CALL)
    assert (D.real == (p * T.real - q * T.imag) + (r * C.real - s * C.imag)).all()
    assert (D.imag == (p * T.imag + q * T.real) + (r * C.imag + s * C.real)).all()
    D = fpemu.gemm(A, B, C, scheme=scheme, form=form, alpha=0.7 + 0j, beta=1j, **CALL)
    assert (D.real == p * T.real + (real(0) * C.real - C.imag)).all()
    D = fpemu.gemm(np.full_like(A, np.nan), B, C, scheme=scheme, form=form, alpha=0j, beta=2j, **CALL)
    assert (D == 2j * C).all()
    assert (fpemu.gemm(A[:, :0], B[:0], scheme=scheme, form=form, **CALL) == np.zeros((3, 2))).all()


@pytest.mark.parametrize("scheme", ["sgemm", "dgemm", "bf16x9", "staged", "ozaki", "ozaki2"])
def test_nan_and_infinities_are_those_of_the_real_product(scheme):
    A, B, _ = _operands((6, 5, 6), 6, _dtype(scheme))
    for n, special in enumerate((np.inf, -np.inf, np.nan, complex(0, np.inf), complex(np.nan, 0), -0.0)):
        A[n, n % 5], B[n % 5, n] = special, special
    options = {"scheme": scheme, "on_range": "propagate", **CALL}
    D, expected = fpemu.gemm(A, B, **options), fpemu.gemm(*_by_loops(A, B), **options)
    D = D.view(expected.dtype)  # ozaki2 has one power of two for a pair of columns
    compared = ~np.isfinite(expected) if scheme == "ozaki2" else np.ones(expected.shape, bool)
    assert D[compared].tobytes() == expected[compared].tobytes()
    assert (np.isfinite(D) == np.isfinite(expected)).all()
    assert np.isnan(D[..., ::2]).any()
    assert np.isinf(D[..., 1::2]).any()


def test_vectors_stacks_lists_and_real_operands():
    A, B, _ = _operands((4, 6, 3), 7)
    call = {"scheme": "ozaki", "mode": "CR", **CALL}
    whole = fpemu.gemm(A, B, **call)
    assert (fpemu.gemm(A[0], B, **call) == whole[0]).all()
    assert (fpemu.gemm(A, B[:, 1], **call) == whole[:, 1]).all()
    assert fpemu.gemm(A[0], B[:, 0], **call) == whole[0, 0]
    assert (fpemu.gemm(A.tolist(), B[None].repeat(2, 0).T.swapaxes(0, 2).copy(), **call) == whole).all()
    assert (fpemu.gemm(A, B.real, **call) == reference.matmul(A, B.real)).all()
    assert (fpemu.gemm(A.real, B.real, A.real @ B, beta=1, **call).imag == (A.real @ B).imag).all()
    assert fpemu.gemm(A.real, B.real, alpha=1 + 0j, **call).dtype == np.complex128
    certified = fpemu.certify(A, B, scheme="ozaki", form="3M", **CALL)
    assert certified.report.ok
    assert len(certified.reports) == 3
    assert (fpemu.gemm(A, B, scheme="ozaki", form="3M", **CALL) == certified.D).all()
    assert (whole == fpemu.certify(A, B, **call).D).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "2M"}, "unknown form '2M'"),
        ({"scheme": "sgemm"}, r"A: not fp32 numbers: 1 of 2 entries.*A\.astype\(np\.complex64\)"),
        ({"mode": "CR", "form": "3M"}, "3M"),
        ({"mode": "CR", "alpha": 1j}, r"real alpha and beta: alpha = 1j has an imaginary part"),
        ({"alpha": "1j"}, "alpha must be one"),
        ({"beta": 1j}, r"beta = 1j needs C, a matrix of shape \(1, 1\)"),
        ({"scheme": "ootomo", "A": [[1e6j, 1]]}, r"in the real product of the parts: .*first at \[0, 1\]"),
        ({"scheme": "ootomo", "A": [[1e6j, 1]], "form": "3M"}, r"in the real product Ai Bi: .*first at \[0, 0\]"),
    ],
)
def test_complex_products_that_are_refused(options, message):
    call = {"scheme": "ozaki", "A": [[0.1 + 1j, 1]], "B": [[1j], [2]], **CALL, **options}
    with pytest.raises(InputError, match=message):
        fpemu.gemm(call.pop("A"), call.pop("B"), **call)


def test_errors_are_those_of_the_parts():
    A, B, _ = _operands((5, 40, 4), 8)
    D, R = fpemu.gemm(A, B, scheme="dgemm"), reference.matmul(A, B)
    d, r = (np.stack([X.real, X.imag]) for X in (D, R))
    for name in ("relative_l2", "max_relative", "mred", "max_absolute", "max_error_legemm"):
        assert metrics.get(name)(D, R) == pytest.approx(metrics.get(name)(d, r), rel=1e-14)
    assert metrics.max_ulps(D, R, "fp64") == metrics.max_ulps(d, r, "fp64")
    sizes = np.abs(A.real) @ np.abs(B.real) + np.abs(A.imag) @ np.abs(B.imag)
    cross = np.abs(A.real) @ np.abs(B.imag) + np.abs(A.imag) @ np.abs(B.real)
    error = max((np.abs(D.real - R.real) / sizes).max(), (np.abs(D.imag - R.imag) / cross).max())
    assert metrics.normwise(D, R, A, B) == pytest.approx(error, rel=1e-12)
    assert (
        error
        <= theory.bound("dgemm", norms=theory.Norms.of(A, B)).worst
        == theory.bound("dgemm", norms=theory.Norms.sample("uniform", 80)).worst
    )
    assert metrics.relative_l2(D.real, R.real + 0j) == metrics.relative_l2(D.real, R.real)
    with pytest.raises(InputError, match="shape"):
        metrics.normwise(D, R, A, B[:, :2])
    with pytest.raises(InputError, match="fp16"):
        reference.matmul(A, B, out="fp16")


@pytest.mark.parametrize("form", ["4M", "3M"])
@pytest.mark.parametrize("scheme", ["sgemm", "dgemm", "ootomo", "staged", "ozaki", "ozimmu", "ozaki2"])
def test_bounds_of_both_forms(scheme, form):
    for imaginary in (1.0, 2.0**-20):  # a small imaginary part
        A, B, _ = _operands((6, 33, 5), 10, spread=4)
        A, B = ((X.real + 1j * imaginary * X.imag).astype(_dtype(scheme)) for X in (A, B))
        D, bound = (
            fpemu.gemm(A, B, scheme=scheme, form=form, **CALL),
            theory.entrywise(scheme, "H200", A=A, B=B, form=form),
        )
        error = D - reference.matmul(A, B)
        assert (np.abs(error.real) <= bound.real).all()
        assert (np.abs(error.imag) <= bound.imag).all()
        if form == "3M" and scheme != "ozaki2":
            other = theory.entrywise(scheme, "H200", A=A, B=B)
            if imaginary < 1:
                assert (bound.imag > 1000 * other.imag).all()


def test_a_small_imaginary_part_loses_its_digits_in_three_products():
    A, B, _ = _operands((24, 64, 24), 11)
    A, B = A.real + 1e-8j * A.imag, B.real + 1e-8j * B.imag
    R = reference.matmul(A, B)
    cross = np.abs(A.real) @ np.abs(B.imag) + np.abs(A.imag) @ np.abs(B.real)
    four, three = (
        (np.abs(fpemu.gemm(A, B, scheme="dgemm", form=form).imag - R.imag) / cross).max() for form in ("4M", "3M")
    )
    assert four < 1e-15
    assert 1e-9 < three < 1e-7


def test_a_complex_product_is_verified_as_the_product_of_its_parts():
    A, B, _ = _operands((5, 24, 3), 12, np.complex64)
    D = fpemu.gemm(A, B, scheme="ootomo", **CALL)
    assert fpemu.verify(D, A, B, scheme="ootomo", **CALL, causes=False).equal
    D[2, 1] += 1j
    verdict = fpemu.verify(D, A, B, scheme="ootomo", **CALL, causes=False)
    assert (verdict.difference.entries, verdict.difference.first) == (1, (2, 3))
    with pytest.raises(InputError, match="ozaki2"):
        fpemu.verify(D, A, B, scheme="ozaki2", **CALL)
