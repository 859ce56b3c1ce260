"""The context that records PyTorch's products: samples, digests, layouts and settings of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from fpemu.arguments import integer, integers
from fpemu.conformance.runs import CODES, Recorded, RunWriter, sample_key, sampled
from fpemu.errors import InputError
from fpemu.library.cublas import environment

_OPERANDS = {
    **dict.fromkeys(("mm", "bmm", "_int_mm"), ("A", "B")),
    **dict.fromkeys(("addmm", "baddbmm"), ("C", "A", "B")),
    "linear": ("A", "B", "C"),
    "_scaled_mm": ("A", "B", "scale_a", "scale_b", "C"),
}
"""The roles of the first arguments of PyTorch's products."""
_FUSED = ("_scaled_dot_product_", "_flash_attention_forward", "_efficient_attention_forward")
_TYPES = {"torch.float16": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float64": "fp64",
          "torch.float8_e4m3fn": "e4m3", "torch.float8_e5m2": "e5m2", "torch.int8": "int8",
          "torch.int32": "int32"}  # fmt: skip
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE",
              "TORCH_BLAS_PREFER_CUBLASLT")  # fmt: skip
_PENDING = 64  # products, and bytes of samples, that wait on the GPU
_BYTES = 2**26
_WORDS = 2**24  # words of a digest that are mixed at once
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))  # fpemu._system.mix
_CUDA = """template <typename T> T mixed(T word, T index) {
    auto mix = [](unsigned long long x) {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        return x ^ (x >> 31);
    };
    return (T)mix(mix((unsigned long long)index) + (unsigned long long)word);
}"""


class Recorder(TorchDispatchMode):
    """`fpemu.torch.record`."""

    def __init__(self, folder: Any, rows: Any, columns: int, limit: int, keep: Any, operators: Iterable[str]) -> None:
        super().__init__()
        self.rows = integer("rows", rows, 1) if isinstance(rows, int) else tuple(integers("rows", rows, 0))
        self.columns = integer("columns", columns, 1)
        self.operators = tuple(operators)
        self.writer = RunWriter(folder, _about(), limit, keep)
        self.count = 0
        self.pending: list[tuple[Recorded, dict[str, Tensor], dict[tuple[str, str], Tensor]]] = []
        self.waiting, self.most = 0, min(_BYTES, limit // 16)
        self.modules = ModuleTracker()
        self.places: dict[Any, tuple[tuple[int, ...], Tensor]] = {}

    def __enter__(self) -> Recorder:
        self.modules.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self.modules.__exit__(*problem)
        self.flush()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        space, _, name = func._schema.name.partition("::")
        plain = space == "aten" and not any(t not in (Tensor, torch.nn.Parameter) for t in types)
        if (plain and name.removesuffix("_") in _OPERANDS) or func._schema.name in self.operators:
            roles = _OPERANDS.get(name.removesuffix("_"), ("A", "B"))
            given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
            tensors = dict(zip(roles, [given.get(a.name) for a in func._schema.arguments], strict=False))
            if name == "linear":
                tensors["B"] = tensors["B"].mT
            return self._record(func, args, kwargs, name, tensors, given)
        if plain and name.startswith(_FUSED) and "backward" not in name:
            return self._record(func, args, kwargs, name, dict(zip(("query", "key", "value"), args, strict=False)), {})
        return func(*args, **kwargs)

    def add(self, operator: str, A: Tensor, B: Tensor, D: Tensor, C: Tensor | None = None) -> None:
        """Record a product A B, or A B + C, that is no operator of PyTorch, such as a Triton kernel's."""
        with torch.no_grad():
            self._finish(self._operands(operator, {"A": A, "B": B, "C": C}, {}), D)

    def _record(self, func: Any, args: Any, kwargs: Any, name: str, tensors: Any, given: dict[str, Any]) -> Any:
        known = [x for x in tensors.values() if isinstance(x, Tensor)]
        if any(x.is_meta or x.is_sparse or not x.numel() or str(x.dtype) not in _TYPES for x in known):
            return func(*args, **kwargs)
        if known[0].is_cuda and torch.cuda.is_current_stream_capturing():
            raise InputError("a CUDA graph is captured within fpemu.torch.record, which cannot copy its products")
        begun = self._operands(name, tensors, given)  # before the call, which may overwrite C
        result = func(*args, **kwargs)
        self._finish(begun, result[0] if isinstance(result, tuple | list) else result)
        return result

    def _operands(self, name: str, tensors: dict[str, Tensor | None], given: dict[str, Any]) -> tuple[Any, ...]:
        """The record of a call without its result, and the GPU's samples and digests of the operands."""
        present = {role: x for role, x in tensors.items() if isinstance(x, Tensor)}
        samples: dict[str, Tensor] = {}
        digests: dict[tuple[str, str], Tensor] = {}
        scales = {role: present.pop(role) for role in ("scale_a", "scale_b") if role in present}
        operands = {role: _layout(x) for role, x in present.items()}
        for role, x in present.items():
            digests |= _digests(role, x)
        product = Recorded(self.count, name, None, operands, self._module())
        self.count += 1
        if "A" in present and present["A"].dim() > 1:
            A, B = present["A"], present["B"]
            M, N, K = A.shape[-2], B.shape[-1], A.shape[-1]
            (r, rows), (c, columns) = self._places(M, self.rows, A.device), self._places(N, self.columns, A.device)
            samples["A"], samples["B"] = _first(A)[rows], _first(B)[:, columns]
            if "C" in present:
                samples["C"] = _first(present["C"].expand(*A.shape[:-1], N))[rows][:, columns]
            for role, x in scales.items():
                axis, lines, length = (0, rows, M) if role == "scale_a" else (1, columns, N)
                if x.numel() == 1:
                    samples[role] = x.reshape(1, 1)
                else:  # of rows or columns, or of blocks of 128 of them
                    samples[role] = x.index_select(axis, lines if x.shape[axis] == length else lines // 128)
                digests |= _digests(role, x)
                operands[role] = _layout(x)
            beta = given.get("beta", 1.0 if "C" in present else 0.0)
            factors: Any = {"alpha": float(given.get("alpha", 1.0)), "beta": float(beta)}
            product = replace(product, sizes=(M, N, K), rows=r, columns=c, flags=_flags(A, given), **factors)
            return product, samples, digests, rows, columns
        return product, samples, digests, None, None

    def _places(self, length: int, count: Any, device: Any) -> tuple[tuple[int, ...], Tensor]:
        """The sampled rows or columns, and their indices on the device."""
        key = length, count, device
        if key not in self.places:
            within = [] if isinstance(count, int) else [i for i in count if i < length]
            places = sampled(length, count) if isinstance(count, int) else np.array(within, np.int64)
            self.places[key] = tuple(places.tolist()), torch.from_numpy(places).to(device)
        return self.places[key]

    def _module(self) -> str:
        """The innermost module that runs."""
        names = [name for name in self.modules.parents if name != "Global"]
        return max(names, key=lambda name: (name.count("."), name), default="")

    def _finish(self, begun: tuple[Any, ...], D: Tensor) -> None:
        """Complete the record of a call by its result."""
        product, samples, digests, rows, columns = begun
        product.operands["D"] = _layout(D)
        digests |= _digests("D", D)
        if rows is not None:
            some = _first(D)[rows]
            digests["D", "rows"] = digest(some)
            samples["D"] = some[:, columns]
        self.pending.append((product, samples, digests))
        self.waiting += sum(x.numel() * x.element_size() for x in samples.values())
        if len(self.pending) >= _PENDING or self.waiting > self.most:
            self.flush()

    def flush(self) -> None:
        """Write the products that wait on the GPU to the files."""
        pending, self.pending, self.waiting = self.pending, [], 0
        digested = _copied([x for *_, digests in pending for x in digests.values()])
        listed = []
        for product, samples, digests in pending:
            for role, key in digests:
                words = [f"{value:016x}" for value in next(digested).view(np.uint64)]
                if key == "rows":
                    product = replace(product, row_digests=tuple(words))
                else:
                    product.operands[role][key] = words[0]
            listed.append((product, samples))
        new = dict.fromkeys(key for product, _ in listed if not self.writer.holds(key := sample_key(product)))
        # B of one digest is copied once
        for product, samples in listed:
            if sample_key(product) not in new:
                samples.pop("B", None)
            new.pop(sample_key(product), None)
        copied = _copied([x for _, samples in listed for x in samples.values()])
        for product, samples in listed:
            arrays = {name: (_code(x), tuple(x.shape), next(copied).tobytes()) for name, x in samples.items()}
            self.writer.add(product, arrays)
        self.writer.flush()


def _first(x: Tensor) -> Tensor:
    """The first matrix of a batch."""
    return x.reshape(-1, *x.shape[-2:])[0]


def _layout(x: Tensor) -> dict[str, Any]:
    return {"type": _TYPES[str(x.dtype)], "shape": list(x.shape), "strides": list(x.stride())}


def _digests(role: str, x: Tensor) -> dict[tuple[str, str], Tensor]:
    """The digest of a tensor, and of the first element of its batch."""
    whole = {(role, "digest"): digest(x.reshape(1, -1))}
    return whole | ({(role, "part"): digest(x[:1].reshape(1, -1))} if x.dim() > 2 else {})


def digest(x: Tensor) -> Tensor:
    """`fpemu._system.digest` of the bytes of each row, as words of 8 bytes; zeros pad the last."""
    x = x.contiguous()
    if x.storage_offset() * x.element_size() % 8:
        x = x.clone()
    codes = x.view(torch.uint8)
    if codes.shape[1] % 8:
        codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 8))
    words = codes.view(torch.int64)
    mix, step, sums = _mixer(x.device.type), max(1, _WORDS // max(1, len(words))), []
    for start in range(0, words.shape[1], step):
        some = words[:, start : start + step]
        index = torch.arange(start, start + some.shape[1], device=x.device)
        sums.append(mix(some, index.expand_as(some)).sum(1))
    return sum(sums[1:], sums[0])


def _mixed(word: Tensor, index: Tensor) -> Tensor:
    """mix(mix(index) + word) of `fpemu._system.mix`."""
    x = index
    for addend in (word, 0):
        for shift, factor in _MIX:
            x = (x ^ ((x >> shift) & (2 ** (64 - shift) - 1))) * factor
        x = x + addend
    return x


_mixers: dict[str, Any] = {}


def _mixer(device: str) -> Any:
    """The mixture as one kernel on a GPU."""
    if device not in _mixers:
        _mixers[device] = _mixed
        with contextlib.suppress(AttributeError, RuntimeError):
            if device == "cuda" and torch.version.hip is None:
                _mixers[device] = torch.cuda.jiterator._create_jit_fn(_CUDA)
    return _mixers[device]


def _code(x: Tensor) -> str:
    return CODES[_TYPES[str(x.dtype)]]


def _copied(tensors: list[Tensor]) -> Iterator[Any]:
    """The bytes of tensors in the memory of the CPU, by one copy for each device."""
    devices: dict[Any, list[Tensor]] = {}
    for x in tensors:
        devices.setdefault(x.device, []).append(x.contiguous().reshape(-1).view(torch.uint8))
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the products may have run on several streams
    content = {device: torch.cat(parts).cpu().numpy() for device, parts in devices.items()}
    start = dict.fromkeys(devices, 0)
    for x in tensors:
        first = start[x.device]
        start[x.device] += x.numel() * x.element_size()
        yield content[x.device][first : start[x.device]]


def _flags(x: Tensor, given: dict[str, Any]) -> dict[str, Any]:
    """The settings that may change the bits of a product."""
    flags: dict[str, Any] = {"device": x.device.type}
    if given.get("use_fast_accum") is not None:
        flags["use_fast_accum"] = given["use_fast_accum"]
    if x.is_cuda:
        matmul = torch.backends.cuda.matmul
        names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
                 "allow_fp16_accumulation")  # fmt: skip
        for name in names:
            with contextlib.suppress(AttributeError, RuntimeError, AssertionError):
                flags[name] = getattr(matmul, name)
        flags["library"] = str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2]
    return flags


def _about() -> dict[str, Any]:
    """Versions and hardware."""
    about: dict[str, Any] = {"torch": torch.__version__}
    about |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    with contextlib.suppress(InputError):
        major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
        about |= environment() | {"hardware": f"sm_{major}{minor}"}
    return about
