"""The GPU against the emulation: suites, their cases as functions of a seed, their records."""
