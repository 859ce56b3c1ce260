"""The shape of a summation tree from the sizes of its subtrees, without the kinds of its additions.

One leaf of a group is the pivot. The sizes of the smallest subtrees that hold it and each other leaf show the nodes
above the pivot and the leaves below each of them, which form the next groups. The first position is the pivot, which
suits ascending chains; if it removed few leaves from a group, the next pivot is drawn at random, which halves the group
on average for any tree. Therefore n leaves take O(n log n) probes, and a block of b leaves another b/2 for each leaf.

Counted for chains, splits, pairwise sums, lanes and random trees of 256 and 1000 leaves, in units of n log2 n: 0.2 to
0.6 for fused multiply-adds, up to 1.2 for blocks of 8 and 1.6 for blocks of 16. The maximum, 2.2 for 256 leaves and 1.3
for 10,000, was reached by slices of 32 multiply-adds in descending order, because up to 32 leaves that seem to hang on
one node are all compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.probing.probes import Pairs

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
    """The tree without the kinds of its nodes; the probes of all open groups run together.

    Raises
    ------
    InputError
        The sizes fit no tree.
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
