"""Why a field has its value: for each the plainest probe whose answer another value would not give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.codes import codes, values
from fpemu.mma.spec import ARITHMETICS, MmaSpec
from fpemu.probing.arithmetic.candidates import Structure
from fpemu.probing.arithmetic.fit import Answers
from fpemu.probing.arithmetic.pool import Formats, Pool
from fpemu.probing.arithmetic.specials import hexadecimal


@dataclass(frozen=True)
class Finding:
    """One thing found, and the probe that shows it.

    Attributes
    ----------
    field, value : str
        A field of MmaSpec or a rule in words, and what it is.
    probe, returned : str
        The operands that decide it, and what D was; empty where no probe can tell.
    otherwise : str
        What another value would have given, or which values no probe tells apart.
    """

    field: str
    value: str
    probe: str = ""
    returned: str = ""
    otherwise: str = ""


# --- probes in words
def number(x: float) -> str:
    """A value as m · 2^e with m odd, where it is not short as it is."""
    if x == 0 or not np.isfinite(x) or (abs(x) < 1e4 and float(x).is_integer()):
        return f"{x:g}"
    n, d = float(x).as_integer_ratio()
    e = 1 - d.bit_length()
    while n % 2 == 0:
        n, e = n // 2, e + 1
    return f"{'-' if n < 0 else ''}2^{e}" if abs(n) == 1 else f"{n}·2^{e}"


def operands(pool: Pool, i: int, formats: Formats) -> str:
    """A probe's products with their positions in k, and C."""
    a, b, c = (values(x[i : i + 1], f)[0] for x, f in zip((pool.A, pool.B, pool.C), formats[:3], strict=True))
    parts = []
    for k in np.flatnonzero((pool.A[i] != 0) | (pool.B[i] != 0)).tolist():
        p, q = float(a[k]), float(b[k])
        plain = p != 0 != q and np.isfinite(p) and np.isfinite(q)
        parts.append(f"{number(p * q) if plain else f'{number(p)}·({number(q)})'} at {k}")
    if len(parts) > 4:
        parts = [*parts[:2], f"… {len(parts)} products"]
    wild = f" ({hexadecimal(pool.C[i], formats[2])})" if np.isnan(c) else ""
    return ", ".join([*parts, f"C = {number(float(c))}{wild}"])


def result(code: Any, fmt: FloatFormat) -> str:
    """A result as its value and its code."""
    return f"{number(float(values(np.array([code], fmt.code_dtype), fmt)[0]))} ({hexadecimal(code, fmt)})"


# --- the fields of the row
def fields(answers: Answers, spec: MmaSpec, alike: Sequence[MmaSpec]) -> tuple[Finding, ...]:
    """The fields of the row found, each against its nearest other values."""
    others = _divisors(spec)
    found = [
        _against(answers, spec, "arithmetic", ARITHMETICS[spec.arithmetic], _families(spec), spec.arithmetic, alike),
        _against(answers, spec, "block", blocks(spec), others, str(spec.block), alike),
    ]
    if spec.arithmetic in ("truncated", "via-half"):
        F = [spec.replace(F=F) for F in (spec.F - 1, spec.F + 1) if 1 <= F <= 35]
        found.append(_against(answers, spec, "F", "", F, str(spec.F), alike))
        found.append(_floor(answers, spec, alike))
        if str(spec.d_format) == "fp32":
            bits = 23 if spec.fraction_bits is None else spec.fraction_bits
            near = [None if n == 23 else n for n in (bits - 1, bits + 1) if 1 <= n <= 23]
            changed = [spec.replace(fraction_bits=n) for n in near]
            found.append(_against(answers, spec, "fraction_bits", "", changed, str(spec.fraction_bits), alike))
    if spec.arithmetic in ("truncated", "via-half", "exact"):
        other = spec.replace(final="RNE" if spec.final == "RZ" else "RZ")
        found.append(_against(answers, spec, "final", "", [other], str(spec.final), alike))
    return tuple(found)


def blocks(spec: MmaSpec) -> str:
    """Which positions of k are added in one rounding."""
    if spec.arithmetic == "via-half":
        return "k mod 4 in {0, 1}, then k mod 4 in {2, 3}, then C"
    each = "even and odd k apart, in " if spec.arithmetic == "cdna3-fp8" else ""
    if spec.block == spec.k:
        return f"{each}all {spec.k} products together"
    starts = range(0, spec.k, spec.block)
    return each + " | ".join(f"{i}..{i + spec.block - 1}" if spec.block > 1 else f"{i}" for i in starts)


def _against(
    answers: Answers,
    spec: MmaSpec,
    field: str,
    words: str,
    others: Sequence[MmaSpec],
    value: str,
    alike: Sequence[MmaSpec],
) -> Finding:
    """The plainest probe that the nearest other values would answer otherwise."""
    value = f"{value}: {words}" if words else value
    same = sorted({str(getattr(s, field)) for s in alike} - {str(getattr(spec, field))})
    note = f"no probe tells it from {', '.join(same[:4])}{' …' if len(same) > 4 else ''}" if same else ""
    for other in others:
        differ = answers.differ(other)
        if differ.any():
            fd = answers.formats[3]
            normal = differ & (np.abs(answers.d) >= fd.min_normal)
            i = _plainest(answers.pool, normal if normal.any() else differ)
            would = codes(mma.execute(answers.a[[i]], answers.b[[i]], answers.c[[i]], other, backend="numpy"), fd)
            other_value = f"{getattr(other, field)}" + (f", block {other.block}" if field == "arithmetic" else "")
            told = f"{result(would.reshape(-1)[0], fd)} if it were {other_value}"
            shown = operands(answers.pool, i, answers.formats)
            return Finding(field, value, shown, result(answers.D[i], fd), "; ".join(filter(None, (told, note))))
    return Finding(field, value, otherwise=note)


def _floor(answers: Answers, spec: MmaSpec, alike: Sequence[MmaSpec]) -> Finding:
    """E0, or up to where a floor would not be seen."""
    same = [s.E0 for s in alike if s.E0 is not None and s == spec.replace(E0=s.E0, name=s.name, evidence=s.evidence)]
    top = max(same, default=300 if spec.E0 is None else spec.E0)
    if spec.E0 is None and top >= 300:
        return Finding("E0", "None", otherwise="no floor is seen")
    near = [e for e in ((top + 1,) if spec.E0 is None else (spec.E0 - 1, top + 1)) if -300 <= e <= 300]
    found = _against(answers, spec, "E0", "", [spec.replace(E0=e) for e in near], str(spec.E0), [])
    if spec.E0 is None:
        note = f"any floor up to {top} gives the same"
    else:
        note = f"any from {spec.E0} to {top} gives the same" if top > spec.E0 else ""
    return Finding("E0", found.value, found.probe, found.returned, "; ".join(filter(None, (found.otherwise, note))))


def _divisors(spec: MmaSpec) -> list[MmaSpec]:
    """The same with other blocks, the nearest first."""
    found = []
    for n in sorted(range(1, min(spec.k, 64) + 1), key=lambda n: abs(np.log2(n / spec.block))):
        if spec.k % n == 0 and n != spec.block:
            try:
                found.append(spec.replace(block=n))
            except InputError:
                continue
    return found


def _families(spec: MmaSpec) -> list[MmaSpec]:
    """The same formats and block in other arithmetics."""
    found = []
    for arithmetic in ARITHMETICS:
        fields: dict[str, Any] = {"arithmetic": arithmetic, "F": 24, "E0": None, "fraction_bits": None, "final": None}
        if arithmetic in ("truncated", "via-half"):
            fields["F"] = 25
        for block in (spec.block, 1, spec.k):
            try:
                other = spec.replace(**fields, block=block, payloads=False)
            except InputError:
                continue
            if arithmetic != spec.arithmetic:
                found.append(other)
                break
    return found


def _plainest(pool: Pool, chosen: NDArray[np.bool_]) -> int:
    """Of some probes the one with the fewest terms."""
    terms = ((pool.A != 0) & (pool.B != 0)).sum(axis=1) + (pool.C != 0)
    return int(np.flatnonzero(chosen)[np.argmin(terms[chosen])])


# --- rules that are read from the answers as they are
def direct(pool: Pool, D: NDArray[Any], formats: Formats, nan_text: str) -> tuple[Finding, ...]:
    """Zeros, NaN, infinities, subnormals and overflow, whatever the arithmetic."""
    fd = formats[3]
    with np.errstate(invalid="ignore"):
        d = np.asarray(values(D, fd), np.float64)
        given = zip((pool.A, pool.B, pool.C), formats[:3], strict=True)
        a, b, c = (np.asarray(values(x, f), np.float64) for x, f in given)
    kinds = np.array(pool.kinds)

    def pick(*starts: str) -> NDArray[np.int64]:
        return np.flatnonzero([any(kind.startswith(s) for s in starts) for kind in kinds])

    def one(field: str, value: str, i: int) -> Finding:
        return Finding(field, value, operands(pool, i, formats), result(D[i], fd))

    found = []
    nans = np.flatnonzero(np.isnan(d))
    if len(nans):
        found.append(one("NaN", nan_text, int(nans[0])))
    zero = pick("a product", "all products", "1 - 1", "- a quarter")
    zero = zero[d[zero] == 0]
    negative = zero[np.signbit(d[zero])]
    if len(negative):
        names = list(dict.fromkeys(kinds[negative].tolist()))
        found.append(one("zeros", f"-0 for: {'; '.join(names[:6])}{' …' if len(names) > 6 else ''}", int(negative[0])))
    elif len(zero):
        shown = pick("- a quarter", "all products -0, C = -0", "1 - 1")
        found.append(one("zeros", "every zero result is +0", int(shown[0])))
    for field, start in (
        ("subnormal A", "a subnormal in A"),
        ("subnormal B", "a subnormal in B"),
        ("subnormal C", "a subnormal C"),
        ("subnormal D", "a subnormal result"),
    ):
        at = pick(start) if field == "subnormal D" else np.flatnonzero(kinds == start)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = (a[at] * b[at]).sum(axis=1) + c[at]
        at, exact = at[np.abs(exact) >= fd.min_subnormal], exact[np.abs(exact) >= fd.min_subnormal]
        if len(at):
            lost = (d[at] == 0) | (np.abs(d[at] - exact) > np.abs(exact) / 2)
            word = "flushed" if lost.all() else "kept" if not lost.any() else "kept in part"
            found.append(one(field, word, int(at[np.argmax(lost)])))
    at = pick("overflow by a product")
    if len(at):
        biggest = at[np.argmax(np.isinf(d[at]))]
        finite = "Inf" if np.isinf(d[at]).any() else "never Inf: the largest number"
        found.append(one("overflow", f"gives {finite}", int(biggest)))
    at = pick("products beyond D, which cancel")
    if len(at):
        word = "cancel" if np.isfinite(d[at]).all() else "do not cancel"
        found.append(one("products beyond D", word, int(at[0])))
    at = pick("low bits")
    if len(at):
        found.append(one("low bits of the word", "ignored" if (d[at] == 1).all() else "not ignored", int(at[0])))
    return tuple(found)


# --- what fits nothing
def contradiction(answers: Answers, possible: Sequence[Structure]) -> str:
    """Which known arithmetic comes nearest, and the plainest probe that it does not answer so."""
    best: tuple[int, MmaSpec, NDArray[np.bool_]] | None = None
    a, b, c, d = answers.formats
    for s in possible:
        for F in (13, 23, 24, 25) if s.arithmetic in ("truncated", "via-half") else (24,):
            arithmetic: Any = s.arithmetic
            spec = MmaSpec(a, b, d, k=answers.k, block=s.block, arithmetic=arithmetic, F=F, c_format=c)
            differ = answers.differ(spec)
            if best is None or differ.sum() < best[0]:
                best = (int(differ.sum()), spec, differ)
    if best is None:
        return "no arithmetic known has these formats"
    count, spec, differ = best
    i = _plainest(answers.pool, differ)
    would = mma.execute(answers.a[[i]], answers.b[[i]], answers.c[[i]], spec, backend="numpy")
    also = f", F = {spec.F}" if spec.arithmetic in ("truncated", "via-half") else ""
    return (
        f"no arithmetic known gives these answers. The nearest, {spec.arithmetic}, block {spec.block}{also}, differs "
        f"in {count} of {len(answers.pool)} probes, the plainest of them {operands(answers.pool, i, answers.formats)}: "
        f"returned {result(answers.D[i], d)}, not {result(codes(would, d).reshape(-1)[0], d)}"
    )
