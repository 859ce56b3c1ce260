"""The context in which PyTorch's products of one dtype are computed by a scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fpemu.torch import calls
from fpemu.torch.options import dtype, request


class Routing(TorchFunctionMode):
    """`fpemu.torch.matmul`."""

    def __init__(self, scheme: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.scheme, self.options = request(scheme, options)
        self.dtype = dtype(self.scheme, self.options)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {} if kwargs is None else kwargs
        route = _ROUTES.get(function)
        if route is not None and self.stores((*args, *given.values()), given.get("out")):
            D = route(self, *args, **given)
            if D is not None:
                return D
        return function(*args, **given)

    def takes(self, *operands: Any) -> bool:
        """Whether a product of these tensors is routed."""
        for X in operands:
            if not isinstance(X, Tensor) or X.dtype != self.dtype or X.layout != torch.strided or X.is_nested:
                return False
        return True

    def stores(self, arguments: Sequence[Any], out: Any) -> bool:
        """Whether a routed product can be stored in `out`, one of the arguments or None; if not, PyTorch raises."""
        if out is None:
            return True
        tensors = [X for X in arguments if isinstance(X, Tensor)]
        if torch.is_grad_enabled() and any(X.requires_grad for X in tensors):
            return False
        return self.takes(out) and all(X.device == out.device for X in tensors if X.dim())  # without scalars

    def product(self, A: Any, B: Any, C: Any = None, alpha: Any = 1, beta: Any = 0) -> Any:
        """alpha · A B + beta · C by the scheme."""
        return calls.product(A, B, C, self.scheme, alpha, beta, self.options)


# Each route takes the arguments of its function, and returns None for a call that is not routed.
def _matmul(mode: Routing, input: Any, other: Any, *, out: Any = None) -> Any:
    if not mode.takes(input, other) or not input.dim() or not other.dim():
        return None
    A = input if input.dim() > 1 else input[None]
    B = other if other.dim() > 1 else other[:, None]
    if A.dim() > 2 and B.dim() == 2:
        D = mode.product(A.flatten(0, -2), B).reshape(*A.shape[:-1], B.shape[-1])  # one product, as in PyTorch
    else:
        D = mode.product(A, B)
    D = D if input.dim() > 1 else D[..., 0, :]
    return _stored(D if other.dim() > 1 else D[..., 0], out)


def _reflected(mode: Routing, other: Any, input: Any) -> Any:
    return _matmul(mode, input, other)


def _of_rank(rank: int) -> Callable[..., Any]:
    """The route of mm or bmm, which PyTorch checks for the ranks and equal batches."""

    def product(mode: Routing, input: Any, mat2: Any, *rest: Any, out: Any = None, **more: Any) -> Any:
        if rest or more or not mode.takes(input, mat2) or not _stack(rank, input, mat2):
            return None
        return _stored(mode.product(input, mat2), out)

    return product


def _stack(rank: int, A: Any, B: Any) -> bool:
    return bool(A.dim() == B.dim() == rank and A.shape[:-2] == B.shape[:-2])


def _added(rank: int, *, in_place: bool = False) -> Callable[..., Any]:
    """The route of addmm or baddbmm."""

    def product(
        mode: Routing,
        input: Any,
        A: Any,
        B: Any,
        *rest: Any,
        beta: Any = 1,
        alpha: Any = 1,
        out: Any = None,
        **more: Any,
    ) -> Any:
        if rest or more or not mode.takes(input, A, B) or not _stack(rank, A, B):
            return None
        alpha, beta = _number(alpha), _number(beta)
        C = input.expand(*A.shape[:-1], B.shape[-1]) if beta else None
        D = mode.product(A, B, C, alpha, beta)
        return input.copy_(D) if in_place else _stored(D, out)

    names = ("mat1", "mat2") if rank == 2 else ("batch1", "batch2")

    def named(mode: Routing, input: Any, *args: Any, **kwargs: Any) -> Any:
        operands = [kwargs.pop(name) for name in names if name in kwargs]
        return product(mode, input, *args, *operands, **kwargs)

    return named


def _number(value: Any) -> Any:
    """alpha or beta: PyTorch accepts a tensor of one element and a bool too."""
    return value.item() if isinstance(value, Tensor) else int(value) if isinstance(value, bool) else value


def _linear(mode: Routing, input: Any, weight: Any, bias: Any = None, *, out: Any = None) -> Any:
    if not mode.takes(input, weight, *(() if bias is None else (bias,))) or not input.dim() or weight.dim() != 2:
        return None
    A = input if input.dim() == 2 else input.flatten(0, -2) if input.dim() > 2 else input[None]
    C = None if bias is None else bias.expand(A.shape[0], weight.shape[0])
    D = mode.product(A, weight.mT, C, 1.0, 0.0 if bias is None else 1.0)
    return _stored(D if A is input else D.reshape(*input.shape[:-1], weight.shape[0]), out)


def _stored(D: Any, out: Any) -> Any:
    return D if out is None else out.resize_(D.shape).copy_(D)


_ROUTES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.matmul, torch.linalg.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    Tensor.__rmatmul__: _reflected,
    **dict.fromkeys((torch.mm, Tensor.mm), _of_rank(2)),
    **dict.fromkeys((torch.bmm, Tensor.bmm), _of_rank(3)),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _added(2)),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), _added(3)),
    Tensor.addmm_: _added(2, in_place=True),
    Tensor.baddbmm_: _added(3, in_place=True),
    functional.linear: _linear,
}
