"""The pages on LE-GEMM: histograms, applications, every architecture, split against accumulation, the error budget."""

from __future__ import annotations

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


def _made_up(name, numbers):
    """Rows of a page at quick size with made-up numbers, a function of the cell."""
    page = _page(name)
    return page, [{**cell, **numbers(cell)} for cell in page.cells("quick")]


def _values(page, rows, name):
    """The numbers of a claim, from the rows of the first seed."""
    one = [row for row in rows if row.get("seed", 0) == 0]
    return [measure.value for measure in page.measures(one) if measure.name == name]


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


def _spread(factors):
    """The summary of every method, a factor of 1e-6; the platforms may differ."""

    def numbers(cell):
        scale = factors[cell["hardware"]]
        return {
            f"{name} {ref} {what}": 1e-6 * factor
            for name, factor in zip(("plain", "Markidis", "Ootomo", "LE-GEMM"), (*scale, 1.0), strict=True)
            for ref in ("s", "exact")
            for what in ("range", "width", "median")
        }

    return numbers


def test_histogram_claims_compare_the_methods_as_they_are_made_up():
    page, rows = _made_up("fig12", _spread({"cdna2": (400.0, 70.0, 1.2), "ampere": (500.0, 3.0, 1.2)}))
    for name, expected in (
        ("plain_is_widest", [400 / 70, 500 / 3]),
        ("narrower_than_markidis", [70, 3]),
        ("concentrated_more_than_ootomo", [1.2, 1.2]),
        ("distribution_like_ootomo", [1.2] * 4),
        ("markidis_gap_larger_on_mi210", [70 / 3]),
    ):
        assert _values(page, rows, name) == pytest.approx(expected * 2)
    page, rows = _made_up("fig13", _spread({"ampere": (500.0, 3.0, 1.2)}))
    assert page.measures(rows) == []  # figure 12's page has the rows of both platforms


# --- figures 10 and 11
def _over_n(saturated):
    """Errors of the methods; Max_error of all is 1 from n = 512 on if ``saturated``."""
    factors = {"plain": 400.0, "Markidis": 10.0, "Ootomo": 0.5, "LE-GEMM": 1.0, "SGEMM": 1.0}

    def numbers(cell):
        return {
            f"{name} {measure} {ref}": 1.0 if saturated and cell["n"] >= 512 else 1e-6 * factor * cell["n"] / 64
            for name, factor in factors.items()
            for measure in ("max_error", "mred")
            for ref in ("s", "exact")
        }

    return numbers


@pytest.mark.parametrize("saturated", [False, True])
def test_reductions_are_means_over_n_and_over_the_n_without_saturation(saturated):
    page, rows = _made_up("fig10", _over_n(saturated))
    one = [row for row in rows if row["seed"] == 0]
    lengths = sorted({row["n"] for row in one})
    below = [n for n in lengths if not saturated or n < 512]
    mean = {"every n": np.mean([400.0 if n in below else 1.0 for n in lengths]), "n without saturation": 400.0}
    found = [m for m in page.measures(one) if m.name == "max_error_below_others" and "plain" in m.variant]
    assert len(found) == 4
    for measure in found:
        assert measure.value == pytest.approx(mean[measure.reading])


def test_published_factors_are_measured_relative_to_the_paper():
    page, rows = _made_up("fig11", _over_n(False))
    assert _values(page, rows, "mred_factors") == pytest.approx([400 / 636.92, 10 / 178.93] * 2 + [400 / 814.87] * 2)
    assert _values(page, rows, "mred_below_ootomo") == pytest.approx([0.5] * 4)
    assert _values(page, rows, "errors_grow_with_n") == pytest.approx([16.0] * 8)


# --- figures 16 and 18
@pytest.mark.parametrize(("power", "noise"), [(1.0, 1.0), (0.0, 1.0), (1.0, 3.0), (-1.0, 3.0)])
def test_figure_16_judges_growth_with_k_and_the_rest_apart(power, noise):
    def numbers(cell):
        error = 1e-7 * cell["K"] ** power * (noise if cell["M"] == 65536 else 1.0)
        names = [f"{measure} {ref}" for measure in ("max_error", "mred") for ref in ("s", "exact")]
        return dict.fromkeys(names, error)

    page, rows = _made_up("fig16", numbers)
    at_128 = (3 + noise) / 4  # the mean over the four shapes with K = 128
    assert _values(page, rows, "error_grows_with_K") == pytest.approx([64.0**power / at_128] * 8)
    means = [K**power * (at_128 if K == 128 else 1.0) for K in (128, 768, 1024, 2048, 3072, 4096, 5120, 8192)]
    assert _values(page, rows, "K_decides_the_error") == pytest.approx([max(means) / min(means) / noise] * 8)


def test_figure_18_orders_the_three_modes():
    factors = {"FAST_16F": 200.0, "LE-GEMM": 1.0, "64F": 0.1, "SGEMM": 0.8}
    page, rows = _made_up(
        "fig18",
        lambda _: {
            f"{mode} {measure} {ref}": 1e-6 * factor
            for mode, factor in factors.items()
            for measure in ("max_error", "mred")
            for ref in ("s", "exact")
        },
    )
    assert _values(page, rows, "error_between_fast16f_and_64f") == pytest.approx([200.0, 10.0] * 4)
    assert _values(page, rows, "single_precision_accuracy") == pytest.approx([1.25] * 2)


# --- every architecture
def test_architectures_are_the_same_only_if_every_error_agrees():
    module = _page("hardware").module

    def numbers(cell):
        high = cell["hardware"] in ("hopper", "blackwell") and (cell["k"], cell["seed"]) == (4096, 2)
        return dict.fromkeys(module.SCHEMES, 1e-6) | {"legemm": 2e-6 if high else 1e-6}

    _, rows = _made_up("hardware", numbers)
    groups = module.same(rows)
    assert sorted(map(len, groups)) == [2, 9]
    assert ["hopper", "blackwell"] in groups


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


@pytest.mark.parametrize("cut", [0.9, 0.97, 2.0])
def test_a_split_is_better_by_more_than_the_margin(cut):
    module = _page("split_rounding").module

    def numbers(_):
        of = {"promoted": 1e-7, "chained": 1e-6}
        return {
            f"{scheme} {accumulation} {split}{measure}": of[accumulation] * (cut if split == "cut" else 1.0)
            for scheme, split, accumulation in module.settings()
            for measure in ("", " mred")
        }

    page, rows = _made_up("split_rounding", numbers)
    assert _values(page, rows, "bit_cut_beats_rounding") == pytest.approx([1 / cut] * 4)
    text = page.module.finding(rows)
    assert ("has the smaller error at 0 of 88" in text) == (cut > 0.95)
    assert "Ampere 10×" in text


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


def test_shares_sum_to_one_and_name_the_cause():
    module = _page("markidis_budget").module

    def numbers(_):
        left = (5e-6, 4e-6, 3e-6, 3e-6, 3e-6, 3e-6, 0.0)
        made = {f"left after {part}": value for part, value in zip(module.PARTS, left, strict=True)}
        return {f"{name} {what}": value for name in module.METHODS for what, value in (made | {"error": 1e-5}).items()}

    _, rows = _made_up("markidis_budget", numbers)
    share = module.shares(rows, "legemm", "hopper", 1024)
    assert sum(share.values()) == pytest.approx(1)
    assert share["direction"] == pytest.approx(0.75)
    assert share["flushed"] == 0
    assert share["bits"] == pytest.approx(0.09)


def test_the_omitted_product_of_residuals_has_the_same_limit_in_both_papers():
    criteria = {claim.name: claim.criterion for paper in claims.papers(ROOT) for claim in paper.claims}
    for increase, met in ((1.099, True), (1.101, False)):
        share = 100 * (1 - increase**-2)
        assert criteria["product_of_residuals_is_negligible"].met(share) == met
        assert criteria["fourth_product_negligible"].met(increase) == met
