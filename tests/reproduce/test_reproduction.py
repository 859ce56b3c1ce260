"""Figures evaluated, read back and written: which files change, and which stay."""

import contextlib
import dataclasses
import io
import json
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread, imsave

from fpemu import mma, plotting
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.reproduce import figures, pages
from fpemu.reproduce.figures import Reproduction, committed, reproduce
from fpemu.sweep import Store
from tests import toy
from tests.commands import refusal

ROOT = Path(__file__).resolve().parents[2]

PAGE = """
PAPER, CAPTION, ASSUMPTIONS = "A paper", "A caption.", ["One."]


def cells(size):
    return [{"n": n, "seed": seed, "split": None if n == 2 else 16} for n in (2, 4) for seed in range(3)]


def evaluate(cell):
    import pathlib

    with pathlib.Path("log").open("a") as log:
        log.write("x")
    return {"error": cell["n"] + cell["seed"] / 10} | ({"second": 1e-300} if cell["n"] == 4 else {})


def draw(rows):
    from fpemu import mma, plotting

    figure, axes = plotting.figure(1, width=plotting.SINGLE)
    look = plotting.Series("error", plotting.BLUE, "o")
    lengths = sorted({row["n"] for row in rows})
    plotting.band(axes[0, 0], lengths, [[row["error"] for row in rows if row["n"] == n] for n in lengths], look)
    axes[0, 0].set_xlabel("$n$")
    return figure


def measures(rows):
    from fpemu.reproduce import Measure

    return [Measure("ratio", max(row["error"] for row in rows) / 2, variant="a < b")]
"""
PAGE += toy.PAGE.format(", measures=measures")
PAPER = """
title = "A paper"
source = "A journal."
[titles]
fig2 = "a <title>"
[[checks]]
name = "ratio"
kind = "goal"
claim = "a is less than b"
page = "paper/fig2"
quantity = "the largest error / 2"
unit = "×"
criterion = "1.5 to 2.5"
"""


@pytest.fixture
def folder(papers):
    toy.write_page("papers", "paper/fig2", PAGE, "a <title>")
    return papers


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
    (Path(found.experiment.root) / "paper" / "paper.toml").write_text(PAPER)
    (judgement,) = found.judgements
    assert [(case.variant, case.values, case.verdict) for case in judgement.cases] == [
        ("a < b", (2.0, 2.05, 2.1), "undecided")  # three seeds are too few
    ]
    assert found.finding is None
    shown = found._repr_html_()
    assert "a &lt;title&gt;" in shown
    assert "<td>a &lt; b</td><td>2.05× (2 to 2.1×)</td><td>undecided (3 seeds, 20 are required)</td>" in shown


UNIT = """
CAPTION = lambda given: f"Measured on {given['hardware']}."
ASSUMPTIONS = lambda given: [f"The unit is {given['hardware']}."]


def cells_of(hardware="ampere", lengths=(2, 4), seeds=3):
    return [{"n": n, "seed": seed, "split": 16, "hardware": hardware} for n in lengths for seed in range(seeds)]


PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells_of, evaluate, draw, measures, lambda rows: f"{rows[0]['n']}.")
"""


def test_a_figure_with_other_parameters_is_beside_the_papers_and_says_what_differs(folder, capsys):
    toy.write_page(folder / "papers", "paper/fig2", PAGE + UNIT)
    (folder / "papers" / "paper" / "paper.toml").write_text(PAPER)
    main(["reproduce", "paper/fig2", "-j", "1"])
    before = {path: path.read_bytes() for path in Path("figures").rglob("*.*")}
    capsys.readouterr()
    main(["reproduce", "paper/fig2", "-j", "1", "--set", "hardware=H200", "--set", "lengths=2:8:3", "--set", "seeds=3"])
    printed = capsys.readouterr().out
    assert "verdict" not in printed
    assert "figures/changed/paper/fig2_hardware-H200_lengths-2-5-8.{png,csv,json,md}: new" in printed
    assert {path: path.read_bytes() for path in before} == before
    record = figures.load_record("figures/changed/paper/fig2_hardware-H200_lengths-2-5-8.json")
    assert record.title == "a <title>, with hardware = H200, lengths = 2, 5, 8"
    ends = "hardware = H200 (published: ampere); lengths = 2, 5, 8 (published: 2, 4)."
    assert record.caption == f"Measured on hopper. Changed from the paper: {ends}"
    assert (record.assumptions, record.finding, record.measures) == (("The unit is hopper.",), "2.", ())
    assert record.command == "fpemu reproduce paper/fig2 --set hardware=H200 --set lengths=2,5,8"
    assert [spec["name"] for spec in record.hardware] == [mma.spec("H200").name]
    assert not record.paper_size
    text = Path("figures/changed/paper/fig2_hardware-H200_lengths-2-5-8.md").read_text()
    assert all(words in text for words in ("(fig2_hardware-H200_lengths-2-5-8.png)", ends, record.command))
    again = reproduce("paper/fig2", hardware="H200", lengths=[2, 5, 8])
    assert (again.record.command, again.judgements) == (record.command, [])
    assert len(again.rows) == 9
    assert " ".join(again.figure().get_suptitle().split()) == (
        "Changed from the paper: hardware = H200, lengths = 2, 5, 8"
    )
    assert reproduce("paper/fig2", seeds=3, hardware="A100").judgements  # the published values are no change


def test_hardware_without_an_instruction_of_the_page_is_refused_before_the_computation():
    for name in ("ozaki2/yardsticks", "ozaki2/variants", "frontier/points"):
        with pytest.raises(InputError, match=f"{name} cannot have hardware = V100: volta has no matrix instruction"):
            pages.load(name, ROOT / "experiments").changed({"hardware": "V100"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hardwar": "H200"}, "unknown parameter of paper/fig2 'hardwar': did you mean 'hardware'"),
        ({"hardware": "H2OO"}, "unknown hardware 'H2OO'"),
        ({"hardware": 5}, "unknown hardware 5"),
        ({"seeds": 0}, "seeds = 0 must be a positive integer"),
        ({"seeds": "many"}, "seeds = 'many' must be"),
        ({"lengths": "2,x"}, "lengths = '2,x' must be values such as 2, 4"),
        ({"lengths": []}, r"lengths = \[\] must be values such as 2, 4"),
        ({"lengths": [2, -4]}, "lengths = -4 must be"),
    ],
)
def test_a_wrong_parameter_is_one_line(folder, given, message):
    toy.write_page(folder / "papers", "paper/fig2", PAGE + UNIT)
    with pytest.raises(InputError, match=message):
        reproduce("paper/fig2", **given)


def test_full_figures_are_found_under_full_and_folders_beside_the_experiments(folder):
    found = reproduce("paper/fig2", "full")
    with pytest.raises(InputError, match=r"fig2\.csv: 'fpemu reproduce paper/fig2 --full' makes it"):
        committed("paper/fig2", "full")
    figures.write(found.experiment, "full", found.rows, "figures/full")
    (folder / "notebooks").mkdir()
    with contextlib.chdir("notebooks"):
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


# --- which files change
NOISY = """
PAPER, CAPTION, ASSUMPTIONS = "A paper", "A caption.", ["One."]
DIGITS = {"unstable": 4}
NOISE = 0.0


def cells(size):
    return [{"n": n, "seed": seed, "share": 1 / n} for n in (3, 7) for seed in range(2)]


def evaluate(cell):
    x = 1 / (cell["n"] + cell["seed"])
    return {"stable": x, "noisy": x * (1 + 1e-13 * NOISE), "unstable": x * (1 + 1e-8 * NOISE)}


def draw(rows):
    from ._look import COLOUR, line

    return line([row["noisy"] for row in rows], COLOUR)


def measures(rows):
    from fpemu.reproduce import Measure

    return [Measure("sum", sum(row["noisy"] + row["unstable"] for row in rows))]


def finding(rows):
    return f"It is {rows[0]['noisy']!r}."
"""
NOISY += toy.PAGE.format(", measures=measures, finding=finding, digits=DIGITS, version=1")
LOOK = """
COLOUR = "red"
UNUSED = 1


def line(values, colour):
    from fpemu import mma, plotting

    figure, axes = plotting.figure(1)
    axes[0, 0].plot(values, color=colour)
    return figure
"""


@pytest.fixture
def noisy(folder):
    """A page whose numbers have noise in their last digits, as on another processor; gives a function that writes it.

    The page is loaded from a new folder each time, as a fresh process would load it.
    """
    count = 0

    def write(noise=0.0, page=NOISY, look=LOOK, **options):
        nonlocal count
        count += 1
        root = folder / f"pages{count}"
        toy.write_page(root, "paper/fig1", page).with_name("_look.py").write_text(look)
        experiment = pages.load("paper/fig1", root)
        experiment.module.NOISE = noise
        rows = [cell | experiment.evaluate(cell) for cell in experiment.cells("quick")]
        return figures.write(experiment, "quick", rows, "figures", **options)

    return write


def _files():
    return {path.name: path.read_bytes() for path in Path("figures/paper").iterdir()}


def _changed(before):
    return {name for name, content in _files().items() if before.get(name) != content}


def test_noise_in_the_last_digits_changes_no_file(noisy):
    assert noisy().state == "new"
    before = _files()
    assert set(before) == {"fig1.png", "fig1.csv", "fig1.json", "fig1.md"}
    times = {path: path.stat().st_mtime_ns for path in Path("figures/paper").iterdir()}
    for noise in (1.0, -1.0):
        assert noisy(noise).state == "unchanged"
        assert _files() == before
    assert {path: path.stat().st_mtime_ns for path in Path("figures/paper").iterdir()} == times
    record = json.loads(before["fig1.json"])
    assert record["parameters"]["share"] == [1 / 3, 1 / 7]
    assert record["finding"] == "It is 0.333333333."
    assert all(value == float(f"{value:.9g}") for value in record["measures"][0]["values"])


def test_a_number_that_changes_in_its_written_digits_changes_the_figure(noisy):
    noisy()
    before = _files()
    assert noisy(1e5).state == "rewritten"
    assert _changed(before) == {"fig1.csv", "fig1.json", "fig1.md"}  # the new picture has the same pixels
    noisy(1e12)
    assert _changed(before) == {"fig1.png", "fig1.csv", "fig1.json", "fig1.md"}


def test_other_versions_of_packages_and_another_renderer_change_no_file(noisy, monkeypatch):
    noisy()
    before = _files()
    png = plotting.png
    monkeypatch.setattr(plotting, "png", lambda figure: png(figure) + b"another FreeType")
    monkeypatch.setattr(figures, "_version", lambda name: "99")
    monkeypatch.setattr(platform, "python_version", lambda: "99")
    assert noisy().state == "unchanged"
    assert _files() == before
    assert noisy(page=NOISY.replace('Measure("sum"', 'Measure("total"')).state == "rewritten"
    assert _changed(before) == {"fig1.json"}
    versions = [json.loads(files["fig1.json"])["versions"] for files in (before, _files())]
    assert versions[0] == versions[1] != {"99"}
    noisy(1e5)  # other data: obtained with the versions here, and drawn here, with the same pixels
    assert set(json.loads(_files()["fig1.json"])["versions"].values()) == {"99"}
    assert _files()["fig1.png"] == before["fig1.png"]
    noisy(1e12)
    assert _files()["fig1.png"].endswith(b"another FreeType")


@pytest.mark.parametrize(
    ("page", "look", "changed"),
    [
        (("A caption.", "Another caption."), None, {"fig1.json", "fig1.md"}),
        (("version=1", "version=2"), None, {"fig1.json"}),
        (("def finding", "def helper():\n    pass\n\n\ndef finding"), None, set()),
        (None, ("UNUSED = 1", "UNUSED = 2"), set()),
        (None, ('"red"', '"blue"'), {"fig1.json", "fig1.png"}),
    ],
)
def test_an_edited_page_changes_the_files_that_depend_on_the_edit(noisy, page, look, changed):
    noisy()
    before = _files()
    edited = {"page": NOISY.replace(*page) if page else NOISY, "look": LOOK.replace(*look) if look else LOOK}
    assert noisy(**edited).state == ("rewritten" if changed else "unchanged")
    assert _changed(before) == changed
    assert noisy(**edited).state == "unchanged"


SHIFTED = "color=colour, transform=axes[0, 0].transData + ScaledTranslation(0, 1.1 / 72, figure.dpi_scale_trans)"


def test_a_curve_shifted_by_its_line_width_is_rewritten_and_another_renderer_is_not(noisy, monkeypatch):
    noisy()
    before, png = _files(), plotting.png

    def antialiased_otherwise(figure):
        pixels = imread(io.BytesIO(png(figure)))[..., :3]
        away = np.where(pixels < 1, np.random.default_rng(1).uniform(-0.12, 0.12, pixels.shape), 0)  # 30 of 255
        file = io.BytesIO()
        imsave(file, np.clip(pixels + away, 0, 1), format="png")
        return file.getvalue()

    with monkeypatch.context() as patch:
        patch.setattr(plotting, "png", antialiased_otherwise)
        assert noisy(redraw=True).state == "unchanged"
    look = f"from matplotlib.transforms import ScaledTranslation\n{LOOK.replace('color=colour', SHIFTED)}"
    assert noisy(look=look).state == "rewritten"
    assert _changed(before) == {"fig1.png", "fig1.json"}


def test_a_picture_is_current_until_code_or_data_change_and_then_drawn_once(noisy, monkeypatch):
    drawn, draw = [], pages.Experiment.draw

    def counted(page, rows):
        drawn.append(rows)
        return draw(page, rows)

    monkeypatch.setattr(pages.Experiment, "draw", counted)
    noisy()
    for options, count in (
        ({}, 1),
        ({"look": LOOK.replace("UNUSED = 1", "UNUSED = 2")}, 2),
        ({"look": LOOK.replace("UNUSED = 1", "UNUSED = 2")}, 2),
        ({}, 3),
        ({"redraw": True}, 4),
    ):
        noisy(**options)
        assert len(drawn) == count
    shutil.rmtree(".fpemu")
    noisy(look=LOOK.replace("UNUSED = 1", "UNUSED = 3"))  # a fresh clone has no digest of the committed picture's code
    assert len(drawn) == 4
    style = Path(plotting.__file__).resolve()
    monkeypatch.setattr(figures, "_DRAWING", [style, style])
    noisy(look=LOOK.replace("UNUSED = 1", "UNUSED = 3"))
    assert len(drawn) == 5


@pytest.mark.parametrize("suffix", ["png", "csv", "json"])
@pytest.mark.parametrize("damage", [b"", None])
def test_a_damaged_or_missing_file_is_written_again(noisy, suffix, damage):
    noisy()
    before = _files()
    path = Path(f"figures/paper/fig1.{suffix}")
    path.unlink() if damage is None else path.write_bytes(damage)
    assert noisy().state == ("new" if (suffix, damage) == ("json", None) else "rewritten")
    assert _files() == before


def test_the_command_says_which_figures_changed_and_counts_them(folder, capsys):
    toy.write_page("papers", "paper/fig3", PAGE)
    lines = lambda: [line for line in capsys.readouterr().out.splitlines() if "figure" in line][:-1]  # noqa: E731
    assert main(["reproduce", "-j", "1"]) == 0
    assert lines() == [
        "figures/paper/fig2.{png,csv,json,md}: new",
        "figures/paper/fig3.{png,csv,json,md}: new",
        "2 figures: 2 new",
    ]
    Path("figures/paper/fig3.png").write_bytes(b"")
    assert main(["reproduce", "-j", "1"]) == 0
    assert lines() == [
        "figures/paper/fig2.{png,csv,json,md}: unchanged",
        "figures/paper/fig3.{png,csv,json,md}: rewritten",
        "2 figures: 1 rewritten, 1 unchanged (rewritten: paper/fig3)",
    ]
    assert main(["reproduce", "paper/fig2", "--format", "svg", "--format", "pdf"]) == 0
    assert lines() == ["figures/paper/fig2.{png,csv,json,md,svg,pdf}: unchanged", "1 figure: 1 unchanged"]
    assert main(["reproduce", "paper/fig2"]) == 0
    assert capsys.readouterr().out.endswith("Look at figures/paper/fig2.png\n")


@pytest.mark.parametrize("where", ["out", "out/paper", "out/paper/fig2.csv/x", "out/paper/fig2.svg/x"])
def test_an_output_that_cannot_be_written_is_refused_before_the_computation(folder, capsys, where):
    path = Path(where)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")
    assert "out" in refusal(capsys, "reproduce", "-j", "1", "-o", "out", "--format", "svg")
    assert "unknown format 'pfd': did you mean 'pdf'" in refusal(capsys, "reproduce", "--format", "pfd")
    assert not Path("log").exists()
