"""Operands prepared on the GPU: split into words in memory, or only their exponents, special rows and faults.

`definition` prints the rules of a split as constants of ``kernels/split.cuh``, for kernels that split in their loads.
`Splitter` runs ``kernels/split.cu`` on one operand or on both of a product in one launch, with the bits of
`fpemu.schemes.words.prepare`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm.base import LaunchCache, Operand, Prepared, record
from fpemu.gpu.runtime import compiler, device, faults, launches, matrices, modules, properties, recording
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.schemes.words import AWAY, BIT_CUT, TOP, OverflowPolicy, Word, of_operand

PITCH = 64  # words of a row are padded to a multiple of so many
MOST_WORDS = 4
_OPERAND = np.dtype(
    [
        *((name, "<u8") for name in ("x", "of")),
        *((name, "<i8") for name in ("rows", "K", "row_step", "k_step", "second")),
        ("exponents", "<u8"),
        ("word", "<u8", (MOST_WORDS,)),
        ("pitch", "<i8"),
        *((name, "<u8") for name in ("special", "faults", "largest", "next_faults")),
        *((name, "<i8") for name in ("bound", "blocks")),
    ]
)
"""The struct Operand of ``kernels/split.cu``"""
_ROWS, _LENGTH, _SURVEYED = 32, 64, 1024  # ROWS, LENGTH and SURVEYED in split.cu
_THREADS = 256
_SMALL = 4  # blocks per multiprocessor


def from_hopper_on() -> bool:
    """Whether the current GPU has TMA, and launches that begin while the one before them ends."""
    return device.missing() is None and device.capability() >= (9, 0)


def overlaps(blocks: int) -> bool:
    """Whether a launch begins while the one before it ends: small ones do (``kernels/dependent_launch.cuh``)."""
    return blocks <= _SMALL * properties.multiprocessors() and from_hopper_on()


def definition(rules: Sequence[Word], name: str = "Rules") -> str:
    """The rules of a split as a C++ type; its text comes after ``#include "split.cuh"``.

    Examples
    --------
    >>> import fpemu
    >>> definition(fpemu.schemes.get("ootomo").rules()[:1])
    'typedef Split<Word<Format<11, -14, 15, 5, 0, NAN_IEEE, true, true, true>, RNE, 0, 0x7bff, 0x7c00>> Rules;\\n'
    """
    return f"typedef Split<{', '.join(map(_word, rules))}> {name};\n"


def differ(rules: Sequence[Word]) -> bool:
    """Whether A and B are split by different rules."""
    return of_operand(rules, "A") != of_operand(rules, "B")


def _word(rule: Word) -> str:
    fmt = rule.format
    largest, nonfinite = (int(fmt.encode(v)) >> fmt.padding for v in (fmt.max, np.inf if fmt.inf else np.nan))
    mode = {BIT_CUT: "BIT_CUT", AWAY: "AWAY"}.get(rule.rounding, rule.rounding)
    return f"Word<{emulation.format_type(fmt)}, {mode}, {rule.exponent}, {largest:#x}, {nonfinite:#x}>"


def source(rules: Sequence[Word]) -> str:
    """The kernels that split by some rules."""
    return f'#include "split.cuh"\n{definition(rules)}{compiler.kernel_source("split.cu")}'


@lru_cache(maxsize=64)
def _module(rules: tuple[Word, ...]) -> modules.Module:
    return modules.Module(source(rules), name="split.cu")


def within(rules: Sequence[Word]) -> float:
    """A magnitude up to which no word overflows: what is left of x after a word is at most a unit of its rounding.

    Examples
    --------
    >>> import fpemu
    >>> [int(within(fpemu.schemes.get(name).rules())) for name in ("fp16", "ootomo", "h2sgemm")]
    [65504, 65504, 32752]
    """
    bound, part, least = np.inf, 1.0, 0.0  # what is left is at most part · |x|, or `least`
    for rule in rules:
        scale, largest = 2.0**rule.exponent, rule.format.max
        if least * scale > largest:
            return 0.0
        bound = min(bound, largest / (scale * part))
        part, least = part * rule.unit, max(least * rule.unit, rule.format.min_subnormal / scale)
    return float(bound)


def _code(bound: float) -> np.uint32:
    """The pattern of an fp32 number that is not above a bound, of Inf where fp32 has none that large."""
    with np.errstate(over="ignore"):
        near = np.float32(bound)
    near = near if near <= bound else np.nextafter(near, np.float32(0))
    return np.uint32(near.view(np.uint32) if bound <= np.finfo(np.float32).max else 0x7F800000)


@dataclass
class Steps:
    """The kernels that prepare some operands: buffers set to zero, then launches."""

    prepared: list[Prepared] = field(default_factory=list)
    zeros: list[device.Buffer] = field(default_factory=list)
    launches: list[launches.Launch] = field(default_factory=list)


class KeptSplitter(ABC):
    """Prepares the operands of one kernel, and keeps its buffers and launches for operands that come again.

    The result for A is valid until the next A, the result for B until the next B. Faults are counted in two buffers in
    turn: the launches that count in one set the other to zero.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, device.Buffer] = {}
        self._turns = {"A": 1, "B": 1}
        self._kept = LaunchCache()

    def prepare(self, operands: Sequence[Operand], on_range: str) -> list[Prepared]:
        """Queue the kernels that prepare one operand or both: fp32, A (..., M, K) or B (..., K, N), of any strides."""
        turns = {name: 1 - self._turns[name] for _, name in operands}
        key = (on_range, *((X.pointer, X.shape, X.strides, name, turns[name]) for X, name in operands))
        steps = self._kept.get(key)
        if steps is None:
            steps = self._steps(operands, turns, on_range)  # a new buffer empties what is kept
            self._kept.keep(key, steps)
        for buffer in steps.zeros:
            buffer.fill(0)
        for launch in steps.launches:
            launch.queue()
        self._turns |= turns
        return [replace(x, source=X) for (X, _), x in zip(operands, steps.prepared, strict=True)]

    @abstractmethod
    def _steps(self, operands: Sequence[Operand], turns: dict[str, int], on_range: str) -> Steps:
        """The steps for some operands; for one without launches, `zeros` contains both of its buffers of faults."""

    def _buffer(self, name: str, nbytes: int, *, zero: bool = False, cleared: bool = False) -> device.Buffer:
        """A buffer by its name; if it is too small, a new one replaces it, and all kept launches are dropped.

        zero: the kernels find zeros and leave zeros; cleared: `prepare` fills it with zeros.
        """
        if name not in self._buffers or self._buffers[name].nbytes < nbytes:
            self._kept.clear()
            self._buffers.pop(name, None)  # freed before the new one is allocated
            where = "cleared" if cleared else None
            self._buffers[name] = device.Buffer.zeroed(nbytes) if zero else device.Buffer(nbytes, where)
        return self._buffers[name]

    def _faults(self, name: str) -> list[Any]:
        """The counters of this call and of the next; in a recording one pair, which counts over all calls."""
        if recording.active() is not None:
            return [faults.counters(name), faults.NONE]
        return [self._buffer(f"{name} faults {i}", faults.NBYTES, zero=True) for i in (0, 1)]


class Splitter(KeptSplitter):
    """Splits by any rules, by ``kernels/split.cu``.

    Parameters
    ----------
    rules : sequence of Word
    scaling : callable
        The scaling of an overflow policy (`SplitScheme.scaling`).
    words : bool
        Whether words are stored. If not, words that overflow are counted all the same.
    overlap : bool
        Whether launches may begin while the one before them ends.
    """

    def __init__(
        self, rules: Sequence[Word], scaling: Callable[[str], str], *, words: bool, overlap: bool = False
    ) -> None:
        super().__init__()
        self._rules = {name: of_operand(rules, name) for name in "AB"}
        self._scaling, self._words, self._overlap = scaling, words, overlap

    def _steps(self, operands: Sequence[Operand], turns: dict[str, int], on_range: str) -> Steps:
        fmt, scaling = self._rules["A"][0].format, OverflowPolicy(self._scaling(on_range))
        propagates, top = on_range == OverflowPolicy.PROPAGATE, min(TOP, fmt.emax - 1)
        # scaled entries lie below 2^top; unscaled ones are counted by the survey, which skips those below `safe`
        safe = min(map(within, self._rules.values()))
        splits = self._words or (scaling.scales and safe < 2.0**top and not propagates)
        bound = np.inf if splits or scaling.scales else safe
        steps, records, any_blocks = Steps(), [], False
        for X, name in operands:
            x, values = self._operand(
                X, name, turns[name], steps, special=on_range != OverflowPolicy.RAISE, scaled=scaling.scales
            )
            records.append(record(_OPERAND, values | {"bound": int(_code(bound))}))
            steps.prepared.append(x)
            if X.count * x.rows and values["K"]:
                any_blocks = True
            else:
                steps.zeros += self._faults(name)
        if not any_blocks:
            return steps
        if scaling.scales or not splits:
            steps.launches += self._launches("survey_operands", steps.prepared, records, last=not splits)
        if scaling.scales:
            whole = scaling == OverflowPolicy.SCALE
            pairs = [(x, one) for x, one in zip(steps.prepared, records, strict=True) if x.source.count * x.rows]
            steps.launches += [self._settle(x, one, whole, top) for x, one in pairs]
        if splits:
            steps.launches += self._launches("split_operands", steps.prepared, records, last=True)
        return steps

    def _launches(
        self, kernel: str, prepared: list[Prepared], records: list[NDArray[Any]], *, last: bool
    ) -> list[launches.Launch]:
        """One launch for some operands, or one for each where their rules differ."""
        pairs = list(zip(prepared, records, strict=True))
        together = [pairs] if self._rules["A"] == self._rules["B"] else [[pair] for pair in pairs]
        return [self._launch(kernel, [x for x, _ in some], [one for _, one in some], last=last) for some in together]

    def _operand(
        self, X: Matrix, name: str, turn: int, steps: Steps, *, special: bool, scaled: bool
    ) -> tuple[Prepared, dict[str, Any]]:
        """The prepared operand, and the fields of the struct Operand; `steps` receives the buffers to set to zero."""
        rules = self._rules[name]
        if X.dtype != np.float32 or len(rules) > MOST_WORDS:
            raise InputError(f"{name}: at most {MOST_WORDS} words of fp32 numbers, not {len(rules)} of {X.dtype}")
        x, largest, counts = Prepared(Matrix(X.pointer, X.dtype, X.shape, X.strides), name), None, self._faults(name)
        lines, x.faults = X.count * x.rows, counts[turn]
        if special:
            x.special = self._buffer(f"{name} special", lines, cleared=True)
            steps.zeros.append(x.special)
        if scaled:
            x.exponents = self._buffer(f"{name} exponents", 4 * lines)
            largest = self._buffer(f"{name} largest", 4 * lines, cleared=True)
            steps.zeros.append(largest)
        x.pitch = -(-x.K // PITCH) * PITCH
        if self._words:
            nbytes = lines * x.pitch * rules[0].format.code_dtype.itemsize
            x.words = tuple(self._buffer(f"{name} word {i}", nbytes) for i in range(len(rules)))
        row_step, k_step = x.steps
        pointers = [word.pointer for word in x.words]
        return x, {
            "x": X.pointer,
            "of": matrices.table(X) if X.count > 1 else None,
            "rows": x.rows,
            "K": x.K,
            "row_step": row_step,
            "k_step": k_step,
            "second": name == "B",
            "exponents": x.exponents,
            "word": pointers + [0] * (MOST_WORDS - len(pointers)),
            "pitch": x.pitch,
            "special": x.special,
            "largest": largest,
            "faults": x.faults,
            "next_faults": counts[1 - turn],
        }

    def _launch(
        self, kernel: str, prepared: list[Prepared], records: list[NDArray[Any]], *, last: bool
    ) -> launches.Launch:
        """A launch for some operands; the last one sets the faults of the next call to zero."""
        length = _SURVEYED if kernel == "survey_operands" else _LENGTH
        both, tables = np.zeros(2, _OPERAND), []
        for i, (x, one) in enumerate(zip(prepared, records, strict=True)):
            both[i] = one[0]
            both[i]["blocks"] = x.source.count * -(-x.rows // _ROWS) * -(-x.K // length)
            if not last:  # the split counts the faults
                both[i]["next_faults"], both[i]["faults"] = (
                    0,
                    self._buffer(f"{x.name} faults of the survey", faults.NBYTES).pointer,
                )
            if x.source.count > 1:
                tables.append(matrices.table(x.source))
        blocks = int(both["blocks"].sum())
        return _module(self._rules[prepared[0].name]).prepare(
            kernel, blocks, _THREADS, both, overlap=self._overlap and overlaps(blocks), keep=tables
        )

    def _settle(self, x: Prepared, one: NDArray[Any], whole: bool, top: int) -> launches.Launch:
        arguments = (one["largest"], x.exponents, one["rows"], np.int32(whole), np.int32(top))
        return _module(self._rules[x.name]).prepare("settle", x.source.count, _THREADS, *arguments)
