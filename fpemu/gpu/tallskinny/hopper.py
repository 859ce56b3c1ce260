"""The kernels for Hopper: how many rows, columns and stages for a problem, and which way A comes.

All of them keep one chain of fused multiply-adds over ascending k for every element, as the published ones do.
"""

from __future__ import annotations

from typing import Any

from fpemu.errors import InputError
from fpemu.gpu.tallskinny.launch import Plan
from fpemu.gpu.tallskinny.problem import Problem
from fpemu.perfmodel.checks import is_size, short

__all__ = ["ism2", "tsm2"]

_WIDEST = 16  # columns of C that are computed at a time
_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_CONSUMERS = {1: 1, 2: 2, 3: 3, 4: 2, 6: 2, 8: 2, 12: 3, 16: 4}
_RING = 200 * 1024  # bytes of shared memory for the ring, of 227 KB
_MOST_STAGES = 16
_LARGE, _MANY = 2**26, 2**18  # elements of A, and rows
_B_SHARED = 64 * 1024  # bytes of B that ISM2 keeps in shared memory


def width(n: int) -> int:
    """Columns of C that a kernel computes at a time, for n of them.

    >>> [width(n) for n in (1, 5, 16, 17)]
    [1, 6, 16, 16]
    """
    return min((w for w in _WIDTHS if w >= min(n, _WIDEST)), default=_WIDEST)


def rows(m: int, sms: int) -> int:
    """Rows a thread, of 32 rows a block each: those with which the busiest SM has least to do; 8 where there are many.

    >>> rows(20480, 132), rows(100, 132), rows(10**6, 132)
    (5, 1, 8)
    """
    if m >= _MANY:
        return 8
    return min(range(8, 0, -1), key=lambda r: -(-m // (32 * r * sms)) * r)


def tsm2(problem: Problem, sms: int, **changes: Any) -> Plan:
    """The launch of TSM2's Hopper kernel.

    Parameters
    ----------
    problem : Problem
    sms : int
        Multiprocessors of the GPU.
    **changes
        Macros of the kernel that are to differ from the choice made here.
    """
    wide, double = width(problem.n), problem.fmt == "fp64"
    layout, depth = problem.a_layout, 16 if double else 32
    # the copy engine has no tensor that is empty, and none whose lines are the same one
    there = problem.k > 0 and problem.a[layout == "columns"] > 0 and max(problem.m, problem.k) < 2**30
    bulk = layout != "any" and problem.vector("a") * problem.bytes == 16 and there
    high, words = rows(problem.m, sms), problem.bytes // 4
    line = 32 // words
    values: dict[str, Any] = {
        "REAL": "double" if double else "float", f"A_{layout.upper()}": 1, **_way_of_b(problem, wide),
        "WIDTH": wide, "ROWS": high, "CONSUMERS": 4 if double else _CONSUMERS[wide], "PRODUCERS": 2 if bulk else 4,
        "DEPTH": depth, "BULK": int(bulk), **({"DMMA": 1} if double else {"SHARE": _share(wide)}),
        **(_of_large(problem, wide) if bulk else {}), **changes,
    }  # fmt: skip
    # rows in one box: they must be whole lines, and fp64's reads suit a number of lines that is not a multiple of four
    if bulk and layout == "columns" and problem.m % line == 0 and not (double and values["ROWS"] % 2 == 0):
        values.setdefault("ONE_BOX", 1)
    if not values.get("ONE_BOX"):
        values.pop("ONE_BOX", None)
    stage = _stage(values, problem.bytes)
    tile = 32 * values["ROWS"]
    blocks, passes = -(-problem.m // tile), -(-problem.n // wide)
    room = _RING if blocks * passes <= sms else _RING // 2
    values.setdefault("STAGES", max(2, min(_MOST_STAGES, room // stage)))
    _check_grid(blocks, passes, problem)
    shared = values["STAGES"] * (stage + 16)
    threads = 32 * (values["CONSUMERS"] + values["PRODUCERS"])
    return Plan(
        "tsm2_hopper.cu", "tsm2_hopper", tuple(values.items()), (blocks, passes), threads, shared, bool(values["BULK"])
    )


def _of_large(problem: Problem, wide: int) -> dict[str, int]:
    """What an H200 is fastest with where A is large, in fp32: sums of 8 and of 16 columns take about as long as A."""
    if problem.fmt == "fp64" or problem.m * problem.k < _LARGE:
        return {}
    by_columns = problem.a_layout == "columns"
    if wide == 16:
        return {"DEPTH": 64, "ONE_BOX": 0} if by_columns else {"SHARE": 2}
    return {"CONSUMERS": 4, "SHARE": 4} if wide == 8 and by_columns else {}


def _share(wide: int) -> int:
    """Lanes that share rows: as many as there are warps, where each has as many columns."""
    warps = _CONSUMERS[wide]
    return warps if wide % warps == 0 and warps in (2, 4) else 1


def _way_of_b(problem: Problem, wide: int) -> dict[str, int]:
    """The macro for copies of B by 16 bytes, if there can be any."""
    size, (step, across), address = problem.bytes, problem.b, problem.addresses[1]
    if address % 16:
        return {}
    if step == 1 and across * size % 16 == 0:  # stages begin at multiples of 128 bytes
        return {"B_COLUMNS": 1}
    return {"B_ROWS": 1} if across == 1 and step == problem.n == wide else {}


def _stage(values: dict[str, Any], size: int) -> int:
    """Bytes of a stage, as ``tallskinny_ring.cuh`` counts them."""
    depth = values["DEPTH"]
    elements = 32 * values["ROWS"] * depth + values["WIDTH"] * (depth + 4)
    return -(-elements * size // 1024) * 1024


def ism2(
    problem: Problem, sms: int, tcf: int | None = None, *, unit: str | None = None, direct: bool = False, **changes: Any
) -> Plan:
    """The launch of ISM2's kernels for large GPUs; TSM2's where B is too large for shared memory.

    Parameters
    ----------
    problem : Problem
    sms : int
    tcf : int, optional
        Tiles of rows that a thread block, or a warp of DMMA's, takes one after another; default 1.
    unit : {"cores", "DMMA"}, optional
        What computes; default DMMA in fp64 for all but the smallest B.
    direct : bool
        Threads load whole rows by themselves, not through shared memory, where rows are multiples of 16 bytes.
    **changes
        Macros of the kernel that are to differ from the choice made here.
    """
    if tcf is not None and not is_size(tcf):
        raise InputError(f"tcf = {short(tcf)} must be a positive integer")
    padded = -(-min(problem.n, _WIDEST) // 4) * 4
    if not problem.k or problem.k * padded * problem.bytes > _B_SHARED:
        return tsm2(problem, sms)
    if unit is None:
        small = 2 if problem.a_layout == "rows" else 4
        unit = "DMMA" if problem.fmt == "fp64" and max(problem.k, problem.n) > small else "cores"
    return _dmma(problem, tcf or 1, changes) if unit == "DMMA" else _cores(problem, tcf or 1, direct, changes)


def _cores(problem: Problem, tcf: int, direct: bool, changes: dict[str, Any]) -> Plan:
    wide, size, most = min(problem.n, _WIDEST), problem.bytes, 16 // problem.bytes
    values: dict[str, Any] = {"REAL": "float" if size == 4 else "double", "WIDTH": wide}
    values |= _loads(problem, direct, most) | _stores(problem, wide, direct, most)
    values |= _sizes(values, size, problem.k) | changes
    tile, padded = values["ROWS"] * values["THREADS"], -(-wide // most) * most
    blocks, passes = -(-problem.m // (tile * tcf)), -(-problem.n // wide)
    _check_grid(blocks, passes, problem)
    pitch = max(values.get("A_PITCH", 0), values.get("C_PITCH", 0))
    shared = (problem.k * padded + tile * pitch) * size
    return Plan("ism2_hopper.cu", "ism2_hopper", tuple(values.items()), (blocks, passes), values["THREADS"], shared)


def _sizes(values: dict[str, Any], size: int, k: int) -> dict[str, Any]:
    """Rows and threads, as an H200 is fastest with them."""
    if "FLAT" in values and size == 4:
        return {"ROWS": 16 if k == 2 else 4, "THREADS": 64 if k == 2 else 128, "BLOCKS": 1}
    if "A_LINEAR" in values and size == 4:
        return {"ROWS": 2, "THREADS": 128, "BLOCKS": 1}
    if "VECTORS" in values and size == 4 and values["WIDTH"] > 8 and k > 8:  # four blocks have registers for so much
        return {"DEPTH": 8, "ROWS": 4, "THREADS": 128, "BLOCKS": 4}
    return {"ROWS": 4, "THREADS": 128, "BLOCKS": 1}


def _loads(problem: Problem, direct: bool, most: int) -> dict[str, Any]:
    """The macros of how A comes; `most` elements are 16 bytes."""
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
    """The macros of how C goes."""
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
    """Elements from one row of a tile to the next, and how many of a row are read at a time, `most` at most.

    The reads of neighbours in rows of an odd number of such pieces are in different banks, of twice that number in two
    rounds; only beyond that rows are padded.

    >>> [_pitch(length, 4) for length in (16, 12, 8, 6, 5)]
    [(20, 4), (12, 4), (8, 4), (6, 2), (5, 1)]
    """
    read = _dividing(most, length)
    return (length if length // read % 4 else length + read), read


def _dividing(most: int, *numbers: int) -> int:
    """The largest power of two, `most` at most, that divides all of some numbers."""
    while any(number % most for number in numbers):
        most //= 2
    return most


def _dmma(problem: Problem, tcf: int, changes: dict[str, Any]) -> Plan:
    wide, k, layout = min(problem.n, _WIDEST), problem.k, problem.a_layout
    depth = min(-(-k // 4) * 4, 16)
    tiles = (4 if depth > 8 else 8) if layout != "rows" else 16 // depth
    values: dict[str, Any] = {
        "REAL": "double", "WIDTH": wide, "TILES": tiles, "THREADS": 128, "DEPTH": depth, f"A_{layout.upper()}": 1,
    }  # fmt: skip
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
    blocks, passes = -(-problem.m // (span * tcf)), -(-problem.n // wide)
    _check_grid(blocks, passes, problem)
    return Plan("ism2_fp64.cu", "ism2_fp64", tuple(values.items()), (blocks, passes), values["THREADS"])


def _check_grid(blocks: int, passes: int, problem: Problem) -> None:
    if passes > 65535:
        raise InputError(f"n = {problem.n} columns are not skinny: {_WIDEST * 65535} are the most")
    if blocks >= 2**31:
        raise InputError(f"m = {problem.m} rows take {blocks} thread blocks, and 2147483647 are the most: raise tcf")
