"""``fpemu verify library``: a library's products on this GPU against the emulation by the tabulated orders."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.library import Product

_SHOWN = 10  # mismatching products listed by name
_SECONDS = 60.0  # time limit of the probes of one new shape

ABOUT = (
    "Products of a library on a GPU against the emulation by the tabulated orders (fpemu.library.orders), on seeded"
    " operands (fpemu.library.operands). compared: products of the table; new: products of shapes outside the table,"
    " with orders revealed first: number with equal bits in a sample of D, and number of products. differ: the other"
    " products"
)


def library(
    shapes: Annotated[int, typer.Option("--shapes", "-n", help="Shapes of the table, drawn by the seed; 0: all.")] = 20,
    types: Annotated[
        list[str] | None, typer.Option("--types", "-t", help="Only products of this type (repeatable).")
    ] = None,
    new: Annotated[int, typer.Option("--new", help="Random shapes besides, with orders revealed first.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the operands and of the shapes.")] = 0,
    record: Annotated[str | None, typer.Option("--record", metavar="FILE.json", help="Write the outcomes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of the table.")] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Only list the kinds of orders in the table; needs no GPU.")
    ] = False,
) -> None:
    """Verify cuBLAS products (through PyTorch) on this GPU against `fpemu.library.emulate`.

    Up to 32 rows and columns of each D are compared. Exit status 0 if all are equal, 1 if not, 2 without a GPU or
    PyTorch.
    """
    from fpemu.files import check_writable, write_atomic
    from fpemu.library import TYPES
    from fpemu.library.cublas import environment

    kinds = tuple(types or TYPES)
    for kind in kinds:
        if kind not in TYPES:
            raise unknown_name("type of a product", kind, TYPES)
    if listed:
        _list(kinds, as_json)
        return
    if shapes < 0 or new < 0 or seed < 0:
        raise InputError("--shapes, --new and --seed must not be negative")
    if record is not None:
        if not record.endswith(".json"):
            raise InputError(f"{record!r}: the record is written as .json")
        check_writable(record)
    device = environment()
    start = time.monotonic()
    rows = []
    with progress() as bars:
        cases: list[Product | tuple[str, str, tuple[int, int, int]]] = [*_drawn(shapes, kinds, seed)]
        cases += _new(new, kinds, seed)
        for case in bars.track(cases, description="products"):
            rows.append(_new_row(*case, seed) if isinstance(case, tuple) else _row(case, seed))
    outcome = _record(rows, seed, device, time.monotonic() - start)
    text = json.dumps(outcome, indent=1) + "\n"
    if record is not None:
        write_atomic(record, text.encode())
    if as_json:
        typer.echo(text, nl=False)
    else:
        _show(outcome)
    if outcome["differ"]:
        raise typer.Exit(1)


def _list(types: tuple[str, ...], as_json: bool) -> None:
    """Print the kinds of orders of the table, by type."""
    from fpemu.library import orders
    from fpemu.library.kinds import KINDS, summary

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


def _drawn(count: int, kinds: tuple[str, ...], seed: int) -> list[Product]:
    """The table's products of some shapes."""
    import numpy as np

    from fpemu.library import orders

    known = [product for product in orders("cublas") if product.type in kinds]
    shapes = sorted({(product.M, product.N, product.K) for product in known})
    if 0 < count < len(shapes):
        chosen = {shapes[i] for i in np.random.default_rng(seed).choice(len(shapes), count, replace=False)}
        known = [product for product in known if (product.M, product.N, product.K) in chosen]
    return known


def _new(count: int, kinds: tuple[str, ...], seed: int) -> list[tuple[str, str, tuple[int, int, int]]]:
    """Products of shapes from 1 to 3000, drawn evenly in their logarithm."""
    import numpy as np

    from fpemu.library import LAYOUTS

    rng = np.random.default_rng([seed, 1])
    drawn = [tuple(int(x) for x in np.exp2(rng.uniform(0, np.log2(3000), 3))) for _ in range(count)]
    return [(kind, layout, (s[0], s[1], s[2])) for s in drawn for kind in kinds for layout in LAYOUTS]


def _row(product: Product, seed: int) -> dict[str, Any]:
    """The comparison of one product of the table."""
    import numpy as np

    from fpemu.library.cublas import CublasProduct
    from fpemu.library.emulation import predict_entries
    from fpemu.library.operands import digest_of, sample_indices

    shape = (product.M, product.N, product.K)
    A, B, D, digest = CublasProduct(product.type, product.layout, shape).sampled(seed)
    expected = predict_entries(product, A, B, *sample_indices(product.M, product.N))
    differ = int(np.sum(expected.view(f"u{expected.itemsize}") != np.ascontiguousarray(D).view(f"u{D.itemsize}")))
    row = {"type": product.type, "layout": product.layout, "shape": list(shape), "outputs": int(D.size)}
    return {**row, "differ": differ, "digest": digest, "sample": digest_of(D), "new": False}


def _new_row(kind: str, layout: str, shape: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """The comparison of a product after its order was revealed."""
    from fpemu import gpu
    from fpemu.library import revealing
    from fpemu.library.cublas import CublasProduct

    row: dict[str, Any] = {"type": kind, "layout": layout, "shape": list(shape), "new": True}
    product = CublasProduct(kind, layout, shape, deadline=time.monotonic() + _SECONDS)
    try:
        order, equal = revealing.find(product, seed, device="cpu" if gpu.available() else "cuda")
        row.update(order=order, differ=int(not equal))
    except (InputError, TimeoutError) as problem:
        row.update(differ=1, problem=str(problem))
    return {**row, "probes": product.probes, "calls": product.calls}


def _record(rows: list[dict[str, Any]], seed: int, device: dict[str, str], seconds: float) -> dict[str, Any]:
    import datetime

    import fpemu
    from fpemu.library import orders
    from fpemu.verify.records import driver

    def by_type(new: bool) -> dict[str, list[int]]:
        some = [(f"{row['type']} {row['layout']}", row["differ"] == 0) for row in rows if row["new"] == new]
        count, equal = Counter(name for name, _ in some), Counter(name for name, same in some if same)
        return {name: [equal[name], n] for name, n in count.items()}

    return {
        "about": ABOUT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__,
        "device": {**device, "driver": driver()},
        "table": next((f"{p.library} {p.version} {p.hardware}" for p in orders("cublas")), ""),
        "seed": seed,
        "seconds": round(seconds, 1),
        "compared": by_type(False),
        "new": by_type(True),
        "differ": [row for row in rows if row["differ"]],
        "samples": [[row["type"], row["layout"], *row["shape"], row["sample"]] for row in rows if "sample" in row],
    }


def _show(outcome: dict[str, Any]) -> None:
    device = outcome["device"]
    if device["cublas"] not in outcome["table"]:
        note(f"fpemu: verify: the table is of {outcome['table']}, this GPU has cuBLAS {device['cublas']}")
    for part, title in (("compared", "by the table"), ("new", "by orders revealed now")):
        if outcome[part]:
            listed = table(f"cuBLAS {device['cublas']}, {device['gpu']}, {title}", "product", "equal", "of", numbers=2)
            for name, (equal, count) in outcome[part].items():
                listed.add_row(name, str(equal), str(count))
            console().print(listed)
    for row in outcome["differ"][:_SHOWN]:
        why = row.get("problem", f"{row['differ']} of {row.get('outputs', 'the')} outputs mismatch")
        console().print(f"{row['type']} {row['layout']} {'x'.join(map(str, row['shape']))}: {why}")
    if len(outcome["differ"]) > _SHOWN:
        console().print(f"... and {len(outcome['differ']) - _SHOWN} more")
