"""The former name of `fpemu.roofline` and of the papers' performance models; it is removed in the next release."""

from __future__ import annotations

import warnings
from typing import Any

from fpemu import roofline as _roofline

_PAPERS = ("dgemm_tc", "h2sgemm", "legemm", "magma", "tsm2")


def __getattr__(name: str) -> Any:
    """Return a name of `fpemu.roofline` or a paper's ``experiments/<paper>/model.py``, with a warning."""
    if name in _PAPERS:
        from fpemu.reproduce import experiments

        target, value = f"experiments/{name}/model.py", experiments.model(name)
    elif name == "roofline":
        target, value = "fpemu.roofline", _roofline
    elif hasattr(_roofline, name) and not name.startswith("__"):  # an import reads __path__
        target, value = f"fpemu.roofline.{name}", getattr(_roofline, name)
    else:
        raise AttributeError(f"module 'fpemu.perfmodel' has no attribute {name!r}")
    warnings.warn(f"fpemu.perfmodel.{name} is now {target}", DeprecationWarning, stacklevel=2)
    return value
