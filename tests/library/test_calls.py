"""Products of PyTorch's calls by answers of cuBLASLt's heuristic: bias, batches, e4m3 with scales, int8, stream-K."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import formats, library, mma
from fpemu.errors import InputError
from fpemu.library import families, products, tables
from fpemu.library.emulation import predict_entries
from fpemu.library.heuristic import FIELDS, workspaces
from fpemu.library.tables import operand_values
from fpemu.mma import KOrder

SPLIT = {"algorithm": 66, "stages": 35, "splits": 3, "reduction": 2, "custom": 3}
STREAM = {"algorithm": 43, "stages": 34, "splits": -1, "reduction": 2, "custom": 0}


@pytest.fixture
def answers(monkeypatch):
    """The queries of a heuristic that always answers with three slices of K."""
    queries = []

    class Heuristic:
        version = "13.1.0"

        def __init__(self, kind, layout, workspace, *, bias, fast):
            self.query = kind, layout, workspace, bias, fast

        def __call__(self, shapes):
            queries.append((*self.query, shapes[0]))
            return np.array([[SPLIT.get(name, 0) for name in FIELDS]])

    products._heuristic.cache_clear()
    monkeypatch.setattr(products, "Heuristic", Heuristic)
    yield queries
    products._heuristic.cache_clear()


def drawn(shape, kind, seed=0):
    return fpemu.round_to(np.random.default_rng(seed).standard_normal(shape), kind).astype(np.float32)


def test_a_vector_is_added_by_cublaslt_and_a_matrix_by_cublas(answers, monkeypatch):
    A, B = drawn((64, 500), "bf16"), drawn((500, 96), "bf16", 1)
    T, chain = (mma.gemm(A, B, None, mma.spec("H200", "bf16"), order) for order in (KOrder(192), None))
    for C in (drawn(96, "bf16", 2), drawn((64, 96), "bf16", 3)):
        D = library.emulate("cublas", A, B, C, fmt="bf16", out="bf16", source="heuristic")
        assert np.array_equal(D, fpemu.round_to(T + C, "bf16"))
        assert not np.array_equal(D, fpemu.round_to(chain + C, "bf16"))
    assert answers == [
        ("bf16->bf16", "NN", 2**20, True, False, (64, 96, 500, 1)),
        ("bf16->bf16", "NN", 2**25, False, False, (64, 96, 500, 1)),
    ]
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    library.emulate("cublas", A, B, fmt="bf16", source="heuristic")
    assert answers[-1][2] == 2**17


def test_the_products_of_a_batch_have_one_order(answers):
    A, B = drawn((3, 7, 500), "fp16").astype(np.float16), drawn((3, 500, 9), "fp16", 1).astype(np.float16)
    C = drawn((3, 7, 9), "fp16", 2).astype(np.float16)
    D = library.emulate("cublas", A, B.transpose(0, 2, 1).copy().transpose(0, 2, 1), C, out="fp16", source="heuristic")
    T = mma.gemm(A, B, None, mma.spec("H200", "fp16"), KOrder(192))
    assert np.array_equal(D, (T + C).astype(np.float16))
    assert answers == [("fp16->fp16", "TN", 2**25, False, False, (7, 9, 500, 3))]


@pytest.mark.parametrize(("fast", "order"), [(False, KOrder(256, promote=128)), (True, KOrder(256))])
def test_scales_of_e4m3_multiply_the_sums(answers, fast, order):
    A, B, bias = drawn((16, 640), "e4m3"), drawn((640, 32), "e4m3", 1), drawn(32, "bf16", 2)
    scales = {"scale_a": 1.5, "scale_b": float(np.float32(0.7))}
    D = library.emulate(
        "cublas", A, B, bias, fmt="e4m3", out="bf16", layout="TN", source="heuristic", fast_accumulation=fast, **scales
    )
    T = mma.outer_scales.scaled_gemm(A, B, *scales.values(), mma.spec("H200", "e4m3"), order)
    assert np.array_equal(D, fpemu.round_to(T + bias, "bf16"))
    assert answers == [("e4m3->bf16", "TN", 2**20, True, fast, (16, 32, 640, 1))]


def test_sums_of_int8_are_exact_until_they_may_saturate(answers):
    rng = np.random.default_rng(1)
    A, B = rng.integers(-128, 128, (17, 900), np.int8), rng.integers(-128, 128, (900, 8), np.int8)
    C = rng.integers(-(2**20), 2**20, (17, 8), np.int32)
    assert (library.emulate("cublas", A, B, C, source="heuristic") == A.astype(int) @ B.astype(int) + C).all()
    with pytest.raises(InputError, match=r"family 66 .* int8"):
        library.plan(SPLIT, "int8", "TN", (17, 8, 2**17))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": np.ones(8)}, r"neither a vector \(9,\) nor of D's shape \(7, 9\)"),
        ({"C": np.full(9, 1 + 2.0**-20)}, "C"),
        ({"scale_a": 2.0}, "scales belong to e4m3 operands, and A is fp16"),
        ({"source": "auto", "C": np.ones(9)}, "no products with a bias or in a batch"),
        ({"A": np.ones((2, 7, 50), np.float16)}, "do not form a product"),
        ({"library": "openblas", "C": np.ones(9), "A": np.ones((7, 50)), "B": np.ones((50, 9))}, "openblas has no"),
    ],
)
def test_arguments_that_do_not_fit_are_named(answers, change, message):
    given = {"library": "cublas", "A": np.ones((7, 50), np.float16), "B": np.ones((50, 9), np.float16)}
    given = {**given, "out": None, "source": "heuristic", **change}
    if given["library"] == "cublas" and change.get("C") is not None:
        given["out"] = "fp16"
    with pytest.raises(InputError, match=message):
        library.emulate(given.pop("library"), given.pop("A"), given.pop("B"), **given)


# --- stream-K
@pytest.mark.parametrize(
    ("layout", "tile", "cluster", "blocks", "shape", "slices"),
    [
        ("NN", 18, 5, 108, (280, 672, 5896), 3),  # 36 tiles of 128 x 64
        ("TN", 18, 5, 108, (672, 280, 5896), 3),  # the transpose
        ("NN", 20, 5, 132, (1458, 1236, 6176), 1),  # 120 tiles, no whole wave
        ("NN", 20, 3, 132, (536, 3312, 2008), -1),  # the tiles of the last wave are divided
        ("NN", 20, 0, 132, (64, 64, 2008), -1),
        ("NN", 99, 3, 132, (64, 64, 2008), -1),
    ],
)
def test_the_grid_of_a_stream_k_kernel_determines_its_slices(layout, tile, cluster, blocks, shape, slices):
    config = {**STREAM, "tile": tile, "cluster": cluster, "blocks": blocks}
    assert families.resolved(config, layout, shape).splits == slices
    if slices > 0:
        units = 1 if slices == 1 else families._units(shape[2], slices)
        product = library.plan(config, "tf32", layout, shape)
        assert product.order == (KOrder() if slices == 1 else units)
    else:
        with pytest.raises(InputError, match="family 43 "):
            library.plan(config, "tf32", layout, shape)


def test_recorded_stream_k_products_have_planned_units():
    config = library.Configuration(43, 34, 3, 2, 0)
    for layout in library.LAYOUTS:
        recorded = library.lookup("cublas", "tf32", (512, 512, 8192), layout=layout)
        order = library.plan(config, "tf32", layout, (512, 512, 8192)).order
        assert mma.tree.equal(order, recorded.order, recorded.spec)
    tiles = library.lookup("cublas", "tf32", (1024, 1024, 4096)).order
    assert mma.tree.equal(families._units(4096, 15), tiles.orders[1], recorded.spec)


# --- sums in place
IN_PLACE = json.loads((Path(__file__).parents[1] / "data" / "cublas_in_place.json").read_text())["rows"]


@pytest.mark.parametrize("row", IN_PLACE, ids=lambda row: "-".join(map(str, (*row[:2], *row[2]))))
def test_slices_that_are_added_in_d_round_every_sum(row):
    kind, layout, (M, N, K), config, seed, digest = row
    fmt, rng = formats.get(kind), np.random.default_rng(seed)
    A, B = (fpemu.round_to(rng.standard_normal(shape).astype(np.float32), kind) for shape in ((M, K), (K, N)))
    rows, columns = np.arange(0, M, 31), np.arange(0, N, 31)
    product = library.plan(library.Configuration(*config), f"{kind}->{kind}", layout, (M, N, K))
    D = predict_entries(product, A[rows], B[:, columns], rows, columns)
    codes = fmt.encode(D.astype(np.float64)).astype("<u2")
    assert hashlib.sha256(codes.tobytes()).hexdigest()[:16] == digest
    assert product.order != library.plan(library.Configuration(*config), kind, layout, (M, N, K)).order


def test_c_is_declined_where_slices_are_added_in_a_16_bit_d():
    wide, narrow = (
        library.plan(library.Configuration(24, 0, 2, 1, 0), t, "NN", (64, 64, 1000)) for t in ("fp16", "fp16->fp16")
    )
    assert not families.rounds_before_adding(wide, vector=False)
    for product, vector in ((narrow, False), (narrow, True), (wide, True)):
        with pytest.raises(InputError, match="the place of C in the sum is not known"):
            families.rounds_before_adding(product, vector)


def test_workspaces_are_those_of_the_environment():
    assert workspaces({}) == (2**25, 2**20)
    assert workspaces({"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8", "CUBLASLT_WORKSPACE_SIZE": "64"}) == (8519680, 2**16)


# --- products of PyTorch on a GPU
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "cublas_calls.json").read_text())["rows"]


def recorded_values(shape, kind, seed):
    index, fmt = np.arange(math.prod(shape), dtype=np.int64).reshape(shape), kind.partition("->")[0]
    if fmt == "int8":
        return (operand_values(index, "fp16", seed, np.float64) * 32).astype(np.int8)
    x = operand_values(index, "fp16" if fmt == "e4m3" else fmt, seed, np.float64)
    x = fpemu.round_to(x, "e4m3") if fmt == "e4m3" else x
    return x.astype({"fp16": np.float16, "fp64": np.float64}.get(fmt, np.float32))


@pytest.mark.parametrize(("call", "kind"), sorted({tuple(row[:2]) for row in RECORDED}))
def test_emulated_products_have_the_bits_of_pytorch(monkeypatch, call, kind):
    """The digests of D of torch.mm, addmm, bmm, baddbmm, _scaled_mm and _int_mm, and the heuristic's answers."""
    rows = [row for row in RECORDED if row[:2] == [call, kind]]
    fmt, _, out = kind.partition("->")
    scales = {"scale_a": 1.5, "scale_b": 0.7} if call == "scaled" else {}
    for _, _, layout, (M, N, K, batch), answer, fast, bias, seed, digest in rows:
        monkeypatch.setattr(products, "_heuristic", lambda *_: Answer(answer))  # noqa: B023
        lead, narrow = ((batch,) if batch > 1 else ()), out or {"fp64": "fp64"}.get(kind, "fp32")
        A = recorded_values((*lead, M, K), kind, 2 * seed)
        B = recorded_values((*lead, K, N), kind, 2 * seed + 1)
        shape = (N,) if call == "vector" or bias else (*lead, M, N) if call in ("matrix", "baddbmm") else None
        C = None if shape is None else recorded_values(shape, narrow, seed)
        given = {"fmt": fmt, "out": out or None, "layout": layout, "fast_accumulation": fast, **scales}
        reduction, splits = (answer[FIELDS.index(name)] for name in ("reduction", "splits"))
        if shape is not None and splits > 1 and reduction == (1 if call == "vector" else 4):
            with pytest.raises(InputError, match="the place of C in the sum is not known"):
                library.emulate("cublas", A, B, C, source="heuristic", **given)
        else:
            D = library.emulate("cublas", A, B, C, source="heuristic", **given)
            assert tables.digest_of(D) == digest, (layout, M, N, K, batch, answer)


class Answer:
    """A heuristic with one answer."""

    version = "13.1.0"

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, shapes):
        return np.array([self.answer] * len(shapes))
