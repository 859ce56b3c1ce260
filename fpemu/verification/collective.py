"""``fpemu verify collective``: sums of NCCL over the GPUs of this host against `fpemu.library.all_reduce`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpemu.arguments import integer
from fpemu.errors import InputError
from fpemu.formats import get
from fpemu.inputs import make
from fpemu.library import all_reduce, reduce_scatter
from fpemu.library.cublas import environment, torch
from fpemu.verification import records
from fpemu.verification.cases import codes
from fpemu.verification.records import Outcome
from fpemu.verification.suite import Group, Suite, difference

_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
_SIZES = 30
_LARGEST = 2**23  # entries


class Collective(Suite):
    """Verification of NCCL's sums in 30 sizes over `ranks` GPUs (default: all of this host, at most 8)."""

    name = "collective"
    about = (
        "Sums of NCCL over the GPUs of one host, compared entry by entry with fpemu.library. counts: unknown: sizes for"
        " which the choice of NCCL was not recorded, and which are not compared"
    )
    decisive = ("ranks",)

    def __init__(self, seed: int, ranks: int | None = None) -> None:
        self.torch: Any = torch()
        count = self.torch.cuda.device_count()
        if count < 2:
            raise InputError("NCCL adds over several GPUs, and PyTorch finds one here")
        self.ranks = integer("ranks", min(count, 8) if ranks is None else ranks, 2, min(count, 8))
        super().__init__(seed)

    @cached_property
    def groups(self) -> dict[str, Group]:
        return {f"{kind} {name}": Group(alone=True) for kind in _TYPES for name in ("all_reduce", "reduce_scatter")}

    def device(self) -> dict[str, str]:
        version = ".".join(map(str, self.torch.cuda.nccl.version()))
        return {**environment(), "driver": records.driver(), "nccl": version, "ranks": str(self.ranks)}

    def sizes(self) -> list[int]:
        """Numbers of entries, evenly in their logarithm, divisible by the number of ranks."""
        n = np.exp2(np.linspace(np.log2(2 * self.ranks), np.log2(_LARGEST), _SIZES)).astype(int)
        return [int(x) // self.ranks * self.ranks for x in n]

    def run(self, group: str) -> Outcome:
        kind, name = group.split()
        outcome, fmt = Outcome(group), get(kind)
        for n in self.sizes():
            drawn = [make("normal", (n,), self.seed + rank, fmt) for rank in range(self.ranks)]
            parts = [np.asarray(x * 2.0 ** (rank % 3), fmt.dtype) for rank, x in enumerate(drawn)]
            try:
                expected = [all_reduce(parts, fmt=kind)] if name == "all_reduce" else reduce_scatter(parts, fmt=kind)
            except InputError:
                outcome.counts["unknown"] = outcome.counts.get("unknown", 0) + 1
                continue
            outcome.cases += 1
            for got, right in zip(self.added(parts, kind, name), expected * (self.ranks // len(expected)), strict=True):
                count, place = difference(codes(got), codes(right))
                outcome.outputs, outcome.mismatches = outcome.outputs + got.size, outcome.mismatches + count
                outcome.first += [f"{n} entries: {place}"] * bool(place and len(outcome.first) < 5)
        return outcome

    def added(self, parts: list[NDArray[Any]], kind: str, name: str) -> list[NDArray[Any]]:
        """Each rank's result of NCCL."""
        t, dtype = self.torch, getattr(self.torch, _TYPES[kind])
        tensors = [t.from_numpy(x).to(f"cuda:{rank}").to(dtype) for rank, x in enumerate(parts)]
        outputs = tensors
        if name == "all_reduce":
            t.cuda.nccl.all_reduce(tensors)
        else:
            outputs = [x.new_empty(len(x) // self.ranks) for x in tensors]
            t.cuda.nccl.reduce_scatter(tensors, outputs)
        return [(x.float() if kind == "bf16" else x).cpu().numpy() for x in outputs]
