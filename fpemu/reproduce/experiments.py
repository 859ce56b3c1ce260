"""Finding experiments: ``experiments/<paper>/<figure>.py``, a page of Python each.

Loading a page executes it. Pages are therefore taken only from the checkout or the wheel that contains this package, or
from a folder that the user names (:func:`using`, ``$FPEMU_EXPERIMENTS``), never from the working directory.

An experiment is a module with

``PAPER``, ``TITLE``, ``CAPTION``, ``ASSUMPTIONS``
    text: the paper, the figure's title and caption, and a list of what the paper does not say and we assume;
``cells(size)``
    the list of parameter dicts to evaluate, ``size`` being "quick" or "full";
``evaluate(cell)`` or ``evaluate(cell, device)``
    a dict of numbers for one cell, with its products computed on ``device`` as in `fpemu.gemm`; figures that import the
    same ``evaluate`` share its results;
``draw(rows)``
    a matplotlib figure from the rows, a row being a cell's parameters and numbers in one dict;
Optionally
``measures(rows)``
    the numbers that decide claims and checks of the folder's ``paper.toml`` (:class:`fpemu.reproduce.claims.Measure`),
    from the rows of one seed, or from all rows where these have no column ``seed``;
``cost(cell)``
    relative work of a cell, for the time left;
``finding(rows)``
    one paragraph on what the figure shows, every number in it computed from the rows;
``KIND``
    "E" (an error figure, the default), "M" (a model or formula) or "G" (speed on a GPU, from a record);
``VERSION``
    version of the page's numbers, by default 1: raise it when they change on purpose (here or beside ``evaluate``);
``DIGITS``
    significant digits of the columns that are not written with 9; None: all, for numbers that are exact.

Modules whose name begins with an underscore are shared by several pages; ``model.py`` is the paper's performance model.
A folder's ``_pages.py`` declares pages that share their code: its mapping ``PAGES`` has an object for each figure. The
title is the first argument of its constructor; its ``attributes`` are the page's own, all others the module's.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpemu.errors import InputError, unknown_name
from fpemu.mma.device import Device
from fpemu.sweep.code import running_version, seen
from fpemu.sweep.executors import Evaluate, Source
from fpemu.sweep.store import Cell, Values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpemu.reproduce.claims import Measure

SIZES = ("quick", "full")
_VARIABLE = "FPEMU_EXPERIMENTS"
_CHECKOUT = Path(__file__).resolve().parents[2]
_INSTALLED = Path(__file__).resolve().parents[1] / "_sources"
"""The folder of ``experiments`` and ``benchmarks`` in a wheel."""


@dataclass(frozen=True)
class Experiment:
    """One figure of a paper: its page and the functions in it; returned by `load`.

    Attributes
    ----------
    name : str
        Name as ``paper/figure``.
    root : Path
        Folder that contains the papers' folders.
    module : types.ModuleType
        The imported page.
    """

    name: str
    root: Path
    module: types.ModuleType

    @property
    def title(self) -> str:
        return str(self.module.TITLE)

    @property
    def caption(self) -> str:
        return " ".join(str(self.module.CAPTION).split())

    @property
    def assumptions(self) -> list[str]:
        return [" ".join(text.split()) for text in self.module.ASSUMPTIONS]

    @property
    def kind(self) -> str:
        """ "E", "M" or "G"."""
        return str(getattr(self.module, "KIND", "E"))

    @property
    def evaluator(self) -> str:
        """The dotted name of the module that ``evaluate`` was written in: the shared part of the keys."""
        return str(self.module.evaluate.__module__).split(".", 1)[1]

    @functools.cached_property
    def code(self) -> str:
        """Version of everything that determines a cell's numbers: see `sweep.code`."""
        return running_version(_evaluator(self.module))

    def source(self, device: Device) -> Source:
        """The evaluation for worker processes."""
        return Source(_load_evaluator, (self.name, self.root), self.code, device)

    def cells(self, size: str) -> list[Cell]:
        """The parameters to evaluate at ``size``."""
        if size not in SIZES:
            raise unknown_name("size", size, SIZES)
        return [dict(cell) for cell in self.module.cells(size)]

    def evaluate(self, cell: Mapping[str, Any], device: Device = "cpu") -> Values:
        """The numbers of one cell; ``device`` is passed on to a page whose ``evaluate`` has this parameter."""
        options = {"device": device} if "device" in inspect.signature(self.module.evaluate).parameters else {}
        return dict(self.module.evaluate(dict(cell), **options))

    def memory(self, cell: Mapping[str, Any]) -> float:
        """Lower bound on the bytes of a cell's matrices: 0, since a page does not state them."""
        return 0.0

    def cost(self, cell: Mapping[str, Any]) -> float:
        """Relative work of a cell; 1 where the experiment does not say."""
        return float(self.module.cost(dict(cell))) if hasattr(self.module, "cost") else 1.0

    def draw(self, rows: list[dict[str, Any]]) -> Figure:
        """The figure, in the package's style."""
        from fpemu import plotting

        with plotting.style():
            figure: Figure = self.module.draw(rows)
        return figure

    def measures(self, rows: list[dict[str, Any]]) -> list[Measure]:
        """The numbers that decide claims, from the rows of one seed; empty where the page decides none."""
        return list(self.module.measures(rows)) if hasattr(self.module, "measures") else []

    def finding(self, rows: list[dict[str, Any]]) -> str | None:
        """What the figure shows, in a paragraph; None where the page has none."""
        return " ".join(str(self.module.finding(rows)).split()) if hasattr(self.module, "finding") else None


def root() -> Path:
    """Return the folder of the papers' folders.

    Returns
    -------
    Path
        ``$FPEMU_EXPERIMENTS``, or else the experiments of the checkout that contains this package, or of the wheel.

    Raises
    ------
    InputError
        If ``$FPEMU_EXPERIMENTS`` is not a folder, or it is not set and the package was installed without a checkout.
    """
    given = os.environ.get(_VARIABLE)
    if given:
        if not Path(given).is_dir():
            raise InputError(f"--experiments or {_VARIABLE} names {given}, which is not a folder")
        return Path(given).resolve()
    return _sources() / "experiments"


def _sources() -> Path:
    """The checkout that contains this package, or else the folder of the wheel."""
    for folder in (_CHECKOUT, _INSTALLED):
        if (folder / "experiments" / "_rows.py").is_file():  # site-packages may have another package `experiments`
            return folder
    raise InputError(f"this installation has no experiments: name a folder by --experiments or {_VARIABLE}")


def import_benchmarks() -> bool:
    """Make the package ``benchmarks`` importable: pages read its records, and ``fpemu bench`` runs it.

    Returns
    -------
    bool
        Whether the folder ``benchmarks`` is beside `root`, or beside this package.
    """
    given = os.environ.get(_VARIABLE)
    roots_of_code = [folder for folder in (_CHECKOUT, _INSTALLED) if folder.is_dir()]
    roots = [Path(given).resolve().parent, *roots_of_code] if given else roots_of_code
    folders = [str(root / "benchmarks") for root in roots if (root / "benchmarks" / "gpu" / "suite.py").is_file()]
    known = sys.modules.get("benchmarks")
    if folders and (known is None or not set(folders) & set(getattr(known, "__path__", ()))):
        package = types.ModuleType("benchmarks")  # only this folder: another `benchmarks` may be on sys.path
        package.__path__ = folders[:1]
        sys.modules["benchmarks"] = package
    return bool(folders)


@contextlib.contextmanager
def using(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Take the pages from another folder inside a ``with`` block; worker processes do so too.

    Parameters
    ----------
    folder : path-like or None
        None: no change.
    """
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


def names() -> list[str]:
    """Every experiment as ``paper/figure``, papers in order, figures in natural order (fig8 before fig10)."""
    files = [p for p in root().glob("*/*.py") if p.name[0] != "_" and p.parent.name[0] != "_" and p.name != "model.py"]
    tables = [f"{path.parent.name}/{stem}" for path in root().glob("[!_]*/_pages.py") for stem in _titles(path)]
    return sorted([*(f"{p.parent.name}/{p.stem}" for p in files), *tables], key=_natural)


def _titles(table: Path) -> dict[str, str]:
    """The figures that a ``_pages.py`` declares, each with its title, read without executing the module."""
    titles: dict[str, str] = {}
    for statement in _syntax(table).body:
        match statement:
            case ast.Assign([ast.Name("PAGES")], value) | ast.AnnAssign(ast.Name("PAGES"), _, value):
                pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else [(None, value)]
                for pair in pairs:
                    match pair:
                        case (ast.Constant(str(figure)), ast.Call(args=[ast.Constant(str(title)), *_])):
                            titles[figure] = title
                        case _:
                            raise InputError(f'{table}: PAGES has entries of another form than "fig1": Figure("title")')
    return titles


def _syntax(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise InputError(f"{path} is not a readable page: {problem}") from problem


def _natural(name: str) -> list[tuple[int, int | str]]:
    digits = "".join(c if c.isdigit() else f" {c} " for c in name).split()
    return [(0, int(part)) if part.isdigit() else (1, part) for part in digits]


def select(wanted: str | None) -> list[str]:
    """The experiments that ``wanted`` names: None is all, ``paper`` all of a paper, ``paper/figure`` one."""
    known = names()
    if wanted is None:
        return known
    wanted = wanted.strip("/")
    chosen = [name for name in known if name == wanted or name.startswith(wanted + "/")]
    if not chosen:
        raise unknown_name("experiment", wanted, ["all", *{name.split("/")[0] for name in known}, *known])
    return chosen


def title(name: str) -> str:
    """Read the title of an experiment from its page's text, without executing the page.

    Returns
    -------
    str
        The string that the page assigns to ``TITLE``; empty if it assigns none.

    Raises
    ------
    InputError
        If the page cannot be read or is not Python.
    """
    path = root() / f"{name}.py"
    table = path.with_name("_pages.py")
    if not path.is_file() and table.is_file():
        return _titles(table).get(path.stem, "")
    page = _syntax(path)
    for statement in page.body:
        if (
            isinstance(statement, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == "TITLE" for target in statement.targets)
            and isinstance(statement.value, ast.Constant)
        ):
            return str(statement.value.value)
    return ""


def load(name: str, folder: Path | None = None) -> Experiment:
    """The experiment ``paper/figure``."""
    where = root() if folder is None else folder.resolve()
    path = where / f"{name}.py"
    table = path.with_name("_pages.py")
    shared = name.count("/") == 1 and not path.is_file() and table.is_file() and path.stem in _titles(table)
    if name.count("/") != 1 or not (path.is_file() or shared):
        raise unknown_name("experiment", name, names())
    import_benchmarks()
    path = table if shared else path
    try:
        module = importlib.import_module(f"{_package(where)}.{path.parent.name}.{path.stem}")
        if shared:
            stem = name.partition("/")[2]
            pages, module = module, types.ModuleType(f"{_package(where)}.{name.replace('/', '.')}")
            vars(module).update({**vars(pages), **pages.PAGES[stem].attributes, "__name__": module.__name__})
    except (Exception, SystemExit) as problem:
        raise InputError(f"{path} cannot be loaded: {type(problem).__name__}: {problem}") from problem
    needed = ("PAPER", "TITLE", "CAPTION", "ASSUMPTIONS", "cells", "evaluate", "draw")
    missing = [attribute for attribute in needed if not hasattr(module, attribute)]
    if missing:
        raise InputError(f"{path} is not an experiment: it has no {', '.join(missing)}")
    prefixes = (f"{_package(where)}.", "benchmarks.")
    imported = [getattr(other, "__file__", None) for name, other in sys.modules.items() if name.startswith(prefixes)]
    for file in (_evaluator(module), *(Path(name).resolve() for name in imported if name)):
        seen(file)
    return Experiment(name, where, module)


def _load_evaluator(name: str, folder: Path) -> tuple[Evaluate, str]:
    experiment = load(name, folder)
    return experiment.evaluate, experiment.code


def model(paper: str) -> types.ModuleType:
    """Import a paper's own performance model, ``experiments/<paper>/model.py``.

    Parameters
    ----------
    paper : str
        Name of the paper's folder, such as "legemm".

    Returns
    -------
    types.ModuleType
        The module.

    Raises
    ------
    InputError
        If no experiments are installed, or the paper has no model.
    """
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


def _evaluator(module: types.ModuleType) -> Path:
    """The file that ``evaluate`` is written in."""
    return Path(inspect.getsourcefile(module.evaluate) or "").resolve()
