"""`fpemu.triton`: dot products of Triton's interpreter, by its builder."""

from __future__ import annotations

import pytest

import fpemu
from fpemu.errors import InputError
from fpemu.mma import gemm, spec


def test_a_compiled_kernel_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="set TRITON_INTERPRET=1"), fpemu.triton.interpreted():
        pass


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
