"""Orders and summation trees as data of JSON (`to_dict`, `from_dict`) and as files (`save`, `load`).

A file is the object ``{"file": "fpemu summation order", "version": 1, "order" or "tree": data}``. A `KOrder` is a dict
of its fields that differ from the defaults. A tree is compressed: an item that repeats with a constant step in k is
written once, so that 10^4 positions of an ordinary GEMM take a few lines.

=============================================  ===================================================
``7``                                          position k = 7
``"0..15"``                                    the positions from 0 to 15
``[...]``                                      a block of an instruction: a list of positions
``{"instruction": [...]}``                     a `Chain`: a list of blocks
``{"fma": [...]}``                             a `Chain`: a list of positions
``{..., "start": chain or sum}``               the value that a `Chain` begins with
``{"sum": [...], "fmt": ..., "stored": ...}``  a `Sum`: a list of chains and sums, and its formats
``{"of": ..., "count": n, "step": s}``         any of these repeated n times with step s in k
=============================================  ===================================================
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fpemu import _system, formats
from fpemu.arguments import read_table
from fpemu.errors import InputError, shown
from fpemu.mma.order import KOrder
from fpemu.mma.tree import Chain, OrderResult, Sum, Tree, fold, leaves, order_of

_TOO_DEEP = "the tree is nested too deep"
_MOST = 2**22  # positions; larger products are not probed


def to_dict(order: KOrder | Tree) -> dict[str, Any]:
    """Return an order or a tree as data of JSON.

    Parameters
    ----------
    order : KOrder or Tree
        Summation order over K.

    Returns
    -------
    dict
        Data that `json.dumps` accepts.

    Raises
    ------
    InputError
        Neither a KOrder nor a tree.

    Examples
    --------
    >>> to_dict(KOrder(split=128, join="pairwise"))
    {'split': 128, 'join': 'pairwise'}
    >>> to_dict(Sum((Chain(((0, 1), (2, 3))), Chain(((4, 5), (6, 7))))))
    {'sum': [{'of': {'instruction': [{'of': ['0..1'], 'count': 2, 'step': 2}]}, 'count': 2, 'step': 4}]}
    """
    if isinstance(order, KOrder):
        return order.to_dict()
    if not isinstance(order, Chain | Sum):
        raise InputError(f"an order is a KOrder or a tree, not {type(order).__name__}")
    data: dict[str, Any] = Compressor().tree(order)[0]
    return data


def from_dict(data: Any) -> KOrder | Tree:
    """Return the order or the tree that `to_dict` wrote.

    Parameters
    ----------
    data : dict
        Result of `to_dict`.

    Returns
    -------
    KOrder, Chain or Sum
        The order or the tree.

    Raises
    ------
    InputError
        The data are no order.

    Examples
    --------
    >>> from_dict({"fma": ["0..3"]})
    Chain(blocks=((0,), (1,), (2,), (3,)), kind='fma', start=None)
    """
    if not isinstance(data, dict) or not {"sum", "instruction", "fma"} & set(data):
        return KOrder.from_dict(data)
    try:
        if _count(data, "tree") > _MOST:
            raise InputError(f"the tree has more than {_MOST} positions")
        tree = _tree(data, 0)
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    if min(leaves(tree)) < 0:
        raise InputError("the tree has a position below 0")
    return tree


def save(order: OrderResult | KOrder | Tree, path: str | os.PathLike[str], **about: Any) -> None:
    """Write an order or a tree to a file atomically.

    Parameters
    ----------
    order : Revealed, KOrder, Chain or Sum
        The result of `fpemu.probing.reveal`, or any order.
    path : path-like
        Ends in .json.
    **about
        Remarks for the reader of the file; `load` ignores them.

    Raises
    ------
    InputError
        The path has another ending, no file can be written there, a remark is no JSON, or the tree is nested too deep
        for JSON.
    """
    name = os.fspath(path)
    if not name.endswith(".json"):
        raise InputError(f"{name}: an order is written as .json")
    _system.check_writable(name)
    plain: KOrder | Tree = order_of(order)
    record: dict[str, Any] = {"file": "fpemu summation order", "version": 1}
    record |= {field: getattr(order, field) for field in ("k", "probes") if hasattr(order, field)}  # of a Revealed
    if not isinstance(plain, KOrder):
        record["k"] = sum(1 for _ in leaves(plain))
    data = record["order" if isinstance(plain, KOrder) else "tree"] = to_dict(plain)
    if about:
        record["about"] = about
    from_dict(data)  # raises an InputError for a tree that `load` could not read; Python 3.13 would write it
    try:
        lines = [f'"{key}": {json.dumps(x, ensure_ascii=False, allow_nan=False)}' for key, x in record.items()]
        content = ("{" + ",\n ".join(lines) + "}\n").encode()
    except RecursionError:
        raise InputError(_TOO_DEEP) from None
    except (TypeError, ValueError) as problem:
        raise InputError(f"{name}: a remark is no JSON: {problem}") from None
    _system.write_atomic(name, content)


def load(path: str | os.PathLike[str]) -> KOrder | Tree:
    """Read the order in a file.

    Parameters
    ----------
    path : str or os.PathLike[str]
        Path of the file.

    Returns
    -------
    KOrder, Chain or Sum
        The order, as `fpemu.mma.gemm` accepts it.

    Raises
    ------
    InputError
        The file cannot be read, has no order, or a malformed one.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(KOrder(split=128, tile=64, residue_first=True), os.path.join(folder, "order.json"))
    ...     load(os.path.join(folder, "order.json"))
    KOrder(split=128, tile=64, residue_first=True)
    """
    name = os.fspath(path)
    record = read_table(_OrderFile, _system.read_json(name), name)
    try:
        if (record.order is None) == (record.tree is None):
            raise InputError('it needs either "order" or "tree"')
        if record.tree is None:
            return KOrder.from_dict(record.order)
        tree = from_dict(record.tree)
        if isinstance(tree, KOrder):
            raise InputError("the tree is neither a chain nor a sum")
        positions = sorted(leaves(tree))
        if positions != list(range(len(positions))):
            wrong = next(i for i, k in enumerate(positions) if i != k)
            raise InputError(f"each k from 0 must occur in the tree once: {wrong} does not")
        if record.k not in (None, len(positions)):
            raise InputError(f"k is {record.k}, and the tree has {len(positions)} positions")
        return tree
    except InputError as problem:
        raise InputError(f"{name}: {problem}") from None


@dataclass(frozen=True)
class _OrderFile:
    """The content of a file."""

    file: Literal["fpemu summation order"]
    version: int
    order: Any = None
    tree: Any = None
    k: int | None = None
    probes: int | None = None
    about: Any = None

    def __post_init__(self) -> None:
        if self.version != 1:
            raise InputError(f"its version is {self.version}, this fpemu reads 1")


# --- a tree as data
Item = tuple[Any, int, int]
"""Data, the name of its form, and the position at which it begins."""


class Compressor:
    """Assigns equal names to data that differ only by their position in k, and compresses them to runs."""

    def __init__(self) -> None:
        self.names: dict[object, int] = {}

    def _name(self, *key: object) -> int:
        return self.names.setdefault(key, len(self.names))

    def tree(self, tree: Tree) -> Item:
        """The compressed form of a tree."""
        return fold(tree, self._node)

    def _node(self, node: Tree, below: list[Item]) -> Item:
        if isinstance(node, Sum):
            data, key, origin = self._sequence(below)
            named = {"fmt": node.fmt, "stored": node.stored}
            given = {name: value for name, value in named.items() if value is not None}
            return {"sum": data, **given}, self._name("sum", node.fmt, node.stored, key), origin
        if node.kind == "fma":
            data, key, origin = self._sequence([(k, -1, k) for (k,) in node.blocks])
        else:
            data, key, origin = self._sequence([self._block(block) for block in node.blocks])
        if not below:
            return {node.kind: data}, self._name(node.kind, key), origin
        ((start, name, at),) = below
        return {node.kind: data, "start": start}, self._name(node.kind, key, name, at - origin), origin

    def _block(self, block: tuple[int, ...]) -> Item:
        data, key, origin = self._sequence([(k, -1, k) for k in block])
        return data, self._name("block", key), origin

    def _sequence(self, items: list[Item]) -> tuple[list[Any], object, int]:
        """Runs in place of repetitions: first of single items, then of those runs, and so on."""
        while len(shorter := self._runs(items)) < len(items):
            items = shorter
        origin = items[0][2]
        return [data for data, _, _ in items], tuple((name, at - origin) for _, name, at in items), origin

    def _runs(self, items: list[Item]) -> list[Item]:
        out: list[Item] = []
        i = 0
        while i < len(items):
            data, name, at = items[i]
            n = 1
            if i + 1 < len(items) and items[i + 1][1] == name:
                step = items[i + 1][2] - at
                while i + n < len(items) and items[i + n][1] == name and items[i + n][2] - at == n * step:
                    n += 1
                # the second item may begin a longer run: 0, 1 | 8, 9 and not 0 | 1, 8 | 9
                following = [item[2] for item in items[i + 1 : i + 4] if item[1] == name]
                if n == 2 and len(following) == 3 and following[1] - following[0] == following[2] - following[1]:
                    n = 1
            if n > 1:
                positions = type(data) is int and step == 1
                run = f"{data}..{data + n - 1}" if positions else {"of": data, "count": n, "step": step}
                out.append((run, self._name("run", name, n, step), at))
            else:
                out.append((data, name, at))
            i += n
        return out


# --- data as a tree
def each(items: Sequence[Any], shift: int = 0) -> Iterator[tuple[Any, int]]:
    """The entries of a list without its runs, each with the amount to add to its positions."""
    for item in items:
        of, count, step = _run(item) or (item, 0, 0)
        if not count:
            yield item, shift
        for i in range(count):
            yield from each([of], shift + i * step)


def size(items: Sequence[Any]) -> int:
    """How many entries `each` returns."""
    return sum(run[1] * size([run[0]]) if (run := _run(item)) else 1 for item in items)


def positions(items: Sequence[Any], shift: int = 0) -> list[int]:
    """The positions of a list of positions, or of a list of blocks, one after another."""
    result: list[int] = []
    for item, by in each(items, shift):
        result += positions(item, by) if isinstance(item, list) else [item + by]
    return result


def _run(item: Any) -> tuple[Any, int, int] | None:
    """The item, the count and the step of a run; None for anything else."""
    if isinstance(item, str):
        ends = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", item, re.ASCII)
        if ends is None or int(ends[1]) >= int(ends[2]):
            raise InputError(f"{shown(item)} is no range of positions")
        return int(ends[1]), int(ends[2]) - int(ends[1]) + 1, 1
    if not isinstance(item, dict) or set(item) != {"of", "count", "step"}:
        return None
    if type(item["count"]) is not int or item["count"] < 1 or type(item["step"]) is not int:
        raise InputError(f"a run has count = {shown(item['count'])} and step = {shown(item['step'])}")
    return item["of"], item["count"], item["step"]


def _count(item: Any, kind: str) -> int:
    """The positions of a item, which must be a "position", a "block" or a "tree", or a run of these."""
    if run := _run(item):
        return run[1] * _count(run[0], kind)
    if kind == "position" and type(item) is int and item >= 0:
        return 1
    if kind == "block" and isinstance(item, list):
        return _counts(item, "position")
    if kind == "tree" and isinstance(item, dict):
        keys = set(item)
        if "sum" in keys and keys <= {"sum", "fmt", "stored"}:
            for name in keys - {"sum"}:
                _format(item[name])
            return _counts(item["sum"], "tree")
        for form, entry in (("instruction", "block"), ("fma", "position")):
            if form in keys and keys <= {form, "start"}:
                if "start" in keys and _run(item["start"]):
                    raise InputError("a chain begins with a chain or a sum")
                return _counts(item[form], entry) + (_count(item["start"], "tree") if "start" in keys else 0)
        raise InputError(f"a tree with the fields {shown(list(keys))} is not known")
    raise InputError(f"{shown(item, 40)} stands in place of a {kind}")


def _counts(items: Any, kind: str) -> int:
    if not isinstance(items, list) or not items:
        raise InputError(f"a list of {kind}s is missing, or empty")
    return sum(_count(item, kind) for item in items)


def _format(name: Any) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise InputError(f"{shown(name)} is no name of a format")
    return formats.get(name).name


def _tree(data: Any, shift: int) -> Tree:
    if "sum" in data:
        parts = tuple(_tree(part, by) for part, by in each(data["sum"], shift))
        return Sum(parts, _format(data.get("fmt")), _format(data.get("stored")))
    start = _tree(data["start"], shift) if "start" in data else None
    if "fma" in data:
        return Chain(tuple((k,) for k in positions(data["fma"], shift)), "fma", start)
    blocks = tuple(tuple(positions(block, by)) for block, by in each(data["instruction"], shift))
    return Chain(blocks, "instruction", start)
