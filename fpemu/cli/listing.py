"""``fpemu list``: what there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from fpemu.cli.common import console, table
from fpemu.errors import InputError, unknown_name


def listing(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]", help="hardware, schemes, experiments, formats, inputs or metrics; default: all."
        ),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="After 'schemes': one of them.")] = None,
) -> None:
    """List the hardware, schemes, experiments, formats, input distributions and error measures known.

    'fpemu list schemes NAME' shows a scheme with its options.
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
        raise unknown_name("kind of thing", what, _KINDS)


def _overview() -> None:
    from fpemu import formats, inputs, metrics, mma, schemes

    shown = table("what there is: 'fpemu list KIND' says more", "kind", "names")
    shown.add_row("hardware", ", ".join(mma.catalog.architectures()))
    shown.add_row("schemes", ", ".join(schemes.names()))
    shown.add_row("experiments", _experiment_names())
    shown.add_row("formats", ", ".join(formats.names()))
    shown.add_row("inputs", ", ".join(inputs.names()))
    shown.add_row("metrics", ", ".join(metrics.names()))
    console().print(shown)


def _experiment_names() -> str:
    from fpemu.sweep import experiments

    try:
        return ", ".join(experiments.names())
    except InputError:  # the package was installed alone
        return "(none: they come with a checkout)"


def _hardware() -> None:
    from fpemu import mma
    from fpemu.mma.spec import EVIDENCE

    shown = table(
        "matrix instructions (L: products a rounding, F: bits kept in the alignment, E0: floor of its exponent)",
        "architecture", "instruction", "shape", "A, B", "C, D", "arithmetic", "evidence", "L", "F", "E0", "D by",
        numbers=4,
    )  # fmt: skip
    for row in mma.catalog.rows():
        aligned = row.arithmetic in ("truncated", "via-half")
        shown.add_row(
            row.architecture, row.instruction, row.shape, str(row.a_format), str(row.d_format), row.arithmetic,
            row.evidence, str(row.block), str(row.F) if aligned else "-", str(row.E0) if aligned else "-",
            "-" if row.is_integer else str(row.final) + (f", {row.fraction_bits} bits" if row.fraction_bits else ""),
        )  # fmt: skip
    console().print(shown)
    legend = table("evidence", "word", "meaning")
    for word, meaning in EVIDENCE.items():
        legend.add_row(word, meaning)
    console().print(legend)
    named: dict[str, list[str]] = {}
    for gpu, architecture in mma.catalog.gpu_names().items():
        named.setdefault(architecture, []).append(gpu)
    names = table("names accepted", "architecture", "also called")
    for architecture in mma.catalog.architectures():
        names.add_row(architecture, ", ".join(named.get(architecture, [])))
    console().print(names)


def _schemes() -> None:
    from fpemu import schemes

    shown = table("schemes", "scheme", "paper", "parts", "products", "range")
    for name in schemes.names():
        info = schemes.get(name).info
        paper = info.paper if str(info.year) in info.paper or not info.paper else f"{info.paper}, {info.year}"
        shown.add_row(name, paper or "-", ", ".join(info.parts), " ".join(info.products), info.range)
    console().print(shown)


def _scheme(name: str) -> None:
    from fpemu import schemes

    info = schemes.get(name).info
    paper = f"{info.paper}{f', DOI {info.doi}' * bool(info.doi)}"
    console().print(f"{info.name}: {info.title}{f'. {paper}' * bool(paper)}", soft_wrap=True)
    console().print(f"range: {info.range}; error: {info.bound}\n", soft_wrap=True)
    shown = table(f"options of {info.name}: -O NAME=VALUE", "option", "default", "values", "meaning")
    for option in info.options:
        shown.add_row(option.name, str(option.default), option.values, option.meaning)
    console().print(shown)


def _experiments() -> None:
    from fpemu.sweep import experiments

    shown = table("experiments", "experiment", "title", "cells, quick", "cells, full", numbers=2)
    for name in experiments.names():
        one = experiments.load(name)
        shown.add_row(name, one.title, *[str(len(one.cells(size))) for size in experiments.SIZES])
    console().print(shown)


def _formats() -> None:
    from fpemu import formats

    shown = table(
        "formats", "format", "significand bits", "emin", "emax", "largest", "smallest normal", "smallest subnormal",
        "unit roundoff", numbers=7,
    )  # fmt: skip
    for name in formats.names():
        f = formats.get(name)
        numbers = (f.max, f.min_normal, f.min_subnormal, f.unit_roundoff)
        shown.add_row(name, str(f.precision), str(f.emin), str(f.emax), *[f"{x:.6g}" for x in numbers])
    console().print(shown)


def _inputs() -> None:
    from fpemu import inputs

    shown = table("operand distributions", "name", "what")
    for name in inputs.names():
        shown.add_row(name, inputs.describe(name))
    console().print(shown)


def _metrics() -> None:
    from fpemu import metrics

    shown = table("error measures", "name", "what")
    for name in metrics.names():
        lines = (metrics.get(name).__doc__ or "").strip().splitlines()
        shown.add_row(name, lines[0] if lines else "")
    console().print(shown)


_KINDS: dict[str, Callable[[], None]] = {
    "hardware": _hardware,
    "schemes": _schemes,
    "experiments": _experiments,
    "formats": _formats,
    "inputs": _inputs,
    "metrics": _metrics,
}
