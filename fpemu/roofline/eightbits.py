"""The work of `staged-int8`: products in fp16 and in int8 side by side, in one kernel.

Rules beside those of `fpemu.roofline.counting`: a stage takes one product in fp16 and two in int8, an exact one three
in fp16. An element takes two operations for its scaling, six for h, r and the two integers; words are stored in four
bytes (h; the integers, or r). An entry takes an addition a stage,
two for the corrections and four for the scales.
"""

from __future__ import annotations

from fpemu.mma import MmaSpec
from fpemu.roofline.phases import Phase, Work, across, along, areas, operations, unit
from fpemu.schemes.staged_int8 import CHUNK, StagedInt8


def staged_int8(scheme: StagedInt8, spec: MmaSpec, shape: tuple[int, int, int], split: str) -> Work:
    """Splitting (unless split="given"), and the product."""
    M, N, K = shape
    assert scheme.stage is not None
    stages = -(-K // scheme.stage)
    slow = 0 if scheme.exact is None else -(-stages // scheme.exact)
    sizes = areas(*shape)
    elements = float(sizes[0] + sizes[1])
    instructions = across(spec, M, N) * along(K, [scheme.stage], spec.k) * (1 + 2 * slow / stages)
    low = 2 * across(spec, M, N) * along(K, [scheme.stage], spec.k) * (1 - slow / stages) * operations(spec)
    matrix = {unit(spec): instructions * operations(spec), "int8": low}
    vector = sizes[2] * (stages + 2.0 * -(-K // CHUNK) + 4.0)
    phases = (
        []
        if split == "given"
        else [Phase(name="split", vector={"fp32": 8 * elements}, read=4 * elements, written=4 * elements)]
    )
    phases.append(
        Phase(
            name="product",
            products={name: n for name, n in matrix.items() if n},
            vector={"fp32": vector},
            read=4 * elements,
            written=4.0 * sizes[2],
        )
    )
    return Work(
        scheme=scheme.name,
        operand="fp32",
        architecture=spec.architecture,
        shape=shape,
        phases=tuple(phases),
        instructions={spec.name: instructions},
        products=3,
        words=(2, 2),
        resident=8 * elements + 4.0 * sizes[2],
    )
