"""The queues of servers: what a load does to them in one step, in columns over servers and elements.

Owns the model of a server: two queues in a row, the core that handles messages and the link that sends them. Each has
the mean wait of a queue with random arrivals (Pollaczek-Khinchine; a publication is one job, as large as its fan-out;
one publisher alone is regular, and waits only for others). Load beyond the limit becomes a backlog that stays until
there is capacity for it. A server whose output buffers overflow fails, and delivers nothing until it has recovered and
can carry its load. A connection with too many messages fills its own buffer; messages that do not fit are undelivered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.balance.columns import Bools, Floats
from shoal.flow.model import ServerModel
from shoal.flow.spread import Elements
from shoal.flow.traffic import Traffic

MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class QueueStep:
    """The result of one step, by server; delays by element."""

    bytes_out: Floats
    """Offered traffic, a second."""
    cpu: Floats
    """Cores needed."""
    delay_s: Floats
    """By element: from a publication to its delivery, without the network."""
    failed: Bools
    undelivered: float
    """Messages a second that were not delivered."""


class ServerQueues:
    """The queues of all servers between steps."""

    def __init__(self, model: ServerModel, servers: int) -> None:
        self.model = model
        self._backlog_bytes = np.zeros(servers)
        self._backlog_cores = np.zeros(servers)
        self._recovers_at = np.full(servers, -np.inf)
        self._waiting = np.zeros(0)

    def grow(self, servers: int) -> None:
        """Makes room for a number of servers."""
        more = servers - len(self._backlog_bytes)
        self._backlog_bytes = np.append(self._backlog_bytes, np.zeros(more))
        self._backlog_cores = np.append(self._backlog_cores, np.zeros(more))
        self._recovers_at = np.append(self._recovers_at, np.full(more, -np.inf))

    def moved(self) -> None:
        """Empties the buffers of connections: channels have moved, so clients have new connections."""
        self._waiting = np.zeros(0)

    def step(
        self, now_s: float, step_s: float, traffic: Traffic, elements: Elements, more: tuple[Floats, Floats] | None
    ) -> QueueStep:
        """One step. `more` is the extra load of each server: bytes a second, and cores."""
        model, servers = self.model, len(self._backlog_bytes)
        received = traffic.publications[elements.rows] * elements.receives
        fan = traffic.subscribers[elements.rows] * elements.fans
        sent = received * fan
        message_bytes = traffic.bytes_of(elements.rows)
        fan_bytes = fan * message_bytes
        link_s = fan_bytes / model.limit_bytes_per_s
        core_s = (model.publication_cpu_s + fan * model.delivery_cpu_s) / model.cpu_capacity
        bytes_out = elements.loads(received * fan_bytes, servers)
        cores = elements.loads(received * core_s, servers) * model.cpu_capacity
        if more is not None:
            bytes_out, cores = bytes_out + more[0], cores + more[1]
        publishers = elements.loads(traffic.publishers[elements.rows] * elements.receives, servers)
        received_of_others = received * (1 - 1 / np.maximum(publishers, 1.0))[elements.servers]
        link_wait = self._wait(
            elements.loads(received_of_others * link_s * link_s, servers), bytes_out / model.limit_bytes_per_s
        )
        core_wait = self._wait(
            elements.loads(received_of_others * core_s * core_s, servers), cores / model.cpu_capacity
        )
        link_wait += self._carry(self._backlog_bytes, bytes_out, model.limit_bytes_per_s, step_s)
        core_wait += self._carry(self._backlog_cores, cores, model.cpu_capacity, step_s)
        failed = self._fail(now_s, bytes_out, cores)
        # On average a subscriber is in the middle of the fan-out.
        delay = (link_wait + core_wait)[elements.servers] + (link_s + core_s) / 2
        cut = 0.0
        if received.size and received.max() > model.connection_messages_per_s:
            waits, cut = self._connections(received, fan, message_bytes, step_s)
            delay += waits
        lost = float(sent[failed[elements.servers]].sum()) + cut if failed.any() else cut
        return QueueStep(bytes_out, cores, delay, failed, lost)

    def _wait(self, second_moment: Floats, utilisation: Floats) -> Floats:
        """Mean wait in a queue with random arrivals."""
        wait: Floats = second_moment / (2 * (1 - np.minimum(utilisation, self.model.utilisation_max)))
        return wait

    @staticmethod
    def _carry(backlog: Floats, given: Floats, limit: float, step_s: float) -> Floats:
        """Adds the excess of the step to a backlog; returns the mean wait that it causes."""
        before = backlog.copy()
        backlog += (given - limit) * step_s
        np.maximum(backlog, 0.0, out=backlog)
        wait: Floats = (before + backlog) / (2 * limit)
        return wait

    def _fail(self, now_s: float, bytes_out: Floats, cores: Floats) -> Bools:
        """Which servers deliver nothing in this step: their buffers overflowed, or they have not recovered."""
        model = self.model
        # The backlog of the core, in bytes that the link could send in the same time.
        waiting = self._backlog_bytes + self._backlog_cores / model.cpu_capacity * model.limit_bytes_per_s
        overflow = waiting > model.output_buffer_bytes
        too_much = (bytes_out > model.limit_bytes_per_s) | (cores > model.cpu_capacity)
        still = (now_s < self._recovers_at) | (np.isfinite(self._recovers_at) & too_much)
        failed: Bools = overflow | still
        self._recovers_at[overflow] = now_s + model.recovery_s
        self._recovers_at[~failed] = -np.inf
        self._backlog_bytes[failed] = self._backlog_cores[failed] = 0.0
        return failed

    def _connections(
        self, received: Floats, fan: Floats, message_bytes: float | Floats, step_s: float
    ) -> tuple[Floats, float]:
        """Connections with too many messages: how long messages wait, and how many are not delivered."""
        limit = self.model.connection_messages_per_s
        if len(self._waiting) != len(received):
            self._waiting = np.zeros(len(received))
        before = self._waiting
        after = np.maximum(before + (received - limit) * step_s, 0.0)
        room = self.model.connection_buffer_bytes / message_bytes
        cut = float(((after - room).clip(min=0.0) * fan).sum()) / step_s
        self._waiting = np.minimum(after, room)
        return (before + self._waiting) / (2 * limit), cut
