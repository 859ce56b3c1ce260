"""Measure whole calls on the GPU: ``python -m benchmarks.calls --help``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import fpemu
from benchmarks.calls import run
from benchmarks.calls.sections import SECTIONS
from benchmarks.calls.timer import Timer
from benchmarks.gpu.run import head
from fpemu.errors import GpuError, InputError, unknown_name
from fpemu.gpu.runtime import device

RECORD = Path(__file__).parents[2] / "experiments" / "speed" / "h200_calls.json"


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit status: 1 also where a case failed or did not fit into the time limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description="Measure whole calls on the GPU.")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="names, comma-separated (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=RECORD, help="record to write; its other sections stay")
    parser.add_argument("--seconds", type=float, default=150.0, help="limit: no case begins later (default: 150)")
    options = parser.parse_args(arguments)
    names = options.sections.split(",")
    try:
        for name in names:
            if name not in SECTIONS:
                raise unknown_name("section", name, SECTIONS)
        missing = device.missing()
        if missing is not None:
            raise GpuError(str(missing))
        timer = Timer()
        here = head()["runs"][0] | {"torch": timer.torch.__version__, "python": sys.version.split()[0]}
        chosen = {name: section for name, section in SECTIONS.items() if name in names}
        record = run.new(here) if chosen == SECTIONS else run.resume(options.output, here)
    except (InputError, GpuError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2 if isinstance(problem, InputError) else 1
    run.measure(chosen, timer, record, options.output, here, seconds=options.seconds, between=fpemu.gpu.release)
    remaining = any("not measured" in record["about"][name] for name in chosen)
    return int(remaining or any("error" in row for name in chosen for row in record[name].values()))


if __name__ == "__main__":
    sys.exit(main())
