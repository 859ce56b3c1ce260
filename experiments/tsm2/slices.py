"""TSM2 and ISM2: equal bits of all versions, and the error of a kernel that divides k into slices.

In all versions of the paper one thread processes all k of an element, so the result does not depend on their
parameters. On shapes with few rows most of a GPU is then idle. A kernel that fills the GPU must divide k into slices,
one for each block of threads, and add the sums of the slices, which changes the bits and the error.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import inputs, metrics, mma, plotting
from fpemu.mma.device import Device
from fpemu.mma.order import Join
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.simt import gemm
from fpemu.simt.tallskinny import VERSIONS, ism2, tsm2

from .._findings import paragraph
from .._numeric import product_in_two
from .._rows import Row, in_legend, runs_by, size_axis
from ._chains import FORMATS, LOOK, NEAR, expected, on_powers, relative_l2
from ._chains import PAPER as PAPER

CAPTION = """16 rows times k×8, k = 10240, against the exact product. (a) Relative L2 error over the number of slices of
k, operands uniform in [0, 1], in units of the roundoff u; 1 is the chain of TSM2 and ISM2. Line: growth expected of
independent roundings, slices added in ascending order, without a fitted parameter. (b) The same for operands in
[-1, 1]."""
ASSUMPTIONS = [
    "Operands are uniform in [0, 1], as in the paper, and in [-1, 1]. There are 16 rows, which are independent.",
    """No version of the paper divides k. The slices have equal length; each is a chain of fused multiply-adds from
    zero, and the sums of the slices are added in the format of the operands.""",
    """The published loops of TSM2's four versions and ISM2's two optimisations are executed for the first 4 rows and 96
    of k, and compared bit for bit with one chain.""",
    "An expected error agrees with a measured one if it is within 10 %.",
]
KINDS = {"positive": 0.0, "zero mean": -1.0}
JOINS: tuple[Join, ...] = ("ascending", "pairwise")
WALKED = (4, 96)
"""Rows and k of the published loops."""


_COUNTS = tuple(2**i for i in range(12))


def cells(counts: tuple[int, ...] = _COUNTS, runs: int = 20) -> list[Row]:
    return [
        {"inputs": "uniform", "low": low, "format": fmt, "m": 16, "n": 8, "k": 10240, "slices": slices, "seed": seed}
        for slices in counts
        for low in KINDS.values()
        for fmt in FORMATS
        for seed in range(runs)
    ]


def cost(cell: Row) -> float:
    return float(cell["m"] * cell["n"] * cell["k"] + 10**6)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    fmt = cell["format"]
    A, B = inputs.operands(
        cell["inputs"], cell["m"], cell["n"], cell["k"], cell["seed"], fmt, low=cell["low"], high=1.0
    )
    chain = tsm2(A, B, fmt=fmt)
    head, tail = product_in_two(A, B, device)
    numbers = {}
    for join in JOINS:
        order = mma.KOrder(split=-(-cell["k"] // cell["slices"]), join=join)
        D = gemm(A, B, fmt=fmt, order=order, device=device)
        numbers[f"{join} relative_l2"] = relative_l2(D, head, tail)
        numbers[f"{join} normwise"] = metrics.normwise(D.astype(np.float64), head, A, B)
        numbers[f"{join} differing"] = float(np.mean(chain != D))
    if cell["slices"] == 1:
        rows, k = WALKED
        numbers["versions differing"] = _differing(A[:rows, :k], B[:k], fmt, device=device)
    return numbers


def _differing(A: Any, B: Any, fmt: str, device: Device = "cpu") -> float:
    """Count the entries of all versions and optimisations whose bits are not the chain's."""
    chain = gemm(A, B, fmt=fmt, device=device)
    forms = [tsm2(A, B, version=version, fmt=fmt, backend="numpy") for version in VERSIONS]
    forms += [tsm2(A, B, version="V3", t1=32, t2=3, t3=8, fmt=fmt, backend="numpy")]
    forms += [ism2(A, B, optimisation=i, tcf=2, t1=2, t2=4, t3=2, fmt=fmt, backend="numpy") for i in (1, 2)]
    return float(sum(np.count_nonzero(chain != D) for D in forms))


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=4.8)
    points, k = _slices(rows), rows[0]["k"]
    for axis, low in zip(axes[:, 0], KINDS.values(), strict=True):
        for fmt, bits in FORMATS.items():
            wide = fmt == "fp64"  # beneath the other, so that both show where they coincide
            for join in JOINS:
                runs = [[x * 2.0**bits for x in _runs(rows, low, fmt, s, f"{join} relative_l2")] for s in points]
                dash, filled = ("-", True) if join == "ascending" else ("--", False)
                look = Series(f"{fmt}, added {join}", LOOK[fmt].color, LOOK[fmt].marker, dash, filled)
                plotting.band(axis, points, runs, look, markersize=6.5 if wide else 3.5, zorder=3 - 0.1 * wide)
        on_powers(axis, "")
        axis.set_ylabel("relative $L_2$ error / $u$")
    line = [expected(k, 24, s) * 2.0**24 for s in points]
    axes[0, 0].plot(points, line, color=plotting.BLACK, linewidth=0.8, zorder=2, label="independent roundings")
    size_axis(axes[-1, 0], points)
    axes[-1, 0].set_xlabel("slices of $k$")
    plotting.panel_titles(axes, ["operands in [0, 1]", "operands in [-1, 1]"])
    sides = "{m}×{k} times {k}×{n}".format(**rows[0])
    plotting.legend_below(figure, axes, 2, f"{sides}; {in_legend(rows)}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    walked = [row["versions differing"] for row in rows if "versions differing" in row]
    if walked:
        yield Measure("versions_are_one_chain", sum(walked))
    for kind, low in KINDS.items():
        for fmt in FORMATS:
            if errors := _errors(rows, low, fmt, "pairwise"):
                chain = errors.pop(1, None)
                if chain and errors:
                    yield Measure("pairwise_slices", max(errors.values()) / chain, variant=f"{fmt}, {kind}")


def finding(rows: list[Row]) -> str:
    ratios = [
        error / expected(rows[0]["k"], bits, s)
        for fmt, bits in FORMATS.items()
        for s, error in _errors(rows, 0.0, fmt, "ascending").items()
    ]
    statements: list[tuple[Any, ...]] = [
        (
            "positive data: the error of slices in ascending order is {} times the error of independent roundings",
            ratios,
            ".3f",
        ),
        (
            "it is within 10 % at {} points",
            f"{sum(abs(r - 1) <= NEAR for r in ratios)} of {len(ratios)}" if ratios else "",
        ),
    ]
    for kind, low in KINDS.items():
        error, pairwise = ({s: 2.0**24 * x for s, x in _errors(rows, low, "fp32", join).items()} for join in JOINS)
        if 1 in error:
            best, last = min(error, key=error.__getitem__), max(error)
            units = {"one chain": error[1], f"{best} slices, the best number": error[best]}
            units |= {f"{last} slices ascending": error[last], f"{last} slices pairwise": pairwise[last]}
            statements.append((f"{kind}, fp32: the errors in units of u are", units))
    differ = [row["ascending differing"] for row in rows if row["slices"] > 1]
    return paragraph(
        *statements, ("the division of k into slices changes the bits of {} of the entries", differ, ".3g%")
    )


def _slices(rows: list[Row]) -> list[int]:
    return sorted({row["slices"] for row in rows})


def _errors(rows: list[Row], low: float, fmt: str, join: str) -> dict[int, float]:
    """The mean relative L2 error by the number of slices."""
    runs = {s: _runs(rows, low, fmt, s, f"{join} relative_l2") for s in _slices(rows)}
    return {s: float(np.mean(errors)) for s, errors in runs.items() if errors}


_runs = runs_by("low", "format", "slices")


QUICK = {"counts": tuple(4**i for i in range(6)), "runs": 3}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK)
