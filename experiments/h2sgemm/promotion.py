"""Error of H2SGEMM over the promotion interval of the main accumulator.

No claim on promotion is published for H2SGEMM. Ootomo and Yokota add the result of every instruction outside, in fp32
to nearest, because tensor cores truncate. A bit-exact model determines the necessary interval, and the hardware on
which promotion reduces the error, without that hardware. Here the accumulator of h·h restarts from zero after P
products, from P of one instruction to no promotion.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.schemes.h2sgemm import H2sgemm

from .._findings import paragraph
from .._numeric import problem
from .._rows import Row
from ._methods import sizes_and_runs

PAPER = "H2SGEMM (2025), section 4.1; promotion as in Ootomo and Yokota, IJHPCA 36(4), 2022"
CAPTION = """Term-wise H2SGEMM, sb = 12, offset exponent 0: relative L2 error against the exact product over the
promotion interval P, the number of products after which the accumulator of h·h restarts from zero and is added outside
in fp32 to nearest; right end: never. Operands uniform in (a) [-1, 1] and (b) [0, 1]; black: SGEMM in one chain of
FMAs; dotted: the unit roundoff of fp32. Lines: median over the seeds; bands: quartiles. Hopper and
Blackwell lie on each other; CDNA 3 rests on the literature; "ideal" adds 16 products exactly and rounds to nearest."""
ASSUMPTIONS = [
    """Only the accumulator of h·h is promoted, as in Ootomo and Yokota's method; each of the two corrections, which are
    2^11 times smaller, is accumulated in one chain.""",
    "P = 16 is one instruction of fp16 products on all architectures (on Ampere two blocks of 8).",
    "SGEMM is one ascending chain of fp32 FMAs for each element.",
    "The best interval is the one with the smallest mean error over the runs.",
]

HARDWARE = ("ampere", "hopper", "blackwell", "cdna3", "ideal")
KINDS = {"offset_symmetric": "uniform in $[-1,\\,1]$", "offset_nonnegative": "uniform in $[0,\\,1]$"}
NAMES = {"offset_symmetric": "[-1, 1]", "offset_nonnegative": "[0, 1]"}


def cells(
    m: int = 48,
    k: int = 16384,
    runs: int = 20,
    intervals: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 0),
) -> list[Row]:
    """`promote` 0 stands for never; without hardware the cell is SGEMM's."""
    return [
        {"inputs": kind, "seed": seed, "hardware": gpu, "promote": interval, "k": k, "m": m, "n": m}
        for kind in KINDS
        for seed in range(runs)
        for gpu, interval in [("", 0), *((gpu, interval) for gpu in HARDWARE for interval in intervals)]
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, exact = problem(cell["inputs"], cell["m"], cell["n"], cell["k"], cell["seed"], device, exponent=0)
    if cell["hardware"]:
        scheme = H2sgemm(sb=12, promote=cell["promote"] or None)
        D = schemes.gemm(A, B, scheme=scheme, hardware=cell["hardware"], device=device)
    else:
        D = schemes.gemm(A, B, scheme="sgemm", hardware=None, device=device)
    return {"error": metrics.relative_l2(D, exact)}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=5.6)
    intervals, k = _intervals(rows), rows[0]["k"]
    never = 2 * k if intervals[-1] == 0 else 0
    places = [interval or never for interval in intervals]
    for axis, kind in zip(axes[:, 0], KINDS, strict=True):
        for gpu in HARDWARE:
            look = plotting.HARDWARE[gpu]
            if gpu == "blackwell":  # the same bits as Hopper: a ring around its marker
                look = Series(look.label, look.color, "o", ":", filled=False)
            runs = [_runs(rows, kind, gpu, interval) for interval in intervals]
            ring = {"markersize": 7.5, "zorder": 1.9} if gpu == "blackwell" else {}
            plotting.band(axis, places, runs, look, **ring)
        plain = _runs(rows, kind, "", 0)
        chain = Series("SGEMM (fp32), one chain", plotting.BLACK, "", "--")
        plotting.band(axis, places, [plain] * len(places), chain)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(places, [str(interval) if interval else "never" for interval in intervals])
        axis.tick_params(axis="x", which="minor", bottom=False)
        plotting.roundoff_guides(axis, plotting.U24)
        axis.set_ylabel("relative $L_2$ error")
    axes[-1, 0].set_xlabel("promotion interval $P$ in products")
    plotting.panel_titles(axes, list(KINDS.values()))
    plotting.legend_below(figure, axes, 2, sizes_and_runs(rows))
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for kind, name in NAMES.items():
        plain = float(np.mean(_runs(rows, kind, "", 0)))
        for gpu in ("ampere", "hopper", "blackwell"):
            if errors := _runs(rows, kind, gpu, 64):
                yield Measure("promotion_beats_chain", plain / float(np.mean(errors)), variant=f"{gpu}, {name}")


def finding(rows: list[Row]) -> str:
    intervals, k = _intervals(rows), rows[0]["k"]
    statements: list[tuple[Any, ...]] = []
    for kind, name in NAMES.items():
        plain, texts = float(np.mean(_runs(rows, kind, "", 0))), {}
        for gpu in HARDWARE:
            error = {interval: float(np.mean(_runs(rows, kind, gpu, interval))) for interval in intervals}
            best = min(error, key=error.__getitem__)
            better = [interval for interval in intervals if error[interval] < plain]
            reach = f"at P = {', '.join(str(p or 'never') for p in better)} only" if better else ""
            if better and better == intervals[: len(better)]:
                reach = "at every P" if better == intervals else f"up to P = {better[-1]}"
            best_text = f"promotion at P = {best}" if best else "no promotion"
            gain = f"{best_text} has the smallest error, {error[0] / error[best]:.3g}× smaller than without promotion"
            texts[f"{plotting.HARDWARE[gpu].label}:"] = (
                f"{gain}, and is more accurate than SGEMM {reach}" if reach else f"{gain}, and is never more accurate"
            )
        statements.append((f"for operands in {name}, k = {k}, the best intervals are", texts))
    return paragraph(*statements)


def _intervals(rows: list[Row]) -> list[int]:
    """Those of the rows, ascending, never (0) last."""
    return sorted({row["promote"] for row in rows if row["hardware"]}, key=lambda interval: (interval == 0, interval))


def _runs(rows: list[Row], kind: str, gpu: str, interval: int) -> list[float]:
    return [row["error"] for row in rows if (row["inputs"], row["hardware"], row["promote"]) == (kind, gpu, interval)]


QUICK = {"m": 24, "k": 4096, "runs": 3, "intervals": (16, 64, 256, 1024, 0)}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, quick=QUICK)
