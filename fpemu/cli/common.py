"""Shared by the commands: options, the console and its tables, and the parsers of options and orders."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import shlex
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fpemu.errors import InputError
from fpemu.files import check_writable

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.progress import Progress

    from fpemu.mma import KOrder
    from fpemu.mma.device import Device
    from fpemu.mma.tree import Tree

# options that several commands have
HARDWARE: Any = typer.Option("--hardware", "-H", help="An architecture or a GPU: see 'fpemu list hardware'.")
INSTRUCTION: Any = typer.Option("--instruction", "-I", help="Instruction of the hardware: mma, wgmma, tcgen05 or mfma.")
ORDER: Any = typer.Option(
    "--order",
    metavar="ORDER",
    help="Summation order over K: split=512,tile=64 (also residue_first, promote, join), or a FILE.json of 'fpemu "
    "reveal'.",
)
OPTION: Any = typer.Option("--option", "-O", metavar="NAME=VALUE", help="An option of the scheme; may be repeated.")
ON_RANGE: Any = typer.Option(
    "--on-range",
    help="Overflow policy for operands outside the range of a scheme's words: raise, propagate, scale, scale-rows.",
)
ALPHA: Any = typer.Option("--alpha", help="α in α·A·B + β·C.")
BETA: Any = typer.Option("--beta", help="β in α·A·B + β·C.")
C_FILE: Any = typer.Option("--c", "-c", metavar="C", help="A matrix file for C.")
MAX_ENTRIES: Any = typer.Option(
    "--max-entries", metavar="N", min=1, help="Largest number of entries of a matrix file; default: 2^30."
)
JOBS: Any = typer.Option(
    "--jobs", "-j", min=1, max=256, help="Number of local processes; default: one per core, at most 4."
)
DEVICE: Any = typer.Option(
    "--device",
    help="Device of the emulation, with equal bits: cpu, cuda, or auto (large products on the GPU if there is one).",
)
AS_JSON: Any = typer.Option("--json", help="Print the result as JSON.")


def _use_experiments(context: typer.Context, folder: str | None) -> str | None:
    if folder is not None:
        from fpemu.reproduce import pages

        context.with_resource(pages.using(folder))
    return folder


EXPERIMENTS: Any = typer.Option(
    "--experiments",
    metavar="DIR",
    callback=_use_experiments,
    help="Folder of the papers' pages, which the command executes; default: FPEMU_EXPERIMENTS or the checkout.",
)


def console(*, stderr: bool = False) -> Console:
    """Make the console of a stream: as wide as COLUMNS or its terminal, else wide enough for every table."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # Rich itself reads COLUMNS
    width = None if terminal or "COLUMNS" in os.environ else 140
    made = Console(width=width, highlight=False, markup=False, emoji=False, stderr=stderr)
    if made.width < 20:  # Rich prints nothing where COLUMNS is 0; a width that is set follows no terminal
        made.width = 20
    return made


def print_text(text: str) -> None:
    """Print text on stdout, wrapped at words on a terminal and where COLUMNS is set."""
    console().print(text, soft_wrap=not (sys.stdout.isatty() or "COLUMNS" in os.environ))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> None:
    """Print a plain table on stdout; the last ``numbers`` columns hold numbers and are aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        # fold: a column narrower than a word would else lose its end
        table.add_column(column, justify="right" if index >= len(columns) - numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def progress() -> Progress:
    """Make the bars of long work with the time left, on stderr. They appear with the first task."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    class Bars(Progress):
        """The display begins with the first task: an error before it must not print an empty line."""

        def __enter__(self) -> Bars:
            return self

        def __exit__(self, *_: object) -> None:
            if self.live.is_started:
                self.stop() if self.tasks else self.live.stop()

        def add_task(self, *arguments: Any, **settings: Any) -> Any:
            self.start()
            return super().add_task(*arguments, **settings)

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console(stderr=True),
    )


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Show a step of work without a known end, on stderr if that is a terminal; yield the function that changes it."""
    from rich.text import Text

    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with console(stderr=True).status(Text(text)) as status:
        yield lambda text: status.update(Text(text))


def read_matrix(name: str, max_entries: int | None) -> NDArray[Any]:
    """Read a matrix file, of at most ``max_entries`` entries (None: the default of `matrices.read`)."""
    from fpemu.cli import matrices

    return matrices.read(name, max_entries=matrices.MAX_ENTRIES if max_entries is None else max_entries)


def check_folder(given: str, folder: Path | None = None) -> None:
    """Raise InputError if an output folder (``folder``, by default ``given``) cannot be made or written to."""
    way = Path(given) if folder is None else folder
    if not given or any(p.exists() and not p.is_dir() for p in (way, *way.parents)):
        raise InputError(f"{given!r} is not a folder, nor can one be made there")
    example = way / "file"
    try:
        check_writable(example, make_folders=True)
    except InputError as problem:
        raise InputError(f"{given}: {str(problem).removeprefix(f'{example}: ')}") from problem


def check_file(name: str | None, content: str, *suffixes: str) -> None:
    """Check that a file to write, if there is one, has one of the suffixes and is in a writable folder."""
    if name is not None:
        if not name.endswith(suffixes):
            *first, last = suffixes
            raise InputError(f"{name!r}: {content} is written as {', '.join(first)}{' or ' * bool(first)}{last}")
        check_writable(name)


def note(text: str) -> None:
    """Print a line beside the results, on stderr."""
    print(text, file=sys.stderr)


def show(value: float) -> str:
    """A measured number in four significant digits, a count in full."""
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.3e}" if math.isfinite(value) and value and not 0.01 <= abs(value) < 1e5 else f"{value:.4g}"


def add_command(group: typer.Typer, name: str, command: Callable[..., None], **settings: Any) -> None:
    """Add a command whose help is its docstring, each paragraph on one line: Typer would keep the line breaks."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    group.command(name, help="\n\n".join(" ".join(p.split()) for p in paragraphs), **settings)(command)


def with_options(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the fields of a dataclass to the options of a command, which receives an object of it as ``options``."""
    added = typing.get_type_hints(kind, include_extras=True)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(command, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "options"
        ]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(kind, name), annotation=hint)
            for name, hint in added.items()
        ]

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            options = kind(**{name: arguments.pop(name) for name in added})
            command(**arguments, options=options)

        # Typer reads the signature
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


@contextmanager
def resumable(command: list[str]) -> Iterator[None]:
    """After Ctrl-C print the command that continues from the stored results, and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"fpemu: interrupted; finished cells are stored: '{shlex.join(command)}' continues from them")
        raise typer.Exit(130) from None


def parse_device(name: str) -> Device:
    """Check the argument of --device; "cpu" for "auto" on a machine without a GPU that can be used."""
    from fpemu.mma.device import resolve

    resolved = resolve(name)
    return "auto" if name == "auto" and resolved == "cuda" else resolved


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
        try:
            options[name] = parse_value(text.strip())
        except InputError as problem:
            raise InputError(f"option {name}: {problem}") from problem
    return options


def parse_value(text: str) -> Any:
    """An integer, a float, a power (2**11, 2^11), true, false or none where the text is one; else the text itself.

    Raises
    ------
    InputError
        For a number outside the range of fp64.
    """
    words: dict[str, Any] = {"true": True, "false": False, "none": None, "yes": True, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    power = re.fullmatch(r"(\d{1,2})(?:\*\*|\^)(-?\d{1,4})", text)
    try:
        value = int(power[1]) ** int(power[2]) if power else float(text)
        too_large = math.isinf(float(value)) and "inf" not in text.lower()
    except (ZeroDivisionError, OverflowError):
        too_large = True
    except ValueError:
        return text
    if too_large:
        short = text if len(text) <= 30 else f"{text[:27]}..."
        raise InputError(f"{short} is outside the range of fp64: at most 1.8e308 in magnitude")
    try:
        return value if power else int(text)
    except ValueError:
        return value


def parse_sizes(option: str, text: str, form: str = "MxNxK") -> list[int]:
    """The sizes of "64x64x512", at most 2^31 - 1 each; brackets mark the part of the form that may be left out."""
    sizes = re.split("[x×,]", text.strip().lower())
    counts = (form.partition("[")[0].count("x") + 1, form.count("x") + 1)
    if len(sizes) not in counts or not all(re.fullmatch("[0-9]{1,10}", n) and 0 < int(n) < 2**31 for n in sizes):
        raise InputError(f"{option} {text!r} is not {form}, positive integers such as {'x'.join(['64'] * counts[1])}")
    return list(map(int, sizes))


def parse_order(text: str | None) -> KOrder | Tree | None:
    """``"split=512,tile=64,residue_first=true,join=pairwise"`` as a KOrder; None passes through.

    "FILE.json": the order, or the tree that is none, of a file that ``fpemu reveal`` wrote.
    """
    from fpemu.mma import KOrder

    if text is None:
        return None
    if text.endswith(".json"):
        from fpemu.mma.serialise import load

        return load(text)
    return KOrder.from_dict(parse_options([part for part in text.split(",") if part.strip()]))
