"""Comparison of a product, or of recorded runs, with bit-exact specifications; the search for causes of mismatches."""

from fpemu.conformance.causes import Cause
from fpemu.conformance.compare import Difference, compare
from fpemu.conformance.replay import Explanation, Replayed, RunDifference, compare_runs, replay_run
from fpemu.conformance.runs import Recorded
from fpemu.conformance.specification import Specification
from fpemu.conformance.verdict import Verdict, verify

__all__ = [
    "Cause",
    "Difference",
    "Explanation",
    "Recorded",
    "Replayed",
    "RunDifference",
    "Specification",
    "Verdict",
    "compare",
    "compare_runs",
    "replay_run",
    "verify",
]
