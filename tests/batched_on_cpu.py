"""The batched kernels on this processor in a GPU's place: built once in a session, on matrices between fences."""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fpemu import batched, mma
from fpemu.gpu.batched import call, choice, products, stacks
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import callers, compiler, device, launches, matrices, modules
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.verification.batched import SPECIAL
from tests import simulated

needs_compiler = pytest.mark.skipif(
    emulation.compiler() is None or not hasattr(os, "fork"), reason="no C++ compiler here, or no processes to fork"
)

# What a warp does together, over the lanes of cuda_on_cpu.h.
_TOGETHER = """
#include "mma_on_cpu.h"
template <class F> inline u32 pair_of(F half) { return half(0) | half(1) << 16; }
template <bool TRANSPOSED, int R> inline void rows_either(u32 (&r)[R], const unsigned char* row) {
  if (!TRANSPOSED) return rows_of_lanes(r, row);
  simulation::exchange(row, [&](auto given) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < R; i++)
      r[i] = pair_of([&](int e) -> u32 {
        const unsigned char* from = given(8 * i + 2 * (lane % 4) + e);
        if ((uintptr_t)from % 16) std::abort();
        unsigned short h;
        return std::memcpy(&h, from + 2 * (lane / 4), 2), h;
      });
  });
}
"""
# No byte besides those of the operands may be read: fences tell it of pages, this of bytes.
_READS = """
static unsigned long long bounds[16];
static int operands;
extern "C" void only(const unsigned long long* given, int count) {
  std::memcpy(bounds, given, 16 * count), operands = count;
  std::memset(memory, 0x7E, sizeof memory);  // NaN, where a kernel reads what it has not written
}
void reads(u64 at, int bytes) {
  bool found = operands == 0;
  for (int i = 0; i < operands; i++) found |= at >= bounds[2 * i] && at + bytes <= bounds[2 * i + 1];
  if (!found) std::fprintf(stderr, "%d bytes at %llx are no operand's\\n", bytes, at), std::abort();
}
"""
_MULTIPLY = "void multiply_add(Sum& c, const u32 (&a)[4], const u32 (&b)[2]) { simulated_mma(c.word, a, b); }\n"
_OF_KERNEL = {
    "batched_block": """
void sync_warp() { simulation::meet(); }
void arrival_init(u8* barrier) { *(int*)barrier = 0; }
void arrival_of(u8* barrier, int) { ++*(int*)barrier; }
void wait_for_arrival(u8* barrier, int phase) { while ((*(volatile int*)barrier & 1) == phase) simulation::give_way(); }
template <bool T> void load_rows(u32 (&r)[4], const u8* row) { rows_either<T>(r, row); }
template <bool T> void load_rows(u32 (&r)[2], const u8* row) { rows_either<T>(r, row); }
""",
    "batched_warp": """
u32 transposed(u32 x) {
  u32 made = 0;
  simulation::exchange(x, [&](auto given) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = 2 * (lane % 4);
    made = pair_of([&](int e) -> u32 { return given(4 * (t + e) + g / 2) >> 16 * (g % 2) & 0xFFFF; });
  });
  return made;
}
""",
    "batched_packed": """
bool any_of_warp(bool mine) {
  bool any = false;
  simulation::exchange(mine, [&](auto given) { for (int lane = 0; lane < 32; lane++) any |= given(lane); });
  return any;
}
""",
    "batched_small": "",
}
_COMMON = '#include "arithmetic.cuh"\n#include "cuda_on_cpu.h"\n'  # which has no kernel's own text: compiled once


class Simulated:
    """As `fpemu.gpu.runtime.modules.Module`."""

    def __init__(self, source, *, options=(), name="kernel.cu"):
        self.library = ctypes.CDLL(_built(source, name))

    def prepare(self, name, grid, block, *args, shared=0, overlap=False, keep=None):
        packed = [launches.pack(a) for a in args]
        pointers = np.array([p.ctypes.data for p in packed], np.uint64)
        assert shared <= 1 << 18
        return _Launch(self.library, getattr(self.library, f"run_{name}"), grid, block, pointers, (packed, keep))


class _Launch:
    def __init__(self, library, function, grid, block, pointers, keep):
        self.library, self.all = library, (function, grid, block, pointers, keep)

    def queue(self, stream=0):
        function, grid, block, pointers, _ = self.all
        function(ctypes.c_uint(grid), ctypes.c_uint(block), ctypes.c_void_p(pointers.ctypes.data))

    def only(self, operands):
        """Let nothing else be read."""
        bounds = np.array([np.lib.array_utils.byte_bounds(X) for X in operands], np.uint64)
        self.library.only(ctypes.c_void_p(bounds.ctypes.data), len(bounds))


@cache
def _folder():
    """Of this session's libraries, with what all have in common compiled already."""
    made = Path(tempfile.mkdtemp(prefix="batched"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    (made / "common.h").write_text(_COMMON)
    _compile("-x", "c++-header", str(made / "common.h"), "-o", str(made / "common.h.gch"))
    return made


def _compile(*arguments):
    flags = ["-std=c++17", "-O0", "-fPIC", "-w", "-ffp-contract=off", f"-I{Path(__file__).parent}"]
    command = [emulation.compiler(), *flags, f"-I{compiler.KERNELS}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


@cache
def _built(source, name):
    spec = mma.spec("hopper", "fp16", "fp16" if "FPEMU_HALF_SUMS 1" in source else "fp32", "mma")
    parts = [emulation.definition(spec), _TOGETHER, source, _READS, _MULTIPLY, _OF_KERNEL[name]]
    parts.append(f"FPEMU_KERNEL({name})")
    folder = _folder()
    stem = folder / f"kernel{len(list(folder.glob('*.cpp')))}"
    stem.with_suffix(".cpp").write_text("\n".join(parts))
    library = str(stem.with_suffix(".so"))
    _compile("-include", str(folder / "common.h"), "-shared", str(stem.with_suffix(".cpp")), "-o", library)
    return library


@pytest.fixture
def gpu(monkeypatch):
    """Kernels and buffers are this processor's."""
    monkeypatch.setattr(modules, "Module", Simulated)
    monkeypatch.setattr(device, "Buffer", simulated.Buffer)
    monkeypatch.setattr(device, "entered", nullcontext)
    monkeypatch.setattr(products, "need_gpu", lambda: None)
    call.module.cache_clear()
    yield
    call.module.cache_clear()


def matrix(x):
    return Matrix(x.ctypes.data, x.dtype, x.shape, tuple(s // x.itemsize for s in x.strides), x)


def differing(A, B, C=None, *, configuration, layout=None, pointers=False, **options):
    """How many outputs are not the emulator's, of matrices between fences."""
    of_kernel = {} if options.get("kernel") == "magma-small" else {"hardware": "hopper", "instruction": "mma"}
    emulator = batched.hgemm if layout is None else batched.hcgemm
    how = {} if layout is None else {"layout": layout}
    want = emulator(A, B, C, **options, **of_kernel, **how)
    poison = np.zeros(want.shape, np.float16)
    poison.view(np.uint16)[...] = 0xABAB
    wrong = 0
    for at_end in (True, False):
        *operands, D = (None if X is None else fenced(X, at_end) for X in (A, B, C, poison))
        given = [None if X is None else matrix(X) for X in operands]
        if pointers:
            given = [stacks._pointers([matrix(x) for x in X], "X") for X in operands[:2]] + given[2:]
        ready = products.prepare(*given, out=matrix(D), layout=layout, configuration=configuration, **options)
        read = [X for X in operands if X is not None] + [D] * (layout == "planar")
        child = os.fork()  # it dies if a fence is touched, or a byte that is no operand's
        if not child:
            for product in ready:
                product.launch.only(read)
                product.queue()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "something outside of the matrices was touched"
        assert untouched(D), "something beside the result was written"
        wrong += int(np.count_nonzero(D.view(np.uint16) != want.view(np.uint16)))
    return wrong


def fenced(x, at_end):
    """Copy an array to the end or the beginning of pages that lie between two inaccessible pages.

    Forked processes share the copy.
    """
    low, high = np.lib.array_utils.byte_bounds(x)
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    pages = -(-(high - low) // page)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    base = libc.mmap(None, (pages + 2) * page, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    for fence in (base, base + (pages + 1) * page):
        assert libc.mprotect(fence, page, 0) == 0
    start = base + page + (pages * page - (high - low) if at_end else 0)
    ctypes.memset(base + page, 0xCD, pages * page)
    ctypes.memmove(start, low, high - low)
    return np.ndarray(x.shape, x.dtype, (ctypes.c_char * (high - low)).from_address(start), 0, x.strides)


def untouched(x):
    """Whether the pages of a fenced array are as they were, beside it."""
    low, high = np.lib.array_utils.byte_bounds(x)
    begin, end = low // mmap.PAGESIZE * mmap.PAGESIZE, -(-high // mmap.PAGESIZE) * mmap.PAGESIZE
    return ctypes.string_at(begin, low - begin) + ctypes.string_at(high, end - high) == bytes(
        [0xCD] * (low - begin + end - high)
    )


def hostile(rng, *shape):
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 7, shape))).astype(np.float16)
    wild = rng.random(shape) < 0.01
    x.view(np.uint16)[wild] = rng.choice(SPECIAL, int(wild.sum()))
    return x


# ---- what users pass, on this machine's memory in the GPU's place
class Foreign:
    """An array of another GPU library."""

    def __init__(self, x, stream=None):
        self.x = x
        self.__cuda_array_interface__ = {
            "shape": x.shape,
            "strides": x.strides,
            "typestr": x.dtype.str,
            "data": (x.ctypes.data, False),
            "version": 3,
            "stream": stream,
        }


def copied(X, to=None):
    """As `fpemu.gpu.runtime.matrices.copy`."""

    def seen(Y):
        raw = (ctypes.c_char * (1 << 16)).from_address(Y.pointer)
        return np.ndarray(Y.shape, Y.dtype, raw, 0, tuple(s * Y.dtype.itemsize for s in Y.strides))

    if to is None:
        x = np.array(
            [
                seen(
                    matrices.Matrix(
                        X.pointer + X.dtype.itemsize * sum(s * i for s, i in zip(X.strides, at, strict=True)),
                        X.dtype,
                        (),
                        (),
                    )
                )[()]
                for at in np.ndindex(X.shape)
            ],
            X.dtype,
        ).reshape(X.shape)
        return matrix(x)
    seen(to)[...] = seen(X)
    return to


@pytest.fixture
def here(gpu, monkeypatch):
    """Simulate what `hgemm` calls on a GPU; return the streams that were waited for."""
    waited = []
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    monkeypatch.setattr(device, "entered", nullcontext)
    monkeypatch.setattr(device, "synchronize", lambda *_: None)
    monkeypatch.setattr(callers, "ordinals", lambda *pointers: [0] * len(pointers))
    monkeypatch.setattr(callers, "wait_for", lambda X: None)
    monkeypatch.setattr(callers, "_after", lambda waits, waited_for: waited.append((waits, waited_for)))
    monkeypatch.setattr(matrices, "copy", copied)
    choice.limits.cache_clear()
    yield waited
    choice.limits.cache_clear()
