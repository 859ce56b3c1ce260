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
from fpemu.verification.kernels import Variant
from fpemu.verification.paths import PATHS, WITHOUT_PLAN, Call
from fpemu.verification.suite import Group, ProductSuite

SCHEMES = ("staged", "ootomo", "bf16x9", "sgemm", "staged-int8", "ozaki")
_OTHERS = {"hgemm": np.float16, "hcgemm planar": np.float16, "multiply fp32": np.float32, "multiply fp64": np.float64}
_PLANAR: dict[str, Any] = {"layout": "planar", "algorithm": "fused"}
M, N, K = 19, 23, 40


Numbers = Callable[..., Array]
"""Draws an array of a shape"""


def _first(group: str) -> tuple[int, ...]:
    """Axes before those of a product: real and imaginary parts."""
    return (2,) if "planar" in group else ()


def _dtype(group: str) -> Any:
    return np.dtype(_OTHERS.get(group, np.float64 if group == "gemm ozaki" else np.float32))


def _expand(x: Array, *shape: int) -> Array:
    """Broadcast the last axes by strides of 0."""
    return np.broadcast_to(x, (*x.shape[: -len(shape)], *shape))


def _drawn(draw: Numbers, rows: int, columns: int) -> Array:
    return draw(rows, columns)


@dataclass(frozen=True)
class View:
    """A property of the arguments: a function that returns each operand of so many rows and columns, or all three."""

    name: str
    each: Callable[[Numbers, int, int], Array] = _drawn
    beta: complex = 0.5  # C is left out where it is 0, unless `unread`
    groups: str = "gemm hgemm hcgemm"  # beginnings of the names of the groups that accept it
    paths: Sequence[str] = tuple(PATHS)  # that accept it
    alpha: complex = 1.0
    sizes: tuple[int, int, int] = (M, N, K)
    whole: Callable[[Numbers], Operands] | None = None
    unread: bool = False  # C is passed and not read


def _one_array(draw: Numbers) -> Operands:
    A = draw(33, 33)
    return A, A, A


def _transpose(draw: Numbers) -> Operands:
    A = draw(M, K)
    return A, A.swapaxes(-1, -2), draw(M, M)


def _slices(draw: Numbers) -> Operands:
    wide = draw(K + 7, K + N)
    return wide[..., :M, 3 : 3 + K], wide[..., 5 : 5 + K, K:], wide[..., 2 : 2 + M, 1 : 1 + N]


def _broadcast(draw: Numbers) -> Operands:
    return draw(2, 1, M, K), draw(3, K, N), draw(2, 3, M, N)


def _overlapping(draw: Numbers, m: int, n: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(draw(m + n), n + 1, -1)[..., :n]


def _long_stride(draw: Numbers, m: int, n: int) -> Array:
    x = draw(1, m, n)  # no element is multiplied by the stride of its one matrix, which exceeds 32 bits
    strides = (*x.strides[:-3], 2**34, *x.strides[-2:])
    return np.lib.stride_tricks.as_strided(x, x.shape, strides)


def _with_nan(draw: Numbers, m: int, n: int) -> Array:
    x = draw(m, n)
    if (m, n) == (M, N):  # C
        x[..., 3] = nan
    return x


_ALL = "gemm hgemm hcgemm multiply"
_IMMEDIATE = ("host", "eager", "torch")
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
_SCALARS: tuple[tuple[complex, complex, Sequence[str]], ...] = (
    (0.0, 1.0, _IMMEDIATE),
    (-0.0, 0.0, _IMMEDIATE),
    (nan, 0.0, _IMMEDIATE),
    (inf, 0.5, tuple(PATHS)),
    (1.0, nan, _IMMEDIATE),
    (1e-45, -1.0, tuple(PATHS)),
    (2, 1, tuple(PATHS)),
    (2 - 0.5j, 0.5j, tuple(PATHS)),
    (complex(2.0, -0.0), 0.0, tuple(PATHS)),
    (0j, complex(-0.0, 1.0), tuple(PATHS)),
)
VIEWS = (
    View("all operands are one array", groups=_ALL, whole=_one_array),
    View("B is the transpose of A", groups=_ALL, whole=_transpose),
    View("slices of one array", groups=_ALL, whole=_slices, beta=-1.0),
    View("rows that overlap", _overlapping, groups=_ALL),
    View("row strides of 0", lambda x, m, n: _expand(x(1, n), m, n), groups=_ALL),
    View("column strides of 0", lambda x, m, n: _expand(x(m, 1), m, n), groups=_ALL),
    View("all strides 0", lambda x, m, n: _expand(x(1, 1), m, n), groups=_ALL),
    View("an expanded batch", lambda x, m, n: _expand(x(1, m, n), 3, m, n)),
    View("batches that broadcast", whole=_broadcast),
    View("batch between rows and columns", lambda x, m, n: x(m, 3, n).swapaxes(-3, -2)),
    View("batch after the columns", lambda x, m, n: np.moveaxis(x(m, n, 3), -1, -3)),
    View("exchanged batch axes", lambda x, m, n: x(3, 2, m, n).swapaxes(-4, -3)),
    View("every other matrix", lambda x, m, n: x(6, m, n)[..., ::2, :, :]),
    View("gaps between matrices", lambda x, m, n: x(3, m + 1, n)[..., :-1, :]),
    View("a long stride of one matrix", _long_stride),
    View("reversed batch", lambda x, m, n: np.flip(x(3, m, n), -3)),
    View("reversed rows", lambda x, m, n: np.flip(x(3, m, n), -2)),
    View("reversed columns", lambda x, m, n: np.flip(x(3, m, n), -1)),
    *(
        View(
            f"{m}×{n}×{k}" + f" in a batch of {lead}" * bool(lead) + f", beta {beta:g}",
            lambda x, rows, columns, lead=lead: x(*lead, rows, columns),  # type: ignore[misc]
            beta,
            "gemm hgemm hcgemm" if lead else _ALL,
            tuple(PATHS) if prod((m, n, k, *lead)) else _IMMEDIATE,
            sizes=(m, n, k),
        )
        for m, n, k, lead, beta in _SIZES
    ),
    *(
        View(
            f"alpha {alpha}, beta {beta}",
            beta=beta,
            groups="hcgemm" if isinstance(alpha, complex) else "gemm hgemm hcgemm",
            paths=accepted,
            alpha=alpha,
        )
        for alpha, beta, accepted in _SCALARS
    ),
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


def operands(group: str, view: View, key: int) -> Operands:
    """Return A, B and C of a product; C is None where it is left out."""
    rng, first, (m, n, k) = np.random.default_rng(key), _first(group), view.sizes

    def draw(*shape: int) -> Array:
        return rng.uniform(-1, 1, prod(first + shape)).astype(_dtype(group)).reshape(first + shape)

    A, B, C = view.whole(draw) if view.whole else (view.each(draw, *s) for s in ((m, k), (k, n), (m, n)))
    return A, B, C if (view.beta or view.unread) and not group.startswith("multiply") else None


@dataclass
class Arguments(ProductSuite):
    """Verification of every view in `rounds` products of each group, which lie at other addresses."""

    name = "arguments"
    about = (
        "products with arguments that share memory, have unusual strides, are empty or have special values, compared"
        " with the emulation. counts: outputs by path. digests: of some products, by number"
    )
    supported = tuple(PATHS)

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
        A, B, C = operands(group, view, key)
        lead: Any = tuple(() if X is None else X.shape[len(_first(group)) : -2] for X in (A, B, C))
        sizes = A.shape[-2], B.shape[-1], A.shape[-1]
        subject = Variant(group.removeprefix("gemm ")) if group.startswith("gemm") else group
        options = {"view": view.name, "group": group, "on_range": "raise"}
        return Case(subject, number, key, sizes, lead=lead, alpha=view.alpha, beta=view.beta, options=options)

    def product(self, case: Case, hardware: Any, recorded: Any = None) -> Call:
        group, view = case.options["group"], _view(case)
        given = operands(group, view, case.key)
        if isinstance(case.subject, Variant):
            product = kernels.product(case, hardware, recorded, given)
            if isinstance(error := product.emulate(), str):
                raise InputError(error)  # every view is valid
            product.paths = [path for path in product.paths if path in view.paths]
            return product
        zeros = np.zeros((*_first(group), *case.shape), _dtype(group))
        like = arrange(zeros, ("rows", "rows padded")[case.number % 2])
        function, options = "tallskinny.multiply", dict[str, Any]()
        emulation: dict[str, Any] = {"fmt": group.rpartition(" ")[2]}
        if "multiply" not in group:
            function = "batched.hcgemm" if "planar" in group else "batched.hgemm"
            options = {"alpha": case.alpha, "beta": case.beta, **(_PLANAR if "planar" in group else {})}
            emulation = {**options, "hardware": hardware, "instruction": "mma"}
        captured = view.name not in _UNEVEN
        by = [path for path in WITHOUT_PLAN if path in view.paths and (captured or path != "graph")]
        return Call(case, function, given, like, options, emulation, paths=by)


def _view(case: Case) -> View:
    return next(view for view in VIEWS if view.name == case.options["view"])
