"""The summation tree of a GEMM, found by probes.

The probe comes from Xie et al. (FPRev, USENIX ATC 2025): +M and -M at two positions i and j, a tiny unit at all others.
While M is in an accumulator, the units added to it vanish; the number of surviving units gives the size of the smallest
subtree that holds both i and j. From the sizes for one pivot follow the nodes above it, and the subtrees below these
nodes in the same way. A block of an instruction is a node with many children. A node with two children, one of them a
single product, can be a step of a chain or an addition outside the instruction; a probe of its rounding decides.
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
from fpemu.probing.naming import longest_block, name_order
from fpemu.probing.probes import Probe, ProbeRunner, Rows
from fpemu.probing.structure import Path, structure


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
        return f"K = {self.k}, {self.probes} probes: {name}\n{drawing.text(self.tree)}"


@checked
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

    Common trees require O(K log K) probes (counts: `fpemu.probing.structure`), each a row of a call. If the format of
    D does not represent the sum of K units (K > 2048 in fp16), the probes are divided into several passes.

    Examples
    --------
    >>> import fpemu
    >>> spec, order = fpemu.mma.spec("H100", "fp16", "fp32"), KOrder(split=48)
    >>> revealed = reveal(lambda A, B: fpemu.mma.gemm(A, B, None, spec, order), 100, spec)
    >>> revealed.order
    KOrder(split=48)
    """
    integer("k", k, 1, 2**24)
    if shape is not None:
        shape = integers("shape", shape, 1, 2**24, length=2)  # type: ignore[assignment]
    integer("at", at, 0, min(shape or (1, 1)) - 1)
    inputs = formats.get(fmt or (str(spec.a_format) if spec else "fp32"))
    given = spec is not None
    if spec is None:
        d = "fp64" if inputs.name == "fp64" else "fp32"
        fma = inputs.name in ("fp32", "fp64")
        spec = (
            MmaSpec(inputs, inputs, d, k=1, block=1, arithmetic="fma")
            if fma
            else MmaSpec(inputs, inputs, d, k=64, block=64, F=25)
        )
    elif spec.arithmetic == "via-half":
        raise InputError(
            f"{spec} adds the halves of its k apart, which no tree of blocks describes: no order is revealed"
        )
    run: Any = gemm
    longest = spec.block if given else k
    if not hasattr(gemm, "runs_probes"):
        dtype = {"fp16": np.float16, "fp64": np.float64}.get(inputs.name, np.float32)
        run = Rows(run, k, dtype, shape or (min(k, 512), 1), at)
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
    exact, fma = trees.exact_products(spec), spec.arithmetic == "fma"
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
        if spec.arithmetic == "truncated" and spec.final == "RZ":
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
    kind: Any = "fma" if spec.arithmetic == "fma" else "instruction"
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
