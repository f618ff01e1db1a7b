"""Tells servers that their records are archived: a drained one may go then.

Owns the question whether all is archived. The mark lies on the server (`shoal.wire.recorded`) for the balancer to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shoal.errors import ShoalError
from shoal.history.manifest import Manifest
from shoal.history.records import RecordReader
from shoal.history.servers import Login
from shoal.logs import get_log
from shoal.plan.keys import channel_text as record_name
from shoal.plan.ring import ServerAddress

_log: Final = get_log(__name__)


def tell_archived(
    servers: Sequence[ServerAddress], login: Login, manifest: Manifest, refusing: set[str] | None = None
) -> list[str]:
    """Tells all servers whose records are in the archive to their ends, and returns which those are. One that does not
    answer is left. One that refuses (the role has no right to it, or it is before Redis 7, whose rights are too coarse)
    is warned of, unless it is among those that are known to refuse."""
    told = []
    refusing = set() if refusing is None else refusing
    for server in servers:
        try:
            with RecordReader(server, login) as reader:
                now_ms = reader.clock_ms()  # before its ends are asked for: what comes later is not archived
                if all(
                    reader.end(channel).key <= manifest.position(server.id, record_name(channel)).key
                    for channel in reader.channels()
                ):
                    if reader.tell_archived(now_ms):
                        told.append(server.id)
                    elif server.id not in refusing:
                        refusing.add(server.id)
                        _log.warning(
                            "a server refuses to hear that it is archived: drained, it stays", server=server.id
                        )
        except ShoalError as error:
            _log.debug("a server was not told that it is archived", server=server.id, why=str(error))
    return told
