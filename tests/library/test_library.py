"""The products of a library without its GPU: the table of orders, emulation by it, and how orders get into it."""

import functools
import json
import sys

import numpy as np
import pytest

from fpemu import library, mma
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.library import cublas, families, products, tables
from fpemu.library.tables import INPUT_DTYPES, KINDS, Tiles, summary
from fpemu.mma import KOrder
from fpemu.mma import tree as trees
from fpemu.mma.tree import Chain, Sum
from fpemu.rounding import round_to


@functools.cache
def cases():
    """All rows of the table."""
    return list(library.orders())


def recorded():
    """The rows that come with digests of the GPU's product."""
    return [case for case in cases() if case.sample]


class Emulated:
    """A library's product, made of one order left of a column of D and another right of it."""

    runs_probes = True

    def __init__(self, kind, shape, left, right=None, cut=0, band=None, place=0):
        self.kind, (self.M, self.N, self.K) = kind, shape
        self.left, self.right, self.cut = left, right, cut
        self.band, self.place = band or (0, self.M), place
        self.probes = self.calls = 0

    def at(self, row, column):
        first = row // 32 * 32
        shape = (self.M, self.N, self.K)
        return Emulated(self.kind, shape, self.left, self.right, self.cut, (first, min(first + 32, self.M)), column)

    def mm(self, A, B):
        self.calls += 1
        D = library.predict(cublas.tabulated(self, self.left), A, B)
        if self.right is not None:
            D[:, self.cut :] = library.predict(cublas.tabulated(self, self.right), A, B)[:, self.cut :]
        return D

    def __call__(self, base, where, value, b):
        self.probes += len(where)
        first, stop = self.band
        out = np.empty(len(where))
        B = np.full((self.K, self.N), b, INPUT_DTYPES[self.kind])
        for lo in range(0, len(where), stop - first):
            A = np.tile(base.astype(B.dtype), (self.M, 1))
            n = len(where[lo : lo + stop - first])
            A[first + np.arange(n)[:, None], where[lo : lo + n]] = value[lo : lo + n]
            out[lo : lo + n] = self.mm(A, B)[first : first + n, self.place]
        return out

    def run(self, seed):
        A, B = tables.operands(self.kind, self.M, self.N, self.K, seed)
        return A, B, self.mm(A, B)

    def sampled(self, seed):
        A, B, D = self.run(seed)
        rows, columns = tables.sample_indices(self.M, self.N)
        return A[rows], B[:, columns], D[np.ix_(rows, columns)], tables.digest_of(D)


def test_the_table_has_every_type_and_layout():
    combinations = {(case.type, case.layout) for case in cases()}
    assert combinations == {(kind, layout) for kind in library.TYPES[:-1] for layout in library.LAYOUTS}
    for kind, layout in combinations:
        assert len({(c.M, c.N, c.K) for c in cases() if (c.type, c.layout) == (kind, layout)}) >= 200, (kind, layout)
    assert len(recorded()) >= 1700, "these come with digests of the GPU's product"


def test_every_order_of_the_table_is_over_its_positions():
    seen = set()
    for case in cases():
        parts = case.order.orders if isinstance(case.order, Tiles) else (case.order,)
        for part in parts:
            if not isinstance(part, KOrder) and id(part) not in seen:
                trees.check(part, case.K, case.spec)
                seen.add(id(part))


def test_the_emulation_gives_the_bits_that_the_gpu_returned():
    short = [case for case in recorded() if case.K <= 2100]
    chosen = short[:: max(1, len(short) // 64)]
    assert len(chosen) >= 60
    wrong = [str(case) for case in chosen if not library.replay(case)]
    assert not wrong
    small = [case for case in recorded() if case.M * case.N * case.K < 1e5][::16]
    assert small
    assert all(library.replay(case, whole=True) for case in small)


def test_a_changed_order_is_not_what_the_gpu_returned():
    case = next(
        c for c in recorded() if isinstance(c.order, KOrder) and c.order.split and c.type == "fp32" and c.M > 20
    )
    import dataclasses

    assert library.replay(case)
    assert not library.replay(dataclasses.replace(case, order=KOrder()))


def test_the_documented_splits_are_in_the_table():
    for shape, split in (((256, 256, 4096), 1408), ((128, 128, 8192), 1408), ((512, 512, 8192), 4096)):
        assert library.lookup("cublas", "fp16", shape, layout="NN").order == KOrder(split=split)
    for shape in ((128, 128, 128), (1024, 1024, 4096)):
        assert library.lookup("cublas", "fp16", shape, layout="NN").order == KOrder()
    assert library.lookup("cublas", "tf32", (256, 256, 4096), layout="TN").order == KOrder(split=256)


def test_partial_sums_of_half_products_are_kept_in_half():
    kept = [c for c in cases() if c.stored or (isinstance(c.order, Sum) and c.order.stored)]
    assert {c.type for c in kept} == {"fp16->fp16"}
    case = min(kept, key=lambda c: c.M * c.N * c.K)
    assert case.stored == "fp16"
    A, B = tables.operands(case.type, case.M, case.N, case.K, 3)
    D = library.emulate("cublas", A, B, out="fp16", layout=case.layout)
    step = case.order.split
    part = KOrder(tile=case.order.tile, residue_first=case.order.residue_first)
    total = np.zeros(D.shape, np.float32)
    for k in range(0, case.K, step):
        total = total + mma.gemm(A[:, k : k + step], B[k : k + step], None, case.spec, part).astype(np.float16)
    assert D.tobytes() == total.astype(np.float16).tobytes()


def test_emulate_is_a_gemm_of_the_order():
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(s).astype(np.float32) for s in ((8, 8), (8, 8)))
    for fmt, layout in (("tf32", "TN"), ("tf32", "NN"), (None, "TN"), (None, "NN")):
        case = library.lookup("cublas", fmt or "fp32", (8, 8, 8), layout=layout)
        a, b = (np.asarray(round_to(x, "tf32")).astype(np.float32) if case.rounded else x for x in (A, B))
        want = mma.gemm(a, b, None, case.spec, case.order)
        given = B if layout == "NN" else np.ascontiguousarray(B.T).T
        assert library.emulate("cublas", A, given, fmt=fmt).tobytes() == want.tobytes()
    assert library.emulate("cublas", A.astype(np.float64), B.astype(np.float64)).dtype == np.float64
    assert library.emulate("cublas", A.astype(np.float16), B.astype(np.float16), out="fp16").dtype == np.float16


def test_the_layout_is_read_off_the_strides():
    rng = np.random.default_rng(1)
    known = [c for c in cases() if c.type == "fp32" and c.layout == "TN" and min(c.M, c.N) > 1 and c.K < 300]
    other = (library.lookup("cublas", "fp32", (c.M, c.N, c.K), layout="NN") for c in known)
    sizes = next((c.M, c.N, c.K) for c, nn in zip(known, other, strict=True) if c.order != nn.order)
    A = rng.standard_normal((sizes[0], sizes[2])).astype(np.float32)
    wide = rng.standard_normal((sizes[1], sizes[2] + 3)).astype(np.float32)
    B = wide[:, :-3].T  # the transpose of a part of a wider array: contiguous in neither order
    TN, NN = (library.emulate("cublas", A, B, layout=layout) for layout in ("TN", "NN"))
    assert TN.tobytes() != NN.tobytes()
    assert library.emulate("cublas", A, B).tobytes() == TN.tobytes()
    assert library.emulate("cublas", A, np.ascontiguousarray(B)).tobytes() == NN.tobytes()
    repeated = np.broadcast_to(B[:1], B.shape)
    want = library.emulate("cublas", A, np.ascontiguousarray(repeated)).tobytes()
    assert library.emulate("cublas", A, repeated, layout="TN").tobytes() != want
    assert library.emulate("cublas", A, repeated).tobytes() == want
    assert library.emulate("cublas", np.broadcast_to(A[:1], A.shape), B).shape == NN.shape
    with pytest.raises(InputError, match="A is stored by columns"):
        library.emulate("cublas", np.asfortranarray(A), B)


def test_every_order_is_of_a_kind():
    found = summary(cases())
    assert {kind for count in found.values() for kind in count} == set(KINDS)
    for of, count in found.items():
        own = [case for case in cases() if case.type == of]
        assert sum(count.values()) == len(own)
        named = sum(isinstance(case.order, KOrder) for case in own)
        assert count["KOrder"] + count.get("KOrder, halves", 0) == named


def test_orders_of_tiles():
    case = library.lookup("cublas", "fp32", (8, 8, 8), layout="NN")
    import dataclasses

    tiles = Tiles(3, 5, (0, 1, 1, 0, 0, 1), (KOrder(), KOrder(split=2)), (None, None))
    A, B = tables.operands("fp32", 8, 8, 8, 1)
    D = library.predict(dataclasses.replace(case, order=tiles), A, B)
    one, two = (mma.gemm(A, B, None, case.spec, order) for order in tiles.orders)
    assert one.tobytes() != two.tobytes()
    want = np.where(np.array([[0, 1], [1, 0], [0, 1]]).repeat(3, 0).repeat(5, 1)[:8, :8], two, one)
    assert D.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"A": np.ones((5, 9001), np.float16), "B": np.ones((9001, 5), np.float16)},
            "no order of .* nearest shapes are",
        ),
        ({"B": np.ones((9, 8), np.float16)}, "do not form a product of two"),
        ({"B": np.ones((8, 8), np.float32)}, "one type"),
        ({"fmt": "tf32"}, "float32"),
        ({"fmt": "fp8"}, "fp8"),
        ({"out": "fp64"}, "fp64 results"),
        ({"layout": "NT"}, "layout"),
        ({"version": "12.0"}, "version"),
        ({"hardware": "A100"}, "A100"),
        ({"library": "mkl"}, "mkl"),
        ({"library": "*"}, "library"),
        ({"hardware": 3}, "unknown GPU with a table of cublas 3"),
        ({"A": [[1.0, 2.0], [3.0]]}, "A is no array"),
        ({"A": np.ones((8, 8), int), "B": np.ones((8, 8), int)}, "int64"),
    ],
)
def test_what_is_not_known_is_said_in_one_line(change, message):
    given = {"library": "cublas", "A": np.ones((8, 8), np.float16), "B": np.ones((8, 8), np.float16), **change}
    with pytest.raises(InputError, match=message) as e:
        library.emulate(given.pop("library"), given.pop("A"), given.pop("B"), **given)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("kind", "shape", "left", "right"),
    [
        ("fp16", (70, 40, 129), {"tile": 64, "residue_first": True}, {"split": 40}),
        ("fp16->fp16", (64, 48, 100), {"split": 48, "stored": "fp16"}, {}),
        ("tf32", (40, 32, 90), {"split": 24, "as": "fp32"}, None),
        ("fp64", (20, 20, 65), {"split": 7, "join": "pairwise"}, None),
    ],
)
def test_an_order_is_found_also_where_it_depends_on_the_place(kind, shape, left, right):
    emulated = Emulated(kind, shape, left, right, cut=32 if right is not None else 0)
    found, equal = cublas.find(emulated, 5)
    assert equal
    A, B, D = emulated.run(6)
    assert library.predict(cublas.tabulated(emulated, found), A, B).tobytes() == D.tobytes()
    if right is None:
        assert found == left
    else:
        assert found["tiles"][1] == 32
        assert {json.dumps(part, sort_keys=True) for part, _ in found["map"]} == {
            json.dumps(part, sort_keys=True) for part in (left, right)
        }


def test_an_order_comes_back_from_its_entry():
    lanes = Sum(tuple(Chain(tuple((k,) for k in range(i, 60, 4)), "fma") for i in range(4)))
    odd = Chain(((5, 1), (0, 2, 3)), "instruction", Sum((Chain(((4,),)), Chain(((6, 8), (7, 9)))), "fp16", None))
    kept = Sum((Chain(((0, 1), (2, 3))), Chain(((4, 5),))), None, "fp16")
    data = [tables.encode(t) for t in (KOrder(split=8), lanes, odd, kept)]
    assert [tables.decode(d) for d in data] == [KOrder(split=8), lanes, odd, kept]
    assert len(json.dumps(data[1])) < 100
    want = Tiles(8, 4, (0, 0, 1), (KOrder(split=8), lanes), (None, None))
    assert tables.decode({"tiles": [8, 4], "map": [[0, 2], [1, 1]]}, data) == want
    assert tables.decode({"tiles": [8, 4], "map": [[data[0], 2], [data[1], 1]]}) == want


def test_recorded_operands_are_a_function_of_the_place():
    for kind in library.TYPES:
        A, B = tables.operands(kind, 40, 50, 30, 9)
        rows, columns = np.array([3, 17]), np.array([0, 49, 20])
        a, b = tables.operands(kind, 40, 50, 30, 9, rows, columns)
        assert a.tobytes() == A[rows].tobytes()
        assert b.tobytes() == np.ascontiguousarray(B[:, columns]).tobytes()
        assert (np.abs(A) >= 0.25).all()
        assert (np.abs(A) < 4).all()
        assert len(np.unique(A)) > 0.5 * min(A.size, 2**9)
        assert not np.array_equal(A, tables.operands(kind, 40, 50, 30, 10)[0])
    assert np.array_equal(
        tables.operands("bf16", 4, 4, 4, 1)[0], round_to(tables.operands("bf16", 4, 4, 4, 1)[0], "bf16")
    )


# --- configurations, the model of the heuristic, and recipes
def test_most_recorded_orders_follow_from_their_configurations():
    table = products._table("cublas", None, "H200")
    planned = [0, 0]
    for group in table["cases"]:
        for row in group["rows"]:
            planned["configuration" in table["orders"][row[3]]] += 1
    assert planned[1] >= 4100
    assert sum(planned) == 4196


def test_equal_canonical_configurations_have_equal_orders():
    rng = np.random.default_rng(3)
    families_of = {"fp16": (66, 24, 23), "tf32": (21, 23), "fp32": (20, 55), "fp64": (22, 35, 36)}
    for kind, numbers in families_of.items():
        for K in (72, 96, 200, 313):
            configs = np.array(
                [
                    (n, stages, splits, 2, custom)
                    for n, stages, splits in zip(
                        rng.choice(numbers, 60), rng.choice([0, 6, 9, 13, 19], 60), rng.integers(1, 12, 60), strict=True
                    )
                    for custom in ((0, 1) if n in (35, 36, 55) else (0,))
                ]
            )
            merged: dict = {}
            same = families.canonical(configs, np.full(len(configs), K), kind)
            for config, key in zip(configs.tolist(), same.tolist(), strict=True):
                product = library.plan(library.Configuration(*config), kind, "NN", (64, 64, K))
                order = product.order
                tree = trees.from_order(order, K, product.spec) if isinstance(order, KOrder) else order
                first = merged.setdefault(tuple(key), (config, tree))
                assert trees.equal(tree, first[1], product.spec), (kind, K, config, first[0])


def test_a_plan_is_declined_by_the_name_of_its_family():
    for config in ((41, 0, 1, 0, 0), (13, 0, 1, 0, 99), (43, 34, -1, 2, 0)):
        with pytest.raises(InputError, match=f"family {config[0]} "):
            library.plan(library.Configuration(*config), "tf32", "NN", (64, 64, 1000))
    with pytest.raises(InputError, match="config needs the fields"):
        library.plan({"algorithm": 66}, "fp16", "NN", (8, 8, 8))


def test_the_model_agrees_with_recorded_products_or_declines():
    table = products._table("cublas", None, "H200")
    answered = wrong = 0
    for group in table["cases"]:
        kind, rows = group["type"], [r for r in group["rows"] if "configuration" in table["orders"][r[3]]]
        shapes = np.array([row[:3] for row in rows])
        recorded = np.array([table["orders"][row[3]]["configuration"] for row in rows])
        known = library.configurations("cublas", kind, shapes, layout=group["layout"])
        sure = (known != -1).any(axis=1)
        different = families.canonical(known, shapes[:, 2], kind) != families.canonical(recorded, shapes[:, 2], kind)
        answered, wrong = answered + int(sure.sum()), wrong + int((different.any(axis=1) & sure).sum())
    assert answered > 2000
    assert wrong <= answered * 0.003
    assert library.lookup("cublas", "fp16", (100, 1000, 1000)).source == "model"


def test_a_product_comes_back_from_its_recipe(tmp_path, capsys):
    file = tmp_path / "product.json"
    for case in recorded()[::97]:
        case.save(file)
        assert library.Product.load(file) == case
    small = min(recorded(), key=lambda c: c.M * c.N * c.K)
    small.save(file)
    assert main(["library", "replay", str(file)]) == 0
    assert "equal to the GPU's" in capsys.readouterr().out
    file.write_text(file.read_text().replace(small.digest, "0" * len(small.digest)))
    assert main(["library", "replay", str(file)]) == 1
    file.write_text("{}")
    assert main(["library", "replay", str(file)]) == 2
    assert "no product of a library" in capsys.readouterr().err


def test_lost_terms_are_the_tail_that_no_slice_adds():
    assert library.lost_terms(library.Configuration(66, 35, 9, 2, 1), 57608) == range(57600, 57608)
    assert library.lost_terms(
        {"algorithm": 66, "stages": 35, "splits": 7, "reduction": 2, "custom": 0}, 57608
    ) == range(0)
    assert len(library.lost_terms(library.Configuration(24, 13, 9, 2, 0), 57608)) == 0


def test_the_heuristic_needs_a_gpu():
    with pytest.raises(InputError, match="cuBLASLt"):
        library.lookup("cublas", "fp16", (64, 64, 64), source="heuristic")


# --- the command
def test_the_command_lists_the_kinds_of_orders_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    known = cases()
    monkeypatch.setattr(library, "orders", lambda name="cublas": iter(known))
    assert main(["verify", "library", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == summary(known)
    assert main(["verify", "library", "--list", "-t", "tf32"]) == 0
    assert "stream-K" in capsys.readouterr().out


def test_the_command_prints_an_order_with_its_evidence_and_the_nearest_shapes(capsys):
    assert main(["library", "lookup", "cublas", "fp16", "512x512x8192", "--layout", "TN"]) == 0
    out = capsys.readouterr().out
    product = library.lookup("cublas", "fp16", (512, 512, 8192), layout="TN")
    assert out.startswith(f"{product}\n")
    assert "512x512x8192: KOrder(split=4096): two chains of 4096 products, then added" in str(product)
    assert f"evidence: measured on H200 with cublas {product.version}" in out
    near = out.splitlines()[-1].removeprefix("nearest tabulated shapes: ").split(", ")
    for shape in near:
        assert library.lookup("cublas", "fp16", tuple(map(int, shape.split("x"))), layout="TN").K
    assert len({*near, "512x512x8192"}) == 4
    assert main(["library", "lookup", "cublas", "tf32", "536x3312x2008"]) == 0
    assert "4 tiles: four chains of 480 to 512 products, then added pairwise" in capsys.readouterr().out
    assert main(["library", "lookup", "openblas", "fp32", "100x100x1000", "-H", "HASWELL"]) == 0
    assert "eight chains of 88 to 160 products, which alternate every 1 of k" in capsys.readouterr().out
    assert main(["library", "lookup", "cublas", "fp16", "512x512x8193", "--layout", "TN"]) == 2
    assert "the nearest shapes are 512x512x8192" in capsys.readouterr().err
