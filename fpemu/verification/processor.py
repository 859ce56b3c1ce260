"""``fpemu verify instructions`` on a CPU: the dot products of the processor here against their emulation.

LLVM assembles the machine code of an instruction (llvmlite, which numba requires), so that no compiler is needed. The
operands are those of `fpemu.mma.operand_streams`, drawn by a compiled function.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpemu import mma
from fpemu._system import digest, digest_text
from fpemu.arguments import integer
from fpemu.compiled.draws import draw_codes
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import MmaSpec
from fpemu.mma import codes as mma_codes
from fpemu.mma import operand_streams as streams
from fpemu.verification import reproducers
from fpemu.verification.records import Outcome
from fpemu.verification.reproducers import Mismatch, execute_codes
from fpemu.verification.suite import Group, Suite

ROWS = 16  # of a tile: an AMX instruction has as many, of the others as many are issued
_CHUNK = 2**18  # outputs at a time
_SHOWN = 3  # classes of an instruction whose first mismatch is shown
_CHECKED = 8  # tests of each class that are drawn again by NumPy
_ZMM, _YMM = "zmm", "ymm"


class Code(NamedTuple):
    """Machine code of an instruction: the flag of /proc/cpuinfo, columns of a tile, and assembly (AT&T syntax).

    The assembly of a vector instruction finds C in register 0, a broadcast group of A in 1, and B in 2.
    """

    flag: str
    columns: int
    assembly: str
    broadcast: str = ""
    register: str = _ZMM


_CODES = {
    "vfmaddps": Code("fma", 8, "vfmadd231ps %ymm2, %ymm1, %ymm0", "vbroadcastss", _YMM),
    "vfmaddpd": Code("fma", 4, "vfmadd231pd %ymm2, %ymm1, %ymm0", "vbroadcastsd", _YMM),
    "vfmaddph": Code("avx512_fp16", 32, "vfmadd231ph %zmm2, %zmm1, %zmm0", "vpbroadcastw"),
    "vdpbf16ps": Code("avx512_bf16", 16, "vdpbf16ps %zmm2, %zmm1, %zmm0", "vpbroadcastd"),
    "vpdpbusd": Code("avx512_vnni", 16, "vpdpbusd %zmm2, %zmm1, %zmm0", "vpbroadcastd"),
    "vpdpbusds": Code("avx512_vnni", 16, "vpdpbusds %zmm2, %zmm1, %zmm0", "vpbroadcastd"),
} | {
    name: Code(flag, 16, f"{name} %tmm2, %tmm1, %tmm0")
    for name, flag in {
        "tdpbf16ps": "amx_bf16",
        "tdpfp16ps": "amx_fp16",
        **dict.fromkeys(("tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud"), "amx_int8"),
    }.items()
}
_LOOP = """
define void @run(ptr %a0, ptr %b0, ptr %c0, ptr %d0, ptr %configuration, i64 %tests) {{
entry:
  {start}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %test = udiv i64 %i, {rows}
  %at_a = mul i64 %i, {size_a}
  %at_b = mul i64 %test, {size_b}
  %at_c = mul i64 %i, {size_c}
  %a = getelementptr i8, ptr %a0, i64 %at_a
  %b = getelementptr i8, ptr %b0, i64 %at_b
  %c = getelementptr i8, ptr %c0, i64 %at_c
  %d = getelementptr i8, ptr %d0, i64 %at_c
  call void asm sideeffect "{body}", "r,r,r,r,r,~{{xmm0}},~{{xmm1}},~{{xmm2}},~{{memory}}"
    (ptr %a, ptr %b, ptr %c, ptr %d, i64 64)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %tests
  br i1 %more, label %loop, label %end
end:
  {end}
  ret void
}}
"""
_AMX_STATE = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux


@cache
def flags() -> frozenset[str]:
    """Return the flags of the processor here in /proc/cpuinfo; none on other systems than Linux on x86-64."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() and platform.machine() == "x86_64" else []
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def rows() -> list[MmaSpec]:
    """Return the catalogue's rows that the processor here can execute."""
    return [row for row in mma.catalog.rows() if row.instruction in _CODES and _CODES[row.instruction].flag in flags()]


@cache
def source(spec: MmaSpec) -> str:
    """Return the loop around an instruction over tests, and over the rows of a tile, as text of LLVM's language."""
    code, (_, b, _, d) = _CODES[spec.instruction], _sizes(spec)
    if code.broadcast:
        move = f"vmovups ({{}}), %{code.register}{{}}"
        body = [move.format("$2", 0), f"{code.broadcast} ($0), %{code.register}1", move.format("$1", 2), code.assembly]
        body.append(f"vmovups %{code.register}0, ($3)")
        sizes = {"rows": ROWS, "size_a": b // code.columns, "size_b": b, "size_c": d // ROWS, "start": "", "end": ""}
    else:
        loads = [f"tileloadd (${operand},$4,1), %tmm{i}" for i, operand in enumerate((2, 0, 1))]
        body = [*loads, code.assembly, "tilestored %tmm0, ($3,$4,1)"]
        start = 'call void asm sideeffect "ldtilecfg ($0)", "r,~{memory}"(ptr %configuration)'
        end = 'call void asm sideeffect "tilerelease", "~{memory}"()'
        sizes = {"rows": 1, "size_a": b, "size_b": b, "size_c": d, "start": start, "end": end}
    return _LOOP.format(body="\\0A".join(body), **sizes)


def _sizes(spec: MmaSpec) -> tuple[int, int, int, int]:
    """Bytes of A, B, C and D of a test."""
    n = _CODES[spec.instruction].columns
    elements = (ROWS * spec.k, n * spec.k, ROWS * n, ROWS * n)
    formats = (*streams.formats(spec), spec.d_format)
    a, b, c, d = (e * mma_codes.code_dtype(fmt).itemsize for e, fmt in zip(elements, formats, strict=True))
    return a, b, c, d


@cache
def _machine_code(text: str) -> tuple[Any, Any]:
    """The function of a text, and the engine that owns its memory."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(text), llvm.Target.from_default_triple().create_target_machine()
    )
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64)(engine.get_function_address("run"))
    return function, engine


def execute_tiles(A: NDArray[Any], B: NDArray[Any], C: NDArray[Any], spec: MmaSpec) -> NDArray[Any]:
    """Return the codes of D from codes of tiles, A (tests, 16, k), B (tests, n, k) and C (tests, 16, n)."""
    code = _CODES[spec.instruction]
    if code.flag not in flags():
        raise InputError(f"{spec}: the processor here has no {code.flag}, which the instruction requires")
    configuration = np.zeros(64, np.uint8)
    if not code.broadcast:
        number, *arguments = _AMX_STATE
        if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments):
            raise InputError(f"{spec}: the operating system denies the use of AMX tiles")
        configuration[0] = 1
        configuration[16:22:2], configuration[48:51] = 64, ROWS  # bytes of a row, and rows, of the tiles 0, 1 and 2
        group = 4 // B.itemsize  # a row of the tile of B has a group of k for each column
        B = B.reshape(*B.shape[:2], -1, group).swapaxes(1, 2)
    A, B, C = (np.ascontiguousarray(x) for x in (A, B, C))
    D = np.full(C.shape, 0xA5, mma_codes.code_dtype(spec.d_format))
    times = len(A) * (ROWS if code.broadcast else 1)
    _machine_code(source(spec))[0](*(x.ctypes.data for x in (A, B, C, D, configuration)), times)
    return D


def execute(A: Any, B: Any, C: Any, spec: MmaSpec) -> NDArray[Any]:
    """`fpemu.mma.execute` by the processor here, for outputs (T, 1, 1): each is one of the outputs of a tile."""
    n = _CODES[spec.instruction].columns
    shapes = ((ROWS, spec.k), (n, spec.k), (ROWS, n))
    tiles = [
        np.broadcast_to(_codes(np.ascontiguousarray(x), fmt), (len(x), *shape))
        for x, fmt, shape in zip((A, B.swapaxes(-1, -2), C), streams.formats(spec), shapes, strict=True)
    ]
    D = execute_tiles(tiles[0], tiles[1], tiles[2], spec)
    return mma_codes.values(D[:, :1, :1], spec.d_format)


def _codes(x: NDArray[Any], fmt: FloatFormat | str) -> NDArray[Any]:
    if isinstance(fmt, str) or fmt.code_dtype.itemsize == x.itemsize:
        return mma_codes.codes(x, fmt)
    return np.asarray(fmt.encode(x))


# --- operands
def operands(spec: MmaSpec, kind: str, seed: int, first: int, tests: int) -> list[NDArray[Any]]:
    """Return the codes of A, B (by columns) and C: those of `fpemu.mma.operand_streams.operands`."""
    n, drawn = _CODES[spec.instruction].columns, []
    shapes = ((ROWS, spec.k), (n, spec.k), (ROWS, n))
    for which, (fmt, shape) in enumerate(zip(streams.formats(spec), shapes, strict=True)):
        recipe, out = streams.recipes(spec, kind)[which], np.empty((tests, *shape), mma_codes.code_dtype(fmt))
        source = np.arange(shape[1]) if which == 2 else streams._source(recipe, shape[1])
        bits = 0 if not isinstance(fmt, str) else 8 * out.itemsize
        numbers = (1, 1, 0, 0) if isinstance(fmt, str) else (fmt.exponent_bits, fmt.fraction_bits, fmt.padding, 1)
        place = list(streams.CLASSES).index(kind) << 2 | which
        draw_codes(out, recipe.numbers(), numbers, np.uint64(seed), np.uint64(first), place, source, bits)
        drawn.append(out)
    return drawn


# --- the suite
def verify(spec: MmaSpec, *, outputs: int = 10**8, seed: int = 0, first: int = 0) -> Outcome:
    """Compare an instruction of the processor here with its emulation.

    Parameters
    ----------
    spec : MmaSpec
        A row of the catalogue that the processor has.
    outputs : int
        Smallest number of outputs, in equal parts over the classes, in whole tiles.
    seed, first : int
        Seed of the operands, and index of the first test.

    Returns
    -------
    Outcome
        Counts, and digests of all outputs by class of operands.

    Raises
    ------
    InputError
        An instruction that the processor does not have, or counts that are not positive.
    """
    outputs, seed = integer("outputs", outputs, 1, 2**62), integer("seed", seed, 0, 2**64 - 1)
    if spec.instruction not in _CODES:
        raise InputError(f"{spec}: it is no instruction of an x86 processor")
    kinds, n, began = list(streams.CLASSES), _CODES[spec.instruction].columns, time.perf_counter()
    facts: dict[str, Any] = {"tile": [ROWS, n], "samples": {}}
    outcome, size = Outcome(spec.name, len(kinds), facts=facts), ROWS * n
    tests, most = -(-outputs // (len(kinds) * size)), max(1, _CHUNK // size)
    emulate = partial(mma.execute, backend="compiled")
    for kind in kinds:
        wrong, total, nan = 0, 0, 0
        for start in range(0, tests, most):
            some = min(most, tests - start)
            A, B, C = operands(spec, kind, seed, first + start, some)
            D = execute_tiles(A, B, C, spec)
            if start == 0:
                _check(spec, kind, seed, first, (A, B, C), D)
                facts["samples"][kind] = digest_text(D[:4])
            differ = np.flatnonzero(execute_codes(A, B, C, spec, emulate) != D)
            if differ.size and not wrong:
                index = (first + start) * size + int(differ[0])
                facts.setdefault("examples", {})[kind] = [index, int(D.reshape(-1)[differ[0]])]
            wrong, outcome.outputs = wrong + differ.size, outcome.outputs + D.size
            total = (total + digest(D, start * size)) % 2**64
            nan += 0 if isinstance(spec.d_format, str) else int(np.isnan(mma_codes.values(D, spec.d_format)).sum())
        outcome.digests[kind], outcome.counts["nan"] = f"{total:016x}", outcome.counts.get("nan", 0) + nan
        if wrong:
            outcome.mismatches += wrong
            outcome.first.append(f"{kind}: {wrong} of {tests * size} differ, the first at {facts['examples'][kind][0]}")
    outcome.first = outcome.first[:_SHOWN]
    outcome.digest = hashlib.sha256(" ".join(outcome.digests.values()).encode()).hexdigest()[:16]
    facts["seconds"] = round(time.perf_counter() - began, 3)
    return outcome


def _check(spec: MmaSpec, kind: str, seed: int, first: int, drawn: Any, D: NDArray[Any]) -> None:
    """Draw the first tests again by NumPy, and compute them by the reference."""
    tests = min(_CHECKED, len(D))
    again = streams.operands(spec, kind, seed, first, tests, ROWS, D.shape[-1])
    for name, x, y in zip("ABC", drawn, again, strict=True):
        if not np.array_equal(x[:tests], y):
            raise RuntimeError(f"{spec}, {kind}: the compiled generator drew other codes for {name} than NumPy")


@dataclass
class Instructions(Suite):
    """Verification of the processor's instructions whose name contains `part`, with `outputs` outputs each or more."""

    name = "instructions"
    about = (
        "Instructions of a processor compared with their emulation, NaN payloads included. digests: of all outputs of"
        " the processor, by class. facts: samples, digests of the first 4 tests of each class; examples, index of a"
        " mismatch and the processor's code by class"
    )

    decisive = ("outputs",)
    outputs: int = 10**8
    part: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not rows():
            flag_names = ", ".join(sorted({code.flag for code in _CODES.values()}))
            raise InputError(
                f"verify: no GPU, and the processor here has no instruction of the catalogue ({flag_names})"
            )
        if not self.groups:
            raise unknown_name("instruction of this processor", self.part, [row.name for row in rows()])

    @cached_property
    def groups(self) -> dict[str, Group]:
        return {row.name: Group() for row in rows() if self.part.lower() in row.name.lower()}

    def device(self) -> dict[str, str]:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
        return {"gpu": fields["model name"], "family": f"{fields['cpu family']} model {fields['model']}"}

    def facts(self) -> dict[str, Any]:
        return {"classes": list(streams.CLASSES)}

    def run(self, group: str) -> Outcome:
        return verify(_row(group), outputs=self.outputs, seed=self.seed)

    def explain(self, outcome: Outcome) -> Iterator[str]:
        yield from super().explain(outcome)
        for kind, (index, code) in islice(outcome.facts.get("examples", {}).items(), _SHOWN):
            mismatch: Mismatch = reproducers.locate(
                _row(outcome.group), kind, self.seed, outcome.facts["tile"], index, code
            )
            yield "\n" + reproducers.describe(reproducers.shrink(mismatch, execute))


def _row(name: str) -> MmaSpec:
    return next(row for row in rows() if row.name == name)
