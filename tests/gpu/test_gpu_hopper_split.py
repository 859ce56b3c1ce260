"""``kernels/hopper_split.cuh`` on a processor, threads as fibers: words, counters and bounds of every layout."""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm.wgmma import splits
from fpemu.gpu.runtime import compiler
from fpemu.gpu.runtime.steps import Struct
from fpemu.schemes import build, strassen
from fpemu.schemes.words import of_operand, prepare, steps

pytestmark = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
TESTS = Path(__file__).parents[1]
LAUNCH = """
static Operands operands;
static void thread() { KERNEL(operands); now->done = true; give_way(); }
extern "C" int launch(const Operands* given, int grid, int resident, int late) {
  operands = *given, gridDim.x = grid, delay = late, under_way.clear();
  PATIENCE = resident < grid ? 20 : 1 << 30;
  std::vector<Block> blocks(grid);
  std::vector<std::vector<float4>> memory(grid, std::vector<float4>(STAGES * PARTS * SIDE * SPAN / 4));
  std::vector<Thread> threads(THREADS * grid);
  for (int b = 0; b < grid; b++) blocks[b].index.x = b, blocks[b].memory = (u8*)memory[b].data();
  for (int i = 0; i < THREADS * grid; i++) {
    threads[i].index.x = i % THREADS, threads[i].block = &blocks[i / THREADS];
    threads[i].prepare(thread);
  }
  std::vector<int> running(grid, THREADS);  // threads of each block
  turn = 0;
  for (int left = THREADS * grid, ended = 0; left; turn++) {
    if (turn > 100000) return 1;  // they wait for each other
    arrive(turn);
    const int started = THREADS * min(grid, resident + ended);
    for (int i = 0; i < started; i++) {
      now = &threads[i];
      if (now->done) continue;
      continue_fiber(host, *now);
      if (now->done) left--, ended += --running[i / THREADS] == 0;
    }
  }
  arrive(turn + delay);
  return 0;
}
"""
KERNELS = {
    "halves": ("hopper_split.cuh", "high_words.cuh", "hopper_split_fp16.cuh", "hopper_split.cu"),
    "rows": ("hopper_split.cuh", "high_words.cuh", "hopper_split_fp16.cuh", "hopper_split_rows.cu"),
    "bytes": ("hopper_split.cuh", "staged_int8_words.cuh", "staged_int8_split.cu"),
    "sums": (
        "hopper_split.cuh",
        "high_words.cuh",
        "hopper_split_fp16.cuh",
        "strassen_winograd.cuh",
        "strassen_split.cu",
    ),
}


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """``launch(kind, balanced, loads)``: the function (operands, blocks, resident blocks, delay) that runs a kernel."""
    folder = tmp_path_factory.mktemp("split")

    @cache
    def compiled(kind, balanced, loads):
        rounded = replace(splits.KINDS["halves" if loads else kind], balanced=balanced)
        kernel = rounded.of_rows(loads) if loads else rounded
        head = kernel.source().partition("//")[0]
        text = "".join((compiler.KERNELS / name).read_text() for name in ("range_faults.cuh", *KERNELS[kind]))
        text = re.sub(r'#pragma once|#include ".*"|extern "C" ', "", text)
        constant = "constexpr int PATIENCE = 1 << 14;"
        assert constant in text
        text = text.replace(constant, "")
        text = text.replace("extern __shared__ float4 held[]", "float4* held = (float4*)now->block->memory")
        text = re.sub(r"__shared__ (.*) (\w+)\[(.+)\];", r"\1* \2 = array<\1>(__LINE__, \3);", text)
        text = re.sub(r"__shared__ (\w+) (\w+);", r"\1& \2 = *array<\1>(__LINE__, 1);", text)
        source = head + '#include "hopper_split_on_cpu.h"\n' + text + LAUNCH.replace("KERNEL", kernel.kernel)
        file = folder / f"{kind}-{balanced}-{loads}.cpp"
        file.write_text(source)
        files = [f"-I{compiler.KERNELS}", f"-I{TESTS}", str(file), "-o", str(file.with_suffix(".so"))]
        flags = ["-O1", "-w", "-std=c++17", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
        command = [str(emulation.compiler()), *flags, *files]
        subprocess.run(command, check=True, capture_output=True)
        return ctypes.CDLL(str(file.with_suffix(".so"))).launch

    return compiled


class Side:
    """An operand (matrices, rows, K) in memory, and room for what becomes of it, poisoned."""

    def __init__(self, x, who, k_last, spare, kind="halves"):
        count, rows, K = x.shape
        inner, outer = (K, rows) if k_last else (rows, K)
        self.x, self.who, self.kind = x, who, splits.KINDS[kind]
        self.held = aligned(4 * count * outer * (inner + spare), np.float32).reshape(count, outer, inner + spare)
        self.held[...] = np.nan  # what lies beside the operand is not looked at
        self.held[:, :, :inner] = x if k_last else np.swapaxes(x, -1, -2)
        self.steps = (inner + spare, 1) if k_last else (1, inner + spare)
        self.offsets = np.arange(count) * outer * (inner + spare)
        self.rows, self.K = self.kind.halved(rows), self.kind.halved(K)
        self.chunks = -(-self.K // 64)
        size = count * self.kind.sums * splits.word_bytes(self.rows, self.K)
        self.high, self.low = (aligned(size, np.uint8) for _ in range(2))
        self.exponents = np.full((count * self.kind.sums, self.rows), -999, np.int32)
        self.special = np.full((count, rows), 7, np.uint8)
        self.faults, self.next = np.zeros(4, np.uint64), np.full(4, 3, np.uint64)
        self.panels = np.zeros(count * -(-self.rows // self.kind.side) * self.kind.panel_bytes // 4, np.uint32)
        self.largest = np.zeros(count, np.uint32)

    def first(self, faulty):
        """The complement of the first index with a fault in the operand as given, 0 without one."""
        faulty = np.swapaxes(faulty, -1, -2) if self.who == "B" else faulty
        return 2**64 - 1 - int(np.argmax(faulty)) if faulty.any() else 0

    @property
    def wide(self):
        start = self.K if self.steps[1] == 1 else self.rows
        return max(self.steps) % 4 == 0 and (self.kind.parts == 1 or start % 4 == 0)

    def operand(self, scaling, **more):
        count, rows, K = self.x.shape
        scaled = scaling in ("scale", "scale-rows")
        values = {name: at(getattr(self, name)) for name in ("offsets", "high", "low", "special", "faults", "panels")}
        values |= {"X": at(self.held), "next_faults": at(self.next), "exponents": at(self.exponents) * scaled}
        values |= {"largest": at(self.largest) * (scaling == "scale"), "row_stride": self.steps[0]}
        values |= {"k_stride": self.steps[1], "rows": self.rows, "K": self.K, "chunks": self.chunks}
        values |= {"matrices": count, "all_rows": rows, "all_k": K, "wide": self.wide, "second": self.who == "B"}
        return Struct(splits.OPERAND, values | more)

    def words(self, array, dtype):
        """(matrices, rows, k), or (matrices and sums, rows, k), from (..., chunks, rows, 128 bytes)."""
        each = array.view(dtype).reshape(-1, self.chunks, self.rows, 128 // np.dtype(dtype).itemsize)
        return np.moveaxis(each, 1, 2).reshape(len(each), self.rows, -1)


def aligned(nbytes, dtype):
    memory = np.full(nbytes + 16, 0xAB, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + nbytes].view(dtype)


def at(array):
    return array.ctypes.data


def run(launch, kind, sides, scaling, grid, *, resident=None, late=0, balanced=False, loads=0, **more):
    """Run the kernel of a kind with `grid` thread blocks; with `loads`, the kernel of segments of rows in registers.

    Only `resident` blocks run at a time, by default all. Additions to counters take effect `late` turns after they are
    issued: their order relative to other writes is undefined unless a thread reads the counter.
    """
    both = Struct(splits.OPERANDS, {"of": [side.operand(scaling, **more) for side in sides]})
    spans = max(s.chunks * 64 // s.kind.span for s in sides)
    apart = scaling == "scale" or spans > (splits.LAG - 1) * grid
    if loads:
        segments = [-(-s.K // (128 * loads)) for s in sides]
        kind, apart = "rows", max(segments) > 1
        grid = sum(len(s.x) * -(-s.rows // splits.ROWS) * n for s, n in zip(sides, segments, strict=True))
    for phases in (splits.LOOK, splits.MAKE) if apart else (splits.LOOK | splits.MAKE,):
        both["phases"] = phases
        function = launch(kind, balanced, loads)
        problem = function(ctypes.c_char_p(both.pack()[0]), grid, grid if resident is None else resident, late)
        assert problem == 0, "thread blocks wait for each other"
    for side in sides:
        wrong = np.count_nonzero(~np.isfinite(side.x))
        assert (side.special.astype(bool) == ~np.isfinite(side.x).all(-1)).all()
        assert side.faults[0] == wrong
        assert side.faults[2] == side.first(~np.isfinite(side.x))
        assert not side.next.any()
        assert not side.panels.any()  # ready for the next launch


def draw(shape, kind):
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.uniform(-1, 1, shape), rng.integers(-148, 127, shape) if kind == "wide" else 0)
    x[rng.random(shape) < 0.05] = -0.0
    if kind == "ties":  # with a largest entry of 2^13: fp16 numbers and midpoints, subnormal ones too, and neighbours
        halves = rng.integers(0, 0x7000, shape).astype(np.uint16).view(np.float16).astype(np.float32)
        codes = halves.view(np.uint32) ^ rng.choice(np.uint32([0, 0x1000, 0xFFF, 0x1001]), shape)
        x = codes.view(np.float32) * rng.choice(np.float32([-1, 1]), shape) * np.exp2(rng.integers(-3, 1, shape))
        x[..., 0] = 2.0**13
    if kind == "special":
        x[rng.random(shape) < 0.002], x[rng.random(shape) < 0.002] = np.nan, -np.inf
    return x.astype(np.float32)


@pytest.mark.parametrize(
    ("scheme", "scaling", "shape", "spare", "kind", "grid"),
    [
        ("staged", "scale-rows", (1, 130, 200), 0, "uniform", 4),
        ("staged", "scale-rows", (2, 65, 131), 1, "special", 3),
        ("staged", "scale-rows", (1, 70, 400), 4, "wide", 2),  # two launches: a panel has too many pieces
        ("staged", "scale-rows", (1, 1, 1), 0, "uniform", 1),
        ("ootomo", "scale", (2, 66, 90), 2, "uniform", 3),
        ("ootomo", "none", (1, 40, 130), 0, "wide", 2),
    ],
)
def test_words_of_fp16_are_those_of_the_scheme(launch, scheme, scaling, shape, spare, kind, grid):
    rules = build(scheme, {}).rules()
    check_words(launch, rules, scaling, shape, spare, kind, grid)


@pytest.mark.parametrize(
    ("shape", "spare", "kind", "grid"),
    [
        ((1, 130, 200), 0, "uniform", 4),
        ((2, 65, 131), 1, "special", 3),
        ((1, 70, 400), 4, "wide", 2),
        ((1, 64, 256), 0, "ties", 4),
        ((1, 70, 1100), 4, "wide", 3),
    ],
)
def test_balanced_words_are_those_of_each_operand(launch, shape, spare, kind, grid):
    rules = build("staged", {"high_rounding": "balanced"}).rules()
    check_words(launch, rules, "scale-rows", shape, spare, kind, grid, balanced=True)


@pytest.mark.parametrize("resident", [1, 2, 3])
@pytest.mark.parametrize("kind", ["special", "wide"])
def test_thread_blocks_wait_for_no_block_that_cannot_start(launch, kind, resident):
    rules = build("staged", {}).rules()
    check_words(launch, rules, "scale-rows", (2, 65, 260), 1, kind, 5, resident=resident)


@pytest.mark.parametrize("resident", [2, 4, 5])
def test_counts_that_arrive_late_leave_zeros_for_the_next_launch(launch, resident):
    rules = build("staged", {}).rules()
    check_words(launch, rules, "scale-rows", (2, 65, 260), 1, "wide", 5, resident=resident, late=1000)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(
    ("shape", "spare", "kind", "loads"),
    [
        ((1, 10, 1024), 0, "uniform", 8),
        ((1, 12, 1500), 4, "wide", 16),
        ((1, 9, 2048), 0, "special", 16),
        ((2, 13, 131), 1, "special", 8),
        ((1, 64, 256), 0, "ties", 8),
        ((1, 1, 1), 3, "uniform", 8),
        ((3, 9, 70), 2, "wide", 8),
        ((2, 9, 2200), 0, "special", 8),  # segments of 1024 k
        ((1, 66, 1030), 1, "wide", 8),
        ((1, 9, 5000), 0, "special", 16),
    ],
)
def test_words_of_segments_in_registers_are_those_of_the_scheme(launch, shape, spare, kind, loads, balanced):
    rules = build("staged", {"high_rounding": "balanced"} if balanced else {}).rules()
    check_words(launch, rules, "scale-rows", shape, spare, kind, 1, balanced=balanced, loads=loads)


def test_words_of_whole_rows_that_are_not_scaled_count_overflow(launch):
    check_words(launch, build("ootomo", {}).rules(), "none", (1, 40, 130), 0, "wide", 1, loads=8)


@pytest.mark.parametrize("loads", [0, 8])
def test_residuals_of_balanced_words_that_overflow_are_counted(launch, loads):
    x = np.ones((1, 9, 128), np.float32)
    x[0, 3, 5] = 8200 - 2.0**-10  # its residual is below 8, and to nearest at most 4
    sides = [Side(x, "A", True, 0), Side(x, "B", False, 0)]
    run(launch, "halves", sides, "scale-rows", 4, shift=2.0**13, balanced=True, loads=loads)
    infinite = [np.count_nonzero(side.words(side.low, np.uint16) & 0x7FFF == 0x7C00) for side in sides]
    assert infinite == [1, 0]
    assert [int(side.faults[1]) for side in sides] == infinite


def check_words(launch, rules, scaling, shape, spare, kind, grid, **more):
    for k_last in (True, False):
        sides = [Side(draw(shape, kind), "A", k_last, spare), Side(draw(shape, kind)[:, ::-1], "B", not k_last, spare)]
        run(launch, "halves", sides, scaling, grid, shift=2.0 ** rules[-1].exponent, **more)
        for side in sides:
            own = of_operand(rules, side.who)
            with np.errstate(all="ignore"):  # as rows of A, split by the rules of the operand
                want = prepare(side.x, "A", own, "propagate", scaling, "a scheme")
            for array, words in zip((side.high, side.low), want.words, strict=True):
                got = side.words(array, np.uint16)
                assert (got[..., : shape[-1]] == words.astype(np.float16).view(np.uint16)).all(), (k_last, side.who)
                assert not got[..., shape[-1] :].any()
            if scaling != "none":
                assert (side.exponents == want.exponents.reshape(shape[0], -1)).all()
            else:
                finite = np.where(np.isfinite(side.x), side.x, np.float32(0)).astype(np.float64)
                faulty = np.any([word.overflows(left) for word, left, _, _ in steps(finite, own)], axis=0)
                assert (side.faults[1], side.faults[3]) == (np.count_nonzero(faulty), side.first(faulty))


@pytest.mark.parametrize(("exact", "per", "shape"), [(0, 1, (1, 70, 130)), (2, 2, (1, 20, 600)), (3, 1, (2, 65, 200))])
def test_words_of_8_bits_are_those_of_the_scheme(launch, exact, per, shape):
    scheme, every = (build("staged-int8", {"exact": e, "stage": 64 * per}) for e in (exact or None, 1))
    sides = [Side(draw(shape, "wide"), "A", True, 0), Side(draw(shape, "uniform"), "B", False, 0)]
    run(launch, "bytes", sides, "scale-rows", 4, exact=exact, per=per)
    slow = np.array([bool(exact) and k // 64 // per % exact == 0 for k in range(shape[-1])])
    for side in sides:
        h, r = side.words(side.high, np.float16), side.words(side.low, np.float16)
        integers = side.words(side.low, np.int8).reshape(*shape[:2], side.chunks, 2, 64)
        first, second = (integers[:, :, :, i].reshape(*shape[:2], -1) for i in range(2))
        low, high = (second, first) if side.who == "B" else (first, second)
        for i, x in enumerate(side.x):
            parts, all_exact = scheme.split_operand(x, "A", "raise"), every.split_operand(x, "A", "raise")
            assert (side.exponents[i] == 16 * parts.exponents[:, 0] + parts.factors[:, 0]).all()
            K = shape[-1]
            assert (h[i, :, :K] == parts.h).all()
            assert (r[i, :, :K][:, slow] == all_exact.r[:, slow]).all()
            assert (low[i, :, :K][:, ~slow] == parts.low[:, ~slow]).all()
            assert (high[i, :, :K][:, ~slow] == parts.high[:, ~slow]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "spare", "kind", "grid", "resident", "rounding"),
    [
        ((1, 130, 264), 0, "uniform", 5, 5, "RNE"),
        ((2, 67, 131), 1, "special", 7, 7, "RNE"),
        ((2, 67, 131), 1, "special", 7, 2, "RNE"),
        ((1, 72, 520), 4, "wide", 3, 3, "RNE"),
        ((1, 72, 520), 4, "wide", 10, 1, "RNE"),
        ((1, 1, 1), 3, "", 1, 1, "RNE"),
        ((2, 67, 131), 1, "special", 7, 7, "balanced"),
        ((1, 72, 520), 4, "wide", 3, 3, "balanced"),
    ],
)
def test_sums_of_blocks_are_those_of_strassens_algorithm(launch, shape, spare, kind, grid, resident, rounding):
    balanced, rules = rounding == "balanced", build("staged", {"high_rounding": rounding}).rules()
    for k_last in (True, False):
        x = draw(shape, kind)
        x[abs(x) >= strassen.limit(1)] = 1
        if kind == "wide":
            x[0, 5, 7], x[0, 70, 500] = 2.0**124, -(2.0**127)
        sides = [Side(x, "A", k_last, spare, "sums"), Side(x[:, ::-1], "B", not k_last, spare, "sums")]
        with np.errstate(all="ignore"):
            options = {"resident": resident, "limit": strassen.limit(1), "balanced": balanced}
            run(launch, "sums", sides, "scale-rows", grid, **options)
        for side in sides:
            clean = np.where(np.isfinite(side.x), side.x, np.float32(0))
            assert side.faults[1] == np.count_nonzero(abs(clean) >= strassen.limit(1))
            assert side.faults[3] == side.first(abs(clean) >= strassen.limit(1))
            sums = strassen.left(clean) if side.who == "A" else strassen.right(np.swapaxes(clean, -1, -2))
            for i, each in enumerate(sums):
                each = each if side.who == "A" else np.swapaxes(each, -1, -2)
                own = of_operand(rules, side.who)
                with np.errstate(all="ignore"):
                    want = prepare(np.ascontiguousarray(each), "A", own, "propagate", "scale-rows", "staged")
                finite = np.isfinite(each).all(-1)
                assert (side.exponents[i::7][finite] == want.exponents.reshape(finite.shape)[finite]).all()
                for array, words in zip((side.high, side.low), want.words, strict=True):
                    got = side.words(array, np.float16)[i::7]  # a zero of either sign will do
                    assert (got[finite][..., : side.K] == words[finite]).all(), (k_last, side.who, i)
                    assert not got[..., side.K :].any()
