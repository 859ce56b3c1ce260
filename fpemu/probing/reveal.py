"""The summation tree of a GEMM, found by probes.

The probe comes from Xie et al. (FPRev, USENIX ATC 2025): +M and -M at two positions i and j, a tiny unit at all others.
While M is in an accumulator, the units added to it vanish; the number of surviving units gives the size of the smallest
subtree that holds both i and j. From the sizes for one pivot follow the nodes above it, and the subtrees below these
nodes in the same way. A block of an instruction is a node with many children. A node with two children, one of them a
single product, can be a step of a chain or an addition outside the instruction; a probe of its rounding decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, simt
from fpemu.arguments import integer, integers
from fpemu.errors import InputError, entries
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec, catalog
from fpemu.mma import tree as trees
from fpemu.mma.catalog import FMA_SPECS
from fpemu.mma.order import KOrder
from fpemu.mma.tree import Chain, Sum, Tree, longest_block
from fpemu.probing.callables import CallError, CheckedCallable
from fpemu.probing.probes import Pairs, Probe, ProbeRunner, Rows, scale
from fpemu.probing.trees import name_order, text
from fpemu.rounding import round_to


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
        return f"K = {self.k}, {self.probes} probes: {name}\n{text(self.tree)}"


def reveal(
    gemm: Callable[[Any, Any], Any] | ProbeRunner,
    k: int,
    spec: MmaSpec | None = None,
    *,
    fmt: str | None = None,
    out: str | None = None,
    shape: tuple[int, int] | None = None,
    at: int = 0,
) -> Revealed:
    """Find the summation order of a GEMM over K by probes.

    Parameters
    ----------
    gemm : callable (A, B) -> D
        Takes A (M, K) and B (K, N), NumPy arrays of the inputs' format (bf16 and tf32 values in float32). A
        `fpemu.probing.probes.ProbeRunner` is also accepted.
    k : int
        K of the product.
    spec : MmaSpec, optional
        The presumed instruction of the GEMM.
    fmt, out : str, optional
        Formats of the inputs and of D if there is no spec (default: "fp32", and fp32, or fp64 for fp64). With a spec,
        `out` is a narrower format to which D is rounded at the end; further probes then show whether partial sums are
        rounded to it as well.
    shape : (M, N), optional
        Shape of every call, on which a library's order can depend. Default: K rows, at most 512, and one column.
    at : int
        Column of D that is read (row, if N > M): the order can depend on it as well.

    Returns
    -------
    Revealed
        The tree, and the KOrder equal to it.

    Raises
    ------
    InputError
        The results fit no tree: units do not vanish beside M (exact sums in wider accumulators), or the order differs
        between rows. Also for about 900 nested sums, for longer blocks than the spec's, and for fp8 that is converted
        to fp16 ("via-half"), whose instruction adds the two halves of its k separately.

    Notes
    -----
    A single product between two additions can be a step of the instruction or an addition outside it. If no operands
    distinguish the two (exact or IEEE arithmetic), the tree has an addition outside only after another one.

    Common trees require O(K log K) probes (counts: see `structure`), each a row of a call. If the format of
    D does not represent the sum of K units (K > 2048 in fp16), the probes are divided into several passes.

    Examples
    --------
    >>> import fpemu
    >>> spec, order = fpemu.mma.spec("H100", "fp16", "fp32"), KOrder(split=48)
    >>> revealed = reveal(lambda A, B: fpemu.mma.gemm(A, B, None, spec, order), 100, spec)
    >>> revealed.order
    KOrder(split=48)
    """
    k = integer("k", k, 1, 2**24)
    if shape is not None:
        shape = integers("shape", shape, 1, 2**24, length=2)  # type: ignore[assignment]
    at = integer("at", at, 0, min(shape or (1, 1)) - 1)
    inputs = formats.get(fmt or (str(spec.a_format) if spec else "fp32"))
    given = spec is not None
    if spec is None:
        fma = inputs.name in ("fp32", "fp64")
        spec = FMA_SPECS[inputs.name] if fma else MmaSpec(inputs, inputs, "fp32", k=64, block=64, F=25)
    elif spec.rules.via is not None:
        raise InputError(
            f"{spec} adds the halves of its k apart, which no tree of blocks describes: no order is revealed"
        )
    run: Any = gemm
    longest = spec.block if given else k
    if not hasattr(gemm, "runs_probes"):
        run = Rows(run, k, inputs.dtype, shape or (min(k, 512), 1), at)
    d_format = formats.get(out) if out else spec.operand_formats[3]
    probe = Probe(run, k, inputs, spec, d_format)
    top = structure(k, probe.sizes)
    try:
        tree = _build(top, _kinds(top, probe, spec), spec)
        if d_format.precision < spec.operand_formats[3].precision:
            tree = _workspaces(trees.canonical(tree), probe, d_format)
        tree = trees.canonical(tree, trees.exact_products(spec))
        block = longest_block(tree)
        if block > longest:
            raise InputError(
                f"{block} products are added at once, and a block of {spec} has {longest}: it is another instruction,"
                " or the order does not show"
            )
        return Revealed(tree, name_order(tree, k, spec), k, probe.count)
    except RecursionError:
        raise InputError("the sums are nested too deep to be written down") from None


def _kinds(top: int | Path, probe: Probe, spec: MmaSpec) -> dict[int, list[str]]:
    """For each path the kinds of its steps.

    "instruction", "sum", "fma" (the step's product onto the path's) or "amf" (reversed); "onto" is a first block whose
    accumulator holds the path's leaf already (the path is changed accordingly).
    """
    kinds: dict[int, list[str]] = {}
    exact, fma = trees.exact_products(spec), spec.rules.fused
    undecided: list[tuple[Path, int, int, int, int | None]] = []  # path, step, x, y, a leaf outside
    outer: list[tuple[Path, int | None]] = []  # path, a leaf outside of its first step
    stack: list[tuple[int | Path, int | None]] = [(top, None)]
    while stack:
        path, outside = stack.pop()
        if isinstance(path, int):
            continue
        row = kinds[id(path)] = ["instruction"] * len(path.steps)
        outer.append((path, _leaf(path.steps[1][0]) if len(path.steps) > 1 else outside))
        for t, step in enumerate(path.steps):
            subtrees = [child for child in step if isinstance(child, Path)]
            stack.extend((child, path.leaf) for child in subtrees)
            sums = len(subtrees) + (t > 0)
            if sums > 1 and len(step) > 1:
                raise InputError(f"{sums} partial sums and more are added at once, which no known instruction does")
            if sums > 1:
                row[t] = "sum"
            elif len(step) == 1:
                z = _leaf(path.steps[t + 1][0]) if t + 1 < len(path.steps) else outside
                child = step[0]
                x, y = (path.leaf, child) if isinstance(child, int) else (child.leaf, path.leaf)
                undecided.append((path, t, x, y, z))
    if exact:
        nearest = probe.rounding([(x, y, z) for _, _, x, y, z in undecided])
        for (path, t, *_), up in zip(undecided, nearest, strict=True):
            row = kinds[id(path)]
            up = up if up is not None else t > 0 and row[t - 1] == "sum"  # no probe shows it: as the step before
            row[t] = "sum" if up else "instruction"
        if spec.rules.truncates and spec.final == "RZ":
            first = _first_blocks(outer, kinds)
            for (path, ks, _), leaf in zip(first, probe.entered([f[1:] for f in first], spec.F), strict=True):
                if leaf is not None:
                    _enter(path, ks, leaf, kinds)
        return kinds
    fused = probe.fusing([(x, y) for _, _, x, y, _ in undecided])
    for (path, t, *_), sign in zip(undecided, fused, strict=True):
        single = t == 0 and isinstance(path.steps[0][0], int)
        if fma:
            reverse = sign < 0 or (t == 0 and not single)
            kinds[id(path)][t] = "sum" if sign == 0 else "amf" if reverse else "fma"
        elif not single:
            kinds[id(path)][t] = "sum" if sign == 0 else "instruction"
    if not fma:
        first = _first_blocks(outer, kinds)
        for (path, ks, _), result in zip(first, probe.narrow([ks for _, ks, _ in first]), strict=True):
            if isinstance(result, int):
                _enter(path, ks, result, kinds)
            elif result is not None:
                kinds[id(path)][0] = result
    return kinds


def _first_blocks(
    outer: list[tuple[Path, int | None]], kinds: dict[int, list[str]]
) -> list[tuple[Path, list[int], int | None]]:
    """The paths that begin with a block of products only, its positions, and a leaf outside."""
    blocks = []
    for path, z in outer:
        ks = [path.leaf, *(child for child in path.steps[0] if isinstance(child, int))]
        if kinds[id(path)][0] == "instruction" and len(ks) == 1 + len(path.steps[0]):
            blocks.append((path, ks, z))
    return blocks


def _enter(path: Path, ks: list[int], leaf: int, kinds: dict[int, list[str]]) -> None:
    """Move the leaf that was in the accumulator before out of a path's first block."""
    path.steps[0] = [k for k in ks if k != leaf]
    path.leaf = leaf
    kinds[id(path)][0] = "onto"


def _leaf(node: int | Path) -> int:
    return node if isinstance(node, int) else node.leaf


def _build(top: int | Path, kinds: dict[int, list[str]], spec: MmaSpec) -> Tree:
    """The tree of chains and sums of a path."""
    kind = spec.rules.kind
    if isinstance(top, int):
        return Chain(((top,),), kind)
    tree: Tree | None = None  # None: only the leaf so far
    kinds_of = kinds[id(top)]
    names = [{"amf": "fma", "onto": "instruction"}.get(name, name) for name in kinds_of]
    at = 0
    for name, run in groupby(names):
        steps = top.steps[at : at + len(list(run))]
        if name == "sum":
            first = Chain(((top.leaf,),), kind) if tree is None else tree
            tree = Sum((first, *(_build(step[0], kinds, spec) for step in steps)))
        else:
            blocks = [tuple(child for child in step if isinstance(child, int)) for step in steps]
            if tree is None:
                begun = [_build(child, kinds, spec) for child in steps[0] if isinstance(child, Path)]
                tree = begun[0] if begun else None
                if kinds_of[0] == "onto":
                    blocks.insert(0, (top.leaf,))
                elif name == "instruction":
                    blocks[0] = (top.leaf, *blocks[0])
                elif begun:
                    blocks[0] = (top.leaf,)
                else:
                    blocks.insert(1 if kinds_of[0] == "amf" else 0, (top.leaf,))
            tree = Chain(tuple(blocks), "fma" if name == "fma" else "instruction", tree)
        at += len(steps)
    assert tree is not None
    return tree


def _workspaces(tree: Tree, probe: Probe, fmt: formats.FloatFormat) -> Tree:
    """The tree with its roundings to D's narrower format: of parts of a sum, or of the sum so far.

    Slices that are added to D in place, one after another, leave the sum so far in D's format; they are not rounded
    themselves.
    """
    sums = [node for node in trees.nodes(tree) if isinstance(node, Sum)]
    first = [[next(trees.leaves(part)) for part in node.parts] for node in sums]
    pairs = [(n, x, ks[i == 0]) for n, ks in enumerate(first) for i, x in enumerate(ks)]
    stored: list[list[bool]] = [[] for _ in sums]
    for (n, _, _), narrow in zip(pairs, probe.stored([(x, z) for _, x, z in pairs], fmt.precision), strict=True):
        stored[n].append(narrow)
    longer = [n for n, ks in enumerate(first) if len(ks) > 2]
    totals = probe.between([(first[n][0], first[n][1], first[n][2]) for n in longer], fmt.precision)
    between = dict(zip(longer, totals, strict=True))
    marks = {id(node): (stored[n], between.get(n, False)) for n, node in enumerate(sums)}

    def marked(node: Tree) -> Tree:
        if isinstance(node, Chain):
            return node if node.start is None else Chain(node.blocks, node.kind, marked(node.start))
        parts, (of_parts, each) = tuple(map(marked, node.parts)), marks[id(node)]
        if all(of_parts):
            return Sum(parts, fmt.name if each else node.fmt, None if each else fmt.name)
        parts = tuple(
            Sum((part,), None, fmt.name) if narrow else part for part, narrow in zip(parts, of_parts, strict=True)
        )
        if not each:
            return Sum(parts, node.fmt)
        total = parts[0]
        for n, part in enumerate(parts[1:], 2):
            total = Sum((total, part))
            total = Sum((total,), None, fmt.name) if n < len(parts) else total
        return total

    return marked(tree)


# --- the shape of the tree
_ALL_PAIRS = 32  # up to so many siblings (the longest block) are all compared; more at strides of 2^n


@dataclass(eq=False)
class Path:
    """A leaf and the nodes above it, up to the root of a subtree: for each node, its other children."""

    leaf: int
    steps: list[list[int | Path]] = field(default_factory=list)


@dataclass
class _Task:
    """A group of leaves below a node with `size` leaves; the first leaf is the pivot."""

    group: list[int]
    size: int
    beside: list[int]  # another leaf of the node, if one is known
    sink: list[int | Path]
    sparse: bool = False  # the leaves seem to be children of the node itself, and few pairs confirm it
    tried: bool = False

    def need(self, k: int) -> list[int]:
        """The codes of the pairs with sizes that must be known."""
        if not self.sparse:
            return _codes([(self.group[0], q) for q in self.group[1:]], k)
        group, n = sorted(self.group), len(self.group)
        strides = [1 << s for s in range(n.bit_length() - 1)]
        return _codes([(group[i], group[i + stride]) for stride in strides for i in range(n - stride)], k)


def structure(k: int, sizes: Callable[[list[Pairs]], list[NDArray[Any]]]) -> int | Path:
    """The tree without the kinds of its nodes, from the sizes of its subtrees; InputError if they fit no tree.

    One leaf of a group is the pivot. The sizes of the smallest subtrees that hold it and each other leaf show the nodes
    above the pivot and the leaves below each of them, which form the next groups. The probes of all open groups run
    together. The first position is the pivot, which suits ascending chains; if it removed few leaves from a group, the
    next pivot is drawn at random, which halves the group on average for any tree. Therefore n leaves take O(n log n)
    probes, and a block of b leaves another b/2 for each leaf.

    Counted for chains, splits, pairwise sums, lanes and random trees of 256 and 1000 leaves, in units of n log2 n: 0.2
    to 0.6 for fused multiply-adds, up to 1.2 for blocks of 8 and 1.6 for blocks of 16. The maximum, 2.2 for 256 leaves
    and 1.3 for 10,000, was reached by slices of 32 multiply-adds in descending order, because up to 32 leaves that seem
    to hang on one node are all compared with each other.
    """
    draw = np.random.default_rng(k)  # reproducible probes
    known: dict[int, int] = {}
    top: list[int | Path] = []
    tasks = [_Task(list(range(k)), k + 1, [], top)]
    while tasks:
        waiting: list[_Task] = []
        wanted: dict[int, tuple[_Task, set[int]]] = {}
        while tasks:
            task = tasks.pop()
            need = task.need(k)
            missing = {code for code in need if code not in known}
            if missing:
                wanted.setdefault(id(task), (task, set()))[1].update(missing)
                waiting.append(task)
            elif task.sparse and all(known[code] == task.size for code in need):
                task.sink.extend(task.group)
            elif task.sparse:
                tasks.append(_Task(task.group, task.size, task.beside, task.sink))
            else:
                with_pivot = dict(zip(task.group[1:], (known[code] for code in need), strict=True))
                rest, alone = _climb(task, with_pivot, tasks, draw)
                if len(rest) == 1:
                    task.sink.append(rest[0])
                elif rest:
                    again = _Task(_pivoted(rest, task.group, draw), task.size, [task.group[0]], task.sink)
                    again.sparse = alone and len(rest) > _ALL_PAIRS and not task.tried
                    again.tried = again.sparse or (task.tried and alone)
                    tasks.append(again)
                    if alone and len(rest) <= _ALL_PAIRS:
                        pairs = {c for c in _codes(combinations(rest, 2), k) if c not in known}
                        if pairs:
                            wanted[id(again)] = (again, pairs)
        tasks = waiting
        if wanted:
            codes = [sorted(some) for _, some in wanted.values()]
            groups = [
                Pairs(np.stack(np.divmod(np.array(some), k), axis=1), task.group, task.beside, task.size)
                for (task, _), some in zip(wanted.values(), codes, strict=True)
            ]
            for some, counted in zip(codes, sizes(groups), strict=True):
                known.update(zip(some, counted.tolist(), strict=True))
    return top[0]


def _pivoted(group: list[int], before: list[int], draw: np.random.Generator) -> list[int]:
    """The group with its pivot in front: the first position, or a random one if the last pivot removed few leaves."""
    first = int(draw.integers(len(group))) if 4 * len(group) > 3 * len(before) > 3 * _ALL_PAIRS else 0
    if first == 0:
        return sorted(group)
    return [group[first], *sorted(group[:first] + group[first + 1 :])]


def _codes(pairs: Iterable[tuple[int, int]], k: int) -> list[int]:
    return [min(p, q) * k + max(p, q) for p, q in pairs]


def _climb(
    task: _Task, with_pivot: dict[int, int], tasks: list[_Task], draw: np.random.Generator
) -> tuple[list[int], bool]:
    """Remove the pivot's subtree from a group; return the remaining leaves, and whether the subtree was one leaf."""
    path = Path(task.group[0])
    levels: dict[int, list[int]] = {}
    for q, s in with_pivot.items():
        levels.setdefault(s, []).append(q)
    rest = levels.pop(task.size, [])
    task.sink.append(path if levels else path.leaf)
    count = 1
    for s in sorted(levels):
        count += len(levels[s])
        if count != s:
            q = levels[s][0]
            raise InputError(
                f"the results fit no tree: {count} positions lie with {path.leaf} in a subtree that has {s} ({q} among"
                " them). Units may not vanish beside M, or the order may depend on the position in D"
            )
        step: list[int | Path] = []
        path.steps.append(step)
        if len(levels[s]) == 1:
            step.append(levels[s][0])
        else:
            tasks.append(_Task(_pivoted(levels[s], task.group, draw), s, [path.leaf], step))
    return rest, not levels


# --- a GEMM of the command line: contradictions in one line, and a comparison with an emulation


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
        # D holds the sum of up to eight units exactly in every format
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
        return scale(self.inputs, flushed=self.spec is not None and self.spec.rules.flushes)

    def operands(self, M: int, N: int, seed: int) -> tuple[Array, Array]:
        """Normal random operands (M, K) and (K, N)."""
        rng, K = np.random.default_rng(seed), self.shape[2]
        A, B = (np.asarray(round_to(rng.standard_normal(shape), self.inputs)) for shape in ((M, K), (K, N)))
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
        comparisons: list[Comparison] = []
        for spec in self._specs(revealed.tree):
            expected = mma.gemm(a, b, None, spec, revealed.tree)
            wrong = np.asarray(round_to(expected, self.result)).astype(np.float64) != D
            lines = wrong if N > M else wrong.T  # the rows or columns of D, one of which was probed
            probed = lines[(rows if N > M else columns).index(self.at)]
            comparisons.append(
                Comparison(spec, D.size, int(wrong.sum()), int(lines.any(axis=1).sum()), int(probed.sum()))
            )
            if not wrong.any():
                break
        if not comparisons:
            raise InputError("check: no known instruction has these formats and blocks of this length; give --hardware")
        return min(comparisons, key=lambda comparison: comparison.mismatches)

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
