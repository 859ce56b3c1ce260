"""fpemu: GEMM on low-precision matrix units, bit for bit, and every scheme that makes FP32 and FP64 out of it."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, FP16, FP32, FP64, TF32, FloatFormat
from fpemu.rounding import Rounding, bit_cut, round_to

if TYPE_CHECKING:
    from fpemu import (
        batched,
        bitpicture,
        conformance,
        gpu,
        inputs,
        metrics,
        mma,
        perfmodel,
        plotting,
        probing,
        reference,
        schemes,
        simt,
        sweep,
        theory,
    )
    from fpemu.advice import advise
    from fpemu.schemes import certify, gemm

__version__ = "0.1.0"
__all__ = [
    "BF16", "E2M1", "E2M3", "E3M2", "E4M3", "E5M2", "FP16", "FP32", "FP64", "TF32", "FloatFormat", "GpuError",
    "GuaranteeError", "InputError", "Rounding", "advise", "batched", "bit_cut", "bitpicture", "certify", "conformance",
    "gemm", "gpu", "inputs", "metrics", "mma", "perfmodel", "plotting", "probing", "reference", "round_to", "schemes",
    "simt", "sweep", "theory",
]  # fmt: skip
_SUBPACKAGES = (
    "batched", "bitpicture", "conformance", "gpu", "inputs", "metrics", "mma", "perfmodel", "plotting", "probing",
    "reference", "schemes", "simt", "sweep", "theory",
)  # fmt: skip
_SUBMODULES = {"mma": ("exactness",), "probing": ("drawing", "pictures"), "schemes": ("strassen",)}
"""Public submodules that their subpackage does not import; `__getattr__` imports them with it."""

_FUNCTIONS = {"gemm": "fpemu.schemes", "certify": "fpemu.schemes", "advise": "fpemu.advice"}


def __getattr__(name: str) -> Any:
    """Import a subpackage when its name is first used."""
    if name not in _SUBPACKAGES and name not in _FUNCTIONS:
        raise AttributeError(f"module 'fpemu' has no attribute {name!r}")
    module = importlib.import_module(_FUNCTIONS.get(name, f"fpemu.{name}"))
    for package, submodules in _SUBMODULES.items():  # of every subpackage that this import has loaded, to its end
        if hasattr(sys.modules.get(f"fpemu.{package}"), "__all__"):
            for submodule in submodules:
                importlib.import_module(f"fpemu.{package}.{submodule}")
    return getattr(module, name) if name in _FUNCTIONS else module


def __dir__() -> list[str]:
    return sorted(__all__)
