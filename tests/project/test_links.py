"""Every relative link of the documentation, of README and of the other texts names a file and a heading that exist.

The reference that is committed lists the names, commands, schemes and instructions of the package.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *ROOT.glob("*.md"),
        *(
            file
            for folder in ("docs", "figures", "benchmarks", "tests", "paper")
            for file in (ROOT / folder).rglob("*.md")
        ),
    )
    if not {"generated", "_build"} & set(path.parts)
)


def _anchors(text):
    """The anchors of the headings, as GitHub and MyST write them, and those of HTML."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (
        re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\]\([^)]*\)", "", one.lower())).replace(" ", "-") for one in headings
    )
    return {*plain, *re.findall(r'id="([^"]+)"', text)}


@pytest.mark.parametrize("name", TEXTS)
def test_relative_links_name_existing_files_and_headings(name):
    path, broken = ROOT / name, []
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^()\s]+)\)", text):
        address, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (path.parent / address).resolve() if address else path
        known = file.exists() and "generated" not in file.relative_to(ROOT).parts
        if not known or (anchor and file.suffix == ".md" and anchor not in _anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    assert not broken


def test_links_are_read():
    assert {"docs/guides/index.md", "README.md"} <= {*TEXTS}
    assert {"a-name", "b_c"} <= _anchors("# A `name`\n\n## b_c\n")


def test_the_committed_reference_lists_what_the_package_has():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for path, text in generate.committed().items():
        found, expected = (
            re.findall(r"^(#+ .*|\| `?[\w-]+)", one, re.MULTILINE) for one in (path.read_text("utf-8"), text)
        )
        assert found == expected, f"{path}: run 'python docs/generate.py'"
