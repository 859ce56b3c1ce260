"""Tables of measured summation orders: one file for each version of a library and GPU.

A table is gzipped JSON. ``orders`` lists the distinct orders in the form of `fpemu.mma.serialise`: the fields of a
`KOrder`, with "stored" if the partial sums are rounded before they are added; {"tree": a tree}; or a map of tiles of D
to the indices of their orders. "as" names the arithmetic where it differs from the product's type. ``cases`` has one
row for each product: M, N, K, the index of its order, and two digests of the GPU's D for the `operands` of a seed
(empty if the order was compared on other operands only).
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import _system, mma, simt
from fpemu.arguments import LARGEST, choice, integers
from fpemu.errors import InputError, unknown_name
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import Sum, Tree, chains, from_order
from fpemu.probing.trees import sentence

INPUT_DTYPES = {
    "fp16": "float16",
    "bf16": "float32",
    "tf32": "float32",
    "fp32": "float32",
    "fp64": "float64",
    "fp16->fp16": "float16",
}
TYPES = tuple(INPUT_DTYPES)
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
        Format of the inputs, "fp16->fp16" where D is fp16 as well; otherwise D is fp32 (fp64 for fp64).
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

    def __str__(self) -> str:
        named = f"{self.library} {self.version}, {self.hardware}: {self.type} {self.layout} {self.M}x{self.N}x{self.K}"
        return ": ".join([part for part in (named, *self.describe()[:1]) if part])

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


def instruction(kind: str) -> MmaSpec:
    """The instruction of a product's chains on Hopper."""
    return simt.SPECS[kind] if kind in ("fp32", "fp64") else mma.spec("hopper", kind.split("-")[0], "fp32")


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

    raise InputError(
        f"{library} {table['version']} on {hardware}: the table has no order of {type} {layout}"
        f" {'x'.join(map(str, sizes))} (MxNxK; the nearest shapes are {', '.join(nearest(rows, sizes)) or 'none'}); on"
        " that GPU `fpemu reveal` finds the order, and fpemu.mma.gemm accepts it"
    )


def nearest(rows: Iterable[Sequence[Any]], shape: Sequence[int]) -> list[str]:
    """The three shapes "MxNxK" nearest to another one, of rows that begin with M, N and K."""

    def distance(row: Sequence[Any]) -> float:
        return sum(abs(math.log2(max(x, 0.5) / y)) for x, y in zip(shape, row, strict=False))

    others = (row for row in rows if tuple(row[:3]) != tuple(shape))
    return ["x".join(map(str, row[:3])) for row in sorted(others, key=distance)[:3]]


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
    """The product of a table's row; `decoded` is its order, if an earlier row has the same one."""
    M, N, K, index, digest, sample = row
    of_library = table["library"], table["version"], table["hardware"]
    summed = summation(kind, table["orders"][index], table["orders"], decoded)
    return Product(*of_library, kind, layout, M, N, K, **summed, digest=digest, sample=sample, seed=table["seed"])


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


def files(library: str) -> list[Path]:
    """The package's tables of a library, the newest version last."""
    folder = Path(str(resources.files("fpemu.library"))) / "data"
    # versions are compared as numbers: 13.10 follows 13.9
    return sorted(folder.glob(f"{library}-*.json.gz"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


# --- one order as an entry of a table
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
    precision = {"fp16": 11, "fp16->fp16": 11, "bf16": 8, "fp64": 53}.get(kind, 24)
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
