"""The table of arithmetics: no other module names one, and a new row is enough for products, bounds and comparisons."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import conformance, mma, theory
from fpemu.errors import InputError
from fpemu.formats import FloatFormat
from fpemu.mma import KOrder, MmaSpec
from fpemu.mma.arithmetic import ARITHMETICS, DEFAULTS, Arithmetic, Loss
from fpemu.probing.arithmetic.fit import structures

PACKAGE = Path(fpemu.__file__).parent
SPEC = mma.spec("A100", "fp16", "fp32")
OTHER_CONCEPTS = {
    "fma": "kind of a chain in a summation tree, epilogue, option of a compiler, function of simt",
    "exact": "option of staged-int8, output of reference.matmul",
    "integer": "field of Matrix Market files",
    "cdna3": "architecture",
    "flushed": "subnormals in the findings of characterize",
}
"""Names of arithmetics that also name something else."""


def names_an_arithmetic(node):
    """Whether an expression contains the word arithmetic as a name, an attribute, a keyword or a key."""
    fields = ("attr", "id", "arg", "value")
    words = {word for n in ast.walk(node) for f in fields if isinstance(word := getattr(n, f, None), str)}
    return not words.isdisjoint({"arithmetic", "ARITHMETICS"})


def arithmetic_names(tree, ambiguous=OTHER_CONCEPTS):
    """Constants equal to a name of an arithmetic; ambiguous names only in an expression with an arithmetic."""
    for node in ast.walk(tree):
        inside, names = [node], ARITHMETICS.keys() - ambiguous
        if isinstance(node, ast.Compare | ast.Call | ast.Subscript | ast.Dict | ast.keyword):
            inside, names = list(ast.walk(node)) if names_an_arithmetic(node) else [], ARITHMETICS.keys()
        elif isinstance(node, ast.Match) and names_an_arithmetic(node.subject):
            inside, names = [n for case in node.cases for n in ast.walk(case.pattern)], ARITHMETICS.keys()
        yield from (n for n in inside if isinstance(n, ast.Constant) and n.value in names)


def test_no_module_names_an_arithmetic_but_its_row_and_the_catalogue():
    named: dict[str, list[str]] = {}
    for folder in (PACKAGE, PACKAGE.parent / "experiments", PACKAGE.parent / "benchmarks"):
        ambiguous = OTHER_CONCEPTS if folder == PACKAGE else ARITHMETICS  # labels of series, columns of tables
        for path in sorted(folder.rglob("*.py")):
            if not path.as_posix().endswith(("mma/arithmetic.py", "mma/catalog.py")):
                found = arithmetic_names(ast.parse(path.read_text("utf-8")), ambiguous)
                lines = {f"line {n.lineno}: {n.value!r}" for n in found}
                named |= {str(path): sorted(lines)} if lines else {}
    assert not named


def test_the_search_for_names_finds_comparisons_keys_and_arguments():
    source = """
if spec.arithmetic == "fma" or spec.arithmetic in ("exact", "cdna3"): pass
{"flushed": 1}.get(spec.arithmetic)
MmaSpec("int8", "int8", "int32", k=4, block=4, arithmetic="integer")
match spec.arithmetic:
    case "truncated" | "fma": pass
Chain(((0,),), "fma")
known = "via-half"
"""
    assert sorted({(n.lineno, n.value) for n in arithmetic_names(ast.parse(source))}) == [
        (2, "cdna3"),
        (2, "exact"),
        (2, "fma"),
        (3, "flushed"),
        (4, "integer"),
        (6, "fma"),
        (6, "truncated"),
        (8, "via-half"),
    ]


@pytest.mark.parametrize("name", ARITHMETICS)
def test_a_row_is_complete(name):
    row = ARITHMETICS[name]
    constants = re.search(r"enum Arithmetic \{([^}]*)\}", (PACKAGE / "gpu/kernels/formats.cuh").read_text("utf-8"))
    assert row.name == name
    assert row.cuda in (None, *constants[1].replace(" ", "").split(","))
    if row.compiled is not None:
        function = getattr(row.chain, "func", row.chain)  # some kernels have fixed parameters
        assert function.__module__ == f"fpemu.mma.compiled.{row.compiled.partition('.')[0]}"
    assert set(row.parameters) <= set(DEFAULTS)
    assert any(spec.rules is row for spec in (*mma.catalog.rows(), *mma.catalog.block_scaled()))


def test_a_specification_and_its_copies_have_the_row():
    for spec in mma.catalog.rows():
        assert spec.issued.rules.via is None
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert pickle.loads(pickle.dumps(spec)).rules is spec.rules is ARITHMETICS[spec.arithmetic]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"F": 24.5}, "F = 24.5 must be an integer"),
        ({"F": "24"}, "F = '24' must be an integer"),
        ({"F": -1}, "F = -1 is not between 1 and 35"),
        ({"F": 36}, "F = 36 is not between 1 and 35"),
        ({"k": -16}, "k = -16 must be a positive integer"),
        ({"block": 0}, "block = 0 must be a positive integer"),
        ({"k": 12}, "k = 12 is not a multiple of block = 8"),
        ({"block": 65, "k": 65}, "block = 65 is more than 64"),
        ({"E0": "low"}, "E0 = 'low' must be an integer or None"),
        ({"E0": 301}, "E0 = 301 is not between"),
        ({"nan_code": 0x7F800000}, "nan_code 2139095040 is no NaN of fp32"),
        ({"nan_code": -1}, "nan_code -1 is no NaN of fp32"),
        ({"fraction_bits": 24}, "fraction_bits = 24 goes with an fp32 result and is between 1 and 23"),
        ({"arithmetic": "truncatd"}, "did you mean 'truncated'"),
        ({"final": "RN"}, "unknown final 'RN'"),
        ({"evidence": "measurd"}, "did you mean 'measured'"),
        ({"a_format": "fp61"}, "unknown format 'fp61'"),
        ({"blok": 8}, "did you mean 'block'"),
        ({"arithmetic": "cdna3"}, "F and E0 and final have no effect in the arithmetic 'cdna3'"),
        ({"arithmetic": "exact", "fraction_bits": 3}, "fraction_bits have no effect in the arithmetic 'exact'"),
        ({"a_format": "bf16", "b_format": "bf16", "block": 16, "arithmetic": "via-half"}, "do not both fit into fp16"),
        ({"a_format": FloatFormat("low", 4, -140, 113)}, "the input format low is wider than fp32"),
        ({"b_format": FloatFormat("high", 8, -100, 300)}, "the input format high is wider than fp32"),
        ({"arithmetic": "integer"}, "the integer arithmetic goes with int8 inputs and int32 results"),
        ({"payloads": True}, "payloads have no effect in the arithmetic 'truncated'"),
        ({"b_format": "e8m0"}, "the input format e8m0 has no zero"),
        ({"a_format": "fp64"}, "the input format fp64 is wider than fp32"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(InputError, match=re.escape(message)):
        SPEC.replace(**{"F": 20, **fields} if "arithmetic" in fields else fields)


# --- a new arithmetic: its reference and its row
def add_in_sequence(a, b, c, spec):
    """Products and sums rounded to fp32 one after another, k ascending."""
    for k in range(a.shape[-1]):
        product = a[..., :, k, None].astype(np.float32) * b[..., None, k, :].astype(np.float32)
        c = c.astype(np.float32) + product
    return c.astype(np.float64)


def narrow(spec):
    if str(spec.d_format) != "fp32" or any(fmt.precision > 12 for fmt in spec.operand_formats[:2]):
        yield "sums in sequence have fp32 results and inputs of at most 12 significant bits"


ROW = Arithmetic(
    "sequence",
    "exact products, sums rounded to fp32 one after another",
    reference=add_in_sequence,
    compiled=None,
    cuda=None,
    constraints=narrow,
    exact_to=lambda spec: 24,
    loss=lambda spec: Loss(0.0, 0.0, 1.01 * spec.block * 2.0**-24, 0.0, True),
)


@pytest.fixture
def sequence(monkeypatch):
    """A specification of a unit that is in no catalogue, and operands."""
    monkeypatch.setitem(ARITHMETICS, "sequence", ROW)
    rng = np.random.default_rng(5)
    A, B = (rng.standard_normal(shape).astype(np.float16) for shape in ((9, 70), (70, 6)))
    return MmaSpec("fp16", "fp16", "fp32", k=8, block=4, arithmetic="sequence", name="new unit"), A, B


@pytest.mark.parametrize("backend", ["numpy", "compiled"])
@pytest.mark.parametrize("order", [KOrder(), KOrder(split=24), KOrder(promote=16, tile=32)])
def test_a_new_arithmetic_multiplies(sequence, backend, order):
    spec, A, B = sequence
    parts = []
    for chains in order.segments(70):
        total = np.zeros((9, 6), np.float32)
        for ranges in chains:
            c = np.zeros((9, 6), np.float32)
            for k in (k for start, stop in ranges for k in range(start, stop)):
                c += A[:, k, None].astype(np.float32) * B[k].astype(np.float32)
            total = total + c
        parts.append(total)
    expected = sum(parts[1:], parts[0])
    D = mma.gemm(A, B, None, spec, order, backend=backend)
    assert np.array_equal(D.view(np.uint32), expected.view(np.uint32))


def test_a_new_arithmetic_has_bounds(sequence):
    spec, A, B = sequence
    norms = theory.Norms.of(A, B)
    D = mma.gemm(A, B, None, spec).astype(np.float64)
    exact, size = A.astype(np.float64) @ B.astype(np.float64), np.abs(A).astype(np.float64) @ np.abs(B)
    error = np.max(np.abs(D - exact) / size)
    assert error <= theory.chain(spec, norms).worst < 100 * 2.0**-24
    assert error <= theory.bound("fp16", spec, norms=norms).worst
    assert mma.exactness.slice_bits(spec, 70) == 8  # 70 · 2^16 <= 2^24
    assert mma.exactness.holds(spec, 2**8, 2**8, 70) != mma.exactness.holds(spec, 2**9, 2**9, 70)


def test_a_new_arithmetic_is_compared(sequence):
    spec, A, B = sequence
    D = mma.gemm(A, B, None, spec, KOrder(split=32))
    assert conformance.verify(D, A, B, hardware=spec, order=KOrder(split=32)).equal
    assert "split in slices of 32" in conformance.verify(D, A, B, hardware=spec).causes[0].text
    assert not conformance.verify(D, A, B, hardware="A100", causes=False).equal


def test_a_new_arithmetic_is_a_candidate_of_probes(sequence):
    spec, *_ = sequence
    found = structures(spec.operand_formats, 8)
    assert [s.block for s in found if s.arithmetic == "sequence"] == [8, 4, 2, 1]
    assert found[-1].arithmetic == "sequence"  # after all arithmetics of the catalogue


def test_a_new_arithmetic_checks_its_constraints_and_has_no_kernel(sequence):
    spec, *_ = sequence
    with pytest.raises(InputError, match="sums in sequence have fp32 results"):
        spec.replace(d_format="fp16")
    with pytest.raises(InputError, match="no CUDA implementation"):
        fpemu.gpu.emulation.specification.definition(spec)
