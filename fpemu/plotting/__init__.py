"""The look of every figure: one style, one palette, and one function per kind of figure.

A figure is as wide as one column of a two-column journal, with text of at least 6 points. Colours are the Okabe-Ito
palette (distinct for colour-blind readers), every series also has a distinct marker, and the legend stands outside the
axes, where it covers no data.
matplotlib is imported when the first figure is drawn, and no display is needed.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SINGLE, DOUBLE = 3.5, 7.2
"""Widths in inches of a figure in one column and across two."""

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY = "#777777"

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same glyphs, and bytes, on every machine
    "font.size": 7.0,
    "axes.titlesize": 7.0,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.title_fontsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.8,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "savefig.dpi": 300.0,
    "figure.dpi": 100.0,
    "svg.hashsalt": "fpemu",  # without it the ids in an SVG are random
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # TrueType: letters stay letters
    "path.simplify": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the package's style within this context, whatever the user's matplotlib settings are.

    Yields
    ------
    None
        The user's settings are restored when the context ends.
    """
    require("matplotlib")
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams
        parameters.update(_STYLE)
        yield


def figure(
    columns: int = 1,
    rows: int = 1,
    *,
    width: float = SINGLE,
    height: float = 2.6,
    share_x: bool | Literal["row", "col"] = "col",
    share_y: bool | Literal["row", "col"] = True,
    height_ratios: Sequence[float] | None = None,
) -> tuple[Figure, NDArray[Any]]:
    """Create a figure with a grid of panels, without pyplot's global state.

    Parameters
    ----------
    columns, rows : int
        Numbers of panels.
    width, height : float
        In inches; :data:`SINGLE` or :data:`DOUBLE` wide.
    share_x, share_y : bool or {"row", "col"}
        Panels with one axis: all, none, or those of a row or a column.
    height_ratios : sequence of float, optional
        Relative heights of the rows; by default they are equal.

    Returns
    -------
    figure : matplotlib.figure.Figure
        The figure, with a constrained layout.
    axes : array (rows, columns) of Axes
        The panels.
    """
    require("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y, height_ratios=height_ratios)
    return fig, np.asarray(axes)


U16, U24, U53 = (
    {r"$u_{\mathrm{fp16}}=2^{-11}$": 11},
    {r"$u_{\mathrm{fp32}}=2^{-24}$": 24},
    {r"$u_{\mathrm{fp64}}=2^{-53}$": 53},
)
"""Guide lines for `roundoff_guides`; join them with |."""


@dataclass(frozen=True)
class Series:
    """Appearance of one method, the same in every figure.

    Parameters
    ----------
    label : str
        Name in the legend.
    color : str
        Colour of line and marker.
    marker, dash : str
        Marker and line style of matplotlib.
    filled : bool
        Fill the markers with the colour, otherwise with white.
    """

    label: str
    color: str
    marker: str
    dash: str = "-"
    filled: bool = True

    def line(self, **more: Any) -> dict[str, Any]:
        """Return the keyword arguments of ``Axes.plot`` for this series, updated with ``more``."""
        face = self.color if self.filled else "white"
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.dash,
            "markerfacecolor": face,
            "markeredgecolor": self.color,
            "markeredgewidth": 0.8,
            "label": self.label,
            **more,
        }


HARDWARE = {
    "volta": Series("Volta", VERMILION, "o"),
    "turing": Series("Turing", PURPLE, "p"),
    "ampere": Series("Ampere", ORANGE, "^"),
    "ada": Series("Ada", YELLOW, "h"),
    "hopper": Series("Hopper", GREEN, "D"),
    "blackwell": Series("Blackwell", SKY, "v"),
    "cdna1": Series("CDNA 1", GREY, "<", "--"),
    "cdna2": Series("CDNA 2", BLUE, "s", "--"),
    "cdna3": Series("CDNA 3", PURPLE, "P", "--"),
    "ascend910a": Series("Ascend 910A (assumed)", GREY, ">", "-."),
    "ideal": Series("ideal", BLACK, "x", ":"),
}
"""How an architecture looks where a figure compares architectures."""

SCHEMES = {
    "fp16": Series("plain fp16", GREY, "x"),
    "markidis": Series("Markidis", ORANGE, "^"),
    "egemm": Series("EGEMM-TC", YELLOW, "<"),
    "ootomo": Series("Ootomo", SKY, "D"),
    "ape": Series("APE (Ma)", PURPLE, "v"),
    "legemm": Series("LE-GEMM", VERMILION, "o"),
    "h2sgemm": Series("H2SGEMM", BLUE, "P"),
    "staged": Series("staged", GREEN, "h"),
    "sgemm": Series("SGEMM (fp32)", BLACK, "s", "--", filled=False),
}
"""How a scheme looks where a figure compares schemes."""


def band(axes: Axes, x: Sequence[float], runs: Sequence[Sequence[float]], series: Series, **more: Any) -> None:
    """Draw one series as the median over runs, with a band between the quartiles.

    Parameters
    ----------
    axes : matplotlib Axes
        Panel to draw in.
    x : sequence of length n
        Positions.
    runs : n sequences of numbers
        The runs at each x. A run that is NaN or infinite leaves a gap there: no median hides it.
    series : Series
        Appearance.
    **more
        Further arguments of ``Axes.plot``.
    """
    quartiles = [np.quantile(run, (0.25, 0.5, 0.75)) if np.isfinite(run).all() else np.full(3, np.nan) for run in runs]
    low, middle, high = np.transpose(quartiles)
    axes.plot(x, np.where(middle > 0, middle, np.nan), **series.line(**more))
    axes.fill_between(x, low, high, where=(middle > 0).tolist(), color=series.color, alpha=0.2, linewidth=0)


def roundoff_guides(axes: Axes, precisions: Mapping[str, int] | None = None) -> None:
    """Draw dotted lines at the unit roundoffs 2^-p, named at their right end.

    By default the lines are u16 = 2^-11 and u24 = 2^-24.

    Parameters
    ----------
    axes : matplotlib Axes
        With a logarithmic error axis.
    precisions : mapping of label to bits of the significand
        The coarsest is named above its line, the others below theirs: away from the errors, which lie between.
    """
    chosen = U16 | U24 if precisions is None else precisions
    for label, bits in chosen.items():
        above = bits == min(chosen.values())
        axes.axhline(2.0**-bits, color=GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
        axes.annotate(
            label,
            (1.0, 2.0**-bits),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 2 if above else -2),
            textcoords="offset points",
            ha="right",
            va="bottom" if above else "top",
            fontsize=7,
            color=GREY,
        )


def heatmap(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    values: NDArray[Any],
    *,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Draw a map of a positive quantity over two regular axes, on a logarithmic colour scale.

    Parameters
    ----------
    axes : matplotlib Axes
        Panel to draw in.
    x, y : sequences of lengths n and m
        Equally spaced; each value is the centre of its cells.
    values : (m, n) array
        NaN and infinite values are hatched, zeros are white: the scale has no colour for them.
    low, high : float, optional
        Ends of the colour scale; by default the smallest and the largest value. Give both where panels share a bar.

    Returns
    -------
    matplotlib.collections.QuadMesh
        The mesh, which `colour_bar` takes.
    """
    from matplotlib.colors import LogNorm

    drawable = np.isfinite(values) & (values > 0)
    shown = np.ma.masked_array(np.where(drawable, values, 1.0), ~drawable)
    axes.grid(False)
    axes.patch.set(hatch="xxxx", edgecolor="#BBBBBB")
    centres = np.asarray(x), np.asarray(y)
    cells: dict[str, Any] = {"shading": "nearest", "rasterized": True, "linewidth": 0, "zorder": 0.5}
    if (values == 0).any():
        white = np.ma.masked_array(np.ones_like(values), values != 0)
        axes.pcolormesh(*centres, white, cmap="Greys", vmin=1, vmax=2, **cells)
    mesh = axes.pcolormesh(*centres, shown, norm=LogNorm(low, high), cmap="cividis", **cells)
    axes.set_axisbelow(False)
    return mesh


def colour_bar(fig: Figure, mesh: Any, axes: Any, label: str) -> None:
    """Add the colour scale of a `heatmap` at the right of one or several panels.

    Parameters
    ----------
    fig : matplotlib Figure
        Figure of the panels.
    mesh : matplotlib.collections.QuadMesh
        Result of `heatmap`.
    axes : Axes or array of Axes
        Panels that share the scale.
    label : str
        Quantity and unit.
    """
    bar = fig.colorbar(mesh, ax=axes, pad=0.02, aspect=30)
    bar.set_label(label)
    bar.outline.set_linewidth(0.6)


def panel_titles(axes: NDArray[Any], titles: Sequence[str]) -> None:
    """Write titles "(a) ...", "(b) ..." above the panels, row by row.

    Parameters
    ----------
    axes : array of Axes
        Panels, at most twelve.
    titles : sequence of str
        Titles without the letters.
    """
    for letter, one, title in zip("abcdefghijkl", axes.ravel(), titles, strict=False):
        one.set_title(f"({letter}) {title}", loc="left")


def legend_below(fig: Figure, axes: Any, columns: int, title: str = "") -> None:
    """Add one legend for the whole figure below the panels, outside the axes, with each label once.

    Parameters
    ----------
    fig : matplotlib Figure
        Figure to add the legend to.
    axes : Axes or array of Axes
        Panels whose labelled series are listed.
    columns : int
        Largest number of columns; fewer are used where the legend would be wider than the figure.
    title : str
        Text above the entries, such as sizes and number of runs.
    """
    entries: dict[str, Any] = {}
    for one in np.ravel(axes):
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    for count in range(min(columns, max(1, len(entries))), 0, -1):
        legend = fig.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=count, columnspacing=1.4
        )
        if count == 1 or legend.get_window_extent().width <= fig.bbox.width:
            break
        legend.remove()
    legend.set_title(title)


def png(fig: Figure) -> bytes:
    """Return a figure as PNG of 300 dots per inch, with the same bytes for the same figure.

    Parameters
    ----------
    fig : matplotlib Figure
        Figure to save.

    Returns
    -------
    bytes
        Contents of the file.
    """
    return _saved(fig, "png", "Software")


def look_alike(one: bytes, other: bytes) -> bool:
    """Return whether two PNGs show the same figure, drawn by other versions of FreeType or on other processors.

    Parameters
    ----------
    one, other : bytes
        Content of the files.

    Returns
    -------
    bool
        Equal sizes, and at most 0.05 % of the pixels with a channel that differs by more than 32 of 255.
    """
    from matplotlib.image import imread

    if one == other:
        return True
    try:
        images = [imread(io.BytesIO(content), format="png") for content in (one, other)]  # channels of 0 to 1
    except (ValueError, SyntaxError, OSError):  # no PNG, or half of one
        return False
    if images[0].shape != images[1].shape:
        return False
    differing = np.abs(images[0] - images[1]).max(axis=-1) > 32 / 255
    return bool(np.mean(differing) <= 0.0005)


def pdf(fig: Figure) -> bytes:
    """Return a figure as PDF for LaTeX, with the same bytes for the same figure.

    Parameters
    ----------
    fig : matplotlib Figure
        Figure to save.

    Returns
    -------
    bytes
        Contents of the file.
    """
    return _saved(fig, "pdf", "CreationDate", "Creator", "Producer")


def svg(fig: Figure) -> bytes:
    """Return a figure as SVG with letters as outlines, with the same bytes for the same figure.

    Parameters
    ----------
    fig : matplotlib Figure
        Figure to save.

    Returns
    -------
    bytes
        Contents of the file.
    """
    return _saved(fig, "svg", "Date", "Creator")


def _saved(fig: Figure, kind: str, *metadata: str) -> bytes:
    """The file of a figure without the named entries of its metadata, which differ between runs and versions."""
    with style():
        if (layout := fig.get_layout_engine()) is not None:
            for _ in range(2):  # it converges: the ticks depend on the size of the panels, which depends on them
                layout.execute(fig)
        stream = io.BytesIO()
        fig.savefig(stream, format=kind, metadata=dict.fromkeys(metadata))
    return stream.getvalue()


def __getattr__(name: str) -> Any:
    """Return `curves` and `plane`, which draw with the functions of this module."""
    if name not in ("curves", "plane"):
        raise AttributeError(f"module 'fpemu.plotting' has no attribute {name!r}")
    return getattr(importlib.import_module("fpemu.plotting.frames"), name)
