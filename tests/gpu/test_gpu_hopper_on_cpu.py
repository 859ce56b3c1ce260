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
GPU = r"""
#include "fibers.h"
#include <sys/mman.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>
#include "integers.cuh"
using std::max;
using std::min;
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct Index { int x = 0; };
struct Meeting { int here = 0; u64 past = 0; u32 exchanged[32]; int any = 0, last = 0; };
struct Block { Index index; u8* memory; Meeting all, cluster, named[16], warps[16]; int used = 0; };
struct Thread : Fiber { Index index; Block* block; };
struct Barrier { int arrivals, pending; s64 bytes = 0; u32 phase = 0; };
static Thread* now;
static Block* blocks;
static Fiber host;
static Index gridDim;
static std::map<u32, Barrier> barriers_;
static const int MEMORY = 256 * 1024, STATIC = 230 * 1024;
#define threadIdx (now->index)
#define blockIdx (now->block->index)
static void give_way() { continue_fiber(*now, host); }
static void meet(Meeting& m, int all) {
  const u64 past = m.past;
  if (++m.here == all) m.here = 0, m.past++, m.last = m.any, m.any = 0;
  else while (m.past == past) give_way();
}
static Meeting& warp_() { return now->block->warps[threadIdx.x / 32]; }
template <class T> static T __shfl_xor_sync(u32, T x, int mask) {
  Meeting& w = warp_();
  memcpy(&w.exchanged[threadIdx.x % 32], &x, 4);
  meet(w, 32);
  T result;
  memcpy(&result, &w.exchanged[threadIdx.x % 32 ^ mask], 4);
  meet(w, 32);
  return result;
}
static bool __any_sync(u32, bool x) {
  for (int i = 1; i < 32; i *= 2) x |= __shfl_xor_sync(0, (int)x, i);
  return x;
}
static void __syncthreads() { meet(now->block->all, 64 * 2 * (Config::MATH_WARPGROUPS + 1)); }
static void __syncwarp() {}
static void named_sync(int name, int threads) { meet(now->block->named[name], threads); }
static void named_arrive(int name, int threads) {
  Meeting& m = now->block->named[name];
  if (++m.here == threads) m.here = 0, m.past++, m.last = m.any, m.any = 0;
}
static bool named_any(int name, int threads, bool x) {
  now->block->named[name].any |= x;
  meet(now->block->named[name], threads);
  return now->block->named[name].last;
}
static u32 cluster_rank() { return blockIdx.x % Config::CLUSTER; }
static Block& first_block() { return blocks[blockIdx.x / Config::CLUSTER * Config::CLUSTER]; }
static void cluster_sync() { meet(first_block().cluster, Config::CLUSTER * 128 * (Config::MATH_WARPGROUPS + 1)); }
static u32 shared_address(const void* p) { return (u32)(u64)p; }
static u32 address_at(u32 address, u32 rank) { return address + ((int)rank - (int)cluster_rank()) * MEMORY; }
static int uniform(int x) { return x; }
static u8* dynamic_() { return now->block->memory; }
template <class T> static T* array(int offset) { return (T*)(now->block->memory + STATIC + offset); }
static void barrier_init(u32 at, int arrivals) { barriers_[at] = {arrivals, arrivals}; }
static void barrier_inits_done() {}
static void advance(Barrier& b) {
  if (b.pending || b.bytes) return;
  b.pending = b.arrivals, b.phase ^= 1;
}
static void barrier_arrive(u32 at) {
  Barrier& b = barriers_.at(at);
  if (--b.pending < 0) abort();
  advance(b);
}
static void barrier_arrive_at(u32 at, u32 rank) { barrier_arrive(address_at(at, rank)); }
static void barrier_expect(u32 at, u32 bytes) { barriers_.at(at).bytes += bytes, barrier_arrive(at); }
static void barrier_wait(u32 at, u32 phase) { while (barriers_.at(at).phase == phase) give_way(); }
static void grid_wait() {}
static void grid_release() {}
template <int N> static void raise_registers() {}
template <int N> static void lower_registers() {}
struct alignas(64) TensorMap { u64 opaque[16]; };  // words (chunk, row, 128 bytes), rows, chunks, rows of a box
static void tma_prefetch(const TensorMap*) {}
static void tma_fetch_all(u32 to, const TensorMap* map, u32 barrier, int row, int chunk, int matrix, u16 mask, u64) {
  const u64 *m = map->opaque, rows = m[1], chunks = m[2], box = m[3];
  if (to % 1024) abort();
  for (int rank = 0; rank < Config::CLUSTER; rank++) {
    if (!(mask >> rank & 1)) continue;
    u8* there = (u8*)(u64)address_at(to, rank);
    for (u64 r = 0; r < box; r++)
      for (int unit = 0; unit < 8; unit++) {
        u8* at = there + r * 128 + (unit ^ (r & 7)) * 16;
        const bool inside = row + r < rows && (u64)chunk < chunks;
        if (inside) memcpy(at, (u8*)m[0] + ((matrix * chunks + chunk) * rows + row + r) * 128 + unit * 16, 16);
        else memset(at, 0, 16);
      }
    Barrier& b = barriers_.at(address_at(barrier, rank));
    b.bytes -= box * 128;
    advance(b);
  }
}
static u64 l2_policy(bool) { return 0; }
static void tma_fetch(u32 to, const TensorMap* map, u32 barrier, int row, int chunk, int matrix, u64) {
  tma_fetch_all(to, map, barrier, row, chunk, matrix, 1 << cluster_rank(), 0);
}
static u64 wgmma_tile(u32 address) { return address >> 4; }
constexpr int WGMMA_K = 2;
static void wgmma_fence() {}
static void wgmma_commit() {}
template <int N> static void wgmma_wait() {}
template <int N> static void hold(float (&)[N]) {}
static float element(u64 tile, int row, int k) {
  u64 at = (tile << 4) + row * 128 + 2 * k;
  at ^= (at >> 7 & 7) << 4;
  return (float)*(_Float16*)at;
}
template <int N> static void wgmma(float (&d)[N], u64 a, u64 b, int keep) {
  const int warp = threadIdx.x / 32 % 4, r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  for (int g = 0; g < 2; g++) {
    float x[16];
    for (int k = 0; k < 16; k++) x[k] = element(a, 16 * warp + r + 8 * g, k);
    for (int j = 0; j < N / 4; j++)
      for (int i = 0; i < 2; i++) {
        float& sum = d[4 * j + 2 * g + i];
        if (!keep) sum = 0;
        for (int k = 0; k < 16; k++) sum += x[k] * element(b, 8 * j + 2 * c + i, k);
      }
  }
}
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T __ldcg(const T* p) { return *p; }
template <class T> static void __stcs(T* p, const T& x) { *p = x; }
template <class T> static void __stcg(T* p, const T& x) { *p = x; }
static float __fadd_rn(float x, float y) { return x + y; }
static float __fmul_rn(float x, float y) { return x * y; }
static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static double __hiloint2double(int high, int low) {
  const u64 x = (u64)(u32)high << 32 | (u32)low;
  double y;
  memcpy(&y, &x, 8);
  return y;
}
#define __grid_constant__
#define __launch_bounds__(...)
#define __global__ static
"""
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
    file.write_text(config + GPU + products + body + LAUNCH)
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
    problem = launch(ctypes.c_void_p(maps.ctypes.data), ctypes.c_void_p(task.data.ctypes.data), ctypes.c_int(grid))
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
