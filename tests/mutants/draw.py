"""Draw mutants with a seeded generator: the drawn entries of ``mutants.json``, before their tests were chosen.

python tests/mutants/draw.py > drawn.json
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.mutants.mutants import ROOT, definitions, nodes

SEED = 41
SHARES = {
    "formats": 10,
    "rounding": 10,
    "sticky": 5,
    "mma": 36,
    "simt": 10,
    "schemes": 34,
    "reference": 9,
    "metrics": 8,
    "theory": 14,
    "conformance": 8,
    "library": 8,
    "sweep": 8,
}
# machinery without arithmetic, pictures, and the models of single papers
OMITTED = "code executors store cluster run device cache maps planes underflow residuals scaling enumeration bias steps"
_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult)  # a swapped shift or power fails at once
_MODES = {"RNE": "RZ", "RZ": "RNE", "RNA": "RNE", "RU": "RD", "RD": "RU", "ODD": "RZ"}
_ROUNDED = {"floor": "trunc", "trunc": "floor", "ceil": "floor", "rint": "trunc"}
_UNQUOTED = (ast.Constant, ast.Slice, ast.Starred, ast.arguments, ast.keyword, ast.comprehension)
_LONGEST = 110  # characters of the quoted code


def mutations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the faults of one node."""
    match node:
        case ast.Constant(value=str(mode)) if mode in _MODES:
            yield ast.Constant(_MODES[mode])
        case ast.Constant(value=int(x) | float(x)) if not isinstance(x, bool):
            yield from (ast.Constant(x + 1), ast.Constant(x - 1) if x else ast.UnaryOp(ast.USub(), ast.Constant(1)))
        case ast.Compare(left, [op], right) if type(op) in _COMPARED:
            yield ast.Compare(left, [_COMPARED[type(op)]()], right)
        case ast.BinOp(left, op, right) if isinstance(op, _ORDERED):
            yield ast.BinOp(right, op, left)
        case ast.Attribute(ast.Name("Rounding") as owner, mode) if mode in _MODES:
            yield ast.Attribute(owner, _MODES[mode], ast.Load())
        case ast.Attribute(ast.Name("np" | "math") as owner, name) if name in _ROUNDED:
            yield ast.Attribute(owner, _ROUNDED[name], ast.Load())


def faults(definition: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield (old, new) of a function: the smallest expression or line around a fault that occurs once in it."""
    parents = {child: node for node in nodes(definition) for child in ast.iter_child_nodes(node)}
    inside = [node for node in nodes(definition) if isinstance(node, ast.expr | ast.stmt)]
    number: dict[str, int] = {}
    for node in inside:
        number[ast.dump(node)] = number.get(ast.dump(node), 0) + 1
    for node in sorted(inside, key=lambda node: (node.lineno, node.col_offset, -(node.end_col_offset or 0))):
        path: list[Any] = [node]
        while path[-1] is not definition:
            path.append(parents[path[-1]])
        if any(isinstance(above, ast.Raise | ast.Assert | ast.arg | ast.JoinedStr) for above in path):
            continue
        quoted = [n for n, above in enumerate(path) if not isinstance(above, _UNQUOTED)]
        top = next((n for n in quoted if number.get(ast.dump(path[n])) == 1), None)
        # decorators and return types are outside of the function's arguments and statements
        body = {*definition.body, definition.args}
        if top is None or not body.intersection(path):
            continue
        for fault in mutations(node):
            old, new = ast.unparse(path[top]), ast.unparse(_exchanged(path[top], node, fault))
            if len(old) <= _LONGEST and old != new:
                yield old, new


def _exchanged(tree: ast.AST, node: ast.AST, fault: ast.AST) -> ast.AST:
    """A copy of a tree with one node exchanged."""

    def shallow(one: Any) -> Any:
        if one is node:
            return fault
        if not isinstance(one, ast.AST):
            return [shallow(item) for item in one] if isinstance(one, list) else one
        return type(one)(**{field: shallow(value) for field, value in ast.iter_fields(one)})

    return ast.fix_missing_locations(shallow(tree))


def draw() -> Iterator[dict[str, Any]]:
    """Yield the entries: at most two of a function, in a random order of functions and faults."""
    for group, share in SHARES.items():
        generator = random.Random(f"{SEED} {group}")
        folder = ROOT / "fpemu" / group
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        sites = []
        for path in files:
            if path.stem in OMITTED.split():
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for name, found in definitions(path).items():
                if len(found) == 1 and isinstance(found[0], ast.FunctionDef):
                    sites += [(f"{module}:{name}", old, new) for old, new in faults(found[0])]
        generator.shuffle(sites)
        chosen: list[tuple[str, str, str]] = []
        for site in sites:
            if len(chosen) < share and sum(site[0] == at for at, *_ in chosen) < 2:
                chosen.append(site)
        for number, (at, old, new) in enumerate(sorted(chosen), 1):
            yield {"id": f"{group}-{number:02}", "at": at, "old": old, "new": new, "tests": [], "origin": "drawn"}


if __name__ == "__main__":
    print("[\n" + ",\n".join(map(json.dumps, draw())) + "\n]")
