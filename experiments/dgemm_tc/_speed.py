"""What the figures of DGEMM-TC's speed share: contenders, rows by n and phi, captions."""

from __future__ import annotations

from typing import Any

from ..speed._record import RULES, Row, squares

PHIS = {"phi 0.1": 0.1, "phi 1": 1.0, "phi 2": 2.0}
ASSUMPTIONS = [
    *RULES[:1],
    """Operands are (uniform [0, 1) - 1/2) exp(phi normal) as in the paper, drawn on the GPU in fp64.""",
    """A call is timed as a whole: counting slices, splitting, products, sums; the host waits where the number of slices
    must be known. Products are cuBLAS' on exact slices, fp16 for DGEMM-TC and ozIMMU's and scheme II's on int8.""",
    """The paper's GPUs are a Titan RTX, whose DGEMM is slow, and a V100, whose is not. An H200 has fp64 matrix units
    and is like the V100: ratios to cublasDgemm are compared with that GPU's.""",
]
TABLE = {
    ("Titan RTX", "dgemm"): (534.1, 534.1, 534.1),
    ("V100", "dgemm"): (6761.0, 6761.0, 6761.0),
    ("Titan RTX", "ozaki DP"): (972.4, 823.0, 713.1),
    ("V100", "ozaki DP"): (1064.0, 914.3, 790.8),
    ("Titan RTX", "ozaki CR"): (220.4, 193.5, 173.1),
    ("V100", "ozaki CR"): (255.0, 222.5, 198.5),
}
"""Table 1, GFLOP/s of DP at n = 10240 for phi = 0.1, 1 and 2."""


def line(rows: list[Row], who: str, data: str) -> list[Row]:
    """A contender's timed rows on one kind of data, n ascending, speeds in GFLOP/s as "speed"."""
    return [{**row, "speed": 1e3 * row["first"]} for row in squares(rows, who, data) if "first" in row]


def ratios(rows: list[Row], who: str, other: str, data: str) -> dict[int, float]:
    """Speed over another contender's, by n."""
    second = {row["M"]: row["first"] for row in line(rows, other, data)}
    return {row["M"]: row["first"] / second[row["M"]] for row in line(rows, who, data) if row["M"] in second}


def span(values: Any, unit: str = "×") -> str:
    """ "0.12 to 0.3×"."""
    known = list(values)
    return " to ".join(dict.fromkeys(f"{x:.3g}" for x in (min(known), max(known)))) + unit if known else ""
