"""`fpemu.triton`: dot products of Triton's interpreter, by its builder."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu import _system, formats
from fpemu.errors import InputError
from fpemu.mma import gemm, spec
from fpemu.triton import _product

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "triton_dots.json").read_text())["digests"]
NAMES = {"fp16": "fp16", "bf16": "bf16", "e4m3": "fp8e4nv", "e5m2": "fp8e5", "fp32": "fp32"}
PRECISIONS = {"tf32": "TF32", "tf32x3": "TF32x3", "bf16x3": "BF16x3", "bf16x6": "BF16x6", "ieee": "IEEE"}


@pytest.mark.parametrize("case", RECORDED)
def test_sums_over_k_have_the_bits_of_a_compiled_kernel(case):
    kind, precision, form = case.split(maxsplit=2)
    rng = np.random.default_rng(192)
    fmt = formats.get(kind)
    tensors = []
    for shape in ((128, 192), (192, 64)):
        x = fpemu.round_to(rng.standard_normal(shape).astype(np.float32), fmt)
        tensors.append(fmt.encode(x) if kind in ("bf16", "e4m3", "e5m2") else x.astype(fmt.dtype))
    dtype = SimpleNamespace(scalar=SimpleNamespace(name=NAMES[kind]))
    D = np.zeros((128, 64), np.float32)
    for k in range(0, 192, 32):
        a, b = (SimpleNamespace(data=x, dtype=dtype) for x in (tensors[0][:, k : k + 32], tensors[1][k : k + 32]))
        if form == "acc += dot" and kind.startswith("e"):  # the compiler does not fuse a sum of fp8
            D = D + _product(a, b, 0 * D, PRECISIONS[precision], "H200")
        else:
            D = _product(a, b, D, PRECISIONS[precision], "H200")
    assert _system.digest_text(D.view(np.uint32)) == RECORDED[case]


def test_a_compiled_kernel_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="set TRITON_INTERPRET=1"), fpemu.triton.interpreted():
        pass


@pytest.mark.parametrize(("hardware", "fused"), [("H200", False), ("RTX4090", True)])
def test_a_sum_of_fp8_is_fused_on_other_hardware_than_hopper(monkeypatch, hardware, fused):
    tl = pytest.importorskip("triton.language")
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    builder, handle = interpreter.interpreter_builder, interpreter.TensorHandle
    A, B = fpemu.inputs.operands("normal", 16, 16, 64, 1, "e4m3")
    C = fpemu.inputs.make("normal", (16, 16), 9)
    a, b = (handle(formats.E4M3.encode(x), tl.float8e4nv) for x in (A, B))
    with fpemu.triton.interpreted(hardware):
        total = builder.create_fadd(
            handle(C, tl.float32), builder.create_dot(a, b, handle(0 * C, tl.float32), "TF32", 0)
        )
        assert "bf16x6" in builder.options.allowed_dot_input_precisions
    assert "bf16x6" not in builder.options.allowed_dot_input_precisions
    chain = gemm(A, B, C, spec(hardware, "e4m3")), C + gemm(A, B, None, spec(hardware, "e4m3"))
    assert (chain[0] != chain[1]).any()
    assert total.data.tobytes() == chain[not fused].tobytes()


def test_dot_products_continue_the_chain_of_their_accumulator(monkeypatch):
    tl = pytest.importorskip("triton.language")
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    builder, handle = interpreter.interpreter_builder, interpreter.TensorHandle
    A, B = fpemu.inputs.operands("normal", 16, 16, 64, 1, "fp16")
    C = fpemu.inputs.make("normal", (16, 16), 9)
    a, b, c = handle(A, tl.float16), handle(B, tl.float16), handle(C, tl.float32)
    with fpemu.triton.interpreted("A100"):
        zero = builder.create_dot(a, b, handle(0 * C, tl.float32), "TF32", 0)
        sums = [builder.create_dot(a, b, c, "TF32", 0), builder.create_fadd(c, zero), builder.create_fadd(zero, c)]
        with pytest.raises(InputError, match="max_num_imprecise_acc = 32 < K"):
            builder.create_dot(a, b, c, "TF32", 32)
        half, total = gemm(A[:, :32], B[:32], None, spec("A100", "fp16")), handle(0 * C, tl.float32)
        for k in (slice(0, 32), slice(32, 64)):  # acc += tl.dot(a, b), from acc = 0
            operands = handle(A[:, k].copy(), tl.float16), handle(B[k].copy(), tl.float16)
            total = builder.create_fadd(total, builder.create_dot(*operands, handle(0 * C, tl.float32), "TF32", 0))
    assert total.data.tobytes() == gemm(A[:, 32:], B[32:], half, spec("A100", "fp16")).tobytes()
    for total in sums:
        assert total.data.tobytes() == gemm(A, B, C, spec("A100", "fp16")).tobytes()
    assert builder.create_dot(a, b, c, "TF32", 0).data.tobytes() != sums[0].data.tobytes()
