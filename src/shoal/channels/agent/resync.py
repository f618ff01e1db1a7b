"""The resync: which clients of the server have sent their Present.

Owns the count. An agent starts a resync when an incarnation begins, and again while clients have not answered.
"""

from __future__ import annotations

from typing import Final

from shoal.rules import ALL_RULES, Rules, rule

WHOLE_RESYNC: Final = rule("whole_resync", "A resync is complete when every client of the server has answered.")

CLIENTS_MAX: Final = 100_000
"""Clients that are counted. If a server has more, its resyncs are never complete."""


class ResyncCount:
    """The resyncs of one agent, one at a time.

    Every client subscribes to the heartbeat channel, so its subscribers are the clients to wait for. A client that
    connected between the request and the count has not heard the request, but has sent a Greet.
    """

    def __init__(self, rules: Rules = ALL_RULES) -> None:
        self.number = 0
        self._early = 0 if WHOLE_RESYNC in rules else 1
        self._awaited: int | None = None
        self._known: set[int] = set()
        self._greeted: set[int] = set()
        self.overflowed = False
        """Whether the register had no room for a subscription that was named: then it is never complete."""

    def begin(self) -> int:
        """Starts a new resync; returns its number."""
        self.number += 1
        self._awaited = None
        self._known.clear()
        self._greeted.clear()
        self.overflowed = False
        return self.number

    def count(self, clients: int) -> None:
        """The number of clients on the server a moment ago."""
        self._awaited = clients
        self._known |= self._greeted

    def greeted(self, client: int) -> None:
        """A client has connected; if it came before the count, the count includes it."""
        if self._awaited is None and len(self._greeted) < CLIENTS_MAX:
            self._greeted.add(client)

    def present(self, client: int, number: int) -> None:
        """A client has sent its Present; an answer to an earlier resync does not count."""
        if number == self.number and len(self._known) < CLIENTS_MAX:
            self._known.add(client)

    @property
    def complete(self) -> bool:
        """Whether all clients have answered."""
        return self._awaited is not None and len(self._known) >= self._awaited - self._early and not self.overflowed
