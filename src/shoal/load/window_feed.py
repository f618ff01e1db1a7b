"""Load windows on their way from Spark to the balancer: the names and the form.

Owns where they lie on the coordinator's server and what an entry looks like. Never touches a socket: the job writes
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
"""About how many windows are kept. The balancer has used its own in place of older ones."""

WINDOW_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest window that is handed over. For larger clusters the balancer folds its own."""

ALIVE_S: Final = 3.0
"""How long the job counts as alive after it said so last. It says so every second."""

_DATA: Final = b"data"


def feed_command(data: bytes) -> Command:
    """Hands over the bytes of one window."""
    return (b"XADD", FEED_KEY, b"MAXLEN", b"~", b"%d" % FEED_WINDOWS_MAX, b"*", _DATA, data)


def alive_command(word: str) -> Command:
    """Says that the job is alive; the word is for people."""
    return (b"SET", ALIVE_KEY, word.encode(), b"PX", b"%d" % (ALIVE_S * 1000))


def gone_command() -> Command:
    """Says that the job has ended."""
    return (b"DEL", ALIVE_KEY)


def read_command(after: bytes, count: int) -> Command:
    """Asks for the windows behind an entry."""
    return (b"XRANGE", FEED_KEY, b"(" + after, b"+", b"COUNT", b"%d" % count)


def read_window(fields: Mapping[bytes, bytes], kinds: Kinds) -> LoadWindow:
    """The window in an entry; ProtocolError if there is none."""
    if _DATA not in fields:
        raise ProtocolError("an entry of the feed of load windows holds none")
    return LoadWindow.from_bytes(fields[_DATA], kinds)
