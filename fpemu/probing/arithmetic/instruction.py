"""The instruction under test: its results for probes, and verification of a specification with random operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import codes, values
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.probes import Probes

Execute = Callable[[Any, Any, Any], Any]
_TILE = (16, 8)  # M, N of the random products
_KEPT = 8  # mismatching outputs kept of each class


@dataclass(frozen=True)
class Verification:
    """Comparison with random operands."""

    outputs: int = 0
    mismatches: int = 0
    first: str = ""  # the first mismatch in words
    examples: tuple[Probes, ...] = ()  # a few mismatching dot products of each class of operands


class Instruction:
    """A callable (A, B, C) -> D with operands and results of four formats; `shape`: the only shape (M, N) of D."""

    def __init__(self, execute: Execute, formats: Any, shape: tuple[int, int] | None) -> None:
        self.execute, self.formats, self.shape = execute, formats, shape

    def results(self, probes: Probes) -> NDArray[Any]:
        """One code of D for each probe."""
        A, B, C = (values(x, f) for x, f in zip((probes.A, probes.B, probes.C), self.formats[:3], strict=True))
        if self.shape is None:
            return self.run(A[:, None, :], B[:, :, None], C[:, None, None]).reshape(-1)
        M, N = self.shape
        many, out = min(M, N), []
        for first in range(0, len(A), many):  # probes on the diagonal of D
            some = slice(first, first + many)
            i = np.arange(len(A[some]))
            a, b, c = np.zeros((M, A.shape[1]), A.dtype), np.zeros((B.shape[1], N), B.dtype), np.zeros((M, N), C.dtype)
            a[i], b[:, i], c[i, i] = A[some], B[some].T, C[some]
            out.append(self.run(a, b, c)[i, i])
        return np.concatenate(out)

    def run(self, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any]) -> NDArray[Any]:
        """Codes of D."""
        D = np.asarray(self.execute(A.copy(), B.copy(), C.copy()))  # the callable may overwrite its operands
        fmt = self.formats[3]
        dtype = np.dtype(fmt) if isinstance(fmt, str) else fmt.dtype
        if D.shape != C.shape or D.dtype != dtype:
            raise InputError(f"the instruction returned {D.dtype} of shape {D.shape}, not {dtype} of {C.shape}")
        return codes(D, fmt)

    def verify(self, spec: MmaSpec, outputs: int, seed: int) -> Verification:
        """Compare at least so many outputs with the specification's emulation, on random operands of all classes."""
        M, N = self.shape or _TILE
        count, mismatches, first, examples = 0, 0, "", []
        compile_it = str(spec.d_format) == "fp64" and outputs > 10_000  # the NumPy implementation uses fractions
        tests = -(-outputs // (M * N * len(streams.CLASSES)))
        for kind in streams.CLASSES if outputs else ():
            A, B, C = streams.operands(spec, kind, seed, 0, tests, M, N)
            a, b, c = (values(x, f) for x, f in zip((A, B, C), streams.formats(spec), strict=True))
            b = b.swapaxes(-1, -2)
            D = mma.execute(a, b, c, spec, backend="compiled" if compile_it else "numpy")
            expected = codes(D, spec.d_format)
            stacked = self.shape is None
            returned = self.run(a, b, c) if stacked else np.stack([self.run(*x) for x in zip(a, b, c, strict=True)])
            differ = expected != returned
            count, mismatches = count + differ.size, mismatches + int(differ.sum())
            if not differ.any():
                continue
            where = np.argwhere(differ)
            if not first:
                t, i, j = where[0].tolist()
                where_first = f"test {t}, row {i}, column {j}, seed {seed}"
                values_first = f"returned 0x{int(returned[t, i, j]):X}, the row gives 0x{int(expected[t, i, j]):X}"
                first = f"random operands of the class {kind!r} differ: {where_first}: {values_first}"
            t, i, j = where[:: max(1, len(where) // _KEPT)][:_KEPT].T
            examples.append(Probes.without_level(A[t, i], B[t, j], C[t, i, j], "random operands"))
        return Verification(count, mismatches, first, tuple(examples))
