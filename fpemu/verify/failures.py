"""An output on which hardware and emulation differ: found again from its index, made small, and shown.

`shrink` needs the hardware: it tries smaller operands, a few hundred at a time, and keeps what still differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import bitpicture, mma
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.gpu.instructions import run as instructions
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.mma.readable import half_spec

Execute = Callable[[Any, Any, Any, MmaSpec], Any]
Codes = tuple[int, ...]
_ROUNDS = 500
_BELOW = 16  # places of a picture below the grid


@dataclass(frozen=True)
class Failure:
    """One output: the codes of its row of A, column of B and entry of C, and the two results."""

    spec: MmaSpec
    a: Codes
    b: Codes
    c: int
    hardware: int
    emulated: int
    where: str = ""

    def terms(self) -> int:
        """Products that are not zero, and c if it is not."""
        return sum(bool(x and y) for x, y in zip(self.a, self.b, strict=True)) + bool(self.c)


def locate(spec: MmaSpec, kind: str, seed: int, index: int, hardware: int, *, n: int | None = None) -> Failure:
    """The operands of an output of `fpemu.verify.instructions`, drawn again from its index."""
    tile = instructions.instruction(spec, n=n)
    test, rest = divmod(index, tile.m * tile.n)
    row, column = divmod(rest, tile.n)
    A, B, C = streams.operands(spec, kind, seed, test, 1, tile.m, tile.n)
    a, b, c = A[0, row], B[0, column], C[0, row, column]
    emulated = int(_results([(tuple(a.tolist()), tuple(b.tolist()), int(c))], spec, _readable)[0])
    where = f"class {kind}, seed {seed}, test {test}, row {row}, column {column}"
    return Failure(spec, tuple(a.tolist()), tuple(b.tolist()), int(c), int(hardware), emulated, where)


def shrink(failure: Failure, execute: Execute) -> Failure:
    """Smaller operands on which the two still differ.

    First products and c go to zero, then signs, fractions and exponents become simpler, one operand at a time, until
    no such step leaves a difference.

    Parameters
    ----------
    failure : Failure
    execute : callable
        The hardware: `fpemu.gpu.execute`, or what stands for it.
    """
    for _ in range(_ROUNDS):
        tries = list(_smaller(failure))
        if not tries:
            break
        hardware = _results(tries, failure.spec, execute)
        emulated = _results(tries, failure.spec, _readable)
        differ = np.flatnonzero(hardware != emulated)
        if not differ.size:
            break
        i = int(differ[0])
        a, b, c = tries[i]
        failure = replace(failure, a=a, b=b, c=c, hardware=int(hardware[i]), emulated=int(emulated[i]))
    return failure


def _readable(A: Any, B: Any, C: Any, spec: MmaSpec) -> Any:
    return mma.execute(A, B, C, spec, backend="numpy")  # nothing to compile for a few outputs


def _results(tries: list[tuple[Codes, Codes, int]], spec: MmaSpec, execute: Execute) -> NDArray[np.uint64]:
    """The codes of single outputs."""
    formats = streams.formats(spec)
    columns = [np.array([t[i] for t in tries]).astype(mma_codes.code_dtype(f)) for i, f in enumerate(formats)]
    a, b, c = (mma_codes.values(x, f) for x, f in zip(columns, formats, strict=True))
    d = execute(a[:, None, :], b[:, :, None], c.reshape(-1, 1, 1), spec)
    return mma_codes.codes(np.asarray(d), spec.d_format).reshape(-1).astype(np.uint64)


def _smaller(f: Failure) -> Iterator[tuple[Codes, Codes, int]]:
    """Candidates, the greatest steps first; each is smaller than `f` in what `_simpler` counts."""
    K, there = len(f.a), [k for k in range(len(f.a)) if f.a[k] or f.b[k]]
    size = len(there)
    while size:  # whole stretches of products go
        for start in range(0, len(there), size):
            gone = set(there[start : start + size])
            a, b = (tuple(0 if k in gone else x[k] for k in range(K)) for x in (f.a, f.b))
            yield a, b, f.c
        size //= 2
    if f.c:
        yield f.a, f.b, 0
    fa, fb, fc = streams.formats(f.spec)
    for k in there:
        for x in _simpler(f.a[k], fa):
            yield (*f.a[:k], x, *f.a[k + 1 :]), f.b, f.c
        for x in _simpler(f.b[k], fb):
            yield f.a, (*f.b[:k], x, *f.b[k + 1 :]), f.c
    for x in _simpler(f.c, fc):
        yield f.a, f.b, x


def _simpler(code: int, fmt: FloatFormat | str) -> Iterator[int]:
    """Simpler codes of a number that is not zero: fewer bits, no sign, an exponent nearer that of 1."""
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
def describe(failure: Failure) -> str:
    """The operands, their bits and what each rule made of them, as text."""
    spec = failure.spec
    fa, fb, fc = streams.formats(spec)
    d = spec.d_format
    lines = [str(spec), failure.where] if failure.where else [str(spec)]
    for k, (x, y) in enumerate(zip(failure.a, failure.b, strict=True)):
        if x or y:
            lines.append(f"  k = {k:2d}   a {_number(x, fa)}   b {_number(y, fb)}")
    lines += [f"  c        {_number(failure.c, fc)}"]
    lines += _rules(failure)
    lines += [f"  emulated {_number(failure.emulated, d)}", f"  hardware {_number(failure.hardware, d)}"]
    return "\n".join(lines)


def _number(code: int, fmt: FloatFormat | str) -> str:
    digits = mma_codes.code_dtype(fmt).itemsize * 2
    value = mma_codes.values(np.array([code]).astype(mma_codes.code_dtype(fmt)), fmt)[0]
    shown = str(int(value)) if isinstance(fmt, str) else f"{float(value):.10g}"
    return f"0x{code:0{digits}x} = {shown}"


def _rules(failure: Failure) -> list[str]:
    """The blocks of the instruction, if its arithmetic aligns once and nothing is infinite."""
    spec = failure.spec
    if spec.arithmetic not in ("truncated", "exact", "via-half"):
        return []
    fa, fb, fc = streams.formats(spec)
    given = zip((failure.a, failure.b, (failure.c,)), (fa, fb, fc), strict=True)
    a, b, c = (
        np.asarray(mma_codes.values(np.array(x).astype(mma_codes.code_dtype(f)), f), np.float64) for x, f in given
    )
    if not all(np.isfinite(x).all() for x in (a, b, c)):
        return ["  NaN and infinities: IEEE's rules on the exact sum"]
    k, start = np.arange(spec.k), float(c[0])
    half = spec.arithmetic == "via-half"
    if half:
        turn = np.concatenate([k[k % 4 < 2], k[k % 4 >= 2]])
        a, b, start, spec = a[turn], b[turn], 0.0, half_spec(spec)
    try:
        blocks = bitpicture.blocks(a, b, start, spec=spec)
    except InputError as problem:  # the ignored bits of tf32, or an overflow before the last block
        return [f"  {problem}"]
    lines = [line for number, block in enumerate(blocks) for line in _block(block, number, len(blocks))]
    return [*lines, "  then c is added, rounded to nearest"] if half else lines


def _block(block: bitpicture.Block, number: int, of: int) -> list[str]:
    """One block as rows of bits: a bar where the grid ends."""
    spec = block.spec
    floor = " (the floor E0)" if spec.arithmetic == "truncated" and block.exponent == spec.E0 else ""
    cut = f"F = {spec.F}: cut below 2^{block.place}" if spec.arithmetic == "truncated" else "nothing cut"
    lines = [f"  block {number + 1} of {of}: largest exponent {block.exponent}{floor}, {cut}"]
    rows = [(t.label.replace("$", ""), t.significand, t.place, f"exponent {t.exponent}") for t in block.terms]
    rows.append(("sum", block.total, block.place, f"{block.sum:.10g}"))
    there = [(abs(s), p) for _, s, p, _ in rows if s]
    high = max((p + s.bit_length() for s, p in there), default=block.place + 1)
    low = max(min((p for _, p in there), default=block.place), block.place - _BELOW)
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
