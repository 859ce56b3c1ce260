"""Terminals, interrupts and hostile input: a command ends with one line or none, and executes no stray file."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer

import fpemu
from fpemu import library
from fpemu.cli import app, common, main
from fpemu.reproduce import pages
from tests import toy
from tests.commands import refusal

ROOT = Path(__file__).resolve().parents[2]


def _environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


# --- experiments are executed only from a named folder
PAGE = "raise SystemExit(open('executed', 'w').close())\n"


@pytest.fixture
def stray(folder, monkeypatch):
    """A working directory with a page that must not be executed."""
    toy.write_page(folder / "experiments", "paper/fig1", PAGE)
    (folder / "figures" / "paper").mkdir(parents=True)
    (folder / "figures" / "paper" / "fig1.json").write_text("{}")
    monkeypatch.delenv("FPEMU_EXPERIMENTS", raising=False)
    return folder


COMMANDS = (
    ["-h"],
    ["list"],
    ["list", "experiments"],
    ["list", "-h"],
    ["reproduce", "paper/fig1"],
    ["reproduce", "-h"],
    ["ledger"],
    ["ledger", "--check"],
    ["sweep", "paper/fig1"],
    ["sweep", "run", "-h"],
    ["bench", "gpu", "--list"],
)


@pytest.mark.parametrize("checkout", [True, False])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_pages_of_the_working_directory_are_not_executed(stray, capsys, monkeypatch, command, checkout):
    if not checkout:
        monkeypatch.setattr(pages, "_CHECKOUT", stray / "none")
    assert main(command) in (0, 2)
    assert not Path("executed").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_without_a_checkout_the_folder_must_be_named(stray, capsys, monkeypatch):
    monkeypatch.setattr(pages, "_CHECKOUT", stray / "none")
    for command in (["list", "experiments"], ["reproduce", "paper/fig1"], ["ledger"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said == (
            "fpemu: this installation has no experiments: name a folder by --experiments or FPEMU_EXPERIMENTS\n"
        )
        assert main([*command, "--experiments", "nowhere"]) == 2
        assert "names nowhere, which is not a folder" in capsys.readouterr().err


def test_a_named_folder_is_listed_without_execution_and_executed_to_reproduce(stray, capsys, monkeypatch):
    assert main(["list", "experiments", "--experiments", "experiments"]) == 0
    assert ["paper/fig1", "a", "title", "-", "-"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "FPEMU_EXPERIMENTS" not in os.environ
    assert not Path("executed").exists()
    assert main(["reproduce", "paper/fig1", "--experiments", "experiments"]) == 2
    assert "fig1.py cannot be loaded: SystemExit" in capsys.readouterr().err
    assert Path("executed").exists()


def test_every_page_of_the_checkout_has_a_title_and_a_number_of_cells(capsys):
    assert all(pages.titles().values())
    assert main(["list", "experiments"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if "/" in line}
    assert set(rows) == set(pages.names())
    assert int(rows["legemm/fig10"][-2]) == len(pages.load("legemm/fig10").cells("quick"))


# --- hostile input
VALUES = ("9**9999", "10^400", "99**9999", "1e400", "0^-1", "nan", "", "[/a]", "[red]", "a\x1b[31m\nb")


@pytest.mark.parametrize("value", VALUES)
def test_option_values_out_of_range_are_one_line(folder, capsys, value):
    for arguments in (
        ["gemm", "A.npy", "B.npy", "-s", "h2sgemm", "-O", f"sb={value}"],
        ["split", "0.1", "-O", f"sb={value}"],
        ["advise", "-t", "1e-3", "-H", "A100", "--k", "64", "--inputs", f"uniform,low={value}"],
        ["gemm", "A.npy", "B.npy", "-s", "fp16", "--order", f"split={value}"],
        ["verify", "gemm", "A.npy", "B.npy", "-r", "A.npy", "-s", "h2sgemm", "-H", "A100", "-O", f"sb={value}"],
        ["reveal", "--emulated", "A100", "--k", "8", "--order", f"tile={value}"],
        ["characterize", "--callable", "x.py:f", "--formats", "fp16,fp16,fp32", "--k", "8", "--shape", f"{value}x8"],
    ):
        if value == "nan" and "advise" in arguments:
            continue
        refusal(capsys, *arguments)


def test_numbers_within_fp64_are_read():
    read = common.parse_options(["a=2^1023", "b=2**-3", "c=-7", "d=1e308", "e=inf", "f=1_000", "g=abc", "h=none"])
    assert read == {"a": 2**1023, "b": 0.125, "c": -7, "d": 1e308, "e": np.inf, "f": 1000, "g": "abc", "h": None}
    assert [type(value) for value in read.values()] == [int, float, int, float, float, int, str, type(None)]


@pytest.mark.parametrize("text", ["[/a]", "[red]x", "[link=x]", ":smile:", "\\[x"])
def test_markup_in_names_is_text(folder, capsys, text):
    assert text in refusal(capsys, "gemm", f"{text}.npy", "B.npy")
    assert text in refusal(capsys, "list", text)
    common.print_table(text, (text, text), [(text, text)])
    assert capsys.readouterr().out.count(text) == 5


@pytest.mark.parametrize("nested", ["[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 100_000])
def test_deeply_nested_files_are_one_line(folder, capsys, nested):
    Path("deep.json").write_text(nested)
    refusal(capsys, "gemm", "A.npy", "B.npy", "-s", "fp16", "--order", "deep.json")
    refusal(capsys, "reveal", "--emulated", "A100", "--k", "8", "--order", "deep.json")
    Path("deep.toml").write_text(f"a = {nested}")
    refusal(capsys, "advise", "-t", "1e-3", "-H", "deep.toml", "--k", "8")
    refusal(capsys, "sweep", "deep.toml")
    Path("pages", "paper").mkdir(parents=True)
    Path("figures", "paper").mkdir(parents=True)
    Path("pages", "paper", "paper.toml").write_text(f"a = {nested}")
    refusal(capsys, "ledger", "--experiments", "pages")
    Path("pages", "paper", "paper.toml").write_text("title = 'x'\nsource = 'x'\n")
    Path("figures", "paper", "fig1.json").write_text(nested)
    refusal(capsys, "ledger", "--experiments", "pages")


# --- bad arguments of every option
WRONG = ("", "-1", "nan", "9**9999", "[/a]", "1,2,3", "x" * 300, "no/such", "0x0x0", "=")
VALID = {
    "gemm": ["A.npy", "B.npy", "-s", "sgemm"],
    "advise": ["-t", "1e-3", "-H", "A100", "--k", "16"],
    "reveal": ["--emulated", "A100", "--k", "8"],
    "characterize": ["--emulated", "nosuchrow"],
    "split": ["0.1"],
    "ledger": ["--figures", "none"],
    "reproduce": ["none/fig"],
    "sweep run": ["none.toml"],
    "sweep scaling": ["--dry-run"],
    "sweep plane": ["ootomo", "-O", "promote=16,32", "-P", "K=16,32", "--dry-run"],
    "bench cpu": ["--size", "8", "--repeat", "1", "--only", "nosuch"],
    "bench gpu": ["--list"],
    "verify gemm": ["A.npy", "B.npy", "-r", "A.npy", "-H", "A100"],
    "verify library": ["--list"],
}


def _commands(command=None, words=()):
    command = typer.main.get_command(app) if command is None else command
    children = getattr(command, "commands", None)
    if not children:
        yield words, command
    for name, child in (children or {}).items():
        yield from _commands(child, (*words, name))


OPTIONS = [
    pytest.param(
        words,
        option.opts[0],
        option.nargs,
        id=" ".join((*words, option.opts[0])),
        marks=[pytest.mark.slow] * (words in (("verify", "library"), ("bench", "cpu"))),
    )
    for words, command in _commands()
    for option in command.params
    if option.param_type_name == "option" and not option.is_flag and option.name not in ("help", "scheduler")
]


def _few_orders(name="cublas", orders=library.orders):
    """The first rows of the table: reading all of it takes seconds."""
    return itertools.islice(orders(name), 20)


@pytest.mark.parametrize("values", [WRONG[::3], pytest.param([*WRONG[1::3], *WRONG[2::3]], marks=pytest.mark.slow)])
@pytest.mark.parametrize(("words", "option", "count"), OPTIONS)
def test_wrong_values_of_every_option_are_one_line(folder, capsys, monkeypatch, words, option, count, values):
    monkeypatch.setenv("FPEMU_CACHE", str(folder / "cache"))
    monkeypatch.setattr(library, "orders", _few_orders)
    for value in values:
        if option == "--only" and not value:
            continue  # all benchmarks
        status = main([*words, *VALID.get(" ".join(words), []), option, *[value] * count])
        out, err = capsys.readouterr()
        assert status in (0, 1, 2)
        assert "Traceback" not in err
        if status == 2:
            assert (out.strip(), err.count("\n")) == ("", 1)
            assert err.startswith("fpemu: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweep", "scaling", "-o", "read-only/maps"],
        ["sweep", "scaling", "-o", "A.npy"],
        ["sweep", "scaling", "-o", "/proc/maps"],
        ["sweep", "plane", "ozimmu", "-O", "slices=3:4", "-P", "K=8,16", "-o", "A.npy/x"],
        ["gemm", "A.npy", "B.npy", "-s", "sgemm", "-o", "read-only/D.npy"],
        ["gemm", "A.npy", "B.npy", "-s", "sgemm", "-o", "x" * 260 + ".npy"],
        ["reveal", "slow.py:f", "--k", "8", "--json", "/proc/x.json"],
        ["reveal", "slow.py:f", "--k", "8", "--draw", "fixed.png"],
        ["reveal", "slow.py:f", "--k", "8", "--draw", "x.gif"],
        ["verify", "kernels", "--record", "/proc/x.json"],
        ["bench", "gpu", "--output", "/proc/x.json"],
        ["tune", "batched", "--out", "x" * 250 + ".toml"],
    ],
    ids=" ".join,
)
def test_an_output_that_cannot_be_written_is_refused_before_the_computation(folder, capsys, monkeypatch, arguments):
    monkeypatch.setenv("FPEMU_CACHE", str(folder / "cache"))
    Path("slow.py").write_text("def f(A, B):\n    raise SystemError('computed')\n")
    Path("fixed.png").touch()
    Path("fixed.png").chmod(0o444)
    Path("read-only").touch()
    before = sorted(os.listdir())
    said = refusal(capsys, *arguments)
    assert "GPU" not in said
    assert "computed" not in said
    assert sorted(os.listdir()) == before


# --- interrupts
SLOW = "import time\ndef f(A, B):\n    time.sleep(0.2)\n    return A @ B\n"


@pytest.mark.parametrize(
    "command",
    [
        "gemm L.npy L.npy",
        "characterize --emulated ampere",
        "reveal slow.py:f --k 3000 --shape 4x4 --formats fp32,fp32",
        "verify gemm --callable slow.py:f --input uniform --shape 4x4x3000 --format fp32",
        "sweep scaling --size 64x64x4096",
    ],
)
def test_an_interrupt_is_one_line_and_status_130(folder, command):
    np.save("L.npy", np.random.default_rng(1).uniform(-1, 1, (1200, 1200)).astype(np.float32))
    Path("slow.py").write_text(SLOW)
    script = "from fpemu.cli import app, main; print('loaded', flush=True); raise SystemExit(main())"
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


def test_an_interrupt_without_a_message_of_its_own_in_process(folder, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fpemu.schemes, "split_table", interrupted)
    assert main(["split", "0.1"]) == 130
    assert capsys.readouterr().err == "fpemu: interrupted\n"


# --- sizes, formats and overflow
@pytest.mark.parametrize(
    "command", ["gemm A.npy B.npy", "verify gemm A.npy B.npy -r A.npy", "advise -t 1e-3 -H A100 --data A.npy B.npy"]
)
def test_the_size_of_matrix_files_is_limited_on_demand(folder, capsys, command):
    said = refusal(capsys, *command.split(), "--max-entries", "200")
    assert said == "fpemu: A.npy is 8×32: more entries than max_entries=200\n"


def test_a_product_of_fp32_files_says_that_it_is_judged_as_fp32(folder, capsys):
    assert main(["gemm", "A.npy", "B.npy", "-s", "fp16", "-o", "D.npy"]) == 0
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
    assert main(["gemm", "huge.npy", "vast.npy", "-s", "ozaki"]) == 0
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
