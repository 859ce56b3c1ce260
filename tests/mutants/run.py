"""Run the mutation check: plant each fault of ``mutants.json`` in a private copy of the tree and run its tests.

    python tests/mutants/run.py                # all mutants, on two workers
    python tests/mutants/run.py 'ozaki*'       # some, by id

The outcomes are appended to a file as they come, and a later run skips the mutants whose module and test files have not
changed since; delete the file to run all again. Outcomes: "caught" (a test failed), "timeout" (counts as caught where
the same tests end within half of the limit without the fault), "survived". Exit status 1 if fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.mutants.mutants import ROOT, Mutant, NotFoundError, apply, read

TARGET = 0.95
_OMITTED = (".git", ".venv", ".fpemu", "__pycache__", ".*_cache", "_build", "node_modules")
_CAUGHT = (1, 2)  # pytest's exit status of failed tests and of errors while it imports them


class Tree:
    """A private copy of the project, with one mutant at a time.

    Compiled modules are stored with the hash of their source and never written again (PYTHONDONTWRITEBYTECODE): a file
    with a fault never runs from the bytecode of another version, whatever its time stamp.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_OMITTED))
        for name in ("fpemu", "experiments", "benchmarks"):
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(folder / name, quiet=2, invalidation_mode=mode)
        # machine code has names with a hash of its sources: a copy is as good
        self._kernels = Path("fpemu", "compiled", "__pycache__")
        for kernel in (ROOT / self._kernels).glob("*.kernel"):
            shutil.copy(kernel, folder / self._kernels)

    def test(self, files: tuple[str, ...], limit: float) -> tuple[int | None, float, str]:
        """Run test files; return pytest's exit status (None after `limit` seconds), the seconds and the last line."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FPEMU_CACHE": str(self.folder / ".fpemu"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # the session of pytest: its own children too
                    process.wait()
            output.seek(0)
            lines = [line for line in output.read().splitlines() if line.startswith(("FAILED", "ERROR"))] or [""]
        return status, round(time.monotonic() - start, 1), lines[0][:200]

    def test_with(self, mutant: Mutant, limit: float) -> dict[str, Any]:
        """Plant a fault, run its tests, and restore the tree."""
        path, text = apply(mutant)
        path = self.folder / path.relative_to(ROOT)
        original, kernels, saved = path.read_bytes(), self.folder / self._kernels, self.folder.with_suffix(".kernels")
        compiled = path.parent.name == "compiled"
        if compiled:
            shutil.copytree(kernels, saved)  # saving kernels of other sources deletes these
        try:
            path.write_text(text, encoding="utf-8")
            status, seconds, line = self.test(mutant.tests, limit)
        finally:
            path.write_bytes(original)
            if compiled:
                shutil.rmtree(kernels)
                saved.rename(kernels)
        if status not in (None, 0, *_CAUGHT):
            raise RuntimeError(f"{mutant.id}: pytest ended with status {status} on {' '.join(mutant.tests)}: {line}")
        outcome = "timeout" if status is None else "caught" if status else "survived"
        return {"id": mutant.id, "outcome": outcome, "seconds": seconds, "by": line}


class Results:
    """The file of outcomes: one JSON object a line, keyed by a digest of code and tests."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.known = {entry["digest"]: entry for entry in map(json.loads, lines)}

    def add(self, digest: str, entry: dict[str, Any]) -> None:
        with self._lock:
            self.known[digest] = entry
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**entry, "digest": digest}, ensure_ascii=False) + "\n")
            print(f"{entry['outcome']:<9} {entry['seconds']:5.1f} s  {entry['id']}  {entry['by']}", flush=True)


def _digest(tests: tuple[str, ...], *texts: str) -> str:
    parts = [*texts, *(name + (ROOT / name.partition("::")[0]).read_text(encoding="utf-8") for name in tests)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _run(mutants: list[Mutant], results: Results, workers: int, limit: float) -> None:
    """Run what has no outcome yet: first each test file without a fault, then the mutants."""
    clean = {(name,): _digest((name,), "without a fault") for m in mutants for name in m.tests}
    pending = {files: digest for files, digest in clean.items() if digest not in results.known}
    faults = [(m, d) for m in mutants if (d := _digest(m.tests, m.id, apply(m)[1])) not in results.known]
    if not pending and not faults:
        return
    with tempfile.TemporaryDirectory(prefix="fpemu-mutants-") as folder, ThreadPoolExecutor(workers) as pool:
        free: SimpleQueue[Tree] = SimpleQueue()
        for number in range(workers):
            free.put(Tree(Path(folder, f"tree{number}")))

        def usual(mutant: Mutant) -> float:
            return float(sum(results.known[clean[(name,)]]["seconds"] for name in mutant.tests))

        def check(files: tuple[str, ...]) -> None:
            tree = free.get()
            try:
                status, seconds, line = tree.test(files, 10 * limit)
            finally:
                free.put(tree)
            if status != 0:
                raise RuntimeError(f"without a fault, {files[0]} ends with status {status}: {line}")
            results.add(pending[files], {"id": files[0], "outcome": "passed", "seconds": seconds, "by": ""})

        def run(mutant: Mutant, digest: str) -> None:
            tree = free.get()
            try:
                entry = tree.test_with(mutant, limit)
            finally:
                free.put(tree)
            if entry["outcome"] == "timeout" and usual(mutant) > limit / 2:
                raise RuntimeError(f"{mutant.id}: its tests take {usual(mutant)} s without the fault: name faster ones")
            results.add(digest, entry)

        list(pool.map(check, pending))
        faults.sort(key=lambda fault: usual(fault[0]))
        list(pool.map(lambda fault: run(*fault), faults))


def _summary(mutants: list[Mutant], results: Results) -> float:
    """Print the outcomes by subpackage and return the share that is caught."""
    outcome = {}
    for mutant in mutants:
        entry = results.known[_digest(mutant.tests, mutant.id, apply(mutant)[1])]
        outcome[mutant.id] = entry["outcome"]
    counts = {
        group: Counter(outcome[m.id] for m in mutants if m.group == group) for group in {m.group for m in mutants}
    }
    print(f"{'':14}caught timeout survived")
    for group, count in sorted(counts.items()):
        print(f"{group:14}{count['caught']:6}{count['timeout']:8}{count['survived']:9}")
    survivors = [name for name, how in outcome.items() if how == "survived"]
    score = 1 - len(survivors) / max(1, len(outcome))
    print(f"{len(outcome) - len(survivors)} of {len(outcome)} caught: {score:.1%}")
    if survivors:
        print("survived:", *survivors)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ids", nargs="*", default=["*"], help="patterns of ids; default: all")
    parser.add_argument("--results", type=Path, default=ROOT / ".fpemu" / "mutants.jsonl", help="file of outcomes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a mutant")
    options = parser.parse_args()
    chosen = [m for m in read() if any(fnmatch(m.id, pattern) for pattern in options.ids)]
    missing = []
    for mutant in (m for m in chosen if not m.gone):
        try:
            apply(mutant)
        except NotFoundError as error:
            missing.append(str(error))
    if missing:
        print(*missing, sep="\n", file=sys.stderr)
        return 2
    results = Results(options.results)
    mutants = [m for m in chosen if m.runs]
    try:
        _run(mutants, results, options.workers, options.limit)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    score = _summary(mutants, results)
    kinds = Counter("equivalent" if m.equivalent else "gone" for m in chosen if not m.runs)
    print(f"not run: {kinds['equivalent']} equivalent, {kinds['gone']} of deleted code")
    return int(score < TARGET)


if __name__ == "__main__":
    sys.exit(main())
