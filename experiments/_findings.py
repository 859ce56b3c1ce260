"""The sentences of a figure's record and of the ledger, from a table of quantities and their measured values."""

import re
from collections.abc import Iterable, Mapping
from typing import Any


def paragraph(*statements: tuple[Any, ...]) -> str:
    """Join statements to sentences.

    Parameters
    ----------
    *statements : tuple (quantity, value) or (quantity, value, format)
        The quantity in words; its value, in any form of `shown`, or a condition, which decides whether the words alone
        are a sentence; and the format of numbers. The value replaces "{}" in the words, or follows them after a colon.
        A statement without a value is left out.

    Returns
    -------
    str
        Empty without statements.

    Examples
    --------
    >>> paragraph(("errors are", {"chain": 2e-7, "pairs": [1e-8, 3e-8]}), ("it gains {}", 0.5, ".3g%"), ("so", False))
    'Errors are: chain 2e-07, pairs 1e-08 to 3e-08. It gains 50 %.'
    """
    texts = [(str(quantity), shown(value, *form)) for quantity, value, *form in statements]
    sentences = [
        quantity.replace("{}", text) if "{}" in quantity else f"{quantity}: {text}" if text else quantity
        for quantity, text in texts
        if text is not None
    ]
    return " ".join(f"{_capitalised(sentence)}." for sentence in sentences if sentence)


def shown(value: Any, form: str = ".3g") -> str | None:
    """Return a value in words: a number, a range, labelled values, or a condition.

    Parameters
    ----------
    value : number, str, bool, mapping, iterable or None
        An iterable of numbers is shown by its least and its largest, one of texts as a list. A condition is an empty
        text or None.
    form : str
        Format of a number with a unit behind it; "%" multiplies by 100.

    Returns
    -------
    str or None
        None where there is nothing to show.

    Examples
    --------
    >>> shown([1.0, 4.0, 2.0], ".3g×")
    '1 to 4×'
    """
    if value is None or isinstance(value, str):
        return value or None
    if type(value).__name__.startswith("bool"):  # NumPy's too
        return "" if value else None
    if isinstance(value, Mapping):
        texts = {label: text for label, item in value.items() if (text := shown(item, form))}
        nested = any(isinstance(item, Mapping) for item in value.values())
        separator = "; " if nested or any("," in f"{label}{text}" for label, text in texts.items()) else ", "
        return separator.join(f"{label}{':' * nested} {text}" for label, text in texts.items()) or None
    if isinstance(value, Iterable):
        items = list(value)
        if not items or isinstance(items[0], str):
            return ", ".join(items) or None
        ends = dict.fromkeys(_number(item, form) for item in (min(items), max(items)))
        return f"{' to '.join(ends)}{_unit(form)}"
    return f"{_number(value, form)}{_unit(form)}"


def _capitalised(sentence: str) -> str:
    """With a capital letter, unless the sentence starts with a symbol (k, sb) or a name (fpemu, mma.sync)."""
    word = re.match(r"(?!fpemu)(?:a|[aiot][a-z]|[bns]o|by|[a-z]{3,})(?![\w.])", sentence)
    return sentence[:1].upper() + sentence[1:] if word else sentence


def _number(value: Any, form: str) -> str:
    specification = re.match(r"[^a-z]*[a-z]", form)
    text = format(100 * value if form.endswith("%") else value, specification[0] if specification else "")
    return f"{float(text):.0f}" if "e+0" in text and value < 1e6 else text


def _unit(form: str) -> str:
    unit = re.sub(r"^[^a-z]*[a-z]", "", form)
    return " %" if unit == "%" else unit
