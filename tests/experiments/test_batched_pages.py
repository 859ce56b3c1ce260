"""The pages on the errors of batched and tall-skinny products: their references in fractions, their measures and
findings on generated rows, and small real cells."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fpemu import batched, inputs
from fpemu.reproduce import pages

ROOT = Path(__file__).resolve().parents[2] / "experiments"
SMALL = {
    "magma/halfcomplex": {"n": 5, "batch": 2},
    "magma/packed": {"n": 3, "groups": 2},
    "magma/updates": {"k": 4, "batch": 2, "updates": 3},
    "magma/splitcomplex": {"m": 2, "k": 20},
    "tsm2/slices": {"m": 5, "k": 128},
}
NAMES = sorted(SMALL)


def _page(name):
    return pages.load(name, ROOT)


@functools.cache
def _numbers(name, seed, slices):
    """Those of one small cell."""
    page = _page(name)
    cell = next(c for c in page.cells("quick") if (c["seed"], c.get("slices")) == (seed, slices))
    return page.evaluate({**cell, **SMALL[name]})


def _made_up(name, seeds=2):
    """Rows whose numbers are those of small cells, scaled by the cell so that lines do not lie on one another."""
    page, rows = _page(name), []
    for i, cell in enumerate(c for c in page.cells("quick") if c["seed"] < seeds):
        found = _numbers(name, 0, None if "slices" not in cell else 1 if cell["slices"] == 1 else 4)
        rows.append({**cell, **{key: value * (1 + i % 7) for key, value in found.items()}})
    return page, rows


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


def _measured(page, rows):
    return {(one.name, one.variant): one.value for one in page.module.measures(rows)}


def test_measures_follow_the_rows():
    page, rows = _made_up("magma/halfcomplex")
    for factor in (3.0, 0.3):
        changed = [
            {**row, **{c: row["one kernel" + c[10:]] * factor for c in row if c.startswith("four calls")}}
            for row in rows
        ]
        assert all(value == pytest.approx(factor) for value in _measured(page, changed).values())
        assert f"errors relative to one kernel are: four calls {factor:.2f}×" in page.module.finding(changed)
    page, rows = _made_up("magma/updates")
    for factor in (2.0, 0.5):
        of = {f"{chip} {d} relative_l2": factor for chip in ("volta", "ampere", "hopper") for d in ("fp16", "fp32")}
        changed = [{**row, **of, "one product relative_l2": 1.0} for row in rows]
        assert all(value == pytest.approx(factor) for value in _measured(page, changed).values())
    page, rows = _made_up("magma/splitcomplex")
    for factor in (2.0, 0.5):
        changed = [
            {**row, **{c: factor * row[c.replace(" three ", " four ")] for c in row if " three " in str(c)}}
            for row in rows
        ]
        numbers = _measured(page, changed)
        assert numbers["three_products_ootomo", "Ampere"] == pytest.approx(factor)
        assert numbers["three_products_detected", "Ootomo"] == pytest.approx(factor)
    page, rows = _made_up("magma/packed")
    alike = "own k, blocks divide all products alike"
    for same, own in ((0.0, 0.0), (0.1, 0.2)):
        numbers = _measured(page, [{**row, "same k differing": same, "own k differing": own} for row in rows])
        assert numbers["same_k_same_bits", "over the same k"] == same
        assert numbers["same_k_same_bits", alike] == numbers["own_k_other_bits_detected", ""] == own
    page, rows = _made_up("tsm2/slices")
    rows[0]["versions differing"] = 1.0
    assert rows[0]["slices"] == 1
    assert _measured(page, rows)["versions_are_one_chain", ""] > 0
