"""Parameter sweeps: the cells (grid), their evaluation (run), the results (store) and tables of them."""

import importlib
from typing import TYPE_CHECKING, Any

from fpemu.sweep.run import CellError, run
from fpemu.sweep.store import Store
from fpemu.sweep.tables import frame

if TYPE_CHECKING:
    from fpemu.sweep.grid import Grid

__all__ = ["CellError", "Grid", "Store", "frame", "run"]


def __getattr__(name: str) -> Any:
    """Return `Grid`, which imports the schemes."""
    if name != "Grid":
        raise AttributeError(f"module 'fpemu.sweep' has no attribute {name!r}")
    return importlib.import_module("fpemu.sweep.grid").Grid
