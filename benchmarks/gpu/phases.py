"""The phases of an error-free product, splitting, products and sums, by events around every launch."""

from __future__ import annotations

from typing import Any

from benchmarks.clock import Clock
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree import operands
from fpemu.gpu.runtime.matrices import Matrix

SUMS = frozenset({"add_products", "add_tame_products", "finish", "round_products", "rebuild", "fold"})
"""Kernels that add products; the others count slices, scale and split."""
_MOST = 4000  # launches of a call that are timed


class TimedDevice(operands.Device):
    """The GPU, with each launch between two events."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.phases: list[str] = []

    def _between(self, phase: str, call: Any, *args: Any, **options: Any) -> None:
        number = 2 * len(self.phases)
        if number == 2 * _MOST:
            call(*args, **options)
            return
        self.clock.mark(number)
        call(*args, **options)
        self.clock.mark(number + 1)
        self.phases.append(phase)

    def launch(self, source: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Queue a kernel."""
        phase = "sums" if kernel in SUMS else "split"
        self._between(phase, super().launch, source, kernel, grid, block, *args, shared=shared)

    def gemm(self, *args: Any, **options: Any) -> None:
        """Queue a product."""
        self._between("products", super().gemm, *args, **options)


def measure(A: Matrix, B: Matrix, D: Matrix, scheme: Any, spec: Any) -> dict[str, float]:
    """Time the phases of one product.

    Returns
    -------
    dict
        Seconds of "part split", "part products" and "part sums"; "gemms", the library's products; "slices_a" and
        "slices_b" where the scheme slices.
    """
    timed = TimedDevice()
    work = operands.Workspace(timed)
    try:
        errorfree.gemm(A, B, D, scheme, spec, work=work)  # allocates the workspace, and the events
        timed.phases.clear()
        report = errorfree.gemm(A, B, D, scheme, spec, work=work)
        spans = timed.clock.intervals(2 * len(timed.phases) - 1)[::2]
    finally:
        work.free()
    fields = {f"part {phase}": 0.0 for phase in ("split", "products", "sums")}
    for phase, seconds in zip(timed.phases, spans, strict=True):
        fields[f"part {phase}"] += seconds
    fields["gemms"] = float(report.products or 0)
    if report.slices is not None:
        fields["slices_a"], fields["slices_b"] = (float(n) for n in report.slices)
    return fields
