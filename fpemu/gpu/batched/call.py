"""Batched products on the GPU: arguments as `fpemu.batched` has them, made into a task and a launch of its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.batched import stacks
from fpemu.gpu.batched.choice import limits
from fpemu.gpu.batched.configuration import Configuration, fitted, validate
from fpemu.gpu.batched.source import Plan, plan
from fpemu.gpu.batched.stacks import Operand
from fpemu.gpu.batched.task import Task
from fpemu.gpu.runtime import device, properties

PROBLEM = np.dtype(
    [(x, stacks.STACK) for x in "abcd"]
    + [("c_entry", "i8"), ("alpha", "f4", 2), ("beta", "f4", 2)]
    + [(n, "i4") for n in ("M", "N", "K", "batch", "tiles_m", "tiles_n", "added", "unused")]
)
"""The struct Problem of kernels/batched.cuh"""


_MOST = 2**31 - 2**20  # what kernels count in an int, with room for threads that have nothing to do


@dataclass(frozen=True)
class Scaling:
    """alpha and beta in the accumulator's format."""

    alpha: tuple[float, float] = (1.0, 0.0)
    beta: tuple[float, float] = (0.0, 0.0)

    @property
    def plain(self) -> bool:
        return self.alpha == (1.0, 0.0) and self.beta == (0.0, 0.0)


@dataclass(frozen=True)
class Arithmetic:
    """What is computed besides its sizes: the arguments of a product that choose a kernel."""

    complex: bool = False
    planar: bool = False
    accumulate: str = "fp32"
    products: int = 4
    conjugate_a: bool = False
    conjugate_b: bool = False


@dataclass(frozen=True)
class Product:
    """A product that is ready to be launched, as often as one likes."""

    task: Task
    configuration: Configuration
    plan: Plan
    launch: device.Launch

    def queue(self, stream: int = 0) -> None:
        """Queue it on a stream."""
        self.launch.queue(stream)


@lru_cache(maxsize=512)
def module(source: str, name: str) -> device.Module:
    """The compiled kernel of a source."""
    return device.Module(source, name=name)


def _contiguous(problem: Any, A: Operand, B: Operand, D: Operand, batch: int) -> bool:
    """Whether a kernel can know all distances from the sizes."""
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
    arithmetic: Arithmetic,
    scaling: Scaling,
    choose: Any,
    *,
    overlap: bool = True,
) -> Product:
    """The launch of D = alpha · A B + beta · C.

    Parameters
    ----------
    A : Operand (..., M, K), B : Operand (..., K, N), C, D : Operand (..., M, N)
        Transposes done; leading axes broadcast to those of D, which is not empty and whose rows are contiguous.
    arithmetic : Arithmetic
    scaling : Scaling
    choose : callable or Configuration
        A task and the batch to the configuration that runs it.
    overlap : bool
        See `fpemu.gpu.batched.source.plan`.
    """
    lead, (M, N), K = D.shape[:-2], D.shape[-2:], A.shape[-1]
    batch = prod(lead)
    if max(M, N, K, batch) > _MOST:
        raise InputError(f"M, N, K = {M}, {N}, {K} and a batch of {batch}: {_MOST} is the most")
    a_along, b_along = bool(A.along_columns), not B.along_columns
    problem = np.zeros(1, PROBLEM)
    keep, widths = [], []
    for name, X, along in (("a", A, a_along), ("b", B, not b_along), ("d", D, True)):
        problem[name], width, held = stacks.stack(X, lead, along)
        keep.append(held)
        widths.append(width)
    if C is not None:
        problem["c"], _, held = stacks.stack(C, lead, True)
        problem["c_entry"] = C.strides[-1]
        keep.append(held)
    task = Task(
        M,
        N,
        K,
        arithmetic.complex,
        arithmetic.planar,
        arithmetic.accumulate,
        arithmetic.products,
        arithmetic.conjugate_a,
        arithmetic.conjugate_b,
        a_along,
        b_along,
        min(widths),
        scaling.plain,
        _contiguous(problem, A, B, D, batch),
    )
    configuration = choose(task, batch) if callable(choose) else fitted(choose, task)
    validate(configuration, task, **limits(task.accumulate))
    made = plan(task, configuration, overlap)
    problem["alpha"], problem["beta"] = scaling.alpha, scaling.beta
    for name, value in (("M", M), ("N", N), ("K", K), ("batch", batch), ("added", int(C is not None))):
        problem[name] = value
    problem["tiles_m"], problem["tiles_n"] = made.tiles(M, N)
    blocks = made.blocks(M, N, batch)
    if made.persistent:
        blocks = min(blocks, made.persistent * properties.multiprocessors())
    parts, what = (M * N, "elements") if configuration.kind == "small" else (prod(made.tiles(M, N)), "tiles")
    if batch * parts > _MOST:
        raise InputError(f"{batch} products of {parts} {what} each: {_MOST} are the most of a launch, split the batch")
    overlap = overlap and (device.missing() is not None or device.capability() >= (9, 0))
    launch = module(made.source, made.name).prepare(
        made.name, blocks, made.threads, problem, shared=made.shared, overlap=overlap, keep=keep
    )
    return Product(task, configuration, made, launch)
