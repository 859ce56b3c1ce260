"""Figures of the papers: their pages (experiments), files (figures), claims, and the ledger of all claims."""

from fpemu.reproduce.claims import Claim
from fpemu.reproduce.experiments import Experiment
from fpemu.reproduce.reproduction import Reproduction, committed, reproduce

__all__ = ["Claim", "Experiment", "Reproduction", "committed", "reproduce"]
