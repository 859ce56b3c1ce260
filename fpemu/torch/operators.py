"""The operators `torch.ops.fpemu`: schemas, kernels, shapes of results, gradients, and their calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.forward_ad import unpack_dual as dual

from fpemu import batched as emulated
from fpemu import gpu, schemes, simt
from fpemu.arguments import from_torch
from fpemu.batched.layouts import LAYOUTS, axis_of
from fpemu.errors import InputError, shown
from fpemu.gpu.gemm.choice import NoKernelError, find
from fpemu.mma.order import KOrder
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import order_of
from fpemu.schemes.base import build
from fpemu.schemes.call import configure
from fpemu.schemes.words import OverflowPolicy

DEFAULT_GPU = "H200"  # the GPU that is emulated for tensors of the CPU
_LITERALS = (str, int, float, bool, tuple, list, type(None))
_ARRAYS = (np.generic, np.ndarray, Tensor)
# None is the default of these options; all others are of the scheme
_OF_THE_CALL = ("on_range", "order", "form", "hardware", "algorithm")
_Call = Callable[..., Any]
library = torch.library.Library("fpemu", "DEF")


# --- options: one string, so that a schema is the same for every scheme and a graph holds all that a product depends on
def request(scheme: Any, options: dict[str, Any]) -> tuple[str, str]:
    """Return the name of a scheme, and its options with those of the call as a literal."""
    if isinstance(scheme, str):
        return scheme, literal(options)
    chosen = schemes.get(scheme)
    own = [(o.name, getattr(chosen, o.name)) for o in chosen.info.options if getattr(chosen, o.name) != o.default]
    return chosen.name, literal(dict(own) | options)  # an option of the call replaces the scheme's


def literal(options: dict[str, Any]) -> str:
    """Return options as a literal of Python that `read` evaluates, without those of the call that are None."""
    given = {name: value for name, value in options.items() if value is not None or name not in _OF_THE_CALL}
    return str({name: _plain(name, value) for name, value in given.items()}) if given else ""


def _plain(name: str, value: Any) -> Any:
    """A value whose text is a literal."""
    if name == "order":
        return to_dict(order_of(value))
    if value.__class__ not in _LITERALS:
        value = value.item() if isinstance(value, np.generic) else getattr(value, "value", value)  # of an Enum
    if value.__class__ not in _LITERALS:
        raise InputError(f"{name} = {shown(value)} is no number, string or tuple")
    return value


@lru_cache(maxsize=1024)
def read(text: str) -> dict[str, Any]:
    """Return the options of a literal, which must not be changed."""
    options = ast.literal_eval(text or "{}")
    return options | {"order": from_dict(options["order"])} if "order" in options else options


def numbers(*values: Any) -> tuple[Any, ...]:
    """Return alpha and beta as numbers of Python, also those of NumPy and tensors of one entry."""
    return tuple(value.item() if isinstance(value, _ARRAYS) else value for value in values)


@torch.compiler.assume_constant_result
def dtype(scheme: str, options: str) -> torch.dtype:
    """Return the dtype of a scheme's operands and result."""
    own = {name: value for name, value in read(options).items() if name not in _OF_THE_CALL}
    return getattr(torch, build(scheme, own).operand.dtype.name)


@lru_cache(maxsize=1024)
def kernel_order(scheme: str, options: str, M: int, N: int, K: int) -> KOrder | None:
    """Return the order over K of the kernel that runs a product on a GPU; None: the scheme's."""
    given = {"hardware": DEFAULT_GPU, "on_range": None, "form": None, "order": None} | read(options)
    hardware, _, _, order = (given.pop(name) for name in ("hardware", "on_range", "form", "order"))
    chosen = configure(scheme, hardware, OverflowPolicy.PROPAGATE, order, given)
    if order is not None or chosen.spec is None or chosen.scheme.error_free or min(M, N, K) < 1:
        return order
    try:
        return find(chosen.scheme, chosen.spec, (M, N, K), None).order
    except NoKernelError:
        return None


# --- products of tensors of a GPU and of the CPU, with the arguments of the schemas
def gemm_product(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: Any = 1.0, beta: Any = 0.0, options: str = ""
) -> Tensor:
    given = read(options)
    if A.is_cuda or B.is_cuda:
        return gpu.gemm(A, B, C, scheme=scheme, alpha=alpha, beta=beta, **given)
    _shape(A, B, C, reads_c=beta != 0)  # vectors, which NumPy multiplies, have no kernel on a GPU
    if schemes.get(scheme).needs_hardware:
        given = {"hardware": DEFAULT_GPU} | given
        parts = 1 + _any_complex(A, B, C, alpha, beta)  # of a complex number: the real product has parts along N and K
        given["order"] = kernel_order(scheme, options, A.shape[-2], parts * B.shape[-1], parts * A.shape[-1])
    return torch.tensor(schemes.gemm(*map(from_torch, (A, B, C)), scheme=scheme, alpha=alpha, beta=beta, **given))


def batched_product(
    A: Tensor, B: Tensor, C: Tensor | None, layout: Any = None, alpha: Any = 1.0, beta: Any = 0.0, options: str = ""
) -> Tensor:
    function = "hgemm" if layout is None else "hcgemm"
    given = {"alpha": alpha, "beta": beta} | ({} if layout is None else {"layout": layout}) | read(options)
    if A.is_cuda or B.is_cuda:
        return getattr(gpu.batched, function)(A, B, C, **given)
    batched_shape(A, B, C, layout, alpha, beta, options)  # checks the dtypes
    if given.get("kernel", "tensor") == "tensor":
        given = {"hardware": DEFAULT_GPU, "instruction": "mma"} | given
    return torch.tensor(getattr(emulated, function)(*map(from_torch, (A, B, C)), **given))


def tallskinny_product(A: Tensor, B: Tensor) -> Tensor:
    if A.is_cuda or B.is_cuda:
        return gpu.tallskinny.multiply(A, B)
    fmt = "fp64" if tallskinny_shape(A, B).dtype == torch.float64 else "fp32"
    return torch.tensor(simt.tsm2(from_torch(A), from_torch(B), fmt=fmt))


# --- results without entries, from which tracers take shape and dtype
def gemm_shape(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: Any = 1.0, beta: Any = 0.0, options: str = ""
) -> Tensor:
    kind = dtype(scheme, options)
    kind = kind.to_complex() if _any_complex(A, B, C, alpha, beta) else kind
    return A.new_empty(_shape(A, B, C, reads_c=beta != 0), dtype=kind)


def _any_complex(*values: Any) -> bool:
    """Whether a tensor or a scalar of a call is complex."""
    return any(X.is_complex() if isinstance(X, Tensor) else isinstance(X, complex) for X in values)


def batched_shape(
    A: Tensor, B: Tensor, C: Tensor | None, layout: Any = None, alpha: Any = 1.0, beta: Any = 0.0, options: str = ""
) -> Tensor:
    axis, given, operands = None if layout is None else axis_of(layout), read(options), []
    for name, X in (("A", A), ("B", B), ("C", C)):
        if X is not None and X.dtype != torch.float16:
            raise InputError(f"{name} is of {X.dtype}: pass float16")
        Y: Any = X if X is None or axis is None else X.select(axis, 0)
        operands.append(Y if given.get(f"trans{name.lower()}", "N") in "Nn" or Y.dim() < 2 else Y.mT)
    D = _shape(*operands)
    return A.new_empty(D if axis is None else (2, *D) if axis == 0 else (*D, 2))


def tallskinny_shape(A: Tensor, B: Tensor) -> Tensor:
    for name, X in (("A", A), ("B", B)):
        if X.dim() != 2:
            raise InputError(f"{name} has shape {tuple(X.shape)}: one matrix, with two axes, is needed")
    kinds = {torch.float32 if X.dtype in (torch.float16, torch.bfloat16) else X.dtype for X in (A, B)}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        a, b = (str(X.dtype).removeprefix("torch.") for X in (A, B))
        raise InputError(f"A has {a} and B {b}: pass float32 or float64 for both")
    return A.new_empty(_shape(A, B), dtype=kinds.pop())


def _shape(A: Tensor, B: Tensor, C: Tensor | None = None, *, reads_c: bool = False) -> tuple[int, ...]:
    """The shape of D, with the batch axes of a C that is read."""
    for name, X in (("A", A), ("B", B), ("C", C)):
        if X is not None and X.dim() < 2:
            raise InputError(f"{name} must be a matrix (..., rows, columns), not of shape {tuple(X.shape)}")
    if A.shape[-1] != B.shape[-2]:
        raise InputError(f"A has {A.shape[-1]} columns and B {B.shape[-2]} rows: they must be equal")
    batches = [X.shape[:-2] for X in (A, B, C if reads_c else None) if X is not None]
    D = (*torch.broadcast_shapes(*batches), A.shape[-2], B.shape[-1])
    if C is not None and tuple(C.shape[-2:]) != D[-2:]:
        raise InputError(f"C of shape {tuple(C.shape)} does not fit the product of shape {D}")
    return D


# --- gradients: products by the same operator, which records gradients in turn
def _gradients(ctx: Any, dD: Tensor, multiply: _Call) -> tuple[Tensor | None, ...]:
    """Return the gradients of a product P Q of op(A) and op(B): dP = dD Q* and dQ = P* dD, with adjoint matrices."""
    A, B = ctx.saved_tensors
    choice, alpha, beta, options = ctx.request or (None, 1.0, 0.0, "")  # choice: a scheme or a layout
    parts, axis = (1, axis_of(choice)) if choice in LAYOUTS else (0, 0)  # real and imaginary parts, moved to the front
    given = dict(read(options))
    transposes = [given.pop(name, "N").upper() for name in ("transa", "transb")]
    plain = literal(given)
    one_product = given.get("kernel") != "magma-small"  # whose K is at most 32 on a GPU: PyTorch sums the products

    def op(X: Tensor, transpose: str) -> Tensor:
        if transpose == "N":
            return X
        if transpose == "C":
            X = torch.stack((X[0], -X[1])) if parts else X.conj()
        return X.mT

    def product(X: Tensor, Y: Tensor, like: Tensor, transpose: str) -> Tensor:
        if one_product:
            X, Y = _summed(X, Y, like.shape, parts)
        X, Y = (Z.movedim(0, axis) for Z in (X, Y))
        D = multiply(X, Y, *((None, choice, alpha.conjugate(), 0.0, plain) if ctx.request else ())).movedim(axis, 0)
        if not one_product:
            D = D.sum_to_size(_aligned(like.shape, D.dim(), parts))
        return _as(op(D.reshape(like.shape), transpose).movedim(0, axis), like.dtype)

    d = dD.movedim(axis, 0)
    P, Q = (op(X.movedim(axis, 0), transpose) for X, transpose in zip((A, B), transposes, strict=True))
    dA = product(d, op(Q, "C"), P, transposes[0]) if ctx.needs_input_grad[0] else None
    dB = product(op(P, "C"), d, Q, transposes[1]) if ctx.needs_input_grad[1] else None
    if not beta or not ctx.needs_input_grad[2]:
        return dA, dB, None
    (shape, kind), re, im = ctx.addend, beta.real, beta.imag
    scaled = d if beta == 1 else beta.conjugate() * d if not (parts and im) else None
    if scaled is None:
        scaled = torch.stack((re * d[0] + im * d[1], re * d[1] - im * d[0]))
    dC = scaled.movedim(0, axis).sum_to_size(_aligned(shape, d.dim(), parts if axis == 0 else 0))
    return dA, dB, _as(dC.reshape(shape), kind)


def _as(X: Tensor, kind: torch.dtype) -> Tensor:
    """A gradient in the dtype of its operand: of a real one the real part."""
    return (X if kind.is_complex or not X.is_complex() else X.real).to(kind)


def _aligned(shape: Sequence[int], rank: int, parts: int) -> tuple[int, ...]:
    """A shape with axes of length 1 after the first `parts` axes, `rank` in all."""
    return (*shape[:parts], *(1,) * (rank - len(shape)), *shape[parts:])


def _summed(X: Tensor, Y: Tensor, shape: Sequence[int], parts: int) -> tuple[Tensor, Tensor]:
    """Operands whose product is X Y summed over the batch axes along which `shape` was broadcast.

    These axes become the outer part of the inner dimension, so that the sums are those of the product.
    """
    rank = max(X.dim(), Y.dim())
    X, Y = (Z.reshape(_aligned(Z.shape, rank, parts)) for Z in (X, Y))
    n, full, kept = rank - 2, torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), _aligned(shape, rank, parts)
    over = [i for i in range(n) if kept[i] == 1 and full[i] != 1]
    if not over:
        return X, Y
    others = [i for i in range(n) if i not in over]
    X, Y = (Z.expand(*(full[i] if i in over else Z.shape[i] for i in range(n)), *Z.shape[-2:]) for Z in (X, Y))
    X = X.permute(*others, n, *over, n + 1).flatten(len(others) + 1)
    return X, Y.permute(*others, *over, n, n + 1).flatten(len(others), -2)


# --- the operators
def _operator(schema: str, product: _Call, shape: _Call) -> _Call:
    """Define an operator of ``torch.ops.fpemu`` and return a function that calls it with all arguments.

    The overload `default` records gradients, and compiled graphs contain it. Its calls take several times the host time
    of a product, so that the function calls the overload `product`, which records none, by itself or within a
    `torch.autograd.Function`.
    """
    name, _, arguments = schema.partition("(")
    for overload in (name, f"{name}.product"):
        library.define(f"{overload}({arguments} -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(overload, product, key)
        torch.library.register_fake(f"fpemu::{overload}", shape, lib=library)
    default, plain = (getattr(getattr(torch.ops.fpemu, name), overload) for overload in ("default", "product"))

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        A, B, C, *ctx.request = inputs if len(inputs) > 2 else (*inputs, None)
        ctx.save_for_backward(A, B)
        ctx.addend = None if C is None else (C.shape, C.dtype)

    def differentiate(ctx: Any, dD: Tensor) -> tuple[Any, ...]:
        return (*_gradients(ctx, dD, call), *(None for _ in ctx.request))[: len(ctx.needs_input_grad)]

    class Recorded(Function):
        backward = staticmethod(differentiate)

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            save(ctx, inputs, None)
            return plain(*inputs)

    class Transformed(Function):  # slower, and for `torch.func` too
        generate_vmap_rule = True
        forward, setup_context, backward = staticmethod(plain), staticmethod(save), staticmethod(differentiate)

    torch.library.register_autograd(f"fpemu::{name}", differentiate, setup_context=save, lib=library)

    def call(A: Any, B: Any, *rest: Any) -> Tensor:
        C = rest[0] if rest else None
        if not (isinstance(A, Tensor) and isinstance(B, Tensor) and (C is None or isinstance(C, Tensor))):
            raise InputError(f"{', '.join(type(X).__name__ for X in (A, B, C))} as A, B, C: pass torch tensors")
        if torch.compiler.is_compiling():
            return default(A, B, *rest)
        try:
            _ = A.untyped_storage(), B.untyped_storage(), C is None or C.untyped_storage()
            if torch.is_grad_enabled() and (A.requires_grad or B.requires_grad or (C is not None and C.requires_grad)):
                return default(A, B, *rest) if torch.jit.is_tracing() else Recorded.apply(A, B, *rest)
            if dual(A).tangent is None and dual(B).tangent is None and (C is None or dual(C).tangent is None):
                return plain(A, B, *rest)
        except RuntimeError:  # a tensor without storage, or a transformation of `torch.func` around the call
            pass
        return Transformed.apply(A, B, *rest)

    return call


_SCHEMA = "{}(Tensor A, Tensor B, Tensor? C, {}, Scalar alpha=1.0, Scalar beta=0.0, str options='')"
gemm = _operator(_SCHEMA.format("gemm", "str scheme"), gemm_product, gemm_shape)
batched = _operator(_SCHEMA.format("batched", "str? layout=None"), batched_product, batched_shape)
tallskinny = _operator("tallskinny(Tensor A, Tensor B)", tallskinny_product, tallskinny_shape)


def traced(
    A: Any, B: Any, C: Any = None, *, scheme: Any, alpha: Any = 1.0, beta: Any = 0.0, out: Any = None, **options: Any
) -> Any:
    """`fpemu.gpu.gemm` in compiled functions: the operator without gradients, on copies of tensors of the CPU."""
    options |= {} if A.is_cuda or options.get("on_range") else {"on_range": "raise"}
    name, text = request(scheme, options)
    a, b, c = (None if X is None else X.detach() if X.is_cuda else X.detach().cuda() for X in (A, B, C))
    D = gemm(a, b, c, name, *numbers(alpha, beta), text)
    if out is not None and (out.shape, out.dtype) != (D.shape, D.dtype):
        raise InputError(f"out must be an array on the GPU of shape {tuple(D.shape)} and dtype {D.dtype}")
    return out.copy_(D) if out is not None else D if A.is_cuda else D.cpu()
