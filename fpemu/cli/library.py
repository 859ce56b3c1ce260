"""``fpemu verify library``: a library's products on this GPU against the emulation by the recorded orders."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fpemu.cli.common import console, note, progress, table
from fpemu.errors import InputError, unknown_name

if TYPE_CHECKING:
    from fpemu.library import Case

_SHOWN = 10  # products that differ, by name
_SECONDS = 60.0  # for one new product

ABOUT = (
    "Products of a library on a GPU against the emulation by the orders on record (fpemu.library.orders), on seeded"
    " operands (fpemu.library.recorded). compared: products of the table; new: of shapes that are in no table, whose"
    " orders were revealed first: products with equal bits in a sample of D, and products asked. differ: the others"
)


def library(
    shapes: Annotated[int, typer.Option("--shapes", "-n", help="Shapes of the table, drawn by the seed; 0: all.")] = 20,
    types: Annotated[
        list[str] | None, typer.Option("--types", "-t", help="Only products of this type (again for more).")
    ] = None,
    new: Annotated[int, typer.Option("--new", help="Random shapes beside, whose orders are revealed first.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Of the operands and the shapes drawn.")] = 0,
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
    here = _here()
    start = time.monotonic()
    cases = _drawn(shapes, kinds, seed)
    rows = []
    with progress() as bars:
        asked: list[Case | tuple[str, str, tuple[int, int, int]]] = [*cases, *_new(new, kinds, seed)]
        for case in bars.track(asked, description="products"):
            rows.append(_new_row(*case, seed) if isinstance(case, tuple) else _row(case, seed))
    made = _record(rows, seed, here, time.monotonic() - start)
    text = json.dumps(made, indent=1) + "\n"
    if record is not None:
        write_atomic(record, text.encode())
    if as_json:
        typer.echo(text, nl=False)
    else:
        _show(made)
    if made["differ"]:
        raise typer.Exit(1)


def _list(types: tuple[str, ...], as_json: bool) -> None:
    """The kinds of orders of the table, by type."""
    from fpemu.library import orders
    from fpemu.library.kinds import KINDS, summary

    cases = [case for case in orders("cublas") if case.type in types]
    found = summary(cases)
    if as_json:
        typer.echo(json.dumps(found))
        return
    kinds = [kind for kind in KINDS if any(kind in count for count in found.values())]
    of = f"{cases[0].library} {cases[0].version}, {cases[0].hardware}" if cases else "no products"
    listed = table(f"{of}: {len(cases):,} products by their order", "order", *found, "all", numbers=len(found) + 1)
    for kind in kinds:
        each = [count.get(kind, 0) for count in found.values()]
        listed.add_row(KINDS[kind], *(str(n or "") for n in each), str(sum(each)))
    console().print(listed)


def _here() -> dict[str, str]:
    """The GPU and the library; InputError if either is missing."""
    import importlib
    from importlib import metadata

    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise InputError(
            "verify: library products are run by PyTorch, which is not installed here: pip install torch"
        ) from None
    if not torch.cuda.is_available():
        raise InputError("verify: PyTorch finds no GPU here")
    found = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return {**found, "cublas": metadata.version(name)}
        except metadata.PackageNotFoundError:
            continue
    return {**found, "cublas": "unknown"}


def _drawn(count: int, kinds: tuple[str, ...], seed: int) -> list[Case]:
    """The table's products of some shapes."""
    import numpy as np

    from fpemu.library import orders

    known = [case for case in orders("cublas") if case.type in kinds]
    every = sorted({(case.M, case.N, case.K) for case in known})
    if 0 < count < len(every):
        chosen = {every[i] for i in np.random.default_rng(seed).choice(len(every), count, replace=False)}
        known = [case for case in known if (case.M, case.N, case.K) in chosen]
    return known


def _new(count: int, kinds: tuple[str, ...], seed: int) -> list[tuple[str, str, tuple[int, int, int]]]:
    """Products of shapes from 1 to 3000, drawn evenly in their logarithm."""
    import numpy as np

    from fpemu.library import LAYOUTS

    rng = np.random.default_rng([seed, 1])
    drawn = [tuple(int(x) for x in np.exp2(rng.uniform(0, np.log2(3000), 3))) for _ in range(count)]
    return [(kind, layout, (s[0], s[1], s[2])) for s in drawn for kind in kinds for layout in LAYOUTS]


def _row(case: Case, seed: int) -> dict[str, Any]:
    """One product of the table compared."""
    import numpy as np

    from fpemu.library import entries
    from fpemu.library.products import Product
    from fpemu.library.recorded import digest_of, places

    A, B, D, whole = Product(case.type, case.layout, (case.M, case.N, case.K)).sampled(seed)
    wanted = entries(case, A, B, *places(case.M, case.N))
    differ = int(np.sum(wanted.view(f"u{wanted.itemsize}") != np.ascontiguousarray(D).view(f"u{D.itemsize}")))
    return {
        "type": case.type,
        "layout": case.layout,
        "shape": [case.M, case.N, case.K],
        "outputs": int(D.size),
        "differ": differ,
        "digest": whole,
        "sample": digest_of(D),
        "new": False,
    }


def _new_row(kind: str, layout: str, shape: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """A product whose order is revealed first."""
    from fpemu import gpu
    from fpemu.library import finding
    from fpemu.library.products import Product

    row: dict[str, Any] = {"type": kind, "layout": layout, "shape": list(shape), "new": True}
    asked = Product(kind, layout, shape, deadline=time.monotonic() + _SECONDS)
    try:
        order, status = finding.find(asked, seed, device=None if gpu.available() else "cuda")
        row.update(order=order, differ=int(status != "same"))
    except (InputError, TimeoutError) as problem:
        row.update(differ=1, problem=str(problem))
    return {**row, "probes": asked.probes, "calls": asked.calls}


def _record(rows: list[dict[str, Any]], seed: int, here: dict[str, str], seconds: float) -> dict[str, Any]:
    import datetime

    import fpemu
    from fpemu.library import orders
    from fpemu.verify.records import driver

    count: Counter[tuple[bool, str, str]] = Counter()
    same: Counter[tuple[bool, str, str]] = Counter()
    for row in rows:
        key = row["new"], row["type"], row["layout"]
        count[key] += 1
        same[key] += row["differ"] == 0
    parts = {
        name: {f"{kind} {layout}": [same[n, kind, layout], c] for (n, kind, layout), c in count.items() if n == is_new}
        for name, is_new in (("compared", False), ("new", True))
    }
    return {
        "about": ABOUT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__,
        "device": {**here, "driver": driver()},
        "table": next((f"{c.library} {c.version} {c.hardware}" for c in orders("cublas")), ""),
        "seed": seed,
        "seconds": round(seconds, 1),
        **parts,
        "differ": [row for row in rows if row["differ"]],
        "samples": [[row["type"], row["layout"], *row["shape"], row["sample"]] for row in rows if "sample" in row],
    }


def _show(made: dict[str, Any]) -> None:
    where = made["device"]
    if where["cublas"] not in made["table"]:
        note(f"fpemu: verify: the table is of {made['table']}, here is cuBLAS {where['cublas']}")
    for part, title in (("compared", "by the table"), ("new", "by orders revealed now")):
        if made[part]:
            listed = table(f"cuBLAS {where['cublas']}, {where['gpu']}, {title}", "product", "same", "of", numbers=2)
            for name, (same, count) in made[part].items():
                listed.add_row(name, str(same), str(count))
            console().print(listed)
    for row in made["differ"][:_SHOWN]:
        why = row.get("problem", f"{row['differ']} of {row.get('outputs', 'the')} outputs differ")
        console().print(f"{row['type']} {row['layout']} {'x'.join(map(str, row['shape']))}: {why}")
    if len(made["differ"]) > _SHOWN:
        console().print(f"... and {len(made['differ']) - _SHOWN} more")
