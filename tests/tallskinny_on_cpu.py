"""The kernels for tall and skinny products on this machine's processor.

For those of Hopper: fibers for threads, stand-ins for the copy engine, the barriers in shared memory and the matrix
instruction; everything else is the kernels' own text.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from pathlib import Path

import numpy as np

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime.compiler import KERNELS
from tests import cuda_on_cpu

WORDS = """
#include <cmath>
#define __align__(n)
#undef __shared__
#define __shared__
#define __fmaf_rn __builtin_fmaf
#define __fma_rn __builtin_fma
#include "integers.cuh"
"""


class Code(cuda_on_cpu.Code):
    """Simulate `cuda.core.ObjectCode` for the published kernels, with shared memory of any size."""

    def __init__(self, source):
        start = source.index("//")
        super().__init__(f"{source[:start]}{WORDS}REAL curr_b[1 << 16];\n{source[start:]}")


COPIES = r"""
#pragma once
#include "tallskinny.cuh"
constexpr int VECTOR = 16 / sizeof(REAL);
struct alignas(16) Vector { REAL of[VECTOR]; };
inline void aligned(const void* p, int bytes) { if ((uintptr_t)p % bytes) fprintf(stderr, "misaligned\n"), abort(); }
inline Vector load_once(const REAL* p) { aligned(p, 16); return *(const Vector*)p; }
inline void store_once(REAL* p, const Vector& v) { aligned(p, 16); *(Vector*)p = v; }
template <int COUNT> inline void copy(REAL* to, const REAL* from) {
  aligned(to, COUNT * sizeof(REAL)), aligned(from, COUNT * sizeof(REAL));
  for (int e = 0; e < COUNT; e++) to[e] = from[e];
}
inline void wait_for_copies() {}
inline void arrive_copied(u32 barrier) { arrive(barrier); }
"""
HOPPER = r"""
#pragma once
#include "integers.cuh"
struct TensorMap { u64 address, axis[3][3]; };  // length, step, box
inline u32 shared_address(const void* p) { return (u32)((const unsigned char*)p - (const unsigned char*)memory); }
inline int uniform(int x) { return x; }
inline void barrier_init(u32 b, int arrivals) { barriers[b] = {arrivals, arrivals, 0, 0}; }
inline void barrier_inits_done() {}
inline void barrier_expect(u32 b, u32 bytes) { barriers[b].bytes += bytes, arrive(b); }
inline void barrier_arrive(u32 b) { arrive(b); }
inline void barrier_wait(u32 b, u32 phase) { while (barriers[b].phase == phase) simulation::give_way(); }
inline void tma_load(u32 to, const TensorMap* map, u32 barrier, int word, int line, int other) {
  if (to % 1024) fprintf(stderr, "a box at %u\n", to), abort();
  const auto& axis = map->axis;
  for (u64 o = 0, at = 0; o < axis[2][2]; o++)
    for (u64 l = 0; l < axis[1][2]; l++, at++)
      for (u64 w = 0; w < 32; w++) {
        const bool inside = other + o < axis[2][0] && line + l < axis[1][0] && word + w < axis[0][0];
        const u64 from = map->address + (other + o) * axis[2][1] + (line + l) * axis[1][1] + 4 * (word + w);
        const u64 place = to + 128 * at + ((w / 4) ^ (at & 7)) * 16 + w % 4 * 4;
        *(u32*)((unsigned char*)memory + place) = inside ? *(u32*)from : 0;
      }
  brought(barrier, (u32)(128 * axis[1][2] * axis[2][2]));
}
"""
DMMA = r"""
#pragma once
inline void dmma(double (&c)[2], double a, double b) {
  struct Pair { double a, b; };
  const int lane = threadIdx.x % 32;
  simulation::exchange(Pair{a, b}, [&](auto of) {
    for (int e = 0; e < 2; e++)
      for (int k = 0; k < 4; k++)
        c[e] = __builtin_fma(of(lane / 4 * 4 + k).a, of((2 * (lane % 4) + e) * 4 + k).b, c[e]);
  });
}
"""
SHIM = r"""
#include "cuda_on_cpu.h"
#include <map>
#include <cmath>
#define __grid_constant__
#undef __shared__
#define __shared__
#define __ldg(p) (*(p))
#define __fmaf_rn __builtin_fmaf
#define __fma_rn __builtin_fma
#define uint2 own_uint2
struct alignas(8) float2 { float x, y; };
inline void __syncwarp() { simulation::meet(); }
struct Barrier { int expected, pending; long bytes; unsigned phase; };
static std::map<unsigned, Barrier> barriers;
static void look(Barrier& b) { if (!b.pending && !b.bytes) b.phase ^= 1, b.pending = b.expected; }
static void arrive(unsigned at) { Barrier& b = barriers[at]; b.pending--, look(b); }
static void brought(unsigned at, unsigned bytes) { Barrier& b = barriers[at]; b.bytes -= bytes, look(b); }
alignas(1024) MEMORY memory[(1 << 18) / sizeof(MEMORY)];
#include "KERNEL"
extern "C" void run(unsigned wide, unsigned high, unsigned threads, void** args) {
  struct Call { void** args; } own = {args};
  simulation::argument = &own;
  simulation::body = [](void* x) { PASS; };
  blockDim = {threads, 1, 1}, gridDim = {wide, high, 1};
  for (unsigned y = 0; y < high; y++)
    for (unsigned x = 0; x < wide; x++) {
      std::memset(memory, 0xAB, sizeof memory);
      barriers.clear(), blockIdx = {x, y, 0}, simulation::block(threads);
    }
}
"""


def library(plan, folder):
    """A plan's kernel, compiled for this processor."""
    for name in (
        "integers.cuh",
        "bit_patterns.cuh",
        "pipeline.cuh",
        *(path.name for path in KERNELS.glob("tallskinny*.cuh")),
        "ism2_tile.cuh",
    ):
        (folder / name).write_text((KERNELS / name).read_text())
    for name, text in (("hopper.cuh", HOPPER), ("tallskinny_copies.cuh", COPIES), ("tallskinny_dmma.cuh", DMMA)):
        (folder / name).write_text(text)
    for name in ("cuda_on_cpu.h", "fibers.h"):
        (folder / name).write_text((Path(__file__).parent / name).read_text())
    (folder / plan.file).write_text((KERNELS / plan.file).read_text())
    ring = plan.file == "tsm2_hopper.cu"
    passed = f"void** a = ((Call*)x)->args; {plan.entry}(*(Operands*)a[0]{', *(TensorMap*)a[1]' if ring else ''})"
    text = SHIM.replace("KERNEL", plan.file).replace("PASS", passed)
    text = text.replace("MEMORY", "unsigned char" if ring else "REAL")
    text = plan.constants + text
    all_texts = text + "".join(path.read_text() for path in sorted((*folder.glob("*.cu*"), *folder.glob("*.h"))))
    stem = folder / hashlib.sha256(all_texts.encode()).hexdigest()[:16]
    if not stem.with_suffix(".so").exists():
        stem.with_suffix(".cpp").write_text(text)
        flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-w", f"-I{folder}", str(stem.with_suffix(".cpp"))]
        subprocess.run([str(emulation.compiler()), *flags, "-o", str(stem.with_suffix(".so"))], check=True)
    return ctypes.CDLL(str(stem.with_suffix(".so")))


def run(plan, problem, folder):
    """Run a plan on a problem whose addresses are this machine's."""
    axes = plan.box(problem) if plan.tensor else ((0, 0, 0),) * 3
    tensor = np.array([problem.addresses[0], *sum(axes, ())], np.uint64)
    step = plan.step(problem)
    operands = np.frombuffer(step.arguments[0].pack()[0], np.uint8)
    pointers = (ctypes.c_void_p * 2)(*(x.ctypes.data for x in (operands, tensor)))
    library(plan, folder).run(*step.grid, step.block, pointers)
