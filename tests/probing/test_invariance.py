"""`fpemu.probing.invariance`, `fpemu.library.invariance`, `fpemu invariant`: the M at which rows change their order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.library import openblas
from fpemu.mma import KOrder
from fpemu.probing import invariance

KERNEL = """
import fpemu


def matmul(A, B):
    return fpemu.simt.gemm(A, B, order=fpemu.mma.KOrder(split=16) if len(A) % 4 == 0 else None)
"""


def split_below(limit):
    return lambda A, B: fpemu.simt.gemm(A, B, order=KOrder(split=16) if len(A) < limit else None)


def tail(A, B):
    """Rows beyond the last whole tile of 4 have another order."""
    D = fpemu.simt.gemm(A, B)
    whole = len(A) // 4 * 4
    D[whole:] = fpemu.simt.gemm(A[whole:], B, order=KOrder(split=32)) if whole < len(A) else D[whole:]
    return D


def last_column(A, B):
    D = fpemu.simt.gemm(A, B)
    if len(A) > 2:
        D[:, -1:] = fpemu.simt.gemm(A, B[:, -1:], order=KOrder(split=32))
    return D


def spans(found):
    return [(i.first, i.last, i.orders) for i in found.intervals]


def test_intervals_and_orders_are_found():
    found = invariance(split_below(5), 8, 64, m=range(1, 9))
    assert spans(found) == [(1, 4, (0,)), (5, 8, (1,))]
    assert found.orders == ("four chains of 16 products, then added from left to right", "one chain of 64 products")
    assert (found.invariant, found.first_break) == (False, 5)
    same = invariance(split_below(0), 8, 64, m=[1, 2, 64])
    assert (same.invariant, same.first_break, spans(same)) == (True, None, [(1, 64, (0,))])
    assert str(same).startswith("batch-invariant: one order; N = 8, K = 64, 3 values of M from 1 to 64")


def test_rows_of_one_product_may_differ():
    found = invariance(tail, 8, 64, m=range(1, 10))
    assert spans(found) == [(1, 3, (0,)), (4, 4, (1,)), (5, 7, (1, 0)), (8, 8, (1,)), (9, 9, (1, 0))]
    assert found.orders == ("two chains of 32 products, then added", "one chain of 64 products")


def test_an_order_is_revealed_at_a_column_that_shows_it():
    found = invariance(last_column, 8, 64, m=[1, 2, 3])
    assert found.orders == ("one chain of 64 products", "two chains of 32 products, then added")


def test_formats_and_layouts_are_passed():
    seen = []

    def gemm(A, B):
        seen.append((A.dtype, B.dtype, B.flags.f_contiguous))
        return fpemu.mma.gemm(A, B, None, fpemu.mma.spec("H200", "bf16"))

    found = invariance(gemm, 6, 32, m=[1, 3], spec=fpemu.mma.spec("H200", "bf16"), layout="TN", orders=False)
    assert found.orders == ("not probed",)
    assert set(seen) == {(np.dtype("f4"), np.dtype("f4"), True)}


@pytest.mark.parametrize(("n", "k", "kernel"), [(40, 500, "HASWELL"), (33, 300, "HASWELL"), (24, 300, "TSV110")])
def test_orders_of_openblas_are_those_of_its_emulated_products(n, k, kernel):
    blocks = openblas.blocking("sgemm", kernel)
    sizes = range(2, 27)

    def gemm(A, B):  # the first and the last row, as the rules compare them
        return openblas.multiply(A, B, blocks, layout="TN")[[0, *[len(A) - 1] * (len(A) - 1)]]

    by_rules = fpemu.library.invariance("openblas", "fp32", n, k, hardware=kernel, m=sizes)
    by_bits = invariance(gemm, n, k, m=sizes, layout="TN", orders=False)
    assert spans(by_rules) == spans(by_bits)


def test_orders_of_cublas_are_those_of_its_table_and_model():
    found = fpemu.library.invariance("cublas", "fp16->fp16", 4096, 4096, m=range(1, 18))
    assert spans(found) == [(1, 8, (0,)), (9, 17, (1,))]
    found = fpemu.library.invariance("cublas", "tf32", 4096, 3584, m=range(385, 420))
    assert not found.invariant
    assert found.first_break is None
    assert str(found).splitlines()[:2] == [
        "batch-invariant or not: one order, and orders that are not known; N = 4096, K = 3584,"
        " 35 values of M from 385 to 419",
        "M = 385 to 416: order not known",
    ]
    with pytest.raises(InputError, match="no order of a fp16 TN product with N = 4095"):
        fpemu.library.invariance("cublas", "fp16", 4095, 4096)


def test_rows_of_one_order_have_equal_bits_on_the_gpu():
    """Where the table has one order for two M, the record of an H200 has one class of equal bits."""
    record = json.loads((Path(__file__).parents[2] / "experiments" / "parallel" / "h200_invariance.json").read_text())
    types, compared = {"bf16": "bf16->bf16", "fp16": "fp16->fp16", "tf32": "tf32", "fp32": "fp32"}, 0
    for layer in record["layers"]:
        if layer["type"] in types:
            measured = dict(zip(record["m"], map(tuple, layer["classes"]), strict=True))
            found = fpemu.library.invariance("cublas", types[layer["type"]], layer["N"], layer["K"], m=record["m"])
            for order in {i.orders for i in found.intervals if i.orders}:
                rows = [m for m in measured for i in found.intervals if i.orders == order and i.first <= m <= i.last]
                assert len({measured[m] for m in rows}) == 1, (layer["layer"], layer["type"], rows)
                compared += len(rows)
    assert compared > 4000


@pytest.mark.parametrize(
    ("vary", "values", "expected"),
    [
        ("n", [8, 12, 16, 24], [(8, 12, (0,)), (16, 24, (1,))]),
        ("k", [40, 64, 65, 80], [(40, 64, (0,)), (65, 80, (1,))]),
        ("alignment", [0, 8, 4, 16], [(0, 8, (0,)), (4, 4, (1,)), (16, 16, (0,))]),
        ("lanes", ["one", "two"], [("one", "one", (0,)), ("two", "two", (1,))]),
    ],
)
def test_other_variables_than_m(vary, values, expected):
    """A kernel that splits wide and long products, those at odd words, and on request."""

    def gemm(A, B, lanes="one"):
        split = B.shape[1] >= 16 or A.shape[1] > 64 or lanes == "two"
        split |= vary == "alignment" and A.ctypes.data % 8 > 0
        return fpemu.simt.gemm(A, B, order=KOrder(split=16) if split else None)

    found = invariance(gemm, 8, 40, m=5, vary=vary, values=values)
    assert spans(found) == expected
    assert found.orders[0].startswith("one chain")
    assert "chains of" in found.orders[1]
    assert f"values of {vary.upper() if vary in 'nk' else vary} from" in str(found)
    for m, given in (([1, 2], values), (5, [])):
        with pytest.raises(InputError, match="needs its values=, and one number of rows"):
            invariance(gemm, 8, 40, m=m, vary=vary, values=given)


@pytest.mark.parametrize("m", [[], [3, 2], [0, 1], [2, 2]])
def test_numbers_of_rows_ascend(m):
    with pytest.raises(InputError, match="m "):
        invariance(tail, 8, 64, m=m)


def test_the_command_fails_if_an_order_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    assert main(["invariant", "kernel.py:matmul", "--m", "1:8", "--n", "4", "--k", "64"]) == 1
    assert "the first change at M = 4" in capsys.readouterr().out
    assert main(["invariant", "kernel.py:matmul", "--m", "4:64:4", "--n", "4", "--k", "64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["invariant"]
    assert main(["invariant", "kernel.py:matmul", "--m", "4", "--vary", "n=4:8", "--k", "64"]) == 0
    for ranks, status in {"2": 0, "1,2,4": 1}.items():
        assert main(["invariant", "kernel.py:matmul", "--m", "3", "--n", "8", "--k", "64", "--ranks", ranks]) == status
    assert main(["invariant", "kernel.py:matmul", "--m", "1:8", "--n", "4", "--k", "64", "--draw", "rows.svg"]) == 1
    assert "four chains of 16 products" in (tmp_path / "rows.svg").read_text()
    capsys.readouterr()
    for line, status in {
        "openblas -H SKYLAKEX --m 8,64 --n 512 --k 512": 0,
        "cublas --type fp16 --m 1:200 --n 4096 --k 4096": 1,
    }.items():
        assert main(["invariant", "--library", *line.split()]) == status
    for line, words in {
        "invariant": "name one thing to compare",
        "invariant kernel.py:matmul --vary n=4:8": "for one number of rows",
        "invariant kernel.py:matmul --m 1 --vary n": "--vary is not NAME=",
        "invariant kernel.py:matmul --m 1 --vary k=1,2 --ranks 2": "give one of them",
        "invariant --library openblas --vary n=4:8": "--library takes --m or --ranks",
        "invariant kernel.py:matmul --m 1:": "--m '1:' is not FIRST:LAST",
        "invariant kernel.py:matmul --m 5:4": "--m '5:4' names no numbers up to",
        "invariant --library openblas --type bf16": "openblas has no products of type bf16",
    }.items():
        assert main(line.split()) == 2
        assert words in " ".join(capsys.readouterr().err.split())
