"""Runs of suites on stand-ins for the GPU: comparisons, records, interrupts, resumption, and their commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fpemu import gpu
from fpemu.cli import main
from fpemu.errors import InputError
from fpemu.gpu.runtime import device
from fpemu.verification import batched, records, tallskinny
from fpemu.verification.cases import Case, Computed, Product
from fpemu.verification.records import Outcome, Record
from fpemu.verification.suite import Group, ProductSuite, Run, SkippedError
from tests.commands import refusal


@dataclass
class Machine:
    """A stand-in for a GPU and the suites on it: the groups that were run, and where it is interrupted or fails."""

    done: list[str] = field(default_factory=list)
    stop: str = ""
    wrong: str = ""
    gpu: str = "NVIDIA H200"
    nvrtc: str = "13.0"

    def run(self, suite, group):
        if group == self.stop:
            raise KeyboardInterrupt
        self.done.append(group)
        wrong = int(group == self.wrong)
        first = ["3: one of 9 differs"] * wrong
        return Outcome(group, 5, 45, wrong, digest=f"{suite.seed:016x}", digests={"3": "0"}, first=first)

    def again(self, stop: str = "") -> list[str]:
        """Return the groups run so far and forget them; `stop` before this group next."""
        before, self.done, self.stop = self.done, [], stop
        return before


@pytest.fixture
def machine(monkeypatch):
    stand_in = Machine()
    monkeypatch.setattr(device, "missing", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: {"gpu": stand_in.gpu, "arch": "sm_90a", "nvrtc": stand_in.nvrtc})
    monkeypatch.setattr(gpu.batched, "arguments", lambda: {"hardware": "hopper"})
    monkeypatch.setattr(gpu.tallskinny, "chosen", lambda *sizes: ("ism2", {"optimisation": 1}))
    monkeypatch.setattr(records, "driver", lambda: "none")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process, in which the stand-ins are
    for kind in (batched.Batched, tallskinny.TallSkinny):
        monkeypatch.setattr(kind, "run", lambda self, group: stand_in.run(self, group))
    return stand_in


GROUPS = list(batched.KINDS)
PAIRS = [
    f"{name} in {fmt}" for name in ("V0", "V1", "V2", "V3", "opt 1", "opt 2", "multiply") for fmt in tallskinny.FORMATS
]
HUGE = [f"huge in {fmt}" for fmt in tallskinny.FORMATS]
BATCHED, TALL = ["verify", "batched", "--cases", "5"], ["verify", "tallskinny", "--every", "50", "--huge"]
COMMANDS = {"batched": (BATCHED, GROUPS, GROUPS[6], 6), "tallskinny": (TALL, PAIRS + HUGE, HUGE[1], 15)}
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
    shown = capsys.readouterr().out
    assert main([*command, "--record", str(resumed)]) == 130
    assert machine.again() == groups[:count]
    saved = f"{count} of {len(groups)} groups are saved in {resumed}.partial"
    line = f"fpemu: interrupted; {saved}, and the same command continues from there"
    assert line in capsys.readouterr().err.splitlines()
    assert names(tmp_path) == ["at_once.json", "resumed.json.partial"]
    assert main([*command, "--record", str(resumed)]) == 0
    assert machine.again() == groups[count:]
    again = capsys.readouterr()
    assert f"{saved} already" in again.err
    assert sorted(again.out.split()) == sorted(shown.split())
    assert names(tmp_path) == ["at_once.json", "resumed.json"]
    assert undated(resumed) == undated(at_once)
    content = resumed.read_bytes()
    assert main([*command, "--record", str(resumed)]) == 0
    assert machine.done == []
    assert resumed.read_bytes() == content


def test_an_interrupt_before_the_first_group_or_without_a_record_saves_nothing(machine, workdir, capsys):
    machine.stop = GROUPS[0]
    assert main([*BATCHED, "--record", "record.json"]) == 130
    machine.stop = GROUPS[6]
    assert main(BATCHED) == 130
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fpemu: ")]
    assert lines == [f"fpemu: interrupted; nothing is saved {why}" for why in ("yet", "without --record")]
    assert names(workdir) == []


@pytest.mark.parametrize("other", ["seed", "cases", "gpu", "nvrtc", "driver", "code"])
def test_outcomes_of_another_run_are_not_used(machine, tmp_path, monkeypatch, other):
    record, command = tmp_path / "record.json", BATCHED
    machine.stop = GROUPS[6]
    assert main([*command, "--record", str(record)]) == 130
    machine.again()
    if other in ("seed", "cases"):
        command = [*command, f"--{other}", "45"]
    elif other in ("driver", "code"):
        monkeypatch.setattr(records, {"driver": "driver", "code": "code_digest"}[other], lambda: "another")
    else:
        setattr(machine, other, "another")
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == GROUPS
    assert undated(record)["seed"] == 45 * (other == "seed")


def test_fresh_ignores_earlier_runs_and_their_record(machine, tmp_path, capsys):
    record = tmp_path / "record.json"
    command = [*BATCHED, "--record", str(record)]
    assert main(command) == 0
    machine.again(GROUPS[1])
    assert main([*command, "--fresh"]) == 130
    assert "and the same command without --fresh continues from there" in capsys.readouterr().err
    machine.again(GROUPS[6])
    assert main(command) == 130
    assert machine.again() == GROUPS[1:6]
    assert main(command) == 0
    assert machine.again(GROUPS[0]) == GROUPS[6:]
    assert main([*command, "--fresh"]) == 130
    assert "nothing is saved yet" in capsys.readouterr().err
    assert names(tmp_path) == ["record.json"]


def test_a_failed_group_is_compared_again_and_stays_in_the_record(machine, tmp_path, capsys):
    record = tmp_path / "record.json"
    command = [*TALL, "--record", str(record)]
    machine.wrong = HUGE[1]
    assert main(command) == 1
    assert undated(record)["totals"]["mismatches"] == 1
    machine.again()
    assert main([word for word in command if word != "--huge"]) == 1
    assert machine.done == []
    assert f"1 groups outside this run have failed: {HUGE[1]}" in capsys.readouterr().err
    assert [o.group for o in Record.read(record).outcomes if not o.ok] == [HUGE[1]]
    machine.wrong = ""
    assert main(command) == 0
    assert machine.done == [HUGE[1]]
    assert Record.read(record).ok


def changed(content: bytes) -> list[bytes]:
    """A saved file after several kinds of damage."""
    record = json.loads(content)
    few = {name: value for name, value in record.items() if name != "digest"}
    more = {**record, "outcomes": [{**row, "cases": 10**6} for row in record["outcomes"]]}
    damaged: list = [few, more, {**record, "schema": 0}, [], None, {"schema": 1, "outcomes": 3}]
    rows = [json.dumps(x).encode() for x in damaged]
    return [b"", content[:-3], content[: len(content) // 2], b"\xff\xfe\x00", *rows, content + content, b"[" * 10**5]


@pytest.mark.parametrize("which", range(12))
def test_a_damaged_file_is_ignored(machine, tmp_path, which):
    record, partial = tmp_path / "record.json", tmp_path / "record.json.partial"
    machine.stop = GROUPS[2]
    assert main([*BATCHED, "--record", str(record)]) == 130
    machine.again()
    partial.write_bytes(changed(partial.read_bytes())[which])
    with pytest.raises(InputError):
        Record.read(partial)
    assert main([*BATCHED, "--record", str(record)]) == 0
    assert machine.done == GROUPS
    assert names(tmp_path) == ["record.json"]


@pytest.mark.parametrize("kind", ["no group", "no output", "errors alike"])
def test_the_status_is_1_if_nothing_was_compared(machine, monkeypatch, capsys, kind):
    counts = {"errors": 5} if kind == "errors alike" else {"no kernel": 5}
    monkeypatch.setattr(batched.Batched, "run", lambda self, group: Outcome(group, 5, counts=counts))
    if kind == "no group":
        monkeypatch.setattr(batched.Batched, "groups", {})
    status = 0 if kind == "errors alike" else 1
    assert main(BATCHED) == status
    assert ("nothing was compared" in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("kernels --shapes 0", "'--shapes' / '-n'"),
        ("kernels --jobs 0", "'--jobs' / '-j'"),
        ("kernels --schemes ,", "unknown scheme ''"),
        ("kernels --record kernels.txt", "the record is written as .json"),
        ("arguments --rounds 0", "'--rounds'"),
        ("batched --seed -1", "seed = -1 must be an integer"),
        ("tallskinny --seed 18446744073709551616", "seed = 18446744073709551616 must be an integer"),
        ("batched --cases 0", "'--cases'"),
        ("instructions --outputs 0", "--outputs"),
        ("instructions --outputs nan", "--outputs"),
        ("instructions --record nowhere/result.json", "no folder"),
    ],
)
def test_an_error_in_the_arguments_is_one_line(machine, capsys, arguments, message):
    assert message in refusal(capsys, "verify", *arguments.split())
    assert machine.done == []


@pytest.mark.parametrize("missing", ["cuda-bindings is not installed: pip install 'fpemu[gpu]'", "no GPU here"])
@pytest.mark.parametrize("name", ["arguments", "batched", "emulation", "kernels", "tallskinny"])
def test_the_message_without_a_gpu_is_one_line(capsys, monkeypatch, workdir, missing, name):
    monkeypatch.setattr(device, "missing", lambda: missing)
    message = refusal(capsys, "verify", name, "--record", "result.json")
    assert missing in message
    assert message.count("pip install 'fpemu[gpu]'") == 1
    assert names(workdir) == []


# --- products
@dataclass
class Square(Product):
    """The array [n, n^2] for case n; `change` alters the GPU's result."""

    change: Callable

    def __post_init__(self):
        self.counts, self.kernel, self.replay = ["even"], "kernel", self.case.number
        self.codes = self.emulate()

    def compute(self, path):
        return Computed(self.change(self.case, self.codes))

    def expected(self, path):
        return {"one": self.codes, "two": self.codes}, None

    def emulate(self):
        return np.array([self.case.number, self.case.number**2], np.uint32)


class Squares(ProductSuite):
    """Squares of 0 to 3."""

    name, about, kept, small = "squares", "", 2, 100

    def __init__(self, change=lambda case, codes: codes):
        super().__init__(0)
        self.change = change

    @property
    def groups(self):
        return dict.fromkeys("abc", Group(range(4)))

    def facts(self):
        return {}

    def case(self, group, number):
        return Case(group, number, 0, (1, 2, 1), ("uniform",))

    def product(self, case, hardware, recorded=None):
        return Square(case, self.change, paths=self.paths or [""])


def test_a_suite_counts_outputs_kernels_and_digests():
    outcome = Squares().run("a")
    assert (outcome.cases, outcome.outputs, outcome.mismatches, outcome.failed) == (4, 8, 0, 0)
    assert outcome.counts == {"even": 4, "against two": 8}
    assert (outcome.kernels, list(outcome.digests)) == (["kernel"], ["0", "1"])
    assert outcome.facts == {"replay": {"0": 0, "1": 1}}
    assert Squares(lambda case, codes: codes + np.uint32(case.number == 3)).run("a").digest != outcome.digest


@pytest.mark.parametrize(
    ("change", "counts", "text"),
    [
        (lambda x: x + np.array([0, 1], np.uint32), (1, 0), "1 of 2 differ, the first at (1,): 0x5 in place of 0x4"),
        (lambda x: x[:1], (2, 0), "uint32 (1,) in place of uint32 (2,)"),
        (lambda x: x.astype(np.uint64), (2, 0), "uint64 (2,) in place of uint32 (2,)"),
        (lambda x: "InputError: wrong", (1, 0), "InputError: wrong in place of shape (2,)"),
        (lambda x: 1 // 0, (0, 1), "ZeroDivisionError"),
    ],
)
def test_a_wrong_result_of_one_case_is_counted_and_described(change, counts, text):
    tested = Squares(lambda case, codes: change(codes) if case.number == 2 else codes)
    outcome = tested.run("a")
    assert (outcome.mismatches, outcome.failed) == counts
    assert outcome.first[0].startswith("2: ")
    assert "sizes (1, 2, 1), kinds ('uniform',)" in outcome.first[0]
    assert text in outcome.first[0]
    described = list(tested.explain(outcome))
    assert described[0] == f"a: {counts[0]} outputs differ, {counts[1]} cases failed"
    assert described[-1].endswith("(0).compare('a', 2)")


def test_a_case_without_a_kernel_is_skipped():
    def skip(case, codes):
        raise SkippedError("no kernel")

    outcome = Squares(skip).run("a")
    assert (outcome.cases, outcome.counts, outcome.ok) == (4, {"no kernel": 4}, True)


def test_processes_return_the_outcomes_of_one_process_and_survive_one_that_ends(machine):
    one, two = (Run(Squares(unchanged)).run_missing(jobs) for jobs in (1, 2))
    assert one.outcomes == two.outcomes
    assert len(one.outcomes) == 3
    ended = Run(Squares(end_process)).run_missing(2)
    assert not any(outcome.ok for outcome in ended.outcomes)
    assert "BrokenProcessPool" in ended.outcomes[0].first[0]


def unchanged(case, codes):
    return codes


def end_process(case, codes):
    os._exit(1)
