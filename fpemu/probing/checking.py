"""Whether the order that was found is the order: random operands by the callable, and by an emulation with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fpemu import formats, mma
from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.mma.tree import Tree
from fpemu.probing.reveal import Revealed
from fpemu.probing.watching import Watched, longest, operands
from fpemu.rounding import round_to


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Random operands by the callable and by an emulation with the order found.

    Attributes
    ----------
    spec : MmaSpec
        The instruction that was emulated: of those that came into question, the one with the fewest differences.
    outputs, differ : int
    across : int
        Columns of D (rows, where N > M) that have a difference.
    at_differ : int
        Differences in the column (row) that was probed.
    """

    spec: MmaSpec
    outputs: int
    differ: int
    across: int
    at_differ: int


def compare(
    gemm: Watched, found: Revealed, specs: list[MmaSpec], *, inputs: formats.FloatFormat, out: str,
    shape: tuple[int, int], at: int = 0, seed: int = 4,
) -> Comparison:  # fmt: skip
    """Whether a product of random operands has the bits that the order found predicts."""
    M, N = shape
    A, B = operands(inputs, M, found.k, N, seed)
    D = gemm(A, B)
    rows, columns = _sample(M, at if N > M else 0), _sample(N, 0 if N > M else at)
    D, a, b = D[np.ix_(rows, columns)], A[rows], B[:, columns]
    best: Comparison | None = None
    for spec in specs:
        want = mma.gemm(a, b, None, spec, found.tree)
        want = np.asarray(round_to(want.astype(np.float64), out))
        with np.errstate(over="ignore"):
            wrong = want.astype(np.float64) != D.astype(np.float64)
        across = wrong.any(axis=1 if N > M else 0)
        probed = wrong[rows.index(at)] if N > M else wrong[:, columns.index(at)]
        one = Comparison(spec, D.size, int(wrong.sum()), int(across.sum()), int(probed.sum()))
        if best is None or one.differ < best.differ:
            best = one
        if not one.differ:
            break
    if best is None:
        raise InputError("check: no instruction is known that has these formats and blocks this long; give --hardware")
    return best


def _sample(n: int, at: int) -> list[int]:
    """At most 65 of n places: the first and last ones, some between, and one that must be there."""
    some = range(n) if n <= 64 else [*range(16), *np.linspace(16, n - 17, 32).astype(int).tolist(), *range(n - 16, n)]
    return sorted({*some, at})


def candidates(tree: Tree, inputs: formats.FloatFormat, accumulator: str, hardware: str | None) -> list[MmaSpec]:
    """The instructions a tree may be made of: those of the catalog (of a GPU's, if one is named) with long blocks
    enough, one of each arithmetic, shortest blocks first."""
    from fpemu import simt
    from fpemu.mma import catalog

    if inputs.name in simt.SPECS and inputs.name != "fp16":
        return [simt.SPECS[inputs.name]]
    block = longest(tree)
    arch = None if hardware is None else catalog.architecture(hardware)
    rows = [
        row for row in catalog.rows()
        if str(row.a_format) == str(inputs) and str(row.d_format) == accumulator and row.block >= block
        and arch in (None, row.architecture) and row.architecture not in ("ideal", "ascend910a")
    ]  # fmt: skip
    chosen: dict[Any, MmaSpec] = {}
    for row in sorted(rows, key=lambda row: row.block):
        chosen.setdefault((row.block, row.arithmetic, row.F, row.E0, row.final, row.fraction_bits), row)
    return list(chosen.values())
