"""Operations and chains in any format and rounding against exact fractions: one rounding each, by a separate oracle."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fpemu import formats, round_to, simt
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder
from fpemu.rounding import stochastic_words
from fpemu.simt.rounded import any_format

MODES = ["RNE", "RNA", "RNZ", "RZ", "RU", "RD", "ODD"]
FORMATS = ["bf16", "e5m2", "e4m3", "fp16", "tf32", "fp32", (5, -6, 9), (26, -200, 200)]
FLUSHING = FloatFormat("flushing", 6, -9, 9, subnormals=False)


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def quanta(x: Fraction, fmt: FloatFormat) -> tuple[int, Fraction, Fraction]:
    """|x| as floor and fraction of the quantum of the format, and the quantum."""
    e = max(floor_log2(abs(x)), fmt.emin)
    quantum = Fraction(2) ** (e - fmt.precision + 1)
    if not fmt.subnormals and abs(x) < Fraction(2) ** fmt.emin:
        quantum = Fraction(2) ** fmt.emin
    low = abs(x) // quantum
    return int(low), abs(x) / quantum - low, quantum


def rounded(x: Fraction, fmt: FloatFormat, mode: str, word: int = 0, bits: int = 1) -> float:
    """Round a non-zero fraction: the definition, in fractions."""
    low, fraction, quantum = quanta(x, fmt)
    half, up = Fraction(1, 2), x > 0
    steps = (
        low
        + {
            "RNE": fraction > half or (fraction == half and low % 2 == 1),
            "RNA": fraction >= half,
            "RNZ": fraction > half,
            "RZ": False,
            "RU": fraction > 0 and up,
            "RD": fraction > 0 and not up,
            "ODD": fraction > 0 and low % 2 == 0,
            "SR": word + math.floor(fraction * 2**bits) >= 2**bits,
        }[mode]
    )
    value = steps * quantum
    sign = 1.0 if up else -1.0
    if value > Fraction(fmt.max):
        if mode in ("RZ", "ODD") or (mode == "RU" and not up) or (mode == "RD" and up):
            return sign * fmt.max
        return sign * (math.inf if fmt.inf else math.nan)
    return sign * float(value)


def expected(name: str, operands: tuple[float, ...], fmt: FloatFormat, mode: str, *word: int) -> float:
    """The exact result of an operation rounded once; of NaN, Inf and zeros what IEEE 754 says."""
    exact = {
        "add": lambda a, b: a + b,
        "multiply": lambda a, b: a * b,
        "fma": lambda a, b, c: a * b + c,
        "divide": lambda a, b: a / b,
    }[name]
    with np.errstate(all="ignore"):
        plain = float(exact(*map(np.float64, operands)))
    if not all(map(math.isfinite, operands)) or (name == "divide" and operands[1] == 0):
        return plain if fmt.inf or not math.isinf(plain) else math.nan
    value = exact(*map(Fraction, operands))
    if value == 0:
        if name in ("multiply", "divide"):
            return plain
        terms = (operands[0] * operands[1], operands[2]) if name == "fma" else operands
        signs = [math.copysign(1, t) for t in terms]
        if any(terms) or len(set(signs)) == 2:
            return -0.0 if mode == "RD" else 0.0
        return math.copysign(0.0, signs[0])
    return rounded(value, fmt, mode, *word)


def hostile(fmt: FloatFormat, count: int, rng: np.random.Generator) -> np.ndarray:
    """Zeros, subnormals, powers of two and their neighbours, the largest numbers, Inf and NaN, and others."""
    p, low = fmt.precision, fmt.emin - fmt.fraction_bits
    exponents = rng.choice([low, low + 1, fmt.emin - 1, fmt.emin, -1, 0, 1, fmt.emax - 1, fmt.emax], count)
    near = rng.integers(-3, 4, count)
    steps = np.where(rng.integers(0, 2, count) == 1, rng.integers(1, 2**p, count), 2 ** (p - 1) + near)
    x = np.ldexp(steps.astype(float), exponents - np.where(exponents > fmt.emin, p - 1, 0))
    x = np.where(rng.integers(0, 9, count) == 0, 0.0, np.minimum(x, fmt.max))
    x = round_to(x, fmt, "RZ").astype(float)
    special = np.array([math.inf if fmt.inf else fmt.max, math.nan if fmt.has_nan else fmt.max])
    x = np.where(rng.integers(0, 25, count) == 0, rng.choice(special, count), x)
    return np.where(rng.integers(0, 2, count) == 0, -x, x)


def same(got, want, where=""):
    """Equal values, signs of zeros included; NaN are equal."""
    got, want = np.asarray(got, np.float64).ravel(), np.asarray(want, np.float64).ravel()
    equal = (np.isnan(got) & np.isnan(want)) | (got.view(np.int64) == want.view(np.int64))
    at = np.flatnonzero(~equal)[:3]
    assert equal.all(), f"{where}: {(~equal).sum()} wrong, first {at}: {got[at]} not {want[at]}"


@pytest.mark.parametrize("mode", [*MODES, "SR"])
@pytest.mark.parametrize("fmt", [*FORMATS, FLUSHING], ids=str)
def test_operations_equal_fractions_rounded_once(fmt, mode):
    to, rng = any_format(fmt), np.random.default_rng(MODES.index(mode) if mode in MODES else 9)
    bits = {"bits": 9, "seed": 5} if mode == "SR" else {}
    for name, count in (("add", 2), ("multiply", 2), ("divide", 2), ("fma", 3)):
        operands = [hostile(to, 400, rng) for _ in range(count)]
        operands[-1][:80] = -operands[0][:80]  # cancellation
        got = getattr(simt, name)(*operands, to, rounding=mode, **bits)
        words = stochastic_words(5, np.arange(400, dtype=np.uint64), 9) if bits else np.zeros(400, int)
        want = [
            expected(name, tuple(map(float, x)), to, mode, int(w), 9)
            for *x, w in zip(*operands, words.tolist(), strict=True)
        ]
        same(got, want, f"{name} {to} {mode}")
        assert got.dtype == to.dtype


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_square_roots_lie_between_the_squares_of_their_neighbours(fmt, mode):
    to = any_format(fmt)
    a = np.abs(hostile(to, 300, np.random.default_rng(3)))
    for x, r in zip(a.tolist(), np.asarray(simt.sqrt(a, to, rounding=mode), float).tolist(), strict=True):
        if not math.isfinite(x) or x == 0:
            same(r, math.sqrt(x) if not math.isnan(x) else math.nan)
            continue
        bits = 2 * to.precision + 8
        scaled = Fraction(x) * 4**700  # the root has at least `bits` bits below the point of its quantum
        root = math.isqrt(scaled.numerator // scaled.denominator)
        exact = Fraction(root, 2**700) + (Fraction(1, 2 ** (701)) if root**2 != scaled else 0)
        assert bits < 700
        same(r, rounded(exact, to, mode), f"sqrt({x})")


@pytest.mark.parametrize("product", ["fused", "rounded"])
@pytest.mark.parametrize("mode", [*MODES, "SR"])
def test_chains_are_steps_and_the_compiled_bits_are_the_reference_s(mode, product):
    for fmt in (*FORMATS, FLUSHING)[product == "fused" :: 2]:
        to, rng = any_format(fmt), np.random.default_rng(11)
        A, B, C = (hostile(to, m * n, rng).reshape(m, n) for m, n in ((6, 12), (12, 9), (6, 9)))
        A[3:], B[:, 3:] = round_to(rng.standard_normal((3, 12)), to), round_to(rng.standard_normal((12, 6)), to)
        options = {"fmt": to, "rounding": mode, "product": product} | ({"seed": 3, "bits": 7} if mode == "SR" else {})
        got = [simt.gemm(A, B, C, backend=backend, **options) for backend in ("compiled", "numpy")]
        same(*got, f"{to}")
        words = stochastic_words(3, np.arange(2 * 12 * 54, dtype=np.uint64), 7).reshape(-1, 6, 9)
        D, r = C, 0
        for k in range(12):
            draw = {"random_bits": words[r], "bits": 7} if mode == "SR" else {}
            a, b = np.broadcast_arrays(A[:, k : k + 1], B[k])
            if mode == "SR":  # one rounding by SR of an exact sum in float64 or of a product: the words of the step
                steps = np.vectorize(
                    lambda x, y, z, w, op, to=to: expected(
                        op, (x, y, z)[: 3 if op == "fma" else 2], to, "SR", int(w), 7
                    )
                )
                D = np.asarray(D, float)
                if product == "fused":
                    D = steps(a, b, D, words[r], "fma")
                else:
                    p = steps(a, b, D, words[r], "multiply")
                    D, r = steps(p, D, D, words[r + 1], "add"), r + 1
            elif product == "fused":
                D = simt.fma(a, b, D, to, rounding=mode, **draw)
            else:
                D = simt.add(simt.multiply(a, b, to, rounding=mode), D, to, rounding=mode)
            r += 1
        same(got[0], D, f"{to} {mode} {product}")


@pytest.mark.parametrize(
    "order", [KOrder(split=7), KOrder(promote=4), KOrder(split=9, promote=4, join="pairwise")], ids=str
)
def test_orders_are_those_of_the_chains_with_an_instruction(order):
    rng = np.random.default_rng(2)
    A, B = rng.standard_normal((3, 5, 32)).astype(np.float16), rng.standard_normal((32, 40)).astype(np.float16)
    want = simt.gemm(A, B, fmt="fp16", order=order)
    # operands of tf32 have all numbers of fp16, but the call takes the other implementation
    for backend in ("compiled", "numpy"):
        same(simt.gemm(A, B, fmt="fp16", operand="tf32", order=order, backend=backend), want)
    first = simt.gemm(A, B, fmt="bf16", operand="fp16", order=order, rounding="SR", seed=1)
    same(first, simt.gemm(A, B, fmt="bf16", operand="fp16", order=order, rounding="SR", seed=1, backend="numpy"))


def test_words_depend_on_seed_and_entry_only(monkeypatch):
    rng = np.random.default_rng(0)
    A, B = round_to(rng.random((64, 300)), "bf16"), round_to(rng.random((300, 40)), "bf16")
    results = []
    for threads in ("1", "2"):
        monkeypatch.setenv("FPEMU_THREADS", threads)
        results.append(simt.gemm(A, B, fmt="bf16", rounding="SR", seed=4))
    assert np.array_equal(*results)
    assert not np.array_equal(results[0], simt.gemm(A, B, fmt="bf16", rounding="SR", seed=5))


def test_every_random_word_rounds_up_as_often_as_the_fraction_says():
    """Over all 2^r words the count of roundings away from zero is floor(2^r fraction), compiled and in NumPy."""
    fmt, bits = formats.BF16, 8
    x = np.r_[np.random.default_rng(1).uniform(1, 2, 40), 1e-40, 3e-41, 2.0**-134 * 1.3, 1.0]
    x = np.r_[x, -x]
    words = np.arange(2**bits, dtype=np.uint64)
    grid = np.broadcast_to(words[:, None], (2**bits, x.size))
    wide = np.broadcast_to(x, grid.shape)
    low = [quanta(Fraction(v), fmt) for v in x.tolist()]
    for block in (slice(None), slice(0, 4)):  # large arrays are rounded by the compiled kernel
        got = round_to(wide[:, block], fmt, "SR", random_bits=grid[:, block], bits=bits)
        away = np.abs(got) > np.abs(round_to(wide[:, block], fmt, "RZ"))
        assert away.sum(axis=0).tolist() == [math.floor(f * 2**bits) for _, f, _ in low[block]]


def test_stochastic_sums_are_unbiased():
    """The mean of 4096 sums of 512 terms is within five standard deviations of the exact sum (fixed seed)."""
    x = round_to(np.random.default_rng(7).random((1, 512)), "bf16")
    exact = float(x.astype(float).sum())
    D = np.asarray(simt.gemm(x, np.ones((512, 4096), np.float32), fmt="bf16", rounding="SR", seed=2), float)
    assert abs(D.mean() - exact) < 5 * D.std() / 64 + 512 * 256 * 2.0**-32
    assert D.std() > 0.5  # single sums are not exact
    nearest = simt.gemm(x, np.ones((512, 1), np.float32), fmt="bf16").item()
    assert abs(nearest - exact) > 5 * D.std() / 64


@pytest.mark.parametrize("size", [100, 100_000])
def test_compiled_stochastic_rounding_equals_the_reference(size, monkeypatch):
    import fpemu.rounding as rounding

    rng = np.random.default_rng(size)
    bits_of = rng.integers(0, 2**64, size, dtype=np.uint64)
    x = bits_of.view(np.float64)
    x[: size // 2] = rng.standard_normal(size // 2) * np.exp2(rng.integers(-160, 130, size // 2))
    for name in ("bf16", "fp16", "fp32", "e5m2", "e4m3", "e5m2fnuz", "fp64"):
        for bits in (1, 7, 32, 63):
            got = round_to(x, name, "SR", seed=1, bits=bits)
            with monkeypatch.context() as patch:
                patch.setattr(rounding, "use_compiled", lambda size: False)
                same(got, round_to(x, name, "SR", seed=1, bits=bits), f"{name} {bits}")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda A: simt.gemm(A, A, fmt=(27, -100, 100)), "26 bits"),
        (lambda A: simt.gemm(A, A, fmt="bf16", rounding="SR"), "needs a seed"),
        (lambda A: simt.gemm(A, A, fmt="bf16", seed=1), "leave them out"),
        (lambda A: simt.gemm(A, A, fmt="bf16", rounding="SR", seed=1, bits=45), "bits = 45"),
        (lambda A: simt.gemm(A, A, fmt="e2m1", product="rounded"), "saturate"),
        (lambda A: simt.gemm(A, A, fmt="e8m0"), "no negative numbers"),
        (lambda A: simt.gemm(A, A, fmt="bf16", device="cuda"), "cuda"),
        (lambda A: simt.gemm(A, A, fmt="bf16", product="both"), "product"),
        (lambda A: simt.gemm(A, A, fmt="bf16", operand="fp64"), "not exact"),
        (lambda A: simt.add(A, A[:1, :1].repeat(3, 0), "bf16"), "do not broadcast"),
        (lambda A: simt.gemm(A, A, fmt=(8, -126)), "precision, emin, emax"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call(np.full((2, 2), 4.0))


def test_saturating_sums_keep_the_largest_number():
    assert simt.gemm([[4.0, 4.0]], [[4.0], [4.0]], fmt="e2m1", saturate=True).item() == 6
