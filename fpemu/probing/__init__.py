"""The summation order and the arithmetic of an unknown GEMM, found by probes."""

from fpemu.mma.serialise import load, save
from fpemu.probing.arithmetic.characterize import Characterized, characterize
from fpemu.probing.invariance import Invariance, invariance
from fpemu.probing.reveal import Revealed, RevealedMap, reveal, reveal_map

__all__ = [
    "Characterized",
    "Invariance",
    "Revealed",
    "RevealedMap",
    "characterize",
    "invariance",
    "load",
    "reveal",
    "reveal_map",
    "save",
]
