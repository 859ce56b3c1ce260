"""The kernels of `fpemu.gpu.gemm.wgmma.words`: schedules give the schemes' bits, and the texts compile."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import mma
from fpemu.gpu.gemm import base as records
from fpemu.gpu.gemm.wgmma import schedules, splits
from fpemu.gpu.gemm.wgmma import words as hopper
from fpemu.gpu.gemm.wgmma.schedules import CHUNK, K, Schedule, Tile
from fpemu.gpu.runtime import compiler
from fpemu.mma import KOrder
from fpemu.schemes import build, words
from tests.tiles import frames

SPEC = mma.spec("hopper", "fp16", "fp32")
needs_compiler = pytest.mark.skipif(
    compiler.compiler_missing() is not None, reason=compiler.compiler_missing() or "NVRTC is here"
)
TURNS = {"promote": 64, "step": 64}
RUN = [
    ("staged", {}, None),
    ("staged", {"stage": 128}, None),
    ("staged", {"products": ("rh", "hh", "hr")}, None),
    ("staged", {"accumulators": "band"}, None),
    ("ootomo", TURNS, None),
    ("ootomo", TURNS | {"promote": 128}, None),
    ("ootomo", {}, None),
    ("legemm", {}, None),
    ("fp16", {}, None),
    ("fp16", {"promote": 128}, None),
    ("fp16", {}, KOrder(promote=64)),
    ("staged", {}, KOrder(split=128)),
    ("fp16", {}, KOrder(split=64)),
]


def scheduled(name, options, order=None) -> Schedule | None:
    return schedules.schedule(build(name, options).lowering(SPEC, order))


def sliced(s: Schedule, A, B):
    """The sums of slices, added ascending."""
    length, step = A[0].shape[1], s.split or A[0].shape[1]
    parts = [slice(k, min(k + step, length)) for k in range(0, length, step)]
    return sum(multiplied(s, [x[:, at] for x in A], [x[at] for x in B]) for at in parts)


def multiplied(s: Schedule, A, B):
    """What ``hopper_gemm.cu`` computes from words (M, k) and (k, N): its loops, one instruction at a time."""
    c = s.constants()
    blocks_a_round = max(1, c["PROMOTE_BLOCKS"])
    length = s.block * blocks_a_round
    rounds = -(-A[0].shape[1] // length)

    def padded(x, axis):
        width = [(0, 0), (0, 0)]
        width[axis] = (0, rounds * length - x.shape[axis])
        return np.pad(x, width)

    A, B = [padded(x, 1) for x in A], [padded(x, 0) for x in B]
    steps = s.block // K

    def listed(products, turn):
        """Word of A, word of B and instruction of a block, in the order issued."""
        of = [
            (x // (turn // K) % len(products), x // (turn // K * len(products)) * (turn // K) + x % (turn // K))
            for x in range(len(products) * steps)
        ]
        return [(*products[p], k) for p, k in of]

    def run(total, instructions, block):
        for i, j, k in instructions:
            at = slice(block * s.block + k * K, block * s.block + (k + 1) * K)
            total = mma.execute(A[i][:, at], B[j][at], total, SPEC)
        return total

    zero = np.zeros((A[0].shape[0], B[0].shape[1]), np.float32)
    total, main, rest = zero, zero, zero
    instructions, corrections = listed(s.main, s.main_turn), listed(s.rest, s.rest_turn) if s.rest else []
    for block in range(rounds * blocks_a_round):
        for part in range(c["BLOCK_PROMOTIONS"]):
            first, last = (p * len(instructions) // c["BLOCK_PROMOTIONS"] for p in (part, part + 1))
            if c["PROMOTE_BLOCKS"] and block % blocks_a_round == 0:
                main = zero
            main = run(main, instructions[first:last], block)
            first, last = (p * len(corrections) // c["BLOCK_PROMOTIONS"] for p in (part, part + 1))
            rest = run(rest, corrections[first:last], block)
            if c["PROMOTE_BLOCKS"] and block % blocks_a_round == blocks_a_round - 1:
                total = total + main
    total = total if c["PROMOTE_BLOCKS"] else main
    return rest * np.float32(2.0**-s.exponent) + total if s.rest else total


@pytest.mark.parametrize(("name", "options", "order"), RUN)
def test_a_schedule_gives_the_bits_of_the_scheme_whatever_the_length(name, options, order):
    scheme, rng = build(name, options), np.random.default_rng(3)
    s = schedules.schedule(scheme.lowering(SPEC, order))
    assert s is not None
    for length in (1, 16, 40, 64, 130, 200, 448):
        A, B = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, length), (length, 7)))
        a, b = (
            words.prepare(X, who, scheme.rules(), "raise", scheme.scaling("raise"), name)
            for X, who in ((A, "A"), (B, "B"))
        )
        with np.errstate(all="ignore"):
            T = words.undo(sliced(s, a.words, b.words), a, b)
        D = fpemu.gemm(A, B, scheme=scheme, hardware=SPEC, order=order)
        assert (T.view(np.uint32) == D.view(np.uint32)).all(), (name, options, length)


@pytest.mark.parametrize(
    ("name", "options", "order"),
    [
        ("staged", {"stage": 48}, None),  # no whole part of 64
        ("staged", {"accumulators": "each"}, None),
        ("ootomo", {"promote": None, "step": None}, None),  # corrections one after the other over all of K
        ("ootomo", TURNS, KOrder(promote=64)),  # the corrections would be promoted too
        ("ootomo", TURNS, KOrder(split=256)),
        ("staged", {}, KOrder(split=100)),
        ("staged", {}, KOrder(split=128, join="descending")),
        ("ootomo", TURNS | {"combine_in": "fp64"}, None),
        ("bf16x3", {}, None),
    ],
)
def test_what_the_kernel_does_not_do_has_no_schedule(name, options, order):
    scheme = build(name, options)
    spec = SPEC if scheme.rules()[0].format is fpemu.FP16 else scheme.spec("hopper")
    assert hopper.kernel(scheme, spec, (100, 100, 100), order) is None


def test_the_tile_follows_the_size_and_the_accumulators():
    staged, ootomo = scheduled("staged", {}), scheduled("ootomo", TURNS)
    assert staged is not None
    assert ootomo is not None
    assert [hopper.choose((n, n, n), staged).columns for n in (2048, 4096, 8192)] == [256, 256, 256]
    assert [hopper.choose((n, n, n), staged).cluster for n in (1024, 2048, 4096, 8192)] == [1, 1, 2, 2]
    assert hopper.choose((8192, 8192, 8192), ootomo) == Tile(128)
    assert all(hopper.choose((n, n, n), scheduled("legemm", {})).columns <= 192 for n in (2048, 4096, 8192, 16384))
    assert hopper.choose((100, 8192, 64), staged).cluster == 1
    for n in (512, 1024):  # not many processors are idle
        tile = hopper.choose((n, n, n), staged)
        assert 120 <= -(-n // tile.rows) * -(-n // tile.columns) <= 132


def test_the_ring_fits_and_holds_a_block_at_least_twice_over_or_nearly():
    for name, options, _ in RUN:
        s = scheduled(name, options)
        for columns in hopper.columns(s):
            tile = Tile(columns)
            assert schedules.shared_bytes(tile) + 8 * columns + 256 <= schedules.SHARED
            assert schedules.stages(tile) > s.words * s.block // CHUNK


@pytest.mark.parametrize(
    ("name", "options", "order"),
    [
        ("legemm", {"step": 128}, None),
        ("ootomo", {"step": 128, "promote": None}, None),
        ("ootomo", {"step": 128, "promote": 128}, None),
        ("staged", {"stage": 128}, None),
        ("markidis", {}, KOrder(promote=128)),
        ("staged", {}, None),
    ],
)
def test_the_chosen_tile_has_the_stages_that_the_mainloop_requires(name, options, order):
    s, rng = scheduled(name, options, order), np.random.default_rng(1)
    block = s.constants()["BLOCK_CHUNKS"] * s.words
    sizes = [16, 64, 100, 2048, 8192, 17_024, 25_344]
    shapes = {tuple(int(n) for n in rng.choice(sizes, 3)) for _ in range(200)} | {(64, 17_024, 512)}
    for shape in shapes:
        kernel = hopper.kernel(build(name, options), SPEC, shape, order)
        if kernel.tile.halves:
            continue
        required = 2 * block if kernel.schedule.rest else block + 1  # as hopper_gemm.cu asserts
        assert schedules.stages(kernel.tile) >= required, (shape, kernel.name)


@needs_compiler
def test_the_kernels_compile_and_structures_are_those_of_numpy():
    def sizes(**layouts):
        return "".join(f"static_assert(sizeof({name}) == {size});\n" for name, size in layouts.items())

    s = scheduled("staged", {})
    text = schedules.source(s, Tile(32)) + sizes(Task=records.TASK.itemsize, Result=records.RESULT.itemsize)
    assert compiler.compile(text, "sm_90a")[:4] == b"\x7fELF"
    s = scheduled("ootomo", {})
    assert compiler.compile(schedules.source(s, Tile(32, cluster=1)), "sm_90a")[:4] == b"\x7fELF"
    text = splits.KINDS["halves"].source() + sizes(
        Operand=splits.OPERAND.itemsize, Operands=splits.OPERANDS.itemsize, Panel=splits.KINDS["halves"].panel_bytes
    )
    assert compiler.compile(text, "sm_90a")[:4] == b"\x7fELF"


@needs_compiler
def test_whole_rows_stay_in_registers():
    texts = [source for source in splits.sources() if "LOADS" in source]
    assert len(texts) == 2
    assert not any(frames(compiler.cubin(text, "sm_90a"))[0] for text in texts)


WIDEST = [
    ("staged", {}, 208),
    ("staged", {"stage": 128}, 192),
    ("ootomo", TURNS | {"promote": 128}, 128),
    ("legemm", {}, 192),
    ("fp16", {}, 256),
    ("fp16", {"promote": 128}, 208),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "widest"), WIDEST)
def test_no_chosen_tile_is_wider_than_the_widest(name, options, widest):
    s = scheduled(name, options)
    assert max(hopper.columns(s)) == widest
    tiles = {hopper.choose((128 * m, n, 64), s) for m in range(1, 40, 6) for n in range(32, 6000, 288)}
    assert {tile.columns for tile in tiles if not tile.halves} <= {*hopper.columns(s)}
    assert any(tile.halves for tile in tiles) == schedules.fits_halves(s)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "options", "widest"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] != "legemm")) for row in WIDEST],
)
def test_the_widest_tile_needs_no_local_memory(name, options, widest):
    s = scheduled(name, options)
    assert frames(compiler.compile(schedules.source(s, Tile(widest)), "sm_90a")) == [0]


@needs_compiler
def test_a_tile_in_halves_needs_no_local_memory():
    s = scheduled("staged", {})
    assert frames(compiler.compile(schedules.source(s, Tile(256, halves=True)), "sm_90a")) == [0]


@needs_compiler
def test_a_tile_that_is_wider_would_need_it():
    assert frames(compiler.compile(schedules.source(scheduled("legemm", {}), Tile(208)), "sm_90a"))[0] > 100
