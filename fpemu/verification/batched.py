"""``fpemu verify batched``: the batched kernels against `fpemu.batched`, bit by bit.

Product `number` of a group has the size 1 + number // 4 (modulo the group's largest) in M, N, K or all three, by number
modulo 4. The other sizes, the batch, layouts, transposes, alpha, beta and the kernel's configuration are drawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu import batched, digests
from fpemu.errors import InputError, unknown_name
from fpemu.gpu.batched import configuration as conf
from fpemu.gpu.batched import products
from fpemu.gpu.batched.configuration import Block, Configuration, Packed, Small, Task, Warp
from fpemu.verification import paths
from fpemu.verification.cases import Case, Computed, DeviceArray, Draw, Placement, Result, codes
from fpemu.verification.paths import Functions
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import ProductSuite

Operands = tuple[NDArray[np.float16], NDArray[np.float16], NDArray[np.float16] | None]
CASES = 520
"""Products of a group that cover all sizes once"""
LARGEST = 130
SPECIAL = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF],
    np.uint16,
)
"""Zeros, subnormals, the smallest normal number, the largest, infinities, NaN"""
SETUPS = 10
"""Combinations of kernel, transposes and layouts that alternate in a group; each has a kernel to compile"""


@dataclass(frozen=True)
class Group:
    """Products of one kind."""

    name: str
    layout: str | None = None  # of complex numbers
    options: dict[str, Any] = field(default_factory=dict)  # arguments of `fpemu.batched`
    largest: int = LARGEST  # size
    kinds: tuple[str, ...] = ("block", "warp", "packed")  # of kernels

    @property
    def four_calls(self) -> bool:
        """Whether a complex product is four calls of real products."""
        return self.options.get("algorithm") == "calls"


def groups() -> list[Group]:
    """Return all kinds of products."""
    listed = []
    for accumulate in ("fp32", "fp16"):
        common = {"accumulate": accumulate}
        listed += [
            Group(f"hgemm {accumulate}", None, common),
            Group(f"hcgemm interleaved {accumulate}", "interleaved", common),
            Group(f"hcgemm interleaved, three products, {accumulate}", "interleaved", common | {"products": 3}),
            Group(f"hcgemm planar {accumulate}", "planar", common | {"algorithm": "fused"}),
            Group(f"hcgemm planar, four calls, {accumulate}", "planar", common | {"algorithm": "calls"}),
        ]
        for layout in (None, "interleaved", "planar"):
            name = f"magma-small {'hgemm' if layout is None else f'hcgemm {layout}'} {accumulate}"
            fused = {"algorithm": "fused"} if layout == "planar" else {}
            options = common | fused | {"kernel": "magma-small"}
            listed.append(Group(name, layout, options, conf.MOST_SMALL, ("small",)))
    return listed


@dataclass(frozen=True)
class _Setup:
    """What some products of a group have in common besides its options."""

    configuration: Configuration | None
    transposes: tuple[str, str]
    by_columns: tuple[bool, bool]  # whether A and B are stored by columns
    aligned: int  # a line's length in memory is a multiple of so many elements; 0: no gaps
    has_c: bool
    whole: bool = False  # a thread block of the product's size, whose kernel is for this size


def _setup(group: Group, number: int, seed: int) -> _Setup:
    index = number % SETUPS
    rng = np.random.default_rng([seed, zlib.crc32(group.name.encode()), 10**9 + index])
    transposes = str(_one(rng, "NTC")), str(_one(rng, "NTC"))
    by_columns = bool(rng.integers(2)), bool(rng.integers(2))
    aligned, has_c = int(_one(rng, (1, 1, 4, 8))), index % 3 == 2
    if "packed" in group.kinds and index == 9 and number // SETUPS % 4 == 0:
        return _Setup(Warp(1, 2, 1, 4), ("N", "N"), (False, False), 0, False)
    if "packed" in group.kinds and index == 8 and number // SETUPS % 2 == 0 and not group.four_calls:
        return _Setup(None, (transposes[0], "N"), (False, False), 0, False, whole=True)
    return _Setup(None if index == 0 else _configuration(rng, group), transposes, by_columns, aligned, has_c)


def draw(group: Group, number: int, seed: int) -> tuple[Case, Operands]:
    """Return a product of a group and its operands.

    The case's options are "batch", "configuration", "pointers" (whether the matrices are passed one by one), and
    "arguments" of `fpemu.batched`.
    """
    setup = _setup(group, number, seed)
    rng = np.random.default_rng([seed, zlib.crc32(group.name.encode()), number])
    sizes = [int(n) for n in rng.integers(1, group.largest + 1, 3)]
    size, axis = 1 + number // 4 % group.largest, number % 4
    M, N, K = [size] * 3 if axis == 3 else [size if i == axis else n for i, n in enumerate(sizes)]
    batch = int(rng.integers(1, 1 + max(2, min(40, 60000 // (M * N * K)))))
    arguments: dict[str, Any] = dict(zip(("transa", "transb"), setup.transposes, strict=True))
    special = float(_one(rng, (0.0, 0.0, 0.01)))
    shapes = [
        (M, K) if arguments["transa"] == "N" else (K, M),
        (K, N) if arguments["transb"] == "N" else (N, K),
        (M, N),
    ]
    layouts = zip(shapes, (*setup.by_columns, bool(rng.integers(2))), strict=True)
    A, B, C = (_operand(rng, batch, shape, group.layout, special, columns, setup.aligned) for shape, columns in layouts)
    if setup.has_c:
        complex_scalars = group.layout is not None and not group.four_calls and rng.random() < 0.5
        arguments |= {"alpha": 1.7 - 0.3j if complex_scalars else -0.6, "beta": 0.5j if complex_scalars else 1.25}
    configuration = setup.configuration
    if isinstance(configuration, Warp) and max(M, N, K) <= 8 and not group.four_calls and number % 2:
        configuration = Packed(configuration.warps)
    if setup.whole and max(M, N, K) <= (128 if group.layout is None else 96):
        configuration = _whole_block((M, N, K), number // (2 * SETUPS) % 7)
    pointers = not setup.whole and group.layout is None and rng.random() < 0.15
    options: dict[str, Any] = {"batch": batch, "pointers": pointers, "configuration": configuration}
    options["arguments"] = group.options | arguments
    alpha, beta = arguments.get("alpha", 1.0), arguments.get("beta", 0.0)
    case = Case(group, number, seed, (M, N, K), lead=((batch,),) * 3, alpha=alpha, beta=beta, options=options)
    return case, (A, B, C if setup.has_c else None)


def _one(rng: np.random.Generator, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def _operand(
    rng: np.random.Generator,
    batch: int,
    shape: tuple[int, int],
    layout: str | None,
    special: float,
    by_columns: bool,
    aligned: int,
) -> NDArray[np.float16]:
    """Draw numbers of many magnitudes, in lines longer than the matrix, or in columns."""
    rows, columns = shape
    lines, length = (columns, rows) if by_columns else (rows, columns)
    before, after = (int(n) * max(aligned, 1) for n in rng.integers(0, 3, 2))
    after += -(before + length + after) % max(aligned, 1)
    if not aligned:
        before = after = 0
    full: tuple[int, ...] = (batch, lines, before + length + after)
    full = (*full, 2) if layout == "interleaved" else (2, *full) if layout == "planar" else full
    x = (rng.standard_normal(full) * np.exp2(rng.integers(-9, 7, full))).astype(np.float16)
    replaced = rng.random(full) < special
    x.view(np.uint16)[replaced] = rng.choice(SPECIAL, int(replaced.sum()))
    part = slice(before, before + length)
    x = x[..., part, :] if layout == "interleaved" else x[..., part]
    if by_columns:
        x = np.swapaxes(x, -2, -3) if layout == "interleaved" else np.swapaxes(x, -1, -2)
    return x


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


def _configuration(rng: np.random.Generator, group: Group) -> Configuration:
    """Draw a configuration that is valid for every size."""
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
        count, stages = int(_one(rng, (1, 1, 2, 3))), int(_one(rng, (2, 2, 3)))
        direct, staged = bool(rng.integers(2)), bool(rng.integers(2))
        drawn = Block(tensor, (block[0], block[1], block[2]), threads, count, stages, direct, staged)
        with suppress(InputError):
            conf.validate(conf.fitted(drawn, task), task)
            if task.terms * block[0] * block[1] <= 64 * threads[0] * threads[1]:
                return drawn


class Batched(ProductSuite):
    """Verification of the batched kernels: `cases` products of each group, within a time limit of `seconds`."""

    name = "batched"
    about = (
        "products by every path of a caller (options.paths) compared with fpemu.batched, which emulates the"
        " instruction. A product is a function of seed, group and number. counts: products by kind of kernel;"
        " 'pointers': products of matrices passed one by one. digests: of small products, by number; facts.paths:"
        " products, outputs, mismatches and errors by path"
    )
    code = (
        *("batched", "simt", "gpu/batched", "schemes/base.py", "torch"),
        *("gpu/gemm/choice.py", "gpu/operation.py", "roofline/wmma.py"),
    )
    supported = paths.WITHOUT_PLAN
    kept = 4

    def __init__(
        self, seed: int = 0, cases: int = CASES, seconds: float | None = None, *, paths: Sequence[str] | None = None
    ) -> None:
        super().__init__(seed, paths, cases=cases, seconds=seconds)
        self.cases, self.seconds = cases, inf if seconds is None else seconds

    def groups(self) -> list[str]:
        return sorted(group.name for group in groups())

    def facts(self) -> dict[str, Any]:
        return {"architecture": products.arguments_of()["hardware"]}

    def numbers(self, group: str) -> Sequence[int]:
        largest = _group(group).largest
        return range(min(self.cases, 4 * largest) if largest < LARGEST else self.cases)

    def case(self, group: str, number: int) -> Case:
        return draw(_group(group), number, self.seed)[0]

    def paths_of(self, case: Case) -> list[str]:
        return [path for path in self.paths if _runs(path, case)]

    def on_gpu(self, case: Case, path: str) -> Computed:
        options, group = case.options, case.subject
        operands = draw(group, case.number, case.key)[1]
        layout = {} if group.layout is None else {"layout": group.layout}
        arguments, configuration = options["arguments"] | layout, options["configuration"]
        if path == "gradient":  # of op(A) op(B)
            names = ("transa", "transb")
            A, B, C = operands
            A, B = (X if arguments[t] == "N" else X.swapaxes(-1, -2) for X, t in zip((A, B), names, strict=True))
            operands, arguments = (A, B, C), arguments | dict.fromkeys(names, "N")
        multiply = products.hgemm if group.layout is None else products.hcgemm
        counts = {"default" if configuration is None else configuration.kind: 1}
        name = "hgemm" if group.layout is None else "hcgemm"
        functions = Functions(
            lambda A, B, C, **out: multiply(A, B, C, configuration=configuration, **arguments, **out),
            operator=lambda A, B, C: getattr(fpemu.torch, name)(A, B, C, **arguments),
        )
        if path == "host" and options["pointers"]:
            computed = _by_pointers(functions.multiply, case, operands)
            computed.counts = counts | {"pointers": 1}
            return computed
        shape: tuple[int, ...] = (options["batch"], *case.sizes[:2])
        shape = {"planar": (2, *shape), "interleaved": (*shape, 2)}.get(str(group.layout), shape)
        row = 2 if group.layout == "interleaved" else 1
        computed = paths.run(functions, path, operands, shape, np.float16, key=case.key, number=case.number, row=row)
        computed.counts = counts
        return computed

    def references(self, case: Case) -> dict[str, Result]:
        return {"fpemu.batched": self._emulate(case, products.arguments_of())}

    def replay(self, record: Record, outcome: Outcome, number: str) -> str:
        instruction = {"hardware": record.facts["architecture"], "instruction": "mma"}
        return digests.text(self._emulate(self.case(outcome.group, int(number)), instruction))

    def _emulate(self, case: Case, instruction: dict[str, Any]) -> NDArray[Any]:
        arguments, group = dict(case.options["arguments"]), case.subject
        arguments |= {} if arguments.get("kernel") == "magma-small" else instruction
        operands = draw(group, case.number, case.key)[1]
        if group.layout is None:
            return codes(batched.hgemm(*operands, **arguments))
        return codes(batched.hcgemm(*operands, layout=group.layout, **arguments))


def _by_pointers(multiply: Any, case: Case, operands: Operands) -> Computed:
    """Multiply lists of matrices, each at its own address; D is a list too in half of the cases."""
    draw = Draw(case.key, "pointers", case.number)

    def listed(X: Any) -> list[DeviceArray]:
        most = draw.pick((1, 8))  # 1: aligned
        return [DeviceArray(np.ascontiguousarray(x), tensor=False, place=Placement(draw.below(most))) for x in X]

    lists = [None if X is None else listed(X) for X in operands]
    given = [None if X is None else [x.array for x in X] for X in lists]
    if draw.below(2):
        return Computed(codes(np.asarray(multiply(*given).get())))
    D = listed(np.zeros((case.options["batch"], *case.sizes[:2]), np.float16))
    multiply(*given, out=[x.array for x in D])
    outside = sum(x.changed(outside=True) for x in D)
    return Computed(np.stack([x.read()[0] for x in D]), outside=outside)


def _runs(path: str, case: Case) -> bool:
    """Whether a path computes a product: a gradient those of real matrices without C."""
    return path != "gradient" or (case.subject.layout is None and "beta" not in case.options["arguments"])


def _group(name: str) -> Group:
    listed = {group.name: group for group in groups()}
    if name not in listed:
        raise unknown_name("group of batched products", name, listed)
    return listed[name]
