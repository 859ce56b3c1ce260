"""Refusals of values: a public function that gets a wrong value raises InputError.

`VALID` is the table: a small valid call of each public function and constructor. Each argument of it, and each that the
call leaves out, is replaced by the wrong values of its kind: arrays that hold no numbers, arrays of other shapes,
numbers and integers out of range, names that do not exist. The call raises an InputError of one line, or returns a
result where the value is valid. Wrong types raise what Python or NumPy raises, and are not tested.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import fpemu
from fpemu import batched, conformance, inputs, library, metrics, mma, probing, roofline, schemes, theory
from fpemu.arguments import integer, number
from fpemu.errors import GpuError, GuaranteeError, InputError
from fpemu.formats import FloatFormat, block
from fpemu.gpu.batched import configuration
from fpemu.mma import KOrder, MmaSpec
from fpemu.plotting import bits
from fpemu.roofline import gpus
from fpemu.schemes.words import Plan, Word
from fpemu.theory import Norms

REFUSED_ARRAYS = {
    "masked entries": np.ma.array(np.ones((2, 2)), mask=[[False, True], [False, False]]),
    "masked entries in a list": [np.ma.array([1.0, 1.0], mask=[False, True]), [1.0, 2.0]],
    "objects": np.ones((2, 2), object),
    "dates": np.zeros((2, 2), "datetime64[s]"),
    "text": np.array([["1", "2"], ["3", "4"]]),
    "a ragged list": [[1.0, 2.0], [3.0]],
    "raw bytes": np.zeros((2, 2), "V4"),
}
SHAPES = {
    "a vector": np.ones(3),
    "three axes": np.ones((3, 2, 5)),
    "no rows": np.ones((0, 2)),
    "no columns": np.ones((2, 0)),
    "no axes": np.array(1.0),
    "NaN": np.full((2, 2), np.nan),
    "huge entries": np.full((2, 2), 1e300),
    "integers": np.full((2, 2), 200),
    "complex entries": np.ones((2, 2), complex),
}
INTEGERS = {"0": 0, "-1": -1, "1": 1, "int64": np.int64(3), "int8": np.int8(64), "2^70": 2**70, "10^400": 10**400}
NUMBERS = INTEGERS | {
    "-2.5": -2.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "float16": np.float16(1.0),
}
NAMES = {"empty": "", "unknown": "no", "long": "x" * 200, "str_": np.str_("fp17")}

ARRAYS = set("ABCDPRSXabcxz") | {"bits", "random_bits", "scales"}
"""Arguments that are arrays."""
FREE = {"architecture", "inputs", "instruction", "model", "name", "out", "shape", "source"}
"""Arguments whose text is free, or looked up when the object is used."""
LATER = {"fpemu.conformance.Specification": "checked by verify", "fpemu.probing.save": "takes any remarks"}
"""Rows whose names are not refused at once, and why."""
CLASSES = re.compile("Any|Norms|Product|Report|Scheme|Seed|Specification|Work|Execute|Mapping|Callable")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", PendingDeprecationWarning)
    MATRIX = np.asmatrix(np.ones((2, 2)))

ONE = np.ones((2, 2), np.float16)
WIDE = ONE.astype(np.float32)
PAIR = np.ones((2, 2, 2), np.float16)
SPEC = mma.spec("hopper")
SHORT = mma.spec("V100")
GPU = gpus.get("H200")
AMD = gpus.get("MI210")
NORMS = Norms.of(WIDE, WIDE)
FMA = fpemu.simt.SPECS["fp32"]
WORK = roofline.work("ootomo", "H200", 64, 64, 64)
CASE = library.lookup("cublas", "fp16", (64, 64, 64))
EXACT = fpemu.reference.matmul(ONE, ONE, out="exact")


def multiply(A, B):
    return mma.gemm(A, B, None, SHORT)


def instruction(A, B, C):
    return mma.execute(A, B, C, SHORT, backend="numpy")


def one(function):
    """A function that yields results, up to its first one, or None."""

    @functools.wraps(function)
    def call(*given, **named):
        return next(function(*given, **named), None)

    return call


def row(function, *given, **named):
    return function, given, named


VALID = {
    "fpemu.FloatFormat": row(FloatFormat, "own", 4, -6, 7),
    "fpemu.FloatFormat.encode": row(fpemu.FP16.encode, 1.0),
    "fpemu.FloatFormat.decode": row(fpemu.FP16.decode, 1),
    "fpemu.FloatFormat.contains": row(fpemu.FP16.contains, 1.0),
    "fpemu.round_to": row(fpemu.round_to, ONE, "fp16"),
    "fpemu.round_to SR": row(fpemu.round_to, ONE, "fp16", "SR", random_bits=np.ones((2, 2), np.uint8)),
    "fpemu.round_to seed": row(fpemu.round_to, ONE, "fp16", "SR", bits=3, seed=1),
    "fpemu.rounding.stochastic_words": row(fpemu.rounding.stochastic_words, 1, np.arange(3, dtype=np.uint8), 4),
    "fpemu.bit_cut": row(fpemu.bit_cut, ONE),
    "fpemu.gemm": row(fpemu.gemm, ONE, ONE, scheme="ootomo", hardware="A100"),
    "fpemu.gemm C": row(fpemu.gemm, ONE, ONE, ONE, scheme="ootomo", hardware="A100", beta=1.0),
    "fpemu.certify": row(fpemu.certify, ONE, ONE, scheme="ozaki", hardware="A100", slices=2),
    "fpemu.advise": row(fpemu.advise, 1e-2, hardware="V100", K=4, M=2, N=2),
    "fpemu.advise A": row(fpemu.advise, 1e-2, hardware="V100", A=WIDE, B=WIDE),
    "fpemu.formats.get": row(fpemu.formats.get, "fp16"),
    "fpemu.formats.p3109": row(fpemu.formats.p3109, 8, 3),
    "fpemu.formats.block.BlockFormat": row(block.BlockFormat, "own", fpemu.E2M1, fpemu.E8M0, 2),
    "fpemu.formats.block.get": row(block.get, "mxfp4"),
    "fpemu.formats.block.quantize": row(block.quantize, np.ones((2, 32)), "mxfp4"),
    "fpemu.formats.block.quantize NVFP4": row(block.quantize, np.ones((2, 32)), "nvfp4", tensor_scale=0.5),
    "fpemu.formats.block.dequantize": row(block.dequantize, np.ones((2, 4)), ONE),
    "fpemu.formats.block.swizzle": row(block.swizzle, ONE),
    "fpemu.formats.block.unswizzle": row(block.unswizzle, np.ones(512), 2, 2),
    "fpemu.rounding.mode_of": row(fpemu.rounding.mode_of, "RZ"),
    "fpemu.inputs.make": row(inputs.make, "uniform", (2, 2), 1),
    "fpemu.inputs.make low": row(inputs.make, "uniform", (2, 2), 1, low=0.0, high=1.0),
    "fpemu.inputs.operands": row(inputs.operands, "uniform", 2, 2, 2, 1),
    "fpemu.inputs.operands cancellation": row(inputs.operands, "cancellation", 2, 2, 2, 1, bits=3),
    "fpemu.inputs.describe": row(inputs.describe, "uniform"),
    "fpemu.metrics.relative": row(metrics.relative, ONE, ONE),
    "fpemu.metrics.symmetric": row(metrics.symmetric, ONE, ONE),
    "fpemu.metrics.normwise": row(metrics.normwise, ONE, ONE, ONE, ONE),
    "fpemu.metrics.effective_bits": row(metrics.effective_bits, ONE, ONE),
    "fpemu.metrics.ulps": row(metrics.ulps, ONE, ONE, "fp16"),
    "fpemu.metrics.max_ulps": row(metrics.max_ulps, ONE, ONE, "fp16"),
    "fpemu.metrics.get": row(metrics.get, "mred"),
    **{
        f"fpemu.metrics.{name}": row(getattr(metrics, name), ONE, ONE)
        for name in ("relative_l2", "max_relative", "max_error_legemm", "mred", "max_absolute")
    },
    "fpemu.plotting.bits.blocks": row(bits.blocks, [1.0, 2.0], [1.0, 0.5], spec=SHORT),
    "fpemu.plotting.bits.draw": row(bits.draw, bits.blocks([1.0], [1.0], spec=SHORT)),
    "fpemu.batched.hgemm": row(batched.hgemm, ONE, ONE, hardware="V100"),
    "fpemu.batched.hcgemm": row(batched.hcgemm, PAIR, PAIR, hardware="V100"),
    "fpemu.batched.complex_gemm": row(batched.complex_gemm, ONE, ONE, scheme="ootomo", hardware="A100"),
    "fpemu.batched.as_complex": row(batched.as_complex, PAIR),
    "fpemu.batched.interleaved": row(batched.interleaved, ONE),
    "fpemu.batched.planar": row(batched.planar, ONE),
    "fpemu.conformance.Specification": row(conformance.Specification, SPEC),
    "fpemu.conformance.compare": row(conformance.compare, ONE, ONE, "fp16"),
    "fpemu.conformance.compare_runs": row(conformance.compare_runs, "run", "run"),
    "fpemu.conformance.replay_run": row(conformance.replay_run, "run"),
    "fpemu.conformance.verify": row(conformance.verify, 2 * WIDE, ONE, ONE, hardware="A100", causes=False),
    "fpemu.conformance.verify scheme": row(
        conformance.verify, 2 * WIDE, WIDE, WIDE, scheme="ootomo", hardware="A100", causes=False
    ),
    "fpemu.library.all_reduce": row(library.all_reduce, [WIDE] * 4, fmt="fp32", protocol="LL", channels=1),
    "fpemu.library.reduce_scatter": row(library.reduce_scatter, [WIDE] * 2, fmt="fp32"),
    "fpemu.library.parallel_linear": row(library.parallel_linear, ONE, ONE, ranks=2, library=multiply),
    "fpemu.library.invariance": row(
        library.invariance, "openblas", "fp32", 4, 4, m=range(2, 4), layout="NN", hardware="TSV110"
    ),
    "fpemu.probing.invariance": row(probing.invariance, multiply, 2, 4, m=range(1, 3), fmt="fp16", out="fp32"),
    "fpemu.conformance.verify callable": row(
        conformance.verify, multiply, "uniform", hardware="V100", fmt="fp16", shape=(2, 2, 4), causes=False
    ),
    "fpemu.gpu.execute": row(fpemu.gpu.execute, np.ones((2, 16), np.float16), np.ones((16, 2), np.float16), None, SPEC),
    "fpemu.gpu.gemm": row(fpemu.gpu.gemm, WIDE, WIDE, scheme="ootomo"),
    "fpemu.gpu.plan": row(fpemu.gpu.plan, "ootomo", WIDE, WIDE),
    "fpemu.gpu.kernel": row(fpemu.gpu.kernel, "ootomo", 64, 64, 64),
    "fpemu.library.emulate": row(
        library.emulate, "cublas", np.ones((64, 64), np.float16), np.ones((64, 64), np.float16)
    ),
    "fpemu.library.lookup": row(library.lookup, "cublas", "fp16", (64, 64, 64)),
    "fpemu.library.orders": row(one(library.orders), "cublas"),
    "fpemu.library.predict": row(
        library.predict, CASE, np.ones((64, 64), np.float16), np.ones((64, 64), np.float16), [0], [1]
    ),
    "fpemu.library.replay": row(library.replay, CASE),
    "fpemu.verification.instructions.verify": row(fpemu.verification.instructions.verify, SPEC, outputs=64),
    "fpemu.gpu.batched.Block": row(configuration.Block),
    "fpemu.gpu.batched.Packed": row(configuration.Packed),
    "fpemu.gpu.batched.Small": row(configuration.Small),
    "fpemu.gpu.batched.Warp": row(configuration.Warp),
    "fpemu.gpu.batched.Pointers": row(fpemu.gpu.batched.Pointers, np.zeros(2, np.uint64), (2, 2), 2),
    "fpemu.gpu.batched.arguments": row(fpemu.gpu.batched.arguments),
    "fpemu.gpu.batched.hgemm": row(fpemu.gpu.batched.hgemm, ONE[None], ONE[None]),
    "fpemu.gpu.batched.hcgemm": row(fpemu.gpu.batched.hcgemm, PAIR[None], PAIR[None]),
    "fpemu.gpu.tallskinny.tsm2": row(fpemu.gpu.tallskinny.tsm2, WIDE, WIDE),
    "fpemu.gpu.tallskinny.ism2": row(fpemu.gpu.tallskinny.ism2, WIDE, WIDE),
    "fpemu.gpu.tallskinny.multiply": row(fpemu.gpu.tallskinny.multiply, WIDE, WIDE),
    "fpemu.mma.KOrder": row(KOrder),
    "fpemu.mma.KOrder.segments": row(KOrder().segments, 4),
    "fpemu.mma.MmaSpec": row(MmaSpec, "fp16", "fp16", "fp32", 8, 8),
    "fpemu.mma.MmaSpec.replace": row(SPEC.replace, F=20),
    "fpemu.mma.spec": row(mma.spec, "H200"),
    "fpemu.mma.catalog.architecture": row(mma.catalog.architecture, "H200"),
    "fpemu.mma.catalog.documented_fields": row(mma.catalog.documented_fields, SPEC),
    "fpemu.mma.chain": row(mma.chain, [(ONE, ONE)], None, SPEC),
    "fpemu.mma.execute": row(mma.execute, np.ones((2, 4), np.float16), np.ones((4, 2), np.float16), None, SHORT),
    "fpemu.mma.scaled_gemm": row(mma.scaled_gemm, ONE, ONE, 1.0, 2.0, mma.spec("A100")),
    "fpemu.mma.gemm": row(mma.gemm, ONE, ONE, None, SPEC),
    "fpemu.roofline.Gpu": row(roofline.Gpu, name="own", source="a page"),
    "fpemu.roofline.Gpu.need": row(GPU.need, "sms"),
    "fpemu.roofline.work": row(roofline.work, "ootomo", "H200", 64, 64, 64),
    "fpemu.roofline.work sgemm": row(roofline.work, "sgemm", None, 64, 64, 64),
    "fpemu.roofline.gpus.get": row(gpus.get, "H200"),
    "fpemu.roofline.gpus.read": row(gpus.read, Path(gpus.__file__).with_name("gpus.toml")),
    "fpemu.roofline.break_even": row(roofline.break_even, "ootomo", "A100", largest=64),
    "fpemu.roofline.time": row(roofline.time, WORK, "H200"),
    "fpemu.probing.characterize": row(probing.characterize, instruction, a="fp16", b="fp16", d="fp32", k=4, outputs=16),
    "fpemu.probing.reveal": row(probing.reveal, multiply, 4, SHORT),
    "fpemu.probing.reveal_map": row(probing.reveal_map, multiply, 4, SHORT),
    "fpemu.probing.load": row(probing.load, "no such file"),
    "fpemu.probing.save": row(probing.save, KOrder(), "tree.json"),
    "fpemu.reference.matmul": row(fpemu.reference.matmul, ONE, ONE),
    "fpemu.reference.matmul C": row(fpemu.reference.matmul, ONE, ONE, ONE, beta=1),
    "fpemu.reference.ExactMatrix.round_to": row(EXACT.round_to, "fp16"),
    "fpemu.reference.ExactMatrix.fraction": row(EXACT.fraction, 0, 0),
    "fpemu.metrics.relative exact": row(metrics.relative, ONE, EXACT),
    "fpemu.schemes.alias": row(schemes.alias, "triton:tf32x3"),
    "fpemu.schemes.build": row(schemes.build, "ootomo", {}),
    "fpemu.schemes.get": row(schemes.get, "ootomo"),
    "fpemu.schemes.split_table": row(schemes.split_table, 0.1, "ootomo"),
    "fpemu.schemes.format_split": row(schemes.format_split, 0.1, "ootomo"),
    **{f"fpemu.schemes.Scheme {name}": row(type(schemes.get(name))) for name in schemes.names()},
    "fpemu.schemes.SplitScheme.split": row(schemes.get("ootomo").split, ONE),
    "fpemu.simt.fma": row(fpemu.simt.fma, 1.0, 1.0, 1.0),
    "fpemu.simt.gemm": row(fpemu.simt.gemm, WIDE, WIDE),
    "fpemu.simt.gemm bf16": row(fpemu.simt.gemm, ONE, ONE, fmt="bf16", rounding="SR", seed=1),
    "fpemu.simt.add": row(fpemu.simt.add, 1.0, 1.0),
    "fpemu.simt.multiply": row(fpemu.simt.multiply, 1.0, 1.0),
    "fpemu.simt.divide": row(fpemu.simt.divide, 1.0, 1.0),
    "fpemu.simt.sqrt": row(fpemu.simt.sqrt, 1.0),
    "fpemu.simt.ism2": row(fpemu.simt.ism2, WIDE, WIDE),
    "fpemu.simt.tsm2": row(fpemu.simt.tsm2, WIDE, WIDE),
    "fpemu.theory.Norms": row(Norms, **{name: getattr(NORMS, name) for name in inspect.signature(Norms).parameters}),
    "fpemu.theory.Norms.of": row(Norms.of, WIDE, WIDE),
    "fpemu.theory.Norms.sample": row(Norms.sample, "uniform", 4, 2),
    "fpemu.theory.Bound.probable": row(theory.bound("ootomo", "A100", norms=NORMS).probable, 0.1),
    "fpemu.theory.bound": row(theory.bound, "ootomo", "A100", norms=NORMS),
    "fpemu.theory.chain": row(theory.chain, SPEC, NORMS),
    "fpemu.theory.entrywise": row(theory.entrywise, "ootomo", "A100", A=ONE, B=ONE),
    "fpemu.theory.errorfree.slices_for": row(theory.errorfree.slices_for, 1e-10, NORMS, hardware="A100"),
    "fpemu.theory.errorfree.bound_parts": row(
        theory.errorfree.bound_parts, schemes.build("ozaki", {"slices": 3}), "A100", NORMS
    ),
}


def wrong_values(argument, annotation):
    """The wrong values of an argument's kind: (label, value, whether every function refuses it)."""
    if argument in ARRAYS and re.match(r"Any$|NDArray", annotation):
        yield from ((label, value, True) for label, value in REFUSED_ARRAYS.items())
        yield from ((label, value, False) for label, value in SHAPES.items())
    elif argument in ("alpha", "beta") or (
        re.search(r"\bfloat\b", annotation) and not re.search("Callable|Mapping", annotation)
    ):
        yield from ((label, value, label == "nan" and annotation != "Any") for label, value in NUMBERS.items())
    elif re.search(r"\bint\b", annotation):
        yield from ((label, value, False) for label, value in INTEGERS.items())
    if re.search(r"\bstr\b|Literal|^[A-Z][a-z]+( \| None)?$", annotation) and not CLASSES.match(annotation):
        yield from ((label, value, label == "unknown" and argument not in FREE) for label, value in NAMES.items())


def outcome(function, given, named, argument, value):
    """None if a call with one argument replaced raises an InputError of one line, else the exception or the result."""
    signature = inspect.signature(function)
    call = signature.bind(*given, **named)
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    if argument in signature.parameters:
        call.arguments[argument] = value
    else:
        call.arguments[rest] = {**call.arguments.get(rest, {}), argument: value}
    try:
        function(*call.args, **call.kwargs)
    except InputError as error:
        return None if str(error) and "\n" not in str(error) else "a message of several lines"
    except (GpuError, GuaranteeError, OSError):
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "a result"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "fpemu.probing.characterize")) for name in VALID]
)
@pytest.mark.usefixtures("workdir")
def test_a_wrong_value_raises_an_input_error(name):
    function, given, named = VALID[name]
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                continue
            for label, value, never in wrong_values(parameter.name, str(parameter.annotation)):
                result = outcome(function, given, named, parameter.name, value)
                never &= name not in LATER
                if result is not None and (never or result != "a result"):
                    wrong.append(f"{parameter.name} = {label}: {result}")
            if parameter.kind is parameter.VAR_KEYWORD and name not in LATER:
                assert outcome(function, given, named, "no_such_option", 1) is None
    assert not wrong, f"{name}: {len(wrong)} wrong outcomes, such as {wrong[:5]}"


READERS = {"fpemu.probing.load", "fpemu.conformance.compare_runs", "fpemu.conformance.replay_run"}
"""Functions that read files, which do not exist here."""
GPU_ROWS = {name for name in VALID if name.startswith(("fpemu.gpu.", "fpemu.verification."))}


@pytest.mark.parametrize("name", sorted(VALID.keys() - GPU_ROWS - READERS))
def test_the_calls_of_the_table_are_valid(name, workdir):
    function, given, named = VALID[name]
    function(*given, **named)


# --- single cases


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fpemu.gemm(ONE, ONE, scheme="ootomo", hardware="A100", promte=1), "did you mean 'promote'"),
        (lambda: theory.bound("ootomo", "A100", norms=NORMS, residual_scal=1), "did you mean 'residual_scale'"),
        (lambda: conformance.verify(2 * WIDE, ONE, ONE, hardware="A100", acumulate="fp32"), "mean 'accumulate'"),
        (lambda: conformance.verify(WIDE, ONE, ONE, hardware=SPEC, alfa=2.0), "did you mean 'alpha'"),
        (lambda: conformance.Specification(SPEC, epilogue="fuse"), "unknown epilogue 'fuse'"),
        (lambda: Plan(products=((0, 0),), join="as-runs"), "did you mean 'as-run'"),
        (lambda: Plan(products=((0, 0),), accumulators="bands"), "did you mean 'band'"),
        (lambda: Word("h", fpemu.FP16, "to-od").round(WIDE.astype(float)), "did you mean 'to-odd'"),
        (lambda: inputs.make("uniform", 2, 1, hihg=1.0), "did you mean 'high'"),
        (lambda: mma.spec(None), "unknown hardware None"),
        (lambda: mma.spec("H200", instruction=""), "unknown instruction ''"),
        (lambda: mma.spec("H200", instruction=0), "unknown instruction 0"),
        (lambda: probing.reveal(multiply, 4, SHORT, at=-1), "at = -1"),
        (lambda: conformance.verify(2 * WIDE, ONE, ONE, hardware="A100", seconds=float("nan")), "seconds = nan"),
        (lambda: fpemu.verification.instructions.verify(SPEC, outputs=float("nan")), "outputs = nan"),
        (lambda: fpemu.round_to(1e6, "e4m3", saturate="no"), "saturate = 'no' must be True or False"),
        (lambda: fpemu.round_to(ONE, "fp16", random_bits=ONE), "random_bits go with mode 'SR'"),
        (lambda: fpemu.formats.get(float), "unknown format"),
        (lambda: FloatFormat("x", 4, -6, 8, inf="no", nan="top"), "inf = 'no' must be True or False"),
        (lambda: FloatFormat("x", 4, -6, 8, inf=False, nan="top", max_significand=15), "all ones, is NaN"),
        (lambda: batched.hgemm(ONE, ONE, np.ones((3, 3)), hardware="V100"), "does not fit"),
        (lambda: fpemu.gemm(ONE, [np.ma.array([1, 2], mask=[0, 1])] * 2, scheme="sgemm"), "B: masked entries"),
    ],
)
def test_the_message_says_what_is_wrong(call, message):
    with pytest.raises(InputError, match=re.escape(message)):
        call()


def test_numbers_of_numpy_are_taken_as_python_s():
    order = KOrder(split=np.int64(48), residue_first=np.bool_(False))
    assert order == KOrder(split=48)
    assert type(order.split) is int
    assert MmaSpec("fp16", "fp16", "fp32", k=np.int32(8), block=8) == MmaSpec("fp16", "fp16", "fp32", k=8, block=8)
    assert fpemu.gemm(WIDE, WIDE, scheme="sgemm", alpha=np.array(2.0)).tolist() == [[4.0, 4.0]] * 2


def test_arrays_that_numpy_takes_are_taken():
    plain = fpemu.round_to(np.ones((2, 2)), "fp16")
    for x in (MATRIX, np.ma.array(np.ones((2, 2))), [[1, 1], [1.0, True + 0]]):
        y = fpemu.round_to(x, "fp16")
        assert type(y) is np.ndarray
        assert np.array_equal(y, plain)
    assert fpemu.mma.gemm(np.ones((0, 4)), np.ones((4, 2)), spec=SHORT).shape == (0, 2)


@pytest.mark.parametrize("value", [0, 2**70, 1.0, True, "1", None])
def test_integers_have_bounds(value):
    with pytest.raises(InputError, match=r"n = .* must be an integer from 1 to"):
        integer("n", value, 1, 2**62)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "1", None, 0, -1])
def test_numbers_are_finite_and_within_bounds(value):
    with pytest.raises(InputError, match=r"x = .* must be a positive number"):
        number("x", value, above=0)
