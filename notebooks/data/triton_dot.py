"""A plain GEMM in Triton, one `tl.dot` per step of BK: A (M, K) times B (K, N) in fp32, tiles of BM × BN."""

import triton
import triton.language as tl


@triton.jit
def dot(
    a,
    b,
    c,
    one,
    N,
    K,
    am,
    ak,
    bk,
    bn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PROMOTE: tl.constexpr,
    PLUS: tl.constexpr,
    IMPRECISE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    r = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + m[:, None] * am + (k + r)[None, :] * ak)
        y = tl.load(b + (k + r)[:, None] * bk + n[None, :] * bn)
        if PROMOTE:  # `one` is no constant, so the compiler cannot merge this sum into the instruction's accumulator
            acc = acc + tl.dot(x, y, input_precision=PRECISION) * one
        elif PLUS:
            acc += tl.dot(x, y, input_precision=PRECISION)
        else:
            acc = tl.dot(x, y, acc, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE)
    tl.store(c + m[:, None] * N + n[None, :], acc)
