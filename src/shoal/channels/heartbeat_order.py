"""The order of an agent's heartbeats: which of them are news.

Owns the rule against repeated heartbeats, for clients and for other agents. Anyone who may publish on a server can
repeat what an agent has signed, for example the heartbeats of a server that has died since. So a heartbeat counts only
if it comes from the process that has answered the receiver's own Greet, and after the one that this answer named.
"""

from __future__ import annotations

import enum
from typing import Final

from shoal.rules import Rules, rule

FRESH_HEARTBEATS: Final = rule(
    "fresh_heartbeats", "A heartbeat counts only if its agent was greeted on this connection and its number grows."
)


class Age(enum.Enum):
    """What a heartbeat is worth."""

    NEWS = "news"
    OLD = "old"
    STRANGE = "strange"
    """Of a process that was not greeted on this connection: it may be new, so it must be greeted."""


class HeartbeatOrder:
    """The heartbeats on one connection."""

    __slots__ = ("_instance", "_number", "_rules")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._instance: int | None = None
        self._number = 0

    @property
    def number(self) -> int:
        """The number of the last heartbeat that counted."""
        return self._number

    def welcomed(self, instance: int, number: int) -> None:
        """An agent has answered a Greet on this connection; `number` is that of its last heartbeat."""
        if instance != self._instance:
            self._instance, self._number = instance, number

    def judge(self, instance: int, number: int) -> Age:
        """Takes an authentic heartbeat."""
        if FRESH_HEARTBEATS not in self._rules:
            return Age.NEWS
        if instance != self._instance:
            return Age.STRANGE
        if number <= self._number:
            return Age.OLD
        self._number = number
        return Age.NEWS
