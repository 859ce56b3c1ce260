"""The pages on LE-GEMM: histograms, architectures, split against accumulation, the error budget."""

import itertools
from pathlib import Path

import mpmath
import numpy as np
import pytest

from fpemu import inputs, metrics, reference, schemes
from fpemu.reproduce import claims, pages

ROOT = Path(__file__).resolve().parents[2] / "experiments"


def _page(name):
    return pages.load(f"legemm/{name}", ROOT)


# --- histograms
def _histogram():
    return _page("fig12").module._histogram


def test_every_entry_is_in_one_bin():
    module = _histogram()
    errors = np.random.default_rng(0).normal(size=(17, 23)) * 10.0 ** np.random.default_rng(1).integers(
        -12, 2, (17, 23)
    )
    errors[0, :5] = 0, 2.0**-30, -(2.0**-30), np.nextafter(2.0**-30, 0), 1e9
    found = module.counts(errors)
    assert list(found) == module.bins()
    assert sum(found.values()) == errors.size
    mirrored = module.counts(-errors)
    assert list(mirrored.values()) == list(found.values())[::-1]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (0.0, "0"),
        (2.0**-30, "+2^-30"),
        (-(2.0**-30), "-2^-30"),
        (2.0**-30.4, "0"),
        (1e9, "+2^-4"),
        (2.0**-9.6, "+2^-10"),
        (2.0**-9.4, "+2^-9.5"),
        (-(2.0**-9.4), "-2^-9.5"),
    ],
)
def test_errors_fall_into_the_bin_that_names_them(error, name):
    assert {n for n, many in _histogram().counts(np.array([[error]])).items() if many} == {name}


def test_bins_and_summary_are_those_of_the_product():
    module, page = _histogram(), _page("fig13")
    cell = {**page.cells("quick")[0], "m": 12, "n": 9, "k": 64}
    numbers = page.evaluate(cell)
    A, B = inputs.operands("uniform", 12, 9, 64, cell["seed"], low=-1.0, high=1.0)
    error = schemes.gemm(A, B, scheme="ootomo", hardware="ampere") - reference.matmul(A, B)
    assert numbers["Ootomo exact range"] == abs(error).max()
    assert numbers["Ootomo exact median"] == np.median(abs(error))
    assert sum(numbers[f"Ootomo exact {name}"] for name in module.bins()) == 12 * 9


# --- every architecture


def test_ampere_and_ada_are_one_arithmetic_and_volta_another():
    page = _page("hardware")
    rows = []
    for chip in ("volta", "ampere", "ada"):
        cell = {**page.cells("quick")[0], "rows": 4, "k": 64, "hardware": chip}
        rows.append({**cell, **page.evaluate(cell)})
    assert page.module.same(rows) == [["volta"], ["ampere", "ada"]]


# --- split against accumulation
def test_the_published_schemes_are_corners_of_the_square():
    page = _page("split_rounding")
    cell = {**page.cells("quick")[0], "rows": 8, "k": 96, "hardware": "ampere"}
    numbers = page.evaluate(cell)
    A, B = inputs.operands("uniform", 8, 8, 96, cell["seed"], low=-1.0, high=1.0)
    exact = reference.matmul(A, B)
    for scheme, column in (("legemm", "legemm chained cut"), ("ootomo", "ootomo promoted rounded")):
        published = schemes.gemm(A, B, scheme=scheme, hardware="ampere")
        assert numbers[column] == metrics.relative_l2(published, exact)


# --- the budget
def _words_by_mpmath(x, scheme):
    """The two words of a number with 11 bits each and any exponent, by mpmath's own rounding."""
    mode = "n" if scheme == "markidis" else "d"
    h = mpmath.fadd(x, 0, prec=11, rounding=mode)
    return h, mpmath.fadd(mpmath.fsub(x, h, exact=True), 0, prec=11, rounding=mode)


@pytest.mark.parametrize("scheme", ["markidis", "legemm"])
def test_with_everything_removed_the_budget_leaves_the_splits_own_error(scheme):
    A, B = inputs.operands("uniform", 2, 2, 5, 3, low=-1.0, high=1.0)
    A[0, 0] = 3e-6  # far below fp16's normal range: underflow has to be gone too
    found = _page("markidis_budget").module.budget(A, B, scheme, "ampere")
    missing = square = mpmath.mpf(0)
    with mpmath.workprec(300):
        for i, j in itertools.product(range(2), range(2)):
            exact = split = mpmath.mpf(0)
            for k in range(5):
                a, b = mpmath.mpf(float(A[i, k])), mpmath.mpf(float(B[k, j]))
                exact += a * b
                split += sum(_words_by_mpmath(a, scheme)) * sum(_words_by_mpmath(b, scheme))
            missing += (split - exact) ** 2
            square += exact**2
        expected = float(mpmath.sqrt(missing / square))
    assert expected > 0
    assert found["left after product"] == pytest.approx(expected, rel=1e-7)
    assert found["part bits"] == pytest.approx(expected, rel=1e-7)
    assert found["left after bits"] == 0


@pytest.mark.parametrize("scheme", ["markidis", "legemm"])
def test_each_hardware_has_the_causes_of_its_arithmetic_alone(scheme):
    A, B = inputs.operands("uniform", 8, 8, 256, 0, low=-1.0, high=1.0)
    module = _page("markidis_budget").module
    found = {chip: module.budget(A, B, scheme, chip) for chip in ("ampere", "cdna1", "cdna2", "ideal")}
    for chip, parts in found.items():
        D = schemes.gemm(A, B, scheme=scheme, hardware=chip)
        assert parts["error"] == metrics.relative_l2(D, reference.matmul(A, B))
        truncates, flushes = chip == "ampere", chip == "cdna2"
        assert (parts["part alignment"] > 0) == (parts["part direction"] > 0) == truncates
        assert (parts["part flushed"] > 0) == flushes
        assert (parts["part product"] > 0) == (scheme == "legemm")
        assert parts["part rounding"] > 0
    # what the split leaves out is the hardware's no more
    assert len({parts["left after flushed"] for parts in found.values()}) == 1


def test_words_read_as_zero_are_the_subnormal_ones():
    module = _page("markidis_budget").module
    A = np.array([[2.0**-14, 2.0**-15]], np.float32)
    B = np.array([[1.0], [1.0]], np.float32)
    assert module.flushed(A, B, "markidis").item() == 2.0**-14
    assert module.summed(A, B, "markidis")[0].item() == 2.0**-14 + 2.0**-15


def test_the_omitted_product_of_residuals_has_the_same_limit_in_both_papers():
    criteria = {claim.name: claim.criterion for paper in claims.papers(ROOT) for claim in paper.claims}
    for increase, met in ((1.099, True), (1.101, False)):
        share = 100 * (1 - increase**-2)
        assert criteria["product_of_residuals_is_negligible"].met(share) == met
        assert criteria["fourth_product_negligible"].met(increase) == met
