"""The products of `fpemu verify batched`: each a function of (seed, group, number), for any machine to make again.

Product `number` of a group has the size 1 + number // 4 (modulo the group's largest) in M, N, K or all three, by number
modulo 4; the other sizes, the batch, layouts, transposes, alpha, beta and the kernel's configuration are drawn.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.batched import configuration as conf
from fpemu.gpu.batched.configuration import Block, Configuration, Packed, Small, Warp
from fpemu.gpu.batched.task import Task

LARGEST = 130
SPECIAL = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF],
    np.uint16,
)
"""Zeros, subnormals, the least normal number, the largest, infinities, NaN"""


@dataclass(frozen=True)
class Group:
    """Products of one kind."""

    name: str
    layout: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    largest: int = LARGEST
    kinds: tuple[str, ...] = ("block", "warp", "packed")

    @property
    def calls(self) -> bool:
        return self.options.get("algorithm") == "calls"


def groups() -> list[Group]:
    """All kinds of products."""
    found = []
    for accumulate in ("fp32", "fp16"):
        how = {"accumulate": accumulate}
        found += [
            Group(f"hgemm {accumulate}", None, how),
            Group(f"hcgemm interleaved {accumulate}", "interleaved", how),
            Group(f"hcgemm interleaved, three products, {accumulate}", "interleaved", how | {"products": 3}),
            Group(f"hcgemm planar {accumulate}", "planar", how | {"algorithm": "fused"}),
            Group(f"hcgemm planar, four calls, {accumulate}", "planar", how | {"algorithm": "calls"}),
        ]
        for layout in (None, "interleaved", "planar"):
            name = f"magma-small {'hgemm' if layout is None else f'hcgemm {layout}'} {accumulate}"
            fused = {"algorithm": "fused"} if layout == "planar" else {}
            options = how | fused | {"kernel": "magma-small"}
            found.append(Group(name, layout, options, conf.MOST_SMALL, ("small",)))
    return found


@dataclass(frozen=True)
class Case:
    """One product: its arguments."""

    A: NDArray[np.float16]
    B: NDArray[np.float16]
    C: NDArray[np.float16] | None
    options: dict[str, Any]
    configuration: Configuration | None
    sizes: tuple[int, int, int]
    pointers: bool
    """Real matrices are handed over one by one"""

    def __str__(self) -> str:
        made = "default" if self.configuration is None else conf.text(self.configuration)
        said = {k: v for k, v in self.options.items() if v not in ("N", "fp32")}
        return f"{self.sizes} of {self.A.shape} by {self.B.shape}, {said}, {made}"


SETUPS = 10
"""Kernels, transposes and layouts that a group's products take in turn; few, since each has a kernel to be compiled"""


@dataclass(frozen=True)
class Setup:
    """What some products of a group have in common, besides its options."""

    configuration: Configuration | None
    transposes: tuple[str, str]
    turned: tuple[bool, bool]
    """A's, B's lines are columns of the array that is passed"""
    aligned: int
    """Elements of which a line's length in memory is a multiple; 0: no gaps at all"""
    adds: bool
    whole: bool = False
    """By a block of the product's own size, which has a kernel for its sizes alone: flat or not, persistent or not"""


def setup(group: Group, number: int, seed: int) -> Setup:
    """The setup of a product."""
    which = number % SETUPS
    rng = np.random.default_rng([seed, zlib.crc32(group.name.encode()), 10**9 + which])
    transposes = str(_one(rng, "NTC")), str(_one(rng, "NTC"))
    turned, aligned, adds = (bool(rng.integers(2)), bool(rng.integers(2))), int(_one(rng, (1, 1, 4, 8))), which % 3 == 2
    if "packed" in group.kinds and which == 9 and number // SETUPS % 4 == 0:
        return Setup(Warp(1, 2, 1, 4), ("N", "N"), (False, False), 0, False)
    if "packed" in group.kinds and which == 8 and number // SETUPS % 2 == 0 and not group.calls:
        return Setup(None, (transposes[0], "N"), (False, False), 0, False, whole=True)
    return Setup(None if which == 0 else _configuration(rng, group), transposes, turned, aligned, adds)


def case(group: Group, number: int, seed: int) -> Case:
    """A product of a group."""
    made = setup(group, number, seed)
    rng = np.random.default_rng([seed, zlib.crc32(group.name.encode()), number])
    sizes = [int(n) for n in rng.integers(1, group.largest + 1, 3)]
    size, axis = 1 + number // 4 % group.largest, number % 4
    M, N, K = [size] * 3 if axis == 3 else [size if i == axis else n for i, n in enumerate(sizes)]
    batch = int(rng.integers(1, 1 + max(2, min(40, 60000 // (M * N * K)))))
    how: dict[str, Any] = dict(zip(("transa", "transb"), made.transposes, strict=True))
    special = float(_one(rng, (0.0, 0.0, 0.01)))
    shapes = [(M, K) if how["transa"] == "N" else (K, M), (K, N) if how["transb"] == "N" else (N, K), (M, N)]
    layouts = zip(shapes, (*made.turned, bool(rng.integers(2))), strict=True)
    A, B, C = (_operand(rng, batch, shape, group.layout, special, turned, made.aligned) for shape, turned in layouts)
    if made.adds:
        complex_scalars = group.layout is not None and not group.calls and rng.random() < 0.5
        how |= {"alpha": 1.7 - 0.3j if complex_scalars else -0.6, "beta": 0.5j if complex_scalars else 1.25}
    configuration = made.configuration
    if isinstance(configuration, Warp) and max(M, N, K) <= 8 and not group.calls and number % 2:
        configuration = Packed(configuration.warps)
    if made.whole and max(M, N, K) <= (128 if group.layout is None else 96):
        m, n, k = (-(-size // 16) * 16 for size in (M, N, K))
        warps = 2 if m * n <= 32 * 32 else 8
        threads = (16, 2 * warps) if all(side % (2 * warps) == 0 for side in (m, n, k)) else (16, 2)
        turn = number // (2 * SETUPS) % 7
        configuration = Block(
            (16, 16, 16),
            (m, n, k),
            threads,
            stages=1 + (turn in (2, 4, 6)),
            direct=True,
            staged=turn < 3,
            flat=turn >= 3,
            persistent=turn not in (0, 3),
            bulk=turn >= 5,
        )
    pointers = not made.whole and group.layout is None and rng.random() < 0.15
    return Case(A, B, C if made.adds else None, group.options | how, configuration, (M, N, K), pointers)


def _one(rng: np.random.Generator, what: Any) -> Any:
    return what[int(rng.integers(len(what)))]


def _operand(
    rng: np.random.Generator,
    batch: int,
    shape: tuple[int, int],
    layout: str | None,
    special: float,
    turned: bool,
    aligned: int,
) -> NDArray[np.float16]:
    """Numbers of many magnitudes, in lines that are longer than the matrix, or in columns."""
    rows, columns = shape
    lines, length = (columns, rows) if turned else (rows, columns)
    before, after = (int(n) * max(aligned, 1) for n in rng.integers(0, 3, 2))
    after += -(before + length + after) % max(aligned, 1)
    if not aligned:
        before = after = 0
    full: tuple[int, ...] = (batch, lines, before + length + after)
    full = (*full, 2) if layout == "interleaved" else (2, *full) if layout == "planar" else full
    x = (rng.standard_normal(full) * np.exp2(rng.integers(-9, 7, full))).astype(np.float16)
    wild = rng.random(full) < special
    x.view(np.uint16)[wild] = rng.choice(SPECIAL, int(wild.sum()))
    part = slice(before, before + length)
    x = x[..., part, :] if layout == "interleaved" else x[..., part]
    if turned:
        x = np.swapaxes(x, -2, -3) if layout == "interleaved" else np.swapaxes(x, -1, -2)
    return x


def _configuration(rng: np.random.Generator, group: Group) -> Configuration:
    """One that is valid for every size."""
    kind = _one(rng, ("block", "block", "warp") if "block" in group.kinds else group.kinds)
    if kind == "small":
        return Small(int(_one(rng, (32, 128, 256))))
    if kind == "warp":
        return Warp(*(int(_one(rng, n)) for n in ((1, 2), (1, 2), (1, 2), (2, 4, 5))))
    task = Task(130, 130, 130, complex=group.layout is not None, planar=group.layout == "planar")
    while True:
        tensor = _one(rng, ((16, 16, 16), (16, 16, 16), (32, 8, 16), (8, 32, 16)))
        block = tuple(t * int(_one(rng, (1, 2, 4))) for t in tensor)
        threads = int(_one(rng, (4, 8, 16))), int(_one(rng, (2, 4, 8, 16)))
        products, stages = int(_one(rng, (1, 1, 2, 3))), int(_one(rng, (2, 2, 3)))
        direct, staged = bool(rng.integers(2)), bool(rng.integers(2))
        made = Block(tensor, (block[0], block[1], block[2]), threads, products, stages, direct, staged)
        with suppress(InputError):
            conf.validate(conf.fitted(made, task), task)
            if task.terms * block[0] * block[1] <= 64 * threads[0] * threads[1]:
                return made
