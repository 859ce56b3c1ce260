"""Characterising a matrix instruction from outside: its row of the catalog, found by directed probes alone.

Three rounds: sums at levels of exponents with specials; then what lies beside the last bit that the first round found,
and the positions that are added in one rounding; then, as long as specs are left that some operands tell apart, such
operands. Random operands come last and verify; those that the row found does not answer are asked as probes, and the
search goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import arguments
from fpemu import formats as known
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.codes import codes, values
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic import evidence, integers, questions
from fpemu.probing.arithmetic.candidates import preferred, structures
from fpemu.probing.arithmetic.evidence import Finding
from fpemu.probing.arithmetic.fit import Answers
from fpemu.probing.arithmetic.pool import Formats, Pool
from fpemu.probing.arithmetic.search import Report, Search
from fpemu.probing.arithmetic.specials import nan_rule, specials
from fpemu.probing.arithmetic.verifying import Verified, verify

_ROUNDS = 4  # of verifications, all but the last followed by a further search
Execute = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Characterized:
    """Arithmetic of an instruction, found by `characterize`.

    Attributes
    ----------
    spec : MmaSpec or None
        Specification; None if no specification fits the results.
    findings : tuple of Finding
        Each field with the probe that decides it and its result.
    probes : int
        Number of probes, each one entry of D.
    verified_outputs, mismatches : int
        Entries of D from random operands compared with the specification's emulation, and those that mismatch. If
        mismatches led to another specification, the entries compared with that one.
    contradiction : str
        The result that fits no specification, or the first mismatching random operands; empty if there is none.
    alike : tuple of MmaSpec
        Other specifications that all probes agree with: no operands were found for which their results are different.
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


@arguments.checked
def characterize(
    execute: Execute,
    *,
    a: FloatFormat | str,
    b: FloatFormat | str,
    d: FloatFormat | str,
    k: int,
    c: FloatFormat | str | None = None,
    shape: tuple[int, int] | None = None,
    outputs: int = 2**16,
    seed: int = 0,
    name: str = "custom",
    report: Report | None = None,
) -> Characterized:
    """Find the arithmetic of a matrix instruction from directed probes, and verify it with random operands.

    Parameters
    ----------
    execute : callable (A, B, C) -> D
        The instruction, D = A B + C: arrays as `fpemu.mma.execute` takes and returns them.
    a, b, d : FloatFormat or str
        Formats of A, B and D; "int8" and "int32" for the integer instruction.
    k : int
        Length of the instruction in k.
    c : FloatFormat or str, optional
        Format of C. Default: the format of D.
    shape : (M, N), optional
        The only shape of D that `execute` takes. Default: any, and leading axes.
    outputs : int
        Least number of entries of D to verify with random operands; 0: none.
    seed : int
        Seed of the random operands.
    name : str
        Name of the specification.
    report : callable (text), optional
        Function called with a short line before every step.

    Returns
    -------
    Characterized
        The specification with its evidence.

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
    arguments.integer("k", k, 1, 1024)
    arguments.integer("outputs", outputs, 0, 2**40)
    arguments.integer("seed", seed, 0)
    if shape is not None:
        arguments.integers("shape", shape, 1, 2**20, length=2)
    if "int8" in (str(a), str(b)) or "int32" in (str(d), str(c)):
        return integers.characterize(execute, (a, b, d), k, shape, outputs, seed, name)
    formats: Formats = tuple(known.get(f) for f in (a, b, d if c is None else c, d))  # type: ignore[assignment]
    possible = structures(formats, k)
    if not possible:
        raise InputError(
            f"characterize: no arithmetic has A in {formats[0]}, B in {formats[1]}, C in {formats[2]}"
            f" and D in {formats[3]} with k = {k}"
        )
    told = report or (lambda text: None)
    ask = Asker(execute, formats, shape)
    special, pool = specials(formats, k), questions.first(formats, k)
    told(f"asking {len(special) + len(pool):,} probes")
    given = ask(special)
    answers = Answers(formats, k, special.join(pool), np.concatenate([given, ask(pool)]))
    search = Search(ask, answers, possible, told)
    search.directed()
    search.aimed()
    code, payloads, nan_text = nan_rule(special, given, formats)
    direct = evidence.direct(special, given, formats, nan_text)
    if not search.kept or code is None:
        why = evidence.contradiction(search.answers, possible) if not search.kept else nan_text
        return Characterized(None, direct, len(search.answers.pool), 0, 0, why)
    fields: dict[str, Any] = {"nan_code": code, "name": name, "evidence": "custom"}
    if payloads:
        fields["payloads"] = True
    spec, held = _verified(ask, search, fields, outputs, seed, told)
    answers = search.answers
    kept = [s.replace(**fields) for s in search.kept]
    if spec.arithmetic in ("truncated", "via-half"):
        top = answers.reach(spec)
        kept += [] if top is None else [spec.replace(E0=top, name=name)]
    findings = (*evidence.fields(answers, spec, kept), *direct)
    alike = tuple(s for s in dict.fromkeys(kept) if s != spec)
    return Characterized(spec, findings, len(answers.pool), held.outputs, held.mismatches, held.first, alike)


def _verified(
    ask: Asker, search: Search, fields: dict[str, Any], outputs: int, seed: int, told: Report
) -> tuple[MmaSpec, Verified]:
    """The plainest spec left and what random operands say of it; what they contradict is asked, and the search goes on.

    Each time the random operands are others, so that none that the spec was found with verify it.
    """
    for turn in range(_ROUNDS):
        spec = preferred(search.kept).replace(**fields)
        told(f"verifying {spec.arithmetic}, block {spec.block}, with {outputs:,} random outputs")
        held = verify(ask, spec, outputs, (seed + turn) % 2**64)
        if not held.mismatches or turn == _ROUNDS - 1:
            break
        before = search.answers, search.found
        search.put(reduce(Pool.join, held.differing))
        if search.kept and preferred(search.kept).replace(**fields) == spec:  # alone they are answered as by the spec
            break
        search.aimed()
        if not search.kept:  # no arithmetic known gives all these answers
            search.answers, search.found = before
            break
    return spec, held


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
