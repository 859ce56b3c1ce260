"""Who is measured by which of the package's kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fpemu.gpu.kernel import Kernel
from fpemu.gpu.matrices import Matrix


@dataclass(frozen=True)
class Contender:
    """Somebody to measure.

    Parameters
    ----------
    name : str
    scheme : str or None
        Of `fpemu.schemes`, or "strassen"; None: the library.
    options : mapping
        Of the scheme.
    hints : mapping
        What the kernel is told beside: its tile, whether loads overlap with products.
    operand : {"fp32", "fp64"}
    """

    name: str
    scheme: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    operand: str = "fp32"


@dataclass(eq=False)
class Ready:
    """A contender with its operands: what is queued again and again.

    Parameters
    ----------
    split : callable or None
        Queues what makes the words of A and B; None: there are none, or they are made by `multiply`.
    multiply : callable
        Queues the product of what `split` made.
    D : Matrix
        Where it goes.
    about : dict
        What the record says of it.
    emulate : callable or None
        The same product of other operands by the emulator, bit for bit.
    parts : callable or None
        Seconds of the parts of one product, by name, where they can be told apart, and their numbers.
    """

    split: Callable[[], None] | None
    multiply: Callable[[], None]
    D: Matrix
    about: dict[str, Any]
    emulate: Callable[[Any, Any], Any] | None = None
    parts: Callable[[], dict[str, float]] | None = None

    def both(self) -> None:
        """Queue the split and the product."""
        if self.split is not None:
            self.split()
        self.multiply()


class MissingKernelError(Exception):
    """There is no such kernel here; the text says why."""


def scheme(who: Contender) -> Any:
    """A contender's scheme with its options."""
    from fpemu import schemes
    from fpemu.schemes.strassen import Strassen

    given = Strassen if who.scheme == Strassen.info.name else who.scheme  # that one is in no registry
    return given(**who.options) if isinstance(given, type) else schemes.build(given or "", dict(who.options))


def kernel(chosen: Any, hints: Mapping[str, Any], shape: tuple[int, int, int]) -> Kernel:
    """The fastest kernel for a product (M, N, K), or with hints the one that they describe.

    Parameters
    ----------
    chosen : Scheme
    hints : mapping
        "mma", a kernel of `fpemu.gpu.tensorcores.fused`; its "tile", rows and columns, "pipeline" and "words".
    shape : (M, N, K)

    Raises
    ------
    MissingKernelError
        If there is none.
    """
    from fpemu.gpu import choice

    spec = chosen.spec(choice.architecture()) if chosen.needs_hardware else None
    if not hints:
        try:
            return choice.find.__wrapped__(chosen, spec, shape, None)  # one of its own: not kept for other calls
        except choice.NoKernelError as problem:
            raise MissingKernelError(str(problem)) from problem
    from fpemu.gpu.tensorcores import fused

    found = fused.kernel(chosen, spec, shape, None, **_told(chosen, spec, shape, hints))
    if found is None:
        raise MissingKernelError(f"tensorcores: not for {chosen.name}")
    return found


def _told(scheme: Any, spec: Any, shape: tuple[int, int, int], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The hints as the kernel of `fpemu.gpu.tensorcores.fused` takes them."""
    told = {name: value for name, value in hints.items() if name != "mma"}
    if "tile" not in told:
        return told
    from fpemu.gpu.tensorcores import fused, source

    row = fused.stand_in(spec)
    how = None if row is None else source.fused(scheme.plan(), row, None, shape[2])
    known = [] if row is None or how is None else fused.tiles(scheme, row, how)
    fitting = [tile for tile in known if told["tile"] == (tile.M, tile.N)]
    if not fitting:
        raise MissingKernelError(f"no tile of {told['tile']} for {scheme.name}, but {', '.join(map(str, known))}")
    return {**told, "tile": fitting[0]}


def error_free(scheme: Any, A: Matrix, B: Matrix, D: Matrix) -> Ready:
    """A scheme of the Ozaki family: split, products and sums in one call, since the operands say how many there are.

    Raises
    ------
    MissingKernelError
        If its kernels are not here.
    """
    from fpemu.gpu.choice import architecture

    try:
        family: Any = importlib.import_module("fpemu.gpu.errorfree.gemm")
    except ImportError as problem:
        raise MissingKernelError(f"errorfree: {problem}") from problem
    spec = scheme.spec(architecture())

    def multiply() -> None:
        family.gemm(A, B, D, scheme, spec, 1.0, 0.0, None, None)

    def parts() -> dict[str, float]:
        from fpemu.gpu.bench.parts import measure

        return measure(A, B, D, scheme, spec)

    return Ready(None, multiply, D, {"kernel": "errorfree"}, None, parts)


def products(kernel: Kernel) -> int | None:
    """How many products of words the kernel adds up."""
    plan = getattr(kernel.scheme, "plan", None)
    return len(plan().products) if callable(plan) else None


def sources(shape: tuple[int, int, int], who: Contender) -> list[str]:
    """What the kernels of a contender will compile for operands stored by rows: products and splits."""
    from fpemu.gpu import splitting
    from fpemu.gpu.hopper import schedules, splits, staged_int8, strassen, words
    from fpemu.gpu.tensorcores import fused, operation

    made: Any = kernel(scheme(who), who.hints, shape)
    found = []
    if isinstance(made, strassen.StrassenKernel):
        found, made = [strassen.source(made.levels)], made.inner
    if isinstance(made, words.Hopper):
        found.append(schedules.source(made.schedule, made.tile))
    elif isinstance(made, staged_int8.FrontierKernel):
        tile = made.tile
        found.append(staged_int8.source(tile.columns, tile.cluster, made.per, bool(made.exact)))
    elif isinstance(made, fused.FusedKernel):
        M, N, K = shape
        A, B = (Matrix(1 << 20, np.dtype(np.float32), size, (size[1], 1)) for size in ((M, K), (K, N)))
        scaled = bool(getattr(made.scheme, "scales_rows", False))
        text = made.source((operation.layout(A, "A"), operation.layout(B, "B")), scaled, False)
        return [text, splitting.source(made.scheme.rules())]
    return [*found, *(kind.source() for kind in splits.KINDS.values())]
