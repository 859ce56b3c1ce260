"""The specification of a product, as frozen data, and its value: the emulated D = alpha A B + beta C."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes, simt
from fpemu.arguments import _float64, keywords, number, unwrapped
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.library import emulation, openblas, products
from fpemu.mma import KOrder, MmaSpec, serialise, tree
from fpemu.mma.device import Backend, Device
from fpemu.mma.gemm import _chain, as_values
from fpemu.mma.spec import INTEGERS
from fpemu.mma.tree import Tree
from fpemu.probing import trees
from fpemu.probing.callables import bits
from fpemu.rounding import Rounding, _round_to, mode_of
from fpemu.schemes import Scheme
from fpemu.schemes.words import POLICIES

Array = NDArray[Any]
Factors = Literal["AB", "BA", "A'B", "AB'", "(AB)'", "A'B'"]
Flush = Literal["", "inputs", "result"]


@dataclass(frozen=True)
class Specification:
    """Specification of D = alpha A B + beta C, in every detail that affects its bits.

    `fpemu.arguments.read_table` reads one from the table of a TOML or JSON file.

    Parameters
    ----------
    hardware : str or MmaSpec, optional
        An architecture, a GPU or an instruction, as in `fpemu.mma.spec`. A plain fp32 product runs as FMAs of ordinary
        cores where the hardware has no other.
    scheme : str or Scheme, optional
        Scheme of `fpemu.gemm`; default: a plain product of instructions.
    order : KOrder, tree, Revealed or dict, optional
        Summation order over K, or its data of `fpemu.mma.serialise.to_dict`. Default: one chain.
    alpha, beta : float
        Factors of the product and of C: t = round(alpha T), D = round(t + round(beta C)) by the default epilogue.
    out : str, optional
        Format of D; default: the result's, at most the accumulator's. The product is rounded once to a narrower format.
    instruction : str, optional
        Name of the matrix instruction, as in `fpemu.mma.spec`.
    k : int, optional
        Length in k of the instruction, as in `fpemu.mma.spec`.
    fmt : str, optional
        Format of a plain instruction's operands; default: A's. Operands that are wider are rounded to nearest first,
        except for tf32, whose low 13 bits the instruction ignores.
    accumulate : str, optional
        Format of a plain instruction's accumulator: fp32 or fp16.
    on_range : str
        Overflow policy of a scheme.
    options : mapping
        Options of the scheme.
    inputs : (format, mode), optional
        Format and rounding mode of a conversion of A and B before the product.
    inputs_b : (format, mode), optional
        The conversion of B where it differs from A's.
    factors : {"AB", "BA", "A'B", "AB'", "(AB)'", "A'B'"}
        Factors of the product and their transposes.
    epilogue : str
        Use of alpha, beta and C: a key of `fpemu.conformance.specification.EPILOGUES`.
    out_rounding : str
        Rounding mode of the conversion to `out`.
    flush : {"", "inputs", "result"}
        Subnormal numbers that become zero.
    join, stored : str, optional
        Format of the reduction of split-K partial sums, and format to which only the partial sums are rounded before
        (a workspace).
    multiply_add : (format, fused), optional
        Format of one multiply-add per k in place of the instruction, and whether it rounds once ("fused"), the product
        and the sum each ("separate"), or first to fp32 ("in fp32").
    narrow : (format, length, start), optional
        Format to which the accumulator is rounded after every so many k. With start "sum" these k continue the
        accumulator; with "zero" they are summed from zero and added to it.
    via : (format, mode), optional
        Format and rounding of the result before its conversion to `out`.
    library : (name, hardware, version, layout, threads), optional
        Library of `fpemu.library.emulate` whose summation orders the product has; "threads": OpenBLAS on several.
    relu : bool
        Negative results become zero.
    length, nan : int, optional
        Length in k to which the operands are truncated; code of every NaN of D.

    Examples
    --------
    >>> print(Specification("H200", order={"split": 64}, fmt="fp16", alpha=2))
    H200, split in slices of 64, alpha = 2, beta = 0
    """

    hardware: MmaSpec | str | None = None
    scheme: Scheme | str | None = None
    order: KOrder | Tree | Mapping[str, Any] | None = None
    alpha: float = 1.0
    beta: float = 0.0
    out: str | None = None
    instruction: str | None = None
    k: int | None = None
    fmt: str | None = None
    accumulate: str | None = None
    on_range: str = "raise"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    inputs: tuple[str, ...] | None = None
    inputs_b: tuple[str, ...] | None = None
    factors: Factors = "AB"
    epilogue: str = "separate"
    out_rounding: str = "RNE"
    flush: Flush = ""
    join: str | None = None
    stored: str | None = None
    multiply_add: tuple[str, ...] | None = None
    narrow: tuple[str | int, ...] | None = None
    via: tuple[str, ...] | None = None
    library: tuple[str, ...] | None = None
    relu: bool = False
    length: int | None = None
    nan: int | None = None

    def __post_init__(self) -> None:
        known = {"factors": get_args(Factors), "flush": get_args(Flush), "epilogue": EPILOGUES, "on_range": POLICIES}
        for name, names in known.items():
            if getattr(self, name) not in names:
                raise unknown_name(name, getattr(self, name), names)
        for name in ("alpha", "beta"):
            if type(getattr(self, name)) is not float or not math.isfinite(getattr(self, name)):
                object.__setattr__(self, name, number(name, unwrapped(getattr(self, name))))
        if not isinstance(self.order, KOrder | None):
            given = serialise.from_dict(self.order) if isinstance(self.order, Mapping) else tree.order_of(self.order)
            object.__setattr__(self, "order", given)

    def _changed(self, **fields: Any) -> Specification:
        """A copy with other fields and options of the scheme; a name that the scheme has too is its option."""
        scheme = fields.get("scheme", self.scheme)
        known = [] if scheme is None else [option.name for option in schemes.get(scheme).info.options]
        own = [name for name in _FIELDS if name not in known or name in ("instruction", "k")]
        if scheme is None:
            keywords("field of a specification", fields, own)
        named = {name: value for name, value in fields.items() if name in own}
        options = {**self.options, **{name: value for name, value in fields.items() if name not in own}}
        return replace(self, **{"options": options, **named})

    def _resolved(self, operand: str | None, result: str | None) -> Specification:
        """The specification with an `MmaSpec`, a `Scheme` and the format of D in place of names.

        `operand` is the format of A and B if `fmt` does not state it, `result` that of D if `out` does not state it and
        the accumulator's is wider.
        """
        if self.scheme is not None:
            for name in ("fmt", "accumulate"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name}= belongs to a plain product: a scheme defines its formats itself")
            given = {"instruction": self.instruction, "k": self.k}
            options = {**self.options, **{name: value for name, value in given.items() if value is not None}}
            scheme = schemes.build(self.scheme, options)
            scheme.check_order(self.order, options)
            spec, out = scheme.spec(self.hardware), formats.get(self.out or scheme.operand).name
        else:
            keywords("field of a specification", self.options, _FIELDS)
            if self.on_range != "raise":
                raise InputError("on_range= belongs to a scheme: a plain product takes all values")
            scheme, spec = None, self._instruction(operand)
            accumulator = str(spec.d_format)
            if spec.is_integer:
                if self.alpha != 1 or self.beta not in (0, 1) or self.out not in (None, "int32"):
                    raise InputError("an int8 product has an int32 result, alpha = 1 and beta = 0 or 1")
                out = accumulator
            else:
                precision = formats.get(accumulator).precision
                narrow = result if result and formats.get(result).precision < precision else accumulator
                out = formats.get(self.out or narrow).name
                if formats.get(out).precision > precision:
                    raise InputError(f"D in {out} is wider than the accumulator of {spec}, which is {accumulator}")
        unset: dict[str, Any] = {"instruction": None, "k": None, "fmt": None, "accumulate": None, "options": {}}
        return replace(self, hardware=spec, scheme=scheme, out=out, **unset)

    def _instruction(self, operand: str | None) -> MmaSpec:
        """The instruction of a plain product; FMAs of ordinary cores for fp32 and fp64 without a matrix instruction."""
        hardware, fmt = self.hardware, _name(operand if self.fmt is None else self.fmt)
        if fmt is None and not isinstance(hardware, MmaSpec):
            raise InputError("the dtype of A does not determine the format of A and B: give fmt=")
        if isinstance(hardware, MmaSpec):
            spec, what = hardware, f"hardware= is {hardware}"
        else:
            arch = None if hardware is None else mma.catalog.architecture(hardware)
            has_format = any(row.architecture == arch and str(row.a_format) == fmt for row in mma.catalog.rows())
            if has_format or self.instruction is not None or fmt not in ("fp32", "fp64"):
                if hardware is None:
                    raise InputError(f"a plain product in {fmt} needs hardware=, such as 'H200' or 'ampere'")
                try:
                    return mma.spec(hardware, fmt or "", self.accumulate, self.instruction, self.k)
                except InputError as problem:
                    more = "" if has_format else "; fmt= gives another format of A and B"
                    raise InputError(f"{problem}{more}") from None
            spec = simt.SPECS[fmt]
            what = f"a plain product in {fmt} is one of ordinary cores: fmt= gives another format of A and B"
        pair, d = {str(spec.a_format), str(spec.b_format)}, str(spec.d_format)
        fits = {"fmt": pair == {_name(self.fmt)}, "accumulate": d == _name(self.accumulate), "k": spec.k == self.k}
        for name in (*fits, "instruction"):
            if getattr(self, name) is not None and not fits.get(name):
                raise InputError(f"{name}= is {getattr(self, name)}, and {what}")
        return spec

    def _with_operands(self, A: Array, B: Array) -> tuple[Specification, Array, Array]:
        """The specification with the operands of a product: A and B are rounded to nearest to the instruction's format.

        tf32 is an exception: the instruction reads fp32 words and ignores their low 13 bits.
        """
        spec = self.spec
        if self.scheme is not None or self.inputs is not None or spec is None:
            return self, A, B
        if isinstance(spec.a_format, str) or spec.a_format != spec.b_format:  # integers, or two formats
            return self, as_values(A, spec.a_format, "A"), as_values(B, spec.b_format, "B")
        fmt = spec.a_format
        same = fmt.name in ("fp16", "fp32", "fp64", "tf32") and A.dtype == B.dtype == fmt.dtype
        if same or (fmt.contains(A).all() and fmt.contains(B).all()):
            return self, A, B
        return replace(self, inputs=(fmt.name, "RNE")), A, B

    @cached_property
    def spec(self) -> MmaSpec | None:
        """The instruction; None for a scheme that uses none, and while `hardware` is a name."""
        return self.hardware if isinstance(self.hardware, MmaSpec) else None

    @cached_property
    def is_integer(self) -> bool:
        """Whether it is a plain product of the integer instruction."""
        return self.scheme is None and self.spec is not None and self.spec.is_integer

    @cached_property
    def operand(self) -> FloatFormat | str:
        """Format of A and B: of the scheme, or of the instruction."""
        return self.scheme.operand if isinstance(self.scheme, Scheme) else self.spec.a_format  # type: ignore[union-attr]

    @cached_property
    def accumulator(self) -> str:
        """Format of the product before its conversion to `result`."""
        if isinstance(self.scheme, Scheme):
            return self.scheme.operand.name
        return "" if self.spec is None else str(self.spec.d_format)

    @cached_property
    def result(self) -> str:
        """Format of D."""
        return self.out or self.accumulator

    def operands(self, A: Array, B: Array) -> tuple[Array, Array]:
        """A and B after their conversion."""
        if self.inputs is not None:
            A, B = round_operand(A, *self.inputs), round_operand(B, *(self.inputs_b or self.inputs))
        if self.flush == "inputs":
            A, B = (_flushed(x, self.inputs[0] if self.inputs else self.operand) for x in (A, B))
        return A, B

    def multiplied(self, A: Array, B: Array) -> tuple[Array, Array]:
        """The numbers that the instruction multiplies, in float64; those of tf32 without the low 13 bits."""
        A, B = self.operands(A, B)
        if self.operand == formats.TF32:
            A, B = (round_operand(x, "tf32", "RZ") for x in (A, B))
        return A.astype(np.float64), B.astype(np.float64)

    def __str__(self) -> str:
        instruction = str(self.hardware or "ordinary cores") if self.spec is None else self.spec.name
        scheme = _describe_scheme(self.scheme) if isinstance(self.scheme, Scheme) else self.scheme
        parts = [part for part in (scheme, instruction) if part]
        parts.append(describe_order(self.order))
        if (self.alpha, self.beta) != (1.0, 0.0):
            parts.append(f"alpha = {self.alpha:g}, beta = {self.beta:g}")
        if self.inputs is not None:
            parts.append(f"A and B rounded to {self.inputs[0]} by {self.inputs[1]}")
        if self.result and (self.spec is None or self.result != str(self.spec.d_format)):
            parts.append(f"D in {self.result}")
        details = [f for f in fields(self) if f.name in _DETAILS and getattr(self, f.name) != f.default]
        parts += [f"{f.name} = {getattr(self, f.name)}" for f in details]
        return ", ".join(parts)


_FIELDS = tuple(f.name for f in fields(Specification))
_DETAILS = _FIELDS[_FIELDS.index("inputs_b") :]


def _name(fmt: Any) -> Any:
    """The canonical name of a floating-point format; anything else as it is."""
    return formats.get(fmt).name if isinstance(fmt, str) and fmt not in INTEGERS else fmt


def _describe_scheme(scheme: Scheme) -> str:
    """A scheme with the options that differ from the published ones."""
    changed = [(o.name, getattr(scheme, o.name)) for o in scheme.info.options if getattr(scheme, o.name) != o.default]
    chosen = [f"{name} = {','.join(value) if isinstance(value, tuple) else value}" for name, value in changed]
    return scheme.name + (f" with {', '.join(chosen)}" if chosen else "")


def describe_order(order: Any) -> str:
    """An order in words.

    Examples
    --------
    >>> describe_order(KOrder(split=128, tile=64, residue_first=True))
    'split in slices of 128, the residue of tiles of 64 first'
    """
    if order is None or order == KOrder():
        return "one chain"
    if not isinstance(order, KOrder):
        return f"a tree: {trees.sentence(order)}"
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
    "alpha-twice": "alpha is applied twice, D = round(round(alpha round(alpha T)) + round(beta C))",
    "C-twice": "C is added twice, D = round(round(t + round(beta C)) + round(beta C))",
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
    if s.factors == "BA":
        A, B = B, A
    A, B = (A.T if s.factors[1] == "'" else A), (B.T if s.factors in ("AB'", "A'B'") else B)
    A, B = A[:, : s.length], B[: s.length]
    r, c = (slice(None) if x is None else x for x in (rows, columns))
    transposed = s.factors == "(AB)'"
    if s.library is None:
        A, B = A[c if transposed else r], B[:, r if transposed else c]
    A, B = s.operands(A, B)
    if C is not None:
        C = C[r][:, c].T if transposed else C[r][:, c]  # the transpose is that of A B alone
    with np.errstate(all="ignore"):
        if s.library is not None:  # the order depends on the position in D
            T = _by_library(s.library, A, B, device)
            D = combined(s, T.T[r][:, c].T if transposed else T[r][:, c], C)
        elif s.scheme is not None and s.epilogue == "separate":  # some schemes round the scaled sum only once
            factors: dict[str, Any] = {"alpha": s.alpha, "beta": s.beta, "order": s.order, "on_range": s.on_range}
            D = schemes.gemm(A, B, C, scheme=s.scheme, hardware=s.spec, device=device, **factors)
        elif s.is_integer:
            D = _product(s, A, B, None if C is None else C.astype(np.int32), device, backend)
        elif s.epilogue == "first":
            if s.scheme is not None or C is None or s.alpha != 1:
                raise InputError("C can start the accumulator of a plain product with alpha = 1")
            D = _product(s, A, B, round_operand(s.beta * C.astype(np.float64), s.accumulator), device, backend)
        else:
            if s.epilogue == "alpha-on-A":
                A = round_operand(A.astype(np.float64) * s.alpha, s.operand)
            D = combined(s, _product(s, A, B, None, device, backend), C)
        return finished(s, D.T if transposed else D)


def finished(s: Specification, D: Array) -> Array:
    """The conversions that follow the epilogue."""
    if s.relu:
        D = np.where(D > 0, D, D.dtype.type(0))
    if s.is_integer:
        return np.asarray(D)
    dtype = formats.get(s.result).dtype
    if s.via is not None:
        D = round_operand(D, *s.via)
    # some epilogues are in another format
    if s.result != s.accumulator or s.out_rounding != "RNE" or D.dtype != dtype:
        D = round_operand(D, s.result, s.out_rounding).astype(dtype)
    if s.flush == "result":
        D = _flushed(D, s.result)
    if s.nan is not None:
        D = np.array(D, order="C")  # D may be the product itself, which is converted in other ways too
        bits(D)[np.isnan(D)] = s.nan
    return np.ascontiguousarray(D)


def _product(s: Specification, A: Array, B: Array, C: Array | None, device: Device, backend: Backend) -> Array:
    """T = A B, with C in the accumulator of a plain product."""
    order: Any = s.order
    if s.scheme is not None:
        policy: Any = s.on_range
        return schemes.gemm(A, B, scheme=s.scheme, hardware=s.spec, order=order, on_range=policy, device=device)
    assert s.spec is not None
    if s.narrow is not None:
        return _narrow(s, A, B, C, device, backend)
    if s.multiply_add is not None:
        return _by_multiply_adds(s, A, B, C)
    if (s.join or s.stored) and isinstance(order, KOrder) and order.split is not None:
        sums = tree.from_order(order, A.shape[-1], s.spec)
        order = tree.Sum(sums.parts, s.join, s.stored) if isinstance(sums, tree.Sum) else sums
    return _chain([(A, B)], C, s.spec, order, None, backend, device)


def _by_library(library: tuple[str, ...], A: Array, B: Array, device: Device) -> Array:
    """T = A B in the orders of a library."""
    name, hardware, version, layout, *threads = library
    if name == "openblas":
        routine: Any = "dgemm" if A.dtype == np.float64 else "sgemm"
        blocks = openblas.blocking(routine, hardware, version)
        blocks = blocks.threaded() if any(threads) else blocks
        return openblas.multiply(A, B, blocks, layout=layout, device="cpu")  # type: ignore[arg-type]
    kind, layout = layout.split()
    sizes = (A.shape[0], B.shape[1], A.shape[1])
    product = products.lookup(name, kind, sizes, layout=layout, version=version, hardware=hardware)  # type: ignore[arg-type]
    return emulation.predict(product, A, B, device=device)


def _narrow(s: Specification, A: Array, B: Array, C: Array | None, device: Device, backend: Backend) -> Array:
    """T with an accumulator that is rounded to a narrow format after every so many k."""
    assert s.narrow is not None
    fmt, length, start = s.narrow
    total: Array = np.zeros((len(A), B.shape[1]), np.float32) if C is None else C
    for k in range(0, A.shape[1], int(length)):
        terms = [(A[:, k : k + int(length)], B[k : k + int(length)])]
        first = total if start == "sum" else None
        part: Array = _chain(terms, first, s.spec, None, None, backend, device)  # type: ignore[arg-type]
        total = part if start == "sum" else total + part
        total = to_format(total, str(fmt)).astype(total.dtype)
    return total


def _by_multiply_adds(s: Specification, A: Array, B: Array, C: Array | None) -> Array:
    """T by one multiply-add per k, along the chains of the order."""
    order: Any = s.order or KOrder()
    if isinstance(order, KOrder):
        order = tree.from_order(order, A.shape[1], simt.SPECS["fp32"])
    fmt, fused = s.multiply_add or ("fp32", "fused")

    def chain(node: tree.Chain, start: Array | None) -> Array:
        positions = node.positions
        first = C if start is None and node is order else start
        return multiply_adds(A[:, positions][None], B[positions][None], fmt, fused, first)[0]

    def add(x: Array, y: Array, narrow: str | None) -> Array:
        return to_format(x + y, narrow or fmt) if narrow is None else to_format(to_format(x, fmt) + y, fmt)

    D = tree.evaluate(order, chain, add)
    return D if C is None or isinstance(order, tree.Chain) else to_format(C + D, fmt)


def multiply_adds(A: Array, B: Array, fmt: str, fused: str, start: Array | None = None) -> Array:
    """Chains of multiply-adds in a format for a stack of products (stack, M, K) and (stack, K, N)."""
    if fused == "fused" and fmt in simt.SPECS:
        A, B = (to_format(x, fmt) for x in (A, B))
        return _chain([(A, B)], None if start is None else start[None], simt.SPECS[fmt])
    # products of bf16 are exact in fp64, and a sum rounds to bf16 as if it were exact
    dtype: Any = {"in fp32": np.float32, "fused": np.float64}.get(fused, formats.get(fmt).dtype)
    total = np.zeros((len(A), A.shape[1], B.shape[2]), dtype)
    total = total if start is None else total + start.astype(dtype)
    a, b = (np.ascontiguousarray(np.moveaxis(x, axis, 0), dtype) for x, axis in ((A, 2), (B, 1)))
    for x, y in zip(a, b, strict=True):
        terms = x[:, :, None] * y[:, None, :]
        terms = to_format(terms, fmt) if fused == "separate" else terms
        total = to_format(total + terms, fmt).astype(dtype, copy=False)
    return total.astype(formats.get(fmt).dtype, copy=False)


def to_format(x: Array, fmt: str) -> Array:
    """x rounded to fp16, bf16, fp32 or fp64 to nearest even, in the type that carries the format.

    For sums and products of numbers of the format, computed in the carrier, the second rounding is without effect.
    """
    return round_operand(x, fmt) if fmt == "bf16" else x.astype(formats.get(fmt).dtype, copy=False)


def combined(s: Specification, T: Array, C: Array | None) -> Array:
    """alpha T + beta C before the conversion to `out`."""
    kind = s.epilogue
    if s.is_integer:
        return T
    if kind in ("half", "rounded"):
        T = round_operand(T, "fp16" if kind == "half" else s.result)
    if kind == "half" or T.dtype == np.float16:  # otherwise the epilogue of an fp16 accumulator is in fp32
        T = T.astype(np.float16 if kind == "half" else np.float32)
    dtype = T.dtype
    T = T.astype(np.float64) if kind == "double" else T
    alpha, beta = T.dtype.type(s.alpha), T.dtype.type(s.beta)
    scaled = T if alpha == 1 or kind in ("no-alpha", "alpha-on-A") else alpha * T
    if kind == "alpha-twice":
        scaled = alpha * scaled
    if C is None or kind == "no-beta":
        return scaled.astype(dtype, copy=False)
    c = C.astype(T.dtype)
    addend = c if kind == "beta-1" else beta * c
    fmt = {2: "fp16", 4: "fp32", 8: "fp64"}[T.dtype.itemsize]
    forms: dict[str, Callable[[], Any]] = {
        "C-twice": lambda: scaled + addend + addend,
        "fma": lambda: simt.fma(alpha, T, addend, fmt),
        "fma-c": lambda: simt.fma(beta, c, scaled, fmt),
        "alpha-last": lambda: alpha * (T + addend),
    }
    return np.asarray(forms.get(kind, lambda: scaled + addend)(), dtype)


def round_operand(x: Array, fmt: FloatFormat | str, mode: str = "RNE") -> Array:
    """x rounded to a format."""
    return _round_to(_float64(x, "x"), formats.get(fmt), Rounding.__members__.get(mode) or mode_of(mode))


def _flushed(x: Array, fmt: FloatFormat | str) -> Array:
    return np.where(np.abs(x) < formats.get(fmt).min_normal, np.copysign(x.dtype.type(0), x), x)
