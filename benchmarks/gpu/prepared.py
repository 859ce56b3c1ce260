"""Implementations with their operands, and the rows of short launches: speed, errors of a sample, bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.gpu import ceilings
from benchmarks.gpu.steps import Queue
from benchmarks.seeded import digest
from fpemu import metrics
from fpemu.gpu.runtime import device
from fpemu.gpu.runtime.device import Buffer
from fpemu.gpu.runtime.matrices import Matrix


@dataclass(eq=False)
class Prepared:
    """An implementation with its operands, to be launched again and again."""

    multiply: Queue  # queues the product, of split operands where there is a `split`
    about: dict[str, Any]  # fields of its row
    split: Queue | None = None  # queues the split of A and B
    D: Matrix | None = None  # the result of one product
    emulate: Callable[[Any, Any], Any] | None = None  # computes the product of other operands by the emulator
    phases: Callable[[], dict[str, float]] | None = None  # measures the phases of one product, as fields of its row
    sample: Callable[[], NDArray[Any]] | None = None  # fetches some outputs of `examined`
    examined: Queue | None = None  # queues the compared product, where launches alternate between copies

    def both(self) -> None:
        """Queue the split and the product."""
        if self.split is not None:
            self.split()
        self.multiply()


def measure(prepared: Prepared, result: Buffer, nbytes: int, exact: NDArray[np.float64]) -> dict[str, Any]:
    """Measure an implementation of short launches, far from the chip's power limit; return the fields of its row.

    `prepared.examined` writes the first `nbytes` bytes of `result`; `exact` is the exact product of the sample.
    """
    fields = {**prepared.about, "copy_GBs": ceilings.copy_rate() * 1e-9, "launch_s": ceilings.launch_time()}
    examined = prepared.examined or prepared.multiply
    assert prepared.sample is not None
    result.fill(device.POISON)
    examined()
    device.synchronize()
    fields |= {"digest": digest(result.pointer, nbytes), **errors(prepared.sample(), exact)}
    fields |= timing.fields(timing.measure(prepared.multiply, timing.STEADY))
    examined()
    device.synchronize()
    return {**fields, "again": digest(result.pointer, nbytes) == fields["digest"]}


def errors(D: NDArray[Any], exact: Any, **more: str) -> dict[str, Any]:
    """Return the errors of a sample of outputs.

    "lost" is the number of outputs that are not finite, "outputs" the number of all; of the finite ones "relative_l2",
    "max_relative" and `more`, names with their functions in `fpemu.metrics`.

    >>> errors(np.array([1.0, 2.0, np.inf]), np.array([1.0, 2.5, 3.0]))["max_relative"]
    0.2
    """
    outputs = np.asarray(D, np.float64)
    finite = np.isfinite(outputs)
    measures: dict[str, Any] = {"lost": int(outputs.size - finite.sum()), "outputs": int(outputs.size)}
    if finite.any() and exact[finite].any():
        for name, metric in {"relative_l2": "relative_l2", "max_relative": "max_relative", **more}.items():
            measures[name] = float(getattr(metrics, metric)(outputs[finite], exact[finite]))
    return measures


def seconds(nbytes: float) -> float:
    """Estimate the seconds of a case whose operands have so many bytes."""
    return 0.09 + nbytes / 2e11
