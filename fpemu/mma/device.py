"""The device of a product: the CPU, or an NVIDIA GPU that emulates the instruction with the same bits.

Beside it only `fpemu.verification`, `fpemu.torch`, `fpemu.sweep.operands` and the command line import `fpemu.gpu`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import choice
from fpemu.errors import InputError
from fpemu.mma.arithmetic import Operands
from fpemu.mma.spec import MmaSpec

Backend = Literal["compiled", "numpy"]
Device = Literal["auto", "cpu", "cuda"]


def resolve(device: str) -> Literal["cpu", "cuda"]:
    """Return "cuda" for "cuda", and for "auto" if a GPU can be used here; otherwise "cpu".

    An unknown device, and "cuda" without a GPU that can be used, raise InputError.
    """
    if device == "cpu":
        return "cpu"
    choice("device", device, get_args(Device))
    from fpemu.gpu.runtime.device import missing

    reason = missing()
    if reason is None:
        return "cuda"
    if device == "cuda":
        raise InputError(f"device = 'cuda': {reason}")
    return "cpu"


def gpu_count() -> int:
    """Return the number of visible GPUs; `resolve` has checked that there is one."""
    from fpemu.gpu.runtime import device

    return int(device.check(device.driver().cuDeviceGetCount()))


def implementation(device: Device, backend: Backend) -> Literal["compiled", "numpy", "cuda"]:
    """Return the implementation that computes a product on this device."""
    if backend != "compiled":
        choice("backend", backend, get_args(Backend))
    if device == "cpu" or resolve(device) == "cpu":
        return backend
    if backend == "compiled":
        return "cuda"
    if device == "cuda":
        raise InputError(f"backend = {backend!r} runs on the CPU only: device = 'cuda' requires backend = 'compiled'")
    return backend


def gemm_on_gpu(x: Operands, spec: MmaSpec, device: Device) -> NDArray[Any]:
    """Compute `fpemu.mma.reference.chain` on the GPU; with device="auto", a small product runs on the CPU.

    So does with device="auto" an instruction without an implementation in CUDA.
    """
    from fpemu.gpu.emulation import chains

    if device == "auto" and not (spec.has_cuda and chains.chain_gains(x.C.shape, x.A.shape[-1])):
        return spec.rules.chain(x, spec)
    return chains.chain(x, spec)


def matmul(X: NDArray[Any], Y: NDArray[Any], device: Device = "cpu") -> NDArray[Any]:
    """Multiply integer matrices whose sums are exact in any order of summation.

    X (..., M, K) and Y (..., K, N) are float32 or float64, and the caller has proved that sum |x||y| over k is
    at most 2^24 (float32) or 2^53 (float64). Unless device="cpu", a large product runs on the GPU, whose presence
    `resolve` has checked.
    """
    if device != "cpu":
        from fpemu.gpu.emulation import chains

        if chains.matmul_gains(X, Y):
            return chains.matmul(X, Y)
    return np.asarray(np.matmul(X, Y))
