"""Figures of the papers: evaluated or read with their rows, and written as PNG, CSV and JSON.

Floats are written with 9 significant digits, or fewer where a page declares that its computation is less stable. The
picture and every statement of the record are computed from the data as written, so that evaluating the cells again on
another processor gives the same files, and a figure that is read back gives the same statements. No file depends on
the time, the machine's name or its folders.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import html
import importlib.metadata
import json
import os
import platform
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpemu._system import check_writable, read_json, sha256, write_atomic
from fpemu.arguments import read_table
from fpemu.errors import InputError, unknown_name
from fpemu.reproduce import claims, pages
from fpemu.reproduce.claims import Judgement, Record
from fpemu.reproduce.pages import Experiment
from fpemu.sweep import tables
from fpemu.sweep.run import Row, run
from fpemu.sweep.store import Store, canonical, code, default_path

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from fpemu.mma.device import Device

FORMATS = ("svg", "pdf")
"""Formats of a picture that are written only on request, beside the PNG."""
UNCHANGED, REWRITTEN, NEW = "unchanged", "rewritten", "new"
_PACKAGES = ("numpy", "numba", "scipy", "python-flint", "matplotlib")
_SUFFIXES = ("png", "csv", "json", "md")
_DRAWING = [Path(__file__).resolve().parents[1] / "plotting"]


@dataclass(frozen=True)
class Written:
    """The files of a figure, and whether writing changed them."""

    paths: list[Path]
    """PNG, CSV, JSON and Markdown, then the formats requested in addition"""
    state: str
    """"new", "unchanged" or "rewritten": of the first four files together"""
    record: Record
    """The content of the JSON"""


@dataclass(frozen=True)
class Reproduction:
    """A figure of a paper with its data, from `reproduce` or `committed`.

    Attributes
    ----------
    experiment : Experiment
        The figure's page.
    size : {"quick", "full"}
        Extent of the figure.
    rows : sequence of Row
        One dict per cell, with its parameters and its numbers, with the digits of the figure's CSV.
    """

    experiment: Experiment
    size: str
    rows: list[Row] = field(repr=False)

    @property
    def frame(self) -> pandas.DataFrame:
        """The rows as a table, a column for each parameter and number."""
        return tables.frame(self.rows)

    def figure(self) -> Figure:
        """The figure, drawn anew."""
        return _drawn(self.experiment, self.rows, self.record)

    @functools.cached_property
    def record(self) -> Record:
        """The figure's record, without the digests of its files."""
        return record_of(self.experiment, self.size, self.rows)

    @property
    def judgements(self) -> list[Judgement]:
        """The claims and checks that this figure decides, each with its numbers and its verdict.

        None if parameters are changed, because a claim is about the published values.
        """
        if self.experiment.changes:
            return []
        record = self.record
        return [
            claims.verdict_on(claim, record) for claim in claims.on_page(self.experiment.name, self.experiment.root)
        ]

    @property
    def finding(self) -> str | None:
        """A paragraph on the result of the figure; None where the page has none."""
        return self.experiment.finding(self.rows)

    def __repr__(self) -> str:
        changed = f", {self.experiment.difference}" * bool(self.experiment.changes)
        return f"Reproduction({self.experiment.name!r}, {self.size!r}{changed}, {len(self.rows)} rows)"

    def _repr_html_(self) -> str:
        title = html.escape(", ".join(filter(None, (self.experiment.title, self.experiment.difference))))
        head = f"<p><b>{html.escape(self.experiment.name)}</b> ({self.size}): {title}</p>"
        head += "<table>" + "".join(f"<th>{name}</th>" for name in ("claim", "case", "measured", "verdict"))
        lines = [
            (judgement.claim.claim, case.label, claims.number(judgement.claim, case), case.words)
            for judgement in self.judgements
            for case in judgement.cases
        ]
        cells = ("".join(f"<td>{html.escape(text)}</td>" for text in line) for line in lines)
        return head + "".join(f"<tr>{line}</tr>" for line in cells) + "</table>"


def reproduce(
    name: str,
    size: str = "quick",
    jobs: int = 1,
    results: Store | None = None,
    device: Device = "auto",
    **parameters: Any,
) -> Reproduction:
    """Evaluate the cells of an experiment that are not in the store, and return it with all its rows.

    Parameters
    ----------
    name : str
        ``paper/figure``.
    size : {"quick", "full"}
        Extent of the figure.
    jobs : int
        Number of local processes.
    results : Store, optional
        Default: the store of the command line (:func:`fpemu.sweep.store.default_path`).
    device : {"auto", "cpu", "cuda"}
        Where products are computed, as in :func:`fpemu.sweep.run`.
    **parameters
        Values in place of the published ones: the arguments of the page's `cells`, which ``fpemu list experiments
        NAME`` prints, as ``hardware="H200", n=512``. Title, caption and command name each of them, and no claim is
        judged.

    Returns
    -------
    Reproduction
        The experiment with all its rows.

    Raises
    ------
    InputError
        If there is no such experiment, size, device or parameter, or a value is of another kind than the published.
    CellError
        If a cell fails.
    """
    experiment = pages.load(name).changed(parameters)
    with contextlib.nullcontext(results) if results is not None else Store() as store:
        rows = run(experiment, size, results=store, jobs=jobs, device=device)
    return Reproduction(experiment, size, as_written(experiment, size, rows))


def committed(name: str, size: str = "quick", folder: str | os.PathLike[str] = "figures") -> Reproduction:
    """Return an experiment with the rows of its figure in ``folder`` (full size: ``folder/full``); evaluate nothing.

    Parameters
    ----------
    name : str
        ``paper/figure``.
    size : {"quick", "full"}
        Extent of the figure.
    folder : path-like
        A relative folder that is not in the working directory is looked for beside the experiments.

    Returns
    -------
    Reproduction
        The experiment with the rows of the figure's CSV.

    Raises
    ------
    InputError
        If there is no such experiment or figure, or its data are not those that it was drawn from.
    """
    experiment = pages.load(name)
    if size not in pages.SIZES:
        raise unknown_name("size", size, pages.SIZES)
    stem = size_folder(folder, size) / name
    data, record = stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.json")
    if not data.is_file():
        raise InputError(f"there is no {data}: 'fpemu reproduce {name}{' --full' * (size == 'full')}' makes it")
    rows = tables.read(data)
    if record.is_file():
        known = load_record(record)
        if known.data.get("sha256") != sha256(data):
            raise InputError(f"{data} was changed after {record} was written")
        if (known.figure, known.size) != (name, size):
            raise InputError(f"{record} is the record of {known.figure} at {known.size} size, not of {name} at {size}")
    return Reproduction(experiment, size, rows)


def size_folder(folder: str | os.PathLike[str], size: str) -> Path:
    """Where the figures of a size are: full ones in ``full`` under the others."""
    where = Path(folder)
    if not where.is_absolute() and not where.is_dir():
        beside = pages.root().parent / where
        where = beside if beside.is_dir() else where
    return where / "full" if size == "full" else where


def write(
    experiment: Experiment,
    size: str,
    rows: list[Row],
    folder: str | os.PathLike[str] = "figures",
    formats: Sequence[str] = (),
    redraw: bool = False,
) -> Written:
    """Write ``folder/<paper>/<figure>.{png,csv,json,md}`` and further `FORMATS`; each file appears whole or not at all.

    The Markdown file shows the picture with its title, its caption, its finding and its command. A figure with changed
    parameters goes to ``folder/changed`` under a name with its changes, and the paper's figure stays.
    The data and the statements are always computed and compared with the files. A picture whose SHA-256 is the
    record's is drawn again if its data changed, or the bytes of the code that draws it since the last run, which the
    cache folder holds, or with ``redraw``. It is replaced if the new one looks otherwise (`fpemu.plotting.look_alike`):
    the bytes of a PNG also depend on the versions of matplotlib and FreeType and on the processor. In the same way the
    package versions in the record are those that the data were first obtained with. A file whose content stays the
    same is not written.
    """
    from fpemu import plotting

    png, data_path, record_path, text_path = (Path(folder) / f"{experiment.stem}.{suffix}" for suffix in _SUFFIXES)
    known = None  # the existing record, unless it is missing or damaged
    with contextlib.suppress(InputError):
        known = load_record(record_path)
    data = tables.table(rows, digits(experiment, size))
    rows = tables.parse(data, str(data_path))
    record = record_of(experiment, size, rows, data)
    same_data = known is not None and (known.data, known.version) == (record.data, record.version)
    kept = _bytes(png)
    if kept is not None and (known is None or known.picture.get("sha256") != _sha256(kept)):
        kept = None  # a damaged picture, or another figure's
    drawn = functools.cache(lambda: _drawn(experiment, rows, record))
    code = _drawing_code(experiment, record.data["sha256"])
    picture = kept
    if kept is None or redraw or not same_data or _drawn_by(kept) not in (None, code):
        picture = plotting.png(drawn())
        if kept is not None and plotting.look_alike(kept, picture):
            picture = kept
    assert picture is not None
    _remember(picture, code)
    record = replace(
        record,
        picture={**record.picture, "sha256": _sha256(picture)},
        versions=known.versions if known is not None and same_data else record.versions,
    )
    contents = {
        png: picture,
        data_path: data,
        record_path: (json.dumps(asdict(record), indent=2, ensure_ascii=False) + "\n").encode(),
        text_path: description(record).encode(),
    }
    before = {path: _bytes(path) for path in contents}
    state = UNCHANGED if before == contents else REWRITTEN if before[record_path] is not None else NEW
    further = {png.with_suffix(f".{name}"): getattr(plotting, name)(drawn()) for name in formats}
    for path, content in (contents | further).items():
        if path in further or before[path] != content:
            write_atomic(path, content)
    return Written([*contents, *further], state, record)


def _drawn(experiment: Experiment, rows: list[Row], record: Record) -> Figure:
    """The figure of a page; of the paper's main claim with the claim and its verdict in the title."""
    figure = experiment.draw(rows)
    if not experiment.changes and (title := claims.title(experiment.name, record, experiment.root)):
        figure.suptitle(textwrap.fill(title, 50), fontsize=7.5, fontweight="bold")
    return figure


def description(record: Record) -> str:
    """Return a figure as Markdown: title, picture, caption, finding, assumptions and command."""
    parts = [
        f"# {escape(record.figure)}: {escape(record.title)}",
        f"![{escape(record.title)}]({record.picture['file']})",
    ]
    parts += [escape(record.caption), *([f"**Finding.** {escape(record.finding)}"] if record.finding else [])]
    parts += [f"**Paper.** {escape(record.paper)}"]
    parts += (
        ["**Assumptions**", "\n".join(f"- {escape(one)}" for one in record.assumptions)] if record.assumptions else []
    )
    return "\n\n".join([*parts, f"Drawn by `{record.command}`."]) + "\n"


def escape(text: str) -> str:
    """Escape Markdown's markup in a text; formulas between dollars stay as they are."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(text.split()))
    return "".join(part if index % 2 else _escape_words(part) for index, part in enumerate(parts))


def _escape_words(text: str) -> str:
    text = re.sub(r"([\\*`~$\[\]])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)  # an underscore within a word is no markup


# --- when a picture was drawn: a file of the cache folder for each picture, with a digest of its data and its code
def _drawing_code(experiment: Experiment, data: str) -> str:
    """A digest of a picture's data and of the bytes of all code that may draw it."""
    return _sha256(f"{data}{code([*experiment.sources, *_DRAWING])}".encode())


def _entry(picture: bytes) -> Path:
    return default_path().parent / "pictures" / _sha256(picture)


def _drawn_by(picture: bytes) -> str | None:
    """The digest of the code that drew a picture or found it current; None if the cache does not have it."""
    entry = _entry(picture)
    return entry.read_text(errors="replace") if entry.is_file() else None


def _remember(picture: bytes, code: str) -> None:
    if _drawn_by(picture) != code:
        with contextlib.suppress(OSError):  # a cache that cannot be written costs a drawing later
            write_atomic(_entry(picture), code.encode())


def check_output(names: Iterable[str], folder: str | os.PathLike[str], formats: Sequence[str] = ()) -> None:
    """Check before a computation that the figures with the `Experiment.stem` ``names`` can be written in a folder."""
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
    for name in names:
        for suffix in (*_SUFFIXES, *formats):
            check_writable(Path(folder) / f"{name}.{suffix}", make_folders=True)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digits(experiment: Experiment, size: str) -> dict[str, int | None]:
    """Significant digits of the columns that do not have 9. Parameters are exact, so they have all their digits."""
    return {name: None for cell in experiment.cells(size)[:1] for name in cell} | dict(experiment.page.digits)


def as_written(experiment: Experiment, size: str, rows: list[Row]) -> list[Row]:
    """Return the rows of an experiment with the digits that its CSV holds."""
    return tables.parse(tables.table(rows, digits(experiment, size)), experiment.name)


def record_of(experiment: Experiment, size: str, rows: list[Row], data: bytes = b"") -> Record:
    """Return a figure's record: its command, and the numbers that decide the paper's claims."""
    names = list(experiment.cells(size)[0]) if rows else []
    stem = Path(experiment.stem).name
    return Record(
        figure=experiment.name,
        command=experiment.command + " --full" * (size == "full"),
        size=size,
        cells=len(rows),
        parameters={name: _distinct(row[name] for row in rows) for name in names},
        hardware=hardware(experiment, rows),
        version=experiment.page.version,
        data={"file": f"{stem}.csv", "sha256": _sha256(data)},
        picture={"file": f"{stem}.png"},
        versions={"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        **statements(experiment, size, rows),
    )


def statements(experiment: Experiment, size: str, rows: list[Row]) -> dict[str, Any]:
    """Return a record's words and measured numbers: all of them follow from the page and the rows as written."""
    page = experiment.page
    runs = {claim.name: claim.runs for claim in claims.on_page(experiment.name, experiment.root)}
    return {
        "paper": page.paper,
        "title": experiment.title + f", with {experiment.difference}" * bool(experiment.changes),
        "kind": page.kind,
        "caption": experiment.caption(size),
        "assumptions": experiment.assumptions(size),
        "paper_size": not experiment.changes
        and (size == "full" or experiment.cells("full") == experiment.cells("quick")),
        **claims.collect(experiment.measures, rows, runs),
        "finding": experiment.finding(rows),
    }


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in their order; lists have no hash."""
    return list({canonical(value): value for value in values}.values())


def load_record(path: str | os.PathLike[str]) -> Record:
    """Read the record that `write` wrote; InputError if the file is missing, or not such a record."""
    return read_table(Record, read_json(path), f"{os.fspath(path)}, the record of a figure")


def hardware(experiment: Experiment, rows: list[Row]) -> tuple[dict[str, Any], ...]:
    """Return the arithmetic, evidence and source of a page's instructions."""
    fields = ("name", "arithmetic", "k", "block", "F", "E0", "final", "evidence", "source")
    return tuple({field: getattr(spec, field) for field in fields} for spec in experiment.instructions(rows))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
