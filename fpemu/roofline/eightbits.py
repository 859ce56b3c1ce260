"""The work of `staged-int8`: products in fp16 and in int8 side by side, in one kernel.

Rules beside those of `fpemu.roofline.counting`: a stage takes one product in fp16 and two in int8, an exact stage three
in fp16. An element takes two operations for its scaling and six for h, r and the two integers; its words are stored in
four bytes (h, and the integers or r). An entry takes one addition per stage, two per chunk for the corrections and four
for the scales.
"""

from __future__ import annotations

from fpemu.mma import MmaSpec
from fpemu.roofline.phases import Phase, Shape, Work, across, areas, counted, operations, unit
from fpemu.schemes.staged_int8 import CHUNK, StagedInt8


def staged_int8(scheme: StagedInt8, spec: MmaSpec, shape: Shape, split: str) -> Work:
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
