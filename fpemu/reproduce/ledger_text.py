"""The ledger as a page of Markdown and as a table: the same bytes from the same figures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from fpemu.reproduce.claims import FAILS, HOLDS
from fpemu.reproduce.ledger import STATES, Ledger, Line

_HEAD = """# Ledger

Every published statement that a figure here bears on: what the paper says, what was found, under which assumptions, and
the verdict. Written by `fpemu ledger` from the JSON files beside the figures; nothing on this page is typed by hand.

*holds*, *holds in part* and *does not hold* follow from the data by rules that stand among the assumptions of each
figure, which also say where a rule was changed after a first drawing. *cannot be decided*: there are no data here that
speak about it. Below a result: the smallest and the largest value where each seed is judged alone, and at how many
seeds the verdict is the same. Checks of our own, which no paper claims, are marked so and counted apart.
"""


_FIELDS = {
    "paper": "paper",
    "item": "item",
    "figure": "page",
    "size": "size",
    "claim": "claim",
    "published": "published",
    "here": "ours",
    "verdict": "state",
    "own check": "check",
}
"""The columns of LEDGER.csv, and the fields of a line in them"""


def table(ledger: Ledger) -> bytes:
    """LEDGER.csv: a row for each row of the ledger."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    spread = ("seeds", "same", "smallest", "largest")
    writer.writerow([*_FIELDS, *spread, "explained by", "command"])
    for line in ledger.lines:
        numbers = ["" if line.spread.get(name) is None else line.spread[name] for name in spread]
        fields = [getattr(line, name) for name in _FIELDS.values()]
        writer.writerow([*fields, *numbers, " ".join(line.explained), line.command])
    return text.getvalue().encode()


def page(ledger: Ledger, figures: str = "") -> bytes:
    """LEDGER.md; ``figures`` leads from its folder to the figures: empty, or ending in a slash."""
    parts = [_HEAD, "## Verdicts", _counts(ledger)]
    for paper in ledger.papers:
        parts += [f"## {_escape(paper.title)}", _escape(paper.source), _claims(ledger.of(paper), ledger, figures)]
        parts += _shown(ledger, paper.pages)
        parts += _assumptions(ledger, paper.pages)
    parts += ["## Why some claims do not hold", *_reasons(ledger, figures), *_unexplained(ledger)]
    free = [name for name in _findings(ledger) if not (_explains(ledger, name) or _published(ledger, name))]
    if free:
        parts.append("## Findings that no paper claims")
        parts += [part for name in free for part in _finding(ledger, name, figures)]
    parts += ["## What is not here, or only in part", _absent(ledger)]
    return ("\n\n".join(part.strip("\n") for part in parts) + "\n").encode()


def _counts(ledger: Ledger) -> str:
    rows = []
    for title, paper in [*((paper.title, paper) for paper in ledger.papers), ("all", None)]:
        lines = ledger.lines if paper is None else ledger.of(paper)
        verdicts = [line.check for line in lines if line.check]
        counts = ledger.counts(paper)
        checks = f"{verdicts.count(HOLDS)} of {len(verdicts)} hold" if verdicts else ""
        rows.append([title, *(str(counts[state]) for state in STATES), checks])
    return _table(["paper", *STATES, "our own checks"], rows)


def _claims(lines: Sequence[Line], ledger: Ledger, figures: str) -> str:
    rows = []
    for line in lines:
        item = _escape(line.item)
        if line.page in ledger.records:
            item = f"[{item}]({_image(ledger, line.page, figures)})"
        claim = _escape(line.claim) if line.claim else "(drawn without a published claim)" if line.size else "(all)"
        published = _escape(line.published) if line.published or not line.check else "(our own check)"
        rows.append(
            [item, claim, published, _here(line), _verdict(line), line.size, f"`{line.command}`" * bool(line.command)]
        )
    return _table(["item", "claim", "published", "here", "verdict", "size", "command"], rows, escaped=True)


def _here(line: Line) -> str:
    spread = line.spread.get("text", "")
    return _escape(line.ours) + f"<br>{_escape(spread)}" * bool(spread)


def _verdict(line: Line) -> str:
    if line.state != FAILS:
        return f"**{line.state}**" if line.state else line.check
    why = ", ".join(f"[why](#{_anchor(name)})" for name in line.explained) or "not explained yet"
    return f"**{line.state}** ({why})"


def _shown(ledger: Ledger, pages: Sequence[str]) -> list[str]:
    """What the figures of a paper show, where it explains no failed claims: those come later."""
    names = [n for n in _findings(ledger) if n in pages and _published(ledger, n) and not _explains(ledger, n)]
    lines = [f"- `{name}`: {_escape(ledger.records[name]['finding'])}" for name in names]
    return ["### What the figures show", "\n".join(lines)] if lines else []


def _assumptions(ledger: Ledger, pages: Iterable[str]) -> list[str]:
    """The assumptions of a paper's figures, a list that several figures share once."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in pages:
        if name in ledger.records:
            groups.setdefault(tuple(ledger.records[name]["assumptions"]), []).append(name)
    lines = ["### Assumptions"] if any(groups) else []
    for assumptions, names in groups.items():
        if assumptions:
            lines.append(f"{', '.join(f'`{name}`' for name in names)}:")
            lines.append("\n".join(f"- {_escape(text)}" for text in assumptions))
    return lines


def _reasons(ledger: Ledger, figures: str) -> list[str]:
    parts: list[str] = []
    for name in _findings(ledger):
        explains = _explains(ledger, name)
        if explains:
            parts += _finding(ledger, name, figures)
            lines = [f"- {_failed(line)}" for line in ledger.failed if name in line.explained]
            none = f"No claim of {', '.join(f'`{one}`' for one in explains)} that it could explain fails here."
            parts.append("What it explains:\n\n" + "\n".join(lines) if lines else none)
    return parts


def _unexplained(ledger: Ledger) -> list[str]:
    lines = [f"- {_failed(line)}" for line in ledger.failed if not line.explained]
    if not lines:
        return ["Every claim that does not hold is explained above."] if ledger.failed else ["No claim fails."]
    return ["### Not explained yet", "\n".join(lines)]


def _failed(line: Line) -> str:
    return f"`{line.page}`, {_escape(line.claim)}. Published: {_escape(line.published)}; here: {_escape(line.ours)}"


def _findings(ledger: Ledger) -> list[str]:
    """The pages with a finding, in the order of the papers."""
    order = [name for paper in ledger.papers for name in paper.pages]
    return [name for name in dict.fromkeys(order) if ledger.records.get(name, {}).get("finding")]


def _explains(ledger: Ledger, name: str) -> list[str]:
    return list(ledger.records[name].get("explains", {}))


def _published(ledger: Ledger, name: str) -> bool:
    return any(claim["published"] for claim in ledger.records[name]["claims"])


def _finding(ledger: Ledger, name: str, figures: str) -> list[str]:
    record = ledger.records[name]
    title = _escape(record["title"])
    return [
        f'### <a id="{_anchor(name)}"></a>{title} (`{name}`, {record["size"]})',
        _escape(record["finding"]),
        f"![{title}]({_image(ledger, name, figures)})",
        f"Figure: {_escape(record['caption'])}",
    ]


def _absent(ledger: Ledger) -> str:
    rows = [
        [paper.title, item.item, item.kind, item.what, item.why]
        for paper in ledger.papers
        for item in paper.items
        if item.why
    ]
    return _table(["paper", "item", "kind", "what", "why"], rows) if rows else "Nothing."


def _image(ledger: Ledger, name: str, figures: str) -> str:
    return f"{figures}{'full/' * (ledger.records[name]['size'] == 'full')}{name}.png"


def _anchor(name: str) -> str:
    return "why-" + name.replace("/", "-")


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, escaped: bool = False) -> str:
    lines = [head, ["---"] * len(head), *([cell if escaped else _escape(cell) for cell in row] for row in rows)]
    # a bar within a cell would end it, even inside a formula or code
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _escape(text: str) -> str:
    """Text for Markdown: what it would take for markup is escaped, formulas between dollars are left alone."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(text.split()))
    return "".join(part if index % 2 else _escape_words(part) for index, part in enumerate(parts))


def _escape_words(text: str) -> str:
    text = re.sub(r"([\\*`~$])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)  # an underscore within a word is no markup
