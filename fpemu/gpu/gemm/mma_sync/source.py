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
from fpemu.mma import KOrder, MmaSpec
from fpemu.schemes.base import SplitScheme
from fpemu.schemes.words import Plan, in_k

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


def fused(plan: Plan, spec: MmaSpec, order: KOrder | None, K: int) -> Fused | None:
    """How a plan runs in one kernel; None if its order needs `general_source`."""
    order = KOrder() if order is None else order
    if order.split is not None or (order.tile is not None and order.tile < K):
        return None
    how = _fused(plan, spec, order.promote, None)
    if how is not None and order.tile is None:
        return how
    how = _fused(plan, spec, order.promote, K) if how is None else how
    return None if how is None else replace(how, longest=K)


def _fused(plan: Plan, spec: MmaSpec, promote: int | None, K: int | None) -> Fused | None:
    """With K, what is as long as K is taken for endless: the bits are the same."""
    groups, wise = plan.groups(), plan.accumulators == "none"
    step = in_k(plan.step, spec)
    intervals: list[int] = []
    turns: set[int | None] = set()
    for band, products in groups:
        interval = step or spec.k if wise else promote or plan.promoted(band, spec)
        turn = None if len(products) == 1 else min((x for x in (step, interval) if x), default=None)
        if K is not None and not wise:
            interval = None if interval and interval >= K else interval
            turn = None if turn and turn >= K else turn
        if (interval or 0) % spec.k or (turn or 0) % spec.k or (turn and interval and interval % turn):
            return None
        intervals.append(interval or 0)
        if wise:
            turns.add(interval)
        elif len(products) > 1:
            turns.add(turn)
    if len(turns) > 1:
        return None
    chosen = turns.pop() if turns else spec.k
    many = max(len(products) for _, products in groups)
    if chosen is None and many > 1 and any(intervals[g] for g, (_, p) in enumerate(groups) if len(p) > 1):
        return None
    passes = [0] * len(plan.products)
    if chosen is None:
        for _, products in groups:
            for number, product in enumerate(products):
                passes[plan.products.index(product)] = number
    turn = chosen or spec.k
    least = max(turn, 64 if BYTES[str(spec.a_format)] == 1 else 32)
    stretch = next(iter(_stretches(least, turn, intervals)), None)
    if stretch is None:
        return None
    lasting = sum(not _short(p, len(products), turn) for p, (_, products) in zip(intervals, groups, strict=True))
    totals = 1 if wise else sum(p > 0 for p in intervals)
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


def words(scheme: SplitScheme) -> int:
    """How many words of the split are multiplied; those after them are never made."""
    return 1 + max(max(pair) for pair in scheme.plan().products)


def splitting_tiles(scheme: SplitScheme, spec: MmaSpec, how: Fused, shared: int) -> list[Tile]:
    """The tiles that a plan can have where loads split, largest first: within the registers, and `shared` bytes."""
    short = any(0 < p <= how.turn for p in how.promote)
    size = BYTES[str(spec.a_format)]
    return tiles.splitting(how.stretch, how.sums, words_at_a_time(scheme, how), size, short, shared)


def copying_tiles(scheme: SplitScheme, spec: MmaSpec, how: Fused, shared: int, bulk: bool = False) -> list[Tile]:
    """The same where words come from memory: rows of 128 bytes in shared memory are best, then longer, then shorter.

    bulk: TMA brings them, but where a sum is promoted after every instruction: threads that copy are faster there.
    """
    size = BYTES[str(spec.a_format)]
    known = _stretches(max(how.turn, 64 // size), how.turn, how.promote)
    stretches = sorted(known, key=lambda K: (K * size < 128, K))
    return tiles.copying(
        stretches, how.sums, words_at_a_time(scheme, how), size, shared, bulk and spec.k not in how.promote
    )


def words_at_a_time(scheme: SplitScheme, how: Fused) -> tuple[int, int]:
    """How many words of A and of B any pass over K needs."""
    passes = [{p for p, at in zip(scheme.plan().products, how.passes, strict=True) if at == n} for n in how.passes]
    return max(len({i for i, _ in p}) for p in passes), max(len({j for _, j in p}) for p in passes)


# --- texts
def source(
    scheme: SplitScheme, spec: MmaSpec, how: Fused, tile: Tile, layouts: tuple[str, str], scaled: bool, special: bool
) -> str:
    """The text of the kernel that does it all.

    Parameters
    ----------
    layouts : two of LAYOUTS
        Of A and of B.
    scaled : bool
        Whether rows have exponents.
    special : bool
        Whether entries may be NaN or infinite, or too large for their words.
    """
    plan = scheme.plan()
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
            _head(scheme, spec),
            _plan(plan, spec, how),
            "enum Layout { ALONG_ROWS, ALONG_K, ALONG_K_BY_FOUR };  // where neighbours in memory lie; by four: aligned\n",
            f"struct Tile {{\n  static constexpr int {_constants(numbers)};\n"
            f"  static constexpr bool PIPELINE = {_bool(tile.pipeline)};\n"
            f"  static constexpr bool SCALED = {_bool(scaled)}, SPECIAL = {_bool(special)};\n"
            f"  static constexpr Layout LAYOUT_A = {layouts[0]}, LAYOUT_B = {layouts[1]};\n}};\n",
            compiler.kernel_source(f"split_gemm{'_tma' if tile.bulk else '_async' if tile.stages else ''}.cu"),
        )
    )


def general_source(scheme: SplitScheme, spec: MmaSpec) -> str:
    """The text of the kernels that run any order."""
    plan = scheme.plan()
    how = Fused(spec.k, (0,) * len(plan.products), (0,) * len(plan.groups()), spec.k, 0)
    return "".join(
        (
            instructions.prelude(spec),
            _head(scheme, spec),
            _plan(plan, spec, how),
            compiler.kernel_source("split_gemm_any_order.cu"),
        )
    )


def _head(scheme: SplitScheme, spec: MmaSpec) -> str:
    half = str(spec.d_format) == "fp16"
    return "".join(
        (
            '#include "split.cuh"\n#include "carrier.cuh"\n',
            f"#define FPEMU_HALF_SUMS {int(half)}\n",
            splitting.definition(scheme.rules()[: words(scheme)]),
        )
    )


def _plan(plan: Plan, spec: MmaSpec, how: Fused) -> str:
    groups = plan.groups()
    group = [next(g for g, (_, products) in enumerate(groups) if p in products) for p in plan.products]
    wise = plan.accumulators == "none"
    totals = np.cumsum([0, *(p > 0 for p in how.promote)])
    size = BYTES[str(spec.a_format)]
    numbers = {
        "WORDS": 1 + max(max(p) for p in plan.products),
        "PRODUCTS": len(plan.products),
        "GROUPS": len(groups),
        "BANDS": 1 + max(band for band, _ in groups),
        "PASSES": 1 + max(how.passes),
        "TOTALS": 1 if wise else int(totals[-1]),
        "ELEMENT": size,
        "MMA_K": spec.k,
        "MMA_BYTES": spec.k * size,
        "TURN": how.turn,
        "EXPONENT": plan.exponent,
    }
    flags = {"JOIN_AS_RUN": plan.join == "as-run", "JOIN_IN_DOUBLE": plan.combine_in == "fp64", "ELEMENT_WISE": wise}
    tables = {
        "word_a": [i for i, _ in plan.products],
        "word_b": [j for _, j in plan.products],
        "group": group,
        "pass": list(how.passes),
        "band": [band for band, _ in groups],
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
