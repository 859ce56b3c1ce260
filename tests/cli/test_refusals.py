"""Wrong arguments and input of all commands: one line, status 2, nothing written, no stray file executed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fpemu import mma, probing
from fpemu.cli import main, options
from fpemu.cli.commands import load_all
from fpemu.reproduce import pages
from tests import toy
from tests.commands import refusal

# AB stands for A.npy B.npy
REFUSALS = [
    ("gemm B.npy A.npy -s sgemm", "A of shape (32, 6) and B of shape (8, 32) do not share K"),
    ("gemm AB -s sgemm --c A.npy --beta 1", "C (8, 32) does not broadcast"),
    ("gemm A.npy no.npy -s sgemm", "no.npy: No such file or directory"),
    ("gemm A.npy B.txt -s sgemm", "ends in .npy, .npz, .safetensors or .mtx"),
    ("gemm AB -s otomo", "unknown scheme 'otomo': did you mean 'ootomo'"),
    ("gemm AB -s ,", "unknown scheme ''"),
    ("gemm AB -s all,ootomo", "unknown scheme 'all'"),
    ("gemm AB -s ootomo -H A10O", "unknown hardware 'A10O': did you mean"),
    ("gemm AB -s bf16x9 -H volta", "volta has no matrix instruction for bf16"),
    ("gemm AB -s ootomo -H A100 -O sb=12", "option 'sb'"),
    ("gemm AB -s h2sgemm -H A100 -O sb=99999", "sb"),
    ("gemm AB -s h2sgemm -O sb", "'sb' is not name=value"),
    ("gemm AB -s h2sgemm -O sb=1 -O sb=2", "'sb' is given twice"),
    ("gemm AB -O sb=1", "--option needs --scheme"),
    ("gemm AB -s fp16 -H A100 --order splt=3", "order: unknown field 'splt': did you mean 'split'"),
    ("gemm AB -s fp16 -H A100 --order split=0", "split = 0 must be a positive integer"),
    ("gemm AB -s fp16 -H A100 --order join=up", "order: join: unknown value 'up'"),
    ("gemm AB --c C.npy", "β is 0"),
    ("gemm AB --beta 2", "β is given without C"),
    ("gemm AB -s sgemm --alpha nan", "alpha must be a finite real number, not nan"),
    ("gemm AB -s sgemm --alpha 1e300", "alpha must be a finite real number, not inf"),
    ("gemm AB -s ozaki -H A100 -O mode=XX", "ozaki option mode"),
    ("gemm AB -s ozaki,ozimmu -H A100 -O modulii=8", "unknown ozaki or ozimmu option 'modulii'"),
    ("gemm AB -s ozimmu -H volta", "volta has no matrix instruction for int8"),
    ("gemm AB --alpha one", "--alpha"),
    ("gemm AB --on-range clip", "unknown on_range 'clip'"),
    ("gemm AB -s fp16 -H A100 --order tree.json", "the tree is not over K = 32"),
    ("gemm AB -s fp16 -H A100 --order A.json", "A.json: No such file"),
    ("gemm x.npy B.npy -s fp16 -H A100", "on_range='scale' scales the matrices"),
    ("gemm AB -s fp16,ootomo -o D.npy", "of one scheme, and --scheme names 2"),
    ("gemm AB -s fp16 -o D.txt", "as .npy or .mtx"),
    ("gemm AB -s fp16 -o read-only/D.npy", "there is no folder read-only"),
    ("gemm A.npy", "Missing argument"),
    ("gemm AB --shceme fp16", "--shceme"),
    ("gemm AB -s fp16 -H A100 --order tile=64,residue_first=maybe", "residue_first is 'maybe', not true or false"),
    ("gemm AB -s sgemm --max-entries 200", "A.npy is 8×32: more entries than max_entries=200"),
    ("gemm object.npy B.npy -s sgemm", "Python objects"),
    ("gemm y.npy B.npy -s sgemm", "beyond the range of fp32 in 256 of 256"),
    ("gem", "No such command 'gem'. Did you mean 'gemm'"),
    ("list scheme", "unknown kind 'scheme': did you mean 'schemes'"),
    ("list hardware A100", "only 'fpemu list schemes' and 'fpemu list experiments' take a name"),
    ("split abc", "'abc' is not a number"),
    ("split --bogus", "'--bogus' is not a number"),
    ("split nan", "must be a finite number"),
    ("split 1e39", "1e+39"),
    *((f"split {x}", "below the smallest one, 2^-1074") for x in ("1e-400", "-1e-400", "0x1p-2000", "0.0001e-330")),
    ("split 0.1 --sb 1 -O sb=2", "'sb' is given twice"),
    ("split 0.1 -s sgemm", "sgemm"),
    ("split 0.1 -s ootomo --sb 3", "option 'sb'"),
    ("advise -t 1e-3 -H A100 --data A.npy B.npy --max-entries 200", "more entries than max_entries=200"),
    ("advise -t 1e-3 -H deep.toml --k 8", "deep.toml"),
    ("reproduce h2sgemm/fig99", "unknown experiment 'h2sgemm/fig99': did you mean 'h2sgemm/fig9'"),
    ("reproduce --jobs 0", "--jobs"),
    ("reproduce -j 1000", "256"),
    ("reproduce -o A.npy", "there is no folder A.npy"),
    ("ledger --figures none", "there is no folder 'none'"),
    ("ledger --figures empty", "contains no record of a figure"),
    ("list --experiments none", "which is not a folder"),
    ("sweep none", "none does not exist: a grid is a .toml file"),
    ("sweep deep.toml", "deep.toml"),
    ("sweep scaling -H A100 -o read-only/maps", "there is no folder read-only"),
    ("sweep scaling -H A100 -o /proc/maps", "cannot write in the folder"),
    ("bench gpus", "No such command 'gpus'"),
    ("bench cpu --size 0", "size 0"),
    ("bench cpu --only abacus", "no case contains 'abacus'"),
    ("bench cpu --json table.txt", "the table is written as .json"),
    ("bench cpu --json A.npy/table.json", "there is no folder A.npy"),
    ("tune batched --sizes 0", "integers from 1 to 1024"),
    ("tune batched --forms imaginary", "unknown form 'imaginary'"),
    ("verify kernels --record /proc/x.json", "/proc/x.json"),
    ("verify gemm AB -r A.npy --max-entries 200", "more entries than max_entries=200"),
    ("reveal --k 8", "name one thing"),
    ("reveal cublas --emulated H200 --k 8", "name one thing"),
    ("reveal a.py:f", "give K once"),
    ("reveal a.py:f --k 8", "there is no file a.py"),
    ("reveal a.py --k 8", "FILE.py:FUNCTION"),
    ("reveal broken.py:f --k 8", "cannot be run: ZeroDivisionError"),
    ("reveal leaves.py:f --k 8", "cannot be run: SystemExit"),
    ("reveal leaves.py:f --k 8 --draw fixed.png", "read-only"),
    ("reveal a.py:f --k 8 --shape 2x2x9", "give K once"),
    ("reveal a.py:f --shape 2", "not MxN"),
    ("reveal a.py:f --shape 0x2x9", "positive integers such as"),
    ("reveal a.py:f --k 0", "not between"),
    ("reveal --emulated H200 --k 8 --at 1", "at = 1 must be"),
    ("reveal a.py:f --k 8 --order split=2", "--order does not apply to a.py:f"),
    ("reveal a.py:f --k 8 --instruction mma", "add --hardware"),
    ("reveal a.py:f --k 8 --json o.txt", "as .json"),
    ("reveal a.py:f --k 8 --draw o.gif", ".png, .svg or .pdf"),
    ("reveal a.py:f --k 8 --type fp16", "--type does not apply to a.py:f"),
    ("reveal --emulated H200 --k 8 --layout NN", "--layout does not apply to an emulated GEMM"),
    ("reveal cublas --k 8 --formats fp16,fp16", "--formats does not apply to cublas"),
    ("reveal cublas --k 8 --type fp61", "unknown type of product 'fp61'"),
    ("reveal cublas --k 8 --layout TT", "unknown layout 'TT'"),
    ("reveal empty.py:f --k 8", "unknown function of empty.py 'f'"),
    ("reveal --emulated H200 --k 8 --formats int8,int32", "unknown format 'int32'"),
    ("reveal --emulated H200 --k 8 --formats fp16,fp32,fp32,fp32", "IN,OUT"),
    ("reveal --emulated H201 --k 8", "unknown hardware"),
    ("reveal --emulated H200 --k 8 --order splt=2", "did you mean 'split'"),
    ("reveal --emulated H200 --k 8 --order deep.json", "nested too deep"),
    ("reveal --emulated B200 --k 40 --formats e3m2,fp16,fp16", "too narrow"),
    ("characterize --emulated hoper", "hopper"),
    ("characterize a --emulated hoper", "choose one of"),
    ("characterize --emulated nope", "hopper wgmma"),
    ("characterize --kit opencl", "cuda"),
    ("characterize --kit c --emulated hopper", "choose one of"),
    ("characterize none.txt", "none.txt"),
    ("catalog add none.txt rows.json", "none.txt"),
    ("catalog add none.txt rows.toml", ".json"),
    ("gemm A.npy A.npy -s markidis -H none.json", "none.json"),
    ("characterize --emulated hopper --k 3", "describe a --callable"),
    ("characterize --callable x.py:f --formats a,b,c --k 2 --outputs 0", "greater than or equal to 1"),
    ("characterize --callable x.py:f --formats fp16,fp16,fp32 --k 2", "no file"),
    ("characterize --callable empty.py:f --formats fp16,fp16,fp32 --k 2", "unknown function of"),
    ("characterize --callable empty.py:f --k 2", "--formats"),
    ("characterize --callable empty.py:f --formats fp16,fp16,fp32 --k 2 --shape 16", "MxN"),
    # values of options
    ("gemm AB -s h2sgemm -H A100 -O sb=9**9999", "sb = inf must be an integer"),
    ("gemm AB -s fp16 -H A100 --order split=0^-1", "split is '0^-1', not an integer"),
    ("split 0.1 -O sb=[red]", "sb = '[red]' must be"),
    ("verify gemm AB -r C.npy -s h2sgemm -H A100 -O sb=1e400", "sb = inf"),
    ("reveal --emulated A100 --k 8 --order tile=nan", "tile is nan, not an integer"),
    ("characterize --callable x.py:f --formats fp16,fp16,fp32 --k 8 --shape 99**9999x8", "is not MxN"),
    ("gemm [red]x.npy B.npy -s sgemm", "[red]x.npy: No such file"),
    # a matrix instruction computes
    *((words, "'fpemu list hardware'") for words in ("gemm AB", "gemm AB -s sgemm,fp16", "advise -t 1e-3 --k 64")),
    *((words, "'fpemu list hardware'") for words in ("sweep scaling", "sweep plane ootomo -O promote=16,32 -P K=8,16")),
]


@pytest.fixture
def files(folder):
    """The files of the refused commands, beside those of `folder`."""
    np.save("x", np.full((8, 32), 1e30, np.float32))
    np.save("y", np.full((8, 32), 1e39))
    np.save("object", np.array([[None]]), allow_pickle=True)
    for name, text in (("broken", "1 / 0"), ("empty", ""), ("leaves", "raise SystemExit(0)")):
        Path(f"{name}.py").write_text(text)
    probing.save(mma.tree.Chain(((0,), (2,), (1,)), "fma"), "tree.json")
    Path("deep.json").write_text('{"a":' * 100_000)
    Path("deep.toml").write_text("a = " + "[" * 100_000)
    Path("read-only").touch()
    Path("empty").mkdir()
    Path("fixed.png").touch(0o444)
    return folder


@pytest.mark.parametrize(("command", "complaint"), REFUSALS)
def test_wrong_arguments_are_one_line_and_leave_nothing(files, capsys, monkeypatch, command, complaint):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own folder beside a module
    before = sorted(os.listdir())
    assert complaint in refusal(capsys, *command.replace("AB", "A.npy B.npy").split())
    assert sorted(os.listdir()) == before


def test_a_damaged_store_is_one_line(folder, capsys):
    Path(".fpemu").mkdir()
    Path(".fpemu/cells.sqlite").write_bytes(b"something else" * 99)
    assert "cannot open the results file" in refusal(capsys, "reproduce", "legemm/fig18")
    assert main(["split", "0e-400"]) == 0


# --- values of options
def test_values_of_options():
    read = options.parse_options(["a=2^1023", "b=2**-3", "c=-7", "d=1e308", "e=2^1024", "f=1_000", "g=abc", "h=none"])
    assert read == {"a": 2**1023, "b": 0.125, "c": -7, "d": 1e308, "e": np.inf, "f": 1000, "g": "abc", "h": None}
    assert [type(value) for value in read.values()] == [int, float, int, float, float, int, str, type(None)]


def test_markup_in_a_table_is_text(capsys):
    text = "[/a] [red]x :smile: \\[x"
    options.print_table(text, (text, text), [(text, text)])
    assert capsys.readouterr().out.count(text) == 5


WRONG = ("", "-1", "nan", "9**9999", "[/a]", "1,2,3", "x" * 300, "no/such", "0x0x0", "=")
VALID = {
    "gemm": ["A.npy", "B.npy", "-s", "sgemm"],
    "advise": ["-t", "1e-3", "-H", "A100", "--k", "16"],
    "reveal": ["--emulated", "A100", "--k", "8"],
    "characterize": ["--emulated", "nosuchrow"],
    "split": ["0.1"],
    "ledger": ["--figures", "none"],
    "reproduce": ["none/fig"],
    "sweep run": ["none.toml"],
    "sweep scaling": ["-H", "A100", "--dry-run"],
    "sweep plane": ["ootomo", "-H", "A100", "-O", "promote=16,32", "-P", "K=16,32", "--dry-run"],
    "bench cpu": ["--size", "8", "--repeat", "1", "--only", "nosuch"],
    "bench gpu": ["--list"],
    "verify gemm": ["A.npy", "B.npy", "-r", "A.npy", "-H", "A100"],
}


def _commands(command, words=()):
    children = getattr(command, "commands", None)
    if not children:
        yield words, command
    for name, child in (children or {}).items():
        yield from _commands(child, (*words, name))


OPTIONS = [
    pytest.param(
        words,
        option.opts[0],
        option.nargs,
        id=" ".join((*words, option.opts[0])),
        marks=[pytest.mark.slow] * (words == ("bench", "cpu")),
    )
    for words, command in _commands(load_all())
    for option in command.params
    if option.param_type_name == "option" and not option.is_flag and option.name not in ("help", "scheduler")
]


@pytest.mark.parametrize("values", [WRONG[::3], pytest.param([*WRONG[1::3], *WRONG[2::3]], marks=pytest.mark.slow)])
@pytest.mark.parametrize(("words", "option", "count"), OPTIONS)
def test_wrong_values_of_every_option_are_one_line(folder, capsys, words, option, count, values):
    for value in values:
        if option == "--only" and not value:
            continue  # all benchmarks
        status = main([*words, *VALID.get(" ".join(words), []), option, *[value] * count])
        out, err = capsys.readouterr()
        assert status in (0, 1, 2)
        assert "Traceback" not in err
        if status == 2:
            assert (out.strip(), err.count("\n")) == ("", 1)
            assert err.startswith("fpemu: ")


# --- experiments are executed only from a named folder
@pytest.fixture
def stray(folder):
    """A working directory with a page that must not be executed."""
    toy.write_page(folder / "experiments", "paper/fig1", "raise SystemExit(open('executed', 'w').close())\n")
    (folder / "figures" / "paper").mkdir(parents=True)
    (folder / "figures" / "paper" / "fig1.json").write_text("{}")
    return folder


COMMANDS = ("-h", "list", "list experiments", "reproduce paper/fig1", "reproduce -h", "ledger", "ledger --check")


@pytest.mark.parametrize("command", [*COMMANDS, "sweep paper/fig1", "bench gpu --list"])
def test_pages_of_the_working_directory_are_not_executed(stray, capsys, command):
    assert main(command.split()) in (0, 2)
    assert not Path("executed").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_without_a_checkout_the_folder_must_be_named(stray, capsys, monkeypatch):
    monkeypatch.setattr(pages, "_CHECKOUT", stray / "none")
    for command in (["list", "experiments"], ["reproduce", "paper/fig1"], ["ledger"]):
        assert refusal(capsys, *command) == (
            "fpemu: this installation has no experiments: name a folder by --experiments or FPEMU_EXPERIMENTS\n"
        )
        assert "names nowhere, which is not a folder" in refusal(capsys, *command, "--experiments", "nowhere")
    assert not Path("executed").exists()


def test_a_named_folder_is_listed_without_execution_and_executed_to_reproduce(stray, capsys):
    assert main(["list", "experiments", "--experiments", "experiments"]) == 0
    assert ["paper/fig1", "a", "title", "-", "-"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "FPEMU_EXPERIMENTS" not in os.environ
    assert not Path("executed").exists()
    assert main(["reproduce", "paper/fig1", "--experiments", "experiments"]) == 2
    assert "fig1.py cannot be loaded: SystemExit" in capsys.readouterr().err
    assert Path("executed").exists()
