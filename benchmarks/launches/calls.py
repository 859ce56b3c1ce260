"""Bits of whole calls on torch tensors of the GPU: eager, by a plan, and replayed from a CUDA graph.

Run in the checkout, on a machine with an NVIDIA GPU and PyTorch: ``python -m benchmarks.launches.calls``. It prints the
number of mismatching outputs against the emulator on the CPU, of every way to call, with the error if there was one.
``python -m benchmarks.calls`` measures the times of these calls.
"""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import fpemu
from fpemu.gpu.runtime import device

SCHEMES = ("staged", "ootomo", "legemm", "h2sgemm", "bf16x9", "bf16x3", "egemm", "markidis", "staged-int8", "sgemm")


class Bits:
    """The products that are compared."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")

    def draw(self, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
        """Return normally distributed numbers on the GPU."""
        x = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
        return self.torch.from_numpy(x).cuda()

    def graph(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return the replay of a call captured in a CUDA graph."""
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        with self.torch.cuda.graph(graph):
            call()
        replay: Callable[[], Any] = graph.replay
        return replay

    # --- sections
    def bits(self) -> dict[str, Any]:
        """Return the mismatching outputs of every way to call."""
        result: dict[str, Any] = {}
        for scheme in SCHEMES:
            for special in (False, True):
                name = f"{scheme}{' with NaN and Inf' if special else ''}"
                try:
                    result[name] = self._bits(scheme, special)
                except Exception:
                    result[name] = {"error": traceback.format_exc()}
        for name, check in (("hgemm", self._hgemm), ("multiply", self._multiply), ("streams", self._streams)):
            try:
                result[name] = check()
            except Exception:
                result[name] = {"error": traceback.format_exc()}
        return result

    def _bits(self, scheme: str, special: bool) -> dict[str, Any]:
        A, B = (self.draw(96, 96, seed=seed) for seed in (1, 2))
        if special:
            A[3, 5], B[7, 9] = float("nan"), float("inf")
        kernel = fpemu.gpu.kernel(scheme, 96, 96, 96)
        want = fpemu.gemm(A.cpu().numpy(), B.cpu().numpy(), on_range="propagate", **kernel.arguments)
        other = self.draw(96, 96, seed=3)
        result: dict[str, Any] = {"kernel": kernel.name}

        def check(name: str, call: Callable[[Any], Any]) -> None:
            D = self.torch.full((96, 96), 7.0, device="cuda")
            call(D)
            got = D.cpu().numpy()
            result[name] = int(np.count_nonzero(got.view(np.uint32) != want.view(np.uint32)))

        def run(D: Any) -> Any:
            return fpemu.gpu.gemm(A, B, scheme=scheme, out=D)

        run(self.torch.empty_like(A))
        fpemu.gpu.gemm(other, other, scheme=scheme)
        check("eager", run)
        plan = fpemu.gpu.plan(scheme, A, B)
        plan(other, other)
        check("plan", lambda D: plan(A, B, out=D))
        ready = plan.prepare(B)
        plan(other, other)
        check("prepared", lambda D: plan(A, ready, out=D))
        for name, call in (
            ("graph", run),
            ("graph of a plan", lambda D: plan(A, B, out=D)),
            ("graph of a prepared plan", lambda D: plan(A, ready, out=D)),
        ):

            def replayed(D: Any, call: Callable[[Any], Any] = call) -> None:
                replay = self.graph(lambda: call(D))
                D.fill_(7.0)
                replay()
                fpemu.gpu.gemm(other, other, scheme=scheme)
                D.fill_(7.0)
                replay()

            check(name, replayed)
        try:
            fpemu.gpu.check()
            result["check"] = None
        except fpemu.InputError as problem:
            result["check"] = str(problem)
        try:
            fpemu.gpu.gemm(A, B, scheme=scheme, on_range="raise", out=self.torch.empty_like(A))
            result["raise"] = None
        except fpemu.InputError as problem:
            result["raise"] = str(problem)
        return result

    def _hgemm(self) -> dict[str, int]:
        result = {}
        for n in (2, 8, 16, 33, 64, 97):
            A, B = (self.draw(24, n, n, dtype="float16", seed=seed) for seed in (1, 2))
            arrays = (A.cpu().numpy(), B.cpu().numpy())
            want = fpemu.batched.hgemm(*arrays, **fpemu.gpu.batched.arguments())
            D = self.torch.empty_like(A)
            for _ in range(2):
                fpemu.gpu.batched.hgemm(B, A, out=D)
                fpemu.gpu.batched.hgemm(A, B, out=D)
            replay = self.graph(lambda D=D, A=A, B=B: fpemu.gpu.batched.hgemm(A, B, out=D))  # type: ignore[misc]
            for name in ("eager", "graph"):
                if name == "graph":
                    D.zero_()
                    replay()
                got = D.cpu().numpy()
                result[f"{n} {name}"] = int(np.count_nonzero(got.view(np.uint16) != want.view(np.uint16)))
        return result

    def _multiply(self) -> dict[str, int]:
        result = {}
        for m, k, n, dtype in ((5000, 32, 4, "float32"), (2048, 512, 8, "float32"), (1024, 300, 16, "float64")):
            A, B = self.draw(m, k, dtype=dtype, seed=1), self.draw(k, n, dtype=dtype, seed=2)
            fmt = "fp32" if dtype == "float32" else "fp64"
            want = fpemu.simt.tsm2(A.cpu().numpy(), B.cpu().numpy(), fmt=fmt)
            D = self.torch.empty(m, n, dtype=A.dtype, device="cuda")
            for _ in range(2):
                fpemu.gpu.tallskinny.multiply(-A, B, out=D)
                fpemu.gpu.tallskinny.multiply(A, B, out=D)
            replay = self.graph(lambda D=D, A=A, B=B: fpemu.gpu.tallskinny.multiply(A, B, out=D))  # type: ignore[misc]
            for name in ("eager", "graph"):
                if name == "graph":
                    D.zero_()
                    replay()
                got = D.cpu().numpy()
                result[f"{m}x{k}x{n} {name}"] = int(np.count_nonzero(got.view(np.uint8) != want.view(np.uint8)))
        return result

    def _streams(self) -> dict[str, int]:
        """Products on four streams at once, in workspaces of their own, against one stream."""
        A, B = (self.draw(700, 700, seed=seed) for seed in (1, 2))
        want = fpemu.gpu.gemm(A, B, scheme="staged").cpu().numpy()
        others = [self.torch.cuda.Stream() for _ in range(4)]
        self.torch.cuda.synchronize()
        outs = []
        for _ in range(20):
            for stream in others:
                with self.torch.cuda.stream(stream):
                    outs.append(fpemu.gpu.gemm(A, B, scheme="staged"))
        self.torch.cuda.synchronize()
        return {"mismatches": sum(int(np.count_nonzero(D.cpu().numpy() != want)) for D in outs)}


def main() -> None:
    missing = device.missing()
    if missing is not None:
        raise SystemExit(f"calls.py: {missing}")
    print(json.dumps(Bits().bits(), indent=1))


if __name__ == "__main__":
    main()
