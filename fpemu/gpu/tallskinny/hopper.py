"""The kernels for Hopper: rows, columns and stages for a problem, and the loads of A.

Every element is one chain of fused multiply-adds over ascending k, as in the published kernels.
"""

from __future__ import annotations

from typing import Any

from fpemu.arguments import sizes
from fpemu.errors import InputError
from fpemu.gpu.tallskinny.problem import KernelLaunch, Problem

__all__ = ["ism2", "tsm2"]

_WIDEST = 16  # most columns of C that are computed at a time
_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_CONSUMERS = {1: 1, 2: 2, 3: 3, 4: 2, 6: 2, 8: 2, 12: 4, 16: 4}
_SHARE = {1: 1, 2: 2, 3: 1, 4: 2, 6: 2, 8: 2, 12: 2, 16: 2}  # lanes with the same rows, as many columns each
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
    return min((w for w in _WIDTHS if w >= min(n, _WIDEST)), default=_WIDEST)


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
    wide, double = width(problem.n), problem.fmt == "fp64"
    layout, depth = problem.a_layout, 16 if double else 32
    # a TMA tensor is not empty, and its lines are distinct
    possible = problem.k > 0 and problem.a[layout == "columns"] > 0 and max(problem.m, problem.k) < 2**30
    bulk = layout != "any" and problem.vector("a") * problem.bytes == 16 and possible
    high, line = rows(problem.m, sms), 128 // problem.bytes
    values: dict[str, Any] = {
        "REAL": "double" if double else "float",
        f"A_{layout.upper()}": 1,
        **_copies_of_b(problem, wide),
        "WIDTH": wide,
        "ROWS": high,
        "CONSUMERS": 4 if double else _CONSUMERS[wide],
        "PRODUCERS": 2 if bulk else 4,
        "DEPTH": depth,
        "BULK": int(bulk),
        **({"DMMA": 1} if double else {"SHARE": _SHARE[wide]}),
        **(_of_columns(problem, wide, high) if bulk else {}),
        **changes,
    }
    # rows in one box: they must be whole lines, and fp64's reads suit a number of lines that is not a multiple of four
    if bulk and layout == "columns" and problem.m % line == 0 and not (double and values["ROWS"] % 2 == 0):
        values.setdefault("ONE_BOX", 1)
    if not values.get("ONE_BOX"):
        values.pop("ONE_BOX", None)
    stage = _stage(values, problem.bytes)
    ring = _FP64_RING if double and (layout != "columns" or high % 2 == 0) else _RING
    values.setdefault("STAGES", max(2, min(_MOST_STAGES, ring // stage)))
    threads, more = 32 * (values["CONSUMERS"] + values["PRODUCERS"]), {"tensor": bool(values["BULK"])}
    shared = values["STAGES"] * (stage + 16)
    return _launch("tsm2_hopper", problem, values, 32 * values["ROWS"], threads, sms, shared=shared, **more)


def _of_columns(problem: Problem, wide: int, high: int) -> dict[str, int]:
    """The fastest constants on an H200 for a large A with contiguous columns."""
    if problem.a_layout == "rows":
        return {}
    if problem.fmt == "fp64":
        return {"DEPTH": 48 if wide == 16 and high % 2 else 32} if problem.k >= 64 else {}
    if wide == 16 and high <= _LOW and problem.k >= _DEEP:
        return {"DEPTH": 64, "ONE_BOX": 0}
    if problem.m * problem.k < _LARGE:
        return {}
    values = {"CONSUMERS": 4, "SHARE": 4} if wide == 8 else {}
    if high in _BOXES.get(wide, ()):
        values |= {"ONE_BOX": 0, **({"DEPTH": 64} if wide == 8 else {})}
    return values


def _copies_of_b(problem: Problem, wide: int) -> dict[str, int]:
    """The macro for copies of B by 16 bytes, if they are possible."""
    size, (step, across), address = problem.bytes, problem.b, problem.addresses[1]
    if address % 16:
        return {}
    if step == 1 and across * size % 16 == 0:  # stages begin at multiples of 128 bytes
        return {"B_COLUMNS": 1}
    aligned = wide * size % 16 == 0 and step * size % 16 == 0
    return {"B_ROWS": 1} if across == 1 and (aligned or step == problem.n == wide) else {}


def _stage(values: dict[str, Any], size: int) -> int:
    """Bytes of a stage, by the formula of ``tallskinny_pipeline.cuh``."""
    depth = values["DEPTH"]
    elements = 32 * values["ROWS"] * depth + values["WIDTH"] * (depth + 4)
    return -(-elements * size // 1024) * 1024


def ism2(
    problem: Problem,
    sms: int,
    tcf: int | None = None,
    *,
    unit: str | None = None,
    spread: int | None = None,
    **changes: Any,
) -> KernelLaunch:
    """Return the launch of ISM2's Hopper kernels; TSM2's if B is too large for shared memory.

    tcf: tiles of rows per thread block, or per warp with DMMA; default 1, with DMMA up to 2. unit: "cores" or "DMMA";
    default DMMA in fp64 for all but the smallest B. spread: 0, several rows per thread, or per warp with DMMA; 1, one
    or fewer; 2, in fp32 not all columns either; default: by the rows per multiprocessor. `changes` override constants.
    """
    if tcf is not None:
        sizes(tcf=tcf)
    padded = -(-min(problem.n, _WIDEST) // 4) * 4
    if not problem.k or problem.k * padded * problem.bytes > _B_SHARED:
        return tsm2(problem, sms)
    if unit is None:
        small = 2 if problem.a_layout == "rows" else 4
        unit = "DMMA" if problem.fmt == "fp64" and max(problem.k, problem.n) > small else "cores"
    if spread is None:
        spread = (problem.m < _some_rows(problem, unit) * sms) + (problem.m < _FEW_ROWS * sms)
    if unit == "DMMA":
        return _dmma(problem, not spread, tcf, changes)
    return _cores(problem, tcf or 1, _spread(problem, spread), changes)


def _some_rows(problem: Problem, unit: str) -> int:
    """Rows per multiprocessor below which ISM2 spreads them over more threads, measured on an H200."""
    if unit == "cores" and problem.a_layout != "rows":
        return 1024
    return 8192 if unit == "cores" and (problem.n > 8 or problem.k >= 16) else 2048


def _cores(problem: Problem, tcf: int, spread: dict[str, int], changes: dict[str, Any]) -> KernelLaunch:
    size, most = problem.bytes, 16 // problem.bytes
    wide = min(problem.n, spread.get("WIDTH", _WIDEST))
    values: dict[str, Any] = {"REAL": "float" if size == 4 else "double", "WIDTH": wide}
    direct = spread.get("DIRECT", 0) == 1
    values |= _loads(problem, direct, most) | _stores(problem, wide, direct, most)
    values |= _sizes(values, size, problem.k) | {name: spread[name] for name in ("ROWS", "THREADS") if name in spread}
    if values["ROWS"] % most and "VECTORS" in values:
        values = {name: value for name, value in values.items() if name not in ("VECTORS", "C_COLUMNS")}
    padded = -(-wide // most) * most
    if problem.n <= wide and problem.k * padded <= _B_KEPT and "A_PITCH" not in values:
        values["B_KEPT"] = 1
    values |= changes
    tile = values["ROWS"] * values["THREADS"]
    pitch = max(values.get("A_PITCH", 0), values.get("C_PITCH", 0))
    shared = (problem.k * padded + tile * pitch) * size
    return _launch("ism2_hopper", problem, values, tile * tcf, values["THREADS"], shared=shared)


def _spread(problem: Problem, spread: int) -> dict[str, int]:
    """The fastest constants on an H200 in fp32 for a `spread` of `ism2`."""
    k, few = problem.k, spread == 2
    if problem.fmt == "fp64" or not spread:
        return {}
    if problem.a_layout == "rows" and 4 % k == 0:
        return {"ROWS": 4 // k, "THREADS": 128}
    if problem.a_layout == "rows":
        return {"ROWS": 1, "THREADS": 64, "DIRECT": int(few or k <= 8), **({"WIDTH": 4} if few and k % 4 == 0 else {})}
    if few:
        return {"ROWS": 1, "THREADS": 128, "WIDTH": 4}
    return {"ROWS": 1, "THREADS": 128, "WIDTH": 8} if problem.n > 4 else {}


def _sizes(values: dict[str, Any], size: int, k: int) -> dict[str, Any]:
    """The fastest rows and threads on an H200."""
    if "FLAT" in values and size == 4:
        return {"ROWS": 4, "THREADS": 64, "BLOCKS": 1}
    if "A_LINEAR" in values and size == 4:
        return {"ROWS": 2, "THREADS": 128, "BLOCKS": 1}
    if "VECTORS" in values and size == 4 and k > 8:  # wide ones within the registers of eight thread blocks
        return {"DEPTH": 8, "ROWS": 4, "THREADS": 64, "BLOCKS": 8 if values["WIDTH"] > 8 else 1}
    return {"ROWS": 4, "THREADS": 128 if size == 4 else 64, "BLOCKS": 1}


def _loads(problem: Problem, direct: bool, most: int) -> dict[str, Any]:
    """The constants for loads of A; `most` elements are 16 bytes; direct: whole rows by one thread, if possible."""
    k, vector, layout = problem.k, problem.vector("a"), problem.a_layout
    values: dict[str, Any] = {f"A_{layout.upper()}": 1, "DEPTH": min(k, 16)}
    if layout == "columns" and vector == most:
        values["VECTORS"] = 1
    if layout != "rows":
        return values
    aligned = problem.addresses[0] % 16 == 0
    if most % k == 0 and k == problem.a[0] and aligned:
        return values | {"FLAT": 1}
    if direct and vector == most and k % most == 0 and k <= 16:
        return values | {"DIRECT": 1}
    depth = min(k, 32)
    pitch, read = _pitch(depth, most)
    values |= {"DEPTH": depth, "A_PITCH": pitch, "A_READ": read}
    if k == depth == pitch == problem.a[0] and aligned:
        return values | {"A_LINEAR": 1}
    return values | {"A_VECTOR": _dividing(most, depth, k, vector)}


def _stores(problem: Problem, wide: int, direct: bool, most: int) -> dict[str, Any]:
    """The constants for stores of C."""
    n, vector, layout = problem.n, problem.vector("c"), problem.c_layout
    if layout == "columns":
        return {"C_COLUMNS": 1} if vector == most else {}
    if layout != "rows":
        return {}
    aligned = problem.addresses[2] % 16 == 0
    flat = problem.k == n and most % n == 0 and problem.a_layout == "rows" and problem.a[0] == n
    if flat and n == problem.c[0] and aligned and problem.addresses[0] % 16 == 0:
        return {"C_FLAT": 1}
    if direct and vector == most and n % most == 0:
        return {"C_DIRECT": 1}
    pitch, _ = _pitch(wide, most)
    values = {"C_STAGED": 1, "C_PITCH": pitch}
    if n == wide == pitch == problem.c[0] and aligned:
        return values | {"C_LINEAR": 1}
    return values | {"C_VECTOR": _dividing(most, wide, n, vector)}


def _pitch(length: int, most: int) -> tuple[int, int]:
    """Return the row pitch of a tile and the elements of a read, at most `most`.

    Neighbouring threads read different banks if a row has an odd number of reads, and need two rounds for twice an odd
    number; other rows are padded.

    >>> [_pitch(length, 4) for length in (16, 12, 8, 6, 5)]
    [(20, 4), (12, 4), (8, 4), (6, 2), (5, 1)]
    """
    read = _dividing(most, length)
    return (length if length // read % 4 else length + read), read


def _dividing(most: int, *numbers: int) -> int:
    """The largest power of two, at most `most`, that divides all numbers."""
    while any(number % most for number in numbers):
        most //= 2
    return most


def _dmma(problem: Problem, many: bool, tcf: int | None, changes: dict[str, Any]) -> KernelLaunch:
    wide, k, layout = min(problem.n, _WIDEST), problem.k, problem.a_layout
    depth = min(-(-k // 4) * 4, 16)
    deep = depth > 8
    tcf = tcf or (2 if many and deep else 1)
    tiles = 16 // depth if layout == "rows" else 8 if not deep else 4 if many else 2
    values: dict[str, Any] = {
        "REAL": "double",
        "WIDTH": wide,
        "TILES": tiles,
        "THREADS": 128,
        "DEPTH": depth,
        f"A_{layout.upper()}": 1,
    }
    if k <= depth:
        values["WHOLE_K"] = 1
    vectors = problem.vector("c") == 2
    if layout == "columns" and problem.vector("a") == 2:
        values["VECTORS"] = 1
    if problem.c_layout == "columns" and vectors and "VECTORS" in values:
        values["C_COLUMNS"] = 1
    if problem.c_layout == "rows" and vectors and problem.n % 2 == 0:
        values["C_PAIRS"] = 1
    values |= changes
    span = 8 * values["TILES"] * values["THREADS"] // 32
    return _launch("ism2_fp64", problem, values, span * tcf, values["THREADS"])


def _launch(
    entry: str, problem: Problem, values: dict[str, Any], rows: int, threads: int, most: int = 2**63, **more: Any
) -> KernelLaunch:
    """Return a launch with thread blocks of so many rows, at most `most`, which then loop over rows."""
    blocks, passes = min(-(-problem.m // rows), most), -(-problem.n // values["WIDTH"])
    if passes > 65535:
        raise InputError(f"n = {problem.n} columns are not skinny: {_WIDEST * 65535} are the most")
    if blocks >= 2**31:
        raise InputError(f"m = {problem.m} rows take {blocks} thread blocks, and 2147483647 are the most: raise tcf")
    return KernelLaunch(f"{entry}.cu", entry, tuple(values.items()), (blocks, passes), threads, **more)
