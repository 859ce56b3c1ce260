"""Figures of the papers: their pages (experiments), files (figures), claims (papers), verdicts and the ledger."""

from fpemu.reproduce.claims import Measure
from fpemu.reproduce.experiments import Experiment
from fpemu.reproduce.papers import Claim
from fpemu.reproduce.reproduction import Reproduction, committed, reproduce
from fpemu.reproduce.verdicts import Judgement

__all__ = ["Claim", "Experiment", "Judgement", "Measure", "Reproduction", "committed", "reproduce"]
