"""Names that frameworks and libraries give to FP32 products from low-precision words, as aliases of schemes.

The name of an alias is "framework:NAME", such as "jax:BF16_BF16_F32_X6". An alias states how exactly the scheme is the
framework's: "verified" (equal bits in a test), "documented" (words and number of products; the framework leaves the
order of the terms, the tiles or the rounding of the words open) or "definition".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fpemu.errors import InputError, unknown_name

_ONE_TF32 = {"words": 1, "fmt": "tf32", "promote": None}
_ONE_BF16 = {"words": 1, "fmt": "bf16", "promote": None}
_UNSCALED = {"residual_scale": 1.0, "accumulators": "one", "step": None, "promote": 32}
_TF32X3 = {"high_rounding": "RNA", "residual_rounding": "RZ", "products": ("rh", "hr", "hh")}
_BF16X3 = {"words": 2, "fmt": "bf16", "products": ("21", "12", "11"), **_UNSCALED}
_BF16X6 = {"words": 3, "fmt": "bf16", "products": ("22", "31", "13", "21", "12", "11"), **_UNSCALED}
_BF16X9 = {**_BF16X6, "products": ("33", "23", "32", *_BF16X6["products"])}
