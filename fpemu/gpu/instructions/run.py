"""Run a matrix instruction of the catalogue on the GPU: its PTX, its tiles in memory, and its launch.

The kernel is ``kernels/instruction.cuh``; the macros of `prelude` select the instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import flag, integer
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.gpu.runtime import compiler, device, modules, plan
from fpemu.mma import catalog
from fpemu.mma.gemm import as_values, broadcast, indices
from fpemu.mma.spec import MmaSpec

_PTX = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "e4m3": "e4m3", "e5m2": "e5m2"}
_PTX |= {"fp32": "f32", "fp64": "f64", "int8": "s8", "int32": "s32"}
_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "fp32": 4, "fp64": 8, "int8": 1, "int32": 4}
_ROW_BYTES = (16, 32)  # of A, in all instructions but fp64's
_OUTPUTS = 2**25  # results on the GPU at a time
_BLOCK = 128  # threads


@dataclass(frozen=True)
class Instruction:
    """A PTX matrix instruction and the layout of its tiles in memory."""

    ptx: str  # its name, such as "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    m: int
    n: int
    k: int
    a_format: str  # of A and B, which have one width
    d_format: str  # of C and D
    warpgroup: bool  # a wgmma
    needs: int  # ten times the least compute capability that has it; only 90 has wgmma

    @property
    def threads(self) -> int:
        """Threads that execute it together."""
        return 128 if self.warpgroup else 32

    def exists_on(self, arch: str) -> bool:
        """Return whether an architecture ("sm_90a") has it."""
        number = int("".join(c for c in arch if c.isdigit()))
        return arch == "sm_90a" if self.warpgroup else number >= self.needs


def instruction(spec: MmaSpec, *, n: int | None = None, saturate: bool = False) -> Instruction:
    """Return the PTX instruction of a spec's formats, instruction and shape; InputError if there is none.

    n: columns of a wgmma, by default 8. saturate: the .satfinite form, which only int8 has.
    """
    a, b, d = str(spec.a_format), str(spec.b_format), str(spec.d_format)
    alike = (a == b or {a, b} == {"e4m3", "e5m2"}) and spec.c_format == spec.d_format
    if not alike or (spec.instruction, spec.shape, spec.k, a, d) not in _shapes():
        raise InputError(
            f"{spec}: fpemu.gpu runs the mma and wgmma instructions of NVIDIA's catalog rows, not this one"
        )
    if saturate and not spec.is_integer:
        raise InputError(f"{spec}: only the int8 instructions can saturate")
    satfinite = ".satfinite" if saturate else ""
    if spec.instruction == "wgmma":
        n = 8 if n is None else n
        if n not in widths(spec):
            raise InputError(f"{spec}: no wgmma has n = {n}; it has {', '.join(map(str, widths(spec)))}")
        ptx = f"wgmma.mma_async.sync.aligned.m64n{n}k{spec.k}{satfinite}.{_PTX[d]}.{_PTX[a]}.{_PTX[b]}"
        return Instruction(ptx, 64, n, spec.k, a, d, True, 90)
    if n is not None:
        raise InputError(f"{spec}: n is for wgmma; this instruction has one shape, {spec.shape}")
    rows, columns = (int(x) for x in spec.shape[1:].partition("k")[0].split("n"))
    if not _has_kernel(spec):
        raise InputError(f"{spec}: fpemu.gpu has no kernel for {spec.shape} of {a}")
    ptx = f"mma.sync.aligned.{spec.shape}.row.col{satfinite}.{_PTX[d]}.{_PTX[a]}.{_PTX[b]}.{_PTX[d]}"
    needs = 89 if a in ("e4m3", "e5m2") else 90 if a == "fp64" and rows == 16 else 75 if a == "fp16" else 80
    return Instruction(ptx, rows, columns, spec.k, a, d, False, needs)


def _has_kernel(spec: MmaSpec) -> bool:
    a = str(spec.a_format)
    return a in _BYTES and (a == "fp64" or spec.k * _BYTES[a] in _ROW_BYTES) and spec.architecture != "volta"


@cache
def _shapes() -> frozenset[tuple[str, str, int, str, str]]:
    """Return instruction, shape, k and the formats of A and D of the catalogue's rows that have a PTX instruction."""
    return frozenset(
        (row.instruction, row.shape, row.k, str(row.a_format), str(row.d_format))
        for row in catalog.rows()
        if row.instruction in ("mma", "wgmma") and "n" in row.shape and str(row.a_format) in _PTX
    )


def widths(spec: MmaSpec) -> list[int]:
    """Return the permitted n of a wgmma of these formats."""
    return [8, 24, *range(16, 257, 16)] if spec.is_integer else list(range(8, 257, 8))


def rows(arch: str | None = None) -> list[MmaSpec]:
    """Return the catalogue's rows that an architecture ("sm_90a") can execute; default: this GPU."""
    arch = device.arch() if arch is None else arch
    family = catalog.architecture(arch.rstrip("a"))
    return [
        row
        for row in catalog.rows()
        if row.architecture == family and row.instruction in ("mma", "wgmma") and str(row.a_format) in _PTX
        if _has_kernel(row) and instruction(row).exists_on(arch)
    ]


# --- the kernel's text
@cache
def prelude(spec: MmaSpec, n: int | None = None, saturate: bool = False) -> str:
    """Return the macros that precede ``kernels/instruction.cuh``."""
    ins = instruction(spec, n=n, saturate=saturate)
    double = ins.a_format == "fp64"
    row_words = ins.k * _BYTES[ins.a_format] // (8 if double else 4)
    steps, halves, pair = row_words // 4, 1 if ins.m == 8 else 2, 1 if ins.d_format == "fp16" else 2
    words = {"fp32": "float", "fp64": "double"}.get(ins.d_format, "unsigned")
    kind = {"float": "f", "double": "d", "unsigned": "r"}
    count = (ins.n // 8) * halves * pair
    c = [f'"+{kind[words]}"(c[{i}])' for i in range(count)]
    inputs = [f'"{"d" if double else "r"}"(a[{i}])' for i in range(steps * halves)]

    def registers(first: int, many: int) -> str:
        return "{" + ", ".join(f"%{first + i}" for i in range(many)) + "}"

    parts = [registers(0, count), registers(count, len(inputs))]
    if ins.warpgroup:
        # B's descriptor, scale-d; then scales of A and B, and B not transposed for the 16-bit formats
        tail = {"int8": ", 1", "fp16": ", 1, 1, 1, 0", "bf16": ", 1, 1, 1, 0"}.get(ins.a_format, ", 1, 1, 1")
        parts.append(f"%{count + len(inputs)}{tail}")
        inputs.append('"l"(b_shared)')
    else:
        parts += [registers(count + len(inputs), steps), registers(0, count)]
        inputs += [f'"{"d" if double else "r"}"(b[{i}])' for i in range(steps)]
    issue = f'asm volatile("{ins.ptx} {", ".join(parts)};" : {", ".join(c)} : {", ".join(inputs)} : "memory")'
    wait = f'asm volatile("wgmma.wait_group.sync.aligned 0;" : {", ".join(c)} :: "memory")'
    sizes = {"IS_WGMMA": int(ins.warpgroup), "TILE_M": ins.m, "TILE_N": ins.n, "ROW_WORDS": row_words, "CD_PAIR": pair}
    types = {"AB_WORD": "double" if double else "unsigned", "CD_WORD": words}
    macros = {**sizes, **types, "ISSUE": issue, "AWAIT": wait}
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())


def source(spec: MmaSpec, *, n: int | None = None, saturate: bool = False) -> str:
    """Return the CUDA C++ text of the kernel that `execute` runs."""
    return prelude(spec, n, saturate) + compiler.kernel_source("instruction.cu")


# --- operands
def codes(x: NDArray[Any], fmt: FloatFormat | str) -> NDArray[Any]:
    """Return the codes of values of a format in any type; payloads of NaN are kept."""
    if isinstance(fmt, str):
        return x.astype(fmt, copy=False).view(np.dtype(fmt).str.replace("i", "u"))
    if x.dtype == fmt.dtype and fmt.name in ("fp16", "fp32", "tf32", "fp64"):
        return x.view(fmt.code_dtype)
    return np.asarray(fmt.encode(x))


def _values(x: Any, fmt: FloatFormat | str, name: str) -> NDArray[Any]:
    checked = as_values(x, fmt, name, 2)
    return codes(np.ascontiguousarray(checked).reshape(checked.shape), fmt)


def execute(A: Any, B: Any, C: Any, spec: MmaSpec, *, n: int | None = None, saturate: bool = False) -> Any:
    """Issue one matrix instruction: `fpemu.gpu.execute`."""
    n, saturate = integer("n", n, 1, none=True), flag("saturate", saturate)
    A, B = _values(A, spec.a_format, "A"), _values(B, spec.b_format, "B")
    broadcast(A, B, None)
    if A.shape[-1] != spec.k:
        raise InputError(f"A has K = {A.shape[-1]}: one instruction of {spec} takes K = {spec.k}")
    M, N = A.shape[-2], B.shape[-1]
    if spec.instruction == "wgmma" and n is None:
        n = min((w for w in widths(spec) if w >= N), default=256)
    ins = instruction(spec, n=n, saturate=saturate)
    device.need()
    if not ins.exists_on(device.arch()):
        raise InputError(f"{spec}: the GPU here is {device.arch()}, which has no {ins.ptx}")
    out_dtype = np.dtype(spec.d_format) if isinstance(spec.d_format, str) else spec.d_format.dtype
    if C is None:
        C = np.zeros((M, N), f"u{out_dtype.itemsize}")
    else:
        C = _values(C, spec.c_format if spec.c_format is not None else spec.d_format, "C")
    shape = broadcast(A, B, C)
    C = np.broadcast_to(C, shape).reshape(-1, M, N)
    if C.size == 0:
        return np.zeros(shape, out_dtype)
    index = [indices(X, shape[:-2]).astype(np.int32) for X in (A, B)]
    flat = A.reshape(-1, M, spec.k), np.swapaxes(B, -1, -2).reshape(-1, N, spec.k)
    # zeros fill the last tiles of A, B, and C
    padded = (np.pad(x, ((0, 0), (0, -x.shape[1] % h), (0, 0))) for x, h in zip(flat, (ins.m, ins.n), strict=True))
    A_gpu, B_gpu = map(device.Buffer.of, padded)
    module, m, n = modules.module(source(spec, n=n, saturate=saturate), f"{spec}"), -(-M // ins.m), -(-N // ins.n)
    whole = np.pad(C, ((0, 0), (0, m * ins.m - M), (0, n * ins.n - N)))
    tiles = whole.reshape(-1, m, ins.m, n, ins.n).transpose(0, 1, 3, 2, 4)

    def product(some: slice) -> NDArray[Any]:
        """Compute some products, whose results are on the GPU as whole tiles."""
        count = m * n * len(tiles[some])
        inputs = (A_gpu, B_gpu, device.Buffer.of(tiles[some]))
        numbers = [device.Buffer.of(x[some]) for x in index]
        sizes = (np.int32(m), np.int32(n), np.int64(count))

        def run(D: device.Buffer) -> None:
            blocks = -(-count * ins.threads // _BLOCK)
            plan.queue(module.step("execute", blocks, _BLOCK, *inputs, D, *numbers, *sizes))

        return device.collect(run, tiles[some].shape, C.dtype)

    step = max(1, _OUTPUTS // (m * ins.m * n * ins.n))
    results = np.concatenate([product(slice(first, first + step)) for first in range(0, len(C), step)])
    D = results.transpose(0, 1, 3, 2, 4).reshape(whole.shape)[:, :M, :N]
    return np.ascontiguousarray(D).view(out_dtype).reshape(shape)
