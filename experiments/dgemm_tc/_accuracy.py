"""DGEMM-TC, section 5: the cells of figures 3 and 8, one product by the ordinary chain, by DGEMM-TC and in CR mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import inputs, metrics, plotting, reference, schemes
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import FAILS, HOLDS, Claim, share

from .._rows import listed, runs_by

PAPER = "Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores, ISC High Performance 2020, section 5"
PHI = (0.1, 1.0, 2.0)
FACTOR = 10.0
"""Errors within this factor of one another count as equivalent."""
ASSUMPTIONS = [
    """Tensor cores of the Titan RTX: the Turing row of the catalog (claimed in the literature). Every product of
    slices is exact there, so that V100 and every later GPU give the same bits.""",
    """cublasDgemm and cublasSgemm are one ascending chain of FMAs for each element: the order of cuBLAS is not known.
    An order in several partial sums errs less.""",
    f""""Equivalent" means within a factor of {FACTOR:g} either way, errors being means over the runs; the paper prints
    no numbers.""",
    """The reference is the exact product rounded once to the output format, by FLINT's integers for the smaller
    products and by error-free slices in fp64 for the others; the paper used MPFR at 2048 bits.""",
    """The paper's products are n×n×n. Here k = n always, but A has 64 rows and B 64 columns at quick size, n up to 2048
    and 256 above at full size: maxima over fewer entries, and over fewer rows in Algorithm 3, which then may take a
    slice less.""",
    "Algorithm 3 chooses the number of slices once; the paper does so for every block of 3584 rows and columns.",
    "The paper averages 10 runs; here 3 at quick size, at full size 10 to n = 512, 3 at 1024 and one above.",
]
_QUICK = {n: (64, 3) for n in (256, 512, 1024, 2048, 4096, 7168, 10240)}
_SIZES: dict[str, dict[int, tuple[int, int]]] = {
    "quick": _QUICK,
    "full": {256: (256, 10), 512: (512, 10), 1024: (1024, 3), 2048: (2048, 1)}
    | {n: (256, 1) for n in (4096, 7168, 10240)},
}
"""Rows and runs of each n."""


def cells(size: str, mode: str) -> list[dict[str, Any]]:
    return [
        {"hardware": "turing", "inputs": "phi", "mode": mode, "phi": phi, "n": n, "rows": rows, "seed": seed}
        for n, (rows, runs) in _SIZES[size].items()
        for phi in PHI
        for seed in range(runs)
    ]


def cost(cell: dict[str, Any]) -> float:
    return float(cell["n"] * cell["rows"] * (cell["rows"] + 2000))  # the second part: splitting


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    n, rows, mode = cell["n"], cell["rows"], cell["mode"]
    plain, precision = {"DP": ("dgemm", "fp64"), "SP": ("sgemm", "fp32")}[mode]
    A, B = inputs.operands(cell["inputs"], rows, rows, n, cell["seed"], dtype=precision, phi=cell["phi"])
    exact = reference.matmul(A, B, out=precision, method="flint" if n * rows**2 <= 2**25 else "auto", device=device)
    rounded = schemes.gemm(
        A, B, scheme="ozaki", hardware=cell["hardware"], mode="CR", precision=precision, device=device
    )
    return {
        "GEMM": metrics.max_relative(schemes.gemm(A, B, scheme=plain, device=device), exact),
        "TC": metrics.max_relative(
            schemes.gemm(A, B, scheme="ozaki", hardware=cell["hardware"], mode=mode, device=device), exact
        ),
        "CR": metrics.max_relative(rounded, exact),
        "CR differing": float(np.count_nonzero(rounded != exact)),
    }


def draw(rows: list[dict[str, Any]], plain: str, ours: str, precision: tuple[str, int]) -> Any:
    """A panel for each phi."""
    figure, axes = plotting.figure(len(PHI), height=2.6)
    lengths = sorted({row["n"] for row in rows})
    looks = {
        "GEMM": Series(plain, plotting.BLACK, "s", "--", filled=False),
        "TC": Series(ours, plotting.VERMILION, "o"),
    }
    label, bits = precision
    for axis, phi in zip(axes[0], PHI, strict=True):
        for method, look in looks.items():
            plotting.band(axis, lengths, [_runs(rows, phi, n, method) for n in lengths], look)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        ticks = [n for n in lengths if n != 7168]  # no room beside 10240
        axis.set_xticks(ticks, [str(n) for n in ticks], rotation=45)
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.set_xlabel("$n$")
        plotting.roundoff_guides(axis, {f"$u_{{\\mathrm{{{label}}}}}=2^{{-{bits}}}$": bits})
    axes[0, 0].set_ylabel("largest relative error")
    plotting.panel_titles(axes, [f"$\\varphi$ = {phi:g}" for phi in PHI])
    plotting.legend_below(figure, axes[0, 0], 2)
    return figure


@listed
def claims(rows: list[dict[str, Any]], plain: str, ours: str) -> Iterator[Claim]:
    lengths = sorted({row["n"] for row in rows})
    for phi in PHI:
        error = {m: np.array([np.mean(_runs(rows, phi, n, m)) for n in lengths]) for m in ("GEMM", "TC")}
        ratio = error["TC"] / error["GEMM"]
        span = f"{np.min(ratio):.2g} to {np.max(ratio):.2g}"
        text = f"{ours} / {plain}, φ = {phi:g}"
        yield share(text, "equivalent", (ratio >= 1 / FACTOR) & (ratio <= FACTOR), span)
        yield share(f"{text}: not above {FACTOR:g}", "no less accurate", ratio <= FACTOR, span)
    for phi in PHI:
        count = sum(row["CR differing"] for row in rows if row["phi"] == phi)
        entries = sum(row["rows"] ** 2 for row in rows if row["phi"] == phi)
        text = f"CR mode, φ = {phi:g}: entries other than the exact product rounded once"
        yield Claim(text, "zero", f"{count:g} of {entries}", FAILS if count else HOLDS, count)


_runs = runs_by("phi", "n")
