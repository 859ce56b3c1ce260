"""Errors: one line that names what is wrong, where, and the nearest name; never a traceback of another library."""

from __future__ import annotations

import numpy as np
import pytest

from fpemu import mma, simt
from fpemu.errors import InputError, entries, unknown_name
from fpemu.formats import FloatFormat

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


def test_without_a_negative_zero_its_code_is_zero():
    assert not np.signbit(FloatFormat("x", 4, -6, 7, negative_zero=False).decode(np.uint8(0x80)))


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
