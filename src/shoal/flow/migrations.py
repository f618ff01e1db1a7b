"""Migrations: channels that move to the servers of the new plan, and the load that this causes.

Owns both placements (decided, and in force), the moves between them, and the extra load of moving channels. Servers are
named by their row in the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.balance.columns import Bools, Floats, Hosts32, Ints, Placements
from shoal.balance.decision import changed
from shoal.flow.model import MoveModel, ServerModel
from shoal.flow.traffic import Traffic

SERVER_BITS: Final = 32
SIDES: Final = 2
"""Half of the control messages come from the old servers, half from the new ones."""


@dataclass(frozen=True, slots=True)
class _Migration:
    """Channels that will be on new servers at `at_s`."""

    at_s: int
    rows: Ints
    placements: Placements


@dataclass(frozen=True, slots=True)
class _Forwarding:
    """Extra load until a moment: channels, and the servers that they leave or enter."""

    until_s: int
    rows: Ints
    servers: Hosts32
    part: Floats
    """The share of its channel that each server has, before or after."""


class Migrations:
    """Channels between servers."""

    def __init__(self, model: MoveModel, placements: Placements) -> None:
        self._model = model
        self._under_way: list[_Migration] = []
        self._forwarding: list[_Forwarding] = []
        self.decided = placements
        """Placements in the plan."""
        self.in_force = placements
        """Placements where channels are now."""

    def decide(self, rows: Ints, placements: Placements, now_s: int) -> None:
        """Begins the migration of some channels to new placements."""
        self.decided = changed(self.decided, rows, placements)
        self._under_way.append(_Migration(now_s + self._model.delay_s, rows, placements))

    def advance(self, now_s: int) -> int:
        """Completes the migrations that are due; returns the number of their channels."""
        self._forwarding = [forwarding for forwarding in self._forwarding if forwarding.until_s > now_s]
        due = [move for move in self._under_way if move.at_s <= now_s]
        self._under_way = [move for move in self._under_way if move.at_s > now_s]
        for move in due:
            before = self.in_force
            self.in_force = changed(before, move.rows, move.placements)
            self._forward(move.rows, before, self.in_force, now_s)
        return sum(len(move.rows) for move in due)

    @property
    def under_way(self) -> bool:
        """Whether a plan is being carried out. There is no new decision before it has ended."""
        return bool(self._under_way or self._forwarding)

    def extra(self, traffic: Traffic, server: ServerModel, servers: int) -> tuple[Floats, Floats] | None:
        """The extra load of each server: bytes a second, and cores; None if there is none.

        A share of the channels' own load is forwarded, and their clients get control messages.
        """
        if not self._forwarding:
            return None
        rows = np.concatenate([forwarding.rows for forwarding in self._forwarding])
        at = np.concatenate([forwarding.servers for forwarding in self._forwarding])
        part = np.concatenate([forwarding.part for forwarding in self._forwarding])
        clients = np.maximum(traffic.publishers[rows], traffic.subscribers[rows])
        each = self._model.control_messages_per_client / SIDES / self._model.forward_s
        publications = traffic.publications[rows] * self._model.forward_share
        messages = (publications * traffic.subscribers[rows] + clients * each) * part
        cores = messages * server.delivery_cpu_s + publications * part * server.publication_cpu_s
        return (
            np.bincount(at, messages * traffic.bytes_of(rows), servers).astype(np.float64, copy=False),
            np.bincount(at, cores, servers).astype(np.float64, copy=False),
        )

    def used(self, servers: int) -> Bools:
        """Which servers carry a channel, or will."""
        used = np.zeros(servers, np.bool_)
        used[self.decided.servers] = True
        used[self.in_force.servers] = True
        for forwarding in self._forwarding:
            used[forwarding.servers] = True
        return used

    def _forward(self, rows: Ints, before: Placements, after: Placements, now_s: int) -> None:
        """Notes the servers that the channels leave or enter. Servers that keep a channel have no extra load."""
        if not self._model.forward_s:
            return
        places = [_elements(placements, rows) for placements in (before, after)]
        keys = [element_rows << SERVER_BITS | servers for element_rows, servers, _ in places]
        for index, (element_rows, servers, part) in enumerate(places):
            changes = ~np.isin(keys[index], keys[1 - index])
            until_s = now_s + self._model.forward_s
            self._forwarding.append(_Forwarding(until_s, element_rows[changes], servers[changes], part[changes]))


def _elements(placements: Placements, rows: Ints) -> tuple[Ints, Hosts32, Floats]:
    """Row, server and share for each server of some channels."""
    degree = placements.degree[rows]
    at = np.repeat(placements.offsets[rows] - np.cumsum(degree) + degree, degree) + np.arange(degree.sum())
    return np.repeat(rows, degree), placements.servers[at], np.repeat(1.0 / degree, degree)
