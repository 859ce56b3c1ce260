"""What is measured: one row of a record, said before it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

Shape = tuple[int, int, int]
SEED = 20260101
"""Of all operands."""
RANK = ("full", "brief", "short", "first", "errors")
"""How a speed is measured, the most careful first; see `fpemu.gpu.bench.timing.RULES`. "errors": not at all."""


@dataclass(frozen=True)
class Task:
    """One row to measure.

    Parameters
    ----------
    kind : str
        One of `fpemu.gpu.bench.kinds.MODULES`: who measures it.
    M, N, K : int
        Of one product; 0 where there is none.
    data : str
        Its operands, or what else tells rows of a kind apart.
    contender : str
    rules : str
        One of `RANK`, or of the kind's own.
    fmt : str
        Of the operands.
    figures : tuple of str
        The pages that show it.
    batch : int
        Products in one call.
    """

    kind: str
    M: int
    N: int
    K: int
    data: str
    contender: str
    rules: str
    fmt: str
    figures: tuple[str, ...]
    batch: int = 1

    @property
    def wanted(self) -> dict[str, Any]:
        """The key of its row; no batch where there is but one product."""
        names = ("kind", "M", "N", "K", "data", "contender", *(("batch",) if self.batch != 1 else ()))
        return {name: getattr(self, name) for name in names}

    @property
    def place(self) -> tuple[Any, ...]:
        """What rows that are measured on the same operands share."""
        return self.kind, self.M, self.N, self.K, self.batch, self.data, self.fmt


class Group(NamedTuple):
    """Contenders on one product, measured one after another.

    Parameters
    ----------
    shape : (M, N, K)
    data : one of `fpemu.gpu.bench.problem.DATA`
    contenders : tuple of str
    rules : one of `RANK`
    figures : tuple of str
        The pages that show it.
    fmt : {"fp32", "fp64"}
        Of the operands.
    """

    shape: Shape
    data: str
    contenders: tuple[str, ...]
    rules: str
    figures: tuple[str, ...]
    fmt: str = "fp32"
