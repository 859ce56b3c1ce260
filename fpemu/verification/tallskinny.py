"""``fpemu verify tallskinny``: the tall and skinny kernels against `fpemu.simt`, bit by bit.

Every size from 1 to 130 occurs as m, as k and as n; larger products follow. Operands are of the classes of
`fpemu.mma.operand_streams`: subnormals, overflow, cancellation, zeros of both signs, NaN and Inf among them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu import digests, simt
from fpemu.gpu import tallskinny
from fpemu.gpu.runtime import callers, compiler, device, properties
from fpemu.gpu.tallskinny import hopper, published
from fpemu.gpu.tallskinny.problem import KernelLaunch, Problem
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values
from fpemu.verification import paths, seeded
from fpemu.verification.cases import Case, Computed, Draw, Result, codes
from fpemu.verification.paths import Functions
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import ProductSuite, Progress

Format = Literal["fp32", "fp64"]
FORMATS: tuple[Format, ...] = ("fp32", "fp64")
KERNELS = ("V0", "V1", "V2", "V3", "opt 1", "opt 2", "TSM2 hopper", "ISM2 hopper")
MULTIPLY = "multiply"
"""Name of the groups that call `fpemu.gpu.tallskinny.multiply`, which chooses the kernel"""
LAYOUTS = ("columns", "rows", "columns padded", "rows padded", "columns odd", "rows odd", "spaced")
"""Memory layouts of a matrix. padded: with a leading dimension, a multiple of 16 bytes; odd: neither the leading
dimension nor the address is a multiple of 16 bytes"""
_COMBINATIONS = ((0, 0, 0), (1, 1, 1), (2, 2, 2), (4, 4, 4), (5, 5, 5), (6, 6, 6), (0, 1, 3), (3, 6, 0))
"""Layouts of A, B and C: few, since kernels are compiled for them"""
SWEPT = 130
_ROWS = (1, 31, 64, 130, 97, 8, 33, 256, 300)
_INNER = (2, 7, 16, 33, 64, 130)
_COLUMNS = (2, 3, 8, 16, 33)
_LARGER = """
1000x1000x16 4100x257x8 300x4000x4 20000x16x16 9999x2x2 5001x7x5 2049x513x2 700x96x40 10000x8x8 1x10000x16 640x640x1
12345x4x4 2500x33x3 515x2051x6
"""
LARGER = [tuple(map(int, sizes.split("x"))) for sizes in _LARGER.split()]
"""m, k and n of the products after the sweep"""
CASES = 3 * SWEPT + len(LARGER)
# t1, t2, t3: few, each is a kernel to compile
_TILES = ((256, 1, 4), (96, 3, 3), (64, 8, 2), (128, 16, 8), (32, 20, 1))
_BYTES = {"fp32": 4, "fp64": 8}  # of an element
_KINDS = tuple(kind for kind in streams.CLASSES if kind != "deep")


def case(fmt: str, number: int, seed: int) -> Case:
    """Return a product.

    Its options are "tiles" (t1, t2, t3) and "tcf" of the published kernels, and of the kernels for Hopper: "sms",
    the number of multiprocessors that they assume, which decides the rows of a thread (with 1 a single thread block
    computes all tiles); "rows" of a thread of TSM2, 0: the kernel's choice; "spread" of `hopper.ism2`.

    >>> [case("fp32", number, 0).sizes for number in (0, 387)]
    [(1, 3, 2), (130, 3, 64)]
    """
    draw = Draw(seed, "tall and skinny", fmt, number)
    if number < 3 * SWEPT:
        sizes = [draw.pick(_ROWS), draw.pick(_INNER), draw.pick(_COLUMNS)]
        sizes[number % 3] = number // 3 + 1
    else:
        sizes = list(LARGER[(number - 3 * SWEPT) % len(LARGER)])
    m, k, n = sizes
    kinds = draw.pick(_KINDS), draw.pick(_KINDS)
    if k > 16 and "any-bits" in kinds and number % 2:  # otherwise nearly every long sum is NaN
        kinds = "mixed", "mixed"
    layouts = tuple(LAYOUTS[index] for index in draw.pick(_COMBINATIONS))
    tiles = draw.pick([tiles for tiles in _TILES if tiles[1] <= n])
    key = draw.word()
    options = {
        "tiles": tiles,
        "tcf": draw.pick((1, 2, 3)),
        "sms": draw.pick((132, 132, 1)),
        "rows": draw.pick((0, 0, 0, 1)),
        "spread": draw.pick((0, 0, 1, 2)),
    }
    return Case(fmt, number, key, (m, n, k), kinds, layouts, options=options)


def operands(case: Case) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return A and B, values in C order."""
    m, n, k = case.sizes
    row = simt.SPECS[case.subject].replace(k=k)
    fmt = row.operand_formats[0]
    a = streams.operand(row, "A", case.kinds[0], Draw(case.key, "A").word(), 0, 1, m, k)
    b = streams.operand(row, "B", case.kinds[1], Draw(case.key, "B").word(), 0, 1, n, k)
    return np.ascontiguousarray(values(a, fmt)[0]), np.ascontiguousarray(values(b, fmt)[0].T)


def emulate(A: NDArray[Any], B: NDArray[Any], fmt: str) -> NDArray[Any]:
    """Return the codes of the product by `fpemu.simt`."""
    with np.errstate(all="ignore"):
        return codes(np.asarray(simt.gemm(A, B, fmt=fmt)))


def functions() -> Functions:
    """Return the functions by which a caller computes a product without naming a kernel."""
    return Functions(
        lambda A, B, C, **out: tallskinny.multiply(A, B, **out), operator=lambda A, B, C: fpemu.torch.multiply(A, B)
    )


@lru_cache(maxsize=CASES)
def _expected(fmt: str, number: int, seed: int) -> NDArray[Any]:
    return emulate(*operands(case(fmt, number, seed)), fmt)


@dataclass(frozen=True)
class Memory:
    """Position of a matrix in a flat array."""

    length: int  # of the array
    first: int  # index of element (0, 0)
    steps: tuple[int, int]  # elements from one row and from one column to the next

    @classmethod
    def of(cls, layout: str, shape: tuple[int, int], vector: int) -> Memory:
        """Return the memory of a layout; `vector` elements are 16 bytes."""
        rows, columns = shape
        if layout == "spaced":
            return cls(6 * rows * columns, 0, (6 * columns, 3))
        inner, outer = (rows, columns) if layout.startswith("columns") else (columns, rows)
        pitch, first = inner, 0
        if layout.endswith("padded"):
            pitch = -(-inner // vector) * vector + vector
        elif layout.endswith("odd"):
            pitch, first = inner + 1 + inner % 2, 1
        return cls(first + outer * pitch, first, (1, pitch) if layout.startswith("columns") else (pitch, 1))

    def moved(self, offset: int) -> Memory:
        """Return the same matrix so many elements later, with as much memory after it."""
        return Memory(self.length + 2 * offset, self.first + offset, self.steps)

    def view(self, flat: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
        """Return the matrix in a flat array."""
        size = flat.itemsize
        return np.lib.stride_tricks.as_strided(flat[self.first :], shape, tuple(s * size for s in self.steps))

    def arrange(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return a flat array that holds a matrix, NaN elsewhere."""
        flat = np.full(self.length, np.nan, x.dtype)
        self.view(flat, x.shape)[...] = x
        return flat


def memories(case: Case, *, moved: bool = False) -> tuple[Memory, Memory, Memory]:
    """Return the memory of A, B and C, of half of the cases at any multiple of the item size if `moved`."""
    m, n, k = case.sizes
    vector = 16 // _BYTES[case.subject]
    shapes = ((m, k), (k, n), (m, n))
    a, b, c = (Memory.of(layout, shape, vector) for layout, shape in zip(case.layouts, shapes, strict=True))
    draw = Draw(case.key, "memory")
    if not moved or draw.below(2):
        return a, b, c
    return a.moved(draw.below(vector)), b.moved(draw.below(vector)), c.moved(draw.below(vector))


def problem(case: Case, addresses: Sequence[int], owners: object = None, *, moved: bool = False) -> Problem:
    """Return the product of matrices whose memory begins at some addresses; moved: as in `memories`."""
    (m, n, k), size = case.sizes, _BYTES[case.subject]
    a, b, c = memories(case, moved=moved)
    at = [address + memory.first * size for address, memory in zip(addresses, (a, b, c), strict=True)]
    return Problem(case.subject, m, k, n, a.steps, b.steps, c.steps, (at[0], at[1], at[2]), owners)


def plan(kernel: str, case: Case, problem: Problem) -> KernelLaunch:
    """Return the launch of one of `KERNELS` with a case's parameters."""
    model, options = published.here(case.subject), case.options
    if kernel in ("V0", "V1"):
        return published.tsm2(problem, model, kernel)
    if kernel.startswith("V"):
        return published.tsm2(problem, model, kernel, *options["tiles"])
    if kernel.startswith("opt"):
        return published.ism2(problem, model, int(kernel[-1]), options["tcf"], *options["tiles"])
    if kernel == "TSM2 hopper":
        return hopper.tsm2(problem, options["sms"], **({"ROWS": options["rows"]} if options["rows"] else {}))
    return hopper.ism2(problem, options["sms"], options["tcf"], spread=options["spread"])


def run(kernel: str, case: Case) -> Computed:
    """Multiply by one of `KERNELS`, in memory that is poisoned before."""
    A, B = operands(case)
    memory, shape = memories(case, moved=True), (A.shape[0], B.shape[1])
    c = memory[2]
    buffers = [device.Buffer.of(m.arrange(X)) for m, X in zip(memory, (A, B), strict=False)]
    buffers.append(device.Buffer(c.length * A.itemsize))
    product = problem(case, [buffer.pointer for buffer in buffers], buffers, moved=True)
    buffers[2].fill(device.POISON)
    plan(kernel, case, product).run(product)
    flat = buffers[2].array(c.length, f"u{A.itemsize}")
    outside = np.ones(c.length, bool)
    c.view(outside, shape)[...] = False
    poison = np.frombuffer(bytes([device.POISON]) * A.itemsize, flat.dtype)[0]
    changed = int(np.count_nonzero(flat[outside] != poison))
    return Computed(np.ascontiguousarray(c.view(flat, shape)), outside=changed)


def kernels() -> list[str]:
    """Return those of `KERNELS` that the current GPU has."""
    return [name for name in KERNELS if device.capability() == (9, 0) or "hopper" not in name]


def sources(seed: int, numbers: Sequence[int], names: Sequence[str], fmt: str, *, moved: bool = False) -> list[str]:
    """Return the kernels of some products; moved: as in `memories`."""
    texts: dict[str, None] = {}
    for number in numbers:
        drawn = case(fmt, number, seed)
        where = problem(drawn, (2**20,) * 3, moved=moved)
        texts |= dict.fromkeys(plan(name, drawn, where).source for name in names)
    return list(texts)


def kernel_texts(seed: int) -> str:
    """Return a digest of the sources of the kernels of some aligned products on this GPU, comments left out."""
    texts = [file.read_text() for name in ("tallskinny*.cuh", "ism2*.cuh") for file in compiler.KERNELS.glob(name)]
    texts += [text for fmt in FORMATS for text in sources(seed, range(CASES), KERNELS, fmt)]
    stripped = {" ".join(re.sub(r"//[^\n]*|\s+", " ", text).split()) for text in texts}
    return hashlib.sha256("\n".join(sorted(stripped)).encode()).hexdigest()[:16]


class TallSkinny(ProductSuite):
    """Verification of the tall and skinny kernels on every `every`-th product; a group is a kernel in a format.

    huge: also matrices of more than 2^32 elements. Default of `names`: the kernels that the GPU has.
    """

    name = "tallskinny"
    about = (
        "fpemu.gpu.tallskinny compared with fpemu.simt.gemm on the CPU, in memory that is poisoned before. A product"
        " is a function of seed, format and number. mismatches: outputs that differ, and elements outside of C that"
        " changed. digests: of small products, by number. facts.texts: a digest of the kernels' sources. The groups"
        " 'multiply' are calls by every path of a caller (options.paths; facts.paths: products, outputs, mismatches and"
        " errors by path), the others launches of one kernel. The groups 'huge' are some rows of products of more than"
        " 2^32 elements; facts.products: kernel, (m, k, n), layout, outputs and mismatches; facts.skipped: sizes that"
        " exceed the GPU's memory"
    )
    code = ("simt", "gpu/tallskinny", "gpu/operation.py", "roofline", "torch")
    supported = paths.WITHOUT_PLAN
    kept = 12

    def __init__(
        self,
        seed: int = 0,
        every: int = 1,
        *,
        huge: bool = False,
        names: Sequence[str] | None = None,
        formats: Sequence[str] = FORMATS,
        paths: Sequence[str] | None = None,
    ) -> None:
        super().__init__(seed, paths, every=every)
        self.every, self.huge, self.names, self.formats = every, huge, names, formats

    def groups(self) -> list[str]:
        names = [*([*kernels(), MULTIPLY] if self.names is None else self.names), *["huge"] * self.huge]
        return [f"{name} in {fmt}" for name in names for fmt in self.formats]

    def order(self) -> list[str]:
        return [f"{name} in {fmt}" for name in (*KERNELS, MULTIPLY, "huge") for fmt in FORMATS]

    def facts(self) -> dict[str, Any]:
        return {"texts": kernel_texts(self.seed)}

    def runs_alone(self, group: str) -> bool:
        return group.startswith("huge")

    def sources(self, groups: Sequence[str]) -> list[str]:
        texts: dict[str, None] = {}
        for fmt in FORMATS:
            names = [name for name in KERNELS if f"{name} in {fmt}" in groups]
            texts |= dict.fromkeys(sources(self.seed, self.numbers(""), names, fmt, moved=True))
            if f"huge in {fmt}" in groups:
                texts |= dict.fromkeys(huge_sources(fmt))
        return list(texts)

    def numbers(self, group: str) -> Sequence[int]:
        return range(0, CASES, self.every)

    def case(self, group: str, number: int) -> Case:
        kernel, _, fmt = group.rpartition(" in ")
        drawn = case(fmt, number, self.seed)
        return replace(drawn, options={**drawn.options, "kernel": kernel})

    def paths_of(self, case: Case) -> Sequence[str]:
        return self.paths if case.options["kernel"] == MULTIPLY else [""]

    def on_gpu(self, case: Case, path: str) -> Computed:
        if not path:
            return run(case.options["kernel"], case)
        (A, B), (a, b, _) = operands(case), memories(case)
        A, B = (memory.view(memory.arrange(X), X.shape) for X, memory in ((A, a), (B, b)))
        memory: dict[str, Any] = {"key": case.key, "number": case.number, "columns": True}
        shape = A.shape[0], B.shape[1]
        return paths.run(functions(), path, (A, B, None), shape, A.dtype, **memory)

    def references(self, case: Case) -> dict[str, Result]:
        return {"fpemu.simt": _expected(case.subject, case.number, self.seed)}

    def replay(self, record: Record, outcome: Outcome, number: str) -> str:
        return digests.text(_expected(outcome.group.rpartition(" in ")[2], int(number), self.seed))

    def run(self, group: str, progress: Progress | None = None) -> Outcome:
        return check_huge(group, self.seed) if self.runs_alone(group) else super().run(group, progress)

    def summary(self, record: Record) -> list[str]:
        lines = super().summary(record)
        products = [x for o in record.outcomes if self.runs_alone(o.group) for x in o.facts["products"]]
        wrong = sum(bool(mismatches) for *_, mismatches in products)
        lines += [f"{len(products)} products of more than 2^32 elements, {wrong} of them with differences"] * self.huge
        skipped = [
            f"{m}×{k}×{n} in {o.group.rpartition(' in ')[2]}"
            for o in record.outcomes
            for m, k, n in o.facts.get("skipped", [])
        ]
        return lines + [f"skipped, too little memory: {', '.join(skipped)}"] * bool(skipped)


# --- matrices of more than 2^32 elements
HUGE_SHAPES = ((65600, 65600, 2), (65603, 65601, 2), (2**28 + 12, 16, 2), (2**28 + 13, 17, 3))
"""(m, k, n): steps that are multiples of 16 bytes and steps that are not; a large A, and one of many rows"""
_HUGE_LAYOUTS = ("columns", "rows")
_HUGE_KERNELS = ("V1", "V3", "opt 1", "opt 2", "TSM2 hopper", "ISM2 hopper")
_HUGE_ROWS = 24
_SPARE = 2**30  # bytes of GPU memory that stay free


def check_huge(group: str, seed: int) -> Outcome:
    """Compare some rows of products of more than 2^32 elements, as far as the GPU's memory suffices."""
    fmt = group.rpartition(" in ")[2]
    outcome = Outcome(group)
    rows: list[Any] = []
    skipped: list[Any] = []
    for sizes in HUGE_SHAPES:
        (m, k, n), size = sizes, _BYTES[fmt]
        if size * (m * k + k * n + m * n) + _SPARE > callers.free_bytes():
            skipped.append(list(sizes))
            continue
        A, B = (seeded.draw(fmt, count, 2 * seed + i, -1.0, 1.0) for i, count in enumerate((m * k, k * n)))
        C = device.Buffer(m * n * size)
        for layout in _HUGE_LAYOUTS:
            product = _huge_problem(fmt, sizes, layout, (A.pointer, B.pointer, C.pointer), (A, B, C))
            sample = _sampled_rows(m, k)
            want = _emulate_rows(product, sample, seed)
            for kernel in _HUGE_KERNELS:
                C.fill(device.POISON)
                _huge_plan(kernel, product).run(product)
                wrong = int(np.count_nonzero(want != _fetch_rows(product, sample, want.dtype)))
                rows.append([kernel, list(sizes), layout, want.size, wrong])
                if wrong:
                    outcome.first.append(f"{kernel}, {m}×{k}×{n} by {layout}: {wrong} of {want.size} differ")
        for buffer in (A, B, C):
            buffer.free()
    outcome.cases = len(rows)
    outcome.outputs, outcome.mismatches = sum(row[3] for row in rows), sum(row[4] for row in rows)
    outcome.facts = {"products": rows, "skipped": skipped}
    return outcome


def huge_sources(fmt: str) -> list[str]:
    """Return the kernels of `check_huge`, to be compiled in advance."""
    problems = [_huge_problem(fmt, sizes, layout, (2**20,) * 3) for sizes in HUGE_SHAPES for layout in _HUGE_LAYOUTS]
    return list(dict.fromkeys(_huge_plan(kernel, product).source for product in problems for kernel in _HUGE_KERNELS))


def _huge_problem(
    fmt: str, sizes: tuple[int, int, int], layout: str, addresses: tuple[int, int, int], owners: object = None
) -> Problem:
    m, k, n = sizes
    a, b, c = ((1, rows) if layout == "columns" else (columns, 1) for rows, columns in ((m, k), (k, n), (m, n)))
    return Problem(fmt, m, k, n, a, b, c, addresses, owners)


def _sampled_rows(m: int, k: int) -> NDArray[np.int64]:
    """The first and last rows, those near the indices 2^31 and 2^32, and others spread over all."""
    spread = np.linspace(0, m - 1, _HUGE_ROWS - 6).astype(np.int64)
    near = [min(at // k + d, m - 1) for at in (2**31, 2**32) for d in (0, 1)]
    return np.unique([*spread, *near, m - 2, m - 1])


def _huge_plan(kernel: str, problem: Problem) -> KernelLaunch:
    model = published.here(problem.fmt)
    if kernel.startswith("V"):
        return published.tsm2(problem, model, kernel)
    if kernel.startswith("opt"):
        return published.ism2(problem, model, int(kernel[-1]))
    return (hopper.tsm2 if kernel == "TSM2 hopper" else hopper.ism2)(problem, properties.multiprocessors())


def _emulate_rows(problem: Problem, rows: NDArray[np.int64], seed: int) -> NDArray[Any]:
    """Codes of some rows of C, whose rows of A are drawn again here."""
    k, n = problem.k, problem.n
    (row, step), (b_row, b_step) = problem.a, problem.b
    A = seeded.drawn_at(problem.fmt, rows[:, None] * row + np.arange(k, dtype=np.int64) * step, 2 * seed, -1.0, 1.0)
    index = np.arange(k, dtype=np.int64)[:, None] * b_row + np.arange(n) * b_step
    return emulate(A, seeded.drawn_at(problem.fmt, index, 2 * seed + 1, -1.0, 1.0), problem.fmt)


def _fetch_rows(problem: Problem, rows: NDArray[np.int64], dtype: Any) -> NDArray[Any]:
    row, step = problem.c
    out = np.empty((len(rows), problem.n), dtype)
    for i, r in enumerate(rows):
        for j in range(problem.n):
            out[i, j] = seeded.fetch(problem.addresses[2], int(r) * row + j * step, 1, dtype)[0]
    return out
