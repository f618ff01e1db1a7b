"""The connection on which the balancer's process asks a server for streams and records.

Owns its name and bounds. It is opened, used and closed by `stream_following` and `record_watch`.
"""

from __future__ import annotations

from shoal.limits import Limits
from shoal.wire.connection import Connection
from shoal.wire.dial import Dial


def reader_connection(
    host: str, port: int, username: str | None, password: str | None, limits: Limits, dial: Dial
) -> Connection:
    """A connection that asks; it is not open yet."""
    return Connection(
        host,
        port,
        username=username,
        password=password,
        name="shoal-balancer",
        dial=dial,
        connect_timeout_s=limits.connect_timeout_s,
        frame_bytes_max=limits.command_reply_bytes_max,
    )
