"""The roofline of a scheme: a bound on its speed on a GPU, from the GPU's peaks and bandwidth and the scheme's work.

A phase of the work takes the longest of three times: its products on the matrix unit, its vector operations on the
ordinary cores, its bytes at the memory's bandwidth. Phases follow one another. Latencies, power limits, clocks below
the documented one and tiles that do not fill the GPU are not modelled; all make a program slower. `efficiency`,
`vector_efficiency` and `memory_efficiency` are assumed shares of the peaks; 1 is the bound.

A product in fp32 or fp64 runs on the faster of the ordinary cores and a matrix unit of that format. A vector operation
that is no multiply-add takes the place of one: half the peak.

The model comes from S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4), 2009, DOI 10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from fpemu.arguments import choice, integer, is_size, number
from fpemu.errors import InputError, shown
from fpemu.roofline import gpus
from fpemu.roofline.counting import Split, Work, work
from fpemu.roofline.gpus import Gpu
from fpemu.schemes import Scheme, build

MODEL = "the roofline"
SHAPES: dict[str, tuple[int | str, ...]] = {
    "square": ("n", "n", "n"),
    "rank-64": ("n", "n", 64),
    "tall": ("n", 64, "n"),
}
"""M, N, K of the named shapes."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Time of a phase in seconds, and its bound.

    Attributes
    ----------
    name : str
        Name of the phase.
    matrix, vector, memory : float
        Seconds on the matrix units, on the ordinary cores and for memory traffic.
    """

    name: str
    matrix: float
    vector: float
    memory: float

    @property
    def seconds(self) -> float:
        """The longest of the three."""
        return max(self.matrix, self.vector, self.memory)

    @property
    def bound(self) -> str:
        """ "matrix", "vector" or "memory"."""
        return max(("matrix", "vector", "memory"), key=lambda what: float(getattr(self, what)))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Least time that a GPU needs for some work.

    Attributes
    ----------
    work : Work
        The work.
    gpu : Gpu
        The GPU.
    spans : tuple of Span
        Times of the phases.
    """

    work: Work
    gpu: Gpu
    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """Seconds of all phases."""
        return sum(span.seconds for span in self.spans)

    @property
    def bound(self) -> str:
        """Bound of the longest phase: "matrix", "vector" or "memory"."""
        return max(self.spans, key=lambda span: span.seconds).bound

    @property
    def flops(self) -> float:
        """Effective throughput, 2 M N K / time, in operations of the emulated format per second."""
        return self.work.nominal / self.seconds

    @property
    def intensity(self) -> float:
        """Operations of matrix products per byte moved."""
        return self.work.operations / self.work.bytes

    @property
    def share(self) -> float:
        """Share of the time in which the matrix unit is busy."""
        return sum(span.matrix for span in self.spans) / self.seconds


def time(
    job: Work,
    gpu: str | Gpu,
    *,
    efficiency: float = 1.0,
    vector_efficiency: float = 1.0,
    memory_efficiency: float = 1.0,
) -> Estimate:
    """Return the least time for some work on a GPU.

    Parameters
    ----------
    job : Work
        Work of a product, from `work`.
    gpu : str or Gpu
        A GPU of the table, a file (see `fpemu.roofline.gpus.get`) or a description.
    efficiency, vector_efficiency, memory_efficiency : float
        Shares of the peaks of products, of the peaks of vector operations and of the bandwidth, in (0, 1].

    Returns
    -------
    Estimate
        Times by phase.

    Raises
    ------
    InputError
        An unknown GPU, or one that lacks a peak or differs from the work in architecture; a share outside (0, 1].

    Examples
    --------
    >>> estimate = time(work("ootomo", "H200", 8192, 8192, 8192, split="given"), "H200")
    >>> round(estimate.flops / 1e12), estimate.bound
    (330, 'matrix')
    """
    device = gpus.get(gpu)
    shares = {"efficiency": efficiency, "vector_efficiency": vector_efficiency, "memory_efficiency": memory_efficiency}
    for name, value in shares.items():
        number(name, value, above=0, high=1, what=", a share of the peak")
    if job.architecture not in (None, "custom", device.architecture):
        raise InputError(
            f"{job.scheme}: the work is counted for {job.architecture}, but {device.name} is "
            f"{device.architecture or 'without a matrix unit'}: count it for the same GPU"
        )
    spans = []
    for phase in job.phases:
        matrix = sum(n / _rate(device, name) for name, n in phase.products.items())
        vector = sum(n / (device.need(name, MODEL) / 2) for name, n in phase.vector.items())
        memory = (phase.read + phase.written) / device.need("bandwidth", MODEL)
        spans.append(
            Span(
                name=phase.name,
                matrix=matrix / efficiency,
                vector=vector / vector_efficiency,
                memory=memory / memory_efficiency,
            )
        )
    return Estimate(work=job, gpu=device, spans=tuple(spans))


def _rate(gpu: Gpu, fmt: str) -> float:
    """Operations per second of products of a format."""
    matrix = f"{fmt} matrix"
    rates = [gpu.peak[unit] for unit in (matrix, *([fmt] if fmt in ("fp32", "fp64") else [])) if unit in gpu.peak]
    return max(rates) if rates else float(gpu.need(fmt if fmt in ("fp32", "fp64") else matrix, MODEL))


class BreakEven(NamedTuple):
    """Size from which a scheme is faster than a baseline, by the roofline.

    Parameters
    ----------
    n : int or None
        Smallest size tried from which the scheme is faster at all larger sizes; None: not at the largest.
    ratio : float
        Time of the baseline over the time of the scheme at the largest size.
    largest : int
        Largest size tried.
    """

    n: int | None
    ratio: float
    largest: int


def break_even(
    scheme: str | Scheme,
    gpu: str | Gpu,
    against: Literal["sgemm", "dgemm"] | None = None,
    shape: str | Sequence[int | str] = "square",
    *,
    largest: int = 2**16,
    split: Split = "kernel",
    efficiency: float = 1.0,
    baseline_efficiency: float = 1.0,
    **options: Any,
) -> BreakEven:
    """Return the size from which a scheme's bound is above the bound of SGEMM or DGEMM.

    Sizes are multiples of 64, so that no instruction is padded, eight per octave up to `largest`, at most 6·10^7.

    Parameters
    ----------
    scheme : str or Scheme
        Scheme to compare.
    gpu : str or Gpu
        A GPU, as in `fpemu.roofline.gpus.get`.
    against : {"sgemm", "dgemm"}, optional
        Default: the baseline with the scheme's operand format.
    shape : str or three sizes
        "square" (n × n × n), "rank-64" (K = 64), "tall" (N = 64), or M, N, K with "n" for the size that grows.
    largest : int
        Largest size to try.
    split : {"kernel", "fused", "given"}
        Where the words are computed, as in `work`.
    efficiency, baseline_efficiency : float
        Shares of the products' peaks reached by the scheme and by the baseline.
    **options
        The scheme's options.

    Returns
    -------
    BreakEven
        The size and the ratio of the two bounds.

    Raises
    ------
    InputError
        As `work` and `time`; a baseline of another format; a shape without "n".

    Examples
    --------
    >>> break_even("ootomo", "A100").n, round(break_even("ootomo", "A100").ratio, 2)
    (192, 5.3)
    """
    chosen, device = build(scheme, options), gpus.get(gpu)
    native = {"fp32": "sgemm", "fp64": "dgemm"}[chosen.operand.name]
    if choice("against", against, ("sgemm", "dgemm"), none=True) not in (None, native):
        raise InputError(f"{chosen.name} multiplies {chosen.operand} here: compare it with {native}, not {against}")
    sides = _shape(shape)
    largest = integer("largest", largest, 64)
    sizes = sorted({64 * round(2 ** (i / 8)) for i in range(8 * 20)})
    sizes = list(takewhile(lambda n: n <= largest, sizes))

    def ratio(n: int) -> float:
        M, N, K = (n if side == "n" else int(side) for side in sides)
        emulated = time(work(chosen, device, M, N, K, split=split), device, efficiency=efficiency)
        baseline = time(work(native, None, M, N, K), device, efficiency=baseline_efficiency)
        return baseline.seconds / emulated.seconds

    faster = list(takewhile(lambda n: ratio(n) > 1, reversed(sizes)))
    return BreakEven(faster[-1] if faster else None, ratio(sizes[-1]), sizes[-1])


def _shape(shape: str | Sequence[int | str]) -> tuple[int | str, ...]:
    if isinstance(shape, str):
        return SHAPES[choice("shape", shape, SHAPES)]
    sides = shape if isinstance(shape, tuple | list) else ()
    fixed = [side for side in sides if not (isinstance(side, str) and side == "n")]
    if len(sides) != 3 or len(fixed) == 3 or not all(map(is_size, fixed)):
        raise InputError(f"shape = {shown(shape)} must be M, N, K: positive integers, and 'n' for the size that grows")
    return tuple(sides)
