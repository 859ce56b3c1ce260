"""Products whose kernels are recorded once and queued for any operands of the same shapes, strides and alignment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fpemu.errors import GpuError, InputError
from fpemu.gpu.gemm import patching
from fpemu.gpu.gemm.base import Kernel, Prepared
from fpemu.gpu.gemm.choice import find
from fpemu.gpu.runtime import device, faults, matrices, recording, tensors
from fpemu.gpu.runtime.matrices import Matrix
from fpemu.gpu.runtime.recording import NotRecordableError
from fpemu.gpu.runtime.sequence import Sequence
from fpemu.schemes.base import Call
from fpemu.schemes.words import OverflowPolicy

__all__ = ["Product", "products", "record", "record_prepared"]

products = tensors.Cache()
"""The recorded products of `fpemu.gpu.gemm`"""


@dataclass(eq=False)
class Product:
    """The recorded kernels of a product.

    Parameters
    ----------
    sequence : Sequence
        Split, product, and the outputs that NaN and Inf reach. The mark is the end of the split, after which the
        counters of faults are complete.
    kernel : Kernel
        The kernel, without separate buffers.
    call : Call
        The checked request.
    deferred : bool
        The overflow policy was left out: faults then raise in `fpemu.gpu.check`.
    sources : dict of str to Matrix
        A and B at placeholders.
    shape, extents : tuple of int
        Shape of D; bytes from the first to the last entry of A, B, C and D.
    prepared_counts : int, optional
        Where the counts of faults lie in an operand prepared in advance.
    """

    sequence: Sequence
    kernel: Kernel
    call: Call
    deferred: bool
    sources: dict[str, Matrix]
    shape: tuple[int, ...]
    extents: tuple[int, ...]
    prepared_counts: int | None = None

    def __post_init__(self) -> None:
        policy, limited = self.call.on_range, self.kernel.scheme.limited
        self.refuses_nonfinite = self.deferred or policy == OverflowPolicy.RAISE
        self.refuses_overflow = self.deferred or limited or policy != OverflowPolicy.PROPAGATE
        self.synchronises = waits(policy, self.kernel.scheme, self.deferred)
        scheme, refused = self.kernel.scheme, (self.refuses_nonfinite, self.refuses_overflow)
        for name, counters in self.sequence.counters.items():
            counters.label(scheme.name, refused, self.sources[name].shape)

    @property
    def _policy(self) -> OverflowPolicy:
        """The policy whose errors are raised."""
        return OverflowPolicy.RAISE if self.deferred else self.call.on_range

    def queue(
        self,
        pointers: list[int],
        room: tuple[int, int, Any],
        stream: int,
        *,
        prepared: int = 0,
        private: bool,
        checks: bool,
    ) -> None:
        """Queue the product; the caller holds the lock.

        Parameters
        ----------
        pointers : list of int
            Addresses of A, B, C and D; 0: none.
        room : (int, int, object)
            Addresses of the workspace and of its zeros; None, or the owner in a capture, as from `tensors.room`.
        prepared : int
            Address of an operand prepared in advance.
        stream : int
            Stream.
        private : bool
            D is not yet visible to the caller, so that the check of the operands' range can follow the product.
        checks : bool
            Wait for the counts of faults and raise InputError for them.
        """
        work, zeros, owner = room
        addresses = [*pointers, work, zeros, prepared]
        if not checks:
            self.sequence.queue(addresses, stream, capture=owner is not None)
            return
        with device.entered(self.sequence.index), faults.reset_on_failure(self.sequence.counters.values(), stream):
            if private:
                self.sequence.queue(addresses, stream)
                self.check(pointers, stream)
            else:
                self.sequence.queue(addresses, stream, 0, self.sequence.mark)
                counted = self.check(
                    pointers, stream
                )  # sets the counts to zero, which the kernel that patches NaN reads
                self.sequence.queue(addresses, stream, 0 if counted else self.sequence.mark)

    def counts(self, prepared: int) -> tuple[int, int]:
        """Return the counts of faults of an operand prepared on the default stream at an address."""
        if self.prepared_counts is None:
            return 0, 0
        nonfinite, overflow = device.fetch(prepared + self.prepared_counts, 2, np.uint64).tolist()
        return nonfinite, overflow

    def refused(self, counts: tuple[int, int]) -> bool:
        """Return whether the overflow policy refuses an operand with these counts of faults."""
        return bool((counts[0] and self.refuses_nonfinite) or (counts[1] and self.refuses_overflow))

    def complaint(self, name: str, counts: tuple[int, int], source: Matrix) -> str:
        """Return the scheme's error for an operand that the policy refuses."""
        scheme = self.kernel.scheme
        try:
            scheme.check_operand(matrices.download(source), name, self._policy)
        except InputError as problem:
            return str(problem)
        raise GpuError(
            f"{self.kernel.name}: {counts[0]} entries of {name} were found NaN or infinite, {counts[1]} "
            "beyond their words, on the GPU alone"
        )

    def check(self, pointers: list[int], stream: int) -> bool:
        """Read the counts of the faults of a stream, and raise InputError for an operand that the policy refuses.

        Returns
        -------
        bool
            Whether there are faults that the policy accepts.
        """
        counted = faults.read(self.sequence.counters.values(), stream)
        for name, counts in counted.items():
            if self.refused(counts):
                source = replace(self.sources[name], pointer=pointers["AB".index(name)])
                raise InputError(self.complaint(name, counts, source))
        return any(map(any, counted.values()))


def record(call: Call, A: Matrix, B: Matrix, C: Matrix | None, D: Matrix, *, deferred: bool) -> Product | None:
    """Record a product; None if its kernel cannot be recorded.

    Operands are matrices on the GPU of the dtype that kernels read; their memory is not accessed.
    """
    recorded = _record(call, A, B, C, D, deferred, prepared=None)
    return None if recorded is None else recorded[1]


def record_prepared(
    call: Call, A: Matrix, B: Matrix, C: Matrix | None, D: Matrix, name: str, *, deferred: bool
) -> tuple[Product, Product] | None:
    """Record a product as the preparation of the operand `name` and the rest; None if the kernel cannot be recorded."""
    recorded = _record(call, A, B, C, D, deferred, prepared=name)
    if recorded is None:
        return None
    assert recorded[0] is not None
    return recorded[0], recorded[1]


def _record(
    call: Call, A: Matrix, B: Matrix, C: Matrix | None, D: Matrix, deferred: bool, prepared: str | None
) -> tuple[Product | None, Product] | None:
    scheme, policy = call.scheme, call.on_range
    request = (scheme, call.spec, (*D.shape[-2:], A.shape[-1]), call.order)
    if not find(*request).recordable:
        return None
    kernel = find.__wrapped__(*request)  # without buffers
    placed: dict[str, Any] = tensors.place(A=A, B=B, C=C, D=D)
    ready: dict[str, Prepared] = {}
    extents = tuple(tensors.extent(X) for X in (A, B, C, D))
    shared = (kernel, call, deferred, {name: placed[name] for name in "AB"}, D.shape, extents)
    first = None
    try:
        if prepared is not None:
            with recording.start("prepared") as before:
                ready[prepared] = kernel.prepare(placed[prepared], prepared, policy)
            counts = ready[prepared].faults
            place = None if counts is None else recording.region(counts.pointer)
            first = Product(Sequence(before, len(before.steps)), *shared, None if place is None else place[1])
        with recording.start() as steps:
            if prepared is None:
                ready["A"], ready["B"] = kernel.both(placed["A"], placed["B"], policy)
            else:
                other = "AB"["AB".index(prepared) - 1]
                ready[other] = kernel.prepare(placed[other], other, policy)
            split = len(steps.steps)
            a, b, scalars = ready["A"], ready["B"], (call.alpha, call.beta)
            kernel.multiply(a, b, placed["D"], *scalars, placed["C"])
            patched = kernel.patches or policy == OverflowPolicy.RAISE
            if not patched and a.special is not None and b.special is not None:
                patching.patch(a, b, placed["D"], *scalars, placed["C"], scheme.nan_code(kernel.spec))
        return first, Product(Sequence(steps, split), *shared)
    except NotRecordableError:
        return None


def waits(policy: OverflowPolicy, scheme: Any, deferred: bool) -> bool:
    """Return whether a call on arrays of the GPU reads the counts of faults: its policy was given and may raise."""
    return not deferred and (scheme.limited or policy != OverflowPolicy.PROPAGATE)


def refuse_capture(handle: int) -> None:
    """Raise InputError for a check of the operands' range within a capture."""
    if tensors.capturing(handle):
        raise InputError("this on_range waits for the GPU, which a CUDA graph cannot capture: leave on_range out")
