"""The phases of an error-free product, splitting, products and sums, by events around every launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.clock import Clock
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree.operands import Workspace
from fpemu.gpu.runtime import plan
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.steps import Fill, Launch, Step

SUMS = frozenset({"add_products", "add_tame_products", "finish", "round_products", "rebuild", "fold"})
"""Kernels that add products; the others count slices, scale and split."""
_MOST = 4000  # steps of a call that are timed


class TimedQueue:
    """The queue of a `Workspace`, with each launch and product between two events while `timed`."""

    def __init__(self, *, timed: bool = True) -> None:
        self.timed, self.clock, self.split, self.sums = timed, Clock(), "split", SUMS
        self.phases: list[str] = []

    def __call__(self, step: Step) -> None:
        """Queue a step."""
        number = 2 * len(self.phases)
        if not self.timed or isinstance(step, Fill) or number == 2 * _MOST:
            plan.queue(step)
            return
        self.clock.mark(number)
        plan.queue(step)
        self.clock.mark(number + 1)
        kernel = step.kernel if isinstance(step, Launch) else None
        self.phases.append("products" if kernel is None else "sums" if kernel in self.sums else self.split)

    def seconds(self) -> Iterator[tuple[str, float]]:
        """Yield the phase of each step, and its time."""
        return zip(self.phases, self.clock.intervals(2 * len(self.phases) - 1)[::2], strict=True)


def measure(A: Matrix, B: Matrix, D: Matrix, scheme: Any, spec: Any) -> dict[str, float]:
    """Time the phases of one product.

    The fields are seconds of "part split", "part products" and "part sums"; "gemms", the library's products; "slices_a"
    and "slices_b" where the scheme slices.
    """
    queue = TimedQueue()
    work = Workspace(queue)
    fields = {f"part {phase}": 0.0 for phase in ("split", "products", "sums")}
    try:
        errorfree.gemm(A, B, D, scheme, spec, work=work)  # allocates the workspace, and the events
        queue.phases.clear()
        report = errorfree.gemm(A, B, D, scheme, spec, work=work)
        for phase, seconds in queue.seconds():
            fields[f"part {phase}"] += seconds
    finally:
        work.free()
    fields["gemms"] = float(report.products or 0)
    if report.slices is not None:
        fields["slices_a"], fields["slices_b"] = (float(n) for n in report.slices)
    return fields
