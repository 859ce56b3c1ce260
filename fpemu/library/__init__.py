"""Products of vendor libraries, bit for bit and without their GPU, from tables of measured summation orders.

A library chooses its kernel, and with it the summation order over K, by shape, layout and type. The tables in
``fpemu/library/data`` contain the orders of products of 353 shapes, each compared with the library's own product.
`all_reduce` and `reduce_scatter` add over several GPUs as NCCL does.
"""

from __future__ import annotations

from fpemu.library.collectives import all_reduce, parallel_linear, reduce_scatter
from fpemu.library.emulation import emulate, predict, replay
from fpemu.library.families import Configuration, lost_terms, plan
from fpemu.library.products import configurations, lookup, orders
from fpemu.library.rows import invariance
from fpemu.library.tables import LAYOUTS, TYPES, Product

__all__ = [
    "LAYOUTS",
    "TYPES",
    "Configuration",
    "Product",
    "all_reduce",
    "configurations",
    "emulate",
    "invariance",
    "lookup",
    "lost_terms",
    "orders",
    "parallel_linear",
    "plan",
    "predict",
    "reduce_scatter",
    "replay",
]
