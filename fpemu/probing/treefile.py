"""Files of orders and summation trees: the JSON of `fpemu.mma.serialise`, with a header."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fpemu import files
from fpemu.arguments import checked
from fpemu.errors import InputError, shown
from fpemu.mma.order import KOrder
from fpemu.mma.serialise import TOO_DEEP, from_dict, to_dict
from fpemu.mma.tree import Tree, leaves, order_of
from fpemu.probing.reveal import Revealed

_KIND = "fpemu summation order"
_VERSION = 1


@checked
def save(order: Revealed | KOrder | Tree, path: str | os.PathLike[str], **about: Any) -> None:
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
    files.check_writable(name)
    record: dict[str, Any] = {"file": _KIND, "version": _VERSION}
    plain = order_of(order)
    assert plain is not None
    if isinstance(order, Revealed):
        record |= {"k": order.k, "probes": order.probes}
    elif not isinstance(plain, KOrder):
        record["k"] = sum(1 for _ in leaves(plain))
    data = record["order" if isinstance(plain, KOrder) else "tree"] = to_dict(plain)
    if about:
        record["about"] = about
    from_dict(data)  # raises an InputError for a tree that `load` could not read; Python 3.13 would write it
    try:
        files.write_atomic(name, _formatted(record).encode())
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    except (TypeError, ValueError) as problem:
        raise InputError(f"{name}: a remark is no JSON: {problem}") from None


@checked
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
        The file has no order, or a malformed one.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(KOrder(split=128, tile=64, residue_first=True), os.path.join(folder, "order.json"))
    ...     load(os.path.join(folder, "order.json"))
    KOrder(split=128, tile=64, residue_first=True)
    """
    name = os.fspath(path)
    if Path(name).is_dir():
        raise InputError(f"{name} is a folder, not a file with an order")
    text = Path(name).read_bytes()
    try:
        return _order(json.loads(text))
    except InputError as problem:
        reason = str(problem)
    except json.JSONDecodeError as problem:
        reason = f"not JSON: {problem.msg} in line {problem.lineno}"
    except UnicodeDecodeError:
        reason = "not text"
    except ValueError as problem:  # a number with thousands of digits
        reason = str(problem)
    except RecursionError:
        reason = TOO_DEEP
    raise InputError(f"{name}: no order of fpemu can be read from it ({reason})")


def _order(record: Any) -> KOrder | Tree:
    if not isinstance(record, dict) or record.get("file") != _KIND:
        raise InputError(f'it is not marked as "{_KIND}"')
    if record.get("version") != _VERSION:
        raise InputError(f"its version is {shown(record.get('version'))}, this fpemu reads {_VERSION}")
    if ("order" in record) == ("tree" in record):
        raise InputError('it needs either "order" or "tree"')
    if "order" in record:
        return KOrder.from_dict(record["order"])
    tree = from_dict(record["tree"])
    if isinstance(tree, KOrder):
        raise InputError("the tree is neither a chain nor a sum")
    positions = sorted(leaves(tree))
    if positions != list(range(len(positions))):
        wrong = next(i for i, k in enumerate(positions) if i != k)
        raise InputError(f"each k from 0 must occur in the tree once: {wrong} does not")
    if record.get("k", len(positions)) != len(positions):
        raise InputError(f"k is {shown(record['k'])}, and the tree has {len(positions)} positions")
    return tree


def _formatted(record: dict[str, Any]) -> str:
    """JSON with a line for each field, and for each part of the tree's sum."""
    lines = []
    for key, value in record.items():
        parts = value.get("sum") if key == "tree" else None
        if parts is not None and len(parts) > 1:
            rest = "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items() if k != "sum")
            inner = ",\n  ".join(json.dumps(part, ensure_ascii=False) for part in parts)
            lines.append(f'"{key}": {{"sum": [\n  {inner}\n ]{rest}}}')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}")
    return "{" + ",\n ".join(lines) + "}\n"
