"""Work of the schemes and their rooflines: operations and bytes counted, GPUs as data. No result is measured.

`work` counts what a scheme executes, `time` bounds its duration on a GPU, and `gpus` describes the GPUs. The papers'
own performance models are in ``experiments/<paper>/model.py``.
"""

from __future__ import annotations

from fpemu.roofline import gpus
from fpemu.roofline.counting import Phase, Work, work
from fpemu.roofline.gpus import Gpu
from fpemu.roofline.times import BreakEven, Estimate, Span, break_even, time

__all__ = ["BreakEven", "Estimate", "Gpu", "Phase", "Span", "Work", "break_even", "gpus", "time", "work"]
