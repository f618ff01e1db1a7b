"""Command-line numbers: invalid ones get a clear message."""

from __future__ import annotations

import pytest

from shoal import cli


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bench", "match", "--subscriptions", "abc"], "give a whole number above 0, not 'abc'"),
        (["bench", "match", "--subscriptions", "0"], "give a whole number above 0, not '0'"),
        (["bench", "match", "--run-seconds", "x"], "give a number above 0, not 'x'"),
        (["bench", "match", "--run-seconds", "inf"], "give a number above 0, not 'inf'"),
        (["experiment", "--seeds", "1.5"], "give a whole number above 0, not '1.5'"),
        (["fuzz", "--seconds", "-1"], "give a number above 0, not '-1'"),
        (["sub", "a", "--count", "-1"], "give a whole number above 0, not '-1'"),
    ],
)
def test_what_is_no_number_is_named_in_words(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli._parse(words)
    assert says in capsys.readouterr().err
