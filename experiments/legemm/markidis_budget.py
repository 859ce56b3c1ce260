"""Causes of the errors of Markidis' method and of LE-GEMM, removed one after another.

The causes are removed in this order, each in addition to the previous ones:

direction   every block's sum rounded toward zero: to nearest instead
alignment   terms cut where a block's sum is aligned: 35 fraction bits kept instead of the hardware's
rounding    the other errors of the accumulators: the words' products summed exactly instead
flushed     words below fp16's normal range read as zero (CDNA2): as they are instead
underflow   bits of the residual below fp16's smallest number: rounded with an unbounded exponent instead
product     the product of the two residuals, which LE-GEMM leaves out: added
bits        the residual of the split: the bits of an fp32 number beyond its two words

The words are the words of the scheme; the exact sums are `reference.matmul` of the words side by side.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, mma, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.rounding import round_to
from fpemu.schemes.split_scheme import TwoWords
from fpemu.schemes.words import BIT_CUT, Word

from .._findings import paragraph
from .._numeric import norm
from .._rows import Row, in_legend, mean_by, runs_by

PAPER = "LE-GEMM, Journal of Systems Architecture 160 (2025) 103336, section 5.3: the causes of the errors"
CAPTION = """Relative L2 error against the exact product over the inner length k, operands uniform in [-1, 1], and the
change of the result, relative to the exact product in the same norm, when one cause of error after another is removed:
sums rounded toward zero, terms truncated at alignment, other errors of the sums, words below fp16's normal range that
are replaced by zero, bits of the residual below fp16's smallest number, the omitted product, and the bits beyond two
words. Left: Markidis' method; right: LE-GEMM; causes below 10^-9 are not drawn. Lines: median over seeded runs; bands:
quartiles."""
ASSUMPTIONS = [
    """The causes are removed in the order of the legend, each in addition to the previous ones. The order matters for
    the first two causes, whose errors are not independent, so the error without the truncation at alignment alone is
    also computed.""",
    """Without truncation at alignment the model keeps 35 fraction bits below a block's largest exponent, the largest
    number that it supports; the bits that are still truncated are smaller than 2^-11 of an fp32 rounding error.""",
    """The share of a cause is the reduction of the squared error by its removal, divided by the squared error of the
    unchanged method. The shares sum to 1, and a share is negative if the removal increases the error.""",
    """CDNA2 (documented in the literature, not measured) rounds every sum to nearest and has no alignment to remove;
    only CDNA2 reads subnormal words as zero.""",
]
Floats = NDArray[Any]
CHIPS = ("ampere", "hopper", "cdna2")
METHODS = {"markidis": "Markidis", "legemm": "LE-GEMM"}
SHOWN = 1e-9
"""The smallest norm drawn."""
WIDE = 35
"""Fraction bits of an alignment that cuts nothing that matters."""
PARTS = ("direction", "alignment", "rounding", "flushed", "underflow", "product", "bits")


def cells(rows: int = 64, lengths: tuple[int, ...] = (64, 256, 1024, 4096), runs: int = 20) -> list[Row]:
    return [
        {"k": k, "rows": rows, "seed": seed, "hardware": hardware}
        for k in lengths
        for seed in range(runs)
        for hardware in CHIPS
    ]


def cost(cell: Row) -> float:
    return float(cell["k"] * cell["rows"] * (cell["rows"] + 200))


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    A, B, sums = _operands(cell["rows"], cell["k"], cell["seed"], device=device)
    numbers = {}
    for name in METHODS:
        for what, value in budget(A, B, name, cell["hardware"], sums[name], device=device).items():
            numbers[f"{name} {what}"] = value
    return numbers


@functools.lru_cache(maxsize=1)
def _operands(rows: int, k: int, seed: int, device: Device = "cpu") -> tuple[Floats, Floats, dict[str, list[Floats]]]:
    A, B = inputs.operands("uniform", rows, rows, k, seed, low=-1.0, high=1.0)
    return A, B, {name: summed(A, B, name, device=device) for name in METHODS}


def budget(
    A: Floats, B: Floats, scheme: str, hardware: str, sums: list[Floats] | None = None, device: Device = "cpu"
) -> dict[str, float]:
    """Relative L2 norms: the "error", the "part" each cause has in it, and what is "left" once it is removed.

    ``sums`` are `summed`'s, where they are known.
    """
    sums = summed(A, B, scheme, device=device) if sums is None else sums
    exact = sums[-1]
    spec = mma.spec(hardware, "fp16", "fp32")
    truncates = spec.rules.truncates
    specs = [spec, spec.replace(final="RNE"), spec.replace(final="RNE", F=WIDE)] if truncates else [spec]
    runs = [schemes.gemm(A, B, scheme=scheme, hardware=s, device=device).astype(np.float64) for s in specs]
    runs += runs[-1:] * (3 - len(runs))
    results = [*runs, *([flushed(A, B, scheme, device=device)] if spec.rules.flushes else sums[:1]), *sums]
    result = {"error": metrics.relative_l2(results[0], exact)}
    size = norm(exact)
    for part, before, after in zip(PARTS, results[:-1], results[1:], strict=True):
        result[f"part {part}"] = norm(before - after) / size
        result[f"left after {part}"] = metrics.relative_l2(after, exact)
    alone = schemes.gemm(A, B, scheme=scheme, hardware=spec.replace(F=WIDE), device=device) if truncates else results[0]
    return result | {"without alignment alone": metrics.relative_l2(alone, exact)}


def summed(A: Floats, B: Floats, scheme: str, device: Device = "cpu") -> list[Floats]:
    """Exact sums: of the words as fp16 holds them; unbounded; with all products; and of the matrices themselves."""
    rules, kept = _choices(scheme)
    every = [(i, j) for i in range(len(rules)) for j in range(len(rules))]
    a, b = (words(X, rules, unbounded=False) for X in (A, B))
    wide_a, wide_b = (words(X, rules, unbounded=True) for X in (A, B))
    return [
        total(a, b, kept, device=device),
        total(wide_a, wide_b, kept, device=device),
        total(wide_a, wide_b, every, device=device),
        reference.matmul(A, B, device=device),
    ]


def flushed(A: Floats, B: Floats, scheme: str, device: Device = "cpu") -> Floats:
    """The exact sum of the words as CDNA2 reads them: zero where the fp16 number is subnormal."""
    rules, kept = _choices(scheme)
    read = []
    for X in (A, B):
        stored = words(X, rules, unbounded=False)
        tiny = [abs(np.ldexp(w, r.exponent)) < r.format.min_normal for w, r in zip(stored, rules, strict=True)]
        read.append([np.where(zero, 0.0, w) for zero, w in zip(tiny, stored, strict=True)])
    return total(read[0], read[1], kept, device=device)


def _choices(scheme: str) -> tuple[tuple[Word, ...], Sequence[tuple[int, int]]]:
    chosen = schemes.get(scheme)
    assert isinstance(chosen, TwoWords)
    return chosen.rules(), chosen.plan().products


def words(X: Floats, rules: Sequence[Word], *, unbounded: bool) -> list[Floats]:
    """The words of fp32 numbers in float64, their scale undone; ``unbounded``: without underflow."""
    left, result = X.astype(np.float64), []
    for rule in rules:
        scaled = np.ldexp(left, rule.exponent)
        mode = "RZ" if rule.rounding == BIT_CUT else rule.rounding
        value = round_to(scaled, rule.format, mode, unbounded=True) if unbounded else rule.round(scaled)
        result.append(np.ldexp(np.asarray(value).astype(np.float64), -rule.exponent))
        left = left - result[-1]
    return result


def total(a: list[Floats], b: list[Floats], products: Sequence[tuple[int, int]], device: Device = "cpu") -> Floats:
    """The sum of the products of words, exact and rounded once to fp64."""
    left = np.concatenate([a[i] for i, _ in products], axis=1)
    right = np.concatenate([b[j] for _, j in products], axis=0)
    return np.asarray(reference.matmul(left, right, device=device))


_LOOK = {
    "error": Series("error of the method", plotting.BLACK, "s", "-"),
    "direction": Series("sums rounded toward zero", plotting.ORANGE, "^", "-."),
    "alignment": Series("truncation at alignment", plotting.VERMILION, "o", "--"),
    "rounding": Series("other errors of the sums", plotting.SKY, "D", ":"),
    "flushed": Series("words replaced by zero", plotting.PURPLE, "v", "-."),
    "underflow": Series("residual below fp16", plotting.BLUE, "P", ":"),
    "product": Series("omitted product", plotting.GREY, "<", "--"),
    "bits": Series("bits beyond two words", plotting.GREEN, "x", "--"),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(len(METHODS), len(CHIPS), height=6.4)
    lengths = sorted({row["k"] for row in rows})
    largest = max(row[f"{name} error"] for row in rows for name in METHODS)
    for line, chip in zip(axes, CHIPS, strict=True):
        for axis, name in zip(line, METHODS, strict=True):
            for what, look in _LOOK.items():
                column = f"{name} error" if what == "error" else f"{name} part {what}"
                runs = [_runs(rows, chip, k, column) for k in lengths]
                wide = {"linewidth": 1.8, "zorder": 1.9} if what == "error" else {}
                if any(np.median(run) > SHOWN for run in runs):
                    plotting.band(
                        axis, lengths, [run if np.median(run) > SHOWN else [np.nan] for run in runs], look, **wide
                    )
            axis.set_xscale("log", base=4)
            axis.set(yscale="log", ylim=(SHOWN, 2 * largest))
            axis.set_xticks(lengths, [str(k) for k in lengths])
            axis.tick_params(axis="x", which="minor", bottom=False)
        line[0].set_ylabel("relative $L_2$ norm")
    for axis in axes[-1]:
        axis.set_xlabel("inner length $k$")
    titles = [f"{label}, {plotting.HARDWARE[chip].label}" for chip in CHIPS for label in METHODS.values()]
    plotting.panel_titles(axes, titles)
    sides = rows[0]["rows"]
    plotting.legend_below(figure, axes, 2, f"{sides}×{sides}×$k$, uniform in [-1, 1]; {in_legend(rows)}")
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for chip, gpu in (("cdna2", "MI210"), ("ampere", "A800")):
        for k in sorted({row["k"] for row in rows}):
            share = 100 * shares(rows, "legemm", chip, k)["product"]
            yield Measure("product_of_residuals_is_negligible", share, "", f"K = {k}, {gpu}")


def shares(rows: list[Row], scheme: str, hardware: str, k: int) -> dict[str, float]:
    """By how much each cause's removal lowers the squared error, over the squared error as it is; they sum to 1."""
    here = [row for row in rows if row["hardware"] == hardware and row["k"] == k]
    squares = [float(np.mean([row[f"{scheme} error"] ** 2 for row in here]))]
    squares += [float(np.mean([row[f"{scheme} left after {part}"] ** 2 for row in here])) for part in PARTS]
    return {part: (squares[i] - squares[i + 1]) / squares[0] for i, part in enumerate(PARTS)}


def finding(rows: list[Row]) -> str:
    k = max(row["k"] for row in rows)
    statements: list[tuple[Any, ...]] = []
    for chip in CHIPS:
        for name, label in METHODS.items():
            share = shares(rows, name, chip, k)
            causes = {
                "truncation in the accumulator": share["alignment"] + share["direction"],
                "remaining errors of the sums": share["rounding"],
                "subnormal words": share["flushed"] + share["underflow"],
                "bits and product omitted": share["bits"] + share["product"],
            }
            whole = f"the error of {label} is {_mean(rows, chip, k, f'{name} error'):.2g}; its square has these shares"
            statements.append((f"on {plotting.HARDWARE[chip].label}, k = {k}, {whole}", causes, ".3g%"))
    for chip in CHIPS[:2]:
        error, alone, nearest = (
            _mean(rows, chip, k, f"markidis {what}")
            for what in ("error", "without alignment alone", "left after direction")
        )
        factors = {
            "without sums toward zero": nearest / error,
            "without alignment": alone / error,
            "of LE-GEMM": _mean(rows, chip, k, "legemm error") / error,
        }
        statements.append(
            (f"the errors relative to Markidis' method on {plotting.HARDWARE[chip].label} are", factors, ".3g×")
        )
        statements.append(
            ("truncation at alignment reduces the error below the error of rounding toward zero alone", alone > error)
        )
    left = {label: _mean(rows, "cdna2", k, f"{name} left after flushed") for name, label in METHODS.items()}
    return paragraph(
        *statements, ("with exact sums and no word replaced by zero the errors on CDNA 2 are", left, ".2g")
    )


_mean, _runs = mean_by("hardware", "k"), runs_by("hardware", "k")


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, cost, quick={"rows": 16, "runs": 3})
