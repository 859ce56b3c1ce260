"""Batched products of half and half-complex matrices, bit for bit, and complex products by any scheme.

The arithmetic of MAGMA's batched kernels (Abdelfattah, Tomov, Dongarra 2020): `hgemm` and `hcgemm` on matrix
instructions or, `kernel="magma-small"`, as chains of fused multiply-adds with a thread for each element.
"""

from fpemu.batched.halfcomplex import hcgemm
from fpemu.batched.layouts import as_complex, interleaved, planar
from fpemu.batched.real import hgemm
from fpemu.batched.splitcomplex import complex_gemm

__all__ = ["as_complex", "complex_gemm", "hcgemm", "hgemm", "interleaved", "planar"]
