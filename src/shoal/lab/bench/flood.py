"""A publisher that costs almost nothing, to measure what its messages cost others.

Owns one block of PUBLISH commands, encoded once and sent again and again. Its channels have no subscribers.
"""

from __future__ import annotations

import socket
from typing import Final

from shoal.errors import PublishError
from shoal.lab.bench.contender import BenchTarget
from shoal.wire.commands import encode_commands
from shoal.wire.envelope import HEADER, MAGIC, stream_id
from shoal.wire.tls import client_context

CHANNELS: Final = 1000
PREFIX: Final = b"flood."
BLOCKS_AHEAD: Final = 4
"""Blocks that may be unanswered when the next one is sent, so that the server is never idle."""
TIMEOUT_S: Final = 30.0


def flood(target: BenchTarget, messages: int, payload_bytes: int) -> int:
    """Publishes about this many messages, each in an envelope, as fast as the server accepts them; returns the exact
    number. Blocks.
    """
    header = HEADER.pack(MAGIC, 0, 1, stream_id(1, 1), 1, 1)
    names = [b"%b%d" % (PREFIX, number) for number in range(CHANNELS)]
    block = encode_commands([(b"PUBLISH", name, header + b"x" * payload_bytes) for name in names])
    blocks = max(1, messages // CHANNELS)
    with _connect(target) as connection:
        connection.sendall(encode_commands([(b"AUTH", target.username.encode(), target.password.encode())]))
        awaited = 1
        for _ in range(blocks):
            connection.sendall(block)
            awaited += CHANNELS
            while awaited > BLOCKS_AHEAD * CHANNELS:
                awaited -= _replies(connection)
        while awaited:
            awaited -= _replies(connection)
    return blocks * CHANNELS


def _connect(target: BenchTarget) -> socket.socket:
    plain = socket.create_connection((target.host, target.port), TIMEOUT_S)
    return client_context(target.tls).wrap_socket(plain, server_hostname=target.host) if target.tls else plain


def _replies(connection: socket.socket) -> int:
    data = connection.recv(1 << 16)
    if not data or b"-" in data:
        raise PublishError(f"the server rejected the flood: {data[:200]!r}")
    return data.count(b"\n")
