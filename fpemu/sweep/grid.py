"""Grids of cells: inputs × sizes × seeds × schemes with options × hardware × orders, checked when they are created.

A grid is a TOML file, a Python file that binds ``GRID``, or a `Grid` made in a program; the three have the same keys.
A list or a range in place of a value makes an axis of it: "0:9" is 0 to 9, "64:256:64" is 64, 128, 192, 256, and
"2^0:2^3" the powers. The word "none" is Python's None.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fpemu import formats, inputs, metrics, mma, schemes
from fpemu._system import execute, read_toml
from fpemu.arguments import keywords, read_table
from fpemu.errors import InputError, shown
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.device import Device
from fpemu.schemes import words
from fpemu.sweep.operands import drawn, exact_product, read, resident, stays_on_gpu
from fpemu.sweep.ranges import parse_range
from fpemu.sweep.run import run
from fpemu.sweep.store import Cell, Values
from fpemu.sweep.tables import frame
from fpemu.sweep.workers import Loader

if TYPE_CHECKING:
    import pandas

MOST_CELLS = 1_000_000
_LARGEST_NUMBER = 1e300
"""No number of a grid is larger, so that its estimates and results are finite in fp64."""
_LARGEST_SIZE = 2**31 - 1
_LARGEST_SEED = 2**63 - 1  # an exported column of seeds is int64


@final
@dataclass(frozen=True, eq=False)
class Grid:
    """Set of cells, each a product of two matrices by a scheme and its errors.

    Parameters
    ----------
    inputs : list of str or dict
        A dict has "name" (of `fpemu.inputs.names`, or "FILE.py:FUNCTION") and parameters of the distribution, or
        "files", two matrices [A, B] as .npy or .mtx: their entries are rounded once to the operand format, and their
        sizes replace those of the grid.
    schemes : list of str or dict
        A dict has "name" (of `fpemu.schemes.names`, or "FILE.py:NAME" of a file that registers it), options of the
        scheme, and optionally "hardware" in place of the grid's. A scheme without a matrix instruction has one cell for
        all hardware.
    hardware : str, MmaSpec, dict or list of them
        Architectures or GPUs. A dict has "base", an architecture or GPU, and fields of `fpemu.mma.MmaSpec` that are
        changed in every instruction of it, such as ``{"base": "H200", "final": "RNE", "F": "22:25"}``. In the cells a
        changed instruction is named by its base and its changes, "H200 final=RNE F=24", an `MmaSpec` likewise, or by
        its `repr` if it is not the instruction that a scheme runs on with changes.
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

    inputs: Any
    schemes: Any
    hardware: Any = ()
    orders: Any = ()
    metrics: Any = ("relative_l2",)
    seeds: Any = 1
    M: Any = 64
    N: Any = 64
    K: Any = 64
    on_range: Any = "raise"
    out: Any = "fp64"
    title: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.title, str):
            raise InputError(f"title must be a text, not {shown(self.title)}")
        _check_count([self._sizes, self._inputs, self._seeds, self._methods, self._outs, self._metrics[:1]])
        operands = {_scheme(cell).operand.name for cell in self._methods}
        for cell in self._inputs:
            for fmt in sorted(operands):  # four numbers in each operand format: the parameters are in their ranges
                with _at(f"inputs {cell['inputs']}"):
                    if cell["inputs"] != "files":  # read already
                        inputs.make(cell["inputs"], (2, 2), 0, fmt, **part(cell, "inputs"))

    @classmethod
    def read(cls, path: str | Path) -> Grid:
        """The grid of a file: TOML, or Python that binds ``GRID``.

        Raises
        ------
        InputError
            If the file does not exist, is not TOML or Python, or its grid is invalid; the message begins with the file.
        """
        path = Path(path)
        if path.suffix not in (".toml", ".py") or not path.is_file():
            missing = "" if path.exists() else " does not exist"
            raise InputError(f"{path}{missing}: a grid is a .toml file, or a .py file that binds GRID")
        grid: Any
        if path.suffix == ".toml":
            grid = read_table(cls, read_toml(path), str(path))
        else:
            try:
                grid = getattr(execute(path), "GRID", None)
            except (Exception, SystemExit) as problem:
                kind = "" if isinstance(problem, InputError | OSError) else f"{type(problem).__name__}: "
                raise InputError(f"{path}: {kind}{problem}") from problem
        if not isinstance(grid, Grid):
            raise InputError(f"{path} binds no GRID = fpemu.sweep.Grid(...)")
        object.__setattr__(grid, "title", grid.title or path.stem)
        return grid

    def run(self, **settings: Any) -> pandas.DataFrame:
        """Evaluate the missing cells and return all rows as a table.

        Parameters
        ----------
        **settings
            Arguments of `fpemu.sweep.run`, such as ``jobs=4`` or ``results=Store(path)``.

        Returns
        -------
        pandas.DataFrame
            One row per cell: its parameters with every default, and the metrics; see `fpemu.sweep.frame`.

        Raises
        ------
        CellError, InputError, OSError
            As `fpemu.sweep.run`.
        """
        return frame(run(self, **settings))

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
    def sources(self) -> tuple[Path, ...]:
        """The modules that evaluate a cell, and the files of the schemes and distributions outside the package."""
        return tuple(_loaded(self._files, *self._further_schemes).sources)

    @property
    def loader(self) -> Loader:
        """The evaluation for worker processes."""
        return _loaded, (self._files, *self._further_schemes)

    @property
    def _files(self) -> tuple[str, ...]:
        """The Python files of distributions."""
        names = {cell["inputs"].rpartition(":")[0] for cell in self._inputs}
        return tuple(sorted(str(Path(name).resolve()) for name in names if name))

    def cells(self, size: str = "quick") -> list[Cell]:
        """Every cell with all its options, those that share operands side by side; a grid has only one ``size``."""
        return [
            {**operands, **method, "out": out, "metrics": list(self._metrics)}
            for operands in self._operands
            for method in self._methods
            for out in self._outs
        ]

    def evaluate(self, cell: Mapping[str, Any], device: Device = "cpu") -> Values:
        """The metrics of one cell."""
        return evaluate(cell, device)

    def resolved(self, cell: Mapping[str, Any]) -> Cell:
        """Return a cell with the default of every option of its scheme that it omits, as it enters the key."""
        return {**_prefixed("scheme", _options(_scheme(cell))), **cell}

    def cost(self, cell: Mapping[str, Any]) -> float:
        """Relative work of a cell, in about a nanosecond: M N K for each product of words, and a constant."""
        return cell["M"] * cell["N"] * cell["K"] * _product_count(_scheme(cell)) + 1e6

    # --- the axes
    @functools.cached_property
    def _metrics(self) -> list[str]:
        return _names("metrics", self.metrics, metrics.get)

    @functools.cached_property
    def _sizes(self) -> list[Cell]:
        for name in ("M", "N", "K"):
            for value in _axis(name, getattr(self, name)):
                square = value == "M" and name != "M"
                if not square and not (type(value) is int and 1 <= value <= _LARGEST_SIZE):
                    raise InputError(f"{name} is {shown(value)}: a size is a positive integer, at most 2^31 - 1")
        shapes = _combinations("", {"M": self.M, "N": self.N, "K": self.K})
        return [{name: shape["M"] if value == "M" else value for name, value in shape.items()} for shape in shapes]

    @functools.cached_property
    def _seeds(self) -> list[int]:
        seeds = _scalar(self.seeds)
        if type(seeds) is int and seeds < 1:
            raise InputError(f"seeds is {shown(seeds)}: at least one is needed")
        values = _axis("seeds", range(seeds) if type(seeds) is int else seeds)
        for value in values:
            if type(value) is not int or not 0 <= value <= _LARGEST_SEED:
                raise InputError(f"seeds has {shown(value)}: a seed is an integer, 0 or more and below 2^63")
        return values

    @functools.cached_property
    def _outs(self) -> list[str]:
        return list(dict.fromkeys(formats.get(name).name for name in _names("out", self.out, formats.get)))

    @functools.cached_property
    def _operands(self) -> list[Cell]:
        """Sizes, inputs and seeds; matrices of files have their own sizes and one seed."""
        drawn = itertools.product(self._sizes, self._inputs, self._seeds)
        return _once({**shape, **of, "seed": of.get("seed", seed)} for shape, of, seed in drawn)

    @functools.cached_property
    def _inputs(self) -> list[Cell]:
        distributions: list[Cell] = []
        entries = _listed(self.inputs)
        of_files = [entry for entry in entries if isinstance(entry, Mapping) and "files" in entry]
        distributions += map(_of_files, of_files)
        named = [entry for entry in entries if entry not in of_files]
        for where, name, rest in _named("inputs", named) if named or not of_files else ():
            with _at(where):
                defaults = inputs._get(name).defaults
            for chosen in _combinations(where, rest):
                changed = {key: value for key, value in chosen.items() if defaults.get(key) != value}  # 1 is 1.0
                distributions.append({"inputs": name, **_prefixed("inputs", {**defaults, **changed})})
        return _once(distributions)

    @functools.cached_property
    def _orders(self) -> list[Cell]:
        orders: list[Cell] = []
        for index, entry in enumerate(_listed(self.orders) or [{}], start=1):
            where = f"orders {index}"
            if not isinstance(entry, Mapping):
                raise InputError(f"{where}: {shown(entry)} is not a table of parts of an order")
            for chosen in _combinations(where, entry):
                with _at(where):
                    order = KOrder.from_dict(chosen)
                orders.append(asdict(order) if chosen else {})
        return _once(orders)

    @functools.cached_property
    def _methods(self) -> list[Cell]:
        """Schemes with their options, on their hardware, in every order and with every range policy."""
        policies = _names("on_range", self.on_range, words.policy)
        methods: list[Cell] = []
        for where, name, rest in _named("schemes", self.schemes):
            with _at(where):
                machines: list[Any] = _machines(rest.pop("hardware", self.hardware))
                plain = scheme_of(name)
                if not plain.needs_hardware:
                    machines = [None]
                if not machines:
                    raise InputError(f"{name} runs on a matrix instruction: the grid names no hardware")
            # an option that has a value "none" keeps the word
            words_of = [option.name for option in plain.info.options if "none" in option.values.split(" | ")]
            combinations = _combinations(where, rest, words_of)
            _check_count([combinations, machines, self._orders, policies])
            for chosen in combinations:
                with _at(where):
                    scheme = schemes.build(plain, chosen)
                    options = _options(scheme)
                    names = [_machine_name(scheme, machine) for machine in machines]
                    for order in self._orders:
                        scheme.check_order(KOrder(**order), chosen)
                for machine, order, policy in itertools.product(names, self._orders, policies):
                    method = {"scheme": plain.name, **_prefixed("scheme", options), "hardware": machine}
                    methods.append(method | _prefixed("order", order) | {"on_range": policy})
        return _once(methods)

    @functools.cached_property
    def _further_schemes(self) -> tuple[_FurtherScheme, ...]:
        """The schemes of the grid that are defined outside the package."""
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


_FurtherScheme = tuple[str, str, tuple[str, ...]]
"""A scheme that is defined outside the package: its name, its module, and the files of its class and base classes."""


def _loaded(files: tuple[str, ...], *further: _FurtherScheme) -> SimpleNamespace:
    """In a worker process: load the further schemes, and return the evaluation of a cell and its sources.

    ``files`` are further sources, which the evaluation executes.
    """
    for name, module, (file, *_) in further:
        if name not in schemes.names() and "." in module:
            importlib.import_module(module)
        elif name not in schemes.names():
            execute(file, "" if module == "__main__" else module)
    own_modules = (Path(__file__).resolve().with_name(name) for name in ("grid.py", "operands.py"))
    sources = *own_modules, *map(Path, [*files, *(file for *_, own in further for file in own)])
    return SimpleNamespace(evaluate=evaluate, sources=sources)


def _of_files(entry: Mapping[str, Any]) -> Cell:
    """The operands of two files: their sizes, names and digest; no seed has an effect."""
    pair = entry["files"]
    if len(entry) != 1 or not isinstance(pair, Sequence) or [type(name) for name in pair] != [str, str]:
        raise InputError(f"inputs: {shown(dict(entry))} must be files = [A, B], the names of two .npy or .mtx files")
    A, B, digest = read(*pair)
    sizes = {"M": A.shape[0], "N": B.shape[1], "K": A.shape[1]}
    return {
        **sizes,
        "inputs": "files",
        **_prefixed("inputs", {"A": pair[0], "B": pair[1], "sha256": digest}),
        "seed": 0,
    }


def scheme_of(name: str) -> schemes.Scheme:
    """The scheme of a name; "FILE.py:NAME" is the scheme NAME that the execution of a file registers."""
    file, _, own = name.rpartition(":")
    if not file.endswith(".py"):
        return schemes.get(name)
    path = Path(file).resolve()
    known = schemes.get(own) if own in schemes.names() else None
    if known is None or getattr(sys.modules.get(type(known).__module__), "__file__", None) != str(path):
        try:
            execute(path)
        except (Exception, SystemExit) as problem:
            raise InputError(f"{file}: {type(problem).__name__}: {problem}") from problem
    return schemes.get(own)


def _scheme(cell: Mapping[str, Any]) -> schemes.Scheme:
    """The scheme of a cell, with its options."""
    return _built(cell["scheme"], tuple(part(cell, "scheme").items()))


@functools.lru_cache(maxsize=4096)
def _built(name: str, options: tuple[tuple[str, Any], ...]) -> schemes.Scheme:
    return schemes.build(name, dict(options))


@functools.lru_cache(maxsize=4096)
def _options(scheme: schemes.Scheme) -> dict[str, Any]:
    """Every option of a scheme, as in a cell."""
    return {option.name: _flat(getattr(scheme, option.name)) for option in scheme.info.options}


@functools.lru_cache(maxsize=4096)
def _product_count(scheme: schemes.Scheme) -> int:
    """The number of products of words; 30 for an error-free scheme, where it depends on the operands."""
    if scheme.error_free:
        return 30
    return len(scheme.plan().products) if isinstance(scheme, schemes.SplitScheme) else 1


# --- changed instructions
_Changed = tuple[str, dict[str, Any]]
"""An architecture or GPU, and the fields of `MmaSpec` that are changed in its instruction."""
_LABELS = ("name", "architecture", "instruction", "shape", "evidence", "source")
_ARITHMETIC = [field.name for field in fields(MmaSpec) if field.name not in _LABELS]


def _machines(entries: Any) -> list[str | MmaSpec | _Changed]:
    """The hardware of a grid; a table with lists or ranges is several."""
    machines: list[str | MmaSpec | _Changed] = []
    for entry in _listed(entries):
        if isinstance(entry, Mapping):
            changes = dict(entry)
            base = changes.pop("base", None)
            if not isinstance(base, str):
                raise InputError(f'hardware: {shown(entry)} has no "base", an architecture or GPU')
            with _at("hardware"):
                keywords("field of an instruction", changes, ["instruction", *_ARITHMETIC])
            machines += [(base, chosen) for chosen in _combinations("hardware", changes)]
        elif isinstance(entry, MmaSpec):
            machines.append(entry)
        else:
            with _at("hardware"):
                mma.catalog.architecture(entry)
            machines.append(entry)
    return machines


def _machine_name(scheme: schemes.Scheme, machine: str | MmaSpec | _Changed | None) -> str | None:
    """The name of a scheme's instruction in a cell, from which `_machine` makes it again; InputError without one."""
    if machine is None or isinstance(machine, str):
        spec = scheme.spec(machine)  # of a file, the arithmetic: the file may change
        return machine if spec is None or not spec.architecture.endswith(".json") else repr(spec)
    if isinstance(machine, tuple):
        base, changes = machine
    else:
        scheme.spec(machine)  # raises for other formats
        try:
            row = mma.spec(machine.architecture, machine.a_format, machine.d_format, machine.instruction)
        except InputError:
            return repr(machine)
        base, default = machine.architecture, scheme.spec(machine.architecture)
        changes = {"instruction": row.instruction} if default is None or default.instruction != row.instruction else {}
        changes |= {
            name: getattr(machine, name) for name in _ARITHMETIC if getattr(machine, name) != getattr(row, name)
        }
    name = " ".join([base, *(f"{field}={value}" for field, value in changes.items())])
    made = _machine(name, scheme)
    if isinstance(machine, MmaSpec) and repr(made) != repr(machine):
        return repr(machine) if isinstance(made, MmaSpec) or repr(scheme.spec(made)) != repr(machine) else name
    scheme.spec(made)
    return name


@functools.lru_cache(maxsize=256)
def _machine(name: str | None, scheme: schemes.Scheme) -> str | MmaSpec | None:
    """The hardware of a cell: its name, or the changed instruction of the scheme, or the instruction of a `repr`."""
    if name is None or "=" not in name:
        return name
    if name.startswith("MmaSpec("):
        call = ast.parse(name, mode="eval").body
        assert isinstance(call, ast.Call)
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return MmaSpec(*(ast.literal_eval(argument) for argument in call.args), **named)
    first, *rest = re.split(r" (?=\w+=)", name)
    changes = {field: _literal(text) for field, _, text in (word.partition("=") for word in rest)}
    named = {"instruction": changes.pop("instruction")} if "instruction" in changes else {}
    spec = schemes.build(scheme, named).spec(first)
    if spec is None:
        raise InputError(f"{scheme.name} runs on no matrix instruction whose fields could be changed")
    return spec.replace(**changes)


def _literal(text: str) -> Any:
    """A number, True, False or None, or else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# --- the numbers of a cell
def evaluate(cell: Mapping[str, Any], device: Device = "cpu") -> dict[str, float]:
    """Return the metrics of one cell of `Grid.cells`, by name, with its product on ``device`` as in `fpemu.gemm`.

    ``normwise`` also uses the operands; ``max_ulps`` counts in the format of the result, from the exact product rounded
    to that format, whatever ``out`` is. Operands are drawn in the operand format of the scheme, fp32 or fp64; the last
    few pairs and their exact products are cached, since neighbouring cells share them. The scheme raises InputError or
    GuaranteeError for operands outside its range.

    >>> cell = {"M": 8, "N": 8, "K": 32, "seed": 0, "inputs": "uniform", "scheme": "sgemm", "hardware": None}
    >>> evaluate({**cell, "on_range": "raise", "out": "fp64", "metrics": ["relative_l2"]})["relative_l2"] < 1e-6
    True
    """
    order = part(cell, "order")
    scheme = _scheme(cell)
    fmt = scheme.operand.name
    operands = cell["inputs"], tuple(part(cell, "inputs").items()), cell["M"], cell["N"], cell["K"], cell["seed"], fmt
    arguments = scheme, _machine(cell["hardware"], scheme), cell["on_range"], KOrder(**order) if order else None
    on_device = resident(*operands) if stays_on_gpu(operands[2:5], device) else None
    on_gpu = None if on_device is None else on_device.product(*arguments)

    @functools.cache
    def result() -> Any:
        if on_gpu is not None:
            return on_gpu.array((cell["M"], cell["N"]), np.float32)
        A, B = drawn(*operands)
        by, hardware, on_range, of = arguments
        return schemes.gemm(A, B, scheme=by, hardware=hardware, on_range=on_range, order=of, device=device)

    errors = {}
    for name in cell["metrics"]:
        measure = metrics.get(name)
        if on_device is not None and measure is metrics.relative_l2 and cell["out"] == "fp64":
            error = on_device.relative_l2(result() if on_gpu is None else on_gpu)
            if error is not None:
                errors[name] = error
                continue
        out = fmt if measure is metrics.max_ulps else cell["out"]
        exact = on_device.exact if on_device and out == "fp64" else exact_product(operands, out, device)
        if measure is metrics.max_ulps:
            errors[name] = metrics.max_ulps(result(), exact, fmt)
        elif measure is metrics.normwise:
            errors[name] = metrics.normwise(result(), exact, *drawn(*operands))
        else:
            errors[name] = measure(result(), exact)
    return errors


def part(cell: Mapping[str, Any], of: str) -> dict[str, Any]:
    """The entries "of.name" of a cell, under "name".

    >>> part({"scheme": "h2sgemm", "scheme.sb": 12, "seed": 0}, "scheme")
    {'sb': 12}
    """
    return {name.removeprefix(f"{of}."): value for name, value in cell.items() if name.startswith(f"{of}.")}


# --- the entries of a grid as values
@contextlib.contextmanager
def _at(where: str) -> Iterator[None]:
    """Prepend the place in the grid to the message of an InputError."""
    try:
        yield
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from problem


def _listed(value: Any) -> list[Any]:
    """A list or array of one dimension as a list, anything else as a list of one; NumPy's scalars as Python's."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return [_scalar(value)]
    values = [_scalar(item) for item in itertools.islice(value, MOST_CELLS + 1)]
    if len(values) > MOST_CELLS:  # a range may be longer than the memory
        raise InputError(f"{shown(value)} has too many values; a grid has at most {MOST_CELLS} cells")
    return values


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _axis(key: str, value: Any, *, none: Any = None) -> list[Any]:
    """The values that an entry stands for, each once: itself, or those of a list or a range; "none" is ``none``.

    >>> _axis("K", ["none", 3, "4:6"]), _axis("residual_scale", "2^10:2^12")
    ([None, 3, 4, 5, 6], [1024, 2048, 4096])
    """
    values: list[Any] = []
    for item in _listed(value):
        ranged = isinstance(item, str) and (":" in item or "^" in item)
        values += parse_range(key, item) if ranged else [none if isinstance(item, str) and item == "none" else item]
    if not values:
        raise InputError(f"{key} is empty")
    for item in values:
        if isinstance(item, int | float) and not -_LARGEST_NUMBER <= item <= _LARGEST_NUMBER:
            raise InputError(f"{key} has {shown(item)}: numbers lie between -1e300 and 1e300")
    return _once(values)


def _names(key: str, value: Any, check: Callable[[str], Any]) -> list[str]:
    """The names of an entry, each once; ``check`` raises InputError for an unknown one."""
    names = _listed(value)
    if not names:
        raise InputError(f"{key} is empty")
    with _at(key):
        for name in names:
            check(name)
    return list(dict.fromkeys(names))


def _named(key: str, entries: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """The place, the name and the other keys of each entry."""
    parsed = []
    for index, entry in enumerate(_listed(entries), start=1):
        rest = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else {}
        name = rest.pop("name", None)
        if not isinstance(name, str):
            raise InputError(f"{key} {index}: {shown(entry)} has no name")
        parsed.append((f"{key} {index} ({name[:60]})", name, rest))
    if not parsed:
        raise InputError(f"{key} is empty")
    return parsed


def _combinations(where: str, axes: Mapping[str, Any], keep_none: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every choice of one value from each axis; the axes in ``keep_none`` have the word "none" as a value."""
    values = []
    for name, value in axes.items():
        values.append(_axis(f"{where}: {name}" if where else name, value, none="none" if name in keep_none else None))
    _check_count(values)
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*values)]


def _check_count(axes: Iterable[Sequence[Any]]) -> None:
    """InputError if the product of the axes has more than `MOST_CELLS` cells."""
    count = math.prod(len(values) for values in axes)
    if count > MOST_CELLS:
        raise InputError(f"the grid has {count} cells; at most {MOST_CELLS} are possible")


def _prefixed(of: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Chosen values under the keys of a cell.

    >>> _prefixed("scheme", {"sb": 12})
    {'scheme.sb': 12}
    """
    return {f"{of}.{name}": value for name, value in chosen.items()}


def _flat(value: Any) -> Any:
    """An option's value as one number or word: products "hh,rh" and groups of them "hh;rh,hr" as text."""
    if not isinstance(value, tuple):
        return value
    groups = any(isinstance(item, tuple) for item in value)
    return (";" if groups else ",").join(_flat(item) for item in value)


def _once(items: Iterable[Any]) -> list[Any]:
    """The items without repetitions, in their order; 1, 1.0 and True are three."""
    return list({repr(item): item for item in items}.values())
