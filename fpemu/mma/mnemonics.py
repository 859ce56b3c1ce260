"""Names of instructions in assembly languages (PTX, NVIDIA's SASS, AMD's V_MFMA), and the fields that they state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fpemu.mma.spec import MmaSpec

_TYPES = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "s32": "int32", "s8": "int8", "i8": "int8", "i32": "int32"}
_TYPES |= {"xf32": "tf32", "fp8": "e4m3fnuz", "bf8": "e5m2fnuz"}
_T = r"(f64|f32|f16|bf16|tf32|s32|s8|e4m3|e5m2|e3m2|e2m3|e2m1)"
_MFMA = re.compile(
    r"(?:v_|__builtin_amdgcn_)?mfma_(f64|f32|i32)_(\d+)x(\d+)x(\d+)(?:_\d+b)?_?(xf32|f64|f32|bf16|f16|i8|fp8|bf8)"
    r"(?:_(fp8|bf8))?(_1k)?(?:_e64)?"
)
_MMA = re.compile(
    rf"mma\.sync\.aligned\.(m\d+n\d+k\d+)(?:\.(?:row|col))*(\.kind::f8f6f4)?(?:\.satfinite)?\.{_T}\.{_T}\.{_T}\.{_T}"
)
_WGMMA = re.compile(rf"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)(?:\.satfinite)?\.{_T}\.{_T}\.{_T}")
_TCGEN05 = re.compile(r"tcgen05\.mma(?:\.ws)?(?:\.cta_group::[12])?\.kind::(tf32|f16|f8f6f4|i8)")
_KINDS = {"tf32": ("tf32",), "f16": ("fp16", "bf16"), "i8": ("int8",)}  # of A; f8f6f4: all others
_SASS = re.compile(r"([hidq])(g?)mma\.(16|8|64)x?(8|\d+x)(\d+)((?:\.[a-z0-9]+)*)")


def fields(name: str) -> dict[str, Any] | None:
    """Return the fields of MmaSpec that an instruction's name states, as sets of values; None for other names.

    The key "_1k" states the kind of bf16 instruction of CDNA2.

    >>> fields("HMMA.16816.F32")["shape"], fields("H200")
    ({'m16n8k16'}, None)
    """
    text = name.strip().rstrip(";").lower()
    if m := _MFMA.fullmatch(text):
        d, *size, a, b, short = m.groups()
        return dict(_stated("mfma", "m{}n{}k{}".format(*size), a, b or a, d, d)) | {"_1k": bool(short)}
    if m := _MMA.fullmatch(text):
        shape, kind, d, a, b, c = m.groups()
        return dict(_stated("mma", shape, a, b, c, d)) | ({"architecture": {"blackwell-rtx"}} if kind else {})
    if m := _WGMMA.fullmatch(text):
        n, k, d, a, b = m.groups()
        good = int(n) % 8 == 0 and 8 <= int(n) <= 256
        return dict(_stated("wgmma", f"m64nNk{k}" if good else f"m64n{n}k{k}", a, b, d, d))
    if m := _TCGEN05.fullmatch(text):
        others = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
        return {"instruction": {"tcgen05"}, "a_format": set(_KINDS.get(m[1], others))}
    if m := _SASS.fullmatch(text):
        return _machine_code(*m.groups())
    return None


def _stated(instruction: str, shape: str, a: str, b: str, c: str, d: str) -> Iterator[tuple[str, Any]]:
    yield from {"instruction": {instruction}, "shape": {shape}}.items()
    for operand, of in zip("abcd", (a, b, c, d), strict=True):
        yield f"{operand}_format", {_TYPES.get(of, of)}


def _machine_code(unit: str, group: str, m: str, n: str, k: str, suffixes: str) -> dict[str, Any] | None:
    """Fields of an instruction of NVIDIA's machine code, such as HMMA.16816.F32.BF16."""
    types = [t for t in suffixes.split(".") if re.fullmatch(_T, t)]
    if unit == "d":
        types = ["f64"] * 4
    elif unit == "i":
        types = ["s32", *(types or ["s8", "s8"])[:2], "s32"]
    elif unit == "q":
        types = [*types[:3], *types[:1]] if len(types) == 3 else []
    elif types:
        inner = next((t for t in types[1:] if t in ("bf16", "tf32")), "f16")
        types = [types[0], inner, inner, types[1] if inner == "f16" and len(types) > 1 else types[0]]
    if len(types) != 4:
        return None
    d, a, b, c = types
    if group:
        return dict(_stated("wgmma", f"m64nNk{k}", a, b, c, d))
    only = {"architecture": {"ada", "blackwell-rtx"}} if unit == "q" else {}  # mma of fp8 is HMMA on the others
    return dict(_stated("mma", f"m{m}n{n.rstrip('x')}k{k}", a, b, c, d)) | only


def states(name: dict[str, Any], row: MmaSpec) -> bool:
    """Whether a row has all fields of a name."""
    one_k = row.architecture == "cdna2" and str(row.a_format) == "bf16" and row.block == 4
    if row.architecture == "cdna2" and str(row.a_format) == "bf16" and name.get("_1k", one_k) != one_k:
        return False
    return all(
        str(getattr(row, field)) in values for field, values in name.items() if field in row.__dataclass_fields__
    )


def mnemonic(row: MmaSpec) -> str:
    """Return AMD's name of a row of the catalogue; of others, the row's name.

    >>> import fpemu
    >>> mnemonic(fpemu.mma.spec("MI250", "bf16"))
    'v_mfma_f32_16x16x16bf16_1k'
    """
    if row.instruction != "mfma":
        return row.name
    amd = {value: key for key, value in _TYPES.items()}
    a, b, d = (amd.get(str(f), str(f)) for f in (row.a_format, row.b_format, row.d_format))
    size = "x".join(re.findall(r"\d+", row.shape))
    gap, pair = "_" * (row.architecture == "cdna3"), f"_{b}" * (a in ("fp8", "bf8"))
    short = "_1k" * (row.architecture == "cdna2" and a == "bf16" and row.block == 4)
    return f"v_mfma_{d}_{size}{gap}{a}{pair}{short}"
