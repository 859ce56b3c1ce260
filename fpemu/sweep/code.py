"""The version of the code that a number comes from: part of the key under which it is stored.

The version is read from the files, while the numbers come from the modules in memory. Files that were changed
after this process loaded them are therefore an error.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fpemu.errors import InputError
from fpemu.files import sha256

_PACKAGE = Path(__file__).resolve().parents[1]
_NUMERIC = (
    *(f"{name}.py" for name in ("formats", "rounding", "sticky", "arrays", "parallel", "inputs")),
    *("exponential.py", "metrics", "mma", "simt", "batched", "schemes", "reference", "theory", "roofline"),
    *(f"library/{name}" for name in ("emulation.py", "tables.py", "openblas.py", "openblas_orders.py")),
    "library/data",
)
_SUFFIXES = (".py", ".toml", ".json", ".gz")
_DRAWING = ("plotting/__init__.py", "sweep/planes.py")


def running_version(evaluator: Path) -> str:
    """Return `code_version` of the code in memory.

    Raises
    ------
    InputError
        If one of its files was changed after this process loaded it.
    """
    for file in (*_numeric_files(), *_followed({evaluator: {"evaluate"}}, imports=True)):
        _check_unchanged(file)
    return code_version(evaluator)


def _check_unchanged(file: Path) -> None:
    if seen(file) != sha256(file):
        raise InputError(f"{file} was changed after this process loaded it: start the process (or kernel) again")


def code_version(evaluator: Path) -> str:
    """SHA-256 over the package's numeric modules and the function ``evaluate`` of a module with everything it reaches.

    The code is followed through the modules beside the evaluator and through the benchmarks. Comments, docstrings and
    layout are left out, and so is the code that only chooses or draws cells: a reworded caption keeps the stored
    results.
    """
    page = _text(_followed({evaluator: {"evaluate"}}, imports=True))
    return hashlib.sha256((_numeric_text() + page).encode()).hexdigest()


def extended(version: str, further: Iterable[Path]) -> str:
    """Return a version of code to which further files contribute; without such a file, the version itself.

    Raises
    ------
    InputError
        If one of the files was changed after this process loaded it.
    """
    from fpemu.schemes.base import registered_files

    _SEEN.update(registered_files)
    files = list(further)
    for file in files:
        _check_unchanged(file)
    return hashlib.sha256("".join([version, *map(seen, files)]).encode()).hexdigest() if files else version


def drawing_version(page: ModuleType) -> str:
    """SHA-256 over the code that draws a page's picture: its function ``draw`` and everything that ``draw`` reaches.

    The code is followed through the modules beside the page and through `_DRAWING`; comments, docstrings, layout, the
    annotations of functions and the names of local variables are left out. Other modules of the package are not
    followed: where ``draw`` calls them and their results change, the page's ``VERSION`` must be raised.
    """
    start = Path(page.__file__ or "").resolve()
    code = _followed({start: {"draw"}, _PACKAGE / "plotting" / "__init__.py": {"png", "style"}}, imports=False)
    return hashlib.sha256(_text(code, _fixed_names(code)).encode()).hexdigest()


def seen(file: Path) -> str:
    """Return the digest of a file when it was first seen, which is when it is loaded."""
    if file not in _SEEN:
        _SEEN[file] = sha256(file)
    return _SEEN[file]


def _numeric_files() -> Iterator[Path]:
    for entry in _NUMERIC:
        path = _PACKAGE / entry
        yield from sorted(f for f in path.rglob("*") if f.suffix in _SUFFIXES) if path.is_dir() else [path]


if not _PACKAGE.is_dir():
    raise InputError(f"{_PACKAGE} is in an archive: sweeps and figures hash fpemu's source files; install fpemu by pip")
_SEEN: dict[Path, str] = {file: sha256(file) for file in (*_numeric_files(), _PACKAGE / "sweep" / "evaluate.py")}


@functools.cache
def _numeric_text() -> str:
    """The numeric modules without docstrings; a table of data as it is, or the digest of a compressed one."""

    def content(file: Path) -> str:
        if file.suffix == ".py":
            return _written(_bare(_body(file)))
        return sha256(file) if file.suffix == ".gz" else file.read_text(encoding="utf-8")

    return "".join(f"{file.relative_to(_PACKAGE).as_posix()}\0{content(file)}\0" for file in _numeric_files())


# --- the statements that a function reaches
def _followed(start: dict[Path, set[str]], *, imports: bool) -> dict[Path, list[ast.stmt]]:
    """The top-level statements that define what the given names of each file use, through the modules that draw and
    those beside the file; with or without the import statements, the annotations of functions and the benchmarks."""
    wanted = {file: set(names) for file, names in start.items()}
    while True:
        code = {file: _reached(_body(file, imports), names, imports) for file, names in wanted.items()}
        before = {file: set(names) for file, names in wanted.items()}
        for file, body in code.items():
            for target, name in _imported(file, body, before[file], evaluation=imports):
                wanted.setdefault(target, set()).add(name)
        if wanted == before:
            return code


def _reached(body: list[ast.stmt], start: set[str], imports: bool) -> list[ast.stmt]:
    """The top-level statements of a file that define what ``start`` uses, directly or through one another."""
    wanted = set(start)
    reached = {id(s) for s in body if imports and isinstance(s, ast.Import | ast.ImportFrom)}
    count = -1
    while count < len(reached):
        count = len(reached)
        for statement in body:
            if id(statement) not in reached and _defined(statement) & wanted:
                reached.add(id(statement))
                wanted |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return [statement for statement in body if id(statement) in reached]


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement binds or changes; a compound one (if, for, with, try), all of those inside.

    An assignment to an entry or an attribute changes the variable; a statement that is an expression, such as
    ``TABLE.update(...)``, may change every variable in it.
    """
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            while isinstance(node, ast.Subscript | ast.Attribute):
                node = node.value
            names |= {node.id} if isinstance(node, ast.Name) else set()
        elif isinstance(node, ast.Expr):
            names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names


def _imported(file: Path, body: list[ast.stmt], wanted: set[str], evaluation: bool) -> Iterator[tuple[Path, str]]:
    """The functions and constants of the followed modules that statements of a file use.

    Those of the ``wanted`` names that the file itself imports count as used: another module imports them from it.
    """
    modules: dict[str, Path] = {}
    uses = [node for statement in body for node in ast.walk(statement)]
    names = {node.id for node in uses if isinstance(node, ast.Name)} | wanted
    for node in (node for statement in _body(file) for node in ast.walk(statement)):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            name = alias.asname or alias.name
            module, member = (_followed_file(file, node, name, evaluation) for name in ("", alias.name))
            if member is not None:
                modules[name] = member
            elif module is not None and alias.name == "*":
                yield from ((module, name) for name in names)
            elif module is not None and name in names:
                yield module, alias.name
    for node in uses:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def _followed_file(file: Path, node: ast.ImportFrom, member: str, evaluation: bool) -> Path | None:
    """The file of an imported module (or of its submodule ``member``) if its code is followed.

    The benchmarks, which read the records of speed, are followed from the code of an ``evaluation`` only.
    """
    path = "/".join(filter(None, [*(node.module or "").split("."), member]))
    if node.level:
        folder = file.parents[node.level - 1]
        return next((f for f in (folder / f"{path}.py", folder / path / "__init__.py") if f.is_file()), None)
    if evaluation and path.startswith("benchmarks/") and "benchmarks" in sys.modules:
        file = Path(sys.modules["benchmarks"].__path__[0]).resolve() / f"{path.removeprefix('benchmarks/')}.py"
        return file if file.is_file() else None
    name = f"{path.removeprefix('fpemu/')}.py"
    return _PACKAGE / name if path.startswith("fpemu/") and name in _DRAWING else None


# --- a syntax tree as text
def _text(code: dict[Path, list[ast.stmt]], fixed: Collection[str] | None = None) -> str:
    """The statements of each file; if `fixed` is given, with numbers for the other variables of functions."""
    texts = []
    for file, body in sorted(code.items()):
        statements = (_written(s, None if fixed is None else _variables(s, fixed)) for s in _bare(body))
        texts.append(f"{file.parent.name}/{file.name}\0[{','.join(statements)}]\0")
    return "".join(texts)


def _fixed_names(files: Iterable[Path]) -> set[str]:
    """The names of some files that a renamed variable of a function could collide with.

    These are the names of builtins, modules, module variables, functions and classes, the keywords of calls (a
    parameter of that name may be passed by keyword), and every other name in a syntax tree except attributes.
    """
    fixed = {name for name in dir(builtins) if not name.startswith("_")}  # doctest and IPython add `_`
    for file in files:
        for statement in _body(file):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    fixed |= set() if isinstance(statement, ast.FunctionDef) else {node.id}
                elif not isinstance(node, ast.arg | ast.Attribute):
                    values = [value for _, value in ast.iter_fields(node)]
                    fixed |= {
                        text for v in values for text in (v if isinstance(v, list) else [v]) if isinstance(text, str)
                    }
    return fixed


def _variables(statement: ast.stmt, fixed: Collection[str]) -> dict[str, str]:
    """The parameters and local variables of a top-level function, and their order of appearance as their new names."""
    nodes = list(ast.walk(statement))
    if not isinstance(statement, ast.FunctionDef) or any(isinstance(node, ast.ClassDef) for node in nodes):
        return {}
    bound = [node.arg for node in nodes if isinstance(node, ast.arg)]
    bound += [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {name: str(i) for i, name in enumerate(dict.fromkeys(bound)) if name not in fixed}


def _body(file: Path, annotated: bool = True) -> list[ast.stmt]:
    """The statements of a file, with or without the annotations of functions and of their variables."""
    return _parsed(file.read_text(encoding="utf-8"), annotated).body


@functools.cache
def _parsed(text: str, annotated: bool) -> ast.Module:
    tree = ast.parse(text)
    for node in () if annotated else ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
            for inner in ast.walk(node):
                if isinstance(inner, ast.AnnAssign):
                    inner.annotation = ast.Constant(None)
    return tree


def _bare(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without docstrings, their own and those of the functions and classes in them."""
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [item for item in node.body if not _is_text(item)]
    return [item for item in body if not _is_text(item)]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _written(part: Any, names: Mapping[str, str] | None = None) -> str:
    """A syntax tree as text, the same from every version of Python: `ast.dump` writes what is empty or not.

    Variables listed in `names` appear under their new names.
    """
    if isinstance(part, list):
        return f"[{','.join(_written(item, names) for item in part)}]"
    if not isinstance(part, ast.AST):
        return repr(part)
    fields = [(name, value) for name, value in ast.iter_fields(part) if value is not None and value != []]
    if isinstance(part, ast.JoinedStr):  # 3.12 puts an empty text into a nested format
        fields = [("values", [v for v in part.values if not (isinstance(v, ast.Constant) and v.value == "")])]
    if names and isinstance(part, ast.Name | ast.arg):
        fields = [(name, names.get(value, value) if isinstance(value, str) else value) for name, value in fields]
    return f"{type(part).__name__}({','.join(f'{name}={_written(value, names)}' for name, value in fields)})"
