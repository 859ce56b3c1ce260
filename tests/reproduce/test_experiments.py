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
    "dgemm_tc/chain": {"n": 64, "rows": 8},
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


# --- DGEMM-TC and its successors
def _verdicts(experiment, rows):
    return {claim.claim: claim.verdict for claim in experiment.claims(rows)}


def _rows(name, numbers, size="quick"):
    """Rows of an experiment with made-up numbers, a function of the cell."""
    experiment = experiments.load(name, ROOT)
    return experiment, [{**cell, **numbers(cell)} for cell in experiment.cells(size)]


@pytest.mark.parametrize(
    ("ratio", "equivalent", "no_less"),
    [(1.0, "holds", "holds"), (0.01, "does not hold", "holds"), (100.0, "does not hold", "does not hold")],
)
@pytest.mark.parametrize("figure", ["fig3", "fig8"])
def test_equivalence_to_the_ordinary_chain_is_a_factor_either_way(figure, ratio, equivalent, no_less):
    experiment, rows = _rows(
        f"dgemm_tc/{figure}", lambda _: {"GEMM": 1e-12, "TC": ratio * 1e-12, "CR": 0.0, "CR differing": 0.0}
    )
    verdicts = _verdicts(experiment, rows)
    assert len(verdicts) == 9
    for text, verdict in verdicts.items():
        assert verdict == ("holds" if text.startswith("CR") else no_less if "not above" in text else equivalent)


def test_one_entry_rounded_wrongly_breaks_the_claim_of_cr_mode():
    experiment, rows = _rows("dgemm_tc/fig3", lambda _: {"GEMM": 1e-12, "TC": 1e-12, "CR": 0.0, "CR differing": 0.0})
    rows[0]["CR differing"] = 1.0
    wrong = [claim for claim in experiment.claims(rows) if claim.verdict != "holds"]
    assert [claim.claim.split(":")[0] for claim in wrong] == ["CR mode, φ = 0.1"]
    assert wrong[0].measured.startswith("1 of ")


def _counts(cell, products=(66.0, 78.0, 91.0), slices=(11.0, 12.0, 13.0)):
    i = (0.1, 1.0, 2.0).index(cell["phi"])
    found = {"DP slices A": slices[i], "DP slices B": slices[i], "DP products": products[i]}
    return found | {"CR slices A": slices[i] + 4, "CR slices B": slices[i] + 4, "CR products": 3 * products[i]}


def test_counts_after_the_paper_hold_and_others_do_not():
    for name in ("fig5b", "fig7b"):
        assert set(_verdicts(*_rows(f"dgemm_tc/{name}", _counts)).values()) == {"holds"}

    def opposite(cell):
        return _counts(cell, products=(170.0, 150.0, 140.0), slices=(33.0, 22.0, 21.0))

    for name in ("fig5b", "fig7b"):
        verdicts = _verdicts(*_rows(f"dgemm_tc/{name}", opposite))
        more = {text: verdict for text, verdict in verdicts.items() if text.startswith("CR mode takes more")}
        assert set(more.values()) <= {"holds"}
        assert not {verdict for text, verdict in verdicts.items() if text not in more} & {"holds"}


def test_the_published_66_products():
    experiment = experiments.load("dgemm_tc/fig5b", ROOT)
    cell = {**experiment.cells("quick")[0], "phi": 0.1, "n": 7168, "rows": 8}
    numbers = experiment.evaluate(cell)
    assert (numbers["DP slices A"], numbers["DP slices B"], numbers["DP products"]) == (11.0, 11.0, 66.0)


def test_counts_are_means_over_the_pairs_of_blocks(monkeypatch):
    experiment = experiments.load("dgemm_tc/fig5b", ROOT)
    blocks, calls = experiment.module._counts, []

    def counts(A, B, *, hardware, mode="DP", slices=None):
        assert (slices == "printed") == (mode == "DP")
        calls.append((mode, A.shape, B.shape))
        i = len([call for call in calls if call[0] == mode])
        slices = (10.0 * i, 4.0 * i) if mode == "CR" else (i, 2 * i)
        return blocks.ozaki.Counts(slices, i**2, mode == "DP", 7, i, 0)

    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(blocks.ozaki, "counts", counts)
    numbers = experiment.evaluate({**experiment.cells("quick")[0], "n": 32, "rows": 7})
    assert sorted(calls) == sorted(
        [("DP", (m, 32), (32, n)) for m in (4, 3) for n in (4, 3)] + [("CR", (n, 32), (32, n)) for n in (4, 3)]
    )
    assert numbers == {
        "DP slices A": 2.5,
        "DP slices B": 5.0,
        "DP products": 7.5,
        "CR slices A": 15.0,
        "CR slices B": 6.0,
        "CR products": 90.0,
    }


def test_the_memory_model_is_that_of_section_4_3():
    module = experiments.load("dgemm_tc/fig7b", ROOT).module
    assert module.memory(7168, 11, 11) == (2 * 22 * 7168 * 3584 + 4 * 121 * 3584**2) / 1e9
    assert module.memory(10240, 16, 15) == (2 * 31 * 10240 * 3414 + 4 * 240 * 3414**2) / 1e9


def test_the_promise_of_algorithm_3_is_judged_family_by_family():
    def numbers(ours, bound, differing):
        methods = {"DGEMM": 1e-12, "printed": ours, "default": ours}
        return (
            {f"{m} {what}": error for m, error in methods.items() for what in ("relative", "normwise")}
            | {f"{m} equation 1": bound for m in methods}
            | {"CR differing": differing}
        )

    verdicts = _verdicts(*_rows("dgemm_tc/promise", lambda _: numbers(2e-12, 0.1, 0.0)))
    assert set(verdicts.values()) == {"holds"}
    assert len(verdicts) == 2 * 15 + 3
    verdicts = _verdicts(*_rows("dgemm_tc/promise", lambda _: numbers(2e-11, 1.1, 5.0)))
    assert set(verdicts.values()) == {"does not hold"}
    # where DGEMM makes no error, one rounding is no breach
    exact = {"DGEMM relative": 0.0, "DGEMM normwise": 0.0}
    verdicts = _verdicts(*_rows("dgemm_tc/promise", lambda _: numbers(2.0**-53, 0.1, 0.0) | exact))
    assert set(verdicts.values()) == {"holds"}


def test_the_promise_fails_on_graded_inputs_and_cr_mode_does_not():
    experiment = experiments.load("dgemm_tc/promise", ROOT)
    families = {cell["family"]: cell for cell in experiment.cells("quick") if cell["seed"] == 0}
    graded, plain = (experiment.evaluate({**families[name], "n": 64}) for name in ("graded", "X·X"))
    for name in ("printed", "default"):
        assert graded[f"{name} normwise"] > 1e6 * graded["DGEMM normwise"]
        assert plain[f"{name} normwise"] < 2 * plain["DGEMM normwise"]
    assert graded["CR differing"] == plain["CR differing"] == 0


def test_yardsticks_hold_on_the_published_errors_and_fail_beyond_their_order_of_magnitude():
    published = experiments.load("ozaki2/yardsticks", ROOT).module.PUBLISHED
    methods = experiments.load("ozaki2/yardsticks", ROOT).module.METHODS

    def numbers(factor):
        return lambda cell: {
            name: factor * published.get((name, cell["k"]), 1e-16) for name in methods[cell["precision"]]
        }

    verdicts = _verdicts(*_rows("ozaki2/yardsticks", numbers(3.0)))
    assert len(verdicts) == len(published) == 10
    assert set(verdicts.values()) == {"holds"}
    for factor in (0.3, 4.0):
        assert set(_verdicts(*_rows("ozaki2/yardsticks", numbers(factor))).values()) == {"does not hold"}


MADE_UP = {
    "dgemm_tc/fig3": lambda cell: {"GEMM": 1e-12 * cell["n"], "TC": 1e-13, "CR": 0.0, "CR differing": 0.0},
    "dgemm_tc/fig8": lambda cell: {"GEMM": 1e-5 * cell["n"], "TC": 1e-6, "CR": 0.0, "CR differing": 0.0},
    "dgemm_tc/fig5b": _counts,
    "dgemm_tc/fig7b": _counts,
    "dgemm_tc/promise": lambda cell: {
        f"{method} {what}": 10.0 ** -(14 - i)
        for i, method in enumerate(("DGEMM", "printed", "default"))
        for what in ("relative", "normwise")
    },
    "ozaki2/yardsticks": lambda cell: {
        name: 10.0 ** -(10 + i) * cell["k"]
        for i, name in enumerate(experiments.load("ozaki2/yardsticks", ROOT).module.METHODS[cell["precision"]])
    },
}


@pytest.mark.parametrize("name", sorted(MADE_UP))
def test_figures_of_several_panels_name_their_axes_and_keep_the_legend_outside(name):
    experiment, rows = _rows(name, MADE_UP[name])
    figure = experiment.draw(rows)
    plotting.png(figure)
    assert all(axis.get_title(loc="left").startswith("(") for axis in figure.axes)
    assert all(axis.get_xlabel() for axis in figure.axes)
    assert figure.axes[0].get_ylabel() or figure.axes[0].get_yticklabels()
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(set(labels)) == len(labels) == len(figure.axes[0].get_legend_handles_labels()[1]) > 1
    extent = legend.get_window_extent()
    assert not any(extent.overlaps(axis.get_window_extent()) for axis in figure.axes)
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.x1
    for axis in figure.axes:  # nothing is drawn outside the axes
        low, high = axis.get_ylim()
        points = [y for line in axis.lines if line.get_marker() != "None" for y in line.get_ydata()]
        assert points
        assert all(min(low, high) <= y <= max(low, high) for y in points)
