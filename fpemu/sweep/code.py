"""The version of the code that a number comes from: part of the key that it is stored under.

It is read from the files, while the numbers come from the modules in memory; so files that were changed since this
process began to sweep are refused.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from fpemu.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]
# what the numbers of a cell come from, besides the evaluator's own module
_NUMERIC = (
    "formats.py",
    "rounding.py",
    "sticky.py",
    "arrays.py",
    "parallel.py",
    "simt/__init__.py",
    "simt/chains.py",
    "metrics.py",
    "inputs.py",
    "exponential.py",
    "mma",
    "schemes",
    "reference",
)
# modules of the package that draw
_DRAWING = ("plotting.py", "sweep/planes.py")
# what stands in keys under the name that it had when they were first made, and what only passes its names on
_KNOWN_AS = {"simt/chains.py": "simt.py", "simt/__init__.py": None}
_TALL = ("simt/tiles.py", "simt/tsm2.py", "simt/ism2.py")
# and, for an evaluator that imports them at its top, of these
_ROOMS = {
    "theory": ("theory",),
    "roofline": ("roofline",),
    "batched": ("batched",),
    "simt.tsm2": _TALL,
    "simt.ism2": _TALL,
}


def running_version(evaluator: Path) -> str:
    """`code_version` of what runs here.

    Raises
    ------
    InputError
        If one of the files is not what it was when this process first saw it: what runs is the older code.
    """
    for file in (*_files(_NUMERIC), *_files(_rooms(evaluator)), evaluator):
        if seen(file) != _digest(file):
            raise InputError(f"{file} was changed after this process loaded it: start the process (or kernel) again")
    return code_version(evaluator)


def code_version(evaluator: Path) -> str:
    """SHA-256 over the code that computes: the package's numeric modules, those of `_ROOMS` that the evaluator's module
    imports, and in that module the function ``evaluate`` with everything it reaches there.

    Comments, docstrings and layout do not count, nor what only chooses or draws cells, so that rewording a caption does
    not throw hours of results away.
    """
    code = _text(_NUMERIC) + _meaning(evaluator, "evaluate").encode() + _text(_rooms(evaluator))
    return hashlib.sha256(code).hexdigest()


def drawing_version(page: ModuleType) -> str:
    """SHA-256 over the code that draws a page's picture: its function ``draw`` and everything that ``draw`` reaches.

    The code is followed through the modules beside the page and through `_DRAWING`; comments, docstrings and layout do
    not count. Other modules of the package are not followed: where ``draw`` calls them and their results change, the
    page's ``VERSION`` must be raised.
    """
    start = Path(page.__file__ or "").resolve()
    wanted: dict[Path, set[str]] = {start: {"draw"}, _PACKAGE / "plotting.py": {"png", "style"}}
    while True:
        code = {file: _reached(_tree(file).body, names, imports=False) for file, names in wanted.items()}
        before = {file: set(names) for file, names in wanted.items()}
        for file, body in code.items():
            for target, name in _imported(file, body):
                wanted.setdefault(target, set()).add(name)
        if wanted == before:
            break
    texts = (f"{file.parent.name}/{file.name}\0{_written(_bare(body))}\0" for file, body in sorted(code.items()))
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _imported(file: Path, body: list[ast.stmt]) -> Iterator[tuple[Path, str]]:
    """The functions and constants of other drawing modules that statements of a file use."""
    modules: dict[str, Path] = {}
    uses = [node for statement in body for node in ast.walk(statement)]
    names = {node.id for node in uses if isinstance(node, ast.Name)}
    for node in ast.walk(_tree(file)):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            called = alias.asname or alias.name
            module, member = _drawing_file(file, node), _drawing_file(file, node, alias.name)
            if member is not None:
                modules[called] = member
            elif module is not None and called in names:
                yield module, alias.name
    for node in uses:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def _drawing_file(file: Path, node: ast.ImportFrom, member: str = "") -> Path | None:
    """The file of an imported module (or of its submodule ``member``) if its code draws; else None."""
    path = "/".join(filter(None, [*(node.module or "").split("."), member]))
    if node.level:
        beside = file.parents[node.level - 1] / f"{path}.py"
        return beside if beside.is_file() else None
    name = f"{path.removeprefix('fpemu/')}.py"
    return _PACKAGE / name if path.startswith("fpemu/") and name in _DRAWING else None


def seen(file: Path) -> str:
    """Remember what a file holds now, when it is loaded; gives what it held when it was first seen."""
    return _SEEN.setdefault(file, _digest(file))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _files(entries: tuple[str, ...]) -> Iterator[Path]:
    for entry in entries:
        path = _PACKAGE / entry
        yield from sorted(f for f in path.rglob("*") if f.suffix in (".py", ".toml")) if path.is_dir() else [path]


def _rooms(evaluator: Path) -> tuple[str, ...]:
    """The files of those of `_ROOMS` that a module imports at its top."""
    named = set()
    for node in _tree(evaluator).body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
    wanted = [room for room in _ROOMS if any(f"{name}.".startswith(f"fpemu.{room}.") for name in named)]
    return tuple(dict.fromkeys(entry for room in wanted for entry in _ROOMS[room]))


if not _PACKAGE.is_dir():
    raise InputError(f"{_PACKAGE} is in an archive: sweeps and figures hash fpemu's source files; install fpemu by pip")
_SEEN: dict[Path, str] = {
    file: _digest(file) for file in (*_files((*_NUMERIC, *chain(*_ROOMS.values()))), _PACKAGE / "sweep" / "evaluate.py")
}


@functools.cache
def _text(entries: tuple[str, ...]) -> bytes:
    names = ((f, f.relative_to(_PACKAGE).as_posix()) for f in _files(entries))
    known = ((f, _KNOWN_AS.get(name, name)) for f, name in names)
    return "".join(f"{name}\0{_meaning(f)}\0" for f, name in known if name is not None).encode()


def _meaning(file: Path, reached_from: str | None = None) -> str:
    """A module's syntax tree as text, without docstrings; only the part that one of its functions reaches, if named.

    Another file, a table of data: its text.
    """
    if file.suffix != ".py":
        return file.read_text(encoding="utf-8")
    body = _tree(file).body
    return _written(ast.Module(_bare(body if reached_from is None else _reached(body, {reached_from})), []))


def _tree(file: Path) -> ast.Module:
    return _parsed(file.read_text(encoding="utf-8"))


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _bare(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without docstrings, their own and those of the functions and classes in them."""
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [item for item in node.body if not _is_text(item)]
    return [item for item in body if not _is_text(item)]


def _written(part: Any) -> str:
    """A syntax tree as text, the same from every version of Python: `ast.dump` writes what is empty or not."""
    if isinstance(part, list):
        return f"[{','.join(map(_written, part))}]"
    if not isinstance(part, ast.AST):
        return repr(part)
    fields = [(name, value) for name, value in ast.iter_fields(part) if value is not None and value != []]
    if isinstance(part, ast.JoinedStr):  # 3.12 puts an empty text into a nested format
        fields = [("values", [v for v in part.values if not (isinstance(v, ast.Constant) and v.value == "")])]
    return f"{type(part).__name__}({','.join(f'{name}={_written(value)}' for name, value in fields)})"


def _reached(body: list[ast.stmt], start: set[str], *, imports: bool = True) -> list[ast.stmt]:
    """The top-level statements that define what ``start`` uses, directly or through one another; the imports too."""
    defined = [(statement, _defines(statement)) for statement in body]
    wanted = set(start)
    reached = {id(s) for s in body if imports and isinstance(s, ast.Import | ast.ImportFrom)}
    grown = True
    while grown:
        grown = False
        for statement, names in defined:
            if id(statement) not in reached and names & wanted:
                reached.add(id(statement))
                wanted |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
                grown = True
    return [statement for statement in body if id(statement) in reached]


def _defines(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement binds; a compound one (if, for, with, try) binds all it assigns inside."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
