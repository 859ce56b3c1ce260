"""H2SGEMM: the error over the whole plane of scaling exponents and offset exponents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fpemu import metrics, plotting, schemes
from fpemu.mma._device import Device
from fpemu.reproduce.claims import Claim, share
from fpemu.sweep import planes
from fpemu.sweep.planes import Plane

from .._findings import paragraph
from .._numeric import problem
from .._rows import listed

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 3.1.3, equation 6"
TITLE = "error over the scaling exponent and the offset exponent"
CAPTION = """Relative L2 error of H2SGEMM over the offset exponent e of the operands, uniform in [-2^e, 2^e] or
[0, 2^e], and the scaling exponent sb; mean over seeded runs. Outlined: the best sb of each e with all within 5 % of it.
Hatched: a run overflowed. Equation 6 for the largest entries, whose offset exponent is e - 1: its lower bound, its
upper bound as printed, and the upper bound that holds, one less, since the residual of a number midway between two fp16
numbers is twice what the paper allows for. Ascend 910A cube as an assumed model."""
ASSUMPTIONS = [
    """The cube of the Ascend 910A adds 16 products and the accumulator exactly and rounds once to fp32 (assumed:
    nothing bit-exact is public).""",
    """The paper draws no such plane: sb from -2 to 24 and e from -20 to 15 hold every binade of fp16, the smallest
    subnormal ones left out, and what equation 6 allows there.""",
    """Half of the entries, by magnitude, lie in [2^(e-1), 2^e): equation 6 is read with their offset exponent, e - 1.
    Smaller entries lose no more in absolute terms. The bounds end at e = -13: below it no entry is normal in fp16, and
    no sb keeps 22 bits.""",
    """The plane ends at e = 15: entries stay below 2^15, so that sb = 12 does not meet the numbers midway between two
    fp16 numbers above 2^15, whose residual it makes overflow.""",
    """"Recommended" is taken to mean: at every e where equation 6, as printed, allows sb = 12 (e from -13 to 15), the
    error with sb = 12 is at most 1.5 times the smallest error of any sb. Settled before the plane was computed.""",
    """Sizes: m = n = 24, k = 256 at quick size, element-wise with one run; m = n = 48, k = 64·44 at full size.""",
    """SGEMM is one ascending chain of fp32 FMAs for each element. "With rr" keeps the product of the two residuals,
    which H2SGEMM leaves out, at sb = 12.""",
]
EXPLAINS = {"h2sgemm/fig8": ("e -20 to -15", "sb=0")}

SCALES = range(-2, 25)
OFFSETS = range(-20, 16)
RECOMMENDED, NEAR = 12, 1.5
KINDS = {"offset_symmetric": "$[-2^e,\\,2^e]$", "offset_nonnegative": "$[0,\\,2^e]$"}
COMBINATIONS = ("term-wise", "element-wise")
_SIZES: dict[str, dict[str, Any]] = {
    "quick": {"m": 24, "n": 24, "k": 256, "runs": {"term-wise": 2, "element-wise": 1}},
    "full": {"m": 48, "n": 48, "k": 64 * 44, "runs": {"term-wise": 10, "element-wise": 10}},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    return [
        {
            "hardware": "ascend910a",
            "inputs": kind,
            "combine": combine,
            "exponent": exponent,
            "seed": seed,
            "m": chosen["m"],
            "n": chosen["n"],
            "k": chosen["k"],
        }
        for kind in KINDS
        for combine in COMBINATIONS
        for exponent in OFFSETS
        for seed in range(chosen["runs"][combine])
    ]


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    sides = (cell["m"], cell["n"], cell["k"])
    A, B, exact = problem(cell["inputs"], *sides, cell["seed"], device, exponent=cell["exponent"])
    choice = {"scheme": "h2sgemm", "combine": cell["combine"], "hardware": cell["hardware"], "on_range": "propagate"}
    four = schemes.gemm(A, B, sb=RECOMMENDED, products=("rr", "rh", "hr", "hh"), device=device, **choice)
    numbers = {
        "SGEMM": metrics.relative_l2(schemes.gemm(A, B, scheme="sgemm", device=device), exact),
        "with rr": metrics.relative_l2(four, exact),
    }
    for sb in SCALES:
        numbers[f"sb={sb}"] = metrics.relative_l2(schemes.gemm(A, B, sb=sb, device=device, **choice), exact)
    return numbers


def cost(cell: dict[str, Any]) -> float:
    return 4.0 if cell["combine"] == "element-wise" else 1.0


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.6)
    maps = {(combine, kind): _plane(rows, kind, combine) for combine in COMBINATIONS for kind in KINDS}
    shown = np.concatenate([one.errors[np.isfinite(one.errors)] for one in maps.values()])
    titles, mesh = [], None
    for axis, ((combine, kind), one) in zip(axes.ravel(), maps.items(), strict=True):
        mesh = planes.draw(axis, one, low=shown.min(), high=shown.max(), lines=planes.bounds(one, lambda e: int(e) - 1))
        axis.axhline(
            RECOMMENDED, color=plotting.PURPLE, linestyle="-.", linewidth=1.1, label=f"sb = {RECOMMENDED}", zorder=2.5
        )
        titles.append(f"{combine}, {KINDS[kind]}")
        axis.set_xticks(range(-20, 16, 5))
        axis.set_yticks(range(0, 25, 4))
    for axis in axes[-1]:
        axis.set_xlabel("offset exponent $e$")
    for axis in axes[:, 0]:
        axis.set_ylabel("scaling exponent sb")
    plotting.colour_bar(figure, mesh, axes, "relative $L_2$ error")
    plotting.panel_titles(axes, titles)
    plotting.legend_below(figure, axes[0, 0], 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for combine in COMBINATIONS:
        for kind in KINDS:
            one = _plane(rows, kind, combine)
            loss = _loss(one, RECOMMENDED)
            where = [i for i, e in enumerate(one.xs) if _allowed(e)]
            measured = f"{loss[where].min():.3g} to {loss[where].max():.3g} times the smallest error" if where else ""
            name = f"{combine}, uniform in {_plain(kind)}: sb = {RECOMMENDED} against the best sb, e -13 to 15"
            yield share(name, "a robust choice", loss[where] <= NEAR, measured)


def finding(rows: list[dict[str, Any]]) -> str:
    statements: list[tuple[Any, ...]] = []
    for kind in KINDS:
        one = _plane(rows, kind, "term-wise")
        if not one.xs:
            continue
        near, loss, unscaled = planes.single(one, NEAR), _loss(one, RECOMMENDED), _loss(one, 0)
        allowed = [i for i, e in enumerate(one.xs) if _allowed(e)]
        served = [i for i, e in enumerate(one.xs) if e >= -1]  # where equation 6 allows sb = 0
        exponents = [one.xs[i] for i in served]
        ratio = _mean(rows, kind, "sb=0", exponents) / _mean(rows, kind, "SGEMM", exponents)
        statements += [
            (
                f"uniform in {_plain(kind)}, term-wise: sb = {planes.spans(near.ys, one.ys)} is within a factor of "
                f"{NEAR} of the best sb at the most offset exponents",
                f"{near.count} of {near.points} (sb = {RECOMMENDED}: {np.count_nonzero(loss <= NEAR)})",
            ),
            (
                f"error with sb = {RECOMMENDED} over the smallest, where equation 6 allows it, at most",
                loss[allowed].max() if allowed else None,
            ),
            ("with sb = 0, allowed from e = -1 on, at most", unscaled[served].max() if served else None),
            ("error with sb = 0 over SGEMM's there", ratio, ".2g×"),
            *_below_normal(rows, kind, one),
        ]
    return paragraph(*statements, *_overflows(rows))


def _below_normal(rows: list[dict[str, Any]], kind: str, one: Plane) -> list[tuple[Any, ...]]:
    """Below fp16's normal range: no sb helps, the product left out does."""
    low = [e for e in one.xs if e < -13]
    if not low:
        return []
    single, four, twelve = (_mean(rows, kind, name, low) for name in ("SGEMM", "with rr", f"sb={RECOMMENDED}"))
    smallest = np.array([b.error for b in planes.best(one) if b.x in low])
    left_out = {"without the product of the residuals": twelve[0], "with it": four[0]}
    return [
        (
            f"e = {planes.spans(low, one.xs)}, where h is subnormal: error with the best sb over SGEMM's",
            smallest / single,
            ".3g×",
        ),
        (f"largest gain over sb = {RECOMMENDED}", (twelve / smallest).max(), ".3g×"),
        (f"error at e = {low[0]:g}", left_out, ".2g"),
    ]


def _overflows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The runs that overflow at equation 6's upper bound, as printed and one below."""
    finite = {
        total: [
            bool(np.isfinite(row[name]))
            for row in rows
            if row["exponent"] >= -13 and (name := f"sb={total - (row['exponent'] - 1)}") in row
        ]
        for total in (27, 26)
    }
    counts = [f"{runs.count(False)} of {len(runs)}" for runs in finite.values()]
    known = all(finite.values())
    return [
        (
            "runs that overflow at equation 6's upper bound",
            {"as printed": counts[0], "one below it": counts[1]} if known else None,
        ),
        ("the residual of a number midway between two fp16 numbers is twice what the bound allows for", known),
    ]


def _select(rows: list[dict[str, Any]], kind: str, combine: str, exponent: float | None = None) -> list[dict[str, Any]]:
    return [
        row
        for row in rows
        if row["inputs"] == kind and row["combine"] == combine and exponent in (None, row["exponent"])
    ]


def _mean(rows: list[dict[str, Any]], kind: str, name: str, exponents: Sequence[float]) -> Any:
    """The mean error of one method at some e, term-wise."""
    return np.array([np.mean([row[name] for row in _select(rows, kind, "term-wise", e)]) for e in exponents])


def _plane(rows: list[dict[str, Any]], kind: str, combine: str) -> Plane:
    long = [
        {"exponent": row["exponent"], "sb": sb, "error": row[f"sb={sb}"]}
        for row in _select(rows, kind, combine)
        for sb in SCALES
    ]
    if not long:  # one run of quick size has no element-wise products
        return Plane("exponent", "sb", (), tuple(SCALES), np.empty((len(SCALES), 0)))
    return planes.plane(long, "exponent", "sb", "error")


def _loss(one: Plane, sb: int) -> Any:
    """Error with one sb over the smallest error, at each e."""
    return planes.losses(one)[one.ys.index(sb)]


def _allowed(e: float) -> bool:
    """Whether equation 6, as printed, allows the recommended sb for entries up to 2^e."""
    return RECOMMENDED in planes.equation6(int(e) - 1, int(e) - 1, printed=True)


def _plain(kind: str) -> str:
    return "[-2^e, 2^e]" if kind == "offset_symmetric" else "[0, 2^e]"
