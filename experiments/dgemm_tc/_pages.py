"""DGEMM-TC, figures 3 and 8: the error of DGEMM-TC in DP mode and of SGEMM-TC over n, beside DGEMM and SGEMM."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpemu import inputs, library, metrics, plotting, reference, schemes
from fpemu.library.emulation import predict_entries
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._numeric import unit as unit_of
from .._rows import Row, in_legend, runs_by, size_axis

PHI = (0.1, 1.0, 2.0)
ASSUMPTIONS = [
    """The summation orders of cublasDgemm and cublasSgemm of CUDA 10.2 on a Titan RTX are not known. Three other orders
    are computed instead: one chain of fused multiply-adds in ascending k; OpenBLAS 0.3.31 with its SkylakeX kernel; and
    cuBLAS 13.1 on an H200 for an n x n x n product, tabulated up to n = 2048. For DGEMM this last order is one chain,
    also at n = 4096 to 10240 on that GPU, so the chain decides the claim on cublasDgemm.""",
    """DGEMM-TC counts as equivalent if its largest relative error is at most 10 times the largest relative error of
    DGEMM on the same operands, at every n. The paper states neither numbers nor a tolerance. A first criterion was
    two-sided, within a factor of 10 either way; it is one-sided now, because a method must not fail for being more
    accurate.""",
    """The reference is the exact product rounded once to the output format; the paper computes it by MPFR with 2048
    bits.""",
    """The paper's products are n x n x n. Here every product has 64 x 64 entries and k = n, from a subset of the rows
    of A and of the columns of B. The largest error of n² entries is larger for all methods, and Algorithm 3 may need
    one slice less for fewer rows.""",
    """Algorithm 3 as printed chooses the number of slices once; in the paper it does so for each block of 3584 rows and
    columns. If A has fewer slices, the paper does not state the number of slices of B; here the criterion of Algorithm
    3 on the other side, (e^T|A|)|B_q|, determines it.""",
    "The paper averages 10 runs; this page has 3 seeds at quick size and 20 at full size.",
]
LENGTHS = (256, 512, 1024, 2048, 4096, 7168, 10240)
TABULATED = 2048
READINGS = {
    "chain": "one chain of FMAs",  # also cuBLAS' order of DGEMM on an H200
    "OpenBLAS": "OpenBLAS 0.3.31, SkylakeX",
    "cuBLAS": f"cuBLAS 13.1 on an H200, n up to {TABULATED}",
}


TITAN = "turing"
"""The architecture of the paper's GPU."""


def unit(given: Mapping[str, Any]) -> str:
    """The statement on the matrix unit."""
    if given["hardware"] == TITAN:
        return """The Turing row of the catalogue (documented in the literature) models the tensor cores of the Titan
        RTX. Every product of slices is exact there, so the V100 and every later GPU return the same bits."""
    return f"The matrix unit is {unit_of(given['hardware'])} in place of the Titan RTX's."


def cost(cell: Row) -> float:
    return float(cell["n"] * cell["rows"] * (cell["rows"] + 2000))  # the second term: drawing and splitting


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """Largest relative errors, and the number of entries in CR mode that are not the exact product rounded once."""
    n, rows, mode = cell["n"], cell["rows"], cell["mode"]
    plain, precision = {"DP": ("dgemm", "fp64"), "SP": ("sgemm", "fp32")}[mode]
    A, B = inputs.operands(cell["inputs"], rows, rows, n, cell["seed"], dtype=precision, phi=cell["phi"])
    exact = reference.matmul(A, B, out=precision, method="flint" if n * rows**2 <= 2**25 else "auto", device=device)
    common = {"scheme": "ozaki", "hardware": cell["hardware"], "device": device}
    results = {
        "chain": schemes.gemm(A, B, scheme=plain, device=device),
        "OpenBLAS": library.emulate("openblas", A, B, hardware="SKYLAKEX", version="0.3.31", device=device),
        "TC": schemes.gemm(A, B, mode=mode, slices="printed", **common),
        "CR": schemes.gemm(A, B, mode="CR", precision=precision, **common),
    }
    if n <= TABULATED:
        results["cuBLAS"] = _cublas(A, B, precision, device)
    errors = {name: metrics.max_relative(D, exact) for name, D in results.items()}
    return errors | {"CR differing": float(np.count_nonzero(results["CR"] != exact))}


def _cublas(A: Any, B: Any, precision: str, device: Device) -> Any:
    """The first rows and columns of the n x n x n product of cuBLAS on an H200."""
    n = A.shape[1]
    product, (rows, columns) = library.lookup("cublas", precision, (n, n, n)), map(np.arange, (len(A), B.shape[1]))
    return predict_entries(product, A, B, rows, columns, device=device)


@dataclass(frozen=True)
class Accuracy:
    """The figure of one mode."""

    mode: str
    figure: str
    plain: str
    ours: str
    precision: tuple[str, int]

    def page(self) -> Page:
        return Page(
            f"Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores (2020), {self.figure}",
            f"""Largest relative error against the exact product rounded to {self.precision[0]} over n,
            operands (rand - 0.5)·exp(φ·randn): {self.plain} in three summation orders and {self.ours} on a matrix
            unit. CR mode has no line: its error is zero.""",
            lambda given: [unit(given), *ASSUMPTIONS],
            self.cells,
            evaluate,
            self.draw,
            self.measures,
            self.finding,
            cost=cost,
            quick={"seeds": 3},
            version=2,
        )

    def cells(
        self, lengths: tuple[int, ...] = LENGTHS, rows: int = 64, seeds: int = 20, hardware: str = TITAN
    ) -> list[Row]:
        common = {"hardware": hardware, "inputs": "phi", "mode": self.mode}
        return [
            {**common, "phi": phi, "n": n, "rows": rows, "seed": seed}
            for n in lengths
            for phi in PHI
            for seed in range(seeds)
        ]

    def draw(self, rows: list[Row]) -> Any:
        figure, axes = plotting.figure(1, len(PHI), height=5.6)
        looks = {
            "chain": Series(f"{self.plain}, one chain", plotting.BLACK, "s", "--", filled=False),
            "OpenBLAS": Series(f"{self.plain}, OpenBLAS", plotting.BLUE, "^", "-.", filled=False),
            "cuBLAS": Series(f"{self.plain}, cuBLAS (H200)", plotting.GREEN, "x", ":"),
            "TC": Series(self.ours, plotting.VERMILION, "o"),
        }
        lengths = sorted({row["n"] for row in rows})
        for axis, phi in zip(axes[:, 0], PHI, strict=True):
            for method, look in looks.items():
                runs = {n: errors for n in lengths if (errors := _runs(rows, phi, n, method))}
                plotting.band(axis, list(runs), list(runs.values()), look)
            size_axis(axis, lengths)
            axis.set_xticks(lengths, [str(n) for n in lengths], rotation=45)
            axis.set(yscale="log", ylabel="largest relative error")
            label, bits = self.precision
            plotting.roundoff_guides(axis, {f"$u_{{\\mathrm{{{label}}}}}=2^{{-{bits}}}$": bits})
        axes[-1, 0].set_xlabel("$n$")
        plotting.panel_titles(axes, [f"$\\varphi$ = {phi:g}" for phi in PHI])
        title = f"{in_legend(rows)}, {rows[0]['rows']} × {rows[0]['rows']} entries, $k = n$"
        plotting.legend_below(figure, axes[0, 0], 2, title=title)
        return figure

    def measures(self, rows: list[Row]) -> Iterator[Measure]:
        kind = self.mode.lower()
        for phi in PHI:
            for method, reading in READINGS.items():
                if ratios := _ratios(rows, phi, method):
                    if self.mode == "SP":
                        yield Measure("sp_equivalent", max(ratios), reading, f"φ = {phi:g}")
                    elif method != "cuBLAS":  # equal to the chain up to n = 2048
                        claim = "dp_equivalent" if method == "chain" else "dp_openblas"
                        yield Measure(claim, max(ratios), variant=f"φ = {phi:g}")
            differing = sum(row["CR differing"] for row in rows if row["phi"] == phi)
            yield Measure(f"cr_zero_{kind}", differing, variant=f"φ = {phi:g}")

    def finding(self, rows: list[Row]) -> str:
        spans = {f"{READINGS[m]}:": [x for phi in PHI for x in _ratios(rows, phi, m)] for m in READINGS}
        return paragraph(
            (
                f"the errors of {self.ours} divided by the errors of {self.plain}, means over the seeds, are",
                spans,
                ".2g×",
            )
        )


def _ratios(rows: list[Row], phi: float, method: str) -> list[float]:
    """Error of the scheme over DGEMM's (SGEMM's), means over the seeds, for every n with both."""
    pairs = [(_runs(rows, phi, n, "TC"), _runs(rows, phi, n, method)) for n in sorted({row["n"] for row in rows})]
    return [float(np.mean(ours) / np.mean(other)) for ours, other in pairs if ours and other]


_runs = runs_by("phi", "n")

PAGES = {
    "fig3": Accuracy("DP", "section 5.2, figure 3", "DGEMM", "DGEMM-TC", ("fp64", 53)).page(),
    "fig8": Accuracy("SP", "section 5.3, figure 8", "SGEMM", "SGEMM-TC", ("fp32", 24)).page(),
}
