"""Figures of the papers: their pages (pages), files (figures), claims and verdicts (claims), and the ledger."""

from fpemu.reproduce.claims import Claim, Judgement, Measure
from fpemu.reproduce.figures import Reproduction, committed, reproduce
from fpemu.reproduce.pages import Experiment, Page

__all__ = ["Claim", "Experiment", "Judgement", "Measure", "Page", "Reproduction", "committed", "reproduce"]
