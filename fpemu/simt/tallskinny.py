"""TSM2 and ISM2: products of matrices of which one is tall and skinny or small, as published.

Source: Rivera, Chen, Xiong, Song, Tao, ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs (2020).
The paper's names: C (m×n) += A (m×k) B (k×n).

TSM2, Algorithms 1 to 4: a large matrix times a tall and skinny one, a thread for each row.

V0   inner products (Algorithm 1): a thread computes the elements of its row of C one after another
V1   outer products (Algorithm 2): a thread holds its row of C in registers and reads each element of A once
V2   tiles of B in shared memory (Algorithm 3)
V3   the next tiles of A and B prefetched (Algorithm 4)

ISM2, section 5, Algorithms 6 and 7: a tall and skinny matrix times a small one. The number of threads is smaller than
the number of rows of A: each thread computes tcf rows, whose distance is the number of threads.

1   Algorithm 6: the rows of a thread one after another, each as in TSM2's V3
2   Algorithm 7: all rows of a thread with one tile of B, then with the next; partial sums of C are stored in memory

In all of them an element of C accumulates its k products in ascending order: the same chain of fused multiply-adds,
whatever the tiles (a partial sum is stored and loaded in its own format, which rounds nothing). The compiled
implementation is therefore one chain. The NumPy reference implementation below executes the published loops, corrected
where the printed text would leave a matrix or read the wrong element:

* Algorithm 2, lines 4, 10 and 15, end at register n, not k; Algorithm 3, line 19, loads A[thread, l + 1], not l + 2;
  Algorithms 3, line 28, and 4, line 46, store column p + t2 - 1, not p + t2.
* Algorithm 4, lines 21 and 27, prefetch while rows of B and columns of A remain: bounded by k, not by n.
* currB is indexed from the beginning of its tile: [l - j ... l - j + t3].
* Algorithm 7, line 20, prefetches while r + total threads < m, not <= m; currA is loaded when a thread begins another
  row or another tile, whereas the printed lines continue with the elements prefetched for the previous row.
* Tiles that extend beyond a matrix are shortened. A kernel that pads them instead must pad A with -0 and B with +0, or
  vice versa: c + (-0) is c for every c, while c + (+0) turns a -0 into +0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu._system import in_ieee
from fpemu.arguments import LARGEST, choice, integer
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import device as devices
from fpemu.mma import reference
from fpemu.mma.device import Backend, Device
from fpemu.mma.gemm import _chain, as_values, broadcast
from fpemu.simt.chains import SPECS, fma_format

Array = NDArray[Any]
VERSIONS = ("V0", "V1", "V2", "V3")
_T1, _T3 = 128, 4  # published for the K40c and the P100 (sections 4.2 and 4.4)


@in_ieee
def tsm2(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    version: str = "V3",
    t1: int | None = None,
    t2: int | None = None,
    t3: int | None = None,
    fmt: FloatFormat | str = "fp32",
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> Any:
    """Return D = A B + C as TSM2 computes it.

    Parameters
    ----------
    A, B : array_like (..., M, K) and (..., K, N)
        Values of ``fmt``; leading axes broadcast; any strides.
    C : array_like (..., M, N), optional
        Addend; without it the chains start from +0.
    version : {"V3", "V2", "V1", "V0"}
        Published loop: inner products (V0), outer products (V1), tiles of B in shared memory (V2), prefetched tiles
        (V3).
    t1, t2, t3 : int, optional
        Tiles of V2 and V3: rows of B (128), columns of C (all), elements of A (4; a divisor of t1). They do not change
        a bit of the result.
    fmt : {"fp32", "fp64", "fp16"} or FloatFormat
        Format of the operands and of D.
    backend : {"compiled", "numpy"}
        Compiled implementation, one chain per element; or NumPy reference implementation, which executes the published
        loops. The same bits.
    device : {"cpu", "cuda", "auto"}
        As in `fpemu.mma.gemm`.

    Returns
    -------
    array (..., M, N) of ``fmt.dtype``
        D.

    Raises
    ------
    InputError
        Wrong shapes, dtypes or values; an unknown version; tiles that do not fit, or that the version does not have.

    Examples
    --------
    >>> A, B = np.float32([[1, 2**-24, 2**-24]]), np.ones((3, 1), np.float32)
    >>> [tsm2(A, B, version=v, backend="numpy").item() for v in VERSIONS], tsm2(A[:, ::-1], B).item()
    ([1.0, 1.0, 1.0, 1.0], 1.0000001192092896)
    """
    choice("version of TSM2", version, VERSIONS)
    if version in ("V0", "V1"):
        given = [name for name, value in (("t1", t1), ("t2", t2), ("t3", t3)) if value is not None]
        if given:
            raise InputError(f"TSM2 {version} has no tiles: leave {' and '.join(given)} out")
    return _multiply(A, B, C, fmt, (t1, t2, t3), backend, device, _LOOPS[version])


@in_ieee
def ism2(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    optimisation: int = 2,
    tcf: int = 1,
    t1: int | None = None,
    t2: int | None = None,
    t3: int | None = None,
    fmt: FloatFormat | str = "fp32",
    backend: Backend = "compiled",
    device: Device = "cpu",
) -> Any:
    """Return D = A B + C as ISM2 computes it.

    Parameters
    ----------
    A, B, C : array_like
        Operands, as in `fpemu.simt.tsm2`.
    optimisation : {2, 1}
        Loop order: 1 is Algorithm 6, 2 is Algorithm 7.
    tcf : int
        "Thread count factor": rows of A per thread. The paper uses 1 to 8.
    t1, t2, t3 : int, optional
        Tiles as in `fpemu.simt.tsm2`. Neither they nor tcf change a bit of the result.
    fmt, backend, device : str
        As in `fpemu.simt.tsm2`.

    Returns
    -------
    array (..., M, N) of ``fmt.dtype``
        D.

    Raises
    ------
    InputError
        Wrong shapes, dtypes or values; another optimisation; tiles that do not fit.

    Examples
    --------
    >>> A, B = np.float32([[1, 2**-24], [2**-24, 1]]), np.ones((2, 1), np.float32)
    >>> [ism2(A, B, optimisation=i, tcf=2, backend="numpy").ravel().tolist() for i in (1, 2)]
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if optimisation not in (1, 2):
        raise InputError(f"optimisation = {optimisation} must be 1 or 2")
    tcf = integer("tcf", tcf, 1, LARGEST)

    def loops(threads: Threads, tiles: LoopTiles) -> None:
        if optimisation == 2:
            interleaved(threads, tiles, tcf)
        else:
            for rows in concurrent_rows(threads.A.shape[-2], tcf, tiles.t1):
                prefetched(threads.rows(rows), tiles)

    return _multiply(A, B, C, fmt, (t1, t2, t3), backend, device, loops)


@dataclass(frozen=True)
class LoopTiles:
    """The parameters of Algorithms 3, 4, 6 and 7: positive integers."""

    t1: int  # rows of B in a tile, and threads in a block
    t2: int  # columns of C that a thread computes at a time
    # Elements of A that a thread loads at a time. They divide t1: otherwise line 17 of Algorithm 3 (25 of Algorithm 4)
    # reads beyond the tile of B.
    t3: int

    def __post_init__(self) -> None:
        for name in ("t1", "t2", "t3"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1, LARGEST))
        if self.t1 % self.t3:
            raise InputError(f"t3 = {self.t3} must divide t1 = {self.t1}: a tile of B is read t3 rows at a time")


@dataclass(frozen=True, eq=False)
class Threads:
    """Operands in float64, and the format of the fused multiply-adds.

    One thread per row of A. All threads execute a step at once: `C` and the registers hold one number per row.
    """

    A: Array
    """(..., m, k)"""
    B: Array
    """(..., k, n)"""
    C: Array
    """(..., m, n); the algorithms overwrite it"""
    fmt: FloatFormat

    def rows(self, rows: slice) -> Threads:
        """The threads of some rows, as views."""
        return Threads(self.A[..., rows, :], self.B, self.C[..., rows, :], self.fmt)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """a·b + c of every thread, rounded once; b is the same number in all threads."""
        with np.errstate(all="ignore"):
            return reference.fma(a, b[..., None], c, self.fmt)


def _multiply(
    A: Any,
    B: Any,
    C: Any,
    fmt: FloatFormat | str,
    tiles: tuple[int | None, int | None, int | None],
    backend: Backend,
    device: Device,
    loops: Callable[[Threads, LoopTiles], None],
) -> Any:
    """A B + C by one chain per element, or with backend="numpy" by the published loops."""
    fmt = fma_format(fmt)
    spec = SPECS[fmt.name]
    a, b = as_values(A, fmt, "A", 2), as_values(B, fmt, "B", 2)
    c = None if C is None else as_values(C, fmt, "C", 2)
    shape = broadcast(a, b, c)
    published = _T1, max(b.shape[-1], 1), _T3
    sizes = LoopTiles(*(default if t is None else t for t, default in zip(tiles, published, strict=True)))
    if devices.implementation(device, backend) != "numpy":
        return _chain([(a, b)], c, spec, device=device)
    with np.errstate(invalid="ignore"):  # signalling NaN
        start = np.zeros(shape) if c is None else np.broadcast_to(c, shape).astype(np.float64)
        threads = Threads(a.astype(np.float64), b.astype(np.float64), start, fmt)
    loops(threads, sizes)
    D = threads.C.astype(fmt.dtype)
    D.view(fmt.code_dtype)[np.isnan(D)] = spec.nan_code or 0  # as `fpemu.simt.gemm`
    return D


def inner(threads: Threads) -> None:
    """Execute Algorithm 1: C[thread, i] in memory accumulates one product after another."""
    A, B, C = threads.A, threads.B, threads.C
    for i in range(B.shape[-1]):
        for j in range(B.shape[-2]):
            C[..., i] = threads.fma(A[..., j], B[..., j, i], C[..., i])


def outer(threads: Threads) -> None:
    """Execute Algorithm 2: a row of C in registers, each element of A read once."""
    A, B, C = threads.A, threads.B, threads.C
    registers = load(C, 0, B.shape[-1])
    for i in range(B.shape[-2]):
        add(threads, registers, A[..., i : i + 1], B[..., i : i + 1, :])
    store(C, 0, registers)


def shared(threads: Threads, tiles: LoopTiles) -> None:
    """Execute Algorithm 3: t1×t2 of B in shared memory, t3 elements of A in registers."""
    A, B, C = threads.A, threads.B, threads.C
    k, n = B.shape[-2:]
    for p in range(0, n, tiles.t2):
        registers = load(C, p, tiles.t2)
        for j in range(0, k, tiles.t1):
            curr_b = B[..., j : j + tiles.t1, p : p + tiles.t2]
            for l in range(j, min(j + tiles.t1, k), tiles.t3):  # noqa: E741 (the paper's name)
                curr_a = A[..., l : l + tiles.t3]
                add(threads, registers, curr_a, curr_b[..., l - j : l - j + tiles.t3, :])
        store(C, p, registers)


def prefetched(threads: Threads, tiles: LoopTiles) -> None:
    """Execute Algorithm 4: the operands of the next iterations of both loops are loaded before the sums of this one."""
    A, B, C = threads.A, threads.B, threads.C
    k, n = B.shape[-2:]
    for p in range(0, n, tiles.t2):
        registers = load(C, p, tiles.t2)
        curr_b = B[..., : tiles.t1, p : p + tiles.t2]
        curr_a = A[..., : tiles.t3]
        for j in range(0, k, tiles.t1):
            next_b = B[..., j + tiles.t1 : j + 2 * tiles.t1, p : p + tiles.t2]
            for l in range(j, min(j + tiles.t1, k), tiles.t3):  # noqa: E741 (the paper's name)
                next_a = A[..., l + tiles.t3 : l + 2 * tiles.t3]
                add(threads, registers, curr_a, curr_b[..., l - j : l - j + tiles.t3, :])
                curr_a = next_a
            curr_b = next_b
        store(C, p, registers)


def load(C: Array, p: int, t2: int) -> list[Array]:
    """Load C_1 ... C_t2 of every thread, fewer at the end of a row."""
    return [C[..., q].copy() for q in range(p, min(p + t2, C.shape[-1]))]


def store(C: Array, p: int, registers: list[Array]) -> None:
    """Store the registers in their columns."""
    for q, register in enumerate(registers, p):
        C[..., q] = register


def add(threads: Threads, registers: list[Array], a: Array, b: Array) -> None:
    """Compute C_q += A[1...t3] × currB[1...t3, q] for every q: one fused multiply-add per element of A, in order."""
    for q in range(len(registers)):
        for s in range(a.shape[-1]):
            registers[q] = threads.fma(a[..., s], b[..., s, q], registers[q])


def interleaved(threads: Threads, tiles: LoopTiles, tcf: int) -> None:
    """Execute Algorithm 7: every tile of B with all rows of a thread, the partial sums of the next rows prefetched."""
    A, B, C = threads.A, threads.B, threads.C
    m, (k, n) = A.shape[-2], B.shape[-2:]
    groups = concurrent_rows(m, tcf, tiles.t1)
    for p in range(0, n, tiles.t2):
        curr_b = B[..., : tiles.t1, p : p + tiles.t2]
        for j in range(0, k, tiles.t1):
            next_b = B[..., j + tiles.t1 : j + 2 * tiles.t1, p : p + tiles.t2]
            registers = load(C[..., groups[0], :], p, tiles.t2) if groups else []
            for group, rows in enumerate(groups):
                ahead = load(C[..., groups[group + 1], :], p, tiles.t2) if group + 1 < len(groups) else []
                part = threads.rows(rows)
                curr_a = part.A[..., j : j + tiles.t3]
                for l in range(j, min(j + tiles.t1, k), tiles.t3):  # noqa: E741 (the paper's name)
                    next_a = part.A[..., l + tiles.t3 : l + 2 * tiles.t3]
                    add(part, registers, curr_a, curr_b[..., l - j : l - j + tiles.t3, :])
                    curr_a = next_a
                store(part.C, p, registers)
                registers = ahead
            curr_b = next_b


def concurrent_rows(m: int, tcf: int, t1: int) -> list[slice]:
    """The rows that all threads compute at the same time: m / (t1 tcf) blocks of t1 threads, rounded up.

    >>> concurrent_rows(10, 2, 4)
    [slice(0, 8, None), slice(8, 10, None)]
    """
    threads = max(-(-m // (t1 * tcf)), 1) * t1
    return [slice(r, min(r + threads, m)) for r in range(0, m, threads)]


_LOOPS: dict[str, Callable[[Threads, LoopTiles], None]] = {
    "V0": lambda threads, _: inner(threads),
    "V1": lambda threads, _: outer(threads),
    "V2": shared,
    "V3": prefetched,
}
