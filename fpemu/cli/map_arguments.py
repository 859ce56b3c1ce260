"""Parsers of the arguments of a map: ranges, sizes, seeds and names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fpemu.cli.common import parse_options
from fpemu.errors import InputError

if TYPE_CHECKING:
    from fpemu.schemes import Scheme
    from fpemu.sweep.grid import Number


def scale_option(scheme: Scheme) -> str:
    """The option of a scheme that scales its residual."""
    from fpemu import schemes

    def scales(one: Scheme) -> list[str]:
        return [option.name for option in one.info.options if option.name in ("sb", "residual_scale")]

    if not scales(scheme):
        able = ", ".join(name for name in schemes.names() if scales(schemes.get(name)))
        raise InputError(f"{scheme.name} does not scale a residual; the schemes that do: {able}")
    return scales(scheme)[0]


def parse_axis(flag: str, pairs: list[str]) -> tuple[str, list[Number], dict[str, Any]]:
    """The name of the option with several values, its values, and the other options."""
    from fpemu.sweep.grid import parse_range

    fixed, swept = {}, {}
    for pair in pairs:
        ((name, value),) = parse_options([pair]).items()
        if name in fixed or name in swept:
            raise InputError(f"{flag}: {name} is given twice")
        text = pair.partition("=")[2]
        if ":" in text or re.fullmatch(r"[-+0-9.eE^* ]*,[-+0-9.eE^*, ]*", text):
            swept[name] = parse_range(f"{flag} {name}", text)
        else:
            fixed[name] = value
    fixed |= {name: values[0] for name, values in swept.items() if len(values) == 1}
    several = [(name, values) for name, values in swept.items() if len(values) > 1]
    if len(several) != 1:
        what = f"has {' and '.join(name for name, _ in several)}" if several else "has no range of two values or more"
        raise InputError(f"{flag} {what}: a map has one axis from it, NAME=FIRST:LAST")
    return *several[0], fixed


def parse_integers(name: str, values: list[Number], least: int = 1) -> list[int]:
    """The values if they are integers, ``least`` of them or more."""
    for value in values:
        if not isinstance(value, int):
            raise InputError(f"{name} has {value}: integers are needed")
    if len(values) < least:
        raise InputError(f"{name} is one value, {values[0]}: an axis of a map needs two or more, FIRST:LAST")
    return [int(value) for value in values]


def parse_size(text: str) -> list[int]:
    """ "MxNxK" as three sizes."""
    parts = re.split(r"[x×]", text.strip())
    if len(parts) != 3 or not all(re.fullmatch(r"[0-9]{1,6}", part) and int(part) for part in parts):
        raise InputError(f"--size {text!r} is not MxNxK, three positive integers such as 48x48x512")
    return [int(part) for part in parts]


def parse_seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves."""
    from fpemu.sweep.grid import parse_range

    values = parse_integers("--seeds", parse_range("--seeds", text))
    if len(values) > 1 or "," in text or ":" in text:
        return values
    if not 1 <= values[0] <= 1000:
        raise InputError(f"--seeds {values[0]}: 1 to 1000 of them, or a list such as 0,5,7")
    return values[0]


def parse_metric(name: str) -> str:
    """The full name of an error measure."""
    from fpemu import metrics

    if name == "effective_bits":
        known = ", ".join(one for one in metrics.names() if one != name)
        raise InputError(f"--metric effective_bits grows as the error shrinks; a map is of an error: {known}")
    return metrics.get(name).__name__
