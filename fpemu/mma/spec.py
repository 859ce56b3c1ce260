"""The arithmetic specification of one matrix instruction, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arguments import choice, flag, integer, keywords
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.arithmetic import ARITHMETICS, DEFAULT_ARITHMETIC, DEFAULTS, Arithmetic
from fpemu.rounding import _derived_seed

EVIDENCE: dict[str, str] = {
    "measured": "outputs of that GPU compared for this project",
    "replayed": "recordings of that GPU published by others, all reproduced",
    "documented": "the literature alone",
    "assumed": "no bit-level description is public",
    "definition": "follows from the definition of the operation",
    "custom": "made by the user",
}
INTEGERS = ("int8", "uint8", "int32")
SCALES = {"ue8m0": formats.E8M0, "ue4m3": formats.UE4M3}
_NAN_CODES = {"fp16": 0x7FFF, "fp32": 0x7FFFFFFF, "fp64": 0x7FF8000000000000}


@dataclass(frozen=True)
class MmaSpec:
    """The arithmetic of one matrix instruction.

    Parameters
    ----------
    a_format, b_format, d_format : FloatFormat or str
        Formats of A, B and D; "int8", "uint8" and "int32" for integer instructions.
    k : int
        Length in k of one instruction.
    block : int
        L: number of products added with one rounding. An instruction is k / block such steps, k ascending.
    arithmetic : str
        Rounding rules, a key of `fpemu.mma.arithmetic.ARITHMETICS`.
    F : int
        Alignment width: fraction bits kept below the largest exponent of a block when its terms are aligned
        (where the arithmetic truncates; 24 in all others).
    E0 : int, optional
        Minimum alignment exponent, a binary exponent. None: only the formats bound the exponent.
    final : {"RZ", "RNE", "SR"}, optional
        Rounding of a block's sum to `d_format`. RZ overflows to Inf, as the hardware does. SR, stochastic, is
        hypothetical, and emulated on the CPU only. Default: RZ where the arithmetic truncates and D is fp32, else RNE.
    fraction_bits : int, optional
        Fraction bits of D where it has fewer than its format (fp8 on Ada and on Hopper's wgmma: 13).
    c_format : FloatFormat or str, optional
        Format of C; default `d_format`. In a GEMM, only the first instruction of a chain reads C: the accumulators of
        the others have `d_format`.
    nan_code : int, optional
        Code of every NaN result. Default: NVIDIA's all ones without sign, 0x7FFF and 0x7FFFFFFF; for fp64 the quiet NaN
        without payload.
    payloads : bool
        A step with NaN among its operands returns the first of them, made quiet, with its sign and payload: in the
        order b, c, a for NVIDIA's chains of FMAs in fp64, and a, b, c for x86. `nan_code` is then the NaN of an invalid
        operation on numbers, and of a result of additions outside the instruction.
    scale : {"ue8m0", "ue4m3"}, optional
        Format of the scales of A and B in a block-scaled instruction.
    scale_block : int, optional
        Number of consecutive k that share a scale.
    random_bits : int, optional
        Random bits r of each rounding by SR, as in `fpemu.round_to`: 1 to 52 - p for a D of p bits. Default: 32, or
        52 - p if that is less.
    seed : int, optional
        Seed of SR, required there. The bits are a function of the seed, the row and the column of D and the number of
        the block in its sum: equal for each matrix of a stack, and for a leading part of a matrix.
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
    arithmetic: str = DEFAULT_ARITHMETIC
    F: int = 24
    E0: int | None = None
    final: Literal["RZ", "RNE", "SR"] | None = None
    fraction_bits: int | None = None
    c_format: FloatFormat | str | None = None
    nan_code: int | None = None
    payloads: bool = False
    scale: Literal["ue8m0", "ue4m3"] | None = None
    scale_block: int | None = None
    random_bits: int | None = None
    seed: int | None = None
    name: str = "custom"
    architecture: str = "custom"
    instruction: str = "mma"
    shape: str = ""
    evidence: str = "custom"
    source: str = ""

    def __post_init__(self) -> None:
        choice("arithmetic", self.arithmetic, ARITHMETICS)
        choice("evidence", self.evidence, EVIDENCE)
        choice("final", self.final, ("RZ", "RNE", "SR"), none=True)
        flag("payloads", self.payloads)
        object.__setattr__(self, "scale", scale_name(self.scale))
        for field in ("k", "block", "F", "E0", "fraction_bits", "nan_code", "scale_block", "random_bits", "seed"):
            low, optional = (1 if "block" in field or field == "k" else None), field not in ("k", "block", "F")
            value = integer(f"MmaSpec {self.name!r}: {field}", getattr(self, field), low, none=optional)
            object.__setattr__(self, field, value)
        for field in ("a_format", "b_format", "d_format"):
            object.__setattr__(self, field, _format(getattr(self, field)))
        object.__setattr__(self, "c_format", _format(self.c_format) if self.c_format is not None else self.d_format)
        if self.final is None:
            toward_zero = self.rules.truncates and str(self.d_format) == "fp32"
            object.__setattr__(self, "final", "RZ" if toward_zero else DEFAULTS["final"])
        if self.final == "SR" and self.random_bits is None:
            object.__setattr__(self, "random_bits", min(32, 52 - getattr(self.d_format, "precision", 20)))
        if self.nan_code is None:
            object.__setattr__(self, "nan_code", _NAN_CODES.get(str(self.d_format)))
        if (why := self._violation()) is not None:
            raise InputError(f"MmaSpec {self.name!r}: {why}")

    def _violation(self) -> str | None:
        """The first violated constraint."""
        if self.k % self.block:
            return f"k = {self.k} is not a multiple of block = {self.block}"
        integers = {str(self.a_format), str(self.b_format)} <= {"int8", "uint8"} and self.d_format == "int32"
        if self.is_integer != integers:
            return "the integer arithmetic goes with int8 inputs and int32 results, and only with them"
        idle = [f for f, value in DEFAULTS.items() if f not in self.rules.parameters and getattr(self, f) != value]
        if idle:
            return f"{' and '.join(idle)} have no effect in the arithmetic {self.arithmetic!r}"
        if self.final != "SR" and (self.random_bits, self.seed) != (None, None):
            return f"random_bits and seed have no effect with final={self.final!r}"
        if not self.is_integer:
            d, code = self.operand_formats[3], self.nan_code
            if self.final == "SR" and not 1 <= (self.random_bits or 0) <= 52 - d.precision:
                return f"random_bits = {self.random_bits} is not between 1 and {52 - d.precision}"
            if self.final == "SR" and not (self.seed is not None and 0 <= self.seed < 2**63):
                return f"final='SR' needs a seed between 0 and 2^63 - 1, not {self.seed}"
            if code is None or not 0 <= code < 1 << d.width or not np.isnan(d.decode(code)):
                return f"nan_code {code!r} is no NaN of {d}"
        return next(self.rules.constraints(self), None)

    @cached_property
    def rules(self) -> Arithmetic:
        """The arithmetic's row."""
        return ARITHMETICS[self.arithmetic]

    @cached_property
    def is_integer(self) -> bool:
        """Whether this is the integer instruction."""
        return self.rules.integer

    @property
    def has_cuda(self) -> bool:
        """Whether a GPU emulates the instruction: not those of CPUs, and none with stochastic rounding."""
        return self.rules.cuda is not None and "uint8" not in (self.a_format, self.b_format) and self.final != "SR"

    @cached_property
    def operand_formats(self) -> tuple[FloatFormat, FloatFormat, FloatFormat, FloatFormat]:
        """The formats of A, B, C, D of a floating-point instruction."""
        formats_ = (self.a_format, self.b_format, self.c_format, self.d_format)
        if not all(isinstance(f, FloatFormat) for f in formats_):
            raise InputError(f"MmaSpec {self.name!r} has integer operands")
        return formats_  # type: ignore[return-value]

    @cached_property
    def exact_to(self) -> int:
        """T: a chain from zero whose sum of |x||y| is at most 2^T is exact (`fpemu.mma.exactness`)."""
        return self.rules.exact_to(self)

    @cached_property
    def scale_format(self) -> FloatFormat | None:
        """Format of the scales."""
        return None if self.scale is None else SCALES[self.scale]

    @cached_property
    def block_words(self) -> int:
        """Words of a row of A, or a column of B, in one block: its products' operands, then their scales."""
        return self.block + (0 if self.scale_block is None else self.block // self.scale_block)

    @cached_property
    def words(self) -> int:
        """Words of a row of A, or a column of B, in one instruction."""
        return self.k // self.block * self.block_words

    @cached_property
    def final_kind(self) -> tuple[int, ...]:
        """The kind of the last rounding for `fpemu.compiled.bits.rounded`: its length, and for SR 2^random_bits."""
        return {"RZ": (0,), "RNE": (0, 0), "SR": (0, 0, 1 << (self.random_bits or 0))}[str(self.final)]

    @cached_property
    def outer_dtype(self) -> Any:
        """Type of the additions outside the instruction: fp32, fp64 for an fp64 D, int32 for integers."""
        return {"fp64": np.float64, "int32": np.int32}.get(str(self.d_format), np.float32)

    @cached_property
    def with_wide_c(self) -> MmaSpec:
        """The same instruction with C in the format of D, as the later instructions of a chain read it."""
        same = self.c_format == self.d_format
        return self if same else self.replace(c_format=None, name=self.name, evidence=self.evidence)

    def for_sum(self, number: int) -> MmaSpec:
        """Return the instruction with a seed that belongs to one of several sums, whose random bits differ."""
        return self.replace(seed=_derived_seed(self.seed, number), name=self.name, evidence=self.evidence)

    @cached_property
    def issued(self) -> MmaSpec:
        """The half-precision instruction that the instruction is converted to; without a conversion, itself."""
        if self.rules.via is None:
            return self
        half = self.k // 2
        return self.replace(a_format="fp16", b_format="fp16", arithmetic=self.rules.via, k=half, block=half)

    @cached_property
    def k_order(self) -> NDArray[np.int64]:
        """The positions in k in the order of the sums; a converted instruction adds k mod 4 = 0, 1 before 2, 3."""
        k = np.arange(self.k)
        return k if self.rules.via is None else np.concatenate([k[k % 4 < 2], k[k % 4 >= 2]])

    @cached_property
    def sum_fraction_bits(self) -> int:
        """Fraction bits of a rounded sum: `fraction_bits`, or all fraction bits of D."""
        return self.operand_formats[3].fraction_bits if self.fraction_bits is None else self.fraction_bits

    def replace(self, **changes: Any) -> MmaSpec:
        """A copy with some fields changed, marked as custom unless a name is given."""
        keywords("field of MmaSpec", changes, self.__dataclass_fields__)
        changes = {"name": f"{self.name} (changed)", "evidence": "custom", **changes}
        if changes.get("final", "SR") != "SR":
            changes = {"random_bits": None, "seed": None, **changes}
        if "d_format" in changes:
            changes = {"c_format": None, "nan_code": None, "payloads": False, **changes}
        return replace(self, **changes)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        """The expression that makes the arithmetic, without the name and the evidence."""
        parts = [repr(str(f)) for f in (self.a_format, self.b_format, self.d_format)]
        parts += [f"k={self.k}", f"block={self.block}", f"arithmetic={self.arithmetic!r}"]
        names = ["F", "E0", "final"] if self.rules.truncates else ["final"] if "final" in self.rules.parameters else []
        if self.rules.truncates and self.fraction_bits is not None:
            names.append("fraction_bits")
        names += ["random_bits", "seed"] if self.final == "SR" else []
        names += [] if self.scale is None else ["scale", "scale_block"]
        parts += [f"{name}={getattr(self, name)!r}" for name in names]
        parts += [f"c_format={str(self.c_format)!r}"] if self.c_format != self.d_format else []
        parts += [f"nan_code=0x{self.nan_code:X}"] if self.nan_code is not None else []
        return f"MmaSpec({', '.join(parts + ['payloads=True'] * self.payloads)})"


def scale_name(scale: Any) -> Any:
    """The name of a scale format in PTX, for a name or a FloatFormat; an unknown one raises InputError."""
    name = str(scale) if isinstance(scale, FloatFormat) else scale
    return choice("scale", "ue8m0" if name == "e8m0" else name, SCALES, none=True)


def _format(fmt: FloatFormat | str) -> FloatFormat | str:
    return fmt if isinstance(fmt, str) and fmt in INTEGERS else formats.get(fmt)
