"""Products of all modelled architectures, for the pages that compare schemes on them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fpemu import plotting
from fpemu.mma.device import Device

from .._numeric import problem
from .._rows import Row


class Interval(NamedTuple):
    """The interval in which operands are uniform."""

    low: float
    high: float

    @property
    def label(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"


DATA = {"zero-mean": Interval(-1.0, 1.0), "positive": Interval(0.0, 1.0)}


def on_every_chip(rows: int, lengths: Sequence[int], runs: int) -> list[Row]:
    """Return a cell for each distribution, inner length, seed and architecture, the architectures innermost."""
    return [
        {"data": data, "k": k, "rows": rows, "seed": seed, "hardware": hardware}
        for data in DATA
        for k in lengths
        for seed in range(runs)
        for hardware in plotting.HARDWARE
    ]


def cost(cell: Row) -> float:
    return float(cell["k"] * cell["rows"] * (cell["rows"] + 200))  # the second part: drawing and the exact product


def operands(cell: Row, device: Device) -> tuple[Any, Any, Any]:
    """Return a cell's operands and their exact product."""
    sizes = cell["rows"], cell["rows"], cell["k"]
    return problem("uniform", *sizes, cell["seed"], device, **DATA[cell["data"]]._asdict())
