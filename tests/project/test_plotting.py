"""The look of figures: readable sizes, distinct series, legends that cover nothing, the same bytes every time."""

from __future__ import annotations

import itertools

import matplotlib
import numpy as np
import pytest

from fpemu import plotting
from fpemu.plotting import Series

NAMES = ("BLACK", "ORANGE", "SKY", "GREEN", "YELLOW", "BLUE", "VERMILION", "PURPLE", "GREY")
LOOKS = [Series("first", plotting.BLUE, "o"), Series("second", plotting.VERMILION, "s", "--", filled=False)]


def _drawn(width=plotting.SINGLE, height=2.6, columns=2):
    with plotting.style():
        figure, axes = plotting.figure(2, width=width, height=height)
        for axis in axes[0]:
            for scale, look in enumerate(LOOKS, 1):
                plotting.band(axis, [1, 2, 3], [[1e-6 * scale, 2e-6], [1e-5, 3e-5], [1e-4, 2e-4]], look)
            axis.set_yscale("log")
            axis.set_ylim(1e-8, 1e-2)
            plotting.roundoff_guides(axis)
        plotting.panel_titles(axes, ["left", "right"])
        plotting.legend_below(figure, axes, columns, "n = 1, 2, 3; two runs")
    return figure, axes


@pytest.mark.slow
def test_the_same_bytes_every_time():
    (one, _), (two, _) = _drawn(), _drawn()
    png, svg = plotting.png(one), plotting.svg(one)
    assert (png, svg) == (plotting.png(two), plotting.svg(two))
    assert plotting.png(one) == png
    assert b"<dc:date>" not in svg


def test_size_and_resolution():
    figure, _ = _drawn()
    header = plotting.png(figure)[16:24]
    assert int.from_bytes(header[:4], "big") == round(3.5 * 300)
    assert int.from_bytes(header[4:], "big") == round(2.6 * 300)


def test_the_users_settings_are_neither_used_nor_changed():
    before = plotting.png(_drawn()[0])
    with matplotlib.rc_context({"font.size": 30.0, "lines.linewidth": 9.0, "savefig.dpi": 10}):
        assert plotting.png(_drawn()[0]) == before
        assert matplotlib.rcParams["font.size"] == 30.0


def test_colours_differ_for_colour_blind_readers():
    palette = [getattr(plotting, name) for name in NAMES]
    linear = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in palette]) ** 2.2
    # deuteranopia, Viénot, Brettel, Mollon 1999, as a matrix on linear RGB
    seen = linear @ np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]).T
    distances = [np.abs(a - b).max() for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 0.04


def test_a_band_has_the_median_and_the_quartiles_and_gaps_where_there_is_no_number():
    runs = [[1.0, 3.0, 2.0, 100.0, 2.5], [np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0], [4.0, 4.0], [4.0, 6.0, 5.0]]
    with plotting.style():
        figure, axes = plotting.figure()
        plotting.band(axes[0, 0], range(6), runs, LOOKS[0])
    drawn = axes[0, 0].lines[0].get_ydata()
    assert drawn[[0, 4, 5]].tolist() == [2.5, 4.0, 5.0]
    assert np.isnan(drawn[1:4]).all()
    (area,) = axes[0, 0].collections
    corners = np.concatenate([path.vertices for path in area.get_paths()])
    assert {tuple(corner) for corner in corners.tolist()} >= {(5.0, 4.5), (5.0, 5.5)}
    assert not any(1 <= x <= 3 for x in corners[:, 0])
    assert plotting.png(figure)


def test_guides_are_the_unit_roundoffs():
    _, axes = _drawn()
    guides = [line.get_ydata()[0] for line in axes[0, 0].lines[len(LOOKS) :]]
    assert guides == [2.0**-11, 2.0**-24]


def test_a_map_keeps_exact_cells_apart_from_those_without_a_number():
    values = np.array([[1e-3, 1e-6], [0.0, np.nan], [np.inf, 1e-6]])

    def drawn():
        with plotting.style():
            figure, axes = plotting.figure(width=3.5, height=3.0)
            mesh = plotting.heatmap(axes[0, 0], [0, 1], [0, 1, 2], values)
            plotting.colour_bar(figure, mesh, axes[0, 0], "error")
        return figure, axes, mesh

    figure, axes, mesh = drawn()
    assert np.array_equal(np.ma.getmaskarray(mesh.get_array()), ~(np.isfinite(values) & (values > 0)))
    white = next(one for one in axes[0, 0].collections if one is not mesh)
    assert np.array_equal(np.ma.getmaskarray(white.get_array()), values != 0)
    assert white.cmap(white.norm(1.0)) == (1.0, 1.0, 1.0, 1.0)
    assert axes[0, 0].patch.get_hatch()
    assert (mesh.norm.vmin, mesh.norm.vmax) == (1e-6, 1e-3)
    assert plotting.pdf(figure) == plotting.pdf(drawn()[0])
