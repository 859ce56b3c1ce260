"""JAX arrays of the CPU, and the example of the documentation within `jax.jit`, `jax.grad` and `jax.vmap`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpemu

jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")  # JAX reserves three quarters of the GPU's memory in every process
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pytorch.md"


def emulated(A, B):
    return fpemu.gemm(np.asarray(A, np.float32), np.asarray(B, np.float32), scheme="staged", hardware="H200")


def draw(*shape, dtype="float32"):
    return jax.numpy.asarray(np.random.default_rng([3, *shape]).standard_normal(shape), dtype)


def assert_same(got, want):
    got = np.asarray(got)
    assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_arrays_of_the_cpu_are_read(dtype):
    A, B = draw(20, 30, dtype=dtype), draw(30, 10, dtype=dtype)
    assert_same(fpemu.gemm(A, B, scheme="staged", hardware="H200"), emulated(A, B))


def test_the_example_of_the_guide_compiles_with_gradients_and_batches():
    example = re.search(r"^    import jax\n.*?(?=^## )", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    exec(compile(textwrap.dedent(example[0]), str(GUIDE), "exec"), namespace)
    product = namespace["product"]
    A, B, W, stack = draw(20, 30), draw(30, 10), draw(20, 10), draw(3, 20, 30)
    dA, dB = jax.jit(jax.grad(lambda A, B: (product(A, B) * W).sum(), argnums=(0, 1)))(A, B)
    assert_same(dA, emulated(W, B.T))
    assert_same(dB, emulated(A.T, W))
    assert_same(jax.vmap(product, (0, None))(stack, B), emulated(stack, B))
    for X, Y in ((A, B), (draw(600, 700), draw(700, 500))):
        assert_same(jax.jit(product)(X, Y), emulated(X, Y))
