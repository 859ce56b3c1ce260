"""Every example of the documentation runs as printed: the blocks of a page in order, in a separate folder.

`python` blocks of a page share one namespace; the `text` block that follows one is its output. `console` blocks hold
commands with their output; a block with a caption is a file. `py` blocks need a GPU with PyTorch. `sh` blocks need a
GPU, a cluster or the network: they are not run, but their commands and options must exist.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from fpemu.gpu.runtime import device
from tests.project.test_readme import _commands, _run, _words

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(DOCS).with_suffix("")): page
    for page in sorted(DOCS.rglob("*.md"))
    if page.relative_to(DOCS).parts[0] not in ("generated", "_build")
}
SLOW = {
    "guides/verify",
    "guides/test",
    "guides/sweep",
    "guides/cluster",
    "guides/orders",
    "guides/compare",
    "guides/add-instruction",
    "guides/kit",
}
STATUS = {"verify gemm": 1}
"""Exit status of the commands that show a failed check."""


class Block(NamedTuple):
    """A fenced block: its language, the file that its caption names, its text, and the output that a page shows."""

    language: str
    file: str
    text: str
    shown: str


def blocks(page):
    """The blocks of a page that are examples."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(
        r"^```(?:\{code-block\} )?(\w+)\n(?::caption: (\S+)\n\n?)?(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    pairs = pairwise([*fences, ("", "", "")])
    return [
        Block(language, file, body, following[2] if following[0] == "text" and language in ("python", "py") else "")
        for (language, file, body), following in pairs
        if language != "text"
    ]


SESSION = """
import contextlib, io, json, sys, traceback
namespace = {"__name__": "__main__"}
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(json.loads(line), "<example>", "exec"), namespace)
        except BaseException:
            printed.write(traceback.format_exc())
    print(json.dumps(printed.getvalue()), flush=True)
"""


def run(page, folder, commands=_run):
    """Run the blocks of a page; yield (block or command, expected output, output)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FPEMU_CACHE": str(folder / ".fpemu"), "MPLBACKEND": "Agg"}
    session = functools.partial(subprocess.Popen, cwd=folder, env=environment, text=True, encoding="utf-8")
    arguments = [sys.executable, "-W", "error", "-c", SESSION]
    with session(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as python:
        for block in blocks(page):
            if block.file:
                (folder / block.file).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                python.stdin.write(json.dumps(block.text) + "\n")
                python.stdin.flush()
                yield block.text, block.shown, json.loads(python.stdout.readline())
            elif block.language == "console":
                for command, shown in _commands(block.text):
                    patient = ["--seconds", "600"] if command[1:3] == ["verify", "gemm"] else []
                    done = commands([*command, *patient], folder)
                    status = STATUS.get(" ".join(command[1:3]), 0)
                    failed = "" if done.returncode == status else f"status {done.returncode}\n{done.stderr}"
                    yield shlex.join(command), shown, done.stdout + failed
        python.stdin.close()


def test_every_block_is_of_a_kind_that_is_tested():
    languages = {block.language for page in PAGES.values() for block in blocks(page)}
    assert languages <= {"python", "py", "console", "sh", "toml"}
    captions = [block for page in PAGES.values() for block in blocks(page) if block.language == "toml"]
    assert all(block.file for block in captions)
    assert PAGES.keys() >= SLOW


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name, page in PAGES.items()
        if any(block.language in ("python", "console") for block in blocks(page))
    ],
)
def test_examples_print_what_the_page_shows(name, tmp_path):
    for example, shown, printed in run(PAGES[name], tmp_path):
        assert _words(printed) == _words(shown), example


@pytest.mark.gpu
@pytest.mark.parametrize(
    "block", [block for page in PAGES.values() for block in blocks(page) if block.language == "py"], ids=str
)
def test_gpu_examples_print_what_the_page_shows(block, tmp_path):
    if device.missing() is not None:
        pytest.skip(str(device.missing()))
    pytest.importorskip("torch")
    done = _run(["-c", block.text], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == block.shown


def _fpemu_commands():
    """The commands of `sh` blocks and of the prose, README's too, as lists of words."""
    for page in (*PAGES.values(), ROOT / "README.md"):
        for block in blocks(page):
            if block.language == "sh":
                yield from (words for line in block.text.splitlines() if (words := shlex.split(line, comments=True)))
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        yield from (code.split() for code in re.findall(r"`(fpemu [^`]*)`", prose))


@functools.cache
def _help():
    """The options of every command by its name, from the same source as the page of commands."""
    from fpemu.cli.commands import load_all

    known = {}

    def enter(command, name):
        known[name] = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
        for sub, child in getattr(command, "commands", {}).items():
            enter(child, f"{name} {sub}")

    enter(load_all(), "fpemu")
    return known


def test_commands_that_are_not_run_have_their_options():
    for words in _fpemu_commands():
        if words[0] != "fpemu":
            continue
        count = max(n for n in range(1, len(words) + 1) if " ".join(words[:n]) in _help())
        known = _help()[" ".join(words[:count])]
        if words[1:2] == ["sweep"] and count == 2:
            known = known | _help()["fpemu sweep run"]
        assert {word for word in words if re.match("--?[a-zA-Z]", word)} <= known, " ".join(words)


def test_committed_records_follow_the_published_schema():
    jsonschema = pytest.importorskip("jsonschema")
    path = DOCS / "generate.py"
    found = importlib.util.spec_from_file_location("generate", path)
    generate = importlib.util.module_from_spec(found)
    found.loader.exec_module(generate)
    validator = jsonschema.Draft202012Validator(generate.record_schema())
    records = [json.loads(p.read_text("utf-8")) for p in (ROOT / "tests" / "data" / "verified").glob("*.json")]
    records = [record for record in records if "suite" in record]
    assert len(records) >= 6
    for record in records:
        validator.validate(record)
