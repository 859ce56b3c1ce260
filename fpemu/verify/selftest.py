"""The emulated GEMM on the GPU at hand against the two forms on the CPU, bit for bit, and what is kept of it.

Cases are functions of a seed (`fpemu.verify.trials`): the record holds digests of the GPU's outputs, and any
machine can compute a case again and compare. Schemes run on both devices, with the same operands.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu.gpu.runtime import device
from fpemu.mma import MmaSpec
from fpemu.verify import scheme_trials, trials
from fpemu.verify.digests import digest
from fpemu.verify.processes import pool

Device = Literal["cuda", "cpu"]
CUSTOM = 64
"""Drawn specs of a full run"""
_QUICK = 6  # a quick run takes every sixth spec of each kind
_PLACES = 3  # of outputs that differ are kept for each spec
_MESSAGE = 300  # characters of an error that are kept
ABOUT = (
    "The emulated GEMM on a GPU, compared bit for bit with the compiled and the NumPy form on a CPU. Every case is a "
    "function of seed, spec and number (fpemu.verify.trials), every product of a scheme of seed, scheme, "
    "hardware and number (fpemu.verify.scheme_trials); digests: of the GPU's outputs, one a case. in_numpy: "
    "outputs compared with the NumPy form too. first: the first outputs that differ, or the error of a case that failed"
)


@dataclass(frozen=True)
class Outcome:
    """What was found on one spec, or on one scheme on one hardware."""

    name: str
    outputs: int = 0
    in_numpy: int = 0
    mismatches: int = 0
    """Outputs that differ from one of the forms"""
    failed: int = 0
    """Cases that raised an error"""
    digests: tuple[str, ...] = ()
    """Of each case in turn; empty where a case failed, or where there is none"""
    first: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is nothing to complain about."""
        return not self.mismatches and not self.failed


@dataclass
class Findings:
    """A self-test so far."""

    seed: int
    device: Device = "cuda"
    specs: list[Outcome] = field(default_factory=list)
    schemes: list[Outcome] = field(default_factory=list)
    rates: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `fpemu.verify.speed.rates`"""
    crossover: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `fpemu.verify.speed.crossover`"""

    @property
    def outputs(self) -> int:
        """All outputs compared."""
        return sum(o.outputs for o in (*self.specs, *self.schemes))

    @property
    def mismatches(self) -> int:
        """Those that differ."""
        return sum(o.mismatches for o in (*self.specs, *self.schemes)) + sum(r.get("mismatches", 0) for r in self.rates)

    @property
    def failed(self) -> int:
        """Cases, products and rows of speed that raised an error."""
        return sum(o.failed for o in (*self.specs, *self.schemes)) + sum("failed" in row for row in self.rates)

    @property
    def ok(self) -> bool:
        """Whether all is equal."""
        return not self.mismatches and not self.failed


# --- GEMMs of any spec
def names(quick: bool = False) -> list[str]:
    """The specs of a self-test: every row of the catalog, then drawn ones."""
    rows, custom = trials.rows(), [f"{trials.CUSTOM}{i}" for i in range(CUSTOM)]
    return [*rows[::_QUICK], *custom[::_QUICK]] if quick else [*rows, *custom]


def pairs(quick: bool = False) -> list[str]:
    """The schemes of a self-test, each on some hardware."""
    return scheme_trials.pairs()[:: _QUICK if quick else 1]


def sources(chosen: Sequence[str], seed: int) -> list[str]:
    """The kernels of some specs, to have them compiled before."""
    from fpemu.gpu.emulation import chains

    return list(dict.fromkeys(chains.source(trials.spec(name, seed)) for name in chosen))


def check_specs(chosen: Sequence[str], seed: int, *, on: Device = "cuda", jobs: int | None = None) -> Iterator[Outcome]:
    """Compare the GEMMs of some specs, named as `fpemu.verify.trials.spec` takes them.

    Parameters
    ----------
    on : {"cuda", "cpu"}
        What is tested; "cpu": the compiled form against NumPy's, without a GPU.
    jobs : int, optional
        Processes for the forms on the CPU; default: one a core, at most 16. 1: none but this.

    Yields
    ------
    Outcome
        In the order of `chosen`.
    """
    for name, expected in _side_by_side(_expected, chosen, seed, jobs):
        yield _outcome(name, seed, on, expected)


def _side_by_side(
    function: Callable[[str, int], Any], chosen: Sequence[str], seed: int, jobs: int | None
) -> Iterator[tuple[str, Any]]:
    """Each name with function(name, seed), by processes of one thread each."""
    jobs = min(os.cpu_count() or 1, 16, len(chosen)) if jobs is None else jobs
    if jobs < 2:
        for name in chosen:
            yield name, function(name, seed)
        return
    apart = [name for start in range(jobs) for name in chosen[start::jobs]]  # neighbours would compile the same kernel
    with pool(jobs) as processes:
        waiting = {name: processes.submit(function, name, seed) for name in apart}
        for name in chosen:
            yield name, waiting.pop(name).result()


Expected = tuple[NDArray[Any] | str, NDArray[Any] | str | None]


def _expected(name: str, seed: int) -> list[Expected]:
    """For each case codes by the compiled form and by NumPy's (None where that takes long); an error as text."""
    cases = [trials.case(trials.spec(name, seed), number, seed) for number in range(trials.CASES)]
    return [(_tried(case, "compiled"), None if case.slow else _tried(case, "numpy")) for case in cases]


def _tried(case: trials.Case, form: trials.Form) -> NDArray[Any] | str:
    try:
        return trials.compute(case, form)
    except Exception as problem:
        return f"{form}: {_said(problem)}"


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:_MESSAGE]


def _outcome(name: str, seed: int, on: Device, expected: list[Expected]) -> Outcome:
    row = trials.spec(name, seed)
    outputs = in_numpy = mismatches = failed = 0
    digests, first = [], []
    for number, (compiled, readable) in enumerate(expected):
        case = trials.case(row, number, seed)
        got = _tried(case, "cuda") if on == "cuda" else compiled
        forms = {"compiled": compiled, "numpy": readable}
        errors = [x for x in (got, *forms.values()) if isinstance(x, str)]
        if errors or isinstance(got, str):
            failed += 1
            digests.append("")
            first.append(f"case {number} ({case}): {errors[0]}")
            continue
        outputs += got.size
        in_numpy += got.size * (readable is not None)
        digests.append(f"{digest(got):016x}")
        wanted = {form: want for form, want in forms.items() if want is not None and not isinstance(want, str)}
        mismatches += _differ(got, *wanted.values())
        for form, want in wanted.items():
            first += _places(got, want, f"case {number} ({case}), {form}")
    return Outcome(name, outputs, in_numpy, mismatches, failed, tuple(digests), tuple(first[:_PLACES]))


def _differ(got: NDArray[Any], *wanted: NDArray[Any]) -> int:
    """How many outputs differ from one of those wanted; all of them if they are not the same array at all."""
    if any(_unlike(got, want) for want in wanted):
        return max(got.size, *(want.size for want in wanted), 1)
    wrong = np.zeros(got.shape, bool)
    for want in wanted:
        wrong |= got != want
    return int(wrong.sum())


def _unlike(got: NDArray[Any], want: NDArray[Any]) -> bool:
    return got.shape != want.shape or got.dtype != want.dtype


def _places(got: NDArray[Any], want: NDArray[Any], what: str) -> list[str]:
    """The first output that differs, in words; none if there is none."""
    if _unlike(got, want):
        return [f"{what}: {got.dtype} {got.shape} in place of {want.dtype} {want.shape}"]
    wrong = np.argwhere(got != want)
    if not len(wrong):
        return []
    at = tuple(int(i) for i in wrong[0])
    return [f"{what}: {len(wrong)} of {got.size} differ, the first at {at}: {got[at]:#x} in place of {want[at]:#x}"]


def replay(entry: dict[str, Any], number: int, seed: int, form: trials.Form = "numpy") -> str | None:
    """The digest of a case of a record's spec by one of the forms; None if it takes NumPy's long."""
    row = MmaSpec(**entry["spec"]) if "spec" in entry else trials.spec(entry["name"], seed)
    case = trials.case(row, number, seed)
    return None if case.slow and form == "numpy" else f"{digest(trials.compute(case, form)):016x}"


# --- schemes
def check_schemes(
    chosen: Sequence[str], seed: int, *, on: Device = "cuda", jobs: int | None = None
) -> Iterator[Outcome]:
    """Compare the products of schemes on a device with those on the CPU; `chosen` as `pairs` of
    `fpemu.verify.scheme_trials` gives them."""
    for name, expected in _side_by_side(_products, chosen, seed, jobs):
        outputs = mismatches = failed = 0
        digests, first = [], []
        for number, want in enumerate(expected):
            got = _product(name, number, seed, on)
            if isinstance(want, str) or isinstance(got, str):
                failed += 1
                digests.append("")
                first.append(f"product {number}: {want if isinstance(want, str) else got}")
                continue
            outputs += got.size
            mismatches += _differ(got, want)
            digests.append(f"{digest(got):016x}")
            first += _places(got, want, f"product {number}")
        yield Outcome(name, outputs, 0, mismatches, failed, tuple(digests), tuple(first[:_PLACES]))


def _products(name: str, seed: int) -> list[NDArray[Any] | str]:
    return [_product(name, number, seed, "cpu") for number in range(scheme_trials.PRODUCTS)]


def _product(name: str, number: int, seed: int, on: Device) -> NDArray[Any] | str:
    """As `scheme_trials.product`, an error as text."""
    try:
        return scheme_trials.product(name, number, seed, on)
    except Exception as problem:
        return f"{on}: {_said(problem)}"


# --- the record
def record(found: Findings) -> dict[str, Any]:
    """What was found, as it is kept."""
    from fpemu.verify import records

    here: dict[str, Any] = {"gpu": "none: the compiled form on the CPU was tested"}
    if found.device == "cuda":
        here = {**device.describe(), "driver": records.driver()}
    return {
        "about": ABOUT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__,
        "device": here,
        "host": {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__},
        "seed": found.seed,
        "cases_of_a_spec": trials.CASES,
        "outputs": found.outputs,
        "in_numpy": sum(o.in_numpy for o in found.specs),
        "mismatches": found.mismatches,
        "failed": found.failed,
        "specs": [_entry(o) | _drawn(o.name, found.seed) for o in found.specs],
        "schemes": [_entry(o) for o in found.schemes],
        "rates": found.rates,
        "crossover": found.crossover,
    }


def _entry(outcome: Outcome) -> dict[str, Any]:
    return {k: v for k, v in asdict(outcome).items() if v or k in ("name", "outputs", "mismatches")}


def _drawn(name: str, seed: int) -> dict[str, Any]:
    return {"spec": trials.fields(trials.spec(name, seed))} if name.startswith(trials.CUSTOM) else {}


def text(made: dict[str, Any]) -> str:
    """A record as JSON, a line for each spec, scheme and rate."""
    lines = []
    for name, value in made.items():
        if isinstance(value, list) and value:
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            lines.append(f" {json.dumps(name)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
