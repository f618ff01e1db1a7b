"""The feed of load windows from Spark to the balancer: keys and commands.

Owns its keys on the coordinator's server and the format of an entry. Never touches a socket: the job writes
(`shoal.pipeline.load_service`), the balancer reads (`shoal.leader.window_reader`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.coordination.layout import PREFIX, WINDOWS
from shoal.errors import ProtocolError
from shoal.load.kinds import Kinds
from shoal.load.window import LoadWindow
from shoal.wire.commands import Command

FEED_KEY: Final = f"{PREFIX}{WINDOWS}spark".encode()
ALIVE_KEY: Final = f"{PREFIX}{WINDOWS}alive".encode()

FEED_WINDOWS_MAX: Final = 64
"""Approximate number of windows that are kept. The balancer has used its own instead of older ones."""

WINDOW_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest window that is sent. In larger clusters the balancer uses its own windows."""

ALIVE_S: Final = 3.0
"""How long the job counts as alive after its last heartbeat. It sends one every second."""

_DATA: Final = b"data"


def feed_command(data: bytes) -> Command:
    """The command that appends one window."""
    return (b"XADD", FEED_KEY, b"MAXLEN", b"~", b"%d" % FEED_WINDOWS_MAX, b"*", _DATA, data)


def alive_command(job: str) -> Command:
    """The job's heartbeat. `job` is shown to operators only."""
    return (b"SET", ALIVE_KEY, job.encode(), b"PX", b"%d" % (ALIVE_S * 1000))


def ended_command() -> Command:
    """The command that marks the job as ended."""
    return (b"DEL", ALIVE_KEY)


def read_command(after: bytes, count: int) -> Command:
    """The command that reads the windows after an entry."""
    return (b"XRANGE", FEED_KEY, b"(" + after, b"+", b"COUNT", b"%d" % count)


def read_window(fields: Mapping[bytes, bytes], kinds: Kinds) -> LoadWindow:
    """The window in an entry; ProtocolError if it has none."""
    if _DATA not in fields:
        raise ProtocolError("an entry in the feed of load windows has no window")
    return LoadWindow.from_bytes(fields[_DATA], kinds)
