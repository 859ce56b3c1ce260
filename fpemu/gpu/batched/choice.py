"""Which configuration runs a task: the winner of a measurement where there is one, else by the sizes."""

from __future__ import annotations

import tomllib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.gpu.batched.configuration import Block, Configuration, Small, Warp, fitted, parse, validate
from fpemu.gpu.batched.memory import SHARED, SHARED_BEFORE
from fpemu.gpu.batched.task import Task
from fpemu.gpu.runtime import device

TABLE = Path(__file__).with_name("h200.toml")


@cache
def table() -> dict[str, Any]:
    """The table of winners: for every form, the sizes up to which a configuration is the fastest."""
    if not TABLE.exists():
        return {}
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def form(task: Task) -> str:
    """The part of the table that a task belongs to: its numbers, and how its lines are aligned in bytes.

    >>> form(Task(12, 12, 12, width=8))
    'real 8'
    """
    return f"{'complex' if task.complex else 'real'} {task.width}"


@lru_cache(maxsize=2)
def limits(accumulate: str) -> dict[str, Any]:
    """What the GPU at hand allows a kernel: the arguments of `validate`; those of Hopper where there is none."""
    if device.missing() is not None:
        return {}
    from fpemu import mma
    from fpemu.gpu.gemm.choice import architecture

    spec = mma.spec(architecture(), "fp16", accumulate, "mma")
    here = device.capability()
    return {"block_of": spec.block or spec.k, "shared": SHARED_BEFORE.get(here, SHARED), "bulk": here >= (9, 0)}


@lru_cache(maxsize=4096)
def choose(task: Task, batch: int, kernel: str = "tensor") -> Configuration:
    """The configuration that runs a task.

    Parameters
    ----------
    task : Task
    batch : int
    kernel : {"tensor", "magma-small"}
    """
    if kernel == "magma-small":
        return Small(threads=128)
    size = max(task.M, task.N, task.K)
    for most, line in table().get(form(task), {}).items():
        if size <= int(most):
            allowed = limits(task.accumulate)
            found = fitted(parse(line), task, allowed.get("bulk", True))
            try:
                validate(found, task, **allowed)
            except InputError:
                break
            return found
    return fitted(by_size(task), task)


def by_size(task: Task) -> Configuration:
    """A configuration that is valid for any task, without a measurement."""
    M, N = task.M, task.N
    if max(M, N) <= 32:
        return Warp(1 if M <= 16 else 2, 1 if N <= 8 else 2 if N <= 16 else 4, 1 if task.K <= 16 else 2)
    K = 32 if task.K <= 32 or task.complex else 64
    return Block((16, 16, 16), (64, 64, K), (16, 8), 1, 2, True, not task.complex)
