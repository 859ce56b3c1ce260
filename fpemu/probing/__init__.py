"""The summation order and the arithmetic of an unknown GEMM, found by probes."""

from fpemu.probing.arithmetic import Characterized, characterize
from fpemu.probing.reveal import Revealed, reveal
from fpemu.probing.treefile import load, save

__all__ = ["Characterized", "Revealed", "characterize", "load", "reveal", "save"]
