"""The pages on batched and tall-skinny products: references in fractions, chains and loads by small simulations."""

import functools
import importlib
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fpemu import batched, inputs, simt
from fpemu.reproduce import figures, pages

ROOT = Path(__file__).resolve().parents[2] / "experiments"
chains = importlib.import_module("experiments.tsm2._chains")


def _page(name):
    return pages.load(name, ROOT)


def _fractions(x):
    return [[Fraction(float(v)) for v in row] for row in x]


def _times(x, y):
    columns = list(zip(*y, strict=True))
    return [[sum((p * q for p, q in zip(row, column, strict=True)), Fraction(0)) for column in columns] for row in x]


def _complex_product(ar, ai, br, bi):
    ar, ai, br, bi = map(_fractions, (ar, ai, br, bi))
    real = [[x - y for x, y in zip(*rows, strict=True)] for rows in zip(_times(ar, br), _times(ai, bi), strict=True)]
    both = zip(_times(ar, bi), _times(ai, br), strict=True)
    return np.array([real, [[x + y for x, y in zip(*rows, strict=True)] for rows in both]]).astype(float)


def test_the_reference_of_half_complex_products_is_exact():
    A, B = inputs.operands("uniform", 3, 4, 19, 0, "fp16", batch=(2, 2), low=-1.0, high=1.0)
    exact = _page("magma/halfcomplex").module.complex_product(A, B)
    for i in range(2):
        assert (exact[:, i] == _complex_product(A[0, i], A[1, i], B[0, i], B[1, i])).all()


@pytest.mark.parametrize("scale", [0, 5])
def test_the_reference_of_complex_products_by_schemes_is_exact(scale):
    A, B, exact = _page("magma/splitcomplex").module._problem("uniform", 3, 17, scale, 1)
    assert A.dtype == np.complex64
    assert (exact == _complex_product(A.real, A.imag, B.real, B.imag)).all()
    assert abs(A.imag).max() <= 2.0**-scale


def test_updates_write_fp16_in_between():
    page = _page("magma/updates").module
    A, B = np.float16([[[1.0, 2.0**-11, 2.0**-11]]]), np.ones((1, 3, 1), np.float16)
    options = {"hardware": "ideal"}
    assert page.updated(A, B, 1, options).item() == 1
    assert page.updated(A, B, 3, options).item() == 1 + 2.0**-10
    assert page.updated(A, B, 2, options).item() == 1


def test_products_that_share_an_instruction_are_where_they_belong():
    page = _page("magma/packed").module
    rng = np.random.default_rng(0)
    for n in range(1, 9):
        A, B = rng.integers(-9, 10, (2, 3, 16 // n, n, n)).astype(np.float16)
        for how in page.ARRANGEMENTS:
            D = page.together(A, B, how, lambda x, y: x.astype(int) @ y.astype(int))
            assert np.array_equal(D, A.astype(int) @ B.astype(int))


def test_blocks_cut_products_alike_where_their_starts_are_alike():
    cuts = _page("magma/packed").module.same_cuts
    assert [n for n in range(1, 9) if cuts(n, 4)] == [n for n in range(1, 9) if cuts(n, 8)] == [1, 2, 4, 8]
    assert all(cuts(n, 16) for n in range(1, 9))


def test_a_cut_elsewhere_is_another_sum():
    page = _page("magma/packed")
    cell = next(c for c in page.cells("quick") if (c["hardware"], c["n"], c["accumulate"]) == ("volta", 3, "fp16"))
    A, B = np.ones((1, 5, 3, 3), np.float16), np.float16([2048.0, 1.0, 1.0])[:, None].repeat(3, 1)
    B = np.broadcast_to(B, (1, 5, 3, 3))
    options = {"hardware": "volta", "accumulate": "fp16"}
    D = page.module.together(A, B, "own k", lambda x, y: batched.hgemm(x, y, **options))
    # 0-2 | 3, 4-5 | 6-7, 8 | 9-11 | 12-14: 2048, then 1 + 1; 2048 + 1 to even, then 1
    assert D[0, :, 0, 0].tolist() == [2050.0, 2050.0, 2048.0, 2050.0, 2050.0]
    numbers = page.evaluate({**cell, "groups": 2})
    assert numbers["own k differing"] > 0
    assert numbers["own k nan"] == pytest.approx(1 / 3)
    assert numbers["same k differing"] == numbers["same k nan"] == 0


def test_expected_growth_of_slices():
    expected = _page("tsm2/slices").module.expected
    # k slices of one product: each rounded in the binade of 1/4, and added in a chain of k - 1 roundings
    ulps = [2.0**-25] * 4 + [2.0**-24, 2.0**-24, 2.0**-23]
    assert expected(4, 24, 4) == pytest.approx(math.sqrt(sum(u * u for u in ulps) / 12))
    assert expected(5120, 53, 16) == pytest.approx(expected(5120, 24, 16) * 2.0**-29)


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
    shown = [row for row in _evaluated("tsm2/loads") if row["t2"] not in page.NARROW]
    loads = {row["algorithm"]: row for row in shown if row["t2"] == page.N // 2 or row["B"] == 1}
    assert [loads[name]["A"] for name in ("1", "2", "3", "4", "6")] == [page.N, 1, 2, 2, 2]
    assert [loads[name]["B"] for name in ("1", "2", "3", "4", "6", "7")] == [1, 1, 1, 1, page.TCF, 1]
    assert [loads[name]["C"] for name in ("1", "2", "3", "4", "6", "7")] == [page.K, 1, 1, 1, 1, page.K // page.T1]
    shares = {m.variant: m.value for m in page.measures(_evaluated("tsm2/loads")) if m.name == "loads_of_b"}
    assert shares == {f"t2 = {t2}, t1 = {page.T1}": t2 / page.T1 for t2 in (page.N, page.N // 2, *page.NARROW)}
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
