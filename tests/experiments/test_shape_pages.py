"""The pages on batched and tall-skinny products, and on DGEMM's order: their formulas against small exact simulations,
what they say about made-up rows, and one real small cell of each."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fpemu import inputs, mma, plotting, simt
from fpemu.reproduce import experiments, figures
from fpemu.theory import bias

ROOT = Path(__file__).resolve().parents[2] / "experiments"
SMALL = {
    "magma/accuracy": {"batch": 2, "n": 8},
    "magma/bias": {"m": 4, "n": 4},
    "tsm2/accuracy": {"m": 8, "n": 4},
    "tsm2/chains": {"m": 2, "n": 2},
    "dgemm_tc/chain": {"rows": 4},
}
LENGTHS = {
    "magma/bias": ("k", (16, 64)),
    "tsm2/accuracy": ("k", (4, 64)),
    "tsm2/chains": ("k", (64, 256)),
    "dgemm_tc/chain": ("n", (64, 256)),
    "magma/accuracy": ("n", (2, 8)),
}


def _page(name):
    return experiments.load(name, ROOT)


def _rows(name, seeds=(0, 1, 2)):
    """Real rows of a page at two small lengths."""
    page = _page(name)
    length, some = LENGTHS[name]
    cells = {}
    for cell in page.cells("quick"):
        if cell["seed"] in seeds:
            for value in some:
                small = {**cell, **SMALL[name], length: value}
                cells[str(small)] = small
    return page, [{**cell, **page.evaluate(cell)} for cell in cells.values()]


@pytest.fixture(scope="module")
def truncation():
    return bias


# --- the prediction of the bias
def test_mean_of_a_product_modulo_a_power_of_two_by_enumeration():
    for j in range(1, 8):
        mean = Fraction(sum(x * y % 2**j for x in range(2**j) for y in range(2**j)), 4**j)
        assert mean == (2**j - 1 - Fraction(j, 2)) / 2


@pytest.mark.parametrize(("gpu", "ulps"), [("volta", 1 / 2), ("ampere", 9 / 32), ("hopper", 19 / 128), ("ideal", 0.0)])
def test_loss_of_a_product_in_units_in_the_last_place(truncation, gpu, ulps):
    spec = mma.spec(gpu, "fp16", "fp32")
    made, c = truncation._Products.of(spec), np.array([1.5 * 2.0**12])
    loss = made.alignment(c) + (made.final(c, c) + made.entering(c)) / spec.block
    assert float(loss[0]) / 2.0 ** (12 - 23) == pytest.approx(ulps, rel=0.02)


def _chain(x, y, block, F, bits):
    """A chain of truncated blocks in exact fractions: sums of positive normal numbers."""
    c = Fraction(0)
    for start in range(0, len(x), block):
        pairs = [(a, b) for a, b in zip(x[start : start + block], y[start : start + block], strict=True) if a and b]
        exponents = [math.frexp(a)[1] + math.frexp(b)[1] - 2 for a, b in pairs]
        terms = [Fraction(a) * Fraction(b) for a, b in pairs]
        if c:
            exponents.append(math.frexp(c)[1] - 1)
            terms.append(c)
        unit = Fraction(2) ** (max(exponents) - F)
        total = sum(term // unit for term in terms) * unit
        last = Fraction(2) ** (math.frexp(total)[1] - 1 - bits)
        c = total // last * last
    return c


@pytest.mark.parametrize(
    ("block", "F", "bits", "k"), [(4, 23, 23, 256), (8, 24, 23, 256), (4, 14, 12, 128), (2, 12, 12, 64)]
)
def test_predicted_loss_against_chains_in_fractions(truncation, block, F, bits, k):
    spec = mma.MmaSpec("fp16", "fp16", "fp32", k=block, block=block, F=F, fraction_bits=bits)
    X = inputs.make("uniform", (2, 60, k), 5, "fp16", low=0.01, high=1.0)
    losses = []
    for x, y in zip(X[0].tolist(), X[1].tolist(), strict=True):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True))
        computed = _chain(x, y, block, F, bits)
        assert computed == Fraction(float(mma.gemm([x], np.array(y)[:, None], spec=spec)[0, 0]))
        losses.append(float((exact - computed) / exact))
    error = np.std(losses) / math.sqrt(len(losses))
    # low = 0.01 keeps out numbers that fp16 holds with fewer bits; it shifts the mean product by 2 %
    assert abs(np.mean(losses) - truncation.positive(spec, k)) < 4 * error + 0.03 * np.mean(losses)


@pytest.mark.parametrize(("block", "F", "bits"), [(4, 12, 12), (8, 14, 12), (8, 18, 12)])
def test_predicted_loss_of_sums_of_both_signs_against_the_instruction(truncation, block, F, bits):
    spec = mma.MmaSpec("fp16", "fp16", "fp32", k=block, block=block, F=F, fraction_bits=bits)
    A, B = inputs.operands("uniform", 96, 96, 512, 3, "fp16", low=-1.0, high=1.0)
    D = mma.gemm(A, B, spec=spec).astype(float)
    exact = simt.gemm(A.astype(float), B.astype(float), fmt="fp64")
    shrunk = (exact - D) * np.sign(exact) / np.sqrt(np.mean(exact**2))
    error = np.std(shrunk) / math.sqrt(shrunk.size)
    predicted = truncation.towards_zero(spec, 512)
    assert predicted > 10 * error
    assert abs(np.mean(shrunk) - predicted) < max(4 * error, 0.1 * predicted)


def test_the_bias_is_linear_in_k_and_absent_where_nothing_is_truncated(truncation):
    hopper, volta, ideal = (mma.spec(gpu, "fp16", "fp32") for gpu in ("hopper", "volta", "ideal"))
    for spec in (hopper, volta):
        assert truncation.positive(spec, 2**16) / truncation.positive(spec, 2**12) == pytest.approx(16, rel=0.05)
    assert truncation.towards_zero(hopper, 2**16) / truncation.towards_zero(hopper, 2**12) == pytest.approx(
        16, rel=0.05
    )
    assert truncation.positive(ideal, 1000) == truncation.towards_zero(ideal, 1000) == 0
    assert truncation.downwards(hopper, 1000) == 0 < truncation.downwards(mma.spec("cdna3", "fp16", "fp32"), 2**16)


def test_nearest_loses_nothing_in_the_final_rounding_but_still_in_alignment(truncation):
    spec = mma.MmaSpec("fp16", "fp16", "fp32", k=4, block=4, F=23, final="RNE")
    made, c = truncation._Products.of(spec), np.array([3.0])
    assert made.final(c, 2 * c) == 0 < made.alignment(c)


def _bias_rows(factor, deviation=0.0, scatter=0.0, seeds=(0, 1, 2)):
    """Rows whose bias is ``factor`` times the prediction; seeds 1 and 2 are off by ``scatter`` either way."""
    page = _page("magma/bias")
    module, rows = page.module, []
    for cell in page.cells("quick"):
        name = next(n for n, pair in module.INSTRUCTIONS.items() if pair == (cell["hardware"], cell["ab"]))
        value = factor * module.predicted(name, cell["low"], cell["k"]) + (0.0, scatter, -scatter)[cell["seed"]]
        row = {c: value for c in ("relative loss", "towards zero", "downwards")}
        if cell["seed"] in seeds:
            rows.append({**cell, **row, **{f"{c} deviation": deviation for c in row}, "rms": 1e-7})
    return module, rows


def _agreed(text):
    """Points that agree, that can tell and that cannot: positive and zero mean."""
    found = re.findall(r"agrees at: (\d+) of the (\d+) points.*?from no bias: (\d+)", text)
    return [tuple(map(int, numbers)) for numbers in found]


def test_what_the_bias_page_says_depends_on_the_rows():
    module, rows = _bias_rows(1.0)
    lengths = sorted({row["k"] for row in rows})
    told = [
        sum(module.predicted(name, low, k) > 0 for name in module._LOOK for k in lengths)
        for low in module.KINDS.values()
    ]
    points = 6 * len(lengths)
    assert told[0] == points - len(lengths)  # nothing is predicted for the ideal one
    assert _agreed(module.finding(rows)) == [(many, many, points - many) for many in told]
    module, rows = _bias_rows(2.0)
    text = module.finding(rows)
    assert _agreed(text) == [(0, many, points - many) for many in told]
    assert "Not at: Volta, k = 16" in text


def test_no_bias_at_all_agrees_nowhere():
    for deviation in (0.0, 1e-5, 1e-3, 1.0):
        module, rows = _bias_rows(0.0, deviation)
        for agree, told, mute in _agreed(module.finding(rows)):
            assert agree == 0
            assert told + mute == 6 * len({row["k"] for row in rows})
    assert told == 0


def test_seeds_that_scatter_more_than_their_outputs_widen_the_standard_error():
    module, rows = _bias_rows(1.0, deviation=1e-6, scatter=3e-5)
    (_, error), *_ = module._measured(rows, "volta", 0.0)
    assert error == pytest.approx(3e-5 / math.sqrt(3))
    module, rows = _bias_rows(1.0, deviation=1e-2, scatter=3e-5)
    (_, error), *_ = module._measured(rows, "volta", 0.0)
    assert error == pytest.approx(1e-2 / math.sqrt(3 * 16 * 16))
    assert "no less than the scatter of 3 seeds' means" in module.finding(rows)
    module, rows = _bias_rows(1.0, deviation=1e-6, scatter=3e-5, seeds=(0, 1))
    (_, error), *_ = module._measured(rows, "volta", 0.0)
    assert error == pytest.approx(1e-6 / math.sqrt(2 * 16 * 16))
    assert "too few seeds" in module.finding(rows)


# --- the chains of TSM2
def test_expected_growth_of_a_chain_of_fmas():
    expected = _page("tsm2/accuracy").module.expected
    assert expected(1, 24) == pytest.approx(2.0**-25 / math.sqrt(12) / 0.25)
    ulps = [2.0**-25, 2.0**-24, 2.0**-24, 2.0**-23]  # of 1/4, 1/2, 3/4, 1
    assert expected(4, 24) == pytest.approx(math.sqrt(sum(u * u for u in ulps) / 12))
    assert expected(5000, 53) == pytest.approx(expected(5000, 24) * 2.0**-29)


def test_expected_growth_against_a_chain_in_fractions():
    expected = _page("tsm2/accuracy").module.expected
    X = inputs.make("uniform", (2, 80, 128), 1, "fp32", low=0.0, high=1.0)
    errors = []
    for x, y in zip(X[0].tolist(), X[1].tolist(), strict=True):
        c = exact = Fraction(0)
        for a, b in zip(x, y, strict=True):
            exact += Fraction(a) * Fraction(b)
            c = Fraction(float(np.float32(simt.fma(np.float32(a), np.float32(b), np.float32(float(c))))))
        errors.append(float((c - exact) / exact))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(expected(128, 24), rel=0.25)


# --- every page
@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_page_speaks_and_draws_from_the_rows_of_one_seed_and_of_all(name):
    page, rows = _rows(name)
    for some in (rows, [row for row in rows if row["seed"] == 0]):
        assert page.claims(some) == []
        text = page.module.finding(some)
        assert text.endswith(".")
        assert not any(word in text for word in ("nan", "inf ", "{"))
    figure = page.draw(rows)
    plotting.png(figure)
    legend = figure.legends[0].get_window_extent()
    assert not any(legend.overlaps(axis.get_window_extent()) for axis in figure.axes)
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_three_seeds_and_distinct_cells(name):
    cells = _page(name).cells("quick")
    assert len({cell["seed"] for cell in cells}) >= 3
    assert len({str(cell) for cell in cells}) == len(cells)


def test_no_result_in_fp16_beats_the_exact_product_rounded_once():
    _, rows = _rows("magma/accuracy", seeds=(0,))
    for row in rows:
        methods = [key for key in row if key.endswith(" relative_l2")]
        assert len(methods) == 8
        assert min(row[m] for m in methods) == row["once relative_l2"]


def test_fp16_accumulation_of_one_block_is_one_rounding():
    """Up to 4 products Volta rounds once too, so that only what alignment cuts off can make a difference."""
    page = _page("magma/accuracy")
    cell = {**page.cells("quick")[0], "n": 4, "batch": 5}
    numbers = page.evaluate(cell)
    assert numbers["volta fp16 relative_l2"] == pytest.approx(numbers["once relative_l2"], rel=1e-3)
    assert numbers["small relative_l2"] > 1.2 * numbers["once relative_l2"]


def test_orders_of_a_short_dgemm_are_one_chain():
    page = _page("dgemm_tc/chain")
    cell = {**page.cells("quick")[0], "n": 64, "rows": 8}
    numbers = page.evaluate(cell)
    assert numbers["chain"] == numbers["blocks of 64"] == numbers["blocks of 256"] != numbers["pairwise"]


def test_which_orders_are_equivalent_is_counted():
    page = _page("dgemm_tc/chain")
    factors = {"chain": 100.0, "blocks of 64": 9.0, "blocks of 256": 11.0, "pairwise": 0.09, "TC": 1.0}
    rows = [
        {**cell, **{name: 1e-15 * f for name, f in factors.items()}, **{f"{name} normwise": 1e-16 for name in factors}}
        for cell in page.cells("quick")
    ]
    points = len({(row["phi"], row["n"]) for row in rows})
    first = page.module.finding(rows).split("Points where equivalent: ")[1].split(". ")[0]
    assert first == f"chain 0, blocks of 64 {points}, blocks of 256 0, pairwise 0"
    assert set(page.explains) == {"dgemm_tc/fig3", "dgemm_tc/fig8"}


@pytest.mark.parametrize(("entry", "norm", "concluded"), [(100.0, 2.0, True), (2.0, 2.0, False), (2.0, 100.0, False)])
def test_cancelling_entries_are_blamed_only_if_errors_over_the_norm_are_closer(entry, norm, concluded):
    page = _page("dgemm_tc/chain")
    rows = []
    for cell in page.cells("quick"):
        row = {"TC": 1e-15, "TC normwise": 1e-16}
        for order in page.module.ORDERS:
            least = order == "chain" and cell["n"] == 256  # the chain is not the worst there
            row |= {order: 1e-15 * entry * (0.9 if least else 1.0), f"{order} normwise": 1e-16 * norm}
        rows.append({**cell, **row})
    text = page.module.finding(rows)
    assert ("in which the products cancel" in text) == concluded
    points, short = (len({(r["phi"], r["n"]) for r in rows if r["n"] != n}) for n in (None, 256))
    worst = [int(n) for n in re.findall(r"more than the one chain: (\d+)", text)]
    assert worst == [short, points] * 2


@pytest.mark.parametrize("excess", [1.01, 1.5])
def test_the_last_rounding_is_nearly_all_only_if_the_error_is_near_it(excess):
    page = _page("magma/accuracy")
    numbers = {f"{name} {x}": 1e-3 for name in (*page.module.METHODS, "small") for x in ("relative_l2", "normwise")}
    rows = [{**cell, **numbers, "once relative_l2": 1e-3 / excess} for cell in page.cells("quick")]
    text = page.module.finding(rows)
    assert f"at most: {excess:.4f}×" in text
    assert ("nearly all" in text) == (excess < 1.05)
    assert "Hopper, a rounding for every 16 products" in text


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("magma/accuracy", {"fp16->fp32", "fp16->fp16"}),
        ("magma/bias", {"fp16->fp32", "e4m3->fp32"}),
        ("tsm2/chains", {"fp16->fp32", "tf32->fp32", "bf16->fp32"}),
        ("ozaki2/yardsticks", {"fp16->fp32", "int8->int32"}),
    ],
)
def test_every_instruction_behind_a_figure_is_in_its_record(name, formats):
    page = _page(name)
    recorded = {spec["name"] for spec in figures.hardware(page, page.cells("quick"))}
    assert {spec.split()[-1] for spec in recorded} == formats
    assert len(recorded) == {"magma/accuracy": 6, "magma/bias": 7, "tsm2/chains": 6, "ozaki2/yardsticks": 2}[name]


def test_schemes_below_the_chain_are_named():
    page = _page("tsm2/chains")
    rows = []
    for cell in page.cells("quick"):
        numbers = dict.fromkeys((*page.module.CHAINS, *page.module.SCHEMES), 1e-6)
        numbers |= {"staged": 2e-6 if cell["k"] < 1024 else 5e-7, "ootomo": 1e-7, "markidis": 1e-5}
        rows.append({**cell, **numbers})
    text = page.module.finding(rows)
    assert "staged from k = 1024 (0.5×" in text
    assert "Ootomo everywhere (0.1×" in text
    assert "Markidis nowhere (10×" in text


# --- findings on pages that were there before
def _promise_rows(bad):
    page = _page("dgemm_tc/promise")
    rows = []
    for cell in page.cells("quick"):
        row = {**cell, "CR differing": 0.0}
        for name in page.module.METHODS:
            error = 1e-3 if name != "DGEMM" and (name, cell["family"]) in bad else 1e-15
            row |= {f"{name} relative": error, f"{name} normwise": error, f"{name} equation 1": 0.5}
        rows.append(row)
    return page.module, rows


def test_broken_promises_are_counted():
    module, rows = _promise_rows({("printed", "graded"), ("printed", "identity"), ("default", "graded")})
    text = module.finding(rows)
    assert "misses DGEMM's accuracy on 2 of 15 families" in text
    assert "misses DGEMM's accuracy on 1 of 15 families" in text
    assert "cures 1: identity" in text
    failed = [claim for claim in module.claims(rows) if claim.verdict == "does not hold"]
    assert len(failed) == 3
    module, rows = _promise_rows(set())
    assert "misses DGEMM's accuracy on 0 of 15 families" in module.finding(rows)


def test_exactness_says_where_the_formula_is_wrong():
    page = _page("dgemm_tc/exactness")
    rows = [{**c, **page.evaluate(c)} for c in page.cells("quick") if c["k"] <= 64 and c["seed"] == 0]
    text = page.module.finding(rows)
    assert "fp16, NVIDIA: k = 1, 1 bit too long; cut to the words exact" in text
    assert f"Inexact points of {len(rows)}: with the derived bits 0, with one bit more {len(rows)}." in text
    changed = [{**row, "derived inexact uniform": 0.5} for row in rows]
    assert f"with the derived bits {len(rows)}," in page.module.finding(changed)
