"""The mutation check: its list fits the present tree, and the tool finds moved code and plants what it states."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.mutants import ROOT, Mutant, NotFoundError, apply, read

MUTANTS = read()


def test_the_list():
    assert Counter(m.origin for m in MUTANTS) == {"drawn": 160, "hand": 40}
    repeated = [name for name, count in Counter(m.id for m in MUTANTS).items() if count > 1]
    assert not repeated, f"two mutants have the id {repeated[0]}"
    for mutant in MUTANTS:
        assert 1 <= len(mutant.tests) <= 3, f"mutant {mutant.id} names {len(mutant.tests)} test files, not one to three"
        for name in mutant.tests if mutant.runs else ():
            file, _, test = name.partition("::")
            assert (ROOT / file).is_file(), f"mutant {mutant.id}: its test file {file} does not exist: name another"
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {test}" in text, f"mutant {mutant.id}: {file} has no test {test}: name another"


def test_every_mutant_is_found_once_in_the_present_tree():
    problems = []
    for mutant in MUTANTS:
        try:
            apply(mutant)
        except NotFoundError as error:
            problems += [] if mutant.gone else [str(error)]
        else:
            problems += [f"mutant {mutant.id} is in the tree: delete its `gone`"] if mutant.gone else []
    assert not problems, "\n".join(problems)


def _mutant(old, new, at="fpemu.here:Class.function"):
    return Mutant("one", at, old, new, ("tests/test.py",), "hand")


def _tree(tmp_path, **files):
    (tmp_path / "fpemu").mkdir()
    (tmp_path / "experiments").mkdir()
    for name, text in files.items():
        (tmp_path / "fpemu" / f"{name}.py").write_text(text, encoding="utf-8")
    return tmp_path


CODE = '''class Class:
    def function(x):
        """x - 1"""
        y = 2 * (
            x  -  1  # µ: two bytes
        )
        return y, f"{x + 1}"
'''


def test_code_is_replaced_whatever_its_layout(tmp_path):
    path, text = apply(_mutant("x - 1", "x + 1"), _tree(tmp_path, here=CODE))
    assert path == tmp_path / "fpemu" / "here.py"
    expected = CODE.replace("x  -  1 ", "(x + 1) ")
    assert text == expected
    _, text = apply(_mutant("y = 2 * (x - 1)", "y = 2"), tmp_path)  # a statement
    assert text == CODE.partition("y =")[0] + "y = 2\n" + CODE[CODE.index("        return") :]


def test_a_moved_definition_is_found(tmp_path):
    mutant = _mutant("x - 1", "x + 1", "fpemu.gone:Class.function")
    path, _ = apply(mutant, _tree(tmp_path, there=CODE, other="def function(x):\n    return x - 1\n"))
    assert path == tmp_path / "fpemu" / "there.py"
    (tmp_path / "fpemu" / "here.py").write_text(CODE.replace("function", "_function"), encoding="utf-8")
    assert apply(_mutant("x - 1", "x + 1"), tmp_path)[0].name == "here.py"  # the unchecked form


@pytest.mark.parametrize(
    ("files", "old", "message"),
    [
        ({"here": CODE}, "x - 2", "0 times in fpemu/here.py"),
        ({"here": CODE}, "x + 1", "0 times in fpemu/here.py"),  # f-strings are left alone
        ({"here": CODE.replace("y = 2", "y = x")}, "x", "2 times in fpemu/here.py"),
        ({"a": CODE, "b": CODE}, "x - 1", "1 times in fpemu/a.py, 1 times in fpemu/b.py"),
        ({"here": "Other = 1\n"}, "x - 1", "nothing there is named Class.function"),
    ],
)
def test_a_mutant_that_is_not_found_once_is_an_error(tmp_path, files, old, message):
    with pytest.raises(
        NotFoundError, match=f"mutant one: .*Class.function with '{old.replace('+', '.')}' exactly"
    ) as error:
        apply(_mutant(old, "0"), _tree(tmp_path, **files))
    assert message in str(error.value)


def test_a_fault_that_changes_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="changes nothing"):
        apply(_mutant("x - 1", "(x-1)"), _tree(tmp_path, here=CODE))
