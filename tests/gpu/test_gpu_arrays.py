"""Arrays of `fpemu.gpu.gemm`: torch, CuPy, DLPack, `out`, stream order, contexts, memory."""

from __future__ import annotations

import contextlib
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu import InputError
from fpemu.errors import GpuError, GuaranteeError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.runtime import callers, device, matrices
from fpemu.gpu.runtime.matrices import Matrix
from tests import cuda_on_cpu
from tests.gpu.test_gpu_call import Lent, draw
from tests.hostile import bits

run = sys.modules["fpemu.gpu.gemm.run"]
choice = sys.modules["fpemu.gpu.gemm.choice"]
pytestmark = pytest.mark.skipif(device.missing() is None, reason="there is a GPU: here a processor stands in for one")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def gpu(folder, monkeypatch):
    if emulation.compiler() is None:
        pytest.skip("no C++ compiler here")
    cuda_on_cpu.stand_in(monkeypatch, folder)
    cuda_on_cpu.emulated_kernels(monkeypatch)
    yield fpemu.gpu
    cuda_on_cpu.forget()


def assert_same(got, want):
    assert got.shape == want.shape
    assert np.array_equal(bits(np.ascontiguousarray(got)), bits(want))


def part(x, shape, strides, offset=0, **more):
    """An array that lies in another one's memory; strides and offset in bytes."""
    interface = {"shape": shape, "strides": strides, "data": (x.matrix.pointer + offset, False)}
    return SimpleNamespace(__cuda_array_interface__=x.__cuda_array_interface__ | interface | more, base=x)


# --- out
def test_an_output_array_that_cannot_be_written_in_place_raises(gpu):
    A, B = Lent(draw((6, 8))), Lent(draw((8, 5)))
    room = Lent(np.full((6, 5), 7, np.float32))
    wrong = {
        "half": Lent(np.zeros((6, 5), np.float16)),
        "rows backwards": part(room, (6, 5), (-20, 4), 100),
        "the same row": part(room, (6, 5), (0, 4)),
        "rows into each other": part(room, (6, 5), (8, 4)),
        "of the processor": np.zeros((6, 5), np.float32),
    }
    for out in list(wrong.values())[:-1]:
        with pytest.raises(InputError, match=r"^out must be an array on the GPU of shape \(6, 5\) and dtype float32"):
            gpu.gemm(A, B, scheme="sgemm", out=out)
    with pytest.raises(InputError, match=r"^out in the CPU's memory and A and B on the GPU"):
        gpu.gemm(A, B, scheme="sgemm", out=wrong["of the processor"])
    sealed = part(room, (6, 5), (20, 4), data=(room.matrix.pointer, True))
    with pytest.raises(InputError, match=r"^out is read-only"):
        gpu.gemm(A, B, scheme="sgemm", out=sealed)
    assert (room.content == 7).all()
    with pytest.raises(InputError, match=r"^out must be an array on the GPU of shape \(0, 5\)"):
        gpu.gemm(np.zeros((0, 8), np.float32), B.x, scheme="sgemm", out=np.zeros((0, 5), np.float32))


def test_out_may_share_a_buffer_with_an_operand_without_overlap(gpu):
    whole = Lent(np.full((6, 13), 7, np.float32))
    A, B = draw((6, 8)), draw((8, 5))
    matrices.copy(matrices.upload(A), Matrix(whole.matrix.pointer, A.dtype, A.shape, (13, 1)))
    out = part(whole, (6, 5), (52, 4), 32)
    gpu.gemm(part(whole, (6, 8), (52, 4)), Lent(B), scheme="ootomo", out=out)
    assert_same(whole.content, np.hstack([A, fpemu.gemm(A, B, scheme="ootomo", hardware="hopper")]))
    with pytest.raises(InputError, match=r"^out shares memory with A"):
        gpu.gemm(part(whole, (6, 8), (52, 4)), Lent(B), scheme="ootomo", out=part(whole, (6, 5), (52, 4), 28))
    column = part(whole, (6, 1), (52, 96), 48)  # the step of an axis of one entry means nothing
    gpu.gemm(part(whole, (6, 8), (52, 4)), Lent(B[:, :1]), scheme="sgemm", out=column)
    assert_same(whole.content[:, 12:], fpemu.gemm(A, B[:, :1], scheme="sgemm"))


def test_after_an_error_out_is_unchanged(gpu, monkeypatch):
    A, B = draw((6, 8)), draw((8, 5))
    A[3, 3] = 1e30
    out = Lent(np.full((6, 5), 7, np.float32))
    with pytest.raises(InputError, match="overflows"):
        gpu.gemm(Lent(A), Lent(B), scheme="ootomo", on_range="raise", out=out)
    assert (out.content == 7).all()

    def broken(a, b, D, *_):
        matrices.copy(matrices.upload(np.zeros(D.shape)), D)
        raise GuaranteeError("raised by a test")

    monkeypatch.setattr(run.errorfree, "gemm", broken)
    out = Lent(np.full((6, 5), 7.0))
    with pytest.raises(GuaranteeError):
        gpu.gemm(Lent(A.astype(float)), Lent(B.astype(float)), scheme="ozaki2", out=out)
    assert (out.content == 7).all()


# --- torch, as far as it matters here
class Tensor:
    """A tensor on the GPU: a Lent with torch's names for things."""

    is_quantized, layout = False, "torch.strided"

    def __init__(self, x, dtype="float32", negative=False):
        self.lent, self.name, self.negative = Lent(np.asarray(x)), dtype, negative
        self.device, self.shape = SimpleNamespace(type="cuda", index=0), x.shape
        size = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}[dtype]
        floats = SimpleNamespace(is_floating_point=True, itemsize=size)
        self.dtype = type("dtype", (), {"__str__": lambda _: f"torch.{dtype}", **vars(floats)})()

    def detach(self):
        return self

    def is_neg(self):
        return self.negative

    def resolve_neg(self):
        return Tensor(-self.lent.x) if self.negative else self

    def float(self):
        return self if self.name == "float32" else Tensor(self.lent.x.astype(np.float32))

    def data_ptr(self):
        return self.lent.matrix.pointer

    def stride(self):
        return self.lent.matrix.strides


@pytest.fixture
def torch(monkeypatch):
    room = types.ModuleType("torch")
    room.Tensor, room.float32 = Tensor, "float32"
    room.empty = lambda shape, dtype, device: Tensor(np.zeros(shape, np.float32))
    room.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=77 + device.index))
    monkeypatch.setitem(sys.modules, "torch", room)


def test_tensors_are_read_by_torchs_attributes_and_streams(gpu, torch, monkeypatch):
    waits = []
    monkeypatch.setattr(callers, "_after", lambda *streams: waits.append(streams))
    A, B = draw((6, 8)), draw((8, 5))
    for x in (Tensor(A), Tensor(-A, negative=True), Tensor(A.astype(np.float16), "float16")):
        waits.clear()
        got = gpu.gemm(x, Tensor(B), scheme="sgemm")
        assert type(got) is Tensor
        values = A.astype(np.float16).astype(np.float32) if x.name == "float16" else A
        assert_same(got.lent.content, fpemu.gemm(values, B, scheme="sgemm"))
        converted = x.negative or x.name == "float16"
        assert waits == [(0, 77), *[(0, 77)] * converted, (77, 0)]  # after torch's conversion too
    for out, says in (
        (Tensor(np.zeros((6, 5), np.float16), "float16"), "and dtype float32"),
        (Tensor(np.zeros((6, 5), np.float16), "bfloat16"), "and dtype float32"),
        (Tensor(np.zeros((6, 5), np.float32), negative=True), "a view with negated signs"),
    ):
        with pytest.raises(InputError, match=f"^out .*{says}"):
            gpu.gemm(Tensor(A), Tensor(B), scheme="sgemm", out=out)
    sparse = Tensor(A)
    sparse.layout = "torch.sparse_coo"
    with pytest.raises(InputError, match=r"^A is a tensor of torch.sparse_coo and torch.float32: pass a dense one"):
        gpu.gemm(sparse, Tensor(B), scheme="sgemm")
    far = Tensor(A)
    far.device = SimpleNamespace(type="cuda", index=1)
    assert callers.streams([Tensor(A), far]) == [77]  # the second stream is another GPU's
    assert callers.streams([far, Tensor(A)]) == [78]
    assert (callers.place([A, far]), callers.place([A])) == (1, 0)


# --- streams and contexts
def test_a_copy_for_negative_strides_waits_for_the_owners_stream(gpu, monkeypatch):
    queued = []
    Array = type("ndarray", (), {"__module__": "cupy.simulated"})

    class Device(contextlib.nullcontext):
        id = 0

    cupy = types.ModuleType("cupy")
    cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=55))
    cupy.empty = lambda shape, name: array(Lent(np.zeros(shape, name)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def copy(*given, plain=matrices.copy):
        queued.append("copy")
        return plain(*given)

    def array(lent, **more):
        made = Array()
        made.device, made.lent = Device(), lent
        made.__cuda_array_interface__ = lent.__cuda_array_interface__ | more
        return made

    monkeypatch.setattr(callers, "_after", lambda waits, waited_for: queued.append((waits, waited_for)))
    monkeypatch.setattr(matrices, "copy", copy)
    A, B = draw((6, 8)), draw((8, 5))
    lent = Lent(A)
    turned = array(lent, strides=(-32, 4), data=(lent.matrix.pointer + 160, False))
    got = gpu.gemm(turned, array(Lent(B)), scheme="sgemm")
    assert_same(got.lent.content, fpemu.gemm(A[::-1], B, scheme="sgemm"))
    assert queued[:3] == [(0, 55), (0, 55), "copy"]
    assert (55, 0) in queued


def test_results_are_complete_on_return_if_a_stream_is_unknown(gpu, monkeypatch):
    waits = []
    monkeypatch.setattr(device, "synchronize", lambda *_: waits.append(1))
    A, B = draw((6, 8)), draw((8, 5))
    gpu.gemm(Lent(A, stream=1), Lent(B, stream=1), scheme="sgemm")
    assert not waits
    gpu.gemm(Lent(A), Lent(B, stream=1), scheme="sgemm")
    assert waits


def test_the_callers_context_is_current_again_afterwards(monkeypatch):
    now, modes = [3], [0]

    def exchange(mode):
        modes.append(mode)
        return 0, modes[-2]

    driver = SimpleNamespace(
        cuCtxGetCurrent=lambda: (0, now[0]),
        cuCtxSetCurrent=lambda context: (now.__setitem__(0, context) or 0,),
        cuThreadExchangeStreamCaptureMode=exchange,
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2),
    )
    monkeypatch.setattr(device, "bindings", lambda: driver)
    monkeypatch.setattr(device, "context", lambda: 9)
    with device.entered():
        assert now == [9]
        assert modes[-1] == 2
    assert now == [3]
    assert modes[-1] == 0
    now[0] = 0  # none: the GPU's own may stay
    with device.entered():
        pass
    assert now == [9]


@pytest.mark.parametrize(("stream", "waits"), [(55, [(0, 55), (55, 0)]), (2, [(0, 2), (2, 0)]), (1, []), (None, [])])
def test_the_stream_of_an_array_interface_orders_the_product(gpu, monkeypatch, stream, waits):
    events = []
    monkeypatch.setattr(callers, "_after", lambda *handles: events.append(handles))
    monkeypatch.setattr(device, "synchronize", lambda *_: events.append("synchronize"))
    A, B, out = Lent(draw((6, 8)), stream=stream), Lent(draw((8, 5)), stream=1), Lent(np.zeros((6, 5), np.float32))
    want = fpemu.gemm(A.x, B.x, scheme="sgemm")
    D = gpu.gemm(A, B, scheme="sgemm")
    # without a stream of A, no stream orders later work of the caller: the result is complete on return
    assert events == (["synchronize"] if stream is None else waits)
    assert_same(D.get(), want)
    assert D.__cuda_array_interface__["stream"] == 1
    assert D.__cuda_array_interface__["version"] == 3
    assert gpu.gemm(A, B, scheme="sgemm", out=out) is out
    assert_same(out.content, want)


# --- repeated calls
@contextlib.contextmanager
def not_validated():
    """Within, no call validates its arguments again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrices, "take", lambda *_, **__: pytest.fail("validated again"))
        yield


@pytest.mark.parametrize("lead", [(), (3,)])
def test_calls_on_arrays_of_the_default_stream_repeat(gpu, lead):
    pairs = [[draw((*lead, 20, 24), seed=seed), draw((24, 32), seed=seed)] for seed in range(3)]
    out = Lent(np.zeros((*lead, 20, 32), np.float32), stream=1)
    gpu.gemm(*(Lent(X, stream=1) for X in pairs[0]), scheme="sgemm", out=out)
    for pair in pairs:
        operands = [Lent(X, stream=1) for X in pair]
        with not_validated():
            assert gpu.gemm(*operands, scheme="sgemm", out=out) is out
        want = fpemu.gemm(*pair, scheme="sgemm")
        assert_same(out.content, want)
        assert_same(gpu.gemm(*operands, scheme="sgemm").get(), want)


@pytest.mark.parametrize("change", ["stream", "none", "strides", "dtype", "alias", "read-only", "freed", "mask"])
def test_other_arrays_are_validated_after_a_repeated_call(gpu, monkeypatch, change):
    monkeypatch.setattr(callers, "_after", lambda *_: None)
    A, B, D = draw((24, 24)), draw((24, 24), seed=1), np.zeros((24, 24), np.float32)
    first = [Lent(X, stream=1) for X in (A, B, D)]
    for _ in range(2):
        gpu.gemm(*first[:2], scheme="sgemm", out=first[2])
    want = fpemu.gemm(A, B, scheme="sgemm")
    given = Lent(A, stream=1)
    interface = given.__cuda_array_interface__
    pointer = interface["data"][0]
    if change == "alias":
        with pytest.raises(InputError, match="shares memory"):
            gpu.gemm(*first[:2], scheme="sgemm", out=first[0])
        return
    if change == "read-only":
        first[2].__cuda_array_interface__["data"] = first[2].matrix.pointer, True
        with pytest.raises(InputError, match="read-only"):
            gpu.gemm(*first[:2], scheme="sgemm", out=first[2])
        return
    if change in ("freed", "mask"):
        given.__cuda_array_interface__ |= {"data": (0, False)} if change == "freed" else {"mask": first[0]}
        with pytest.raises(InputError, match="no memory" if change == "freed" else "masked"):
            gpu.gemm(given, first[1], scheme="sgemm")
        return
    if change == "strides":
        want = fpemu.gemm(A[::-1], B, scheme="sgemm")
        given.__cuda_array_interface__ |= {"strides": (-96, 4), "data": (pointer + 23 * 96, False)}
    elif change == "dtype":
        given = Lent(A.astype(np.float64), stream=1)
    else:
        given.__cuda_array_interface__ |= {"stream": 55 if change == "stream" else None}
    for _ in range(3):
        assert_same(gpu.gemm(given, first[1], scheme="sgemm").get(), want)
        with pytest.raises(pytest.fail.Exception), not_validated():
            gpu.gemm(given, first[1], scheme="sgemm")


# --- DLPack
class Exported:
    """An array with DLPack only, which lists the requests of its readers."""

    def __init__(self, x, where):
        self.x, self.where, self.requests = x, where, []

    def __dlpack__(self, **request):
        self.requests.append(request)
        return self.x.__dlpack__(max_version=request.get("max_version"))

    def __dlpack_device__(self):
        return self.where, 0


def test_dlpack_exports_to_the_default_stream_of_the_gpu_and_without_a_stream_on_the_cpu(gpu):
    A, B = draw((6, 8)), draw((8, 5))
    want = fpemu.gemm(A, B, scheme="sgemm")
    for where in (2, 13):  # a GPU's memory, managed memory
        a, b = Exported(A, where), Exported(B, where)
        assert_same(gpu.gemm(a, b, scheme="sgemm").get(), want)
        for x in (a, b):
            assert [request["stream"] for request in x.requests] == [1]  # the legacy default stream
    for where in (1, 3, 11):  # memory of the CPU, pinned for CUDA, pinned for ROCm
        a, b = Exported(A, where), Exported(B, where)
        assert_same(gpu.gemm(a, b, scheme="sgemm"), want)
        assert all(request.get("stream") is None for x in (a, b) for request in x.requests)
    with pytest.raises(InputError, match=r"^A in the CPU's memory and B on the GPU"):
        gpu.gemm(Exported(A, 1), Exported(B, 2), scheme="sgemm")


@pytest.mark.parametrize("where", [7, 8, 10, 14])  # Vulkan, Metal, ROCm, oneAPI
def test_arrays_of_other_devices_raise(gpu, where):
    x = Exported(draw((6, 6)), where)
    with pytest.raises(InputError, match=rf"^A lies on a device of DLPack's type {where}: pass an array of the CPU"):
        gpu.gemm(x, x, scheme="sgemm")
    assert not x.requests


def test_memory_from_dlpack_stays_alive(gpu):
    class Copies:
        def __init__(self, x, where=2):
            self.x, self.where, self.made = x, where, []

        def __dlpack__(self, stream=None, **_):
            return (self.x + 0).__dlpack__()

        def __dlpack_device__(self):
            return self.where, 0

    A, B = draw((60, 80)), draw((80, 50))
    taken = matrices.take(Copies(A), "A")
    again = [np.full(A.shape, np.nan, np.float32) for _ in range(20)]
    assert_same(cuda_on_cpu.view(taken), A)
    assert len(again) == 20
    assert_same(gpu.gemm(Copies(A, 13), Copies(B), scheme="sgemm").get(), fpemu.gemm(A, B, scheme="sgemm"))
    assert_same(gpu.gemm(Copies(A, 1), Copies(B, 1), scheme="sgemm"), fpemu.gemm(A, B, scheme="sgemm"))

    class Refuses(Copies):
        def __dlpack__(self, stream=None, **_):
            raise BufferError("no export\nof this")

    for where in (1, 2):
        with pytest.raises(InputError, match=r"^A cannot be read by DLPack: no export$"):
            gpu.gemm(Refuses(A, where), Copies(B, where), scheme="sgemm")


def test_unusual_array_interfaces_are_read_or_raise(gpu):
    A, B = draw((6, 8)), Lent(draw((8, 5)))
    swapped = Lent(A.byteswap(), typestr=">f4")
    assert_same(gpu.gemm(swapped, B, scheme="sgemm").get(), fpemu.gemm(A, B.x, scheme="sgemm"))
    wide = Lent(A.astype(complex))
    turned = part(wide, (6, 8), (-128, 16), 640)
    words = Lent(np.zeros((6, 8), np.uint64), typestr="|V8")
    for x, says in (
        (turned, "A takes real numbers of at most 64 bits, not complex128"),
        (words, r"A takes real numbers of at most 64 bits, not \|V8"),
        (Lent(A, mask=B), "A is a masked array"),
        (Lent(A, strides=(34, 4)), r"A has strides of \(34, 4\) bytes"),
    ):
        with pytest.raises(InputError, match=f"^{says}"):
            gpu.gemm(x, B, scheme="sgemm")


# --- what is kept
def test_cached_calls_hold_no_operands_and_distinguish_64_from_its_float(gpu):
    A, B = Lent(draw((6, 8), np.float16)), Lent(draw((8, 5)))
    gpu.gemm(A, B, scheme="ootomo", promote=64)
    with pytest.raises(InputError) as want:
        fpemu.gemm(A.x, B.x, scheme="ootomo", hardware="hopper", promote=64.0)
    with pytest.raises(InputError) as got:
        gpu.gemm(A, B, scheme="ootomo", promote=64.0)
    assert str(got.value) == str(want.value)
    kinds = tuple((who, (x.matrix.shape, x.matrix.dtype)) for who, x in (("A", A), ("B", B)))
    kept = choice._call_like(kinds, "ootomo", (float, 1.0), (float, 0.0), "raise", None, ())
    assert kept.A.strides == kept.B.strides == (0, 0)


def test_release_empties_the_caches(gpu):
    gpu.gemm(Lent(draw((2, 6, 8))), Lent(draw((8, 5))), scheme="sgemm")
    assert choice.find.cache_info().currsize
    assert matrices._table.cache_info().currsize
    gpu.release()
    assert not choice.find.cache_info().currsize
    assert not matrices._table.cache_info().currsize


def test_after_an_interrupt_no_kernel_remains_cached(gpu, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cuda_on_cpu.Emulated, "multiply", interrupted)
    A, B = draw((6, 8)), draw((8, 5))
    with pytest.raises(KeyboardInterrupt):
        gpu.gemm(A, B, scheme="ootomo")
    assert not choice.find.cache_info().currsize


def test_out_of_memory_names_the_size_of_the_buffer(monkeypatch):
    status = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
    monkeypatch.setattr(device, "driver", lambda: SimpleNamespace(cuMemAlloc=lambda nbytes: (status, 0)))
    with pytest.raises(GpuError, match=r"^CUDA: CUDA_ERROR_OUT_OF_MEMORY \(1,234,567 bytes\)$") as raised:
        device.Buffer(1_234_567)
    assert raised.value.nbytes == 1_234_567
