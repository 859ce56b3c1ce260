"""The bits of each scheme against its formula, computed by loops over instructions, and recorded bits of an H200."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import fpemu
from fpemu import mma
from fpemu.mma import KOrder
from fpemu.schemes import gemm, get
from tests import golden
from tests.equal import same

M, N, K = 9, 7, 70
SPECS = {"hopper": mma.spec("hopper", "fp16"), "ampere": mma.spec("ampere", "fp16"), "V100": mma.spec("V100", "fp16")}
by_hand = pytest.mark.parametrize("hardware", list(SPECS))
with_bf16 = pytest.mark.parametrize("hardware", ["hopper", "ampere"])


def operands(k=K, seed=1):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (M, k)).astype(np.float32), rng.uniform(-1, 1, (k, N)).astype(np.float32)


def two_words(x, scale):
    """An fp16 word, and fp16 of the rest times a power of two."""
    h = x.astype(np.float16)
    return {"h": h, "r": ((x - h.astype(np.float32)) * np.float32(scale)).astype(np.float16)}


def cut(x):
    """Top ten fraction bits copied, by integers (fp16's normal range only)."""
    code = x.view(np.uint32)
    assert (np.abs(x) >= 2.0**-14).all()
    exponent = ((code >> 23) & 0xFF).astype(np.int64) - 127 + 15
    half = ((code >> 31) << 15) | (exponent.astype(np.uint32) << 10) | ((code >> 13) & 0x3FF)
    return half.astype(np.uint16).view(np.float16)


def toward_zero(x):
    """fp32 to fp16 toward zero: the neighbour of the nearest one where that is larger in magnitude."""
    h = x.astype(np.float16)
    over = np.abs(h.astype(np.float32)) > np.abs(x)
    return np.where(over, np.nextafter(h, np.float16(0)), h)


class Chains:
    """Products of words in accumulators of the instruction: "rh" is A's residual times B's high word."""

    def __init__(self, spec, left, right):
        self.spec, self.left, self.right = spec, left, right

    def __call__(self, *names, alternate=True, start=0, stop=None):
        """In one accumulator: the products alternate after every instruction, or follow one another."""
        products = [(self.left[a], self.right[b]) for a, b in names]
        stop = products[0][0].shape[1] if stop is None else stop
        ks = range(start, stop, self.spec.k)
        order = [(p, k) for k in ks for p in products] if alternate else [(p, k) for p in products for k in ks]
        value = None
        for (X, Y), k in order:
            a, b = X[:, k : min(k + self.spec.k, stop)], Y[k : min(k + self.spec.k, stop)]
            short = self.spec.k - a.shape[1]
            value = mma.execute(np.pad(a, ((0, 0), (0, short))), np.pad(b, ((0, short), (0, 0))), value, self.spec)
        return value

    def promoted(self, *names, instructions=1, every=None, alternate=True):
        """The same, with an accumulator that restarts after so many k and is added in fp32."""
        total, every = np.zeros((M, N), np.float32), every or instructions * self.spec.k
        size = self.left[names[0][0]].shape[1]
        for start in range(0, size, every):
            total = total + self(*names, alternate=alternate, start=start, stop=min(start + every, size))
        return total


@by_hand
@pytest.mark.parametrize(
    ("scheme", "options", "scale", "formula"),
    [
        ("fp16", {}, 0, lambda sums: sums("hh")),
        ("markidis", {}, 0, lambda sums: sums("rr", "hr", "rh", "hh", alternate=False)),
        ("markidis", {"refine": "A"}, 0, lambda sums: sums("rh", "hh", alternate=False)),
        ("egemm", {}, 0, lambda sums: sums("rr", "rh", "hr", "hh")),
        ("ootomo", {}, 11, lambda sums: sums.promoted("hh") + sums("rh", "hr") / 2**11),
        (
            "ootomo",
            {"promote": "2 instructions"},
            11,
            lambda sums: sums.promoted("hh", instructions=2) + sums("rh", "hr") / 2**11,
        ),
        ("ape", {}, 12, lambda sums: (sums("hh") + sums("rh") / 2**12) + sums("hr") / 2**12),
        ("h2sgemm", {"sb": 0}, 0, lambda sums: (sums("rh") + sums("hr")) + sums("hh")),
        ("h2sgemm", {"sb": 6}, 6, lambda sums: (sums("rh") + sums("hr")) / 2**6 + sums("hh")),
        ("h2sgemm", {}, 12, lambda sums: (sums("rh") + sums("hr")) / 2**12 + sums("hh")),
    ],
)
def test_formulas_of_two_words(scheme, options, scale, formula, hardware):
    A, B = operands()
    D = formula(Chains(SPECS[hardware], two_words(A, 2**scale), two_words(B, 2**scale)))
    same(gemm(A, B, scheme=scheme, hardware=hardware, **options), D)


@with_bf16
def test_ootomo_tf32(hardware):
    A, B = operands()
    spec = mma.spec(hardware, "tf32")
    assert spec.k == 8
    high = [fpemu.round_to(x, "tf32") for x in (A, B)]
    sums = Chains(spec, *({"h": h, "r": fpemu.round_to(x - h, "tf32")} for x, h in zip((A, B), high, strict=True)))
    same(gemm(A, B, scheme="ootomo-tf32", hardware=hardware), sums.promoted("hh") + sums("rh", "hr"))


@by_hand
def test_legemm(hardware):
    rng = np.random.default_rng(11)
    A, B = (np.where(rng.integers(0, 2, s), -1, 1) * rng.uniform(2.0**-10, 1, s) for s in ((M, K), (K, N)))
    A, B = A.astype(np.float32), B.astype(np.float32)
    high = [cut(x) for x in (A, B)]
    low = [toward_zero((x - h.astype(np.float32)) * np.float32(2**10)) for x, h in zip((A, B), high, strict=True)]
    sums = Chains(SPECS[hardware], *({"h": h, "r": r} for h, r in zip(high, low, strict=True)))
    C = rng.standard_normal((M, N)).astype(np.float32)
    D = gemm(A, B, C, scheme="legemm", hardware=hardware, alpha=1.5, beta=-0.5)
    same(D, np.float32(1.5) * (sums("hh") + sums("hr", "rh") / 2**10) + np.float32(-0.5) * C)


@by_hand
@pytest.mark.parametrize("sb", [0, 6, 12])
def test_h2sgemm_element_wise(hardware, sb):
    A, B = operands()
    spec = SPECS[hardware]
    sums = Chains(spec, two_words(A, 2**sb), two_words(B, 2**sb))
    options = {"scheme": "h2sgemm", "hardware": hardware, "sb": sb, "combine": "element-wise"}
    total = np.zeros((M, N), np.float32)
    for k in range(0, K, spec.k):
        for name, scale in (("rh", 2**sb), ("hr", 2**sb), ("hh", 1)):
            total = total + sums(name, start=k, stop=min(k + spec.k, K)) / scale
    same(gemm(A, B, **options), total)
    # in slices, each has a separate total
    A, B = operands(96)
    first, second, third = (gemm(A[:, k : k + 32], B[k : k + 32], **options) for k in (0, 32, 64))
    same(gemm(A, B, **options, order=KOrder(split=32)), (first + second) + third)
    same(gemm(A, B, **options, order=KOrder(split=32, join="descending")), (third + second) + first)


@by_hand
def test_staged(hardware):
    A, B = operands(150)
    sA = 2.0 ** (13 - np.floor(np.log2(np.abs(A).max(1, keepdims=True)))).astype(np.float32)
    sB = 2.0 ** (13 - np.floor(np.log2(np.abs(B).max(0, keepdims=True)))).astype(np.float32)
    sums = Chains(SPECS[hardware], two_words(A * sA, 1), two_words(B * sB, 1))
    total = sums.promoted("rh", "hr", "hh", every=64, alternate=False)
    same(gemm(A, B, scheme="staged", hardware=hardware), total / sA / sB)


def words_of(x, kind, bits, count):
    """Words of rising index; word i is multiplied by 2^(i bits)."""
    words, rest = {}, x
    for i in range(count):
        words[str(i + 1)] = (rest * np.float32(2.0 ** (i * bits))).astype(kind)
        rest = rest - words[str(i + 1)].astype(np.float32) / np.float32(2.0 ** (i * bits))
    return words


@with_bf16
def test_multiword(hardware):
    A, B = operands()
    sums = Chains(SPECS[hardware], *(words_of(x, np.float16, 11, 3) for x in (A, B)))
    bands = (("31", "22", "13"), ("21", "12"), ("11",))
    small, middle, large = (sums.promoted(*band, instructions=4, alternate=False) for band in bands)
    same(gemm(A, B, scheme="multiword", hardware=hardware, words=3), (small / 2**11 + middle) / 2**11 + large)


@with_bf16
@pytest.mark.parametrize(("scheme", "reach"), [("bf16x3", 1), ("bf16x6", 2), ("bf16x9", 4)])
def test_bf16x(hardware, scheme, reach):
    A, B = operands()
    words = [{i: w.astype(np.float32) for i, w in words_of(x, ml_dtypes.bfloat16, 8, 3).items()} for x in (A, B)]
    sums = Chains(mma.spec(hardware, "bf16"), *words)
    total = np.zeros((M, N), np.float32)
    for band in range(reach, -1, -1):
        total = total / 2**8 + sums(*(f"{i}{band + 2 - i}" for i in (3, 2, 1) if 1 <= band + 2 - i <= 3))
    same(gemm(A, B, scheme=scheme, hardware=hardware), total)


def test_baseline_bits():
    A, B = operands()
    D = np.zeros((M, N), np.float32)
    for k in range(K):
        D = fpemu.simt.fma(A[:, k : k + 1], B[k : k + 1], D, "fp32")
    same(gemm(A, B, scheme="sgemm"), D)
    wide = np.zeros((M, N))
    for k in range(K):
        wide = fpemu.simt.fma(A[:, k : k + 1].astype(float), B[k : k + 1].astype(float), wide, "fp64")
    same(gemm(A, B, scheme="dgemm"), wide)
    assert gemm(np.array([[0.1]]), np.array([[3.0]]), scheme="dgemm").item() == 0.1 * 3.0


KERNELS = {
    "staged": {"scheme": "staged"},
    "split-p64": {"scheme": "ootomo", "promote": 64, "step": 64},
    "split-p128": {"scheme": "ootomo", "promote": 128, "step": 64},
}


def test_kernels_that_ran_on_an_h200():
    seen = set()
    for name, x in golden.groups("kernels"):
        kernel = name.split("/")[0]
        seen.add(kernel)
        A, B = x["A"], x["B"].T
        same(gemm(A, B, hardware="H200", **KERNELS[kernel]), x["C"].view(np.float32))
        if kernel != "staged":
            for X, parts in ((A, ("hA", "rA")), (B.T, ("hB", "rB"))):
                for word, part in zip(get("ootomo").split(X), parts, strict=True):
                    same(word, x[part].view(np.float16))
    assert seen == set(KERNELS)
