"""Operands prepared on the GPU: split into words in memory, or only their exponents, special rows and faults.

`definition` prints the rules of a split as constants of ``kernels/split.cuh``, for kernels that split in their loads.
`Splitter` runs ``kernels/split.cu`` on one operand or on both of a product in one launch, with the bits of
`fpemu.schemes.words.prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm.base import Prepared, counters
from fpemu.gpu.runtime import compiler, device, matrices, modules
from fpemu.gpu.runtime.counters import NBYTES
from fpemu.gpu.runtime.steps import Memory, Step, Struct, fields
from fpemu.schemes.words import AWAY, BIT_CUT, TOP, OverflowPolicy, Word, of_operand

PITCH = 64  # words of a row are padded to a multiple of so many
MOST_WORDS = 4
_OPERAND = fields(
    "u8 x of, i8 rows K row_step k_step second, u8 exponents, 4u8 word, i8 pitch, "
    "u8 special faults largest next_faults, i8 bound blocks"
)
"""The struct Operand of ``kernels/split.cu``"""
_ROWS, _LENGTH, _SURVEYED = 32, 64, 1024  # ROWS, LENGTH and SURVEYED in split.cu
_THREADS = 256
_SMALL = 4  # blocks per multiprocessor


def overlaps(blocks: int) -> bool:
    """Whether a launch begins while the one before it ends: small ones do (``kernels/dependent_launch.cuh``)."""
    return blocks <= _SMALL * device.multiprocessors() and device.overlaps_launches()


def definition(rules: Sequence[Word], name: str = "Rules") -> str:
    """The rules of a split as a C++ type; its text comes after ``#include "split.cuh"``.

    Examples
    --------
    >>> import fpemu
    >>> definition(fpemu.schemes.get("ootomo").rules()[:1])
    'typedef Split<Word<Format<11, -14, 15, 5, 0, NAN_IEEE, true, true, true>, RNE, 0, 0x7bff, 0x7c00>> Rules;\\n'
    """
    return f"typedef Split<{', '.join(map(_word, rules))}> {name};\n"


def _word(rule: Word) -> str:
    fmt = rule.format
    largest, nonfinite = (int(fmt.encode(v)) >> fmt.padding for v in (fmt.max, np.inf if fmt.inf else np.nan))
    mode = {BIT_CUT: "BIT_CUT", AWAY: "AWAY"}.get(rule.rounding, rule.rounding)
    return f"Word<{emulation.format_type(fmt)}, {mode}, {rule.exponent}, {largest:#x}, {nonfinite:#x}>"


def source(rules: Sequence[Word]) -> str:
    """The kernels that split by some rules."""
    return f'#include "split.cuh"\n{definition(rules)}{compiler.kernel_source("split.cu")}'


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


class Splitter:
    """Splits by any rules, by ``kernels/split.cu``.

    scaling : the scaling of an overflow policy (`SplitScheme.scaling`); words : whether words are stored, as words that
    overflow are counted in any case; overlap : whether launches may begin while the one before them ends
    """

    def __init__(
        self, rules: Sequence[Word], scaling: Callable[[str], str], *, words: bool, overlap: bool = False
    ) -> None:
        self._rules = {name: of_operand(rules, name) for name in "AB"}
        self._scaling, self._words, self._overlap = scaling, words, overlap

    def split(self, operands: Sequence[Prepared], policy: str, memory: Memory) -> list[Step]:
        """Complete the operands and return the steps: `Kernel.split` for fp32 operands of any strides."""
        fmt, scaling = self._rules["A"][0].format, OverflowPolicy(self._scaling(policy))
        propagates, top = policy == OverflowPolicy.PROPAGATE, min(TOP, fmt.emax - 1)
        # scaled entries lie below 2^top; unscaled ones are counted by the survey, which skips those below `safe`
        safe = min(map(within, self._rules.values()))
        splits = self._words or (scaling.scales and safe < 2.0**top and not propagates)
        bound = np.inf if splits or scaling.scales else safe
        records = []
        for x in operands:
            record = self._record(x, memory, special=policy != OverflowPolicy.RAISE, scaled=scaling.scales)
            records.append(record.changed(bound=int(_code(bound))))
        if not any(x.source.count * x.rows * x.K for x in operands):
            return []
        steps: list[Step] = []
        if scaling.scales or not splits:
            steps += self._launches("survey_operands", operands, records, memory, last=not splits)
        if scaling.scales:
            whole = scaling == OverflowPolicy.SCALE
            pairs = [(x, one) for x, one in zip(operands, records, strict=True) if x.source.count * x.rows]
            steps += [self._settle(x, one, whole, top) for x, one in pairs]
        if splits:
            steps += self._launches("split_operands", operands, records, memory, last=True)
        return steps

    def _record(self, x: Prepared, memory: Memory, *, special: bool, scaled: bool) -> Struct:
        """Complete an operand and return the struct Operand."""
        X, rules, largest = x.source, self._rules[x.name], None
        if X.dtype != np.float32 or len(rules) > MOST_WORDS:
            raise InputError(f"{x.name}: at most {MOST_WORDS} words of fp32 numbers, not {len(rules)} of {X.dtype}")
        lines, x.faults = X.count * x.rows, counters(x.name, memory)
        if special:
            x.special = memory.cleared(lines)
        if scaled:
            x.exponents, largest = memory.block(4 * lines), memory.cleared(4 * lines)
        x.pitch = -(-x.K // PITCH) * PITCH
        if self._words:
            nbytes = lines * x.pitch * rules[0].format.code_dtype.itemsize
            x.words = tuple(memory.block(nbytes) for _ in rules)
        row_step, k_step = x.steps
        values = {"x": X.pointer, "of": matrices.table(X) if X.count > 1 else None, "second": x.name == "B"}
        values |= {"rows": x.rows, "K": x.K, "row_step": row_step, "k_step": k_step, "pitch": x.pitch, "word": x.words}
        values |= {"exponents": x.exponents, "special": x.special, "largest": largest, "faults": x.faults}
        return Struct(_OPERAND, values)

    def _launches(
        self, kernel: str, operands: Sequence[Prepared], records: list[Struct], memory: Memory, *, last: bool
    ) -> list[Step]:
        """Return one launch for some operands, or one for each where their rules differ.

        Only the last kernel counts the entries out of range: before it, the survey counts where nothing reads.
        """
        length = _SURVEYED if kernel == "survey_operands" else _LENGTH
        pairs = []
        for x, one in zip(operands, records, strict=True):
            blocks = x.source.count * -(-x.rows // _ROWS) * -(-x.K // length)
            unread = {} if last else {"faults": memory.block(NBYTES)}
            pairs.append((x.name, blocks, one.changed(blocks=blocks, **unread)))
        together = [pairs] if self._rules["A"] == self._rules["B"] else [[pair] for pair in pairs]
        steps: list[Step] = []
        for some in together:
            total = sum(blocks for _, blocks, _ in some)
            both = [operand for *_, operand in some] + [Struct(_OPERAND, {})] * (2 - len(some))
            module, overlap = self._module(some[0][0]), self._overlap and overlaps(total)
            steps.append(module.step(kernel, total, _THREADS, both, overlap=overlap))
        return steps

    def _module(self, name: str) -> modules.Module:
        return modules.module(source(self._rules[name]), "split.cu")

    def _settle(self, x: Prepared, one: Struct, whole: bool, top: int) -> Step:
        arguments = (one["largest"], x.exponents, one["rows"], np.int32(whole), np.int32(top))
        return self._module(x.name).step("settle", x.source.count, _THREADS, *arguments)
