"""The connection on which the balancer's process reads streams and records of a server.

Owns its name and limits. `stream_follower` and `record_watch` open, use and close it.
"""

from __future__ import annotations

from shoal.limits import Limits
from shoal.wire.address_book import Endpoint
from shoal.wire.connection import Connection


def reader_connection(to: Endpoint, username: str | None, password: str | None, limits: Limits) -> Connection:
    """A connection that is not open yet."""
    return Connection(
        to.host,
        to.port,
        username=username,
        password=password,
        name="shoal-balancer",
        dial=to.dial,
        connect_timeout_s=limits.connect_timeout_s,
        frame_bytes_max=limits.command_reply_bytes_max,
    )
