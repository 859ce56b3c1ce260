"""Block formats: gfloat and exact fractions as oracles; layouts of scales by the formula of the index."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import gfloat
import gfloat.formats
import numpy as np
import pytest

from fpemu import InputError, formats, round_to
from fpemu.formats import block
from fpemu.formats.block import BlockFormat, dequantize, quantize, swizzle, unswizzle

GFLOAT = {
    "mxfp8_e4m3": gfloat.formats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": gfloat.formats.format_info_mxfp8_e5m2,
    "mxfp6_e3m2": gfloat.formats.format_info_mxfp6_e3m2,
    "mxfp6_e2m3": gfloat.formats.format_info_mxfp6_e2m3,
    "mxfp4": gfloat.formats.format_info_mxfp4_e2m1,
    "mxint8": gfloat.formats.format_info_mxint8,
}
MX = list(GFLOAT)
RULES = ["floor", "ceil", "even", "rceil"]


def hostile(fmt, seed=0, blocks=150):
    """fp32 numbers by blocks: of one size and of many, ties, largest magnitudes around each limit of the rules."""
    rng = np.random.default_rng(seed)
    n = fmt.block
    x = rng.standard_normal((blocks, n)) * np.exp2(rng.integers(-12, 12, (blocks, n)) * rng.integers(0, 2, (blocks, 1)))
    x *= np.exp2(rng.integers(-60, 60, (blocks, 1)))
    last = fmt.element.max / np.exp2(np.frexp(fmt.element.max)[1])
    half = 1 - 2.0 ** (-fmt.element.precision - 1)
    corners = [f * (1 + d * 2.0**-23) for f in (0.5, last, half, 1.0) for d in (-1, 0, 1)]
    x[: len(corners), 0] = np.abs(x[: len(corners)]).max(1) * 0 + np.exp2(np.frexp(np.abs(x[: len(corners)]).max(1))[1])
    x[: len(corners), 0] *= corners
    steps = np.arange(n) - n // 2 + rng.integers(0, 2, (20, n)) / 2
    x[20:40] = steps * fmt.element.min_subnormal  # ties
    x[40], x[41], x[42] = 0, np.where(np.arange(n) == 3, -(2.0**-149), 0), -0.0
    x[43:46] = np.exp2([[-126.0], [-140], [127]]) * rng.uniform(-1, 1, (3, n))
    return x.astype(np.float32).astype(np.float64)


def scale_by_fractions(largest, element, rule):
    """The exponent of a power of two, from the definition in exact fractions."""
    if largest == 0:
        return -127
    a, e = Fraction(largest), 0
    while a >= 2:
        a, e = a / 2, e + 1
    while a < 1:
        a, e = a * 2, e - 1
    top = int(np.floor(np.log2(element.max)))
    if rule == "rceil":
        limit = Fraction(element.max)
        return max(
            next(k for k in range(e - top - 2, e - top + 3) if Fraction(largest) <= limit * Fraction(2) ** k), -127
        )
    if rule == "even":  # the significand rounded to the element's precision, ties up
        a = Fraction(int(a * 2 ** (element.precision - 1) + Fraction(1, 2)), 2 ** (element.precision - 1))
    return max(e - top + {"floor": 0, "ceil": a > 1, "even": a >= 2, "rceil": 0}[rule], -127)


@pytest.mark.parametrize("name", MX)
def test_mx_is_quantised_as_by_gfloat(name):
    fmt, info = block.get(name), GFLOAT[name]
    x = hostile(fmt)
    values, scales, whole = quantize(x, name)
    assert (values.dtype, scales.dtype, scales.shape, whole) == (np.float32, np.float32, (len(x), 1), 1)
    ours = dequantize(values, scales)
    for row in range(len(x)):
        theirs = gfloat.quantize_block(info, x[row], gfloat.compute_scale_amax)
        assert np.array_equal(ours[row], theirs), row
    codes = fmt.element.encode(values).astype(int)
    for row in range(0, len(x), 10):
        theirs = gfloat.decode_block(info, [int(fmt.scale.encode(scales[row, 0])), *codes[row].tolist()])
        assert np.array_equal(ours[row], list(theirs)), row


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MX)
def test_scale_rules_by_exact_fractions(name, rule):
    fmt = block.get(name)
    x = hostile(fmt, 1)
    q = quantize(x, fmt, scale_rule=rule)
    want = [scale_by_fractions(float(a), fmt.element, rule) for a in np.abs(x).max(1)]
    assert np.array_equal(np.log2(q.scales[:, 0]), want)
    assert np.array_equal(q.values, round_to(x / np.exp2(np.array(want, float))[:, None], fmt.element, saturate=True))
    if rule == "rceil":
        assert (np.abs(x) / q.scales <= fmt.element.max).all()


@pytest.mark.parametrize("rule", [None, *RULES])
def test_nvfp4_by_exact_fractions(rule):
    x = hostile(block.NVFP4, 2)[:, :] / 2.0**64
    values, scales, whole = quantize(x, "nvfp4", scale_rule=rule)
    assert whole == np.float32(np.abs(x).max()) / np.float32(2688)
    mode = {"floor": "RZ", "ceil": "RU", "rceil": "RU"}.get(rule, "RNE")
    steps = sorted({float(v) for v in formats.UE4M3.decode(np.arange(127))})
    grid = sorted({float(v) for v in formats.E2M1.decode(np.arange(16))})
    for row in range(0, len(x), 3):
        exact = Fraction(float(np.abs(x[row]).max())) / 6 / Fraction(float(whole))
        below = max((s for s in steps if s <= exact), default=0.0)
        above = min((s for s in steps if s >= exact), default=448.0)
        nearest = min(steps, key=lambda s: (abs(Fraction(s) - exact), int(formats.UE4M3.encode(s)) % 2))
        scale = {"RZ": below, "RU": above, "RNE": nearest}[mode]
        assert scales[row, 0] == scale
        for v, got in zip(x[row], values[row], strict=True):
            quotient = Fraction(float(v)) / Fraction(scale) / Fraction(float(whole)) if scale else Fraction(0)
            assert got == min(grid, key=lambda g: (abs(Fraction(g) - quotient), int(formats.E2M1.encode(g)) % 2))
    given = quantize(x, "nvfp4", scale_rule=rule, tensor_scale=0.5)
    assert given.tensor_scale == 0.5
    assert quantize(np.zeros((3, 32)), "nvfp4").tensor_scale == 1
    assert not quantize(np.zeros((3, 32)), "nvfp4").values.any()


@pytest.mark.parametrize("name", block.names())
def test_axes_and_codes_and_a_second_quantisation(name):
    fmt = block.get(name)
    x = hostile(fmt, 3, 96).reshape(4, 24, -1)
    q = quantize(x, name)
    for axis in (0, 1, -2):
        moved = quantize(np.moveaxis(x, -1, axis), name, axis=axis)
        assert np.array_equal(np.moveaxis(moved.values, axis, -1), q.values)
        assert np.array_equal(np.moveaxis(moved.scales, axis, -1), q.scales)
        again = dequantize(moved.values, moved.scales, axis, moved.tensor_scale)
        assert np.array_equal(np.moveaxis(again, axis, -1), dequantize(q.values, q.scales, -1, q.tensor_scale))
    assert np.array_equal(fmt.element.decode(fmt.element.encode(q.values)), q.values)
    assert np.array_equal(fmt.scale.decode(fmt.scale.encode(q.scales)), q.scales)
    y = dequantize(q.values, q.scales, -1, q.tensor_scale)
    for rule in RULES[:3] if not fmt.tensor_scale else []:  # the numbers of a block format are its values
        z = quantize(y, name, scale_rule="floor")
        assert np.array_equal(dequantize(z.values, z.scales), y) or fmt.element.sign == "complement", rule


def test_exceptions_are_confined_to_their_block():
    x = np.ones((4, 64))
    x[0, 3], x[1, 40], x[2, 0], x[3, 5] = np.nan, np.inf, -np.inf, 2.0**135
    for name in ("mxfp8_e4m3", "mxfp4", "mxint8", "nvfp4"):
        fmt = block.get(name)
        q = quantize(x, name)
        bad = np.repeat(np.isnan(q.scales), fmt.block, -1)
        assert (q.values[bad] == 0).all()
        assert np.isfinite(dequantize(q.values, q.scales, -1, q.tensor_scale)[~bad]).all()
        wanted = {(0, 3), (1, 40), (2, 0)} | ({(3, 5)} if name in ("mxint8", "mxfp4") else set())
        assert {(r, c // fmt.block) for r, c in wanted} == {tuple(map(int, p)) for p in np.argwhere(np.isnan(q.scales))}


def test_directed_and_stochastic_roundings_of_the_elements():
    x = np.full((1, 32), 1.0) + np.arange(32) / 32
    x[0, 1] = 1e-320  # its quotient is below float64's numbers
    x[0, 0] = 3.9 * 2.0**20
    up = quantize(x, "mxfp4", rounding="RU")
    assert up.values[0, 1] == 0.5
    assert (up.values >= np.minimum(x / up.scales, 6)).all()
    x = np.linspace(-6, 6, 3200).reshape(-1, 32)
    first, second = (quantize(x, "mxfp4", -1, "floor", "SR", bits=8, seed=s) for s in (1, 2))
    assert not np.array_equal(first.values, second.values)
    assert np.array_equal(
        first.values, round_to(x / np.repeat(first.scales, 32, -1), "e2m1", "SR", bits=8, seed=1, saturate=True)
    )
    small = quantize(x, replace(block.MXFP4, block=8))
    assert small.scales.shape == (100, 4)


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 5), (256, 12), (3, 100, 7)])
def test_swizzled_scales_by_the_formula_of_the_index(shape):
    scales = np.arange(1, np.prod(shape) + 1, dtype=np.uint16).reshape(shape)
    *batch, rows, columns = shape
    across = -(-columns // 4)
    flat = swizzle(scales)
    want = np.zeros((*batch, 512 * -(-rows // 128) * across), scales.dtype)
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * across + c // 4
            want[..., 512 * tile + 16 * (r % 32) + 4 * (r % 128 // 32) + c % 4] = scales[..., r, c]
    assert np.array_equal(flat, want)
    assert np.array_equal(unswizzle(flat, rows, columns), scales)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize(np.ones(31), "mxfp4"), "axis -1 of x has 31 entries, no multiple of the block of 32"),
        (lambda: quantize(np.ones((2, 32)), "mxfp4", axis=2), r"x of shape \(2, 32\) has no axis 2"),
        (lambda: quantize(np.ones(32), "mxfp5"), "unknown block format 'mxfp5'"),
        (lambda: quantize(np.ones(32), "mxfp4", scale_rule="round"), "unknown scale_rule 'round'"),
        (lambda: quantize(np.ones(32), "mxfp4", tensor_scale=2.0), "mxfp4 has no tensor scale"),
        (lambda: quantize(np.ones(32), "nvfp4", tensor_scale=0.1), "tensor_scale = 0.1 is no fp32 number"),
        (lambda: quantize(np.ones(32), "nvfp4", tensor_scale=-1.0), "tensor_scale = -1.0 must be"),
        (lambda: dequantize(np.ones((2, 32)), np.ones((2, 3))), r"scales of shape \(2, 3\) for values of shape"),
        (lambda: dequantize(np.ones((2, 32)), np.ones((1, 1))), r"scales of shape \(1, 1\) for values of shape"),
        (lambda: swizzle(np.ones(4)), "need rows and columns"),
        (lambda: unswizzle(np.ones(4), 1, 1), "1 x 1 scales are 512 numbers"),
        (lambda: BlockFormat("own", formats.E2M1, formats.E4M3, 16), "e4m3 has negative numbers"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(InputError, match=message):
        call()
