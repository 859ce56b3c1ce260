"""Run a Python file as on an H200, without a GPU: cuda.core's device, the driver's functions and torch are simulated.

``python tests/simulated_driver.py FILE``. All code of fpemu runs, and NVRTC: arguments are checked, kernels are chosen
and compiled, operands are copied and launches are prepared. The simulated device memory is host memory, and a launch
does nothing, so that results are zero.
"""

# ruff: noqa: N802 (CUDA's names)
from __future__ import annotations

import ctypes
import runpy
import sys
import types
from types import SimpleNamespace

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
    "cuCtxGetCurrent": (0,),
    "cuCtxSetCurrent": (),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (),
    "cuDriverGetVersion": (13000,),
    "cuInit": (),
    "cuPointerGetAttribute": (0,),
    "cuMemGetInfo": (10**11, 10**11),
    "cuOccupancyMaxActiveClusters": (66,),
    "cuThreadExchangeStreamCaptureMode": (0,),
    "cuStreamIsCapturing": (0,),
}
"""Values, after the status, of the functions without an effect."""


class ObjectCode:
    """Simulate `cuda.core.ObjectCode`: a kernel is its name, which the cubin must contain."""

    def __init__(self, cubin):
        assert cubin[:4] == b"\x7fELF"
        self.cubin = cubin

    @classmethod
    def from_cubin(cls, cubin, *, name):
        return cls(cubin)

    def get_kernel(self, name):
        assert b".text." + name.encode() + b"\0" in self.cubin, f"no kernel {name}"
        return SimpleNamespace(handle=name)


class Driver:
    """Simulate the names of `cuda.bindings.driver` that fpemu uses: the real types, and functions on host memory."""

    def __init__(self):
        self.memory, self.launched = {}, []

    def __getattr__(self, name):
        if name in RETURNED:
            return lambda *_: (SUCCESS, *RETURNED[name])
        kind = getattr(real, name)
        if not isinstance(kind, type):
            raise NotImplementedError(f"{name} is not simulated: add it to {__name__}")
        return kind

    def cuMemAlloc(self, nbytes):
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
        return self.cuMemsetD8(to, byte, nbytes)

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

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        assert min(config.gridDimX, config.gridDimY, config.gridDimZ) >= 1
        assert 1 <= config.blockDimX * config.blockDimY * config.blockDimZ <= 1024
        self.launched.append(function)
        return (SUCCESS,)


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

    def is_neg(self):
        return False

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
    cuda = SimpleNamespace(current_stream=lambda device: stream, is_initialized=lambda: True)
    module.zeros = empty
    module._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda number: stream.cuda_stream)
    vars(module).update(DTYPES, Tensor=Tensor, rand=drawn("random"), randn=drawn("normal"), empty=empty, cuda=cuda)
    return module


def install():
    """Replace cuda.core's device and code objects, the driver and torch by simulations; return the driver."""
    driver = Driver()
    vars(core).update(Device=lambda number: GPU, ObjectCode=ObjectCode)
    vars(device).update(bindings=lambda: driver)
    sys.modules["torch"] = torch()
    return driver


if __name__ == "__main__":
    simulated = install()
    runpy.run_path(sys.argv[1], run_name="__main__")
    assert simulated.launched, "the example has launched no kernel"
