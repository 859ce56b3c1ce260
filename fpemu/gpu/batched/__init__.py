"""MAGMA's batched half and half-complex products on the current GPU, with the bits of `fpemu.batched`.

Kernels with the paper's parameters on ``mma.sync`` (`configuration`, `source`), compiled when they are first needed.
"""

from fpemu.gpu.batched.configuration import Block, Packed, Small, Warp
from fpemu.gpu.batched.products import arguments_of as arguments
from fpemu.gpu.batched.products import hcgemm, hgemm
from fpemu.gpu.batched.stacks import Pointers

__all__ = ["Block", "Packed", "Pointers", "Small", "Warp", "arguments", "hcgemm", "hgemm"]
