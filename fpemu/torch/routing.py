"""The context in which PyTorch's products of one dtype are computed by a scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fpemu.torch import operators


class Routing(TorchFunctionMode):
    """`fpemu.torch.matmul`."""

    def __init__(self, scheme: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.scheme, self.options = operators.request(scheme, options)
        self.dtype = operators.dtype(self.scheme, self.options)

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        route: Any = _ROUTES.get(function)
        routed = route is not None and self.stores((*args, *given.values()), given.get("out"))
        D = route(self, *args, **given) if routed else None
        return function(*args, **given) if D is None else D

    def takes(self, *operands: Any) -> bool:
        """Whether a product of these tensors is routed."""
        tensors = all(isinstance(X, Tensor) and X.dtype == self.dtype for X in operands)
        return tensors and not any(X.layout != torch.strided or X.is_nested for X in operands)

    def stores(self, arguments: tuple[Any, ...], out: Any) -> bool:
        """Whether a routed product can be stored in `out`, one of the arguments or None; if not, PyTorch raises."""
        tensors = [X for X in arguments if isinstance(X, Tensor)]
        if out is None or (torch.is_grad_enabled() and any(X.requires_grad for X in tensors)):
            return out is None
        return self.takes(out) and all(X.device == out.device for X in tensors if X.dim())  # without scalars


# Each route takes the arguments of its function, and returns None for a call that is not routed.
def _matmul(mode: Routing, input: Any, other: Any, *, bias: Any = None, out: Any = None) -> Any:
    if not mode.takes(input, other) or not input.dim() or not other.dim():
        return None
    A = input if input.dim() > 1 else input[None]
    B = other if other.dim() > 1 else other[:, None]
    if A.dim() > 2 and B.dim() == 2:
        A = A.flatten(0, -2)  # one product, as PyTorch computes
    C, beta = (None, 0.0) if bias is None else (bias.expand(A.shape[0], B.shape[1]), 1.0)
    D = operators.gemm(A, B, C, mode.scheme, 1.0, beta, mode.options)
    if B.dim() == 2:
        D = D.reshape(*input.shape[:-1], B.shape[-1])
    elif input.dim() == 1:
        D = D[..., 0, :]
    return _stored(D if other.dim() > 1 else D[..., 0], out)


def _linear(mode: Routing, input: Any, weight: Any, bias: Any = None, **given: Any) -> Any:
    if not mode.takes(input, weight, *(() if bias is None else (bias,))) or weight.dim() != 2:
        return None
    return _matmul(mode, input, weight.mT, bias=bias, **given)


def _product(rank: int, *names: str, in_place: bool = False) -> Callable[..., Any]:
    """The route of mm, bmm, addmm or baddbmm, which PyTorch checks for the ranks and equal batches."""

    def route(mode: Routing, *args: Any, beta: Any = 1, alpha: Any = 1, out: Any = None, **given: Any) -> Any:
        operands = [*args, *(given.pop(name) for name in names if name in given)]
        if given or len(operands) != len(names) or not mode.takes(*operands):
            return None
        *addend, A, B = operands
        if not A.dim() == B.dim() == rank or A.shape[:-2] != B.shape[:-2]:
            return None
        alpha, beta = (+value for value in operators.numbers(alpha, beta))  # numbers, not bools
        C = addend[0].expand(*A.shape[:-1], B.shape[-1]) if addend and beta else None
        D = operators.gemm(A, B, C, mode.scheme, alpha, 0.0 if C is None else beta, mode.options)
        return addend[0].copy_(D) if in_place else _stored(D, out)

    return route


def _stored(D: Tensor, out: Any) -> Any:
    return D if out is None else out.resize_(D.shape).copy_(D)


_ADDMM, _BADDBMM = ("input", "mat1", "mat2"), ("input", "batch1", "batch2")
_ROUTES: dict[Any, Any] = {
    **dict.fromkeys((torch.matmul, torch.linalg.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    Tensor.__rmatmul__: lambda mode, other, input: _matmul(mode, input, other),
    **dict.fromkeys((torch.mm, Tensor.mm), _product(2, "input", "mat2")),
    **dict.fromkeys((torch.bmm, Tensor.bmm), _product(3, "input", "mat2")),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _product(2, *_ADDMM)),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), _product(3, *_BADDBMM)),
    Tensor.addmm_: _product(2, *_ADDMM, in_place=True),
    Tensor.baddbmm_: _product(3, *_BADDBMM, in_place=True),
    functional.linear: _linear,
}
