"""What to sweep: inputs × sizes × seeds × schemes with their options × hardware × orders, checked before anything runs.

A grid is a TOML file, a Python file that binds ``GRID``, or a `Grid` made in a program; the three have the same keys.
Wherever a value can stand, a list makes an axis of it, and so does a range: "0:9" is 0 to 9, "64:256:64" is 64, 128,
192, 256, and "2^0:2^3" the powers. The word "none" is Python's None.
"""

from __future__ import annotations

import functools
import itertools
import runpy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

import numpy as np

from fpemu.errors import InputError, unknown_name
from fpemu.sweep import entries
from fpemu.sweep.store import Cell, Values

Entry = str | Mapping[str, Any]


@final
@dataclass(frozen=True, eq=False)
class Grid:
    """A set of cells, each a product of two matrices by a scheme and its errors.

    Parameters
    ----------
    inputs : list of str or dict
        A dict has "name" (of `fpemu.inputs.names`) and parameters of the distribution.
    schemes : list of str or dict
        A dict has "name" (of `fpemu.schemes.names`), options of the scheme, and where it should not run on all of the
        grid's hardware, its own "hardware". A scheme that runs on none is not multiplied by the hardware.
    hardware : str or list of str
    orders : list of dict
        Fields of `fpemu.mma.KOrder`; none: the schemes' own order.
    metrics : str or list of str
        Names of `fpemu.metrics`, each a column.
    seeds : int, list or range
        A number n stands for 0 to n - 1.
    M, N, K : int, list or range
        N and K may be "M": products of square matrices.
    on_range : str or list of str
        Range policy of `fpemu.gemm`.
    out : str or list of str
        Format that the exact product is rounded to before it is compared.
    title : str

    Raises
    ------
    InputError
        For the first key, name, option or value that is not known or does not fit; also for a scheme on hardware that
        lacks its instruction.

    Examples
    --------
    >>> grid = Grid(inputs=["uniform"], schemes=["sgemm", {"name": "h2sgemm", "sb": "0:12:6"}], hardware="ampere", M=8,
    ...             N=8, K=[16, 32])
    >>> len(grid.cells())
    8
    >>> grid.cells()[1]["scheme.sb"], grid.cells()[0]["hardware"]
    (0, None)
    """

    inputs: Sequence[Entry]
    schemes: Sequence[Entry]
    hardware: Any = ()
    orders: Sequence[Mapping[str, Any]] = ()
    metrics: Any = ("relative_l2",)
    seeds: Any = 1
    M: Any = 64
    N: Any = 64
    K: Any = 64
    on_range: Any = "raise"
    out: Any = "fp64"
    title: str = ""

    def __init_subclass__(cls) -> None:
        raise TypeError("Grid cannot be subclassed: its results are stored as those of fpemu.sweep.evaluate")

    def __post_init__(self) -> None:
        if not isinstance(self.title, str):
            raise InputError(f"title must be a text, not {self.title!r}")
        axes = (self._sizes, self._inputs, self._seeds, self._methods, self._outs)
        entries.check_count([*axes, self._metrics[:1]])
        self._check_inputs()

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """The grid of a file: TOML, or Python that binds ``GRID``.

        Raises
        ------
        InputError
            It is not there, is not TOML or Python, or the grid is wrong; the message begins with the file.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path} is {'a folder' if path.is_dir() else 'not there'}: a grid is a .toml or .py file")
        if path.suffix not in (".toml", ".py"):
            raise InputError(f"{path}: a grid is a .toml file, or a .py file that binds GRID")
        try:
            grid = _from_toml(path) if path.suffix == ".toml" else runpy.run_path(str(path)).get("GRID")
        except (Exception, SystemExit) as problem:
            kind = "" if isinstance(problem, InputError | OSError) else f"{type(problem).__name__}: "
            raise InputError(f"{path}: {kind}{problem}") from problem
        if not isinstance(grid, Grid):
            raise InputError(f"{path} binds no GRID = fpemu.sweep.Grid(...)")
        object.__setattr__(grid, "title", grid.title or path.stem)
        return grid

    # --- what the engine asks of it, as of an experiment
    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.title or "grid"

    @property
    def evaluator(self) -> str:
        """Shared by all grids, so that a cell in two of them is evaluated once."""
        return "sweep.evaluate"

    @functools.cached_property
    def code(self) -> str:
        """Version of everything that determines a cell's numbers."""
        from fpemu.sweep.code import running_version

        return running_version(Path(__file__).resolve().with_name("evaluate.py"))

    def cells(self, size: str = "quick") -> list[Cell]:
        """Every cell, those that share operands side by side; a grid has one ``size`` only."""
        return [
            {**shape, **drawn, "seed": seed, **method, "out": out, "metrics": list(self._metrics)}
            for shape in self._sizes
            for drawn in self._inputs
            for seed in self._seeds
            for method in self._methods
            for out in self._outs
        ]

    def evaluate(self, cell: Mapping[str, Any]) -> Values:
        """The metrics of one cell."""
        from fpemu.sweep.evaluate import evaluate

        return evaluate(cell)

    def cost(self, cell: Mapping[str, Any]) -> float:
        """Relative work of a cell: M N K products of numbers for each product of words, and what any cell costs."""
        options = tuple((name, value) for name, value in cell.items() if name.startswith("scheme."))
        return cell["M"] * cell["N"] * cell["K"] * _products(cell["scheme"], options) + 1e6

    # --- the axes
    @functools.cached_property
    def _metrics(self) -> list[str]:
        from fpemu import metrics

        return entries.each("metrics", self.metrics, lambda name: (metrics.get(name), name)[1])

    @functools.cached_property
    def _sizes(self) -> list[Cell]:
        axes = {name: entries.axis(name, value) for name, value in (("M", self.M), ("N", self.N), ("K", self.K))}
        for name, values in axes.items():
            for value in values:
                square = value == "M" and name != "M"
                if not square and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                    raise InputError(f"{name} is {value!r}: a size is a positive integer")
        entries.check_count(axes.values())
        found = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        return [{name: shape["M"] if value == "M" else value for name, value in shape.items()} for shape in found]

    @functools.cached_property
    def _seeds(self) -> list[int]:
        count = isinstance(self.seeds, int | np.integer) and not isinstance(self.seeds, bool)
        if count and self.seeds < 1:
            raise InputError(f"seeds is {self.seeds!r}: at least one is needed")
        values = entries.axis("seeds", range(self.seeds) if count else self.seeds)
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InputError(f"seeds has {value!r}: a seed is an integer, 0 or more")
        return values

    @functools.cached_property
    def _outs(self) -> list[str]:
        from fpemu import formats

        return entries.each("out", self.out, lambda name: formats.get(name).name)

    @functools.cached_property
    def _inputs(self) -> list[Cell]:
        from fpemu import inputs

        found = []
        for where, name, rest in entries.named("inputs", self.inputs):
            if name not in inputs.names():
                raise InputError(f"{where}: {unknown_name('distribution', name, inputs.names())}")
            chosen = entries.combinations(where, rest)
            found += [{"inputs": name, **entries.prefixed("inputs", one)} for one in chosen]
            entries.check_count([found])
        return entries.once(found)

    @functools.cached_property
    def _orders(self) -> list[Cell]:
        from fpemu.mma import KOrder

        known = [field.name for field in fields(KOrder)]
        found: list[Cell] = []
        for index, entry in enumerate(entries.listed(self.orders) or [{}], start=1):
            where = f"orders {index}"
            if not isinstance(entry, Mapping):
                raise InputError(f"{where}: {entry!r} is not a table of parts of an order")
            for name in entry:
                if name not in known:
                    raise InputError(f"{where}: {unknown_name('part of an order', name, known)}")
            for chosen in entries.combinations(where, entry):
                with entries.at(where):
                    KOrder(**chosen)
                found.append(chosen)
            entries.check_count([found])
        return entries.once(found)

    @functools.cached_property
    def _methods(self) -> list[Cell]:
        """Schemes with their options, on their hardware, in every order and by every range policy."""
        from fpemu import mma, schemes
        from fpemu.schemes import ranges

        policies = entries.each("on_range", self.on_range, ranges.policy)
        found: list[Cell] = []
        for where, name, rest in entries.named("schemes", self.schemes):
            own = rest.pop("hardware", self.hardware)
            machines: list[Any] = entries.each(
                f"{where}: hardware", own, lambda n: (mma.catalog.architecture(n), n)[1], True
            )
            with entries.at(where):
                plain = schemes.get(name)
                if not plain.needs_hardware:
                    machines = [None]
                if not machines:
                    raise InputError(f"{name} runs on a matrix instruction: the grid names no hardware")
            combinations = entries.combinations(where, rest)
            entries.check_count([combinations, machines, self._orders, policies])
            for chosen in combinations:
                with entries.at(where):
                    scheme = schemes.build(name, chosen)
                    options = {option: entries.flat(getattr(scheme, option)) for option in chosen}
                    for machine in machines:
                        scheme.spec(machine)
                    for order in self._orders:
                        scheme.check_order(mma.KOrder(**order), chosen)
                found += [
                    {"scheme": plain.name, **entries.prefixed("scheme", options), "hardware": machine,
                     **entries.prefixed("order", order), "on_range": policy}
                    for machine in machines for order in self._orders for policy in policies
                ]  # fmt: skip
            entries.check_count([found])
        return entries.once(found)

    def _check_inputs(self) -> None:
        """Draw four numbers of every distribution, in every format that the schemes take."""
        from fpemu import inputs, schemes
        from fpemu.sweep.evaluate import part

        formats = {schemes.build(cell["scheme"], part(cell, "scheme")).operand.name for cell in self._methods}
        for cell in self._inputs:
            for fmt in sorted(formats):
                with entries.at(f"inputs {cell['inputs']}"):
                    inputs.make(cell["inputs"], (2, 2), 0, fmt, **part(cell, "inputs"))


# --- files
def _from_toml(path: Path) -> Grid:
    text = path.read_bytes().decode("utf-8-sig")
    given = tomllib.loads(text)
    known = [field.name for field in fields(Grid)]
    for name in given:
        if name not in known:
            raise unknown_name("key", name, known)
    for name in ("inputs", "schemes"):
        if name not in given:
            raise InputError(f"the key {name} is missing")
    return Grid(**given)


@functools.lru_cache(maxsize=4096)
def _products(name: str, options: tuple[tuple[str, Any], ...]) -> int:
    """How many products of words a scheme runs; for an error-free scheme, whose number depends on the operands, 30."""
    from fpemu import schemes

    chosen = {option.removeprefix("scheme."): value for option, value in options}
    scheme = schemes.build(name, chosen)
    if isinstance(scheme, schemes.ErrorFree):
        return 30
    return len(scheme.plan().products) if isinstance(scheme, schemes.SplitScheme) else 1
