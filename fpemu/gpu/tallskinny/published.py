"""TSM2's versions and ISM2's optimisations as published, with parameters by the paper's model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fpemu.arguments import choice, is_size, sizes
from fpemu.errors import InputError, shown
from fpemu.gpu.runtime import device
from fpemu.gpu.tallskinny.problem import KernelLaunch, Problem, layout, refuse_tiles
from fpemu.roofline import gpus, tallskinny
from fpemu.roofline.tallskinny import Model
from fpemu.simt.tallskinny import VERSIONS

OPTIMISATIONS = (1, 2)
T1, T3 = 128, 4
"""Published for the K40c and the P100: used where they are among the model's best."""
_COLUMNS = (2, 4, 8, 16, 32)  # columns of C that a thread of V1 keeps in registers
_MODELLED = 64  # columns of B beyond which the choice of t2 and t3 stays the same
_NEAREST = {8: "A100", 9: "H200", 10: "B200", 12: "RTX 5090"}
_LATENCY = {"fp32": 4.0, "fp64": 8.0}
"""Latency of a multiply-add in cycles, of an H200, for GPUs without a value"""


@lru_cache(maxsize=8)
def gpu_model(name: str, capability: tuple[int, int], fmt: str) -> Model:
    """Return TSM2's model of a GPU by the driver's name for it; an unknown GPU has the model of its generation.

    >>> gpu_model("NVIDIA H200", (9, 0), "fp32").gpu.name
    'H200'
    """
    words = name.replace("-", " ").split()
    known = [g for g in gpus.names() if set(g.split()) <= set(words)]
    gpu = gpus.get(max(known, key=len, default=_NEAREST.get(capability[0], "A100")))
    field = "compute_latency" if fmt == "fp32" else "fp64_latency"
    return Model(gpu, fmt, compute_latency=None if getattr(gpu, field) else _LATENCY[fmt])


def here(problem: Problem) -> Model:
    """Return the model of the current GPU in a problem's format."""
    return gpu_model(device.describe()["gpu"], device.capability(), f"fp{8 * problem.bytes}")


def parameters(
    model: Model, n: int, t1: int | None = None, t2: int | None = None, t3: int | None = None
) -> tuple[int, int, int]:
    """Return t1, t2 and t3: None by the model; among several best values, the published or the nearest to it.

    >>> parameters(gpu_model("Tesla K40c", (3, 5), "fp64"), 16)
    (128, 16, 4)
    """
    sizes(**{name: value for name, value in (("t1", t1), ("t2", t2), ("t3", t3)) if value is not None})
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


def tsm2(problem: Problem, model: Model, version: str = "V3", **tiles: int | None) -> KernelLaunch:
    """Return the launch of one of TSM2's versions; tiles: t1, t2 and t3."""
    choice("version of TSM2", version, (*VERSIONS, "hopper"))
    if version in ("V0", "V1"):
        refuse_tiles(f"TSM2 {version} has no tiles", tiles)
        wide = next((w for w in _COLUMNS if w >= problem.n), _COLUMNS[-1])
        return _launch("tsm2", version.lower(), problem, (T1, wide if version == "V1" else 1, 1), shared=0)
    return _launch("tsm2", version.lower(), problem, parameters(model, problem.n, **tiles))


def ism2(
    problem: Problem, model: Model, optimisation: int = 2, tcf: int | None = None, **tiles: int | None
) -> KernelLaunch:
    """Return the launch of one of ISM2's optimisations; tiles: as in `tsm2`.

    tcf: rows of a thread; default: as many as leave enough threads to fill the GPU, at most 8 as published.
    """
    if not is_size(optimisation) or optimisation not in OPTIMISATIONS:
        raise InputError(f"optimisation = {shown(optimisation)} must be 1, 2 or 'hopper'")
    t1, t2, t3 = parameters(model, problem.n, **tiles)
    if tcf is None:
        tcf = min(8, tallskinny.most_tcf(model, problem.m, t2, t3))
    sizes(tcf=tcf)
    if not problem.k:  # nothing to add: C is zero
        return tsm2(problem, model, "V0")
    return _launch("ism2", str(optimisation), problem, (t1, t2, t3), tcf)


def _launch(
    algorithm: str, form: str, problem: Problem, tiles: tuple[int, int, int], tcf: int = 1, shared: int | None = None
) -> KernelLaunch:
    """Return the launch of a kernel; shared: bytes of shared memory, by default for a tile of B."""
    t1, t2, t3 = tiles
    values = {"REAL": problem.real, "T1": t1, "T2": t2, "T3": t3, f"A_{layout(problem.A).upper()}": True}
    blocks = -(-problem.m // (t1 * tcf))
    if blocks >= 2**31:
        raise InputError(
            f"m = {problem.m} rows take {blocks} thread blocks of {t1 * tcf}, and 2147483647 are the most: raise t1"
        )
    shared = t1 * t2 * problem.bytes if shared is None else shared
    return KernelLaunch(f"{algorithm}.cu", f"{algorithm}_{form}", values, (blocks, 1), t1, shared)
