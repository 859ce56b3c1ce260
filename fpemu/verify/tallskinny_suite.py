"""The tall and skinny kernels against their emulation, bit for bit: every version, both formats, hostile operands.

The record holds digests of what the GPU returned, and `replay` computes some of them again without one.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fpemu
from fpemu import simt
from fpemu.gpu.runtime import compiler, device
from fpemu.verify import tallskinny_cases as cases
from fpemu.verify.digests import digest
from fpemu.verify.tallskinny_cases import CASES, FORMATS, KERNELS, Case
from fpemu.verify.tallskinny_huge import Huge

ABOUT = (
    "Products of fpemu.gpu.tallskinny compared bit for bit with fpemu.simt.gemm on the CPU, in memory that is poisoned "
    "before. Every product is a function of seed, format and number (fpemu.verify.tallskinny_cases). outputs: compared; "
    "beyond: elements of C's memory outside of C that changed; digest: of all digests of a kernel's products; replay: "
    "number and digest of small products, which any machine can compute again; first: the first outputs that differ, "
    "or what failed. huge: kernel, format, (m, k, n) and layout of products of more than 2^32 elements, and how many "
    "outputs of some of their rows were compared and differed. texts: a digest of the kernels that ran"
)
REPLAYED = 12
"""Products of a kernel whose digest is kept"""
_TINY = 2**15  # multiply-adds of them
_PLACES = 3
_AHEAD = 8  # products that are emulated while the GPU computes
_MESSAGE = 300


@dataclass
class Outcome:
    """What was found about one kernel in one format."""

    kernel: str
    fmt: str
    products: int = 0
    outputs: int = 0
    mismatches: int = 0
    beyond: int = 0
    failed: int = 0
    digest: str = ""
    replay: list[tuple[int, str]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is nothing to complain about."""
        return not (self.mismatches or self.beyond or self.failed)


def restored(row: dict[str, Any]) -> Outcome:
    """What a row of a record, or of its parts, says."""
    return Outcome(**row | {"replay": [(number, found) for number, found in row["replay"]]})


def kernels() -> list[str]:
    """Those of `KERNELS` that the GPU at hand has."""
    return [name for name in KERNELS if device.capability() == (9, 0) or "hopper" not in name]


def check(
    seed: int,
    numbers: Sequence[int] = range(CASES),
    names: Sequence[str] | None = None,
    formats: Sequence[str] = FORMATS,
    done: Sequence[tuple[str, str]] = (),
) -> Iterator[Outcome]:
    """Compare all kernels on some products.

    Parameters
    ----------
    seed : int
    numbers : sequence of int
        Of the products.
    names, formats : sequence of str
        Which of `KERNELS` and `FORMATS`; default all that the GPU has.
    done : sequence of (str, str)
        Kernels and formats that are left out.

    Yields
    ------
    Outcome
        One a format and a kernel, after all products of a format.
    """
    names = kernels() if names is None else names
    missing = {fmt: [name for name in names if (name, fmt) not in done] for fmt in formats}
    needed = {text: None for fmt, some in missing.items() for text in sources(seed, numbers, some, [fmt])}
    device.compile_all(list(needed), device.arch())
    for fmt in [fmt for fmt in formats if missing[fmt]]:
        found = {name: Outcome(name, fmt) for name in missing[fmt]}
        digests: dict[str, list[int]] = {name: [] for name in found}
        pool = ThreadPoolExecutor(_AHEAD)
        try:
            products = pool.map(product, [(fmt, number, seed) for number in numbers])
            for number, (made, A, B, want) in zip(numbers, products, strict=True):
                for name, one in compare(made, A, B, want, number, found).items():
                    digests[name].append(one)
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt does not wait for all products
        for name, outcome in found.items():
            outcome.digest = f"{digest(np.array(digests[name], np.uint64)):016x}"
            yield outcome


def sources(seed: int, numbers: Sequence[int], names: Sequence[str], formats: Sequence[str]) -> list[str]:
    """The kernels that some products take, to have them compiled before."""
    found = {}
    for fmt in formats:
        for number in numbers:
            made = cases.case(fmt, number, seed)
            where = cases.problem(made, (2**20,) * 3)
            for name in names:
                found[cases.plan(name, made, where).source] = name
    return list(found)


def texts(seed: int, numbers: Sequence[int] = range(CASES)) -> str:
    """A digest of what the kernels of some products are compiled from on this GPU, comments left out."""
    own = [path.read_text() for pattern in ("tallskinny*.cuh", "ism2*.cuh") for path in compiler.KERNELS.glob(pattern)]
    found = {re.sub(r"//[^\n]*|\s+", " ", text) for text in [*own, *sources(seed, numbers, KERNELS, FORMATS)]}
    return hashlib.sha256("\n".join(sorted(" ".join(text.split()) for text in found)).encode()).hexdigest()[:16]


def product(which: tuple[str, int, int]) -> tuple[Case, NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The product of a format, a number and a seed: the case, A, B and the patterns of the result, by the CPU."""
    made = cases.case(*which)
    A, B = cases.operands(made)
    with np.errstate(all="ignore"):
        return made, A, B, _codes(np.asarray(simt.gemm(A, B, fmt=made.fmt)))


def compare(
    made: Case, A: NDArray[Any], B: NDArray[Any], want: NDArray[Any], number: int, found: dict[str, Outcome]
) -> dict[str, int]:
    """One product by all kernels, counted; their digests."""
    memories = cases.memories(made)
    flat = [memory.laid(X) for memory, X in zip(memories, (A, B), strict=False)]
    c = memories[2]
    buffers = [device.Buffer.of(x) for x in flat] + [device.Buffer(c.length * want.itemsize)]
    where = cases.problem(made, (buffers[0].pointer, buffers[1].pointer, buffers[2].pointer), buffers)
    outside = np.ones(c.length, bool)
    c.view(outside, want.shape)[...] = False
    digests = {}
    for name, outcome in found.items():
        outcome.products += 1
        digests[name] = 0
        try:
            buffers[2].fill(device.POISON)
            cases.plan(name, made, where).run(where)
            got = buffers[2].array(c.length, want.dtype)
        except Exception as problem:  # whatever goes wrong with one, the others are run
            outcome.failed += 1
            outcome.first.append(f"{number}: {made}: {type(problem).__name__}: {problem}"[:_MESSAGE])
            continue
        poison = np.frombuffer(bytes([device.POISON]) * want.itemsize, want.dtype)[0]
        outcome.beyond += int(np.count_nonzero(got[outside] != poison))
        D = np.ascontiguousarray(c.view(got, want.shape))
        digests[name] = one = digest(D)
        _count(outcome, D, want, f"{number}: {made}")
        if len(outcome.replay) < REPLAYED and np.prod(made.sizes) <= _TINY:
            outcome.replay.append((number, f"{one:016x}"))
    return digests


def _count(outcome: Outcome, D: NDArray[Any], want: NDArray[Any], what: str) -> None:
    outcome.outputs += D.size
    wrong = np.argwhere(want != D)
    outcome.mismatches += len(wrong)
    if len(wrong) and len(outcome.first) < _PLACES:
        at = tuple(int(i) for i in wrong[0])
        outcome.first.append(f"{what}: {len(wrong)} differ, the first at {at}: {D[at]:#x} in place of {want[at]:#x}")


def _codes(D: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(D).view(f"u{D.dtype.itemsize}")


def replay(fmt: str, number: int, seed: int) -> str:
    """The digest of a recorded product, emulated on the CPU.

    Parameters
    ----------
    fmt : str
        The entry's.
    number : int
        One of the entry's replay.
    seed : int
        The record's.
    """
    return f"{digest(product((fmt, number, seed))[3]):016x}"


def record(found: Sequence[Outcome], seed: int, huge: Sequence[Huge] = ()) -> dict[str, Any]:
    """What was found on the GPU at hand, as it is kept; `huge` what about matrices of more than 2^32 elements."""
    from fpemu.verify import records

    sums = ("products", "outputs", "mismatches", "beyond", "failed")
    return {
        "about": ABOUT,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fpemu": fpemu.__version__,
        "device": {**device.describe(), "driver": records.driver()},
        "seed": seed,
        "texts": texts(seed),
        **{name: sum(getattr(outcome, name) for outcome in found) for name in sums},
        "huge": [list(asdict(one).values()) for one in huge],
        "kernels": [asdict(outcome) for outcome in found],
    }


def text(made: dict[str, Any]) -> str:
    """A record as JSON, a line for each kernel."""
    head = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in made.items() if name != "kernels"]
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in made["kernels"])
    return "{\n" + ",\n".join(head) + ',\n "kernels": [\n' + rows + "\n ]\n}\n"
