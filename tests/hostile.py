"""Operands chosen to break an emulator: raw codes from seeded integers, one class for each way to go wrong.

``operands`` gives codes (what the oracle takes), ``carrier`` turns codes into the arrays that fpemu takes.
"""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tests.oracle import FORMATS, Format, code_of, decode

Codes = NDArray[np.unsignedinteger]
FACTOR = int(os.environ.get("FPEMU_EXAMPLES", "1"))  # above 1: so many times the examples, and new ones in each run


def examples(count: int) -> int:
    """How many examples hypothesis draws where a plain run draws ``count``."""
    return count * FACTOR


CLASSES = (
    "any-bits",  # every code, specials made frequent
    "finite",  # every finite code
    "near-one",  # exponents within 1 of 0
    "small",  # lowest exponents and subnormals
    "large",  # highest exponents: overflow
    "sparse",  # three in four zero, of both signs
    "powers",  # powers of two: ties and exact boundaries
    "cancel",  # the second half undoes the first, bar the last pair
    "staircase",  # magnitudes fall by about a factor of two per product: some lie around the truncation
    "deep",  # products around the floor of the common exponent
    "mixed",  # half spread over all exponents, half near one
    "zeros",  # zeros of both signs and the smallest numbers
    "leftover",  # two large products cancel, and what the truncation left of the others is the result
    "boundary",  # the last products bring the exact sum next to where the result changes
    "floor",  # the same, with all exponents at or below the floor of the common exponent
)


def code_dtype(fmt: Format) -> np.dtype[np.unsignedinteger]:
    return np.dtype(next(f"u{b // 8}" for b in (8, 16, 32, 64) if fmt.width <= b))


def _codes(fmt: Format, sign: NDArray, field: NDArray, fraction: NDArray, junk: NDArray) -> Codes:
    """Assemble codes; the padding (the ignored low bits of tf32) is filled with junk."""
    field = np.clip(field, 0, fmt.top).astype(np.uint64)
    fraction = fraction.astype(np.uint64) & np.uint64((1 << fmt.fraction_bits) - 1)
    word = (sign.astype(np.uint64) << np.uint64(fmt.exponent_bits)) | field
    word = ((word << np.uint64(fmt.fraction_bits)) | fraction) << np.uint64(fmt.padding)
    return (word | (junk & np.uint64((1 << fmt.padding) - 1))).astype(code_dtype(fmt))


def _finite(codes: Codes, fmt: Format) -> Codes:
    """Clear the lowest exponent bit (or fraction bit) of the codes that are not finite."""
    if fmt.specials == "ieee":
        top = (codes >> (fmt.fraction_bits + fmt.padding)) & fmt.top == fmt.top
        return np.where(top, codes ^ codes.dtype.type(1 << (fmt.fraction_bits + fmt.padding)), codes)
    if fmt.specials == "fn":
        return np.where(codes & 0x7F == 0x7F, codes ^ codes.dtype.type(1), codes)
    if fmt.specials == "fnuz":
        return np.where(codes == 0x80, codes.dtype.type(0), codes)
    return codes


def draw(name: str, kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Codes:
    """Codes of class ``kind`` in format ``name``; the last axis is k."""
    fmt = FORMATS[name]
    top, one = fmt.top, 1 - fmt.emin  # exponent fields of the largest number (or Inf) and of 1.0
    sign = rng.integers(0, 2, shape)
    fraction = rng.integers(0, 1 << fmt.fraction_bits, shape)
    junk = rng.integers(0, 1 << 32, shape).astype(np.uint64)
    wide = rng.integers(0, top + 1, shape)
    coin = rng.integers(0, 16, shape)
    deep = -130 if one > 100 else -20  # about the floor for a result in fp32 or in fp16
    step = max(1, 18 // max(shape[-1], 1))  # about 36 binary exponents from the first product to the last
    low, high = (0, min(9, top)) if one < 100 else (one - 76, one - 58)  # products near 2^-133, or of subnormals
    field = {
        "near-one": rng.integers(one - 1, one + 2, shape),
        "small": rng.integers(0, min(4, top), shape),
        "large": rng.integers(max(top - 6, 0), top + 1, shape),
        "cancel": rng.integers(one - 2, one + 3, shape),
        "staircase": one - np.arange(shape[-1]) * step + rng.integers(-1, 2, shape),
        "deep": rng.integers(low, high + 1, shape),
        "mixed": np.where(coin % 2 == 0, wide, rng.integers(one - 2, one + 1, shape)),
        "zeros": np.zeros(shape, int),
        "boundary": one - step * np.arange(shape[-1]) // 2 + rng.integers(-3, 1, shape),
        "floor": one + rng.integers(deep // 2 - 14, deep // 2 + 1, shape),
    }.get(kind, wide)
    if kind == "any-bits":
        field = np.where(coin == 0, top, np.where(coin == 1, 0, field))
        fraction = np.where((coin < 2) & (junk % 4 == 0), 0, fraction)
    if kind == "powers":
        fraction = np.where(field == 0, fraction & 1, 0)
    if kind == "zeros":
        fraction = np.where(coin < 12, 0, 1)
    if kind in ("sparse", "deep"):
        gone = coin < (12 if kind == "sparse" else 4)
        field, fraction = np.where(gone, 0, field), np.where(gone, 0, fraction)
    if kind not in ("any-bits", "finite", "mixed"):
        junk = np.zeros(shape, np.uint64)
    codes = _codes(fmt, sign, field, fraction, junk)
    return codes if kind == "any-bits" else _finite(codes, fmt)


def operands(a: str, b: str, c: str, kind: str, seed: int, count: int, k: int) -> tuple[Codes, Codes, Codes]:
    """``count`` dot products of length k: codes of A (count, k), B (count, k) and C (count,)."""
    rng = np.random.default_rng([seed, CLASSES.index(kind)])
    A, B = draw(a, kind, rng, (count, k)), draw(b, kind, rng, (count, k))
    minus = A.dtype.type(1 << (FORMATS[a].width - 1))
    if kind == "cancel" and k >= 2:
        half = k // 2
        A[:, half : 2 * half - 1] = A[:, : half - 1] ^ minus
        B[:, half : 2 * half - 1] = B[:, : half - 1]
    if kind == "leftover" and k >= 3:
        _leftover(A, B, a, b, rng)
        A[:, -1], B[:, -1] = A[:, 0] ^ minus, B[:, 0]
    C = accumulators(a, b, c, kind, rng, count)
    if kind in ("boundary", "floor"):
        for i in range(count):
            _to_boundary(A[i], B[i], C[i : i + 1], a, b, c, kind, rng)
    return A, B, C


def _leftover(A: Codes, B: Codes, a: str, b: str, rng: np.random.Generator) -> None:
    """Exponents: the first product large, the others 20 to 30 below it (as far as the formats reach)."""
    for i in range(len(A)):
        top = (
            int(rng.integers(-4, FORMATS[a].emax + FORMATS[b].emax + 1))
            if rng.integers(2)
            else int(rng.integers(4, 12))
        )
        below = int(rng.choice([9, 20, 22]))
        for j in range(A.shape[1] - 1):
            e = top if j == 0 else top - below - int(rng.integers(0, 9))
            for codes, name, half in ((A, a, e // 2), (B, b, e - e // 2)):
                fmt = FORMATS[name]
                junk = codes[i, j] & codes.dtype.type(
                    ~(fmt.top << (fmt.fraction_bits + fmt.padding)) & (1 << fmt.width) - 1
                )
                field = min(max(half - fmt.emin + 1, 0), fmt.emax - fmt.emin + 1)
                codes[i, j] = junk | codes.dtype.type(field << (fmt.fraction_bits + fmt.padding))
    for codes, name in ((A, a), (B, b)):
        codes[:] = _finite(codes, FORMATS[name])


def _to_boundary(A: Codes, B: Codes, C: Codes, a: str, b: str, c: str, kind: str, rng: np.random.Generator) -> None:
    """Replace the last products of one row so that the exact sum lies next to a value of D or to a midpoint."""
    fa, fb, fd = FORMATS[a], FORMATS[b], FORMATS[c]
    k, fill = len(A), min(4, len(A) // 2)
    if kind == "floor" or rng.integers(2):
        C[:] = 0
    if rng.integers(2):  # within the last block of any length
        A[: max(k - 2 * fill, 0)] = 0
    A[k - fill :], B[k - fill :] = 0, 0
    total = decode(int(C[0]), fd).value
    total += sum((decode(int(x), fa).value * decode(int(y), fb).value for x, y in zip(A, B, strict=True)), Fraction(0))
    if not total:
        return
    half_ulp = Fraction(2) ** (max(_exponent(total), fd.emin) - fd.fraction_bits - 1)
    missing = (total // half_ulp + int(rng.integers(0, 2))) * half_ulp - total
    for i in range(k - fill, k):
        if not missing:
            return
        e = _exponent(missing)
        eb = min(max(e - fa.emin, fb.emin - fb.fraction_bits), fb.emax)
        unit = max(e - eb, fa.emin) - fa.fraction_bits
        steps = abs(missing) // Fraction(2) ** (unit + eb) + int(
            i == k - 1 and rng.integers(2)
        )  # the last: above or below
        if e - eb >= fa.emax:
            return
        A[i] = code_of(int(steps) * (-1 if missing < 0 else 1), unit, fa)
        B[i] = code_of(1, eb, fb)
        missing -= decode(int(A[i]), fa).value * decode(int(B[i]), fb).value


def _exponent(x: Fraction) -> int:
    """floor(log2 |x|) of a dyadic number."""
    return abs(x.numerator).bit_length() - x.denominator.bit_length()


def accumulators(a: str, b: str, c: str, kind: str, rng: np.random.Generator, count: int) -> Codes:
    """Accumulators whose magnitudes meet those of the products of the same class; one in four is zero."""
    fa, fb, fmt = FORMATS[a], FORMATS[b], FORMATS[c]
    if kind in ("any-bits", "finite", "zeros"):
        C = draw(c, kind, rng, (count,))
    else:
        least, most = fa.emin + fb.emin, fa.emax + fb.emax
        low, high = {
            "near-one": (-4, 4),
            "small": (least - 20, least + 10),
            "large": (fmt.emax - 2, fmt.emax),
            "cancel": (-6, 6),
            "staircase": (-30, 3),
            "deep": (fmt.emin - 1, fmt.emin + 2),
            "leftover": (-14, 14),
            "boundary": (-12, 3),
        }.get(kind, (least - 6, most + 6))
        field = rng.integers(low, high + 1, count) + 1 - fmt.emin
        fraction = rng.integers(0, 1 << fmt.fraction_bits, count)
        if kind == "powers":
            fraction = np.where(field <= 0, 1, 0)
        if kind == "deep":
            fraction = np.where(rng.integers(0, 2, count) == 0, fraction & 7, fraction)
        C = _finite(_codes(fmt, rng.integers(0, 2, count), field, fraction, np.zeros(count, np.uint64)), fmt)
    zero = rng.integers(0, 4, count) == 0
    return np.where(zero, C & C.dtype.type(1 << (fmt.width - 1)), C)


_TABLES: dict[str, NDArray[np.float32]] = {}


def carrier(codes: Codes, name: str) -> NDArray[np.floating]:
    """The float array of these codes' values that fpemu takes: NaN kept, tf32 patterns unmasked."""
    codes = np.ascontiguousarray(codes)
    if name in ("fp16", "fp32", "tf32", "fp64"):
        return codes.view({"fp16": np.float16, "fp64": np.float64}.get(name, np.float32))
    if name == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32)
    if name not in _TABLES:
        fmt, table = FORMATS[name], []
        for code in range(1 << fmt.width):
            n = decode(code, fmt)
            magnitude = {"finite": 0.0, "inf": np.inf, "nan": np.nan}[n.kind] or float(abs(n.value))
            table.append(np.copysign(np.float32(magnitude), -1 if n.sign else 1))
        _TABLES[name] = np.array(table, dtype=np.float32)
    return _TABLES[name][codes]


def bits(x: NDArray[np.floating]) -> Codes:
    """The patterns of a float array."""
    x = np.ascontiguousarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def integers(codes: Codes) -> list[int]:
    return [int(v) for v in codes]
