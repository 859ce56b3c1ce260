"""The fragment layout of an mma.sync: the register position of each element of A, B and D in a warp, found by probes.

A slot holds one element: lane, register, and position in the register. With one slot of A set to 1 and all of B to 1,
the non-zero slots of D are a row; likewise for columns. A slot of A and a slot of B have a non-zero product if they
share k. Only the number of registers follows from the instruction's name. Rows, columns and k are numbered by their
first slots, because probes cannot distinguish permutations of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.instructions import run as instructions
from fpemu.gpu.runtime import compiler, device, modules, plan
from fpemu.mma.spec import MmaSpec

LANES = 32
Execution = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class Layout:
    """Registers of a lane for one operand, and elements of a register."""

    registers: int
    parts: int

    @property
    def slots(self) -> int:
        """Number of elements in a warp."""
        return LANES * self.registers * self.parts

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Lane, register and position of every slot."""
        slots = np.arange(self.slots)
        return slots // (self.registers * self.parts), slots // self.parts % self.registers, slots % self.parts


@dataclass(frozen=True, eq=False)
class Fragments:
    """The result of `find`: the shape, and the element in each slot."""

    m: int
    n: int
    k: int
    a: NDArray[np.int64]  # (slots, 2): row and k of each slot
    b: NDArray[np.int64]  # k and column
    d: NDArray[np.int64]  # row and column
    layouts: tuple[Layout, Layout, Layout]  # of A, B and D
    probes: int  # runs of the instruction

    def __str__(self) -> str:
        registers = zip("ABD", self.layouts, strict=True)
        lane = ", ".join(f"{name}: {x.registers} registers of {x.parts}" for name, x in registers)
        return f"m{self.m}n{self.n}k{self.k}, a lane holds {lane}; {self.probes} probes"


def source(spec: MmaSpec) -> str:
    """Return the CUDA C++ text of the kernel."""
    return instructions.prelude(spec) + compiler.kernel_source("fragments.cu")


def layouts(spec: MmaSpec) -> tuple[Layout, Layout, Layout]:
    """Return the register layouts of A, B and D of an mma.sync; InputError for another instruction."""
    ins = instructions.instruction(spec)
    if ins.warpgroup:
        raise InputError(f"{spec}: B of a wgmma lies in shared memory; fragments are those of an mma.sync")
    wide = ins.a_format == "fp64"
    size = {"fp16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "fp64": 8, "int8": 1}[ins.a_format]
    parts = 1 if wide else 4 // size
    pair = 2 if ins.d_format == "fp16" else 1

    def layout(elements: int, parts: int) -> Layout:
        return Layout(elements // (LANES * parts), parts)

    return layout(ins.m * ins.k, parts), layout(ins.k * ins.n, parts), layout(ins.m * ins.n, pair)


def find(spec: MmaSpec, run: Execution | None = None) -> Fragments:
    """Find the fragment layout of an mma.sync; InputError if the results are not those of a matrix product.

    run: executes the instruction with C = 0 on slots, A (warps, slots of A) and B of zeros and ones to D (warps, slots
    of D). Default: the GPU.
    """
    held, execute = layouts(spec), partial(_run, spec) if run is None else run
    each_a, each_b = (np.eye(x.slots, dtype=bool) for x in held[:2])
    A, B = len(each_a), len(each_b)
    row_of_a, row_sets = _label(execute(each_a, np.ones((A, B), bool)) != 0)
    column_of_b, column_sets = _label(execute(np.ones((B, A), bool), each_b) != 0)
    m, n = len(row_sets), len(column_sets)
    crossed = row_sets.astype(np.int64) @ column_sets.T.astype(np.int64)
    whole = (row_sets.sum(axis=0) == 1).all() and (column_sets.sum(axis=0) == 1).all() and (crossed == 1).all()
    if not whole or A % m or B % n or A // m != B // n:
        raise InputError(f"{spec}: the registers of D do not form rows and columns ({m} of A, {n} of B)")
    k = A // m
    d = np.stack([np.argmax(row_sets, axis=0), np.argmax(column_sets, axis=0)], axis=1)
    first, second = np.flatnonzero(row_of_a == 0), np.flatnonzero(column_of_b == 0)  # one slot of A, of B for each k
    share_b, share_a = _share(execute, each_a[first], each_b), _share(execute, each_a, each_b[second])
    k_of_b = np.argmax(share_b, axis=0)
    k_of_a = k_of_b[second][np.argmax(share_a, axis=1)]
    if not ((share_b.sum(axis=0) == 1).all() and (share_a.sum(axis=1) == 1).all()):
        raise InputError(f"{spec}: a slot of A or B meets more than one k")
    a, b = np.stack([row_of_a, k_of_a], axis=1), np.stack([k_of_b, column_of_b], axis=1)
    for pairs, size in ((a, m * k), (b, n * k), (d, m * n)):
        if len(np.unique(pairs, axis=0)) != size:
            raise InputError(f"{spec}: two slots hold one element")
    return Fragments(m, n, k, a, b, d, held, A + B + share_b.size + share_a.size)


def _label(sets: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the index of each row's set, and the sets: disjoint ones in the order of their first slots of D."""
    outside, labels = np.unique(~sets, axis=0, return_inverse=True)  # sorted, False first
    return labels.reshape(-1), ~outside


def _share(execute: Execution, a: NDArray[np.bool_], b: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each of some slots of A and each of some slots of B share k."""
    D = execute(np.repeat(a, len(b), axis=0), np.tile(b, (len(a), 1)))
    return np.asarray((D != 0).any(axis=1)).reshape(len(a), len(b))


def _run(spec: MmaSpec, A: NDArray[Any], B: NDArray[Any]) -> NDArray[Any]:
    """Run the instruction on the GPU, with slots as codes of 0 and 1."""
    kinds = (spec.a_format, spec.b_format)
    ones = [np.uint8(1) if isinstance(f, str) else f.encode(np.float64(1.0)) for f in kinds]
    a, b = (device.Buffer.of(np.where(x, one, 0).astype(one.dtype)) for x, one in zip((A, B), ones, strict=True))
    out = np.dtype(spec.d_format) if isinstance(spec.d_format, str) else spec.d_format.dtype
    module = modules.module(source(spec), f"fragments of {spec}")

    def run(D: device.Buffer) -> None:
        plan.queue(module.step("fragments", len(A), LANES, a, b, D))

    D = device.collect(run, (len(A), layouts(spec)[2].slots), np.dtype(f"u{out.itemsize}"))
    return D.view(out)


def agrees(fragments: Fragments, spec: MmaSpec) -> bool:
    """Return whether the layout is that of ``kernels/instruction.cuh``, up to permutations of rows, columns and k."""
    return all(_permuted(x, y) for x, y in zip((fragments.a, fragments.b, fragments.d), expected(spec), strict=True))


def _permuted(pairs: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Return whether two numberings of (row, column) are permutations of each other."""
    return all(
        len(np.unique(np.stack([pairs[:, i], expected[:, i]], axis=1), axis=0)) == len(np.unique(expected[:, i]))
        for i in (0, 1)
    )


def expected(spec: MmaSpec) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return row and k, k and column, row and column of each slot in ``kernels/instruction.cuh``."""
    ins, (a, b, d) = instructions.instruction(spec), layouts(spec)
    halves = 1 if ins.m == 8 else 2
    words = 1 if str(spec.d_format) == "fp16" else 2  # registers that hold two neighbours of a row
    lane, register, part = a.places
    A = lane // 4 + 8 * (register % halves), (lane % 4 + 4 * (register // halves)) * a.parts + part
    lane, register, part = b.places
    B = (lane % 4 + 4 * register) * b.parts + part, lane // 4
    lane, register, part = d.places
    column = 8 * (register // (words * halves)) + 2 * (lane % 4) + (register % words if words == 2 else part)
    D = lane // 4 + 8 * (register // words % halves), column
    return np.stack(A, axis=1), np.stack(B, axis=1), np.stack(D, axis=1)
