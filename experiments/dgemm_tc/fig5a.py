"""DGEMM-TC, figures 5a and 7a: where the time goes, splitting, products and sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import plotting
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed
from ..speed._look import legend
from ..speed._record import evaluate, products, told
from ._speed import ASSUMPTIONS as _ASSUMPTIONS
from ._speed import PHIS, line

__all__ = ["evaluate"]

PAPER = "DGEMM using Tensor Cores, ISC High Performance 2020, section 5.2, figures 5a and 7a"
TITLE = "time of DGEMM-TC by its parts"
KIND = "G"
EXPLAINS = ("dgemm_tc/fig5a",)
CAPTION = f"""Shares of the time of a call that splitting, products on the tensor cores and sums take, over n, for three
ranges of the inputs (bars of an n: phi = 0.1, 1 and 2). (a) DP mode, (b) CR mode.
{told("dgemm_tc/fig5a", "ozaki DP", "ozaki CR")}"""
ASSUMPTIONS = [
    *_ASSUMPTIONS,
    """Parts are timed one after another in one call, with events between them; the rest of the call, where the host
    waits, is not shown. Splitting is all that comes before the products: counting slices, scaling, cutting.""",
]
PARTS = {"split": plotting.GREEN, "products": plotting.BLUE, "sums": plotting.ORANGE}
MODES = ("ozaki DP", "ozaki CR")


def cells(size: str) -> list[dict[str, Any]]:
    return products(MODES, lambda row: any(name.startswith("part ") for name in row), PHIS)


def _shares(row: dict[str, Any]) -> dict[str, float]:
    seconds = {part: float(row[f"part {part}"]) for part in PARTS if f"part {part}" in row}
    return {part: value / sum(seconds.values()) for part, value in seconds.items()}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 1, height=2.8)
    for axis, name in zip(axes[0], MODES, strict=True):
        sizes = sorted({row["M"] for row in rows if row["contender"] == name})
        for number, data in enumerate(PHIS):
            for row in line(rows, name, data):
                foot, place = 0.0, sizes.index(row["M"]) + 0.27 * (number - 1)
                for part, value in _shares(row).items():
                    axis.bar([place], [value], 0.25, bottom=[foot], color=PARTS[part])
                    foot += value
        for part, colour in PARTS.items():
            axis.bar([np.nan], [np.nan], color=colour, label=part)
        axis.set_xticks(range(len(sizes)), [str(n) for n in sizes])
        axis.grid(False, axis="x")
        axis.set_xlabel("$n$")
    axes[0, 0].set_ylabel("share of the time")
    plotting.panel_titles(axes, ["DP mode", "CR mode"])
    legend(figure, axes, 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for implementation, name in zip(MODES, ("DP mode", "CR mode"), strict=True):
        selected = [_shares(row)["products"] for data in PHIS for row in line(rows, implementation, data)]
        yield share(
            f"{name}: products take the most time",
            "dominated by Tensor Core computations",
            [x > 0.5 for x in selected],
            _ends(selected),
        )
    sums = {
        implementation: {
            (row["M"], data): _shares(row)["sums"]
            for data in PHIS
            for row in line(rows, implementation, data)
            if "part sums" in row
        }
        for implementation in MODES
    }
    pairs = [(sums["ozaki DP"][key], value) for key, value in sums["ozaki CR"].items() if key in sums["ozaki DP"]]
    yield share(
        "sums take a larger share in CR mode",
        "increased the summation cost",
        [b > a for a, b in pairs],
        _ends([b for _, b in pairs]),
    )


def _ends(values: list[float]) -> str:
    return f"{100 * min(values):.3g} to {100 * max(values):.3g} %" if values else ""


def finding(rows: list[dict[str, Any]]) -> str:
    lines = {
        name: selected
        for implementation, name in zip(MODES, ("DP", "CR"), strict=True)
        if (selected := line(rows, implementation, "phi 0.1"))
    }
    shares = {
        f"{name} mode, n = {selected[i]['M']}": {part: x for part, x in _shares(selected[i]).items()}
        for i in (-1, 0)
        for name, selected in lines.items()
    }
    return paragraph(
        ("shares of the time, φ = 0.1 (published: about 70 % products in DP mode at n = 7168)", shares, ".3g%"),
        ("splitting grows with n², products with n³: small products are mostly splitting", bool(shares)),
    )
