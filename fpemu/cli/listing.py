"""``fpemu list``: hardware, schemes, experiments, formats, input distributions and error measures."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated

import typer

from fpemu import formats, inputs, metrics, mma, schemes
from fpemu._system import read_json
from fpemu.cli import options as cli
from fpemu.errors import InputError, unknown_name
from fpemu.mma.catalog import documented_fields
from fpemu.mma.spec import EVIDENCE
from fpemu.reproduce import pages
from fpemu.reproduce.figures import size_folder

if TYPE_CHECKING:
    from fpemu.mma import MmaSpec

_SYMBOLS = {
    "K": "length of the sums",
    "k": "length of the instruction",
    "L": "block length of the instruction",
    "eps": "relative error of the sum of a block",
}
"""Symbols of the formulas of errors"""


def listing(
    what: Annotated[str | None, "KIND", "hardware, schemes, experiments, formats, inputs or metrics."] = None,
    name: Annotated[str | None, "NAME", "The name of a scheme or an experiment, after its kind."] = None,
    /,
    *,
    experiments: str | None = None,
) -> None:
    """List hardware, schemes, experiments, formats, input distributions and error measures.

    'fpemu list schemes NAME' prints a scheme with its options, and 'fpemu list experiments PAPER/FIGURE' a figure with
    the parameters that 'fpemu reproduce' changes by --set.
    """
    kinds = {
        "hardware": (_hardware, mma.catalog.architectures),
        "schemes": (_schemes, schemes.names),
        "experiments": (_experiments, pages.names),
        "formats": (_formats, formats.names),
        "inputs": (_inputs, inputs.names),
        "metrics": (_metrics, metrics.names),
    }
    details = {"schemes": _scheme, "experiments": _experiment}
    if name is not None and what not in details:
        raise InputError(f"only 'fpemu list schemes' and 'fpemu list experiments' take a name, not {what!r}")
    if what is not None and what not in kinds:
        raise unknown_name("kind", what, kinds)
    if name is not None:
        details[str(what)](name)
    elif what is not None:
        kinds[what][0]()
    else:
        rows = []
        for kind, (_, names) in kinds.items():
            try:
                rows.append((kind, ", ".join(names())))
            except InputError:  # the package was installed without its checkout
                rows.append((kind, "(none: they are part of a checkout of fpemu)"))
        cli.print_table("all names; 'fpemu list KIND' describes the names of one kind", ("kind", "names"), rows)


def block_fields(row: MmaSpec) -> list[str]:
    """Return L, F and E0 of a row: "-" where its arithmetic has none, and an asterisk where the field is documented."""
    names = ["block", "F", "E0"] if row.rules.truncates else ["block"]
    documented = documented_fields(row)
    return [f"{getattr(row, name)}{'*' * (name in documented)}" for name in names] + ["-"] * (3 - len(names))


def results(row: MmaSpec) -> str:
    """Return the format of C and D, or both where they differ."""
    return str(row.d_format) if row.c_format == row.d_format else f"{row.c_format}, {row.d_format}"


def _hardware() -> None:
    typer.echo(
        "Matrix instructions by architecture, with the other names that --hardware takes; it also takes an instruction"
        " that one architecture has, by its name in PTX or in machine code. L: products per rounding; F: alignment"
        " width, the bits kept below the largest exponent; E0: minimum alignment exponent; final: rounding of D. *:"
        " documented, because the recordings of a replayed row do not determine this field. A and B may have different"
        " formats of fp8, and on tcgen05 and blackwell-rtx mma m16n8k32 any two of fp8, fp6 and fp4.\n"
    )
    columns = ["instruction", "A, B", "C, D", "arithmetic", "evidence", "L", "F", "E0", "final"]
    for architecture in mma.catalog.architectures():
        others = ", ".join(gpu for gpu, of in mma.catalog.gpu_names().items() if of == architecture)
        instructions = []
        for row in (*mma.catalog.rows(), *mma.catalog.block_scaled()):
            if row.architecture == architecture:
                bits = f", {row.fraction_bits} bits" if row.fraction_bits else ""
                final = "-" if row.is_integer else f"{row.final}{bits}"
                scaled = f" × {row.scale}/{row.scale_block}" if row.scale else ""
                first = f"{row.instruction} {row.shape}", f"{row.a_format}{scaled}", results(row)
                instructions.append((*first, row.arithmetic, row.evidence, *block_fields(row), final))
        cli.print_table(f"{architecture}{f': {others}' * bool(others)}", columns, instructions, numbers=4)
    cli.print_table("evidence", ("word", "meaning"), EVIDENCE.items())


def _schemes() -> None:
    lines = []
    for info in (schemes.get(name).info for name in schemes.names()):
        paper = info.paper if str(info.year) in info.paper or not info.paper else f"{info.paper}, {info.year}"
        lines.append((info.name, paper or "-", ", ".join(info.parts), " ".join(info.products), info.range))
    cli.print_table("schemes", ("scheme", "paper", "parts", "products", "range"), lines)
    names = [(entry.name, entry.scheme, entry.evidence) for entry in schemes.aliases()]
    cli.print_table("names of frameworks, which --scheme takes too", ("name", "scheme", "evidence"), names)


def _scheme(name: str) -> None:
    if ":" in name:
        typer.echo(f"{schemes.alias(name)}\n")
    info = schemes.get(name).info
    doi = f", DOI {info.doi}" if info.doi else ""
    relative = "" if "|" in info.bound else " relative to |A||B|"
    used = [f"{symbol}: {text}" for symbol, text in _SYMBOLS.items() if re.search(rf"\b{symbol}\b", info.bound)]
    typer.echo(f"{info.name}: {info.title}" + (f". {info.paper}{doi}" if info.paper else ""))
    typer.echo(f"range: {info.range}")
    typer.echo(f"error{relative}: {info.bound}" + (f"  ({', '.join(used)})" if used else "") + "\n")
    options = [(option.name, str(option.default), option.values, option.meaning) for option in info.options]
    cli.print_table(f"options of {info.name}: -O NAME=VALUE", ("option", "default", "values", "meaning"), options)


def _experiments() -> None:
    lines = []
    for name, title in pages.titles().items():
        counts = []
        for size in pages.SIZES:
            # the number of cells in the committed record, because the page would have to be executed to count them
            record = size_folder(pages.root().parent / "figures", size) / f"{name}.json"
            content = read_json(record) if record.is_file() else None
            counts.append(str(content.get("cells", "-")) if isinstance(content, dict) else "-")
        lines.append((name, title, *counts))
    cli.print_table("experiments", ("experiment", "title", "cells, quick", "cells, full"), lines, numbers=2)


def _experiment(name: str) -> None:
    figure = pages.load(name)
    typer.echo(f"{name}: {figure.title}\n{figure.page.paper}\n")
    quick = figure.page.quick
    lines = [(n, pages.in_words(x), pages.in_words(quick.get(n, x))) for n, x in figure.page.published.items()]
    if not lines:
        typer.echo("This figure has no parameters: its cells are fixed, or of a record")
        return
    cli.print_table(f"parameters: fpemu reproduce {name} --set NAME=VALUE", ("parameter", "published", "quick"), lines)


def _formats() -> None:
    columns = ["precision, bits", "emin", "emax", "largest", "smallest normal", "smallest subnormal", "unit roundoff"]
    lines = []
    for f in map(formats.get, formats.names()):
        powers = [f"2^{math.frexp(x)[1] - 1}" for x in (f.min_normal, f.min_subnormal, f.unit_roundoff)]
        lines.append((f.name, str(f.precision), str(f.emin), str(f.emax), f"{f.max:.6g}", *powers))
    cli.print_table("formats", ("format", *columns), lines, numbers=7)


def _inputs() -> None:
    descriptions = [(name, inputs.describe(name)) for name in inputs.names()]
    cli.print_table("operand distributions", ("name", "description"), descriptions)


def _metrics() -> None:
    lines = {name: (metrics.get(name).__doc__ or "").strip().partition("\n")[0] for name in metrics.names()}
    definitions = [(name, line.removeprefix("Return ").removeprefix("the ")) for name, line in lines.items()]
    cli.print_table("error measures (C, p: the result; R, s: the reference)", ("name", "description"), definitions)
