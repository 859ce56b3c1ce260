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
* *Ozaki schemes*: `fpemu.roofline.slicing`; *Strassen's algorithm*: `fpemu.roofline.strassen`; *int8 corrections*:
  `fpemu.roofline.eightbits`.
* *Bytes* are the minimum: every phase reads its inputs and writes its outputs once. A tf32 word is stored in four
  bytes. Powers of two of rows and columns are not counted.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from fpemu.arguments import LARGEST, choice, integers, sizes
from fpemu.errors import InputError
from fpemu.mma import MmaSpec, catalog
from fpemu.roofline import gpus
from fpemu.roofline.eightbits import staged_int8
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
from fpemu.roofline.slicing import error_free
from fpemu.roofline.strassen import blocks, strassen
from fpemu.schemes import Scheme, SplitScheme, build
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.staged import Staged
from fpemu.schemes.staged_int8 import StagedInt8
from fpemu.schemes.words import Join

Split = Literal["kernel", "fused", "given"]
"""Where the words are computed."""


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
        return staged_int8(chosen, spec, shape, split)
    if isinstance(chosen, Staged) and chosen.levels:
        inner = _words(chosen.blocks, spec, blocks(chosen, shape), "kernel", tile)
        return strassen(chosen, spec, shape, split, inner)
    if isinstance(chosen, SplitScheme):
        return _words(chosen, spec, shape, split, tile)
    if split == "fused":
        raise InputError(f"{chosen.name}: its products are separate calls, so that the split cannot be fused")
    if not isinstance(chosen, ErrorFree):
        raise InputError(f"{chosen.name}: only the work of sgemm, dgemm and schemes of words or slices is counted")
    return error_free(chosen, spec, shape, split)


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
