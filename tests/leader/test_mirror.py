"""The mirror of an area of the coordinator: the newest value wins, in whatever order news and replies come."""

from __future__ import annotations

import asyncio
from typing import cast

from shoal.coordination.interface import Coordinator, Versioned
from shoal.leader.mirror import Mirror


def read(key: str, stored: Versioned) -> tuple[str, bytes]:
    return key, stored.value


def mirror() -> Mirror[str, bytes]:
    return Mirror(cast(Coordinator, None), "moves/", read, asyncio.Event())


def test_a_deleted_key_is_gone() -> None:
    here = mirror()
    here.take("moves/a", Versioned(b"first", 7))
    here.deleted("moves/a", 7)
    assert here.values == {}


def test_a_value_that_was_written_after_the_deletion_stays() -> None:
    """The watch tells of the new value before the reply to the deletion comes. A mover that dropped it would never see
    the request again."""
    here = mirror()
    here.take("moves/a", Versioned(b"first", 7))
    here.take("moves/a", Versioned(b"second", 8))
    here.deleted("moves/a", 7)
    assert here.values == {"moves/a": b"second"}
