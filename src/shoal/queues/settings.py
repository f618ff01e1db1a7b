"""The settings of a consumer, and the step of a queue's clock.

Owns both. The limits of a queue, which the store enforces, are in `shoal.plan.queue_settings`: they are part of its
plan entry. Limits of a client (batches, polls, timeouts) are in `shoal.limits`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.errors import ConfigError

CLOCK_STEP_S: Final = 1.0
"""The queue's clock advances by at most this much in a call (`CLOCK_STEP_MS_MAX` in the scripts)."""

LEASE_STEP_S: Final = 0.5
"""A turn renews a lease that is at least this old (`LEASE_STEP_MS` in the scripts); a younger one stays as it is."""

IN_FLIGHT_MAX: Final = 4096
"""Keys that one consumer can hold, and messages that one turn can end (`KEYS_HELD_MAX`, `DONE_MAX` in the scripts)."""

NUMBER_MAX: Final = 1_000_000_000
"""The largest number of a setting: the load of a consumer, which is a product of some, must stay a short number."""


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a consumer takes, shares and gives back keys."""

    max_in_flight: int = 64
    """Messages that a consumer holds: handed to the application, and fetched for it."""
    key_messages: int = 32
    """Messages of one key that are fetched at once."""
    partition_weight: float = 4.0
    """How many messages a key weighs in the load of a consumer."""
    quantum_messages: int = 100
    """After this many messages in a row a key goes back if other keys wait."""
    slow_after_s: float = 1.0
    """A message that takes longer counts as a delay."""
    slow_delays: int = 3
    """After this many delays within `slow_window_s`, a consumer gives its keys to consumers that wait for work."""
    slow_window_s: float = 60.0
    """See `slow_delays`."""
    slow_rest_s: float = 5.0
    """How long it then takes no more keys."""
    hot_messages: int = 1000
    """A key with more waiting messages is hot: its owner gives its other keys to consumers that wait for work."""

    def validate(self) -> None:
        """Raises ConfigError if a value is impossible."""
        for name in ("max_in_flight", "key_messages", "quantum_messages", "slow_delays", "hot_messages"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= NUMBER_MAX:
                raise ConfigError(f"{name} is {value!r}", do=f"give a whole number from 1 to {NUMBER_MAX}")
        if self.max_in_flight > IN_FLIGHT_MAX:
            raise ConfigError(
                f"max_in_flight is {self.max_in_flight}", do=f"give at most {IN_FLIGHT_MAX}, or start more consumers"
            )
        for name in ("slow_after_s", "slow_window_s", "slow_rest_s", "partition_weight"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= NUMBER_MAX:  # also false for NaN
                raise ConfigError(f"{name} is {value!r}", do=f"give a number from 0 to {NUMBER_MAX}")
