"""Ozaki scheme II on Hopper: the products of all moduli in one launch of int8 wgmma, with residues as bytes.

The bits are those of `fpemu.gemm`: the same integers A' and B', the exact C' from its residues, one rounding. Rules
whose conditions hold by construction need no check, so that the steps depend on the layouts of the operands alone:

    summaries                 the largest entry of every row of A and column of B; scaling="invariant": powers of two
                              from sums of squares
    leading_bits, byte_gemm   scaling="accurate": a product of 7-bit integers, of which the largest sums are kept
    residue_bytes             powers of two, and combinations of blocks of A' and B' modulo each p as bytes
    byte_gemm                 products of these modulo each p, a byte an entry
    residue_sum               their combinations, C' by the remainder theorem, rounded; alpha, beta and C

A bilinear algorithm is exact modulo p: complex products by three real ones and Strassen's algorithm have the bits of
the plain product. The workspace has N bytes an entry of A, B and D for N moduli (complex: 3 N, Winograd's form:
7 N / 4); where the GPU has less, D is computed in panels.

Mode CR of `ozaki` has other powers of two and another rounding: `extents` and `exact`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.gpu.errorfree.operands import END, VIEW, Products, Slices, Term, padded, source, stack, transposed
from fpemu.gpu.errorfree.residues import ALL, definitions, moduli_for, scaled_limit, total_definitions
from fpemu.gpu.gemm.wgmma.schedules import Tile, wgmma
from fpemu.gpu.runtime import callers, compiler, device, modules
from fpemu.gpu.runtime.device import multiprocessors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.plan import workspaces
from fpemu.gpu.runtime.steps import Fill, Launch, Memory, Step, Struct, TensorMap, fields
from fpemu.schemes.base import Call
from fpemu.schemes.ozaki import Ozaki
from fpemu.schemes.ozaki2 import Ozaki2

CHUNK = 128  # k in a stage of the pipeline
WORKSPACE = 32 << 30  # limit of its bytes
_INTERVAL = 512  # chunks whose sums of products of bytes stay below 2^32
_STAGES, _SIDE_ROWS, _BLOCKS = 4, 32, 2048
_LONGEST = 127  # bits of the integers of mode CR
_PAIRS = 64  # terms of a launch
_MOST = 64  # products of a batch; the steps of more take the host longer than the GPU
_TALLEST = 1 << 22  # rows of a panel: a grid has fewer than 2^16 rows of tiles
_LAGGING = 2**37  # M N K from which power limits the clock
_SMALLER = 1.04  # time of an entry of the smaller tile, relative to the larger one (H200)
_WINOGRAD = 16384  # M, N and K from which a level of Strassen's algorithm is not slower (H200)
_SIDE = fields(
    "u8 X, i8 row_step step, u8 tops sums special maxima mu leading residues extents arrivals, i8 plane, "
    "i4 rows narrow first count K half_k h unused, f8 g"
)
_PER_ROW = (("tops", 8), ("sums", 8), ("special", 4), ("arrivals", 4))  # fields at first zero, and their bytes
PRODUCT = fields(
    "u8 residues row_maxima column_maxima, i4 M N chunks group planes terms, u8 sums, i8 stride pitch, 64i2 a b length"
)
PANEL = fields("i4 tile_columns M columns first_row first_column rows all_columns unused")
TILES = (Tile(192, 2, rows=256), Tile(256, 2, rows=128))


def best_tile(M: int, N: int, planes: int) -> Tile:
    """Return the tile with the least estimated time of all planes: waves of clusters, times the entries of a tile."""

    def cost(tile: Tile) -> float:
        waves = -(-planes * tile.count(M, N) // (multiprocessors() // tile.cluster))
        return waves * tile.rows * tile.columns * (1 if tile.rows == 256 else _SMALLER)

    return min(TILES, key=cost)


# --- bilinear algorithms
@dataclass(frozen=True)
class Bilinear:
    """An algorithm whose terms are products of combinations of blocks, with factors -1, 0 and 1.

    A block is a half of the rows, a half of the columns and a part of the numbers, numbered in this order; the blocks
    of B are those of its transpose.

    Examples
    --------
    >>> COMPLEX.terms, WINOGRAD.terms, COMPLEX.largest, WINOGRAD.largest
    (3, 7, 2, 4)
    """

    A: tuple[tuple[int, ...], ...]  # factor of each block of A in each term
    B: tuple[tuple[int, ...], ...]
    D: tuple[tuple[int, ...], ...]  # factor of each term in each block of D
    halves: int = 1
    parts: int = 1  # 2: real and imaginary parts

    @property
    def terms(self) -> int:
        """Number of products."""
        return len(self.A)

    @property
    def largest(self) -> int:
        """Number of blocks in a combination, at most."""
        return max(sum(map(abs, row)) for row in (*self.A, *self.B))

    def constants(self) -> str:
        """Return the constants that precede kernels/residue_operands.cu and residue_sum.cu."""

        def table(values: Any) -> str:
            return "{" + ", ".join(map(table, values)) + "}" if isinstance(values, tuple | list) else str(values)

        bits = [[sum((x == sign) << t for t, x in enumerate(row)) for row in self.D] for sign in (1, -1)]
        return f"""
constexpr int PARTS = {self.parts}, HALVES = {self.halves}, TERMS = {self.terms}, BLOCKS = {len(self.A[0])};
constexpr int FACTOR[2][TERMS][BLOCKS] = {table((self.A, self.B))};
constexpr u32 PLUS[BLOCKS] = {table(bits[0])}, MINUS[BLOCKS] = {table(bits[1])};
"""


REAL = Bilinear(((1,),), ((1,),), ((1,),))
COMPLEX = Bilinear(((1, 0), (0, 1), (1, 1)), ((1, 0), (0, 1), (1, 1)), ((1, -1, 0), (-1, -1, 1)), parts=2)
"""Three real products (3M)"""
WINOGRAD = Bilinear(
    ((1, 0, 0, 0), (0, 1, 0, 0), (1, 1, -1, -1), (0, 0, 0, 1), (0, 0, 1, 1), (-1, 0, 1, 1), (1, 0, -1, 0)),
    ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1), (1, -1, -1, 1), (-1, 0, 1, 0), (1, 0, -1, 1), (0, 0, -1, 1)),
    ((1, 1, 0, 0, 0, 0, 0), (1, 0, 1, 0, 1, 1, 0), (1, 0, 0, -1, 0, 1, 1), (1, 0, 0, 0, 1, 1, 1)),
    halves=2,
)
"""Winograd's form of Strassen's algorithm; the terms as in `fpemu.schemes.strassen`"""


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
    """Return a struct Reduction in C++ for integers of `words` words times a factor; offset: less 2^(32 words - 1)."""

    def centred(x: int) -> int:
        return (x + p // 2) % p - p // 2

    packed = [sum((centred(256 ** (4 * w + j) * factor) & 255) << 8 * j for j in range(4)) for w in range(words)]
    start, inverse, center = quotient(p, 512 * 255 * words + 256)
    start += centred(-(1 << (32 * words - 1)) * factor) if offset else 0
    weights = ", ".join(f"{x}u" for x in packed)
    return f"{{{{{weights}}}, {start}, {float(inverse).hex()}f, {float(center).hex()}f, {-p if p < 256 else 0}}}"


def words_of(scheme: Ozaki2, form: Bilinear) -> int:
    """Return the 32-bit words of combinations of integers.

    |X| <= sqrt(P / 2) by norms; in accurate scaling at most sqrt(32 P) where X meets a number other than zero: the sums
    of leading bits are then at least those of X, which are 64 at most.
    """
    squares = scheme.basis().product * (32 if scheme.scaling == "accurate" else 1) * form.largest**2
    return next(words for words in (1, 2, 3) if words == 3 or squares < 4 ** (32 * words - 1))


def operands_source(scheme: Ozaki2, form: Bilinear = REAL) -> str:
    """Return kernels/residue_operands.cu for a scheme and an algorithm."""
    words = words_of(scheme, form)
    config = {"LARGEST": 2.0 ** (32 * words - 1) / form.largest, "EXACT": False}
    config |= {"NEAREST": scheme.rounding == "nearest", "ACCURATE": scheme.scaling == "accurate"}
    return _operands(len(scheme.basis().moduli), words, form, tuple(config.items()))


def exact_source(count: int, words: int, form: Bilinear = REAL) -> str:
    """Return the same for integers of so many words, modulo a number of moduli."""
    config = {"LARGEST": 0.0, "NEAREST": False, "ACCURATE": False, "EXACT": True}
    return _operands(count, words, form, tuple(config.items()))


@lru_cache(maxsize=64)
def _operands(count: int, words: int, form: Bilinear, config: tuple[tuple[str, Any], ...]) -> str:
    moduli = ALL[:count]
    P = math.prod(moduli)
    tables = [
        ", ".join(reduction(p, words, q, offset=True) for p, q in zip(moduli, factors, strict=True))
        for factors in ([pow(P // p, -1, p) for p in moduli], [1] * count)
    ]
    table = f"__constant__ Reduction REDUCTION[2][N] = {{{{{tables[0]}}}, {{{tables[1]}}}}};"
    lines = ['#include "byte_residues.cuh"', f"constexpr int N = {count};", table]
    lines += [compiler.struct({"WORDS": words, **dict(config)}, "Operands"), form.constants()]
    return "\n".join([*lines, source("residue_operands.cu")])


@lru_cache(maxsize=64)
def gemm_source(tile: Tile, output: str = "residues", *, lag: bool = False, long: bool = False) -> str:
    """Return kernels/byte_gemm.cu for "residues", "maxima" or "sums". long: K is beyond one interval."""
    config = {
        "ROW_BLOCKS": tile.rows // 128,
        "TILE_N": tile.columns,
        "STAGES": _STAGES,
        "MATH_WARPGROUPS": 2,
        "CLUSTER": tile.cluster,
        "OUTPUT": ("residues", "maxima", "sums").index(output),
        "LAG": lag,
        "INTERVAL": _INTERVAL if long and output == "residues" else 1 << 20,
    }
    lines = [compiler.struct(config), '#include "hopper.cuh"', '#include "byte_residues.cuh"']
    lines += [f"__constant__ Reduction REDUCTION[] = {{{', '.join(reduction(p, 1) for p in ALL)}}};"]
    product = wgmma("byte_product", tile.columns, int8=True, unsigned=output != "sums")
    return "\n".join([*lines, product, source("byte_gemm.cu")])


@lru_cache(maxsize=64)
def sum_source(
    count: int, tile: Tile, narrow: bool, form: Bilinear = REAL, *, once: bool = False, plain: bool = False
) -> str:
    """Return kernels/residue_sum.cu; once, plain: the fields of struct Tiles there."""
    config = {"TILE_M": tile.rows, "TILE_N": tile.columns, "NARROW": narrow, "ONCE": once, "PLAIN": plain}
    constants = (
        f"{definitions(count)}{total_definitions(count, once)}{form.constants()}{compiler.struct(config, 'Tiles')}"
    )
    return f"{constants}\n{source('residue_sum.cu')}"


# --- products of residues
class Planes:
    """Residues of one product after another, in panels of D: sizes, tile and workspace.

    form, count : the algorithm, and the number of moduli; leading : bytes of leading bits, where residues of D follow
    """

    def __init__(self, shape: Any, form: Bilinear, count: int, memory: Memory, leading: int = 0) -> None:
        self.shape, self.form, self.count = shape, form, form.terms * count
        (M, N, K), halves = shape, form.halves
        m, n, self.chunks = -(-M // halves), -(-N // halves), -(-K // (halves * CHUNK))
        self.tile = best_tile(m, n, self.count)
        work = form.terms * m * n * self.chunks * CHUNK
        self.lag = self.tile.rows == 256 and 1 < self.chunks <= _INTERVAL and work >= _LAGGING
        rows, columns, parts = M, N, 1
        held = max((w.nbytes[0] for (index, _), w in workspaces.items() if index == device.current()), default=0)
        most = min(WORKSPACE, (callers.free_bytes() + held) * 3 // 4)
        while (self._nbytes(rows, columns) > most and rows > 512) or rows > _TALLEST:
            parts *= 2
            rows = padded(-(-M // parts), 512)
        while self._nbytes(rows, columns) > most and columns > 768:
            columns = padded(-(-columns // 2), 192)
        self.rows, self.columns, width = rows, columns, self.chunks * CHUNK
        self.residues = [memory.block(self.count * width * -(-n // halves)) for n in (rows, columns)]
        self.bytes = memory.block(max(self.count * self._plane(rows, columns), leading))
        self.mu = [memory.block(4 * n) for n in (M, N)]

    def _plane(self, rows: int, columns: int) -> int:
        """Return the bytes of a term's residues modulo one number."""
        sizes = (-(-n // self.form.halves) for n in (rows, columns))
        M, N = (padded(n, to) for n, to in zip(sizes, (2 * self.tile.rows, self.tile.columns), strict=True))
        return M * N

    def _nbytes(self, rows: int, columns: int) -> int:
        operands = self.chunks * CHUNK * -(-(rows + columns) // self.form.halves)
        return self.count * (operands + self._plane(rows, columns))

    def steps(self, sides: list[Struct], end: Any, operands: Any, finish: Any) -> list[Step]:
        """Return the steps of a product; operands, finish: modules of the kernels before and after it."""
        M, N, _ = self.shape
        return [
            step
            for column in range(0, N, self.columns)
            for row in range(0, M, self.rows)
            for step in self._panel(sides, row, column, end, operands, finish)
        ]

    def _panel(self, sides: list[Struct], row: int, column: int, end: Any, operands: Any, finish: Any) -> list[Step]:
        (M, N, _), tile, halves = self.shape, self.tile, self.form.halves
        sizes, width = (min(self.rows, M - row), min(self.columns, N - column)), self.chunks * CHUNK
        m, n = (-(-size // halves) for size in sizes)
        panels, maps = [], []
        for side, first, size, block, planes, box in zip(
            sides, (row, column), sizes, (m, n), self.residues, (tile.rows, tile.columns // tile.cluster), strict=True
        ):
            again = side is sides[1] and row > 0  # the residues of B are there already
            panels.append(side.changed(first=first, count=0 if again else size, plane=block * width))
            maps.append(tensor_map(planes.pointer, block, self.count, self.chunks, box))
        out = {"residues": self.bytes, "planes": self.count, "terms": self.form.terms}
        product = gemm(tile, "residues", maps, m, n, self.chunks, out, lag=self.lag)
        plane = self._plane(*sizes)
        panel = {"tile_columns": -(-n // tile.columns), "M": m, "columns": n, "first_row": row, "first_column": column}
        panel |= {"rows": sizes[0], "all_columns": sizes[1]}
        arguments = (self.bytes, plane // 4, Struct(PANEL, panel), *self.mu, end)
        grid = (-(-n // tile.columns) * (tile.rows * tile.columns // 1024), -(-m // tile.rows))
        return [
            _rows(operands, "residue_bytes", panels, self.chunks, max(m, n) * len(self.form.A[0])),
            product,
            finish.step("residue_sum", grid, 256, *arguments, overlap=device.overlaps_launches()),
        ]


def _rows(module: Any, kernel: str, sides: list[Struct], chunks: int, rows: int) -> Launch:
    """Return the launch of a kernel for rows of A and columns of B; rows: of all blocks together."""
    blocks = -(-rows // _SIDE_ROWS)
    grid = (blocks, min(chunks, max(1, -(-_BLOCKS // blocks))), 2)
    launch: Launch = module.step(kernel, grid, 256, *sides, overlap=device.overlaps_launches())
    return launch


def gemm(tile: Tile, output: str, maps: Any, M: int, N: int, chunks: int, out: Any, *, lag: bool = False) -> Launch:
    """Return the launch of the products of all planes, with the fields `out` of its structure."""
    text = gemm_source(tile, output, lag=lag, long=chunks > _INTERVAL)
    module, shared = modules.module(text, "byte_gemm.cu"), _STAGES * (tile.rows + tile.columns) * CHUNK + 1024
    clusters = module.clusters("byte_gemm", tile.cluster, 384, shared)
    blocks = min(clusters, tile.count(M, N) * out["planes"]) * tile.cluster
    product = Struct(PRODUCT, {"terms": 1} | out | {"M": M, "N": N, "chunks": chunks, "group": tile.group})
    more: dict[str, Any] = {"shared": shared, "cluster": tile.cluster, "overlap": device.overlaps_launches()}
    return module.step("byte_gemm", blocks, 384, *maps, product, **more)


def tensor_map(pointer: Any, rows: int, planes: int, chunks: int, box: int, strides: Any = None) -> TensorMap:
    """Return the map of planes of bytes; strides: bytes between planes, chunks and rows, else chunk after chunk."""
    row = CHUNK * rows
    return TensorMap(pointer, 1, (planes, chunks, rows, CHUNK), strides or (row * chunks, row, CHUNK), (box, CHUNK))


# --- products of slices
def slice_products(a: Slices, b: Slices, terms: Sequence[Term], T: Products, first: int, rows: int) -> list[Launch]:
    """Return the launches of the products of int8 slices, the sums of each term one after another in T.

    first, rows : rows of A
    """
    result, chunks, N = list[Launch](), a.width // CHUNK, b.all_rows
    tile = best_tile(rows, N, min(len(terms), _PAIRS))
    maps = []
    for X, row, count, box in ((a, first, rows, tile.rows), (b, 0, N, tile.columns // tile.cluster)):
        pitch = X.count * X.width
        maps.append(tensor_map(X.data.pointer + row * pitch, count, X.count, chunks, box, (X.width, CHUNK, pitch)))
    for start in range(0, len(terms), _PAIRS):
        some = terms[start : start + _PAIRS]
        out: dict[str, Any] = {"sums": T.stack(start).pointer, "stride": T.stride, "pitch": T.pitch}
        p, q, length, _ = zip(*some, strict=True)
        out |= {"planes": len(some), "a": p, "b": [b.count - 1 - each for each in q], "length": length}
        result.append(gemm(tile, "sums", maps, rows, N, chunks, out))
    return result


# --- calls
def supported(call: Call) -> bool:
    """Whether `steps` computes a call: on Hopper, by a rule whose conditions hold for any operands."""
    scheme = call.scheme
    if not isinstance(scheme, Ozaki2) or not _runs(call):
        return False
    keeps_bits = scheme.basis().product > call.A.shape[-1] << 18  # of every row and column
    return scheme.scaling != "fast" and keeps_bits


def supports_exact(call: Call) -> bool:
    """Whether `exact` may compute a call: mode CR, whose result does not depend on the slices."""
    scheme = call.scheme
    plain = isinstance(scheme, Ozaki) and (scheme.bits, scheme.exponents, scheme.memory) == (None, "slice", None)
    return plain and scheme.rounds_once and _runs(call)


def _runs(call: Call) -> bool:
    if from_data(call):
        return False
    on_hopper = call.spec is not None and call.spec.architecture == "hopper" and device.arch() == "sm_90a"
    return on_hopper and call.A.shape[-1] <= 1 << 18 and math.prod(call.result_shape[:-2]) <= _MOST


def from_data(call: Call) -> bool:
    """Whether the scheme of a call, or its operands, follow from the values of the operands first."""
    return bool(getattr(call.scheme, "target", None) is not None or getattr(call.scheme, "inside_scaling", None))


def _form(call: Call) -> Bilinear:
    if call.form:
        return COMPLEX
    levels, sizes = getattr(call.scheme, "winograd", False), (*call.shape[-2:], call.A.shape[-1])
    return WINOGRAD if (min(sizes) >= _WINOGRAD if levels is None else levels) else REAL


def products(layouts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return A, B, C or None, and D of each product of a batch."""
    lead = layouts["D"].shape[:-2]
    stacks = ([None] * math.prod(lead) if X is None else stack(X, lead) for X in layouts.values())
    return [dict(zip("ABCD", each, strict=True)) for each in zip(*stacks, strict=True)]


def _sizes(layouts: dict[str, Any]) -> tuple[int, int, int]:
    return (*layouts["D"].shape[-2:], layouts["A"].shape[-1])


def _side(X: Matrix, form: Bilinear, chunks: int, **values: Any) -> Struct:
    """Return struct Side of A or of B, transposed, whose rows are those of X."""
    (rows, K), (row, step), parts = X.shape, X.strides, form.parts
    common: dict[str, Any] = {"K": parts * K, "half_k": parts * chunks * CHUNK, "rows": rows, "narrow": _narrow(X)}
    return Struct(_SIDE, common | {"X": X.pointer, "row_step": parts * row, "step": parts * step} | values)


def _narrow(X: Matrix) -> bool:
    """Whether the numbers of a matrix are fp32."""
    return X.dtype in (np.float32, np.complex64)


def _end(call: Call, form: Bilinear, sides: list[Struct], matrices: dict[str, Any]) -> Struct:
    """Return struct End of a product."""
    end: dict[str, Any] = {"K": sides[0]["K"], "has_c": matrices["C"] is not None}
    end |= {"rows": sides[0]["special"], "columns": sides[1]["special"], "nan": call.scheme.nan_code(call.spec)}
    for name, X in matrices.items():
        if X is not None:
            row, column = (form.parts * step for step in X.strides)
            view = {"at": X.pointer, "row": row, "column": column, "narrow": _narrow(X), "complex": form.parts == 2}
            end[name] = Struct(VIEW, view)
    for name, scalar in (("alpha", call.alpha), ("beta", call.beta)):
        end |= {name: scalar.real, f"{name}_imaginary": scalar.imag}
    return Struct(END, end)


# --- ozaki2
def steps(call: Call, layouts: dict[str, Any], memory: Memory) -> list[Step]:
    """Return the steps of a call for A, B, C or None, and D at addresses in their regions."""
    scheme, (M, N, K) = call.scheme, _sizes(layouts)
    assert isinstance(scheme, Ozaki2)
    form, basis, accurate, result = _form(call), scheme.basis(), scheme.scaling == "accurate", list[Step]()
    count, parts, chunks = len(basis.moduli), form.parts, -(-form.parts * K // CHUNK)
    leading = chunks * CHUNK * (M + parts * N) if accurate else 0
    planes = Planes((M, N, K), form, count, memory, leading)
    operands = modules.module(operands_source(scheme, form), "residue_operands.cu")
    text = sum_source(count, planes.tile, scheme.operand.name == "fp32", form)
    h, g = scaled_limit(basis.product, parts * K, scheme.scaling, scheme.rounding == "nearest")
    for matrices in products(layouts):
        sides = []
        for i, X in enumerate((matrices["A"], transposed(matrices["B"]))):
            per_row = (*_PER_ROW, ("maxima", 4 * parts))
            values: dict[str, Any] = {name: memory.cleared(size * X.shape[0]) for name, size in per_row}
            values |= {"h": h, "g": g, "leading": planes.bytes.pointer + i * chunks * CHUNK * M}
            sides.append(_side(X, form, planes.chunks, residues=planes.residues[i], mu=planes.mu[i], **values))
        result.append(_rows(operands, "summaries", sides, chunks, max(M, N)))
        if accurate:
            result.append(_rows(operands, "leading_bits", sides, chunks, max(M, N)))
            tile = best_tile(M, parts * N, 1)
            sizes = (M, tile.rows), (parts * N, tile.columns // tile.cluster)
            maps = [tensor_map(x["leading"], n, 1, chunks, box) for x, (n, box) in zip(sides, sizes, strict=True)]
            out = {"row_maxima": sides[0]["maxima"], "column_maxima": sides[1]["maxima"], "planes": 1}
            result.append(gemm(tile, "maxima", maps, M, parts * N, chunks, out))
        end = _end(call, form, sides, matrices)
        result += planes.steps(sides, end, operands, modules.module(text, "residue_sum.cu"))
    return result


# --- mode CR: numbers as integers in units of the least places of rows, by as many moduli as their products need
def _exact_sides(layouts: dict[str, Any], form: Bilinear, memory: Memory) -> tuple[Any, list[list[Struct]]]:
    """Return the block of the numbers of all rows, four extents first, and both sides of each product.

    It is the first block of a memory, so that two plans have it at the same address.
    """
    each, per_row = products(layouts), (*_PER_ROW, ("maxima", 4))
    rows = [padded(n, 4) for n in _sizes(layouts)[:2]]
    block = memory.block(64 + sum(size for _, size in per_row) * len(each) * sum(rows))
    at, result, chunks = block.pointer + 64, [], -(-_sizes(layouts)[2] // CHUNK)
    for matrices in each:
        sides = []
        for i, X in enumerate((matrices["A"], transposed(matrices["B"]))):
            values: dict[str, Any] = {"extents": block.pointer + 8 * i}
            for name, size in per_row:
                values[name], at = at, at + size * rows[i]
            sides.append(_side(X, form, chunks, **values))
        result.append(sides)
    return block, result


def extents(call: Call, layouts: dict[str, Any], memory: Memory) -> tuple[list[Step], Any]:
    """Return the steps that find bits of integers and of sums of squares, of A and of B, and their address."""
    form, (M, N, K) = _form(call), _sizes(layouts)
    block, each = _exact_sides(layouts, form, memory)
    module = modules.module(exact_source(2, 3, form), "residue_operands.cu")
    result: list[Step] = [Fill(block.pointer, 0, block.nbytes)]
    for sides in each:
        result.append(_rows(module, "summaries", sides, -(-form.parts * K // CHUNK), max(M, N)))
    return result, block.pointer


def moduli_and_words(call: Call, found: Sequence[int]) -> tuple[int, int] | None:
    """Return the numbers of moduli, and of 32-bit words of an integer, for four extents; None: slices are for these."""
    count, longest = moduli_for((found[1] + found[3] + 1) // 2), max(found[0], found[2]) + _form(call).largest - 1
    return None if count is None or longest > _LONGEST else (count, max(2, longest // 32 + 1))


def exact(call: Call, layouts: dict[str, Any], memory: Memory, count: int, words: int) -> list[Step]:
    """Return the steps after `extents`: the exact product, rounded once."""
    form, shape, result = _form(call), _sizes(layouts), list[Step]()
    _, each = _exact_sides(layouts, form, memory)
    planes = Planes(shape, form, count, memory)
    operands = modules.module(exact_source(count, words, form), "residue_operands.cu")
    plain = call.C is None and math.isfinite(call.alpha) and math.frexp(call.alpha)[0] == 0.5
    narrow = call.scheme.operand.name == "fp32"
    finish = modules.module(sum_source(count, planes.tile, narrow, form, once=True, plain=plain), "residue_sum.cu")
    for sides, matrices in zip(each, products(layouts), strict=True):
        own = [x.changed(residues=planes.residues[i], mu=planes.mu[i]) for i, x in enumerate(sides)]
        result += planes.steps(own, _end(call, form, own, matrices), operands, finish)
    return result
