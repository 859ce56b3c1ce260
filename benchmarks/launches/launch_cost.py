"""Host time of one kernel launch, side by side on an empty kernel: fpemu's plan, cuda.core, cuda.bindings.

Run in the checkout, on a machine with an NVIDIA GPU: ``python -m benchmarks.launches.launch_cost``. It prints one JSON
object: microseconds of host time per launch, the median over 25 repetitions of 400 launches each. The stream is
synchronised between repetitions, outside the timed part, so that no launch waits for a full queue.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import timing
from fpemu.gpu.runtime import device, modules, plan
from fpemu.gpu.runtime.steps import Address

SOURCE = """
extern "C" __global__ void eight(const void* a, const void* b, void* d, long long m, long long n, long long k,
                                 double alpha, double beta) {}
"""
LAUNCHES, REPETITIONS = 400, 25


def microseconds(launch: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    """Return the median host time of one call of ``launch``, in microseconds."""
    timing.wall(launch, LAUNCHES, 3, synchronize=synchronize)
    return 1e6 * timing.wall(launch, LAUNCHES, REPETITIONS, synchronize=synchronize)


def prepared() -> dict[str, float]:
    """Return the times of fpemu's launches: with the addresses of the last call, with others, or packed every time."""
    module = modules.Module(SOURCE, name="empty.cu")
    operands = (Address("A"), Address("B"), Address("D"))
    step = module.step("eight", 132, 128, *operands, 1, 1, 1, 1.0, 0.0)
    ready = plan.Plan([step])
    calls = [partial(ready.queue, ready.addresses([pointer] * 4, 0)[0]) for pointer in (256, 512)]

    def alternate() -> None:
        calls.reverse()
        calls[0]()

    direct = module.step("eight", 132, 128, 0, 0, 0, 1, 1, 1, 1.0, 0.0)
    times: dict[str, Callable[[], Any]] = {
        "fpemu: plan of one launch": calls[0],
        "fpemu: plan of one launch, three addresses written": alternate,
        "fpemu: plan and launch": lambda: plan.queue(direct),
    }
    return {name: microseconds(call, device.synchronize) for name, call in times.items()}


def core() -> dict[str, float]:
    """Return the times of launches through cuda.core."""
    from cuda.core import LaunchConfig, Program, ProgramOptions, launch

    gpu = device.gpu()
    stream = gpu.create_stream()
    kernel = Program(SOURCE, "c++", ProgramOptions(arch=device.arch())).compile("cubin").get_kernel("eight")
    config = LaunchConfig(grid=132, block=128)
    overlapping = LaunchConfig(grid=132, block=128, programmatic_stream_serialization=True)
    buffers = [gpu.allocate(256, stream=stream) for _ in range(3)]
    numbers = (*(int(buffer.handle) for buffer in buffers), 1, 1, 1, 1.0, 0.0)
    scalars = (np.int64(1), np.int64(1), np.int64(1), np.float64(1.0), np.float64(0.0))
    calls = {
        "cuda.core: Buffers and NumPy scalars": lambda: launch(stream, config, kernel, *buffers, *scalars),
        "cuda.core: Python numbers": lambda: launch(stream, config, kernel, *numbers),
        "cuda.core: Python numbers, programmatic dependent launch": lambda: launch(
            stream, overlapping, kernel, *numbers
        ),
        "cuda.core: Python numbers, LaunchConfig built at every launch": lambda: launch(
            stream, LaunchConfig(grid=132, block=128), kernel, *numbers
        ),
    }
    return {name: microseconds(call, stream.sync) for name, call in calls.items()}


def bindings() -> dict[str, float]:
    """Return the time of cuLaunchKernel of cuda.bindings with the argument array packed once."""
    from cuda.bindings import driver

    module = modules.Module(SOURCE, name="empty.cu")
    function = module.function("eight")
    packed = [np.zeros(1, np.uint64) for _ in range(8)]
    pointers = np.array([p.ctypes.data for p in packed], np.uint64)
    address = int(pointers.ctypes.data)
    return {
        "cuda.bindings: cuLaunchKernel, address of packed arguments": microseconds(
            lambda: driver.cuLaunchKernel(function, 132, 1, 1, 128, 1, 1, 0, 0, address, 0), device.synchronize
        )
    }


def yardstick() -> dict[str, float]:
    """Return the time of torch.mm(out=) in the same process; nothing where PyTorch is not installed."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return {}
    A, B, D = (torch.ones(512, 512, device="cuda") for _ in range(3))
    return {"torch.mm(out=), 512": microseconds(lambda: torch.mm(A, B, out=D), torch.cuda.synchronize)}


def main() -> None:
    missing = device.missing()
    if missing is not None:
        raise SystemExit(f"launch_cost.py: {missing}")
    times = {**yardstick(), **prepared(), **bindings(), **core()}
    print(json.dumps({**device.describe(), "microseconds": times}, indent=2))


if __name__ == "__main__":
    main()
