"""The list of mutants: faults planted one at a time in fpemu, each of which the named tests have to catch.

A mutant replaces one expression or statement of one definition. Its entry in ``mutants.json`` names the definition by
module and qualified name and quotes the code before and after, without line numbers, so that a moved definition is
found again.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.json")
_FOLDERS = ("fpemu", "experiments")  # definitions may move from the first to the second


class NotFoundError(Exception):
    """A mutant whose definition, or the code in it, is not in the tree exactly once."""


@dataclass(frozen=True)
class Mutant:
    """One planted fault.

    Parameters
    ----------
    id : str
        Name of the mutant, unique and permanent.
    at : str
        ``module:qualified.name`` of a function, method, class or module-level variable.
    old, new : str
        An expression or statement that occurs once in the definition, and its replacement. Spacing, parentheses and
        line breaks are free.
    tests : tuple of str
        Test files that have to catch the fault; ``file::test`` where a kernel is compiled anew for every other test.
    origin : {"drawn", "hand"}
        Whether the generator or a person chose it.
    equivalent : str
        Why no test can catch it; empty for all others.
    gone : str
        Why fpemu no longer contains the code, so that the mutant is not run; empty for all others.
    """

    id: str
    at: str
    old: str
    new: str
    tests: tuple[str, ...]
    origin: str
    equivalent: str = ""
    gone: str = ""

    @property
    def runs(self) -> bool:
        """Whether tests have to catch it."""
        return not (self.equivalent or self.gone)

    @property
    def group(self) -> str:
        """The subpackage or module of fpemu."""
        return self.at.partition(":")[0].split(".")[1]


def read(path: Path = LIST) -> list[Mutant]:
    """Return the mutants of a list, in its order."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def write(mutants: list[Mutant], path: Path = LIST) -> None:
    """Write a list with one mutant a line, so that a merge conflict touches one mutant."""
    lines = (json.dumps({k: v for k, v in vars(m).items() if v}, ensure_ascii=False) for m in mutants)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


@cache
def apply(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str]:
    """Return the file of a mutant's definition and the file's text with the fault.

    Raises
    ------
    NotFoundError
        No definition of this qualified name, with or without a leading underscore, contains the old code exactly once,
        or several do. The named module is searched first and the whole package otherwise.
    """
    module, _, name = mutant.at.partition(":")
    parts = root.joinpath(*module.split("."))
    named = [path for path in (parts.with_suffix(".py"), parts / "__init__.py") if path.is_file()]
    seen = []
    for paths in (named, sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*.py"))):
        hits = []
        for path in paths:
            for definition in [one for form in _forms(name) for one in definitions(path).get(form, [])]:
                found = list(_matches(definition, mutant.old))
                seen.append(f"{len(found)} times in {path.relative_to(root)}")
                hits += [(path, node) for node in found] if len(found) == 1 else []
        if len(hits) == 1:
            path, node = hits[0]
            return path, _replaced(path.read_bytes(), node, mutant.new)
        if hits:
            break
    places = f"it occurs {', '.join(sorted(set(seen)))}" if seen else f"nothing there is named {name}"
    raise NotFoundError(
        f"mutant {mutant.id}: looked in {module} and then in {' and '.join(_FOLDERS)} for {name} with {mutant.old!r} "
        f"exactly once: {places}. After a move or a change of this code, correct `at` and `old` in {LIST.name}; if the "
        f"code was deleted, state why in `gone`"
    )


def _forms(name: str) -> tuple[str, str]:
    """A name, and the name of its unchecked form: `round_to` and `_round_to` share what was one definition."""
    scope, dot, last = name.rpartition(".")
    return name, scope + dot + (last[1:] if last.startswith("_") else f"_{last}")


@cache
def definitions(path: Path) -> dict[str, list[ast.stmt]]:
    """Functions, classes and assigned variables of a file by qualified name; those inside functions excepted."""
    result: dict[str, list[ast.stmt]] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                result.setdefault(prefix + node.name, []).append(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    result.setdefault(prefix + ast.unparse(target), []).append(node)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(path.read_bytes()).body, "")
    return result


def nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a definition, except inside f-strings, whose positions Python 3.11 misstates."""
    stack = [definition]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.JoinedStr):
            stack.extend(ast.iter_child_nodes(node))


def _matches(definition: ast.AST, code: str) -> Iterator[ast.expr | ast.stmt]:
    parsed = _parsed(code)
    wanted = ast.dump(parsed)
    for node in nodes(definition):
        if isinstance(node, ast.expr | ast.stmt) and type(node) is type(parsed) and ast.dump(node) == wanted:
            yield node


def _parsed(code: str) -> ast.expr | ast.stmt:
    """An expression, or else a statement."""
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _replaced(source: bytes, node: ast.expr | ast.stmt, new: str) -> str:
    """The source with a node replaced; parentheses keep the precedence of an expression."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    # columns of ast count bytes of UTF-8
    first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    text = f"({new})" if isinstance(node, ast.expr) else new
    if ast.dump(_parsed(new)) == ast.dump(node):
        raise ValueError(f"{new!r} changes nothing")
    return (source[:first] + text.encode() + source[last:]).decode()
