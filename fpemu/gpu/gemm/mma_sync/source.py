"""A scheme's rules and plan as the compile-time constants of ``kernels/split_gemm*.cu``.

`fused` says how a plan runs in one kernel, or that it does not; `source` and `general_source` write the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fpemu.gpu.gemm import splitting
from fpemu.gpu.gemm.mma_sync import tiles
from fpemu.gpu.gemm.mma_sync.tiles import Tile
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler
from fpemu.mma.spec import MmaSpec
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.words import Join

BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
OLD = ("volta", "turing")  # before sm_80
LAYOUTS = ("ALONG_ROWS", "ALONG_K", "ALONG_K_BY_FOUR")


@dataclass(frozen=True)
class Fused:
    """A plan as one kernel runs it.

    Parameters
    ----------
    turn : int
        Products that share an accumulator take turns after so many k.
    passes : tuple of int
        In which pass over K a product runs.
    promote : tuple of int
        For each group, after how many k it is promoted; 0: never.
    stretch : int
        Length in k of a stretch: whole turns, and whole intervals or a part of one.
    sums : int
        Accumulators and totals that live all along.
    longest : int or None
        The K up to which it is so; None: any.
    """

    turn: int
    passes: tuple[int, ...]
    promote: tuple[int, ...]
    stretch: int
    sums: int
    longest: int | None = None


def fused(lowering: Lowering, size: int, K: int) -> Fused | None:
    """How a lowering runs in one kernel on words of `size` bytes; None if its order needs `general_source`."""
    order = lowering.order
    if order.split is not None or (order.tile is not None and order.tile < K):
        return None
    how = _fused(lowering, size)
    if how is not None and order.tile is None:
        return how
    how = _fused(lowering.within(K), size) if how is None else how
    return None if how is None else replace(how, longest=K)


def _fused(lowering: Lowering, size: int) -> Fused | None:
    accumulators, k = lowering.accumulators, lowering.k
    intervals, turns = [], set()
    for acc in accumulators:
        interval = lowering.block or acc.interval
        many = len(acc.products) > 1
        turn = min((x for x in (acc.turn, interval) if x), default=None) if many else None
        if (interval or 0) % k or (turn or 0) % k or (turn and interval and interval % turn):
            return None
        intervals.append(interval or 0)
        if many or lowering.block:
            turns.add(turn or lowering.block)
    if len(turns) > 1:
        return None
    chosen = turns.pop() if turns else k
    if chosen is None and any(p and len(acc.products) > 1 for p, acc in zip(intervals, accumulators, strict=True)):
        return None
    passes = [0] * len(lowering.products)
    if chosen is None:
        for acc in accumulators:
            for number, product in enumerate(acc.products):
                passes[lowering.products.index(product)] = number
    turn = chosen or k
    least = max(turn, 64 if size == 1 else 32)
    stretch = next(iter(_stretches(least, turn, intervals)), None)
    if stretch is None:
        return None
    lasting = sum(not _short(p, len(acc.products), turn) for p, acc in zip(intervals, accumulators, strict=True))
    totals = 1 if lowering.block else sum(p > 0 for p in intervals)
    return Fused(turn, tuple(passes), tuple(intervals), stretch, lasting + totals)


def _stretches(least: int, turn: int, intervals: Sequence[int]) -> list[int]:
    """Lengths in k from `least` on that hold whole turns, and whole intervals or a part of one."""
    return [
        s
        for s in (least, 2 * least, 4 * least)
        if s <= 256 and s % turn == 0 and all(p % s == 0 or s % p == 0 for p in intervals if p)
    ]


def _short(interval: int, products: int, turn: int) -> bool:
    """Whether a group's accumulator begins and ends within one turn."""
    return 0 < interval <= turn and products == 1


def splitting_tiles(lowering: Lowering, size: int, how: Fused, shared: int) -> list[Tile]:
    """The tiles that a plan can have where loads split, largest first: within the registers, and `shared` bytes."""
    short = any(0 < p <= how.turn for p in how.promote)
    return tiles.splitting(how.stretch, how.sums, words_at_a_time(lowering, how), size, short, shared)


def copying_tiles(lowering: Lowering, size: int, how: Fused, shared: int, bulk: bool = False) -> list[Tile]:
    """The same where words come from memory: rows of 128 bytes in shared memory are best, then longer, then shorter.

    bulk: TMA brings them, but where a sum is promoted after every instruction: threads that copy are faster there.
    """
    known = _stretches(max(how.turn, 64 // size), how.turn, how.promote)
    stretches = sorted(known, key=lambda K: (K * size < 128, K))
    return tiles.copying(
        stretches, how.sums, words_at_a_time(lowering, how), size, shared, bulk and lowering.k not in how.promote
    )


def words_at_a_time(lowering: Lowering, how: Fused) -> tuple[int, int]:
    """How many words of A and of B any pass over K needs."""
    passes = [{p for p, at in zip(lowering.products, how.passes, strict=True) if at == n} for n in how.passes]
    return max(len({i for i, _ in p}) for p in passes), max(len({j for _, j in p}) for p in passes)


# --- texts
def source(
    lowering: Lowering, spec: MmaSpec, how: Fused, tile: Tile, layouts: tuple[str, str], scaled: bool, special: bool
) -> str:
    """The text of the kernel that splits, multiplies and writes D.

    Parameters
    ----------
    layouts : two of LAYOUTS
        Of A and of B.
    scaled : bool
        Whether rows have exponents.
    special : bool
        Whether entries may be NaN or infinite, or too large for their words.
    """
    numbers = {
        "M": tile.M,
        "N": tile.N,
        "K": tile.K,
        "WARP_M": tile.warp_m,
        "WARP_N": tile.warp_n,
        "PIECES": tile.pieces,
        "AHEAD": tile.ahead,
        "BLOCKS": tile.blocks,
        "STAGES": tile.stages,
    }
    return "".join(
        (
            f"#define MMA_SYNC {mma_text(spec)}\n#define FPEMU_CUTS_LARGE {int(special)}\n",
            _head(lowering, spec),
            _plan(lowering, spec, how),
            "enum Layout { ALONG_ROWS, ALONG_K, ALONG_K_BY_FOUR };  "
            "// where neighbours in memory lie; by four: aligned\n",
            f"struct Tile {{\n  static constexpr int {_constants(numbers)};\n"
            f"  static constexpr bool PIPELINE = {_bool(tile.pipeline)};\n"
            f"  static constexpr bool SCALED = {_bool(scaled)}, SPECIAL = {_bool(special)};\n"
            f"  static constexpr Layout LAYOUT_A = {layouts[0]}, LAYOUT_B = {layouts[1]};\n}};\n",
            compiler.kernel_source(f"split_gemm{'_tma' if tile.bulk else '_async' if tile.stages else ''}.cu"),
        )
    )


def general_source(lowering: Lowering, spec: MmaSpec) -> str:
    """The text of the kernels that run any order."""
    how = Fused(spec.k, (0,) * len(lowering.products), (0,) * len(lowering.accumulators), spec.k, 0)
    return "".join(
        (
            instructions.prelude(spec),
            _head(lowering, spec),
            _plan(lowering, spec, how),
            compiler.kernel_source("split_gemm_any_order.cu"),
        )
    )


def _head(lowering: Lowering, spec: MmaSpec) -> str:
    half = str(spec.d_format) == "fp16"
    return "".join(
        (
            '#include "split.cuh"\n#include "carrier.cuh"\n',
            f"#define FPEMU_HALF_SUMS {int(half)}\n",
            splitting.definition(lowering.words),
        )
    )


def _plan(lowering: Lowering, spec: MmaSpec, how: Fused) -> str:
    bands, products, wise = [acc.band for acc in lowering.accumulators], lowering.products, lowering.block is not None
    totals = np.cumsum([0, *(p > 0 for p in how.promote)])
    size = BYTES[str(spec.a_format)]
    numbers = {
        "WORDS": len(lowering.words),
        "PRODUCTS": len(products),
        "GROUPS": len(bands),
        "BANDS": 1 + max(bands),
        "PASSES": 1 + max(how.passes),
        "TOTALS": 1 if wise else int(totals[-1]),
        "ELEMENT": size,
        "MMA_K": spec.k,
        "MMA_BYTES": spec.k * size,
        "TURN": how.turn,
        "EXPONENT": lowering.exponent,
    }
    flags = {"JOIN_AS_RUN": lowering.join == Join.AS_RUN, "JOIN_IN_DOUBLE": lowering.in_double, "ELEMENT_WISE": wise}
    tables = {
        "word_a": [i for i, _ in products],
        "word_b": [j for _, j in products],
        "group": lowering.accumulator_of,
        "pass": list(how.passes),
        "band": bands,
        "promote": list(how.promote),
        "total": [0 if wise else int(t) for t in totals[:-1]],
    }
    chosen = ", ".join(f"{name} = {_bool(value)}" for name, value in flags.items())
    return (
        f"struct Plan {{\n  static constexpr int {_constants(numbers)};\n  static constexpr bool {chosen};\n"
        + "".join(
            f"  static FPEMU_FUNCTION constexpr int {name}(int i) {{ return {_chain(table)}; }}\n"
            for name, table in tables.items()
        )
        + "};\n"
    )


def _chain(table: Sequence[int]) -> str:
    """A table as nested choices, which a compiler folds where the index is a constant."""
    *before, last = table
    return "".join(f"i == {i} ? {value} : " for i, value in enumerate(before)) + str(last)


def _constants(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in numbers.items())


def _bool(value: bool) -> str:
    return "true" if value else "false"


def mma_text(spec: MmaSpec) -> str:
    """mma.sync on the registers a[], b[] and c.word[], as a statement that a compiler may move."""
    ins = instructions.instruction(spec)
    half, words = ins.d_format == "fp16", ins.k * BYTES[ins.a_format] // 4
    c, a, b = (2 if half else 4), words // 2, words // 4

    def registers(first: int, count: int) -> str:
        return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"

    parts = ", ".join((registers(0, c), registers(c, a), registers(c + a, b), registers(0, c)))
    sums = ", ".join(f'"+{"r" if half else "f"}"(c.word[{i}])' for i in range(c))
    inputs = ", ".join([f'"r"(a[{i}])' for i in range(a)] + [f'"r"(b[{i}])' for i in range(b)])
    return f'asm("{ins.ptx} {parts};" : {sums} : {inputs})'
