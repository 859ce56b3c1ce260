"""The pages of the bounds, one a scheme: their cells, what they say on made-up numbers, and one measured cell each."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import inputs, plotting, schemes, theory
from fpemu.reproduce import pages

ROOT = Path(__file__).resolve().parents[2] / "experiments"
NAMES = sorted(f"bounds/{name.replace('-', '_')}" for name in schemes.names())


def curves(experiment):
    """The curves of a figure in the module's table."""
    return experiment.module.FIGURES[experiment.name.split("/")[1]].curves


every = pytest.mark.parametrize("name", NAMES)


def rows(name, numbers, size="quick"):
    experiment = pages.load(name, ROOT)
    return experiment, [{**cell, **numbers(cell)} for cell in experiment.cells(size)]


def made_up(measured=1.0, probable=4.0, worst=20.0, power=0.5):
    """Errors that grow as k^power, and two parts: "split" and "sums", the one constant and the other proportional."""

    def numbers(cell):
        error = 1e-7 * cell["k"] ** power
        return {
            "measured": measured * error,
            "measured rms": measured * error / 3,
            "probable": probable * error,
            "worst": worst * error,
            "drift": 0.25 * probable * error,
            "deviation": error,
            "worst: split": 1e-7,
            "worst: sums": 3e-7 * cell["k"],
            "rms: split": 1e-7,
            "rms: sums": 1e-8,
        }

    return numbers


def test_every_scheme_has_a_page_and_no_page_is_left_over():
    assert {name for name in pages.names() if name.startswith("bounds/")} == {*NAMES, "bounds/coverage"}
    assert {pages.load(name, ROOT).evaluator for name in NAMES} == {"bounds._pages"}


@every
def test_the_cells_are_products_of_the_scheme_that_the_page_is_named_after(name):
    experiment = pages.load(name, ROOT)
    for size, longest in (("quick", 16384), ("full", 65536)):
        cells = experiment.cells(size)
        assert {cell["scheme"] for cell in cells} == {name.split("/")[1].replace("_", "-")}
        assert {cell["k"] for cell in cells} >= {16, 1024, longest} <= set(range(longest + 1))
        assert {cell["data"] for cell in cells} == {"positive", "zero mean", "phi = 1"}
    for curve in curves(experiment):
        schemes.build(cells[0]["scheme"], curve.options).spec(curve.hardware)  # refuses what does not exist
    arguments = {(h, a) for h, a, _ in experiment.page.specs}
    assert {h for h, _ in arguments} == {curve.hardware for curve in curves(experiment)} - {None}


@every
def test_a_measured_cell_is_the_exact_error_and_its_parts_are_its_bounds(name):
    experiment = pages.load(name, ROOT)
    for cell in {str(cell["options"]): cell for cell in experiment.cells("quick")}.values():
        cell = {**cell, "k": 24, "rows": 3}
        found = experiment.evaluate(cell)
        A, B = operands(cell)
        D = fpemu.gemm(A, B, scheme=cell["scheme"], hardware=cell["hardware"], **cell["options"])
        assert found["measured"] == pytest.approx(float(error(A, B, D)), rel=1e-12)
        assert 0 < found["measured rms"] <= found["measured"]
        norms = theory.Norms.of(A, B)
        bound = theory.bound(cell["scheme"], cell["hardware"], norms=norms, M=3, N=3, **cell["options"])
        assert (found.get("worst", math.inf), found["probable"]) == (bound.worst, bound.probable(0.01))
        parts = [value for column, value in found.items() if column.startswith("worst: ")]
        assert bool(parts) == ("worst" in found) == math.isfinite(bound.worst)
        assert sum(parts) == pytest.approx(found.get("worst", 0.0), rel=1e-12)
        assert found["drift"] <= found["probable"]


def operands(cell):
    low = {"positive": 0.0, "zero mean": -1.0}.get(cell["data"])
    fmt = schemes.get(cell["scheme"]).operand
    more = {"low": low, "high": 1.0} if low is not None else {"phi": 1.0}
    return inputs.operands("phi" if low is None else "uniform", 3, 3, 24, cell["seed"], fmt, **more)


def error(A, B, D):
    """The largest error over |A||B|, by fractions."""
    found = Fraction(0)
    for (i, j), d in np.ndenumerate(D):
        terms = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(A[i], B[:, j], strict=True)]
        found = max(found, abs(Fraction(float(d)) - sum(terms)) / sum(map(abs, terms)))
    return found


@pytest.fixture(scope="module")
def coverage():
    """Synthetic rows of the page of all schemes, probable bounds four times and worst cases twenty times the error."""
    return rows("bounds/coverage", made_up())


def measured(coverage, changed=()):
    experiment, found = coverage
    found = [{**row, **dict(changed).get(i, {})} for i, row in enumerate(found)]
    values = {(one.name, one.variant): one.value for one in experiment.measures(found)}
    return values, {name: max(x for (one, _), x in values.items() if one == name) for name, _ in values}


def test_coverage_has_every_curve_of_every_page(coverage):
    experiment, found = coverage
    assert {row["scheme"] for row in found} == set(schemes.names())
    assert len(found) == 2 * 3 * sum(len(curves(pages.load(name, ROOT))) for name in NAMES)
    cells = experiment.cells("full")
    assert len(cells) == 20 * len(found)
    page = pages.load("bounds/ootomo", ROOT)
    (cell,) = (
        c
        for c in cells
        if (c["scheme"], c["hardware"]) == ("ootomo", "volta")
        and c["k"] == 256
        and (c["seed"], c["data"]) == (0, "positive")
    )
    whole = page.evaluate(cell)
    assert experiment.evaluate(cell) == {name: whole[name] for name in ("measured", "probable", "worst")}


def test_the_largest_ratio_of_a_scheme_decides(coverage):
    values, most = measured(coverage)
    assert most == pytest.approx({"worst_case": 1 / 20, "probable": 0, "close": 4})
    assert len(values) == 2 * len(schemes.names()) + 1
    assert ("close", "staged (ours)") in values
    row = coverage[1][17]
    values, most = measured(coverage, {17: {"measured": 1.01 * row["worst"]}})
    assert most["worst_case"] == pytest.approx(1.01)
    assert most["probable"] == pytest.approx(100 / len(coverage[1]))
    assert sum(x > 1 for (name, _), x in values.items() if name == "worst_case") == 1
    _, most = measured(coverage, {17: {"measured": row["probable"] / 11}})
    assert most["close"] == pytest.approx(11)


def test_coverage_counts_exact_products_and_draws_schemes_without_a_worst_case(coverage):
    experiment, found = coverage
    changed = {i: {"measured": 0.0} for i, row in enumerate(found) if row["scheme"] == "dgemm"}
    values, _ = measured(coverage, changed)
    assert not any(variant == "dgemm" for _, variant in values)
    without = [
        {name: x for name, x in row.items() if name != "worst"} if row["scheme"] == "ozaki" else row for row in found
    ]
    assert ("worst_case", "ozaki") not in {(one.name, one.variant) for one in experiment.measures(without)}
    figure = experiment.draw(without)
    plotting.png(figure)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()].count("staged (ours)") == 1
    assert "0 of them without any error" in experiment.finding(found)
