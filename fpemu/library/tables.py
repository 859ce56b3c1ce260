"""Tables of measured summation orders: one file for each version of a library and GPU.

A table is gzipped JSON. ``orders`` lists the distinct orders in the form of `fpemu.mma.serialise`: the fields of a
`KOrder`, with "stored" if the partial sums are rounded before they are added; {"tree": a tree}; or a map of tiles of D
to the indices of their orders. "as" names the arithmetic where it differs from the product's type. ``cases`` has one
row for each product: M, N, K, the index of its order, and two digests of the GPU's D for the operands of
`fpemu.library.operands` (empty if the order was compared on other operands only).
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from fpemu.arguments import LARGEST, checked, choice, integers
from fpemu.errors import InputError, unknown_name
from fpemu.files import write_atomic
from fpemu.library.product import LAYOUTS, TYPES, Layout, Order, Product, Tiles, instruction
from fpemu.mma.order import KOrder
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import Tree

FIELDS = ("M", "N", "K", "order", "digest", "sample")
HEAD = ("library", "version", "hardware", "gpu", "driver", "cuda", "torch", "date", "seed", "about")


@checked
def orders(library: str = "cublas", *, version: str | None = None, hardware: str = "H200") -> Iterator[Product]:
    """Return an iterator over the products of a library whose summation orders are tabulated.

    Parameters
    ----------
    library : {"cublas"}
        Library.
    version : str, optional
        Version of the library. Default: the newest in the tables.
    hardware : str
        GPU of the table.

    Returns
    -------
    iterator of Product
        The products of the table; one after another is decoded.

    Raises
    ------
    InputError
        No table for these names.
    """
    return _products(_table(library, version, hardware))


def _products(table: dict[str, Any]) -> Iterator[Product]:
    decoded: dict[int, Order] = {}
    for group in table["cases"]:
        for row in group["rows"]:
            product = _product(table, group["type"], group["layout"], row, decoded.get(row[3]))
            decoded[row[3]] = product.order
            yield product


@checked
def lookup(
    library: str,
    type: str,
    shape: tuple[int, int, int],
    *,
    layout: Layout = "NN",
    version: str | None = None,
    hardware: str = "H200",
) -> Product:
    """Return the product of one type, layout and shape from a library's table.

    Parameters
    ----------
    library : {"cublas"}
        Library.
    type : str
        Type, as in `Product`.
    shape : (M, N, K)
        Sizes of the product.
    layout : {"NN", "TN"}
        Layout, as in `Product`.
    version : str, optional
        Version of the library. Default: the newest in the tables.
    hardware : str
        GPU of the table.

    Returns
    -------
    Product
        The table's row.

    Raises
    ------
    InputError
        The product is not in the table; the message names the nearest shapes in it.

    Examples
    --------
    >>> lookup("cublas", "fp16", (512, 512, 8192)).order
    KOrder(split=4096)
    """
    sizes = integers("shape", shape, 1, LARGEST, length=3)
    choice("type of a product", type, TYPES)
    choice("layout", layout, LAYOUTS)
    table = _table(library, version, hardware)
    rows = [r for g in table["cases"] if (g["type"], g["layout"]) == (type, layout) for r in g["rows"]]
    for row in rows:
        if tuple(row[:3]) == tuple(sizes):
            return _product(table, type, layout, row)

    def distance(row: list[Any]) -> float:
        return sum(abs(math.log2(max(x, 0.5) / y)) for x, y in zip(sizes, row, strict=False))

    nearest = ", ".join("x".join(map(str, row[:3])) for row in sorted(rows, key=distance)[:3])
    raise InputError(
        f"{library} {table['version']} on {hardware}: the table has no order of {type} {layout}"
        f" {'x'.join(map(str, sizes))} (MxNxK; the nearest shapes are {nearest or 'none'}); on that GPU `fpemu reveal`"
        " finds the order, and fpemu.mma.gemm accepts it"
    )


def _table(library: str, version: str | None, hardware: str) -> dict[str, Any]:
    libraries = sorted({path.name.split("-")[0] for path in files("*")})
    if library == "openblas":
        raise InputError("OpenBLAS's orders follow from the shape, without a table: use fpemu.library.openblas.tree")
    if library not in libraries:
        raise unknown_name("library", library, libraries)
    tables = [read(path) for path in files(library)]
    on_gpu = [t for t in tables if t["hardware"].lower() == str(hardware).lower()]
    if not on_gpu:
        raise unknown_name(f"GPU with a table of {library}", hardware, sorted({t["hardware"] for t in tables}))
    versions = {t["version"]: t for t in on_gpu}
    if version is None:
        return on_gpu[-1]
    if version not in versions:
        raise unknown_name(f"version of {library}", version, list(versions))
    return versions[version]


def _product(table: dict[str, Any], kind: str, layout: str, row: list[Any], decoded: Order | None = None) -> Product:
    M, N, K, index, digest, sample = row
    return product_of(table, kind, layout, (M, N, K), table["orders"][index], digest, sample, decoded)


def product_of(
    table: dict[str, Any],
    kind: str,
    layout: str,
    shape: tuple[int, int, int],
    order: dict[str, Any],
    digest: str = "",
    sample: str = "",
    decoded: Order | None = None,
) -> Product:
    """The product of a table's entry `order` (`decoded`: the same order, decoded before)."""
    arithmetic = order.get("as", kind)
    return Product(
        table["library"],
        table["version"],
        table["hardware"],
        kind,
        layout,
        *shape,
        order=decoded or decode(order, table["orders"]),
        spec=instruction(arithmetic),
        rounded="tf32" if arithmetic == "tf32" else None,
        stored=order.get("stored"),
        digest=digest,
        sample=sample,
        seed=table["seed"],
    )


# --- files
@lru_cache(maxsize=8)
def read(path: str | Path) -> dict[str, Any]:
    """Read a table."""
    table: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
    return table


def write(table: dict[str, Any], path: str | Path) -> None:
    """Write a table; equal tables give equal bytes."""
    text = json.dumps(table, separators=(",", ":"))
    write_atomic(path, gzip.compress(text.encode(), 9, mtime=0))


def files(library: str) -> list[Path]:
    """The package's tables of a library, the newest version last."""
    folder = Path(str(resources.files("fpemu.library"))) / "data"
    return sorted(folder.glob(f"{library}-*.json.gz"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


# --- one order as an entry of a table
def encode(order: KOrder | Tree) -> dict[str, Any]:
    """An order as an entry of a table."""
    data = to_dict(order)
    return data if isinstance(order, KOrder) else {"tree": data}


def decode(entry: dict[str, Any], orders: Sequence[dict[str, Any]] = ()) -> Order:
    """The order of an entry; a map of tiles refers to the table's other `orders`."""
    if "tiles" in entry:
        rows, columns = entry["tiles"]
        used = sorted({n for n, _ in entry["map"]})
        of = tuple(used.index(n) for n, count in entry["map"] for _ in range(count))
        stored = tuple(orders[n].get("stored") for n in used)
        return Tiles(rows, columns, of, tuple(_single(orders[n]) for n in used), stored)
    return _single(entry)


def _single(entry: dict[str, Any]) -> KOrder | Tree:
    return from_dict(entry.get("tree", {k: v for k, v in entry.items() if k not in ("stored", "as")}))


class Builder:
    """Collects products into a table that holds equal orders once."""

    def __init__(self, head: dict[str, Any]) -> None:
        self.head = {name: head[name] for name in HEAD if name in head}
        self.orders: list[dict[str, Any]] = []
        self._index: dict[str, int] = {}
        self.rows: dict[tuple[str, str], list[list[Any]]] = {}

    def order(self, entry: dict[str, Any]) -> int:
        """The index of an order, given in the form of `encode` (with "stored", "as")."""
        if "tiles" in entry:
            entry = {**entry, "map": [[self.order(order), count] for order, count in entry["map"]]}
        text = json.dumps(entry, sort_keys=True)
        if text not in self._index:
            self._index[text] = len(self.orders)
            self.orders.append(entry)
        return self._index[text]

    def add(
        self, kind: str, layout: str, shape: Sequence[int], order: dict[str, Any], digest: str, sample: str
    ) -> None:
        """Add one product (M, N, K), or replace the row of this shape."""
        rows = self.rows.setdefault((kind, layout), [])
        rows[:] = [row for row in rows if row[:3] != list(shape)]
        rows.append([*shape, self.order(order), digest, sample])

    def table(self) -> dict[str, Any]:
        """The table."""
        cases = [
            {"type": kind, "layout": layout, "rows": sorted(rows)} for (kind, layout), rows in sorted(self.rows.items())
        ]
        return {**self.head, "fields": list(FIELDS), "orders": self.orders, "cases": cases}
