"""Marks servers whose records are fully archived. The balancer removes a drained server only when it has the mark.

Owns the check that everything is archived. The mark is a key on the server (`shoal.wire.record_entry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shoal.errors import ShoalError
from shoal.history.archive_table import Positions
from shoal.history.record_reader import RecordReader
from shoal.history.server_reader import Login
from shoal.logs import get_log
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress

_log: Final = get_log(__name__)


def mark_archived(
    servers: Sequence[ServerAddress], login: Login, positions: Positions, refusing: set[str] | None = None
) -> list[str]:
    """Marks all servers whose records are archived to their ends, and returns their ids.

    A server that does not answer is skipped. A server may refuse the mark: the role lacks the right, or the server is
    older than Redis 7, whose access rules cannot express it. That is logged once, and the server added to `refusing`.
    """
    marked = []
    refusing = set() if refusing is None else refusing
    for server in servers:
        try:
            with RecordReader(server, login) as reader:
                now_ms = reader.clock_ms()  # read before the ends: entries that come later are not archived
                if all(
                    reader.end(channel).key <= positions.of(server.id, record_name(channel)).key
                    for channel in reader.channels()
                ):
                    if reader.mark_archived(now_ms):
                        marked.append(server.id)
                    elif server.id not in refusing:
                        refusing.add(server.id)
                        _log.warning("server refuses the archived mark; it stays after draining", server=server.id)
        except ShoalError as error:
            _log.debug("archived mark not written", server=server.id, why=str(error))
    return marked
