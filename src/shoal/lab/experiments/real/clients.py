"""The processes of measuring clients, seen from an experiment.

Owns the processes, and combines their measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import numpy as np

from shoal.balance.columns import Floats
from shoal.lab.experiments.real.client_orders import (
    REPORTS,
    CollectWindow,
    OpenClients,
    PublishWindow,
    SetClients,
    WindowCollected,
    WindowPublished,
)
from shoal.lab.experiments.real.network import ExperimentNetwork
from shoal.lab.harness import LoadProcess, Ready
from shoal.limits import Limits

PROCESSES: Final = 2
"""As many as the smallest machine that we support has cores."""
ANSWER_S_MAX: Final = 60.0
"""How long an order may take. Then the experiment fails: something is stuck."""
LATENCIES_MAX: Final = 5000
"""Samples that each process gets."""

_Report = TypeVar("_Report")


@dataclass(frozen=True, slots=True)
class Window:
    """The measurements of one window."""

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
        """The average response time; infinite without deliveries."""
        return float(self.responses_ms.mean()) if len(self.responses_ms) else float("inf")

    def delay_ms(self, percentile: float) -> float:
        """A percentile of the delays; infinite without deliveries."""
        return float(np.percentile(self.delays_ms, percentile)) if len(self.delays_ms) else float("inf")


class MeasuringClients:
    """Publishers and subscribers of one channel, divided among processes."""

    def __init__(self, processes: Sequence[LoadProcess]) -> None:
        self._processes = processes
        self._subscribers = 0
        self._window = 0

    async def open(self, url: str, limits: Limits, channel: str, payload_bytes: int, latencies_ms: Floats) -> None:
        """Connects all processes to a cluster. There are no clients yet."""
        samples = np.random.default_rng(0).permutation(latencies_ms)[:LATENCIES_MAX].tolist()
        opened = [OpenClients(url, limits, channel, payload_bytes, seed, samples) for seed in range(PROCESSES)]
        await self._ask_all(opened, Ready)

    async def set_clients(self, publishers: int, subscribers: int) -> None:
        """Sets how many clients there are in all; there are never fewer than before."""
        self._subscribers = subscribers
        orders = [
            SetClients(
                len(range(number, publishers, PROCESSES)),
                len(range(PROCESSES - 1 - number, subscribers, PROCESSES)),
            )
            for number in range(PROCESSES)
        ]
        await self._ask_all(orders, Ready)

    async def measure(self, seconds: float, per_s: float, wait_s_max: float, *, steady: bool = True) -> Window:
        """Publishes for a while; returns when everything was delivered, or has taken too long."""
        self._window += 1
        publish = PublishWindow(self._window, seconds, per_s, steady)
        messages = sum(published.messages for published in await self._ask_all([publish] * PROCESSES, WindowPublished))
        collect = CollectWindow(self._window, messages, wait_s_max)
        collected = await self._ask_all([collect] * PROCESSES, WindowCollected)
        return Window(
            messages=messages,
            expected=messages * self._subscribers,
            delays_ms=_floats([part.delays_ms for part in collected]),
            responses_ms=_floats([part.responses_ms for part in collected]),
            gaps=sum(part.gaps for part in collected),
        )

    async def _ask_all(self, orders: Sequence[msgspec.Struct], kind: type[_Report]) -> list[_Report]:
        """Gives each process its order, and waits for all answers."""
        pairs = zip(self._processes, orders, strict=True)
        return await asyncio.gather(*(process.ask(order, kind, ANSWER_S_MAX) for process, order in pairs))


@contextlib.asynccontextmanager
async def start_clients(network: ExperimentNetwork) -> AsyncIterator[MeasuringClients]:
    """Starts the processes on the clients' side of a network, and ends them on leaving."""
    async with contextlib.AsyncExitStack() as stack:
        yield MeasuringClients(
            [
                await stack.enter_async_context(
                    LoadProcess(
                        f"measuring clients, process {number}",
                        "shoal.lab.experiments.real.client_worker",
                        REPORTS,
                        prefix=network.clients_prefix,
                    )
                )
                for number in range(PROCESSES)
            ]
        )


def _floats(parts: list[bytes]) -> Floats:
    return np.concatenate([np.frombuffer(part, np.float32) for part in parts]).astype(np.float64)
