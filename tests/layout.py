"""The layout that all figures of several panels share."""

from __future__ import annotations

from typing import Any


def legend_labels(figure: Any) -> list[str]:
    """Return the labels of a drawn figure's legend, which must be distinct and lie outside the lettered panels."""
    assert all(axis.get_title(loc="left").startswith("(") for axis in figure.axes)
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(set(labels)) == len(labels) > 1
    extent = legend.get_window_extent()
    assert not any(extent.overlaps(axis.get_window_extent()) for axis in figure.axes)
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    return labels
