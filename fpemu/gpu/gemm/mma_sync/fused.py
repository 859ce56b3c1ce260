"""Every scheme that multiplies words, on mma.sync: the kernels, and which one runs what.

``kernels/split_gemm.cu`` loads fp32 operands, splits them on their way into shared memory, multiplies the words and
adds their products in the order of the scheme's plan. For large products, where each word is read many times,
``kernels/split_gemm_async.cu`` does the same with words that were split once, in global memory; on Hopper and later
``kernels/split_gemm_tma.cu`` loads these words by TMA. Orders that these kernels do not support, and plans whose sums
do not fit into registers, run in `fpemu.gpu.gemm.mma_sync.general`, which supports every order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.gemm import splitting
from fpemu.gpu.gemm.base import Kernel, Output, Prepared
from fpemu.gpu.gemm.mma_sync import source as text
from fpemu.gpu.gemm.mma_sync.general import GeneralKernel, batches, layout, problem
from fpemu.gpu.gemm.mma_sync.source import Fused, Tile
from fpemu.gpu.gemm.splitting import Splitter
from fpemu.gpu.runtime import device, modules
from fpemu.gpu.runtime.steps import Memory, Step, Struct, TensorMap, fields
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.schemes.base import Scheme
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.words import of_operand

_SIDE = 512  # of D, from which on words in memory pay: each is read several times
_ARITHMETIC = "architecture a_format b_format c_format d_format k block arithmetic F E0 final fraction_bits nan_code"
_WORDS = fields("4u8 a b, i8 a_pitch b_pitch")
"""The struct Words of ``kernels/split_gemm_async.cu``"""


def kernel(
    scheme: Scheme,
    spec: MmaSpec | None,
    shape: tuple[int, int, int],
    order: KOrder | None = None,
    *,
    tile: Tile | None = None,
    pipeline: bool = True,
    words: bool | None = None,
) -> Kernel | None:
    """The mma.sync kernel for products of a shape (M, N, K), or None where mma.sync does not have the arithmetic.

    tile : default by LE-GEMM's tile model
    pipeline : False fetches, splits and multiplies one after another, to measure the pipeline
    words : whether operands are split in memory first; default: where that is faster, as the tile has it, or where A
        and B are split by different rules
    """
    if spec is None or not scheme.runs_by_plan:
        return None
    assert isinstance(scheme, SplitScheme)
    row = stand_in(spec)
    if row is None and spec.instruction != "wgmma":
        return None
    M, N, K = shape
    lowering = scheme.lowering(spec if row is None else row, order)
    how = None if row is None else text.fused(lowering, text.BYTES[str(row.a_format)], K)
    if of_operand(lowering.words, "A") != of_operand(lowering.words, "B"):
        words = True
    if words is None:
        words = tile.stages > 0 if tile is not None else pipeline and min(M, N) >= _SIDE
    known = [] if how is None or row is None else tiles(lowering, row, how, words=words)
    if how is None or row is None or not known:
        if tile is not None:
            raise InputError(f"{scheme.name}: no tile fits this order or so many sums; leave tile= out")
        return GeneralKernel(scheme, spec, spec if row is None else row, order)
    if tile is None:
        tile = choose(known, M, N)
    elif (tile.M, tile.N, tile.stages > 0) not in [(t.M, t.N, t.stages > 0) for t in known]:
        raise InputError(f"{scheme.name}: no tile {tile}; it has {', '.join(map(str, known))}")
    return FusedKernel(scheme, spec, row, order, how, tile if pipeline or words else replace(tile, pipeline=False))


def stand_in(spec: MmaSpec) -> MmaSpec | None:
    """The mma.sync row of the same architecture and arithmetic; None if there is none."""
    for row in catalog.rows():
        issued = row.instruction == "mma" and str(row.a_format) in text.BYTES and row.architecture not in text.OLD
        if issued and all(getattr(row, name) == getattr(spec, name) for name in _ARITHMETIC.split()):
            return row
    return None


def tiles(lowering: Lowering, spec: MmaSpec, how: Fused, *, words: bool = False) -> list[Tile]:
    """The tiles that a lowering can have, largest first; words: those of kernels that read words from memory."""
    most, size = device.most_shared(), text.BYTES[str(spec.a_format)]
    if words:
        return text.copying_tiles(lowering, size, how, most, device.overlaps_launches())
    return text.splitting_tiles(lowering, size, how, most)


def choose(known: list[Tile], M: int, N: int) -> Tile:
    """The tile with the most operations per byte (LE-GEMM, Equation 15), times the fraction of useful work.

    Blocks run in rounds, one per multiprocessor; entries outside D and idle multiprocessors of the last round are not
    useful. Of equal tiles the smallest: its blocks share a multiprocessor.
    """

    def value(tile: Tile) -> float:
        rounds = -(-(-(-M // tile.M) * -(-N // tile.N)) // device.multiprocessors())
        share = M * N / (rounds * device.multiprocessors() * tile.M * tile.N)
        return 3 * tile.M * tile.N / (2 * (tile.M + tile.N)) * share  # LE-GEMM, Eq. 15: operations per byte

    return max(reversed(known), key=value)


class FusedKernel(Kernel):
    """One kernel that reads fp32 operands, or words that `fpemu.gpu.gemm.splitting` stored first, and writes D.

    With on_range="raise" operands have neither exponents nor special rows: the kernel then omits both.
    """

    def __init__(
        self, scheme: SplitScheme, spec: MmaSpec, row: MmaSpec, order: KOrder | None, how: Fused, tile: Tile
    ) -> None:
        self.scheme: SplitScheme = scheme
        self.spec, self.order, self.tile = spec, order, tile
        self.name = f"mma {tile}"
        self.row, self.how, self.lowering = row, how, scheme.lowering(row, order)
        self._shared = tile.shared(text.words_at_a_time(self.lowering, how), text.BYTES[str(row.a_format)])
        # two blocks on a multiprocessor may come to lie on one that became free first, while others idle
        self._overlap = 2 * self._shared > device.most_shared()
        self.splitter = Splitter(scheme.rules(), scheme.scaling, words=tile.stages > 0, overlap=self._overlap)

    def source(self, layouts: tuple[str, str], scaled: bool, special: bool) -> str:
        """The kernel's text; parameters as those of `source.source`, of which words in memory need `scaled` alone."""
        if self.tile.stages:
            layouts, special = ("ALONG_K", "ALONG_K"), False
        return text.source(self.lowering, self.row, self.how, self.tile, layouts, scaled, special)

    def multiply(self, a: Prepared, b: Prepared, end: Output, memory: Memory) -> list[Step]:
        tile, table = self.tile, batches(a.source, b.source, end)
        blocks = -(-a.rows // tile.M) * -(-b.rows // tile.N) * end.count
        if not blocks:
            return []
        operands = problem(self, a, b, end, None if table is None else device.Buffer.of(table))
        scaled = a.exponents is not None or b.exponents is not None
        special = a.special is not None or b.special is not None
        source = self.source((layout(a.source, "A"), layout(b.source, "B")), scaled, special)
        module = modules.module(source, "split_gemm.cu")
        overlap, more = self._overlap and splitting.overlaps(blocks), self._words(a, b)
        launch = module.step("split_gemm", blocks, tile.threads, operands, *more, shared=self._shared, overlap=overlap)
        return [launch]

    def _words(self, a: Prepared, b: Prepared) -> list[Any]:
        """The kernel's parameter for words in memory."""
        size = text.BYTES[str(self.row.a_format)]
        if not self.tile.bulk:
            pitches = {"a_pitch": a.pitch * size, "b_pitch": b.pitch * size}
            return [Struct(_WORDS, {"a": a.words, "b": b.words} | pitches)] if self.tile.stages else []
        maps: list[Any] = []
        for x, height in ((a, self.tile.M), (b, self.tile.N)):
            lines, row = x.source.count * x.rows, x.pitch * size
            shape, strides, box = (1, lines, x.pitch), (lines * row, row), (height, self.tile.K)
            maps += [TensorMap(word.pointer, size, shape, strides, box) for word in x.words]
            maps.append(np.zeros(16 * (splitting.MOST_WORDS - len(x.words)), np.uint64))  # a map has 128 bytes
        return [maps]
