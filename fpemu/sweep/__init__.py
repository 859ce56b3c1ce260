"""What to evaluate (experiments), where the numbers are kept (store), how they are evaluated (run), what is written
out (figures) and what the papers say about them (claims)."""

from fpemu.sweep.claims import Claim
from fpemu.sweep.experiments import Experiment
from fpemu.sweep.run import CellError, run
from fpemu.sweep.store import Store

__all__ = ["CellError", "Claim", "Experiment", "Store", "run"]
