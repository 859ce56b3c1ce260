"""Pages of experiments: ``experiments/<paper>/<figure>.py``, a page of Python for each figure.

Loading a page executes it. Pages are therefore taken only from the checkout or the wheel that contains this package, or
from a folder that the user names (:func:`using`, ``$FPEMU_EXPERIMENTS``), never from the working directory.

The table ``[titles]`` in the ``paper.toml`` of a folder lists its pages, so that listing them executes nothing. A page
is the object `PAGE` of the module with the figure's name, or an entry of the mapping `PAGES` in ``_pages.py``, whose
pages share their code. Modules whose name begins with an underscore are shared by several pages; ``model.py`` is the
paper's performance model.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpemu._system import read_toml
from fpemu.arguments import flag, integer, is_integer, is_real, keywords, number, text
from fpemu.errors import InputError, shown, unknown_name
from fpemu.mma import catalog
from fpemu.mma.device import Device
from fpemu.sweep.ranges import parse_range
from fpemu.sweep.store import Cell, Values, code

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpemu.mma import MmaSpec
    from fpemu.reproduce.claims import Measure

SIZES = ("quick", "full")
_VARIABLE = "FPEMU_EXPERIMENTS"
_CHECKOUT = Path(__file__).resolve().parents[2]
_INSTALLED = Path(__file__).resolve().parents[1] / "_sources"
"""The folder of ``experiments`` and ``benchmarks`` in a wheel."""
_IMPORT = re.compile(r"^ *(?:from +(\.*)([\w.]*) +import +(?:\(([^)]*)\)|(.*))|import +([\w.]+))", re.MULTILINE)
"""An import statement: its dots, its module, the names in parentheses or on the line, or the module without names."""


@dataclass(frozen=True)
class Page:
    """A figure: its words, its cells, and the functions that evaluate, draw and judge them.

    Parameters
    ----------
    paper : str
        The figure's place in the literature.
    caption : str, or function of the parameters
        The figure's caption; a function receives the arguments of `cells` as a dict.
    assumptions : sequence of str, or function of the parameters
        Statements that the paper does not make and the page assumes.
    cells : function
        Returns the parameter dicts to evaluate. Its arguments are the parameters that `Experiment.changed` replaces,
        and their defaults are the published values: sizes, seeds, hardware.
    evaluate : function of a cell, or of a cell and a device
        Returns the numbers of one cell as a dict, with its products computed on ``device`` as in `fpemu.gemm`.
    draw : function of rows
        Returns a matplotlib figure; a row has a cell's parameters and numbers in one dict.
    measures : function of rows, optional
        Returns the numbers that decide claims and checks of ``paper.toml`` (`fpemu.reproduce.Measure`), from the rows
        of one seed, or from all rows where these have no column ``seed``.
    finding : function of rows, optional
        Returns a paragraph on the result of the figure, every number in it computed from the rows.
    cost : function of a cell, optional
        Returns the relative work of a cell, for the time left.
    quick : mapping of str to object
        The arguments of `cells` at quick size.
    kind : {"E", "M", "G"}
        An error figure, a model or formula, or speed on a GPU from a record.
    version : int
        Version of the numbers, to be raised if they change on purpose.
    digits : mapping of str to int or None
        Significant digits of the columns that are not written with 9; None: all, for numbers that are exact.
    specs : sequence of tuple, optional
        Arguments of `fpemu.mma.spec` for the instructions of the record; default: the fp16 instructions of the
        column ``hardware``. A changed parameter ``hardware`` replaces the first argument of each.
    """

    paper: str
    caption: str | Callable[[Mapping[str, Any]], str]
    assumptions: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]]
    cells: Callable[..., Iterable[Cell]]
    evaluate: Callable[..., Mapping[str, float]]
    draw: Callable[[list[dict[str, Any]]], Figure]
    measures: Callable[[list[dict[str, Any]]], Iterable[Measure]] | None = None
    finding: Callable[[list[dict[str, Any]]], str] | None = None
    cost: Callable[[Cell], float] | None = None
    quick: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "E"
    version: int = 1
    digits: Mapping[str, int | None] = field(default_factory=dict)
    specs: Sequence[tuple[Any, ...]] | None = None

    @property
    def published(self) -> dict[str, Any]:
        """The parameters of the figure with their published values."""
        return {p.name: p.default for p in inspect.signature(self.cells).parameters.values()}


@dataclass(frozen=True)
class Experiment:
    """One figure of a paper with its name and its page; returned by `load`.

    Attributes
    ----------
    name, title : str
        Name as ``paper/figure``, and title in ``paper.toml``.
    root : Path
        Folder that contains the papers' folders.
    page : Page
        The object of the page.
    changes : mapping of str to object
        Parameters that replace the published values; empty for the paper's figure.
    module : types.ModuleType
        The imported module of the page.
    sources : tuple of Path
        Files and folders that the numbers depend on, beside the package: the same in every process.
    """

    name: str
    title: str
    root: Path
    page: Page = field(repr=False)
    module: types.ModuleType = field(repr=False)
    sources: tuple[Path, ...] = field(repr=False)
    changes: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, parameters: Mapping[str, Any]) -> Experiment:
        """Return the figure with other values of its parameters (`Page.published`).

        A text is read as on the command line: "0:9" and "64,128" for a sequence. A GPU of the published architecture
        is no change, because its arithmetic is the same. Title, caption and command state each
        changed value, the figure has another file name, and it decides no claim. InputError for an unknown
        parameter, or a value of another kind than the published one.
        """
        published = self.page.published
        if parameters and not published:
            raise InputError(f"{self.name} has no parameters: its cells are fixed, or of a record")
        keywords(f"parameter of {self.name}", parameters, published)
        changes = {name: _checked(name, parameters[name], published[name]) for name in published if name in parameters}
        changes = {name: value for name, value in changes.items() if not _same(name, value, published[name])}
        one = replace(self, changes=changes)
        try:
            one.instructions(one.cells("quick"))
            one.assumptions("quick")
        except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
            raise InputError(f"{self.name} cannot have {one.difference}: {problem}") from problem
        return one

    @property
    def difference(self) -> str:
        """The changed parameters in words: "hardware = H200, n = 512"; empty for the paper's figure."""
        return ", ".join(f"{name} = {in_words(value)}" for name, value in self.changes.items())

    @property
    def stem(self) -> str:
        """The path of the figure's files below its folder, without suffix: changed figures are in ``changed``."""
        if not self.changes:
            return self.name
        end = re.sub(r"[^\w.-]+", "-", "_".join(f"{name}-{in_words(value)}" for name, value in self.changes.items()))
        short = end if len(end) <= 80 else hashlib.sha256(end.encode()).hexdigest()[:16]
        return f"changed/{self.name}_{short}"

    @property
    def command(self) -> str:
        """The command line that draws the figure at quick size."""
        sets = (f"{name}={in_words(value).replace(', ', ',')}" for name, value in self.changes.items())
        return " ".join([f"fpemu reproduce {self.name}", *(f"--set {shlex.quote(text)}" for text in sets)])

    def parameters(self, size: str) -> dict[str, Any]:
        """The arguments of the page's `cells` at ``size``: published or quick values, and the changes."""
        if size not in SIZES:
            raise unknown_name("size", size, SIZES)
        given = {**self.page.published, **(self.page.quick if size == "quick" else {}), **self.changes}
        if "hardware" in self.changes:  # rows have the names of the catalogue
            units = given["hardware"]
            one = isinstance(units, str)
            given["hardware"] = catalog.architecture(units) if one else tuple(map(catalog.architecture, units))
        return given

    def caption(self, size: str) -> str:
        """The caption; that of a changed figure ends with each changed value beside the published one."""
        given = self.page.caption
        # the line breaks of a page's source are no part of its words
        words = " ".join((given(self.parameters(size)) if callable(given) else given).split())
        published = self.page.published
        values = (f"{n} = {in_words(x)} (published: {in_words(published[n])})" for n, x in self.changes.items())
        return f"{words} Changed from the paper: {'; '.join(values)}." if self.changes else words

    def assumptions(self, size: str) -> tuple[str, ...]:
        """The assumptions, for the parameters of the figure."""
        given = self.page.assumptions
        return tuple(" ".join(one.split()) for one in (given(self.parameters(size)) if callable(given) else given))

    def instructions(self, rows: Iterable[Mapping[str, Any]]) -> list[MmaSpec]:
        """The instructions behind the rows, for the record (`Page.specs`); InputError if the hardware lacks one."""
        names = dict.fromkeys(row.get("hardware") for row in rows)
        given = self.page.specs
        if given is None:
            given = [(str(name), "fp16", "fp32") for name in names if name]
        elif "hardware" in self.changes:
            given = [(name, *rest) for name in names for _, *rest in given]
        return [catalog.spec(*of) for of in given]

    @property
    def evaluator(self) -> str:
        """The dotted name of the module that ``evaluate`` was written in: the shared part of the keys."""
        return self.page.evaluate.__module__.partition(".")[2]

    @property
    def loader(self) -> tuple[Callable[..., Experiment], tuple[Any, ...]]:
        """The function that loads the page in a worker process, and its arguments."""
        return load, (self.name, self.root)

    def resolved(self, cell: Mapping[str, Any]) -> Cell:
        """A cell as it enters the key: a page states all parameters."""
        return dict(cell)

    def cells(self, size: str) -> list[Cell]:
        """The parameters to evaluate at ``size``."""
        return [dict(cell) for cell in self.page.cells(**self.parameters(size))]

    def evaluate(self, cell: Mapping[str, Any], device: Device = "cpu") -> Values:
        """The numbers of one cell; ``device`` is passed on to a page whose ``evaluate`` has this parameter."""
        options = {"device": device} if "device" in inspect.signature(self.page.evaluate).parameters else {}
        return dict(self.page.evaluate(dict(cell), **options))

    def cost(self, cell: Mapping[str, Any]) -> float:
        """Relative work of a cell; 1 where the page does not state it."""
        return float(self.page.cost(dict(cell))) if self.page.cost else 1.0

    def draw(self, rows: list[dict[str, Any]]) -> Figure:
        """The figure, in the package's style; the heading of a changed figure names its changed parameters."""
        from fpemu import plotting

        with plotting.style():
            figure = self.page.draw(rows)
            if self.changes:
                heading = textwrap.fill(
                    f"Changed from the paper: {self.difference.replace(' = ', chr(160) + '=' + chr(160))}",
                    int(15 * figure.get_figwidth()),
                )
                figure.suptitle(heading, fontsize=7, color=plotting.VERMILION)
            return figure

    def measures(self, rows: list[dict[str, Any]]) -> list[Measure]:
        """The numbers that decide claims, from the rows of one seed; a changed figure decides none."""
        return list(self.page.measures(rows)) if self.page.measures and not self.changes else []

    def finding(self, rows: list[dict[str, Any]]) -> str | None:
        """The result of the figure in a paragraph; None where the page has none.

        None also for a changed figure without the points that the paragraph compares.
        """
        if self.page.finding is None:
            return None
        with contextlib.suppress(*(ArithmeticError, LookupError, ValueError) if self.changes else ()):
            return " ".join(self.page.finding(rows).split())
        return None


def in_words(value: Any) -> str:
    """Return a parameter's value as after ``--set NAME=``, with a blank after each comma."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}:{of}" for key, of in value.items())
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if len(value) > 3 and all(map(is_integer, value)):
        steps = {after - before for before, after in itertools.pairwise(value)}
        if len(steps) == 1 and min(steps) > 0:
            return f"{value[0]}:{value[-1]}" + f":{min(steps)}" * (steps != {1})
    return ", ".join(map(in_words, value))


def _same(name: str, value: Any, published: Any) -> bool:
    """Whether a value equals the published one; GPUs of one architecture have the same arithmetic."""
    if name == "hardware" and isinstance(published, str):
        return catalog.architecture(value) == catalog.architecture(published)
    return in_words(value) == in_words(published)


def _checked(name: str, given: Any, published: Any) -> Any:
    """A value of a parameter, or InputError if it is not of the published value's kind."""
    if isinstance(published, bool):
        return flag(name, given)
    if isinstance(published, str):
        return catalog.architecture(given) and given if name == "hardware" else text(name, given)
    if is_integer(published):
        return integer(name, given, min(published, 1) if published >= 0 else None)
    if is_real(published):
        return number(name, given)
    try:
        if isinstance(published, Mapping):
            pairs = [pair.split(":") for pair in given.split(",")] if isinstance(given, str) else dict(given).items()
            return {integer(name, int(key), 1): integer(name, int(value), 1) for key, value in pairs}
        numeric = all(map(is_real, published))
        if isinstance(given, str):
            given = parse_range(name, given) if numeric else [word.strip() for word in given.split(",")]
        given = [given] if is_real(given) else list(given)
        if not given:
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(f"{name} = {shown(given)} must be values such as {in_words(published)}") from None
    like = min(published) if numeric else published[0]
    return tuple(_checked(name, one, like) for one in given)


def root() -> Path:
    """Return ``$FPEMU_EXPERIMENTS``, or else the experiments of the checkout or the wheel that contains this package.

    InputError if ``$FPEMU_EXPERIMENTS`` is not a folder, or if there is none of them.
    """
    given = os.environ.get(_VARIABLE)
    if given:
        if not Path(given).is_dir():
            raise InputError(f"--experiments or {_VARIABLE} names {given}, which is not a folder")
        return Path(given).resolve()
    for folder in (_CHECKOUT, _INSTALLED):
        if (folder / "experiments" / "_rows.py").is_file():  # site-packages may have another package `experiments`
            return folder / "experiments"
    raise InputError(f"this installation has no experiments: name a folder by --experiments or {_VARIABLE}")


def import_benchmarks() -> bool:
    """Make the package ``benchmarks`` beside `root`, or beside this package, importable; return whether there is one.

    Pages read its records, and ``fpemu bench`` runs it.
    """
    given = os.environ.get(_VARIABLE)
    roots = [*([Path(given).resolve().parent] if given else []), _CHECKOUT, _INSTALLED]
    folders = [str(root / "benchmarks") for root in roots if (root / "benchmarks" / "gpu" / "suite.py").is_file()]
    known = sys.modules.get("benchmarks")
    if folders and (known is None or not set(folders) & set(getattr(known, "__path__", ()))):
        package = types.ModuleType("benchmarks")  # only this folder: another `benchmarks` may be on sys.path
        package.__path__ = folders[:1]
        sys.modules["benchmarks"] = package
    return bool(folders)


@contextlib.contextmanager
def using(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Load the pages from another folder inside a ``with`` block, also in worker processes; None: no change."""
    before = os.environ.get(_VARIABLE)
    try:
        if folder is not None:
            os.environ[_VARIABLE] = os.fspath(folder)
        yield
    finally:
        if before is not None:
            os.environ[_VARIABLE] = before
        elif folder is not None:
            os.environ.pop(_VARIABLE, None)


def titles(folder: Path | None = None) -> dict[str, str]:
    """Return the title of every experiment in ``folder`` (default: `root`) by its name ``paper/figure``.

    Papers are in order, and figures in natural order (fig8 before fig10). InputError if a ``paper.toml`` is not TOML,
    or its ``[titles]`` is not a table of texts.
    """
    listed: dict[str, str] = {}
    for path in sorted((root() if folder is None else folder).glob("[!_]*/paper.toml")):
        figures = table(path).get("titles", {})
        if not isinstance(figures, dict) or not all(isinstance(title, str) for title in figures.values()):
            raise InputError(f"{path}: [titles] is not a table of figures with their titles")
        listed |= {f"{path.parent.name}/{figure}": figures[figure] for figure in sorted(figures, key=_natural)}
    return listed


def table(path: Path) -> dict[str, Any]:
    """Return the content of a ``paper.toml``."""
    return _parsed(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)  # a run over all pages and their claims parses each file once
def _parsed(path: Path, changed: int) -> dict[str, Any]:
    return read_toml(path)


def names() -> list[str]:
    """Return the name of every experiment as ``paper/figure``, in the order of `titles`."""
    return list(titles())


def _natural(name: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.findall(r"[0-9]+|[^0-9]", name)]


def select(wanted: str | None) -> list[str]:
    """Return the experiments that ``wanted`` names: None is all, ``paper`` all of a paper, ``paper/figure`` one."""
    known = names()
    if wanted is None:
        return known
    wanted = wanted.strip("/")
    chosen = [name for name in known if name == wanted or name.startswith(wanted + "/")]
    if not chosen:
        raise unknown_name("experiment", wanted, ["all", *{name.split("/")[0] for name in known}, *known])
    return chosen


def load(name: str, folder: Path | None = None) -> Experiment:
    """Execute the page of an experiment, from ``folder`` in place of `root`.

    InputError if no ``paper.toml`` lists the page, or it cannot be executed or has no `Page`.
    """
    where = root() if folder is None else folder.resolve()
    listed = titles(where)
    if name not in listed:
        raise unknown_name("experiment", name, listed)
    import_benchmarks()
    path = where / f"{name}.py"
    shared = not path.is_file()
    path = path.with_name("_pages.py") if shared else path
    if not path.is_file():
        raise InputError(f"[titles] of {path.with_name('paper.toml')} lists {name}, but there is no {where / name}.py")
    sources = _sources(where, path)
    code(sources)  # records the modules before they are executed
    try:
        module = importlib.import_module(f"{_package(where)}.{path.parent.name}.{path.stem}")
        page = module.PAGES[name.partition("/")[2]] if shared else module.PAGE
    except (Exception, SystemExit) as problem:
        raise InputError(f"{path} cannot be loaded: {type(problem).__name__}: {problem}") from problem
    if not isinstance(page, Page):
        raise InputError(f"{path} is not a page: its {'PAGES' if shared else 'PAGE'} holds no fpemu.reproduce.Page")
    return Experiment(name, listed[name], where, page, module, sources)


def _sources(where: Path, page: Path) -> tuple[Path, ...]:
    """The page's folder, the modules shared by all papers, and the modules of other folders that the page imports.

    These are found in the text, directly or through one another, before anything is executed; records of speed are no
    sources, because cells hold their digests.
    """
    benchmarks = Path(getattr(sys.modules.get("benchmarks"), "__path__", [where])[0]).resolve().parent
    reached, queue = {page}, [page]
    while queue:
        file = queue.pop()
        for dots, module, inside, plain, whole in _IMPORT.findall(file.read_text(encoding="utf-8", errors="replace")):
            if not dots and (module or whole).partition(".")[0] != "benchmarks":
                continue
            path = (file.parents[len(dots) - 1] if dots else benchmarks).joinpath(*(module or whole).split("."))
            for name in ("", *re.findall(r"\w+", inside or plain)):
                imported = (path / name).with_suffix(".py")
                if imported not in reached and imported.is_file():
                    reached.add(imported)
                    queue.append(imported)
    others = {file for file in reached if file.parent != page.parent} | set(where.glob("_*.py"))
    return page.parent, *sorted(others)


def model(paper: str) -> types.ModuleType:
    """Import a paper's own performance model, ``experiments/<paper>/model.py``, by the name of its folder."""
    known = sorted(path.parent.name for path in root().glob("*/model.py"))
    if paper not in known:
        raise unknown_name("paper with a performance model", paper, known)
    return importlib.import_module(f"{_package(root())}.{paper}.model")


def _package(where: Path) -> str:
    """The name of a package over a folder of pages: modules of a paper import each other by relative imports, and
    another folder with the same pages is another package."""
    package = "fpemu_experiments_" + hashlib.sha256(str(where).encode()).hexdigest()[:12]
    if package not in sys.modules:
        holder = types.ModuleType(package)
        holder.__path__ = [str(where)]
        sys.modules[package] = holder
    return package
