"""Splitting in CUDA C++ gives the words of `fpemu.schemes`, bit for bit: compiled for this machine, and run."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

import fpemu
from fpemu import InputError, formats
from fpemu.gpu.emulation import specification as emulation
from fpemu.gpu.gemm import splitting
from fpemu.gpu.runtime import compiler
from fpemu.schemes import words
from fpemu.schemes.words import Word
from tests import cuda_on_cpu, hostile
from tests.cuda_on_cpu import processor

__all__ = ["processor"]
FORMATS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
MODES = ("RNE", "RNA", "RZ", "RU", "RD", "ODD")
EXPONENTS = (0, 11, 24, -20, 60)
needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="no C++ compiler here")
needs_nvrtc = pytest.mark.skipif(compiler.compiler_missing() is not None, reason=str(compiler.compiler_missing()))


def all_rules():
    """Three words of each format and rounding, with scales that go round."""
    found: list = []
    for fmt in FORMATS:
        for mode in (*MODES, "bit-cut", "away-from-zero") if fmt == "fp16" else MODES:
            some = EXPONENTS if fmt == "fp16" or hostile.FACTOR > 1 else (EXPONENTS[len(found) % len(EXPONENTS)],)
            for e in some:
                last = mode if e != 24 else "RNE"
                fm = formats.get(fmt)
                found.append([Word("1", fm, mode, 0), Word("2", fm, mode, e), Word("3", fm, last, 2 * e)])
    return found


RULES = all_rules()
NUMBER = """extern "C" void split_{0}(const float* x, const int* e, u32* codes, u32* found, s64 n, int exactly) {{
  for (s64 i = 0; i < n; i++) {{
    u32* c = codes + i * R{0}::COUNT;
    found[i] = exactly ? split_exactly<R{0}>(x[i], e[i], c) : split_number<R{0}>(x[i], e[i], c);
  }}
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    parts = [splitting.definition(rules, f"R{i}") + NUMBER.format(i) for i, rules in enumerate(RULES)]
    (folder / "split.cpp").write_text('#include "split.cuh"\n' + "".join(parts))
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{compiler.KERNELS}"]
    out = folder / "split.so"
    subprocess.run([str(emulation.compiler()), *flags, str(folder / "split.cpp"), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def numbers(rng, count):
    """fp32 of all kinds: any bits, next to where fp16 ties, ordinary ones, the edges."""
    half = rng.integers(0, 0xF000, count).astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    ordinary = rng.standard_normal(count) * np.exp2(rng.integers(-30, 30, count))
    edges = (0, 1 << 31, 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x47800000)
    special = (0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC12345, 0x7F800001)
    return np.concatenate(
        [
            rng.integers(0, 2**32, count, dtype=np.uint32),
            (half | np.uint32(0x1000)) ^ rng.integers(0, 2, count).astype(np.uint32),
            ordinary.astype(np.float32).view(np.uint32),
            np.array([*edges, *special], np.uint32),
        ]
    ).view(np.float32)


def equal_words(codes, value, fmt):
    """Codes of a word against values; of NaN that it is one."""
    wanted, nan = fmt.encode(value), np.isnan(value.astype(np.float64))
    return np.where(nan, np.isnan(np.asarray(fmt.decode(codes)).astype(np.float64)), codes == wanted)


@needs_compiler
@pytest.mark.parametrize("scaled", [False, True])
def test_every_format_and_rounding_gives_the_words_of_the_emulator(scaled, library):
    rng = np.random.default_rng(int(scaled))
    x = numbers(rng, 800 * hostile.FACTOR)
    e = rng.integers(-115, 164, len(x)).astype(np.int32) if scaled else np.zeros(len(x), np.int32)
    finite = np.isfinite(x)
    wide = np.ldexp(np.where(finite, x, np.float32(0)).astype(np.float64), e)
    for number, rules in enumerate(RULES):
        steps = list(words.steps(wide, rules))
        over = sum(word.overflows(left).astype(np.uint32) << i for i, (word, left, _, _) in enumerate(steps))
        for exactly in (0, 1):
            codes, found = np.zeros((len(x), 3), np.uint32), np.zeros(len(x), np.uint32)
            given = np.where(finite, x, np.float32(0)) if exactly else x
            arrays = [ctypes.c_void_p(a.ctypes.data) for a in (given, e, codes, found)]
            getattr(library, f"split_{number}")(*arrays, ctypes.c_longlong(len(x)), exactly)
            assert exactly or ((found & 0x80 != 0) == ~finite).all()
            assert np.array_equal(found & 0x7F, over), rules
            for i, (word, _, value, _) in enumerate(steps):
                right = equal_words(codes[:, i].astype(word.format.code_dtype), value, word.format)
                assert right.all(), f"{rules}, exactly={exactly}, word {i}: {(~right).sum()}, {x[~right][0]}"


@needs_compiler
def test_another_rounding_is_noticed(library):
    x, e = numbers(np.random.default_rng(2), 500), np.zeros(1514, np.int32)
    answers = []
    for mode in MODES:
        number = next(i for i, r in enumerate(RULES) if r[0] == Word("1", formats.FP16, mode, 0))
        codes, found = np.zeros((len(x), 3), np.uint32), np.zeros(len(x), np.uint32)
        arrays = [ctypes.c_void_p(a.ctypes.data) for a in (x, e, codes, found)]
        getattr(library, f"split_{number}")(*arrays, ctypes.c_longlong(len(x)), 0)
        answers.append(codes[:, 0].tobytes())
    assert len(set(answers)) == len(MODES)


# --- operands in memory, split by kernels that are compiled for this processor
def layouts(x):
    spaced = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    spaced[..., ::2] = x
    return x, np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2), spaced[..., ::2]


SCHEMES = [("ootomo", {}), ("ootomo-tf32", {}), ("multiword", {"fmt": "e4m3", "words": 4})]


@pytest.mark.parametrize(("name", "options"), SCHEMES, ids=[name for name, _ in SCHEMES])
def test_operands_of_any_strides_become_words_along_k(name, options, processor):
    processor()
    rules, rng = fpemu.schemes.build(name, options).rules(), np.random.default_rng(3)
    for shape in ((3, 70, 45), (33, 129), (1, 1), (2, 64, 64)):
        x = (rng.standard_normal(shape) * np.exp2(rng.integers(-20, 10, shape))).astype(np.float32)
        if x.size > 2:
            x[..., 0, 0], x[..., -1, -1] = np.nan, -np.inf
        for number, y in enumerate(layouts(x)):
            for who in "AB":
                for scaling in ("scale", "scale-rows", "propagate")[number % 2 :]:
                    with np.errstate(all="ignore"):
                        want = words.prepare(y, who, rules, "propagate", scaling, name)
                    splitter = splitting.Splitter(rules, lambda _, scaling=scaling: scaling, words=True)
                    (got,), read = cuda_on_cpu.split(splitter, [(y, who)], "propagate")
                    assert_prepared(got, read, want, y, rules, scaling)


def assert_prepared(got, read, want, x, rules, scaling):
    A = got.name == "A"
    K, rows, lead = x.shape[-1 if A else -2], x.shape[-2 if A else -1], x.shape[:-2]
    for block, value, rule in zip(got.words, want.words, rules, strict=True):
        codes = read(block, (*lead, rows, got.pitch), rule.format.code_dtype)
        assert equal_words(codes[..., :K], value if A else value.swapaxes(-1, -2), rule.format).all()
        assert not codes[..., K:].any()
    if scaling.startswith("scale"):
        exponents = read(got.exponents, (*lead, rows), np.int32)
        wanted = want.exponents[..., 0] if A else want.exponents[..., 0, :]
        assert np.array_equal(exponents, np.broadcast_to(wanted, exponents.shape))
    special = read(got.special, (*lead, rows), np.uint8)
    assert np.array_equal(special, np.zeros(special.shape) if want.special is None else want.special)
    nonfinite = ~np.isfinite(x)
    counts = read(got.faults, 4, np.uint64)
    assert (counts[0], counts[2]) == (np.count_nonzero(nonfinite), first(nonfinite))


def first(selected):
    """The complement of the first selected index, 0 without one."""
    return 2**64 - 1 - int(np.argmax(selected)) if selected.any() else 0


@pytest.mark.parametrize("policy", ["raise", "propagate", "scale", "scale-rows"])
def test_a_kernel_that_splits_by_itself_gets_exponents_rows_and_counts(policy, processor):
    processor()
    rules, rng = fpemu.schemes.get("h2sgemm").rules(), np.random.default_rng(4)
    x = rng.standard_normal((5, 90)).astype(np.float32)
    x[1, 3], x[2, 70], x[4, 0] = 1e6, np.inf, 65519.999
    for who in "AB":
        (got,), read = cuda_on_cpu.split(splitting.Splitter(rules, str, words=False), [(x, who)], policy)
        assert got.words == ()
        nonfinite, overflows, first_nonfinite, first_overflow = read(got.faults, 4, np.uint64)
        assert (nonfinite, first_nonfinite) == (1, first(np.isinf(x)))
        assert overflows == {"raise": 2, "propagate": 2, "scale": 0, "scale-rows": 0}[policy]
        assert first_overflow == (first(x == 1e6) if overflows else 0)
        assert (got.special is None) == (policy == "raise")
        assert (got.exponents is None) == (policy in ("raise", "propagate"))


def test_words_that_overflow_after_scaling_are_counted_without_being_stored(processor):
    processor()
    rules = fpemu.schemes.build("ootomo", {"residual_scale": 2.0**20}).rules()
    x = np.random.default_rng(5).standard_normal((40, 30)).astype(np.float32)
    values = np.ldexp(x.astype(np.float64), words.prepare(x, "A", rules[:1], "scale", "scale", "").exponents)
    over = [word.overflows(left) for word, left, _, _ in words.steps(values, rules)]
    (got,), read = cuda_on_cpu.split(splitting.Splitter(rules, str, words=False), [(x, "A")], "scale")
    either = over[0] | over[1]
    assert read(got.faults, 4, np.uint64).tolist() == [0, np.count_nonzero(either), 0, first(either)]
    assert over[1].any()


def splitter(scheme):
    return splitting.Splitter(scheme.rules(), scheme.scaling, words=True)


@pytest.mark.parametrize(
    ("scheme", "policy"),
    [
        *(("h2sgemm", policy) for policy in ("propagate", "scale", "scale-rows")),
        (fpemu.schemes.build("staged", {"high_rounding": "balanced"}), "scale-rows"),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_both_operands_are_split_as_by_numpy(scheme, policy, processor):
    """In one launch, or where A and B have different rules in two."""
    processor()
    scheme, rng = fpemu.schemes.get(scheme), np.random.default_rng(7)
    rules = scheme.rules()
    for call, (M, N, K) in enumerate([(33, 70, 130), (5, 9, 64), (40, 3, 1100)]):
        A, B = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, M, K), (N, K)))
        B = B.T
        if call % 2 == 0:
            A[1, M // 2, K - 1], A[0, 0, 0], B[K // 2, N - 1] = np.inf, 3e4, np.nan
        with np.errstate(all="ignore"):
            want = {who: words.prepare(X, who, rules, "propagate", policy, "") for X, who in ((A, "A"), (B, "B"))}
        prepared, read = cuda_on_cpu.split(splitter(scheme), [(A, "A"), (B, "B")], policy)
        for got, x in zip(prepared, (A, B), strict=True):
            assert_prepared(got, read, want[got.name], x, rules, policy)


def test_an_empty_operand_is_split_by_no_kernel(processor):
    processor()
    for shape in ((0, 30), (30, 0), (0, 5, 30)):
        (got,), read = cuda_on_cpu.split(splitter(fpemu.schemes.get("legemm")), [(np.zeros(shape, "f4"), "A")], "raise")
        assert read(got.faults, 4, np.uint64).tolist() == [0] * 4


def test_no_word_overflows_below_the_safe_magnitude_and_some_do_above_it():
    rng = np.random.default_rng(6)
    for rules in RULES:
        safe = min(splitting.within(rules), float(np.finfo(np.float32).max))
        x = np.minimum(rng.uniform(0, safe, 300).astype(np.float32), np.nextafter(np.float32(safe), np.float32(0)))
        x = np.concatenate([x, x * np.float32(2.0**-20), -x]).astype(np.float64)
        assert not any(word.overflows(left).any() for word, left, _, _ in words.steps(x, rules)), rules
    for name in ("ootomo", "h2sgemm"):
        rules = fpemu.schemes.get(name).rules()
        x = splitting.within(rules) + np.arange(0, 200, 1 / 256)
        over = np.any([word.overflows(left) for word, left, _, _ in words.steps(x, rules)], axis=0)
        assert splitting.within(rules) <= x[over][0] <= 1.01 * splitting.within(rules)


def test_words_of_other_numbers_than_fp32_are_refused(processor):
    processor()
    with pytest.raises(InputError, match="fp32 numbers, not 2 of float64"):
        cuda_on_cpu.split(splitter(fpemu.schemes.get("ootomo")), [(np.ones((2, 2)), "A")], "raise")
