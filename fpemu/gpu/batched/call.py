"""Batched products on the GPU: from operands to a task and the launch of its kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.batched import stacks
from fpemu.gpu.batched.choice import limits
from fpemu.gpu.batched.configuration import Configuration, fitted, validate
from fpemu.gpu.batched.source import TaskKernel, plan
from fpemu.gpu.batched.stacks import Operand
from fpemu.gpu.batched.task import Task
from fpemu.gpu.runtime import device, launches, modules, properties

PROBLEM = np.dtype(
    [(x, stacks.STACK) for x in "abcd"]
    + [("c_entry", "i8"), ("alpha", "f4", 2), ("beta", "f4", 2)]
    + [(n, "i4") for n in ("M", "N", "K", "batch", "tiles_m", "tiles_n", "added", "unused")]
)
"""The struct Problem of kernels/batched.cuh"""
_MOST = 2**31 - 2**20  # largest count of a kernel's int variables, with a margin for idle threads


@dataclass(frozen=True)
class Scaling:
    """alpha and beta in the accumulator's format."""

    alpha: tuple[float, float] = (1.0, 0.0)
    beta: tuple[float, float] = (0.0, 0.0)

    @property
    def plain(self) -> bool:
        """Whether alpha = 1 and beta = 0."""
        return self.alpha == (1.0, 0.0) and self.beta == (0.0, 0.0)


@dataclass(frozen=True)
class Product:
    """A prepared product, which can be launched repeatedly."""

    task: Task
    configuration: Configuration
    plan: TaskKernel
    launch: launches.Launch

    def queue(self, stream: int = 0) -> None:
        """Queue the product on a stream."""
        self.launch.queue(stream)


@lru_cache(maxsize=512)
def module(source: str, name: str) -> modules.Module:
    """Return the compiled kernel of a source."""
    return modules.Module(source, name=name)


def _contiguous(problem: Any, A: Operand, B: Operand, D: Operand, batch: int) -> bool:
    """Whether all distances in memory follow from the sizes."""
    for name, X in (("a", A), ("b", B), ("d", D)):
        s = problem[name][0]
        rows, columns = X.shape[-2:]
        length = columns if X.along_columns else rows
        lines = rows if X.along_columns else columns
        gaps = (lines > 1 and s["line"] != length * X.unit) or (batch > 1 and s["step"] != rows * columns * X.unit)
        if gaps or s["table"] or rows * columns * X.unit >= 2**31:  # which the kernels count in an int
            return False
    return True


def prepare(
    A: Operand,
    B: Operand,
    C: Operand | None,
    D: Operand,
    arithmetic: Task,
    scaling: Scaling,
    choose: Any,
    *,
    overlap: bool = True,
) -> Product:
    """Return the launch of D = alpha · A B + beta · C, transposes done; D is not empty and has contiguous rows.

    Leading axes broadcast to those of D. `arithmetic` is a task whose sizes and layouts are replaced by those of the
    operands; `choose` is a configuration, or a function of a task and the batch that returns one.
    """
    lead, (M, N), K = D.shape[:-2], D.shape[-2:], A.shape[-1]
    batch = prod(lead)
    if max(M, N, K, batch) > _MOST:
        raise InputError(f"M, N, K = {M}, {N}, {K} and a batch of {batch}: {_MOST} is the most")
    a_along, b_along = bool(A.along_columns), not B.along_columns
    problem = np.zeros(1, PROBLEM)
    keep, widths = [], []
    for name, X, along in (("a", A, a_along), ("b", B, not b_along), ("d", D, True)):
        problem[name], width, owner = stacks.stack(X, lead, along)
        keep.append(owner)
        widths.append(width)
    if C is not None:
        problem["c"], _, owner = stacks.stack(C, lead, True)
        problem["c_entry"] = C.strides[-1]
        keep.append(owner)
    layout: dict[str, Any] = {"a_along_k": a_along, "b_along_k": b_along, "width": min(widths)}
    contiguous = _contiguous(problem, A, B, D, batch)
    task = replace(arithmetic, M=M, N=N, K=K, **layout, plain=scaling.plain, contiguous=contiguous)
    configuration = choose(task, batch) if callable(choose) else fitted(choose, task)
    validate(configuration, task, **limits(task.accumulate))
    kernel = plan(task, configuration, overlap)
    problem["alpha"], problem["beta"] = scaling.alpha, scaling.beta
    for name, value in (("M", M), ("N", N), ("K", K), ("batch", batch), ("added", int(C is not None))):
        problem[name] = value
    problem["tiles_m"], problem["tiles_n"] = kernel.tiles(M, N)
    blocks = kernel.blocks(M, N, batch)
    if kernel.persistent:
        blocks = min(blocks, kernel.persistent * properties.multiprocessors())
    parts, what = (M * N, "elements") if configuration.kind == "small" else (prod(kernel.tiles(M, N)), "tiles")
    if batch * parts > _MOST:
        raise InputError(f"{batch} products of {parts} {what} each: {_MOST} are the most of a launch, split the batch")
    overlap = overlap and (device.missing() is not None or device.capability() >= (9, 0))
    launch = module(kernel.source, kernel.name).prepare(
        kernel.name, blocks, kernel.threads, problem, shared=kernel.shared, overlap=overlap, keep=keep
    )
    return Product(task, configuration, kernel, launch)
