"""The operators `torch.ops.fpemu`: kernels of the CPU and of CUDA, shapes for tracing, gradients, and their calls.

A call's options are one string, a literal of Python, so that an operator's schema is the same for every scheme, and a
traced graph holds all that a product depends on.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpemu import batched as emulated
from fpemu import schemes, simt
from fpemu.batched import scaling
from fpemu.batched.layouts import axis_of
from fpemu.errors import InputError, shown
from fpemu.formats import FP64
from fpemu.gpu import batched as gpu_batched
from fpemu.gpu import gemm as gpu_gemm
from fpemu.gpu import tallskinny
from fpemu.gpu.batched import stacks
from fpemu.gpu.gemm.choice import NoKernelError, find
from fpemu.gpu.runtime import matrices
from fpemu.gpu.tallskinny import problem
from fpemu.mma.order import KOrder
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import order_of
from fpemu.schemes import ranges
from fpemu.schemes.base import build
from fpemu.schemes.call import configure
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.ranges import OverflowPolicy

Shape = tuple[int, ...]
_DEFAULT_GPU = "H200"
_PLAIN = (str, int, float, bool, tuple, list, type(None))
_OF_THE_CALL = ("on_range", "order", "hardware", "algorithm")  # all others are of the scheme
_below_autograd, _any_requires_grad = torch._C._AutoDispatchBelowAutograd, torch._C._any_requires_grad
_compiling, _grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled

library = torch.library.Library("fpemu", "DEF")
for _schema in (
    "gemm(Tensor A, Tensor B, Tensor? C, str scheme, float alpha=1.0, float beta=0.0, str options='') -> Tensor",
    "batched(Tensor A, Tensor B, Tensor? C, Scalar alpha=1.0, Scalar beta=0.0, str? layout=None, str options='') "
    "-> Tensor",
    "tallskinny(Tensor A, Tensor B) -> Tensor",
):
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
_GEMM, _BATCHED, _TALLSKINNY = (getattr(torch.ops.fpemu, _name).default for _name in ("gemm", "batched", "tallskinny"))


# --- calls
def gemm(A: Any, B: Any, C: Any, scheme: Any, alpha: Any, beta: Any, options: dict[str, Any]) -> Any:
    """`fpemu.torch.gemm`."""
    scheme, text = request(scheme, options)
    return product(A, B, C, scheme, alpha, beta, text)


def product(A: Any, B: Any, C: Any, scheme: str, alpha: Any, beta: Any, options: str) -> Any:
    """Return alpha · A B + beta · C by a scheme, from `request`."""
    return _call(_GEMM, A, B, (C, scheme, _real(alpha, "alpha"), _real(beta, "beta"), options))


def batched(A: Any, B: Any, C: Any, alpha: Any, beta: Any, layout: Any, options: dict[str, Any]) -> Any:
    """`fpemu.torch.hgemm` and, with a layout, `fpemu.torch.hcgemm`."""
    number = _real if layout is None else _complex
    return _call(_BATCHED, A, B, (C, number(alpha, "alpha"), number(beta, "beta"), layout, literal(options)))


def multiply(A: Any, B: Any) -> Any:
    """`fpemu.torch.multiply`."""
    return _call(_TALLSKINNY, A, B, ())


def _call(operator: Any, A: Any, B: Any, rest: tuple[Any, ...]) -> Any:
    """Call an operator, without its autograd kernel, which doubles the time of a call, if no gradient is needed."""
    C = rest[0] if rest else None
    if not (isinstance(A, Tensor) and isinstance(B, Tensor) and (C is None or isinstance(C, Tensor))):
        name, X = next((n, X) for n, X in (("A", A), ("B", B), ("C", C)) if not isinstance(X, Tensor))
        raise InputError(f"{name} is a {type(X).__name__}: pass a torch tensor")
    if _compiling() or (_grad_enabled() and _any_requires_grad(A, B, C)):
        return operator(A, B, *rest)
    with _below_autograd():
        return operator(A, B, *rest)


def request(scheme: Any, options: dict[str, Any]) -> tuple[str, str]:
    """Return the name of a scheme, and its options with those of the call as a literal."""
    if isinstance(scheme, str):
        return scheme, literal(options)
    chosen = schemes.get(scheme)
    defaults = {option.name: option.default for option in chosen.info.options}
    own = {name: getattr(chosen, name) for name in defaults if getattr(chosen, name) != defaults[name]}
    return chosen.name, literal(options | own)


def literal(options: dict[str, Any]) -> str:
    """Return options as a literal of Python that `read` evaluates, without those of the call that are None."""
    given = [(name, value) for name, value in options.items() if value is not None or name not in _OF_THE_CALL]
    items = [f"{name!r}: {_plain(name, value)!r}" for name, value in given]
    return "{" + ", ".join(items) + "}" if items else ""


def _plain(name: str, value: Any) -> Any:
    """A value whose text is a literal."""
    if value.__class__ in _PLAIN:
        return value
    if name == "order":
        return to_dict(order_of(value))
    value = value.item() if isinstance(value, np.generic) else getattr(value, "value", value)
    if value.__class__ not in _PLAIN:
        raise InputError(f"{name} = {shown(value)} is no number, string or tuple")
    return value


@lru_cache(maxsize=1024)
def read(text: str) -> dict[str, Any]:
    """Return the options of a literal, which must not be changed."""
    if not text:
        return {}
    try:
        options = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise InputError(f"options = {shown(text)} is no literal of Python: pass numbers, strings and tuples") from None
    if not isinstance(options, dict):
        raise InputError(f"options = {shown(text)} must be a dict by name")
    if "order" in options:
        options["order"] = from_dict(options["order"])
    return options


def _real(value: Any, name: str) -> float:
    if isinstance(value, float):
        return value
    return float(value if type(value) is int else ranges.scalar(value, name, FP64))


def _complex(value: Any, name: str) -> float | complex:
    if isinstance(value, float | complex):
        return value
    re, im = scaling.complex_scalar(value, name, FP64)
    return complex(re, im) if im else float(re)


# --- kernels
def _gemm_cuda(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: float = 1.0, beta: float = 0.0, options: str = ""
) -> Tensor:
    a, b, c = _bare(A), _bare(B), None if C is None else _bare(C)
    return gpu_gemm(a, b, c, scheme=scheme, alpha=alpha, beta=beta, **read(options))


def _gemm_cpu(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: float = 1.0, beta: float = 0.0, options: str = ""
) -> Tensor:
    a: Any
    b: Any
    a, b, c = (None if X is None else matrices.take(X, name) for name, X in (("A", A), ("B", B), ("C", C)))
    given = read(options)
    if schemes.get(scheme).needs_hardware:
        given = {"hardware": _DEFAULT_GPU} | given
        if a.ndim > 1 and b.ndim > 1:
            given["order"] = _order(scheme, options, a.shape[-2], b.shape[-1], a.shape[-1])
    return _tensor(schemes.gemm(a, b, c, scheme=scheme, alpha=alpha, beta=beta, **given))


@lru_cache(maxsize=1024)
def _order(scheme: str, options: str, M: int, N: int, K: int) -> KOrder | None:
    """The order over K of the kernel that runs a product on a GPU; None: the scheme's."""
    given = {"hardware": _DEFAULT_GPU} | read(options)
    hardware, order = given.pop("hardware"), given.pop("order", None)
    given.pop("on_range", None)
    chosen = configure(scheme, hardware, OverflowPolicy.PROPAGATE, order, given)
    if order is not None or chosen.spec is None or isinstance(chosen.scheme, ErrorFree) or min(M, N, K) < 1:
        return order
    try:
        return find(chosen.scheme, chosen.spec, (M, N, K), None).order
    except NoKernelError:
        return None


def _batched_cuda(
    A: Tensor,
    B: Tensor,
    C: Tensor | None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    layout: str | None = None,
    options: str = "",
) -> Tensor:
    a, b, c = _bare(A), _bare(B), None if C is None else _bare(C)
    given = read(options)
    if "hardware" in given:
        raise InputError(f"hardware={given['hardware']!r} is for tensors of the CPU: leave it out for those of a GPU")
    if layout is None:
        return gpu_batched.hgemm(a, b, c, alpha=alpha, beta=beta, **given)
    return gpu_batched.hcgemm(a, b, c, alpha=alpha, beta=beta, layout=layout, **given)


def _batched_cpu(
    A: Tensor,
    B: Tensor,
    C: Tensor | None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    layout: str | None = None,
    options: str = "",
) -> Tensor:
    a, b, c = (None if X is None else stacks.take(X, name) for name, X in (("A", A), ("B", B), ("C", C)))
    given: dict[str, Any] = {"alpha": alpha, "beta": beta, **read(options)}
    if given.get("kernel", "tensor") == "tensor":
        given = {"hardware": _DEFAULT_GPU, "instruction": "mma"} | given
    if layout is None:
        return _tensor(emulated.hgemm(a, b, c, **given))
    given["layout"] = layout
    return _tensor(emulated.hcgemm(a, b, c, **given))


def _tallskinny_cuda(A: Tensor, B: Tensor) -> Tensor:
    return tallskinny.multiply(_bare(A), _bare(B))


def _tallskinny_cpu(A: Tensor, B: Tensor) -> Tensor:
    a, b = matrices.take(A, "A"), matrices.take(B, "B")
    dtype, _ = problem.checked(a, b)
    return _tensor(simt.tsm2(a, b, fmt=problem.REALS[dtype.name]))


def _bare(X: Tensor) -> Tensor:
    """The tensor itself in place of a parameter, so that `fpemu.gpu` can repeat its recorded kernels."""
    return X if X.__class__ is Tensor else X.detach()


def _tensor(D: Any) -> Tensor:
    return torch.from_numpy(np.require(D, requirements=["C", "W"]))


# --- shapes
def _gemm_shape(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: float = 1.0, beta: float = 0.0, options: str = ""
) -> Tensor:
    shape = _shape(A.shape, B.shape, None if C is None or not beta else C.shape)
    return A.new_empty(shape, dtype=dtype(scheme, options))


def _batched_shape(
    A: Tensor,
    B: Tensor,
    C: Tensor | None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    layout: str | None = None,
    options: str = "",
) -> Tensor:
    given, axis = read(options), None if layout is None else axis_of(layout)
    a, b = (_matrix_shape(X.shape, axis, given.get(name, "N")) for X, name in ((A, "transa"), (B, "transb")))
    shape = _shape(a, b, None)
    return A.new_empty(shape if axis is None else (2, *shape) if axis == 0 else (*shape, 2))


def _tallskinny_shape(A: Tensor, B: Tensor) -> Tensor:
    return A.new_empty(_shape(A.shape, B.shape, None))


def _shape(a: Sequence[int], b: Sequence[int], c: Sequence[int] | None) -> Shape:
    """The shape of D, with the batch axes of C."""
    for name, shape in (("A", a), ("B", b), ("C", c)):
        if shape is not None and len(shape) < 2:
            raise InputError(f"{name} must be a matrix (..., rows, columns), not of shape {tuple(shape)}")
    if a[-1] != b[-2]:
        raise InputError(f"A of shape {tuple(a)} and B of shape {tuple(b)} do not fit")
    batch = [shape[:-2] for shape in (a, b, c) if shape is not None]
    return (*torch.broadcast_shapes(*batch), a[-2], b[-1])


def _matrix_shape(shape: Sequence[int], axis: int | None, transpose: str) -> Sequence[int]:
    """The shape of a transposed operand, without the axis of real and imaginary parts."""
    if axis is not None:
        shape = shape[1:] if axis == 0 else shape[:-1]
    return shape if transpose.upper() == "N" or len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2])


@torch.compiler.assume_constant_result
def dtype(scheme: str, options: str) -> torch.dtype:
    """Return the dtype of a scheme's operands and result."""
    return _dtype(scheme, options)


@lru_cache(maxsize=256)
def _dtype(scheme: str, options: str) -> torch.dtype:
    chosen = build(scheme, {name: value for name, value in read(options).items() if name not in _OF_THE_CALL})
    return getattr(torch, chosen.operand.dtype.name)


# --- gradients
def _saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    A, B, C, *ctx.request = inputs if len(inputs) > 2 else (*inputs, None)
    ctx.save_for_backward(A, B)
    ctx.addend = None if C is None else (C.shape, C.dtype)


def _gemm_gradients(ctx: Any, dD: Tensor) -> tuple[Any, ...]:
    A, B = ctx.saved_tensors
    scheme, alpha, beta, options = ctx.request

    def product(X: Tensor, Y: Tensor, like: Tensor) -> Tensor:
        D = _GEMM(*_summed(X, Y, like.shape), None, scheme, alpha, 0.0, options)
        return D.reshape(like.shape).to(like.dtype)

    dA = product(dD, B.mT, A) if ctx.needs_input_grad[0] else None
    dB = product(A.mT, dD, B) if ctx.needs_input_grad[1] else None
    dC = None
    if ctx.needs_input_grad[2] and beta:
        shape, kind = ctx.addend
        dC = (dD if beta == 1 else beta * dD).sum_to_size(shape).to(kind)
    return dA, dB, dC, None, None, None, None


def _batched_gradients(ctx: Any, dD: Tensor) -> tuple[Any, ...]:
    """Gradients of products P Q of op(A) and op(B): dP = dD Q* and dQ = P* dD, with adjoints of complex matrices."""
    A, B = ctx.saved_tensors
    alpha, beta, layout, options = ctx.request
    fixed = 0 if layout is None else 1
    given = dict(read(options))
    transposes = [given.pop(name, "N").upper() for name in ("transa", "transb")]
    plain, last = literal(given), layout is not None and axis_of(layout) != 0
    a, b, d = (_parts_first(X, last) for X in (A, B, dD))
    P, Q = (_transposed(X, t, fixed) for X, t in zip((a, b), transposes, strict=True))

    def product(X: Tensor, Y: Tensor, like: Tensor, transpose: str) -> Tensor:
        X, Y = (_parts_last(Z, last) for Z in _summed(X, Y, like.shape, fixed))
        D = _BATCHED(X, Y, None, alpha.conjugate(), 0.0, layout, plain)
        return _parts_last(_transposed(_parts_first(D, last).reshape(like.shape), transpose, fixed), last)

    dA = product(d, _transposed(Q, "C", fixed), P, transposes[0]) if ctx.needs_input_grad[0] else None
    dB = product(_transposed(P, "C", fixed), d, Q, transposes[1]) if ctx.needs_input_grad[1] else None
    dC = None
    if ctx.needs_input_grad[2] and beta:
        re, im = beta.real, beta.imag
        scaled = torch.stack((re * d[0] + im * d[1], re * d[1] - im * d[0])) if im else d if re == 1 else re * d
        shape, _ = ctx.addend
        shape = (2, *shape[:-1]) if last else shape
        dC = _parts_last(scaled.sum_to_size(_aligned(shape, d.dim(), fixed)).reshape(shape), last)
    return dA, dB, dC, None, None, None, None


def _tallskinny_gradients(ctx: Any, dD: Tensor) -> tuple[Any, ...]:
    A, B = ctx.saved_tensors
    dA = _TALLSKINNY(dD, B.mT) if ctx.needs_input_grad[0] else None
    return dA, _TALLSKINNY(A.mT, dD) if ctx.needs_input_grad[1] else None


def _parts_first(X: Tensor, last: bool) -> Tensor:
    """X with the axis of real and imaginary parts, if it is the last one, first."""
    return X.movedim(-1, 0) if last else X


def _parts_last(X: Tensor, last: bool) -> Tensor:
    """The inverse of `_parts_first`."""
    return X.movedim(0, -1) if last else X


def _transposed(X: Tensor, transpose: str, parts: int) -> Tensor:
    """X ("N"), its transpose ("T") or its adjoint ("C"); parts: 1 if the first axis is of real and imaginary parts."""
    if transpose == "N":
        return X
    return (torch.stack((X[0], -X[1])) if parts and transpose == "C" else X).mT


def _aligned(shape: Sequence[int], rank: int, fixed: int) -> Shape:
    """A shape with axes of length 1 after the first `fixed` axes, `rank` in all."""
    return (*shape[:fixed], *(1,) * (rank - len(shape)), *shape[fixed:])


def _summed(X: Tensor, Y: Tensor, shape: Sequence[int], fixed: int = 0) -> tuple[Tensor, Tensor]:
    """Operands whose product is X Y summed over the batch axes along which `shape` was broadcast.

    These axes become the outer part of the inner dimension, so that the sums are those of the product.
    """
    rank = max(X.dim(), Y.dim())
    X, Y = (Z.reshape(_aligned(Z.shape, rank, fixed)) for Z in (X, Y))
    n, full, kept = rank - 2, torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), _aligned(shape, rank, fixed)
    over = [i for i in range(n) if kept[i] == 1 and full[i] != 1]
    if not over:
        return X, Y
    others = [i for i in range(n) if i not in over]
    X, Y = (Z.expand(*(full[i] if i in over else Z.shape[i] for i in range(n)), *Z.shape[-2:]) for Z in (X, Y))
    X = X.permute(*others, n, *over, n + 1).flatten(len(others) + 1)
    return X, Y.permute(*others, *over, n, n + 1).flatten(len(others), -2)


# --- registration
for _name, _operator, _cpu, _cuda, _fake, _gradients in (
    ("gemm", _GEMM, _gemm_cpu, _gemm_cuda, _gemm_shape, _gemm_gradients),
    ("batched", _BATCHED, _batched_cpu, _batched_cuda, _batched_shape, _batched_gradients),
    ("tallskinny", _TALLSKINNY, _tallskinny_cpu, _tallskinny_cuda, _tallskinny_shape, _tallskinny_gradients),
):
    library.impl(_name, _cpu, "CPU")
    library.impl(_name, _cuda, "CUDA")
    torch.library.register_fake(_operator, _fake, lib=library)
    torch.library.register_autograd(_operator, _gradients, setup_context=_saved, lib=library)
