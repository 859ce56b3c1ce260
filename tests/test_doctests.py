"""The examples in the docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import fpemu

MODULES = [m.name for m in pkgutil.walk_packages(fpemu.__path__, "fpemu.") if "__main__" not in m.name]


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
