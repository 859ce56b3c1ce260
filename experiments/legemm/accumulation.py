"""LE-GEMM, section 5.3: its errors against the baselines in both readings of their accumulation.

The paper runs Markidis' and Ootomo's methods "using the WMMA interface" and prints no code. Their papers add Markidis'
four products one after another, each over all of K, and Ootomo's main product outside the matrix unit. In one loop over
fragments, Markidis' four products follow one another fragment by fragment, and Ootomo's main product accumulates in the
unit. The page evaluates both, against three single-precision results of a CPU and with two distributions.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fpemu import inputs, library, metrics, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend, rows_by
from ._accuracy import GPUS, LABELS, LOOK, METRICS, NAMES, PLATFORMS, PUBLISHED, over_sizes
from ._histogram import sizes

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.3: the baselines' accumulation"
CAPTION = """Errors of Markidis' and Ootomo's methods divided by the error of LE-GEMM over n, n×n×n products, operands
uniform in [-1, 1], errors against an fp32 chain of FMAs: (a), (b) MRED, (c), (d) Max_error. Filled: the baselines as
published; hollow: in one loop over fragments. Dotted and dash-dotted: the factors that the paper prints. Above 1,
LE-GEMM has the smaller error. Lines: median over seeded runs; bands: quartiles."""
ASSUMPTIONS = [
    GPUS,
    """"As published": Markidis' method adds its four products one after another, each over all of K (four GEMMs), and
    Ootomo's method adds its main product in fp32 outside the matrix unit. "One WMMA loop": the four products of
    Markidis' method follow one another in each fragment of K, and Ootomo's main product accumulates in the unit. The
    order of LE-GEMM is Algorithm 1's.""",
    """The paper does not describe its single-precision CPU result. The page has three: one ascending chain of fp32 FMAs
    for each element, OpenBLAS's SGEMM on the CPUs of Table 3 (kernels ZEN and SKYLAKEX), and the exact product.""",
    "Entries that the CPU's result has as zero have no relative error and are left out of MRED.",
    """The paper gives the range [-1, 1] of the operands and no distribution: here uniform, and in one reading normal
    with standard deviation 1/4, cut at -1 and 1, for n = 64 to 256.""",
    """The paper prints no sizes for figures 10 and 11: here n = 64 to 1024, and small and large n in two readings.""",
    "A reduction is the mean over n of the error of the other method divided by the error of LE-GEMM.",
]
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("fp16", {}),
    "Markidis, K": ("markidis", {}),
    "Markidis, fragment": ("markidis", {"step": "instruction"}),
    "Ootomo, outside": ("ootomo", {}),
    "Ootomo, unit": ("ootomo", {"promote": None}),
    "LE-GEMM": ("legemm", {}),
}
CPUS = {"cdna2": "ZEN", "ampere": "SKYLAKEX"}
"""OpenBLAS's kernels for the CPUs of Table 3, EPYC 7663 and Xeon Platinum 8358."""
DATA: dict[str, dict[str, Any]] = {"uniform": {"low": -1.0, "high": 1.0}, "normal": {"mean": 0.0, "deviation": 0.25}}
_SINGLE = ("SGEMM", "OpenBLAS", "reversed")


def cells(
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024),
    normal: tuple[int, ...] = (64, 128, 256),
    histogram: int = 1024,
    runs: int = 20,
) -> list[Row]:
    """The cells of both distributions; the errors of products of the size ``histogram`` are summarised too."""
    # the platforms innermost: they share the operands and the references
    return [
        {"n": n, "data": data, "histogram": int(n == histogram), "seed": seed, "hardware": hardware}
        for data, over in (("uniform", lengths), ("normal", normal))
        for n in over
        for seed in range(runs)
        for hardware in PLATFORMS
    ]


def cost(cell: Row) -> float:
    return float(cell["n"] ** 3 + 200**3)  # the second part: what a cell costs whatever its size


@functools.lru_cache(maxsize=1)
def problem(data: str, n: int, seed: int, device: Device = "cpu") -> tuple[Any, Any, dict[str, Any]]:
    """Return operands in [-1, 1], and the single-precision and the exact products of them."""
    A, B = (np.clip(X, -1, 1) for X in inputs.operands(data, n, n, n, seed, **DATA[data]))
    reverse = np.ascontiguousarray(A[:, ::-1]), np.ascontiguousarray(B[::-1])
    chain, reversed_chain = (schemes.gemm(*of, scheme="sgemm", device=device) for of in ((A, B), reverse))
    results = {"chain": chain, "reversed": reversed_chain, "exact": reference.matmul(A, B, device=device)}
    return A, B, results | {cpu: library.emulate("openblas", A, B, hardware=cpu) for cpu in CPUS.values()}


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, results = problem(cell["data"], cell["n"], cell["seed"], device)
    numbers: dict[str, float] = {}
    for name, (scheme, options) in METHODS.items():
        P = schemes.gemm(A, B, scheme=scheme, hardware=cell["hardware"], device=device, **options)
        numbers |= errors_of(name, P, cell, results)
    for name, result in zip(_SINGLE, ("chain", CPUS[cell["hardware"]], "reversed"), strict=True):
        S, exact = results[result], results["exact"]
        numbers |= {f"{name} {measure} exact": float(METRICS[measure](S, exact)) for measure in METRICS}
        numbers[f"{name} l2"] = metrics.relative_l2(S, exact)
    return numbers


def errors_of(name: str, P: Any, cell: Row, results: dict[str, Any]) -> dict[str, float]:
    """Return a method's errors against each reference; of a histogram's product also their range, width and median."""
    numbers: dict[str, float] = {}
    for ref, result in (("chain", "chain"), ("openblas", CPUS[cell["hardware"]]), ("exact", "exact")):
        S = results[result]
        numbers[f"{name} max_error {ref}"] = metrics.max_error_legemm(P, S)
        numbers[f"{name} mred {ref}"] = metrics.mred(P[S != 0], S[S != 0])
        if cell["histogram"]:
            numbers |= {f"{name} {what} {ref}": x for what, x in sizes(P - S.astype(np.float64)).items()}
    if name == "LE-GEMM":
        numbers["LE-GEMM l2"] = metrics.relative_l2(P, results["exact"])
    return numbers


class Reading(NamedTuple):
    """The columns and rows of a reading: Markidis' and Ootomo's accumulation, CPU result, distribution and sizes."""

    loop: bool
    ref: str
    data: str = "uniform"
    sizes: range = range(1, 2**20)

    def column(self, name: str, measure: str) -> str:
        """The column of a method's error."""
        methods = {"Markidis": ("Markidis, K", "Markidis, fragment"), "Ootomo": ("Ootomo, outside", "Ootomo, unit")}
        return f"{methods[name][self.loop] if name in methods else name} {measure} {self.ref}"


_LOOPS = {"as published": False, "one WMMA loop": True}
_REFERENCES = {"fp32 chain": "chain", "OpenBLAS": "openblas", "exact product": "exact"}
READINGS = {
    f"{loop}, {ref}": Reading(in_loop, column)
    for loop, in_loop in _LOOPS.items()
    for ref, column in _REFERENCES.items()
}
FURTHER = {
    "one WMMA loop, normal operands": Reading(True, "chain", "normal"),
    "one WMMA loop, n to 256": Reading(True, "chain", sizes=range(1, 257)),
    "one WMMA loop, n from 512": Reading(True, "chain", sizes=range(512, 2**20)),
}
"""Readings that change the distribution or the sizes."""


def measures(rows: list[Row]) -> Iterator[Measure]:
    """Yield the errors of the other methods over LE-GEMM's at each n, and what figures 12 and 13 show."""
    for reading, of in (READINGS | FURTHER).items():
        for hardware, platform in PLATFORMS.items():
            gpu, here = platform.split()[0], [r for r in _select(rows, hardware, of.data) if r["n"] in of.sizes]
            for (measure, published), (i, name) in itertools.product(PUBLISHED.items(), enumerate(NAMES)):
                if not here:
                    continue
                ours, errors = ([row[of.column(each, measure)] for row in here] for each in ("LE-GEMM", name))
                variant = f"{NAMES[name]}, {gpu}"
                if measure == "max_error":
                    yield Measure("max_error_below_others", errors, reading, variant, ours)
                elif name != "plain":
                    yield Measure(f"mred_below_{name.lower()}", errors, reading, gpu, ours)
                elif of.loop:  # plain fp16 has one product
                    yield Measure("mred_below_plain", errors, reading.removeprefix("one WMMA loop, "), gpu, ours)
                if published[hardware][i] >= 2:  # a smaller one is within a factor of 2 of no reduction at all
                    scaled = [published[hardware][i] * error for error in ours]
                    yield Measure(f"{measure}_factors", errors, reading, variant, scaled)
    yield from _histograms(rows)
    for row in _select(rows, "ampere", "uniform"):
        variant = f"n = {row['n']}"
        for name, reading in (("SGEMM", "SGEMM: fp32 chain"), ("OpenBLAS", "SGEMM: OpenBLAS")):
            yield Measure("single_precision_accuracy", row["LE-GEMM l2"], reading, variant, row[f"{name} l2"])
        yield Measure("reversed_sgemm_is_single_precision", row["reversed l2"], "", variant, row["SGEMM l2"])


def _histograms(rows: list[Row]) -> Iterator[Measure]:
    """Yield the factors between the methods' largest, root mean square and median errors."""
    for reading, of in READINGS.items():
        widths = {}
        for hardware, platform in PLATFORMS.items():
            gpu, here = platform.split()[0], [r for r in _select(rows, hardware, "uniform") if r["histogram"]]
            if not here:
                return
            wide, width, median = (
                {name: here[0][of.column(name, what)] for name in (*NAMES, "LE-GEMM")}
                for what in ("range", "width", "median")
            )
            widest = min(each["plain"] / max(each[name] for name in list(each)[1:]) for each in (wide, width))
            ootomo = {what: each["Ootomo"] / each["LE-GEMM"] for what, each in (("width", width), ("median", median))}
            widths[hardware] = width["Markidis"] / width["LE-GEMM"]
            yield Measure("plain_is_widest", widest, reading, gpu)
            yield Measure("narrower_than_markidis", wide["Markidis"], reading, gpu, wide["LE-GEMM"])
            yield Measure("concentrated_more_than_ootomo", min(ootomo.values()), reading, gpu)
            for what, factor in ootomo.items():
                yield Measure("distribution_like_ootomo", factor, reading, f"{what}, {gpu}")
        yield Measure("markidis_gap_larger_on_mi210", widths["cdna2"] / widths["ampere"], reading)


_of_platform = rows_by("hardware", "data", order="n")


def _select(rows: Sequence[Row], hardware: str, data: str) -> list[Row]:
    return _of_platform(rows, hardware, data)


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 2, height=4.6, share_y="row")
    for line, measure in zip(axes, ("mred", "max_error"), strict=True):
        for axis, hardware in zip(line, PLATFORMS, strict=True):
            here = _select(rows, hardware, "uniform")
            lengths = sorted({row["n"] for row in here})
            for number, name in enumerate(NAMES):
                if name == "plain":
                    continue
                for loop, in_loop in _LOOPS.items():
                    of, look = Reading(in_loop, "chain"), LOOK[name]
                    runs = [
                        [
                            row[of.column(name, measure)] / row[of.column("LE-GEMM", measure)]
                            for row in here
                            if row["n"] == n
                        ]
                        for n in lengths
                    ]
                    style = Series(f"{name}, {loop}", look.color, look.marker, "--" if in_loop else "-", not in_loop)
                    plotting.band(axis, lengths, runs, style, markersize=2.4 if in_loop else 4.6)
                factor = PUBLISHED[measure][hardware][number]
                printed = {"color": look.color, "linewidth": 1.2, "linestyle": {"Ootomo": "-."}.get(name, ":")}
                axis.axhline(factor, **printed, label=f"{name}, printed mean over $n$")
            axis.axhline(1, color=plotting.GREY, linewidth=0.8, zorder=1, label="equal errors")
            over_sizes(axis, lengths)
        line[0].set_ylabel(f"{LABELS[measure]} / LE-GEMM's")
    for axis in axes[-1]:
        axis.set_xlabel("$n$")
    plotting.panel_titles(
        axes,
        [f"{platform.split()[0]}, {LABELS[of]}" for of in ("mred", "max_error") for platform in PLATFORMS.values()],
    )
    plotting.legend_below(figure, axes, 2, f"$n×n×n$, uniform in [-1, 1]; {in_legend(rows)}")
    return figure


def finding(rows: list[Row]) -> str:
    here = _select(rows, "ampere", "uniform")
    lengths = sorted({row["n"] for row in here})

    def factor(name: str, measure: str, *, loop: bool) -> float:
        """The mean over n of the ratio of the mean errors, as the paper averages runs."""
        of = Reading(loop, "chain")
        means = [
            [np.mean([row[of.column(each, measure)] for row in here if row["n"] == n]) for n in lengths]
            for each in (name, "LE-GEMM")
        ]
        return float(np.mean(np.divide(means[0], means[1])))

    printed = {measure: dict(zip(NAMES, PUBLISHED[measure]["ampere"], strict=True)) for measure in PUBLISHED}
    l2 = [float(np.mean([row["LE-GEMM l2"] / row["SGEMM l2"] for row in here if row["n"] == n])) for n in lengths]
    return paragraph(
        *(
            (
                f"on the A800 the {LABELS[measure]} of {name} divided by LE-GEMM's is",
                {loop: factor(name, measure, loop=in_loop) for loop, in_loop in _LOOPS.items()}
                | {"printed": printed[measure][name]},
                ".3g×",
            )
            for measure in ("mred", "max_error")
            for name in ("Markidis", "Ootomo")
        ),
        (
            f"there its relative L2 error divided by an fp32 chain's is, for n = {lengths[0]} to {lengths[-1]}",
            l2,
            ".2g×",
        ),
    )


_COLUMNS = [
    f"{name} {what} {ref}"
    for name in METHODS
    for what in (*METRICS, "range", "width", "median")
    for ref in _REFERENCES.values()
]
DIGITS = dict.fromkeys(
    [
        *_COLUMNS,
        *(f"{name} {what} exact" for name in _SINGLE for what in METRICS),
        *(f"{name} l2" for name in ("LE-GEMM", *_SINGLE)),
    ],
    5,
)
"""The claims need no more, and the file stays small."""
QUICK = {"lengths": (64, 128, 256), "normal": (64,), "histogram": 256, "runs": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK, digits=DIGITS)
