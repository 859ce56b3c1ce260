"""OpenBLAS's GEMM bit for bit: the order in which one thread of a given kernel adds over K.

OpenBLAS divides K into panels. A micro-kernel computes the partial sum of a panel in registers, as one chain of fused
multiply-adds or as a few interleaved chains, and adds it to D, which starts from zero. The length of the panels, and
the positions of D with interleaved chains, depend on the kernel (the processor family), the routine (sgemm, dgemm) and
the version. The table ``fpemu/library/data/openblas.json`` holds them.

NumPy calls OpenBLAS with row-major operands, which OpenBLAS treats as the column-major product Dᵀ = Bᵀ Aᵀ. In this
module ``m`` and ``n`` are the sizes of that call: ``m`` counts the columns of D and ``n`` its rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.errors import InputError, unknown_name
from fpemu.library.product import Layout
from fpemu.mma._device import Backend, Device
from fpemu.mma.tree import Chain, Sum, Tree

Routine = Literal["sgemm", "dgemm"]
_FORMATS = {"sgemm": "fp32", "dgemm": "fp64"}


@dataclass(frozen=True)
class Lanes:
    """Interleaved chains of a micro-kernel: position k of a panel is added to chain k mod ``count``.

    The positions after the last whole multiple of ``unroll`` are added to the first chain. At the end neighbouring
    chains are added, then neighbouring sums. One chain: ``Lanes(1, 1)``.
    """

    count: int
    unroll: int


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
    unroll_m, unroll_n : int
        Sizes of the micro-kernel's tile (GEMM_UNROLL_M, GEMM_UNROLL_N).
    micro_kernel : str
        Rule for the positions of D with interleaved chains.
    p, r : int or None
        Sizes in m and n of the blocks of D (GEMM_P, GEMM_R), for a `micro_kernel` that depends on them.
    """

    kernel: str
    version: str
    routine: Routine
    q: int
    unroll_m: int
    unroll_n: int
    micro_kernel: str
    p: int | None = None
    r: int | None = None

    def panels(self, K: int) -> list[int]:
        """Return the lengths in k of the panels.

        A rest between q and 2q is divided into two panels, the first rounded up to a multiple of `unroll_m`.
        """
        lengths = []
        rest = K
        while rest > 0:
            length = rest
            if rest >= 2 * self.q:
                length = self.q
            elif rest > self.q:
                length = -(-(rest // 2) // self.unroll_m) * self.unroll_m
            lengths.append(length)
            rest -= length
        return lengths


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
        Kernel or version without an entry.
    """
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
        Layout, as in `fpemu.library.emulate`. The order of the kernels without a small-matrix path is the same in both.
    backend : {"compiled", "numpy"}
        Implementation of the chains, as in `fpemu.simt.gemm`.
    device : {"cpu", "cuda"}
        Device of the emulation, as in `fpemu.mma.gemm`.

    Returns
    -------
    array (M, N)
        D. Every NaN has the code of ``np.nan``: the payloads of the library's NaN are not emulated.
    """
    M, N = A.shape[0], B.shape[1]
    chains = Chains(_FORMATS[blocks.routine], backend, device)
    bounds = list(pairwise([0, *accumulate(blocks.panels(A.shape[1]))]))
    if not (M and N):
        return np.zeros((M, N), A.dtype)
    with np.errstate(all="ignore"):
        D = chains.product(A, B, bounds, CHAIN)
        for rows, columns, lanes in _MICRO_KERNELS[blocks.micro_kernel](blocks, N, M):
            D[np.ix_(rows, columns)] = chains.product(A[rows], B[:, columns], bounds, lanes)
    D[np.isnan(D)] = np.nan
    return D


@dataclass(frozen=True)
class Chains:
    """Products by chains of fused multiply-adds."""

    fmt: str
    backend: Backend
    device: Device

    def product(self, A: NDArray[Any], B: NDArray[Any], bounds: list[tuple[int, int]], lanes: Lanes) -> NDArray[Any]:
        """The sum of the panels' partial sums, added from zero."""
        D = np.zeros((A.shape[0], B.shape[1]), A.dtype)
        for first, stop in bounds:
            D += self.panel(A[:, first:stop], B[first:stop], lanes)
        return D

    def panel(self, A: NDArray[Any], B: NDArray[Any], lanes: Lanes) -> NDArray[Any]:
        """The partial sums of one panel."""
        main = A.shape[1] // lanes.unroll * lanes.unroll
        if lanes.count == 1 or main == 0:
            return self._chain(A, B, None)
        parts = [self._chain(A[:, k : main : lanes.count], B[k : main : lanes.count], None) for k in range(lanes.count)]
        if main < A.shape[1]:
            parts[0] = self._chain(A[:, main:], B[main:], parts[0])
        while len(parts) > 1:
            parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _chain(self, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any] | None) -> NDArray[Any]:
        D: NDArray[Any] = simt.gemm(A, B, C, fmt=self.fmt, backend=self.backend, device=self.device)
        return D


Region = tuple[NDArray[np.int64], NDArray[np.int64], Lanes]  # rows and columns of D that interleave chains


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
            if rows and which:
                yield np.array(rows), np.array([first + 8 * tile + i for tile in which for i in range(8)]), lanes
        rows = [row + i for row, width in groups if width == 4 for i in range(4)]
        if rows and tiles:
            yield np.array(rows), np.arange(first, first + 8 * tiles), lanes


def _blocks_of_m(m: int, blocks: Blocking) -> Iterator[tuple[int, int]]:
    """First column and number of columns of D in each block; a rest between p and 2p is divided in two."""
    assert blocks.p is not None
    first = 0
    while first < m:
        size = m - first
        if size >= 2 * blocks.p:
            size = blocks.p
        elif size > blocks.p:
            size = -(-(size // 2) // blocks.unroll_m) * blocks.unroll_m
        yield first, size
        first += size


def _groups_of_n(n: int, first_block: bool, blocks: Blocking) -> Iterator[tuple[int, int]]:
    """First row and number of rows of D in each group of the micro-kernel.

    In the first block of columns B is packed in chunks of 3 unroll_n or unroll_n rows of D, which are multiplied at
    once; there are then no groups of 8 rows.
    """
    widths = (12, 4, 2, 1) if first_block else (12, 8, 4, 2, 1)
    row = 0
    for width in widths:
        while n - row >= width:
            yield row, width
            row += width


def _haswell_dgemm(blocks: Blocking, m: int, n: int) -> Iterator[Region]:
    """Four chains per element in the last row of D if the number of rows is odd, for whole tiles of 4 columns."""
    if n % 2 == 1 and m >= 4:
        yield np.array([n - 1]), np.arange(m // 4 * 4), Lanes(4, 8)


_MICRO_KERNELS: dict[str, Callable[[Blocking, int, int], Iterator[Region]]] = {
    "chain": _chain_everywhere,
    "haswell_sgemm": _haswell_sgemm,
    "haswell_dgemm": _haswell_dgemm,
}


def tree(K: int, blocks: Blocking, lanes: Lanes = CHAIN) -> Tree:
    """Return the summation tree of one element of D.

    Parameters
    ----------
    K : int
        Length of the sum, at least 1.
    blocks : Blocking
        Blocking, from `blocking`.
    lanes : Lanes
        Interleaved chains of the element's micro-kernel.

    Returns
    -------
    Tree
        Tree for the argument `order` of `fpemu.simt.gemm`.
    """
    sums = [_panel_tree(first, stop, lanes) for first, stop in pairwise([0, *accumulate(blocks.panels(K))])]
    return sums[0] if len(sums) == 1 else Sum(tuple(sums))


def _panel_tree(first: int, stop: int, lanes: Lanes) -> Tree:
    main = first + (stop - first) // lanes.unroll * lanes.unroll
    if lanes.count == 1 or main == first:
        return _fma_chain(range(first, stop))
    positions = [[*range(first + k, main, lanes.count)] for k in range(lanes.count)]
    positions[0] += range(main, stop)
    parts: list[Tree] = [_fma_chain(p) for p in positions]
    while len(parts) > 1:
        parts = [Sum((x, y)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _fma_chain(positions: Any) -> Chain:
    return Chain(tuple((k,) for k in positions), "fma")
