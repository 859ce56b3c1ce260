"""Summation trees as pictures.

k runs along x, and every accumulator has a row: the blocks that it takes in are bars, and the additions of results are
brackets at the right, where those of accumulators that take turns over k do not cross.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from fpemu.errors import InputError
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.probing.drawing import regular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELLED = 24  # rows of a picture up to which each has a label
_NUMBERED = 40  # steps of a row up to which each has its number
_POINTS = 350  # about the width of the part of a picture in which k runs


@dataclasses.dataclass(frozen=True)
class _Join:
    """A bracket: between the heights of two results, at a level; `begins` where the one is the other's start."""

    level: int
    first: tuple[float, int]
    second: tuple[float, int]
    begins: bool


def layout(tree: Tree) -> tuple[list[Chain], list[_Join]]:
    """The rows of the picture, and its brackets; a result is (height, level)."""
    rows: list[Chain] = []
    joins: list[_Join] = []

    def join(x: tuple[float, int], y: tuple[float, int], begins: bool) -> tuple[float, int]:
        joins.append(_Join(max(x[1], y[1]) + 1, x, y, begins))
        return (y[0] if begins else (x[0] + y[0]) / 2), joins[-1].level

    def result(node: Tree) -> tuple[float, int]:
        if isinstance(node, Sum):
            total = result(node.parts[0])
            for part in node.parts[1:]:
                total = join(total, result(part), False)
            return total
        before = None if node.start is None else result(node.start)
        rows.append(node)
        own = (len(rows) - 1.0, 0)
        return own if before is None else join(before, own, True)

    try:
        result(tree)
    except RecursionError:
        raise InputError("the tree is nested too deep to be drawn") from None
    return rows, joins


def picture(tree: Tree, title: str = "") -> Figure:
    """Draw a summation tree as a figure.

    A row is an accumulator. Its bars are the blocks that it adds, numbered where there is space; neighbours differ in
    shade. A bracket at the right is one addition of two results; a dashed one leads to an accumulator that begins with
    another's result.

    Parameters
    ----------
    tree : Chain or Sum
        Summation tree over K.
    title : str
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure, for `fpemu.plotting.png`, `svg` or `pdf`.
    """
    from fpemu import plotting

    rows, joins = layout(regular(tree))
    size = sum(len(block) for row in rows for block in row.blocks)
    with plotting.style():
        height = 0.95 + 0.21 * min(len(rows), 16) + 0.2 * bool(title)
        figure, panels = plotting.figure(width=plotting.DOUBLE, height=height)
        axes = panels[0, 0]
        _bars(axes, rows, size)
        right = size * (1.32 if joins else 1.05)
        _brackets(axes, rows, joins, size, right)
        axes.set_xlim(-0.01 * size, right)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(False)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_bounds(0, size)
        axes.set_xticks(_ticks(size))
        axes.set_xlabel("k", x=size / 2 / right)
        axes.tick_params(axis="y", length=0)
        if len(rows) <= _LABELLED:
            axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
        else:
            axes.set_yticks([])
            axes.set_ylabel(f"{len(rows)} accumulators")
            kinds = Counter(map(_label, rows)).most_common(5)
            many = "\n".join([f"{n} of {label}" for label, n in kinds[:4]] + ["..."] * (len(kinds) > 4))
            axes.text(0.02 * size, len(rows) * 0.97, many, va="bottom", fontsize=7)
        if title:
            axes.set_title(title, loc="left")
        _legend(figure, rows, joins)
    return figure


def _label(row: Chain) -> str:
    if row.kind == "fma":
        return f"{len(row.blocks)} fma" if len(row.blocks) > 1 else "product"
    counts: list[list[int]] = []
    for block in row.blocks:
        if counts and counts[-1][1] == len(block):
            counts[-1][0] += 1
        else:
            counts.append([1, len(block)])
    return ", ".join(f"{n} × {size}" for n, size in counts) if len(counts) <= 3 else f"{len(row.blocks)} blocks"


def _ticks(size: int) -> list[int]:
    """0, K, and what is round between them."""
    if size <= 16:
        return list(range(size + 1))
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if size / (s * 10**e) <= 8)
    return [*range(0, size - step // 2, step), size]


_COLOURS = {
    "whole": ("#4C93C3", "#8FBFDF", "block of an instruction"),
    "short": ("#D55E00", "#D55E00", "shorter block"),
    "fma": ("#009E73", "#7CC9B1", "fma"),
}
"""Kinds of steps: two shades for neighbours, and the legend."""


def _kind(row: Chain, length: int, whole: int) -> str:
    return "fma" if row.kind == "fma" else "whole" if length == whole else "short"


def _bars(axes: Axes, rows: list[Chain], size: int) -> None:
    """Blocks as bars; where they would be too narrow to see, stretches of blocks of one kind."""
    from matplotlib.collections import PolyCollection

    whole = max((len(b) for row in rows if row.kind == "instruction" for b in row.blocks), default=1)
    boxes, faces, edges = [], [], []
    thick = 0.36 if len(rows) <= 60 else 0.5
    for y, row in enumerate(rows):
        many = len(row.blocks)
        narrow = _POINTS / size * max(map(len, row.blocks)) < 1.5
        numbered = 1 < many <= _NUMBERED and not narrow and len(rows) <= 12
        for a, b, kind, step in _stretches(row, whole, narrow):
            shade = _COLOURS[kind][step % 2 if not narrow and kind != "short" else 0]
            boxes.append([(a, y - thick), (a, y + thick), (b, y + thick), (b, y - thick)])
            faces.append(shade)
            edges.append(shade if kind == "short" or narrow else "white")
            if numbered and _POINTS / size * (b - a) > 8:
                axes.text((a + b) / 2, y, str(step + 1), ha="center", va="center", fontsize=6, color="black")
        if not numbered and not _ascends(row) and len(rows) <= _LABELLED:
            axes.annotate(
                "k not ascending",
                (size, y),
                xytext=(-2, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=6,
            )
    lines = 0.8 if len(rows) <= 60 else 0.2
    axes.add_collection(
        PolyCollection(boxes, facecolors=faces, edgecolors=edges, linewidths=lines, rasterized=len(boxes) > 3000),
        autolim=False,
    )


def _stretches(row: Chain, whole: int, merged: bool) -> list[tuple[int, int, str, int]]:
    """(first k, end, kind, step) for each stretch of k of each block; with `merged`, of neighbours of one kind."""
    out: list[tuple[int, int, str, int]] = []
    for step, block in enumerate(row.blocks):
        kind = _kind(row, len(block), whole)
        fresh = True
        for k in block:
            if out and out[-1][1] == k and (not fresh or (merged and out[-1][2] == kind)):
                out[-1] = (out[-1][0], k + 1, kind, out[-1][3])
            else:
                out.append((k, k + 1, kind, step))
            fresh = False
    return out


def _ascends(row: Chain) -> bool:
    firsts = [min(block) for block in row.blocks]
    return firsts == sorted(firsts)


def _brackets(axes: Axes, rows: list[Chain], joins: list[_Join], size: int, right: float) -> None:
    """From the end of every row to the brackets, and to the result."""
    from matplotlib.collections import LineCollection

    from fpemu import plotting

    depth = max((j.level for j in joins), default=0)
    left = size * 1.03
    unit = (right - left) * 0.88 / max(depth, 1) if depth > 7 else (right - left) / (depth + 1)
    solid: list[Any] = []
    dashed: list[Any] = []
    for j in joins:
        x = left + unit * j.level
        into = dashed if j.begins else solid
        solid.append([(left + unit * j.second[1], j.second[0]), (x, j.second[0])])
        solid.append([(left + unit * j.first[1], j.first[0]), (x, j.first[0])])
        into.append([(x, j.first[0]), (x, j.second[0])])
    last = joins[-1] if joins else None
    height = 0.0 if last is None else last.second[0] if last.begins else (last.first[0] + last.second[0]) / 2
    end = left + unit * depth
    width = 0.9 if len(rows) <= 60 else 0.4 if len(rows) <= 300 else 0.15
    many = len(solid) > 3000
    axes.add_collection(LineCollection(solid, colors=plotting.BLACK, linewidths=width, rasterized=many), autolim=False)
    axes.add_collection(
        LineCollection(dashed, colors=plotting.VERMILION, linewidths=width, linestyles="--"), autolim=False
    )
    axes.annotate(
        "",
        (right, height),
        xytext=(end if joins else size, height),
        arrowprops={
            "arrowstyle": "-|>",
            "linewidth": 0.9,
            "color": plotting.BLACK,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 7,
        },
    )
    if len(rows) <= 60:
        ends = [(max(k for block in row.blocks for k in block) + 1, y) for y, row in enumerate(rows)]
        dotted = [[(x, y), (left, y)] for x, y in ends] if joins else []
        axes.add_collection(LineCollection(dotted, colors=plotting.GREY, linewidths=0.5, linestyles=":"), autolim=False)


def _legend(figure: Figure, rows: list[Chain], joins: list[_Join]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from fpemu import plotting

    whole = max((len(b) for row in rows if row.kind == "instruction" for b in row.blocks), default=1)
    seen = {_kind(row, len(block), whole) for row in rows for block in row.blocks}
    handles: list[Any] = []
    for kind, (dark, _, label) in _COLOURS.items():
        if kind in seen:
            handles.append(Patch(facecolor=dark, label=f"{label} ({whole} k)" if kind == "whole" else label))
    if any(not j.begins for j in joins):
        handles.append(Line2D([], [], color=plotting.BLACK, linewidth=0.9, label="addition of two results"))
    if any(j.begins for j in joins):
        handles.append(
            Line2D([], [], color=plotting.VERMILION, linestyle="--", linewidth=0.9, label="begins with a result")
        )
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), columnspacing=1.4)
