"""OpenBLAS's GEMM bit for bit: the order in which one thread of a given kernel adds over K.

OpenBLAS divides K into panels. A micro-kernel computes the partial sum of a panel in registers, as one chain of fused
multiply-adds or as a few interleaved chains, and adds it to D, which starts from zero. The length of the panels, and
the positions of D with interleaved chains, depend on the kernel (the processor family), the routine (sgemm, dgemm) and
the version; small products have separate kernels on AVX-512. The table ``fpemu/library/data/openblas.json`` holds
the parameters, and `fpemu.library.openblas_orders` the rules.

NumPy calls OpenBLAS with row-major operands, which OpenBLAS treats as the column-major product Dᵀ = Bᵀ Aᵀ.

The table was measured on builds that choose the kernel at run time (DYNAMIC_ARCH): a build for one processor can divide
D differently. Two cases are not covered: several threads, and sgemm by SME on arm64 processors with that extension.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import simt
from fpemu.arguments import LARGEST, choice, integer, integers
from fpemu.errors import InputError, unknown_name
from fpemu.library.openblas_orders import Blocking, Lanes, Plan, Routine, T, plan
from fpemu.library.tables import LAYOUTS, Layout
from fpemu.mma.device import Backend, Device, implementation
from fpemu.mma.gemm import _chain
from fpemu.mma.tree import Chain, Sum, Tree

__all__ = ["Blocking", "blocking", "kernels", "multiply", "tree"]

_FORMATS = {"sgemm": "fp32", "dgemm": "fp64"}


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
    order = plan(blocks, layout, (M, N, K))
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

    def product(self, A: NDArray[Any], B: NDArray[Any], order: Plan, lanes: Lanes) -> NDArray[Any]:
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
    order = plan(blocks, layout, shape)
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
