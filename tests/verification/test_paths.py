"""The paths of a caller on a stand-in for the GPU: each computes the emulation's bits, and a fault is found."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

import fpemu
from fpemu import schemes
from fpemu.errors import InputError
from fpemu.gpu.runtime import device
from fpemu.verification import arguments, paths, tallskinny
from fpemu.verification.arguments import Arguments
from fpemu.verification.batched import Batched
from fpemu.verification.cases import LAYOUTS, Case, Draw, arrange, codes
from fpemu.verification.kernels import Kernels
from fpemu.verification.paths import PATHS, Call, Copies, Memory
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import Run
from fpemu.verification.tallskinny import TallSkinny
from tests.commands import refusal
from tests.verification.conftest import view

LOCAL = ["host", "eager", "plan"]
ONES = (np.ones((3, 3), np.float32), np.ones((3, 3), np.float32), None)
SGEMM = {"scheme": "sgemm"}
LIKE = np.zeros((3, 8), np.float32)[:, :3]


def ones(number=0, key=0, **fields):
    """A product of ones by `fpemu.gpu.gemm`."""
    return Call(Case("", number, key, (3, 3, 3)), "gemm", ONES, LIKE, SGEMM, SGEMM, **fields)


def kernels(path):
    return Kernels(0, 9, ["ootomo"], paths=[path])


SUITES = {
    "kernels": (kernels, "ootomo"),
    "batched": (lambda path: Batched(0, 14, paths=[path]), "hgemm fp32"),
    "interleaved": (lambda path: Batched(0, 8, paths=[path]), "hcgemm interleaved fp32"),
    "planar": (lambda path: Batched(0, 8, paths=[path]), "hcgemm planar fp16"),
    "tallskinny": (lambda path: TallSkinny(0, 50, names=["multiply"], paths=[path]), "multiply in fp32"),
    "fp64": (lambda path: TallSkinny(0, 50, names=["multiply"], paths=[path]), "multiply in fp64"),
    **{group: (lambda path: Arguments(0, 1, paths=[path]), group) for group in Arguments(paths=["host"]).groups},
}


def flipped(D, operands, out):
    """The last bit of the first element is wrong."""
    D = np.array(D)
    D.reshape(-1)[:1].view(np.uint8)[0] ^= 1
    return D


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (name, path)
        for name in SUITES
        for path in PATHS
        if (path, name) != ("graph", "gemm ozaki") and (path != "plan" or name in ("kernels", "gemm ootomo"))
    ],
)
def test_products_have_the_emulations_bits_by_every_path_and_a_wrong_bit_is_found(gpu, request, name, path):
    if path in ("graph", "torch"):
        request.getfixturevalue("with_torch")
    make, group = SUITES[name]
    suite = make(path)
    outcome = suite.run(group)
    assert outcome.ok, outcome.first
    assert outcome.counts[suite.paths[0]] == outcome.outputs > 100
    assert outcome.cases == len(suite.groups[group].numbers)
    gpu.faults.append(flipped)
    number = next(
        n for n in suite.groups[group].numbers if suite.case(group, n).products and suite.compare(group, n).outputs
    )
    wrong = suite.compare(group, number)
    assert (wrong.mismatches, wrong.failed) == (1, 0)
    assert wrong.first[0].startswith(f"{number}: {suite.paths[0]}: against ")
    *_, again = suite.explain(wrong)
    kind = f"{type(suite).__module__}.{type(suite).__name__}"
    assert again == f"  again: {kind}(0, paths={suite.paths}).compare('{group}', {number})"


@pytest.mark.parametrize("path", ["eager", "plan"])
def test_a_result_of_an_earlier_call_is_no_result(gpu, monkeypatch, path):
    """The last call writes nothing, as launches that keep the addresses of other operands."""
    calls = []

    def call(A, B, C=None, *, out, scheme="sgemm"):
        calls.append(out)
        return out if len(calls) > 1 else gpu.gemm(A, B, C, scheme=scheme, out=out)

    monkeypatch.setattr(fpemu.gpu, "gemm", call)
    monkeypatch.setattr(fpemu.gpu, "plan", lambda A, B, C, scheme: call)
    computed = paths.run(path, ones())
    assert (computed.result == 0xABABABAB).all()
    assert len(calls) == (4 if path == "eager" else 2)  # the third call with the same addresses launches a graph


@pytest.mark.parametrize(
    ("fault", "outside", "deferred", "text"),
    [
        ("", 0, False, ""),
        ("gap", 1, False, ""),
        ("operand", 2, False, ""),
        ("raises", 1, False, "InputError: no"),
        ("defers", 0, True, ""),
    ],
)
def test_writes_beside_the_result_and_deferred_errors_are_counted(gpu, monkeypatch, fault, outside, deferred, text):
    def call(A, B, C=None, *, out, scheme):
        X = B if fault == "operand" else out
        where = X.__cuda_array_interface__["data"][0] + (12 if fault == "gap" else 0)
        if fault in ("gap", "operand", "raises"):
            ctypes.c_uint8.from_address(where).value ^= 0x10
        if fault == "raises":
            raise InputError("no")
        gpu.deferred += ["A: NaN"] * (fault == "defers")
        return gpu.gemm(A, B, C, scheme=scheme, out=out)

    monkeypatch.setattr(fpemu.gpu, "gemm", call)
    computed = paths.run("eager", ones(8, policy="raise", deferrable=True))
    assert (computed.outside, computed.deferred) == (outside, deferred)
    assert not text or computed.result == text


@pytest.mark.parametrize("lost", [False, True])
def test_a_deferred_range_error_that_is_lost_is_a_mismatch(gpu, monkeypatch, lost):
    suite = Kernels(0, 36, ["ootomo"], paths=["eager"])
    if lost:
        monkeypatch.setattr(fpemu.gpu, "check", lambda: None)
    cases = [suite.case("ootomo", number) for number in range(9, 36, 2)]
    outcomes = [suite.compare("ootomo", case.number) for case in cases if case.products < 2**15]
    assert any("a range error was lost" in text for outcome in outcomes for text in outcome.first) == lost
    assert all(outcome.ok for outcome in outcomes) != lost


def test_matrices_are_passed_one_by_one(gpu):
    suite = Batched(0, paths=["host"])
    numbers = [n for n in range(120) if suite.case("hgemm fp32", n).options["pointers"]][:6]
    outcomes = [suite.compare("hgemm fp32", number) for number in numbers]
    assert all(outcome.ok and outcome.counts["pointers"] for outcome in outcomes), [o.first for o in outcomes]


# --- memory
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_an_array_is_copied_between_nan(gpu, layout, lead):
    x = arrange(np.arange(np.prod(lead, dtype=int) * 20).reshape(*lead, 4, 5).astype(np.float32), layout)
    for offset in range(4):
        memory = Memory(x if x.base is None else x.base, offset)
        assert (codes(memory.view(x, memory.read())) == codes(x)).all()
        interface = memory.array(x, tensor=False).__cuda_array_interface__
        assert (interface["shape"], interface["strides"]) == (x.shape, x.strides)
        assert (interface["data"][0] - x.ctypes.data - 4 * offset) % 16 == 0
        assert (memory.read()[:64] == 0xFF).all()
        assert (memory.changed(), memory.changed(x)) == (0, 0)
        memory.buffer.memory[interface["data"][0] - memory.buffer.pointer] ^= 1
        assert (memory.changed(), memory.changed(x)) == (1, 0)
        memory.buffer.memory[-1] ^= 1
        assert (memory.changed(), memory.changed(x)) == (2, 1)


def test_operands_that_share_memory_share_their_copy(gpu):
    flat = np.arange(60, dtype=np.float32)
    A, B, alone = flat[:24].reshape(4, 6), flat[12:36].reshape(4, 6), np.ones((4, 6), np.float32)
    copies = Copies((A, B.T, alone), 1.0, None, tensor=False)
    pointers = [X.__cuda_array_interface__["data"][0] for X in copies.arrays]
    assert pointers[1] - pointers[0] == 12 * 4
    assert len(copies.memories) == 2
    assert copies.changed() == 0


def test_half_of_the_cases_are_aligned_and_every_address_occurs_in_the_others(gpu):
    found = []
    for number in range(160):
        gpu.addresses.clear()
        paths.run("eager", ones(number, 5))
        found.append({address % 16 for address in gpu.addresses})
    assert 60 < sum(places == {0} for places in found) < 100
    assert set.union(*found) == {0, 4, 8, 12}


# --- views and cases
def test_a_batch_that_is_assumed_to_be_contiguous_is_found(gpu):
    def contiguous(D, operands, out):
        A = operands[0]
        if hasattr(A, "memory") and len(A.__cuda_array_interface__["shape"]) > 2:
            fields = dict(A.__cuda_array_interface__)
            fields["strides"] = np.zeros(fields["shape"], fields["typestr"]).strides
            flat = type(A)(__cuda_array_interface__=fields)
            D = fpemu.gemm(view(flat), *map(view, operands[1:]), scheme="sgemm", beta=0.5, hardware="hopper")
        return D

    gpu.faults.append(contiguous)
    suite, group = Arguments(0, 1, paths=["eager"]), "gemm sgemm"
    bad = {suite.case(group, n).options["view"] for n in suite.groups[group].numbers if not suite.compare(group, n).ok}
    assert bad >= {"an expanded batch", "batch between rows and columns", "every other matrix", "gaps between matrices"}


def test_cases_are_functions_of_seed_group_and_number_and_are_replayed(gpu):
    suite = Arguments(7, 2, paths=["host"])
    assert {v.name for group in suite.groups for v in arguments.of(group)} == {v.name for v in arguments.VIEWS}
    record = Record("arguments", "", 7, {}, {}, "", {"architecture": "hopper"})
    for group in ("hgemm", "multiply fp32", "gemm ootomo"):
        assert suite.case(group, 1) == suite.case(group, 1)
        assert suite.case(group, 1).key != suite.case(group, 1 + len(arguments.of(group))).key
        outcome = suite.compare(group, 1)
        assert outcome.digests == {"1": suite.replay(record, Outcome(group, facts=outcome.facts), "1")}
    with pytest.raises(InputError, match="unknown group of products 'hgem': did you mean 'hgemm'"):
        suite.case("hgem", 0)


def test_every_scheme_is_multiplied_by_every_path_that_it_has(gpu, monkeypatch):
    monkeypatch.setattr(paths, "missing", lambda path: None)
    suite = Kernels(0)
    assert suite.paths == list(PATHS) == suite.options["paths"]
    for scheme in schemes.names():
        products = (suite.product(suite.case(scheme, number), "hopper") for number in range(9))
        used = {path for product in products for path in product.paths}
        assert used == ({"host", "eager", "torch"} if schemes.get(scheme).error_free else {*PATHS}), scheme
    named = TallSkinny(0, names=["V0", "multiply"])
    used = [named.product(named.case(f"{name} in fp32", 0), None).paths for name in ("V0", "multiply")]
    assert used == [("eager",), tuple(named.paths)]


def test_the_sizes_layouts_and_classes_of_tall_and_skinny_matrices():
    for fmt in tallskinny.FORMATS:
        products = [tallskinny.case(fmt, number, 0) for number in range(tallskinny.CASES)]
        for axis in range(3):
            assert {product.sizes[axis] for product in products} >= set(range(1, 131))
        assert {layout for product in products for layout in product.layouts} == set(tallskinny.LAYOUTS)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    for layout in tallskinny.LAYOUTS:
        matrix = tallskinny.arrange(x, layout)
        assert (matrix == x).all()
        aligned = max(matrix.strides) % 16 == 0
        assert ("padded" in layout) <= aligned <= ("odd" not in layout)


class Drawn(np.ndarray):
    """A tensor of the huge products, which are small here."""

    def uniform_(self, low, high, generator):
        self[...] = generator.uniform(low, high, self.shape)

    def fill_(self, value):
        self[...] = value
        return self

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


@pytest.mark.parametrize("fault", ["", "row", "memory"])
def test_some_rows_of_huge_products_are_compared(gpu, monkeypatch, fault):
    def empty(shape, dtype, device):
        if fault == "memory":
            raise MemoryError
        return np.zeros(shape, dtype).view(Drawn)

    def last_row(D, operands, out):
        return D + (np.arange(len(D)) == len(D) - 1)[:, None].astype(D.dtype)

    generator = SimpleNamespace(manual_seed=np.random.default_rng)
    torch = SimpleNamespace(Generator=lambda device: generator, OutOfMemoryError=MemoryError, empty=empty)
    torch.float32, torch.as_tensor = np.float32, lambda x, device: x
    monkeypatch.setattr(paths, "load_torch", lambda: torch)
    monkeypatch.setattr(tallskinny, "HUGE_SHAPES", ((70, 60, 2), (33, 40, 3), (280, 16, 2), (283, 17, 3)))
    for name in ("tsm2", "ism2"):
        monkeypatch.setattr(fpemu.gpu.tallskinny, name, gpu.tallskinny)
    gpu.faults += [last_row] if fault == "row" else []
    outcome = TallSkinny(3, huge=True, names=[]).run("huge in fp32")
    assert (outcome.cases, outcome.failed, outcome.ok) == (tallskinny.HUGE_CASES, 0, fault != "row")
    assert outcome.counts.get("too little memory", 0) == (outcome.cases if fault == "memory" else 0)
    assert outcome.mismatches == (sum(12 * n for _, _, n in tallskinny.HUGE_SHAPES) if fault == "row" else 0)


def test_paths_are_chosen_and_those_without_pytorch_are_listed(gpu, capsys):
    suite = Kernels(0)
    assert suite.paths == LOCAL == suite.options["paths"]
    assert suite.skipped == ["paths graph, torch: skipped, PyTorch is not installed"]
    assert Kernels(0, paths=["plan", "eager"]).paths == ["eager", "plan"]
    with pytest.raises(InputError, match="the package torch is not installed"):
        Kernels(0, paths=["graph"])
    for name, path, message in (
        ("kernels", ",", "unknown path ''"),
        ("kernels", "plann", "unknown path 'plann': did you mean 'plan'"),
        ("batched", "plan", "unknown path 'plan'"),
        ("tallskinny", "eagr", "unknown path 'eagr': did you mean 'eager'"),
    ):
        assert message in refusal(capsys, "verify", name, "--path", path)


def test_draws_cover_their_ranges():
    draw = Draw(1, "draws")
    assert {draw.between(2, 4) for _ in range(50)} == {2, 3, 4}
    assert sorted(draw.shuffled(9)) == list(range(9))


@pytest.mark.gpu
@pytest.mark.skipif(device.missing() is not None, reason=str(device.missing()))
def test_a_gpu_returns_the_emulators_bits_by_every_path():
    """Small products of some schemes, of batches, and of tall and skinny matrices."""
    chosen = ["staged", "legemm", "h2sgemm", "bf16x3", "sgemm", "staged-int8", "ozaki"]
    small = Kernels(5, 4, chosen, published=True), Batched(5, 3), TallSkinny(5, 8, names=["multiply"])
    for suite in (*small, Arguments(5, 1)):
        record = Run(suite).run_missing()
        assert record.ok, [outcome.first for outcome in record.outcomes if not outcome.ok]
        assert all(record.total(path) for path in suite.paths)
