"""Products of vendor libraries, bit for bit and without their GPU, from tables of measured summation orders.

A library chooses its kernel, and with it the summation order over K, by shape, layout and type. The tables in
``fpemu/library/data`` contain the orders of products of 353 shapes, each compared with the library's own product.
"""

from __future__ import annotations

from fpemu.library.emulation import emulate, predict, replay
from fpemu.library.tables import LAYOUTS, TYPES, Product, lookup, orders

__all__ = ["LAYOUTS", "TYPES", "Product", "emulate", "lookup", "orders", "predict", "replay"]
