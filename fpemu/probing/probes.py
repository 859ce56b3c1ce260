"""The probes of a GEMM's summation order, and their rows: rows of A, or columns of B."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError
from fpemu.mma.gemm import gemm
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.rounding import round_to

Array = NDArray[Any]


class ProbeRunner(Protocol):
    """Runs probes: see `Rows.__call__`. Classes other than `Rows` set the attribute `runs_probes`."""

    def __call__(self, base: Array, where: Array, value: Array, b: float, /) -> Array: ...


class Pairs(NamedTuple):
    """Pairs of positions within a group of leaves below a node with `size` leaves; `beside`: another of its leaves."""

    pairs: Array
    group: list[int]
    beside: list[int]
    size: int


class Rows:
    """Probes as rows of A (or columns of B) of a GEMM, as many in one call as the shape has.

    Parameters
    ----------
    gemm : callable (A, B) -> D
    k : int
    dtype : dtype of A and B
    shape : (M, N)
        The shape of every call. Probes are rows of A, or columns of B if N > M.
    at : int
        The column (row) of D that is read.
    """

    runs_probes = True

    def __init__(self, gemm: Callable[[Any, Any], Any], k: int, dtype: Any, shape: tuple[int, int], at: int = 0):
        self.gemm, self.k, self.dtype, self.at = gemm, k, np.dtype(dtype), at
        self.by_columns = shape[1] > shape[0]
        self.count, self.other = (shape[1], shape[0]) if self.by_columns else shape

    def __call__(self, base: Array, where: Array, value: Array, b: float) -> Array:
        """One entry of D for each row: `base` (k,) with `value` (n, w) at `where` (n, w), times a vector of b."""
        out = np.empty(len(where))
        across = np.full((self.other, self.k), b, self.dtype)
        for lo in range(0, len(where), self.count):
            some = where[lo : lo + self.count]
            # every call has the full shape, on which a library's order can depend
            rows = np.tile(base.astype(self.dtype), (self.count, 1))
            rows[np.arange(len(some))[:, None], some] = value[lo : lo + self.count]
            D = np.asarray(self.gemm(across, rows.T) if self.by_columns else self.gemm(rows, across.T))
            if D.shape != ((self.other, self.count) if self.by_columns else (self.count, self.other)):
                raise InputError(f"gemm returned an array of shape {D.shape}")
            out[lo : lo + self.count] = (D[self.at] if self.by_columns else D[:, self.at])[: len(some)]
        return out


def scale(inputs: formats.FloatFormat, *, flushed: bool = False) -> tuple[float, float]:
    """M and the unit of the probes; a normal unit if subnormal inputs are flushed."""
    span = 200 if inputs.name == "fp64" else 60
    least = inputs.emin if flushed else inputs.emin - inputs.precision + 1
    return 2.0 ** min(inputs.emax, span), 2.0 ** max(least, -span)


class Probe:
    """The probes of one GEMM, with M, unit and counts that its formats admit.

    Attributes
    ----------
    count : int
        Number of probes so far.
    """

    def __init__(self, run: ProbeRunner, k: int, inputs: formats.FloatFormat, spec: MmaSpec, out: formats.FloatFormat):
        self._run, self.k, self.out, self.count = run, k, out, 0
        self.inputs, self.spec = inputs, spec
        self.large, self.unit = scale(inputs, flushed=spec.rules.flushes)
        self.precision = spec.operand_formats[3].precision
        self.inexact = 1 + 2.0 ** -((self.precision + 1) // 2)  # its square is not a number of the accumulator
        spare = int(np.log2(self.large / self.unit)) - (54 if inputs.name == "fp64" else max(25, spec.F))
        # the number of units that vanish together beside M, and that D counts exactly
        self.most = min(2**spare - 1, 2**out.precision, 2**self.precision) if spare > 0 else 0
        if self.most < 1:
            raise InputError(
                f"{inputs} is too narrow for the probe: units of {self.unit:g} do not vanish beside {self.large:g}"
            )

    def sizes(self, wanted: list[Pairs]) -> list[Array]:
        """For each of several groups, the sizes of the smallest subtrees that hold both positions of each pair.

        If D cannot count all units at once, only the units of the probed groups are set, for as many groups at a time
        as D can count; the units of a larger group are set in several passes.
        """
        out = [np.empty(0, np.int64)] * len(wanted)
        if self.k <= self.most:
            pairs = np.concatenate([w.pairs for w in wanted])
            cuts = np.cumsum([len(w.pairs) for w in wanted])[:-1]
            return np.split(self.k - self._survivors(pairs, np.arange(self.k), 1), cuts)
        bins: list[tuple[set[int], list[int]]] = []
        for n in sorted(range(len(wanted)), key=lambda n: -len(wanted[n].group)):
            members = {*wanted[n].group, *wanted[n].beside}
            if not bins or len(bins[-1][0] | members) > self.most:
                bins.append((set(), []))
            bins[-1][0].update(members)
            bins[-1][1].append(n)
        for units, some in bins:
            where = np.array(sorted(units))
            pairs = np.concatenate([wanted[n].pairs for n in some])
            lost = len(where) - self._survivors(pairs, where, -(-len(where) // self.most))
            cuts = np.cumsum([len(wanted[n].pairs) for n in some])[:-1]
            for n, sizes in zip(some, np.split(lost, cuts), strict=True):
                inside = sizes <= len(wanted[n].group)  # otherwise the units beside the group are lost too
                out[n] = np.where(inside, sizes, wanted[n].size) if wanted[n].beside else sizes
        return out

    def _survivors(self, pairs: Array, where: Array, passes: int) -> NDArray[np.int64]:
        """The number of units at `where`, set in several passes, that survive M and -M at each pair."""
        self.count += len(pairs) * passes
        value = np.tile([self.large, -self.large], (len(pairs), 1))
        survivors = np.zeros(len(pairs))
        for turn in range(passes):
            base = np.zeros(self.k)
            base[where[turn::passes]] = self.unit
            survivors += self._run(base, pairs, value, 1.0) / self.unit
        good = (survivors == np.rint(survivors)) & (survivors >= 0) & (survivors <= len(where) - 2)
        if not good.all():
            i, j = pairs[~good][0]
            raise InputError(f"no whole number of units survives M at {i} and {j}: {survivors[~good][0]}")
        return survivors.astype(np.int64)

    def stored(self, pairs: list[tuple[int, int]], precision: int) -> list[bool]:
        """For each (x, z) in two parts of a sum: whether x's part is rounded to `precision` bits first."""
        b = 1 + 2.0 ** (1 - precision)
        return [bool(d == b - 1) for d in self._results(pairs, [b, -1.0], b)]  # otherwise 2^(2 - 2p) more

    def between(self, threes: list[tuple[int, int, int]], precision: int) -> list[bool]:
        """For each (x, y, z) in three parts of a sum: whether x + y is rounded to `precision` bits before adding z."""
        return [bool(d == 0) for d in self._results(threes, [1.0, 2.0 ** (-1 - precision), -1.0], 1.0)]

    def rounding(self, threes: list[tuple[int, int, int | None]]) -> list[bool | None]:
        """For each (x, y, z): whether x and y are added to nearest, outside the instruction; z takes x away again.

        None where no probe distinguishes such a sum from a step of the instruction.
        """
        nearest: list[bool | None] = [None] * len(threes)
        for width in (2, 3):
            chosen = [n for n, (_, _, z) in enumerate(threes) if (z is None) == (width == 2)]
            test = self._sum_or_step(width) if chosen else None
            if test is not None:
                b, values, sums = test
                for n, d in zip(chosen, self._results([threes[n][:width] for n in chosen], values, b), strict=True):
                    nearest[n] = d in sums
        return nearest

    def _sum_or_step(self, width: int) -> tuple[float, list[float], set[float]] | None:
        """B and the values of a probe, and the results that a sum gives, but no step of the instruction.

        The first of the candidates that `mma.gemm` confirms, whichever way z is added, or else z outside.
        """
        first, second = Chain(((0,),)), Chain(((1,),))
        steps: list[Tree] = [Chain(((0,), (1,))), *[Chain(((0, 1),))] * (self.spec.block > 1)]
        ways: list[list[Tree]] = [[Sum((first, second))], steps]
        if width == 3:
            ways = [[Sum((t, Chain(((2,),)))) for t in some] + [Chain(((2,),), start=t) for t in some] for some in ways]
        partial = None
        for b, x, y in self._near_halves():
            values = [x, y, -x][:width]
            if not self.inputs.contains(np.array([*values, b])).all():
                continue
            A, B = np.array([values], self.inputs.dtype), np.full((width, 1), b, self.inputs.dtype)
            with np.errstate(all="ignore"):
                sums, instruction = (
                    {float(round_to(gemm(A, B, None, self.spec, t, backend="numpy")[0, 0], self.out)) for t in some}
                    for some in ways
                )
            if not sums & instruction:
                return b, values, sums
            if partial is None and sums - instruction:
                partial = b, values, sums - instruction
        return partial

    def _near_halves(self) -> Iterator[tuple[float, float, float]]:
        """B, x and y: y is near a half of x's last place; first three quarters, which show a truncation."""
        p, d = self.out.precision, self.precision
        yield 1.0, 2.0**10, 1.5 * 2.0 ** (10 - d)
        # D may have too few bits to show it; but 2^p + 3 is a tie in D, and a multiple of 7, and y takes a half ulp of
        # the accumulator away: to nearest the tie stays, and goes up
        yield 7.0, (2**p + 3) / 7, -(2.0 ** (p - 27))
        last = 2.0 ** (1 - self.inputs.precision)
        significands = dict.fromkeys((1.0, 1.5, 1 + last, 2 - last))
        for j, u, b, sign in product((1, 0, 2), significands, significands, (1, -1)):
            yield b, 2.0**10, sign * u * 2.0 ** (10 - d + j - 1)

    def entered(self, blocks: list[tuple[list[int], int | None]], F: int) -> list[int | None]:
        """For each first block and a leaf outside: the leaf that was in the accumulator before the block, if any.

        A product of 2.25 has the exponent 0 in the block (2.25 x 2^0), and 1 in the accumulator (1.125 x 2^1): beside
        it, a bit at 2^-F is kept or lost.
        """
        leaves: list[int | None] = [None] * len(blocks)
        tests = [(n, x, y, z) for n, (ks, z) in enumerate(blocks) for x, y in zip(ks, [*ks[1:], ks[0]], strict=True)]
        for width in (2, 3):
            chosen = [test for test in tests if (test[3] is None) == (width == 2)]
            values = [1.5 * 2.0**10, -(2.0 ** (10 - F)), -1.5 * 2.0**10][:width]
            for (n, x, _, _), d in zip(
                chosen, self._results([test[1 : 1 + width] for test in chosen], values, 1.5), strict=True
            ):
                if d == (2.25 * 2.0**10 if width == 2 else 0.0):
                    leaves[n] = x if leaves[n] is None else -1
        return [None if x == -1 else x for x in leaves]  # two candidates: D has too few bits to decide

    def fusing(self, pairs: list[tuple[int, int]]) -> list[int]:
        """For each (x, y): 1 if y's product is added unrounded to x, -1 the other way round, 0 if neither."""
        b = self.inexact
        return [int(s) for s in np.sign(self._results(pairs, [-b, b], b))]

    def narrow(self, blocks: list[list[int]]) -> list[int | str | None]:
        """As `entered`, for accumulators narrower than a product; "sum" for two products rounded before their sum."""
        kinds: list[int | str | None] = [None] * len(blocks)
        tests = [(n, x, y) for n, ks in enumerate(blocks) for x, y in zip(ks, [*ks[1:], ks[0]], strict=True)]
        for (n, x, y), sign in zip(tests, self.fusing([(x, y) for _, x, y in tests]), strict=True):
            kinds[n] = x if sign > 0 else y if sign < 0 else kinds[n]
        twos = [n for n, ks in enumerate(blocks) if len(ks) == 2 and kinds[n] is None]
        b, step = self.inexact, 2.0 ** (1 - self.precision)
        for n, d in zip(twos, self._results([blocks[n] for n in twos], [b, -b - step], b), strict=True):
            kinds[n] = "sum" if d == -step else None
        return kinds

    def _results(self, where: list[Any], values: list[float], b: float) -> Array:
        """The results of probes with the same values at different positions."""
        if not where:
            return np.empty(0)
        self.count += len(where)
        return self._run(np.zeros(self.k), np.array(where), np.tile(values, (len(where), 1)), b)
