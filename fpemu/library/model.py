"""The choice of cuBLASLt's heuristic without its GPU: decision trees trained on millions of its answers.

``fpemu/library/data/*-model.npz`` has some trees for each type and layout of a version and a GPU. A leaf has an index
of `Configuration` rows and its purity, the share of this row in the answers of the leaf. Configurations with the same
order for the K of a product are one candidate; the candidate with the largest mean purity is the answer if this mean
reaches the ``threshold``, which held-out answers determined. The nodes of a tree are stored in preorder: ``feature``
(255: a leaf), ``value`` (the threshold, or the index) and ``purity``; ``sizes`` are the numbers of nodes of the trees.
``benchmarks/heuristic_model.py`` collects the answers and builds the file.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.library.families import canonical

LEAF = 255
_LARGEST = 2048, 8192  # M and N, and K, of the range that was sampled densely
_SMS = 132  # multiprocessors of an H100 or H200
_TILES = tuple((m, n) for m in (8, 16, 32, 64, 128, 192, 256) for n in (8, 16, 32, 64, 128, 192, 256) if m * n >= 1024)


def features(M: Any, N: Any, K: Any) -> list[NDArray[np.float32]]:
    """The features of products, from arrays of their sizes: sizes, alignments, residues, tiles and waves of tiles."""
    M, N, K = (np.asarray(x, np.int64) for x in (M, N, K))
    out = [M, N, K, M * N, M * K, N * K, M * N * K, M / N, M * N / (K * K)]
    out += [np.minimum(x & -x, 256) for x in (M, N, K)]
    out += [x % n for x in (M, N, K) for n in (32, 64, 128)] + [M % 256, N % 256]
    for m, n in _TILES:
        tiles = -(-M // m) * -(-N // n)
        out += [tiles, tiles % _SMS]
    return [np.asarray(x, np.float32) for x in out]


class Tree(NamedTuple):
    """A decision tree."""

    feature: NDArray[np.uint8]
    value: NDArray[np.float32]
    purity: NDArray[np.uint8]  # of a leaf, in units of 1/255
    right: NDArray[np.int32]  # index of a node's right child; the left one follows the node

    def leaves(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The leaf of each column of `x`, the features of products."""
        node = np.zeros(x.shape[1], np.int64)
        inner = np.flatnonzero(self.feature[node] != LEAF)
        while inner.size:
            at = node[inner]
            left = x[self.feature[at], inner] <= self.value[at]
            node[inner] = np.where(left, at + 1, self.right[at])
            inner = inner[self.feature[node[inner]] != LEAF]
        return node


class Forest(NamedTuple):
    """The trees of a type and layout."""

    trees: tuple[Tree, ...]
    configurations: NDArray[np.int16]
    threshold: float

    def votes(self, shapes: NDArray[Any], kind: str) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """For each row (M, N, K) of `shapes`: the canonical configuration, and its mean purity."""
        x = np.stack(features(*shapes.T))
        leaves = [tree.leaves(x) for tree in self.trees]
        rows = np.concatenate(
            [self.configurations[t.value[n].astype(int)] for t, n in zip(self.trees, leaves, strict=True)]
        )
        purity = np.array([t.purity[n] / 255 for t, n in zip(self.trees, leaves, strict=True)])
        merged = canonical(rows, np.tile(shapes[:, 2], len(self.trees)), kind).reshape(len(self.trees), -1, 5)
        same = (merged[:, None] == merged[None]).all(axis=3)
        total = (same * purity).sum(axis=1) / len(self.trees)
        best = total.argmax(axis=0)
        at = np.arange(len(shapes))
        return merged[best, at], total[best, at]

    def __call__(self, shapes: NDArray[Any], kind: str) -> NDArray[np.int16]:
        """The canonical `Configuration` rows (n, 5) of shapes (n, 3); a row of -1 where the trees are not sure."""
        rows, share = self.votes(shapes, kind)
        inside = (shapes[:, :2] <= _LARGEST[0]).all(axis=1) & (shapes[:, 2] <= _LARGEST[1])
        sure = (share >= self.threshold) & inside
        return np.where(sure[:, None], rows, -1).astype(np.int16)


class Layers(NamedTuple):
    """Recorded answers for all numbers of rows of linear layers, from 1 to `most`, as runs of one configuration."""

    sizes: NDArray[np.int32]  # N and K of the layers, in ascending order
    most: int
    layer: NDArray[np.uint16]  # of each run: the index of its layer, the first number of rows, the configuration
    first: NDArray[np.uint16]
    row: NDArray[np.uint16]
    configurations: NDArray[np.int16]

    def __call__(self, shapes: NDArray[Any], kind: str) -> NDArray[np.int16]:
        """The canonical `Configuration` rows (n, 5) of shapes (n, 3); a row of -1 outside the layers."""
        known, asked = (x[:, 0].astype(np.int64) << 32 | x[:, 1].astype(np.int64) for x in (self.sizes, shapes[:, 1:]))
        layer = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        inside = (known[layer] == asked) & (shapes[:, 0] <= self.most)
        runs = self.layer.astype(np.int64) * (self.most + 1) + self.first
        run = np.searchsorted(runs, layer * (self.most + 1) + np.minimum(shapes[:, 0], self.most), side="right") - 1
        rows = canonical(self.configurations[self.row[run]], shapes[:, 2], kind)
        return np.where(inside[:, None], rows, -1).astype(np.int16)


@lru_cache(maxsize=32)
def layers(path: Path, kind: str, layout: str) -> Layers | None:
    """The layers of a type and layout in a file, or None; those of 16-bit inputs serve both types of results."""
    name = f"{kind.split('-')[0]} {layout} layers"
    with np.load(path) as data:
        if f"{name} first" not in data:
            return None
        parts = (data[f"{name} {part}"] for part in ("layer", "first", "row", "configurations"))
        return Layers(data["layers"], int(data["most rows"]), *parts)


@lru_cache(maxsize=32)
def load(path: Path, kind: str, layout: str) -> Forest | None:
    """The trees of a type and layout in a file, or None; those of 16-bit inputs serve both types of results."""
    name = f"{kind.split('-')[0]} {layout}"
    with np.load(path) as data:
        if f"{name} feature" not in data:
            return None
        cuts = np.cumsum(data[f"{name} sizes"])[:-1]
        parts = zip(*(np.split(data[f"{name} {part}"], cuts) for part in ("feature", "value", "purity")), strict=True)
        trees = tuple(Tree(a, b, c, right_children(a)) for a, b, c in parts)
        return Forest(trees, data[f"{name} configurations"], float(data[f"{name} threshold"]))


def right_children(feature: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The index of each node's right child in preorder; of a leaf 0."""
    right = np.zeros(len(feature), np.int32)
    waiting: list[int] = []  # nodes whose left subtree is being read
    for n, leaf in enumerate((feature == LEAF).tolist()):
        if not leaf:
            waiting.append(n)
        elif waiting and n + 1 < len(feature):
            right[waiting.pop()] = n + 1
    return right
