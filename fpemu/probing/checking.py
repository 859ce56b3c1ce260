"""The summation tree of an unknown GEMM: revealed, compared with an emulation, and contradictions in one line."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, simt
from fpemu.errors import InputError, entries
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec, catalog
from fpemu.mma.tree import Tree
from fpemu.probing.callables import CallError, CheckedCallable
from fpemu.probing.naming import longest_block, name_order
from fpemu.probing.probes import scale
from fpemu.probing.reveal import Revealed, reveal
from fpemu.rounding import round_to

Array = NDArray[Any]


@dataclass(frozen=True)
class Comparison:
    """Random operands multiplied by a GEMM and by an emulation in the revealed order."""

    spec: MmaSpec  # of the possible instructions, the one with the fewest mismatches
    outputs: int
    mismatches: int
    across: int  # columns of D (rows, if N > M) with a mismatch
    at_probed: int  # mismatches in the column (row) that was probed


@dataclass(frozen=True)
class Target:
    """A GEMM with an unknown order."""

    gemm: CheckedCallable
    shape: tuple[int, int, int]  # M, N, K of every call
    inputs: FloatFormat
    result: str  # format of D
    accumulator: str  # format of the accumulator
    spec: MmaSpec | None = None  # the instruction, if it is known
    hardware: str | None = None
    at: int = 0  # the column of D that is read (the row, if N > M)

    def reveal(self) -> Revealed:
        """Reveal the order.

        Raises
        ------
        InputError
            No order is found; the message names the cause if it can be identified: results that change from call to
            call or from position to position, sums that are exact, flushed subnormal inputs.
        """
        (M, N, K), name = self.shape, self.gemm.name
        A, B = self.operands(M, N, 1)
        D = self.gemm.repeat(A, B).values
        if not np.isfinite(D).all():
            raise InputError(f"{name} returns Inf or NaN for random operands: {entries(~np.isfinite(D), D)}")
        few = np.zeros((M, K), A.dtype)
        few[:, : min(K, 8)] = unit = self._scale()[1]
        total = self.gemm(few, np.ones((K, N), A.dtype))[0, 0]
        if total != min(K, 8) * unit:
            raise InputError(
                f"{name} returns {total:g} for the sum of {min(K, 8)} products of {unit:g}, the probe's units: it"
                " flushes subnormal numbers, or rounds its inputs"
            )
        out = self.result if self.result != self.accumulator else None
        try:
            revealed = reveal(self.gemm, K, self.spec, fmt=self.inputs.name, out=out, shape=(M, N), at=self.at)
        except CallError:
            raise
        except InputError as problem:
            raise InputError(f"{name}: {self._contradiction() or problem}") from problem
        if self.spec is None and self.inputs.name not in ("fp32", "fp64"):  # its blocks are as long as the longest
            order = name_order(revealed.tree, K, self.instruction(revealed))
            revealed = dataclasses.replace(revealed, order=order or revealed.order)
        return revealed

    def instruction(self, revealed: Revealed) -> MmaSpec:
        """The instruction; if it is unknown, one with the longest of the revealed blocks."""
        block = longest_block(revealed.tree)
        return self.spec or MmaSpec(self.inputs, self.inputs, "fp32", k=block, block=block, F=25)

    def _scale(self) -> tuple[float, float]:
        return scale(self.inputs, flushed=self.spec is not None and self.spec.arithmetic == "flushed")

    def operands(self, M: int, N: int, seed: int) -> tuple[Array, Array]:
        """Normal random operands (M, K) and (K, N)."""
        rng, K = np.random.default_rng(seed), self.shape[2]
        dtype = {"fp16": np.float16, "fp64": np.float64}.get(self.inputs.name, np.float32)
        A, B = (np.asarray(round_to(rng.standard_normal(s), self.inputs)).astype(dtype) for s in ((M, K), (K, N)))
        return A, B

    def _contradiction(self) -> str | None:
        """The property of the results that fits no tree, if it can be identified."""
        place = self.disagreement()
        if place:
            axis = "rows" if place[0] else "columns"
            return (
                f"{axis} of D disagree: for equal operands D[0, 0] and D{place} differ, so the order depends on the"
                f" position; probe a shape with fewer {axis}"
            )
        M, N, K = self.shape
        if K < 4:
            return None
        large, unit = self._scale()
        A, B = self.operands(M, N, 2)
        for i, j in dict.fromkeys([(0, K - 1), (0, 1), (K // 2, K - 1), (0, K // 2)]):
            between = [q for q in range(K) if q not in (i, j)][:: max(1, K // 8)][:8]
            A[:], B[:] = 0, 1
            A[:, between] = unit
            A[:, i], A[:, j] = large, -large
            if self.gemm(A, B)[0, 0] != len(between) * unit:
                return None
        return (
            f"no unit is lost beside {large:g} and {-large:g}: the sums are exact, compensated or in a format wider"
            " than the results, and show no order"
        )

    def disagreement(self) -> list[int]:
        """A position of D at which equal operands give another sum than at [0, 0]; [] if none is found."""
        M, N, _ = self.shape
        for seed in range(3, 9) if max(M, N) > 1 else ():
            A, B = self.operands(1, 1, seed)
            D = self.gemm(np.repeat(A, M, axis=0), np.repeat(B, N, axis=1)).astype(np.float64)
            for differ in (D[0, 0] != D[:, :1], D[0, 0] != D[:1], D[0, 0] != D):  # a row or a column first
                if differ.any():
                    return [int(x) for x in np.argwhere(differ)[0]]
        return []

    def compare(self, revealed: Revealed, seed: int = 4) -> Comparison:
        """Compare a product of random operands with its emulation in the revealed order."""
        M, N, _ = self.shape
        A, B = self.operands(M, N, seed)
        D = self.gemm(A, B)
        rows, columns = _sample(M, self.at if N > M else 0), _sample(N, 0 if N > M else self.at)
        D, a, b = D[np.ix_(rows, columns)].astype(np.float64), A[rows], B[:, columns]
        best: Comparison | None = None
        for spec in self._specs(revealed.tree):
            expected = mma.gemm(a, b, None, spec, revealed.tree).astype(np.float64)
            with np.errstate(over="ignore"):
                wrong = np.asarray(round_to(expected, self.result)).astype(np.float64) != D
            across = wrong.any(axis=1 if N > M else 0)
            probed = wrong[rows.index(self.at)] if N > M else wrong[:, columns.index(self.at)]
            comparison = Comparison(spec, D.size, int(wrong.sum()), int(across.sum()), int(probed.sum()))
            if best is None or comparison.mismatches < best.mismatches:
                best = comparison
            if not comparison.mismatches:
                break
        if best is None:
            raise InputError("check: no known instruction has these formats and blocks of this length; give --hardware")
        return best

    def _specs(self, tree: Tree) -> list[MmaSpec]:
        """The possible instructions: the given one, then those of the catalogue with sufficiently long blocks.

        One of each arithmetic, shortest blocks first; of the hardware alone, if it is known.
        """
        first = [] if self.spec is None else [self.spec]
        block = longest_block(tree)
        if first and block == 1:  # without blocks, their arithmetic has no effect
            return first
        if self.inputs.name in ("fp32", "fp64"):
            rows = [simt.SPECS[self.inputs.name]]
        else:
            arch = None if self.hardware is None else catalog.architecture(self.hardware)
            rows = [
                row
                for row in catalog.rows()
                if str(row.a_format) == str(self.inputs)
                and str(row.d_format) == self.accumulator
                and row.block >= block
                and arch in (None, row.architecture)
                and row.architecture not in ("ideal", "ascend910a")
            ]
        chosen: dict[Any, MmaSpec] = {}
        for row in sorted(rows, key=lambda row: row.block):
            chosen.setdefault((row.block, row.arithmetic, row.F, row.E0, row.final, row.fraction_bits), row)
        specs = first + [spec for spec in chosen.values() if spec != self.spec]
        return specs[:1] if block == 1 else specs


def _sample(n: int, at: int) -> list[int]:
    """At most 65 of n indices: the first and last ones, some between, and a required one."""
    some = range(n) if n <= 64 else [*range(16), *np.linspace(16, n - 17, 32).astype(int).tolist(), *range(n - 16, n)]
    return sorted({*some, at})
