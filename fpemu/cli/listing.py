"""``fpemu list``: hardware, schemes, experiments, formats, input distributions and error measures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu.cli.common import EXPERIMENTS, print_table, print_text
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
    from fpemu.reproduce import pages

    try:
        experiments = ", ".join(pages.names())
    except InputError:  # the package was installed without its checkout
        experiments = "(none: they are part of a checkout of fpemu)"
    rows = [
        ("hardware", ", ".join(mma.catalog.architectures())),
        ("schemes", ", ".join(schemes.names())),
        ("experiments", experiments),
        ("formats", ", ".join(formats.names())),
        ("inputs", ", ".join(inputs.names())),
        ("metrics", ", ".join(metrics.names())),
    ]
    print_table("all names; 'fpemu list KIND' describes the names of one kind", ("kind", "names"), rows)


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
    named: dict[str, list[str]] = {}
    for gpu, architecture in mma.catalog.gpu_names().items():
        named.setdefault(architecture, []).append(gpu)
    columns = ["instruction", "A, B", "C, D", "arithmetic", "evidence", "L", "F", "E0", "final"]
    for architecture in mma.catalog.architectures():
        title = ": ".join([architecture, *filter(None, [", ".join(named.get(architecture, []))])])
        instructions = []
        for row in mma.catalog.rows():
            if row.architecture != architecture:
                continue
            bits = f", {row.fraction_bits} bits" if row.fraction_bits else ""
            formats = (str(row.a_format), str(row.d_format))
            final = "-" if row.is_integer else f"{row.final}{bits}"
            first = (f"{row.instruction} {row.shape}", *formats, row.arithmetic, row.evidence)
            instructions.append((*first, *block_fields(row), final))
        print_table(title, columns, instructions, numbers=4)
    print_table("evidence", ("word", "meaning"), EVIDENCE.items())


def _schemes() -> None:
    from fpemu import schemes

    lines = []
    for name in schemes.names():
        info = schemes.get(name).info
        paper = info.paper if str(info.year) in info.paper or not info.paper else f"{info.paper}, {info.year}"
        lines.append((name, paper or "-", ", ".join(info.parts), " ".join(info.products), info.range))
    print_table("schemes", ("scheme", "paper", "parts", "products", "range"), lines)


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
    options = [(option.name, str(option.default), option.values, option.meaning) for option in info.options]
    print_table(f"options of {info.name}: -O NAME=VALUE", ("option", "default", "values", "meaning"), options)


def _experiments() -> None:
    from fpemu.reproduce import pages

    lines = [(name, title, *[_cells(name, size) for size in pages.SIZES]) for name, title in pages.titles().items()]
    print_table("experiments", ("experiment", "title", "cells, quick", "cells, full"), lines, numbers=2)


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
    lines = []
    for name in formats.names():
        f = formats.get(name)
        powers = [f"2^{math.frexp(x)[1] - 1}" for x in (f.min_normal, f.min_subnormal, f.unit_roundoff)]
        lines.append((name, str(f.precision), str(f.emin), str(f.emax), f"{f.max:.6g}", *powers))
    print_table("formats", ("format", *columns), lines, numbers=7)


def _inputs() -> None:
    from fpemu import inputs

    descriptions = [(name, inputs.describe(name)) for name in inputs.names()]
    print_table("operand distributions", ("name", "description"), descriptions)


def _metrics() -> None:
    from fpemu import metrics

    lines = {name: (metrics.get(name).__doc__ or "").strip().partition("\n")[0] for name in metrics.names()}
    definitions = [(name, line.removeprefix("Return ").removeprefix("the ")) for name, line in lines.items()]
    print_table("error measures (C, p: the result; R, s: the reference)", ("name", "description"), definitions)


_KINDS: dict[str, Callable[[], None]] = {
    "hardware": _hardware,
    "schemes": _schemes,
    "experiments": _experiments,
    "formats": _formats,
    "inputs": _inputs,
    "metrics": _metrics,
}
