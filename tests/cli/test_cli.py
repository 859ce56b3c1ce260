"""The commands, run as a user runs them: what they print, what they write, and how they refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import probing, reproduce, schemes
from fpemu.cli import commands, main
from fpemu.cli import matrices as matrixio
from fpemu.cli.product import normwise
from fpemu.mma import KOrder
from fpemu.sweep import Store
from tests import toy


def _environment(**more):
    """The environment of a process that imports this checkout."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **more}


def _rows(out):
    """The lines of a table by their first word."""
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}


# --- general
def test_version_help_and_no_arguments(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fpemu {fpemu.__version__}\n"
    for arguments in ([], ["--help"], ["gemm", "-h"], ["bench"]):
        assert main(arguments) == 0
        assert "Usage: fpemu" in capsys.readouterr().out


def test_as_a_module_in_a_process_of_its_own(folder):
    command = [sys.executable, "-m", "fpemu", "gemm", "no.npy", "B.npy", "-s", "sgemm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "fpemu: no.npy: No such file or directory\n")


@pytest.mark.parametrize("command", commands.SUMMARIES)
def test_the_summary_of_a_command_is_that_of_its_docstring(command):
    assert commands.load(command).help.partition("\n\n")[0] == commands.SUMMARIES[command]


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (["-h"], "advice conformance gpu mma probing schemes sweep"),
        (["split", "0.1"], "advice conformance gpu probing sweep"),
    ],
)
def test_a_command_imports_what_it_needs(arguments, others):
    script = "import sys; from fpemu.cli import main; assert not main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "fpemu.cli.commands" in loaded
    assert not {"numba", "matplotlib", "scipy", *(f"fpemu.{name}" for name in others.split())} & loaded


# --- list
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("hardware", ["hopper", "cdna2", "ascend910a", "assumed", "A800"]),
        ("schemes", ["ootomo", "h2sgemm", "staged", "ozaki", "2022"]),
        ("experiments", ["h2sgemm/fig8", "legemm/fig10", "dgemm_tc/fig3"]),
        ("formats", ["e4m3", "448", "65504"]),
        ("inputs", ["uniform", "phi"]),
        ("metrics", ["relative_l2", "mred"]),
    ],
)
def test_lists(capsys, kind, names):
    assert main(["list", kind]) == 0
    words = capsys.readouterr().out.split()
    assert set(names) <= {word.strip(",():") for word in words}
    assert main(["list"]) == 0
    assert kind in capsys.readouterr().out


# --- gemm
def test_the_table_is_the_errors_of_the_schemes(folder, capsys):
    assert main(["gemm", "A.npy", "B.npy", "--scheme", "fp16,ootomo", "-s", "legemm", "--hardware", "MI210"]) == 0
    out = capsys.readouterr().out
    assert "8×32 times 32×6 on cdna2" in out
    rows = _rows(out)
    A, B = np.load("A.npy"), np.load("B.npy")
    R = fpemu.reference.matmul(A, B)
    for name in ("fp16", "ootomo", "legemm", "sgemm"):
        D = schemes.gemm(A, B, scheme=name, hardware=None if name == "sgemm" else "cdna2")
        assert float(rows[name][0]) == pytest.approx(fpemu.metrics.relative_l2(D, R), rel=1e-3)
        assert float(rows[name][1]) == pytest.approx(fpemu.metrics.max_relative(D, R), rel=1e-3)
        assert float(rows[name][2]) == pytest.approx(fpemu.metrics.normwise(D, R, A, B), rel=1e-3)
        assert float(rows[name][4]) == pytest.approx(fpemu.metrics.effective_bits(D, R), rel=1e-3)
    assert list(rows)[-1] == "sgemm"


def test_complex_matrices_and_a_target(folder, capsys):
    A, B = (np.load(f"{name}.npy").astype(np.float64) for name in "AB")
    A, B = A + 1j * A[::-1], B - 1j * B[::-1]
    np.save("A.npy", A)
    np.save("B.npy", B)
    assert main(["gemm", "A.npy", "B.npy", "-s", "ozaki", "-H", "A100", "--form", "3M", "-o", "D.npy"]) == 0
    D = np.load("D.npy")
    assert (fpemu.gemm(A, B, scheme="ozaki", hardware="A100", form="3M") == D).all()
    rows, R = _rows(capsys.readouterr().out), fpemu.reference.matmul(A, B)
    assert float(rows["ozaki"][0]) == pytest.approx(fpemu.metrics.relative_l2(D, R), rel=1e-3)
    assert float(rows["ozaki"][2]) == pytest.approx(fpemu.metrics.normwise(D, R, A, B), rel=1e-3)
    assert main(["gemm", "A.npy", "B.npy", "-s", "ozaki2", "-H", "A100", "-O", "target=1e-9"]) == 0
    certificate = fpemu.certify(A, B, scheme="ozaki2", hardware="A100", target=1e-9).report.certificate
    assert f"ozaki2: {certificate}" in capsys.readouterr().out
    assert main(["gemm", "A.npy", "B.npy", "-s", "ozaki2", "-H", "A100", "-O", "target=1e-20"])
    assert "the target is 1e-20 |A||B|" in capsys.readouterr().err


def test_sgemm_is_left_out_on_demand_and_not_shown_twice(folder, capsys):
    for arguments, count in (["ootomo", "--no-compare"], 0), (["sgemm,ootomo"], 1):
        assert main(["gemm", "A.npy", "B.npy", "-H", "A100", "-s", *arguments]) == 0
        assert capsys.readouterr().out.count("sgemm") == count


def test_all_schemes_by_default_and_those_that_cannot_say_why(folder, capsys):
    assert main(["gemm", "A.npy", "B.npy", "--hardware", "volta"]) == 0
    out, err = capsys.readouterr()
    rows = _rows(out)
    missing = {
        line.split()[0] for line in err.splitlines() if "is left out: volta has no matrix instruction for" in line
    }
    assert missing == {"bf16x3", "bf16x6", "bf16x9", "ootomo-tf32", "staged-int8", "ozimmu", "ozaki2"}
    assert set(schemes.names()) <= set(rows) | missing
    assert float(rows["ootomo"][0]) < float(rows["fp16"][0])


def test_alpha_and_beta_enter_the_exact_result_too(folder, capsys):
    arguments = ["--alpha", "0.1", "--beta", "3", "--c", "C.npy", "-s", "dgemm,sgemm"]
    assert main(["gemm", "A.npy", "B.npy", *arguments]) == 0
    out = capsys.readouterr().out
    assert float(_rows(out)["dgemm"][0]) < 1e-15
    assert float(_rows(out)["dgemm"][3]) == 0


def test_the_memory_of_the_errors_does_not_grow_with_the_square_of_m():
    generator = np.random.default_rng(2)
    A, B, C = (generator.uniform(-1, 1, shape).astype(np.float32) for shape in ((3000, 2), (2, 3), (3000, 3)))
    R = A.astype(np.float64) @ B - 2.0 * C
    D = (R + generator.uniform(-1e-3, 1e-3, R.shape)).astype(np.float32)
    tracemalloc.start()
    largest = normwise(D, R, A, B, C, alpha=1.0, beta=-2.0)
    assert tracemalloc.get_traced_memory()[1] < 60e6  # 3000 x 3000 numbers of fp64 take 72 MB
    tracemalloc.stop()
    assert largest == pytest.approx(np.max(np.abs(D - R) / (np.abs(A) @ np.abs(B) + 2 * np.abs(C))), rel=1e-6)


# the words after 'fpemu gemm', a, b and c being A, B and C over 3 in fp64, and the same call of the library
CALLS = [
    ("A.npy B.npy -s fp16 --order split=16,join=descending", {"order": KOrder(split=16, join="descending")}),
    ("A.npy B.npy -s fp16 --order order.json", {"order": KOrder(split=8)}),
    ("A.npy B.npy -s fp16 --on-range scale-rows", {"on_range": "scale-rows"}),
    ("A.npy B.npy -s h2sgemm -O sb=3 --option combine=element-wise", {"sb": 3, "combine": "element-wise"}),
    ("A.npy B.npy -s ootomo --alpha 0.5 --beta -2 --c C.npy -O k=8", {"alpha": 0.5, "beta": -2.0, "k": 8}),
    ("a.npy b.npy -s ozaki --alpha 0.1 --beta -1e40 -c c.npy", {"alpha": 0.1, "beta": -1e40}),
    ("a.npy b.npy -s ozaki -O slices=3 -O fast=false", {"slices": 3, "fast": False}),
    ("a.npy b.npy -s ozaki -O slices=None -O fast=True", {"slices": None, "fast": True}),
    ("a.npy b.npy -s ozaki -O slices=printed -O memory=2^20", {"slices": "printed", "memory": 2**20}),
    ("both.npz:a both.npz:b -s ootomo", {}),
    ("A.npy B.mtx -s ootomo", {}),
]


@pytest.mark.parametrize(("words", "options"), CALLS)
def test_files_orders_scalars_and_options_reach_the_scheme(folder, capsys, words, options):
    A, B, C = (np.load(f"{name}.npy") for name in "ABC")
    np.savez("both.npz", a=A, b=B)
    matrixio.write("B.mtx", B)
    probing.save(KOrder(split=8), "order.json")
    if words.startswith("a.npy"):
        A, B, C = (x.astype(float) / 3 for x in (A, B, C))
        for name, x in (("a", A), ("b", B), ("c", C)):
            np.save(name, x)
    assert main(["gemm", *words.split(), "-H", "A100", "-o", "D.npy"]) == 0
    assert capsys.readouterr().err == f"wrote D.npy: 8×6 {A.dtype}\n"
    D = schemes.gemm(A, B, C if "beta" in options else None, scheme=words.split()[3], hardware="ampere", **options)
    assert np.load("D.npy").tobytes() == D.tobytes()


# --- gemm in fp64
@pytest.fixture
def double(folder):
    """The files of `folder` in fp64, with entries that are no fp32 numbers, some beyond its range."""
    generator = np.random.default_rng(2)
    for name, shape in (("A", (8, 32)), ("B", (32, 6)), ("C", (8, 6))):
        np.save(f"{name}.npy", generator.uniform(-1, 1, shape) * 10.0 ** generator.integers(-60, 60, shape))
    return folder


def test_fp64_operands_stay_fp64_where_every_scheme_takes_them(double, capsys):
    assert main(["gemm", "A.npy", "B.npy", "--scheme", "ozaki", "-H", "A100", "-O", "mode=CR"]) == 0
    out, err = capsys.readouterr()
    rows, A, B = _rows(out), np.load("A.npy"), np.load("B.npy")
    assert err == ""
    assert "max ulps (fp64)" in out
    assert rows["ozaki"][:4] == ["0", "0", "0", "0"]
    # beside them stands DGEMM, against the exact product in fp64
    plain = schemes.gemm(A, B, scheme="dgemm")
    assert "sgemm" not in rows
    assert float(rows["dgemm"][3]) == fpemu.metrics.max_ulps(plain, fpemu.reference.matmul(A, B), "fp64") > 0


def test_fp32_schemes_and_mixtures_round_as_before(folder, capsys):
    np.save("wide.npy", np.load("A.npy").astype(np.float64) + 2.0**-40)
    for chosen in (["-s", "ozaki,fp16"], ["-s", "ozaki", "-O", "mode=SP"], ["-s", "ozaki2", "-O", "precision=fp32"]):
        assert main(["gemm", "wide.npy", "B.npy", "-H", "A100", *chosen]) == 0
        out, err = capsys.readouterr()
        assert re.fullmatch(r"wide.npy: float64 rounded to fp32, \d+ of 256 entries changed\n", err)
        assert "max ulps (fp32)" in out
        assert "sgemm" in _rows(out)
        assert "dgemm" not in _rows(out)
    options = ["-O", "mode=CR", "-O", "precision=fp64"]
    assert main(["gemm", "wide.npy", "B.npy", "-s", "ozaki", "-H", "A100", *options]) == 0
    assert capsys.readouterr().err == ""


def test_error_free_schemes_certify_below_the_table(double, capsys):
    assert main(["gemm", "A.npy", "B.npy", "-s", "ozaki,ozimmu,ozaki2,dgemm", "-H", "H200"]) == 0
    lines = capsys.readouterr().out.rstrip("\n").split("\n")[-3:]
    A, B = np.load("A.npy"), np.load("B.npy")
    for line, name in zip(lines, ("ozaki", "ozimmu", "ozaki2"), strict=True):
        report = schemes.certify(A, B, scheme=name, hardware="H200").report
        products = f"{report.products} products"
        if name != "ozaki2":
            (a, b), products = report.slices, f"{report.products} of {np.prod(report.slices)} products"
            assert f"{a} slices of A, {b} of B" in line
        assert line.startswith(f"{name}: ")
        assert products in line
        assert f"each exact: yes, slices complete: {'yes' if report.complete else 'no'}" in line
    assert main(["gemm", "A.npy", "B.npy", "-s", "dgemm"]) == 0
    assert "complete" not in capsys.readouterr().out


def test_a_broken_guarantee_is_one_line_and_exit_status_1(folder, capsys):
    np.save("a.npy", np.full((4, 1024), 2.0**-10) + np.array([[0.0], [2.0**-60], [0.0], [2.0**-40]]))
    np.save("b.npy", np.full((1024, 3), 2.0**-10))
    before = sorted(os.listdir())
    for words, complaint in (
        ("ozaki -O bits=12", "not exact on"),
        ("ozaki2 -O scaling=fast -O moduli=8", "2 sum|a'||b'|"),
        ("ozaki -O mode=CR -O exponents=row", "under"),
    ):
        assert main(["gemm", "a.npy", "b.npy", "-H", "A100", "-o", "D.npy", "-s", *words.split()]) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), err.partition(" ")[0]) == ("", 1, "fpemu:")
        assert complaint in err
    assert sorted(os.listdir()) == before


# --- split
def test_split_shows_the_words_of_a_number(capsys):
    shown = schemes.format_split(schemes.split_table(0.1, "h2sgemm", sb=12)).rstrip("\n")
    for words, part in (
        ("0.1 --scheme h2sgemm --sb 12", shown),
        ("--scheme h2sgemm -O sb=12 0.1", shown),
        ("0x1.99999ap-4 --sb 12", "0x3dcccccd"),
        ("-s ootomo -- -0.1", "0xae66"),
        ("-s ootomo -0.1", "0xae66"),
        ("70000 --scheme h2sgemm", "h overflows fp16"),
    ):
        assert main(["split", *words.split()]) == 0
        assert part in capsys.readouterr().out


# --- reproduce
PAGE = """
PAPER, CAPTION, ASSUMPTIONS = "p", "c", []
def cells(size):
    return [{"n": n, "size": size} for n in range(1, 4)]
def evaluate(cell):
    import os, pathlib, time
    if pathlib.Path("interrupt").exists():
        raise KeyboardInterrupt
    with pathlib.Path("log").open("a") as log:
        log.write(f"{cell['n']} ")
    if os.environ.get("FPEMU_TEST_SLOW") and cell["n"] == 3:
        pathlib.Path("third").touch()
        time.sleep(60)
    return {"value": 1.0 / cell["n"]}
def draw(rows):
    from fpemu import plotting
    figure, axes = plotting.figure(1)
    axes[0, 0].plot([row["n"] for row in rows], [row["value"] for row in rows])
    return figure
def measures(rows):
    from fpemu.reproduce import Measure
    return [Measure("ratio", 3.0)]
""" + toy.PAGE.format(", measures=measures")
PAPER = """
title = "A paper"
source = "A journal."
[titles]
fig1 = "t"
[[checks]]
name = "ratio"
kind = "goal"
claim = "a claim"
page = "paper/fig1"
quantity = "a ratio"
criterion = "> 2.69"
"""


@pytest.fixture
def paper(folder, papers):
    toy.write_page(folder / "papers", "paper/fig1", PAGE).with_name("paper.toml").write_text(PAPER)
    return folder


def test_reproduce_draws_keeps_and_says_what_holds(paper, capsys):
    assert main(["reproduce", "-j", "1"]) == 0
    out = capsys.readouterr().out
    assert "figures/paper/fig1.{png,csv,json,md}: new" in out
    assert "above 2.69" in out
    assert "needs --full" in out
    assert sorted(os.listdir("figures/paper")) == ["fig1.csv", "fig1.json", "fig1.md", "fig1.png"]
    assert Path("log").read_text().split() == ["1", "2", "3"]
    first = {name: Path("figures/paper", name).read_bytes() for name in os.listdir("figures/paper")}
    assert main(["reproduce", "paper/fig1"]) == 0
    assert Path("log").read_text().split() == ["1", "2", "3"]
    assert {name: Path("figures/paper", name).read_bytes() for name in os.listdir("figures/paper")} == first
    assert main(["reproduce", "paper", "--full", "-o", "elsewhere", "-j", "1"]) == 0
    assert (
        json.loads(Path("elsewhere/full/paper/fig1.json").read_text())["command"] == "fpemu reproduce paper/fig1 --full"
    )
    assert Path("log").read_text().split() == ["1", "2", "3"] * 2
    assert main(["reproduce", "--fresh"]) == 0
    assert sorted(Path("log").read_text().split()) == sorted(["1", "2", "3"] * 3)
    assert reproduce.committed("paper/fig1", "full", "elsewhere").rows[0]["size"] == "full"


def test_fresh_keeps_the_old_until_the_new_is_there_and_evaluates_what_is_shared_once(paper):
    toy.write_page("papers", "paper/fig2", "from .fig1 import PAGE\n")
    assert main(["reproduce", "-j", "1"]) == 0
    assert Path("log").read_text().split() == ["1", "2", "3"]
    assert main(["reproduce", "-j", "1", "--fresh"]) == 0
    assert Path("log").read_text().split() == ["1", "2", "3"] * 2
    Path("interrupt").touch()
    assert main(["reproduce", "-j", "1", "--fresh"]) == 130
    with Store() as results:
        assert len(results) == 3


@pytest.mark.parametrize("redraw", [[], pytest.param(["--redraw"], marks=pytest.mark.slow)])
def test_a_page_that_cannot_draw_does_not_stop_the_others(paper, capsys, redraw):
    for name, statement in (("fig0", "1 / 0"), ("fig00", "raise SystemExit"), ("fig000", "open('nowhere.csv')")):
        text = PAGE.replace("    from fpemu import plotting\n", f"    {statement}\n")
        toy.write_page("papers", f"paper/{name}", text)
    assert main(["reproduce", "-j", "1", *redraw]) == 1
    out, err = capsys.readouterr()
    assert "paper/fig1.{png" in out
    assert "paper/fig0: ZeroDivisionError: division by zero (" in err
    assert "paper/fig000: FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.csv' (" in err
    assert "not drawn: paper/fig0" in err
    assert "Traceback" not in err
    assert Path("figures/paper/fig1.png").exists()


@pytest.mark.parametrize("jobs", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(paper, jobs):
    environment = _environment(FPEMU_TEST_SLOW="1")
    command = [sys.executable, "-m", "fpemu", "reproduce", "paper", "--jobs", jobs]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 40
        while not Path("third").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    again = f"'fpemu reproduce paper --jobs {jobs}' continues from them"
    assert f"fpemu: interrupted; finished cells are stored: {again}" in err
    assert "Traceback" not in err
    assert not Path("figures").exists()
    assert main(["reproduce", "paper"]) == 0
    assert sorted(Path("log").read_text().split()) == ["1", "2", "3", "3"]


# --- bench
def test_bench_measures_every_kind_and_writes_json(folder, capsys):
    command = ["bench", "cpu", "--size", "48", "--repeat", "1", "--only", "hopper fp16", "--json", "b.json"]
    assert main(command) in (0, 1)
    out = capsys.readouterr().out
    report = json.loads(Path("b.json").read_text())
    names = [line["case"] for line in report["lines"]]
    assert names == ["hopper fp16->fp32", "hopper fp16->fp16", "hopper fp16->fp32, NumPy form"]
    assert all(name in out for name in names)
    assert [line["n"] for line in report["lines"]] == [48, 48, 256]
    for line in report["lines"]:
        assert min(line["ns"], line["ratio"]) > 0
        assert line["memory"] <= line["memory_bar"]
    assert report["threads"] >= 1


# --- interrupts
SLOW = "import time\ndef f(A, B):\n    time.sleep(0.2)\n    return A @ B\n"


@pytest.mark.parametrize(
    "command",
    [
        "gemm L.npy L.npy -H A100",
        "verify gemm --callable slow.py:f --input uniform --shape 4x4x3000 --format fp32",
        "sweep scaling --size 64x64x4096 -H A100",
    ],
)
def test_an_interrupt_is_one_line_and_status_130(folder, command):
    np.save("L.npy", np.random.default_rng(1).uniform(-1, 1, (1200, 1200)).astype(np.float32))
    Path("slow.py").write_text(SLOW)
    script = "import sys; from fpemu.cli import commands, main; commands.load_all(); print('loaded', flush=True)"
    script += "; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *command.split()],
        env=_environment(FPEMU_CACHE=str(folder / "cache")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "loaded\n"
        time.sleep(0.7)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.strip().splitlines()[-1].startswith("fpemu: interrupted")
    assert "Traceback" not in err


def test_an_interrupt_of_the_imports_is_one_line(tmp_path):
    """Modules that the command imports first, and that a signal interrupts."""
    for module in ("typer", "difflib", "fpemu.cli.commands"):
        script = f"""if True:
            import signal, sys
            from fpemu.cli import main
            class Finder:
                def find_spec(self, name, *_):
                    if name == {module!r}:
                        signal.raise_signal(signal.SIGINT)
            sys.modules.pop({module!r}, None)
            sys.meta_path.insert(0, Finder())
            sys.exit(main(["list"]))
        """
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (130, "fpemu: interrupted\n"), module


# --- notes
def test_a_product_of_fp32_files_says_that_it_is_judged_as_fp32(folder, capsys):
    assert main(["gemm", "A.npy", "B.npy", "-s", "fp16", "-H", "A100", "-o", "D.npy"]) == 0
    capsys.readouterr()
    assert main(["verify", "gemm", "A.npy", "B.npy", "-r", "D.npy", "-H", "A100", "--no-causes"]) == 1
    assert "compared with a plain fp32 product of ordinary cores, not on the matrix units of A100" in (
        capsys.readouterr().err
    )
    assert main(["verify", "gemm", "A.npy", "B.npy", "-r", "D.npy", "-H", "A100", "--format", "fp16"]) == 0
    assert "ordinary cores" not in capsys.readouterr().err


def test_overflowing_products_say_so(folder, capsys):
    np.save("huge.npy", np.load("A.npy").astype(np.float64) * 1e200)
    np.save("vast.npy", np.load("B.npy").astype(np.float64) * 1e200)
    assert main(["gemm", "huge.npy", "vast.npy", "-s", "ozaki", "-H", "A100"]) == 0
    assert "the exact product overflows in 48 of 48 entries: its errors compare infinities" in capsys.readouterr().err
    assert main(["advise", "-t", "1e-6", "-H", "A100", "--data", "huge.npy", "vast.npy"]) == 1
    said = capsys.readouterr().err
    assert "|A||B| overflows fp64 in 48 of 48 entries, so that no bound is finite: multiply A or B by a power" in said
    assert "without a finite bound" in said
    assert " inf" not in said
    np.save("large.npy", np.load("A.npy") * np.float32(1e25))
    np.save("wide.npy", np.load("B.npy") * np.float32(1e25))
    assert main(["gemm", "large.npy", "wide.npy", "-s", "sgemm"]) == 0
    assert "sgemm overflows in 48 of 48 entries: the exact product is finite there" in capsys.readouterr().err
