"""Host time of calls, in microseconds: the functions of `fpemu.gpu` with a given output, and those of `fpemu.torch`."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import fpemu
from benchmarks.calls.timer import Call, Row, Timer

LIBRARY = "torch.mm(out=)"
SCHEMES = ("staged", "ootomo", "legemm", "h2sgemm", "bf16x9", "bf16x3", "egemm", "markidis", "staged-int8", "sgemm")


def product(timer: Timer, scheme: str) -> Row:
    """Measure products 512×512×512 by a scheme: eager, by a plan, and replayed from a CUDA graph."""
    (A, B, D), (E, F) = ([timer.draw(512, 512) for _ in range(count)] for count in (3, 2))
    plan = fpemu.gpu.plan(scheme, A, B)
    ready = plan.prepare(B)
    gemm, mm = partial(fpemu.gpu.gemm, scheme=scheme), partial(timer.torch.mm, A, B, out=D)
    turn = [(A, D), (F, E)]

    def alternate() -> None:
        turn.reverse()
        gemm(turn[0][0], B, out=turn[0][1])

    calls: dict[str, Call] = {
        LIBRARY: mm,
        "eager": partial(gemm, A, B, out=D),
        "eager, other operands": alternate,
        "eager, propagate": partial(gemm, A, B, on_range="propagate", out=D),
        "eager, new output": partial(gemm, A, B),
        "raise": partial(gemm, A, B, on_range="raise", out=D),
        "plan": partial(plan, A, B, out=D),
        "prepared plan": partial(plan, A, ready, out=D),
    }
    replays = {f"{LIBRARY} replayed": timer.graph(mm), "replayed": timer.graph(calls["eager"])}
    return timer.host(calls | replays)


def batch(timer: Timer) -> Row:
    """Measure 16 products 16×16×16 in fp16."""
    A, B, D = (timer.draw(16, 16, 16, dtype="float16") for _ in range(3))
    return timer.host(
        {
            "torch.bmm(out=)": partial(timer.torch.bmm, A, B, out=D),
            "hgemm": partial(fpemu.gpu.batched.hgemm, A, B, out=D),
        }
    )


def tall(timer: Timer) -> Row:
    """Measure a product 512×32×4."""
    A, B, D = timer.draw(512, 32), timer.draw(32, 4), timer.draw(512, 4)
    return timer.host(
        {LIBRARY: partial(timer.torch.mm, A, B, out=D), "multiply": partial(fpemu.gpu.tallskinny.multiply, A, B, out=D)}
    )


# --- fpemu.torch: new results, and 64×64×64 if no other shape is stated
def gemm(timer: Timer) -> Row:
    """Measure a product by the function, by the operator, and by a routed ``A @ B``."""
    A, B = timer.draw(64, 64), timer.draw(64, 64)
    calls: dict[str, Call] = {
        "torch.mm": partial(timer.torch.mm, A, B),
        "fpemu.gpu.gemm": partial(fpemu.gpu.gemm, A, B, scheme="staged"),
        "fpemu.torch.gemm": partial(fpemu.torch.gemm, A, B, scheme="staged"),
    }
    row = timer.host(calls)
    with fpemu.torch.matmul("staged"):
        return row | timer.host({"A @ B within fpemu.torch.matmul": lambda: A @ B})


def hgemm(timer: Timer) -> Row:
    """Measure 16 products 16×16×16 in fp16 by the function and by the operator."""
    A, B = (timer.draw(16, 16, 16, dtype="float16") for _ in range(2))
    return _functions(timer, ("torch.bmm", "fpemu.gpu.batched.hgemm", "fpemu.torch.hgemm"), A, B)


def multiply(timer: Timer) -> Row:
    """Measure a product 512×32×4 by the function and by the operator."""
    names = ("torch.mm", "fpemu.gpu.tallskinny.multiply", "fpemu.torch.multiply")
    return _functions(timer, names, timer.draw(512, 32), timer.draw(32, 4))


def _functions(timer: Timer, names: tuple[str, ...], A: Any, B: Any) -> Row:
    """Measure functions of PyTorch and of fpemu by their names."""
    roots = SimpleNamespace(torch=timer.torch, fpemu=fpemu)
    return timer.host({name: partial(attrgetter(name)(roots), A, B) for name in names})


def gradients(timer: Timer) -> Row:
    """Measure calls that record gradients, without and with the backward pass."""
    B, dD = timer.draw(64, 64), timer.draw(64, 64)
    A = timer.draw(64, 64).requires_grad_()
    forward: dict[str, Call] = {
        "torch.mm": partial(timer.torch.mm, A, B),
        "fpemu.torch.gemm": partial(fpemu.torch.gemm, A, B, scheme="staged"),
    }

    def both(call: Call) -> None:
        timer.torch.autograd.grad(call(), A, dD)

    return timer.host(forward | {f"{name} and backward": partial(both, call) for name, call in forward.items()})


def compiled(timer: Timer, mode: str) -> Row:
    """Measure products within functions compiled by `torch.compile`."""
    torch, A, B = timer.torch, timer.draw(64, 64), timer.draw(64, 64)
    torch._dynamo.reset()
    functions = {
        name: torch.compile(function, fullgraph=True, mode=mode)
        for name, function in {
            "torch.mm": lambda A, B: torch.mm(A, B),
            "fpemu.torch.gemm": lambda A, B: fpemu.torch.gemm(A, B, scheme="staged"),
        }.items()
    }
    with torch.no_grad():
        return timer.host({name: partial(function, A, B) for name, function in functions.items()})
