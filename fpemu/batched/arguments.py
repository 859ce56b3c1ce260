"""What the batched products take: operands of fp16, transposes, the format of the sums, the instruction."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, simt
from fpemu.batched.layouts import check_name
from fpemu.errors import InputError
from fpemu.formats import FP16, FP32, FloatFormat
from fpemu.mma import MmaSpec, catalog

Array = NDArray[Any]
ACCUMULATORS = {"fp16": FP16, "fp32": FP32}
KERNELS = ("tensor", "magma-small")
TRANSPOSES = ("N", "T", "C")
TC_K = 16
"""Length in k of one call of the tensor cores' interface, in all of its three shapes (section 3)."""


@dataclass(frozen=True)
class Arithmetic:
    """What adds the products of one element."""

    spec: MmaSpec
    """The instruction; a fused multiply-add for ``magma-small``"""
    step: int
    """Products of one kind that a complex element adds before those of the next kind"""

    @property
    def accumulator(self) -> FloatFormat:
        """The format of the sums."""
        return ACCUMULATORS[str(self.spec.d_format)]

    @property
    def nan_code(self) -> int:
        """The NaN of fp16 results: the instruction's, its highest bits where it is one of fp32."""
        code = int(self.spec.nan_code or 0)
        return code if self.accumulator is FP16 else (code >> 16 & 0x8000) | 0x7C00 | (code >> 13 & 0x3FF)


def arithmetic(kernel: str, accumulate: str, hardware: str | MmaSpec | None, instruction: str | None) -> Arithmetic:
    """The arithmetic that the arguments of a product name.

    Raises
    ------
    InputError
        Unknown names; an instruction that the hardware does not have; an MmaSpec of other formats.
    """
    check_name("kernel", kernel, KERNELS)
    check_name("accumulate", accumulate, ACCUMULATORS)
    if kernel == "magma-small":
        if instruction is not None:
            raise InputError("kernel='magma-small' runs on ordinary cores: leave instruction= out")
        if isinstance(hardware, MmaSpec):
            raise InputError("kernel='magma-small' runs on ordinary cores: give hardware= by name, or leave it out")
        if hardware is not None:
            catalog.architecture(hardware)
        return Arithmetic(simt.SPECS[accumulate], 1)
    if hardware is None:
        raise InputError("kernel='tensor' runs on a matrix instruction: give hardware=, such as 'V100' or 'hopper'")
    spec = mma.spec(hardware, "fp16", accumulate, _instruction(hardware, accumulate, instruction))
    have = tuple(str(f) for f in (spec.a_format, spec.b_format, spec.c_format, spec.d_format))
    if have != ("fp16", "fp16", accumulate, accumulate):
        raise InputError(
            f"accumulate={accumulate!r} multiplies fp16 by fp16 into {accumulate}, but {spec.name!r} takes {have[0]}, "
            f"{have[1]} and {have[2]} and gives {have[3]}"
        )
    return Arithmetic(spec, lcm(TC_K, spec.k) if TC_K % spec.k else TC_K)


def _instruction(hardware: str | MmaSpec, accumulate: str, instruction: str | None) -> str | None:
    """The paper's interface issues ``mma``; hardware without it runs what it has."""
    if isinstance(hardware, MmaSpec):
        if instruction is not None:
            raise InputError("an MmaSpec is one instruction already: leave instruction= out")
        return None
    if instruction is not None:
        return instruction
    arch = catalog.architecture(hardware)
    rows = [r for r in catalog.rows() if r.architecture == arch and r.instruction == "mma"]
    return "mma" if any((str(r.a_format), str(r.d_format)) == ("fp16", accumulate) for r in rows) else None


def matrix(x: Array, who: str) -> Array:
    """An operand of two axes or more."""
    if x.ndim < 2:
        raise InputError(f"{who} has shape {x.shape}: it needs two axes or more, the last two those of its matrices")
    return x


def transposed(x: Array, how: Any, who: str) -> Array:
    """``x`` as the product reads it: as it is ("N"), or with its last two axes exchanged ("T", "C")."""
    how = how.upper() if isinstance(how, str) else how
    check_name(who, how, TRANSPOSES)
    return x if how == "N" else np.swapaxes(x, -1, -2)


def result_shape(A: Array, B: Array) -> tuple[int, ...]:
    """The shape of the product of A (..., M, K) and B (..., K, N), transposes done."""
    if A.shape[-1] != B.shape[-2]:
        raise InputError(
            f"A has K = {A.shape[-1]} and B has K = {B.shape[-2]} (A is {A.shape}, B is {B.shape}, transposes done)"
        )
    try:
        lead = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    except ValueError:
        raise InputError(f"A of shape {A.shape} and B of shape {B.shape}: their batch axes do not broadcast") from None
    return (*lead, A.shape[-2], B.shape[-1])


def check_addend(C: Array, shape: tuple[int, ...]) -> None:
    """Refuse a C that does not broadcast to the product's shape."""
    try:
        fits = np.broadcast_shapes(C.shape, shape) == shape and C.shape[-2:] == shape[-2:]
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"C of shape {C.shape} does not fit the product of shape {shape}")
