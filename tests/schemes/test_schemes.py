"""Every scheme in the registry by the same properties, and each option of each scheme."""

from __future__ import annotations

import dataclasses
from functools import cache

import ml_dtypes
import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma, reference, schemes, theory
from fpemu.mma import KOrder
from fpemu.schemes import SplitScheme, gemm, get
from tests.equal import same

HARDWARE = ("ideal", "hopper", "ampere", "cdna2", "ascend910a")
M, N, K = 9, 7, 70


def runs(scheme, hardware):
    """Whether the hardware has the instruction that the scheme needs."""
    try:
        get(scheme).spec(hardware)
    except InputError:
        return False
    return True


GRID = [(s, h) for s in schemes.names() for h in HARDWARE if runs(s, h)]
SPLIT = [s for s in schemes.names() if isinstance(get(s), SplitScheme)]
SPLIT_GRID = [(s, h) for s, h in GRID if s in SPLIT]
ROUNDED_GRID = [(s, h) for s, h in GRID if not get(s).error_free]  # the others: test_errorfree.py
every = pytest.mark.parametrize(("scheme", "hardware"), GRID)
every_rounded = pytest.mark.parametrize(("scheme", "hardware"), ROUNDED_GRID)
every_split = pytest.mark.parametrize(("scheme", "hardware"), SPLIT_GRID)


def result_type(scheme):
    return get(scheme).operand.dtype.type


def operands(shape=(M, K, N), seed=1, low=-1.0, batch_a=(), batch_b=()):
    rng = np.random.default_rng(seed)
    m, k, n = shape
    return (
        rng.uniform(low, 1, (*batch_a, m, k)).astype(np.float32),
        rng.uniform(low, 1, (*batch_b, k, n)).astype(np.float32),
    )


def test_the_grid_is_not_empty():
    assert len(SPLIT) >= 14
    assert all((s, h) in GRID for s in schemes.names() for h in ("hopper", "ampere", "ideal"))
    assert ("ootomo-tf32", "ascend910a") not in GRID


# --- what all of them share


@every_rounded
def test_error_is_below_the_bound(scheme, hardware):
    chosen = get(scheme)
    for low in (-1.0, 0.0):
        A, B = operands(low=low)
        D = gemm(A, B, scheme=scheme, hardware=hardware)
        assert D.dtype == result_type(scheme)
        exact = reference.matmul(A, B, out="fp64")
        assert (np.abs(D - exact) <= theory.entrywise(chosen, hardware, A=A, B=B)).all()
    # away from underflow of the residuals
    rng = np.random.default_rng(3)
    A, B = rng.uniform(1, 2, (M, K)).astype(np.float32), rng.uniform(1, 2, (K, N)).astype(np.float32)
    sizes = A.astype(np.float64) @ B.astype(np.float64)
    bound = theory.entrywise(chosen, hardware, A=A, B=B, on_range="scale")
    D = gemm(A, B, scheme=scheme, hardware=hardware, on_range="scale")
    error = np.abs(D - reference.matmul(A, B, out="fp64"))
    assert (error <= bound).all()
    assert (bound / sizes).max() <= {"fp16": 2e-3, "bf16x3": 2e-4}.get(scheme, 6e-5)


@every_rounded
def test_bound_with_operands_over_many_binades(scheme, hardware):
    rng = np.random.default_rng(5)
    A, B = (rng.standard_normal(s) * 2.0 ** rng.uniform(-30, 8, s) for s in ((M, K), (K, N)))
    A, B = A.astype(np.float32), B.astype(np.float32)
    for policy in ("raise", "scale", "scale-rows"):
        D = gemm(A, B, scheme=scheme, hardware=hardware, on_range=policy)
        bound = theory.entrywise(scheme, hardware, A=A, B=B, on_range=policy)
        assert (np.abs(D - reference.matmul(A, B, out="fp64")) <= bound).all()


@every
def test_small_integers_are_exact(scheme, hardware):
    rng = np.random.default_rng(2)
    A = rng.integers(-8, 9, (M, K)).astype(np.float32)
    B = rng.integers(-8, 9, (K, N)).astype(np.float32)
    D = gemm(A, B, scheme=scheme, hardware=hardware)
    same(D, (A.astype(np.int64) @ B.astype(np.int64)).astype(result_type(scheme)))


@every
def test_alpha_and_beta(scheme, hardware):
    A, B = operands()
    C = np.random.default_rng(4).standard_normal((M, N)).astype(np.float32)
    kind = result_type(scheme)
    T = gemm(A, B, scheme=scheme, hardware=hardware)
    for alpha, beta in ((1.0, 1.0), (np.float32(0.1), np.float32(-0.3)), (-2.0, 0.0), (3, np.float32(1e-30))):
        D = gemm(A, B, C, scheme=scheme, hardware=hardware, alpha=alpha, beta=beta)
        if kind == np.float32:  # products of two fp32 numbers are exact in fp64: one rounding each
            t, c = ((float(s) * x.astype(np.float64)).astype(np.float32) for s, x in ((alpha, T), (beta, C)))
        else:
            t, c = np.float64(alpha) * T, np.float64(beta) * C.astype(np.float64)
        same(D, t + c if beta else t)


@every
def test_what_is_not_read(scheme, hardware):
    A, B = operands()
    nan_a, nan_b, nan_c = (np.full(s, np.nan, np.float32) for s in ((M, K), (K, N), (M, N)))
    T = gemm(A, B, scheme=scheme, hardware=hardware)
    same(gemm(A, B, nan_c, scheme=scheme, hardware=hardware), T)
    C = np.ones((M, N), np.float32)
    same(gemm(nan_a, nan_b, C, scheme=scheme, hardware=hardware, alpha=0, beta=2.0), 2 * C.astype(T.dtype))
    same(gemm(nan_a, nan_b, scheme=scheme, hardware=hardware, alpha=0), np.zeros_like(T))


@every
def test_batches_broadcast(scheme, hardware):
    A, B = operands((3, 20, 4), batch_a=(2, 1), batch_b=(3,))
    C = np.random.default_rng(6).standard_normal((2, 1, 3, 4)).astype(np.float32)
    for policy in ("raise", "scale"):
        D = gemm(A, B, C, scheme=scheme, hardware=hardware, beta=1.0, on_range=policy)
        assert D.shape == (2, 3, 3, 4)
        for i in range(2):
            for j in range(3):
                one = gemm(A[i, 0], B[j], C[i, 0], scheme=scheme, hardware=hardware, beta=1.0, on_range=policy)
                same(D[i, j], one)


@every
def test_strides_and_dtypes(scheme, hardware):
    A, B = operands()
    D = gemm(A, B, scheme=scheme, hardware=hardware)
    wide = np.zeros((2 * M, 3 * K), np.float32)
    wide[::-2, ::3] = A
    variants = (wide[::-2, ::3], np.asfortranarray(A), A.astype(np.float64), A.astype(np.longdouble).astype(float))
    for X in variants:
        same(gemm(X, np.ascontiguousarray(B.T).T, scheme=scheme, hardware=hardware), D)
    for low in (A.astype(np.float16), A.astype(ml_dtypes.bfloat16)):
        wide = low.astype(np.float32)
        same(gemm(low, B, scheme=scheme, hardware=hardware), gemm(wide, B, scheme=scheme, hardware=hardware))
    same(gemm([[1, 2]], [[3], [4]], scheme=scheme, hardware=hardware), np.full((1, 1), 11, D.dtype))


@every
def test_callers_arrays_are_left_alone(scheme, hardware):
    A, B = operands()
    A[0, 0], B[1, 1] = np.inf, np.nan
    C = np.ones((M, N), np.float32)
    kept = [x.copy() for x in (A, B, C)]
    for x in (A, B, C):
        x.flags.writeable = False
    for policy in ("propagate", "scale", "scale-rows"):
        D = gemm(A, B, C, scheme=scheme, hardware=hardware, beta=1.0, alpha=2.0, on_range=policy)
        assert not any(np.shares_memory(D, x) for x in (A, B, C))
    for x, y in zip((A, B, C), kept, strict=True):
        same(x, y)


@every
def test_nothing_to_multiply(scheme, hardware):
    kind = result_type(scheme)
    for m, k, n in ((0, 5, 4), (3, 0, 4), (3, 5, 0), (0, 0, 0)):
        A, B = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        same(gemm(A, B, scheme=scheme, hardware=hardware), np.zeros((m, n), kind))
        C = np.full((m, n), 3, np.float32)
        same(gemm(A, B, C, scheme=scheme, hardware=hardware, beta=2.0), np.full((m, n), 6, kind))
    same(gemm(np.ones((0, 2, 3)), np.ones((3, 4)), scheme=scheme, hardware=hardware), np.zeros((0, 2, 4), kind))
    same(
        gemm(np.zeros((2, 3)), np.ones((3, 4)), scheme=scheme, hardware=hardware, on_range="scale"),
        np.zeros((2, 4), kind),
    )


@every
def test_permuting_rows_and_columns(scheme, hardware):
    A, B = operands()
    rng = np.random.default_rng(7)
    p, q = rng.permutation(M), rng.permutation(N)
    D = gemm(A, B, scheme=scheme, hardware=hardware)
    same(gemm(A[p], B[:, q], scheme=scheme, hardware=hardware), D[p][:, q])


@every
def test_sign_symmetry(scheme, hardware):
    A, B = operands()
    # Algorithm 1 of the Ozaki scheme cuts negative numbers finer than positive ones
    options = {"split": "balanced"} if scheme == "ozaki" else {}
    D = gemm(A, B, scheme=scheme, hardware=hardware, **options)
    np.testing.assert_array_equal(gemm(-A, B, scheme=scheme, hardware=hardware, **options), -D)


@every
def test_scaling_by_powers_of_two(scheme, hardware):
    A, B = operands()
    D = gemm(A, B, scheme=scheme, hardware=hardware, on_range="scale")
    scaled = gemm(A * np.float32(2.0**60), B * np.float32(2.0**-41), scheme=scheme, hardware=hardware, on_range="scale")
    same(scaled, np.ldexp(D, 19))
    rng = np.random.default_rng(8)
    a, b = rng.integers(-40, 41, (M, 1)), rng.integers(-40, 41, (1, N))
    D = gemm(A, B, scheme=scheme, hardware=hardware, on_range="scale-rows")
    scaled = gemm(np.ldexp(A, a), np.ldexp(B, b), scheme=scheme, hardware=hardware, on_range="scale-rows")
    same(scaled, np.ldexp(D, a + b))


@every
def test_special_values_give_what_sgemm_gives(scheme, hardware):
    A, B = operands()
    B[4, 2] = 0
    clean = gemm(A, B, scheme=scheme, hardware=hardware)
    A[1, 2], A[3, 4], A[3, 5], A[5, 6] = np.nan, np.inf, np.inf, -np.inf
    B[9, 3], B[6, 4] = -np.inf, np.nan
    S = gemm(A, B, scheme="sgemm")
    D = gemm(A, B, scheme=scheme, hardware=hardware, on_range="propagate")
    reached = np.zeros((M, N), bool)
    reached[[1, 3, 5]] = True
    reached[:, [3, 4]] = True
    assert not np.isfinite(S[reached]).any()
    np.testing.assert_array_equal(D[reached], S[reached])
    same(D[~reached], clean[~reached])
    assert np.isnan(D[3, 2])  # Inf times 0
    assert np.isposinf(D).any()
    assert np.isneginf(D).any()


@every
def test_an_order_applies_to_every_chain(scheme, hardware):
    A, B = operands((4, 96, 5))
    plain = gemm(A, B, scheme=scheme, hardware=hardware)
    same(gemm(A, B, scheme=scheme, hardware=hardware, order=KOrder()), plain)
    # on integers every order is exact
    rng = np.random.default_rng(9)
    X, Y = rng.integers(-8, 9, (4, 96)), rng.integers(-8, 9, (96, 5))
    for order in (KOrder(split=32, join="descending"), KOrder(split=40, tile=16, residue_first=True)):
        same(gemm(X, Y, scheme=scheme, hardware=hardware, order=order), (X @ Y).astype(result_type(scheme)))
    if get(scheme).error_free:
        return  # an order may allow more bits a slice
    # a slice to itself: the same as a product of that slice, added to nothing
    front = gemm(A[:, :32], B[:32], scheme=scheme, hardware=hardware)
    A[:, 32:] = 0
    same(gemm(A, B, scheme=scheme, hardware=hardware, order=KOrder(split=32)), front)


@every
def test_info_is_complete_and_frozen(scheme, hardware):
    info = get(scheme).info
    assert info.name == scheme
    assert all((info.title, info.parts, info.range, info.bound))
    assert (info.year is None) == (info.paper == "")
    assert info.doi == "" or info.doi.startswith("10.")
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        get(scheme).promote = 3
    for option in info.options:
        assert getattr(get(scheme), option.name) == option.default
        assert option.meaning
        assert option.values
    # the published values given by hand change nothing
    A, B = operands()
    given = {o.name: o.default for o in info.options}
    same(gemm(A, B, scheme=scheme, hardware=hardware, **given), gemm(A, B, scheme=scheme, hardware=hardware))


# --- options, one at a time


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"scheme": "legemm"},
            {
                "scheme": "ootomo",
                "high_rounding": "bit-cut",
                "residual_rounding": "RZ",
                "residual_scale": 2**10,
                "products": ("hh", "hr", "rh"),
                "promote": None,
            },
        ),
        ({"scheme": "egemm"}, {"scheme": "markidis", "products": "rr,rh,hr,hh", "step": "instruction"}),
        ({"scheme": "egemm", "step": None, "products": ("rr", "hr", "rh", "hh")}, {"scheme": "markidis"}),
        ({"scheme": "fp16"}, {"scheme": "markidis", "products": ("hh",)}),
        ({"scheme": "fp16", "high_rounding": "RZ"}, {"scheme": "legemm", "products": "hh"}),
        ({"scheme": "markidis", "refine": "A"}, {"scheme": "markidis", "products": ("rh", "hh")}),
        (
            {"scheme": "ootomo", "promote": None},
            {"scheme": "multiword", "words": 2, "promote": None, "step": "instruction", "products": ("11", "21", "12")},
        ),
        (
            {"scheme": "bf16x6"},
            {"scheme": "multiword", "fmt": "bf16", "words": 3, "promote": None, "step": "instruction"},
        ),
        ({"scheme": "bf16x6"}, {"scheme": "bf16x9", "products": get("bf16x6").info.products}),
        (
            {"scheme": "staged"},
            {
                "scheme": "ootomo",
                "residual_scale": 1,
                "accumulators": "one",
                "products": ("rh", "hr", "hh"),
                "promote": 64,
                "step": 64,
                "on_range": "scale-rows",
            },
        ),
        (
            {"scheme": "staged", "accumulators": "band", "residual_scale": 2**11},
            {"scheme": "ootomo", "promote": 64, "step": 64, "on_range": "scale-rows"},
        ),
        ({"scheme": "ape", "accumulators": "band"}, {"scheme": "h2sgemm", "accumulators": "band", "step": None}),
        ({"scheme": "ootomo", "accumulators": "each", "promote": None, "residual_scale": 2**12}, {"scheme": "h2sgemm"}),
        ({"scheme": "multiword", "words": 1}, {"scheme": "fp16", "promote": 64}),
        ({"scheme": "ootomo"}, {"scheme": "ootomo", "promote": 16, "step": 16}),
        ({"scheme": "fp16", "order": KOrder(promote=32)}, {"scheme": "fp16", "promote": 32}),
    ],
)
def test_the_same_choices_are_the_same_scheme(one, other):
    A, B = operands((M, 150, N))
    same(gemm(A, B, hardware="hopper", **one), gemm(A, B, hardware="hopper", **other))


CHANGES = [
    ("fp16", "high_rounding", "RZ"),
    ("fp16", "promote", 32),
    ("fp16", "accumulator", "fp16"),
    ("fp16", "k", 8),
    ("fp16", "instruction", "mma"),
    ("markidis", "high_rounding", "RU"),
    ("markidis", "residual_rounding", "ODD"),
    ("markidis", "refine", "A"),
    ("markidis", "products", ("hh", "rh", "hr", "rr")),
    ("markidis", "step", 32),
    ("markidis", "promote", 32),
    ("markidis", "accumulators", "band"),
    ("markidis", "accumulators", "each"),
    ("egemm", "step", None),
    ("egemm", "products", ("rh", "hr", "hh")),
    ("egemm", "promote", "instruction"),
    ("ootomo", "high_rounding", "bit-cut"),
    ("ootomo", "residual_rounding", "RD"),
    ("ootomo", "residual_scale", 2**4),
    ("ootomo", "products", ("hh", "rh", "hr", "rr")),
    ("ootomo", "step", None),
    ("ootomo", "promote", None),
    ("ootomo", "accumulators", "each"),
    ("ootomo", "high_rounding", "RNA"),
    ("ootomo-tf32", "promote", 64),
    ("ootomo-tf32", "high_rounding", "RZ"),
    ("ape", "products", ("rh", "hr", "hh")),
    ("ape", "accumulators", "band"),
    ("ape", "promote", 16),
    ("ape", "residual_scale", 2**2),
    ("ape", "combine_in", "fp64"),
    ("legemm", "high_rounding", "RNE"),
    ("legemm", "residual_rounding", "RNE"),
    ("legemm", "step", 64),
    ("legemm", "products", ("hh", "rh", "hr")),
    ("legemm", "residual_scale", 2**3),
    ("h2sgemm", "sb", 0),
    ("h2sgemm", "combine", "element-wise"),
    ("h2sgemm", "accumulators", "band"),
    ("h2sgemm", "products", ("rr", "rh", "hr", "hh")),
    ("staged", "stage", 32),
    ("staged", "products", ("hh", "hr", "rh")),
    ("staged", "accumulators", "band"),
    ("staged", "high_rounding", "RZ"),
    ("staged", "stage", "instruction"),
    ("staged-int8", "stage", 32),
    ("staged-int8", "exact", 2),
    ("multiword", "words", 3),
    ("multiword", "fmt", "bf16"),
    ("multiword", "promote", None),
    ("multiword", "promote", "instruction"),
    ("multiword", "step", "instruction"),
    ("multiword", "residual_scale", 8.0),
    ("staged", "high_rounding", "balanced"),
    ("staged", "levels", 1),
    ("staged", "levels", 2),
    ("multiword", "accumulators", "each"),
    ("multiword", "products", ("11", "21", "12", "22")),
    ("multiword", "residual_rounding", "RZ"),
    ("bf16x9", "rounding", "RZ"),
    ("bf16x9", "step", None),
    ("bf16x9", "promote", 16),
    ("bf16x6", "products", ("11", "12")),
    ("bf16x3", "accumulators", "each"),
    ("bf16x9", "combine_in", "fp64"),
]


@cache
def large():
    rng = np.random.default_rng(12)
    return tuple(rng.standard_normal(s).astype(np.float32) * np.float32(0.3) for s in ((48, 256), (256, 48)))


@cache
def published(scheme, hardware):
    """The result with the published choices, and the exact one."""
    A, B = large()
    return gemm(A, B, scheme=scheme, hardware=hardware), reference.matmul(A, B, out="fp64")


@pytest.mark.parametrize(("scheme", "option", "value"), CHANGES)
def test_an_option_changes_the_result(scheme, option, value):
    A, B = large()
    hardware = "hopper" if option != "k" else "ampere"
    plain, exact = published(scheme, hardware)
    changed = gemm(A, B, scheme=scheme, hardware=hardware, **{option: value})
    if (option, value) in (("instruction", "mma"), ("k", 8)):
        same(plain, changed)  # the wgmma and the mma of Hopper, the k16 and the k8 of Ampere, are the same arithmetic
    else:
        assert (plain != changed).any()
    assert np.linalg.norm(changed - exact) < 2e-2 * np.linalg.norm(exact)
    chosen = schemes.build(scheme, {option: value})
    assert (np.abs(changed - exact) <= theory.entrywise(chosen, hardware, A=A, B=B)).all()


def test_every_option_of_the_choices_is_tried():
    tried = {(s, o) for s, o, _ in CHANGES}
    stochastic = {"random_bits", "seed"}  # only with a rounding "SR": test_stochastic_split.py
    for option in {o.name for s in SPLIT for o in get(s).info.options} - stochastic:
        assert any(o == option for _, o in tried), option


def test_hopper_restarts_differ_by_instruction_length():
    A, B = operands((M, 128, N))
    wide = gemm(A, B, scheme="ootomo", hardware="hopper", instruction="mma", k=16)
    same(wide, gemm(A, B, scheme="ootomo", hardware="hopper"))
    assert (gemm(A, B, scheme="ootomo", hardware="hopper", instruction="mma", k=8) != wide).any()


def test_combination_in_fp64_rounds_once():
    A, B = operands((40, 256, 40))
    spec = mma.spec("hopper", "fp16")
    (hA, rA), (hB, rB) = (get("h2sgemm").split(x) for x in (A, B))
    hh, rh, hr = (mma.gemm(X, Y, spec=spec).astype(np.float64) for X, Y in ((hA, hB), (rA, hB), (hA, rB)))
    once = ((rh + hr) / 2**12 + hh).astype(np.float32)
    for scheme in ("h2sgemm", "ape"):
        same(gemm(A, B, scheme=scheme, hardware="hopper", combine_in="fp64"), once)
    assert (gemm(A, B, scheme="ape", hardware="hopper") != once).any()
    # with two accumulators the fp32 addition rounds once already
    same(
        gemm(A, B, scheme="ootomo", hardware="hopper", combine_in="fp64"),
        gemm(A, B, scheme="ootomo", hardware="hopper"),
    )


def test_a_residual_scale_that_nothing_needs_changes_nothing():
    A, B = operands((40, 256, 40))
    for scheme, scale in (("ootomo-tf32", 2.0**11), ("ootomo-tf32", 2.0**-20), ("bf16x9", 1.0), ("bf16x9", 2.0**12)):
        tuned = gemm(A, B, scheme=scheme, hardware="hopper", residual_scale=scale)
        same(tuned, gemm(A, B, scheme=scheme, hardware="hopper"))


def test_subnormal_residuals_are_lost_where_the_hardware_flushes_them():
    A, B = operands((40, 256, 40))
    exact = reference.matmul(A, B, out="fp64")
    error = {
        (s, h): np.linalg.norm(gemm(A, B, scheme=s, hardware=h) - exact) / np.linalg.norm(exact)
        for s in ("markidis", "legemm")
        for h in ("ampere", "cdna2")
    }
    assert error["markidis", "cdna2"] > 20 * error["markidis", "ampere"]
    assert error["legemm", "cdna2"] < 2 * error["legemm", "ampere"]


def test_split_matches_its_formula_for_every_scheme():
    x = np.random.default_rng(13).standard_normal((50, 50)).astype(np.float32)
    for scheme in SPLIT:
        words = get(scheme).split(x)
        total = sum(
            np.ldexp(w.astype(np.float64), -r.exponent) for w, r in zip(words, get(scheme).rules(), strict=True)
        )
        loss = np.abs(x - total).max()
        assert loss < {"fp16": 2e-3, "legemm": 8e-6}.get(scheme, 2e-6), scheme
        if scheme.startswith("bf16"):
            assert loss == 0


def test_three_rounded_products_beat_truncated_chains():
    A, B = operands((64, 1024, 64))
    exact = reference.matmul(A, B, out="fp64")
    error = {
        s: np.linalg.norm(gemm(A, B, scheme=s, hardware="ampere") - exact) / np.linalg.norm(exact)
        for s in ("fp16", "markidis", "legemm", "ootomo", "staged", "sgemm")
    }
    assert error["fp16"] > 50 * error["markidis"]
    assert error["markidis"] > 5 * error["ootomo"]
    assert error["legemm"] > error["markidis"] > error["sgemm"]
    assert error["sgemm"] > 2 * max(error["staged"], error["ootomo"])


def test_instruction_from_a_spec():
    A, B = operands()
    spec = mma.spec("hopper", "fp16")
    same(gemm(A, B, scheme="ootomo", hardware=spec), gemm(A, B, scheme="ootomo", hardware="H200"))
    wider = spec.replace(F=30)
    assert (gemm(A, B, scheme="markidis", hardware=wider) != gemm(A, B, scheme="markidis", hardware=spec)).any()
    half = mma.spec("hopper", "fp16", "fp16")
    D = gemm(A, B, scheme="fp16", hardware=half, accumulator="fp16")
    same(D, gemm(A, B, scheme="fp16", hardware="hopper", accumulator="fp16"))
    same(D, D.astype(np.float16).astype(np.float32))


def test_nan_pattern_is_the_hardwares():
    A = np.array([[np.nan, 1.0], [1.0, 2.0]], np.float32)
    C = np.full((2, 2), np.nan, np.float32)
    codes = {"hopper": 0x7FFFFFFF, "cdna2": 0x7FC00000}
    for hardware, code in codes.items():
        D = gemm(A, A, scheme="ootomo", hardware=hardware, on_range="propagate")
        assert D.view(np.uint32)[0, 0] == code
        assert (
            gemm(np.ones((2, 2)), np.ones((2, 2)), C, beta=1.0, scheme="ape", hardware=hardware).view(np.uint32) == code
        ).all()
    assert gemm(A, A, scheme="sgemm").view(np.uint32)[0, 0] == 0x7FFFFFFF


# --- scalars, instances, traps

ONE = np.ones((2, 2), np.float32)


def test_nan_and_infinite_scalars():
    for scheme in ("ootomo", "sgemm"):
        D = gemm(ONE, ONE, ONE, scheme=scheme, hardware="hopper", alpha=np.nan)
        assert np.isnan(D).all()
        D = gemm(ONE, ONE, ONE, scheme=scheme, hardware="hopper", beta=np.float32(-np.inf))
        assert np.isneginf(D).all()


def test_dgemm_takes_fp64_scalars():
    A = np.array([[1 / 3]])
    assert gemm(A, A, A, scheme="dgemm", alpha=0.1, beta=0.7).item() == 0.1 * (A * A).item() + 0.7 * A.item()


def test_schemes_by_instance_and_name():
    tuned = dataclasses.replace(get("h2sgemm"), sb=6)
    A, B = operands()
    same(gemm(A, B, scheme=tuned, hardware="hopper"), gemm(A, B, scheme="h2sgemm", sb=6, hardware="hopper"))
    assert get("OOTOMO_TF32") == get("ootomo-tf32")
    assert fpemu.gemm is gemm
    with pytest.raises(InputError, match="must be an integer"):
        dataclasses.replace(get("h2sgemm"), sb="6")
    with pytest.raises(InputError, match="same thing twice"):
        gemm(A, B, scheme=dataclasses.replace(get("ootomo"), promote=64), hardware="hopper", order=KOrder(promote=32))


def test_the_fast_way_to_fp16_is_one_rounding():
    rng = np.random.default_rng(14)
    traps = np.array(
        [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 2.0**-25, 2.0**-25 * (1 + 2.0**-52), 65520.0, 65519.999]
    )
    x = np.concatenate([traps, -traps, np.ldexp(rng.standard_normal(20000), rng.integers(-40, 20, 20000))])
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    x = np.concatenate([x, halves, halves * (1 + 2.0**-11), [np.inf, -np.inf]]).reshape(1, -1)
    same(schemes.words.split(x, get("fp16").rules())[0], fpemu.round_to(x, "fp16"))


def test_a_band_without_products_counts_in_the_scale_of_the_next():
    """11 and 22 alone: 1 + 2^-11 has the words 1 and 1, and the second product the weight 2^-22."""
    x = np.array([[1 + 2.0**-11]], np.float32)
    D = gemm(x, x, scheme="multiword", hardware="A100", products=("22", "11"))
    assert D.item() == 1 + 2.0**-22


def test_block_products_computed_one_at_a_time_are_the_same(monkeypatch):
    A, B = fpemu.inputs.operands("normal", 3, 4, 70, seed=1, dtype="fp32")
    options = {"scheme": "h2sgemm", "hardware": "hopper", "combine": "element-wise"}
    together = gemm(A, B, **options)
    monkeypatch.setattr("fpemu.schemes.lowering._ENTRIES", 5)
    same(gemm(A, B, **options), together)


def test_the_largest_and_the_smallest_scale_are_taken():
    for scale in (2.0**60, 2.0**-60):
        assert schemes.build("ootomo", {"residual_scale": scale}).residual_scale == scale
        with pytest.raises(InputError, match="between 2\\^-60 and 2\\^60"):
            schemes.build("ootomo", {"residual_scale": scale * scale})
