"""Whether a product of somebody else's is what it is said to be, bit for bit, and if not, why."""

from fpemu.conformance.causes import Cause
from fpemu.conformance.claim import Claim
from fpemu.conformance.compare import Difference, compare
from fpemu.conformance.verdict import Verdict, verify

__all__ = ["Cause", "Claim", "Difference", "Verdict", "compare", "verify"]
