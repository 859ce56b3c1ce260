"""Products of libraries and of Triton kernels on a GPU, recorded for the notebook ``verify``.

    python notebooks/data/products.py notebooks/data/products.npz      # on a machine with an NVIDIA GPU and PyTorch

`fpemu.inputs` draws the same operands on every machine, so only results are recorded: 24 rows and columns of each
product. With --emulated the expected specifications are evaluated instead; such a recording is for tests only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import fpemu
from fpemu import mma, schemes, simt
from fpemu.conformance.orders import chains_of, lanes_of
from fpemu.conformance.specification import Specification, evaluate
from fpemu.mma import KOrder, tree

LINES = 24  # recorded rows and columns


@dataclass(frozen=True)
class Case:
    """A product: its implementation, formats, shape and seed, and `expected`, a specification with the same bits."""

    name: str
    by: str  # "torch", "triton", "fpemu"
    fmt: str
    shape: tuple[int, int, int]
    seed: int
    expected: Specification
    layout: str = "NN"
    out: str = "fp32"
    alpha: float = 1.0
    beta: float = 0.0
    kernel: dict[str, Any] = field(default_factory=dict)

    def operands(self) -> tuple[Any, Any, Any]:
        """A, B and C or None, as NumPy arrays."""
        M, N, K = self.shape
        fmt = "fp32" if self.fmt == "tf32" else self.fmt
        A, B = fpemu.inputs.operands("uniform", M, N, K, self.seed, fmt, low=-1.0, high=1.0)
        C = fpemu.inputs.make("uniform", (M, N), [self.seed, 7], self.out) if self.beta else None
        return A, B, C

    def specification(self) -> dict[str, Any]:
        """The default specification: one chain of the H200's instruction of this format, or of ordinary cores."""
        return {"hardware": "H200", "fmt": self.fmt, "out": self.out, "alpha": self.alpha, "beta": self.beta}

    def recorded_operands(self) -> tuple[Any, Any, Any]:
        """The rows of A, the columns of B and the entries of C that determine the recorded entries of D."""
        (A, B, C), (rows, columns) = self.operands(), self.recorded()
        return A[rows], B[:, columns], None if C is None else C[rows][:, columns]

    def recorded(self) -> tuple[Any, Any]:
        """The indices of the recorded rows and columns: equally spaced, from the first to the last."""
        M, N, _ = self.shape
        return tuple(np.unique(np.linspace(0, n - 1, min(n, LINES)).astype(int)) for n in (M, N))  # type: ignore


_H = {fmt: mma.spec("H200", fmt, "fp32") for fmt in ("fp16", "bf16", "tf32", "e4m3")}
_TF32 = ("tf32", "RNE")


def cases() -> list[Case]:
    """All test cases."""
    fp16, bf16, tf32, e4m3, fp32 = (*(_H[f] for f in ("fp16", "bf16", "tf32", "e4m3")), simt.SPECS["fp32"])
    tf32x3 = schemes.build(
        "ootomo-tf32",
        {
            "high_rounding": "RNA",
            "residual_rounding": "RZ",
            "products": "rh,hr,hh",
            "accumulators": "one",
            "step": 32,
            "promote": 32,
        },
    )
    return [
        Case("mm fp16", "torch", "fp16", (512, 512, 512), 1, Specification(fp16)),
        Case("mm fp16 deep", "torch", "fp16", (512, 512, 8192), 2, Specification(fp16, order=KOrder(4096))),
        Case("mm fp16 odd", "torch", "fp16", (100, 60, 1000), 3, Specification(fp16, order=KOrder(128, 64, True))),
        Case("mm fp16 odd TN", "torch", "fp16", (100, 60, 1000), 3, Specification(fp16, order=KOrder(112)), "TN"),
        Case("mm fp16 to fp16", "torch", "fp16", (512, 512, 512), 4, Specification(fp16, out="fp16"), out="fp16"),
        Case(
            "mm fp16 to fp16 split",
            "torch",
            "fp16",
            (100, 60, 1000),
            5,
            Specification(fp16, order=KOrder(128, 64, True), out="fp16", stored="fp16"),
            out="fp16",
        ),
        Case("mm bf16", "torch", "bf16", (256, 256, 4096), 6, Specification(bf16, order=KOrder(1408))),
        Case("mm tf32", "torch", "tf32", (512, 512, 512), 7, Specification(tf32, inputs=_TF32)),
        Case(
            "mm tf32 split",
            "torch",
            "tf32",
            (160, 96, 512),
            8,
            Specification(tf32, inputs=_TF32, order=KOrder(64)),
            "TN",
        ),
        Case("mm fp32", "torch", "fp32", (1024, 1024, 1024), 9, Specification(fp32)),
        Case(
            "mm fp32 sliced",
            "torch",
            "fp32",
            (512, 512, 512),
            10,
            Specification(fp32, order=tree.join(chains_of(lanes_of(512, 4, 8), fp32))),
        ),
        Case(
            "addmm fp32",
            "torch",
            "fp32",
            (128, 128, 128),
            11,
            Specification(fp32, alpha=1.3, beta=0.7, epilogue="fma"),
            alpha=1.3,
            beta=0.7,
        ),
        Case(
            "addmm fp16",
            "torch",
            "fp16",
            (256, 256, 256),
            12,
            Specification(fp16, alpha=1.3, beta=0.7, epilogue="fma", out="fp16"),
            out="fp16",
            alpha=1.3,
            beta=0.7,
        ),
        Case("dot fp16", "triton", "fp16", (128, 128, 1024), 13, Specification(fp16), kernel={"BK": 64}),
        Case(
            "dot fp16 promoted",
            "triton",
            "fp16",
            (128, 128, 1024),
            14,
            Specification(fp16, order=KOrder(promote=64)),
            kernel={"BK": 64, "PROMOTE": True},
        ),
        Case(
            "dot fp16 +=", "triton", "fp16", (128, 128, 1024), 14, Specification(fp16), kernel={"BK": 64, "PLUS": True}
        ),
        Case("dot tf32", "triton", "tf32", (128, 128, 512), 15, Specification(tf32), kernel={"BK": 32}),
        Case(
            "dot tf32x3",
            "triton",
            "tf32",
            (128, 128, 512),
            16,
            Specification(tf32, tf32x3),
            kernel={"BK": 32, "PRECISION": "tf32x3"},
        ),
        Case(
            "dot ieee",
            "triton",
            "fp32",
            (128, 128, 512),
            17,
            Specification(fp32),
            kernel={"BK": 32, "PRECISION": "ieee"},
        ),
        Case("dot e4m3", "triton", "e4m3", (128, 128, 2048), 18, Specification(e4m3), "TN", kernel={"BK": 128}),
        Case(
            "dot e4m3 promoted",
            "triton",
            "e4m3",
            (128, 128, 2048),
            19,
            Specification(e4m3, order=KOrder(promote=32)),
            "TN",
            kernel={"BK": 128, "IMPRECISE": 32},
        ),
        Case(
            "dot e4m3 promoted 128",
            "triton",
            "e4m3",
            (128, 128, 2048),
            19,
            Specification(e4m3, order=KOrder(promote=128)),
            "TN",
            kernel={"BK": 128, "IMPRECISE": 128},
        ),
        Case(
            "emulated V100",
            "fpemu",
            "fp16",
            (128, 128, 1024),
            20,
            Specification(mma.spec("V100", "fp16", "fp32"), order=KOrder(promote=32)),
        ),
        Case("wgmma chained", "fpemu", "fp16", (128, 128, 256), 21, Specification(fp16)),
    ]


# --- the products on a GPU
def _tensor(x: Any, fmt: str, layout: str) -> Any:
    import torch

    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
    laid = np.asfortranarray(x) if layout == "TN" else np.ascontiguousarray(x)
    return torch.from_numpy(laid).to(kinds.get(fmt, torch.float32)).cuda()


def on_gpu(case: Case) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A callable that computes the product on the GPU, and its operands: NumPy arrays for fpemu's kernels."""
    A, B, C = case.operands()
    if case.by == "fpemu":
        return (_emulated if case.name.startswith("emulated") else _chained), (A, B)
    a, b = _tensor(A, case.fmt, "NN"), _tensor(B, case.fmt, case.layout)
    if case.by == "triton":
        return lambda x, y: triton_dot(x, y, case), (a, b)
    return _torch(case), (a, b) if C is None else (a, b, _tensor(C, case.out, "NN"))


def _torch(case: Case) -> Callable[..., Any]:
    import torch

    def call(a: Any, b: Any, c: Any = None) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = case.fmt == "tf32"
        if c is not None:
            return torch.addmm(c, a, b, alpha=case.alpha, beta=case.beta)
        if case.fmt in ("fp16", "bf16") and case.out == "fp32":
            return torch.mm(a, b, out_dtype=torch.float32)
        return torch.mm(a, b)

    return call


def _emulated(A: Any, B: Any) -> Any:
    """A V100 emulated on this GPU, promoted every 32."""
    return mma.gemm(A, B, None, mma.spec("V100", "fp16", "fp32"), KOrder(promote=32), device="cuda")


def _chained(A: Any, B: Any) -> Any:
    """A chain of wgmma instructions on this GPU."""
    import fpemu.gpu

    D = None
    for k in range(0, A.shape[1], 16):
        D = fpemu.gpu.execute(A[:, k : k + 16], B[k : k + 16], D, _H["fp16"])
    return D


def triton_dot(a: Any, b: Any, case: Case) -> Any:
    """Multiply by a Triton kernel."""
    import torch
    from triton_dot import dot

    M, N, K = case.shape
    c = torch.empty((M, N), dtype=torch.float32, device="cuda")
    options = {"PROMOTE": False, "PLUS": False, "IMPRECISE": None, "PRECISION": "tf32", **case.kernel}
    strides = (a.stride(0), a.stride(1), b.stride(0), b.stride(1))
    dot[(M // 64, N // 64)](a, b, c, 1.0, N, K, *strides, BM=64, BN=64, num_warps=4, **options)
    return c


# --- the recording
def emulated(case: Case) -> Any:
    """The recorded entries, evaluated by the expected specification."""
    A, B, C = case.operands()
    return evaluate(case.expected, A, B, C, *case.recorded())


def measured(case: Case) -> Any:
    """The recorded entries of the product on the GPU."""
    from fpemu.probing.callables import as_matrix

    call, operands = on_gpu(case)
    rows, columns = case.recorded()
    return np.ascontiguousarray(as_matrix(call(*operands), case.name).values[rows][:, columns])


def origin(is_emulated: bool) -> dict[str, str]:
    """The origin of a recording: device, versions and date."""
    if is_emulated:
        return {"device": "none: emulated", "date": ""}
    import torch
    import triton

    from fpemu.verification import records

    return {
        "device": torch.cuda.get_device_name(0),
        "driver": str(records.driver()),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def record(path: Path, *, is_emulated: bool = False, say: Callable[[str], None] = print) -> dict[str, str]:
    """Record all test cases; return the failed ones with their errors."""
    results, failed = {}, {}
    for case in cases():
        try:
            results[case.name] = emulated(case) if is_emulated else measured(case)
        except Exception as problem:
            failed[case.name] = f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"[:300]
            say(f"{case.name}: {failed[case.name]}")
    text = json.dumps({**origin(is_emulated), "failed": failed}, indent=1)
    np.savez_compressed(path, origin=np.frombuffer(text.encode(), np.uint8), **results)
    return failed


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the origin of a recording, and its results by name."""
    with np.load(path) as archive:
        stored = {name: archive[name] for name in archive.files}
    return json.loads(stored.pop("origin").tobytes()), stored


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Record the products of the notebook verify.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--emulated", action="store_true", help="evaluate the expected specifications, without a GPU")
    chosen = parser.parse_args()
    record(chosen.file, is_emulated=chosen.emulated)
    print(f"{chosen.file}: {chosen.file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
