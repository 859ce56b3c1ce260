"""Compile-time constants of the kernels, as the C++ struct that precedes a kernel's text."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["struct"]


def struct(values: Mapping[str, bool | int | float], name: str = "Config") -> str:
    """Return a C++ struct with one static constexpr member for each value.

    Parameters
    ----------
    values : mapping of str to bool, int or float
        Members by name, in their order; a Python float becomes a C++ float.
    name : str
        Name of the struct.

    Examples
    --------
    >>> print(struct({"STAGES": 4, "EXACT": True, "SCALE": 2.0**-11}))
    struct Config {
      static constexpr int STAGES = 4;
      static constexpr bool EXACT = true;
      static constexpr float SCALE = 0.00048828125f;
    };
    """
    return "\n".join([f"struct {name} {{", *(f"  static constexpr {_member(*item)};" for item in values.items()), "};"])


def _member(name: str, value: bool | int | float) -> str:
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    return f"float {name} = {value!r}f" if isinstance(value, float) else f"int {name} = {value}"
