"""H2SGEMM's formulas for any formats and roundings against counts of all mantissas, with == (all are dyadic)."""

import functools
import random

import pytest

from experiments.h2sgemm import _enumeration as enumeration
from experiments.h2sgemm import _underflow as underflow
from experiments.h2sgemm._residuals import Split
from fpemu.formats import FloatFormat

PAIRS = [("fp32", "fp16"), ("fp32", "bf16"), ("fp32", "tf32"), ("fp16", "e4m3"), ("fp16", "e5m2"), ("bf16", "e4m3")]
MODES = ("RNE", "RZ")
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
@pytest.mark.parametrize("modes", [("RNE", "RNE"), ("RZ", "RZ"), ("RZ", "RNE")])
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


def test_fp64_with_its_low_bits_zero_agrees_exactly():
    """A format of 36 bits stands between: its last place is 2^12 of fp32's, as few as can be counted."""
    wide = FloatFormat("half-way", 36, -1000, 1000)
    for mode in ("RNE", "RZ"):
        for exponent in (-126, -100, 126):
            for sb in (0, 24, 25):
                assert_formulas_are_the_counts(exponent, sb, 13, wide, "fp32", mode)


# --- Eq. 6
@pytest.mark.parametrize("narrow", ["fp16", "e4m3"])
def test_the_interval_of_scales_is_the_one_found_by_trying(narrow):
    wide = "fp32" if narrow == "fp16" else "fp16"
    fmt = Split.of(wide, narrow).narrow

    def good(sb, lowest, highest):
        periods = {e: Split.of(wide, narrow).period(e) for e in range(lowest, highest + 1)}
        kept = [enumeration.kept(e, sb, mantissas=bits, wide=wide, narrow=narrow) for e, bits in periods.items()]
        return not any(one.r_overflows for one in kept) and all(one.worst >= 2 * fmt.precision for one in kept)

    for lowest, highest in ((fmt.emin, fmt.emin), (0, 0), (fmt.emax - 1, fmt.emax - 1), (-1, 2)):
        found = underflow.scaling_interval(lowest, highest, wide=wide, narrow=narrow)
        near = range(found.start - 2, found.stop + 2)
        assert list(found) == [sb for sb in near if good(sb, lowest, highest)], (lowest, highest)
        printed = underflow.scaling_interval(lowest, highest, form="printed", narrow=narrow)
        assert printed == range(found.start + 1, found.stop + 1)
