"""fpemu: GEMM on low-precision matrix units, bit for bit, and the schemes that build FP32 and FP64 products from it."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # without the import of typing: an interrupt of these imports cannot be handled
if TYPE_CHECKING:
    from typing import Any

    from fpemu import (
        batched,
        conformance,
        gpu,
        inputs,
        library,
        metrics,
        mma,
        plotting,
        probing,
        reference,
        reproduce,
        roofline,
        schemes,
        simt,
        sweep,
        testing,
        theory,
        torch,
        triton,
    )
    from fpemu.advice import advise
    from fpemu.conformance import verify
    from fpemu.errors import GpuError, GuaranteeError, InputError
    from fpemu.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, FP16, FP32, FP64, TF32, FloatFormat
    from fpemu.rounding import Rounding, bit_cut, round_to
    from fpemu.schemes import certify, gemm

__version__ = "0.2.0"
__all__ = [
    "BF16",
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E5M2",
    "E8M0",
    "FP16",
    "FP32",
    "FP64",
    "TF32",
    "FloatFormat",
    "GpuError",
    "GuaranteeError",
    "InputError",
    "Rounding",
    "advise",
    "batched",
    "bit_cut",
    "certify",
    "conformance",
    "gemm",
    "gpu",
    "inputs",
    "library",
    "metrics",
    "mma",
    "plotting",
    "probing",
    "reference",
    "reproduce",
    "roofline",
    "round_to",
    "schemes",
    "simt",
    "sweep",
    "testing",
    "theory",
    "torch",
    "triton",
    "verify",
]
_SMALL_FORMATS = ("E4M3", "E5M2", "E3M2", "E2M3", "E2M1", "E8M0")
_NAMES = {
    "fpemu.advice": ("advise",),
    "fpemu.conformance": ("verify",),
    "fpemu.errors": ("GpuError", "GuaranteeError", "InputError"),
    "fpemu.formats": ("FP16", "BF16", "TF32", "FP32", "FP64", *_SMALL_FORMATS, "FloatFormat"),
    "fpemu.rounding": ("Rounding", "bit_cut", "round_to"),
    "fpemu.schemes": ("certify", "gemm"),
}
"""The names of each module that are names of the package too."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {*__all__, "errors", "formats", "rounding", "verification"} - _MODULE_OF.keys()
_SUBMODULES = {"mma": ("exactness", "serialise"), "probing": ("trees",), "schemes": ("strassen",)}
"""Public submodules that their subpackage does not import; `__getattr__` imports them with it."""


def __getattr__(name: str) -> Any:
    """Import a module when its name, or one from it, is first used.

    The package itself imports nothing, so that an interrupt during NumPy's import reaches the command line's handler.
    """
    if name not in _MODULES and name not in _MODULE_OF:
        raise AttributeError(f"module 'fpemu' has no attribute {name!r}")
    module = importlib.import_module(_MODULE_OF.get(name, f"fpemu.{name}"))
    for package, submodules in _SUBMODULES.items():  # of every subpackage that this import has loaded, to its end
        if hasattr(sys.modules.get(f"fpemu.{package}"), "__all__"):
            for submodule in submodules:
                importlib.import_module(f"fpemu.{package}.{submodule}")
    return getattr(module, name) if name in _MODULE_OF else module


def __dir__() -> list[str]:
    return sorted(__all__)
