"""Formats: every code of every small format, against a second decoder, NumPy, ml_dtypes and gfloat."""

from __future__ import annotations

import dataclasses
import itertools

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fpemu
from fpemu import formats
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from tests import oracle
from tests.hostile import bits

SMALL = [n for n, f in oracle.FORMATS.items() if f.width <= 16]
ALL = list(oracle.FORMATS)

ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
GFLOAT_MODES = [
    ("RNE", gfloat.RoundMode.TiesToEven),
    ("RNA", gfloat.RoundMode.TiesToAway),
    ("RZ", gfloat.RoundMode.TowardZero),
    ("RU", gfloat.RoundMode.TowardPositive),
    ("RD", gfloat.RoundMode.TowardNegative),
]
GFLOAT = {
    "fp16": gfloat.formats.format_info_binary16,
    "bf16": gfloat.formats.format_info_bfloat16,
    "e4m3": gfloat.formats.format_info_ocp_e4m3,
    "e5m2": gfloat.formats.format_info_ocp_e5m2,
    "e3m2": gfloat.formats.format_info_ocp_e3m2,
    "e2m3": gfloat.formats.format_info_ocp_e2m3,
    "e2m1": gfloat.formats.format_info_ocp_e2m1,
}


def every_code(name):
    fmt = formats.get(name)
    return np.arange(1 << fmt.width, dtype=np.uint32).astype(fmt.code_dtype)


def oracle_values(name, codes):
    """float64 values of codes by the oracle's decoder."""
    out = []
    for code in codes:
        n = oracle.decode(int(code), oracle.FORMATS[name])
        magnitude = float(abs(n.value)) if n.kind == "finite" else {"inf": np.inf, "nan": np.nan}[n.kind]
        out.append(np.copysign(magnitude, -1 if n.sign else 1))
    return np.array(out)


def as64(x):
    """As float64; a signalling NaN may raise a warning on the way, which is no matter here."""
    with np.errstate(invalid="ignore"):
        return np.asarray(x).astype(np.float64)


def same_values(x, y):
    """Equal, zeros with their signs, NaN as NaN."""
    x, y = as64(x), as64(y)
    return np.where(np.isnan(y), np.isnan(x), (x == y) & (np.signbit(x) == np.signbit(y)))


@pytest.mark.parametrize("name", SMALL)
def test_decode_of_every_code(name):
    codes = every_code(name)
    values = formats.get(name).decode(codes)
    assert values.dtype == formats.get(name).dtype
    assert same_values(values, oracle_values(name, codes)).all()


@pytest.mark.parametrize("name", SMALL)
def test_every_code_survives_decode_and_encode(name):
    codes = every_code(name)
    fmt = formats.get(name)
    back = fmt.encode(fmt.decode(codes))
    assert back.dtype == fmt.code_dtype
    assert np.count_nonzero(back != codes) == 0, [hex(c) for c in codes[back != codes][:10]]


def test_halves_are_numpy_s_halves_payloads_included():
    codes = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(bits(fpemu.FP16.decode(codes)), codes)
    assert np.array_equal(fpemu.FP16.encode(codes.view(np.float16)), codes)


def test_bf16_is_the_upper_half_of_fp32_payloads_included():
    codes = np.arange(1 << 16, dtype=np.uint16)
    assert np.array_equal(bits(fpemu.BF16.decode(codes)), codes.astype(np.uint32) << 16)


@pytest.mark.parametrize("name", ["fp32", "fp64"])
@given(data=st.data())
def test_wide_formats_keep_every_pattern(name, data):
    fmt = formats.get(name)
    codes = np.array(data.draw(st.lists(st.integers(0, 2**fmt.width - 1), min_size=1)), dtype=fmt.code_dtype)
    values = fmt.decode(codes)
    assert np.array_equal(bits(values), codes)
    assert np.array_equal(fmt.encode(values), codes)
    assert same_values(values, oracle_values(name, codes)).all()


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_wide_formats_at_their_corners(name):
    fmt = formats.get(name)
    f, top = fmt.fraction_bits, (1 << fmt.exponent_bits) - 1
    fields = [0, 1, 2, top // 2, top - 2, top - 1, top]
    fractions = [0, 1, 2, (1 << (f - 1)) - 1, 1 << (f - 1), (1 << (f - 1)) + 1, (1 << f) - 2, (1 << f) - 1]
    codes = [s << (fmt.width - 1) | e << f | m for s in (0, 1) for e in fields for m in fractions]
    codes = np.array(codes, dtype=fmt.code_dtype)
    assert np.array_equal(bits(fmt.decode(codes)), codes)
    assert np.array_equal(fmt.encode(fmt.decode(codes)), codes)


def test_tf32_lives_in_the_fp32_word():
    assert fpemu.TF32.width == 32
    assert fpemu.TF32.code_dtype == np.uint32
    codes = np.arange(1 << 19, dtype=np.uint32) << 13  # every tf32 code
    values = fpemu.TF32.decode(codes)
    assert values.dtype == np.float32
    assert np.array_equal(bits(values), codes)
    assert np.array_equal(fpemu.TF32.encode(values), codes)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_tf32_ignores_the_low_13_bits_of_its_word(words):
    words = np.array(words, dtype=np.uint32)
    assert np.array_equal(bits(fpemu.TF32.decode(words)), words & np.uint32(0xFFFFE000))


@pytest.mark.parametrize("name", list(ML_DTYPES))
def test_decode_agrees_with_ml_dtypes(name):
    codes = every_code(name)
    theirs = codes.astype(np.uint16 if name == "bf16" else np.uint8).view(ML_DTYPES[name])
    assert same_values(formats.get(name).decode(codes), theirs).all()


@pytest.mark.parametrize("name", ALL)
def test_derived_constants(name):
    fmt, spec = formats.get(name), oracle.FORMATS[name]
    assert fmt.name == name == str(fmt)
    assert (fmt.precision, fmt.emin, fmt.emax) == (spec.precision, spec.emin, spec.emax)
    assert (fmt.exponent_bits, fmt.fraction_bits, fmt.width) == (spec.exponent_bits, spec.fraction_bits, spec.width)
    assert fmt.max == float(oracle.TARGETS[name].max)
    assert fmt.min_normal == 2.0**spec.emin
    assert fmt.min_subnormal == np.ldexp(1.0, spec.emin - spec.fraction_bits)
    assert fmt.unit_roundoff == 2.0**-spec.precision
    if spec.width <= 16:
        values = as64(fmt.decode(every_code(name)))
        finite = values[np.isfinite(values)]
        assert fmt.max == finite.max()
        assert fmt.min_subnormal == finite[finite > 0].min()


def test_names_and_types():
    aliases = {"half h float16 FP16 Half": "fp16", "bfloat16": "bf16", "single s float32 fp-32": "fp32"}
    aliases |= {"double d float64": "fp64", "e4m3": "e4m3", "E5M2": "e5m2"}
    for names, name in aliases.items():
        assert all(formats.get(alias) is formats.get(name) for alias in names.split())
    carriers = {"fp16": (np.float16, np.uint16), "bf16": (np.float32, np.uint16), "tf32": (np.float32, np.uint32)}
    carriers |= {"fp32": (np.float32, np.uint32), "fp64": (np.float64, np.uint64), "e4m3": (np.float32, np.uint8)}
    carriers |= {"e5m2": (np.float32, np.uint8), "e2m1": (np.float32, np.uint8)}
    assert {name: (formats.get(name).dtype, formats.get(name).code_dtype) for name in carriers} == carriers


def test_public_constants_are_the_registered_formats():
    for name in ("FP16", "BF16", "TF32", "FP32", "FP64", "E4M3", "E5M2", "E3M2", "E2M3", "E2M1", "E8M0"):
        assert getattr(fpemu, name) is formats.get(name.lower())
        assert formats.get(getattr(fpemu, name)) is getattr(fpemu, name)
    assert {*ALL, "e8m0", "ue4m3", "int8", "int4", *OF_ML_DTYPES} == set(formats.names())


OF_ML_DTYPES = {
    "e8m0fnu": "float8_e8m0fnu",
    "e3m4": "float8_e3m4",
    "e4m3ieee": "float8_e4m3",
    "e4m3b11fnuz": "float8_e4m3b11fnuz",
}


@pytest.mark.parametrize("name", OF_ML_DTYPES)
def test_an_alias_of_ml_dtypes_is_its_format(name):
    fmt, dtype = formats.get(OF_ML_DTYPES[name]), getattr(ml_dtypes, OF_ML_DTYPES[name])
    assert fmt.name == name
    assert fmt is formats.get(np.dtype(dtype))
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float64)
    assert same_values(fmt.decode(codes), values).all()
    finite = np.unique(np.abs(values[np.isfinite(values)]))
    middle = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([finite, middle, middle * (1 + 2.0**-20), middle * (1 - 2.0**-20)])
    x = np.concatenate([x, 1.25 * finite[-1:], 1.5 * finite[-1:], 3 * finite[-1:]])
    x = x[x >= 2.0**-126] if name == "e8m0fnu" else np.concatenate([x, -x])  # a subnormal of float32 below
    with np.errstate(over="ignore"):
        assert same_values(fpemu.round_to(x, fmt), x.astype(dtype).astype(np.float64)).all()


def test_ties_of_e8m0_are_those_of_its_owner():
    x = np.float32([1.5 * 2.0**-125, 1.5 * 2.0**127, 3.0])
    theirs, p3109 = fpemu.round_to(x, "float8_e8m0fnu"), fpemu.round_to(x, "e8m0")
    assert same_values(theirs, [2.0**-124, np.nan, 4.0]).all()
    assert same_values(p3109, [2.0**-125, 2.0**127, 2.0]).all()
    exact = fpemu.reference.matmul(x[:, None].astype(float), [[1.0]], out="float8_e8m0fnu")
    assert same_values(exact[:, 0], theirs).all()


def test_e8m0_is_the_scale_format_of_gfloat_and_ml_dtypes():
    fmt, codes = fpemu.E8M0, np.arange(256, dtype=np.uint8)
    values = fmt.decode(codes)
    theirs = [gfloat.decode_float(gfloat.formats.format_info_ocp_e8m0, int(code)).fval for code in codes]
    assert same_values(values, theirs).all()
    assert (fmt.encode(values) == codes).all()
    assert (fmt.encode(-values[-1:]) == 0xFF).all()  # a NaN of either sign
    assert (fmt.width, fmt.bias, fmt.max, fmt.min_normal) == (8, 127, 2.0**127, 2.0**-127)
    x = np.concatenate([np.ldexp([1, 1.25, 1.5, 1.75], e) for e in range(-149, 128)]).astype(np.float32)
    x = np.concatenate([x, -x, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    rounded = fpemu.round_to(x, fmt, "RNA")
    normal = ~((x > 2.0**-127) & (x < 2.0**-126))  # ml_dtypes rounds the subnormal 1.25 · 2^-127 to 2^-126
    assert same_values(rounded, x.astype(ml_dtypes.float8_e8m0fnu))[normal].all()
    assert fmt.contains(rounded).all()
    assert fmt.contains(x).tolist() == [*(rounded == x).tolist()[:-1], True]
    inside = x[(x >= fmt.min_normal) & (x <= fmt.max)]
    theirs = [gfloat.round_float(gfloat.formats.format_info_ocp_e8m0, float(v)) for v in inside]
    assert same_values(fpemu.round_to(inside, fmt), theirs).all()
    assert fpemu.round_to(np.inf, fmt, saturate=True) == fmt.max
    for mode in ("RZ", "RU", "RD", "RNE", "ODD"):  # no zero below the smallest number
        assert fpemu.round_to(1e-300, fmt, mode) == fmt.min_normal
        exact = fpemu.reference.matmul([[1e-300]], [[1.0]], out="exact")
        assert exact.round_to(fmt, mode) == fmt.min_normal
    for wrong in ({"precision": 2}, {"negative_zero": True}, {"inf": True, "nan": "ieee"}, {"inf": True}):
        with pytest.raises(InputError, match="positive=True requires precision = 1"):
            dataclasses.replace(fmt, **wrong)
    with pytest.raises(InputError, match="positive numbers only"):
        fpemu.round_to([1.0, 0.0], dataclasses.replace(fmt, nan="none"))
    assert set(fmt.encode(fpemu.inputs.make("all_bits", 4000, 1, fmt, specials=True)).tolist()) == set(range(256))
    with pytest.raises(InputError, match="has no zero"):
        fpemu.mma.spec("H100").replace(a_format="e8m0")


def test_formats_are_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        fpemu.FP16.precision = 12
    assert len({fpemu.FP16, fpemu.FP16, FloatFormat("fp16", 11, -14, 15)}) == 1
    assert fpemu.FP16 != fpemu.BF16


@pytest.mark.parametrize(
    ("name", "near"), [("fp61", "fp16"), ("bfloat", "bf"), ("e4m4", "e4m3"), ("doubel", "'fp64'"), ("", "known")]
)
def test_unknown_format_names_the_nearest_or_the_known(name, near):
    with pytest.raises(InputError, match="unknown format") as e:
        formats.get(name)
    assert near in str(e.value) or "known: " in str(e.value)
    assert "fp16" in str(e.value)
    assert "\n" not in str(e.value)


# --- encode, decode, contains: what they refuse


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp16", 65536.0),
        ("fp16", 2.0**-25),
        ("fp16", 1 + 2.0**-11),
        ("fp16", 2.0**-14 + 2.0**-25),
        ("bf16", 1 + 2.0**-8),
        ("bf16", 2.0**-134),
        ("bf16", float(np.finfo(np.float32).max)),
        ("e4m3", 480.0),
        ("e4m3", np.inf),
        ("e4m3", 464.0),
        ("e5m2", 61440.0),
        ("e2m1", 5.0),
        ("e2m1", np.nan),
        ("e2m1", -np.inf),
        ("fp32", 1 + 2.0**-24),
        ("tf32", 1 + 2.0**-11),
    ],
)
def test_contains_and_encode_agree_on_what_is_outside(name, value):
    fmt = formats.get(name)
    assert not fmt.contains(value)
    with pytest.raises(InputError, match=f"{name}.encode"):
        fmt.encode(value)


@pytest.mark.parametrize("name", SMALL)
def test_contains_every_value_of_the_format_and_nothing_between(name):
    fmt = formats.get(name)
    values = as64(fmt.decode(every_code(name)))
    assert fmt.contains(values).all()
    finite = np.unique(values[np.isfinite(values)])
    for between in (finite[:-1] / 2 + finite[1:] / 2, np.nextafter(finite, np.inf), np.nextafter(finite, -np.inf)):
        assert not fmt.contains(between).any()


def test_integers_that_float64_holds_are_taken():
    exact = np.array([2**53, -(2**53), 2**62, -(2**63)], np.int64)
    assert np.array_equal(fpemu.FP64.encode(exact), fpemu.FP64.encode(exact.astype(np.float64)))


def test_shapes_scalars_and_strides():
    assert np.ndim(fpemu.FP16.decode(0x3C00)) == 0
    assert fpemu.FP16.decode(0x3C00) == 1.0
    assert np.ndim(fpemu.FP16.encode(1.0)) == 0
    assert fpemu.FP16.encode(np.zeros((0, 3))).shape == (0, 3)
    assert fpemu.FP16.decode(np.zeros((2, 0), np.uint16)).shape == (2, 0)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    x.flags.writeable = False
    for view in (x.T, x[::-1, ::2], np.asfortranarray(x), x[1:2, :0], x.astype(">f4"), np.broadcast_to(x[0], (3, 6))):
        assert np.array_equal(fpemu.FP16.encode(view), bits(view.astype(np.float16)))


@pytest.mark.parametrize("name", list(ML_DTYPES))
def test_ml_dtypes_arrays_are_taken(name):
    codes = every_code(name)
    array = codes.astype(np.uint16 if name == "bf16" else np.uint8).view(ML_DTYPES[name])
    fmt = formats.get(name)
    finite = np.isfinite(as64(array))
    assert np.array_equal(fmt.encode(array[finite]), codes[finite])


# --- what is refused


def mine(**fields):
    return lambda: FloatFormat(**({"name": "mine", "precision": 11, "emin": -14, "emax": 15} | fields))


def of_codes(fmt, codes):
    return lambda: formats.get(fmt).decode(codes)


def of_values(fmt, values):
    return lambda: formats.get(fmt).encode(values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: formats.get("FP8"), "format 'FP8' is ambiguous: give e4m3, e5m2, e4m3fnuz or e5m2fnuz"),
        (mine(precision=0), "mine"),
        (mine(precision=54), "mine"),
        (mine(precision=4.5), "precision = 4.5 must be an integer"),
        (mine(emin=16), "mine"),
        (mine(emin=-1074), "mine"),
        (mine(emax=1024), "mine"),
        (mine(inf=True, nan="none"), "a format with Inf has a NaN, not 'none'"),
        (mine(sign="complement", inf=False, nan="none"), "requires negative_zero=False"),
        (mine(sign="complement", inf=False, nan="none", negative_zero=False), "requires emin = emax"),
        (mine(sign="none", inf=False, nan="negative-zero", negative_zero=False), "NaN 'top' or 'none'"),
        (mine(sign="left"), "unknown FloatFormat: sign 'left'"),
        (lambda: formats.p3109(8, 8), "precision = 8 must be an integer from 1 to 7"),
        (lambda: formats.p3109(2, 1), "bits = 2 must be an integer from 3 to 64"),
        (lambda: formats.p3109(16, 3), "leave what float64 can carry"),
        (mine(nan="foo"), "unknown FloatFormat: nan 'foo'"),
        (mine(inf=False, nan="negative-zero"), "mine"),
        (mine(max_significand=2048), "max_significand 2048"),
        (mine(max_significand=1023), "max_significand 1023 is not between 1024 and 2047"),
        (mine(padding=80), "a word of"),
        (mine(precision=1, emin=0, emax=0, inf=False, nan="top"), "all ones, is NaN"),
        (mine(precision=4, emin=-6, emax=8, inf=False, nan="top", max_significand=15), "all ones, is NaN"),
        *((of_codes("fp16", x), r"fp16\.decode") for x in (0.0, np.float32(1), [1.5], "1", None, True, 1j)),
        *(
            (of_codes(name, np.array([0, code, 1])), "1 of 3 entries, first at")
            for name, code in (("fp16", 65536), ("e4m3", 256), ("e3m2", 64), ("e2m1", 16), ("fp16", -1))
        ),
        (of_codes(FloatFormat("gap", 4, 0, 4), np.array([0, 48])), "mean nothing"),
        (of_codes(FloatFormat("wide", 7, 0, 126), np.array([0, 8256])), "mean nothing"),
        (of_values("fp16", [[1.0, 2.0, 0.1], [0.5, 65520.0, 0.0]]), r"2 of 6 entries, first at \[0, 2\]: 0\.1"),
        (of_values("fp64", np.array([0, 2**53 + 1])), "1 of 2 entries"),
        (of_values("fp64", np.array([2**64 - 1], np.uint64)), "1 of 1 entry"),
        *(
            (call, ".")
            for x in (1j, True, "x", None, object(), np.longdouble(1), 2**70, b"1")
            for call in (of_values("fp16", x), lambda x=x: fpemu.round_to(x, "fp16"))
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()


# --- formats of one's own


def custom_targets():
    """(FloatFormat, Target) with random precision and range, with and without Inf, NaN, subnormals, -0."""

    def build(precision, emin, span, kind, subnormals, negative_zero):
        inf, nan = {"ieee": (True, "ieee"), "nan only": (False, "ieee"), "finite": (False, "none")}[kind]
        emin = min(emin, precision - 1)
        fmt = FloatFormat("mine", precision, emin, emin + span, inf, nan, subnormals, negative_zero)
        return fmt, oracle.Target(precision, emin, emin + span, inf, nan != "none", subnormals, negative_zero)

    return st.builds(
        build,
        st.integers(1, 26),
        st.integers(-140, 25),
        st.integers(0, 140),
        st.sampled_from(["ieee", "nan only", "finite"]),
        st.booleans(),
        st.booleans(),
    )


def test_the_carrier_holds_every_value_of_a_custom_format():
    # 1.0000000001 in binary times 2^-140: no subnormals, yet float32 cannot hold its last bit
    fmt = FloatFormat("mine", 11, -140, 15, subnormals=False)
    value = 2.0**-140 * (1 + 2.0**-10)
    assert float(fmt.decode(np.uint16(1025))) == value
    assert float(fpemu.round_to(value, fmt)) == value


@pytest.mark.parametrize("precision", [1, 2, 3])
@pytest.mark.parametrize("nan", ["ieee", "top", "negative-zero", "none"])
def test_every_value_of_small_formats_has_one_code(precision, nan):
    tested = 0
    for emin, span, inf, sub, zero in itertools.product((-4, 0), (0, 1, 2, 6), *[(False, True)] * 3):
        for largest in (None, 1 << (precision - 1)):
            try:
                fmt = FloatFormat("mine", precision, emin, emin + span, inf, nan, sub, zero, max_significand=largest)
            except InputError:
                continue
            first = 0 if sub else 1 << (precision - 1)
            integers = [(m, emin) for m in range(max(first, 1), 1 << precision)]
            integers += [(m, emin + e) for e in range(1, span + 1) for m in range(1 << (precision - 1), 1 << precision)]
            positive = [m * 2.0 ** (e - precision + 1) for m, e in integers]
            specials = 0 if nan == "ieee" else (nan == "top") + inf  # the highest codes of a sign
            dense = len(integers) + (max(first, 1) - 1)  # the code of the last number, subnormals before it
            removed = max(0, dense - ((1 << (fmt.exponent_bits + precision - 1)) - 1 - specials))
            last = positive[-1 - removed if largest is None else -1]
            last = last if largest is None else largest * 2.0 ** (emin + span - precision + 1)
            positive = [x for x in positive if x <= last]
            assert (fmt.max, fmt.min_subnormal) == (positive[-1], positive[0])
            values = np.array(
                [0.0, *positive, *(-x for x in positive)] + [np.inf, -np.inf] * inf + [np.nan] * fmt.has_nan
            )
            assert fmt.contains(values).all()
            between = [(x + y) / 2 for x, y in itertools.pairwise(positive)]
            assert not fmt.contains([positive[0] / 2, *between, 2 * positive[-1]]).any()
            codes = fmt.encode(values)
            assert len(set(codes.tolist())) == len(codes)
            assert np.array_equal(fmt.decode(codes), values, equal_nan=True)
            low_payload = np.array([0x7FF0000000000001], np.uint64).view(np.float64)
            if fmt.has_nan:
                assert fmt.encode(low_payload) < 1 << fmt.width
                assert np.isnan(fmt.decode(fmt.encode(low_payload))).all()
            if fmt.nan == "ieee" and fmt.has_nan and fmt.precision < 53:  # no payload left: the quiet bit alone
                assert fmt.encode(low_payload)[0] & ((1 << fmt.fraction_bits) - 1) == 1 << (fmt.fraction_bits - 1)
            tested += 1
    assert tested >= 16


@given(custom_targets(), st.data())
def test_codes_of_custom_formats_round_trip(pair, data):
    fmt, target = pair
    assert fmt.max == float(target.max)
    top = (1 << fmt.exponent_bits) - 1
    fields = st.integers(0, fmt.emax - fmt.emin + 1) | (st.just(top) if fmt.nan == "ieee" else st.nothing())
    code = st.builds(
        lambda sign, field, fraction: (sign << fmt.exponent_bits | field) << fmt.fraction_bits | fraction,
        st.integers(0, 1),
        fields,
        st.integers(0, (1 << fmt.fraction_bits) - 1),
    )
    if not fmt.inf:  # where Inf would be there is nothing
        code = code.filter(lambda c: (c >> fmt.fraction_bits) & top != top or c & ((1 << fmt.fraction_bits) - 1))
    codes = np.array(data.draw(st.lists(code, min_size=1, max_size=20)), fmt.code_dtype)
    values = as64(fmt.decode(codes))
    usable = np.asarray(fmt.contains(values))
    back = np.asarray(fmt.encode(values[usable]))
    again = as64(fmt.decode(back))
    same = np.isnan(values[usable]) & np.isnan(again) | (values[usable] == again)
    assert same.all()
    with_sign = (values[usable] != 0) & ~np.isnan(values[usable])
    # a code of a usable value is its only code, except zeros without a sign or without subnormals
    assert np.array_equal(back[with_sign], codes[usable][with_sign])


# --- one bit of precision: powers of two, as gfloat has them

ONE_BIT = {
    "inf": (FloatFormat("inf", 1, -3, 2), (gfloat.Domain.Extended, True, 0)),
    "nan": (FloatFormat("nan", 1, -3, 3, inf=False, nan="top"), (gfloat.Domain.Finite, True, 1)),
    "fnuz": (
        FloatFormat("fnuz", 1, -3, 3, inf=False, nan="negative-zero", negative_zero=False),
        (gfloat.Domain.Finite, False, 0),
    ),
    "neither": (FloatFormat("neither", 1, -3, 3, inf=False, nan="none"), (gfloat.Domain.Finite, True, 0)),
}


def gfloat_of(fmt, domain, has_nz, high_nans):
    return gfloat.FormatInfo(
        fmt.name,
        fmt.width,
        1,
        bias=fmt.bias,
        is_signed=True,
        domain=domain,
        has_nz=has_nz,
        num_high_nans=high_nans,
        has_subnormals=True,
        is_twos_complement=False,
    )


@pytest.mark.parametrize("name", ONE_BIT)
def test_one_bit_of_precision_has_the_codes_of_gfloat(name):
    fmt, rest = ONE_BIT[name]
    info = gfloat_of(fmt, *rest)
    assert fmt.max == info.max
    assert fmt.unit_roundoff == 0.5
    assert fmt.has_nan == (info.num_nans > 0)
    for code in range(1 << fmt.width):
        theirs = gfloat.decode_float(info, code).fval
        ours = float(fmt.decode(code))
        assert np.array_equal(ours, theirs, equal_nan=True), code
        assert np.isnan(ours) or np.signbit(ours) == np.signbit(theirs)
        assert np.isnan(ours) or int(fmt.encode(ours)) == code


@pytest.mark.parametrize("name", ONE_BIT)
@pytest.mark.parametrize(("mode", "theirs"), GFLOAT_MODES)
def test_one_bit_of_precision_rounds_as_gfloat(name, mode, theirs):
    fmt, rest = ONE_BIT[name]
    info = gfloat_of(fmt, *rest)
    x = np.ldexp(np.arange(64, 129) / 64, np.arange(-6, 6)[:, None]).ravel()
    x = np.concatenate([x, -x, [0.0, -0.0]])
    for saturate in (True, False):
        some = x if saturate or info.num_nans or info.num_infs else x[np.abs(x) < 1.5 * fmt.max]
        if mode in ("RU", "RD") and not (saturate or info.num_nans or info.num_infs):
            some = some[np.abs(some) <= fmt.max]
        want = gfloat.round_ndarray(info, some, theirs, sat=saturate)
        got = np.asarray(fpemu.round_to(some, fmt, mode, saturate=saturate), np.float64)
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any() or not fmt.negative_zero


def test_ties_of_one_bit_go_to_the_even_exponent_field_also_from_exact_products():
    fmt = ONE_BIT["neither"][0]
    x = np.array([[0.1875, 0.375, 0.75, 1.5, 3.0, 6.0]])
    expected = [[0.25, 0.25, 1.0, 1.0, 4.0, 4.0]]
    assert fpemu.round_to(x, fmt).tolist() == expected
    assert [int(code) % 2 for code in np.ravel(fmt.encode(expected))] == [0] * 6
    assert fpemu.reference.matmul([[1.0]], x, out=fmt).tolist() == expected
    assert fpemu.reference.matmul([[1.0]], x, out="exact").round_to(fmt).tolist() == expected
    odd = [[0.125, 0.5, 0.5, 2.0, 2.0, 8.0]]
    assert fpemu.round_to(x, fmt, "ODD").tolist() == odd
    assert fpemu.reference.matmul([[1.0]], x, out="exact").round_to(fmt, "ODD").tolist() == odd
    assert fpemu.round_to([[1.5 * 2.0**100, 1.5 * 2.0**101]], fmt, unbounded=True).tolist() == [[2.0**100, 2.0**102]]


def test_nan_of_one_bit_beside_inf_has_no_code():
    fmt = ONE_BIT["inf"][0]
    assert not fmt.contains(np.nan)
    with pytest.raises(InputError, match="it has no NaN"):
        fpemu.round_to(np.nan, fmt)
    assert fpemu.round_to(100.0, fmt) == np.inf


# --- unsigned formats, integers, IEEE P3109

P3109 = [
    (bits, precision, signed, extended)
    for bits in range(3, 10)
    for signed in (True, False)
    for precision in range(1, bits + (not signed))
    for extended in (True, False)
]


def info_of(bits, precision, signed, extended):
    signedness = gfloat.Signedness.Signed if signed else gfloat.Signedness.Unsigned
    domain = gfloat.Domain.Extended if extended else gfloat.Domain.Finite
    return gfloat.formats.format_info_p3109(bits, precision, signedness, domain)


def gfloat_values(info, width=None):
    return np.array([gfloat.decode_float(info, code).fval for code in range(1 << (width or info.k))])


@pytest.mark.parametrize("parameters", P3109, ids=lambda p: info_of(*p).name)
def test_p3109_has_the_codes_and_roundings_of_gfloat(parameters):
    fmt, info = formats.p3109(*parameters), info_of(*parameters)
    assert (fmt.name, fmt.width) == (info.name, info.k)
    codes, values = np.arange(1 << fmt.width), gfloat_values(info)
    assert same_values(fmt.decode(codes), values).all()
    assert (fmt.encode(values) == codes).all()
    finite = values[np.isfinite(values)]
    assert (fmt.min, fmt.max) == (finite.min(), finite.max())
    assert fmt.contains(values).all()
    assert not fmt.contains(3 * fmt.max if parameters[2] else -np.inf)
    positive = np.unique(finite[finite >= 0])
    middle = (positive[1:] + positive[:-1]) / 2
    x = np.concatenate([positive, middle, middle * (1 + 2.0**-30), middle * (1 - 2.0**-30), [1.5 * fmt.max, np.inf]])
    last = positive[-1] * 2 - positive[-2]  # where an exponent without limit would continue
    x = np.concatenate([x, [(positive[-1] + last) / 2, last]])
    x = np.concatenate([x, -x]) if parameters[2] else x
    for mode, theirs in GFLOAT_MODES:
        for saturate in (True, False):
            want = gfloat.round_ndarray(info, x, theirs, sat=saturate)
            got = fpemu.round_to(x, fmt, mode, saturate=saturate)
            assert np.array_equal(got, want, equal_nan=True), (mode, saturate)
            assert np.array_equal(
                fpemu.round_to(np.resize(x, 70_000), fmt, mode, saturate=saturate)[: len(x)], got, equal_nan=True
            )


@pytest.mark.parametrize(("name", "scale"), [("int8", 64.0), ("int4", 4.0)])
def test_integers_are_two_s_complement_numbers_of_numpy_and_gfloat(name, scale):
    fmt = formats.get(name)
    codes = np.arange(1 << fmt.width, dtype=np.uint8)
    integers = codes.view(np.int8).astype(int) if name == "int8" else (codes.astype(int) ^ 8) - 8
    assert np.array_equal(fmt.decode(codes), integers)
    assert (fmt.encode(integers) == codes).all()
    assert not fmt.contains([fmt.max + 1, fmt.min - 1, 0.5, np.nan, np.inf]).any()
    info = gfloat.FormatInfo(
        name,
        fmt.width,
        fmt.width,
        bias=0,
        is_signed=True,
        domain=gfloat.Domain.Finite,
        has_nz=False,
        num_high_nans=0,
        has_subnormals=True,
        is_twos_complement=True,
    )
    assert np.array_equal(gfloat_values(info) * scale, integers)
    x = np.arange(4 * int(fmt.min) - 8, 4 * int(fmt.max) + 8) / 4 + 2.0**-20 * np.arange(3)[:, None] - 2.0**-20
    for mode, theirs in GFLOAT_MODES:
        want = gfloat.round_ndarray(info, x / scale, theirs, sat=True) * scale
        assert np.array_equal(fpemu.round_to(x, fmt, mode, saturate=True), want), mode
        floor = {"RNE": np.rint, "RNA": None, "RZ": np.trunc, "RU": np.ceil, "RD": np.floor}[mode]
        if floor:
            inside = x[(floor(x) >= fmt.min) & (floor(x) <= fmt.max)]
            assert np.array_equal(fpemu.round_to(inside, fmt, mode), floor(inside))
            exact = fpemu.reference.matmul(inside[:, None], [[1.0]], out="exact")
            assert np.array_equal(exact.round_to(fmt, mode)[:, 0], floor(inside))
    for overflow in (fmt.max + 0.5, fmt.min - 0.75, -1e300, np.inf, np.nan):
        with pytest.raises(InputError, match="no Inf and no NaN"):
            fpemu.round_to(overflow, fmt)


def test_ue4m3_is_e4m3_without_its_sign():
    fmt, codes = formats.UE4M3, np.arange(256, dtype=np.uint8)
    e4m3 = formats.E4M3.decode(codes & 0x7F)
    assert same_values(fmt.decode(codes), e4m3).all()
    assert (fmt.encode(e4m3) == codes & 0x7F).all()
    assert not fmt.contains([-1.0, -(2.0**-9), np.inf, 480.0]).any()
    x = np.concatenate([np.linspace(0, 500, 4001), [np.inf, 1e9]])
    for mode in ("RNE", "RZ", "RU", "RNA"):
        for saturate in (False, True, "propagate"):
            assert same_values(
                fpemu.round_to(x, fmt, mode, saturate=saturate), fpemu.round_to(x, "e4m3", mode, saturate=saturate)
            ).all()
    below = [-1.0, -1e9, -np.inf, -(2.0**-11), -0.0]
    assert same_values(fpemu.round_to(below, fmt), [np.nan, np.nan, np.nan, 0.0, 0.0]).all()
    assert same_values(fpemu.round_to(below, fmt, "RZ"), [np.nan, np.nan, np.nan, 0.0, 0.0]).all()
    assert same_values(fpemu.round_to(below, fmt, saturate=True), [0.0] * 5).all()
    assert same_values(fpemu.round_to(below, fmt, saturate="propagate"), [0.0, 0.0, np.nan, 0.0, 0.0]).all()
    exact = fpemu.reference.matmul(x[:4001, None], [[1.0]], out="ue4m3")
    assert same_values(exact[:, 0], fpemu.round_to(x[:4001], fmt)).all()
    with pytest.raises(InputError, match="none of matrix instructions"):
        fpemu.mma.spec("H100", "e4m3").replace(a_format="ue4m3")
