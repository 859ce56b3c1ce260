"""The pages of all experiments, which a process loads once for all modules of tests."""

from __future__ import annotations

from fpemu.reproduce import pages

PAGES = {name: pages.load(name).page for name in pages.names()}
