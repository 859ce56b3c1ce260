"""Random operands of all classes, which verify a row as a whole; and those that the instruction answers otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import codes, values
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.pool import NO_LEVEL, Pool

_TILE = (16, 8)  # M, N of the random products
_KEPT = 8  # outputs that differ, kept of each class


@dataclass(frozen=True)
class Verified:
    """Entries of D compared, how many differ, the first that does in words, and a few of their operands."""

    outputs: int = 0
    mismatches: int = 0
    first: str = ""
    differing: tuple[Pool, ...] = ()


def verify(ask: Any, spec: MmaSpec, outputs: int, seed: int) -> Verified:
    """Compare at least so many outputs with the row's emulation, on random operands of all classes."""
    M, N = ask.shape or _TILE
    count, wrong, first, kept = 0, 0, "", []
    slow = str(spec.d_format) == "fp64" and outputs > 10_000  # Python's fractions: worth a compilation
    tests = -(-outputs // (M * N * len(streams.CLASSES)))
    for kind in streams.CLASSES if outputs else ():
        A, B, C = streams.operands(spec, kind, seed, 0, tests, M, N)
        a, b, c = (values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
        b = b.swapaxes(-1, -2)
        mine = codes(mma.execute(a, b, c, spec, backend="compiled" if slow else "numpy"), spec.d_format)
        theirs: NDArray[Any]
        theirs = ask.run(a, b, c) if ask.shape is None else np.stack([ask.run(*x) for x in zip(a, b, c, strict=True)])
        differ = mine != theirs
        count, wrong = count + differ.size, wrong + int(differ.sum())
        if not differ.any():
            continue
        where = np.argwhere(differ)
        if not first:
            t, i, j = where[0].tolist()
            first = (
                f"random operands of the class {kind!r} differ: test {t}, row {i}, column {j}, seed {seed}: returned "
                f"0x{int(theirs[t, i, j]):X}, the row gives 0x{int(mine[t, i, j]):X}"
            )
        t, i, j = where[:: max(1, len(where) // _KEPT)][:_KEPT].T
        n = len(t)
        levels, spans = np.full(n, NO_LEVEL), np.full(n, spec.k)
        kept.append(Pool(A[t, i], B[t, j], C[t, i, j], ("random operands",) * n, levels, spans, C[t, i, j] != 0))
    return Verified(count, wrong, first, tuple(kept))
