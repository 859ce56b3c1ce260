"""The wheel without its checkout, and installations without the optional packages."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import errors
from fpemu.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def without(monkeypatch):
    """A function that hides an installed package from `importlib.util.find_spec`."""
    find = importlib.util.find_spec

    def hide(package):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name))

    return hide


def test_commands_without_their_packages_name_the_extra(without, capsys):
    without("typer")
    assert main(["list"]) == 2
    assert capsys.readouterr().err == "fpemu: the package typer is not installed: pip install 'fpemu[cli]'\n"


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("matplotlib", lambda: fpemu.plotting.figure()),
        ("pandas", lambda: fpemu.sweep.frame([{"n": 1}])),
        ("pyarrow", lambda: fpemu.sweep.tables.check_target("rows.parquet")),
    ],
)
def test_functions_without_their_package_name_the_extra(package, call, without, workdir):
    without(package)
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with pytest.raises(fpemu.InputError, match=rf"{package} is not installed: pip install 'fpemu\[(\w+)\]'") as problem:
        call()
    name = str(problem.value).rpartition("[")[2].partition("]")[0]
    assert any(requirement.startswith(package) for requirement in extra[name])


def test_a_package_of_no_extra_is_named_itself():
    assert str(errors.missing_package("torch")) == "the package torch is not installed: pip install 'torch'"


def test_the_conda_recipe_has_the_version_and_the_requirements_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "conda" / "recipe" / "recipe.yaml").read_text()
    assert f'version: "{fpemu.__version__}"' in recipe
    assert f'python_min: "{project["requires-python"].removeprefix(">=")}"' in recipe
    run = recipe.partition("  run:\n")[2].partition("\n\n")[0]
    required = [*project["dependencies"], *project["optional-dependencies"]["cli"]]
    assert [line.strip(" -").replace(" ", "") for line in run.splitlines()[1:]] == required


@pytest.mark.slow
def test_the_wheel_reproduces_a_figure_in_an_empty_folder(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling builds the wheel: pip install hatchling")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("fpemu-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "fpemu/py.typed" in archive.namelist()
        assert not [name for name in archive.namelist() if name.startswith(("tests/", "figures/")) or ".pyc" in name]
        archive.extractall(tmp_path / "site")
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "FPEMU_CACHE": str(tmp_path / "cache")}
    environment.pop("FPEMU_EXPERIMENTS", None)
    code = "import fpemu, sys; from fpemu.cli import main; print(fpemu.__file__); sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "reproduce", "h2sgemm/fig2a", "-j", "1"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "site") in done.stdout
    assert sorted(path.name for path in (empty / "figures" / "h2sgemm").iterdir()) == [
        "fig2a.csv",
        "fig2a.json",
        "fig2a.md",
        "fig2a.png",
    ]
    A = np.ones((2, 2), dtype=np.float32)
    assert fpemu.gemm(A, A, scheme="ootomo", hardware="A100")[0, 0] == 2
