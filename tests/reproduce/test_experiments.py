"""The papers' figures as pages: their cells, their verdicts on made-up data, and one real small cell of each."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fpemu import plotting
from fpemu.reproduce import experiments
from fpemu.sweep.store import canonical

ROOT = Path(__file__).resolve().parents[2] / "experiments"
NAMES = experiments.names()


@pytest.fixture(params=sorted(NAMES))
def experiment(request):
    return experiments.load(request.param, ROOT)


def test_the_figures_so_far_are_there():
    assert {"h2sgemm/fig8", "legemm/fig10", "legemm/fig11"} <= set(NAMES)
    assert {f"dgemm_tc/{name}" for name in ("fig3", "fig5b", "fig7b", "fig8", "exactness", "promise")} <= set(NAMES)
    assert "ozaki2/yardsticks" in NAMES


@pytest.mark.parametrize("size", experiments.SIZES)
def test_cells_are_distinct_and_have_the_same_parameters(experiment, size):
    cells = experiment.cells(size)
    assert len({canonical(cell) for cell in cells}) == len(cells) > 0
    assert len({tuple(cell) for cell in cells}) == 1
    assert all(experiment.cost(cell) > 0 for cell in cells)
    assert all(cell.get("seed", 0) >= 0 for cell in cells)


def test_texts_are_whole(experiment):
    assert experiment.title
    assert experiment.caption.endswith(".")
    assert all(text.endswith((".", ").")) for text in experiment.assumptions)


SMALL = {
    "legemm/applications": {"rows": 64, "width": 64, "inner": 32},
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
    "ozaki2/yardsticks": {"k": 64, "rows": 8},
    "h2sgemm/fig9": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/plane": {"m": 8, "n": 8, "k": 64},
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
OVERFLOWS = {"h2sgemm/plane"}
"""Pages that go beyond the range of fp16 on purpose."""


def _small(experiment):
    """A cell of every setting of the experiment, at a small size."""
    cells = [{**cell, **SMALL.get(experiment.name, {})} for cell in experiment.cells("quick")]
    return list({canonical(cell): cell for cell in cells}.values())


@pytest.mark.slow  # a sample of every figure's cells is evaluated by the test of the committed figures
def test_a_small_cell_gives_finite_numbers_twice_the_same(experiment):
    found = []
    for cell in (_small(experiment)[0], _small(experiment)[-1]):
        numbers = experiment.evaluate(cell)
        assert numbers
        assert all(type(number) is float for number in numbers.values())
        assert experiment.name in OVERFLOWS or all(math.isfinite(number) for number in numbers.values())
        assert experiment.name in SIGNED or not any(number < 0 for number in numbers.values())
        assert canonical(_hex(experiment.evaluate(cell))) == canonical(_hex(numbers))
        found += numbers.values()
    assert any(number > 0 for number in found)


def _hex(numbers):
    return {name: number.hex() for name, number in numbers.items()}


def test_figures_10_and_11_share_their_cells():
    ten, eleven = (experiments.load(f"legemm/fig{n}", ROOT) for n in (10, 11))
    assert ten.evaluator == eleven.evaluator
    assert ten.code == eleven.code
    assert ten.cells("quick") == eleven.cells("quick")


def _legemm_rows(factors, grow=2.0):
    """Rows in which the error of each method is a factor times that of LE-GEMM."""
    experiment = experiments.load("legemm/fig10", ROOT)
    names = ("plain", "Markidis", "Ootomo", "LE-GEMM", "SGEMM")
    rows = []
    for cell in experiment.cells("quick"):
        ours = 1e-6 * grow ** math.log2(cell["n"])
        numbers = {
            f"{name} {measure} {ref}": ours * dict(zip(names, (*factors, 1.0, 0.5), strict=True))[name]
            for name in names
            for measure in ("max_error", "mred")
            for ref in ("s", "exact")
        }
        rows.append({**cell, **numbers})
    return experiment, rows


def test_legemm_claims_are_computed_from_the_data():
    experiment, rows = _legemm_rows((377.33, 74.82, 2.69))
    claims = {claim.claim: claim for claim in experiment.claims(rows)}
    found = {text.split(": ")[1]: claim for text, claim in claims.items() if text.startswith("(a)")}
    assert [claim.verdict for claim in found.values()] == ["holds"] * 5
    assert [claim.measured for claim in found.values()][:3] == ["377×", "74.8×", "2.69×"]
    amd = [claim.verdict for text, claim in claims.items() if text.startswith("(b)")]
    assert amd == ["holds", "holds in part", "holds", "holds", "holds"]
    experiment, rows = _legemm_rows((0.5, 0.5, 0.5), grow=0.5)
    assert {claim.verdict for claim in experiment.claims(rows)} == {"does not hold"}


def _h2sgemm_rows(error):
    experiment = experiments.load("h2sgemm/fig8", ROOT)
    settings = experiment.module.SETTINGS
    return experiment, [
        {**cell, **{name: error(name, cell["exponent"]) for name in settings}} for cell in experiment.cells("quick")
    ]


def test_h2sgemm_claims_hold_on_data_made_after_the_paper_and_fail_on_its_opposite():
    published = {"HGEMM": 1e-4, "SGEMM": 4e-7, "sb=0": 2e-5, "sb=6": 1e-6, "sb=12": 3e-7}
    experiment, rows = _h2sgemm_rows(lambda name, _: published[name.split()[0]])
    assert {claim.verdict for claim in experiment.claims(rows)} == {"holds"}
    opposite = {"HGEMM": 1e-9, "SGEMM": 1e-6, "sb=0": 1e-7, "sb=6": 1e-8, "sb=12": 1e-5}
    experiment, rows = _h2sgemm_rows(lambda name, _: opposite[name.split()[0]])
    verdicts = {claim.claim.split(", e ")[0]: claim.verdict for claim in experiment.claims(rows)}
    assert verdicts.pop("(a) sb=0: element-wise / term-wise") == "holds"
    assert verdicts.pop("(b) sb=0: element-wise / term-wise") == "holds"
    assert set(verdicts.values()) == {"does not hold"}


def test_every_figure_is_drawn_with_axes_named_and_a_legend_outside():
    for experiment, rows in (
        _h2sgemm_rows(lambda name, e: 1e-6 * 2.0 ** -(e + len(name))),
        _legemm_rows((400.0, 3.0, 1.5)),
    ):
        figure = experiment.draw(rows)
        plotting.png(figure)
        axes = figure.axes
        assert all(axis.get_yscale() == "log" for axis in axes)
        assert all(axis.get_title(loc="left").startswith("(") for axis in axes)
        assert any(axis.get_xlabel() for axis in axes)
        assert axes[0].get_ylabel()
        legend = figure.legends[0]
        labels = [text.get_text() for text in legend.get_texts()]
        assert len(set(labels)) == len(labels) == max(len(axis.get_legend_handles_labels()[1]) for axis in axes)
        extent = legend.get_window_extent()
        assert not any(extent.overlaps(axis.get_window_extent()) for axis in axes)
        assert extent.x0 >= 0
        assert extent.x1 <= figure.bbox.x1
        looks = {
            (line.get_color(), line.get_marker(), line.get_linestyle())
            for line in axes[-1].lines
            if line.get_marker() != "None"
        }
        assert len(looks) == len(labels)
