"""The publishing side of one channel: sequence numbers, confirmation, the resend window.

Owns the state of one stream. A message stays in the window at least until every server that it was sent to has
confirmed it, so that it can be repeated; after that it stays as long as the limits allow, for subscribers that missed
it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

from shoal.channels import states
from shoal.channels.client.server_link import ServerLink
from shoal.plan.placement import Placement
from shoal.wire import envelope
from shoal.wire.lane_tag import LaneState, lane_state, tagged

MARK_S: Final = 0.1
"""How far apart the remembered times of publication are, at least."""
MARKS_MAX: Final = 256
"""Remembered times of publication; of more, every second one is dropped."""


class Lane:
    """The path of one channel's messages to one server. `tags` makes the tags of its messages; None if there are none
    (scheme 0)."""

    __slots__ = ("confirmed", "link", "out", "sent", "state", "tags")

    def __init__(self, out: Outgoing, link: ServerLink, confirmed: int) -> None:
        self.out = out
        self.link = link
        self.state = states.LaneState.WAITING
        self.sent = confirmed
        self.confirmed = confirmed
        self.tags: LaneState | None = None
        self.use_key()

    def use_key(self) -> None:
        """Makes tags with the key that the client uses at the server."""
        if self.link.key is not None:
            self.tags = lane_state(self.link.key.lane(self.link.server, self.out.name))

    def step(self, event: str) -> None:
        """Takes the transition that `states.LANE` gives for the event."""
        self.state = states.step(states.LANE, self.state, event)
        self.out.find_solo()

    def tagged(self, blob: bytes) -> bytes:
        """An envelope as it is sent to this lane's server."""
        return blob if self.tags is None else tagged(blob, self.tags)


class Outgoing:
    """One stream of this client on one channel. Messages in the window have the tag of the lane on which they were
    published first, or none: each lane gives them its own when it sends them."""

    __slots__ = (
        "base",
        "beacon_armed",
        "beacon_delay",
        "bursting",
        "confirmed",
        "lanes",
        "mark_due",
        "marks",
        "name",
        "placement",
        "prefix",
        "published_at",
        "resend_bytes",
        "seq",
        "sizes",
        "solo",
        "stream",
        "tags",
        "turn_at",
        "waiters",
        "window",
    )

    def __init__(self, name: bytes, stream: int, placement: Placement, now: float) -> None:
        self.name = name
        self.stream = stream
        self.seq = 0
        self.confirmed = 0
        self.window: deque[bytes] = deque()
        self.base = 1
        self.resend_bytes = 0
        self.sizes: deque[int] = deque()
        self.lanes: list[Lane] = []
        self.solo: Lane | None = None
        self.bursting: Lane | None = None
        """The solo lane while it has sent all messages and its link has a burst that takes the next one: from the first
        message of a turn until the burst ends."""
        self.tags: LaneState | None = None
        self.waiters: dict[int, object] = {}
        """The callers that wait for the confirmation of a message, by its number."""
        self.published_at = now
        self.marks: list[tuple[int, float]] = []
        """Numbers, each with the time by which all messages before it had been published."""
        self.mark_due = now
        self.turn_at = float("-inf")
        """The time of the last turn in which `Publisher.publish` looked at beacon and marks."""
        self.beacon_armed = False
        self.beacon_delay = 0.0
        self.use(placement)

    def use(self, placement: Placement) -> None:
        """Publishes with this placement's version from now on, also unconfirmed messages: a header must not name a
        placement by which its message was not sent."""
        self.placement = placement
        self.prefix = envelope.prefix(0, placement.version, self.stream)
        for index in range(self.confirmed + 1 - self.base, len(self.window)):
            self.window[index] = envelope.under(placement.version, self.window[index])

    def find_solo(self) -> None:
        """Updates `solo`: the lane, if there is exactly one and it is live; the fast path of `publish`. `tags` are
        those of the solo lane."""
        lanes = self.lanes
        self.solo = lanes[0] if len(lanes) == 1 and lanes[0].state is states.LaneState.LIVE else None
        self.tags = None if self.solo is None else self.solo.tags
        self.bursting = None

    @property
    def settled(self) -> bool:
        """Whether every message has been confirmed by every server that needs it."""
        return self.confirmed == self.seq

    def page(self, first: int, last: int, messages_max: int, bytes_max: int) -> list[bytes]:
        """Messages of the window between two numbers, as many as the limits allow, but at least one."""
        blobs: list[bytes] = []
        size = 0
        start = max(first, self.base)
        for index in range(start - self.base, min(last, self.seq, start + messages_max - 1) + 1 - self.base):
            blob = self.window[index]
            size += len(blob)
            if blobs and size > bytes_max:
                break
            blobs.append(blob)
        return blobs

    def confirm(self) -> tuple[int, int]:
        """Moves the confirmed mark to what all lanes have confirmed; returns the number of messages and bytes
        passed."""
        count = max(0, min(lane.confirmed for lane in self.lanes) - self.confirmed)
        self.confirmed += count
        return count, self.take_sizes(count)

    def take_sizes(self, count: int) -> int:
        """The size of the oldest `count` unconfirmed messages, which are confirmed now."""
        sizes = self.sizes
        if count == 1:
            return sizes.popleft()
        if count == len(sizes):  # the replies to all messages came together
            size = sum(sizes)
            sizes.clear()
            return size
        return sum([sizes.popleft() for _ in range(count)])

    def trim(self, messages_max: int, bytes_max: int) -> int:
        """Drops confirmed messages from the window until it is within its limits; returns the bytes freed."""
        popleft = self.window.popleft
        droppable = self.confirmed + 1 - self.base
        dropped = min(droppable, max(0, len(self.window) - messages_max))
        freed = sum([len(popleft()) for _ in range(dropped)])
        while self.resend_bytes - freed > bytes_max and dropped < droppable:
            freed += len(popleft())
            dropped += 1
        self.base += dropped
        self.resend_bytes -= freed
        return freed

    def mark(self, now: float) -> None:
        """Remembers by when the messages before the newest one had been published. Call it before `published_at` is
        set."""
        self.marks.append((self.seq, self.published_at))
        self.mark_due = now + MARK_S
        if len(self.marks) > MARKS_MAX:
            del self.marks[: bisect_left(self.marks, (self.base, 0.0))]
        if len(self.marks) > MARKS_MAX:
            del self.marks[-3::-2]

    def published_by(self, number: int) -> float:
        """The time by which all messages up to a number had been published."""
        at = bisect_left(self.marks, (number + 1, 0.0))
        return self.marks[at][1] if at < len(self.marks) else self.published_at

    def age_s(self, number: int, now: float) -> float:
        """For how long, at least, all messages up to a number have been published."""
        return max(now - self.published_by(number), 0.0)

    def beacon(self, last: int, now: float, final: bool = False) -> bytes:
        """A beacon: the stream has reached `last`, and servers have confirmed that number."""
        return envelope.beacon(self.placement.version, self.stream, last, last, self.age_s(last, now), final)
