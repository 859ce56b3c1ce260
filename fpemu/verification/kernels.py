"""``fpemu verify kernels``: the kernels of `fpemu.gpu.gemm` against `fpemu.gemm`, bit by bit.

All schemes and options, on hostile operands, results and error messages. Cases are functions of a seed: a recorded one
can be computed again without a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu import digests, mma, schemes
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.gpu.gemm.choice import NoKernelError, architecture, kernel
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.mma import operand_streams as streams
from fpemu.mma.codes import values
from fpemu.schemes import Scheme, SplitScheme
from fpemu.schemes.words import of_operand
from fpemu.verification import paths
from fpemu.verification.cases import LAYOUTS, Case, Computed, Draw, Result, arrange, codes
from fpemu.verification.paths import PATHS, Functions
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import ProductSuite, SkippedError

_SIZES = """
128x128x64 1x1x1 127x129x65 3x2x10000 1x500x77 500x1x77 256x128x512 17x9x1 64x64x1000 2x3x5 130x70x100
257x259x261 1x1x10000 33x17x40 8x8x8 31x33x15 192x320x192 129x1x129 100x200x300 65x513x33 513x65x129
16x1024x48 1x64x1 384x384x384 300x300x31 1x1x2 96x160x2048 16x16x16 1024x16x48 7x130x17 200x120x640
1300x1100x70 48x36x200 15x17x333 90x80x7 5x5x4096
"""
SIZES = tuple((int(M), int(N), int(K)) for M, N, K in (size.split("x") for size in _SIZES.split()))
"""M, N, K of the products of a scheme with its published options, in turn"""
_FEW = tuple(size for size in SIZES if max(size[:2]) <= 130)  # with other options: few tiles, so few kernels to compile
LEADS = (((), (), ()), ((3,), (3,), ()), ((2, 1), (3,), (3,)), ((), (2,), (2, 1)), ((4,), (), (4,)))
"""Leading axes of A, B and C"""
_ORDINARY = ("uniform", "near-one", "cancel")  # within the range of any words
_HOSTILE = ("mixed", "powers", "small", "large", "finite", "any-bits", "sparse", "staircase")
_POLICIES = ("raise", "propagate", "scale-rows", "scale")
_SCALARS = ((1.0, 0.0), (1.0, 1.0), (0.5, -2.0), (-1.0, 0.0), (3.0e-39, 1.5), (0.1, 0.3))
_MANY = 2**22  # largest number of multiply-adds of a product in a batch, or in fp64
_ON_CPU = 2**17  # largest number of multiply-adds of a product that is emulated on the CPU too
_SHARED = 3  # a kernel of this many variants is compiled in advance
_ROUNDINGS = ("RNE", "RNA", "RZ", "RU", "RD", "ODD", "bit-cut")
_INTERVALS = (None, "instruction", "3 instructions", 32, 40, 64)
VALUES: dict[str, tuple[Any, ...]] = {
    "high_rounding": (*_ROUNDINGS, "balanced"),
    "residual_rounding": _ROUNDINGS,
    "rounding": _ROUNDINGS,
    "residual_scale": (1.0, 2.0**7, 2.0**11, 2.0**20, 0.125),
    "sb": (0, 11, 24),
    "combine": ("element-wise",),
    "products": (("hh",), ("hh", "hr", "rh", "rr"), ("rh", "hh"), ("11", "12", "21"), ("11", "22", "33")),
    "accumulators": ("one", "band", "each", (("hh",), ("rh", "hr")), (("rh", "hh"), ("hr",))),
    "combine_in": ("fp64",),
    "step": _INTERVALS,
    "promote": _INTERVALS,
    "stage": (32, 64, 128, "instruction"),
    "accumulator": ("fp16",),
    "words": (1, 3, 4, "bf16", "int8", "e4m3"),
    "fmt": ("bf16", "tf32", "e4m3", "e5m2"),
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
"""Values of options, each tried alone, where the scheme takes them and the hardware has the instruction"""
TOGETHER: dict[str, tuple[dict[str, Any], ...]] = {
    "ootomo": ({"promote": 64, "step": 64}, {"instruction": "mma", "promote": 64, "step": 64}),
    "h2sgemm": ({"combine": "element-wise", "step": 64}, {"combine": "element-wise", "instruction": "mma"}),
    "staged": (
        {"instruction": "mma", "stage": 32},
        {"instruction": "mma", "high_rounding": "RZ"},
        {"instruction": "mma", "high_rounding": "balanced"},
    ),
    "fp16": ({"instruction": "mma", "k": 8}, {"instruction": "mma", "accumulator": "fp16"}),
    "strassen": (
        {"levels": 2},
        {"stage": 32},
        {"levels": 2, "stage": 128},
        {"high_rounding": "balanced"},
        {"levels": 2, "high_rounding": "balanced"},
    ),
    "multiword": ({"words": 3, "promote": None}, {"words": 3, "fmt": "bf16"}, {"words": 2, "fmt": "tf32"}),
    "bf16x6": ({"residual_scale": 1.0, "accumulators": (("11",), ("31", "22", "13", "21", "12"))},),
    "egemm": ({"accumulators": (("hh",), ("rr", "rh", "hr"))}, {"accumulators": (("hh", "rr"), ("hr", "rh"))}),
}
"""Options tried together"""
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {"strassen": ("staged", {"levels": 1})}
"""Groups with a name that is not a scheme's: the scheme and its options"""
_ERRORS_BY_TYPE = ("prepared", *paths.OPERATORS)
"""Paths whose range errors have other texts: they name the prepared operand first, or count broadcast entries"""


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
        trials: list[dict[str, Any]] = [{}, *TOGETHER.get(name, ())]
        options = () if name in OTHERS else schemes.get(name).info.options
        trials += [{o.name: v} for o in options for v in VALUES.get(o.name, ())]
        for trial in trials:
            variant = Variant(name, tuple(trial.items()))
            try:
                scheme = variant.build()
                scheme.spec(hardware if scheme.needs_hardware else None)
            except InputError:
                continue
            by_scheme.setdefault(scheme, variant)
    return list(by_scheme.values())


@cache
def _variant(group: str, hardware: str) -> Variant:
    return next(v for v in variants([group.partition("(")[0]], hardware) if str(v) == group)


def numbers(variant: Variant, seed: int, cases: int) -> list[int]:
    """Return the numbers of a variant's cases.

    All of them with published options, a sixth of them, from a drawn one on, otherwise. `OTHERS` have half as many
    again, since a third of the operands lies outside their range.
    """
    if not variant.options:
        return list(range(cases * 3 // 2 if variant.scheme in OTHERS else cases))
    first = Draw(seed, variant, "first").below(len(SIZES))
    return list(range(first, first - (-cases // 6)))


def case(variant: Variant, number: int, seed: int) -> Case:
    """Return a case: sizes alternate, the rest is drawn.

    A variant with options has one layout of its operands, one overflow policy and the kernels' own order: kernels
    differ by these, and compiling takes long.
    """
    draw = Draw(seed, variant, number)
    scheme = variant.build()
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
        tile = draw.pick((None, 16, 33))
        order = KOrder(
            split=draw.pick((None, 50, 64, 100)),
            tile=tile,
            residue_first=tile is not None and bool(draw.below(2)),
            join=draw.pick(("ascending", "descending", "pairwise")),
        )
    alpha, beta = draw.pick(_SCALARS)
    fixed = Draw(seed, variant, "layouts") if variant.options else draw
    layouts = tuple(fixed.pick(LAYOUTS) for _ in range(3))
    if variant.options:
        policy, order = fixed.pick(_POLICIES), None
        kinds = (kinds[0] if kinds[0] in _ORDINARY else "uniform",) * 2 if policy == "raise" else kinds
    options = {"on_range": policy}
    return Case(variant, number, draw.word(), sizes, kinds, layouts, lead, order, alpha, beta, options)


@lru_cache(maxsize=1)
def operands(case: Case, fmt: FloatFormat) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return A, B and C of a case; C is None where beta = 0."""
    M, N, K = case.sizes
    row, arrays = mma.spec("cdna2", fmt), []
    for letter, lead, shape, layout in zip("ABC", case.lead, ((M, K), (K, N), (M, N)), case.layouts, strict=True):
        kind = case.kinds["AB".index(letter)] if letter != "C" else "uniform"
        key = Draw(case.key, letter).word()
        drawn = streams.operand(row, "A", kind, key, 0, prod(lead), *shape)
        arrays.append(arrange(values(drawn, fmt).reshape(*lead, *shape), layout))
    return arrays[0], arrays[1], arrays[2] if case.beta else None


class Kernels(ProductSuite):
    """Verification of the kernels of `fpemu.gpu.gemm`: all schemes or those named, with all or only published options.

    `cases` are the products of a scheme with its published options. Small ones of them are emulated on the CPU too. On
    arrays of the GPU, half of the cases with the policy "raise" leave it out, so that `fpemu.gpu.check` raises.
    """

    name = "kernels"
    about = (
        "products by every path of a caller (options.paths) compared with fpemu.gemm, which emulates the instruction;"
        " errors by their text, of the last paths by their type. A product is a function of seed, group (a scheme with"
        " its options) and number. counts: 'against cpu', outputs emulated on the CPU too; 'errors', products rejected"
        " by both; 'no kernel', products that no kernel runs. digests: of small products, by number; facts.replay:"
        " instruction and order of their kernels; facts.paths: products, outputs, mismatches and errors by path"
    )
    code = ("simt", "schemes", "gpu/gemm", "gpu/errorfree", "torch")
    supported = tuple(PATHS)
    columns: ClassVar = {
        **{name: name for name in ("cases", "outputs")},
        **{"on the CPU too": "against cpu", "errors alike": "errors"},
        **{name: name for name in ("no kernel", "mismatches", "failed")},
    }
    small = 2**16

    def __init__(
        self,
        seed: int = 0,
        cases: int = len(SIZES),
        names: Sequence[str] | None = None,
        *,
        published: bool = False,
        emulated_on: str = "cuda",
        paths: Sequence[str] | None = None,
    ) -> None:
        super().__init__(seed, paths, cases=cases)
        self.cases, self.names, self.published, self.emulated_on = cases, names, published, emulated_on

    def groups(self) -> list[str]:
        return [str(v) for v in variants(self.names, architecture()) if not (self.published and v.options)]

    def order(self) -> list[str]:
        return [str(v) for v in variants(None, architecture())]

    def facts(self) -> dict[str, Any]:
        return {"architecture": architecture()}

    def sources(self, groups: Sequence[str]) -> list[str]:
        from fpemu.gpu.emulation import chains
        from fpemu.gpu.gemm import splitting
        from fpemu.gpu.runtime import compiler

        texts = [compiler.kernel_source(f"{name}.cu") for name in ("strided_copy", "nonfinite_outputs")] * _SHARED
        for group in groups:
            scheme = _variant(group, architecture()).build()
            spec = scheme.spec(architecture()) if scheme.needs_hardware else None
            if spec is not None and isinstance(scheme, SplitScheme):
                rules = {of_operand(scheme.rules(), name) for name in "AB"}
                texts += [chains.source(spec), *map(splitting.source, rules)]
        return [text for text, count in Counter(texts).items() if count >= _SHARED]

    def numbers(self, group: str) -> Sequence[int]:
        return numbers(_variant(group, architecture()), self.seed, self.cases)

    def case(self, group: str, number: int) -> Case:
        return case(_variant(group, architecture()), number, self.seed)

    def resolve(self, case: Case) -> Case:
        scheme = case.subject.build()
        if scheme.error_free:
            arguments = {"scheme": scheme, "hardware": architecture(), "order": case.order}
            return replace(case, options={**case.options, "kernel": "error-free", "arguments": arguments})
        M, N, K = case.sizes
        try:
            chosen = kernel(scheme, M, N, K, order=case.order)
        except NoKernelError:
            case = replace(case, order=None)
            try:
                chosen = kernel(scheme, M, N, K)
            except NoKernelError as problem:
                raise SkippedError from problem
        more = {"kernel": chosen.name, "arguments": chosen.arguments, "recordable": chosen.recordable}
        return replace(case, options={**case.options, **more})

    def paths_of(self, case: Case) -> list[str]:
        return [path for path in self.paths if _runs(path, case)]

    def on_gpu(self, case: Case, path: str) -> Computed:
        policy, fmt = _policy(case, path), case.subject.build().operand
        given = operands(case, fmt)
        lead = np.broadcast_shapes(*(X.shape[:-2] for X in given if X is not None))
        shape, deferred = (*lead, *case.sizes[:2]), policy is None
        functions = _functions(case, policy)
        memory: dict[str, Any] = {"key": case.key, "number": case.number}
        computed = paths.run(functions, path, given, shape, fmt.dtype, deferred=deferred, **memory)
        if isinstance(computed.result, str) and path in _ERRORS_BY_TYPE:
            computed.result = computed.result.partition(":")[0]
        computed.kernel, computed.facts = case.options["kernel"], replay_facts(case)
        return computed

    def expected(self, case: Case, path: str, references: dict[str, Result]) -> tuple[dict[str, Result], bool | None]:
        errors = {name: x for name, x in references.items() if isinstance(x, str)}
        deferred = None
        if _policy(case, path) is None:
            deferred = bool(errors)
            if len(errors) == len(references):  # otherwise the references disagree, which is a mismatch
                propagated = replace(case, options={**case.options, "on_range": "propagate"})
                references = {name: x for name, x in self.references(propagated).items() if not isinstance(x, str)}
        elif path in _ERRORS_BY_TYPE:
            references = {name: x.partition(":")[0] if isinstance(x, str) else x for name, x in references.items()}
        return references, deferred

    def references(self, case: Case) -> dict[str, Result]:
        both = case.products <= _ON_CPU and self.emulated_on != "cpu" and not case.subject.options
        arguments = case.options["arguments"]
        devices = [self.emulated_on, *["cpu"] * both]
        return {device: paths.message_or(partial(emulate, case, arguments, device)) for device in devices}

    def replay(self, record: Record, outcome: Outcome, number: str) -> str:
        variant = _variant(outcome.group, record.facts["architecture"])
        arguments = replayed(variant, outcome.facts["replay"][number])
        with np.errstate(all="ignore"):
            return digests.text(emulate(case(variant, int(number), self.seed), arguments, "cpu"))

    def section(self, group: str) -> str:
        return group.partition("(")[0]


def emulate(case: Case, arguments: dict[str, Any], device: Any) -> NDArray[Any]:
    """Return the codes of a case's product by `fpemu.gemm`."""
    A, B, C = operands(case, case.subject.build().operand)
    scalars: dict[str, Any] = {"alpha": case.alpha, "beta": case.beta, "on_range": case.options["on_range"]}
    return codes(fpemu.gemm(A, B, C, **scalars, device=device, **arguments))


def replay_facts(case: Case) -> dict[str, Any]:
    """Return what `replayed` needs of a resolved case."""
    spec, order = case.options["arguments"]["hardware"], case.options["arguments"]["order"]
    facts = {"spec": spec.name if isinstance(spec, MmaSpec) else spec}
    return facts if order is None else {**facts, "order": order.to_dict()}


def replayed(variant: Variant, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `emulate` for the kernel of a recorded case."""
    scheme, spec = variant.build(), facts["spec"]
    rows = {row.name: row for row in catalog.rows()}
    if spec in rows:
        spec = rows[spec]
        options = tuple(x for x in variant.options if x[0] not in ("instruction", "k"))
        scheme = replace(variant, options=options).build()
    order = KOrder.from_dict(facts["order"]) if "order" in facts else None
    return {"scheme": scheme, "hardware": spec, "order": order}


# --- paths
def _policy(case: Case, path: str) -> str | None:
    """The overflow policy of a path's calls; None: left out, so that range errors are deferred."""
    policy: str = case.options["on_range"]
    if policy != "raise" or path == "host" or case.subject.build().error_free:
        return policy
    deferred = path == "gradient" or path.startswith("graph") or case.number // 8 % 2
    return None if deferred else policy


def _runs(path: str, case: Case) -> bool:
    """Whether a path computes the product of a case."""
    scheme, policy = case.subject.build(), _policy(case, path)
    error_free = scheme.error_free
    if path in ("plan", "prepared") or path.startswith("graph"):
        waits = policy is not None and (policy != "propagate" or scheme.limited)
        return not error_free and case.options["recordable"] and not (waits and path.startswith("graph"))
    if path != "gradient":
        return True
    if case.beta or case.order is not None or policy not in (None, "propagate") or error_free:
        return False
    M, N, K = (max(n, 1) for n in case.sizes)
    try:
        kernel(scheme, *((K, N, M) if case.number % 2 else (M, K, N)))  # of the product that has the gradient
    except NoKernelError:
        return False
    return True


def _functions(case: Case, policy: str | None) -> Functions:
    """The functions by which a caller computes the product of a case."""
    scalars, choices = {"alpha": case.alpha, "beta": case.beta}, {"on_range": policy, "order": case.order}
    given: dict[str, Any] = {**scalars, **choices, **case.subject.arguments}
    scheme = {name: value for name, value in given.items() if name not in scalars}

    def plan(A: Any, B: Any, C: Any) -> Any:
        options = {name: value for name, value in given.items() if name != "scheme"}
        return fpemu.gpu.plan(given["scheme"], A, B, C, **options)

    return Functions(
        lambda A, B, C, out=None: fpemu.gpu.gemm(A, B, C, out=out, **given),
        plan,
        lambda A, B, C: fpemu.torch.gemm(A, B, C, **given),
        lambda A, B, C: paths.routed(fpemu.torch.matmul(**scheme), A, B, C, case.alpha, case.beta),
    )
