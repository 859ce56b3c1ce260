"""The mma.sync kernels of all schemes, simulated on this processor: the bits of fpemu.gemm."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm import splitting
from fpemu.gpu.gemm.base import Prepared
from fpemu.gpu.gemm.mma_sync import fused, general
from fpemu.gpu.runtime import device, launches, modules, properties
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder
from fpemu.schemes import words
from fpemu.schemes.base import build
from tests import cuda_on_cpu, simulated
from tests.tiles import tiles_of

needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")


TMA = """
template <class T> u32 shared_address(const T* p) { return (u32)((const u8*)p - memory); }
struct Barrier { u8 count, left, phase; int bytes; };
Barrier& barrier_at(u32 at) { return *(Barrier*)(memory + at); }
void barrier_init(u32 at, int count) { barrier_at(at) = {(u8)count, (u8)count, 0, 0}; }
void barrier_inits_done() {}
void settle(Barrier& b) { if (!b.left && !b.bytes) b.left = b.count, b.phase ^= 1; }
void barrier_arrive(u32 at) { barrier_at(at).left--, settle(barrier_at(at)); }
void barrier_expect(u32 at, u32 bytes) { barrier_at(at).bytes += bytes, barrier_arrive(at); }
void barrier_wait(u32 at, u32 phase) { while (barrier_at(at).phase == phase) simulation::give_way(); }
void __syncwarp() { simulation::meet(); }
struct TensorMap { u64 word, size, lines, pitch, height, more[11]; };
void tma_load(u32 to, const TensorMap* m, u32 barrier, int k, int row, int) {
  for (int r = 0; r < (int)m->height; r++)
    for (int byte = 0; byte < 128; byte++) {
      const bool inside = row + r < (int)m->lines && k + byte / m->size < m->pitch;
      const u8* from = (const u8*)m->word + ((row + r) * m->pitch + k) * m->size + byte;
      memory[to + 128 * r + (byte / 16 ^ r % 8) * 16 + byte % 16] = inside ? *from : 0;
    }
  barrier_at(barrier).bytes -= 128 * (int)m->height, settle(barrier_at(barrier));
}
"""
"""Stand-in for hopper.cuh in split_gemm_tma.cu: copies complete at once, and barriers count them like TMA's."""


class Module(simulated.Module):
    def __init__(self, source, **more):
        source = source.replace("__grid_constant__ ", "").replace('#include "hopper.cuh"', TMA)
        super().__init__(source, **more)

    def prepare(self, *args, keep=None, overlap=False, **more):
        return SimpleNamespace(queue=lambda: self.launch(*args, **more), keep=keep)


def forget():
    """What belongs to the GPU, or to what stands for it."""
    for made in (fused._module, general._module):
        made.cache_clear()
    cuda_on_cpu.forget()


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    """This processor in a GPU's place."""
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated.Module, "folder", tmp_path_factory.mktemp("kernels"))
        patch.setattr(modules, "Module", Module)
        patch.setattr(device, "Buffer", simulated.Buffer)
        patch.setattr(device, "synchronize", lambda *_: None)
        patch.setattr(properties, "multiprocessors", lambda: 132)
        patch.setattr(splitting, "from_hopper_on", lambda: False)
        yield
    forget()


def matrix(x):
    return Matrix(x.ctypes.data, x.dtype, x.shape, tuple(s // x.itemsize for s in x.strides), x)


def prepared(scheme, X, who, on_range, in_memory=False):
    """As `Kernel.prepare` leaves it, by NumPy; in_memory: with the words."""
    ready = words.prepare(X, who, scheme.rules(), on_range, scheme.scaling(on_range), scheme.name)
    found = Prepared(matrix(X), who)
    lines = (*X.shape[:-2], X.shape[-2] if who == "A" else X.shape[-1])
    if scheme.scaling(on_range).startswith("scale"):
        one = ready.exponents[..., 0] if who == "A" else ready.exponents[..., 0, :]
        found.exponents = device.Buffer.of(np.broadcast_to(one, lines).astype(np.int32))
    if on_range != "raise":
        special = np.zeros(lines, bool) if ready.special is None else ready.special
        found.special = device.Buffer.of(special.astype(np.uint8))
    if in_memory:
        found.pitch = -(-X.shape[-1 if who == "A" else -2] // splitting.PITCH) * splitting.PITCH
        sides = [np.asarray(w) if who == "A" else np.asarray(w).swapaxes(-1, -2) for w in ready.words]
        ends = [(0, 0)] * (X.ndim - 1) + [(0, found.pitch - sides[0].shape[-1])]
        codes = [rule.format.encode(np.pad(w, ends)) for rule, w in zip(scheme.rules(), sides, strict=True)]
        found.words = tuple(device.Buffer.of(code) for code in codes)
    return found, ready.special


def differing(kernel, A, B, C=None, *, alpha=1.0, beta=0.0, on_range="raise", want=None):
    """How many outputs of a kernel are not those of the emulator, where NaN and Inf do not reach."""
    simulated.Module.spec = kernel.row
    in_memory = isinstance(kernel, fused.WordsKernel)
    (a, rows), (b, columns) = (prepared(kernel.scheme, X, who, on_range, in_memory) for X, who in ((A, "A"), (B, "B")))
    D = np.full((*np.broadcast_shapes(A.shape[:-2], B.shape[:-2]), A.shape[-2], B.shape[-1]), np.nan, np.float32)
    c = None if C is None else matrix(C).broadcast(D.shape)
    kernel.multiply(a, b, matrix(D), np.float32(alpha), np.float32(beta), c)
    want = fpemu.gemm(A, B, C, alpha=alpha, beta=beta, on_range=on_range, **kernel.arguments) if want is None else want
    wrong = D.view(np.uint32) != want.view(np.uint32)
    for special, axis in ((rows, -1), (columns, -2)):
        if special is not None:
            wrong &= ~np.expand_dims(special, axis)
    return np.count_nonzero(wrong)


def smallest(name, order=None, words_in_memory=False, **options):
    """The kernel with the smallest tile, on a processor the quickest."""
    scheme = build(name, options)
    spec = scheme.spec("H200")
    kernel = fused.kernel(scheme, spec, (64, 64, 256), order, words=words_in_memory)
    return fused.kernel(scheme, spec, (64, 64, 256), order, tile=tiles_of(kernel)[-1])


def wide(rng, shape):
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-24, 6, shape))).astype(np.float32)


def anything(rng, shape):
    x = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return x if rng.random() < 0.5 else np.where(np.isfinite(x), x, np.float32(0))


FUSED = {
    "two sums, one promoted every instruction": ("ootomo", {}),
    "four passes over K": ("markidis", {}),
    "element-wise, turns of two instructions": ("h2sgemm", {"combine": "element-wise", "step": 32}),
    "words of bf16, joined in fp64": ("multiword", {"words": 3, "fmt": "bf16", "combine_in": "fp64"}),
    "fp16 sums, promoted after several stretches": ("fp16", {"accumulator": "fp16", "promote": 64}),
    "rows scaled, turns as long as a stretch": ("staged", {}),
    "groups of products of several bands": ("egemm", {"accumulators": (("rr", "hh"), ("rh", "hr")), "promote": 64}),
}


def first_fast(names):
    """The first name as it is, the others marked slow: each compiles a kernel for this processor."""
    first, *others = names
    return [first, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


@needs_compiler
@pytest.mark.parametrize("name", first_fast(FUSED))
def test_the_kernel_gives_the_bits_of_the_emulator(gpu, name):
    scheme, options = FUSED[name]
    kernel = smallest(scheme, **options)
    rng = np.random.default_rng([*name.encode()])
    assert kernel.name.startswith("mma 32x32")
    half = scheme == "fp16"
    A, B = wide(rng, (20, 72)), wide(rng, (72, 24))
    assert differing(kernel, A, B, on_range="propagate" if half else "scale-rows") == 0
    A, B, C = anything(rng, (2, 35, 100)), anything(rng, (100, 33)), wide(rng, (35, 1))
    policy = "propagate" if half else "scale" if scheme == "staged" else "propagate"
    if policy == "scale":
        A, B = (np.clip(x, -1, 1) for x in (A, B))
    C = np.broadcast_to(C, (35, 33))
    assert differing(kernel, A, B, C, alpha=1.5, beta=-0.75, on_range=policy) == 0


FROM_MEMORY = {
    "stretches of 256, of which a block copies four rows at once": ("ootomo", {"step": 256}),
    "a pass over K after another": ("markidis", {}),
    "three words, five sums": ("bf16x9", {}),
    "words of four bytes": ("ootomo-tf32", {}),
    "one product in one sum, five in another": (
        "bf16x6",
        {"residual_scale": 1.0, "accumulators": "11; 31, 22, 13, 21, 12", "promote": "2 instructions"},
    ),
    "high words of A and of B by different rules": ("staged", {"instruction": "mma", "high_rounding": "balanced"}),
    "a stretch longer than the words' padding": ("multiword", {"words": 1, "fmt": "e5m2", "instruction": "mma"}),
}


@needs_compiler
@pytest.mark.parametrize("name", first_fast(FROM_MEMORY))
def test_words_from_memory_give_the_bits_of_the_emulator(gpu, name):
    scheme, options = FROM_MEMORY[name]
    kernel = smallest(scheme, words_in_memory=True, **options)
    assert kernel.name.startswith("mma 32x32")
    assert "of words" in kernel.name
    rng = np.random.default_rng([*name.encode()])
    A, B = (wide(rng, shape) * np.float32(2.0**-30) for shape in ((2, 35, 200), (200, 33)))
    assert differing(kernel, A, B, on_range="scale-rows") == 0
    A, B = anything(rng, (2, 20, 20)), anything(rng, (20, 34))
    assert differing(kernel, A, B, wide(rng, (20, 34)), alpha=1.5, beta=-0.75, on_range="propagate") == 0


def tensor_map(pointer, itemsize, shape, strides, box):
    assert strides == (shape[1] * shape[2] * itemsize, shape[2] * itemsize)
    assert box[1] * itemsize == 128
    return np.array([pointer, itemsize, *shape[1:], box[0], *[0] * 11], np.uint64)


BY_TMA = {
    "passes over K, and an empty end": ("markidis", {}, (2, 35, 200)),
    "three words, rows of a batch one after another": ("bf16x9", {}, (3, 20, 70)),
    "words of four bytes": ("multiword", {"words": 2, "fmt": "tf32"}, (18, 300)),
    "stretches that end beyond the words' padding": (
        "multiword",
        {"words": 2, "fmt": "e5m2", "instruction": "mma"},
        (33, 150),
    ),
}


@needs_compiler
@pytest.mark.parametrize("name", first_fast(BY_TMA))
def test_words_brought_by_tma_give_the_bits_of_the_emulator(gpu, name, monkeypatch):
    monkeypatch.setattr(splitting, "from_hopper_on", lambda: True)
    monkeypatch.setattr(launches, "tensor_map", tensor_map)
    scheme, options, shape = BY_TMA[name]
    kernel = smallest(scheme, words_in_memory=True, **options)
    assert isinstance(kernel, fused.BulkKernel)
    if name.startswith("three"):
        tile = replace(kernel.tile, stages=2)  # where warps wait for each other
        kernel = fused.BulkKernel(kernel.scheme, kernel.spec, kernel.row, None, kernel.how, tile)
    rng = np.random.default_rng([*name.encode()])
    A, B = (wide(rng, s) * np.float32(2.0**-30) for s in (shape, (shape[-1], 34)))
    assert differing(kernel, A, B, on_range="scale-rows") == 0
    A, B = anything(rng, shape), anything(rng, (shape[-1], 33))
    assert differing(kernel, A, B, wide(rng, (shape[-2], 33)), alpha=1.5, beta=-0.75, on_range="propagate") == 0


@needs_compiler
def test_any_layout_and_no_pipeline_give_the_same_bits(gpu):
    rng = np.random.default_rng(1)
    scheme = build("legemm", {})
    given = fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9))
    kernel = fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9), tile=tiles_of(given)[-1], pipeline=False)
    A, B = (rng.random(shape, np.float32) for shape in ((40, 67), (67, 35)))
    big = np.zeros((90, 140), np.float32)
    big[3:83:2, 2:136:2] = A  # no axis is contiguous
    assert general.layout(matrix(big[3:83:2, 2:136:2]), "A") == "ALONG_ROWS"
    assert general.layout(matrix(np.asfortranarray(B)), "B") == "ALONG_K"
    assert general.layout(matrix(np.zeros((4, 8), np.float32)), "A") == "ALONG_K_BY_FOUR"
    assert differing(kernel, big[3:83:2, 2:136:2], np.asfortranarray(B)) == 0


ORDERS = {
    "slices of tiles, the residue first": ("ootomo", {}, KOrder(split=56, tile=32, residue_first=True)),
    "slices joined by pairs, an odd promotion": ("bf16x3", {}, KOrder(split=30, join="pairwise", promote=20)),
    "an odd step": ("egemm", {"step": 24}, None),
    "high words of A and of B by different rules": ("staged", {"high_rounding": "balanced"}, KOrder(split=50)),
    "element-wise in slices": ("h2sgemm", {"combine": "element-wise"}, KOrder(split=50)),
}


@needs_compiler
@pytest.mark.parametrize("name", ORDERS)
def test_any_order_gives_the_bits_of_the_emulator(gpu, name):
    scheme, options, order = ORDERS[name]
    chosen = build(scheme, options)
    kernel = fused.kernel(chosen, chosen.spec("H200"), (20, 24, 130), order)
    assert kernel.name == "mma of any order"
    rng = np.random.default_rng([*name.encode()])
    A, B = anything(rng, (2, 18, 130)), anything(rng, (130, 10))
    assert differing(kernel, A, B, wide(rng, (18, 10)), beta=0.5, on_range="propagate") == 0


@needs_compiler
def test_another_promotion_is_noticed(gpu):
    rng = np.random.default_rng(2)
    A, B = (rng.random(shape, np.float32) for shape in ((16, 200), (200, 16)))
    kernel = smallest("ootomo")
    other = fpemu.gemm(A, B, scheme="ootomo", hardware=kernel.spec, promote=64)
    assert differing(kernel, A, B) == 0
    assert differing(kernel, A, B, want=other) > 0
