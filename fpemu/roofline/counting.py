"""Work of a scheme on a GPU for one product of matrices: instructions, operations and bytes, counted and not measured.

The work falls into phases: kernels that run one after another. The rules, for A (M, K), B (K, N) and an instruction of
m × n × k:

* *Products.* 2·m·n·k operations per instruction. M, N and K are padded to whole instructions, K in every interval
  between two promotions and in every turn of an interleaved chain (`fpemu.schemes.lowering`). A free n ("m64nNk16") is
  a multiple of 8 (m128: 16), up to 256. A and B may be exchanged: the orientation with less padding counts.
* *Vector operations*, one per instruction on the ordinary cores, a fused multiply-add being one. A word takes one for
  its rounding and one for its scaling, if it has a scale; every word after it two, for the conversion back and the
  subtraction. Scaled rows take two per element and two per entry of the result. A promotion takes one per entry, as
  does an addition of accumulators, and one more if it scales. Products that are separate calls add to C: two per entry.
* *Ozaki schemes.* A slice takes five operations per element: largest of the row, two additions that truncate, the
  subtraction of the slice, the conversion. A product of slices takes three per entry: conversion, scaling, sum. In CR
  mode it takes seven, one error-free addition for every product, which is less than any accurate summation needs.
  A residue takes four per element, the scaling two. Each product of residues takes eight per entry, four to reduce it
  and four to accumulate it; the last steps take eight. Every product is a separate call: it reads its two words and
  writes a matrix that the sums read back. The running sum is read and written for every product, except in CR mode,
  where all products are stored. A product of residues is reduced to a stored byte; all bytes are read for the result.
* *Strassen's algorithm.* Of Winograd's fifteen additions four are on blocks of A, four on blocks of B and seven on
  products; two levels apply them to the quarters and then to the quarters of these. The split kernel computes the sums,
  so that an operand is read once and 7/4 of its size (two levels: 49/16) is written as words.
* *int8 corrections* of `staged-int8`: a stage takes one product in fp16 and two in int8, an exact stage three in fp16.
  An element takes two operations for its scaling and six for h, r and the two integers; its words are stored in four
  bytes (h, and the integers or r). An entry takes one addition per stage, two per chunk for the corrections and four
  for the scales.
* *Bytes* are the minimum: every phase reads its inputs and writes its outputs once. A tf32 word is stored in four
  bytes. Powers of two of rows and columns are not counted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from fpemu.arguments import LARGEST, choice, integers, sizes
from fpemu.errors import InputError
from fpemu.mma import MmaSpec, catalog
from fpemu.roofline import gpus
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.phases import (
    BYTES,
    Phase,
    Shape,
    Work,
    across,
    areas,
    counted,
    operations,
    split_operations,
    unit,
    width,
)
from fpemu.schemes import Scheme, SplitScheme, build
from fpemu.schemes.errorfree.base import ErrorFree, SliceScheme
from fpemu.schemes.errorfree.plan import Counts, ModularPlan, SlicePlan
from fpemu.schemes.staged import Staged
from fpemu.schemes.staged_int8 import CHUNK, StagedInt8
from fpemu.schemes.words import Join

Split = Literal["kernel", "fused", "given"]
"""Where the words are computed."""
LONGEST = 2**26
"""Largest K for which nominal data are drawn."""
_BEFORE, _AFTER = 4, 7  # additions of blocks of an operand, of products


def work(
    scheme: str | Scheme,
    hardware: str | MmaSpec | Gpu | None,
    M: int,
    N: int,
    K: int,
    *,
    split: Split = "kernel",
    tile: tuple[int, int] = (128, 128),
    **options: Any,
) -> Work:
    """Count the work of A·B, A (M, K) and B (K, N).

    Parameters
    ----------
    scheme : str or Scheme
        One of `fpemu.schemes.names()`, or a scheme itself.
    hardware : str or MmaSpec or Gpu or None
        An architecture, a GPU's name or description, or an instruction; sgemm and dgemm need none.
    M, N, K : int
        Sizes of the product.
    split : {"kernel", "fused", "given"}
        Where the words are computed: in a kernel before the product, in the product's kernel, or before and not
        counted. Schemes whose products are separate calls cannot fuse the split.
    tile : (int, int)
        Rows and columns of the result per thread block, for split="fused": A is split once for each column of tiles, B
        once for each row.
    **options
        The scheme's options. The option `split` of ozaki and ozimmu has the name of an argument: give a scheme with it,
        ``fpemu.schemes.build("ozaki", {"split": "balanced"})``. A number of slices that depends on the data
        (slices=None) is counted on a few rows of nominal data, (uniform [0, 1) - 0.5) · exp(0.1 · normal), the inputs
        of DGEMM-TC with phi = 0.1.

    Returns
    -------
    Work
        Operations, instructions and memory traffic by phase.

    Raises
    ------
    InputError
        Unknown names and options; sizes that are not positive integers; a split that the scheme does not have.

    Examples
    --------
    >>> job = work("ootomo", "H200", 4096, 4096, 4096)
    >>> job.operations / job.nominal, job.instructions
    (3.0, {'hopper wgmma m64nNk16 fp16->fp32': 786432.0})
    """
    chosen = build(scheme, options)
    sizes(M=M, N=N, K=K)
    shape = (int(M), int(N), int(K))
    choice("split", split, get_args(Split))
    integers("tile", tile, 1, LARGEST, length=2)
    if not chosen.needs_hardware:
        return _native(chosen, hardware, shape)
    spec = chosen.spec(_matrix_unit(hardware))
    assert spec is not None
    if isinstance(chosen, StagedInt8):
        return _staged_int8(chosen, spec, shape, split)
    if isinstance(chosen, Staged) and chosen.levels:
        inner = _words(chosen.blocks, spec, _blocks(chosen, shape), "kernel", tile)
        return _strassen(chosen, spec, shape, split, inner)
    if isinstance(chosen, SplitScheme):
        return _words(chosen, spec, shape, split, tile)
    if split == "fused":
        raise InputError(f"{chosen.name}: its products are separate calls, so that the split cannot be fused")
    if not isinstance(chosen, ErrorFree):
        raise InputError(f"{chosen.name}: only the work of sgemm, dgemm and schemes of words or slices is counted")
    return _error_free(chosen, spec, shape, split)


def _native(scheme: Scheme, hardware: str | MmaSpec | Gpu | None, shape: Shape) -> Work:
    fmt = scheme.operand.name
    a, b, c = (float(BYTES[fmt] * n) for n in areas(*shape))
    product = Phase(name="product", products={fmt: 2.0 * shape[0] * shape[1] * shape[2]}, read=a + b, written=c)
    _known(hardware)
    return counted(scheme, None, shape, [product], resident=a + b + c)


def _words(scheme: SplitScheme, spec: MmaSpec, shape: Shape, split: Split, tile: tuple[int, int]) -> Work:
    M, N, K = shape
    rules, lowering = scheme.rules(), scheme.lowering(spec)
    sizes, products = areas(*shape), lowering.products
    used = [sorted({pair[side] for pair in products}) for side in (0, 1)]
    calls = lowering.join == Join.AS_RUN
    if split == "fused" and calls:
        raise InputError(f"{scheme.name}: its products are separate calls, so that the split cannot be fused")
    operands, result = 4.0 * (sizes[0] + sizes[1]), 4.0 * sizes[2]
    stored = float(sum(width(spec.a_format) * len(words) * area for words, area in zip(used, sizes, strict=False)))
    each = [split_operations(rules[: max(words) + 1], scheme.scales_rows) for words in used]
    phases = []
    if split == "kernel":
        once = sum(n * area for n, area in zip(each, sizes, strict=False))
        phases.append(Phase(name="split", vector={"fp32": once}, read=operands, written=stored))
    chains = [(acc, lowering.chains(acc, K, spec.k)) for acc in lowering.accumulators]
    instructions = sum(len(acc.products) * chain.total_blocks for acc, chain in chains) * across(spec, M, N)
    kind = unit(spec)
    if calls:
        share = instructions / len(products)
        promotions = {acc.products[0]: float(chain.total) for acc, chain in chains if acc.interval}
        for number, (i, j) in enumerate(products):
            read = width(spec.a_format) * (sizes[0] + sizes[1]) + (result if number else 0)
            additions = (2.0 if number else 0.0) + promotions.get((i, j), 0.0)
            phases.append(
                Phase(
                    name=f"product {rules[i].name}{rules[j].name}",
                    written=result,
                    read=read,
                    products={kind: share * operations(spec)},
                    vector={"fp32": additions * sizes[2]} if additions else {},
                )
            )
    else:
        # divisions by the power of two of a band, and additions outside the instruction, per entry
        scaled = lowering.exponent != 0
        if lowering.block is None:
            additions = sum(chain.total for acc, chain in chains if acc.interval)
            joins = len(chains) - 1 + scaled * len({acc.band for acc, _ in chains} - {0})
        else:
            additions, joins = sum(chain.total * (1 + (scaled and acc.band > 0)) for acc, chain in chains), 0
        again = (-(-N // tile[1]), -(-M // tile[0])) if split == "fused" else (0, 0)
        vector = sum(n * area * r for n, area, r in zip(each, sizes, again, strict=False))
        sums = {"fp32": vector + (additions + 2 * scheme.scales_rows) * float(sizes[2])}
        combined = "fp64" if lowering.in_double else "fp32"
        sums[combined] = sums.get(combined, 0.0) + joins * float(sizes[2])
        phases.append(
            Phase(
                name="product",
                products={kind: instructions * operations(spec)},
                vector={name: n for name, n in sums.items() if n},
                written=result,
                read=operands if split == "fused" else stored,
            )
        )
    return counted(
        scheme,
        spec,
        shape,
        phases,
        instructions=instructions,
        products=len(products),
        words=(len(used[0]), len(used[1])),
        resident=operands + result + (0 if split == "fused" else stored),
    )


# --- error-free schemes


def _error_free(scheme: ErrorFree, spec: MmaSpec, shape: Shape, split: str) -> Work:
    """Count the split (unless split="given"), the products and the sums."""
    M, N, K = shape
    sizes, fmt = areas(*shape), scheme.operand.name
    size, wide, out = BYTES[fmt], width(spec.a_format), width(spec.d_format)
    plan = scheme.plan_for(spec, K)
    (sA, sB), products, sums = _slices(scheme, plan)
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


@lru_cache(maxsize=4096)
def _slices(scheme: ErrorFree, plan: SlicePlan | ModularPlan) -> tuple[tuple[int, int], int, int]:
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


# --- corrections in 8 bits and Strassen's algorithm


def _staged_int8(scheme: StagedInt8, spec: MmaSpec, shape: Shape, split: str) -> Work:
    """Count the split (unless split="given") and the product."""
    M, N, K = shape
    assert scheme.stage is not None
    stages = -(-K // scheme.stage)
    sizes = areas(*shape)
    elements = float(sizes[0] + sizes[1])
    lowering = scheme.lowering(spec)
    whole, stage = (
        lowering.chains(lowering.accumulators[0], k, spec.k).total_blocks for k in (K, min(K, scheme.stage))
    )
    exact = 0  # blocks of the exact stages, the last of which may be a shorter one
    if scheme.exact is not None:
        exact = -(-stages // scheme.exact) * stage
        exact -= (stages * stage - whole) * ((stages - 1) % scheme.exact == 0)
    instructions = across(spec, M, N) * (whole + 2 * exact)
    products = {
        unit(spec): instructions * operations(spec),
        "int8": 2 * across(spec, M, N) * (whole - exact) * operations(spec),
    }
    vector = sizes[2] * (stages + 2.0 * -(-K // CHUNK) + 4.0)
    separate = Phase(name="split", vector={"fp32": 8 * elements}, read=4 * elements, written=4 * elements)
    product = Phase(
        name="product",
        products={name: n for name, n in products.items() if n},
        vector={"fp32": vector},
        read=4 * elements,
        written=4.0 * sizes[2],
    )
    return counted(
        scheme,
        spec,
        shape,
        [product] if split == "given" else [separate, product],
        instructions=instructions,
        products=3,
        words=(2, 2),
        resident=8 * elements + 4.0 * sizes[2],
    )


def _blocks(scheme: Staged, shape: Shape) -> Shape:
    """M, N, K of the smallest products: halved once per level and rounded up."""
    M, N, K = shape
    for _ in range(scheme.levels):
        M, N, K = -(-M // 2), -(-N // 2), -(-K // 2)
    return M, N, K


def _strassen(scheme: Staged, spec: MmaSpec, shape: Shape, split: str, inner: Work) -> Work:
    """Count the split (unless split="given"), the products and their sums; `inner` is the work of one of them."""
    if split == "fused":
        raise InputError(
            f"{scheme.name}: sums of blocks are split before the products: choose split='kernel' or 'given'"
        )
    count, small = 7**scheme.levels, areas(*inner.shape)
    separate, *others = inner.phases
    elements, words = float(sum(areas(*shape)[:2])), count * separate.written
    produced, result = float(count * small[2]), 4.0 * areas(*shape)[2]
    phases = []
    if split == "kernel":
        vector = count * separate.vector["fp32"] + _additions(scheme.levels, _BEFORE, small[0] + small[1])
        phases.append(Phase(name="split", vector={"fp32": vector}, read=4 * elements, written=words))
    phases += [
        Phase(
            name=phase.name,
            products={unit: count * n for unit, n in phase.products.items()},
            vector={unit: count * n for unit, n in phase.vector.items()},
            read=count * phase.read,
            written=count * phase.written,
        )
        for phase in others
    ]
    sums = {"fp32": _additions(scheme.levels, _AFTER, small[2])}
    phases.append(Phase(name="sums", vector=sums, read=4 * produced, written=result))
    return counted(
        scheme,
        spec,
        shape,
        phases,
        instructions=count * inner.instructions[spec.name],
        products=count * inner.products,
        words=(count * inner.words[0], count * inner.words[1]),
        resident=4 * (elements + produced) + words + result,
    )


def _additions(levels: int, each: int, small: int) -> float:
    """Additions of single numbers: `each` of blocks per level, the smallest blocks having `small` elements."""
    return float(sum(7 ** (level - 1) * each * small * 4 ** (levels - level) for level in range(1, levels + 1)))


# --- hardware


def _matrix_unit(hardware: str | MmaSpec | Gpu | None) -> str | MmaSpec | None:
    """The argument of `Scheme.spec`, also for a GPU of the table."""
    known = _known(hardware)
    if not isinstance(known, Gpu):
        return known
    if known.architecture is None:
        raise InputError(f"{known.name} has no matrix instruction that is modelled: only sgemm and dgemm run on it")
    return known.architecture


def _known(hardware: str | MmaSpec | Gpu | None) -> str | MmaSpec | Gpu | None:
    """The architecture, GPU or instruction of a name; others as they are."""
    if not isinstance(hardware, str):
        return hardware
    try:
        return catalog.architecture(hardware)
    except InputError:
        return gpus.get(hardware)
