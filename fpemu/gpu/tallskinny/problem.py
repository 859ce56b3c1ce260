"""A tall and skinny product on the GPU: checked operands, as addresses and steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import GpuError, InputError
from fpemu.gpu.gemm import memory
from fpemu.gpu.runtime import callers, device, matrices, recording, tensors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.recording import NotRecordableError
from fpemu.gpu.runtime.sequence import Sequence, lock
from fpemu.gpu.runtime.tensors import Read, Recorded

REALS = {"float32": "fp32", "float64": "fp64"}
_recorded = tensors.Cache()


@dataclass(frozen=True)
class Problem:
    """C (m×n) = A (m×k) B (k×n) in the GPU's memory.

    Parameters
    ----------
    fmt : str
        "fp32" or "fp64".
    m, k, n : int
        Sizes: A is m×k, B is k×n.
    a, b, c : (int, int)
        Steps from one row and from one column to the next, in elements.
    addresses : (int, int, int)
        Addresses of A, B and C in the GPU's memory.
    owners : object
        Objects that own the memory, kept alive.
    """

    fmt: str
    m: int
    k: int
    n: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]
    addresses: tuple[int, int, int] = (0, 0, 0)
    owners: object = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, A: Matrix, B: Matrix, C: Matrix) -> Problem:
        """Return the product of matrices on the GPU."""
        (m, k), n = A.shape, B.shape[1]
        steps = [(X.strides[0], X.strides[1]) for X in (A, B, C)]
        addresses = (A.pointer, B.pointer, C.pointer)
        return cls(REALS[A.dtype.name], m, k, n, steps[0], steps[1], steps[2], addresses, (A, B, C))

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return 4 if self.fmt == "fp32" else 8

    @property
    def a_layout(self) -> str:
        """The contiguous vectors of A: "columns", "rows" or "any"."""
        return _layout(self.a, (self.m, self.k))

    @property
    def c_layout(self) -> str:
        """The contiguous vectors of C."""
        return _layout(self.c, (self.m, self.n))

    def vector(self, which: str) -> int:
        """Return the vector width of aligned accesses to "a" or "c" in elements: 4 (fp32), 2 or 1."""
        layout, steps, address = self.a_layout, self.a, self.addresses[0]
        if which == "c":
            layout, steps, address = self.c_layout, self.c, self.addresses[2]
        if layout == "any":
            return 1
        step = steps[layout == "columns"]
        count = 16 // self.bytes
        while count > 1 and (step % count or address % (count * self.bytes)):
            count //= 2
        return count

    def operands(self) -> NDArray[np.int64]:
        """Return the struct ``Operands`` of the kernels."""
        A, B, C = self.addresses
        return np.array((A, *self.a, B, *self.b, C, *self.c, self.m, self.k, self.n), np.int64)


def _layout(steps: tuple[int, int], shape: tuple[int, int]) -> str:
    if steps[0] == 1 and (steps[1] >= shape[0] or shape[1] == 1 or steps[1] != 1):
        return "columns"
    return "rows" if steps[1] == 1 else "any"


def solve(A: Any, B: Any, out: Any, run: Callable[[Problem], None], request: tuple[Any, ...]) -> Any:
    """Compute C = A B by `run`, in `out` or in a new array of A's kind.

    request : tuple
        Everything else that `run` depends on: its kernels are recorded, and queued when the same request comes with
        arrays of the same shapes, strides, dtype and alignment.
    """
    D, read = _recorded.repeat(request, A, B, None, out)
    if D is not None:
        return D
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    arrays = {"A": A, "B": B} | ({} if out is None else {"out": out})
    with lock, device.entered(callers.place(arrays.values())):
        return memory.computed(
            lambda: _result(arrays, run, read), lambda problem: memory.no_room(problem, "the sizes of A or B")
        )


def _result(arrays: dict[str, Any], run: Callable[[Problem], None], read: Read | None) -> Any:
    """The product of the given arrays; read: if its kernels can be recorded."""
    A, out = arrays["A"], arrays.get("out")
    with callers.ordered(callers.streams(arrays.values())) if read is None else nullcontext():
        operands = {name: matrices.take(X, name, write=name == "out") for name, X in arrays.items()}
        on_gpu = matrices.same_place(operands)
        dtype, (m, k, n) = checked(operands["A"], operands["B"])
        result = out
        if out is not None:
            check_out(operands, (m, n), dtype)
            C = operands["out"]
        elif on_gpu:
            C, result = matrices.like(A, (m, n), dtype)
        else:
            C = matrices.empty((m, n), dtype)
        if (
            read is not None
            and all((m, k, n))  # an empty operand has no address, which would tell whether it is converted
            and read.in_place(operands["A"], operands["B"], None, operands.get("out"))
            and (product := _record(operands["A"], operands["B"], C, run)) is not None
        ):
            _recorded.keep(read.key, product)
            read.pointers[3] = C.pointer
            return product.run(A, result, read)
        if m and n:
            a, b = (X if isinstance(X, Matrix) else matrices.upload(X) for X in (operands["A"], operands["B"]))
            with callers.ordered(callers.streams(arrays.values())) if read is not None else nullcontext():
                run(Problem.of(a, b, C))
        if on_gpu:
            if callers.must_synchronize(arrays.values()):
                device.synchronize(0)
            return result
        D = matrices.download(C)
        return matrices.as_torch(D) if callers.is_torch(A) else D


def _record(A: Matrix, B: Matrix, C: Matrix, run: Callable[[Problem], None]) -> Recorded | None:
    """The recorded kernels of a product; None if they depend on more than the facts of the operands."""
    placed: dict[str, Any] = tensors.place(A=A, B=B, D=C)
    try:
        with recording.start() as steps:
            run(Problem.of(placed["A"], placed["B"], placed["D"]))
    except NotRecordableError:
        return None
    return Recorded(Sequence(steps), C.shape, tuple(tensors.extent(X) for X in (A, B, None, C)))


def checked(A: Any, B: Any) -> tuple[np.dtype[Any], tuple[int, int, int]]:
    """Return the dtype and (m, k, n) of a product; InputError for other dtypes, or shapes that do not fit."""
    (shape_a, a), (shape_b, b) = _kind(A, "A"), _kind(B, "B")
    if a != b:
        raise InputError(f"A has {a} and B {b}: convert one of them")
    if shape_a[1] != shape_b[0]:
        raise InputError(f"A {shape_a} and B {shape_b} do not fit: A's columns must be as many as B's rows")
    return a, (shape_a[0], shape_a[1], shape_b[1])


def _kind(X: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(X, Matrix | np.ndarray):
        raise InputError(f"{name} is a {type(X).__name__}: give an array of NumPy, CuPy or torch")
    if X.dtype.name not in REALS or not X.dtype.isnative:
        raise InputError(f"{name} has {X.dtype}: tall and skinny products are in float32 or float64")
    if len(X.shape) != 2:
        raise InputError(f"{name} has shape {tuple(X.shape)}: one matrix, with two axes, is needed")
    return tuple(X.shape), np.dtype(X.dtype.name)


def check_out(operands: dict[str, Any], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Raise InputError for an `out` of another shape or dtype, or with shared memory."""
    C = operands["out"]
    if not isinstance(C, Matrix) or C.dtype != dtype or C.shape != shape or not (0 in shape or matrices.apart(C)):
        raise InputError(
            f"out must be an array on the GPU of shape {shape} and dtype {dtype}, without overlapping entries"
        )
    for name in "AB":
        if matrices.overlap(operands[name], C):
            raise InputError(f"out shares memory with {name}: pass separate memory")


def refuse_tiles(why: str, tiles: dict[str, Any]) -> None:
    """Raise InputError if a parameter of tiles is given to a kernel that has none."""
    given = [name for name, value in tiles.items() if value is not None]
    if given:
        raise InputError(f"{why}: leave {' and '.join(given)} out")
