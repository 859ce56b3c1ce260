"""A tall and skinny product as its kernels receive it: sizes, steps and addresses; and the launch of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.runtime import compiler
from fpemu.gpu.runtime.compiler import struct
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.modules import Module
from fpemu.gpu.runtime.steps import Launch, Struct, TensorMap

REALS = {"float32": "fp32", "float64": "fp64"}
OPERANDS = np.dtype([field for x in "abc" for field in ((x, "<u8"), (f"{x}_steps", "<i8", 2))] + [("sizes", "<i8", 3)])
"""The struct Operands of ``kernels/tallskinny.cuh``"""
_FLAGS = """
A_ROWS A_COLUMNS A_ANY A_LINEAR B_ROWS B_COLUMNS B_KEPT C_COLUMNS C_DIRECT C_FLAT C_LINEAR C_PAIRS C_STAGED
DIRECT DMMA FLAT ONE_BOX VECTORS WHOLE_K
"""
FLAGS = frozenset(_FLAGS.split())
"""Settings that a kernel tests with ``#ifdef``: layouts of the operands, and the code paths that they permit"""


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
    addresses : tuple of three int or Address
        Addresses of A, B and C in the GPU's memory, or in the regions of a plan.
    """

    fmt: str
    m: int
    k: int
    n: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]
    addresses: tuple[Any, Any, Any] = (0, 0, 0)

    @classmethod
    def of(cls, A: Matrix, B: Matrix, C: Matrix) -> Problem:
        """Return the product of matrices on the GPU."""
        (m, k), n = A.shape, B.shape[1]
        a, b, c = ((X.strides[0], X.strides[1]) for X in (A, B, C))
        return cls(REALS[A.dtype.name], m, k, n, a, b, c, (A.pointer, B.pointer, C.pointer))

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
        step, count = steps[layout == "columns"], 1 if layout == "any" else 16 // self.bytes
        while count > 1 and (step % count or address % (count * self.bytes)):
            count //= 2
        return count


def _layout(steps: tuple[int, int], shape: tuple[int, int]) -> str:
    # the step along an axis of length 1 is arbitrary
    if steps[0] == 1 and (steps[1] >= shape[0] or shape[1] == 1 or steps[1] != 1):
        return "columns"
    return "rows" if steps[1] == 1 else "any"


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel and its launch.

    Parameters
    ----------
    file, entry : str
        ``kernels/<file>`` and the kernel in it.
    settings : tuple of (str, value)
        Compile-time settings of the kernel: the type REAL, names of `FLAGS`, and integers.
    grid : (int, int)
        Thread blocks.
    threads : int
        Threads of a thread block.
    shared : int
        Bytes of dynamic shared memory of a thread block.
    tensor : bool, optional
        Whether the kernel reads A through a TMA tensor; None: the kernel has no parameter for it.
    """

    file: str
    entry: str
    settings: tuple[tuple[str, Any], ...]
    grid: tuple[int, int]
    threads: int
    shared: int = 0
    tensor: bool | None = None

    @property
    def constants(self) -> str:
        """Source before the kernel's: REAL, the flags as macros, the integers as members of struct Config."""
        flags = [f"#define {name}" for name, _ in self.settings if name in FLAGS]
        integers = {name: value for name, value in self.settings if name not in FLAGS and name != "REAL"}
        return "\n".join([f"typedef {self.parameters['REAL']} REAL;", *flags, struct(integers), ""])

    @property
    def source(self) -> str:
        """Source of the kernel."""
        return self.constants + compiler.kernel_source(self.file)

    @property
    def parameters(self) -> dict[str, Any]:
        """The compile-time settings by name."""
        return dict(self.settings)

    def step(self, problem: Problem) -> Launch:
        """Return the launch for a problem."""
        addresses = dict(zip("abc", problem.addresses, strict=True))
        steps = {"a_steps": problem.a, "b_steps": problem.b, "c_steps": problem.c}
        operands = Struct(OPERANDS, addresses | steps | {"sizes": (problem.m, problem.k, problem.n)})
        tensor = () if self.tensor is None else (self._tensor(problem),)
        module = _module(self.source, self.file)
        return module.step(self.entry, self.grid, self.threads, operands, *tensor, shared=self.shared)

    def _tensor(self, problem: Problem) -> Any:
        if not self.tensor:
            return np.zeros(16, np.uint64)
        lengths, steps, boxes = zip(*self.box(problem)[::-1], strict=True)
        return TensorMap(problem.addresses[0], 4, lengths, steps[:-1], boxes)

    def box(self, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return A as words of 4 bytes: for each axis, innermost first, length, step in bytes, box length."""
        words, values, size = problem.bytes // 4, self.parameters, problem.bytes
        if problem.a_layout == "rows":
            return (problem.k * words, 4, 32), (problem.m, problem.a[0] * size, 32 * values["ROWS"]), (1, 16, 1)
        column = problem.a[1] * size
        if "ONE_BOX" not in values:
            return (problem.m * words, 4, 32), (problem.k, column, values["DEPTH"]), (1, 16, 1)
        blocks = values["ROWS"] * words
        return (32, 4, 32), (problem.m * words // 32, 128, blocks), (problem.k, column, values["DEPTH"])


@lru_cache(maxsize=512)
def _module(text: str, name: str) -> Module:
    return Module(text, name=name)


def refuse_tiles(why: str, tiles: dict[str, Any]) -> None:
    """Raise InputError if a parameter of tiles is given to a kernel that has none."""
    given = [name for name, value in tiles.items() if value is not None]
    if given:
        raise InputError(f"{why}: leave {' and '.join(given)} out")


def checked(A: Any, B: Any) -> tuple[np.dtype[Any], tuple[int, int, int]]:
    """Return the dtype and (m, k, n) of a product; InputError for other dtypes, or shapes that do not fit."""
    for name, X in (("A", A), ("B", B)):
        if not isinstance(X, Matrix | np.ndarray):
            raise InputError(f"{name} is a {type(X).__name__}: give an array of NumPy, CuPy or torch")
        if X.dtype.name not in REALS or not X.dtype.isnative:
            raise InputError(f"{name} has {X.dtype}: tall and skinny products are in float32 or float64")
        if len(X.shape) != 2:
            raise InputError(f"{name} has shape {tuple(X.shape)}: one matrix, with two axes, is needed")
    if A.dtype != B.dtype:
        raise InputError(f"A has {A.dtype} and B {B.dtype}: convert one of them")
    if A.shape[1] != B.shape[0]:
        raise InputError(f"A {A.shape} and B {B.shape} do not fit: A's columns must be as many as B's rows")
    return A.dtype, (A.shape[0], A.shape[1], B.shape[1])
