"""The integer instruction: what its sums do at the ends of int32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.errors import InputError
from fpemu.mma.spec import MmaSpec


def characterize(
    execute: Any,
    formats: tuple[Any, Any, Any],
    k: int,
    shape: tuple[int, int] | None,
    outputs: int,
    seed: int,
    name: str,
) -> Any:
    """As `fpemu.probing.characterize`, for int8 operands and int32 results."""
    from fpemu.probing.arithmetic.characterize import Asker, Characterized
    from fpemu.probing.arithmetic.evidence import Finding
    from fpemu.probing.arithmetic.pool import Pool
    from fpemu.probing.arithmetic.verifying import verify

    if tuple(map(str, formats)) != ("int8", "int8", "int32"):
        raise InputError("characterize: the integer instruction has int8 operands and int32 results")
    spec = MmaSpec("int8", "int8", "int32", k=k, block=k, arithmetic="integer", name=name)
    A, B, C, kinds = _probes(k)
    ask = Asker(execute, ("int8", "int8", "int32", _Int32()), shape)  # type: ignore[arg-type]
    pool = Pool(A.view(np.uint8), B.view(np.uint8), C.view(np.uint32), tuple(kinds), C * 0, C * 0, C != 0)
    D = ask(pool).view(np.int32)
    exact = C.astype(np.int64) + (A.astype(np.int64) * B.astype(np.int64)).sum(axis=1)
    expected = mma.execute(A[:, None, :], B[:, :, None], C[:, None, None], spec, backend="numpy").reshape(-1)
    beyond, differ = exact != expected, expected != D
    findings = []
    for field, some in (("exact sums", ~beyond), ("sums beyond int32", beyond)):
        if some.any():
            i = int(np.flatnonzero(some)[np.argmax(differ[some])])
            ends = np.clip(exact, -(2**31), 2**31 - 1)
            word = "yes" if field == "exact sums" else "modulo 2^32"
            if differ[some].any():
                word = "stop at its ends" if (D[some] == ends[some]).all() else "not as known"
            findings.append(Finding(field, word, f"{kinds[i]}, C = {C[i]}", str(D[i]), f"exactly {exact[i]}"))
    if differ.any():
        i = int(np.argmax(differ))
        why = (
            f"no arithmetic known gives these answers: int32 modulo 2^32 differs in {int(differ.sum())} of {len(D)} "
            f"probes, first {kinds[i]}, C = {C[i]}: returned {D[i]}, not {expected[i]}"
        )
        return Characterized(None, tuple(findings), len(D), 0, 0, why)
    findings.insert(0, Finding("arithmetic", "integer: exact modulo 2^32"))
    held = verify(ask, spec, outputs, seed)
    return Characterized(spec, tuple(findings), len(D), held.outputs, held.mismatches, held.first)


class _Int32:
    """Stands for D's format where only its dtype is asked."""

    dtype = np.dtype(np.int32)
    code_dtype = np.dtype(np.uint32)
    width = 32


def _probes(k: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], list[str]]:
    ends = (-128, -127, -1, 0, 1, 2, 127)
    A, B, C, kinds = [], [], [], []
    for a in ends:
        for b in ends:
            for c in (0, 1, -1, 2**31 - 1, -(2**31), 2**30, -(2**30) - 7, 2**24 + 1):
                for where in ([*range(k)], [0], [k - 1], [*range(0, k, 2)]):
                    row = np.isin(np.arange(k), where)
                    A.append(row * a)
                    B.append(row * b)
                    C.append(c)
                    kinds.append(f"{len(where)} products {a}·{b}")
    for q in range(k):  # every place counts, and for itself
        row = np.arange(k) == q
        A.append(row * (q % 100 + 1))
        B.append(np.full(k, 3))
        C.append(q)
        kinds.append(f"{q % 100 + 1}·3 at {q}")
    return np.array(A, np.int8), np.array(B, np.int8), np.array(C, np.int32), kinds
