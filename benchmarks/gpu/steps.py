"""Steps of kernels, packed once and queued again and again on the default stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fpemu.gpu.runtime.counters import Label, lock
from fpemu.gpu.runtime.plan import Plan
from fpemu.gpu.runtime.steps import Launch, Memory, Step

Queue = Callable[[], None]
_UNCHECKED = (Label("A", (), (False, False)), Label("B", (), (False, False)))


def texts(steps: Sequence[Step]) -> list[str]:
    """Return the sources of the kernels that some steps launch, each once."""
    return list(dict.fromkeys(step.module.source for step in steps if isinstance(step, Launch)))


def queued(
    steps: Sequence[Step], memory: Memory | None = None, operands: Sequence[Any] = (None,) * 4, mark: int = 0
) -> tuple[Queue, Queue]:
    """Return the functions that queue the first `mark` steps, and the others; A, B, C and D are kept alive.

    No other work may use the workspace of the default stream, `memory`, between the calls of the two functions.
    """
    plan = Plan(steps, memory, mark, _UNCHECKED)

    def queue(start: int, stop: int | None) -> None:
        with lock:
            pointers = [0 if X is None else X.pointer for X in operands]
            plan.queue(plan.addresses(pointers, 0)[0], 0, start, stop)

    return lambda: queue(0, plan.mark), lambda: queue(plan.mark, None)
