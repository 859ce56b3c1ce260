"""Which mma.sync kernel runs what, with which tile; and that the texts compile for GPUs, without local memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fpemu import InputError, mma, schemes
from fpemu.gpu.gemm import choice
from fpemu.gpu.gemm.mma_sync import fused, source
from fpemu.gpu.runtime import compiler, device
from fpemu.mma import KOrder
from fpemu.schemes.base import build
from tests.tiles import frames, tiles_of

needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
SPLIT = [name for name in schemes.names() if schemes.get(name).runs_by_plan]


def test_every_split_scheme_has_a_kernel_and_most_run_in_one():
    with_split = 0
    for name in SPLIT:
        scheme = schemes.get(name)
        for gpu_name in ("A100", "H200"):
            spec = scheme.spec(gpu_name)
            kernel = fused.kernel(scheme, spec, (512, 512, 512))
            assert kernel is not None, name
            assert kernel.spec is spec
            with_split += isinstance(kernel, fused.FusedKernel)
    assert with_split == 2 * len(SPLIT) >= 20


def test_a_scheme_that_is_more_than_its_plan_is_left_to_others():
    class Own(type(schemes.get("ootomo"))):
        runs_by_plan = False  # its product would not follow the plan

    scheme = Own()
    assert fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9)) is None


def test_wgmma_is_stood_in_for_where_the_arithmetic_is_the_same():
    assert fused.stand_in(mma.spec("H200", "fp16")).instruction == "mma"
    assert fused.stand_in(mma.spec("H200", "e4m3")) is None  # 13 fraction bits there, another way here
    assert fused.stand_in(mma.spec("H200", "fp16").replace(F=24)) is None
    scheme = build("multiword", {"fmt": "e4m3"})
    assert fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9)).name == "wgmma of any order"
    assert fused.kernel(scheme, scheme.spec("B200"), (9, 9, 9)) is None
    assert fused.kernel(schemes.get("sgemm"), None, (9, 9, 9)) is None


@pytest.mark.parametrize(
    ("options", "order", "expected"),
    [
        ({}, None, (16, (0, 0, 0), (16, 0), 32)),
        ({"promote": 64, "step": 64}, None, (64, (0, 0, 0), (64, 0), 64)),
        ({"step": None}, None, (16, (0, 0, 1), (16, 0), 32)),
        ({}, KOrder(promote=96), (16, (0, 0, 0), (96, 96), 32)),
        ({"step": "2 instructions"}, None, (32, (0, 0, 0), (16, 0), 32)),
        ({"step": 24}, None, None),
        ({"step": 48}, None, None),
        ({"step": 64, "promote": 192}, None, (64, (0, 0, 0), (192, 0), 64)),
        ({"step": 1000, "promote": 1001}, None, (16, (0, 0, 1), (0, 0), 32)),
        ({}, KOrder(split=64), None),
        ({}, KOrder(tile=40), None),
        ({}, KOrder(tile=400), (16, (0, 0, 0), (16, 0), 32)),
    ],
)
def test_what_runs_in_one_kernel(options, order, expected):
    scheme = build("ootomo", options)
    how = source.fused(scheme.lowering(scheme.spec("A100"), order), 2, 300)
    assert (how and (how.turn, how.passes, how.promote, how.stretch)) == expected


def test_large_products_take_words_from_memory_and_narrow_ones_split_in_their_loads():
    scheme = schemes.get("legemm")
    spec = scheme.spec("H200")

    def stages(*shape, **hints):
        return fused.kernel(scheme, spec, shape, **hints).tile.stages

    assert stages(4096, 4096, 64) >= 2
    assert stages(512, 512, 64) >= 2
    assert stages(511, 4096, 64) == 0
    assert stages(10**6, 16, 64) == stages(64, 64, 10**4) == 0
    assert stages(4096, 4096, 64, pipeline=False) == 0
    lowering = scheme.lowering(spec)
    small = source.splitting_tiles(lowering, 2, source.fused(lowering, 2, 64), 1 << 16)
    assert stages(4096, 4096, 64, tile=small[0]) == 0
    kernel = fused.kernel(scheme, spec, (64, 64, 64), words=True)
    texts = {kernel.source((layout, "ALONG_K"), False, True) for layout in source.LAYOUTS}
    assert len(texts) == 1  # how the operands lie is the split's business
    assert kernel.source(("ALONG_K", "ALONG_K"), True, True) not in texts


def test_tma_brings_words_from_hopper_on_but_not_where_sums_are_promoted_after_every_instruction(monkeypatch):
    for new in (False, True):
        monkeypatch.setattr(device, "overlaps_launches", lambda new=new: new)
        for name in ("bf16x9", "markidis", "ootomo-tf32"):
            scheme = schemes.get(name)
            kernel = fused.kernel(scheme, scheme.spec("H200"), (4096, 4096, 64))
            by_tma = new and name != "ootomo-tf32"
            assert kernel.tile.stages > 0
            assert kernel.name.endswith("by TMA") == kernel.tile.bulk == by_tma
            assert all(tile.bulk == by_tma for tile in tiles_of(kernel))


def test_tiles_are_chosen_by_size(monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda: 132)
    scheme = schemes.get("ootomo")
    spec = scheme.spec("H200")
    large, small = (fused.kernel(scheme, spec, (n, n, n)).tile for n in (8192, 256))
    assert large.M * large.N > small.M * small.N
    assert fused.kernel(scheme, spec, (512, 512, 512)).tile.M == 32  # as good as 64 by the model: the smallest
    with pytest.raises(InputError, match=r"ootomo: no tile 512x512x\d+ of words, \d stages; it has 128x128x"):
        fused.kernel(scheme, spec, (64, 64, 64), tile=replace(large, M=512, N=512))
    with pytest.raises(InputError, match="leave tile= out"):
        fused.kernel(scheme, spec, (64, 64, 64), KOrder(split=32), tile=large)
    with pytest.raises(InputError, match="without promote"):
        fused.kernel(build("h2sgemm", {"combine": "element-wise"}), spec, (9, 9, 9), KOrder(promote=32))


# --- for GPUs
@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "gpu_name", "arch"),
    [
        pytest.param("legemm", "A100", "sm_80", marks=pytest.mark.slow),
        ("bf16x9", "H200", "sm_90a"),
        pytest.param("fp16", "B200", "sm_100a", marks=pytest.mark.slow),
    ],
)
def test_kernels_for_words_in_memory_compile_without_local_memory(name, gpu_name, arch, monkeypatch):
    monkeypatch.setattr(device, "overlaps_launches", lambda: arch != "sm_80")
    scheme = schemes.get(name)
    kernel = fused.kernel(scheme, scheme.spec(gpu_name), (8192, 8192, 64))
    assert kernel.tile.bulk == (arch != "sm_80")
    assert frames(compiler.compile(kernel.source(("ALONG_K", "ALONG_K"), False, False), arch)) == [0]


@needs_nvrtc
@pytest.mark.parametrize("name", ["ootomo", "ootomo-tf32", "multiword"])
def test_kernels_compile_without_local_memory(name):
    rng = np.random.default_rng([*name.encode()])
    scheme = schemes.get(name)
    gpu_name = "H200" if len(name) % 2 else "A100"
    given = fused.kernel(scheme, scheme.spec(gpu_name), (64, 64, 64))
    assert isinstance(given, fused.FusedKernel)
    known = tiles_of(given)
    kernel = fused.kernel(scheme, given.spec, (64, 64, 64), tile=known[-2 if name == "ootomo" else -1])
    layouts = tuple(rng.choice(source.LAYOUTS, 2))
    text = kernel.source(layouts, *(rng.random(2) < 0.5).tolist())
    assert frames(compiler.compile(text, "sm_90a" if gpu_name == "H200" else "sm_80", name=name)) == [0]


@needs_nvrtc
def test_the_kernels_of_any_order_compile():
    for name, options, arch in (("ootomo", {}, "sm_80"), ("multiword", {"fmt": "e4m3"}, "sm_90a")):
        scheme = build(name, options)
        spec = scheme.spec("A100" if arch == "sm_80" else "H200")
        kernel = fused.kernel(scheme, spec, (64, 64, 64), KOrder(split=32))
        assert set(frames(compiler.compile(kernel.source(), arch))) == {0}


@pytest.mark.parametrize("sizes", [(2**31, 1, 1), (1, 1, 2**31 - 1)])
def test_sizes_beyond_the_counters_of_the_kernels_are_refused(sizes):
    spec = mma.spec("hopper", "fp16", "fp32")
    with pytest.raises(InputError, match="2147479552 at most"):
        choice.find.__wrapped__(build("staged", {}), spec, sizes, None)


def test_positions_of_k_on_ordinary_cores_fit_into_their_table():
    with pytest.raises(InputError, match=r"dgemm: K = 2147483648 .* split the product"):
        choice.find.__wrapped__(build("dgemm", {}), None, (1, 1, 2**31), None)
