"""``hopper_gemm.cu`` and ``hopper_wide.cu`` on a processor, threads as fibers: stages, tiles, clusters and stores.

Words hold small integers, whose products are exact in any order of addition; the bits of a sum are tested on a GPU.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fpemu import mma
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm import base
from fpemu.gpu.gemm.wgmma import schedules
from fpemu.gpu.gemm.wgmma.schedules import Tile
from fpemu.gpu.runtime import compiler
from fpemu.gpu.runtime.steps import Struct
from fpemu.mma import KOrder
from fpemu.schemes import build

pytestmark = [pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here"), pytest.mark.slow]
TESTS = Path(__file__).parents[1]
LAUNCH = """
static const void *maps_, *task_;
static Nonfinite none_;
static void thread() {
  hopper_gemm(*(const Maps*)maps_, *(const Task*)task_, none_);
  now->done = true, give_way();
}
extern "C" int launch(const void* maps, const void* task, int grid) {
  constexpr int THREADS = 128 * (Config::MATH_WARPGROUPS + 1);
  maps_ = maps, task_ = task, gridDim.x = grid, barriers_.clear();
  const size_t size = (size_t)grid * MEMORY;
  u8* memory = (u8*)mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  if (memory == MAP_FAILED) return 2;
  std::vector<Block> all(grid);
  std::vector<Thread> threads(THREADS * grid);
  blocks = all.data();
  for (int b = 0; b < grid; b++) all[b].index.x = b, all[b].memory = memory + (size_t)b * MEMORY;
  for (int i = 0; i < THREADS * grid; i++) {
    threads[i].index.x = i % THREADS, threads[i].block = &all[i / THREADS];
    threads[i].prepare(thread);
  }
  int left = THREADS * grid;
  for (int rounds = 0; left && rounds < 200000; rounds++)
    for (Thread& each : threads)
      if (!each.done) now = &each, continue_fiber(host, each), left -= each.done;
  munmap(memory, size);
  return left > 0;
}
"""
FILES = ("epilogue.cuh", "hopper_epilogue.cuh", "nonfinite.cuh", "hopper_nonfinite.cuh", "pipeline.cuh")


def compiled(folder, schedule, tile, *, spread=False):
    """The kernel of a schedule and a tile as a function of its maps, its task and its thread blocks."""
    text = schedules.source(schedule, tile, spread=spread)
    config, _, rest = text.partition('#include "hopper.cuh"')
    products, _, kernel = rest.partition("//")
    products = products[products.index("struct MainProducts") :]
    headers = "".join((compiler.KERNELS / name).read_text() for name in FILES)
    headers = re.sub(r"  int nan;\n  asm.*?;\n  return nan;", "  return x != x || y != y;", headers, flags=re.DOTALL)
    assert "asm" not in headers
    body = re.sub(r'#pragma once|#include "(?!bit_patterns).*"|extern "C" ', "", headers + "//" + kernel)
    body = re.sub(r"extern __shared__ .*u8 shared\[\];", "u8* shared = dynamic_();", body)
    body = body.replace("__shared__ alignas(8) u64 barriers[2 * STAGES];", "u64* barriers = array<u64>(0);")
    body = body.replace(
        "__shared__ alignas(16) int exponents[WARPGROUPS][TILE_N];", "auto exponents = array<int[TILE_N]>(1024);"
    )
    file = folder / "kernel.cpp"
    file.write_text(config + '#include "hopper_gemm_on_cpu.h"\n' + products + body + LAUNCH)
    flags = ["-O2", "-w", "-std=c++17", "-march=native", "-shared", "-fPIC", f"-I{compiler.KERNELS}", f"-I{TESTS}"]
    command = [str(emulation.compiler()), *flags, str(file), "-o", str(folder / "kernel.so")]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(folder / "kernel.so")).launch


def chunked(x):
    """Words (words, matrices, rows, K) of fp16, chunk after chunk of 64 k."""
    words, count, rows, K = x.shape
    padded = np.zeros((words, count, rows, -(-K // 64) * 64), np.float16)
    padded[..., :K] = x
    return np.ascontiguousarray(padded.reshape(words, count, rows, -1, 64).transpose(0, 1, 3, 2, 4))


def aligned(shape, dtype):
    """Zeros at a multiple of 64 bytes."""
    memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + memory.size - 64].view(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("tile", "grid", "order"),
    [
        (Tile(256, 1, halves=True), 2, None),
        (Tile(256, 2, halves=True), 4, None),
        (Tile(64, 2), 4, None),
        (Tile(32, 1, rows=64), 3, None),
        (Tile(64, 1), 2, KOrder(split=64)),
        (Tile(64, 1), 3, "spread"),
    ],
)
def test_tiles_hold_the_sums_of_their_products(tmp_path, tile, grid, order):
    spread = order == "spread"
    order = KOrder(split=128) if spread else order
    s = schedules.schedule(build("staged", {}).lowering(mma.spec("hopper", "fp16", "fp32"), order))
    launch, rng = compiled(tmp_path, s, tile, spread=spread), np.random.default_rng(1)
    batch, M, N, K = 2, 2 * tile.rows + 40, tile.columns + 50, 330
    words = [rng.integers(-9, 10, (2, batch, rows, K)).astype(np.float16) for rows in (M, N)]
    held, maps = [chunked(x) for x in words], aligned((4, 16), np.uint64)
    for i, (x, rows, box) in enumerate(((held[0], M, tile.rows), (held[1], N, tile.box))):
        for w in range(2):
            maps[2 * i + w, :4] = x[w].ctypes.data, rows, x.shape[2], box
    where = np.array([(p, p, p * M * N, 0) for p in range(batch)], np.int64)
    D, exponents = np.full((batch, M, N), 7, np.float32), [rng.integers(-3, 4, (batch, n), np.int32) for n in (M, N)]
    slices = -(-K // order.split) if order else 1
    partial = np.zeros((batch * tile.count(M, N) * slices, tile.rows * tile.columns), np.float32)
    out = Struct(base.RESULT, {"d": D.ctypes.data, "d_row": N, "alpha": 1.0, "nan": 0x7FFFFFFF})
    values = {"out": out, "where": where.ctypes.data, "slices": partial.ctypes.data}
    values |= {f"{n}_exponents": e.ctypes.data for n, e in zip(("row", "column"), exponents, strict=True)}
    task = Struct(base.TASK, values | {"M": M, "N": N, "K": K, "batch": batch, "group": tile.group})
    problem = launch(ctypes.c_void_p(maps.ctypes.data), ctypes.c_char_p(task.pack()[0]), ctypes.c_int(grid))
    assert problem == 0, "threads wait for each other"
    a, b = ([x.astype(np.float64) for x in pair] for pair in words)

    def sums(part):
        a_part, b_part = [x[..., part] for x in a], [np.swapaxes(x[..., part], 1, 2) for x in b]
        return sum(a_part[i] @ b_part[j] for i, j in s.main)

    if not spread:
        scale = np.ldexp(1.0, -exponents[0][:, :, None] - exponents[1][:, None, :])
        assert (sums(slice(None)) * scale == D).all()
        return
    tiles = tile.count(M, N)
    for number in range(batch * tiles):
        p, at = divmod(number, tiles)
        row, column = at % -(-M // tile.rows) * tile.rows, at // -(-M // tile.rows) * tile.columns
        for k in range(slices):
            want = sums(slice(k * order.split, (k + 1) * order.split))[p, row : row + tile.rows, column:][
                :, : tile.columns
            ]
            got = partial[number * slices + k].reshape(tile.rows // 64, tile.columns // 8, 4, 8, 4, 2, 2)
            got = got.transpose(0, 2, 5, 3, 1, 4, 6).reshape(tile.rows, tile.columns)
            assert (got[: want.shape[0], : want.shape[1]] == want).all()
