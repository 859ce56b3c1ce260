"""The arithmetic of an unknown matrix instruction, from directed probes alone."""

from fpemu.probing.arithmetic.characterize import Characterized, characterize

__all__ = ["Characterized", "characterize"]
