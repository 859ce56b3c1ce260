"""`fpemu.conformance`: equal means equal bits, and what is hidden in a product is found by its alternatives."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fpemu
from fpemu import arguments, mma, round_to, simt
from fpemu.cli import verify as command
from fpemu.conformance import compare, verify
from fpemu.conformance.deviations import other_units
from fpemu.conformance.specification import Specification
from fpemu.errors import InputError
from fpemu.library import openblas
from fpemu.mma import KOrder, serialise
from fpemu.mma.tree import Chain, Sum
from tests.conformance.planted import CASES, PLANTED, UNITS, gemm, multiply_add, operands

HALF = fpemu.inputs.operands("normal", 20, 24, 160, 0, "fp16")
SHORT = HALF[0][:, :150], HALF[1][:150]
SINGLE = fpemu.inputs.operands("normal", 20, 24, 160, 1, "fp32")
DEEP = fpemu.inputs.operands("normal", 20, 24, 3000, 1, "fp32")
SQUARE = fpemu.inputs.operands("normal", 24, 24, 24, 3, "fp16")
NAN = np.where(np.arange(20)[:, None] == 3, np.float16(np.nan), HALF[0]), HALF[1]
C = fpemu.inputs.make("normal", (20, 24), 9)
HOPPER, AMPERE, TF32 = (mma.spec(*names) for names in (("H200", "fp16"), ("A100", "fp16"), ("H200", "tf32")))
FP32, HALF_SUMS = simt.SPECS["fp32"], mma.spec("H200", "fp16", "fp16")
INT8 = tuple(np.ones(shape, np.int8) for shape in ((20, 32), (32, 24)))
ALPHA, BETA = np.float32(1.3), np.float32(0.7)


def product(operands=HALF, spec=HOPPER, order=None, c=None):
    return mma.gemm(*operands, c, spec, order)


def rounded(fmt, mode):
    return [np.asarray(round_to(x, fmt, mode)) for x in SINGLE]


def scheme(name, hardware="H200", **options):
    return fpemu.gemm(*SINGLE, scheme=name, hardware=hardware, **options)


def slices_in_half():
    A, B = HALF
    parts = [product((A[:, k : k + 32], B[k : k + 32])).astype(np.float16) for k in range(0, 160, 32)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def dealt():
    """Four chains of FMAs that take eight of k in turn."""
    lanes = [tuple((k,) for k in range(160) if k // 8 % 4 == lane) for lane in range(4)]
    return product(SINGLE, FP32, Sum(tuple(Chain(lane, "fma") for lane in lanes)))


def transposed():
    A, B = SQUARE
    return product((np.ascontiguousarray(A.T), B))


def other_nan():
    D = product(NAN)
    D.view(np.uint32)[3] = 0x7FC00000
    return D


HIDDEN: dict[str, tuple] = {  # what a library does, and a part of the words in which it has to be found
    "residue": (lambda: product(SHORT, order=KOrder(None, 64, True)), SHORT, {}, "the residue of tiles of 64 first"),
    "promotion": (lambda: product(order=KOrder(promote=32)), HALF, {}, "promotion every 32"),
    "promotion of another length": (lambda: product(order=KOrder(promote=96)), HALF, {}, "or promotion every 96 of k"),
    "no promotion": (product, HALF, {"order": KOrder(promote=64)}, "no promotion"),
    "sliced": (dealt, SINGLE, {}, "4 accumulators that alternate every 8 of k"),
    "slices added in half": (slices_in_half, HALF, {}, "slices of 32, the slices stored in fp16 and added in fp16"),
    "tf32 inputs": (lambda: product(rounded("tf32", "RNE"), TF32), SINGLE, {"fmt": "tf32"}, "tf32 to nearest even"),
    "allow_tf32": (lambda: product(rounded("tf32", "RNE"), TF32), SINGLE, {}, "tf32->fp32"),
    "cut inputs": (lambda: product(rounded("fp16", "RZ")), SINGLE, {"fmt": "fp16"}, "fp16 toward zero"),
    "transposed": (transposed, SQUARE, {}, "the transpose of A times B"),
    "half accumulator": (lambda: np.float32(product(spec=HALF_SUMS)), HALF, {}, "accumulator is fp16"),
    "half result": (lambda: np.float32(np.float16(product())), HALF, {}, "result is rounded to fp16"),
    "fma": (lambda: simt.fma(ALPHA, product(), BETA * C), HALF, {"alpha": ALPHA, "beta": BETA}, "fma(alpha, T"),
    "C first": (lambda: product(c=C), HALF, {"beta": 1}, "C starts the accumulator"),
    "both transposed": (
        lambda: product([x.T.copy() for x in SQUARE]),
        SQUARE,
        {},
        "transpose of A times the transpose",
    ),
    "scaled": (lambda: np.ldexp(-product(), -3), HALF, {}, "alpha is -0.125, not 1"),
    "wrong alpha": (lambda: np.float32(1.5) * product(), HALF, {"alpha": 1.25}, "alpha is 1.5, not 1.25"),
    "code of NaN": (other_nan, NAN, {}, "NaN has the code 0x7FC00000"),
    "two changes": (lambda: product(rounded("tf32", "RNE"), TF32, KOrder(80)), SINGLE, {"fmt": "tf32"}, "slices of 80"),
    "terms": (lambda: scheme("h2sgemm", combine="element-wise"), SINGLE, {"scheme": "h2sgemm"}, "element-wise"),
    "another scheme": (lambda: scheme("legemm"), SINGLE, {"scheme": "ootomo"}, "the scheme is legemm"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_found(name):
    hidden, operands, fields, words = HIDDEN[name]
    D = hidden()
    found = verify(D, *operands, C if "beta" in fields else None, **{"hardware": "H200", **fields}, seconds=60)
    assert not found.equal
    assert found.explained
    assert words in " ".join(cause.text for cause in found.causes)
    assert words in str(found)


@pytest.mark.parametrize(("name", "unit", "shape"), CASES, ids=map("-".join, CASES))
def test_planted_causes_are_named(name, unit, shape):
    product, _, _, words = PLANTED[name]
    hardware, fmt = UNITS[unit]
    A, B = operands(unit, shape)
    verdict = verify(product(unit, A, B), A, B, hardware=hardware, fmt=fmt, seconds=60)
    assert verdict.explained, str(verdict)
    assert any(words in cause.text for cause in verdict.causes), str(verdict)
    assert verdict.relative > 0


@pytest.mark.parametrize("name", ["multiply, then add", "SIMD lanes"])
def test_a_baseline_is_searched_as_a_plain_product(name):
    A, B = operands("cores", "small")
    found = verify(PLANTED[name][0]("cores", A, B), A, B, scheme="sgemm")
    assert PLANTED[name][3] in found.causes[0].text


@pytest.mark.parametrize("unit", UNITS)
def test_correct_products_have_no_cause(unit):
    hardware, fmt = UNITS[unit]
    for shape in ("small", "odd"):
        A, B = operands(unit, shape)
        verdict = verify(gemm(unit, A, B), A, B, hardware=hardware, fmt=fmt)
        assert (verdict.equal, verdict.causes) == (True, ())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda T: ALPHA * (ALPHA * T) + BETA * C, "alpha is applied twice"),
        (lambda T: T + BETA * C, "alpha is left out"),
        (lambda T: ALPHA * T, "C is left out"),
        (lambda T: ALPHA * T + C, "C is added without beta"),
        (lambda T: (ALPHA * T + BETA * C) + BETA * C, "C is added twice"),
        (lambda T: ALPHA * T + BETA * C[:1], "the first row of C is added to every row"),
    ],
)
def test_wrong_uses_of_alpha_beta_and_c_are_named(change, words):
    verdict = verify(change(product()), *HALF, C, alpha=ALPHA, beta=BETA, hardware="H200")
    assert words in verdict.causes[0].text
    assert verdict.explained


def openblas_on(kernel, A, B):
    return fpemu.library.emulate("openblas", A, B, hardware=kernel)


def threaded():
    return openblas.multiply(*DEEP, openblas.blocking("sgemm", "SKYLAKEX").threaded())


BF16, DOUBLE = rounded("bf16", "RNE"), [x.astype(float) for x in SINGLE]
IDENTIFIED: dict[str, tuple] = {  # a correct product, its operands, given fields, words of the identification
    "chain of FMAs": (lambda: product(SINGLE, FP32), SINGLE, {}, "ordinary cores: FMAs in fp32; one chain"),
    "sums of fp16 in NumPy": (lambda: HALF[0] @ HALF[1], HALF, {}, "fp32"),
    "multiply, then add": (lambda: multiply_add(*SINGLE, "fp32", False), SINGLE, {}, "without FMA"),
    "fp64 rounded": (lambda: np.float32(SINGLE[0].astype(float) @ SINGLE[1].astype(float)), SINGLE, {}, "FMAs in fp64"),
    "OpenBLAS": (lambda: openblas_on("HASWELL", *SINGLE), SINGLE, {}, "0.3.31 with kernel HASWELL (sgemm, layout NN)"),
    "OpenBLAS on several threads": (threaded, DEEP, {}, "SKYLAKEX (sgemm, layout NN, several threads)"),
    "Tensor Core": (product, HALF, {}, "the instruction is hopper mma m16n8k16 fp16->fp32"),
    "Tensor Core in slices": (lambda: product(order=KOrder(56)), HALF, {}, "split in slices of 56"),
    "order of a file": (lambda: product(order=KOrder(48)), HALF, {"fmt": "fp16", "order": KOrder(48)}, "hopper"),
    "tf32": (lambda: product(SINGLE, TF32), SINGLE, {}, "rounded to tf32 toward zero"),
    "bf16 in float32": (lambda: product(BF16, mma.spec("MI300X", "bf16")), BF16, {}, "cdna3 mfma m16n16k16 bf16"),
    "fp64": (lambda: product(DOUBLE, simt.SPECS["fp64"], KOrder(64)), DOUBLE, {}, "FMAs in fp64"),
    "int8": (lambda: np.full((20, 24), 32, np.int32), INT8, {}, "an int8 product with sums in int32"),
}


@pytest.mark.parametrize("name", IDENTIFIED)
def test_a_product_is_identified_without_hardware(name):
    correct, operands, fields, words = IDENTIFIED[name]
    D = correct()
    verdict = verify(D, *operands, **fields, seconds=60)
    assert verdict.equal
    assert words in verdict.identified
    assert str(verdict).startswith(f"identified: {verdict.identified}; ")
    assert verify(D, *operands, specification=verdict.specification, causes=False).equal


def test_fields_that_are_given_are_not_changed_by_an_identification():
    split = verify(product(order=KOrder(64)), *HALF, fmt="fp16", order=KOrder(40))
    tf32 = verify(product(SINGLE, TF32), *SINGLE, fmt="fp32")
    assert (split.equal, split.identified, tf32.equal) == (False, "", False)
    assert "slices of 64" in split.causes[0].text
    assert "tf32" in tf32.causes[0].text
    D = product()
    D[3, 4] += 1
    assert not verify(D, *HALF, seconds=1).equal


def test_a_verdict_begins_with_the_size_and_the_kind_of_the_mismatches():
    rounding = str(verify(product(order=KOrder(64)), *HALF, hardware="H200", causes=False))
    assert "(relative L2), rounding" in rounding
    structure = verify(-product(), *HALF, hardware="H200", causes=False)
    assert structure.relative == 2
    assert structure.beyond > 400
    assert "DIFFERS by 2 (relative L2), structure" in str(structure)


def test_a_batch_is_verified_product_by_product():
    A = np.stack([HALF[0], 2 * HALF[0]])
    D = np.stack([product((x, HALF[1])) for x in A])
    assert "2 products" in str(verify(D, A, HALF[1], hardware="H200"))
    D[1] = product((A[1], HALF[1]), order=KOrder(64))
    for result in (D, lambda A, B: D):
        verdict = verify(result, A, HALF[1], hardware="H200")
        assert "product [1] of a batch of shape (2,)" in str(verdict)
        assert "slices of 64" in verdict.causes[0].text
    with pytest.raises(InputError, match="the batch has the leading axes"):
        verify(D[:1], A, HALF[1], hardware="H200")


def test_a_further_product_distinguishes_alternatives_with_equal_bits():
    A, B = (np.rint(x) for x in HALF)
    verdict = verify(2 * product((A, B)), A, B, hardware="H200", alpha=2.0)
    assert verdict.alike
    further = verdict.distinguish()
    assert further[2] == len(verdict.alike)
    again = verify(2 * product(further[:2]), *further[:2], hardware="H200", alpha=2.0)
    assert again.equal
    assert not again.alike
    with pytest.raises(InputError, match="no alternatives with equal bits"):
        verify(product(), *HALF, hardware="H200").distinguish()


def test_inf_that_a_split_turns_to_nan_is_named():
    A = SINGLE[0].copy()
    A[3, 5] = np.inf
    for name in ("bf16x3", "ootomo-tf32"):
        D = fpemu.gemm(A, SINGLE[1], scheme=name, hardware="H200", on_range="hardware")
        verdict = verify(D, A, SINGLE[1], scheme=name, hardware="H200", on_range="propagate")
        assert np.isnan(D[3]).all()
        assert "the residual of Inf is Inf - Inf = NaN" in verdict.causes[0].text
        assert verify(D, A, SINGLE[1], scheme=name, hardware="H200", on_range="hardware").equal


def test_products_of_libraries_are_named():
    A, B = fpemu.inputs.operands("normal", 20, 24, 1000, 1)
    assert "OpenBLAS" in verify(openblas_on("SKYLAKEX", A, B), A, B, hardware="H200").causes[0].text
    D, A, B = np.float32([[0, 0]]), np.float32([[1, 2 / 3]]), np.float32([[-6, 0], [9, 0]])
    assert "without FMA" in verify(D, A, B, hardware="A100").causes[0].text


def test_an_order_that_no_list_has_is_found_by_probes_in_the_form_of_the_operands():
    order = KOrder(split=92, tile=40, residue_first=True)
    seen = set()

    def library(A, B):
        seen.add((A.shape, A.dtype, A.flags.c_contiguous, B.dtype, B.flags.c_contiguous))
        return mma.gemm(A, B, None, HOPPER, order)

    A, B = HALF[0], np.asfortranarray(HALF[1])
    found = verify(library, A, B, hardware="H200", seconds=60)
    assert found.causes[0].text.endswith("found by probes")
    assert seen == {(A.shape, np.dtype(np.float16), True, np.dtype(np.float16), False)}
    assert verify(library, A, B, hardware="H200", order=found.causes[0].specification.order).equal


class Tensor:
    """A stand-in for PyTorch's, in bf16 unless it is said."""

    __module__ = "torch"

    def __init__(self, x, dtype="torch.bfloat16", device="cuda"):
        self.x, self.dtype, self.device = x, dtype, device

    def to(self, what):
        return Tensor(self.x, self.dtype, what) if what == "cuda" else Tensor(self.x, what, self.device)

    def numpy(self):
        if (self.dtype, self.device) != ("torch.float32", "cpu"):
            raise TypeError("NumPy has no such numbers")
        return self.x

    detach = resolve_conj = resolve_neg = lambda self: self
    cpu = lambda self: Tensor(self.x, self.dtype, "cpu")  # noqa: E731
    float = lambda self: Tensor(self.x, "torch.float32", self.device)  # noqa: E731
    is_contiguous = lambda self: self.x.flags.c_contiguous  # noqa: E731


def test_arrays_of_another_library_are_accepted_and_probed_with(monkeypatch):
    torch = types.ModuleType("torch")
    torch.from_numpy = lambda x: Tensor(x, "torch.float32", "cpu")
    monkeypatch.setitem(sys.modules, "torch", torch)
    spec, seen = mma.spec("H200", "bf16"), set()

    def library(A, B):
        seen.add((type(A), A.dtype, A.device, B.is_contiguous()))
        D = mma.gemm(A.x, B.x, None, spec, KOrder(split=92, tile=40, residue_first=True))
        return Tensor(D, "torch.float32")

    A, B = rounded("bf16", "RNE")
    A, B = Tensor(A), Tensor(np.asfortranarray(B))
    found = verify(library, A, B, hardware="H200", seconds=60)
    assert found.specification.spec == spec
    assert found.causes[0].text.endswith("found by probes")
    assert seen == {(Tensor, "torch.bfloat16", "cuda", False)}
    with pytest.raises(
        InputError, match=r"raised KeyError for A \(20, 160\) and B \(160, 24\) in torch.bfloat16: 'no'"
    ):
        verify(lambda A, B: {}["no"], A, B, hardware="H200")
    with pytest.raises(InputError, match="changes its operand B"):
        verify(lambda A, B: B.x.fill(0) or Tensor(B.x, "torch.float32"), A, B, hardware="H200")


def test_a_tile_of_other_values_is_named_beside_the_order_of_the_rest():
    D = product(order=KOrder(64))
    D[3:7, 5:9] = np.float32(1.5)
    found = verify(D, *HALF, hardware="H200")
    assert found.causes[0].kinds == ("structure", "order")
    assert "rows 3 to 6 and columns 5 to 8: the entries hold 1.5" in str(found)
    assert "split in slices of 64" in str(found)


def test_a_cause_in_a_tile_names_its_rows_and_columns():
    D = product()
    D[8:16, 8:16] = product(order=KOrder(64))[8:16, 8:16]
    found = verify(D, *HALF, hardware="H200", most=40)
    assert found.explained
    assert found.causes[0].text.startswith("only in rows 8 to 15 and columns 8 to 15: promotion every 64")


def test_few_wrong_entries_have_no_cause_that_fits_by_chance():
    D = product()
    D.view(np.uint32)[[3, 10], [4, 14]] ^= 1
    found = verify(D, *HALF, hardware="H200", most=60)
    assert (found.explained, found.causes) == (False, ())
    assert "2 of 480 entries differ (2 bits)" in str(found)
    D.view(np.uint32)[3, 4] ^= 1
    verdict = str(verify(D, *HALF, hardware="H200", causes=False))
    assert "1 of 480 entries differs (1 bit)" in verdict
    assert verdict.endswith("largest difference: 1 ulp; only the last bit differs (1 ulp); this entry alone")


SAME = {  # operands on which everything is equal
    "K = 1": (HALF[0][:, :1], HALF[1][:1]),
    "zeros": (0 * HALF[0], HALF[1]),
    "whole": tuple(map(np.rint, HALF)),
    "identity": (HALF[0][:, :24], np.eye(24, dtype=np.float16)),
}


@pytest.mark.parametrize("name", SAME)
def test_operands_that_do_not_tell_are_called_so(name):
    found = verify(product(SAME[name]), *SAME[name], hardware="H200")
    assert found.equal
    assert 0 < len(found.alike) == found.tried
    assert f"do not distinguish it from {found.tried} others ({found.tried} alternatives tried)" in str(found)


def test_operands_that_tell_leave_nothing_beside_the_specification():
    found = verify(product(), *HALF, hardware="H200")
    assert found.tried >= 10
    assert found.alike == ()
    assert str(found).endswith("equal: all 480 entries, bit for bit")
    assert verify(product(), *HALF, hardware="H200", most=2).tried == 2


def test_probes_of_a_slow_callable_end_with_the_time():
    calls = 0

    def slow(A, B):
        nonlocal calls
        calls += 1
        time.sleep(0.1)
        return product((A, B), order=KOrder(92, 40, True))

    found = verify(slow, *HALF, hardware="H200", seconds=0.3)
    assert not found.complete
    assert calls <= 5


@given(st.integers(0, 19), st.integers(0, 23), st.integers(0, 31))
def test_equal_means_that_every_bit_is(i, j, bit):
    D = product((HALF[0][:, :40], HALF[1][:40]))
    good = verify(D, HALF[0][:, :40], HALF[1][:40], hardware="H200", causes=False)
    assert good.equal
    assert good.difference is None
    D.view(np.uint32)[i, j] ^= np.uint32(1 << bit)
    found = verify(D, HALF[0][:, :40], HALF[1][:40], hardware="H200", causes=False)
    assert not found.equal
    assert (found.difference.entries, found.difference.bits, found.difference.first) == (1, 1, (i, j))


def test_what_was_found_about_the_recorded_products_reproduces_them():
    path = Path(__file__).parents[2] / "notebooks" / "data" / "products.py"
    spec = importlib.util.spec_from_file_location("recorded_products", path)
    products = sys.modules["recorded_products"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(products)
    origin, results = products.load(path.with_suffix(".npz"))
    assert origin["device"] == "NVIDIA H200"
    assert [case.name for case in products.cases()] == list(results)
    assert not origin["failed"]
    for case in (case for case in products.cases() if max(case.shape) <= 1024):
        assert products.emulated(case).tobytes() == results[case.name].tobytes(), case.name


def places(wrong):
    x = np.arange(1.0, 1 + wrong.size, dtype=np.float32).reshape(wrong.shape)
    return compare(np.where(wrong, np.nextafter(x, np.float32(np.inf)), x), x, "fp32").patterns


def test_the_pattern_of_a_difference_is_reported():
    rows, columns = np.indices((64, 96))
    assert places(rows >= 60) == ("only the last bit differs (1 ulp)", "only in rows 60 to 63 (the last)")
    assert places(columns == 0)[1] == "only in column 0 (the first)"
    assert places(columns % 4 == 1)[1] == "only in columns that are 1 modulo 4"
    assert "tiles of 32 × 32" in places((rows // 32 + columns // 32) % 2 == 0)[1]
    assert places((rows // 4 == 2) & (columns // 4 == 5))[1] == "only in rows 8 to 11 and columns 20 to 23"
    assert places(rows >= 0)[1] == "all entries"
    order = np.random.default_rng(1).permutation(64 * 96).reshape(64, 96)
    x = order.astype(np.float32) + 1
    assert compare(np.where(x > 6000, x + 1, x), x, "fp32").patterns[-1].startswith("only large results")
    nan, zero = np.full((2, 2), np.nan, np.float32), np.zeros((2, 2), np.float32)
    assert compare(-nan, nan, "fp32").patterns[0] == "only the codes of NaN differ"
    assert compare(-zero, zero, "fp32").patterns[0] == "only the sign of zeros differs"
    assert compare(zero, nan, "fp32").largest is None


def leaving(A, B):
    sys.exit(0)


ZEROS = np.zeros((20, 24), np.float32)
ONES = np.ones((20, 24))
FP8 = np.full((20, 32), 1.125, np.float32), np.full((32, 24), 1.125 * 2.0**14, np.float32)  # 2^14 is no value of e4m3
REFUSED = [  # result, operands, C, fields and words of the error; of callables: tests/cli/test_cli_reveal.py
    (leaving, HALF, None, {}, "raised SystemExit for A (20, 160) and B (160, 24) in float16: 0"),
    (lambda A, B: [[1], [1, 2]], HALF, None, {}, "the result of the callable is no array that NumPy can hold"),
    (lambda A, B: np.float64(product((A, B))), HALF, None, {}, "the result is float64"),
    (product, ("normal", None), None, {"shape": (2, 2, 8), "fmt": "int8", "seed": -1}, "seed = -1"),
    (ZEROS, ("normal", None), None, {"shape": (20, 24, 8)}, "goes with a callable"),
    (ZEROS, SINGLE, None, {"accumulate": "fp16"}, "is one of ordinary cores: fmt= gives another format"),
    (ZEROS, SINGLE, None, {"accumulate": "fp61"}, "unknown format 'fp61'"),
    (ZEROS, SINGLE, None, {"instruction": "wgmma"}, "no matrix instruction for fp32; it has bf16, e4m3"),
    (ZEROS, SINGLE, None, {"k": 4}, "k= is 4, and a plain product in fp32"),
    (ZEROS, [np.float64(x) for x in SINGLE], None, {}, "out= gives another format of D, fmt= of A and B"),
    (ZEROS, HALF, None, {"fmt": ""}, "unknown format ''"),
    (ZEROS, (HALF[0], HALF[0]), None, {}, "A has 160 columns and B 20 rows"),
    (ZEROS, (HALF[0], SINGLE[1]), None, {}, "give fmt="),
    (ZEROS.T, HALF, None, {}, "transpose a result that is stored by columns"),
    (ZEROS, SINGLE, None, {"fmt": "int8"}, "A has dtype float32"),
    (ZEROS, FP8, None, {"hardware": mma.spec("H200", ("e4m3", "e5m2"))}, "B has entries that are not values of e5m2"),
    (ZEROS, HALF, None, {"hardware": "H2O0"}, "did you mean"),
    (ZEROS, HALF, None, {"hardware": HOPPER, "accumulate": "fp16"}, "accumulate= is fp16, and hardware= is hopper"),
    (ZEROS, HALF, None, {"hardware": HOPPER, "fmt": "bf16"}, "fmt= is bf16, and hardware= is hopper wgmma"),
    (ZEROS, HALF, None, {"hardware": HOPPER, "k": 8}, "k= is 8, and hardware= is hopper wgmma"),
    (ZEROS, HALF, None, {"hardware": HOPPER, "instruction": "mma"}, "instruction= is mma, and hardware= is hopper"),
    (ZEROS, HALF, None, {"on_range": "scale"}, "on_range= belongs to a scheme"),
    (ZEROS, HALF, None, {"promte": 2}, "promte"),
    (ZEROS, HALF, None, {"fmt": "nvfp4"}, "nvfp4 is a block-scaled product, and verify takes no scales"),
    (ZEROS, HALF, None, {"beta": 2}, "beta needs C"),
    (ZEROS, HALF, 0.1 * ONES, {"beta": 1}, "C has entries that are not values of fp32"),
    (np.int32(ZEROS), INT8, 0.5 * ONES, {"beta": 1}, "values of int32: 480 of 480 entries, first at [0, 0]: 0.5"),
    (np.int32(ZEROS), INT8, 2**32 * ONES, {"beta": 1}, "C has entries that are not values of int32"),
    (np.int32(ZEROS), INT8, np.nan * ONES, {"beta": 1}, "C has entries that are not values of int32"),
]


@pytest.mark.parametrize(("result", "operands", "c", "fields", "words"), REFUSED, ids=[row[-1] for row in REFUSED])
def test_what_does_not_fit_is_one_line(result, operands, c, fields, words):
    A, B = (x.copy() if isinstance(x, np.ndarray) else x for x in operands)
    with pytest.raises(InputError) as raised:
        verify(result, A, B, c, **{"hardware": "H200", **fields})
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_redundant_fields_and_a_fitting_c_are_accepted():
    assert verify(product(), *HALF, hardware=HOPPER, fmt="fp16", accumulate="fp32", k=16, causes=False).equal
    for A, dtype in ((INT8, np.int32), ([np.float16(x) for x in INT8], np.float32)):
        for c in (3 * ONES, np.int64(3 * ONES)):
            D = np.full((20, 24), 35, dtype)
            assert verify(D, *A, c, beta=1, hardware="H100", causes=False).equal


def test_a_specification_is_read_from_a_table_and_changed_by_fields():
    table = {"hardware": "H200", "fmt": "fp16", "order": {"split": 64}}
    read = arguments.read_table(Specification, table, "product.toml")
    assert read == Specification("H200", fmt="fp16", order=KOrder(64))
    D = product(order=KOrder(64))
    assert verify(D, *HALF, specification=read, causes=False).equal
    assert not verify(D, *HALF, specification=read, order=None, causes=False).equal
    tree = Sum((Chain(((0, 1), (2, 3)), "instruction"), Chain(((4, 5),), "instruction")))
    assert arguments.read_table(Specification, {"order": serialise.to_dict(tree)}, "").order == tree
    relu = verify(np.maximum(D, 0), *HALF, specification=read, relu=True, causes=False)
    assert relu.equal
    assert str(relu.specification).endswith("split in slices of 64, relu = True")
    read = arguments.read_table(Specification, {"scheme": "ootomo", "hardware": "A100", "options": {"promote": 64}}, "")
    D = fpemu.gemm(*SINGLE, scheme="ootomo", hardware="H200", promote=64)
    assert verify(D, *SINGLE, specification=read, hardware="H200", causes=False).equal
    with pytest.raises(InputError, match=r"product.toml: order: unknown field 'splt': did you mean 'split'"):
        arguments.read_table(Specification, {"order": {"splt": 64}}, "product.toml")


def test_operands_are_drawn_by_name_and_int8_is_exact():
    assert verify(lambda A, B: product((A, B)), "normal", shape=(5, 6, 70), fmt="fp16", hardware="H200").equal
    whole = verify(lambda A, B: A.astype(np.int32) @ B, "normal", shape=(9, 7, 50), fmt="int8", hardware="H200")
    assert whole.equal


# --- the command
@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", HALF[0])
    np.save("B.npy", HALF[1])
    np.save("D.npy", product(order=KOrder(64)))
    (tmp_path / "library.py").write_text(
        "import fpemu\n\n\ndef chain(A, B):\n    return fpemu.mma.gemm(A, B, None, fpemu.mma.spec('H200', 'fp16'))\n"
    )
    return tmp_path


def run(*arguments):
    """The exit status of the command."""
    import typer

    app = typer.Typer(add_completion=False)
    app.command()(command.gemm)
    try:
        app(args=list(arguments), prog_name="gemm", standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    return 0


def test_the_command_says_equal_or_why_not(files, capsys):
    assert run("A.npy", "B.npy", "--result", "D.npy", "-H", "H200", "--order", "split=64") == 0
    assert "equal: all 480 entries" in capsys.readouterr().out
    run("A.npy", "B.npy", "-r", "D.npy", "-H", "H200", "--json")
    verdict = json.loads(capsys.readouterr().out)
    assert not verdict["equal"]
    assert verdict["explained"]
    assert "split in slices of 64" in verdict["causes"][0]["text"]
    options = "--callable library.py:chain -H H200 --input normal --shape 4x5x60 --format fp16"
    assert run(*options.split()) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("A32.npy B32.npy -r D.npy -H H200 --accumulate fp16", "accumulate= is fp16, and a plain product in fp32 is"),
        ("A.npy B.npy -r D.npy -s ootomo -H H200 --accumulate fp32", "accumulate= belongs to a plain product"),
        ("A.npy B.npy -r D.npy -s ootomo -H H200 --format fp16", "fmt= belongs to a plain product"),
        ("A.npy B.npy -r D.npy --accumulate fp16", "needs hardware=, such as 'H200' or 'ampere'"),
        ("A.npy B.npy -r D.npy -s ootomo", "give hardware=, such as 'ampere', 'H200'"),
        ("A.npy B.npy -r D.npy -s ootomo -H H200 -O progress=3", "unknown ootomo option 'progress'"),
        ("A.npy B.npy -r D.npy -s ootomo -H H200 -O seed=4", "random_bits and seed have no effect"),
        ("A.npy B.npy -r D.npy -H H200 -O promote=4", "unknown field of a specification 'promote'"),
        ("inf.npy B32.npy -r D.npy -s ootomo -H H200", "on_range='propagate' returns"),
        ("A.npy B.npy -H H200", "either --result or --callable"),
        ("A.npy -r D.npy -H H200", "A and B are missing"),
        ("A.npy B.npy -r no.npy -H H200 --order splt=3", "order: unknown field 'splt'"),
        ("A.npy B.npy -r D.npy -H H200 --order promote=4 --promote 8", "'promote' is given twice"),
        ("A.npy B.npy --callable library.py:chan -H H200", "did you mean 'chain'"),
        ("A.npy B.npy --callable library -H H200", "'library' is not FILE.py:FUNCTION"),
        ("-r D.npy --input normal --shape 4x4x4", "--input goes with --callable"),
        ("--callable library.py:chain --input normal --shape 4x4", "--shape '4x4' is not MxNxK"),
        ("A.npy B.npy -r D.npy -H H200 --seconds -1", "seconds = -1"),
    ],
)
def test_the_command_refuses_in_one_line(files, line, words):
    for name, x in zip("AB", SINGLE, strict=True):
        np.save(f"{name}32.npy", x)
    np.save("inf.npy", np.full((20, 160), np.inf, np.float32))
    with pytest.raises(InputError) as raised:
        run(*line.split())
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_operands_of_two_formats_are_each_in_its_own():
    spec = mma.spec("hopper", ("e4m3", "e5m2"), "fp32")
    A, B = np.full((4, 32), 1.125, np.float32), np.full((32, 4), 2.0**14, np.float32)  # 2^14 is no value of e4m3
    D = mma.gemm(A, B, None, spec)
    verdict = verify(D, A, B, hardware=spec, causes=False)
    assert (verdict.equal, verdict.specification.inputs) == (True, None)


def test_the_transposed_product_is_recognised_beside_c():
    c = fpemu.inputs.make("normal", (24, 24), 9)
    D = product(SQUARE).T + BETA * c
    verdict = verify(D, *SQUARE, c, beta=BETA, hardware="H200")
    assert verdict.causes[0].text == "the result is the transpose of A B"


def test_distances_count_the_values_of_a_narrow_format():
    def distance(got, expected, fmt):
        got, expected = np.array([[got]], np.float32), np.array([[expected]], np.float32)
        return compare(got, expected, fmt).largest

    tiny = 2.0**-24
    assert [distance(tiny, x, "fp16") for x in (2 * tiny, -tiny, 0.0, 2.0**-14)] == [1, 2, 1, 1023]
    assert [distance(65504.0, x, "fp16") for x in (np.inf, 65472.0)] == [1, 1]
    for fmt in ("e4m3", "e3m2", "fp16", "bf16"):
        values = fpemu.formats.get(fmt).decode(np.arange(2 ** (fpemu.formats.get(fmt).width - 1)))
        values = values[np.isfinite(values)].astype(np.float32)
        steps = [compare(x[None, None], y[None, None], fmt).largest for x, y in itertools.pairwise(values[:300])]
        assert set(steps) == {1}


@pytest.mark.parametrize("pair", [(1.0, -1.0), (1e300, -1e300), (-np.inf, np.inf), (2**62, -(2**62))])
def test_the_largest_distance_between_two_numbers_is_a_number(pair):
    got, expected = (np.array([[x]]) for x in pair)
    difference = compare(got, expected, "fp64")
    assert difference.largest == 2**62
    assert "2^62 ulps or more" in str(difference)


@pytest.mark.parametrize("x", [1.0, 4.0, -1e300])
def test_large_neighbours_in_fp64_are_one_step_apart(x):
    for got, expected in ((x, np.nextafter(x, 0)), (np.nextafter(x, 0), x)):
        assert compare(np.array([[got]]), np.array([[expected]]), "fp64").largest == 1


def test_a_product_in_fp16_with_an_epilogue_in_fp32_may_be_stored_in_fp32():
    spec = HALF_SUMS
    D = (ALPHA * product(spec=spec).astype(np.float32)).astype(np.float16)
    for stored in (D, D.astype(np.float32)):
        assert verify(stored, *HALF, hardware=spec, alpha=ALPHA, causes=False).equal


def test_codes_of_nan_are_combined_with_an_epilogue_in_fp16():
    T = product(NAN).astype(np.float16)
    D = (np.float16(0.7) * T + np.float16(0.5) * C.astype(np.float16)).astype(np.float32)
    D.view(np.uint32)[np.isnan(D)] = 0xFFFFFFFF
    verdict = verify(D, *NAN, C, alpha=0.7, beta=0.5, hardware="H200")
    assert verdict.explained
    assert {*verdict.causes[0].kinds} == {"epilogue", "result"}


def test_units_with_other_constants_are_all_but_the_given_one():
    found = [d.fields["hardware"] for d in other_units(Specification(HOPPER))]
    units = [(unit.block, unit.F, unit.final) for unit in found]
    tried = itertools.product((4, 8, 16, 32), (13, 23, 24, 25, 26), ("RZ", "RNE"))
    assert sorted(units) == sorted(set(tried) - {(16, 25, "RZ")})
    assert all(unit.fraction_bits == (13 if unit.F == 13 else None) for unit in found)


def test_no_alternative_is_counted_before_the_first():
    reports = []
    verify(product(spec=AMPERE), *HALF, hardware="H200", most=3, progress=lambda *report: reports.append(report))
    assert reports[0] == ("orders over K", 0)
