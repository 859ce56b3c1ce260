"""Operands of cells: on the GPU, with this processor in its place, the bits of the CPU; and matrices of files."""

from __future__ import annotations

import numpy as np
import pytest

import fpemu
from benchmarks import sweep
from fpemu import inputs
from fpemu.errors import InputError
from fpemu.gpu.emulation import cells
from fpemu.gpu.errorfree import gemm as errorfree
from fpemu.gpu.errorfree import residues
from fpemu.gpu.runtime import device as runtime
from fpemu.gpu.runtime.plan import queue
from fpemu.metrics import analysis
from fpemu.sweep import Grid, grid, operands
from tests import processor
from tests.gpu_fixtures import needs_gpu

base = processor.work


@pytest.fixture
def work(base, monkeypatch):
    """The simulated GPU."""
    monkeypatch.setattr(residues, "moduli_for", lambda bits: None)  # slices only: fewer kernels to compile
    processed = base.queue  # blocks of one thread; the kernel of emulated products has a function for processors
    base.queue = lambda step: (queue if getattr(step, "kernel", "") == "gemm" else processed)(step)
    monkeypatch.setattr(errorfree, "workspace", lambda: base)
    monkeypatch.setattr(cells, "_work", lambda: base)
    monkeypatch.setattr(runtime, "missing", lambda: None)
    monkeypatch.setattr(cells, "multiprocessors", lambda: 1)
    for cached in (operands.drawn, operands.exact_product, operands.resident):
        cached.cache_clear()
    yield base
    operands.resident.cache_clear()


DISTRIBUTIONS = [
    {"name": "uniform", "low": -0.3, "high": 0.7},
    "tsm2",
    {"name": "offset_symmetric", "exponent": [-12, 5]},
    {"name": "offset_nonnegative", "exponent": 3},
    "positive",
    "normal",
    {"name": "uniform", "scale": 3.0},
]


def test_the_gpu_draws_the_operands_of_the_cpu(work):
    drawn = Grid(inputs=DISTRIBUTIONS, schemes=["sgemm"], M=3, N=5, K=7).cells()
    forms = []
    for cell in drawn:
        parameters = grid.part(cell, "inputs")
        forms.append(operands.affine(cell["inputs"], parameters))
        if forms[-1] is not None:
            A, B = inputs.operands(cell["inputs"], 3, 5, 7, 2**40 + 1, **parameters)
            for i, X in enumerate((A, B)):
                seed = np.random.SeedSequence([2**40 + 1], spawn_key=(i,))
                assert np.array_equal(cells.uniform(seed, X.size, *forms[-1]).array(X.shape, X.dtype), X)
    assert [form is None for form in forms] == [False] * 6 + [True] * 2


SCHEMES = [
    {"name": "h2sgemm", "sb": [0, 12]},  # sb = 0: subnormal residuals
    {"name": "h2sgemm", "combine_in": "fp64", "promote": 16},
    *("ootomo", "ootomo-tf32", "markidis", "bf16x9", "egemm", "ape", "legemm", "multiword", "fp16"),
    *({"name": "h2sgemm", "combine": "element-wise"}, "staged", "sgemm", "dgemm"),  # on the GPU by `fpemu.gemm`
]


@pytest.fixture
def products(monkeypatch):
    """The schemes of the products that stay on the GPU."""
    names, product = set(), operands.Resident.product

    def recorded(self, scheme, *arguments):
        D = product(self, scheme, *arguments)
        names.update([scheme.name] if D is not None else [])
        return D

    monkeypatch.setattr(operands.Resident, "product", recorded)
    return names


@pytest.mark.parametrize("distribution", [{"name": "offset_symmetric", "exponent": 12}, "normal", "wide", "all_bits"])
def test_relative_l2_is_that_of_the_cpu(work, products, distribution):
    """Every scheme, with products on the GPU and without: overflows, subnormals and irregular results too."""
    checked = Grid(
        inputs=[distribution], schemes=SCHEMES, hardware=["A100"], M=9, N=10, K=70, on_range=["propagate", "scale"]
    )
    for cell in checked.cells():
        assert grid.evaluate(cell, "cuda") == grid.evaluate(cell, "cpu"), cell
    assert products == {
        "h2sgemm",
        "ootomo",
        "ootomo-tf32",
        "markidis",
        "bf16x9",
        "egemm",
        "ape",
        "legemm",
        "multiword",
        "fp16",
    }


@pytest.mark.parametrize(
    ("order", "policy", "metrics", "stays"),
    [
        ({"promote": 32}, "raise", ["relative_l2", "max_relative", "normwise", "max_ulps"], True),
        ({"tile": 32}, "hardware", ["relative_l2"], True),
        ({"split": 32}, "propagate", ["relative_l2"], False),
        ({}, "scale-rows", ["relative_l2"], False),
    ],
)
def test_orders_policies_and_metrics_have_the_numbers_of_the_cpu(work, products, order, policy, metrics, stays):
    checked = Grid(
        inputs=["tsm2"],
        schemes=["ootomo" if "promote" not in order else "h2sgemm"],
        hardware=["H200"],
        orders=[order],
        metrics=metrics,
        on_range=policy,
        out=["fp64", "fp16"],
        M=65,
        N=3,
        K=100,
    )
    for cell in checked.cells():
        assert grid.evaluate(cell, "cuda") == grid.evaluate(cell, "cpu"), cell
    assert bool(products) == stays


def test_a_cell_without_defaults_has_its_operands_on_the_gpu(work):
    short = {"M": 8, "N": 8, "K": 32, "seed": 0, "inputs": "uniform", "scheme": "sgemm", "hardware": None}
    short |= {"on_range": "raise", "out": "fp64", "metrics": ["relative_l2"]}
    assert grid.evaluate(short, "cuda") == grid.evaluate(short, "cpu")


def test_words_that_overflow_are_the_error_of_the_cpu(work):
    (cell,) = Grid(
        inputs=[{"name": "offset_symmetric", "exponent": 17}], schemes=["h2sgemm"], hardware="A100", M=4, N=4, K=16
    ).cells()
    with pytest.raises(InputError, match="overflows") as on_cpu:
        grid.evaluate(cell, "cpu")
    with pytest.raises(InputError) as on_gpu:
        grid.evaluate(cell, "cuda")
    assert str(on_gpu.value) == str(on_cpu.value)


def test_norms_are_rounded_once_and_irregular_entries_are_left_to_the_cpu(work):
    rng = np.random.default_rng(0)
    R = np.ldexp(rng.standard_normal(500), rng.integers(-300, 300, 500).astype(np.int32))
    R[:3] = 0.0
    for dtype in (np.float64, np.float32):
        C = R * (1 + 1e-7 * rng.standard_normal(500))
        C = np.where(np.abs(np.log2(np.abs(C) + 1e-300)) < 120, C, 0).astype(dtype)
        norms = cells.norms(cells.Buffer.of(C), dtype, cells.Buffer.of(R), R.size)
        d, e = analysis.difference(C.astype(np.float64), R, C == R)
        assert norms == (analysis.norm(d, e), analysis.norm(*analysis.parts(R)))
    for odd in (np.nan, np.inf, 2.0**500, 2.0**-500):
        for pair in ((R, np.where(np.arange(500) == 7, odd, R)), (np.where(np.arange(500) == 7, odd, R), R)):
            C, S = map(cells.Buffer.of, pair)
            assert cells.norms(C, np.float64, S, 500) is None


# --- files
def test_a_pair_of_files_is_one_set_of_operands(tmp_path, monkeypatch):
    mmwrite = pytest.importorskip("scipy.io").mmwrite
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((3, 40)), rng.standard_normal((40, 5)).astype(np.float32)
    np.save("A.npy", A)
    mmwrite("B.mtx", B.astype(np.float64), precision=17)
    given = Grid(
        inputs=[{"files": ["A.npy", "B.mtx"]}, "uniform"], schemes=["sgemm", "h2sgemm"], hardware="A100", M=8, seeds=2
    )
    of_files = [cell for cell in given.cells() if cell["inputs"] == "files"]
    assert [(cell["M"], cell["N"], cell["K"], cell["seed"]) for cell in of_files] == [(3, 5, 40, 0)] * 2
    rounded = A.astype(np.float32)
    D, exact = fpemu.gemm(rounded, B, scheme="sgemm"), fpemu.reference.matmul(rounded, B)
    assert grid.evaluate(of_files[0])["relative_l2"] == fpemu.metrics.relative_l2(D, exact) > 0
    np.save("A.npy", 2 * A)
    operands.drawn.cache_clear()
    operands.exact_product.cache_clear()
    with pytest.raises(InputError, match=r"A\.npy or B\.mtx has changed since the grid was made"):
        grid.evaluate(of_files[0])
    with_other = Grid(inputs={"files": ["A.npy", "B.mtx"]}, schemes=["sgemm"])
    assert with_other.cells()[0]["inputs.sha256"] != of_files[0]["inputs.sha256"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["A.npy"], "must be files = "),
        ("A.npy", "must be files = "),
        (["A.npy", "missing.npy"], "missing.npy is not a readable .npy or .mtx file"),
        (["A.npy", "text.mtx"], "text.mtx is not a readable .npy or .mtx file"),
        (["A.npy", "A.npy"], r"have shapes \(2, 3\) and \(2, 3\)"),
    ],
)
def test_what_a_pair_of_files_refuses(tmp_path, monkeypatch, files, message):
    monkeypatch.chdir(tmp_path)
    np.save("A.npy", np.ones((2, 3)))
    (tmp_path / "text.mtx").write_text("no matrix")
    with pytest.raises(InputError, match=message):
        Grid(inputs=[{"files": files}], schemes=["sgemm"])


def test_a_relative_file_of_a_distribution_is_that_of_the_working_directory(tmp_path, monkeypatch):
    values = []
    for folder, value in (("one", 1.0), ("two", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(
            f"import numpy as np\ndef f(rng, shape): return np.full(shape, {value})"
        )
        monkeypatch.chdir(tmp_path / folder)
        values.append(float(inputs.make("own.py:f", 1, 0)[0]))
    assert values == [1.0, 2.0]


@needs_gpu
def test_a_gpu_has_the_recorded_numbers():
    checked = [
        cell for cell in sweep.cells(1024, 1024, 4096, 2) if f"{cell['seed']} {cell['scheme.sb']}" in sweep.LARGE
    ]
    assert len(checked) == len(sweep.LARGE)
    for cell in checked:
        recorded = sweep.LARGE[f"{cell['seed']} {cell['scheme.sb']}"]
        assert grid.evaluate(cell, "cuda")["relative_l2"].hex() == recorded


@needs_gpu
@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:5])
def test_a_gpu_has_the_numbers_of_the_cpu(distribution):
    checked = Grid(inputs=[distribution], schemes=SCHEMES, hardware=["A100"], M=130, N=97, K=300, on_range="propagate")
    for cell in checked.cells():
        assert grid.evaluate(cell, "cuda") == grid.evaluate(cell, "cpu"), cell
