"""The probes of a GEMM's summation order, and their rows: rows of A, columns of B, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.formats import FloatFormat
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
    """Probes of a GEMM at positions of D, as many in one call as there are positions.

    A probe is a row of A. It is a column of B if all positions lie in one row of D, and both if no two positions have a
    row or a column in common.

    Parameters
    ----------
    gemm : callable (A, B) -> D
    shape : (M, N, K)
        The shape of every call, on which a library's order can depend.
    formats : (FloatFormat, FloatFormat)
        Formats of A and B.
    positions : array (n, 2)
        Rows and columns of D with the same order.
    """

    def __init__(self, gemm: Callable[[Any, Any], Any], shape: tuple[int, int, int], formats: Any, positions: Array):
        self.gemm, (M, N, self.k) = gemm, shape
        distinct = [len(np.unique(line)) == len(line) for line in positions.T]
        self.by_columns, self.paired = not distinct[0], all(distinct)
        way = -1 if self.by_columns else 1
        self.count, self.others = (M, N)[::way]
        self.formats: tuple[FloatFormat, FloatFormat] = tuple(formats)[::way]  # of the probes, and of the other operand
        self.lines, self.across = positions.T[::way]

    def __call__(self, base: Array, where: Array, value: Array, b: float, b_at: Array | None = None) -> Array:
        """One entry of D for each row: `base` (k,) with `value` (n, w) at `where` (n, w), times a vector of b.

        With `b_at` (n, w) the vector has these numbers at `where`, for positions without common rows and columns.
        """
        out = np.empty(len(where))
        most = len(self.lines)
        for lo in range(0, len(where), most):
            at = where[lo : lo + most]
            lines, across = self.lines[: len(at), None], self.across[: len(at), None]
            rows = np.tile(base.astype(self.formats[0].dtype), (self.count, 1))
            rows[lines, at] = value[lo : lo + most]
            vectors = np.full((self.others, self.k), b, self.formats[1].dtype)
            if b_at is not None:
                vectors[across, at] = b_at[lo : lo + most]
            D = self.gemm(vectors, rows.T).T if self.by_columns else self.gemm(rows, vectors.T)
            out[lo : lo + most] = D[lines, across][:, 0]
        return out


class Scale(NamedTuple):
    """M and the unit of the probes, each as factors of two operands, and the number of units that vanish beside M."""

    large: tuple[float, float]
    unit: tuple[float, float]
    most: int

    @classmethod
    def of(cls, formats: tuple[FloatFormat, FloatFormat], spec: MmaSpec, out: FloatFormat) -> Scale:
        """The scale for the formats of probes and of the other operand, which is 1 if that suffices.

        M is finite in the accumulator. Units and their number are exact in D, and normal if subnormals are flushed.
        """
        total = spec.operand_formats[3]
        # M and unit lie far from overflow and underflow in fp32 (fp64)
        span = 200 if formats[0].name == "fp64" else 60
        lows = [f.emin if spec.rules.flushes else f.emin - f.precision + 1 for f in formats]
        highs = [f.emax for f in formats]
        for other in (0, 1):
            low, high = lows[0] + other * lows[1], highs[0] + other * highs[1]
            top, bottom = min(high, span, total.emax), max(low, -span, out.emin - out.precision + 1)
            # sums outside an instruction keep 24 bits (fp64: 53), whatever the instruction keeps
            spare = top - bottom - (54 if formats[0].name == "fp64" else max(25, spec.F))
            if spare > 0:
                break
        # exponents of the other operand: 0 if it is 1
        up = max(0, top - highs[0]) if other else 0
        down = min(0, bottom - lows[0]) if other else 0
        most = min(2**spare - 1, 2**out.precision, 2**total.precision) if spare > 0 else 0
        return cls((2.0 ** (top - up), 2.0**up), (2.0 ** (bottom - down), 2.0**down), most)


class Probe:
    """The probes of one GEMM, with the scale that its formats admit.

    Attributes
    ----------
    count : int
        Number of probes so far.
    """

    def __init__(
        self, run: ProbeRunner, k: int, formats: tuple[FloatFormat, FloatFormat], spec: MmaSpec, out: FloatFormat
    ):
        self._run: Any = run
        self.k, self.out, self.count, self.formats, self.spec = k, out, 0, formats, spec
        self.large, self.unit, self.most = Scale.of(formats, spec, out)
        self.paired = getattr(run, "paired", False)
        self.precision = spec.operand_formats[3].precision
        self.inexact = 1 + 2.0 ** -((self.precision + 1) // 2)  # its square is not a number of the accumulator
        if self.most < 1 or (self.unit[1] != 1 and not self.paired):
            large, unit = np.prod(self.large), np.prod(self.unit)
            names = " and ".join(dict.fromkeys(f.name for f in formats))
            raise InputError(
                f"{names} is too narrow for the probe: units of {unit:g} do not vanish beside {large:g} in sums of fp32"
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
        value, b_at = (np.tile(x, (len(pairs), 1)) for x in ([self.large[0], -self.large[0]], [self.large[1]] * 2))
        other: list[Any] = [self.unit[1], b_at] if self.unit[1] != 1 else [1.0]
        survivors = np.zeros(len(pairs))
        for turn in range(passes):
            base = np.zeros(self.k)
            base[where[turn::passes]] = self.unit[0]
            survivors += self._run(base, pairs, value, *other) / np.prod(self.unit)
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
            factors = self._factors(values, b)
            if factors is None:
                continue
            A, B = (x[None].astype(f.dtype) for x, f in zip(factors, self.formats, strict=True))
            with np.errstate(all="ignore"):
                sums, instruction = (
                    {float(round_to(gemm(A, B.T, None, self.spec, t, backend="numpy")[0, 0], self.out)) for t in some}
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
        last = 2.0 ** (1 - self.formats[0].precision)
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
        return [int(s) for s in np.nan_to_num(np.sign(self._results(pairs, [-b, b], b)))]

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
        """The results of probes with products b · values at different positions; NaN if no operands have them."""
        factors = self._factors(values, b)
        if not where or factors is None:
            return np.full(len(where), np.nan)
        self.count += len(where)
        value, b_at = (np.tile(x, (len(where), 1)) for x in factors)
        other = [b] if (b_at == b).all() else [b, b_at]
        return np.asarray(self._run(np.zeros(self.k), np.array(where), value, *other))

    def _factors(self, values: list[float], b: float) -> tuple[Array, Array] | None:
        """Factors of b · values in the two formats; exponents move to the other operand if it differs by probe."""
        out = np.full((2, len(values)), np.nan)
        for shift in sorted(range(-30, 31), key=abs) if self.paired else (0,):
            factors = np.ldexp(values, -shift), np.full(len(values), np.ldexp(b, shift))
            fits = np.logical_and(*(f.contains(x) for f, x in zip(self.formats, factors, strict=True)))
            out = np.where(fits & np.isnan(out[0]), factors, out)
        return None if np.isnan(out).any() else (out[0], out[1])
