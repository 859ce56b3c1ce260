"""Verification of the GPU against the emulation: one module per suite, cases from a seed, one record schema."""
