"""Rounding: every mode against exact fractions, near every boundary; no value is rounded twice."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import gfloat
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fpemu
from fpemu import Rounding, bit_cut, formats, round_to, rounding
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from tests import oracle
from tests.core.test_formats import GFLOAT, GFLOAT_MODES, ML_DTYPES, as64, custom_targets, every_code, same_values
from tests.hostile import bits

MODES = ["RNE", "RNA", "RNZ", "RZ", "RU", "RD", "ODD"]
NAMES = list(oracle.TARGETS)
MAX64 = float(np.finfo(np.float64).max)


def neighbours(x):
    """Each number with the float64 just below and just above it."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore"):
        return np.concatenate([x, np.nextafter(x, -np.inf), np.nextafter(x, np.inf)])


def boundaries(name, count=400, seed=0):
    """Numbers on and next to values and midpoints of a format, its thresholds, and float64's own corners."""
    fmt = formats.get(name)
    t = oracle.TARGETS[name]
    if fmt.width <= 8:
        values = as64(fmt.decode(every_code(name)))
        values = np.unique(np.abs(values[np.isfinite(values)]))
    else:
        rng = np.random.default_rng(seed)
        field = rng.integers(0, t.emax - t.emin + 2, count)
        low = rng.choice(
            [0, 1, 2, (1 << fmt.fraction_bits) - 1, (1 << fmt.fraction_bits) - 2, 1 << (t.precision - 2)], count
        )
        fraction = np.where(rng.integers(0, 2, count) == 0, low, rng.integers(0, 1 << fmt.fraction_bits, count))
        codes = (field << fmt.fraction_bits) + fraction
        values = np.asarray(fmt.decode((codes << fmt.padding).astype(fmt.code_dtype)), np.float64)
        values = np.unique(values[np.isfinite(values)])
    top, tiny = float(t.max), fmt.min_subnormal
    ulp = math.ldexp(1.0, t.emax - t.precision + 1)
    quantum = np.array(
        [math.ldexp(1.0, max(math.frexp(v)[1] - 1, t.emin) - t.precision + 1) if v else tiny for v in values]
    )
    with np.errstate(over="ignore"):
        between = [values, values + quantum / 2, values + quantum / 4, values + quantum * 0.75]
        limits = [
            top,
            top + ulp / 4,
            top + ulp / 2,
            top + ulp * 0.75,
            top + ulp,
            2 * top,
            tiny / 2,
            tiny / 4,
            tiny * 1.5,
        ]
    limits += [fmt.min_normal, fmt.min_normal - tiny / 2, fmt.min_normal - tiny / 4, 1.0, 5e-324, 2.0**-1022, MAX64]
    x = neighbours(np.concatenate([*between, limits]))
    x = np.unique(x[np.isfinite(x)])
    return np.concatenate([x, -x, [np.inf, -np.inf, -0.0]])


def expected(x, target, mode, **options):
    """Rounded values by exact fractions, and which entries the format cannot show."""
    out, refused = np.zeros(len(x)), np.zeros(len(x), bool)
    for i, v in enumerate(x):
        try:
            out[i] = oracle.round_value(float(v), target, mode, **options)
        except oracle.NotRepresentable:
            refused[i] = True
    return out, refused


def check(x, fmt, target, mode, **options):
    want, refused = expected(x, target, mode, **options)
    if refused.any():
        with pytest.raises(InputError, match=f"{np.count_nonzero(refused)} of {len(x)} "):
            round_to(x, fmt, mode, **options)
    got = round_to(x[~refused], fmt, mode, **options)
    wrong = ~same_values(got, want[~refused])
    shown = [
        (float(a), float(b), float(c))
        for a, b, c in zip(x[~refused][wrong], got[wrong], want[~refused][wrong], strict=True)
    ]
    assert not wrong.any(), f"{np.count_nonzero(wrong)} of {len(x)}: (x, got, exact) {shown[:3]}"


# --- against exact fractions


@pytest.mark.parametrize(
    ("count", "options"), [(150, {}), (60, {"saturate": True}), (60, {"unbounded": True})], ids=str
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_next_to_every_boundary(name, mode, count, options):
    x = boundaries(name, count, seed=len(options))
    check(x, formats.get(name), oracle.TARGETS[name], mode, **options)
    assert "unbounded" not in options or round_to(x, name, mode, **options).dtype == np.float64


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", [*MODES, "SR"])
def test_values_of_the_format_stay(name, mode):
    codes = every_code(name) if formats.get(name).width <= 16 else None
    values = formats.get(name).decode(codes) if codes is not None else np.float64([0.0, -0.0, 1.0, -1.5, 2.0**-126])
    values = values[~np.isnan(values)]
    got = round_to(values, name, mode, random_bits=np.full(values.shape, 255, np.uint8) if mode == "SR" else None)
    assert np.array_equal(bits(got), bits(np.asarray(values, got.dtype)))


def test_every_half_and_every_midpoint_of_halves():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    upper = np.append(halves[1:], 65536.0)
    middle = (halves + upper) / 2
    even = np.arange(0x7C00) % 2 == 0
    with np.errstate(over="ignore"):
        low, high = halves.astype(np.float16), upper.astype(np.float16)
    for sign in (1.0, -1.0):
        assert np.array_equal(bits(round_to(sign * halves, "fp16")), bits(sign * low))
        assert np.array_equal(bits(round_to(sign * middle, "fp16")), bits(sign * np.where(even, low, high)))
        assert np.array_equal(bits(round_to(sign * middle, "fp16", "RNA")), bits(sign * high))
        assert np.array_equal(bits(round_to(sign * np.nextafter(middle, 0), "fp16")), bits(sign * low))
        assert np.array_equal(bits(round_to(sign * np.nextafter(middle, np.inf), "fp16")), bits(sign * high))
        for inside in (np.nextafter(halves, np.inf), middle, np.nextafter(upper, 0)):
            assert np.array_equal(bits(round_to(sign * inside, "fp16", "RZ")), bits(sign * low))
            up = np.where(high == np.inf, np.float16(65504), high) if sign < 0 else high
            down = np.where(high == np.inf, np.float16(65504), high) if sign > 0 else high
            assert np.array_equal(bits(round_to(sign * inside, "fp16", "RU")), bits(sign * (low if sign < 0 else up)))
            assert np.array_equal(bits(round_to(sign * inside, "fp16", "RD")), bits(sign * (low if sign > 0 else down)))
            odd = np.where(even & (high != np.inf), high, low)
            assert np.array_equal(bits(round_to(sign * inside, "fp16", "ODD")), bits(sign * odd))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_any_float64(name, data):
    x = np.array(data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)), np.uint64).view(np.float64)
    x = np.where(np.isnan(x), 1.0, x)
    check(
        x, formats.get(name), oracle.TARGETS[name], data.draw(st.sampled_from(MODES)), saturate=data.draw(st.booleans())
    )


@given(custom_targets(), st.sampled_from(MODES), st.booleans(), st.data())
def test_custom_formats(pair, mode, saturate, data):
    fmt, target = pair
    near = st.builds(
        lambda steps, quarter, nudge, negative: (
            (-1) ** negative
            * np.nextafter(
                float(abs(steps + quarter * Fraction(1, 4)) * Fraction(2) ** (target.emin - target.precision + 1)),
                nudge,
            )
        ),
        st.integers(0, 1 << (target.precision + 3)),
        st.integers(0, 3),
        st.sampled_from([0.0, np.inf]),
        st.booleans(),
    )
    top = float(target.max)
    around = st.builds(lambda f, s: s * top * f, st.floats(0.9, 1.2), st.sampled_from([1, -1]))
    tiny = st.sampled_from([5e-324, -5e-324, 2.0**-1022, 0.0, -0.0, np.inf, -np.inf])
    x = np.array(data.draw(st.lists(near | around | tiny, min_size=1, max_size=20)), np.float64)
    check(x, fmt, target, mode, saturate=saturate)


@pytest.mark.parametrize("mode", MODES)
def test_no_subnormals_leaves_zero_and_the_smallest_normal(mode):
    fmt = FloatFormat("ftz", 11, -14, 15, subnormals=False)
    target = oracle.Target(11, -14, 15, subnormals=False)
    x = np.array([5e-324, 2.0**-24, 2.0**-16, 2.0**-15, 1.5 * 2.0**-15, 2.0**-14, 2.0**-14 * (1 + 2.0**-11), 1.0])
    check(neighbours(np.concatenate([x, -x])), fmt, target, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_format_whose_smallest_number_is_large(mode):
    fmt = FloatFormat("big", 11, 5, 10, subnormals=False)
    check(
        np.array([5e-324, 1e-300, 1.0, 15.9, 16.0, 31.0, 32.0, -5e-324, -40.01]),
        fmt,
        oracle.Target(11, 5, 10, subnormals=False),
        mode,
    )


# --- traps: twice rounded is wrong


@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2", "e4m3", "tf32"])
def test_float64_just_beside_a_midpoint_is_not_rounded_by_way_of_fp32(name):
    fmt = formats.get(name)
    ulp = 2.0 ** -(fmt.precision - 1)
    x = np.array([1 + ulp / 2 + 2.0**-50, 1 + ulp * 1.5 - 2.0**-50, -(1 + ulp / 2 + 2.0**-50)])
    assert np.array_equal(np.asarray(round_to(x, fmt), np.float64), [1 + ulp, 1 + ulp, -(1 + ulp)])
    by_way_of_fp32 = np.asarray(round_to(x.astype(np.float32), fmt), np.float64)
    assert not np.array_equal(by_way_of_fp32, [1 + ulp, 1 + ulp, -(1 + ulp)])


def test_to_odd_then_nearest_is_one_rounding():
    rng = np.random.default_rng(3)
    x = rng.standard_normal(20_000) * 2.0 ** rng.integers(-26, 16, 20_000)
    x = np.concatenate([x, boundaries("fp16")])
    x = x[np.isfinite(x)]
    twice = round_to(np.asarray(round_to(x, "fp32", "ODD"), np.float64), "fp16")
    assert np.array_equal(bits(twice), bits(round_to(x, "fp16")))


# --- against other libraries, where those are right


def narrowed(x, dtype):
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def random_patterns(dtype, n, seed):
    raw = np.random.default_rng(seed).integers(
        0, 2 ** (8 * np.dtype(dtype).itemsize), n, dtype=f"u{np.dtype(dtype).itemsize}"
    )
    x = raw.view(dtype)
    return x[~np.isnan(x)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_casts_of_numpy(dtype):
    x = np.concatenate([random_patterns(dtype, 300_000, 4), narrowed(boundaries("fp16"), dtype)])
    x = np.concatenate([x, np.random.default_rng(5).standard_normal(100_000).astype(dtype) * dtype(1e-5)])
    with np.errstate(over="ignore"):
        assert np.array_equal(bits(round_to(x, "fp16")), bits(x.astype(np.float16)))
        assert np.array_equal(bits(round_to(x, "fp32")), bits(x.astype(np.float32)))


@pytest.mark.parametrize("name", list(ML_DTYPES))
def test_fp32_to_small_formats_by_ml_dtypes(name):
    x = np.concatenate([random_patterns(np.float32, 100_000, 6), narrowed(boundaries(name), np.float32)])
    x = np.concatenate([x, np.random.default_rng(7).standard_normal(50_000).astype(np.float32)])
    saturating = name in ("e3m2", "e2m3", "e2m1")
    if saturating:
        x = x[np.isfinite(x)]
    theirs = x.astype(ML_DTYPES[name]).astype(np.float64)
    assert same_values(round_to(x, name, saturate=saturating), theirs).all()


@pytest.mark.parametrize(("mode", "theirs"), GFLOAT_MODES)
@pytest.mark.parametrize("name", list(GFLOAT))
def test_gfloat(name, mode, theirs):
    info = GFLOAT[name]
    x = boundaries(name, count=60, seed=8)
    x = x[np.isfinite(x)]
    x = x[np.abs(x) < 1e300]
    saturate = name in ("e3m2", "e2m3", "e2m1")
    want = gfloat.round_ndarray(info, x, theirs, sat=saturate)
    assert same_values(round_to(x, name, mode, saturate=saturate), want).all()


# --- stochastic rounding with supplied bits


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3", "e2m1", "fp32"])
def test_all_8_bit_words_round_up_as_often_as_the_distance_says(name):
    fmt = formats.get(name)
    words = np.arange(256, dtype=np.uint8)
    ulp = Fraction(2) ** (1 - fmt.precision)
    for sixteenths in [*range(0, 17), Fraction(1, 16), Fraction(255, 16), Fraction(1, 17), Fraction(1, 2**20)]:
        for sign in (1, -1):
            x = sign * float(1 + ulp * Fraction(sixteenths) / 16)
            distance = (abs(Fraction(x)) - 1) / ulp
            got = np.asarray(round_to(np.full(256, x), fmt, "SR", random_bits=words), np.float64)
            ups = np.count_nonzero(got == sign * float(1 + ulp))
            assert ups + np.count_nonzero(got == sign) == 256
            assert ups == 256 * distance // 1
            # the higher words go up
            assert np.array_equal(got == sign * float(1 + ulp), words >= 256 - ups)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2", "fp32"])
def test_stochastic_by_exact_fractions(name, dtype):
    x = boundaries(name, count=120, seed=9)
    x = x[np.isfinite(x)]
    width = 8 * np.dtype(dtype).itemsize
    rng = np.random.default_rng(10)
    words = rng.integers(0, 2**width, len(x), dtype=dtype)
    words[::5] = 2**width - 1
    words[1::5] = 2 ** (width - 1)
    words[2::5] = 2 ** (width - 1) - 1
    words[3::25] = 0
    want = [
        oracle.round_value(float(v), oracle.TARGETS[name], "SR", word=int(w), width=width)
        for v, w in zip(x, words, strict=True)
    ]
    assert same_values(round_to(x, name, "SR", random_bits=words), want).all()


def test_stochastic_words_broadcast():
    x = np.full((3, 4), 1 + 2.0**-12)  # a quarter of an ulp
    got = round_to(x, "fp16", "stochastic", random_bits=np.array([0, 191, 192, 255], np.uint8))
    assert np.array_equal(got > 1, np.broadcast_to([False, False, True, True], (3, 4)))
    assert round_to(1 + 2.0**-12, "fp16", "SR", random_bits=np.uint8(192)) > 1


@pytest.mark.parametrize("width", [1, 3, 8, 13, 53, 64])
def test_stochastic_by_seed_and_any_number_of_bits(width):
    x = boundaries("bf16", count=60, seed=4)
    x = x[np.isfinite(x)][:200].reshape(2, 100)
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mixed(z):  # SplitMix64 in Python integers
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    for seed in (0, 1, 2**63 - 1):
        start = mixed(seed + golden & mask)
        words = [mixed((i + 1) * golden + start & mask) >> (64 - width) for i in range(x.size)]
        target = oracle.TARGETS["bf16"]
        want = [
            oracle.round_value(float(v), target, "SR", word=w, width=width) for v, w in zip(x.flat, words, strict=True)
        ]
        got = round_to(x, "bf16", "SR", bits=width, seed=seed)
        assert same_values(got, np.reshape(want, x.shape)).all()
        given = np.array(words, np.uint64).reshape(x.shape)
        assert same_values(round_to(x, "bf16", "SR", bits=width, random_bits=given), got).all()
        index = np.arange(x.size, dtype=np.uint32).reshape(x.shape)
        assert (rounding.stochastic_words(seed, index, width) == given).all()


def test_words_by_seed_have_the_probabilities_of_the_distance():
    for width, distance in ((4, 5 / 16), (32, 0.3), (2, 0.3)):
        ups = np.count_nonzero(round_to(np.full(400_000, 1 + distance / 2), "e2m1", "SR", bits=width, seed=width) > 1)
        expected = np.floor(distance * 2**width) / 2**width
        assert abs(ups / 400_000 - expected) < 5 * np.sqrt(expected * (1 - expected) / 400_000)


@pytest.mark.parametrize("fmt", ["fp16", "e5m2", "e4m3", "fp32", "e2m1"])
@pytest.mark.parametrize("mode", MODES)
def test_sat_propagate_keeps_infinities_alone(fmt, mode):
    fmt = formats.get(fmt)
    x = np.tile([fmt.max * 2, -fmt.max * 1.5, fmt.max, 1.0, -0.0], 20_000)
    clipped = round_to(x, fmt, mode, saturate=True)
    assert np.array_equal(bits(round_to(x, fmt, mode, saturate="propagate")), bits(clipped))
    assert same_values(round_to(x[:5], fmt, mode, saturate="propagate"), clipped[:5]).all()
    for infinite in (np.array([np.inf, -np.inf]), np.tile([np.inf, -np.inf], 50_000)):
        if fmt.has_nan:
            want = infinite if fmt.inf else np.copysign(np.nan, infinite)
            assert same_values(round_to(infinite, fmt, mode, saturate="propagate"), want).all()
        else:
            with pytest.raises(InputError, match="no Inf and no NaN"):
                round_to(infinite, fmt, mode, saturate="propagate")


# --- interface


def test_scalars_shapes_and_dtypes():
    assert isinstance(round_to(0.1, "fp16"), np.float16)
    assert isinstance(round_to(np.float32(0.1), fpemu.BF16), np.float32)
    assert round_to(3, "e4m3") == 3
    assert round_to([], "fp16").shape == (0,)
    assert round_to(np.zeros((2, 0, 3)), "fp16").shape == (2, 0, 3)
    x = np.random.default_rng(11).standard_normal((6, 8))
    x.flags.writeable = False
    for view in (x, x.T, x[::-1, ::3], np.asfortranarray(x), x[:, 2:3], x.astype(">f8")):
        assert np.array_equal(round_to(view, "fp16"), view.astype(np.float16))
        assert round_to(view, "fp16").shape == view.shape
    before = x.copy()
    round_to(x, "fp16", "RZ")
    assert np.array_equal(x, before)


@pytest.mark.parametrize("name", [n for n, t in oracle.TARGETS.items() if t.nan])
@pytest.mark.parametrize("mode", MODES)
def test_nan_stays_nan(name, mode):
    for saturate in (False, True):
        got = round_to(np.array([np.nan, -np.nan, 1.0]), name, mode, saturate=saturate)
        assert np.array_equal(np.isnan(got), [True, True, False])
        assert np.array_equal(np.signbit(got), [False, True, False])  # as NumPy's and ml_dtypes' conversions


def test_ml_dtypes_arrays_are_rounded():
    x = np.array([1.0, 1.0078125, -3.0], ml_dtypes.bfloat16)
    assert np.array_equal(round_to(x, "fp16"), np.float16([1.0, 1.0078125, -3.0]))


def test_names_of_modes():
    names = {"rne RNE nearest": "RNE", "rz toward-zero toward_zero": "RZ", "ru up RU": "RU", "down": "RD"}
    x = boundaries("fp16", count=40)
    for aliases, mode in (names | {"to-odd to_odd odd": "ODD", "ties-away": "RNA"}).items():
        expected = bits(round_to(x, "fp16", Rounding[mode]))
        assert all(np.array_equal(bits(round_to(x, "fp16", name)), expected) for name in aliases.split())


@pytest.mark.parametrize(
    ("mode", "near"), [("RNF", "RNE"), ("stochastik", "stochastic"), ("to-od", "to-odd"), ("tozero", "RZ")]
)
def test_unknown_mode_names_the_nearest(mode, near):
    with pytest.raises(InputError, match="unknown rounding mode") as e:
        round_to(1.0, "fp16", mode)
    assert near in str(e.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 0, "seed": 1}, "bits = 0"),
        ({"bits": 65, "seed": 1}, "bits = 65"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 1, "random_bits": np.ones(2, np.uint8)}, "either seed or random_bits"),
        ({"bits": 3, "random_bits": np.array([7, 8], np.uint8)}, r"more than bits = 3 bits: 1 of 2 entries"),
        ({"mode": "RNE", "seed": 1}, "seed goes with mode 'SR', not 'RNE': leave it out"),
        ({"mode": "RZ", "bits": 3}, "bits go with mode 'SR'"),
        ({"saturate": "propagated", "seed": 1}, "saturate = 'propagated'"),
    ],
)
def test_stochastic_options_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        round_to([1.0, 2.0], "fp16", **({"mode": "SR"} | options))


@pytest.mark.parametrize("words", [None, [1, 2], np.array([1, 2]), np.array([0.5, 0.5])])
def test_stochastic_rounding_needs_unsigned_words(words):
    with pytest.raises(InputError, match="random_bits"):
        round_to([1.0, 2.0], "fp16", "SR", random_bits=words)


def test_stochastic_words_must_fit_the_shape():
    with pytest.raises(InputError, match="broadcast"):
        round_to(np.zeros((2, 3)), "fp16", "SR", random_bits=np.zeros(2, np.uint8))


def test_overflow_in_a_format_without_inf_and_nan_says_how_many_and_where():
    x = np.array([[1.0, 6.0, 7.0], [-100.0, 0.5, 6.99]])
    with pytest.raises(InputError, match=re.escape("2 of 6 entries, first at [0, 2]: 7.0")) as e:
        round_to(x, "e2m1")
    assert "e2m1" in str(e.value)
    assert "saturate" in str(e.value)
    assert np.array_equal(round_to(x, "e2m1", saturate=True), np.float32([[1, 6, 6], [-6, 0.5, 6]]))
    assert np.array_equal(round_to(x, "e2m1", "RZ"), np.float32([[1, 6, 6], [-6, 0.5, 6]]))
    with pytest.raises(InputError, match="1 of 2 entries"):
        round_to([np.nan, 1.0], "e2m1", saturate=True)
    with pytest.raises(InputError, match="1 of 1 entry"):
        round_to(np.inf, "e2m3")


def test_overflow_in_e4m3_is_nan_and_saturates_to_448():
    assert np.isnan(round_to([465.0, -1e9, np.inf], "e4m3")).all()
    assert np.array_equal(
        round_to([464.0, 465.0, -1e9, np.inf], "e4m3", saturate=True), np.float32([448, 448, -448, 448])
    )
    assert round_to(464.0, "e4m3") == 448.0


# --- bit-cut


def test_bit_cut_of_every_exponent():
    rng = np.random.default_rng(12)
    field = np.repeat(np.arange(256), 64).astype(np.uint32)
    fraction = rng.integers(0, 1 << 23, field.size).astype(np.uint32)
    fraction[::8] = 0
    fraction[1::8] = 0x7FFFFF
    fraction[2::8] = 0x1FFF  # nothing of it survives
    for sign in (0, 1):
        x = (np.uint32(sign << 31) | field << np.uint32(23) | fraction).view(np.float32)
        got = bit_cut(x)
        assert got.dtype == np.float16
        for v, g in zip(x, bits(got), strict=True):
            if np.isnan(v):
                assert np.isnan(np.uint16(g).view(np.float16))
            elif abs(v) >= 2.0**16:
                assert g == sign << 15 | 0x7C00
            elif abs(v) >= 2.0**-14:  # the ten top fraction bits, copied
                word = int(np.float32(v).view(np.uint32))
                assert g == sign << 15 | ((word >> 23 & 0xFF) - 112) << 10 | (word >> 13 & 0x3FF)
            else:
                assert g == sign << 15 | int(abs(float(v)) * 2.0**24)


def test_bit_cut_scalar_and_shape():
    assert isinstance(bit_cut(np.float32(1.5)), np.float16)
    assert bit_cut(np.zeros((2, 0), np.float32)).shape == (2, 0)
    assert bit_cut(np.float32(65519.0)) == 65504


# --- subnormal results flushed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_below_the_normal_range_are_flushed(name, mode):
    fmt, x = formats.get(name), boundaries(name, count=30)
    x = x[np.abs(x) <= fmt.max]
    tiny = np.abs(x) < fmt.min_normal
    got = round_to(x, name, mode, subnormals="flush")
    assert same_values(got[~tiny], round_to(x[~tiny], name, mode)).all()
    assert same_values(got[tiny], np.copysign(0.0, x[tiny]) if fmt.negative_zero else np.zeros(tiny.sum())).all()


def test_flush_is_that_of_microxcaling():
    """Its rule for bf16 with allow_denorm=False: a number whose magnitude is below 2^-126 becomes 0, others round."""
    x = np.float32([2.0**-126, -(2.0**-126) * (1 - 2.0**-23), 2.0**-130, 1 + 2.0**-8, -0.0])
    assert round_to(x, "bf16", subnormals="flush").tolist() == [2.0**-126, -0.0, 0.0, 1.0, -0.0]
    with pytest.raises(InputError, match="leave out subnormals='flush'"):
        round_to(x, "bf16", unbounded=True, subnormals="flush")
    with pytest.raises(InputError, match="unknown subnormals 'zero'"):
        round_to(x, "bf16", subnormals="zero")
