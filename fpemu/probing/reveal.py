"""Finding the summation tree of a GEMM from outside, by probes alone.

The probe is that of Xie et al. (FPRev, USENIX ATC 2025): +M and -M at two positions i and j, a tiny unit everywhere
else. While M is alive in an accumulator, the units vanish; so the number of units that survive tells the size of the
smallest subtree that holds both i and j. From the sizes at a pivot follow the nodes above it; what hangs on each is
taken apart in the same way. A block of an instruction shows as a node with many children. A node of two, one of them a
lone product, can be a step of a chain or an addition outside; a probe of its rounding tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fpemu import formats
from fpemu.arguments import checked, integer, integers
from fpemu.errors import InputError
from fpemu.mma import tree as trees
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.probing import drawing
from fpemu.probing.naming import name_order
from fpemu.probing.probes import Ask, Probe, Rows
from fpemu.probing.structure import Path, structure


@dataclass(frozen=True)
class Revealed:
    """Summation order of a GEMM, found by `reveal`.

    Attributes
    ----------
    tree : Tree
        The canonical tree; `fpemu.mma.gemm` takes it as its order.
    order : KOrder or None
        The KOrder equal to the tree; None if there is none.
    k, probes : int
        K, and the number of probes (each one row of a product).
    """

    tree: Tree
    order: KOrder | None
    k: int
    probes: int

    def __str__(self) -> str:
        name = "no KOrder is this tree" if self.order is None else str(self.order)
        return f"K = {self.k}, {self.probes} probes: {name}\n{drawing.text(self.tree)}"


@checked
def reveal(
    gemm: Callable[[Any, Any], Any] | Ask,
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
        Takes A (M, K) and B (K, N), NumPy arrays of the inputs' format (bf16 and tf32 values in float32).
        Or a `Rows`-like object that makes the calls itself.
    k : int
        K of the product.
    spec : MmaSpec, optional
        The instruction that the GEMM is thought to be made of.
    fmt, out : str, optional
        Formats of the inputs and of D where there is no spec (default: "fp32", and fp32, or fp64 for fp64).
        `out` alone says that D is rounded to a narrower format at the end; whether partial sums are kept in that format
        too is then asked.
    shape : (M, N), optional
        The shape of every call: a library's order can depend on it. Default: rows as they are needed, one column.
    at : int
        The column of D that is read (the row, where N > M): the order can depend on that too.

    Returns
    -------
    Revealed
        The tree, and the KOrder equal to it.

    Raises
    ------
    InputError
        Results that do not come from one tree: units that do not vanish beside M (exact sums in wider accumulators), or
        an order that is not the same in all rows. Also for sums within sums, some 900 deep.

    Notes
    -----
    O(K log K) probes for ordinary trees (counts: `fpemu.probing.structure`), each a row of a call. Where D counts fewer
    units than there are positions (2048 in fp16), the probes of the whole are divided into as many turns as that takes.

    Examples
    --------
    >>> import fpemu
    >>> spec, order = fpemu.mma.spec("H100", "fp16", "fp32"), KOrder(split=48)
    >>> found = reveal(lambda A, B: fpemu.mma.gemm(A, B, None, spec, order), 100, spec)
    >>> found.order
    KOrder(split=48)
    """
    integer("k", k, 1, 2**24)
    if shape is not None:
        shape = integers("shape", shape, 1, 2**24, length=2)  # type: ignore[assignment]
    integer("at", at, 0, min(shape or (1, 1)) - 1)
    inputs = formats.get(fmt or (str(spec.a_format) if spec else "fp32"))
    if spec is None:
        d = "fp64" if inputs.name == "fp64" else "fp32"
        fma = inputs.name in ("fp32", "fp64")
        spec = (
            MmaSpec(inputs, inputs, d, k=1, block=1, arithmetic="fma")
            if fma
            else MmaSpec(inputs, inputs, d, k=64, block=64, F=25)
        )
    ask: Any = gemm
    if not isinstance(gemm, Rows) and not hasattr(gemm, "is_ask"):
        dtype = {"fp16": np.float16, "fp64": np.float64}.get(inputs.name, np.float32)
        plain: Any = gemm
        ask = Rows(plain, k, dtype, shape or (min(k, 512), 1), at)
    d_format = formats.get(out) if out else spec.operand_formats[3]
    probe = Probe(ask, k, inputs, spec, d_format)
    top = structure(k, probe.sizes)
    try:
        tree = _build(top, _kinds(top, probe, spec), spec)
        if d_format.precision < spec.operand_formats[3].precision:
            tree = _workspaces(trees.canonical(tree), probe, d_format)
        tree = trees.canonical(tree, trees.exact_products(spec))
        return Revealed(tree, name_order(tree, k, spec), k, probe.count)
    except RecursionError:
        raise InputError("the sums are nested too deep to be written down") from None


def _kinds(top: int | Path, probe: Probe, spec: MmaSpec) -> dict[int, list[str]]:
    """For each path its steps' kinds.

    "instruction", "sum", "fma" (the step's onto the path's) or "amf" (reversed); "onto" is a first block beside which
    the path's leaf is in the accumulator already (the path is changed to say so).
    """
    kinds: dict[int, list[str]] = {}
    exact, fma = trees.exact_products(spec), spec.arithmetic == "fma"
    open_: list[tuple[Path, int, int, int, int | None]] = []  # path, step, x, y, a leaf outside
    outer: list[tuple[Path, int | None]] = []  # path, a leaf outside of its first step
    stack: list[tuple[int | Path, int | None]] = [(top, None)]
    while stack:
        path, outside = stack.pop()
        if isinstance(path, int):
            continue
        row = kinds[id(path)] = ["instruction"] * len(path.steps)
        outer.append((path, next(_leaves(path.steps[1][0])) if len(path.steps) > 1 else outside))
        for t, step in enumerate(path.steps):
            parts = [kid for kid in step if isinstance(kid, Path)]
            stack.extend((kid, path.leaf) for kid in parts)
            sums = len(parts) + (t > 0)
            if sums > 1 and len(step) > 1:
                raise InputError(f"{sums} partial sums and more are added at once: no instruction here does that")
            if sums > 1:
                row[t] = "sum"
            elif len(step) == 1:
                z = next(_leaves(path.steps[t + 1][0])) if t + 1 < len(path.steps) else outside
                kid = step[0]
                x, y = (path.leaf, kid) if isinstance(kid, int) else (kid.leaf, path.leaf)
                open_.append((path, t, x, y, z))
    if exact:
        nearest = probe.rounding([(x, y, z) for _, _, x, y, z in open_])
        for (path, t, *_), up in zip(open_, nearest, strict=True):
            kinds[id(path)][t] = "sum" if up else "instruction"
        if spec.arithmetic == "truncated" and spec.final == "RZ":
            first = _first_blocks(outer, kinds)
            for (path, ks, _), leaf in zip(first, probe.entered([f[1:] for f in first], spec.F), strict=True):
                if leaf is not None:
                    _enter(path, ks, leaf, kinds)
        return kinds
    fused = probe.fusing([(x, y) for _, _, x, y, _ in open_])
    for (path, t, *_), sign in zip(open_, fused, strict=True):
        lone = t == 0 and isinstance(path.steps[0][0], int)
        if fma:
            reverse = sign < 0 or (t == 0 and not lone)
            kinds[id(path)][t] = "sum" if sign == 0 else "amf" if reverse else "fma"
        elif not lone:
            kinds[id(path)][t] = "sum" if sign == 0 else "instruction"
    if not fma:
        first = _first_blocks(outer, kinds)
        for (path, ks, _), what in zip(first, probe.narrow([ks for _, ks, _ in first]), strict=True):
            if isinstance(what, int):
                _enter(path, ks, what, kinds)
            elif what is not None:
                kinds[id(path)][0] = what
    return kinds


def _first_blocks(
    outer: list[tuple[Path, int | None]], kinds: dict[int, list[str]]
) -> list[tuple[Path, list[int], int | None]]:
    """The paths that begin with a block of products alone, its positions, and a leaf outside."""
    found = []
    for path, z in outer:
        ks = [path.leaf, *(kid for kid in path.steps[0] if isinstance(kid, int))]
        if kinds[id(path)][0] == "instruction" and len(ks) == 1 + len(path.steps[0]):
            found.append((path, ks, z))
    return found


def _enter(path: Path, ks: list[int], leaf: int, kinds: dict[int, list[str]]) -> None:
    """A path's first block without the leaf that was there before."""
    path.steps[0] = [k for k in ks if k != leaf]
    path.leaf = leaf
    kinds[id(path)][0] = "onto"


def _leaves(node: int | Path) -> Any:
    if isinstance(node, int):
        yield node
    else:
        yield node.leaf


def _build(top: int | Path, kinds: dict[int, list[str]], spec: MmaSpec) -> Tree:
    """Chains and sums out of paths."""
    kind: Any = "fma" if spec.arithmetic == "fma" else "instruction"
    if isinstance(top, int):
        return Chain(((top,),), kind)
    tree: Tree | None = None  # None: still the leaf alone
    same = {"amf": "fma", "onto": "instruction"}
    names = [same.get(name, name) for name in kinds[id(top)]]
    at = 0
    for name, run in groupby(names):
        steps = top.steps[at : at + len(list(run))]
        if name == "sum":
            first = Chain(((top.leaf,),), kind) if tree is None else tree
            tree = Sum((first, *(_build(step[0], kinds, spec) for step in steps)))
        else:
            blocks = [tuple(kid for kid in step if isinstance(kid, int)) for step in steps]
            if tree is None:
                begun = [_build(kid, kinds, spec) for kid in steps[0] if isinstance(kid, Path)]
                tree = begun[0] if begun else None
                if kinds[id(top)][0] == "onto":
                    blocks.insert(0, (top.leaf,))
                elif name == "instruction":
                    blocks[0] = (top.leaf, *blocks[0])
                elif begun:
                    blocks[0] = (top.leaf,)
                else:
                    blocks.insert(1 if kinds[id(top)][0] == "amf" else 0, (top.leaf,))
            tree = Chain(tuple(blocks), "fma" if name == "fma" else "instruction", tree)
        at += len(steps)
    assert tree is not None
    return tree


def _workspaces(tree: Tree, probe: Probe, fmt: formats.FloatFormat) -> Tree:
    """The tree with what is rounded to D's narrower format inside: parts of a sum, or what is added up so far.

    Slices that are added to D in place, one after another, leave their sum so far in D's format, and come unrounded.
    """
    sums: list[Sum] = []
    stack: list[Tree] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Sum):
            sums.append(node)
            stack.extend(node.parts)
        elif node.start is not None:
            stack.append(node.start)
    first = [[next(trees.leaves(part)) for part in node.parts] for node in sums]
    asked = [(n, x, ks[i == 0]) for n, ks in enumerate(first) for i, x in enumerate(ks)]
    kept: list[list[bool]] = [[] for _ in sums]
    for (n, _, _), narrow in zip(asked, probe.stored([(x, z) for _, x, z in asked], fmt.precision), strict=True):
        kept[n].append(narrow)
    longer = [n for n, ks in enumerate(first) if len(ks) > 2]
    totals = probe.between([(first[n][0], first[n][1], first[n][2]) for n in longer], fmt.precision)
    between = dict(zip(longer, totals, strict=True))
    marks = {id(node): (kept[n], between.get(n, False)) for n, node in enumerate(sums)}

    def marked(node: Tree) -> Tree:
        if isinstance(node, Chain):
            return node if node.start is None else Chain(node.blocks, node.kind, marked(node.start))
        parts, (own, each) = tuple(map(marked, node.parts)), marks[id(node)]
        if all(own):
            return Sum(parts, fmt.name if each else node.fmt, None if each else fmt.name)
        parts = tuple(Sum((part,), None, fmt.name) if narrow else part for part, narrow in zip(parts, own, strict=True))
        if not each:
            return Sum(parts, node.fmt)
        total = parts[0]
        for n, part in enumerate(parts[1:], 2):
            total = Sum((total, part))
            total = Sum((total,), None, fmt.name) if n < len(parts) else total
        return total

    return marked(tree)
