"""Ozaki scheme II on Hopper: the products of all moduli in one launch of int8 wgmma, with residues as bytes.

The bits are those of `fpemu.gemm`: the same integers A' and B', the exact C' from its residues, one rounding. Rules
whose conditions hold by construction need no check, so that the steps depend on the layouts of the operands alone:

    tops                      the largest entry of every row of A and column of B
    leading_bits, byte_gemm   scaling="accurate": a product of 7-bit integers, of which the largest sums are kept
    squares                   scaling="invariant": sums of squares
    residue_bytes             powers of two, and A' and B' modulo each p as bytes
    byte_gemm                 products modulo each p, a byte an entry
    residue_sum               C' by the remainder theorem, rounded; alpha, beta and C

The workspace has N bytes an entry of A, B and D for N moduli; where the GPU has less, D is computed in panels.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.gpu.errorfree.operands import END, VIEW, padded, source
from fpemu.gpu.errorfree.residues import definitions, scaled_limit
from fpemu.gpu.gemm.wgmma.schedules import Tile, best_tile, wgmma
from fpemu.gpu.runtime import callers, compiler, device, modules
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.plan import workspaces
from fpemu.gpu.runtime.steps import Launch, Memory, Step, Struct, TensorMap, fields
from fpemu.schemes.base import Call
from fpemu.schemes.errorfree.crt import Basis
from fpemu.schemes.ozaki2 import Ozaki2

CHUNK = 128  # k in a stage of the pipeline
WORKSPACE = 32 << 30  # limit of its bytes
_INTERVAL = 512  # chunks whose sums of products of bytes stay below 2^32
_STAGES, _SIDE_ROWS, _BLOCKS = 4, 32, 2048
_MOST = 64  # products of a batch; the steps of more take the host longer than the GPU
_LAGGING = 2**37  # M N K from which power limits the clock
_SIDE = fields(
    "u8 X, i8 row_step step, u8 tops sums special maxima mu leading residues, i8 plane, "
    "i4 rows narrow first count K h, f8 g"
)
PRODUCT = fields("u8 residues row_maxima column_maxima, i4 M N chunks group")
TILES = (Tile(192, 2, rows=256), Tile(256, 2, rows=128))


# --- residues by three instructions
@lru_cache(maxsize=1024)
def quotient(p: int, width: int) -> tuple[int, float, float]:
    """Return start, inverse and center of a struct Reduction (kernels/byte_residues.cuh) for |v| < width.

    With y = 2^23 + o + v, the FMA rounds (v - (p - 1) / 2) / p + d to the nearest integer, where d is the error of the
    inverse in fp32; it is the floor of v / p as long as |d| < 1 / (2 p). o is the number for which d is smallest.
    """
    if p == 256:  # the low byte itself
        return 0x4B000000 + (1 << 20), 0.0, 12582912.0
    nearest = np.float32(1 / p)
    candidates = (nearest, np.nextafter(nearest, np.float32(0)), np.nextafter(nearest, np.float32(1)))
    choices = []
    for inverse in map(float, candidates):
        for base in (1 << 20, 1 << 22, 7 << 20):
            for o in range(base, base + p):
                middle = (2**23 + o) * inverse + ((p - 1) // 2) / p
                k = round(middle)
                d = max(abs(middle - k + sign * width * (inverse - 1 / p)) for sign in (-1, 1))
                choices.append((d, o, inverse, k))
    d, o, inverse, k = min(choices)
    assert d * p < 0.45, f"the quotient by {p} is not exact"
    low = (2**23 + o) * pow(p, -1, 256) % 256  # makes the low byte of 2^23 + o - low p zero
    return 0x4B000000 + o, inverse, float(12582912 - k + low)


def reduction(p: int, words: int, factor: int = 1, *, offset: bool = False) -> str:
    """Return a struct Reduction in C++ for integers of `words` words times a factor; offset: less 2^(32 words - 2)."""

    def centred(x: int) -> int:
        return (x + p // 2) % p - p // 2

    packed = [sum((centred(256 ** (4 * w + j) * factor) & 255) << 8 * j for j in range(4)) for w in range(words)]
    start, inverse, center = quotient(p, 512 * 255 * words + 256)
    start += centred(-(1 << (32 * words - 2)) * factor) if offset else 0
    weights = ", ".join(f"{x}u" for x in packed)
    return f"{{{{{weights}}}, {start}, {float(inverse).hex()}f, {float(center).hex()}f, {-p if p < 256 else 0}}}"


def words_of(basis: Basis) -> int:
    """Return the words of an integer: |X| <= 8 sqrt(P) where it counts, below 2^(32 words - 2)."""
    return 2 if basis.product < 2 ** (2 * 62 - 6) else 3


@lru_cache(maxsize=64)
def operands_source(scheme: Ozaki2) -> str:
    """Return kernels/residue_operands.cu for a scheme."""
    basis, words = scheme.basis(), words_of(scheme.basis())
    tables = [
        ", ".join(reduction(p, words, q, offset=True) for p, q in zip(basis.moduli, factors, strict=True))
        for factors in (basis.inverses, [1] * len(basis.moduli))
    ]
    N = len(basis.moduli)
    config = {"WORDS": words, "NEAREST": scheme.rounding == "nearest", "ACCURATE": scheme.scaling == "accurate"}
    table = f"__constant__ Reduction REDUCTION[2][N] = {{{{{tables[0]}}}, {{{tables[1]}}}}};"
    lines = ['#include "byte_residues.cuh"', f"constexpr int N = {N};", table, compiler.struct(config, "Operands")]
    return "\n".join([*lines, source("residue_operands.cu")])


@lru_cache(maxsize=64)
def gemm_source(moduli: tuple[int, ...], tile: Tile, *, lag: bool = False, long: bool = False) -> str:
    """Return kernels/byte_gemm.cu; without moduli, for the largest sums. long: K is beyond one interval."""
    config = {
        "ROW_BLOCKS": tile.rows // 128,
        "TILE_N": tile.columns,
        "STAGES": _STAGES,
        "MATH_WARPGROUPS": 2,
        "CLUSTER": tile.cluster,
        "MODULI": len(moduli) or 1,
        "MAXIMA": not moduli,
        "LAG": lag,
        "INTERVAL": _INTERVAL if long and moduli else 1 << 20,
    }
    table = ", ".join(reduction(p, 1) for p in moduli or (255,))
    lines = [compiler.struct(config), '#include "hopper.cuh"', '#include "byte_residues.cuh"']
    lines += [f"__constant__ Reduction REDUCTION[{len(moduli) or 1}] = {{{table}}};"]
    return "\n".join([*lines, wgmma("byte_product", tile.columns, int8=True, unsigned=True), source("byte_gemm.cu")])


@lru_cache(maxsize=64)
def sum_source(count: int, tile: Tile, narrow: bool) -> str:
    """Return kernels/residue_sum.cu."""
    config = {"TILE_M": tile.rows, "TILE_N": tile.columns, "NARROW": narrow}
    return f"{definitions(count)}{compiler.struct(config, 'Tiles')}\n{source('residue_sum.cu')}"


# --- the steps of a call
def supported(call: Call) -> bool:
    """Whether `steps` computes a call: on Hopper, by a rule whose conditions hold for any operands."""
    scheme, spec = call.scheme, call.spec
    if not isinstance(scheme, Ozaki2) or spec is None or spec.architecture != "hopper" or device.arch() != "sm_90a":
        return False
    K, batch = call.A.shape[-1], math.prod(call.result_shape[:-2])
    keeps_bits = scheme.basis().product > K << 18  # of every row and column
    return scheme.scaling != "fast" and keeps_bits and K <= 1 << 18 and batch <= _MOST


def steps(call: Call, layouts: dict[str, Any], memory: Memory) -> list[Step]:
    """Return the steps of a call for A, B, C or None, and D at addresses in their regions."""
    lead = layouts["D"].shape[:-2]
    stacks = (None if X is None else _matrices(X, lead) for X in layouts.values())
    A, B, C, D = (stack or [None] * math.prod(lead) for stack in stacks)
    shape = (*layouts["D"].shape[-2:], layouts["A"].shape[-1])
    product, result = _Product(call, shape, memory), list[Step]()
    for a, b, c, d in zip(A, B, C, D, strict=True):
        result += product.steps(a, b, c, d)
    return result


def _matrices(X: Matrix, lead: tuple[int, ...]) -> list[Any]:
    """Return the matrices of a stack, broadcast to a batch of shape `lead`."""
    places = (X.pointer + X.dtype.itemsize * int(offset) for offset in X.offsets(lead))
    return [Matrix(place, X.dtype, X.shape[-2:], X.strides[-2:], X.owner) for place in places]


class _Product:
    """The sizes, kernels and workspace of the products of a call, which are computed one after another."""

    def __init__(self, call: Call, shape: tuple[int, int, int], memory: Memory) -> None:
        assert isinstance(call.scheme, Ozaki2)
        self.call, self.scheme, self.shape, self.memory = call, call.scheme, shape, memory
        self.moduli, (M, N, K) = self.scheme.basis().moduli, shape
        self.count, self.chunks = len(self.moduli), -(-K // CHUNK)
        self.tile = best_tile(TILES, (M, self.count * N, K))
        lag = self.tile.rows == 256 and 1 < self.chunks <= _INTERVAL and M * N * K >= _LAGGING
        self.lag, self.overlap = lag, device.overlaps_launches()
        self.operands = modules.module(operands_source(self.scheme), "residue_operands.cu")
        rows, columns, parts = M, N, 1
        held = max((w.nbytes[0] for (index, _), w in workspaces.items() if index == device.current()), default=0)
        most = min(WORKSPACE, (callers.free_bytes() + held) * 3 // 4)
        while self._nbytes(rows, columns) > most and rows > 512:
            parts *= 2
            rows = padded(-(-M // parts), 512)
        while self._nbytes(rows, columns) > most and columns > 768:
            columns = padded(-(-columns // 2), 192)
        self.rows, self.columns = rows, columns
        width = self.chunks * CHUNK
        self.planes = [memory.block(self.count * width * n) for n in (rows, columns)]
        leading = width * (M + N) if self.scheme.scaling == "accurate" else 0
        self.residues = memory.block(max(self.count * self._plane(rows, columns), leading))
        self.mu = [memory.block(4 * n) for n in (M, N)]

    def _plane(self, rows: int, columns: int) -> int:
        """Return the bytes of the residues of D modulo one number."""
        return padded(rows, 2 * self.tile.rows) * padded(columns, self.tile.columns)

    def _nbytes(self, rows: int, columns: int) -> int:
        return self.count * (self.chunks * CHUNK * (rows + columns) + self._plane(rows, columns))

    def steps(self, A: Matrix, B: Matrix, C: Matrix | None, D: Matrix) -> list[Step]:
        """Return the steps of one product."""
        M, N, K = self.shape
        h, g = scaled_limit(self.scheme.basis().product, K, self.scheme.scaling, self.scheme.rounding == "nearest")
        lead, width = self.residues.pointer, self.chunks * CHUNK
        sides, per_row = [], (("tops", 8), ("sums", 16), ("special", 4), ("maxima", 4))
        for i, (X, rows, steps) in enumerate(((A, M, A.strides), (B, N, B.strides[::-1]))):
            values: dict[str, Any] = {name: self.memory.cleared(size * rows) for name, size in per_row}
            values |= {"g": g, "h": h, "K": K}
            values |= {"X": X.pointer, "row_step": steps[0], "step": steps[1], "rows": rows, "mu": self.mu[i]}
            values |= {"narrow": X.dtype == np.float32, "leading": lead + i * width * M, "residues": self.planes[i]}
            sides.append(Struct(_SIDE, values))
        result: list[Step] = [self._operands("tops", sides)]
        if self.scheme.scaling == "accurate":
            maxima = {"row_maxima": sides[0]["maxima"], "column_maxima": sides[1]["maxima"]}
            maps = [self._map(lead + i * width * M, n, 1, box) for i, (n, box) in enumerate(((M, 256), (N, 96)))]
            result.append(self._operands("leading_bits", sides))
            result.append(self._gemm((), TILES[0], maps, M, N, maxima, lag=False))
        else:
            result.append(self._operands("squares", sides))
        for column in range(0, N, self.columns):
            for row in range(0, M, self.rows):
                result += self._panel(sides, row, column, (A, B, C, D))
        return result

    def _panel(self, sides: list[Struct], row: int, column: int, matrices: Any) -> list[Step]:
        """Return the steps of some rows and columns of D."""
        (M, N, K), tile = self.shape, self.tile
        sizes, width = (min(self.rows, M - row), min(self.columns, N - column)), self.chunks * CHUNK
        panels, maps = [], []
        for side, first, n, planes, box in zip(
            sides, (row, column), sizes, self.planes, (tile.rows, tile.columns // tile.cluster), strict=True
        ):
            again = side is sides[1] and row > 0  # the residues of B are there already
            panels.append(side.changed(first=first, count=0 if again else n, plane=n * width))
            maps.append(self._map(planes.pointer, n, self.count, box))
        product = self._gemm(self.moduli, tile, maps, *sizes, {"residues": self.residues}, lag=self.lag)
        A, B, C, D = matrices
        end: dict[str, Any] = {
            "K": K,
            "has_c": C is not None,
            "rows": sides[0]["special"],
            "columns": sides[1]["special"],
        }
        for name, X in (("A", A), ("B", B), ("C", C), ("D", D)):
            if X is not None:
                view = {"at": X.pointer, "row": X.strides[0], "column": X.strides[1], "narrow": X.dtype == np.float32}
                end[name] = Struct(VIEW, view)
        end |= {"alpha": self.call.alpha, "beta": self.call.beta, "nan": self.scheme.nan_code(self.call.spec)}
        plane, narrow = self._plane(*sizes), self.scheme.operand.name == "fp32"
        module = modules.module(sum_source(self.count, tile, narrow), "residue_sum.cu")
        blocks = min(plane // 4 // 256, 1 << 20)
        numbers = (plane // 4, *map(np.int32, (-(-sizes[1] // tile.columns), *sizes, row, column)))
        arguments = (self.residues, *numbers, *self.mu, Struct(END, end))
        finish = module.step("residue_sum", blocks, 256, *arguments, overlap=self.overlap)
        return [self._operands("residue_bytes", panels, sizes), product, finish]

    def _operands(self, kernel: str, sides: list[Struct], sizes: Any = None) -> Launch:
        blocks = -(-max(sizes or self.shape[:2]) // _SIDE_ROWS)
        grid = (blocks, min(self.chunks, max(1, -(-_BLOCKS // blocks))), 2)
        return self.operands.step(kernel, grid, 256, *sides, overlap=self.overlap)

    def _map(self, pointer: Any, rows: int, matrices: int, box: int) -> TensorMap:
        shape, row = (matrices, self.chunks, rows, CHUNK), CHUNK * rows
        return TensorMap(pointer, 1, shape, (row * self.chunks, row, CHUNK), (box, CHUNK))

    def _gemm(self, moduli: Any, tile: Tile, maps: Any, M: int, N: int, out: dict[str, Any], lag: bool) -> Launch:
        text = gemm_source(moduli, tile, lag=lag, long=self.chunks > _INTERVAL)
        module, shared = modules.module(text, "byte_gemm.cu"), _STAGES * (tile.rows + tile.columns) * CHUNK + 1024
        clusters = module.clusters("byte_gemm", tile.cluster, 384, shared)
        blocks = min(clusters, tile.count(M, N) * (len(moduli) or 1)) * tile.cluster
        product = Struct(PRODUCT, out | {"M": M, "N": N, "chunks": self.chunks, "group": tile.group})
        more: dict[str, Any] = {"shared": shared, "cluster": tile.cluster, "overlap": self.overlap}
        return module.step("byte_gemm", blocks, 384, *maps, product, **more)
