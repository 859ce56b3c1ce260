"""``fpemu verify arguments``: arguments of unusual memory, sizes and scalars, by every path of a caller.

A view is a property of the arguments on which kernels may depend: operands that share memory, strides of 0, a batch
within the rows, empty sizes, special values of alpha and beta. A group computes small products for every view that its
function accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan, prod
from typing import Any

import numpy as np

from fpemu.errors import InputError, unknown_name
from fpemu.verification import kernels
from fpemu.verification.cases import Array, Case, Draw, Operands, arrange
from fpemu.verification.paths import PATHS, WITHOUT_PLAN, Call
from fpemu.verification.suite import Group, ProductSuite

SCHEMES = ("staged", "ootomo", "bf16x9", "sgemm", "staged-int8", "ozaki")
_OTHERS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "hgemm": ("batched.hgemm", np.float16, {}),
    "hcgemm planar": ("batched.hcgemm", np.float16, {"layout": "planar", "algorithm": "fused"}),
    "multiply fp32": ("tallskinny.multiply", np.float32, {}),
    "multiply fp64": ("tallskinny.multiply", np.float64, {}),
}
"""Function, dtype and options of the groups without a scheme"""
M, N, K = 19, 23, 40
_GEMM = "gemm hgemm hcgemm"
_ALL = f"{_GEMM} multiply"
_ANY = tuple(PATHS)
_windows = np.lib.stride_tricks.sliding_window_view
_IMMEDIATE = ("host", "eager", "torch")
"""Paths of calls without plan and graph"""


@dataclass(frozen=True)
class View:
    """A property of the arguments: a function that returns each operand of so many rows and columns, or all three.

    The functions receive a function that draws an array of a shape.
    """

    name: str
    each: Callable[[Any, int, int], Array] = lambda x, m, n: x(m, n)
    beta: complex = 0.5  # C is left out where it is 0, unless `unread`
    groups: str = _GEMM  # beginnings of the names of the groups that accept it
    paths: Sequence[str] = _ANY  # that accept it
    alpha: complex = 1.0
    sizes: tuple[int, int, int] = (M, N, K)
    whole: Callable[[Any], Operands] | None = None
    unread: bool = False  # C is passed and not read

    def operands(self, group: str, key: int) -> Operands:
        """Return A, B and C of a product; C is None where it is left out."""
        rng, first, (m, n, k) = np.random.default_rng(key), _first(group), self.sizes
        dtype = _OTHERS[group][1] if group in _OTHERS else np.float64 if group == "gemm ozaki" else np.float32

        def draw(*shape: int) -> Array:
            return rng.uniform(-1, 1, prod(first + shape)).astype(dtype).reshape(first + shape)

        A, B, C = self.whole(draw) if self.whole else (self.each(draw, *s) for s in ((m, k), (k, n), (m, n)))
        return A, B, C if (self.beta or self.unread) and not group.startswith("multiply") else None


def _first(group: str) -> tuple[int, ...]:
    """Axes before those of a product: real and imaginary parts."""
    return (2,) if "planar" in group else ()


def _expand(x: Array, *shape: int) -> Array:
    """Broadcast the last axes by strides of 0."""
    return np.broadcast_to(x, (*x.shape[: -len(shape)], *shape))


def _transpose(x: Any) -> Operands:
    A = x(M, K)
    return A, A.swapaxes(-1, -2), x(M, M)


def _slices(x: Any) -> Operands:
    wide = x(K + 7, K + N)
    return wide[..., :M, 3 : 3 + K], wide[..., 5 : 5 + K, K:], wide[..., 2 : 2 + M, 1 : 1 + N]


def _long_stride(x: Any, m: int, n: int) -> Array:
    one = x(1, m, n)  # no element is multiplied by the stride of its one matrix, which exceeds 32 bits
    strides = (*one.strides[:-3], 2**34, *one.strides[-2:])
    return np.lib.stride_tricks.as_strided(one, one.shape, strides)


def _with_nan(x: Any, m: int, n: int) -> Array:
    drawn = x(m, n)
    if (m, n) == (M, N):  # C
        drawn[..., 3] = nan
    return drawn


def _sized(m: int, n: int, k: int, lead: tuple[int, ...], beta: float) -> View:
    name = f"{m}×{n}×{k}" + f" in a batch of {lead}" * bool(lead) + f", beta {beta:g}"
    paths = _ANY if prod((m, n, k, *lead)) else _IMMEDIATE
    return View(name, lambda x, *s: x(*lead, *s), beta, _GEMM if lead else _ALL, paths, sizes=(m, n, k))


def _scaled(alpha: complex, beta: complex, paths: Sequence[str]) -> View:
    groups = "hcgemm" if isinstance(alpha, complex) else _GEMM
    return View(f"alpha {alpha}, beta {beta}", beta=beta, groups=groups, paths=paths, alpha=alpha)


VIEWS = (
    View("all operands are one array", groups=_ALL, whole=lambda x: (x(33, 33),) * 3),
    View("B is the transpose of A", groups=_ALL, whole=_transpose),
    View("slices of one array", groups=_ALL, whole=_slices, beta=-1.0),
    View("rows that overlap", lambda x, m, n: _windows(x(m + n), n + 1, -1)[..., :n], groups=_ALL),
    View("row strides of 0", lambda x, m, n: _expand(x(1, n), m, n), groups=_ALL),
    View("column strides of 0", lambda x, m, n: _expand(x(m, 1), m, n), groups=_ALL),
    View("all strides 0", lambda x, m, n: _expand(x(1, 1), m, n), groups=_ALL),
    View("an expanded batch", lambda x, m, n: _expand(x(1, m, n), 3, m, n)),
    View("batches that broadcast", whole=lambda x: (x(2, 1, M, K), x(3, K, N), x(2, 3, M, N))),
    View("batch between rows and columns", lambda x, m, n: x(m, 3, n).swapaxes(-3, -2)),
    View("batch after the columns", lambda x, m, n: np.moveaxis(x(m, n, 3), -1, -3)),
    View("exchanged batch axes", lambda x, m, n: x(3, 2, m, n).swapaxes(-4, -3)),
    View("every other matrix", lambda x, m, n: x(6, m, n)[..., ::2, :, :]),
    View("gaps between matrices", lambda x, m, n: x(3, m + 1, n)[..., :-1, :]),
    View("a long stride of one matrix", _long_stride),
    View("reversed batch", lambda x, m, n: np.flip(x(3, m, n), -3)),
    View("reversed rows", lambda x, m, n: np.flip(x(3, m, n), -2)),
    View("reversed columns", lambda x, m, n: np.flip(x(3, m, n), -1)),
    _sized(1, 1, 1, (), 0.0),
    _sized(1, N, K, (), 1.0),
    _sized(M, 1, K, (), 1.0),
    _sized(M, N, 1, (), 1.0),
    _sized(M, N, 0, (), 0.0),
    _sized(M, N, 0, (), 0.5),
    _sized(0, N, K, (), 0.5),
    _sized(M, 0, K, (), 0.5),
    _sized(M, N, K, (0,), 0.5),
    _sized(M, N, K, (1,), 0.5),
    _sized(M, N, K, (1, 3, 1), 0.5),
    _sized(M, N, 0, (2,), 0.5),
    _sized(1, 1, 3, (5,), 0.0),
    _scaled(0.0, 1.0, _IMMEDIATE),
    _scaled(-0.0, 0.0, _IMMEDIATE),
    _scaled(nan, 0.0, _IMMEDIATE),
    _scaled(inf, 0.5, _ANY),
    _scaled(1.0, nan, _IMMEDIATE),
    _scaled(1e-45, -1.0, _ANY),
    _scaled(2, 1, _ANY),
    _scaled(2 - 0.5j, 0.5j, _ANY),
    _scaled(complex(2.0, -0.0), 0.0, _ANY),
    _scaled(0j, complex(-0.0, 1.0), _ANY),
    View("C with NaN that is not read", _with_nan, -0.0, paths=("host", "eager", "graph"), unread=True),
    *(
        View(
            f"operands of {kind}",
            lambda x, m, n, kind=kind: np.rint(16 * x(m, n)).astype(kind),  # type: ignore[misc]
            groups="gemm",
            paths=("host", "eager"),
        )
        for kind in ("float16", "float64", "int32")
    ),
)
"""All views"""
_UNEVEN = ("batches that broadcast", "exchanged batch axes")
"""Views by which batched kernels read a table of addresses, which a CUDA graph cannot capture"""


def of(group: str) -> list[View]:
    """Return the views of a group."""
    return [view for view in VIEWS if group.startswith(tuple(view.groups.split()))]


@dataclass
class Arguments(ProductSuite):
    """Verification of every view in `rounds` products of each group, which lie at other addresses."""

    name = "arguments"
    about = (
        "products with arguments that share memory, have unusual strides, are empty or have special values, compared"
        " with the emulation. counts: outputs by path. digests: of some products, by number"
    )
    supported = _ANY

    decisive = ("rounds",)
    rounds: int = 2

    @cached_property
    def groups(self) -> dict[str, Group]:
        names = [*(f"gemm {scheme}" for scheme in SCHEMES), *_OTHERS]
        return {name: Group(range(self.rounds * len(of(name)))) for name in names}

    def case(self, group: str, number: int) -> Case:
        if group not in self.groups:
            raise unknown_name("group of products", group, self.groups)
        view = of(group)[number % len(of(group))]
        key = Draw(self.seed, "arguments", group, number).word()
        A, B, C = view.operands(group, key)
        lead: Any = tuple(() if X is None else X.shape[len(_first(group)) : -2] for X in (A, B, C))
        subject = group if group in _OTHERS else kernels.Variant(group.removeprefix("gemm "))
        options = {"view": view.name, "group": group, "on_range": "raise"}
        sizes = A.shape[-2], B.shape[-1], A.shape[-1]
        return Case(subject, number, key, sizes, lead=lead, alpha=view.alpha, beta=view.beta, options=options)

    def product(self, case: Case, hardware: Any, recorded: Any = None) -> Call:
        group = case.options["group"]
        view = next(view for view in of(group) if view.name == case.options["view"])
        given = view.operands(group, case.key)
        if group not in _OTHERS:
            product = kernels.product(case, hardware, recorded, given)
            if isinstance(error := product.emulate(), str):
                raise InputError(error)  # every view is valid
            product.paths = [path for path in product.paths if path in view.paths]
            return product
        function, dtype, options = _OTHERS[group]
        like = arrange(np.zeros((*_first(group), *case.shape), dtype), ("rows", "rows padded")[case.number % 2])
        emulation: dict[str, Any] = {"fmt": group.rpartition(" ")[2]}
        if function.startswith("batched"):
            options = {"alpha": case.alpha, "beta": case.beta, **options}
            emulation = {**options, "hardware": hardware, "instruction": "mma"}
        captured = view.name not in _UNEVEN
        by = [path for path in WITHOUT_PLAN if path in view.paths and (captured or path != "graph")]
        return Call(case, function, given, like, options, emulation, paths=by)
