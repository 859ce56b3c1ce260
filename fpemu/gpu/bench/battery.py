"""What is measured: the products behind each figure, in the order of their importance.

Figures share rows: a product by one contender is measured once. The sizes are ours where a paper prints none; they are
those of its text where it names some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fpemu.errors import unknown_name
from fpemu.gpu.bench.contenders import LIBRARY

__all__ = ["ABLATION", "BLOCKS", "FP64", "FRONTIER", "HEAD", "LIBRARY", "SCHEMES", "SPEEDS", "TILES", "Group", "Task",
           "figures", "groups", "shapes", "tasks"]  # fmt: skip

Shape = tuple[int, int, int]
RANK = ("full", "brief", "short", "errors")
"""How a speed is measured, the most careful first."""
HEAD = 8192
"""n of the comparison of everybody."""
FRONTIER = ("staged-int8 exact=8", "staged-int8", "staged-int8 exact=4")
"""Schemes between plain fp16 and three products."""
SCHEMES = ("ootomo", "legemm", "markidis", "h2sgemm term-wise", "h2sgemm element-wise")
SPEEDS = ("staged", *FRONTIER, *SCHEMES)
"""The schemes for fp32 that everybody is compared with."""
FP64 = ("dgemm", "ozaki DP", "ozaki CR", "ozaki2", "ozimmu", "ozaki DP words=int8")
ABLATION = ("legemm mma", "legemm 64x64", "legemm plain")
"""Figure 17 of LE-GEMM: the model's tile, one chosen by hand, and the model's without a pipeline."""
TILES = ("32x32", "64x64", "128x64", "128x128")
BLOCKS = tuple(f"h2sgemm element-wise {tile}{how}" for tile in TILES for how in ("", " plain"))
"""Figure 10 of H2SGEMM: blocks, with two buffers and with one."""


class Group(NamedTuple):
    """Contenders on one product, measured one after another.

    Parameters
    ----------
    shape : (M, N, K)
    data : one of `fpemu.gpu.bench.problem.DATA`
    contenders : tuple of str
    rules : {"full", "brief", "short", "errors"}
        How the speed is measured: `timing.FULL`, `timing.BRIEF`, `timing.SHORT`, or not.
    figures : tuple of str
        The pages that show it.
    fmt : {"fp32", "fp64"}
        Of the operands.
    """

    shape: Shape
    data: str
    contenders: tuple[str, ...]
    rules: str
    figures: tuple[str, ...]
    fmt: str = "fp32"


@dataclass(frozen=True)
class Task:
    """One row to measure."""

    kind: str
    M: int
    N: int
    K: int
    data: str
    contender: str
    rules: str
    fmt: str
    figures: tuple[str, ...]

    @property
    def wanted(self) -> dict[str, Any]:
        """The key of its row."""
        return {name: getattr(self, name) for name in ("kind", "M", "N", "K", "data", "contender")}


def shapes(n: int) -> dict[str, Shape]:
    """LE-GEMM's three shapes, M × N × K."""
    return {"n×n×n": (n, n, n), "n×4n×n": (n, 4 * n, n), "n×n×4n": (n, n, 4 * n)}


def _square(n: int) -> Shape:
    return n, n, n


def groups(quick: bool = False) -> Iterator[Group]:
    """All groups, the most important first."""
    front = ("speed/frontier", "speed/sizes", "legemm/fig9", "legemm/fig14", "legemm/fig18_speed", "h2sgemm/fig11")
    few = ("fp16", "staged", FRONTIER[0])
    yield Group(_square(HEAD), "symmetric", (*few, FRONTIER[1]), "full", front)
    yield Group(_square(HEAD), "symmetric", ("sgemm", "three fp16", "tf32", "dgemm", FRONTIER[2]), "brief", front)
    for n in (4096, 2048, 16384, 1024, 512):
        yield Group(_square(n), "symmetric", few, "brief" if n > 1024 else "short", ("speed/sizes", "h2sgemm/fig11"))
        yield Group(_square(n), "symmetric", ("sgemm",), "short", ("speed/sizes", "h2sgemm/fig11"))
    for data in ("positive", "phi 0.5"):
        yield Group(_square(HEAD), data, few, "brief", ("speed/frontier",))
        others = ("sgemm", "tf32", "three fp16", *FRONTIER[1:], *SCHEMES)
        yield Group(_square(HEAD), data, others, "errors", ("speed/frontier",))
    yield Group(_square(HEAD), "symmetric", SCHEMES, "short", front)
    yield from _legemm((8192, 4096), quick)
    yield from _dgemm_tc((10240,), quick)
    yield from _legemm((2048, 1024) if quick else (2048, 1024, 7168, 6144, 5120, 3072), quick)
    yield from _h2sgemm(quick)
    yield from _dgemm_tc((4096, 2048, 1024) if quick else (7168, 4096, 3072, 2048, 1024), quick)


def _legemm(sizes: Sequence[int], quick: bool) -> Iterator[Group]:
    both = ("sgemm", "fp16", "fp16 mma", "legemm mma", "ootomo mma", "markidis mma", "staged")
    for n in sizes:
        for name, shape in shapes(n).items():
            if quick and n == HEAD and name != "n×n×n":
                continue
            more = ("legemm/fig14", "legemm/fig18_speed") if name == "n×n×n" else ()
            yield Group(shape, "symmetric", both, "short", ("legemm/fig9", *more))
            if name == "n×n×n":
                yield Group(shape, "symmetric", ("dgemm",), "short", ("legemm/fig18_speed",))
                if n in (8192, 4096, 2048, 1024):
                    yield Group(shape, "symmetric", ABLATION, "short", ("legemm/fig17",))
    if 1024 in sizes:
        for shape in shapes(512).values():
            yield Group(shape, "symmetric", ("sgemm", "staged"), "short", ("legemm/fig9",))


def _h2sgemm(quick: bool) -> Iterator[Group]:
    yield Group(_square(4096), "symmetric", BLOCKS, "short", ("h2sgemm/fig10",))
    who = ("sgemm", "fp16", "h2sgemm term-wise", "staged", *(() if quick else ("h2sgemm element-wise",)))
    for n in (1024, 4096, 8192) if quick else (512, 1024, 2048, 3072, 4096, 6144, 8192):
        yield Group((n, n, 2816), "symmetric", who, "short", ("h2sgemm/fig11",))
        yield Group((2816, 2816, n), "symmetric", who, "short", ("h2sgemm/fig11",))
        yield Group(_square(n), "symmetric", who, "short", ("h2sgemm/fig11",))


def _dgemm_tc(sizes: Sequence[int], quick: bool) -> Iterator[Group]:
    for n in sizes:
        large = n == 10240
        shown = ("dgemm_tc/fig4", "dgemm_tc/fig5a", *(("dgemm_tc/table1",) if large else ()))
        yield Group(_square(n), "phi 0.1", FP64, "short", shown, "fp64")
        if not large:
            yield Group(_square(n), "phi 0.1", ("sgemm", "ozaki SP"), "short", ("dgemm_tc/fig9",))
        for data in ("phi 1", "phi 2") if large or not quick else ():
            yield Group(_square(n), data, ("dgemm", "ozaki DP", "ozaki CR"), "short", shown, "fp64")


def figures() -> list[str]:
    """The pages that rows are measured for."""
    return sorted({page for task in _everything(False) for page in task.figures})


def tasks(wanted: Sequence[str] | None = None, quick: bool = False) -> list[Task]:
    """The rows to measure, each once, in the order of their importance.

    Parameters
    ----------
    wanted : sequence of str, optional
        Pages or papers ("legemm/fig9", "dgemm_tc"); None: all.
    quick : bool
        Fewer sizes.

    Raises
    ------
    InputError
        A page that nothing is measured for.
    """
    known = figures()
    for page in wanted or ():
        if page not in known and not any(name.startswith(f"{page}/") for name in known):
            raise unknown_name("figure", page, known)
    found: dict[tuple[Any, ...], Task] = {}
    for task in _everything(quick):
        key = tuple(task.wanted.values())
        old = found.get(key, task)
        shown = tuple(dict.fromkeys((*old.figures, *task.figures)))
        found[key] = replace(old, figures=shown, rules=min(old.rules, task.rules, key=RANK.index))
    return [task for task in found.values() if wanted is None or any(_is(page, wanted) for page in task.figures)]


def _is(page: str, wanted: Iterable[str]) -> bool:
    return any(page == one or page.startswith(f"{one}/") for one in wanted)


def _everything(quick: bool) -> Iterator[Task]:
    """All rows, some of them more than once."""
    from fpemu.gpu.bench import applications, ceilings

    for number, group in enumerate(groups(quick)):
        if number == 1:
            yield from ceilings.tasks()
        if group.contenders == BLOCKS:  # the figures of H2SGEMM come last
            yield from applications.tasks(quick)
        for contender in group.contenders:
            fmt = "fp64" if group.fmt == "fp64" else "fp32"
            yield Task("product", *group.shape, group.data, contender, group.rules, fmt, group.figures)
