"""The orders in which libraries were found to add, as data: a table a file, one for a library's version and a GPU.

A table is gzipped JSON. `orders` lists what differs: a `KOrder` by its fields, with "stored" where the sums of its
slices are rounded before they are added; a tree, folded; or a map of tiles of D, each with the number of its order;
"as" is a type of arithmetic other than the product's own. `cases` has a row for each product: M, N, K, the number of
its order, and two digests of the D that the GPU returned for the operands of `fpemu.gpu.orders.recorded` (empty
where an order was compared on other operands alone).
"""

from __future__ import annotations

import dataclasses
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
from fpemu.mma.tree import Chain, Sum, Tree

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
    folder = Path(str(resources.files("fpemu.gpu.orders")))
    return sorted(folder.glob(f"{library}-*.json.gz"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


# --- one order as JSON, and back
def encode(order: KOrder | Tree) -> dict[str, Any]:
    """An order as data of JSON."""
    if isinstance(order, KOrder):
        default = KOrder()
        return {k: v for k, v in dataclasses.asdict(order).items() if v != getattr(default, k)}
    offset, body = _fold(order)
    return {"tree": [offset, body]}


def decode(data: dict[str, Any], orders: Sequence[dict[str, Any]] = ()) -> Order:
    """The order that `encode` wrote, or a map of tiles onto other `orders` of the table."""
    if "tiles" in data:
        rows, columns = data["tiles"]
        used = sorted({n for n, _ in data["map"]})
        of = tuple(used.index(n) for n, count in data["map"] for _ in range(count))
        parts = [decode(orders[n]) for n in used]
        stored = tuple(orders[n].get("stored") for n in used)
        return Tiles(rows, columns, of, tuple(p for p in parts if not isinstance(p, Tiles)), stored)
    if "tree" in data:
        return _unfold(*data["tree"])
    return KOrder(**{k: v for k, v in data.items() if k not in ("stored", "as")})


def _runs(values: Sequence[int]) -> list[list[int]]:
    """Numbers as runs of [first, step, count]."""
    out: list[list[int]] = []
    for v in values:
        if out and out[-1][2] == 1:
            out[-1][1:] = [v - out[-1][0], 2]
        elif out and v == out[-1][0] + out[-1][1] * out[-1][2]:
            out[-1][2] += 1
        else:
            out.append([v, 0, 1])
    return out


def _numbers(runs: Sequence[Sequence[int]], offset: int) -> tuple[int, ...]:
    return tuple(offset + first + step * i for first, step, count in runs for i in range(count))


def _repeats(items: Sequence[tuple[int, Any]]) -> list[list[Any]]:
    """(offset, body) in a row that differ by a constant offset alone, as [offset, shift, count, body]."""
    out: list[list[Any]] = []
    for offset, body in items:
        last = out[-1] if out and out[-1][3] == body else None
        if last is not None and last[2] == 1:
            last[1:3] = [offset - last[0], 2]
        elif last is not None and offset == last[0] + last[1] * last[2]:
            last[2] += 1
        else:
            out.append([offset, 0, 1, body])
    return out


def _fold(tree: Tree) -> tuple[int, dict[str, Any]]:
    """A tree as its lowest position and the rest relative to that."""
    body: dict[str, Any] = {}
    if isinstance(tree, Sum):
        parts = [_fold(part) for part in tree.parts]
        low = min(offset for offset, _ in parts)
        body["sum"] = _repeats([(offset - low, part) for offset, part in parts])
        body.update({name: v for name, v in (("fmt", tree.fmt), ("stored", tree.stored)) if v})
        return low, body
    start = None if tree.start is None else _fold(tree.start)
    low = min([k for block in tree.blocks for k in block] + ([start[0]] if start else []))
    if tree.kind == "fma":
        body["fma"] = _runs([block[0] - low for block in tree.blocks])
    else:
        blocks = [(block[0] - low, _runs([k - block[0] for k in block])) for block in tree.blocks]
        body["chain"] = _repeats([(o, r[0][2] if len(r) == 1 and r[0][1] in (0, 1) else r) for o, r in blocks])
    if start:
        body["start"] = [start[0] - low, start[1]]
    return low, body


def _unfold(offset: int, body: dict[str, Any]) -> Tree:
    if "sum" in body:
        parts = _each(body["sum"], offset, _unfold)
        return Sum(tuple(parts), body.get("fmt"), body.get("stored"))
    start = _unfold(offset + body["start"][0], body["start"][1]) if "start" in body else None
    if "fma" in body:
        return Chain(tuple((k,) for k in _numbers(body["fma"], offset)), "fma", start)
    blocks = _each(body["chain"], offset, lambda o, b: _numbers([[0, 1, b]] if isinstance(b, int) else b, o))
    return Chain(tuple(blocks), "instruction", start)


def _each(rows: Sequence[Sequence[Any]], offset: int, make: Callable[[int, Any], Any]) -> list[Any]:
    return [make(offset + first + shift * i, body) for first, shift, count, body in rows for i in range(count)]


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
