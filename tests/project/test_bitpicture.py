"""Pictures of bits: what they show adds up to what the instruction returns, bit for bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpemu
from fpemu import mma, plotting
from fpemu.errors import InputError
from fpemu.plotting import bits
from tests.hostile import examples

HALVES = [mma.spec(gpu, "fp16", d) for gpu in ("V100", "A100", "H200") for d in ("fp32", "fp16")]
HALVES += [mma.spec("MI100"), mma.spec("ascend910a")]
SPECS = [
    *HALVES,
    mma.spec("H200", "bf16"),
    mma.spec("A100", "tf32"),
    mma.spec("H200", "e4m3"),
    mma.spec("B200", "e5m2"),
]
KNOWN = ([-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23)


def _values(fmt, count, rng):
    """Finite values of a format over all of its range, subnormals and zeros included."""
    codes = rng.integers(0, 1 << (fmt.width - fmt.padding), 4 * count + 64) << fmt.padding
    found = fmt.decode(codes)
    return np.append(found[np.isfinite(found)][: count - 1].astype(np.float64), 0.0)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@settings(max_examples=examples(20))
@given(seed=st.integers(0, 2**32 - 1))
def test_the_last_result_is_that_of_the_chain(spec, seed):
    rng = np.random.default_rng(seed)
    fa, fb, fc, fd = spec.operand_formats
    K = int(rng.integers(1, 2 * spec.k + 1))
    a, b = _values(fa, K, rng), _values(fb, K, rng)
    c = float(fpemu.round_to(np.clip(a @ b / 64, -fc.max, fc.max), fc))  # near the products more often than not
    one = spec.replace(k=spec.block)
    D = mma.gemm(a[None].astype(fa.dtype), b[:, None].astype(fb.dtype), np.full((1, 1), c, fc.dtype), one)
    if not np.isfinite(D).all():
        return
    found = bits.blocks(a, b, c, spec=spec)
    assert fd.encode(found[-1].result) == fd.encode(D.item())


@pytest.mark.parametrize("spec", HALVES, ids=str)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_block_adds_up(spec, seed):
    """Terms are the exact products; each is cut toward zero by less than a unit; their sum, rounded once, is D."""
    rng = np.random.default_rng(seed)
    a, b = (np.float16(np.ldexp(rng.uniform(-2, 2, spec.block), rng.integers(-12, 8, spec.block))) for _ in "ab")
    c = float(np.float16(rng.uniform(-2, 2)))
    (block,) = bits.blocks(a, b, c, spec=spec)
    products = [x * y for x, y in zip(a.astype(float), b.astype(float), strict=True)]
    assert [term.value for term in block.terms] == [value for value in (c, *products) if value]
    unit = Fraction(2) ** block.place
    for term in block.terms:
        units = Fraction(term.value) / unit
        assert term.kept == (int(units) if spec.arithmetic == "truncated" else units)  # int is toward zero
    assert block.total == sum(term.kept for term in block.terms)
    if abs(block.total) < 2**53:
        fmt = spec.operand_formats[3]
        assert fpemu.round_to(block.sum, fmt, spec.final) == block.result
        assert block.result % 2.0**block.quantum == 0 or abs(block.result) < 2.0**block.quantum


def test_the_known_answers():
    found = {gpu: bits.blocks(*KNOWN, spec=mma.spec(gpu))[0] for gpu in ("V100", "A100", "H200", "MI100")}
    assert [block.result for block in found.values()] == [0.0, -0.5, -0.75, -0.875]
    assert [block.exponent for block in found.values()] == [23] * 4
    assert [block.place for block in found.values()] == [0, -1, -2, -3]
    assert found["V100"].terms[0].label == "c"
    assert [term.kept for term in found["A100"].terms] == [2**24, -(2**24), -1, 0, 0]


def test_blocks_follow_one_another():
    ones = np.ones(10)
    found = bits.blocks(ones, ones, 0.5, spec=mma.spec("V100"))
    assert [block.result for block in found] == [4.5, 8.5, 10.5]
    assert [len(block.terms) for block in found] == [5, 5, 3]


def test_the_floor_and_nothing_at_all():
    tiny = [2.0**-100]
    spec = mma.spec("H200", "bf16")
    (block,) = bits.blocks(tiny, tiny, spec=spec)
    assert (block.exponent, block.result) == (spec.E0, 0.0)
    (empty,) = bits.blocks([0.0], [1.0], spec=spec)
    assert (empty.terms, empty.total, empty.result) == ((), 0, 0.0)
    assert bits.draw([empty]).axes


@pytest.mark.parametrize(
    ("arguments", "spec", "message"),
    [
        (([1.0], [1.0]), "MI210", "no picture of the arithmetic 'flushed'"),
        (([1.0], [1.0, 2.0]), "A100", "give one dot product"),
        (([], []), "A100", "give one dot product"),
        (([[1.0]], [[1.0]]), "A100", "give one dot product"),
        (([0.1], [1.0]), "A100", "finite values of fp16"),
        (([np.inf], [1.0]), "A100", "finite values of fp16"),
        (([1.0], [1.0], np.nan), "A100", "finite values of fp16"),
    ],
)
def test_what_is_refused(arguments, spec, message):
    with pytest.raises(InputError, match=message):
        bits.blocks(*arguments, spec=mma.spec(spec))


def test_titles_and_blocks_must_match():
    block = bits.blocks(*KNOWN, spec=mma.spec("A100"))
    for pictures, titles in ((), None), (block, ["a", "b"]):
        with pytest.raises(InputError, match="one title for each block"):
            bits.draw(pictures, titles)


def test_the_picture_shows_the_bits():
    blocks = [bits.blocks(*KNOWN, spec=mma.spec(gpu))[0] for gpu in ("V100", "MI100")]
    figure = bits.draw(blocks, ["first", "second"])
    assert plotting.png(figure) == plotting.png(bits.draw(blocks, ["first", "second"]))
    upper, lower = figure.axes
    assert [axis.get_title(loc="left") for axis in (upper, lower)] == ["first", "second"]
    cells = upper.collections[0].get_array()
    assert cells.shape == (7, 27)  # places 23 to -3
    assert [cells[row].compressed().tolist() for row in range(7)] == [[1], [1], [3], [3], [3], [], []]
    assert [line.get_xdata()[0] for line in upper.lines if line.get_linestyle() == "--"] == [0.5]
    assert not [line for line in lower.lines if line.get_linestyle() == "--"]
    assert [text.get_text() for text in upper.texts if len(text.get_text()) > 1][:3] == [
        "$2^{23}$",
        "−$2^{23}$",
        "−0.5 → 0",
    ]
    assert upper.get_yticklabels()[0].get_text() == "c"


def test_far_bits_are_an_arrow_and_many_columns_have_no_digits():
    (block,) = bits.blocks([2.0**-14, 2.0**15], [2.0**-14, 2.0**15], spec=mma.spec("A100"))
    near, far = bits.draw([block], below=4), bits.draw([block], below=90)
    assert near.axes[0].collections[0].get_array().shape == (4, 30 + 1 - (6 - 4))
    assert far.axes[0].collections[0].get_array().shape == (4, 59)
    assert any(text.get_text() == "1" for text in near.axes[0].texts)
    assert not any(text.get_text() == "1" for text in far.axes[0].texts)


def test_after_an_overflow_there_is_nothing_to_show():
    spec = mma.spec("A100", "fp16", "fp16")
    large = [2.0**15] + [0.0] * 15
    (last,) = bits.blocks(large[:8], [2.0] * 8, spec=spec)
    assert last.result == np.inf
    assert bits.draw([last]).axes
    with pytest.raises(InputError, match="overflows before k = 8"):
        bits.blocks(large, [2.0] * 16, spec=spec)
