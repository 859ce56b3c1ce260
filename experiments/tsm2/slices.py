"""TSM2 and ISM2: every version gives the same bits, and what a kernel that cuts k in slices would do instead.

In all versions of the paper one thread takes all k of an element, so none of their parameters shows in the result. On
shapes with few rows that leaves a GPU idle, and a kernel that fills it must cut k in slices, one for each block of
threads, and add the slices' sums. That changes the bits: here is what it does to the error.

The growth model is that of `tsm2/accuracy`, for both stages: sums of positive data grow evenly, and every rounding is
off by an error uniform in half a unit in the last place either way, independent of the others. A slice of k / s errs
like a chain of that length, s of them average out, and adding them ascending is a chain of s roundings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpemu import inputs, metrics, mma, plotting
from fpemu.mma._device import Device
from fpemu.mma.order import Join
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share
from fpemu.simt import gemm
from fpemu.simt.ism2 import ism2
from fpemu.simt.tsm2 import VERSIONS, tsm2

from .._findings import paragraph
from .._numeric import product_in_two
from .._rows import runs_by

PAPER = """Rivera, Chen, Xiong, Song, Tao: ISM2: optimizing irregular-shaped matrix-matrix multiplication on GPUs
(2020), Algorithms 1 to 4, 6 and 7"""
EXPLAINS = ("tsm2/slices",)
TITLE = "the versions of TSM2 and ISM2, and slices of k"
CAPTION = """16 rows times k×8, k = 10240, against the exact product. (a) Relative L2 error over the number of slices
that k is cut in, operands uniform in [0, 1], in units of the roundoff u; 1 is the chain of TSM2 and ISM2. Slices are
added ascending (filled) or pairwise (open). Black line: growth expected of independent roundings, slices added
ascending, nothing fitted. (b) The same for operands in [-1, 1]. Lines: mean over seeded runs; bands: smallest to
largest. Beside that, the loops of all four versions of TSM2 and both optimisations of ISM2 are walked as published over
the first 4 rows and 96 of k."""
ASSUMPTIONS = [
    "Operands are uniform in [0, 1], as in the paper, and in [-1, 1]. Rows do not influence one another: 16 of them.",
    """No version of the paper cuts k. Slices are those of a kernel that would: each a chain of fused multiply-adds from
    zero over as many k as the others, their sums added in the format of the operands.""",
    "An expected error agrees with a measured one if it is within 10 %.",
]
FORMATS = {"fp32": 24, "fp64": 53}
KINDS = {"positive": 0.0, "zero mean": -1.0}
JOINS: tuple[Join, ...] = ("ascending", "pairwise")
WALKED = (4, 96)
"""Rows and k of the walk through the published loops."""
_SIZES: dict[str, dict[str, Any]] = {
    "quick": {"slices": [4**i for i in range(6)], "runs": 3},
    "full": {"slices": [2**i for i in range(12)], "runs": 20},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {"inputs": "uniform", "low": low, "format": fmt, "m": 16, "n": 8, "k": 10240, "slices": slices, "seed": seed}
        for slices in chosen["slices"]
        for low in KINDS.values()
        for fmt in FORMATS
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["m"] * cell["n"] * cell["k"] + 10**6)


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
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
        error = (D.astype(np.float64) - head) - tail
        numbers[f"{join} relative_l2"] = float(np.sqrt(np.sum(error**2) / np.sum(head**2)))
        numbers[f"{join} normwise"] = metrics.normwise(D.astype(np.float64), head, A, B)
        numbers[f"{join} differing"] = float(np.mean(chain != D))
    if cell["slices"] == 1:
        rows, k = WALKED
        numbers["versions differing"] = _differing(A[:rows, :k], B[:k], fmt, device=device)
    return numbers


def _differing(A: Any, B: Any, fmt: str, device: Device = "cpu") -> float:
    """Entries of all versions and optimisations, walked as published, whose bits are not the chain's."""
    chain = gemm(A, B, fmt=fmt, device=device)
    forms = [tsm2(A, B, version=version, fmt=fmt, backend="numpy") for version in VERSIONS]
    forms += [tsm2(A, B, version="V3", t1=32, t2=3, t3=8, fmt=fmt, backend="numpy")]
    forms += [ism2(A, B, optimisation=i, tcf=2, t1=2, t2=4, t3=2, fmt=fmt, backend="numpy") for i in (1, 2)]
    return float(sum(np.count_nonzero(chain != D) for D in forms))


def expected(k: int, slices: int, bits: int) -> float:
    """The rms relative error that the growth model gives, slices added ascending."""
    chain, size = _variance(-(-k // slices), 0.25, bits), k / 4
    joined = np.arange(2, slices + 1) * size / slices
    total = slices * chain + np.sum(np.ldexp(1.0, np.frexp(joined)[1] - bits) ** 2) / 12
    return float(np.sqrt(total) / size)


def _variance(steps: int, each: float, bits: int) -> float:
    sums = np.arange(1, steps + 1) * each
    return float(np.sum(np.ldexp(1.0, np.frexp(sums)[1] - bits) ** 2) / 12)


_COLORS = {"fp32": plotting.VERMILION, "fp64": plotting.BLUE}


def _look(fmt: str, join: str) -> Series:
    marker = "o" if fmt == "fp32" else "s"
    ascending = join == "ascending"
    return Series(f"{fmt}, {join}", _COLORS[fmt], marker, "-" if ascending else "--", filled=ascending)


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, height=3.0, share_y=True)
    points = sorted({row["slices"] for row in rows})
    k = rows[0]["k"]
    for axis, low in zip(axes[0], KINDS.values(), strict=True):
        for fmt, bits in FORMATS.items():
            wide = fmt == "fp64"  # beneath the other, so that both show where they coincide
            for join in JOINS:
                runs = [[x * 2.0**bits for x in _runs(rows, low, fmt, s, f"{join} relative_l2")] for s in points]
                plotting.band(
                    axis, points, runs, _look(fmt, join), markersize=6.5 if wide else 3.5, zorder=3 - 0.1 * wide
                )
        axis.set_xscale("log", base=4)
        axis.set_xlabel("slices of $k$")
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.set_yscale("log")
    line = [expected(k, s, 24) * 2.0**24 for s in points]
    axes[0, 0].plot(points, line, color=plotting.BLACK, linewidth=0.8, zorder=4, label="expected, ascending")
    axes[0, 0].set_ylabel("relative $L_2$ error / $u$")
    plotting.panel_titles(axes, ["positive", "zero mean"])
    plotting.legend_below(figure, axes[0, 0], 3)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Checks of our own: the paper says nothing about errors."""
    walked = [row["versions differing"] for row in rows if row["slices"] == 1]
    points = [(low, fmt, s) for low in KINDS.values() for fmt in FORMATS for s in _slices(rows) if s > 1]
    selected = [p for p in points if _has(rows, *p) and _has(rows, p[0], p[1], 1)]
    ratios = [_mean(rows, *p, "pairwise") / _mean(rows, p[0], p[1], 1, "ascending") for p in selected]
    text = f"{min(ratios):.2g} to {max(ratios):.2g} times the error" if ratios else "no points"
    return [
        share(
            "TSM2's four versions and ISM2's two optimisations give the bits of one chain",
            "",
            [x == 0 for x in walked],
            f"{sum(walked):.0f} entries differ",
        ),
        share("slices of k added pairwise err less than one chain", "", [r < 1 for r in ratios], text),
    ]


def finding(rows: list[dict[str, Any]]) -> str:
    k, points = rows[0]["k"], _slices(rows)
    ratios = [
        _mean(rows, 0.0, fmt, s, "ascending") / expected(k, s, bits)
        for fmt, bits in FORMATS.items()
        for s in points
        if _has(rows, 0.0, fmt, s)
    ]
    statements: list[tuple[Any, ...]] = [
        ("positive data: error of slices added ascending over that of independent roundings", ratios, ".3f"),
        ("points within 10 %", f"{sum(abs(r - 1) <= 0.1 for r in ratios)} of {len(ratios)}" if ratios else ""),
    ]
    for kind, low in KINDS.items():
        cut = [s for s in points if _has(rows, low, "fp32", s) and _has(rows, low, "fp32", 1)]
        if cut:
            error = {s: 2.0**24 * _mean(rows, low, "fp32", s, "ascending") for s in cut}
            best, last = min(cut, key=error.__getitem__), cut[-1]
            units = {"one chain": error[1], f"{best} slices, the best number": error[best]}
            units[f"{last} slices ascending"] = error[last]
            units["and pairwise"] = 2.0**24 * _mean(rows, low, "fp32", last, "pairwise")
            statements.append((f"{kind}, fp32, errors in units of u", units))
    differ = [row["ascending differing"] for row in rows if row["slices"] > 1]
    return paragraph(*statements, ("entries whose bits change where k is cut", differ, ".3g%"))


def _slices(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["slices"] for row in rows})


def _has(rows: list[dict[str, Any]], low: float, fmt: str, slices: int) -> bool:
    return any((row["low"], row["format"], row["slices"]) == (low, fmt, slices) for row in rows)


_runs = runs_by("low", "format", "slices")


def _mean(rows: list[dict[str, Any]], low: float, fmt: str, slices: int, join: str) -> float:
    return float(np.mean(_runs(rows, low, fmt, slices, f"{join} relative_l2")))
