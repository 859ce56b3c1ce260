"""``fpemu tune batched``: measured configurations of the batched kernels for each size, and the table of the fastest.

The paper sweeps all valid configurations; here that would be hours of compiling. The candidates of a size are those of
the paper's kernel that cover the product with the fewest blocks or keep most of it in flight, the first of
`ranked` of ``experiments/magma/model.py``, and the kernels without shared memory where they are valid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import compilation, timing
from fpemu._system import read_json, write_atomic
from fpemu.errors import GpuError, InputError
from fpemu.gpu.batched import configuration as conf
from fpemu.gpu.batched import source
from fpemu.gpu.batched.configuration import Block, Configuration, Packed, Task, Warp, form
from fpemu.gpu.runtime import compiler, device, matrices
from fpemu.verification import records

if TYPE_CHECKING:
    from rich.progress import Progress

TOLERANCE = 0.03
"""A configuration serves a range of sizes if it is nowhere slower than the fastest by more than this share."""
LARGE = {
    False: ((128, 128, 32, 8, 3), (128, 128, 64, 8, 2), (64, 128, 32, 4, 3), (64, 64, 64, 4, 2)),
    True: ((64, 64, 32, 4, 2), (128, 64, 32, 8, 2), (128, 64, 32, 4, 2), (128, 128, 32, 16, 2), (128, 128, 32, 8, 2)),
}
"""BLK_M, BLK_N, BLK_K, warps and stages that are measured besides blocks of the size itself: for real products above
128 and for complex ones above 64."""
METHOD = timing.Steady(sample=6e-4, launches=60, samples=3, tries=1, loop=0.0)
"""Of each measurement."""
_THREADS, _REGISTERS = 2048, 65536  # of a multiprocessor
_RESIDENT, _MANY = 4, 8  # limits of the thread blocks of a multiprocessor, and of those that copy in bulk
_WARPS = {4: (0, 96), 8: (0, 128), 16: (112, 256)}  # of the latter, by the sides: their kernel requires powers of two
_LARGE, _EARLY = 96, 2  # side from which on blocks may load their matrices early, and how many are measured
_DRAWN = 2**22 - 3  # limit of the different numbers of an operand


@dataclass(frozen=True)
class Measured:
    """One configuration at one size."""

    form: str
    size: int
    configuration: str
    seconds: float


def task_of(size: int, complex: bool) -> Task:
    """Return the product of contiguous square matrices.

    >>> task_of(12, False).width
    8
    """
    width = math.gcd(16, (4 if complex else 2) * size)
    return Task(size, size, size, complex=complex, width=width, contiguous=True)


def place(size: int, complex: bool) -> tuple[str, int]:
    """Return the form and the size of a measurement.

    >>> place(12, True)
    ('complex 16', 12)
    """
    return form(task_of(size, complex)), size


def candidates(task: Task) -> list[Configuration]:
    """Return configurations that may be the fastest for a task, each valid for it.

    >>> [conf.text(c).split()[0] for c in candidates(task_of(8, False))][:3]
    ['packed', 'warp', 'warp']
    """
    size = max(task.M, task.N, task.K)
    side = -(-size // 16) * 16
    variants: list[Configuration] = []
    if size <= 8:
        variants += [Packed(1)]
    if size <= 32:
        tiles = ((1, 1),) if size <= 8 else ((1, 1), (1, 2)) if size <= 16 else ((1, 1), (1, 2), (2, 1), (2, 2))
        variants += [Warp(*tile, -(-size // 16), warps) for tile in tiles for warps in (4, 8)]
    if size > 8:
        variants += _of_the_size(task, side)
    if size > (64 if task.complex else 128):
        for m, n, k, warps, stages in LARGE[task.complex]:
            for direct in (True, False) if task.complex else (True,):
                variants.append(Block((16, 16, 16), (m, n, k), (16, 2 * warps), 1, stages, direct, not task.complex))
    variants += [_of_model(kernel, task) for kernel in _ranked(task, side)]
    valid: dict[Configuration, None] = {}
    for c in variants:
        same = conf.fitted(c, task)
        try:
            conf.validate(same, task)
        except InputError:
            continue
        valid[same] = None
    return list(valid)


def _of_the_size(task: Task, side: int) -> list[Configuration]:
    """Return blocks that cover a product, with one warp or two for every 16 rows, or with eight."""
    variants: list[Configuration] = []
    for warps in {side // 16, side // 8, 8 if side > 32 else side // 16}:
        way = Block((16, 16, 16), (side, side, side), (16, 2 * warps), 1, 1, direct=True, staged=not task.complex)
        ways = [way]
        if task.width < 16:
            ways += [replace(way, flat=True, staged=False)]
        elif task.complex:
            ways += [replace(way, direct=False)]
        for way in ways:
            variants += [replace(way, resident=r) for r in {1, _resident(way, task)} if r]
            if side <= 32 and warps == side // 16:
                variants += [replace(way, products=products) for products in (2, 4)]
            if way.direct:
                for stages in (1, 2) if side > 32 else (1,):
                    busy = replace(way, persistent=True, stages=stages)
                    variants += [replace(busy, resident=r) for r in {_resident(busy, task)} if r]
    wide = side + 16 if side in (80, 112) else side  # five and seven tiles suit few numbers of warps
    if task.width < 16 and side > 16 and not task.complex:
        variants += [c for x in {side, wide} for c in _in_bulk(task, x)]
    elif wide > side and not task.complex:
        way = Block((16, 16, 16), (wide, wide, wide), (16, 16), 1, 1, direct=True, staged=True, persistent=True)
        variants += [
            replace(way, stages=stages, resident=r) for stages in (1, 2) for r in {1, _resident(way, task)} if r
        ]
    return variants


def _in_bulk(task: Task, side: int) -> list[Configuration]:
    """Return blocks of a side that load by the copy engine, as many as a multiprocessor holds."""
    variants: list[Configuration] = []
    for warps in (w for w, (low, high) in _WARPS.items() if low <= side <= high):
        for stages in (1, 2):
            way = Block(
                (16, 16, 16),
                (side, side, side),
                (16, 2 * warps),
                1,
                stages,
                direct=True,
                flat=True,
                persistent=True,
                bulk=True,
                resident=10**6,
            )
            many = _resident(way, task, _MANY)
            variants += [replace(way, resident=r) for r in {many, min(many, _RESIDENT)} if r]
    return variants


def _resident(c: Block, task: Task, most: int = _RESIDENT) -> int:
    """Return the number of thread blocks that fit in a multiprocessor."""
    registers = (64 if c.bulk or not c.persistent else 80) * task.terms**0.5
    fit = conf.SHARED // (conf.shared_memory(c, task).nbytes + 1024), int(_REGISTERS / (32 * c.warps * registers))
    return min(*fit, _THREADS // (32 * c.warps), most)


@cache
def _ranked(task: Task, side: int) -> list[Any]:
    from fpemu.reproduce import pages
    from fpemu.roofline import gpus

    sizes, options = (task.M, task.N, task.K), {"largest": min(side, 128), "complex": task.complex}
    ranked = pages.model("magma").ranked(*sizes, gpus.get("H200"), **options)
    return [kernel for _, kernel in ranked[:1]]


def _of_model(kernel: Any, task: Task) -> Configuration:
    stages = 1 if kernel.block[2] >= task.K else 2
    return Block(kernel.tensor, kernel.block, kernel.threads, 1, stages, True, not task.complex)


class Bench:
    """Products of one size on the GPU, measured with one configuration after another."""

    def __init__(self, size: int, complex: bool, batch: int) -> None:
        rng = np.random.default_rng(0)
        shape = (batch, size, size, 2) if complex else (batch, size, size)
        drawn = [np.resize(rng.uniform(-1, 1, _DRAWN).astype(np.float16), shape) for _ in "ab"]
        self._layout = "interleaved" if complex else None
        self._operands = [matrices.upload(x) for x in (*drawn, np.zeros(shape, np.float16))]

    def seconds(self, configuration: Configuration) -> float:
        """Return the seconds per launch."""
        from fpemu.gpu.batched.products import BatchedRequest

        A, B, D = self._operands
        queue = BatchedRequest(self._layout, configuration=configuration).queued({"A": A, "B": B, "out": D})
        return timing.measure(queue, METHOD).median


def compile_all(tasks: Iterable[Task]) -> None:
    """Compile the kernels of all candidates side by side."""
    texts = {source.plan(task, c).source: None for task in tasks for c in candidates(task)}
    compilation.compile_all(list(texts), device.arch())


def measure(size: int, complex: bool, batch: int) -> list[Measured]:
    """Measure all candidates of a size, then the fastest of them with early loads, without those that fail."""
    task, bench, measured = task_of(size, complex), Bench(size, complex, batch), []

    def add(configurations: Iterable[Configuration]) -> None:
        for c in configurations:
            try:
                measured.append(Measured(form(task), size, conf.text(c), bench.seconds(c)))
            except GpuError:
                continue

    add(candidates(task))
    fastest = [conf.parse(m.configuration) for m in sorted(measured, key=lambda m: m.seconds)[:_EARLY]]
    add(replace(c, ahead=True) for c in fastest if isinstance(c, Block) and c.block[0] >= _LARGE)
    return measured


def tune(
    tasks: Sequence[tuple[int, bool]], batch: int, partial: Path | None, fresh: bool, bars: Progress
) -> tuple[list[Measured], dict[str, Any]]:
    """Measure sizes of real or complex matrices; return the measurements, and the GPU, batch and compiler.

    Each size is saved in the file ``partial``, from which the next call continues unless it is ``fresh``.
    """
    versions = device.describe()
    about = {"gpu": versions["gpu"], "batch": batch, "nvrtc": versions["nvrtc"]}
    before = [] if partial is None or fresh else resumed(partial, about)
    wanted = {place(*task): task for task in tasks}
    measured = [m for m in before if (m.form, m.size) in wanted]
    done = {(m.form, m.size) for m in measured}
    todo = [task for at, task in wanted.items() if at not in done]
    bar = bars.add_task("compiling", total=len(wanted), completed=len(wanted) - len(todo))
    compile_all(task_of(*task) for task in todo)
    for size, is_complex in todo:
        bars.update(bar, description=f"{'complex' if is_complex else 'real'} {size}")
        measured += measure(size, is_complex, batch)
        if partial is not None:
            write_atomic(partial, saved(measured, about))
        bars.update(bar, advance=1)
    if not measured:
        raise GpuError("no configuration ran: 'fpemu verify batched' shows the failures")
    return measured, about


def saved(measured: Sequence[Measured], about: dict[str, Any]) -> bytes:
    """Return the measurements of an unfinished run as the content of a file, for `resumed`."""
    rows = [list(asdict(m).values()) for m in measured]
    return json.dumps({"about": about, "texts": records.code_digest(compiler.KERNELS), "measured": rows}).encode()


def resumed(path: str | Path, about: dict[str, Any]) -> list[Measured]:
    """Return the measurements in a file of `saved`; none if it is of another GPU, batch, compiler or kernels."""
    try:
        content = read_json(path)
        same = content["about"] == about and content["texts"] == records.code_digest(compiler.KERNELS)
        rows = content["measured"] if same else []
        return [Measured(str(name), int(size), str(c), float(seconds)) for name, size, c, seconds in rows]
    except (ValueError, KeyError, TypeError):
        return []


def winners(measured: Sequence[Measured]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the table: for each form, few configurations, each up to a size.

    >>> times = (8, "a", 1.0), (8, "b", 1.01), (16, "a", 2.0), (16, "b", 1.0)
    >>> winners([Measured("real 16", *row) for row in times])
    {'real 16': [{'size': 16, 'configuration': 'b'}]}
    """
    table: dict[str, list[dict[str, Any]]] = {}
    for name in sorted({m.form for m in measured}):
        sizes = sorted({m.size for m in measured if m.form == name})
        slower: dict[int, dict[str, float]] = {}
        for size in sizes:
            times = {m.configuration: m.seconds for m in measured if m.form == name and m.size == size}
            least = min(times.values())
            slower[size] = {c: t / least - 1 for c, t in times.items()}
        rows: list[dict[str, Any]] = []
        begin = 0
        while begin < len(sizes):
            end, chosen = begin, min(slower[sizes[begin]], key=slower[sizes[begin]].__getitem__)
            for last in range(begin, len(sizes)):
                span = sizes[begin : last + 1]
                good = [c for c in slower[span[0]] if all(slower[s].get(c, 1.0) <= TOLERANCE for s in span)]
                if not good:
                    break
                end, chosen = last, min(good, key=lambda c: sum(slower[s][c] for s in span))
            rows.append({"size": sizes[end], "configuration": chosen})
            begin = end + 1
        table[name] = rows
    return table


def toml(table: dict[str, list[dict[str, Any]]], about: dict[str, Any]) -> str:
    """Return the table as the file that the package reads.

    >>> print(toml({"real 16": [{"size": 16, "configuration": "warp"}]}, {"gpu": "NVIDIA H200"}), end="")
    # Winners of `fpemu tune batched`: for every form, the configuration of sizes up to the one given.
    [measured]
    gpu = "NVIDIA H200"
    <BLANKLINE>
    ["real 16"]
    16 = "warp"
    """
    lines = ["# Winners of `fpemu tune batched`: for every form, the configuration of sizes up to the one given."]
    lines += ["[measured]", *(f"{k} = {_value(v)}" for k, v in about.items())]
    for name, rows in table.items():
        lines += ["", f'["{name}"]', *(f'{row["size"]} = "{row["configuration"]}"' for row in rows)]
    return "\n".join(lines) + "\n"


def _value(x: Any) -> str:
    return str(x) if isinstance(x, int) else f'"{x}"'
