"""CUDA kernels on the CPU: every thread is a separate context, which waits where the block waits.

For kernels that use shared memory, barriers and atomics, and none of the warp's own instructions. `stand_in` puts it in
the place of the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import re
import subprocess
import sys

import numpy as np

from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm.base import Kernel
from fpemu.gpu.gemm.splitting import Splitter
from fpemu.gpu.runtime import callers, compiler, device, faults, launches, modules, native, properties, sequence
from fpemu.schemes import base, lowering, words
from tests.simulated import HERE, Buffer

SHIM = r"""
#include <cstdlib>
#include <tuple>
#include <utility>
#include "fibers.h"
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
struct Three { unsigned x, y, z; };
static Three threadIdx, blockIdx, blockDim, gridDim;
static Fiber block_of_threads, all[1024];
static unsigned running, together, together_before;
static void yield_() { continue_fiber(all[running], block_of_threads); }
static void __syncthreads() { yield_(); }
static int __syncthreads_or(int mine) { together |= mine != 0; yield_(); return together_before; }
template <class T> static T atomicAdd(T* at, T x) { T old = *at; *at += x; return old; }
template <class T> static T atomicMax(T* at, T x) { T old = *at; if (x > old) *at = x; return old; }
static void (*body)(void);
static void thread_body() { body(), all[running].done = true, yield_(); }
static void run_block(unsigned threads) {
  for (unsigned t = 0; t < threads; t++) all[t].prepare(thread_body);
  for (unsigned left = threads; left;) {
    left = 0, together = 0;
    for (running = 0; running < threads; running++) {
      if (all[running].done) continue;
      threadIdx = {running, 0, 0};
      continue_fiber(block_of_threads, all[running]);
      left += !all[running].done;
    }
    together_before = together;
  }
}
static void** given;
template <class... P, size_t... I>
static void call_(void (*f)(P...), std::index_sequence<I...>) { f(*(P*)given[I]...); }
template <class... P> static void call_all(void (*f)(P...)) { call_(f, std::index_sequence_for<P...>()); }
static void run_grid(unsigned blocks, unsigned threads, void** arguments) {
  given = arguments, gridDim = {blocks, 1, 1}, blockDim = {threads, 1, 1};
  for (unsigned b = 0; b < blocks; b++) blockIdx = {b, 0, 0}, run_block(threads);
}
"""


class HostLaunch(launches.Launch):
    """What `launches.Launch` is."""

    def __init__(self, name, run, grid, block, arguments, keep):
        self.name, self.arguments = name, [launches.pack(x) for x in arguments]
        self.run, self.grid, self.block, self.keep = run, grid, block, (keep, arguments)

    def issue(self, stream=0):
        pointers = (ctypes.c_void_p * len(self.arguments))(*(p.ctypes.data for p in self.arguments))
        self.run(ctypes.c_uint(self.grid), ctypes.c_uint(self.block), pointers)


class HostModule:
    """What `modules.Module` is: compiled once, kept for all tests of a run."""

    folder = None

    def __init__(self, source, *, name="kernel.cu"):
        names = re.findall(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(', source)
        made = [n for macro, n in re.findall(r"^(COPY|ALONE)\((\w+),", source, re.MULTILINE)]
        names = [n for n in names if not n.endswith("##BYTES") and n not in ("copy", "NAME")]
        names += [f"copy{n}" if n.isdigit() else n for n in made]
        lines = [SHIM, source]
        for n in names:
            lines.append(
                f"static void body_{n}() {{ call_all({n}); }}\n"
                f'extern "C" void run_{n}(unsigned b, unsigned t, void** a) {{ body = body_{n}; run_grid(b, t, a); }}'
            )
        text = "\n".join(lines)
        stem = self.folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        library = stem.with_suffix(".so")
        if not library.exists():
            stem.with_suffix(".cpp").write_text(text)
            flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-w", f"-I{compiler.KERNELS}", f"-I{HERE}"]
            command = [emulation.compiler(), *flags, str(stem.with_suffix(".cpp")), "-o", str(library)]
            subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(library))

    def prepare(self, name, grid, block, *arguments, keep=None, **_):
        return HostLaunch(name, getattr(self.library, f"run_{name}"), int(grid), block, arguments, keep)

    def launch(self, name, grid, block, *arguments, **_):
        self.prepare(name, grid, block, *arguments).queue()


def fetch(pointer, shape, dtype, stream=0):
    """What `device.fetch` does."""
    out = np.empty(shape, dtype)
    ctypes.memmove(out.ctypes.data, pointer, out.nbytes)
    return out


def stand_in(patch, folder, capability=(9, 0)):
    """Put this machine in the place of a GPU, by a pytest MonkeyPatch."""
    HostModule.folder = folder
    patch.setattr(device, "Buffer", Buffer)
    patch.setattr(modules, "Module", HostModule)
    patch.setattr(device, "missing", lambda: None)
    patch.setattr(compiler, "compile_all", lambda sources, arch: None)
    patch.setattr(device, "synchronize", lambda *_: None)
    patch.setattr(device, "fetch", fetch)
    patch.setattr(device, "entered", contextlib.nullcontext)
    patch.setattr(native, "calls", lambda: None)
    patch.setattr(device, "zero", lambda pointer, nbytes: ctypes.memset(pointer, 0, nbytes))
    patch.setattr(device, "fill_async", lambda pointer, byte, nbytes, stream: ctypes.memset(pointer, byte, nbytes))
    for name in ("_pools", "_entries", "_messages"):
        patch.setattr(faults, name, [])
    patch.setattr(faults, "_free", {})
    patch.setattr(faults, "Buffer", Buffer)
    patch.setattr(sequence, "Buffer", Buffer)
    patch.setattr(device, "capability", lambda: capability)
    patch.setattr(device, "describe", lambda: {"gpu": "this processor", "arch": device.arch()})
    patch.setattr(properties, "multiprocessors", lambda: 132)
    patch.setattr(callers, "ordinals", lambda *pointers: [0] * len(pointers))
    patch.setattr(callers, "free_bytes", lambda: 10**9)
    patch.setattr(callers, "_after", lambda waits, waited_for: None)
    forget()


def forget():
    """Empty what the modules keep between calls: it belongs to the GPU, or to its stand-in."""
    sys.modules["fpemu.gpu.gemm.recorded"].products.clear()
    sequence.arenas.clear()
    for name in [name for name in sys.modules if name.startswith(("fpemu.gpu.gemm", "fpemu.gpu.runtime.matrices"))]:
        for value in vars(sys.modules[name]).values():
            if hasattr(value, "cache_clear") and value.__module__ == name:
                value.cache_clear()


class Emulated(Kernel):
    """A kernel that multiplies the words it finds in memory by the emulator: what stands for one of the GPU's."""

    def __init__(self, scheme, spec, order):
        self.name, self.scheme, self.spec, self.order = "emulated", scheme, spec, order
        self.splitter = Splitter(scheme.rules(), scheme.scaling, words=True)

    def prepare_operands(self, operands, on_range):
        return self.splitter.prepare(operands, on_range)

    def multiply(self, a, b, D, alpha, beta, C):
        with np.errstate(all="ignore"):
            A, B = (self._words(x) for x in (a, b))
            spec = self.spec
            T = lowering.run(A, B, self.scheme.lowering(spec, self.order), spec)
            ready = [words.Prepared(np.zeros(0), (), self._exponents(x), None) for x in (a, b)]
            T = words.undo(T, *ready)
            c = None if C is None else view(C)
            d = np.broadcast_to(base.scaled(T, c, alpha, beta), D.shape).copy()
        d.view(np.uint32)[np.isnan(d)] = self.scheme.nan_code(spec)
        view(D)[...] = d

    def _words(self, x):
        K, lead = x.source.shape[-1 if x.name == "A" else -2], x.source.shape[:-2]
        fmt = self.scheme.rules()[0].format
        found = []
        for buffer in x.words:
            codes = buffer.array((*lead, x.rows, x.pitch), fmt.code_dtype)
            values = np.asarray(fmt.decode(codes[..., :K]))
            assert not codes[..., K:].any()
            found.append(values if x.name == "A" else values.swapaxes(-1, -2))
        return found

    def _exponents(self, x):
        if x.exponents is None:
            return np.zeros((1, 1), np.int32)
        e = x.exponents.array((*x.source.shape[:-2], x.rows), np.int32)
        return e[..., :, None] if x.name == "A" else e[..., None, :]


def view(X):
    """A matrix of the stand-in's memory as an array."""
    size = X.dtype.itemsize
    last = sum((n - 1) * s for n, s in zip(X.shape, X.strides, strict=True) if n)
    memory = (ctypes.c_uint8 * ((last + 1) * size)).from_address(X.pointer)
    flat = np.frombuffer(memory, X.dtype)
    return np.lib.stride_tricks.as_strided(flat, X.shape, [s * size for s in X.strides])


def emulated_kernels(patch):
    """`Emulated` in place of all kernels of split schemes."""
    choice = sys.modules["fpemu.gpu.gemm.choice"]
    patch.setattr(choice, "BUILDERS", (lambda scheme, spec, sizes, order: Emulated(scheme, spec, order),))
