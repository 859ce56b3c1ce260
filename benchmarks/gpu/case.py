"""Cases: the rows of a record, before they are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

Shape = tuple[int, int, int]
SEED = 20260101
"""Of all operands."""
RANK = ("full", "brief", "short", "first", "errors")
"""Methods of timing, the most careful first: see `benchmarks.timing.RULES`. "errors": no timing."""
STEADY = "point"
"""The records' name for `benchmarks.timing.STEADY`."""


@dataclass(frozen=True)
class Case:
    """One row to measure."""

    kind: str  # of `benchmarks.gpu.suite.MODULES`
    M: int  # M, N and K of one product; 0 where there is none
    N: int
    K: int
    data: str  # the operands, or what else distinguishes rows of a kind
    implementation: str  # the records' "contender"
    rules: str  # one of `RANK`, or `STEADY`
    fmt: str  # format of the operands
    figures: tuple[str, ...]  # the pages that show the row
    batch: int = 1  # products in one call

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that identify its row: see `benchmarks.gpu.record.key`; "batch" only if it is not 1."""
        fields = {name: getattr(self, name) for name in ("kind", "M", "N", "K", "data")}
        return fields | {"contender": self.implementation} | ({"batch": self.batch} if self.batch != 1 else {})

    @property
    def operands(self) -> tuple[Any, ...]:
        """Equal for cases that are measured on the same operands."""
        return self.kind, self.M, self.N, self.K, self.batch, self.data, self.fmt


class Group(NamedTuple):
    """Implementations that are measured one after another on the same operands; fields as in `Case`."""

    shape: Shape
    data: str
    implementations: tuple[str, ...]
    rules: str
    figures: tuple[str, ...]
    fmt: str = "fp32"
    batch: int = 1

    def cases(self, kind: str) -> Iterator[Case]:
        """Return the cases of all implementations."""
        for name in self.implementations:
            yield Case(kind, *self.shape, self.data, name, self.rules, self.fmt, self.figures, self.batch)
