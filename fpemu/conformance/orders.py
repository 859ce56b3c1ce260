"""Summation orders of a plain product, and their products on a few entries from common partial sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import groupby, islice, product
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.conformance.specification import Specification, describe_order, multiply_adds, to_format
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.gemm import _chain
from fpemu.mma.order import reduce_pairwise
from fpemu.mma.tree import Chain, Sum, Tree, added_in, from_order

Array = NDArray[Any]
Index = NDArray[np.int64]
_GRAINS = (8, 16, 32, 64, 128, 1, 2, 4)
TILES = (64, 32, 128, 16, 8, 256)
PROMOTIONS = (16, 32, 64, 128, 256, 512)
_AT_ONCE = 16  # lengths of slices that are summed at once
Candidate = tuple[Any, str, dict[str, Any], Array]
"""An order or a function that returns it, its text, further fields, and the product on a few entries"""


def lanes_of(K: int, lanes: int, chunk: int) -> Index:
    """The positions k of each of several accumulators that alternate over chunks of K; -1 pads to equal lengths."""
    rounds = -(-K // (lanes * chunk))
    ks = np.arange(rounds * lanes * chunk).reshape(rounds, lanes, chunk).transpose(1, 0, 2).reshape(lanes, -1)
    return np.where(ks < K, ks, -1)


def chains_of(ks: Index, spec: MmaSpec) -> list[Tree]:
    """The chain of each row of positions; a block of an instruction holds `spec.block` positions, -1 among them."""
    chains: list[Tree] = []
    for row in ks:
        blocks = [tuple(int(k) for k in row[i : i + spec.block] if k >= 0) for i in range(0, len(row), spec.block)]
        if any(blocks):
            chains.append(Chain(tuple(block for block in blocks if block), spec.rules.kind))
    return chains


def joined(parts: list[Any], how: str, add: Callable[[Any, Any], Any]) -> Any:
    """Partial sums added in the order `how`; "WxU: X, Y" joins the vectors of W lanes by X and then the lanes by Y."""
    if ":" in how:
        width, first, second = int(how.split()[0]), *how.partition(": ")[2].split(", ")
        vectors = [joined(parts[lane::width], first, add) for lane in range(width)]
        return joined(vectors, second, add)
    if how == "pairwise":
        return reduce_pairwise(parts, add)
    if how == "halves":
        while len(parts) > 1:
            half = (len(parts) + 1) // 2
            parts = [*map(add, parts, parts[half:]), *parts[len(parts) // 2 : half]]
        return parts[0]
    return reduce(add, parts[::-1] if how == "descending" else parts)


class Sums:
    """Partial sums of a plain product on a few entries, and the additions of its unit."""

    def __init__(self, s: Specification, A: Array, B: Array):
        assert s.spec is not None
        self.s, self.spec, self.K = s, s.spec, A.shape[1]
        self.A, self.B = (np.concatenate([x, np.zeros_like(x[..., :1])], -1) for x in (A, B.T))
        self.unit = simt.SPECS["fp32"] if s.multiply_add else self.spec

    def chains(self, ks: Index, start: Array | None = None) -> Array:
        """The chains of the rows of positions ks; -1 is a product 0."""
        a, b = np.moveaxis(self.A[:, ks], 1, 0), np.moveaxis(self.B[:, ks], 0, 2)
        if self.s.multiply_add is not None:
            fmt, fused = self.s.multiply_add
            return multiply_adds(a, b, fmt, fused, start)
        value = _chain(
            [(np.ascontiguousarray(a), np.ascontiguousarray(b))], None if start is None else start[None], self.spec
        )
        return value.astype(self.spec.outer_dtype, copy=False)

    def add(self, x: Array, y: Array) -> Array:
        return x + y if self.s.multiply_add is None else to_format(x + y, self.s.multiply_add[0])

    def done(self, T: Array) -> Array:
        """The sum in the format of the accumulator."""
        fmt: Any = self.spec.d_format
        return T if isinstance(fmt, str) else T.astype(fmt.dtype, copy=False)


def lengths_of(K: int, *, every: bool = False) -> list[int]:
    """Likely lengths of slices; `every`: all lengths, of long K only multiples of 4 or 8."""
    if every:
        step = 1 if K <= 2048 else 4 if K <= 4096 else 8
        return [n for n in range(step, K, step) if n >= 4]
    lengths = [2**i for i in range(2, 14)]
    for slices in (*range(2, 17), 24, 32):  # of about equal length, rounded up to whole grains
        length = -(-K // slices)
        lengths += [-(-length // grain) * grain for grain in _GRAINS]
    return [length for length in dict.fromkeys(lengths) if 1 < length < K]  # 1: products rounded before their sum


def _unlikely(length: int) -> int:
    """0 for a power of two, more for lengths that are no multiple of 64 or 8."""
    return 0 if length >= 32 and length & (length - 1) == 0 else 1 if length % 64 == 0 else 2 if length % 8 == 0 else 3


def complexity(order: Any) -> tuple[int, ...]:
    """A rank of orders with equal bits: those of few and likely lengths first, then of long ones; trees follow."""
    if not isinstance(order, KOrder | None):
        return (4,)
    order = order or KOrder()
    lengths = [n for n in (order.split, order.promote, order.tile) if n]
    return len(lengths), order.join != "ascending", sum(map(_unlikely, lengths)), -sum(lengths)


def _partial_sums(x: Sums, lengths: Iterable[int]) -> Iterator[tuple[int, Array]]:
    """The sums of the slices of each length; lengths within a factor of two are summed at once, with zeros appended."""
    for _, group in groupby(sorted(lengths), int.bit_length):
        while some := list(islice(group, _AT_ONCE)):
            ks = [lanes_of(x.K, -(-x.K // n), n) for n in some]
            padded = [np.pad(k, ((0, 0), (0, some[-1] - k.shape[1])), constant_values=-1) for k in ks]
            ends = np.cumsum([len(k) for k in ks])
            yield from zip(some, np.split(x.chains(np.concatenate(padded)), ends[:-1]), strict=True)


def slices(x: Sums, *, every: bool = False) -> Iterator[Candidate]:
    """Summation orders with their products: one chain, slices of likely lengths joined in several ways, promotion."""
    s, K, unit = x.s, x.K, x.unit
    if not every:
        promoted = isinstance(s.order, KOrder) and s.order.promote is not None
        yield KOrder(), "one chain" + ", no promotion" * promoted, {}, x.done(x.chains(np.arange(K)[None])[0])
    for length, P in _partial_sums(x, lengths_of(K, every=every)):
        for how in ("ascending",) if every else ("ascending", "pairwise", "descending"):
            if how != "ascending" and len(P) < 3:  # two slices have one sum
                continue
            T = joined(list(P), how, x.add)
            order = KOrder(length, join=how)  # type: ignore[arg-type]
            text = describe_order(order)
            if how == "ascending" and length in PROMOTIONS:
                text = f"promotion every {length} of k, or {text}, which is the same"
                order = KOrder(promote=length)
            elif how == "ascending" and length % unit.k == 0:
                text += f", or promotion every {length} of k, which is the same"
            yield order, text, {}, x.done(T)
        if not every:
            yield from _with_stored(x, P, KOrder(length))


def nested(x: Sums) -> Iterator[Candidate]:
    """Summation orders with their products: the residue of tiles first, and promotion within slices."""
    yield from _with_tiles(x)
    lengths = {n for n in (*PROMOTIONS, x.unit.k) if 1 < n < x.K} if x.s.multiply_add is None else ()
    for length, P in _partial_sums(x, lengths):
        for group in range(2, len(P)):
            if len(P) > 64 and group & (group - 1) and -(-len(P) // group) > 32:
                continue
            padded = np.concatenate([P, np.zeros((-len(P) % group, *P.shape[1:]), P.dtype)])
            inner = np.add.accumulate(padded.reshape(-1, group, *P.shape[1:]), axis=1)[:, -1]
            order = KOrder(group * length, promote=length)
            T = np.add.accumulate(inner, axis=0)[-1]
            yield order, describe_order(order), {}, x.done(T)


def workspaces(x: Sums) -> Iterator[Candidate]:
    """Slices whose partial sums are rounded to the format of the operands in a workspace, while D is wider."""
    fmt = x.s.inputs[0] if x.s.inputs else str(x.s.operand)
    for length, P in _partial_sums(x, lengths_of(x.K) if fmt != x.s.result else ()):
        yield from _with_stored(x, P, KOrder(length), fmt)


def _with_stored(x: Sums, P: Array, order: KOrder, fmt: str = "") -> Iterator[Candidate]:
    """Slices whose partial sums are rounded to a narrow format before their sum, in a workspace; or, without `fmt`, to
    D's format, or added in D, which rounds each sum."""
    in_place, fmt = not fmt, fmt or x.s.result
    if fmt not in ("fp16", "bf16") or x.s.multiply_add is not None or len(P) == 1:
        return
    stored = [to_format(p, fmt).astype(p.dtype) for p in P]
    text = f"{describe_order(order)}, the slices stored in {fmt} and added in"
    narrow = reduce(lambda a, b: to_format(a + b, fmt).astype(a.dtype), stored)
    yield order, f"{text} fp32", {"stored": fmt}, x.done(reduce(add, stored))
    yield order, f"{text} {fmt}", {"join": fmt}, x.done(narrow)
    if in_place:
        T = reduce(lambda a, b: to_format(a, fmt).astype(a.dtype) + b, P)
        tree = partial(_added_in_d, order, x, fmt)
        yield tree, f"{describe_order(order)}, the slices added in D, which rounds each sum to {fmt}", {}, x.done(T)


def _added_in_d(order: KOrder, x: Sums, fmt: str) -> Tree:
    sums = from_order(order, x.K, x.spec)
    return added_in(fmt, sums.parts if isinstance(sums, Sum) else (sums,))


def _with_tiles(x: Sums) -> Iterator[Candidate]:
    """Orders whose slices begin with the residue of their tiles."""
    K, k = x.K, x.unit.k
    if x.unit.rules.fused:
        return
    for length, tile in product((K, *lengths_of(K)), TILES):
        if tile >= length or not (length % tile or K % length % tile) or (length < K and tile not in TILES[:3]):
            continue
        rows = []
        for start in range(0, K, length):
            ks = np.arange(start, min(start + length, K))
            residue = len(ks) % tile
            rows.append(np.insert(ks, residue, [-1] * (-residue % k)))
        if not any(-1 in row for row in rows):  # residues of whole instructions: the order is that of plain slices
            continue
        longest = max(map(len, rows))
        P = x.chains(np.array([np.pad(row, (0, longest - len(row)), constant_values=-1) for row in rows]))
        order = KOrder(length if length < K else None, tile, residue_first=True)
        yield order, describe_order(order), {}, x.done(np.add.accumulate(P, axis=0)[-1])
        yield from _with_stored(x, P, order)


def interleaved(x: Sums) -> Iterator[Candidate]:
    """Accumulators that alternate over chunks of k: SIMD lanes × unrolled vectors, and groups of warps (sliced K)."""
    K, unit = x.K, x.unit
    counts = (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 9, 10, 12, 24, 48, 128)
    for chunk, lanes in product((1, 8, 16, 32, 4, 64, 128), counts):
        if chunk * lanes >= K or (chunk % unit.block and not unit.rules.fused) or (chunk > 1 and lanes > 16):
            continue
        for tail, ending in _TAILS.items() if K % (chunk * lanes) and unit.rules.fused else (("", ""),):
            main = K // (chunk * lanes) * chunk * lanes if tail else K
            ks, rest = lanes_of(main, lanes, chunk), np.arange(main, K)
            P = list(x.chains(ks))
            for how in dict.fromkeys(_joins(lanes)):
                T = _with_rest(P, rest, tail, how, lambda k, start: x.chains(k[None], start)[0], x.add)
                text = f"{lanes} accumulators that alternate every {chunk} of k"
                text += f", joined {how}" * (how != "ascending") + ending

                def build(ks: Index = ks, rest: Index = rest, tail: str = tail, how: str = how) -> Tree:
                    def chain(k: Index, start: Tree | None) -> Tree:
                        return Chain(tuple((int(i),) for i in k), "fma", start)

                    return _with_rest(chains_of(ks, unit), rest, tail, how, chain, lambda a, b: Sum((a, b)))

                yield build, text, {}, x.done(T)


_TAILS = {
    "": "",
    "first": ", the rest of k in the first",
    "after": ", the rest of k after their sum",
    "apart": ", the sum of the rest of k added last",
}
"""Places of the last k, which are too few for all accumulators; "": zeros are appended to them."""


def _with_rest(parts: list[Any], rest: Index, tail: str, how: str, chain: Callable[..., Any], add: Any) -> Any:
    """The sum of accumulators and of the rest of k: of arrays or of trees, by their `chain` and `add`."""
    if tail == "first":
        parts = [chain(rest, parts[0]), *parts[1:]]
    total = joined(parts, how, add)
    if tail == "after":
        return chain(rest, total)
    return add(total, chain(rest, None)) if tail == "apart" else total


def _joins(lanes: int) -> Iterator[str]:
    """Ways of adding the accumulators of lanes: all in turn, or vectors of some lanes first and then the lanes."""
    yield from ("ascending", "pairwise", "halves")
    for width in (4, 8, 16, 2, 32):
        if lanes % width == 0 and lanes > width:
            for first, second in product(("ascending", "pairwise", "halves"), repeat=2):
                yield f"{width} lanes: {first}, {second}"
