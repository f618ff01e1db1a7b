"""The meter: how much work each client, and all clients together, may ask of an agent.

Owns the quotas and what clients are told about them. The unit is the work for one Hello, about 40 microseconds. A
message is charged to its client when it has been authenticated, and so is what it turned out to cost: a client that
asked for much waits until it has been paid for, and others do not wait with it. The scanner passes over the messages of
clients without a token, so that a flood costs the agent next to nothing.

Messages that are not authentic are charged to no client. They take a part of the quota of all clients, because each
must be read and its tag computed. With scheme 0 nothing is authenticated: the meter goes by the id in the message.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from shoal.channels.telemetry.scanner import Scanner
from shoal.channels.token_bucket import TokenBucket
from shoal.limits import Limits

REFILL_S: Final = 0.5
"""Tokens of clients are added in these intervals. A client that has none left is told to wait for longer."""

REFUSALS_MAX: Final = 1000
"""Clients that are told at once."""

RETRY_MS_MIN: Final = 1000
RETRY_MS_MAX: Final = 10_000
"""The time for which a client is asked to wait."""

DEBT_SHARE: Final = 0.1
"""A debt of this part of `control_at_once_max` is small: a client that asks for as much as it may is served."""

GREET_UNITS: Final = 9
"""Extra cost of a Greet: clients send few of them, so a large number is a flood."""

REJECTED_UNITS: Final = 0.25
"""What a message costs that is rejected by its tag."""

STREAMS_PER_UNIT: Final = 32
"""Streams listed in an Answer for the work of one Hello."""

ITEMS_PER_UNIT: Final = 8
"""Items of a Present that are handled with the work of one Hello."""

STEPS_PER_UNIT: Final = 20_000
"""Steps of matching a pattern that take as long as one Hello."""


class QuotaRefusal(NamedTuple):
    """A client whose message was dropped, the number of the message, and how long the client should wait."""

    client: int
    number: int
    retry_ms: int


class ControlMeter:
    """The quotas of one agent."""

    def __init__(self, limits: Limits, scanner: Scanner) -> None:
        self._scanner = scanner
        self._rows = scanner.meter
        self._at_once = limits.control_at_once_max
        self._per_s = limits.control_per_s_max
        self._lookups_at_once = limits.new_channels_at_once_max
        self._lookups_per_s = limits.new_channels_per_s_max
        self._rows["tokens"] = self._at_once
        self._rows["lookups"] = self._lookups_at_once
        self._refilled_at = 0.0
        self._total = TokenBucket(limits.control_total_at_once_max, limits.control_total_per_s_max, 0.0)
        self._readable = 0

    def begin_turn(self, now: float) -> None:
        """Tells the scanner how much it may return in this turn."""
        passed_s = now - self._refilled_at
        if passed_s >= REFILL_S and passed_s * self._per_s >= 1:
            self._refilled_at = now
            for column, per_s, at_once in (
                (self._rows["tokens"], self._per_s, self._at_once),
                (self._rows["lookups"], self._lookups_per_s, self._lookups_at_once),
            ):
                np.minimum(column + int(per_s * passed_s), at_once, out=column)
        self._readable = max(0, int(self._total.refill(now)))
        self._scanner.control_left = self._readable

    def end_turn(self) -> None:
        """The scanner has returned messages, or none."""
        self._total.tokens -= self._readable - self._scanner.control_left

    def rejected(self) -> None:
        """The last message that the scanner returned was rejected, and costs less."""
        self._total.tokens += 1 - REJECTED_UNITS

    def allows(self, client: int) -> bool:
        """Whether queued messages of a client may be handled: it has no large debt."""
        return bool(self._rows["tokens"][self._scanner.meter_row(client)] >= -DEBT_SHARE * self._at_once)

    def charge(self, client: int, units: int) -> None:
        """Charges a client for its work."""
        self._rows["tokens"][self._scanner.meter_row(client)] -= units

    def refuse(self, client: int, number: int) -> None:
        """A message of a client was dropped: it will be told."""
        row = self._scanner.meter_row(client)
        self._rows["client"][row], self._rows["number"][row] = client, number

    def take_refusals(self) -> list[QuotaRefusal]:
        """The clients whose messages were dropped since the last call, each once. Call it once a second."""
        rows = self._rows["client"].nonzero()[0][:REFUSALS_MAX]
        found = self._rows[rows]
        self._rows["client"] = 0
        return [
            QuotaRefusal(
                client, number, min(max(RETRY_MS_MIN, math.ceil(1000 * (1 - tokens) / self._per_s)), RETRY_MS_MAX)
            )
            for tokens, _, client, number in found.tolist()
        ]
