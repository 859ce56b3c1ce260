"""Commands that must refuse their arguments."""

from __future__ import annotations

import pytest

from fpemu.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line on stderr of a command that must exit with status 2 and print nothing else."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fpemu: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert len(err) < 2000
    return err
