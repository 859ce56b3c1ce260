"""Figures of a sweep's table: curves over a parameter, and a map over two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from fpemu.arguments import choice
from fpemu.errors import InputError, unknown_name
from fpemu.plotting import planes

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from fpemu.plotting import Series

Width = Literal["single", "double"]
Font = Literal["sans", "serif"]
_TICKS = 10  # the largest number of sampled values of which each has a tick
_LOOKS = ("h2sgemm", "legemm", "staged", "ape", "ootomo", "markidis", "sgemm", "fp16", "egemm")
"""Schemes whose colours and markers the curves take, the most distinct ones first."""
_RUNS = ("seed", "error")
"""Columns that may have several values at one point of a figure."""


def curves(
    frame: pandas.DataFrame,
    x: str,
    y: str = "relative_l2",
    hue: str | Sequence[str] = (),
    *,
    width: Width = "single",
    font: Font = "sans",
) -> Figure:
    """Draw a number of a sweep over one parameter: the median over the seeds, and the quartiles as a band.

    Parameters
    ----------
    frame : pandas.DataFrame
        A sweep's table, such as `fpemu.sweep.Grid.run` returns. Rows of failed cells leave a gap.
    x : str
        Column of the parameter, numbers or texts. A scheme without the parameter is a horizontal line.
    y : str
        Column of the number, such as a metric.
    hue : str or sequence of str
        Columns that distinguish the curves; the legend lists each combination of their values.
    width : {"single", "double"}
        One or two columns of a journal, 3.5 or 7.2 inches.
    font : {"sans", "serif"}
        Font of all texts.

    Returns
    -------
    matplotlib.figure.Figure
        With a tick at each sampled value of x, or at a part of them if they are many.

    Raises
    ------
    InputError
        Unknown columns, and a parameter with several values that neither x nor hue names: the median would mix them.

    Examples
    --------
    >>> from fpemu import plotting, sweep
    >>> grid = sweep.Grid(inputs=["normal"], schemes=[{"name": "h2sgemm", "sb": [0, 12]}], hardware="A100", seeds=2,
    ...                   M=8, N=8, K=[32, 64])
    >>> figure = plotting.curves(grid.run(), x="K", y="relative_l2", hue="scheme.sb")
    """
    import pandas

    from fpemu import plotting

    hues = [hue] if isinstance(hue, str) else list(hue)
    seeds = check(frame, (x, *hues), y)
    groups = [((), frame)] if not hues else [*frame.groupby(hues, sort=False, dropna=False)]
    xs = sorted(frame[x].dropna().unique().tolist())
    at = list(range(len(xs))) if isinstance(xs[0], str) else planes.positions(xs)
    with _style(font):
        columns = 2 if width == "single" else 4
        legend = 0.15 * -(-len(groups) // columns)  # inches
        figure, panels = plotting.figure(width=_width(width), height=legend + (2.1 if width == "single" else 2.8))
        axes = panels[0, 0]
        for index, (values, rows) in enumerate(groups):
            named = [_label(*pair) for pair in zip(hues, values, strict=True) if not pandas.isna(pair[1])]
            look = _series(index, ", ".join(named))
            if rows[x].isna().all():  # a scheme without the parameter
                axes.axhline(rows[y].median(), color=look.color, linestyle="--", label=look.label)
                continue
            runs = [rows.loc[rows[x] == value, y].to_numpy(float, na_value=math.nan) for value in xs]
            filled = [(position, run) for position, run in zip(at, runs, strict=True) if len(run)]
            joined = {"linestyle": "none"} if isinstance(xs[0], str) else {}  # nothing lies between names
            plotting.band(axes, [position for position, _ in filled], [run for _, run in filled], look, **joined)
        every = -(-len(xs) // _TICKS)
        axes.set_xticks(
            at[::every], [planes.tick(xs)(value) if type(value) is not str else value for value in xs[::every]]
        )
        axes.set(xlabel=_title(x), ylabel=_title(y))
        smallest = frame[y].min()
        if smallest > 0 and y != "effective_bits":
            axes.set_yscale("log")
        title = f"median and quartiles of {seeds} seeds" if seeds > 1 else ""
        if hues:
            plotting.legend_below(figure, axes, columns, title=title)
        figure.draw_without_rendering()  # creates the ticks' labels while the font is set
    return figure


def plane(
    frame: pandas.DataFrame, x: str, y: str, value: str = "relative_l2", *, width: Width = "single", font: Font = "sans"
) -> Figure:
    """Draw an error of a sweep over two parameters as a map of colours: the mean over the seeds.

    Parameters
    ----------
    frame : pandas.DataFrame
        A sweep's table, such as `fpemu.sweep.Grid.run` returns. Cells without a finite number are hatched.
    x, y : str
        Columns of the parameters, numbers.
    value : str
        Column of the error.
    width : {"single", "double"}
        One or two columns of a journal, 3.5 or 7.2 inches.
    font : {"sans", "serif"}
        Font of all texts.

    Returns
    -------
    matplotlib.figure.Figure
        The smallest errors of each column x are outlined.

    Raises
    ------
    InputError
        Unknown columns, and a parameter with several values that neither x nor y is: the mean would mix them.

    Examples
    --------
    >>> from fpemu import plotting, sweep
    >>> grid = sweep.Grid(inputs=[{"name": "normal", "exponent": "-16:0:4"}], hardware="A100", M=8, N=8, K=32,
    ...                   schemes=[{"name": "h2sgemm", "sb": "0:12:4"}], on_range="propagate")
    >>> figure = plotting.plane(grid.run(), x="inputs.exponent", y="scheme.sb")
    """
    from fpemu import plotting

    check(frame, (x, y), value)
    for name in (x, y):
        if frame[name].dtype.kind not in "fiu":
            raise InputError(f"column {name!r} is not of numbers, and a map has numbers on both axes")
    rows = frame.dropna(subset=[x, y]).astype({value: float}).to_dict("records")
    of = planes.plane(rows, x, y, value)
    with _style(font):
        figure, panels = plotting.figure(width=_width(width), height=3.0 if width == "single" else 4.2)
        mesh = planes.draw(panels[0, 0], of)
        for axis, values in ((panels[0, 0].xaxis, of.xs), (panels[0, 0].yaxis, of.ys)):
            every = -(-len(values) // _TICKS)
            axis.set_ticks(planes.positions(values)[::every], [planes.tick(values)(value) for value in values[::every]])
        panels[0, 0].set(xlabel=_title(x), ylabel=_title(y))
        plotting.colour_bar(figure, mesh, panels[0, 0], _title(value))
        plotting.legend_below(figure, panels[0, 0], 2)
        figure.draw_without_rendering()  # as above
    return figure


# --- the table
def check(frame: pandas.DataFrame, named: Sequence[str], number: str) -> int:
    """Raise InputError for columns that a figure cannot show; return the number of seeds."""
    for name in (*named, number):
        if name not in frame:
            raise unknown_name("column", name, list(frame))
    if frame.empty:
        raise InputError("the table has no rows")
    if frame[number].dtype.kind not in "fiu":
        raise InputError(f"column {number!r} is not of numbers")
    parameters = frame.columns[: frame.columns.get_loc("out") + 1] if "out" in frame else frame.columns.drop(number)
    several = [name for name in parameters if name not in (*named, *_RUNS) and frame[name].nunique(dropna=False) > 1]
    # a parameter that follows from the named ones, such as an option that only one of the schemes has, mixes nothing
    groups = frame.groupby(list(named), dropna=False)
    mixed = [name for name in several if (groups[name].nunique(dropna=False) > 1).any()]
    if mixed:
        raise InputError(
            f"the figure would mix values of {', '.join(mixed)}: name each as hue, or select rows with one value"
        )
    return int(frame["seed"].nunique()) if "seed" in frame else 1


# --- the look
def _width(name: Width) -> float:
    from fpemu import plotting

    return {"single": plotting.SINGLE, "double": plotting.DOUBLE}[choice("width", name, ("single", "double"))]


@contextmanager
def _style(font: Font) -> Iterator[None]:
    import matplotlib as mpl

    from fpemu import plotting

    family = {"sans": "DejaVu Sans", "serif": "DejaVu Serif"}[choice("font", font, ("sans", "serif"))]
    mathematics = {"sans": "dejavusans", "serif": "dejavuserif"}[font]
    with plotting.style(), mpl.rc_context({"font.family": family, "mathtext.fontset": mathematics}):
        yield


def _series(index: int, label: str) -> Series:
    """The look of a curve: its colour and marker, and a line style that differs from its neighbours' in grey too."""
    from fpemu import plotting

    looks = [plotting.SCHEMES[name] for name in _LOOKS]
    return replace(looks[index % len(looks)], label=label, dash=("-", "--", ":", "-.")[index % 4], filled=True)


def _title(column: str) -> str:
    """The label of an axis."""
    name = column.removeprefix("scheme.").replace("_", " ")
    return planes.ERRORS.get(column, f"{name.removeprefix('inputs.')} of the inputs" if "inputs." in name else name)


def _label(column: str, value: Any) -> str:
    """A value in a legend: names alone, other parameters with their name."""
    text = str(value) if isinstance(value, str | bool) else planes.show(float(value))
    return text if column in ("scheme", "hardware", "inputs") else f"{_title(column)} = {text}"
