"""The bit-exact specification of a product, as frozen data, and its value: the emulated D = alpha A B + beta C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes, simt
from fpemu.arguments import _float64, keywords
from fpemu.errors import InputError, entries, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec, tree
from fpemu.mma.device import Backend, Device
from fpemu.mma.gemm import _chain
from fpemu.mma.tree import Tree
from fpemu.probing import trees
from fpemu.probing.callables import bits
from fpemu.rounding import Rounding, _round_to, mode_of
from fpemu.schemes import Scheme

Array = NDArray[Any]
Place = Literal["AB", "BA", "A'B", "AB'", "(AB)'", "A'B'"]
Flush = Literal["", "inputs", "result"]


@dataclass(frozen=True)
class Specification:
    """Specification of D = alpha A B + beta C, in every detail that affects its bits.

    Parameters
    ----------
    spec : MmaSpec or None
        The instruction (None: a scheme that uses none).
    scheme : Scheme or None
        None: a plain product on the instruction.
    order : KOrder or tree, optional
        Summation order over K. Default: one chain.
    alpha, beta : float
        Factors of the product and of C.
    out : str
        Format of D; where it is narrower than the accumulator's, the result is rounded to it once, to nearest.
    inputs : (format, mode) or None
        Format and rounding mode of a conversion of A and B before the product.
    place : {"AB", "BA", "A'B", "AB'", "(AB)'", "A'B'"}
        Operands of the product and their transposes.
    epilogue : str
        Use of alpha, beta and C: a key of `fpemu.conformance.specification.EPILOGUES`.
    rounding : str
        Rounding mode of the conversion to `out`.
    flush : {"", "inputs", "result"}
        Subnormal numbers that become zero.
    join, stored : str, optional
        Format of the reduction of split-K partial sums, and format to which only the partial sums are rounded before
        (a workspace).
    relu : bool
        Negative results become zero.
    length, nan : int, optional
        Length in k to which the operands are truncated; code of every NaN of D.
    on_range : str
        Overflow policy of a scheme.
    """

    spec: MmaSpec | None
    scheme: Scheme | None = None
    order: KOrder | Tree | None = None
    alpha: float = 1.0
    beta: float = 0.0
    out: str = "fp32"
    inputs: tuple[str, str] | None = None
    place: Place = "AB"
    epilogue: str = "separate"
    rounding: str = "RNE"
    flush: Flush = ""
    join: str | None = None
    stored: str | None = None
    relu: bool = False
    length: int | None = None
    nan: int | None = None
    on_range: str = "raise"

    def __post_init__(self) -> None:
        for name, known in (("place", get_args(Place)), ("flush", get_args(Flush)), ("epilogue", EPILOGUES)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name in ("alpha", "beta"):
            if not -np.inf <= getattr(self, name) <= np.inf:  # NaN compares false
                raise InputError(f"{name} = {getattr(self, name)} is no factor of a product")

    def change(self, **fields: Any) -> Specification:
        """A copy with some fields changed."""
        keywords("field of a specification", fields, self.__dataclass_fields__)
        return replace(self, **fields)

    @cached_property
    def is_integer(self) -> bool:
        """Whether it is a plain product of the integer instruction."""
        return self.scheme is None and self.spec is not None and self.spec.is_integer

    @property
    def operand(self) -> FloatFormat | str:
        """Format of A and B: of the scheme, or of the instruction."""
        if self.scheme is not None:
            return self.scheme.operand
        assert self.spec is not None
        return self.spec.a_format

    @property
    def accumulator(self) -> str:
        """Format of the product before its conversion to `out`."""
        if self.scheme is not None:
            return self.scheme.operand.name
        return "" if self.spec is None else str(self.spec.d_format)

    def __str__(self) -> str:
        instruction = "ordinary cores" if self.spec is None else self.spec.name
        parts = [instruction] if self.scheme is None else [_describe_scheme(self.scheme), instruction]
        parts.append(describe_order(self.order))
        if (self.alpha, self.beta) != (1.0, 0.0):
            parts.append(f"alpha = {self.alpha:g}, beta = {self.beta:g}")
        if self.inputs is not None:
            parts.append(f"A and B rounded to {self.inputs[0]} by {self.inputs[1]}")
        if self.spec is None or self.out != str(self.spec.d_format):
            parts.append(f"D in {self.out}")
        return ", ".join(parts)


def from_arguments(
    A: Array,
    A_format: str | None,
    D_format: str | None,
    *,
    scheme: str | Scheme | None,
    hardware: Any,
    order: Any,
    alpha: Any,
    beta: Any,
    fmt: str | None,
    out: str | None,
    accumulate: str | None,
    instruction: str | None,
    k: int | None,
    on_range: str,
    options: dict[str, Any],
) -> Specification:
    """The specification that the arguments of `verify` define.

    `A_format` and `D_format` are the formats that the dtypes of A and D define; without them and without `fmt`, A's
    NumPy dtype decides.
    """
    order = tree.order_of(order)
    if scheme is not None:
        if fmt is not None or accumulate is not None:
            wrong = "fmt=" if accumulate is None else "accumulate="
            raise InputError(f"{wrong} belongs to a plain product: a scheme defines its formats itself")
        if isinstance(order, tree.Chain | tree.Sum):
            raise InputError("a scheme takes a KOrder: a tree is an order of one plain product")
        options |= {name: v for name, v in (("instruction", instruction), ("k", k)) if v is not None}
        chosen = schemes.build(scheme, options)
        chosen.check_order(order, options)
        out = formats.get(out or chosen.operand).name
        return Specification(chosen.spec(hardware), chosen, order, alpha, beta, out, on_range=on_range)
    if options:
        named = ["scheme", "hardware", "order", "alpha", "beta", "device", "fmt", "out", "accumulate"]
        raise unknown_name("argument of verify", next(iter(options)), [*named, "instruction", "k"])
    if fmt is not None and isinstance(hardware, MmaSpec):
        inputs = [str(hardware.a_format), str(hardware.b_format)]
        name = fmt if hardware.is_integer else formats.get(fmt).name
        if inputs != [name, name]:
            raise InputError(f"fmt= is {name}, and hardware= is {hardware}, with A and B in {' and '.join(inputs)}")
    spec = plain_instruction(
        hardware, (A_format or _format_of(A.dtype)) if fmt is None else fmt, accumulate, instruction, k
    )
    d = str(spec.d_format)
    if spec.is_integer:
        if alpha != 1 or beta not in (0, 1) or out not in (None, "int32"):
            raise InputError("an int8 product has an int32 result, alpha = 1 and beta = 0 or 1")
        return Specification(spec, None, order, alpha, beta, d)
    narrow = d if D_format is None or formats.get(D_format).precision >= formats.get(d).precision else D_format
    out = formats.get(out or narrow).name
    if formats.get(out).precision > formats.get(d).precision:
        raise InputError(f"D in {out} is wider than the accumulator of {spec}, which is {d}")
    return Specification(spec, None, order, alpha, beta, out)


def plain_instruction(
    hardware: Any, fmt: str, accumulate: str | None = None, instruction: str | None = None, k: int | None = None
) -> MmaSpec:
    """The instruction of a plain product; FMAs of ordinary cores for fp32 and fp64 without a matrix instruction."""
    if isinstance(hardware, MmaSpec):
        if accumulate is not None and (hardware.is_integer or formats.get(accumulate) != hardware.d_format):
            raise InputError(f"accumulate= is {accumulate}, and hardware= is {hardware}, with {hardware.d_format}")
        if k is not None and k != hardware.k:
            raise InputError(f"k= is {k}, and hardware= is {hardware}, with k = {hardware.k}")
        if instruction is not None:
            raise InputError(f"instruction= is {instruction}, and hardware= is an instruction already: {hardware}")
        return hardware
    name = fmt if fmt in ("int8", "int32") else formats.get(fmt).name
    arch = hardware is not None and mma.catalog.architecture(hardware)
    has_format = arch and any(row.architecture == arch and str(row.a_format) == name for row in mma.catalog.rows())
    if name in ("fp32", "fp64") and instruction is None and not has_format:
        if accumulate is not None and formats.get(accumulate).name != name:
            raise InputError(
                f"accumulate= is {accumulate}, and a plain product in {name} is one of ordinary cores, which add in"
                f" {name}: fmt= gives another format of A and B"
            )
        if k is not None:
            raise InputError(
                f"k= is {k}, and a plain product in {name} is one of ordinary cores, which have no such length"
            )
        return simt.SPECS[name]
    if hardware is None:
        raise InputError(f"the specification of a product in {name} needs hardware=, such as 'H200' or 'ampere'")
    try:
        return mma.spec(hardware, name, accumulate, instruction, k)
    except InputError as problem:
        raise problem if has_format else InputError(f"{problem}; fmt= gives another format of A and B") from None


def with_input_rounding(specification: Specification, A: Array, B: Array) -> Specification:
    """The specification with A and B rounded to nearest, if they do not lie in a plain instruction's input format.

    tf32 is an exception: the instruction reads fp32 words and ignores their low 13 bits.
    """
    if specification.scheme is not None or specification.inputs is not None:
        return specification
    fmt = specification.operand
    if isinstance(fmt, str):
        for x, name in ((A, "A"), (B, "B")):
            if x.dtype.kind not in "iu":
                raise InputError(f"{name} has dtype {x.dtype}: the specification takes {fmt}")
        return specification
    if specification.spec is not None and specification.spec.b_format != fmt:
        for x, name, its in ((A, "A", fmt), (B, "B", formats.get(specification.spec.b_format))):
            if not its.contains(x).all():
                raise InputError(f"{name} has entries that are not values of {its}: {entries(~its.contains(x), x)}")
        return specification
    same = fmt.name in ("fp16", "fp32", "fp64", "tf32") and A.dtype == B.dtype == fmt.dtype
    if same or (fmt.contains(A).all() and fmt.contains(B).all()):
        return specification
    return specification.change(inputs=(fmt.name, "RNE"))


def _format_of(dtype: np.dtype[Any]) -> str:
    name = {"f2": "fp16", "f4": "fp32", "f8": "fp64", "i1": "int8"}.get(dtype.str[1:])
    if name is None:
        raise InputError(f"A has dtype {dtype}: give the format of A and B by fmt=")
    return name


def _describe_scheme(scheme: Scheme) -> str:
    """A scheme with the options that differ from the published ones."""
    changed = [(o.name, getattr(scheme, o.name)) for o in scheme.info.options if getattr(scheme, o.name) != o.default]
    chosen = [f"{name} = {','.join(value) if isinstance(value, tuple) else value}" for name, value in changed]
    return scheme.name + (f" with {', '.join(chosen)}" if chosen else "")


def describe_order(order: KOrder | Tree | None) -> str:
    """An order in words.

    Examples
    --------
    >>> describe_order(KOrder(split=128, tile=64, residue_first=True))
    'split in slices of 128, the residue of tiles of 64 first'
    """
    if order is None or order == KOrder():
        return "one chain"
    if not isinstance(order, KOrder):
        return "a tree: " + trees.text(order).splitlines()[0]
    parts = []
    if order.split is not None:
        parts.append(f"split in slices of {order.split}" + (f" joined {order.join}" * (order.join != "ascending")))
    if order.tile is not None:
        parts.append(f"the residue of tiles of {order.tile} first" if order.residue_first else f"tiles of {order.tile}")
    if order.promote is not None:
        parts.append(f"promoted every {order.promote}")
    return ", ".join(parts)


EPILOGUES = {
    "separate": "t = round(alpha T), D = round(t + round(beta C))",
    "fma": "D = fma(alpha, T, round(beta C))",
    "fma-c": "D = fma(beta, C, round(alpha T))",
    "first": "C starts the accumulator",
    "alpha-last": "D = round(alpha round(T + round(beta C)))",
    "alpha-on-A": "A is multiplied by alpha, in its own format, before the product",
    "half": "T is rounded to fp16, then alpha, beta and C enter in fp16",
    "rounded": "T is rounded to the format of D, then alpha, beta and C enter",
    "double": "alpha, beta and C enter in fp64, one rounding at the end",
    "no-alpha": "alpha is left out",
    "no-beta": "C is left out",
    "beta-1": "C is added without beta",
}
"""How alpha, beta and C enter a product T = A B in libraries and kernels."""


def evaluate(
    specification: Specification,
    A: Array,
    B: Array,
    C: Array | None = None,
    rows: Any = None,
    columns: Any = None,
    device: Device = "cpu",
    backend: Backend = "compiled",
) -> Array:
    """The specified D, or its given rows and columns, in the dtype of its format.

    A and B are values of the instruction's formats after `Specification.inputs`, and C of the accumulator's.

    Raises
    ------
    InputError
        Operands that a scheme does not admit.
    """
    s = specification
    if s.place == "BA":
        A, B = B, A
    A, B = (A.T if s.place[1] == "'" else A), (B.T if s.place in ("AB'", "A'B'") else B)
    A, B = A[:, : s.length], B[: s.length]
    rows, columns = (slice(None) if x is None else x for x in (rows, columns))
    transposed = s.place == "(AB)'"
    A, B = A[columns if transposed else rows], B[:, rows if transposed else columns]
    if s.inputs is not None:
        A, B = (_rounded(x, *s.inputs) for x in (A, B))
    if s.flush == "inputs":
        A, B = (_flushed(x, s.inputs[0] if s.inputs else s.operand) for x in (A, B))
    if C is not None:
        C = C[rows][:, columns].T if transposed else C[rows][:, columns]  # the transpose is that of A B alone
    with np.errstate(all="ignore"):
        D = _with_epilogue(s, A, B, C, device, backend)
        D = D.T if transposed else D
        if s.relu:
            D = np.where(D > 0, D, D.dtype.type(0))
        if s.is_integer:
            return np.asarray(D)
        dtype = formats.get(s.out).dtype
        if s.out != s.accumulator or s.rounding != "RNE" or D.dtype != dtype:  # some epilogues are in another format
            D = _rounded(D, s.out, s.rounding).astype(dtype)
        if s.flush == "result":
            D = _flushed(D, s.out)
    D = np.ascontiguousarray(D)
    if s.nan is not None:
        bits(D)[np.isnan(D)] = s.nan
    return D


def _product(s: Specification, A: Array, B: Array, C: Array | None, device: Device, backend: Backend) -> Array:
    """T = A B, with C in the accumulator of a plain product."""
    order: Any = s.order
    if s.scheme is not None:
        policy: Any = s.on_range
        return schemes.gemm(A, B, scheme=s.scheme, hardware=s.spec, order=order, on_range=policy, device=device)
    assert s.spec is not None
    if (s.join or s.stored) and isinstance(order, KOrder) and order.split is not None:
        sums = tree.from_order(order, A.shape[-1], s.spec)
        order = tree.Sum(sums.parts, s.join, s.stored) if isinstance(sums, tree.Sum) else sums
    return _chain([(A, B)], C, s.spec, order, None, backend, device)


def _with_epilogue(s: Specification, A: Array, B: Array, C: Array | None, device: Device, backend: Backend) -> Array:
    """alpha A B + beta C before the conversion to `out`."""
    if s.is_integer:
        return _product(s, A, B, None if C is None else C.astype(np.int32), device, backend)
    kind = s.epilogue
    if s.scheme is not None and kind == "separate":  # some schemes round the scaled sum only once
        factors: dict[str, Any] = {"alpha": s.alpha, "beta": s.beta, "order": s.order, "on_range": s.on_range}
        return schemes.gemm(A, B, C, scheme=s.scheme, hardware=s.spec, device=device, **factors)
    if kind == "alpha-on-A":
        A = _rounded(A.astype(np.float64) * s.alpha, s.operand)
    if kind == "first":
        if s.scheme is not None or C is None or s.alpha != 1:
            raise InputError("C can start the accumulator of a plain product with alpha = 1")
        return _product(s, A, B, _rounded(s.beta * C.astype(np.float64), s.accumulator), device, backend)
    T = _product(s, A, B, None, device, backend)
    if kind in ("half", "rounded"):
        T = _rounded(T, "fp16" if kind == "half" else s.out)
    if kind == "half":
        T = T.astype(np.float16)
    elif T.dtype == np.float16:
        T = T.astype(np.float32)  # the epilogue of an fp16 accumulator is in fp32
    number = T.dtype.type
    alpha = number(1 if kind in ("no-alpha", "alpha-on-A") else s.alpha)
    beta = number(1 if kind == "beta-1" else s.beta)
    c = None if C is None or kind == "no-beta" else C.astype(number)
    return np.asarray(_combined(kind, T, c, alpha, beta))


def _combined(kind: str, T: Array, c: Array | None, alpha: Any, beta: Any) -> Any:
    if kind == "double":
        wide = alpha.astype(np.float64) * T.astype(np.float64)
        return (wide if c is None else wide + beta.astype(np.float64) * c.astype(np.float64)).astype(T.dtype)
    if c is None:
        return T if alpha == 1 else alpha * T
    fmt = {2: "fp16", 4: "fp32", 8: "fp64"}[T.dtype.itemsize]
    if kind == "fma":
        return simt.fma(alpha, T, beta * c, fmt)
    if kind == "fma-c":
        return simt.fma(beta, c, alpha * T, fmt)
    if kind == "alpha-last":
        return alpha * (T + beta * c)
    return (T if alpha == 1 else alpha * T) + beta * c


def _rounded(x: Array, fmt: FloatFormat | str, mode: str = "RNE") -> Array:
    return _round_to(_float64(x, "x"), formats.get(fmt), Rounding.__members__.get(mode) or mode_of(mode))


def _flushed(x: Array, fmt: FloatFormat | str) -> Array:
    return np.where(np.abs(x) < formats.get(fmt).min_normal, np.copysign(x.dtype.type(0), x), x)
