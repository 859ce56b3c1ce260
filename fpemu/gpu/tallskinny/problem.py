"""A tall and skinny product on the GPU: what the user passed, checked, as addresses and steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import is_size
from fpemu.errors import GpuError, InputError, shown
from fpemu.gpu.runtime import callers, device, matrices
from fpemu.gpu.runtime.matrices import Matrix

REALS = {"float32": "fp32", "float64": "fp64"}
_lock = RLock()


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
        """The product of matrices of the GPU."""
        (m, k), n = A.shape, B.shape[1]
        steps = [(X.strides[0], X.strides[1]) for X in (A, B, C)]
        addresses = (A.pointer, B.pointer, C.pointer)
        return cls(REALS[A.dtype.name], m, k, n, steps[0], steps[1], steps[2], addresses, (A, B, C))

    @property
    def bytes(self) -> int:
        """Of an element"""
        return 4 if self.fmt == "fp32" else 8

    @property
    def a_layout(self) -> str:
        """Which elements of A lie side by side: "columns" (those of a column), "rows" or "any"."""
        return _layout(self.a, (self.m, self.k))

    @property
    def c_layout(self) -> str:
        """The same of C."""
        return _layout(self.c, (self.m, self.n))

    def vector(self, which: str) -> int:
        """Into how many elements at a time A or C can be cut along what lies side by side: 4 (fp32), 2 or 1.

        Parameters
        ----------
        which : {"a", "c"}
        """
        layout = self.a_layout if which == "a" else self.c_layout
        if layout == "any":
            return 1
        steps = self.a if which == "a" else self.c
        step, address = steps[layout == "columns"], self.addresses[0 if which == "a" else 2]
        count = 16 // self.bytes
        while count > 1 and (step % count or address % (count * self.bytes)):
            count //= 2
        return count

    def operands(self) -> NDArray[np.int64]:
        """The kernels' ``Operands``."""
        A, B, C = self.addresses
        numbers = (A, *self.a, B, *self.b, C, *self.c, self.m, self.k, self.n)
        return np.array(numbers, np.int64)


def _layout(steps: tuple[int, int], shape: tuple[int, int]) -> str:
    if steps[0] == 1 and (steps[1] >= shape[0] or shape[1] == 1 or steps[1] != 1):
        return "columns"
    return "rows" if steps[1] == 1 else "any"


def solve(A: Any, B: Any, out: Any, run: Callable[[Problem], None]) -> Any:
    """C = A B, made by `run`, in `out` or in an array of the kind that A is.

    Raises
    ------
    InputError
        Arrays that no product takes, or that lie in different places.
    GpuError
        No GPU.
    """
    if device.missing() is not None:
        raise GpuError(str(device.missing()))
    given = {"A": A, "B": B} | ({} if out is None else {"out": out})
    with _lock, device.entered(), callers.ordered(callers.streams(given.values())):
        taken = {who: matrices.take(X, who, write=who == "out") for who, X in given.items()}
        there = matrices.same_place(taken)
        dtype, (m, _, n) = checked(taken["A"], taken["B"])
        if "out" in taken:
            check_out(taken, (m, n), dtype)
        a, b = (X if isinstance(X, Matrix) else matrices.upload(X) for X in (taken["A"], taken["B"]))
        if "out" in taken:
            C, made = taken["out"], out
        else:
            C, made = matrices.like(A, (m, n), dtype) if there else (matrices.empty((m, n), dtype), None)
        if m and n:
            run(Problem.of(a, b, C))
        if there and callers.must_synchronize(given.values()):
            device.synchronize()
        if there:
            return made
        D = matrices.download(C)
        return matrices.as_torch(D) if callers.is_torch(A) else D


def checked(A: Any, B: Any) -> tuple[np.dtype[Any], tuple[int, int, int]]:
    """The dtype and (m, k, n) of a product.

    Raises
    ------
    InputError
        Dtypes other than two times fp32 or fp64; shapes that do not fit.
    """
    kinds = [_kind(X, who) for X, who in ((A, "A"), (B, "B"))]
    (shape_a, a), (shape_b, b) = kinds
    if a != b:
        raise InputError(f"A has {a} and B {b}: bring them to one of the two")
    if shape_a[1] != shape_b[0]:
        raise InputError(f"A {shape_a} and B {shape_b} do not fit: A's columns must be as many as B's rows")
    return a, (shape_a[0], shape_a[1], shape_b[1])


def _kind(X: Any, who: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if not isinstance(X, Matrix | np.ndarray):
        raise InputError(f"{who} is a {type(X).__name__}: give an array of NumPy, CuPy or torch")
    if X.dtype.name not in REALS or not X.dtype.isnative:
        raise InputError(f"{who} has {X.dtype}: tall and skinny products are in float32 or float64")
    if len(X.shape) != 2:
        raise InputError(f"{who} has shape {tuple(X.shape)}: one matrix, with two axes, is needed")
    return tuple(X.shape), np.dtype(X.dtype.name)


def check_out(taken: dict[str, Any], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Refuse an `out` that the result does not fit, or that is not its alone.

    Raises
    ------
    InputError
    """
    C = taken["out"]
    if not isinstance(C, Matrix) or C.dtype != dtype or C.shape != shape or not (0 in shape or matrices.apart(C)):
        raise InputError(
            f"out must be an array on the GPU of shape {shape} and dtype {dtype}, every entry with a place of its own"
        )
    for who in "AB":
        if matrices.overlap(taken[who], C):
            raise InputError(f"out shares memory with {who}: give it memory of its own")


def positive(name: str, value: Any) -> None:
    """Refuse a size that is not a positive integer.

    Raises
    ------
    InputError
    """
    if not is_size(value):
        raise InputError(f"{name} = {shown(value)} must be a positive integer")


def refuse_tiles(why: str, tiles: dict[str, Any]) -> None:
    """Refuse parameters of tiles that are given though a kernel has none of them.

    Raises
    ------
    InputError
    """
    given = [name for name, value in tiles.items() if value is not None]
    if given:
        raise InputError(f"{why}: leave {' and '.join(given)} out")
