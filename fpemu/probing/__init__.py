"""What an unknown GEMM does, found from outside by probes: the order in which it adds, and its instruction."""

from fpemu.probing.reveal import Revealed, reveal

__all__ = ["Revealed", "reveal"]
