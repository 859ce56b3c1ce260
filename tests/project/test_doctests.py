"""The examples in the docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from importlib.util import find_spec

import numpy as np
import pytest

import benchmarks
import fpemu

FOUND = [m.name for p in (fpemu, benchmarks) for m in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
MODULES = [
    name for name in FOUND if "__main__" not in name and (find_spec("torch") or not name.startswith("fpemu.torch."))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    with np.printoptions(legacy=False):
        result = doctest.testmod(module, extraglobs={"np": np, "fpemu": fpemu})
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    count = sum(len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name)))
    assert count > 50
