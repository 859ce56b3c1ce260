"""`fpemu.torch.record` on tensors of the CPU, and on the GPU where there is one."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch

import fpemu
from fpemu import _system
from fpemu.conformance import replay, runs
from fpemu.errors import InputError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensors(*shapes, dtype=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(dtype or torch.bfloat16).to(DEVICE) for s in shapes]


def recorded(folder, function, **options):
    with fpemu.torch.record(folder, **options) as run:
        function()
    assert run.count == len(runs.read(folder))
    return runs.read(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8, torch.float64])
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (5, 64)])
def test_the_digest_of_a_tensor_is_the_same_on_every_device(dtype, shape):
    x = (torch.randn(shape) * 50).to(dtype)
    content = x.contiguous().view(torch.uint8).numpy()
    content = np.pad(content, ((0, 0), (0, -content.shape[1] % 8)))
    expected = [_system.digest(row) for row in content.view(np.uint64)]
    assert [n % 2**64 for n in fpemu.torch._recording.digest(x.to(DEVICE)).tolist()] == expected


def test_every_product_is_recorded_with_its_operands(tmp_path):
    A, B, C = tensors((6, 40), (40, 20), (6, 20))
    X, Y = tensors((3, 6, 40), (3, 40, 20))
    calls = [
        lambda: A @ B,
        lambda: torch.addmm(C, A, B, beta=0.5, alpha=2),
        lambda: torch.bmm(X, Y),
        lambda: torch.baddbmm(C, X, Y),
        lambda: torch.nn.functional.linear(A, B.t().contiguous(), C[0]),
        lambda: C.clone().addmm_(A, B),
        lambda: torch.einsum("bik,bkj->bij", X, Y),
        lambda: torch.ones(4) @ torch.ones(4),  # a dot product is not recorded
        lambda: torch.ones(2, 0) @ torch.ones(0, 2),  # nor has an empty one
    ]
    found = recorded(tmp_path, lambda: [call() for call in calls])
    assert [p.operator for p in found] == ["mm", "addmm", "bmm", "baddbmm", "addmm", "addmm_", "bmm"]
    assert {p.sizes for p in found} == {(6, 20, 40)}
    assert [(p.alpha, p.beta) for p in found] == [(1, 0), (2, 0.5), (1, 0), (1, 1), (1, 1), (1, 1), (1, 0)]
    assert found[1].operands["C"]["digest"] == found[5].operands["C"]["digest"]  # read before it is overwritten
    assert found[4].operands["B"]["strides"] == [1, 40]
    assert found[4].operands["B"]["digest"] == found[0].operands["B"]["digest"]  # of the values, in any layout
    for p, call in zip(found, calls, strict=False):
        D = call().float().cpu().numpy()
        assert (p.sample("D") == (D if D.ndim == 2 else D[0])).all()
        assert p.operands["D"]["digest"] != p.operands["A"]["digest"]


def test_a_model_with_gradients_and_attention(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(32, 96), torch.nn.Linear(32, 8)

        def forward(self, x):
            q, k, v = self.first(x).view(2, 4, 16, 3, 8).permute(3, 0, 2, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.last(y.transpose(1, 2).reshape(2, 4, -1)[..., :32])

    model = Model().to(DEVICE)
    x = tensors((2, 4, 32), dtype=torch.float32)[0].reshape(2, 4, 32)
    model.first = torch.nn.Linear(32, 384).to(DEVICE)
    found = recorded(tmp_path / "fused", lambda: model(x).sum().backward())
    names = [p.operator for p in found]
    assert names[0] == "addmm"
    assert names[1].startswith("_scaled_dot_product")
    assert (found[0].module, found[1].module) == ("Model.first", "Model")
    assert names[3:] == ["mm"] * 3  # the gradients; x has none
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found = recorded(tmp_path / "math", lambda: model(x))
    assert [p.operator for p in found][:3] == ["addmm", "bmm", "bmm"]


def test_other_kernels_are_recorded(tmp_path):
    @torch.library.custom_op("fpemu_tests::twice", mutates_args=())
    def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 2 * (a @ b)

    A, B = tensors((6, 40), (40, 20))
    with fpemu.torch.record(tmp_path, operators=["fpemu_tests::twice"], rows=[0, 5, 9], columns=3) as run:
        torch.ops.fpemu_tests.twice(A, B)
        run.add("mine", A, B, A @ B)
    found = runs.read(tmp_path)
    assert [p.operator for p in found] == ["twice", "mm", "mine"]
    assert (found[0].rows, len(found[0].columns)) == ((0, 5), 3)
    assert found[1].row_digests == found[2].row_digests != found[0].row_digests


def test_scales_and_rows_that_a_product_lacks(tmp_path):
    A, B = tensors((6, 32), (16, 32))
    (found,) = recorded(tmp_path / "rows", lambda: A @ B.t(), rows=[9])
    assert (found.rows, found.sample("A").shape) == ((), (0, 32))
    assert replay.explain(found).text == "A has shape (0, 32): it has no entries"
    if DEVICE == "cuda":
        A, B = (torch.randn(n, 32).to(torch.float8_e4m3fn).cuda() for n in (16, 16))
        one = torch.ones((), device="cuda")
        call = lambda: torch._scaled_mm(A, B.t(), one, 2 * one, out_dtype=torch.bfloat16)  # noqa: E731
        (found,) = recorded(tmp_path / "scales", call)
        assert (found.sample("scale_a"), found.sample("scale_b")) == (1, 2)
        assert replay.explain(found).specification is not None
        A, B = (torch.randn(n, 512).to(torch.float8_e4m3fn).cuda() for n in (144, 272))
        a, b, tiles = (torch.rand(*shape, device="cuda") for shape in ((4, 144), (4, 272), (3, 4)))
        for i, scale in enumerate((b, tiles.t())):
            call = lambda s=scale: torch._scaled_mm(A, B.t(), a.t(), s, out_dtype=torch.bfloat16)  # noqa: E731
            (found,) = recorded(tmp_path / f"blocks {i}", call, rows=[0, 143], columns=20)
            assert [found.sample(name).shape for name in ("scale_a", "scale_b")] == [(2, 4), (4, 20)]
            assert replay.explain(found).specification is not None


def test_two_runs_differ_in_the_changed_layer(tmp_path):
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(3)]).to(DEVICE)
    (x,) = tensors((16, 64), dtype=torch.float32)
    recorded(tmp_path / "one", lambda: layers(x))
    layers[1].forward = lambda x: x[:, :32] @ layers[1].weight.T[:32] + x[:, 32:] @ layers[1].weight.T[32:]
    with fpemu.torch.record(tmp_path / "two") as run:
        y = layers[1](z := layers[0](x))
        run.add("split", z, layers[1].weight.T, y)
        layers[2](y)
    found = replay.compare_runs(tmp_path / "one", tmp_path / "two", seconds=0)
    assert (found.compared, found.first[1].operator, found.unaligned) == (2, "split", (0, 2))


def test_what_is_refused(tmp_path):
    recorded(tmp_path, lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    for call, message in (
        (lambda: fpemu.torch.record(tmp_path), "holds a run already"),
        (lambda: fpemu.torch.record(tmp_path / "a", rows=0), "rows = 0"),
        (lambda: fpemu.torch.record(tmp_path / "a", columns=0), "columns = 0"),
        (lambda: fpemu.torch.record(tmp_path / "a", limit=1), "limit = 1"),
        (lambda: fpemu.torch.record(tmp_path / "a", keep="all"), "unknown keep 'all'"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert not (tmp_path / "a").exists()
