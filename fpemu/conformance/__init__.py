"""Comparison of a product with its bit-exact specification, and the search for the cause of mismatches."""

from fpemu.conformance.causes import Cause
from fpemu.conformance.claim import Claim
from fpemu.conformance.compare import Difference, compare
from fpemu.conformance.verdict import Verdict, verify

__all__ = ["Cause", "Claim", "Difference", "Verdict", "compare", "verify"]
