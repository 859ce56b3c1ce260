"""Planted causes: products with one defect each, their units and shapes, and words that the verdicts must contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fpemu
from fpemu import mma, round_to, simt
from fpemu.mma import KOrder

UNITS = {"H200": ("H200", "fp16"), "A100": ("A100", "bf16"), "MI300X": ("MI300X", "fp16"), "cores": ("H200", "fp32")}
SHAPES = {"small": (48, 40, 256), "odd": (33, 65, 200), "deep": (16, 24, 1280)}
FP32 = simt.SPECS["fp32"]


def gemm(unit, A, B, order=None, C=None, k=None):
    """A B on a unit; `k`: the positions of both operands that are read."""
    spec = FP32 if unit == "cores" else mma.spec(*UNITS[unit])
    return mma.gemm(A, B, C, spec, order) if k is None else mma.gemm(A[:, k], B[k], C, spec, order)


def within(K, tile, positions):
    """The same order of positions in every tile of K; a rest keeps its order."""
    k = np.arange(K)
    main = K // tile * tile
    k[:main] = k[:main].reshape(-1, tile)[:, positions].ravel()
    return k


def replaced(D, at, value):
    D[at] = value
    return D


def narrowed(unit, A, B, fmt, length, fresh):
    total = np.zeros((len(A), B.shape[1]), np.float32)
    for k in range(0, A.shape[1], length):
        part = slice(k, k + length)
        sums = gemm(unit, A[:, part], B[part], None, None if fresh else total)
        total = np.asarray(round_to(total + sums if fresh else sums, fmt)).astype(np.float32)
    return total


def multiply_add(A, B, fmt, fused):
    total = np.zeros((len(A), B.shape[1]))
    for a, b in zip(A.T.astype(np.float64), B.astype(np.float64), strict=True):
        terms = a[:, None] * b
        total = np.asarray(round_to(total + (terms if fused else round_to(terms, fmt)), fmt)).astype(np.float64)
    return total.astype(np.float32)


def lanes(A, B, width, unroll):
    """`unroll` vectors of `width` lanes of FMAs, added in pairs; then the halves of the vector."""
    count = width * unroll
    sums = [gemm("cores", A, B, k=np.arange(lane, A.shape[1], count)) for lane in range(count)]
    vector = [(sums[i] + sums[width + i]) + (sums[2 * width + i] + sums[3 * width + i]) for i in range(width)]
    while len(vector) > 1:
        vector = [x + y for x, y in zip(vector, vector[len(vector) // 2 :], strict=False)]
    return vector[0]


def by(fmt, mode, *operands):
    return [np.asarray(round_to(x, fmt, mode)).astype(x.dtype) for x in operands]


def stale(K, to, of, length=16):
    k = np.arange(K)
    k[to : to + length] = k[of : of + length]
    return k


ROWS = """
block left out | two | small deep | k = 96 to 111 are
odd block left out | two | odd | k = 101 to 105 are
last block left out | two | odd | the last 8 of k are left out
block counted twice | two | small | counted twice
stale tile | two | small | are read in place of k = 64 to 79
stale tile of A | two | small | k of A is read from other places
negative block | two | small | -1 for k = 64 to 95
scale of the next block | two | small | scales of other blocks
rows exchanged | two | odd deep | row 3 holds 7
columns permuted | two | odd | columns of D are in wrong places
tile of another | two | small | holds the tile at [0, 16]
tile transposed | two | small | is transposed
tile not written | two | small | hold 0: not written
rows of NaN | two | odd | hold NaN
stride of A | two | small | A is read by rows with leading dimension 248
B stored by columns | two | odd | B is read by columns
k reversed in tiles | two | small deep | within tiles of 16 of k
k permuted in a tile | two | small | is permuted against the other operand
k permuted in tiles | two | small | within tiles of 32 of k
ReLU | two | odd | ReLU
bias | two | small | a bias for each column
slices | all | small odd deep | slices of 56
slices in pairs | all | small | slices of 32 joined pairwise
promotion in slices | all | deep | promoted every 64
bf16 operands | H200 MI300X cores | small | A and B are rounded to bf16 toward zero
one operand in e4m3 | H200 A100 | small | A is rounded to e4m3 to nearest even
words truncated to tf32 | cores | small odd | rounded to tf32 toward zero
words rounded to tf32 | cores | small | rounded to tf32 to nearest, ties away first
fp16 FMAs | H200 MI300X | small | rounded once per k (FMA)
fp16 multiply, then add | H200 | small | multiply-adds in fp16 without FMA
bf16 FMAs | A100 | small | multiply-adds in bf16
fp16 after each tile | H200 MI300X | small | rounded to fp16 after every 32 of k
bf16 sums of tiles | A100 | small | every 64 of k are summed from zero
multiply, then add | cores | small | multiply-adds in fp32 without FMA
SIMD lanes | cores | small | 32 accumulators that alternate every 1 of k
another instruction | matrix | small | the instruction is
D truncated to bf16 | all | small | the result is rounded to bf16 toward zero
D rounded twice | H200 | small | e5m2
block left out of slices | all | small | split in slices of 64
"""
"""For each defect its units, its shapes, and words of its cause."""
PRODUCTS = {  # of (unit, A, B)
    "block left out": lambda u, A, B: gemm(u, A, B, k=np.r_[0:96, 112 : len(B)]),
    "odd block left out": lambda u, A, B: gemm(u, A, B, k=np.r_[0:101, 106 : len(B)]),
    "last block left out": lambda u, A, B: gemm(u, A[:, :-8], B[:-8]),
    "block counted twice": lambda u, A, B: gemm(u, A, B, k=np.r_[0:64, 48 : len(B)]),
    "stale tile": lambda u, A, B: gemm(u, A, B, k=stale(len(B), 64, 32)),
    "stale tile of A": lambda u, A, B: gemm(u, A[:, stale(len(B), 64, 32)], B),
    "negative block": lambda u, A, B: gemm(u, A * np.where(np.arange(len(B)) // 32 == 2, -1, 1).astype(A.dtype), B),
    "scale of the next block": lambda u, A, B: gemm(
        u, A * np.repeat([2, 0.5, 4, 0.25], len(B) // 4).astype(A.dtype), B
    ),
    "rows exchanged": lambda u, A, B: gemm(u, A, B)[np.r_[0:3, 7, 4:7, 3, 8 : len(A)]],
    "columns permuted": lambda u, A, B: gemm(u, A, B)[:, ::-1],
    "tile of another": lambda u, A, B: replaced(D := gemm(u, A, B), np.s_[16:32, 0:16], D[0:16, 16:32].copy()),
    "tile transposed": lambda u, A, B: replaced(D := gemm(u, A, B), np.s_[16:32, 0:16], D[16:32, 0:16].T.copy()),
    "tile not written": lambda u, A, B: replaced(gemm(u, A, B), np.s_[16:32, 8:16], 0),
    "rows of NaN": lambda u, A, B: replaced(gemm(u, A, B), np.s_[-3:], np.nan),
    "stride of A": lambda u, A, B: gemm(u, A.ravel()[np.arange(len(A))[:, None] * (len(B) - 8) + np.arange(len(B))], B),
    "B stored by columns": lambda u, A, B: gemm(u, A, B.reshape(B.shape[::-1]).T),
    "k reversed in tiles": lambda u, A, B: gemm(u, A[:, within(len(B), 16, np.arange(16)[::-1])], B),
    "k permuted in a tile": lambda u, A, B: gemm(
        u, A, B[np.r_[0:64, 64 + np.random.default_rng(2).permutation(16), 80 : len(B)]]
    ),
    "k permuted in tiles": lambda u, A, B: gemm(
        u, A[:, within(len(B), 32, np.random.default_rng(3).permutation(32))], B
    ),
    "ReLU": lambda u, A, B: np.maximum(gemm(u, A, B), 0),
    "bias": lambda u, A, B: gemm(u, A, B) + np.random.default_rng(5).standard_normal(B.shape[1]).astype(np.float32),
    "slices": lambda u, A, B: gemm(u, A, B, KOrder(56)),
    "slices in pairs": lambda u, A, B: gemm(u, A, B, KOrder(32, join="pairwise")),
    "promotion in slices": lambda u, A, B: gemm(u, A, B, KOrder(512, promote=64)),
    "bf16 operands": lambda u, A, B: gemm(u, *by("bf16", "RZ", A, B)),
    "one operand in e4m3": lambda u, A, B: gemm(u, *by("e4m3", "RNE", A), B),
    "words truncated to tf32": lambda u, A, B: mma.gemm(A, B, None, mma.spec("A100", "tf32")),
    "words rounded to tf32": lambda u, A, B: mma.gemm(*by("tf32", "RNA", A, B), None, mma.spec("H200", "tf32")),
    "fp16 FMAs": lambda u, A, B: mma.gemm(A, B, None, simt.SPECS["fp16"]).astype(np.float32),
    "fp16 multiply, then add": lambda u, A, B: multiply_add(A, B, "fp16", False),
    "bf16 FMAs": lambda u, A, B: multiply_add(A, B, "bf16", True),
    "fp16 after each tile": lambda u, A, B: narrowed(u, A, B, "fp16", 32, False),
    "bf16 sums of tiles": lambda u, A, B: narrowed(u, A, B, "bf16", 64, True),
    "multiply, then add": lambda u, A, B: multiply_add(A, B, "fp32", False),
    "SIMD lanes": lambda u, A, B: lanes(A, B, 8, 4),
    "another instruction": lambda u, A, B: mma.gemm(
        A, B, None, mma.spec("ampere" if u != "A100" else "hopper", UNITS[u][1])
    ),
    "D truncated to bf16": lambda u, A, B: np.asarray(round_to(gemm(u, A, B), "bf16", "RZ")),
    "D rounded twice": lambda u, A, B: np.asarray(round_to(round_to(gemm(u, A, B), "bf16"), "e5m2")).astype(np.float32),
    "block left out of slices": lambda u, A, B: gemm(
        u, np.where(np.arange(len(B)) // 16 == 6, A.dtype.type(0), A), B, KOrder(64)
    ),
}
GROUPS = {"all": tuple(UNITS), "two": ("H200", "cores"), "matrix": ("H200", "A100", "MI300X")}
PLANTED: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...], str]] = {}
for row in ROWS.strip().splitlines():
    name, units, shapes, words = row.split(" | ")
    PLANTED[name] = PRODUCTS[name], GROUPS.get(units) or tuple(units.split()), tuple(shapes.split()), words
CASES = [  # each unit and each shape of a defect, in pairs
    (name, units[i % len(units)], shapes[i % len(shapes)])
    for name, (_, units, shapes, _) in PLANTED.items()
    for i in range(max(len(units), len(shapes)))
]


def operands(unit, shape):
    return fpemu.inputs.operands("normal", *SHAPES[shape], 1, UNITS[unit][1])
