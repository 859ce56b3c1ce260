"""Records of the products of a run, and their files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats
from fpemu.arguments import choice, integer
from fpemu.errors import InputError

Array = NDArray[Any]
_FORMAT = 1
_FILES = 8  # files among which the limit of disk space is divided
CODES = {
    "bf16": "u2",
    "e4m3": "u1",
    "e5m2": "u1",
    "fp16": "f2",
    "fp32": "f4",
    "fp64": "f8",
    "int8": "i1",
    "int32": "i4",
}
"""The dtype of the codes of each type in a file."""


@dataclass(frozen=True)
class Recorded:
    """One product, or one fused attention, of a recorded run.

    Attributes
    ----------
    index : int
        Number of the call in the run, from 0.
    operator, module : str
        Operator and module that computed it.
    sizes : (M, N, K) or None
        Sizes of a product, or of each product of a batch; None for attention.
    operands : dict
        For each operand and the result "D": type, shape, strides, "digest" of its bytes in row-major order, and of the
        first product of a batch ("part").
    alpha, beta : float
        Factors of the product and of C.
    flags : dict
        Settings of the library at the call.
    rows, columns : list of int
        Sampled rows and columns of D, of the first product of a batch.
    row_digests : list of str
        Digests of the sampled rows of D, each of all columns.
    arrays : dict
        File, position, dtype and shape of the stored samples: rows of A, columns of B, and their entries of C and D.
    about : dict
        Versions and hardware of the run.
    """

    index: int
    operator: str
    sizes: tuple[int, int, int] | None
    operands: dict[str, dict[str, Any]]
    module: str = ""
    alpha: float = 1.0
    beta: float = 0.0
    flags: dict[str, Any] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    row_digests: tuple[str, ...] = ()
    arrays: dict[str, Any] = field(default_factory=dict, repr=False)
    about: dict[str, Any] = field(default_factory=dict, repr=False)

    def sample(self, name: str) -> Array | None:
        """The stored sample of an operand or of D, in the dtype of its type; None if there is none."""
        if name not in self.arrays:
            return None
        path, position, dtype, shape = self.arrays[name]
        with open(path, "rb") as file:
            file.seek(position)
            codes = np.frombuffer(file.read(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
        kind = self.operands.get(name, {}).get("type", "fp32")
        return np.asarray(formats.get(kind).decode(codes)) if codes.dtype.kind == "u" else codes

    def digests(self, key: str = "digest") -> dict[str, Any]:
        """The digests of all operands and of D."""
        return {name: operand.get(key) for name, operand in self.operands.items()}

    def __str__(self) -> str:
        kinds = " ".join(str(self.operands[name]["type"]) for name in ("A", "B", "D") if name in self.operands)
        size = " × ".join(map(str, self.sizes)) if self.sizes else "fused attention"
        batch = self.operands["D"]["shape"][:-2]
        parts = [f"product {self.index}", f"in {self.module}" * bool(self.module), f"{self.operator}:", kinds, size]
        return " ".join([*filter(None, parts), *([f"in a batch of {batch}"] if batch else [])])


def sampled(length: int, count: int) -> Array:
    """The sampled rows or columns: the first half of `count` in turn, the others spread with the last among them."""
    if count >= length:
        return np.arange(length)
    first = (count + 1) // 2
    rest = np.random.default_rng(length).choice(np.arange(first, length - 1), max(0, count - first - 1), replace=False)
    return np.sort(np.array([*range(first), *rest, *[length - 1] * (count > first)], np.int64))


class RunWriter:
    """The files of a run, of at most `limit` bytes; then the record ends, or keep="last" deletes the oldest file.

    A file holds a header, and for each product a line of JSON and the bytes of its samples. A sample of B is stored
    once in a file, so that each file can be read alone. An interrupted run ends with an incomplete product.
    """

    def __init__(
        self, folder: str | os.PathLike[str], about: dict[str, Any], limit: int = 2**30,
        keep: Literal["first", "last"] = "first",
    ) -> None:  # fmt: skip
        self.folder, self.about = Path(folder), about
        self.limit = integer("limit", limit, 2**16)
        self.keep = choice("keep", keep, ("first", "last"))
        if any(self.folder.glob("*.run")):
            raise InputError(f"{folder} holds a run already: name another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.waiting: list[bytes] = []  # content of the current file that `flush` writes
        self.number = self.size = self.dropped = 0
        self.full = True  # whether the next product begins a file
        self.stored: set[str] = set()

    def holds(self, key: str) -> bool:
        """Whether the current file has the sample of B with this digest."""
        return key in self.stored

    def add(self, product: Recorded, arrays: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
        """Append a product with its samples: dtype, shape and bytes of each."""
        if self.dropped or (self.full and not self._next()):
            self.dropped += 1
            return
        key = sample_key(product)
        arrays = {name: x for name, x in arrays.items() if name != "B" or key not in self.stored}
        self.stored |= {key} if "B" in arrays else set()
        line = {name: value for name, value in vars(product).items() if name not in ("arrays", "about")}
        line["arrays"] = [[name, dtype, list(shape)] for name, (dtype, shape, _) in arrays.items()]
        content = b"".join(x for _, _, x in arrays.values())
        text = json.dumps({**line, "bytes": len(content)}).encode() + b"\n"
        self.waiting += [text, content]
        self.size += len(text) + len(content)

    def flush(self) -> None:
        """Append the products to the current file, and end it if it is large."""
        if self.waiting:
            with open(self.folder / f"{self.number - 1:05d}.run", "ab") as file:
                file.write(b"".join(self.waiting))
            self.waiting = []
        if self.size > self.limit // _FILES:  # not between the products of a flush, some of which share a B
            self.full, self.stored = True, set()

    def _next(self) -> bool:
        """Begin another file; False if the limit is reached and the first products are to be kept."""
        if self.number >= _FILES and self.keep == "first":
            return False
        if self.number >= _FILES:
            (self.folder / f"{self.number - _FILES:05d}.run").unlink(missing_ok=True)
        self.waiting = [json.dumps({"fpemu run": _FORMAT, "about": self.about}).encode() + b"\n"]
        self.size, self.number, self.full = len(self.waiting[0]), self.number + 1, False
        return True


def sample_key(product: Recorded) -> str:
    """The digest of the sampled B, of which a file holds one copy."""
    operand = product.operands.get("B", {})
    return str(operand.get("part") or operand.get("digest"))


def by_columns(operand: dict[str, Any]) -> bool:
    """Whether an operand is stored by columns."""
    shape, strides = operand["shape"][-2:], operand["strides"][-2:]
    return min(shape) > 1 and strides[0] < strides[1]


def read(folder: str | os.PathLike[str]) -> list[Recorded]:
    """Return the complete products of a run in their order; InputError if there is no run, or another file."""
    paths = sorted(Path(folder).glob("*.run"))
    if not paths:
        raise InputError(f"{folder} holds no run: fpemu.torch.record writes one")
    return [product for path in paths for product in _products(path)]


def _products(path: Path) -> Iterator[Recorded]:
    shared: dict[str, Any] = {}
    size = path.stat().st_size
    with open(path, "rb") as file:
        try:
            header = json.loads(file.readline() or b"{}")
            if header and header["fpemu run"] != _FORMAT:
                raise InputError(f"{path} has format {header['fpemu run']}: this version reads {_FORMAT}")
            while (text := file.readline()).endswith(b"\n"):
                line = json.loads(text)
                position, arrays = file.tell(), {}
                if position + line.pop("bytes") > size:
                    return
                for name, dtype, shape in line["arrays"]:
                    arrays[name] = str(path), position, dtype, shape
                    position += int(np.prod(shape)) * np.dtype(dtype).itemsize
                file.seek(position)
                tuples: dict[str, Any] = {name: tuple(line[name]) for name in ("rows", "columns", "row_digests")}
                tuples["sizes"] = tuple(line["sizes"]) if line["sizes"] else None
                product = Recorded(**{**line, **tuples, "arrays": arrays, "about": header["about"]})
                if "B" in arrays:
                    shared[sample_key(product)] = arrays["B"]
                elif sample_key(product) in shared:
                    arrays["B"] = shared[sample_key(product)]
                yield product
        except (ValueError, KeyError, TypeError) as problem:
            raise InputError(f"{path} is no file of a run: {type(problem).__name__} {problem}") from None
