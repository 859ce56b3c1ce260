"""Compilation, launches, arrays and streams on an NVIDIA GPU."""
