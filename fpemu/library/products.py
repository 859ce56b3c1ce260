"""Products of a library and their orders: recorded, from the model, or from the heuristic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import LARGEST, choice, flag, integer, integers
from fpemu.errors import InputError, unknown_name
from fpemu.library import model
from fpemu.library.families import Configuration, planned, resolved
from fpemu.library.heuristic import FIELDS, Heuristic, workspaces
from fpemu.library.tables import LAYOUTS, PLANNED, TYPES, Layout, Order, Product, files, read, summation

Source = Literal["auto", "table", "model", "heuristic"]
_SOURCES = ("auto", "table", "model", "heuristic")

# versions of cuBLAS without a table: the types and layouts for which their heuristics on an H200 chose the orders of
# _MODELLED for all of 20,000 random shapes
_WIDE = (("fp32", "NN"), ("fp32", "TN"), ("fp64", "NN"), ("fp64", "TN"))
_16_BIT = (("fp16", "NN"), ("fp16", "TN"), ("bf16", "NN"), ("bf16", "TN"))
_SAME_CHOICE = {
    "12.4.5.8": _WIDE,
    "12.6.4.1": _WIDE,
    "12.8.4.1": (*_WIDE, ("fp16", "TN")),
    "12.9.1.4": (*_WIDE, *_16_BIT, ("tf32", "NN"), ("tf32", "TN")),
    "13.0.2.14": (*_WIDE, *_16_BIT, ("tf32", "TN")),
    "13.8.2.12": (*_WIDE, ("tf32", "NN")),
}
_MODELLED = "13.1.0.3"


def orders(library: str = "cublas", *, version: str | None = None, hardware: str = "H200") -> Iterator[Product]:
    """Return an iterator over the products of a library that were recorded on a GPU.

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
            known = decoded.get(row[3])
            product = _product(table, group["type"], group["layout"], row, known)
            if "configuration" not in table["orders"][row[3]]:
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
    source: Source = "auto",
    bias: bool = False,
    batch: int = 1,
    fast_accumulation: bool = False,
) -> Product:
    """Return the product of one type, layout and shape of a library, with its summation order.

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
        Version of the library. Default: the newest in the tables. For 12.4.5.8, 12.6.4.1, 12.8.4.1, 12.9.1.4, 13.0.2.14
        and 13.8.2.12 there is no table; the model answers for types whose orders did not change.
    hardware : str
        GPU of the table and of the model.
    source : {"auto", "table", "model", "heuristic"}
        "table": recorded products only, and layers of language models with up to 8192 rows. "model": the model of the
        heuristic's choice, without the GPU. "heuristic": the answer of the installed cuBLASLt on this machine's GPU.
        "auto": the table, then the model.
    bias : bool
        Whether the library adds a vector to the rows of D. Only "heuristic" answers for one.
    batch : int
        Number of products of a batch of contiguous matrices. Only "heuristic" answers for more than one.
    fast_accumulation : bool
        As in `plan`.

    Returns
    -------
    Product
        The product; its attribute `source` states the source.

    Raises
    ------
    InputError
        The order is not known with confidence; the message names the nearest recorded shapes.

    Notes
    -----
    The order is that of a call of PyTorch with contiguous operands, which runs the heuristic's first answer: torch.mm,
    addmm with a matrix and linear without a bias by the defaults; addmm and linear with a vector by `bias`; bmm and
    baddbmm by `batch`; _scaled_mm with scales of tensors by the type e4m3; _int_mm by int8, whose sums are exact up
    to K = 131071. The workspaces are those of `fpemu.library.heuristic.workspaces`. The model declines shapes of which
    held-out answers show that it is not sure.

    Examples
    --------
    >>> lookup("cublas", "fp16", (512, 512, 8192)).order
    KOrder(split=4096)
    """
    sizes = integers("shape", shape, 1, LARGEST, length=3)
    choice("type of a product", type, PLANNED), choice("layout", layout, LAYOUTS), choice("source", source, _SOURCES)
    bias, fast = flag("bias", bias), flag("fast_accumulation", fast_accumulation)
    batch = integer("batch", batch, 1, 2**31 - 1)
    if source == "heuristic":
        choice("library", library, ("cublas",))
        heuristic = _heuristic(type, layout, workspaces()[bias or type.startswith("e4m3")], bias, fast)
        answer = dict(zip(FIELDS, heuristic([(*sizes, batch)])[0].tolist(), strict=True))
        of = library, heuristic.version, "this GPU"
        return planned(resolved(answer, layout, sizes), type, layout, sizes, of, source, fast)
    if bias or batch > 1:
        raise InputError("the tables and the model have no products with a bias or in a batch: give source='heuristic'")
    table = _table(library, version, hardware, modelled=True)
    of = library, table["version"], table["hardware"]
    rows = [r for g in table["cases"] if (g["type"], g["layout"]) == (type, layout) for r in g["rows"]]
    for recorded in rows if source != "model" else ():
        if tuple(recorded[:3]) == tuple(sizes):
            return _product(table, type, layout, recorded)
    for origin, answers in (("table", model.layers), ("model", model.load)):
        if source in ("auto", origin):
            row = Configuration(*_answers(of, answers, type, layout, np.array([sizes]))[0].tolist())
            if row.algorithm >= 0:
                return planned(row, type, layout, sizes, of, origin)
    reason = "is tabulated" if source == "table" else "is known with confidence"
    raise InputError(
        f"{library} {table['version']} on {hardware}: no order of {type} {layout} {'x'.join(map(str, sizes))} {reason}"
        f" (MxNxK; the nearest shapes are {', '.join(nearest(rows, sizes)) or 'none'}); on that GPU source='heuristic'"
        " or `fpemu reveal` finds the order, and fpemu.mma.gemm accepts it"
    )


def configurations(
    library: str, type: str, shapes: Any, *, layout: Layout = "NN", version: str | None = None, hardware: str = "H200"
) -> NDArray[np.int16]:
    """Return the recorded or modelled configurations of many products, such as all numbers of rows of a layer.

    Parameters
    ----------
    library : {"cublas"}
        Library.
    type : str
        Type, as in `Product`.
    shapes : array_like (n, 3) of int
        M, N and K of each product.
    layout, version, hardware : str
        As in `lookup`.

    Returns
    -------
    array (n, 5) of int16
        The fields of `Configuration`; -1 where the model is not sure. Products of one K with equal rows have equal
        orders.

    Raises
    ------
    InputError
        Unknown names, or shapes that are no positive integers.
    """
    choice("type of a product", type, TYPES), choice("layout", layout, LAYOUTS)
    sizes = np.asarray(shapes)
    if sizes.ndim != 2 or sizes.shape[1] != 3 or sizes.dtype.kind not in "iu" or (sizes.size and sizes.min() < 1):
        raise InputError("shapes must be an array (n, 3) of positive integers: M, N and K of each product")
    table = _table(library, version, hardware, modelled=True)
    of = library, table["version"], table["hardware"]
    sizes = sizes.astype(np.int64)
    rows = _answers(of, model.layers, type, layout, sizes)
    others = rows[:, 0] < 0
    if others.any():
        rows[others] = _answers(of, model.load, type, layout, sizes[others])
    return rows


def _answers(
    of: tuple[str, str, str], answers: Callable[..., Any], kind: str, layout: str, shapes: NDArray[Any]
) -> NDArray[np.int16]:
    """The rows of `model.layers` or `model.load`; -1 without a file or an answer."""
    library, version, hardware = of
    if answers is model.load and (kind.split("-")[0], layout) in _SAME_CHOICE.get(version, ()):
        version = _MODELLED
    path = files(library)[0].parent / f"{library}-{version}-{hardware.lower()}-model.npz"
    known = answers(path, kind, layout) if path.exists() else None
    if known is None:
        return np.full((len(shapes), len(Configuration._fields)), -1, np.int16)
    rows: NDArray[np.int16] = known(shapes, kind)
    return rows


@lru_cache(maxsize=32)
def _heuristic(kind: str, layout: str, workspace: int, bias: bool, fast: bool) -> Heuristic:
    return Heuristic(kind, layout, workspace, bias=bias, fast=fast)


def nearest(rows: Iterable[Sequence[Any]], shape: Sequence[int]) -> list[str]:
    """The three shapes "MxNxK" nearest to another one, of rows that begin with M, N and K."""

    def distance(row: Sequence[Any]) -> float:
        return sum(abs(math.log2(max(x, 0.5) / y)) for x, y in zip(shape, row, strict=False))

    others = (row for row in rows if tuple(row[:3]) != tuple(shape))
    return ["x".join(map(str, row[:3])) for row in sorted(others, key=distance)[:3]]


def _table(library: str, version: str | None, hardware: str, modelled: bool = False) -> dict[str, Any]:
    """The table of a version and a GPU; `modelled`: also one without cases for a version that has a model only."""
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
    if modelled and version in _SAME_CHOICE and _MODELLED in versions:
        return {**versions[_MODELLED], "version": version, "cases": []}
    if version not in versions:
        raise unknown_name(f"version of {library}", version, [*versions, *_SAME_CHOICE] if modelled else [*versions])
    return versions[version]


def _product(table: dict[str, Any], kind: str, layout: str, row: list[Any], decoded: Order | None = None) -> Product:
    """The product of a table's row; `decoded` is its order, if an earlier row has the same one."""
    M, N, K, index, digest, sample = row
    of = table["library"], table["version"], table["hardware"]
    record: dict[str, Any] = {"digest": digest, "sample": sample, "seed": table["seed"]}
    entry = table["orders"][index]
    if "configuration" in entry:
        product = planned(Configuration(*entry["configuration"]), kind, layout, (M, N, K), of, "table")
        return replace(product, **record)
    fields: dict[str, Any] = {**summation(kind, entry, table["orders"], decoded), **record}
    return Product(of[0], of[1], of[2], kind, layout, M, N, K, **fields)
