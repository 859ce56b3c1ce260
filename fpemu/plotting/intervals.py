"""Picture of batch invariance: the summation orders of a GEMM against its number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpemu import plotting
from fpemu.probing.invariance import Invariance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOUBLINGS = 6  # of the sizes, from which on their axis is logarithmic


def picture(found: Invariance) -> Figure:
    """Draw a line for each order of an `fpemu.probing.Invariance`, with bars over the values that have it.

    Parameters
    ----------
    found : Invariance
        The intervals with equal orders.

    Returns
    -------
    Figure
        The picture.
    """
    name, numeric = found.intervals[0].name, all(type(i.last) is int for i in found.intervals)
    fig, panels = plotting.figure(width=plotting.DOUBLE, height=0.9 + 0.3 * len(found.orders))
    axes = panels[0, 0]
    for place, i in enumerate(found.intervals):
        first, last = (i.first, i.last) if numeric else (place, place)
        for order in i.orders:
            left = first - 0.5 if first > 0 or not numeric else first
            axes.barh(order, last + 0.5 - left, left=left, height=0.6, color="#4C93C3")
    if numeric and found.intervals[-1].last >= 2**_DOUBLINGS * max(1, found.intervals[0].first):
        axes.set_xscale("log", base=2)
    if not numeric:
        axes.set_xticks(range(len(found.intervals)), [str(i.first) for i in found.intervals])
    axes.set_yticks(range(len(found.orders)), [text if len(text) < 60 else f"{text[:57]}..." for text in found.orders])
    axes.invert_yaxis()
    axes.set_xlabel(name)
    axes.set_title(str(found).partition("\n")[0].partition(";")[0])
    return fig
