"""Recorded products of a library: the class `Product`, and the rows of a file for each version of a library and GPU.

A table is gzipped JSON. ``orders`` lists the distinct orders: {"configuration": the five fields of a `Configuration`},
or an order in the form of `fpemu.mma.serialise`: the fields of a `KOrder`, with "stored" if
the partial sums are rounded before they are added; {"tree": a tree}; or a map of tiles of D to the indices of their
orders. "as" names the arithmetic where it differs from the product's type. ``cases`` has one row for each product: M,
N, K, the index of its order, and two digests of the GPU's D for the `operands` of a seed (empty if the order was
compared on other operands only).
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import _system, mma, simt
from fpemu.arguments import LARGEST, choice, integers
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import Sum, Tree, chains, check, from_order
from fpemu.probing.trees import sentence

INPUT_DTYPES = {
    "fp16": "float16",
    "bf16": "float32",
    "tf32": "float32",
    "fp32": "float32",
    "fp64": "float64",
    "fp16->fp16": "float16",
    "bf16->bf16": "float32",
}
TYPES = tuple(INPUT_DTYPES)
# types of products whose orders may be planned, and the dtypes of their inputs
PLANNED = (*TYPES, "e4m3", "e4m3->fp16", "e4m3->bf16", "int8")
INPUTS = {kind: INPUT_DTYPES[kind] for kind in TYPES[:5]} | {"e4m3": "float32", "int8": "int8"}
LAYOUTS = ("TN", "NN")
Layout = Literal["TN", "NN"]


@dataclass(frozen=True)
class Tiles:
    """Summation orders that depend on the position in D, such as those of stream-K kernels."""

    rows: int  # of a tile of D
    columns: int
    of: tuple[int, ...]  # for each tile of D, row by row, the index of its order
    orders: tuple[KOrder | Tree, ...]
    stored: tuple[str | None, ...]  # `Product.stored` of each order


Order = KOrder | Tree | Tiles


@dataclass(frozen=True)
class Product:
    """One product of a library, and its summation order over K.

    Attributes
    ----------
    library, version, hardware : str
        Library, its version and the GPU.
    type : str
        Format of the inputs, "fp16->fp16" and "bf16->bf16" where D has the same format, "e4m3->fp16" and "e4m3->bf16";
        otherwise D is fp32 (fp64 for fp64, int32 for int8).
    layout : {"TN", "NN"}
        "NN": A (M, K) and B (K, N) in C order. "TN": B is the transpose of an (N, K) array in C order.
    M, N, K : int
        Sizes of the product.
    order : KOrder, tree or Tiles
        Summation order.
    spec : MmaSpec
        The instruction, or the fused multiply-add, of the chains.
    rounded : str or None
        Format to which the library rounds the inputs first: tf32, or None.
    stored : str or None
        Format to which the partial sums of a KOrder's slices are rounded before they are added.
    configuration : tuple of int
        Fields of the `Configuration` that determined the order, or ().
    source : str
        Source of the order: "table", "heuristic" (cuBLASLt's answer on this GPU), "model" (of these answers),
        "configuration" (the caller's) or "file".
    digest, sample : str
        Digests of the GPU's D for the `operands` of a seed: of all of it, and of a sample.
    seed : int
        Seed of these operands.
    """

    library: str
    version: str
    hardware: str
    type: str
    layout: str
    M: int
    N: int
    K: int
    order: Order
    spec: MmaSpec
    rounded: str | None
    stored: str | None
    digest: str = ""
    sample: str = ""
    seed: int = 0
    source: str = "table"
    configuration: tuple[int, ...] = ()

    def __str__(self) -> str:
        named = f"{self.library} {self.version}, {self.hardware}: {self.type} {self.layout} {self.M}x{self.N}x{self.K}"
        return ": ".join([part for part in (named, *self.describe()[:1]) if part])

    def save(self, file: str | Path) -> None:
        """Write the product to a JSON file, which `load` reads on any machine.

        Parameters
        ----------
        file : path-like
            File to write.
        """
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("order", "spec", "stored")}
        arithmetic = {} if self.rounded or self.type.split("-")[0] != "tf32" else {"as": "fp32"}
        if isinstance(self.order, Tiles):
            tiles = self.order
            parts = [_entry(order, stored) for order, stored in zip(tiles.orders, tiles.stored, strict=True)]
            entry: dict[str, Any] = {"tiles": [tiles.rows, tiles.columns], "map": [[parts[n], 1] for n in tiles.of]}
        else:
            entry = _entry(self.order, self.stored)
        text = json.dumps({**data, "order": {**entry, **arithmetic}}, indent=1) + "\n"
        _system.write_atomic(file, text.encode())

    @classmethod
    def load(cls, file: str | Path) -> Product:
        """Return the product of a file that `save` wrote.

        Parameters
        ----------
        file : path-like
            JSON file.

        Returns
        -------
        Product
            The product.

        Raises
        ------
        InputError
            The file has no product.
        """
        try:
            data = json.loads(Path(file).read_text())
            choice("type of a product", data["type"], PLANNED), choice("layout", data["layout"], LAYOUTS)
            sizes = integers("shape", [data.pop(name) for name in "MNK"], 1, LARGEST, length=3)
            data.pop("rounded")
            data["configuration"] = tuple(data.get("configuration", ()))
            M, N, K = sizes
            product = cls(**{**data, **summation(data["type"], data.pop("order"))}, M=M, N=N, K=K)
            if not isinstance(product.order, KOrder | Tiles):
                check(product.order, K, product.spec)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise InputError(f"{file}: no product of a library: {str(problem).splitlines()[0]}") from None
        return product

    def describe(self) -> list[str]:
        """Return the summation order in words: of all of D, or a title and one line for each order of its tiles."""
        if isinstance(self.order, Tiles):
            tiles = self.order
            title = f"{len(tiles.orders)} orders, one for each tile of {tiles.rows} × {tiles.columns} of D"
            counts = (tiles.of.count(n) for n in range(len(tiles.orders)))
            orders = zip(tiles.orders, tiles.stored, counts, strict=True)
            return [title, *(f"{n} tiles: {self._order(order, stored)}" for order, stored, n in orders)]
        return [self._order(self.order, self.stored)]

    def _order(self, order: KOrder | Tree, stored: str | None) -> str:
        if not isinstance(order, KOrder):
            return sentence(order)
        tree = from_order(order, self.K, self.spec)
        return f"{order}: {sentence(Sum(tree.parts, tree.fmt, stored) if isinstance(tree, Sum) else tree)}"


@lru_cache(maxsize=32)
def instruction(kind: str) -> MmaSpec:
    """The instruction of a product's chains on Hopper."""
    if kind in ("fp32", "fp64"):
        return simt.SPECS[kind]
    return mma.spec("hopper", kind.split("-")[0], "int32" if kind == "int8" else "fp32")


def summation(
    kind: str, entry: dict[str, Any], orders: Sequence[dict[str, Any]] = (), decoded: Order | None = None
) -> dict[str, Any]:
    """The fields of a `Product` that an entry of a table states: its order and the arithmetic of the chains."""
    arithmetic = entry.get("as", kind)
    return {
        "order": decoded or decode(entry, orders),
        "spec": instruction(arithmetic),
        "rounded": "tf32" if arithmetic == "tf32" else None,
        "stored": entry.get("stored"),
    }


# --- files
@lru_cache(maxsize=8)
def read(path: str | Path) -> dict[str, Any]:
    """Read a table."""
    table: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
    return table


@lru_cache(maxsize=8)
def files(library: str) -> tuple[Path, ...]:
    """The package's tables of a library, the newest version last."""
    folder = Path(str(resources.files("fpemu.library"))) / "data"
    # versions are compared as numbers: 13.10 follows 13.9
    found = folder.glob(f"{library}-*.json.gz")
    return tuple(sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]))


# --- one order as an entry of a table
def _entry(order: KOrder | Tree, stored: str | None) -> dict[str, Any]:
    return {**encode(order), **({"stored": stored} if stored else {})}


def encode(order: KOrder | Tree) -> dict[str, Any]:
    """An order as an entry of a table."""
    data = to_dict(order)
    return data if isinstance(order, KOrder) else {"tree": data}


def decode(entry: dict[str, Any], orders: Sequence[dict[str, Any]] = ()) -> Order:
    """The order of an entry; a map of tiles has entries, or indices of the table's other `orders`."""
    if "tiles" not in entry:
        return _single(entry)
    runs = [(part if isinstance(part, dict) else orders[part], count) for part, count in entry["map"]]
    parts: list[dict[str, Any]] = []
    parts.extend(part for part, _ in runs if part not in parts)
    of = tuple(parts.index(part) for part, count in runs for _ in range(count))
    rows, columns = entry["tiles"]
    return Tiles(rows, columns, of, tuple(map(_single, parts)), tuple(part.get("stored") for part in parts))


def _single(entry: dict[str, Any]) -> KOrder | Tree:
    return from_dict(entry.get("tree", {k: v for k, v in entry.items() if k not in ("stored", "as")}))


# --- operands of the recorded products, and digests of D
SAMPLE = 32  # largest number of rows and of columns in the sample of D


def operands(
    kind: str, M: int, N: int, K: int, seed: int, rows: NDArray[Any] | None = None, columns: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A (M, K) and B (K, N) of a recorded product, or A[rows] and B[:, columns] alone: values of either sign in
    [1/4, 4)."""
    rows = np.arange(M) if rows is None else rows
    columns = np.arange(N) if columns is None else columns
    along = np.arange(K, dtype=np.int64)
    a = operand_values(rows.astype(np.int64)[:, None] * K + along, kind, 2 * seed, np.float64)
    b = operand_values(along[:, None] * N + columns.astype(np.int64), kind, 2 * seed + 1, np.float64)
    return a.astype(INPUT_DTYPES[kind]), b.astype(INPUT_DTYPES[kind])


def operand_values(index: Any, kind: str, seed: int, double: Any) -> Any:
    """The operands at int64 indices in float64, the array library's `double`; `index` is a NumPy array or a tensor.

    No product of the integers here exceeds 63 bits.
    """
    precision = {"fp16": 11, "bf16": 8, "fp64": 53}.get(kind.split("-")[0], 24)
    h = _mixed(index, seed)
    fraction = h & (2 ** min(precision - 1, 23) - 1)
    if precision == 53:
        fraction = fraction + (_mixed(index, seed + 7919) & (2**29 - 1)) * 2**23
    power = ((h >> 23 & 1) + 1) * ((h >> 24 & 1) * 3 + 1)  # 1, 2, 4, 8
    whole = (fraction + 2 ** (precision - 1)) * power * (1 - (h >> 25 & 1) * 2)
    return (whole.astype(double) if isinstance(whole, np.ndarray) else whole.to(double)) * 2.0 ** (-1 - precision)


def _mixed(index: Any, seed: int) -> Any:
    """32 pseudorandom bits for each index."""
    h = (index * 0x1E3779B1 + (seed * 0x9E3779B1 + 0x7F4A7C15) % 2**32) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x68E31DA5)):
        h = ((h ^ (h >> shift)) * factor) & 0xFFFFFFFF
    return h ^ (h >> 16)


def sample_indices(M: int, N: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The evenly spread rows and columns of the sample of D."""
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64)) for n in (M, N))
    return rows, columns


def digest_of(D: NDArray[Any]) -> str:
    """The digest of a product's bits, as the tables hold it."""
    D = np.ascontiguousarray(D)
    return _system.digest_text(D.view(f"u{D.itemsize}"))


# --- kinds of orders
KINDS = {
    "KOrder": "a KOrder",
    "KOrder, halves": "a KOrder with partial sums rounded to fp16",
    "blocks": "tree: split-K by an instruction with shorter blocks than the type's",
    "slices": "tree: split-K with another reduction, or chains that start from a partial sum",
    "interleaved": "tree: interleaved accumulators of the instruction",
    "lanes": "tree: interleaved lanes of fused multiply-adds",
    "runs": "tree: lanes of fused multiply-adds over contiguous k, or single products",
    "place": "orders that depend on the tile of D (stream-K)",
}


def kind(product: Product) -> str:
    """The name in `KINDS` of a product's order."""
    order = product.order
    if isinstance(order, KOrder):
        return "KOrder, halves" if product.stored else "KOrder"
    if isinstance(order, Tiles):
        return "place"
    parts = chains(order)
    gaps = any(max(ks) - min(ks) >= len(ks) for ks in (chain.positions for chain in parts))
    if all(chain.kind == "fma" for chain in parts):
        return "lanes" if gaps else "runs"
    if gaps:
        return "interleaved"
    full = max(len(block) for chain in parts for block in chain.blocks) == product.spec.block
    return "slices" if full or any(chain.start is not None for chain in parts) else "blocks"


def summary(products: Iterable[Product]) -> dict[str, dict[str, int]]:
    """The number of products of each kind of order, for each type.

    Examples
    --------
    >>> from fpemu.library import lookup
    >>> summary([lookup("cublas", "fp16", (512, 512, 8192))])
    {'fp16': {'KOrder': 1}}
    """
    count = Counter((product.type, kind(product)) for product in products)
    return {of: {k: count[of, k] for k in KINDS if count[of, k]} for of in dict.fromkeys(of for of, _ in count)}
