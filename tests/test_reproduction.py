"""Rows that come back from the data of a drawn figure as they went in, and figures drawn again from them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fpemu import plotting
from fpemu.errors import InputError
from fpemu.sweep import Store, experiments, figures
from fpemu.sweep.reproduction import Reproduction, committed, reproduce

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "figures"
DRAWN = sorted(path for folder in ("", "full") for path in (FIGURES / folder).glob("*/*.json"))
DRAWN = [path for path in DRAWN if path.parent.parent in (FIGURES, FIGURES / "full") and path.parent.name != "full"]

PAGE = """
PAPER, TITLE, CAPTION, ASSUMPTIONS = "A paper", "a <title>", "A caption.", ["One."]


def cells(size):
    return [{"n": n, "seed": seed, "split": None if n == 2 else 16} for n in (2, 4) for seed in range(3)]


def evaluate(cell):
    import pathlib

    with pathlib.Path("log").open("a") as log:
        log.write("x")
    return {"error": cell["n"] + cell["seed"] / 10} | ({"second": 1e-300} if cell["n"] == 4 else {})


def draw(rows):
    from fpemu import plotting

    figure, axes = plotting.figure(1, width=plotting.SINGLE)
    look = plotting.Series("error", plotting.BLUE, "o")
    lengths = sorted({row["n"] for row in rows})
    plotting.band(axes[0, 0], lengths, [[row["error"] for row in rows if row["n"] == n] for n in lengths], look)
    axes[0, 0].set_xlabel("$n$")
    return figure


def claims(rows):
    from fpemu.sweep.claims import reduction

    return [reduction("a < b", 2.0, max(row["error"] for row in rows) / 2)]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "papers" / "paper").mkdir(parents=True)
    (tmp_path / "papers" / "paper" / "fig2.py").write_text(PAGE)
    monkeypatch.setenv("FPEMU_EXPERIMENTS", str(tmp_path / "papers"))
    monkeypatch.delenv("FPEMU_CACHE", raising=False)
    return tmp_path


def _bits(value):
    return (type(value), value.hex() if isinstance(value, float) else value)


# --- data
VALUES = [
    0, -7, 10**40, True, False, None, 0.0, -0.0, 1.0, 0.1, 5e-324, 1.7976931348623157e308, 1e16, math.inf, -math.inf,
    "text", "with, comma", 'a "quoted" one', "two\nlines", "two\r\nlines", "φ = 0.1", " spaces ", "12", "-3", "1e5",
    "1.", "0.5", "nan", "inf", "-inf", "True", "None", "", '"12"', "[1, 2]", "[0, 1)", "{", "1_000", "0x10", "Infinity",
    "element-wise", [1, 2], ["a", None], {"split": 64}, math.nan,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_value_comes_back_with_its_type(tmp_path, value):
    path = tmp_path / "x.csv"
    path.write_bytes(figures.table([{"n": 1, "value": value, "last": "end"}]))
    (row,) = figures.read(path)
    assert list(row) == ["n", "value", "last"]
    assert _bits(row["value"]) == _bits(value)


def test_what_a_row_does_not_have_it_does_not_get(tmp_path):
    rows = [{"n": 1, "a": 0.5}, {"n": 2, "b": None}, {"n": 3, "a": 2.0, "b": "x"}]
    (tmp_path / "x.csv").write_bytes(figures.table(rows))
    assert figures.read(tmp_path / "x.csv") == rows
    (tmp_path / "none.csv").write_bytes(figures.table([]))
    assert figures.read(tmp_path / "none.csv") == []


def test_plain_values_look_plain():
    assert (
        figures.table([{"n": 4, "x": 0.25, "ok": True, "s": "a", "none": None}])
        == b"n,x,ok,s,none\n4,0.25,True,a,None\n"
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"a,b\n1\n", "row 2 has 1 values for 2 columns"), (b'a\n"1\n', "cannot read"), (b"a\n\xff\n", "cannot read")],
)
def test_a_table_that_is_none_is_refused(tmp_path, content, complaint):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        figures.read(tmp_path / "x.csv")
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        figures.read(tmp_path / "nowhere.csv")


# --- evaluated and committed
def test_reproduce_evaluates_once_and_committed_never(folder):
    first = reproduce("paper/fig2")
    assert Path("log").read_text() == "x" * 6
    assert reproduce("paper/fig2").rows == first.rows
    with Store(folder / "other.sqlite") as results:
        assert reproduce("paper/fig2", results=results).rows == first.rows
        assert len(results) == 6
    assert Path("log").read_text() == "x" * 12
    figures.write(first.experiment, "quick", first.rows, "figures")
    there = committed("paper/fig2")
    assert there.rows == first.rows
    assert Path("log").read_text() == "x" * 12
    assert (there.experiment.name, there.size) == ("paper/fig2", "quick")
    assert dataclasses.is_dataclass(Reproduction)
    with pytest.raises(dataclasses.FrozenInstanceError):
        there.size = "full"


def test_a_reproduction_is_table_figure_and_claims(folder):
    found = reproduce("paper/fig2")
    frame = found.frame
    assert list(frame.columns) == ["n", "seed", "split", "error", "second"]
    assert frame["error"].tolist() == [2.0, 2.1, 2.2, 4.0, 4.1, 4.2]
    assert plotting.png(found.figure()) == plotting.png(found.figure())
    assert [(claim.claim, claim.value, claim.verdict) for claim in found.claims] == [("a < b", 2.1, "holds")]
    assert found.finding is None
    shown = found._repr_html_()
    assert "a &lt;title&gt;" in shown
    assert "<td>a &lt; b</td><td>2×</td><td>2.1×</td><td>holds</td>" in shown


def test_full_figures_are_found_under_full_and_folders_beside_the_experiments(folder, monkeypatch):
    found = reproduce("paper/fig2", "full")
    with pytest.raises(InputError, match=r"fig2\.csv: 'fpemu reproduce paper/fig2 --full' makes it"):
        committed("paper/fig2", "full")
    figures.write(found.experiment, "full", found.rows, "figures/full")
    (folder / "notebooks").mkdir()
    monkeypatch.chdir("notebooks")
    assert committed("paper/fig2", "full").rows == found.rows
    with pytest.raises(InputError, match=r"fig2\.csv: 'fpemu reproduce paper/fig2' makes it"):
        committed("paper/fig2")


def test_data_that_were_changed_are_refused(folder):
    found = reproduce("paper/fig2")
    figures.write(found.experiment, "quick", found.rows, "figures")
    path = Path("figures/paper/fig2.csv")
    path.write_text(path.read_text().replace("2.1", "2.5"))
    with pytest.raises(InputError, match="was changed"):
        committed("paper/fig2")
    path.with_suffix(".json").unlink()
    assert committed("paper/fig2").rows[1]["error"] == 2.5
    for arguments, complaint in (
        (("paper/fig3",), "did you mean 'paper/fig2'"),
        (("paper/fig2", "ful"), "unknown size"),
    ):
        with pytest.raises(InputError, match=complaint):
            committed(*arguments)


def test_a_fresh_process_writes_the_same_bytes(folder):
    found = reproduce("paper/fig2")
    paths = figures.write(found.experiment, "quick", found.rows, "one")
    assert [path.suffix for path in paths] == [".png", ".svg", ".pdf", ".csv", ".json"]
    script = (
        "from fpemu.sweep import figures\nfrom fpemu.sweep.reproduction import committed\n"
        "found = committed('paper/fig2', folder='one')\n"
        "figures.write(found.experiment, 'quick', found.rows, 'two')\n"
    )
    for seed in ("1", "2"):  # sets of text in another order
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script], env=environment, check=True)
        assert [path.read_bytes() for path in paths] == [Path("two", *path.parts[1:]).read_bytes() for path in paths], (
            seed
        )
        shutil.rmtree("two")


# --- the figures in the repository
@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.relative_to(FIGURES).with_suffix("").as_posix())
def test_committed_figures_are_drawn_again_from_their_data(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    found = committed(record["figure"], record["size"], FIGURES)
    assert len(found.rows) == record["cells"]
    assert [list(cell.items()) for cell in found.experiment.cells(record["size"])] == [
        [(name, row[name]) for name in record["parameters"]] for row in found.rows
    ]
    assert [(c.claim, c.measured, c.verdict) for c in found.claims] == [
        (c["claim"], c["measured"], c["verdict"]) for c in record["claims"]
    ]
    for name in ("matplotlib", "numpy"):
        here = importlib.metadata.version(name)
        if here != record["versions"][name]:
            pytest.skip(f"drawn with {name} {record['versions'][name]}, here is {here}: other bytes")
    figure = found.figure()
    assert plotting.png(figure) == path.with_suffix(".png").read_bytes()
    assert plotting.svg(figure) == path.with_suffix(".svg").read_bytes()


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.relative_to(FIGURES).with_suffix("").as_posix())
def test_claims_can_be_judged_at_single_seeds_and_at_single_sizes(path):
    record = json.loads(path.read_text(encoding="utf-8"))
    found = committed(record["figure"], record["size"], FIGURES)
    together = {claim.claim for claim in found.claims}
    points = len({json.dumps([row[name] for name in record["parameters"] if name != "seed"]) for row in found.rows})
    for seed in dict.fromkeys(row["seed"] for row in found.rows if "seed" in row):
        rows = [row for row in found.rows if row["seed"] == seed]
        if len(rows) == points:
            assert {claim.claim for claim in found.experiment.claims(rows)} == together
    for name in ("n", "k"):
        for value in dict.fromkeys(row[name] for row in found.rows if name in row):
            found.experiment.claims([row for row in found.rows if row.get(name) == value])


def test_every_committed_figure_has_a_page():
    assert {path.relative_to(FIGURES).with_suffix("").as_posix().removeprefix("full/") for path in DRAWN} <= set(
        experiments.names()
    )
