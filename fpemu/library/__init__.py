"""Products of vendor libraries, bit for bit and without their GPU, from tables of measured summation orders.

A library chooses its kernel, and with it the summation order over K, by shape, layout and type. The tables in
``fpemu/library/data`` contain the orders of products of 353 shapes, each compared with the library's own product.
"""

from __future__ import annotations

from typing import Any

from fpemu.library.emulation import emulate, predict, replay
from fpemu.library.product import LAYOUTS, TYPES, Product
from fpemu.library.tables import lookup, orders

__all__ = ["LAYOUTS", "TYPES", "Product", "emulate", "lookup", "orders", "predict", "replay"]


def __getattr__(name: str) -> Any:
    if name == "Case":
        import warnings

        warnings.warn("fpemu.library.Case is now fpemu.library.Product", DeprecationWarning, stacklevel=2)
        return Product
    raise AttributeError(f"module 'fpemu.library' has no attribute {name!r}")
