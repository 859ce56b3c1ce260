"""Minimal reproducers of mismatches: operands drawn again from an index, reduced while the mismatch remains, and shown.

`shrink` needs the hardware: it tries smaller operands, a few hundred at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.gpu.instructions import run as instructions
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.plotting import bits

Execute = Callable[[Any, Any, Any, MmaSpec], Any]
Codes = tuple[int, ...]
_ROUNDS = 500
_BELOW = 16  # bit positions shown below the last bit kept


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

    def terms(self) -> int:
        """Number of nonzero products, plus one if c is nonzero."""
        return sum(bool(x and y) for x, y in zip(self.a, self.b, strict=True)) + bool(self.c)


def locate(spec: MmaSpec, kind: str, seed: int, index: int, hardware: int, *, n: int | None = None) -> Mismatch:
    """Draw the operands of an output of `fpemu.verification.instructions` again from its index."""
    tile = instructions.instruction(spec, n=n)
    test, rest = divmod(index, tile.m * tile.n)
    row, column = divmod(rest, tile.n)
    A, B, C = streams.operands(spec, kind, seed, test, 1, tile.m, tile.n)
    a, b, c = A[0, row], B[0, column], C[0, row, column]
    emulated = int(_results([(tuple(a.tolist()), tuple(b.tolist()), int(c))], spec, _by_numpy)[0])
    where = f"class {kind}, seed {seed}, test {test}, row {row}, column {column}"
    return Mismatch(spec, tuple(a.tolist()), tuple(b.tolist()), int(c), int(hardware), emulated, where)


def shrink(mismatch: Mismatch, execute: Execute) -> Mismatch:
    """Reduce the operands while hardware and emulation differ.

    First products and c are set to zero, then signs, fractions and exponents are simplified, one operand at a time,
    until no such step leaves a mismatch. `execute` is the hardware: `fpemu.gpu.execute`, or a stand-in.
    """
    for _ in range(_ROUNDS):
        candidates = list(_smaller(mismatch))
        if not candidates:
            break
        hardware = _results(candidates, mismatch.spec, execute)
        emulated = _results(candidates, mismatch.spec, _by_numpy)
        remaining = np.flatnonzero(hardware != emulated)
        if not remaining.size:
            break
        i = int(remaining[0])
        a, b, c = candidates[i]
        mismatch = replace(mismatch, a=a, b=b, c=c, hardware=int(hardware[i]), emulated=int(emulated[i]))
    return mismatch


def _by_numpy(A: Any, B: Any, C: Any, spec: MmaSpec) -> Any:
    return mma.execute(A, B, C, spec, backend="numpy")  # nothing to compile for a few outputs


def _results(candidates: list[tuple[Codes, Codes, int]], spec: MmaSpec, execute: Execute) -> NDArray[np.uint64]:
    """Codes of single outputs."""
    formats = streams.formats(spec)
    columns = [np.array([t[i] for t in candidates]).astype(mma_codes.code_dtype(f)) for i, f in enumerate(formats)]
    a, b, c = (mma_codes.values(x, f) for x, f in zip(columns, formats, strict=True))
    d = execute(a[:, None, :], b[:, :, None], c.reshape(-1, 1, 1), spec)
    return mma_codes.codes(np.asarray(d), spec.d_format).reshape(-1).astype(np.uint64)


def _smaller(f: Mismatch) -> Iterator[tuple[Codes, Codes, int]]:
    """Yield smaller operands, the greatest steps first."""
    K, nonzero = len(f.a), [k for k in range(len(f.a)) if f.a[k] or f.b[k]]
    size = len(nonzero)
    while size:  # whole ranges of products become zero
        for start in range(0, len(nonzero), size):
            zeroed = set(nonzero[start : start + size])
            a, b = (tuple(0 if k in zeroed else x[k] for k in range(K)) for x in (f.a, f.b))
            yield a, b, f.c
        size //= 2
    if f.c:
        yield f.a, f.b, 0
    fa, fb, fc = streams.formats(f.spec)
    for k in nonzero:
        for x in _simpler(f.a[k], fa):
            yield (*f.a[:k], x, *f.a[k + 1 :]), f.b, f.c
        for x in _simpler(f.b[k], fb):
            yield f.a, (*f.b[:k], x, *f.b[k + 1 :]), f.c
    for x in _simpler(f.c, fc):
        yield f.a, f.b, x


def _simpler(code: int, fmt: FloatFormat | str) -> Iterator[int]:
    """Yield simpler codes of a nonzero number: fewer bits, no sign, an exponent nearer to the exponent of 1."""
    if isinstance(fmt, str):
        width = 8 * np.dtype(fmt).itemsize
        value = code - (code >> (width - 1) << width)
        for smaller in {0, abs(value) // 2, abs(value) - 1} if value else ():
            if smaller != code:
                yield smaller
        return
    low = code & ((1 << fmt.padding) - 1)
    if low:
        yield code - low
    raw = code >> fmt.padding
    sign = raw >> (fmt.exponent_bits + fmt.fraction_bits)
    field, fraction = raw >> fmt.fraction_bits & ((1 << fmt.exponent_bits) - 1), raw & ((1 << fmt.fraction_bits) - 1)

    def build(sign: int, field: int, fraction: int) -> int:
        word = (sign << fmt.exponent_bits | field) << fmt.fraction_bits | fraction
        return word << fmt.padding | low

    special = not np.isfinite(float(fmt.decode(fmt.code_dtype.type(code))))
    if special:
        return
    if field and fraction:
        yield build(sign, field, 0)
    if fraction & (fraction - 1) or (fraction and field):
        yield build(sign, field, fraction & (fraction - 1))
        yield build(sign, field, fraction ^ 1 << (fraction.bit_length() - 1))
    if sign:
        yield build(0, field, fraction)
    if field and field != fmt.bias:
        yield build(sign, fmt.bias, fraction)
        yield build(sign, (field + fmt.bias + (field < fmt.bias)) // 2, fraction)


# --- showing
def describe(mismatch: Mismatch) -> str:
    """Show the operands, their bits and the effect of each rounding rule, as text."""
    spec = mismatch.spec
    fa, fb, fc = streams.formats(spec)
    d = spec.d_format
    lines = [str(spec), mismatch.where] if mismatch.where else [str(spec)]
    for k, (x, y) in enumerate(zip(mismatch.a, mismatch.b, strict=True)):
        if x or y:
            lines.append(f"  k = {k:2d}   a {_number(x, fa)}   b {_number(y, fb)}")
    lines += [f"  c        {_number(mismatch.c, fc)}"]
    lines += _rules(mismatch)
    lines += [f"  emulated {_number(mismatch.emulated, d)}", f"  hardware {_number(mismatch.hardware, d)}"]
    return "\n".join(lines)


def _number(code: int, fmt: FloatFormat | str) -> str:
    digits = mma_codes.code_dtype(fmt).itemsize * 2
    value = mma_codes.values(np.array([code]).astype(mma_codes.code_dtype(fmt)), fmt)[0]
    shown = str(int(value)) if isinstance(fmt, str) else f"{float(value):.10g}"
    return f"0x{code:0{digits}x} = {shown}"


def _rules(mismatch: Mismatch) -> list[str]:
    """Blocks of the instruction, if its arithmetic aligns once and all operands are finite."""
    spec = mismatch.spec
    if "final" not in spec.rules.parameters:
        return []
    fa, fb, fc = streams.formats(spec)
    coded = zip((mismatch.a, mismatch.b, (mismatch.c,)), (fa, fb, fc), strict=True)
    a, b, c = (
        np.asarray(mma_codes.values(np.array(x).astype(mma_codes.code_dtype(f)), f), np.float64) for x, f in coded
    )
    if not all(np.isfinite(x).all() for x in (a, b, c)):
        return ["  NaN and infinities: IEEE 754 on the exact sum"]
    start, half = float(c[0]), spec.rules.via is not None
    if half:
        a, b, start, spec = a[spec.k_order], b[spec.k_order], 0.0, spec.issued
    try:
        blocks = bits.blocks(a, b, start, spec=spec)
    except InputError as problem:  # the ignored bits of tf32, or an overflow before the last block
        return [f"  {problem}"]
    lines = [line for number, block in enumerate(blocks) for line in _block(block, number, len(blocks))]
    return [*lines, "  then c is added, rounded to nearest"] if half else lines


def _block(block: bits.Block, number: int, of: int) -> list[str]:
    """One block as rows of bits; a bar marks the last bit kept."""
    spec = block.spec
    floor = " (the minimum alignment exponent E0)" if spec.rules.truncates and block.exponent == spec.E0 else ""
    cut = f"F = {spec.F}: truncated below 2^{block.place}" if spec.rules.truncates else "not truncated"
    lines = [f"  block {number + 1} of {of}: largest exponent {block.exponent}{floor}, {cut}"]
    rows = [(t.label.replace("$", ""), t.significand, t.place, f"exponent {t.exponent}") for t in block.terms]
    rows.append(("sum", block.total, block.place, f"{block.sum:.10g}"))
    spans = [(abs(s), p) for _, s, p, _ in rows if s]
    high = max((p + s.bit_length() for s, p in spans), default=block.place + 1)
    low = max(min((p for _, p in spans), default=block.place), block.place - _BELOW)
    for label, significand, place, note in rows:
        bits = "".join(
            _bit(abs(significand), place, at) + ("|" if at == block.place else "")
            for at in range(high - 1, low - 1, -1)
        )
        below = "..." if significand and abs(significand) & ((1 << max(low - place, 0)) - 1) else ""
        lines.append(f"    {label:>24} {'-' if significand < 0 else '+'}{bits}{below}  {note}")
    lines.append(f"    rounded ({spec.final}) to a multiple of 2^{block.quantum}: {block.result:.10g}")
    return lines


def _bit(magnitude: int, place: int, at: int) -> str:
    if not magnitude or at < place or at >= place + magnitude.bit_length():
        return "."
    return str(magnitude >> (at - place) & 1)
