"""H2SGEMM: where term-wise with sb = 12 beats SGEMM, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fpemu import metrics, mma, plotting, schemes
from fpemu.mma import KOrder
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share
from fpemu.schemes import words
from fpemu.schemes.h2sgemm import H2sgemm
from fpemu.schemes.lowering import lower, run
from fpemu.schemes.words import Plan

from .._findings import paragraph
from .._numeric import problem
from .._rows import listed

PAPER = "H2SGEMM: emulating FP32 GEMM on Ascend NPUs using FP16 units (2025), section 4.1, figures 8 and 9"
TITLE = "why term-wise accumulation beats SGEMM"
EXPLAINS = ("h2sgemm/termwise",)
CAPTION = """Relative L2 error against the exact product, offset exponent 0. (a, c) Over k: SGEMM in one chain of FMAs,
in slices of 64 added one after another, and in chains of 16 added pairwise; H2SGEMM with sb = 12, term-wise on three
arithmetics and element-wise. (b, d) Over the length L of the block that is rounded once, at the k named: term-wise with
blocks summed exactly and rounded to nearest (the cube is L = 16) or with Hopper's truncation; the same with the largest
of the three sums added first; dotted: SGEMM's error at L = 1 falling as the root of the number of roundings, k/L.
Lines: mean over seeded runs; bands: smallest to largest run. Ascend 910A is an assumed model, the same as an ideal
one."""
ASSUMPTIONS = [
    """The cube of the Ascend 910A adds 16 products and the accumulator exactly and rounds once to fp32 (assumed:
    nothing bit-exact is public); the catalog's "ideal" hardware is the same arithmetic.""",
    """The order in which the paper's OpenBLAS adds is not given: one chain, slices of 64 in a row, and chains of 16
    joined pairwise bracket what blocked and vectorised kernels do.""",
    """Better than SGEMM is judged at every k shown, against every order on the Ascend's cube and against one chain on
    the others: SGEMM's mean error above term-wise's.""",
    """The paper's reason is tested in its two parts, on the Ascend's cube at the k of (b, d) and offset exponents 0, -7
    and -14: smaller sums first (against the largest first), and each product on its own (against element-wise). A part
    accounts for the advantage over SGEMM's chain where without it at least half of that is lost, in the logarithm of
    the error. Whether a part lowers the error at all is judged apart: above 1 the factor by which it does; for the
    order of the three sums, where the change may be noise, only the first is asked.""",
    """Ours (fewer roundings) does if SGEMM's chain errs more than the blocks of L = 16 by sqrt(16) within a factor of
    2, and blocks of L = 1 come within a factor of 1.5 of SGEMM's chain.""",
]

SGEMM = {"SGEMM chain": None, "SGEMM slices": KOrder(split=64), "SGEMM pairwise": KOrder(split=16, join="pairwise")}
TERMWISE = ("ascend910a", "ampere", "hopper")
EXPONENTS = (0, -7, -14)
ARITHMETICS = ("nearest", "large first", "truncated")
KINDS = {"offset_symmetric": "uniform in $[-1,\\,1]$", "offset_nonnegative": "uniform in $[0,\\,1]$"}
BLOCKS = (1, 2, 4, 8, 16, 32, 64)
_SIZES: dict[str, dict[str, Any]] = {
    "quick": {"m": 24, "k": (64, 256, 1024, 4096), "at": 4096, "runs": 3},
    "full": {"m": 128, "k": (64, 256, 1024, 4096, 16384, 65536), "at": 16384, "runs": 10},
}


def cells(size: str) -> list[dict[str, Any]]:
    chosen = _SIZES[size]
    listed = []
    for kind in KINDS:
        for k in chosen["k"]:
            methods = [(name, "", 0) for name in SGEMM] + [("term-wise", gpu, 0) for gpu in TERMWISE]
            methods.append(("element-wise", "ascend910a", 0))
            wanted = {0: methods}
            if k == chosen["at"]:
                methods += [(name, "", block) for name in ARITHMETICS for block in BLOCKS]
                methods.append(("large first", "ascend910a", 0))
                few = [("SGEMM chain", "", 0)]
                few += [(name, "ascend910a", 0) for name in ("term-wise", "element-wise", "large first")]
                wanted |= {exponent: few for exponent in EXPONENTS if exponent}
            # the methods innermost: they share the operands and the reference
            listed += [
                {
                    "inputs": kind,
                    "k": k,
                    "exponent": exponent,
                    "seed": seed,
                    "method": method,
                    "hardware": gpu,
                    "block": block,
                    "m": chosen["m"],
                    "n": chosen["m"],
                }
                for exponent, run in wanted.items()
                for seed in range(chosen["runs"])
                for method, gpu, block in run
            ]
    return listed


def cost(cell: dict[str, Any]) -> float:
    return float(cell["m"] * cell["n"] * cell["k"] + 10**6)


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    """The cells at block 0 run the instruction as it is, the others with a block of that length."""
    A, B, exact = problem(
        cell["inputs"], cell["m"], cell["n"], cell["k"], cell["seed"], device, exponent=cell["exponent"]
    )
    method = cell["method"]
    if method in SGEMM:
        D = schemes.gemm(A, B, scheme="sgemm", hardware=None, order=SGEMM[method], device=device)
    elif method in ("term-wise", "element-wise"):
        D = schemes.gemm(A, B, scheme=H2sgemm(sb=12, combine=method), hardware=cell["hardware"], device=device)
    else:
        # "cube" and "wgmma" with another length of the block, the arithmetic unchanged
        base = mma.spec("hopper" if method == "truncated" else "ascend910a", "fp16")
        spec = base.replace(k=cell["block"], block=cell["block"]) if cell["block"] else base
        if method == "large first":
            rules = H2sgemm(sb=12).rules()
            plan = Plan(((0, 0), (0, 1), (1, 0)), exponent=12, accumulators="each", join="as-run")
            D = run(words.split(A, rules), words.split(B, rules), lower(rules, plan, spec), spec)
        else:
            D = schemes.gemm(A, B, scheme=H2sgemm(sb=12), hardware=spec, device=device)
    return {"error": metrics.relative_l2(D, exact)}


_LOOK = {
    "SGEMM chain": Series("SGEMM, one chain", plotting.BLACK, "s", "-"),
    "SGEMM slices": Series("SGEMM, slices of 64", plotting.GREY, "s", "--", filled=False),
    "SGEMM pairwise": Series("SGEMM, pairwise", plotting.GREY, "v", ":"),
    "ascend910a": Series("term-wise, Ascend 910A", plotting.BLUE, "o", "-"),
    "ampere": Series("term-wise, Ampere", plotting.ORANGE, "^", "-"),
    "hopper": Series("term-wise, Hopper", plotting.GREEN, "D", "-"),
    "element-wise": Series("element-wise, Ascend 910A", plotting.VERMILION, "o", "--", filled=False),
    "nearest": Series("blocks to nearest", plotting.BLUE, "o", "-"),
    "large first": Series("same, largest sum first", plotting.SKY, "o", "", filled=False),
    "truncated": Series("blocks truncated (Hopper)", plotting.GREEN, "D", "-"),
}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, 2, height=5.2, share_y=True)
    ks = sorted({row["k"] for row in rows})
    at = _at(rows)
    for (left, right), kind in zip(axes, KINDS, strict=True):
        for name in (*SGEMM, *TERMWISE, "element-wise"):
            plotting.band(left, ks, [_runs(rows, kind, k, name) for k in ks], _LOOK[name])
        left.set_xscale("log", base=2)
        left.set_xticks(ks, [str(k) for k in ks])
        for name in ARITHMETICS:
            runs = [_runs(rows, kind, at, name, block) for block in BLOCKS]
            # a ring around the other join: the two have the same error
            ring = {"markersize": 7.0, "zorder": 1.9} if name == "large first" else {}
            plotting.band(right, BLOCKS, runs, _LOOK[name], **ring)
        chain = float(np.mean(_runs(rows, kind, at, "SGEMM chain")))
        right.axhline(chain, color=plotting.BLACK, linewidth=1.1, label="SGEMM, one chain")
        law = [chain / np.sqrt(block) for block in BLOCKS]
        right.plot(BLOCKS, law, color=plotting.BLACK, linestyle=(0, (1, 1.5)), linewidth=0.9, label=r"as $\sqrt{k/L}$")
        right.set_xscale("log", base=2)
        right.set_xticks(BLOCKS, [str(block) for block in BLOCKS])
        left.set_ylabel("relative $L_2$ error")
        for axis in (left, right):
            axis.set_yscale("log")
            axis.tick_params(axis="x", which="minor", bottom=False)
            axis.axhline(2.0**-24, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
        right.annotate(
            next(iter(plotting.U24)),
            (1.0, 2.0**-24),
            xycoords=("axes fraction", "data"),
            xytext=(-3, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=7,
            color=plotting.GREY,
        )
    axes[0, 0].set_ylim(bottom=1.5e-8)
    axes[1, 0].set_xlabel("$k$")
    axes[1, 1].set_xlabel("block length $L$: products rounded together")
    plotting.panel_titles(axes, [title for name in KINDS.values() for title in (name, f"{name}, $k = {at}$")])
    for axis in axes[1]:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, columnspacing=1.2)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    ks = sorted({row["k"] for row in rows})
    for letter, kind in zip("ac", KINDS, strict=True):
        error = {name: np.array([np.mean(_runs(rows, kind, k, name)) for k in ks]) for name in (*SGEMM, *TERMWISE)}
        for gpu in TERMWISE:
            for name in SGEMM if gpu == "ascend910a" else ("SGEMM chain",):
                ratio = error[name] / error[gpu]
                text = f"({letter}) {_LOOK[name].label} / {_LOOK[gpu].label}"
                published = "above 1" if (name, gpu) == ("SGEMM chain", "ascend910a") else ""
                yield share(text, published, ratio > 1, _span(ratio))
    at = _at(rows)
    if not at:
        return
    for letter, kind in zip("bd", KINDS, strict=True):
        chain = float(np.mean(_runs(rows, kind, at, "SGEMM chain")))
        blocked = {
            (name, block): float(np.mean(_runs(rows, kind, at, name, block)))
            for name in ARITHMETICS
            for block in BLOCKS
        }
        where = f"at e = {', '.join(map(str, EXPONENTS))}"
        for other, what in _PARTS.items():
            parts = _lost(rows, kind, other)
            text = f"({letter}) the advantage over SGEMM comes from {what}, {where}"
            measured = f"without it {_span([100 * lost for lost, _ in parts])} % of it is lost"
            yield share(text, "it does", [lost >= 0.5 for lost, _ in parts], measured)
        gained = [ratio for _, ratio in parts]
        text = f"({letter}) element-wise / term-wise: summing each product on its own lowers the error, {where}"
        yield share(text, "lower", [ratio > 1 for ratio in gained], _span(gained))
        ours = blocked["nearest", 16]
        ratio, one = chain / ours, blocked["nearest", 1] / chain
        text = f"({letter}) the advantage comes from rounding 16 products at once"
        measured = f"SGEMM / L = 16: {ratio:.3g}, L = 1 / SGEMM: {one:.3g}"
        yield share(text, "", [2 <= ratio <= 8, 1 / 1.5 <= one <= 1.5], measured)


def finding(rows: list[dict[str, Any]]) -> str:
    last, at = max(row["k"] for row in rows), _at(rows)
    zero, positive = KINDS

    def mean(kind: str, k: int, name: str, block: int = 0) -> float:
        return float(np.mean(_runs(rows, kind, k, name, block)))

    chain, cube, pairwise = (mean(zero, last, name) for name in ("SGEMM chain", "ascend910a", "SGEMM pairwise"))
    plain = mean(positive, last, "SGEMM chain")
    truncated = {gpu.capitalize(): mean(positive, last, gpu) / plain for gpu in ("hopper", "ampere")}
    statements: list[tuple[Any, ...]] = []
    for other, what in (("large first", "the largest sum first"), ("element-wise", "element-wise sums")):
        parts = [part for kind in KINDS for part in _lost(rows, kind, other)]
        lost = [share_ for share_, _ in parts]
        less, more = all(x < 0.5 for x in lost), all(x >= 0.5 for x in lost)
        statements += [
            (f"{what}: error over term-wise, e = {EXPONENTS[0]} to {EXPONENTS[-1]}", [x for _, x in parts], ".4g×"),
            ("share of the advantage over SGEMM that is lost", lost, ".2g%"),
            (_REASON[other, less], less or more),
        ]
    return paragraph(
        (
            f"SGEMM's chain over term-wise on the cube, which rounds once in 16 products, k = {last}",
            chain / cube,
            ".2g×",
        ),
        ("blocks of one product over SGEMM", mean(zero, at, "nearest", 1) / mean(zero, at, "SGEMM chain"), ".3g×"),
        *statements,
        ("SGEMM added pairwise over term-wise on the cube", pairwise / cube, ".2g×"),
        ("term-wise over SGEMM's chain on positive data, truncating hardware", truncated, ".3g×"),
        (
            "the advantage is one of a cube that rounds to nearest over one chain of FMAs",
            cube < chain and pairwise < cube and min(truncated.values()) > 1,
        ),
    )


_PARTS = {"large first": "adding the smaller sums first", "element-wise": "summing each product on its own"}
"""What is given up by each of the two."""
_REASON = {
    ("large first", True): "the order of the three sums is not the reason",
    ("large first", False): "the order of the three sums is the reason",
    ("element-wise", True): "summing each product on its own is the lesser part of the reason",
    ("element-wise", False): "summing each product on its own is the greater part of the reason",
}
"""What is said of a part that accounts for less than half of the advantage everywhere (True), or for half or more."""


def _lost(rows: list[dict[str, Any]], kind: str, other: str) -> list[tuple[float, float]]:
    """At every exponent: the share of the advantage over SGEMM that `other` has not, in logarithms; its error factor.

    No share (NaN) where there is no advantage.
    """
    result, at = [], _at(rows)
    for exponent in EXPONENTS:
        chain, ours, second = (
            float(np.mean(_runs(rows, kind, at, name, 0, exponent))) for name in ("SGEMM chain", "ascend910a", other)
        )
        lost = math.log(second / ours) / math.log(chain / ours) if chain > ours else math.nan
        result.append((lost, second / ours))
    return result


def _at(rows: list[dict[str, Any]]) -> int:
    """The k of the lower panels."""
    return int(max((row["k"] for row in rows if row["block"]), default=0))


def _runs(rows: list[dict[str, Any]], kind: str, k: int, name: str, block: int = 0, exponent: int = 0) -> list[float]:
    """Errors of a method; hardware names stand for term-wise on it."""
    return [
        row["error"]
        for row in rows
        if (row["inputs"], row["k"], row["block"], row["exponent"]) == (kind, k, block, exponent)
        and name == (row["hardware"] if row["method"] == "term-wise" else row["method"])
    ]


def _span(values: Any, digits: int = 2) -> str:
    return f"{np.min(values):.{digits}g} to {np.max(values):.{digits}g}" if len(values) else ""
