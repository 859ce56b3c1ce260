"""The project's own papers: what README shows is what happens, versions agree, committed figures are whole."""

from __future__ import annotations

import ast
import csv
import hashlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fpemu
from fpemu.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The folder in which the Python example of README ran, and what it printed."""
    folder = tmp_path_factory.mktemp("readme")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(_blocks("python"))], capture_output=True, text=True, check=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return folder, done.stdout


def test_the_python_example_prints_what_readme_says(example):
    assert example[1] == "".join(_blocks("text"))


def _words(text):
    """The words of a table, without rules and the last column of the error table, which is a time."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    lines = [re.sub(r"\s+\d\.\d\d$", "", line) for line in lines if "─" not in line]
    return [line.split() for line in lines if line]


@pytest.mark.parametrize("command", ["gemm", "split"])
def test_the_commands_print_what_readme_says(example, command, capsys, monkeypatch):
    monkeypatch.chdir(example[0])
    block = next(b for b in _blocks("console") if b.startswith(f"$ fpemu {command}"))
    line, _, shown = block.partition("\n")
    assert main(line.split()[2:]) == 0
    assert _words(capsys.readouterr().out) == _words(shown)


def test_the_judgements_of_readme_are_as_it_shows(example, capsys, monkeypatch):
    monkeypatch.chdir(example[0])
    made = re.search(r"`fpemu (gemm [^`]+ D\.npy)`", README.replace("\n", " "))
    assert made
    assert main(made[1].split()) == 0
    capsys.readouterr()
    for command, status in (("verify gemm", 1), ("reveal --emulated", 0)):
        block = next(b for b in _blocks("console") if b.startswith(f"$ fpemu {command}"))
        line, _, shown = block.partition("\n")
        assert main(line.split()[2:]) == status
        varies = r"\d+\.\d s$|\d+ alternatives"
        printed = capsys.readouterr().out
        assert re.sub(varies, "", printed, flags=re.MULTILINE) == re.sub(varies, "", shown, flags=re.MULTILINE)


def test_the_sweeps_of_readme_are_accepted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPEMU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "grid.toml").write_text(*_blocks("toml"))
    block = next(b for b in _blocks("console") if b.startswith("fpemu sweep"))
    lines = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        words = [word for word in line if word != "--dry-run"]
        if "--scheduler" in words:  # a dry run asks nobody
            assert "distributed" in str(_project()["optional-dependencies"]["dask"])
        assert main([*words, "--dry-run"]) == 0, line
        assert re.search(r"\d+ cells: 0 stored, \d+ to do", capsys.readouterr().out)


def test_links_and_pictures_are_there():
    for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("http"):
                assert (ROOT / target).is_file(), f"{name} points to {target}"


def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_one():
    project = _project()
    assert project["version"] == fpemu.__version__
    assert re.search(rf"^version: {re.escape(fpemu.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    assert heading[1] == fpemu.__version__
    assert project["license"] == "BSD-3-Clause"
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License\n\nCopyright (c) 2026, The fpemu developers")


def test_the_map_names_every_room_and_no_other():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = text.partition("## Rooms")[2].partition("```\n")[2].partition("```")[0]
    listed = set(re.findall(r"[\w.]+\.py|\w+/(?=\s)", rooms))
    package = ROOT / "fpemu"
    for path in (
        path
        for room in (
            ".",
            "mma",
            "theory",
            "perfmodel",
            "advice",
            "sweep",
            "gpu",
            "probing",
            "probing/arithmetic",
            "conformance",
        )
        for path in (package / room).glob("*.py")
    ):
        if not path.name.startswith("__"):
            assert path.name in listed, f"ARCHITECTURE.md does not name {path.relative_to(ROOT)}"
    there = {p.name for p in ROOT.rglob("*.py")} | {f"{p.name}/" for p in ROOT.rglob("*") if p.is_dir()}
    assert {name for name in listed if not name.startswith("_")} <= there


def _imports():
    """(module, what it imports) within fpemu, by names as in "mma.gemm", between rooms only."""
    for path in (ROOT / "fpemu").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT / "fpemu").with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} imports by dots: this test would not see whom"
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in found:
                if name.startswith("fpemu.") and name.split(".")[1] != module.split(".")[0]:
                    yield module, name.removeprefix("fpemu.")


def test_nobody_knows_whom_the_map_forbids():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Who may know whom")[2]
    _, table, doors = text.partition("## ")[0].split("```")
    everybody = {"errors", "formats", "rounding", "arrays", "heads", "files"}
    may = {words[0]: {*words[1:]} | everybody for line in table.splitlines() if (words := line.split())}
    assert not {"cli", "experiments"} & set().union(*may.values())
    allowed = [
        (teller, known)
        for teller, names in re.findall(r"([\w.]+)\s→\s([\w.]+(?:\sand\s[\w.]+)?)", doors)
        for known in names.removesuffix(".").split(" and ")
    ]
    assert ("mma.gemm", "gpu.chains") in allowed
    assert ("probing.arithmetic", "gpu.streams") in allowed
    for module, name in _imports():
        room, known = module.split(".")[0], name.split(".")[0]
        if room not in ("cli", "__init__", "__main__") and known not in may.get(room, everybody):
            assert any(f"{module}.".startswith(f"{a}.") and f"{name}.".startswith(f"{b}.") for a, b in allowed), (
                f"fpemu.{module} imports fpemu.{name}: ARCHITECTURE.md, 'Who may know whom', does not let it"
            )


def test_public_names_of_the_map_exist():
    for name in ("round_to", "bit_cut", "Rounding", "InputError", "FloatFormat", "gemm", "advise"):
        assert callable(getattr(fpemu, name))
    for room, names in {
        "mma": ("spec", "MmaSpec", "catalog", "execute", "gemm", "chain", "KOrder"),
        "simt": ("gemm", "fma", "tsm2", "ism2"),
        "schemes": ("names", "get", "split_table", "format_split"),
        "reference": ("matmul",),
        "metrics": ("relative_l2", "max_relative", "max_error_legemm", "mred", "normwise", "ulps"),
        "inputs": ("make",),
        "theory": ("bound", "chain", "Norms", "Bound", "underflow", "enumeration", "bias", "errorfree"),
        "perfmodel": ("work", "Gpu", "gpus", "roofline", "legemm", "h2sgemm", "dgemm_tc", "magma", "tsm2"),
        "probing": ("reveal", "characterize", "save", "load"),
        "conformance": ("verify", "Verdict"),
        "batched": ("hgemm", "hcgemm", "complex_gemm", "interleaved", "planar", "as_complex"),
        "gpu": ("available", "execute", "gemm", "kernel"),
        "gpu.library": ("emulate", "lookup", "orders"),
    }.items():
        for name in names:
            assert hasattr(importlib.import_module(f"fpemu.{room}"), name), f"fpemu.{room}.{name}"


def test_importing_is_light():
    code = (
        "import sys, fpemu; heavy = {'numba', 'scipy', 'matplotlib', 'pandas', 'mpmath', 'flint', 'typer', 'rich'}; "
        "print(sorted(heavy & set(sys.modules))); from fpemu.gpu import chains, library, verify; "
        "print(sorted({'cuda', 'torch', 'cupy', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split() == ["[]", "[]"]


@pytest.mark.parametrize(
    "target", ["setup", "test", "lint", "reproduce", "ledger", "notebooks", "bench", "clean", "help"]
)
def test_make_knows_its_targets(target):
    done = subprocess.run(["make", "-n", target], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_an_old_python_is_told_apart(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac\n')
    old.chmod(0o755)
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / "pyproject.toml").write_text("")
    for python, message in (
        (old, "Python 3.9.2 is too old: fpemu needs Python 3.11 or newer"),
        ("nopython", "no nopython here"),
    ):
        done = subprocess.run(
            ["make", "setup", f"PYTHON={python}"], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode != 0
        assert message in done.stderr
        assert not (tmp_path / ".venv").exists()


FULL = ROOT / "figures" / "full"
FIGURES = sorted(p.with_suffix("") for p in (ROOT / "figures").glob("*/*.json"))
FIGURES_IN_FULL = sorted(p.with_suffix("") for p in FULL.glob("*/*.json"))
OVERFLOWS = {"h2sgemm/plane"}
"""Figures in which an overflow is a result."""


def test_every_experiment_has_its_figure():
    drawn = {path.relative_to(ROOT / "figures").as_posix() for path in FIGURES}
    pages = {
        p.relative_to(ROOT / "experiments").with_suffix("").as_posix()
        for p in (ROOT / "experiments").glob("*/[!_]*.py")
    }
    assert drawn == pages

    assert {path.relative_to(FULL).as_posix() for path in FIGURES_IN_FULL} <= pages


@pytest.mark.parametrize("stem", FIGURES + FIGURES_IN_FULL, ids=lambda p: "/".join(p.parts[-3:]))
def test_committed_figures_are_whole(stem):
    record = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    data = stem.with_suffix(".csv").read_bytes()
    assert record["figure"] == "/".join(stem.parts[-2:])
    assert record["size"] == ("full" if FULL in stem.parents else "quick")
    assert record["data"] == {"file": f"{stem.name}.csv", "sha256": hashlib.sha256(data).hexdigest()}
    assert record["cells"] == len(data.decode().splitlines()) - 1
    assert record["claims"] or record["finding"]
    assert record["code"]["version"] == fpemu.__version__
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert stem.with_suffix(".svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")
    for row in csv.DictReader(io.StringIO(data.decode())):
        values = [value for value in row.values() if value]  # empty where a cell has other methods
        assert record["figure"] in OVERFLOWS or not {"inf", "-inf", "nan"} & set(values)
    text = json.dumps(record)
    assert not re.search(r"(/home/|/root/|/tmp/|/work/|\d\d:\d\d:\d\d)", text)


@pytest.mark.parametrize("stem", FIGURES + FIGURES_IN_FULL, ids=lambda p: "/".join(p.parts[-3:]))
def test_committed_figures_are_of_the_code_as_it_is(stem):
    """Numbers of older code would be evaluated anew by the next user, and might differ."""
    from fpemu.sweep import experiments

    record = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    assert record["code"]["sha256"] == experiments.load(record["figure"], ROOT / "experiments").code


def test_the_ledger_is_that_of_the_figures(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["ledger", "--check"]) == 0, capsys.readouterr().err
