"""``fpemu verify library``: a library's products on this GPU against the emulation by the tabulated orders."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fpemu.cli.common import console, table
from fpemu.cli.verify import AsJson, Fresh, RecordFile, check_options, run_suite
from fpemu.errors import InputError, unknown_name


def library(
    shapes: Annotated[int, typer.Option("--shapes", "-n", help="Number of shapes drawn from the table; 0: all.")] = 20,
    types: Annotated[
        list[str] | None, typer.Option("--types", "-t", help="Only products of this type; may be repeated.")
    ] = None,
    new: Annotated[
        int, typer.Option("--new", help="Number of further random shapes, whose orders probes reveal first.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the operands and of the shapes.")] = 0,
    record: RecordFile = None,
    as_json: AsJson = False,
    fresh: Fresh = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Only list the kinds of orders in the table; needs no GPU.")
    ] = False,
) -> None:
    """Verify cuBLAS products (through PyTorch) on this GPU against 'fpemu.library.emulate'.

    The command compares up to 32 rows and columns of each D. Exit status 0 if all entries are equal, 1 if not, 2
    without a GPU or PyTorch.
    """
    from fpemu.library import TYPES

    kinds = tuple(types or TYPES)
    for kind in kinds:
        if kind not in TYPES:
            raise unknown_name("type of a product", kind, TYPES)
    if listed:
        _list(kinds, as_json)
        return
    if shapes < 0 or new < 0 or seed < 0:
        raise InputError("--shapes, --new and --seed must not be negative")
    check_options(record)
    from fpemu.verify.library import Library

    run_suite(Library(seed, kinds, shapes, new), record, fresh, as_json=as_json)


def _list(types: tuple[str, ...], as_json: bool) -> None:
    """Print the kinds of orders of the table, by type."""
    from fpemu.library import orders
    from fpemu.library.tables import KINDS, summary

    products = [product for product in orders("cublas") if product.type in types]
    counts = summary(products)
    if as_json:
        typer.echo(json.dumps(counts))
        return
    first = products[0]
    title = f"{first.library} {first.version}, {first.hardware}: {len(products):,} products by their order"
    listed = table(title, "order", *counts, "all", numbers=len(counts) + 1)
    for kind, text in KINDS.items():
        each = [count.get(kind, 0) for count in counts.values()]
        if any(each):
            listed.add_row(text, *(str(n or "") for n in each), str(sum(each)))
    console().print(listed)
