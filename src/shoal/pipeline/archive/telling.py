"""Tells servers that their records are archived: a drained one may go then.

Owns the question whether all is archived. The mark lies on the server (`shoal.wire.recorded`) for the balancer to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from shoal.errors import ShoalError
from shoal.history.manifest import Manifest
from shoal.history.plain import recorded_ms
from shoal.history.records import RecordReader
from shoal.history.servers import Login
from shoal.logs import get_log
from shoal.plan.keys import channel_text as record_name
from shoal.plan.ring import ServerAddress

_log: Final = get_log(__name__)


def archived_until(servers: Sequence[ServerAddress], login: Login, manifest: Manifest) -> dict[str, int]:
    """The servers whose records are in the archive to their ends, and that have not been told so: up to when, in
    milliseconds of the server's clock."""
    until_ms = {}
    for server in servers:
        with _reading(server, login) as reader:
            now_ms = reader.clock_ms()  # before its ends are asked for: what comes later is not archived
            ends = {channel: reader.end(channel) for channel in reader.channels()}
            told_ms = reader.archived_ms()
            is_told = told_ms and told_ms == manifest.told.get(server.id)
            if is_told and all(recorded_ms(end.entry) < told_ms for end in ends.values()):
                continue
            positions = {channel: manifest.position(server.id, record_name(channel)) for channel in ends}
            if all(end.key <= positions[channel].key for channel, end in ends.items()):
                until_ms[server.id] = now_ms
    return until_ms


def tell_archived(servers: Sequence[ServerAddress], login: Login, until_ms: Mapping[str, int]) -> None:
    """Tells servers up to when they are archived. One that cannot be told (it does not answer, or is before Redis 7,
    whose rights are too coarse) is left."""
    for server in servers:
        if server.id in until_ms:
            with _reading(server, login) as reader:
                reader.tell_archived(until_ms[server.id])


@contextlib.contextmanager
def _reading(server: ServerAddress, login: Login) -> Iterator[RecordReader]:
    try:
        with RecordReader(server, login) as reader:
            yield reader
    except ShoalError as error:
        _log.debug("a server was not told that it is archived", server=server.id, why=str(error))
