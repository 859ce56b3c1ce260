"""Every public name has a complete docstring in NumPy style; `make lint` runs these tests too.

numpydoc checks them with the list in pyproject.toml, ``[tool.numpydoc_validation]``. Two rules differ: the fields of a
dataclass may be documented as Attributes, for results that a user does not construct; and the summary of a function
begins with one of the imperatives below.
"""

from __future__ import annotations

import importlib
import inspect
import tomllib
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest
from numpydoc.docscrape import ClassDoc
from numpydoc.validate import validate

import fpemu
from tests.project.test_project import _public_names

CHECKS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CHECKS = CHECKS["tool"]["numpydoc_validation"]["checks"]
IMPERATIVES = {
    "Accumulate",
    "Add",
    "Assert",
    "Compare",
    "Convert",
    "Count",
    "Create",
    "Describe",
    "Draw",
    "Emulate",
    "Evaluate",
    "Execute",
    "Find",
    "Format",
    "Issue",
    "Load",
    "Minimise",
    "Raise",
    "Read",
    "Release",
    "Return",
    "Round",
    "Run",
    "Save",
    "Split",
    "Verify",
    "Write",
    "Yield",
}


def public():
    """The public callables: names in ``__all__``, or defined in a public module without it."""
    modules = ["fpemu"]
    while modules:
        module = importlib.import_module(modules.pop())
        listed = getattr(module, "__all__", None)
        for name in listed or [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]:
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                modules.append(value.__name__)
            elif callable(value) and not name.startswith("_"):
                yield f"{module.__name__}.{name}", value
        if module is fpemu:
            modules += ["fpemu.gpu.batched", "fpemu.gpu.tallskinny", "fpemu.advice"]


def listed():
    """The callables of `public` and those that ARCHITECTURE.md and README list, by the name of their definition."""
    values = [value for _, value in public()]
    for paths in _public_names():
        for path in paths:
            module, _, name = path.rpartition(".")
            try:
                values.append(getattr(importlib.import_module(module), name))
            except (ImportError, AttributeError):  # a module, a method, or another of the paths
                continue
    named = {f"{v.__module__}.{v.__qualname__}": v for v in values if callable(v) and hasattr(v, "__qualname__")}
    return {name: value for name, value in sorted(named.items()) if name.startswith("fpemu.")}


LISTED = listed()


def problems(name, value):
    """What the docstring lacks, in numpydoc's words."""
    errors = dict(error for error in validate(name)["errors"] if error[0] in CHECKS)
    if inspect.isclass(value):
        documented = {p.name for section in ("Parameters", "Attributes") for p in ClassDoc(value)[section]}
        documented = {part.strip() for names in documented for part in names.split(",")}
        if issubclass(value, Enum) or set(getattr(value, "__dataclass_fields__", [None])) <= documented:
            errors.pop("PR01", None)
    elif (verb := (value.__doc__ or "-").split()[0]) not in IMPERATIVES:
        errors["imperative"] = f"The summary begins with {verb!r}: begin with a verb in the imperative"
    return list(errors.values())


@pytest.mark.filterwarnings("ignore:Unknown section")
@pytest.mark.parametrize("name", LISTED)
def test_the_docstring_is_complete(name):
    assert problems(name, LISTED[name]) == []


def test_there_are_public_names():
    assert len(LISTED) > 165


def incomplete(first, second=None):
    """Not an imperative.

    Parameters
    ----------
    third : int
    """
    return first


def test_an_incomplete_docstring_is_reported(monkeypatch):
    incomplete.__module__ = __name__
    found = problems(f"{__name__}.incomplete", incomplete)
    assert any("'Not'" in text for text in found)
    assert any("not documented" in text for text in found)
    assert any("Unknown parameters" in text for text in found)
    assert any("No Returns" in text for text in found)
