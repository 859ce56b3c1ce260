"""Fixtures for tests of `fpemu.gpu`: the simulated driver in place of CUDA's, with one GPU or two."""

from __future__ import annotations

import sys
from collections import deque
from types import SimpleNamespace

import pytest

from fpemu.gpu.runtime import compiler, device, matrices
from tests import simulated_driver

__all__ = [
    "ON_A_GPU",
    "Lent",
    "capture",
    "draw",
    "far",
    "forget",
    "gpu",
    "needs_gpu",
    "on_stream",
    "simulated",
    "two_gpus",
]

# The memory that tests did not free. A buffer in a cycle of references may be collected during a later test, whose
# driver then frees its address: no memory of that test may have it.
_NOT_FREED: deque[dict] = deque(maxlen=200)
ON_A_GPU = device.missing() is None
needs_gpu = pytest.mark.skipif(not ON_A_GPU, reason=str(device.missing()))
simulated = pytest.mark.skipif(
    ON_A_GPU or compiler.compiler_missing() is not None, reason="there is a GPU, or no compiler of kernels"
)


def forget():
    """Empty all caches of the GPU's modules: what they hold belongs to a GPU, or to its simulation.

    Memory that a cache releases is freed by the GPU in `device`, whose own caches are therefore emptied last.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith("fpemu.gpu") and module is not device]
    for module in [*modules, device]:
        for name, value in list(vars(module).items()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
            elif isinstance(value, dict | set | list) and name.startswith("_") and not name.isupper():
                if name in ("_products", "_operations", "_captured", "_tables", "_messages", "_unused"):
                    value.clear()
            elif name == "workspaces":
                value.clear()


@pytest.fixture
def gpu():
    """The simulated driver, in place of CUDA's."""
    from cuda import core

    forget()
    driver = simulated_driver.Driver()
    with pytest.MonkeyPatch.context() as patch:
        for name, simulation in simulated_driver.CORE.items():
            patch.setattr(core, name, simulation)
        simulated_driver.Stream.waits.clear()
        patch.setattr(device, "bindings", lambda: driver)
        patch.setitem(sys.modules, "torch", simulated_driver.torch())
        yield driver
        forget()
    forget()  # the counters, too, were freed on the simulated GPU
    _NOT_FREED.append(driver.memory)


@pytest.fixture
def two_gpus(gpu, monkeypatch):
    """Two simulated GPUs with the contexts 1 and 2."""
    from cuda import core

    def simulated_gpu(number):
        context = SimpleNamespace(handle=number + 1)
        return SimpleNamespace(**{**vars(simulated_driver.GPU), "context": context})

    gpu.far = set()
    gpu.cuPointerGetAttribute = lambda attribute, at: (simulated_driver.SUCCESS, int(int(at) in gpu.far))
    monkeypatch.setattr(core, "Device", simulated_gpu)
    return gpu


class Lent:
    """An array of another library: ``__cuda_array_interface__`` of memory on the GPU."""

    def __init__(self, x, **more):
        self.x, self.matrix, self.shape = x, matrices.upload(x), x.shape
        strides = tuple(s * x.dtype.itemsize for s in self.matrix.strides)
        interface = {"shape": x.shape, "typestr": x.dtype.str, "data": (self.matrix.pointer, False), "version": 3}
        self.__cuda_array_interface__ = interface | {"strides": strides} | more

    @property
    def content(self):
        return matrices.download(self.matrix)


def draw(*shape, dtype="float32"):
    """A tensor on the GPU."""
    torch = sys.modules["torch"]
    return torch.randn(*shape, dtype=getattr(torch, dtype), device="cuda")


def far(gpu, *shape, dtype="float32"):
    """A tensor on the second GPU."""
    X = draw(*shape, dtype=dtype)
    X.device = SimpleNamespace(type="cuda", index=1)
    gpu.far.add(X.data_ptr())
    return X


def on_stream(handle):
    """Make a stream torch's current one."""
    torch = sys.modules["torch"]
    torch._C._cuda_getCurrentRawStream = lambda index: handle
    torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=handle)


def capture(gpu, call, stream=7):
    """Make a call on a captured stream."""
    gpu.captured.add(stream)
    on_stream(stream)
    try:
        return call()
    finally:
        on_stream(0)
        gpu.captured.clear()
