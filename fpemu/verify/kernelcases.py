"""What `fpemu verify kernels` runs: schemes with their options, and products, each a function of a seed and its number.

The same on every machine, so that what a GPU returned can be computed again without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import mma, schemes
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values
from fpemu.schemes import Scheme
from fpemu.schemes.strassen import Strassen
from fpemu.verify import trials

SIZES = (  # M, N, K
    (128, 128, 64),
    (1, 1, 1),
    (127, 129, 65),
    (3, 2, 10000),
    (1, 500, 77),
    (500, 1, 77),
    (256, 128, 512),
    (17, 9, 1),
    (64, 64, 1000),
    (2, 3, 5),
    (130, 70, 100),
    (257, 259, 261),
    (1, 1, 10000),
    (33, 17, 40),
    (8, 8, 8),
    (31, 33, 15),
    (192, 320, 192),
    (129, 1, 129),
    (100, 200, 300),
    (65, 513, 33),
    (513, 65, 129),
    (16, 1024, 48),
    (1, 64, 1),
    (384, 384, 384),
    (300, 300, 31),
    (1, 1, 2),
    (96, 160, 2048),
    (16, 16, 16),
    (1024, 16, 48),
    (7, 130, 17),
    (200, 120, 640),
    (1300, 1100, 70),
    (48, 36, 200),
    (15, 17, 333),
    (90, 80, 7),
    (5, 5, 4096),
)
"""The sizes of the products of a scheme as published, in turn"""
_FEW = tuple(size for size in SIZES if max(size[:2]) <= 130)  # with other options: few tiles, so few kernels to compile
LEADS = (((), (), ()), ((3,), (3,), ()), ((2, 1), (3,), (3,)), ((), (2,), (2, 1)), ((4,), (), (4,)))
"""Leading axes of A, B and C"""
LAYOUTS = ("rows", "columns", "rows apart", "columns apart", "spaced", "reversed", "repeated")
"""How an operand lies in memory; apart: with a leading dimension; repeated: rows of stride 0"""
_ORDINARY = ("uniform", "near-one", "cancel")  # within the range of any words
_HOSTILE = ("mixed", "powers", "small", "large", "finite", "any-bits", "sparse", "staircase")
_POLICIES = ("raise", "propagate", "scale-rows", "scale")
_SCALARS = ((1.0, 0.0), (1.0, 1.0), (0.5, -2.0), (-1.0, 0.0), (3.0e-39, 1.5), (0.1, 0.3))
_MANY = 2**22  # multiply-adds of a product in a batch, or in fp64, at most
_ROUNDINGS = ("RNE", "RNA", "RZ", "RU", "RD", "ODD", "bit-cut")
_INTERVALS = (None, "instruction", 32, 40, 64)
VALUES: dict[str, tuple[Any, ...]] = {
    "high_rounding": _ROUNDINGS,
    "residual_rounding": _ROUNDINGS,
    "rounding": _ROUNDINGS,
    "residual_scale": (1.0, 2.0**7, 2.0**11, 2.0**20, 0.125),
    "sb": (0, 11, 24),
    "combine": ("element-wise",),
    "products": (("hh",), ("hh", "hr", "rh", "rr"), ("rh", "hh"), ("11", "12", "21"), ("11", "22", "33")),
    "accumulators": ("one", "band", "each"),
    "combine_in": ("fp64",),
    "step": _INTERVALS,
    "correction_step": _INTERVALS,
    "promote": _INTERVALS,
    "stage": (32, 64, 128, "instruction"),
    "block": (None, 1, 3),
    "accumulator": ("fp16",),
    "words": (1, 3, 4, "bf16", "int8", "e4m3"),
    "format": ("bf16", "tf32", "e4m3", "e5m2"),
    "instruction": ("mma",),
    "k": (8,),
    "mode": ("SP", "CR", "DP"),
    "slices": (3, "printed"),
    "fast": (True, False),
    "split": ("balanced",),
    "bits": (5,),
    "k_block": (64,),
    "scaling": ("accurate", "fast", "invariant"),
    "moduli": (10, 14),
    "precision": ("fp32",),
    "exact": (1, 2, 8),
}
"""The values of options that are tried, each alone, where a scheme takes them and the hardware has the instruction"""
TOGETHER: dict[str, tuple[dict[str, Any], ...]] = {
    "ootomo": ({"promote": 64, "correction_step": 64}, {"instruction": "mma", "promote": 64, "correction_step": 64}),
    "h2sgemm": ({"combine": "element-wise", "step": 64}, {"combine": "element-wise", "instruction": "mma"}),
    "staged": ({"instruction": "mma", "stage": 32}, {"instruction": "mma", "high_rounding": "RZ"}),
    "fp16": ({"instruction": "mma", "k": 8}, {"instruction": "mma", "accumulator": "fp16"}),
    "strassen": ({"levels": 2}, {"stage": 32}, {"levels": 2, "stage": 128}),
    "multiword": ({"words": 3, "block": None}, {"words": 3, "format": "bf16"}, {"words": 2, "format": "tf32"}),
}
"""Options that are tried together"""
OTHERS: dict[str, type[Scheme]] = {"strassen": Strassen}
"""Schemes that are not in the registry"""


@dataclass(frozen=True)
class Variant:
    """A scheme with some of its choices made."""

    scheme: str
    options: tuple[tuple[str, Any], ...] = ()

    def build(self) -> Scheme:
        """The scheme."""
        own = OTHERS.get(self.scheme)
        return schemes.build(self.scheme, dict(self.options)) if own is None else own(**dict(self.options))

    @property
    def arguments(self) -> dict[str, Any]:
        """What a call takes: the scheme's name and its options, or the scheme itself."""
        return {"scheme": self.build()} if self.scheme in OTHERS else {"scheme": self.scheme, **dict(self.options)}

    def __str__(self) -> str:
        return self.scheme + ("(" + ", ".join(f"{n}={v!r}" for n, v in self.options) + ")" if self.options else "")


def variants(names: Sequence[str] | None, hardware: str) -> list[Variant]:
    """Every scheme, or those named, as published and with other options, as far as the hardware runs them.

    Raises
    ------
    InputError
        An unknown scheme.
    """
    known = [*schemes.names(), *OTHERS]
    found: dict[Scheme, Variant] = {}
    for name in known if names is None else names:
        if name not in known:
            raise unknown_name("scheme", name, known)
        tried: list[dict[str, Any]] = [{}, *TOGETHER.get(name, ())]
        own = () if name in OTHERS else schemes.get(name).info.options
        tried += [{o.name: v} for o in own for v in VALUES.get(o.name, ())]
        for options in tried:
            variant = Variant(name, tuple(options.items()))
            try:
                scheme = variant.build()
                scheme.spec(hardware if scheme.needs_hardware else None)
            except InputError:
                continue
            found.setdefault(scheme, variant)
    return list(found.values())


@dataclass(frozen=True)
class Case:
    """One product of a variant: all that decides its bits, but for the operands, which are drawn from `key`."""

    key: int
    sizes: tuple[int, int, int]
    """M, N, K"""
    lead: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    layouts: tuple[str, str, str]
    kinds: tuple[str, str]
    """Class of `fpemu.mma.operand_streams` of A's and B's operands"""
    on_range: str
    alpha: float
    beta: float
    order: KOrder | None
    on_gpu: bool
    """Whether the operands are handed over in the GPU's memory"""

    @property
    def products(self) -> int:
        """Multiply-adds."""
        return prod(np.broadcast_shapes(*self.lead)) * prod(self.sizes)

    def __str__(self) -> str:
        M, N, K = self.sizes
        parts = [f"{M}×{N}×{K}", " and ".join(self.kinds), self.on_range, f"alpha {self.alpha:g}, beta {self.beta:g}"]
        parts += [f"leading axes {self.lead}"] * any(self.lead) + [str(self.order)] * (self.order is not None)
        return ", ".join([*parts, " / ".join(self.layouts)] + ["in the GPU's memory"] * self.on_gpu)


def numbers(variant: Variant, seed: int, cases: int) -> list[int]:
    """The numbers of a variant's products: all of them as published, a sixth of them, from a drawn one on, else.

    `OTHERS` have half as many again, since a third of the operands is beyond their range.
    """
    if not variant.options:
        return list(range(cases * 3 // 2 if variant.scheme in OTHERS else cases))
    first = trials.Draw(seed, variant, "first").below(len(SIZES))
    return list(range(first, first - (-cases // 6)))


def case(variant: Variant, number: int, seed: int) -> Case:
    """The product of a number: sizes come in turn, the rest is drawn.

    A variant with options keeps to one layout of its operands, to one range policy and to the kernels' own order:
    kernels differ by these, and compiling takes long.
    """
    draw = trials.Draw(seed, variant, number)
    scheme = variant.build()
    turn = _FEW if variant.options else SIZES
    M, N, K = sizes = turn[number % len(turn)]
    lead = LEADS[0]
    if prod(sizes) > _MANY and (scheme.operand.name == "fp64" or isinstance(scheme, schemes.ErrorFree)):
        sizes = min(M, 80), min(N, 80), min(K, 80)
    if number % 4 == 2 and prod(sizes) < _MANY:
        lead = draw.pick(LEADS[1:])
    kinds = (draw.pick(_ORDINARY),) * 2 if number % 2 == 0 else (draw.pick(_HOSTILE), draw.pick(_HOSTILE))
    policy = "raise" if number % 2 == 0 or number % 8 == 1 else draw.pick(_POLICIES[1:])
    order = None
    if number % 7 == 5:
        tile = draw.pick((None, 16, 33))
        order = KOrder(
            split=draw.pick((None, 50, 64, 100)),
            tile=tile,
            residue_first=tile is not None and bool(draw.below(2)),
            join=draw.pick(("ascending", "descending", "pairwise")),
        )
    alpha, beta = draw.pick(_SCALARS)
    own = trials.Draw(seed, variant, "layouts") if variant.options else draw
    layouts = tuple(own.pick(LAYOUTS) for _ in range(3))
    if variant.options:
        policy, order = own.pick(_POLICIES), None
        kinds = (kinds[0] if kinds[0] in _ORDINARY else "uniform",) * 2 if policy == "raise" else kinds
    return Case(draw.word(), sizes, lead, layouts, kinds, policy, alpha, beta, order, number % 3 == 1)


def operands(case: Case, fmt: FloatFormat) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """A, B and C of a case; C is None where beta = 0."""
    M, N, K = case.sizes
    made = []
    for letter, lead, shape, layout in zip("ABC", case.lead, ((M, K), (K, N), (M, N)), case.layouts, strict=True):
        kind = case.kinds["AB".index(letter)] if letter != "C" else "uniform"
        row = mma.spec("cdna2", fmt)
        key = trials.Draw(case.key, letter).word()
        codes = streams.operand(row, "A", kind, key, 0, prod(lead), *shape)
        made.append(laid(values(codes, fmt).reshape(*lead, *shape), layout))
    return made[0], made[1], made[2] if case.beta else None


def laid(x: NDArray[Any], layout: str) -> NDArray[Any]:
    """The same values in memory of another layout; "repeated": the first row's, in every row."""
    if layout in ("rows", "columns", "spaced", "reversed"):
        return trials._laid(x, layout)
    if layout == "repeated":
        return np.broadcast_to(x[..., :1, :].copy(), x.shape)
    y = x.swapaxes(-1, -2) if layout == "columns apart" else x
    wide = np.full((*y.shape[:-1], y.shape[-1] + 5), np.nan, x.dtype)
    wide[..., : y.shape[-1]] = y
    view = wide[..., : y.shape[-1]]
    return view.swapaxes(-1, -2) if layout == "columns apart" else view
