"""The summation order and the arithmetic of an unknown GEMM, found by probes."""

from fpemu.mma.serialise import load, save
from fpemu.probing.arithmetic import Characterized, characterize
from fpemu.probing.reveal import Revealed, reveal

__all__ = ["Characterized", "Revealed", "characterize", "load", "reveal", "save"]
