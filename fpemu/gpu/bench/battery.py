"""The battery of `fpemu bench gpu`: the rows behind each figure, each once, in the order of their importance.

Figures share rows: a product by one contender is measured once, by the most careful of the rules that are asked for.
`fpemu.gpu.bench.groups` says which products there are, `fpemu.gpu.bench.kinds` what else is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fpemu.errors import InputError, unknown_name
from fpemu.gpu.bench import kinds
from fpemu.gpu.bench.groups import (
    ABLATION,
    BLOCKS,
    FP64,
    FRONTIER,
    HEAD,
    LIBRARY,
    OTHERS,
    SCHEMES,
    SPEEDS,
    STRASSEN,
    TILES,
    groups,
    shapes,
)  # fmt: skip
from fpemu.gpu.bench.record import key
from fpemu.gpu.bench.task import RANK, Group, Task

if TYPE_CHECKING:
    from fpemu.gpu.bench.choosing import Contender

__all__ = ["ABLATION", "BLOCKS", "FP64", "FRONTIER", "HEAD", "LIBRARY", "OTHERS", "SCHEMES", "SPEEDS", "STRASSEN",
           "TILES", "Group", "Task", "chosen", "figures", "groups", "seconds", "shapes", "tasks"]  # fmt: skip


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
    found: dict[object, Task] = {}
    for task in _everything(quick):
        old = found.get(key(task.wanted), task)
        shown = tuple(dict.fromkeys((*old.figures, *task.figures)))
        found[key(task.wanted)] = replace(old, figures=shown, rules=min(old.rules, task.rules, key=_rank))
    return [task for task in found.values() if wanted is None or any(_is(page, wanted) for page in task.figures)]


def chosen(shape: str, who: Sequence[str] = (), data: str = "symmetric") -> list[Task]:
    """Rows of one product that need not be in any figure.

    Parameters
    ----------
    shape : str
        "8192x8192x8192", M by N by K, or n alone.
    who : sequence of str
        Contenders, as `fpemu.gpu.bench.contenders.find` takes them; by default the library's and the fastest of ours.
    data : one of `fpemu.gpu.bench.problem.DATA`

    Raises
    ------
    InputError
        Names that are unknown, sizes that are none.
    """
    from fpemu.gpu.bench import contenders
    from fpemu.gpu.bench.problem import DATA

    sides = shape.replace("×", "x").split("x")
    if len(sides) not in (1, 3) or not all(side.isdigit() and int(side) for side in sides):
        raise InputError(f"{shape!r} is no shape: give n, or M, N and K as in 4096x16384x4096")
    if data not in DATA:
        raise unknown_name("kind of data", data, DATA)
    M, N, K = (int(side) for side in sides * (3 // len(sides)))
    found = [contenders.find(name) for name in who or ("sgemm", "fp16", "three fp16", "staged", FRONTIER[0])]
    wide = any(one.scheme is not None and one.operand == "fp64" for one in found)
    return [Task("product", M, N, K, data, one.name, "brief", _operands(one, wide), ()) for one in found]


def _operands(one: Contender, wide: bool) -> str:
    """The library multiplies what the others do; its SGEMM reads fp32."""
    if one.scheme is not None:
        return one.operand
    return "fp64" if wide and one.name == "dgemm" else "fp32"


def seconds(tasks: Iterable[Task]) -> float:
    """About how long it takes to measure some rows."""
    return sum(kinds.module(task.kind).seconds(task) for task in tasks)


def _rank(rules: str) -> int:
    """Rules of a kind's own come last."""
    return RANK.index(rules) if rules in RANK else len(RANK)


def _is(page: str, wanted: Iterable[str]) -> bool:
    return any(page == one or page.startswith(f"{one}/") for one in wanted)


def _everything(quick: bool) -> Iterator[Task]:
    """All rows, some of them more than once."""
    for kind in kinds.MODULES:
        yield from kinds.module(kind).tasks(quick)
