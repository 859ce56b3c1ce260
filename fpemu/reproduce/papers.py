"""The papers' claims and inventories as data: ``experiments/<paper>/paper.toml``.

::

    title = "H2SGEMM"
    source = "Xue et al.: H2SGEMM, emulating FP32 GEMM on Ascend NPUs using FP16 units (2025)."

    [[items]]                    # each experiment, figure, table, formula and algorithm of the paper
    item = "Fig. 8"
    what = "error over the offset exponent of the operands"
    status = "reproduced"        # or "partly", "not testable here"
    note = ""                    # partly: what is missing; not testable here: why
    pages = ["h2sgemm/fig8"]

    [[extras]]                   # pages without an item of the paper
    page = "h2sgemm/promotion"
    what = "error of a promoted accumulation"

    [[claims]]                   # a published statement, once: see Claim for the fields
    name = "termwise_beats_sgemm"
    kind = "numerics"
    claim = "Term-wise accumulation with sb = 12 is more accurate than SGEMM"
    page = "h2sgemm/fig8"
    quantity = "least over e of error(SGEMM) / error(sb = 12)"
    criterion = "> 1"

    [[checks]]                   # a check of this project, which no paper claims: kind "goal" or "negative control"
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.files import read_toml
from fpemu.reproduce import experiments

STATUSES = ("reproduced", "partly", "not testable here")
SPEED, DEFINITION = "speed", "definition"
CLAIM_KINDS = ("numerics", "formula", SPEED, DEFINITION)
CHECK_KINDS = ("goal", "negative control")
HEADLINES = 10
"""The largest number of rows in a paper's summary."""

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_COMPARISONS = {">": "above", ">=": "at least", "<": "below", "<=": "at most", "==": "exactly"}


@dataclass(frozen=True)
class Criterion:
    """The values of a measured quantity for which a claim holds.

    Parameters
    ----------
    text : str
        ``"> x"``, ``">= x"``, ``"< x"``, ``"<= x"``, ``"== x"``, or ``"a to b"`` with both ends included.

    Raises
    ------
    InputError
        If the text has another form.

    Examples
    --------
    >>> Criterion("0.5 to 2").met(2.0), Criterion("> 1").met(1.0), str(Criterion("<= 3"))
    (True, False, 'at most 3')
    """

    text: str

    def __post_init__(self) -> None:
        if not self._range and not self._comparison:
            raise InputError(f"criterion {self.text!r} is not like '> 1', '<= 2', '== 0' or '0.5 to 2'")
        if (ends := self._range) and float(ends[1]) > float(ends[2]):
            raise InputError(f"no value meets the criterion {self.text!r}: its first end exceeds its second")

    @property
    def _range(self) -> re.Match[str] | None:
        return re.fullmatch(rf"{_NUMBER} to {_NUMBER}", self.text)

    @property
    def _comparison(self) -> re.Match[str] | None:
        return re.fullmatch(rf"(>=|<=|==|>|<)\s*{_NUMBER}", self.text)

    def met(self, value: float) -> bool:
        """Return whether a value fulfils the criterion; NaN does not."""
        if ends := self._range:
            return float(ends[1]) <= value <= float(ends[2])
        sign, limit = self._comparison.groups()  # type: ignore[union-attr]
        x = float(limit)
        return bool({">": value > x, ">=": value >= x, "<": value < x, "<=": value <= x, "==": value == x}[sign])

    def __str__(self) -> str:
        if self._range:
            return self.text
        sign, limit = self._comparison.groups()  # type: ignore[union-attr]
        return f"{_COMPARISONS[sign]} {limit}"


@dataclass(frozen=True)
class Item:
    """An experiment, figure, table, formula or algorithm of a paper.

    Attributes
    ----------
    item, what : str
        Its number in the paper and its content.
    status : {"reproduced", "partly", "not testable here"}
        Whether a page here shows it.
    note : str
        The missing part, or the reason why it cannot be tested here.
    pages : tuple of str
        The pages that show it.
    """

    item: str
    what: str
    status: str
    note: str = ""
    pages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A published statement, or a check of this project, with the criterion that decides it.

    Attributes
    ----------
    name : str
        Identifier, unique in the paper.
    kind : str
        "numerics", "formula", "speed" (of another machine) or "definition"; of a check "goal" or "negative control".
    claim : str
        The statement in one line.
    page : str
        Page whose rows decide it; empty if nothing here can decide it.
    quantity, unit : str
        The measured number in words, and its unit.
    criterion : Criterion, optional
        Values for which the claim holds; none for a speed or a definition.
    headline : int, optional
        Row in the paper's summary.
    quote, place : str
        The paper's words and their place.
    given, unstated : str
        Conditions that the paper gives, and conditions that it leaves open.
    readings : str
        What the readings of the claim differ in, such as "SGEMM".
    condition : str
        A restriction of the data here, such as the largest size.
    why : str
        The cause of the verdict in one sentence.
    explained : str
        Page that explains the verdict.
    """

    name: str
    kind: str
    claim: str
    page: str = ""
    quantity: str = ""
    unit: str = ""
    criterion: Criterion | None = None
    headline: int | None = None
    quote: str = ""
    place: str = ""
    given: str = ""
    unstated: str = ""
    readings: str = ""
    condition: str = ""
    why: str = ""
    explained: str = ""

    @property
    def judged(self) -> bool:
        """Whether data of a page decide the claim."""
        return bool(self.page) and self.kind not in (SPEED, DEFINITION)


@dataclass(frozen=True)
class Paper:
    """A folder of experiments: the inventory of a paper, its claims and the checks of this project.

    Attributes
    ----------
    folder, title, source : str
        Folder in ``experiments``, short name, and place of publication.
    items : tuple of Item
        The inventory.
    extras : dict of str
        Content of the pages without an item.
    claims, checks : tuple of Claim
        Published statements, and checks of this project.
    """

    folder: str
    title: str
    source: str
    items: tuple[Item, ...]
    extras: dict[str, str]
    claims: tuple[Claim, ...]
    checks: tuple[Claim, ...]

    @property
    def pages(self) -> list[str]:
        """The pages of the items, then the others, each once."""
        return list(dict.fromkeys([*(page for item in self.items for page in item.pages), *self.extras]))

    @property
    def headlines(self) -> list[Claim]:
        """The claims of the summary, in its order."""
        chosen = [claim for claim in self.claims if claim.headline is not None]
        return sorted(chosen, key=lambda claim: claim.headline or 0)


def read(root: Path | None = None) -> tuple[Paper, ...]:
    """Read ``paper.toml`` of every folder: those with a summary first, then the others, each by name.

    Parameters
    ----------
    root : Path, optional
        Folder of the papers' folders; default: the folder of the experiments.

    Returns
    -------
    tuple of Paper

    Raises
    ------
    InputError
        If a file is not TOML, or an entry does not have the form that the module's docstring shows.
    """
    root = experiments.root() if root is None else root
    papers = [_paper(path) for path in sorted(root.glob("*/paper.toml"))]
    return tuple(sorted(papers, key=lambda paper: not paper.headlines))


def _paper(path: Path) -> Paper:
    content = read_toml(path)
    title, source = (_text(path, content, "the file", name, required=True) for name in ("title", "source"))
    items = tuple(_item(path, entry) for entry in _entries(path, content, "items"))
    extras = {
        _text(path, entry, "extras", "page", required=True): _text(path, entry, "extras", "what", required=True)
        for entry in _entries(path, content, "extras")
    }
    claims = tuple(_claim(path, entry, CLAIM_KINDS) for entry in _entries(path, content, "claims"))
    checks = tuple(_claim(path, entry, CHECK_KINDS) for entry in _entries(path, content, "checks"))
    paper = Paper(path.parent.name, title, source, items, extras, claims, checks)
    _consistent(path, paper)
    return paper


def _consistent(path: Path, paper: Paper) -> None:
    """Raise InputError if names or rows of the summary repeat, or a claim names a page that the inventory lacks."""
    names = [claim.name for claim in (*paper.claims, *paper.checks)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: several claims have the name {repeated[0]!r}")
    ranks = [claim.headline for claim in paper.headlines]
    if ranks != list(range(1, len(ranks) + 1)) or len(ranks) > HEADLINES:
        raise InputError(f"{path}: the headlines are numbered {ranks}, not 1 to at most {HEADLINES}")
    for claim in (*paper.claims, *paper.checks):
        for page in filter(None, (claim.page, claim.explained)):
            if page.startswith(f"{paper.folder}/") and page not in paper.pages:
                raise InputError(f"{path}: the claim {claim.name} names {page}, which no item and no extra names")


def _item(path: Path, entry: dict[str, Any]) -> Item:
    label = str(entry.get("item", "items"))
    item, what, status = (_text(path, entry, label, name, required=True) for name in ("item", "what", "status"))
    pages, note = entry.get("pages", []), _text(path, entry, label, "note")
    if status not in STATUSES:
        raise InputError(f"{path}: {label}: the status {status!r} is none of {', '.join(STATUSES)}")
    if not isinstance(pages, list) or not all(isinstance(page, str) for page in pages):
        raise InputError(f"{path}: {label}: pages is not a list of names")
    if status != STATUSES[0] and not note:
        raise InputError(f"{path}: {label} is {status}: the note says nothing about the rest")
    if status != STATUSES[2] and not pages:
        raise InputError(f"{path}: {label} is {status}, but no page shows it")
    return Item(item, what, status, note, tuple(pages))


def _claim(path: Path, entry: dict[str, Any], kinds: tuple[str, ...]) -> Claim:
    label = str(entry.get("name", "claims"))
    unknown = sorted(set(entry) - {field.name for field in fields(Claim)})
    if unknown:
        raise InputError(f"{path}: {label}: unknown field {unknown[0]!r}")
    values: dict[str, Any] = {
        name: _text(path, entry, label, name, required=name in ("name", "kind", "claim"))
        for name in entry
        if name != "headline"
    }
    if values.get("kind") not in kinds:
        raise InputError(f"{path}: {label}: the kind {values.get('kind')!r} is none of {', '.join(kinds)}")
    headline = entry.get("headline")
    if headline is not None and (not isinstance(headline, int) or kinds is CHECK_KINDS):
        raise InputError(f"{path}: {label}: headline is not the number of a row, or the entry is no claim")
    if "criterion" in values:
        try:
            values["criterion"] = Criterion(values["criterion"])
        except InputError as problem:
            raise InputError(f"{path}: {label}: {problem}") from None
    claim = Claim(**{"headline": headline, **values})
    if claim.judged and not (claim.criterion and claim.quantity):
        raise InputError(f"{path}: {label}: a claim that a page decides has a quantity and a criterion")
    return claim


def _entries(path: Path, content: dict[str, Any], name: str) -> list[dict[str, Any]]:
    entries = content.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{path}: {name} is not a list of tables [[{name}]]")
    return entries


def _text(path: Path, entry: dict[str, Any], label: str, name: str, *, required: bool = False) -> str:
    text = entry.get(name, "")
    if not isinstance(text, str) or (required and not text):
        raise InputError(f"{path}: {label}: {name} is not a text, or missing")
    return " ".join(text.split())
