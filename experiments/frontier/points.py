"""Products in fp32 between one fp16 product and three: error against units of time of the tensor cores of Hopper.

A unit is the time of one fp16 product; a tf32 product takes two units, and an int8 or fp8 product half a unit. The
schemes are emulated bit for bit; corrections with words other than int8 are added to an exact product of the high
parts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpemu import inputs, metrics, mma, plotting, reference, round_to, schemes
from fpemu.mma import KOrder
from fpemu.mma.device import Device
from fpemu.plotting import Series
from fpemu.reproduce import Measure, Page
from fpemu.schemes.staged_int8 import StagedInt8

from .._findings import paragraph
from .._rows import Row

PAPER = "The frontier of error against time on Hopper: no paper; schemes of this project beside published ones"
CAPTION = """Relative L2 error of products in fp32 over the time that they take of Hopper's tensor cores, in units of
one fp16 product, k = 8192, four kinds of operands."""
ASSUMPTIONS = [
    """Times are counted and not measured: int8 and fp8 products take half the time of fp16 products, tf32 products
    twice this time, and sums of blocks take no time.""",
    "SGEMM is one ascending chain of FMAs; cuBLAS has the same error where it does not split k.",
    """A has 32 rows and B has 32 columns. The page has one seed; at full size the points of the checks have 20 seeds,
    whose means are shown.""",
    """Words of b bits are integers of b bits including the sign, for r and for h, with exact sums. Words in e4m3 are
    scaled to its range, for r and for h, and wgmma sums them with a promotion every 64 products. Both kinds of
    corrections are added to an exact product of the high parts.""",
]
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform [-1, 1]": ("uniform", {"low": -1.0, "high": 1.0}),
    "uniform [0, 1]": ("uniform", {"low": 0.0, "high": 1.0}),
    "normal": ("normal", {}),
    "(rand - 0.5)·exp(0.5·randn)": ("phi", {"phi": 0.5}),
}
EXACT = (8, 6, 4, 2)
"""One of this many stages is exact, which costs 1/n of a product in fp16 more."""
POINTS: dict[str, tuple[float, str, dict[str, Any]]] = {
    "fp16": (1.0, "fp16", {"on_range": "scale"}),
    "tf32": (2.0, "multiword", {"words": 1, "fmt": "tf32"}),
    "staged-int8": (2.0, "staged-int8", {}),
    **{f"exact={n}": (2 + 1 / n, "staged-int8", {"exact": n}) for n in EXACT},
    "strassen": (2.625, "staged", {"levels": 1}),
    "strassen 2": (3 * 49 / 64, "staged", {"levels": 2}),
    "bf16x3": (3.0, "bf16x3", {}),
    "staged": (3.0, "staged", {}),
}
"""Units of time, scheme, options"""
WORDS = {**{f"{b} bits": (2.0, b) for b in (6, 7, 9, 10)}, "e4m3": (2.0, 0)}
"""Units of time, and bits of a word of a correction; 0: a word in e4m3."""
LOOK = {
    "fp16": Series("fp16", plotting.GREY, "x"),
    "tf32": Series("tf32", plotting.PURPLE, "P"),
    "staged-int8": Series("corrections in int8", plotting.VERMILION, "o"),
    "exact": Series("same, every 8th, 6th, 4th, 2nd stage in fp16", plotting.VERMILION, "d", "-"),
    "strassen": Series("Strassen, 2 levels and (right) 1", plotting.BLUE, "^", "--"),
    "bf16x3": Series("three bf16 products", plotting.ORANGE, "v"),
    "staged": Series("three fp16 products", plotting.GREEN, "h"),
    "bits": Series("corrections of 6, 7, 9, 10 bits (from above)", plotting.BLACK, "o", "none", filled=False),
    "e4m3": Series("corrections in e4m3", plotting.SKY, "s", filled=False),
}


_CHECKED = ("sgemm", "exact=6", "strassen 2", "e4m3")  # the points of the checks


H200 = "H200"


def assumptions(given: Mapping[str, Any]) -> list[str]:
    if given["hardware"] == H200:
        return ASSUMPTIONS
    units = [mma.spec(given["hardware"], *words) for words in _UNITS]
    names = ", ".join(f"{spec.name} ({spec.evidence} model)" for spec in units)
    text = f"The errors are of {names}; the times are counted with the ratios of Hopper."
    return [*ASSUMPTIONS, text, *["This unit has no instruction for e4m3."] * (not _has_e4m3(given["hardware"]))]


def _has_e4m3(hardware: str) -> bool:
    return any(s.architecture == hardware and " e4m3->fp32" in s.name for s in mma.catalog.rows())


_UNITS = (("fp16", "fp32"), ("tf32", "fp32"), ("bf16", "fp32"), ("int8", "int32"))


def cells(k: int = 8192, rows: int = 32, seeds: int = 20, hardware: str = H200) -> list[Row]:
    """The page's cells; on another unit they name it, and there are none in e4m3 if it has no such instruction."""
    unit = {} if hardware == H200 else {"hardware": hardware}
    fp8 = not unit or _has_e4m3(hardware)
    return [
        {"point": point, "data": data, "K": k, "rows": rows, "seed": seed} | unit
        for data in DATA
        for seed in range(1, seeds + 1)
        for point in (("sgemm", *POINTS, *WORDS) if seed == 1 else _CHECKED)
        if fp8 or point != "e4m3"
    ]


def evaluate(cell: Row, device: Device = "cpu") -> dict[str, float]:
    (name, parameters), unit = DATA[cell["data"]], cell.get("hardware", H200)
    A, B = inputs.operands(name, cell["rows"], cell["rows"], cell["K"], cell["seed"], **parameters)
    exact, point = reference.matmul(A, B, device=device), cell["point"]  # a product by BLAS depends on the processor
    if point in WORDS:
        return {"error": float(metrics.relative_l2(_words(A, B, WORDS[point][1], unit, device), exact))}
    scheme, options = POINTS[point][1:] if point in POINTS else ("sgemm", {})
    hardware = None if scheme == "sgemm" else unit
    D = schemes.gemm(A, B, scheme=scheme, hardware=hardware, device=device, **options)
    return {"error": float(metrics.relative_l2(D, exact))}


def _words(A: Any, B: Any, bits: int, hardware: str, device: Device = "cpu") -> Any:
    """Corrections on integers of so many bits, in exact arithmetic; 0: on e4m3 words, as the hardware sums them."""
    scheme = StagedInt8()
    a, b = scheme.split_operand(A, "A", "raise"), scheme.split_operand(B, "B", "raise")
    low, high = 2.0, 2.0**13

    def integer(x: Any, top: float) -> Any:
        steps = 2.0 ** (bits - 1) / top
        return np.clip(np.rint(x * steps), 1 - steps * top, steps * top - 1) / steps

    def e4m3(x: Any, top: float) -> Any:
        return np.asarray(round_to(x * (448 / top), "e4m3"), np.float32)

    word = integer if bits else e4m3
    (ra, ha), (rb, hb) = ((word(x.values - x.h, low), word(x.h, high)) for x in (a, b))
    if bits:
        corrections = reference.matmul(ra, hb, device=device) + reference.matmul(ha, rb, device=device)
    else:
        spec, order = mma.spec(hardware, "e4m3", "fp32"), KOrder(promote=64)
        sums = mma.chain([(ra, hb), (ha, rb)], spec=spec, order=order, step=64, device=device)
        corrections = sums.astype(np.float64) * (low * high / 448**2)
    total = reference.matmul(a.h, b.h, device=device) + corrections
    return np.ldexp(total / (a.factors * b.factors), -(a.exponents + b.exponents))


def _of(rows: list[Row], data: str) -> dict[str, float]:
    """Mean errors over the seeds, by point."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row["data"] == data:
            errors.setdefault(row["point"], []).append(row["error"])
    return {point: float(np.mean(of)) for point, of in errors.items()}


def draw(rows: list[Row]) -> Any:
    image, axes = plotting.figure(2, len(DATA) // 2, height=5.4)
    for one, data in zip(axes.flat, DATA, strict=True):
        errors = _of(rows, data)
        for point, look in LOOK.items():
            names = [n for n in WORDS if n.endswith("bits")] if point == "bits" else [point]
            names = [f"exact={n}" for n in EXACT] if point == "exact" else names
            names += ["strassen 2"] if point == "strassen" else []
            shown = [((WORDS if n in WORDS else POINTS)[n][0], errors[n]) for n in names if n in errors]
            if shown:
                one.plot(*zip(*shown, strict=True), **look.line(linestyle=look.dash if len(shown) > 1 else "none"))
        if "sgemm" in errors:
            one.axhline(errors["sgemm"], color="black", linestyle="--", linewidth=0.8, label="SGEMM, one chain of FMAs")
        one.set(yscale="log", xlim=(0.8, 3.2))
    for one in axes[-1]:
        one.set_xlabel("time / fp16 product")
    for one in axes[:, 0]:
        one.set_ylabel("relative $L_2$ error")
    plotting.panel_titles(axes, ["[-1, 1]", "[0, 1]", "normal", "φ = 0.5"])
    checked = sum(row["point"] == "sgemm" for row in rows) // len(DATA)
    title = "{rows}×{K} times {K}×{rows}, one seed".format(**rows[0])
    if checked > 1:
        title += f";\nmean of {checked} seeds: SGEMM, every 6th stage in fp16, Strassen 2, e4m3"
    plotting.legend_below(image, axes, 1, title)
    return image


def measures(rows: list[Row]) -> Iterator[Measure]:
    for number, data in enumerate(DATA):
        errors = _of(rows, data)
        if number < 2:
            yield Measure("exact6_reaches_sgemm", errors["exact=6"] / errors["sgemm"], variant=data)
        else:
            yield Measure("exact6_small", errors["exact=6"], variant=data)
        yield Measure("strassen_below_sgemm", errors["strassen 2"] / errors["sgemm"], variant=data)
    errors = _of(rows, next(iter(DATA)))
    yield Measure("e4m3_too_coarse", errors["e4m3"] / errors["sgemm"])


def finding(rows: list[Row]) -> str:
    errors = _of(rows, "uniform [-1, 1]")
    if not {"staged-int8", "exact=2", "6 bits", "10 bits", "e4m3", "staged"} <= errors.keys():
        return ""
    schemes_ = {
        "corrections in int8": errors["staged-int8"],
        "every other stage in fp16": errors["exact=2"],
        "staged": errors["staged"],
        "corrections in e4m3, 4 bits and an exponent": errors["e4m3"],
    }
    return paragraph(
        ("the errors on uniform [-1, 1] are", schemes_),
        (
            "each bit of the corrections reduces the error by a factor of {}",
            (errors["6 bits"] / errors["10 bits"]) ** 0.25,
        ),
        ("the error is proportional to the square root of the share of stages in int8", True),
    )


PAGE = Page(PAPER, CAPTION, assumptions, cells, evaluate, draw, measures, finding, quick={"seeds": 1})
