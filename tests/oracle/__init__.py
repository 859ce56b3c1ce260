"""What the instructions compute, written a second time: scalar, slow, in exact integers, from the specification alone.

No module here imports `fpemu`. A number is decoded from its code into integers, sums are Python integers, and each
rounding is one explicit step. Every function works on ONE output element: a row of A, a column of B and an accumulator,
as codes.

The arithmetic of NVIDIA instructions was checked against recordings of an H200, an A100 and a V100 (test_golden.py,
test_verified.py).
Readings of the AMD rows, whose published description leaves some cases open:

* CDNA1, CDNA3 and the ideal unit: the sign of a zero result is not specified (`Instruction.zero_sign` is False).
* AMD and the ideal unit: which NaN comes out is not specified (`Instruction.nan_code` is None).
* CDNA2: "input subnormals become +0" takes in a -0 in A and B, and in C on entry of an instruction, but not the
  accumulator between its blocks, which is a flushed result and keeps its sign.
* CDNA3: the exponent of a product is e_a + e_b, not normalised, as on NVIDIA; a zero product has none, and if all
  products are zero c alone fixes the common exponent; a subnormal or zero c has the exponent emin.
* CDNA3: "floored to n bits" means a floor to a multiple of 2^(E - n), which for negative numbers is away from zero.
* CDNA3: the sum is normalised before its last floor, to 31 bits below its own exponent (not below E).
* CDNA3 fp8: each of the two sums (even k, odd k) is truncated against its own largest exponent, then floored at the
  larger of the two.
"""

from tests.oracle.blocks import add, fma
from tests.oracle.codes import FORMATS, Format, Number, code_of, decode, infinity
from tests.oracle.order import Order, ordered
from tests.oracle.table import TABLE, Instruction, cdna3, exact, fma_chain, fp8_through_half, truncated
from tests.oracle.values import TARGETS, NotRepresentable, Target, round_value

__all__ = [
    "FORMATS",
    "TABLE",
    "TARGETS",
    "Format",
    "Instruction",
    "NotRepresentable",
    "Number",
    "Order",
    "Target",
    "add",
    "cdna3",
    "code_of",
    "decode",
    "exact",
    "fma",
    "fma_chain",
    "fp8_through_half",
    "infinity",
    "ordered",
    "round_value",
    "truncated",
]
