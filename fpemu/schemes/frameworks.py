"""Names of frameworks and libraries for products of fp32 operands, such as "jax:BF16_BF16_F32_X6": aliases of schemes.

JAX: `jax.lax.DotAlgorithmPreset`, which XLA passes to Triton on GPUs. Triton: `input_precision` of `tl.dot`. PyTorch:
`fp32_precision` and `torch.set_float32_matmul_precision`. cuBLAS: `cublasComputeType_t`. oneMKL: its compute modes.
XLA: the passes of a TPU. Where a framework splits K in tiles, `promote` is the tile's length in k (default 32).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fpemu.errors import InputError, unknown_name

_ONE: dict[str, Any] = {"words": 1, "promote": None}
_TF32, _BF16 = {**_ONE, "fmt": "tf32"}, {**_ONE, "fmt": "bf16"}
_TILES: dict[str, Any] = {"residual_scale": 1.0, "accumulators": "one", "promote": 32}
_TF32X3 = {"words": 2, "fmt": "tf32", "high_rounding": "RNA", "residual_rounding": "RZ", **_TILES}
_TF32X3 |= {"products": ("21", "12", "11")}
_BF16X3 = {"words": 2, "fmt": "bf16", "products": ("21", "12", "11"), **_TILES}
_BF16X6 = {"words": 3, "fmt": "bf16", "products": ("22", "31", "13", "21", "12", "11"), **_TILES}
_BF16X9 = {**_BF16X6, "products": ("33", "23", "32", "22", "31", "13", "21", "12", "11")}
_HALF = {"accumulator": "fp16"}
_AS_FP32, _AS_FP64 = "definition: fp32 FMAs; libraries add in other orders", "definition; libraries add in other orders"
_TRITON = "verified on an H200, Triton 3.8: 49,152 outputs, 0 mismatches"
_VIA_TRITON = (
    "documented: XLA passes it to Triton, whose tile is chosen by its autotuner; on CPUs XLA computes it in fp32"
)
_ORDER = "documented: words and products; the library chooses the order over K"
_CUBLAS_TF32 = f"{_ORDER}; words rounded to nearest, verified on an H200 (K = 64, promote=32)"
_OPEN = "documented: words and number of products; their order and the rounding of the words are not"
_TPU = f"{_OPEN}; the catalogue has no TPU, so hardware names another unit"
_PASSES = {"DEFAULT": _BF16, "HIGH": {**_BF16X3, "promote": None}, "HIGHEST": {**_BF16X6, "promote": None}}

_TABLE: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "jax:F16_F16_F16": ("fp16", _HALF, _ORDER),
    "jax:F16_F16_F32": ("fp16", {}, _ORDER),
    "jax:BF16_BF16_F32": ("multiword", _BF16, _ORDER),
    "jax:BF16_BF16_F32_X3": ("multiword", _BF16X3, _VIA_TRITON),
    "jax:BF16_BF16_F32_X6": ("multiword", _BF16X6, _VIA_TRITON),
    "jax:BF16_BF16_F32_X9": ("multiword", _BF16X9, _VIA_TRITON),
    "jax:TF32_TF32_F32": ("multiword", _TF32, _ORDER),
    "jax:TF32_TF32_F32_X3": ("multiword", _TF32X3, _VIA_TRITON),
    "jax:F32_F32_F32": ("sgemm", {}, _AS_FP32),
    "jax:F64_F64_F64": ("dgemm", {}, _AS_FP64),
    "triton:ieee": ("sgemm", {}, _AS_FP32),
    "triton:tf32": ("multiword", {**_TF32, "high_rounding": "RZ"}, _TRITON),
    "triton:tf32x3": ("multiword", _TF32X3, _TRITON),
    "triton:bf16x3": ("multiword", _BF16X3, _TRITON),
    "triton:bf16x6": ("multiword", _BF16X6, _TRITON),
    "torch:ieee": ("sgemm", {}, _AS_FP32),
    "torch:tf32": ("multiword", _TF32, _CUBLAS_TF32),
    "torch:bf16": ("multiword", _BF16, _ORDER),
    "torch:highest": ("sgemm", {}, _AS_FP32),
    "torch:high": ("multiword", _TF32, _CUBLAS_TF32),
    "torch:medium": ("multiword", _TF32, f"{_CUBLAS_TF32}; on CPUs the words are bf16"),
    "cublas:COMPUTE_16F": ("fp16", _HALF, _ORDER),
    "cublas:COMPUTE_32F": ("sgemm", {}, _AS_FP32),
    "cublas:COMPUTE_32F_PEDANTIC": ("sgemm", {}, _AS_FP32),
    "cublas:COMPUTE_32F_FAST_16F": ("fp16", {}, _ORDER),
    "cublas:COMPUTE_32F_FAST_16BF": ("multiword", _BF16, _ORDER),
    "cublas:COMPUTE_32F_FAST_TF32": ("multiword", _TF32, _CUBLAS_TF32),
    "cublas:COMPUTE_32F_EMULATED_16BFX9": ("bf16x9", {}, _OPEN),
    "cublas:COMPUTE_64F": ("dgemm", {}, _AS_FP64),
    "cublas:COMPUTE_64F_PEDANTIC": ("dgemm", {}, _AS_FP64),
    "onemkl:standard": ("sgemm", {}, _AS_FP32),
    "onemkl:float_to_bf16": ("multiword", _BF16, _OPEN),
    "onemkl:float_to_bf16x2": ("multiword", {"words": 2, "fmt": "bf16", "promote": None}, _OPEN),
    "onemkl:float_to_bf16x3": ("bf16x6", {}, _OPEN),
    "onemkl:float_to_tf32": ("multiword", _TF32, _OPEN),
    **{f"xla:{name}": ("multiword", options, _TPU) for name, options in _PASSES.items()},
}
_FP8 = "its operands are fp8: fpemu.mma.gemm multiplies them"
_REFUSED = {
    "jax:DEFAULT": "the backend chooses the algorithm: name one",
    "jax:BF16_BF16_BF16": "no instruction of the catalogue has an accumulator in bf16",
    **{f"jax:ANY_F8_ANY_F8_{name}": _FP8 for name in ("F32", "F32_FAST_ACCUM", "ANY", "ANY_FAST_ACCUM")},
    "torch:none": "the backend chooses the precision: name 'torch:ieee', 'torch:tf32' or 'torch:bf16'",
    "cublas:COMPUTE_64F_EMULATED_FIXEDPOINT": "its number of slices is not documented: 'ozimmu' and 'ozaki2' take one",
    "cublas:COMPUTE_32I": "its operands are int8: fpemu.mma.gemm multiplies them",
    "onemkl:complex_3m": "it is a product of complex matrices: fpemu.batched.complex_gemm",
    "onemkl:any": "the library chooses the mode: name one",
}


class Alias(NamedTuple):
    """A framework's name of a product, and the scheme for which it stands.

    Parameters
    ----------
    name : str
        "framework:NAME".
    scheme : str
        Name of the scheme.
    options : mapping of str to object
        Options of the scheme that differ from the published values.
    evidence : str
        The respects in which the scheme is the framework's product, and the reason.

    Examples
    --------
    >>> alias("cublas:COMPUTE_32F_FAST_16F").scheme
    'fp16'
    """

    name: str
    scheme: str
    options: Mapping[str, Any]
    evidence: str

    def __str__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.name} is scheme={self.scheme!r}{options} ({self.evidence})"


def aliases() -> list[Alias]:
    """Return all names of frameworks that `fpemu.gemm` accepts as ``scheme``.

    Returns
    -------
    list of Alias
        Name, scheme, options, and the evidence that they are the framework's.

    Examples
    --------
    >>> len(aliases()) > 30
    True
    """
    return [Alias(name, scheme, MappingProxyType(dict(o)), e) for name, (scheme, o, e) in _TABLE.items()]


def alias(name: str) -> Alias:
    """Return the scheme and the options for which a framework's name stands.

    Parameters
    ----------
    name : str
        "framework:NAME"; case does not matter.

    Returns
    -------
    Alias
        Name, scheme, options and evidence.

    Raises
    ------
    InputError
        An unknown name, or one that no scheme computes, with the reason.

    Examples
    --------
    >>> alias("onemkl:float_to_bf16x3").scheme
    'bf16x6'
    """
    key = name.strip().lower().replace(":cublas_", ":")
    for refused, why in _REFUSED.items():
        if refused.lower() == key:
            raise InputError(f"scheme {refused!r}: {why}")
    known = {entry.name.lower(): entry for entry in aliases()}
    if key not in known:
        framework = key.partition(":")[0]
        same = [n for n in _TABLE if n.startswith(framework + ":")]
        raise unknown_name("scheme", name, same or _TABLE)
    return known[key]
