"""The likeliest cause of a difference: alternatives tried on a few rows and columns, and confirmed on the whole.

First every change of the claim in one respect. If none gives all bits, the changes that come nearest are combined with
every other one. What reproduces all bits is an explanation; what only brings entries back explains a part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import numpy as np

from fpemu.conformance import claim as claims
from fpemu.conformance.alternatives import alternatives, units
from fpemu.conformance.changes import Change
from fpemu.conformance.claim import Claim
from fpemu.conformance.problem import Problem, Tried
from fpemu.errors import GuaranteeError, InputError
from fpemu.mma import KOrder, tree

_BEAM = 6  # changes that are combined with all others
_LISTED = 8  # explanations confirmed on the whole
_PARTS = 3
_ALIKE = 6  # alternatives of a kind that are held against a claim that holds


@dataclass(frozen=True)
class Cause:
    """Change of the claim that explains mismatches.

    Attributes
    ----------
    kinds : tuple of str
        The respects in which the claim is changed.
    text : str
        The change in words.
    left : int
        Entries of the whole result that still mismatch; 0: the change explains all.
    claim : Claim
        The changed claim.
    """

    kinds: tuple[str, ...]
    text: str
    left: int
    claim: Claim

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {"kinds": list(self.kinds), "text": self.text, "left": self.left, "claim": str(self.claim)}


@dataclass(frozen=True)
class Search:
    """What the search found.

    Attributes
    ----------
    causes : tuple of Cause
        Those that reproduce all bits, the likeliest first; if there are none, those that explain part.
    tried : int
        Alternatives evaluated.
    complete : bool
        Whether none was left out for lack of time.
    """

    causes: tuple[Cause, ...]
    tried: int
    complete: bool


def search(
    problem: Problem,
    *,
    seconds: float = 20.0,
    most: int = 20000,
    again: Callable[..., Any] | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Search:
    """The alternatives that reproduce a result.

    Parameters
    ----------
    problem : Problem
    seconds, most : float, int
        Stop after that time, or that many alternatives.
    again : callable Claim -> order, optional
        Finds the order of a callable by probes, given a claim; tried when changes in one respect do not suffice.
    progress : callable (what, tried), optional
    """
    end = time.perf_counter() + seconds

    def over() -> bool:
        return problem.tried >= most or time.perf_counter() > end

    def tell(what: str) -> None:
        if progress is not None:
            progress(what, problem.tried)

    tell("one change")
    single = _all(problem, (Change("", "", problem.claim),), over)
    causes = _confirmed(problem, single, over)
    if not causes and again is not None:
        tell("probes")
        single += _probed(problem, single, again)
        causes = _confirmed(problem, single, over)
    if not causes:
        tell("other units")
        found = [problem.attempt((change,)) for change in units(problem.claim) if not over()]
        single += [tried for tried in found if tried is not None]
        causes = _confirmed(problem, single, over)
    double: list[Tried] = []
    starts = [] if causes else _starts(problem, single)
    for orders, start in product((False, True), starts):  # the many orders last
        if over():
            break
        tell(f"{start.changes[-1].text}, and")
        double += _all(problem, start.changes, over, orders)
        causes = _confirmed(problem, double, over)
        if causes:
            break
    complete = not over()
    return Search(tuple(causes or _parts(problem, single + double, over)), problem.tried, complete)


def alike(problem: Problem, seconds: float) -> tuple[tuple[str, ...], int]:
    """Which other orders, instructions and schemes give the bits of a claim too, of how many.

    Parameters
    ----------
    problem : Problem
        Its result is the claim's value.
    seconds : float
        Stop after that time.
    """
    end = time.perf_counter() + seconds
    own, K = problem.claim, problem.A.shape[1]
    with np.errstate(all="ignore"):
        changes = list(alternatives(own, problem.A, problem.B, problem.C, problem.D))
    kinds = ("order", "promotion", "hardware", "scheme")
    found, tried = [], 0
    for change in (c for kind in kinds for c in islice((c for c in changes if c.kind == kind), _ALIKE)):
        if time.perf_counter() > end:
            break
        if change.claim.scheme == own.scheme and _sums(change.claim, K) == _sums(own, K):
            continue
        reached = problem.attempt((change,))
        tried += 1
        if reached is not None and reached.wrong == 0 and problem.left(change.claim) == 0:
            found.append(change.text)
    return tuple(found), tried


def _all(
    problem: Problem, start: tuple[Change, ...], over: Callable[[], bool], orders: bool | None = None
) -> list[Tried]:
    """Every change of one respect more, those already changed left alone; orders only, or none of them, if so said."""
    kinds = {change.kind for change in start}
    found = []
    with np.errstate(all="ignore"):
        for change in alternatives(start[-1].claim, problem.A, problem.B, problem.C, problem.D, problem.factor):
            if over():
                break
            if change.kind not in kinds and orders in (None, change.kind == "order"):
                tried = problem.attempt((*(c for c in start if c.kind), change))
                found += [tried] if tried is not None else []
    return found


def _promising(problem: Problem, single: Iterable[Tried]) -> list[Tried]:
    """The changes that bring the result nearest, at most two of a kind."""
    chosen: list[Tried] = []
    for tried in sorted(single, key=lambda t: (t.far, t.wrong)):
        if len(chosen) < _BEAM and sum(t.kinds == tried.kinds for t in chosen) < 2:
            chosen.append(tried)
    return [t for t in chosen if t.far < problem.base.far or t.wrong < problem.base.wrong]


def _starts(problem: Problem, single: list[Tried]) -> list[Tried]:
    """What is combined with everything else: what brings the result nearer, but for orders and instructions, of which
    many do by chance; then promotions and accumulators, which need not show alone; then those others."""
    near = _promising(problem, single)
    chance = [t for t in near if t.kinds in (("order",), ("hardware",))]
    hidden = [t for t in single if t.kinds in (("promotion",), ("accumulator",), ("result",), ("inputs",))]
    found = [t for t in near if t not in chance] + hidden + chance
    return [t for i, t in enumerate(found) if t not in found[:i]]


def _probed(problem: Problem, single: list[Tried], again: Callable[[Claim], Any]) -> list[Tried]:
    """The order that probes of the callable show, in the claim and in the changes that come nearest to the result."""
    starts = [(Change("", "", problem.claim),), *(t.changes for t in _promising(problem, single))]
    starts = [s for s in starts if s[-1].kind not in ("order", "promotion", "scheme")]
    try:
        order = again(problem.claim)
    except (InputError, GuaranteeError):
        return []
    found = []
    for start in starts:
        text = f"{claims.say_order(order)}, found by probes"
        change = Change("order", text, start[-1].claim.change(order=order))
        tried = problem.attempt((*(c for c in start if c.kind), change))
        found += [tried] if tried is not None else []
    return found


def _confirmed(problem: Problem, tried: list[Tried], over: Callable[[], bool]) -> list[Cause]:
    """Those that reproduce the sample, on the whole; at least one is tried, however late it is.

    Claims that add the same numbers in the same places are one.
    """
    found: dict[Any, Cause | None] = {}
    for one in sorted((t for t in tried if t.wrong == 0), key=lambda t: len(t.changes)):
        key = _key(one.claim, problem.A.shape[1])
        if key not in found and len(found) < _LISTED and not (found and over()):
            left = problem.left(one.claim)
            found[key] = _cause(one, left) if left == 0 else None
            continue
        same, other = found.get(key), _cause(one, 0).text
        if same is not None and ", or " not in same.text and same.kinds != one.kinds:
            found[key] = replace(same, text=f"{same.text}, or {other}, which is the same")
    return [cause for cause in found.values() if cause is not None]


def _parts(problem: Problem, tried: list[Tried], over: Callable[[], bool]) -> list[Cause]:
    """What brings most entries back, if it brings back a third of them or more: less can be chance."""
    found = []
    for one in sorted(tried, key=lambda t: (t.wrong, t.far))[: 3 * _PARTS]:
        if one.wrong < problem.base.wrong:
            found.append(_cause(one, problem.left(one.claim)))
            if over():
                break
    found.sort(key=lambda cause: cause.left)
    return [cause for cause in found if cause.left <= 0.67 * problem.entries][:_PARTS]


def _cause(tried: Tried, left: int) -> Cause:
    return Cause(tried.kinds, "; ".join(change.text for change in tried.changes), left, tried.claim)


def _sums(claim: Claim, K: int) -> Any:
    """Equal for plain claims, and for claims about one scheme, that add the same numbers in the same places."""
    return _key(claim.change(scheme=None), K)


def _key(claim: Claim, K: int) -> Any:
    """Equal for claims that add the same numbers in the same places."""
    order: Any = claim.order
    if claim.spec is not None and claim.scheme is None and (order is None or isinstance(order, KOrder)):
        order = tree.from_order(order or KOrder(), K, claim.spec)
    if claim.scheme is not None and isinstance(order, KOrder):
        order = str(order.segments(K)) + order.join
    elif claim.spec is not None and order is not None:
        order = tree.canonical(order, tree.exact_products(claim.spec))
    return claim.change(order=None), order
