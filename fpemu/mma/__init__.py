"""Matrix instructions, bit for bit, and GEMMs built from them."""

from fpemu.mma import catalog
from fpemu.mma.catalog import spec
from fpemu.mma.gemm import chain, execute, gemm
from fpemu.mma.order import KOrder
from fpemu.mma.outer_scales import scaled_gemm
from fpemu.mma.spec import MmaSpec

__all__ = ["KOrder", "MmaSpec", "catalog", "chain", "execute", "gemm", "scaled_gemm", "spec"]
