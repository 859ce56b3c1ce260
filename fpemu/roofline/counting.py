"""What a scheme makes a GPU do for one product of matrices: instructions, operations, bytes, counted and not measured.

The work falls into phases, kernels that run one after another. The rules, for A (M, K), B (K, N) and an instruction of
m × n × k:

* *Products.* 2·m·n·k operations an instruction; M, N and K padded to whole instructions, K again in every piece between
  two promotions and in every turn of an interleaved chain. A free n ("m64nNk16") is a multiple of 8 (m128: 16), up to
  256. A and B may change roles: the orientation that pads less counts.
* *Vector operations*, one an instruction on the ordinary cores, a fused multiply-add being one. A word takes one for
  its rounding and one for its scaling, if it has a scale; every word after it two, for the way back and the
  subtraction. Rows that are scaled: two an element, two an entry of the result. A promotion takes one an entry; so
  does a join of accumulators, and one more if it scales. Products that are calls of their own add to C: two an entry.
* *Ozaki schemes*: see `fpemu.roofline.slicing`; *Strassen's algorithm*: `fpemu.roofline.strassen`.
* *Bytes* are the least there can be: every phase reads its inputs and writes its outputs once. A tf32 word is stored in
  four bytes. Powers of two of rows and columns are not counted.
"""

from __future__ import annotations

from typing import Any

from fpemu.arguments import checked, is_size, sizes
from fpemu.errors import InputError, shown, unknown_name
from fpemu.mma import MmaSpec, catalog
from fpemu.roofline import gpus
from fpemu.roofline.eightbits import staged_int8
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.phases import BYTES, Phase, Work, across, along, areas, operations, unit, width
from fpemu.roofline.slicing import error_free
from fpemu.roofline.strassen import blocks, strassen
from fpemu.schemes import Scheme, SplitScheme, build
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.staged_int8 import StagedInt8
from fpemu.schemes.strassen import Strassen
from fpemu.schemes.words import Plan, Word, in_k

SPLITS = {
    "kernel": "a kernel of its own writes the words, the product reads them",
    "fused": "the product splits its operands, once for every tile that needs them",
    "given": "the words are there already: not counted",
}
"""Who makes the words."""


@checked
def work(
    scheme: str | Scheme,
    hardware: str | MmaSpec | Gpu | None,
    M: int,
    N: int,
    K: int,
    *,
    split: str = "kernel",
    tile: tuple[int, int] = (128, 128),
    **options: Any,
) -> Work:
    """Count the work of A·B, A (M, K) and B (K, N).

    Parameters
    ----------
    scheme : str or Scheme
        One of `fpemu.schemes.names()`, or a scheme itself, such as `Strassen()`.
    hardware : str or MmaSpec or Gpu or None
        An architecture, a GPU's name or description, or an instruction. sgemm and dgemm do without.
    M, N, K : int
        Sizes of the product.
    split : {"kernel", "fused", "given"}
        Where the words are computed, a key of `SPLITS`: in a kernel before the product, in the product's kernel, or not
        counted. Schemes whose products are separate calls cannot fuse it.
    tile : (int, int)
        Rows and columns of the result that a block works on, for split="fused": A is split once for each column of
        tiles, B once for each row.
    **options
        The scheme's choices. What the Ozaki family leaves open (slices=None) is counted on a few rows of nominal data,
        (uniform [0, 1) - 0.5) · exp(0.1 · normal), the inputs of DGEMM-TC with phi = 0.1.

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
    >>> found = work("ootomo", "H200", 4096, 4096, 4096)
    >>> found.operations / found.nominal, found.instructions
    (3.0, {'hopper wgmma m64nNk16 fp16->fp32': 786432.0})
    """
    chosen = build(scheme, options)
    sizes(M=M, N=N, K=K)
    shape = (int(M), int(N), int(K))
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if not isinstance(tile, tuple | list) or len(tile) != 2 or not all(map(is_size, tile)):
        raise InputError(f"tile = {shown(tile)} must be two positive integers, rows and columns")
    tile = (int(tile[0]), int(tile[1]))
    if not chosen.needs_hardware:
        return _native(chosen, hardware, shape)
    spec = chosen.spec(_matrix_unit(hardware))
    assert spec is not None
    if isinstance(chosen, StagedInt8):
        return staged_int8(chosen, spec, shape, split)
    if isinstance(chosen, Strassen):
        rules = chosen.staged.rules()
        each = _split_operations(rules, len(rules) - 1, chosen.staged.scales_rows)
        inner = _words(chosen.staged, spec, blocks(chosen, shape), "given", tile)
        return strassen(chosen, shape, split, each, inner)
    if isinstance(chosen, SplitScheme):
        return _words(chosen, spec, shape, split, tile)
    if split == "fused":
        raise InputError(f"{chosen.name}: its products are calls of their own, so that the split cannot be fused")
    if not isinstance(chosen, ErrorFree):
        raise InputError(
            f"{chosen.name}: its work has not been counted; sgemm, dgemm, schemes of words and of slices are"
        )
    return error_free(chosen, spec, shape, split)


def _native(scheme: Scheme, hardware: str | MmaSpec | Gpu | None, shape: tuple[int, int, int]) -> Work:
    fmt = scheme.operand.name
    moved = [BYTES[fmt] * float(n) for n in areas(*shape)]
    product = Phase(
        name="product", products={fmt: 2.0 * shape[0] * shape[1] * shape[2]}, read=moved[0] + moved[1], written=moved[2]
    )
    _known(hardware)
    return Work(
        scheme=scheme.name,
        operand=fmt,
        architecture=None,
        shape=shape,
        phases=(product,),
        instructions={},
        products=1,
        words=(1, 1),
        resident=sum(moved),
    )


def _words(scheme: SplitScheme, spec: MmaSpec, shape: tuple[int, int, int], split: str, tile: tuple[int, int]) -> Work:
    M, N, K = shape
    rules, plan = scheme.rules(), scheme.plan()
    sizes = areas(*shape)
    used = [sorted({pair[side] for pair in plan.products}) for side in (0, 1)]
    calls = plan.join == "as-run"
    if split == "fused" and calls:
        raise InputError(f"{scheme.name}: its products are calls of their own, so that the split cannot be fused")
    operands = 4.0 * (sizes[0] + sizes[1])
    stored = sum(width(spec.a_format) * len(words) * area for words, area in zip(used, sizes, strict=False))
    each = [_split_operations(rules, max(words), scheme.scales_rows) for words in used]
    phases = []
    if split == "kernel":
        once = sum(n * area for n, area in zip(each, sizes, strict=False))
        phases.append(Phase(name="split", vector={"fp32": once}, read=operands, written=stored))
    again = (-(-N // tile[1]), -(-M // tile[0])) if split == "fused" else (0, 0)
    vector = sum(n * area * r for n, area, r in zip(each, sizes, again, strict=False))
    instructions = sum(n * len(products) for products, n in _chains(plan, spec, K)) * across(spec, M, N)
    kind = unit(spec)
    if calls:
        share = instructions / len(plan.products)
        for number, (i, j) in enumerate(plan.products):
            read = width(spec.a_format) * (sizes[0] + sizes[1]) + (4.0 * sizes[2] if number else 0)
            phases.append(
                Phase(
                    name=f"product {rules[i].name}{rules[j].name}",
                    written=4.0 * sizes[2],
                    read=read,
                    products={kind: share * operations(spec)},
                    vector={"fp32": 2.0 * sizes[2]} if number else {},
                )
            )
    else:
        promotions, joins = (n * sizes[2] for n in _outside(plan, spec, K))
        sums = {"fp32": vector + promotions + (2.0 * sizes[2] if scheme.scales_rows else 0)}
        sums[plan.combine_in] = sums.get(plan.combine_in, 0.0) + joins
        phases.append(
            Phase(
                name="product",
                products={kind: instructions * operations(spec)},
                vector={name: n for name, n in sums.items() if n},
                written=4.0 * sizes[2],
                read=operands if split == "fused" else stored,
            )
        )
    resident = operands + 4.0 * sizes[2] + (0 if split == "fused" else stored)
    return Work(
        scheme=scheme.name,
        operand="fp32",
        architecture=spec.architecture,
        shape=shape,
        phases=tuple(phases),
        instructions={spec.name: float(instructions)},
        products=len(plan.products),
        words=(len(used[0]), len(used[1])),
        resident=resident,
    )


def _split_operations(rules: tuple[Word, ...], last: int, scaled: bool) -> float:
    """Of one element, for the words up to `last`."""
    made = rules[: last + 1]
    return 1.0 * len(made) + sum(1 for word in made if word.exponent) + 2 * last + 2 * scaled


def _chains(plan: Plan, spec: MmaSpec, K: int) -> list[tuple[list[tuple[int, int]], int]]:
    """For every accumulator its products and the instructions along K of each."""
    found = []
    for band, products in plan.groups():
        segment = plan.promoted(band, spec)
        step = in_k(plan.step, spec) if len(products) > 1 else None
        if plan.accumulators == "none":
            segment, step = in_k(plan.step or "instruction", spec), None
        found.append((products, along(K, [cut for cut in (segment, step) if cut], spec.k)))
    return found


def _outside(plan: Plan, spec: MmaSpec, K: int) -> tuple[float, float]:
    """Operations an entry of the result outside the instruction: promotions, and joins of accumulators."""
    groups, scaled = plan.groups(), bool(plan.exponent)
    if plan.accumulators == "none":
        step = in_k(plan.step or "instruction", spec) or K
        return float(-(-K // step)) * sum(1 + (scaled and band > 0) for band, _ in groups), 0.0
    intervals = (plan.promoted(band, spec) for band, _ in groups)
    return float(sum(-(-K // n) for n in intervals if n)), (len(groups) - 1.0) * (1 + scaled)


def _matrix_unit(hardware: str | MmaSpec | Gpu | None) -> str | MmaSpec | None:
    """What `Scheme.spec` takes, from a GPU of the table too."""
    found = _known(hardware)
    if not isinstance(found, Gpu):
        return found
    if found.architecture is None:
        raise InputError(f"{found.name} has no matrix instruction that is modelled: only sgemm and dgemm run on it")
    return found.architecture


def _known(hardware: str | MmaSpec | Gpu | None) -> str | MmaSpec | Gpu | None:
    """An architecture, a GPU, an instruction; names are looked up."""
    if not isinstance(hardware, str):
        return hardware
    try:
        return catalog.architecture(hardware)
    except InputError:
        return gpus.get(hardware)
