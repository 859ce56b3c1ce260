"""``fpemu verify kernels``: the kernels of `fpemu.gpu.gemm` against `fpemu.gemm`, bit by bit.

All schemes and options, on hostile operands, results and error messages. Cases are functions of a seed: a recorded one
can be computed again without a GPU.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import fpemu
from fpemu import mma, schemes
from fpemu.errors import InputError, unknown_name
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.schemes import Scheme
from fpemu.verification.cases import LAYOUTS, Case, Draw, Operands, arrange, drawn, shapes
from fpemu.verification.paths import PATHS, Call
from fpemu.verification.suite import Group, ProductSuite, SkippedError

SIZES = shapes("""
128x128x64 1x1x1 127x129x65 3x2x10000 1x500x77 500x1x77 256x128x512 17x9x1 64x64x1000 2x3x5 130x70x100
257x259x261 1x1x10000 33x17x40 8x8x8 31x33x15 192x320x192 129x1x129 100x200x300 65x513x33 513x65x129
16x1024x48 1x64x1 384x384x384 300x300x31 1x1x2 96x160x2048 16x16x16 1024x16x48 7x130x17 200x120x640
1300x1100x70 48x36x200 15x17x333 90x80x7 5x5x4096
""")
"""M, N, K of the products of a scheme with its published options, in turn"""
_FEW = [size for size in SIZES if max(size[:2]) <= 130]  # with other options: few tiles, so few kernels to compile
LEADS = (((), (), ()), ((3,), (3,), ()), ((2, 1), (3,), (3,)), ((), (2,), (2, 1)), ((4,), (), (4,)))
"""Leading axes of A, B and C"""
_ORDINARY = ("uniform", "near-one", "cancel")  # within the range of any words
_HOSTILE = ("mixed", "powers", "small", "large", "finite", "any-bits", "sparse", "staircase")
_POLICIES = ("raise", "propagate", "scale-rows", "scale")
_SCALARS = ((1.0, 0.0), (1.0, 1.0), (0.5, -2.0), (-1.0, 0.0), (3.0e-39, 1.5), (0.1, 0.3))
_MANY = 2**22  # largest number of multiply-adds of a product in a batch, or in fp64
_OPTIONS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {"strassen": ("staged", {"levels": 1})}
"""Groups with a name that is not a scheme's: the scheme and its options"""


@dataclass(frozen=True)
class Variant:
    """A scheme with some of its options."""

    scheme: str
    options: tuple[tuple[str, Any], ...] = ()

    def build(self) -> Scheme:
        """Return the scheme."""
        name, options = OTHERS.get(self.scheme, (self.scheme, {}))
        return schemes.build(name, options | dict(self.options))

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of a call: the scheme's name and its options, or the scheme itself."""
        return {"scheme": self.build()} if self.scheme in OTHERS else {"scheme": self.scheme, **dict(self.options)}

    def __str__(self) -> str:
        return self.scheme + ("(" + ", ".join(f"{n}={v!r}" for n, v in self.options) + ")" if self.options else "")


def variants(names: Sequence[str] | None, hardware: str) -> list[Variant]:
    """Return every scheme, or those named, with published and other options, where the hardware runs them."""
    known = [*schemes.names(), *OTHERS]
    by_scheme: dict[Scheme, Variant] = {}
    for name in known if names is None else names:
        if name not in known:
            raise unknown_name("scheme", name, known)
        trials: list[dict[str, Any]] = [{}, *_OPTIONS["together"].get(name, ())]
        options = () if name in OTHERS else schemes.get(name).info.options
        trials += [{o.name: v} for o in options for v in _OPTIONS["alone"].get(o.name, ())]
        for trial in trials:
            variant = Variant(name, tuple((option, _value(value)) for option, value in trial.items()))
            try:
                scheme = variant.build()
                scheme.spec(hardware if scheme.needs_hardware else None)
            except InputError:
                continue
            by_scheme.setdefault(scheme, variant)
    return list(by_scheme.values())


def _value(value: Any) -> Any:
    """Return an option's value from its form in TOML."""
    return tuple(map(_value, value)) if isinstance(value, list) else None if value == "none" else value


@cache
def _variant(group: str) -> Variant:
    name = group.partition("(")[0]
    return next(v for row in catalog.architectures() for v in variants([name], row) if str(v) == group)


def operands(case: Case) -> Operands:
    """Return A, B and C of a case; C is None where beta = 0."""
    M, N, K = case.sizes
    row, arrays = mma.spec("cdna2", case.subject.build().operand), []
    for letter, lead, shape, layout in zip("ABC", case.lead, ((M, K), (K, N), (M, N)), case.layouts, strict=True):
        kind = case.kinds["AB".index(letter)] if letter != "C" else "uniform"
        key = Draw(case.key, letter).word()
        arrays.append(arrange(drawn(row, "A", kind, key, (*lead, *shape)), layout))
    return arrays[0], arrays[1], arrays[2] if case.beta else None


def product(
    case: Case, hardware: Any, recorded: dict[str, Any] | None, operands: Operands, device: str = "cpu"
) -> Call:
    """Return the product of a case by `fpemu.gpu.gemm`, which a device emulates; a kernel may lack the case's order.

    `recorded` is the name of the kernel's instruction, "spec", and its "order"; None: those of the current GPU.
    """
    scheme, (M, N, K), order = case.subject.build(), (max(size, 1) for size in case.sizes), case.order
    name, emulation = "error-free", {"scheme": scheme, "hardware": hardware, "order": order}
    if recorded is not None:
        rows, variant = {row.name: row for row in catalog.rows()}, case.subject
        machine = rows.get(recorded["spec"], recorded["spec"])
        if isinstance(machine, MmaSpec):
            variant = replace(variant, options=tuple(x for x in variant.options if x[0] not in ("instruction", "k")))
        over_k = KOrder.from_dict(recorded["order"]) if "order" in recorded else None
        emulation = {"scheme": variant.build(), "hardware": machine, "order": over_k}
    elif not scheme.error_free:
        try:
            kernel = fpemu.gpu.kernel(scheme, M, N, K, order=order)
        except InputError as problem:
            if order is None:
                raise SkippedError("no kernel") from problem
            return product(replace(case, order=None), hardware, recorded, operands, device)
        name, emulation = kernel.name, {n: kernel.arguments[n] for n in emulation}
    spec, over_k, policy = emulation["hardware"], emulation["order"], case.options["on_range"]
    replay = {"spec": spec.name if isinstance(spec, MmaSpec) else spec}
    replay |= {} if over_k is None else {"order": over_k.to_dict()}
    # error-free schemes have no plan; a graph cannot capture the wait of a policy that reads the GPU's counters
    captured = policy == "raise" or (policy == "propagate" and not scheme.limited)
    planned = () if scheme.error_free else ("plan", "graph") if captured else ("plan",)
    scalars = {"alpha": case.alpha, "beta": case.beta}
    like = arrange(np.zeros(case.shape, scheme.operand.dtype), ("rows", "rows padded")[case.number % 2])
    options = {**scalars, "order": order, **case.subject.arguments}
    emulation |= {**scalars, "on_range": policy, "device": device}
    by, deferrable = ("host", "eager", "torch", *planned), not scheme.error_free
    known = replace(case, options={**case.options, "kernel": name})
    call = Call(known, "gemm", operands, like, options, emulation, paths=by, policy=policy, deferrable=deferrable)
    return replace(call, kernel=name, replay=replay)


@dataclass
class Kernels(ProductSuite):
    """Verification of the kernels of `fpemu.gpu.gemm`: all schemes or those named, with all or only published options.

    `cases` are the products of a scheme with its published options. On arrays of the GPU, half of the cases with the
    policy "raise" leave it out, so that `fpemu.gpu.check` raises.
    """

    name = "kernels"
    about = (
        "products compared with fpemu.gemm, which emulates the instruction; errors by their text, of PyTorch's operator"
        " by their type. counts: outputs by path; 'errors', products rejected by both; 'no kernel', products that no"
        " kernel runs. digests: of small products, by number; facts.replay: instruction and order of their kernels"
    )
    supported = tuple(PATHS)
    small = 2**16
    decisive = ("cases",)
    cases: int = len(SIZES)
    names: Sequence[str] | None = None
    published: bool = field(default=False, kw_only=True)

    @cached_property
    def groups(self) -> dict[str, Group]:
        known = variants(self.names, self.facts()["architecture"])
        return {str(v): Group(self.numbers(v), v.scheme) for v in known if not (self.published and v.options)}

    def numbers(self, variant: Variant) -> Sequence[int]:
        """All cases with published options, a sixth of them, from a drawn one on, otherwise.

        `OTHERS` have half as many again, since a third of the operands lies outside their range.
        """
        if not variant.options:
            return range(self.cases * 3 // 2 if variant.scheme in OTHERS else self.cases)
        first = Draw(self.seed, variant, "first").below(len(SIZES))
        return range(first, first - (-self.cases // 6))

    def case(self, group: str, number: int) -> Case:
        """Return a case: sizes alternate, the rest is drawn.

        A variant with options has one layout of its operands, one overflow policy and the kernels' own order: kernels
        differ by these, and compiling takes long.
        """
        variant = _variant(group)
        draw, scheme = Draw(self.seed, variant, number), variant.build()
        turn = _FEW if variant.options else SIZES
        M, N, K = sizes = turn[number % len(turn)]
        lead: Any = LEADS[0]
        if prod(sizes) > _MANY and (scheme.operand.name == "fp64" or scheme.error_free):
            sizes = min(M, 80), min(N, 80), min(K, 80)
        if number % 4 == 2 and prod(sizes) < _MANY:
            lead = draw.pick(LEADS[1:])
        kinds = (draw.pick(_ORDINARY),) * 2 if number % 2 == 0 else (draw.pick(_HOSTILE), draw.pick(_HOSTILE))
        policy = "raise" if number % 2 == 0 or number % 8 == 1 else draw.pick(_POLICIES[1:])
        order = None
        if number % 7 == 5:
            order = draw.order((None, 50, 64, 100))
        alpha, beta = draw.pick(_SCALARS)
        fixed = Draw(self.seed, variant, "layouts") if variant.options else draw
        layouts = tuple(fixed.pick(LAYOUTS) for _ in range(3))
        if variant.options:
            policy, order = fixed.pick(_POLICIES), None
            kinds = (kinds[0] if kinds[0] in _ORDINARY else "uniform",) * 2 if policy == "raise" else kinds
        options = {"on_range": policy}
        return Case(variant, number, draw.word(), sizes, kinds, layouts, lead, order, alpha, beta, options)

    def product(self, case: Case, hardware: Any, recorded: Any = None) -> Call:
        return product(case, hardware, recorded, operands(case), "auto" if recorded is None else "cpu")
