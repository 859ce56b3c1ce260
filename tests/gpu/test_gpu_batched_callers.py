"""What is passed to the batched kernels, on this machine in the GPU's place: stacks, lists, streams, faults."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fpemu import InputError, batched
from fpemu.gpu.batched import call, products, stacks
from fpemu.gpu.batched.configuration import Block, Small, Warp
from fpemu.gpu.runtime import callers
from tests.batched_on_cpu import Foreign, gpu, here, hostile, matrix, needs_compiler

__all__ = ["gpu", "here"]


def test_stacks_have_a_step_where_there_is_one_and_know_their_alignment():
    x = np.zeros((3, 4, 8, 24), np.float16)
    operand = stacks.operand(matrix(x[:, :, :, 8:]), None, "A")
    made, width, _ = stacks.stack(operand, (3, 4), True)
    assert (made["step"][0], made["line"][0], made["table"][0]) == (8 * 24 * 2, 48, 0)
    assert width == np.gcd(16, x.ctypes.data + 16)
    assert stacks.operand(matrix(np.swapaxes(x, -1, -2)), None, "A").along_columns is False


@needs_compiler
def test_batches_without_a_step_get_a_table(gpu):
    x = np.zeros((3, 4, 8, 24), np.float16)
    made, _, held = stacks.stack(stacks.operand(matrix(x[:, :2]), None, "A"), (3, 2), True)
    table = held[1].array(6, np.uint64)
    assert made["table"][0] == held[1].pointer
    assert (table - table[0]).tolist() == [384 * i for i in (0, 1, 4, 5, 8, 9)]


def test_wrong_arguments_are_refused(here):
    A = matrix(np.zeros((2, 4, 4), np.float16))
    for options, said in (
        ({"transa": "X"}, "transa"),
        ({"transb": np.ones((3, 3))}, "transb array"),
        ({"configuration": "block block=64x64"}, "block has 3 numbers"),
        ({"configuration": 3}, "is a int"),
        ({"acumulate": "fp16"}, "accumulate"),
        ({"beta": 1.0}, "needs C"),
        ({"configuration": "small threads=32"}, "kind 'small'"),
        ({"layout": "interleaved"}, "two parts"),
    ):
        with pytest.raises(InputError, match=said):
            products.prepare(A, A, out=A, **options)
    with pytest.raises(InputError, match="do not share K"):
        products.prepare(A, matrix(np.zeros((2, 3, 4), np.float16)), out=A)


TINY = Warp(1, 1, 1, 2)


@needs_compiler
def test_lists_and_pointers_wait_for_their_streams_and_are_broadcast(here):
    rng = np.random.default_rng(7)
    A, B = hostile(rng, 2, 5, 7), hostile(rng, 3, 2, 7, 3)
    want = batched.hgemm(A, B, hardware="hopper", instruction="mma")
    D = np.zeros(want.shape, np.float16)
    lists = [Foreign(x, 7 + i) for i, x in enumerate(A)]
    assert products.hgemm(lists, Foreign(B, 3), out=(out := Foreign(D, 1)), configuration=TINY) is out
    assert (D.view(np.uint16) == want.view(np.uint16)).all()
    assert {waited_for for waits, waited_for in here if waits == 0} == {3, 7, 8}
    assert {waits for waits, _ in here if waits} == {3, 7, 8}
    places = np.array([x.ctypes.data for x in A])
    pointers = stacks.Pointers(Foreign(places, 9), (5, 7), 7, 2, lists)
    assert [s for x in stacks.arrays(pointers) for s in callers.streams([x])] == [9, 7, 8]
    D[...] = 0
    products.hgemm(pointers, Foreign(B), out=Foreign(D), configuration=TINY)
    assert (D.view(np.uint16) == want.view(np.uint16)).all()


@needs_compiler
def test_an_out_that_cannot_be_written_in_place_is_refused(here):
    A, B, big = np.ones((2, 4, 4), np.float16), np.ones((2, 4, 4), np.float16), np.zeros((2, 8, 16), np.float16)
    for D, said in (
        (big[:, 3::-1, :4], "negative strides"),
        (big[:, :4, :8:2], "contiguous rows"),
        (A, "shares memory with A"),
        (np.broadcast_to(big[:1, :4, :4], (2, 4, 4)), "no overlapping entries"),
        (big[:, :4, :5], "out has shape"),
        (big[:, :4, :4].astype(np.float32), "float32"),
        ([big[0, :4, :4]] * 2, "a matrix twice"),
    ):
        out = [Foreign(x) for x in D] if isinstance(D, list) else Foreign(D)
        with pytest.raises(InputError, match=said):
            products.hgemm(Foreign(A), Foreign(B), out=out, configuration=TINY)
    odd = np.zeros(2 * 4 * 4 * 2 + 1, np.float16)[1:].reshape(2, 4, 4, 2)
    pair = Foreign(np.ones((2, 4, 4, 2), np.float16))
    with pytest.raises(InputError, match="one aligned word"):
        products.hcgemm(pair, pair, out=Foreign(odd))


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 5, 4, 2), (3, 1, 4, 2), (3, 5, 1, 2), (1, 1, 1, 2)])
def test_strides_of_axes_of_length_1_are_arbitrary(here, shape):
    rng = np.random.default_rng(5)
    batch, M, N, _ = shape
    A, B = hostile(rng, batch, M, 6, 2), hostile(rng, batch, 6, N, 2)
    want = batched.hcgemm(A, B, hardware="hopper", instruction="mma")
    odd = [7 * 2 if n == 1 else step for n, step in zip(shape, np.zeros(shape, np.float16).strides, strict=True)]
    D = np.lib.stride_tricks.as_strided(np.zeros(1000, np.float16), shape, odd)
    products.hcgemm(Foreign(A), Foreign(B), out=Foreign(D), configuration=TINY)
    assert (D.view(np.uint16) == want.view(np.uint16)).all()


@needs_compiler
def test_operands_that_are_no_matrices_of_the_gpus_are_refused(here):
    A, places = np.ones((2, 4, 4), np.float16), np.zeros(2, np.uint64)
    for X, said in (
        ([Foreign(A[0]), A[1]], "1 of them on the GPU"),
        ([Foreign(A[0]), Foreign(A[1].T)], "of 2 kinds"),
        ([Foreign(A)], r"of shape \(2, 4, 4\)"),
        ([Foreign(A[0].T)], "rows must be contiguous"),
        (stacks.Pointers(places, (4, 4), 4), "in the GPU's memory"),
        (stacks.Pointers(Foreign(places.astype(np.int32)), (4, 4), 4), "uint64 or int64"),
        (stacks.Pointers(Foreign(places[::-1]), (4, 4), 4), "follow on one another"),
    ):
        with pytest.raises(InputError, match=said):
            products.hgemm(X, Foreign(A), configuration=TINY)
    for options, said in (((4, 4), 3), "ld = 3"), (((4,), 4), "shape"), (((4, 4), 4, 3), "aligned = 3"):
        with pytest.raises(InputError, match=said):
            stacks.Pointers(places, *options)


@needs_compiler
@pytest.mark.parametrize("kernel", ["tensor", "magma-small"])
def test_empty_products_are_empty_or_zero(here, kernel):
    for batch, M, N, K in ((0, 2, 2, 2), (2, 0, 3, 2), (2, 3, 0, 2)):
        A, B, D = (np.zeros((batch, *s), np.float16) for s in ((M, K), (K, N), (M, N)))
        out = Foreign(D)
        assert products.hgemm(Foreign(A), Foreign(B), out=out, kernel=kernel) is out
    A, B, D = np.zeros((2, 3, 0), np.float16), np.zeros((2, 0, 3), np.float16), np.ones((2, 3, 3), np.float16)
    products.hgemm(Foreign(A), Foreign(B), out=Foreign(D), kernel=kernel)
    assert not D.view(np.uint16).any()


def test_what_kernels_count_in_an_int_is_not_exceeded(monkeypatch):
    def operand(*shape):
        steps = [int(np.prod(shape[i + 1 :], dtype=object)) * 2 for i in range(len(shape))]
        return stacks.Operand(2**20, shape, tuple(steps), 0, 2)

    def launched(*sizes, configuration):
        batch, M, N, K = sizes
        operands = operand(batch, M, K), operand(batch, K, N), None, operand(batch, M, N)
        return call.prepare(*operands, call.Task(0, 0, 0), call.Scaling(), configuration)

    with pytest.raises(InputError, match="split the batch"):
        launched(2**22, 32, 32, 32, configuration=Small())
    with pytest.raises(InputError, match="is the most"):
        launched(2**31 - 1, 1, 1, 1, configuration=TINY)
    monkeypatch.setattr(call, "module", lambda *_: SimpleNamespace(prepare=lambda *_, **__: None))
    block = Block((16, 16, 16), (64, 64, 64), (16, 8), 1, 2, True)
    assert launched(1, 2**14, 2**14, 64, configuration=block).task.contiguous
    assert not launched(2, 2**15, 2**15, 64, configuration=block).task.contiguous


def test_planes_count_for_the_alignment():
    x = np.zeros(8, np.float16)
    planar = stacks.operand(matrix(x[:2].reshape(2, 1, 1)), "planar", "A")
    assert stacks.stack(planar, (), True)[1] == 2
