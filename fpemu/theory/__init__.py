"""Error bounds stated before a product is computed: the only place of the package where a bound is stated.

`bound` returns the a-priori error of any scheme, part by part, from norms of the operands (`Norms`); `entrywise` bounds
every entry of a product of given operands; `chain` returns the error of a GEMM on one instruction; `errorfree` the
number of slices that a target accuracy requires.
"""

from __future__ import annotations

from fpemu.theory import errorfree
from fpemu.theory.accumulation import chain
from fpemu.theory.bounds import bound
from fpemu.theory.entrywise import entrywise
from fpemu.theory.norms import Norms
from fpemu.theory.parts import Bound, Part

__all__ = ["Bound", "Norms", "Part", "bound", "chain", "entrywise", "errorfree"]
