"""The options of a call as one string, a literal of Python, and what follows from them.

A call's options are one string so that an operator's schema is the same for every scheme, and a traced graph holds all
that a product depends on.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fpemu import schemes
from fpemu.batched import scaling
from fpemu.errors import InputError, shown
from fpemu.formats import FP64
from fpemu.gpu.gemm.choice import NoKernelError, find
from fpemu.mma.order import KOrder
from fpemu.mma.serialise import from_dict, to_dict
from fpemu.mma.tree import order_of
from fpemu.schemes.base import build, scalar
from fpemu.schemes.call import configure
from fpemu.schemes.words import OverflowPolicy

DEFAULT_GPU = "H200"
"""The GPU that is emulated for tensors of the CPU"""
_PLAIN = (str, int, float, bool, tuple, list, type(None))
_OF_THE_CALL = ("on_range", "order", "hardware", "algorithm")  # all others are of the scheme


def request(scheme: Any, options: dict[str, Any]) -> tuple[str, str]:
    """Return the name of a scheme, and its options with those of the call as a literal."""
    if isinstance(scheme, str):
        return scheme, literal(options)
    chosen = schemes.get(scheme)
    defaults = {option.name: option.default for option in chosen.info.options}
    own = {name: getattr(chosen, name) for name in defaults if getattr(chosen, name) != defaults[name]}
    return chosen.name, literal(own | options)  # an option of the call replaces the scheme's


def literal(options: dict[str, Any]) -> str:
    """Return options as a literal of Python that `read` evaluates, without those of the call that are None."""
    if not options:
        return ""
    items = [
        f"{name!r}: {_plain(name, value)!r}"
        for name, value in options.items()
        if value is not None or name not in _OF_THE_CALL
    ]
    return "{" + ", ".join(items) + "}" if items else ""


def _plain(name: str, value: Any) -> Any:
    """A value whose text is a literal."""
    if value.__class__ in _PLAIN:
        return value
    if name == "order":
        return to_dict(order_of(value))
    value = value.item() if isinstance(value, np.generic) else getattr(value, "value", value)
    if value.__class__ not in _PLAIN:
        raise InputError(f"{name} = {shown(value)} is no number, string or tuple")
    return value


@lru_cache(maxsize=1024)
def read(text: str) -> dict[str, Any]:
    """Return the options of a literal, which must not be changed."""
    if not text:
        return {}
    try:
        options = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise InputError(f"options = {shown(text)} is no literal of Python: pass numbers, strings and tuples") from None
    if not isinstance(options, dict):
        raise InputError(f"options = {shown(text)} must be a dict by name")
    if "order" in options:
        options["order"] = from_dict(options["order"])
    return options


def real(value: Any, name: str) -> float:
    """Return alpha or beta as a float."""
    if isinstance(value, float):
        return float(value)  # the kernels' records compare classes, and NumPy's float64 is a subclass
    return float(value if type(value) is int else scalar(value, name, FP64))


def real_or_complex(value: Any, name: str) -> float | complex:
    """Return alpha or beta of half-complex matrices as a float or a complex number."""
    if isinstance(value, float | complex):
        return float(value) if isinstance(value, float) else complex(value)
    re, im = scaling.complex_scalar(value, name, FP64)
    return complex(re, im) if im else float(re)


@lru_cache(maxsize=1024)
def kernel_order(scheme: str, options: str, M: int, N: int, K: int) -> KOrder | None:
    """Return the order over K of the kernel that runs a product on a GPU; None: the scheme's."""
    given = {"hardware": DEFAULT_GPU} | read(options)
    hardware, order = given.pop("hardware"), given.pop("order", None)
    given.pop("on_range", None)
    chosen = configure(scheme, hardware, OverflowPolicy.PROPAGATE, order, given)
    if order is not None or chosen.spec is None or chosen.scheme.error_free or min(M, N, K) < 1:
        return order
    try:
        return find(chosen.scheme, chosen.spec, (M, N, K), None).order
    except NoKernelError:
        return None


@torch.compiler.assume_constant_result
def dtype(scheme: str, options: str) -> torch.dtype:
    """Return the dtype of a scheme's operands and result."""
    return _dtype(scheme, options)


@lru_cache(maxsize=256)
def _dtype(scheme: str, options: str) -> torch.dtype:
    chosen = build(scheme, {name: value for name, value in read(options).items() if name not in _OF_THE_CALL})
    return getattr(torch, chosen.operand.dtype.name)
