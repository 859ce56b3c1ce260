"""Evidence: probes of special values and the rules that they show, and the probe that decides each field.

A field is shown by the simplest probe with a result that another value of the field would not give. The integer
instruction is probed within and beyond the range of int32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.arithmetic import ARITHMETICS
from fpemu.mma.codes import values
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.fit import (
    Results,
    Structure,
    changed,
    other_arithmetics,
    other_blocks,
    other_fraction_bits,
    spec_of,
)
from fpemu.probing.arithmetic.probes import Array, Builder, Formats, Instruction, Pair, Probes


def _nans(fmt: FloatFormat) -> list[int]:
    """Codes of NaN: plain, with a payload, signalling, negative; none where the format has none."""
    if fmt.nan == "none":
        return []
    sign, full = 1 << (fmt.width - 1), (1 << (fmt.width - 1)) - (1 << fmt.padding)
    if fmt.nan != "ieee":
        return [sign] if fmt.nan == "negative-zero" else [full, sign | full]
    infinite, quiet = int(fmt.encode(np.inf)), 1 << (fmt.fraction_bits - 1 + fmt.padding)
    payload = 1 << fmt.padding
    codes = [full, infinite | quiet, infinite | quiet | payload, infinite | payload, sign | infinite | quiet | payload]
    return list(dict.fromkeys(codes))


def specials(formats: Formats, k: int) -> Probes:
    """Probes of NaN, Inf, zeros, subnormals and overflow, each at the first and at the last positions of k."""
    fa, fb, fc, fd = formats
    probes = Builder(formats, k)
    number, inf = probes.product, math.inf
    one, less = number(0), number(0, -1)

    def add(kind: str, pairs: Sequence[Pair | None], c: float = 0.0) -> None:
        for start in dict.fromkeys((0, k - len(pairs))):
            probes.add(kind, [(k - 1 - start - i, pair) for i, pair in enumerate(pairs)], c)

    for codes in product(*([None, *_nans(fmt)] for fmt in formats[:3])):
        which = [name for name, code in zip("ABC", codes, strict=True) if code is not None]
        a, b, c = (x if code is None else code for x, code in zip((1.0, 1.0, 0.0), codes, strict=True))
        if which:
            add(f"NaN in {' and '.join(which)}", [(a, b)], c)
            add("NaN beside 1", [(a, b), one], 1.0 if which == ["A"] else c)
    if fa.inf and fb.inf:
        add("Inf", [(inf, 1.0)])
        add("Inf · 0", [(inf, 0.0)])
        for code in _nans(fc)[-2:]:
            add("NaN in C beside Inf", [(inf, 1.0)], code)
            add("NaN in C beside Inf · 0", [(inf, 0.0)], code)
        add("Inf · 0", [(0.0, -inf)], 1.0)
        add("-Inf", [(1.0, -inf)], 1.0)
        add("Inf - Inf", [(inf, 1.0), (-1.0, inf)])
        add("Inf - Inf", [(1.0, inf)], -inf)
    add("Inf in C", [less], inf)
    add("-Inf in C", [one], -inf)
    zeros = product((0.0, -0.0), [(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0, 1.0, -1.0)])
    for (zero, pair), (many, words) in product(zeros, ((1, "a product"), (k, "all products"))):
        add(f"{words} {pair[0] * pair[1]:g}, C = {zero:g}", [pair] * many, zero)
    add("1 - 1, products", [one, less])
    add("1 - 1, C and a product", [less], 1.0)
    add("1 - 1, beside C = -0", [one, less], -0.0)
    tiny, low, ulp = fc.min_subnormal, fd.emin - fd.fraction_bits, fd.emax - fd.fraction_bits
    for s in (1, -1):
        sign, quarter, half = "+" if s > 0 else "-", number(low - 2, s), number(low - 1, s)
        add(f"{sign} a quarter of D's smallest", [quarter])
        add(f"{sign} three quarters of D's smallest", [half, quarter])
        add("a subnormal result of products", [number(low + 1, s)])
        add("a subnormal result of products", [number(fd.emin, s), number(fd.emin - 1, -s)])
        add("a subnormal result beside C", [number(fd.emin - 1, -s)], s * 2.0**fd.emin)
        add("a subnormal C", [], s * tiny)
        add("a subnormal C", [], s * (2.0**fc.emin - tiny))
        add("a subnormal C beside a product", [number(max(fd.emin, fa.emin + fb.emin), s)], s * tiny)
        for operand, fmt, other in (("A", fa, fb), ("B", fb, fa)):
            for x, y in product((fmt.min_subnormal, fmt.min_normal - fmt.min_subnormal), (1.0, 2.0**other.emax)):
                add(f"a subnormal in {operand}", [(s * x, y) if operand == "A" else (y, s * x)])
        if fa.min_subnormal * fb.min_subnormal > 0:
            add("subnormals in A and B", [(s * fa.min_subnormal, fb.min_subnormal)])
        for e in (ulp, ulp - 1, ulp - 2, fd.emax):
            add("overflow by a product", [number(e, s)], s * fd.max)
            add("overflow by a product", [number(e, s), number(e - 1, s)], s * fd.max)
        add("overflow that another product cancels", [number(fd.emax, s), number(fd.emax, -s)], s * fd.max)
        add("products beyond D, which cancel", [number(fd.emax + 1, s), number(fd.emax + 1, -s)], 1.0)
        add("products beyond D, which cancel", [probes.full(fd.emax, s), probes.full(fd.emax, -s)], 1.0)
        add("a product beyond D", [number(fd.emax + 1, s)])
        add("a product of the largest numbers", [(s * fa.max, fb.max)])
        for c in (0.0, s * fd.max):
            add("products of the largest numbers", [(s * fa.max, fb.max)] * k, c)
    if fa.padding or fb.padding:  # bits of a tf32 word below its format
        word = [int(f.encode(1.0)) | (1 << f.padding) - 1 for f in (fa, fb)]
        add("low bits that the format does not have", [(word[0], 1.0)])
        add("low bits that the format does not have", [(1.0, word[1])])
    return probes.probes()


def nan_rule(probes: Probes, D: Array, formats: Formats) -> tuple[int | None, bool, str]:
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


@dataclass(frozen=True)
class Finding:
    """One property of the instruction, and the probe that shows it.

    Attributes
    ----------
    field, value : str
        A field of MmaSpec or a rule in words, and its value.
    probe, returned : str
        The operands that decide it, and their D; empty where no probe decides.
    otherwise : str
        The result for another value, or the values that no probe distinguishes.
    """

    field: str
    value: str
    probe: str = ""
    returned: str = ""
    otherwise: str = ""


# --- probes in words
def _number(x: float) -> str:
    """A value as m · 2^e with m odd, unless its decimal form is short."""
    if x == 0 or not np.isfinite(x) or (abs(x) < 1e4 and float(x).is_integer()):
        return f"{x:g}"
    n, d = float(x).as_integer_ratio()
    e = 1 - d.bit_length()
    while n % 2 == 0:
        n, e = n // 2, e + 1
    return f"{'-' if n < 0 else ''}2^{e}" if abs(n) == 1 else f"{n}·2^{e}"


def _operands(probes: Probes, i: int, formats: Formats) -> str:
    """A probe's products with their positions in k, and C."""
    a, b, c = (x[0] for x in probes.take(np.array([i])).values(formats))
    parts = []
    for k in np.flatnonzero((probes.A[i] != 0) | (probes.B[i] != 0)).tolist():
        p, q = float(a[k]), float(b[k])
        ordinary = p != 0 != q and np.isfinite(p) and np.isfinite(q)
        parts.append(f"{_number(p * q) if ordinary else f'{_number(p)}·({_number(q)})'} at {k}")
    if len(parts) > 4:
        parts = [*parts[:2], f"… {len(parts)} products"]
    code = f" ({hexadecimal(probes.C[i], formats[2])})" if np.isnan(c) else ""
    return ", ".join([*parts, f"C = {_number(float(c))}{code}"])


def _result(code: Any, fmt: FloatFormat) -> str:
    """A result as its value and its code."""
    return f"{_number(float(values(np.array([code], fmt.code_dtype), fmt)[0]))} ({hexadecimal(code, fmt)})"


# --- the fields of the specification
def fields(results: Results, spec: MmaSpec, alike: Sequence[MmaSpec]) -> tuple[Finding, ...]:
    """The fields of the specification, each compared with its nearest other values."""

    def finding(field: str, value: str, others: Sequence[MmaSpec]) -> Finding:
        return _against(results, spec, field, value, others, alike)

    name, block = spec.arithmetic, f"{spec.block}: {_blocks(spec)}"
    findings = [finding("arithmetic", f"{name}: {spec.rules.text}", other_arithmetics(spec))]
    findings.append(finding("block", block, other_blocks(spec)))
    if spec.rules.truncates:
        near = [{"F": F} for F in (spec.F - 1, spec.F + 1) if 1 <= F <= 35]
        findings += [finding("F", str(spec.F), changed(spec, near)), _floor(results, spec, alike)]
        if str(spec.d_format) == "fp32":
            findings.append(finding("fraction_bits", str(spec.fraction_bits), changed(spec, other_fraction_bits(spec))))
    if "final" in spec.rules.parameters:
        other = spec.replace(final="RNE" if spec.final == "RZ" else "RZ")
        findings.append(finding("final", str(spec.final), [other]))
    return tuple(findings)


def _blocks(spec: MmaSpec) -> str:
    """The positions of k that are added in one rounding."""
    if spec.rules.via is not None:
        return "k mod 4 in {0, 1}, then k mod 4 in {2, 3}, then C"
    each = "even and odd k apart, in " if spec.rules.groups == 2 else ""
    if spec.block == spec.k:
        return f"{each}all {spec.k} products together"
    starts = range(0, spec.k, spec.block)
    return each + " | ".join(f"{i}..{i + spec.block - 1}" if spec.block > 1 else f"{i}" for i in starts)


def _against(
    results: Results, spec: MmaSpec, field: str, value: str, others: Sequence[MmaSpec], alike: Sequence[MmaSpec] = ()
) -> Finding:
    """The simplest probe with another result for the nearest other value that some probe excludes."""
    same = sorted({str(getattr(s, field)) for s in alike} - {str(getattr(spec, field))})
    note = f"no probe distinguishes it from {', '.join(same[:4])}{' …' if len(same) > 4 else ''}" if same else ""
    fd = results.formats[3]
    for other in others:
        differ = results.mismatches(other)
        if differ.any():
            normal = differ & (np.abs(results.d) >= fd.min_normal)
            i = _plainest(results.probes, normal if normal.any() else differ)
            other_value = f"{getattr(other, field)}" + (f", block {other.block}" if field == "arithmetic" else "")
            otherwise = f"{_result(results.codes(other, np.array([i]))[0], fd)} if it were {other_value}"
            shown = _operands(results.probes, i, results.formats)
            return Finding(field, value, shown, _result(results.D[i], fd), "; ".join(filter(None, (otherwise, note))))
    return Finding(field, value, otherwise=note)


def _floor(results: Results, spec: MmaSpec, alike: Sequence[MmaSpec]) -> Finding:
    """E0, and the range of floors with the same results."""
    same = [s.E0 for s in alike if s.E0 is not None and s == spec.replace(E0=s.E0, name=s.name, evidence=s.evidence)]
    top = max(same, default=300 if spec.E0 is None else spec.E0)
    if spec.E0 is None and top >= 300:
        return Finding("E0", "None", otherwise="no floor shows")
    near = [e for e in ((top + 1,) if spec.E0 is None else (spec.E0 - 1, top + 1)) if -300 <= e <= 300]
    finding = _against(results, spec, "E0", str(spec.E0), [spec.replace(E0=e) for e in near])
    if spec.E0 is None:
        note = f"any floor up to {top} gives the same"
    else:
        note = f"any from {spec.E0} to {top} gives the same" if top > spec.E0 else ""
    return replace(finding, otherwise="; ".join(filter(None, (finding.otherwise, note))))


def _plainest(probes: Probes, chosen: Array) -> int:
    """The chosen probe with the fewest terms."""
    return int(np.flatnonzero(chosen)[np.argmin(probes.terms()[chosen])])


# --- rules that the results show directly
def direct(probes: Probes, D: Array, formats: Formats, nan_text: str) -> tuple[Finding, ...]:
    """Zeros, NaN, infinities, subnormals and overflow, for any arithmetic."""
    fd, kinds = formats[3], probes.kinds
    with np.errstate(invalid="ignore"):
        d = np.asarray(values(D, fd), np.float64)
        a, b, c = (np.asarray(x, np.float64) for x in probes.values(formats))
    findings: list[Finding] = []

    def pick(*starts: str) -> Array:
        return np.flatnonzero([kind.startswith(starts) for kind in kinds])

    def show(field: str, at: Array, value: str, chosen: Array | None = None) -> None:
        """Add a finding with the first of the probes, or the first of the chosen ones."""
        if len(at):
            i = int(at[0 if chosen is None else np.argmax(chosen)])
            findings.append(Finding(field, value, _operands(probes, i, formats), _result(D[i], fd)))

    def show_subnormals(operand: str, at: Array) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            exact = (a[at] * b[at]).sum(axis=1) + c[at]
        at, exact = at[np.abs(exact) >= fd.min_subnormal], exact[np.abs(exact) >= fd.min_subnormal]
        lost = (d[at] == 0) | (np.abs(d[at] - exact) > np.abs(exact) / 2)
        word = "flushed" if lost.all() else "kept in part" if lost.any() else "kept"
        show(f"subnormal {operand}", at, word, lost)

    show("NaN", np.flatnonzero(np.isnan(d)), nan_text)
    zero = pick("a product", "all products", "1 - 1", "- a quarter")
    zero = zero[d[zero] == 0]
    negative = zero[np.signbit(d[zero])]
    names = list(dict.fromkeys(kinds[negative].tolist()))
    show("zeros", negative, f"-0 for: {'; '.join(names[:6])}{' …' if len(names) > 6 else ''}")
    if len(zero) and not len(negative):
        show("zeros", pick("- a quarter", "all products -0, C = -0", "1 - 1"), "every zero result is +0")
    for operand, start in (("A", "a subnormal in A"), ("B", "a subnormal in B"), ("C", "a subnormal C")):
        show_subnormals(operand, np.flatnonzero(kinds == start))
    show_subnormals("D", pick("a subnormal result"))
    at = pick("overflow by a product")
    infinite = np.isinf(d[at])
    show("overflow", at, f"gives {'Inf' if infinite.any() else 'never Inf: the largest number'}", infinite)
    at = pick("products beyond D, which cancel")
    show("products beyond D", at, "cancel" if np.isfinite(d[at]).all() else "do not cancel")
    at = pick("low bits")
    show("low bits of the word", at, "ignored" if (d[at] == 1).all() else "not ignored")
    return tuple(findings)


# --- contradictions
def contradiction(results: Results, possible: Sequence[Structure]) -> str:
    """The nearest known arithmetic, and the simplest probe with another result."""
    specs = [
        spec_of(results.formats, results.k, s, F=F)
        for s in possible
        for F in ((13, 23, 24, 25) if ARITHMETICS[s.arithmetic].truncates else (24,))
    ]
    mismatches = [(results.mismatches(spec), spec) for spec in specs if spec is not None]
    differ, spec = min(mismatches, key=lambda pair: int(pair[0].sum()))
    i, fd = _plainest(results.probes, differ), results.formats[3]
    expected = results.codes(spec, np.array([i]))[0]
    width = f", F = {spec.F}" if spec.rules.truncates else ""
    return (
        f"no arithmetic known gives these answers. The nearest, {spec.arithmetic}, block {spec.block}{width}, differs "
        f"in {int(differ.sum())} of {len(results.probes)} probes, the plainest of them "
        f"{_operands(results.probes, i, results.formats)}: returned {_result(results.D[i], fd)}, not"
        f" {_result(expected, fd)}"
    )


# --- the integer instruction

FORMATS = ("int8", "int8", "int32")


def probe_integers(
    instruction: Instruction, formats: tuple[Any, Any, Any], c: Any, k: int, name: str
) -> tuple[MmaSpec | None, tuple[Finding, ...], int, str]:
    """The specification, the findings, the number of probes, and the contradiction if there is no specification."""
    if tuple(map(str, formats)) != FORMATS or str(c) not in ("None", "int32"):
        raise InputError("characterize: the integer instruction has int8 operands, and C and results in int32")
    rules = next(row for row in ARITHMETICS.values() if row.integer)
    spec = MmaSpec(*FORMATS, k=k, block=k, arithmetic=rules.name, name=name)
    # products at the ends of int8 with C at the ends of int32, and each position of k alone
    ends = (-128, -127, -1, 0, 1, 2, 127)
    accumulators = (0, 1, -1, 2**31 - 1, -(2**31), 2**30, -(2**30) - 7, 2**24 + 1)
    positions = [np.isin(np.arange(k), some) for some in ([*range(k)], [0], [k - 1], [*range(0, k, 2)])]
    many = product(ends, ends, accumulators, positions)
    rows = [(at * a, at * b, c, f"{at.sum()} products {a}·{b}") for a, b, c, at in many]
    rows += [((np.arange(k) == q) * (q % 100 + 1), np.full(k, 3), q, f"{q % 100 + 1}·3 at {q}") for q in range(k)]
    A, B, C, kinds = zip(*rows, strict=True)
    A, B, C = np.array(A, np.int8), np.array(B, np.int8), np.array(C, np.int32)
    D = instruction.results(Probes.without_level(A.view(np.uint8), B.view(np.uint8), C.view(np.uint32), kinds))
    D = D.view(np.int32)
    exact = C.astype(np.int64) + (A.astype(np.int64) * B.astype(np.int64)).sum(axis=1)
    expected = mma.execute(A[:, None, :], B[:, :, None], C[:, None, None], spec, backend="numpy").reshape(-1)
    overflows, differ = exact != expected, expected != D
    findings = []
    for field, some, value in (("exact sums", ~overflows, "yes"), ("sums beyond int32", overflows, "modulo 2^32")):
        if some.any():
            i = int(np.flatnonzero(some)[np.argmax(differ[some])])
            if differ[some].any():
                saturated = np.clip(exact, -(2**31), 2**31 - 1)
                value = "stop at its ends" if (D[some] == saturated[some]).all() else "not as known"
            findings.append(Finding(field, value, f"{kinds[i]}, C = {C[i]}", str(D[i]), f"exactly {exact[i]}"))
    if differ.any():
        i = int(np.argmax(differ))
        why = (
            f"no arithmetic known gives these answers: int32 modulo 2^32 differs in {int(differ.sum())} of {len(D)} "
            f"probes, first {kinds[i]}, C = {C[i]}: returned {D[i]}, not {expected[i]}"
        )
        return None, tuple(findings), len(D), why
    return spec, (Finding("arithmetic", f"{rules.name}: {rules.text}"), *findings), len(D), ""
