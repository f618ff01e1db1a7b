"""The processes of measuring clients as an experiment sees them: started, told what to do, and certainly ended.

Owns their pipes, and puts together what they measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy as np

from shoal.balance.columns import Floats
from shoal.errors import ClusterError
from shoal.experiments.real.talk import LINE_BYTES_MAX, Begin, Collect, Done, Join, Order, Publish
from shoal.limits import Limits

PROCESSES: Final = 2
"""As many as the smallest machine that we think of has cores."""
ANSWER_S_MAX: Final = 60.0
"""How long an order may take. Then the experiment fails: something is stuck."""
LATENCIES_MAX: Final = 5000
"""Samples that each process gets."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured in one window."""

    messages: int
    expected: int
    delays_ms: Floats
    """From `publish` to the subscriber, one for each delivery."""
    responses_ms: Floats
    """The same with wide-area latency."""
    gaps: int

    @property
    def undelivered(self) -> int:
        """Deliveries that did not come in time."""
        return max(0, self.expected - len(self.delays_ms))

    @property
    def response_ms(self) -> float:
        """The average; infinite if there is none."""
        return float(self.responses_ms.mean()) if len(self.responses_ms) else float("inf")


class MeasuringClients:
    """Publishers and subscribers of one channel, divided among processes. An async context manager. `prefix` stands in
    front of their command."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = prefix
        self._processes: list[asyncio.subprocess.Process] = []
        self._subscribers = 0
        self._window = 0

    async def __aenter__(self) -> Self:
        try:
            for _ in range(PROCESSES):
                self._processes.append(
                    await asyncio.create_subprocess_exec(
                        *(*self._prefix, sys.executable, "-m", "shoal.experiments.real.client"),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        limit=LINE_BYTES_MAX,
                        start_new_session=True,
                    )
                )
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes))

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._processes]

    # -- orders ----------------------------------------------------------------------------------------------

    async def begin(self, url: str, limits: Limits, channel: str, payload_bytes: int, latencies_ms: Floats) -> None:
        """Finds the cluster."""
        samples = np.random.default_rng(0).permutation(latencies_ms)[:LATENCIES_MAX].tolist()
        await self._all([Begin(url, limits, channel, payload_bytes, seed, samples) for seed in range(PROCESSES)])

    async def join(self, publishers: int, subscribers: int) -> None:
        """So many clients in all are there from now on; there are never fewer than before."""
        self._subscribers = subscribers
        await self._all(
            [
                Join(
                    len(range(number, publishers, PROCESSES)),
                    len(range(PROCESSES - 1 - number, subscribers, PROCESSES)),
                )
                for number in range(PROCESSES)
            ]
        )

    async def measure(self, seconds: float, per_s: float, wait_s_max: float, *, steady: bool = True) -> Window:
        """All publishers publish for a while; returns when everything has come, or has taken too long."""
        self._window += 1
        publish = Publish(self._window, seconds, per_s, steady)
        messages = sum(done.messages for done in await self._all([publish] * PROCESSES))
        done = await self._all([Collect(self._window, messages, wait_s_max)] * PROCESSES)
        return Window(
            messages=messages,
            expected=messages * self._subscribers,
            delays_ms=_floats([one.delays_ms for one in done]),
            responses_ms=_floats([one.responses_ms for one in done]),
            gaps=sum(one.gaps for one in done),
        )

    async def _all(self, orders: Sequence[Order]) -> list[Done]:
        """Gives each process its order, and waits for all answers."""
        pairs = zip(self._processes, orders, strict=True)
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await asyncio.gather(*(_ask(process, order) for process, order in pairs))
        except TimeoutError:
            raise ClusterError(f"measuring clients did not answer within {ANSWER_S_MAX:g} s") from None


async def _ask(process: asyncio.subprocess.Process, order: Order) -> Done:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    line = await process.stdout.readline()
    if not line:
        raise ClusterError("a process of measuring clients ended by itself", do="see what it said above")
    return msgspec.json.decode(line, type=Done)


def _floats(parts: list[bytes]) -> Floats:
    return np.concatenate([np.frombuffer(part, np.float32) for part in parts]).astype(np.float64)
