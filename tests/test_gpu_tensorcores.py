"""The mma.sync kernels of all schemes, simulated on this processor: the bits of fpemu.gemm; they compile for GPUs."""

from __future__ import annotations

from dataclasses import replace
from struct import unpack_from

import numpy as np
import pytest
import simulated

import fpemu
from fpemu import InputError, mma, schemes
from fpemu.gpu import device, emulation, properties, splitting
from fpemu.gpu.kernel import Prepared
from fpemu.gpu.matrices import Matrix
from fpemu.gpu.tensorcores import fused, operation, source
from fpemu.mma import KOrder
from fpemu.schemes import ranges
from fpemu.schemes.base import build

needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
needs_nvrtc = pytest.mark.skipif(device.compiler_missing() is not None, reason=str(device.compiler_missing()))
SPLIT = [name for name in schemes.names() if fused.by_plan(schemes.get(name))]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    """This processor in a GPU's place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated.Module, "folder", tmp_path_factory.mktemp("kernels"))
        patch.setattr(device, "Module", simulated.Module)
        patch.setattr(device, "Buffer", simulated.Buffer)
        patch.setattr(device, "synchronize", lambda: None)
        patch.setattr(properties, "multiprocessors", lambda: 132)
        yield


def matrix(x):
    return Matrix(x.ctypes.data, x.dtype, x.shape, tuple(s // x.itemsize for s in x.strides), x)


def prepared(scheme, X, who, on_range, words=False):
    """As `Kernel.prepare` leaves it, by NumPy; words: with them."""
    ready = ranges.prepare(X, who, scheme.rules(), on_range, scheme._policy(on_range), scheme.name)
    found = Prepared(matrix(X), who)
    lines = (*X.shape[:-2], X.shape[-2] if who == "A" else X.shape[-1])
    if scheme._policy(on_range).startswith("scale"):
        one = ready.exponents[..., 0] if who == "A" else ready.exponents[..., 0, :]
        found.exponents = device.Buffer.of(np.broadcast_to(one, lines).astype(np.int32))
    if on_range != "raise":
        special = np.zeros(lines, bool) if ready.special is None else ready.special
        found.special = device.Buffer.of(special.astype(np.uint8))
    if words:
        found.pitch = -(-X.shape[-1 if who == "A" else -2] // splitting.PITCH) * splitting.PITCH
        sides = [np.asarray(w) if who == "A" else np.asarray(w).swapaxes(-1, -2) for w in ready.words]
        ends = [(0, 0)] * (X.ndim - 1) + [(0, found.pitch - sides[0].shape[-1])]
        codes = [rule.format.encode(np.pad(w, ends)) for rule, w in zip(scheme.rules(), sides, strict=True)]
        found.words = tuple(device.Buffer.of(code) for code in codes)
    return found, ready.special


def differing(kernel, A, B, C=None, *, alpha=1.0, beta=0.0, on_range="raise", want=None):
    """How many outputs of a kernel are not those of the emulator, where NaN and Inf do not reach."""
    simulated.Module.spec = kernel.row
    words = isinstance(kernel, fused.WordsKernel)
    (a, rows), (b, columns) = (prepared(kernel.scheme, X, who, on_range, words) for X, who in ((A, "A"), (B, "B")))
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
    return fused.kernel(scheme, spec, (64, 64, 256), order, tile=fused.tiles_of(kernel)[-1])


def wide(rng, shape):
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-24, 6, shape))).astype(np.float32)


def anything(rng, shape):
    x = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return x if rng.random() < 0.5 else np.where(np.isfinite(x), x, np.float32(0))


FUSED = {
    "two sums, one promoted every instruction": ("ootomo", {}),
    "four passes over K": ("markidis", {}),
    "element-wise, turns of two instructions": ("h2sgemm", {"combine": "element-wise", "step": 32}),
    "words of bf16, joined in fp64": ("multiword", {"words": 3, "format": "bf16", "combine_in": "fp64"}),
    "fp16 sums, promoted after several stretches": ("fp16", {"accumulator": "fp16", "promote": 64}),
    "rows scaled, turns as long as a stretch": ("staged", {}),
}


@needs_compiler
@pytest.mark.parametrize("name", FUSED)
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
    "a pass over K after another": ("markidis", {}),
    "three words, five sums": ("bf16x9", {}),
    "words of four bytes": ("ootomo-tf32", {}),
    "a stretch longer than the words' padding": ("multiword", {"words": 1, "format": "e5m2", "instruction": "mma"}),
}


@needs_compiler
@pytest.mark.parametrize("name", FROM_MEMORY)
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


@needs_compiler
def test_any_layout_and_no_pipeline_give_the_same_bits(gpu):
    rng = np.random.default_rng(1)
    scheme = build("legemm", {})
    given = fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9))
    kernel = fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9), tile=fused.tiles_of(given)[-1], pipeline=False)
    A, B = (rng.random(shape, np.float32) for shape in ((40, 67), (67, 35)))
    big = np.zeros((90, 140), np.float32)
    big[3:83:2, 2:136:2] = A  # no axis is contiguous
    assert operation.layout(matrix(big[3:83:2, 2:136:2]), "A") == "ALONG_ROWS"
    assert operation.layout(matrix(np.asfortranarray(B)), "B") == "ALONG_K"
    assert operation.layout(matrix(np.zeros((4, 8), np.float32)), "A") == "ALONG_K_BY_FOUR"
    assert differing(kernel, big[3:83:2, 2:136:2], np.asfortranarray(B)) == 0


ORDERS = {
    "slices of tiles, the residue first": ("ootomo", {}, KOrder(split=56, tile=32, residue_first=True)),
    "slices joined by pairs, an odd promotion": ("bf16x3", {}, KOrder(split=30, join="pairwise", promote=20)),
    "an odd step": ("egemm", {"step": 24}, None),
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


# --- which kernel
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
        def product(self, *args):
            return super().product(*args)

    scheme = Own()
    assert fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9)) is None


def test_wgmma_is_stood_in_for_where_the_arithmetic_is_the_same():
    assert fused.stand_in(mma.spec("H200", "fp16")).instruction == "mma"
    assert fused.stand_in(mma.spec("H200", "e4m3")) is None  # 13 fraction bits there, another way here
    assert fused.stand_in(mma.spec("H200", "fp16").replace(F=24)) is None
    scheme = build("multiword", {"format": "e4m3"})
    assert fused.kernel(scheme, scheme.spec("H200"), (9, 9, 9)).name == "wgmma of any order"
    assert fused.kernel(scheme, scheme.spec("B200"), (9, 9, 9)) is None
    assert fused.kernel(schemes.get("sgemm"), None, (9, 9, 9)) is None


@pytest.mark.parametrize(
    ("options", "order", "expected"),
    [
        ({}, None, (16, (0, 0, 0), (16, 0), 32)),
        ({"promote": 64, "correction_step": 64}, None, (64, (0, 0, 0), (64, 0), 64)),
        ({"correction_step": None}, None, (16, (0, 0, 1), (16, 0), 32)),
        ({}, KOrder(promote=96), (16, (0, 0, 0), (96, 96), 32)),
        ({"correction_step": 24}, None, None),
        ({"correction_step": 1000, "promote": 1001}, None, (16, (0, 0, 1), (0, 0), 32)),
        ({}, KOrder(split=64), None),
        ({}, KOrder(tile=40), None),
        ({}, KOrder(tile=400), (16, (0, 0, 0), (16, 0), 32)),
    ],
)
def test_what_runs_in_one_kernel(options, order, expected):
    scheme = build("ootomo", options)
    how = source.fused(scheme.plan(), scheme.spec("A100"), order, 300)
    assert (how and (how.turn, how.passes, how.promote, how.stretch)) == expected


def test_large_products_take_words_from_memory_and_narrow_ones_split_in_their_loads():
    scheme = schemes.get("legemm")
    spec = scheme.spec("H200")

    def stages(*shape, **hints):
        return fused.kernel(scheme, spec, shape, **hints).tile.stages

    assert stages(4096, 4096, 64) >= 2
    assert stages(10**6, 16, 64) == stages(64, 64, 10**4) == 0
    assert stages(4096, 4096, 64, pipeline=False) == 0
    small = source.splitting_tiles(scheme, fused.stand_in(spec), source.fused(scheme.plan(), spec, None, 64), 1 << 16)
    assert stages(4096, 4096, 64, tile=small[0]) == 0
    kernel = fused.kernel(scheme, spec, (64, 64, 64), words=True)
    texts = {kernel.source((layout, "ALONG_K"), True, False, True) for layout in source.LAYOUTS}
    assert len(texts) == 1  # how the operands lie is the split's business
    assert kernel.source(("ALONG_K", "ALONG_K"), True, True, True) not in texts


def test_tiles_are_chosen_by_size(monkeypatch):
    monkeypatch.setattr(properties, "multiprocessors", lambda: 132)
    scheme = schemes.get("ootomo")
    spec = scheme.spec("H200")
    large, small = (fused.kernel(scheme, spec, (n, n, n)).tile for n in (8192, 256))
    assert large.M * large.N > small.M * small.N
    with pytest.raises(InputError, match=r"ootomo: no tile 512x512x\d+ of words, \d stages; it has 128x128x"):
        fused.kernel(scheme, spec, (64, 64, 64), tile=replace(large, M=512, N=512))
    with pytest.raises(InputError, match="leave tile= out"):
        fused.kernel(scheme, spec, (64, 64, 64), KOrder(split=32), tile=large)
    with pytest.raises(InputError, match="without promote"):
        fused.kernel(build("h2sgemm", {"combine": "element-wise"}), spec, (9, 9, 9), KOrder(promote=32))


# --- for GPUs
def frames(cubin):
    """Bytes of local memory that each kernel's threads have, from the attributes in a cubin (EIATTR_FRAME_SIZE)."""
    assert cubin[:4] == b"\x7fELF"
    sections, size, count, names = (
        unpack_from("<Q", cubin, 40)[0], *(unpack_from("<H", cubin, at)[0] for at in (58, 60, 62)),
    )  # fmt: skip
    headers = [unpack_from("<IIQQQQ", cubin, sections + i * size) for i in range(count)]
    found = []
    for name, _, _, _, offset, length in headers:
        label = cubin[headers[names][4] + name :].split(b"\0")[0]
        at = offset
        while label == b".nv.info" and at < offset + length:
            form, attribute, extra = unpack_from("<BBH", cubin, at)
            if form == 4:
                found += [unpack_from("<I", cubin, at + 8)[0]] if attribute == 0x11 else []
                at += extra
            at += 4
    return found


@needs_nvrtc
@pytest.mark.parametrize(("name", "gpu_name", "arch"), [("legemm", "H200", "sm_90a"), ("fp16", "A100", "sm_80")])
def test_kernels_for_words_in_memory_compile_without_local_memory(name, gpu_name, arch):
    scheme = schemes.get(name)
    kernel = fused.kernel(scheme, scheme.spec(gpu_name), (8192, 8192, 64))
    assert isinstance(kernel, fused.WordsKernel)
    assert frames(device.compile(kernel.source(("ALONG_K", "ALONG_K"), True, False, False), arch)) == [0]


@needs_nvrtc
@pytest.mark.parametrize("name", ["ootomo", "ootomo-tf32", "multiword"])
def test_kernels_compile_without_local_memory(name):
    rng = np.random.default_rng([*name.encode()])
    scheme = schemes.get(name)
    gpu_name = "H200" if len(name) % 2 else "A100"
    given = fused.kernel(scheme, scheme.spec(gpu_name), (64, 64, 64))
    assert isinstance(given, fused.FusedKernel)
    known = fused.tiles_of(given)
    kernel = fused.kernel(scheme, given.spec, (64, 64, 64), tile=known[-2 if name == "ootomo" else -1])
    layouts = tuple(rng.choice(source.LAYOUTS, 2))
    text = kernel.source(layouts, True, *(rng.random(2) < 0.5))
    assert frames(device.compile(text, "sm_90a" if gpu_name == "H200" else "sm_80", name=name)) == [0]


@needs_nvrtc
def test_the_kernels_of_any_order_compile():
    for name, options, arch in (("ootomo", {}, "sm_80"), ("multiword", {"format": "e4m3"}, "sm_90a")):
        scheme = build(name, options)
        spec = scheme.spec("A100" if arch == "sm_80" else "H200")
        kernel = fused.kernel(scheme, spec, (64, 64, 64), general=True)
        assert set(frames(device.compile(kernel.source(), arch))) == {0}
