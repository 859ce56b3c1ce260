"""Spreads over seeds, the inventory, and the ledger: its text, held against what was worked out by hand."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.reproduce import experiments, inventory
from fpemu.reproduce.claims import Claim, reduction, share, spreads

ROOT = Path(__file__).resolve().parents[2]

PAGE = """
PAPER, TITLE, CAPTION = "A paper", {title!r}, "What is shown: $|x|$ of a*b."
ASSUMPTIONS = ["Same for all.", {assumed!r}]
FACTORS = {factors}


def cells(size):
    return [{{"n": n, "seed": seed}} for n in (1, 2) for seed in range(len(FACTORS))]


def evaluate(cell):
    return {{"factor": FACTORS[cell["seed"]]}}


def draw(rows):
    from fpemu import plotting

    figure, axes = plotting.figure(1, width=plotting.SINGLE)
    axes[0, 0].plot([row["n"] for row in rows], [row["factor"] for row in rows], "o")
    return figure


def claims(rows):
    from fpemu.reproduce.claims import reduction, share

    factors = [row["factor"] for row in rows]
    return [
        reduction("error |a| / |b|", 2.0, sum(factors) / len(factors)),
        share("above 1_5", "above", [factor > 1.5 for factor in factors], "some"),
        share("a check", "", [factor > 0 for factor in factors], "all"),
    ]
"""
WHY = """
PAPER, TITLE, CAPTION, ASSUMPTIONS = "A paper", "why", "The reason.", []
EXPLAINS = {explains}


def cells(size):
    return [{{"n": 1, "seed": 0}}]


def evaluate(cell):
    return {{"x": 7.0}}


def draw(rows):
    from fpemu import plotting

    return plotting.figure(1, width=plotting.SINGLE)[0]


def claims(rows):
    return []


def finding(rows):
    return f"It is {{rows[0]['x']:g}} times <that>,\\n  no less."
"""
ITEMS = """
[papers.toy]
title = "Toys"
source = "A journal of toys."
items = [
    { item = "Fig. 1", kind = "E", what = "factors", pages = ["toy/fig1"] },
    { item = "Eq. 2", kind = "M", what = "a formula | of theirs", why = "no model here yet" },
    { item = "Fig. 3", kind = "E + G", what = "both", pages = ["toy/fig3", "toy/fig1"], why = "the speed needs a GPU" },
    { item = "Fig. 4", kind = "G", what = "speed", why = "needs a GPU" },
]
extra = [{ page = "toy/why", why = "the reason" }]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPEMU_EXPERIMENTS", str(tmp_path / "papers"))
    monkeypatch.delenv("FPEMU_CACHE", raising=False)
    _pages()
    return tmp_path


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The quick figures of the toy, drawn once."""
    where = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        patch.setenv("FPEMU_EXPERIMENTS", str(where / "papers"))
        patch.delenv("FPEMU_CACHE", raising=False)
        _pages()
        _draw()
    return where / "figures"


@pytest.fixture
def drawn(folder, template):
    shutil.copytree(template, folder / "figures")
    return folder


def _pages():
    _page("fig1", PAGE.format(title="factors", assumed="Of figure 1.", factors="(1.0, 0.5, 0.75)"))
    _page("fig3", PAGE.format(title="both", assumed="Of figure 3.", factors="(1.75, 2.25)"))
    _page("why", WHY.format(explains='("toy/fig1",)'))
    Path("papers/items.toml").write_text(ITEMS)


def _page(name, text):
    path = Path("papers/toy", f"{name}.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _fpemu(*arguments):
    return main(list(arguments))


def _draw(*arguments):
    assert _fpemu("reproduce", "-j", "1", *arguments) == 0


# --- spreads
def _judge(rows):
    numbers = [row["x"] for row in rows]
    found = [reduction("f", 2.0, sum(numbers) / len(numbers)), share("s", "p", [x > 1 for x in numbers], "m")]
    found.append(Claim("by hand", "p", "m", "holds" if min(numbers) > 1 else "does not hold"))
    return [*found, share("at n = 4", "p", [row["x"] > 1 for row in rows if row["n"] == 4], "m")]


def test_the_spread_is_the_range_over_seeds_and_how_many_agree():
    values = {(2, 0): 2.0, (4, 0): 2.0, (2, 1): 1.0, (4, 1): 0.5, (2, 2): 3.0, (4, 2): 5.0}
    rows = [{"n": n, "seed": seed, "x": x} for (n, seed), x in values.items()]
    factor, points, by_hand, at = spreads(_judge, rows, ["n", "seed"])
    # means 2, 0.75 and 4 of 13.5 / 6 = 2.25: holds, but seed 1 does not
    assert factor.text == "0.75× to 4× over 3 seeds; same verdict at 2 of 3"
    assert factor.as_dict() == {
        "seeds": 3,
        "whole": 3,
        "same": 2,
        "smallest": 0.75,
        "largest": 4.0,
        "text": factor.text,
    }
    # 4 of 6 points: in part, but at single seeds all, none, all
    assert points.text == "true at 0 % to 100 % of the points over 3 seeds; same verdict at 0 of 3"
    assert by_hand.text == "same verdict at 1 of 3 seeds"
    assert (by_hand.smallest, by_hand.largest) == (None, None)
    assert at.text == "true at 0 % to 100 % of the points over 3 seeds; same verdict at 0 of 3"


def test_seeds_that_are_not_run_everywhere_are_named_and_do_not_judge_what_they_have_not_seen():
    values = {(2, 0): 2.0, (4, 0): 2.0, (2, 1): 3.0}
    rows = [{"n": n, "seed": seed, "x": x} for (n, seed), x in values.items()]
    factor, points, by_hand, at = spreads(_judge, rows, ["n", "seed"])
    assert factor.text == "2× to 3× over 2 seeds, 1 of them at fewer points; same verdict at 2 of 2"
    assert points.text == "true at 100 % of the points over 2 seeds, 1 of them at fewer points; same verdict at 2 of 2"
    assert by_hand.text == "same verdict at 2 of 2 seeds, 1 of them at fewer points"
    assert at.text == "judged at 1 of 2 seeds only"


def test_one_seed_says_so_and_no_seed_has_no_spread():
    assert [one.text for one in spreads(_judge, [{"n": 4, "seed": 7, "x": 2.0}], ["n", "seed"])] == ["one seed"] * 4
    assert spreads(_judge, [{"n": 4, "x": 2.0}], ["n"]) == [None] * 4


def test_numbers_that_are_none_are_not_in_the_spread_but_disagree():
    rows = [{"n": 4, "seed": seed, "x": x} for seed, x in enumerate((2.0, 3.0, math.nan))]

    def judge(rows):
        numbers = [row["x"] for row in rows if len(rows) == 1 or not math.isnan(row["x"])]
        return [reduction("f", 2.0, sum(numbers) / len(numbers))]

    (spread,) = spreads(judge, rows, ["n", "seed"])
    assert spread.text == "2× to 3× over 3 seeds; same verdict at 2 of 3"


def test_claims_of_the_same_text_are_told_apart():
    def judge(rows):
        return [reduction("f", 2.0, rows[0]["x"]), reduction("f", 2.0, 10 * rows[0]["x"])]

    rows = [{"n": 4, "seed": seed, "x": x} for seed, x in enumerate((2.0, 3.0))]
    assert [one.text.split(" over")[0] for one in spreads(judge, rows, ["n", "seed"])] == ["2× to 3×", "20× to 30×"]


def test_values_behind_claims():
    assert reduction("c", 2.0, 1.5).value == 1.5
    assert reduction("c", 2.0, math.nan).as_dict()["value"] is None
    assert share("c", "p", [1, 0, 0, 1], "m").value == 0.5
    assert share("c", "p", [], "m").value is None
    assert (share("c", "p", [1], "m", 7).value, share("c", "p", [1], "m", 7).unit) == (7.0, "")
    assert Claim("c", "p", "m", "holds").value is None


# --- the ledger
VERDICTS = """\
| paper | holds | holds in part | does not hold | cannot be decided | not drawn yet \
| needs other hardware | our own checks |
| --- | --- | --- | --- | --- | --- | --- | --- |
| Toys | 2 | 0 | 2 | 1 | 0 | 1 | 2 of 2 hold |
| all | 2 | 0 | 2 | 1 | 0 | 1 | 2 of 2 hold |
"""
TABLE = """\
## Toys

A journal of toys.

| item | claim | published | here | verdict | size | command |
| --- | --- | --- | --- | --- | --- | --- |
| [Fig. 1; Fig. 3](toy/fig1.png) | error \\|a\\| / \\|b\\| | 2× | 0.75×<br>0.5× to 1× over 3 seeds; \
same verdict at 3 of 3 | **does not hold** ([why](#why-toy-why)) | quick | `fpemu reproduce toy/fig1` |
| [Fig. 1; Fig. 3](toy/fig1.png) | above 1_5 | above | some (at 0 of 6 points)<br>true at 0 % of the points \
over 3 seeds; same verdict at 3 of 3 | **does not hold** ([why](#why-toy-why)) | quick | `fpemu reproduce toy/fig1` |
| [Fig. 1; Fig. 3](toy/fig1.png) | a check | (our own check) | all (at 6 of 6 points)<br>true at 100 % of the points \
over 3 seeds; same verdict at 3 of 3 | holds | quick | `fpemu reproduce toy/fig1` |
| Eq. 2 | a formula \\| of theirs |  | no model here yet | **cannot be decided** |  |  |
| [Fig. 3](full/toy/fig3.png) | error \\|a\\| / \\|b\\| | 2× | 2×<br>1.75× to 2.25× over 2 seeds; \
same verdict at 2 of 2 | **holds** | full | `fpemu reproduce toy/fig3 --full` |
"""
REST = """\
### Assumptions

`toy/fig1`:

- Same for all.
- Of figure 1.

`toy/fig3`:

- Same for all.
- Of figure 3.

## Why some claims do not hold

### <a id="why-toy-why"></a>why (`toy/why`, quick)

It is 7 times &lt;that&gt;, no less.

![why](toy/why.png)

Figure: The reason.

What it explains:

- `toy/fig1`, error |a| / |b|. Published: 2×; here: 0.75×
- `toy/fig1`, above 1_5. Published: above; here: some (at 0 of 6 points)

Every claim that does not hold is explained above.

## What is not here, or only in part

| paper | item | kind | what | why |
| --- | --- | --- | --- | --- |
| Toys | Eq. 2 | M | a formula \\| of theirs | no model here yet |
| Toys | Fig. 3 | E + G | both | the speed needs a GPU |
| Toys | Fig. 4 | G | speed | needs a GPU |
"""


def test_the_whole_ledger_of_a_toy(folder, capsys):
    _draw()
    _draw("--full", "toy/fig3")
    assert sorted(os.listdir("figures/full/toy")) == [f"fig3.{kind}" for kind in ("csv", "json", "png")]
    capsys.readouterr()
    assert _fpemu("ledger") == 0
    out = capsys.readouterr().out
    assert "does not hold" in out
    assert "0.75×" in out
    assert out.splitlines()[-2:] == ["figures/LEDGER.md", "figures/LEDGER.csv"]
    text = Path("figures/LEDGER.md").read_text()
    assert VERDICTS in text
    assert TABLE in text
    assert text.endswith(REST)
    first = {name: Path("figures", name).read_bytes() for name in ("LEDGER.md", "LEDGER.csv")}
    assert _fpemu("ledger") == 0
    assert {name: Path("figures", name).read_bytes() for name in first} == first
    assert sorted(os.listdir("figures")) == ["LEDGER.csv", "LEDGER.md", "full", "toy"]


def test_the_table_for_programs(drawn):
    assert _fpemu("ledger") == 0
    lines = list(csv.DictReader(Path("figures/LEDGER.csv").read_text(encoding="utf-8").splitlines()))
    assert len(lines) == 3 + 1 + 3 + 1 + 1
    assert lines[0] == {
        "paper": "toy",
        "item": "Fig. 1; Fig. 3",
        "figure": "toy/fig1",
        "size": "quick",
        "claim": "error |a| / |b|",
        "published": "2×",
        "here": "0.75×",
        "verdict": "does not hold",
        "own check": "",
        "seeds": "3",
        "same": "3",
        "smallest": "0.5",
        "largest": "1.0",
        "explained by": "toy/why",
        "command": "fpemu reproduce toy/fig1",
    }
    assert [line["own check"] for line in lines if line["claim"] == "a check"] == ["holds", "holds"]
    assert [line["verdict"] for line in lines if line["item"] == "Fig. 4"] == ["needs other hardware"]


def test_the_page_renders(drawn):
    assert _fpemu("ledger") == 0
    tokens = MarkdownIt("commonmark").enable("table").parse(Path("figures/LEDGER.md").read_text())
    rows, cells = [], 0
    for token in tokens:
        cells = 0 if token.type == "tr_open" else cells + (token.type in ("td_open", "th_open"))
        if token.type == "tr_close":
            rows.append(cells)
    assert rows == [8] * 3 + [7] * (1 + 3 + 1 + 3 + 1 + 1) + [5] * 4
    html = MarkdownIt("commonmark").enable("table").render(Path("figures/LEDGER.md").read_text())
    assert "<td>error |a| / |b|</td>" in html
    assert '<a href="#why-toy-why">why</a>' in html
    assert '<h3><a id="why-toy-why"></a>why (<code>toy/why</code>, quick)</h3>' in html
    assert '<img src="toy/why.png" alt="why"' in html
    assert "<p>Figure: The reason.</p>" in html


def test_what_explains_only_some_claims_leaves_the_others_open(drawn):
    _page("why", WHY.format(explains='{"toy/fig1": "error"}'))
    _draw("toy/why")
    assert _fpemu("ledger") == 0
    text = Path("figures/LEDGER.md").read_text()
    assert text.count("[why](#why-toy-why)") == 1
    assert "### Not explained yet\n\n- `toy/fig1`, above 1_5. Published: above; here: some (at 0 of 6 points)\n" in text
    assert "What it explains:\n\n- `toy/fig1`, error |a| / |b|. Published: 2×; here: 0.75×\n\n" in text


def test_a_finding_without_a_claim_stands_by_itself_and_one_that_explains_nothing_says_so(drawn):
    _page("why", WHY.format(explains="()"))
    _draw("toy/why")
    assert _fpemu("ledger") == 0
    text = Path("figures/LEDGER.md").read_text()
    assert '## Findings that no paper claims\n\n### <a id="why-toy-why"></a>why (`toy/why`, quick)' in text
    assert "**does not hold** (not explained yet)" in text
    experiments.load("toy/why").module.EXPLAINS = ("toy/fig3",)
    _draw("toy/why")
    assert _fpemu("ledger") == 0
    assert "No claim of `toy/fig3` that it could explain fails here." in Path("figures/LEDGER.md").read_text()


def test_a_finding_beside_published_claims_that_explains_nothing_stands_with_its_paper(drawn):
    _edit(finding="It shows *two* factors.")
    assert _fpemu("ledger") == 0
    text = Path("figures/LEDGER.md").read_text()
    assert "### What the figures show\n\n- `toy/fig1`: It shows \\*two\\* factors.\n\n### Assumptions" in text
    assert "## Findings that no paper claims" not in text


def test_what_is_not_drawn_is_counted_and_says_how(folder, capsys):
    _draw("toy/fig1")
    assert _fpemu("ledger") == 0
    text = Path("figures/LEDGER.md").read_text()
    assert "| Fig. 3 | (all) |  |  | **not drawn yet** |  | `fpemu reproduce toy/fig3` |" in text
    assert "| all | 0 | 0 | 2 | 1 | 2 | 1 | 1 of 1 hold |" in text
    assert "not drawn yet" in capsys.readouterr().out


def test_check_compares_and_writes_nothing(drawn, capsys):
    assert _fpemu("ledger", "--check") == 1
    assert "out of date: LEDGER.md and LEDGER.csv in figures; run 'fpemu ledger'" in capsys.readouterr().err
    assert not Path("figures/LEDGER.md").exists()
    assert _fpemu("ledger") == 0
    assert _fpemu("ledger", "--check") == 0
    Path("figures/LEDGER.md").write_text("edited")
    capsys.readouterr()
    assert _fpemu("ledger", "--check") == 1
    assert capsys.readouterr().err.startswith("fpemu: out of date: LEDGER.md in figures")
    assert Path("figures/LEDGER.md").read_text() == "edited"


def test_check_finds_records_that_their_pages_would_not_write_now(drawn, capsys):
    path = Path("figures/toy/fig1.json")
    before = path.read_text()
    path.write_text(before.replace('"does not hold"', '"holds"'))
    assert path.read_text() != before
    assert _fpemu("ledger") == 0
    capsys.readouterr()
    assert _fpemu("ledger", "--check") == 1
    assert "out of date: the records of toy/fig1" in capsys.readouterr().err
    path.write_text(before)
    data = path.with_suffix(".csv")
    rows = data.read_text().rstrip("\n")
    data.write_text(rows[:-1] + ("2" if rows[-1] == "1" else "1") + "\n")
    assert _fpemu("ledger", "--check") == 2
    assert "fig1.csv was changed" in capsys.readouterr().err


def test_output_goes_elsewhere_and_its_links_come_back(drawn):
    assert _fpemu("ledger", "--output", "docs/pages") == 0
    assert not Path("figures/LEDGER.md").exists()
    text = Path("docs/pages/LEDGER.md").read_text()
    assert "](../../figures/toy/fig1.png)" in text
    assert Path("docs/pages/../../figures/toy/fig1.png").is_file()
    assert _fpemu("ledger", "--check", "-o", "docs/pages") == 0


FIELDS = ("claim", "published", "measured", "verdict")


def _edit(**changes):
    path = Path("figures/toy/fig1.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda: Path("figures/toy/fig1.json").write_text("{"), "figures/toy/fig1.json is not readable as JSON"),
        (lambda: Path("figures/toy/fig1.json").write_text("[]"), "figures/toy/fig1.json is not the record of a figure"),
        (lambda: _edit(claims=None), "claims missing or of another kind"),
        (lambda: _edit(claims=[{"claim": "c"}]), "claims: published, claims: measured, claims: verdict missing"),
        (lambda: _edit(size="full"), "figures/toy/fig1.json is the record of toy/fig1 at full size"),
        (lambda: _edit(figure="toy/fig3"), "figures/toy/fig1.json is the record of toy/fig3"),
        (lambda: _edit(claims=[dict.fromkeys(FIELDS, "x")]), "the verdict 'x' is none"),
        (lambda: _edit(finding=3), "finding is not a text"),
        (lambda: _edit(assumptions=[3]), "assumptions missing or of another kind"),
        (lambda: _edit(explains={"toy/fig1": "word"}), "lists of words"),
        (lambda: _edit(explains={"toy/fig1": [3]}), "lists of words"),
        (lambda: _edit(finding="\ud800"), "cannot read the record"),
        (lambda: Path("figures/toy/fig1.json").rename("figures/toy/fig9.json"), "is the record of toy/fig1"),
        (lambda: Path("papers/items.toml").write_text("papers = 1"), "items.toml: there is no [papers.NAME]"),
        (lambda: Path("papers/items.toml").write_text(ITEMS.replace("toy/why", "toy/x")), "does not name toy/why"),
        (lambda: Path("papers/items.toml").unlink(), "items.toml: No such file"),
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


def test_folders_that_are_none(folder, capsys):
    assert _fpemu("ledger") == 2
    assert "there is no folder 'figures'" in capsys.readouterr().err
    _draw("toy/fig1")
    assert _fpemu("ledger", "-o", "papers/items.toml") == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('kind = "M"', 'kind = "X"', "kind 'X' is not"),
        ('kind = "M"', 'kind = "M + M"', "kind 'M + M' is not"),
        ('why = "no model here yet"', 'why = ""', "Eq. 2: no page shows it, and why is empty"),
        ('pages = ["toy/fig1"]', 'pages = "toy/fig1"', "Fig. 1: pages is a list"),
        ('what = "speed", ', "", "an entry of toy has no what"),
        ('title = "Toys"', "", "an entry of toy has no title"),
    ],
)
def test_an_inventory_that_is_not_as_it_should_be(folder, old, new, complaint):
    assert old in ITEMS
    Path("papers/items.toml").write_text(ITEMS.replace(old, new))
    with pytest.raises(InputError, match=re.escape(complaint)):
        inventory.read()


# --- a figure of which a cell fails
def test_the_other_figures_are_drawn_and_the_status_is_1(folder, capsys):
    path = Path("papers/toy/fig1.py")
    path.write_text(path.read_text().replace('return {"factor"', 'return {"factor": 1 / 0} or {"factor"'))
    assert _fpemu("reproduce", "-j", "1") == 1
    err = capsys.readouterr().err
    assert "division by zero" in err
    assert "not drawn, because cells failed: toy/fig1;" in err
    assert "Traceback" not in err
    assert sorted(p.stem for p in Path("figures/toy").glob("*.json")) == ["fig3", "why"]


# --- this repository's own
def test_the_inventory_names_every_page_and_no_other():
    papers = inventory.read(ROOT / "experiments" / "items.toml")
    named = [page for paper in papers for page in paper.pages]
    assert sorted(named) == sorted(experiments.names())
    for paper in papers:
        assert {page.split("/")[0] for page in paper.pages} <= {paper.folder}
        labels = [item.item for item in paper.items]
        assert len(set(labels)) == len(labels)
        assert not {p for item in paper.extras for p in item.pages} & {p for item in paper.items for p in item.pages}


def test_every_kind_of_the_five_papers_is_in_the_inventory():
    papers = {paper.folder: paper for paper in inventory.read(ROOT / "experiments" / "items.toml")}
    for folder in ("legemm", "h2sgemm", "dgemm_tc", "magma", "tsm2"):
        kinds = {letter for item in papers[folder].items for letter in item.kind.split(" + ")}
        assert {"E", "M"} <= kinds
        assert kinds & {"G", "A"}
    for paper in papers.values():
        for item in paper.items:
            assert item.pages or item.why
            assert "E" not in item.kind.split(" + ") or item.pages, item


def test_figures_that_are_explained_exist():
    for name in experiments.names():
        page = experiments.load(name)
        assert set(page.explains) <= set(experiments.names())
        assert page.kind in ("E", "M", "G")
        assert not page.explains or hasattr(page.module, "finding"), name
