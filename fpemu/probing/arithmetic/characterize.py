"""Characterising a matrix instruction from outside: its row of the catalog, found by directed probes alone.

Three rounds: sums at levels of exponents with specials; then what lies beside the last bit that the first round found,
and the positions that are added in one rounding; then, as long as specs are left that some operands tell apart, such
operands. Random operands come last and only verify.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats as known
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.gpu.emulation import codes, values
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic import evidence, integers
from fpemu.probing.arithmetic.aimed import separating
from fpemu.probing.arithmetic.candidates import preferred, structures
from fpemu.probing.arithmetic.evidence import Finding
from fpemu.probing.arithmetic.fit import Answers
from fpemu.probing.arithmetic.maker import Maker, levels
from fpemu.probing.arithmetic.pool import Formats, Pool
from fpemu.probing.arithmetic.specials import nan_rule, specials

_TURNS = 40  # of questions: each takes a spec away, or is the last
Execute = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Characterized:
    """What `characterize` found.

    Attributes
    ----------
    spec : MmaSpec or None
        The row found; None if the answers fit none.
    findings : tuple of Finding
        Each field with the probe that decides it and what it returned.
    probes : int
        Directed probes, each one entry of D.
    verified_outputs, mismatches : int
        Entries of D from random operands compared with the row's emulation, and how many differ.
    contradiction : str
        What fits no arithmetic known, or the first random operands that differ; empty if there is none.
    alike : tuple of MmaSpec
        Other rows that all probes agree with: no operands were found to which they and the row answer otherwise.
    """

    spec: MmaSpec | None
    findings: tuple[Finding, ...]
    probes: int
    verified_outputs: int
    mismatches: int
    contradiction: str = ""
    alike: tuple[MmaSpec, ...] = ()

    def __bool__(self) -> bool:
        return self.spec is not None and self.mismatches == 0


def characterize(
    execute: Execute, *, a: FloatFormat | str, b: FloatFormat | str, d: FloatFormat | str, k: int,
    c: FloatFormat | str | None = None, shape: tuple[int, int] | None = None, outputs: int = 2**16, seed: int = 0,
    name: str = "custom",
) -> Characterized:  # fmt: skip
    """Find the arithmetic of a matrix instruction from directed probes, and verify it with random operands.

    Parameters
    ----------
    execute : callable (A, B, C) -> D
        The instruction, D = A B + C: arrays as `fpemu.mma.execute` takes and returns them.
    a, b, d, c : FloatFormat or str
        Formats of A, B, D and C (default: D's); "int8" and "int32" for the integer instruction.
    k : int
        Its length in k.
    shape : (M, N), optional
        The only shape of D that `execute` takes. Default: any, and leading axes.
    outputs : int
        Entries of D to verify with random operands, at least; 0: none.
    seed : int
        Of the random operands.
    name : str
        Of the row.

    Raises
    ------
    InputError
        Formats that no spec has, a k that is not positive, or a D of another shape or dtype.

    Examples
    --------
    >>> import fpemu
    >>> spec = fpemu.mma.spec("V100", "fp16", "fp32")
    >>> found = characterize(lambda A, B, C: fpemu.mma.execute(A, B, C, spec, backend="numpy"),
    ...                      a="fp16", b="fp16", d="fp32", k=4, outputs=1000)
    >>> found.spec.block, found.spec.F, found.spec.final, found.mismatches
    (4, 23, 'RZ', 0)
    """
    if type(k) is not int or not 1 <= k <= 1024:
        raise InputError(f"characterize: k = {k!r} is not an integer from 1 to 1024")
    if outputs < 0:
        raise InputError(f"characterize: outputs = {outputs} is negative")
    if "int8" in (str(a), str(b)) or "int32" in (str(d), str(c)):
        return integers.characterize(execute, (a, b, d), k, shape, outputs, seed, name)
    formats: Formats = tuple(known.get(f) for f in (a, b, d if c is None else c, d))  # type: ignore[assignment]
    possible = structures(formats, k)
    if not possible:
        raise InputError(f"characterize: no arithmetic has A in {formats[0]}, B in {formats[1]}, C in {formats[2]}"
                         f" and D in {formats[3]} with k = {k}")  # fmt: skip
    ask = Asker(execute, formats, shape)
    special = specials(formats, k)
    given = ask(special)
    pool = _first(formats, k)
    answers = Answers(formats, k, special.join(pool), np.concatenate([given, ask(pool)]))
    found = {s: answers.fit(s) for s in possible}
    for turn in range(_TURNS):
        kept = [spec for specs in found.values() for spec in specs]
        more = _second(formats, k, kept) if turn < 2 else _more(answers, kept, turn)
        more = more.without(answers.pool)
        if not len(more) and (turn >= 2 or not kept):
            break
        if len(more):
            answers = answers.extended(more, ask(more))
            again = [s for s, specs in found.items() if specs]
            found = {s: answers.fit(s) for s in again}
    kept = [spec for specs in found.values() for spec in specs]
    code, payloads, nan_text = nan_rule(special, given, formats)
    direct = evidence.direct(special, given, formats, nan_text)
    probes = len(answers.pool)
    if not kept or code is None:
        why = evidence.contradiction(answers, possible) if not kept else nan_text
        return Characterized(None, direct, probes, 0, 0, why)
    fields: dict[str, Any] = {"nan_code": code, "name": name, "evidence": "custom"}
    if payloads:
        fields["payloads"] = True
    kept = [spec.replace(**fields) for spec in kept]
    spec = preferred(kept)
    if spec.arithmetic in ("truncated", "via-half"):
        top = answers.reach(spec)
        kept += [] if top is None else [spec.replace(E0=top, name=name)]
    findings = (*evidence.fields(answers, spec, kept), *direct)
    count, wrong, text = evidence.verify(ask, spec, outputs, seed)
    return Characterized(spec, findings, probes, count, wrong, text, tuple(s for s in dict.fromkeys(kept) if s != spec))


class Asker:
    """Puts probes and random operands to the instruction."""

    def __init__(self, execute: Execute, formats: Formats, shape: tuple[int, int] | None) -> None:
        self.execute, self.formats, self.shape = execute, formats, shape

    def __call__(self, pool: Pool) -> NDArray[Any]:
        """One code of D for each probe."""
        A, B, C = (values(x, f) for x, f in zip((pool.A, pool.B, pool.C), self.formats[:3], strict=True))
        if self.shape is None:
            return self.run(A[:, None, :], B[:, :, None], C[:, None, None]).reshape(-1)
        M, N = self.shape
        many, out = min(M, N), []
        for first in range(0, len(A), many):  # probes on the diagonal of D
            some = slice(first, first + many)
            i = np.arange(len(A[some]))
            a, b, c = np.zeros((M, A.shape[1]), A.dtype), np.zeros((B.shape[1], N), B.dtype), np.zeros((M, N), C.dtype)
            a[i], b[:, i], c[i, i] = A[some], B[some].T, C[some]
            out.append(self.run(a, b, c)[i, i])
        return np.concatenate(out)

    def run(self, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any]) -> NDArray[Any]:
        """Codes of D."""
        D = np.asarray(self.execute(A.copy(), B.copy(), C.copy()))  # which it may use as it likes
        fd = self.formats[3]
        if D.shape != C.shape or D.dtype != fd.dtype:
            raise InputError(f"the instruction returned {D.dtype} of shape {D.shape}, not {fd.dtype} of {C.shape}")
        return codes(D, fd)


@lru_cache(maxsize=16)
def _first(formats: Formats, k: int) -> Pool:
    maker = Maker(formats, k)
    fa, fb, _, fd = formats
    for e in levels(formats):
        maker.level(e)
    maker.alone()
    low, high = fa.emin + fb.emin, min(fa.emax + fb.emax, fd.emax - 2)
    maker.blocks(sorted({fd.precision, fd.precision - 1, 11, 14}), [(high, max(low, high - 40)), (0, max(low, -9))])
    maker.patterns((low, high))
    return maker.pool()


def _second(formats: Formats, k: int, found: list[MmaSpec]) -> Pool:
    """What separates the specs that are left, and their neighbours."""
    maker = Maker(formats, k)
    fa, fb, fc, fd = formats
    low, high = fa.emin + fb.emin, min(fa.emax + fb.emax, fd.emax - 2)
    least = fd.emin - fd.fraction_bits
    for kept in sorted({fd.fraction_bits if s.fraction_bits is None else s.fraction_bits for s in found}):
        for e in range(fd.emin - kept - 1, fd.emin - kept + 2):  # about D's smallest number
            if e >= low and kept != fd.fraction_bits:
                maker.level(e)
        floors = {s.E0 + d for s in found if s.E0 is not None for d in (-1, 0, 1)}
        ends = {low, least, fd.emin, fd.emin + 1, 0, high, fd.emax - 1, fd.emax}
        for e in sorted(e for e in ends | set(sorted(floors)[:6]) if fc.emin <= e <= max(fa.emax + fb.emax, fd.emax)):
            maker.around(e, kept)
    for s in found[:: max(1, len(found) // 4)]:
        kept = fd.fraction_bits if s.fraction_bits is None else s.fraction_bits
        tops = {high, 0, min(high, max(low, (s.E0 or low) + 1))} & set(range(low, high + 1))
        for e in sorted(tops | {e for e in (-kept // 2, least + kept // 2, high - 6) if low <= e <= high}):
            maker.growth(e, max(e, e if s.E0 is None else s.E0) - s.F)
        for unit in sorted({0, max(low, fc.emin - s.F), high - 1}):
            maker.carries(max(unit + s.F, -1000 if s.E0 is None else s.E0), unit)
        maker.blocks([kept + 1], [(e, e - s.F - d) for e in sorted(tops) for d in (-1, 0, 1)])
    return maker.pool()


def _more(answers: Answers, kept: list[MmaSpec], turn: int) -> Pool:
    """Aimed probes for the specs that are left and the neighbours of the plainest of them."""
    spec = preferred(kept) if kept else None
    rivals = [s for s in kept if s != spec]
    if spec is not None:
        rivals += [s for s in _neighbours(spec) if answers.fits(s)]
    if spec is None or not rivals:
        return answers.pool.take(np.empty(0, np.int64))
    return separating(answers, [spec, *rivals], turn)


def _neighbours(spec: MmaSpec) -> list[MmaSpec]:
    """The same with F, E0, fraction bits or final rounding a little otherwise."""
    if spec.arithmetic not in ("truncated", "via-half"):
        return []
    changes: list[dict[str, Any]] = [{"final": "RZ" if spec.final == "RNE" else "RNE"}]
    changes += [{"F": spec.F + d} for d in (-2, -1, 1, 2, 5, 9)]
    if spec.E0 is not None:
        changes += [{"E0": spec.E0 + d} for d in (-5, -2, -1, 1, 2, 5)] + [{"E0": None}]
        changes += [{"E0": spec.E0 + d, "F": spec.F + d} for d in (-3, -1, 1, 3)]
    if str(spec.d_format) == "fp32":
        bits = 23 if spec.fraction_bits is None else spec.fraction_bits
        changes += [{"fraction_bits": None if n == 23 else n} for n in (bits - 1, bits + 1) if 1 <= n <= 23]
    found = []
    for change in changes:
        try:
            found.append(spec.replace(**change))
        except InputError:
            continue
    return found
