"""Instructions: blocks chained over k, and the table of the specification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.oracle.blocks import (
    add,
    arm_block,
    cdna2_block,
    cdna3_block,
    converted,
    exact_block,
    flushed,
    fma,
    truncated_block,
    x86_step,
)
from tests.oracle.codes import FORMATS, canonical_nan, code_of, decode

Block = Callable[[Sequence[int], Sequence[int], int], int]


@dataclass(frozen=True)
class Instruction:
    """One element of one instruction: ``run(a, b, c)`` takes k codes, k codes and a code, and gives a code."""

    k: int
    a: str
    b: str
    c: str
    d: str
    run: Block
    nan_code: int | None = None  # the only NaN it returns, or that of an invalid step; None: not specified
    zero_sign: bool = True  # whether the sign of a zero result is specified


def in_blocks(block: Block, length: int) -> Block:
    """Blocks in increasing k: the rounded result of one is the accumulator of the next."""

    def run(a: Sequence[int], b: Sequence[int], c: int) -> int:
        for start in range(0, len(a), length):
            c = block(a[start : start + length], b[start : start + length], c)
        return c

    return run


def truncated(
    a: str,
    b: str,
    d: str,
    k: int,
    L: int,
    F: int,
    E0: int | None,
    final: str,
    keep: int | None = None,
    c_format: str | None = None,
) -> Instruction:
    fa, fb, fc, fd = FORMATS[a], FORMATS[b], FORMATS[c_format or d], FORMATS[d]
    assert fc == fd or k == L

    def block(x: Sequence[int], y: Sequence[int], c: int) -> int:
        pairs = [(decode(p, fa), decode(q, fb)) for p, q in zip(x, y, strict=True)]
        return truncated_block(pairs, decode(c, fc), F, E0, fd, final, keep)

    return Instruction(k, a, b, c_format or d, d, in_blocks(block, L), canonical_nan(fd))


def exact(a: str, b: str, d: str, k: int, L: int) -> Instruction:
    fa, fb, fd = FORMATS[a], FORMATS[b], FORMATS[d]

    def block(x: Sequence[int], y: Sequence[int], c: int) -> int:
        return exact_block([(decode(p, fa), decode(q, fb)) for p, q in zip(x, y, strict=True)], decode(c, fd), fd)

    return Instruction(k, a, b, d, d, in_blocks(block, L), None, zero_sign=False)


def fma_chain(fmt: str, k: int) -> Instruction:
    f = FORMATS[fmt]

    def block(x: Sequence[int], y: Sequence[int], c: int) -> int:
        return fma(decode(x[0], f), decode(y[0], f), decode(c, f), f)

    return Instruction(k, fmt, fmt, fmt, fmt, in_blocks(block, 1), None)


def dmma(k: int) -> Instruction:
    """NVIDIA's fp64: the NaN of a step is that of b, else of c, else of a, made quiet; else that of an invalid step."""
    f, invalid = FORMATS["fp64"], 0xFFF8000000000000

    def block(x: Sequence[int], y: Sequence[int], c: int) -> int:
        a, b, start = (decode(code, f) for code in (x[0], y[0], c))
        d = fma(a, b, start, f)
        if decode(d, f).kind != "nan":
            return d
        found = [code for code, n in ((y[0], b), (c, start), (x[0], a)) if n.kind == "nan"]
        return found[0] | 1 << 51 if found else invalid

    return Instruction(k, "fp64", "fp64", "fp64", "fp64", in_blocks(block, 1), invalid)


def cdna2(ab: str, k: int, L: int) -> Instruction:
    def block(x: Sequence[int], y: Sequence[int], c: int) -> int:
        return cdna2_block(x, y, c, FORMATS[ab])

    def run(x: Sequence[int], y: Sequence[int], c: int) -> int:
        return in_blocks(block, L)(x, y, flushed(c, FORMATS["fp32"], False))

    return Instruction(k, ab, ab, "fp32", "fp32", run, None)


def cdna3(a: str, b: str, k: int, L: int, interleaved: bool = False) -> Instruction:
    fa, fb, f32 = FORMATS[a], FORMATS[b], FORMATS["fp32"]

    def block(x: Sequence[int], y: Sequence[int], c: int) -> int:
        pairs = [(decode(p, fa), decode(q, fb)) for p, q in zip(x, y, strict=True)]
        return cdna3_block(pairs, decode(c, f32), interleaved)

    return Instruction(k, a, b, "fp32", "fp32", in_blocks(block, L), None, zero_sign=False)


def fp8_through_half(a: str, b: str, d: str, k: int) -> Instruction:
    """Hopper's mma.sync on fp8: a chain from zero over k mod 4 in {0, 1}, then {2, 3}; then C by one RNE.

    fp16 holds every value of e4m3 and e5m2; the subnormals of e4m3 become normal there.
    """
    fa, fb, fd, f16 = FORMATS[a], FORMATS[b], FORMATS[d], FORMATS["fp16"]
    half = TABLE["hopper", "mma", "fp16", d, 16]

    def run(x: Sequence[int], y: Sequence[int], c: int) -> int:
        acc = 0
        for group in ((0, 1), (2, 3)):
            picked = [i for i in range(len(x)) if i % 4 in group]
            acc = half.run([converted(x[i], fa, f16) for i in picked], [converted(y[i], fb, f16) for i in picked], acc)
        return add(acc, c, fd)

    return Instruction(k, a, b, d, d, run, canonical_nan(fd))


def x86(ab: str, d: str, k: int, tile: bool = False) -> Instruction:
    """VFMADD (k = 1); VDPBF16PS: of a pair the odd element first; TDPBF16PS (`tile`): even and odd k apart, c last."""
    fa, fd = FORMATS[ab], FORMATS[d]
    one, invalid = code_of(1, 0, fd), 1 << (fd.width - 1) | fd.top << fd.fraction_bits | 1 << (fd.fraction_bits - 1)

    def wide(code: int) -> int:  # a value of bf16 or fp16 in fp32; a NaN keeps its payload
        if fa is fd:
            return code
        if ab == "bf16":
            return code << 16
        n = decode(code, fa)
        if n.kind == "nan":
            return n.sign << 31 | 0x7F800000 | (code & 0x3FF) << 13
        return converted(code, fa, fd)

    def run(x: Sequence[int], y: Sequence[int], c: int) -> int:
        sums = [0, 0] if tile else [c, c]
        order = range(k) if tile else range(k - 1, -1, -1)
        for i in order:
            lane = i % 2 if tile else 0
            sums[lane] = x86_step(wide(x[i]), wide(y[i]), sums[lane], fd, fa is not fd)
        return x86_step(c, one, x86_step(sums[0], one, sums[1], fd, True), fd, True) if tile else sums[0]

    return Instruction(k, ab, ab, d, d, run, invalid)


def arm(k: int, ebf: bool) -> Instruction:
    def block(x: Sequence[int], y: Sequence[int], c: int) -> int:
        return arm_block(x, y, c, ebf)

    return Instruction(k, "bf16", "bf16", "fp32", "fp32", in_blocks(block, 2), 0x7FC00000)


# --- the table of the specification: (architecture, instruction, A and B, D, k) -> arithmetic


def _nvidia() -> dict[tuple[str, str, str, str, int], Instruction]:
    t: dict[tuple[str, str, str, str, int], Instruction] = {}

    def row(
        arch: str,
        name: str,
        ab: str,
        d: str,
        ks: Sequence[int],
        L: int,
        F: int,
        E0: int,
        final: str,
        keep: int | None = None,
    ) -> None:
        for k in ks:
            t[arch, name, ab, d, k] = truncated(ab, ab, d, k, min(L, k), F, E0, final, keep)

    for arch in ("volta", "turing"):
        row(arch, "mma", "fp16", "fp32", (4,), 4, 23, -131, "RZ")
        row(arch, "mma", "fp16", "fp16", (4,), 4, 23, -19, "RNE")
        key = arch, "mma", "fp16", "fp32 from fp16", 4
        t[key] = truncated("fp16", "fp16", "fp32", 4, 4, 23, -131, "RZ", c_format="fp16")
    row("turing", "mma", "fp16", "fp32", (8,), 8, 24, -132, "RZ")
    row("turing", "mma", "fp16", "fp16", (8,), 8, 24, -20, "RNE")
    for arch in ("ampere", "ada"):
        row(arch, "mma", "fp16", "fp32", (8, 16), 8, 24, -132, "RZ")
        row(arch, "mma", "fp16", "fp16", (8, 16), 8, 24, -20, "RNE")
        row(arch, "mma", "bf16", "fp32", (8, 16), 8, 24, -132, "RZ")
        row(arch, "mma", "tf32", "fp32", (4, 8), 4, 24, -132, "RZ")
    for ab in ("e4m3", "e5m2"):
        # no effect for fp32 (any value at or below -126 - 13 serves); fp16 "unsettled": taken as on Hopper
        row("ada", "mma", ab, "fp32", (16, 32), 16, 13, -133, "RZ", 13)
        row("ada", "mma", ab, "fp16", (16, 32), 16, 13, -21, "RNE")
        row("hopper", "wgmma", ab, "fp32", (32,), 32, 13, -133, "RZ", 13)
        row("hopper", "wgmma", ab, "fp16", (32,), 32, 13, -21, "RNE")
    like_hopper = ("hopper", "mma"), ("hopper", "wgmma"), ("blackwell", "mma"), ("blackwell", "tcgen05")
    for arch, name in (*like_hopper, ("blackwell-rtx", "mma")):
        wide = name in ("wgmma", "tcgen05")
        row(arch, name, "fp16", "fp32", (16,) if wide else (8, 16), 16, 25, -133, "RZ")
        row(arch, name, "fp16", "fp16", (16,) if wide else (8, 16), 16, 25, -21, "RNE")
        row(arch, name, "bf16", "fp32", (16,) if wide else (8, 16), 16, 25, -133, "RZ")
        row(arch, name, "tf32", "fp32", (8,) if wide else (4, 8), 8, 25, -133, "RZ")
    for ab in ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"):
        for arch, name in (("blackwell", "tcgen05"), ("blackwell-rtx", "mma")):
            ks = (16, 32) if name == "mma" and ab in ("e4m3", "e5m2") else (32,)
            row(arch, name, ab, "fp32", ks, 32, 25, -133, "RZ")
            row(arch, name, ab, "fp16", ks, 32, 25, -21, "RNE")
    for arch in ("ampere", "ada", "hopper", "blackwell", "blackwell-rtx"):
        for k in (4, 8, 16):
            t[arch, "mma", "fp64", "fp64", k] = dmma(k)
    return t


def _amd_and_models() -> dict[tuple[str, str, str, str, int], Instruction]:
    t: dict[tuple[str, str, str, str, int], Instruction] = {}
    for arch in ("cdna1", "cdna2", "cdna3"):
        for k in (4, 2, 1):
            t[arch, "mfma", "fp32", "fp32", k] = fma_chain("fp32", k)
    for arch in ("cdna2", "cdna3"):
        t[arch, "mfma", "fp64", "fp64", 4] = fma_chain("fp64", 4)
    for k in (16, 8, 4):
        t["cdna1", "mfma", "fp16", "fp32", k] = exact("fp16", "fp16", "fp32", k, 4)
        t["cdna2", "mfma", "fp16", "fp32", k] = cdna2("fp16", k, 4)
        t["cdna2", "mfma_1k", "bf16", "fp32", k] = cdna2("bf16", k, 4)
        for ab in ("fp16", "bf16"):
            t["cdna3", "mfma", ab, "fp32", k] = cdna3(ab, ab, k, 8)
    for k in (8, 4, 2):
        t["cdna1", "mfma", "bf16", "fp32", k] = exact("bf16", "bf16", "fp32", k, 2)
        t["cdna2", "mfma", "bf16", "fp32", k] = cdna2("bf16", k, 2)
    for k in (8, 4):
        t["cdna3", "mfma", "tf32", "fp32", k] = cdna3("tf32", "tf32", k, 4)
    for ab in ("e4m3fnuz", "e5m2fnuz"):
        for k in (32, 16):
            t["cdna3", "mfma", ab, "fp32", k] = cdna3(ab, ab, k, 16, interleaved=True)
    t["ascend910a", "cube", "fp16", "fp32", 16] = exact("fp16", "fp16", "fp32", 16, 16)
    for ab, d, k in (("fp16", "fp32", 16), ("fp16", "fp16", 16), ("bf16", "fp32", 16), ("tf32", "fp32", 8)):
        t["ideal", "ideal", ab, d, k] = exact(ab, ab, d, k, k)
    for ab in ("e4m3", "e5m2"):
        for d in ("fp16", "fp32"):
            t["ideal", "ideal", ab, d, 32] = exact(ab, ab, d, 32, 32)
    return t


def _cpus() -> dict[tuple[str, str, str, str, int], Instruction]:
    t = {
        ("x86", f"vfmadd{s}", fmt, fmt, 1): x86(fmt, fmt, 1)
        for s, fmt in (("ph", "fp16"), ("ps", "fp32"), ("pd", "fp64"))
    }
    t["x86", "vdpbf16ps", "bf16", "fp32", 2] = x86("bf16", "fp32", 2)
    t["x86", "tdpbf16ps", "bf16", "fp32", 32] = x86("bf16", "fp32", 32, tile=True)
    t["x86", "tdpfp16ps", "fp16", "fp32", 32] = x86("fp16", "fp32", 32, tile=True)
    for ebf in (False, True):
        t["arm", "bfdot-ebf" if ebf else "bfdot", "bf16", "fp32", 2] = arm(2, ebf)
        t["arm", "bfmmla-ebf" if ebf else "bfmmla", "bf16", "fp32", 4] = arm(4, ebf)
    for ab in ("e4m3", "e5m2"):
        t["arm", "fdot", ab, "fp32", 4] = exact(ab, ab, "fp32", 4, 4)
        t["arm", "fdot", ab, "fp16", 2] = exact(ab, ab, "fp16", 2, 2)
    return t


TABLE = _nvidia() | _amd_and_models() | _cpus()
for _arch in ("hopper", "blackwell"):
    for _ab in ("e4m3", "e5m2"):
        for _k in (16, 32):
            TABLE[_arch, "mma", _ab, "fp32", _k] = fp8_through_half(_ab, _ab, "fp32", _k)
            # fp16 result: open where a partial sum overflows; the same rule otherwise
            TABLE[_arch, "mma", _ab, "fp16", _k] = fp8_through_half(_ab, _ab, "fp16", _k)
