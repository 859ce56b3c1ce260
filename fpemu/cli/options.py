"""Shared by the commands: options generated from signatures and dataclasses, the console and its tables, parsers."""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import shutil
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from fpemu.mma import KOrder
    from fpemu.mma.device import Device
    from fpemu.mma.tree import Tree


def _use_experiments(context: typer.Context, folder: str | None) -> str | None:
    if folder is not None:
        from fpemu.reproduce import pages

        if not os.path.isdir(folder):
            raise InputError(f"--experiments names {folder}, which is not a folder")
        context.with_resource(pages.using(folder))
    return folder


SHARED: dict[str, dict[str, Any]] = {
    "a": {"metavar": "A", "help": "The matrix A: FILE.npy, FILE.npz[:KEY], FILE.safetensors[:KEY] or FILE.mtx."},
    "alpha": {"help": "α in α·A·B + β·C."},
    "b": {"metavar": "B", "help": "The matrix B, likewise."},
    "budget": {"min": 0},
    "beta": {"help": "β in α·A·B + β·C."},
    "c": {"metavar": "C", "help": "A matrix file for C."},
    "device": {"help": "Device of the emulation: cpu, cuda, or auto (large products on the GPU if there is one)."},
    "experiments": {
        "metavar": "DIR",
        "callback": _use_experiments,
        "help": "Folder of the papers' pages, which are executed; default: FPEMU_EXPERIMENTS or the checkout.",
    },
    "factor": {"min": 1, "max": 10**9},
    "fresh": {"help": "Evaluate stored cells again."},
    "hardware": {"help": "An architecture or a GPU: see 'fpemu list hardware'."},
    "instruction": {"help": "Instruction of the hardware: mma, wgmma, tcgen05 or mfma."},
    "jobs": {"min": 1, "max": 256, "help": "Number of local processes; default: one per core, at most 4."},
    "json": {"help": "Print the result as JSON."},
    "max_entries": {"metavar": "N", "min": 1, "help": "Largest number of entries of a matrix file."},
    "on_range": {"help": "Overflow policy of a scheme's words: raise, propagate, hardware, scale or scale-rows."},
    "option": {"metavar": "NAME=VALUE", "help": "An option of the scheme; may be repeated."},
    "order": {"help": "Order over K: split=512,tile=64,residue_first=true,promote=64,join=pairwise, or a FILE.json."},
    "outputs": {"min": 1, "max": 10**12},
    "seed": {"help": "Seed of the random operands."},
    **{name: {"min": 1} for name in ("batch", "cases", "every", "rounds")},
}
"""Options that several commands have: the settings of `typer.Option` by the name of the parameter."""
_SHORT = {
    **{"c": "-c", "executor": "-e", "hardware": "-H", "instruction": "-I", "jobs": "-j", "k": "-k", "option": "-O"},
    **{"output": "-o", "outputs": "-n", "parameter": "-P", "result": "-r", "scheme": "-s", "shapes": "-n"},
    **{"size": "-n", "target": "-t", "types": "-t"},
}


def with_options(source: Any = None, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function: its parameters before ``/`` are arguments, all others options.

    ``source`` is a dataclass or a function whose parameters, all or those of ``names``, become options too: the command
    receives an object of the dataclass, or a dict, as ``options``.

    The option of a parameter ``max_entries`` is ``--max-entries``; a bool is a flag, which ``--no-NAME`` unsets if its
    default is True. A trailing underscore, as of ``type_``, is dropped. The annotation is a type, ``Annotated[type,
    "help"]``, ``Annotated[type, "METAVAR", "help"]`` or one of Typer's. If the annotation contains no help text, the
    option takes its help text from `SHARED`, or else from the description of the parameter in the docstring of
    ``source``. A type that cannot be parsed from one word, such as a class or a Literal, becomes str: the library
    checks the value.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in _parameters(command) if p.name != "options"]
        taken = {p.name for p in own}
        added = [p for p in _parameters(source) if p.name not in taken and (not names or p.name in names)]
        texts = _descriptions(source)
        arguments = [p.name for p in own if p.kind is p.POSITIONAL_ONLY]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            if source is not None:
                given = {p.name: values.pop(p.name) for p in added}
                values["options"] = source(**given) if isinstance(source, type) else given
            command(*[values.pop(name) for name in arguments], **values)

        parameters = [_as_option(p, texts.get(p.name, "")) for p in (*own, *added)]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _parameters(source: Any) -> list[inspect.Parameter]:
    if source is None:
        return []
    hints = typing.get_type_hints(source, include_extras=True)
    return [p.replace(annotation=hints[name]) for name, p in inspect.signature(source).parameters.items()]


def _descriptions(source: Any) -> dict[str, str]:
    """The descriptions of the parameters in a numpydoc docstring."""
    section = (inspect.getdoc(source) or "" if source is not None else "").partition("Parameters\n----------\n")[2]
    section = re.split(r"\n\n\w+\n-+\n", section)[0]
    entries = re.findall(r"^(\w[^\n]*?) : [^\n]*\n((?:    [^\n]*(?:\n|$))+)", section, re.MULTILINE)
    return {name: " ".join(text.replace("`", "'").split()) for names, text in entries for name in names.split(", ")}


def _as_option(p: inspect.Parameter, described: str) -> inspect.Parameter:
    """A parameter with the annotation that Typer reads."""
    hint, *about = typing.get_args(p.annotation) if typing.get_origin(p.annotation) is Annotated else (p.annotation,)
    info = about[0] if about and not isinstance(about[0], str) else None
    if info is None:
        name = p.name.rstrip("_")
        settings = {"help": described} | SHARED.get(name, {}) | ({"help": about[-1]} if about else {})
        settings |= {"metavar": about[0]} if len(about) == 2 else {}
        flag = f"--{name.replace('_', '-').lower()}"
        flag += flag.replace("--", "/--no-", 1) * (p.default is True)
        short = [_SHORT[name]] if name in _SHORT else []
        positional = p.kind is p.POSITIONAL_ONLY
        info = typer.Argument(**settings) if positional else typer.Option(flag, *short, **settings)
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    words = [k for k in kinds if k in (bool, int, float, str) or typing.get_origin(k) in (list, tuple)]
    kind = (words or [str])[0]
    annotation = Annotated[kind | None if types.NoneType in kinds else kind, info]  # type: ignore[valid-type]
    return p.replace(kind=p.KEYWORD_ONLY, annotation=annotation)


# --- output
def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> None:
    """Print a plain table on stdout; the last ``numbers`` columns hold numbers and are aligned right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        # fold: a column narrower than a word would else lose its end
        table.add_column(column, justify="right" if index >= len(columns) - numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # COLUMNS if it is positive, the terminal's, and in a file or a pipe wide enough for every table
    width = shutil.get_terminal_size((140, 0)).columns
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


def progress() -> Progress:
    """Make the bars of long work with the time left, on stderr if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    text, output = TextColumn("{task.description}", markup=False), Console(stderr=True)
    columns = text, BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn()
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=output, disable=not output.is_terminal)


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Show a step of work without a known end, on stderr if that is a terminal; yield the function that changes it."""
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as status:
        yield lambda text: status.update(Text(text))  # Text: a str would be markup


def write_picture(name: str, figure: Any) -> None:
    """Write a figure in the format of the file's suffix, and say so."""
    from fpemu import plotting
    from fpemu._system import write_atomic

    write_atomic(name, getattr(plotting, name.rpartition(".")[2])(figure))
    note(f"wrote {name}")


def note(text: str) -> None:
    """Print a line beside the results, on stderr."""
    print(text, file=sys.stderr)


def show(value: float) -> str:
    """A measured number in four significant digits, a count in full."""
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.3e}" if math.isfinite(value) and value and not 0.01 <= abs(value) < 1e5 else f"{value:.4g}"


@contextmanager
def resumable() -> Iterator[None]:
    """Make the message after Ctrl-C name the command that continues from the stored results."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("finished cells are stored") from None


# --- checks of arguments
def need_hardware(name: str | None) -> str:
    """Return the argument of --hardware, or raise InputError if a matrix instruction computes and it is left out."""
    if name is None:
        raise InputError("--hardware is missing: give an architecture or a GPU, which 'fpemu list hardware' prints")
    return name


def missing_gpu() -> str | None:
    """What this machine lacks for the commands that need a GPU, in one line; None if nothing."""
    from fpemu.gpu.runtime import device

    reason = device.missing()
    if reason is None or "pip install" in reason:
        return reason
    return f"{reason}; beside a GPU and its driver: pip install 'fpemu[gpu]'"


def need_gpu(command: str) -> None:
    """Raise InputError if this machine lacks something for a command that needs a GPU."""
    if (missing := missing_gpu()) is not None:
        raise InputError(f"{command}: {missing}")


def check_file(name: str | None, content: str, *suffixes: str) -> None:
    """Check that a file to write, if there is one, has one of the suffixes and is in a writable folder."""
    from fpemu._system import check_writable

    if name is not None:
        if not name.endswith(suffixes):
            kinds = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
            raise InputError(f"{name!r}: {content} is written as {kinds}")
        check_writable(name)


def parse_device(name: str) -> Device:
    """Check the argument of --device; "auto" becomes "cpu" if there is no GPU, so that workers look for none."""
    from fpemu.mma.device import resolve

    resolved = resolve(name)
    return "auto" if name == "auto" and resolved == "cuda" else resolved


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """``["promote=16", "combine=term-wise"]`` as ``{"promote": 16, "combine": "term-wise"}``."""
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
    if power := re.fullmatch(r"([1-9]\d?)(?:\*\*|\^)(-?\d{1,4})", text):
        with suppress(OverflowError):
            value = int(power[1]) ** int(power[2])
            float(value)  # a larger integer than fp64 holds is infinite, as 1e400 is
            return value
        return math.inf
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


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
