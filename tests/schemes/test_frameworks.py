"""Names of frameworks as aliases of schemes: the mapping, refusals, and Triton's products written out tile by tile."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from fpemu import mma, schemes
from fpemu.errors import InputError
from tests.equal import same

RNG = np.random.default_rng(49)
A = (RNG.standard_normal((5, 96)) * np.exp2(RNG.integers(-9, 9, (5, 96)))).astype(np.float32)
B = RNG.standard_normal((96, 7)).astype(np.float32)
A[0, :4] = np.array([0x3F801000, 0x3F803000, 0xBF801000, 0x40001000], np.uint32).view(np.float32)  # ties of tf32


def words(x, fmt, count):
    """The words of Triton: RNA and the unrounded rest, which the instruction truncates, or RNE of every rest."""
    rest, found = x, []
    for i in range(count):
        mode = "RNE" if fmt == "bf16" else "RZ" if i == count - 1 and count > 1 else "RNA"
        found.append(np.asarray(fpemu.round_to(rest, fmt, mode)).astype(np.float32))
        rest = rest - found[-1]
    return found


@pytest.mark.parametrize(
    ("name", "fmt", "count", "products"),
    [("tf32x3", "tf32", 2, "10 01 00"), ("bf16x3", "bf16", 2, "10 01 00"), ("bf16x6", "bf16", 3, "11 20 02 10 01 00")],
)
@pytest.mark.parametrize("tile", [32, 16])
def test_triton_s_products_tile_by_tile(name, fmt, count, products, tile):
    spec = mma.spec("H200", fmt)
    a, b = words(A, fmt, count), words(B, fmt, count)
    total = np.zeros((5, 7), np.float32)
    for k in range(0, 96, tile):
        ks = slice(k, k + tile)
        d = np.zeros_like(total)
        for i, j in products.split():
            d = mma.gemm(a[int(i)][:, ks], b[int(j)][ks], d, spec)
        total = d + total
    got = fpemu.gemm(A, B, scheme=f"triton:{name}", hardware="H200", promote=tile)
    same(got, total)
    preset = {"tf32x3": "TF32_TF32_F32_X3", "bf16x3": "BF16_BF16_F32_X3", "bf16x6": "BF16_BF16_F32_X6"}[name]
    same(fpemu.gemm(A, B, scheme=f"jax:{preset}", hardware="H200", promote=tile), total)


def test_tf32_of_triton_is_the_instruction_on_fp32_words_and_of_pytorch_is_rounded():
    spec = mma.spec("A100", "tf32")
    same(fpemu.gemm(A, B, scheme="triton:tf32", hardware="A100"), mma.gemm(A, B, None, spec))
    a, b = (np.asarray(fpemu.round_to(x, "tf32")).astype(np.float32) for x in (A, B))
    for name in ("torch:tf32", "torch:high", "cublas:COMPUTE_32F_FAST_TF32", "CUBLAS:CUBLAS_COMPUTE_32F_FAST_TF32"):
        same(fpemu.gemm(A, B, scheme=name, hardware="A100"), mma.gemm(a, b, None, spec), what=name)


@pytest.mark.parametrize("entry", schemes.aliases(), ids=lambda entry: entry.name)
def test_every_name_is_its_scheme_with_its_options(entry):
    scheme = schemes.get(entry.name.upper())
    assert scheme == schemes.build(entry.scheme, entry.options)
    assert schemes.alias(entry.name.lower()) == entry
    assert entry.evidence.partition(" ")[0].rstrip(":;") in ("definition", "documented", "verified")
    text = str(entry)
    assert text.startswith(f"{entry.name} is scheme={entry.scheme!r}")
    assert all(f"{name}={value!r}" in text for name, value in entry.options.items())
    D = fpemu.gemm(A, B, scheme=entry.name, hardware="H200")
    same(D, fpemu.gemm(A, B, scheme=entry.scheme, hardware="H200", **entry.options))
    exact = A.astype(np.float64) @ B
    assert np.abs(D - exact).max() < np.abs(exact).max() * 2.0**-6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jax:DEFAULT", "the backend chooses the algorithm"),
        ("jax:BF16_BF16_BF16", "accumulator in bf16"),
        ("jax:ANY_F8_ANY_F8_F32", "fp8"),
        ("cublas:CUBLAS_COMPUTE_32I", "int8"),
        ("cublas:COMPUTE_64F_EMULATED_FIXEDPOINT", "number of slices"),
        ("triton:tf32x4", "did you mean 'triton:tf32x3'"),
        ("jacks:F32_F32_F32", "jax:F32_F32_F32"),
    ],
)
def test_a_name_without_a_scheme_is_refused_in_one_line(name, message):
    with pytest.raises(InputError) as problem:
        fpemu.gemm(A, B, scheme=name, hardware="H200")
    assert message in str(problem.value)
    assert "\n" not in str(problem.value)
