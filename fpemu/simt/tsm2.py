"""TSM2: a large matrix times a tall and skinny one, in the four versions of its paper.

Source: Rivera, Chen, Xiong, Song, Tao, ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs (2020),
Algorithms 1 to 4. The paper's names: C (m×n) += A (m×k) B (k×n), a thread for each row.

V0   inner products (Algorithm 1): a thread computes the elements of its row of C one after another
V1   outer products (Algorithm 2): a thread holds its row of C in registers and reads each element of A once
V2   tiles of B in shared memory (Algorithm 3)
V3   the next tiles of A and B prefetched (Algorithm 4)

In all versions an element of C accumulates its k products in ascending order: the same chain of fused multiply-adds,
whatever t1, t2 and t3. The compiled implementation is therefore `fpemu.simt.gemm`. The NumPy reference implementation
below executes the published loops, corrected where the printed text would leave a matrix or read the wrong element:

* Algorithm 2, lines 4, 10 and 15, end at register n, not k; Algorithm 3, line 19, loads A[thread, l + 1], not l + 2;
  Algorithms 3, line 28, and 4, line 46, store column p + t2 - 1, not p + t2.
* Algorithm 4, lines 21 and 27, prefetch while rows of B and columns of A remain: bounded by k, not by n.
* currB is indexed from the beginning of its tile: [l - j ... l - j + t3].
* Tiles that extend beyond a matrix are shortened. A kernel that pads them instead must pad A with -0 and B with +0, or
  vice versa: c + (-0) is c for every c, while c + (+0) turns a -0 into +0.
"""

from __future__ import annotations

from typing import Any

from fpemu.arguments import checked, choice
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import device as devices
from fpemu.mma.device import Backend, Device
from fpemu.simt.chains import gemm
from fpemu.simt.tiles import Array, Threads, Tiles

VERSIONS = ("V0", "V1", "V2", "V3")


@checked
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
    A : array_like (..., M, K)
        Values of ``fmt``; leading axes broadcast; any strides.
    B : array_like (..., K, N)
        As A.
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
    tiles = Tiles.of(t1, t2, t3, B)
    if devices.implementation(device, backend) != "numpy":
        return gemm(A, B, C, fmt=fmt, backend=backend, device=device)
    threads = Threads.of(A, B, C, fmt)
    if version == "V0":
        inner(threads)
    elif version == "V1":
        outer(threads)
    else:
        (shared if version == "V2" else prefetched)(threads, tiles)
    return threads.result()


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


def shared(threads: Threads, tiles: Tiles) -> None:
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


def prefetched(threads: Threads, tiles: Tiles) -> None:
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
