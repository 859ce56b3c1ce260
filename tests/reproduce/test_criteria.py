"""Each criterion rejects a wrong implementation, and each quotation stands in its paper."""

import difflib
import importlib
import os
import re
import unicodedata
from pathlib import Path

import pytest

from fpemu.reproduce import claims, pages
from tests.reproduce.wrong import once

ROOT = Path(__file__).resolve().parents[2] / "experiments"
PAPERS = {paper.folder: paper for paper in claims.papers(ROOT) if paper.claims}
WRONG = {folder: importlib.import_module(f"tests.reproduce.wrong.{folder}") for folder in PAPERS}


@pytest.mark.parametrize("folder", PAPERS)
def test_every_claim_has_a_wrong_implementation_or_is_listed_as_without(folder):
    judged = sorted(claim.name for claim in PAPERS[folder].claims if claim.judged)
    assert sorted([*WRONG[folder].WRONG, *WRONG[folder].WITHOUT]) == judged


@pytest.mark.parametrize(
    ("folder", "name"), [(folder, name) for folder, module in WRONG.items() for name in module.WRONG]
)
def test_a_criterion_rejects_a_wrong_implementation(folder, name):
    """In some case the criterion separates the page's implementation from the wrong one at every seed.

    Where the claim does not hold for the page's implementation, the changed one meets the criterion.
    """
    claim = next(claim for claim in PAPERS[folder].claims if claim.name == name)
    wrong = WRONG[folder].WRONG[name]
    experiment = pages.load(claim.page, ROOT)
    cells = [dict(cell) for cell in experiment.page.cells(**{**experiment.page.quick, **wrong.cells})]
    right = [cell | once(experiment.page.evaluate, cell, lambda c: experiment.evaluate(c)) for cell in cells]
    changed = [
        row | dict(once(wrong.numbers, cell, lambda c: wrong.numbers(experiment.module, c)))
        for row, cell in zip(right, cells, strict=True)
    ]
    assert all(row.keys() == other.keys() for row, other in zip(right, changed, strict=True)), "a new column"

    def met(rows):
        collected = claims.collect(experiment.measures, rows)["measures"]
        numbers = {(one.reading, one.variant): one.values for one in collected if one.name == name}
        return {case: [claim.criterion.met(float(x)) for x in values] for case, values in numbers.items()}

    before, after = met(right), met(changed)
    assert any(len({*before[case]}) == len({*after[case]}) == 1 and before[case] != after[case] for case in before), (
        f"{wrong.what}: {before} and {after}"
    )


# --- quotations
_TITLES = {
    "legemm": "Lightweight Emulation-based GEMM",
    "h2sgemm": "H2SGEMM: Emulating FP32 GEMM on Ascend NPUs",
    "dgemm_tc": "implementing dense matrix multiplication on FP64 (DGEMM) and FP32 (SGEMM)",
    "magma": "batched GEMM operations in",
    "tsm2": "ISM2: Optimizing Irregular-Shaped Matrix-Matrix Multiplication on GPUs",
}
"""Words of the first page of each paper's text, by which its file is found."""
DAMAGE = 4
"""Letters and digits in a row by which a scanned text may differ from the printed one, such as a lost ligature."""
INTERRUPTED: dict[tuple[str, str], str] = {
    ("dgemm_tc", "input_range"): "a footnote and the next page stand within the sentence",
    ("dgemm_tc", "input_largest"): "a footnote and the next page stand within the sentence",
    ("magma", "traffic_factors"): "the text has lost the end of the sentence",
    ("tsm2", "optimisations"): "an algorithm stands within the sentence",
}
"""Quotations whose text is damaged more: four fifths of their letters occur there in sequences of twelve."""


def _letters(text):
    """Letters and digits alone, in lower case: without hyphens, accents, ligatures, line breaks and LaTeX commands."""
    text = re.sub(r"\\[A-Za-z]+", "", text)
    return "".join(re.findall(r"[^\W_]", unicodedata.normalize("NFKD", text).lower()))


def _differences(quoted, text):
    """The differences between a quotation and the part of the text that is most like it; None if there is none."""
    if quoted in text:
        return []
    starts: dict[int, int] = {}
    for i in range(len(quoted) - 7):
        for at in re.finditer(quoted[i : i + 8], text):
            start = (at.start() - i) // 8
            starts[start] = starts.get(start, 0) + 1
    if not starts:
        return None
    start = max(0, 8 * max(starts, key=starts.__getitem__) - 24)
    part = text[start : start + len(quoted) + 48]
    matcher = difflib.SequenceMatcher(None, quoted, part, autojunk=False)
    # the text goes on before and behind the quotation, so the comparison begins and ends with six equal letters
    equal = [block for block in matcher.get_matching_blocks() if block.size >= 6]
    if not equal:
        return None
    ends = [(0, equal[0].b - equal[0].a), *((x.a + x.size, x.b + x.size) for x in equal)]
    starts_of = [*((x.a, x.b) for x in equal), (len(quoted), ends[-1][1] + len(quoted) - ends[-1][0])]
    pairs = zip(ends, starts_of, strict=True)
    return [(quoted[a:c], part[max(0, b) : d]) for (a, b), (c, d) in pairs if quoted[a:c] != part[max(0, b) : d]]


def _occurs(quoted, text):
    """The share of a quotation's letters in sequences of twelve that occur in the text."""
    found = [quoted[i : i + 12] in text for i in range(len(quoted) - 11)]
    return sum(any(found[max(0, i - 11) : i + 1]) for i in range(len(quoted))) / len(quoted)


@pytest.fixture(scope="module")
def texts():
    folder = os.environ.get("FPEMU_PAPERS")
    if not folder:
        pytest.skip("FPEMU_PAPERS names no folder with the papers' texts")
    files = [_letters(path.read_text(errors="replace")) for path in sorted(Path(folder).glob("*.txt"))]
    return {paper: [text for text in files if _letters(title) in text[:4000]] for paper, title in _TITLES.items()}


@pytest.mark.parametrize("folder", _TITLES)
def test_each_quotation_stands_in_its_paper(texts, folder):
    (text,) = texts[folder]
    wrong = []
    for claim in PAPERS[folder].claims:
        for part in re.split(r"…|\.\.\.", claim.quote):
            found = _differences(_letters(part), text)
            if found is not None and all(max(map(len, change)) <= DAMAGE for change in found):
                continue
            if (folder, claim.name) in INTERRUPTED and _occurs(_letters(part), text) >= 0.8:
                continue
            wrong.append((claim.name, part.strip(), found))
    assert not wrong, "\n".join(map(str, wrong))


def test_a_dropped_clause_and_a_paraphrase_are_no_quotations():
    text = _letters(
        "The ﬁrst method is, for small n, faster than the sec- ond and than cuBLAS on every GPU of the table."
    )
    assert _differences(_letters("the first method is, for small n, faster than the second"), text) == []
    assert _differences(_letters("the flrst method is, for smaII n, faster than the second"), text) != []
    for other in ("the first method is faster than the second", "the second is slower than the first", "none of these"):
        found = _differences(_letters(other), text)
        assert found is None or max(len(side) for change in found for side in change) > DAMAGE
