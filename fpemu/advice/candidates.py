"""The candidates of advice: schemes with options, each with its cost.

The cost is counted by `fpemu.roofline`, not measured: operations of the matrix instructions, weighted by the peak of
fp16 over the peak of their format on the GPU; then bytes, then instructions of the ordinary cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from fpemu import mma, schemes
from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.roofline import gpus
from fpemu.roofline.counting import BYTES, Work, work
from fpemu.roofline.gpus import Gpu
from fpemu.schemes import Scheme, SplitScheme, ozaki
from fpemu.schemes.call import Policy

NOMINAL = {
    "fp16 matrix": 1.0,
    "bf16 matrix": 1.0,
    "tf32 matrix": 0.5,
    "fp8 matrix": 2.0,
    "int8 matrix": 2.0,
    "fp32": 0.0625,
    "fp64": 0.0625,
}
"""Rates relative to fp16 without a data sheet: those of an A100, and twice fp16 for words of 8 bits."""

PROMOTIONS = (1024, 256, 64, "instruction")
"""Promotion intervals that are tried beside none, the cheapest first: a shorter interval has more additions outside."""
FORMATS = ("bf16", "tf32", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
"""Formats of words that are tried beside fp16, which is the format of the published schemes."""


@dataclass(frozen=True, order=True)
class Cost:
    """Cost of a product; smaller is cheaper, field by field.

    Parameters
    ----------
    work : float
        Operations of all products over 2 M N K, padding included, each weighted by the peak of fp16 over the peak of
        its unit: 1 is one fp16 product. Without a matrix unit the weight is relative to fp32.
    memory : float
        Bytes read and written: operands, words, result.
    vector : float
        Instructions of the ordinary cores, one element each.
    """

    work: float
    memory: float
    vector: float


@dataclass(frozen=True)
class Candidate:
    """Scheme with its options and range policy, as `fpemu.gemm` takes them, and its cost.

    Attributes
    ----------
    scheme : str
        Name of the scheme.
    options : tuple of (str, object)
        Option names and values.
    on_range : str
        Overflow policy.
    operand : str
        Format of A and B: fp32 or fp64.
    spec : MmaSpec or None
        Instruction; None on ordinary cores.
    products : int
        Number of matrix products.
    cost : Cost
        Estimated cost.
    position : int
        Position in the list of all candidates, which orders candidates of equal cost.
    """

    scheme: str
    options: tuple[tuple[str, Any], ...]
    on_range: Policy
    operand: str
    spec: MmaSpec | None
    products: int
    cost: Cost
    position: int

    @cached_property
    def built(self) -> Scheme:
        """The scheme with its options."""
        return schemes.build(self.scheme, dict(self.options))

    @property
    def key(self) -> tuple[Cost, int]:
        """Sort key, ascending in cost."""
        return self.cost, self.position

    @property
    def label(self) -> str:
        """Name and options, as in "h2sgemm promote=64, on_range=scale"."""
        shown = [f"{name}={value}" for name, value in self.options]
        shown += [f"on_range={self.on_range}"] if self.on_range != "raise" else []
        return " ".join([self.scheme, ", ".join(shown)]).strip()


@dataclass(frozen=True)
class Machine:
    """Hardware of a product."""

    name: str
    unit: str | MmaSpec | None
    """Matrix unit as an argument of schemes; None if there is none"""
    gpu: str
    """GPU whose peaks weigh the work, "nominal" if none is known"""
    rates: tuple[tuple[str, float], ...]
    """Peaks of its units over the peak of fp16 on the matrix unit, or of fp32 if there is none"""

    def rate(self, unit: str) -> float:
        """Relative rate of a unit; "fp32" and "fp64" run on a matrix unit of their format where that is faster."""
        units = (unit, f"{unit} matrix") if unit in ("fp32", "fp64") else (unit,)
        known = [rate for name, rate in self.rates if name in units]
        if not known:
            raise InputError(f"{self.gpu} has no known peak of {unit}")
        return max(known)


def machine(hardware: str | MmaSpec | Gpu) -> Machine:
    """The hardware of a name in the catalogue of instructions, the table of GPUs or a file of GPUs.

    An architecture has the peaks of its first GPU in the table.

    >>> machine("hopper").gpu, machine("H100 PCIe").unit
    ('H100', 'hopper')
    """
    if isinstance(hardware, Gpu):
        return _machine(hardware.name, hardware.architecture, hardware)
    if isinstance(hardware, MmaSpec):
        return _machine(hardware.name, hardware, _first(hardware.architecture))
    architecture, gpu = _known(mma.catalog.architecture, hardware), _known(gpus.get, hardware)
    if architecture is None and gpu is None:  # the lookup raises the error with the nearest name
        (gpus.get if ".toml" in str(hardware).lower() else mma.catalog.architecture)(hardware)
    if architecture is None:
        return _machine(hardware, gpu.architecture, gpu)
    listed = hardware in (*mma.catalog.architectures(), *mma.catalog.gpu_names())
    return _machine(hardware, hardware if listed else architecture, gpu or _first(architecture))


def _known(lookup: Callable[[str], Any], name: str) -> Any:
    try:
        return lookup(name)
    except InputError:
        return None


def _first(architecture: str) -> Gpu | None:
    return next((gpu for gpu in map(gpus.get, gpus.names()) if gpu.architecture == architecture), None)


def _machine(name: str, unit: str | MmaSpec | None, gpu: Gpu | None) -> Machine:
    units = ("fp32 matrix", "fp32") if unit is None else ("fp16 matrix", "fp32 matrix", "fp32")
    if gpu is None or not gpu.peak:
        return Machine(name, unit, "nominal", tuple(NOMINAL.items()))
    one = next((gpu.peak[kind] for kind in units if kind in gpu.peak), max(gpu.peak.values()))
    # data sheets round: 1978.9 beside 989.4 is twice as much
    return Machine(name, unit, gpu.name, tuple((kind, float(f"{peak / one:.3g}")) for kind, peak in gpu.peak.items()))


def candidates(
    where: Machine, M: int, N: int, K: int, sample: tuple[Any, Any], *, fp32: bool, policies: tuple[Policy, ...]
) -> list[Candidate]:
    """All candidates that run on the hardware, cheapest first.

    `sample` has float64 matrices A and B whose slices are counted where their number depends on the data (ozaki in mode
    CR). `fp32`: the operands are fp32 numbers, which error-free schemes then accept as such. `policies` are overflow
    policies of split schemes.

    >>> import numpy as np
    >>> A, B = np.eye(64), np.eye(64)
    >>> listed = candidates(machine("H200"), 64, 64, 64, (A, B), fp32=True, policies=("raise",))
    >>> [round(c.cost.work, 2) for c in listed if c.label in ("fp16", "ootomo", "sgemm")]
    [1.0, 3.0, 14.79]
    """
    entries = M * K + K * N + M * N
    listed = _listed(where, M, N, K, fp32, policies)
    return sorted((_counted(c, sample, float(BYTES[c.operand] * entries)) for c in listed), key=lambda c: c.key)


@cache
def _listed(where: Machine, M: int, N: int, K: int, fp32: bool, policies: tuple[Policy, ...]) -> tuple[Candidate, ...]:
    """The candidates with slices counted on nominal data, in the order of `_choices`."""
    listed: list[Candidate] = []
    for name, options in _choices(K, fp32):
        try:
            scheme = schemes.build(name, options)
            spec = scheme.spec(where.unit)
            job = work(scheme, spec, M, N, K)
            plain = _cost(job, where)
        except InputError:
            continue  # the hardware lacks the instruction or its peak, or K is too long
        scales = isinstance(scheme, SplitScheme) and not scheme.scales_rows
        for policy in policies if scales else policies[:1]:
            cost = plain if policy == "raise" else _scaled(plain, job)
            chosen = name, tuple(options.items()), policy, scheme.operand.name, spec, job.products
            listed.append(Candidate(*chosen, cost, len(listed)))
    return tuple(listed)


def _choices(K: int, fp32: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemes with the options considered, the published ones first."""
    promotions: list[dict[str, Any]] = [{}]
    promotions += [{"promote": p} for p in PROMOTIONS if isinstance(p, str) or p < K]
    for fmt in FORMATS:
        yield "multiword", {"words": 1, "fmt": fmt}
    for name in ("fp16", "legemm", "ape", "h2sgemm"):
        yield from ((name, p) for p in promotions)
    yield "h2sgemm", {"sb": 11}
    yield "h2sgemm", {"combine": "element-wise"}
    yield "ootomo", {}
    yield "ootomo", {"promote": 64, "step": 64}
    yield from (("staged", s) for s in ({}, {"stage": 256}, {"stage": 128}, {"stage": 32}))
    yield from (("staged-int8", s) for s in ({}, {"exact": 8}, {"exact": 4}, {"exact": 2}))
    yield from (("markidis", {"refine": "A", **p}) for p in promotions)
    for name in ("markidis", "egemm", "bf16x3", "bf16x6", "bf16x9"):
        yield from ((name, p) for p in promotions)
    yield "ootomo-tf32", {}
    for fmt in ("fp16", *FORMATS):
        for words in (2, 3, 4):
            yield from (("multiword", {"words": words, "fmt": fmt, **p}) for p in ({}, {"promote": "instruction"}))
    yield "sgemm", {}
    yield "dgemm", {}
    for precision in ("fp32", "fp64") if fp32 else ("fp64",):
        yield from _error_free({"precision": precision} if precision == "fp32" else {})
    slices: tuple[dict[str, Any], ...] = ({}, {"words": "int8", "split": "balanced"})
    for base in slices:
        for mode, most in (("SP", 8), ("DP", 18)) if fp32 else (("DP", 18),):
            yield from (("ozaki", {"mode": mode, **base, "slices": d, "fast": True}) for d in range(2, most))
        yield "ozaki", {"mode": "CR", **base}


def _error_free(precision: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemes on integers. `ozimmu` in its accelerated form, which is more accurate for the same products."""
    for s in range(1, 8 if precision else 19):
        yield "ozimmu", {"slices": s, "headroom": 0, "split": "nearest", "sums": "group", **precision}
    for moduli in range(2, 12 if precision else 21):
        yield from (("ozaki2", {"moduli": moduli, "scaling": rule, **precision}) for rule in ("accurate", "invariant"))


# --- cost


def _cost(job: Work, where: Machine) -> Cost:
    """The cost of a job on a machine."""
    weighted = 0.0
    for phase in job.phases:
        for unit, operations in phase.products.items():
            weighted += operations / where.rate(unit if job.architecture is None else f"{unit} matrix")
    return Cost(weighted / job.nominal, job.bytes, job.vector)


def _scaled(cost: Cost, job: Work) -> Cost:
    """The cost with a policy that finds the largest entries, scales the operands and scales the result back."""
    M, N, K = job.shape
    inputs = float(M * K + K * N)
    return Cost(cost.work, cost.memory + BYTES[job.operand] * inputs, cost.vector + 2 * (inputs + M * N))


def _counted(candidate: Candidate, sample: tuple[Any, Any], once: float) -> Candidate:
    """The candidate with the slices that the data require, where their number is not an option."""
    options, cost = dict(candidate.options), candidate.cost
    if options.get("mode") != "CR":
        return candidate
    assert candidate.spec is not None
    products = ozaki.counts(*sample, hardware=candidate.spec, **options).products
    more = products / candidate.products
    # A and B are read and the result is written once, for any number of slices
    memory = once + (cost.memory - once) * more
    return replace(candidate, products=products, cost=Cost(cost.work * more, memory, cost.vector * more))
