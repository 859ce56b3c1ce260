"""Deviations from a product by a scheme: other options, the instruction of other hardware, other schemes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes
from fpemu.conformance.deviation import Deviation, deviation, other_instructions
from fpemu.conformance.specification import Specification
from fpemu.errors import InputError
from fpemu.mma import KOrder
from fpemu.schemes import Scheme

Array = NDArray[Any]
_STEPS = (None, "instruction", 16, 32, 64, 128)
_ROUNDINGS = ("RNE", "RZ", "RNA", "bit-cut")
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "combine": ("term-wise", "element-wise"),
    "products": (),  # permutations
    "step": _STEPS,
    "stage": (16, 32, 128, 256),
    "accumulators": ("one", "band", "each"),
    "combine_in": ("fp32", "fp64"),
    "high_rounding": _ROUNDINGS,
    "residual_rounding": _ROUNDINGS,
    "rounding": _ROUNDINGS[:3],
    "residual_scale": tuple(2.0**i for i in (0, 8, 10, 11, 12, 13)),
    "sb": (0, 8, 10, 11, 13),
    "refine": ("both", "A"),
    "accumulator": ("fp32", "fp16"),
    "words": (1, 2, 3),
    "fmt": ("fp16", "bf16", "tf32"),
    "mode": ("DP", "SP", "CR"),
    "instruction": ("mma", "wgmma"),
    "scaling": ("accurate", "fast", "invariant"),
    "slices": tuple(range(2, 13)),
    "moduli": tuple(range(8, 21)),
}
_TF32X3 = {"high_rounding": "RNA", "residual_rounding": "RZ", "products": ("rh", "hr", "hh"), "accumulators": "one"}


def other_schemes(s: Specification, A: Array, D: Array) -> Iterator[Deviation]:
    """Other schemes for the same operands."""
    wanted = "fp64" if A.dtype == np.float64 else "fp32"
    if D.dtype != formats.get(wanted).dtype or (s.scheme is None and A.dtype != D.dtype):
        return
    arch = s.spec.architecture if s.spec is not None else "hopper"
    hardware = arch if arch in mma.catalog.architectures() else "hopper"
    order = s.order if isinstance(s.order, KOrder) else None
    for name in schemes.names():
        scheme = schemes.get(name)
        if scheme.operand.name == wanted and (s.scheme is None or s.scheme.name != name):
            yield from _scheme(scheme, hardware, f"the scheme is {name}", order)
    for step in (32, 64, 16, 128) if wanted == "fp32" else ():  # tf32x3 of Triton: the accumulator restarts every step
        scheme = schemes.build("ootomo-tf32", {**_TF32X3, "step": step, "promote": step})
        yield from _scheme(scheme, hardware, f"three products of tf32 words every {step} of k (tf32x3)", None)


def _scheme(scheme: Scheme, hardware: str, text: str, order: KOrder | None) -> Iterator[Deviation]:
    try:
        spec = scheme.spec(hardware)
    except InputError:
        return
    yield deviation("scheme", text, scheme=scheme, spec=spec, order=order, inputs=None, join=None, stored=None)


def options(s: Specification) -> Iterator[Deviation]:
    """Single options of the scheme with other values, and its instruction on other hardware."""
    scheme = s.scheme
    assert scheme is not None
    known = {option.name for option in scheme.info.options} - {scheme.promote_option}
    kept = scheme.kept() if hasattr(scheme, "kept") else ()
    for name, values in _OPTIONS.items():
        if name == "products" and 0 < len(kept) <= 4:
            values = tuple(permutations(kept))
        for value in values if name in known else ():
            kind = "order of terms" if name in ("products", "step", "combine") else "option"
            yield from option(s, name, value, kind)
    if scheme.operand.name == "fp32" and kept and len(kept) > 1:
        for left_out in kept:
            yield from option(s, "products", tuple(p for p in kept if p != left_out), "order of terms")
    rows = []
    for arch in mma.catalog.architectures():
        try:
            rows.append(scheme.spec(arch))
        except InputError:
            continue
    if s.spec is not None:
        yield from other_instructions(s.spec, [row for row in rows if row is not None])


def option(s: Specification, name: str, value: Any, kind: str) -> Iterator[Deviation]:
    """One option of the scheme with another value, if the scheme admits it."""
    scheme, spec = s.scheme, s.spec
    assert scheme is not None
    if getattr(scheme, name) == value:
        return
    try:
        changed = schemes.build(scheme, {name: value})
        changed.check_order(s.order, {name: value})
        if name in ("instruction", "fmt", "accumulator") and spec is not None:
            spec = changed.spec(spec.architecture)
    except InputError:
        return
    shown = ",".join(value) if isinstance(value, tuple) else value
    yield deviation(kind, f"{scheme.name} with {name} = {shown}", scheme=changed, spec=spec)
