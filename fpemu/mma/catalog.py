"""The hardware catalogue: one row per matrix instruction, with the evidence for its arithmetic and the source.

NVIDIA: a truncated fused dot product with minimum alignment exponent E0 = emin(D) - (F - 18). Every Hopper row agrees
with 10^9 outputs of an H200. tcgen05 and the rows of consumer Blackwell were not run, and no recordings of them exist.
AMD rows rest on the literature; the independent blocks of V_MFMA instructions such as 4x4x4_16b are computed alike, and
one row stands for all. The Ascend row is an assumption, because no bit-level description is public.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from fpemu import formats
from fpemu.arguments import choice, flag, integer
from fpemu.errors import InputError, shown, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import mnemonics, own_rows
from fpemu.mma.spec import INTEGERS, MmaSpec, scale_name

_FASI = "Fasi, Higham, Mikaitis, Pranesh 2021 (10.7717/peerj-cs.330)"
_KHATTAK = "Khattak, Mikaitis 2025 (arXiv 2512.07004)"
_MMASIM = "Xie et al. 2025, MMA-Sim (arXiv 2511.10909)"
_H200 = "NVIDIA H200, driver 580.159, CUDA 13.0, 2026: 10^9 outputs of this instruction, 0 differing bits"
_WGMMA = f"{_H200} (n = 8; the other n: 11,000 to 360,000 each, 0)"
_MIXED = "NVIDIA H200, driver 580.159, CUDA 13.0, 2026: 260,000 outputs and all pairs of codes, 0 differing bits"
_NOT_RUN = f"{_MMASIM}; not run, and no recordings"
_REPLAY = f"recordings of {{}} by {_KHATTAK}: 5,000 dot products per format, 0 differing bits"
_A100, _V100, _ADA = _REPLAY.format("A100 and A2"), _REPLAY.format("V100"), _REPLAY.format("RTX 1000 Ada and L40S")
_B200 = _REPLAY.format("B200")
_AMD_NAN = 0x7FC00000
_INVALID = 0xFFF8 << 48  # of DMMA: what Inf - Inf and Inf · 0 give

_DEFAULT_INSTRUCTION = {arch: "mma" for arch in ("volta", "turing", "ampere", "ada", "blackwell-rtx")}
_DEFAULT_INSTRUCTION |= {"hopper": "wgmma", "blackwell": "tcgen05", "cdna1": "mfma", "cdna2": "mfma", "cdna3": "mfma"}
_DEFAULT_INSTRUCTION |= {"ascend910a": "cube", "ideal": "ideal", "x86": "tdpbf16ps", "arm": "bfmmla"}
"""The widest instruction of each architecture."""

_GPUS = {
    "volta": ("V100", "Titan V", "GV100", "sm_70"),
    "turing": ("T4", "Titan RTX", "RTX 2080", "Quadro RTX 6000", "sm_75"),
    "ampere": (
        "A100",
        "A800",
        "A2",
        "A10",
        "A30",
        "A40",
        "RTX 3080",
        "RTX 3090",
        "RTX A4000",
        "sm_80",
        "sm_86",
        "sm_87",
    ),
    "ada": ("L40S", "L40", "L4", "RTX 4090", "RTX 1000 Ada", "sm_89"),
    "hopper": ("H100", "H200", "H800", "H20", "GH200", "sm_90", "sm_90a"),
    "blackwell": ("B100", "B200", "GB200", "B300", "GB300", "sm_100", "sm_100a", "sm_103"),
    "blackwell-rtx": ("RTX 5090", "RTX PRO 6000", "GB10", "sm_120", "sm_121"),
    "cdna1": ("MI100", "gfx908"),
    "cdna2": ("MI200", "MI210", "MI250", "MI250X", "gfx90a"),
    "cdna3": ("MI300", "MI300X", "MI300A", "MI308X", "MI325X", "gfx942"),
    "ascend910a": ("Ascend 910A", "910A", "Ascend 910"),
    "ideal": (),
    "x86": (),
    "arm": (),
}

_FAMILIES = {
    "volta": "v100s|(quadro)?gv100|sm72",
    "turing": "t40g|(quadro)?t(1000|1200|2000|600)|rtx20[5678]0|quadrortxt?[1-8]000",
    "ampere": "a100x|a10[gm]|a16|a30x|rtx30[5-9]0|(rtx)?a[1-6](000|500)|(agx|jetson)?orin(nano|nx)?",
    "ada": "l2|l20|rtx40[5-9]0|rtx[1-6](000|500|880)(sff)?ada",
    "hopper": "h200|h203e|h100l?|gh100",
    "blackwell": "sm(100|103)[af]?|gb100",
    "blackwell-rtx": "rtx50[5678]0|rtxpro[1-6](000|500)(blackwell)?|sm(120|121)[af]?",
    "cdna2": "mi250xmi250",
    "cdna3": "gfx94[01]",
}
"""Names beside those of `_GPUS`, as patterns of folded names without vendor, memory and form factor."""
_LABELS = (
    "nvidia|amd|huawei|geforce|tesla|radeon|instinct|graphics|gpu|accelerator|generation|laptop|mobile|max-?q|super|ti|d|"
    "workstation|server|edition|with|design|grid|lhr|ac|dgx|spark|oam|sxm[0-9]*|pci-?e|nvl[0-9]*|cnx|hbm[0-9]*e?|mig.*|"
    "[0-9]+ *gi?b?|[0-9]+c"
)
"""Words that drivers add to the name of a GPU: vendor, product line, memory, form factor."""
_NO_MODEL = {
    "mi35[05]x?|gfx95[0-9]|cdna4": "CDNA4",
    "r[0-9]+.*|rx[0-9].*|gfx1[0-9]{3}|w[67][0-9]{3}": "RDNA",
    "gtx.*|p100|p40?|[km][0-9]+|sm[3-6][0-9]": "GPUs without matrix units",
    "thor|sm(101|110)[af]?": "Thor",
    "ascend(310|910[b-d]|9[1-9][0-9]).*": "Ascend chips but the 910A",
    "gaudi.*|tpu.*|max1[0-9]{3}|arc.*": "this vendor",
}
"""GPUs, as patterns of folded names, whose instructions are not in the catalogue."""


def _row(arch: str, instruction: str, shape: str, ab: str, d: str, block: int | None = None, **fields: Any) -> MmaSpec:
    """One row; `block` is limited to the k of the shape, and is k by default."""
    k = int(shape.rpartition("k")[2])
    a, _, b = ab.partition("x")  # "uint8xint8": A and B in different formats
    out = d if d in INTEGERS else formats.get(d).name
    names: dict[str, Any] = {
        "name": f"{arch} {instruction} {shape} {ab}->{out}",
        "architecture": arch,
        "instruction": instruction,
    }
    if "c_format" in fields:
        names["name"] += f", C in {fields['c_format']}"
    return MmaSpec(a, b or a, d, k=k, block=min(block or k, k), shape=shape, **names, **fields)


def _truncated(
    arch: str,
    instruction: str,
    shapes: str,
    ab: str,
    d: str,
    block: int,
    F: int,
    evidence: str,
    source: str,
    **fields: Any,
) -> list[MmaSpec]:
    """Rows of NVIDIA's truncated fused dot product."""
    known = {"F": F, "E0": formats.get(d).emin - (F - 18), "evidence": evidence, "source": source, **fields}
    return [_row(arch, instruction, shape, ab, d, block, **known) for shape in shapes.split()]


def _fp8_13(
    arch: str, instruction: str, shapes: str, ab: str, d: str, block: int, evidence: str, source: str
) -> list[MmaSpec]:
    """fp8 on Ada and on Hopper's wgmma: 13 fraction bits throughout; the floor is as in the fp16 rows."""
    half = d == "fp16"
    source += "; the exponent floor is unsettled, taken from Hopper" if half and arch == "ada" else ""
    known: dict[str, Any] = {"F": 13, "E0": -21 if half else -126, "fraction_bits": None if half else 13}
    known |= {"evidence": evidence, "source": source}
    return [_row(arch, instruction, shape, ab, d, block, **known) for shape in shapes.split()]


def _via_half(arch: str, shape: str, ab: str, d: str) -> MmaSpec:
    """fp8 through mma.sync on Hopper: issued as half-precision instructions."""
    known: dict[str, Any] = {"evidence": "documented", "source": "the rule of an H200; not run"}
    if arch == "blackwell" and shape == "m16n8k32":
        known = {"evidence": "replayed", "source": _B200}
    if arch == "hopper":
        known = {"evidence": "measured", "source": f"{_H200}; machine code: HMMA on unpacked halves"}
    return _row(arch, "mma", shape, ab, d, arithmetic="via-half", F=25, E0=formats.get(d).emin - 7, **known)


def _fp64(arch: str, shape: str) -> MmaSpec:
    """NVIDIA's fp64: a chain of IEEE FMAs that keeps payloads of NaN."""
    known: dict[str, Any] = {"evidence": "documented", "source": f"{_MMASIM}; NaN as on an H200"}
    if arch == "hopper":
        known = {"evidence": "measured", "source": f"{_H200}, payloads of NaN included"}
    return _row(arch, "mma", shape, "fp64", "fp64", 1, arithmetic="fma", payloads=True, nan_code=_INVALID, **known)


def _int8(arch: str, instruction: str, shape: str) -> MmaSpec:
    """Integers, without the .satfinite option."""
    known: dict[str, Any] = {"evidence": "definition", "source": "exact; assumed to wrap modulo 2^32, as an H200 does"}
    if arch == "hopper":
        exact = "exact, modulo 2^32 (with .satfinite: the exact sum, stopped once at the ends of int32)"
        known = {"evidence": "measured", "source": f"{exact}; {_H200 if instruction == 'mma' else _WGMMA}"}
    return _row(arch, instruction, shape, "int8", "int32", arithmetic="integer", **known)


def _build() -> list[MmaSpec]:
    rows: list[MmaSpec] = []
    both = "m16n8k16 m16n8k8"
    for d in ("fp32", "fp16"):
        rows += _truncated("volta", "mma", "m8n8k4", "fp16", d, 4, 23, "replayed", _V100)
        rows += _truncated("turing", "mma", "m16n8k8", "fp16", d, 8, 24, "documented", _FASI)
        rows += _truncated("turing", "mma", "m8n8k4", "fp16", d, 4, 23, "documented", f"{_MMASIM}: Volta's arithmetic")
        rows += _truncated("ampere", "mma", both, "fp16", d, 8, 24, "replayed", _A100)
        rows += _truncated("ada", "mma", both, "fp16", d, 8, 24, "replayed", _ADA)
        rows += _truncated("hopper", "mma", both, "fp16", d, 16, 25, "measured", _H200)
        rows += _truncated("hopper", "wgmma", "m64nNk16", "fp16", d, 16, 25, "measured", _WGMMA)
        rows += _truncated("blackwell", "mma", both, "fp16", d, 16, 25, "replayed", _B200)
        rows += _truncated("blackwell", "tcgen05", "m128nNk16", "fp16", d, 16, 25, "documented", _NOT_RUN)
        rows += _truncated("blackwell-rtx", "mma", both, "fp16", d, 16, 25, "documented", _NOT_RUN)
    for arch in ("volta", "turing"):
        of = f"{_MMASIM}; C in fp16 keeps the exponents of fp16"
        rows += _truncated(arch, "mma", "m8n8k4", "fp16", "fp32", 4, 23, "documented", of, c_format="fp16")
    for ab, shapes, k in (("bf16", both, 16), ("tf32", "m16n8k8 m16n8k4", 8)):
        rows += _truncated("ampere", "mma", shapes, ab, "fp32", k // 2, 24, "replayed", _A100)
        rows += _truncated("ada", "mma", shapes, ab, "fp32", k // 2, 24, "replayed", _ADA)
        rows += _truncated("hopper", "mma", shapes, ab, "fp32", k, 25, "measured", _H200)
        rows += _truncated("hopper", "wgmma", f"m64nNk{k}", ab, "fp32", k, 25, "measured", _WGMMA)
        rows += _truncated("blackwell", "mma", shapes, ab, "fp32", k, 25, "replayed", _B200)
        rows += _truncated("blackwell", "tcgen05", f"m128nNk{k}", ab, "fp32", k, 25, "documented", _NOT_RUN)
        rows += _truncated("blackwell-rtx", "mma", shapes, ab, "fp32", k, 25, "documented", _NOT_RUN)
    for ab in ("e4m3", "e5m2"):
        for d in ("fp32", "fp16"):
            rows += _fp8_13("ada", "mma", "m16n8k32 m16n8k16", ab, d, 16, "replayed", _ADA)
            rows += _fp8_13("hopper", "wgmma", "m64nNk32", ab, d, 32, "measured", _WGMMA)
            for arch in ("hopper", "blackwell"):
                rows += [_via_half(arch, shape, ab, d) for shape in ("m16n8k32", "m16n8k16")]
    for ab in ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"):
        for d in ("fp32", "fp16"):
            rows += _truncated("blackwell", "tcgen05", "m128nNk32", ab, d, 32, 25, "documented", _NOT_RUN)
            shapes = "m16n8k32 m16n8k16" if ab in ("e4m3", "e5m2") else "m16n8k32"
            rows += _truncated("blackwell-rtx", "mma", shapes, ab, d, 32, 25, "documented", _NOT_RUN)
    for arch in ("ampere", "ada", "hopper", "blackwell", "blackwell-rtx"):
        shapes = "m8n8k4 m16n8k16 m16n8k8 m16n8k4" if arch in ("hopper", "blackwell") else "m8n8k4"
        rows += [_fp64(arch, shape) for shape in shapes.split()]
    rows += [_int8(*row.split()) for row in _INT8.strip().splitlines()]
    return rows + _amd() + _exact_sums() + _cpus()


def _block_scaled() -> list[MmaSpec]:
    """Block-scaled instructions of consumer Blackwell and of tcgen05, by PTX's kinds mxf8f6f4, mxf4 and mxf4nvf4."""
    rows = []
    for arch, instruction, mn in (("blackwell-rtx", "mma", "m16n8"), ("blackwell", "tcgen05", "m128nN")):
        for ab, k, F, scale, each in (
            *((ab, 32, 25, "ue8m0", 32) for ab in _BLOCK_SCALED),
            *(("e2m1", 64, 35, *scales) for scales in (("ue8m0", 32), ("ue8m0", 16), ("ue4m3", 16))),
        ):
            more: dict[str, Any] = {
                "name": f"{arch} {instruction} {mn}k{k} {ab}->fp32 {scale}/{each}",
                "scale_block": each,
            }
            more |= {"arithmetic": "scaled" if k == 32 else "scaled-groups", "scale": scale, "shape": f"{mn}k{k}"}
            more |= {"evidence": "documented", "source": f"{_NOT_RUN}; zeros and E0 by the rules of an H200"}
            more |= {"architecture": arch, "instruction": instruction}
            rows.append(MmaSpec(ab, ab, "fp32", k=k, block=k, F=F, E0=-126 - (F - 18), **more))
    return rows


_BLOCK_SCALED = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_INT8 = """
turing mma m8n8k16
ampere mma m16n8k32
ada mma m16n8k32
hopper mma m16n8k32
hopper wgmma m64nNk32
blackwell mma m16n8k32
blackwell tcgen05 m128nNk32
blackwell-rtx mma m16n8k32
ascend910a cube m16n16k32
ideal ideal m16n16k32
"""


_MFMA = """
cdna1 fp32 1 fma 16x16x4 32x32x2 32x32x1 16x16x1 4x4x1
cdna1 fp16 4 exact 16x16x16 32x32x8 32x32x4 16x16x4 4x4x4
cdna1 bf16 2 exact 16x16x8 32x32x4 32x32x2 16x16x2 4x4x2
cdna1 int8 16 integer 16x16x16 32x32x8 32x32x4 16x16x4 4x4x4
cdna2 fp64 1 fma 16x16x4 4x4x4
cdna2 fp32 1 fma 16x16x4 32x32x2 32x32x1 16x16x1 4x4x1
cdna2 fp16 4 flushed 16x16x16 32x32x8 32x32x4 16x16x4 4x4x4
cdna2 bf16_1k 4 flushed 16x16x16 32x32x8 32x32x4 16x16x4 4x4x4
cdna2 bf16 2 flushed 16x16x8 32x32x4 32x32x2 16x16x2 4x4x2
cdna2 int8 16 integer 16x16x16 32x32x8 32x32x4 16x16x4 4x4x4
cdna3 fp64 1 fma 16x16x4 4x4x4
cdna3 fp32 1 fma 16x16x4 32x32x2 32x32x1 16x16x1 4x4x1
cdna3 fp16 8 cdna3 16x16x16 32x32x8 32x32x4 16x16x4 4x4x4
cdna3 bf16 8 cdna3 16x16x16 32x32x8 32x32x4 16x16x4 4x4x4
cdna3 tf32 4 cdna3 16x16x8 32x32x4
cdna3 e4m3fnuz 16 cdna3-fp8 16x16x32 32x32x16
cdna3 e5m2fnuz 16 cdna3-fp8 16x16x32 32x32x16
cdna3 int8 32 integer 16x16x32 32x32x16 32x32x4 16x16x4 4x4x4
"""
"""V_MFMA instructions: architecture, format of A and B, products per rounding, arithmetic, M x N x K. Of CDNA2's bf16
instructions, those with the suffix _1k add four products at a time."""


def _amd() -> list[MmaSpec]:
    rows: list[MmaSpec] = []
    for line in _MFMA.strip().splitlines():
        arch, ab, block, arithmetic, *sizes = line.split()
        d = ab if ab == "fp64" else "fp32"
        known: dict[str, Any] = {"nan_code": _AMD_NAN if d == "fp32" else None, "final": "RNE"}
        known |= {"arithmetic": arithmetic, "evidence": "documented", "source": _MMASIM}
        for size in sizes:
            shape = "m{}n{}k{}".format(*size.split("x"))
            if ab == "int8":
                rows.append(_int8(arch, "mfma", shape))
            else:
                rows.append(_row(arch, "mfma", shape, ab.removesuffix("_1k"), d, int(block), **known))
            if ab.endswith("_1k") and size == "32x32x4":  # the only shape that both kinds of bf16 instructions have
                rows[-1] = rows[-1].replace(name=f"{rows[-1].name} (_1k)", evidence="documented")
    return rows


def _exact_sums() -> list[MmaSpec]:
    """The Ascend cube and the ideal tensor core."""
    known: dict[str, Any] = {"arithmetic": "exact", "final": "RNE"}
    assumed: dict[str, Any] = {
        "evidence": "assumed",
        "source": "16 products and the accumulator added exactly, one RNE",
    }
    defined: dict[str, Any] = {"evidence": "definition", "source": "exact block sum, one RNE"}
    rows = [_row("ascend910a", "cube", "m16n16k16", "fp16", "fp32", **known, **assumed)]
    for ab, k in {"fp16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}.items():
        for d in ("fp32",) if ab in ("bf16", "tf32") else ("fp32", "fp16"):
            rows.append(_row("ideal", "ideal", f"m16n16k{k}", ab, d, **known, **defined))
    return rows


_CPUS = """
x86 tdpbf16ps m16n16k32 bf16 fp32 32 x86-tile measured INTEL
x86 tdpfp16ps m16n16k32 fp16 fp32 32 x86-tile documented FP16
x86 vdpbf16ps m1n16k2 bf16 fp32 2 x86-pairs measured BOTH
x86 vfmaddph m1n32k1 fp16 fp16 1 x86-fma measured INTEL
x86 vfmaddps m1n8k1 fp32 fp32 1 x86-fma measured PS
x86 vfmaddpd m1n4k1 fp64 fp64 1 x86-fma measured PD
x86 tdpbssd m16n16k64 int8 int32 64 integer measured INT
x86 tdpbsud m16n16k64 int8xuint8 int32 64 integer measured INT
x86 tdpbusd m16n16k64 uint8xint8 int32 64 integer measured INT_SHORT
x86 tdpbuud m16n16k64 uint8 int32 64 integer measured INT_SHORT
x86 vpdpbusd m1n16k4 uint8xint8 int32 4 integer measured INT
x86 vpdpbusds m1n16k4 uint8xint8 int32 4 integer-saturated measured INT
arm bfdot m1n4k2 bf16 fp32 2 arm-odd documented QEMU
arm bfmmla m2n2k4 bf16 fp32 2 arm-odd documented QEMU
arm bfdot-ebf m1n4k2 bf16 fp32 2 arm-fused documented QEMU_EBF
arm bfmmla-ebf m2n2k4 bf16 fp32 2 arm-fused documented QEMU_EBF
arm fdot m1n4k4 e4m3 fp32 4 exact documented FP8
arm fdot m1n4k4 e5m2 fp32 4 exact documented FP8
arm fdot m1n8k2 e4m3 fp16 2 exact documented FP8
arm fdot m1n8k2 e5m2 fp16 2 exact documented FP8
"""
_INTEL = "Intel Emerald Rapids, 2026: {} outputs, payloads of NaN included, 0 differing bits"
_CPU_SOURCES = {
    "INTEL": _INTEL.format("10^9"),
    "FP16": "Intel SDM: as TDPBF16PS, but subnormal fp16 operands are not flushed; not run",
    "BOTH": f"{_INTEL.format('10^9')}; AMD Zen 5: 33,792, 0",
    "PS": f"{_INTEL.format('10^9')}; AMD Zen: 10^9, 0",
    "PD": f"{_INTEL.format('300,480')}; AMD Zen: 10^8, 0",
    "INT": _INTEL.format("10^8").replace(", payloads of NaN included", ""),
    "INT_SHORT": _INTEL.format("303,360").replace(", payloads of NaN included", ""),
    "QEMU": "Arm ARM, BFDotAdd, with FPCR = 0; equal to QEMU 7.2: 983,040 outputs, 0 differing bits",
    "QEMU_EBF": "Arm ARM, BFDotAdd, with FPCR = 0 but EBF; equal to QEMU 10.0.13: 983,040 outputs, 0 differing bits",
    "FP8": "Arm ARM, FP8DotAddFP, with FPCR = 0, and FPMR = 0 but the formats; not run",
}


def _cpus() -> list[MmaSpec]:
    """Dot products of x86 and ARM processors."""
    rows = []
    for line in _CPUS.strip().splitlines():
        arch, instruction, shape, ab, d, block, arithmetic, evidence, source = line.split()
        known: dict[str, Any] = {"arithmetic": arithmetic, "evidence": evidence, "source": _CPU_SOURCES[source]}
        if arch == "x86" and d != "int32":  # the NaN of an invalid operation is negative
            known |= {"payloads": True, "nan_code": {"fp16": 0xFE00, "fp32": 0xFFC00000, "fp64": _INVALID}[d]}
        if arch == "arm":
            known |= {"nan_code": 0x7FC00000 if d == "fp32" else 0x7E00}
        rows.append(_row(arch, instruction, shape, ab, d, int(block), **known))
    return rows


FMA_SPECS: dict[str, MmaSpec] = {
    name: MmaSpec(
        name,
        name,
        name,
        k=1,
        block=1,
        arithmetic="fma",
        name=f"simt {name}",
        architecture="simt",
        instruction="fma",
        evidence="definition",
        source="IEEE 754 fusedMultiplyAdd",
    )
    for name in ("fp16", "fp32", "fp64")
}
"""Chains of fused multiply-adds on FMA units, by format."""


@cache
def rows(mixed: bool = False) -> tuple[MmaSpec, ...]:
    """Return all instructions of the catalogue.

    Parameters
    ----------
    mixed : bool
        Also the instructions with different formats of A and B: fp8 pairs, and all pairs of fp8, fp6 and fp4 formats on
        Blackwell.

    Returns
    -------
    tuple of MmaSpec
        One specification per instruction, each with its evidence and source.
    """
    if flag("mixed", mixed):
        return tuple(_with_pairs(rows()))
    return tuple(_build())


@cache
def block_scaled() -> tuple[MmaSpec, ...]:
    """Return all block-scaled instructions of the catalogue, A and B of one format.

    Returns
    -------
    tuple of MmaSpec
        One specification per instruction and format of the scales.

    Examples
    --------
    >>> block_scaled()[7].name
    'blackwell-rtx mma m16n8k64 e2m1->fp32 ue4m3/16'
    """
    return tuple(_block_scaled())


def documented_fields(row: MmaSpec) -> tuple[str, ...]:
    """Return the fields of a replayed row that the recordings do not determine, and that rest on the literature.

    Neighbouring values of these fields reproduce the recordings too, but for at most two of 5,000 results. This was
    tested with the recordings of Khattak and Mikaitis (arXiv 2512.07004).

    Parameters
    ----------
    row : MmaSpec
        Row of the catalogue.

    Returns
    -------
    tuple of str
        Names of fields of MmaSpec; empty for rows with other evidence, which is that of all fields.

    Examples
    --------
    >>> documented_fields(spec("A100", "fp16", "fp16")), documented_fields(spec("H200", "fp16", "fp16"))
    (('E0', 'F'), ())
    """
    if row.evidence != "replayed":
        return ()
    narrow = str(row.a_format) == str(row.d_format) == "fp16"
    short = row.architecture == "blackwell" and str(row.a_format) == "tf32"  # its recordings have K = 4
    return ("E0",) + ("F",) * narrow + ("block",) * short


def architectures() -> list[str]:
    """Return the names of the architectures, oldest first within a vendor.

    Returns
    -------
    list of str
        Names that `spec` and `fpemu.gemm` accept as ``hardware``.

    Examples
    --------
    >>> architectures()[0]
    'volta'
    """
    return list(_GPUS)


def gpu_names() -> dict[str, str]:
    """Return the architecture of every GPU and compute capability in the catalogue.

    Returns
    -------
    dict of str to str
        Architecture by the name of a GPU ("A100") or compute capability ("sm_80").

    Examples
    --------
    >>> gpu_names()["A100"]
    'ampere'
    """
    return {gpu: arch for arch, gpus in _GPUS.items() for gpu in gpus}


def architecture(hardware: str) -> str:
    """Return the architecture of a GPU, a compute capability, an architecture's name or an instruction.

    Parameters
    ----------
    hardware : str
        Name, also as a driver prints it: case, blanks, punctuation, vendor, memory and form factor do not matter. Or
        the path of a file of rows, which ends in ".json"; or the name of an instruction that one architecture has, as
        `spec` accepts it.

    Returns
    -------
    str
        Name of the architecture; the path of a file as it is.

    Raises
    ------
    InputError
        A GPU without a model in the catalogue; an instruction of several architectures; an unknown name, with the
        nearest known one of the same number.

    Examples
    --------
    >>> architecture("H200"), architecture("NVIDIA A100-SXM4-80GB")
    ('hopper', 'ampere')
    """
    if own_rows.is_file(hardware):
        return own_rows.load(hardware)[0].architecture
    name, known = str(hardware).lower(), _known()
    key = _folded(name)
    if key in known:
        return known[key]
    short = _folded(re.sub(rf"(?<![a-z0-9])({_LABELS})(?![a-z0-9])", " ", re.sub(r"\((r|tm)\)|:.*|[_,/]", " ", name)))
    short = re.sub("^compute(?=[0-9])", "sm", short)
    for key in (short, re.sub(r"(laptop|super|ti|d)$", "", short)):
        if key in known:
            return known[key]
        for arch, pattern in _FAMILIES.items():
            if re.fullmatch(pattern, key):
                return arch
    if archs := list(dict.fromkeys(row.architecture for row in _named(name))):
        if re.match(r"v_mfma_..._\d+x\d+x\d+_", name) and "cdna3" in archs:  # the spelling of CDNA3
            return "cdna3"
        if len(archs) > 1:
            raise InputError(
                f"{shown(hardware)} is an instruction of several architectures, {', '.join(archs)}: give one as"
                " hardware=, and instruction="
            )
        return archs[0]
    for pattern, what in _NO_MODEL.items():
        if re.fullmatch(pattern, short):
            raise InputError(
                f"hardware {shown(hardware)} has no model yet: the catalogue has none of {what}; it has "
                f"{', '.join(sorted(architectures()))}"
            )
    # a name with another number, but for zeros at its end, is another GPU, mostly of another architecture
    short, near = re.sub(r"(?<=[0-9])o", "0", short), [*architectures(), *gpu_names()]
    near = [x for x in near if _number(x) == _number(short) and (x[0].lower() == short[:1] or short in _folded(x))]
    raise unknown_name("hardware", hardware, near, architectures())


@cache
def _known() -> dict[str, str]:
    """The architecture of every name without case, blanks and punctuation."""
    return {_folded(a): a for a in architectures()} | {_folded(g): a for g, a in gpu_names().items()}


def _number(name: str) -> str:
    return re.sub(r"[^0-9]", "", name).rstrip("0")


def _folded(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


_NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_PAIRS = (_NARROW[:2], ("e4m3fnuz", "e5m2fnuz"))
"""Formats of A and B that one instruction takes in any pair: fp8 on NVIDIA, fp8 and bf8 on CDNA3
(V_MFMA_F32_16X16X32_FP8_BF8 and _BF8_FP8 of its ISA reference)."""


def _with_pairs(known: Sequence[MmaSpec]) -> list[MmaSpec]:
    """Return the rows and, after them, their other formats of B that are not rows themselves."""
    have = {(r.architecture, r.instruction, str(r.a_format), str(r.b_format)) for r in known}
    pairs = [_mixed(r, b) for r in known for b in _partners(r)]
    return [
        *known,
        *(r for r in pairs if (r.architecture, r.instruction, str(r.a_format), str(r.b_format)) not in have),
    ]


def _partners(row: MmaSpec) -> list[str]:
    """Formats of B that differ from A's: of any two on Blackwell's kind::f8f6f4, else of the same width."""
    f8f6f4 = row.instruction == "tcgen05" or (row.architecture, row.k) == ("blackwell-rtx", 32)
    groups = (_NARROW,) if f8f6f4 else _PAIRS
    if row.a_format != row.b_format:
        return []
    return [b for group in groups if str(row.a_format) in group for b in group if b != str(row.a_format)]


def spec(
    hardware: str | MmaSpec,
    ab_format: str | FloatFormat | tuple[str, str] | None = None,
    cd_format: str | FloatFormat | tuple[str, str] | None = None,
    instruction: str | None = None,
    k: int | None = None,
    scale: str | FloatFormat | None = None,
    scale_block: int | None = None,
) -> MmaSpec:
    """Return the specification of a matrix instruction of some hardware.

    Parameters
    ----------
    hardware : str or MmaSpec
        An architecture ("hopper"), a GPU ("A800"), a compute capability ("sm_80"), the path of a file of rows that
        ``fpemu catalog add`` wrote ("unit.json"); or the name of an instruction that one architecture has
        ("v_mfma_f32_16x16x16_f16"). An MmaSpec passes through.
    ab_format : str, FloatFormat or pair, optional
        Format of A and B ("fp16", "bf16", "tf32", "fp32", "fp64", "e4m3", "int8" ...); a pair where they differ.
        Default: the formats of the named instruction, else fp16.
    cd_format : str, FloatFormat or pair, optional
        Format of C and D; a pair where they differ. Default: fp32, or the only format of the instruction.
    instruction : str, optional
        "mma", "wgmma", "tcgen05", "mfma": default the architecture's widest that has these formats. Or the name of one
        instruction: of PTX ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"), of NVIDIA's machine code
        ("HMMA.16816.F32"), of AMD ("v_mfma_f32_16x16x16f16") or of a row of the catalogue.
    k : int, optional
        Length in k; default the widest.
    scale : {"ue8m0", "ue4m3"}, optional
        Format of the scales, for a block-scaled instruction.
    scale_block : int, optional
        Number of k that share a scale; default the largest of the instruction.

    Returns
    -------
    MmaSpec
        The catalogue's row, with its evidence and source.

    Raises
    ------
    InputError
        Unknown names (with the nearest known), a combination that the hardware does not have, or several instructions
        of different arithmetic.

    Examples
    --------
    >>> spec("H200", "fp16", "fp32").name
    'hopper wgmma m64nNk16 fp16->fp32'
    >>> spec("RTX 5090", "e2m1", scale="ue4m3").name
    'blackwell-rtx mma m16n8k64 e2m1->fp32 ue4m3/16'
    >>> spec("T4", instruction="HMMA.884.F32.F16").c_format.name
    'fp16'
    """
    if isinstance(hardware, MmaSpec):
        return hardware
    arch = architecture(hardware)
    k = integer("k", k, 1, none=True)
    scale, scale_block = scale_name(scale), integer("scale_block", scale_block, 1, none=True)
    if scale is not None or scale_block is not None:
        choice("instruction", instruction, sorted({r.instruction for r in rows()}), none=True)
        a, b = _pair("fp16" if ab_format is None else ab_format, arch)
        return _scaled_spec(arch, a, b, cd_format, instruction, {"scale": scale, "scale_block": scale_block, "k": k})
    matches = _with_pairs(own_rows.load(arch)) if own_rows.is_file(arch) else list(_of_architecture(arch))
    stated, what = False, arch
    for name in (hardware, instruction):
        if isinstance(name, str) and (named := _named(name)):
            matches, stated, what = [r for r in matches if r in named], True, f"{arch} {name}"
            if not matches:
                raise InputError(f"{arch} has no instruction {name}; 'fpemu list hardware' lists its instructions")
            instruction = None if name == instruction else instruction
    if instruction is not None:
        choice("instruction", instruction, sorted({r.instruction for r in (*rows(), *matches)}))
    if ab_format is not None or not stated:
        matches = _of_formats(matches, "fp16" if ab_format is None else ab_format, arch, what)
    a, b = str(matches[0].a_format), str(matches[0].b_format)
    if len({(str(r.a_format), str(r.b_format)) for r in matches}) > 1:
        known = ", ".join(sorted({str(r.a_format) for r in matches}))
        raise InputError(f"{what} takes A and B in several formats: give one of {known}")
    if isinstance(cd_format, tuple):
        if len(cd_format) != 2:
            raise InputError(f"cd_format = {shown(cd_format)} must be a format, or a pair of formats: C's and D's")
        c, d = (_format_name(f, arch) for f in cd_format)
    elif cd_format is not None:
        c = d = _format_name(cd_format, arch)
    else:
        d = "fp32" if any(str(r.d_format) == "fp32" for r in matches) else str(matches[0].d_format)
        c = d
    ab = a if a == b else f"{a}x{b}"
    matches = _select(matches, "d_format", d, f"{what} {ab} ->", "results in")
    if cd_format is None and all(str(r.c_format) != d for r in matches):
        c = str(matches[0].c_format)
    matches = _select(matches, "c_format", c, f"{what} {ab}->{d}:", "C in")
    default = _DEFAULT_INSTRUCTION.get(arch)
    if instruction is not None or (not stated and any(r.instruction == default for r in matches)):
        matches = _select(matches, "instruction", instruction or default, f"{what} {ab}->{d}:", "instruction")
    if k is not None:
        matches = _select(matches, "k", k, f"{what} {matches[0].instruction} {ab}->{d}:", "k =")
    longest = [r for r in matches if r.k == max(row.k for row in matches)]
    kinds = {repr(r): r for r in reversed(longest)}
    if len(kinds) > 1:
        names = ", ".join(f"{mnemonics.mnemonic(r)} (blocks of {r.block})" for r in kinds.values())
        raise InputError(
            f"{what} {ab}->{d} with k = {longest[0].k} is several instructions: give instruction=, one of {names}"
        )
    return longest[0]


def _pair(ab_format: Any, arch: str) -> tuple[str, str]:
    """Return the names of the formats of A and B."""
    pair = ab_format if isinstance(ab_format, tuple) else (ab_format, ab_format)
    if len(pair) != 2:
        raise InputError(f"ab_format = {shown(ab_format)} must be a format, or a pair of formats: A's and B's")
    return _format_name(pair[0], arch), _format_name(pair[1], arch)


def _of_formats(candidates: list[MmaSpec], ab_format: Any, arch: str, what: str) -> list[MmaSpec]:
    """Return the rows with these formats of A and B."""
    a, b = _pair(ab_format, arch)
    matches = [r for r in candidates if str(r.a_format) == a]
    if not matches:
        known = ", ".join(sorted({str(r.a_format) for r in candidates}))
        raise InputError(f"{what} has no matrix instruction for {a}; it has {known}")
    return _select(matches, "b_format", b, f"{what}, A in {a}:", "B in")


@cache
def _of_architecture(arch: str) -> tuple[MmaSpec, ...]:
    return tuple(r for r in rows(mixed=True) if r.architecture == arch)


@cache
def _named(name: str) -> tuple[MmaSpec, ...]:
    """The rows of an instruction's name in an assembly language, of a row's name, or of the name of its field."""
    text = name.strip().lower()
    if _folded(text) in _known():
        return ()
    stated = mnemonics.fields(text)
    if stated is None:
        others = ("mma", "wgmma", "tcgen05", "mfma")  # words that `instruction` takes beside a hardware
        return tuple(r for r in rows(mixed=True) if r.name.lower() == text or r.instruction == text not in others)
    found = tuple(r for r in rows(mixed=True) if mnemonics.states(stated, r))
    if not found:
        raise InputError(f"the catalogue has no instruction {name}; 'fpemu list hardware' lists its instructions")
    return found


def _scaled_spec(arch: str, a: str, b: str, cd_format: Any, instruction: str | None, chosen: dict[str, Any]) -> MmaSpec:
    """Return the block-scaled instruction with these formats, scales and length in k."""
    of_arch = [r for r in block_scaled() if r.architecture == arch]
    if not of_arch:
        known = ", ".join(sorted({r.architecture for r in block_scaled()}))
        raise InputError(f"{arch} has no block-scaled instruction; {known} have")
    fields = {"a_format": a, "d_format": cd_format and _format_name(cd_format, arch), "instruction": instruction}
    matches, named = of_arch, f"{arch} block-scaled"
    for field, value in (fields | chosen).items():
        if value is not None:
            matches = _select(matches, field, value, f"{named}:", f"{field} =")
            named += f" {value}"
    if a != b:
        matches = _select(matches, "k", 32, f"{named} with B in {b}:", "k =")
        _select(of_arch, "a_format", b, f"{arch} block-scaled:", "b_format =")
    row = max(matches, key=lambda r: (r.k, r.scale_block or 0))
    return row if a == b else _mixed(row, b)


def _mixed(row: MmaSpec, b: str) -> MmaSpec:
    """Return the row with B in another format."""
    source = _MIXED if row.evidence == "measured" else f"the rule of {row.a_format} alone: {row.source}"
    evidence = "documented" if row.evidence == "replayed" else row.evidence
    name = row.name.replace(str(row.a_format), f"{row.a_format}x{b}")
    return row.replace(b_format=b, name=name, evidence=evidence, source=source)


def _format_name(fmt: Any, arch: str) -> str:
    if isinstance(fmt, str) and fmt in INTEGERS:
        return fmt
    name = formats.get(fmt).name
    return name + "fnuz" if arch == "cdna3" and name in ("e4m3", "e5m2") else name


def _select(candidates: list[MmaSpec], field: str, value: object, prefix: str, what: str) -> list[MmaSpec]:
    """Return the rows with this value, or raise an error that starts with `prefix` and lists the values."""
    matches = [r for r in candidates if str(getattr(r, field)) == str(value)]
    if not matches:
        known = ", ".join(sorted({str(getattr(r, field)) for r in candidates}))
        raise InputError(f"{prefix} no {what} {value}; it has {known}")
    return matches
