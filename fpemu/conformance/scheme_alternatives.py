"""What else a product by a scheme may have been: another choice of its options, its instruction, another scheme."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes
from fpemu.conformance.changes import Change, distinct
from fpemu.conformance.claim import Claim
from fpemu.errors import InputError
from fpemu.mma import KOrder

Array = NDArray[Any]


def other_schemes(claim: Claim, A: Array, D: Array) -> Iterator[Change]:
    """Other schemes for the same operands."""
    wanted = "fp64" if A.dtype == np.float64 else "fp32"
    if D.dtype != formats.get(wanted).dtype or (claim.scheme is None and A.dtype != D.dtype):
        return
    arch = claim.spec.architecture if claim.spec is not None else "hopper"
    hardware = arch if arch in mma.catalog.architectures() else "hopper"
    for name in schemes.names():
        scheme = schemes.get(name)
        if scheme.operand.name != wanted or (claim.scheme is not None and claim.scheme.name == name):
            continue
        try:
            spec = scheme.spec(hardware)
        except InputError:
            continue
        order = claim.order if isinstance(claim.order, KOrder) else None
        made = claim.change(scheme=scheme, spec=spec, order=order, inputs=None, join=None, stored=None)
        yield Change("scheme", f"the scheme is {name}", made)
    if wanted == "fp32":
        yield from _tf32x3(claim, hardware)


def _tf32x3(claim: Claim, hardware: str) -> Iterator[Change]:
    """What Triton calls tf32x3: three products of tf32 words a step, on an accumulator that starts anew every step."""
    for step in (32, 64, 16, 128):
        scheme = schemes.build(
            "ootomo-tf32",
            {
                "high_rounding": "RNA",
                "residual_rounding": "RZ",
                "products": ("rh", "hr", "hh"),
                "accumulators": "one",
                "correction_step": step,
                "promote": step,
            },
        )
        try:
            spec = scheme.spec(hardware)
        except InputError:
            return
        made = claim.change(scheme=scheme, spec=spec, order=None, inputs=None, join=None, stored=None)
        yield Change("scheme", f"three products of tf32 words every {step} of k (tf32x3)", made)


def options(claim: Claim) -> Iterator[Change]:
    """The choices of a scheme, one at a time, and its instruction on other hardware."""
    scheme = claim.scheme
    assert scheme is not None
    known = {option.name for option in scheme.info.options}
    values: dict[str, tuple[Any, ...]] = {
        "combine": ("term-wise", "element-wise"),
        "products": tuple(permutations(scheme.kept())) if hasattr(scheme, "kept") and len(scheme.kept()) <= 4 else (),
        "correction_step": (None, "instruction", 16, 32, 64, 128),
        "step": (None, "instruction", 16, 32, 64, 128),
        "stage": (16, 32, 128, 256),
        "accumulators": ("one", "band", "each"),
        "combine_in": ("fp32", "fp64"),
        "high_rounding": ("RNE", "RZ", "RNA", "bit-cut"),
        "residual_rounding": ("RNE", "RZ", "RNA", "bit-cut"),
        "rounding": ("RNE", "RZ", "RNA"),
        "residual_scale": (1.0, 2.0**8, 2.0**10, 2.0**11, 2.0**12, 2.0**13),
        "sb": (0, 8, 10, 11, 13),
        "refine": ("both", "A"),
        "accumulator": ("fp32", "fp16"),
        "words": (1, 2, 3),
        "format": ("fp16", "bf16", "tf32"),
        "mode": ("DP", "SP", "CR"),
        "instruction": ("mma", "wgmma"),
        "scaling": ("accurate", "fast", "invariant"),
        "slices": tuple(range(2, 13)),
        "moduli": tuple(range(8, 21)),
    }
    for name, tried in values.items():
        if name in known and name != scheme.promote_option:
            for value in tried:
                kind = "order of terms" if name in ("products", "correction_step", "step", "combine") else "option"
                yield from option(claim, name, value, kind)
    if scheme.operand.name == "fp32" and hasattr(scheme, "kept") and scheme.kept() and len(scheme.kept()) > 1:
        for left_out in scheme.kept():
            rest = tuple(p for p in scheme.kept() if p != left_out)
            yield from option(claim, "products", rest, "order of terms")
    rows = []
    for arch in mma.catalog.architectures():
        try:
            rows.append(scheme.spec(arch))
        except InputError:
            continue
    if claim.spec is not None:
        for text, row in distinct(claim.spec, [row for row in rows if row is not None]):
            yield Change("hardware", text, claim.change(spec=row))


def option(claim: Claim, name: str, value: Any, kind: str) -> Iterator[Change]:
    """One option of the claim's scheme with another value, if the scheme takes it."""
    scheme = claim.scheme
    assert scheme is not None
    if getattr(scheme, name) == value:
        return
    try:
        made = schemes.build(scheme, {name: value})
        made.check_order(claim.order, {name: value})
        spec = claim.spec
        if name in ("instruction", "format", "accumulator") and spec is not None:
            spec = made.spec(spec.architecture)
    except InputError:
        return
    shown = ",".join(value) if isinstance(value, tuple) else value
    yield Change(kind, f"{scheme.name} with {name} = {shown}", claim.change(scheme=made, spec=spec))
