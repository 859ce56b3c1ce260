"""Every page on its committed rows: measures at each seed, findings on parts of the rows, axes and legends."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fpemu import plotting
from fpemu.reproduce import claims, committed, figures, pages

ROOT = Path(__file__).resolve().parents[2]
NAMES = pages.names()
PAPERS = claims.papers(ROOT / "experiments")
CLAIMS = {(one.page, one.name) for paper in PAPERS for one in (*paper.claims, *paper.checks) if one.page}


def _committed(name):
    return committed(name, folder=ROOT / "figures")


def _cases(page, rows):
    return [(one.name, one.reading, one.variant) for one in page.measures(rows)]


def test_every_measure_has_a_claim_or_check_and_the_other_way_round():
    records = {name: figures.load_record(ROOT / "figures" / f"{name}.json") for name in NAMES}
    assert {(name, one.name) for name, record in records.items() for one in record.measures} == CLAIMS
    assert all(one.cases for name in NAMES for one in _committed(name).judgements)


@pytest.mark.parametrize("name", NAMES)
def test_measures_have_the_same_cases_at_every_seed_and_a_page_speaks_from_one_seed(name):
    found = _committed(name)
    page, rows = found.experiment, found.rows
    first = [row for row in rows if row.get("seed", 0) == min(row.get("seed", 0) for row in rows)]
    assert sorted(_cases(page, first)) == sorted(set(_cases(page, rows)))
    assert not any(math.isnan(one.value) for one in page.measures(first))
    for some in (rows, first):
        text = page.finding(some)
        assert not text or (text.endswith(".") and "nan" not in text and "{" not in text)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, n in enumerate(NAMES)])
def test_a_figure_names_its_axes_numbers_its_panels_and_keeps_the_legend_outside(name):
    with plotting.style():
        figure = _committed(name).figure()
        figure.draw_without_rendering()
    axes = [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]
    assert any(axis.get_xlabel() or axis.get_xticklabels() for axis in axes)
    assert any(axis.get_ylabel() or axis.get_yticklabels() for axis in axes)
    titles = [title[:3] for axis in axes if (title := axis.get_title("left"))]
    assert titles == [f"({letter})" for letter in "abcdefghijkl"[: len(titles)]]
    for legend in figure.legends:
        extent = legend.get_window_extent()
        assert not any(extent.overlaps(axis.get_window_extent()) for axis in axes)
        assert 0 <= extent.x0 < extent.x1 <= 1.02 * figure.bbox.x1
        labels = [text.get_text() for text in legend.get_texts()]
        assert len(set(labels)) == len(labels)
