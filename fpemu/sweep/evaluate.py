"""One cell of a grid: operands, the product by a scheme, and its errors against the exact product.

The keys of stored results hold a hash of this module's code, as of the numeric modules that it calls.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fpemu import inputs, metrics, reference, schemes
from fpemu.mma import KOrder
from fpemu.mma.device import Device


def evaluate(cell: Mapping[str, Any], device: Device = "cpu") -> dict[str, float]:
    """The metrics of one cell, by name.

    Parameters
    ----------
    cell : dict
        As in `fpemu.sweep.Grid.cells`: M, N, K, seed, inputs and its parameters ("inputs.exponent"), scheme and its
        options ("scheme.sb"), hardware (None for a scheme without a matrix instruction), parts of an order
        ("order.split"), on_range, out (format of the exact product) and metrics (a list of names).
    device : {"auto", "cpu", "cuda"}
        Where the product is computed, as in `fpemu.gemm`.

    Returns
    -------
    dict of float
        ``normwise`` also uses the operands; ``max_ulps`` counts in the format of the result, from the exact product
        rounded to that format, whatever ``out`` is.

    Raises
    ------
    InputError, GuaranteeError
        From the scheme, for operands outside its range.

    Notes
    -----
    Operands are drawn in the operand format of the scheme, fp32 or fp64; the last few pairs and their exact products
    are cached, since neighbouring cells share them.

    Examples
    --------
    >>> cell = {"M": 8, "N": 8, "K": 32, "seed": 0, "inputs": "uniform", "scheme": "sgemm", "hardware": None}
    >>> evaluate({**cell, "on_range": "raise", "out": "fp64", "metrics": ["relative_l2"]})["relative_l2"] < 1e-6
    True
    """
    options, order = part(cell, "scheme"), part(cell, "order")
    fmt = schemes.build(cell["scheme"], options).operand.name
    operands = (cell["inputs"], tuple(part(cell, "inputs").items()), cell["M"], cell["N"], cell["K"], cell["seed"], fmt)
    A, B = _operands(*operands)
    D = schemes.gemm(
        A,
        B,
        scheme=cell["scheme"],
        hardware=cell["hardware"],
        on_range=cell["on_range"],
        order=KOrder(**order) if order else None,
        device=device,
        **options,
    )
    errors = {}
    for name in cell["metrics"]:
        measure = metrics.get(name)
        exact = _exact(operands, fmt if measure is metrics.max_ulps else cell["out"], device)
        if measure is metrics.max_ulps:
            errors[name] = metrics.max_ulps(D, exact, fmt)
        elif measure is metrics.normwise:
            errors[name] = metrics.normwise(D, exact, A, B)
        else:
            errors[name] = measure(D, exact)
    return errors


def part(cell: Mapping[str, Any], of: str) -> dict[str, Any]:
    """The entries "of.name" of a cell, under "name".

    >>> part({"scheme": "h2sgemm", "scheme.sb": 12, "seed": 0}, "scheme")
    {'sb': 12}
    """
    return {name.removeprefix(f"{of}."): value for name, value in cell.items() if name.startswith(f"{of}.")}


@functools.lru_cache(maxsize=2)
def _operands(name: str, parameters: tuple[tuple[str, Any], ...], M: int, N: int, K: int, seed: int, fmt: str) -> Any:
    return inputs.operands(name, M, N, K, seed, fmt, **dict(parameters))


@functools.lru_cache(maxsize=4)
def _exact(operands: tuple[Any, ...], out: str, device: Device) -> Any:
    return reference.matmul(*_operands(*operands), out=out, device=device)
