"""How many cores there are to run on."""

from __future__ import annotations

import os

from fpemu.errors import InputError


def cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def threads() -> int:
    """Threads of the compiled kernels: FPEMU_THREADS, or as many as there are cores."""
    asked = os.environ.get("FPEMU_THREADS", "")
    if not asked:
        return cores()
    if not asked.isdigit() or int(asked) < 1:
        raise InputError(f"FPEMU_THREADS = {asked!r} must be a positive integer")
    return int(asked)
