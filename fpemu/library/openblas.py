"""OpenBLAS's GEMM bit for bit: the order in which one thread of a given kernel adds over K.

OpenBLAS divides K into panels. A micro-kernel computes the partial sum of a panel in registers, as one chain of fused
multiply-adds or as a few interleaved chains, and adds it to D, which starts from zero. The length of the panels, and
the positions of D with interleaved chains, depend on the kernel (the processor family), the routine (sgemm, dgemm) and
the version; small products have separate kernels on AVX-512. The table ``fpemu/library/data/openblas.json`` holds
the parameters of the rules below.

NumPy calls OpenBLAS with row-major operands, which OpenBLAS treats as the column-major product Dᵀ = Bᵀ Aᵀ. In the rules
``m`` and ``n`` are the sizes of that call: ``m`` counts the columns of D and ``n`` its rows.

The table was measured on builds that choose the kernel at run time (DYNAMIC_ARCH): a build for one processor can divide
D differently. Two cases are not covered: several threads, and sgemm by SME on arm64 processors with that extension.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import accumulate, pairwise
from operator import add
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.arguments import LARGEST, choice, integer, integers
from fpemu.errors import InputError, unknown_name
from fpemu.library.tables import LAYOUTS, Layout
from fpemu.mma.device import Backend, Device, implementation
from fpemu.mma.gemm import _chain
from fpemu.mma.tree import Chain, Sum, Tree

__all__ = ["Blocking", "blocking", "kernels", "multiply", "tree"]

_FORMATS = {"sgemm": "fp32", "dgemm": "fp64"}
T = TypeVar("T")
Routine = Literal["sgemm", "dgemm"]
_MEASURED_ROWS = 150_000  # without a boundary between blocks of rows


@cache
def _table() -> dict[str, Any]:
    data = resources.files("fpemu.library") / "data" / "openblas.json"
    table: dict[str, Any] = json.loads(data.read_text("utf-8"))
    return table


def kernels() -> dict[str, list[str]]:
    """Return the tabulated kernels, each with the versions of OpenBLAS whose products were compared."""
    names: dict[str, list[str]] = {}
    for entry in _table()["kernels"]:
        names.setdefault(entry["kernel"], []).extend(entry["versions"])
    return names


def blocking(routine: Routine, kernel: str | None, version: str | None = None) -> Blocking:
    """Return the blocking of a routine.

    Parameters
    ----------
    routine : {"sgemm", "dgemm"}
        Routine.
    kernel : str
        Kernel, as OPENBLAS_CORETYPE and openblas_get_corename write it; upper and lower case are equal.
    version : str, optional
        Version of OpenBLAS, "0.3.21" for example; digits after the third number are ignored. Default: the newest in
        the table.

    Returns
    -------
    Blocking
        Table entry.

    Raises
    ------
    InputError
        Unknown routine; kernel or version without an entry.
    """
    choice("routine", routine, _FORMATS)
    known = kernels()
    names = {name.lower(): name for name in known}
    if kernel is None or kernel.lower() not in names:
        if kernel is None:
            raise InputError(f"openblas: give the kernel as hardware=, one of {', '.join(sorted(known))}")
        raise unknown_name("kernel of openblas", kernel, known)
    name = names[kernel.lower()]
    if version is None:
        version = max(known[name], key=_numbers)
    short = ".".join(version.split(".")[:3])
    for entry in _table()["kernels"]:
        if entry["kernel"] == name and short in entry["versions"]:
            return Blocking(name, short, routine, **entry[routine])
    raise unknown_name(f"version of openblas with kernel {name}", version, known[name])


def _numbers(version: str) -> list[int]:
    return [int(n) for n in version.split(".")]


def multiply(
    A: NDArray[Any],
    B: NDArray[Any],
    blocks: Blocking,
    *,
    layout: Layout = "NN",
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> NDArray[Any]:
    """Compute the product A B in a routine's order.

    Parameters
    ----------
    A : array (M, K)
        float32 for sgemm, float64 for dgemm.
    B : array (K, N)
        As A.
    blocks : Blocking
        Blocking, from `blocking`.
    layout : {"NN", "TN"}
        Layout, as in `fpemu.library.emulate`; it affects the order of small products on AVX-512 alone.
    backend : {"compiled", "numpy"}
        Implementation of the chains of fused multiply-adds, as in `fpemu.simt.gemm`.
    device : {"cpu", "cuda"}
        Device of the emulation, as in `fpemu.mma.gemm`.

    Returns
    -------
    array (M, N)
        D. Every NaN has the code of ``np.nan``: the payloads of the library's NaN are not emulated.

    Raises
    ------
    InputError
        Another layout; more rows of A than the measurements of the kernel's order cover; M = 1 or N = 1 in a version
        that calls gemv for such products; `device` "cuda" for a kernel without fused multiply-adds.
    """
    choice("layout", layout, LAYOUTS)
    if device != "cpu" and not blocks.fused:
        raise InputError(
            f"openblas: {blocks.kernel} has no fused multiply-adds and is emulated on the CPU: device='cpu'"
        )
    implementation(device, backend)  # an unknown device is refused for a product without terms too
    M, N, K = A.shape[0], B.shape[1], A.shape[1]
    if not (M and N and K):
        return np.zeros((M, N), A.dtype)
    chains = _Chains(_FORMATS[blocks.routine], blocks.fused, backend, device)
    order = element_orders(blocks, layout, (M, N, K))
    with np.errstate(all="ignore"):
        D = chains.product(A, B, order, order.lanes)
        for rows, columns, lanes in order.regions:
            D[np.ix_(rows, columns)] = chains.product(A[rows], B[:, columns], order, lanes)
    D[np.isnan(D)] = np.nan
    return D


@dataclass(frozen=True)
class _Chains:
    """Products by chains of multiply-adds."""

    fmt: str
    fused: bool
    backend: Backend
    device: Device

    def product(self, A: NDArray[Any], B: NDArray[Any], order: ElementOrders, lanes: Lanes) -> NDArray[Any]:
        """The sum of the panels' partial sums."""
        if not order.adds:
            return self.panel(A, B, lanes)
        D = np.zeros((A.shape[0], B.shape[1]), A.dtype)
        for first, stop in order.panels:
            D += self.panel(A[:, first:stop], B[first:stop], lanes)
        return D

    def panel(self, A: NDArray[Any], B: NDArray[Any], lanes: Lanes) -> NDArray[Any]:
        """The partial sums of one panel."""
        if lanes.tail == "zeros":
            missing = -A.shape[1] % lanes.unroll
            A, B = np.pad(A, ((0, 0), (0, missing))), np.pad(B, ((0, missing), (0, 0)))

        def chain(k: range, start: NDArray[Any] | None) -> NDArray[Any]:
            return self._chain(A[:, k.start : k.stop : k.step], B[k.start : k.stop : k.step], start)

        return _panel(0, A.shape[1], lanes, chain, add)

    def _chain(self, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any] | None) -> NDArray[Any]:
        if self.fused:
            return _chain([(A, B)], C, simt.SPECS[self.fmt], backend=self.backend, device=self.device)
        D = np.zeros((A.shape[0], B.shape[1]), A.dtype) if C is None else C.copy()
        terms = np.empty_like(D)
        for a, b in zip(A.T, B, strict=True):
            # the product is rounded before its addition, as without fused multiply-adds
            D += np.multiply(a[:, None], b, out=terms)
        return D


def tree(blocks: Blocking, shape: tuple[int, int, int], at: tuple[int, int] = (0, 0), *, layout: Layout = "NN") -> Tree:
    """Return the summation tree of one element of D.

    Parameters
    ----------
    blocks : Blocking
        Blocking, from `blocking`.
    shape : (M, N, K)
        Sizes of the product, at least 1.
    at : (int, int)
        Row and column of the element.
    layout : {"NN", "TN"}
        Layout, as in `multiply`.

    Returns
    -------
    Tree
        Tree for the argument `order` of `fpemu.simt.gemm`.

    Raises
    ------
    InputError
        A kernel without fused multiply-adds, which has no tree; an element outside of D; another layout.
    """
    choice("layout", layout, LAYOUTS)
    integers("shape", shape, 1, LARGEST, length=3)
    for name, index, size in zip(("row", "column"), at, shape, strict=False):
        integer(f"the {name} in at", index, 0, size - 1)
    if not blocks.fused:
        raise InputError(f"openblas: the trees consist of fused multiply-adds, which {blocks.kernel} does not use")
    order = element_orders(blocks, layout, shape)
    lanes = order.lanes
    for rows, columns, other in order.regions:
        lanes = other if at[0] in rows and at[1] in columns else lanes
    sums = [_panel(first, stop, lanes, _fma_chain, _sum) for first, stop in order.panels]
    return sums[0] if len(sums) == 1 else Sum(tuple(sums))


def _panel(first: int, stop: int, lanes: Lanes, chain: Callable[[range, T | None], T], add: Callable[[T, T], T]) -> T:
    """A panel's partial sum: `chain(positions, start)` adds products to a chain, `add(x, y)` two chains' results."""
    length = stop - first
    main = first + (length if lanes.tail == "zeros" else length // lanes.unroll * lanes.unroll)
    if lanes.count == 1 or main == first:
        return chain(range(first, stop), None)
    parts = [chain(range(first + k, main, lanes.count), None) for k in range(lanes.count)]
    if lanes.tail == "first" and main < stop:
        parts[0] = chain(range(main, stop), parts[0])
    total = lanes.reduce(parts, add)
    return chain(range(main, stop), total) if lanes.tail == "after" and main < stop else total


def _sum(x: Tree, y: Tree) -> Tree:
    return Sum((x, y))


def _fma_chain(positions: Iterable[int], start: Tree | None = None) -> Tree:
    blocks = tuple((k,) for k in positions)
    return Chain(start.blocks + blocks, "fma", start.start) if isinstance(start, Chain) else Chain(blocks, "fma", start)


# --- rules: panels of K, and the positions of D with interleaved chains


@dataclass(frozen=True)
class Lanes:
    """Interleaved chains of a micro-kernel: position k of a panel is added to chain k mod ``count``.

    Attributes
    ----------
    count : int
        Number of chains; 1: one chain, and the other attributes have no effect.
    unroll : int
        Positions of one pass of the loop over k; the tail is the rest after whole passes.
    tail : {"first", "after", "zeros"}
        "first": the tail continues the first chain. "after": the chains are added, and the tail continues their sum.
        "zeros": the tail is padded with zeros to a whole pass.
    reduction : {"neighbours", "halves"}
        "neighbours": chains 2i and 2i + 1 are added, then neighbouring sums. "halves": chain i of the lower half and
        chain i of the upper half are added, and so on.
    """

    count: int
    unroll: int
    tail: Literal["first", "after", "zeros"] = "first"
    reduction: Literal["neighbours", "halves"] = "neighbours"

    def reduce(self, parts: list[T], add: Callable[[T, T], T]) -> T:
        """Add the chains' results in the order of `reduction`."""
        while len(parts) > 1:
            half = len(parts) // 2
            second = parts[1::2] if self.reduction == "neighbours" else parts[half:]
            first = parts[::2] if self.reduction == "neighbours" else parts[:half]
            parts = [add(x, y) for x, y in zip(first, second, strict=True)]
        return parts[0]


CHAIN = Lanes(1, 1)


@dataclass(frozen=True)
class Blocking:
    """Blocking of one routine of a kernel.

    Attributes
    ----------
    kernel, version : str
        Kernel, and version of OpenBLAS.
    routine : {"sgemm", "dgemm"}
        Routine.
    q : int
        Length in k of a panel (GEMM_Q).
    unroll_m : int
        Size in m of the micro-kernel's tile (GEMM_UNROLL_M).
    micro_kernel : str
        Rule for the positions of D with interleaved chains.
    p : int or None
        Size in m of the blocks of D (GEMM_P); None: the orders do not depend on it.
    r : int or None
        Size in n of the blocks of D (GEMM_R); None: the orders do not depend on it for n up to 150 000.
    fused : bool
        Whether a product and its addition are one fused multiply-add; False: each of the two rounds.
    small_lanes : int or None
        Number of interleaved chains of the kernels for small matrices (m n k at most 10^6); None: the library has no
        such kernels.
    gemv : bool
        Whether the library calls gemv, whose order is not in the table, for products with M = 1 or N = 1.
    """

    kernel: str
    version: str
    routine: Routine
    q: int
    unroll_m: int
    micro_kernel: str
    p: int | None = None
    r: int | None = None
    fused: bool = True
    small_lanes: int | None = None
    gemv: bool = False

    def panels(self, K: int) -> list[int]:
        """Return the lengths in k of the panels."""
        return [length for _, length in _divided(K, self.q, self.unroll_m)]

    def threaded(self) -> Blocking:
        """Return the blocking of a product on several threads, which halve K without rounding to `unroll_m`.

        Each thread computes a part of D; the positions of interleaved chains in these parts are not known.
        """
        return replace(self, unroll_m=1)


def _divided(size: int, most: int, unroll: int) -> Iterator[tuple[int, int]]:
    """Start and length of each part; a rest between `most` and twice that is halved, rounded up to `unroll`."""
    first = 0
    while first < size:
        rest = length = size - first
        if rest >= 2 * most:
            length = most
        elif rest > most:
            length = -(-(rest // 2) // unroll) * unroll
        yield first, length
        first += length


Region = tuple[NDArray[np.int64], NDArray[np.int64], Lanes]


@dataclass(frozen=True)
class ElementOrders:
    """Orders of all elements of a product.

    Attributes
    ----------
    panels : list of (int, int)
        First position and end of the panels of K.
    adds : bool
        Whether the partial sums are added to zero (the kernels for small matrices store them).
    lanes : Lanes
        Chains of the elements outside of `regions`.
    regions : list of (rows, columns, Lanes)
        Rows and columns of D with other chains.
    """

    panels: list[tuple[int, int]]
    adds: bool
    lanes: Lanes
    regions: list[Region]


def element_orders(blocks: Blocking, layout: Layout, shape: tuple[int, int, int]) -> ElementOrders:
    """Return the orders of the elements of a product of shape (M, N, K)."""
    M, N, K = shape
    if blocks.gemv and min(M, N) == 1:
        raise InputError(
            f"openblas {blocks.version}, {blocks.kernel}: gemv computes a product with M = {M} and N = {N}, and the"
            " order of gemv is not in the table"
        )
    if blocks.small_lanes is not None and _is_small(layout, M, N, K):
        return _small_orders(blocks.small_lanes, layout, M, N, K)
    panels = list(pairwise([0, *accumulate(blocks.panels(K))]))
    regions = _MICRO_KERNELS[blocks.micro_kernel](blocks, N, M)
    return ElementOrders(panels, True, CHAIN, [region for region in regions if region[0].size and region[1].size])


def _is_small(layout: Layout, M: int, N: int, K: int) -> bool:
    """Whether the library calls a kernel for small matrices."""
    return M * N * K <= 10**6 and (layout == "NN" or (M * N <= 1200 and K >= 32))


def _small_orders(count: int, layout: Layout, M: int, N: int, K: int) -> ElementOrders:
    """One panel. The chains are interleaved in a vector of `count` values of k, and padded with zeros.

    TN: everywhere. NN: in the last columns of D, if they fill at most half a vector and K is at least two vectors.
    Where 4 columns or 4 rows form a group, 4 vectors are transposed and added; elsewhere a vector is folded in halves.
    """
    grouped, single = Lanes(count, count, "zeros"), Lanes(count, count, "zeros", "halves")
    rows, columns = np.arange(M), np.arange(N)
    rest = columns[N // count * count :]
    if layout == "NN" and (rest.size > count // 2 or K // count < 2):
        return ElementOrders([(0, K)], False, CHAIN, [])
    last = rows[M // 4 * 4 :], columns[N // 4 * 4 :], single
    regions = [last] if M % 4 and N % 4 else []
    if layout == "TN":
        return ElementOrders([(0, K)], False, grouped, regions)
    return ElementOrders([(0, K)], False, CHAIN, [(rows, rest, grouped), *regions] if rest.size else [])


def _chain_everywhere(blocks: Blocking, m: int, n: int) -> Iterator[Region]:
    """One chain at every position of D."""
    yield from ()


def _haswell_sgemm(blocks: Blocking, m: int, n: int) -> Iterator[Region]:
    """Two chains per element in groups of 4 rows, and at one or two tiles of 8 columns in groups of 12 rows.

    The micro-kernel of 12 rows computes 16 columns by 6 rows, alternating between the upper and the lower 6 rows. One
    tile of 8 columns remains at the start (upper rows) and one at the end (upper rows for an even number of tiles,
    else lower rows); they have two chains, for even and odd k.
    """
    lanes = Lanes(2, 8)
    for first, size in _blocks_of_m(m, blocks):
        tiles = size // 8
        ends: dict[int, list[int]] = {0: [], 6: []}  # tiles with two chains in the upper and the lower 6 rows
        if size >= 16:
            ends[0].append(0)
            ends[0 if tiles % 2 == 0 else 6].append(tiles - 1)
        groups = list(_groups_of_n(n, first == 0, blocks))
        for offset, which in ends.items():
            rows = [row + offset + i for row, width in groups if width == 12 for i in range(6)]
            yield np.array(rows), np.array([first + 8 * tile + i for tile in which for i in range(8)]), lanes
        rows = [row + i for row, width in groups if width == 4 for i in range(4)]
        yield np.array(rows), np.arange(first, first + 8 * tiles), lanes


def _blocks_of_m(m: int, blocks: Blocking) -> Iterator[tuple[int, int]]:
    """First column and number of columns of D in each block."""
    assert blocks.p is not None
    return _divided(m, blocks.p, blocks.unroll_m)


def _groups_of_n(n: int, first_block: bool, blocks: Blocking) -> Iterator[tuple[int, int]]:
    """First row and number of rows of D in each group of the micro-kernel.

    For the first block of columns, A is packed in chunks of 12 or 4 rows, each of which is multiplied at once; there
    are then no groups of 8 rows.
    """
    for row, stop in _blocks_of_n(n, blocks):
        for width in (12, 4, 2, 1) if first_block else (12, 8, 4, 2, 1):
            while stop - row >= width:
                yield row, width
                row += width


def _blocks_of_n(n: int, blocks: Blocking) -> list[tuple[int, int]]:
    """First row and end of each block of rows of D."""
    if blocks.r is None:
        if n > _MEASURED_ROWS:
            raise InputError(
                f"openblas {blocks.version}, {blocks.kernel}, {blocks.routine}: A has {n} rows, and the order is"
                f" measured up to {_MEASURED_ROWS}: multiply blocks of rows"
            )
        return [(0, n)]
    return list(pairwise([*range(0, n, blocks.r), n]))


def _haswell_dgemm(blocks: Blocking, m: int, n: int) -> Iterator[Region]:
    """Four chains per element in the last row of D if the number of rows is odd, for whole tiles of 4 columns."""
    if n % 2 == 1 and m >= 4:
        yield np.array([n - 1]), np.arange(m // 4 * 4), Lanes(4, 8)


def _skylakex_dgemm(blocks: Blocking, m: int, n: int) -> Iterator[Region]:
    """Two or four chains per element in the last columns of D (fewer than 8), in groups of 12 rows.

    The first block of columns is computed in groups of 6 rows, with one chain.
    """
    first, size = list(_blocks_of_m(m, blocks))[-1]
    if first:
        rows = np.concatenate([np.arange(row, stop - (stop - row) % 12) for row, stop in _blocks_of_n(n, blocks)])
        columns = np.arange(first + size // 8 * 8, m)
        split = size % 8 // 4 * 4
        yield rows, columns[:split], Lanes(2, 2, "after")
        yield rows, columns[split:], Lanes(4, 4, "after")


_MICRO_KERNELS: dict[str, Callable[[Blocking, int, int], Iterator[Region]]] = {
    "chain": _chain_everywhere,
    "haswell_sgemm": _haswell_sgemm,
    "haswell_dgemm": _haswell_dgemm,
    "skylakex_dgemm": _skylakex_dgemm,
}
