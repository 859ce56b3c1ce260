"""The items of the papers and the pages that reproduce them: ``items.toml`` beside the papers' pages.

::

    [papers.legemm]                          # a folder of experiments
    title = "LE-GEMM"
    source = "Journal of Systems Architecture 160 (2025) 103336"
    [[papers.legemm.items]]
    item = "Fig. 10"
    kind = "E"                               # E error figure, M model, G needs a GPU, A model only; "E + G": both
    what = "Max_error over n"
    pages = ["legemm/fig10"]                 # none: why says why
    why = ""
    [[papers.legemm.extra]]                  # a page without an item of the paper
    page = "legemm/split_rounding"
    why = "what the split's rounding does to the error"
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpemu.errors import InputError
from fpemu.files import read_toml
from fpemu.reproduce import experiments

KINDS = frozenset("EMGA")


@dataclass(frozen=True)
class Item:
    """A figure or table of a paper, or a further page."""

    item: str
    kind: str
    what: str
    pages: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Paper:
    """A paper of the inventory."""

    folder: str
    title: str
    source: str
    """Where it was published"""
    items: tuple[Item, ...]
    extras: tuple[Item, ...]

    @property
    def pages(self) -> list[str]:
        """The pages of the items, then the further ones, each once."""
        return list(dict.fromkeys(page for item in (*self.items, *self.extras) for page in item.pages))

    def shown_by(self, page: str) -> str:
        """The items that a page reproduces; a further page is an extra."""
        return "; ".join(item.item for item in self.items if page in item.pages) or "extra"


def read(path: Path | None = None) -> tuple[Paper, ...]:
    """The papers of ``items.toml``.

    Raises
    ------
    InputError
        If the file is missing or not TOML, or an entry does not have the form that the module's docstring shows.
    """
    path = experiments.root() / "items.toml" if path is None else path
    content, papers = read_toml(path), []
    for folder, paper in _papers(path, content).items():
        items = [_item(path, folder, entry) for entry in paper.get("items", [])]
        extras = [
            Item("extra", "E", _word(path, folder, entry, "why"), (_word(path, folder, entry, "page"),), "")
            for entry in paper.get("extra", [])
        ]
        title, source = (_word(path, folder, paper, name) for name in ("title", "source"))
        papers.append(Paper(folder, title, source, tuple(items), tuple(extras)))
    return tuple(papers)


def _item(path: Path, folder: str, entry: dict[str, Any]) -> Item:
    item, kind, what = (_word(path, folder, entry, name) for name in ("item", "kind", "what"))
    pages, why = entry.get("pages", []), entry.get("why", "")
    letters = kind.split(" + ")
    if not KINDS.issuperset(letters) or len(set(letters)) < len(letters):
        raise InputError(f"{path}: {folder}, {item}: kind {kind!r} is not E, M, G or A, or several joined by ' + '")
    if not isinstance(pages, list) or not all(isinstance(page, str) for page in pages) or not isinstance(why, str):
        raise InputError(f"{path}: {folder}, {item}: pages is a list of names, why a text")
    if not pages and not why:
        raise InputError(f"{path}: {folder}, {item}: no page shows it, and why is empty")
    return Item(item, kind, what, tuple(pages), why)


def _papers(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    papers = content.get("papers")
    if not isinstance(papers, dict) or not all(isinstance(paper, dict) for paper in papers.values()):
        raise InputError(f"{path}: there is no [papers.NAME]")
    return papers


def _word(path: Path, folder: str, entry: Any, name: str) -> str:
    word = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(word, str) or not word:
        raise InputError(f"{path}: an entry of {folder} has no {name}")
    return word
