"""Performance models: those of the papers, and a roofline for every scheme on every GPU. No result is measured.

`gpus` describes GPUs; `legemm`, `h2sgemm`, `dgemm_tc`, `magma` and `tsm2` are the models of the papers of these names;
`roofline` bounds the time of the `work` of a scheme.
"""

from __future__ import annotations

from fpemu.roofline import dgemm_tc, gpus, h2sgemm, legemm, magma, tsm2
from fpemu.roofline import times as roofline
from fpemu.roofline.counting import work
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.phases import Phase, Work

__all__ = ["Gpu", "Phase", "Work", "dgemm_tc", "gpus", "h2sgemm", "legemm", "magma", "roofline", "tsm2", "work"]
