"""Parameter sweeps: the cells (grid), their evaluation (run, executors, cluster) and the stored results (store)."""

from typing import Any

from fpemu.sweep.export import frame
from fpemu.sweep.grid import Grid
from fpemu.sweep.run import CellError, run
from fpemu.sweep.store import Store

__all__ = ["CellError", "Grid", "Store", "frame", "run"]


def __getattr__(name: str) -> Any:
    """Return a name of `fpemu.reproduce` that was here until 0.1, with a warning."""
    if name not in ("Claim", "Experiment", "Reproduction", "committed", "reproduce"):
        raise AttributeError(f"module 'fpemu.sweep' has no attribute {name!r}")
    import importlib
    import warnings

    warnings.warn(f"fpemu.sweep.{name} is fpemu.reproduce.{name} now", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("fpemu.reproduce"), name)
