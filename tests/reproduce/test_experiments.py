"""The papers' figures as pages: their cells, their verdicts on made-up data, and one real small cell of each."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fpemu.errors import InputError
from fpemu.reproduce import pages
from fpemu.sweep.store import canonical
from tests import toy

ROOT = Path(__file__).resolve().parents[2] / "experiments"
NAMES = pages.names()


@pytest.fixture(params=sorted(NAMES))
def experiment(request):
    return pages.load(request.param, ROOT)


@pytest.mark.parametrize("size", pages.SIZES)
def test_cells_are_distinct_and_have_the_same_parameters(experiment, size):
    cells = experiment.cells(size)
    assert len({canonical(cell) for cell in cells}) == len(cells) > 0
    assert len({tuple(cell) for cell in cells}) == 1
    assert all(experiment.cost(cell) > 0 for cell in cells)
    assert all(cell.get("seed", 0) >= 0 for cell in cells)


def test_texts_are_whole(experiment):
    assert experiment.title
    assert experiment.page.caption.endswith(".")
    assert all(text.endswith((".", ").")) for text in experiment.page.assumptions)


SMALL = {
    "legemm/applications": {"rows": 64, "width": 64, "inner": 32},
    "frontier/points": {"K": 64, "rows": 8},
    "h2sgemm/fig8": {"m": 16, "n": 16, "k": 64},
    "legemm/fig10": {"n": 32},
    "legemm/fig11": {"n": 32},
    "dgemm_tc/fig3": {"n": 64, "rows": 16},
    "dgemm_tc/fig8": {"n": 64, "rows": 16},
    "dgemm_tc/fig5b": {"n": 256, "rows": 8},
    "dgemm_tc/fig7b": {"n": 256, "rows": 8},
    "dgemm_tc/exactness": {"k": 16},
    "dgemm_tc/promise": {"n": 32},
    "ozaki2/yardsticks": {"k": 64, "rows": 8},
    "h2sgemm/fig9": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/plane": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/promotion": {"m": 8, "n": 8, "k": 256},
    "h2sgemm/termwise": {"m": 8, "n": 8, "k": 64},
    "h2sgemm/underflow": {"m": 8, "n": 8, "k": 64},
    "legemm/fig12": {"m": 16, "n": 16, "k": 64},
    "legemm/fig13": {"m": 16, "n": 16, "k": 64},
    "legemm/fig16": {"K": 64},
    "legemm/fig18": {"n": 64},
    "legemm/hardware": {"k": 64, "rows": 8},
    "legemm/markidis_budget": {"k": 64, "rows": 8},
    "legemm/split_rounding": {"k": 64, "rows": 8},
    "magma/accuracy": {"n": 16, "batch": 2},
    "magma/bias": {"m": 8, "n": 8, "k": 64},
    "magma/packed": {"n": 3, "groups": 2},
    "magma/halfcomplex": {"n": 5, "batch": 2},
    "magma/updates": {"k": 4, "batch": 2, "updates": 3},
    "magma/splitcomplex": {"m": 2, "k": 20},
    "tsm2/slices": {"m": 5, "k": 128},
    "tsm2/accuracy": {"m": 16, "k": 64},
    "tsm2/chains": {"k": 64},
}
"""What makes a cell small; pages that are not here are counted out at their own size, which is small."""
SIGNED = {"magma/bias"}
"""Pages whose numbers may be below zero."""
OVERFLOWS = {"h2sgemm/plane"}
"""Pages that go beyond the range of fp16 on purpose."""


def _small(experiment):
    """A cell of every setting of the experiment, at a small size."""
    cells = [{**cell, **SMALL.get(experiment.name, {})} for cell in experiment.cells("quick")]
    return list({canonical(cell): cell for cell in cells}.values())


@pytest.mark.slow  # a sample of every figure's cells is evaluated by the test of the committed figures
def test_a_small_cell_gives_finite_numbers_twice_the_same(experiment):
    found = []
    for cell in (_small(experiment)[0], _small(experiment)[-1]):
        numbers = experiment.evaluate(cell)
        assert numbers
        assert all(type(number) is float for number in numbers.values())
        assert experiment.name in OVERFLOWS or all(math.isfinite(number) for number in numbers.values())
        assert experiment.name in SIGNED or not any(number < 0 for number in numbers.values())
        assert canonical(_hex(experiment.evaluate(cell))) == canonical(_hex(numbers))
        found += numbers.values()
    assert any(number > 0 for number in found)


def _hex(numbers):
    return {name: number.hex() for name, number in numbers.items()}


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


def test_a_folder_of_the_user_with_the_same_names_is_another_package(tmp_path, monkeypatch):
    text = """
PAPER, CAPTION, ASSUMPTIONS = "A paper", "A caption.", []
from . import _shared

def cells(size): return [{"n": 1}]
def evaluate(cell): return {"x": _shared.VALUE}
def draw(rows): raise NotImplementedError
"""
    path = toy.write_page(tmp_path, "h2sgemm/fig8", text + toy.PAGE.format(""))
    path.with_name("_shared.py").write_text("VALUE = 5.0")
    monkeypatch.setenv("FPEMU_EXPERIMENTS", str(tmp_path))
    theirs, ours = pages.load("h2sgemm/fig8"), pages.load("h2sgemm/fig8", ROOT)
    assert theirs.evaluate({"n": 1}) == {"x": 5.0}
    assert (theirs.evaluator, ours.evaluator) == ("h2sgemm.fig8", "h2sgemm.fig8")
    assert theirs.module is not ours.module
