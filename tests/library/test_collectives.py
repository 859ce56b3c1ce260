"""`fpemu.library.collectives`: the order and the bits of NCCL's sums, recorded on four H200 and as rings on one."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction

import numpy as np
import pytest

import fpemu
from fpemu import formats, round_to
from fpemu.errors import InputError
from fpemu.library import all_reduce, collectives, parallel_linear, reduce_scatter
from tests.golden import DATA

FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
FIRST = {56: 0, 752: 1, 3380: 2, 6900: 3}  # the codes of the chains 1 2 3 0, 2 3 0 1, 3 0 1 2 and 0 1 2 3
with np.load(DATA / "nccl_x4.npz") as file:
    RECORDED = {key: file[key] for key in file.files}
ORDER = json.loads(RECORDED["order"].tobytes())
RINGS = json.loads((DATA / "nccl_rings.json").read_text(encoding="utf-8"))["rows"]


def test_chunks_are_those_of_every_recording():
    for protocol, dtype, n, op, runs, counts, starts in ORDER:
        size = formats.get(FORMATS[dtype]).width // 8
        named = "Simple" if protocol == "Simple" else None
        owner = np.repeat(np.arange(4), -(-n // 4))[:n]
        if op == "all_reduce":
            owner = collectives._chunks(n, 4, size, named, None)
        assert np.count_nonzero(np.diff(owner)) + 1 == runs, (protocol, dtype, n, op)
        assert [owner[start] for start, _ in starts] == [FIRST[code] for _, code in starts]
        assert {FIRST[int(code)]: count for code, count in counts.items()} == {
            c: k for c in range(4) if (k := int(np.count_nonzero(owner == c)))
        }
    assert len(ORDER) == 54


def recorded(dtype, op):
    fmt = formats.get(FORMATS[dtype])
    codes = RECORDED[f"{dtype}/{op}"]
    return fmt.decode(codes).astype(fmt.dtype) if dtype == "bfloat16" else codes.view(fmt.dtype)


@pytest.mark.parametrize("dtype", FORMATS)
def test_sums_have_the_recorded_bits(dtype):
    parts = recorded(dtype, "all_reduce")
    wide = np.zeros((4, 65536), parts.dtype)
    wide[:, :4096] = parts[:4]
    D = all_reduce(list(wide), fmt=FORMATS[dtype])
    assert D[:4096].tobytes() == parts[4].tobytes()
    first = reduce_scatter(list(wide), fmt=FORMATS[dtype])[0]
    assert first[:4096].tobytes() == recorded(dtype, "reduce_scatter")[0].tobytes()
    assert first[:4096].tobytes() != parts[4].tobytes()


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: "-".join(map(str, ring[:5])))
def test_rings_of_every_protocol_have_the_recorded_bits(ring):
    ranks, protocol, channels, fmt, n, digest = ring
    parts = []
    for rank in range(ranks):
        rng = np.random.default_rng(1000 * n + rank)
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-3, 4, n)).astype(np.float32)
        parts.append(np.asarray(round_to(x, fmt), np.float32))
    D = all_reduce(parts, fmt=fmt, protocol=protocol, channels=channels)
    assert hashlib.sha256(D.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "fp32"])
def test_every_addition_is_rounded_once(fmt):
    rng = np.random.default_rng(1)
    to = formats.get(fmt)
    parts = to.decode(rng.integers(0, 2**to.width, (3, 60)).astype(to.code_dtype)).astype(to.dtype)
    parts = np.where(np.isfinite(parts) & (np.abs(parts) < to.max / 4), parts, to.dtype.type(1))
    scattered = np.concatenate(reduce_scatter(list(parts), fmt=fmt))
    for i, D in enumerate(scattered):
        total = Fraction(float(parts[(i // 20 + 1) % 3, i]))
        for step in (2, 3):
            exact = total + Fraction(float(parts[(i // 20 + step) % 3, i]))
            total = Fraction(float(round_to(float(exact), fmt)))
        assert float(total) == float(D)


def test_row_parallel_layers_add_the_products_of_the_ranks():
    rng = np.random.default_rng(3)
    X, W = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 256), (24, 256)))
    spec = fpemu.mma.spec("H200", "fp16")

    def product(A, B):
        return fpemu.mma.gemm(A, B, None, spec)

    parts = [product(X[:, k : k + 64], W[:, k : k + 64].T).astype(np.float16) for k in range(0, 256, 64)]
    D = parallel_linear(X, W, ranks=4, library=product, partial="fp16")
    assert D.tobytes() == all_reduce(parts).tobytes()
    wide = parallel_linear(X, W, ranks=4, library=product)
    assert wide.dtype == np.float32
    assert np.abs(wide - X @ W.T.astype(np.float32)).max() < np.abs(D - X @ W.T.astype(np.float32)).max()
    whole = product(X, W.T)
    for ranks in (1, 2, 4):
        assert parallel_linear(X, W, ranks=ranks, kind="column", library=product).tobytes() == whole.tobytes()
    D = parallel_linear(X, W, ranks=2, library=product, partial="bf16")
    assert (np.asarray(round_to(D, "bf16")) == D).all()


def test_layers_have_the_orders_of_cublas():
    X, W = (np.random.default_rng(n).standard_normal((64, 4096)).astype(np.float16) for n in (1, 2))
    D = parallel_linear(X, W, ranks=2, partial="fp16")
    parts = [
        fpemu.library.emulate("cublas", X[:, k : k + 2048], W[:, k : k + 2048].copy().T).astype(np.float16)
        for k in (0, 2048)
    ]
    assert D.tobytes() == (parts[1] + parts[0]).tobytes()


ONES = np.ones(8, np.float32)
REFUSED = [
    (lambda: all_reduce([ONES] * 3), "NCCL's choice for 3 ranks was not recorded"),
    (lambda: all_reduce([np.zeros(2**20, np.float32)] * 4), "NCCL's choice for 4194304 bytes was not recorded"),
    (lambda: all_reduce([ONES] * 4, algorithm="tree"), "unknown algorithm 'tree'"),
    (lambda: all_reduce([ONES]), "number of ranks = 1"),
    (lambda: all_reduce([ONES, ONES[:4]]), "part 1 is float32 of shape (4,): they must be equal arrays"),
    (lambda: all_reduce([ONES / 3] * 4, fmt="bf16"), "parts have entries that are not values of bf16"),
    (lambda: all_reduce([ONES] * 4, fmt="e4m3"), "NCCL's sums in e4m3 were not recorded"),
    (lambda: reduce_scatter([ONES] * 3), "parts of 8 rows cannot be divided among 3 ranks"),
    (lambda: parallel_linear(ONES[None], ONES[None], ranks=3), "K = 8 cannot be divided among 3 ranks"),
    (lambda: parallel_linear(ONES[None], ONES[None], ranks=2), "fp32 TN"),
    (lambda: parallel_linear(ONES[None], ONES[None, :4], ranks=2), "must be matrices (M, K) and (N, K)"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_unknown_orders_are_declined_by_name(call, words):
    with pytest.raises(InputError) as raised:
        call()
    assert words in str(raised.value)
