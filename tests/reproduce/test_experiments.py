"""The loading of pages: titles, sources, packages of pages of one name, and what cannot be loaded."""

from pathlib import Path

import pytest

from fpemu.errors import InputError
from fpemu.reproduce import pages
from tests import toy

ROOT = Path(__file__).resolve().parents[2] / "experiments"
NAMES = pages.names()


def test_figures_10_and_11_share_their_cells():
    ten, eleven = (pages.load(f"legemm/fig{n}", ROOT) for n in (10, 11))
    assert ten.evaluator == eleven.evaluator
    assert ten.sources == eleven.sources
    assert ten.cells("quick") == eleven.cells("quick")


def test_titles_are_a_table_of_texts(tmp_path):
    toy.write_page(tmp_path, "toy/a", "1 / 0", "The title")
    assert pages.titles(tmp_path) == {"toy/a": "The title"}  # without the execution of the page
    (tmp_path / "toy" / "paper.toml").write_text("[titles]\nb = 1\n")
    with pytest.raises(InputError, match=r"paper\.toml: \[titles\] is not a table of figures with their titles"):
        pages.titles(tmp_path)


def test_a_page_that_is_not_listed_or_not_there_or_no_text_is_one_line(tmp_path):
    path = toy.write_page(tmp_path, "toy/a", "1 / 0")
    for name, content, message in (
        ("toy/b", b"", "unknown experiment 'toy/b'"),
        ("toy/a", b"\xff", "SyntaxError"),
        ("toy/a", None, r"lists toy/a, but there is no .*a\.py"),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            pages.load(name, tmp_path)


def test_the_sources_of_a_page_are_its_folder_and_all_that_it_imports_elsewhere(tmp_path):
    text = "from ..other import _a\nfrom ..other._b import (\n    X,\n)\ndef f():\n    from .._late import Y\n1 / 0\n"
    path = toy.write_page(tmp_path, "toy/a", text)
    for name, content in (("_a", "from . import _c"), ("_b", "X = 1"), ("_c", ""), ("_d", "")):
        toy.write_page(tmp_path, f"other/{name}", content)
    (tmp_path / "_late.py").write_text("Y = 1")
    found = [file.relative_to(tmp_path).as_posix() for file in pages._sources(tmp_path, path)]
    assert found == ["toy", "_late.py", "other/_a.py", "other/_b.py", "other/_c.py"]


def test_every_page_is_listed_and_every_listed_page_exists():
    files = [p for p in ROOT.glob("*/*.py") if p.name[0] != "_" and p.name != "model.py"]
    tables = {name for name in NAMES if not (ROOT / f"{name}.py").is_file()}
    assert {f"{p.parent.name}/{p.stem}" for p in files} | tables == set(NAMES)
    assert {pages.load(name, ROOT).module.__name__.rpartition(".")[2] for name in tables} == {"_pages"}


def test_a_folder_of_the_user_with_the_same_names_is_another_package(tmp_path):
    text = """
PAPER, CAPTION, ASSUMPTIONS = "A paper", "A caption.", []
from . import _shared

def cells(size): return [{"n": 1}]
def evaluate(cell): return {"x": _shared.VALUE}
def draw(rows): raise NotImplementedError
"""
    path = toy.write_page(tmp_path, "h2sgemm/fig8", text + toy.PAGE.format(""))
    path.with_name("_shared.py").write_text("VALUE = 5.0")
    theirs, ours = pages.load("h2sgemm/fig8", tmp_path), pages.load("h2sgemm/fig8", ROOT)
    assert theirs.evaluate({"n": 1}) == {"x": 5.0}
    assert (theirs.evaluator, ours.evaluator) == ("h2sgemm.fig8", "h2sgemm.fig8")
    assert theirs.module is not ours.module
