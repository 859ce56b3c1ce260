"""fpemu: GEMM on low-precision matrix units, bit for bit, and every scheme that makes FP32 and FP64 out of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fpemu.errors import GuaranteeError, InputError
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
    "BF16", "E2M1", "E2M3", "E3M2", "E4M3", "E5M2", "FP16", "FP32", "FP64", "TF32", "FloatFormat", "GuaranteeError",
    "InputError", "Rounding", "advise", "batched", "bit_cut", "bitpicture", "certify", "conformance", "gemm", "gpu",
    "inputs", "metrics", "mma", "perfmodel", "plotting", "probing", "reference", "round_to", "schemes", "simt", "sweep",
    "theory",
]  # fmt: skip
_ROOMS = (
    "batched", "bitpicture", "conformance", "gpu", "inputs", "metrics", "mma", "perfmodel", "plotting", "probing",
    "reference", "schemes", "simt", "sweep", "theory",
)  # fmt: skip

_FUNCTIONS = {"gemm": "fpemu.schemes", "certify": "fpemu.schemes", "advise": "fpemu.advice"}


def __getattr__(name: str) -> Any:
    """Load the rooms of the house when they are first asked for."""
    if name in _ROOMS:
        return importlib.import_module(f"fpemu.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'fpemu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
