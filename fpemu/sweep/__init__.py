"""Parameter sweeps: the cells (grid), their evaluation (run, workers), the results (store) and tables of them."""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from fpemu.sweep.run import CellError, run
from fpemu.sweep.store import Store
from fpemu.sweep.tables import frame

if TYPE_CHECKING:
    from fpemu.sweep.grid import Grid

__all__ = ["CellError", "Grid", "Store", "frame", "run"]


def __getattr__(name: str) -> Any:
    """Return `Grid`, which imports the schemes, or a name of `fpemu.reproduce` that was here until 0.1."""
    if name == "Grid":
        return importlib.import_module("fpemu.sweep.grid").Grid
    if name not in ("Claim", "Experiment", "Reproduction", "committed", "reproduce"):
        raise AttributeError(f"module 'fpemu.sweep' has no attribute {name!r}")
    warnings.warn(f"fpemu.sweep.{name} is fpemu.reproduce.{name} now", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("fpemu.reproduce"), name)
