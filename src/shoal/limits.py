"""Every limit of Shoal, with its unit in its name and what happens when it is met.

Owns: the one record `Limits` and the check that its values go together. Never touches: what the limits are
for; cores are handed a `Limits` and keep to it. Users set single limits in the table `[limits]` of the
configuration file or by `SHOAL_LIMITS_<NAME>`.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from shoal.errors import ConfigError

KIB: Final = 1024
MIB: Final = 1024 * KIB

FRAMING_BYTES_MAX: Final = 4 * KIB
"""Room for what comes with attributes and payload in one delivery: RESP, envelope and channel name."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a bus, an agent or a core may hold, send and wait for.

    The record is immutable: `msgspec.structs.replace(limits, inbox_messages_max=100)` makes another one. Call
    `validate()` on a record that did not come from `shoal.config`.
    """

    # -- One message -----------------------------------------------------------------------------------------

    payload_bytes_max: int = 8 * MIB
    """Largest payload. A larger one: `publish` raises PayloadTooLargeError, nothing is sent."""

    channel_name_bytes_max: int = 512
    """Longest channel name in bytes (UTF-8). A longer one: publish and subscribe raise ChannelNameError."""

    attributes_bytes_max: int = 8 * KIB
    """Bytes of the encoded attributes of one message. More are refused with PublishError."""

    attributes_max: int = 64
    """Attributes of one message. More are refused with PublishError."""

    attribute_name_bytes_max: int = 255
    """Longest name of an attribute in bytes (UTF-8). A longer one is refused with EventError or FilterError."""

    # -- One filter ------------------------------------------------------------------------------------------

    filter_text_bytes_max: int = 64 * KIB
    """Longest text of a filter in bytes (UTF-8), as it is given and as it is printed. A longer one is refused with
    FilterTooLargeError."""

    filter_depth_max: int = 64
    """Parentheses and `not` inside one another. Deeper ones are refused with FilterTooLargeError."""

    filter_conjunctions_max: int = 64
    """Conjunctions that `or` and `not` turn a filter into. More are refused with FilterTooLargeError."""

    filter_predicates_max: int = 256
    """Predicates in all conjunctions of a filter. More are refused with FilterTooLargeError."""

    filter_work_max: int = 1_000_000
    """Values looked at while `or` and `not` are turned into conjunctions: about a second of work. What needs more is
    refused with FilterTooLargeError."""

    filter_in_values_max: int = 1024
    """Values of one `in` or `not in`. More are refused with FilterTooLargeError."""

    filter_string_bytes_max: int = 4 * KIB
    """Longest string in a filter in bytes (UTF-8), as it is given and as it is printed. A longer one is refused with
    FilterTooLargeError."""

    # -- Buffers of a bus ------------------------------------------------------------------------------------

    publish_buffer_messages_max: int = 8192
    """Messages accepted and not yet confirmed, per bus. When full, `publish` waits for room."""

    publish_buffer_bytes_max: int = 64 * MIB
    """The same buffer in bytes. When full, `publish` waits for room."""

    inbox_messages_max: int = 65536
    """Messages that wait for the application, per subscription. What does not fit counts as not received: it is asked
    for again once half of the inbox is free, and is a gap only if its publisher no longer has it."""

    inbox_bytes_max: int = 64 * MIB
    """Bytes of payload that wait for the application, per subscription; at the limit as `inbox_messages_max`."""

    subscriptions_max: int = 100_000
    """Subscriptions on one bus. One more: `subscribe` raises TooManySubscriptionsError."""

    # -- Healing of holes ------------------------------------------------------------------------------------

    resend_messages_max: int = 4096
    """Messages that a publisher keeps per channel for subscribers with a hole. The oldest is forgotten; a
    hole that reaches back further becomes a gap."""

    resend_bytes_max: int = 16 * MIB
    """The same window in bytes, per channel. The oldest are forgotten."""

    resend_total_bytes_max: int = 128 * MIB
    """Bytes of all resend windows of a bus. Above it, a channel whose message was just confirmed drops its window."""

    held_messages_max: int = 4096
    """Messages of one stream that wait behind a hole. More than these count as not received and are healed with it."""

    streams_per_channel_max: int = 10_000
    """Streams of one channel that a subscription remembers. Above it the most silent ones are forgotten; one that
    speaks again goes on from there."""

    heal_page_messages: int = 256
    """Messages asked for in one request for a hole. A larger hole is healed page by page."""

    heal_page_bytes: int = 1 << 20
    """Bytes that a publisher resends for one request. A page holds at least one message, however large."""

    heal_delay_s: float = 0.03
    """How long a hole may fill by itself (another server may be slower) before the publisher is asked."""

    heal_retry_s: float = 0.4
    """Wait for an answer to a request for a hole; it doubles with each repetition, up to 16 times."""

    gap_timeout_s: float = 15.0
    """How long a hole may stay open at all. Then it is reported as a gap and delivery goes on behind it."""

    publisher_idle_s: float = 300.0
    """How long a silent publisher is remembered by agents and subscribers. Then its windows are freed."""

    # -- Words, leases, handshake ----------------------------------------------------------------------------

    heartbeat_interval_s: float = 0.5
    """How often an agent gives its word on its server that it holds the lease: after this time at the latest."""

    server_lease_s: float = 3.0
    """For how long an agent may vouch for its server after it asked the coordinator, and for how long the ring waits
    before it is without a server whose agent is silent."""

    clock_drift_max: float = 0.01
    """How much faster or slower one clock may run than another (a ratio). Leases are kept shorter, and waited
    for longer, by this much."""

    beacon_delay_s: float = 0.2
    """How long after the last message of a burst the publisher says what its last sequence number was."""

    beacon_delay_s_max: float = 1.0
    """The same for a stream that speaks at a steady pace: its next message tells as much, so it waits for two paces,
    but no longer than this."""

    hello_retry_s: float = 0.5
    """Wait for an agent's answer; it doubles with each repetition, up to 16 times."""

    resync_s: float = 1.0
    """How long a restarted agent gathers answers before its register counts as complete."""

    # -- Moves -----------------------------------------------------------------------------------------------

    prepare_timeout_s: float = 10.0
    """How long a move waits for the agents concerned to know of it. Then it is given up, and nothing has changed."""

    widen_timeout_s: float = 2.0
    """How long a move waits for subscribers to follow. Then agents forward to those that have not."""

    notice_retry_s: float = 1.0
    """After how long an agent tells a client again of an entry that it does not seem to know."""

    forward_buffer_bytes_max: int = 16 * MIB
    """What an agent keeps for one other server that cannot be reached. Beyond it the oldest is dropped, and
    subscribers ask its publishers."""

    # -- Recorded channels -----------------------------------------------------------------------------------

    recorded_entries_max: int = 1_000_000
    """Entries of one channel's record on one server. Beyond it the oldest are dropped; readers see that they are."""

    recorded_bytes_max: int = 256 * MIB
    """The same in bytes, reckoned by the mean size of an entry. Beyond it the oldest are dropped."""

    # -- Connections and waits -------------------------------------------------------------------------------

    connect_timeout_s: float = 5.0
    """How long one attempt to connect may take, log-in included. Then it counts as failed."""

    reconnect_delay_s_min: float = 0.05
    """Wait before the first attempt to connect again; it doubles with each failure."""

    reconnect_delay_s_max: float = 2.0
    """Longest wait between two attempts to connect again."""

    subscribe_timeout_s: float = 30.0
    """How long `subscribe` waits to be in force. Then it raises SubscribeTimeoutError."""

    linger_s: float = 5.0
    """How long a subscription stays at the old server after its channel has moved, and how long at most a bus that saw
    trouble stays to answer subscribers before it closes."""

    drain_timeout_s: float = 30.0
    """How long `drain` waits for confirmations. Then it raises NotConfirmedError."""

    command_reply_bytes_max: int = 64 * MIB
    """Largest single reply or delivery read from a server. A larger one is a ProtocolError of the peer, and
    the connection is closed and opened anew."""

    read_slice_bytes: int = 16 * KIB
    """How much is fed to the RESP parser at a time: it is slow on large feeds."""

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be, or if two of them cannot be together."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"limits.{name} is {value!r}", do="give a number above 0")
        if self.clock_drift_max >= 0.5:
            raise ConfigError(
                f"limits.clock_drift_max is {self.clock_drift_max!r}",
                do="give a ratio below 0.5, for example 0.01",
            )
        delivery_bytes = self.payload_bytes_max + self.attributes_bytes_max + FRAMING_BYTES_MAX
        if delivery_bytes > self.command_reply_bytes_max:
            raise ConfigError(
                f"one delivery may have {delivery_bytes} bytes (payload, attributes, framing), "
                f"but limits.command_reply_bytes_max is {self.command_reply_bytes_max}",
                do="lower payload_bytes_max or raise command_reply_bytes_max",
            )
        for rule in _RULES:
            rule.check(self)


class _AtMost(msgspec.Struct, frozen=True):
    """One rule between limits: `small` (times `factor`) must not be above `large`, because of `reason`."""

    small: str
    large: str
    reason: str
    factor: float = 1

    def check(self, limits: Limits) -> None:
        """Raise ConfigError with both names and values if the rule does not hold."""
        small, large = getattr(limits, self.small), getattr(limits, self.large)
        if small * self.factor <= large:
            return
        times = "" if self.factor == 1 else f"{self.factor:g} times "
        raise ConfigError(
            f"{times}limits.{self.small} ({small}) is above limits.{self.large} ({large}), but {self.reason}",
            do=f"lower {self.small} or raise {self.large}",
        )


_RULES: Final = (
    _AtMost("payload_bytes_max", "publish_buffer_bytes_max", "the buffer must take the largest message"),
    _AtMost("payload_bytes_max", "inbox_bytes_max", "an inbox must take the largest message"),
    _AtMost("payload_bytes_max", "resend_bytes_max", "a resend window must take the largest message"),
    _AtMost("resend_bytes_max", "resend_total_bytes_max", "one window cannot be larger than all of them"),
    _AtMost("heal_page_messages", "resend_messages_max", "no publisher keeps more than its window"),
    _AtMost("heartbeat_interval_s", "server_lease_s", "a lease must survive one lost word", factor=2),
    _AtMost("heal_delay_s", "gap_timeout_s", "a hole must be asked for before it is given up"),
    _AtMost("heal_retry_s", "gap_timeout_s", "a hole must be asked for twice before it is given up", factor=2),
    _AtMost("beacon_delay_s", "beacon_delay_s_max", "the first wait is the shortest"),
    _AtMost("beacon_delay_s_max", "gap_timeout_s", "the end of a burst must be known before it is given up"),
    _AtMost("reconnect_delay_s_min", "reconnect_delay_s_max", "the first wait is the shortest"),
    _AtMost("hello_retry_s", "subscribe_timeout_s", "a hello must be sent twice before it is given up", factor=2),
)

DEFAULT_LIMITS: Final = Limits()
