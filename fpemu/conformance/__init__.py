"""Comparison of a product with its bit-exact specification, and the search for the cause of mismatches."""

from fpemu.conformance.causes import Cause
from fpemu.conformance.compare import Difference, compare
from fpemu.conformance.specification import Specification
from fpemu.conformance.verdict import Verdict, verify

__all__ = ["Cause", "Difference", "Specification", "Verdict", "compare", "verify"]
