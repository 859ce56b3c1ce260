"""The operators `torch.ops.fpemu`: their schemas, and their kernels for the CPU and for CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpemu import batched as emulated
from fpemu import schemes, simt
from fpemu.errors import InputError
from fpemu.gpu import batched as gpu_batched
from fpemu.gpu import gemm as gpu_gemm
from fpemu.gpu import tallskinny
from fpemu.gpu.batched import stacks
from fpemu.gpu.runtime import matrices
from fpemu.gpu.tallskinny import problem
from fpemu.torch import shapes
from fpemu.torch.options import DEFAULT_GPU, kernel_order, read

PLAIN = Tensor, torch.nn.Parameter
"""Classes of tensors that no subclass changes"""

library = torch.library.Library("fpemu", "DEF")
for _schema in (
    "gemm(Tensor A, Tensor B, Tensor? C, str scheme, float alpha=1.0, float beta=0.0, str options='') -> Tensor",
    "batched(Tensor A, Tensor B, Tensor? C, Scalar alpha=1.0, Scalar beta=0.0, str? layout=None, str options='') "
    "-> Tensor",
    "tallskinny(Tensor A, Tensor B) -> Tensor",
):
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def gemm_cuda(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: float = 1.0, beta: float = 0.0, options: str = ""
) -> Tensor:
    a, b, c = _bare(A), _bare(B), None if C is None else _bare(C)
    return gpu_gemm(a, b, c, scheme=scheme, alpha=alpha, beta=beta, **read(options))


def gemm_cpu(
    A: Tensor, B: Tensor, C: Tensor | None, scheme: str, alpha: float = 1.0, beta: float = 0.0, options: str = ""
) -> Tensor:
    a: Any
    b: Any
    a, b, c = (None if X is None else matrices.take(X, name) for name, X in (("A", A), ("B", B), ("C", C)))
    given = read(options)
    if schemes.get(scheme).needs_hardware:
        given = {"hardware": DEFAULT_GPU} | given
        if a.ndim > 1 and b.ndim > 1:
            given["order"] = kernel_order(scheme, options, a.shape[-2], b.shape[-1], a.shape[-1])
    return _tensor(schemes.gemm(a, b, c, scheme=scheme, alpha=alpha, beta=beta, **given))


def batched_cuda(
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


def batched_cpu(
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
        given = {"hardware": DEFAULT_GPU, "instruction": "mma"} | given
    if layout is None:
        return _tensor(emulated.hgemm(a, b, c, **given))
    given["layout"] = layout
    return _tensor(emulated.hcgemm(a, b, c, **given))


def tallskinny_cuda(A: Tensor, B: Tensor) -> Tensor:
    return tallskinny.multiply(_bare(A), _bare(B))


def tallskinny_cpu(A: Tensor, B: Tensor) -> Tensor:
    a, b = matrices.take(A, "A"), matrices.take(B, "B")
    dtype, _ = problem.checked(a, b)
    return _tensor(simt.tsm2(a, b, fmt=problem.REALS[dtype.name]))


def _bare(X: Tensor) -> Tensor:
    """A tensor whose class `fpemu.gpu` reads when it repeats recorded kernels."""
    return X if X.__class__ in PLAIN else X.detach()


def _tensor(D: Any) -> Tensor:
    return torch.from_numpy(np.require(D, requirements=["C", "W"]))


for _name, _cpu, _cuda, _fake in (
    ("gemm", gemm_cpu, gemm_cuda, shapes.gemm),
    ("batched", batched_cpu, batched_cuda, shapes.batched),
    ("tallskinny", tallskinny_cpu, tallskinny_cuda, shapes.tallskinny),
):
    library.impl(_name, _cpu, "CPU")
    library.impl(_name, _cuda, "CUDA")
    torch.library.register_fake(f"fpemu::{_name}", _fake, lib=library)
