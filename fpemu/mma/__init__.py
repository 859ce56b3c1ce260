"""Matrix instructions, bit for bit, and GEMMs built from them."""

from typing import Any

from fpemu.mma import catalog, order
from fpemu.mma.catalog import spec
from fpemu.mma.gemm import chain, execute, gemm
from fpemu.mma.order import KOrder
from fpemu.mma.spec import MmaSpec

__all__ = ["KOrder", "MmaSpec", "catalog", "chain", "execute", "gemm", "spec"]


def _reveal(gemm: Any, k: int, spec: MmaSpec | None = None, **hints: Any) -> Any:
    """Find the summation order of a GEMM from probes, as `fpemu.probing.reveal`."""
    from fpemu.probing.reveal import reveal

    return reveal(gemm, k, spec, **hints)


order.reveal = _reveal  # here and not in `order`, which `fpemu.probing.reveal` imports
