"""The pages of the bounds, one a scheme: their cells, and one measured cell of each."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import inputs, schemes, theory
from fpemu.reproduce import pages

ROOT = Path(__file__).resolve().parents[2] / "experiments"
NAMES = sorted(f"bounds/{name.replace('-', '_')}" for name in schemes.names())


def curves(experiment):
    """The curves of a figure in the module's table."""
    return experiment.module.FIGURES[experiment.name.split("/")[1]].curves


every = pytest.mark.parametrize("name", NAMES)


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


def test_coverage_has_every_curve_of_every_page():
    experiment = pages.load("bounds/coverage", ROOT)
    found, cells = experiment.cells("quick"), experiment.cells("full")
    assert {cell["scheme"] for cell in found} == set(schemes.names())
    assert len(found) == 2 * 3 * sum(len(curves(pages.load(name, ROOT))) for name in NAMES)
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
