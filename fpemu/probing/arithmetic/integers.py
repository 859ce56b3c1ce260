"""The integer instruction: its sums within and beyond the range of int32."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.mma.spec import MmaSpec
from fpemu.probing.arithmetic.evidence import Finding
from fpemu.probing.arithmetic.instruction import Instruction
from fpemu.probing.arithmetic.probes import Probes

FORMATS = ("int8", "int8", "int32")


def probe_integers(
    instruction: Instruction, formats: tuple[Any, Any, Any], c: Any, k: int, name: str
) -> tuple[MmaSpec | None, tuple[Finding, ...], int, str]:
    """The specification, the findings, the number of probes, and the contradiction if there is no specification."""
    if tuple(map(str, formats)) != FORMATS or str(c) not in ("None", "int32"):
        raise InputError("characterize: the integer instruction has int8 operands, and C and results in int32")
    spec = MmaSpec(*FORMATS, k=k, block=k, arithmetic="integer", name=name)
    A, B, C, kinds = _operands(k)
    D = instruction.results(Probes.without_level(A.view(np.uint8), B.view(np.uint8), C.view(np.uint32), kinds))
    D = D.view(np.int32)
    exact = C.astype(np.int64) + (A.astype(np.int64) * B.astype(np.int64)).sum(axis=1)
    expected = mma.execute(A[:, None, :], B[:, :, None], C[:, None, None], spec, backend="numpy").reshape(-1)
    overflows, differ = exact != expected, expected != D
    findings = []
    for field, some, value in (("exact sums", ~overflows, "yes"), ("sums beyond int32", overflows, "modulo 2^32")):
        if some.any():
            i = int(np.flatnonzero(some)[np.argmax(differ[some])])
            if differ[some].any():
                saturated = np.clip(exact, -(2**31), 2**31 - 1)
                value = "stop at its ends" if (D[some] == saturated[some]).all() else "not as known"
            findings.append(Finding(field, value, f"{kinds[i]}, C = {C[i]}", str(D[i]), f"exactly {exact[i]}"))
    if differ.any():
        i = int(np.argmax(differ))
        why = (
            f"no arithmetic known gives these answers: int32 modulo 2^32 differs in {int(differ.sum())} of {len(D)} "
            f"probes, first {kinds[i]}, C = {C[i]}: returned {D[i]}, not {expected[i]}"
        )
        return None, tuple(findings), len(D), why
    return spec, (Finding("arithmetic", "integer: exact modulo 2^32"), *findings), len(D), ""


def _operands(k: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], list[str]]:
    """Products at the ends of int8 with C at the ends of int32, and each position of k alone."""
    ends = (-128, -127, -1, 0, 1, 2, 127)
    accumulators = (0, 1, -1, 2**31 - 1, -(2**31), 2**30, -(2**30) - 7, 2**24 + 1)
    positions = [np.isin(np.arange(k), some) for some in ([*range(k)], [0], [k - 1], [*range(0, k, 2)])]
    rows = [
        (at * a, at * b, c, f"{at.sum()} products {a}·{b}")
        for a, b, c, at in product(ends, ends, accumulators, positions)
    ]
    rows += [((np.arange(k) == q) * (q % 100 + 1), np.full(k, 3), q, f"{q % 100 + 1}·3 at {q}") for q in range(k)]
    A, B, C, kinds = zip(*rows, strict=True)
    return np.array(A, np.int8), np.array(B, np.int8), np.array(C, np.int32), list(kinds)
