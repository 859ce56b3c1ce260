"""PyTorch: the GPU's products as operators with gradients and for `torch.compile`, and matmul routed to a scheme.

The operators ``torch.ops.fpemu.gemm``, ``batched`` and ``tallskinny`` call `fpemu.gpu` for tensors of a GPU, and return
the same bits for tensors of the CPU by emulation. The functions require PyTorch; importing this subpackage does not.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from fpemu.errors import missing_package

if __name__ == "torch":
    raise ImportError("the folder of the package fpemu is on sys.path and hides PyTorch: put its parent there instead")

__all__ = ["gemm", "hcgemm", "hgemm", "matmul", "multiply", "record"]


class _Missing:
    """Replaces the modules that import torch where PyTorch is not installed: the first use raises the error."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else missing_package("torch")


_installed = importlib.util.find_spec("torch") is not None
_operators, _recording, _routing = (
    importlib.import_module(f"fpemu.torch.{name}") if _installed else _Missing()
    for name in ("operators", "recording", "routing")
)


def gemm(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    scheme: Any,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    on_range: Any = None,
    **options: Any,
) -> Any:
    """Return D = alpha · (A B by a scheme) + beta · C, with gradients by the same scheme.

    Parameters
    ----------
    A, B, C : torch.Tensor (..., M, K), (..., K, N) and (..., M, N)
        As in `fpemu.gpu.gemm`. A GPU multiplies its own tensors; tensors of the CPU are multiplied by emulation.
    scheme, alpha, beta, on_range : object
        As in `fpemu.gpu.gemm`; alpha and beta have no gradient.
    **options
        The scheme's choices, and ``order`` as in `fpemu.gpu.gemm`. For tensors of the CPU also ``hardware``, the GPU
        that is emulated: "H200" by default. The default order is the order of the H200's kernel for the shape.

    Returns
    -------
    torch.Tensor (..., M, N)
        D, contiguous, float32 or the dtype of the scheme's operands.

    Raises
    ------
    InputError, GpuError
        As `fpemu.gpu.gemm`; options that are no literals; no PyTorch.

    Notes
    -----
    The gradients are dA = alpha · (dD Bᵀ), dB = alpha · (Aᵀ dD) and dC = beta · dD, of complex tensors with conjugate
    scalars and matrices, of which a real operand has the real part; the products are calls of the same
    scheme with the same options. A gradient that is summed over batch axes, because they were broadcast, is one product
    whose sums run over these axes too, the axes before the rows or columns. PyTorch sums dC over such axes.
    """
    name, text = _operators.request(scheme, {"on_range": on_range, **options})
    return _operators.gemm(A, B, C, name, *_operators.numbers(alpha, beta), text)


def hgemm(A: Any, B: Any, C: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0, **options: Any) -> Any:
    """Return D = alpha · op(A) op(B) + beta · C for a batch of fp16 matrices, with gradients by the same kernel.

    Parameters
    ----------
    A, B, C : torch.Tensor of float16
        As in `fpemu.gpu.batched.hgemm`, or on the CPU, for `fpemu.batched.hgemm`.
    alpha, beta : real numbers
        As in `fpemu.batched.hgemm`; no gradient.
    **options
        ``transa``, ``transb``, ``accumulate``, ``kernel`` as in `fpemu.batched.hgemm`; ``hardware`` as in `gemm`.

    Returns
    -------
    torch.Tensor (..., M, N)
        D, float16 and contiguous.

    Raises
    ------
    InputError, GpuError
        As `fpemu.gpu.batched.hgemm`; no PyTorch.

    Notes
    -----
    Gradients are products with the same options, and sums over broadcast batch axes are part of them, as in `gemm`.
    With kernel="magma-small" PyTorch instead sums the products of the batch, each rounded to float16, over such axes:
    the sums have the bits of `torch.sum` on the device.
    """
    return _operators.batched(A, B, C, None, *_operators.numbers(alpha, beta), _operators.literal(options))


def hcgemm(
    A: Any, B: Any, C: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0, layout: str = "interleaved", **options: Any
) -> Any:
    """Return D = alpha · op(A) op(B) + beta · C for half-complex matrices, with gradients by the same kernel.

    Parameters
    ----------
    A, B, C : torch.Tensor of float16 with one axis more
        The last of two (interleaved) or the first (planar); else as in `hgemm`.
    alpha, beta : complex or real numbers
        As in `fpemu.batched.hcgemm`; no gradient.
    layout : {"interleaved", "planar"}
        Layout of A, B, C and D.
    **options
        As in `hgemm`, and ``products`` and ``algorithm`` as in `fpemu.batched.hcgemm`.

    Returns
    -------
    torch.Tensor
        D in the layout, float16 and contiguous.

    Notes
    -----
    Gradients are those of the parts: as in `hgemm`, with adjoint matrices. PyTorch multiplies dD by a complex beta.
    """
    return _operators.batched(A, B, C, layout, *_operators.numbers(alpha, beta), _operators.literal(options))


def multiply(A: Any, B: Any) -> Any:
    """Return C = A B for tall and skinny matrices, with gradients by the same chains of fused multiply-adds.

    Parameters
    ----------
    A, B : torch.Tensor (m, k) and (k, n)
        As in `fpemu.gpu.tallskinny.multiply`, or on the CPU, for `fpemu.simt.tsm2`, whose bits every kernel has;
        float32 or float64; float16 and bfloat16 are converted to float32.

    Returns
    -------
    torch.Tensor (m, n)
        C, contiguous, of the dtype of the converted operands; a gradient has the dtype of its operand.

    Raises
    ------
    InputError, GpuError
        As `fpemu.gpu.tallskinny.multiply`; no PyTorch.
    """
    return _operators.tallskinny(A, B)


def matmul(scheme: Any, *, on_range: Any = None, **options: Any) -> Any:
    """Return a context manager in which PyTorch's products of the scheme's dtype are computed by the scheme.

    Parameters
    ----------
    scheme, on_range, **options : object
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
    family. All others run unchanged, so that two nested contexts can route two dtypes. So do functions that multiply
    internally: `torch.einsum`, ``tensordot``, ``inner``, ``chain_matmul``, `torch.linalg.multi_dot`, ``bilinear``,
    convolutions, recurrent layers and attention; and ``mv``, ``addmv``, ``dot``, ``addbmm`` and sparse products.

    An ``out`` that PyTorch rejects raises PyTorch's error. The gradients of a routed product are products by the
    scheme, wherever ``backward`` runs. `torch.compile` traces the routed products without graph breaks.
    """
    return _routing.Routing(scheme, {"on_range": on_range, **options})


def record(
    folder: str | os.PathLike[str],
    *,
    rows: int | Sequence[int] = 16,
    columns: int = 256,
    limit: int = 2**30,
    keep: Literal["first", "last"] = "first",
    operators: Iterable[str] = (),
) -> Any:
    """Return a context manager that records PyTorch's products, for `fpemu compare` and `fpemu replay`.

    Parameters
    ----------
    folder : path
        A folder without a run; it is made.
    rows : int or sequence of int
        Number of sampled rows of A and D of each product, or their indices. A number selects the first rows, which runs
        with other batch sizes have too, and rows spread over the rest.
    columns : int
        Number of sampled columns of B and D.
    limit : int
        Largest number of bytes of all files.
    keep : {"first", "last"}
        At the limit, end the record, or delete the oldest of eight files.
    operators : iterable of str
        Further operators (A, B) -> D, such as "mylib::matmul" of `torch.library`. The context manager's method
        ``add(operator, A, B, D, C=None)`` records any other product, such as a Triton kernel's.

    Returns
    -------
    context manager
        It applies to the current thread, and to ``backward`` within it.

    Raises
    ------
    InputError
        A folder with a run; a CUDA graph that is captured within; no PyTorch.

    Notes
    -----
    ``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``linear`` and ``_scaled_mm`` are recorded, in the forms that PyTorch
    dispatches: `torch.matmul`, `torch.einsum` and layers call these. The products within fused attention are not
    visible: its operands and result are recorded by their digests; the math backend of
    `torch.nn.functional.scaled_dot_product_attention` shows them. Each record has type, shape, strides, the settings of
    `torch.backends.cuda.matmul`, versions, digests of operands and result, and samples: rows of A, columns of B, and
    their entries of D and C, of the first product of a batch. Products wait on the GPU and are written 64 at a time.
    """
    return _recording.Recorder(folder, rows, columns, limit, keep, operators)
