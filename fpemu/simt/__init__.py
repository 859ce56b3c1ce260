"""GEMM on FMA units: chains of fused multiply-adds, and the tall-and-skinny algorithms that consist of them."""

from fpemu.simt.chains import SPECS, fma, gemm
from fpemu.simt.tallskinny import ism2, tsm2

__all__ = ["SPECS", "fma", "gemm", "ism2", "tsm2"]
