"""TSM2's performance model: occupancy, use of the bandwidth and of the cores, and the best parameters t1, t2 and t3.

Source: Rivera, Chen, Xiong, Song, Tao (2020), section 3.6. A is m×k, B is k×n with n small. A block of t1 threads
computes t1 rows of C, t2 columns of B at a time, and every thread loads t3 elements of A ahead. The equations are the
paper's with the corrections that ``experiments/tsm2/model.py`` lists beside the printed form.

The memory time n / (t2 Util_mem) never rises with t2: the use falls with t2 no faster than 1 / t2, as occupancy does
where shared memory or registers limit it. A t2 below n can therefore be as good as n, but not better.

The latencies and C of the paper come from profiling and are not printed: they are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fpemu.arguments import choice, integer, positive, sizes
from fpemu.errors import InputError
from fpemu.roofline.gpus import Gpu

BYTES = {"fp32": 4, "fp64": 8}
MEMORY_LATENCY = 400.0
"""Cycles of a load from memory where neither the user nor the GPU's description has it. NVIDIA's programming guides
said 400 to 800 for the generations up to Pascal; published measurements of one GPU lie from 300 to 1000."""
SETUP = 24
"""C, registers that every thread uses whatever the parameters; the paper profiles it and does not print it."""
TIE = 1e-9
"""Times with a smaller relative difference count as equal."""
_MODEL = "TSM2's model"


@dataclass(frozen=True)
class Model:
    """The model on one GPU, in one format; latencies in cycles, by default those of the GPU's description.

    The description must have sms, clock, bandwidth, the format's peak, threads, registers, registers_per_thread and
    shared.

    >>> from fpemu.roofline import gpus
    >>> f"{Model(gpus.get('K40c')).threshold():.1f}"
    '19.9'
    """

    gpu: Gpu
    fmt: str = "fp64"
    memory_latency: float | None = None
    compute_latency: float | None = None
    setup: int = SETUP

    def __post_init__(self) -> None:
        choice("format of TSM2", self.fmt, BYTES)
        for name, value in (("memory_latency", self.memory_latency), ("compute_latency", self.compute_latency)):
            if value is not None:
                positive(", in cycles", **{name: value})
        object.__setattr__(self, "setup", integer("setup", self.setup, 0, 255))
        for name in ("sms", "clock", "bandwidth", self.fmt, "threads", "registers", "registers_per_thread", "shared"):
            self.gpu.need(name, _MODEL)

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return BYTES[self.fmt]

    @property
    def latency(self) -> float:
        """Latency of a load, in cycles."""
        return float(self.memory_latency or self.gpu.memory_latency or MEMORY_LATENCY)

    @property
    def arithmetic_latency(self) -> float:
        """Latency of a multiply-add, in cycles."""
        field = "compute_latency" if self.fmt == "fp32" else "fp64_latency"
        cycles = self.compute_latency or getattr(self.gpu, field)
        if cycles is None:
            raise InputError(
                f"{self.gpu.name}: {_MODEL} needs the latency of an {self.fmt} multiply-add, in cycles: give "
                f"compute_latency, or {field} in the GPU's table"
            )
        return float(cycles)

    def registers(self, t2: float, t3: float) -> float:
        """R_thread: registers of a thread, (3 t2 + 2 t3) elements and C."""
        return (3 * t2 + 2 * t3) * self.bytes / 4 + self.setup

    def occupancy(self, t2: float, t3: float) -> float:
        """MaxOccup: threads that an SM can hold, by its limit, its registers and its shared memory (S_thread)."""
        gpu = self.gpu
        registers, shared = gpu.need("registers") / self.registers(t2, t3), gpu.need("shared") / (t2 * self.bytes)
        return float(min(gpu.need("threads"), registers, shared))

    def needed_memory(self) -> float:
        """Concurrent_max_mem: bytes that an SM must have in flight for the full bandwidth (Little's law)."""
        return float(self.latency * self.gpu.need("bandwidth") / (self.gpu.need("sms") * self.gpu.need("clock")))

    def needed_compute(self) -> float:
        """Concurrent_max_comp: operations that an SM must have in flight for the full peak."""
        peak = self.gpu.need(self.fmt)
        return float(self.arithmetic_latency * peak / (self.gpu.need("sms") * self.gpu.need("clock")))

    def memory_use(self, t2: float, t3: float) -> float:
        """Util_mem: share of the bandwidth that the loads of A can use."""
        return min(1.0, self.occupancy(t2, t3) * t3 * self.bytes / self.needed_memory())

    def compute_use(self, t2: float, t3: float) -> float:
        """Util_comp: share of the peak that the multiply-adds can use."""
        return min(1.0, 2 * (self.occupancy(t2, t3) * t3 * t2) / self.needed_compute())

    def threshold(self) -> float:
        """The t2 at which loads of A and multiply-adds take the same time (r = 1)."""
        return float(self.gpu.need(self.fmt) / self.gpu.need("bandwidth") * self.bytes / 2)

    def compute_bound(self, n: int) -> bool:
        """Whether the undivided problem, t2 = n, is bound by computation (Algorithm 5, line 1)."""
        return not n < self.threshold()

    def passes(self, n: int, t2: float) -> float:
        """How many times A is read: whole passes if t2 is whole."""
        return n / t2 if t2 != int(t2) else -(-n // int(t2))

    def memory_time(self, m: int, k: int, n: int, t2: float, t3: float) -> float:
        """Seconds for the loads of A."""
        loaded = m * k * self.passes(n, t2) * self.bytes
        return float(loaded / (self.gpu.need("bandwidth") * self.memory_use(t2, t3)))

    def compute_time(self, m: int, k: int, n: int, t2: float, t3: float) -> float:
        """Seconds for the 2 m k n operations."""
        return float(2 * m * k * n / (self.gpu.need(self.fmt) * self.compute_use(t2, t3)))

    def seconds(self, m: int, k: int, n: int, t2: float, t3: float) -> float:
        """Seconds of one product: the larger of the two times."""
        return max(self.memory_time(m, k, n, t2, t3), self.compute_time(m, k, n, t2, t3))

    def most_t3(self, t2: float) -> float:
        """The t3 with which a thread uses all the registers that it can have; the paper has no limit."""
        return float((self.gpu.need("registers_per_thread") - self.setup) * 4 / self.bytes - 3 * t2) / 2


class Choice(NamedTuple):
    """Parameters t2 and t3, and the modelled time with them."""

    t2: int
    t3: int
    seconds: float


def exhaustive(model: Model, m: int, k: int, n: int) -> list[Choice]:
    """Return all pairs of integers t2, t3 with the least time among those that fit within a thread's registers.

    >>> from fpemu.roofline import gpus
    >>> sorted({choice.t2 for choice in exhaustive(Model(gpus.get("V100")), 20480, 20480, 16)})
    [16]
    """
    sizes(m=m, k=k, n=n)
    return fastest(Choice(*pair, model.seconds(m, k, n, *pair)) for pair in pairs(model, range(1, n + 1)))


def pairs(model: Model, columns: range) -> Iterator[tuple[int, int]]:
    """Yield the t2 of a range with every t3 that fits within a thread's registers."""
    return ((t2, t3) for t2 in columns for t3 in range(1, math.floor(model.most_t3(t2)) + 1))


def fastest(choices: Iterator[Choice]) -> list[Choice]:
    """Return the choices whose times exceed the least one by rounding errors only."""
    tried = list(choices)
    least = min(choice.seconds for choice in tried)
    return [choice for choice in tried if choice.seconds <= least * (1 + TIE)]


def most_tcf(model: Model, m: int, t2: int = 1, t3: int = 1) -> int:
    """Return the largest tcf, rows per thread of ISM2, with which m / tcf threads still fill every SM.

    >>> from fpemu.roofline import gpus
    >>> [most_tcf(Model(gpus.get("V100"), "fp32"), 10**e) for e in (4, 5, 6, 7)]
    [1, 1, 6, 61]
    """
    sizes(m=m, t2=t2, t3=t3)
    return max(1, int(m / (model.gpu.need("sms") * model.occupancy(t2, t3))))


def check(model: Model, t1: int, t2: int, t3: int, n: int) -> None:
    """Raise an InputError that names the first violated condition on a kernel's parameters.

    t1 is a multiple of a warp, 1024 at most; t2 is at most n; t3 divides t1; registers and shared memory suffice.

    >>> from fpemu.roofline import gpus
    >>> check(Model(gpus.get("P100")), 128, 4, 4, 16)
    >>> check(Model(gpus.get("P100")), 128, 4, 3, 16)
    Traceback (most recent call last):
    fpemu.errors.InputError: t3 = 3 does not divide t1 = 128: the loop over a tile takes t3 columns at a time
    """
    gpu, warp = model.gpu, model.gpu.warp or 32
    sizes(t1=t1, t2=t2, t3=t3, n=n)
    if t1 % warp or t1 > 1024:
        raise InputError(f"t1 = {t1} threads per block must be a multiple of {warp}, and 1024 at most")
    if t2 > n:
        raise InputError(f"t2 = {t2} exceeds n = {n}, the columns of B")
    if t1 % t3:
        raise InputError(f"t3 = {t3} does not divide t1 = {t1}: the loop over a tile takes t3 columns at a time")
    each = model.registers(t2, t3)
    if each > gpu.need("registers_per_thread"):
        raise InputError(
            f"{gpu.name}: t2 = {t2} and t3 = {t3} need {each:g} registers a thread, and {gpu.registers_per_thread} "
            "are the most"
        )
    if t1 * each > gpu.need("registers"):
        raise InputError(
            f"{gpu.name}: {t1} threads of {each:g} registers exceed the {gpu.registers} of an SM: lower t1"
        )
    shared, limit = t1 * t2 * model.bytes, gpu.need("shared_per_block", _MODEL)
    if shared > limit:
        raise InputError(
            f"{gpu.name}: t1 · t2 = {t1} · {t2} elements take {shared} bytes of shared memory, and a block has "
            f"{limit:g}"
        )


def block_sizes(model: Model, t2: int, t3: int) -> dict[int, int]:
    """Return the threads resident on an SM for every t1 that is a number of whole warps and a multiple of t3.

    Section 3.6.3 measures the best t1; its rule, that t1 divides MaxOccup, selects the values that lose no thread.
    """
    sizes(t2=t2, t3=t3)
    resident = {}
    warp, most = model.gpu.warp or 32, model.occupancy(t2, t3)
    for t1 in range(warp, 1025, warp):
        if t1 % t3 == 0 and t1 * t2 * model.bytes <= model.gpu.need("shared_per_block", _MODEL):
            resident[t1] = min(int(most // t1), model.gpu.need("blocks", _MODEL)) * t1
    return resident
