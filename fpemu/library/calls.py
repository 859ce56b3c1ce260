"""A library's product on the GPU at hand as a function of NumPy arrays: what anything that takes a callable can ask."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import library
from fpemu.errors import InputError, unknown_name


def cublas(kind: str, layout: str, shape: tuple[int, int, int]) -> Callable[[Any, Any], NDArray[Any]]:
    """cuBLAS through PyTorch, as a function (A, B) -> D.

    Parameters
    ----------
    kind : one of `fpemu.library.TYPES`
    layout : {"TN", "NN"}
    shape : (M, N, K)

    Raises
    ------
    InputError
        Unknown names; no PyTorch, or no GPU that it can use.
    """
    if kind not in library.TYPES:
        raise unknown_name("type of product", kind, library.TYPES)
    if layout not in library.LAYOUTS:
        raise unknown_name("layout", layout, library.LAYOUTS)
    torch = _torch()
    inputs, _, result = kind.partition("->")
    given = {"bf16": torch.bfloat16, "fp64": torch.float64, "fp16": torch.float16}.get(inputs, torch.float32)
    wider = {"out_dtype": torch.float32} if inputs in ("fp16", "bf16") and not result else {}

    def call(A: Any, B: Any) -> NDArray[Any]:
        if (*np.shape(A), np.shape(B)[1]) != (shape[0], shape[2], shape[1]):
            raise InputError(f"A {np.shape(A)} and B {np.shape(B)} are not the product that is asked for, {shape}")
        a = torch.from_numpy(np.ascontiguousarray(A)).to("cuda").to(given)
        if layout == "TN":
            b = torch.from_numpy(np.ascontiguousarray(np.asarray(B).T)).to("cuda").to(given).t()
        else:
            b = torch.from_numpy(np.ascontiguousarray(B)).to("cuda").to(given)
        matmul = torch.backends.cuda.matmul
        before, matmul.allow_tf32 = matmul.allow_tf32, kind == "tf32"
        try:
            found: NDArray[Any] = torch.mm(a, b, **wider).cpu().numpy()
        finally:
            matmul.allow_tf32 = before
        return found

    return call


def architecture() -> str | None:
    """The architecture of the GPU that PyTorch uses, None where the catalog does not have it."""
    from fpemu.mma import catalog

    major, minor = _torch().cuda.get_device_capability()
    try:
        return catalog.architecture(f"sm_{major}{minor}")
    except InputError:
        return None


def _torch() -> Any:
    if find_spec("torch") is None:
        raise InputError("cuBLAS is called through PyTorch, which is not installed: pip install torch")

    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise InputError("cuBLAS needs an NVIDIA GPU, and PyTorch sees none here")
    return torch
