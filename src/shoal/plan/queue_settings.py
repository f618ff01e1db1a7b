"""The limits of one queue, which its stores enforce.

Owns the record. It is part of the queue's plan entry and is stored with the queue, so all producers and consumers meet
the same limits.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from shoal.errors import ConfigError
from shoal.limits import MIB

SHARDS_MAX: Final = 256
NUMBER_MAX: Final = 1 << 53
"""The largest number that the scripts count exactly."""
SECONDS_MAX: Final = 366 * 86400.0
LEASE_S_MIN: Final = 4.0
"""The shortest lease: two jumps of the store's clock must not end the lease of a consumer that polls."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue holds, remembers and allows."""

    shards: int = 16
    """Parts of the queue that can be placed on different stores. It cannot be changed later."""
    messages_max: int = 1000
    """Messages that the queue holds: waiting, delayed and in flight. Above it, `put` raises QueueFullError or waits."""
    bytes_max: int = 256 * MIB
    """The same in bytes."""
    keys_max: int = 1_000_000
    """Keys with messages. Above it, `put` of another key raises TooManyKeysError. Delayed messages are not counted."""
    attempts_max: int = 3
    """How often a message is started. After the last attempt it becomes a dead letter."""
    dedupe_s: float = 300.0
    """How long a message id is remembered, at least; at most twice as long."""
    dedupe_ids_max: int = 100_000
    """Message ids that are remembered. Above it, `put` of a message with an id raises TooManyIdsError."""
    dead_max: int = 10_000
    """Dead letters. Above it, a key whose head fails for the last time is halted."""
    lease_s: float = 10.0
    """How long a consumer keeps its keys without a sign of life."""
    on_dead: Literal["continue", "halt"] = "continue"
    """What a key does when its head becomes a dead letter: continue with the next message, or wait for an operator."""

    def validate(self) -> None:
        """Raises ConfigError if a value is impossible."""
        _check_whole("shards", self.shards, SHARDS_MAX)
        for name in ("messages_max", "bytes_max", "keys_max", "attempts_max", "dedupe_ids_max", "dead_max"):
            _check_whole(name, getattr(self, name), NUMBER_MAX)
        for name, least in (("lease_s", LEASE_S_MIN), ("dedupe_s", 1.0)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= SECONDS_MAX:  # also false for NaN
                raise ConfigError(f"{name} is {value!r}", do=f"give seconds from {least:g} to {SECONDS_MAX:.0f}")
        if self.on_dead not in ("continue", "halt"):
            raise ConfigError(f"on_dead is {self.on_dead!r}", do='give "continue" or "halt"')

    def words(self, version: int, paused: bool = False) -> list[int]:
        """The numbers of the queue's `conf` key, in the order of the scripts."""
        return [
            version,
            self.shards,
            self.messages_max,
            self.bytes_max,
            self.keys_max,
            self.attempts_max,
            round(self.dedupe_s * 1000),
            self.dedupe_ids_max,
            self.dead_max,
            round(self.lease_s * 1000),
            int(self.on_dead == "halt"),
            int(paused),
        ]

    @classmethod
    def from_words(cls, words: list[int]) -> QueueSettings:
        """The settings in a queue's `conf` key."""
        return cls(
            shards=words[1],
            messages_max=words[2],
            bytes_max=words[3],
            keys_max=words[4],
            attempts_max=words[5],
            dedupe_s=words[6] / 1000,
            dedupe_ids_max=words[7],
            dead_max=words[8],
            lease_s=words[9] / 1000,
            on_dead="halt" if words[10] else "continue",
        )


def check_settings(settings: QueueSettings | None) -> QueueSettings:
    """The settings that a caller gave, or the default ones; ConfigError if they are impossible."""
    if settings is None:
        return QueueSettings()
    if not isinstance(settings, QueueSettings):
        raise ConfigError(f"the settings of a queue are {settings!r}", do="give shoal.QueueSettings(...)")
    settings.validate()
    return settings


def _check_whole(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r}", do=f"give a whole number from 1 to {most}")
