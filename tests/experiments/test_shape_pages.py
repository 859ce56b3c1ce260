"""The pages on batched and tall-skinny products: their formulas against small exact simulations, their sentences on
synthetic rows, and one real small cell of each."""

from __future__ import annotations

import functools
import importlib
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from experiments.magma import _bias as bias
from fpemu import inputs, mma, simt
from fpemu.reproduce import figures, pages

ROOT = Path(__file__).resolve().parents[2] / "experiments"
FIGURES = ROOT.parent / "figures"
chains = importlib.import_module("experiments.tsm2._chains")
SMALL = {
    "magma/accuracy": {"batch": 2, "n": 8},
    "magma/bias": {"m": 4, "n": 4},
    "tsm2/accuracy": {"m": 8, "n": 4},
    "tsm2/chains": {"m": 2, "n": 2},
}
LENGTHS = {
    "magma/bias": ("k", (16, 64)),
    "tsm2/accuracy": ("k", (4, 64)),
    "tsm2/chains": ("k", (64, 256)),
    "magma/accuracy": ("n", (2, 8)),
}


def _page(name):
    return pages.load(name, ROOT)


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
    made, c = truncation.Products.of(spec), np.array([1.5 * 2.0**12])
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
    made, c = truncation.Products.of(spec), np.array([3.0])
    assert made.final(c, 2 * c) == 0 < made.alignment(c)


# --- the chains of TSM2
def test_expected_growth_of_a_chain_of_fmas():
    assert chains.expected(1, 24) == pytest.approx(2.0**-25 / math.sqrt(12) / 0.25)
    ulps = [2.0**-25, 2.0**-24, 2.0**-24, 2.0**-23]  # of 1/4, 1/2, 3/4, 1
    assert chains.expected(4, 24) == pytest.approx(math.sqrt(sum(u * u for u in ulps) / 12))
    assert chains.expected(5000, 53) == pytest.approx(chains.expected(5000, 24) * 2.0**-29)


@pytest.mark.parametrize("slices", [1, 8])
def test_expected_growth_against_chains_in_fractions(slices):
    X = inputs.make("uniform", (2, 80, 128), 1, "fp32", low=0.0, high=1.0)
    errors = []
    for x, y in zip(X[0].tolist(), X[1].tolist(), strict=True):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True))
        total = np.float32(0)
        for start in range(0, 128, 128 // slices):
            c = np.float32(0)
            for a, b in zip(x[start : start + 128 // slices], y[start : start + 128 // slices], strict=True):
                c = np.float32(simt.fma(np.float32(a), np.float32(b), c))
            total += c
        errors.append(float((Fraction(float(total)) - exact) / exact))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(chains.expected(128, 24, slices), rel=0.25)


def test_loads_of_the_published_loops_by_hand():
    page = _page("tsm2/loads").module
    loads = {row["algorithm"]: row for row in _evaluated("tsm2/loads") if row["t2"] == page.N // 2 or row["B"] == 1}
    assert [loads[name]["A"] for name in ("1", "2", "3", "4", "6")] == [page.N, 1, 2, 2, 2]
    assert [loads[name]["B"] for name in ("1", "2", "3", "4", "6", "7")] == [1, 1, 1, 1, page.TCF, 1]
    assert [loads[name]["C"] for name in ("1", "2", "3", "4", "6", "7")] == [page.K, 1, 1, 1, 1, page.K // page.T1]
    shares = {m.variant: m.value for m in page.measures(_evaluated("tsm2/loads")) if m.name == "loads_of_b"}
    assert shares == {f"t2 = {t2}, t1 = {page.T1}": t2 / page.T1 for t2 in (page.N, page.N // 2)}
    # every tile of A but the last prefetches t3 elements that the next tile loads again
    tiles = page.K // page.T1
    assert loads["7"]["A"] == 2 * (1 + (tiles - 1) * page.T3 / page.K)


def test_bank_conflicts_are_greatest_common_divisors():
    page = _page("tsm2/loads").module
    assert [page.conflicts(t2, "rows") for t2 in range(1, 40)] == [math.gcd(t2, 32) for t2 in range(1, 40)]
    assert {page.conflicts(t2, "columns") for t2 in range(1, 40)} == {1}


@functools.cache
def _evaluated(name):
    page = _page(name)
    return [{**cell, **page.evaluate(cell)} for cell in page.cells("quick") if cell["algorithm"]]


def test_measures_of_the_chains_follow_from_the_rows():
    page = _page("tsm2/chains")
    numbers = dict.fromkeys((*page.module.CHAINS, *page.module.SCHEMES), 1e-6) | {"staged": 5e-7, "legemm": 1e-5}
    rows = [{**cell, **numbers} for cell in page.cells("quick")]
    values = {(one.name, one.variant): one.value for one in page.measures(rows)}
    assert values["promoted_sums", "staged (ours), Hopper"] == 0.5
    assert values["truncated_sums", "LE-GEMM, Ampere"] == pytest.approx(10)
    assert len(values) == 12
    accuracy = _page("tsm2/accuracy")
    rows = [
        {**cell, "relative_l2": 1.2 * chains.expected(cell["k"], accuracy.module.FORMATS[cell["format"]])}
        for cell in accuracy.cells("quick")
    ]
    assert [round(one.value, 9) for one in accuracy.measures(rows)] == [1.2, 1.2]


# --- every page


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
