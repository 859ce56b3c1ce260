"""Matrix products in fp32 and fp64 from low-precision words: every published scheme behind one call.

One file per scheme. `names()` lists them, `get(name).info` contains the published facts and the options of a scheme,
`gemm` runs it on a model of some hardware, and `split_table` returns the split of one number.
"""

from importlib import import_module

from fpemu.schemes.base import Scheme, build, get, names
from fpemu.schemes.call import certify, gemm
from fpemu.schemes.errorfree.base import ErrorFree
from fpemu.schemes.errorfree.plan import Certificate, Certified, Report
from fpemu.schemes.frameworks import Alias, alias, aliases
from fpemu.schemes.options import Option, SchemeInfo
from fpemu.schemes.split_scheme import SplitScheme
from fpemu.schemes.split_table import SplitRow, SplitTable, format_split, split_table
from fpemu.schemes.words import Plan, Word, groups, pairs

_IN_ORDER = "baselines markidis bf16x egemm ootomo ape multiword legemm h2sgemm staged staged_int8 ozaki ozimmu ozaki2"
"""The modules that enter their schemes into the registry: baselines, then by year"""
for _module in _IN_ORDER.split():
    import_module(f"fpemu.schemes.{_module}")

__all__ = [
    "Alias",
    "Certificate",
    "Certified",
    "ErrorFree",
    "Option",
    "Plan",
    "Report",
    "Scheme",
    "SchemeInfo",
    "SplitRow",
    "SplitScheme",
    "SplitTable",
    "Word",
    "alias",
    "aliases",
    "build",
    "certify",
    "format_split",
    "gemm",
    "get",
    "groups",
    "names",
    "pairs",
    "split_table",
]
