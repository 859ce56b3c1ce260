"""PyTorch: the GPU's products as operators with gradients and for `torch.compile`, and matmul routed to a scheme.

The operators ``torch.ops.fpemu.gemm``, ``batched`` and ``tallskinny`` call `fpemu.gpu` for tensors of a GPU, and return
the same bits for tensors of the CPU by emulation. The functions require PyTorch; importing this subpackage does not.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from fpemu.errors import missing_package

if __name__ == "torch":
    raise ImportError("the folder of the package fpemu is on sys.path and hides PyTorch: put its parent there instead")

__all__ = ["gemm", "hcgemm", "hgemm", "matmul", "multiply"]


class _Missing:
    """Replaces the modules that import torch where PyTorch is not installed: the first use raises the error."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else missing_package("torch")


_installed = importlib.util.find_spec("torch") is not None
_calls, _routing = (
    importlib.import_module(f"fpemu.torch.{name}") if _installed else _Missing() for name in ("calls", "routing")
)


def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: Any,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: str | None = None,
    **options: Any,
) -> Any:
    """Return D = alpha · (A B by a scheme) + beta · C, with gradients by the same scheme.

    Parameters
    ----------
    A : torch.Tensor (..., M, K)
        Operand of `fpemu.gpu.gemm`, of any strides; leading axes broadcast. Tensors of the GPU are multiplied there,
        and tensors of the CPU by the emulation of a GPU.
    B : torch.Tensor (..., K, N)
        As A.
    C : torch.Tensor (..., M, N), optional
        As A; not read if beta = 0.
    scheme : str or Scheme
        As in `fpemu.gemm`.
    alpha, beta : real numbers
        As in `fpemu.gemm`; no gradient.
    on_range : str, optional
        Overflow policy, with the default of `fpemu.gpu.gemm`: "raise" for tensors of the CPU; for tensors of the GPU
        the bits of "propagate", and the errors of "raise" deferred to `fpemu.gpu.check`.
    **options
        The scheme's choices, and ``order`` as in `fpemu.gpu.gemm`. For tensors of the CPU also ``hardware``, the GPU
        that is emulated: "H200" by default. The default order is the order of the H200's kernel for the shape.

    Returns
    -------
    torch.Tensor (..., M, N)
        D, contiguous, float32 or the dtype of the scheme's operands.

    Raises
    ------
    InputError
        As `fpemu.gpu.gemm`; arguments that are no tensors; options that are no literals; no PyTorch.
    GpuError
        As `fpemu.gpu.gemm`.

    Notes
    -----
    The gradients are dA = alpha · (dD Bᵀ), dB = alpha · (Aᵀ dD) and dC = beta · dD; the products are calls of the same
    scheme with the same options. A gradient that is summed over batch axes, because they were broadcast, is one product
    whose sums run over these axes too, the axes before the rows or columns. PyTorch sums dC over such axes.
    """
    if on_range is not None:
        options["on_range"] = on_range
    return _calls.gemm(A, B, C, scheme, alpha, beta, options)


def hgemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    transa: str = "N",
    transb: str = "N",
    accumulate: str = "fp32",
    kernel: str = "tensor",
    hardware: str | None = None,
) -> Any:
    """Return D = alpha · op(A) op(B) + beta · C for a batch of fp16 matrices, with gradients by the same kernel.

    Parameters
    ----------
    A : torch.Tensor (..., M, K), or (..., K, M) with transa="T"
        Operand of `fpemu.gpu.batched.hgemm`, float16. Tensors of the GPU are multiplied there, and tensors of the CPU
        by `fpemu.batched.hgemm`.
    B : torch.Tensor (..., K, N), or (..., N, K) with transb="T"
        As A.
    C : torch.Tensor (..., M, N), optional
        As A; not read if beta = 0.
    alpha, beta : real numbers
        As in `fpemu.batched.hgemm`; no gradient.
    transa, transb : {"N", "T", "C"}
        As in `fpemu.batched.hgemm`.
    accumulate : {"fp32", "fp16"}
        As in `fpemu.batched.hgemm`.
    kernel : {"tensor", "magma-small"}
        As in `fpemu.batched.hgemm`.
    hardware : str, optional
        GPU that is emulated for tensors of the CPU. Default: "H200".

    Returns
    -------
    torch.Tensor (..., M, N)
        D, float16 and contiguous.

    Raises
    ------
    InputError
        As `fpemu.gpu.batched.hgemm`; arguments that are no tensors; hardware for tensors of the GPU; no PyTorch.
    GpuError
        As `fpemu.gpu.batched.hgemm`.

    Notes
    -----
    Gradients are products with the same options, and sums over broadcast batch axes are part of them, as in `gemm`.
    With kernel="magma-small", whose K is at most 32 on a GPU, PyTorch instead sums the products of the batch, each
    rounded to float16, over such axes: the bits of these sums are those of `torch.sum` on the device.
    """
    options = {"transa": transa, "transb": transb, "accumulate": accumulate, "kernel": kernel, "hardware": hardware}
    return _calls.batched(A, B, C, alpha, beta, None, options)


def hcgemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    transa: str = "N",
    transb: str = "N",
    accumulate: str = "fp32",
    layout: str = "interleaved",
    products: int = 4,
    kernel: str = "tensor",
    algorithm: str | None = None,
    hardware: str | None = None,
) -> Any:
    """Return D = alpha · op(A) op(B) + beta · C for half-complex matrices, with gradients by the same kernel.

    Parameters
    ----------
    A, B, C : torch.Tensor of float16 with one axis more
        The last of two (interleaved) or the first (planar); else as in `hgemm`.
    alpha, beta : complex or real numbers
        As in `fpemu.batched.hcgemm`; no gradient.
    transa, transb : {"N", "T", "C"}
        As in `fpemu.batched.hcgemm`.
    accumulate : {"fp32", "fp16"}
        As in `hgemm`.
    layout : {"interleaved", "planar"}
        Layout of A, B, C and D.
    products : {4, 3}
        Real products of a complex one.
    kernel : {"tensor", "magma-small"}
        As in `hgemm`.
    algorithm : {"fused", "calls"}, optional
        As in `fpemu.batched.hcgemm`.
    hardware : str, optional
        As in `hgemm`.

    Returns
    -------
    torch.Tensor
        D in the layout, float16 and contiguous.

    Raises
    ------
    InputError
        As `hgemm`.
    GpuError
        As `hgemm`.

    Notes
    -----
    Gradients are those of the real and imaginary parts: with the adjoint of a matrix in place of its transpose, as in
    `hgemm`. PyTorch multiplies dD by a complex beta.
    """
    options: dict[str, Any] = {"transa": transa, "transb": transb, "accumulate": accumulate, "kernel": kernel}
    options |= {"hardware": hardware, "products": products, "algorithm": algorithm}
    return _calls.batched(A, B, C, alpha, beta, layout, options)


def multiply(A: Any, B: Any) -> Any:
    """Return C = A B for tall and skinny matrices, with gradients by the same chains of fused multiply-adds.

    Parameters
    ----------
    A : torch.Tensor (m, k)
        Operand of `fpemu.gpu.tallskinny.multiply`, float32 or float64; float16 and bfloat16 are converted to float32.
        Tensors of the GPU are multiplied there, and tensors of the CPU by `fpemu.simt.tsm2`, whose bits every kernel
        has.
    B : torch.Tensor (k, n)
        As A.

    Returns
    -------
    torch.Tensor (m, n)
        C, contiguous, of the dtype of the converted operands; a gradient has the dtype of its operand.

    Raises
    ------
    InputError
        As `fpemu.gpu.tallskinny.multiply`; arguments that are no tensors; no PyTorch.
    GpuError
        As `fpemu.gpu.tallskinny.multiply`.
    """
    return _calls.multiply(A, B)


def matmul(scheme: Any, *, on_range: str | None = None, **options: Any) -> Any:
    """Return a context manager in which PyTorch's products of the scheme's dtype are computed by the scheme.

    Parameters
    ----------
    scheme : str or Scheme
        As in `gemm`.
    on_range : str, optional
        As in `gemm`.
    **options
        As in `gemm`.

    Returns
    -------
    context manager
        It applies to the current thread, nests, and may be entered several times.

    Raises
    ------
    InputError
        An unknown scheme, or options that it does not have; no PyTorch.

    Notes
    -----
    ``@``, `torch.matmul`, ``mm``, ``bmm``, ``addmm``, ``baddbmm``, `torch.nn.functional.linear` and the methods of the
    same names are routed for dense tensors of the scheme's operand dtype: float32, and float64 for dgemm and the Ozaki
    family. All others run unchanged, so that two nested contexts can route two dtypes. A call with an ``out`` that
    PyTorch rejects, because of its dtype or device or because a gradient would be recorded, raises PyTorch's error. The
    gradients of a routed product are products by the scheme, wherever ``backward`` runs. `torch.compile` traces the
    routed products without graph breaks. Functions that multiply internally (`torch.einsum`, convolutions,
    `scaled_dot_product_attention`, ``MultiheadAttention``) run unchanged.
    """
    return _routing.Routing(scheme, {"on_range": on_range, **options})
