"""The arguments of the batched products, with this machine in the GPU's place: stacks, lists, streams, refusals."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fpemu import InputError, batched
from fpemu.gpu import batched as gpu_batched
from fpemu.gpu.batched import Block, Pointers, Small, Warp
from fpemu.gpu.batched.products import BatchedRequest
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Address, Memory
from tests.batched_on_cpu import Foreign, gpu, hostile, needs_compiler

__all__ = ["gpu"]
TINY = Warp(1, 1, 1, 2)
MMA = {"hardware": "hopper", "instruction": "mma"}


@pytest.fixture
def waited(gpu, monkeypatch):
    """The pairs of streams of which the first waits for the second."""
    from cuda import core

    pairs = []

    class Stream:
        def __init__(self, handle):
            self.handle = handle

        def wait(self, other):
            pairs.append((self.handle, other.handle))

    monkeypatch.setattr(core, "LEGACY_DEFAULT_STREAM", Stream(0))
    monkeypatch.setattr(core, "Stream", SimpleNamespace(from_handle=Stream))
    return pairs


def codes(x):
    return x.view(np.uint16)


# --- steps as data
def layout(name, shape, steps=None, alignment=0, dtype="float16"):
    steps = tuple(int(np.prod(shape[i + 1 :], dtype=object)) for i in range(len(shape))) if steps is None else steps
    return Matrix(Address(name, alignment=alignment), np.dtype(dtype), tuple(shape), tuple(steps))


def steps_of(A, B, D, C=None, form=None, **options):
    """The steps and the workspace of a product of matrices in these layouts."""
    memory, request = Memory(), BatchedRequest(form, **options)
    return request.steps({"A": A, "B": B, "C": C, "D": D}, memory), memory


def stacks_of(step):
    """The struct of a batched kernel's launch, and its addresses by their offset."""
    (problem,) = step.arguments
    data, slots = problem.pack()
    return np.frombuffer(data, problem.dtype)[0], slots


def test_stacks_have_a_step_where_there_is_one_and_an_alignment(gpu):
    A = layout("A", (3, 4, 8, 16), (768, 192, 24, 1), 8)
    B, D = layout("B", (16, 8)), layout("D", (3, 4, 8, 8))
    (step,), _ = steps_of(A, B, D, configuration=TINY)
    found, slots = stacks_of(step)
    assert slots[0] == A.pointer
    assert {(address.region, address.offset) for address in slots.values()} == {("A", 0), ("B", 0), ("D", 0)}
    assert (found["a"]["step"], found["a"]["line"], found["a"]["table"]) == (384, 48, 0)
    assert (found["b"]["step"], found["d"]["step"]) == (0, 128)
    for alignment, width in ((0, 16), (8, 8), (2, 2)):
        A = layout("A", (3, 4, 8, 16), (768, 192, 24, 1), alignment)
        (step,), _ = steps_of(A, B, D, configuration=TINY)
        assert f"WIDTH = {width};" in step.module.source
    transposed = layout("A", (8, 16), (1, 8))
    (step,), _ = steps_of(transposed, B, layout("D", (8, 8)), configuration=TINY)
    assert "A_ALONG_K = false" in step.module.source


def test_batches_without_a_step_get_a_table_of_offsets(gpu):
    A = layout("A", (3, 2, 8, 16), (768, 192, 24, 1))
    (step,), _ = steps_of(A, layout("B", (16, 8)), layout("D", (3, 2, 8, 8)), configuration=TINY)
    found, slots = stacks_of(step)
    assert slots[0] == A.pointer
    table = device.fetch(int(found["a"]["table"]), 6, np.uint64)
    assert table.tolist() == [384 * i for i in (0, 1, 4, 5, 8, 9)]


def test_planes_count_for_the_alignment(gpu):
    planes = [layout(name, (2, 1, 1), (1, 1, 1)) for name in "ABD"]
    (step,), _ = steps_of(*planes, form="planar", algorithm="fused")
    assert "WIDTH = 2;" in step.module.source


def test_operands_that_kernels_cannot_read_are_copied_to_the_workspace_first(gpu):
    every_other = layout("A", (3, 8, 16), (256, 32, 2))
    steps, memory = steps_of(every_other, layout("B", (16, 8)), layout("D", (3, 8, 8)), configuration=TINY)
    assert [step.kernel for step in steps] == ["copy2", "batched_warp"]
    assert memory.nbytes["work"] >= 2 * 3 * 8 * 16
    assert stacks_of(steps[1])[1][0] == Address("work")
    pairs = [layout(name, (3, 8, 8, 2)) for name in "ABD"]
    steps, _ = steps_of(*pairs, form="interleaved", algorithm="calls", configuration=TINY)
    assert [step.kernel for step in steps] == ["copy2"] * 2 + ["batched_warp"] * 4 + ["copy2"]
    odd = layout("A", (3, 8, 8, 2), alignment=2)
    steps, _ = steps_of(odd, *pairs[1:], form="interleaved", configuration=TINY)
    assert [step.kernel for step in steps] == ["copy2", "batched_warp"]


def test_the_counts_of_a_kernels_ints_are_limited(gpu):
    def launched(batch, M, N, K, **options):
        A, B, D = (layout(x, s) for x, s in (("A", (batch, M, K)), ("B", (batch, K, N)), ("D", (batch, M, N))))
        return steps_of(A, B, D, **options)[0]

    with pytest.raises(InputError, match="split the batch"):
        launched(2**22, 32, 32, 32, configuration=Small(), kernel="magma-small")
    with pytest.raises(InputError, match="is the most"):
        launched(2**31 - 1, 1, 1, 1, configuration=TINY)
    block = Block((16, 16, 16), (64, 64, 64), (16, 8), 1, 2, True)
    for sizes, contiguous in (((1, 2**14, 2**14, 64), "true"), ((2, 2**15, 2**15, 64), "false")):
        (step,) = launched(*sizes, configuration=block)
        assert f"CONTIGUOUS = {contiguous}" in step.module.source


# --- calls
def odd(x):
    """A copy of an array at an odd multiple of two bytes."""
    result = np.zeros(x.size + 1, np.float16)[1:].reshape(x.shape)
    result[...] = x
    return result


CALLS = {"layout": "interleaved", "algorithm": "calls"}
UNUSUAL = {
    "two strides": (lambda draw: (draw(3, 4, 9, 21)[:, :2], draw(1, 2, 21, 13)), {}),
    "no contiguous lines": (lambda draw: (draw(3, 9, 42)[..., ::2], draw(21, 13)), {}),
    "unaligned pairs": (lambda draw: (odd(draw(3, 9, 21, 2)), draw(3, 21, 5, 2)), {"layout": "interleaved"}),
    "four calls": (
        lambda draw: (draw(3, 9, 21, 2), draw(3, 21, 5, 2)),
        {"layout": "interleaved", "algorithm": "calls"},
    ),
}
"""Operands by a function that draws, and options, of calls whose steps copy operands or read a table"""


@needs_compiler
@pytest.mark.parametrize("name", UNUSUAL)
def test_copied_and_uneven_operands_have_the_emulators_bits_also_in_repeated_calls(waited, name):
    rng, (make, options) = np.random.default_rng(8), UNUSUAL[name]
    function = "hcgemm" if options else "hgemm"
    for _ in range(2):
        A, B = make(partial(hostile, rng))
        want = getattr(batched, function)(A, B, **options, **MMA)
        D = np.zeros(want.shape, np.float16)
        given = Foreign(A, 1), Foreign(B, 1)
        assert getattr(gpu_batched, function)(*given, out=(out := Foreign(D, 1)), **options) is out
        assert (codes(D) == codes(want)).all()
    assert not waited


@needs_compiler
def test_lists_and_pointers_wait_for_their_streams_and_are_broadcast(waited):
    rng = np.random.default_rng(7)
    A, B = hostile(rng, 2, 5, 7), hostile(rng, 3, 2, 7, 3)
    want = batched.hgemm(A, B, **MMA)
    D = np.zeros(want.shape, np.float16)
    lists = [Foreign(x, 7 + i) for i, x in enumerate(A)]
    assert gpu_batched.hgemm(lists, Foreign(B, 3), out=(out := Foreign(D, 1)), configuration=TINY) is out
    assert (codes(D) == codes(want)).all()
    assert {producer for consumer, producer in waited if consumer == 0} == {3, 7, 8}
    assert {consumer for consumer, _ in waited if consumer} == {3, 7, 8}
    waited.clear()
    addresses = np.array([x.ctypes.data for x in A])
    D[...] = 0
    pointers = Pointers(Foreign(addresses, 9), (5, 7), 7, 2, lists)
    gpu_batched.hgemm(pointers, Foreign(B), out=Foreign(D), configuration=TINY)
    assert (codes(D) == codes(want)).all()
    assert {producer for consumer, producer in waited if consumer == 0} == {7, 8, 9}


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 5, 4, 2), (3, 1, 4, 2), (3, 5, 1, 2), (1, 1, 1, 2)])
def test_strides_of_axes_of_length_1_are_arbitrary(gpu, shape):
    rng = np.random.default_rng(5)
    batch, M, N, _ = shape
    A, B = hostile(rng, batch, M, 6, 2), hostile(rng, batch, 6, N, 2)
    want = batched.hcgemm(A, B, **MMA)
    odd = [7 * 2 if n == 1 else step for n, step in zip(shape, np.zeros(shape, np.float16).strides, strict=True)]
    D = np.lib.stride_tricks.as_strided(np.zeros(1000, np.float16), shape, odd)
    gpu_batched.hcgemm(Foreign(A), Foreign(B), out=Foreign(D), configuration=TINY)
    assert (codes(D) == codes(want)).all()


@needs_compiler
@pytest.mark.parametrize("kernel", ["tensor", "magma-small"])
def test_empty_products_are_empty_or_zero(gpu, kernel):
    for batch, M, N, K in ((0, 2, 2, 2), (2, 0, 3, 2), (2, 3, 0, 2)):
        A, B, D = (np.zeros((batch, *s), np.float16) for s in ((M, K), (K, N), (M, N)))
        assert gpu_batched.hgemm(Foreign(A), Foreign(B), out=(out := Foreign(D)), kernel=kernel) is out
    A, B, D = np.zeros((2, 3, 0), np.float16), np.zeros((2, 0, 3), np.float16), np.ones((2, 3, 3), np.float16)
    gpu_batched.hgemm(Foreign(A), Foreign(B), out=Foreign(D), kernel=kernel)
    assert not codes(D).any()


# --- refusals
A, BIG = np.ones((2, 4, 4), np.float16), np.zeros((2, 8, 16), np.float16)
PAIR = np.ones((2, 4, 4, 2), np.float16)
ODD = np.zeros(2 * 4 * 4 * 2 + 1, np.float16)[1:].reshape(2, 4, 4, 2)
PLACES = np.zeros(2, np.uint64)
hgemm = partial(gpu_batched.hgemm, configuration=TINY)


def refused(function, options):
    return function(Foreign(A), Foreign(A), out=Foreign(A), **options)


REFUSED = {
    **{
        said: partial(refused, *given)
        for *given, said in (
            (gpu_batched.hgemm, {"transa": "X"}, "transa"),
            (gpu_batched.hgemm, {"transb": np.ones((3, 3))}, "transb array"),
            (gpu_batched.hgemm, {"configuration": "block block=64x64"}, "block = .64, 64. must be 3 integers"),
            (gpu_batched.hgemm, {"configuration": 3}, "is a int"),
            (gpu_batched.hgemm, {"beta": 1.0}, "needs C"),
            (gpu_batched.hgemm, {"configuration": "small threads=32"}, "kind 'small'"),
            (gpu_batched.hgemm, {"configuration": "warp warps=0"}, "warps = 0 must be a positive integer"),
            (gpu_batched.hcgemm, {"layout": "interleaved"}, "two parts"),
            (gpu_batched.hcgemm, {"layout": "planar"}, "its first axis|out must be|share"),
        )
    },
    "do not share K": lambda: hgemm(Foreign(A), Foreign(BIG)),
    **{
        said: partial(lambda D: hgemm(Foreign(A), Foreign(A), out=D), D)
        for D, said in (
            (Foreign(BIG[:, 3::-1, :4]), "without overlapping entries"),
            (Foreign(BIG[:, :4, :8:2]), "contiguous rows"),
            (Foreign(A), "shares memory with A"),
            (Foreign(BIG[:, :4, :5]), r"of shape \(2, 4, 4\)"),
            (Foreign(BIG[:, :4, :4].astype(np.float32)), "float32"),
            ([Foreign(BIG[0, :4, :4])] * 2, "a matrix twice"),
            (A.copy(), "in the CPU's memory"),
        )
    },
    "one aligned word": lambda: gpu_batched.hcgemm(Foreign(PAIR), Foreign(PAIR), out=Foreign(ODD)),
    **{
        said: partial(lambda X: hgemm(X, Foreign(A)), X)
        for X, said in (
            ([Foreign(A[0]), A[1]], "1 of them on the GPU"),
            ([Foreign(A[0]), Foreign(A[1].T)], "of 2 kinds"),
            ([Foreign(A)], r"of shape \(2, 4, 4\): give matrices"),
            ([Foreign(A[0].T)], "rows must be contiguous"),
            (Pointers(PLACES, (4, 4), 4), "in the GPU's memory"),
            (Pointers(Foreign(PLACES.astype(np.int32)), (4, 4), 4), "uint64 or int64"),
            (Pointers(Foreign(PLACES[::-1]), (4, 4), 4), "follow on one another"),
        )
    },
    "arrays? of pointers": lambda: gpu_batched.hcgemm(Pointers(Foreign(PLACES), (4, 4), 4), Foreign(PAIR)),
    "ld = 3": lambda: Pointers(PLACES, (4, 4), 3),
    "shape": lambda: Pointers(PLACES, (4,), 4),
    "aligned = 3": lambda: Pointers(PLACES, (4, 4), 4, 3),
}


@pytest.mark.parametrize("said", REFUSED)
def test_wrong_arguments_are_refused(gpu, said):
    with pytest.raises(InputError, match=said):
        REFUSED[said]()
