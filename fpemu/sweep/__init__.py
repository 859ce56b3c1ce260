"""What to evaluate (experiments, grid), where the numbers are kept (store), how they are evaluated (run, executors,
cluster), what is written out (figures, export) and what the papers say about them (claims)."""

from fpemu.sweep.claims import Claim
from fpemu.sweep.experiments import Experiment
from fpemu.sweep.export import frame
from fpemu.sweep.grid import Grid
from fpemu.sweep.reproduction import Reproduction, committed, reproduce
from fpemu.sweep.run import CellError, run
from fpemu.sweep.store import Store

__all__ = [
    "CellError",
    "Claim",
    "Experiment",
    "Grid",
    "Reproduction",
    "Store",
    "committed",
    "frame",
    "reproduce",
    "run",
]
