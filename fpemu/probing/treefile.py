"""Orders and summation trees in files: JSON, in which 10^4 positions of an ordinary GEMM are a few lines.

What has a name is kept as its `KOrder`, what has none as its tree. A position is a number, "0..15" the positions from 0
to 15, a list one block of an instruction, and {"of": ..., "count": n, "step": s} a thing that comes n times, each time
s further on in k.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

from fpemu import files, formats
from fpemu.arguments import checked
from fpemu.errors import InputError
from fpemu.mma.order import KOrder
from fpemu.mma.tree import Chain, Sum, Tree, leaves
from fpemu.probing import runs
from fpemu.probing.reveal import Revealed

_KIND = "fpemu summation order"
_VERSION = 1
_MOST = 2**22  # positions; more is no product that was probed


@checked
def save(found: Revealed | KOrder | Tree, path: str | os.PathLike[str], **about: Any) -> None:
    """Write an order or a tree, whole or not at all.

    Parameters
    ----------
    found : Revealed, KOrder, Chain or Sum
        What `fpemu.probing.reveal` returned, or an order of your own.
    path : path-like
        Ends in .json.
    **about
        What else the file shall say, for people: `load` passes over it.

    Raises
    ------
    InputError
        Another ending, or a place where no file can be written.
    """
    name = os.fspath(path)
    if not name.endswith(".json"):
        raise InputError(f"{name}: an order is written as .json")
    files.check_writable(name)
    files.write_atomic(name, text(found, **about).encode())


def text(found: Revealed | KOrder | Tree, **about: Any) -> str:
    """What `save` writes."""
    record: dict[str, Any] = {"file": _KIND, "version": _VERSION}
    order: KOrder | Tree = found if not isinstance(found, Revealed) else found.order or found.tree
    if not isinstance(order, KOrder | Chain | Sum):
        raise InputError(f"an order is a KOrder, a tree or what reveal returned, not {type(found).__name__}")
    if isinstance(found, Revealed):
        record |= {"k": found.k, "probes": found.probes}
    elif not isinstance(order, KOrder):
        record["k"] = sum(1 for _ in leaves(order))
    if isinstance(order, KOrder):
        given = dataclasses.asdict(order)
        plain = {field.name: field.default for field in dataclasses.fields(KOrder)}
        record["order"] = {key: value for key, value in given.items() if value != plain[key]}
    else:
        try:
            record["tree"] = _written(runs.shorten(order))
        except RecursionError:
            raise InputError("the tree is nested too deep to be written down") from None
    if about:
        record["about"] = about
    return _laid_out(record)


@checked
def load(path: str | os.PathLike[str]) -> KOrder | Tree:
    """The order that a file holds; `fpemu.mma.gemm` takes it as its `order`.

    Raises
    ------
    InputError
        If the file holds no order, or a broken one.
    OSError
        If it cannot be read.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(KOrder(split=128, tile=64, residue_first=True), os.path.join(folder, "order.json"))
    ...     load(os.path.join(folder, "order.json"))
    KOrder(split=128, tile=64, residue_first=True, promote=None, join='ascending')
    """
    name = os.fspath(path)
    if Path(name).is_dir():
        raise InputError(f"{name} is a folder, not a file with an order")
    try:
        record = json.loads(Path(name).read_bytes())
        return _order(record)
    except (ValueError, TypeError, KeyError, RecursionError) as problem:  # an InputError is a ValueError
        what = str(problem) if isinstance(problem, InputError) else _reason(problem)
        raise InputError(f"{name}: no order of fpemu can be read from it ({what})") from None


def _reason(problem: Exception) -> str:
    if isinstance(problem, json.JSONDecodeError):
        return f"not JSON: {problem.msg} in line {problem.lineno}"
    if isinstance(problem, UnicodeDecodeError):
        return "not text"
    return "nested too deep" if isinstance(problem, RecursionError) else f"{type(problem).__name__}: {problem}"


def _order(record: Any) -> KOrder | Tree:
    if not isinstance(record, dict) or record.get("file") != _KIND:
        raise InputError(f'it is not marked as "{_KIND}"')
    if record.get("version") != _VERSION:
        raise InputError(f"its version is {record.get('version')!r}, this fpemu reads {_VERSION}")
    if ("order" in record) == ("tree" in record):
        raise InputError('either "order" or "tree" must be there')
    if "order" in record:
        given, known = record["order"], [field.name for field in dataclasses.fields(KOrder)]
        if not isinstance(given, dict) or not set(given) <= set(known):
            raise InputError(f'"order" has fields among {", ".join(known)}')
        return KOrder(**given)
    short = _read(record["tree"])
    if not isinstance(short, runs.ShortChain | runs.ShortSum):
        raise InputError("the tree is neither a chain nor a sum")
    tree = runs.lengthen(short)
    seen = sorted(leaves(tree))
    if seen != list(range(len(seen))):
        wrong = next(i for i, k in enumerate(seen) if i != k)
        raise InputError(f"each k from 0 must stand in the tree once: {wrong} does not")
    if record.get("k", len(seen)) != len(seen):
        raise InputError(f"k is {record['k']!r}, and the tree has {len(seen)} positions")
    return tree


def _written(thing: Any) -> Any:
    """A short form as JSON."""
    if isinstance(thing, int):
        return thing
    if isinstance(thing, runs.Run):
        if isinstance(thing.of, int) and thing.step == 1:
            return f"{thing.of}..{thing.of + thing.count - 1}"
        return {"of": _written(thing.of), "count": thing.count, "step": thing.step}
    if isinstance(thing, runs.Block):
        return [_written(k) for k in thing.positions]
    if isinstance(thing, runs.ShortSum):
        given = {"fmt": thing.fmt, "stored": thing.stored}
        return {"sum": [_written(part) for part in thing.parts], **{k: v for k, v in given.items() if v is not None}}
    found = {thing.kind: [_written(block) for block in thing.blocks]}
    return found if thing.start is None else {**found, "start": _written(thing.start)}


def _read(thing: Any) -> Any:
    """JSON as a short form; positions are counted before they are written out."""
    short = _short(thing)
    most = _size(short)
    if most > _MOST:
        raise InputError(f"it has {most} positions, more than {_MOST}")
    return short


def _short(thing: Any) -> Any:
    if type(thing) is int and thing >= 0:
        return thing
    if isinstance(thing, str):
        ends = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", thing)
        if ends is None or int(ends[1]) >= int(ends[2]):
            raise InputError(f"{thing!r} is no range of positions")
        return runs.Run(int(ends[1]), int(ends[2]) - int(ends[1]) + 1, 1)
    if isinstance(thing, list):
        return runs.Block(tuple(_some(thing, int)))
    if not isinstance(thing, dict):
        raise InputError(f"{str(thing)[:40]!r} stands where a position, a block, a chain or a sum should")
    keys = set(thing)
    if keys == {"of", "count", "step"}:
        if type(thing["count"]) is not int or thing["count"] < 1 or type(thing["step"]) is not int:
            raise InputError(f"a run has count = {thing['count']!r} and step = {thing['step']!r}")
        return runs.Run(_short(thing["of"]), thing["count"], thing["step"])
    if "sum" in keys and keys <= {"sum", "fmt", "stored"}:
        named = [None if thing.get(key) is None else formats.get(thing[key]).name for key in ("fmt", "stored")]
        return runs.ShortSum(tuple(_some(thing["sum"], runs.ShortChain, runs.ShortSum)), *named)
    for kind in ("instruction", "fma"):
        if kind in keys and keys <= {kind, "start"}:
            start = _short(thing["start"]) if "start" in thing else None
            if start is not None and not isinstance(start, runs.ShortChain | runs.ShortSum):
                raise InputError("a chain begins with a chain or a sum")
            blocks = tuple(_some(thing[kind], runs.Block if kind == "instruction" else int))
            return runs.ShortChain(kind, blocks, start)
    raise InputError(f"a thing with the fields {', '.join(sorted(map(str, keys)))[:80]} is not known")


def _some(things: Any, *kinds: type) -> list[Any]:
    """Things of the kinds, or runs of them; at least one."""
    if not isinstance(things, list) or not things:
        raise InputError("a list is missing, or empty")
    found = [_short(thing) for thing in things]
    for thing in found:
        while isinstance(thing, runs.Run):
            thing = thing.of
        if not isinstance(thing, kinds):
            raise InputError(f"a {type(thing).__name__} stands where {kinds[0].__name__} should")
    return found


def _size(thing: Any) -> int:
    if isinstance(thing, runs.Run):
        return thing.count * _size(thing.of)
    if isinstance(thing, runs.Block):
        return sum(map(_size, thing.positions))
    if isinstance(thing, runs.ShortSum):
        return sum(map(_size, thing.parts))
    if isinstance(thing, runs.ShortChain):
        return sum(map(_size, thing.blocks)) + (0 if thing.start is None else _size(thing.start))
    return 1


def _laid_out(record: dict[str, Any]) -> str:
    """JSON with a line for each field, and for each part of the tree's sum."""
    lines = []
    for key, value in record.items():
        parts = value.get("sum") if key == "tree" else None
        if parts is not None and len(parts) > 1:
            rest = "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items() if k != "sum")
            inner = ",\n  ".join(json.dumps(part, ensure_ascii=False) for part in parts)
            lines.append(f'"{key}": {{"sum": [\n  {inner}\n ]{rest}}}')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{" + ",\n ".join(lines) + "}\n"
