"""The interface of a GPU kernel: a kernel of one scheme, its prepared operands, and the records of its launches.

`fpemu.gemm(A, B, **kernel.arguments)` gives the bits that the kernel gives, on any machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.schemes.base import Scheme

Operand = tuple[Matrix, str]
"""A matrix and its name, "A" or "B"."""


@dataclass(eq=False)
class Prepared:
    """An operand on the GPU, ready to be multiplied; rows are those of A, or the columns of B.

    Parameters
    ----------
    source : Matrix
        The operand itself: A (..., M, K), B (..., K, N).
    name : {"A", "B"}
    words : tuple of Buffer
        The words, if the kernel reads them from memory: each (batch, rows, pitch), K contiguous for both operands,
        zeros from K to the pitch; or chunk after chunk of 64 k (`fpemu.gpu.gemm.wgmma.splits.Chunked`).
    pitch : int
        Elements from one row to the next.
    exponents : Buffer, optional
        int32 (batch, rows): the powers of two that the rows are multiplied by; None: none.
    special : Buffer, optional
        uint8 (batch, rows): 1 where a row has a NaN or an Inf (these entries count as zero); None: not looked for.
    faults : Buffer, optional
        Two uint64: how many entries are NaN or infinite, and how many have a word that overflows.
    """

    source: Matrix
    name: str
    words: tuple[device.Buffer, ...] = ()
    pitch: int = 0
    exponents: device.Buffer | None = None
    special: device.Buffer | None = None
    faults: device.Buffer | None = None

    @property
    def rows(self) -> int:
        """Rows of A, columns of B."""
        return self.source.shape[-2 if self.name == "A" else -1]

    @property
    def K(self) -> int:  # noqa: N802
        """Length of the sums."""
        return self.source.shape[-1 if self.name == "A" else -2]

    @property
    def steps(self) -> tuple[int, int]:
        """Elements from one row (column of B) to the next, and along K."""
        row, column = self.source.strides[-2:]
        return (row, column) if self.name == "A" else (column, row)


class LaunchCache(dict[Any, Any]):
    """At most 16 launches by what they depend on: a caller with ever new arrays does not fill the memory."""

    def keep(self, key: Any, value: Any) -> None:
        """Enter a value; a full cache is emptied first."""
        if len(self) >= 16:
            self.clear()
        self[key] = value


class Kernel(ABC):
    """A kernel for products (..., M, K) times (..., K, N) of one scheme.

    Attributes
    ----------
    name : str
        The kernel's name and tile, such as "hopper 128x192".
    scheme : Scheme
        With all choices made.
    spec : MmaSpec or None
        The instruction it issues, as a row of the catalog; None: ordinary cores.
    order : KOrder or None
        Its order over K, but for the promotions that are the scheme's own.
    recordable : bool
        Whether `prepare_operands` and `multiply` only queue launches and fills, whatever the operands' addresses.
    patches : bool
        Whether `multiply` writes the outputs that depend on NaN and Inf too.
    """

    recordable: ClassVar[bool] = False
    patches: ClassVar[bool] = False
    name: str
    scheme: Scheme
    spec: MmaSpec | None
    order: KOrder | None

    @abstractmethod
    def prepare_operands(self, operands: Sequence[Operand], on_range: str) -> list[Prepared]:
        """Queue the split and scaling of one operand or both; faults are counted on the GPU."""

    def prepare(self, X: Matrix, name: str, on_range: str) -> Prepared:
        """Prepare one operand."""
        return self.prepare_operands([(X, name)], on_range)[0]

    def both(self, A: Matrix, B: Matrix, on_range: str) -> tuple[Prepared, Prepared]:
        """Prepare the two operands of a product, in one launch where the kernel can."""
        a, b = self.prepare_operands([(A, "A"), (B, "B")], on_range)
        return a, b

    @abstractmethod
    def multiply(self, a: Prepared, b: Prepared, D: Matrix, alpha: Any, beta: Any, C: Matrix | None) -> None:
        """D = alpha · (A·B) + beta · C as the scheme defines it, but for rows and columns that hold NaN or Inf.

        D is fp32 (or the scheme's operand format), contiguous in its last axis; C broadcasts against it (strides of 0).
        Every NaN is written with the scheme's code. Only queues: `device.synchronize` reports what went wrong.
        """

    @property
    def arguments(self) -> dict[str, Any]:
        """What `fpemu.gemm` takes to give the same bits: scheme, hardware (the spec) and order."""
        scheme = self.scheme
        if hasattr(scheme, "instruction"):  # the spec is one already
            scheme = replace(scheme, instruction=None, k=None)  # type: ignore[call-arg]
        return {"scheme": scheme, "hardware": self.spec, "order": self.order}

    @property
    def options(self) -> dict[str, Any]:
        """The scheme's options that are not the published ones."""
        values = {f: getattr(self.scheme, f.name) for f in fields(self.scheme)}
        return {f.name: value for f, value in values.items() if value != f.default}

    def describe(self) -> str:
        """The kernel in one line: name, scheme with its options, instruction, order."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        where = "ordinary cores" if self.spec is None else str(self.spec)
        order = "one chain, k ascending" if self.order is None else str(self.order)
        return f"{self.name}: {self.scheme.name}{options} on {where}; {order}"


# --- parameters of launches
RESULT = np.dtype(
    [
        *((name, "<u8") for name in ("d", "c")),
        *((name, "<i8") for name in ("d_row", "c_row", "c_column")),
        ("alpha", "<f4"),
        ("beta", "<f4"),
        ("nan", "<u8"),
    ],
    align=True,
)
"""The struct Result of ``kernels/hopper_epilogue.cuh``"""
TASK = np.dtype(
    [
        ("out", RESULT),
        *((name, "<u8") for name in ("where", "row_exponents", "column_exponents", "slices")),
        *((name, "<i4") for name in ("M", "N", "K", "batch", "group", "evict_first")),
    ],
    align=True,
)
"""The struct Task of ``kernels/hopper_epilogue.cuh``"""


def record(dtype: np.dtype[Any], values: Mapping[str, Any]) -> NDArray[Any]:
    """One structure: fields by name; what has a pointer stands for it, None for a null, what is not named is zero."""
    result = np.zeros(1, dtype)
    for name, value in values.items():
        result[name] = 0 if value is None else getattr(value, "pointer", value)
    return result


def result(
    kernel: Kernel, D: Matrix, alpha: Any, beta: Any, C: Matrix | None, d_at: int = 0, c_at: int = 0
) -> NDArray[Any]:
    """The struct Result for D = alpha · (A B) + beta · C, for one matrix of a stack, which begins at these elements."""
    values = {
        "d": D.pointer + 4 * d_at,
        "d_row": D.strides[-2],
        "alpha": alpha,
        "beta": beta,
        "nan": kernel.scheme.nan_code(kernel.spec),
    }
    if C is not None:
        c = C.broadcast(D.shape)
        values |= {"c": c.pointer + 4 * c_at, "c_row": c.strides[-2], "c_column": c.strides[-1]}
    return record(RESULT, values)


def places(D: Matrix, C: Matrix | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each product of a stack begins in D and in C, in elements."""
    lead = D.shape[:-2]
    return D.offsets(lead), np.zeros(D.count, np.int64) if C is None else C.broadcast(D.shape).offsets(lead)


def addend(C: Matrix | None, D: Matrix) -> list[Any]:
    """The parameters for C of a kernel that writes D: pointer, table of the batch, and the last two strides."""
    if C is None:
        return [np.uint64(0), np.uint64(0), np.int64(0), np.int64(0)]
    c = C.broadcast(D.shape)
    return [np.uint64(c.pointer), matrices.table(c, D.shape[:-2]), *(np.int64(s) for s in c.strides[-2:])]


def layout(X: Matrix | None) -> Any:
    """The values of a matrix that a launch depends on."""
    return None if X is None else (X.pointer, X.shape, X.strides)
