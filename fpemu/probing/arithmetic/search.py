"""The search for the specifications consistent with an instruction's results, in rounds of probes.

Directed probes come first; then, while some operands distinguish two of the remaining specifications, such operands;
and random operands for which the instruction and the resulting specification differ, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.candidates import Structure, neighbours, preferred
from fpemu.probing.arithmetic.directed import next_round
from fpemu.probing.arithmetic.fit import Results
from fpemu.probing.arithmetic.instruction import Instruction
from fpemu.probing.arithmetic.probes import Probes
from fpemu.probing.arithmetic.separating import separating

_TURNS = 60  # largest number of rounds of separating probes
_QUIET = 3  # consecutive rounds without separating operands that end the search
_RIVALS = 10  # specifications compared with the preferred one in a round
_DIRECTED = 2  # rounds of directed probes after the first
Report = Callable[[str], None]


class Search:
    """The results so far, and the consistent specifications of each structure (`by_structure`)."""

    def __init__(
        self, instruction: Instruction, results: Results, possible: Sequence[Structure], report: Report
    ) -> None:
        self.instruction, self.results, self.report = instruction, results, report
        self._fit(possible)

    @property
    def specs(self) -> list[MmaSpec]:
        """The remaining specifications; of those that differ in F and E0 alone, a few."""
        return [spec for specs in self.by_structure.values() for spec in specs]

    def probe(self, more: Probes) -> bool:
        """Run further probes and eliminate specifications; return whether any of the probes was new."""
        more = more.without(self.results.probes)
        if len(more):
            self.results = self.results.extended(more, self.instruction.results(more))
            self._fit([s for s, specs in self.by_structure.items() if specs])
        return bool(len(more))

    def probe_directed(self) -> None:
        """Run directed probes near the last bits kept by the remaining specifications."""
        for _ in range(_DIRECTED):
            self.probe(next_round(self.results.formats, self.results.k, self.specs))

    def probe_separating(self) -> None:
        """Run probes that distinguish the preferred specification from the others, until none are found."""
        quiet, rivals = 0, self._rivals()
        for turn in range(_TURNS):
            if not rivals or quiet == _QUIET:
                break
            parts, quiet = -(-len(rivals) // _RIVALS), quiet + 1
            if self.probe(separating(self.results, [preferred(self.specs), *rivals[quiet % parts :: parts]], turn)):
                quiet, rivals = 0, self._rivals()

    def _fit(self, possible: Sequence[Structure]) -> None:
        self.by_structure = {s: self.results.fit(s) for s in possible}
        self.report(f"{len(self.results.probes):,} probes, {len(self.specs)} specifications fit")

    def _rivals(self) -> list[MmaSpec]:
        """The specifications beside the preferred one, and its consistent neighbours."""
        if not self.specs:
            return []
        spec = preferred(self.specs)
        rivals = [s for s in self.specs if s != spec]
        return rivals + [s for s in neighbours(spec) if s not in rivals and self.results.fits(s)]
