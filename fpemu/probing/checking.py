"""The tree of a callable that nothing is known of: found, what contradicts it said in a line, checked with random
operands by the callable and by an emulation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma
from fpemu.errors import InputError, entries
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.tree import Tree
from fpemu.probing.callables import CallError, CheckedCallable
from fpemu.probing.naming import chains_of, name_order
from fpemu.probing.reveal import Revealed, reveal
from fpemu.rounding import round_to


def find(
    gemm: CheckedCallable,
    k: int,
    spec: MmaSpec | None,
    *,
    fmt: str,
    out: str | None,
    shape: tuple[int, int],
    at: int = 0,
) -> Revealed:
    """`fpemu.probing.reveal` of a callable nothing is known of.

    Raises
    ------
    InputError
        As `reveal`, with what the callable does instead of adding by a tree where that can be told: results that differ
        from call to call or from place to place, sums that are exact.
    """
    inputs = formats.get(fmt)
    M, N = shape
    A, B = operands(inputs, M, k, N, 1)
    first = gemm.repeat(A, B).values
    if not np.isfinite(first).all():
        raise InputError(
            f"{gemm.name} returns what is not finite for random operands: {entries(~np.isfinite(first), first)}"
        )
    few = np.zeros((M, k), A.dtype)
    few[:, : min(k, 8)] = unit = _scale(inputs)[1]
    left = gemm(few, np.ones((k, N), A.dtype))[0, 0]
    if left != min(k, 8) * unit:
        raise InputError(
            f"{gemm.name} makes {left:g} of {min(k, 8)} products of {unit:g}, the probe's units: it flushes subnormal"
            " numbers, or rounds its inputs"
        )
    try:
        found = reveal(gemm, k, spec, fmt=fmt, out=out, shape=shape, at=at)
    except CallError:
        raise
    except InputError as problem:
        why = contradiction(gemm, k, inputs, shape)
        raise InputError(f"{gemm.name}: {why or problem}") from problem
    if spec is not None and longest(found.tree) > spec.block:
        raise InputError(
            f"{gemm.name} adds {longest(found.tree)} products at once, and a block of {spec} takes {spec.block}: it is"
            " another instruction, or its order does not show"
        )
    if spec is None:  # the names above are those of blocks as long as can be
        found = dataclasses.replace(found, order=named(found.tree, k, inputs) or found.order)
    return found


def _scale(inputs: formats.FloatFormat) -> tuple[float, float]:
    """M and the unit of the probes, as in `fpemu.probing.probes`."""
    span = 200 if inputs.name == "fp64" else 60
    return 2.0 ** min(inputs.emax, span), 2.0 ** max(inputs.emin - inputs.precision + 1, -span)


def operands(fmt: formats.FloatFormat, M: int, K: int, N: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Normal random numbers of a format, in the dtype in which the callable gets them."""
    rng = np.random.default_rng(seed)
    dtype = {"fp16": np.float16, "fp64": np.float64}.get(fmt.name, np.float32)
    A, B = (np.asarray(round_to(rng.standard_normal(shape), fmt)).astype(dtype) for shape in ((M, K), (K, N)))
    return A, B


def longest(tree: Tree) -> int:
    """Positions of the longest block of a tree's instructions; 1 where there are none."""
    blocks = (len(b) for chain in chains_of(tree) if chain.kind == "instruction" for b in chain.blocks)
    return max(blocks, default=1)


def named(tree: Tree, k: int, inputs: formats.FloatFormat) -> KOrder | None:
    """The order that a tree is where the longest of its blocks is the instruction's."""
    return None if inputs.name in ("fp32", "fp64") else name_order(tree, k, plain(inputs, longest(tree)))


def plain(inputs: formats.FloatFormat, block: int) -> MmaSpec:
    """An instruction with blocks of a length, of which nothing else is known."""
    return MmaSpec(inputs, inputs, "fp32", k=block, block=block, F=25)


def contradiction(gemm: CheckedCallable, k: int, inputs: formats.FloatFormat, shape: tuple[int, int]) -> str | None:
    """What in a callable's answers fits no tree, or None where that does not show."""
    place = disagreement(gemm, k, inputs, shape)
    if place:
        axis = "rows" if place[0] else "columns"
        return (
            f"{axis} of D disagree: for equal operands D[0, 0] and D{place} differ, so the order depends on the place;"
            f" probe a shape with fewer {axis}"
        )
    if k < 4:
        return None
    large, unit = _scale(inputs)
    A, B = operands(inputs, shape[0], k, shape[1], 2)
    for i, j in dict.fromkeys([(0, k - 1), (0, 1), (k // 2, k - 1), (0, k // 2)]):
        between = [q for q in range(k) if q not in (i, j)][:: max(1, k // 8)][:8]
        A[:], B[:] = 0, 1
        A[:, between] = unit
        A[:, i], A[:, j] = large, -large
        if gemm(A, B)[0, 0] != len(between) * unit:
            return None
    return (
        f"no unit is lost beside {large:g} and {-large:g}: the sums are exact, compensated or in a format wider than"
        " the results, and show no order"
    )


def disagreement(gemm: CheckedCallable, k: int, inputs: formats.FloatFormat, shape: tuple[int, int]) -> list[int]:
    """A place of D at which equal operands give another sum than at [0, 0]; [] where none was seen."""
    if max(shape) == 1:
        return []
    for seed in range(3, 9):
        A, B = operands(inputs, 1, k, 1, seed)
        D = gemm(np.repeat(A, shape[0], axis=0), np.repeat(B, shape[1], axis=1)).astype(np.float64)
        down, across = D[:, 0] != D[0, 0], D[0] != D[0, 0]
        if down.any():
            return [int(np.argmax(down)), 0]
        if across.any():
            return [0, int(np.argmax(across))]
        if (D[0, 0] != D).any():
            return [int(x) for x in np.argwhere(D[0, 0] != D)[0]]
    return []


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
    gemm: CheckedCallable,
    found: Revealed,
    specs: list[MmaSpec],
    *,
    inputs: formats.FloatFormat,
    out: str,
    shape: tuple[int, int],
    at: int = 0,
    seed: int = 4,
) -> Comparison:
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
        row
        for row in catalog.rows()
        if str(row.a_format) == str(inputs)
        and str(row.d_format) == accumulator
        and row.block >= block
        and arch in (None, row.architecture)
        and row.architecture not in ("ideal", "ascend910a")
    ]
    chosen: dict[Any, MmaSpec] = {}
    for row in sorted(rows, key=lambda row: row.block):
        chosen.setdefault((row.block, row.arithmetic, row.F, row.E0, row.final, row.fraction_bits), row)
    return list(chosen.values())
