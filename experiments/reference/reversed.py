"""SGEMM and DGEMM against themselves: the error in reverse summation order over the error in ascending order.

Two orders of one chain are equally accurate. The scatter of this ratio is the difference of two errors that says
nothing about the accuracy of a method.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import inputs, metrics, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._rows import Row

CAPTION = """Error in reverse summation order over error in ascending order, against the exact product, of SGEMM
(filled) and DGEMM (open) as one chain of fused multiply-adds; products of 32 x 1024 by
1024 x 32."""
ASSUMPTIONS = [
    "SGEMM and DGEMM add one chain of fused multiply-adds for each entry; the second order reverses the inner index.",
    "The largest errors of a product of 32 x 32 entries scatter less than the largest errors of a larger product.",
]
DATA: dict[str, tuple[str, dict[str, float]]] = {
    "uniform in [-1, 1]": ("uniform", {"low": -1.0, "high": 1.0}),
    "uniform in [0, 1]": ("uniform", {"low": 0.0, "high": 1.0}),
    **{f"φ = {phi:g}": ("phi", {"phi": phi}) for phi in (0.1, 1.0, 2.0)},
}
METHODS = {"SGEMM": ("sgemm", "fp32"), "DGEMM": ("dgemm", "fp64")}
METRICS = {
    "relative L2 error": metrics.relative_l2,
    "MRED": metrics.mred,
    "largest relative error": metrics.max_relative,
    "Max_error": metrics.max_error_legemm,
}


def cells(k: int = 1024, runs: int = 20) -> list[Row]:
    return [
        {"method": method, "data": data, "k": k, "seed": seed}
        for method in METHODS
        for data, (name, _) in DATA.items()
        if method == "SGEMM" or name == "phi"
        for seed in range(runs)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    (scheme, precision), (name, parameters) = METHODS[cell["method"]], DATA[cell["data"]]
    A, B = inputs.operands(name, 32, 32, cell["k"], cell["seed"], dtype=precision, **parameters)
    exact = reference.matmul(A, B, out=precision, device=device)
    orders = ((A, B), (np.ascontiguousarray(A[:, ::-1]), np.ascontiguousarray(B[::-1])))
    ascending, reverse = (schemes.gemm(*of, scheme=scheme, hardware="ampere", device=device) for of in orders)
    return {name: error(reverse, exact) / error(ascending, exact) for name, error in METRICS.items()}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, 2, height=3.6)
    looks = {
        "SGEMM": Series("SGEMM", plotting.BLACK, "o", "none"),
        "DGEMM": Series("DGEMM", plotting.BLUE, "s", "none"),
    }
    for axis, name in zip(axes.flat, METRICS, strict=True):
        for shift, (method, look) in zip((-0.15, 0.15), looks.items(), strict=True):
            for place, data in enumerate(DATA):
                runs = [row[name] for row in rows if (row["method"], row["data"]) == (method, data)]
                if runs:
                    low, middle, high = np.quantile(runs, (0.25, 0.5, 0.75))
                    axis.errorbar(place + shift, middle, [[middle - low], [high - middle]], **look.line(label="_"))
        axis.set(yscale="log", ylim=(0.4, 2.8))
        axis.set_yticks([0.5, 1, 2], ["0.5", "1", "2"])
        axis.minorticks_off()
        axis.set_xticks(
            range(len(DATA)),
            [data.removeprefix("uniform in ") for data in DATA],
            rotation=60,
            ha="right",
            rotation_mode="anchor",
        )
    for look in looks.values():
        axes[0, 0].plot([], [], **look.line())
    for axis in axes[:, 0]:
        axis.set_ylabel("reverse / ascending")
    plotting.panel_titles(axes, list(METRICS))
    plotting.legend_below(
        figure, axes[0, 0], 2, title=f"median and quartiles of {len({r['seed'] for r in rows})} seeds"
    )
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for method in METHODS:
        for data in DATA:
            for name in METRICS:
                ratios = [row[name] for row in rows if (row["method"], row["data"]) == (method, data)]
                if ratios:
                    yield Measure("reversed", ratios[0], "", f"{method}, {data}, {name}")


PAGE = Page("No paper", CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, specs=())
