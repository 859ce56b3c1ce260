"""The grid of a sweep: inputs × sizes × seeds × schemes with options × hardware × orders, checked when it is created.

A grid is a TOML file, a Python file that binds ``GRID``, or a `Grid` made in a program; the three have the same keys.
A list or a range in place of a value makes an axis of it: "0:9" is 0 to 9, "64:256:64" is 64, 128, 192, 256, and
"2^0:2^3" the powers. The word "none" is Python's None.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

import numpy as np

from fpemu.errors import InputError, shown, unknown_name
from fpemu.files import execute, read_toml
from fpemu.mma.device import Device
from fpemu.sweep import entries
from fpemu.sweep.executors import Evaluate, Source
from fpemu.sweep.store import Cell, Values

Entry = str | Mapping[str, Any]
_LARGEST_SIZE = 2**31 - 1
_LARGEST_SEED = 2**63 - 1  # an exported column of seeds is int64


@final
@dataclass(frozen=True, eq=False)
class Grid:
    """Set of cells, each a product of two matrices by a scheme and its errors.

    Parameters
    ----------
    inputs : list of str or dict
        A dict has "name" (of `fpemu.inputs.names`) and parameters of the distribution.
    schemes : list of str or dict
        A dict has "name" (of `fpemu.schemes.names`), options of the scheme, and optionally "hardware" in place of the
        grid's. A scheme without a matrix instruction has one cell for all hardware.
    hardware : str or list of str
        Architectures or GPUs.
    orders : list of dict
        Fields of `fpemu.mma.KOrder`; none: the schemes' own order.
    metrics : str or list of str
        Names of `fpemu.metrics`, each a column.
    seeds : int, list or range
        A number n stands for 0 to n - 1.
    M, N, K : int, list or range
        N and K may be "M": products of square matrices.
    on_range : str or list of str
        Overflow policies of `fpemu.gemm`.
    out : str or list of str
        Format that the exact product is rounded to before it is compared.
    title : str
        Title of the results.

    Raises
    ------
    InputError
        For the first unknown key, name or option, the first invalid value, and a scheme on hardware that lacks its
        instruction.

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
            raise InputError(f"title must be a text, not {shown(self.title)}")
        axes = (self._sizes, self._inputs, self._seeds, self._methods, self._outs)
        entries.check_count([*axes, self._metrics[:1]])
        self._check_inputs()

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """The grid of a file: TOML, or Python that binds ``GRID``.

        Raises
        ------
        InputError
            If the file does not exist, is not TOML or Python, or its grid is invalid; the message begins with the file.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(
                f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: a grid is a .toml or .py file"
            )
        if path.suffix not in (".toml", ".py"):
            raise InputError(f"{path}: a grid is a .toml file, or a .py file that binds GRID")
        table = read_toml(path) if path.suffix == ".toml" else None
        try:
            grid = getattr(execute(path), "GRID", None) if table is None else _from_table(table)
        except RecursionError:
            raise InputError(f"{path}: its values are nested too deeply") from None
        except (Exception, SystemExit) as problem:
            kind = "" if isinstance(problem, InputError | OSError) else f"{type(problem).__name__}: "
            raise InputError(f"{path}: {kind}{problem}") from problem
        if not isinstance(grid, Grid):
            raise InputError(f"{path} binds no GRID = fpemu.sweep.Grid(...)")
        object.__setattr__(grid, "title", grid.title or path.stem)
        return grid

    # --- the attributes of a `fpemu.sweep.run.Job`
    @property
    def name(self) -> str:
        """The title on one line, for messages."""
        return " ".join(self.title.split()) or "grid"

    @property
    def evaluator(self) -> str:
        """The evaluator's name, shared by all grids, so that a cell of two grids is evaluated once."""
        return "sweep.evaluate"

    @functools.cached_property
    def code(self) -> str:
        """The version of all code that determines a cell's numbers."""
        return _evaluator(*self._further_schemes)[1]

    def source(self, device: Device) -> Source:
        """The evaluation for worker processes."""
        return Source(_evaluator, self._further_schemes, self.code, device)

    def cells(self, size: str = "quick") -> list[Cell]:
        """Every cell, with cells that share operands side by side; a grid has only one ``size``."""
        return [
            {**shape, **drawn, "seed": seed, **method, "out": out, "metrics": list(self._metrics)}
            for shape in self._sizes
            for drawn in self._inputs
            for seed in self._seeds
            for method in self._methods
            for out in self._outs
        ]

    def evaluate(self, cell: Mapping[str, Any], device: Device = "cpu") -> Values:
        """The metrics of one cell."""
        from fpemu.sweep.evaluate import evaluate

        return evaluate(cell, device)

    def memory(self, cell: Mapping[str, Any]) -> float:
        """Lower bound on the bytes of a cell's matrices: operands in four bytes, and the exact product in eight."""
        return 4.0 * (cell["M"] + cell["N"]) * cell["K"] + 8.0 * cell["M"] * cell["N"]

    def cost(self, cell: Mapping[str, Any]) -> float:
        """Relative work of a cell, in about a nanosecond: M N K for each product of words, and a constant."""
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
                whole = isinstance(value, int) and not isinstance(value, bool)
                if not square and not (whole and 1 <= value <= _LARGEST_SIZE):
                    raise InputError(f"{name} is {shown(value)}: a size is a positive integer, at most 2^31 - 1")
        entries.check_count(axes.values())
        shapes = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        return [{name: shape["M"] if value == "M" else value for name, value in shape.items()} for shape in shapes]

    @functools.cached_property
    def _seeds(self) -> list[int]:
        count = isinstance(self.seeds, int | np.integer) and not isinstance(self.seeds, bool)
        if count and self.seeds < 1:
            raise InputError(f"seeds is {shown(self.seeds)}: at least one is needed")
        values = entries.axis("seeds", range(self.seeds) if count else self.seeds)
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_SEED:
                raise InputError(f"seeds has {shown(value)}: a seed is an integer, 0 or more and below 2^63")
        return values

    @functools.cached_property
    def _outs(self) -> list[str]:
        from fpemu import formats

        return entries.each("out", self.out, lambda name: formats.get(name).name)

    @functools.cached_property
    def _inputs(self) -> list[Cell]:
        from fpemu import inputs

        distributions = []
        for where, name, rest in entries.named("inputs", self.inputs):
            if name not in inputs.names():
                raise InputError(f"{where}: {unknown_name('distribution', name, inputs.names())}")
            chosen = entries.combinations(where, rest)
            distributions += [{"inputs": name, **entries.prefixed("inputs", one)} for one in chosen]
            entries.check_count([distributions])
        return entries.once(distributions)

    @functools.cached_property
    def _orders(self) -> list[Cell]:
        from fpemu.mma import KOrder

        orders: list[Cell] = []
        for index, entry in enumerate(entries.listed(self.orders) or [{}], start=1):
            where = f"orders {index}"
            if not isinstance(entry, Mapping):
                raise InputError(f"{where}: {shown(entry)} is not a table of parts of an order")
            for chosen in entries.combinations(where, entry):
                with entries.at(where):
                    KOrder.from_dict(chosen)
                orders.append(chosen)
            entries.check_count([orders])
        return entries.once(orders)

    @functools.cached_property
    def _methods(self) -> list[Cell]:
        """Schemes with their options, on their hardware, in every order and with every range policy."""
        from fpemu import mma, schemes
        from fpemu.schemes import words

        policies = entries.each("on_range", self.on_range, words.policy)
        methods: list[Cell] = []
        for where, name, rest in entries.named("schemes", self.schemes):
            hardware = rest.pop("hardware", self.hardware)
            machines: list[Any] = entries.each(
                f"{where}: hardware", hardware, lambda n: (mma.catalog.architecture(n), n)[1], True
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
                methods += [
                    {
                        "scheme": plain.name,
                        **entries.prefixed("scheme", options),
                        "hardware": machine,
                        **entries.prefixed("order", order),
                        "on_range": policy,
                    }
                    for machine in machines
                    for order in self._orders
                    for policy in policies
                ]
            entries.check_count([methods])
        return entries.once(methods)

    @functools.cached_property
    def _further_schemes(self) -> tuple[_FurtherScheme, ...]:
        """The schemes of the grid that are defined outside the package."""
        from fpemu import schemes

        further = []
        for name in dict.fromkeys(cell["scheme"] for cell in self._methods):
            bases = [c for c in type(schemes.get(name)).__mro__ if issubclass(c, schemes.Scheme)]
            modules = [c.__module__ for c in bases if not c.__module__.startswith("fpemu.")]
            files = [getattr(sys.modules.get(module), "__file__", None) for module in modules]
            if None in files:
                raise InputError(
                    f"scheme {name!r} is defined in no file, whose digest would be part of the key of its results: "
                    "define it in a module and import it"
                )
            if modules:
                further.append((name, modules[0], tuple(str(Path(str(file)).resolve()) for file in files)))
        return tuple(further)

    def _check_inputs(self) -> None:
        """Draw four numbers of every distribution, in each operand format of the schemes."""
        from fpemu import inputs, schemes
        from fpemu.sweep.evaluate import part

        formats = {schemes.build(cell["scheme"], part(cell, "scheme")).operand.name for cell in self._methods}
        for cell in self._inputs:
            for fmt in sorted(formats):
                with entries.at(f"inputs {cell['inputs']}"):
                    inputs.make(cell["inputs"], (2, 2), 0, fmt, **part(cell, "inputs"))


_FurtherScheme = tuple[str, str, tuple[str, ...]]
"""A scheme that is defined outside the package: its name, its module, and the files of its class and base classes."""


def _evaluator(*further: _FurtherScheme) -> tuple[Evaluate, str]:
    """The evaluation of a cell, and the version of its code; a worker process first loads the further schemes."""
    from fpemu import schemes
    from fpemu.sweep import code, evaluate

    for name, module, (file, *_) in further:
        if name not in schemes.names() and "." in module:
            importlib.import_module(module)
        elif name not in schemes.names():
            execute(file, "" if module == "__main__" else module)
    version = code.running_version(Path(evaluate.__file__).resolve())
    return evaluate.evaluate, code.extended(version, [Path(file) for _, _, files in further for file in files])


# --- files
def _from_table(given: dict[str, Any]) -> Grid:
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
    """The number of word products of a scheme; 30 for an error-free scheme, where it depends on the operands."""
    from fpemu import schemes

    chosen = {option.removeprefix("scheme."): value for option, value in options}
    scheme = schemes.build(name, chosen)
    if isinstance(scheme, schemes.ErrorFree):
        return 30
    return len(scheme.plan().products) if isinstance(scheme, schemes.SplitScheme) else 1
