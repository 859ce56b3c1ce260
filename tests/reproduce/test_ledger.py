"""Criteria, verdicts over seeds, the papers' data, and the ledger's pages, compared with results worked out by hand."""

import csv
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.reproduce import Claim, Measure, claims, committed, pages
from fpemu.reproduce.claims import (
    CONDITION,
    DEPENDS,
    FAILS,
    HOLDS,
    SEEDS,
    SOME,
    UNDECIDED,
    UNTESTABLE,
    Criterion,
    Measured,
)
from tests import toy

ROOT = Path(__file__).resolve().parents[2]
FIVE = ("dgemm_tc", "h2sgemm", "legemm", "magma", "tsm2")

PAGE = """
PAPER, CAPTION = "A paper", "What is shown: $|x|$ of a*b."
ASSUMPTIONS = ["Same for all.", {assumed!r}]


def cells():
    return [{{"n": n, "seed": seed}} for n in (1, 2) for seed in range({seeds})]


def evaluate(cell):
    return {{"factor": {factor}}}


def draw(rows):
    from fpemu import plotting

    figure, axes = plotting.figure(1, width=plotting.SINGLE)
    axes[0, 0].plot([row["n"] for row in rows], [row["factor"] for row in rows], "o")
    return figure


def measures(rows):
    from fpemu.reproduce import Measure

    for row in rows:
        for name, shift in {shifts}:
            yield Measure(name, row["factor"] + shift, variant=f"n = {{row['n']}}")


def finding(rows):
    return f"Factors of <that>: {{len(rows)}}."


from fpemu.reproduce import Page

PAGE = Page(PAPER, CAPTION, ASSUMPTIONS, cells, evaluate, draw, measures, finding)
"""
PAPER = """
title = "Toys"
source = "A journal of toys."
main = "larger"
items = [
    { item = "Fig. 1", what = "factors", status = "reproduced", pages = ["toy/fig1"] },
    { item = "Eq. 2", what = "a formula | of theirs", status = "not testable here", note = "no model" },
    { item = "Fig. 3", what = "both", status = "partly", note = "the speed needs a GPU", pages = ["toy/fig3"] },
]
titles = { fig1 = "fig1", fig3 = "fig3", ours = "ours" }

[[claims]]
name = "larger"
headline = 1
kind = "numerics"
claim = "error |a| exceeds |b|"
quote = "a is larger than b"
place = "Section 1"
given = "n = 1 and 2"
unstated = "the seeds"
page = "toy/fig1"
quantity = "error of a / error of b"
unit = "×"
criterion = "> 1"
published = { "n = 1" = 1.85 }
why = "The sum of *a* rounds."
explained = "toy/ours"

[[claims]]
name = "twice"
headline = 2
kind = "numerics"
claim = "error a is about twice b"
page = "toy/fig1"
quantity = "error of a / error of b"
unit = "×"
criterion = "1.5 to 2.5"

[[claims]]
name = "fast"
headline = 3
kind = "speed"
claim = "twice as fast on a toy GPU"
page = "toy/fig3"
quantity = "time of b / time of a"

[[claims]]
name = "named"
kind = "definition"
claim = "a toy is a toy"

[[checks]]
name = "goal"
kind = "goal"
claim = "a positive factor"
page = "toy/ours"
quantity = "the factor"
criterion = ">= 0"

[[checks]]
name = "control"
kind = "negative control"
claim = "an unsuitable factor is found"
page = "toy/ours"
quantity = "the factor"
criterion = "< 0"
"""


@pytest.fixture
def folder(papers):
    _pages()
    return papers


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The figures of the toy, drawn once."""
    where = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        patch.setenv("FPEMU_EXPERIMENTS", str(where / "papers"))
        patch.delenv("FPEMU_CACHE", raising=False)
        _pages()
        assert _fpemu("reproduce", "all", "-j", "1") == 0
    return where / "figures"


@pytest.fixture
def drawn(folder, template):
    shutil.copytree(template, folder / "figures")
    return folder


def _pages():
    # n = 1: 1.8 to 1.99, n = 2: 3.6 to 3.79; one seed only; two seeds
    _page("fig1", seeds=20, factor="(1.8 + 0.01 * cell['seed']) * cell['n']", shifts='(("larger", 0), ("twice", 0))')
    _page("fig3", seeds=1, factor="1.75 * cell['n']", shifts='(("fast", 0),)')
    _page("ours", seeds=20, factor="cell['seed']", shifts='(("goal", 0), ("control", 0))')
    Path("papers/toy/paper.toml").write_text(PAPER)


def _page(name, **values):
    toy.write_page("papers", f"toy/{name}", PAGE.format(assumed=f"Of {name}.", **values))


def _fpemu(*arguments):
    return main(list(arguments))


# --- criteria and verdicts
@pytest.mark.parametrize(
    ("text", "values", "met", "words"),
    [
        ("> 1", (1.0, 1.1, float("nan")), (False, True, False), "above 1"),
        (">= 1", (0.9, 1.0), (False, True), "at least 1"),
        ("< 2e-7", (2e-7, 1e-7), (False, True), "below 2e-7"),
        ("<= -1", (-1.0, 0.0), (True, False), "at most -1"),
        ("== 0", (0.0, 1e-300), (True, False), "exactly 0"),
        ("0.5 to 2", (0.5, 2.0, 2.1, float("inf")), (True, True, False, False), "0.5 to 2"),
    ],
)
def test_a_criterion_judges_a_number_and_reads_as_words(text, values, met, words):
    criterion = Criterion(text)
    assert tuple(map(criterion.met, values)) == met
    assert str(criterion) == words


@pytest.mark.parametrize("text", ["", "1", "> x", "2 to", ">> 1", "1 to 2 to 3", "nan to 1", "2 to 0.5"])
def test_a_criterion_of_another_form_or_without_values_is_refused(text):
    with pytest.raises(InputError, match=r"is not like|its first end exceeds its second"):
        Criterion(text)


CLAIM = Claim("f", "numerics", "f is above 1", "toy/fig1", "f", "×", Criterion("> 1"), readings="SGEMM")


def _record(values, *, paper_size=True, seeded=True):
    """A record with the values of each (reading, variant)."""
    measures = tuple(Measured("f", *case, tuple(numbers)) for case, numbers in values.items())
    return SimpleNamespace(size="full", paper_size=paper_size, seeds=20 if seeded else None, measures=measures)


ABOVE, BELOW, ACROSS = [1.5] * 20, [0.5] * 20, [1.5] * 19 + [1.0]
NINETEEN = "holds for 19 of 20 seeds (76 to 99 %)"


@pytest.mark.parametrize(
    ("values", "verdict", "note"),
    [
        ({("", ""): ABOVE}, HOLDS, ""),
        ({("", ""): BELOW}, FAILS, ""),
        ({("", ""): ACROSS}, SOME, NINETEEN),
        ({("", ""): BELOW[2:] + ABOVE[:2]}, SOME, "holds for 2 of 20 seeds (3 to 30 %)"),
        ({("", ""): ABOVE[:-1]}, UNDECIDED, "undecided (19 seeds, 20 are required)"),
        ({("", ""): [*ABOVE, "nan"]}, UNDECIDED, "undecided (no number at a seed)"),
        (
            {("", "a"): ABOVE, ("", "b"): BELOW, ("", "c"): ACROSS},
            CONDITION,
            "holds for a. Does not hold for b. Holds for 19 of 20 seeds (76 to 99 %): c",
        ),
        ({("", "a"): BELOW, ("", "b"): ACROSS}, SOME, "does not hold for a. Holds for 19 of 20 seeds (76 to 99 %): b"),
        ({("x", ""): ABOVE, ("y", ""): ABOVE}, HOLDS, ""),
        ({("x", ""): ABOVE, ("y", ""): BELOW}, DEPENDS, "x: holds. y: does not hold"),
        ({("x", ""): ABOVE, ("y", ""): ACROSS}, DEPENDS, f"x: holds. y: {NINETEEN}"),
        ({("x", ""): BELOW, ("y", ""): ACROSS}, SOME, f"x: does not hold. y: {NINETEEN}"),
        ({("x", ""): ABOVE, ("y", ""): ABOVE[1:]}, UNDECIDED, "x: holds. y: undecided (19 seeds, 20 are required)"),
        ({}, UNDECIDED, "no data"),
    ],
)
def test_the_verdict_follows_from_the_seeds_the_variants_and_the_readings(values, verdict, note):
    judgement = claims.verdict_on(CLAIM, _record(values))
    assert (judgement.verdict, judgement.note) == (verdict, note)


@pytest.mark.parametrize(
    ("seeds", "met", "verdict"), [(20, 20, HOLDS), (20, 19, SOME), (100, 95, HOLDS), (100, 80, SOME), (100, 3, FAILS)]
)
def test_a_verdict_word_requires_an_interval_of_the_share_that_leaves_no_doubt(seeds, met, verdict):
    record = _record({("", ""): [1.5] * met + [0.5] * (seeds - met)})
    record.seeds = seeds
    assert claims.verdict_on(CLAIM, record).verdict == verdict


MEAN = replace(CLAIM, runs=10)


@pytest.mark.parametrize(
    ("criterion", "numbers", "verdict"),
    [
        ("> 1", lambda seed: 1.2 + 0.3 * (-1) ** seed, HOLDS),  # every second run is below 1
        ("> 1", lambda seed: 0.8 + 0.3 * (-1) ** seed, FAILS),
        ("> 1", lambda seed: 1 + 0.3 * (-1) ** seed, SOME),
        ("0.99 to 1.01", lambda seed: 1 + 0.3 * (-1) ** seed, SOME),
        ("0.5 to 2", lambda seed: 1 + 0.3 * (-1) ** seed, HOLDS),
    ],
)
def test_a_claim_on_means_of_runs_is_judged_by_the_interval_of_a_mean(criterion, numbers, verdict):
    rows = [{"seed": seed, "x": numbers(seed)} for seed in range(SEEDS)]
    collected = claims.collect(lambda of: [Measure("f", of[0]["x"])], rows, {"f": 10})
    record = SimpleNamespace(size="full", paper_size=True, **collected)
    judgement = claims.verdict_on(replace(MEAN, criterion=Criterion(criterion)), record)
    assert judgement.verdict == verdict
    (case,) = judgement.cases
    assert case.mean[0] == pytest.approx(np.mean([row["x"] for row in rows]))
    # 20 numbers ± 0.3, means of 10 of them: 1.96 · 0.3 / √10 on either side
    assert [end - case.number for end in case.spread] == pytest.approx([-0.186, 0.186], abs=0.01)
    assert (verdict == SOME) == (case.words == "holds for a part of the means of 10 runs")


def test_a_mean_of_runs_of_a_fraction_is_the_mean_over_the_points_of_a_ratio_of_means():
    tops, overs = np.random.default_rng(0).uniform(1, 2, (2, SEEDS, 3))
    measure = lambda of: [Measure("f", tops[of[0]["seed"]], over=overs[of[0]["seed"]])]  # noqa: E731
    rows = [{"seed": seed} for seed in range(SEEDS)]
    (measured,) = claims.collect(measure, rows, {"f": 10})["measures"]
    assert measured.values == pytest.approx((tops / overs).mean(1))
    assert measured.mean[0] == pytest.approx((tops.mean(0) / overs.mean(0)).mean())
    assert measured.mean[1] < measured.mean[0] < measured.mean[2]
    (single,) = claims.collect(measure, rows)["measures"]
    assert single.mean == ()
    assert claims.verdict_on(
        MEAN, SimpleNamespace(size="full", paper_size=True, seeds=20, measures=(single,))
    ).note == ("undecided (no means of 10 runs)")


def test_a_published_number_belongs_to_the_cases_that_it_names_and_to_the_nearest_reading():
    claim = replace(CLAIM, published={"A800": 1.5, "A800, n = 8": 2.0})
    values = {(reading, "A800"): [x] * 20 for reading, x in (("x", 1.4), ("y", 0.5), ("z", 9.0))}
    judgement = claims.verdict_on(claim, _record(values))
    assert (judgement.verdict, judgement.nearest) == (DEPENDS, "x")
    case = judgement.cases[0]
    given = [claim.published_in(replace(case, variant=variant)) for variant in ("A800", "A800, n = 8", "MI210")]
    assert given == [1.5, 2.0, ""]
    assert replace(judgement, claim=replace(CLAIM, published="1.1 to 3.0 ×")).nearest == ""


def test_a_restriction_of_the_data_is_a_condition_and_a_smaller_size_decides_nothing():
    values = {("", ""): ABOVE}
    assert claims.verdict_on(CLAIM, _record(values, paper_size=False)).verdict == UNDECIDED
    restricted = Claim(**{**vars(CLAIM), "condition": "n up to 8"})
    judgement = claims.verdict_on(restricted, _record(values))
    assert (judgement.verdict, judgement.note) == (CONDITION, "n up to 8")
    judgement = claims.verdict_on(restricted, _record({("sum", ""): ABOVE, ("mean", ""): BELOW}))
    assert judgement.note == "sum: holds (n up to 8). mean: does not hold (n up to 8)"
    mixed = {("sum", "a"): ABOVE, ("sum", "b"): ABOVE, ("mean", "a"): ABOVE, ("mean", "b"): BELOW}
    assert claims.verdict_on(restricted, _record(mixed)).note == (
        "sum: holds (n up to 8). mean: holds for a. Does not hold for b. n up to 8"
    )


def test_data_without_seeds_need_no_seeds_and_speeds_are_never_judged():
    assert claims.verdict_on(CLAIM, _record({("", ""): [2.0]}, seeded=False)).verdict == HOLDS
    speed = Claim("f", "speed", "f is fast", "toy/fig1", "f", "×")
    judgement = claims.verdict_on(speed, _record({("", ""): [2.0]}, seeded=False))
    assert judgement.verdict == UNTESTABLE
    assert claims.number_of(judgement) == "H200: 2×"


def test_measures_are_taken_seed_by_seed_and_keep_infinities():
    rows = [{"seed": seed, "x": x} for seed, x in ((0, 1.0), (1, float("inf")), (0, 3.0))]
    record = claims.collect(lambda rows: [Measure("f", sum(row["x"] for row in rows), "r", "v")], rows)
    assert record == {"seeds": 2, "measures": (Measured("f", "r", "v", (4.0, "inf")),)}
    assert claims.collect(lambda rows: [Measure("f", len(rows))], [{"x": 1}, {"x": 2}])["seeds"] is None


# --- the pages
def test_the_whole_ledger_of_a_toy(drawn, capsys):
    assert _fpemu("ledger") == 0
    out = capsys.readouterr().out
    assert "figures/LEDGER.md" in out
    assert sorted(os.listdir("figures")) == ["LEDGER.csv", "LEDGER.md", "ledger", "toy"]
    text = Path("figures/LEDGER.md").read_text()
    assert "| [error \\|a\\| exceeds \\|b\\|](toy/fig1.png) | **holds** | n = 1: 1.85× | error of a / error" in text
    assert "| depends on the reading | A condition that the paper leaves open decides" in text
    assert "**holds under a stated condition**: for n = 1 |" in text
    assert "| **not testable here** |  | time of b / time of a: H200: 1.75 to 3.5 |" in text
    assert "| [Toys](ledger/toy.md) | 1 | 1 | 0 | 0 | 0 | 0 | 1 | 1 of 1 | 0 of 1 |" in text
    details = Path("figures/ledger/toy.md").read_text()
    assert "- Reason: The sum of \\*a\\* rounds." in details
    assert "> a is larger than b (Section 1)" in details
    assert "- Verdict: holds under a stated condition: holds for n = 1. Does not hold for n = 2" in details
    assert "| n = 1 | 1.85× | 1.9× | 1.8 to 1.99× | 20 | holds |" in details
    assert "; explained by [toy/ours](../toy/ours.png)" in details
    assert "| Eq. 2 | a formula \\| of theirs | not testable here: no model |  |" in details
    assert "### a toy is a toy (definition)" in details
    assert "| [an unsuitable factor is found](../toy/ours.png) | **not met** |" in details
    assert "- [toy/fig1](../toy/fig1.png): Factors of &lt;that&gt;: 40." in details
    before = {path: path.read_bytes() for path in Path("figures").rglob("*.*")}
    assert _fpemu("ledger") == 0
    assert {path: path.read_bytes() for path in Path("figures").rglob("*.*")} == before


def test_the_table_for_programs(drawn):
    assert _fpemu("ledger") == 0
    with open("figures/LEDGER.csv", newline="") as file:
        rows = {(row["name"], row["variant"]): row for row in csv.DictReader(file)}
    row = rows["twice", "n = 2"]
    assert [row[name] for name in ("smallest", "largest", "seeds", "criterion met")] == ["3.6", "3.98", "20", "0"]
    assert (row["verdict on the case"], row["verdict"]) == (FAILS, CONDITION)
    assert rows["named", ""]["verdict"] == ""
    assert [rows["larger", f"n = {n}"]["published"] for n in (1, 2)] == ["1.85", ""]
    assert rows["fast", "n = 1"]["command"] == "fpemu reproduce toy/fig3"


def test_the_figure_of_the_main_claim_has_the_claim_and_its_verdict_in_its_title(drawn):
    figures = {name: committed(f"toy/{name}") for name in ("fig1", "ours")}
    titles = {name: figure.figure().get_suptitle() for name, figure in figures.items()}
    assert titles == {"fig1": "error |a| exceeds |b|: holds", "ours": ""}
    _paper('criterion = "> 1"', 'criterion = "> 9"')
    assert figures["fig1"].figure().get_suptitle() == "error |a| exceeds |b|: does not hold"


def test_check_finds_old_pages_of_the_ledger_and_records_and_writes_nothing(drawn, capsys):
    def out_of_date(status=1):
        assert _fpemu("ledger", "--check") == status
        return capsys.readouterr().err

    assert "out of date: LEDGER.md, LEDGER.csv, ledger/toy.md in figures" in out_of_date()
    assert not Path("figures/LEDGER.md").exists()
    assert _fpemu("ledger") == 0
    assert out_of_date(0) == ""
    Path("figures/LEDGER.md").write_text("edited")
    assert out_of_date().startswith("fpemu: out of date: LEDGER.md in figures")
    assert Path("figures/LEDGER.md").read_text() == "edited"
    path = Path("figures/toy/fig1.json")
    before = path.read_text()
    path.write_text(before.replace("1.8,", "1.9,", 1))
    assert _fpemu("ledger") == 0
    assert "out of date: the records of toy/fig1" in out_of_date()
    path.write_text(before)
    data = path.with_suffix(".csv")
    rows = data.read_text().rstrip("\n")
    data.write_text(rows[:-1] + ("2" if rows[-1] == "1" else "1") + "\n")
    assert "fig1.csv was changed" in out_of_date(2)


def test_check_finds_figures_that_lack_cells_of_their_pages(drawn, capsys, monkeypatch):
    assert _fpemu("ledger") == 0
    assert _fpemu("ledger", "--check") == 0
    cells = pages.Experiment.cells
    more = [{"n": 1, "seed": 20}]
    monkeypatch.setattr(pages.Experiment, "cells", lambda page, size: cells(page, size) + more * (page.title == "ours"))
    capsys.readouterr()
    assert _fpemu("ledger", "--check") == 1
    assert "out of date: the records of toy/ours" in capsys.readouterr().err


def test_output_goes_elsewhere_and_its_links_come_back(drawn):
    assert _fpemu("ledger", "--output", "docs/pages") == 0
    assert not Path("figures/LEDGER.md").exists()
    assert "](../../figures/toy/fig1.png)" in Path("docs/pages/LEDGER.md").read_text()
    assert "](../../../figures/toy/fig1.png)" in Path("docs/pages/ledger/toy.md").read_text()
    assert _fpemu("ledger", "--check", "-o", "docs/pages") == 0


def _edit(**changes):
    path = Path("figures/toy/fig1.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _paper(old, new):
    assert old in PAPER
    Path("papers/toy/paper.toml").write_text(PAPER.replace(old, new))


MEASURE = {"name": "larger", "reading": "", "variant": "", "values": [1.0]}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda: Path("figures/toy/fig1.json").write_text("{"), "figures/toy/fig1.json is not readable as JSON"),
        (lambda: _edit(measures=[{**MEASURE, "values": []}]), "measures 'larger': values are missing"),
        (lambda: _edit(measures=[{**MEASURE, "values": ["x"]}]), "measures 'larger': values 0: unknown value 'x'"),
        (lambda: _edit(measures=[{**MEASURE, "name": "x"}]), "toy/fig1 measures x, but no claim"),
        (lambda: _edit(size="full"), "figures/toy/fig1.json is the record of toy/fig1 at full size"),
        (lambda: Path("papers/toy/paper.toml").write_text("claims = 1"), "paper.toml: title, source are missing"),
        (lambda: Path("papers/toy/paper.toml").unlink(), "there is no paper.toml in the folders of"),
        (lambda: _paper('"partly"', '"half"'), "items 'Fig. 3': status: unknown value 'half'"),
        (
            lambda: _paper('note = "no model"', 'note = ""'),
            "items 'Eq. 2': the item is not testable here: the note says nothing",
        ),
        (
            lambda: _paper('pages = ["toy/fig1"]', "pages = []"),
            "items 'Fig. 1': the item is reproduced, but no page shows it",
        ),
        (lambda: _paper('name = "twice"', 'name = "larger"'), "several claims have the name 'larger'"),
        (lambda: _paper("headline = 3", "headline = 4"), "the headlines are numbered [1, 2, 4]"),
        (lambda: _paper('"speed"', '"haste"'), "claims 'fast': kind: unknown value 'haste'"),
        (lambda: _paper('main = "larger"', 'main = "large"'), "the main claim 'large' is none of the claims"),
        (lambda: _paper('"> 1"', '"about 1"'), "claims 'larger': criterion: criterion 'about 1' is not like"),
        (
            lambda: _paper('criterion = "> 1"', ""),
            "claims 'larger': a claim that a page decides has a quantity and a criterion",
        ),
        (lambda: _paper('"toy/ours"\n', '"toy/nowhere"\n'), "larger names toy/nowhere"),
    ],
)
def test_what_is_broken_is_one_line_that_names_it(drawn, capsys, spoil, complaint):
    spoil()
    capsys.readouterr()
    assert _fpemu("ledger") == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("figures/LEDGER.md").exists()


def test_a_ledger_without_figures(folder, capsys):
    assert _fpemu("ledger") == 2
    assert "there is no folder 'figures'" in capsys.readouterr().err
    Path("figures").mkdir()
    assert _fpemu("ledger", "toy") == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "the figure toy/fig1 is not drawn" in words
    assert not Path("figures/LEDGER.md").exists()
    assert _fpemu("ledger", "ship") == 2
    assert "'ship'" in capsys.readouterr().err


# --- a figure of which a cell fails
def test_the_other_figures_are_drawn_and_the_status_is_1(folder, capsys):
    path = Path("papers/toy/fig1.py")
    path.write_text(path.read_text().replace('return {"factor"', 'return {"factor": 1 / 0} or {"factor"'))
    assert _fpemu("reproduce", "all", "-j", "1") == 1
    err = capsys.readouterr().err
    assert "division by zero" in err
    assert "not drawn: toy/fig1;" in err
    assert "Traceback" not in err
    assert sorted(p.stem for p in Path("figures/toy").glob("*.json")) == ["fig3", "ours"]


# --- this repository's own
@pytest.fixture(scope="module")
def own():
    return claims.papers(ROOT / "experiments")


def test_the_inventories_name_every_page_and_no_other(own):
    assert sorted(page for paper in own for page in paper.pages) == sorted(pages.names())
    for paper in own:
        assert {page.split("/")[0] for page in paper.pages} <= {paper.folder}
        labels = [item.item for item in paper.items]
        assert len(set(labels)) == len(labels)


def test_each_of_the_five_papers_has_a_summary_of_quoted_claims(own):
    by_folder = {paper.folder: paper for paper in own}
    for folder in FIVE:
        assert 5 <= len(by_folder[folder].headlines) <= claims.HEADLINES
        for claim in by_folder[folder].claims:
            assert claim.quote, claim.name
            assert claim.place, claim.name
            assert len(claim.quote.split()) <= 25, claim.name
            assert claim.kind == "definition" or claim.why, claim.name


def test_every_judged_claim_has_data_and_enough_seeds(own):
    """A claim of a drawn figure is judged by numbers, and the ledger's verdicts on random data rest on 20 seeds."""
    from fpemu.reproduce.ledger import collect

    ledger = collect(str(ROOT / "figures"))
    for paper in own:
        for one in ledger.judgements[paper.folder]:
            assert not one.claim.judged or one.cases or one.claim.page not in ledger.records, one.claim.name
            for case in one.cases:
                decided = case.verdict in (HOLDS, FAILS)
                assert not decided or case.seeds is None or case.seeds >= SEEDS, one.claim.name


def test_the_summary_is_short_and_has_no_formulas():
    from fpemu.reproduce import ledger

    text = ledger.summary(ledger.collect(str(ROOT / "figures"))).decode()
    text = re.sub(r"\]\([^)]*\)", "]", text)  # links
    for section in text.split("\n## ")[1:-1]:
        rows = [line for line in section.splitlines() if line.startswith("| ")]
        assert len(section.replace("|", " ").split()) <= 450, section.splitlines()[0]
        for cell in (cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)):
            assert len(cell) <= 200, cell
            assert not re.search(r" / |·|\\\|", cell), cell  # a formula


def test_a_case_has_one_number_at_a_seed_and_all_rows_have_a_seed_or_none():
    rows = [{"seed": seed} for seed in range(SEEDS // 2)]
    with pytest.raises(InputError, match="measures x, n = 8 twice"):
        claims.collect(lambda of: [Measure("x", 2.0, variant="n = 8")] * 2, rows)
    with pytest.raises(InputError, match="some rows of the page have a seed"):
        claims.collect(lambda of: [Measure("x", 2.0)], [*rows, {"n": 8}])
