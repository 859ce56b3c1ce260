"""The arithmetic of an unknown matrix instruction, from directed probes alone."""
