"""Emulation of a library's product by its tabulated order, and comparison with the recorded digests."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu._system import in_ieee
from fpemu.arguments import as_array, choice, integers, number
from fpemu.errors import InputError
from fpemu.library import openblas
from fpemu.library.families import adds_vector, rounds_before_adding
from fpemu.library.products import Source, lookup
from fpemu.library.tables import INPUTS, PLANNED, Layout, Product, Tiles, digest_of, operands, sample_indices
from fpemu.mma import KOrder
from fpemu.mma.device import Device
from fpemu.mma.gemm import _chain, as_values
from fpemu.mma.outer_scales import _scales_first
from fpemu.mma.tree import Sum, Tree, from_order
from fpemu.rounding import _round_to


@in_ieee
def emulate(
    library: str,
    A: Any,
    B: Any,
    C: Any = None,
    *,
    out: Literal["fp16", "bf16", "fp32", "fp64"] | None = None,
    fmt: str | None = None,
    layout: Layout | None = None,
    version: str | None = None,
    hardware: str | None = None,
    source: Source = "auto",
    scale_a: float = 1.0,
    scale_b: float = 1.0,
    fast_accumulation: bool = False,
    device: Device = "cpu",
) -> NDArray[Any]:
    """Return the product A B, or A B + C, with the bits that a library returns on a GPU or on one processor core.

    Parameters
    ----------
    library : {"cublas", "openblas"}
        Library. "openblas": cblas_sgemm and cblas_dgemm of one thread, with row-major operands, alpha = 1, beta = 0.
    A : array_like (M, K) or (batch, M, K)
        float16, float32, float64 or int8, assumed in C order; for "openblas" float32 or float64.
    B : array_like (K, N) or (batch, K, N)
        Like A, in C order or the transpose of such an array (`layout`); other strides do not affect the result.
    C : array_like (N,), (M, N) or (batch, M, N), optional
        A bias or a matrix that cuBLAS adds, as torch.addmm, linear and baddbmm with alpha = beta = 1 do.
    out : {"fp16", "bf16", "fp32", "fp64"}, optional
        Format of D. Default: fp32 (fp64 for fp64). bf16 values are returned in float32.
    fmt : {"fp16", "bf16", "tf32", "fp32", "fp64", "e4m3", "int8"}, optional
        Format of the inputs. Default: the format of their dtype. "bf16", "e4m3": such values in float32; "tf32": any
        float32, which the library rounds to tf32 to nearest.
    layout : {"TN", "NN"}, optional
        "NN": both in C order. "TN": B is the transpose of an (N, K) array in C order. Default: from the strides of B.
        The tables contain no transposed A; a call with one must state the layout.
    version : str, optional
        Version of the library. Default: the newest in the tables.
    hardware : str, optional
        "cublas": GPU of the table; default "H200". "openblas": the kernel that OPENBLAS_CORETYPE names, "TSV110" for
        example (`fpemu.library.openblas.kernels` lists them); no default.
    source : {"auto", "table", "model", "heuristic"}
        Source of cuBLAS's orders, as in `fpemu.library.lookup`.
    scale_a, scale_b : float
        fp32 scales of e4m3 operands; the library multiplies the sums by their product.
    fast_accumulation : bool
        As in `fpemu.library.plan`.
    device : {"cpu", "cuda"}, optional
        Device of the emulation, as in `fpemu.mma.gemm`.

    Returns
    -------
    array (M, N) or (batch, M, N) of float16, float32, float64 or int32
        D.

    Raises
    ------
    InputError
        The operands do not form a product, or the order of the shape is not known.

    Notes
    -----
    ``A @ B`` of two matrices in NumPy is one call of cblas_sgemm or cblas_dgemm: "NN" if both are in C order, "TN" if B
    is the transpose of an array in C order. Two cases are other routines, whose order differs: B is the transpose of A
    (syrk), and M or N is 1 (gemv or dot). OpenBLAS divides large products among threads; set OPENBLAS_NUM_THREADS=1 for
    the order of one thread.

    Examples
    --------
    >>> import numpy as np
    >>> A, B = np.full((64, 64), 3, np.float16), np.ones((64, 64), np.float16)
    >>> emulate("cublas", A, B)[0, 0]
    np.float32(192.0)
    >>> A, B = np.full((2, 2000), 0.1, np.float32), np.ones((2000, 2), np.float32)
    >>> emulate("openblas", A, B, hardware="TSV110", version="0.3.21")[0, 0]
    np.float32(199.9981)
    """
    choice("library", library, ("cublas", "openblas"))
    given = C
    A, B = as_array(A, "A"), as_array(B, "B")
    lead = A.shape[:-2]
    if A.ndim not in (2, 3) or B.ndim != A.ndim or (lead, A.shape[-1]) != (B.shape[:-2], B.shape[-2]):
        raise InputError(f"A of shape {A.shape} and B of shape {B.shape} do not form a product of two matrices")
    kind = _type(A, B, fmt, out)
    if layout is None:
        if _column_major(A):
            raise InputError(
                "A is stored by columns, a layout without tabulated orders: give layout='NN' or 'TN', or pass"
                " np.ascontiguousarray(A)"
            )
        layout = "TN" if _column_major(B) else "NN"
    if library == "openblas":
        routines: dict[str, openblas.Routine] = {"fp32": "sgemm", "fp64": "dgemm"}
        if kind not in routines:
            raise InputError(f"openblas has no products of type {kind}: float32 or float64 operands are needed")
        if lead or C is not None:
            raise InputError("openblas has no batches here, and no C")
        blocks = openblas.blocking(routines[kind], hardware, version)
        return openblas.multiply(A, B, blocks, layout=layout, device=device)
    M, N, K = A.shape[-2], B.shape[-1], A.shape[-1]
    fmt, _, narrow = kind.partition("->")
    if C is not None:
        C = as_array(C, "C")
        if C.shape not in ((N,), (*lead, M, N)):
            raise InputError(f"C of shape {C.shape} is neither a vector ({N},) nor of D's shape {(*lead, M, N)}")
        wide = {"fp64": "fp64", "int8": "int32"}.get(fmt, "fp32")
        C = np.broadcast_to(as_values(C, wide if fmt == "int8" else formats.get(narrow or wide), "C"), (*lead, M, N))
    scales = number("scale_a", scale_a), number("scale_b", scale_b)
    if scales != (1, 1) and fmt != "e4m3":
        raise InputError(f"scales belong to e4m3 operands, and A is {fmt}")
    bias = C is not None and not lead and adds_vector(np.shape(given), (M, N, K), kind)
    calls: Any = {"bias": bias, "batch": math.prod(lead), "source": source}
    calls |= {"version": version, "hardware": "H200" if hardware is None else hardware}
    product = lookup(library, kind, (M, N, K), layout=layout, fast_accumulation=fast_accumulation, **calls)
    if fmt in ("bf16", "e4m3"):  # the dtypes of the other types hold no other values
        A, B = (as_values(x, formats.get(fmt), name) for x, name in ((A, "A"), (B, "B")))
    first = C is not None and fmt != "int8" and rounds_before_adding(product, bias)
    matrices = zip(*(x.reshape(-1, *x.shape[-2:]) for x in (A, B)), strict=True)
    where = np.arange(M), np.arange(N), device
    parts = [
        _entries(product, a, b, *where, None if C is None else C.reshape(-1, M, N)[n], scales, first)
        for n, (a, b) in enumerate(matrices)
    ]
    return np.stack(parts).reshape(*lead, M, N)


def _column_major(x: NDArray[Any]) -> bool:
    """Whether the strides show storage by columns; those of a single or of repeated rows or columns do not."""
    return min(x.shape[-2:]) > 1 and 0 < abs(x.strides[-2]) < abs(x.strides[-1])


def _type(A: NDArray[Any], B: NDArray[Any], fmt: str | None, out: str | None) -> str:
    if A.dtype != B.dtype:
        raise InputError(f"A is {A.dtype} and B is {B.dtype}: both operands must have one type")
    if fmt is None:
        fmt = {"float16": "fp16", "float32": "fp32", "float64": "fp64", "int8": "int8"}.get(A.dtype.name)
        if fmt is None:
            raise InputError(f"A is {A.dtype}: float16, float32, float64 or int8 is needed")
    choice("type of a product", fmt, INPUTS)
    if INPUTS[fmt] != A.dtype.name:
        raise InputError(f"A is {A.dtype}: {fmt} values are given as {INPUTS[fmt]}")
    wide = {"fp64": "fp64", "int8": "int32"}.get(fmt, "fp32")
    if out not in (None, wide) and f"{fmt}->{out}" not in PLANNED:
        raise InputError(f"the tables have no {fmt} products with {out} results")
    return fmt if out in (None, wide) else f"{fmt}->{out}"


@in_ieee
def predict(
    product: Product,
    A: NDArray[Any],
    B: NDArray[Any],
    rows: NDArray[Any] | None = None,
    columns: NDArray[Any] | None = None,
    *,
    device: Device = "cpu",
) -> NDArray[Any]:
    """Emulate a tabulated product, or only its entries D[rows][:, columns].

    Parameters
    ----------
    product : Product
        Product, from `lookup` or `orders`.
    A : array (M, K)
        Operand, in the product's format.
    B : array (K, N)
        Operand, in the product's format.
    rows, columns : array of int, optional
        Indices of the entries to emulate. Default: all.
    device : {"cpu", "cuda"}, optional
        Device of the emulation, as in `fpemu.mma.gemm`.

    Returns
    -------
    array (M, N) or (rows, columns)
        Entries of D.

    Raises
    ------
    InputError
        Operands of shapes other than the product's, or indices outside of them.
    """
    A, B = _values(product, A, B)
    if (A.shape, B.shape) != ((product.M, product.K), (product.K, product.N)):
        raise InputError(f"{product}: A of shape {A.shape} and B of shape {B.shape} are not its operands")
    rows, columns = _indices("rows", rows, product.M), _indices("columns", columns, product.N)
    return _entries(product, A[rows], B[:, columns], rows, columns, device)


def _indices(name: str, given: Any, count: int) -> NDArray[Any]:
    return np.arange(count) if given is None else np.array(integers(name, given, 0, count - 1), np.int64)


def predict_entries(
    product: Product,
    A: NDArray[Any],
    B: NDArray[Any],
    rows: NDArray[Any],
    columns: NDArray[Any],
    *,
    device: Device = "cpu",
) -> NDArray[Any]:
    """As `predict`, for operands that consist of those rows and columns alone."""
    return _entries(product, *_values(product, A, B), rows, columns, device)


def _values(product: Product, A: Any, B: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The operands as arrays of values of the product's format: float32 where the library rounds them."""
    fmt = formats.FP32 if product.rounded is not None else product.spec.a_format
    return as_values(A, fmt, "A"), as_values(B, fmt, "B")


def _entries(
    product: Product, A: NDArray[Any], B: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any], device: Device,
    C: NDArray[Any] | None = None, scales: tuple[float, float] = (1, 1), rounded_first: bool = False,
) -> NDArray[Any]:  # fmt: skip
    """D[rows][:, columns] from A[rows] and B[:, columns], which are values of the product's format, and C's entries.

    `rounded_first`: the sum is rounded to the format of D before C is added, as by `families.rounds_before_adding`.
    """
    narrow = product.type.partition("->")[2]

    def converted(D: NDArray[Any]) -> NDArray[Any]:
        return _round_to(D.astype(np.float64), formats.get(narrow)).astype(formats.get(narrow).dtype) if narrow else D

    if product.rounded is not None:
        fmt = formats.get(product.rounded)
        A, B = (_round_to(x.astype(np.float64), fmt).astype(np.float32) for x in (A, B))

    def emulated(A: NDArray[Any], B: NDArray[Any], order: KOrder | Tree, stored: str | None) -> NDArray[Any]:
        return _chain([(A, B)], None, product.spec, _with_stored(order, stored, product), device=device)

    if isinstance(product.order, Tiles):
        tiles = product.order
        across = -(-product.N // tiles.columns)
        index = np.array(tiles.of)[(rows // tiles.rows)[:, None] * across + (columns // tiles.columns)]
        D = np.zeros(index.shape, np.float64 if product.type == "fp64" else np.float32)
        for n in np.unique(index):
            r, c = (np.flatnonzero((index == n).any(axis=axis)) for axis in (1, 0))
            block = emulated(A[r], B[:, c], tiles.orders[n], tiles.stored[n])
            D[np.ix_(r, c)] = np.where(index[np.ix_(r, c)] == n, block, D[np.ix_(r, c)])
    else:
        D = emulated(A, B, product.order, product.stored)
    # a sum beyond the range of fp16 becomes Inf, as in the library
    with np.errstate(over="ignore", invalid="ignore"):
        if product.type.startswith("e4m3"):
            D = _scales_first(D, *(np.array(x, np.float32) for x in scales))
        if C is not None:
            D = (converted(D).astype(D.dtype) if rounded_first else D) + C.astype(D.dtype)
        return converted(D)


def _with_stored(order: KOrder | Tree, stored: str | None, product: Product) -> KOrder | Tree:
    """The order with the rounding of its partial sums."""
    if stored is None or not isinstance(order, KOrder):
        return order
    tree = from_order(order, product.K, product.spec)
    return Sum(tree.parts, tree.fmt, stored) if isinstance(tree, Sum) else tree


@in_ieee
def replay(product: Product, *, whole: bool = False, device: Device = "cpu") -> bool:
    """Return whether the emulation reproduces the recorded result of the GPU.

    The digest of the emulated D, for the recorded operands, is compared with the digest of the GPU's D.

    Parameters
    ----------
    product : Product
        Product, from `lookup` or `orders`.
    whole : bool
        Compare all of D instead of a sample.
    device : {"cpu", "cuda"}, optional
        Device of the emulation, as in `fpemu.mma.gemm`.

    Returns
    -------
    bool
        True if the digests are equal.
    """
    sizes = product.M, product.N, product.K
    if whole:
        A, B = operands(product.type, *sizes, product.seed)
        return digest_of(predict(product, A, B, device=device)) == product.digest
    rows, columns = sample_indices(product.M, product.N)
    A, B = operands(product.type, *sizes, product.seed, rows, columns)
    return digest_of(predict_entries(product, A, B, rows, columns, device=device)) == product.sample
