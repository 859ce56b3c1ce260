"""DGEMM-TC, why figures 3 and 8 find it more accurate than DGEMM: the order in which DGEMM adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpemu import inputs, metrics, mma, plotting, reference, schemes, simt
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim

from .._findings import paragraph
from .._rows import runs_by, size_axis
from ._accuracy import FACTOR, PAPER, PHI

__all__ = [
    "ASSUMPTIONS",
    "CAPTION",
    "EXPLAINS",
    "PAPER",
    "TITLE",
    "cells",
    "claims",
    "cost",
    "draw",
    "evaluate",
    "finding",
]

EXPLAINS = ("dgemm_tc/fig3", "dgemm_tc/fig8")
TITLE = "the order of DGEMM against DGEMM-TC"
CAPTION = """Largest relative error of DGEMM (top) and SGEMM (bottom) in several orders over k, over that of DGEMM-TC in
DP mode and SGEMM-TC in SP mode on the same operands, (rand - 0.5)·exp(φ·randn), n up to 10240: one chain of FMAs;
blocks of 64 and 256, each a chain, added one after another; blocks of 16 added pairwise. Lines: mean over seeded runs;
bands: smallest to largest. Shaded: within a factor of 10, what is called equivalent; above it the scheme is the more
accurate one."""
ASSUMPTIONS = [
    """Operands as in figures 3 and 8, but A has 24 rows and B 24 columns at quick size, 128 at full size; k = n. Turing
    tensor cores; on every GPU of the catalog the products of slices are exact, so that the bits are the same.""",
    """Orders of DGEMM: each block is a chain of FMAs from zero, blocks are added in fp64 (SGEMM: fp32) to nearest.
    Which of them is cublasDgemm's on a Titan RTX is not known.""",
    f""""Equivalent" is figure 3's: errors within a factor of {FACTOR:g} either way.""",
]
ORDERS: dict[str, mma.KOrder] = {
    "chain": mma.KOrder(),
    "blocks of 64": mma.KOrder(split=64),
    "blocks of 256": mma.KOrder(split=256),
    "pairwise": mma.KOrder(split=16, join="pairwise"),
}
MODES = {"DP": "fp64", "SP": "fp32"}
_SIZES: dict[str, dict[str, Any]] = {
    "quick": {"lengths": (256, 1024, 4096, 10240), "rows": 24, "runs": 3},
    "full": {"lengths": (256, 512, 1024, 2048, 4096, 7168, 10240), "rows": 128, "runs": 5},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {"hardware": "turing", "inputs": "phi", "mode": mode, "phi": phi, "n": n, "rows": chosen["rows"], "seed": seed}
        for n in chosen["lengths"]
        for phi in PHI
        for mode in MODES
        for seed in range(chosen["runs"])
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["n"] * cell["rows"] * (cell["rows"] + 2000))


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    """Errors of DGEMM-TC (SGEMM-TC) and of DGEMM (SGEMM) in every order, relative to the entry and to |A||B|."""
    fmt, n, rows = MODES[cell["mode"]], cell["n"], cell["rows"]
    A, B = inputs.operands(cell["inputs"], rows, rows, n, cell["seed"], fmt, phi=cell["phi"])
    exact = reference.matmul(A, B, out=fmt, device=device)
    results = {name: simt.gemm(A, B, fmt=fmt, order=order, device=device) for name, order in ORDERS.items()}
    results["TC"] = schemes.gemm(A, B, scheme="ozaki", hardware=cell["hardware"], mode=cell["mode"], device=device)
    numbers = {}
    for name, D in results.items():
        numbers[name] = metrics.max_relative(D, exact)
        numbers[f"{name} normwise"] = metrics.normwise(D, exact, A, B)
    return numbers


_LOOK = {
    "chain": Series("one chain", plotting.BLACK, "s", "--", filled=False),
    "blocks of 256": Series("blocks of 256", plotting.SKY, "^"),
    "blocks of 64": Series("blocks of 64", plotting.BLUE, "D"),
    "pairwise": Series("blocks of 16, pairwise", plotting.VERMILION, "o"),
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(len(PHI), len(MODES), height=4.6)
    lengths = sorted({row["n"] for row in rows})
    for line, mode in zip(axes, MODES, strict=True):
        for axis, phi in zip(line, PHI, strict=True):
            axis.axhspan(1 / FACTOR, FACTOR, color=plotting.GREY, alpha=0.13, linewidth=0)
            for name, look in _LOOK.items():
                plotting.band(axis, lengths, [_ratios(rows, mode, phi, n, name) for n in lengths], look)
            size_axis(axis, lengths)
            axis.set_yscale("log")
        line[0].set_ylabel(f"error of {'DGEMM' if mode == 'DP' else 'SGEMM'} / {mode} mode")
    for axis in axes[-1]:
        axis.set_xlabel("$n$")
    plotting.panel_titles(axes, [f"{mode} mode, $\\varphi$ = {phi:g}" for mode in MODES for phi in PHI])
    plotting.legend_below(figure, axes[0, 0], 4)
    return figure


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """None of its own: those of figures 3 and 8 are explained."""
    return []


def finding(rows: list[dict[str, Any]]) -> str:
    points = [(phi, n) for phi in PHI for n in sorted({row["n"] for row in rows})]
    statements: list[tuple[Any, ...]] = []
    for mode, name in (("DP", "DGEMM"), ("SP", "SGEMM")):
        counts = []
        for suffix, what in (("", "relative to the entries"), (" normwise", "relative to |A||B|")):
            errors = {o: np.array([_mean(rows, mode, p, o + suffix) for p in points]) for o in (*ORDERS, "TC")}
            ratios = {order: errors[order] / errors["TC"] for order in ORDERS}
            near = {o: int(np.count_nonzero((r <= FACTOR) & (r >= 1 / FACTOR))) for o, r in ratios.items()}
            most = np.count_nonzero(errors["chain"] >= np.max([errors[o] for o in ORDERS], axis=0))
            counts.append(near)
            statements += [
                (f"{name}'s error over that of {mode} mode, {what}, at {len(points)} points", ratios, ".3g×"),
                ("points where equivalent", near),
                ("points where no other order errs more than the one chain", most),
            ]
        cancel = all(counts[0][order] < counts[1][order] for order in ORDERS)
        statements.append((f"{name} differs most at entries far below |A||B|, in which the products cancel", cancel))
    return paragraph(*statements)


def _mean(rows: list[dict[str, Any]], mode: str, point: tuple[float, int], column: str) -> float:
    return float(np.mean(_runs(rows, mode, *point, column)))


_runs = runs_by("mode", "phi", "n")


def _ratios(rows: list[dict[str, Any]], mode: str, phi: float, n: int, order: str) -> list[float]:
    pairs = zip(_runs(rows, mode, phi, n, order), _runs(rows, mode, phi, n, "TC"), strict=True)
    return [ours / other for ours, other in pairs]
