"""Summation orders over K of libraries and kernels, the common ones first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.tree import Chain, Sum, Tree

_GRAINS = (8, 16, 32, 64, 128, 1, 2, 4)
_TILES = (64, 32, 128, 16, 8, 256)
PROMOTIONS = (16, 32, 64, 128, 256, 512)


def orders(K: int, promote: int | None = None) -> Iterator[KOrder]:
    """Orders of one product, each once, with a fixed promotion interval."""
    yield KOrder(promote=promote)
    lengths = _slice_lengths(K)
    for tile in _TILES:
        if tile < K and K % tile:
            yield KOrder(tile=tile, residue_first=True, promote=promote)
    for length in lengths:
        yield KOrder(length, promote=promote)
    for length in lengths:
        for tile in _TILES[:3]:
            if tile < length and (length % tile or K % length % tile):
                yield KOrder(length, tile, True, promote)
    for length in lengths:
        for join in ("pairwise", "descending") if 2 * length < K else ("descending",) if promote else ():
            yield KOrder(length, promote=promote, join=join)


def _slice_lengths(K: int) -> list[int]:
    """Powers of two, and the lengths of 2 to 32 slices of about equal length, rounded up to whole grains."""
    lengths = [2**i for i in range(4, 14)]
    for slices in (*range(2, 17), 24, 32):
        length = -(-K // slices)
        lengths += [-(-length // grain) * grain for grain in _GRAINS]
    return [length for length in dict.fromkeys(lengths) if length < K]


def promotions(order: KOrder | None, spec: MmaSpec, K: int) -> Iterator[KOrder]:
    """The order with other promotion intervals."""
    base = KOrder() if order is None else order
    for interval in dict.fromkeys((None, spec.k, *PROMOTIONS)):
        if interval != base.promote and (interval is None or interval < K):
            yield replace(base, promote=interval)


def interleaved(K: int, spec: MmaSpec) -> Iterator[tuple[str, Tree]]:
    """Several accumulators that alternate over chunks of K and are added at the end (sliced K)."""
    for lanes in (2, 4, 8, 3, 5, 6, 7, 9, 10, 12, 16):
        for chunk in (8, 16, 32, 4, 1, 64, 128):
            if chunk * lanes <= K and (chunk >= spec.block or spec.rules.fused):
                yield f"{lanes} accumulators that alternate every {chunk} of k", dealt(K, lanes, chunk, spec)


def dealt(K: int, lanes: int, chunk: int, spec: MmaSpec) -> Tree:
    """The tree of `interleaved`."""
    parts = []
    for lane in range(lanes):
        blocks = tuple(
            tuple(range(k, min(k + spec.block, start + chunk, K)))
            for start in range(lane * chunk, K, lanes * chunk)
            for k in range(start, min(start + chunk, K), spec.block)
        )
        if blocks:
            parts.append(Chain(blocks, spec.rules.kind))
    return Sum(tuple(parts)) if len(parts) > 1 else parts[0]
