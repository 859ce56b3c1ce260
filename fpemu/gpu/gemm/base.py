"""The interface of a GPU kernel: a kernel of one scheme, its prepared operands, and the structures of its launches.

`fpemu.gemm(A, B, **kernel.arguments)` gives the bits that the kernel gives, on any machine.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.compiler import kernel_source
from fpemu.gpu.runtime.counters import NBYTES
from fpemu.gpu.runtime.device import multiprocessors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.modules import module
from fpemu.gpu.runtime.steps import Address, Block, Memory, Step, Struct, fields
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.schemes.base import Scheme


@dataclass(eq=False)
class Prepared:
    """An operand on the GPU, ready to be multiplied; its rows are the rows of A or the columns of B."""

    source: Matrix  # the operand itself: A (..., M, K), B (..., K, N)
    name: str  # "A" or "B"
    # words that the kernel reads from memory: each (batch, rows, pitch), K contiguous, zeros from K to the pitch; or
    # chunked: (batch, chunk of 64 k, row, 128 bytes)
    words: tuple[Block, ...] = ()
    pitch: int = 0  # elements from one row to the next
    exponents: Block | None = None  # int32 (batch, rows): the powers of two that the rows are multiplied by
    # uint8 (batch, rows): 1 where a row has NaN or Inf (these entries count as zero); None: not looked for
    special: Block | None = None
    faults: Address | None = None  # two uint64: numbers of entries that are NaN or infinite, and with an overflow
    chunked: bool = False

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


class Output:
    """The end of a product: D = alpha · (A·B) + beta · C, D contiguous in its last axis, C broadcast to D."""

    def __init__(self, D: Matrix, alpha: Any = 1.0, beta: Any = 0.0, C: Matrix | None = None) -> None:
        self.D, self.alpha, self.beta, self.C = D, alpha, beta, None if C is None else C.broadcast(D.shape)
        self.lead, self.count = D.shape[:-2], D.count

    def offsets(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each product of a stack begins in D and in C, in elements."""
        return self.D.offsets(), np.zeros(self.count, np.int64) if self.C is None else self.C.offsets()

    def where(self, a: Prepared, b: Prepared) -> NDArray[np.int64]:
        """Of each product its matrices of A and B, and `offsets`: the struct Where of kernels/hopper_epilogue.cuh."""
        return np.stack([a.source.index(self.lead), b.source.index(self.lead), *self.offsets()], axis=1)

    @property
    def addend(self) -> list[Any]:
        """The parameters for C of a kernel: pointer, table of the batch, and the last two strides."""
        C = self.C
        return [0, 0, 0, 0] if C is None else [C.pointer, matrices.table(C), *C.strides[-2:]]


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
    splitter : Splitter or ChunkSplitter
        The split of the operands.
    patches : bool
        Whether the steps of `multiply` write the outputs that depend on NaN and Inf too.
    """

    patches: ClassVar[bool] = False
    name: str
    scheme: Scheme
    spec: MmaSpec | None
    order: KOrder | None
    splitter: Any

    def split(self, operands: Sequence[Prepared], policy: str, memory: Memory) -> list[Step]:
        """Complete one or both operands, and return the steps that split and scale them for an overflow policy.

        The entries out of range are counted in `counters`.
        """
        steps: list[Step] = self.splitter.split(operands, policy, memory)
        return steps

    @abstractmethod
    def multiply(self, a: Prepared, b: Prepared, end: Output, memory: Memory) -> list[Step]:
        """Return the steps of a product as the scheme defines it; every NaN is written with the scheme's code.

        Rows and columns that hold NaN or Inf are left to `patch` unless `patches`.
        """

    def steps(
        self,
        layouts: Mapping[str, Matrix],
        scalars: tuple[Any, Any],
        policy: str,
        memory: Memory,
        ready: Prepared | None = None,
    ) -> tuple[list[Step], int]:
        """Return the steps of a product, and the number of those that split the operands, which come first.

        layouts : A, B, C or None, and D at addresses in their regions; scalars : alpha, beta; policy : overflow policy;
        ready : an operand that is split already
        """
        a, b = (ready if ready and ready.name == name else Prepared(layouts[name], name) for name in "AB")
        end = Output(layouts["D"], *scalars, layouts["C"])
        split = self.split([x for x in (a, b) if x is not ready], policy, memory)
        steps = [*split, *self.multiply(a, b, end, memory)]
        patched = self.patches or policy == "raise"
        if not patched and a.special is not None and b.special is not None:
            steps.append(patch(a, b, end, self.scheme.nan_code(self.spec)))
        return steps, len(split)

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
        values = {f: getattr(self.scheme, f.name) for f in dataclasses.fields(self.scheme)}
        return {f.name: value for f, value in values.items() if value != f.default}

    def describe(self) -> str:
        """The kernel in one line: name, scheme with its options, instruction, order."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        where = "ordinary cores" if self.spec is None else str(self.spec)
        order = "one chain, k ascending" if self.order is None else str(self.order)
        return f"{self.name}: {self.scheme.name}{options} on {where}; {order}"


# --- parameters of launches
RESULT = fields("u8 d c, i8 d_row c_row c_column, f4 alpha beta, u8 nan")
"""The struct Result of ``kernels/hopper_epilogue.cuh``"""
_TASK = "RESULT out, u8 where row_exponents column_exponents slices, i4 M N K batch group evict_first"
TASK = fields(_TASK, RESULT=RESULT)
"""The struct Task of ``kernels/hopper_epilogue.cuh``"""


def result(kernel: Kernel, end: Output, d_at: int = 0, c_at: int = 0) -> Struct:
    """The struct Result, for one matrix of a stack, which begins at these elements of D and C."""
    D, C, nan = end.D, end.C, kernel.scheme.nan_code(kernel.spec)
    values = {"d": D.pointer + 4 * d_at, "d_row": D.strides[-2], "alpha": end.alpha, "beta": end.beta, "nan": nan}
    if C is not None:
        values |= {"c": C.pointer + 4 * c_at, "c_row": C.strides[-2], "c_column": C.strides[-1]}
    return Struct(RESULT, values)


def counters(name: str, memory: Memory) -> Address:
    """Return the address of an operand's counters of entries out of range.

    They lie in the slot of its plan; those of an operand that is prepared in advance lie beside its words, because
    every product with it reads whether its rows have NaN or Inf.
    """
    if memory.region == "prepared":
        return memory.cleared(NBYTES).pointer
    return Address("counts", NBYTES * "AB".index(name))


# --- the outputs that a NaN or an Inf of an operand reaches: `fpemu.schemes.words.patch` on the GPU
_PATCH_TILE = 16  # SIDE in nonfinite_outputs.cu
_PATCH_BLOCKS = 4  # per multiprocessor, at most: each block computes several tiles


def patch(a: Prepared, b: Prepared, end: Output, nan_code: int) -> Step:
    """Return the launch that writes the outputs in rows and columns with NaN or Inf; every NaN gets `nan_code`."""
    M, N, D = a.rows, b.rows, end.D
    tiles = end.count * -(-M // _PATCH_TILE) * -(-N // _PATCH_TILE)
    sides = []
    for x in (a, b):
        index = device.Buffer.of(x.source.index(end.lead))
        sides += [x.source.pointer, matrices.table(x.source, end.lead), *x.steps, x.special, index, x.faults]
    sizes, scalars = (end.count, M, N, a.K), (np.float32(end.alpha), np.float32(end.beta), np.uint64(nan_code))
    arguments = *sides, D.pointer, matrices.table(D), D.strides[-2], *end.addend, *sizes, *scalars
    blocks = min(tiles, _PATCH_BLOCKS * multiprocessors())
    overlap = device.overlaps_launches()  # the kernel waits for the product by itself
    nonfinite_outputs = module(kernel_source("nonfinite_outputs.cu"), "nonfinite_outputs.cu")
    return nonfinite_outputs.step("patch", blocks, 256, *arguments, overlap=overlap)
