"""The arithmetic specification of one matrix instruction, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arguments import check_fields, choice, keywords
from fpemu.errors import InputError
from fpemu.formats import FloatFormat

Arithmetic = Literal["truncated", "exact", "fma", "flushed", "cdna3", "cdna3-fp8", "via-half", "integer"]
ARITHMETICS: dict[str, str] = {
    "truncated": "products and accumulator truncated to one grid, added exactly, rounded once (NVIDIA)",
    "exact": "products and accumulator added exactly, rounded once to nearest",
    "fma": "a chain of IEEE fused multiply-adds, k ascending",
    "flushed": "IEEE products and pairwise sums in fp32, subnormals flushed (CDNA2)",
    "cdna3": "truncated sum of products, then added to the accumulator on a coarser grid (CDNA3 fp16, bf16, xf32)",
    "cdna3-fp8": "as cdna3, with even and odd k summed apart (CDNA3 fp8, bf8)",
    "via-half": "converted to fp16 and issued as half-precision instructions (fp8 through mma.sync on Hopper)",
    "integer": "exact modulo 2^32",
}
EVIDENCE: dict[str, str] = {
    "measured": "outputs of that GPU compared for this project",
    "replayed": "recordings of that GPU published by others, all reproduced",
    "documented": "the literature alone",
    "assumed": "no bit-level description is public",
    "definition": "follows from the definition of the operation",
    "custom": "made by the user",
}
INTEGERS = ("int8", "int32")
_NAN_CODES = {"fp16": 0x7FFF, "fp32": 0x7FFFFFFF, "fp64": 0x7FF8000000000000}


@dataclass(frozen=True)
class MmaSpec:
    """The arithmetic of one matrix instruction.

    Parameters
    ----------
    a_format, b_format, d_format : FloatFormat or str
        Formats of A, B and D; "int8" and "int32" for the integer instruction.
    k : int
        Length in k of one instruction.
    block : int
        L: number of products added with one rounding. An instruction is k / block such steps, k ascending.
    arithmetic : Arithmetic
        Rounding rules, a key of `ARITHMETICS`.
    F : int
        Alignment width: fraction bits kept below the largest exponent of a block when its terms are aligned
        ("truncated", "via-half").
    E0 : int, optional
        Minimum alignment exponent, a binary exponent. None: only the formats bound the exponent.
    final : {"RZ", "RNE"}, optional
        Rounding of a block's sum to `d_format`. RZ overflows to Inf, as the hardware does. Default: RZ where the
        arithmetic truncates and D is fp32, else RNE.
    fraction_bits : int, optional
        Fraction bits of D where it has fewer than its format (fp8 on Ada and on Hopper's wgmma: 13).
    c_format : FloatFormat or str, optional
        Format of C; default `d_format`.
    nan_code : int, optional
        Code of every NaN result. Default: NVIDIA's all ones without sign, 0x7FFF and 0x7FFFFFFF; for fp64 the quiet NaN
        without payload.
    payloads : bool
        For fp64's FMA chains: a step with NaN among its operands returns the first of them in the order b, c, a, made
        quiet, with its sign and payload. `nan_code` is then the NaN of an invalid operation on numbers, and of a result
        of additions outside the instruction.
    name, architecture, instruction, shape : str
        Names of the specification, its architecture and instruction, and the instruction's shape.
    evidence, source : str
        Kind of evidence, a key of `EVIDENCE`, and its source in words.

    Raises
    ------
    InputError
        Fields that contradict one another, or values beyond the 64-bit carriers (F <= 35, block <= 64).

    Examples
    --------
    >>> MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=24, E0=-132).block
    8
    """

    a_format: FloatFormat | str
    b_format: FloatFormat | str
    d_format: FloatFormat | str
    k: int
    block: int
    arithmetic: Arithmetic = "truncated"
    F: int = 24
    E0: int | None = None
    final: Literal["RZ", "RNE"] | None = None
    fraction_bits: int | None = None
    c_format: FloatFormat | str | None = None
    nan_code: int | None = None
    payloads: bool = False
    name: str = "custom"
    architecture: str = "custom"
    instruction: str = "mma"
    shape: str = ""
    evidence: str = "custom"
    source: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        for field in ("a_format", "b_format", "d_format"):
            object.__setattr__(self, field, _format(getattr(self, field)))
        object.__setattr__(self, "c_format", _format(self.c_format) if self.c_format is not None else self.d_format)
        if self.final is None:
            truncates = self.arithmetic in ("truncated", "via-half") and str(self.d_format) == "fp32"
            object.__setattr__(self, "final", "RZ" if truncates else "RNE")
        if self.nan_code is None and not self.is_integer:
            object.__setattr__(self, "nan_code", _NAN_CODES.get(str(self.d_format)))
        self._check()

    @cached_property
    def is_integer(self) -> bool:
        """Whether this is the integer instruction."""
        return self.arithmetic == "integer"

    @cached_property
    def outer_dtype(self) -> Any:
        """Type of the additions outside the instruction: fp32, fp64 for an fp64 D, int32 for integers."""
        return {"fp64": np.float64, "int32": np.int32}.get(str(self.d_format), np.float32)

    @cache  # noqa: B019 (specifications are few and long-lived)
    def half_precision(self) -> MmaSpec:
        """Return the half-precision instruction that a "via-half" one is converted to."""
        return self.replace(a_format="fp16", b_format="fp16", arithmetic="truncated", k=self.k // 2, block=self.k // 2)

    def replace(self, **changes: Any) -> MmaSpec:
        """A copy with some fields changed, marked as custom unless a name is given."""
        keywords("field of MmaSpec", changes, self.__dataclass_fields__)
        changes = {"name": f"{self.name} (changed)", "evidence": "custom", **changes}
        if "d_format" in changes:
            changes = {"c_format": None, "nan_code": None, "payloads": False, **changes}
        return replace(self, **changes)

    def __str__(self) -> str:
        return self.name

    def _check(self) -> None:
        def refuse(why: str) -> None:
            raise InputError(f"MmaSpec {self.name!r}: {why}")

        if self.k < 1 or self.block < 1:
            refuse(f"k = {self.k} and block = {self.block} must be positive")
        if self.k % self.block:
            refuse(f"k = {self.k} is not a multiple of block = {self.block}")
        if self.payloads and not (self.arithmetic == "fma" and str(self.d_format) == "fp64"):
            refuse("payloads of NaN are kept by the FMA chains of fp64 alone")
        if self.is_integer != (self.a_format == "int8" and self.b_format == "int8" and self.d_format == "int32"):
            refuse("the integer arithmetic goes with int8 inputs and int32 results, and only with them")
        choice("evidence", self.evidence, EVIDENCE)
        if self.is_integer:
            return
        a, b, c, d = self.operand_formats
        if self.nan_code is None or not 0 <= self.nan_code < 1 << d.width or not np.isnan(d.decode(self.nan_code)):
            refuse(f"nan_code {self.nan_code!r} is no NaN of {d}")
        if self.arithmetic not in ("truncated", "via-half"):
            idle = [f for f, v in (("F", 24), ("E0", None), ("fraction_bits", None)) if getattr(self, f) != v]
            idle += ["final"] if self.arithmetic != "exact" and self.final != "RNE" else []
            if idle:
                refuse(f"{' and '.join(idle)} have no effect in the arithmetic {self.arithmetic!r}")
        if self.arithmetic == "fma":
            if not (a == b == c == d) or d.name not in ("fp16", "fp32", "fp64") or self.block != 1:
                refuse("an FMA chain has block = 1 and one format throughout: fp16, fp32 or fp64")
            return
        if c != d or d.name not in ("fp16", "fp32"):
            refuse(f"c_format and d_format are {c} and {d}: they must be both fp16 or both fp32")
        for fmt in (a, b):
            if fmt.positive:
                refuse(f"the input format {fmt} has no zero")
            if fmt.precision > 24 or fmt.emin < -126 or fmt.emax > 127:
                refuse(f"the input format {fmt} is wider than fp32")
        if not 1 <= self.F <= 35:
            refuse(f"F = {self.F} is not between 1 and 35")
        if self.block > 64:
            refuse(f"block = {self.block} is more than 64")
        if self.E0 is not None and not -300 <= self.E0 <= 300:
            refuse(f"E0 = {self.E0} is not between -300 and 300")
        if self.fraction_bits is not None and not (d.name == "fp32" and 1 <= self.fraction_bits <= 23):
            refuse(f"fraction_bits = {self.fraction_bits} goes with an fp32 result and is between 1 and 23")
        if self.arithmetic in ("flushed", "cdna3", "cdna3-fp8") and d.name != "fp32":
            refuse(f"the arithmetic {self.arithmetic!r} has fp32 results")
        if self.arithmetic == "flushed" and (self.block not in (2, 4) or max(a.precision, b.precision) > 11):
            refuse("the flushed arithmetic has blocks of 2 or 4 and inputs of at most 11 significant bits")
        if self.arithmetic == "cdna3-fp8" and self.block % 2:
            refuse("even and odd k need an even block")
        if self.arithmetic == "via-half" and (self.k % 4 or self.block != self.k):
            refuse("the way through half precision needs k a multiple of 4 and block = k")
        if self.arithmetic == "via-half" and not all(_within_half(fmt) for fmt in (a, b)):
            refuse(f"{a} and {b} do not both fit into fp16")

    @cached_property
    def operand_formats(self) -> tuple[FloatFormat, FloatFormat, FloatFormat, FloatFormat]:
        """The formats of A, B, C, D of a floating-point instruction."""
        formats_ = (self.a_format, self.b_format, self.c_format, self.d_format)
        if not all(isinstance(f, FloatFormat) for f in formats_):
            raise InputError(f"MmaSpec {self.name!r} has integer operands")
        return formats_  # type: ignore[return-value]

    @cached_property
    def k_order(self) -> NDArray[np.int64]:
        """The positions in k in the order of the sums; "via-half" adds k mod 4 = 0, 1 before k mod 4 = 2, 3."""
        k = np.arange(self.k)
        return np.concatenate([k[k % 4 < 2], k[k % 4 >= 2]]) if self.arithmetic == "via-half" else k

    @cached_property
    def sum_fraction_bits(self) -> int:
        """Fraction bits of a rounded sum: `fraction_bits`, or all fraction bits of D."""
        return self.operand_formats[3].fraction_bits if self.fraction_bits is None else self.fraction_bits


def _within_half(fmt: FloatFormat) -> bool:
    return fmt.precision <= 11 and fmt.emax <= 15 and fmt.emin - fmt.precision >= -25


def _format(fmt: FloatFormat | str) -> FloatFormat | str:
    return fmt if isinstance(fmt, str) and fmt in INTEGERS else formats.get(fmt)


FMA_SPECS: dict[str, MmaSpec] = {
    name: MmaSpec(
        name,
        name,
        name,
        k=1,
        block=1,
        arithmetic="fma",
        name=f"simt {name}",
        architecture="simt",
        instruction="fma",
        evidence="definition",
        source="IEEE 754 fusedMultiplyAdd",
    )
    for name in ("fp16", "fp32", "fp64")
}
"""Chains of fused multiply-adds on FMA units, by format."""
