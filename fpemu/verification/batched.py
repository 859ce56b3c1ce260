"""``fpemu verify batched``: the batched kernels against `fpemu.batched`, bit by bit.

Product `number` of a group has the size 1 + number // 4 (modulo the group's largest) in M, N, K or all three, by number
modulo 4. The other sizes, the batch, layouts, transposes, alpha, beta and the kernel's configuration are drawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fpemu.errors import unknown_name
from fpemu.gpu.batched import Block, Packed, Small, Warp
from fpemu.verification.cases import Array, Case, Computed, Draw, Operands, Shape, codes
from fpemu.verification.paths import POISON, WITHOUT_PLAN, Call, Memory
from fpemu.verification.suite import Group, ProductSuite

CASES = 520
"""Products of a group that cover all sizes once"""
SPECIAL = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF],
    np.uint16,
)
"""Zeros, subnormals, the smallest normal number, the largest, infinities, NaN"""
SETUPS = 10
"""Combinations of kernel, transposes and layouts that alternate in a group; each has a kernel to compile"""
_CONFIGURATIONS: tuple[Any, ...] = (
    Block((16, 16, 16), (32, 32, 32), (16, 4), 2, 2, direct=True, staged=True),
    Block((16, 16, 16), (64, 32, 16), (16, 8), 1, 3, direct=True),
    Block((16, 16, 16), (16, 16, 64), (8, 4), 3, 2, staged=True),
    Block((16, 16, 16), (16, 64, 32), (8, 8), 1, 3),
    Block((32, 8, 16), (32, 32, 16), (8, 8), 1, 2, direct=True),
    Block((8, 32, 16), (32, 32, 16), (8, 8), 1, 2, staged=True),
    Warp(1, 2, 1, 4),
    Warp(2, 1, 2, 5),
    Warp(1, 1, 1, 2),
)
"""Configurations that are valid for every size and layout"""


@dataclass(frozen=True)
class Kind:
    """Products of one kind."""

    name: str
    layout: str | None  # of complex numbers
    options: dict[str, Any] = field(hash=False)  # arguments of `fpemu.batched`

    @property
    def four_calls(self) -> bool:
        """Whether a complex product is four calls of real products."""
        return self.options.get("algorithm") == "calls"

    @property
    def small(self) -> bool:
        """Whether the kernel is magma-small."""
        return "kernel" in self.options

    @property
    def largest(self) -> int:
        """Largest size."""
        return 32 if self.small else 130


def _kinds() -> Iterator[Kind]:
    small = {"kernel": "magma-small"}
    for accumulate in ("fp32", "fp16"):
        common = {"accumulate": accumulate}
        fused = common | {"algorithm": "fused"}
        yield Kind(f"hgemm {accumulate}", None, common)
        yield Kind(f"hcgemm interleaved {accumulate}", "interleaved", common)
        yield Kind(f"hcgemm interleaved, three products, {accumulate}", "interleaved", common | {"products": 3})
        yield Kind(f"hcgemm planar {accumulate}", "planar", fused)
        yield Kind(f"hcgemm planar, four calls, {accumulate}", "planar", common | {"algorithm": "calls"})
        yield Kind(f"magma-small hgemm {accumulate}", None, common | small)
        yield Kind(f"magma-small hcgemm interleaved {accumulate}", "interleaved", common | small)
        yield Kind(f"magma-small hcgemm planar {accumulate}", "planar", fused | small)


KINDS = {kind.name: kind for kind in sorted(_kinds(), key=lambda kind: kind.name)}
"""All kinds of products by name"""


@lru_cache(maxsize=1)
def draw(group: Kind, number: int, seed: int) -> tuple[Case, Operands]:
    """Return a product of a group and its operands.

    The case's options are "batch", "configuration", "pointers" (whether the matrices are passed one by one), and
    "arguments" of `fpemu.batched`.
    """
    # kernel, transposes and layouts: those of a setup
    index, name = number % SETUPS, zlib.crc32(group.name.encode())
    rng = np.random.default_rng([seed, name, 10**9 + index])
    transa, transb = str(_one(rng, "NTC")), str(_one(rng, "NTC"))
    by_columns = bool(rng.integers(2)), bool(rng.integers(2))
    aligned, has_c = int(_one(rng, (1, 1, 4, 8))), index % 3 == 2
    some = tuple(map(Small, (32, 128, 256))) if group.small else _CONFIGURATIONS
    if group.four_calls:  # a case compiles up to eight kernels; a Block takes 1.6 s, a Warp 0.1 s
        some = tuple(c for c in some if isinstance(c, Warp))
    configuration = None if index == 0 else _one(rng, some)
    gaps, whole = True, index == 8 and number // SETUPS % 2 == 0 and not (group.four_calls or group.small)
    if index == 9 and number // SETUPS % 4 == 0 and not group.small:
        configuration, transa, transb, gaps = Warp(1, 2, 1, 4), "N", "N", False
    elif whole:
        configuration, transb, gaps = None, "N", False
    if not gaps:
        by_columns, has_c = (False, False), False

    rng = np.random.default_rng([seed, name, number])
    sizes = [int(n) for n in rng.integers(1, group.largest + 1, 3)]
    size, axis = 1 + number // 4 % group.largest, number % 4
    M, N, K = [size] * 3 if axis == 3 else [size if i == axis else n for i, n in enumerate(sizes)]
    batch = int(rng.integers(1, 1 + max(2, min(40, 60000 // (M * N * K)))))
    arguments: dict[str, Any] = {**group.options, "transa": transa, "transb": transb}
    special = float(_one(rng, (0.0, 0.0, 0.01)))
    shapes = (M, K) if transa == "N" else (K, M), (K, N) if transb == "N" else (N, K), (M, N)
    columns = (*by_columns, bool(rng.integers(2)))
    A, B, C = (
        _operand(rng, (batch, *shape), group.layout, special, by_column, aligned if gaps else 0)
        for shape, by_column in zip(shapes, columns, strict=True)
    )
    if has_c:
        complex_scalars = group.layout is not None and not group.four_calls and rng.random() < 0.5
        arguments |= {"alpha": 1.7 - 0.3j if complex_scalars else -0.6, "beta": 0.5j if complex_scalars else 1.25}
    if isinstance(configuration, Warp) and max(M, N, K) <= 8 and not group.four_calls and number % 2:
        configuration = Packed(configuration.warps)
    if whole and max(M, N, K) <= (128 if group.layout is None else 96):
        configuration = _whole_block((M, N, K), number // (2 * SETUPS) % 7)
    pointers = not whole and group.layout is None and rng.random() < 0.15
    counts = ["default" if configuration is None else configuration.kind, *["pointers"] * pointers]
    options = {"batch": batch, "pointers": pointers, "configuration": configuration, "arguments": arguments}
    scalars: dict[str, Any] = {name: arguments[name] for name in ("alpha", "beta") if has_c}
    case = Case(group, number, seed, (M, N, K), lead=((batch,),) * 3, options=options | {"counts": counts}, **scalars)
    return case, (A, B, C if has_c else None)


def _one(rng: np.random.Generator, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def _operand(
    rng: np.random.Generator, shape: Shape, layout: str | None, special: float, by_columns: bool, aligned: int
) -> Array:
    """Draw a batch of numbers of many magnitudes, in lines longer than the matrix, or in columns."""
    batch, lines, length = (shape[0], *shape[:0:-1]) if by_columns else shape
    before, after = (int(n) * max(aligned, 1) for n in rng.integers(0, 3, 2))
    after += -(before + length + after) % max(aligned, 1)
    if not aligned:
        before = after = 0
    full: Shape = (batch, lines, before + length + after)
    full = (*full, 2) if layout == "interleaved" else (2, *full) if layout == "planar" else full
    x = (rng.standard_normal(full) * np.exp2(rng.integers(-9, 7, full))).astype(np.float16)
    replaced = rng.random(full) < special
    x.view(np.uint16)[replaced] = rng.choice(SPECIAL, int(replaced.sum()))
    axis = -2 if layout == "interleaved" else -1
    x = np.moveaxis(np.moveaxis(x, axis, -1)[..., before : before + length], -1, axis)
    return np.swapaxes(x, axis, axis - 1) if by_columns else x


def _whole_block(sizes: tuple[int, int, int], turn: int) -> Block:
    """Return a thread block of the product's size."""
    m, n, k = (-(-size // 16) * 16 for size in sizes)
    warps = 2 if m * n <= 32 * 32 else 8
    threads = (16, 2 * warps) if all(side % (2 * warps) == 0 for side in (m, n, k)) else (16, 2)
    return Block(
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


@dataclass
class Batched(ProductSuite):
    """Verification of the batched kernels: `cases` products of each group."""

    name = "batched"
    about = (
        "products compared with fpemu.batched, which emulates the instruction. counts: outputs by path; products by"
        " kind of kernel; 'pointers', products of matrices passed one by one. digests: of small products, by number"
    )
    supported = WITHOUT_PLAN
    kept = 4
    decisive = ("cases",)
    cases: int = CASES

    @cached_property
    def groups(self) -> dict[str, Group]:
        return {n: Group(range(min(self.cases, 4 * k.largest if k.small else self.cases))) for n, k in KINDS.items()}

    def case(self, group: str, number: int) -> Case:
        if group not in KINDS:
            raise unknown_name("group of batched products", group, KINDS)
        return draw(KINDS[group], number, self.seed)[0]

    def product(self, case: Case, hardware: Any, recorded: Any = None) -> Call:
        group, (M, N, _), chosen = case.subject, case.sizes, case.options
        complex_numbers, pairs = group.layout is not None, group.layout == "interleaved"
        lines = (2,) * (group.layout == "planar") + (chosen["batch"], M, N + case.number % 2) + (2,) * pairs
        full = np.zeros(lines, np.float16)
        like = full[..., :N, :] if pairs else full[..., :N]
        options = chosen["arguments"] | ({"layout": group.layout} if complex_numbers else {})
        emulation = options if group.small else {**options, "hardware": hardware, "instruction": "mma"}
        function = "batched.hcgemm" if complex_numbers else "batched.hgemm"
        on_gpu, operands = {"configuration": chosen["configuration"]}, draw(group, case.number, case.key)[1]
        placed: dict[str, Any] = {"on_gpu": on_gpu, "unit": 1 + pairs, "counts": chosen["counts"]}
        if group.four_calls and case.number % 5:  # PyTorch's operator runs the default configuration, a Block
            placed["paths"] = WITHOUT_PLAN[:-1]
        return _Batch(case, function, operands, like, options, emulation, **placed)


class _Batch(Call):
    """A product of batches, which some host calls pass as lists of matrices."""

    def compute(self, path: str) -> Computed:
        """Compute the product by a path, or multiply lists of matrices, each at its own address."""
        if path != "host" or not self.case.options["pointers"]:
            return super().compute(path)
        draw = Draw(self.case.key, "pointers", self.case.number)
        poison = np.full(self.like.shape, POISON << 8 | POISON, np.uint16).view(np.float16)
        lists = []
        for X in (*self.operands, poison):
            most = draw.pick((1, 8))  # 1: aligned
            lists.append(None if X is None else [Memory(np.ascontiguousarray(x), draw.below(most)) for x in X])
        *given, D = [None if X is None else [x.array(x.x, tensor=False) for x in X] for X in lists]
        self(*given, out=D)
        results = lists[-1] or []
        outside = sum(x.changed(x.x) for x in results)
        return Computed(codes(np.stack([x.view(x.x, x.read()) for x in results])), outside)
