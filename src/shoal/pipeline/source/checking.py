"""Offsets that a user has given, against what is there.

Owns what is said of those that cannot be. Never touches a socket.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from shoal.errors import ConfigError
from shoal.pipeline.source.looking import Seen
from shoal.pipeline.source.offsets import NOTHING, ServerOffset

NAMED_MAX: Final = 5
"""So many of the names that there are stand in an error."""

Offset = Mapping[str, ServerOffset]


def check_order(start: Offset, end: Offset) -> None:
    """ConfigError if a batch would end before it starts."""
    for server, of_server in end.items():
        for name, last in of_server.streams.items():
            begin = start.get(server, NOTHING).streams.get(name)
            if begin is not None and begin.id > last.id:
                raise ConfigError(
                    f"the batch starts at {begin.id} in the stream {name} of {server}, after its end at {last.id}",
                    do="give startingOffsets that are not after endingOffsets, nor after the end of the stream",
                )


def check_known(option: str, given: Offset, ring: Collection[str], seen: Mapping[str, Seen]) -> None:
    """ConfigError if an offset names a server or a stream that is not there. Of servers that do not answer nobody knows
    the streams."""
    for server, of_server in given.items():
        if server not in ring:
            raise ConfigError(f"{option} names a server {server!r}, which is not there", do=_out_of(ring))
        there = seen[server].keys if server in seen else of_server.streams
        for name in of_server.streams:
            if name not in there:
                raise ConfigError(f"{option} names a stream {name!r}, which {server} does not have", do=_out_of(there))


def _out_of(names: Collection[str]) -> str:
    some = sorted(names)[:NAMED_MAX]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"take it out, or name one of {', '.join(some)}{more}" if some else "take it out: there is none"
