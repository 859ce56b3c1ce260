"""What the GPU can do at most, measured beside the products: bandwidth of a copy, and the least time of a launch."""

from __future__ import annotations

from typing import Any

from fpemu.gpu import device
from fpemu.gpu.bench import points, timing
from fpemu.gpu.bench.task import Task
from fpemu.gpu.device import Buffer

KIND = "ceiling"
PAGE = "legemm/fig14"
WHO = ("copy", "launch")
BYTES = 2**32
"""Of the copy, those read; as many are written."""


def tasks(quick: bool) -> list[Task]:
    """The rows."""
    return [Task(KIND, 0, 0, 0, "", who, points.NAME, "fp32", (PAGE,)) for who in WHO]


def copy() -> points.Point:
    """A copy of 4 GB within the GPU's memory, each half of them written before."""
    one, other = Buffer.poisoned(BYTES), Buffer.poisoned(BYTES)
    cuda = device._enter()

    def queue() -> None:
        device.check(cuda.cuMemcpyDtoDAsync(other.pointer, one.pointer, BYTES, 0))

    return points.measure(queue, points.RULES)


def launch() -> points.Point:
    """A kernel that does nothing, prepared once."""
    return points.measure(timing.kernels().prepare("nothing", 1, 1).queue, points.RULES)


def measure(task: Task, made: Any) -> dict[str, Any]:
    """ "first_s" of a copy of 4 GB ("bytes": read and written), or of an empty launch."""
    if task.contender == "launch":
        return {**points.fields(launch()), "bytes": 0}
    return {**points.fields(copy()), "bytes": 2 * BYTES}


def seconds(task: Task) -> float:
    """About how long a row takes."""
    return 0.2
