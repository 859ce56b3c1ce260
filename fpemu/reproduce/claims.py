"""Numbers that a page measures for the claims of its paper."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A number that a page measures for a claim or a check.

    Attributes
    ----------
    name : str
        Name of the claim or the check in ``paper.toml``.
    value : float
        The number that the criterion judges.
    reading : str
        Interpretation of what the paper leaves open.
    variant : str
        Case inside the claim: a panel, a GPU model, a size.
    """

    name: str
    value: float
    reading: str = ""
    variant: str = ""
