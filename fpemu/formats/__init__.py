"""Floating-point formats as frozen data, and the conversion between values and bit patterns.

A format is the set {±m · 2^(e-p+1)} with integer m < 2^p and emin <= e <= emax, with or without Inf, NaN and -0. E8M0,
the scale of block formats, has neither sign nor zero; UE4M3 has no sign; INT8 and INT4 hold integers. ``decode`` and
``encode`` compute on integers only: no value is rounded. `fpemu.formats.block` has the block formats MX and NVFP4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import as_array, as_float64, choice, flag, integer, narrow, text
from fpemu.errors import InputError, entries, shown, unknown_name

NanRule = Literal["ieee", "top", "negative-zero", "none"]
SignRule = Literal["magnitude", "complement", "none", "ignored"]


@dataclass(frozen=True)
class FloatFormat:
    """Binary floating-point format.

    Parameters
    ----------
    name : str
        Name, unique among the formats in use.
    precision : int
        Bits of the significand, the implicit one included (fp16: 11). At most 53. With 1 the numbers are powers of two
        and zero, no fraction distinguishes NaN from Inf, and a tie is rounded to the number with the even code.
    emin, emax : int
        Exponents of the smallest and of the largest normal number (fp16: -14, 15).
    inf : bool
        Whether the format has infinities. Without them an overflow is NaN, or an error in a format without NaN. The
        code of +Inf is the top exponent with fraction zero if NaN is "ieee", else the one below the code of NaN
        ("top"), or all ones ("negative-zero"), as in IEEE P3109.
    nan : {"ieee", "top", "negative-zero", "none"}
        Which codes are NaN: the top exponent with a non-zero fraction, the code of all ones (e4m3), the code that
        would be -0 (the "fnuz" formats), or none.
    subnormals : bool
        Whether numbers below 2^emin exist, in steps of 2^(emin-precision+1).
    negative_zero : bool
        Whether -0 is kept; without it every zero is +0.
    padding : int
        Unused low bits of the stored word (tf32 is stored in an fp32 word: 13).
    max_significand : int, optional
        Integer significand of the largest number. Default: the largest whose code is not NaN or Inf (e4m3: 1.110).
    positive : bool
        Whether the format holds positive powers of two only, without sign bit and zero: exponent field 0 is 2^emin
        (E8M0). Requires precision = 1, no Inf and no -0.
    ties_away : bool
        Whether rounding to nearest has ties away from zero, also where the mode says to even. ml_dtypes and ONNX round
        to ``float8_e8m0fnu`` in this way, which is therefore another format than `E8M0`, that of IEEE P3109.
    sign : {"magnitude", "complement", "none", "ignored"}
        A sign bit beside the magnitude; two's complement codes of integers times 2^(emin-precision+1), which requires
        emin = emax and adds the number -2^(emax+1); no sign bit; or a sign bit that is ignored (UE4M3). All but the
        first require negative_zero=False, and NaN "top" or "none".

    Examples
    --------
    >>> FP16.decode(np.uint16(0x3C01))
    np.float16(1.001)
    >>> hex(int(BF16.encode(np.float32(-1.5))))
    '0xbfc0'
    """

    name: str
    precision: int
    emin: int
    emax: int
    inf: bool = True
    nan: NanRule = "ieee"
    subnormals: bool = True
    negative_zero: bool = True
    padding: int = 0
    max_significand: int | None = None
    positive: bool = False
    ties_away: bool = False
    sign: SignRule = "magnitude"

    def __post_init__(self) -> None:
        text("FloatFormat: name", self.name)
        choice("FloatFormat: nan", self.nan, get_args(NanRule))
        choice("FloatFormat: sign", self.sign, get_args(SignRule))
        # numbers of NumPy become Python's: an int8 would overflow in the shifts below
        for field in ("precision", "emin", "emax", "padding"):
            object.__setattr__(self, field, integer(f"FloatFormat: {field}", getattr(self, field)))
        limit = integer("FloatFormat: max_significand", self.max_significand, none=True)
        object.__setattr__(self, "max_significand", limit)
        for field in ("inf", "subnormals", "negative_zero", "positive", "ties_away"):
            object.__setattr__(self, field, flag(f"FloatFormat: {field}", getattr(self, field)))
        if not 1 <= self.precision <= 53:
            raise InputError(f"format {self.name!r}: precision {self.precision} is not between 1 and 53 bits")
        if not self.emin <= self.emax:
            raise InputError(f"format {self.name!r}: emin {self.emin} is above emax {self.emax}")
        if self.emax > 1023 or self.emin - self.precision + 1 < -1074 or self.emin > self.precision - 1:
            raise InputError(
                f"format {self.name!r}: exponents {self.emin} to {self.emax} leave what float64 can carry "
                f"(emax <= 1023, -1074 <= emin - precision + 1 <= 0)"
            )
        if self.inf and self.nan == "none":
            raise InputError(f"format {self.name!r}: a format with Inf has a NaN, not {self.nan!r}")
        if self.nan == "negative-zero" and self.negative_zero:
            raise InputError(f"format {self.name!r}: the code of -0 cannot be both NaN and -0")
        if self.padding < 0 or self.width > 64:
            raise InputError(f"format {self.name!r}: a word of {self.width} bits (padding {self.padding})")
        if self.positive and (self.precision > 1 or self.inf or self.negative_zero):
            raise InputError(
                f"format {self.name!r}: positive=True requires precision = 1, inf=False, negative_zero=False"
            )
        if self.sign != "magnitude" and (self.negative_zero or self.positive or self.nan not in ("top", "none")):
            raise InputError(
                f"format {self.name!r}: sign={self.sign!r} requires negative_zero=False, positive=False and NaN 'top' "
                "or 'none'"
            )
        if self.sign == "complement" and not (self.emin == self.emax and self.nan == "none" and self.subnormals):
            raise InputError(f"format {self.name!r}: two's complement requires emin = emax, subnormals and no NaN")
        smallest, largest = 1 << (self.precision - 1), (1 << self.precision) - 1
        if self.max_significand is not None and not smallest <= self.max_significand <= largest:
            raise InputError(
                f"format {self.name!r}: max_significand {self.max_significand} is not between {smallest} and {largest}"
            )
        declared, limit = self._declared, self._first_special - 1
        if limit < (0 if self.positive else smallest) or (self.max_significand is not None and declared > limit):
            raise InputError(f"format {self.name!r}: the code of the largest number, all ones, is NaN or Inf")

    # --- what follows from the fields
    @cached_property
    def exponent_bits(self) -> int:
        """Width of the exponent field, including the top field of Inf and IEEE NaN."""
        return (self.emax + self.bias + self._top).bit_length()

    @property
    def _top(self) -> int:
        return int(self.nan == "ieee")

    @property
    def _declared(self) -> int:
        """The magnitude's code of the largest significand at emax."""
        return ((self.emax + self.bias - 1) << self.fraction_bits) + (self.max_significand or (1 << self.precision) - 1)

    @property
    def _first_special(self) -> int:
        """The magnitude's lowest code of Inf and NaN; one above all ones if there is none."""
        all_codes = 1 << (self.exponent_bits + self.fraction_bits)
        if self.nan == "ieee":
            return all_codes - (1 << self.fraction_bits)
        return all_codes - (self.nan == "top") - self.inf

    @cached_property
    def signed(self) -> bool:
        """Whether the codes are a sign bit and a magnitude, so that -x is a value if x is one."""
        return self.sign == "magnitude" and not self.positive

    @cached_property
    def fraction_bits(self) -> int:
        """Stored bits of the significand."""
        return self.precision - 1

    @cached_property
    def width(self) -> int:
        """Bits of the stored word."""
        return (not (self.positive or self.sign == "none")) + self.exponent_bits + self.fraction_bits + self.padding

    @cached_property
    def bias(self) -> int:
        """Exponent field of 2^0."""
        return (not self.positive) - self.emin

    @property
    def has_nan(self) -> bool:
        """Whether a code is NaN."""
        return self.nan != "none" and not (self.nan == "ieee" and self.precision == 1)

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        code = min(self._declared, self._first_special - 1)
        significand = code & ((1 << self.fraction_bits) - 1) | 1 << self.fraction_bits
        return float(np.ldexp(float(significand), (code >> self.fraction_bits) - self.bias - self.fraction_bits))

    @cached_property
    def min(self) -> float:
        """Smallest finite value: -max; -2^(emax+1) in two's complement; 0, or 2^emin without zero, if unsigned."""
        if self.sign == "complement":
            return float(np.ldexp(-1.0, self.emax + 1))
        return -self.max if self.signed else self.min_normal if self.positive else 0.0

    @cached_property
    def min_normal(self) -> float:
        """2^emin."""
        return float(np.ldexp(1.0, self.emin))

    @cached_property
    def min_subnormal(self) -> float:
        """Smallest positive value: 2^(emin-precision+1), or 2^emin without subnormals."""
        return float(np.ldexp(1.0, self.emin - (self.fraction_bits if self.subnormals else 0)))

    @cached_property
    def unit_roundoff(self) -> float:
        """2^-precision: half the distance from 1 to the next larger value."""
        return float(np.ldexp(1.0, -self.precision))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest of float16, float32, float64 that holds every value."""
        for carrier, p, lo, hi in ((np.float16, 11, -14, 15), (np.float32, 24, -126, 127)):
            fits = self.precision <= p and self.emax <= hi and self.emin - self.fraction_bits >= lo - p + 1
            if fits and (carrier is np.float32 or (self.width == 16 and self.inf and self.exponent_bits == 5)):
                return np.dtype(carrier)
        return np.dtype(np.float64)

    @cached_property
    def code_dtype(self) -> np.dtype[Any]:
        """Unsigned integer type of the codes."""
        return np.dtype(next(f"u{b // 8}" for b in (8, 16, 32, 64) if self.width <= b))

    def __str__(self) -> str:
        return self.name

    # --- codes
    @in_ieee
    def decode(self, bits: Any) -> Any:
        """Values of the codes ``bits`` (any shape of integers) as an array of ``self.dtype``; NaN payloads are kept.

        Raises
        ------
        InputError
            If ``bits`` is not of an integer type, a code has more than ``width`` bits, or it lies above the largest
            number and is no Inf or NaN.
        """
        codes = as_array(bits, f"bits of {self.name}.decode")
        if codes.dtype.kind not in "ui":
            raise InputError(f"{self.name}.decode takes bits as integer codes, not {codes.dtype}")
        bad = (codes < 0) | (codes.astype(np.uint64) >> np.uint64(self.width - 1) > 1)
        if bad.any():
            raise InputError(f"{self.name}.decode: codes wider than {self.width} bits: {entries(bad, codes)}")
        raw = codes.astype(np.uint64) >> np.uint64(self.padding)
        f, e = self.fraction_bits, self.exponent_bits
        if self.sign == "complement":
            integers = raw.astype(np.int64) - ((raw >> np.uint64(f + e)).astype(np.int64) << (f + e + 1))
            return narrow(np.ldexp(integers.astype(np.float64), self.emin - f).view(np.uint64), self.dtype)[()]
        fraction = raw & np.uint64((1 << f) - 1)
        field = ((raw >> np.uint64(f)) & np.uint64((1 << e) - 1)).astype(np.int64)
        sign = (raw >> np.uint64(f + e)) & np.uint64(self.signed)
        normal = (field > 0) | self.positive
        significand = np.where(normal, fraction | np.uint64(1 << f), fraction if self.subnormals else np.uint64(0))
        with np.errstate(over="ignore"):  # the top exponent field of fp64, replaced below
            value = np.ldexp(significand.astype(np.float64), (field + ~normal - self.bias - f).astype(np.int32))
        out = value.view(np.uint64) | (sign << np.uint64(63))
        nan, infinite = self._special(raw, field, fraction)
        unused = (value > self.max) & ~nan & ~infinite
        if unused.any():
            raise InputError(f"{self.name}.decode: codes that mean nothing in {self.name}: {entries(unused, codes)}")
        if not self.negative_zero:
            out = np.where(significand == 0, np.uint64(0), out)
        out = np.where(infinite, (sign << np.uint64(63)) | np.uint64(0x7FF << 52), out)
        payload = fraction << np.uint64(52 - f) if self.nan == "ieee" else np.full_like(raw, np.uint64(1 << 51))
        out = np.where(nan, (sign << np.uint64(63)) | np.uint64(0x7FF << 52) | payload, out)
        return narrow(out, self.dtype)[()]

    def _special(self, raw: NDArray[Any], field: NDArray[Any], fraction: NDArray[Any]) -> tuple[Any, Any]:
        """Return which codes are NaN and which are infinite."""
        none = np.zeros(raw.shape, bool)
        top = field == (1 << self.exponent_bits) - 1
        if self.nan == "ieee":
            return top & (fraction != 0), top & (fraction == 0) if self.inf else none
        magnitude = raw & np.uint64((1 << (self.exponent_bits + self.fraction_bits)) - 1)
        infinite = magnitude == self._first_special if self.inf else none
        if self.nan == "top":
            return magnitude == (1 << (self.exponent_bits + self.fraction_bits)) - 1, infinite
        if self.nan == "negative-zero":
            return raw == 1 << (self.exponent_bits + self.fraction_bits), infinite
        return none, none

    @in_ieee
    def encode(self, x: Any) -> Any:
        """Codes of the values ``x`` (any shape), which must be values of this format: round with `round_to` first.

        A NaN keeps its sign and the leading bits of its payload where the format has room for them.

        Raises
        ------
        InputError
            If an entry is not a value of the format: their count and the first of them.
        """
        wide = as_float64(x, f"x of {self.name}.encode")
        if not self.has_nan and self.nan != "none" and np.isnan(wide).any():
            raise InputError(f"{self.name}.encode: one bit of precision leaves no code for NaN")
        bad = ~self._contains(wide)
        if bad.any():
            raise InputError(f"x of {self.name}.encode: no values of {self} (round_to first): {entries(bad, wide)}")
        bits = wide.view(np.uint64)
        sign = (bits >> np.uint64(63)) & np.uint64(self.signed)
        f, e = self.fraction_bits, self.exponent_bits
        if self.sign == "complement":
            integers = np.ldexp(wide, f - self.emin).astype(np.int64) & ((1 << self.width) - 1)
            return (integers << self.padding).astype(self.code_dtype)[()]
        with np.errstate(invalid="ignore"):
            _, exponent = np.frexp(np.where(np.isfinite(wide), wide, 0))
            exponent = np.maximum(exponent - 1, self.emin)
            steps = np.abs(np.ldexp(np.where(np.isfinite(wide), wide, 0), f - exponent)).astype(np.int64)
        # adding instead of or-ing carries the implicit bit into the exponent field: a subnormal has field 0
        code = (((exponent + self.bias - 1).astype(np.int64) << f) + steps).astype(np.uint64)
        code = np.where(wide == 0, np.uint64(0), code)
        top = np.uint64(((1 << e) - 1) << f)
        code = np.where(np.isinf(wide), np.uint64(self._first_special), code)
        if self.nan == "ieee":
            payload = (bits & np.uint64((1 << 52) - 1)) >> np.uint64(52 - f)
            quiet = np.uint64(1 << max(f - 1, 0))
            code = np.where(np.isnan(wide), top | np.where(payload == 0, quiet, payload), code)
        elif self.nan == "top":
            code = np.where(np.isnan(wide), top | np.uint64((1 << f) - 1), code)
        if self.nan == "negative-zero":
            code = np.where(np.isnan(wide), np.uint64(0), code)
            sign = np.where(np.isnan(wide), np.uint64(1), np.where(wide == 0, np.uint64(0), sign))
        elif not self.negative_zero:
            sign = np.where(wide == 0, np.uint64(0), sign)
        return ((code | (sign << np.uint64(e + f))) << np.uint64(self.padding)).astype(self.code_dtype)[()]

    @in_ieee
    def contains(self, x: Any) -> Any:
        """Whether each entry of ``x`` is a value of the format, as a boolean array."""
        return self._contains(as_float64(x, f"x of {self.name}.contains"))[()]

    def _contains(self, wide: NDArray[np.float64]) -> NDArray[np.bool_]:
        """`contains` for an array of float64."""
        with np.errstate(invalid="ignore"):
            _, exponent = np.frexp(np.where(np.isfinite(wide), wide, 0))
            low = np.maximum(exponent - 1, self.emin) - self.fraction_bits
            scaled = np.ldexp(np.where(np.isfinite(wide), wide, 0), -low)
            ok = (scaled == np.trunc(scaled)) & (wide >= self.min) & (wide <= self.max)
            if not self.subnormals:
                ok &= (wide == 0) | (np.abs(wide) >= self.min_normal)
        ok |= np.isinf(wide) & (self.signed | (wide > 0)) if self.inf else False
        return np.asarray(ok | (np.isnan(wide) if self.has_nan else False))


FP16 = FloatFormat("fp16", 11, -14, 15)
BF16 = FloatFormat("bf16", 8, -126, 127)
TF32 = FloatFormat("tf32", 11, -126, 127, padding=13)
FP32 = FloatFormat("fp32", 24, -126, 127)
FP64 = FloatFormat("fp64", 53, -1022, 1023)
E4M3 = FloatFormat("e4m3", 4, -6, 8, inf=False, nan="top")
E5M2 = FloatFormat("e5m2", 3, -14, 15)
E3M2 = FloatFormat("e3m2", 3, -2, 4, inf=False, nan="none")
E2M3 = FloatFormat("e2m3", 4, 0, 2, inf=False, nan="none")
E2M1 = FloatFormat("e2m1", 2, 0, 2, inf=False, nan="none")
E8M0 = FloatFormat("e8m0", 1, -127, 127, inf=False, nan="top", negative_zero=False, positive=True)
UE4M3 = replace(E4M3, name="ue4m3", negative_zero=False, sign="ignored")
INT8 = FloatFormat("int8", 7, 6, 6, inf=False, nan="none", negative_zero=False, sign="complement")
INT4 = replace(INT8, name="int4", precision=3, emin=2, emax=2)
_E8M0FNU = replace(E8M0, name="e8m0fnu", ties_away=True)
_E3M4 = FloatFormat("e3m4", 5, -2, 3)
_E4M3IEEE = FloatFormat("e4m3ieee", 4, -6, 7)
_E4M3B11FNUZ = FloatFormat("e4m3b11fnuz", 4, -10, 4, inf=False, nan="negative-zero", negative_zero=False)
E4M3FNUZ = FloatFormat("e4m3fnuz", 4, -7, 7, inf=False, nan="negative-zero", negative_zero=False)
E5M2FNUZ = FloatFormat("e5m2fnuz", 3, -15, 15, inf=False, nan="negative-zero", negative_zero=False)

_FORMATS = {f.name: f for f in (FP16, BF16, TF32, FP32, FP64, E4M3, E5M2, E3M2, E2M3, E2M1, E8M0, E4M3FNUZ, E5M2FNUZ)}
_FORMATS |= {f.name: f for f in (_E3M4, _E4M3IEEE, _E4M3B11FNUZ, _E8M0FNU, UE4M3, INT8, INT4)}
_NAMES = {
    "fp16": "half h float16 f16 binary16",
    "bf16": "bfloat16 b brain",
    "tf32": "tensorfloat32 tensorfloat xf32",
    "fp32": "single s float32 f32 float binary32",
    "fp64": "double d float64 f64 binary64",
    "e4m3": "e4m3fn float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
    "e8m0": "ue8m0",
    "e8m0fnu": "float8_e8m0fnu",
    "int8": "s8",
    "int4": "s4",
    "e3m4": "float8_e3m4",
    "e4m3ieee": "float8_e4m3",
    "e4m3b11fnuz": "float8_e4m3b11fnuz",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
}
_ALIASES = {alias: name for name, aliases in _NAMES.items() for alias in aliases.split()}
_AMBIGUOUS = {"fp8": "e4m3, e5m2, e4m3fnuz or e5m2fnuz", "fp6": "e2m3 or e3m2"}


def get(fmt: FloatFormat | str) -> FloatFormat:
    """Return a format by name or alias ("fp16", "half", "h", ...); a FloatFormat passes through.

    Raises
    ------
    InputError
        An unknown name, with the nearest known; a value that is neither a name, a FloatFormat nor a NumPy type.
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    name: Any = np.dtype(fmt).name if isinstance(fmt, type) and issubclass(fmt, np.generic) else fmt
    name = name.name if isinstance(name, np.dtype) else name
    key = name.lower().replace("-", "").strip() if isinstance(name, str) else ""
    key = _ALIASES.get(key, key)
    if key in _AMBIGUOUS:
        raise InputError(f"format {shown(fmt)} is ambiguous: give {_AMBIGUOUS[key]}")
    if key not in _FORMATS:
        raise unknown_name("format", fmt, [*_FORMATS, *_ALIASES], _FORMATS)
    return _FORMATS[key]


def names() -> list[str]:
    """The names of the known formats."""
    return list(_FORMATS)


def p3109(bits: int, precision: int, signed: bool = True, extended: bool = True) -> FloatFormat:
    """Return a format of IEEE P3109 by its width and precision.

    Parameters
    ----------
    bits : int
        Width K of the codes, at least 3.
    precision : int
        Precision P, the implicit bit included: 1 to K - 1, or to K if unsigned.
    signed : bool
        Whether there is a sign bit. NaN has the code of -0 in a signed format, and all ones in an unsigned one.
    extended : bool
        Whether there are infinities: +Inf has the largest code, or the one below NaN.

    Returns
    -------
    FloatFormat
        The format of bias 2^(K-P-1), or 2^(K-P) if unsigned, with the name "p3109_k8p3se" for K = 8, P = 3, signed,
        extended. Its ``emax`` is the exponent of the highest exponent field, which Inf and NaN may fill.

    Raises
    ------
    InputError
        Width or precision out of range; numbers that float64 does not hold.

    References
    ----------
    IEEE Working Group P3109, Interim report on binary floating-point formats for machine learning, version 3.

    Examples
    --------
    >>> p3109(8, 3).decode(np.uint8([0x40, 0x7E, 0x7F, 0x80])).tolist()
    [1.0, 49152.0, inf, nan]
    """
    signed, extended = flag("signed", signed), flag("extended", extended)
    bits = integer("bits", bits, 3, 64)
    precision = integer("precision", precision, 1, bits - signed)
    name = f"p3109_k{bits}p{precision}{'us'[signed]}{'fe'[extended]}"
    exponent_bits = bits - precision + 1 - signed
    bias = 1 << (exponent_bits - 1)
    rest: dict[str, Any] = {"nan": "negative-zero"} if signed else {"nan": "top", "sign": "none"}
    emax = (1 << exponent_bits) - 1 - bias
    return FloatFormat(name, precision, 1 - bias, emax, inf=extended, negative_zero=False, **rest)


def __getattr__(name: str) -> Any:
    """Import `fpemu.formats.block` when it is first used: it needs the roundings, which import this module."""
    if name == "block":
        return import_module("fpemu.formats.block")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
