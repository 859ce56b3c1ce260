"""`fpemu.testing`: each planted cause is named, correct products pass, and bounds admit every order."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import fpemu
from fpemu import mma, round_to, simt
from fpemu.errors import InputError
from fpemu.formats import block
from fpemu.library.tables import Tiles
from fpemu.mma import KOrder, scaled_gemm
from fpemu.testing import assert_bits_equal, assert_within_bound
from tests import golden
from tests.mma.test_golden import LIBRARY, carrier

M, N, K = 64, 64, 4096
FP32 = simt.SPECS["fp32"]
HOPPER = {fmt: mma.spec("H200", fmt) for fmt in ("fp16", "bf16", "tf32", "e4m3")}
FP8 = KOrder(promote=128)


@cache
def operands(fmt):
    return fpemu.inputs.operands("normal", M, N, K, 1, fmt)


BIAS = np.asarray(round_to(np.random.default_rng(3).standard_normal(N), "bf16")).astype(np.float32)
ROWS = np.random.default_rng(4).uniform(0.5, 2, (M, 1)).astype(np.float32)
COLUMNS = np.random.default_rng(5).uniform(0.5, 2, (1, N)).astype(np.float32)
BLOCKS = np.random.default_rng(6).uniform(0.5, 2, (M, K // 128)).astype(np.float32)
TILES = np.random.default_rng(7).uniform(0.5, 2, (K // 128, 1)).astype(np.float32)


def gemm(fmt, order=None, spec=None, k=slice(None)):
    A, B = operands(fmt)
    return mma.gemm(A[:, k], B[k], None, spec or HOPPER[fmt], order)


def rounded(x, fmt, mode="RNE"):
    return np.asarray(round_to(x, fmt, mode)).astype(np.float32)


def slices(fmt, length, stored):
    """Slices over K whose sums are stored in a narrow format and added in fp32."""
    parts = [rounded(gemm(fmt, k=slice(k, k + length)), stored) for k in range(0, K, length)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def in_place(fmt, length):
    """Slices over K that are added in D, which is in `fmt`."""
    total = gemm(fmt, k=slice(0, length))
    for k in range(length, K, length):
        total = rounded(total, fmt) + gemm(fmt, k=slice(k, k + length))
    return rounded(total, fmt)


def rows(scale_a=ROWS, scale_b=COLUMNS, order=FP8, **options):
    return scaled_gemm(*operands("e4m3"), scale_a, scale_b, HOPPER["e4m3"], order, **options)


def blocks(scale_a=BLOCKS, scale_b=TILES, **options):
    return scaled_gemm(*operands("e4m3"), scale_a, scale_b, HOPPER["e4m3"], None, block=128, **options)


def permuted(fmt, tile):
    A, B = operands(fmt)
    k = np.arange(K).reshape(-1, tile)[:, ::-1].ravel()
    return mma.gemm(A[:, k], B, None, HOPPER[fmt])


HALF, BF16, SINGLE = ({"fmt": fmt} for fmt in ("fp16", "bf16", "fp32"))
E4M3 = {"fmt": "e4m3", "order": FP8}
PLANTED = {  # product, arguments of the assertion, words of the cause
    "split in 2": (lambda: gemm("fp16", KOrder(2048)), HALF, "slices of 2048"),
    "split in 4": (lambda: gemm("fp16", KOrder(1024)), HALF, "slices of 1024"),
    "split in 8": (lambda: gemm("bf16", KOrder(512)), BF16, "slices of 512"),
    "split in 8, in pairs": (lambda: gemm("bf16", KOrder(512, join="pairwise")), BF16, "512 joined pairwise"),
    "no split": (lambda: gemm("bf16"), {**BF16, "order": KOrder(1024)}, "one chain"),
    "tiles in another order": (lambda: permuted("fp16", 64), HALF, "within tiles of 64 of k"),
    "tf32 for fp32": (lambda: gemm("fp32", spec=HOPPER["tf32"]), SINGLE, "tf32"),
    "rounded tf32 for fp32": (
        lambda: mma.gemm(*(rounded(x, "tf32") for x in operands("fp32")), None, HOPPER["tf32"]),
        SINGLE,
        "rounded to tf32 to nearest",
    ),
    "partial sums in bf16": (lambda: slices("bf16", 1024, "bf16"), BF16, "the slices stored in bf16"),
    "slices added in D": (lambda: in_place("bf16", 1408), {**BF16, "out": "bf16"}, "added in D, which rounds each sum"),
    "fp16 accumulator": (lambda: np.float32(gemm("fp16", spec=mma.spec("H200", "fp16", "fp16"))), HALF, "fp16"),
    "promotion every 128": (lambda: gemm("fp16", FP8), HALF, "promotion every 128"),
    "fast accumulation": (lambda: rows(order=None), {**E4M3, "scale_a": ROWS, "scale_b": COLUMNS}, "one chain"),
    "missing tail": (lambda: gemm("fp16", k=slice(0, 4064)), HALF, "the last 32 of k are left out"),
    "tile read twice": (lambda: gemm("bf16", k=np.r_[0:2048, 1984:K]), BF16, "counted twice"),
    "bias after rounding": (
        lambda: rounded(rounded(gemm("bf16"), "bf16") + BIAS, "bf16"),
        {**BF16, "out": "bf16", "bias": BIAS},
        "T is rounded to the format of D",
    ),
    "no bias": (lambda: gemm("bf16"), {**BF16, "bias": BIAS}, "C is left out"),
    "double rounding": (lambda: rounded(np.float16(gemm("bf16")), "bf16"), {**BF16, "out": "bf16"}, "rounded twice"),
    "truncation of D": (lambda: rounded(gemm("bf16"), "bf16", "RZ"), {**BF16, "out": "bf16"}, "bf16 toward zero"),
    "no ReLU": (lambda: gemm("fp16"), {**HALF, "activation": "relu"}, "no ReLU"),
    "Ampere's instruction": (lambda: gemm("fp16", spec=mma.spec("A100", "fp16")), HALF, "ampere"),
    "ordinary cores": (lambda: gemm("fp16", spec=FP32), HALF, "FMAs in fp32"),
    "operands in bf16": (
        lambda: mma.gemm(*(rounded(x, "bf16") for x in operands("fp16")), None, HOPPER["bf16"]),
        HALF,
        "rounded to bf16 to nearest",
    ),
    "scale of a tensor left out": (
        lambda: scaled_gemm(*operands("e4m3"), np.float32(0.3), 1.0, HOPPER["e4m3"], FP8),
        {**E4M3, "scale_a": np.float32(0.3), "scale_b": np.float32(1.7)},
        "scale_b is left out",
    ),
    "scales of rows in another order": (
        lambda: rows(multiply="a-first"),
        {**E4M3, "scale_a": ROWS, "scale_b": COLUMNS},
        "(p a) b",
    ),
    "scales of the next block": (
        lambda: blocks(np.roll(BLOCKS, -1, axis=1)),
        {"fmt": "e4m3", "scale_a": BLOCKS, "scale_b": TILES},
        "the scales of A are those of the next block",
    ),
    "blocks without FMA": (
        lambda: blocks(fused=False),
        {"fmt": "e4m3", "scale_a": BLOCKS, "scale_b": TILES},
        "without FMA",
    ),
    "a block left out": (
        lambda: blocks(np.where(np.arange(K // 128) == 5, 0, BLOCKS)),
        {"fmt": "e4m3", "scale_a": BLOCKS, "scale_b": TILES},
        "k = 640 to 767 are left out",
    ),
}


QUICK = (
    "split in 2", "split in 8, in pairs", "no split", "promotion every 128", "no bias", "no ReLU", "operands in bf16",
    "Ampere's instruction", "ordinary cores", "scales of rows in another order",
)  # fmt: skip


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PLANTED])
def test_planted_causes_are_named(name):
    product, fields, words = PLANTED[name]
    with pytest.raises(AssertionError) as raised:
        assert_bits_equal(product(), *operands(fields["fmt"]), hardware="H200", seconds=120, **fields)
    message = str(raised.value)
    assert "likeliest cause: " in message, message
    assert words in message.partition("likeliest cause: ")[2], message


def drawn(seed):
    """Arguments of an assertion on a correct product, which the NumPy reference and a written epilogue compute."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.integers(1, (20, 20, 400)))
    fmt = str(rng.choice(["fp16", "bf16", "tf32", "e4m3", "e5m2", "fp32", "fp64"]))
    gpu = str(rng.choice(["H200", "A100", "MI300X", "B200"] if fmt in ("fp16", "bf16") else ["H200"]))
    spec = simt.SPECS[fmt] if fmt in ("fp32", "fp64") else mma.spec(gpu, fmt)
    name = str(rng.choice(["normal", "uniform", "lognormal"] if fmt not in ("e4m3", "e5m2") else ["normal", "uniform"]))
    A, B = fpemu.inputs.operands(name, m, n, k, seed, fmt)
    order = [None, KOrder(max(1, k // 2)), KOrder(promote=64), KOrder(64, join="pairwise")][rng.integers(4)]
    fields: dict = {"hardware": spec if fmt == "fp64" else gpu, "fmt": None if fmt == "fp64" else fmt, "order": order}
    if fmt in ("e4m3", "e5m2") and rng.random() < 0.6:
        a, b = (rng.uniform(0.1, 4, size).astype(np.float32) for size in ((m, 1), (1, n)))
        D = np.float32(np.float32(mma.gemm(A, B, None, spec, order, backend="numpy") * b) * a)
        return D, A, B, {**fields, "scale_a": a, "scale_b": b, "multiply": "b-first"}
    D = mma.gemm(A, B, None, spec, order, backend="numpy")
    if rng.random() < 0.3:
        fields["bias"] = bias = rng.standard_normal(n).astype(np.float32)
        D = D + bias.astype(D.dtype)
    if rng.random() < 0.3:
        fields["activation"], D = "relu", np.maximum(D, 0)
    if fmt in ("fp16", "bf16") and rng.random() < 0.5:
        fields["out"], D = fmt, np.asarray(round_to(D, fmt)).astype(fpemu.formats.get(fmt).dtype)
    return D, A, B, fields


def check(seed):
    D, A, B, fields = drawn(seed)
    assert_bits_equal(D, A, B, **fields)
    assert_within_bound(D, A, B, **{k: v for k, v in fields.items() if k not in ("order", "multiply")})


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_correct_products_pass(first):
    for seed in range(first, first + 20):
        check(seed)


HALVES = tuple(x[:12] if i == 0 else x[:, :10] for i, x in enumerate(operands("fp16")))


def test_the_message_names_the_first_entry_with_its_bits():
    D = mma.gemm(*HALVES, None, HOPPER["fp16"])
    expected = D[7, 3]
    D.view(np.uint32)[7, 3] ^= np.uint32(1 << 20)
    with pytest.raises(AssertionError) as raised:
        assert_bits_equal(D, *HALVES, hardware="H200", seconds=0)
    assert "1 of 120 entries differs (1 bit)" in str(raised.value)
    got, want = (f"{x!s} (0x{int(x.view(np.uint32)):08X})" for x in (D[7, 3], expected))
    assert f"first at [7, 3]: {got}, expected {want}" in str(raised.value)


def test_large_products_are_sampled_by_rows_and_columns(monkeypatch):
    monkeypatch.setattr(fpemu.testing, "_WORK", 2**16)
    A, B = fpemu.inputs.operands("normal", 90, 80, 64, 1, "fp16")
    D = mma.gemm(A, B, None, HOPPER["fp16"])
    assert_bits_equal(D, A, B, hardware="H200")
    for at, place in ((np.s_[-1, :], "[89, 0]"), (np.s_[:, -1], "[0, 79]")):
        wrong = D.copy()
        wrong[at] += np.float32(0.5)
        with pytest.raises(AssertionError) as raised:
            assert_bits_equal(wrong, A, B, hardware="H200", seed=5, seconds=0)
        assert f"first at {place}" in str(raised.value)
        assert "of 90 × 80, sampled with seed 5" in str(raised.value)
    compared = {seed for seed in range(8) if fails(D, A, B, seed)}
    assert 0 < len(compared) < 8
    with pytest.raises(AssertionError, match="1 of 7200 entries differs"):
        assert_bits_equal(replaced(D), A, B, hardware="H200", seed=None, seconds=0)


def replaced(D):
    D = D.copy()
    D[40, 41] += np.float32(0.5)
    return D


def fails(D, A, B, seed):
    try:
        assert_bits_equal(replaced(D), A, B, hardware="H200", seed=seed, seconds=0)
    except AssertionError:
        return True
    return False


class Exporter:
    """An array of a library with DLPack only."""

    def __init__(self, x):
        self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__
        self.shape, self.dtype = x.shape, x.dtype


def test_arrays_of_other_libraries_state_their_formats():
    import ml_dtypes

    A, B = (x[:16, :64] if i == 0 else x[:64, :16] for i, x in enumerate(operands("bf16")))
    D = rounded(mma.gemm(A, B, None, HOPPER["bf16"]), "bf16")
    assert_bits_equal(*(x.astype(ml_dtypes.bfloat16) for x in (D, A, B)), hardware="H200")
    with pytest.raises(AssertionError, match="the result is rounded to bf16 toward zero"):
        assert_bits_equal(
            rounded(mma.gemm(A, B, None, HOPPER["bf16"]), "bf16", "RZ").astype(ml_dtypes.bfloat16),
            A.astype(ml_dtypes.bfloat16),
            B.astype(ml_dtypes.bfloat16),
            hardware="H200",
        )
    A, B = (x.astype(np.float16) for x in (A, B))
    D = mma.gemm(A, B, None, HOPPER["fp16"])
    assert_bits_equal(*map(Exporter, (D, A, B)), hardware="H200")
    A, B = np.full((4, 32), 1.125, ml_dtypes.float8_e4m3fn), np.full((32, 4), 1.25, ml_dtypes.float8_e5m2)
    D = mma.gemm(A.astype(np.float32), B.astype(np.float32), None, mma.spec("H200", ("e4m3", "e5m2")))
    assert_bits_equal(D, A, B, hardware="H200")
    a, b = np.float32(0.3), np.float32(7)
    scaled = np.asarray(round_to(D * (a * b), "bf16")).astype(ml_dtypes.bfloat16)
    assert_bits_equal(scaled, A, B, scale_a=a, scale_b=b, hardware="H200")
    assert_within_bound(scaled, A, B, scale_a=a, scale_b=b, hardware="H200")


def test_batches_and_block_scaled_instructions():
    A, B = fpemu.inputs.operands("normal", 6, 5, 64, 1, "fp16")
    stack = np.stack([A, -A, 2 * A])
    D = mma.gemm(stack, B, None, HOPPER["fp16"])
    assert_bits_equal(D, stack, B, hardware="H200")
    D[1, 2, 3] += 1
    with pytest.raises(AssertionError, match=r"product \[1\] of a batch of shape \(3,\)"):
        assert_bits_equal(D, stack, B, hardware="H200", seconds=0)
    spec = mma.spec("B200", "e4m3", scale="e8m0", scale_block=32)
    (a, sa), (b, sb) = (block.quantize(x, "mxfp8-e4m3")[:2] for x in (A.astype("f8"), B.T.astype("f8")))
    D = mma.gemm(a, b.T, None, spec, scale_a=sa, scale_b=sb.T)
    assert_bits_equal(D, a, b.T, scale_a=sa, scale_b=sb.T, hardware=spec)
    with pytest.raises(InputError, match="the error of block-scaled sums is not bounded"):
        assert_within_bound(D, a, b.T, scale_a=sa, scale_b=sb.T, hardware=spec)
    with pytest.raises(AssertionError, match="scales of A are those of the next block"):
        assert_bits_equal(D, a, b.T, scale_a=np.roll(sa, 1, axis=1), scale_b=sb.T, hardware=spec)


def test_a_search_among_scales_ends_at_its_limit_of_time():
    given = {**E4M3, "scale_a": ROWS, "scale_b": COLUMNS, "hardware": "H200"}
    for seconds in (20, 0):
        with pytest.raises(AssertionError) as raised:
            assert_bits_equal(rows(order=None), *operands("e4m3"), **given, seconds=seconds)
        assert ("one chain" in str(raised.value)) == (seconds > 0)


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_recorded_products_of_cublas_have_their_tabulated_orders(kind):
    arrays, fmt = golden.load("library"), golden.FORMAT_NAMES[kind]
    for key in sorted(k for k in arrays if k.startswith(f"{kind}/") and k.endswith("/D"))[:3]:
        A, B = (carrier(arrays[key.removesuffix("D") + name], fmt) for name in ("A", "Bt"))
        order = LIBRARY[kind, key.split("/")[2]]
        fields = {"fmt": fmt, "inputs": ("tf32", "RNE")} if kind == "tf32" else {"fmt": fmt}
        D = arrays[key].view(np.float32)
        assert_bits_equal(D, A, B.T, hardware="H200", order=order, **fields)
        assert_within_bound(D, A, B.T, hardware="H200", **fields)


@pytest.mark.parametrize(("library", "hardware", "fmt"), [("cublas", None, "fp16"), ("openblas", "HASWELL", "fp32")])
def test_libraries_are_expected_by_shape_and_layout(library, hardware, fmt):
    rng = np.random.default_rng(2)
    A, B = (rng.standard_normal(shape).astype(fpemu.formats.get(fmt).dtype) for shape in ((64, 2048), (2048, 64)))
    D = fpemu.library.emulate(library, A, B, hardware=hardware)
    assert_bits_equal(D, A, B, library=library, hardware=hardware)
    with pytest.raises(AssertionError, match="of 4096 entries differ"):
        assert_bits_equal(mma.gemm(A, B, None, HOPPER.get(fmt, FP32), KOrder(96)), A, B, library=library,
                          hardware=hardware, seconds=0)  # fmt: skip


@pytest.mark.parametrize("fmt", ["fp16", "e4m3", "fp32"])
def test_bounds_admit_every_order_and_no_defect(fmt):
    A, B = fpemu.inputs.operands("normal", 8, 8, 512, 1, fmt)
    spec = HOPPER.get(fmt, FP32)
    for order in (None, KOrder(spec.k), KOrder(128, join="pairwise"), KOrder(promote=64), KOrder(160, 64, True)):
        D = mma.gemm(A, B, None, spec, order)
        assert_within_bound(D, A, B, hardware="H200", fmt=fmt)
        assert_within_bound(D, A, B, hardware="H200", fmt=fmt, order=order)
    D = mma.gemm(A[:, :-32], B[:-32], None, spec, KOrder(promote=64))
    with pytest.raises(AssertionError) as raised:
        assert_within_bound(D, A, B, hardware="H200", fmt=fmt, order=KOrder(promote=64))
    assert "the last 32 of k are left out" in str(raised.value)
    with pytest.raises(AssertionError, match="64 of 64 entries of D are farther"):
        assert_within_bound(np.full_like(D, np.nan), A, B, hardware="H200", fmt=fmt, seconds=0)


def test_bounds_of_schemes_and_of_values_that_are_not_finite():
    A, B = fpemu.inputs.operands("normal", 12, 10, 100, 1, "fp32")
    for scheme in ("ootomo", "staged", "sgemm"):
        D = fpemu.gemm(A, B, scheme=scheme, hardware="H200")
        assert_bits_equal(D, A, B, scheme=scheme, hardware="H200")
        assert_within_bound(D, A, B, scheme=scheme, hardware="H200")
        with pytest.raises(AssertionError, match="farther from the exact product"):
            assert_within_bound(D * np.float32(1.001), A, B, scheme=scheme, hardware="H200", seconds=0)
    A, B = np.full((2, 16), 300, np.float16), np.full((16, 2), 300, np.float16)
    half = mma.spec("H200", "fp16", "fp16")
    assert_within_bound(mma.gemm(A, B, None, half), A, B, hardware=half)  # overflows to Inf
    B[0, 0] = np.nan
    D = mma.gemm(A, B, None, HOPPER["fp16"])
    assert_within_bound(D, A, B, hardware="H200")
    with pytest.raises(AssertionError, match="2 of 4 entries of D are"):
        assert_within_bound(np.nan_to_num(D), A, B, hardware="H200", seconds=0)


def test_orders_by_tile_are_compared_tile_by_tile(monkeypatch):
    tiles = Tiles(32, 32, (0, 1, 1, 0), (KOrder(), KOrder(512)), (None, None))
    product = replace(fpemu.library.lookup("cublas", "fp16", (64, 64, 2048)), order=tiles)
    monkeypatch.setattr(fpemu.testing.products, "lookup", lambda *names, **where: product)
    A, B = fpemu.inputs.operands("normal", 64, 64, 2048, 1, "fp16")
    D = fpemu.library.predict(product, A, B)
    assert_bits_equal(D, A, B, library="cublas")
    D[63, 62] = np.nextafter(D[63, 62], np.float32(np.inf))
    with pytest.raises(AssertionError, match=r"first at \[63, 62\]"):
        assert_bits_equal(D, A, B, library="cublas", seconds=0)
    monkeypatch.setattr(fpemu.testing, "_WORK", 2**16)
    compared = []
    for seed in range(8):
        try:
            assert_bits_equal(D, A, B, library="cublas", seed=seed, seconds=0)
        except AssertionError:
            compared.append(seed)
    assert 0 < len(compared) < 8  # one tile of each order


def test_integer_products_are_exact():
    rng = np.random.default_rng(1)
    A, B = (rng.integers(-128, 128, shape, np.int8) for shape in ((9, 50), (50, 7)))
    D = A.astype(np.int32) @ B
    assert_bits_equal(D, A, B, hardware="H200")
    assert_within_bound(D, A, B, hardware="H200")
    D[3, 4] += 1
    for check_that in (assert_bits_equal, assert_within_bound):
        with pytest.raises(AssertionError, match="1 of 63 entries"):
            check_that(D, A, B, hardware="H200")


OTHER = np.zeros((12, 10), np.float32)
REFUSED = [
    ({}, "give hardware=, scheme= or library="),
    ({"hardware": "H200", "C": OTHER, "bias": BIAS}, "give C or bias, not both"),
    ({"hardware": "H200", "bias": BIAS}, "bias has shape (64,): it needs an entry for each of 10 columns"),
    ({"hardware": "H200", "activation": "gelu"}, "unknown activation 'gelu'"),
    ({"hardware": "H200", "seed": -1}, "seed = -1"),
    ({"hardware": "H200", "scale_a": ROWS}, "scale_a has shape"),
    ({"hardware": "H200", "scheme": "fp16", "scale_a": 1.0}, "give hardware= without scheme="),
    ({"library": "openblas"}, "needs hardware=, the name of its kernel"),
    ({"library": "cublas", "hardware": "A100"}, "unknown GPU with a table of cublas 'A100'"),
    ({"library": "onemkl"}, "unknown library 'onemkl'"),
    ({"hardware": "H200", "D": OTHER.T}, "D has shape (10, 12): the product of A and B has (12, 10)"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_arguments_that_do_not_fit_are_refused(fields, words):
    fields = {"D": OTHER, **fields}
    with pytest.raises(InputError) as raised:
        assert_bits_equal(fields.pop("D"), *HALVES, **fields)
    assert words in str(raised.value)
