"""H2SGEMM: what the error of figure 8 is made of, at every offset exponent.

Four of figure 8's claims fail in places: HGEMM's 1e-4, sb = 0 worse than SGEMM, sb = 6 poor, and sb = 12 better than
SGEMM at the smallest exponents. The error of a split product has three parts, computed here apart from one another,

    A B - D = [A B - (h + r)_A (h + r)_B]  +  r_A r_B  +  [(h_A h_B + r_A h_B + h_A r_B) - D]
              what the words do not hold     the product    what the sums round
                                             left out

with r unscaled. The first is the underflow that the paper treats; the second it calls negligible (Equation 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import metrics, plotting, reference, schemes
from fpemu.mma import KOrder
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share
from fpemu.schemes import words
from fpemu.schemes.h2sgemm import H2sgemm

from .._findings import paragraph
from .._numeric import norm, problem
from .._rows import listed

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), sections 3.1.3 and 4.1, Eq. 7, figure 8"
TITLE = "what the error over the offset exponent is made of"
EXPLAINS = {"h2sgemm/underflow": (), "h2sgemm/fig8": ()}
CAPTION = """Term-wise H2SGEMM with sb = 0 (a, b) and sb = 12 (c, d) over the offset exponent e, operands uniform in
[-2^e, 2^e] (a, c) and [0, 2^e] (b, d). Relative L2 norms of the error, of what the two words do not hold, of the
product r_A·r_B that is left out, and of what the sums round; rings (c, d): the error with all four products. For
comparison HGEMM and SGEMM, whose band reaches from pairwise order to one chain of FMAs. Grey: every operand is below
fp16's normal range. Lines: mean over seeded runs. Ascend 910A cube as an assumed model."""
ASSUMPTIONS = [
    """The cube of the Ascend 910A adds 16 products and the accumulator exactly and rounds once to fp32 (assumed:
    nothing bit-exact is public).""",
    """The parts come from exact products of the words, each rounded once to fp64, and differ from one machine to the
    next in no bit. The norms of the parts do not add up to that of the error, but the largest of them is its size.""",
    """SGEMM in one ascending chain of fp32 FMAs, and in chains of 16 added pairwise: the paper's OpenBLAS lies at
    neither, and its order is not given.""",
    """"Negligible" (the product left out): at most a tenth of the error of the other parts together, sb = 12. Judged
    where fp16 is normal, -14 to 0, and below.""",
    """"Higher than SGEMM" (sb = 0) is judged at every e from -14 to 0, for either order of SGEMM; figure 8 judges the
    better of its two ways of combining, here it is term-wise.""",
]

KINDS = {"offset_symmetric": "uniform in $[-2^e,\\,2^e]$", "offset_nonnegative": "uniform in $[0,\\,2^e]$"}
SCALES = (0, 12)
PARTS = ("error", "words", "left out", "sums")
_SIZES = {
    "quick": {"m": 16, "k": 64 * 44, "runs": 3, "step": 2},
    "full": {"m": 176, "k": 64 * 44, "runs": 10, "step": 1},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {
            "hardware": "ascend910a",
            "inputs": kind,
            "exponent": exponent,
            "seed": seed,
            "m": chosen["m"],
            "n": chosen["m"],
            "k": chosen["k"],
        }
        for kind in KINDS
        for exponent in range(-20, 1, chosen["step"])
        for seed in range(chosen["runs"])
    ]


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    sides = (cell["m"], cell["n"], cell["k"])
    A, B, exact = problem(cell["inputs"], *sides, cell["seed"], device, exponent=cell["exponent"])
    gpu = cell["hardware"]
    numbers = {
        "HGEMM": metrics.relative_l2(schemes.gemm(A, B, scheme="fp16", hardware=gpu, device=device), exact),
        "SGEMM chain": metrics.relative_l2(schemes.gemm(A, B, scheme="sgemm", hardware=None, device=device), exact),
        "SGEMM pairwise": metrics.relative_l2(
            schemes.gemm(A, B, scheme="sgemm", hardware=None, order=KOrder(split=16, join="pairwise"), device=device),
            exact,
        ),
    }
    for sb in SCALES:
        scheme = H2sgemm(sb=sb)
        D = schemes.gemm(A, B, scheme=scheme, hardware=gpu, device=device)
        (ha, ra), (hb, rb) = (unscaled(X, scheme) for X in (A, B))
        held, left_out = reference.matmul(ha + ra, hb + rb, device=device), reference.matmul(ra, rb, device=device)
        parts = {"words": exact - held, "left out": left_out, "sums": held - left_out - D}
        size = norm(exact)
        numbers[f"sb={sb} error"] = metrics.relative_l2(D, exact)
        numbers |= {f"sb={sb} {name}": norm(part) / size for name, part in parts.items()}
    four = H2sgemm(sb=12, products=("rr", "rh", "hr", "hh"))
    return numbers | {
        "sb=12 four": metrics.relative_l2(schemes.gemm(A, B, scheme=four, hardware=gpu, device=device), exact)
    }


def unscaled(X: NDArray[Any], scheme: H2sgemm) -> list[NDArray[np.float64]]:
    """The words of X in units of X, as float64."""
    return [
        np.ldexp(word.astype(np.float64), -rule.exponent)
        for rule, word in zip(scheme.rules(), words.split(X, scheme.rules()), strict=True)
    ]


_LOOK = {
    "error": Series("H2SGEMM, three products", plotting.BLUE, "o", "-"),
    "words": Series("not held by h and r", plotting.ORANGE, "^", "--"),
    "left out": Series("$r_A\\cdot r_B$, left out", plotting.VERMILION, "v", "--"),
    "sums": Series("rounded by the sums", plotting.GREEN, "D", ":"),
    "four": Series("H2SGEMM, four products", plotting.PURPLE, "o", "", filled=False),
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.2)
    exponents = sorted({row["exponent"] for row in rows})
    for line, sb in zip(axes, SCALES, strict=True):
        for axis, kind in zip(line, KINDS, strict=True):
            axis.axvspan(-20.8, -14.5, color=plotting.GREY, alpha=0.1, linewidth=0)
            low, high = (mean(rows, kind, f"SGEMM {order}") for order in ("pairwise", "chain"))
            axis.fill_between(exponents, low, high, color=plotting.BLACK, alpha=0.2, linewidth=0, label="SGEMM (fp32)")
            axis.plot(exponents, mean(rows, kind, "HGEMM"), color=plotting.GREY, marker="x", label="HGEMM (fp16)")
            for name, look in _LOOK.items():
                if name == "four" and not sb:
                    continue  # unscaled, r_A r_B is never what matters
                values = mean(rows, kind, f"sb={sb} {name}")
                ring = {"markersize": 6.5, "zorder": 1.9} if name == "four" else {}
                axis.plot(exponents, np.where(values > 0, values, np.nan), **look.line(**ring))
            axis.set_yscale("log")
            axis.set_ylim(1e-10, 0.2)
            axis.set_xlim(-20.8, 0.8)
            axis.set_xticks(range(-20, 1, 4))
        line[0].set_ylabel("relative $L_2$ norm")
    for axis in axes[-1]:
        axis.set_xlabel("offset exponent $e$")
    plotting.panel_titles(axes, [f"sb = {sb}, {title}" for sb in SCALES for title in KINDS.values()])
    plotting.legend_below(figure, axes[1, 0], 4)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    e = np.array(sorted({row["exponent"] for row in rows}))
    normal, below = e >= -14, e < -14
    for letter, other, kind in zip("ab", "cd", KINDS, strict=True):
        for order in ("chain", "pairwise"):
            ratio = (mean(rows, kind, "sb=0 error") / mean(rows, kind, f"SGEMM {order}"))[normal]
            text = f"({letter}) sb=0 term-wise / SGEMM, {order}, e -14 to 0"
            yield share(text, "higher than SGEMM", ratio > 1, _span(ratio))
        rest = np.hypot(mean(rows, kind, "sb=12 words"), mean(rows, kind, "sb=12 sums"))
        ratio = mean(rows, kind, "sb=12 left out") / rest
        for where, span in ((normal, "e -14 to 0"), (below, "e below -14")):
            text = f"({other}) the product r_A r_B is negligible, {span}"
            measured = f"{_span(ratio[where])} of the rest"
            yield share(text, "negligible", ratio[where] <= 0.1, measured)


def finding(rows: list[dict[str, Any]]) -> str:
    e = sorted({row["exponent"] for row in rows})
    zero, positive = KINDS
    k = rows[0]["k"]

    def at(kind: str, exponent: int, name: str) -> float:
        return float(mean(rows, kind, name)[e.index(exponent)])

    plain, flat, root = at(positive, e[-1], "HGEMM"), at(zero, e[-1], "HGEMM"), 0.75 * math.sqrt(k)
    random = 1 / 1.25 <= flat / plain / root <= 1.25
    better = {}
    for order in ("chain", "pairwise"):
        where = [x for x in e if at(zero, x, "sb=0 error") < at(zero, x, f"SGEMM {order}")]
        span = f"from e = {where[0]} on" if where == e[-len(where) :] else f"at e = {', '.join(map(str, where))}"
        better[f"SGEMM {order}"] = span if where else "nowhere"
    parts = ("error", "left out", "words", "four")
    below = [x for x in e if x < -14]
    larger = {at(zero, x, "sb=12 left out") > at(zero, x, "sb=12 words") for x in below}
    last = at(zero, below[-1], "sb=12 left out") if len(below) > 1 else 0.0
    growth = (at(zero, e[0], "sb=12 left out") / last) ** (1 / (below[-1] - below[0])) if last > 0 else None
    return paragraph(
        (f"HGEMM at k = {k}", {"positive data": plain, "both signs": flat}, ".2g"),
        (f"ratio (3/4 of the root of k: {root:.3g})", flat / plain),
        (
            "so it is with errors of random sign, which on positive data add up as the root of k, the result as k",
            random,
        ),
        ("k for an error of 1e-4 there", k * (plain / 1e-4) ** 2 if random else None, ".2g"),
        (
            f"sb = 0 at e = {e[-1]}, both signs",
            {
                "not held by the words": at(zero, e[-1], "sb=0 words"),
                "rounded by the sums": at(zero, e[-1], "sb=0 sums"),
                "SGEMM's chain": at(zero, e[-1], "SGEMM chain"),
            },
            ".2g",
        ),
        ("unscaled H2SGEMM is better than", better),
        (
            f"sb = 12 at e = {e[0]}",
            dict(
                zip(
                    ("error", "r_A r_B, left out", "not held by the words", "error with the fourth product"),
                    (at(zero, e[0], f"sb=12 {name}") for name in parts),
                    strict=True,
                )
            ),
            ".2g",
        ),
        ("below e = -14 the larger loss is the product called negligible", larger == {True}),
        ("below e = -14 the larger loss is not held by the words", larger == {False}),
        (f"factor of r_A r_B for every exponent, e = {below[-1] if below else 0} to {e[0]}", growth),
    )


def mean(rows: list[dict[str, Any]], kind: str, name: str) -> NDArray[np.float64]:
    """The mean over the runs at every exponent of the rows, ascending."""
    exponents = sorted({row["exponent"] for row in rows})
    return np.array(
        [np.mean([row[name] for row in rows if (row["inputs"], row["exponent"]) == (kind, x)]) for x in exponents]
    )


def _span(values: Any) -> str:
    return f"{np.min(values):.2g} to {np.max(values):.2g}" if len(values) else ""
