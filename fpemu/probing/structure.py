"""The summation tree of a GEMM, built from the results of its probes.

The probe comes from Xie et al. (FPRev, USENIX ATC 2025): +M and -M at two positions i and j, a tiny unit at all others.
While M is in an accumulator, the units added to it vanish; the number of surviving units gives the size of the smallest
subtree that holds both i and j. From the sizes for one pivot follow the nodes above it, and the subtrees below these
nodes in the same way. A block of an instruction is a node with many children. A node with two children, one of them a
single product, can be a step of a chain or an addition outside the instruction; a probe of its rounding decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec
from fpemu.mma import tree as trees
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.probing.probes import Pairs, Probe

Array = NDArray[Any]


def tree_of(probe: Probe) -> Tree:
    """The canonical tree that probes show; InputError if their results fit no tree."""
    spec = probe.spec
    top = structure(probe.k, probe.sizes)
    _decide(top, probe, spec)
    tree = _build(top, spec)
    if probe.out.precision < spec.operand_formats[3].precision:
        tree = _workspaces(trees.canonical(tree), probe, probe.out)
    return trees.canonical(tree, trees.exact_products(spec))


# --- the shape of the tree
_ALL_PAIRS = 32  # up to so many siblings (the longest block) are all compared; more at strides of 2^n


@dataclass(eq=False)
class Path:
    """A leaf and the nodes above it, up to the root of a subtree: for each node, its other children and its kind.

    Kinds: "instruction", "sum", "fma" (the step's product onto the path's) or "amf" (reversed); "onto" is a first block
    whose accumulator holds the path's leaf already.
    """

    leaf: int
    steps: list[list[int | Path]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


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


def structure(k: int, sizes: Callable[[list[Pairs]], list[Array]]) -> int | Path:
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


# --- the kinds of its nodes
def _decide(top: int | Path, probe: Probe, spec: MmaSpec) -> None:
    """Decide the kinds of the steps of all paths, and the leaf of those that begin with a block onto an accumulator."""
    exact, fma = trees.exact_products(spec), spec.rules.fused
    undecided: list[tuple[Path, int, int, int, int | None]] = []  # path, step, x, y, a leaf outside
    outer: list[tuple[Path, int | None]] = []  # path, a leaf outside of its first step
    stack: list[tuple[int | Path, int | None]] = [(top, None)]
    while stack:
        path, outside = stack.pop()
        if isinstance(path, int):
            continue
        path.kinds = ["instruction"] * len(path.steps)
        outer.append((path, _leaf(path.steps[1][0]) if len(path.steps) > 1 else outside))
        for t, step in enumerate(path.steps):
            subtrees = [child for child in step if isinstance(child, Path)]
            stack.extend((child, path.leaf) for child in subtrees)
            sums = len(subtrees) + (t > 0)
            if sums > 1 and len(step) > 1:
                raise InputError(f"{sums} partial sums and more are added at once, which no known instruction does")
            if sums > 1:
                path.kinds[t] = "sum"
            elif len(step) == 1:
                z = _leaf(path.steps[t + 1][0]) if t + 1 < len(path.steps) else outside
                child = step[0]
                x, y = (path.leaf, child) if isinstance(child, int) else (child.leaf, path.leaf)
                undecided.append((path, t, x, y, z))
    if exact:
        nearest = probe.rounding([(x, y, z) for _, _, x, y, z in undecided])
        for (path, t, *_), up in zip(undecided, nearest, strict=True):
            up = up if up is not None else t > 0 and path.kinds[t - 1] == "sum"  # no probe shows it: as the step before
            path.kinds[t] = "sum" if up else "instruction"
        if spec.rules.truncates and spec.final == "RZ":
            first = _first_blocks(outer)
            for (path, ks, _), leaf in zip(first, probe.entered([f[1:] for f in first], spec.F), strict=True):
                if leaf is not None:
                    _enter(path, ks, leaf)
        return
    fused = probe.fusing([(x, y) for _, _, x, y, _ in undecided])
    for (path, t, *_), sign in zip(undecided, fused, strict=True):
        single = t == 0 and isinstance(path.steps[0][0], int)
        if fma:
            reverse = sign < 0 or (t == 0 and not single)
            path.kinds[t] = "sum" if sign == 0 else "amf" if reverse else "fma"
        elif not single:
            path.kinds[t] = "sum" if sign == 0 else "instruction"
    if not fma:
        first = _first_blocks(outer)
        for (path, ks, _), result in zip(first, probe.narrow([ks for _, ks, _ in first]), strict=True):
            if isinstance(result, int):
                _enter(path, ks, result)
            elif result is not None:
                path.kinds[0] = result


def _first_blocks(outer: list[tuple[Path, int | None]]) -> list[tuple[Path, list[int], int | None]]:
    """The paths that begin with a block of products only, its positions, and a leaf outside."""
    blocks = []
    for path, z in outer:
        ks = [path.leaf, *(child for child in path.steps[0] if isinstance(child, int))]
        if path.kinds[0] == "instruction" and len(ks) == 1 + len(path.steps[0]):
            blocks.append((path, ks, z))
    return blocks


def _enter(path: Path, ks: list[int], leaf: int) -> None:
    """Move the leaf that was in the accumulator before out of a path's first block."""
    path.steps[0] = [k for k in ks if k != leaf]
    path.leaf = leaf
    path.kinds[0] = "onto"


def _leaf(node: int | Path) -> int:
    return node if isinstance(node, int) else node.leaf


def _build(top: int | Path, spec: MmaSpec) -> Tree:
    """The tree of chains and sums of a path."""
    kind = spec.rules.kind
    if isinstance(top, int):
        return Chain(((top,),), kind)
    tree: Tree | None = None  # None: only the leaf so far
    names = [{"amf": "fma", "onto": "instruction"}.get(name, name) for name in top.kinds]
    at = 0
    for name, run in groupby(names):
        steps = top.steps[at : at + len(list(run))]
        if name == "sum":
            first = Chain(((top.leaf,),), kind) if tree is None else tree
            tree = Sum((first, *(_build(step[0], spec) for step in steps)))
        else:
            blocks = [tuple(child for child in step if isinstance(child, int)) for step in steps]
            if tree is None:
                begun = [_build(child, spec) for child in steps[0] if isinstance(child, Path)]
                tree = begun[0] if begun else None
                if top.kinds[0] == "onto":
                    blocks.insert(0, (top.leaf,))
                elif name == "instruction":
                    blocks[0] = (top.leaf, *blocks[0])
                elif begun:
                    blocks[0] = (top.leaf,)
                else:
                    blocks.insert(1 if top.kinds[0] == "amf" else 0, (top.leaf,))
            tree = Chain(tuple(blocks), "fma" if name == "fma" else "instruction", tree)
        at += len(steps)
    assert tree is not None
    return tree


def _workspaces(tree: Tree, probe: Probe, fmt: FloatFormat) -> Tree:
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
