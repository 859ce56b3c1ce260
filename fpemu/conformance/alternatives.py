"""What else a product may have been: the ways in which a claim can be wrong in one respect, the likely ones first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, simt
from fpemu.conformance import epilogues, orders
from fpemu.conformance.changes import Change, distinct
from fpemu.conformance.claim import PLACES, Claim, say_order
from fpemu.conformance.scheme_alternatives import option, options, other_schemes
from fpemu.errors import InputError
from fpemu.mma import KOrder, MmaSpec
from fpemu.probing.watching import codes

Array = NDArray[Any]
_MODES = {"RNE": "to nearest even", "RZ": "toward zero", "RNA": "to nearest, ties away"}


def alternatives(claim: Claim, A: Array, B: Array, C: Array | None, D: Array, factor: float = 1.0) -> Iterator[Change]:
    """Every change of a claim in one respect, for these operands and this result, about `factor` times the claim's."""
    K = A.shape[1]
    yield from _scaled(claim, factor)
    yield from _operands(claim, A, B)
    yield from _inputs(claim, A, B)
    yield from _results(claim, D)
    yield from _epilogue(claim, C)
    if claim.scheme is not None:
        yield from options(claim)
    yield from _promotion(claim, K)
    yield from _orders(claim, K)
    if claim.scheme is None and claim.spec is not None:
        yield from _accumulator(claim, K)
        yield from _hardware(claim, claim.spec, A)
    yield from other_schemes(claim, A, D)
    if claim.scheme is None and claim.spec is not None:
        yield from _interleaved(claim, K, claim.spec)


def _operands(claim: Claim, A: Array, B: Array) -> Iterator[Change]:
    (M, K), (_, N) = A.shape, B.shape
    fits = {"BA": M == N == K, "A'B": M == K, "AB'": K == N, "(AB)'": M == N, "A'B'": M == N == K}
    for place, possible in fits.items():
        if possible and place != claim.place:
            yield Change("operands", f"the result is {PLACES[place]}", claim.change(place=place))
    for grain in (1, 8, 16, 32, 64, 128):
        length = (K - 1) // grain * grain
        if length and claim.length is None:
            text = f"the last {K - length} of k are left out" if K - length > 1 else "the last k is left out"
            yield Change("operands", text, claim.change(length=length))


def _scaled(claim: Claim, factor: float) -> Iterator[Change]:
    """Another alpha: a power of two, or one of few digits."""
    if factor == 1 or claim.beta != 0 or (claim.spec is not None and claim.spec.is_integer and claim.scheme is None):
        return
    alpha = claim.alpha * factor
    power = claim.alpha * float(np.copysign(2.0 ** np.round(np.log2(abs(factor))), factor))
    for value in dict.fromkeys((power, *(float(f"{alpha:.{digits}g}") for digits in (1, 2, 3, 4, 6)))):
        if value != claim.alpha and abs(value / alpha - 1) < 0.01:
            yield Change("scale", f"alpha is {value:g}, not {claim.alpha:g}", claim.change(alpha=value))


def _inputs(claim: Claim, A: Array, B: Array) -> Iterator[Change]:
    """Roundings of A and B before the product, and flushed subnormals."""
    fmt = claim.operand
    if isinstance(fmt, str):
        return
    own = fmt.name
    small = any(((x != 0) & (np.abs(x) < fmt.min_normal)).any() for x in (A, B))
    if claim.flush != "inputs" and small:
        yield Change("flush", f"subnormal {own} inputs are flushed to zero", claim.change(flush="inputs"))
    for name in dict.fromkeys((own, "tf32", "fp16", "bf16", "fp32", "e4m3", "e5m2")):
        other = formats.get(name)
        wider = other.precision > fmt.precision or (name != own and other.emax > fmt.emax)
        if wider or (other.contains(A).all() and other.contains(B).all()):
            continue
        if max(np.abs(x[np.isfinite(x)]).max(initial=0) for x in (A, B)) > other.max:
            continue
        for mode, words in _MODES.items():
            if (name, mode) != claim.inputs:
                text = f"A and B are rounded to {name} {words} first"
                yield Change("inputs", text, claim.change(inputs=(name, mode)))


def _results(claim: Claim, D: Array) -> Iterator[Change]:
    """Conversions of the result."""
    nans = np.unique(codes(D)[np.isnan(D)])
    if len(nans) == 1 and claim.out in formats.names() and D.dtype == formats.get(claim.out).dtype:
        text = f"NaN has the code 0x{int(nans[0]):0{2 * D.dtype.itemsize}X}"
        yield Change("result", text, claim.change(nan=int(nans[0])))
    if claim.out in formats.names():
        own = formats.get(claim.out)
        telling = D.dtype.itemsize >= 4 and (D != 0)[np.isfinite(D)].any()
        for name in ("fp16", "bf16", "tf32", "e4m3"):
            fmt = formats.get(name)
            if telling and fmt.precision < own.precision and fmt.contains(D).all():
                for mode, words in _MODES.items():
                    text = f"the result is rounded to {name} {words}"
                    yield Change("result", text, claim.change(out=name, rounding=mode))
        if claim.spec is not None and claim.scheme is None and str(claim.spec.d_format) != claim.out:
            if D.dtype.itemsize > formats.get(claim.out).dtype.itemsize or claim.out in ("bf16", "tf32"):
                text = f"the result is not rounded to {claim.out}"
                yield Change("result", text, claim.change(out=str(claim.spec.d_format)))
            for mode, words in _MODES.items():
                if mode != claim.rounding:
                    text = f"the result is rounded to {claim.out} {words}"
                    yield Change("result", text, claim.change(rounding=mode))
        if claim.flush != "result" and not (np.abs(D[np.isfinite(D)]) >= own.min_normal).all():
            yield Change("flush", "subnormal results are flushed to zero", claim.change(flush="result"))
    if not claim.relu and (D >= 0).all():
        yield Change("epilogue", "negative results are replaced by zero (ReLU)", claim.change(relu=True))


def _epilogue(claim: Claim, C: Array | None) -> Iterator[Change]:
    if claim.alpha == 1 and C is None:
        return
    for kind, text in epilogues.KINDS.items():
        needs_c = kind in ("fma", "fma-c", "first", "alpha-last", "no-beta", "beta-1")
        needs_alpha = kind in ("alpha-last", "alpha-on-A", "no-alpha")
        idle = (needs_c and C is None) or (needs_alpha and claim.alpha == 1) or (kind == "beta-1" and claim.beta == 1)
        if kind != claim.epilogue and not idle:
            yield Change("epilogue", f"the epilogue: {text}", claim.change(epilogue=kind))


def _promotion(claim: Claim, K: int) -> Iterator[Change]:
    if claim.scheme is not None:
        name = claim.scheme.promote_option
        if not hasattr(claim.scheme, name) or (isinstance(claim.order, KOrder) and claim.order.promote is not None):
            return
        same = {"instruction", claim.spec.k if claim.spec is not None else None}
        for value in (None, "instruction", *orders.PROMOTIONS, 1, 2, 4, 8):
            if name != "block" and {value, getattr(claim.scheme, name)} == same:
                continue
            if isinstance(value, int) and (value >= K or (value < 16) != (name == "block")):
                continue
            yield from option(claim, name, value, "promotion")
        return
    if claim.spec is None or not (claim.order is None or isinstance(claim.order, KOrder)):
        return
    for order in orders.promotions(claim.order, claim.spec, K):
        text = "no promotion" if order.promote is None else f"promotion every {order.promote} of k"
        text += " (one instruction)" * (order.promote == claim.spec.k != 1)
        if order.promote is not None and order.split is None and order.tile is None:
            text += f", or split in slices of {order.promote}, which is the same"
        yield Change("promotion", text, claim.change(order=order))


def _orders(claim: Claim, K: int) -> Iterator[Change]:
    promote = claim.order.promote if isinstance(claim.order, KOrder) else None
    now = KOrder() if claim.order is None else claim.order
    narrow = claim.scheme is None and claim.spec is not None and claim.out != str(claim.spec.d_format)
    for order in orders.orders(K, promote):
        text = say_order(replace(order, promote=None))
        if order != now:
            yield Change("order", text, claim.change(order=order))
        if narrow and order.split is not None and order.join == "ascending" and not (claim.join or claim.stored):
            kept = f"{text}, the slices stored in {claim.out}"
            yield Change("order", f"{kept} and added in fp32", claim.change(order=order, stored=claim.out))
            yield Change("order", f"{kept} and added in {claim.out}", claim.change(order=order, join=claim.out))


def _interleaved(claim: Claim, K: int, spec: MmaSpec) -> Iterator[Change]:
    for text, tree in orders.interleaved(K, spec):
        yield Change("order", text, claim.change(order=tree))


def _accumulator(claim: Claim, K: int) -> Iterator[Change]:
    """The other accumulator format of the instruction; sums of slices in the format of the result."""
    spec = claim.spec
    assert spec is not None
    other = "fp16" if str(spec.d_format) == "fp32" else "fp32"
    try:
        row = mma.spec(spec.architecture, _pair(spec), other, spec.instruction, spec.k)
    except InputError:
        row = None
    if row is not None:
        yield Change("accumulator", f"the accumulator is {other}", claim.change(spec=row))
    if claim.stored is None and claim.out != str(spec.d_format) and claim.order is not None:
        text = f"the slices are stored in {claim.out} before they are added"
        yield Change("join", text, claim.change(stored=claim.out))


def _hardware(claim: Claim, spec: MmaSpec, A: Array) -> Iterator[Change]:
    """Other instructions with the same formats, ordinary cores, and other input formats on the same hardware."""
    rows = [r for r in mma.catalog.rows() if r.a_format == spec.a_format and r.d_format == spec.d_format]
    for text, row in distinct(spec, rows):
        yield Change("hardware", text, claim.change(spec=row))
    if spec.is_integer:
        return
    for name in ("fp32", "fp64"):
        if spec != simt.SPECS[name] and formats.get(name).precision >= formats.get(claim.out).precision:
            text = f"ordinary cores: FMAs in {name}"
            yield Change("hardware", text, claim.change(spec=simt.SPECS[name]))
            if claim.inputs is not None:
                text += ", inputs not rounded"
                yield Change("hardware", text, claim.change(spec=simt.SPECS[name], inputs=None))
    if A.dtype == np.float32:
        for name in ("tf32", "fp16", "bf16"):
            if name != str(spec.a_format):
                for arch in dict.fromkeys((spec.architecture, "hopper", "ampere")):
                    yield from _formats(claim, arch, name)


def _formats(claim: Claim, arch: str, name: str) -> Iterator[Change]:
    if arch not in mma.catalog.architectures():
        return
    try:
        row = mma.spec(arch, name, "fp32")
    except InputError:
        return
    text = f"the instruction is {row.name}, with A and B rounded to {name} to nearest even"
    yield Change("hardware", text, claim.change(spec=row, inputs=(name, "RNE")))


def units(claim: Claim) -> Iterator[Change]:
    """Units like the claim's with other constants, which no catalog has: for when nothing else explains a result."""
    spec = claim.spec
    if spec is None or spec.arithmetic != "truncated" or claim.scheme is not None:
        return
    for block in (4, 8, 16, 32):
        for F in dict.fromkeys((spec.F, 23, 24, 25, 26, 13)):
            for final in ("RZ", "RNE"):
                bits = 13 if F == 13 else None
                if (block, F, final) == (spec.block, spec.F, spec.final) or (bits and str(spec.d_format) != "fp32"):
                    continue
                made = spec.replace(
                    block=block, k=max(block, spec.k // block * block), F=F, final=final, fraction_bits=bits, E0=None
                )
                text = f"a unit with blocks of {block}, F = {F}, {final}"
                yield Change("hardware", text, claim.change(spec=made))


def _pair(spec: MmaSpec) -> Any:
    a, b = str(spec.a_format), str(spec.b_format)
    return a if a == b else (a, b)
