"""Records of the products of a run: their files, the first difference of two runs, and the emulation of one run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fpemu import formats, mma
from fpemu._system import in_ieee
from fpemu.arguments import choice, integer, number
from fpemu.conformance.causes import Cause
from fpemu.conformance.orders import lengths_of
from fpemu.conformance.scaled import Scales, verify_scaled
from fpemu.conformance.specification import Specification, describe_order, evaluate
from fpemu.conformance.verdict import Verdict, verify
from fpemu.errors import InputError
from fpemu.mma.outer_scales import _multiplication
from fpemu.probing.callables import bits

Array = NDArray[Any]
_FORMAT = 1
_FILES = 8  # files among which the limit of disk space is divided
_CAUSES = 12  # likely causes that are compared with other products of the kernel
_ENTRIES = 16  # rows and columns on which slices are tried
_OTHERS = 4  # such products
_SEARCHES = 2  # searches for an order among equal calls, after which the others are only compared
CODES = {
    "bf16": "u2",
    "e4m3": "u1",
    "e5m2": "u1",
    "fp16": "f2",
    "fp32": "f4",
    "fp64": "f8",
    "int8": "i1",
    "int32": "i4",
}
"""The dtype of the codes of each type in a file."""


@dataclass(frozen=True)
class Recorded:
    """One product, or one fused attention, of a recorded run.

    Attributes
    ----------
    index : int
        Number of the call in the run, from 0.
    operator, module : str
        Operator and module that computed it.
    sizes : (M, N, K) or None
        Sizes of a product, or of each product of a batch; None for attention.
    operands : dict
        For each operand and the result "D": type, shape, strides, "digest" of its bytes in row-major order, and of the
        first product of a batch ("part").
    alpha, beta : float
        Factors of the product and of C.
    flags : dict
        Settings of the library at the call.
    rows, columns : list of int
        Sampled rows and columns of D, of the first product of a batch.
    row_digests : list of str
        Digests of the sampled rows of D, each of all columns.
    arrays : dict
        File, position, dtype and shape of the stored samples: rows of A, columns of B, and their entries of C and D.
    about : dict
        Versions and hardware of the run.
    """

    index: int
    operator: str
    sizes: tuple[int, int, int] | None
    operands: dict[str, dict[str, Any]]
    module: str = ""
    alpha: float = 1.0
    beta: float = 0.0
    flags: dict[str, Any] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    row_digests: tuple[str, ...] = ()
    arrays: dict[str, Any] = field(default_factory=dict, repr=False)
    about: dict[str, Any] = field(default_factory=dict, repr=False)

    def sample(self, name: str) -> Array | None:
        """The stored sample of an operand or of D, in the dtype of its type; None if there is none."""
        if name not in self.arrays:
            return None
        path, position, dtype, shape = self.arrays[name]
        with open(path, "rb") as file:
            file.seek(position)
            codes = np.frombuffer(file.read(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
        kind = self.operands.get(name, {}).get("type", "fp32")
        return np.asarray(formats.get(kind).decode(codes)) if codes.dtype.kind == "u" else codes

    def digests(self, key: str = "digest") -> dict[str, Any]:
        """The digests of all operands and of D."""
        return {name: operand.get(key) for name, operand in self.operands.items()}

    def __str__(self) -> str:
        kinds = " ".join(str(self.operands[name]["type"]) for name in ("A", "B", "D") if name in self.operands)
        size = " × ".join(map(str, self.sizes)) if self.sizes else "fused attention"
        batch = self.operands["D"]["shape"][:-2]
        parts = [f"product {self.index}", f"in {self.module}" * bool(self.module), f"{self.operator}:", kinds, size]
        return " ".join([*filter(None, parts), *([f"in a batch of {batch}"] if batch else [])])


def sampled(length: int, count: int) -> Array:
    """The sampled rows or columns: the first half of `count` in turn, the others spread with the last among them."""
    if count >= length:
        return np.arange(length)
    first = (count + 1) // 2
    rest = np.random.default_rng(length).choice(np.arange(first, length - 1), max(0, count - first - 1), replace=False)
    return np.sort(np.array([*range(first), *rest, *[length - 1] * (count > first)], np.int64))


class RunWriter:
    """The files of a run, of at most `limit` bytes; then the record ends, or keep="last" deletes the oldest file.

    A file holds a header, and for each product a line of JSON and the bytes of its samples. A sample of B is stored
    once in a file, so that each file can be read alone. An interrupted run ends with an incomplete product.
    """

    def __init__(
        self, folder: str | os.PathLike[str], about: dict[str, Any], limit: int = 2**30,
        keep: Literal["first", "last"] = "first",
    ) -> None:  # fmt: skip
        self.folder, self.about = Path(folder), about
        self.limit = integer("limit", limit, 2**16)
        self.keep = choice("keep", keep, ("first", "last"))
        if any(self.folder.glob("*.run")):
            raise InputError(f"{folder} holds a run already: name another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.waiting: list[bytes] = []  # content of the current file that `flush` writes
        self.number = self.size = self.dropped = 0
        self.full = True  # whether the next product begins a file
        self.stored: set[str] = set()

    def holds(self, key: str) -> bool:
        """Whether the current file has the sample of B with this digest."""
        return key in self.stored

    def add(self, product: Recorded, arrays: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
        """Append a product with its samples: dtype, shape and bytes of each."""
        if self.dropped or (self.full and not self._next()):
            self.dropped += 1
            return
        key = sample_key(product)
        arrays = {name: x for name, x in arrays.items() if name != "B" or key not in self.stored}
        self.stored |= {key} if "B" in arrays else set()
        line = {name: value for name, value in vars(product).items() if name not in ("arrays", "about")}
        line["arrays"] = [[name, dtype, list(shape)] for name, (dtype, shape, _) in arrays.items()]
        content = b"".join(x for _, _, x in arrays.values())
        text = json.dumps({**line, "bytes": len(content)}).encode() + b"\n"
        self.waiting += [text, content]
        self.size += len(text) + len(content)

    def flush(self) -> None:
        """Append the products to the current file, and end it if it is large."""
        if self.waiting:
            with open(self.folder / f"{self.number - 1:05d}.run", "ab") as file:
                file.write(b"".join(self.waiting))
            self.waiting = []
        if self.size > self.limit // _FILES:  # not between the products of a flush, some of which share a B
            self.full, self.stored = True, set()

    def _next(self) -> bool:
        """Begin another file; False if the limit is reached and the first products are to be kept."""
        if self.number >= _FILES and self.keep == "first":
            return False
        if self.number >= _FILES:
            (self.folder / f"{self.number - _FILES:05d}.run").unlink(missing_ok=True)
        self.waiting = [json.dumps({"fpemu run": _FORMAT, "about": self.about}).encode() + b"\n"]
        self.size, self.number, self.full = len(self.waiting[0]), self.number + 1, False
        return True


def sample_key(product: Recorded) -> str:
    """The digest of the sampled B, of which a file holds one copy."""
    operand = product.operands.get("B", {})
    return str(operand.get("part") or operand.get("digest"))


def read(folder: str | os.PathLike[str]) -> list[Recorded]:
    """Return the complete products of a run in their order; InputError if there is no run, or another file."""
    paths = sorted(Path(folder).glob("*.run"))
    if not paths:
        raise InputError(f"{folder} holds no run: fpemu.torch.record writes one")
    return [product for path in paths for product in _products(path)]


def _products(path: Path) -> Iterator[Recorded]:
    shared: dict[str, Any] = {}
    size = path.stat().st_size
    with open(path, "rb") as file:
        try:
            header = json.loads(file.readline() or b"{}")
            if header and header["fpemu run"] != _FORMAT:
                raise InputError(f"{path} has format {header['fpemu run']}: this version reads {_FORMAT}")
            while (text := file.readline()).endswith(b"\n"):
                line = json.loads(text)
                position, arrays = file.tell(), {}
                if position + line.pop("bytes") > size:
                    return
                for name, dtype, shape in line["arrays"]:
                    arrays[name] = str(path), position, dtype, shape
                    position += int(np.prod(shape)) * np.dtype(dtype).itemsize
                file.seek(position)
                tuples: dict[str, Any] = {name: tuple(line[name]) for name in ("rows", "columns", "row_digests")}
                tuples["sizes"] = tuple(line["sizes"]) if line["sizes"] else None
                product = Recorded(**{**line, **tuples, "arrays": arrays, "about": header["about"]})
                if "B" in arrays:
                    shared[sample_key(product)] = arrays["B"]
                elif sample_key(product) in shared:
                    arrays["B"] = shared[sample_key(product)]
                yield product
        except (ValueError, KeyError, TypeError) as problem:
            raise InputError(f"{path} is no file of a run: {type(problem).__name__} {problem}") from None


# --- the specification of one product
@dataclass(frozen=True)
class Explanation:
    """The specification that reproduces the sample of a product.

    Attributes
    ----------
    specification : Specification or None
        None: no alternative reproduces the sample, or it was not recorded.
    text : str
        The specification, or its difference from another product's, in words; the reason if there is none.
    """

    specification: Specification | None
    text: str


class _Sample:
    """The sample of a product as operands of `verify`."""

    def __init__(self, product: Recorded) -> None:
        self.product = product
        self.A, self.B, self.C, self.D = (product.sample(name) for name in "ABCD")
        self.scale_a, self.scale_b = product.sample("scale_a"), product.sample("scale_b")

    @property
    def missing(self) -> str:
        if self.product.sizes is None:
            return "fused attention is not emulated"
        return "" if self.A is not None and self.B is not None and self.D is not None else "no sample was recorded"

    def base(self) -> Specification:
        """One chain on the instruction that the types and flags select."""
        kinds = {name: operand["type"] for name, operand in self.product.operands.items()}
        on_gpu = self.product.flags.get("device") == "cuda"
        hardware, fmt = self.product.about.get("hardware") if on_gpu else None, kinds["A"]
        tf32 = hardware is not None and fmt == "fp32" and bool(self.product.flags.get("allow_tf32"))
        beta = self.product.beta if "C" in kinds else 0.0
        s = Specification(hardware, fmt="tf32" if tf32 else fmt, alpha=self.product.alpha, beta=beta,
                          inputs=("tf32", "RNE") if tf32 else None)  # fmt: skip
        if kinds["A"] != kinds["B"] and hardware is not None:
            s = replace(s, hardware=mma.spec(hardware, (kinds["A"], kinds["B"])), fmt=None)
        return s if kinds["D"] in ("fp32", "fp64", "int32") else replace(s, out=kinds["D"])

    def sliced(self, s: Specification) -> Iterator[Specification]:
        """Slices of K, added in turn, that reproduce the rows and columns with the most mismatches."""
        A, B, D = (np.asarray(x) for x in (self.A, self.B, self.D))
        C, s = self.C if s.beta else None, self.verdict(s, causes=False).specification
        if self.scale_a is not None or s.spec is None:
            return
        wrong = bits(evaluate(s, A, B, C).astype(D.dtype, copy=False)) != bits(D)
        r, c = (np.argsort(-wrong.sum(axis=axis), kind="stable")[:_ENTRIES] for axis in (1, 0))
        A, B, D, C = A[r], B[:, c], D[r][:, c], None if C is None else C[r][:, c]
        for length in lengths_of(A.shape[1]):
            for stored in (None, s.result) if s.result in ("fp16", "bf16") else (None,):
                one = replace(s, order=mma.KOrder(length), stored=stored)
                if (bits(evaluate(one, A, B, C).astype(D.dtype, copy=False)) == bits(D)).all():
                    yield one

    def verdict(self, s: Specification, **options: Any) -> Verdict:
        """The verdict on the sample."""
        A, B, D = (np.asarray(x) for x in (self.A, self.B, self.D))
        C = self.C if s.beta else None
        if self.scale_a is None:
            return verify(D, A, B, C, specification=s, **options)
        kinds = [self.product.operands[name]["type"] for name in "AD"]
        return verify_scaled(D, A, B, C, self.scales(), s._resolved(*kinds), causes=bool(options["causes"]))

    def scales(self) -> Scales:
        """The sampled scales, by the rule for the shapes of all; scales of blocks of K are those of 128."""
        assert self.product.sizes is not None
        M, N, K = self.product.sizes
        a, b = (np.broadcast_to(0.0, self.product.operands[name]["shape"]) for name in ("scale_a", "scale_b"))
        block = None if {a.shape, b.shape} <= {(), (1,), (1, 1), (M, 1), (1, N)} else 128
        rule = _multiplication(a, b, M, N, block)
        return Scales.of(
            self.scale_a, self.scale_b, (len(self.product.rows), len(self.product.columns), K), block, rule, True
        )


def by_columns(operand: dict[str, Any]) -> bool:
    """Whether an operand is stored by columns."""
    shape, strides = operand["shape"][-2:], operand["strides"][-2:]
    return min(shape) > 1 and strides[0] < strides[1]


def _kernel(p: Recorded) -> str:
    """The properties of a product that select the library's kernel."""
    kinds = {name: (x["type"], by_columns(x)) for name, x in p.operands.items() if len(x["shape"]) > 1}
    return str((p.operator, p.sizes, p.operands["D"]["shape"][:-2], p.flags, kinds))


def explain(
    product: Recorded,
    known: Iterable[Specification] = (),
    *,
    base: Specification | None = None,
    seconds: float = 20.0,
    others: Sequence[Recorded] = (),
) -> Explanation:
    """Find the specification that reproduces the sample of a product; without `seconds` only among those known.

    The search starts from `base`, and the text states the difference from it. Of several specifications with equal
    bits, one that reproduces `others`, products of the same kernel, is chosen.
    """
    sample, more = _Sample(product), [_Sample(other) for other in others]
    if sample.missing:
        return Explanation(None, sample.missing)

    def equal(one: _Sample, s: Specification) -> Verdict | None:
        with suppress(InputError):
            verdict = one.verdict(s, causes=False)
            return verdict if verdict.equal else None
        return None

    try:
        start = sample.base() if base is None else base
        for s in [*known, start] if base is None else [base, sample.base()]:
            if (verdict := equal(sample, s)) and all(equal(one, s) for one in more):
                return Explanation(s, verdict.identified or str(verdict.specification))
        if not seconds:
            return Explanation(None, "none of the known orders")
        for s in sample.sliced(start):
            if equal(sample, s) and all(equal(one, s) for one in more):
                stored = f", the slices stored in {s.stored}" * bool(s.stored)
                return Explanation(s, str(s) if base is None else describe_order(s.order) + stored)
        verdict = sample.verdict(start, causes=True, seconds=seconds)
    except InputError as problem:
        return Explanation(None, str(problem))
    if verdict.equal and not verdict.causes:  # the arithmetic was not stated and is identified, or others differ
        return Explanation(verdict.specification, verdict.identified or str(verdict.specification))
    causes = sorted((cause for cause in verdict.causes if cause.left == 0), key=_complexity)[:_CAUSES]
    if not causes:
        return Explanation(None, f"none of {verdict.tried} alternatives reproduces the sample")
    best = max(causes, key=lambda cause: sum(equal(one, cause.specification) is not None for one in more))
    return Explanation(best.specification, str(best.specification) if base is None else best.text)


def _complexity(cause: Cause) -> tuple[int, ...]:
    """The number of changes and of lengths in the order, and of lengths that are no power of two."""
    order = cause.specification.order
    lengths = [] if not isinstance(order, mma.KOrder) else [n for n in (order.split, order.promote, order.tile) if n]
    return len(cause.kinds), len(lengths), sum(n & (n - 1) > 0 for n in lengths)


# --- two runs
@dataclass(frozen=True)
class RunDifference:
    """The first product of two runs with equal operands and different results.

    Attributes
    ----------
    compared : int
        Products with equal operands, up to the first difference.
    unaligned : (int, int)
        Products of each run without a partner in the other.
    first : (Recorded, Recorded) or None
        The products with equal operands and different results.
    rows : int
        Sampled rows with different results, if the products have different shapes; 0 if the whole results differ.
    explanations : (Explanation, Explanation) or None
        The specification of each, the second's as a change of the first's.
    before : (Recorded, Recorded) or None
        The first products with different operands, if there are some before `first`, or no `first`.
    """

    compared: int
    unaligned: tuple[int, int]
    first: tuple[Recorded, Recorded] | None = None
    rows: int = 0
    explanations: tuple[Explanation, Explanation] | None = None
    before: tuple[Recorded, Recorded] | None = None

    @property
    def equal(self) -> bool:
        """Whether all compared products have equal operands and results."""
        return self.first is None and self.before is None

    def __str__(self) -> str:
        lines = [f"{self.compared} product{'s' * (self.compared != 1)} with equal operands"]
        if any(self.unaligned):
            lines[0] += f"; {self.unaligned[0]} of run 1 and {self.unaligned[1]} of run 2 have no partner"
        if self.before is not None:
            p, q = self.before
            names = ", ".join(n for n, x in p.digests().items() if n != "D" and x != q.digests().get(n))
            lines.append(f"first different operands: {names} of {p} (run 2: product {q.index})")
        if self.first is None:
            lines += ["another operation than a recorded product returned them"] * (self.before is not None)
            return "\n".join([*lines, "no product with equal operands has different results"])
        p, q = self.first
        where = f"{self.rows} of the sampled rows" if self.rows else "the result"
        lines.append(f"FIRST DIFFERENCE: {where} of {p}; run 2: {q}")
        flags = {n: (v, q.flags.get(n)) for n, v in p.flags.items() if q.flags.get(n) != v}
        lines += [f"setting {name}: {a} in run 1, {b} in run 2" for name, (a, b) in flags.items()]
        if self.explanations is not None:
            one, two = self.explanations
            lines += [f"run 1: {one.text}", f"run 2: {two.text}"]
            if one.specification is not None and one.specification == two.specification:
                lines.append("the sampled columns do not show the difference: record more columns")
        return "\n".join(lines)


@in_ieee
def compare_runs(run1: str | os.PathLike[str], run2: str | os.PathLike[str], *, seconds: float = 20.0) -> RunDifference:
    """Find the first product of two recorded runs whose operands are equal and whose results are not.

    Parameters
    ----------
    run1, run2 : path
        Folders of the runs, from `fpemu.torch.record`.
    seconds : float
        Duration of the search for the cause in each run; 0: none.

    Returns
    -------
    RunDifference
        The product, and its specification in both runs.

    Raises
    ------
    InputError
        No runs.

    Notes
    -----
    Products are aligned by N and K, and by B if one run has more of them. Two products of one shape are compared by the
    digests of their operands and results. Of different shapes, such as those of two batch sizes, the sampled rows with
    equal A, B and C are compared; of attention, the first element of the batch.
    """
    number("seconds", seconds, 0)
    runs = read(run1), read(run2)
    compared, before = 0, None
    pairs = list(_aligned(*runs))
    unaligned = len(runs[0]) - len(pairs), len(runs[1]) - len(pairs)
    for p, q in pairs:
        rows = _compared(p, q)
        if rows is None:
            before = before or (p, q)
            continue
        compared += 1
        if rows < 0:
            continue
        alike = [[x for x in run if _kernel(x) == _kernel(first) and x != first][:_OTHERS]
                 for run, first in zip(runs, (p, q), strict=True)]  # fmt: skip
        one = explain(p, seconds=seconds, others=alike[0])
        same = [p.operands[n]["type"] for n in p.operands] == [q.operands[n]["type"] for n in q.operands]
        base = one.specification if same and "scale_a" not in p.arrays else None
        two = explain(q, base=base, seconds=seconds, others=alike[1])
        return RunDifference(compared, unaligned, (p, q), rows, (one, two), before)
    return RunDifference(compared, unaligned, before=before)


def _aligned(run1: list[Recorded], run2: list[Recorded]) -> Iterator[tuple[Recorded, Recorded]]:
    """The products of both runs with equal N and K, in order; with equal B too if a run has others between them."""
    keys: Any = [[p.sizes[1:] if p.sizes else (p.operator,) for p in run] for run in (run1, run2)]
    if keys[0] == keys[1]:
        yield from zip(run1, run2, strict=True)
        return
    one, two = (
        [(*key, sample_key(p)) for key, p in zip(*x, strict=True)] for x in zip(keys, (run1, run2), strict=True)
    )
    for i, j, count in SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks():
        yield from zip(run1[i : i + count], run2[j : j + count], strict=True)


def _compared(p: Recorded, q: Recorded) -> int | None:
    """None if the operands differ, -1 if the results are equal, else the number of different sampled rows, or 0."""
    names = [name for name in p.operands if name != "D"]
    if {*p.operands} != {*q.operands} or (p.alpha, p.beta) != (q.alpha, q.beta):
        return None
    one, two = p.digests(), q.digests()
    if all(one[n] == two[n] and p.operands[n]["shape"] == q.operands[n]["shape"] for n in names):
        return -1 if one["D"] == two["D"] else 0
    if p.sizes is None:  # attention: the first element of the batch
        one, two = p.digests("part"), q.digests("part")
        equal = all(one[n] and one[n] == two[n] for n in names)
        return None if not equal else -1 if one["D"] == two["D"] else 0
    whole = [n for n in names if n != "A" and p.operands[n]["shape"] == q.operands[n]["shape"]]  # B, a bias, scales
    if sample_key(p) != sample_key(q) or any(one[n] != two[n] for n in whole):
        return None
    rows = [_rows(x) for x in (p, q)]
    common = [key for key in rows[0] if key in rows[1]]
    different = sum(rows[0][key] != rows[1][key] for key in common)
    return None if not common else different or -1


def _rows(p: Recorded) -> dict[bytes, str]:
    """The digest of each sampled row of D, by the bytes of its rows of A, C and scales."""
    A, C, scale = p.sample("A"), p.sample("C"), p.sample("scale_a")
    if A is None:
        return {}
    parts = [A, *([] if C is None else [C]), *([scale] if scale is not None and len(scale) == len(A) else [])]
    keys = [b"".join(x[i].tobytes() for x in parts) for i in range(len(A))]
    return dict(zip(keys, p.row_digests, strict=True))


# --- one run
@dataclass(frozen=True)
class Replayed:
    """Products of a run with equal sizes, types, layouts and settings.

    Attributes
    ----------
    example : Recorded
        The first of them.
    count, explained : int
        Number of products, and of those whose sample a specification reproduces.
    texts : tuple of str
        These specifications in words, or the reason why there is none.
    """

    example: Recorded
    count: int
    explained: int
    texts: tuple[str, ...]


@in_ieee
def replay_run(run: str | os.PathLike[str], *, seconds: float = 20.0, report: Any = None) -> list[Replayed]:
    """Emulate the sample of every product of a run, and find the orders that reproduce it.

    Parameters
    ----------
    run : path
        Folder of the run, from `fpemu.torch.record`.
    seconds : float
        Duration of each search for an order.
    report : callable, optional
        Called with each product.

    Returns
    -------
    list of Replayed
        The products by sizes, types, layouts and settings.

    Raises
    ------
    InputError
        No run.
    """
    number("seconds", seconds, 0)
    groups: dict[str, list[Recorded]] = {}
    for p in read(run):
        groups.setdefault(_kernel(p), []).append(p)
    known: dict[str, dict[str, Specification]] = {}
    replayed = []
    for group in groups.values():
        shared = known.setdefault(str([x["type"] for x in group[0].operands.values()]), {})
        texts: dict[str, Specification | None] = {}
        explained = searches = 0
        for p in group:
            if report is not None:
                report(p)
            orders = [s for s in (*texts.values(), *shared.values()) if s is not None]
            others = [x for x in group if x != p][:_OTHERS] if not orders else []
            found = explain(p, orders, seconds=seconds if searches < _SEARCHES else 0.0, others=others)
            searches += found.text not in texts
            texts.setdefault(found.text, found.specification)
            if found.specification is not None:
                shared[found.text] = found.specification
                explained += 1
        replayed.append(Replayed(group[0], len(group), explained, tuple(texts)))
    return replayed
