"""Operands and results of every library: values, format names, and layouts of a user's GEMM."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fpemu import formats, simt
from fpemu.probing import reveal
from fpemu.probing.callables import as_numbers

NARROW = "float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
KNOWN = [*NARROW.split(), "float8_e8m0fnu", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "bfloat16"]


@pytest.mark.parametrize("name", KNOWN)
def test_every_code_of_ml_dtypes_keeps_its_value_and_its_formats_name(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(256 if dtype.itemsize == 1 else 2**16).astype(f"u{dtype.itemsize}").view(dtype)
    values, fmt = as_numbers(codes, "A")
    assert fmt == formats.get(name).name
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, codes.astype(np.float32))


@pytest.mark.parametrize("name", ["int2", "int4", "uint2", "uint4"])
def test_narrow_integers_keep_their_values(name):
    x = np.arange(4).astype(getattr(ml_dtypes, name))
    values, fmt = as_numbers(x, "A")
    assert (values.dtype, fmt, values.tolist()) == (np.int8, None, x.astype(int).tolist())


@pytest.mark.parametrize(
    ("dtype", "fmt"), [("f2", "fp16"), ("f4", None), ("f8", "fp64"), (">f8", "fp64"), ("i1", None)]
)
def test_types_of_numpy(dtype, fmt):
    values, name = as_numbers(np.arange(3).astype(dtype), "A")
    assert name == fmt
    assert values.dtype.isnative
    assert values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_torch(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    values, fmt = as_numbers(torch.tensor([1.0, -2.0]).to(getattr(torch, name)), "A")
    assert fmt == (None if name == "float32" else formats.get(name).name)
    assert values.tolist() == [1, -2]


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_arrays_of_jax(name):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    values, fmt = as_numbers(jax.numpy.array([1.0, -2.0], name), "A")
    assert (fmt, values.tolist()) == ({"bfloat16": "bf16"}.get(name), [1, -2])


@pytest.mark.parametrize(
    ("layout", "by_rows"), [("NN", (True, True)), ("TN", (True, False)), ("NT", (False, True)), ("TT", (False, False))]
)
@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_the_layout_of_the_operands(layout, by_rows, shape):
    seen = set()

    def gemm(A, B):
        seen.add((A.shape, B.shape, *((X.flags.c_contiguous, X.flags.f_contiguous) for X in (A, B))))
        return simt.gemm(A, B)

    assert str(reveal(gemm, 7, shape=shape, layout=layout).order) == "KOrder()"
    assert seen == {((shape[0], 7), (7, shape[1]), *((rows, not rows) for rows in by_rows))}
