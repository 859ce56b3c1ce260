"""Splitting on the GPU: the rules of a scheme as constants of ``kernels/split.cuh``, and operands split in memory.

`definition` is for every kernel that splits in its own loads. `prepare` is for those that want the words in memory, K
contiguous for A and B alike, or only the exponents, special rows and faults of an operand. The same bits as
`fpemu.schemes.ranges.prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fpemu.errors import InputError
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm.kernel import Prepared, Workspace
from fpemu.gpu.runtime import compiler, device, matrices
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.schemes.ranges import TOP
from fpemu.schemes.words import BIT_CUT, Word

PITCH = 64  # words of a row are padded to a multiple of so many
MOST_WORDS = 4
_SURVEYED, _ROWS = 1024, 32  # SURVEYED and ROWS in split.cu


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
    largest, beyond = (int(fmt.encode(v)) >> fmt.padding for v in (fmt.max, np.inf if fmt.inf else np.nan))
    mode = "BIT_CUT" if rule.rounding == BIT_CUT else rule.rounding
    return f"Word<{emulation.format_type(fmt)}, {mode}, {rule.exponent}, {largest:#x}, {beyond:#x}>"


def source(rules: Sequence[Word]) -> str:
    """The kernels that split by some rules."""
    return f'#include "split.cuh"\n{definition(rules)}{compiler.kernel_source("split.cu")}'


@lru_cache(maxsize=64)
def _module(rules: tuple[Word, ...]) -> device.Module:
    return device.Module(source(rules), name="split.cu")


def prepare(
    X: Matrix,
    who: str,
    rules: Sequence[Word],
    on_range: str,
    scaling: str,
    *,
    keep: bool = True,
    room: Workspace | None = None,
) -> Prepared:
    """An operand's words, exponents, special rows and faults; only queued.

    Parameters
    ----------
    X : Matrix
        fp32: A (..., M, K) or B (..., K, N), of any strides.
    who : {"A", "B"}
    rules : sequence of Word
    on_range : str
        The range policy. Special rows are told unless it is "raise", for which their number is enough.
    scaling : str
        Which scaling to apply: "scale", "scale-rows", anything else none.
    keep : bool
        False: the words are not wanted in memory, the kernel splits in its own loads. Words that overflow are counted
        all the same, but under "propagate", which does not ask.
    room : Workspace, optional
        Buffers to be used again; without it they are made anew, which takes time.

    Returns
    -------
    Prepared
        ``words[i]`` holds codes of word i's format, in 8, 16 or 32 bits (tf32: fp32 patterns).
    """
    if X.dtype != np.float32 or len(rules) > MOST_WORDS:
        raise InputError(f"{who}: at most {MOST_WORDS} words of fp32 numbers, not {len(rules)} of {X.dtype}")
    room = Workspace() if room is None else room
    found = Prepared(X, who)
    lines, fmt, K = X.count * found.rows, rules[0].format, X.shape[-1 if who == "A" else -2]
    found.special = None if on_range == "raise" else room.zeros(f"{who} special", lines)
    found.faults = room.zeros(f"{who} faults", 16)
    scaled, safe, top = scaling in ("scale", "scale-rows"), within(rules), min(TOP, fmt.emax - 1)
    # what is scaled lies below 2^top; else the survey counts by itself, looking at nothing below `safe`
    splits = keep or (scaled and safe < 2.0**top and on_range != "propagate")
    if scaled:
        found.exponents = room.buffer(f"{who} exponents", 4 * lines)
    if lines and K and (scaled or not splits):
        bound = np.inf if splits or scaled or on_range == "propagate" else safe
        _survey(found, rules, scaling == "scale", top, bound, room, counted_later=splits)
    if not splits:
        return found
    found.pitch = -(-K // PITCH) * PITCH
    nbytes = lines * found.pitch * fmt.code_dtype.itemsize
    found.words = tuple(room.buffer(f"{who} word {i}", nbytes) for i in range(len(rules))) if keep else ()
    tiles = X.count * -(-found.rows // _ROWS) * (found.pitch // PITCH)
    pointers = [*found.words, *[np.uint64(0)] * (MOST_WORDS - len(found.words))]
    if tiles:
        _module(tuple(rules)).launch(
            "split",
            tiles,
            256,
            *_stack(found),
            _or_null(found.exponents),
            *pointers,
            np.int64(found.pitch),
            _or_null(found.special),
            found.faults,
            wait=False,
        )
    return found


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


def _survey(
    found: Prepared, rules: Sequence[Word], whole: bool, top: int, bound: float, room: Workspace, *, counted_later: bool
) -> None:
    """Exponents, if they are wanted; special rows and faults, if nobody else finds them."""
    X, who, module = found.source, found.who, _module(tuple(rules))
    K = X.shape[-1 if who == "A" else -2]
    scaled = found.exponents is not None
    largest = room.zeros(f"{who} largest", 4 * X.count * found.rows) if scaled else None
    faults = room.zeros(f"{who} faults of the survey", 16) if counted_later else found.faults
    tiles = X.count * -(-found.rows // _ROWS) * -(-K // _SURVEYED)
    outputs = (_or_null(largest), _or_null(found.special), faults)
    module.launch("survey", tiles, 256, *_stack(found), *outputs, _code(bound), wait=False)
    if scaled:
        sizes = (np.int64(found.rows), np.int32(whole), np.int32(top))
        module.launch("settle", X.count, 256, largest, found.exponents, *sizes, wait=False)


def _code(bound: float) -> np.uint32:
    """The pattern of an fp32 number that is not above a bound, of Inf where fp32 has none that large."""
    with np.errstate(over="ignore"):
        near = np.float32(bound)
    near = near if near <= bound else np.nextafter(near, np.float32(0))
    return np.uint32(near.view(np.uint32) if bound <= np.finfo(np.float32).max else 0x7F800000)


def _or_null(buffer: device.Buffer | None) -> Any:
    return np.uint64(0) if buffer is None else buffer


def _stack(found: Prepared) -> tuple[Any, ...]:
    """The kernels' first parameters."""
    X = found.source
    K = X.shape[-1 if found.who == "A" else -2]
    sizes = (np.int64(n) for n in (found.rows, K, *found.steps))
    return np.uint64(X.pointer), matrices.table(X), *sizes
