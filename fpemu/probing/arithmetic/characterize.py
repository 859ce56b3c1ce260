"""The arithmetic of a matrix instruction as a specification, from directed probes of a callable.

Directed probes come first: special values, sums at several levels, and the positions that are added in one rounding;
then sums near D's smallest number. Operands that distinguish the remaining specifications are searched for, while there
are any. Random operands verify the result; those that contradict it become probes, and the search continues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from fpemu import arguments
from fpemu import formats as known
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic import evidence
from fpemu.probing.arithmetic.evidence import Finding, nan_rule, specials
from fpemu.probing.arithmetic.fit import Results, preferred, structures
from fpemu.probing.arithmetic.probes import Execute, Formats, Instruction, Probes, at_the_smallest, first_round
from fpemu.probing.arithmetic.separating import separating

_ROUNDS = 4  # largest number of verifications; a further search follows all but the last
_TURNS = 60  # largest number of rounds of separating probes
_QUIET = 3  # consecutive rounds without separating operands that end a search
_RIVALS = 10  # specifications compared with the preferred one in a round


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
    report: Callable[[str], None] | None = None,
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
        Function called with a short text before every step.

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
    >>> result = characterize(lambda A, B, C: fpemu.mma.execute(A, B, C, spec, backend="numpy"),
    ...                      a="fp16", b="fp16", d="fp32", k=4, outputs=1000)
    >>> result.spec.block, result.spec.F, result.spec.final, result.mismatches
    (4, 23, 'RZ', 0)
    """
    k = arguments.integer("k", k, 1, 1024)
    outputs = arguments.integer("outputs", outputs, 0, 2**40)
    seed = arguments.integer("seed", seed, 0)
    if shape is not None:
        arguments.integers("shape", shape, 1, 2**20, length=2)
    if "int8" in (str(a), str(b)) or "int32" in (str(d), str(c)):
        integer = Instruction(execute, ("int8", "int8", "int32", "int32"), shape)
        row, shown, count, why = evidence.probe_integers(integer, (a, b, d), c, k, name)
        verified = (0, 0, why) if row is None else integer.verify(row, outputs, seed)[0]
        return Characterized(row, shown, count, *verified)
    formats: Formats = tuple(known.get(f) for f in (a, b, d if c is None else c, d))  # type: ignore[assignment]
    possible = structures(formats, k)
    if not possible:
        raise InputError(
            f"characterize: no arithmetic has A in {formats[0]}, B in {formats[1]}, C in {formats[2]}"
            f" and D in {formats[3]} with k = {k}"
        )
    report = report or (lambda text: None)
    instruction = Instruction(execute, formats, shape)
    special, directed = specials(formats, k), first_round(formats, k)
    report(f"running {len(special) + len(directed):,} probes")
    of_specials = instruction.results(special)
    D = np.concatenate([of_specials, instruction.results(directed)])
    results = Results(formats, k, special.join(directed), D, possible)
    results = _probed(results, instruction, at_the_smallest(formats, k, results.specs))
    results = _separated(results, instruction, report)
    code, payloads, nan_text = nan_rule(special, of_specials, formats)
    direct = evidence.direct(special, of_specials, formats, nan_text)
    if not results.specs or code is None:
        why = nan_text if results.specs else evidence.contradiction(results, possible)
        return Characterized(None, direct, len(results.probes), 0, 0, why)
    fields: dict[str, Any] = {"nan_code": code, "name": name, "evidence": "custom"}
    if payloads:
        fields["payloads"] = True
    for turn in range(_ROUNDS):
        spec = preferred(results.specs).replace(**fields)
        report(f"verifying {spec.arithmetic}, block {spec.block}, with {outputs:,} random outputs")
        # other operands in each round, so that none of the operands of the search verify its result
        verified, examples = instruction.verify(spec, outputs, (seed + turn) % 2**64)
        if not examples or turn == _ROUNDS - 1:
            break
        more = _probed(results, instruction, reduce(Probes.join, examples))
        if more.specs and preferred(more.specs).replace(**fields) == spec:  # as single probes they do not mismatch
            results = more
            break
        more = _separated(more, instruction, report)
        if not more.specs:  # no known arithmetic gives all these results
            break
        results = more
    specs = [s.replace(**fields) for s in results.specs]
    if spec.rules.truncates:
        top = results.reach(spec)
        specs += [] if top is None else [spec.replace(E0=top, name=name)]
    findings = (*evidence.fields(results, spec, specs), *direct)
    alike = tuple(s for s in dict.fromkeys(specs) if s != spec)
    return Characterized(spec, findings, len(results.probes), *verified, alike)


def _probed(results: Results, instruction: Instruction, more: Probes) -> Results:
    """With the results of further probes; the same object if none of them is new."""
    more = more.without(results.probes)
    return results.extended(more, instruction.results(more)) if len(more) else results


def _separated(results: Results, instruction: Instruction, report: Callable[[str], None]) -> Results:
    """With probes that distinguish the preferred specification from the others, until none are found."""
    quiet, rivals = 0, results.rivals()
    for turn in range(_TURNS):
        report(f"{len(results.probes):,} probes, {len(results.specs)} specifications fit")
        if not rivals or quiet == _QUIET:
            break
        parts, quiet = -(-len(rivals) // _RIVALS), quiet + 1
        some = [preferred(results.specs), *rivals[quiet % parts :: parts]]
        more = _probed(results, instruction, separating(results, some, turn))
        if more is not results:
            results, quiet, rivals = more, 0, more.rivals()
    return results
