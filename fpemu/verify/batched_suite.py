"""The batched kernels against `fpemu.batched`, bit for bit: sizes 1 to 130, all layouts and kernels, special values."""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu.errors import InputError
from fpemu.gpu.batched import products
from fpemu.gpu.runtime import matrices
from fpemu.verify import batched_cases as cases
from fpemu.verify.batched_cases import Case, Group
from fpemu.verify.digests import digest
from fpemu.verify.processes import side_by_side

ABOUT = (
    "Products of fpemu.gpu.batched compared bit for bit with fpemu.batched, which emulates the instruction. Every "
    "product is a function of seed, group and number (fpemu.verify.batched_cases). outputs: numbers compared; digest: of "
    "all digests of a group's products; replay: number and digest of small products, which any machine can compute "
    "again; kernels: how many products each kind of kernel had; first: the first outputs that differ, or what failed"
)
REPLAYED = 4
"""Products of a group whose digest is kept"""
_SMALL = 2**15  # multiply-adds of a product that is computed again from the record
_PLACES = 3


@dataclass
class Outcome:
    """What was found about one group."""

    group: str
    products: int = 0
    outputs: int = 0
    mismatches: int = 0
    failed: int = 0
    digest: str = ""
    kernels: dict[str, int] = field(default_factory=dict)
    replay: list[dict[str, Any]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to complain about."""
        return not self.mismatches and not self.failed


def check(groups: Sequence[Group], seed: int, count: int, *, seconds: float = inf, jobs: int = 1) -> Iterator[Outcome]:
    """Compare up to `count` products of each group, for `seconds` at most.

    Parameters
    ----------
    jobs : int
        Processes side by side, which share the GPU: kernels take longer to compile than to run.

    Yields
    ------
    Outcome
        As they are done.
    """
    yield from side_by_side(
        one, groups, (seed, count, seconds), jobs, lambda g, why: Outcome(g.name, failed=1, first=[why])
    )


def one(group: Group, seed: int, count: int, seconds: float = inf) -> Outcome:
    """The products of one group; those of small matrices go through all sizes but once."""
    outcome, digests, kinds = Outcome(group.name), [], Counter[str]()
    begun = time.monotonic()
    for number in range(min(count, 4 * group.largest) if group.largest < cases.LARGEST else count):
        if time.monotonic() - begun > seconds:
            break
        digests.append(_compare(group, number, seed, outcome, kinds))
    outcome.digest = f"{digest(np.array(digests, np.uint64)):016x}"
    outcome.kernels = dict(kinds)
    return outcome


def _compare(group: Group, number: int, seed: int, outcome: Outcome, kinds: Counter[str]) -> int:
    """One product, counted; its digest."""
    outcome.products += 1
    made = cases.case(group, number, seed)
    try:
        got = _computed(group, made, kinds)
        want = emulated(group, made)
    except Exception as problem:  # whatever goes wrong with one, the others are run
        outcome.failed += 1
        if len(outcome.first) < _PLACES:
            said = " ".join(str(problem).split())[:300]
            outcome.first.append(f"{number}: {made}: {type(problem).__name__}: {said}")
        return 0
    wrong = np.argwhere(got.view(np.uint16) != want.view(np.uint16))
    outcome.outputs += got.size
    outcome.mismatches += len(wrong)
    if len(wrong) and len(outcome.first) < _PLACES:
        at = tuple(int(i) for i in wrong[0])
        codes = (f"{x.view(np.uint16)[at]:#06x}" for x in (got, want))
        outcome.first.append(f"{number}: {made}: {len(wrong)} of {got.size}, at {at} {' in place of '.join(codes)}")
    found = digest(got.view(np.uint16))
    if len(outcome.replay) < REPLAYED and np.prod(made.sizes) * max(made.A.shape) <= _SMALL:
        outcome.replay.append({"number": number, "digest": f"{found:016x}"})
    return found


def _computed(group: Group, made: Case, kinds: Counter[str]) -> NDArray[np.float16]:
    """By the GPU: through `prepare`, so that it is known what ran; a part through the functions that users call."""
    options = dict(made.options) | {"configuration": made.configuration}
    if group.layout is not None:
        options["layout"] = group.layout
    call = products.hgemm if group.layout is None else products.hcgemm
    kinds["default" if made.configuration is None else made.configuration.kind] += 1
    if not made.pointers:
        return np.asarray(call(made.A, made.B, made.C, **options))
    kinds["pointers"] += 1
    lists = [
        None if X is None else [matrices.Array(matrices.upload(np.ascontiguousarray(x))) for x in X]
        for X in (made.A, made.B, made.C)
    ]
    return np.asarray(call(*lists, **options).get())


def emulated(group: Group, made: Case, hardware: str | None = None) -> NDArray[np.float16]:
    """The same by `fpemu.batched`; hardware: default the GPU at hand."""
    from fpemu import batched

    options = dict(made.options)
    if options.get("kernel") != "magma-small":
        options |= products.arguments_of() if hardware is None else {"hardware": hardware, "instruction": "mma"}
    if group.layout is None:
        return batched.hgemm(made.A, made.B, made.C, **options)
    return batched.hcgemm(made.A, made.B, made.C, layout=group.layout, **options)


def replay(entry: dict[str, Any], kept: dict[str, Any], seed: int, hardware: str) -> str:
    """The digest of a recorded product, emulated here.

    Raises
    ------
    InputError
        If the entry's group is unknown.
    """
    found = [g for g in cases.groups() if g.name == entry["group"]]
    if not found:
        raise InputError(f"a record has the group {entry['group']!r}, which is not among those of this version")
    want = emulated(found[0], cases.case(found[0], kept["number"], seed), hardware)
    return f"{digest(want.view(np.uint16)):016x}"


def record(found: Sequence[Outcome], seed: int, count: int) -> dict[str, Any]:
    """What was found on the GPU at hand, as it is kept."""
    from fpemu.gpu.gemm.choice import architecture
    from fpemu.gpu.runtime import device
    from fpemu.verify import records

    return {
        "about": ABOUT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__,
        "device": {**device.describe(), "driver": records.driver()},
        "architecture": architecture(),
        "seed": seed,
        "cases": count,
        **{name: sum(getattr(o, name) for o in found) for name in ("products", "outputs", "mismatches", "failed")},
        "groups": [asdict(o) for o in sorted(found, key=lambda o: o.group)],
    }


def text(made: dict[str, Any]) -> str:
    """A record as JSON, a line for each group."""
    head = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in made.items() if name != "groups"]
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in made["groups"])
    return "{\n" + ",\n".join(head) + ',\n "groups": [\n' + rows + "\n ]\n}\n"
