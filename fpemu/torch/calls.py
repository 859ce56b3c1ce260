"""Calls of the operators, directly by their kernels where nothing but autograd observes them.

PyTorch's dispatcher takes several times the host time of a repeated call on the GPU, and `torch.library` adds as much
again for a gradient. A mode, a transformation (`torch.func`), a profiler, a tracer and a tensor without memory need the
dispatcher; otherwise the kernel of the operands' device is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import Function, forward_ad

from fpemu.errors import InputError
from fpemu.torch import gradients, operators
from fpemu.torch.operators import PLAIN
from fpemu.torch.options import literal, real, real_or_complex, request

_below_autograd, _any_requires_grad = torch._C._AutoDispatchBelowAutograd, torch._C._any_requires_grad
_compiling, _grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_included, _excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_is_dispatch_key_excluded
_function_modes, _profiled = torch._C._len_torch_function_stack, torch._C._autograd._profiler_enabled
_Key, _Keys = torch._C.DispatchKey, torch._C.DispatchKeySet
_INFERENCE = _Keys(_Key.BackendSelect)
_EAGER = (_INFERENCE | _Keys(_Key.ADInplaceOrView)).raw_repr(), _INFERENCE.raw_repr()
"""The dispatch keys of a thread without modes and transformations, outside and within `torch.inference_mode`"""


class _Operator:
    """An operator, its kernels and its gradients.

    Parameters
    ----------
    name : str
        Name within ``torch.ops.fpemu``.
    cpu, cuda : callable
        Kernels, with the arguments of the operator.
    formulas : callable
        Function of `fpemu.torch.gradients`.
    defaults : tuple
        Defaults of the arguments after A and B, which the dispatcher leaves out.
    """

    def __init__(
        self,
        name: str,
        cpu: Callable[..., Tensor],
        cuda: Callable[..., Tensor],
        formulas: Callable[..., tuple[Any, ...]],
        defaults: tuple[Any, ...] = (),
    ) -> None:
        def forward(ctx: Any, *arguments: Any) -> Tensor:
            *inputs, kernel = arguments
            gradients.save(ctx, *inputs)
            return kernel(*inputs)

        def backward(ctx: Any, dD: Tensor) -> tuple[Any, ...]:
            return *formulas(ctx, dD, partial(_call, self)), None

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        bound: Any = super(Function, type(name.capitalize(), (Function,), methods))
        self.dispatched = getattr(torch.ops.fpemu, name).default
        self.cpu, self.cuda, self.defaults = cpu, cuda, defaults
        self.recorded = bound.apply  # without the Python code of Function.apply, about 2 µs
        operators.library.impl(name, self.autograd, "Autograd", with_keyset=True)

    def kernel(self, A: Tensor, B: Tensor, C: Tensor | None) -> Callable[..., Tensor] | None:
        """Return the kernel of the operands' device; None if the dispatcher must choose it."""
        if not (A.__class__ in PLAIN and B.__class__ in PLAIN and (C is None or C.__class__ in PLAIN)):
            return None
        if _included().raw_repr() not in _EAGER or _function_modes() or _profiled():
            return None
        try:
            if not (A.data_ptr() and B.data_ptr() and (C is None or C.data_ptr())):
                return None
        except RuntimeError:  # a tensor without memory
            return None
        if A.is_cuda:
            return self.cuda
        return self.cpu if A.is_cpu and B.is_cpu and (C is None or C.is_cpu) else None

    def autograd(self, keys: Any, A: Tensor, B: Tensor, *rest: Any) -> Tensor:
        """Run the operator above its kernels, and record its gradients."""
        rest += self.defaults[len(rest) :]
        C = rest[0] if rest else None
        kernel = self.kernel(A, B, C)
        if kernel is not None:
            return self.recorded(A, B, *rest, kernel) if _records(A, B, C) else kernel(A, B, *rest)
        if not _records(A, B, C):
            return self.redispatch(keys, A, B, *rest)
        with enable_single_level_autograd_function():  # a level of torch.func may call this kernel
            return self.recorded(A, B, *rest, partial(self.redispatch, keys))

    def redispatch(self, keys: Any, *arguments: Any) -> Tensor:
        """Run the operator below autograd."""
        with _below_autograd():
            return self.dispatched.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


def _records(A: Tensor, B: Tensor, C: Tensor | None) -> bool:
    """Whether autograd records a product; within a level of forward-mode derivatives it does, to raise its error."""
    return (_grad_enabled() and _any_requires_grad(A, B, C)) or forward_ad._current_level >= 0


_GEMM = _Operator("gemm", operators.gemm_cpu, operators.gemm_cuda, gradients.gemm, (None, "", 1.0, 0.0, ""))
_BATCHED = _Operator(
    "batched", operators.batched_cpu, operators.batched_cuda, gradients.batched, (None, 1.0, 0.0, None, "")
)
_TALLSKINNY = _Operator("tallskinny", operators.tallskinny_cpu, operators.tallskinny_cuda, gradients.tallskinny)


def _call(operator: _Operator, A: Any, B: Any, *rest: Any) -> Any:
    """Call an operator; rest: C and the request, if it has them."""
    C = rest[0] if rest else None
    if not (isinstance(A, Tensor) and isinstance(B, Tensor) and (C is None or isinstance(C, Tensor))):
        name, X = next((n, X) for n, X in (("A", A), ("B", B), ("C", C)) if not isinstance(X, Tensor))
        raise InputError(f"{name} is a {type(X).__name__}: pass a torch tensor")
    kernel = None if _compiling() else operator.kernel(A, B, C)
    if kernel is None:
        return operator.dispatched(A, B, *rest)
    if _records(A, B, C) and not _excluded(_Key.AutogradOther):
        return operator.recorded(A, B, *rest, kernel)
    return kernel(A, B, *rest)


def gemm(A: Any, B: Any, C: Any, scheme: Any, alpha: Any, beta: Any, options: dict[str, Any]) -> Any:
    """`fpemu.torch.gemm`."""
    scheme, text = request(scheme, options)
    return product(A, B, C, scheme, alpha, beta, text)


def product(A: Any, B: Any, C: Any, scheme: str, alpha: Any, beta: Any, options: str) -> Any:
    """Return alpha · A B + beta · C by a scheme, from `request`."""
    return _call(_GEMM, A, B, C, scheme, real(alpha, "alpha"), real(beta, "beta"), options)


def batched(A: Any, B: Any, C: Any, alpha: Any, beta: Any, layout: Any, options: dict[str, Any]) -> Any:
    """`fpemu.torch.hgemm` and, with a layout, `fpemu.torch.hcgemm`."""
    number = real if layout is None else real_or_complex
    return _call(_BATCHED, A, B, C, number(alpha, "alpha"), number(beta, "beta"), layout, literal(options))


def multiply(A: Any, B: Any) -> Any:
    """`fpemu.torch.multiply`."""
    return _call(_TALLSKINNY, A, B)
