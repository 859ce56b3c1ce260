"""``fpemu split``: the split of one number by a scheme, bit by bit."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from fpemu.cli.common import parse_options
from fpemu.errors import InputError


def split(
    number: Annotated[str, typer.Argument(help="A decimal number, or a hexadecimal float such as 0x1.8p-3.")],
    scheme: Annotated[str, typer.Option("--scheme", "-s", help="Scheme of the split.")] = "h2sgemm",
    sb: Annotated[int | None, typer.Option("--sb", help="Scaling exponent of the residual (h2sgemm).")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", metavar="NAME=VALUE", help="An option of the scheme.")
    ] = None,
) -> None:
    """Show the split of one number into words: the value of each word, its bits, and the lost bits."""
    from fpemu import schemes

    options = parse_options(option)
    if sb is not None:
        if "sb" in options:
            raise InputError("sb is given twice, by --sb and by --option")
        options["sb"] = sb
    typer.echo(schemes.format_split(schemes.split_table(_number(number), scheme, **options)))


def _number(text: str) -> float:
    try:
        value = float.fromhex(text) if "0x" in text.lower() else float(text)
    except (ValueError, OverflowError) as problem:
        raise InputError(f"{text!r} is not a number") from problem
    if not math.isfinite(value):
        raise InputError(f"{text} is not a finite number: only finite numbers are split")
    return value
