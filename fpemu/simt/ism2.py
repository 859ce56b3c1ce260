"""ISM2: a tall and skinny matrix times a small one, with the two optimisations of its paper.

Source: Rivera, Chen, Xiong, Song, Tao (2020), section 5, Algorithms 6 and 7. Fewer threads than A has rows: each does
tcf rows, so many apart as there are threads.

1   Algorithm 6: one row after another, each as TSM2's V3 does it
2   Algorithm 7: all rows of a thread with one tile of B, then with the next; what C has so far goes through memory

In the second, a sum is stored and loaded again after every t1 products, in its own format, so nothing is rounded by it:
both are the chain of fused multiply-adds that TSM2 has. The readable forms below walk through the loops as published,
with the corrections of `fpemu.simt.tsm2` and these of Algorithm 7: line 20 loads ahead while r + total threads < m, not
<= m; currA is loaded when a thread comes to another row or another tile, where the printed lines go on with what they
loaded ahead for the row before.
"""

from __future__ import annotations

from typing import Any

from fpemu.arguments import checked
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma._device import Backend
from fpemu.simt.chains import gemm
from fpemu.simt.tiles import Tiles, Walk, columns, positive
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
        One chain for each element, or the optimisation's loops one after another: the same bits.

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
    positive("tcf", tcf)
    tiles = Tiles.of(t1, t2, t3, columns(B))
    if backend != "numpy":
        return gemm(A, B, C, fmt=fmt, backend=backend)
    walk = Walk.over(A, B, C, fmt)
    if optimisation == 1:
        for rows in rounds(walk.A.shape[-2], tcf, tiles.t1):
            prefetched(walk.rows(rows), tiles)
    else:
        interleaved(walk, tiles, tcf)
    return walk.result()


def interleaved(walk: Walk, tiles: Tiles, tcf: int) -> None:
    """Algorithm 7: for every tile of B the rows in turn, what C has of them loaded ahead and stored again."""
    A, B, C = walk.A, walk.B, walk.C
    m, (k, n) = A.shape[-2], B.shape[-2:]
    turns = rounds(m, tcf, tiles.t1)
    for p in range(0, n, tiles.t2):
        curr_b = B[..., : tiles.t1, p : p + tiles.t2]
        for j in range(0, k, tiles.t1):
            next_b = B[..., j + tiles.t1 : j + 2 * tiles.t1, p : p + tiles.t2]
            registers = load(C[..., turns[0], :], p, tiles.t2) if turns else []
            for turn, rows in enumerate(turns):
                ahead = load(C[..., turns[turn + 1], :], p, tiles.t2) if turn + 1 < len(turns) else []
                own = walk.rows(rows)
                curr_a = own.A[..., j : j + tiles.t3]
                for l in range(j, min(j + tiles.t1, k), tiles.t3):  # noqa: E741 (the paper's name)
                    next_a = own.A[..., l + tiles.t3 : l + 2 * tiles.t3]
                    add(own, registers, curr_a, curr_b[..., l - j : l - j + tiles.t3, :])
                    curr_a = next_a
                store(own.C, p, registers)
                registers = ahead
            curr_b = next_b


def rounds(m: int, tcf: int, t1: int) -> list[slice]:
    """The rows that all threads do at a time: m / (t1 tcf) blocks of t1 threads, rounded up, and the rows from there.

    >>> rounds(10, 2, 4)
    [slice(0, 8, None), slice(8, 10, None)]
    """
    threads = max(-(-m // (t1 * tcf)), 1) * t1
    return [slice(r, min(r + threads, m)) for r in range(0, m, threads)]
