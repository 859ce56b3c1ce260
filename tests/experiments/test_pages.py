"""Every page: its cells, a small cell, and on its committed rows its measures, its statements, axes and legends."""

import itertools
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fpemu import mma, plotting
from fpemu.reproduce import claims, committed, figures, pages
from fpemu.sweep.store import canonical
from tests.loaded import PAGES

ROOT = Path(__file__).resolve().parents[2]
NAMES = [*PAGES]
CLAIMS: dict[str, set[str]] = {name: set() for name in NAMES}
"""The names of the claims and the checks that a page decides."""
for paper in claims.papers(ROOT / "experiments"):
    for claim in (*paper.claims, *paper.checks):
        if claim.page:
            CLAIMS[claim.page].add(claim.name)

SMALL = {
    "legemm/applications": {"rows": 64, "width": 64, "inner": 32},
    "blockscaled/error": {"K": 256},
    "blockscaled/words": {"K": 64},
    "parallel/ranks": {"K": 256, "M": 8, "N": 8},
    "frontier/points": {"K": 64, "rows": 8},
    "h2sgemm/fig8": {"m": 16, "n": 16, "k": 64},
    "legemm/fig10": {"n": 32},
    "legemm/fig11": {"n": 32},
    "dgemm_tc/fig3": {"n": 64, "rows": 16},
    "dgemm_tc/fig8": {"n": 64, "rows": 16},
    "dgemm_tc/fig5b": {"n": 256, "rows": 8},
    "dgemm_tc/fig7b": {"n": 256, "rows": 8},
    "dgemm_tc/exactness": {"k": 16},
    "dgemm_tc/promise": {"n": 32},
    "dgemm_tc/fast": {"n": 64, "rows": 8},
    "ozaki2/yardsticks": {"k": 64, "rows": 8},
    "ozaki2/variants": {"k": 64, "rows": 8},
    "h2sgemm/fig9": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/plane": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/rounding": {"m": 8, "k": 64},
    "h2sgemm/smaller": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/promotion": {"m": 8, "n": 8, "k": 256},
    "h2sgemm/termwise": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/underflow": {"m": 8, "n": 8, "k": 64},
    "legemm/fig12": {"m": 16, "n": 16, "k": 64},
    "legemm/fig13": {"m": 16, "n": 16, "k": 64},
    "legemm/fig16": {"K": 64},
    "legemm/fig18": {"n": 64},
    "legemm/hardware": {"k": 64, "rows": 8},
    "legemm/markidis_budget": {"k": 64, "rows": 8},
    "legemm/split_rounding": {"k": 64, "rows": 8},
    "magma/accuracy": {"n": 16, "batch": 2},
    "magma/bias": {"m": 8, "n": 8, "k": 64},
    "magma/packed": {"n": 3, "groups": 2},
    "magma/halfcomplex": {"n": 5, "batch": 2},
    "magma/updates": {"k": 4, "batch": 2, "updates": 3},
    "magma/splitcomplex": {"m": 2, "k": 20},
    "tsm2/slices": {"m": 5, "k": 128},
    "tsm2/accuracy": {"m": 16, "k": 64},
    "tsm2/chains": {"k": 64},
}
"""What makes a cell small; pages that are not here are counted out at their own size, which is small."""
SIGNED = {"magma/bias"}
"""Pages whose numbers may be below zero."""
OVERFLOWS = {"h2sgemm/plane", "h2sgemm/rounding"}
"""Pages that go beyond the range of fp16 on purpose."""

every = pytest.mark.parametrize("name", NAMES)
load = cache(lambda name: committed(name, folder=ROOT / "figures"))


@every
def test_cells_are_distinct_and_texts_are_whole(name):
    experiment = load(name).experiment
    for size in pages.SIZES:
        cells = experiment.cells(size)
        assert len({canonical(cell) for cell in cells}) == len(cells) > 0
        assert len({tuple(cell) for cell in cells}) == 1
        assert all(experiment.cost(cell) > 0 and cell.get("seed", 0) >= 0 for cell in cells)
        assert experiment.caption(size).endswith(".")
        assert all(text.endswith((".", ").")) for text in experiment.assumptions(size))
    assert experiment.title


@pytest.mark.parametrize("name", [n for n, page in PAGES.items() if "hardware" in page.published])
def test_a_page_of_one_unit_computes_and_draws_on_another(name):
    given = load(name)
    other = "V100" if PAGES[name].published["hardware"] in ("ampere", "cdna2", "ascend910a") else "A100"
    unit = mma.catalog.architecture(other)
    changed = given.experiment.changed({"hardware": other})
    cells = changed.cells("quick")
    assert {cell["hardware"] for cell in cells} == {unit} == {spec.architecture for spec in changed.instructions(cells)}
    cell = {**cells[-1], **SMALL.get(name, {})}
    numbers = changed.evaluate(cell)
    assert numbers == changed.evaluate(cell | {"hardware": other})
    assert not {"hardware"} & numbers.keys()
    rows = [row | {"hardware": unit} for row in given.rows if row.get("point") != "e4m3"]
    assert other in changed.draw(rows).get_suptitle()
    words = figures.statements(changed, "quick", rows)
    assert f"hardware = {other}" in words["caption"]
    assert f"hardware = {other}" in words["title"]
    named = " ".join([words["caption"], *words["assumptions"]])
    assert unit in named  # an instruction of the unit, and the evidence for its model
    assert words["measures"] == ()
    assert given.experiment.changed({"hardware": given.experiment.page.published["hardware"]}).changes == {}


@pytest.mark.slow  # a sample of every figure's cells is evaluated by the test of the committed figures
@every
def test_a_small_cell_gives_finite_numbers_twice_the_same(name):
    experiment, found = load(name).experiment, []
    cells = [{**cell, **SMALL.get(name, {})} for cell in experiment.cells("quick")]
    for cell in (cells[0], cells[-1]):
        numbers, again = ({of: x.hex() for of, x in experiment.evaluate(cell).items()} for _ in range(2))
        assert numbers == again
        found += [float.fromhex(x) for x in numbers.values()]
    assert any(x > 0 for x in found)
    assert name in OVERFLOWS or all(map(math.isfinite, found))
    assert name in SIGNED or not any(x < 0 for x in found)


@every
def test_measures_are_named_in_paper_toml_and_the_same_at_every_seed(name):
    """`fpemu ledger --check`, which a test runs, compares the statements of every record with its page."""
    figure, record = load(name), figures.load_record(ROOT / "figures" / f"{name}.json")
    page, rows = figure.experiment, figure.rows
    assert all(one.cases for one in figure.judgements)
    assert {one.name for one in record.measures} == CLAIMS[name]
    first = [row for row in rows if row.get("seed", 0) == min(row.get("seed", 0) for row in rows)]
    of_first, of_all = ([(m.name, m.reading, m.variant) for m in page.measures(some)] for some in (first, rows))
    assert sorted(of_first) == sorted(set(of_all))  # each case at every seed
    assert not any(np.isnan(one.value).any() for one in page.measures(first))
    for text in (page.finding(first), record.finding):
        assert not text or (text.endswith(".") and "nan" not in text and "{" not in text)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, n in enumerate(NAMES)])
def test_a_picture_is_legible_in_one_column(name, monkeypatch):
    """Axes have names, panels have letters, each text is large enough, alone in its place and inside the picture."""
    drawn, draw = [], Text.draw

    def record(text, renderer):
        drawn.append(text)
        draw(text, renderer)

    with plotting.style():
        figure = load(name).figure()
        with monkeypatch.context() as patched:
            patched.setattr(Text, "draw", record)
            figure.draw_without_rendering()
    axes = [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]
    assert any(axis.get_xlabel() or axis.get_xticklabels() for axis in axes)
    assert any(axis.get_ylabel() or axis.get_yticklabels() for axis in axes)
    titles = [title[:3] for axis in axes if (title := axis.get_title("left"))]
    assert titles == [f"({letter})" for letter in "abcdefghijkl"[: len(titles)]]
    assert figure.get_figwidth() == plotting.SINGLE
    texts = [text for text in drawn if text.get_visible() and text.get_text().strip()]
    boxes = [text.get_window_extent() for text in texts] + [axis.get_window_extent() for axis in figure.axes]
    (left, bottom), (right, top) = Bbox.union(boxes).get_points()
    assert min(left, bottom) >= -1
    assert right <= figure.bbox.width + 1
    assert top <= figure.bbox.height + 1
    assert [text.get_text() for text in texts if text.get_fontsize() < 6] == []
    upright = [text for text in texts if text.get_rotation() % 90 == 0]
    places = [(text.get_text(), Text.get_window_extent(text)) for text in upright]  # without the arrow of a label
    assert [(a, b) for (a, one), (b, other) in itertools.combinations(places, 2) if _overlap(one, other)] == []
    inside = [(axis, axis.get_legend()) for axis in axes if axis.get_legend()]
    for legend in (*figure.legends, *(legend for _, legend in inside)):
        labels = [text.get_text() for text in legend.get_texts()]
        assert len(set(labels)) == len(labels)
    for legend in figure.legends:
        assert not any(_overlap(legend.get_window_extent(), axis.get_window_extent()) for axis in axes)
    for axis, legend in inside:
        points = [axis.transData.transform(line.get_xydata()) for line in axis.lines]
        assert not any(legend.get_window_extent().count_contains(some) for some in points)


def _overlap(one, other):
    """Whether two boxes share more than a hairline."""
    common = Bbox.intersection(one, other)
    return common is not None and min(common.width, common.height) > 1
