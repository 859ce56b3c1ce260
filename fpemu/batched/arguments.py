"""Arguments of the batched products: fp16 operands, transposes, the accumulator's format, the instruction."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, simt
from fpemu.arguments import choice
from fpemu.errors import InputError
from fpemu.formats import FP16, FP32, FloatFormat
from fpemu.mma import MmaSpec, catalog

Array = NDArray[Any]
Accumulate = Literal["fp32", "fp16"]
Kernel = Literal["tensor", "magma-small"]
ACCUMULATORS = {"fp16": FP16, "fp32": FP32}
KERNELS = ("tensor", "magma-small")
TRANSPOSES = ("N", "T", "C")
TC_K = 16
"""Length in k of one call of the tensor cores' interface, in all of its three shapes (section 3)."""


@dataclass(frozen=True)
class ProductArithmetic:
    """The instruction that adds the products of one element, and their order."""

    spec: MmaSpec
    """The instruction; a fused multiply-add for ``magma-small``"""
    step: int
    """Number of products that a complex element adds before the next of its real products continues"""

    @property
    def accumulator(self) -> FloatFormat:
        """The format of the sums."""
        return ACCUMULATORS[str(self.spec.d_format)]

    @property
    def nan_code(self) -> int:
        """Code of NaN in fp16 results: the instruction's code, or the highest bits of its fp32 code."""
        code = int(self.spec.nan_code or 0)
        return code if self.accumulator is FP16 else (code >> 16 & 0x8000) | 0x7C00 | (code >> 13 & 0x3FF)


def arithmetic(
    kernel: str, accumulate: str, hardware: str | MmaSpec | None, instruction: str | None
) -> ProductArithmetic:
    """Return the arithmetic that the arguments select; unknown names, and formats that do not fit, raise InputError."""
    choice("kernel", kernel, KERNELS)
    choice("accumulate", accumulate, ACCUMULATORS)
    if kernel == "magma-small":
        if instruction is not None:
            raise InputError("kernel='magma-small' runs on FMA units: leave instruction= out")
        if isinstance(hardware, MmaSpec):
            raise InputError("kernel='magma-small' runs on FMA units: give hardware= by name, or leave it out")
        if hardware is not None:
            catalog.architecture(hardware)
        return ProductArithmetic(simt.SPECS[accumulate], 1)
    if hardware is None:
        raise InputError("kernel='tensor' runs on a matrix instruction: give hardware=, such as 'V100' or 'hopper'")
    spec = mma.spec(hardware, "fp16", accumulate, _instruction(hardware, accumulate, instruction))
    have = tuple(str(f) for f in (spec.a_format, spec.b_format, spec.c_format, spec.d_format))
    if have != ("fp16", "fp16", accumulate, accumulate):
        raise InputError(
            f"accumulate={accumulate!r} multiplies fp16 by fp16 into {accumulate}, but {spec.name!r} takes {have[0]}, "
            f"{have[1]} and {have[2]} and gives {have[3]}"
        )
    return ProductArithmetic(spec, lcm(TC_K, spec.k) if TC_K % spec.k else TC_K)


def _instruction(hardware: str | MmaSpec, accumulate: str, instruction: str | None) -> str | None:
    """Return "mma", which the paper's interface issues, or None for the default of hardware without it."""
    if isinstance(hardware, MmaSpec):
        if instruction is not None:
            raise InputError("an MmaSpec is one instruction already: leave instruction= out")
        return None
    if instruction is not None:
        return instruction
    arch = catalog.architecture(hardware)
    rows = [r for r in catalog.rows() if r.architecture == arch and r.instruction == "mma"]
    return "mma" if any((str(r.a_format), str(r.d_format)) == ("fp16", accumulate) for r in rows) else None


def matrix(x: Array, name: str) -> Array:
    """Return an operand, which must have two axes or more."""
    if x.ndim < 2:
        raise InputError(f"{name} has shape {x.shape}: it needs two axes or more, the last two those of its matrices")
    return x


def transposed(x: Array, op: Any, name: str) -> Array:
    """Return op(x): unchanged ("N"), or with its last two axes exchanged ("T", "C")."""
    op = choice(name, op.upper() if isinstance(op, str) else op, TRANSPOSES)
    return x if op == "N" else np.swapaxes(x, -1, -2)


def factor_names(transa: str, transb: str) -> tuple[str, str]:
    """Return the names of op(A) and op(B) for errors."""
    a, b = (name if op in "Nn" else f"the transpose of {name}" for name, op in (("A", transa), ("B", transb)))
    return a, b


def check_addend(C: Array, shape: tuple[int, ...]) -> None:
    """Raise InputError unless C broadcasts to the product's shape."""
    try:
        fits = np.broadcast_shapes(C.shape, shape) == shape and C.shape[-2:] == shape[-2:]
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"C of shape {C.shape} does not fit the product of shape {shape}")
