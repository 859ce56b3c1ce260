"""Cost of whole calls on torch tensors of the GPU: eager, by a plan, and replayed from a CUDA graph.

Run in the checkout, on a machine with an NVIDIA GPU and PyTorch: ``python -m benchmarks.launches.calls [FILE]``. The
file, by default the record that the figure ``speed/calls`` shows, receives one JSON object, again after every section,
so that an interrupted run keeps the finished ones:

bits
    Mismatching outputs against the emulator on the CPU, of every way to call, with the error if there was one.
host
    Host time per call in microseconds: the median over 15 repetitions of 50 calls each, which are queued without
    waiting. The stream is synchronised between repetitions. Beside it torch.mm(out=) and torch.bmm(out=), and the
    largest ratio of a call to torch.mm(out=) over all schemes.
batches, products
    Time per call in microseconds from the first call to the end of the last one: the median over 7 repetitions of 50.
parts
    Host time in microseconds of the pieces of a call.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fpemu
from fpemu.files import write_atomic
from fpemu.gpu.runtime import device, native, tensors

SCHEMES = ("staged", "ootomo", "legemm", "h2sgemm", "bf16x9", "bf16x3", "egemm", "markidis", "staged-int8", "sgemm")
BATCHES = {n: min(200_000, 2**24 // n**2) for n in (2, 4, 8, 11, 16, 24, 32, 48, 63, 64, 97, 127, 128)}
TALL = (
    (1_000_000, 32, 4, "float32"),
    (15_360, 15_360, 16, "float64"),
    (20_480, 20_480, 2, "float64"),
    (20_480, 20_480, 8, "float64"),
    (20_480, 20_480, 16, "float64"),
    (20_480, 20_480, 8, "float32"),
)
HOST, WHOLE, CALLS = 15, 7, 50
RECORD = Path(__file__).parents[2] / "experiments" / "speed" / "h200_calls.json"


class Bench:
    """The sections of the benchmark, and their results."""

    def __init__(self, file: Path) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.file = file
        versions = {"torch": self.torch.__version__, "python": sys.version.split()[0]}
        self.results: dict[str, Any] = {**device.describe(), **versions, "seconds": {}}

    def section(self, name: str, run: Callable[[], Any]) -> None:
        """Run a section and save its results; a failure is saved as its traceback."""
        start = time.perf_counter()
        try:
            self.results[name] = run()
        except Exception:
            self.results[name] = {"error": traceback.format_exc()}
        self.results["seconds"][name] = round(time.perf_counter() - start, 1)
        write_atomic(self.file, (json.dumps(self.results, indent=1) + "\n").encode())

    def draw(self, *shape: int, dtype: str = "float32", seed: int = 0) -> Any:
        """Return normally distributed numbers on the GPU."""
        x = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
        return self.torch.from_numpy(x).cuda()

    def host(self, call: Callable[[], Any]) -> float:
        """Return the host time of a call in microseconds."""
        return self._time(call, HOST, whole=False)

    def whole(self, call: Callable[[], Any]) -> float:
        """Return the time of a call in microseconds, its work on the GPU included."""
        return self._time(call, WHOLE, whole=True)

    def _time(self, call: Callable[[], Any], repetitions: int, *, whole: bool) -> float:
        times = []
        for _ in range(3):
            call()
        for _ in range(repetitions):
            self.torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            if whole:
                self.torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / CALLS)
        self.torch.cuda.synchronize()
        return round(1e6 * statistics.median(times), 2)

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

    def host_times(self) -> dict[str, Any]:
        """Return the host times of calls of 512×512×512 and of a tall and skinny product."""
        torch = self.torch
        A, B, D = self.draw(512, 512, seed=1), self.draw(512, 512, seed=2), self.draw(512, 512)
        E, F = self.draw(512, 512), self.draw(512, 512, seed=4)
        result: dict[str, Any] = {
            "torch.mm(out=)": self.host(lambda: torch.mm(A, B, out=D)),
            "torch.mm(out=) replayed": self.host(self.graph(lambda: torch.mm(A, B, out=D))),
        }
        turn = [(A, D), (F, E)]
        for scheme in SCHEMES:
            plan = fpemu.gpu.plan(scheme, A, B)
            ready = plan.prepare(B)

            def alternate(scheme: str = scheme) -> Any:
                turn.reverse()
                return fpemu.gpu.gemm(turn[0][0], B, scheme=scheme, out=turn[0][1])

            calls: dict[str, Callable[[], Any]] = {
                "eager": lambda scheme=scheme: fpemu.gpu.gemm(A, B, scheme=scheme, out=D),  # type: ignore[misc]
                "eager, other operands": alternate,
                "eager, propagate": lambda scheme=scheme: fpemu.gpu.gemm(  # type: ignore[misc]
                    A, B, scheme=scheme, on_range="propagate", out=D
                ),
                "eager, new output": lambda scheme=scheme: fpemu.gpu.gemm(A, B, scheme=scheme),  # type: ignore[misc]
                "raise": lambda scheme=scheme: fpemu.gpu.gemm(  # type: ignore[misc]
                    A, B, scheme=scheme, on_range="raise", out=D
                ),
                "plan": lambda plan=plan: plan(A, B, out=D),  # type: ignore[misc]
                "prepared plan": lambda plan=plan, ready=ready: plan(A, ready, out=D),  # type: ignore[misc]
            }
            result[scheme] = {name: self.host(call) for name, call in calls.items()}
            result[scheme]["replayed"] = self.host(self.graph(calls["eager"]))
            result[scheme]["kernels"] = plan.kernels
        X, Y = self.draw(512, 32), self.draw(32, 4)
        Z = torch.empty(512, 4, device="cuda")
        result["tall and skinny, 512x32x4"] = {
            "multiply": self.host(lambda: fpemu.gpu.tallskinny.multiply(X, Y, out=Z)),
            "torch.mm(out=)": self.host(lambda: torch.mm(X, Y, out=Z)),
        }
        result["torch.mm(out=) again"] = self.host(lambda: torch.mm(A, B, out=D))
        product = min(result["torch.mm(out=)"], result["torch.mm(out=) again"])
        result["largest ratio to torch.mm(out=)"] = {
            name: round(max(result[scheme][name] for scheme in SCHEMES) / product, 3)
            for name in ("eager", "eager, other operands", "plan", "prepared plan")
        }
        return result

    def batches(self) -> dict[str, Any]:
        """Return host and whole times of fp16 batches."""
        result = {}
        for n, count in BATCHES.items():
            A, B = (self.torch.randn(count, n, n, dtype=self.torch.float16, device="cuda") for _ in range(2))
            D = self.torch.empty_like(A)
            ours: Callable[[], Any] = lambda A=A, B=B, D=D: fpemu.gpu.batched.hgemm(A, B, out=D)  # type: ignore[misc] # noqa: E731
            theirs: Callable[[], Any] = lambda A=A, B=B, D=D: self.torch.bmm(A, B, out=D)  # type: ignore[misc] # noqa: E731
            result[f"{n} x {count}"] = {
                "fpemu": self.whole(ours),
                "bmm": self.whole(theirs),
                "fpemu graph": self.whole(self.graph(ours)),
                "bmm graph": self.whole(self.graph(theirs)),
            }
        A, B = (self.torch.randn(16, 16, 16, dtype=self.torch.float16, device="cuda") for _ in range(2))
        D = self.torch.empty_like(A)
        result["host, 16 x 16"] = {
            "fpemu": self.host(lambda: fpemu.gpu.batched.hgemm(A, B, out=D)),
            "bmm": self.host(lambda: self.torch.bmm(A, B, out=D)),
        }
        return result

    def products(self) -> dict[str, Any]:
        """Return whole times of products, eager and replayed, beside SGEMM and three fp16 products of cuBLAS."""
        result = {}
        for n in (512, 1024, 2048, 4096):
            A, B, D = self.draw(n, n, seed=1), self.draw(n, n, seed=2), self.draw(n, n)
            mm: Callable[[], Any] = lambda A=A, B=B, D=D: self.torch.mm(A, B, out=D)  # type: ignore[misc] # noqa: E731
            row = {"SGEMM": self.whole(mm), "SGEMM graph": self.whole(self.graph(mm))}
            E, F = A.half(), B.half()
            G = self.torch.empty_like(E)
            row["three fp16"] = 3 * self.whole(lambda E=E, F=F, G=G: self.torch.mm(E, F, out=G))  # type: ignore[misc]
            for scheme in ("staged", "ootomo", "legemm"):
                plan = fpemu.gpu.plan(scheme, A, B)
                ready = plan.prepare(B)
                eager: Callable[[], Any] = lambda A=A, B=B, D=D, s=scheme: fpemu.gpu.gemm(A, B, scheme=s, out=D)  # type: ignore[misc] # noqa: E731
                fast: Callable[[], Any] = lambda A=A, D=D, p=plan, r=ready: p(A, r, out=D)  # type: ignore[misc] # noqa: E731
                row[scheme], row[f"{scheme} graph"] = self.whole(eager), self.whole(self.graph(eager))
                row[f"{scheme} prepared"] = self.whole(fast)
                row[f"{scheme} prepared graph"] = self.whole(self.graph(fast))
            result[str(n)] = row
        for m, k, n, dtype in TALL:
            kind = getattr(self.torch, dtype)
            A, B, D = (self.torch.randn(*shape, dtype=kind, device="cuda") for shape in ((m, k), (k, n), (m, n)))
            ts: Callable[[], Any] = lambda A=A, B=B, D=D: fpemu.gpu.tallskinny.multiply(A, B, out=D)  # type: ignore[misc] # noqa: E731
            mm = lambda A=A, B=B, D=D: self.torch.mm(A, B, out=D)  # type: ignore[misc] # noqa: E731
            result[f"{m}x{k}x{n} {dtype}"] = {"multiply": self.whole(ts), "SGEMM": self.whole(mm)}
        return result

    def parts(self) -> dict[str, Any]:
        """Return host times of the pieces of a call, and of launches with and without the compiled code."""
        A, B, D = self.draw(512, 512, seed=1), self.draw(512, 512, seed=2), self.draw(512, 512)
        read = tensors.facts(A, B, None, D)
        assert read is not None
        plan = fpemu.gpu.plan("staged", A, B)
        for _ in range(3):
            plan(A, B, out=D)
        repeats, product = plan._repeats, plan._first()
        kernels = product.sequence
        arena = plan._arenas.of(0, kernels)
        addresses = [*read[1], arena.work, arena.zeros, 0]
        gemm = sys.modules["fpemu.gpu.gemm.call"]

        def compiled() -> None:
            result = repeats.call(repeats.address, A, B, None, D)
            assert result >= 0

        functions = native.calls()
        result = {
            "facts": self.host(lambda: tensors.facts(A, B, None, D)),
            "request": self.host(lambda: gemm._request("staged", 1.0, 0.0, None, None, {})),
            "stream": self.host(lambda: tensors.stream(0)),
            "new_empty": self.host(lambda: A.new_empty((512, 512))),
            "launches": kernels.kernels,
            "compiled functions": functions is not None and functions[1] is not None,
            "exchange interface": native.exchange(self.torch.Tensor) is not None,
            "compiled call that finds no entry": self.host(lambda: repeats.call(repeats.address, A, A, A, D)),
            "compiled call with a graph": self.host(compiled),
            "launches by a graph": self.host(lambda: kernels.queue(addresses, 0)),
            "launches by the compiled code": self.host(lambda: kernels.queue(addresses, 0, capture=True)),
        }
        graphs = native.ENTRY.index("graphs")
        for _, entry, _ in repeats._entries:
            entry[graphs] = 0
        result["compiled call without a graph"] = self.host(compiled)
        address, kernels.address = kernels.address, 0
        result["launches by cuda.bindings"] = self.host(lambda: kernels.queue(addresses, 0, capture=True))
        kernels.address = address
        return result


def main() -> None:
    missing = device.missing()
    if missing is not None:
        raise SystemExit(f"calls.py: {missing}")
    bench = Bench(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORD)
    for name, run in (
        ("host", bench.host_times),
        ("parts", bench.parts),
        ("batches", bench.batches),
        ("products", bench.products),
        ("bits", bench.bits),
    ):
        bench.section(name, run)
    print(json.dumps({name: bench.results[name] for name in ("seconds", "parts", "host")}, indent=1))


if __name__ == "__main__":
    main()
