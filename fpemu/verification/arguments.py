"""``fpemu verify arguments``: facts of the arguments that drawn products do not vary, by every path of a caller.

A fact is a property of the operands' memory, their sizes or the scalars on which kernels may depend: operands that
share memory, strides of 0, a batch within the rows, empty sizes, special values of alpha and beta. A group computes
small products for every fact that its function accepts, at addresses drawn as in `fpemu.verification.cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import inf, nan, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu import batched, digests
from fpemu.errors import unknown_name
from fpemu.gpu.batched import products
from fpemu.gpu.gemm.choice import architecture
from fpemu.verification import kernels, paths, tallskinny
from fpemu.verification.cases import Case, Computed, Draw, Result, codes
from fpemu.verification.kernels import Kernels, Variant
from fpemu.verification.paths import PATHS, Functions
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import ProductSuite

Array = NDArray[Any]
Operands = tuple[Array, Array, Array | None]
SCHEMES = ("staged", "ootomo", "bf16x9", "sgemm", "staged-int8", "ozaki")
_FP16, _FP32, _FP64 = map(np.dtype, (np.float16, np.float32, np.float64))
_OTHERS = {"hgemm": _FP16, "hcgemm planar": _FP16, "multiply fp32": _FP32, "multiply fp64": _FP64}
_PLANAR: dict[str, Any] = {"layout": "planar", "algorithm": "fused"}
M, N, K = 19, 23, 40


class Numbers:
    """Uniform numbers for the operands of a case of a group."""

    def __init__(self, group: str, key: int) -> None:
        self._rng = np.random.default_rng(key)
        self.first = (2,) if "planar" in group else ()  # axes before those of a product: real and imaginary parts
        self.dtype: Any = _OTHERS.get(group, _FP64 if group == "gemm ozaki" else _FP32)

    def __call__(self, *shape: int) -> Array:
        """Draw an array, a view of an array with one axis."""
        shape = (*self.first, *shape)
        return self._rng.uniform(-1, 1, prod(shape)).astype(self.dtype).reshape(shape)

    def all(self, *lead: int) -> Operands:
        """Draw A, B and C."""
        return self(*lead, M, K), self(*lead, K, N), self(*lead, M, N)

    def expand(self, x: Array, *shape: int) -> Array:
        """Broadcast an array by strides of 0."""
        first = len(self.first)
        ones = [1] * (len(shape) + first - x.ndim)
        return np.broadcast_to(x.reshape(*self.first, *ones, *x.shape[first:]), (*self.first, *shape))

    def permute(self, x: Array, *axes: int) -> Array:
        """Exchange axes."""
        first = len(self.first)
        return x.transpose(*range(first), *(axis + first for axis in axes))


@dataclass(frozen=True)
class Fact:
    """A property of the arguments of a product.

    Attributes
    ----------
    name : str
        Name.
    operands : callable
        Function of `Numbers` that returns A, B and C.
    alpha, beta : complex
        Scalars; C is left out where beta = 0, unless `unread`.
    groups : str
        Beginnings of the names of the groups that accept it.
    paths : sequence of str
        Paths of a caller that accept it.
    unread : bool
        C is passed and not read.
    """

    name: str
    operands: Callable[[Numbers], Operands]
    alpha: complex = 1.0
    beta: complex = 0.0
    groups: str = "gemm hgemm hcgemm"
    paths: Sequence[str] = tuple(PATHS)
    unread: bool = False


# --- the facts
def _one_array(draw: Numbers) -> Operands:
    A = draw(33, 33)
    return A, A, A


def _transpose(draw: Numbers) -> Operands:
    A = draw(M, K)
    return A, A.swapaxes(-1, -2), None


def _windows(draw: Numbers) -> Operands:
    A, B = (np.lib.stride_tricks.sliding_window_view(draw(n + K - 1), K, axis=-1) for n in (M, N))
    return A, B.swapaxes(-1, -2), None


def _slices(draw: Numbers) -> Operands:
    wide = draw(K + 7, K + N)
    return wide[..., :M, 3 : 3 + K], wide[..., 5 : 5 + K, K:], wide[..., 2 : 2 + M, 1 : 1 + N]


def _zero_strides(draw: Numbers) -> Operands:
    return draw.expand(draw(M, 1), M, K), draw.expand(draw(1, N), K, N), draw.expand(draw(M, 1), M, N)


def _all_zero_strides(draw: Numbers) -> Operands:
    return draw.expand(draw(1, 1), M, K), draw(K, N), draw.expand(draw(1, 1), M, N)


def _expanded_batch(draw: Numbers) -> Operands:
    return draw.expand(draw(M, K), 3, M, K), draw(3, K, N), draw.expand(draw(M, N), 3, M, N)


def _broadcast_batch(draw: Numbers) -> Operands:
    return draw(2, 1, M, K), draw(3, K, N), draw(2, 3, M, N)


def _batch_in_rows(draw: Numbers) -> Operands:
    A, B, C = (draw.permute(draw(m, 3, n), 1, 0, 2) for m, n in ((M, K), (K, N), (M, N)))
    return A, B, C


def _batch_after_columns(draw: Numbers) -> Operands:
    return draw.permute(draw(M, K, 3), 2, 0, 1), draw(3, K, N), draw(3, M, N)


def _exchanged_batch(draw: Numbers) -> Operands:
    return draw.permute(draw(3, 2, M, K), 1, 0, 2, 3), draw(2, 3, K, N), draw(2, 3, M, N)


def _every_other(draw: Numbers) -> Operands:
    return draw(6, M, K)[..., ::2, :, :], draw(3, K, N), draw(9, M, N)[..., ::3, :, :]


def _reversed(draw: Numbers, axis: int) -> Operands:
    A, B, C = (np.flip(X, axis) for X in draw.all(3) if X is not None)
    return A, B, C


def _sized(draw: Numbers, m: int, n: int, k: int, lead: tuple[int, ...]) -> Operands:
    return draw(*lead, m, k), draw(*lead, k, n), draw(*lead, m, n)


def _nan_in_c(draw: Numbers) -> Operands:
    A, B, C = draw.all()
    assert C is not None
    C[..., 3] = nan
    return A, B, C


def _converted(draw: Numbers, dtype: str) -> Operands:
    A, B, C = (np.rint(16 * X).astype(dtype) for X in draw.all() if X is not None)
    return A, B, C


_ALL = "gemm hgemm hcgemm multiply"
_IMMEDIATE = ("host", "eager", "torch", "routed", "gradient")
"""Paths of calls without plan and graph"""
_SIZES: tuple[tuple[int, int, int, tuple[int, ...], float], ...] = (
    (1, 1, 1, (), 0.0),
    (1, N, K, (), 1.0),
    (M, 1, K, (), 1.0),
    (M, N, 1, (), 1.0),
    (M, N, 0, (), 0.0),
    (M, N, 0, (), 0.5),
    (0, N, K, (), 0.5),
    (M, 0, K, (), 0.5),
    (M, N, K, (0,), 0.5),
    (M, N, K, (1,), 0.5),
    (M, N, K, (1, 3, 1), 0.5),
    (M, N, 0, (2,), 0.5),
    (1, 1, 3, (5,), 0.0),
)
_SCALARS: tuple[tuple[complex, complex, str, Sequence[str]], ...] = (
    (0.0, 1.0, "gemm hgemm hcgemm", _IMMEDIATE),
    (-0.0, 0.0, "gemm hgemm hcgemm", _IMMEDIATE),
    (nan, 0.0, "gemm hgemm hcgemm", _IMMEDIATE),
    (inf, 0.5, "gemm hgemm hcgemm", tuple(PATHS)),
    (1.0, nan, "gemm hgemm hcgemm", _IMMEDIATE),
    (1e-45, -1.0, "gemm hgemm hcgemm", tuple(PATHS)),
    (2, 1, "gemm hgemm hcgemm", tuple(PATHS)),
    (2 - 0.5j, 0.5j, "hcgemm", tuple(PATHS)),
    (complex(2.0, -0.0), 0.0, "hcgemm", tuple(PATHS)),
    (0j, complex(-0.0, 1.0), "hcgemm", tuple(PATHS)),
)
FACTS = (
    Fact("all operands are one array", _one_array, beta=0.5, groups=_ALL),
    Fact("B is the transpose of A", _transpose, groups=_ALL),
    Fact("rows that overlap", _windows, groups=_ALL),
    Fact("slices of one array", _slices, beta=-1.0, groups=_ALL),
    Fact("strides of 0", _zero_strides, beta=1.0, groups=_ALL),
    Fact("all strides 0", _all_zero_strides, beta=1.0, groups=_ALL),
    Fact("an expanded batch", _expanded_batch, beta=0.5),
    Fact("batches that broadcast", _broadcast_batch, beta=0.5),
    Fact("batch between rows and columns", _batch_in_rows, beta=0.5),
    Fact("batch after the columns", _batch_after_columns, beta=0.5),
    Fact("exchanged batch axes", _exchanged_batch, beta=0.5),
    Fact("every other matrix", _every_other, beta=0.5),
    *(
        Fact(f"reversed {name}", partial(_reversed, axis=axis), beta=0.5)
        for name, axis in (("batch", -3), ("rows", -2), ("columns", -1))
    ),
    *(
        Fact(
            f"{m}×{n}×{k}" + f" in a batch of {lead}" * bool(lead) + f", beta {beta:g}",
            partial(_sized, m=m, n=n, k=k, lead=lead),
            beta=beta,
            groups="gemm hgemm hcgemm" if lead else _ALL,
            paths=tuple(PATHS) if prod((m, n, k, *lead)) else _IMMEDIATE,
        )
        for m, n, k, lead, beta in _SIZES
    ),
    *(
        Fact(f"alpha {alpha}, beta {beta}", Numbers.all, alpha, beta, groups, paths)
        for alpha, beta, groups, paths in _SCALARS
    ),
    Fact("C with NaN that is not read", _nan_in_c, beta=-0.0, paths=("host", "eager", "graph"), unread=True),
    *(
        Fact(f"operands of {kind}", partial(_converted, dtype=kind), beta=0.5, groups="gemm", paths=("host", "eager"))
        for kind in ("float16", "float64", "int32")
    ),
)
"""All facts"""
_UNEVEN = ("batches that broadcast", "exchanged batch axes")
"""Facts by which batched kernels read a table of addresses, which a CUDA graph cannot capture"""


def of(group: str) -> list[Fact]:
    """Return the facts of a group."""
    return [fact for fact in FACTS if group.startswith(tuple(fact.groups.split()))]


class Arguments(ProductSuite):
    """Verification of every fact in `rounds` products of each group, which lie at other addresses."""

    name = "arguments"
    about = (
        "products of fpemu.gpu.gemm, batched and tallskinny by every path of a caller (options.paths), with arguments"
        " that share memory, have unusual strides, are empty or have special values, compared with the emulation. A"
        " product is a function of seed, group and number. digests: of some products, by number; facts.paths:"
        " products, outputs, mismatches and errors by path"
    )
    code = (
        *("batched", "roofline", "schemes", "simt", "torch"),
        *("gpu/batched", "gpu/errorfree", "gpu/gemm", "gpu/tallskinny"),
    )
    supported = tuple(PATHS)

    def __init__(self, seed: int = 0, rounds: int = 2, *, paths: Sequence[str] | None = None) -> None:
        super().__init__(seed, paths, rounds=rounds)
        self.rounds = rounds

    def groups(self) -> list[str]:
        return [*(f"gemm {scheme}" for scheme in SCHEMES), *_OTHERS]

    def facts(self) -> dict[str, Any]:
        return {"architecture": architecture()}

    def numbers(self, group: str) -> Sequence[int]:
        return range(self.rounds * len(of(group)))

    def case(self, group: str, number: int) -> Case:
        if group not in self.groups():
            raise unknown_name("group of products", group, self.groups())
        known = of(group)
        fact = known[number % len(known)]
        key = Draw(self.seed, "arguments", group, number).word()
        A, B, C = _operands(group, fact, key)
        skipped = len(Numbers(group, 0).first)
        lead = tuple(() if X is None else X.shape[skipped:-2] for X in (A, B, C))
        sizes = A.shape[-2], B.shape[-1], A.shape[-1]
        options = {"fact": fact.name, "group": group, "on_range": "raise", "recordable": True}
        subject: Any = Variant(group.removeprefix("gemm ")) if group.startswith("gemm") else group
        return Case(subject, number, key, sizes, lead=lead, alpha=fact.alpha, beta=fact.beta, options=options)  # type: ignore[arg-type]

    def resolve(self, case: Case) -> Case:
        if not isinstance(case.subject, Variant):
            return case
        sizes = tuple(max(n, 1) for n in case.sizes)
        chosen = Kernels().resolve(replace(case, sizes=sizes))  # type: ignore[arg-type]
        return replace(case, options={**chosen.options, **case.options, "recordable": chosen.options.get("recordable")})

    def paths_of(self, case: Case) -> list[str]:
        fact = _fact(case)
        refused = "graph" if fact.name in _UNEVEN and not case.options["group"].startswith("gemm") else None
        return [path for path in self.paths if path in fact.paths and path != refused and _runs(path, case)]

    def on_gpu(self, case: Case, path: str) -> Computed:
        group = case.options["group"]
        operands = _operands(group, _fact(case), case.key)
        lead = np.broadcast_shapes(*(shape for shape, X in zip(case.lead, operands, strict=True) if X is not None))
        numbers = Numbers(group, 0)
        shape, deferred = (*numbers.first, *lead, *case.sizes[:2]), _deferred(path, case)
        memory: dict[str, Any] = {"key": case.key, "number": case.number, "columns": "multiply" in group}
        computed = paths.run(_functions(case, path), path, operands, shape, numbers.dtype, deferred=deferred, **memory)
        if isinstance(case.subject, Variant):
            computed.kernel, computed.facts = case.options["kernel"], kernels.replay_facts(case)
        return computed

    def expected(self, case: Case, path: str, references: dict[str, Result]) -> tuple[dict[str, Result], bool | None]:
        return references, False if _deferred(path, case) else None

    def references(self, case: Case) -> dict[str, Result]:
        return {"the emulation": self._emulate(case, case.options.get("arguments", {}), products.arguments_of)}

    def replay(self, record: Record, outcome: Outcome, number: str) -> str:
        case, facts = self.case(outcome.group, int(number)), outcome.facts.get("replay", {}).get(number)
        arguments = {} if facts is None else kernels.replayed(case.subject, facts)
        instruction = {"hardware": record.facts["architecture"], "instruction": "mma"}
        return digests.text(self._emulate(case, arguments, lambda: instruction))

    def _emulate(self, case: Case, arguments: dict[str, Any], instruction: Callable[[], dict[str, Any]]) -> Array:
        group = case.options["group"]
        A, B, C = _operands(group, _fact(case), case.key)
        with np.errstate(all="ignore"):
            if group.startswith("multiply"):
                return tallskinny.emulate(
                    np.ascontiguousarray(A), np.ascontiguousarray(B), group.removeprefix("multiply ")
                )
            if group.startswith("gemm"):
                return codes(fpemu.gemm(A, B, C, alpha=case.alpha, beta=case.beta, **arguments))
            multiply: Any = partial(batched.hcgemm, **_PLANAR) if "planar" in group else batched.hgemm
            return codes(multiply(A, B, C, alpha=case.alpha, beta=case.beta, **instruction()))


@lru_cache(maxsize=2)
def _operands(group: str, fact: Fact, key: int) -> Operands:
    A, B, C = fact.operands(Numbers(group, key))
    return A, B, C if (fact.beta or fact.unread) and not group.startswith("multiply") else None


def _fact(case: Case) -> Fact:
    return next(fact for fact in FACTS if fact.name == case.options["fact"])


def _runs(path: str, case: Case) -> bool:
    """Whether a path computes products of the group and the operands of a case."""
    if isinstance(case.subject, Variant):
        return kernels._runs(path, case)
    if "plan" in path or path in ("prepared", "graph-prepared", "routed"):
        return False
    return path != "gradient" or "multiply" in case.subject or ("hgemm" in case.subject and not case.beta)


def _deferred(path: str, case: Case) -> bool:
    """Whether a call leaves the overflow policy out."""
    return isinstance(case.subject, Variant) and kernels._policy(case, path) is None


def _functions(case: Case, path: str) -> Functions:
    """The functions by which a caller computes the product of a case."""
    if isinstance(case.subject, Variant):
        return kernels._functions(case, kernels._policy(case, path))
    if case.options["group"].startswith("multiply"):
        return tallskinny.functions()
    planar = "planar" in case.subject
    name, layout = ("hcgemm", _PLANAR) if planar else ("hgemm", {})
    given: dict[str, Any] = {"alpha": case.alpha, "beta": case.beta, **layout}
    return Functions(
        lambda A, B, C, **out: getattr(products, name)(A, B, C, **given, **out),
        operator=lambda A, B, C: getattr(fpemu.torch, name)(A, B, C, **given),
    )
