"""The notebooks: what is committed is what their sources give, and every assertion in them holds."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.project.test_docs import SESSION

MISSING = [name for name in ("jupytext", "nbformat", "nbclient", "ipykernel") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"without {', '.join(MISSING)}: pip install 'fpemu[lab]'")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.name != "build.py")


@pytest.fixture(scope="module")
def build():
    """notebooks/build.py as a module."""
    spec = importlib.util.spec_from_file_location("notebooks_build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def session():
    """A function that executes code in a separate process, which contains Jupyter's event loops, sockets and warnings.

    It returns the printed text and the traceback of an exception. One process imports Jupyter for all notebooks.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # of the kernels too
    with subprocess.Popen([sys.executable, "-c", SESSION], **pipes, env=environment) as python:

        def execute(code):
            python.stdin.write(json.dumps(code) + "\n")
            python.stdin.flush()
            return json.loads(python.stdout.readline())

        assert not execute(f"import os, pathlib, sys\nsys.path.insert(0, {str(FOLDER)!r})\nimport build")
        yield execute
        python.stdin.close()


def _new_output(kind, **content):
    from nbformat import v4

    return v4.new_output(kind, **content)


def test_there_are_notebooks(build):
    assert {"tour", "arithmetic", "dgemm_tc"} <= set(NAMES)
    assert build.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_notebook_is_that_of_its_source(build, name):
    committed = build.read(FOLDER / f"{name}.ipynb")
    assert build.differences(name, committed) == []
    assert build.text(committed) == (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")


FIRST = {"verify": "# %%\ndef judge", "reproducibility": "\nprint("}
"""The notebooks with relative paths, all of them in the first cell, and the text after that cell's paths."""


@pytest.mark.parametrize("folder", [ROOT, FOLDER], ids=["root", "notebooks"])
def test_a_kernel_may_start_in_both_folders(folder):
    for name in NAMES:
        source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        first, _, rest = source.partition(FIRST[name]) if name in FIRST else ("", "", source)
        assert not re.search(r"(Path|open|read_csv)\(\s*f?[\"'](?!/)", rest), name
        if not first:
            continue
        code = "\n".join(line for line in first.splitlines() if not line.startswith("#"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_runs_and_shows_what_is_committed(build, session, name, tmp_path):
    """Its texts and the places of its pictures; `make reproduce ARGS="all --redraw"` draws the figures."""
    printed = session(
        f"os.environ['FPEMU_CACHE'] = {str(tmp_path / 'cache')!r}\n"
        f"assert build.main([{name!r}, '--no-pictures', '--output', {str(tmp_path)!r}]) == 0"
    )
    assert "Traceback" not in printed, printed
    made, committed = build.read(tmp_path / f"{name}.ipynb"), build.read(FOLDER / f"{name}.ipynb")
    for cell, ours, theirs in zip(
        (cell for cell in made.cells if cell.cell_type == "code"),
        build.outputs(made),
        build.outputs(committed),
        strict=True,
    ):
        assert ours == theirs, f"another output; 'make notebooks ARGS={name}' writes it\n{cell.source}"


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_small_and_says_nothing_of_the_machine(name):
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert not re.search(r"(/home/|/root/|/tmp/|/work/|/usr/)", text)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_notebook_needs_is_in_the_package(build, name):
    """It asserts what it says; it defines next to nothing, and nothing under a name that the package has."""
    code = [cell.source for cell in build.source(name).cells if cell.cell_type == "code"]
    trees = [ast.parse("\n".join(line for line in cell.splitlines() if not line.startswith("%"))) for cell in code]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    asserts = [sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) for tree in trees]
    assert asserts[-1] >= 3
    assert not any(asserts[:-1]), "assertions belong into the last cell"
    defined = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(defined) <= 3, "functions belong into the package, where they have tests"
    assert not set(defined) & _names_of_the_package()


@cache
def _names_of_the_package():
    """What the package's modules define."""
    return {
        node.name
        for path in (ROOT / "fpemu").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_links_lead_somewhere(build):
    for name in NAMES:
        for cell in build.source(name).cells:
            for target in re.findall(r"\]\(([^)#]+)\)", cell.source) if cell.cell_type == "markdown" else ():
                if not target.startswith("http"):
                    assert (FOLDER / target).is_file(), f"{name} points to {target}"


# --- the tool itself
@pytest.fixture
def workshop(build, tmp_path, monkeypatch):
    """A folder with a notebook of four cells, made with the tool."""
    monkeypatch.setattr(build, "HERE", tmp_path)
    source = "# %% [markdown]\n# # Title\n\n# %%\nx = 2\n\n# %%\nprint(x)\n\n# %%\nprint(x)\n"
    (tmp_path / "small.py").write_text(source, encoding="utf-8")
    made = build.source("small")
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
        cell.outputs = [_new_output("stream", text="2\n")] if "print" in cell.source else []
    return tmp_path, made


def test_a_notebook_in_order_has_no_differences(build, workshop):
    folder, made = workshop
    assert build.names() == ["small"]
    assert build.differences("small", made) == []
    assert build.outputs(made) == [[], ["2"], ["2"]]
    (folder / "small.ipynb").write_text(build.text(made), encoding="utf-8")
    again = build.read(folder / "small.ipynb")
    assert build.differences("small", again) == []
    assert build.text(again) == build.text(made)


def test_ids_follow_from_the_text(build, workshop):
    _, made = workshop
    ids = [cell.id for cell in made.cells]
    assert len(set(ids)) == 4
    assert ids[3] == f"{ids[2]}-2"
    assert ids == [cell.id for cell in build.source("small").cells]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda made: made.cells[1].update(source="x = 3"), "the cells of small.ipynb are not those of small.py"),
        (lambda made: made.cells.pop(), "the cells of small.ipynb are not those of small.py"),
        (lambda made: made.cells[2].update(outputs=[]), "no output of the cell that begins: print(x)"),
        (lambda made: made.cells[2].update(execution_count=7), "the cells were not executed once each, in order"),
        (lambda made: made.metadata.update(author="me"), "the notebook's metadata are not those"),
        (lambda made: made.cells[3].update(outputs=[_new_output("error")]), "a cell failed: print(x)"),
    ],
)
def test_differences_are_found(build, workshop, spoil, complaint):
    _, made = workshop
    spoil(made)
    assert any(complaint in line for line in build.differences("small", made))


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("x = 1", False),
        ("%matplotlib inline\nimport os", False),
        ("x = 1\nx", True),
        ("for i in x:\n    print(i)", True),
        ("", False),
    ],
)
def test_what_shows_something(build, code, shown):
    assert build.shows(code) is shown


def test_check_reports_what_is_missing(build, workshop, capsys):
    folder, made = workshop
    assert build.main(["--check", "--output", str(folder)]) == 1
    assert "small: there is no small.ipynb" in capsys.readouterr().err
    (folder / "small.ipynb").write_text(build.text(made), encoding="utf-8")
    assert build.main(["--check", "small", "--output", str(folder)]) == 0
    with pytest.raises(SystemExit):
        build.main(["smal"])
    assert "no notebook 'smal' here; there are small" in capsys.readouterr().err


EXECUTE = """
here, build.HERE = build.HERE, pathlib.Path({folder!r})
try:
    print([build.text(build.execute(build.source("one"))) for _ in range({times})])
finally:
    build.HERE = here
"""


@pytest.mark.slow
def test_a_run_leaves_no_trace_of_itself(session, tmp_path):
    """Two runs, the same bytes: no times, no random ids."""
    (tmp_path / "one.py").write_text("# %%\nimport os\n\n1 + 1\n\n# %%\nprint(os.path.basename(os.getcwd()))\n")
    first, second = ast.literal_eval(session(EXECUTE.format(folder=str(tmp_path), times=2)))
    assert first == second
    cells = json.loads(first)["cells"]
    assert cells[0]["outputs"][0]["data"]["text/plain"] == ["2"]
    assert cells[1]["outputs"][0]["text"] == [f"{ROOT.name}\n"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("# %%\nassert 1 == 2, 'not so'\n", ": not so"),
        ("# %%\nimport warnings\n\nwarnings.warn('careful')\n", "RuntimeError: a cell wrote to stderr"),
    ],
)
def test_a_failing_cell_and_a_warning_stop_the_build(session, tmp_path, source, complaint):
    (tmp_path / "one.py").write_text(source)
    assert complaint in session(EXECUTE.format(folder=str(tmp_path), times=1))
