"""The orders in which libraries were found to add, as data: a table a file, one for a library's version and a GPU.

A table is gzipped JSON. `orders` lists the distinct orders, in the form of `fpemu.mma.serialise`: a `KOrder` by its
fields, with "stored" if the sums of its slices are rounded before they are added; {"tree": a tree}; or a map of tiles
of D, each with the number of its order; "as" is a type of arithmetic other than the product's. `cases` has a row for
each product: M, N, K, the number of its order, and two digests of the D that the GPU returned for the operands of
`fpemu.library.recorded` (empty if an order was compared on other operands alone).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.files import write_atomic
from fpemu.mma.order import KOrder
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import Tree

FIELDS = ("M", "N", "K", "order", "digest", "sample")
HEAD = ("library", "version", "hardware", "gpu", "driver", "cuda", "torch", "date", "seed", "about")


@dataclass(frozen=True)
class Tiles:
    """Orders that depend on the place in D, as those of stream-K do: for each tile of D, row by row, one order."""

    rows: int
    columns: int
    of: tuple[int, ...]
    orders: tuple[KOrder | Tree, ...]
    stored: tuple[str | None, ...]


Order = KOrder | Tree | Tiles


@lru_cache(maxsize=8)
def read(path: str | Path) -> dict[str, Any]:
    """A table."""
    made: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
    return made


def write(table: dict[str, Any], path: str | Path) -> None:
    """Write a table; the same table gives the same bytes."""
    text = json.dumps(table, separators=(",", ":"))
    write_atomic(path, gzip.compress(text.encode(), 9, mtime=0))


def files(library: str) -> list[Path]:
    """The tables of a library that come with the package, the newest version last."""
    folder = Path(str(resources.files("fpemu.library"))) / "data"
    return sorted(folder.glob(f"{library}-*.json.gz"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


# --- one order as JSON, and back
def encode(order: KOrder | Tree) -> dict[str, Any]:
    """An order as an entry of a table."""
    data = to_dict(order)
    return data if isinstance(order, KOrder) else {"tree": data}


def decode(data: dict[str, Any], orders: Sequence[dict[str, Any]] = ()) -> Order:
    """The order of an entry, or a map of tiles onto other `orders` of the table."""
    if "tiles" in data:
        rows, columns = data["tiles"]
        used = sorted({n for n, _ in data["map"]})
        of = tuple(used.index(n) for n, count in data["map"] for _ in range(count))
        parts = [decode(orders[n]) for n in used]
        stored = tuple(orders[n].get("stored") for n in used)
        return Tiles(rows, columns, of, tuple(p for p in parts if not isinstance(p, Tiles)), stored)
    if "tree" in data:
        tree = data["tree"]
        return from_dict(_unfolded(*tree) if isinstance(tree, list) else tree)
    return KOrder.from_dict({k: v for k, v in data.items() if k not in ("stored", "as")})


def _unfolded(offset: int, body: dict[str, Any]) -> dict[str, Any]:
    """A tree of the tables written until 2026, positions relative to the node above, as `from_dict` takes it."""

    def runs(rows: Sequence[Sequence[Any]], at: int, make: Callable[[int, Any], Any]) -> list[dict[str, Any]]:
        return [{"of": make(at + first, part), "count": n, "step": step} for first, step, n, part in rows]

    def numbers(at: int, rows: Any) -> list[dict[str, Any]]:
        rows = [[0, 1, rows]] if isinstance(rows, int) else rows
        return runs([[*row, None] for row in rows], at, lambda k, _: k)

    if "sum" in body:
        return {**body, "sum": runs(body["sum"], offset, _unfolded)}
    fma = "fma" in body
    tree: dict[str, Any] = (
        {"fma": numbers(offset, body["fma"])} if fma else {"instruction": runs(body["chain"], offset, numbers)}
    )
    return {**tree, "start": _unfolded(offset + body["start"][0], body["start"][1])} if "start" in body else tree


class Builder:
    """Collects cases into a table, equal orders once."""

    def __init__(self, head: dict[str, Any]) -> None:
        self.head = {name: head[name] for name in HEAD if name in head}
        self.orders: list[dict[str, Any]] = []
        self._index: dict[str, int] = {}
        self.rows: dict[tuple[str, str], list[list[Any]]] = {}

    def order(self, data: dict[str, Any]) -> int:
        """The number of an order, given as `encode` makes it (with "stored", "as")."""
        if "tiles" in data:
            data = {**data, "map": [[self.order(part), count] for part, count in data["map"]]}
        text = json.dumps(data, sort_keys=True)
        if text not in self._index:
            self._index[text] = len(self.orders)
            self.orders.append(data)
        return self._index[text]

    def add(
        self, kind: str, layout: str, shape: Sequence[int], order: dict[str, Any], digest: str, sample: str
    ) -> None:
        """One product; a shape that is there already is replaced."""
        if len(shape) != 3:
            raise InputError(f"a shape is M, N, K, not {shape}")
        rows = self.rows.setdefault((kind, layout), [])
        rows[:] = [row for row in rows if row[:3] != list(shape)]
        rows.append([*shape, self.order(order), digest, sample])

    def table(self) -> dict[str, Any]:
        """The table."""
        cases = [
            {"type": kind, "layout": layout, "rows": sorted(rows)} for (kind, layout), rows in sorted(self.rows.items())
        ]
        return {**self.head, "fields": list(FIELDS), "orders": self.orders, "cases": cases}
