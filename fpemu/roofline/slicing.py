"""The work of the Ozaki family: slices or residues, exact products of them, sums.

Rules beside those of `fpemu.roofline.counting`:

* A slice takes five operations per element: largest of the row, two additions that truncate, the subtraction of the
  slice, the conversion. A product of slices takes three per entry: conversion, scaling, sum. In CR mode it takes seven,
  one error-free addition for every product, which is less than any accurate summation needs.
* A residue takes four per element, the scaling two. Each product of residues takes eight per entry, four to reduce it
  and four to accumulate it; the last steps take eight.
* Every product is a separate call: it reads its two words and writes a matrix that the sums read back. The running sum
  is read and written for every product, except in CR mode, where all products are stored. A product of residues is
  reduced to a stored byte; all bytes are read for the result.
"""

from __future__ import annotations

import functools

import numpy as np

from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.roofline.phases import BYTES, Phase, Shape, Work, across, areas, counted, operations, unit, width
from fpemu.schemes.errorfree.base import ErrorFree, SliceScheme
from fpemu.schemes.errorfree.plan import Counts, ModularPlan, SlicePlan

LONGEST = 2**26
"""Largest K for which nominal data are drawn."""


def error_free(scheme: ErrorFree, spec: MmaSpec, shape: Shape, split: str) -> Work:
    """Count the split (unless split="given"), the products and the sums."""
    M, N, K = shape
    sizes, fmt = areas(*shape), scheme.operand.name
    size, wide, out = BYTES[fmt], width(spec.a_format), width(spec.d_format)
    plan = scheme.plan_for(spec, K)
    (sA, sB), products, sums = _words(scheme, plan)
    elements = float(sA * sizes[0] + sB * sizes[1])
    operands, result = float(size * (sizes[0] + sizes[1])), float(size * sizes[2])
    part = min((isinstance(plan, SlicePlan) and plan.k_block) or K, K)
    whole, rest = divmod(K, part)
    instructions = products * (whole * -(-part // spec.k) + -(-rest // spec.k)) * across(spec, M, N)
    if isinstance(plan, ModularPlan):
        splitting = 2.0 * (sizes[0] + sizes[1]) + 4.0 * elements
        joining = sizes[2] * (8.0 * sA + 8.0)
        extra = plan.extra  # the product that determines the scaling has separate words
        stored = out * sizes[2] * float(products)
        reduced = sizes[2] * float(sA)  # bytes to which the products are reduced
        read, written, resident = stored + reduced, reduced + result, reduced + out * sizes[2]
    else:
        at_once = plan.adds_in is None
        splitting, extra = 5.0 * elements, 0
        joining = (7.0 if at_once else 3.0) * sizes[2] * sums
        stored = out * sizes[2] * float(sums)
        # the running sum is read and written for every product, except in CR mode
        read = stored + (0 if at_once else result * (sums - 1))
        written = result * (1 if at_once else sums)
        resident = stored if at_once else out * float(sizes[2])
    words = wide * (elements + extra * (sizes[0] + sizes[1]))
    phases = [] if split == "given" else [Phase(name="split", vector={fmt: splitting}, read=operands, written=words)]
    inputs = float(wide * products * (sizes[0] + sizes[1]))
    executed = {unit(spec): instructions * operations(spec)}
    phases.append(Phase(name="products", products=executed, read=inputs, written=stored))
    phases.append(Phase(name="sums", vector={fmt: joining}, read=read, written=written))
    return counted(
        scheme,
        spec,
        shape,
        phases,
        instructions=instructions,
        products=products,
        words=(sA, sB),
        resident=operands + result + words + resident,
    )


@functools.lru_cache(maxsize=4096)
def _words(scheme: ErrorFree, plan: SlicePlan | ModularPlan) -> tuple[tuple[int, int], int, int]:
    """Slices of A and B, products, and sums outside the instruction: as given, or counted on nominal data."""
    if isinstance(plan, ModularPlan):
        return (plan.moduli, plan.moduli), plan.products, plan.moduli
    assert isinstance(scheme, SliceScheme)
    counts = scheme.given(plan) or _nominal(scheme, plan)
    (a, b), blocks = counts.slices, -(-plan.K // (plan.k_block or plan.K))
    return counts.slices, counts.products, plan.sums(a, b, counts.d, counts.fast) * blocks


def _nominal(scheme: SliceScheme, plan: SlicePlan) -> Counts:
    """Slices of a few rows of nominal data, whose number stands for all."""
    K = plan.K
    if K > LONGEST:
        raise InputError(
            f"{scheme.name}: its number of slices depends on the data, which are not drawn for K = {K}, above "
            f"{LONGEST}: give slices="
        )
    rows = max(2, min(16, 2**17 // K))
    rng = np.random.default_rng(0)
    A, B = ((rng.random(s) - 0.5) * np.exp(0.1 * rng.standard_normal(s)) for s in ((rows, K), (K, rows)))
    A, B = (X.astype(scheme.operand.dtype).astype(np.float64) for X in (A, B))
    return scheme.counts(A, B, plan)
