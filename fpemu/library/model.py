"""The choice of cuBLASLt's heuristic without its GPU: neural networks trained on millions of its answers.

``fpemu/library/data/*-model.npz`` has some networks for each type of a version and a GPU. Their inputs are the features
of a product's sizes, its layout and, for 16-bit operands, whether they are bf16; each output is the probability of a
class: a `Configuration`, a tile and, of stream-K kernels, a cluster. The answer is the order with the largest sum of
probabilities if this sum reaches the ``threshold``, which held-out answers determined. The file also has recorded
answers for layers of language models.
``benchmarks/heuristic_model.py`` collects the answers and builds the file.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.library.families import STREAM_K, canonical, with_slices

NETWORKS = {"fp16": "16-bit", "bf16": "16-bit", "tf32": "tf32", "fp32": "fp32", "fp64": "fp64"}
_LARGEST = 2048, 8192  # M and N, and K, of the range that was sampled
_SMS = 132  # multiprocessors of an H100 or H200
_CANDIDATES = 6  # configurations with the largest probabilities whose orders are compared
# smallest K from which the blocks of a wave determine 0, 1, 2, 3 and more slices of a stream-K kernel. The heuristic
# takes fewer of a shorter K: in 630,000 answers 2 slices begin at K = 800 to 2360 and 3 at 4300 to 6000, by tile
_LEAST_K = np.array([0, 0, 2400, 6000, 2**31])
_POWERS = tuple(2.0**n for n in range(9))
_SMALL = (1, 2, 3, 4, 5, 7, 11)
_STEPS = (8, 16, 32, 48, 64, 96, 128, 192, 256)
_TILES = (
    *((16, 16), (16, 32), (32, 16), (32, 32), (16, 64), (64, 16), (32, 64), (64, 32), (64, 64), (8, 128), (128, 8)),
    *((16, 128), (128, 16), (32, 128), (128, 32), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64)),
    *((128, 192), (192, 128), (128, 256), (256, 128)),
)


def features(sizes: Any, flags: Any, xp: Any = np) -> Any:
    """The inputs (n, features) of the networks for sizes M, N, K (n, 3) in float64, arrays of NumPy or of `xp`.

    Sizes, residues, divisibility, rounding to tiles, and waves of tiles. `flags` (n, 2): 1 for TN, 1 for bf16, else 0.
    """
    M, N, K = (sizes[:, n] for n in range(3))
    each = sizes[:, :, None]
    powers, steps, small, tiles = (xp.asarray(x, dtype=xp.float64) for x in (_POWERS, _STEPS, _SMALL, _TILES))
    logarithms = xp.log2(xp.stack((M, N, K, M * N, M * K, N * K, M * N * K, M / N, M * N / (K * K)), 1))
    rounded = xp.ceil(each / steps)
    count = xp.ceil(M[:, None] / tiles[:, 0]) * xp.ceil(N[:, None] / tiles[:, 1])
    waves = xp.ceil(count / _SMS)
    binary = each // powers[:8] % 2, 1.0 * (each % powers[1:] == 0), 1.0 * (each == small)
    by_size = (*binary, each / (rounded * steps), 1 / rounded)
    parts = (x.reshape(len(sizes), -1) for x in by_size)
    return xp.concatenate((flags, logarithms, *parts, xp.log2(count), count / (waves * _SMS), 1 / waves), 1)


class Network(NamedTuple):
    """A network of dense layers: their weights (outputs, inputs) and biases; SiLU after all but the last two."""

    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The probabilities of the classes, from normalized features."""
        for n, (weight, bias) in enumerate(self.layers):
            x = x @ weight.T + bias
            if n < len(self.layers) - 2:
                x *= np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * x)
        x = np.exp(x - x.max(axis=1, keepdims=True))
        return x / x.sum(axis=1, keepdims=True)


class Model(NamedTuple):
    """The networks of a type, for one layout."""

    networks: tuple[Network, ...]
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    configurations: NDArray[np.int16]  # (n, 8), as of `with_slices`; -1: the class of all rare ones
    starts: NDArray[np.int64]  # of each configuration, its first class; the others follow
    flags: tuple[float, float]  # 1 for TN, 1 for bf16, else 0
    threshold: float

    def votes(self, shapes: NDArray[Any], kind: str) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """For each row (M, N, K) of `shapes`: the canonical configuration, and its probability."""
        flags = np.broadcast_to(np.array(self.flags), (len(shapes), 2))
        x = (features(shapes.astype(np.float64), flags).astype(np.float32) - self.mean) / self.deviation
        classes = np.mean([network(x) for network in self.networks], axis=0)
        share = np.add.reduceat(classes, self.starts, axis=1)
        top = np.argsort(-share, axis=1, kind="stable")[:, :_CANDIDATES]
        each = np.repeat(shapes, top.shape[1], axis=0)
        chosen = self.configurations[top.ravel()]
        rows = with_slices(chosen, "TN" if self.flags[0] else "NN", each)
        few = each[:, 2] < _LEAST_K[np.clip(rows[:, 2], 0, len(_LEAST_K) - 1)]
        rows[(chosen[:, 2] == -1) & (rows[:, 2] > 1) & few, 2] = -1
        merged = canonical(rows, each[:, 2], kind).reshape(*top.shape, 5)
        same = (merged[:, :, None] == merged[:, None]).all(axis=3)
        total = (same * np.take_along_axis(share, top, axis=1)[:, None].astype(np.float64)).sum(axis=2)
        at, best = np.arange(len(shapes)), total.argmax(axis=1)
        found = merged[at, best]
        declined = (found[:, 0] == STREAM_K) & (found[:, 2] == -1)  # without the number of slices there is no order
        return found, np.where(declined, 0, total[at, best])

    def __call__(self, shapes: NDArray[Any], kind: str) -> NDArray[np.int16]:
        """The canonical `Configuration` rows (n, 5) of shapes (n, 3); a row of -1 where the networks are not sure."""
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
        keys, wanted = (x[:, 0].astype(np.int64) << 32 | x[:, 1].astype(np.int64) for x in (self.sizes, shapes[:, 1:]))
        layer = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        inside = (keys[layer] == wanted) & (shapes[:, 0] <= self.most)
        if not inside.any():
            return np.full((len(shapes), 5), -1, np.int16)
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
def load(path: Path, kind: str, layout: str) -> Model | None:
    """The model of a type and layout in a file, or None; that of 16-bit inputs serves both types of results."""
    kind = kind.split("-")[0]
    name = NETWORKS.get(kind)
    with np.load(path) as data:
        if name is None or f"{kind} {layout} threshold" not in data:
            return None
        networks = tuple(map(Network, _networks(data, name)))
        mean, deviation, classes = (data[f"{name} {part}"] for part in ("mean", "deviation", "configurations"))
        flags = float(layout == "TN"), float(kind == "bf16")
        starts = np.flatnonzero((np.diff(classes, axis=0, prepend=-2) != 0).any(axis=1))
        threshold = float(data[f"{kind} {layout} threshold"])
        return Model(networks, mean, deviation, classes[starts], starts, flags, threshold)


def _networks(data: Any, name: str) -> list[tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]]:
    """The layers of the networks of a type: integer weights times the step of their row, and biases."""
    found: list[Any] = []
    while f"{name} {len(found)} 0 weight" in data:
        layers: list[Any] = []
        while (layer := f"{name} {len(found)} {len(layers)}") + " weight" in data:
            weight = data[f"{layer} weight"].astype(np.float32) * data[f"{layer} step"][:, None]
            layers.append((weight, data[f"{layer} bias"].astype(np.float32)))
        found.append(tuple(layers))
    return found
