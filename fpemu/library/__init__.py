"""What a library's matrix product returns, bit for bit, without its GPU: `emulate`, from the orders that were found.

The tables are in `fpemu/library/data`. A library chooses its kernel, and with it the order of additions, by shape, layout
and type; a table holds what was found for some hundred shapes, each compared with the product of the library itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, simt
from fpemu.arguments import LARGEST, checked, choice, integers
from fpemu.arrays import as_array
from fpemu.devices import Device
from fpemu.errors import InputError, unknown_name
from fpemu.library import tables
from fpemu.library.recorded import digest_of, operands, places
from fpemu.library.tables import Order, Tiles
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.tree import Sum, Tree, from_order
from fpemu.rounding import round_to

__all__ = ["Case", "emulate", "lookup", "orders", "predict", "replay"]

TYPES = ("fp16", "bf16", "tf32", "fp32", "fp64", "fp16->fp16")
LAYOUTS = ("TN", "NN")


@dataclass(frozen=True)
class Case:
    """One product of a library, and its summation order over K.

    Attributes
    ----------
    library, version, hardware : str
        Library, its version and the GPU.
    type : str
        Type of the inputs, "fp16->fp16" where D is fp16 as well; else D is fp32 (fp64 for fp64).
    layout : {"TN", "NN"}
        "NN": A (M, K) and B (K, N) in C order. "TN": B is the transpose of an (N, K) array in C order.
    M, N, K : int
        Sizes of the product.
    order : KOrder, tree or Tiles
        Summation order.
    spec : MmaSpec
        The instruction, or the fused multiply-add, that the chains are made of.
    rounded : str or None
        Format to which the library rounds the inputs first: tf32, or None.
    stored : str or None
        Format to which the partial sums of a KOrder's slices are rounded before they are added.
    digest, sample : str
        Digests of the D that the GPU returned for the operands of `fpemu.library.recorded`: of all of it, and of a
        sample.
    seed : int
        Seed of those operands.
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
    digest: str
    sample: str
    seed: int

    def __str__(self) -> str:
        return f"{self.library} {self.version}, {self.hardware}: {self.type} {self.layout} {self.M}x{self.N}x{self.K}"


@checked
def emulate(
    library: str,
    A: Any,
    B: Any,
    *,
    out: str | None = None,
    fmt: str | None = None,
    layout: str | None = None,
    version: str | None = None,
    hardware: str = "H200",
    device: Device | None = None,
) -> NDArray[Any]:
    """Return the product A B with the bits that a library returns on a GPU.

    Parameters
    ----------
    library : {"cublas"}
    A : array_like (M, K)
        float16, float32 or float64, assumed in C order.
    B : array_like (K, N)
        As A, in C order or the transpose of such an array (`layout`); other strides do not affect the result.
    out : {"fp16", "fp32", "fp64"}, optional
        Format of D. Default: fp32 (fp64 for fp64).
    fmt : {"fp16", "bf16", "tf32", "fp32", "fp64"}, optional
        Format of the inputs. Default: that of their dtype. "bf16": bf16 values in float32; "tf32": any float32, which
        the library rounds to tf32 to nearest.
    layout : {"TN", "NN"}, optional
        "NN": both in C order. "TN": B is the transpose of an (N, K) array in C order. Default: as B lies in memory;
        where A lies transposed there, in no table's layout, it must be given.
    version : str, optional
        Of the library. Default: the newest there is a table of.
    hardware : str
        GPU whose table is used.
    device : {"cpu", "cuda"}, optional
        Where to emulate, as in `fpemu.mma.gemm`.

    Returns
    -------
    array (M, N) of float16, float32 or float64
        D.

    Raises
    ------
    InputError
        Operands that are no product, or a shape of which no order is known.

    Examples
    --------
    >>> import numpy as np
    >>> A, B = np.full((64, 64), 3, np.float16), np.ones((64, 64), np.float16)
    >>> emulate("cublas", A, B)[0, 0]
    np.float32(192.0)
    """
    A, B = as_array(A, "A"), as_array(B, "B")
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
        raise InputError(f"A of shape {A.shape} and B of shape {B.shape} are no product of two matrices")
    kind = _type(A, B, fmt, out)
    if layout is None:
        if _transposed(A):
            raise InputError(
                "A lies transposed in memory, and no order is known of such products: give layout='NN' or 'TN', or A as"
                " np.ascontiguousarray(A)"
            )
        layout = "TN" if _transposed(B) else "NN"
    case = lookup(library, kind, (*A.shape, B.shape[1]), layout=layout, version=version, hardware=hardware)
    return predict(case, A, B, device=device)


def _transposed(x: NDArray[Any]) -> bool:
    """Whether a matrix lies in memory column by column; one of a single row or column does not say."""
    return min(x.shape) > 1 and abs(x.strides[0]) < abs(x.strides[1])


def _type(A: NDArray[Any], B: NDArray[Any], fmt: str | None, out: str | None) -> str:
    if A.dtype != B.dtype:
        raise InputError(f"A is {A.dtype} and B is {B.dtype}: a library takes two of one type")
    own = {"float16": "fp16", "float32": "fp32", "float64": "fp64"}.get(A.dtype.name)
    fmt = own if fmt is None else fmt
    carrier = {"fp16": "fp16", "bf16": "fp32", "tf32": "fp32", "fp32": "fp32", "fp64": "fp64"}
    if fmt is None:
        raise InputError(f"A is {A.dtype}: float16, float32 or float64 is needed")
    choice("type of a product", fmt, carrier)
    if carrier[fmt] != own:
        raise InputError(f"A is {A.dtype}: {fmt} values come in {carrier[fmt].replace('fp', 'float')}")
    wide = "fp64" if fmt == "fp64" else "fp32"
    if out not in (None, wide) and (fmt, out) != ("fp16", "fp16"):
        raise InputError(f"no order is known of {fmt} products with {out} results")
    return "fp16->fp16" if out == "fp16" else fmt


@checked
def predict(
    case: Case,
    A: NDArray[Any],
    B: NDArray[Any],
    rows: NDArray[Any] | None = None,
    columns: NDArray[Any] | None = None,
    *,
    device: Device | None = None,
) -> NDArray[Any]:
    """Emulate a case's product, or only its entries D[rows][:, columns].

    Parameters
    ----------
    case : Case
        Product, from `lookup` or `orders`.
    A : array (M, K)
        Operand, in the case's format.
    B : array (K, N)
        Operand, in the case's format.
    rows, columns : array of int, optional
        Indices of the entries to emulate. Default: all.
    device : {"cpu", "cuda"}, optional
        Where to emulate, as in `fpemu.mma.gemm`.

    Returns
    -------
    array (M, N) or (rows, columns)
        Entries of D.

    Raises
    ------
    InputError
        Operands of other shapes than the case's, or indices outside of them.
    """
    A, B = as_array(A, "A"), as_array(B, "B")
    if (A.shape, B.shape) != ((case.M, case.K), (case.K, case.N)):
        raise InputError(f"{case}: A of shape {A.shape} and B of shape {B.shape} are not its operands")
    rows, columns = _indices("rows", rows, case.M), _indices("columns", columns, case.N)
    return entries(case, A[rows], B[:, columns], rows, columns, device=device)


def _indices(name: str, given: Any, count: int) -> NDArray[Any]:
    return np.arange(count) if given is None else np.array(integers(name, given, 0, count - 1), np.int64)


def entries(
    case: Case,
    A: NDArray[Any],
    B: NDArray[Any],
    rows: NDArray[Any],
    columns: NDArray[Any],
    *,
    device: Device | None = None,
) -> NDArray[Any]:
    """As `predict`, of operands that have those rows and columns alone."""
    if case.rounded is not None:
        A, B = (np.asarray(round_to(x, case.rounded)).astype(np.float32) for x in (A, B))
    if isinstance(case.order, Tiles):
        tiles = case.order
        across = -(-case.N // tiles.columns)
        index = (rows // tiles.rows)[:, None] * across + (columns // tiles.columns)[None, :]
        which = np.array(tiles.of)[index]
        D = np.zeros(which.shape, np.float64 if case.type == "fp64" else np.float32)
        for n in np.unique(which):
            r, c = (np.flatnonzero((which == n).any(axis=axis)) for axis in (1, 0))
            order = _whole(tiles.orders[n], tiles.stored[n], case)
            part = mma.gemm(A[r], B[:, c], None, case.spec, order, device=device)
            D[np.ix_(r, c)] = np.where(which[np.ix_(r, c)] == n, part, D[np.ix_(r, c)])
    else:
        order = _whole(case.order, case.stored, case)
        D = mma.gemm(A, B, None, case.spec, order, device=device)
    with np.errstate(over="ignore"):
        return D.astype(np.float16) if case.type == "fp16->fp16" else D


def _whole(order: KOrder | Tree, stored: str | None, case: Case) -> KOrder | Tree:
    """The order with what is rounded between slices."""
    if stored is None or not isinstance(order, KOrder):
        return order
    tree = from_order(order, case.K, case.spec)
    return Sum(tree.parts, tree.fmt, stored) if isinstance(tree, Sum) else tree


@checked
def orders(library: str = "cublas", *, version: str | None = None, hardware: str = "H200") -> Iterator[Case]:
    """Yield the products of a library whose summation orders are tabulated.

    Parameters
    ----------
    library : {"cublas"}
        Library.
    version : str, optional
        Version of the library. Default: the newest in the tables.
    hardware : str
        GPU whose table is used.

    Yields
    ------
    Case
        The next product.

    Raises
    ------
    InputError
        No table for these names.
    """
    table = _table(library, version, hardware)
    made: dict[int, Order] = {}
    for group in table["cases"]:
        for row in group["rows"]:
            case = _case(table, group["type"], group["layout"], row, made.get(row[3]))
            made[row[3]] = case.order
            yield case


@checked
def lookup(
    library: str,
    type: str,
    shape: tuple[int, int, int],
    *,
    layout: str = "NN",
    version: str | None = None,
    hardware: str = "H200",
) -> Case:
    """Return the product of one type, layout and shape from a library's table.

    Parameters
    ----------
    library : {"cublas"}
        Library.
    type : str
        Type, as in `Case`.
    shape : (M, K, N)
        Sizes of the product.
    layout : {"NN", "TN"}
        Layout, as in `Case`.
    version : str, optional
        Version of the library. Default: the newest in the tables.
    hardware : str
        GPU whose table is used.

    Returns
    -------
    Case
        The table's row.

    Raises
    ------
    InputError
        It is not in the table; the message names the nearest that are.
    """
    M, K, N = integers("shape", shape, 1, LARGEST, length=3)
    choice("type of a product", type, TYPES)
    choice("layout", layout, LAYOUTS)
    table = _table(library, version, hardware)
    rows = [r for g in table["cases"] if (g["type"], g["layout"]) == (type, layout) for r in g["rows"]]
    for row in rows:
        if row[:3] == [M, N, K]:
            return _case(table, type, layout, row)

    def far(row: list[Any]) -> float:
        return sum(abs(math.log2(max(x, 0.5) / y)) for x, y in zip((M, N, K), row, strict=False))

    near = ", ".join("x".join(map(str, row[:3])) for row in sorted(rows, key=far)[:3])
    raise InputError(
        f"{library} {table['version']} on {hardware}: no order is known of {type} {layout} {M}x{N}x{K} (MxNxK; the"
        f" nearest known are {near or 'none'}); beside that GPU `fpemu reveal` finds it, and fpemu.mma.gemm takes it"
    )


def _table(library: str, version: str | None, hardware: str) -> dict[str, Any]:
    known = sorted({path.name.split("-")[0] for path in tables.files("*")})
    if library not in known:
        raise unknown_name("library", library, known)
    found = [tables.read(path) for path in tables.files(library)]
    own = [t for t in found if t["hardware"].lower() == str(hardware).lower()]
    if not own:
        raise unknown_name(f"GPU with a table of {library}", hardware, sorted({t["hardware"] for t in found}))
    if version is None:
        return own[-1]
    for table in own:
        if table["version"] == version:
            return table
    raise unknown_name(f"version of {library}", version, [t["version"] for t in own])


def _case(table: dict[str, Any], kind: str, layout: str, row: list[Any], made: Order | None = None) -> Case:
    M, N, K, number, whole, sample = row
    return case_of(table, kind, layout, (M, N, K), table["orders"][number], whole, sample, made)


def case_of(
    table: dict[str, Any],
    kind: str,
    layout: str,
    shape: tuple[int, int, int],
    order: dict[str, Any],
    whole: str = "",
    sample: str = "",
    made: Order | None = None,
) -> Case:
    """A case from an order as a table has it (`made`: decoded before)."""
    arithmetic = order.get("as", kind)
    return Case(
        table["library"],
        table["version"],
        table["hardware"],
        kind,
        layout,
        *shape,
        order=made or tables.decode(order, table["orders"]),
        spec=spec_of(arithmetic),
        rounded="tf32" if arithmetic == "tf32" else None,
        stored=order.get("stored"),
        digest=whole,
        sample=sample,
        seed=table["seed"],
    )


def spec_of(kind: str) -> MmaSpec:
    """What chains of a type are made of on Hopper."""
    if kind in ("fp32", "fp64"):
        return simt.SPECS[kind]
    return mma.spec("hopper", kind.split("-")[0], "fp32")


@checked
def replay(case: Case, *, whole: bool = False, device: Device | None = None) -> bool:
    """Return whether the emulation reproduces the recorded result of the GPU.

    The digest of the emulated D, for the case's operands, is compared with that recorded from the GPU.

    Parameters
    ----------
    case : Case
        Product, from `lookup` or `orders`.
    whole : bool
        Compare all of D instead of a sample.
    device : {"cpu", "cuda"}, optional
        Where to emulate, as in `fpemu.mma.gemm`.

    Returns
    -------
    bool
        True if the digests are equal.
    """
    if whole:
        A, B = operands(case.type, case.M, case.N, case.K, case.seed)
        return digest_of(predict(case, A, B, device=device)) == case.digest
    rows, columns = places(case.M, case.N)
    A, B = operands(case.type, case.M, case.N, case.K, case.seed, rows, columns)
    return digest_of(entries(case, A, B, rows, columns, device=device)) == case.sample
