"""The balanced split of staged accumulation: its words, what they lose, and the error of a product."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import reference, schemes, theory
from fpemu.schemes.words import AWAY, BALANCED, of_operand, split, steps
from fpemu.theory import Norms

RULES = schemes.build("staged", {"high_rounding": BALANCED}).rules()
NEAREST = schemes.get("staged").rules()


def significands(lead):
    """All fp32 numbers in [1, 2) with some ten leading fraction bits: every position between two fp16 numbers."""
    return (np.uint32(0x3F800000) + (np.uint32(lead) << np.uint32(13)) + np.arange(2**13, dtype=np.uint32)).view("f4")


@pytest.mark.parametrize("lead", [0, 1, 0x155, 0x3FE, 0x3FF])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_high_words_bracket_the_number_and_residuals_have_opposite_signs(lead, sign):
    x = sign * significands(lead).astype(np.float64)
    (ha, ra), (hb, rb) = ([w.astype(np.float64) for w in split(x, of_operand(RULES, name))] for name in ("A", "B"))
    assert np.array_equal(ha, np.where(np.arange(2**13) == 0, x, sign * (1 + lead / 2**10)))
    assert np.array_equal(hb, np.where(np.arange(2**13) == 0, x, ha + sign * 2.0**-10))
    assert (ra * sign >= 0).all()
    assert (rb * sign <= 0).all()


def test_the_residual_has_a_bit_more_than_with_rounding_to_nearest_and_loses_twice_as_much():
    """In units of the last place of x, 2^-23: |x - h| <= 2^12 to nearest, < 2^13 balanced, and r keeps 11 bits."""
    x = np.concatenate([significands(lead) for lead in range(0, 1024, 73)]).astype(np.float64)
    for rules, most, loss in (
        (NEAREST, 2**12, 1),
        (of_operand(RULES, "A"), 2**13 - 1, 2),
        (of_operand(RULES, "B"), 2**13 - 1, 2),
    ):
        (_, _, _, first), (_, _, _, last) = steps(x, rules)
        assert np.abs(first).max() == most * 2.0**-23
        assert np.abs(last).max() == loss * 2.0**-23


def test_subnormal_words_round_the_raised_number_to_nearest():
    x = np.array(
        [2.0**-25, 2.0**-25 * (1 + 2.0**-23), 2.0**-25 * (1 - 2.0**-24), 3 * 2.0**-25, 2.0**-140, -0.0, 2.0**-14]
    )
    h, r = split(x, of_operand(RULES, "B"))
    assert h.tolist() == [0, 2.0**-24, 0, 2.0**-23, 0, 0, 2.0**-14]
    assert (np.abs(x - h.astype(np.float64) - r.astype(np.float64)) <= 2.0**-25).all()
    assert np.signbit(h[5])


def test_only_the_operands_name_resolves_a_balanced_word():
    assert [word.rounding for word in RULES] == [BALANCED, "RNE"]
    assert [of_operand(RULES, name)[0].rounding for name in "AB"] == ["RZ", AWAY]
    assert of_operand(NEAREST, "B") == NEAREST
    scheme = schemes.build("staged", {"high_rounding": BALANCED})
    assert [float(scheme.split(1 + 2.0**-12, name)[0]) for name in "AB"] == [1.0, 1 + 2.0**-10]


def test_the_error_on_positive_operands_is_smaller_and_stays_below_the_bound():
    rng = np.random.default_rng(5)
    for low, most in ((0.0, 0.62), (-1.0, 1.35)):
        A, B = (rng.uniform(low, 1, shape).astype(np.float32) for shape in ((32, 1024), (1024, 32)))
        exact, errors = reference.matmul(A, B, out="fp64"), {}
        for rounding in ("RNE", BALANCED):
            D = fpemu.gemm(A, B, scheme="staged", hardware="H200", high_rounding=rounding)
            bound = theory.bound("staged", "H200", norms=Norms.of(A, B), M=32, N=32, high_rounding=rounding)
            share = np.abs(D - exact) / (np.abs(A).astype(np.float64) @ np.abs(B))
            assert share.max() <= bound.worst
            assert share.max() <= bound.probable()
            errors[rounding] = np.linalg.norm(D - exact)
        assert errors[BALANCED] < most * errors["RNE"]


def test_the_split_and_the_omitted_product_have_four_times_the_bound_of_rounding_to_nearest():
    norms = Norms.sample("uniform", 256, rows=8, low=0.5, high=1.0)
    for rounding, expected in (("RNE", 3 * 2.0**-22), (BALANCED, 2.0**-19)):
        parts = theory.bound("staged", "H200", norms=norms, high_rounding=rounding).parts
        worst = sum(part.worst for part in parts if part.name in ("split", "products left out"))
        assert expected < worst < 1.002 * expected
