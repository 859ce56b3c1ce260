"""The batched kernels on a simulated GPU: the bits of fpemu.batched; configurations, stacks, the table, the record."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import tomllib
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import simulated
import typer

from fpemu import InputError, batched, mma
from fpemu.gpu import callers, compiler, device, emulation, launches, matrices, properties
from fpemu.gpu.batched import call, cases, choice, products, stacks, suite, tuning
from fpemu.gpu.batched import configuration as conf
from fpemu.gpu.batched.configuration import Block, Packed, Small, Warp
from fpemu.gpu.batched.source import plan
from fpemu.gpu.batched.task import Task
from fpemu.gpu.matrices import Matrix

needs_compiler = pytest.mark.skipif(
    emulation.compiler() is None or not hasattr(os, "fork"), reason="no C++ compiler here, or no processes to fork"
)
needs_nvrtc = pytest.mark.skipif(device.compiler_missing() is not None, reason=str(device.compiler_missing()))
RECORD = Path(__file__).parent / "data" / "verified" / "h200_batched.json"
ORDINARY = Task(64, 64, 64, width=16)

# --- this processor in a GPU's place: what a warp does together, over the lanes of cuda_on_cpu.h
_TOGETHER = """
#include "mma_on_cpu.h"
template <class F> inline u32 pair_of(F half) { return half(0) | half(1) << 16; }
template <bool TRANSPOSED, int R> inline void rows_either(u32 (&r)[R], const unsigned char* row) {
  if (!TRANSPOSED) return rows_of_lanes(r, row);
  simulation::exchange(row, [&](auto given) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < R; i++)
      r[i] = pair_of([&](int e) -> u32 {
        const unsigned char* from = given(8 * i + 2 * (lane % 4) + e);
        if ((uintptr_t)from % 16) std::abort();
        unsigned short h;
        return std::memcpy(&h, from + 2 * (lane / 4), 2), h;
      });
  });
}
"""
_MULTIPLY = "void multiply_add(Sum& c, const u32 (&a)[4], const u32 (&b)[2]) { simulated_mma(c.word, a, b); }\n"
_OF_KERNEL = {
    "batched_block": """
void together_in_warp() { simulation::meet(); }
template <bool T> void load_rows(u32 (&r)[4], const u8* row) { rows_either<T>(r, row); }
template <bool T> void load_rows(u32 (&r)[2], const u8* row) { rows_either<T>(r, row); }
""",
    "batched_warp": """
u32 transposed(u32 x) {
  u32 made = 0;
  simulation::exchange(x, [&](auto given) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = 2 * (lane % 4);
    made = pair_of([&](int e) -> u32 { return given(4 * (t + e) + g / 2) >> 16 * (g % 2) & 0xFFFF; });
  });
  return made;
}
""",
    "batched_packed": """
bool any_of_warp(bool mine) {
  bool any = false;
  simulation::exchange(mine, [&](auto given) { for (int lane = 0; lane < 32; lane++) any |= given(lane); });
  return any;
}
""",
    "batched_small": "",
}


class Simulated:
    """As `fpemu.gpu.device.Module`."""

    folder = None

    def __init__(self, source, *, options=(), name="kernel.cu"):
        self.library = ctypes.CDLL(_built(source, name, Simulated.folder))

    def prepare(self, name, grid, block, *args, shared=0, overlap=False, keep=None):
        packed = [launches.pack(a) for a in args]
        pointers = np.array([p.ctypes.data for p in packed], np.uint64)
        assert shared <= 1 << 18
        return _Launch(getattr(self.library, f"run_{name}"), grid, block, pointers, (packed, keep))


class _Launch:
    def __init__(self, function, grid, block, pointers, keep):
        self.all = function, grid, block, pointers, keep

    def queue(self, stream=0):
        function, grid, block, pointers, _ = self.all
        function(ctypes.c_uint(grid), ctypes.c_uint(block), ctypes.c_void_p(pointers.ctypes.data))


@cache
def _built(source, name, folder):
    spec = mma.spec("hopper", "fp16", "fp16" if "FPEMU_HALF_SUMS 1" in source else "fp32", "mma")
    parts = ['#include "arithmetic.cuh"', emulation.definition(spec), _TOGETHER, source, _MULTIPLY, _OF_KERNEL[name]]
    stem = folder / f"kernel{len(list(folder.glob('*.cpp')))}"
    stem.with_suffix(".cpp").write_text("\n".join([*parts, f"FPEMU_KERNEL({name})"]))
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-w", "-ffp-contract=off"]
    folders = [f"-I{Path(__file__).parent}", f"-I{compiler.KERNELS}"]
    command = [
        emulation.compiler(),
        *flags,
        *folders,
        str(stem.with_suffix(".cpp")),
        "-o",
        str(stem.with_suffix(".so")),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return str(stem.with_suffix(".so"))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulated, "folder", tmp_path_factory.mktemp("kernels"))
        patch.setattr(device, "Module", Simulated)
        patch.setattr(device, "Buffer", simulated.Buffer)
        call.module.cache_clear()
        yield
    call.module.cache_clear()


def matrix(x):
    return Matrix(x.ctypes.data, x.dtype, x.shape, tuple(s // x.itemsize for s in x.strides), x)


def differing(A, B, C=None, *, configuration, layout=None, pointers=False, **options):
    """How many outputs are not the emulator's, of matrices between fences."""
    of_kernel = {} if options.get("kernel") == "magma-small" else {"hardware": "hopper", "instruction": "mma"}
    emulator = batched.hgemm if layout is None else batched.hcgemm
    how = {} if layout is None else {"layout": layout}
    want = emulator(A, B, C, **options, **of_kernel, **how)
    poison = np.zeros(want.shape, np.float16)
    poison.view(np.uint16)[...] = 0xABAB
    wrong = 0
    for at_end in (True, False):
        *operands, D = (None if X is None else fenced(X, at_end) for X in (A, B, C, poison))
        given = [None if X is None else matrix(X) for X in operands]
        if pointers:
            given = [stacks._pointers([matrix(x) for x in X], "X") for X in operands[:2]] + given[2:]
        ready = products.prepare(*given, out=matrix(D), layout=layout, configuration=configuration, **options)
        child = os.fork()  # it dies if a fence is touched
        if not child:
            for product in ready:
                product.queue()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "something outside of the matrices was touched"
        wrong += np.count_nonzero(D.view(np.uint16) != want.view(np.uint16))
    return wrong


def fenced(x, at_end):
    """A copy of an array between two pages that nobody may touch, at the end of its own or at the beginning; forked
    processes share it."""
    low, high = np.lib.array_utils.byte_bounds(x)
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    pages = -(-(high - low) // page)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    base = libc.mmap(None, (pages + 2) * page, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    for fence in (base, base + (pages + 1) * page):
        assert libc.mprotect(fence, page, 0) == 0
    start = base + page + (pages * page - (high - low) if at_end else 0)
    ctypes.memmove(start, low, high - low)
    return np.ndarray(x.shape, x.dtype, (ctypes.c_char * (high - low)).from_address(start), 0, x.strides)


def hostile(rng, *shape):
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 7, shape))).astype(np.float16)
    wild = rng.random(shape) < 0.01
    x.view(np.uint16)[wild] = rng.choice(cases.SPECIAL, int(wild.sum()))
    return x


@needs_compiler
def test_blocks_of_real_matrices_have_the_emulators_bits_at_any_size_and_alignment(gpu):
    rng = np.random.default_rng(1)
    block = Block((16, 16, 16), (32, 32, 32), (16, 4), 2, 2, direct=True, staged=True)
    for batch, M, N, K in ((3, 1, 1, 1), (2, 33, 35, 41), (3, 32, 17, 32)):
        full = hostile(rng, batch, M + 1, K + 2)
        A, B = full[:, 1:, 1 : K + 1], hostile(rng, batch, K, N | 1)[..., :N]
        assert differing(A, B, configuration=block) == 0, (M, N, K)
    A, B = hostile(rng, 3, 9, 21), hostile(rng, 3, 21, 13)
    assert differing(A, B, configuration=block, pointers=True) == 0


@needs_compiler
@pytest.mark.parametrize("layout", ["interleaved", "planar"])
def test_blocks_of_complex_matrices_transposed_and_added_to_c(gpu, layout):
    rng = np.random.default_rng(2)
    tensor = (8, 32, 16) if layout == "planar" else (32, 8, 16)
    block = Block(tensor, (32, 32, 16), (8, 8), 1, 2, direct=layout == "interleaved")
    shapes = [(2, *s, 2) if layout == "interleaved" else (2, 2, *s) for s in ((37, 19), (21, 37), (19, 21))]
    A, B, C = (hostile(rng, *shape) for shape in shapes)
    for products_ in (4, 3) if layout == "interleaved" else (4,):
        options = {"transa": "C", "transb": "T", "alpha": 1.7 - 0.3j, "beta": 0.25, "products": products_}
        fused = {"algorithm": "fused", "layout": layout, "configuration": block}
        assert differing(A, B, C, **options, **fused) == 0


@needs_compiler
def test_kernels_without_shared_memory_have_the_emulators_bits(gpu):
    rng = np.random.default_rng(3)
    A, B = hostile(rng, 9, 5, 7), hostile(rng, 9, 7, 3)
    for configuration in (Warp(1, 1, 1, 2), Packed(2)):
        assert differing(A, B, configuration=configuration, accumulate="fp16") == 0, configuration
    assert differing(A, B, configuration=Small(64), kernel="magma-small", accumulate="fp16") == 0
    A, B = hostile(rng, 2, 20, 33, 2), hostile(rng, 2, 33, 18, 2)
    assert differing(A, B, configuration=Warp(1, 2, 1, 3), layout="interleaved") == 0


@needs_compiler
@pytest.mark.parametrize("persistent", [False, True])
def test_flat_products_have_the_emulators_bits_and_leave_their_neighbours_alone(gpu, monkeypatch, persistent):
    monkeypatch.setattr(properties, "multiprocessors", lambda: 1)
    rng = np.random.default_rng(5)
    block = Block((16, 16, 16), (16, 32, 16), (16, 2), 1, 1, direct=True, flat=True, persistent=persistent)
    A, B = hostile(rng, 3, 9, 15), hostile(rng, 3, 15, 21)
    assert differing(A, B, configuration=block) == 0
    A, B = hostile(rng, 3, 9, 15, 2), hostile(rng, 3, 15, 21, 2)
    assert differing(A, B, configuration=block, layout="interleaved") == 0


@needs_compiler
def test_products_of_planar_arrays_can_be_four_calls(gpu):
    rng = np.random.default_rng(4)
    A, B, C = (hostile(rng, 2, 3, *shape) for shape in ((6, 5), (5, 4), (6, 4)))
    configuration = Warp(1, 1, 1, 2)
    assert differing(A, B, C, layout="planar", configuration=configuration, alpha=0.7, beta=-2.0) == 0


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_kernels_compile_for_gpus(arch):
    small = Block((16, 16, 16), (16, 16, 16), (8, 4), 2, 1, direct=True, staged=True)
    for task, configuration in (
        (Task(16, 16, 16, width=16), small), (Task(9, 9, 9, complex=True, width=4, plain=False), Warp(1, 1, 1, 4)),
        (Task(7, 7, 7), Packed()), (Task(3, 3, 3, complex=True, products=3, width=4, accumulate="fp16"), Small()),
    ):  # fmt: skip
        made = plan(task, configuration)
        assert compiler.compile(made.source, arch, name=made.name)


# --- configurations
@pytest.mark.parametrize(
    ("configuration", "task", "said"),
    [
        (Block(block=(64, 64, 40)), ORDINARY, "TC_K = 16 does not divide BLK_K = 40"),
        (Block(threads=(64, 1)), ORDINARY, "DIM_X = 64 does not divide BLK_M = 32"),
        (Block(threads=(8, 2)), ORDINARY, "is not a multiple of 32"),
        (Block(block=(64, 64, 32), stages=1), ORDINARY, "needs BLK_K = 32 to be K = 64"),
        (Block(stages=3), ORDINARY, "stages = 3 needs direct"),
        (Block(block=(256, 256, 256), threads=(16, 16), stages=2), ORDINARY, "bytes of shared memory"),
        (Block(products=16), ORDINARY, "barriers for 15"),
        (Block(staged=True), Task(64, 64, 64, complex=True, width=16), "not for interleaved"),
        (Packed(), ORDINARY, "8 is the longest side"),
        (Small(), ORDINARY, "32 is the longest side"),
        (Warp(warps=0), ORDINARY, "warps = 0 must be a positive integer"),
    ],
)
def test_a_configuration_is_refused_by_the_name_of_what_is_wrong(configuration, task, said):
    with pytest.raises(InputError, match=said):
        conf.validate(configuration, task)


def test_several_products_in_an_instruction_keep_to_its_sums():
    conf.validate(Packed(), Task(4, 4, 4), block_of=8)
    with pytest.raises(InputError, match="K = 3 lies across the 8 products"):
        conf.validate(Packed(), Task(3, 3, 3), block_of=8)


def test_lines_of_the_table_are_read_back_and_nonsense_is_refused():
    for task in (ORDINARY, tuning.task_of(7, False), tuning.task_of(40, True)):
        for c in tuning.candidates(task):
            assert conf.parse(conf.text(c)) == c
            conf.validate(c, task)
    for line in ("blok", "block tensro=1", "warp rows=x", ""):
        with pytest.raises(InputError):
            conf.parse(line)


def test_every_size_has_a_valid_configuration_and_the_table_only_valid_ones():
    for name, rows in choice.table().items():
        if name != "measured":
            for line in rows.values():
                conf.parse(line)
    for size in (*range(1, 131), 300):
        for is_complex in (False, True):
            task = tuning.task_of(size, is_complex)
            for found in (choice.choose(task, 1000), conf.fitted(choice.by_size(task), task)):
                conf.validate(found, task)


# --- stacks
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


def test_wrong_arguments_are_refused():
    A = matrix(np.zeros((2, 4, 4), np.float16))
    for options, said in (
        ({"transa": "X"}, "transa"), ({"transb": np.ones((3, 3))}, "transb 'ndarray'"),
        ({"configuration": "block block=64x64"}, "block has 3 numbers"), ({"configuration": 3}, "is a int"),
        ({"acumulate": "fp16"}, "accumulate"), ({"beta": 1.0}, "needs C"),
        ({"configuration": "small threads=32"}, "kind 'small'"), ({"layout": "interleaved"}, "two parts"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            products.prepare(A, A, out=A, **options)
    with pytest.raises(InputError, match="K = 4"):
        products.prepare(A, matrix(np.zeros((2, 3, 4), np.float16)), out=A)


# --- what users pass, on this machine's memory in the GPU's place
class Foreign:
    """An array of somebody's GPU library."""

    def __init__(self, x, stream=None):
        self.x = x
        self.__cuda_array_interface__ = {
            "shape": x.shape, "strides": x.strides, "typestr": x.dtype.str, "data": (x.ctypes.data, False),
            "version": 3, "stream": stream,
        }  # fmt: skip


def copied(X, to=None):
    """As `fpemu.gpu.matrices.copy`."""

    def seen(Y):
        raw = (ctypes.c_char * (1 << 16)).from_address(Y.pointer)
        return np.ndarray(Y.shape, Y.dtype, raw, 0, tuple(s * Y.dtype.itemsize for s in Y.strides))

    if to is None:
        x = np.array([seen(matrices.Matrix(X.pointer + X.dtype.itemsize * sum(
            s * i for s, i in zip(X.strides, at, strict=True)), X.dtype, (), ()))[()] for at in np.ndindex(X.shape)],
            X.dtype).reshape(X.shape)  # fmt: skip
        return matrix(x)
    seen(to)[...] = seen(X)
    return to


@pytest.fixture
def here(gpu, monkeypatch):
    """Everything that `hgemm` asks of a GPU; the streams that were waited for."""
    waited = []
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    monkeypatch.setattr(device, "entered", nullcontext)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    monkeypatch.setattr(callers, "ordinal", lambda pointer: 0)
    monkeypatch.setattr(callers, "wait_for", lambda X: None)
    monkeypatch.setattr(callers, "_after", lambda waits, waited_for: waited.append((waits, waited_for)))
    monkeypatch.setattr(matrices, "copy", copied)
    choice.limits.cache_clear()
    yield waited
    choice.limits.cache_clear()


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
        (big[:, 3::-1, :4], "negative strides"), (big[:, :4, :8:2], "contiguous rows"), (A, "shares memory with A"),
        (np.broadcast_to(big[:1, :4, :4], (2, 4, 4)), "place of its own"), (big[:, :4, :5], "out has shape"),
        (big[:, :4, :4].astype(np.float32), "float32"), ([big[0, :4, :4]] * 2, "a matrix twice"),
    ):  # fmt: skip
        out = [Foreign(x) for x in D] if isinstance(D, list) else Foreign(D)
        with pytest.raises(InputError, match=said):
            products.hgemm(Foreign(A), Foreign(B), out=out, configuration=TINY)
    odd = np.zeros(2 * 4 * 4 * 2 + 1, np.float16)[1:].reshape(2, 4, 4, 2)
    pair = Foreign(np.ones((2, 4, 4, 2), np.float16))
    with pytest.raises(InputError, match="one aligned word"):
        products.hcgemm(pair, pair, out=Foreign(odd))


@needs_compiler
def test_operands_that_are_no_matrices_of_the_gpus_are_refused(here):
    A, places = np.ones((2, 4, 4), np.float16), np.zeros(2, np.uint64)
    for X, said in (
        ([Foreign(A[0]), A[1]], "1 of them on the GPU"), ([Foreign(A[0]), Foreign(A[1].T)], "of 2 kinds"),
        ([Foreign(A)], r"of shape \(2, 4, 4\)"), ([Foreign(A[0].T)], "rows must be contiguous"),
        (stacks.Pointers(places, (4, 4), 4), "in the GPU's memory"),
        (stacks.Pointers(Foreign(places.astype(np.int32)), (4, 4), 4), "uint64 or int64"),
        (stacks.Pointers(Foreign(places[::-1]), (4, 4), 4), "follow on one another"),
    ):  # fmt: skip
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
        return call.prepare(*operands, call.Arithmetic(), call.Scaling(), configuration)

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


# --- the record and the table
def test_the_record_has_no_mismatch_and_its_products_can_be_emulated_again():
    if not RECORD.exists():
        pytest.skip("no record")
    record = json.loads(RECORD.read_text())
    assert record["mismatches"] == record["failed"] == 0
    assert [g["group"] for g in record["groups"]] == [g.name for g in cases.groups()]
    for entry in record["groups"]:
        kept = entry["replay"][0]
        assert suite.replay(entry, kept, record["seed"], record["architecture"]) == kept["digest"], entry["group"]


def test_tune_refuses_sizes_that_are_none(capsys):
    from fpemu.cli import tune

    for text in ("x", "9-2", "0-3", "2000"):
        with pytest.raises(InputError, match="--sizes"):
            tune._sizes(text)
    assert tune._sizes("2-4,8") == [2, 3, 4, 8]
    with pytest.raises(InputError):
        tune._forms("rael")


def test_an_interrupted_sweep_goes_on_and_writes_its_table_at_last(monkeypatch, tmp_path):
    from fpemu.cli import tune

    monkeypatch.setattr(tune, "missing", lambda: None)
    monkeypatch.setattr(products, "need_gpu", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: {"gpu": "NVIDIA H200", "nvrtc": "13.0"})
    monkeypatch.setattr(tuning, "compile_all", lambda tasks: list(tasks))
    out, seen = tmp_path / "t.toml", []

    def measure(size, complex, batch):
        if size == 8 and not out.exists() and 8 not in seen:
            seen.append(8)
            raise KeyboardInterrupt
        seen.append(size)
        return [tuning.Measured(*tuning.place(size, complex), "warp rows=1 columns=1 steps=1 warps=8", 1.0)]

    monkeypatch.setattr(tuning, "measure", measure)
    how = {"sizes": "7-9", "forms": "real", "batch": 10, "out": str(out)}
    with pytest.raises(typer.Exit) as ended:
        tune.batched(**how)
    assert (ended.value.exit_code, out.exists(), seen) == (130, False, [7, 8])
    tune.batched(**how)
    assert seen == [7, 8, 8, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["t.toml"]
    assert set(tomllib.loads(out.read_text())) == {"measured", "real 2", "real 16"}
