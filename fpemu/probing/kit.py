"""Probe kits: source files that run matrix instructions on hardware that is not here, and the results that they write.

A kit is a file of the folder ``kits`` with ``kits/probes.h`` in place of its include line. No probe depends on results:
probes follow from their index and the formats by the integer arithmetic of ``probes.h``, which `operands` repeats. The
results therefore have one code of D for each probe, and a checksum of the operands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fpemu import _system, mma
from fpemu import formats as known
from fpemu.arguments import choice
from fpemu.errors import InputError, shown
from fpemu.formats import FloatFormat
from fpemu.mma.arithmetic import ARITHMETICS
from fpemu.mma.codes import code_dtype, codes, values
from fpemu.mma.spec import INTEGERS, MmaSpec
from fpemu.probing.arithmetic import evidence
from fpemu.probing.arithmetic.characterize import Characterized
from fpemu.probing.arithmetic.fit import Results, changed, preferred, structures
from fpemu.probing.arithmetic.probes import NO_LEVEL, Array, Formats, Probes, exponents

_FOLDER = Path(__file__).parent / "kits"
_FILES = {"cuda": "cuda.cu", "hip": "hip.hip", "sycl": "sycl.cpp", "c": "c.c"}
_FIRST = "fpemu probe kit 1: "  # and the machine: the first line of results
_UNIT = r"unit (.+): A (\w+), B (\w+), C (\w+), D (\w+), k (\d+), probes (\d+), operands ([0-9A-F]{16})"
_LEVEL_COUNT, _SPECIAL_COUNT = 24, 20
_CANDIDATES = 9  # specifications that are compared in the codes of NaN too
_LEVEL_PROBES = 40  # a level with fewer probes is not used as one: its table of alignments would cost more than it says


@dataclass(frozen=True, eq=False)
class Unit:
    """The results of one instruction in a file that a kit wrote.

    Attributes
    ----------
    name : str
        Name of the instruction.
    formats : tuple of FloatFormat or str
        Formats of A, B, C and D.
    k : int
        Length of the instruction in k.
    D : array
        Codes of D, one for each probe.
    """

    name: str
    formats: tuple[FloatFormat | str, ...]
    k: int
    D: Array


def source(language: str) -> str:
    """Return the source file of a kit.

    Parameters
    ----------
    language : {"cuda", "hip", "sycl", "c"}
        Language of the kit; "c" is for x86-64 processors.

    Returns
    -------
    str
        One file without dependencies beside those of the language.

    Raises
    ------
    InputError
        An unknown language.

    Examples
    --------
    >>> print(source("c").splitlines()[3].strip())
    gcc -O1 kit.c -o kit && ./kit RESULT.txt
    """
    text = (_FOLDER / _FILES[choice("kit", language, tuple(_FILES))]).read_text(encoding="utf-8")
    return text.replace('#include "probes.h"\n', (_FOLDER / "probes.h").read_text(encoding="utf-8"))


@cache
def _shapes() -> list[list[tuple[int, ...]]]:
    """The table of the shapes of probes in ``probes.h``."""
    text = (_FOLDER / "probes.h").read_text().partition("SHAPES[SHAPE_COUNT]")[2].partition("};")[0]
    rows = re.findall(r"\{(\{.*?\})\}", text)
    return [[tuple(map(int, term)) for term in re.findall(r"(\d+), (\d+), (\d+), (\d+)", row)] for row in rows]


def _draw(probe: Any, slot: Any) -> Array:
    """The generator splitmix64 at one state for each probe and slot: numbers of 48 bits."""
    state = np.asarray(probe, np.uint64) * np.uint64(1024) + np.asarray(slot, np.uint64) + np.uint64(1)
    return np.asarray(_system.mix(state * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(16)).astype(np.int64)


def _number(f: FloatFormat, sign: Any, e: Array, fraction: Any) -> Array:
    """Codes of (1 + fraction / 2^bits) 2^e, limited to the format, toward zero."""
    sign, e, fraction = np.broadcast_arrays(sign, e, fraction)
    most = int(f.encode(f.max)) >> f.padding
    below, one = f.emin - e, 1 << f.fraction_bits
    code = np.where(below > 0, (one | fraction) >> np.clip(below, 0, 61), 0)
    code = np.where(below > 60, 0, np.where(below > 0, code, np.minimum(1 - below, 4096) << f.fraction_bits | fraction))
    code = np.where((e > f.emax) | (code > most), most, code)
    sign = np.where((code == 0) & (f.nan == "negative-zero"), 0, sign)
    return np.asarray((code << f.padding).astype(np.uint64) | sign.astype(np.uint64) << np.uint64(f.width - 1))


def _significand(f: FloatFormat, pattern: int, t: Any, drawn: Array) -> Array:
    """Fractions of a pattern of ``probes.h``."""
    bits, mask = f.fraction_bits, (1 << f.fraction_bits) - 1
    if pattern == 1:
        return np.where((t >= 1) & (t <= bits), 1 << np.clip(bits - t, 0, bits), 0)
    some = (drawn.astype(np.uint64) * np.uint64(0x10001)) & np.uint64(mask)
    lower = np.uint64(mask >> 1) >> (drawn % 64).astype(np.uint64)
    return np.full(drawn.shape, mask if pattern == 2 else 0) if pattern != 3 else (some & ~lower).astype(np.int64)


def _special(f: FloatFormat, drawn: Array) -> Array:
    """Codes of ones, zeros, ends of the format, infinities and NaN."""
    one, normal, largest = (int(f.encode(x)) for x in (1.0, f.min_normal, f.max))
    inf, sign, unit = int(f.encode(np.inf)) if f.inf else 0, 1 << (f.width - 1), 1 << f.padding
    quiet = unit << (f.fraction_bits - 1) if f.inf else 0
    nan = {"ieee": inf | quiet, "top": (1 << (f.width - 1)) - unit, "negative-zero": sign, "none": 0}[f.nan]
    minus_two, zero = int(_number(f, 1, np.array(1), 0)), 0 if nan == sign else sign
    codes = [one, one | sign, one, one | (unit - 1), 0, zero, minus_two, largest, largest | sign, unit]
    codes += [normal - unit, normal - unit + sign, inf or one, (inf or one) | sign, nan or one]
    codes += [nan | (quiet - unit if quiet else 0) or one, nan | sign if nan else one]
    codes += [nan | unit, inf | unit, nan | sign | unit] if quiet else [one] * 3
    return np.array(codes, np.uint64)[drawn % _SPECIAL_COUNT]


def _levels(formats: Formats) -> Array:
    """The largest exponents of the terms of probes."""
    a, b, c, d = formats
    low, high, least = a.emin + b.emin, a.emax + b.emax, d.emin - d.fraction_bits
    bottom, top = max(low, least - 40), min(high, d.emax - 2)
    others = [low, high, least - 1, least, d.emin, d.emax - 1, (top + high) >> 1, c.emin, (c.emin + low) >> 1]
    return np.array([*(bottom + (top - bottom) * j // 13 for j in range(14)), *others, c.emin + 30])


@lru_cache(maxsize=4)
def operands(formats: Any, k: int) -> Probes:
    """The probes of ``probes.h`` for an instruction of these formats, with their kinds and levels."""
    n = 10 * _LEVEL_COUNT * len(_shapes())
    A, B, C = (np.zeros(shape, np.uint64) for shape in ((n, k), (n, k), n))
    if isinstance(formats[0], str):
        i, q = np.arange(n)[:, None], np.arange(k)
        alone = (i % 4 < 3) | (q == i // 4 % k)
        x, y = (np.where(i % 4 > 0, _draw(i, 64 + 2 * q + s), 0x7F + _draw(i, s) % 3) * alone & 0xFF for s in (0, 1))
        c = _draw(i, 2)
        c = (np.where(i % 3 > 0, c, 0x7FFFFFFF + c % 2) & 0xFFFFFFFF)[:, 0]
        return Probes.without_level(x.astype(np.uint8), y.astype(np.uint8), c.astype(np.uint32), "drawn")
    for number, shape in enumerate(_shapes()):
        i = np.arange(number, n, len(_shapes()))
        for m, term in enumerate(shape):
            _term(formats, k, i, m, term, (A, B, C))
    A, B, C = (x.astype(f.code_dtype) for x, f in zip((A, B, C), formats, strict=False))
    probes = Probes.without_level(A, B, C, "")
    a, b, c = probes.values(formats)
    finite = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1) & np.isfinite(c)
    of_a, of_b, of_c = (exponents(np.nan_to_num(x), f) for x, f in zip((a, b, c), formats, strict=False))
    highest = np.maximum((of_a + of_b).max(axis=1), of_c)
    used = (A != 0) & (B != 0)
    spans = np.where(used.any(axis=1), k - np.argmax(used, axis=1), 0)
    levels, counts = np.unique(highest, return_counts=True)
    common = np.isin(highest, levels[counts >= _LEVEL_PROBES]) & finite & (np.abs(highest) < 10**5)
    return replace(probes, kinds=_kinds(probes, formats), levels=np.where(common, highest, NO_LEVEL), spans=spans)


def _term(formats: Formats, k: int, i: Array, m: int, term: tuple[int, ...], to: tuple[Array, Array, Array]) -> None:
    """Write one term of the probes i of a shape, a line of ``probe`` in ``probes.h`` for each step."""
    where, exponent, pattern, signed = term
    a, b, c, d = formats
    in_c, every = where == 10, where == 9
    low, high = a.emin + b.emin, a.emax + b.emax
    e = _levels(formats)[i // len(_shapes()) % _LEVEL_COUNT][:, None]
    turn = i // len(_shapes())
    below = (turn // _LEVEL_COUNT * 4 + (i % len(_shapes()) + turn % _LEVEL_COUNT) % 4)[:, None]
    spread, sign = 1 << _draw(i, 1)[:, None] % 7, _draw(i, 2)[:, None] & 1
    smallest = d.emin - d.fraction_bits
    depth = min(max(smallest - low + a.fraction_bits + b.fraction_bits, 1), 40)
    halves = np.array([d.fraction_bits + 1, d.fraction_bits, 11, 14])[_draw(i, 4) % 4][:, None]
    least = c.emin - c.fraction_bits
    anything = least + _draw(i, 3) % (c.emax - least + 1) if in_c else low + _draw(i, 3) % (high - low + 1)
    slot = (64 + 8 * np.arange(k) if every else np.array([16 + 8 * m]))[None, :]
    kind, random, other = (_draw(i[:, None], slot + s) for s in range(3))
    few = kind >> 8 & 0xFFFFFFF
    last_place = d.emax - d.fraction_bits - few % 3
    of: list[Any] = [e, e - below, e - below - 2, e - d.fraction_bits - 1, e - few % spread, high, last_place, d.emax]
    of += [anything[:, None], max(high - 40, low), e - halves, smallest - 1]
    of += [smallest - 1 - few % depth, smallest + few % 12]
    x = np.broadcast_to(of[exponent], kind.shape)
    signs: list[Any] = [0, 1, sign, 1 - sign, kind >> 5 & 1]
    s = np.broadcast_to(signs[signed], kind.shape)
    if in_c:
        t = np.where(kind >> 6 & 1, below, 1 + random % c.fraction_bits)
        zero = s.astype(np.uint64) << np.uint64(c.width - 1)
        code = _special(c, kind) if pattern == 4 else _number(c, s, x, _significand(c, pattern, t, random))
        to[2][i] = (zero if pattern == 5 else code)[:, 0]
        return
    if pattern == 4:
        A, B = _special(a, kind), _special(b, random)
    elif pattern == 5:
        A, B = _number(a, s, np.array(a.emin - 99), 0), (kind & 1).astype(np.uint64) * _number(b, 0, np.array(0), 0)
    else:
        way, y = kind % 16, x
        x = (y >> 1) + np.where(way == 1, 4, np.where(way == 2, -4, 0))
        x = np.clip(np.clip(x, y - b.emax, y - b.emin), a.emin, a.emax)
        x = np.where(y < low, np.maximum(y - b.emin, a.emin - a.fraction_bits), x)
        x = np.where(way == 3, a.emin - 1 - other % a.fraction_bits, x)
        x = np.where(way == 4, y - b.emin + 1 + other % b.fraction_bits, x)
        t = 1 + (kind >> 16 & 0xFFFFFFF) % max(a.fraction_bits, b.fraction_bits)
        A = _number(a, s, x, _significand(a, pattern, t, random))
        B = _number(b, 0, y - x, _significand(b, pattern, np.where(t > a.fraction_bits, t, 0), other))
    if every:
        to[0][i], to[1][i] = A, B
        return
    at = np.full(len(i), k - where) if where < 6 else _draw(i, 5 + m) % k
    inside = at >= 0
    to[0][i[inside], at[inside]], to[1][i[inside], at[inside]] = A[inside, 0], B[inside, 0]


def _checksum(name: str, codes: Array) -> int:
    """The checksum of ``total`` in ``probes.h`` over the letters of a name and codes."""
    x = np.concatenate([np.frombuffer(name.encode(), np.uint8).astype(np.uint64), codes.astype(np.uint64).reshape(-1)])
    odd = np.arange(len(x), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return int(((x + np.uint64(1)) * odd).sum(dtype=np.uint64))


def _kinds(probes: Probes, formats: Formats) -> Array:
    """The kind of each probe in the words of `evidence.specials`, by the values of its terms."""
    fa, fb, fc, fd = formats
    with np.errstate(all="ignore"):
        a, b, c = (np.asarray(x, np.float64) for x in probes.values(formats))
        p = a * b
        total = p.sum(axis=1) + c
        terms = np.concatenate([p, c[:, None]], axis=1)
        used = (a != 0) & (b != 0)  # products may underflow here
        nonzero = used.sum(axis=1)
        single, size = (nonzero == 1) & (p != 0).any(axis=1) & (c == 0), np.abs(total)
        at = np.argmax(used, axis=1), np.arange(len(c))
        x, y = np.abs(a[at[::-1]]), np.abs(b[at[::-1]])
        infinite = np.isinf(a).any(axis=1) | np.isinf(b).any(axis=1) | np.isinf(c)
        opposite = (terms == np.inf).any(axis=1) & (terms == -np.inf).any(axis=1)
        wide = [np.asarray(f.encode(1.0)) | f.code_dtype.type((1 << f.padding) - 1) for f in (fa, fb)]
        low_bits = (wide[0] == probes.A).sum(axis=1) + (wide[1] == probes.B).sum(axis=1) == 1
        low_bits &= single & (size < 1.5) & (size >= 1) & (fa.padding > 0)
        beyond = (p.max(axis=1) > fd.max) & (p.max(axis=1) == -p.min(axis=1)) & (nonzero == 2)
        normal = (x >= fa.min_normal) & (y >= fb.min_normal)
        zeros = (nonzero == 0) & (c == 0)
        rules = {
            "NaN": np.isnan(a).any(axis=1) | np.isnan(b).any(axis=1) | np.isnan(c),
            "Inf · 0": np.isnan(p).any(axis=1),
            "Inf - Inf": opposite & infinite,
            "Inf": infinite,
            "all products -0, C = -0": zeros & np.signbit(terms).all(axis=1),
            "a product of a zero": zeros,
            "1 - 1": (total == 0) & ((terms != 0).sum(axis=1) == 2),
            "low bits that the format does not have": low_bits,
            "a subnormal in A": single & (x < fa.min_normal) & (y >= fb.min_normal) & (size >= fd.min_normal),
            "a subnormal in B": single & (y < fb.min_normal) & (x >= fa.min_normal) & (size >= fd.min_normal),
            "a subnormal C": (nonzero == 0) & (np.abs(c) < fc.min_normal),
            "- a quarter of D's smallest": single & normal & (total < 0) & (size < fd.min_subnormal / 2),
            "a subnormal result": single & normal & (size < fd.min_normal),
            "overflow by a product": (np.abs(c) == fd.max) & (nonzero == 1) & (size > fd.max),
            "products beyond D, which cancel": beyond & (np.abs(total) <= fd.max),
        }
    return np.asarray(np.select([*rules.values()], [*rules], "drawn"), object)


# --- results
def write(path: str | os.PathLike[str], units: Mapping[str, MmaSpec], machine: str = "emulated") -> None:
    """Write the results that a kit would write for emulated instructions.

    Parameters
    ----------
    path : path-like
        File of the results.
    units : mapping of str to MmaSpec
        Instructions by name.
    machine : str
        Name of the machine.

    Examples
    --------
    >>> import fpemu, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "RESULT.txt")
    >>> write(path, {"unknown unit": fpemu.mma.spec("V100", "fp16", "fp32")})
    >>> (unit,) = read(path)[1]
    >>> result = characterize(unit)
    >>> result.spec.block, result.spec.F, result.spec.final, result.mismatches
    (4, 23, 'RZ', 0)
    """
    lines = [_FIRST + machine]
    for name, spec in units.items():
        formats = (spec.a_format, spec.b_format, spec.c_format or spec.d_format, spec.d_format)
        probes = operands(formats, spec.k)
        D = _emulated(probes, formats, spec)
        text = [f"{code:0{2 * D.itemsize}X}" for code in D.tolist()]
        about = ", ".join(f"{operand} {fmt}" for operand, fmt in zip("ABCD", formats, strict=True))
        lines.append(f"unit {name}: {about}, k {spec.k}, probes {len(probes)}, operands {_of_operands(probes):016X}")
        lines += [" ".join(text[i : i + 16]) for i in range(0, len(text), 16)]
        lines.append(f"end {_checksum(name, D):016X}")
    _system.write_atomic(path, "\n".join([*lines, f"complete: {len(units)} units", ""]).encode())


def _emulated(probes: Probes, formats: Any, spec: MmaSpec) -> Array:
    """The codes that a specification gives."""
    a, b, c = (values(x, f) for x, f in zip((probes.A, probes.B, probes.C), formats, strict=False))
    D = mma.execute(a[:, None, :], b[:, :, None], c[:, None, None], spec)
    return codes(D, formats[3]).reshape(-1)


def _of_operands(probes: Probes) -> int:
    """The checksum of the operands."""
    n, k = probes.A.shape
    rows = np.stack([probes.A.astype(np.uint64), probes.B.astype(np.uint64)], axis=2).reshape(n, 2 * k)
    return _checksum("", np.concatenate([rows, probes.C.astype(np.uint64)[:, None]], axis=1))


def read(path: str | os.PathLike[str]) -> tuple[str, list[Unit]]:
    """Read the results that a kit wrote.

    Parameters
    ----------
    path : path-like
        File of the results.

    Returns
    -------
    str
        Name of the machine.
    list of Unit
        The results of each instruction.

    Raises
    ------
    InputError
        The file is no result of a kit, is truncated or damaged, holds two results, or belongs to another version.
    """
    name = os.fspath(path)
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = []
    if not lines or not lines[0].startswith(_FIRST):
        raise InputError(f"{name} is no result of a probe kit of this version: its first line is not '{_FIRST}MACHINE'")
    for number, line in enumerate(lines[1:], 2):
        if line.startswith(_FIRST[:15]):
            raise InputError(f"{name} holds two results: line {number} begins another; give each its file")
    if not (last := re.fullmatch(r"complete: (\d+) units", lines[-1])):
        raise InputError(f"{name} is truncated: its last line is not 'complete: N units'; run the kit again")
    units, at = [], 1
    while at < len(lines) - 1:
        if not (header := re.fullmatch(_UNIT, lines[at])):
            raise InputError(f"{name}, line {at + 1}: {shown(lines[at][:60])} does not begin an instruction's results")
        unit, *names, k, _, operands_ = header.groups()
        end = next((i for i in range(at, len(lines)) if lines[i].startswith("end ")), len(lines) - 1)
        where = f"{name}: {unit} (lines {at + 1} to {end + 1})"
        units.append(_unit(where, unit, names, int(k), operands_, lines[at + 1 : end + 1]))
        at = end + 1
    if int(last[1]) != len(units):
        raise InputError(f"{name} has {len(units)} instructions and its last line counts {last[1]}: parts are missing")
    return lines[0][len(_FIRST) :], units


def _unit(where: str, name: str, names: list[str], k: int, expected: str, lines: list[str]) -> Unit:
    """The results of one instruction, with both checksums compared."""
    known_names = re.findall(r'\{"(\w+)"', (_FOLDER / "probes.h").read_text(encoding="utf-8"))
    if not 1 <= k <= 64 or set(names) - set(known_names):
        raise InputError(f"{where}: k is not between 1 and 64, or a format is none of {', '.join(known_names)}")
    if set(names) & set(INTEGERS) and names != ["int8", "int8", "int32", "int32"]:
        raise InputError(f"{where}: integer results have A and B in int8, C and D in int32")
    formats = tuple(one if one in INTEGERS else known.get(one) for one in names)
    probes = operands(formats, k)
    if f"{_of_operands(probes):016X}" != expected:
        raise InputError(f"{where}: its operands are not those of this version of fpemu; write a new kit and run it")
    digits = 2 * code_dtype(formats[3]).itemsize
    text = " ".join(lines[:-1]).split()
    valid = len(text) == len(probes) and all(re.fullmatch(rf"[0-9A-F]{{{digits}}}", code) for code in text)
    D = np.array([int(code, 16) for code in text] if valid else [], code_dtype(formats[3]))
    if not valid or lines[-1] != f"end {_checksum(name, D):016X}":
        raise InputError(f"{where}: the results are damaged, because their checksum differs; run the kit again")
    return Unit(name, formats, k, D)


def characterize(unit: Unit) -> Characterized:
    """Find the arithmetic of an instruction from the results of a kit.

    Parameters
    ----------
    unit : Unit
        The results, from `read`.

    Returns
    -------
    Characterized
        The specification with its evidence. All probes are compared with its emulation, codes of NaN included.
    """
    probes, n = operands(unit.formats, unit.k), len(unit.D)
    shape = re.search(r"m\d+n\d+k\d+", unit.name)
    fields: dict[str, Any] = {"name": unit.name, "instruction": unit.name.partition(".")[0], "evidence": "custom"}
    fields["shape"] = shape[0] if shape else ""
    if isinstance(unit.formats[0], str):
        a, b, _, d = unit.formats
        rows = [row for row in ARITHMETICS.values() if row.integer]
        specs = [MmaSpec(a, b, d, unit.k, unit.k, row.name, **fields) for row in rows]
        differ = [int((_emulated(probes, unit.formats, spec) != unit.D).sum()) for spec in specs]
        least = int(np.argmin(differ))
        finding = evidence.Finding("arithmetic", f"{rows[least].name}: {rows[least].text}")
        if differ[least]:
            return Characterized(None, (), n, n, 0, f"{rows[least].name} differs in {differ[least]} of {n} probes")
        return Characterized(specs[least], (finding,), n, n, 0)
    formats: Any = unit.formats
    if not (possible := structures(formats, unit.k)):
        shown_formats = ", ".join(map(str, formats))
        return Characterized(None, (), n, n, 0, f"no arithmetic has A, B, C and D in {shown_formats} with k = {unit.k}")
    results = Results(formats, unit.k, probes, unit.D, possible)
    code, _, text = evidence.nan_rule(probes, unit.D, formats)
    if not results.specs:
        return Characterized(None, (), n, n, 0, evidence.contradiction(results, possible))

    @cache
    def mismatched(spec: MmaSpec) -> int:
        return int((_emulated(probes, formats, spec) != unit.D).sum())

    # the rule of NaN: one code, or payloads beside the code of an invalid operation
    invalid = np.unique(unit.D[np.isnan(results.d) & np.isin(probes.kinds, ["Inf · 0", "Inf - Inf"])]).tolist()
    rules: list[dict[str, Any]] = [{"nan_code": c} for c in ([code] if code is not None else invalid[:1])] or [{}]
    rules += [{"nan_code": c, "payloads": True} for c in invalid[:1] if code is None]
    best = preferred(results.specs)
    ordered = [best, *(s for s in results.specs if s != best)]
    candidates = [c for s in ordered[:_CANDIDATES] for c in changed(s, [{**fields, **rule} for rule in rules])]
    spec = min(candidates, key=mismatched)
    mismatches = mismatched(spec)
    if spec.payloads and not mismatches:
        invalid_text = evidence.hexadecimal(spec.nan_code, formats[3])
        text = f"NaN keep sign and payload, made quiet; an invalid operation gives {invalid_text}"
    kept = {**fields, "nan_code": spec.nan_code} | ({"payloads": True} if spec.payloads else {})
    alike = [c for s in [*results.specs, *results.rivals()] for c in changed(s, [kept])]
    alike = [s for s in alike if s.arithmetic == spec.arithmetic or mismatched(s) == mismatches]  # NaN included
    if spec.rules.truncates and (top := results.reach(spec)) is not None:
        alike.append(spec.replace(**kept, E0=top))
    findings = (*evidence.fields(results, spec, alike), *evidence.direct(probes, unit.D, formats, text))
    why = f"{mismatches} results are NaN of other codes: {text}" if mismatches else ""
    return Characterized(spec, findings, n, n, mismatches, why, tuple(s for s in dict.fromkeys(alike) if s != spec))
