"""Products whose scales are no operands of `verify`: of tensors, rows, blocks of K, or block-scaled instructions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu.conformance.causes import REFUSED, Cause
from fpemu.conformance.compare import _compare
from fpemu.conformance.deviations import Deviations, changed, deviation, endings, other_instructions
from fpemu.conformance.orders import PROMOTIONS, lengths_of
from fpemu.conformance.specification import Specification, combined, describe_order, finished
from fpemu.conformance.verdict import Verdict
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.outer_scales import Multiply, _multiplication, _scales, scaled_gemm
from fpemu.probing.callables import bits

Array = NDArray[Any]
_SAMPLE = 6  # rows and columns on which all alternatives are tried
_LISTED = 3  # alternatives with equal bits in the text of a cause
_ORDERS = {"scales-first": "(a b) p", "a-first": "(p a) b", "b-first": "(p b) a"}


@dataclass(frozen=True)
class Scales:
    """Scales of A and B, a row for each row of A and for each column of B, and the rule that applies them.

    `block` is the length in K of the blocks of fp32 scales; None: one scale for the whole sum, or the block-scaled
    instruction of the specification.
    """

    a: Array
    b: Array
    block: int | None = None
    multiply: Multiply | None = None
    fused: bool = True

    @staticmethod
    def of(
        scale_a: Any, scale_b: Any, shape: tuple[int, int, int], block: int | None, rule: Any, fused: bool
    ) -> Scales:
        """fp32 scales as `scaled_gemm` takes them."""
        M, N, pieces = *shape[:2], 1 if block is None else -(-shape[2] // block)
        rule = rule or _multiplication(scale_a, scale_b, M, N, block)
        a = _scales(scale_a, "scale_a", M, pieces, block)
        b = _scales(np.transpose(scale_b), "scale_b", N, pieces, block)
        wide = [np.broadcast_to(x, (n, pieces)) for x, n in ((a, M), (b, N))]
        return Scales(wide[0], wide[1], block, rule, fused)

    def __str__(self) -> str:
        rule = _ORDERS.get(self.multiply or "", "of the instruction")
        return f"the sum p of {'all' if self.block is None else f'every {self.block} of'} k scaled as {rule}"

    def at(self, rows: Any, columns: Any) -> Scales:
        """The scales of some rows and columns of D."""
        return replace(self, a=self.a[rows], b=self.b[columns])

    def product(self, s: Specification, A: Array, B: Array) -> Array:
        """The scaled product before the epilogue."""
        spec, order = cast(MmaSpec, s.spec), cast(Any, s.order)
        if spec.scale is not None:
            return np.asarray(mma.gemm(A, B, None, spec, order, scale_a=self.a, scale_b=self.b.T))
        rules: Any = {"block": self.block, "multiply": self.multiply, "fused": self.fused}
        return scaled_gemm(A, B, self.a, self.b.T, spec, order, **rules)


def verify_scaled(
    D: Array, A: Array, B: Array, C: Array | None, scales: Scales, s: Specification, *, causes: bool = True,
    seconds: float = np.inf,
) -> Verdict:  # fmt: skip
    """`verify` for a resolved specification of a plain product with scales."""
    (M, K), N, tried, until = A.shape, B.shape[1], 0, time.monotonic() + seconds

    def value(s: Specification, change: _Change, rows: Any, columns: Any) -> Callable[[Specification], Array]:
        x, y, z = change(A[rows], B[:, columns], scales.at(rows, columns))
        T, c = z.product(s, x, y), None if C is None else C[rows][:, columns]
        return lambda last: finished(last, combined(last, T, c)).astype(D.dtype, copy=False)

    everything = slice(None)
    with np.errstate(all="ignore"):
        expected = value(s, _same, everything, everything)(s)
        difference = _compare(D, expected, s.result)
        verdict = Verdict(difference is None, s, (M, N, K), difference, beyond=None)
        if difference is None or not causes:
            return verdict
        norm = np.linalg.norm(expected.astype(np.float64))
        relative = float(np.linalg.norm(D.astype(np.float64) - expected) / norm) if norm else np.inf
        wrong = bits(D) != bits(expected)
        few = [np.sort(np.argsort(-wrong.sum(axis=axis), kind="stable")[:_SAMPLE]) for axis in (1, 0)]
        target, found = bits(D[few[0]][:, few[1]]), []
        for text, change, before in _alternatives(s, scales, K):
            if time.monotonic() > until:
                break
            one = changed(s, before)
            try:
                sample = value(one, change, *few)
            except REFUSED:
                continue
            for ending in endings(one, C, D):
                last, tried = changed(one, ending), tried + 1
                texts = [text] * bool(text) + [d.text for d in (*before, *ending)]
                if np.array_equal(bits(sample(last)), target) and texts:
                    whole = value(one, change, everything, everything)(last)
                    left = int((bits(whole) != bits(D)).sum())
                    found.append((left, len(texts), Cause(("scales",), "; ".join(texts), left, last)))
    if found:
        found.sort(key=lambda f: f[:2])
        left, _, first = found[0]
        alike = dict.fromkeys(cause.text for entries, _, cause in found if entries == left)
        verdict = replace(verdict, causes=(replace(first, text=", or ".join(list(alike)[:_LISTED])),))
    return replace(verdict, tried=tried, relative=relative)


_Change = Callable[[Array, Array, Scales], tuple[Array, Array, Scales]]


def _same(A: Array, B: Array, z: Scales) -> tuple[Array, Array, Scales]:
    return A, B, z


def _alternatives(s: Specification, z: Scales, K: int) -> Iterator[tuple[str, _Change, Deviations]]:
    """Changes of the operands or scales, with changes of the specification; the simplest first."""
    spec: Any = s.spec
    ones = np.ones_like
    yield "", _same, ()
    rows = [r for r in mma.catalog.rows() if (r.a_format, r.b_format, r.d_format) == _formats(spec)]
    length = z.block or K
    orders = dict.fromkeys(
        [KOrder(), *(KOrder(promote=n) for n in PROMOTIONS if n < length), *map(KOrder, lengths_of(length))]
    )
    over_k = [deviation("order", describe_order(o), order=o) for o in orders if o != (s.order or KOrder())]
    changes: list[tuple[str, _Change]] = [
        ("scale_a is left out", lambda A, B, z: (A, B, replace(z, a=ones(z.a)))),
        ("scale_b is left out", lambda A, B, z: (A, B, replace(z, b=ones(z.b)))),
        ("both scales are left out", lambda A, B, z: (A, B, replace(z, a=ones(z.a), b=ones(z.b)))),
        ("the scales divide", lambda A, B, z: (A, B, replace(z, a=1 / z.a, b=1 / z.b))),
    ]
    if spec.scale is None:
        for rule, words in _ORDERS.items():
            for fused in (True, False) if z.block else (z.fused,):
                if (rule, fused) != (z.multiply, z.fused):
                    text = f"a sum p is multiplied as {words}" + ", without FMA" * (not fused)
                    changes.append((text, _rule(rule, fused)))
    if z.a.shape[1] > 1:
        changes += [(f"the scales of {n} are those of the next block", _rolled(n)) for n in ("A", "B", "A and B")]
    length = z.block or spec.scale_block or spec.k
    for k in range(0, K, max(length, -(-K // (64 * length)) * length)):
        changes.append((f"k = {k} to {min(k + length, K) - 1} are left out", _without(k, k + length)))
    yield from ((text, change, ()) for text, change in changes)
    yield from (("", _same, (d,)) for d in (*other_instructions(spec, rows), *over_k))
    yield from ((text, change, (d,)) for text, change in changes[:9] for d in over_k[: len(PROMOTIONS) + 1])


def _formats(spec: Any) -> tuple[Any, Any, Any]:
    return spec.a_format, spec.b_format, spec.d_format


def _rule(rule: Any, fused: bool) -> _Change:
    return lambda A, B, z: (A, B, replace(z, multiply=rule, fused=fused))


def _rolled(names: str) -> _Change:
    def roll(x: Array, name: str) -> Array:
        return np.roll(x, -1, axis=1) if name in names.split() else x

    return lambda A, B, z: (A, B, replace(z, a=roll(z.a, "A"), b=roll(z.b, "B")))


def _without(start: int, stop: int) -> _Change:
    def change(A: Array, B: Array, z: Scales) -> tuple[Array, Array, Scales]:
        A = A.copy()
        A[:, start:stop] = 0
        return A, B, z

    return change
