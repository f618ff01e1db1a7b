"""The processes of the contenders, as the measurement sees them: orders in, answers out.

Owns their life. They are killed with this process, whatever happens to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

import msgspec

from shoal.bench.contender import BenchError
from shoal.bench.worker import Answer, Order

ANSWER_BYTES_MAX: Final = 1 << 24
DO_TIMEOUT_S: Final = 120.0
"""How long one order may take. Then the measurement fails: something is stuck."""


class Worker:
    """One process of one contender."""

    def __init__(self, contender: str, process: asyncio.subprocess.Process) -> None:
        self.contender = contender
        self._process = process

    @classmethod
    async def start(cls, contender: str) -> Worker:
        """Starts a process for a contender; its errors go to standard error."""
        command = (sys.executable, "-m", "shoal.bench.worker", contender)
        pipe = asyncio.subprocess.PIPE
        return cls(
            contender,
            await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=ANSWER_BYTES_MAX),
        )

    async def begin(self, order: Order) -> None:
        """Gives an order; returns when the worker has come to its first stop."""
        self._send(order)
        await self.stop()

    async def stop(self) -> None:
        """Returns when the worker has come to its next stop."""
        await self._line()

    def go_on(self) -> None:
        """Lets a worker go on from a stop at which it waits."""
        self._input.write(b"\n")

    async def end(self) -> Answer:
        """What the order that was begun took."""
        return msgspec.json.decode(await self._line(), type=Answer)

    async def do(self, order: Order) -> Answer:
        """Gives an order, and waits until it is done."""
        self._send(order)
        return await self.end()

    def _send(self, order: Order) -> None:
        self._input.write(msgspec.json.encode(order) + b"\n")

    @property
    def _input(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(DO_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise BenchError(f"{self.contender} was not done after {DO_TIMEOUT_S:g} s") from None
        if not line:
            raise BenchError(f"a process of {self.contender} ended", do="see what it said above")
        return line

    async def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
