"""The child's side: reads orders, writes reports, and ends with its parent.

Owns the event loop of the process and its standard output. The load itself is the `work` of each
program.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import BinaryIO, Final, Generic, NoReturn, TypeVar

import msgspec

from shoal import logs

LINE_BYTES_MAX: Final = 1 << 28
"""Longest order or report. A longer one ends the process that reads it."""
_PR_SET_PDEATHSIG: Final = 1

Order = TypeVar("Order")


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Report: the child is prepared for the next step."""


class Go(msgspec.Struct, tag=True, frozen=True):
    """Order: begin the prepared step."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Order: publish no more, and stay."""


class Parent(Generic[Order]):
    """The parent as its child sees it."""

    def __init__(self, orders: asyncio.StreamReader, decoder: msgspec.json.Decoder[Order], reports: BinaryIO) -> None:
        self._orders = orders
        self._decoder = decoder
        self._reports = reports
        self._encoder = msgspec.json.Encoder()

    async def order(self) -> Order | None:
        """The next order; None when there are no more and the process should end."""
        line = await self._orders.readline()
        return self._decoder.decode(line) if line else None

    def tell(self, report: msgspec.Struct) -> None:
        """Sends a report. Blocks while the pipe is full, which lasts until the parent has read it."""
        self._reports.write(self._encoder.encode(report) + b"\n")
        self._reports.flush()


def run_worker(
    orders: msgspec.json.Decoder[Order], work: Callable[[Parent[Order]], Awaitable[None]], log_level: str = "error"
) -> NoReturn:
    """Runs the work of a child and ends the process, without closing connections that are still open."""
    import uvloop

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    logs.configure(level=log_level, format="text")
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # only reports go to the parent, whatever a library prints
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(orders, work, reports))
        sys.stderr.flush()
        os._exit(0)


async def _run(
    decoder: msgspec.json.Decoder[Order], work: Callable[[Parent[Order]], Awaitable[None]], reports: BinaryIO
) -> None:
    orders = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    await work(Parent(orders, decoder, reports))
