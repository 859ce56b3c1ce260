"""The device of a product: the choice of "auto", its way to every worker, and equal bits and keys on all devices."""

from __future__ import annotations

import time

import numpy as np
import pytest

import fpemu
from fpemu import InputError, _system, metrics, mma, reference
from fpemu.cli import main
from fpemu.gpu.emulation import chains
from fpemu.gpu.runtime import device as gpu
from fpemu.gpu.runtime.device import GpuError, missing
from fpemu.mma import device as devices
from fpemu.reproduce import pages
from fpemu.sweep import Store, grid, run
from tests import toy
from tests.commands import refusal

PAGE = """
import multiprocessing
from fpemu.gpu.runtime import device as gpu
from fpemu.mma import device as devices

PAPER, CAPTION, ASSUMPTIONS = "a paper", "a caption", []
if {where}:
    gpu.missing = lambda: None

def cells(size):
    return [{{"seed": seed}} for seed in range(3)]

def evaluate(cell, device):
    return {{"cuda": float(devices.implementation(device, "compiled") == "cuda"), "auto": float(device == "auto")}}

def draw(rows):
    raise AssertionError("these tests draw nothing")
"""
HERE, EVERYWHERE, NOWHERE = "multiprocessing.parent_process() is None", "True", "False"


@pytest.fixture
def launches(monkeypatch):
    """Launches on a GPU that does not exist: listed, and computed on the CPU."""
    calls = []

    def launch(x, spec):
        calls.append((spec.name, x.A.shape, x.B.shape))
        return spec.rules.chain(x, spec)

    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(chains, "chain", launch)
    return calls


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: "no GPU is here")


def test_auto_is_the_gpu_if_there_is_one(monkeypatch):
    for device, implementation, reason in (("cuda", "cuda", None), ("cpu", "compiled", "no GPU is here")):
        monkeypatch.setattr(gpu, "missing", lambda reason=reason: reason)
        assert devices.resolve("auto") == device
        assert devices.resolve("cpu") == "cpu"
        assert devices.implementation("auto", "compiled") == implementation
        assert devices.implementation("auto", "numpy") == "numpy"
        assert devices.implementation("cpu", "compiled") == "compiled"


def test_unusable_devices_are_errors_of_one_line(no_gpu):
    A = np.ones((2, 2), np.float16)
    calls = (
        devices.resolve,
        lambda device: mma.gemm(A, A, spec=mma.spec("A100"), device=device),
        lambda device: fpemu.gemm(A, A, scheme="fp16", hardware="A100", device=device),
        lambda device: fpemu.gemm(A, A, scheme="fp16", hardware="A100", device=device, alpha=0),
        lambda device: fpemu.certify(A, A, scheme="ozaki", hardware="A100", device=device),
        lambda device: fpemu.simt.gemm(A, A, device=device),
        lambda device: fpemu.simt.tsm2(A, A, device=device),
        lambda device: fpemu.batched.hgemm(A, A, hardware="A100", device=device),
    )
    for call in calls:
        with pytest.raises(InputError, match=r"^device = 'cuda': no GPU is here$"):
            call("cuda")
        with pytest.raises(InputError, match="'cudaa': did you mean 'cuda'"):
            call("cudaa")
    with pytest.raises(InputError, match="'cudaa': did you mean 'cuda'"):
        reference.matmul(A, A, device="cudaa")


def test_the_numpy_reference_implementation_has_no_device(launches):
    A = np.ones((2, 2), np.float16)
    with pytest.raises(InputError, match="'numpy' runs on the CPU only"):
        mma.gemm(A, A, spec=mma.spec("A100"), backend="numpy", device="cuda")
    assert fpemu.gemm(A, A, scheme="ozaki", hardware="A100", carrier="numpy", device="cuda")[0, 0] == 2
    assert not launches


def test_auto_sends_large_products_only_and_cuda_all_with_the_same_bits(launches, monkeypatch):
    monkeypatch.setattr(chains, "_LEAST_PRODUCTS", 2**17)
    spec, rng = mma.spec("ampere"), np.random.default_rng(1)
    large = rng.standard_normal((70, 70)).astype(np.float16)
    narrow = rng.standard_normal((10, 2000)).astype(np.float16)
    for A, sent in ((large, True), (large[:20, :20], False), (large[:, :16], False), (narrow, False)):
        want = mma.gemm(A, A.T, spec=spec)
        assert not launches
        assert mma.gemm(A, A.T, spec=spec, device="auto").tobytes() == want.tobytes()
        assert bool(launches) == sent, A.shape
        assert mma.gemm(A, A.T, spec=spec, device="cuda").tobytes() == want.tobytes()
        assert len(launches) == 1 + sent
        launches.clear()


def test_auto_sends_less_where_processes_share_the_gpu(launches, monkeypatch):
    spec, A = mma.spec("ampere"), np.ones((70, 70), np.float16)
    for processes, least, sent in (("", 2**18, True), ("1", 2**18, True), ("4", 2**18, False), ("4", 2**13, True)):
        monkeypatch.setenv("FPEMU_PROCESSES", processes)
        monkeypatch.setattr(chains, "_LEAST_PRODUCTS", least)
        monkeypatch.setattr(chains, "_LEAST_ENTRIES_BLAS", 1)
        monkeypatch.setattr(chains, "_LEAST_PRODUCTS_BLAS", least)
        mma.gemm(A, A, spec=spec, device="auto")
        assert bool(launches) == sent == chains.matmul_gains(A, A), (processes, least)
        launches.clear()
        mma.gemm(A, A, spec=spec, device="cuda")
        assert launches
        launches.clear()


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_exact_products_run_where_it_pays_and_are_the_same(device, launches, monkeypatch):
    rng = np.random.default_rng(2)
    A, B = (np.ldexp(rng.standard_normal(shape), rng.integers(-20, 20, shape)) for shape in ((2, 40, 60), (2, 60, 50)))
    want = reference.matmul(A, B)
    certified = fpemu.certify(A[0], B[0], scheme="ozaki", hardware="turing", mode="CR")
    assert reference.matmul(A, B, device=device).tobytes() == want.tobytes()
    assert not launches  # too small
    for limit in ("_LEAST_ENTRIES_BLAS", "_LEAST_PRODUCTS_BLAS", "_LEAST_ENTRIES", "_LEAST_PRODUCTS"):
        monkeypatch.setattr(chains, limit, 1000 if limit.endswith("BLAS") else 1)
    assert reference.matmul(A, B, device=device).tobytes() == want.tobytes()
    assert reference.matmul(A, B, alpha=3, device=device).tobytes() == reference.matmul(A, B, alpha=3).tobytes()
    sent = len(launches)
    assert sent >= 18
    again = fpemu.certify(A[0], B[0], scheme="ozaki", hardware="turing", mode="CR", device=device)
    assert len(launches) > sent
    assert {spec for spec, *_ in launches} == {"simt fp64"}
    assert again.D.tobytes() == certified.D.tobytes() == want[0].tobytes()
    assert again.report == certified.report


@pytest.mark.parametrize(("dtype", "digit", "K"), [(np.float64, 2**20 - 1, 8192), (np.float32, 127, 1024)])
def test_the_largest_sums_are_exact_in_chains_of_fused_multiply_adds(dtype, digit, K, launches):
    rng = np.random.default_rng(3)
    X, Y = rng.choice([-digit, digit, digit - 1], (3, 7, K)).astype(dtype), np.full((3, K, 5), digit, dtype)
    X[:, 0] = digit
    exact = (X.astype(np.int64) @ Y.astype(np.int64)).astype(dtype)
    got = chains.matmul(X, Y)
    assert launches
    assert got.dtype == dtype
    assert got.tobytes() == np.matmul(X, Y).tobytes() == exact.tobytes()
    assert chains.matmul(X[:, :0], Y).shape == (3, 0, 5)
    assert not chains.matmul(X[..., :0], Y[:, :0]).any()


def test_several_threads_compute_what_one_computes(monkeypatch):
    rng = np.random.default_rng(4)
    A = np.ldexp(rng.standard_normal((300, 40)), rng.integers(-30, 30, (300, 1)))
    B = rng.standard_normal((40, 400))
    C, results = (A @ B).astype(np.float32), []
    for threads in ("1", "3"):
        monkeypatch.setenv("FPEMU_THREADS", threads)
        R = reference.matmul(A, B)
        errors = [metrics.relative(C, R), metrics.symmetric(C, R), np.array(metrics.relative_l2(C, R))]
        results.append([x.tobytes() for x in (R, fpemu.round_to(R.T, "bf16", "RU"), *errors)])
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            _system.map_chunks(lambda x: x * 1e308, R * 1e10)
    assert results[0] == results[1]
    assert results[0][1] == np.concatenate([fpemu.round_to(row, "bf16", "RU") for row in R.T]).tobytes()
    assert _system.map_threads(lambda x: x * x, range(5)) == [0, 1, 4, 9, 16]
    monkeypatch.setenv("FPEMU_THREADS", "none")
    with pytest.raises(InputError, match="FPEMU_THREADS = 'none' must be a positive integer"):
        _system.threads()


def test_threads_start_no_further_call_after_an_error(monkeypatch):
    monkeypatch.setenv("FPEMU_THREADS", "2")
    called = []

    def call(index):
        called.append(index)
        if index == 0:
            raise KeyboardInterrupt
        time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        _system.map_threads(call, range(100))
    assert len(called) < 50


def page(tmp_path, where):
    toy.write_page(tmp_path, "paper/figure", PAGE.format(where=where) + toy.PAGE.format(""))
    return pages.load("paper/figure", tmp_path)


@pytest.fixture
def restored(monkeypatch):
    """Restore the function that a page replaces; no driver counts the GPUs."""
    monkeypatch.setattr(gpu, "missing", gpu.missing)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


SEEN = {"cpu": (0.0, 0.0), "auto": (1.0, 1.0), "cuda": (1.0, 0.0)}


@pytest.mark.parametrize(("jobs", "chosen"), [(1, ["cpu", "auto", "cuda"]), (2, ["auto"])])
def test_every_process_takes_the_device_of_the_run_and_keys_do_not_hold_it(jobs, chosen, tmp_path, restored):
    experiment, keys = page(tmp_path, EVERYWHERE), []
    with Store(tmp_path / "results.sqlite") as results:
        for device in chosen:
            done: set[str] = set()
            rows = run(experiment, results=results, jobs=jobs, device=device, fresh=True, done=done)
            assert {(row["cuda"], row["auto"]) for row in rows} == {SEEN[device]}
            assert run(experiment, results=results, jobs=jobs, device="cpu") == rows  # stored, whatever the device
            keys.append(done)
    assert all(key == keys[0] for key in keys)


@pytest.mark.skipif(missing() is None, reason="there is a GPU here")
def test_a_worker_without_a_gpu_does_not_take_part_in_cuda(tmp_path, restored):
    experiment = page(tmp_path, HERE)
    with (
        Store(tmp_path / "results.sqlite") as results,
        pytest.raises(InputError, match="a worker cannot evaluate the cells: device = 'cuda': "),
    ):
        run(experiment, results=results, jobs=2, device="cuda")


def test_a_run_refuses_a_device_that_is_not_here_before_it_begins(tmp_path, no_gpu):
    experiment = page(tmp_path, NOWHERE)
    with Store(tmp_path / "results.sqlite") as results:
        for device, message in (("cuda", "no GPU is here"), ("gpu", "known: auto, cpu, cuda")):
            with pytest.raises(InputError, match=message):
                run(experiment, results=results, device=device)
        assert [row["cuda"] for row in run(experiment, results=results, device="auto")] == [0.0] * 3


GRID = """
title = "t"
inputs = [{name = "uniform"}]
schemes = ["fp16"]
hardware = "A100"
M = 4
N = 4
K = [64, 160]
metrics = ["relative_l2"]
"""
COMMANDS = [
    ["reproduce", "magma/fig17"],
    ["sweep", "grid.toml"],
    ["sweep", "scaling", "-H", "A100"],
    ["sweep", "plane", "ozimmu", "-O", "slices=3:4", "-P", "phi=0:1:1", "--inputs", "phi", "-H", "A100"],
    ["gemm", "a.npy", "b.npy", "-s", "fp16", "-H", "A100"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(c[:2]) for c in COMMANDS])
def test_every_command_refuses_a_device_in_one_line(command, no_gpu, capsys, workdir):
    for name in ("a.npy", "b.npy"):
        np.save(name, np.ones((2, 2)))
    (workdir / "grid.toml").write_text(GRID)
    for device, message in (("cuda", "device = 'cuda': no GPU is here"), ("cpuu", "unknown device 'cpuu'")):
        assert message in refusal(capsys, *command, "--device", device)
    assert sorted(path.name for path in workdir.iterdir()) == ["a.npy", "b.npy", "grid.toml"]


def test_a_failure_on_the_gpu_is_one_line_and_no_reason_to_take_the_cpu(launches, capsys, workdir, monkeypatch):
    monkeypatch.setattr(chains, "_LEAST_ENTRIES", 1)
    monkeypatch.setattr(chains, "_LEAST_PRODUCTS", 1)
    monkeypatch.setattr(grid, "stays_on_gpu", lambda sizes, device: False)  # products one by one
    np.save("a.npy", np.ones((4, 4), np.float32))
    (workdir / "grid.toml").write_text(GRID)
    launch = chains.chain

    def fail(x, spec):
        if x.A.shape[-1] > 100:
            return launch(x, spec)
        raise GpuError("CUDA: CUDA_ERROR_OUT_OF_MEMORY\n(out of memory)")

    monkeypatch.setattr(chains, "chain", fail)
    for device in ("auto", "cuda"):
        assert main(["gemm", "a.npy", "a.npy", "-s", "fp16", "-H", "A100", "--device", device]) == 1
        assert capsys.readouterr().err == "fpemu: CUDA: CUDA_ERROR_OUT_OF_MEMORY (out of memory)\n"
        # in a sweep it is the cell's alone, and what is stored is what the CPU gives
        monkeypatch.setenv("FPEMU_CACHE", str(workdir / device))
        assert main(["sweep", "grid.toml", "-j", "1", "--device", device]) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert "1 of 2 cells failed" in said
        assert said.endswith("GpuError: CUDA: CUDA_ERROR_OUT_OF_MEMORY (out of memory)")
        tables = []
        for again in ([], ["--fresh"]):
            assert main(["sweep", "grid.toml", "-j", "1", "--device", "cpu", "--export", "rows.csv", *again]) == 0
            tables.append((workdir / "rows.csv").read_text())
        assert tables[0] == tables[1]
        capsys.readouterr()


def test_gemm_on_a_device_prints_what_the_cpu_gives(launches, capsys, tmp_path):
    rng = np.random.default_rng(5)
    for name, shape in (("a", (20, 70)), ("b", (70, 30))):
        np.save(tmp_path / name, rng.standard_normal(shape).astype(np.float32))
    files, results = [str(tmp_path / f"{name}.npy") for name in "ab"], []
    for device in ("cpu", "cuda"):
        output = ["-o", str(tmp_path / f"{device}.npy")]
        assert main(["gemm", *files, "-s", "ootomo", "-H", "A100", "--device", device, *output]) == 0
        results.append(np.load(tmp_path / f"{device}.npy").tobytes())
        assert bool(launches) == (device == "cuda")
    assert results[0] == results[1]
