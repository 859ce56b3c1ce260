"""H2SGEMM, figure 8: error over the offset exponent of the operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._numeric import problem
from .._rows import listed, runs_by

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 4.1, figure 8"
TITLE = "relative error over the offset exponent"
CAPTION = """Relative L2 error against the exact product over the offset exponent e of the operands, uniform in
(a) [-2^e, 2^e] and (b) [0, 2^e]; grey: every operand is below fp16's normal range. Lines: mean over seeded runs; bands:
smallest to largest run. Ascend 910A cube as an assumed model: no bit-level description is public."""
ASSUMPTIONS = [
    """The cube of the Ascend 910A adds 16 products and the accumulator exactly and rounds once to fp32 (assumed:
    nothing bit-exact is public).""",
    "HGEMM is one product of the operands rounded to fp16, with fp32 accumulation and an fp32 result.",
    """SGEMM is one ascending chain of fp32 FMAs for each element; the paper ran OpenBLAS on a CPU, whose order is not
    given.""",
    """The sizes of figure 8 are not printed: k = 64·44 and m = n = 176, those of figure 9 and section 4.2, at full
    size; m = n = 48 at quick size.""",
    "The offset exponents shown are not printed either: -20 to 0, since the text speaks of non-positive ones.",
    """The claims are checked where fp16 is normal, -14 to 0, the range of the paper's analysis (section 3.1.3); "small"
    exponents are its lower half, -14 to -7. "Similar" means within a factor of 2, "comparable" at most twice SGEMM's
    error, "one to two orders of magnitude" 10 to 1000 times.""",
    "The reference is the exact product, rounded once to fp64, where the paper used DGEMM.",
]

SETTINGS: dict[str, dict[str, Any]] = {
    "HGEMM": {"scheme": "fp16"},
    "SGEMM": {"scheme": "sgemm"},
    **{
        f"sb={sb} {combine}": {"scheme": "h2sgemm", "sb": sb, "combine": combine}
        for sb in (0, 6, 12)
        for combine in ("element-wise", "term-wise")
    },
}
PANELS = {"offset_symmetric": "uniform in $[-2^e,\\,2^e]$", "offset_nonnegative": "uniform in $[0,\\,2^e]$"}
_SIZES = {"quick": {"m": 48, "n": 48, "runs": 3}, "full": {"m": 176, "n": 176, "runs": 10}}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {
            "hardware": "ascend910a",
            "inputs": panel,
            "exponent": exponent,
            "seed": seed,
            "m": chosen["m"],
            "n": chosen["n"],
            "k": 64 * 44,
        }
        for panel in PANELS
        for exponent in range(-20, 1)
        for seed in range(chosen["runs"])
    ]


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    sides = (cell["m"], cell["n"], cell["k"])
    A, B, exact = problem(cell["inputs"], *sides, cell["seed"], device, exponent=cell["exponent"])
    return {
        name: metrics.relative_l2(
            schemes.gemm(A, B, hardware=cell["hardware"], on_range="propagate", device=device, **setting), exact
        )
        for name, setting in SETTINGS.items()
    }


_LOOK = {
    "HGEMM": Series("HGEMM (fp16)", plotting.GREY, "x", "-"),
    "SGEMM": Series("SGEMM (fp32)", plotting.BLACK, "s", "-"),
    "sb=0 element-wise": Series("sb = 0, element-wise", plotting.SKY, "v", "--", filled=False),
    "sb=0 term-wise": Series("sb = 0, term-wise", plotting.SKY, "^"),
    "sb=6 element-wise": Series("sb = 6, element-wise", plotting.ORANGE, "D", "--", filled=False),
    "sb=6 term-wise": Series("sb = 6, term-wise", plotting.ORANGE, "d"),
    "sb=12 element-wise": Series("sb = 12, element-wise", plotting.VERMILION, "o", "--", filled=False),
    "sb=12 term-wise": Series("sb = 12, term-wise", plotting.BLUE, "o"),
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, height=3.1)
    for axis, panel in zip(axes[0], PANELS, strict=True):
        exponents = sorted({row["exponent"] for row in rows})
        axis.axvspan(-21, -14.5, color=plotting.GREY, alpha=0.1, linewidth=0)
        for name, look in _LOOK.items():
            runs = [_runs(rows, panel, e, name) for e in exponents]
            # HGEMM on top: it must show where sb = 0 has lost every residual and lies on it
            plotting.band(axis, exponents, runs, look, zorder=3.0 if name == "HGEMM" else 2.0)
        axis.set_yscale("log")
        axis.set_ylim(bottom=1.2e-8)
        axis.set_xlim(-20.8, 0.8)
        axis.set_xlabel("offset exponent $e$")
        axis.set_xticks(range(-20, 1, 4))
        plotting.roundoff_guides(axis)
    axes[0, 0].set_ylabel("relative $L_2$ error")
    plotting.panel_titles(axes, list(PANELS.values()))
    plotting.legend_below(figure, axes[0, 0], 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    e = np.array(sorted({row["exponent"] for row in rows}))
    normal, small, below = e >= -14, (e >= -14) & (e <= -7), e < -14
    for letter, panel in zip("ab", PANELS, strict=True):
        error = {n: np.array([np.mean(_runs(rows, panel, x, n)) for x in e.tolist()]) for n in SETTINGS}
        plain, single = error["HGEMM"], error["SGEMM"]
        next_largest = np.max([error[n] for n in SETTINGS if n != "HGEMM"], axis=0)
        unscaled = np.minimum(error["sb=0 element-wise"], error["sb=0 term-wise"])
        alike = error["sb=0 element-wise"] / error["sb=0 term-wise"]
        element, term = error["sb=12 element-wise"], error["sb=12 term-wise"]
        statements = [
            ("HGEMM has the largest error", "at every e", plain / next_largest, 1, np.inf, normal),
            ("HGEMM: error of the order of 1e-4", "1e-4", plain, 10**-4.5, 10**-3.5, normal),
            ("sb=0: element-wise / term-wise", "similar", alike, 0.5, 2, normal),
            ("sb=0, the better one / SGEMM", "higher than SGEMM", unscaled / single, 1, np.inf, normal),
            ("sb=0 / sb=12, term-wise", "1 to 2 orders of magnitude", error["sb=0 term-wise"] / term, 10, 1000, small),
            ("sb=6 / sb=12, term-wise", "sb=6 is poor", error["sb=6 term-wise"] / term, 1, np.inf, normal),
            ("sb=12 element-wise / SGEMM", "comparable", element / single, 0, 2, normal),
            ("sb=12 element-wise / SGEMM", "comparable", element / single, 0, 2, below),
            ("SGEMM / sb=12 term-wise", "above 1", single / term, 1, np.inf, small),
            ("SGEMM / sb=12 term-wise", "above 1", single / term, 1, np.inf, below),
        ]
        for text, published, value, low, high, where in statements:
            held = ((value >= low) & (value <= high))[where]
            span = f"e {e[where].min()} to {e[where].max()}" if where.any() else "no e"
            yield share(f"({letter}) {text}, {span}", published, held, _span(value[where]))


_runs = runs_by("inputs", "exponent")


def _span(values: Any) -> str:
    if not len(values):
        return ""
    return f"{np.min(values):.2g} to {np.max(values):.2g}"
