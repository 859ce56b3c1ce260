"""Operands prepared for a kernel of mma.sync: words in memory, or only exponents, special rows and faults.

The kernels of `fpemu.gpu.gemm.splitting.prepare`, for both operands of a product in one launch. Launches are kept for
operands that come again: describing a small product takes longer than computing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.errors import InputError
from fpemu.gpu.gemm import splitting
from fpemu.gpu.gemm.kernel import Prepared, keep, record
from fpemu.gpu.gemm.mma_sync import operation
from fpemu.gpu.runtime import device, matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.schemes.ranges import TOP
from fpemu.schemes.words import Word

OPERAND = np.dtype(
    [
        *((name, "<u8") for name in ("x", "of")),
        *((name, "<i8") for name in ("rows", "K", "row_step", "k_step")),
        ("exponents", "<u8"),
        ("word", "<u8", (splitting.MOST_WORDS,)),
        ("pitch", "<i8"),
        *((name, "<u8") for name in ("special", "faults", "largest", "next_faults")),
        *((name, "<i8") for name in ("bound", "blocks")),
    ]
)
"""The struct Operand of ``kernels/split.cu``"""
_ROWS, _LENGTH, _SURVEYED = 32, 64, 1024  # ROWS, LENGTH and SURVEYED in split.cu
_THREADS = 256
_Asked = tuple[Matrix, str]


@dataclass
class _Steps:
    """What is done for some operands: buffers set to zero, then launches."""

    found: list[Prepared]
    zeros: list[device.Buffer]
    launches: list[device.Launch]


class Splitter:
    """Makes the operands of one kernel ready: keeps the buffers for it, and the launches.

    What it gives for A is good until the next A, what it gives for B until the next B.

    Parameters
    ----------
    rules : sequence of Word
    policy : callable
        The scaling of a range policy (`SplitScheme._policy`).
    words : bool
        Whether words are wanted in memory.
    overlap : bool
        Whether launches may begin while the one before them ends.
    """

    def __init__(
        self, rules: Sequence[Word], policy: Callable[[str], str], *, words: bool, overlap: bool = False
    ) -> None:
        self._rules, self._policy, self._words, self._overlap = tuple(rules), policy, words, overlap
        self._buffers: dict[str, device.Buffer] = {}
        self._turns = {"A": 0, "B": 0}  # which of two buffers has the faults
        self._kept: dict[Any, _Steps] = {}

    def prepare(self, operands: Sequence[_Asked], on_range: str) -> list[Prepared]:
        """Queue what makes one operand ready, or both: fp32, A (..., M, K) or B (..., K, N), of any strides."""
        turns = {who: 1 - self._turns[who] for _, who in operands}
        key = (on_range, *((X.pointer, X.shape, X.strides, who, turns[who]) for X, who in operands))
        steps = self._kept.get(key)
        if steps is None:
            steps = self._steps(operands, turns, on_range)  # may forget what is kept
            keep(self._kept, key, steps)
        for buffer in steps.zeros:
            buffer.fill(0)
        for launch in steps.launches:
            launch.queue()
        self._turns |= turns
        return [
            Prepared(X, who, x.words, x.pitch, x.exponents, x.special, x.faults)
            for (X, who), x in zip(operands, steps.found, strict=True)
        ]

    def _buffer(self, name: str, nbytes: int, *, zero: bool = False) -> device.Buffer:
        """A buffer by its name; a new one where that is too small, and what was launched with it is forgotten."""
        if name not in self._buffers or self._buffers[name].nbytes < nbytes:
            self._kept.clear()
            self._buffers.pop(name, None)  # freed before the new one is asked for
            self._buffers[name] = device.Buffer(nbytes)
            if zero:
                self._buffers[name].fill(0)
        return self._buffers[name]

    def _steps(self, operands: Sequence[_Asked], turns: dict[str, int], on_range: str) -> _Steps:
        fmt, scaling = self._rules[0].format, self._policy(on_range)
        scaled, top = scaling in ("scale", "scale-rows"), min(TOP, fmt.emax - 1)
        # what is scaled lies below 2^top; else the survey counts by itself, looking at nothing below `safe`
        safe = splitting.within(self._rules)
        splits = self._words or (scaled and safe < 2.0**top and on_range != "propagate")
        bound = np.inf if splits or scaled or on_range == "propagate" else safe
        made = _Steps([], [], [])
        records, any_blocks = [], False
        for X, who in operands:
            x, values, zeros = self._operand(X, who, turns[who], special=on_range != "raise", scaled=scaled)
            records.append(record(OPERAND, values | {"bound": int(splitting._code(bound))}))
            made.found.append(x)
            made.zeros += zeros
            if X.count * x.rows and values["K"]:
                any_blocks = True
            else:  # no block sets the next faults to zero
                made.zeros += [self._buffer(f"{who} faults {i}", 16) for i in (0, 1)]
        if not any_blocks:
            return made
        if scaled or not splits:
            made.launches.append(self._launch("survey_operands", made.found, records, last=not splits))
        if scaled:
            pairs = [(x, one) for x, one in zip(made.found, records, strict=True) if x.source.count * x.rows]
            made.launches += [self._settle(x, one, scaling == "scale", top) for x, one in pairs]
        if splits:
            made.launches.append(self._launch("split_operands", made.found, records, last=True))
        return made

    def _operand(
        self, X: Matrix, who: str, turn: int, *, special: bool, scaled: bool
    ) -> tuple[Prepared, dict[str, Any], list[device.Buffer]]:
        """What becomes of an operand, the fields of the struct Operand, and the buffers to be zero before."""
        if X.dtype != np.float32 or len(self._rules) > splitting.MOST_WORDS:
            raise InputError(
                f"{who}: at most {splitting.MOST_WORDS} words of fp32 numbers, not {len(self._rules)} of {X.dtype}"
            )
        x, zeros = Prepared(Matrix(X.pointer, X.dtype, X.shape, X.strides), who), []
        K, lines = X.shape[-1 if who == "A" else -2], X.count * x.rows
        faults = [self._buffer(f"{who} faults {i}", 16, zero=True) for i in (0, 1)]
        x.faults = faults[turn]
        largest = None
        if special:
            x.special = self._buffer(f"{who} special", lines)
            zeros.append(x.special)
        if scaled:
            x.exponents, largest = (self._buffer(f"{who} {name}", 4 * lines) for name in ("exponents", "largest"))
            zeros.append(largest)
        x.pitch = -(-K // splitting.PITCH) * splitting.PITCH
        if self._words:
            nbytes = lines * x.pitch * self._rules[0].format.code_dtype.itemsize
            x.words = tuple(self._buffer(f"{who} word {i}", nbytes) for i in range(len(self._rules)))
        row, k = x.steps
        pointers = [word.pointer for word in x.words]
        return (
            x,
            {
                "x": X.pointer,
                "of": matrices.table(X) if X.count > 1 else None,
                "rows": x.rows,
                "K": K,
                "row_step": row,
                "k_step": k,
                "exponents": x.exponents,
                "word": pointers + [0] * (splitting.MOST_WORDS - len(pointers)),
                "pitch": x.pitch,
                "special": x.special,
                "largest": largest,
                "faults": x.faults,
                "next_faults": faults[1 - turn],
            },
            zeros,
        )

    def _launch(self, name: str, found: list[Prepared], records: list[NDArray[Any]], *, last: bool) -> device.Launch:
        """A launch for some operands; the last one sets the faults of the next call to zero."""
        length = _SURVEYED if name == "survey_operands" else _LENGTH
        both, tables = np.zeros(2, OPERAND), []
        for i, (x, one) in enumerate(zip(found, records, strict=True)):
            both[i] = one[0]
            both[i]["blocks"] = x.source.count * -(-x.rows // _ROWS) * -(-int(one["K"][0]) // length)
            if not last:  # whose faults the split counts
                both[i]["next_faults"], both[i]["faults"] = 0, self._buffer(f"{x.who} faults of the survey", 16).pointer
            if x.source.count > 1:
                tables.append(matrices.table(x.source))
        blocks = int(both["blocks"].sum())
        overlap = self._overlap and operation.overlaps(blocks)
        return splitting._module(self._rules).prepare(name, blocks, _THREADS, both, overlap=overlap, keep=tables)

    def _settle(self, x: Prepared, one: NDArray[Any], whole: bool, top: int) -> device.Launch:
        arguments = (one["largest"], x.exponents, one["rows"], np.int32(whole), np.int32(top))
        return splitting._module(self._rules).prepare("settle", x.source.count, _THREADS, *arguments)
