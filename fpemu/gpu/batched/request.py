"""The options of a batched product on the GPU, checked, and the key of its kernels."""

from __future__ import annotations

from math import copysign
from typing import Any

from fpemu.arguments import choice as choice_of
from fpemu.batched import arguments, halfcomplex, layouts, scaling
from fpemu.errors import InputError
from fpemu.gpu.batched import choice
from fpemu.gpu.batched.call import Scaling
from fpemu.gpu.batched.configuration import Configuration, parse
from fpemu.gpu.batched.task import Task

_NUMBERS = (float, int, complex)


class Request:
    """The checked options of a product."""

    def __init__(
        self,
        layout: str | None = None,
        *,
        alpha: Any = 1.0,
        beta: Any = 0.0,
        transa: str = "N",
        transb: str = "N",
        accumulate: str = "fp32",
        kernel: str = "tensor",
        configuration: Any = None,
        products: int = 4,
        algorithm: str | None = "fused",
    ) -> None:
        if layout is not None:
            layouts.axis_of(layout)
            algorithm = halfcomplex.choose_algorithm(products, algorithm, default=halfcomplex.ALGORITHMS[layout])
        choice_of("kernel", kernel, arguments.KERNELS)
        fmt = arguments.arithmetic(kernel, accumulate, None if kernel == "magma-small" else "hopper", None).accumulator
        for name, letter in (("transa", transa), ("transb", transb)):
            choice_of(name, letter.upper() if isinstance(letter, str) else letter, arguments.TRANSPOSES)
        self.layout, self.kernel, self.algorithm, self.beta = layout, kernel, algorithm, beta
        self.transa, self.transb = transa.upper(), transb.upper()
        if layout is None:
            a, b = ((x, 0.0) for x in scaling.real_scalars(alpha, beta, fmt))
        else:
            a, b = scaling.complex_scalar(alpha, "alpha", fmt), scaling.complex_scalar(beta, "beta", fmt)
        self.scaling = Scaling((float(a[0]), float(a[1])), (float(b[0]), float(b[1])))
        if algorithm == "calls" and (self.scaling.alpha[1] or self.scaling.beta[1]):
            raise InputError(
                "algorithm='calls' is four calls of HGEMM, which scale by real numbers: alpha and beta "
                "must have no imaginary part"
            )
        fused = layout is not None and algorithm == "fused"
        conjugates = {"conjugate_a": fused and self.transa == "C", "conjugate_b": fused and self.transb == "C"}
        planar = fused and layout == "planar"
        self.arithmetic = Task(0, 0, 0, fused, planar, accumulate, products, **conjugates)
        self.configuration = parse(configuration) if isinstance(configuration, str) else configuration
        if not isinstance(self.configuration, Configuration | None):
            raise InputError(f"configuration is a {type(configuration).__name__}: give a Block, Warp, ... or its text")
        small = kernel == "magma-small"
        if self.configuration is not None and small != (self.configuration.kind == "small"):
            raise InputError(f"configuration is of kind {self.configuration.kind!r}, and kernel is {kernel!r}")

    @property
    def has_c(self) -> bool:
        return self.scaling.beta != (0.0, 0.0)

    @property
    def choose(self) -> Any:
        """The configuration, or the function that chooses it."""
        return self.configuration or (lambda task, batch: choice.choose(task, batch, self.kernel))


def key_of(layout: Any, alpha: Any, beta: Any, *request: Any) -> Any:
    """What the kernels of a product depend on; None for scalars that are NaN, or not numbers of Python."""
    if alpha.__class__ not in _NUMBERS or beta.__class__ not in _NUMBERS or alpha != alpha or beta != beta:
        return None
    if alpha and alpha.__class__ is not complex and beta.__class__ is not complex:
        return layout, alpha, beta, *request
    parts = [part for x in (alpha, beta) for part in (x.real, x.imag)]
    signs = [copysign(1.0, part) if part.__class__ is float else part < 0 for part in parts]  # 0.0 == -0.0
    return layout, alpha, beta, (alpha.__class__, beta.__class__, *signs), *request
