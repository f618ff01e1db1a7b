"""The pool: servers that are requested, join, are drained and leave.

Owns which servers there are, and since when. A server keeps its row after it has left, so that columns only grow; the
situation that a policy gets contains present servers only.
"""

from __future__ import annotations

import itertools

import numpy as np

from shoal.balance.columns import NEVER, Bools, Floats, Hosts, Hosts32
from shoal.flow.model import PoolModel, ServerModel


class ServerPool:
    """All servers of a run, by row."""

    def __init__(self, model: PoolModel, server: ServerModel) -> None:
        self.model = model
        self._server = server
        self._numbers = itertools.count(1)
        self._starting: list[int] = []
        self.ids: list[str] = []
        self.joined_at: list[float] = []
        self.present: Bools = np.zeros(0, np.bool_)
        self.draining: Bools = np.zeros(0, np.bool_)
        for _ in range(model.servers_first):
            self._add(NEVER)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def adding(self) -> int:
        """Servers that were requested and have not joined yet."""
        return len(self._starting)

    @property
    def rows(self) -> Hosts32:
        """The rows of the present servers."""
        return np.flatnonzero(self.present).astype(np.int32)

    def request(self, servers: int, now_s: int) -> None:
        """Requests more servers, up to the maximum of the pool."""
        room = self.model.servers_max - int(self.present.sum()) - self.adding
        self._starting += [now_s + self.model.start_s] * max(0, min(servers, room))

    def join(self, now_s: int) -> int:
        """Adds the servers that have started by now; returns how many."""
        ready = [at for at in self._starting if at <= now_s]
        self._starting = [at for at in self._starting if at > now_s]
        for _ in ready:
            self._add(float(now_s))
        return len(ready)

    def drain(self, rows: Hosts32) -> None:
        """Drains servers: no channel is placed there any more."""
        self.draining[rows] = True

    def keep(self, rows: Hosts32) -> None:
        """Ends the draining of servers."""
        self.draining[rows] = False

    def leave(self, used: Bools) -> Hosts32:
        """Removes drained servers that carry nothing any more; returns their rows."""
        empty = np.flatnonzero(self.present & self.draining & ~used).astype(np.int32)
        spare = int(self.present.sum()) - self.model.servers_min
        removed = empty[: max(0, spare)]
        self.present[removed] = False
        return removed

    def hosts(self, bytes_out: Floats, cpu: Floats) -> Hosts:
        """The table of hosts for a policy, with the load that they carried (columns over all rows)."""
        rows = self.rows
        count = len(rows)
        return Hosts(
            ids=tuple(self.ids[row] for row in rows),
            capacity=np.full(count, self._server.capacity_bytes_per_s),
            cpu_capacity=np.full(count, self._server.cpu_capacity),
            bytes_out=bytes_out[rows],
            cpu=cpu[rows],
            cost=np.full(count, self.model.server_hour_cost),
            takes=~self.draining[rows],
            heard=np.ones(count, np.bool_),
            joined_at=np.array([self.joined_at[row] for row in rows], np.float64),
        )

    def _add(self, joined_at: float) -> None:
        self.ids.append(f"s{next(self._numbers)}")
        self.joined_at.append(joined_at)
        self.present = np.append(self.present, True)
        self.draining = np.append(self.draining, False)
