"""A lowering as the compile-time constants of ``kernels/split_gemm*.cu``, and the tiles that these kernels can have.

`fused` returns the passes and promotions of a lowering in one kernel, or None if it needs the kernels for any order;
`source` and `general_source` write the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fpemu.gpu.gemm import splitting
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler
from fpemu.mma.spec import MmaSpec
from fpemu.schemes.lowering import Lowering
from fpemu.schemes.words import of_operand

BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
OLD = ("volta", "turing")  # before sm_80
LAYOUTS = ("ALONG_ROWS", "ALONG_K", "ALONG_K_BY_FOUR")
_REGISTERS = 254  # of a thread, by `Tile.registers`; the hardware has 255
_OTHER_REGISTERS = 54  # for addresses and counters
_WORDS_REGISTERS = 26  # the same where words come from memory; a few too many cost less than a smaller tile
_WIDE_REGISTERS = 40  # more of these where words are tf32, whose codes take twice as many
_SHORT_REGISTERS = 16  # and for sums that begin and end within a turn
_STAGES = (3, 2)  # buffers for words that come from memory, best first
BULK_ROW = 128  # bytes of a row that TMA brings
_BARRIERS = 16  # bytes of two barriers
SHAPES = ((256, 128, 64, 64), (128, 128, 64, 32), (128, 64, 32, 32), (64, 64, 32, 16), (32, 32, 16, 16))
"""(M, N, warp_m, warp_n), largest first."""


@dataclass(frozen=True)
class Tile:
    """The tile of D that a thread block computes, and the pipeline that feeds it."""

    M: int
    N: int
    K: int  # length in k of the stretch in shared memory
    warp_m: int
    warp_n: int
    pieces: int = 1  # the next stretch is fetched, split and stored in so many parts
    pipeline: bool = True  # the next stretch is fetched into a second buffer while one is multiplied
    stages: int = 0  # stretches in shared memory or in flight, for words from memory; 0: the loads split
    bulk: bool = False  # TMA loads the words, in rows of 128 bytes

    def __str__(self) -> str:
        more = f" of words, {self.stages} stages" if self.stages else "" if self.pipeline else " without pipeline"
        return f"{self.M}x{self.N}x{self.K}{more}{' by TMA' if self.bulk else ''}"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.M // self.warp_m * (self.N // self.warp_n) * 32

    def registers(self, sums: int, words: int) -> int:
        """Estimate of a thread's registers for so many fp32 sums of each entry of D and so many words."""
        fragments = sums * self.warp_m * self.warp_n // 32 + words * (4 + self.warp_n // 4)
        if self.stages:
            return fragments + _WORDS_REGISTERS
        eights = (self.M + self.N) * self.K // 8 // self.threads
        return fragments + 8 * -(-eights // self.pieces) + _OTHER_REGISTERS

    def shared(self, words: tuple[int, int], size: int) -> int:
        """Bytes of shared memory for so many words of A and of B, of `size` bytes each."""
        rows = words[0] * self.M + words[1] * self.N
        return (self.stages or 1 + self.pipeline) * (rows * self.K * size + _BARRIERS * self.bulk)


@dataclass(frozen=True)
class Fused:
    """A lowering as one kernel runs it."""

    turn: int  # products that share an accumulator alternate after so many k
    passes: tuple[int, ...]  # for each product its pass over K
    promote: tuple[int, ...]  # for each accumulator its promotion interval in k; 0: none
    stretch: int  # length in k in shared memory: whole turns, and whole intervals or a part of one
    sums: int  # accumulators and totals that persist over the whole loop


def fused(lowering: Lowering, size: int, K: int) -> Fused | None:
    """How a lowering runs in one kernel up to K on words of `size` bytes; None if its order needs `general_source`."""
    order = lowering.order
    if order.split is not None or (order.tile is not None and order.tile < K):
        return None
    return _fused(lowering, size) or _fused(lowering.within(K), size)


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
    # an accumulator of one product that is promoted within every turn does not last
    lasting = sum(not 0 < p <= turn or len(acc.products) > 1 for p, acc in zip(intervals, accumulators, strict=True))
    totals = 1 if lowering.block else sum(p > 0 for p in intervals)
    return Fused(turn, tuple(passes), tuple(intervals), stretch, lasting + totals)


def _stretches(least: int, turn: int, intervals: Sequence[int]) -> list[int]:
    """Lengths in k from `least` on that hold whole turns, and whole intervals or a part of one.

    They are powers of two: a stretch is divided among the threads of a block, whose number is a power of two.
    """
    return [
        s
        for s in (least, 2 * least, 4 * least)
        if s <= 256 and s.bit_count() == 1 and s % turn == 0 and all(p % s == 0 or s % p == 0 for p in intervals if p)
    ]


def splitting_tiles(lowering: Lowering, size: int, how: Fused, shared: int) -> list[Tile]:
    """The tiles of kernels that split in their loads, largest first: within the registers, and `shared` bytes."""
    stretch, sums, words = how.stretch, how.sums, words_at_a_time(lowering, how)
    short = any(0 < p <= how.turn for p in how.promote)
    fitting = []
    more = _WIDE_REGISTERS * (size == 4) + _SHORT_REGISTERS * short
    for M, N, warp_m, warp_n in SHAPES:
        tile = Tile(M, N, stretch, warp_m, warp_n)
        fetches = [side * stretch / (8 * tile.threads) for side in (M, N)]
        if not all(n.is_integer() for n in fetches) or tile.shared(words, size) > shared:
            continue
        for pieces in range(1, int(sum(fetches)) + 1):
            tile = replace(tile, pieces=pieces)
            if tile.registers(sums, max(words)) + more <= _REGISTERS:
                fitting.append(tile)
                break
    return fitting


def copying_tiles(lowering: Lowering, size: int, how: Fused, shared: int, bulk: bool) -> list[Tile]:
    """The same for words from memory; rows of 128 bytes in shared memory are best, then longer, then shorter ones.

    bulk: TMA loads the words, except where a sum is promoted after every instruction: copying threads are faster there.
    """
    sums, words, bulk = how.sums, words_at_a_time(lowering, how), bulk and lowering.k not in how.promote
    known = _stretches(max(how.turn, 64 // size), how.turn, how.promote)
    stretches = sorted(known, key=lambda K: (K * size < 128, K))
    largest = []
    for M, N, warp_m, warp_n in SHAPES:
        candidates = [
            Tile(M, N, K, warp_m, warp_n, stages=stages, bulk=bulk and K * size == BULK_ROW)
            for K in stretches
            for stages in _STAGES
        ]
        fitting = [
            tile
            for tile in candidates
            if tile.shared(words, size) <= shared
            and tile.registers(sums, max(words)) <= _REGISTERS
            and M * tile.K * size % (16 * tile.threads) == N * tile.K * size % (16 * tile.threads) == 0
        ]
        largest += fitting[:1]
    return largest


def words_at_a_time(lowering: Lowering, how: Fused) -> tuple[int, int]:
    """The largest numbers of words of A and of B that a pass over K reads."""
    passes = [{p for p, at in zip(lowering.products, how.passes, strict=True) if at == n} for n in how.passes]
    return max(len({i for i, _ in p}) for p in passes), max(len({j for _, j in p}) for p in passes)


# --- texts
def source(
    lowering: Lowering, spec: MmaSpec, how: Fused, tile: Tile, layouts: tuple[str, str], scaled: bool, special: bool
) -> str:
    """The text of the kernel that splits, multiplies and writes D.

    layouts: of A and B, from LAYOUTS; scaled: rows have exponents; special: entries may be NaN, infinite or too large.
    """
    numbers = {"M": tile.M, "N": tile.N, "K": tile.K, "WARP_M": tile.warp_m, "WARP_N": tile.warp_n}
    numbers |= {"PIECES": tile.pieces, "STAGES": tile.stages}
    flags = {"PIPELINE": tile.pipeline, "SCALED": scaled, "SPECIAL": special}
    tile_layouts = f"static constexpr Layout LAYOUT_A = {layouts[0]}, LAYOUT_B = {layouts[1]};"
    return "\n".join(
        (
            f"#define MMA_SYNC {mma_text(spec)}",
            f"#define FPEMU_CUTS_LARGE {int(special)}",
            _head(lowering, spec),
            _plan(lowering, spec, how),
            "enum Layout { ALONG_ROWS, ALONG_K, ALONG_K_BY_FOUR };  // the neighbours in memory; by four: aligned",
            compiler.struct({**numbers, **flags}, "TileNumbers"),
            f"struct Tile : TileNumbers {{ {tile_layouts} }};",
            compiler.kernel_source(f"split_gemm{'_tma' if tile.bulk else '_async' if tile.stages else ''}.cu"),
        )
    )


def general_source(lowering: Lowering, spec: MmaSpec) -> str:
    """The text of the kernels that run any order."""
    how = Fused(spec.k, (0,) * len(lowering.products), (0,) * len(lowering.accumulators), spec.k, 0)
    rules_b = splitting.definition(of_operand(lowering.words, "B"), "RulesB")
    kernels = compiler.kernel_source("split_gemm_any_order.cu")
    parts = instructions.prelude(spec), _head(lowering, spec), rules_b, _plan(lowering, spec, how), kernels
    return "\n".join(parts)


def _head(lowering: Lowering, spec: MmaSpec) -> str:
    half = f"#define FPEMU_HALF_SUMS {int(str(spec.d_format) == 'fp16')}"
    rules = splitting.definition(of_operand(lowering.words, "A"))
    return "\n".join(('#include "split.cuh"', '#include "carrier.cuh"', half, rules))


def _plan(lowering: Lowering, spec: MmaSpec, how: Fused) -> str:
    bands, products, wise = [acc.band for acc in lowering.accumulators], lowering.products, lowering.block is not None
    totals, size = np.cumsum([0, *(p > 0 for p in how.promote)]), BYTES[str(spec.a_format)]
    numbers: dict[str, bool | int] = {"WORDS": len(lowering.words), "PRODUCTS": len(products), "GROUPS": len(bands)}
    numbers |= {"BANDS": 1 + max(bands), "PASSES": 1 + max(how.passes), "TOTALS": 1 if wise else int(totals[-1])}
    numbers |= {"ELEMENT": size, "MMA_K": spec.k, "MMA_BYTES": spec.k * size, "TURN": how.turn}
    numbers |= {"EXPONENT": lowering.exponent, "JOIN_AS_RUN": lowering.join == "as-run"}
    numbers |= {"JOIN_IN_DOUBLE": lowering.in_double, "ELEMENT_WISE": wise}
    tables = {
        "word_a": [i for i, _ in products],
        "word_b": [j for _, j in products],
        "group": lowering.accumulator_of,
        "pass": list(how.passes),
        "band": bands,
        "promote": list(how.promote),
        "total": [0 if wise else int(t) for t in totals[:-1]],
    }
    functions = [
        f"  static FPEMU_FUNCTION constexpr int {name}(int i) {{ return {_chain(table)}; }}"
        for name, table in tables.items()
    ]
    return "\n".join((compiler.struct(numbers, "PlanNumbers"), "struct Plan : PlanNumbers {", *functions, "};"))


def _chain(table: Sequence[int]) -> str:
    """A table as nested choices, which a compiler folds where the index is a constant."""
    *before, last = table
    return "".join(f"i == {i} ? {value} : " for i, value in enumerate(before)) + str(last)


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
