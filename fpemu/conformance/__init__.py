"""Comparison of a product with its bit-exact specification, and the search for the cause of mismatches."""

from typing import Any

from fpemu.conformance.causes import Cause
from fpemu.conformance.compare import Difference, compare
from fpemu.conformance.specification import Specification
from fpemu.conformance.verdict import Verdict, verify

__all__ = ["Cause", "Difference", "Specification", "Verdict", "compare", "verify"]


def __getattr__(name: str) -> Any:
    if name == "Claim":
        import warnings

        warnings.warn("fpemu.conformance.Claim is now Specification", DeprecationWarning, stacklevel=2)
        return Specification
    raise AttributeError(f"module 'fpemu.conformance' has no attribute {name!r}")
