"""H2SGEMM's formulas for any formats and roundings against counts of all mantissas, with == (all are dyadic)."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from experiments.h2sgemm import _enumeration as enumeration
from experiments.h2sgemm import _underflow as underflow
from experiments.h2sgemm._residuals import Split
from fpemu import schemes
from fpemu.errors import InputError
from fpemu.formats import FloatFormat

PAIRS = [("fp32", "fp16"), ("fp32", "bf16"), ("fp32", "tf32"), ("fp16", "e4m3"), ("fp16", "e5m2"), ("bf16", "e4m3")]
MODES = ("RNE", "RNA", "RZ", "RU", "RD")
SCALES = (0, 6, 11, 12, 13)
ALL = {"fp32": 23, "fp16": 10, "bf16": 7}
SLOW = pytest.mark.slow


@functools.cache
def counted(exponent, sb, bits, *split):
    wide, narrow, high, low = split
    choice = {"wide": wide, "narrow": narrow, "rounding": high, "residual_rounding": low}
    return (
        enumeration.residuals(exponent, sb=sb, mantissas=bits, **choice),
        enumeration.kept(exponent, sb, mantissas=bits, **choice),
    )


def assert_formulas_are_the_counts(exponent, sb, bits, wide, narrow, high="RNE", low=None):
    """Everything that is a share of the mantissas, of a whole number of periods with no overflow of h, or of all."""
    choice = {"wide": wide, "narrow": narrow, "rounding": high, "residual_rounding": low}
    residuals, kept = counted(exponent, sb, bits, wide, narrow, high, low)
    every, where = residuals.mantissas, (exponent, sb, wide, narrow, high, low)
    assert underflow.underflow_probability(exponent, sb=sb, **choice) == residuals.gone / every, where
    gradual = underflow.underflow_probability(exponent, sb=sb, gradual=True, **choice)
    assert gradual == (residuals.below_normal - residuals.exact) / every, where
    found = underflow.bits_kept(exponent, sb, **choice)
    assert (found.worst, found.mean) == (kept.worst, kept.mean), where
    assert (found.h_overflows, found.r_overflows) == (kept.h_overflows / every, kept.r_overflows / every), where
    fmt = Split.of(**choice).narrow
    if fmt.emin <= exponent and not residuals.h_overflows:
        for n in range(-4, 60):
            assert underflow.residual_probability(n, "T", **choice) == residuals.down[n] / every, (n, where)
            assert underflow.residual_probability(n, "R", **choice) == residuals.up[n] / every, (n, where)


# --- fp32 into fp16, as in the paper
@pytest.mark.parametrize("exponent", range(-16, 15))
def test_a_period_of_mantissas_agrees_at_every_exponent(exponent):
    for sb in SCALES:
        assert_formulas_are_the_counts(exponent, sb, Split.of().period(exponent), "fp32", "fp16")


@pytest.mark.parametrize(
    ("exponent", "sb"), [pytest.param(-24, 12, marks=SLOW), pytest.param(-7, 0, marks=SLOW), (15, 12)]
)
def test_all_mantissas_agree(exponent, sb):
    assert_formulas_are_the_counts(exponent, sb, 23, "fp32", "fp16")


def test_one_period_of_mantissas_has_the_shares_of_all():
    whole, part = (counted(-7, 0, bits, "fp32", "fp16", "RNE", None) for bits in (23, 14))
    less = counted(-7, 0, 13, "fp32", "fp16", "RNE", None)
    for name in ("down", "up"):
        assert getattr(whole[0], name) == {n: c << 9 for n, c in getattr(part[0], name).items()}
    assert whole[1].bits == {b: c << 9 for b, c in part[1].bits.items()}
    assert whole[0].up != {n: c << 10 for n, c in less[0].up.items()}  # half a period is not enough: ties
    assert Split.of().period(-7) == 14


def test_equation_5_as_printed_counts_what_lies_below_and_not_what_is_gone():
    for exponent in range(-14, -1):
        residuals, _ = counted(exponent, 0, 14, "fp32", "fp16", "RNE", None)
        printed = [underflow.underflow_probability(exponent, gradual=g, form="printed") for g in (True, False)]
        below = [residuals.below_normal / 2**14, residuals.below_least / 2**14]
        assert printed == below
        assert printed[1] > residuals.gone / 2**14
        if exponent > -14:
            assert underflow.underflow_probability(exponent) == 2.0 ** -(exponent + 14)
            assert printed[1] == 2.0 ** -(exponent + 13) - 2.0**-13


def test_equation_5_as_printed_has_the_values_of_the_paper():
    assert underflow.underflow_probability(0, gradual=True, form="printed") == 2**-3 - 2**-13
    assert underflow.underflow_probability(0, gradual=True, form="printed") > 0.1
    assert underflow.underflow_probability(-13, form="printed") == 1 - 2**-13
    assert underflow.underflow_probability(12, sb=-12, form="printed", gradual=True) == 2**-3 - 2**-13


# --- other formats and roundings
@pytest.mark.parametrize("pair", PAIRS)
def test_equation_3_sums_to_one_for_every_pair_and_rounding(pair):
    for mode in MODES:
        terms = [
            underflow.residual_probability(n, event, wide=pair[0], narrow=pair[1], rounding=mode)
            for n in range(-3, 60)
            for event in "TR"
        ]
        assert sum(terms) == 1, mode
        assert min(terms) >= 0


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("modes", [("RNE", "RNE"), ("RZ", "RZ"), ("RZ", "RNE"), ("RNA", "RU")])
def test_other_pairs_and_roundings_agree(pair, modes):
    split = Split.of(*pair, *modes)
    few = split.dropped(split.narrow.emin) < 14
    low, high = split.narrow.emin, min(split.narrow.emax, split.wide.emax) - 1
    exponents = {low - 1, low, low + 1, low + 5, high - 1, high} if few else {low, low + 3, high}
    for exponent in exponents:
        if exponent >= split.wide.emin:
            for sb in (0, split.narrow.precision, split.narrow.precision + 1) if few else (split.narrow.precision,):
                assert_formulas_are_the_counts(exponent, sb, split.period(exponent), *pair, *modes)
    if pair[0] != "fp32":  # a few mantissas: all of them, also where h overflows
        for exponent in range(split.narrow.emax, split.narrow.emax + 2):
            if exponent <= split.wide.emax:
                assert_formulas_are_the_counts(exponent, 3, ALL[pair[0]], *pair, *modes)


def random_split(rng):
    p = rng.randint(2, 7)
    emin = -rng.randint(0, 8)
    emax = emin + rng.randint(1, 12)
    kinds: tuple = (
        {},
        {"inf": False, "nan": "top"},
        {"subnormals": False},
        {"max_significand": rng.randint(1 << (p - 1), (1 << p) - 1)},
    )
    narrow = FloatFormat("narrow", p, min(emin, p - 1), emax, **rng.choice(kinds))
    return FloatFormat("wide", rng.randint(p + 1, 12), -40, 40), narrow, rng.choice(MODES), rng.choice(MODES)


@pytest.mark.parametrize("seed", range(150))
def test_formats_and_roundings_at_random_agree_over_all_mantissas(seed):
    rng = random.Random(seed)
    wide, narrow, high, low = random_split(rng)
    exponent, sb = rng.randint(narrow.emin - narrow.precision + 1, narrow.emax + 1), rng.randint(-6, 16)
    assert_formulas_are_the_counts(exponent, sb, None, wide, narrow, high, low)


@pytest.mark.parametrize("modes", [("RNE", "RNE"), ("RZ", "RZ")])
@pytest.mark.parametrize("exponent", [-120, -126, 0])
def test_fp64_into_fp32_agrees_with_a_sample(modes, exponent):
    """2^52 mantissas are too many, and 2^30 too slow: shares of 2^17 of them, within five standard deviations."""
    count = 1 << 17
    mantissas = np.random.default_rng(3).integers(0, 1 << 52, count)
    choice = {"wide": "fp64", "narrow": "fp32", "rounding": modes[0]}
    for sb in (0, 24):
        residuals = enumeration.residuals(exponent, sb=sb, mantissas=mantissas, **choice)
        kept = enumeration.kept(exponent, sb, mantissas=mantissas, **choice)
        shares = [(underflow.underflow_probability(exponent, sb=sb, **choice), residuals.gone)]
        for n in range(-1, 12):
            for event, histogram in (("T", residuals.down), ("R", residuals.up)):
                shares.append((underflow.residual_probability(n, event, **choice), histogram[n]))
        for share, hits in shares:
            assert abs(hits - count * share) <= 5 * (count * share * (1 - share)) ** 0.5
        found = underflow.bits_kept(exponent, sb, **choice)
        assert found.worst == kept.worst  # reached by a large part of the numbers
        spread = np.std(list(kept.bits.elements())) / count**0.5
        assert abs(found.mean - kept.mean) <= 5 * spread


def test_fp64_with_its_low_bits_zero_agrees_exactly():
    """A format of 36 bits stands between: its last place is 2^12 of fp32's, as few as can be counted."""
    wide = FloatFormat("half-way", 36, -1000, 1000)
    for mode in ("RNE", "RZ"):
        for exponent in (-126, -100, 126):
            for sb in (0, 24, 25):
                assert_formulas_are_the_counts(exponent, sb, 13, wide, "fp32", mode)


# --- Eq. 6 and the rules
@pytest.mark.parametrize("seed", range(40))
def test_the_interval_of_scales_is_the_one_found_by_trying(seed):
    rng = random.Random(1000 + seed)
    narrow = FloatFormat("narrow", rng.randint(2, 4), -rng.randint(2, 6), rng.randint(1, 5))
    wide = FloatFormat("wide", narrow.precision + rng.randint(2, 6), -40, 40)
    lowest = rng.randint(narrow.emin - 1, narrow.emax - 1)
    highest = rng.randint(lowest, min(narrow.emax, lowest + 6))
    bits = rng.randint(narrow.precision + 1, 2 * narrow.precision + 2)
    choice = {"wide": wide, "narrow": narrow, "rounding": rng.choice(("RNE", "RNA", "RZ")), "residual_rounding": "RNE"}

    def good(sb):
        found = [enumeration.kept(e, sb, **choice) for e in range(lowest, highest + 1)]
        return not any(one.r_overflows for one in found) and all(one.worst >= bits for one in found)

    assert list(underflow.scaling_interval(lowest, highest, bits=bits, **choice)) == list(filter(good, range(-14, 24)))


@pytest.mark.parametrize("narrow", ["fp16", "bf16", "tf32"])
def test_the_interval_of_two_words_to_nearest_is_that_of_the_docstring(narrow):
    fmt = Split.of("fp32", narrow).narrow
    for lowest in (fmt.emin, fmt.emin + 5, 0):
        for highest in (0, fmt.emax - 1, fmt.emax):
            for bits in (2 * fmt.precision, 2 * fmt.precision + 1):
                low, high = fmt.emin - fmt.precision + bits - lowest, fmt.emax + fmt.precision - highest
                found = underflow.scaling_interval(lowest, highest, bits=bits, narrow=narrow)
                printed = underflow.scaling_interval(lowest, highest, bits=bits, narrow=narrow, form="printed")
                assert found == range(low, high + 1)
                assert printed == range(low + 1, high + 2)


def test_rule_1_says_where_bits_are_lost():
    rule = underflow.rule_1()
    for exponent in range(-14, 15):
        _, kept = counted(exponent, 0, 14, "fp32", "fp16", "RNE", None)
        assert (kept.worst < 22) == (exponent < rule.scale_below)
        assert (kept.worst <= 11) == (exponent < rule.fails_below)
    printed = underflow.rule_1(form="printed")
    assert (printed.scale_below, printed.fails_below) == (-2, -12)
    assert underflow.rule_1(rounding="RNE", residual_rounding="RZ") == printed  # whole places: as the paper counts


def test_rule_2_is_broken_by_a_number_midway_between_two_halves():
    assert underflow.rule_2(form="printed") == 12
    x = underflow.overflow_example(15, 12)
    assert x == 2**15 + 16
    h, r = schemes.build("h2sgemm", {"sb": 12}).split(np.float64(x))
    assert np.isfinite(h)
    assert np.isinf(r)
    assert underflow.rule_2() == 11
    assert underflow.overflow_example(15, 11) is None


@pytest.mark.parametrize("seed", range(40))
def test_an_example_of_overflow_overflows_and_there_is_none_if_none_does(seed):
    rng = random.Random(2000 + seed)
    wide, narrow, high, low = random_split(rng)
    choice = {"wide": wide, "narrow": narrow, "rounding": high, "residual_rounding": low}
    exponent, sb = narrow.emax - rng.randint(0, 1), narrow.precision + rng.randint(-2, 2)
    kept = enumeration.kept(exponent, sb, **choice)
    x = underflow.overflow_example(exponent, sb, **choice)
    assert (x is None) == (kept.r_overflows == 0)
    if x is not None:
        assert 2.0**exponent <= x < 2.0 ** (exponent + 1)
        M = int((x / 2.0**exponent - 1) * 2**wide.fraction_bits)
        assert enumeration.kept(exponent, sb, mantissas=np.array([M]), **choice).r_overflows == 1


def test_what_cannot_be_is_refused_in_one_line():
    for problem, words in (
        (lambda: underflow.bits_kept(0, narrow="fp32"), "narrow format has 24 bits"),
        (lambda: underflow.bits_kept(200), "from -126 to 127"),
        (lambda: underflow.bits_kept(0, rounding="SR"), "rounding of a split"),
        (lambda: underflow.residual_probability(0, "t"), "did you mean 'T'"),
        (lambda: underflow.scaling_interval(3, 2), "above the highest"),
        (lambda: underflow.scaling_interval(2, 3, bits=11), "need no residual"),
        (lambda: enumeration.kept(0, mantissas=24), "at most 32"),
        (lambda: enumeration.kept(0, wide="fp64", narrow="fp32"), "one period is 30"),
        (lambda: enumeration.kept(0, narrow="bf16", rounding="bit-cut"), "RZ is the same"),
        (lambda: enumeration.kept(-40, rounding="RU"), "lifted by RU"),
        (lambda: enumeration.kept(0, mantissas=np.array([2**23])), "integers from 0 to 8388607"),
    ):
        with pytest.raises(InputError, match=words) as found:
            problem()
        assert "\n" not in str(found.value)


def test_bit_cut_is_rounding_toward_zero():
    cut, zero = (enumeration.kept(3, 12, mantissas=14, rounding=mode) for mode in ("bit-cut", "RZ"))
    assert cut.bits == zero.bits
    assert underflow.bits_kept(3, 12, rounding="bit-cut") == underflow.bits_kept(3, 12, rounding="RZ")
