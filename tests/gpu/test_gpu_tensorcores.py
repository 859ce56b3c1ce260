"""The mma.sync kernels of all schemes, run on this processor: the bits of fpemu.gemm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fpemu
from fpemu.gpu.gemm.mma_sync import fused, general
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma import KOrder
from fpemu.schemes.base import build
from tests import cuda_on_cpu
from tests.cuda_on_cpu import processor
from tests.tiles import tiles_of

__all__ = ["processor"]
ADA = (8, 9)  # compute capability of a GPU without TMA


def differing(kernel, A, B, C=None, *, alpha=1.0, beta=0.0, policy="raise", want=None):
    """How many outputs of a kernel are not those of the emulator."""
    D = cuda_on_cpu.multiply(kernel, A, B, C, alpha=alpha, beta=beta, policy=policy)
    if want is None:
        want = fpemu.gemm(A, B, C, alpha=alpha, beta=beta, on_range=policy, **kernel.arguments)
    return np.count_nonzero(D.view(np.uint32) != want.view(np.uint32))


def smallest(name, hardware="H200", in_memory=False, **options):
    """The kernel with the smallest tile, on a processor the quickest."""
    scheme = build(name, options)
    spec = scheme.spec(hardware)
    kernel = fused.kernel(scheme, spec, (64, 64, 256), words=in_memory)
    return fused.kernel(scheme, spec, (64, 64, 256), tile=tiles_of(kernel)[-1])


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


@pytest.mark.parametrize("name", first_fast(FUSED))
def test_the_kernel_gives_the_bits_of_the_emulator(processor, name):
    processor()
    scheme, options = FUSED[name]
    kernel = smallest(scheme, **options)
    rng = np.random.default_rng([*name.encode()])
    assert kernel.name.startswith("mma 32x32")
    A, B = wide(rng, (20, 72)), wide(rng, (72, 24))
    assert differing(kernel, A, B, policy="propagate" if scheme == "fp16" else "scale-rows") == 0
    A, B, C = anything(rng, (2, 35, 100)), anything(rng, (100, 33)), wide(rng, (35, 1))
    policy = "propagate"
    if scheme == "staged":
        A, B, policy = np.clip(A, -1, 1), np.clip(B, -1, 1), "scale"
    C = np.broadcast_to(C, (35, 33))
    assert differing(kernel, A, B, C, alpha=1.5, beta=-0.75, policy=policy) == 0


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


@pytest.mark.parametrize("name", first_fast(FROM_MEMORY))
def test_words_from_memory_give_the_bits_of_the_emulator(processor, name):
    processor(ADA)
    scheme, options = FROM_MEMORY[name]
    kernel = smallest(scheme, "ada", in_memory=True, **options)
    assert kernel.name.startswith("mma 32x32")
    assert "of words" in kernel.name
    assert not kernel.tile.bulk
    rng = np.random.default_rng([*name.encode()])
    A, B = (wide(rng, shape) * np.float32(2.0**-30) for shape in ((2, 35, 200), (200, 33)))
    assert differing(kernel, A, B, policy="scale-rows") == 0
    A, B = anything(rng, (2, 20, 20)), anything(rng, (20, 34))
    assert differing(kernel, A, B, wide(rng, (20, 34)), alpha=1.5, beta=-0.75, policy="propagate") == 0


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


@pytest.mark.parametrize("name", first_fast(BY_TMA))
def test_words_loaded_by_tma_give_the_bits_of_the_emulator(processor, name):
    processor()
    scheme, options, shape = BY_TMA[name]
    kernel = smallest(scheme, in_memory=True, **options)
    assert kernel.tile.bulk
    if name.startswith("three"):
        tile = replace(kernel.tile, stages=2)  # where warps wait for each other
        kernel = fused.kernel(kernel.scheme, kernel.spec, (64, 64, 256), tile=tile)
    rng = np.random.default_rng([*name.encode()])
    A, B = (wide(rng, s) * np.float32(2.0**-30) for s in (shape, (shape[-1], 34)))
    assert differing(kernel, A, B, policy="scale-rows") == 0
    A, B = anything(rng, shape), anything(rng, (shape[-1], 33))
    assert differing(kernel, A, B, wide(rng, (shape[-2], 33)), alpha=1.5, beta=-0.75, policy="propagate") == 0


def test_any_layout_and_no_pipeline_give_the_same_bits(processor):
    def matrix(x):
        return Matrix(x.ctypes.data, x.dtype, x.shape, tuple(s // x.itemsize for s in x.strides), x)

    processor()
    rng, scheme = np.random.default_rng(1), build("legemm", {})
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


@pytest.mark.parametrize("name", ORDERS)
def test_any_order_gives_the_bits_of_the_emulator(processor, name):
    processor(ADA)
    scheme, options, order = ORDERS[name]
    rng = np.random.default_rng([*name.encode()])
    A, B, C = anything(rng, (2, 18, 130)), anything(rng, (130, 10)), wide(rng, (18, 10))
    kernel = fpemu.gpu.kernel(scheme, 18, 10, 130, order=order, **options)
    assert kernel.name == "mma of any order"
    assert differing(kernel, A, B, C, beta=0.5, policy="propagate") == 0


def test_another_promotion_is_noticed(processor):
    processor()
    rng = np.random.default_rng(2)
    A, B = (rng.random(shape, np.float32) for shape in ((16, 200), (200, 16)))
    kernel = smallest("ootomo")
    other = fpemu.gemm(A, B, scheme="ootomo", hardware=kernel.spec, promote=64)
    assert differing(kernel, A, B) == 0
    assert differing(kernel, A, B, want=other) > 0
