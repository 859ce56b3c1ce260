"""The choice of cuBLASLt's heuristic without its GPU: decision trees trained on tens of millions of its answers.

``fpemu/library/data/*-model.npz`` has one tree for each type and layout of a version and a GPU. A leaf has an index of
`Configuration` rows, or none where the answers of held-out shapes show that the tree is not sure. The nodes are stored
in preorder: ``feature`` (255: a leaf) and ``value`` (the threshold, or the index, or -1).
``benchmarks/heuristic_model.py`` collects the answers and builds the file.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class Forest(NamedTuple):
    """A decision tree of a type and layout."""

    feature: NDArray[np.uint8]
    value: NDArray[np.float32]
    right: NDArray[np.int32]  # index of a node's right child; the left one follows the node
    configurations: NDArray[np.int16]

    def __call__(self, M: Any, N: Any, K: Any) -> NDArray[np.int16]:
        """The `Configuration` rows (n, 5) of arrays of sizes; a row of -1 where the tree is not sure."""
        x = np.stack([np.atleast_1d(f) for f in np.broadcast_arrays(*features(M, N, K))])
        node = np.zeros(x.shape[1], np.int64)
        inner = np.flatnonzero(self.feature[node] != LEAF)
        while inner.size:
            at = node[inner]
            left = x[self.feature[at], inner] <= self.value[at]
            node[inner] = np.where(left, at + 1, self.right[at])
            inner = inner[self.feature[node[inner]] != LEAF]
        index = self.value[node].astype(np.int64)
        beyond = (np.maximum(x[0], x[1]) > _LARGEST[0]) | (x[2] > _LARGEST[1])
        index[beyond] = -1
        return np.where((index < 0)[:, None], np.int16(-1), self.configurations[np.maximum(index, 0)])


@lru_cache(maxsize=32)
def load(path: Path, kind: str, layout: str) -> Forest | None:
    """The tree of a type and layout in a file, or None."""
    with np.load(path) as data:
        if f"{kind} {layout} feature" not in data:
            return None
        feature, value, table = (data[f"{kind} {layout} {part}"] for part in ("feature", "value", "configurations"))
    return Forest(feature, value, right_children(feature), table)


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
