"""Results of `fpemu.advise`: verdicts on candidates, the advice, and the error if no scheme meets the target."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.advice.candidates import Candidate
from fpemu.errors import InputError
from fpemu.mma import MmaSpec
from fpemu.theory import Bound


@dataclass(frozen=True)
class Verdict:
    """Bound and measured error of a candidate, against a target.

    Parameters
    ----------
    candidate : Candidate
        Scheme with its options and cost.
    bound : Bound or None
        Relative to |A||B|, with its parts; None if none can be given.
    worst, probable : float
        The bound in the requested measure; `probable` fails with a probability of `FAILURE` at most.
    measured : float or None
        The error on the data in that measure; None if it was not tried.
    tried : (int, int) or None
        Rows and columns of the data for which the error was measured.
    why : str
        Reason why it is not recommended; empty if there is none.
    """

    candidate: Candidate
    bound: Bound | None
    worst: float
    probable: float
    measured: float | None = None
    tried: tuple[int, int] | None = None
    why: str = ""

    def limit(self, confidence: str) -> float:
        """The bound for a confidence."""
        return self.worst if confidence == "worst" else self.probable

    def parts(self) -> list[tuple[str, float]]:
        """The parts of the worst-case bound relative to |A||B|, the largest first."""
        return sorted(((p.name, p.worst) for p in self.bound.parts), key=lambda p: -p[1]) if self.bound else []


class TargetError(InputError):
    """No scheme meets the target.

    The command line exits with status 1, not 2.

    Parameters
    ----------
    message : str
        Description in one line.
    best : Verdict
        Candidate with the smallest bound.
    """

    def __init__(self, message: str, best: Verdict) -> None:
        super().__init__(message)
        self.best = best


def without_bound(A: NDArray[Any], B: NDArray[Any], measure: str) -> str:
    """The reason why no scheme has a finite bound on A·B in a measure; empty if there is no common reason."""
    with np.errstate(over="ignore"):
        overflow = ~np.isfinite(np.abs(A) @ np.abs(B))
    if overflow.any():
        count = f"{np.count_nonzero(overflow)} of {overflow.size} entries"
        return f"|A||B| overflows fp64 in {count}, so that no bound is finite: multiply A or B by a power of two first"
    if measure != "normwise":
        return f"entries of A B that are or may be zero leave {measure} without a bound (normwise has one)"
    return ""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The result of `fpemu.advise`.

    Parameters
    ----------
    target : float
        Requested relative error.
    measure, confidence : str
        Requested error measure and bound.
    hardware : str
        Requested hardware.
    unit : str, MmaSpec or None
        The hardware as `fpemu.gemm` takes it; None: ordinary cores.
    M, N, K : int
        Sizes of the product.
    data : str
        Operands to which the norms and the measured error belong.
    rates : str
        The GPU whose peaks weigh the units, "nominal" if there is none.
    chosen : Verdict
        The cheapest candidate that meets the target.
    alternatives : tuple of Verdict
        Other schemes that meet it, each in its cheapest form, cheapest first.
    nearest : tuple of Verdict
        Cheaper ones that do not, those that miss it least first.
    considered : tuple of Verdict
        All candidates that were judged, cheapest first; those that were not tried have measured=None.
    checked : bool
        Whether every entry of the user's product was compared with the exact one.
    rounds : bool
        Whether the scheme needs the operands rounded to fp32 first.
    notes : tuple of str
        Restrictions of the result, in sentences.
    """

    target: float
    measure: str
    confidence: str
    hardware: str
    unit: str | MmaSpec | None
    M: int
    N: int
    K: int
    data: str
    rates: str
    chosen: Verdict
    alternatives: tuple[Verdict, ...]
    nearest: tuple[Verdict, ...]
    considered: tuple[Verdict, ...]
    checked: bool
    rounds: bool
    notes: tuple[str, ...]

    @property
    def scheme(self) -> str:
        """Name of the scheme recommended."""
        return self.chosen.candidate.scheme

    @property
    def options(self) -> dict[str, Any]:
        """Its options, without defaults."""
        return dict(self.chosen.candidate.options)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `fpemu.gemm` beside A and B."""
        policy = self.chosen.candidate.on_range
        where = {} if self.unit is None else {"hardware": self.unit}
        return {"scheme": self.scheme, **where, **({"on_range": policy} if policy != "raise" else {}), **self.options}

    def call(self) -> str:
        """The product as a line of Python; an instruction given as MmaSpec appears as the variable spec."""
        A, B = ("A.astype(np.float32)", "B.astype(np.float32)") if self.rounds else ("A", "B")
        shown = {name: "spec" if isinstance(value, MmaSpec) else repr(value) for name, value in self.arguments.items()}
        return f"fpemu.gemm({A}, {B}, {', '.join(f'{name}={value}' for name, value in shown.items())})"

    def command(self, a: str = "A.npy", b: str = "B.npy") -> str:
        """The product as a command; an instruction given as MmaSpec appears as its architecture."""
        policy, unit = self.chosen.candidate.on_range, self.unit
        words = ["fpemu", "gemm", a, b, "--scheme", self.scheme]
        words += [] if unit is None else ["--hardware", unit.architecture if isinstance(unit, MmaSpec) else unit]
        words += [word for name, value in self.options.items() for word in ("--option", f"{name}={value}")]
        return shlex.join(words + (["--on-range", policy] if policy != "raise" else []))
