"""The probes by which an order is found, and who answers them: rows of a GEMM's A (or columns of its B)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.errors import InputError
from fpemu.mma.spec import MmaSpec


class Ask(Protocol):
    """Answers probes: see `Rows.__call__`."""

    def __call__(self, base: NDArray[Any], where: NDArray[Any], value: NDArray[Any], b: float, /) -> NDArray[Any]: ...


class Question(NamedTuple):
    """Pairs of positions within a group, all of whose leaves lie below a node of `size`; `beside`: another of its."""

    pairs: NDArray[Any]
    group: list[int]
    beside: list[int]
    size: int


class Rows:
    """Asks a GEMM about rows of A (or columns of B): each a probe, as many in one call as the shape has.

    Parameters
    ----------
    gemm : callable (A, B) -> D
    k : int
    dtype : dtype of A and B
    shape : (M, N)
        The shape of every call. Probes are rows of A, or columns of B where those are more.
    at : int
        The column (row) of D that is read.
    """

    def __init__(self, gemm: Callable[[Any, Any], Any], k: int, dtype: Any, shape: tuple[int, int], at: int = 0):
        self.gemm, self.k, self.dtype, self.at = gemm, k, np.dtype(dtype), at
        self.by_columns = shape[1] > shape[0]
        self.count, self.other = (shape[1], shape[0]) if self.by_columns else shape

    def __call__(self, base: NDArray[Any], where: NDArray[Any], value: NDArray[Any], b: float) -> NDArray[Any]:
        """One entry of D for each row: `base` (k,) with `value` (n, w) at `where` (n, w), times a vector of b."""
        out = np.empty(len(where))
        across = np.full((self.other, self.k), b, self.dtype)
        for lo in range(0, len(where), self.count):
            some = where[lo : lo + self.count]
            rows = np.tile(base.astype(self.dtype), (self.count, 1))
            rows[np.arange(len(some))[:, None], some] = value[lo : lo + self.count]
            D = np.asarray(self.gemm(across, rows.T) if self.by_columns else self.gemm(rows, across.T))
            if D.shape != ((self.other, self.count) if self.by_columns else (self.count, self.other)):
                raise InputError(f"gemm returned an array of shape {D.shape}")
            out[lo : lo + self.count] = (D[self.at] if self.by_columns else D[:, self.at])[: len(some)]
        return out


class Probe:
    """The probes of one GEMM in its own numbers."""

    def __init__(self, ask: Ask, k: int, inputs: formats.FloatFormat, spec: MmaSpec, out: formats.FloatFormat):
        self.ask, self.k, self.out, self.count = ask, k, out, 0
        span = 200 if inputs.name == "fp64" else 60
        top, low = min(inputs.emax, span), max(inputs.emin - inputs.precision + 1, -span)
        self.large, self.unit = 2.0**top, 2.0**low
        self.precision = spec.operand_formats[3].precision
        self.inexact = 1 + 2.0 ** -((self.precision + 1) // 2)  # its square lies off the accumulator's grid
        keep = 54 if inputs.name == "fp64" else max(25, spec.F)
        # what may stand beside M together and still vanish; what D counts exactly
        self.most = min(2 ** (top - low - keep) - 1, 2**out.precision, 2**self.precision) if top - low > keep else 0
        if self.most < 1:
            raise InputError(f"{inputs} is too narrow for the probe: units of 2^{low} do not vanish beside 2^{top}")

    def sizes(self, wanted: list[Question]) -> list[NDArray[Any]]:
        """Sizes of the smallest subtrees that hold both of each pair, for each question.

        Where all units at once are too many to be counted, only those of the groups that are asked about are there, as
        many groups at a time as can be counted; the units of a longer group come by turns.
        """
        out = [np.empty(0, np.int64)] * len(wanted)
        everything = np.arange(self.k)
        if self.k <= self.most:
            pairs = np.concatenate([w.pairs for w in wanted])
            cuts = np.cumsum([len(w.pairs) for w in wanted])[:-1]
            return np.split(self.k - self._survivors(pairs, everything, 1), cuts)
        bins: list[tuple[set[int], list[int]]] = []
        for n in sorted(range(len(wanted)), key=lambda n: -len(wanted[n].group)):
            own = {*wanted[n].group, *wanted[n].beside}
            if not bins or len(bins[-1][0] | own) > self.most:
                bins.append((set(), []))
            bins[-1][0].update(own)
            bins[-1][1].append(n)
        for units, some in bins:
            where = np.array(sorted(units))
            pairs = np.concatenate([wanted[n].pairs for n in some])
            lost = len(where) - self._survivors(pairs, where, -(-len(where) // self.most))
            cuts = np.cumsum([len(wanted[n].pairs) for n in some])[:-1]
            for n, sizes in zip(some, np.split(lost, cuts), strict=True):
                inside = sizes <= len(wanted[n].group)  # else what is beside the group is lost too
                out[n] = np.where(inside, sizes, wanted[n].size) if wanted[n].beside else sizes
        return out

    def _survivors(self, pairs: NDArray[Any], where: NDArray[Any], passes: int) -> NDArray[np.int64]:
        """How many of the units at `where` survive M and -M at each pair, the units by turns."""
        self.count += len(pairs) * passes
        value = np.tile([self.large, -self.large], (len(pairs), 1))
        survivors = np.zeros(len(pairs))
        for turn in range(passes):
            base = np.zeros(self.k)
            base[where[turn::passes]] = self.unit
            survivors += self.ask(base, pairs, value, 1.0) / self.unit
        good = (survivors == np.rint(survivors)) & (survivors >= 0) & (survivors <= len(where) - 2)
        if not good.all():
            i, j = pairs[~good][0]
            raise InputError(f"no whole number of units survives M at {i} and {j}: {survivors[~good][0]}")
        return survivors.astype(np.int64)

    def stored(self, asked: list[tuple[int, int]], precision: int) -> list[bool]:
        """For each (x, z) in two parts of a sum: whether x's part is rounded to so many bits before it is added."""
        if not asked:
            return []
        b = 1 + 2.0 ** (1 - precision)
        d = self._ask([list(pair) for pair in asked], [[b, -1.0]] * len(asked), b)
        return [bool(left == b - 1) for left in d]  # else 2^(2 - 2p) more

    def between(self, asked: list[tuple[int, int, int]], precision: int) -> list[bool]:
        """For each (x, y, z) in three parts of a sum: whether x + y is rounded to so many bits before z is added."""
        if not asked:
            return []
        d = self._ask([list(three) for three in asked], [[1.0, 2.0 ** (-1 - precision), -1.0]] * len(asked), 1.0)
        return [bool(left == 0) for left in d]

    def rounds_up(self, x: int, y: int, z: int | None) -> tuple[list[int], list[float]]:
        """Row that asks whether x + y, y three quarters of an ulp, rounds up; z takes x away again."""
        row = [(x, 2.0**10), (y, 1.5 * 2.0 ** (10 - self.precision)), *([] if z is None else [(z, -(2.0**10))])]
        return [k for k, _ in row], [v for _, v in row]

    def rounding(self, asked: list[tuple[int, int, int | None]]) -> list[bool]:
        """For each (x, y, z) whether the addition of x and y rounds to nearest."""
        found = [False] * len(asked)
        for width in (2, 3):
            chosen = [n for n, (_, _, z) in enumerate(asked) if (z is None) == (width == 2)]
            p = self.out.precision
            if chosen and width == 2 and p in (8, 11) and self.precision == 24:
                # D has too few bits to show it; but 2^p + 3 is a tie in D, and a multiple of 7, and y takes a half ulp
                # of the accumulator away: to nearest the tie stays, and goes up
                tie, y = (2**p + 3) / 7, -(2.0 ** (p - 27))
                d = self._ask([list(asked[n][:2]) for n in chosen], [[tie, y]] * len(chosen), 7.0)
                for n, value in zip(chosen, d, strict=True):
                    found[n] = bool(value == 2**p + 4)
            elif chosen:
                rows = [self.rounds_up(*asked[n]) for n in chosen]
                d = self._ask([r[0] for r in rows], [r[1] for r in rows], 1.0)
                for n, value in zip(chosen, d, strict=True):
                    found[n] = bool(value != (2.0**10 if width == 2 else 0.0))
        return found

    def entered(self, asked: list[tuple[list[int], int | None]], F: int) -> list[int | None]:
        """For each first block and a leaf outside: the leaf that was in the accumulator already, if one was.

        A product of 2.25 counts as 2.25 x 2^0 where it is one of the block, as 1.125 x 2^1 where it is the accumulator:
        beside it, a bit at 2^-F stays or goes.
        """
        found: list[int | None] = [None] * len(asked)
        tests = [(n, x, y, z) for n, (ks, z) in enumerate(asked) for x, y in zip(ks, [*ks[1:], ks[0]], strict=True)]
        for width in (2, 3):
            chosen = [test for test in tests if (test[3] is None) == (width == 2)]
            if not chosen:
                continue
            value = [1.5 * 2.0**10, -(2.0 ** (10 - F)), -1.5 * 2.0**10][:width]
            where = [[k for k in test[1:] if k is not None] for test in chosen]
            d = self._ask(where, [value] * len(chosen), 1.5)
            for (n, x, _, _), left in zip(chosen, d, strict=True):
                if left == (2.25 * 2.0**10 if width == 2 else 0.0):
                    found[n] = x if found[n] is None else -1
        # two that seem so: D has too few bits to tell
        return [None if x == -1 else x for x in found]

    def fusing(self, asked: list[tuple[int, int]]) -> list[int]:
        """For each (x, y): 1 where y's product is added unrounded to x, -1 the other way round, 0 if neither."""
        if not asked:
            return []
        b = self.inexact
        d = self._ask([list(pair) for pair in asked], [[-b, b]] * len(asked), b)
        return [int(s) for s in np.sign(d)]

    def narrow(self, asked: list[list[int]]) -> list[int | str | None]:
        """As `entered` where the accumulator is narrower than a product; "sum" for two rounded apart, then added."""
        found: list[int | str | None] = [None] * len(asked)
        tests = [(n, x, y) for n, ks in enumerate(asked) for x, y in zip(ks, [*ks[1:], ks[0]], strict=True)]
        for (n, x, y), sign in zip(tests, self.fusing([(x, y) for _, x, y in tests]), strict=True):
            found[n] = x if sign > 0 else y if sign < 0 else found[n]
        twos = [n for n, ks in enumerate(asked) if len(ks) == 2 and found[n] is None]
        if twos:
            b, step = self.inexact, 2.0 ** (1 - self.precision)
            for n, d in zip(twos, self._ask([asked[n] for n in twos], [[b, -b - step]] * len(twos), b), strict=True):
                found[n] = "sum" if d == -step else None
        return found

    def _ask(self, where: list[list[int]], value: list[list[float]], b: float) -> NDArray[Any]:
        self.count += len(where)
        return self.ask(np.zeros(self.k), np.array(where), np.array(value), b)
