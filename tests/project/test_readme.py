"""Every fenced example of README runs by itself: in a fresh process, with only the files that README names.

The `py` examples call a GPU. Where there is none, `simulated_driver` simulates CUDA's driver and torch.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from fpemu.gpu.runtime import compiler, device

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def _with_output(language):
    """The blocks of a language, each with the text block that follows it."""
    return [
        pytest.param(text, shown if following == "text" else "", id=text.splitlines()[-1][:50])
        for (one, text), (following, shown) in pairwise([*BLOCKS, ("", "")])
        if one == language
    ]


def _commands(block):
    """The lines of a console block as (command, printed); without output, comments are left out."""
    if not block.startswith("$"):
        return [(shlex.split(line, comments=True), "") for line in block.splitlines()]
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return [(shlex.split(command), shown) for command, shown in zip(parts[::2], parts[1::2], strict=True)]


SHOWN = [text for language, text in BLOCKS if language == "console" and text.startswith("$")]
PLAIN = [command for _, text in BLOCKS if _ == "console" and text[0] != "$" for command, _ in _commands(text)]


def _run(arguments, folder, **environment):
    """A fresh process in a folder: `fpemu` or Python with these arguments."""
    command = [sys.executable, "-m", *arguments] if arguments[0] == "fpemu" else [sys.executable, *arguments]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "FPEMU_CACHE": str(folder / ".fpemu"), **environment}
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=folder, env=environment)


def test_every_block_is_of_a_kind_that_is_tested():
    assert {language for language, _ in BLOCKS} == {"console", "python", "py", "text"}
    assert {command[0] for command in PLAIN} == {"make"}
    assert all(language != "text" or before in ("python", "py") for (before, _), (language, _) in pairwise(BLOCKS))
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize(("example", "shown"), _with_output("python"))
def test_python_examples_print_what_readme_shows(example, shown, tmp_path):
    done = _run(["-c", example], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == shown


@pytest.mark.parametrize(("example", "shown"), _with_output("py"))
def test_gpu_examples_run(example, shown, tmp_path):
    """On a GPU they print what README shows; simulated kernels compute no result, which the last line compares."""
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    simulated = device.missing() is not None
    if simulated and compiler.compiler_missing() is not None:
        pytest.skip(str(compiler.compiler_missing()))
    if not simulated:
        pytest.importorskip("torch")
    done = _run([*([str(ROOT / "tests" / "simulated_driver.py")] if simulated else []), "example.py"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (re.sub(r"^True$", "False", shown, flags=re.MULTILINE) if simulated else shown)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The matrices that the first example writes."""
    folder = tmp_path_factory.mktemp("readme")
    assert _run(["-c", next(text for language, text in BLOCKS if language == "python")], folder).returncode == 0
    return [folder / name for name in ("A.npy", "B.npy", "D.npy")]


def _lend(files, commands, folder):
    """Copy the files that the commands name."""
    for file in files:
        if any(file.name in command for command, _ in commands):
            shutil.copy(file, folder)


def _words(text):
    """The words of each line, without rules and times: the last column of error tables, and the seconds of a search."""
    lines = [line.rstrip() for line in text.splitlines() if "─" not in line or "├" in line or "└" in line]
    return [re.sub(r"(\s+\d+\.\d\d|\d+\.\d s)$", "", line).split() for line in lines if line]


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: " ".join(block.split()[2:4]))
def test_commands_print_what_readme_shows(block, files, tmp_path):
    commands = _commands(block)
    _lend(files, commands, tmp_path)
    for command, shown in commands:
        done = _run(command, tmp_path)
        assert done.returncode == 0, done.stderr
        assert _words(done.stdout) == _words(shown)


@pytest.mark.parametrize("command", PLAIN, ids=" ".join)
def test_make_has_the_targets_of_readme(command):
    done = subprocess.run([*command, "-n"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
