"""What a record's rows say: speeds and ratios, as tables and figures have them. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fpemu.gpu.bench.record import place

Row = Mapping[str, Any]


def rate(row: Row, which: str = "first") -> float | None:
    """TFLOP/s by the seconds of "first", "best", "sustained", or of these with "split_" before it.

    Operations are the row's own, or 2 M N K for each product of a batch.

    >>> rate({"M": 1000, "N": 1000, "K": 1000, "first_s": 1e-3})
    2.0
    """
    seconds = row.get(f"{which}_s")
    operations = row.get("operations") or 2.0 * row["M"] * row["N"] * row["K"] * row.get("batch", 1)
    return None if not seconds else operations / seconds * 1e-12


def base(rows: Iterable[Row], row: Row, contender: str) -> Row | None:
    """The row of a contender on the same product: of the same run if there is one, else of the last."""
    same = [other for other in rows if other["contender"] == contender and "failed" not in other
            and place(other) == place(row)]  # fmt: skip
    return next((other for other in same if other.get("run") == row.get("run")), same[-1] if same else None)


def ratio(rows: Iterable[Row], row: Row, contender: str, by: float = 1.0, which: str = "first") -> float | None:
    """A row's speed over 1/`by` of a contender's on the same product; None where either is not there.

    "fp16" by 3 is three products of the library with nothing added: what three products cost it at least.
    """
    other = base(rows, row, contender)
    mine, theirs = rate(row, which), None if other is None else rate(other, which)
    return None if mine is None or theirs is None else mine / theirs * by
