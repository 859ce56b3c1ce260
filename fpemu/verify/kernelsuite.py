"""The kernels of `fpemu.gpu.gemm` against `fpemu.gemm`, bit for bit: all schemes and options, on hostile operands.

What is compared is what a user gets: results, and the text of errors. The record (`kernelrecord`) holds digests of what
the GPU returned, and `replay` computes some of them again without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu.errors import GuaranteeError, InputError
from fpemu.gpu.gemm.choice import NoKernelError, architecture, kernel
from fpemu.gpu.runtime import matrices
from fpemu.mma import KOrder, MmaSpec, catalog
from fpemu.schemes import ErrorFree, SplitScheme
from fpemu.verify import kernelcases, trials
from fpemu.verify.digests import digest
from fpemu.verify.kernelcases import Case, Variant
from fpemu.verify.kernelrecord import Outcome
from fpemu.verify.processes import side_by_side

REPLAYED = 3
"""Products of a variant whose digest is kept"""
_SMALL = 2**17  # multiply-adds: emulated on the CPU too
_TINY = 2**16  # and computed again from the record
_SHARED = 3  # by so many variants, or more
_PLACES = 3  # of outputs that differ are kept for each variant
_MESSAGE = 300  # characters of an error that are kept


class _Lent:
    """An array in the GPU's memory as others hand it over: by ``__cuda_array_interface__`` alone."""

    def __init__(self, x: NDArray[Any]) -> None:
        self._matrix = X = matrices.upload(x)
        self.__cuda_array_interface__ = {
            "shape": X.shape,
            "typestr": X.dtype.str,
            "data": (X.pointer, False),
            "version": 3,
            "strides": tuple(s * X.dtype.itemsize for s in X.strides),
        }


Result = NDArray[Any] | str  # codes, or the text of an error that is the caller's


def check(
    variants: Sequence[Variant], seed: int, cases: int, *, emulated_on: str = "cuda", jobs: int = 1
) -> Iterator[Outcome]:
    """Compare some variants, `cases` products of each (a sixth of them where options are not the published ones).

    Parameters
    ----------
    emulated_on : {"cuda", "cpu"}
        Where `fpemu.gemm` emulates. What is small it emulates on the CPU too, where the options are the published ones:
        that takes as long again.
    jobs : int
        Processes side by side, which share the GPU: kernels take longer to compile than to run.

    Yields
    ------
    Outcome
        As they are done.
    """
    given = seed, cases, emulated_on
    yield from side_by_side(one, variants, given, jobs, lambda v, why: Outcome(str(v), failed=1, first=[why]))


def sources(variants: Sequence[Variant]) -> list[str]:
    """The kernels that many of the variants share, to have them compiled before."""
    from fpemu.gpu.emulation import chains
    from fpemu.gpu.gemm import splitting
    from fpemu.gpu.runtime import compiler

    found = [compiler.kernel_source(f"{name}.cu") for name in ("strided_copy", "nonfinite_outputs")] * _SHARED
    for variant in variants:
        scheme = variant.build()
        spec = scheme.spec(architecture()) if scheme.needs_hardware else None
        if spec is not None and isinstance(scheme, SplitScheme):
            found += [chains.source(spec), splitting.source(scheme.rules())]
    return [text for text, count in Counter(found).items() if count >= _SHARED]


def one(variant: Variant, seed: int, cases: int, emulated_on: str = "cuda") -> Outcome:
    """The products of one variant."""
    outcome, digests = Outcome(str(variant)), []
    for number in kernelcases.numbers(variant, seed, cases):
        digests.append(_compare(variant, kernelcases.case(variant, number, seed), number, emulated_on, outcome))
    outcome.digest = f"{digest(np.array(digests, np.uint64)):016x}"
    return outcome


def _compare(variant: Variant, case: Case, number: int, emulated_on: str, outcome: Outcome) -> int:
    """One product, counted; its digest."""
    outcome.products += 1
    try:
        A, B, C = kernelcases.operands(case, variant.build().operand)
        case, name, arguments = _kernel(variant, case)
        with np.errstate(all="ignore"):
            got = _told(lambda: _on_gpu(variant, case, A, B, C))
            both = case.products <= _SMALL and emulated_on != "cpu" and not variant.options
            devices = [emulated_on, *["cpu"] * both]
            wanted = {d: _told(lambda d=d: _emulated(case, A, B, C, arguments, d)) for d in devices}  # type: ignore[misc]
    except NoKernelError:
        outcome.without += 1
        return 0
    except Exception as problem:  # whatever goes wrong with one, the others are run
        outcome.failed += 1
        outcome.first.append(f"{number}: {case}: {type(problem).__name__}: {' '.join(str(problem).split())[:_MESSAGE]}")
        return 0
    if name not in outcome.kernels:
        outcome.kernels.append(name)
    different = 0
    for device, want in wanted.items():
        count, place = _difference(got, want)
        different = max(different, count)
        if count and len(outcome.first) < _PLACES:
            outcome.first.append(f"{number}: {case}: {name} against fpemu.gemm on {device}: {place}")
    outcome.mismatches += different
    if isinstance(got, str):
        outcome.errors += 1
        return digest(np.frombuffer(got.encode(), np.uint8))
    outcome.outputs += got.size
    outcome.on_cpu += got.size * ("cpu" in wanted)
    found = digest(got)
    if len(outcome.replay) < REPLAYED and case.products <= _TINY:
        kept = {"number": number, "digest": f"{found:016x}", **_kept(arguments)}
        outcome.replay.append(kept)
    return found


def _kernel(variant: Variant, case: Case) -> tuple[Case, str, dict[str, Any]]:
    """The case, without its order if no kernel has that; the kernel's name; what makes `fpemu.gemm` give its bits."""
    scheme = variant.build()
    if isinstance(scheme, ErrorFree):
        return case, "error-free", {"scheme": scheme, "hardware": architecture(), "order": case.order}
    try:
        found = kernel(scheme, *case.sizes, order=case.order)
    except NoKernelError:
        case = replace(case, order=None)
        found = kernel(scheme, *case.sizes)
    return case, found.name, found.arguments


def _on_gpu(variant: Variant, case: Case, *operands: NDArray[Any] | None) -> NDArray[Any]:
    from fpemu.gpu.gemm import gemm

    A, B, C = (_Lent(x) if case.on_gpu and x is not None else x for x in operands)
    D = gemm(A, B, C, alpha=case.alpha, beta=case.beta, on_range=case.on_range, order=case.order, **variant.arguments)
    return trials.codes(D.get() if case.on_gpu else D)


def _emulated(
    case: Case, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any] | None, arguments: dict[str, Any], device: Any
) -> NDArray[Any]:
    D = fpemu.gemm(A, B, C, alpha=case.alpha, beta=case.beta, on_range=case.on_range, device=device, **arguments)
    return trials.codes(D)


def _told(compute: Callable[[], NDArray[Any]]) -> Result:
    """Codes, or what the caller is told to have done wrong."""
    try:
        return compute()
    except (InputError, GuaranteeError) as problem:
        return f"{type(problem).__name__}: {problem}"


def _difference(got: Result, want: Result) -> tuple[int, str]:
    """How many outputs differ, and the first in words."""
    if isinstance(got, str) or isinstance(want, str):
        said = [x if isinstance(x, str) else f"a result of shape {x.shape}" for x in (got, want)]
        same = isinstance(got, str) and isinstance(want, str) and got == want
        return (0, "") if same else (1, f"{said[0][:_MESSAGE]} in place of {said[1][:_MESSAGE]}")
    if got.shape != want.shape or got.dtype != want.dtype:
        return max(got.size, 1), f"{got.dtype} {got.shape} in place of {want.dtype} {want.shape}"
    wrong = np.argwhere(got != want)
    if not len(wrong):
        return 0, ""
    at = tuple(int(i) for i in wrong[0])
    return len(wrong), f"{len(wrong)} of {got.size} differ, the first at {at}: {got[at]:#x} in place of {want[at]:#x}"


# --- the record
def _kept(arguments: dict[str, Any]) -> dict[str, Any]:
    """A kernel's instruction and order as a record has them."""
    spec, order = arguments["hardware"], arguments["order"]
    own = {} if order is None else {"order": order.to_dict()}
    return {"spec": spec.name if isinstance(spec, MmaSpec) else spec, **own}


def replay(entry: dict[str, Any], kept: dict[str, Any], seed: int, hardware: str) -> str:
    """The digest of a recorded product, emulated on the CPU.

    Parameters
    ----------
    entry : dict
        The variant of a record.
    kept : dict
        One of the entry's replay.
    hardware : str
        The record's architecture.
    """
    (variant,) = (
        v for v in kernelcases.variants([entry["variant"].partition("(")[0]], hardware) if str(v) == entry["variant"]
    )
    case = kernelcases.case(variant, kept["number"], seed)
    scheme, spec = variant.build(), kept["spec"]
    rows = {row.name: row for row in catalog.rows()}
    if spec in rows:
        spec = rows[spec]
        scheme = replace(variant, options=tuple(x for x in variant.options if x[0] not in ("instruction", "k"))).build()
    order = KOrder.from_dict(kept["order"]) if "order" in kept else None
    A, B, C = kernelcases.operands(case, scheme.operand)
    with np.errstate(all="ignore"):
        D = _emulated(case, A, B, C, {"scheme": scheme, "hardware": spec, "order": order}, "cpu")
    return f"{digest(D):016x}"
