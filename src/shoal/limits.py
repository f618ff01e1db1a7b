"""Every limit of Shoal, with its unit in its name and the behaviour at the limit.

Owns the record `Limits` and the check that its values are consistent. It never applies a limit; the cores receive a
`Limits` and keep to it. Users set limits in the table `[limits]` of the configuration file or with
`SHOAL_LIMITS_<NAME>`. `PUBLIC` names the few that users may need to change.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from shoal.errors import ConfigError

KIB: Final = 1024
MIB: Final = 1024 * KIB

NAME_BYTES_MAX: Final = 512
"""Longest name of a channel or pattern in a control message. Agents drop messages with longer ones."""

QUEUE_BATCH_MESSAGES_MAX: Final = 1024
"""Messages in one request that a store accepts (`BATCH_MAX` in the scripts of queues)."""

FRAMING_BYTES_MAX: Final = 4 * KIB
"""Room for the rest of a delivery besides attributes and payload: RESP, envelope and channel name."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on what a bus, an agent or a core holds, sends and waits for.

    The record is immutable; `msgspec.structs.replace(limits, inbox_messages_max=100)` returns a changed copy. Call
    `validate()` on a record that did not come from `shoal.config`.
    """

    # -- One message -----------------------------------------------------------------------------------------

    payload_bytes_max: int = 8 * MIB
    """Largest payload. For a larger one, `publish` raises PayloadTooLargeError and sends nothing."""

    channel_name_bytes_max: int = NAME_BYTES_MAX
    """Longest channel name or pattern in bytes (UTF-8), at most 512. For a longer one, `publish` and `subscribe` raise
    ChannelNameError.
    """

    pattern_stars_max: int = 16
    """Number of `*` in a pattern. For more, `subscribe` raises ChannelNameError, and agents refuse the subscription.
    """

    attributes_bytes_max: int = 8 * KIB
    """Encoded attributes of one message. Larger ones are rejected with PublishError."""

    attributes_max: int = 64
    """Number of attributes of one message. More are rejected with PublishError."""

    array_combinations_max: int = 1024
    """Combinations of one element from each array of an event: the product of their lengths. More are rejected with
    EventError."""

    attribute_name_bytes_max: int = 255
    """Longest attribute name in bytes (UTF-8). Longer ones are rejected with EventError or FilterError."""

    # -- One filter ------------------------------------------------------------------------------------------

    filter_text_bytes_max: int = 64 * KIB
    """Longest filter text in bytes (UTF-8), as given and as printed. Longer ones are rejected with
    FilterTooLargeError.
    """

    filter_depth_max: int = 64
    """Nesting depth of parentheses and `not`. Deeper filters are rejected with FilterTooLargeError."""

    filter_conjunctions_max: int = 64
    """Conjunctions of a filter after expanding `or` and `not`. More are rejected with FilterTooLargeError."""

    filter_predicates_max: int = 256
    """Predicates in all conjunctions of a filter. More are rejected with FilterTooLargeError."""

    filter_work_max: int = 1_000_000
    """Values inspected while expanding `or` and `not`: about one second of work. More is rejected with
    FilterTooLargeError.
    """

    filter_in_values_max: int = 1024
    """Values of one `in` or `not in`. More are rejected with FilterTooLargeError."""

    filter_string_bytes_max: int = 4 * KIB
    """Longest string in a filter in bytes (UTF-8), as given and as printed. Longer ones are rejected with
    FilterTooLargeError.
    """

    # -- Buffers of a bus ------------------------------------------------------------------------------------

    publish_buffer_messages_max: int = 8192
    """Messages accepted and not yet confirmed, per bus. When full, `publish` waits."""

    publish_buffer_bytes_max: int = 64 * MIB
    """The same buffer in bytes. When full, `publish` waits."""

    inbox_messages_max: int = 65536
    """Messages waiting for the application, per subscription. Messages that do not fit are requested again once half of
    the inbox is free. They become a gap only if their publisher no longer has them.
    """

    inbox_bytes_max: int = 64 * MIB
    """Payload bytes waiting for the application, per subscription. At the limit: as `inbox_messages_max`."""

    subscriptions_max: int = 100_000
    """Subscriptions of one bus. Above it, `subscribe` raises TooManySubscriptionsError."""

    # -- Resending lost messages -----------------------------------------------------------------------------

    resend_messages_max: int = 4096
    """Messages that a publisher keeps per channel to resend them (its resend window). The oldest are dropped; a
    subscriber that missed older messages gets a gap.
    """

    resend_bytes_max: int = 16 * MIB
    """The resend window in bytes, per channel. The oldest are dropped."""

    resend_total_bytes_max: int = 128 * MIB
    """Bytes of all resend windows of a bus. Above it, a channel drops its window as soon as its messages are
    confirmed.
    """

    held_messages_max: int = 4096
    """Messages of one stream held back while earlier ones are missing. Further messages count as missing too and are
    requested later.
    """

    streams_per_channel_max: int = 10_000
    """Streams of one channel that a subscription remembers. Above it, those idle for longest are dropped; a dropped
    stream that continues is accepted from there.
    """

    heal_page_messages: int = 256
    """Missing messages requested at once. Larger ranges are requested page by page."""

    heal_page_bytes: int = 1 << 20
    """Bytes that a publisher resends per request. A page has at least one message, of any size."""

    heal_bytes_per_s_max: int = 8 * MIB
    """Bytes that a publisher resends to one client in a second. Above it, requests are not answered; the client repeats
    them.
    """

    heal_total_bytes_per_s_max: int = 32 * MIB
    """The same for all clients together."""

    heal_delay_s: float = 0.03
    """How long to wait for missing messages (another server may be slower) before the publisher is asked."""

    heal_retry_s: float = 0.4
    """Wait for the reply to a resend request; it doubles with each retry, up to 16 times this value."""

    gap_timeout_s: float = 15.0
    """How long messages may be missing. After that they are reported as a gap and delivery continues."""

    publisher_idle_s: float = 300.0
    """How long agents and subscribers remember an idle publisher. After that its windows are freed."""

    # -- Heartbeats, leases, handshake -----------------------------------------------------------------------

    heartbeat_interval_s: float = 0.5
    """Longest time between two heartbeats with which an agent extends the lease for its server."""

    server_lease_s: float = 3.0
    """Lease of a server: how long an agent may use it after it asked the coordinator, and how long the ring waits
    before it removes a server whose agent is silent.
    """

    clock_drift_max: float = 0.01
    """Largest difference in clock speed (a ratio). Leases are kept shorter, and waited for longer, by this much."""

    beacon_delay_s: float = 0.2
    """Time after the last message of a burst until the publisher sends its last sequence number (a beacon)."""

    beacon_delay_s_max: float = 1.0
    """Longest beacon delay for a stream with a steady pace, which waits for two intervals because the next message
    carries the same information.
    """

    hello_retry_s: float = 0.5
    """Wait for an agent's reply to a hello; it doubles with each retry, up to 16 times this value."""

    resync_s: float = 1.0
    """How long a restarted agent collects answers (resync) before its register counts as complete."""

    enrolments_per_s_max: int = 500
    """New clients to which an agent gives an id and a key in a second. Further ones get no answer and ask again, at
    another server.
    """

    secret_overlap_s: float = 86_400.0
    """How long the older generation of the agents' secret stays in force after a rotation (`shoal users rotate
    agents-secret`). A client that is away for longer continues under another id.
    """

    # -- What clients may ask of an agent --------------------------------------------------------------------

    control_at_once_max: int = 50_000
    """Control messages (hellos, greetings and so on) of one client that an agent handles at once. Messages that are
    expensive count as several. Above it they are dropped, and the client is told to wait.
    """

    control_per_s_max: int = 5_000
    """The same per second, on average."""

    control_total_at_once_max: int = 200_000
    """Control messages of all clients that an agent handles at once."""

    control_total_per_s_max: int = 20_000
    """The same per second, on average."""

    new_channels_at_once_max: int = 10_000
    """Lookups for messages of one client on channels that are new to an agent, or for which it has no room. A lookup
    finds messages that must be forwarded. Above this number at once, messages are counted and not forwarded. While
    channels are recorded there is no such limit.
    """

    new_channels_per_s_max: int = 2_000
    """The same per second, on average."""

    known_channels_max: int = 1_000_000
    """Channels that an agent knows: those with a message in `publisher_idle_s`. Above it, a subscription that was away
    and whose channel may be unknown gets a gap. A channel takes about 125 bytes and its name.
    """

    known_streams_max: int = 4_000_000
    """Streams (a publisher on a channel) that an agent knows. At the limit: as `known_channels_max`. A stream takes
    about 100 bytes.
    """

    registered_max: int = 1_000_000
    """Subscriptions that an agent registers, each of which takes about 540 bytes. A subscription that does not fit is
    refused: `subscribe` raises SubscribeTimeoutError.
    """

    registered_per_client_max: int = 100_000
    """The same for one client, so that no client can take the place of all others."""

    # -- Moves -----------------------------------------------------------------------------------------------

    prepare_timeout_s: float = 10.0
    """How long a move waits for the agents involved to learn of it. After that the move is cancelled and nothing has
    changed.
    """

    widen_timeout_s: float = 2.0
    """How long a move waits for subscribers to follow. After that, agents forward to those that have not."""

    notice_retry_s: float = 1.0
    """Time after which an agent repeats a notice to a client that still uses an old entry."""

    forward_buffer_bytes_max: int = 16 * MIB
    """Messages that an agent buffers for one unreachable server. The oldest are dropped, and subscribers request them
    from the publishers.
    """

    # -- Recorded channels -----------------------------------------------------------------------------------

    recorded_entries_max: int = 1_000_000
    """Entries of one channel's record on one server. The oldest are dropped; readers are told."""

    recorded_bytes_max: int = 256 * MIB
    """The same in bytes, estimated from the mean entry size. The oldest are dropped."""

    recorded_total_bytes_max: int = 2048 * MIB
    """Bytes of all records on one server, estimated from the mean entry size and shared equally. The oldest entries of
    each record are dropped; readers are told.
    """

    # -- Queues ----------------------------------------------------------------------------------------------

    queues_max: int = 1000
    """Queues of a cluster. At the limit the leader refuses to create another one, and agents refuse clients that ask
    for one: `put` raises QueueError.
    """

    queue_batch_messages_max: int = 256
    """Messages in one request to a store. More are sent in several."""

    queue_batch_bytes_max: int = 4 * MIB
    """Bytes in one request to a store. A request has at least one message, of any size."""

    queue_put_timeout_s: float = 30.0
    """How long `put` tries, also while the queue is full and the caller waits. After that it raises
    QueueUnavailableError or QueueFullError.
    """

    queue_full_retry_s: float = 0.02
    """Pause before a message that found the queue full is sent again; it doubles with each attempt."""

    queue_full_retry_s_max: float = 1.0
    """Longest such pause."""

    queue_requests_at_once_max: int = 200
    """Requests for new queues that an agent passes from clients to the leader at once. Above it, clients ask again
    later.
    """

    queue_requests_per_s_max: int = 50
    """The same per second, on average."""

    queue_poll_s: float = 1.0
    """Longest time between two requests of a consumer to its store. Jobs are pushed; this is the fallback."""

    queue_moving_retry_s: float = 0.02
    """Pause before a client asks again for the place of a moving shard; it doubles with each attempt."""

    queue_moving_retry_s_max: float = 0.5
    """Longest such pause."""

    move_pause_s_max: float = 2.0
    """Longest time for which a shard may be paused while it moves to another store. A shard that would take longer to
    copy is not moved.
    """

    shard_prepare_timeout_s: float = 30.0
    """How long a move waits for the destination to make room for the shard. After that it is cancelled."""

    shard_copy_timeout_s: float = 15.0
    """How long a move waits for the destination to copy the shard, which is sealed meanwhile. After that it is
    cancelled."""

    # -- Connections and timeouts ----------------------------------------------------------------------------

    unreachable_s: float = 15.0
    """How long the servers of a channel may be unusable; at least three leases of the cluster, because a failover takes
    less. After that `publish(confirm=True)` and `drain` raise NotConfirmedError, `subscribe` raises
    SubscribeTimeoutError, and reading from a subscription raises UnreachableError.
    """

    connect_timeout_s: float = 5.0
    """Timeout of one connection attempt, including login."""

    reconnect_delay_s_min: float = 0.05
    """Delay before the first reconnect; it doubles with each failure."""

    reconnect_delay_s_max: float = 2.0
    """Longest delay between two reconnects."""

    enrol_timeout_s: float = 30.0
    """How long opening a bus waits for an agent to give it an id and a key. After that it raises EnrolmentError."""

    subscribe_timeout_s: float = 30.0
    """How long `subscribe` waits for the subscription to be in force. After that it raises SubscribeTimeoutError."""

    linger_s: float = 5.0
    """How long a subscription stays on the old server after a move, and the longest time that a closing bus waits after
    faults to resend messages.
    """

    drain_timeout_s: float = 30.0
    """How long `drain` waits for confirmations. After that it raises NotConfirmedError."""

    command_reply_bytes_max: int = 64 * MIB
    """Largest reply or delivery from a server. A larger one is a ProtocolError, and the connection is reopened."""

    read_slice_bytes: int = 16 * KIB
    """Bytes fed to the RESP parser at a time; it is slow with large inputs."""

    @property
    def delivery_bytes_max(self) -> int:
        """Largest message as a server delivers it: payload, attributes and framing."""
        return self.payload_bytes_max + self.attributes_bytes_max + FRAMING_BYTES_MAX

    # -- The engine ------------------------------------------------------------------------------------------

    engine_filters_max: int = 2_000_000
    """Filters of all clients. A further one is refused."""

    engine_client_filters_max: int = 1_000_000
    """Filters of one client. A further one is refused."""

    engine_clients_max: int = 65_536
    """Clients that emit or match. A further one is refused."""

    engine_flight_events_max: int = 65_536
    """Events that the engine has taken in and not delivered yet. Emitters keep further ones until there is room."""

    engine_flight_bytes_max: int = 64 * MIB
    """The same in bytes."""

    engine_untaken_events_max: int = 4096
    """Events that an emitter keeps because the engine has not delivered them to all readers. Above it, `emit` waits."""

    engine_untaken_bytes_max: int = 8 * MIB
    """The same in bytes."""

    engine_letter_bytes_max: int = 256 * KIB
    """Largest message between a client and the engine. More data goes into further messages."""

    engine_hello_s: float = 1.0
    """How long a client waits for an answer of the engine before it asks again."""

    engine_client_grace_s: float = 10.0
    """How long a client may be silent before its filters end. Clients send a sign of life four times in this period."""

    engine_lease_s: float = 1.2
    """Lease of the engine that serves: how long after its death another one may take over. It is renewed five times
    in this period."""

    engine_roll_s: float = 0.5
    """How long a new instance of the engine waits for clients to present their filters before it matches events."""

    engine_roll_s_max: float = 10.0
    """The longest wait for clients that have begun to present their filters."""

    engine_member_silent_s: float = 1.5
    """How long a process of an engine may be silent before the engine continues without it."""

    engine_join_s_max: float = 5.0
    """How long a new instance of the engine waits for the processes of its matchers and exit points."""

    engine_slice_filters_max: int = 2000
    """Filters that a matcher examines in one turn while it hands some to other matchers or packs its table."""

    engine_packed_filters_min: int = 262_144
    """A matcher that once held fewer filters than this does not pack its table when many have ended."""

    engine_change_s_max: float = 60.0
    """How long a change of the configuration may take before it is given up."""

    def validate(self) -> None:
        """Raise ConfigError if a value is invalid or two values contradict each other."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"limits.{name} is {value!r}", do="give a number above 0")
        if self.clock_drift_max >= 0.5:
            raise ConfigError(
                f"limits.clock_drift_max is {self.clock_drift_max!r}",
                do="give a ratio below 0.5, for example 0.01",
            )
        if self.channel_name_bytes_max > NAME_BYTES_MAX:
            raise ConfigError(
                f"limits.channel_name_bytes_max is {self.channel_name_bytes_max}",
                do=f"give at most {NAME_BYTES_MAX}: control messages carry no longer names",
            )
        if self.queue_batch_messages_max > QUEUE_BATCH_MESSAGES_MAX:
            raise ConfigError(
                f"limits.queue_batch_messages_max is {self.queue_batch_messages_max}",
                do=f"give at most {QUEUE_BATCH_MESSAGES_MAX}: stores refuse larger batches",
            )
        delivery_bytes = self.delivery_bytes_max
        if delivery_bytes > self.command_reply_bytes_max:
            raise ConfigError(
                f"one delivery can have {delivery_bytes} bytes (payload, attributes, framing), "
                f"but limits.command_reply_bytes_max is {self.command_reply_bytes_max}",
                do="lower payload_bytes_max or raise command_reply_bytes_max",
            )
        for rule in _RULES:
            rule.check(self)


class _AtMost(msgspec.Struct, frozen=True):
    """A rule between two limits: `small` (times `factor`) must not be above `large`; `reason` is part of the error."""

    small: str
    large: str
    reason: str
    factor: float = 1

    def check(self, limits: Limits) -> None:
        """Raise ConfigError with both names and values if the rule is violated."""
        small, large = getattr(limits, self.small), getattr(limits, self.large)
        if small * self.factor <= large:
            return
        times = "" if self.factor == 1 else f"{self.factor:g} times "
        raise ConfigError(
            f"{times}limits.{self.small} ({small}) is above limits.{self.large} ({large}), but {self.reason}",
            do=f"lower {self.small} or raise {self.large}",
        )


_RULES: Final = (
    _AtMost("payload_bytes_max", "publish_buffer_bytes_max", "the buffer must hold the largest message"),
    _AtMost("payload_bytes_max", "inbox_bytes_max", "an inbox must hold the largest message"),
    _AtMost("payload_bytes_max", "resend_bytes_max", "a resend window must hold the largest message"),
    _AtMost("resend_bytes_max", "resend_total_bytes_max", "one window cannot be larger than all of them"),
    _AtMost("recorded_bytes_max", "recorded_total_bytes_max", "one record cannot be larger than all of them"),
    _AtMost("heal_page_messages", "resend_messages_max", "a publisher keeps no more than its window"),
    _AtMost("heal_bytes_per_s_max", "heal_total_bytes_per_s_max", "one client cannot have more than all of them"),
    _AtMost("heartbeat_interval_s", "server_lease_s", "a lease must survive one lost heartbeat", factor=2),
    _AtMost("heal_delay_s", "gap_timeout_s", "missing messages must be requested before they are given up"),
    _AtMost(
        "heal_retry_s", "gap_timeout_s", "missing messages must be requested twice before they are given up", factor=2
    ),
    _AtMost("control_at_once_max", "control_total_at_once_max", "one client cannot have more than all of them"),
    _AtMost("control_per_s_max", "control_total_per_s_max", "one client cannot have more than all of them"),
    _AtMost("registered_per_client_max", "registered_max", "one client cannot have more than all of them"),
    _AtMost("subscriptions_max", "registered_per_client_max", "an agent must have room for all subscriptions of a bus"),
    _AtMost("beacon_delay_s", "beacon_delay_s_max", "the first delay is the shortest"),
    _AtMost("beacon_delay_s_max", "gap_timeout_s", "the end of a burst must be known before it is given up"),
    _AtMost("queue_full_retry_s", "queue_full_retry_s_max", "the first pause is the shortest"),
    _AtMost("engine_roll_s", "engine_roll_s_max", "clients that present their filters are waited for"),
    _AtMost("queue_moving_retry_s", "queue_moving_retry_s_max", "the first pause is the shortest"),
    _AtMost("reconnect_delay_s_min", "reconnect_delay_s_max", "the first delay is the shortest"),
    _AtMost("hello_retry_s", "subscribe_timeout_s", "a hello must be sent twice before it is given up", factor=2),
)

DEFAULT_LIMITS: Final = Limits()

PUBLIC: Final = frozenset(
    {
        "payload_bytes_max",
        "publish_buffer_messages_max",
        "inbox_messages_max",
        "inbox_bytes_max",
        "resend_messages_max",
        "gap_timeout_s",
        "server_lease_s",
        "secret_overlap_s",
        "recorded_total_bytes_max",
        "unreachable_s",
        "subscribe_timeout_s",
        "drain_timeout_s",
        "queue_put_timeout_s",
    }
)
"""Limits that users may need to change. The others are internal: they can be set, but may change between versions."""
