"""TSM2 and ISM2: the loops as published, their fast form and a scalar oracle give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fpemu
from fpemu import simt
from fpemu.errors import InputError
from fpemu.simt import ism2, tsm2
from fpemu.simt.tallskinny import VERSIONS, LoopTiles, Threads, concurrent_rows
from tests import hostile, oracle
from tests.equal import same
from tests.hostile import bits, carrier, integers
from tests.oracle.order import chain

NAMES = ["fp16", "fp32", "fp64"]
TILES = [{"t1": 4, "t2": 2, "t3": 2}, {"t1": 6, "t2": 1, "t3": 3}, {"t1": 1, "t2": 3, "t3": 1}, {"t1": 8, "t3": 8}, {}]


def operands(name, kind, m, n, k, seed):
    """A, B and C of a class: rows of A and columns of B are dot products of the class."""
    A, B, C = hostile.operands(name, name, name, kind, seed, max(m, n), k)
    c = np.resize(C, (m, n))
    return carrier(A[:m], name), carrier(B[:n], name).T, carrier(c, name)


def every_form(A, B, C, fmt, tiles):
    """Name and result of every NumPy reference implementation."""
    for version in VERSIONS:
        own = tiles if version in ("V2", "V3") else {}
        yield f"{version} {own}", tsm2(A, B, C, version=version, fmt=fmt, backend="numpy", **own)
    for optimisation in (1, 2):
        for tcf in (1, 3):
            given = {"optimisation": optimisation, "tcf": tcf, **tiles}
            yield str(given), ism2(A, B, C, fmt=fmt, backend="numpy", **given)


@pytest.mark.parametrize("kind", hostile.CLASSES)
@pytest.mark.parametrize("name", NAMES)
def test_all_versions_are_one_chain_on_hostile_operands(name, kind):
    number = NAMES.index(name) + hostile.CLASSES.index(kind)
    k = (7, 13)[number % 2] if name != "fp64" else 5
    A, B, C = operands(name, kind, 5, 3, k, number)
    unit, fmt = oracle.fma_chain(name, 1), oracle.FORMATS[name]
    for start in (None, C):
        codes = np.zeros((5, 3), int) if start is None else bits(C)
        want = [
            chain(unit, integers(bits(A[i])), integers(bits(B[:, j])), int(codes[i, j]))
            for i in range(5)
            for j in range(3)
        ]
        fast = tsm2(A, B, start, fmt=name)
        nan = simt.SPECS[name].nan_code
        coded = [nan if oracle.decode(x, fmt).kind == "nan" else x for x in want]
        assert integers(bits(fast).ravel()) == coded
        same(ism2(A, B, start, fmt=name), fast)
        for form, D in every_form(A, B, start, name, TILES[number % len(TILES)]):
            same(D, fast, what=f"{name} {kind} {form}")


@given(
    m=st.integers(0, 9),
    n=st.integers(0, 5),
    k=st.integers(0, 12),
    t3=st.integers(1, 4),
    turns=st.integers(1, 4),
    t2=st.integers(1, 6),
    tcf=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_tiles_of_any_size_on_matrices_of_any_size(m, n, k, t3, turns, t2, tcf, seed):
    rng = np.random.default_rng(seed)
    A, B = (hostile.draw("fp16", "finite", rng, s) for s in ((m, k), (k, n)))
    C = hostile.draw("fp16", "zeros", rng, (m, n))
    A, B, C = (carrier(x, "fp16") for x in (A, B, C))
    tiles = {"t1": t3 * turns, "t2": t2, "t3": t3}
    fast = simt.gemm(A, B, C, fmt="fp16")
    for version in ("V2", "V3"):
        same(tsm2(A, B, C, version=version, fmt="fp16", backend="numpy", **tiles), fast)
    for optimisation in (1, 2):
        D = ism2(A, B, C, optimisation=optimisation, tcf=tcf, fmt="fp16", backend="numpy", **tiles)
        same(D, fast)


def test_batches_and_strides():
    rng = np.random.default_rng(0)
    A = rng.random((2, 1, 6, 20), np.float32)[..., ::2]
    B, C = rng.random((3, 10, 4), np.float32), rng.random((6, 4), np.float32)
    fast = tsm2(A, B, C)
    assert fast.shape == (2, 3, 6, 4)
    for form, D in every_form(A, B, C, "fp32", {"t1": 4, "t2": 3, "t3": 2}):
        same(D, fast, what=form)
        assert (C < 1).all()  # the caller's own is left as it was


def test_another_order_of_the_products_is_seen():
    A, B, _ = operands("fp32", "near-one", 8, 4, 64, 0)
    assert (bits(tsm2(A[:, ::-1], B[::-1])) != bits(tsm2(A, B))).any()
    swapped = np.r_[1, 0, 2:64]
    assert (bits(tsm2(A[:, swapped], B[swapped], np.ones((8, 4)))) != bits(tsm2(A, B, np.ones((8, 4))))).any()


def test_padding_with_a_positive_zero_would_lose_the_sign_of_a_sum():
    """-tiny · tiny underflows to -0; one of the two ways to pad keeps it."""
    A, B = np.float32([[-(2.0**-100)]]), np.float32([[2.0**-100]])
    assert bits(tsm2(A, B)).item() == 0x80000000
    for pad, kept in ((0.0, 0), (-0.0, 0x80000000)):
        padded = np.float32([[A.item(), pad]]), np.float32([[B.item()], [0.0]])
        assert bits(tsm2(*padded)).item() == kept


class Counting(np.ndarray):
    """An array that counts how many of its elements are read by basic indexing."""

    def __getitem__(self, index):
        found = super().__getitem__(index)
        tally = getattr(self, "tally", None)
        if tally is not None:
            tally[0] += np.size(found)
        return np.asarray(found)


def reads(x):
    counting = x.view(Counting)
    counting.tally = [0]
    return counting, counting.tally


def test_the_published_loops_load_as_often_as_the_paper_counts():
    """Section 3.2: an element of A is read n times with inner products, once with outer ones, n / t2 times in tiles;
    section 5.2: an element of C is read k / t1 times in ISM2's second optimisation, of a copy that is not counted."""
    from fpemu.simt.tallskinny import inner, outer, prefetched, shared

    m, n, k = 8, 6, 12
    rng = np.random.default_rng(0)
    a, b = rng.random((m, k)), rng.random((k, n))
    tiles = LoopTiles(4, 2, 2)
    for run, times in (
        (inner, n),
        (outer, 1),
        (lambda w: shared(w, tiles), n // 2),
        (lambda w: prefetched(w, tiles), n // 2),
    ):
        A, tally = reads(a.copy())
        run(Threads(A, b, np.zeros((m, n)), fpemu.FP64))
        assert tally[0] == m * k * times


@pytest.mark.parametrize(
    ("m", "tcf", "t1"), [(1, 1, 128), (100, 4, 8), (1024, 8, 128), (1025, 8, 128), (7, 3, 1), (0, 2, 4)]
)
def test_every_row_is_done_once_by_m_over_tcf_threads(m, tcf, t1):
    turns = concurrent_rows(m, tcf, t1)
    assert [r for turn in turns for r in range(m)[turn]] == list(range(m))
    assert len(turns) <= tcf
    if m % (t1 * tcf) == 0 and m:
        assert [turn.stop - turn.start for turn in turns] == [m // tcf] * tcf


ONE = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tsm2(ONE, ONE, version="V4"), r"unknown version of TSM2 'V4'.*known: V0, V1, V2, V3"),
        (lambda: tsm2(ONE, ONE, version="V1", t1=4, t3=2), r"TSM2 V1 has no tiles: leave t1 and t3 out"),
        (lambda: tsm2(ONE, ONE, t1=6, t3=4), r"t3 = 4 must divide t1 = 6"),
        (lambda: tsm2(ONE, ONE, t3=3), r"t3 = 3 must divide t1 = 128"),
        (lambda: tsm2(ONE, ONE, t2=0), r"t2 = 0 must be a positive integer"),
        (lambda: ism2(ONE, ONE, optimisation=3), r"optimisation = 3 must be 1 or 2"),
        (lambda: tsm2(ONE, ONE, fmt="tf32"), r"FMAs in fp16, fp32, fp64, not in tf32"),
        (lambda: tsm2(ONE, ONE, fmt="tf32", backend="numpy"), r"FMAs in fp16, fp32, fp64, not in tf32"),
        (lambda: tsm2(ONE, ONE, backend="gpu"), r"unknown backend 'gpu'"),
    ]
    + [
        (lambda f=f, b=b, args=args: f(*args, backend=b), message)
        for f in (tsm2, ism2)
        for b in ("compiled", "numpy")
        for args, message in (
            ((ONE, np.ones((3, 2))), r"do not share K"),
            ((ONE[0], ONE), r"A has shape \(2,\)"),
            ((ONE, [[1], [1, 2]]), r"B is no array"),
            ((ONE, None), r"B takes real numbers"),
            ((ONE, ONE + np.eye(2) * 2.0**-30), r"B has entries that are not values of fp32"),
            ((ONE, ONE, np.ones((3, 2))), r"C of shape \(3, 2\) does not fit D of shape \(2, 2\)"),
            ((np.ones((2, 2, 2)), np.ones((3, 2, 2))), r"leading axes of A .* and B .* do not broadcast"),
        )
    ],
)
def test_wrong_arguments_are_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("algorithm", [simt.tsm2, simt.ism2])
def test_the_published_loops_do_not_run_on_a_gpu(algorithm):
    with pytest.raises(InputError, match="device = 'cuda'"):
        algorithm(np.ones((2, 2)), np.ones((2, 1)), backend="numpy", device="cuda")
    assert algorithm(np.ones((2, 2)), np.ones((2, 1)), backend="numpy", device="auto").tolist() == [[2.0], [2.0]]
