"""DGEMM-TC, Algorithm 3: families of inputs on which DP mode is as accurate as DGEMM, or less accurate."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import inputs, metrics, mma, plotting, reference, schemes
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page

from .._findings import paragraph
from .._rows import Row, runs_by
from ._pages import TITAN, unit

PAPER = "Mukunoki, Ozaki, Ogita, Imamura: DGEMM using Tensor Cores, ISC High Performance 2020, section 3.2, Algorithm 3"
CAPTION = """DGEMM-TC in DP mode against DGEMM on families of inputs: (a) largest relative error, (b) largest
error relative to |A||B|; dotted: 2^-53. The criterion as printed includes slice d of A only; the default also includes
the remainder after slice d, and tests B. Points: the largest of the seeds; on the left edge: no error, or an error
below the axis. X: (rand - 0.5)·exp(φ·randn), φ = 1 where not stated, A and B drawn independently; D and G: diagonal,
powers of two from 2^-40 to 2^40 and from 1 to 2^60. CR mode is correctly rounded on all of them."""
ASSUMPTIONS = [
    "DGEMM is one ascending chain of fp64 FMAs for each element.",
    """DP mode is as accurate as DGEMM on a family if its largest error, relative to the entry and to |A||B|, is at most
    10 times the largest error of DGEMM. An error within 2^-53 of the result, or of |A||B|, counts as no larger than the
    error of DGEMM.""",
    """The families are choices of this project. If A has fewer slices, the paper does not state the number of slices of
    B; here the criterion of Algorithm 3 on the other side, (e^T|A|)|B_q|, determines it.""",
    """Equation 1, from which Algorithm 3 is derived, is |D - AB|e <= 2 sqrt(k) 2^-53 |A||B|e for each row.""",
]
FACTOR = 10.0
"""An error above this multiple of DGEMM's error counts as a failure, as in figure 3."""
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


def caption(given: Mapping[str, Any]) -> str:
    return f"{CAPTION} Here n = {given['n']}."


def cells(n: int = 256, seeds: int = 20, hardware: str = TITAN) -> list[Row]:
    return [
        {"hardware": hardware, "family": family, "n": n, "seed": seed} for family in FAMILIES for seed in range(seeds)
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
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
    other = schemes.gemm(A, B, scheme="ozaki", hardware="hopper", order=mma.KOrder(split=64), device=device)
    numbers["DP irreproducible"] = float(np.count_nonzero(other != D))  # D: the result of the last of METHODS
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
"""Left end of the axes; errors of zero are drawn just inside it."""


def draw(rows: list[Row]) -> Any:
    figure, axes = plotting.figure(2, height=5.4)
    for axis, measure in zip(axes[0], ("relative", "normwise"), strict=True):
        for name, look in _LOOK.items():
            largest = [max(_runs(rows, family, f"{name} {measure}")) for family in FAMILIES]
            points = np.maximum(largest, 1.5 * _EDGE)
            size = {"default": 5}.get(name, 3.5)  # around the point it mostly coincides with
            axis.plot(points, range(len(FAMILIES)), **look.line(markersize=size, zorder=6 - size / 2))
        axis.axvline(2.0**-53, color=plotting.GREY, linestyle=":", linewidth=0.9, zorder=1, label="$2^{-53}$")
        axis.set(xscale="log", xlim=(_EDGE, 1e8 if measure == "relative" else 10), ylim=(len(FAMILIES) - 0.5, -0.5))
        axis.set_yticks(range(len(FAMILIES)), list(FAMILIES.values()))
        axis.set_xticks([1e-16, 1e-8, 1e0] if measure == "relative" else [1e-16, 1e-8, 1e-1])
        axis.set_xlabel("largest error")
    plotting.panel_titles(axes, ["relative to entry", "relative to $|A||B|$"])
    n, seeds = rows[0]["n"], len({row["seed"] for row in rows})
    title = f"$n$ = {n}, largest of {seeds} seeds; at the left edge: zero or below the axis"
    plotting.legend_below(figure, axes[0, 0], 2, title=title)
    return figure


def measures(rows: list[Row]) -> Iterator[Measure]:
    for family, label in FAMILIES.items():
        variant = " ".join(re.sub(r"[${}]", "", label).split())
        for name, claim in (("printed", "algorithm3_accuracy"), ("default", "default_accuracy")):
            yield Measure(claim, _worst(rows, family, name), variant=variant)
        for name, claim in (("DGEMM", "equation1"), ("printed", "equation1_tc")):
            yield Measure(claim, max(_runs(rows, family, f"{name} equation 1")), variant=variant)
    yield Measure("cr_all_families", sum(row["CR differing"] for row in rows))
    yield Measure("reproducible", sum(row["DP irreproducible"] for row in rows))


def _worst(rows: list[Row], family: str, name: str) -> float:
    """Error over DGEMM's, the larger of the two measures; 1 at most where the error is within 2^-53."""
    worst = 0.0
    for measure in ("relative", "normwise"):
        pairs = zip(*(_runs(rows, family, f"{m} {measure}") for m in (name, "DGEMM")), strict=True)
        for ours, plain in pairs:
            ratio = ours / plain if plain else np.inf if ours else 0.0
            worst = max(worst, min(ratio, 1.0) if ours <= 2.0**-53 else ratio)
    return float(worst)


def finding(rows: list[Row]) -> str:
    missed = {name: [f for f in FAMILIES if _worst(rows, f, name) > FACTOR] for name in ("printed", "default")}
    errors = {f"{name}:": max(_runs(rows, f, f"{name} normwise") for f in of) for name, of in missed.items() if of}
    cured = [family for family in missed["printed"] if family not in missed["default"]]
    return paragraph(
        (
            f"the error exceeds {FACTOR:g} times the error of DGEMM on these numbers of {len(FAMILIES)} families",
            {n: len(x) for n, x in missed.items()},
        ),
        ("the largest errors relative to |A||B| there are", errors, ".2g"),
        ("only the default, which includes the remainder after the slices, is accurate on the families {}", cured),
    )


_runs = runs_by("family")


PAGE = Page(
    PAPER,
    caption,
    lambda given: [unit(given), *ASSUMPTIONS],
    cells,
    evaluate,
    draw,
    measures,
    finding,
    quick={"seeds": 3},
)
