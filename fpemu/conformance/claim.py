"""What a product is said to be, as frozen data, and its value: the emulation of the claim and of every alternative."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma, schemes, simt
from fpemu.arguments import check_fields, keywords
from fpemu.conformance import epilogues
from fpemu.errors import InputError, unknown_name
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec, tree
from fpemu.mma._device import Backend, Device
from fpemu.mma.tree import Tree
from fpemu.probing import drawing
from fpemu.probing.watching import codes
from fpemu.rounding import round_to
from fpemu.schemes import Scheme

Array = NDArray[Any]
PLACES = {
    "AB": "A B",
    "BA": "B A, the operands in the other order",
    "A'B": "the transpose of A times B",
    "AB'": "A times the transpose of B",
    "(AB)'": "the transpose of A B",
    "A'B'": "the transpose of A times that of B",
}


@dataclass(frozen=True)
class Claim:
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
        Format of D; rounded to it once, to nearest, where the accumulator's is wider.
    inputs : (format, mode) or None
        What A and B are rounded to before anything else.
    place : str
        Which product: a key of `PLACES`.
    epilogue : str
        How alpha, beta and C enter: a key of `epilogues.KINDS`.
    rounding : str
        Rounding mode of the conversion to `out`.
    flush : {"", "inputs", "result"}
        Which subnormals become zero.
    join, stored : str, optional
        Format in which the slices of a split are added, and the one they alone are rounded to before (a workspace).
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
    place: str = "AB"
    epilogue: str = "separate"
    rounding: str = "RNE"
    flush: str = ""
    join: str | None = None
    stored: str | None = None
    relu: bool = False
    length: int | None = None
    nan: int | None = None
    on_range: str = "raise"

    def __post_init__(self) -> None:
        check_fields(self)

    def change(self, **fields: Any) -> Claim:
        """A copy with some fields changed."""
        keywords("field of a claim", fields, self.__dataclass_fields__)
        return replace(self, **fields)

    @property
    def operand(self) -> FloatFormat | str:
        """Format of A and B: of the scheme, or of the instruction."""
        if self.scheme is not None:
            return self.scheme.operand
        assert self.spec is not None
        return self.spec.a_format

    def __str__(self) -> str:
        what = "" if self.scheme is None else _say_scheme(self.scheme) + ", "
        what += "ordinary cores" if self.spec is None else self.spec.name
        parts = [what, say_order(self.order)]
        if (self.alpha, self.beta) != (1.0, 0.0):
            parts.append(f"alpha = {self.alpha:g}, beta = {self.beta:g}")
        if self.inputs is not None:
            parts.append(f"A and B rounded to {self.inputs[0]} by {self.inputs[1]}")
        if self.spec is None or self.out != str(self.spec.d_format):
            parts.append(f"D in {self.out}")
        return ", ".join(parts)


def make(
    A: Array,
    hint: str | None,
    D: str | None,
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
) -> Claim:
    """The claim that the arguments of `verify` make.

    Parameters
    ----------
    A : array
        An operand: its dtype names the format where no `fmt` is given, `hint` where the dtype was another library's.
    D : str or None
        Format that the result's dtype names.
    """
    order = tree.order_of(order)
    if scheme is not None:
        if fmt is not None or accumulate is not None:
            wrong = "fmt=" if accumulate is None else "accumulate="
            raise InputError(f"{wrong} belongs to a plain product: a scheme says its formats itself")
        if isinstance(order, tree.Chain | tree.Sum):
            raise InputError("a scheme takes a KOrder: a tree is an order of one plain product")
        options |= {name: v for name, v in (("instruction", instruction), ("k", k)) if v is not None}
        chosen = schemes.build(scheme, options)
        chosen.check_order(order, options)
        return Claim(
            chosen.spec(hardware),
            chosen,
            order,
            alpha,
            beta,
            formats.get(out or chosen.operand).name,
            on_range=on_range,
        )
    if options:
        raise unknown_name(
            "argument of verify",
            next(iter(options)),
            ["scheme", "hardware", "order", "alpha", "beta", "device", "fmt", "out", "accumulate", "instruction", "k"],
        )
    own = fmt if fmt is not None else hint or _of_dtype(A.dtype)
    spec = instruction_of(hardware, own, accumulate, instruction, k)
    d = str(spec.d_format)
    if spec.is_integer:
        if alpha != 1 or beta not in (0, 1) or out not in (None, "int32"):
            raise InputError("an int8 product has an int32 result, alpha = 1 and beta = 0 or 1")
        return Claim(spec, None, order, alpha, beta, d)
    narrow = d if D is None or formats.get(D).precision >= formats.get(d).precision else D
    out = formats.get(out or narrow).name
    if formats.get(out).precision > formats.get(d).precision:
        raise InputError(f"D in {out} is wider than the accumulator of {spec}, which is {d}")
    return Claim(spec, None, order, alpha, beta, out)


def instruction_of(
    hardware: Any, fmt: str, accumulate: str | None = None, instruction: str | None = None, k: int | None = None
) -> MmaSpec:
    """The instruction of a plain product; FMAs of ordinary cores for fp32, and for fp64 where there is nothing else."""
    if isinstance(hardware, MmaSpec):
        return hardware
    name = fmt if fmt in ("int8", "int32") else formats.get(fmt).name
    known = hardware is not None and mma.catalog.architecture(hardware)
    has = known and any(row.architecture == known and str(row.a_format) == name for row in mma.catalog.rows())
    if name in ("fp32", "fp64") and instruction is None and not has:
        if accumulate is not None and formats.get(accumulate).name != name:
            raise InputError(
                f"accumulate= is {accumulate}, and a plain product in {name} is one of ordinary cores, which add in"
                f" {name}: fmt= says another format of A and B"
            )
        return simt.SPECS[name]
    if hardware is None:
        raise InputError(f"a claim about {name} needs hardware=, such as 'H200' or 'ampere'")
    try:
        return mma.spec(hardware, name, accumulate, instruction, k)
    except InputError as problem:
        raise problem if has else InputError(f"{problem}; fmt= says another format of A and B") from None


def prepared(claim: Claim, A: Array, B: Array) -> Claim:
    """The claim, with the rounding to nearest that a plain instruction's operands need where they are wider.

    tf32 is left alone: the instruction reads fp32 words and ignores their low 13 bits.
    """
    if claim.scheme is not None or claim.inputs is not None:
        return claim
    fmt = claim.operand
    if isinstance(fmt, str):
        for x, who in ((A, "A"), (B, "B")):
            if x.dtype.kind not in "iu":
                raise InputError(f"{who} has dtype {x.dtype}: the claim is about {fmt}")
        return claim
    same = fmt.name in ("fp16", "fp32", "fp64", "tf32") and A.dtype == B.dtype == fmt.dtype
    if same or (fmt.contains(A).all() and fmt.contains(B).all()):
        return claim
    return claim.change(inputs=(fmt.name, "RNE"))


def evaluate(
    claim: Claim,
    A: Array,
    B: Array,
    C: Array | None = None,
    rows: Any = None,
    columns: Any = None,
    device: Device = "cpu",
    backend: Backend = "compiled",
) -> Array:
    """The value of a claim, in the dtype of its `out`; of some rows and columns only, where these are given.

    Raises
    ------
    InputError
        Operands that the claim cannot take.
    """
    A, B = _placed(claim, A, B)
    A, B = A[:, : claim.length], B[: claim.length]
    rows, columns = (slice(None) if x is None else x for x in (rows, columns))
    swap = claim.place == "(AB)'"
    A, B = A[columns if swap else rows], B[:, rows if swap else columns]
    if claim.inputs is not None:
        A, B = (np.asarray(round_to(x, *claim.inputs)) for x in (A, B))
    if claim.flush == "inputs":
        A, B = (_flushed(x, claim.inputs[0] if claim.inputs else claim.operand) for x in (A, B))
    if C is not None:
        C = C[rows][:, columns]
    with np.errstate(all="ignore"):
        D = epilogues.apply(claim, lambda a, b, c: _product(claim, a, b, c, backend, device), A, B, C, device)
        if swap:
            D = D.T
        if claim.relu:
            D = np.where(D > 0, D, D.dtype.type(0))
        if claim.scheme is None and claim.spec is not None and claim.spec.is_integer:
            return np.asarray(D)
        if claim.out != _own(claim) or claim.rounding != "RNE":
            D = np.asarray(round_to(D, claim.out, claim.rounding)).astype(formats.get(claim.out).dtype)
        if claim.flush == "result":
            D = _flushed(D, claim.out)
    D = np.ascontiguousarray(D)
    if claim.nan is not None:
        codes(D)[np.isnan(D)] = claim.nan
    return D


def _product(claim: Claim, A: Array, B: Array, C: Array | None, backend: Backend, device: Device) -> Array:
    if claim.scheme is not None:
        order: Any = claim.order
        return schemes.gemm(
            A, B, scheme=claim.scheme, hardware=claim.spec, order=order, on_range=claim.on_range, device=device
        )
    assert claim.spec is not None
    order = claim.order
    if (claim.join or claim.stored) and isinstance(order, KOrder) and order.split is not None:
        made = tree.from_order(order, A.shape[-1], claim.spec)
        order = tree.Sum(made.parts, claim.join, claim.stored) if isinstance(made, tree.Sum) else made
    return np.asarray(mma.gemm(A, B, C, claim.spec, order, backend=backend, device=device))


def _own(claim: Claim) -> str:
    return claim.scheme.operand.name if claim.scheme is not None else str(claim.spec.d_format if claim.spec else "")


def _placed(claim: Claim, A: Array, B: Array) -> tuple[Array, Array]:
    if claim.place == "BA":
        return B, A
    return (A.T if claim.place[1] == "'" else A), (B.T if claim.place in ("AB'", "A'B'") else B)


def _flushed(x: Array, fmt: FloatFormat | str) -> Array:
    least = formats.get(fmt).min_normal
    return np.where(np.abs(x) < least, np.copysign(x.dtype.type(0), x), x)


def _of_dtype(dtype: np.dtype[Any]) -> str:
    name = {"f2": "fp16", "f4": "fp32", "f8": "fp64", "i1": "int8"}.get(dtype.str[1:])
    if name is None:
        raise InputError(f"A has dtype {dtype}: say the format of A and B by fmt=")
    return name


def _say_scheme(scheme: Scheme) -> str:
    """A scheme with those of its choices that are not the published ones."""
    own = [(o.name, getattr(scheme, o.name)) for o in scheme.info.options if getattr(scheme, o.name) != o.default]
    chosen = [f"{name} = {','.join(value) if isinstance(value, tuple) else value}" for name, value in own]
    return scheme.name + (f" with {', '.join(chosen)}" if chosen else "")


def say_order(order: KOrder | Tree | None) -> str:
    """An order in words.

    Examples
    --------
    >>> say_order(KOrder(split=128, tile=64, residue_first=True))
    'split in slices of 128, the residue of tiles of 64 first'
    """
    if order is None or order == KOrder():
        return "one chain"
    if not isinstance(order, KOrder):
        return "a tree: " + drawing.text(order).splitlines()[0]
    parts = []
    if order.split is not None:
        parts.append(f"split in slices of {order.split}" + (f" joined {order.join}" * (order.join != "ascending")))
    if order.tile is not None:
        parts.append(f"the residue of tiles of {order.tile} first" if order.residue_first else f"tiles of {order.tile}")
    if order.promote is not None:
        parts.append(f"promoted every {order.promote}")
    return ", ".join(parts)
