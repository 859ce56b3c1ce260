"""`fpemu.gpu.gemm` is `fpemu.gemm` on the GPU: arrays of all kinds, the same bits, the same complaints.

Where there is no GPU, this machine stands in for it: the kernels that move, split, patch and multiply by FMAs run
here, and the emulator multiplies the words in the place of the matrix units.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fpemu
from fpemu import InputError, mma
from fpemu.cli import main
from fpemu.errors import GpuError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm import ordinary
from fpemu.gpu.runtime import callers, compiler, device, matrices
from fpemu.mma import KOrder
from fpemu.verification import kernels
from fpemu.verification.cases import LAYOUTS
from fpemu.verification.kernels import Kernels
from fpemu.verification.records import Record
from fpemu.verification.suite import Run
from tests import cuda_on_cpu
from tests.hostile import bits

PAIRS = KOrder(split=7, join="pairwise")
ON_A_GPU = device.missing() is None
choice = sys.modules["fpemu.gpu.gemm.choice"]
SCHEMES = {"ootomo": 8, "staged": 3, "sgemm": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def gpu(folder, monkeypatch):
    """The GPU, or this machine in its place."""
    if not ON_A_GPU:
        if emulation.compiler() is None:
            pytest.skip("neither a GPU nor a C++ compiler here")
        cuda_on_cpu.stand_in(monkeypatch, folder)
        cuda_on_cpu.emulated_kernels(monkeypatch)
    yield fpemu.gpu
    cuda_on_cpu.forget()


stand_in_only = pytest.mark.skipif(ON_A_GPU, reason="there is a GPU")


class Lent:
    """Another library's array: what ``__cuda_array_interface__`` says of memory on the GPU."""

    def __init__(self, x, **more):
        self.x, self.matrix = x, matrices.upload(x)
        size = x.dtype.itemsize
        strides = tuple(s * size for s in self.matrix.strides)
        interface = {"shape": x.shape, "typestr": x.dtype.str, "data": (self.matrix.pointer, False), "version": 3}
        self.__cuda_array_interface__ = interface | {"strides": strides} | more

    @property
    def content(self):
        return matrices.download(self.matrix)


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def assert_same(got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    wrong = bits(got) != bits(want)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} differ, the first at {np.argwhere(wrong)[0]}"


# --- the same bits
def test_drawn_products_of_some_schemes_have_the_emulators_bits_and_errors(gpu):
    outcomes = []
    for scheme, cases in SCHEMES.items():
        outcomes.append(Kernels(0, cases, emulated_on="cpu", paths=["host", "eager"]).run(scheme))
    for outcome in outcomes:
        assert outcome.ok, outcome.first
        assert outcome.outputs > 1000


@pytest.mark.parametrize(
    "order", [None, PAIRS, KOrder(split=9, tile=5, residue_first=True, promote=4, join="descending")], ids=str
)
def test_chains_of_fmas_in_any_order(order, gpu):
    for scheme, dtype in (("sgemm", np.float32), ("dgemm", np.float64)):
        A, B, C = draw((2, 1, 70, 33), dtype), draw((3, 33, 65), dtype), draw((70, 65), dtype)
        A[0, 0, 0, 0], B[1, 5, 5], A[1, 0, 8, 3] = np.nan, np.inf, 1e-30
        got = gpu.gemm(A, B, C, scheme=scheme, alpha=0.5, beta=-2.0, order=order)
        assert_same(got, fpemu.gemm(A, B, C, scheme=scheme, alpha=0.5, beta=-2.0, order=order))


def test_the_positions_of_an_order_are_those_of_its_segments():
    order = KOrder(split=20, tile=8, residue_first=True, promote=16, join="descending")
    ks, ends = ordinary.sequence(order, 45)
    flat = [
        k for chains in order.sequence(order.segments(45)) for chain in chains for a, b in chain for k in range(a, b)
    ]
    assert ks.tolist() == flat
    assert sorted(flat) == list(range(45))
    assert np.count_nonzero(ends & 2) == 3
    assert np.count_nonzero(ends & 1) == sum(len(chains) for chains in order.segments(45))


@pytest.mark.parametrize(
    "shapes", [((0, 3), (3, 2)), ((4, 0), (0, 2)), ((2, 0, 3), (3, 2)), ((0, 4, 3), (3, 2))], ids=str
)
@pytest.mark.parametrize("lent", [False, True])
def test_matrices_without_entries_and_alpha_zero(shapes, lent, gpu):
    A, B = (np.zeros(shape, np.float32) for shape in shapes)
    C = draw((*np.broadcast_shapes(A.shape[:-2], B.shape[:-2]), A.shape[-2], B.shape[-1]))
    if C.size:
        C[0] = -0.0
    for scheme in ("ootomo", "sgemm"):
        for more in [(None, {}), (C, {"beta": -2.0})]:
            arrays = [x if x is None or not lent else Lent(x) for x in (A, B, more[0])]
            got = gpu.gemm(*arrays, scheme=scheme, **more[1])
            assert_same(
                got.get() if lent else got, fpemu.gemm(A, B, more[0], scheme=scheme, hardware="hopper", **more[1])
            )
    X, Y, Z = draw((3, 4)), draw((4, 2)), draw((3, 2))
    X[0, 0] = np.nan  # not read
    arrays = [Lent(x) if lent else x for x in (X, Y, Z)]
    got = gpu.gemm(*arrays, scheme="ootomo", alpha=0, beta=3.0)
    assert_same(got.get() if lent else got, fpemu.gemm(X, Y, Z, scheme="ootomo", hardware="hopper", alpha=0, beta=3.0))


# --- arrays
@pytest.mark.parametrize("scheme", ["sgemm", "ootomo"])
def test_arrays_of_the_gpu_in_any_layout_stay_there_and_as_they_were(scheme, gpu):
    A, B, C = draw((2, 9, 20)), draw((20, 7)), draw((9, 7))
    wide = np.full((9, 12), np.nan, np.float32)
    wide[:, :7] = C
    arrays = [A, np.asfortranarray(B), wide[:, :7]]
    lent = [Lent(x) for x in arrays]
    D = gpu.gemm(*lent, scheme=scheme, alpha=2.0, beta=0.5)
    arguments = gpu.kernel(scheme, 9, 7, 20).arguments
    assert_same(D.get(), fpemu.gemm(A, B, C, alpha=2.0, beta=0.5, **arguments))
    assert D.__cuda_array_interface__["shape"] == (2, 9, 7)
    for x, before in zip(lent, arrays, strict=True):
        assert_same(x.content, np.ascontiguousarray(before))


def test_negative_strides_other_dtypes_and_dlpack(gpu):
    A, B = draw((6, 8)), draw((8, 5))
    want = fpemu.gemm(A[::-1, ::-1], B[::-1], scheme="sgemm")
    size, a, b = 4, Lent(A), Lent(B)
    a.__cuda_array_interface__ |= {"data": (a.matrix.pointer + 47 * size, False), "strides": (-32, -4)}
    b.__cuda_array_interface__ |= {"data": (b.matrix.pointer + 35 * size, False), "strides": (-20, 4)}
    assert_same(gpu.gemm(a, b, scheme="sgemm").get(), want)
    assert_same(gpu.gemm(A[::-1, ::-1], B[::-1], scheme="sgemm"), want)
    for dtype in (np.float64, np.float16, np.int32):
        X = (A * 100).astype(dtype)
        got = gpu.gemm(Lent(X), Lent(B), scheme="sgemm").get()
        assert_same(got, fpemu.gemm(X.astype(np.float32), B, scheme="sgemm"))


@stand_in_only
def test_dlpack_alone_is_enough(gpu):
    class Capsule:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, stream):
            assert stream == 1
            return self.x.__dlpack__()

        def __dlpack_device__(self):
            return 2, 0

    A, B = draw((6, 8)), np.asfortranarray(draw((8, 5)))
    assert_same(gpu.gemm(Capsule(A), Capsule(B), scheme="sgemm").get(), fpemu.gemm(A, B, scheme="sgemm"))
    with pytest.raises(InputError, match="A has elements of type complex128"):
        gpu.gemm(Capsule(A.astype(complex)), Capsule(B), scheme="sgemm")


def test_the_result_can_be_written_into_an_array_of_the_caller(gpu):
    A, B = Lent(draw((6, 8))), Lent(draw((8, 5)))
    out = Lent(np.full((6, 9), 7, np.float32)[:, :5])
    assert gpu.gemm(A, B, scheme="sgemm", out=out) is out
    assert_same(out.content, fpemu.gemm(A.x, B.x, scheme="sgemm"))
    square = Lent(draw((8, 8)))
    with pytest.raises(InputError, match=r"^out shares memory with A"):
        gpu.gemm(square, square, scheme="sgemm", out=square)
    for wrong in (Lent(np.zeros((5, 6), np.float32)), Lent(np.zeros((6, 5))), Lent(np.zeros((5, 6), np.float32).T)):
        with pytest.raises(InputError, match=r"^out must be an array on the GPU of shape \(6, 5\)"):
            gpu.gemm(A, B, scheme="sgemm", out=wrong)
    with pytest.raises(InputError, match="in the CPU's memory and"):
        gpu.gemm(A.x, B.x, scheme="sgemm", out=out)


# --- complaints
WRONG = {
    "overflow": ({"scheme": "ootomo"}, 3e6, None),
    "NaN": ({"scheme": "ootomo"}, np.nan, None),
    "overflow of a residual": ({"scheme": "h2sgemm"}, 32768 + 15.999, None),
    "scaled all the same": ({"scheme": "ootomo", "residual_scale": 2**20, "on_range": "scale-rows"}, 1, None),
    "scheme": ({"scheme": "otomo"}, 1, None),
    "option": ({"scheme": "ootomo", "promot": 3}, 1, None),
    "policy": ({"scheme": "ootomo", "on_range": "raze"}, 1, None),
    "policy of a scheme": ({"scheme": "fp16", "accumulator": "fp16", "on_range": "scale"}, 1, None),
    "order of a scheme": ({"scheme": "h2sgemm", "combine": "element-wise", "order": KOrder(promote=4)}, 1, None),
    "promotion twice": ({"scheme": "staged", "stage": 32, "order": KOrder(promote=4)}, 1, None),
    "alpha": ({"scheme": "ootomo", "alpha": 1e99}, 1, None),
    "beta": ({"scheme": "ootomo", "beta": 2.0}, 1, None),
    "C": ({"scheme": "ootomo", "beta": 2.0}, 1, (3, 3)),
}


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("what", WRONG)
def test_complaints_are_those_of_the_emulator_and_leave_the_arrays_alone(what, lent, gpu):
    options, value, shape = WRONG[what]
    A, B = draw((5, 40)), draw((40, 6))
    B[3, 2] = value
    arrays = [A, B, *([draw(shape)] if shape else [])]
    before = [x.copy() for x in arrays]
    with pytest.raises(InputError) as want:
        fpemu.gemm(*arrays, **{"hardware": "hopper"} | options)
    given = [Lent(x) for x in arrays] if lent else arrays
    with pytest.raises(InputError) as got:
        gpu.gemm(*given, **{"on_range": "raise"} | options)
    assert str(got.value) == str(want.value)
    for x, y in zip(given, before, strict=True):
        assert_same(x.content if lent else x, y)


@pytest.mark.parametrize("lent", [False, True])
def test_a_wrong_order_is_refused_where_no_kernel_runs_a_tree(lent, gpu):
    A, B = draw((5, 40)), draw((40, 6))
    operands = [Lent(A), Lent(B)] if lent else [A, B]
    with pytest.raises(InputError, match=r"^order must be a fpemu\.mma\.KOrder, not 5$"):
        gpu.gemm(*operands, scheme="ootomo", order=5)


def test_operands_that_do_not_fit_are_named_as_by_the_emulator(gpu):
    A = draw((5, 40))
    for a, b in ((A, draw((6, 40))), (A, draw((40,))), (draw((2, 5, 40)), draw((3, 40, 6))), (A, A.T * (1 + 1e-9j))):
        with pytest.raises(InputError) as want:
            fpemu.gemm(a, b, scheme="sgemm")
        for given in ((a, b), (Lent(a), Lent(b))):
            with pytest.raises(InputError) as got:
                gpu.gemm(*given, scheme="sgemm")
            assert str(got.value) == str(want.value)
    wide = draw((40, 6), np.float64)
    for given in ((A, wide), (Lent(A), Lent(wide))):
        with pytest.raises(InputError, match=r"^B: not fp32 numbers: 240 of 240 entries"):
            gpu.gemm(*given, scheme="sgemm")


def test_arrays_here_and_there_and_on_another_gpu(gpu, monkeypatch):
    A, B = draw((5, 40)), Lent(draw((40, 6)))
    with pytest.raises(InputError, match=r"^A in the CPU's memory and B on the GPU: copy them to one of the two$"):
        gpu.gemm(A, B, scheme="sgemm")
    A = Lent(A)
    monkeypatch.setattr(callers, "ordinals", lambda *given: [3 * (pointer == B.matrix.pointer) for pointer in given])
    where = r"lies on GPU \d, and the call runs on GPU \d: copy all arrays to one GPU$"
    for pair in ((A, B), (B, A))[: 1 if ON_A_GPU else 2]:  # a machine with one GPU has no other one to run on
        with pytest.raises(InputError, match=f"^[AB] {where}"):
            gpu.gemm(*pair, scheme="sgemm")


@stand_in_only
def test_too_little_memory_says_how_much_and_what_to_lower(gpu, monkeypatch):
    tried = []

    def full(shape, dtype):
        tried.append(shape)
        raise device.OutOfMemoryError("CUDA: CUDA_ERROR_OUT_OF_MEMORY", 115_200_000)

    monkeypatch.setattr(matrices, "empty", full)
    with pytest.raises(
        GpuError,
        match=r"^out of memory: .* take 0\.24 GB or more, 0\.12 GB of it in one piece, and 1\.00 GB are free: "
        r"lower the batch \(2\), M \(90\) or N \(160000\)$",
    ):
        gpu.gemm(np.zeros((2, 90, 9), np.float32), np.zeros((9, 160_000), np.float32), scheme="ootomo")
    assert len(tried) == 2  # the second time without what kernels keep
    lent = Lent(np.zeros((9, 90), np.float32))
    turned = Lent(lent.x, strides=(-360, 4), data=(lent.matrix.pointer + 8 * 360, False))
    with pytest.raises(GpuError, match=r"^out of memory: 1\.00 GB are free, too little for a copy of an operand"):
        gpu.gemm(turned, Lent(np.zeros((90, 9), np.float32)), scheme="ootomo")


@stand_in_only
def test_an_old_gpu_and_none(gpu, monkeypatch):
    A = draw((4, 4))
    monkeypatch.setattr(device, "capability", lambda: (7, 5))
    with pytest.raises(
        GpuError, match=r"^ootomo on matrix instructions needs compute capability 8\.0 or more; .* has 7\.5$"
    ):
        gpu.gemm(A, A, scheme="ootomo")
    assert gpu.gemm(A, A, scheme="sgemm").shape == (4, 4)
    monkeypatch.setattr(device, "missing", lambda: "no NVIDIA GPU is usable here (according to a test)")
    for call in (lambda: gpu.gemm(A, A, scheme="sgemm"), lambda: gpu.kernel("ootomo", 4, 4, 4)):
        with pytest.raises(GpuError, match=r"^no NVIDIA GPU is usable here"):
            call()
    for call in (
        lambda: gpu.gemm(A, A, scheme="sgemm", hardware="A100"),
        lambda: gpu.kernel("ootomo", 4, 4, 4, hardware="A100"),
    ):
        with pytest.raises(InputError, match=r"^hardware='A100': fpemu\.gpu runs on the current GPU"):
            call()


@stand_in_only
def test_an_order_that_no_kernel_has_is_refused(gpu, monkeypatch):
    monkeypatch.setattr(choice, "BUILDERS", (lambda *given: None,))
    with pytest.raises(
        InputError, match=r"^ootomo: no kernel of fpemu\.gpu runs it .* on hopper wgmma .* leave the order out"
    ):
        gpu.gemm(draw((4, 4)), draw((4, 4)), scheme="ootomo", order=KOrder(split=2))


@stand_in_only
def test_a_fault_that_the_gpu_alone_finds_is_not_hidden(gpu, monkeypatch):
    kernel = cuda_on_cpu.Emulated
    plain = kernel.prepare_operands

    def spoilt(self, operands, on_range):
        prepared = plain(self, operands, on_range)
        prepared[0].faults.memory[8] = 1
        return prepared

    monkeypatch.setattr(kernel, "prepare_operands", spoilt)

    with pytest.raises(GpuError, match="beyond their words, on the GPU alone"):
        gpu.gemm(draw((4, 4)), draw((4, 4)), scheme="ootomo")


# --- kernels
def test_a_kernel_says_what_it_is(gpu):
    for scheme, options in (("ootomo", {"promote": 64, "instruction": "mma"}), ("sgemm", {})):
        kernel = gpu.kernel(scheme, 100, 90, 80, **options)
        assert kernel.options == options
        assert kernel.describe().startswith(f"{kernel.name}: {scheme}")
        A, B = draw((100, 80)), draw((80, 90))
        assert_same(gpu.gemm(A, B, scheme=scheme, **options), fpemu.gemm(A, B, **kernel.arguments))
    for sizes, wrong in (
        ((4, 0, 4), "N = 0"),
        ((4.5, 4, 4), "M = 4.5"),
        (("a", 4, 4), "M = 'a'"),
        ((4, 4, True), "K = True"),
    ):
        with pytest.raises(InputError, match=f"{wrong} must be a positive integer"):
            gpu.kernel("sgemm", *sizes)
    with pytest.raises(InputError, match=r"order must be a fpemu\.mma\.KOrder, not 5"):
        gpu.kernel("sgemm", 4, 4, 4, order=5)
    with pytest.raises(InputError, match="no kernel to describe"):
        gpu.kernel("ozaki", 4, 4, 4)


@stand_in_only
def test_buffers_are_kept_from_call_to_call_and_grow(gpu):
    A, B = draw((40, 70)), draw((70, 30))
    gpu.gemm(A, B, scheme="ootomo")
    buffers = choice.find(*_key("ootomo", (40, 30, 70))).splitter._buffers
    before = dict(buffers)
    gpu.gemm(-A, B, scheme="ootomo")
    assert buffers == before
    gpu.gemm(np.stack([A, A, A]), B, scheme="ootomo")
    assert buffers["A word 0"].nbytes == 3 * before["A word 0"].nbytes
    assert buffers["B word 0"] is before["B word 0"]


def _key(scheme, sizes):
    chosen = fpemu.schemes.get(scheme)
    return chosen, chosen.spec("hopper"), sizes, None


# --- the suite
def test_the_suite_covers_every_scheme_and_enough_shapes():
    variants = kernels.variants(None, "hopper")
    assert {v.scheme for v in variants} == {*fpemu.schemes.names(), "strassen"}
    assert len(variants) > 300
    assert len(set(kernels.SIZES)) >= 30
    assert {1, 10000} <= {K for _, _, K in kernels.SIZES}
    chosen = [kernels.case(variants[0], n, 0) for n in range(40)]
    assert {c.options["on_range"] for c in chosen} == {"raise", "propagate", "scale", "scale-rows"}
    assert {name for c in chosen for name in c.layouts} == set(LAYOUTS)
    assert any(c.order for c in chosen)
    assert any(any(c.lead) for c in chosen)
    assert kernels.numbers(variants[0], 0, 36) == list(range(36))
    assert len(kernels.numbers(next(v for v in variants if v.options), 0, 30)) == 5


@stand_in_only
def test_a_kernel_that_computes_something_else_is_noticed_and_shown(gpu, monkeypatch, capsys, tmp_path):
    emulate = kernels.emulate
    monkeypatch.setattr(kernels, "emulate", lambda case, on_range, device: emulate(case, on_range, "cpu"))
    file = str(tmp_path / "kernels.json")
    options = ["--path", "host,eager", "--published", "--shapes", "5", "--jobs", "1", "--record", file]
    arguments = ["verify", "kernels", "--schemes", "ootomo", *options]
    assert main(arguments) == 0
    record = Record.read(file)
    assert (record.ok, record.total("cases")) == (True, 5)
    assert main(arguments) == 0
    assert "1 of 1 groups are saved in" in capsys.readouterr().err
    (entry,) = record.outcomes
    assert entry.digests
    for number, digest in entry.digests.items():
        assert Kernels(0, 5).replay(record, entry, number) == digest
    assert main([*arguments[:3], "strassen", *arguments[4:]]) == 1  # the stand-in takes it for another scheme
    assert main([*arguments[:3], "sgemm", *arguments[4:]]) == 1  # strassen has failed
    by_group = {o.group: o.ok for o in Record.read(file).outcomes}
    assert by_group == {"sgemm": True, "ootomo": True, "strassen": False}
    assert len(Run(Kernels(0, 5, paths=["host", "eager"]), file).outcomes) == 3
    assert not Run(Kernels(0, 6, paths=["host", "eager"]), file).outcomes
    capsys.readouterr()
    wrong = mma.spec("volta").replace(architecture="hopper")
    monkeypatch.setattr(choice, "BUILDERS", (lambda scheme, spec, *rest: Spoilt(scheme, spec, wrong),))
    choice.find.cache_clear()
    assert main([*arguments[:-2], "--seed", "1"]) == 1
    said = capsys.readouterr().err
    assert "outputs differ" in said
    assert " in place of 0x" in said


class Spoilt(cuda_on_cpu.Emulated):
    """Says one instruction and runs another."""

    def __init__(self, scheme, spec, other):
        super().__init__(scheme, spec, None)
        self.other = other

    def multiply(self, *given):
        own, self.spec = self.spec, self.other
        super().multiply(*given)
        self.spec = own


@pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))
def test_the_kernels_compile():
    for text in (
        compiler.kernel_source("strided_copy.cu"),
        compiler.kernel_source("nonfinite_outputs.cu"),
        ordinary.source("double", PAIRS),
    ):
        assert compiler.compile(text, "sm_80")[:4] == b"\x7fELF"


@pytest.mark.skipif(not ON_A_GPU, reason=str(device.missing()))
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_torch_and_cupy_on_a_stream_of_their_own(library):
    room = pytest.importorskip(library)
    A, B = draw((2, 130, 70)), draw((70, 90))
    want = fpemu.gemm(A, B, **fpemu.gpu.kernel("staged", 130, 90, 70).arguments)
    if library == "torch":
        stream = room.cuda.Stream()
        with room.cuda.stream(stream):
            a, b = (room.from_numpy(x).cuda() for x in (A, B))
            got = fpemu.gpu.gemm(a, b * 1, scheme="staged") + 0
        assert got.device.type == "cuda"
        stream.synchronize()
        assert_same(got.cpu().numpy(), want)
        assert isinstance(fpemu.gpu.gemm(room.from_numpy(A), room.from_numpy(B), scheme="sgemm"), room.Tensor)
    else:
        with room.cuda.Stream(non_blocking=True):
            got = fpemu.gpu.gemm(room.asarray(A) * 1, room.asarray(B), scheme="staged")
            assert isinstance(got, room.ndarray)
            assert_same(got.get(), want)
