"""An accuracy wanted in, the cheapest scheme out: what is recommended keeps its promise, whatever the data."""

import itertools
import json
import math
import shlex

import numpy as np
import pytest

import fpemu
from fpemu import InputError, inputs, metrics, mma, reference, schemes, theory
from fpemu.advice import TargetError, advise, search
from fpemu.advice.candidates import candidates, machine
from fpemu.cli import main
from fpemu.theory import Bound, Part
from tests.commands import refusal

M, N, K = 64, 16, 40
TARGETS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-9, 1e-12, 1e-15)
HARDWARE = ("volta", "ampere", "H200", "MI210", "ideal")


def _graded(rng):
    A, B = rng.uniform(-1, 1, (M, K)), rng.uniform(-1, 1, (K, N))
    return A * 2.0 ** -np.arange(0, 4 * M, 4)[:, None], B * 2.0 ** np.arange(0, 3 * N, 3)


def _spike(rng):
    A, B = rng.uniform(-1, 1, (M, K)), rng.uniform(-1, 1, (K, N))
    A[3, 5] = 1e6
    return A, B


def _fp64(rng):
    return rng.uniform(-1, 1, (M, K)), rng.uniform(0, 1, (K, N))


def _halves(rng):
    return rng.integers(-8, 8, (M, K)) / 8, rng.integers(-8, 8, (K, N)) / 8


def _constant(rng):
    return np.full((M, K), 1 + 2.0**-11 + 2.0**-23), np.full((K, N), 1 / 3)


def _beyond_fp32(rng):
    return rng.uniform(1, 2, (M, K)) * 1e200, rng.uniform(1, 2, (K, N)) * 1e-200


OWN = {
    "graded": _graded,
    "spike": _spike,
    "fp64": _fp64,
    "halves": _halves,
    "constant": _constant,
    "1e200": _beyond_fp32,
}
NAMED = [
    *((name, {}, 0) for name in inputs.names()),
    *(("uniform", {}, shift) for shift in (-20, 12)),
    ("normal", {"mean": 3.0}, -6),
    ("positive", {}, -20),
    ("wide", {"low": -40, "high": 3}, 0),
    ("phi", {"phi": 4.0}, 0),
    ("offset_symmetric", {"exponent": 12}, 0),
    ("lognormal", {"sigma": 12.0}, 0),
    ("cancellation", {"bits": 20}, 0),
]


def _data(name, parameters=None, shift=0):
    """Operands of a named or of an own distribution; own ones are rounded to fp32 where nothing says otherwise."""
    if name in OWN:
        A, B = OWN[name](np.random.default_rng(3))
        return (A, B) if name in ("fp64", "1e200", "constant") else (np.float32(A), np.float32(B))
    A, B = inputs.operands(name, M, N, K, 7, **(parameters or {}))
    return np.ldexp(A, shift), np.ldexp(B, shift)


def _result(found, A, B):
    """What the call that is recommended gives."""
    if found.rounds:
        A, B = A.astype(np.float32), B.astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return fpemu.gemm(A, B, **found.arguments)


def _run(candidate, hardware, A, B):
    """A candidate's result, None where it refuses the data."""
    if candidate.operand == "fp32":
        with np.errstate(over="ignore", under="ignore"):
            A, B = A.astype(np.float32), B.astype(np.float32)
        if not (np.isfinite(A).all() and np.isfinite(B).all()):
            return None
    try:
        return fpemu.gemm(A, B, scheme=candidate.built, hardware=hardware, on_range=candidate.on_range)
    except (InputError, fpemu.GuaranteeError):
        return None


def _error(D, A, B, measure="normwise"):
    R = reference.matmul(A, B)
    return metrics.normwise(D, R, A, B) if measure == "normwise" else metrics.get(measure)(D, R)


def _advised(target, **more):
    """The advice, or the best there is where the target cannot be met."""
    try:
        return advise(target, **more), None
    except TargetError as refused:
        return None, refused.best


# --- the promise
CASES = [*NAMED, *((name, {}, 0) for name in OWN)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(i, id=f"{name}{seed or ''}", marks=[pytest.mark.slow] * (i % 4 > 0))
        for i, (name, _, seed) in enumerate(CASES)
    ],
)
def test_what_is_recommended_meets_the_target_on_the_data(number):
    A, B = _data(*CASES[number])
    for step in range(2):
        target = TARGETS[(2 * number + 4 * step) % len(TARGETS)]
        hardware = HARDWARE[(number + step) % len(HARDWARE)]
        found, best = _advised(target, hardware=hardware, A=A, B=B)
        if best is not None:
            error = _error(_run(best.candidate, hardware, A, B), A, B)
            assert error == best.measured
            assert max(best.probable, error) > target
            continue
        error = _error(_result(found, A, B), A, B)
        assert error <= target
        assert found.checked
        assert found.chosen.measured == error
        assert found.chosen.probable <= target
        _nothing_cheaper(found, hardware, A, B)


def _nothing_cheaper(found, hardware, A, B):
    """Whatever comes before the scheme chosen misses the target, by its bound or on the data."""
    keys = [v.candidate.key for v in found.considered]
    assert keys == sorted(keys)
    assert found.chosen in found.considered
    for verdict in found.considered[: found.considered.index(found.chosen)]:
        if verdict.probable <= found.target:
            D = _run(verdict.candidate, hardware, A, B)
            assert D is None or _error(D, A, B) > found.target


@pytest.mark.parametrize("measure", search.MEASURES)
@pytest.mark.parametrize("name", ["positive", "uniform"])
def test_every_measure_is_kept(measure, name):
    A, B = inputs.operands(name, M, N, K, 5)
    for target, hardware in ((1e-2, "ampere"), (1e-5, "hopper")):
        found, best = _advised(target, hardware=hardware, A=A, B=B, measure=measure)
        assert found is None or _error(_result(found, A, B), A, B, measure) <= target
        assert best is None or best.probable > target


def test_the_measurement_decides_where_a_bound_is_wrong(monkeypatch):
    """With bounds of zero, what is recommended is the cheapest by the measured error alone."""
    monkeypatch.setattr(theory, "bound", lambda *args, **more: Bound((Part("none", 0.0),)))
    A, B = _data("uniform")
    for target in (1e-4, 1e-7):
        found = advise(target, hardware="ampere", A=A, B=B)
        results = ((v, _run(v.candidate, "ampere", A, B)) for v in found.considered)
        first = next(v for v, D in results if D is not None and _error(D, A, B) <= target)
        assert found.chosen.candidate == first.candidate


def test_the_bound_decides_where_the_measurement_is_lucky():
    A, B = _data("halves")
    assert _error(fpemu.gemm(A, B, scheme="fp16", hardware="volta"), A, B) == 0
    found = advise(1e-5, hardware="volta", A=A, B=B)
    assert found.scheme != "fp16"
    assert "its bound is" in next(v.why for v in found.considered if v.candidate.scheme == "fp16")


def test_the_worst_case_bound_costs_more_than_the_probable_one():
    A, B = inputs.operands("uniform", 16, 16, 512, 0)
    probable, worst = (advise(2e-6, hardware="H200", A=A, B=B, confidence=c) for c in ("probable", "worst"))
    assert worst.chosen.worst <= 2e-6
    assert probable.chosen.candidate.key < worst.chosen.candidate.key


def test_a_bound_is_that_of_theory_for_these_data():
    A, B = inputs.operands("uniform", M, N, K, 5)
    found = advise(1e-4, hardware="ampere", A=A, B=B)
    expected = theory.bound(found.scheme, "ampere", norms=theory.Norms.of(A, B), M=M, N=N, **found.options)
    assert found.chosen.worst == pytest.approx(expected.worst, rel=1e-6)
    assert found.chosen.probable == pytest.approx(expected.probable(1e-3), rel=1e-6)


def test_a_probable_bound_on_a_mean_needs_no_union_over_entries():
    """Chernoff's bound for a mean of squares at the tail used, and a mean of equal Gaussian errors beyond it."""
    x = search.MEAN_TAIL**2
    assert math.sqrt(x) * math.exp((1 - x) / 2) <= search.FAILURE
    assert math.erfc(search.MEAN_TAIL / math.sqrt(2)) <= search.FAILURE
    A, B = inputs.operands("uniform", 64, 64, 64, 0)
    mean, largest = (advise(1e-2, hardware="volta", A=A, B=B, measure=m).chosen for m in ("relative_l2", "normwise"))
    assert mean.candidate == largest.candidate
    assert mean.probable * theory.Norms.of(A, B).result < largest.probable


# --- the request
def test_without_data_the_distribution_is_stated_and_the_product_is_square():
    found = advise(1e-5, K=128, hardware="A100")
    assert (found.M, found.N, found.K) == (128, 128, 128)
    assert "uniform" in found.data
    assert "fp32" in found.data
    assert not found.checked
    assert "fp64" in advise(1e-10, K=32, hardware="A100").data
    assert "wide (low=-3)" in advise(1e-3, K=32, M=5, N=6, hardware="A100", inputs="wide", parameters={"low": -3}).data


def test_many_entries_make_a_probable_bound_larger():
    few, many = (advise(1e-3, K=64, M=n, N=n, hardware="ampere") for n in (64, 4096))
    assert few.chosen.probable < many.chosen.probable
    assert few.chosen.worst == many.chosen.worst


def _everything(hardware):
    A, B = inputs.operands("uniform", 64, 64, 64, 0)
    return candidates(machine(hardware), 64, 64, 64, (A, B), fp32=True, policies=("raise",))


def test_the_work_is_that_of_the_matrix_units():
    """By hand: products, times 989.4 TFLOP/s over the peak of the unit."""
    found = _everything("H200")
    work = {c.scheme: c.cost.work for c in reversed(found)}
    for scheme, products in (("fp16", 1), ("ootomo", 3), ("h2sgemm", 3), ("egemm", 4), ("bf16x6", 6), ("bf16x9", 9)):
        assert work[scheme] == pytest.approx(products)
    assert work["ootomo-tf32"] == pytest.approx(6)
    assert work["sgemm"] == pytest.approx(989.4 / 66.9, rel=0.01)
    for s, candidate in ((dict(c.options)["slices"], c) for c in found if c.scheme == "ozimmu"):
        assert candidate.cost.work == pytest.approx(s * (s + 1) / 2 / 2)


def test_hardware_without_a_format_is_not_offered_its_schemes():
    for hardware in HARDWARE:
        for candidate in _everything(hardware):
            candidate.built.spec(hardware)  # refuses what the hardware does not have
    assert {c.scheme for c in _everything("ideal")} == set(schemes.names())
    assert not any("bf16" in c.label or "int8" in c.label for c in _everything("volta"))


def test_native_products_have_the_faster_of_their_units():
    work = {c.scheme: c.cost.work for c in _everything("MI210")}
    assert work["dgemm"] == pytest.approx(181 / 45.3, rel=0.01)
    assert work["sgemm"] == pytest.approx(181 / 45.3, rel=0.01)
    assert {c.scheme: c.cost.work for c in _everything("A100")}["dgemm"] == pytest.approx(312 / 19.5)


def test_a_unit_without_a_known_peak_is_not_offered(tmp_path):
    assert "dgemm" not in {c.scheme for c in _everything("Ascend 910A")}
    assert [c.scheme for c in _everything("Ascend 910B3")] == ["sgemm"]
    file = tmp_path / "half.toml"
    file.write_text('[half]\nsource = "mine"\npeak = { fp16 = 1e12 }\n')
    with pytest.raises(InputError, match=r"nothing that is modelled runs on .*half"):
        advise(1e-2, K=8, hardware=str(file))


def test_correct_rounding_costs_what_its_slices_do():
    """Integers of a few bits need one slice of int8 each: A and B are read and split, the words multiplied once."""
    A, B = (np.arange(64.0 * 64).reshape(64, 64) % 5 for _ in range(2))
    found = candidates(machine("A100"), 64, 64, 64, (A, B), fp32=True, policies=("raise",))
    right = next(c for c in found if dict(c.options) == {"mode": "CR", "words": "int8", "split": "balanced"})
    assert (right.products, right.cost.work) == (1, 0.5)
    assert right.cost.memory >= 3 * 64 * 64 * 8 + 2 * 2 * 64 * 64


def test_a_custom_instruction_is_taken_as_it_is():
    spec = mma.spec("volta").replace(name="mine", F=30, final="RNE")
    found = advise(1e-3, K=64, hardware=spec)
    assert found.hardware == "mine"
    assert found.call().startswith("fpemu.gemm(A, B, scheme=")
    assert "hardware=spec" in found.call()
    assert found.arguments["hardware"] is spec


def test_gpus_of_the_table_and_of_a_file_weigh_the_work_by_their_peaks(tmp_path):
    one, other = (advise(1e-6, K=64, hardware=name) for name in ("RTX 3090", "A100"))
    assert (one.rates, other.rates) == ("RTX 3090", "A100")
    pcie = advise(1e-6, K=64, hardware="H100 PCIe")
    assert (pcie.hardware, pcie.unit, pcie.rates) == ("H100 PCIe", "hopper", "H100 PCIe")
    file = tmp_path / "mine.toml"
    file.write_text('[mine]\nlike = "H200"\nsource = "mine"\npeak = { fp64 = 1e18 }\n')
    found = advise(1e-3, K=64, hardware=str(file))
    assert (found.scheme, found.unit) == ("dgemm", "hopper")
    assert advise(1e-3, K=64, hardware=fpemu.roofline.gpus.get(file)).chosen == found.chosen


def test_hardware_without_a_matrix_unit_has_its_ordinary_cores():
    assert advise(1e-4, K=64, hardware="P100").call() == "fpemu.gemm(A, B, scheme='sgemm')"
    found = advise(1e-10, K=64, hardware="P100")
    assert found.command() == "fpemu gemm A.npy B.npy --scheme dgemm"
    assert found.chosen.candidate.cost.work == pytest.approx(9.3 / 4.7, rel=0.01)


# --- data that go wrong
def test_entries_beyond_fp16_are_scaled_or_held_by_other_words():
    A, B = _data("uniform")
    A = A * np.float32(2.0**20)
    found = advise(1e-3, hardware="volta", A=A, B=B)
    assert found.arguments["on_range"] in ("scale", "scale-rows")
    assert _error(_result(found, A, B), A, B) <= 1e-3
    unscaled = next(v for v in found.considered if v.candidate.label == "fp16")
    assert math.isinf(unscaled.probable)


def test_fp64_data_below_fp32_get_fp64_schemes_only():
    A, B = _data("fp64")
    found = advise(1e-9, hardware="H200", A=A, B=B)
    assert found.chosen.candidate.operand == "fp64"
    assert not found.rounds
    coarse = advise(1e-3, hardware="H200", A=A, B=B)
    assert coarse.rounds
    assert "astype(np.float32)" in coarse.call()
    assert ("operands rounded to fp32", pytest.approx(2.0**-23, rel=0.2)) in coarse.chosen.parts()
    assert any("fp32 numbers" in line for line in coarse.notes)


def test_rounding_to_fp32_counts_on_average_in_a_probable_bound():
    """As random as the entries: below the largest change of an entry by the root of the length, as measured."""
    rng = np.random.default_rng(0)
    A, B = rng.uniform(1, 2, (8, 4096)), rng.uniform(1, 2, (4096, 8))
    part = next(p for p in advise(1e-4, hardware="V100", A=A, B=B).chosen.bound.parts if "fp32" in p.name)
    R = reference.matmul(A, B)
    rms = float(np.sqrt(np.mean((reference.matmul(A.astype(np.float32), B.astype(np.float32)) / R - 1) ** 2)))
    assert rms / 2 < part.deviation < 2 * rms
    assert part.worst == pytest.approx(2.0**-23, rel=0.01)
    constant = advise(1e-6, hardware="H200", A=np.full((4, 512), 1 + 2.0**-24), B=np.full((512, 4), 1 + 2.0**-24))
    assert constant.chosen.measured <= 1e-6


def test_fp64_data_that_fp32_rounds_to_zero_have_fp64_schemes():
    rng = np.random.default_rng(0)
    A, B = rng.uniform(-1, 1, (4, 9)), rng.uniform(-1, 1, (9, 5))
    for shift in (-310, -200, -150):
        found = advise(1e-3, hardware="A100", A=np.ldexp(A, shift), B=B)
        assert found.chosen.candidate.operand == "fp64"
        assert any(v.why.startswith("A has no entry that fp32 does not round") for v in found.considered)
    A[0, 0] = 1e-60  # a single one does no harm
    assert advise(1e-3, hardware="A100", A=A, B=B).scheme == "fp16"


def test_products_of_zeros_take_the_cheapest_scheme():
    zeros, other = np.zeros((4, 6), np.float32), np.ones((6, 3), np.float32)
    for A, B in ((zeros, other), (zeros, np.zeros((6, 3))), (np.eye(6)[:3], np.diag([0, 0, 0, 1.0, 1, 1]))):
        for measure in ("normwise", "relative_l2", "max_relative"):
            found = advise(1e-15, hardware="ampere", A=A, B=B, measure=measure)
            assert (found.chosen.worst, found.chosen.measured) == (0, 0)
            assert found.chosen.candidate.key == min(v.candidate.key for v in found.considered)


def test_relative_measures_of_a_product_that_cancels_to_zero_have_no_bound():
    A, B = np.float32([[1.0, -1.0]]), np.float32([[1 / 3], [1 / 3]])
    for measure in ("relative_l2", "max_relative"):
        found = advise(1e-3, hardware="ampere", A=A, B=B, measure=measure)  # one rounding of the exact zero is zero
        assert (found.scheme, found.options["mode"]) == ("ozaki", "CR")
    with pytest.raises(TargetError, match=r"zero leave max_relative without a bound \(normwise has one\)"):
        advise(1e-3, hardware=mma.spec("ampere", "bf16"), A=A, B=B, measure="max_relative")


def test_sums_of_one_product():
    for hardware in HARDWARE:
        found = advise(1e-6, hardware=hardware, A=[[1 / 3]], B=[[3.0]])
        assert _error(_result(found, np.array([[1 / 3]]), np.array([[3.0]])), [[1 / 3]], [[3.0]]) <= 1e-6
    assert advise(1e-2, K=1, hardware="V100").M == 1


# --- samples
@pytest.fixture
def stingy(monkeypatch):
    """Samples of 8 rows and columns, and nothing measured on all of the data."""
    monkeypatch.setattr(search, "SMALL", 64 * 64)
    monkeypatch.setattr(search, "BUDGET", 0)


def test_a_sample_has_the_rows_where_errors_are_largest(stingy):
    rng = np.random.default_rng(0)
    A, B = rng.uniform(0.5, 1, (300, 64)).astype(np.float32), rng.uniform(0.5, 1, (64, 300)).astype(np.float32)
    A[17] *= np.float32(2.0) ** np.arange(-32, 32)
    A[100], B[:, 250] = A[100] * 2.0**-30, B[:, 250] * 2.0**40
    block = search.Matrices.read(A, B, 0).small
    assert block.shape == (8, 8)
    for row in (A[17], A[100]):
        assert np.equal(block.A, row).all(axis=1).any()
    assert np.equal(block.B, B[:, [250]]).all(axis=0).any()


def test_what_was_not_checked_is_said(stingy):
    A, B = inputs.operands("uniform", 50, 60, 64, 1)
    found = advise(1e-4, hardware="ampere", A=A, B=B)
    assert not found.checked
    assert found.chosen.tried == (8, 8)
    assert "not compared with the exact product: their bound assumes random entries" in found.notes[0]
    assert "holds for them" in advise(1e-4, hardware="ampere", A=A, B=B, confidence="worst").notes[0]
    assert _error(_result(found, A, B), A, B) <= 1e-4


def test_the_range_of_all_entries_counts_in_a_sample(stingy):
    rng = np.random.default_rng(0)
    for row in range(0, 64, 9):
        A, B = rng.uniform(-1, 1, (64, 64)).astype(np.float32), rng.uniform(-1, 1, (64, 64)).astype(np.float32)
        A[row, row] = 66000.0
        B[:, row] *= 2.0**-18
        found = advise(1e-2, hardware="volta", A=A, B=B)
        assert np.isfinite(_result(found, A, B)).all()


def test_all_of_the_data_is_tried_where_the_sample_is_not_enough(monkeypatch):
    """A bound of zero and a sample that misses the bad entry: measuring everything finds it."""
    monkeypatch.setattr(theory, "bound", lambda *args, **more: Bound((Part("none", 0.0),)))
    monkeypatch.setattr(search, "SMALL", 64 * 64)
    A, B = np.ones((200, 64), np.float32), np.ones((64, 200), np.float32)
    # fp16 holds all but one entry, whose row looks like any other to every score of the sample
    A[150, 3] = 1 - 2.0**-13
    found = advise(1e-7, hardware="volta", A=A, B=B)
    assert found.checked
    assert found.chosen.tried == (200, 200)
    assert _error(_result(found, A, B), A, B) <= 1e-7


def test_a_sample_that_breaks_the_probable_bound_leaves_the_worst_case_to_decide(stingy, monkeypatch):
    A, B = inputs.operands("uniform", 50, 60, 64, 1)
    for worst in (1e-3, 1e-5):
        monkeypatch.setattr(theory, "bound", lambda *args, worst=worst, **more: Bound((Part("none", worst),)))
        found = advise(1e-4, hardware="volta", A=A, B=B)
        assert found.scheme == "fp16" if worst < 1e-4 else found.chosen.measured <= 2.0**-53


# --- bad input
SQUARE = np.ones((3, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 0.0}, "target = 0.0 must be a number above 0 and below 1, a relative error"),
        ({"target": 1}, "target = 1 must be a number above 0 and below 1"),
        ({"target": -1e-3}, "above 0 and below 1"),
        ({"target": math.nan}, "target = nan must be a number"),
        ({"target": math.inf}, "target = inf must be a number above 0"),
        ({"target": "1e-6"}, "target = '1e-6' must be a number"),
        ({"target": True}, "target = True must be a number"),
        ({"hardware": "H2000"}, "unknown hardware 'H2000': did you mean 'H200'"),
        ({"hardware": None}, "unknown hardware None"),
        ({"hardware": "amper"}, "did you mean 'ampere'"),
        ({"measure": "norm_wise"}, "unknown measure 'norm_wise': did you mean 'normwise'"),
        ({"measure": "max_ulps"}, "a target is a relative error, which max_ulps is not"),
        ({"confidence": "wurst"}, "unknown confidence 'wurst': did you mean 'worst'"),
        ({"K": None}, "the length of the sums is missing: give K=, or A and B"),
        ({"K": 0}, "K = 0 must be an integer from 1 to 2^30"),
        ({"K": 2.0}, "K = 2.0 must be an integer"),
        ({"K": True}, "K = True must be an integer"),
        ({"M": -1}, "M = -1 must be an integer"),
        ({"N": 2**40}, "N = 1099511627776 must be an integer"),
        ({"K": 2**21}, "give the matrices, or bound the error by fpemu.theory.bound"),
        ({"hardware": "no.toml"}, "no.toml: No such file"),
        ({"inputs": "unifrom"}, "unknown distribution 'unifrom': did you mean 'uniform'"),
        ({"parameters": {"hihg": 2}}, "did you mean 'high'"),
        ({"dtype": "fp16"}, "unknown dtype 'fp16'"),
        ({"seed": -1}, "seed = -1 must be an integer >= 0"),
        ({"A": SQUARE}, "B is missing"),
        ({"B": SQUARE}, "A is missing"),
        ({"A": SQUARE, "B": SQUARE, "K": 4}, "K=4 contradicts the data, where K is 3"),
        ({"A": SQUARE, "B": SQUARE, "K": None, "M": 2}, "M=2 contradicts the data, where M is 3"),
        ({"A": SQUARE, "B": np.ones((2, 3)), "K": None}, r"A of shape (3, 3) and B of shape (2, 3): A has 3 columns"),
        ({"A": np.ones((2, 3, 3)), "B": SQUARE, "K": None}, "advise on one product of a batch at a time"),
        ({"A": np.ones(3), "B": SQUARE, "K": None}, "A must be a matrix (rows, columns), not of shape (3,)"),
        ({"A": np.ones((0, 3)), "B": SQUARE, "K": None}, "A of shape (0, 3) has no entries"),
        ({"A": SQUARE, "B": np.array([[1, 2, np.nan]] * 3), "K": None}, "3 of 9 entries, first at [0, 2]: nan"),
        ({"A": SQUARE * np.inf, "B": SQUARE, "K": None}, "A: NaN or infinite: 9 of 9 entries, first at [0, 0]: inf"),
        ({"A": SQUARE + 1j, "B": SQUARE, "K": None}, "A takes real numbers"),
        ({"A": [["a"]], "B": [[1.0]], "K": None}, "A takes real numbers"),
    ],
)
def test_bad_input_is_one_line_that_names_what_and_where(arguments, message):
    given = {"target": 1e-3, "K": 8, "hardware": "ampere", **arguments}
    target = given.pop("target")
    with pytest.raises(InputError) as complaint:
        advise(target, **given)
    assert not isinstance(complaint.value, TargetError)
    assert message in str(complaint.value)
    assert "\n" not in str(complaint.value)


# --- the command
@pytest.fixture
def folder(workdir):
    for name, X in zip("AB", inputs.operands("uniform", 12, 10, 48, 4), strict=True):
        np.save(f"{name}.npy", X)
    return workdir


def _command(capsys, *words):
    status = main(["advise", *words])
    return status, *capsys.readouterr()


def test_the_command_answers_with_lines_to_paste(folder, capsys):
    status, out, err = _command(capsys, "--target", "1e-5", "--hardware", "H200", "--data", "A.npy", "B.npy")
    assert (status, err) == (0, "")
    python, command, *_ = out.splitlines()
    A, B = np.load("A.npy"), np.load("B.npy")
    D = eval(python, {"fpemu": fpemu, "np": np, "A": A, "B": B})
    assert _error(D, A, B) <= 1e-5
    assert "on all entries" in out
    assert main(shlex.split(command)[1:]) == 0  # however long, it is one line
    assert shlex.split(command)[5] in capsys.readouterr().out


def test_the_command_and_the_library_agree(folder, capsys):
    for words, more in (
        (["--k", "64", "--m", "5"], {"K": 64, "M": 5}),
        (
            ["--k", "64", "--inputs", "wide,low=-4,high=2", "--seed", "3"],
            {"K": 64, "inputs": "wide", "parameters": {"low": -4, "high": 2}, "seed": 3},
        ),
        (
            ["--data", "A.npy", "B.npy", "--measure", "relative_l2"],
            {"A": np.load("A.npy"), "B": np.load("B.npy"), "measure": "relative_l2"},
        ),
        (["--k", "16", "--dtype", "fp64", "--worst"], {"K": 16, "dtype": "fp64", "confidence": "worst"}),
    ):
        status, out, err = _command(capsys, "--target", "1e-4", "-H", "A100", *words, "--json")
        assert (status, err) == (0, "")
        answer, found = json.loads(out), advise(1e-4, hardware="A100", **more)
        assert answer["python"] == found.call()
        assert answer["chosen"]["measured"] == found.chosen.measured
        assert answer["chosen"]["probable"] == found.chosen.probable
        assert [v["scheme"] for v in answer["alternatives"]] == [v.candidate.scheme for v in found.alternatives]


def test_what_cannot_be_met_is_one_line_with_the_best_and_status_1(folder, capsys):
    status, out, err = _command(capsys, "--target", "1e-30", "--hardware", "V100", "--k", "32")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("fpemu: no scheme on V100 meets 1e-30 (normwise, probable bound); the best of ")
    assert "bound" in err.split("the best of ")[1]
    assert "measured" in err.split("the best of ")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--hardware H200 --k 4", "Missing option '--target'"),
        ("--target 1e-3 --k 4", "'fpemu list hardware'"),
        ("--target x --hardware H200 --k 4", "Invalid value for '--target'"),
        ("--target 2 --hardware H200 --k 4", "target = 2.0 must be a number above 0 and below 1"),
        ("--target 1e-3 --hardware H20O --k 4", "unknown hardware 'H20O': did you mean"),
        ("--target 1e-3 --hardware H200 --k 4 --inputs uniform,low", "option 'low' is not name=value"),
        ("--target 1e-3 --hardware H200 --data A.npy", "--data"),
        ("--target 1e-3 --hardware H200 --data A.npy no.npy", "no.npy: No such file"),
        ("--target 1e-3 --hardware H200 --data A.npy B.npy --k 3", "K=3 contradicts the data, where K is 48"),
        ("--target 1e-3 --hardware H200 --data A.npy B.npy --inputs wide", "without --data"),
        ("--target 1e-3 --hardware H200 --k 4 --json --tabel", "No such option"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(folder, capsys, words, message):
    assert message in refusal(capsys, "advise", *words.split())


def test_json_has_no_infinities(folder, capsys):
    for target in ("1e-2", "1e-9"):
        status, out, _ = _command(
            capsys, "--target", target, "--hardware", "MI210", "--data", "A.npy", "B.npy", "--json"
        )
        assert status == 0
        answer = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in the answer"))
        for verdict in itertools.chain([answer["chosen"]], answer["alternatives"]):
            assert verdict["worst"] is None or verdict["worst"] > 0
            assert verdict["measured"] <= float(target)


def test_underflow_within_a_search_is_no_error_of_the_caller():
    A, B = np.array([[1.0, 1e-300], [5e-324, 1.0]]), np.array([[1.0, 1e-200], [1.0, 5e-324]])
    expected = advise(1e-6, A=A, B=B, hardware="H200")
    with np.errstate(all="raise"):
        assert advise(1e-6, A=A, B=B, hardware="H200").call() == expected.call()


def test_ratios_to_a_small_entry_do_not_underflow():
    A = np.array([[2.0**500, 0.0], [2.0**-300, 2.0**-300]])
    B = np.array([[2.0**500, 2.0**-300], [0.0, -(2.0**-300) * (1 - 2.0**-20)]])
    data = search.Matrices.read(A, B, 0)
    assert data.factor("max_relative") == pytest.approx(2**21 - 1)  # (2 - 2^-20) / 2^-20
    assert data.factor("mred") == pytest.approx((2**21 - 1 + 2) / 4)
