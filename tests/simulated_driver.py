"""Run a Python file as on an H200, without a GPU: cuda.core's device, the driver's functions and torch are simulated.

``python tests/simulated_driver.py FILE``. All code of fpemu runs, and NVRTC: arguments are checked, kernels are chosen
and compiled, operands are copied and launches are prepared. The simulated device memory is host memory, and a launch
does nothing, so that results are zero. It notes its parameters, whose number and sizes are those of the cubin.
"""

# ruff: noqa: N802 (CUDA's names)
from __future__ import annotations

import ctypes
import runpy
import struct
import sys
import types
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
from cuda import core
from cuda.bindings import driver as real

from fpemu.gpu.runtime import device

SUCCESS = real.CUresult.CUDA_SUCCESS
SHARED = 227 * 1024
GPU = SimpleNamespace(
    name="NVIDIA H200",
    compute_capability=(9, 0),
    context=SimpleNamespace(handle=1),
    properties=SimpleNamespace(multiprocessor_count=132, max_shared_memory_per_block_optin=SHARED),
    set_current=lambda: None,
)
RETURNED = {
    "cuStreamCreate": (5,),
    "cuGraphExecDestroy": (),
    "cuGraphDestroy": (),
    "cuStreamSynchronize": (),
    "cuDriverGetVersion": (13000,),
    "cuInit": (),
    "cuPointerGetAttribute": (0,),
    "cuMemGetInfo": (10**11, 10**11),
    "cuOccupancyMaxActiveClusters": (66,),
    "cuThreadExchangeStreamCaptureMode": (0,),
}
"""Values, after the status, of the functions without an effect."""


def parameter_sizes(cubin, kernel):
    """Return the bytes of each parameter of a kernel, from the section .nv.info of its cubin."""
    start, (entry, count, names) = struct.unpack_from("<Q", cubin, 40)[0], struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, start + i * entry) for i in range(count)]
    for name, _, _, _, at, nbytes in heads:
        if cubin[heads[names][4] + name :].startswith(b".nv.info." + kernel.encode() + b"\0"):
            return _parameters(cubin[at : at + nbytes])
    raise AssertionError(f"no kernel {kernel}")


def _parameters(attributes):
    at, sizes = 0, {}
    while at < len(attributes):
        kind, attribute, nbytes = struct.unpack_from("<BBH", attributes, at)
        if (kind, attribute) == (4, 0x17):  # EIFMT_SVAL, EIATTR_KPARAM_INFO: index, ordinal, offset, size << 18
            _, ordinal, _, packed = struct.unpack_from("<IHHI", attributes, at + 4)
            sizes[ordinal] = packed >> 18
        at += 4 + (nbytes if kind == 4 else 0)
    return [sizes[i] for i in range(len(sizes))]


class Launched(NamedTuple):
    """A launch: kernel, bytes of each parameter, stream, context."""

    kernel: str
    parameters: list
    stream: int
    context: int

    @property
    def words(self):
        """The parameters as 64-bit words."""
        return [word for data in self.parameters for word in np.frombuffer(data[: len(data) // 8 * 8], "<u8").tolist()]


class ObjectCode:
    """Simulate `cuda.core.ObjectCode`: a kernel is its name and the sizes of its parameters, in the cubin."""

    def __init__(self, cubin):
        assert cubin[:4] == b"\x7fELF"
        self.cubin = cubin

    @classmethod
    def from_cubin(cls, cubin, *, name):
        return cls(cubin)

    def get_kernel(self, name):
        return SimpleNamespace(handle=Kernel(name, parameter_sizes(self.cubin, name)))


class Kernel(str):
    """The name of a kernel, with the bytes of its parameters."""

    def __new__(cls, name, sizes):
        result = super().__new__(cls, name)
        result.sizes = sizes
        return result


class Driver:
    """Simulate the names of `cuda.bindings.driver` that fpemu uses: the real types, and functions on host memory."""

    def __init__(self):
        self.memory, self.launches, self.context, self.synchronised, self.allocated = {}, [], 1, 0, []
        self.fills, self.captured, self.capturing, self.failing = [], set(), None, None

    @property
    def launched(self):
        """The names of the kernels that were launched, in order."""
        return [launch.kernel for launch in self.launches]

    def cuCtxGetCurrent(self):
        return SUCCESS, self.context

    def cuCtxSetCurrent(self, context):
        self.context = int(context)
        return (SUCCESS,)

    def cuCtxSynchronize(self):
        self.synchronised += 1
        return (SUCCESS,)

    def cuStreamIsCapturing(self, stream):
        return SUCCESS, int(int(stream) in self.captured)

    def cuStreamBeginCapture(self, stream, mode):
        self.capturing = []
        return (SUCCESS,)

    def cuStreamEndCapture(self, stream):
        graph, self.capturing = self.capturing, None
        return SUCCESS, graph

    def cuGraphInstantiate(self, graph, flags):
        return SUCCESS, list(graph)

    def cuGraphLaunch(self, graph, stream):
        self.launches += [launch._replace(stream=stream) for launch in graph]
        return (SUCCESS,)

    def __getattr__(self, name):
        if name in RETURNED:
            return lambda *_: (SUCCESS, *RETURNED[name])
        kind = getattr(real, name)
        if not isinstance(kind, type):
            raise NotImplementedError(f"{name} is not simulated: add it to {__name__}")
        return kind

    def cuMemAlloc(self, nbytes):
        self.allocated.append(nbytes)
        block = np.zeros(nbytes + 1024, np.uint8)
        pointer = -(-block.ctypes.data // 1024) * 1024
        self.memory[pointer] = block
        return SUCCESS, pointer

    def cuMemFree(self, pointer):
        del self.memory[pointer]
        return (SUCCESS,)

    def cuMemcpyHtoD(self, to, source, nbytes):
        ctypes.memmove(int(to), int(source), nbytes)
        return (SUCCESS,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemsetD8(self, to, byte, nbytes):
        ctypes.memset(int(to), byte, nbytes)
        return (SUCCESS,)

    def cuMemsetD8Async(self, to, byte, nbytes, stream):
        self.fills.append((to, byte, nbytes, stream))
        ctypes.memset(int(to), byte, nbytes)
        return (SUCCESS,)

    def cuKernelGetFunction(self, kernel):
        return SUCCESS, kernel

    def cuFuncSetAttribute(self, function, kind, value):
        assert 0 <= value <= SHARED
        return (SUCCESS,)

    def cuTensorMapEncodeTiled(self, kind, rank, pointer, *_):
        assert pointer % 16 == 0
        result = real.CUtensorMap()
        ctypes.memmove(result.getPtr(), np.uint64([pointer]).ctypes.data, 8)
        return SUCCESS, result

    def cuTensorMapReplaceAddress(self, tensor_map, pointer):
        assert tensor_map.getPtr() % 64 == pointer % 16 == 0
        ctypes.memmove(tensor_map.getPtr(), np.uint64([pointer]).ctypes.data, 8)
        return (SUCCESS,)

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        assert min(config.gridDimX, config.gridDimY, config.gridDimZ) >= 1
        assert 1 <= config.blockDimX * config.blockDimY * config.blockDimZ <= 1024
        if self.failing is not None:
            return (self.failing,)
        places = np.ctypeslib.as_array((ctypes.c_uint64 * len(function.sizes)).from_address(arguments)).tolist()
        values = [ctypes.string_at(at, size) for at, size in zip(places, function.sizes, strict=True)]
        launch = Launched(str(function), values, int(config.hStream), self.context)
        (self.launches if self.capturing is None else self.capturing).append(launch)
        return (SUCCESS,)


class Stream:
    """Simulate `cuda.core.Stream`: it notes which stream waits for which, both by their handles."""

    waits: ClassVar[list] = []

    def __init__(self, handle):
        self.handle = handle

    @classmethod
    def from_handle(cls, handle):
        return cls(handle)

    def wait(self, producer):
        Stream.waits.append((self.handle, producer.handle))


class DType:
    """Simulate torch.dtype."""

    def __init__(self, name):
        self.name, self.itemsize, self.is_floating_point = name, np.dtype(name).itemsize, True

    def __repr__(self):
        return f"torch.{self.name}"


class Tensor:
    """Simulate torch.Tensor: the attributes that fpemu reads, and those that the examples of README use."""

    layout, is_quantized = "torch.strided", False

    def __init__(self, array, where):
        self._array, self.device = array, SimpleNamespace(type=where, index=0)
        self.dtype, self.shape, self.is_cuda = DTYPES[array.dtype.name], array.shape, where == "cuda"

    def __iter__(self):
        return (Tensor(x, self.device.type) for x in self._array)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.numpy(), dtype)

    def same(self):
        return self

    detach = resolve_neg = resolve_conj = same

    def is_conj(self):
        return False

    def is_neg(self):
        return False

    def float(self):
        return Tensor(self._array.astype(np.float32), self.device.type)

    def get_device(self):
        return self.device.index if self.is_cuda else -1

    def new_empty(self, shape):
        return Tensor(np.zeros(shape, self.dtype.name), self.device.type)

    def data_ptr(self):
        return self._array.ctypes.data

    def dim(self):
        return self._array.ndim

    def stride(self):
        return tuple(s // self._array.itemsize for s in self._array.strides)

    def cpu(self):
        return Tensor(self._array, "cpu")

    def numpy(self):
        assert self.device.type == "cpu", "can't convert cuda device type tensor to numpy"
        return self._array


DTYPES = {name: DType(name) for name in ("float16", "float32", "float64", "uint8")}


def torch():
    """Return a module with the functions of torch that fpemu calls, and those that the examples of README use."""

    def drawn(draw):
        def function(*shape, dtype=DTYPES["float32"], device="cpu"):
            return Tensor(getattr(np.random.default_rng(0), draw)(size=shape).astype(dtype.name), device)

        return function

    def empty(shape, dtype, device):
        return Tensor(np.zeros(shape, dtype.name), getattr(device, "type", "cuda"))

    module = types.ModuleType("torch")
    stream = SimpleNamespace(cuda_stream=0)
    cuda = SimpleNamespace(current_stream=lambda device: stream, is_initialized=lambda: True, empty_cache=lambda: None)
    module.zeros, module.compiler = empty, SimpleNamespace(is_dynamo_compiling=lambda: False)
    module._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda number: stream.cuda_stream)
    vars(module).update(DTYPES, Tensor=Tensor, rand=drawn("random"), randn=drawn("normal"), empty=empty, cuda=cuda)
    return module


CORE = {"Device": lambda number: GPU, "ObjectCode": ObjectCode, "Stream": Stream, "LEGACY_DEFAULT_STREAM": Stream(0)}
"""Simulations of names of cuda.core."""


def install():
    """Replace cuda.core's objects, the driver and torch by simulations; return the driver."""
    driver = Driver()
    vars(core).update(CORE)
    vars(device).update(bindings=lambda: driver)
    sys.modules["torch"] = torch()
    return driver


if __name__ == "__main__":
    simulated = install()
    runpy.run_path(sys.argv[1], run_name="__main__")
    assert simulated.launched, "the example has launched no kernel"
