"""The schemes and options that advice chooses from, each with its cost.

Cost is counted, not measured, by `fpemu.roofline`: operations of the matrix instructions, weighted by the peak of
their format beside that of fp16 on the GPU; among equals bytes, then instructions of the ordinary cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from fpemu import mma, schemes
from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.roofline import gpus
from fpemu.roofline.counting import work
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.phases import BYTES, Work
from fpemu.schemes import Scheme, SplitScheme, ozaki

NOMINAL = {
    "fp16 matrix": 1.0,
    "bf16 matrix": 1.0,
    "tf32 matrix": 0.5,
    "fp8 matrix": 2.0,
    "int8 matrix": 2.0,
    "fp32": 0.0625,
    "fp64": 0.0625,
}
"""Rates beside that of fp16 where there is no data sheet: those of an A100, and twice fp16 for words of 8 bits."""

PROMOTIONS = (1024, 256, 64, "instruction")
FORMATS = ("bf16", "tf32", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")


@dataclass(frozen=True, order=True)
class Cost:
    """What a product costs; ordered as advice orders it.

    Parameters
    ----------
    work : float
        Operations of all products over 2 M N K, padding included, each weighted by the peak of fp16 over that of its
        unit: 1 is one fp16 product. Where there is no matrix unit, the peak of fp32 takes the place of fp16's.
    memory : float
        Bytes read and written: operands, words, result.
    vector : float
        Instructions of the ordinary cores, an element each.
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
        Format that it takes A and B in: fp32 or fp64.
    spec : MmaSpec or None
        Its instruction; None on ordinary cores.
    products : int
        Number of matrix products.
    cost : Cost
        Estimated cost.
    place : int
        Position in the list of all candidates, which decides among equals.
    """

    scheme: str
    options: tuple[tuple[str, Any], ...]
    on_range: str
    operand: str
    spec: MmaSpec | None
    products: int
    cost: Cost
    place: int

    @cached_property
    def built(self) -> Scheme:
        """The scheme with its options."""
        return schemes.build(self.scheme, dict(self.options))

    @property
    def key(self) -> tuple[Cost, int]:
        """The cheapest has the smallest."""
        return self.cost, self.place

    @property
    def label(self) -> str:
        """As one reads it: "h2sgemm promote=64, on_range=scale"."""
        shown = [f"{name}={value}" for name, value in self.options]
        shown += [f"on_range={self.on_range}"] if self.on_range != "raise" else []
        return " ".join([self.scheme, ", ".join(shown)]).strip()


@dataclass(frozen=True)
class Machine:
    """What a product runs on.

    Parameters
    ----------
    name : str
    unit : str, MmaSpec or None
        Its matrix unit, as schemes take it; None if it has none.
    gpu : str
        The GPU whose peaks weigh the work, "nominal" if none is known.
    rates : tuple of (str, float)
        Peaks of its units over that of fp16 on the matrix unit, over that of fp32 where there is none.
    """

    name: str
    unit: str | MmaSpec | None
    gpu: str
    rates: tuple[tuple[str, float], ...]

    def rate(self, unit: str) -> float:
        """Of a unit; SGEMM and DGEMM ("fp32", "fp64") run on the matrix unit where that has their format and is faster.

        Raises
        ------
        InputError
            A GPU whose data give no peak for it: it may not have the unit.
        """
        units = (unit, f"{unit} matrix") if unit in ("fp32", "fp64") else (unit,)
        known = [rate for name, rate in self.rates if name in units]
        if not known:
            raise InputError(f"{self.gpu} has no known peak of {unit}")
        return max(known)


def machine(hardware: str | MmaSpec | Gpu) -> Machine:
    """The hardware of a name: of the catalog of instructions, of the table of GPUs, or of a file of these.

    An architecture has the peaks of the first of its GPUs in the table.

    Raises
    ------
    InputError
        An unknown name, with the nearest known.

    Examples
    --------
    >>> machine("hopper").gpu, machine("H100 PCIe").unit
    ('H100', 'hopper')
    """
    if isinstance(hardware, Gpu):
        return _machine(hardware.name, hardware.architecture, hardware)
    if isinstance(hardware, MmaSpec):
        return _machine(hardware.name, hardware, _first(hardware.architecture))
    try:
        architecture = mma.catalog.architecture(hardware)
    except InputError:
        try:
            gpu = gpus.get(hardware)
        except InputError as problem:
            if ".toml" in str(hardware).lower():
                raise problem from None
        else:
            return _machine(str(hardware), gpu.architecture, gpu)
        raise
    try:
        gpu = gpus.get(hardware)
    except InputError:
        return _machine(str(hardware), hardware, _first(architecture))
    return _machine(str(hardware), hardware, gpu)


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
    where: Machine, M: int, N: int, K: int, sample: tuple[Any, Any], *, fp32: bool, policies: tuple[str, ...]
) -> list[Candidate]:
    """All that runs on the hardware, cheapest first.

    Parameters
    ----------
    sample : (A, B)
        float64 matrices whose slices are counted where their number follows from the data (ozaki in mode CR).
    fp32 : bool
        Whether the operands are fp32 numbers: error-free schemes then take them as such where that suffices.
    policies : tuple of str
        Range policies of the split schemes to consider.

    Examples
    --------
    >>> import numpy as np
    >>> A, B = np.eye(64), np.eye(64)
    >>> found = candidates(machine("H200"), 64, 64, 64, (A, B), fp32=True, policies=("raise",))
    >>> [round(c.cost.work, 2) for c in found if c.label in ("fp16", "ootomo", "sgemm")]
    [1.0, 3.0, 14.79]
    """
    entries = M * K + K * N + M * N
    found = [_counted(c, sample, float(BYTES[c.operand] * entries)) for c in _listed(where, M, N, K, fp32, policies)]
    return sorted(found, key=lambda c: c.key)


@cache
def _listed(where: Machine, M: int, N: int, K: int, fp32: bool, policies: tuple[str, ...]) -> tuple[Candidate, ...]:
    """The same with nominal data, as `_choices` has them."""
    found: list[Candidate] = []
    for name, options in _choices(K, fp32):
        try:
            scheme = schemes.build(name, options)
            spec = scheme.spec(where.unit)
            job = work(scheme, spec, M, N, K)
            plain = _cost(job, where)
        except InputError:
            continue  # this hardware has no such instruction or no known peak of it, or K is too long for it
        chosen = name, tuple(options.items())
        scales = isinstance(scheme, SplitScheme) and not scheme.scales_rows
        for policy in policies if scales else policies[:1]:
            cost = plain if policy == "raise" else _scaled(plain, job)
            found.append(Candidate(*chosen, policy, scheme.operand.name, spec, job.products, cost, len(found)))
    return tuple(found)


def _choices(K: int, fp32: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemes with the options worth a look; the published ones first."""
    promotions: list[dict[str, Any]] = [{}]
    promotions += [{"promote": p} for p in PROMOTIONS if isinstance(p, str) or p < K]
    for format in FORMATS:
        yield "multiword", {"words": 1, "format": format}
    for name in ("fp16", "legemm", "ape", "h2sgemm"):
        yield from ((name, p) for p in promotions)
    yield "h2sgemm", {"sb": 11}
    yield "h2sgemm", {"combine": "element-wise"}
    yield "ootomo", {}
    yield "ootomo", {"promote": 64, "correction_step": 64}
    yield from (("staged", s) for s in ({}, {"stage": 256}, {"stage": 128}, {"stage": 32}))
    yield from (("staged-int8", s) for s in ({}, {"exact": 8}, {"exact": 4}, {"exact": 2}))
    yield from (("markidis", {"refine": "A", **p}) for p in promotions)
    for name in ("markidis", "egemm", "bf16x3", "bf16x6", "bf16x9"):
        yield from ((name, p) for p in promotions)
    yield "ootomo-tf32", {}
    for format in ("fp16", *FORMATS):
        for words in (2, 3, 4):
            yield from (("multiword", {"words": words, "format": format, **b}) for b in ({}, {"block": 1}))
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
    """Of some work on some hardware."""
    weighted = 0.0
    for phase in job.phases:
        for unit, operations in phase.products.items():
            weighted += operations / where.rate(unit if job.architecture is None else f"{unit} matrix")
    return Cost(weighted / job.nominal, job.bytes, job.vector)


def _scaled(cost: Cost, job: Work) -> Cost:
    """With a range policy: the largest entries are looked for first, everything is scaled, the result scaled back."""
    M, N, K = job.shape
    inputs = float(M * K + K * N)
    return Cost(cost.work, cost.memory + BYTES[job.operand] * inputs, cost.vector + 2 * (inputs + M * N))


def _counted(candidate: Candidate, sample: tuple[Any, Any], once: float) -> Candidate:
    """With the slices that these data need, where their number is not an option."""
    options, cost = dict(candidate.options), candidate.cost
    if options.get("mode") != "CR":
        return candidate
    assert candidate.spec is not None
    products = ozaki.counts(*sample, hardware=candidate.spec, **options).products
    more = products / candidate.products
    # A and B are read and the result is written once, however many slices there are
    memory = once + (cost.memory - once) * more
    return replace(candidate, products=products, cost=Cost(cost.work * more, memory, cost.vector * more))
