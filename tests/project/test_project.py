"""The project as a whole: the map of the code, public names, make, versions, committed figures."""

from __future__ import annotations

import ast
import contextlib
import graphlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fpemu
from fpemu.cli import main
from fpemu.reproduce import pages

ROOT = Path(__file__).resolve().parents[2]


def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_one():
    project = _project()
    assert project["dynamic"] == ["version"]  # from fpemu/__init__.py
    assert re.search(rf"^version: {re.escape(fpemu.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    assert heading[1] == fpemu.__version__
    assert project["license"] == "BSD-3-Clause"
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License\n\nCopyright (c) 2026, The fpemu developers")


def test_architecture_names_every_subpackage_and_no_missing_file():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    layout = text.partition("## Layout")[2].partition("```\n")[2].partition("```")[0]
    listed = set(re.findall(r"[\w.]+\.py|\w+/(?=\s)", layout))
    for package in (ROOT / "fpemu").rglob("__init__.py"):
        assert f"{package.parent.name}/" in listed, f"ARCHITECTURE.md does not name {package.parent.relative_to(ROOT)}"
    paths = text.partition("## Path of a request")[2].partition("## Public")[0]
    listed |= {Path(name).name for name in re.findall(r"`([\w/]+\.(?:py|cuh?))`", paths)}
    existing = {p.name for p in ROOT.rglob("*.*")} | {f"{p.name}/" for p in ROOT.rglob("*") if p.is_dir()}
    assert {name for name in listed if not name.startswith("_")} <= existing


def _modules():
    """The package's modules by dotted name."""
    files = {path.relative_to(ROOT).with_suffix("").parts: path for path in (ROOT / "fpemu").rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path for parts, path in files.items()}


def _imports(modules):
    """Pairs (module, imported module) of the package, imports inside functions included, those for types excepted."""
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                node.body = []
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: relative import"
                names = [
                    full if (full := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
                ]
            for name in names:
                if name in modules and name != module:
                    yield module, name


def test_no_module_imports_itself_through_others():
    modules = _modules()
    graph: dict[str, set] = {module: set() for module in modules}
    for module, name in _imports(modules):
        graph[module].add(name)
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))
    assert len(order) == len(modules) > 100


def test_imports_follow_the_documented_dependencies():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Dependencies")[2]
    common, table = (block.split("\n", 1)[1] for block in text.split("```")[1:4:2])
    allowed = {words[0]: {*words[1:], *common.split()} for line in table.splitlines() if (words := line.split())}
    assert not {"cli", "experiments"} & set().union(*allowed.values())
    only = re.search(r"only\s+`fpemu\.([\w.]+)` imports gpu", text)
    assert only
    for module, name in _imports(_modules()):
        _, package, *rest = f"{module}.".split(".")
        imported = f"{name}.".split(".")[1]
        if package in ("", "cli", "__main__") or imported in ("", package):
            continue
        if imported == "gpu" and ".".join([package, *rest]).startswith(only[1]):
            continue
        assert imported in allowed.get(package, common.split()), (
            f"{module} imports {name}: ARCHITECTURE.md, 'Dependencies', does not permit it"
        )


def _public_names():
    """The names in ARCHITECTURE's list of public names and in README, each as the dotted paths it may stand for."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = text.partition("## Public names")[2].partition("```python\n")[2].partition("```")[0]
    listed = re.sub(r"\n +", " ", listed)
    for _ in range(3):  # nested arguments, and attributes of results
        listed = re.sub(r"\([^()]*\)[.\w]*", "", listed)
    names = []
    for line in listed.splitlines():
        parents = ["fpemu"]  # of the names that follow without "fpemu."
        for item in re.split("[,;]", re.sub(r"(->|:)[^;]*", "", line)):
            name = re.match(r"[\w.]*\w", item.strip())
            if name is None or name[0].startswith("fmt."):
                continue
            prefix = name[0].rpartition(".")[0]
            if name[0].startswith("fpemu."):
                names.append([name[0]])
                parents = [prefix.rsplit(".", n)[0] for n in range(max(1, prefix.count(".")))]
            else:
                names.append([f"{parent}.{name[0]}" for parent in parents])
                parents = [*(f"{parent}.{prefix}" for parent in parents if prefix), *parents]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names += [[name] for name in re.findall(r"\bfpemu(?:\.[A-Za-z_]\w*)+", readme)]
    return sorted(names)


NAMES = """
import itertools, json, os, sys
import matplotlib, numba, pandas, scipy.linalg  # once for all groups
import fpemu

def found(path):
    value = fpemu
    for part in path.split(".")[1:]:
        value = getattr(value, part, None)
    return value

for _, group in itertools.groupby(json.loads(sys.argv[1]), lambda paths: paths[0].split(".")[:2]):
    child = os.fork()
    if not child:  # with nothing but fpemu imported
        lost = [paths[0] for paths in group if all(found(path) is None for path in paths)]
        print(*lost, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def _printed(code, *arguments):
    """What a fresh process prints that imports this package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env=environment).stdout


@pytest.mark.slow
def test_public_names_are_reachable_after_import_fpemu_alone():
    names = _public_names()
    paths = {path for paths in names for path in paths}
    assert len(names) > 100
    assert {"fpemu.gpu.tallskinny.multiply", "fpemu.probing.trees.text"} <= paths
    unknown = [["fpemu.gpu.batch"], ["fpemu.batched.hgem"]]
    assert _printed(NAMES, json.dumps([*names, *unknown])).split() == ["fpemu.gpu.batch", "fpemu.batched.hgem"]


def test_listed_names_of_the_gpu_subpackage_are_attributes():
    assert {"batched", "gemm", "tallskinny"} <= {*fpemu.gpu.__all__}
    assert dir(fpemu) == sorted(fpemu.__all__)
    for package in (fpemu, fpemu.gpu):
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'gem'"):
            package.gem  # noqa: B018


def test_importing_is_light():
    code = (
        "import numpy, sys, time; before = set(sys.modules); start = time.process_time(); import fpemu; "
        "fpemu.round_to; "
        "print(time.process_time() - start); "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names))); "
        "from fpemu.gpu import batched, tallskinny; "
        "print(sorted({'cuda', 'torch', 'cupy', 'triton'} & set(sys.modules)))"
    )
    runs = [_printed(code).splitlines() for _ in range(3)]
    assert {tuple(run[1:]) for run in runs} == {("['fpemu', 'numpy']", "[]")}
    assert min(float(run[0]) for run in runs) < 0.2  # seconds of this process, the fastest of three


@pytest.mark.parametrize(
    "target",
    ["setup", "test", "test-all", "lint", "reproduce", "ledger", "notebooks", "docs", "bench", "clean", "help"],
)
def test_make_has_its_targets(target):
    done = subprocess.run(["make", "-n", target], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def _make_setup(folder, python, **environment):
    """`make setup` of this Makefile in another folder."""
    shutil.copy(ROOT / "Makefile", folder)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "PYTHON"))}
    command = ["make", "setup", f"PYTHON={python}"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**clean, **environment})


@pytest.mark.parametrize("why", ["old", "missing"])
def test_make_setup_names_a_python_that_is_old_or_missing(why, tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac\n')
    old.chmod(0o755)
    (tmp_path / "pyproject.toml").write_text("")
    python, message = {
        "old": (old, "Python 3.9.2 is too old: fpemu needs Python 3.11 or newer"),
        "missing": ("nopython", "nopython not found: install Python 3.11 or newer"),
    }[why]
    done = _make_setup(tmp_path, python)
    assert done.returncode != 0
    assert message in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("changed", ["", " M figures/legemm/fig5.csv"])
def test_ci_draws_the_figures_and_ends_with_the_tests(changed, tmp_path):
    (tmp_path / "make").write_text(f'#!/bin/sh\necho make "$@" >>{tmp_path}/commands\n')
    (tmp_path / "git").write_text(f'#!/bin/sh\necho git "$@" >>{tmp_path}/commands\nprintf "%s" "{changed}"\n')
    for command in ("make", "git"):
        (tmp_path / command).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([ROOT / ".ci" / "run"], capture_output=True, text=True, env={**os.environ, "PATH": path})
    commands = (tmp_path / "commands").read_text().splitlines()
    first = ["make -j3 --output-sync lint docs reproduce ARGS=all --redraw", "git status --porcelain"]
    assert commands == first + ["make test-all"] * (not changed)
    assert done.returncode == bool(changed)
    assert changed in done.stderr


FULL = ROOT / "figures" / "full"
FIGURES = sorted(p.with_suffix("") for p in (ROOT / "figures").glob("*/*.json"))
FIGURES_IN_FULL = sorted(p.with_suffix("") for p in FULL.glob("*/*.json"))
OVERFLOWS = {"h2sgemm/plane", "h2sgemm/rounding"}
"""Figures in which an overflow is a result."""


def test_every_experiment_has_its_figure():
    drawn = {path.relative_to(ROOT / "figures").as_posix() for path in FIGURES}
    listed = set(pages.names())
    assert drawn == listed

    assert {path.relative_to(FULL).as_posix() for path in FIGURES_IN_FULL} <= listed


@pytest.mark.parametrize("stem", FIGURES + FIGURES_IN_FULL, ids=lambda p: "/".join(p.parts[-3:]))
def test_committed_figures_are_whole(stem):
    record = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    data = stem.with_suffix(".csv").read_bytes()
    assert record["figure"] == "/".join(stem.parts[-2:])
    assert record["size"] == ("full" if FULL in stem.parents else "quick")
    assert record["data"] == {"file": f"{stem.name}.csv", "sha256": hashlib.sha256(data).hexdigest()}
    assert record["cells"] == len(data.decode().splitlines()) - 1
    assert record["measures"] or record["finding"]
    assert record["version"] >= 1
    picture = stem.with_suffix(".png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert record["picture"]["file"] == f"{stem.name}.png"
    assert record["picture"]["sha256"] == hashlib.sha256(picture).hexdigest()
    assert not [
        path for path in stem.parent.glob(f"{stem.name}.*") if path.suffix not in (".csv", ".json", ".md", ".png")
    ]
    assert record["figure"] in OVERFLOWS or not re.search(rb"(^|,)(-?inf|nan)(,|\r?$)", data, re.MULTILINE)
    text = json.dumps(record)
    assert not re.search(r"(/home/|/root/|/tmp/|/work/|\d\d:\d\d:\d\d)", text)


@pytest.mark.slow
def test_the_ledger_agrees_with_the_figures(capsys):
    with contextlib.chdir(ROOT):
        assert main(["ledger", "--check"]) == 0, capsys.readouterr().err
