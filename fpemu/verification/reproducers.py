"""Minimal reproducers of mismatches: operands drawn again from an index, reduced while the mismatch remains, and shown.

`shrink` needs the hardware: it tries smaller operands, a few hundred at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.plotting import bits

Execute = Callable[[Any, Any, Any, MmaSpec], Any]
Codes = tuple[int, ...]
_ROUNDS = 500  # of `shrink`, at most


@dataclass(frozen=True)
class Mismatch:
    """One mismatching output: the codes of its row of A, column of B and entry of C, and both results."""

    spec: MmaSpec
    a: Codes
    b: Codes
    c: int
    hardware: int
    emulated: int
    where: str = ""


def locate(spec: MmaSpec, kind: str, seed: int, tile: tuple[int, int], index: int, hardware: int) -> Mismatch:
    """Draw the operands of an output of `fpemu.verification.instructions` again from its index."""
    m, n = tile
    test, rest = divmod(index, m * n)
    row, column = divmod(rest, n)
    A, B, C = streams.operands(spec, kind, seed, test, 1, m, n)
    a, b, c = tuple(A[0, row].tolist()), tuple(B[0, column].tolist()), int(C[0, row, column])
    emulated = int(_results([(a, b, c)], spec)[0])
    where = f"class {kind}, seed {seed}, test {test}, row {row}, column {column}"
    return Mismatch(spec, a, b, c, int(hardware), emulated, where)


def shrink(mismatch: Mismatch, execute: Execute) -> Mismatch:
    """Reduce the operands while hardware and emulation differ.

    First products and c are set to zero, then signs, fractions and exponents are simplified, one operand at a time,
    until no such step leaves a mismatch. `execute` is the hardware: `fpemu.gpu.execute`, or a stand-in.
    """
    for _ in range(_ROUNDS):
        candidates = list(_smaller(mismatch))
        if not candidates:
            break
        hardware, emulated = (_results(candidates, mismatch.spec, f) for f in (execute, None))
        remaining = np.flatnonzero(hardware != emulated)
        if not remaining.size:
            break
        i = int(remaining[0])
        a, b, c = candidates[i]
        mismatch = replace(mismatch, a=a, b=b, c=c, hardware=int(hardware[i]), emulated=int(emulated[i]))
    return mismatch


def execute_codes(A: Any, B: Any, C: Any, spec: MmaSpec, execute: Execute | None = None) -> NDArray[Any]:
    """Return the codes of D from codes, B stored by its columns; by default by NumPy: there is nothing to compile."""
    execute = partial(mma.execute, backend="numpy") if execute is None else execute
    a, b, c = (_values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
    return mma_codes.codes(np.asarray(execute(a, b.swapaxes(-1, -2), c, spec)), spec.d_format)


def _results(
    candidates: list[tuple[Codes, Codes, int]], spec: MmaSpec, execute: Execute | None = None
) -> NDArray[np.uint64]:
    """Codes of single outputs."""
    a, b, c = (np.array(x) for x in zip(*candidates, strict=True))
    return execute_codes(a[:, None], b[:, None], c[:, None, None], spec, execute).reshape(-1).astype(np.uint64)


def _values(codes: Any, fmt: FloatFormat | str) -> NDArray[Any]:
    return mma_codes.values(np.asarray(codes).astype(mma_codes.code_dtype(fmt), copy=False), fmt)


def _smaller(f: Mismatch) -> Iterator[tuple[Codes, Codes, int]]:
    """Yield smaller operands, the greatest steps first."""
    nonzero = [k for k in range(len(f.a)) if f.a[k] or f.b[k]]
    size = len(nonzero)
    while size:  # whole ranges of products become zero
        for start in range(0, len(nonzero), size):
            zeroed = set(nonzero[start : start + size])
            a, b = (tuple(0 if k in zeroed else x for k, x in enumerate(xs)) for xs in (f.a, f.b))
            yield a, b, f.c
        size //= 2
    fa, fb, fc = streams.formats(f.spec)
    for k in nonzero:
        yield from (((*f.a[:k], x, *f.a[k + 1 :]), f.b, f.c) for x in _simpler(f.a[k], fa))
        yield from ((f.a, (*f.b[:k], x, *f.b[k + 1 :]), f.c) for x in _simpler(f.b[k], fb))
    yield from ((f.a, f.b, x) for x in ([0] if f.c else []) + list(_simpler(f.c, fc)))


def _simpler(code: int, fmt: FloatFormat | str) -> Iterator[int]:
    """Yield simpler codes of a nonzero number: fewer bits, no sign, an exponent nearer to the exponent of 1."""
    if isinstance(fmt, str):
        magnitude = abs(int(_values([code], fmt)[0]))
        yield from {0, magnitude // 2, magnitude - 1} - {code} if magnitude else ()
        return
    raw, low, fraction_bits = code >> fmt.padding, code & ((1 << fmt.padding) - 1), fmt.fraction_bits
    exponent, fraction = raw >> fraction_bits & ((1 << fmt.exponent_bits) - 1), raw & ((1 << fraction_bits) - 1)
    if not (raw or low) or not np.isfinite(float(_values([code], fmt)[0])):
        return
    words = [raw, exponent << fraction_bits | fraction, raw - fraction, raw - (fraction & -fraction)]
    if exponent:
        words += [raw + (step << fraction_bits) for step in (fmt.bias - exponent, (fmt.bias - exponent) // 2)]
    yield from (x for x in dict.fromkeys(word << fmt.padding for word in words) if x != code)


# --- showing
def describe(mismatch: Mismatch) -> str:
    """Show the operands, their bits and the effect of each rounding rule, as text."""
    spec, (fa, fb, fc) = mismatch.spec, streams.formats(mismatch.spec)
    lines = [str(spec), *([mismatch.where] if mismatch.where else [])]
    for k, (x, y) in enumerate(zip(mismatch.a, mismatch.b, strict=True)):
        if x or y:
            lines.append(f"  k = {k:2d}   a {_number(x, fa)}   b {_number(y, fb)}")
    lines += [f"  c        {_number(mismatch.c, fc)}", *_rules(mismatch)]
    lines += [f"  {name} {_number(getattr(mismatch, name), spec.d_format)}" for name in ("emulated", "hardware")]
    return "\n".join(lines)


def _number(code: int, fmt: FloatFormat | str) -> str:
    value = _values([code], fmt)[0]
    shown = str(int(value)) if isinstance(fmt, str) else f"{float(value):.10g}"
    return f"0x{code:0{mma_codes.code_dtype(fmt).itemsize * 2}x} = {shown}"


def _rules(mismatch: Mismatch) -> Iterator[str]:
    """The alignment and the rounding of each block, if the arithmetic aligns once and all operands are finite."""
    spec = mismatch.spec
    if not spec.rules.rounds_once and spec.rules.via is None:
        return
    coded = zip((mismatch.a, mismatch.b, [mismatch.c]), streams.formats(spec), strict=True)
    a, b, c = (np.asarray(_values(x, f), np.float64) for x, f in coded)
    start, half = float(c[0]), spec.rules.via is not None
    if half:
        a, b, start, spec = a[spec.k_order], b[spec.k_order], 0.0, spec.issued
    try:
        blocks = bits.blocks(a, b, start, spec=spec)
    except InputError as problem:  # NaN and Inf, the ignored bits of tf32, or an overflow before the last block
        yield f"  {problem}"
        return
    for i, block in enumerate(blocks):
        cut = f"F = {spec.F}: truncated below 2^{block.place}" if spec.rules.truncates else "not truncated"
        floor = " (E0)" if spec.rules.truncates and block.exponent == spec.E0 else ""
        yield f"  block {i + 1} of {len(blocks)}: largest exponent {block.exponent}{floor}, {cut}"
        for t in block.terms:
            kept = float(np.ldexp(float(t.kept), block.place))
            yield f"    {t.label.replace('$', ''):>24} exponent {t.exponent}, kept {kept:.10g}"
        final = f"rounded ({spec.final}) to a multiple of 2^{block.quantum}: {block.result:.10g}"
        yield f"    {'sum':>24} {block.sum:.10g}, {final}"
    if half:
        yield "  then c is added, rounded to nearest"
