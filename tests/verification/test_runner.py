"""The runner of the suites: interrupted runs, records, resumption, and their commands on stand-ins for the GPU."""

from __future__ import annotations

import ast
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from fpemu import files
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.gpu.batched import products
from fpemu.gpu.runtime import compiler, device
from fpemu.verification import (
    arguments,
    batched,
    emulation,
    instructions,
    kernels,
    library,
    records,
    runner,
    suite,
    tallskinny,
)
from fpemu.verification.cases import Case, Computed
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import ProductSuite, by_path
from tests.commands import refusal

KERNELS = ["V0", "opt 1"]
SUITES = (
    arguments.Arguments,
    batched.Batched,
    emulation.Emulation,
    instructions.Instructions,
    kernels.Kernels,
    tallskinny.TallSkinny,
)


@dataclass
class Machine:
    """A stand-in for a GPU and the suites on it: the groups that were run, and where it is interrupted or fails."""

    done: list[str] = field(default_factory=list)
    stop: str = ""
    wrong: str = ""
    gpu: str = "NVIDIA H200"
    nvrtc: str = "13.0"

    def run(self, suite, group, progress):
        if group == self.stop:
            raise KeyboardInterrupt
        self.done.append(group)
        wrong = int(group == self.wrong)
        first = ["3: one of 9 differs"] * wrong
        facts = {"products": [["V1", [1, 1, 1], "rows", 9, wrong]]} if group.startswith("huge") else {}
        return Outcome(group, 5, 45, wrong, digest=f"{suite.seed:016x}", digests={"3": "0"}, first=first, facts=facts)

    def again(self, stop: str = "") -> list[str]:
        """Return the groups run so far and forget them; `stop` before this group next."""
        before, self.done, self.stop = self.done, [], stop
        return before


@pytest.fixture
def machine(monkeypatch):
    stand_in = Machine()
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(products, "need_gpu", lambda: None)
    monkeypatch.setattr(products, "arguments_of", lambda: {"hardware": "hopper"})
    monkeypatch.setattr(device, "describe", lambda: {"gpu": stand_in.gpu, "arch": "sm_90a", "nvrtc": stand_in.nvrtc})
    monkeypatch.setattr(device, "arch", lambda: "sm_90a")
    monkeypatch.setattr(compiler, "compile_all", lambda sources, arch: None)
    monkeypatch.setattr(records, "driver", lambda: "none")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process, in which the stand-ins are
    monkeypatch.setattr(batched.Batched, "run", stand_in_run(stand_in))
    monkeypatch.setattr(tallskinny.TallSkinny, "run", stand_in_run(stand_in))
    monkeypatch.setattr(tallskinny.TallSkinny, "sources", lambda self, groups: [])
    monkeypatch.setattr(tallskinny, "kernels", lambda: KERNELS)
    monkeypatch.setattr(tallskinny, "kernel_texts", lambda seed: "texts")
    return stand_in


def stand_in_run(machine):
    return lambda self, group, progress: machine.run(self, group, progress)


GROUPS = sorted(group.name for group in batched.groups())
PAIRS = [f"{name} in {fmt}" for name in (*KERNELS, "multiply") for fmt in tallskinny.FORMATS]
HUGE = [f"huge in {fmt}" for fmt in tallskinny.FORMATS]
COMMANDS = {
    "batched": (["verify", "batched", "--cases", "5"], GROUPS, GROUPS[6], 6),
    "tallskinny": (["verify", "tallskinny", "--every", "50", "--huge"], PAIRS + HUGE, HUGE[1], 7),
}
every_command = pytest.mark.parametrize(("command", "groups", "stop", "count"), COMMANDS.values(), ids=COMMANDS)


def undated(path: Path) -> dict:
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "date"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@every_command
def test_the_record_of_two_runs_is_that_of_one(machine, tmp_path, capsys, command, groups, stop, count):
    at_once, resumed = tmp_path / "at_once.json", tmp_path / "resumed.json"
    assert main([*command, "--record", str(at_once)]) == 0
    assert machine.again(stop) == groups
    assert names(tmp_path) == ["at_once.json"]
    shown = capsys.readouterr().out

    assert main([*command, "--record", str(resumed)]) == 130
    assert machine.again() == groups[:count]
    saved = f"{count} of {len(groups)} groups are saved in {resumed}.partial"
    err = capsys.readouterr().err
    assert [line for line in err.splitlines() if line.startswith("fpemu: ")] == [
        f"fpemu: interrupted; {saved}, and the same command continues from there"
    ]
    assert names(tmp_path) == ["at_once.json", "resumed.json.partial"]

    assert main([*command, "--record", str(resumed)]) == 0
    assert machine.again() == groups[count:]
    again = capsys.readouterr()
    assert f"{saved} already" in again.err
    assert sorted(again.out.split()) == sorted(shown.split())
    assert names(tmp_path) == ["at_once.json", "resumed.json"]
    assert undated(resumed) == undated(at_once)

    assert main([*command, "--record", str(resumed)]) == 0
    assert machine.done == []
    assert f"{len(groups)} of {len(groups)} groups are saved in {resumed} already" in capsys.readouterr().err


@every_command
def test_an_interrupt_while_the_record_is_written_loses_no_group(
    machine, monkeypatch, tmp_path, command, groups, stop, count
):
    record, write = str(tmp_path / "record.json"), runner.write_atomic

    def interrupted(path, content):
        if str(path) == record:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_atomic", interrupted)
        assert main([*command, "--record", record]) == 130
    machine.again()
    assert names(tmp_path) == ["record.json.partial"]
    assert main([*command, "--record", record]) == 0
    assert machine.done == []
    assert names(tmp_path) == ["record.json"]


@every_command
def test_an_interrupt_before_the_first_group_or_without_a_record_saves_nothing(
    machine, tmp_path, monkeypatch, capsys, command, groups, stop, count
):
    monkeypatch.chdir(tmp_path)
    machine.stop = groups[0]
    assert main([*command, "--record", "record.json"]) == 130
    machine.stop = stop
    assert main(command) == 130
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fpemu: ")]
    assert lines == [f"fpemu: interrupted; nothing is saved {why}" for why in ("yet", "without --record")]
    assert names(tmp_path) == []


@every_command
@pytest.mark.parametrize("other", ["seed", "cases", "gpu", "nvrtc", "driver", "code"])
def test_outcomes_of_another_run_are_not_used(machine, tmp_path, monkeypatch, command, groups, stop, count, other):
    record = tmp_path / "record.json"
    machine.stop = stop
    assert main([*command, "--record", str(record)]) == 130
    machine.again()
    if other == "seed":
        command = [*command, "--seed", "1"]
    elif other == "cases":
        command = [*command[:3], "45", *command[4:]]
    elif other == "driver":
        monkeypatch.setattr(records, "driver", lambda: "another")
    elif other == "code":
        monkeypatch.setattr(records, "code_digest", lambda parts: "another")
    else:
        setattr(machine, other, "another")
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == groups
    assert undated(record)["seed"] == (other == "seed")


def test_products_of_another_time_limit_are_not_used(machine, tmp_path):
    command = ["verify", "batched", "--record", str(tmp_path / "record.json")]
    machine.stop = GROUPS[3]
    assert main([*command, "--seconds", "1"]) == 130
    machine.again(GROUPS[5])
    assert main([*command, "--seconds", "2"]) == 130
    assert machine.again() == GROUPS[:5]
    assert main([*command, "--seconds", "2"]) == 0
    assert machine.done == GROUPS[5:]


def test_the_kernels_are_used_with_huge_matrices_and_without(machine, tmp_path):
    command = [*COMMANDS["tallskinny"][0], "--record", str(tmp_path / "record.json")]
    machine.stop = PAIRS[3]
    assert main(command[:4] + command[5:]) == 130
    machine.again(HUGE[1])
    assert main(command) == 130
    assert machine.again() == [*PAIRS[3:], HUGE[0]]
    assert main(command[:4] + command[5:]) == 0
    assert machine.done == []


@every_command
def test_fresh_ignores_earlier_runs(machine, tmp_path, capsys, command, groups, stop, count):
    command = [*command, "--record", str(tmp_path / "record.json")]
    machine.stop = stop
    assert main(command) == 130
    assert machine.again(stop) == groups[:count]
    assert main([*command, "--fresh"]) == 130
    assert machine.again() == groups[:count]
    assert "and the same command without --fresh continues from there" in capsys.readouterr().err
    assert main(command) == 0
    assert machine.done == groups[count:]


@every_command
def test_a_fresh_run_that_is_interrupted_twice_uses_no_earlier_record(
    machine, tmp_path, capsys, command, groups, stop, count
):
    record = tmp_path / "record.json"
    command = [*command, "--record", str(record)]
    assert main(command) == 0
    facts = undated(record)["facts"]
    machine.again(groups[1])
    assert main([*command, "--fresh"]) == 130
    machine.again(stop)
    assert main(command) == 130
    assert machine.again() == groups[1:count]
    assert main(command) == 0
    assert machine.again(groups[1]) == groups[count:]
    assert undated(record)["facts"] == facts

    assert main([*command, "--fresh"]) == 130
    machine.again(groups[0])
    assert main([*command, "--fresh"]) == 130
    assert "nothing is saved yet" in capsys.readouterr().err
    assert names(tmp_path) == ["record.json"]


@every_command
def test_a_group_with_a_mismatch_is_compared_again(machine, tmp_path, command, groups, stop, count):
    record = tmp_path / "record.json"
    machine.stop, machine.wrong = stop, groups[1]
    assert main([*command, "--record", str(record)]) == 130
    machine.again()
    assert main([*command, "--record", str(record)]) == 1
    assert machine.done == [groups[1], *groups[count:]]
    assert undated(record)["totals"]["mismatches"] == 1
    assert names(tmp_path) == ["record.json"]


def test_a_failed_group_outside_the_run_stays_in_the_record(machine, tmp_path, capsys):
    record, command = tmp_path / "record.json", COMMANDS["tallskinny"][0]
    machine.wrong = HUGE[1]
    assert main([*command, "--record", str(record)]) == 1
    machine.again()
    capsys.readouterr()
    without_huge = [word for word in command if word != "--huge"]
    assert main([*without_huge, "--record", str(record)]) == 1
    assert machine.done == []
    assert f"1 groups outside this run have failed: {HUGE[1]}" in capsys.readouterr().err
    assert [o.group for o in Record.read(record).outcomes if not o.ok] == [HUGE[1]]
    machine.wrong = ""
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == [HUGE[1]]
    assert Record.read(record).ok


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_of_64_bits_is_refused_before_anything_runs(machine, capsys, name, seed):
    assert f"seed = {seed} must be an integer" in refusal(capsys, "verify", name, "--seed", str(seed))
    assert machine.done == []


@pytest.mark.parametrize("kind", ["no group", "no output", "errors alike"])
def test_the_status_is_1_if_nothing_was_compared(machine, monkeypatch, capsys, kind):
    counts = {"errors": 5} if kind == "errors alike" else {"no kernel": 5}
    monkeypatch.setattr(batched.Batched, "run", lambda self, group, progress: Outcome(group, 5, counts=counts))
    if kind == "no group":
        monkeypatch.setattr(batched.Batched, "groups", lambda self: [])
    status = 0 if kind == "errors alike" else 1
    assert main(["verify", "batched", "--cases", "5"]) == status
    assert ("nothing was compared" in capsys.readouterr().err) == bool(status)


def test_sizes_that_exceed_the_memory_are_shown(monkeypatch):
    monkeypatch.setattr(tallskinny.TallSkinny, "device", lambda self: {})
    monkeypatch.setattr(tallskinny, "kernel_texts", lambda seed: "texts")
    monkeypatch.setattr(tallskinny.callers, "free_bytes", lambda: 0)
    run = tallskinny.TallSkinny(huge=True, paths=["host"])
    *_, line = run.summary(run.record([tallskinny.check_huge("huge in fp32", 0)]))
    sizes = (f"{m}×{k}×{n} in fp32" for m, k, n in tallskinny.HUGE_SHAPES)
    assert line == f"skipped, too little memory: {', '.join(sizes)}"


@every_command
def test_a_complete_record_is_not_written_again(machine, monkeypatch, tmp_path, command, groups, stop, count):
    record = tmp_path / "record.json"
    command = [*command, "--record", str(record)]
    assert main(command) == 0
    content = record.read_bytes()
    monkeypatch.setattr(records, "now", lambda: "another date")
    assert main(command) == 0
    assert record.read_bytes() == content
    assert main([*command, "--fresh"]) == 0
    assert Record.read(record).date == "another date"


# --- damaged files
def changed(content: bytes) -> list[bytes]:
    """A saved file after several kinds of damage."""
    record = json.loads(content)
    few = {name: value for name, value in record.items() if name != "digest"}
    more = {**record, "outcomes": [{**row, "cases": 10**6} for row in record["outcomes"]]}
    lists = {**record, "outcomes": [1, 2], "digest": records._digest([1, 2])}
    other = {**record, "schema": 0}
    damaged: list = [few, more, lists, other, [], None, {"schema": 1, "outcomes": 3}]
    rows = [json.dumps(x).encode() for x in damaged]
    return [b"", content[:-3], content[: len(content) // 2], b"\xff\xfe\x00", *rows, content + content, b"[" * 10**5]


@pytest.mark.parametrize("which", range(13))
def test_a_damaged_file_is_ignored(machine, tmp_path, which):
    command, groups, stop, _ = COMMANDS["batched"]
    record, partial = tmp_path / "record.json", tmp_path / "record.json.partial"
    machine.stop = stop
    assert main([*command, "--record", str(record)]) == 130
    machine.again()
    partial.write_bytes(changed(partial.read_bytes())[which])
    with pytest.raises(InputError):
        Record.read(partial)
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == groups
    assert names(tmp_path) == ["record.json"]


@every_command
def test_a_full_disk_leaves_whole_files(machine, tmp_path, monkeypatch, capsys, command, groups, stop, count):
    """The second write fails: the first file is complete, and the next run continues from it."""
    record, real, renames = tmp_path / "record.json", os.replace, list[str]()

    def replace(source, target):
        renames.append(str(target))
        if len(renames) == 2:
            raise OSError(28, "No space left on device", str(target))
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", replace)
        assert main([*command, "--record", str(record)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert names(tmp_path) == ["record.json.partial"]
    assert [o.group for o in Record.read(tmp_path / "record.json.partial").outcomes] == groups[:1]
    machine.again()
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == groups[1:]


def test_the_digest_of_the_code_depends_on_every_listed_subpackage(monkeypatch):
    parts = {part for one in SUITES for part in one.code}
    assert all((compiler.KERNELS.parents[1] / part).exists() for part in (*parts, *records.COMMON_CODE))
    assert all(path.suffix in records._SOURCES for path in compiler.KERNELS.glob("*.cu*"))
    assert len({records.code_digest(part) for part in [(), *((part,) for part in parts)]}) == len(parts) + 1


@pytest.mark.parametrize("tested", [*SUITES, library.Library])
def test_the_digest_of_the_code_includes_every_source_that_decides_results(monkeypatch, tested):
    sources, read = set(), Path.read_bytes

    def noted(path):
        sources.add(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    records.code_digest.__wrapped__(tested.code)
    root = compiler.KERNELS.parents[1]
    needed = [root / f"{name}.py" for name in ("rounding", "arguments", "parallel")]
    for part in (*records.COMMON_CODE, *tested.code):
        if (root / part).is_dir():
            needed += [path for path in (root / part).rglob("*") if path.is_file()]
    if tested is batched.Batched:
        needed.append(root / "schemes/base.py")
    for folder in [root / part for part in tested.code if part.startswith("gpu/") and (root / part).is_dir()]:
        needed += [module for path in folder.rglob("*.py") for module in imported(path, root)]
    assert [path for path in needed if path not in sources and "__pycache__" not in path.parts] == []


def imported(path, root):
    """The modules of the package that a file imports, except those that decide no result."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fpemu"):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {root.parent / f"{name.replace('.', '/')}.py" for name in names}
    neutral = {root / f"{name}.py" for name in ("errors", "files", "hints", "kernelcache")}
    return sorted(path for path in files - neutral if path.exists())


# --- products
class Squares(ProductSuite):
    """Case n is the array [n, n^2]; the GPU's results are altered by `change`."""

    name, about, kept, small = "squares", "", 2, 100

    def __init__(self, change=lambda case, codes: codes):
        super().__init__(0)
        self.change = change

    def groups(self):
        return ["a", "b", "c"]

    def numbers(self, group):
        return range(4)

    def case(self, group, number):
        return Case(group, number, 0, (1, 2, 1), ("uniform",))

    def on_gpu(self, case, path):
        return Computed(self.change(case, np.array([case.number, case.number**2], np.uint32)), "kernel", {"even": 1})

    def references(self, case):
        codes = np.array([case.number, case.number**2], np.uint32)
        return {"one": codes, "two": codes}

    def replay(self, record, outcome, number):
        return None


def test_a_product_suite_counts_outputs_kernels_and_digests():
    outcome = Squares().run("a")
    assert (outcome.cases, outcome.outputs, outcome.mismatches, outcome.failed) == (4, 8, 0, 0)
    assert (outcome.counts, outcome.kernels, list(outcome.digests)) == (
        {"even": 4, "against two": 8},
        ["kernel"],
        ["0", "1"],
    )
    assert Squares(lambda case, codes: codes + np.uint32(case.number == 3)).run("a").digest != outcome.digest


@pytest.mark.parametrize(
    ("change", "counts", "text"),
    [
        (
            lambda codes: codes + np.array([0, 1], np.uint32),
            (1, 0),
            "1 of 2 differ, the first at (1,): 0x5 in place of 0x4",
        ),
        (lambda codes: codes[:1], (2, 0), "uint32 (1,) in place of uint32 (2,)"),
        (lambda codes: codes.astype(np.uint64), (2, 0), "uint64 (2,) in place of uint32 (2,)"),
        (lambda codes: "InputError: wrong", (1, 0), "InputError: wrong in place of a result of shape (2,)"),
        (lambda codes: 1 // 0, (0, 1), "ZeroDivisionError"),
    ],
)
def test_a_wrong_result_of_one_case_is_counted_and_described(change, counts, text):
    outcome = Squares(lambda case, codes: change(codes) if case.number == 2 else codes).run("a")
    assert (outcome.mismatches, outcome.failed) == counts
    assert outcome.first[0].startswith("2: 1×2×1, uniform")
    assert text in outcome.first[0]


def test_a_path_that_fails_is_counted_and_described_beside_the_others(monkeypatch):
    tested = Squares(lambda case, codes: 1 // 0 if case.options else codes)
    tested.paths = ["host", "eager"]
    on_gpu = tested.on_gpu
    monkeypatch.setattr(
        tested,
        "on_gpu",
        lambda case, path: on_gpu(replace(case, options={"fails": 1} if path == "eager" else {}), path),
    )
    outcome = tested.run("a")
    assert [by_path([outcome], path) for path in tested.paths] == [[4, 8, 0, 0], [4, 0, 0, 4]]
    described = list(tested.explain(outcome))
    assert described[0] == "a: 4 cases failed"
    assert described[1].startswith("  0: by eager, 1×2×1, uniform")
    assert described[-1].endswith("(0, paths=['host', 'eager']).compare('a', 0)")


def test_a_case_without_a_kernel_is_skipped(monkeypatch):
    def skip(self, case):
        raise suite.SkippedError

    monkeypatch.setattr(Squares, "resolve", skip)
    outcome = Squares().run("a")
    assert (outcome.cases, outcome.counts, outcome.ok) == (4, {"no kernel": 4}, True)


def test_processes_return_the_outcomes_of_one_process(machine):
    suites = [Squares(unchanged), Squares(unchanged)]
    one, two = (runner.Run(s).finish(jobs) for s, jobs in zip(suites, (1, 2), strict=True))
    assert one.outcomes == two.outcomes
    assert len(one.outcomes) == 3
    ended = runner.Run(Squares(end_process)).finish(2)
    assert not any(outcome.ok for outcome in ended.outcomes)
    assert "its process ended" in ended.outcomes[0].first[0]


def unchanged(case, codes):
    return codes


def end_process(case, codes):
    os._exit(1)
