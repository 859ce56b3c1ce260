"""Tall and skinny products on the current GPU: TSM2 and ISM2 as published, and versions for Hopper.

Every element of C = A B is one chain of fused multiply-adds over ascending k from +0, whichever kernel computes it: the
bits of ``fpemu.simt.tsm2(A, B, fmt=...)`` and ``fpemu.simt.ism2(A, B, fmt=...)``, NaN patterns and signs of zero
included.

Source: Rivera, Chen, Xiong, Song, Tao, ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fpemu.errors import GpuError, InputError
from fpemu.gpu.operation import Operations, Request
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Memory, Step
from fpemu.gpu.tallskinny import hopper, published
from fpemu.gpu.tallskinny.problem import KernelLaunch, Problem, layout, refuse_tiles

__all__ = ["ism2", "multiply", "tsm2"]

SMALL, SMALL_TALL = 32, 128
"""Largest k for which `multiply` uses ISM2, the algorithm for a small B: for any A, and for an A of contiguous columns
with at least `TALL` rows"""
TALL = 2**18
_operations = Operations()


def tsm2(
    A: Any,
    B: Any,
    *,
    version: str = "V3",
    t1: int | None = None,
    t2: int | None = None,
    t3: int | None = None,
    out: Any = None,
) -> Any:
    """Return C = A B for a large A and a B of few columns.

    Parameters
    ----------
    A, B : arrays (m, k) and (k, n)
        float32 or float64, both of one type: NumPy, CuPy or torch arrays, or any with ``__cuda_array_interface__`` or
        DLPack; both in the CPU's memory or both in the GPU's; any strides. The published versions are made for an A
        whose columns are contiguous.
    version : {"V3", "V2", "V1", "V0", "hopper"}
        The paper's inner products (V0), outer products (V1), tiles of B in shared memory (V2), tiles loaded ahead (V3);
        "hopper": a ring of tiles filled by bulk copies, fp64 by DMMA.
    t1, t2, t3 : int, optional
        Of V2 and V3: threads of a block and rows of B in a tile; columns of C at a time; elements of A at a time.
        Default: `fpemu.roofline.tallskinny` for this GPU, and as published where that leaves a choice.
    out : array (m, n) of the GPU, optional
        Where to write C, of any positive strides; it must not share memory with A or B.

    Returns
    -------
    C : array (m, n) of the kind that A is
        In the GPU's memory if A is, ready on the caller's current stream.

    Raises
    ------
    InputError
        Arrays that do not fit; an unknown version; parameters that it does not have or that cannot run on this GPU.
    GpuError
        No GPU, or one with too little memory or without the instructions of the version.
    """
    return _solve(A, B, out, "tsm2", {"version": version, "t1": t1, "t2": t2, "t3": t3})


def ism2(
    A: Any,
    B: Any,
    *,
    optimisation: int | str = 2,
    tcf: int | None = None,
    t1: int | None = None,
    t2: int | None = None,
    t3: int | None = None,
    out: Any = None,
) -> Any:
    """Return C = A B for an A of many rows and a small B.

    Parameters
    ----------
    A, B : arrays (m, k) and (k, n)
        As in `tsm2`.
    optimisation : {2, 1, "hopper"}
        1: a thread does one row after another (Algorithm 6); 2: for each tile of B all its rows (Algorithm 7);
        "hopper": 16 bytes a load, several rows a thread at once, fp64 by DMMA.
    tcf : int, optional
        "Thread count factor": rows of a thread of 1 and 2, tiles of rows of a thread block of "hopper".
    t1, t2, t3 : int, optional
        Of 1 and 2, as in `tsm2`.
    out : array (m, n) of the GPU, optional
        As in `tsm2`.

    Returns
    -------
    C : array (m, n)
        As in `tsm2`.

    Raises
    ------
    InputError, GpuError
        As `tsm2`.
    """
    return _solve(A, B, out, "ism2", {"optimisation": optimisation, "tcf": tcf, "t1": t1, "t2": t2, "t3": t3})


def multiply(A: Any, B: Any, *, out: Any = None) -> Any:
    """Return C = A B by the kernel that suits the shape and the GPU.

    Parameters
    ----------
    A, B, out : arrays (m, k), (k, n) and (m, n)
        As in `tsm2`.

    Returns
    -------
    C : array (m, n)
        As in `tsm2`.

    Raises
    ------
    InputError, GpuError
        As `tsm2`.

    Notes
    -----
    Repeated calls on torch tensors are queued as by `fpemu.gpu.batched.hgemm`.
    """
    return _solve(A, B, out, None, {})


@dataclass
class TallSkinnyRequest(Request):
    """An algorithm with its options; None: the choice of `chosen`."""

    algorithm: str | None
    options: dict[str, Any]
    sizes = "the sizes of A or B"

    def result(self, operands: dict[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        A, B = operands["A"], operands["B"]
        for name, X in (("A", A), ("B", B)):
            if not isinstance(X, Matrix | np.ndarray):
                raise InputError(f"{name} is a {type(X).__name__}: give an array of NumPy, CuPy or torch")
            if X.dtype.name not in ("float32", "float64") or not X.dtype.isnative:
                raise InputError(f"{name} has {X.dtype}: tall and skinny products are in float32 or float64")
            if len(X.shape) != 2:
                raise InputError(f"{name} has shape {tuple(X.shape)}: one matrix, with two axes, is needed")
        if A.dtype != B.dtype:
            raise InputError(f"A has {A.dtype} and B {B.dtype}: convert one of them")
        if A.shape[1] != B.shape[0]:
            raise InputError(f"A {A.shape} and B {B.shape} do not fit: A's columns must be as many as B's rows")
        return (A.shape[0], B.shape[1]), A.dtype

    def steps(self, layouts: dict[str, Any], memory: Memory) -> list[Step]:
        problem = Problem(layouts["A"], layouts["B"], layouts["D"])
        if not problem.m or not problem.n:
            return []
        algorithm, options = self.algorithm, self.options
        if algorithm is None:
            algorithm, options = chosen(problem.m, problem.k, problem.n, layout(problem.A))
        return [plan(problem, algorithm, **options).step(problem)]


def _solve(A: Any, B: Any, out: Any, algorithm: str | None, options: dict[str, Any]) -> Any:
    """Return C = A B, by the operation of an earlier call where there is one."""
    key = algorithm, *options.values(), *map(type, options.values())  # 128.0 and 128 are equal
    D, arrays, key = _operations.repeat(key, A, B, None, out)
    if D is None:
        given = {"A": A, "B": B} | ({} if out is None else {"out": out})
        D = _operations.compute(TallSkinnyRequest(algorithm, options), given, arrays, key)
    return D


def chosen(m: int, k: int, n: int, layout: str = "rows") -> tuple[str, dict[str, Any]]:
    """Return the algorithm and the options that `multiply` uses on the current GPU; layout: as `problem.layout`."""
    device.need()
    fast = device.capability() == (9, 0)
    if k <= SMALL or (k <= SMALL_TALL and m >= TALL and layout == "columns"):
        return "ism2", {"optimisation": "hopper" if fast else 1}
    return "tsm2", {"version": "hopper" if fast else "V3"}


def plan(problem: Problem, algorithm: str, **options: Any) -> KernelLaunch:
    """Return the kernel and the launch of a product on the current GPU; options: as in `tsm2` and `ism2`."""
    by_tsm2 = algorithm == "tsm2"
    named, default = ("version", "V3") if by_tsm2 else ("optimisation", 2)
    version = options.pop(named, default)
    if version != "hopper":
        return (published.tsm2 if by_tsm2 else published.ism2)(problem, published.here(problem), version, **options)
    what = f"{algorithm.upper()}'s {named} 'hopper'"
    if device.capability() != (9, 0):
        major, minor = device.capability()
        raise GpuError(f"{what} needs compute capability 9.0; {device.describe()['gpu']} has {major}.{minor}")
    refuse_tiles(f"{what} has fixed tiles", {name: options.pop(name, None) for name in ("t1", "t2", "t3")})
    return (hopper.tsm2 if by_tsm2 else hopper.ism2)(problem, device.multiprocessors(), **options)
