"""What the GPU can do at most, measured beside the products: bandwidth of a copy, and the least time of a launch."""

from __future__ import annotations

from typing import Any

from fpemu.gpu import device
from fpemu.gpu.bench import timing
from fpemu.gpu.bench.task import Task
from fpemu.gpu.device import Buffer

KIND = "ceiling"
PAGE = "legemm/fig14"
WHO = ("copy", "launch")
_BYTES = 2**32


def tasks(quick: bool) -> list[Task]:
    """The rows."""
    return [Task(KIND, 0, 0, 0, "", who, "short", "fp32", (PAGE,)) for who in WHO]


def measure(task: Task, made: Any) -> dict[str, Any]:
    """ "first_s" of a copy of 4 GB ("bytes": read and written), or of an empty launch."""
    if task.contender == "launch":
        module = timing.kernels()
        speed = timing.measure(lambda: module.launch("nothing", 1, 1, wait=False), timing.SHORT)
        return {"first_s": speed.first, "best_s": speed.best, "bytes": 0}
    one, other = Buffer.poisoned(_BYTES), Buffer(_BYTES)
    cuda = device._enter()

    def copy() -> None:
        device.check(cuda.cuMemcpyDtoDAsync(other.pointer, one.pointer, _BYTES, 0))

    speed = timing.measure(copy, timing.SHORT)
    return {"first_s": speed.first, "best_s": speed.best, "sustained_s": speed.sustained, "bytes": 2 * _BYTES}


def seconds(task: Task) -> float:
    """About how long a row takes."""
    return 0.4
