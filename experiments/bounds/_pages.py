"""The figures of the bounds: a scheme's error over k, measured and bounded before the product is computed.

`FIGURES` has a figure for each scheme, `PAGES` its page. A curve of a figure is a hardware with options of the scheme.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fpemu import inputs, plotting, reference, schemes, theory
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Page
from fpemu.sweep.store import canonical

from .._rows import Row, size_axis

PAPER = "no paper's figure: the a-priori bounds of fpemu.theory beside the errors that they bound"
ASSUMPTIONS = [
    """The error of an entry is taken relative to that entry of |A||B|, and a point is the largest over the entries of
    one product. The exact product is not rounded: the residual AB - D is computed exactly and rounded once.""",
    """The bounds depend only on the norms of A and B (fpemu.theory.Norms.of), the scheme's options and the fields of
    the instruction. The probable bound may fail for one product in a hundred.""",
    """Products have few rows and columns, 8 at quick size and 16 at full size. The error of an entry depends on k and
    the data alone; the largest error of more entries is a little larger, and the probable bound depends on their
    number.""",
    """The growth is the exponent p of k^p, fitted by least squares over logarithms to the last four lengths of each
    curve, with the largest error over the seeds at each length.""",
]
DATA: dict[str, tuple[str, dict[str, float]]] = {
    "positive": ("uniform", {"low": 0.0, "high": 1.0}),
    "zero mean": ("uniform", {"low": -1.0, "high": 1.0}),
    "phi = 1": ("phi", {"phi": 1.0}),
}
"""Name and parameters of `fpemu.inputs`."""
TITLES = {"positive": "uniform in [0, 1]", "zero mean": "uniform in [-1, 1]", "phi = 1": r"$\varphi$ = 1"}
_WORDS = {"positive": "[0, 1]", "zero mean": "[-1, 1]", "phi = 1": "φ = 1"}
DIGITS = {"deviation": 6}
"""A difference of squares that nearly cancel: the processor's order of summation shows from the twelfth digit on."""


def cost(cell: Row) -> float:
    return float(cell["k"] * cell["rows"] * (cell["rows"] + 50) + 1e5)


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    """The measured error and its bounds, relative to |A||B|; "worst: NAME" and "rms: NAME" are a bound's parts.

    Where norms bound no entry, there are no columns of the worst case.
    """
    scheme, hardware, options = cell["scheme"], cell["hardware"], cell["options"]
    chosen = schemes.build(scheme, options)
    A, B, S, norms = _problem(cell["data"], cell["k"], cell["rows"], cell["seed"], chosen.operand.name)
    D = schemes.gemm(A, B, scheme=chosen, hardware=hardware, device=device)
    residual = reference.matmul(A, B, D, beta=-1, device=device)
    error = np.abs(residual) / S
    bound = theory.bound(scheme, hardware, norms=norms, M=cell["rows"], N=cell["rows"], **options)
    numbers = {
        "measured": float(error.max()),
        "measured rms": float(np.sqrt(np.mean(error**2))),
        "probable": float(bound.probable()),
        "drift": float(abs(bound.bias)),
        "deviation": float(bound.deviation),
    }
    numbers |= {f"rms: {part.name}": math.hypot(part.bias, part.deviation) for part in bound.parts}
    if math.isfinite(bound.worst):
        numbers |= {"worst": float(bound.worst)} | {f"worst: {part.name}": float(part.worst) for part in bound.parts}
    return numbers


@functools.lru_cache(maxsize=1)  # the curves of one problem are neighbours among the cells
def _problem(data: str, k: int, rows: int, seed: int, fmt: str) -> Any:
    """A, B, |A||B| and the norms."""
    name, parameters = DATA[data]
    A, B = inputs.operands(name, rows, rows, k, seed, fmt, **parameters)
    return A, B, reference.matmul(np.abs(A), np.abs(B)), theory.Norms.of(A, B)


_LENGTHS = tuple(4**i for i in range(2, 9))
_DASHES = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)))
"""Line styles of the curves of a figure"""
_BOUNDS = {"probable bound, 99 %": ("probable", 1.5), "worst case": ("worst", 0.6)}
"""Column and line width of a bound"""


@dataclass(frozen=True)
class Curve:
    """One colour of a figure."""

    hardware: str | None
    series: Series
    options: Mapping[str, Any] = field(default_factory=dict)
    words: str = "fp16"
    """Operand format of the instruction"""

    @property
    def label(self) -> str:
        return self.series.label

    def of(self, rows: Sequence[Row], data: str) -> list[Row]:
        """The rows of this curve with one class of data, k ascending."""
        curve = (self.hardware, canonical(dict(self.options)), data)
        selected = [row for row in rows if (row["hardware"], canonical(row["options"]), row["data"]) == curve]
        return sorted(selected, key=lambda row: (row["k"], row["seed"]))


@dataclass(frozen=True)
class Figure:
    """The figure of one scheme."""

    scheme: str
    curves: tuple[Curve, ...]

    def page(self) -> Page:
        specs = {(c.hardware, c.words, "int32" if c.words == "int8" else "fp32"): 0 for c in self.curves if c.hardware}
        return Page(
            PAPER,
            f"""Largest error relative to |A||B| over the inner length k, scheme {self.scheme}: measured (markers),
            the bound that a product keeps with a probability of 99 % (thick), and the worst case (thin), both from
            norms of the operands alone. Operands (a) uniform in [0, 1], (b) uniform in [-1, 1], (c) (rand - 0.5)
            exp(randn), a wide range. The largest over seeded runs; logarithmic axes.""",
            ASSUMPTIONS,
            self.cells,
            evaluate,
            self.draw,
            finding=self.finding,
            cost=cost,
            quick={"lengths": tuple(4**i for i in range(2, 8)), "rows": 8, "seeds": 1},
            kind="M",
            digits=DIGITS,
            specs=list(specs),
        )

    def cells(self, lengths: tuple[int, ...] = _LENGTHS, rows: int = 16, seeds: int = 3) -> list[Row]:
        return [
            {
                "scheme": self.scheme,
                "hardware": curve.hardware,
                "options": dict(curve.options),
                "data": data,
                "k": k,
                "rows": rows,
                "seed": seed,
            }
            for k in lengths
            for data in DATA
            for seed in range(seeds)
            for curve in self.curves
        ]

    def draw(self, rows: list[Row]) -> Any:
        figure, axes = plotting.figure(1, len(DATA), height=6.0)
        low, high = math.inf, 0.0
        for axis, data in zip(axes[:, 0], DATA, strict=True):
            for number, (curve, dash) in enumerate(zip(self.curves, _DASHES, strict=False)):
                size = 6.5 - 1.2 * number  # where errors coincide the later marker is smaller, so that all show
                points = _largest(curve.of(rows, data))
                lengths, look = list(points), curve.series
                for column, width in _BOUNDS.values():
                    line = {k: point[column] for k, point in points.items() if column in point}
                    style: dict[str, Any] = {"color": look.color, "linestyle": dash, "linewidth": width}
                    axis.plot(list(line), list(line.values()), **style, zorder=1.8)
                    high = max(high, *line.values(), 0.0)
                seen = [points[k]["measured"] or math.nan for k in lengths]
                axis.plot(lengths, seen, **look.line(linestyle="none", label=None, markersize=size))
                axis.plot([], [], **look.line(linestyle=dash, linewidth=0.9))
                low = min(low, *(y for y in seen if y > 0), math.inf)
            axis.set(yscale="log", ylabel="error relative to $|A||B|$")
            size_axis(axis, sorted({row["k"] for row in rows}))
        if 0 < low < high:
            axes[0, 0].set_ylim(low / 3, 3 * high)
        axes[0, 0].plot([], [], "o", color=plotting.GREY, label="measured")
        for label, (_, width) in _BOUNDS.items():
            axes[0, 0].plot([], [], color=plotting.GREY, linewidth=width, label=label)
        axes[-1, 0].set_xlabel("$k$")
        plotting.panel_titles(axes, list(TITLES.values()))
        seeds = len({row["seed"] for row in rows})
        title = f"{self.scheme}, m×k times k×m, m = {rows[0]['rows']}; " + (
            f"largest of {seeds} seeds" if seeds > 1 else "one seed"
        )
        plotting.legend_below(figure, axes, 2, title)
        return figure

    def finding(self, rows: list[Row]) -> str:
        exact = sum(not row["measured"] for row in rows)
        without = [f"{exact} of {len(rows)} products have no error at all and no ratio"] if exact else []
        unbounded = [row for row in rows if "worst" not in row]
        if unbounded:
            where = ", ".join(dict.fromkeys(self.name(row) for row in unbounded))
            without.append(f"norms alone give no worst case to {len(unbounded)} products ({where})")
        text = [self._tightness(rows), self._largest_parts(rows), self._growth(rows), _sentence(without)]
        return " ".join(part for part in text if part)

    def name(self, row: Row) -> str:
        """The curve of a row in words."""
        ours = (row["hardware"], canonical(row["options"]))
        return next(c.label for c in self.curves if (c.hardware, canonical(dict(c.options))) == ours)

    def _tightness(self, rows: list[Row]) -> str:
        parts = []
        for data in DATA:
            selected = [row for row in rows if row["data"] == data and row["measured"]]
            worst, likely = ([row[c] / row["measured"] for row in selected if c in row] for c in ("worst", "probable"))
            if selected:
                most = f"{geometric_mean(worst):.3g} (at most {max(worst):.3g})" if worst else "none"
                near = f"{geometric_mean(likely):.3g} ({min(likely):.3g} to {max(likely):.3g})"
                parts.append(f"{most} and {near} on {_WORDS[data]}")
        means = "; ".join(parts)
        return f"Worst case and probable bound, divided by the measured error, have the geometric means {means}."

    def _largest_parts(self, rows: list[Row]) -> str:
        """The largest part of each bound at the largest length, curves and data with the same parts together."""
        groups: dict[tuple[str, str], list[tuple[Row, list[float]]]] = {}
        k = max(row["k"] for row in rows)
        last = [row for curve in self.curves for data in DATA for row in curve.of(rows, data)[-1:] if row["k"] == k]
        for row in last:
            (worst, of_worst), (rms, of_square) = _main(row, "worst"), _main(row, "rms")
            drift = row["drift"] / row["probable"] if row["probable"] else 0.0
            groups.setdefault((worst, rms), []).append((row, [of_worst, of_square, drift]))
        parts = []
        for (worst, rms), members in groups.items():
            name = self._curves_in_words([row for row, _ in members], last)
            most, square, drift = (_percent(result) for result in zip(*(shares for _, shares in members), strict=True))
            published = f"{worst} {most} of the worst case and " if worst else "no worst case, "
            published += "" if rms == worst else f"{rms} "
            parts.append(f"{published}{square} of the mean square, drift {drift} of the probable bound ({name})")
        return f"The largest parts of the bounds at k = {k} are: {'; '.join(parts)}."

    def _curves_in_words(self, some: list[Row], every: list[Row]) -> str:
        """Curves in words, each with its data unless these are all."""
        result = []
        for name in dict.fromkeys(map(self.name, some)):
            data, whole = ([row["data"] for row in rows if self.name(row) == name] for rows in (some, every))
            result.append(name if data == whole else f"{name} on {', '.join(_WORDS[d] for d in data)}")
        return (" and " if any("," in name for name in result) else ", ").join(result)

    def _growth(self, rows: list[Row]) -> str:
        parts = []
        for data in DATA:
            powers: dict[str, list[float]] = {"measured": [], "probable": [], "worst": []}
            for curve in self.curves:
                points = list(_largest(curve.of(rows, data)).items())[-4:]
                if len(points) > 1 and all(row["measured"] for _, row in points):
                    x = np.log([k for k, _ in points])
                    for column, result in powers.items():
                        if all(row.get(column) for _, row in points):
                            y = np.log([row[column] for _, row in points])
                            result.append(float(np.polyfit(x, y, 1)[0]))
            if powers["measured"]:
                published = ", ".join(f"{column} {_powers(result)}" for column, result in powers.items() if result)
                parts.append(f"{published} on {_WORDS[data]}")
        return f"Errors and bounds grow as k to the power of: {'; '.join(parts)}." if parts else ""


def _largest(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """The largest of the seeds at each k."""
    result: dict[int, dict[str, float]] = {}
    for row in rows:
        point = result.setdefault(row["k"], {})
        for column in ("measured", "probable", "worst"):
            if column in row:
                point[column] = max(point.get(column, 0.0), row[column])
    return result


def _main(row: Row, kind: str) -> tuple[str, float]:
    """The largest part of a bound, and its share: of the sum ("worst"), of the sum of squares ("rms")."""
    power = 2 if kind == "rms" else 1
    parts = {name.partition(": ")[2]: row[name] ** power for name in row if name.startswith(f"{kind}: ") and row[name]}
    if not parts:
        return "", 0.0
    name = max(parts, key=lambda part: parts[part])
    return name, parts[name] / sum(parts.values())


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(part for part in parts if part)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _percent(values: Sequence[float]) -> str:
    shown = dict.fromkeys(f"{100 * value:.0f}" for value in (min(values), max(values)))
    return " to ".join(shown) + " %"


def _powers(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{round(value, 2) + 0.0:.2f}" for value in (min(values), max(values))))


def _chips(names: str, words: str = "fp16") -> tuple[Curve, ...]:
    """Curves of architectures with the scheme's published choices."""
    return tuple(Curve(name, plotting.HARDWARE[name], words=words) for name in names.split())


def _variants(*variants: tuple[str, dict[str, Any], str, str]) -> tuple[Curve, ...]:
    """Curves on Ampere's int8 instruction: label, options, colour and marker of each."""
    return tuple(
        Curve("ampere", Series(f"Ampere, {label}", colour, marker), options, "int8")
        for label, options, colour, marker in variants
    )


_FOUR = _chips("volta ampere hopper cdna2")
_BF16 = _chips("ampere hopper cdna2 cdna3", "bf16")
_OZAKI = (
    Curve("turing", Series("Turing, DP", plotting.PURPLE, "p"), {"mode": "DP"}),
    Curve("turing", Series("Turing, CR", plotting.GREEN, "D"), {"mode": "CR"}),
    Curve("turing", Series("Turing, 4 slices", plotting.VERMILION, "o"), {"mode": "DP", "slices": 4}),
    Curve("ampere", Series("Ampere int8, 9 slices", plotting.ORANGE, "^"), {"words": "int8", "slices": 9}, "int8"),
)
_OZIMMU = _variants(
    ("automatic", {}, plotting.ORANGE, "^"),
    ("8 slices", {"slices": 8}, plotting.BLUE, "s"),
    ("4 slices", {"slices": 4}, plotting.VERMILION, "o"),
)
_OZAKI2 = _variants(
    ("15 moduli", {"moduli": 15}, plotting.ORANGE, "^"),
    ("12 moduli", {"moduli": 12}, plotting.BLUE, "s"),
    ("8 moduli", {"moduli": 8}, plotting.VERMILION, "o"),
)
FIGURES = {
    "ape": Figure("ape", _FOUR),
    "bf16x3": Figure("bf16x3", _BF16),
    "bf16x6": Figure("bf16x6", _BF16),
    "bf16x9": Figure("bf16x9", _BF16),
    "dgemm": Figure("dgemm", (Curve(None, Series("chain of fp64 FMAs", plotting.BLACK, "s")),)),
    "egemm": Figure("egemm", _FOUR),
    "fp16": Figure("fp16", _FOUR),
    "h2sgemm": Figure("h2sgemm", _chips("volta ampere hopper ascend910a")),
    "legemm": Figure("legemm", _FOUR),
    "markidis": Figure("markidis", _FOUR),
    "multiword": Figure("multiword", _FOUR),
    "ootomo": Figure("ootomo", _FOUR),
    "ootomo_tf32": Figure("ootomo-tf32", _chips("ampere hopper cdna3", "tf32")),
    "ozaki": Figure("ozaki", _OZAKI),
    "ozaki2": Figure("ozaki2", _OZAKI2),
    "ozimmu": Figure("ozimmu", _OZIMMU),
    "sgemm": Figure("sgemm", (Curve(None, Series("chain of fp32 FMAs", plotting.BLACK, "s")),)),
    "staged": Figure("staged", _FOUR),
    "staged_int8": Figure("staged-int8", _chips("ampere hopper")),
}
PAGES = {name: figure.page() for name, figure in FIGURES.items()}
