"""What the commands share: the console, and how options and orders are written on the command line."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from fpemu.mma import KOrder
    from fpemu.mma.tree import Tree
    from fpemu.sweep import Grid, Store
    from fpemu.sweep.run import Plan

# options that several commands have
HARDWARE: Any = typer.Option("--hardware", "-H", help="An architecture or a GPU: see 'fpemu list hardware'.")
INSTRUCTION: Any = typer.Option("--instruction", "-I", help="mma, wgmma, tcgen05 or mfma of that hardware.")
ORDER: Any = typer.Option(
    "--order", metavar="NAME=VALUE,...|FILE.json",
    help="Order over K: split=512,tile=64 (also residue_first, promote, join); or a file of 'fpemu reveal'.",
)  # fmt: skip
OPTION: Any = typer.Option("--option", "-O", metavar="NAME=VALUE", help="An option of the scheme; may be repeated.")
ON_RANGE: Any = typer.Option(
    "--on-range", help="raise, propagate, scale or scale-rows where a part of a scheme leaves its format."
)
ALPHA: Any = typer.Option("--alpha", help="α in α·A·B + β·C.")
BETA: Any = typer.Option("--beta", help="β in α·A·B + β·C.")
C_FILE: Any = typer.Option("--c", "-c", metavar="C", help="A matrix file for C.")
AS_JSON: Any = typer.Option("--json", help="Print what was found as JSON.")


def console() -> Console:
    """Where tables go. Wide enough for every table when the output is a file or a pipe."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with status 1 on its own

    return _Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False)


def table(title: str, *columns: str, numbers: int = 0) -> Table:
    """A plain table; the last ``numbers`` columns hold numbers and are set right. Headings wrap where room is short."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        number = index >= len(columns) - numbers
        made.add_column(column, justify="right" if number else "left", overflow="fold")
    return made


def progress() -> Progress:
    """Bars of long work with the time left, on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True),
    )  # fmt: skip


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """What work without a known end is at, on stderr if that is a terminal. Gives the function that says it."""
    from rich.console import Console
    from rich.markup import escape

    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True).status(escape(text)) as status:
        yield lambda text: status.update(escape(text))


@contextmanager
def in_options(names: Mapping[str, str]) -> Iterator[None]:
    """The library's complaints about its arguments in words of the command line: "fmt=" as "--format".

    Parameters
    ----------
    names : mapping
        The option that each argument is.
    """
    try:
        yield
    except InputError as problem:
        told = re.sub(
            rf"\b({'|'.join(names)})=('?)([\w.-]*)\2", lambda m: f"{names[m[1]]} {m[3]}".strip(), str(problem)
        )
        problem.args = (told.replace(" or an MmaSpec", ""),)
        raise


def check_folder(given: str, folder: Path | None = None) -> None:
    """Complain if what the user gave as an output folder (or ``folder`` in it) is none and cannot be made one."""
    way = Path(given) if folder is None else folder
    if not given or any(p.exists() and not p.is_dir() for p in (way, *way.parents)):
        raise InputError(f"{given!r} is not a folder, nor can one be made there")


def note(text: str) -> None:
    """A line beside the results: on stderr, so that it does not get into a table that is piped on."""
    print(text, file=sys.stderr)


def show(value: float) -> str:
    """A measured number in four significant digits, a count in full."""
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.3e}" if math.isfinite(value) and value and not 0.01 <= abs(value) < 1e5 else f"{value:.4g}"


def show_plan(grid: Grid, plan: Plan, results: Store, jobs: int) -> None:
    """What a run would do, and how long it may take."""
    from fpemu.sweep.run import estimate

    todo = plan.todo
    again = sum(name in plan.failed_before for name in todo)
    counts = f"{len(plan.cells)} cells: {len(plan.stored)} stored, {len(todo)} to do"
    console().print(f"{grid.name}: {counts}" + (f", {again} of which failed before" if again else ""))
    console().print(f"results: {results.path}")
    if todo:
        seconds, basis = estimate(grid, plan, jobs)
        by = f" by {jobs} process{'es' * (jobs > 1)}"
        console().print(f"time: {basis}" if seconds is None else f"time: about {duration(seconds)}{by} ({basis})")


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: "40 s", "12 min", "3.5 h".

    >>> duration(0.2), duration(700), duration(12600)
    ('1 s', '12 min', '3.5 h')
    """
    if seconds < 120:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.2g} h"


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """``["promote=16", "combine=term-wise"]`` as ``{"promote": 16, "combine": "term-wise"}``.

    Raises
    ------
    InputError
        If one is not ``name=value``, or a name comes twice.
    """
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise InputError(f"option {pair!r} is not name=value")
        if name in options:
            raise InputError(f"option {name!r} is given twice")
        options[name] = parse_value(text.strip())
    return options


def parse_value(text: str) -> Any:
    """An integer, a float, a power (2**11, 2^11), true, false or none where the text is one; else the text itself."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "yes": True, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    power = re.fullmatch(r"(\d{1,2})(?:\*\*|\^)(-?\d{1,4})", text)
    if power:
        try:
            return int(power[1]) ** int(power[2])
        except (ZeroDivisionError, OverflowError) as problem:
            raise InputError(f"{text} is not a number: {problem}") from problem
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_order(text: str | None) -> KOrder | Tree | None:
    """``"split=512,tile=64,residue_first=true,join=pairwise"`` as a KOrder; None passes through.

    "FILE.json": the order, or the tree that is none, of a file that ``fpemu reveal`` wrote.
    """
    from dataclasses import fields

    from fpemu.mma import KOrder

    if text is None:
        return None
    if text.endswith(".json"):
        from fpemu.probing import treefile

        return treefile.load(text)
    chosen = parse_options([part for part in text.split(",") if part.strip()])
    known = [field.name for field in fields(KOrder)]
    for name in chosen:
        if name not in known:
            raise unknown_name("part of an order", name, known)
    return KOrder(**chosen)


def finite(name: str, value: float, fmt: str) -> tuple[float, str | None]:
    """A scalar rounded to fp32 or fp64, as the product takes it, and a note if that changed it."""
    import numpy as np

    from fpemu import formats

    with np.errstate(over="ignore", under="ignore"):
        rounded = float(formats.get(fmt).dtype.type(value))
    if not math.isfinite(rounded):
        raise InputError(f"{name} is {value}: a finite {fmt} number is needed")
    return rounded, None if rounded == value else f"{name}: {value!r} rounded to {fmt}, {rounded!r}"
