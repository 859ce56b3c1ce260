"""The summation order of a GEMM, found by probes and checked with random operands.

`fpemu.probing.structure` builds the tree from probes at positions of D with one order. Products in which all rows of A
are equal, and all columns of B, show these positions, and their emulation shows whether the tree explains the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma
from fpemu.arguments import choice, flag, integer, integers
from fpemu.errors import InputError, entries
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec, catalog
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.order import KOrder
from fpemu.mma.tree import Tree, longest_block
from fpemu.probing.callables import CallError, CheckedCallable, bits
from fpemu.probing.probes import Probe, ProbeRunner, Rows, Scale
from fpemu.probing.structure import tree_of
from fpemu.probing.trees import name_order, sentence, text
from fpemu.rounding import round_to

Array = NDArray[Any]
Layout = Literal["NN", "TN", "NT", "TT"]
# seeds of products with the same operands at all positions of D: to check an order, and to group positions by it
_CHECKS, _GROUPING = range(8), range(8, 24)


@dataclass(frozen=True)
class Revealed:
    """Summation order of a GEMM, found by `reveal`.

    Attributes
    ----------
    tree : Tree
        The canonical tree; `fpemu.mma.gemm` takes it as its order.
    order : KOrder or None
        The KOrder equal to the tree; None if none is found.
    k, probes : int
        K, and the number of probes (each one row of a product).
    """

    tree: Tree
    order: KOrder | None
    k: int
    probes: int

    def __str__(self) -> str:
        name = "no KOrder is found for this tree" if self.order is None else str(self.order)
        return f"K = {self.k}, {self.probes} probes: {name}\n{sentence(self.tree)}\n{text(self.tree)}"


@dataclass(frozen=True)
class RevealedMap:
    """Summation orders of a GEMM over the positions of D, found by `reveal_map`.

    Attributes
    ----------
    index : array of int, shape (M, N)
        The position (i, j) of D is added in the order `orders[index[i, j]]`.
    orders : tuple of Revealed
        The orders, beginning with that of D[0, 0].
    """

    index: Array
    orders: tuple[Revealed, ...]


def reveal(
    gemm: Callable[[Any, Any], Any] | ProbeRunner,
    k: int,
    spec: MmaSpec | None = None,
    *,
    fmt: str | None = None,
    out: str | None = None,
    shape: tuple[int, int] | None = None,
    at: int | tuple[int, int] | None = None,
    layout: Layout = "NN",
    check: bool = True,
) -> Revealed:
    """Find the summation order of a GEMM over K by probes.

    Parameters
    ----------
    gemm : callable (A, B) -> D
        Takes A (M, K) and B (K, N), NumPy arrays of the inputs' formats (bf16, tf32 and fp8 values in float32), and
        returns an array of any library. A `fpemu.probing.probes.ProbeRunner` is also accepted, and is not checked.
    k : int
        K of the product.
    spec : MmaSpec, optional
        The presumed instruction of the GEMM.
    fmt, out : str, optional
        Formats of the inputs and of D if there is no spec (default: "fp32", and fp32, or fp64 for fp64). With a spec,
        `out` is a narrower format to which D is rounded at the end; further probes then show whether partial sums are
        rounded to it as well.
    shape : (M, N), optional
        Shape of every call, on which a library's order can depend. Default: K rows, at most 512, and one column; a
        square of at most 64 rows for inputs so narrow that a probe takes a row of A and a column of B.
    at : (int, int) or int, optional
        Row and column of D whose order is revealed, from probes at all positions with the same order; or a column (a
        row, if N > M) in which all positions have the same order. Default: all positions of D have the same order.
    layout : {"NN", "TN", "NT", "TT"}
        "NN": A and B are C-contiguous. "TN": B is stored by columns, as in `fpemu.library.emulate`. "NT": A is stored
        by columns. "TT": both are.
    check : bool
        Whether to multiply random operands, compare D with the emulation in the revealed order at all positions with
        that order, and raise InputError for a mismatch.

    Returns
    -------
    Revealed
        The tree, and the KOrder equal to it.

    Raises
    ------
    InputError
        The results fit no tree, or the emulation in the tree's order does not reproduce them: results that change
        between calls, compensated or exact sums, sums in a wider format, or an order that depends on the position in D.
        Also for inputs whose products are too close to each other to vanish, for about 900 nested sums, for longer
        blocks than the spec's, and for fp8 that is converted to fp16 ("via-half"), whose instruction adds the two
        halves of its k separately.

    See Also
    --------
    reveal_map : All orders of a GEMM whose order depends on the position in D.

    Notes
    -----
    A single product between two additions can be a step of the instruction or an addition outside it. If no operands
    distinguish the two (exact or IEEE arithmetic), the tree has an addition outside only after another one.

    Common trees require O(K log K) probes, each a row of a call. If the format of D does not represent the sum of K
    units (K > 2048 in fp16), the probes are divided into several passes.

    If neither `spec` nor a row of the catalogue with the inputs' format reproduces products in blocks, the arithmetic
    is unknown. The check then only compares the positions of D, and repeated calls, with each other.

    Examples
    --------
    >>> import fpemu
    >>> spec, order = fpemu.mma.spec("H100", "fp16", "fp32"), KOrder(split=48)
    >>> revealed = reveal(lambda A, B: fpemu.mma.gemm(A, B, None, spec, order), 100, spec)
    >>> revealed.order
    KOrder(split=48)
    """
    target = _target(gemm, k, spec, fmt, out, shape, layout, at)
    flag("check", check)
    if not isinstance(target.gemm, CheckedCallable):
        return target.probe(target.gemm)
    return target.reveal(check)


def reveal_map(
    gemm: Callable[[Any, Any], Any],
    k: int,
    spec: MmaSpec | None = None,
    *,
    fmt: str | None = None,
    out: str | None = None,
    shape: tuple[int, int] | None = None,
    layout: Layout = "NN",
) -> RevealedMap:
    """Find the summation orders of a GEMM whose order depends on the position in D.

    Products with equal rows of A and equal columns of B group the positions by their results; `reveal` then finds the
    order of each group, and checks it at all its positions.

    Parameters
    ----------
    gemm : callable (A, B) -> D
        As in `reveal`.
    k : int
        K of the product.
    spec : MmaSpec, optional
        The presumed instruction of the GEMM.
    fmt, out : str, optional
        Formats of the inputs and of D, as in `reveal`.
    shape : (M, N), optional
        Shape of every call, as in `reveal`.
    layout : {"NN", "TN", "NT", "TT"}
        Layout of A and B, as in `reveal`.

    Returns
    -------
    RevealedMap
        The index of each position's order, and the orders.

    Raises
    ------
    InputError
        As in `reveal`.

    Examples
    --------
    >>> import fpemu
    >>> def gemm(A, B):
    ...     D = fpemu.simt.gemm(A, B)
    ...     D[:, 2:] = fpemu.simt.gemm(A, B[:, 2:], order=KOrder(split=8))
    ...     return D
    >>> found = reveal_map(gemm, 20, fmt="fp32", shape=(2, 4))
    >>> found.index.tolist()
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    >>> [revealed.order for revealed in found.orders]
    [KOrder(), KOrder(split=8)]
    """
    target = _target(gemm, k, spec, fmt, out, shape, layout)
    index = target.groups()
    first = [tuple(np.argwhere(index == n)[0].tolist()) for n in range(index.max() + 1)]
    return RevealedMap(index, tuple(replace(target, at=at).reveal(where=index == index[at]) for at in first))


def _target(
    gemm: Any, k: int, spec: MmaSpec | None, fmt: str | None, out: str | None, shape: Any, layout: str, at: Any = None
) -> Target:
    """The GEMM of checked arguments."""
    k = integer("k", k, 1, 2**24)
    choice("layout", layout, get_args(Layout))
    inputs = formats.get(fmt or (str(spec.a_format) if spec else "fp32"))
    if spec is None and inputs.name in ("fp32", "fp64"):
        spec = FMA_SPECS[inputs.name]
    accumulator = "fp32" if spec is None else str(spec.d_format)
    result = formats.get(out or accumulator).name
    if shape is None:
        target = Target(gemm, (1, 1, k), inputs, result, accumulator, spec)
        n = min(k, 64)
        shape = (n, n) if target.scale.unit[1] != 1 else (min(k, 512), 1)
    M, N = integers("shape", shape, 1, 2**24, length=2)
    if not isinstance(gemm, CheckedCallable) and not hasattr(gemm, "runs_probes"):
        gemm = CheckedCallable(gemm, layout=layout)
    return Target(gemm, (M, N, k), inputs, result, accumulator, spec, at=position(at, M, N))


def position(at: Any, M: int, N: int) -> int | tuple[int, int] | None:
    """Check an argument `at` for D of shape (M, N)."""
    if not isinstance(at, tuple | list):
        return None if at is None else integer("at", at, 0, min(M, N) - 1)
    row, column = integers("at", at, 0, max(M, N) - 1, length=2)
    if row >= M or column >= N:
        raise InputError(f"at = {at}: D has shape {(M, N)}")
    return row, column


# --- a GEMM with an unknown order: probes, checks, and contradictions in one line
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
    at: int | tuple[int, int] | None = None  # as in `reveal`

    def reveal(self, check: bool = True, where: Array | None = None) -> Revealed:
        """Reveal the order at the positions `where` of D (default: those that `at` selects).

        Raises
        ------
        InputError
            No order is found; the message names the cause if it can be identified: results that change from call to
            call or from position to position, sums that are exact, flushed subnormal inputs.
        """
        (M, N, K), name = self.shape, self.gemm.name
        where = self._where() if where is None else where
        if check:
            A, B = self.operands(M, N, 20)
            D = self.gemm.repeat(*self.gemm.operands(A, B)).values
            if not np.isfinite(D).all():
                raise InputError(f"{name} returns Inf or NaN for random operands: {entries(~np.isfinite(D), D)}")
            # D holds the sum of up to eight units exactly in every format
            few, unit = min(K, 8), np.prod(self.scale.unit)
            total = self._sum([(range(few), self.scale.unit)])
            if total != few * unit:
                raise InputError(
                    f"{name} returns {total:g} for the sum of {few} products of {unit:g}, the probe's units: it"
                    " flushes subnormal numbers, rounds its inputs, scales D or does not add each product once"
                )
        try:
            revealed = self.probe(Rows(self.gemm, self.shape, self._formats, self._positions(where)))
        except CallError:
            raise
        except InputError as problem:
            raise InputError(f"{name}: {self._contradiction(where) or problem}") from problem
        if check and (mismatch := self._mismatch(revealed, where, (A, B, D))):
            raise InputError(f"{name}: {mismatch}")
        return revealed

    def probe(self, run: ProbeRunner) -> Revealed:
        """The order that probes show; raises InputError if their results fit no tree."""
        k, spec = self.shape[2], self._presumed
        if spec.rules.via is not None:
            raise InputError(
                f"{spec} adds the halves of its k apart, which no tree of blocks describes: no order is revealed"
            )
        probe = Probe(run, k, getattr(run, "formats", self._formats), spec, formats.get(self.result))
        try:
            tree = tree_of(probe)
            block = longest_block(tree)
            if self.spec is not None and block > spec.block:
                raise InputError(
                    f"{block} products are added at once, and a block of {spec} has {spec.block}: it is another"
                    " instruction, or the order does not show"
                )
            revealed = Revealed(tree, name_order(tree, k, spec), k, probe.count)
            if self.spec is not None:
                return revealed
            # the blocks of an unknown instruction are as long as the longest
            return replace(revealed, order=name_order(tree, k, self.instruction(revealed)) or revealed.order)
        except RecursionError:
            raise InputError("the sums are nested too deep to be written down") from None

    def instruction(self, revealed: Revealed) -> MmaSpec:
        """The instruction; if it is unknown, one with the longest of the revealed blocks."""
        block = longest_block(revealed.tree)
        return self.spec or MmaSpec(self.inputs, self.inputs, "fp32", k=block, block=block, F=25)

    @property
    def _formats(self) -> tuple[FloatFormat, FloatFormat]:
        """The formats of A and B."""
        return (self.inputs, self.inputs) if self.spec is None else self.spec.operand_formats[:2]

    @property
    def _presumed(self) -> MmaSpec:
        """The instruction; if it is unknown, one with the longest blocks."""
        return self.spec or MmaSpec(self.inputs, self.inputs, "fp32", k=64, block=64, F=25)

    @property
    def scale(self) -> Scale:
        """M and unit of the probes."""
        A, B = self._formats
        pair = (B, A) if self.shape[1] > self.shape[0] else (A, B)
        return Scale.of(pair, self._presumed, formats.get(self.result))

    # --- positions of D
    def _start(self) -> tuple[int, int]:
        """A position with the order to reveal."""
        if isinstance(self.at, tuple):
            return self.at
        return (self.at or 0, 0) if self.shape[1] > self.shape[0] else (0, self.at or 0)

    def _where(self) -> Array:
        """The positions that `at` selects."""
        M, N, _ = self.shape
        if isinstance(self.at, tuple):
            index = self.groups()
            return np.asarray(index == index[self.at])
        where = np.full((M, N), self.at is None)
        if self.at is not None:
            where[(self.at, slice(None)) if N > M else (slice(None), self.at)] = True
        return where

    def _positions(self, where: Array) -> Array:
        """Positions for one call: in one column or row of D, or without common rows and columns."""
        row, column = self._start()
        if self.scale.unit[1] == 1:
            rows, columns = np.flatnonzero(where[:, column]), np.flatnonzero(where[row])
            if len(columns) > len(rows):
                return np.stack([np.full(len(columns), row), columns], axis=1)
            return np.stack([rows, np.full(len(rows), column)], axis=1)
        free, pairs = np.ones(where.shape[1], bool), []
        for i in np.flatnonzero(where.any(axis=1)):
            if (where[i] & free).any():
                pairs.append((i, np.argmax(where[i] & free)))
                free[pairs[-1][1]] = False
        return np.array(pairs)

    def groups(self) -> Array:
        """For each position of D the index of a group: positions with different orders are in different groups.

        Every product has equal rows of A and equal columns of B, so that all its results are equal in one order.
        """
        M, N, _ = self.shape
        index = np.zeros(M * N, np.int64)
        for _, _, D in self._repeated(_GROUPING):
            _, results = np.unique(bits(D), return_inverse=True)
            _, first, index = np.unique(index * (M * N) + results.ravel(), return_index=True, return_inverse=True)
            index = np.argsort(np.argsort(first))[index]  # in the order of their first positions
        return index.reshape(M, N)

    def disagreement(self) -> list[int]:
        """A position of D with another order than [0, 0], in the first column or row if possible; [] if none is."""
        index = self.groups()
        for differ in (index[:, :1] != 0, index[:1] != 0, index != 0):
            if differ.any():
                return [int(x) for x in np.argwhere(differ)[0]]
        return []

    # --- operands
    def operands(self, M: int, N: int, seed: int) -> tuple[Array, Array]:
        """Normal random operands (M, K) and (K, N), of at most 64 different rows and columns."""
        rng, K = np.random.default_rng(seed), self.shape[2]
        A, B = (round_to(rng.standard_normal((min(n, 64), K)), f) for n, f in zip((M, N), self._formats, strict=True))
        return np.resize(A, (M, K)), np.resize(B, (N, K)).T

    def _repeated(self, seeds: range) -> Iterator[tuple[Array, Array, Array]]:
        """Yield A with equal rows, B with equal columns, and D.

        The products of a row and a column cancel in pairs, so that each entry of D is the sum of the rounding errors.
        """
        (M, N, K), (a, b) = self.shape, self._formats
        total, out = formats.get(self.accumulator), formats.get(self.result)
        # the least spread of exponents that makes sums inexact, and the largest that keeps K products finite
        least = max(0, total.precision - a.precision - b.precision) // 4
        most = max(0, min((min(total.emax, out.emax) - K.bit_length() - 6) // 2, a.emax - 2, b.emax - 2))
        for n in seeds:
            rng, spread = np.random.default_rng(n), min(least + n % 3, most)
            values = np.ldexp(rng.standard_normal((2, K)), rng.integers(-spread, spread + 1, (2, K)))
            if n % 2:  # few positions of k determine the errors
                values[0] /= (1 + abs(np.arange(K) - n % 4 // 3 * rng.integers(K))) ** 2
            one, other = rng.permutation(K)[: K // 2 * 2].reshape(2, -1)
            values[:, other] = [[-1], [1]] * values[:, one]
            # normal: instructions that flush subnormal inputs are compared with additions outside, which do not
            x, y = (
                round_to(np.copysign(np.maximum(np.abs(some), fmt.min_normal), some), fmt).astype(fmt.dtype)
                for some, fmt in zip(values, (a, b), strict=True)
            )
            A, B = np.tile(x, (M, 1)), np.tile(y[:, None], N)
            yield A, B, self.gemm(A, B).copy()  # a later call may write into the same memory

    def _sum(self, factors: Sequence[tuple[Any, tuple[float, float]]]) -> float:
        """D at the probed position for factors at some positions of k, and zeros at all others."""
        (M, N, K), (row, column) = self.shape, self._start()
        A, B = (np.zeros(x, f.dtype) for x, f in zip(((M, K), (K, N)), self._formats, strict=True))
        for ks, (a, b) in factors:
            A[:, ks], B[ks] = (b, a) if N > M else (a, b)
        return float(self.gemm(A, B)[row, column])

    # --- contradictions
    def _contradiction(self, where: Array) -> str | None:
        """The property of the results that fits no tree, if it can be identified."""
        if varying := self._varying(where, _GROUPING):
            return varying
        K, (large, unit, _) = self.shape[2], self.scale
        if K < 4:
            return None
        for i, j in dict.fromkeys([(0, K - 1), (0, 1), (K // 2, K - 1), (0, K // 2)]):
            between = [q for q in range(K) if q not in (i, j)][:: max(1, K // 8)][:8]
            total = self._sum([(between, unit), (i, large), (j, (-large[0], large[1]))])
            if total != len(between) * np.prod(unit):
                return None
        return (
            f"no unit is lost beside {np.prod(large):g} and {-np.prod(large):g}: the sums are exact, compensated or in"
            " a format wider than the results, and show no order"
        )

    def _varying(self, where: Array, seeds: range) -> str | None:
        """The first result for equal operands that differs by position or by call, in words."""
        row, column = self._start()
        for (_, _, D), (_, _, again) in zip(self._repeated(seeds), self._repeated(seeds), strict=True):
            if (bits(D) != bits(again)).any():
                return "it is not deterministic: two calls with the same operands differ (atomic additions?)"
            differ = where & (bits(D) != bits(D[row, column]))
            if differ.any():
                down = differ[:, column]
                i, j = (int(np.argmax(down)), column) if down.any() else np.argwhere(differ)[0].tolist()
                return (
                    f"{'rows' if down.any() else 'columns'} of D disagree: for equal operands D[{row}, {column}] and"
                    f" D[{i}, {j}] differ, so the order depends on the position; at=({i}, {j}) reveals the order there,"
                    " and fpemu.probing.reveal_map all orders"
                )
        return None

    def _mismatch(self, revealed: Revealed, where: Array, product: tuple[Array, Array, Array]) -> str | None:
        """The first contradiction between random products and their emulation in the revealed order, in words."""
        start, constant, columns = self._start(), True, []
        for A, B, D in self._repeated(_CHECKS):
            constant &= bool((bits(D)[where] == bits(D[start])).all())
            columns.append((A[:1], B[:, :1], D[start]))
        A, B, D = (np.stack(x) for x in zip(*columns, strict=True))
        closest = self._closest(revealed.tree, A, B, D[:, None, None])
        count, outputs = (len(D) if closest is None else int(closest[1].sum())), len(D)
        if count == 0:
            compared = self.compare(revealed, where, product)
            count, outputs = compared.at_probed, compared.outputs
        if count == 0 and constant:
            return None
        if varying := self._varying(where, _CHECKS):
            return varying
        if self.spec is None and longest_block(revealed.tree) > 1:  # an instruction that the catalogue does not have
            return None
        order = "a tree" if revealed.order is None else str(revealed.order)
        return (
            f"the probes show {order}, but {count} of {outputs} outputs of random operands mismatch: it does more than"
            " add in that order (compensation, other roundings?), or D is not in the given format"
        )

    def compare(self, revealed: Revealed, where: Array | None = None, product: Any = None) -> Comparison:
        """Compare a product (A, B, D) of random operands with its emulation in the revealed order."""
        M, N, _ = self.shape
        where = self._where() if where is None else where
        A, B, D = product or (*(operands := self.operands(M, N, 21)), self.gemm(*operands))
        rows, columns = (_sample(n, i) for n, i in zip((M, N), self._start(), strict=True))
        at = np.ix_(rows, columns)
        closest = self._closest(revealed.tree, A[rows], B[:, columns], D[at])
        if closest is None:
            raise InputError("check: no known instruction has these formats and blocks of this length; give --hardware")
        spec, wrong = closest
        across = int(wrong.any(axis=1 if N > M else 0).sum())
        return Comparison(spec, wrong.size, int(wrong.sum()), across, int(wrong[where[at]].sum()))

    def _closest(self, tree: Tree, A: Array, B: Array, D: Array) -> tuple[MmaSpec, Array] | None:
        """Of the possible instructions, the one with the fewest mismatches in the order of a tree, and these."""
        closest: tuple[MmaSpec, Array] | None = None
        for spec in self._specs(tree):
            expected = np.asarray(round_to(mma.gemm(A, B, None, spec, tree), self.result))
            wrong = expected.astype(np.float64) != D
            if closest is None or wrong.sum() < closest[1].sum():
                closest = spec, wrong
            if not wrong.any():
                break
        return closest

    def _specs(self, tree: Tree) -> list[MmaSpec]:
        """The possible instructions: the given one, then those of the catalogue with sufficiently long blocks.

        One of each arithmetic, shortest blocks first; of the hardware alone, if it is known.
        """
        first = [] if self.spec is None else [self.spec]
        block = longest_block(tree)
        if first and block == 1:  # without blocks, their arithmetic has no effect
            return first
        if self.inputs.name in ("fp32", "fp64"):
            rows = [FMA_SPECS[self.inputs.name]]
        else:
            arch = None if self.hardware is None else catalog.architecture(self.hardware)
            rows = [
                row
                for row in catalog.rows()
                if (row.a_format, row.b_format) == self._formats
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
