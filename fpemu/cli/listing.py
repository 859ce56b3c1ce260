"""``fpemu list``: hardware, schemes, experiments, formats, input distributions and error measures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import EXPERIMENTS, console, print_text, table
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.mma import MmaSpec


def listing(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND", help="hardware, schemes, experiments, formats, inputs or metrics; default: all."
        ),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The name of a scheme, after 'schemes'.")] = None,
    folder: Annotated[str | None, EXPERIMENTS] = None,
) -> None:
    """List hardware, schemes, experiments, formats, input distributions and error measures.

    'fpemu list schemes NAME' prints a scheme with its options.
    """
    if name is not None and what != "schemes":
        raise InputError(f"only 'fpemu list schemes' takes a name, not {what!r}")
    if name is not None:
        _scheme(name)
    elif what is None:
        _overview()
    elif what in _KINDS:
        _KINDS[what]()
    else:
        raise unknown_name("kind", what, _KINDS)


def _overview() -> None:
    from fpemu import formats, inputs, metrics, mma, schemes

    names = table("all names; 'fpemu list KIND' describes the names of one kind", "kind", "names")
    names.add_row("hardware", ", ".join(mma.catalog.architectures()))
    names.add_row("schemes", ", ".join(schemes.names()))
    names.add_row("experiments", _experiment_names())
    for module in (formats, inputs, metrics):
        names.add_row(module.__name__.rpartition(".")[2], ", ".join(module.names()))
    console().print(names)


def _experiment_names() -> str:
    from fpemu.reproduce import pages

    try:
        return ", ".join(pages.names())
    except InputError:  # the package was installed without its checkout
        return "(none: they are part of a checkout of fpemu)"


def block_fields(row: MmaSpec) -> list[str]:
    """Return L, F and E0 of a row: "-" where its arithmetic has none, and an asterisk where the field is documented."""
    from fpemu.mma.catalog import documented_fields

    names = ["block", "F", "E0"] if row.rules.truncates else ["block"]
    documented = documented_fields(row)
    return [f"{getattr(row, name)}{'*' * (name in documented)}" for name in names] + ["-"] * (3 - len(names))


def _hardware() -> None:
    from fpemu import mma
    from fpemu.mma.spec import EVIDENCE

    print_text(
        "Matrix instructions by architecture, with the other names that --hardware takes. L: products per rounding; F:"
        " alignment width, the bits kept below the largest exponent; E0: minimum alignment exponent; final: rounding"
        " of D. *: documented, because the recordings of a replayed row do not determine this field.\n"
    )
    out = console()
    named: dict[str, list[str]] = {}
    for gpu, architecture in mma.catalog.gpu_names().items():
        named.setdefault(architecture, []).append(gpu)
    columns = ["instruction", "A, B", "C, D", "arithmetic", "evidence", "L", "F", "E0", "final"]
    for architecture in mma.catalog.architectures():
        title = ": ".join([architecture, *filter(None, [", ".join(named.get(architecture, []))])])
        instructions = table(title, *columns, numbers=4)
        for row in mma.catalog.rows():
            if row.architecture != architecture:
                continue
            bits = f", {row.fraction_bits} bits" if row.fraction_bits else ""
            instructions.add_row(
                f"{row.instruction} {row.shape}",
                *(str(row.a_format), str(row.d_format), row.arithmetic, row.evidence),
                *block_fields(row),
                "-" if row.is_integer else f"{row.final}{bits}",
            )
        out.print(instructions)
    legend = table("evidence", "word", "meaning")
    for word, meaning in EVIDENCE.items():
        legend.add_row(word, meaning)
    out.print(legend)


def _schemes() -> None:
    from fpemu import schemes

    lines = table("schemes", "scheme", "paper", "parts", "products", "range")
    for name in schemes.names():
        info = schemes.get(name).info
        paper = info.paper if str(info.year) in info.paper or not info.paper else f"{info.paper}, {info.year}"
        lines.add_row(name, paper or "-", ", ".join(info.parts), " ".join(info.products), info.range)
    console().print(lines)


_SYMBOLS = (
    "K: length of the sums",
    "k: length of the instruction",
    "L: block length of the instruction",
    "eps: relative error of the sum of a block",
)
"""Symbols of the formulas of errors"""


def _scheme(name: str) -> None:
    from fpemu import schemes

    info = schemes.get(name).info
    paper = f"{info.paper}{f', DOI {info.doi}' * bool(info.doi)}"
    print_text(f"{info.name}: {info.title}{f'. {paper}' * bool(paper)}")
    print_text(f"range: {info.range}")
    relative = "" if "|" in info.bound else " relative to |A||B|"
    symbols = ", ".join(text for text in _SYMBOLS if re.search(rf"\b{text.split(':')[0]}\b", info.bound))
    print_text(f"error{relative}: {info.bound}{f'  ({symbols})' * bool(symbols)}\n")
    lines = table(f"options of {info.name}: -O NAME=VALUE", "option", "default", "values", "meaning")
    for option in info.options:
        lines.add_row(option.name, str(option.default), option.values, option.meaning)
    console().print(lines)


def _experiments() -> None:
    from fpemu.reproduce import pages

    lines = table("experiments", "experiment", "title", "cells, quick", "cells, full", numbers=2)
    for name, title in pages.titles().items():
        lines.add_row(name, title, *[_cells(name, size) for size in pages.SIZES])
    console().print(lines)


def _cells(name: str, size: str) -> str:
    """The number of cells in the committed record of a figure, because the page would have to be executed to count."""
    from fpemu.files import read_json
    from fpemu.reproduce import pages
    from fpemu.reproduce.figures import size_folder

    record = size_folder(pages.root().parent / "figures", size) / f"{name}.json"
    content = read_json(record) if record.is_file() else None
    return str(content.get("cells", "-")) if isinstance(content, dict) else "-"


def _formats() -> None:
    from fpemu import formats

    columns = ["precision, bits", "emin", "emax", "largest", "smallest normal", "smallest subnormal", "unit roundoff"]
    lines = table("formats", "format", *columns, numbers=7)
    for name in formats.names():
        f = formats.get(name)
        powers = [f"2^{math.frexp(x)[1] - 1}" for x in (f.min_normal, f.min_subnormal, f.unit_roundoff)]
        lines.add_row(name, str(f.precision), str(f.emin), str(f.emax), f"{f.max:.6g}", *powers)
    console().print(lines)


def _inputs() -> None:
    from fpemu import inputs

    _describe("operand distributions", {name: inputs.describe(name) for name in inputs.names()})


def _metrics() -> None:
    from fpemu import metrics

    lines = {name: (metrics.get(name).__doc__ or "").strip().partition("\n")[0] for name in metrics.names()}
    definitions = {name: line.removeprefix("Return ").removeprefix("the ") for name, line in lines.items()}
    _describe("error measures (C, p: the result; R, s: the reference)", definitions)


def _describe(title: str, descriptions: dict[str, str]) -> None:
    lines = table(title, "name", "description")
    for name, description in descriptions.items():
        lines.add_row(name, description)
    console().print(lines)


_KINDS: dict[str, Callable[[], None]] = {
    "hardware": _hardware,
    "schemes": _schemes,
    "experiments": _experiments,
    "formats": _formats,
    "inputs": _inputs,
    "metrics": _metrics,
}
