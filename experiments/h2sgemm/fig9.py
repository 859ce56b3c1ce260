"""H2SGEMM, figure 9: error over the sizes of the product, offset exponent 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._numeric import problem
from .._rows import listed, runs_by

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 4.1, figure 9"
TITLE = "relative error over the sizes of the product"
CAPTION = """Relative L2 error against the exact product at offset exponent 0 over (a, d) m = n with k = 64·44, (b, e) k
with m = 176 and n = 32, (c, f) m = n = k; (a-c) operands uniform in [-1, 1], (d-f) in [0, 1]. Lines: mean over
seeded runs; bands: smallest to largest run (at full size 10 runs, 3 above 10^9 products and 1 above 10^10). At this
exponent sb = 0 and sb = 12 lie on each other. Ascend 910A cube as an assumed model."""
ASSUMPTIONS = [
    """The cube of the Ascend 910A adds 16 products and the accumulator exactly and rounds once to fp32 (assumed:
    nothing bit-exact is public).""",
    "HGEMM is one product of the operands rounded to fp16, with fp32 accumulation and an fp32 result.",
    """SGEMM is one ascending chain of fp32 FMAs for each element; the paper ran OpenBLAS on a CPU, whose order is not
    given.""",
    """The lengths shown are not printed. Panels (b, e) have m = 176 and n = 32, which the paper derives from its blocks
    and cores: taken as two lengths; as one, m = 176·32, nothing changes, for errors do not depend on m and n.""",
    "The paper does not say which of its two distributions figure 9 shows: both are shown.",
    """Stable across m and n: the largest mean error of a method is at most twice its smallest. Scales better: the
    exponent p of error ~ k^p (least squares in the logarithms) is smaller. Keeps a lower error: at every k shown.""",
    """The variants that term-wise is said to scale better than are read as the other ways of H2SGEMM, element-wise.
    Plain HGEMM, whose error is the rounding of its operands, may be meant or not: its growth is a check of our own.""",
    "The reference is the exact product, rounded once to fp64, where the paper used DGEMM.",
]

SETTINGS: dict[str, dict[str, Any]] = {
    "HGEMM": {"scheme": "fp16"},
    "SGEMM": {"scheme": "sgemm"},
    **{
        f"sb={sb} {combine}": {"scheme": "h2sgemm", "sb": sb, "combine": combine}
        for sb in (0, 12)
        for combine in ("element-wise", "term-wise")
    },
}
KINDS = {"offset_symmetric": "uniform in $[-1,\\,1]$", "offset_nonnegative": "uniform in $[0,\\,1]$"}
PANELS = {
    "m = n": ("$m = n$, $k = 64\\cdot 44$", "$m = n$"),
    "k": ("$m = 176$, $n = 32$", "$k$"),
    "m = n = k": ("$m = n = k$", "$m = n = k$"),
}
_LENGTHS = {
    "quick": {"m = n": (16, 48), "k": (64, 256, 1024, 2048), "m = n = k": (32, 64, 128, 256)},
    "full": {
        "m = n": (44, 88, 176, 352, 704, 1408, 2816),
        "k": (64, 176, 352, 704, 1408, 2816, 5632, 11264, 22528, 45056),
        "m = n = k": (64, 128, 256, 512, 1024, 2048, 4096),
    },
}


def cells(size: str) -> list[dict[str, Any]]:
    listed = []
    for kind in KINDS:
        for panel, lengths in _LENGTHS[size].items():
            for x in lengths:
                m, n, k = {"m = n": (x, x, 64 * 44), "k": (176, 32, x), "m = n = k": (x, x, x)}[panel]
                products = m * n * k
                runs = 3 if size == "quick" else 10 if products < 1e9 else 3 if products < 1e10 else 1
                listed += [
                    {
                        "hardware": "ascend910a",
                        "inputs": kind,
                        "panel": panel,
                        "length": x,
                        "seed": seed,
                        "m": m,
                        "n": n,
                        "k": k,
                    }
                    for seed in range(runs)
                ]
    return listed


def cost(cell: dict[str, Any]) -> float:
    return float(cell["m"] * cell["n"] * cell["k"] + 10**6)  # the second part: what a cell costs whatever its size


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    sides = (cell["m"], cell["n"], cell["k"])
    A, B, exact = problem(cell["inputs"], *sides, cell["seed"], device, exponent=0)
    return {
        name: metrics.relative_l2(schemes.gemm(A, B, hardware=cell["hardware"], device=device, **setting), exact)
        for name, setting in SETTINGS.items()
    }


_LOOK = {
    "HGEMM": Series("HGEMM (fp16)", plotting.GREY, "x", "-"),
    "SGEMM": Series("SGEMM (fp32)", plotting.BLACK, "s", "-"),
    "sb=0 element-wise": Series("sb = 0, element-wise", plotting.SKY, "v", "--", filled=False),
    "sb=0 term-wise": Series("sb = 0, term-wise", plotting.SKY, "^"),
    "sb=12 element-wise": Series("sb = 12, element-wise", plotting.VERMILION, "o", "--", filled=False),
    "sb=12 term-wise": Series("sb = 12, term-wise", plotting.BLUE, "o"),
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(3, 2, height=4.8)
    for line, kind in zip(axes, KINDS, strict=True):
        for axis, (panel, (_, label)) in zip(line, PANELS.items(), strict=True):
            lengths = _lengths(rows, panel)
            for name, look in _LOOK.items():
                runs = [_runs(rows, kind, panel, x, name) for x in lengths]
                # sb = 0 lies under sb = 12: larger, so that both can be seen
                size = 6.0 if name.startswith("sb=0") else 3.8
                plotting.band(axis, lengths, runs, look, markersize=size)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            shown = lengths if len(lengths) < 6 else lengths[len(lengths) % 2 == 0 :: 2]
            axis.set_xticks(shown, [str(x) for x in shown])
            axis.tick_params(axis="x", which="minor", bottom=False)
            plotting.roundoff_guides(axis)
            if kind == list(KINDS)[-1]:
                axis.set_xlabel(label)
        line[0].set_ylabel("relative $L_2$ error")
    low = min(row[name] for row in rows for name in SETTINGS)
    axes[0, 0].set_ylim(min(low / 2, 2e-8), 2e-3)
    titles = [f"{kind}, {title}" for kind in ("$[-1,\\,1]$", "$[0,\\,1]$") for title, _ in PANELS.values()]
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes[0, 0], 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for letters, kind in zip(("abc", "def"), KINDS, strict=True):
        error = {panel: {n: _means(rows, kind, panel, n) for n in SETTINGS} for panel in PANELS}
        spread = [float(e.max() / e.min()) if len(e) else np.nan for e in error["m = n"].values()]
        measured = f"largest / smallest error: {min(spread):.2g} to {max(spread):.2g} over the methods"
        held = [x <= 2 for x in spread if not np.isnan(x)]
        yield share(f"({letters[0]}) errors are stable across m = n", "stable", held, measured)
        for letter, panel in zip(letters[1:], ("k", "m = n = k"), strict=True):
            ks = np.array(_lengths(rows, panel))
            ours = error[panel]["sb=12 term-wise"]
            for other in ("SGEMM", "sb=12 element-wise", "sb=0 element-wise", "HGEMM"):
                if len(ks) < 2:
                    continue
                slopes = [growth(ks, e) for e in (ours, error[panel][other])]
                text = f"({letter}) term-wise, sb=12, grows less with k than {other}"
                measured = f"error ~ k^{slopes[0]:.2f} against k^{slopes[1]:.2f}"
                # whether HGEMM is meant as well is open: no published claim
                published = "" if other == "HGEMM" else "scales better"
                yield share(text, published, [slopes[0] < slopes[1]], measured)
            for other in ("SGEMM", "sb=12 element-wise"):
                ratio = error[panel][other] / ours
                text = f"({letter}) {other} / term-wise, sb=12"
                yield share(text, "above 1", ratio > 1, _span(ratio))


def finding(rows: list[dict[str, Any]]) -> str:
    ks = np.array(_lengths(rows, "k"))
    statements: list[tuple[Any, ...]] = []
    for kind, name in zip(KINDS, ("[-1, 1]", "[0, 1]"), strict=True):
        if len(ks) > 1:
            mean = {n: _means(rows, kind, "k", n) for n in ("SGEMM", "sb=12 term-wise", "HGEMM")}
            ratio = mean["SGEMM"] / mean["sb=12 term-wise"]
            powers = {n: f"k^{growth(ks, error):.2f}" for n, error in mean.items()}
            statements += [
                (f"growth of the error in {name}, k = {ks[0]} to {ks[-1]}", powers),
                ("SGEMM over term-wise", {f"k = {ks[i]}:": ratio[i] for i in (0, -1)}, ".2g×"),
            ]
    return paragraph(*statements)


def growth(lengths: Any, errors: Any) -> float:
    """The exponent p of errors ~ lengths^p, by least squares in the logarithms."""
    x, y = np.log(lengths), np.log(errors)
    x = x - x.mean()
    return float(np.sum(x * y) / np.sum(x * x))


def _lengths(rows: list[dict[str, Any]], panel: str) -> list[int]:
    return sorted({row["length"] for row in rows if row["panel"] == panel})


def _means(rows: list[dict[str, Any]], kind: str, panel: str, name: str) -> Any:
    return np.array([np.mean(_runs(rows, kind, panel, x, name)) for x in _lengths(rows, panel)])


_runs = runs_by("inputs", "panel", "length")


def _span(values: Any) -> str:
    return f"{np.min(values):.2g} to {np.max(values):.2g}" if len(values) else ""
