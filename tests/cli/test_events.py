"""`shoal emit` and `shoal engine run`: what is wrong with their arguments is said before anything is connected."""

from __future__ import annotations

import pytest
from tests.support.command import run_command

NOWHERE = ("--url", "shoal://client:x@127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": {"b": 2}}', "is of type dict"),
        ('{"a": NaN}', "NaN and infinity are not allowed"),
        ('{"a": "\udcff"}', "lone surrogate"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "is not a JSON object"),
        (f'{{"a": "{"x" * 9000}"}}', "attributes_bytes_max"),
        ("[a,1],[b", "expected ','"),
    ],
)
async def test_all_events_are_checked_before_one_is_emitted(
    capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    """The events before were emitted, and perhaps lost, because the bus was closed at once."""
    status, out, error = await run_command(capsys, "emit", '{"a": 1}', text, *NOWHERE, "--json")
    assert (status, out) == (1, "")
    assert why in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", ["a b", "a/b", "a\udcff", "x" * 65, "*"])
async def test_a_process_of_an_engine_has_a_name_that_fits_channels(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """It is a part of channel names: the engine ended, or was never able to join."""
    status, _, error = await run_command(capsys, "engine", "run", "--name", name, *NOWHERE)
    assert status == 1
    assert "letters, digits" in error
