"""The command's flags."""

from __future__ import annotations

import pytest

from shoal import cli


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--players", "0"], ["--servers", "99"], ["--servers-max", "0"]])
def test_bad_numbers_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *words]) == 1
    assert words[0] in capsys.readouterr().err
