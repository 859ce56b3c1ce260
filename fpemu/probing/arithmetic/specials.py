"""Probes of NaN, infinities, zeros, subnormals and overflow, and the rule of NaN codes in their results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.probing.arithmetic.probes import Builder, Formats, Pair, Probes

Entry = tuple[str, dict[int, tuple[int, int]], int]


def _code(fmt: FloatFormat, x: float) -> int:
    return int(fmt.encode(np.float64(x)))


def _nans(fmt: FloatFormat) -> list[int]:
    """Codes of NaN: plain, with a payload, signalling, negative; none where the format has none."""
    if fmt.nan == "none":
        return []
    if fmt.nan == "negative-zero":
        return [1 << (fmt.width - 1)]
    sign, full = 1 << (fmt.width - 1), (1 << (fmt.width - 1)) - (1 << fmt.padding)
    if fmt.nan == "top":
        return [full, sign | full]
    infinite, quiet = _code(fmt, np.inf), 1 << (fmt.fraction_bits - 1 + fmt.padding)
    payload = 1 << fmt.padding
    codes = [full, infinite | quiet, infinite | quiet | payload, infinite | payload, sign | infinite | quiet | payload]
    return list(dict.fromkeys(codes))


def specials(formats: Formats, k: int) -> Probes:
    """The probes, each at the first and at the last positions of k."""
    fa, fb, fc, fd = formats
    one_a, one_b = _code(fa, 1.0), _code(fb, 1.0)
    entries: list[Entry] = []

    def codes(pair: Pair) -> tuple[int, int]:
        return _code(fa, pair[0]), _code(fb, pair[1])

    def add(kind: str, products: list[tuple[int, int] | Pair | None], c: float | int = 0.0) -> None:
        """Products at 0, 1, ... and at the end of k; codes are integers, values floats."""
        if any(p is None for p in products) or len(products) > k:
            return
        pairs = [codes(p) if isinstance(p[0], float) else p for p in products if p is not None]
        word = c if isinstance(c, int) else _code(fc, c)
        for start in dict.fromkeys((0, k - len(pairs))):
            if start >= 0:
                entries.append((kind, {start + i: p for i, p in enumerate(pairs)}, word))  # type: ignore[misc]

    values = Builder(formats, k)
    one, less = values.product(0), values.product(0, -1)
    for x in _nans(fa):
        add("NaN in A", [(x, one_b)])
        add("NaN in A beside 1", [(x, one_b), one], 1.0)
    for y in _nans(fb):
        add("NaN in B", [(one_a, y)])
    for z in _nans(fc):
        add("NaN in C", [one], z)
        for x in _nans(fa):
            add("NaN in A and C", [(x, one_b)], z)
            for y in _nans(fb)[:3]:
                add("NaN in A, B and C", [(x, y)], z)
        for y in _nans(fb):
            add("NaN in B and C", [(one_a, y)], z)
    for x in _nans(fa):
        for y in _nans(fb):
            add("NaN in A and B", [(x, y)])
    if fa.inf and fb.inf:
        big = (float("inf"), 1.0)
        add("Inf · 0", [(float("inf"), 0.0)])
        add("Inf · 0", [(0.0, float("-inf"))], 1.0)
        add("Inf", [big])
        add("-Inf", [(1.0, float("-inf"))], 1.0)
        add("Inf - Inf", [big, (-1.0, float("inf"))])
        add("Inf - Inf", [(1.0, float("inf"))], float("-inf"))
        for z in _nans(fc)[-2:]:
            add("NaN in C beside Inf", [big], z)
            add("NaN in C beside Inf · 0", [(float("inf"), 0.0)], z)
    add("Inf in C", [less], float("inf"))
    add("-Inf in C", [one], float("-inf"))
    add("Inf - Inf", [one], float("inf"))
    # zeros
    zeros = [(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0, 1.0, -1.0)]
    for zero in (0.0, -0.0):
        for pair in zeros:
            for many, words in ((1, "a product"), (k, "all products")):
                add(f"{words} {pair[0] * pair[1]:g}, C = {zero:g}", [pair] * many, zero)
    add("1 - 1, products", [one, less])
    add("1 - 1, C and a product", [less], 1.0)
    add("1 - 1, beside C = -0", [one, less], -0.0)
    tiny_c = fc.min_subnormal
    for s in (1, -1):
        low, sign = fd.emin - fd.fraction_bits, "+" if s > 0 else "-"
        quarter, half = values.product(low - 2, s), values.product(low - 1, s)
        add(f"{sign} a quarter of D's smallest", [quarter])
        add(f"{sign} three quarters of D's smallest", [half, quarter])
        add("a subnormal result of products", [values.product(low + 1, s)])
        add("a subnormal result of products", [values.product(fd.emin, s), values.product(fd.emin - 1, -s)])
        add("a subnormal result beside C", [values.product(fd.emin - 1, -s)], s * 2.0**fd.emin)
        add("a subnormal C", [], s * tiny_c)
        add("a subnormal C", [], s * (2.0**fc.emin - tiny_c))
        add("a subnormal C beside a product", [values.product(max(fd.emin, fa.emin + fb.emin), s)], s * tiny_c)
        for tiny in (fa.min_subnormal, fa.min_normal - fa.min_subnormal):
            add("a subnormal in A", [(s * tiny, 1.0)])
            add("a subnormal in A", [(s * tiny, 2.0**fb.emax)], 0.0)
        for tiny in (fb.min_subnormal, fb.min_normal - fb.min_subnormal):
            add("a subnormal in B", [(1.0, s * tiny)])
            add("a subnormal in B", [(2.0**fa.emax, s * tiny)], 0.0)
        if fa.min_subnormal * fb.min_subnormal > 0:
            add("subnormals in A and B", [(s * fa.min_subnormal, fb.min_subnormal)])
        # overflow
        ulp = fd.emax - fd.fraction_bits
        for e in (ulp, ulp - 1, ulp - 2, fd.emax):
            add("overflow by a product", [values.product(e, s)], s * fd.max)
            add("overflow by a product", [values.product(e, s), values.product(e - 1, s)], s * fd.max)
        add("overflow, taken back", [values.product(fd.emax, s), values.product(fd.emax, -s)], s * fd.max)
        add("products beyond D, which cancel", [values.product(fd.emax + 1, s), values.product(fd.emax + 1, -s)], 1.0)
        add("products beyond D, which cancel", [values.full(fd.emax, s), values.full(fd.emax, -s)], 1.0)
        add("a product beyond D", [values.product(fd.emax + 1, s)])
        add("a product of the largest numbers", [(s * fa.max, fb.max)])
        add("products of the largest numbers", [(s * fa.max, fb.max)] * k)
        add("products of the largest numbers", [(s * fa.max, fb.max)] * k, s * fd.max)
    for fmt, which in ((fa, 0), (fb, 1)):
        if fmt.padding:  # what a tf32 word has below its format
            word = [one_a, one_b]
            word[which] |= (1 << fmt.padding) - 1
            add("low bits that the format does not have", [(word[0], word[1])])
    A, B = (np.zeros((len(entries), k), f.code_dtype) for f in (fa, fb))
    C = np.array([c for *_, c in entries], np.uint64).astype(fc.code_dtype)
    for i, (_, at, _) in enumerate(entries):
        for q, (a, b) in at.items():
            A[i, q], B[i, q] = a, b
    return Probes.without_level(A, B, C, [kind for kind, *_ in entries])


def nan_rule(probes: Probes, D: NDArray[Any], formats: Formats) -> tuple[int | None, bool, str]:
    """The code of NaN results, whether payloads are kept, and both in words; None if no known rule applies.

    Kept payloads are those of fp64: the first NaN of b, c, a, made quiet; the code is the code of invalid operations.
    """
    fd = formats[3]
    is_nan = np.isnan(np.asarray(fd.decode(D)))
    codes = np.unique(D[is_nan])
    if not len(codes):
        return None, False, "no NaN was returned"
    if len(codes) == 1:
        return int(codes[0]), False, f"every NaN is {hexadecimal(codes[0], fd)}"
    invalid = np.unique(D[is_nan & np.isin(probes.kinds, ["Inf · 0", "Inf - Inf"])])
    if fd.name == "fp64" and len(invalid) == 1:
        quiet, expected = np.uint64(1 << 51), np.full(len(D), invalid[0], np.uint64)
        for x in (probes.A, probes.C[:, None], probes.B):
            nans = np.isnan(x.view(np.float64))
            column = np.argmax(nans, axis=1)
            expected = np.where(nans.any(axis=1), x[np.arange(len(x)), column] | quiet, expected)
        if (expected == D)[is_nan].all():
            rule = "NaN keep sign and payload, made quiet: the first of b, c, a; invalid operations give "
            return int(invalid[0]), True, rule + hexadecimal(invalid[0], fd)
    shown = ", ".join(hexadecimal(code, fd) for code in codes[:4])
    return None, False, f"{len(codes)} codes of NaN and no known rule: {shown}"


def hexadecimal(code: Any, fmt: FloatFormat) -> str:
    """A code with all digits of its format."""
    return f"0x{int(code):0{fmt.width // 4}X}"
