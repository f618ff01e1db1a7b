"""Small workloads and policies for the tests of the flow simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shoal.balance.columns import Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.flow import Models, MoveModel, PoolModel, ServerModel, Traffic

MESSAGE_BYTES = 100.0
SERVER = ServerModel(
    capacity_bytes_per_s=1e6,
    publication_cpu_s=1e-6,
    delivery_cpu_s=1e-6,
    output_buffer_bytes=1e6,
    connection_messages_per_s=1e6,
)
"""Capacity for 10,000 messages a second of this size; the core is not the limit."""


class Steady:
    """Channels with fixed rates and subscribers; rates may change at moments."""

    def __init__(
        self,
        rates: Sequence[float],
        subscribers: Sequence[int],
        seconds: int,
        *,
        later: dict[int, Sequence[float]] | None = None,
        publishers: int = 1000,
    ) -> None:
        self.names = pa.array([b"c%d" % row for row in range(len(rates))], pa.binary())
        self.seconds = seconds
        self._rates = {0: rates, **(later or {})}
        self._subscribers = np.array(subscribers)
        self._publishers = np.full(len(rates), publishers)

    def at(self, second: int) -> Traffic:
        rates = np.array(self._rates[max(moment for moment in self._rates if moment <= second)], np.float64)
        return Traffic(rates, self._publishers, self._subscribers, MESSAGE_BYTES, rates, 70.0, len(rates))


def models(servers: int, *, most: int = 8, server: ServerModel = SERVER, moves: MoveModel | None = None) -> Models:
    pool = PoolModel(servers_first=servers, servers_max=most, start_s=5)
    return Models(server=server, moves=moves or MoveModel(), pool=pool)


def place(rows: Sequence[int], placements: Placements) -> Decision:
    return Decision(np.array(rows), placements, (Reason.OVERLOAD,) * len(rows), (), np.zeros((len(rows), 0)), add=0)


def servers(add: int = 0, drain: Sequence[int] = (), keep: Sequence[int] = ()) -> Decision:
    nothing = Decision.nothing()
    return Decision(
        nothing.moves,
        nothing.placements,
        (),
        (),
        nothing.figures,
        add=add,
        drain=np.array(drain, np.int32),
        keep=np.array(keep, np.int32),
    )


class Script:
    """A policy with given decisions at given times, which keeps the situations that it got."""

    def __init__(self, decisions: dict[float, Decision]) -> None:
        self._decisions = decisions
        self.seen: list[Situation] = []

    def __call__(self, situation: Situation, settings: BalanceSettings) -> Decision:
        self.seen.append(situation)
        return self._decisions.pop(situation.at_s, Decision.nothing())
