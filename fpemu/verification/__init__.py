"""Verification of GPU or CPU against the emulation: one module per suite, cases from a seed, one record schema."""

from typing import Any

_SUITES = (
    *("arguments", "batched", "collective", "emulation", "instructions", "kernels", "library", "processor"),
    "tallskinny",
)


def __getattr__(name: str) -> Any:
    """Import a suite when its name is first used."""
    if name not in _SUITES:
        raise AttributeError(f"module 'fpemu.verification' has no attribute {name!r}")
    import importlib

    return importlib.import_module(f"fpemu.verification.{name}")
