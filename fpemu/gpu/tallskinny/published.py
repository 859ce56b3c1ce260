"""TSM2's versions and ISM2's optimisations as published, with parameters by the paper's model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fpemu.arguments import choice, is_size, sizes
from fpemu.errors import InputError, shown
from fpemu.gpu.runtime import device
from fpemu.gpu.tallskinny.problem import KernelLaunch, Problem, refuse_tiles
from fpemu.roofline import gpus, tallskinny
from fpemu.roofline.tallskinny import Model
from fpemu.simt.tallskinny import VERSIONS

__all__ = ["OPTIMISATIONS", "VERSIONS", "gpu_model", "ism2", "parameters", "tsm2"]

OPTIMISATIONS = (1, 2)
T1, T3 = 128, 4
"""Published for the K40c and the P100: used where they are among the model's best."""
_COLUMNS = (2, 4, 8, 16, 32)  # columns of C that a thread of V1 keeps in registers
_MODELLED = 64  # columns of B beyond which the choice of t2 and t3 stays the same
_NEAREST = {8: "A100", 9: "H200", 10: "B200", 12: "RTX 5090"}
_LATENCY = {"fp32": 4.0, "fp64": 8.0}
"""Latency of a multiply-add in cycles, of an H200, for GPUs without a value"""
_REAL = {"fp32": "float", "fp64": "double"}


@lru_cache(maxsize=8)
def gpu_model(name: str, capability: tuple[int, int], fmt: str) -> Model:
    """Return TSM2's model of a GPU by the driver's name for it; an unknown GPU has the model of its generation.

    >>> gpu_model("NVIDIA H200", (9, 0), "fp32").gpu.name
    'H200'
    """
    words = name.replace("-", " ").split()
    known = [g for g in gpus.names() if set(g.split()) <= set(words)]
    if not known:
        known = [_NEAREST.get(capability[0], "A100")]
    gpu = gpus.get(max(known, key=len))
    field = "compute_latency" if fmt == "fp32" else "fp64_latency"
    return Model(gpu, fmt, compute_latency=None if getattr(gpu, field) else _LATENCY[fmt])


def here(fmt: str) -> Model:
    """Return the model of the current GPU."""
    return gpu_model(device.describe()["gpu"], device.capability(), fmt)


def parameters(
    model: Model, m: int, k: int, n: int, t1: int | None = None, t2: int | None = None, t3: int | None = None
) -> tuple[int, int, int]:
    """Return t1, t2 and t3: None by the model; among several best values, the published or the nearest to it.

    >>> parameters(gpu_model("Tesla K40c", (3, 5), "fp64"), 20480, 20480, 16)
    (128, 16, 4)
    """
    given = {"t1": t1, "t2": t2, "t3": t3}
    sizes(**{name: value for name, value in given.items() if value is not None})
    if t2 is None or t3 is None:
        times = model.fmt, model.memory_latency, model.compute_latency, model.setup
        best2, best3 = _best(model.gpu.name, times, min(n, _MODELLED), t2, t3)
        t2, t3 = best2 if t2 is None else t2, best3 if t3 is None else t3
    if t1 is None:
        fitting = [size for size, fits in tallskinny.block_sizes(model, t2, t3).items() if fits]
        t1 = min(fitting, key=lambda size: (abs(size - T1), size), default=T1)
    tallskinny.check(model, t1, t2, t3, n)
    return t1, t2, t3


@lru_cache(maxsize=256)
def _best(gpu: str, model: tuple[Any, ...], n: int, t2: int | None, t3: int | None) -> tuple[int, int]:
    """t2 and t3 with the shortest time, the same for every m and k; the search is slow, so they are cached."""
    where = Model(gpus.get(gpu), *model)
    if t2 is not None:
        return t2, min(T3, max(1, int(where.most_t3(t2))))
    choices = [choice for choice in tallskinny.exhaustive(where, 1, 1, n) if t3 is None or choice.t3 == t3]
    if not choices:
        return min(n, 8), T3
    # a t3 that divides every t1 is preferred, then the nearest to the published one
    best = min(choices, key=lambda choice: (-choice.t2, 32 % choice.t3 != 0, abs(choice.t3 - T3)))
    return best.t2, best.t3


def _macros(problem: Problem, t1: int, t2: int, t3: int) -> tuple[tuple[str, Any], ...]:
    layout = f"A_{problem.a_layout.upper()}"
    return (("REAL", _REAL[problem.fmt]), ("T1", t1), ("T2", t2), ("T3", t3), (layout, 1))


def tsm2(problem: Problem, model: Model, version: str, *tiles: int | None, **named: int | None) -> KernelLaunch:
    """Return the launch of one of TSM2's versions; tiles: t1, t2 and t3 in this order, or by name."""
    choice("version of TSM2", version, (*VERSIONS, "hopper"))
    if version in ("V0", "V1"):
        given = dict(zip(("t1", "t2", "t3"), tiles, strict=False)) | named
        refuse_tiles(f"TSM2 {version} has no tiles", given)
        wide = next((w for w in _COLUMNS if w >= problem.n), _COLUMNS[-1])
        t1, t2, t3 = T1, wide if version == "V1" else 1, 1
    else:
        t1, t2, t3 = parameters(model, problem.m, problem.k, problem.n, *tiles, **named)
    shared = t1 * t2 * problem.bytes if version in ("V2", "V3") else 0
    grid = _blocks(problem.m, t1), 1
    return KernelLaunch("tsm2.cu", f"tsm2_{version.lower()}", _macros(problem, t1, t2, t3), grid, t1, shared)


def ism2(
    problem: Problem, model: Model, optimisation: int, tcf: int | None = None, *tiles: int | None, **named: int | None
) -> KernelLaunch:
    """Return the launch of one of ISM2's optimisations; tiles: as in `tsm2`.

    tcf: rows of a thread; default: as many as leave enough threads to fill the GPU, at most 8 as published.
    """
    if not is_size(optimisation) or optimisation not in OPTIMISATIONS:
        raise InputError(f"optimisation = {shown(optimisation)} must be 1, 2 or 'hopper'")
    t1, t2, t3 = parameters(model, problem.m, problem.k, problem.n, *tiles, **named)
    if tcf is None:
        tcf = min(8, tallskinny.most_tcf(model, max(problem.m, 1), t2, t3))
    sizes(tcf=tcf)
    if not problem.k:  # nothing to add: C is zero
        return tsm2(problem, model, "V0")
    grid = _blocks(problem.m, t1 * tcf), 1
    macros = _macros(problem, t1, t2, t3)
    return KernelLaunch("ism2.cu", f"ism2_{optimisation}", macros, grid, t1, t1 * t2 * problem.bytes)


def _blocks(m: int, rows: int) -> int:
    blocks = -(-m // rows)
    if blocks >= 2**31:
        raise InputError(f"m = {m} rows take {blocks} thread blocks of {rows}, and 2147483647 are the most: raise t1")
    return blocks
