"""What an unknown GEMM does, found from outside by probes: the order in which it adds, and its instruction."""

from fpemu.probing.arithmetic import Characterized, characterize
from fpemu.probing.reveal import Revealed, reveal
from fpemu.probing.treefile import load, save

__all__ = ["Characterized", "Revealed", "characterize", "load", "reveal", "save"]
