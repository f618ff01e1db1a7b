"""What clients read from stores: dead letters, as scripts and as other clients write them."""

from __future__ import annotations

import pytest

from shoal.errors import ProtocolError
from shoal.queues.message_format import decode_dead_letter


def fields(**changed: bytes) -> list[bytes]:
    written = {"key": b"k", "body": b"x", "reason": b"why", "attempts": b"3", "at": b"1700000000000", **changed}
    return [part for name, value in written.items() for part in (name.encode(), value)]


@pytest.mark.parametrize(("written", "shown"), [(b"1700000000000", 1_700_000_000_000), (b"-4000", 0)])
def test_a_dead_letter_is_read_whatever_the_clock_of_its_store_said(written: bytes, shown: int) -> None:
    """A letter from a store whose clock was before 1970 was shown without its message."""
    found = decode_dead_letter(fields(at=written))
    assert (found.body, found.at_ms) == (b"x", shown)


@pytest.mark.parametrize(
    "given",
    [
        fields(attempts=b"-1"),
        fields(attempts=b"9" * 30),
        fields(at=b"9" * 30),
        fields(at=b"soon"),
        fields()[2:],
        fields()[:-1],
    ],
)
def test_an_entry_that_no_script_has_written_is_refused(given: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode_dead_letter(given)
