"""The bias of truncation over k: mean error of sums on matrix instructions, measured and predicted.

The paper has no errors; this bias is the cost of fp32 accumulation on tensor cores where sums are long. The prediction
(`_bias`, with its derivation) depends on the fields of the instruction and on the operands' distribution.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, mma, plotting, reference
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, in_legend, rows_by
from . import _bias
from ._errors import KINDS, PAPER

CAPTION = """Mean error of sums of k products, fp32 accumulation, one chain over k: (a) operands uniform in [0, 1]: mean
of (exact - computed) / exact; (b) operands uniform in [-1, 1]: mean error towards zero over the rms of the exact sums,
for CDNA 3, which rounds downwards, the mean downward error; (c) operands uniform in [0, 1]: rms of the error over the
rms of the exact sums; ideal: a block's exact sum, rounded to nearest. Markers: means over all outputs of seeded runs,
left out within two standard errors of zero; lines in (a) and (b): predicted from block length, bits kept in alignment
and final rounding, without a fitted parameter. Inputs are fp16, or e4m3 on Hopper's wgmma, which keeps 13 fraction
bits. Blackwell's fp16, not shown, has Hopper's bits."""
ASSUMPTIONS = [
    """This page is not in the paper: it studies fp32 accumulation on tensor cores over long sums. Operands are uniform
    in [0, 1] or [-1, 1], rounded to the input format.""",
    "Every output is one chain over k; a kernel that splits k or promotes partial sums restarts the growth.",
    """A prediction agrees at a point if the measured mean is within 10 % of it, or within three standard errors. Only
    points with a prediction above three standard errors count, so that a bias of zero would not agree.""",
    """The standard error of a mean assumes independent outputs. With three or more seeds the standard error of the
    seeds' means replaces it if it is larger, because the outputs of a run share its rows and columns; a few means alone
    may lie close together by chance.""",
    """The bias exceeds rounding to nearest from the first k at which the bias of a truncating instruction alone is
    above the rms error of the ideal instruction, and above three standard errors.""",
    "The models of Volta, Ampere and Hopper are replayed or measured; CDNA 3 is documented in the literature.",
]
INSTRUCTIONS = {
    "volta": ("volta", "fp16"),
    "ampere": ("ampere", "fp16"),
    "hopper": ("hopper", "fp16"),
    "blackwell": ("blackwell", "fp16"),
    "cdna3": ("cdna3", "fp16"),
    "ideal": ("ideal", "fp16"),
    "hopper e4m3": ("hopper", "e4m3"),
}
SPECS = [(gpu, words, "fp32") for gpu, words in INSTRUCTIONS.values()]


_LENGTHS = tuple(2**i for i in range(4, 17))


def cells(m: int = 16, n: int = 16, runs: int = 20, lengths: tuple[int, ...] = _LENGTHS) -> list[Row]:
    return [
        {"hardware": hardware, "ab": ab, "inputs": "uniform", "low": low, "k": k, "m": m, "n": n, "seed": seed}
        for k in lengths
        for low in KINDS.values()
        for seed in range(runs)
        for hardware, ab in INSTRUCTIONS.values()
    ]


def cost(cell: Row) -> float:
    return float(cell["k"] * cell["m"] * cell["n"])


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """Means of the error, as (a) and (b) have them, their standard errors, and the rms relative error of (c)."""
    A, B, exact = _problem(
        cell["inputs"], cell["low"], cell["ab"], cell["m"], cell["n"], cell["k"], cell["seed"], device=device
    )
    D = mma.gemm(A, B, spec=mma.spec(cell["hardware"], cell["ab"], "fp32"), device=device).astype(np.float64)
    rms = np.sqrt(np.mean(exact**2))
    errors = {
        "relative loss": (exact - D) / np.where(exact == 0, rms, np.abs(exact)),
        "towards zero": (exact - D) * np.sign(exact) / rms,
        "downwards": (exact - D) / rms,
    }
    numbers = {}
    for name, error in errors.items():
        numbers[name] = float(np.mean(error))
        numbers[f"{name} deviation"] = float(np.std(error))
    return numbers | {"rms": float(np.sqrt(np.mean((D - exact) ** 2)) / rms)}


@functools.lru_cache(maxsize=2)  # the instructions of one problem are neighbours among the cells
def _problem(
    name: str, low: float, ab: str, m: int, n: int, k: int, seed: int, device: Device = "cpu"
) -> tuple[NDArray[Any], ...]:
    A, B = inputs.operands(name, m, n, k, seed, ab, low=low, high=1.0)
    return A, B, reference.matmul(A, B, device=device)


_LOOK = {
    **{one: plotting.HARDWARE[one] for one in ("volta", "ampere", "hopper", "cdna3")},
    "hopper e4m3": Series("Hopper, e4m3", plotting.BLUE, "s"),
    "ideal": Series("ideal (RNE)", plotting.BLACK, "x", ":"),
}
_TRUNCATING = ("volta", "ampere", "hopper")


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 3, height=7.0, share_y=False)
    lengths = sorted({row["k"] for row in rows})
    for axis, low in zip(axes[:, 0], (0.0, -1.0), strict=False):
        for name, look in _LOOK.items():
            if name != "ideal":
                seen = [mean if mean > 2 * error else np.nan for mean, error in _measured(rows, name, low)]
                axis.plot(lengths, seen, **look.line(linestyle="none", label="_"))
                line = [predicted(name, low, k) for k in lengths]
                axis.plot(lengths, line, color=look.color, linestyle=look.dash, linewidth=0.9, zorder=1.5)
        axis.set_ylim(3e-9, 2 * axis.get_ylim()[1])
    axes[0, 0].plot([], [], color=plotting.GREY, marker="o", linestyle="none", label="measured (a, b)")
    axes[0, 0].plot([], [], color=plotting.GREY, linewidth=0.9, label="predicted (a, b)")
    for name, look in _LOOK.items():
        plotting.band(axes[2, 0], lengths, [[row["rms"] for row in _rows(rows, name, 0.0, k)] for k in lengths], look)
    for axis in axes[:, 0]:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(lengths, [str(k) for k in lengths], rotation=45)
        axis.tick_params(axis="x", which="minor", bottom=False)
    axes[-1, 0].set_xlabel("$k$")
    for axis, label in zip(axes[:, 0], ("mean relative loss", "mean error / rms", "rms error / rms"), strict=True):
        axis.set_ylabel(label)
    titles = ["bias, operands in [0, 1]", "bias, operands in [-1, 1]", "whole error, operands in [0, 1]"]
    plotting.panel_titles(axes, titles)
    sums = f"{rows[0]['m']} × {rows[0]['n']} sums"
    title = f"(a, b) mean of {sums} and {_seeds(rows)} seeds;\n(c) {in_legend(rows)}"
    plotting.legend_below(figure, axes[::-1], 2, title=title)
    return figure


def _seeds(rows: list[Row]) -> int:
    return len({row["seed"] for row in rows})


def measures(rows: list[Row]) -> Iterator[Measure]:
    last = max((row["k"] for row in rows), default=0)
    positive = [(name, k) for name in (*_TRUNCATING, "hopper e4m3") for k in {row["k"] for row in rows} if k >= 1024]
    for variant, low, points in (
        ("positive data, k = 1024 and more", 0.0, positive),
        ("zero mean, Ampere and Hopper, k = 65536", -1.0, [(name, 65536) for name in ("ampere", "hopper")]),
    ):
        off = [
            abs(row[_column(name, low)] / predicted(name, low, k) - 1)
            for name, k in points
            for row in _rows(rows, name, low, k)
        ]
        if off:
            yield Measure("bias_predicted", max(off), variant=variant)
    ideal = [row["rms"] for row in _rows(rows, "ideal", 0.0, last)]
    loss = [row["rms"] for name in _TRUNCATING for row in _rows(rows, name, 0.0, last)]
    if ideal and loss:
        yield Measure("truncation_detected", min(loss) / max(ideal), variant=f"k = {last}")


def finding(rows: list[Row]) -> str:
    lengths = sorted({row["k"] for row in rows})
    statements = [statement for kind, low in KINDS.items() for statement in _agreement(rows, kind, low)]
    powers = {}
    for kind, low in KINDS.items():
        ideal = [float(np.mean([row["rms"] for row in _rows(rows, "ideal", low, k)])) for k in lengths]
        exceeds = {}
        for name in _TRUNCATING:
            bias = _measured(rows, name, low)
            first = next((k for k, (x, e), y in zip(lengths, bias, ideal, strict=True) if x > max(y, 3 * e)), None)
            where = "nowhere" if first is None else f"first at k = {first}"
            exceeds[name.capitalize()] = f"{where} ({bias[-1][0] / ideal[-1]:.3g}× at k = {lengths[-1]})"
            if name != "ampere" and len(lengths) > 1 and all(abs(mean) > 3 * error for mean, error in bias[-2:]):
                powers[f"{kind} {_LOOK[name].label}"] = _power(lengths, [abs(mean) for mean, _ in bias])
        statements.append((f"{kind}: the bias alone exceeds the rms error of rounding to nearest as follows", exceeds))
        if low == 0 and len(lengths) > 1:
            powers["rms error of rounding to nearest, positive data,"] = _power(lengths, ideal)
    if powers:
        statements.append((f"from k = {lengths[-2]} to {lengths[-1]} the bias grows as", powers))
    return paragraph(*statements)


def _agreement(rows: list[Row], kind: str, low: float) -> list[tuple[Any, ...]]:
    """The number of points at which the prediction agrees, of those where it differs from no bias; and the ratios."""
    lengths, seeds = sorted({row["k"] for row in rows}), len({row["seed"] for row in rows})
    decided, wrong, ratios = 0, [], []
    for name in _LOOK:
        for k, (mean, error) in zip(lengths, _measured(rows, name, low), strict=True):
            expected, where = predicted(name, low, k), f"{_LOOK[name].label}, k = {k}"
            if expected > 3 * error:
                decided += 1
                wrong += [where] * bool(abs(mean - expected) > max(0.1 * expected, 3 * error))
                ratios += [(mean / expected, where)] * bool(expected > 20 * error > 0)
    source = f"no less than the scatter of {seeds} seeds' means" if seeds > 2 else "independent outputs: too few seeds"
    return [
        (
            f"{kind}: the predicted bias agrees at {{}}",
            f"{decided - len(wrong)} of the {decided} points above 3 standard errors ({source})",
        ),
        ("it does not agree at", "; ".join(wrong[:4]) + " ..." * (len(wrong) > 4)),
        (
            "the measured bias divided by the predicted bias, above 20 standard errors, is smallest and largest at",
            {f"{where}:": ratio for ratio, where in (min(ratios), max(ratios))} if ratios else None,
            ".3f",
        ),
    ]


def _power(lengths: list[int], values: list[float]) -> str:
    return f"k^{np.log(values[-1] / values[-2]) / np.log(lengths[-1] / lengths[-2]):.2f}"


def _measured(rows: list[Row], name: str, low: float) -> list[tuple[float, float]]:
    """The mean over all outputs at each k, and its standard error as in `ASSUMPTIONS`."""
    result = []
    for k in sorted({row["k"] for row in rows}):
        selected, column = _rows(rows, name, low, k), _column(name, low)
        count = sum(row["m"] * row["n"] for row in selected)
        spread = np.sqrt(np.mean([row[f"{column} deviation"] ** 2 for row in selected]) / count)
        means = [row[column] for row in selected]
        between = np.std(means, ddof=1) / np.sqrt(len(means)) if len(means) > 2 else 0.0
        result.append((float(np.mean(means)), float(max(spread, between))))
    return result


def predicted(name: str, low: float, k: int) -> float:
    """Return the bias that the fields of the instruction predict for `_column`."""
    return _predicted(*INSTRUCTIONS[name], low, k)


@functools.cache
def _predicted(hardware: str, ab: str, low: float, k: int) -> float:
    spec = mma.spec(hardware, ab, "fp32")
    if low == 0:
        return _bias.positive(spec, k)
    return _bias.downwards(spec, k) if hardware == "cdna3" else _bias.towards_zero(spec, k)


def _column(name: str, low: float) -> str:
    return "relative loss" if low == 0 else "downwards" if name == "cdna3" else "towards zero"


_at = rows_by("hardware", "ab", "low", "k")


def _rows(rows: list[Row], name: str, low: float, k: int) -> list[Row]:
    return _at(rows, *INSTRUCTIONS[name], low, k)


QUICK = {"runs": 3, "lengths": tuple(4**i for i in range(2, 9))}
PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick=QUICK, specs=SPECS)
