"""GPUs as data, from a table (gpus.toml) or from a file of the user.

A description has the known fields; a model requires a field with `Gpu.need`, which raises an error if it is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fpemu._system import read_toml
from fpemu.arguments import LARGEST, choice, integer, keywords, number, read_table, text
from fpemu.errors import InputError, shown, unknown_name
from fpemu.mma import catalog

UNITS = (
    "fp16",
    "fp32",
    "fp64",
    "fp16 matrix",
    "bf16 matrix",
    "tf32 matrix",
    "fp8 matrix",
    "int8 matrix",
    "fp32 matrix",
    "fp64 matrix",
)
"""Units with a peak: the ordinary cores by format, the matrix units by input format."""

_RATES = {
    "clock": "Hz",
    "peak": "operations a second",
    "bandwidth": "bytes a second",
    "copy_bandwidth": "bytes a second",
}
LEAST = {
    **{field: (1e6, unit) for field, unit in _RATES.items()},
    **{field: (1024.0, "bytes") for field in ("memory", "l2", "l1", "shared", "shared_per_block")},
}
"""Least plausible values: a smaller number is in another unit."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """GPU with its rates and sizes.

    Rates are in operations or bytes a second (a multiply-add is two operations), sizes in bytes.

    Parameters
    ----------
    name : str
        Name of the GPU.
    source : str
        Source of the numbers.
    architecture : str, optional
        Its row in the catalog of instructions (`fpemu.mma.catalog`), None if it has no matrix unit.
    sms : int, optional
        Streaming multiprocessors, compute units or AI cores.
    clock : float, optional
        Core clock under load (boost), Hz.
    peak : mapping of str to float
        Operations a second by unit, a key of `UNITS`; dense.
    bandwidth : float, optional
        Documented bandwidth of the memory, bytes a second.
    copy_bandwidth : float, optional
        Bandwidth measured by a copy (STREAM), bytes a second.
    memory : float, optional
        Size of the memory, bytes.
    l2 : float, optional
        Size of the L2 cache, bytes.
    l1 : float, optional
        L1 cache of an SM, bytes; shared memory included where they are one.
    shared : float, optional
        Shared memory (LDS, L1 buffer) available to the blocks of an SM together, bytes.
    shared_per_block : float, optional
        Shared memory available to a block, bytes.
    registers : int, optional
        32-bit registers of an SM.
    registers_per_thread : int, optional
        Largest number of 32-bit registers of a thread.
    threads : int, optional
        Threads that an SM can hold.
    blocks : int, optional
        Thread blocks that an SM can hold.
    warp : int, optional
        Threads of a warp (wavefront).
    memory_latency : float, optional
        Latency of a load from memory, cycles.
    compute_latency : float, optional
        Latency of an fp32 multiply-add, cycles.
    fp64_latency : float, optional
        Latency of an fp64 multiply-add, cycles.
    """

    name: str
    source: str
    architecture: str | None = None
    sms: int | None = None
    clock: float | None = None
    peak: Mapping[str, float] = field(default_factory=dict)
    bandwidth: float | None = None
    copy_bandwidth: float | None = None
    memory: float | None = None
    l2: float | None = None
    l1: float | None = None
    shared: float | None = None
    shared_per_block: float | None = None
    registers: int | None = None
    registers_per_thread: int | None = None
    threads: int | None = None
    blocks: int | None = None
    warp: int | None = None
    memory_latency: float | None = None
    compute_latency: float | None = None
    fp64_latency: float | None = None

    def __post_init__(self) -> None:
        text("Gpu: name", self.name)
        for name, kind in _TYPES.items():
            value = getattr(self, name)
            if value is not None or "None" not in kind:
                _check(name, kind, value)
        if self.architecture is not None:
            object.__setattr__(self, "architecture", catalog.architecture(self.architecture))

    def need(self, what: str, model: str = "this model") -> Any:
        """Return a field, or the peak of a unit.

        Raises
        ------
        InputError
            If the description lacks it.
        """
        choice("field of a GPU", what, [*_TYPES, *UNITS])
        value = self.peak.get(what) if what in UNITS else getattr(self, what)
        if value is None:
            kind = f"peak {what!r}" if what in UNITS else what
            raise InputError(
                f"{self.name}: {model} needs {kind}, which its description lacks: add it to the GPU's table"
            )
        return value


_TYPES = {f.name: str(f.type) for f in fields(Gpu) if f.name != "name"}


def names() -> list[str]:
    """Return the names of the GPUs of the table, in its order.

    Returns
    -------
    list of str
        Names that `get` accepts.

    Examples
    --------
    >>> names()[:2]
    ['K40c', 'M40']
    """
    return list(_table())


def get(name: str | Path | Gpu) -> Gpu:
    """Return a GPU of the table, or of a file.

    Parameters
    ----------
    name : str, Path or Gpu
        One of `names()` (case, blanks and dashes do not matter); the path of a TOML file, which ends in .toml, with
        ":NAME" after it if the file describes several GPUs. A Gpu passes through.

    Returns
    -------
    Gpu
        Description of the GPU.

    Raises
    ------
    InputError
        An unknown name (with the nearest known); an invalid file; several GPUs in a file and none named.

    Examples
    --------
    >>> get("titan-rtx").sms
    72
    """
    if isinstance(name, Gpu):
        return name
    path, _, member = str(name).rpartition(":") if ".toml:" in str(name).lower() else (str(name), "", "")
    if Path(path).suffix.lower() == ".toml":
        described = read(path)
        first = next(iter(described))
        if not member and len(described) > 1:
            raise InputError(f"{path} describes {', '.join(described)}: name one, as {path}:{first}")
        return _find(member or first, described, f"GPU of {path}")
    return _find(str(name), _table(), "GPU")


def read(path: str | Path) -> dict[str, Gpu]:
    """Read the GPUs of a TOML file, one table a GPU, its keys the fields of `Gpu`.

    A GPU needs `source` (its table has its name). `like = "H200"` starts from a GPU further up in the file or,
    if the file has none of that name, from the package's; peaks are replaced one by one.

    Parameters
    ----------
    path : str or Path
        Path of the file.

    Returns
    -------
    dict of str to Gpu
        Descriptions by name.

    Raises
    ------
    InputError
        No such file, not TOML, no GPU in it; an unknown field or unit (with the nearest known); a value of the wrong
        kind, or not positive. It names the file, the GPU, the field and the value.
    """
    return _read(Path(path), _table())


@functools.cache
def _table() -> dict[str, Gpu]:
    return _read(Path(__file__).with_name("gpus.toml"), {})


def _read(path: Path, inherited: Mapping[str, Gpu]) -> dict[str, Gpu]:
    """The GPUs of a file, which may start from others further up in it, or else from inherited ones."""
    described: dict[str, Gpu] = {}
    for name, table in read_toml(path).items():
        if not isinstance(table, dict):
            raise InputError(f"{path}: {name} = {table!r} is outside of a GPU's table: begin the table with [its name]")
        equal = next((other for other in described if _fold(other) == _fold(name)), None)
        if equal is not None:
            raise InputError(f"{path}: {equal!r} and {name!r} are the same name: case, blanks and dashes do not count")
        described[name] = _gpu(f"{path}, GPU {name!r}", name, dict(table), described, inherited)
    if not described:
        raise InputError(f"{path}: describes no GPU: write a table [name] with its fields")
    return described


def _gpu(where: str, name: str, table: dict[str, Any], before: dict[str, Gpu], inherited: Mapping[str, Gpu]) -> Gpu:
    start: dict[str, Any] = {}
    if "like" in table:
        other = str(table.pop("like"))
        known = before if _fold(other) in map(_fold, before) else {**inherited, **before}
        base = _find(other, known, f"GPU in {where}, like")
        start = {field: getattr(base, field) for field in _TYPES if field != "source"}
        if isinstance(table.get("peak"), Mapping):
            table["peak"] = {**base.peak, **table["peak"]}
    return read_table(Gpu, {"name": name, **start, **table}, where)


def _check(field: str, kind: str, value: Any) -> None:
    """Raise InputError for a value of another kind, or in a unit that cannot be meant."""
    where = f"Gpu: {field}"
    if kind.startswith("str"):
        text(where, value)
    elif kind.startswith("Mapping"):
        keywords(f"unit in {where}:", value, UNITS)
        for unit, peak in value.items():
            _check_size(f"{where} {unit!r}", field, number(f"{where} {unit!r}", peak, above=0, what=", in SI units"))
    elif kind.startswith("int"):
        integer(where, value, 1, LARGEST)
    else:
        _check_size(where, field, number(where, value, above=0, what=", in SI units"))


def _check_size(where: str, field: str, size: float) -> None:
    least, unit = LEAST.get(field, (0, ""))
    if size < least:
        hint = "is it in a larger unit (4.8 TB/s are 4.8e12)?"
        raise InputError(f"{where} = {shown(size)} is too little, in {unit}: {hint}")


def _find(name: str, known: Mapping[str, Gpu], kind: str) -> Gpu:
    key = _fold(name)
    for other, gpu in known.items():
        if key == _fold(other):
            return gpu
    raise unknown_name(kind, name, known)


def _fold(name: str) -> str:
    """A name without case, blanks, dashes and manufacturer, as in `fpemu.mma.catalog.architecture`."""
    plain = name.lower().removeprefix("nvidia").removeprefix("amd")
    return "".join(c for c in plain if c.isalnum())
