"""How many messages agents have forwarded, by the telemetry on the servers.

Owns the question. What an agent counted in the second in which it died is not in it.
"""

from __future__ import annotations

from typing import Any

import hiredis
import pyarrow.compute as pc

from shoal.channels.telemetry import DATA_FIELD, decode
from shoal.cluster.acl import READER
from shoal.cluster.state import ClusterState
from shoal.errors import ShoalError
from shoal.wire.blocking import ask
from shoal.wire.envelope import TELEMETRY_KEY


def count_forwarded(state: ClusterState) -> int:
    """Messages that agents put on servers for others; a server that does not answer has none. Blocks."""
    total = 0
    for server in state.servers:
        login = READER, state.passwords[READER]
        try:
            entries: Any = ask(server.host, server.port, *login, "XRANGE", TELEMETRY_KEY, "-", "+")
        except (ShoalError, hiredis.ReplyError):
            continue
        for _, fields in entries:
            record = decode(dict(zip(fields[::2], fields[1::2], strict=True))[DATA_FIELD])
            total += pc.sum(record.channels.column("forwarded")).as_py() or 0
    return total
