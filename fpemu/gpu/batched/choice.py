"""The configuration that runs a task: the fastest of a measurement if there is one, otherwise by the sizes."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.gpu.batched.configuration import Block, Configuration, Small, Warp, fitted, parse, validate
from fpemu.gpu.batched.memory import SHARED, SHARED_BEFORE
from fpemu.gpu.batched.task import Task
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.selection import per_device

TABLE = Path(__file__).with_name("h200.toml")


@cache
def table() -> dict[str, Any]:
    """Return the fastest configurations by form and largest size."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def form(task: Task) -> str:
    """Return the section of the table for a task: real or complex, and the alignment of its lines in bytes.

    >>> form(Task(12, 12, 12, width=8))
    'real 8'
    """
    return f"{'complex' if task.complex else 'real'} {task.width}"


@per_device(maxsize=16)
def limits(accumulate: str) -> dict[str, Any]:
    """Return the arguments of `validate` for the current GPU; empty, for Hopper's, without a GPU."""
    if device.missing() is not None:
        return {}
    from fpemu import mma
    from fpemu.gpu.gemm.choice import architecture

    spec = mma.spec(architecture(), "fp16", accumulate, "mma")
    capability = device.capability()
    return {
        "block_of": spec.block or spec.k,
        "shared": SHARED_BEFORE.get(capability, SHARED),
        "bulk": capability >= (9, 0),
    }


@per_device(maxsize=4096)
def choose(task: Task, batch: int, kernel: str = "tensor") -> Configuration:
    """Return the configuration that runs a task with a kernel, "tensor" or "magma-small"."""
    if kernel == "magma-small":
        return Small(threads=128)
    size = max(task.M, task.N, task.K)
    for most, line in table().get(form(task), {}).items():
        if size <= int(most):
            allowed = limits(task.accumulate)
            configuration = fitted(parse(line), task, allowed.get("bulk", True))
            try:
                validate(configuration, task, **allowed)
            except InputError:
                break
            return configuration
    return fitted(by_size(task), task)


def by_size(task: Task) -> Configuration:
    """Return a configuration that is valid for any task."""
    M, N = task.M, task.N
    if max(M, N) <= 32:
        return Warp(1 if M <= 16 else 2, 1 if N <= 8 else 2 if N <= 16 else 4, 1 if task.K <= 16 else 2)
    K = 32 if task.K <= 32 or task.complex else 64
    return Block((16, 16, 16), (64, 64, K), (16, 8), 1, 2, True, not task.complex)
