"""The former name of `fpemu.roofline`; it is removed in the next release."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from fpemu import roofline

_RENAMED = {"roofline": "times"}


def __getattr__(name: str) -> Any:
    """Return a name of `fpemu.roofline`, with a warning."""
    warnings.warn("fpemu.perfmodel is fpemu.roofline now", DeprecationWarning, stacklevel=2)
    if hasattr(roofline, name):
        return getattr(roofline, name)
    try:
        return importlib.import_module(f"fpemu.roofline.{_RENAMED.get(name, name)}")
    except ImportError:
        raise AttributeError(f"module 'fpemu.perfmodel' has no attribute {name!r}") from None
