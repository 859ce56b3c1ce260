"""TSM2's performance model: occupancy, use of bandwidth and of the cores, and the choice of t1, t2, t3.

Source: Rivera, Chen, Xiong, Song, Tao (2020), section 3.6. A is m×k, B is k×n with n small. A block of t1 threads works
on t1 rows of A, t2 columns of B at a time, and every thread loads t3 elements of A ahead. Algorithm 5 is in `tsm2`,
from which all of this can be named.

What is printed and what it has to be. With ``printed=True`` a `Model` computes the paper's equations to the letter,
otherwise the corrected ones.

* The shape: the paper's text calls the width of B k in section 3.6, n in Algorithms 1 to 4. Here it is n.
* ``time_comp`` and ``time_mem`` divide by Peak · SMs · occupancy. The peaks are those of the whole GPU and every one of
  SMs · occupancy threads does t3 t2 multiply-adds, so SMs · occupancy belongs in the numerators. In r it cancels.
* r counts t3 t2 multiply-adds against a peak in operations, so a multiply-add as one; Algorithm 5's Total_flops counts
  it as two. The published thresholds (40, 6, 50) are Peak / Band · 8 bytes with the fp64 peaks of section 4.1: those of
  the first kind. A multiply-add is two operations, so the thresholds are half of that, and only then are the two times
  of Algorithm 5 equal at the threshold.
* Concurrent_mem counts loads and Concurrent_max_mem bytes; Concurrent_comp multiply-adds and its maximum operations.
* Both uses can exceed one. Without a limit Algorithm 5 rewards ever larger t3, which it does not bound either. Here
  they end at one, and t3 ends where a thread has all its registers.
* Algorithm 5 takes the memory time of a kernel below the threshold, or the computing time of one above it, for its
  time; in the last comparison it sets the one against the other. Here the time is the larger of the two.

The memory time n / (t2 Util_mem) never rises with t2 in either form: the use falls with t2 no faster than 1 / t2, as
occupancy does where shared memory or registers bound it. So a t2 below n can be as good as n, but not better.

The latencies and C of the paper come from profiling and are not printed: they are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from fpemu.arguments import check_fields, checked, choice, integer, positive, sizes
from fpemu.errors import InputError
from fpemu.roofline.gpus import Gpu

BYTES = {"fp32": 4, "fp64": 8}
MEMORY_LATENCY = 400.0
"""Cycles of a load from memory where neither the user nor the GPU's description has it. NVIDIA's programming guides
said 400 to 800 for the generations up to Pascal; published measurements of one GPU lie from 300 to 1000."""
SETUP = 24
"""C, registers that every thread takes whatever the parameters; the paper profiles it and does not print it."""
_WHAT = "TSM2's model"


@dataclass(frozen=True)
class Model:
    """The model on one GPU, in one format.

    Parameters
    ----------
    gpu : Gpu
        Needs sms, clock, bandwidth, the format's peak, threads, registers, registers_per_thread, shared.
    fmt : str
        "fp32" or "fp64".
    memory_latency, compute_latency : float, optional
        Cycles of a load and of a multiply-add; by default those of the GPU's description, for a load else
        `MEMORY_LATENCY`.
    setup : int
        Registers of a thread beside the tiles (the paper's C).
    printed : bool
        The equations as printed.

    Raises
    ------
    InputError
        An unknown format; a field that the GPU's description lacks, named.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> model = Model(gpus.get("K40c"))
    >>> f"{model.threshold():.1f} {Model(gpus.get('K40c'), printed=True).threshold():.1f}"
    '19.9 39.7'
    """

    gpu: Gpu
    fmt: str = "fp64"
    memory_latency: float | None = None
    compute_latency: float | None = None
    setup: int = SETUP
    printed: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        choice("format of TSM2", self.fmt, BYTES)
        for name, given in (("memory_latency", self.memory_latency), ("compute_latency", self.compute_latency)):
            if given is not None:
                positive(", in cycles", **{name: given})
        integer("setup", self.setup, 0, 255)
        for what in ("sms", "clock", "bandwidth", self.fmt, "threads", "registers", "registers_per_thread", "shared"):
            self.gpu.need(what, _WHAT)

    @property
    def bytes(self) -> int:
        """Of an element"""
        return BYTES[self.fmt]

    @property
    def latency(self) -> float:
        """Of a load, cycles"""
        return float(self.memory_latency or self.gpu.memory_latency or MEMORY_LATENCY)

    @property
    def arithmetic_latency(self) -> float:
        """Of a multiply-add, cycles

        Raises
        ------
        InputError
            If it is neither given nor known.
        """
        field = "compute_latency" if self.fmt == "fp32" else "fp64_latency"
        found = self.compute_latency or getattr(self.gpu, field)
        if found is None:
            raise InputError(
                f"{self.gpu.name}: {_WHAT} needs the latency of an {self.fmt} multiply-add, in cycles: give "
                f"compute_latency, or {field} in the GPU's table"
            )
        return float(found)

    def registers(self, t2: float, t3: float) -> float:
        """R_thread: registers of a thread, (3 t2 + 2 t3) elements and C."""
        return (3 * t2 + 2 * t3) * self.bytes / 4 + self.setup

    def occupancy(self, t2: float, t3: float) -> float:
        """MaxOccup: threads that an SM can hold, by its limit, its registers and its shared memory (S_thread)."""
        gpu = self.gpu
        registers, shared = gpu.need("registers") / self.registers(t2, t3), gpu.need("shared") / (t2 * self.bytes)
        return float(min(gpu.need("threads"), registers, shared))

    def needed_memory(self) -> float:
        """Concurrent_max_mem: bytes an SM must have in flight for the full bandwidth (Little's law)."""
        return float(self.latency * self.gpu.need("bandwidth") / (self.gpu.need("sms") * self.gpu.need("clock")))

    def needed_compute(self) -> float:
        """Concurrent_max_comp: operations an SM must have in flight for the full peak."""
        peak = self.gpu.need(self.fmt)
        return float(self.arithmetic_latency * peak / (self.gpu.need("sms") * self.gpu.need("clock")))

    def memory_use(self, t2: float, t3: float) -> float:
        """Util_mem: share of the bandwidth that the loads of A can use."""
        loads = self.occupancy(t2, t3) * t3
        if self.printed:
            return loads / self.needed_memory()
        return min(1.0, loads * self.bytes / self.needed_memory())

    def compute_use(self, t2: float, t3: float) -> float:
        """Util_comp: share of the peak that the multiply-adds can use."""
        found = self.occupancy(t2, t3) * t3 * t2
        if self.printed:
            return found / self.needed_compute()
        return min(1.0, 2 * found / self.needed_compute())

    def threshold(self) -> float:
        """t2 at which loads of A and multiply-adds take the same time (r = 1)."""
        printed = self.gpu.need(self.fmt) / self.gpu.need("bandwidth") * self.bytes
        return float(printed if self.printed else printed / 2)

    def compute_bound(self, n: int) -> bool:
        """Whether the undivided problem, t2 = n, is bound by computing (Algorithm 5, line 1)."""
        return not n < self.threshold()

    def memory_time(self, m: int, k: int, n: int, t2: float, t3: float) -> float:
        """Seconds for the loads of A, n / t2 times each; whole passes if t2 is whole and the equations corrected."""
        passes = n / t2 if self.printed or t2 != int(t2) else -(-n // int(t2))
        return float(m * k * passes * self.bytes / (self.gpu.need("bandwidth") * self.memory_use(t2, t3)))

    def compute_time(self, m: int, k: int, n: int, t2: float, t3: float) -> float:
        """Seconds for the 2 m k n operations."""
        return float(2 * m * k * n / (self.gpu.need(self.fmt) * self.compute_use(t2, t3)))

    def seconds(self, m: int, k: int, n: int, t2: float, t3: float) -> float:
        """Of one product: the larger of the two times."""
        return max(self.memory_time(m, k, n, t2, t3), self.compute_time(m, k, n, t2, t3))

    def most_t3(self, t2: float) -> float:
        """The t3 with which a thread has all the registers it can have; the paper has no limit."""
        return float((self.gpu.need("registers_per_thread") - self.setup) * 4 / self.bytes - 3 * t2) / 2


@checked
def check(model: Model, t1: int, t2: int, t3: int, n: int) -> None:
    """Raise an error if a kernel with these parameters cannot run.

    Parameters
    ----------
    model : Model
        Performance model of a GPU.
    t1 : int
        Threads of a block, and rows of B in a tile.
    t2 : int
        Columns of C at a time.
    t3 : int
        Elements of A at a time.
    n : int
        Columns of B.

    Raises
    ------
    InputError
        Naming the condition and the values: t1 whole warps and at most 1024; t2 from 1 to n; t3 divides t1; registers
        of a thread and of a block, shared memory of a block.

    Examples
    --------
    >>> from fpemu.roofline import gpus
    >>> check(Model(gpus.get("P100")), 128, 4, 4, 16)
    >>> check(Model(gpus.get("P100")), 128, 4, 3, 16)
    Traceback (most recent call last):
    fpemu.errors.InputError: t3 = 3 does not divide t1 = 128: the loop over a tile takes t3 columns at a time
    """
    gpu, warp = model.gpu, model.gpu.warp or 32
    sizes(t1=t1, t2=t2, t3=t3, n=n)
    if t1 % warp or t1 > 1024:
        raise InputError(f"t1 = {t1} threads a block must be a multiple of {warp}, and 1024 at most")
    if t2 > n:
        raise InputError(f"t2 = {t2} exceeds n = {n}, the columns of B")
    if t1 % t3:
        raise InputError(f"t3 = {t3} does not divide t1 = {t1}: the loop over a tile takes t3 columns at a time")
    each = model.registers(t2, t3)
    if each > gpu.need("registers_per_thread"):
        raise InputError(
            f"{gpu.name}: t2 = {t2} and t3 = {t3} take {each:g} registers a thread, and {gpu.registers_per_thread} "
            "are the most"
        )
    if t1 * each > gpu.need("registers"):
        raise InputError(
            f"{gpu.name}: {t1} threads of {each:g} registers exceed the {gpu.registers} of an SM: lower t1"
        )
    shared, limit = t1 * t2 * model.bytes, gpu.need("shared_per_block", _WHAT)
    if shared > limit:
        raise InputError(
            f"{gpu.name}: t1 · t2 = {t1} · {t2} elements take {shared} bytes of shared memory, and a block has "
            f"{limit:g}"
        )


@checked
def block_sizes(model: Model, t2: int, t3: int) -> dict[int, int]:
    """Return the threads resident on an SM for every t1 that can run.

    t1 is a whole number of warps and a multiple of t3. Section 3.6.3 measures the best of them; its rule, that t1
    divides MaxOccup, selects the values that lose no thread.

    Parameters
    ----------
    model : Model
        Performance model of a GPU.
    t2 : int
        Columns of C at a time.
    t3 : int
        Elements of A at a time.

    Returns
    -------
    dict of int to int
        Resident threads by t1.

    Raises
    ------
    InputError
        Arguments that are not positive, or not integers where integers are required.
    """
    sizes(t2=t2, t3=t3)
    found = {}
    warp, most = model.gpu.warp or 32, model.occupancy(t2, t3)
    for t1 in range(warp, 1025, warp):
        if t1 % t3 == 0 and t1 * t2 * model.bytes <= model.gpu.need("shared_per_block", _WHAT):
            found[t1] = min(int(most // t1), model.gpu.need("blocks", _WHAT)) * t1
    return found
