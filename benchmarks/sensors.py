"""Power and clock of the GPU, read from NVIDIA's management library; no setting is changed."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from fpemu.gpu.runtime import device

_SM = 1  # NVML_CLOCK_SM
_EVERY = 0.02
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
"""NVML's reasons for the clock, by their bit."""


@dataclass(frozen=True)
class Reading:
    """Medians over the second half of a run: watts, MHz, and what limited the clock (`REASONS`)."""

    power: float
    clock: float
    reasons: tuple[str, ...]


@cache
def _sensors() -> tuple[Any, Any] | None:
    """Return the library and its handle of the GPU; None where there is none."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        cuda = device.driver()
        bus = device.check(cuda.cuDeviceGetPCIBusId(32, device.check(cuda.cuCtxGetDevice())))
        handle = ctypes.c_void_p()
        failed = library.nvmlInit_v2()
        failed = failed or library.nvmlDeviceGetHandleByPciBusId_v2(bytes(bus).split(b"\0")[0], ctypes.byref(handle))
        return None if failed else (library, handle)
    except Exception:  # a container without the library, a driver that hides it: speeds are measured all the same
        return None


def read() -> tuple[float, float, int] | None:
    """Return the present watts, MHz of the SMs and bits of `REASONS`; None where they cannot be read."""
    sensors = _sensors()
    if sensors is None:
        return None
    library, handle = sensors
    power, clock, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
    failed = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power))
    failed = failed or library.nvmlDeviceGetClockInfo(handle, _SM, ctypes.byref(clock))
    with suppress(AttributeError):
        library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
    return None if failed else (power.value / 1e3, float(clock.value), reasons.value)


class Watch:
    """Reads power and clock in a separate thread until `stop`."""

    def __init__(self) -> None:
        self._readings: list[tuple[float, float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        if _sensors() is not None:
            self._thread.start()

    def _look(self) -> None:
        while not self._ended.is_set():
            now = read()
            if now is not None:
                self._readings.append(now)
            time.sleep(_EVERY)

    def stop(self) -> Reading | None:
        """Return the reading of the second half; None if there is none."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        half = self._readings[len(self._readings) // 2 :]
        if not half:
            return None
        bits = 0
        for _, _, reasons in half:
            bits |= reasons
        named = tuple(name for bit, name in REASONS.items() if bits & bit)
        return Reading(statistics.median(p for p, _, _ in half), statistics.median(c for _, c, _ in half), named)
