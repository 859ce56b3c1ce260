"""What can be said of an error before a product is computed.

`bound` is the a-priori error of any scheme, part by part, from a description of the operands (`Norms`); `chain` that of
a bare GEMM on an instruction. `underflow` has H2SGEMM's formulas for any pair of formats, `enumeration` counts them
out, `bias` says how far truncating sums drift, `errorfree` how many slices a target takes.
"""

from __future__ import annotations

from fpemu.theory import bias, enumeration, errorfree, underflow
from fpemu.theory.accumulation import chain
from fpemu.theory.bounds import bound
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Bound, Part

__all__ = ["Bound", "Norms", "Part", "bias", "bound", "chain", "enumeration", "errorfree", "underflow"]
