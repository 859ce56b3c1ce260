"""The search for the specs that give an instruction's answers: rounds of probes, each made for what the last one left.

Directed probes first; then, as long as some operands tell two of the specs left apart, such operands; and operands
that the instruction was found to answer otherwise than the spec found, where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic import questions
from fpemu.probing.arithmetic.aimed import separating
from fpemu.probing.arithmetic.candidates import Structure, preferred
from fpemu.probing.arithmetic.fit import Answers
from fpemu.probing.arithmetic.pool import Pool

_TURNS = 60  # of aimed probes: each takes a spec away, or finds nothing
_QUIET = 3  # turns that find nothing, with operands drawn anew, before the search ends
_RIVALS = 10  # specs told from the plainest in one turn
_DIRECTED = 2  # rounds of directed probes after the first
Ask = Callable[[Pool], NDArray[Any]]
Report = Callable[[str], None]


class Search:
    """Probes put to an instruction so far, and the specs that give all its answers, by structure."""

    def __init__(self, ask: Ask, answers: Answers, possible: Sequence[Structure], report: Report) -> None:
        self.ask, self.answers, self.report = ask, answers, report
        self._fit(possible)

    @property
    def kept(self) -> list[MmaSpec]:
        """The specs left: of those that differ in F and E0 alone, a few."""
        return [spec for specs in self.found.values() for spec in specs]

    def put(self, more: Pool) -> bool:
        """Further probes, and the specs that give their answers too; whether there were any."""
        more = more.without(self.answers.pool)
        if len(more):
            self.answers = self.answers.extended(more, self.ask(more))
            self._fit([s for s, specs in self.found.items() if specs])
        return bool(len(more))

    def directed(self) -> None:
        """What lies beside the last places that the first round found."""
        for _ in range(_DIRECTED):
            self.put(questions.second(self.answers.formats, self.answers.k, self.kept))

    def aimed(self) -> None:
        """Operands that tell specs apart, until none are met: each turn tells a few from the plainest."""
        quiet, rivals = 0, self._rivals()
        for turn in range(_TURNS):
            if not rivals or quiet == _QUIET:
                break
            parts, quiet = -(-len(rivals) // _RIVALS), quiet + 1
            if self.put(separating(self.answers, [preferred(self.kept), *rivals[quiet % parts :: parts]], turn)):
                quiet, rivals = 0, self._rivals()

    def _fit(self, possible: Sequence[Structure]) -> None:
        self.found = {s: self.answers.fit(s) for s in possible}
        self.report(f"{len(self.answers.pool):,} probes, {len(self.kept)} rows fit")

    def _rivals(self) -> list[MmaSpec]:
        """The specs that are left beside the plainest, and its neighbours that give all answers."""
        if not self.kept:
            return []
        spec = preferred(self.kept)
        rivals = [s for s in self.kept if s != spec]
        return rivals + [s for s in _neighbours(spec) if s not in rivals and self.answers.fits(s)]


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
