"""ISM2: a tall and skinny matrix times a small one, with the two optimisations of its paper.

Source: Rivera, Chen, Xiong, Song, Tao (2020), section 5, Algorithms 6 and 7. The number of threads is smaller than the
number of rows of A: each thread computes tcf rows, whose distance is the number of threads.

1   Algorithm 6: the rows of a thread one after another, each as in TSM2's V3
2   Algorithm 7: all rows of a thread with one tile of B, then with the next; partial sums of C are stored in memory

In Algorithm 7 a partial sum is stored and loaded after every t1 products in its own format, which rounds nothing: both
optimisations compute TSM2's chain of fused multiply-adds. The NumPy reference implementation executes the published
loops, with the corrections of `fpemu.simt.tsm2` and these of Algorithm 7: line 20 prefetches while r + total threads <
m, not <= m; currA is loaded when a thread begins another row or another tile, whereas the printed lines continue with
the elements prefetched for the previous row.
"""

from __future__ import annotations

from typing import Any

from fpemu.arguments import LARGEST, checked, integer
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import device as devices
from fpemu.mma.device import Backend, Device
from fpemu.simt.chains import gemm
from fpemu.simt.tiles import Threads, Tiles
from fpemu.simt.tsm2 import add, load, prefetched, store


@checked
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
    A : array_like (..., M, K)
        Values of ``fmt``; leading axes broadcast; any strides.
    B : array_like (..., K, N)
        As A.
    C : array_like (..., M, N), optional
        Addend; without it the chains start from +0.
    optimisation : {2, 1}
        Loop order: 1 is Algorithm 6, 2 is Algorithm 7.
    tcf : int
        "Thread count factor": rows of A per thread. The paper uses 1 to 8.
    t1, t2, t3 : int, optional
        Tiles as in `fpemu.simt.tsm2`. Neither they nor tcf change a bit of the result.
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
        Wrong shapes, dtypes or values; another optimisation; tiles that do not fit.

    Examples
    --------
    >>> A, B = np.float32([[1, 2**-24], [2**-24, 1]]), np.ones((2, 1), np.float32)
    >>> [ism2(A, B, optimisation=i, tcf=2, backend="numpy").ravel().tolist() for i in (1, 2)]
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if optimisation not in (1, 2):
        raise InputError(f"optimisation = {optimisation} must be 1 or 2")
    integer("tcf", tcf, 1, LARGEST)
    tiles = Tiles.of(t1, t2, t3, B)
    if devices.implementation(device, backend) != "numpy":
        return gemm(A, B, C, fmt=fmt, backend=backend, device=device)
    threads = Threads.of(A, B, C, fmt)
    if optimisation == 1:
        for rows in concurrent_rows(threads.A.shape[-2], tcf, tiles.t1):
            prefetched(threads.rows(rows), tiles)
    else:
        interleaved(threads, tiles, tcf)
    return threads.result()


def interleaved(threads: Threads, tiles: Tiles, tcf: int) -> None:
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
