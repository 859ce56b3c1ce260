"""The summation order of a cuBLAS product, from the configuration that cuBLASLt's heuristic returns for it.

Five fields of a configuration fix the arithmetic: the algorithm (a family of kernels), the stages (with them the block
of K), the number of splits, the reduction scheme and the custom option. The rules were found by probes of products on
an H200 with cuBLAS 13.1 and compared with 4,163 orders that `fpemu.probing.reveal` returned, and with the digests of
4,196 products. `canonical` merges configurations that have the same order for one K.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import LARGEST, choice, flag, integer, integers
from fpemu.errors import InputError
from fpemu.library.tables import LAYOUTS, PLANNED, Layout, Product, instruction
from fpemu.mma import KOrder
from fpemu.mma.tree import Chain, Sum, Tree, added_in

_BYTES = {"e4m3": 1, "int8": 1, "fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4, "fp64": 8}
_MMA, STREAM_K, _INTERLEAVED = (12, 21, 23, 24), 43, (35, 36, 55)
_UNDIVIDED = 19 * 32  # largest K of which stream-K was never seen to divide a tile


# sizes of the tiles and clusters of stream-K kernels, by cuBLASLt's number
_TILES = {15: (64, 64), 16: (128, 32), 17: (64, 128), 18: (128, 64), 19: (64, 256), 20: (128, 128), 21: (256, 64),
          23: (128, 256), 24: (256, 128)}  # fmt: skip
_TILE = np.array([_TILES.get(n, (0, 0)) for n in range(25)])
_CLUSTER = np.array((
    *((0, 0), (0, 0), (1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4), (4, 4), (8, 1), (1, 8), (8, 2)),
    *((2, 8), (16, 1), (1, 16), *((n, 1) for n in (3, 5, 6, 7, *range(9, 16))), *((n, 2) for n in (3, 5, 6, 7))),
    *(*((n, 3) for n in range(1, 6)), (3, 4), (1, 5), (2, 5), (3, 5), (1, 6), (2, 6), (1, 7), (2, 7)),
    *((1, n) for n in range(9, 16)),
))  # fmt: skip


class Configuration(NamedTuple):
    """The fields of a configuration that fix the order of a product, named as cuBLASLt's attributes of an algorithm.

    Parameters
    ----------
    algorithm : int
        CUBLASLT_ALGO_CONFIG_ID, the family of kernels.
    stages : int
        CUBLASLT_ALGO_CONFIG_STAGES_ID; it determines the block of K.
    splits : int
        CUBLASLT_ALGO_CONFIG_SPLITK_NUM, the number of slices of K; -1: stream-K, see `resolved`.
    reduction : int
        CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: 2 stores partial sums in the type of the arithmetic, 4 in that of D; with
        1 they are added in D, one after another.
    custom : int
        CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION.
    """

    algorithm: int
    stages: int
    splits: int
    reduction: int
    custom: int


class _Lanes(NamedTuple):
    """Lanes of fused multiply-adds that take blocks of k in turn."""

    lanes: int
    width: int  # largest number of consecutive k of a lane
    panel: int = 0  # of k; each panel has its own chains, and the lanes are added from left to right. 0: by halves
    fixed: bool = False  # whether the width is the same for a short K


# family 13 (matrix times vector) by the custom option; fp64 has half the width of 64
_VECTOR = {
    **dict.fromkeys((0, 6, 7), _Lanes(1, 1)),
    **dict.fromkeys((1, 48, 56), _Lanes(2, 64)),
    10: _Lanes(32, 4, fixed=True),
    11: _Lanes(16, 1, 512),
    **dict.fromkeys((12, 13, 14), _Lanes(16, 1, 256)),
    **dict.fromkeys((49, 95, 109), _Lanes(2, 1)),
    **dict.fromkeys((51, 77, 97, 111), _Lanes(4, 1)),
    **dict.fromkeys((67, 71, 89, 107), _Lanes(8, 1)),
    **dict.fromkeys((73, 81, 91, 101), _Lanes(16, 1)),
    **dict.fromkeys((75, 83, 93), _Lanes(32, 1)),
    **dict.fromkeys((94, 102, 108), _Lanes(2, 64)),
    **dict.fromkeys((58, 86, 96, 110, 114), _Lanes(4, 64)),
    **dict.fromkeys((88, 106, 112), _Lanes(8, 64)),
    **dict.fromkeys((72, 90, 100), _Lanes(16, 64)),
    **dict.fromkeys((74, 92), _Lanes(32, 64)),
}
# for each option the first one with the same lanes
_FIRST_OPTION = {n: next(first for first, other in _VECTOR.items() if other == lanes) for n, lanes in _VECTOR.items()}


def plan(
    config: Any, type: str, layout: Layout, shape: tuple[int, int, int], *, fast_accumulation: bool = False
) -> Product:
    """Return the product that cuBLAS computes with one of cuBLASLt's configurations.

    Parameters
    ----------
    config : Configuration or mapping
        The fields of `Configuration`, as `fpemu.library.heuristic.Heuristic` returns them. Of a mapping's other fields,
        "tile", "cluster" and "blocks" determine the order of a stream-K kernel.
    type : str
        Type, as in `Product`.
    layout : {"NN", "TN"}
        Layout, as in `Product`.
    shape : (M, N, K)
        Sizes of the product.
    fast_accumulation : bool
        Of e4m3 products: whether the instruction's accumulator is kept for a whole slice of K, not for 128 of k.

    Returns
    -------
    Product
        The product, with a KOrder or a tree.

    Raises
    ------
    InputError
        The family of kernels, or its option, has no known order.

    Examples
    --------
    >>> plan(Configuration(66, 35, 3, 2, 3), "fp16", "NN", (256, 256, 4096)).order
    KOrder(split=1408)
    """
    sizes = integers("shape", shape, 1, LARGEST, length=3)
    choice("type of a product", type, PLANNED), choice("layout", layout, LAYOUTS)
    fast = flag("fast_accumulation", fast_accumulation)
    return planned(resolved(config, layout, sizes), type, layout, sizes, fast=fast)


def lost_terms(config: Any, K: int) -> range:
    """Return the k whose products cuBLASLt leaves out of every sum; an empty range for a complete product.

    Parameters
    ----------
    config : Configuration or mapping
        Configuration of the product, as in `plan`.
    K : int
        Length of the sums.

    Returns
    -------
    range
        The missing k, at the end of K.

    Raises
    ------
    InputError
        K is no positive integer.

    Notes
    -----
    Kernels of family 66 with split-K (cuBLAS 13.1) divide K into slices of 64 q of k. A remainder of K, modulo 64 times
    the number of slices, that has fewer terms than there are slices is in none of them. torch.mm was not seen to run
    such a configuration.

    Examples
    --------
    >>> lost_terms(Configuration(66, 35, 9, 2, 1), 11528)
    range(11520, 11528)
    """
    K, config = integer("K", K, 1, LARGEST), _configuration(config)
    remainder = K % (64 * max(1, config.splits))
    lost = config.algorithm == 66 and remainder < config.splits
    return range(K - remainder if lost else K, K)


def _configuration(config: Any) -> Configuration:
    if isinstance(config, Configuration):
        return config
    try:
        return Configuration(*(int(config[name]) for name in Configuration._fields))
    except (TypeError, KeyError, ValueError, IndexError):
        raise InputError(f"config needs the fields {', '.join(Configuration._fields)}") from None


def resolved(config: Any, layout: str, shape: Sequence[int]) -> Configuration:
    """The configuration with the slices of `with_slices`, if it is a mapping that has the other fields."""
    plain = _configuration(config)
    if plain.splits != -1 or isinstance(config, Configuration):
        return plain
    more = [int(config.get(name, 0)) for name in ("tile", "cluster", "blocks")]
    return Configuration(*with_slices(np.array([[*plain, *more]]), layout, np.array([shape]))[0].tolist())


def with_slices(rows: NDArray[Any], layout: str, shapes: NDArray[Any]) -> NDArray[np.int32]:
    """Rows of `Configuration` fields (n, 5) from rows that also have "tile", "cluster" and "blocks" (n, 8).

    Stream-K kernels (splits -1) that divide all tiles of D alike get the number of slices of a tile. They run one wave
    of thread blocks. If the tiles fill at most half of it, each is divided among as many blocks; if the tiles of the
    last wave fill more than half of it, or all, none is divided.
    """
    out = np.array(rows[:, :5], np.int32)
    at = np.flatnonzero((out[:, 0] == STREAM_K) & (out[:, 2] == -1))
    tile, cluster, blocks = rows[at, 5:].T.astype(np.int64)
    tile, cluster = (np.where((x < 0) | (x >= len(t)), 0, x) for x, t in ((tile, _TILE), (cluster, _CLUSTER)))
    known = (_TILE[tile, 0] > 0) & (_CLUSTER[cluster, 0] > 0) & (blocks > 0)
    size, count, blocks = np.maximum(_TILE[tile], 1), np.maximum(_CLUSTER[cluster], 1), np.maximum(blocks, 1)
    # the first size of a tile is along N if the kernel computes the transpose of D
    sides = shapes[at, :2] if layout == "NN" else shapes[at, 1::-1]
    tiles = (ceil(ceil(sides, size), count) * count).prod(axis=1)
    last = tiles % blocks
    alike = np.where((last == 0) | (2 * last > blocks), 1, -1)
    out[at, 2] = np.where(known, np.where(tiles <= blocks, blocks // tiles, alike), -1)
    return out


def planned(
    config: Configuration,
    kind: str,
    layout: str,
    shape: Sequence[int],
    of: tuple[str, str, str] = ("cublas", "", ""),
    source: str = "configuration",
    fast: bool = False,
) -> Product:
    """`plan` for checked arguments; `of`: library, version and GPU."""
    order, stored = order_of(config, kind, layout, shape, fast)
    arithmetic = arithmetic_of(config, kind)
    rounded = "tf32" if arithmetic == "tf32" else None
    library, version, hardware = of
    M, N, K = shape
    spec = instruction(arithmetic)
    product = Product(library, version, hardware, kind, layout, M, N, K, order, spec, rounded, stored, source=source)
    return replace(product, configuration=tuple(config))


def adds_vector(shape: Sequence[int], sizes: Sequence[int], kind: str) -> bool:
    """Whether PyTorch adds C of this shape as a vector, by cuBLASLt.

    addmm takes a matrix of one row as a vector, and a vector as a matrix if B has one row or column.
    """
    M, N, K = sizes
    return (len(shape) == 1 or M == 1) and (min(N, K) > 1 or kind.startswith("e4m3"))


def rounds_before_adding(product: Product, vector: bool) -> bool:
    """Whether the sum is rounded to the format of D before C, a vector or a matrix, is added; InputError if unknown."""
    family, _, splits, reduction, _ = product.configuration or (0,) * 5
    split, narrow = splits > 1, "->" in product.type
    unknown = split and (vector or narrow if reduction == 1 else reduction == 4 and not vector)
    if not family or unknown or (family == 12 and product.type == "fp64"):
        raise InputError(
            f"{product}: the place of C in the sum is not known for this kernel of cuBLAS (family {family})"
        )
    return narrow and (split and reduction == 4 if vector else family == 66 and not split)


def arithmetic_of(config: Configuration, kind: str) -> str:
    """The type of the multiplications: fp32 for tf32 products on CUDA cores."""
    return "fp32" if kind == "tf32" and config.algorithm in (10, 11, 13, 14, 20, 55) else kind


def order_of(
    config: Configuration, kind: str, layout: str, shape: Sequence[int], fast: bool = False
) -> tuple[KOrder | Tree, str | None]:
    """The order of a configuration, and the format of the partial sums of a KOrder; InputError for an unknown one."""
    name, (family, stages, splits, reduction, custom) = kind.split("-")[0], config
    size, (_, N, K) = _BYTES[name], shape
    if name == "int8" and K < 2**17:  # every sum is exact; longer ones may saturate
        return KOrder(), None
    if family == 66 and name == "e4m3" and splits >= 1 and reduction != 4:
        return _split(K, ceil(ceil(K, 128), splits) * 128, promote=None if fast else 128), None
    if family == 66 and size == 2 and splits >= 1:
        return _joined(K, ceil(ceil(K, 64), splits) * 64, 64, 16, kind, reduction)
    if family in _MMA and size < 8 and name != "fp32" and splits >= 1:
        step = 8 if size == 4 or stages == 0 else 16
        return _joined(K, int(_lengths(K, splits, size)), block_of(stages), step, kind, reduction, residue_first=True)
    if family in (63, STREAM_K) and name == "tf32" and splits == 1:
        return KOrder(), None
    if family == STREAM_K and name == "tf32" and K <= _UNDIVIDED:
        return KOrder(), None
    if family == STREAM_K and name == "tf32" and 1 < splits <= ceil(K, 32):
        return _units(K, splits), None
    if family == 63 and name == "tf32" and splits > 1 and custom == 0:
        return _turns(K, splits, block_of(stages), 8, "instruction", False), None
    if family in (20, 22) and size >= 4 and splits >= 1:
        return _split(K, int(_lengths(K, splits, size))), None
    if family == 10 and name in ("fp32", "tf32"):
        return _split(K, ceil(ceil(K, max(1, splits)), 8) * 8), None
    if family == 12 and name == "fp64" and K == 1:
        return KOrder(), None
    if family in _INTERLEAVED and size >= 4 and splits >= 1 and custom in (0, 1, 2):
        block = 8 if family == 55 else block_of(stages)
        return _turns(K, splits, block, 1, "fma", custom == 1), None
    if family == 11 and custom == 0:
        return _in_lanes(K, _Lanes(16, 1, 256) if layout == "TN" else _Lanes(2, LARGEST, 256)), None
    if family == 11 and custom == 1 and layout == "NN":
        return _in_lanes(K, _Lanes(4, LARGEST, 128)), None
    if family == 13 and custom in _VECTOR and reduction == 0 and splits == 1 and (custom != 10 or size == 2):
        lanes = _VECTOR[custom]
        return _in_lanes(K, lanes._replace(width=32) if size == 8 and lanes.width == 64 else lanes), None
    if family == 14 and splits >= 1:
        width = 1 if size == 8 or (layout == "NN" and N > 1) else 2
        if min(splits, ceil(K, 128 * width)) <= 32:  # the order of more partial sums is unknown
            return _dot(K, splits, width), None
    raise InputError(
        f"cuBLAS's kernels of family {family} (stages {stages}, splits {splits}, reduction {reduction}, custom option"
        f" {custom}) have no known order for {kind} {layout} products: `fpemu reveal` finds it on the GPU"
    )


def ceil(x: Any, y: Any) -> Any:
    """The quotient, rounded up."""
    return -(-x // y)


def block_of(stages: int) -> int:
    """The block of k of CUTLASS kernels."""
    return 32 if stages == 0 or (stages > 24 and stages != 27) else 16 if stages == 27 else 16 << (stages - 1) // 6


def _split(K: int, length: int, **fields: Any) -> KOrder:
    return KOrder(None if length >= K else length, **fields)


def _joined(
    K: int, length: int, block: int, step: int, kind: str, reduction: int, residue_first: bool = False
) -> tuple[KOrder | Tree, str | None]:
    """Slices of the matrix instruction in steps of k; the residue of a slice modulo `block` comes first or last.

    Partial sums are added in ascending order. Reduction scheme 4 rounds them to the type of D; scheme 1 adds them in D,
    which rounds every sum.
    """
    narrow = kind.partition("->")[2] if length < K else ""
    rests = {min(length, K) % block, K % length % block if length < K else 0} if residue_first else {0}
    whole = all(rest % step == 0 for rest in rests)
    stored = narrow or None if reduction == 4 else None
    in_place = narrow != "" and reduction == 1
    if not in_place and (whole or step == 16 or kind == "tf32"):
        tile = 8 if step == 8 and kind != "tf32" else None
        return (_split(K, length, tile=tile) if whole else _split(K, length, tile=block, residue_first=True)), stored
    parts: list[Tree] = []
    for start in range(0, K, length):
        stop = min(K, start + length)
        first = start + (stop - start) % block * residue_first
        parts.append(Chain((*_steps(start, first, step), *_steps(first, stop, step))))
    if in_place:
        return added_in(narrow, parts), None
    return (Sum(tuple(parts), None, stored) if len(parts) > 1 else parts[0]), None


def _steps(start: int, stop: int, step: int) -> Iterable[tuple[int, ...]]:
    return (tuple(range(k, min(k + step, stop))) for k in range(start, stop, step))


def _add(parts: Sequence[Tree | None]) -> Any:
    """The sum of the parts from left to right; None, an empty part, adds nothing."""
    some = [part for part in parts if part is not None]
    return Sum(tuple(some)) if len(some) > 1 else some[0] if some else None


def _positions(K: int, lanes: int, width: int) -> list[list[int]]:
    """The positions of lanes that take `width` consecutive k in turn."""
    return [
        [k for start in range(n * width, K, lanes * width) for k in range(start, min(K, start + width))]
        for n in range(lanes)
    ]


def _turns(K: int, splits: int, block: int, step: int, kind: Any, clustered: bool) -> Any:
    """Chains that take blocks of k in turn; in a cluster, the second half of them is added to the first one."""
    x: list[Any] = [
        Chain(tuple(tuple(ks[i : i + step]) for i in range(0, len(ks), step)), kind) if ks else None
        for ks in _positions(K, splits, block)
    ]
    if not clustered:
        return _add(x)
    half, last = int(ceil(splits, 2)), splits - 1
    terms = [_add([x[0], *x[half : half + 1]])]
    if last > half:
        terms.append(x[last])
    terms += [_add([x[n], x[n + half] if n + half < last else None]) for n in range(1, half)]
    return _add(terms)


def _units(K: int, count: int) -> Tree:
    """Units of whole blocks of 32 k, the longer ones last, that are added in pairs from the last to the first."""
    length, longer = divmod(int(ceil(K, 32)), count)
    bounds = [32 * (n * length + max(0, n - count + longer)) for n in range(count)] + [K]
    x: list[Any] = [Chain(tuple(_steps(*ends, 8))) for ends in pairwise(bounds)][::-1]
    while len(x) > 1:
        x = [_add(x[n : n + 2]) for n in range(0, len(x), 2)]
    return x[0]


def _in_lanes(K: int, lanes: _Lanes) -> Any:
    width = lanes.width if lanes.fixed else min(lanes.width, ceil(K, lanes.lanes))
    x: list[Any] = []
    for n, ks in enumerate(_positions(K, lanes.lanes, width)):
        panels: dict[int, list[tuple[int]]] = {}
        for k in ks:
            # a lane of consecutive k counts its panels from its own first k
            at = k - n * width if width > 1 else k
            panels.setdefault(at // lanes.panel if lanes.panel else 0, []).append((k,))
        x.append(_add([Chain(tuple(blocks), "fma") for blocks in panels.values()]))
    return _add(x) if lanes.panel else _halved(x)


def _dot(K: int, splits: int, width: int) -> Any:
    """Blocks of 128 threads take 128 `width` of k in turn; a second kernel adds their sums in four lanes."""
    span = 128 * width
    blocks: list[Any] = []
    for block in range(min(splits, ceil(K, span))):
        starts = range(block * span, K, splits * span)
        threads = []
        for first in range(0, span, width):
            one = [[start + first + j for start in starts if start + first + j < K] for j in range(width)]
            threads.append(_add([Chain(tuple((k,) for k in ks), "fma") if ks else None for ks in one]))
        blocks.append(_halved(threads))
    return _add([_add(blocks[n::4]) for n in range(4)])


def _halved(x: list[Any]) -> Any:
    """The sum by halves: the second half is added to the first one until one is left."""
    while len(x) > 1:
        half = len(x) // 2
        x = [_add([x[n], x[n + half]]) for n in range(half)]
    return x[0]


# --- one configuration for all with the same order
def canonical(configs: NDArray[Any], K: NDArray[Any], kind: str) -> NDArray[np.int32]:
    """For each row of `Configuration` fields (n, 5) and its K (n,): one with the same order, the same for equal orders.

    The number of splits is the smallest with the same length of slices, and fields without effect are 0. The families
    66, 12, 21, 23 and 24 become one where their order is the same. Some equal orders remain apart.
    """
    name, size = kind.split("-")[0], _BYTES[kind.split("-")[0]]
    out = np.array(configs, np.int32)
    K = np.asarray(K, np.int64)
    family, stages, splits, reduction, custom = out.T  # views
    if name in ("tf32", "fp16", "bf16"):
        _merge_mma(out, K, size, "->" in kind)
    simple = np.isin(family, (20, 22)) & (splits >= 1)
    length = _lengths(K, splits, size)
    splits[simple] = ceil(K, length)[simple]
    stages[simple] = reduction[simple] = custom[simple] = 0
    turns = (np.isin(family, _INTERLEAVED) | ((family == 63) & (splits > 1))) & (splits >= 1)
    block = np.where(family == 55, 8, _blocks(stages))
    blocks = ceil(K, block)
    custom[turns & ((custom == 2) | (blocks <= (splits + 1) // 2))] = 0
    capped = turns & (custom == 0)
    splits[capped] = np.minimum(splits, blocks)[capped]
    family[turns & (family == 36)] = 35
    stages[turns] = np.where(family == 55, 31, np.where(block == 16, 3, np.where(block == 32, 9, stages)))[turns]
    reduction[turns | ((family == STREAM_K) & (splits > 1))] = 0
    out[turns & (splits == 1)] = (22 if size == 8 else 20, 0, 1, 0, 0) if name != "tf32" else (63, 15, 1, 0, 0)
    if name == "tf32":  # family 55 multiplies in fp32, 63 in tf32
        alone = turns & (splits == 1) & (np.asarray(configs)[:, 0] == 55)
        out[alone] = (20, 0, 1, 0, 0)
    vector = (family == 13) & (reduction == 0)
    custom[vector] = [_FIRST_OPTION.get(option, option) for option in custom[vector].tolist()]
    if size >= 4:
        out[vector & (custom == 0)] = (22 if size == 8 else 20, 0, 1, 0, 0)
    return out


def _merge_mma(out: NDArray[Any], K: NDArray[Any], size: int, narrow: bool) -> None:
    """Give equal rows to configurations of the matrix instruction with equal orders."""
    family, stages, splits, reduction, _ = out.T
    plain = (
        (family == 66) | (np.isin(family, (63, STREAM_K)) & (splits == 1)) | ((family == STREAM_K) & (K <= _UNDIVIDED))
    )
    mma = plain | (np.isin(family, _MMA) & (splits >= 1))
    step = np.where((size == 4) | ((stages == 0) & ~plain), 8, 16)
    parts = np.maximum(splits, 1)
    length = np.where(plain, ceil(ceil(K, 64), parts) * 64, _lengths(K, splits, size))
    length = np.minimum(length, K)
    count = ceil(K, length)
    tail = K - (count - 1) * length
    block = np.where(plain, 1, _blocks(stages))

    def residues(block: Any) -> NDArray[Any]:
        rests = [part % block for part in (length, tail)]
        return np.array([np.where(rest % step == 0, 0, rest) for rest in rests])

    own = residues(block)
    chosen = np.zeros(len(out), bool)
    keep = np.zeros_like(out)
    if size == 4:
        modes = [(63, 15, 1), (21, 13, 64), (21, 9, 32), (21, 6, 16), (21, 19, 128)]
    else:
        modes = [(66, 35, 1), (24, 13, 64), (24, 19, 128), (24, 7, 32), (24, 1, 16)]
    for of, with_stages, with_block in modes:
        of_mode = of in (63, 66)
        other = ceil(ceil(K, 64), count) * 64 if of_mode else _lengths(K, count, size)
        same = (np.minimum(other, K) == length) & (residues(with_block) == own).all(axis=0) & mma & ~chosen
        same &= (step == (8 if size == 4 else 16)) | (K <= 8)
        same &= (count == 1) | (of != 63)
        chosen |= same
        keep[same] = np.array([of, with_stages, 0, 0, 0])
    keep[mma & ~chosen] = np.array([24, 0, 0, 0, 0])
    keep[:, 2] = count
    keep[:, 3] = np.where((count > 1) & narrow, reduction, 0)
    out[mma] = keep[mma]


def _lengths(K: Any, splits: Any, size: int) -> NDArray[Any]:
    """The length of a slice: whole lines of 128 bytes if K has them, or else of 16 bytes."""
    grain = np.where(K % (128 // size) == 0, 128 // size, 16 // size)
    return np.where(splits == 1, K, ceil(ceil(K, np.maximum(splits, 1)), grain) * grain)


def _blocks(stages: NDArray[Any]) -> NDArray[Any]:
    table = np.array([block_of(n) for n in range(64)])
    return table[np.clip(stages, 0, 63)]
