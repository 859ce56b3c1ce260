"""The evidence for each field: the simplest probe with a result that another value of the field would not give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.formats import FloatFormat
from fpemu.mma.codes import values
from fpemu.mma.spec import ARITHMETICS, MmaSpec
from fpemu.probing.arithmetic.candidates import (
    ALIGNED,
    Structure,
    changed,
    other_arithmetics,
    other_blocks,
    other_fraction_bits,
    spec_of,
)
from fpemu.probing.arithmetic.fit import Results
from fpemu.probing.arithmetic.probes import Formats, Probes
from fpemu.probing.arithmetic.specials import hexadecimal


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
    arrays = zip((probes.A, probes.B, probes.C), formats[:3], strict=True)
    a, b, c = (values(x[i : i + 1], f)[0] for x, f in arrays)
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
    findings = [finding("arithmetic", f"{name}: {ARITHMETICS[name]}", other_arithmetics(spec))]
    findings.append(finding("block", block, other_blocks(spec)))
    if name in ALIGNED:
        near = [{"F": F} for F in (spec.F - 1, spec.F + 1) if 1 <= F <= 35]
        findings += [finding("F", str(spec.F), changed(spec, near)), _floor(results, spec, alike)]
        if str(spec.d_format) == "fp32":
            findings.append(finding("fraction_bits", str(spec.fraction_bits), changed(spec, other_fraction_bits(spec))))
    if name in (*ALIGNED, "exact"):
        other = spec.replace(final="RNE" if spec.final == "RZ" else "RZ")
        findings.append(finding("final", str(spec.final), [other]))
    return tuple(findings)


def _blocks(spec: MmaSpec) -> str:
    """The positions of k that are added in one rounding."""
    if spec.arithmetic == "via-half":
        return "k mod 4 in {0, 1}, then k mod 4 in {2, 3}, then C"
    each = "even and odd k apart, in " if spec.arithmetic == "cdna3-fp8" else ""
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


def _plainest(probes: Probes, chosen: NDArray[np.bool_]) -> int:
    """The chosen probe with the fewest terms."""
    return int(np.flatnonzero(chosen)[np.argmin(probes.terms()[chosen])])


# --- rules that the results show directly
def direct(probes: Probes, D: NDArray[Any], formats: Formats, nan_text: str) -> tuple[Finding, ...]:
    """Zeros, NaN, infinities, subnormals and overflow, for any arithmetic."""
    fd = formats[3]
    with np.errstate(invalid="ignore"):
        d = np.asarray(values(D, fd), np.float64)
        arrays = zip((probes.A, probes.B, probes.C), formats[:3], strict=True)
        a, b, c = (np.asarray(values(x, f), np.float64) for x, f in arrays)
    kinds = probes.kinds

    def pick(*starts: str) -> NDArray[np.int64]:
        return np.flatnonzero([kind.startswith(starts) for kind in kinds])

    def one(field: str, value: str, i: int) -> Finding:
        return Finding(field, value, _operands(probes, i, formats), _result(D[i], fd))

    findings = []
    nans = np.flatnonzero(np.isnan(d))
    if len(nans):
        findings.append(one("NaN", nan_text, int(nans[0])))
    zero = pick("a product", "all products", "1 - 1", "- a quarter")
    zero = zero[d[zero] == 0]
    negative = zero[np.signbit(d[zero])]
    if len(negative):
        names = list(dict.fromkeys(kinds[negative].tolist()))
        findings.append(
            one("zeros", f"-0 for: {'; '.join(names[:6])}{' …' if len(names) > 6 else ''}", int(negative[0]))
        )
    elif len(zero):
        shown = pick("- a quarter", "all products -0, C = -0", "1 - 1")
        findings.append(one("zeros", "every zero result is +0", int(shown[0])))
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
            findings.append(one(field, word, int(at[np.argmax(lost)])))
    at = pick("overflow by a product")
    if len(at):
        biggest = at[np.argmax(np.isinf(d[at]))]
        finite = "Inf" if np.isinf(d[at]).any() else "never Inf: the largest number"
        findings.append(one("overflow", f"gives {finite}", int(biggest)))
    at = pick("products beyond D, which cancel")
    if len(at):
        word = "cancel" if np.isfinite(d[at]).all() else "do not cancel"
        findings.append(one("products beyond D", word, int(at[0])))
    at = pick("low bits")
    if len(at):
        findings.append(one("low bits of the word", "ignored" if (d[at] == 1).all() else "not ignored", int(at[0])))
    return tuple(findings)


# --- contradictions
def contradiction(results: Results, possible: Sequence[Structure]) -> str:
    """The nearest known arithmetic, and the simplest probe with another result."""
    specs = [
        spec_of(results.formats, results.k, s, F=F)
        for s in possible
        for F in ((13, 23, 24, 25) if s.arithmetic in ALIGNED else (24,))
    ]
    mismatches = [(results.mismatches(spec), spec) for spec in specs if spec is not None]
    differ, spec = min(mismatches, key=lambda pair: int(pair[0].sum()))
    i, fd = _plainest(results.probes, differ), results.formats[3]
    expected = results.codes(spec, np.array([i]))[0]
    width = f", F = {spec.F}" if spec.arithmetic in ALIGNED else ""
    return (
        f"no arithmetic known gives these answers. The nearest, {spec.arithmetic}, block {spec.block}{width}, differs "
        f"in {int(differ.sum())} of {len(results.probes)} probes, the plainest of them "
        f"{_operands(results.probes, i, results.formats)}: returned {_result(results.D[i], fd)}, not"
        f" {_result(expected, fd)}"
    )
