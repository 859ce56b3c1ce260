"""`fpemu verify batched` and `fpemu verify tallskinny` interrupted and gone on with: the record of a run in one go."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fpemu import files
from fpemu.cli import main, verify_batched, verify_tallskinny
from fpemu.gpu.batched import products
from fpemu.gpu.gemm import choice
from fpemu.gpu.runtime import compiler, device
from fpemu.verify import batched_cases, kernelrecord, partial, records, tallskinny_cases
from fpemu.verify import batched_suite as batched
from fpemu.verify import tallskinny_huge as huge
from fpemu.verify import tallskinny_suite as tallskinny

KERNELS = ["V0", "opt 1"]


@dataclass
class Machine:
    """Stands for a GPU and its suites: which parts were computed, and where it is interrupted or fails."""

    done: list[str] = field(default_factory=list)
    stop: str = ""
    wrong: str = ""
    gpu: str = "NVIDIA H200"
    nvrtc: str = "13.0"

    def part(self, name: str) -> int:
        """One part; its mismatches."""
        if name == self.stop:
            raise KeyboardInterrupt
        self.done.append(name)
        return int(name == self.wrong)

    def again(self, stop: str = "") -> list[str]:
        """What was computed so far, forgotten; and where to stop next."""
        before, self.done, self.stop = self.done, [], stop
        return before


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    for command in (verify_batched, verify_tallskinny):
        monkeypatch.setattr(command, "_need_a_gpu", lambda: None)
    monkeypatch.setattr(products, "need_gpu", lambda: None)
    monkeypatch.setattr(device, "describe", lambda: {"gpu": made.gpu, "arch": "sm_90a", "nvrtc": made.nvrtc})
    monkeypatch.setattr(device, "arch", lambda: "sm_90a")
    monkeypatch.setattr(device, "compile_all", lambda sources, arch: None)
    monkeypatch.setattr(records, "driver", lambda: "none")
    monkeypatch.setattr(choice, "architecture", lambda: "hopper")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process, in which the stand-ins are

    def one(group, seed, count, seconds):
        wrong = made.part(group.name)
        replay = [{"number": 3, "digest": f"{seed:016x}"}]
        return batched.Outcome(group.name, count, 9 * count, wrong, 0, f"{seed}", {"block": count}, replay)

    monkeypatch.setattr(batched, "one", one)

    def compare(case, A, B, want, number, found):
        for name, outcome in found.items():
            outcome.products += 1
            outcome.outputs += 7
            outcome.replay.append((number, f"{number:016x}"))
            if number == 0:
                outcome.mismatches += made.part(f"{name} in {outcome.fmt}")
        return dict.fromkeys(found, number)

    def large(formats, seed):
        for fmt in formats:
            wrong = made.part(f"huge in {fmt}")
            for sizes in huge.SHAPES:
                yield huge.Huge("V1", fmt, sizes, "rows", 46, wrong)

    monkeypatch.setattr(tallskinny, "kernels", lambda: KERNELS)
    monkeypatch.setattr(tallskinny, "sources", lambda *_: [])
    monkeypatch.setattr(tallskinny, "texts", lambda seed: "texts")
    monkeypatch.setattr(tallskinny, "product", lambda which: (None, None, None, None))
    monkeypatch.setattr(tallskinny, "compare", compare)
    monkeypatch.setattr(huge, "check", large)
    return made


GROUPS = [group.name for group in batched_cases.groups()]
PARTS = [f"{name} in {fmt}" for fmt in tallskinny_cases.FORMATS for name in KERNELS]
HUGE = [f"huge in {fmt}" for fmt in tallskinny_cases.FORMATS]
COMMANDS = {
    "batched": (["verify", "batched", "--cases", "5"], GROUPS, GROUPS[6], 6),
    "tallskinny": (["verify", "tallskinny", "--every", "50"], PARTS, PARTS[2], 2),
    "huge": (["verify", "tallskinny", "--every", "50", "--huge"], PARTS + HUGE, HUGE[1], 5),
}
every_command = pytest.mark.parametrize(("command", "parts", "stop", "count"), COMMANDS.values(), ids=COMMANDS)


def undated(path: Path) -> dict[str, Any]:
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "date"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@every_command
def test_a_record_made_in_two_runs_is_that_of_one(machine, tmp_path, capsys, command, parts, stop, count):
    at_once, resumed = tmp_path / "at_once.json", tmp_path / "resumed.json"
    assert main([*command, "--record", str(at_once)]) == 0
    assert machine.again(stop) == parts
    assert names(tmp_path) == ["at_once.json"]
    shown = capsys.readouterr().out

    assert main([*command, "--record", str(resumed)]) == 130
    assert machine.again() == parts[:count]
    kept = f"{count} of {len(parts)} parts are kept in {resumed}.partial"
    told = capsys.readouterr().err
    assert [line for line in told.splitlines() if line.startswith("fpemu: ")] == [
        f"fpemu: interrupted; {kept}, and the same command goes on from there"
    ]
    assert names(tmp_path) == ["at_once.json", "resumed.json.partial"]

    assert main([*command, "--record", str(resumed)]) == 0
    assert machine.done == parts[count:]
    again = capsys.readouterr()
    assert f"{kept} already" in again.err
    assert sorted(again.out.split()) == sorted(shown.split())
    assert names(tmp_path) == ["at_once.json", "resumed.json"]
    assert undated(resumed) == undated(at_once)


@every_command
def test_an_interrupt_while_the_record_is_made_loses_no_part(
    machine, monkeypatch, tmp_path, command, parts, stop, count
):
    def interrupted(*_):
        raise KeyboardInterrupt

    record = str(tmp_path / "record.json")
    with monkeypatch.context() as patched:
        patched.setattr(batched, "text", interrupted)
        patched.setattr(tallskinny, "text", interrupted)
        assert main([*command, "--record", record]) == 130
    machine.again()
    assert names(tmp_path) == ["record.json.partial"]
    assert main([*command, "--record", record]) == 0
    assert machine.done == []
    assert names(tmp_path) == ["record.json"]


@every_command
def test_an_interrupt_before_the_first_part_or_without_a_record_keeps_nothing(
    machine, tmp_path, monkeypatch, capsys, command, parts, stop, count
):
    monkeypatch.chdir(tmp_path)
    machine.stop = parts[0]
    assert main([*command, "--record", "record.json"]) == 130
    machine.stop = stop
    assert main(command) == 130
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fpemu: ")]
    assert said == [f"fpemu: interrupted; nothing is kept {why}" for why in ("yet", "without --record")]
    assert names(tmp_path) == []


@every_command
@pytest.mark.parametrize("other", ["seed", "cases", "gpu", "nvrtc", "driver", "code"])
def test_parts_of_another_run_are_not_used(machine, tmp_path, monkeypatch, command, parts, stop, count, other):
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
        monkeypatch.setattr(kernelrecord, "code", lambda: "another")
    else:
        setattr(machine, other, "another")
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == parts
    assert undated(record)["seed"] == (other == "seed")


def test_products_of_another_number_of_seconds_are_not_used(machine, tmp_path):
    command = ["verify", "batched", "--record", str(tmp_path / "record.json")]
    machine.stop = GROUPS[3]
    assert main([*command, "--seconds", "1"]) == 130
    machine.again(GROUPS[5])
    assert main([*command, "--seconds", "2"]) == 130
    assert machine.again() == GROUPS[:5]
    assert main([*command, "--seconds", "2"]) == 0
    assert machine.done == GROUPS[5:]


def test_the_kernels_are_used_with_huge_matrices_and_without(machine, tmp_path):
    command = [*COMMANDS["huge"][0], "--record", str(tmp_path / "record.json")]
    machine.stop = PARTS[3]
    assert main(command[:4] + command[5:]) == 130
    machine.again(HUGE[1])
    assert main(command) == 130
    assert machine.again() == [*PARTS[2:], HUGE[0]]
    assert main(command[:4] + command[5:]) == 0
    assert machine.done == []


@every_command
def test_fresh_begins_anew(machine, tmp_path, capsys, command, parts, stop, count):
    command = [*command, "--record", str(tmp_path / "record.json")]
    machine.stop = stop
    assert main(command) == 130
    assert machine.again(stop) == parts[:count]
    assert main([*command, "--fresh"]) == 130
    assert machine.again() == parts[:count]
    assert "and the same command without --fresh goes on from there" in capsys.readouterr().err
    assert main(command) == 0
    assert machine.done == parts[count:]


@every_command
def test_a_part_with_a_fault_is_compared_again(machine, tmp_path, command, parts, stop, count):
    record = tmp_path / "record.json"
    machine.stop, machine.wrong = stop, parts[1]
    assert main([*command, "--record", str(record)]) == 130
    machine.again()
    assert main([*command, "--record", str(record)]) == 1
    assert machine.done == [parts[1], *parts[count:]]
    assert undated(record)["mismatches"] == 1
    assert names(tmp_path) == ["record.json"]


# --- faults of the file
def changed(told: bytes) -> list[bytes]:
    """A file of parts that something has happened to."""
    made = json.loads(told)
    few = {name: value for name, value in made.items() if name != "digest"}
    more = {**made, "parts": {name: {**part, "products": 10**6} for name, part in made["parts"].items()}}
    lists = {**made, "parts": [1, 2], "digest": partial._digest([1, 2])}  # type: ignore[arg-type]
    rows = [json.dumps(x).encode() for x in (few, more, lists, [], None, {"about": made["about"], "parts": 3})]
    return [b"", told[:-1], told[: len(told) // 2], b"\xff\xfe\x00 garbage", *rows, told + told, b"[" * 10**5]


@pytest.mark.parametrize("which", range(12))
def test_a_file_that_holds_anything_else_is_ignored(machine, tmp_path, which):
    command, parts, stop, _ = COMMANDS["batched"]
    record, kept = tmp_path / "record.json", tmp_path / "record.json.partial"
    machine.stop = stop
    assert main([*command, "--record", str(record)]) == 130
    machine.again()
    kept.write_bytes(changed(kept.read_bytes())[which])
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == parts
    assert names(tmp_path) == ["record.json"]


@every_command
def test_a_disk_that_is_full_leaves_whole_files(machine, tmp_path, monkeypatch, capsys, command, parts, stop, count):
    """The second write fails: what the first wrote is there whole, and the next run goes on from it."""
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
    assert list(json.loads((tmp_path / "record.json.partial").read_text())["parts"]) == parts[:1]
    machine.again()
    assert main([*command, "--record", str(record)]) == 0
    assert machine.done == parts[1:]


def test_the_digest_of_the_code_is_of_the_kernels_and_of_the_rooms(monkeypatch, tmp_path):
    assert partial.code(["batched"]) != partial.code(["gpu/batched"]) != partial.code([])
    assert partial.code(["batched"]) == partial.code(["batched"])
    assert all(path.suffix in partial._TEXTS for path in compiler.KERNELS.glob("*.cu*"))
    for room in {*verify_batched._ROOMS, *verify_tallskinny._ROOMS}:
        assert partial.code([room]) != partial.code([]), room


def test_an_interrupt_does_not_wait_for_products_that_nobody_compares(machine, monkeypatch):
    computed = []

    def product(which):
        time.sleep(0.005)
        computed.append(which)
        return None, None, None, None

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tallskinny, "product", product)
    monkeypatch.setattr(tallskinny, "compare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(tallskinny.check(0, range(1000)))
    assert len(computed) < 1000
