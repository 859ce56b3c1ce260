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

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from fpemu.arguments import LARGEST, choice, integers, sizes
from fpemu.errors import InputError
from fpemu.mma import MmaSpec, catalog
from fpemu.roofline import gpus
from fpemu.roofline.gpus import Gpu
from fpemu.schemes import Scheme, SplitScheme, build
from fpemu.schemes.errorfree.base import ErrorFree, SliceScheme
from fpemu.schemes.errorfree.plan import Counts, ModularPlan, SlicePlan
from fpemu.schemes.staged import Staged
from fpemu.schemes.staged_int8 import CHUNK, StagedInt8
from fpemu.schemes.words import Word

Shape = tuple[int, int, int]
"""M, N, K"""
BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4, "fp64": 8, "int32": 4, "int8": 1}
"""Bytes of a stored number; one for all other formats."""


@dataclass(frozen=True)
class Phase:
    """A kernel, or several equal kernels.

    Attributes
    ----------
    name : str
        Name of the phase.
    products : mapping of str to float
        Operations of matrix products by format of their inputs, a multiply-add being two; padding included.
    vector : mapping of str to float
        Instructions of the ordinary cores by format, one element each.
    read, written : float
        Bytes read from and written to memory.
    """

    name: str
    products: Mapping[str, float] = field(default_factory=dict)
    vector: Mapping[str, float] = field(default_factory=dict)
    read: float = 0.0
    written: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of one product by a scheme.

    Attributes
    ----------
    scheme : str
        Name of the scheme.
    operand : str
        Format of A, B and the result.
    architecture : str or None
        Architecture of the matrix units; None: ordinary cores.
    shape : (int, int, int)
        M, N, K.
    phases : tuple of Phase
        Kernels in order.
    instructions : mapping of str to float
        Matrix instructions by name.
    products : int
        Products of words, slices or residues.
    words : (int, int)
        Words, slices or residues of A and of B.
    resident : float
        Least number of bytes in memory at the same time: operands, words, result, products not yet summed.
    """

    scheme: str
    operand: str
    architecture: str | None
    shape: tuple[int, int, int]
    phases: tuple[Phase, ...]
    instructions: Mapping[str, float]
    products: int
    words: tuple[int, int]
    resident: float

    @property
    def operations(self) -> float:
        """Operations of all matrix products."""
        return sum(sum(phase.products.values()) for phase in self.phases)

    @property
    def vector(self) -> float:
        """Instructions of the ordinary cores, one element each."""
        return sum(sum(phase.vector.values()) for phase in self.phases)

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return sum(phase.read + phase.written for phase in self.phases)

    @property
    def nominal(self) -> float:
        """2 M N K, the operations of the product that the scheme emulates."""
        M, N, K = self.shape
        return 2.0 * M * N * K


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
        _known(hardware)
        return _count(chosen, None, shape, split, tile)
    return _count(chosen, chosen.spec(_matrix_unit(hardware)), shape, split, tile)


def _count(scheme: Scheme, spec: MmaSpec | None, shape: Shape, split: Split, tile: tuple[int, int]) -> Work:
    if spec is None:
        return _native(scheme, shape)
    if isinstance(scheme, StagedInt8):
        return _staged_int8(scheme, spec, shape, split)
    if isinstance(scheme, Staged) and scheme.levels:
        M, N, K = shape
        for _ in range(scheme.levels):  # the smallest products: halved once per level and rounded up
            M, N, K = -(-M // 2), -(-N // 2), -(-K // 2)
        return _strassen(scheme, spec, shape, split, _count(scheme.blocks, spec, (M, N, K), "kernel", tile))
    if isinstance(scheme, SplitScheme):
        return _words(scheme, spec, shape, split, tile)
    if isinstance(scheme, ErrorFree):
        return _error_free(scheme, spec, shape, split)
    raise InputError(f"{scheme.name}: only the work of sgemm, dgemm and schemes of words or slices is counted")


def _work(
    scheme: Scheme,
    spec: MmaSpec | None,
    shape: Shape,
    phases: Sequence[Phase],
    resident: float,
    instructions: float = 0.0,
    products: int = 1,
    words: tuple[int, int] = (1, 1),
) -> Work:
    """The work of a scheme with these counts; ``instructions`` is the number of the one instruction."""
    return Work(
        scheme=scheme.name,
        operand=scheme.operand.name,
        architecture=None if spec is None else spec.architecture,
        shape=shape,
        phases=tuple(phases),
        instructions={} if spec is None else {spec.name: float(instructions)},
        products=products,
        words=words,
        resident=resident,
    )


def _not_fused(scheme: Scheme, split: Split) -> None:
    if split == "fused":
        raise InputError(f"{scheme.name}: its products are separate calls, so that the split cannot be fused")


def _native(scheme: Scheme, shape: Shape) -> Work:
    fmt = scheme.operand.name
    a, b, c = (float(BYTES[fmt] * n) for n in areas(*shape))
    products = {fmt: 2.0 * shape[0] * shape[1] * shape[2]}
    return _work(scheme, None, shape, [Phase("product", products, read=a + b, written=c)], a + b + c)


def _words(scheme: SplitScheme, spec: MmaSpec, shape: Shape, split: Split, tile: tuple[int, int]) -> Work:
    M, N, K = shape
    rules, lowering = scheme.rules(), scheme.lowering(spec)
    sizes, products, kind = areas(*shape), lowering.products, unit(spec)
    used = [sorted({pair[side] for pair in products}) for side in (0, 1)]
    calls = lowering.join == "as-run"
    if calls:
        _not_fused(scheme, split)
    operands, result = 4.0 * (sizes[0] + sizes[1]), 4.0 * sizes[2]
    stored = float(sum(width(spec.a_format) * len(words) * area for words, area in zip(used, sizes, strict=False)))
    each = [split_operations(rules[: max(words) + 1], scheme.scales_rows) for words in used]
    phases = []
    if split == "kernel":
        once = sum(n * area for n, area in zip(each, sizes, strict=False))
        phases.append(Phase("split", vector={"fp32": once}, read=operands, written=stored))
    chains = [(acc, lowering.chains(acc, K, spec.k)) for acc in lowering.accumulators]
    instructions = sum(len(acc.products) * chain.total_blocks for acc, chain in chains) * across(spec, M, N)
    if calls:
        executed = {kind: instructions / len(products) * operations(spec)}
        promotions = {acc.products[0]: float(chain.total) for acc, chain in chains if acc.interval}
        for number, (i, j) in enumerate(products):
            read = width(spec.a_format) * (sizes[0] + sizes[1]) + (result if number else 0)
            additions = (2.0 if number else 0.0) + promotions.get((i, j), 0.0)
            vector = {"fp32": additions * sizes[2]} if additions else {}
            phases.append(Phase(f"product {rules[i].name}{rules[j].name}", executed, vector, read, result))
    else:
        # divisions by the power of two of a band, and additions outside the instruction, per entry
        scaled = lowering.exponent != 0
        if lowering.block is None:
            additions = sum(chain.total for acc, chain in chains if acc.interval)
            joins = len(chains) - 1 + scaled * len({acc.band for acc, _ in chains} - {0})
        else:
            additions, joins = sum(chain.total * (1 + (scaled and acc.band > 0)) for acc, chain in chains), 0
        again = (-(-N // tile[1]), -(-M // tile[0])) if split == "fused" else (0, 0)
        splitting = sum(n * area * r for n, area, r in zip(each, sizes, again, strict=False))
        sums = {"fp32": splitting + (additions + 2 * scheme.scales_rows) * float(sizes[2])}
        combined = "fp64" if lowering.in_double else "fp32"
        sums[combined] = sums.get(combined, 0.0) + joins * float(sizes[2])
        vectors = {name: n for name, n in sums.items() if n}
        read = operands if split == "fused" else stored
        phases.append(Phase("product", {kind: instructions * operations(spec)}, vectors, read, result))
    resident = operands + result + (0 if split == "fused" else stored)
    return _work(scheme, spec, shape, phases, resident, instructions, len(products), (len(used[0]), len(used[1])))


# --- error-free schemes


def _error_free(scheme: ErrorFree, spec: MmaSpec, shape: Shape, split: Split) -> Work:
    """The split (unless split="given"), the products and the sums."""
    _not_fused(scheme, split)
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
    phases = [] if split == "given" else [Phase("split", vector={fmt: splitting}, read=operands, written=words)]
    inputs = float(wide * products * (sizes[0] + sizes[1]))
    phases.append(Phase("products", {unit(spec): instructions * operations(spec)}, read=inputs, written=stored))
    phases.append(Phase("sums", vector={fmt: joining}, read=read, written=written))
    return _work(scheme, spec, shape, phases, operands + result + words + resident, instructions, products, (sA, sB))


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


def _staged_int8(scheme: StagedInt8, spec: MmaSpec, shape: Shape, split: Split) -> Work:
    """The split (unless split="given") and the product."""
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
    products = {name: n for name, n in products.items() if n}
    vector = {"fp32": sizes[2] * (stages + 2.0 * -(-K // CHUNK) + 4.0)}
    phases = [Phase("product", products, vector, 4 * elements, 4.0 * sizes[2])]
    if split != "given":
        phases.insert(0, Phase("split", {}, {"fp32": 8 * elements}, 4 * elements, 4 * elements))
    return _work(scheme, spec, shape, phases, 8 * elements + 4.0 * sizes[2], instructions, 3, (2, 2))


def _strassen(scheme: Staged, spec: MmaSpec, shape: Shape, split: Split, inner: Work) -> Work:
    """The split (unless split="given"), the products and their sums; `inner` is the work of one of them."""
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
        phases.append(Phase("split", vector={"fp32": vector}, read=4 * elements, written=words))
    for phase in others:
        products, vectors = ({unit: count * n for unit, n in x.items()} for x in (phase.products, phase.vector))
        phases.append(Phase(phase.name, products, vectors, count * phase.read, count * phase.written))
    sums = {"fp32": _additions(scheme.levels, _AFTER, small[2])}
    phases.append(Phase("sums", vector=sums, read=4 * produced, written=result))
    instructions = count * sum(inner.instructions.values())
    used = count * inner.words[0], count * inner.words[1]
    resident = 4 * (elements + produced) + words + result
    return _work(scheme, spec, shape, phases, resident, instructions, count * inner.products, used)


def _additions(levels: int, each: int, small: int) -> float:
    """Additions of single numbers: `each` of blocks per level, the smallest blocks having `small` elements."""
    return float(sum(7 ** (level - 1) * each * small * 4 ** (levels - level) for level in range(1, levels + 1)))


# --- sizes and units


def split_operations(rules: Sequence[Word], scales_rows: bool) -> float:
    """Vector operations per element for its words."""
    return 1.0 * len(rules) + sum(1 for word in rules if word.exponent) + 2 * (len(rules) - 1) + 2 * scales_rows


def across(spec: MmaSpec, M: int, N: int) -> float:
    """Instructions that cover M × N, in units of the widest: an instruction with fewer columns counts as a fraction."""
    m, n, step = tile(spec)
    ways = ((M, N), (N, M))
    return min(-(-a // m) * (-(-b // step) * step) / n for a, b in ways)


def tile(spec: MmaSpec) -> tuple[int, int, int]:
    """Rows, columns, and the unit of the columns; 16, 16, 16 for an instruction without a named shape."""
    name = re.fullmatch(r"m(\d+)n(\d+|N)k\d+", spec.shape)
    if name is None:
        return 16, 16, 16
    m = int(name[1])
    return (m, 256, 8 if m == 64 else 16) if name[2] == "N" else (m, int(name[2]), int(name[2]))


def operations(spec: MmaSpec) -> float:
    """Operations of one instruction."""
    m, n, _ = tile(spec)
    return 2.0 * m * n * spec.k


def areas(M: int, N: int, K: int) -> tuple[int, int, int]:
    """Elements of A, of B, of the result."""
    return M * K, K * N, M * N


def unit(spec: MmaSpec) -> str:
    """The format that names the unit: fp8, fp6 and fp4 run at the rate of fp8, converted formats like fp16."""
    name = str(spec.issued.a_format)
    return "fp8" if re.fullmatch(r"e\dm\d(fnuz)?", name) else name


def width(fmt: Any) -> int:
    """Bytes of a stored number."""
    return BYTES.get(str(fmt), 1)


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
