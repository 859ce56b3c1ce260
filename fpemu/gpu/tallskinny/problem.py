"""A tall and skinny product, the layouts of its matrices, and the launch of a kernel for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.runtime import compiler
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.modules import module
from fpemu.gpu.runtime.steps import Launch, Struct, TensorMap

OPERANDS = np.dtype([field for x in "abc" for field in ((x, "<u8"), (f"{x}_steps", "<i8", 2))] + [("sizes", "<i8", 3)])
"""The struct Operands of ``kernels/tallskinny.cuh``"""


class Problem(NamedTuple):
    """C (m×n) = A (m×k) B (k×n) of matrices on the GPU, or at addresses in the regions of a plan."""

    A: Matrix
    B: Matrix
    C: Matrix

    @property
    def m(self) -> int:
        return self.A.shape[0]

    @property
    def k(self) -> int:
        return self.A.shape[1]

    @property
    def n(self) -> int:
        return self.B.shape[1]

    @property
    def bytes(self) -> int:
        """Bytes of an element: 4 (fp32) or 8 (fp64)."""
        return self.A.dtype.itemsize

    @property
    def real(self) -> str:
        """The elements' type in C++."""
        return "float" if self.bytes == 4 else "double"


def layout(X: Matrix) -> str:
    """Return the contiguous vectors of a matrix: "columns", "rows" or "any"."""
    (rows, columns), (down, across) = X.shape, X.strides
    # the step along an axis of length 1 is arbitrary
    if down == 1 and (across >= rows or columns == 1 or across != 1):
        return "columns"
    return "rows" if across == 1 else "any"


def vector(X: Matrix) -> int:
    """Return the elements of an aligned access to a contiguous vector of a matrix: those of 16 bytes, or fewer."""
    form, size = layout(X), X.dtype.itemsize
    if form == "any":
        return 1
    return max(1, gcd(16, X.strides[form == "columns"] * size, X.pointer % 16) // size)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel and its launch."""

    file: str  # in kernels/
    entry: str  # the kernel in it
    parameters: dict[str, Any]  # the type REAL, integers, and True for macros that the kernel tests by #ifdef
    grid: tuple[int, int]
    threads: int  # of a thread block
    shared: int = 0  # bytes of dynamic shared memory of a thread block
    tensor: bool | None = None  # whether A is read through a TMA tensor; None: the kernel has no parameter for it

    @property
    def source(self) -> str:
        """Source of the kernel."""
        real, *others = self.parameters.items()
        macros = [f"#define {name}" for name, value in others if value is True]
        integers = {name: value for name, value in others if value is not True}
        head = [f"typedef {real[1]} REAL;", *macros, compiler.struct(integers), ""]
        return "\n".join(head) + compiler.kernel_source(self.file)

    def step(self, problem: Problem) -> Launch:
        """Return the launch for a problem."""
        values: dict[str, Any] = {"sizes": (problem.m, problem.k, problem.n)}
        for name, X in zip("abc", problem, strict=True):
            values |= {name: X.pointer, f"{name}_steps": X.strides}
        tensor = () if self.tensor is None else (self._tensor(problem),)
        operands = Struct(OPERANDS, values)
        return module(self.source, self.file).step(
            self.entry, self.grid, self.threads, operands, *tensor, shared=self.shared
        )

    def _tensor(self, problem: Problem) -> Any:
        if not self.tensor:
            return np.zeros(16, np.uint64)
        lengths, steps, boxes = zip(*self.box(problem)[::-1], strict=True)
        return TensorMap(problem.A.pointer, 4, lengths, steps[:-1], boxes)

    def box(self, problem: Problem) -> tuple[tuple[int, int, int], ...]:
        """Return A as words of 4 bytes: for each axis, innermost first, length, step in bytes, box length."""
        (m, k), (down, across), size = problem.A.shape, problem.A.strides, problem.bytes
        words, values = size // 4, self.parameters
        if layout(problem.A) == "rows":
            return (k * words, 4, 32), (m, down * size, 32 * values["ROWS"]), (1, 16, 1)
        if "ONE_BOX" not in values:
            return (m * words, 4, 32), (k, across * size, values["DEPTH"]), (1, 16, 1)
        return (32, 4, 32), (m * words // 32, 128, values["ROWS"] * words), (k, across * size, values["DEPTH"])


def refuse_tiles(why: str, tiles: dict[str, Any]) -> None:
    """Raise InputError if a parameter of tiles is given to a kernel that has none."""
    given = [name for name, value in tiles.items() if value is not None]
    if given:
        raise InputError(f"{why}: leave {' and '.join(given)} out")
