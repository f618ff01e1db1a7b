"""The router: a client's side of the channel protocol, a state machine without I/O.

Owns the links and the dispatch of what arrives. Its inputs are the time and the frames of servers; its outputs are the
commands to send (`outbox` of each link in `dirty`), `effects` and the subscriptions with news (`ready`). Publishing,
subscribing and receiving are its three parts.

    adapter                               router
    opened / lost / received  ------>     links, heartbeats, replies
    ring                      ------>     plan book -> place()
    publish / subscribe       ------>     publishing / subscribing
    timer                     ------>     retries, beacons, healing, leases
                              <------     effects, dirty, ready
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.channels import states
from shoal.channels.client.arrivals import Arrivals
from shoal.channels.client.context import AgentRefused, Context, FetchRing
from shoal.channels.client.inbox import Inbox
from shoal.channels.client.publisher import Publishing
from shoal.channels.client.receiver import Receiving
from shoal.channels.client.server_link import ServerLink
from shoal.channels.client.subscriber import Subscribing
from shoal.channels.client.subscription import Subscription, Wanted
from shoal.channels.rules import ALL_RULES, Rules
from shoal.errors import PlanError, ProtocolError, TooManySubscriptionsError
from shoal.limits import Limits
from shoal.plan.book import PlanBook
from shoal.wire import control
from shoal.wire.envelope import HEARTBEAT_CHANNEL, inbox_channel, peer_channel

SERVERS_OWED_MAX: Final = 64
"""Dropped servers whose missed Byes are remembered. Beyond it the agent of a server that comes back keeps this client
in its register until it sends it a Notice."""


class Router:
    """One client. `client` is a random number of 48 bits that no other client uses; `first_number` should be hard to
    guess, so that other clients cannot answer in an agent's name."""

    def __init__(
        self, client: int, book: PlanBook, limits: Limits, rules: Rules = ALL_RULES, first_number: int = 1
    ) -> None:
        self.context = Context(client, book, limits, rules, first_number)
        self.publishing = Publishing(self.context)
        self.receiving = Receiving(self.context)
        self.subscribing = Subscribing(self.context, self.receiving)
        self.effects = self.context.effects
        self.dirty = self.context.dirty
        self.ready = self.context.ready
        self.counters = self.context.counters
        self.limits = limits
        self._inbox = inbox_channel(client)
        self._peer_channel = peer_channel(client)
        self.publish = self.publishing.publish
        self.received = Arrivals(
            self.context, self.publishing, self.subscribing, self.receiving, self._internal
        ).received
        self._unused: set[bytes] = set()
        self._byes_owed: dict[str, dict[tuple[bool, bytes], bool]] = {}
        self.context.lease_over = self._lease_due
        self._duties: dict[str, Callable[..., None]] = {
            "lease": self._lease_due,
            "watch": self._watch_due,
            "sweep": self._sweep_due,
            "hello": self.subscribing.hello_due,
            "restart": self.subscribing.restart,
            "linger": self.subscribing.linger_due,
            "resolve": self.publishing.resolve_due,
            "beacon": self.publishing.beacon_due,
            "idle": self.publishing.idle_due,
            "heal": self.receiving.heal_due,
            "doubt": self.receiving.doubt_due,
        }

    # The application

    def subscribe(self, name: bytes, pattern: bool, now: float, wanted: Wanted | None = None) -> Subscription:
        """A new subscription; see its `in_force` and its `inbox`, which gets only `wanted` messages."""
        limits = self.limits
        if len(self.subscribing) >= limits.subscriptions_max:
            raise TooManySubscriptionsError(
                f"this bus has {limits.subscriptions_max} subscriptions, which is subscriptions_max; "
                "close some, or open another bus"
            )
        inbox = Inbox(limits.inbox_messages_max, limits.inbox_bytes_max)
        return self.subscribing.open(name, pattern, inbox, wanted, now)

    def unsubscribe(self, sub: Subscription, now: float) -> None:
        """Ends a subscription at once; its inbox keeps its items."""
        self.subscribing.close(sub)

    def consumed(self, sub: Subscription, now: float) -> None:
        """The application has taken items from a subscription that had overflowed."""
        self.receiving.made_room(sub, now)

    def close(self, now: float) -> None:
        """Ends every stream and subscription. The adapter sends the remaining commands, then closes."""
        self.context.closing = True
        self.publishing.close(now)
        for sub in self.subscribing:
            self.subscribing.close(sub)

    @property
    def settled(self) -> bool:
        """Whether everything published is confirmed."""
        return self.publishing.pending_messages == 0

    # The plan

    def ring(self, data: bytes, now: float) -> None:
        """A ring from any source: accepted if it is signed and newer."""
        known = self.context.book.ring
        try:
            news = self.context.book.accept_ring(data)
        except PlanError as error:
            self._refuse(error)
            return
        if news:
            self.counters.ring_changes += 1
            self._replace(now)
            if known is not None:
                self.subscribing.report_missed(known)

    def entry(self, data: bytes, now: float) -> None:
        """A plan entry from any source: accepted if it is signed and newer."""
        try:
            channel, news = self.context.book.accept_entry(data)
        except PlanError as error:
            self._refuse(error)
            return
        if news:
            self.counters.entries += 1
            self.publishing.place_channel(channel, now)
            for sub in list(self.subscribing.by_channel.get(channel, ())):
                self.subscribing.place(sub, now)

    def _refuse(self, error: PlanError) -> None:
        if type(error).__name__ == "ForgedEntryError":
            self.counters.forged += 1
        else:
            self.counters.stale_entries += 1

    def _replace(self, now: float) -> None:
        """Applies a new ring to links, streams and subscriptions."""
        ring = self.context.book.ring
        assert ring is not None
        for address in ring.servers:
            link = self.context.links.get(address.id)
            if link is None:
                link = self.context.links[address.id] = ServerLink(address)
                link.byes.update(self._byes_owed.pop(address.id, {}))
            elif link.address != address:
                link.address = address
                self.context.drop(link)
        self.publishing.place_all(now)
        self.subscribing.place_all(now)
        for link in list(self.context.links.values()):
            self._review(link)

    # Links

    def _review(self, link: ServerLink) -> None:
        """Opens a link that is in use; drops an unused one whose server has left the ring."""
        if link.wanted:
            self.context.want(link)
        elif self.context.book.address(link.server) is None:
            self.context.drop(link)
            if link.state is states.Link.DOWN:
                del self.context.links[link.server]
                self._owe(link)

    def _owe(self, link: ServerLink) -> None:
        """Keeps the Byes that the agent of a dropped server has not received, in case the server comes back."""
        if link.byes:
            self._byes_owed[link.server] = link.byes
            if len(self._byes_owed) > SERVERS_OWED_MAX:
                del self._byes_owed[next(iter(self._byes_owed))]

    def opened(self, server: str, now: float) -> None:
        """The adapter has opened a connection: authenticated, RESP3."""
        link = self.context.links[server]
        link.reset()
        link.step("opened")
        link.opened_at_number = self.context.number
        link.listen(b"SUBSCRIBE", self._inbox)
        link.listen(b"SUBSCRIBE", self._peer_channel)
        link.listen(b"SUBSCRIBE", HEARTBEAT_CHANNEL)
        self._greet(link, now)
        self.context.timers.set(("watch", link), now + self.limits.hello_retry_s)
        self.subscribing.link_opened(link, now)
        self.context.touch(link)

    def _greet(self, link: ServerLink, now: float) -> None:
        nonce = self.context.next_number()
        link.greeted(nonce, now)
        self.context.tell_agent(link, control.Greet(nonce, self.context.book.version, link.incarnation))

    def lost(self, server: str, now: float) -> None:
        """The connection is gone, or could not be opened; the adapter waits before it tries again."""
        link = self.context.links.get(server)
        if link is None or link.state is states.Link.DOWN:
            return
        link.reset()
        link.step("lost")
        self.counters.reconnects += 1
        self.publishing.link_lost(link)
        self.subscribing.link_lost(link, now)
        if not self.context.closing:
            self.context.effects.append(FetchRing())
            self._review(link)

    def _lease_s(self, lease_ms: int) -> float:
        return lease_ms / 1000 * (1 - self.limits.clock_drift_max)

    def _take_heartbeat(self, link: ServerLink, ring_version: int, now: float) -> None:
        """After a Heartbeat or a Welcome: is the server usable, and is there a newer ring?"""
        if not self.context.rules.lease:
            link.usable_until = float("inf")
        if now < link.usable_until:
            was_usable = link.state is states.Link.USABLE
            link.step("heartbeat")
            if not was_usable:
                self.publishing.link_usable(link, now)
            if self.context.rules.lease:
                self.context.timers.set(("lease", link), link.usable_until)
        if ring_version > self.context.book.version:
            self._greet(link, now)
        link.send_ping(now)
        self.context.touch(link)

    def _lease_due(self, link: ServerLink, now: float) -> None:
        if link.state is states.Link.USABLE and now >= link.usable_until:
            self.counters.stale_links += 1
            link.step("lease over")
            self.publishing.link_stale(link)
            self.context.timers.set(("watch", link), now)

    def _watch_due(self, link: ServerLink, now: float) -> None:
        """Checks an open link: drops it if no PONG comes back, and sends Greet if it is not usable."""
        limits = self.limits
        if not link.open:
            return
        if link.ping is not None and now - link.ping.sent_at > limits.server_lease_s:
            self.context.drop(link)
            return
        link.send_ping(now)
        self.context.touch(link)
        usable = link.state is states.Link.USABLE
        if not usable:
            self._greet(link, now)
            self.context.effects.append(FetchRing())
        self.context.timers.set(("watch", link), now + (limits.server_lease_s / 2 if usable else limits.hello_retry_s))

    # What arrives

    def _internal(self, link: ServerLink, channel: bytes, data: bytes, now: float) -> None:
        """A control message. Those that cannot be read, or are for other receivers, are counted and dropped."""
        if channel not in (HEARTBEAT_CHANNEL, self._inbox, self._peer_channel):
            return
        try:
            client, number, message = control.decode(data)
        except ProtocolError:
            self.counters.garbage += 1
            return
        if channel == HEARTBEAT_CHANNEL:
            self._broadcast(link, number, message, now)
        elif channel == self._peer_channel:
            self._from_peer(link, client, number, message, now)
        elif client == self.context.client:
            self._from_agent(link, number, message, now)
        else:
            self.counters.garbage += 1

    def _broadcast(self, link: ServerLink, number: int, message: control.Control, now: float) -> None:
        if isinstance(message, control.Heartbeat) and message.server == link.server:
            link.heartbeat_heard(number, message, self._lease_s(message.lease_ms))
            self._take_heartbeat(link, message.ring_version, now)
        elif isinstance(message, control.Resync) and message.server == link.server:
            self.counters.resyncs += 1
            link.incarnation = message.incarnation
            channels, patterns = self.subscribing.present(link)
            streams = self.publishing.present(link)
            for part in control.presents(message.incarnation, number, channels, patterns, streams):
                self.context.tell_agent(link, part)
            self.subscribing.confirm_all(link)
        else:
            self.counters.garbage += 1

    def _from_agent(self, link: ServerLink, number: int, message: control.Control, now: float) -> None:
        match message:
            case control.Welcome():
                if message.ring and message.ring_version > self.context.book.version:
                    self.ring(message.ring, now)
                if link.welcomed(number, message, self._lease_s(message.lease_ms)):
                    self._take_heartbeat(link, message.ring_version, now)
            case control.Answer():
                self._answered(number, message, now)
            case control.Notice():
                self._noticed(link, message, now)
            case control.Refused():
                self._refused(link, number, message)
            case _:
                self.counters.garbage += 1

    def _refused(self, link: ServerLink, number: int, refused: control.Refused) -> None:
        """An agent does not take this client's messages. A link that is usable has shown that its agent does."""
        if link.state is states.Link.USABLE or not link.opened_at_number < number <= self.context.number:
            self.counters.garbage += 1
            return
        self.context.effects.append(
            AgentRefused(link.server, refused.code, refused.version_min, refused.version_max, refused.text)
        )

    def _from_peer(self, link: ServerLink, client: int, number: int, message: control.Control, now: float) -> None:
        match message:
            case control.Heal():
                self.publishing.heal(link, client, number, message)
            case control.Resend() | control.Healed():
                for sub in list(self.subscribing.by_channel.get(message.channel, ())):
                    self._heal(sub, message, link.server, now)
                for subs in list(self.subscribing.by_pattern.values()):
                    for sub in subs:
                        if message.channel in sub.channels:
                            self._heal(sub, message, link.server, now)
            case _:
                self.counters.garbage += 1

    def _noticed(self, link: ServerLink, notice: control.Notice, now: float) -> None:
        """A channel has moved. If the entry is already known, the agent has missed the confirmation, so it is sent
        again. If this client does not subscribe there, the agent has missed the Bye."""
        self.counters.notices += 1
        if (False, notice.name) not in link.listening:
            self.context.tell_agent(link, control.Bye(notice.name, False, link.incarnation))
        known = notice.entry == self.context.book.signed_entry(notice.name)
        self.entry(notice.entry, now)
        if known:
            self.publishing.confirm(link, notice.name)
            self.subscribing.confirm(notice.name)

    def _heal(self, sub: Subscription, message: control.Resend | control.Healed, server: str, now: float) -> None:
        if isinstance(message, control.Resend):
            self.receiving.resent(sub, message, server, now)
        else:
            self.receiving.healed(sub, message, now)

    def _answered(self, nonce: int, answer: control.Answer, now: float) -> None:
        if answer.ring:
            self.ring(answer.ring, now)
        if answer.entry:
            self.entry(answer.entry, now)
        site = self.subscribing.asked.get(nonce)
        if site is not None and site.sub.name == answer.name and (whole := site.take_part(answer)) is not None:
            del self.subscribing.asked[nonce]
            self.context.timers.cancel(("hello", site))
            self.subscribing.answered(site, whole, now)
        lane = self.publishing.asked.get(nonce)
        if lane is not None and lane.out.name == answer.name:
            del self.publishing.asked[nonce]
            self.publishing.answered(lane, now)

    # Time

    def next_timer(self) -> float | None:
        """When `timer` wants to be called next."""
        return self.context.timers.next_at()

    def timer(self, now: float) -> None:
        """Runs the timers that are due."""
        for key in self.context.timers.due(now):
            assert isinstance(key, tuple)
            self._duties[key[0]](*key[1:], now)
        self.context.timers.set_if_absent(("sweep",), now + self.limits.publisher_idle_s / 4)

    def _sweep_due(self, now: float) -> None:
        for sub in self.subscribing:
            self.receiving.forget_idle(sub, now)
        self._forget_entries()

    def _forget_entries(self) -> None:
        """Drops the entries of channels that were unused at the last sweep and are unused now. The agent at the ring
        home sends an entry again when it is needed."""
        book = self.context.book
        unused = {
            channel
            for channel in book.entries
            if channel not in self.subscribing.by_channel and not self.publishing.uses(channel)
        }
        for channel in unused & self._unused:
            book.forget_entry(channel)
        self._unused = unused
