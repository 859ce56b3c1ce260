"""What the error-free schemes need of a GPU: memory that is kept from call to call, kernels and cuBLAS."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from numpy.typing import NDArray

from fpemu.gpu.runtime import callers, compiler, cublas, device
from fpemu.gpu.runtime.cublas import Strides
from fpemu.gpu.runtime.device import OutOfMemoryError


@lru_cache(maxsize=16)
def source(name: str) -> str:
    """The text of a kernel."""
    return compiler.kernel_source(name)


class Memory(Protocol):
    """A piece of the GPU's memory."""

    nbytes: int
    pointer: int

    def array(self, shape: Any, dtype: Any) -> NDArray[Any]: ...

    def free(self) -> None: ...


class Machine(Protocol):
    """What the schemes need of a GPU; the tests have one made of a processor."""

    def memory(self, nbytes: int) -> Memory: ...

    def upload(self, array: NDArray[Any]) -> Memory: ...

    def fill(self, at: Memory, byte: int, nbytes: int) -> None: ...

    def launch(self, source: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None: ...

    def gemm(
        self,
        kind: str,
        M: int,
        N: int,
        K: int,
        A: int,
        a: Strides,
        B: int,
        b: Strides,
        D: int,
        d: Strides,
        *,
        batch: int = 1,
    ) -> None: ...

    def room(self) -> int: ...


class Workspace:
    """Buffers by name, kept from call to call and made anew where one is too small."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._kept: dict[str, Memory] = {}
        self._tables: dict[bytes, Memory] = {}

    def get(self, name: str, nbytes: int) -> Memory:
        """A buffer of at least so many bytes; what it holds is undefined."""
        kept = self._kept.get(name)
        if kept is None or kept.nbytes < nbytes:
            if kept is not None:
                self._kept.pop(name).free()
            try:
                kept = self._kept[name] = self.machine.memory(max(nbytes, 16))
            except OutOfMemoryError:
                held = sum(buffer.nbytes for buffer in self._kept.values())
                raise OutOfMemoryError(
                    f"out of memory: {nbytes / 1e9:.2f} GB are needed for {name} beside {held / 1e9:.2f} GB of other "
                    f"work space, and {self.machine.room() / 1e9:.2f} GB are free: "
                    "multiply fewer rows of A or columns of B at a time",
                    nbytes,
                ) from None
        return kept

    def held(self, name: str) -> int:
        """Bytes of the buffer of this name."""
        return self._kept[name].nbytes if name in self._kept else 0

    def zeros(self, name: str, nbytes: int) -> Memory:
        """The same, filled with zeros."""
        buffer = self.get(name, nbytes)
        self.machine.fill(buffer, 0, nbytes)
        return buffer

    def table(self, array: NDArray[Any]) -> Memory:
        """A small constant array on the GPU, uploaded once."""
        key = array.dtype.str.encode() + array.tobytes()
        if key not in self._tables:
            if len(self._tables) > 256:
                self._tables.clear()
            self._tables[key] = self.machine.upload(array)
        return self._tables[key]

    def free(self) -> None:
        """Give the memory back."""
        for buffer in (*self._kept.values(), *self._tables.values()):
            buffer.free()
        self._kept.clear()
        self._tables.clear()


class Device:
    """The GPU at hand with cuBLAS."""

    def __init__(self) -> None:
        self.blas = cublas.blas()

    def memory(self, nbytes: int) -> Memory:
        """Memory with an undefined content."""
        return device.Buffer(nbytes)

    def upload(self, array: Any) -> Memory:
        """A copy of an array."""
        return device.Buffer.of(array)

    def fill(self, at: Memory, byte: int, nbytes: int) -> None:
        """Set bytes, in order with the kernels."""
        device.check(device.driver().cuMemsetD8Async(at.pointer, byte, nbytes, 0))

    def launch(self, source: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Queue a kernel."""
        _module(source).launch(kernel, grid, block, *args, shared=shared, wait=False)

    def gemm(self, *args: Any, **more: Any) -> None:
        """Queue a product, as `cublas.Blas.gemm`."""
        self.blas.gemm(*args, **more)

    def room(self) -> int:
        """Bytes of memory that are free."""
        return callers.free_bytes()


@lru_cache(maxsize=64)
def _module(source: str) -> Any:
    return device.Module(source, name="errorfree.cu")


@lru_cache(maxsize=1)
def workspace() -> Workspace:
    """The workspace that calls share; `workspace().free()` gives its memory back."""
    return Workspace(Device())
