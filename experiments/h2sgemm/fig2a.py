"""H2SGEMM, figure 2(a): probability of underflow of the residual, Equations 3 to 5 against all 2^23 mantissas.

A number x = 1.M · 2^E is split as h = RNE16(x) and the residual d = x - h, whose exponent is E - 12 - N. Equation 3
gives the probability that h was rounded down (T) or up (R) and that d has N = n. It is a joint probability, though it
is introduced as one "given N = n". Equation 5 sums it over the N with which d is below fp16's smallest normal number,
2^-14 (underflow or gradual underflow, u + gu) or below its smallest number at all, 2^-24 (underflow, u).

The enumeration has these results. With N counted from E, Equation 3 is correct in every term and sums to one. With N
as in Equation 2, from the exponent E' of h after a carry, it is wrong, and N ranges from -1 to 11, not from 0 to 10.
Equation 5 counts exact splits (d = 0, N = 12), a share of 2^-13, as underflows wherever a residual of exponent E - 24
would underflow. Its second line counts residuals below 2^-24 as lost, although RNE16 rounds all residuals above 2^-25
to 2^-24. The residuals with 0 < abs(d) <= 2^-25 become zero, and for E >= -14

    P_gone(E) = sum over n = E + 14 to 11 of (P(n, T) + P(n, R))  +  2^-12 if -1 < E + 13 < 12  +  2^-13 if E + 13 = -1

where the last two terms are the residuals of exactly 2^-25. This is about half of the printed probability; its curve
is shifted by one exponent to the left.

The formulas come from `_underflow`, and the counts from `_enumeration`, which proves that 2^14
mantissas suffice: the residual has the period 2^14 in M from E = -14 up, and 2^(14 - 14 - E) below. Quantities that
depend on a carry into the exponent of h have no period, so all 2^23 mantissas are enumerated for E = -14 and 0.
"""

from collections.abc import Iterator
from typing import Any, Literal

from fpemu import plotting
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row
from . import _enumeration as enumeration
from . import _underflow as underflow
from ._residuals import Split

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 3.1.2, figure 2(a)"
CAPTION = """Residual d = x - RNE16(x) of x = 1.M·2^E over all 2^23 mantissas M at E = -14 and 0, elsewhere over one
period of d in M, which gives the same shares. (a) Probability that d has the
exponent E - 12 - N: Equation 3 (open) and counted (filled), h rounded down (T) or up (R); N = 12 is d = 0. Crosses: N
counted from the exponent of h after a carry, as Equation 2 has it. (b) Over E: Equation 5 (lines) and counted
(markers) for residuals below fp16's normal range, 2^-14, and below its smallest number, 2^-24; and those that really
become zero (abs(d) at most 2^-25, d not 0), counted and by the corrected formula."""
ASSUMPTIONS = [
    """T and R are interpreted as the events that rounding to nearest decreases (T) or increases (R) the magnitude of h
    in one RNE split, and P(N, X) as a joint probability; only then can Equation 5 add them.""",
    "All 2^23 mantissas of an exponent are equally likely; the sign does not matter.",
    """N counts from the exponent E of x (Equations 3 to 5), and in one reading from the exponent of h after a carry
    (Equation 2).""",
    "A probability formula agrees at a point if it equals the count exactly; both are multiples of 2^-23.",
    "This project derived and checked the corrected formula of the residuals that become 0.",
    """The paper does not print the exponents of figure 2(a); here they are -16 to 4. The formulas hold for normal and
    finite h, so they are judged from -14 on.""",
    """"Significant" underflow means more than 10 %, the percentage in the paper; "approaching 100 %" means 99 % or
    more.""",
]

FRACTION = 23
N_RANGE = range(-1, 13)
EVENTS: tuple[Literal["T", "R"], ...] = ("T", "R")
DIGITS = dict.fromkeys(
    ["below normal", "below least", "gone", "exact", *(f"{name} {n}" for name in ("T", "R", "carry") for n in N_RANGE)]
)
"""Shares of 2^23 mantissas: binary fractions without rounding, in full, because the claims compare them exactly."""
EXPONENTS = range(-16, 5)


def cells() -> list[Row]:
    return [{"exponent": e, "mantissas": FRACTION if e in (-14, 0) else period(e)} for e in EXPONENTS]


def period(exponent: int) -> int:
    """How many low bits of the mantissa decide the residual at an exponent below 15."""
    return Split.of("fp32", "fp16").period(exponent)


def evaluate(cell: Row) -> dict[str, float]:
    """Shares of the mantissas 0 to 2^mantissas - 1 at an exponent.

    "T n" and "R n" by N from x's exponent, "carry n" by N from h's; "below normal", "below least": abs(d) < 2^-14 and
    2^-24, d = 0 included; "gone": the fp16 word of d is 0, d is not; "exact": d = 0.
    """
    numbers = enumeration.residuals(cell["exponent"], mantissas=cell["mantissas"])
    count = numbers.mantissas
    shares = {
        "below normal": numbers.below_normal / count,
        "below least": numbers.below_least / count,
        "gone": numbers.gone / count,
        "exact": numbers.exact / count,
    }
    for name, histogram in (("T", numbers.down), ("R", numbers.up), ("carry", numbers.carried)):
        shares |= {f"{name} {n}": histogram[n] / count for n in N_RANGE}
    return shares


def equation_3(n: int, event: Literal["T", "R"]) -> float:
    """P(N = n, event) as printed, l_M = 23 and l_Mhigh = 10."""
    return underflow.residual_probability(n, event)


def equation_5(exponent: int, *, gradual: bool) -> float:
    """P_{u+gu} or P_u at an exponent, as printed."""
    return underflow.underflow_probability(exponent, gradual=gradual, form="printed")


def gone(exponent: int) -> float:
    """The corrected P_u: the share of numbers whose residual is not 0 and whose fp16 word is."""
    return underflow.underflow_probability(exponent)


_LOOK = {
    "T": Series("T counted", plotting.BLUE, "o", ""),
    "R": Series("R counted", plotting.ORANGE, "D", ""),
    "carry": Series("T + R, N after the carry", plotting.VERMILION, "x", ""),
    "below normal": Series("below $2^{-14}$, counted", plotting.GREEN, "s", ""),
    "below least": Series("below $2^{-24}$, counted", plotting.PURPLE, "^", ""),
    "gone": Series("becomes 0, counted", plotting.BLACK, "o", ""),
}


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(1, 2, height=6.0, share_x=False, share_y=False)
    left, right = axes[:, 0]
    row = next(row for row in _normal(rows) if row["mantissas"] == FRACTION)
    for event, shift in zip(EVENTS, (-0.16, 0.16), strict=True):
        look = _LOOK[event]
        ns = [n for n in N_RANGE if row[f"{event} {n}"] or equation_3(n, event)]
        ring = Series(f"{event}, Eq. 3", look.color, look.marker, "", filled=False)
        left.plot([n + shift for n in ns], [equation_3(n, event) for n in ns], **ring.line(markersize=7.5))
        left.plot([n + shift for n in ns], [row[f"{event} {n}"] for n in ns], **look.line())
    left.plot(list(N_RANGE), [row[f"carry {n}"] for n in N_RANGE], **_LOOK["carry"].line())
    left.set_yscale("log", base=2)
    left.set_xticks(list(N_RANGE))
    left.set(xlabel="$N$: the residual's exponent is $E - 12 - N$", ylabel="probability")
    exponents = [row["exponent"] for row in rows]
    for name, formula in _FORMULAS.items():
        look = _LOOK[name]
        label = {"gone": "becomes 0, corrected"}.get(name, f"{name.replace('below', 'Eq. 5, below')}")
        label = label.replace("normal", "$2^{-14}$").replace("least", "$2^{-24}$")
        judged = [e for e in exponents if e >= -14 or name != "gone"]
        right.plot(judged, [formula(e) for e in judged], color=look.color, linestyle=_DASHES[name], label=label)
        right.plot(exponents, [row[name] for row in rows], **look.line(zorder=3))
    right.set(xlabel="exponent $E$ of the number", ylabel="probability")
    right.set_xticks(range(-16, 5, 4))
    right.axhline(0.1, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
    right.annotate("10 %", (-16, 0.1), xytext=(0, 2), textcoords="offset points", color=plotting.GREY)
    plotting.panel_titles(axes, ["exponent of the residual", "underflow over the exponent"])
    for axis in (left, right):
        axis.legend(loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=2, columnspacing=1.2)
    return figure


_DASHES = {"below normal": "--", "below least": "-.", "gone": "-"}
_FORMULAS = {
    "below normal": lambda e: equation_5(e, gradual=True),
    "below least": lambda e: equation_5(e, gradual=False),
    "gone": gone,
}


def measures(rows: list[Row]) -> Iterator[Measure]:
    judged = _normal(rows)
    pairs = {
        "N from the exponent of x": [
            (equation_3(n, event), row[f"{event} {n}"]) for row in judged for n in N_RANGE for event in EVENTS
        ],
        "N from the exponent of h (Eq. 2)": [
            (equation_3(n, "T") + equation_3(n, "R"), row[f"carry {n}"])
            for row in judged
            if row["mantissas"] == FRACTION
            for n in N_RANGE
        ],
    }
    for reading, both in pairs.items():
        yield Measure("eq3_exact", max(abs(printed - counted) for printed, counted in both), reading)
    for variant, column in (("P_u+gu", "below normal"), ("P_u", "below least")):
        counts = {
            "residual below the limit": [row[column] for row in judged],
            "residual below the limit, not 0": [row[column] - row["exact"] for row in judged],
        }
        if column == "below least":
            counts["residual becomes 0 in fp16"] = [row["gone"] for row in judged]
        for reading, counted in counts.items():
            apart = [abs(_FORMULAS[column](row["exponent"]) - x) for row, x in zip(judged, counted, strict=True)]
            yield Measure("eq5_exact", max(apart), reading, variant)
    yield Measure("eq5_corrected", max(abs(gone(row["exponent"]) - row["gone"]) for row in judged))
    for reading, column in (("residual below the limit", "below least"), ("residual becomes 0 in fp16", "gone")):
        wrong = {
            "gradual above 10 % at E = 0": [r for r in judged if r["exponent"] == 0 and r["below normal"] <= 0.1],
            "10 % at most from E = -10 on": [r for r in judged if r["exponent"] >= -10 and r[column] > 0.1],
            "99 % or more below E = -12": [r for r in judged if r["exponent"] < -12 and r[column] < 0.99],
        }
        for variant, of in wrong.items():
            yield Measure("underflow_onset", float(len(of)), reading, variant)


def finding(rows: list[Row]) -> str:
    lost = {row["exponent"]: (row["gone"], equation_5(row["exponent"], gradual=False)) for row in _normal(rows)}
    wrong = [e for e, (counted, printed) in lost.items() if counted != printed]
    return paragraph(
        (
            "Equation 5 differs from the share of residuals that become 0 at {}",
            f"{len(wrong)} of {len(lost)} exponents",
        ),
        (
            "the counted and the printed shares of residuals that become 0 are",
            {f"E = {e}:": " and ".join(f"{100 * p:.3g} %" for p in lost[e]) for e in wrong if -13 <= e <= -10},
        ),
        (
            "Equation 5 counts every residual below 2^-24 and exact splits; rounding to nearest raises residuals "
            "above 2^-25 to 2^-24",
            bool(wrong),
        ),
    )


def _normal(rows: list[Row]) -> list[Row]:
    """The rows in which h is a normal number."""
    return [row for row in rows if row["exponent"] >= -14]


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding, kind="M", digits=DIGITS)
