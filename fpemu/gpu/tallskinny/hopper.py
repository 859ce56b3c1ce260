"""The kernels for Hopper: rows, columns and stages for a problem, and the loads of A.

Every element is one chain of fused multiply-adds over ascending k, as in the published kernels.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from fpemu.arguments import sizes
from fpemu.errors import InputError
from fpemu.gpu.tallskinny.problem import KernelLaunch, Problem, layout, vector

_WIDEST = 16  # most columns of C that are computed at a time
# by columns of C: warps that multiply, and lanes with the same rows, as many columns each
_WARPS = {1: (1, 1), 2: (2, 2), 3: (3, 1), 4: (2, 2), 6: (2, 2), 8: (2, 2), 12: (4, 2), 16: (4, 2)}
_RING = 200 * 1024  # bytes of shared memory for the ring, of 227 KB
_FP64_RING = 118 * 1024  # in fp64, where more bytes in flight slow the memory down
_MOST_STAGES = 16
_LARGE, _MANY = 2**26, 2**18  # elements of A, and rows
_LOW, _DEEP = 5, 1024  # rows of a thread, and k: four stages of 64 k fit in shared memory, and are few of all
_BOXES = {8: (1, 2, 3), 16: (7,)}  # columns, and rows of a thread, for which boxes of 128 bytes load a large A faster
_B_SHARED = 64 * 1024  # bytes of B that ISM2 keeps in shared memory
_B_KEPT = 16  # elements of B that a thread of ISM2 keeps in registers
_FEW_ROWS = 128  # rows of A per multiprocessor, below which ISM2 spreads them over most threads


def width(n: int) -> int:
    """Return the columns of C that a kernel computes at a time.

    >>> [width(n) for n in (1, 5, 16, 17)]
    [1, 6, 16, 16]
    """
    return next(w for w in _WARPS if w >= min(n, _WIDEST))


def rows(m: int, sms: int) -> int:
    """Return the rows of a thread that minimise the load of the busiest multiprocessor; 8 for many rows.

    >>> rows(20480, 132), rows(100, 132), rows(10**6, 132)
    (5, 1, 8)
    """
    if m >= _MANY:
        return 8
    return min(range(8, 0, -1), key=lambda r: -(-m // (32 * r * sms)) * r)


def tsm2(problem: Problem, sms: int, **changes: Any) -> KernelLaunch:
    """Return the launch of TSM2's Hopper kernel on `sms` multiprocessors; `changes` override the chosen constants."""
    A, size, wide = problem.A, problem.bytes, width(problem.n)
    form, double, (consumers, share) = layout(A), size == 8, _WARPS[wide]
    # a TMA tensor is not empty, and its lines are distinct
    possible = problem.k > 0 and A.strides[form == "columns"] > 0 and max(A.shape) < 2**30
    bulk = vector(A) * size == 16 and possible
    high = rows(problem.m, sms)
    values: dict[str, Any] = {
        "REAL": problem.real,
        f"A_{form.upper()}": True,
        **_copies_of_b(problem, wide),
        "WIDTH": wide,
        "ROWS": high,
        "CONSUMERS": 4 if double else consumers,
        "PRODUCERS": 2 if bulk else 4,
        "DEPTH": 16 if double else 32,
        "BULK": int(bulk),
        **({"DMMA": True} if double else {"SHARE": share}),
        **(_of_columns(problem, wide, high) if bulk and form == "columns" else {}),
        **changes,
    }
    # rows in one box: they must be whole lines, and fp64's reads suit a number of lines that is not a multiple of four
    if bulk and form == "columns" and problem.m % (128 // size) == 0 and not (double and values["ROWS"] % 2 == 0):
        values.setdefault("ONE_BOX", True)
    if not values.get("ONE_BOX"):
        values.pop("ONE_BOX", None)
    # bytes of a stage, by the formula of tallskinny_pipeline.cuh
    elements = 32 * values["ROWS"] * values["DEPTH"] + wide * (values["DEPTH"] + 4)
    stage = -(-elements * size // 1024) * 1024
    ring = _FP64_RING if double and (form != "columns" or high % 2 == 0) else _RING
    values.setdefault("STAGES", max(2, min(_MOST_STAGES, ring // stage)))
    threads, shared = 32 * (values["CONSUMERS"] + values["PRODUCERS"]), values["STAGES"] * (stage + 16)
    return _launch("tsm2_hopper", problem, values, 32 * values["ROWS"], threads, sms, shared=shared, tensor=bulk)


def _of_columns(problem: Problem, wide: int, high: int) -> dict[str, int]:
    """The fastest constants on an H200 for a large A with contiguous columns."""
    if problem.bytes == 8:
        return {"DEPTH": 48 if wide == 16 and high % 2 else 32} if problem.k >= 64 else {}
    if wide == 16 and high <= _LOW and problem.k >= _DEEP:
        return {"DEPTH": 64, "ONE_BOX": False}
    if problem.m * problem.k < _LARGE:
        return {}
    values = {"CONSUMERS": 4, "SHARE": 4} if wide == 8 else {}
    if high in _BOXES.get(wide, ()):
        values |= {"ONE_BOX": False, **({"DEPTH": 64} if wide == 8 else {})}
    return values


def _copies_of_b(problem: Problem, wide: int) -> dict[str, bool]:
    """The macro for copies of B by 16 bytes, if they are possible."""
    size, (step, across) = problem.bytes, problem.B.strides
    if problem.B.pointer % 16:
        return {}
    if step == 1 and across * size % 16 == 0:  # stages begin at multiples of 128 bytes
        return {"B_COLUMNS": True}
    aligned = wide * size % 16 == 0 and step * size % 16 == 0
    return {"B_ROWS": True} if across == 1 and (aligned or step == problem.n == wide) else {}


def ism2(
    problem: Problem, sms: int, tcf: int | None = None, *, spread: int | None = None, **changes: Any
) -> KernelLaunch:
    """Return the launch of ISM2's Hopper kernels; TSM2's if B is too large for shared memory.

    tcf: tiles of rows per thread block, or per warp with DMMA; default 1, with DMMA up to 2. spread: 0, several rows
    per thread, or per warp with DMMA; 1, one or fewer; 2, in fp32 not all columns either; default: by the rows per
    multiprocessor. `changes` override constants.
    """
    (m, k), n, by_rows = problem.A.shape, problem.n, layout(problem.A) == "rows"
    if tcf is not None:
        sizes(tcf=tcf)
    padded = -(-min(n, _WIDEST) // 4) * 4
    if not k or k * padded * problem.bytes > _B_SHARED:
        return tsm2(problem, sms)
    dmma = problem.bytes == 8 and max(k, n) > (2 if by_rows else 4)  # for all but the smallest B
    if spread is None:
        # rows per multiprocessor below which they are spread over more threads, measured on an H200
        some = 1024 if not (dmma or by_rows) else 8192 if not dmma and (n > 8 or k >= 16) else 2048
        spread = (m < some * sms) + (m < _FEW_ROWS * sms)
    if dmma:
        return _dmma(problem, not spread, tcf, changes)
    return _cores(problem, tcf or 1, _spread(problem, spread), changes)


def _cores(problem: Problem, tcf: int, spread: dict[str, int], changes: dict[str, Any]) -> KernelLaunch:
    size, most = problem.bytes, 16 // problem.bytes
    wide, direct = min(problem.n, spread.get("WIDTH", _WIDEST)), spread.get("DIRECT", 0) == 1
    values: dict[str, Any] = {"REAL": problem.real, "WIDTH": wide}
    values |= _loads(problem, direct, most) | _stores(problem, wide, direct, most)
    values |= _sizes(values, size, problem.k) | {name: spread[name] for name in ("ROWS", "THREADS") if name in spread}
    if values["ROWS"] % most and "VECTORS" in values:
        values = {name: value for name, value in values.items() if name not in ("VECTORS", "C_COLUMNS")}
    padded = -(-wide // most) * most
    if problem.n <= wide and problem.k * padded <= _B_KEPT and "A_PITCH" not in values:
        values["B_KEPT"] = True
    values |= changes
    tile = values["ROWS"] * values["THREADS"]
    pitch = max(values.get("A_PITCH", 0), values.get("C_PITCH", 0))
    shared = (problem.k * padded + tile * pitch) * size
    return _launch("ism2_hopper", problem, values, tile * tcf, values["THREADS"], shared=shared)


def _spread(problem: Problem, spread: int) -> dict[str, int]:
    """The fastest constants on an H200 in fp32 for a `spread` of `ism2`."""
    k, few = problem.k, spread == 2
    if problem.bytes == 8 or not spread:
        return {}
    if layout(problem.A) != "rows":
        if few:
            return {"ROWS": 1, "THREADS": 128, "WIDTH": 4}
        return {"ROWS": 1, "THREADS": 128, "WIDTH": 8} if problem.n > 4 else {}
    if 4 % k == 0:
        return {"ROWS": 4 // k, "THREADS": 128}
    return {"ROWS": 1, "THREADS": 64, "DIRECT": int(few or k <= 8), **({"WIDTH": 4} if few and k % 4 == 0 else {})}


def _sizes(values: dict[str, Any], size: int, k: int) -> dict[str, Any]:
    """The fastest rows and threads on an H200."""
    if size == 4 and "FLAT" in values:
        return {"ROWS": 4, "THREADS": 64, "BLOCKS": 1}
    if size == 4 and "A_LINEAR" in values:
        return {"ROWS": 2, "THREADS": 128, "BLOCKS": 1}
    if size == 4 and "VECTORS" in values and k > 8:  # wide ones within the registers of eight thread blocks
        return {"DEPTH": 8, "ROWS": 4, "THREADS": 64, "BLOCKS": 8 if values["WIDTH"] > 8 else 1}
    return {"ROWS": 4, "THREADS": 128 if size == 4 else 64, "BLOCKS": 1}


def _loads(problem: Problem, direct: bool, most: int) -> dict[str, Any]:
    """The constants for loads of A; `most` elements are 16 bytes; direct: whole rows by one thread, if possible."""
    A, k, width, form = problem.A, problem.k, vector(problem.A), layout(problem.A)
    values: dict[str, Any] = {f"A_{form.upper()}": True, "DEPTH": min(k, 16)}
    if form != "rows":
        return values | ({"VECTORS": True} if form == "columns" and width == most else {})
    adjacent = k == A.strides[0] and A.pointer % 16 == 0
    if most % k == 0 and adjacent:
        return values | {"FLAT": True}
    if direct and width == most and k % most == 0 and k <= 16:
        return values | {"DIRECT": True}
    depth = min(k, 32)
    pitch, read = _pitch(depth, most)
    values |= {"DEPTH": depth, "A_PITCH": pitch, "A_READ": read}
    return values | ({"A_LINEAR": True} if k == pitch and adjacent else {"A_VECTOR": gcd(most, depth, k, width)})


def _stores(problem: Problem, wide: int, direct: bool, most: int) -> dict[str, Any]:
    """The constants for stores of C."""
    A, C, n, width, form = problem.A, problem.C, problem.n, vector(problem.C), layout(problem.C)
    if form != "rows":
        return {"C_COLUMNS": True} if form == "columns" and width == most else {}
    adjacent = n == C.strides[0] and C.pointer % 16 == 0
    flat = problem.k == n and most % n == 0 and layout(A) == "rows" and A.strides[0] == n
    if flat and adjacent and A.pointer % 16 == 0:
        return {"C_FLAT": True}
    if direct and width == most and n % most == 0:
        return {"C_DIRECT": True}
    pitch, _ = _pitch(wide, most)
    vectors = {"C_LINEAR": True} if n == wide == pitch and adjacent else {"C_VECTOR": gcd(most, wide, n, width)}
    return {"C_STAGED": True, "C_PITCH": pitch, **vectors}


def _pitch(length: int, most: int) -> tuple[int, int]:
    """Return the row pitch of a tile and the elements of a read, at most `most`.

    Neighbouring threads read different banks if a row has an odd number of reads, and need two rounds for twice an odd
    number; other rows are padded.

    >>> [_pitch(length, 4) for length in (16, 12, 8, 6, 5)]
    [(20, 4), (12, 4), (8, 4), (6, 2), (5, 1)]
    """
    read = gcd(most, length)
    return (length if length // read % 4 else length + read), read


def _dmma(problem: Problem, many: bool, tcf: int | None, changes: dict[str, Any]) -> KernelLaunch:
    A, C, k = problem.A, problem.C, problem.k
    form, depth = layout(A), min(-(-k // 4) * 4, 16)
    deep = depth > 8
    values: dict[str, Any] = {
        "REAL": problem.real,
        "WIDTH": min(problem.n, _WIDEST),
        "TILES": 16 // depth if form == "rows" else 8 if not deep else 4 if many else 2,
        "THREADS": 128,
        "DEPTH": depth,
        f"A_{form.upper()}": True,
    }
    vectors, pairs = form == "columns" and vector(A) == 2, vector(C) == 2
    macros = {
        "WHOLE_K": k <= depth,
        "VECTORS": vectors,
        "C_COLUMNS": vectors and pairs and layout(C) == "columns",
        "C_PAIRS": pairs and layout(C) == "rows" and problem.n % 2 == 0,
    }
    values |= {name: True for name, defined in macros.items() if defined} | changes
    tile = 8 * values["TILES"] * values["THREADS"] // 32 * (tcf or (2 if many and deep else 1))
    return _launch("ism2_fp64", problem, values, tile, values["THREADS"])


def _launch(
    entry: str, problem: Problem, values: dict[str, Any], rows: int, threads: int, most: int = 2**63, **more: Any
) -> KernelLaunch:
    """Return a launch with thread blocks of so many rows, at most `most`, which then loop over rows."""
    blocks, passes = min(-(-problem.m // rows), most), -(-problem.n // values["WIDTH"])
    if passes > 65535:
        raise InputError(f"n = {problem.n} columns are not skinny: {_WIDEST * 65535} are the most")
    if blocks >= 2**31:
        raise InputError(f"m = {problem.m} rows take {blocks} thread blocks, and 2147483647 are the most: raise tcf")
    return KernelLaunch(f"{entry}.cu", entry, values, (blocks, passes), threads, **more)
