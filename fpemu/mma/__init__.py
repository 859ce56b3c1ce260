"""One matrix instruction, bit for bit, and a GEMM made of it."""

from fpemu.mma import catalog
from fpemu.mma.catalog import spec
from fpemu.mma.gemm import chain, execute, gemm
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec

__all__ = ["KOrder", "MmaSpec", "catalog", "chain", "execute", "gemm", "spec"]
