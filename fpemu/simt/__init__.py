"""GEMM on FMA units: chains of multiply-adds in any format, and the tall-and-skinny algorithms that consist of them."""

from fpemu.simt.chains import SPECS, add, divide, fma, gemm, multiply, sqrt
from fpemu.simt.tallskinny import ism2, tsm2

__all__ = ["SPECS", "add", "divide", "fma", "gemm", "ism2", "multiply", "sqrt", "tsm2"]
