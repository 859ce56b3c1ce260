"""Where the time of an error-free product goes: splitting, products, sums, by events around every launch."""

from __future__ import annotations

from typing import Any

from fpemu.gpu import device
from fpemu.gpu.bench.timing import Marks
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree import machine
from fpemu.gpu.matrices import Matrix

SUMS = frozenset({"add_products", "add_tame_products", "finish", "round_products", "rebuild", "fold"})
"""Kernels that add products up; the others count slices, scale and cut."""
_MOST = 4000  # launches of a call that are seen


class Watched(machine.Device):
    """The GPU at hand, each launch between two events."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = Marks(2 * _MOST)
        self.seen: list[str] = []

    def _between(self, part: str, call: Any, *args: Any, **more: Any) -> None:
        if len(self.seen) == _MOST:
            call(*args, **more)
            return
        self.marks.record(2 * len(self.seen))
        call(*args, **more)
        self.marks.record(2 * len(self.seen) + 1)
        self.seen.append(part)

    def launch(self, source: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """Queue a kernel."""
        part = "sums" if kernel in SUMS else "split"
        self._between(part, super().launch, source, kernel, grid, block, *args, shared=shared)

    def gemm(self, *args: Any, **more: Any) -> None:
        """Queue a product."""
        self._between("products", super().gemm, *args, **more)


def measure(A: Matrix, B: Matrix, D: Matrix, scheme: Any, spec: Any) -> dict[str, float]:
    """Seconds of the parts of one product, "part split", "part products" and "part sums", and how much there was.

    Returns
    -------
    dict
        Besides the parts "gemms", products of the library; "slices_a", "slices_b" where the scheme slices.
    """
    watched = Watched()
    work = machine.Workspace(watched)
    try:
        errorfree.gemm(A, B, D, scheme, spec, work=work)  # makes the buffers
        watched.seen.clear()
        report = errorfree.gemm(A, B, D, scheme, spec, work=work)
        device.synchronize()
        spans = watched.marks.seconds(2 * len(watched.seen) - 1)[::2]
    finally:
        work.free()
    found = {f"part {part}": 0.0 for part in ("split", "products", "sums")}
    for part, seconds in zip(watched.seen, spans, strict=True):
        found[f"part {part}"] += seconds
    found["gemms"] = float(report.products or 0)
    if report.slices is not None:
        found["slices_a"], found["slices_b"] = (float(n) for n in report.slices)
    return found
