"""Speed and memory of the emulation on this machine: the same as ``fpemu bench cpu``. See :mod:`fpemu.bench`."""

from __future__ import annotations

import sys

from fpemu.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "cpu", *sys.argv[1:]]))
