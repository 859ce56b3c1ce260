"""Every scheme that multiplies words, on mma.sync: the kernels, and which one runs what.

``kernels/split_gemm.cu`` loads fp32 operands, splits them on their way into shared memory, multiplies the words and
adds their products in the order of the scheme's plan. For large products, where each word is read many times,
``kernels/split_gemm_async.cu`` does the same with words that were split once, in global memory; on Hopper and later
``kernels/split_gemm_tma.cu`` loads these words by TMA. Orders that these kernels do not support, and plans whose sums
do not fit into registers, run in `fpemu.gpu.gemm.mma_sync.general`, which supports every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.gemm import splitting
from fpemu.gpu.gemm.base import Kernel, LaunchCache, Operand, Prepared
from fpemu.gpu.gemm.base import layout as place
from fpemu.gpu.gemm.mma_sync import source as text
from fpemu.gpu.gemm.mma_sync.general import GeneralKernel, batches, describe, layout
from fpemu.gpu.gemm.mma_sync.source import Fused, Tile
from fpemu.gpu.gemm.splitting import Splitter
from fpemu.gpu.runtime import device, launches, modules, properties
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.schemes.base import Scheme
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.split_scheme import SplitScheme

_SIDE = 512  # of D, from which on words in memory pay
_WORDS = np.dtype([("a", "<u8", (4,)), ("b", "<u8", (4,)), ("a_pitch", "<i8"), ("b_pitch", "<i8")])
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
    general: bool = False,
) -> Kernel | None:
    """The mma.sync kernel for products of a shape (M, N, K), or None where mma.sync does not have the arithmetic.

    tile : default by LE-GEMM's tile model
    pipeline : False fetches, splits and multiplies one after another, to measure the pipeline
    words : whether operands are split in memory first; default: where that is faster, as the tile has it, or where A
        and B are split by different rules
    general : True selects the kernels for any order although one kernel would do
    """
    if spec is None or not scheme.runs_by_plan:
        return None
    assert isinstance(scheme, SplitScheme)
    row = stand_in(spec)
    if row is None and spec.instruction != "wgmma":
        return None
    M, N, K = shape
    lowering = scheme.lowering(spec if row is None else row, order)
    how = None if general or row is None else text.fused(lowering, text.BYTES[str(row.a_format)], K)
    if splitting.differ(lowering.words):
        words = True
    if words is None:
        words = tile.stages > 0 if tile is not None else pipeline and pays(M, N)
    known = [] if how is None or row is None else tiles(lowering, row, how, words=words)
    if not known:
        if tile is not None:
            raise InputError(f"{scheme.name}: no tile fits this order or so many sums; leave tile= out")
        return GeneralKernel(scheme, spec, spec if row is None else row, order)
    assert how is not None
    assert row is not None
    if tile is None:
        tile = choose(known, M, N)
    elif (tile.M, tile.N) not in [(t.M, t.N) for t in known]:
        raise InputError(f"{scheme.name}: no tile {tile}; it has {', '.join(map(str, known))}")
    if words:
        return (BulkKernel if tile.bulk else WordsKernel)(scheme, spec, row, order, how, tile)
    return FusedKernel(scheme, spec, row, order, how, tile if pipeline else replace(tile, pipeline=False))


def pays(M: int, N: int) -> bool:
    """Whether a split in memory pays off: where each word is read several times."""
    return min(M, N) >= _SIDE


def stand_in(spec: MmaSpec) -> MmaSpec | None:
    """The mma.sync row of the same architecture and arithmetic; None if there is none."""
    fields = (
        "a_format",
        "b_format",
        "c_format",
        "d_format",
        "k",
        "block",
        "arithmetic",
        "F",
        "E0",
        "final",
        "fraction_bits",
        "nan_code",
    )
    for row in catalog.rows():
        same = all(getattr(row, f) == getattr(spec, f) for f in fields) and row.architecture == spec.architecture
        if same and row.instruction == "mma" and str(row.a_format) in text.BYTES and row.architecture not in text.OLD:
            return row
    return None


def tiles(lowering: Lowering, spec: MmaSpec, how: Fused, *, words: bool = False) -> list[Tile]:
    """The tiles that a lowering can have, largest first; words: those of kernels that read words from memory."""
    most, size = properties.most_shared(), text.BYTES[str(spec.a_format)]
    if words:
        return text.copying_tiles(lowering, size, how, most, splitting.from_hopper_on())
    return text.splitting_tiles(lowering, size, how, most)


def choose(known: list[Tile], M: int, N: int) -> Tile:
    """The tile with the most operations per byte (LE-GEMM, Equation 15), times the fraction of useful work.

    Blocks run in rounds, one per multiprocessor; entries outside D and idle multiprocessors of the last round are not
    useful. Of equal tiles the smallest: its blocks share a multiprocessor.
    """

    def value(tile: Tile) -> float:
        rounds = -(-(-(-M // tile.M) * -(-N // tile.N)) // properties.multiprocessors())
        share = M * N / (rounds * properties.multiprocessors() * tile.M * tile.N)
        return 3 * tile.M * tile.N / (2 * (tile.M + tile.N)) * share  # LE-GEMM, Eq. 15: operations per byte

    return max(reversed(known), key=value)


class FusedKernel(Kernel):
    """One kernel that reads fp32 operands and writes D.

    With on_range="raise" operands have neither exponents nor special rows: the kernel then omits both.
    """

    words_in_memory = False
    recordable = True

    def __init__(
        self, scheme: SplitScheme, spec: MmaSpec, row: MmaSpec, order: KOrder | None, how: Fused, tile: Tile
    ) -> None:
        self.scheme: SplitScheme = scheme
        self.spec, self.order, self.tile = spec, order, tile
        self.name = f"mma {tile}"
        self.row, self.how, self.lowering = row, how, scheme.lowering(row, order)
        self._shared = tile.shared(text.words_at_a_time(self.lowering, how), text.BYTES[str(row.a_format)])
        # two blocks on a multiprocessor may come to lie on one that became free first, while others idle
        self._overlap = 2 * self._shared > properties.most_shared()
        self._splitter = Splitter(scheme.rules(), scheme.scaling, words=self.words_in_memory, overlap=self._overlap)
        self._launches = LaunchCache()

    def prepare_operands(self, operands: Sequence[Operand], on_range: str) -> list[Prepared]:
        return self._splitter.prepare(operands, on_range)

    def source(self, layouts: tuple[str, str], scaled: bool, special: bool) -> str:
        """The kernel's text; parameters as those of `source.source`."""
        return text.source(self.lowering, self.row, self.how, self.tile, layouts, scaled, special)

    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        if self.how.longest is not None and a.source.shape[-1] > self.how.longest:
            raise InputError(f"{self.name} supports K up to {self.how.longest}, not {a.source.shape[-1]}")
        scalars = np.array([alpha, beta], np.float32).tobytes()
        key = (_launch_key(a), _launch_key(b), place(D), place(C), scalars)
        if key not in self._launches:
            self._launches.keep(key, self._launch(a, b, D, alpha, beta, C))
        launch = self._launches[key]
        if launch is not None:
            launch.queue()

    def _launch(
        self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None
    ) -> launches.Launch | None:
        """What multiplies these operands; None: D is empty."""
        M, N = D.shape[-2:]
        blocks = -(-M // self.tile.M) * -(-N // self.tile.N) * prod(D.shape[:-2])
        if not blocks:
            return None
        problem = describe(self, a, b, D, alpha, beta, C)
        where, table = batches(a.source, b.source, C, D), None
        if where is not None:
            table = device.Buffer.of(where)
            problem["batches"] = table.pointer
        scaled, special = (
            x is not None or y is not None for x, y in ((a.exponents, b.exponents), (a.special, b.special))
        )
        layouts = layout(a.source, "A"), layout(b.source, "B")
        module = _module(self.source(layouts, scaled, special))
        return module.prepare(
            "split_gemm",
            blocks,
            self.tile.threads,
            problem,
            *self._words(a, b),
            shared=self._shared,
            overlap=self._overlap and splitting.overlaps(blocks),
            keep=table,
        )

    def _words(self, a: Prepared, b: Prepared) -> tuple[NDArray[Any], ...]:
        """Further parameters of the kernel."""
        return ()


class WordsKernel(FusedKernel):
    """The same sums from words in memory, which `fpemu.gpu.gemm.splitting` stores first."""

    words_in_memory = True

    def source(self, layouts: tuple[str, str], scaled: bool, special: bool) -> str:
        """The kernel's text, which depends on `scaled` alone."""
        return super().source(("ALONG_K", "ALONG_K"), scaled, False)

    def _words(self, a: Prepared, b: Prepared) -> tuple[NDArray[Any], ...]:
        words = np.zeros(1, _WORDS)
        size = text.BYTES[str(self.row.a_format)]
        for name, x in (("a", a), ("b", b)):
            words[name][0, : len(x.words)] = [word.pointer for word in x.words]
            words[f"{name}_pitch"] = x.pitch * size
        return (words,)


class BulkKernel(WordsKernel):
    """The same with words loaded by TMA: on Hopper and later."""

    def _words(self, a: Prepared, b: Prepared) -> tuple[NDArray[Any], ...]:
        maps_of, size = np.zeros((2, splitting.MOST_WORDS, 16), np.uint64), text.BYTES[str(self.row.a_format)]
        for maps, x, height in zip(maps_of, (a, b), (self.tile.M, self.tile.N), strict=True):
            lines, row = x.source.count * x.rows, x.pitch * size
            for i, word in enumerate(x.words):
                maps[i] = launches.tensor_map(
                    word.pointer, size, (1, lines, x.pitch), (lines * row, row), (height, self.tile.K)
                )
        return (maps_of,)


def _launch_key(x: Prepared) -> Any:
    """The values of an operand that a launch depends on."""
    more = [None if buffer is None else buffer.pointer for buffer in (x.exponents, x.special)]
    return place(x.source), tuple([word.pointer for word in x.words]), x.pitch, *more


@lru_cache(maxsize=64)
def _module(source: str) -> modules.Module:
    return modules.Module(source, name="split_gemm.cu")
