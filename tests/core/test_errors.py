"""Errors: one line that names what is wrong, where, and the nearest name; never a traceback of another library."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import inputs, mma, simt
from fpemu.arguments import as_array
from fpemu.errors import InputError, entries, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec

ONE = np.ones((2, 2), np.float16)


def test_the_nearest_name_does_not_depend_on_case():
    assert "did you mean 'A100'" in str(unknown_name("hardware", "a1000", ["A100", "MI210"]))
    assert "known: MI210" in str(unknown_name("hardware", "a1000", ["A100", "MI210"], ["MI210"]))
    many = [f"figure{number}" for number in range(41)]
    assert str(unknown_name("figure", "figur7", many)).endswith("?")
    assert "known: figure0" in str(unknown_name("figure", "xyz", many))


def test_entries_count_and_show_the_first():
    assert entries(np.array([[False, True], [True, False]]), np.arange(4).reshape(2, 2)) == (
        "2 of 4 entries, first at [0, 1]: 1"
    )


BAD = [[[1, 2], [3]], np.zeros((2, 2), "V4"), np.zeros((2, 2), object), ONE.astype(complex), ONE > 0, [["a"]]]


@pytest.mark.parametrize("bad", BAD, ids=["ragged", "raw bytes", "objects", "complex", "truth", "text"])
def test_what_is_no_array_of_numbers_is_refused(bad):
    for call in (
        lambda: as_array(bad, "A"),
        lambda: fpemu.round_to(bad, "fp16"),
        lambda: mma.gemm(bad, ONE, spec=mma.spec("hopper")),
        lambda: fpemu.gemm(bad, ONE, scheme="ootomo", hardware="hopper"),
        lambda: fpemu.reference.matmul(bad, ONE),
        lambda: fpemu.FP16.decode(bad),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"F": "24"}, "F = '24' must be an integer"),
        ({"F": 24.5}, "must be an integer"),
        ({"E0": 0.5}, "E0 = 0.5 must be an integer"),
        ({"nan_code": -1}, "nan_code -1 is no NaN of fp32"),
        ({"nan_code": 0x7F800000}, "is no NaN of fp32"),
        ({"arithmetic": []}, "arithmetic"),
        ({"k": 0}, "positive"),
        ({"k": 12}, "not a multiple of block"),
        ({"a_format": FloatFormat("low", 4, -140, 113)}, "wider than fp32"),
        ({"b_format": FloatFormat("wide", 8, -100, 300)}, "wider than fp32"),
        ({"arithmetic": "exact", "fraction_bits": 3, "F": 24}, "fraction_bits have no effect"),
        ({"arithmetic": "flushed", "block": 4, "final": "RZ"}, "final have no effect"),
        ({"a_format": "bf16", "b_format": "bf16", "arithmetic": "via-half"}, "do not both fit into fp16"),
        ({"block": 128, "k": 128}, "more than 64"),
    ],
    ids=str,
)
def test_a_custom_spec_is_checked(fields, message):
    with pytest.raises(InputError, match=message):
        MmaSpec(**({"a_format": "fp16", "b_format": "fp16", "d_format": "fp32", "k": 8, "block": 8} | fields))


def test_replace_names_an_unknown_field():
    with pytest.raises(InputError, match="unknown field of MmaSpec 'blok': did you mean 'block'"):
        mma.spec("hopper").replace(blok=8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nan": "foo"}, "unknown FloatFormat: nan 'foo'"),
        ({"max_significand": 99}, "max_significand 99"),
        ({"max_significand": 7}, "max_significand 7 is not between 8 and 15"),
        ({"precision": 4.5}, "precision = 4.5 must be an integer"),
        ({"padding": 80}, "a word of"),
    ],
    ids=str,
)
def test_a_custom_format_is_checked(fields, message):
    with pytest.raises(InputError, match=message):
        FloatFormat(**({"name": "mine", "precision": 4, "emin": -6, "emax": 7} | fields))


def test_a_format_whose_nan_is_all_ones_ends_one_code_below():
    assert FloatFormat("x", 4, -6, 8, inf=False, nan="top").max == 448


def test_without_a_negative_zero_its_code_is_zero():
    assert not np.signbit(FloatFormat("x", 4, -6, 7, negative_zero=False).decode(np.uint8(0x80)))


def test_one_bit_of_precision_has_no_code_for_nan():
    with pytest.raises(InputError, match="no code for NaN"):
        FloatFormat("e8m0", 1, -126, 127).encode(np.nan)


def test_codes_that_mean_nothing_are_not_drawn():
    with pytest.raises(InputError, match="has codes that mean nothing"):
        inputs.make("all_bits", 8, 1, FloatFormat("x", 4, -6, 5))


def test_int8_out_of_range_is_counted():
    with pytest.raises(InputError, match=r"4 of 4 entries, first at \[0, 0\]: 200"):
        mma.gemm(np.full((2, 2), 200), np.full((2, 2), 1), spec=mma.spec("hopper", "int8"))


@pytest.mark.parametrize("terms", [1.0, [], [ONE], [(ONE,)], [(ONE, ONE, ONE)]], ids=str)
def test_chain_requires_pairs(terms):
    with pytest.raises(InputError, match="pairs"):
        mma.chain(terms, spec=mma.spec("hopper"))


def test_fma_names_shapes_that_do_not_broadcast():
    with pytest.raises(InputError, match=r"a \(3,\), b \(2,\) and c \(\) do not broadcast"):
        simt.fma(np.ones(3), np.ones(2), 1.0)


@pytest.mark.parametrize("threads", ["abc", "0", "-1", "²", "9" * 5000])
def test_a_thread_count_that_is_none_is_refused(threads, monkeypatch):
    monkeypatch.setenv("FPEMU_THREADS", threads)
    with pytest.raises(InputError, match="FPEMU_THREADS"):
        mma.gemm(ONE, ONE, spec=mma.spec("hopper"))


@pytest.mark.parametrize("call", [("H200", ("e4m3",)), ("H200", 5), ("H200", "fp8"), ("tesla", "fp16")], ids=str)
def test_spec_refuses_what_it_does_not_know(call):
    with pytest.raises(InputError):
        mma.spec(*call)
