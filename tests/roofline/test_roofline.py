"""Work and rooflines: counts against what the schemes run, times against arithmetic by hand, bounds as bounds."""

import itertools
import math

import numpy as np
import pytest

from fpemu import mma, schemes
from fpemu.errors import InputError
from fpemu.roofline import gpus
from fpemu.roofline.counting import Phase, Work
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.times import break_even, time, work
from fpemu.schemes import lowering
from fpemu.schemes.split_scheme import SplitScheme

SPLIT = [n for n in schemes.names() if isinstance(schemes.get(n), SplitScheme) and n != "staged-int8"]
GPUS = [name for name in gpus.names() if gpus.get(name).architecture]
VARIANTS = [
    *((name, {}) for name in SPLIT),
    ("ootomo", {"promote": 64, "step": 64}),
    ("ootomo", {"promote": 24, "step": 10}),
    ("h2sgemm", {"combine": "element-wise"}),
    ("h2sgemm", {"combine": "element-wise", "step": 40}),
    ("markidis", {"refine": "A", "step": 7}),
    ("multiword", {"words": 3, "promote": "3 instructions"}),
    ("staged", {"stage": 48, "accumulators": "each"}),
]


def able(scheme, gpu):
    """Whether a GPU has the instruction and the cores that a scheme needs."""
    try:
        time(work(scheme, gpu, 256, 256, 256), gpu)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("K", [1, 16, 40, 100, 1000])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_instructions_are_those_that_the_scheme_runs(monkeypatch, name, options, K):
    scheme = schemes.build(name, options)
    spec = scheme.spec("ampere")
    ran: list = []

    def chain(terms, start, spec, order=None, step=None, **_):
        if isinstance(terms[0][0], np.ndarray) and terms[0][0].ndim == 3:  # blocks of an element-wise scheme
            ran.extend([-(-terms[0][0].shape[-1] // spec.k)] * len(terms[0][0]))
            return np.zeros((len(terms[0][0]), 1, 1), np.float32)
        for piece in (order or mma.KOrder()).segments(K):
            for a, b in itertools.chain.from_iterable(piece):
                turns = range(a, b, step or b - a)
                ran.extend(-(-(min(t + (step or b), b) - t) // spec.k) for t in turns for _ in terms)
        return np.zeros((1, 1), np.float32)

    monkeypatch.setattr(lowering, "_chain", chain)
    A, B = scheme.split(np.zeros((1, K))), scheme.split(np.zeros((K, 1)))
    lowering.run(A, B, scheme.lowering(spec), spec)
    found = work(name, "ampere", 16, 8, K, **options)
    assert found.instructions == {spec.name: float(sum(ran))}
    assert found.operations == sum(ran) * 2 * 16 * 8 * spec.k


OPERATIONS = {
    "fp16": 1,
    "markidis": 4,
    "ootomo": 5,
    "legemm": 5,
    "h2sgemm": 5,
    "ape": 5,
    "egemm": 4,
    "ootomo-tf32": 4,
    "bf16x9": 9,
    "bf16x3": 5,
    "multiword": 5,
    "staged": 6,
}
"""Of one element: a rounding a word; before every word but the first widen, subtract, scale; staged scales its rows."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_split_takes_the_operations_written_down_here(name):
    first = work(name, "ampere", 32, 64, 128).phases[0]
    assert first.name == "split"
    assert first.vector == {"fp32": OPERATIONS[name] * (32 * 128 + 128 * 64)}
    assert first.read == 4 * (32 * 128 + 128 * 64)


def test_the_bytes_of_each_way_to_split():
    a, b, c = 512 * 2048, 2048 * 256, 512 * 256
    separate, fused, given = (work("ootomo", "A100", 512, 256, 2048, split=s) for s in ("kernel", "fused", "given"))
    assert separate.bytes == 4 * (a + b) + 2 * 2 * (a + b) * 2 + 4 * c
    assert fused.bytes == 4 * (a + b) + 4 * c
    assert given.bytes == 2 * 2 * (a + b) + 4 * c
    assert fused.resident == 4 * (a + b + c)
    assert separate.resident == fused.resident + 4 * (a + b)
    # tiles of 128 × 128: every element of A is split for 2 columns of tiles, of B for 4 rows
    assert fused.vector - given.vector == 5 * (2 * a + 4 * b)


def test_only_the_words_that_are_used_are_written():
    whole, half = (work("markidis", "A100", 64, 64, 64, refine=r) for r in ("both", "A"))
    assert (whole.words, half.words) == ((2, 2), (2, 1))
    assert whole.phases[0].written - half.phases[0].written == 2 * 64 * 64


def test_promotions_and_joins_are_counted_an_entry():
    def product(**options):
        return work("ootomo", "A100", 64, 64, 256, split="given", **options).vector / 64**2

    assert product() == 256 / 16 + 2
    assert product(promote=64) == 256 / 64 + 2
    assert product(promote=None) == 2
    assert work("ootomo", "A100", 64, 64, 256, split="given", combine_in="fp64").phases[0].vector == {
        "fp32": 16 * 64**2,
        "fp64": 2 * 64**2,
    }


@pytest.mark.parametrize("products", [None, ("hh",), ("hh", "hr")])
def test_strassen_s_algorithm_splits_the_words_that_its_products_use(products):
    options = {} if products is None else {"products": products}
    whole, one = (work("staged", "A100", n, n, n, levels=level, **options) for n, level in ((64, 1), (32, 0)))
    additions = 4 * 32 * 32 * 2  # of blocks of A and of B
    assert whole.phases[0].vector["fp32"] == 7 * one.phases[0].vector["fp32"] + additions
    assert whole.phases[0].written == 7 * one.phases[0].written == whole.phases[1].read
    assert whole.resident == 4 * 64 * 64 * 3 + 7 * (one.phases[0].written + 4 * 32 * 32)


def test_accumulators_of_one_band_are_added_without_a_scale():
    def product(scheme, **options):
        return work(scheme, "A100", 64, 64, 256, split="given", **options).vector / 64**2

    assert product("h2sgemm") == 2 + 1  # rh + hr, / 2^12 + hh
    assert product("markidis", accumulators="each") == 3
    assert product("multiword", words=3, promote=None, accumulators="each") == 5 + 2


def test_promotions_of_separate_calls_are_counted():
    plain, promoted = (work("ape", "A100", 64, 32, 256, promote=p) for p in (None, 64))
    assert promoted.vector - plain.vector == 256 / 64 * 64 * 32


@pytest.mark.parametrize(("K", "exact"), [(130, [4, 1]), (80, [4]), (256, [4, 4]), (16, [1])])
def test_the_products_of_int8_corrections_are_counted_stage_by_stage(K, exact):
    found = work("staged-int8", "A100", 16, 8, K, stage=64, exact=2, split="given")
    blocks = math.ceil(K / 16)
    assert list(found.instructions.values()) == [blocks + 2 * sum(exact)]
    assert found.phases[0].products.get("int8", 0) == 2 * (blocks - sum(exact)) * 2 * 16 * 8 * 16


def test_library_calls_add_to_c_in_memory():
    found = work("ape", "A100", 64, 32, 128)
    assert [phase.name for phase in found.phases] == ["split", "product hh", "product rh", "product hr"]
    assert found.phases[1].read == 2 * (64 * 128 + 128 * 32)
    assert found.phases[2].read == found.phases[1].read + 4 * 64 * 32
    assert sum(phase.products["fp16"] for phase in found.phases[1:]) == 3 * found.nominal


def test_padding_counts_and_the_two_may_change_roles():
    assert work("fp16", "H200", 64, 8, 16).operations == 2 * 64 * 8 * 16
    assert work("fp16", "H200", 8, 64, 16).operations == 2 * 64 * 8 * 16
    assert work("fp16", "H200", 65, 8, 16).operations == 2 * 128 * 8 * 16
    assert work("fp16", "H200", 72, 40, 16).operations == 2 * 64 * 72 * 16
    assert work("fp16", "A100", 1, 1, 1).operations == 2 * 16 * 8 * 16


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ozaki", {"slices": 4}),
        ("ozaki", {"slices": 3, "fast": False}),
        ("ozimmu", {"slices": 5}),
        ("ozaki2", {}),
        ("ozaki2", {"moduli": 7, "scaling": "fast"}),
    ],
)
def test_products_of_the_ozaki_family_are_those_of_its_report(name, options):
    A, B = (np.random.default_rng(0).random(s) - 0.5 for s in ((8, 96), (96, 8)))
    report = schemes.certify(A, B, scheme=name, hardware="A100", **options).report
    found = work(name, "A100", 64, 64, 96, **options)
    assert found.products == report.products
    assert report.slices in (None, found.words)
    spec = schemes.build(name, options).spec("A100")
    assert found.instructions[spec.name] == report.products * math.ceil(96 / spec.k) * (64 // 16) * (64 // 8)


def test_dgemm_tc_has_the_66_products_that_the_paper_counts():
    found = work("ozaki", "Titan RTX", 7168, 7168, 7168)
    assert (found.words, found.products) == ((11, 11), 66)


def test_ozimmu_counts_the_slices_of_nominal_operands():
    found = work("ozimmu", "A100", 64, 64, 96)
    assert (found.words, found.products) == ((10, 9), 54)  # p + q <= 11, of the last slice of B all entries are zero


def test_cr_mode_keeps_all_products():
    found = work("ozaki", "A100", 64, 64, 64, mode="CR")
    assert found.products == found.words[0] * found.words[1]
    assert found.resident >= 4 * 64 * 64 * found.products


def test_every_k_block_is_padded_to_whole_instructions():
    found = work("ozaki", "A100", 16, 8, 100, slices=1, k_block=40)
    assert list(found.instructions.values()) == [3 + 3 + 2]  # 40, 40 and 20 in instructions of 16


def test_sums_by_group_write_less():
    each, group = (work("ozimmu", "A100", 256, 256, 256, slices=6, sums=s) for s in ("each", "group"))
    assert (each.products, group.products) == (21, 21)
    written = 4 * 256 * 256
    assert each.phases[1].written == 21 * written
    assert group.phases[1].written == 6 * written


def test_the_time_on_a_v100_by_hand():
    n, gpu = 4096, gpus.get("V100")
    found = time(work("markidis", "V100", n, n, n), gpu)
    split, product = found.spans
    assert split.memory == (4 * 2 * n * n + 2 * 2 * 2 * n * n) / 900e9
    assert split.vector == 4 * 2 * n * n / (14.13e12 / 2)
    assert product.matrix == 4 * 2 * n**3 / 113.05e12
    assert product.memory == (2 * 2 * 2 * n * n + 4 * n * n) / 900e9
    assert (split.bound, product.bound, found.bound) == ("memory", "matrix", "matrix")
    assert found.seconds == split.memory + product.matrix
    assert found.flops == 2 * n**3 / found.seconds
    assert found.share == product.matrix / found.seconds
    assert found.intensity == 4 * 2 * n**3 / (28 * n * n)


def test_native_products_run_on_the_faster_unit():
    for gpu, scheme, unit in (
        ("V100", "dgemm", "fp64"),
        ("A100", "dgemm", "fp64 matrix"),
        ("H200", "sgemm", "fp32"),
        ("MI210", "sgemm", "fp32 matrix"),
        ("P100", "sgemm", "fp32"),
    ):
        found = time(work(scheme, gpu, 8192, 8192, 8192), gpu)
        assert math.isclose(found.flops, gpus.get(gpu).peak[unit])


@pytest.mark.parametrize("gpu", GPUS)
def test_no_scheme_is_above_its_unit_by_its_products_and_large_ones_come_near(gpu):
    device, met = gpus.get(gpu), 0
    for name in ("fp16", "legemm", "h2sgemm", "markidis", "bf16x6", "ozaki2"):
        if able(name, gpu):
            job = work(name, gpu, 2**15, 2**15, 2**15)
            unit = {"bf16x6": "bf16 matrix", "ozaki2": "int8 matrix"}.get(name, "fp16 matrix")
            top = device.need(unit) / job.products
            assert 0.4 * top < time(job, gpu).flops <= top * (1 + 1e-12)
            met += 1
    assert met >= 4


LAWS = [
    ("sgemm", {}),
    ("ootomo", {}),
    ("ootomo", {"split": "fused"}),
    ("ape", {}),
    ("staged", {"split": "given"}),
    ("markidis", {"refine": "A"}),
    ("bf16x9", {}),
    ("ozaki", {"slices": 6}),
    ("ozaki", {"slices": 4, "fast": False}),
    ("ozimmu", {"slices": 5, "sums": "group"}),
    ("ozaki2", {}),
    ("ozaki2", {"precision": "fp32"}),
]


@pytest.mark.parametrize(("scheme", "options"), LAWS)
def test_no_time_is_below_that_of_the_products_or_of_the_bytes_alone(scheme, options):
    for n in (16, 128, 1024, 8192):
        job = work(scheme, "A100", n, n, n, **options)
        found, gpu = time(job, "A100"), gpus.get("A100")
        products = sum(
            ops / max(gpu.peak.get(unit, 0.0), gpu.peak.get(f"{unit} matrix", 0.0))
            for phase in job.phases
            for unit, ops in phase.products.items()
        )
        assert found.seconds >= products * (1 - 1e-12)
        assert found.seconds >= job.bytes / gpu.bandwidth * (1 - 1e-12)
        assert 0 <= found.share <= 1 + 1e-12


def test_shares_of_the_peaks_scale_their_own_part():
    phase = Phase(name="p", products={"fp32": 8.0}, vector={"fp32": 2.0}, read=1.0)
    job = Work(
        scheme="x",
        operand="fp32",
        architecture=None,
        shape=(1, 1, 1),
        phases=(phase,),
        instructions={},
        products=1,
        words=(1, 1),
        resident=0.0,
    )
    gpu = Gpu(name="g", source="s", peak={"fp32": 2e9}, bandwidth=0.5e9)
    (span,) = time(job, gpu).spans
    assert (span.matrix, span.vector, span.memory) == (4e-9, 2e-9, 2e-9)
    (span,) = time(job, gpu, efficiency=0.5, vector_efficiency=0.25, memory_efficiency=0.1).spans
    assert (span.matrix, span.vector, span.memory) == (8e-9, 8e-9, 20e-9)
    assert span.bound == "memory"


@pytest.mark.parametrize(("scheme", "gpu"), [("ootomo", "A100"), ("markidis", "MI300X"), ("ozaki2", "H200")])
def test_break_even_is_where_the_scheme_becomes_faster(scheme, gpu):
    found = break_even(scheme, gpu)
    native = {"fp32": "sgemm", "fp64": "dgemm"}[schemes.get(scheme).operand.name]

    def faster(n):
        return time(work(scheme, gpu, n, n, n), gpu).seconds < time(work(native, gpu, n, n, n), gpu).seconds

    assert found.n % 64 == 0
    assert faster(found.n)
    tried = sorted({64 * round(2 ** (i / 8)) for i in range(200)})
    assert not faster(tried[tried.index(found.n) - 1])
    assert all(faster(n) for n in (2 * found.n, 4 * found.n, found.largest))


def test_a_fused_split_pays_earlier_and_a_slow_baseline_too():
    plain = break_even("ootomo", "MI300X").n
    assert break_even("ootomo", "MI300X", split="fused").n < plain
    assert break_even("ootomo", "MI300X", baseline_efficiency=0.5).n < plain
    assert break_even("ootomo", "MI300X", efficiency=0.5).n > plain


def test_shapes_by_name_and_by_sides_agree():
    assert break_even("ootomo", "A100", shape="rank-64") == break_even("ootomo", "A100", shape=("n", "n", 64))
    assert break_even("ootomo", "A100", shape=("n", 1, "n")).n is None


def test_an_instruction_without_a_shape_counts_as_16_by_16():
    spec = mma.MmaSpec("fp16", "fp16", "fp32", k=8, block=8, F=24, E0=-132)
    assert work("fp16", spec, 17, 16, 8).instructions == {"custom": 2.0}
    assert time(work("fp16", spec, 17, 16, 8), "A100").flops > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: work("otomo", "A100", 8, 8, 8), "did you mean 'ootomo'"),
        (lambda: work("ootomo", "A1001", 8, 8, 8), "unknown GPU 'A1001'"),
        (lambda: work("ootomo", "P100", 8, 8, 8), "P100 has no matrix instruction"),
        (lambda: work("ootomo", None, 8, 8, 8), "give hardware="),
        (lambda: work("ootomo", "A100", 8, 0, 8), "N = 0 must be a positive integer"),
        (lambda: work("ootomo", "A100", 8, 8, 1.5), r"K = 1\.5 must be a positive integer"),
        (lambda: work("ootomo", "A100", 8, 8, 8, split="fuse"), "did you mean 'fused'"),
        (lambda: work("ootomo", "A100", 8, 8, 8, tile=(8,)), r"tile = \(8,\) must be 2 positive integers"),
        (lambda: work("ape", "A100", 8, 8, 8, split="fused"), "cannot be fused"),
        (lambda: work("ozaki", "A100", 8, 8, 8, split="fused"), "cannot be fused"),
        (lambda: work("sgemm", "A1001", 8, 8, 8), "unknown GPU 'A1001'"),
        (lambda: work("ozimmu", "H200", 8, 8, 2**27), "not drawn for K = 134217728, above 67108864: give"),
        (lambda: work("ozimmu", "H200", 8, 8, 2**33, slices=8), "K = 8589934592 leaves no bit a slice"),
        (lambda: work("ozaki", "H200", 8, 8, 2**29, slices=8), "0 bits a slice .* give a smaller k_block"),
        (lambda: time(work("ootomo", "A100", 8, 8, 8), "H200"), "counted for ampere, but H200 is hopper"),
        (lambda: time(work("ootomo", "A100", 8, 8, 8), "A100", efficiency=0), "efficiency = 0 must be a number"),
        (lambda: time(work("sgemm", None, 8, 8, 8), "A100", memory_efficiency=1.5), "memory_efficiency = 1.5 must be"),
        (lambda: time(work("dgemm", None, 8, 8, 8), "Ascend 910A"), "needs peak 'fp64'"),
        (lambda: break_even("ootomo", "A100", "dgemm"), "compare it with sgemm"),
        (lambda: break_even("ootomo", "A100", "hgemm"), "unknown against 'hgemm'"),
        (lambda: break_even("ootomo", "A100", shape="squares"), "did you mean 'square'"),
        (lambda: break_even("ootomo", "A100", shape=(8, 8, 8)), "'n' for the size that grows"),
        (lambda: break_even("ootomo", "A100", largest=10), "largest = 10 must be"),
        (lambda: work("ootomo", "A100", 10**400, 8, 8), r"M = 10000.* below 2\^63"),
        (lambda: work("ootomo", "A100", True, 8, 8), "M = True must be a positive integer"),
        (lambda: work("bf16x3", "V100", 8, 8, 8), "bf16"),
        (
            lambda: time(
                work("ootomo", "A100", 8, 8, 8),
                Gpu(name="mine", source="s", architecture="ampere", peak={"fp32": 1e13}, bandwidth=1e12),
            ),
            "mine: the roofline needs peak 'fp16 matrix'",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
