"""One launch of a kernel for tall and skinny products: its source, its size and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.gpu.runtime import compiler, launches, modules
from fpemu.gpu.runtime.constants import struct
from fpemu.gpu.tallskinny.problem import Problem

_FLAGS = """
A_ROWS A_COLUMNS A_ANY A_LINEAR B_ROWS B_COLUMNS B_KEPT C_COLUMNS C_DIRECT C_FLAT C_LINEAR C_PAIRS C_STAGED
DIRECT DMMA FLAT ONE_BOX VECTORS WHOLE_K
"""
FLAGS = frozenset(_FLAGS.split())
"""Settings that a kernel tests with ``#ifdef``: layouts of the operands, and the code paths that they permit"""


@dataclass(frozen=True)
class Plan:
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

    def prepare(self, problem: Problem) -> launches.Launch:
        """Return the launch, which can be queued repeatedly."""
        more = () if self.tensor is None else (self._tensor(problem),)
        return _module(self.source, self.file).prepare(
            self.entry, self.grid, self.threads, problem.operands(), *more, shared=self.shared, keep=problem.owners
        )

    def run(self, problem: Problem) -> None:
        """Queue the launch on the default stream."""
        self.prepare(problem).queue()

    def _tensor(self, problem: Problem) -> Any:
        if not self.tensor:
            return np.zeros(16, np.uint64)
        lengths, steps, boxes = zip(*self.box(problem)[::-1], strict=True)
        return launches.tensor_map(problem.addresses[0], 4, lengths, steps[:-1], boxes)

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
def _module(text: str, name: str) -> modules.Module:
    return modules.Module(text, name=name)
