"""DGEMM-TC, Algorithm 3: inputs on which it keeps its promise of DGEMM's accuracy, and inputs on which it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, plotting, reference, schemes
from fpemu.mma._device import Device
from fpemu.plotting import Series
from fpemu.reproduce.claims import Claim, share

from .._findings import paragraph
from .._rows import listed, runs_by

PAPER = "Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores, ISC High Performance 2020, section 3.2, Algorithm 3"
TITLE = "where Algorithm 3 keeps its promise"
CAPTION = """DGEMM-TC in DP mode against DGEMM on families of inputs, n = 256: (a) largest relative error, (b) largest
error over |A||B|; dotted: 2^-53. "As printed" judges by the digits of slice d of A alone; the default adds what is left
after them, and asks B too. Points: the largest of seeded runs; on the left edge: no error, or less
than shown. X: (rand - 0.5)·exp(φ·randn), φ = 1 where not said, A and B drawn independently; D and G: diagonal, powers
of two from 2^-40 to 2^40 and from 1 to 2^60. CR mode is correctly rounded on all of them."""
ASSUMPTIONS = [
    "Tensor cores of the Titan RTX: the Turing row of the catalog (claimed in the literature).",
    "DGEMM is one ascending chain of fp64 FMAs for each element.",
    """FP64-equivalent accuracy is kept on a family if the largest error is at most 10 times DGEMM's in every run; an
    error within 2^-53 of the result, or of |A||B|, counts as kept whatever DGEMM's.""",
    """The families are ours. Where A's slices end first, the paper does not say how many slices B gets: Algorithm 3's
    criterion on the other side, (e^T|A|)|B_q|, decides.""",
    """Equation 1, the bound by which Algorithm 3 is derived, is |D - AB|e <= 2 sqrt(k) 2^-53 |A||B|e, row by row.""",
]
EXPLAINS = ("dgemm_tc/promise",)
FACTOR = 10.0
METHODS: dict[str, dict[str, Any]] = {
    "DGEMM": {"scheme": "dgemm"},
    "printed": {"scheme": "ozaki", "slices": "printed"},
    "default": {"scheme": "ozaki"},
}
FAMILIES = {
    "X·X": "X · X",
    "X·X, phi = 8": "X · X with φ = 8",
    "integers first": "integers to 8 · X",
    "integers last": "X · integers to 8",
    "fp32 first": "X in fp32 · X",
    "cancelling": "pairs that cancel",
    "columns scaled": "X · X D",
    "inner scaled": "X D · D$^{-1}$X",
    "inner steep": "X G · G$^{-3}$X",
    "outer steep": "X G$^{3}$ · G$^{-1}$X",
    "near identity": "(I + 10$^{-20}$X) · X",
    "identity": "identity · X",
    "loud column": "2$^{40}$ on a column of A,\nmet by one column of B",
    "loud row": "2$^{40}$ on a row of B,\nmet by one row of A",
    "graded": "2$^{-60}$ on half of A,\nalone with half of B",
}
_RUNS = {"quick": 3, "full": 10}


def cells(size: str) -> list[dict[str, Any]]:
    return [
        {"hardware": "turing", "family": family, "n": 256, "seed": seed}
        for family in FAMILIES
        for seed in range(_RUNS[size])
    ]


def evaluate(cell: dict[str, Any], device: Device = "cpu") -> dict[str, float]:
    A, B = _operands(cell["family"], cell["n"], cell["seed"])
    exact = reference.matmul(A, B, device=device)
    bound = 2 * np.sqrt(A.shape[1]) * 2.0**-53 * (abs(A) @ abs(B).sum(axis=1))
    numbers = {}
    for name, setting in METHODS.items():
        D = schemes.gemm(A, B, hardware=cell["hardware"], device=device, **setting)
        numbers[f"{name} relative"] = metrics.max_relative(D, exact)
        numbers[f"{name} normwise"] = metrics.normwise(D, exact, A, B)
        numbers[f"{name} equation 1"] = float(np.max(abs(D - exact).sum(axis=1) / bound))
    rounded = schemes.gemm(A, B, scheme="ozaki", hardware=cell["hardware"], mode="CR", device=device)
    return numbers | {"CR differing": float(np.count_nonzero(rounded != exact))}


def _operands(family: str, n: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    A, B = inputs.operands("phi", n, n, n, seed, "fp64", phi=8.0 if family == "X·X, phi = 8" else 1.0)
    D = np.ldexp(1.0, np.linspace(-40, 40, n).astype(int))
    whole = np.rint(inputs.make("uniform", (n, n), (seed, 1), "fp64", low=-8.0, high=8.0))
    if family == "integers first":
        return whole, B
    if family == "integers last":
        return A, whole
    if family == "fp32 first":
        return A.astype(np.float32).astype(np.float64), B
    if family == "cancelling":
        return inputs.operands("cancellation", n, n, n, seed, "fp64")
    if family == "columns scaled":
        return A, B * D
    if family == "inner scaled":
        return A * D, B / D[:, None]
    if family == "inner steep":
        G = np.ldexp(1.0, np.linspace(0, 60, n).astype(int))
        return A * G, B / G[:, None] ** 3
    if family == "outer steep":
        G = np.ldexp(1.0, np.linspace(0, 60, n).astype(int))
        return A * G**3, B / G[:, None]
    if family == "near identity":
        return np.eye(n) + 1e-20 * A, B
    if family == "identity":
        return np.eye(n), B
    if family in ("loud column", "loud row"):
        A[:, 0] *= 2.0**40
        B[0, 1:] = 0
        return (A, B) if family == "loud column" else (B.T.copy(), A.T.copy())
    if family == "graded":
        A[:, n // 2 :] *= 2.0**-60
        B[: n // 2, n // 2 :] = 0
    return A, B


_LOOK = {
    "DGEMM": Series("DGEMM", plotting.BLACK, "s", "none", filled=False),
    "printed": Series("DP mode, as printed", plotting.BLACK, "x", "none"),
    "default": Series("DP mode, default", plotting.VERMILION, "o", "none"),
}
_EDGE = 2e-19
_WAYS = {"printed": ", as printed", "default": ""}


def draw(rows: list[dict[str, Any]]) -> Any:
    figure, axes = plotting.figure(2, height=4.9)
    for axis, measure in zip(axes[0], ("relative", "normwise"), strict=True):
        for name, look in _LOOK.items():
            largest = [max(_runs(rows, family, f"{name} {measure}")) for family in FAMILIES]
            points = np.maximum(largest, 1.5 * _EDGE)
            size = {"default": 5}.get(name, 3.5)  # around the point it mostly coincides with
            axis.plot(points, range(len(FAMILIES)), **look.line(markersize=size, zorder=6 - size / 2))
        axis.axvline(2.0**-53, color=plotting.GREY, linestyle=(0, (1, 1.5)), linewidth=0.8, zorder=1)
        axis.set_xscale("log")
        axis.set_xlim(_EDGE, 1e8 if measure == "relative" else 10)
        axis.set_ylim(len(FAMILIES) - 0.5, -0.5)
        axis.set_yticks(range(len(FAMILIES)), list(FAMILIES.values()))
    axes[0, 0].set_xlabel("largest relative error (dotted: $2^{-53}$)")
    axes[0, 1].set_xlabel("largest error over $|A||B|$")
    plotting.panel_titles(axes, ["relative to the entry", "relative to $|A||B|$"])
    plotting.legend_below(figure, axes[0, 0], 3)
    return figure


@listed
def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    for family, label in FAMILIES.items():
        text = " ".join(label.replace("$", "").replace("{", "").replace("}", "").split())
        for name, extra in _WAYS.items():
            held, texts = [], []
            for measure in ("relative", "normwise"):
                ours, plain = (np.array(_runs(rows, family, f"{m} {measure}")) for m in (name, "DGEMM"))
                held.append((ours <= FACTOR * plain) | (ours <= 2.0**-53))
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratio = np.max(np.where(ours == 0, 0.0, ours / plain))
                exact = f"{np.max(ours[plain == 0], initial=0.0):.2g} where DGEMM is exact"
                texts.append(f"DGEMM's × {ratio:.2g}" if np.isfinite(ratio) else exact)
            measured = (
                " and ".join(texts).replace(" and DGEMM's ×", " and").replace(" where DGEMM is exact and", " and")
            )
            published = "FP64-equivalent" if name == "printed" else ""  # the default is ours
            yield share(f"{text}{extra}", published, np.logical_and(*held), measured)
    for name, extra in _WAYS.items():
        worst = {family: max(_runs(rows, family, f"{name} equation 1")) for family in FAMILIES}
        family = max(worst, key=lambda f: worst[f])
        measured = f"at most {worst[family]:.2g} of the bound ({family})"
        published = "within the bound" if name == "printed" else ""
        yield share(f"Equation 1{extra}", published, [w <= 1 for w in worst.values()], measured)
    wrong = [row["CR differing"] for row in rows]
    measured = f"{sum(wrong):g} entries differ"
    yield share("CR mode: correctly rounded, every family", "always", [not w for w in wrong], measured)


def finding(rows: list[dict[str, Any]]) -> str:
    broken = {name: [f for f in FAMILIES if not _kept(rows, f, name)] for name in _WAYS}
    statements: list[tuple[Any, ...]] = []
    for name, text in (("printed", "as printed"), ("default", "by default")):
        within = [f for f in broken[name] if max(_runs(rows, f, f"{name} equation 1")) <= 1]
        worst = [max(_runs(rows, f, f"{name} normwise")) for f in broken[name]]
        statements += [
            (f"DP mode {text} misses DGEMM's accuracy on {len(broken[name])} of {len(FAMILIES)} families", True),
            ("largest error relative to |A||B| there", max(worst, default=None), ".2g"),
            ("families of these on which Equation 1, a bound on sums over rows of |A||B|, holds", len(within)),
        ]
    cured = [f for f in broken["printed"] if f not in broken["default"]]
    return paragraph(
        *statements,
        (
            f"the remainder after the slices of A and of B, which the default judges, cures {len(cured)}",
            ", ".join(cured),
        ),
        (
            "entries in which CR mode differs from the exact product rounded once",
            sum(row["CR differing"] for row in rows),
            "g",
        ),
    )


def _kept(rows: list[dict[str, Any]], family: str, name: str) -> bool:
    """Whether the rule of the claims says so, in every run."""
    return all(
        ours <= max(FACTOR * plain, 2.0**-53)
        for measure in ("relative", "normwise")
        for ours, plain in zip(*(_runs(rows, family, f"{m} {measure}") for m in (name, "DGEMM")), strict=True)
    )


_runs = runs_by("family")
