"""Pictures of summation trees.

k runs along x, and every accumulator has a row: its blocks are bars, and additions of results are brackets at the
right, where those of interleaved accumulators do not cross.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fpemu.errors import InputError
from fpemu.mma.tree import Chain, Sum, Tree
from fpemu.probing.trees import regular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELLED = 24  # largest number of rows with a label for each
_NUMBERED = 40  # largest number of steps of a row with a number for each
_POINTS = 350  # approximate width, in points, of the range of k
_RASTERIZED = 3000  # number of shapes from which on they are drawn as pixels
_COLOURS = {
    "whole": ("#4C93C3", "#8FBFDF", "block of an instruction"),
    "short": ("#D55E00", "#D55E00", "shorter block"),
    "fma": ("#009E73", "#7CC9B1", "fma"),
}  # kinds of steps: two shades for neighbours, and the legend
_Result = tuple[float, int]  # height, and level of the bracket that ends there


@dataclasses.dataclass(frozen=True)
class _Join:
    """A bracket between two results, at a level; `begins`: the second accumulator starts from the first result."""

    level: int
    first: _Result
    second: _Result
    begins: bool

    @property
    def height(self) -> float:
        return self.second[0] if self.begins else (self.first[0] + self.second[0]) / 2


def layout(tree: Tree) -> tuple[list[Chain], list[_Join]]:
    """The rows of the picture, and its brackets."""
    rows: list[Chain] = []
    joins: list[_Join] = []

    def join(x: _Result, y: _Result, begins: bool) -> _Result:
        joins.append(_Join(max(x[1], y[1]) + 1, x, y, begins))
        return joins[-1].height, joins[-1].level

    def result(node: Tree) -> _Result:
        if isinstance(node, Sum):
            total = result(node.parts[0])
            for part in node.parts[1:]:
                total = join(total, result(part), False)
            return total
        start = None if node.start is None else result(node.start)
        rows.append(node)
        row = (len(rows) - 1.0, 0)
        return row if start is None else join(start, row, True)

    try:
        result(tree)
    except RecursionError:
        raise InputError("the tree is nested too deep to be drawn") from None
    return rows, joins


def picture(tree: Tree, title: str = "") -> Figure:
    """Draw a summation tree as a figure.

    A row is an accumulator. Its bars are its blocks, numbered where there is space, in two alternating shades. A
    bracket at the right is one addition of two results; a dashed one leads to an accumulator that starts from another's
    result.

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
    whole = max((len(b) for row in rows if row.kind == "instruction" for b in row.blocks), default=1)
    with plotting.style():
        height = 0.95 + 0.21 * min(len(rows), 16) + 0.2 * bool(title)
        figure, panels = plotting.figure(width=plotting.DOUBLE, height=height)
        axes = panels[0, 0]
        _bars(axes, rows, size, whole)
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
        _legend(figure, {_kind(row, block, whole) for row in rows for block in row.blocks}, whole, joins)
    return figure


def _label(row: Chain) -> str:
    if row.kind == "fma":
        return f"{len(row.blocks)} fma" if len(row.blocks) > 1 else "product"
    runs = [f"{len(list(run))} × {length}" for length, run in groupby(map(len, row.blocks))]
    return ", ".join(runs) if len(runs) <= 3 else f"{len(row.blocks)} blocks"


def _ticks(size: int) -> list[int]:
    """0, K, and round numbers between them."""
    if size <= 16:
        return list(range(size + 1))
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if size / (s * 10**e) <= 8)
    return [*range(0, size - step // 2, step), size]


def _kind(row: Chain, block: tuple[int, ...], whole: int) -> str:
    return "fma" if row.kind == "fma" else "whole" if len(block) == whole else "short"


def _bars(axes: Axes, rows: list[Chain], size: int, whole: int) -> None:
    """Blocks as bars; neighbouring blocks of one kind as one bar where they would be too narrow to see."""
    from matplotlib.collections import PolyCollection

    boxes, faces, edges = [], [], []
    thick = 0.36 if len(rows) <= 60 else 0.5
    for y, row in enumerate(rows):
        narrow = _POINTS / size * max(map(len, row.blocks)) < 1.5
        numbered = 1 < len(row.blocks) <= _NUMBERED and not narrow and len(rows) <= 12
        for a, b, kind, step in _stretches(row, whole, narrow):
            shade = _COLOURS[kind][step % 2 if not narrow and kind != "short" else 0]
            boxes.append([(a, y - thick), (a, y + thick), (b, y + thick), (b, y - thick)])
            faces.append(shade)
            edges.append(shade if kind == "short" or narrow else "white")
            if numbered and _POINTS / size * (b - a) > 8:
                axes.text((a + b) / 2, y, str(step + 1), ha="center", va="center", fontsize=6, color="black")
        firsts = [min(block) for block in row.blocks]
        if not numbered and firsts != sorted(firsts) and len(rows) <= _LABELLED:
            text: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 6}
            axes.annotate("k not ascending", (size, y), xytext=(-2, 0), **text)
    lines = 0.8 if len(rows) <= 60 else 0.2
    bars = PolyCollection(
        boxes, facecolors=faces, edgecolors=edges, linewidths=lines, rasterized=len(boxes) > _RASTERIZED
    )
    axes.add_collection(bars, autolim=False)


def _stretches(row: Chain, whole: int, merged: bool) -> list[tuple[int, int, str, int]]:
    """(first k, end, kind, step) of each contiguous stretch of each block; `merged`: of neighbours of one kind."""
    out: list[tuple[int, int, str, int]] = []
    for step, block in enumerate(row.blocks):
        kind = _kind(row, block, whole)
        for i, k in enumerate(block):
            if out and out[-1][1] == k and (i > 0 or (merged and out[-1][2] == kind)):
                out[-1] = (out[-1][0], k + 1, kind, out[-1][3])
            else:
                out.append((k, k + 1, kind, step))
    return out


def _brackets(axes: Axes, rows: list[Chain], joins: list[_Join], size: int, right: float) -> None:
    """Lines from the end of every row to the brackets, the brackets, and an arrow to the result."""
    from matplotlib.collections import LineCollection

    from fpemu import plotting

    depth = max((j.level for j in joins), default=0)
    left = size * 1.03
    unit = (right - left) * 0.88 / max(depth, 1) if depth > 7 else (right - left) / (depth + 1)
    solid: list[Any] = []
    dashed: list[Any] = []
    for j in joins:
        x = left + unit * j.level
        solid += [[(left + unit * level, y), (x, y)] for y, level in (j.second, j.first)]
        (dashed if j.begins else solid).append([(x, j.first[0]), (x, j.second[0])])
    width = 0.9 if len(rows) <= 60 else 0.4 if len(rows) <= 300 else 0.15
    black: dict[str, Any] = {"colors": plotting.BLACK, "rasterized": len(solid) > _RASTERIZED}
    axes.add_collection(LineCollection(solid, linewidths=width, **black), autolim=False)
    red = LineCollection(dashed, colors=plotting.VERMILION, linewidths=width, linestyles="--")
    axes.add_collection(red, autolim=False)
    y = joins[-1].height if joins else 0.0
    arrow = {"arrowstyle": "-|>", "linewidth": 0.9, "color": plotting.BLACK, "mutation_scale": 7}
    end = left + unit * depth if joins else size
    axes.annotate("", (right, y), xytext=(end, y), arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0})
    if len(rows) <= 60:
        ends = [(max(k for block in row.blocks for k in block) + 1, y) for y, row in enumerate(rows)]
        dotted = [[(x, y), (left, y)] for x, y in ends] if joins else []
        axes.add_collection(LineCollection(dotted, colors=plotting.GREY, linewidths=0.5, linestyles=":"), autolim=False)


def _legend(figure: Figure, kinds: set[str], whole: int, joins: list[_Join]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from fpemu import plotting

    handles: list[Any] = [
        Patch(facecolor=dark, label=f"{label} ({whole} k)" if kind == "whole" else label)
        for kind, (dark, _, label) in _COLOURS.items()
        if kind in kinds
    ]
    if any(not j.begins for j in joins):
        handles.append(Line2D([], [], color=plotting.BLACK, linewidth=0.9, label="addition of two results"))
    if any(j.begins for j in joins):
        dashes: dict[str, Any] = {"color": plotting.VERMILION, "linewidth": 0.9}
        handles.append(Line2D([], [], linestyle="--", label="starts from a result", **dashes))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), columnspacing=1.4)
