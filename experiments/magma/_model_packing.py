"""Several small products in one matrix instruction: the number that fits, and the share of useful operations.

Source: Abdelfattah, Tomov, Dongarra (2020), section 8.1, Fig. 16 and 17. An instruction of m×n×k, divided into squares
of N, has R = floor(m/N) block rows in A, Q = floor(n/N) block columns in B and S = floor(k/N) block steps between them.
A product A_i B_i may be put at (r, q, s): A_i at block (r, s) of A, B_i at block (s, q) of B; its result is block (r,
q) of D. The other blocks of D are not used. The result is correct if and only if no other step contributes: for every
s' other than s, block (r, s') of A or block (s', q) of B is empty. A block holds one operand.

The paper places the products on the diagonal, r = q = s: min(R, Q, S) products, floor(16/N) for 16×16×16, so a share of
floor(16/N) 2 N^3 / 8192 of the instruction's 8192 operations is useful. The paper calls this number the maximum, but
more products fit. Consider a graph whose vertices are the block rows, columns and steps, whose edges are the blocks of
A, B and D and whose triangles are the products; the condition is that every edge lies in exactly one triangle. That is
the Ruzsa-Szemerédi problem, whose solution grows faster than the side: for 1, 2, 3 and 4 blocks per side 1, 2, 6 and 9
products, where the diagonal has 1 to 4. `arrange` finds such arrangements by integer programming where the grid is
small (then with the most products possible) and by joining smaller arrangements elsewhere (a lower bound). The operands
must be finite: on the diagonal an infinity of one product does not enter the results of the others, but here it is
multiplied by their zeros, and the results are NaN.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Place = tuple[int, int, int]
"""Block row, block column and block step of a product: (r, q, s)."""
EXACT = 100
"""Largest number of places for which a largest arrangement is found by integer programming (under a second)."""


@dataclass(frozen=True)
class Packing:
    """Products of N×N×N in one m×n×k instruction, or in the fewest where one is too small."""

    products: int
    instructions: int
    utilisation: float
    """Useful operations divided by the operations of the instructions"""
    places: tuple[Place, ...]


def diagonal(rows: int, columns: int, steps: int) -> tuple[Place, ...]:
    """Return the paper's arrangement (Fig. 16).

    >>> diagonal(2, 4, 2)
    ((0, 0, 0), (1, 1, 1))
    """
    return tuple((i, i, i) for i in range(min(rows, columns, steps)))


def valid(places: Sequence[Place]) -> bool:
    """Return whether every product's block of D is that product alone, by the condition in the module's docstring.

    >>> valid([(0, 0, 0), (1, 1, 0)]), valid([(0, 0, 0), (0, 1, 0)]), valid([(0, 0, 0), (0, 0, 1)])
    (True, False, False)
    """
    in_a = {(r, s) for r, _, s in places}
    in_b = {(s, q) for _, q, s in places}
    results = {(r, q) for r, q, _ in places}
    if not len(places) == len(in_a) == len(in_b) == len(results):
        return False
    steps = {s for _, _, s in places}
    return all(sum((r, s) in in_a and (s, q) in in_b for s in steps) == 1 for r, q in results)


@functools.cache
def arrange(rows: int, columns: int, steps: int) -> tuple[Place, ...]:
    """Return an arrangement of small products in a grid of blocks.

    It is a largest arrangement if rows · columns · steps is at most `EXACT`, else it is composed of smaller ones.

    >>> [len(arrange(b, b, b)) for b in (1, 2, 3, 4)]
    [1, 2, 6, 9]
    """
    if rows * columns * steps <= EXACT:
        return _largest(rows, columns, steps)
    arrangements = [diagonal(rows, columns, steps)]
    for side in range(2, min(rows, columns, steps) + 1):
        if side**3 <= EXACT:
            outer, inner = _largest(side, side, side), arrange(rows // side, columns // side, steps // side)
            shape = (rows // side, columns // side, steps // side)
            arrangements.append(
                tuple((a * shape[0] + r, b * shape[1] + q, c * shape[2] + s) for a, b, c in outer for r, q, s in inner)
            )
    side = min(rows, columns, steps)
    arrangements += [_cyclic(odd) for odd in range(3, side + 1, 2)]
    return max(arrangements, key=len)


def pack(N: int, shape: Sequence[int], *, paper: bool = True) -> Packing:
    """Return how N×N×N products are packed into instructions: on the diagonal, as in the paper, or as many as fit.

    Where N exceeds a side of the instruction, one product takes several of them.

    >>> pack(4, (16, 16, 16)).utilisation, pack(4, (16, 16, 16), paper=False).utilisation
    (0.0625, 0.140625)
    >>> pack(4, (8, 8, 4), paper=False).utilisation
    0.5
    """
    m, n, k = shape
    grid = (max(1, m // N), max(1, n // N), max(1, k // N))
    places = diagonal(*grid) if paper else arrange(*grid)
    instructions = -(-N // m) * -(-N // n) * -(-N // k)
    return Packing(len(places), instructions, len(places) * N**3 / (instructions * m * n * k), tuple(places))


def utilisation(N: int, shape: Sequence[int] = (16, 16, 16), *, paper: bool = True) -> float:
    """Return the share of an instruction's operations that is useful for N×N×N products (Fig. 17).

    >>> f"{100 * utilisation(8):g} %, {100 * utilisation(10):.1f} %"
    '25 %, 24.4 %'
    """
    return pack(N, shape, paper=paper).utilisation


def _cyclic(side: int) -> tuple[Place, ...]:
    """Places (x, x + a, x + 2a) modulo an odd side, a in a set without three terms of an arithmetic progression.

    The differences a, b and (a + b) / 2 of another triangle's edges would be such a progression.
    """
    chosen: list[int] = []
    for a in range(side):
        trial = [*chosen, a]
        ends = {(x, y) for x in trial for y in trial if x != y}
        if not any((x + y - 2 * z) % side == 0 for x, y in ends for z in trial):
            chosen.append(a)
    return tuple((x, (x + a) % side, (x + 2 * a) % side) for x in range(side) for a in chosen)


@functools.cache
def _largest(rows: int, columns: int, steps: int) -> tuple[Place, ...]:
    """A largest arrangement, by integer programming with one 0-1 variable per place (HiGHS)."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    places = [(r, q, s) for r in range(rows) for q in range(columns) for s in range(steps)]
    index = {place: i for i, place in enumerate(places)}
    edges: dict[Any, list[int]] = {}
    for (r, q, s), i in index.items():
        for edge in (("A", r, s), ("B", s, q), ("D", r, q)):
            edges.setdefault(edge, []).append(i)
    constraints = [(dict.fromkeys(held, 1), 1) for held in edges.values()]
    for (r, q, s), i in index.items():
        # if other products used all three edges, their blocks would form an additional product here
        row: dict[int, int] = {}
        for edge in (("A", r, s), ("B", s, q), ("D", r, q)):
            for j in edges[edge]:
                row[j] = row.get(j, 0) + 1
        row[i] -= 1
        constraints.append((row, 2))
    entries = [(i, j, value) for i, (row, _) in enumerate(constraints) for j, value in row.items()]
    lines, variables, values = (np.array(column) for column in zip(*entries, strict=True))
    matrix = csr_array((values, (lines, variables)), shape=(len(constraints), len(places)))
    result = milp(
        -np.ones(len(places)),
        integrality=np.ones(len(places)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, ub=np.array([limit for _, limit in constraints])),
    )
    return tuple(place for place, x in zip(places, result.x, strict=True) if x > 0.5)
