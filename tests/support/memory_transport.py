"""A transport without a socket: two ends in one event loop, as a simulated network has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class MemoryTransport(asyncio.Transport):
    """One end. What is written goes to `sink` in the loop's next turn; `feed` is what arrives here."""

    def __init__(self, protocol: asyncio.BufferedProtocol, sink: Callable[[bytes], None]) -> None:
        super().__init__()
        self._protocol = protocol
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._arrived = bytearray()
        self._closing = False
        self.writes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.writes += 1
            self._loop.call_soon(self._sink, bytes(data))

    def feed(self, data: bytes) -> None:
        """Bytes arrive."""
        self._arrived += data
        self._deliver()

    def _deliver(self) -> None:
        while self._arrived and not self._paused and not self._closing:
            buffer = memoryview(self._protocol.get_buffer(-1))
            size = min(len(buffer), len(self._arrived))
            buffer[:size] = self._arrived[:size]
            del self._arrived[:size]
            self._protocol.buffer_updated(size)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._deliver)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()
