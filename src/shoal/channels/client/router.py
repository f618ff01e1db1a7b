"""The router: a client's side of the channel protocol, a state machine without I/O.

Owns the links and the dispatch of what arrives. Its inputs are the time and the frames of servers; its outputs are
`effects`, the commands to send (`take_commands`) and the subscriptions with news (`take_ready`). Publisher, subscriber
and receiver are its three parts. Shells use `Router` and the `SubscriptionCore` that `subscribe` returns, and nothing
behind them.

    shell                                 router
    opened / lost / received  ------>     links, heartbeats, replies
    ring                      ------>     plan book -> place()
    publish / subscribe       ------>     publisher / subscriber
    timer                     ------>     retries, beacons, healing, leases
                              <------     effects, take_commands, take_ready
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Final, TypeAlias

import msgspec

from shoal.channels import states
from shoal.channels.client import history_join
from shoal.channels.client.arrivals import Arrivals
from shoal.channels.client.authentication import ClientAuthentication
from shoal.channels.client.context import AgentRefused, Context, Enrol, FetchRing, Unreachable
from shoal.channels.client.inbox import Inbox
from shoal.channels.client.incoming_stream import Request
from shoal.channels.client.outgoing_stream import Outgoing
from shoal.channels.client.publisher import Publisher
from shoal.channels.client.queue_requests import QueueRequester
from shoal.channels.client.receiver import Receiver
from shoal.channels.client.refutation import Refutations
from shoal.channels.client.server_link import ServerLink
from shoal.channels.client.subscriber import Subscriber
from shoal.channels.client.subscription import SubscriptionCore, Wanted
from shoal.channels.heartbeat_order import Age
from shoal.channels.timers import Timers
from shoal.errors import PlanError, ProtocolError, TooManySubscriptionsError
from shoal.limits import Limits
from shoal.plan.book import PlanBook
from shoal.rules import ALL_RULES, Rules, rule
from shoal.wire import control
from shoal.wire.commands import Commands
from shoal.wire.envelope import HEARTBEAT_CHANNEL, inbox_channel, peer_channel
from shoal.wire.identity import ClientKey

LEASE: Final = rule("lease", "A server whose lease has run out is not used for publishing.")
KEY_PROVED: Final = rule("key_proved", "A newer key is used at a server when its agent has shown that it has it too.")


Posted: TypeAlias = Outgoing
"""The stream of an accepted message, whose number is `seq` until the next one. See `Router.await_confirm`."""

SERVERS_OWED_MAX: Final = 64
"""Dropped servers whose missed Byes are remembered. Beyond it the agent of a server that comes back keeps this client
in its register until it sends it a Notice."""


BUSY_MS_MAX: Final = 10_000
"""The longest time that a client waits because an agent asked it to, from each refusal on."""


class RouterStatistics(msgspec.Struct, frozen=True):
    """The state of a router."""

    pending_messages: int
    pending_bytes: int
    subscriptions: int
    ring_version: int
    links: dict[str, str]
    """The state of the connection by server, see `states.LinkState`."""
    questions: int
    """Questions to agents that are not answered yet."""
    timers: int
    """Deadlines that are set."""


class Router:
    """One client. `client` is a random number of 48 bits that no other client uses; `first_number` should be hard to
    guess, so that other clients cannot answer in an agent's name. `key` is the client's key, None with scheme 0."""

    def __init__(
        self,
        client: int,
        book: PlanBook,
        limits: Limits,
        rules: Rules = ALL_RULES,
        first_number: int = 1,
        key: ClientKey | None = None,
    ) -> None:
        self._context = Context(client, book, limits, rules, first_number, key)
        self._publisher = Publisher(self._context)
        self.publish: Final = self._publisher.publish
        self.await_confirm: Final = self._publisher.await_confirm
        """See `Publisher`. Two calls in between would be 3 % of the cost of a confirmed message."""
        self._receiver = Receiver(self._context)
        self._subscriber = Subscriber(self._context, self._receiver)
        self._refutations = Refutations(self._context, self._subscriber, self._receiver)
        self._queue_requests = QueueRequester(self._context)
        self.request_queue: Final = self._queue_requests.ask
        self.withdraw_queue: Final = self._queue_requests.withdraw
        """See `QueueRequester`."""
        self.effects = self._context.effects
        """The wishes of the router, in order. The shell carries them out and clears the list."""
        self.unsent: Sized = self._context.dirty
        """Not empty if `take_commands` may return something."""
        self.unread: Sized = self._context.ready
        """Not empty if `take_ready` returns something."""
        self.timers: Timers = self._context.timers
        """The deadlines: while their `count` stays the same, `next_timer` has not become earlier."""
        self.counters = self._context.counters
        self.book = book
        self.client = client
        self.limits = limits
        self._inbox = inbox_channel(client)
        self._peer_channel = peer_channel(client)
        self._authentication = ClientAuthentication(self._context)
        self.received = Arrivals(
            self._context, self._publisher, self._subscriber, self._receiver, self._internal
        ).received
        """See `Arrivals`: takes frames from a server, in the order in which they came."""
        self._unused: set[bytes] = set()
        self._byes_owed: dict[str, dict[tuple[bool, bytes], bool | None]] = {}
        self._context.lease_over = self._lease_due
        self._duties: dict[str, Callable[..., None]] = {
            "lease": self._lease_due,
            "watch": self._watch_due,
            "unreachable": self._unreachable_due,
            "sweep": self._sweep_due,
            "hello": self._subscriber.hello_due,
            "hello turn": self._subscriber.hello_turn,
            "linger": self._subscriber.linger_due,
            "outside": self._subscriber.outside_due,
            "resolve": self._publisher.resolve_due,
            "resolve turn": self._publisher.resolve_turn,
            "beacon": self._publisher.beacon_due,
            "idle": self._publisher.idle_due,
            "heal": self._receiver.heal_due,
            "doubt": self._receiver.doubt_due,
            "review": self._refutations.review_due,
            "queue": self._queue_requests.due,
        }

    # The application

    def turn_took(self, seconds: float) -> None:
        """Messages were published under the same timestamp for this long: their reported age must not exceed their real
        age."""
        if seconds > self._publisher.turn_s_max:
            self._publisher.turn_s_max = seconds

    def subscribe(self, name: bytes, pattern: bool, now: float, wanted: Wanted | None = None) -> SubscriptionCore:
        """A new subscription; see its `in_force` and its `inbox`, which gets only `wanted` messages."""
        limits = self.limits
        if len(self._subscriber) >= limits.subscriptions_max:
            raise TooManySubscriptionsError(
                f"this bus has {limits.subscriptions_max} subscriptions, which is subscriptions_max; "
                "close some, or open another bus"
            )
        inbox = Inbox(limits.inbox_messages_max, limits.inbox_bytes_max)
        return self._subscriber.open(name, pattern, inbox, wanted, now)

    def unsubscribe(self, sub: SubscriptionCore, now: float) -> None:
        """Ends a subscription at once; its inbox keeps its items."""
        self._subscriber.close(sub)

    def consumed(self, sub: SubscriptionCore, now: float) -> None:
        """The application has taken items from a subscription that had overflowed."""
        self._receiver.made_room(sub, now)

    def close(self, now: float) -> None:
        """Ends every stream and subscription. The shell sends the remaining commands, then closes."""
        self._context.closing = True
        self._publisher.close(now)
        for sub in self._subscriber:
            self._subscriber.close(sub)

    def join_history(
        self, sub: SubscriptionCore, begins: Mapping[int, int], reached: Mapping[int, int], now: float
    ) -> None:
        """Continues a new subscription after a history (see `history_join`)."""
        history_join.go_on(self._receiver, sub, begins, reached, now)

    # Outputs

    def take_commands(self) -> list[tuple[str, Commands]]:
        """The commands to send now, by server. Those for a server without a connection are obsolete: drop them."""
        dirty = self._context.dirty
        taken: list[tuple[str, Commands]] = []
        for link in dirty:
            link.dirty = False
            link.end_burst()
            if link.outbox:
                taken.append((link.server, link.outbox))
                link.outbox = []
        dirty.clear()
        return taken

    def take_ready(self) -> list[SubscriptionCore]:
        """The subscriptions that have got items, or have come into force, since the last call."""
        ready = self._context.ready[:]
        self._context.ready.clear()
        for sub in ready:
            sub.notified = False
        return ready

    # What the application may look at

    @property
    def settled(self) -> bool:
        """Whether everything published is confirmed."""
        return self._publisher.pending_messages == 0

    @property
    def published(self) -> int:
        """Messages that were accepted."""
        return self._publisher.published

    @property
    def pending_messages(self) -> int:
        """Messages that are not confirmed yet."""
        return self._publisher.pending_messages

    @property
    def pending_bytes(self) -> int:
        """Their size, with envelopes."""
        return self._publisher.pending_bytes

    @property
    def resend_bytes(self) -> int:
        """The size of all resend windows."""
        return self._publisher.resend_bytes

    @property
    def subscriptions(self) -> list[SubscriptionCore]:
        """All subscriptions."""
        return list(self._subscriber)

    @property
    def awaits_replies(self) -> bool:
        """Whether a connected server has not replied to all commands yet."""
        links = self._context.links.values()
        return any(link.inflight for link in links if link.state is not states.LinkState.DOWN)

    @property
    def streams_live(self) -> bool:
        """Whether every server that carries one of our streams would receive its end now."""
        links = self._context.links.values()
        return all(lane.state is states.LaneState.LIVE for link in links for lane in link.lanes)

    def unconfirmed(self, server: str | None = None) -> dict[bytes, int]:
        """The number of unconfirmed messages by channel; with `server`, of the channels that go there."""
        return {out.name: out.seq - out.confirmed for out in self._outs(server) if not out.settled}

    def awaited_confirms(self, server: str | None = None) -> list[object]:
        """The tokens of `await_confirm` for messages that are not confirmed; with `server`, for those that go there."""
        return [token for out in self._outs(server) for token in out.waiters.values()]

    @property
    def unreachable_s(self) -> float:
        """How long a server may be unusable before waiting calls raise an error."""
        return self._context.unreachable_s

    def cut_off(self, sub: SubscriptionCore, seconds: float, now: float) -> bool:
        """Whether none of a subscription's servers could be used for this long."""
        links = [site.link for site in sub.sites.values() if not site.lost]
        return bool(links) and all(
            link.unusable_since is not None and now >= link.unusable_since + seconds for link in links
        )

    def _outs(self, server: str | None) -> list[Outgoing]:
        """The outgoing streams, on all servers or on one."""
        links = [link for link in self._context.links.values() if server in (None, link.server)]
        return list({lane.out: None for link in links for lane in link.lanes})

    def statistics(self) -> RouterStatistics:
        """The present state, for metrics and tests."""
        return RouterStatistics(
            pending_messages=self.pending_messages,
            pending_bytes=self.pending_bytes,
            subscriptions=len(self._subscriber),
            ring_version=self.book.version,
            links={server: link.state.value for server, link in self._context.links.items()},
            questions=len(self._subscriber.asked) + len(self._publisher.asked),
            timers=len(self._context.timers),
        )

    # The plan

    def ring(self, data: bytes, now: float) -> None:
        """A ring from any source: accepted if it is signed and newer."""
        known = self._context.book.ring
        try:
            news = self._context.book.accept_ring(data)
        except PlanError as error:
            self._refuse(error)
            return
        if news:
            self.counters.ring_changes += 1
            self._follow_keys(now)
            self._replace(now)
            if known is not None:
                self._subscriber.report_missed(known)

    def entry(self, data: bytes, now: float) -> None:
        """A plan entry from any source: accepted if it is signed and newer."""
        try:
            channel, news = self._context.book.accept_entry(data)
        except PlanError as error:
            self._refuse(error)
            return
        if news:
            self.counters.entries += 1
            self._publisher.place_channel(channel, now)
            for sub in list(self._subscriber.by_channel.get(channel, ())):
                self._subscriber.place(sub, now)

    def _refuse(self, error: PlanError) -> None:
        if type(error).__name__ == "ForgedEntryError":
            self.counters.forged += 1
        else:
            self.counters.stale_entries += 1

    def _replace(self, now: float) -> None:
        """Applies a new ring to links, streams and subscriptions."""
        ring = self._context.book.ring
        assert ring is not None
        for address in ring.servers:
            link = self._context.links.get(address.id)
            if link is None:
                link = self._context.links[address.id] = ServerLink(address, self._context.key, self._context.rules)
                link.byes.update(self._byes_owed.pop(address.id, {}))
            elif link.address != address:
                link.address = address
                self._context.drop(link)
        self._publisher.place_all(now)
        self._subscriber.place_all(now)
        for link in list(self._context.links.values()):
            self._review(link, now)

    # The client's key

    def _follow_keys(self, now: float) -> None:
        """A new ring: the agents have a newer secret, or an older one has ended."""
        context, ring = self._context, self._context.book.ring
        if context.key is None or ring is None or not ring.agent_keys:
            return
        named = {key.generation for key in ring.agent_keys}
        context.peers.retain(named)
        context.expired = context.key.generation not in named
        if self.wants_key:
            context.effects.append(Enrol())
        for generation in [old for old in context.keys if old not in named and old != context.key.generation]:
            del context.keys[generation]
        for link in context.links.values():
            if link.from_agent is not None:
                link.from_agent = {known: key for known, key in link.from_agent.items() if known in named}
            if link.key is not None and link.key.generation not in named:
                if link.offered is not None:
                    link.use(link.offered)
                    self._publisher.key_changed(link)
                context.drop(link)

    @property
    def wants_key(self) -> bool:
        """Whether the agents have a newer secret than that of this client's key, or have dropped that one."""
        key, ring = self._context.key, self._context.book.ring
        newer = key is not None and ring is not None and any(new.generation > key.generation for new in ring.agent_keys)
        return newer or self._context.expired

    @property
    def renewable(self) -> ClientKey | None:
        """The key that agents renew; None if it has ended, so that this client needs another id."""
        return None if self._context.expired else self._context.key

    def enrolled(self, key: ClientKey, now: float) -> None:
        """An agent has given a newer key. It is used at each server when its agent has shown that it has it."""
        context = self._context
        if context.key is None or not self.wants_key:
            return
        if key.client != context.client:
            self._begin_identity(key, now)
            return
        context.key = context.keys[key.generation] = key
        for link in context.links.values():
            if KEY_PROVED in context.rules:
                link.offer(key)
                if link.state is states.LinkState.USABLE:
                    self._offer_key(link, now)
            else:
                link.use(key)
                self._publisher.key_changed(link)

    def _begin_identity(self, key: ClientKey, now: float) -> None:
        """The agents do not know the client's key any more: it continues as another client. Its subscriptions stay."""
        context = self._context
        self.counters.identities += 1
        context.effects.append(self._publisher.abandon())
        self.client = context.client = key.client
        context.key, context.expired = key, False
        context.keys.clear()
        context.keys[key.generation] = key
        context.peers.retain(())
        self._inbox, self._peer_channel = inbox_channel(key.client), peer_channel(key.client)
        self._byes_owed.clear()
        for link in list(context.links.values()):
            link.byes.clear()
            link.from_agent = None
            link.use(key)
            context.drop(link)
            self._review(link, now)

    def _offer_key(self, link: ServerLink, now: float) -> None:
        """Greets an agent with the newer key."""
        key = link.offered
        assert key is not None
        self._greet(link, now, control.KeySeal(control.CLIENT_SCHEME, key.generation, key.to_agent(link.server)))
        link.offered_at_number = self._context.number

    # Links

    def _review(self, link: ServerLink, now: float) -> None:
        """Opens a link that is in use; drops an unused one whose server has left the ring."""
        if link.wanted:
            self._context.want(link, now)
        elif self._context.book.address(link.server) is None:
            self._context.drop(link)
            if link.state is states.LinkState.DOWN:
                del self._context.links[link.server]
                self._owe(link)

    def _owe(self, link: ServerLink) -> None:
        """Keeps the Byes that the agent of a dropped server has not received, in case the server comes back."""
        if link.byes:
            self._byes_owed[link.server] = link.byes
            if len(self._byes_owed) > SERVERS_OWED_MAX:
                del self._byes_owed[next(iter(self._byes_owed))]

    def opened(self, server: str, now: float) -> None:
        """The shell has opened a connection: authenticated, RESP3."""
        link = self._context.links[server]
        link.reset()
        link.step("opened")
        link.opened_at_number = self._context.number
        link.listen(b"SUBSCRIBE", self._inbox)
        link.listen(b"SUBSCRIBE", self._peer_channel)
        link.listen(b"SUBSCRIBE", HEARTBEAT_CHANNEL)
        self._greet(link, now)
        self._context.timers.set(("watch", link), now + self.limits.hello_retry_s)
        self._subscriber.link_opened(link, now)
        self._context.touch(link)

    def _greet(self, link: ServerLink, now: float, seal: control.KeySeal | None = None) -> None:
        nonce = self._context.next_number()
        link.greeted(nonce, now)
        self._context.tell_agent(link, control.Greet(nonce, self._context.book.version, link.incarnation), seal)

    def lost(self, server: str, now: float) -> None:
        """The connection is lost, or could not be opened; the shell waits before it tries again."""
        link = self._context.links.get(server)
        if link is None or link.state is states.LinkState.DOWN:
            return
        link.reset()
        link.step("lost")
        self._context.unusable(link, now)
        self.counters.reconnects += 1
        self._publisher.link_lost(link)
        self._subscriber.link_lost(link, now)
        if not self._context.closing:
            self._context.effects.append(FetchRing())
            self._context.timers.set(("watch", link), now + self.limits.hello_retry_s)
            self._review(link, now)

    def _lease_s(self, lease_ms: int) -> float:
        """How long a lease is believed that a message claims: at most as long as the cluster's lease in the signed
        ring, because the keeper waits no longer before it removes a server."""
        return min(lease_ms / 1000, self._context.lease_s) * (1 - self.limits.clock_drift_max)

    def _take_heartbeat(self, link: ServerLink, ring_version: int, now: float) -> None:
        """After a Heartbeat or a Welcome: is the server usable, and is there a newer ring?"""
        if LEASE not in self._context.rules:
            link.usable_until = float("inf")
        if now < link.usable_until:
            was_usable = link.state is states.LinkState.USABLE
            link.step("heartbeat")
            link.unusable_since = None
            if not was_usable:
                self._publisher.link_usable(link, now)
                self._queue_requests.link_usable(link, now)
            if LEASE in self._context.rules:
                self._context.timers.set(("lease", link), link.usable_until)
        if ring_version > self._context.book.version:
            self._greet(link, now)
        elif link.offered is not None and not link.greeted_since(now - self.limits.hello_retry_s):
            self._offer_key(link, now)
        link.send_ping(now)
        self._context.touch(link)

    def _lease_due(self, link: ServerLink, now: float) -> None:
        if link.lapsed(now):
            self.counters.stale_links += 1
            link.step("lease over")
            self._context.unusable(link, now)
            self._publisher.link_stale(link)
            self._subscriber.link_stale(link)
            self._context.timers.set(("watch", link), now)

    def _watch_due(self, link: ServerLink, now: float) -> None:
        """Checks an open link: drops it if no PONG comes back, and sends Greet if it is not usable. While there is no
        connection, asks the coordinator for a newer ring: a frozen server accepts connections and does not answer on
        them, so that an attempt may take long."""
        limits = self.limits
        if not link.open:
            if link.wanted and link.unusable_since is not None and self._context.is_member(link):
                self._context.effects.append(FetchRing())
                patient = now >= link.unusable_since + self._context.unreachable_s
                retry_s = limits.reconnect_delay_s_max if patient else limits.hello_retry_s
                self._context.timers.set(("watch", link), now + max(limits.hello_retry_s, retry_s))
            return
        if link.ping is not None and now - link.ping.sent_at > limits.server_lease_s:
            self._context.drop(link)
            return
        link.send_ping(now)
        self._context.touch(link)
        usable = link.state is states.LinkState.USABLE
        if not usable:
            if now >= link.busy_until:
                self._greet(link, now)
            self._context.effects.append(FetchRing())
        self._context.timers.set(("watch", link), now + (limits.server_lease_s / 2 if usable else limits.hello_retry_s))

    def _unreachable_due(self, link: ServerLink, now: float) -> None:
        """Reports a server that could not be used for too long, repeatedly while that lasts."""
        if link.unusable_since is None:
            return
        if not link.wanted or not self._context.is_member(link) or self._context.closing:
            link.unusable_since = None
            return
        wait_s = self._context.unreachable_s
        if now >= link.unusable_since + wait_s:
            self._context.effects.append(Unreachable(link.server, now - link.unusable_since))
            self._context.timers.set(("unreachable", link), now + wait_s)
        else:
            self._context.timers.set(("unreachable", link), link.unusable_since + wait_s)

    # What arrives

    def _internal(self, link: ServerLink, channel: bytes, data: bytes, now: float) -> None:
        """A control message. Those that cannot be read, or are for other receivers, are counted and dropped."""
        if channel not in (HEARTBEAT_CHANNEL, self._inbox, self._peer_channel):
            return
        head = control.read_head(data)
        if head is None or (channel != self._peer_channel and len(data) > control.FROM_AGENT_BYTES_MAX):
            self.counters.garbage += 1
            return
        authentication = self._authentication
        if channel == HEARTBEAT_CHANNEL:
            authentic = authentication.is_from_agents(link, head, data, now)
        elif channel == self._peer_channel:
            authentic = authentication.is_from_peer(head, data)
        else:
            authentic = authentication.is_from_agent(link, head, data, now)
        if not authentic:
            if self._context.key is None:
                self.counters.garbage += 1
            else:
                self.counters.unauthentic += 1
            return
        try:
            client, number, message = control.decode(data, head)
        except ProtocolError:
            self.counters.garbage += 1
            return
        self._context.generation = head.generation
        if channel == HEARTBEAT_CHANNEL:
            self._broadcast(link, number, message, now)
        elif channel == self._peer_channel:
            self._from_peer(link, client, number, message, now)
        else:
            self._from_agent(link, number, message, now)

    def _broadcast(self, link: ServerLink, number: int, message: control.Control, now: float) -> None:
        if isinstance(message, control.Heartbeat) and message.server == link.server:
            self._heartbeat(link, number, message, now)
        elif isinstance(message, control.Resync) and message.server == link.server:
            if self._context.key is not None and not link.takes_resync(number, message):
                self.counters.outdated += 1
                return
            self.counters.resyncs += 1
            link.incarnation = message.incarnation
            self._refutations.heard(link)
            channels, patterns = self._subscriber.present(link)
            streams = self._publisher.present(link)
            for part in control.presents(message.incarnation, number, channels, patterns, streams):
                self._context.tell_agent(link, part)
            self._subscriber.acknowledge_all(link)
            self._context.incarnation_known(link)
        else:
            self.counters.garbage += 1

    def _heartbeat(self, link: ServerLink, number: int, heartbeat: control.Heartbeat, now: float) -> None:
        age = Age.NEWS
        if self._context.key is not None:
            age = link.order.judge(heartbeat.instance, number)
        if age is Age.NEWS:
            self._lease_due(link, now)
            link.heartbeat_heard(number, heartbeat, self._lease_s(heartbeat.lease_ms))
            self._take_heartbeat(link, heartbeat.ring_version, now)
            if self._context.key is not None:
                self._refutations.heard(link)
                self._refutations.told(link, heartbeat, True, now)
            return
        self._refutations.told(link, heartbeat, False, now)
        self.counters.outdated += 1
        greeted = link.greeted_since(now - self.limits.hello_retry_s)
        if age is Age.STRANGE and not greeted and now >= link.busy_until:
            self._greet(link, now)
            self._context.touch(link)

    def _from_agent(self, link: ServerLink, number: int, message: control.Control, now: float) -> None:
        match message:
            case control.Welcome():
                if message.ring and message.ring_version > self._context.book.version:
                    self.ring(message.ring, now)
                self._lease_due(link, now)
                if link.welcomed(number, message, self._lease_s(message.lease_ms)):
                    if link.offered is not None and link.offered.generation == self._context.generation:
                        self.counters.renewals += 1
                        link.use(link.offered)
                        self._publisher.key_changed(link)
                    self._refutations.heard(link)
                    self._take_heartbeat(link, message.ring_version, now)
                    self._context.incarnation_known(link)
            case control.Answer():
                self._answered(link, number, message, now)
            case control.Introduced():
                self._receiver.introduced(number, message, now)
            case control.QueueRequested():
                self._queue_requests.answered(number, message)
            case control.Notice():
                self._noticed(link, message, now)
            case control.Refused():
                self._refused(link, number, message, now)
            case _:
                self.counters.garbage += 1

    def _refused(self, link: ServerLink, number: int, refused: control.Refused, now: float) -> None:
        """An agent refuses this client's messages, for good or for a while. A usable link has shown that its agent
        accepts them."""
        if refused.code == control.REFUSED_BUSY and link.opened_at_number < number <= self._context.number:
            self.counters.busy += 1
            wait_s = min(refused.retry_ms, BUSY_MS_MAX) / 1000
            link.busy_until = max(link.busy_until, now + wait_s)
            return
        if refused.code == control.REFUSED_IDENTITY and link.opened_at_number < number <= self._context.number:
            self._refused_identity(link, number, now)
            return
        if link.state is states.LinkState.USABLE or not link.opened_at_number < number <= self._context.number:
            self.counters.garbage += 1
            return
        self._context.effects.append(
            AgentRefused(link.server, refused.code, refused.version_min, refused.version_max, refused.text)
        )

    def _refused_identity(self, link: ServerLink, number: int, now: float) -> None:
        """An agent does not know the client's key: it was revoked, or the agent does not have the newer secret yet. The
        newest ring shows which."""
        self._context.effects.append(FetchRing())
        if number != link.offered_at_number:
            link.disown(now)
            self._lease_due(link, now)

    def _from_peer(self, link: ServerLink, client: int, number: int, message: control.Control, now: float) -> None:
        match message:
            case control.Heal():
                self._publisher.heal(link, client, number, message, now)
            case control.Resend() | control.Healed():
                request = self._receiver.request(number, client)
                if self._context.key is not None and request is None:
                    self.counters.outdated += 1
                    return
                self._context.peers.answered(client, self._context.generation)
                for sub in list(self._subscriber.by_channel.get(message.channel, ())):
                    self._heal(sub, message, link.server, now, request)
                for subs in list(self._subscriber.by_pattern.values()):
                    for sub in subs:
                        if message.channel in sub.channels:
                            self._heal(sub, message, link.server, now, request)
                if isinstance(message, control.Healed):
                    self._receiver.answered(number)
            case _:
                self.counters.garbage += 1

    def _noticed(self, link: ServerLink, notice: control.Notice, now: float) -> None:
        """A channel has moved. If the entry is already known, the agent has missed Subscribed or Left, so it is sent
        again. If this client does not subscribe there, the agent has missed the Bye."""
        self.counters.notices += 1
        if (False, notice.name) not in link.listening:
            self._context.tell_agent(link, control.Bye(notice.name, False, link.incarnation))
        known = notice.entry == self._context.book.signed_entry(notice.name)
        self.entry(notice.entry, now)
        if known:
            self._publisher.repeat_left(link, notice.name)
            self._subscriber.acknowledge_again(notice.name)

    def _heal(
        self,
        sub: SubscriptionCore,
        message: control.Resend | control.Healed,
        server: str,
        now: float,
        request: Request | None,
    ) -> None:
        if isinstance(message, control.Resend):
            self._receiver.resent(sub, message, server, now)
        else:
            if request is not None:
                self._refutations.denied(sub, message, request, now)
            self._receiver.healed(sub, message, now, request)

    def _answered(self, link: ServerLink, nonce: int, answer: control.Answer, now: float) -> None:
        if answer.ring:
            self.ring(answer.ring, now)
        if answer.entry:
            self.entry(answer.entry, now)
        site = self._subscriber.asked.get(nonce)
        review = self._subscriber.reviews.get(nonce)
        lane = self._publisher.asked.get(nonce)
        asked = site or review or lane
        if asked is None or asked.link is not link or answer.server != link.server:
            return
        link.incarnation = link.incarnation or answer.incarnation
        if site is not None and site.sub.name == answer.name and (whole := site.take_part(answer)) is not None:
            del self._subscriber.asked[nonce]
            self._context.timers.cancel(("hello", site))
            self._subscriber.answered(site, whole, now)
        if review is not None and review.sub.name == answer.name and (whole := review.take_part(answer)) is not None:
            del self._subscriber.reviews[nonce]
            self._refutations.reviewed(review, whole, now)
        if lane is not None and lane.out.name == answer.name:
            del self._publisher.asked[nonce]
            self._publisher.answered(lane, now)

    # Time

    def next_timer(self) -> float | None:
        """When `timer` wants to be called next."""
        return self._context.timers.next_at()

    def timer(self, now: float) -> None:
        """Runs the timers that are due."""
        for key in self._context.timers.due(now):
            assert isinstance(key, tuple)
            self._duties[key[0]](*key[1:], now)
        self._context.timers.set_if_absent(("sweep",), now + self.limits.publisher_idle_s / 4)

    def _sweep_due(self, now: float) -> None:
        for sub in self._subscriber:
            self._receiver.forget_idle(sub, now)
        if self._context.key is not None:
            self._refutations.swept(now)
        self._forget_entries()

    def _forget_entries(self) -> None:
        """Drops the entries of channels that were unused at the last sweep and are unused now. The agent at the ring
        home sends an entry again when it is needed."""
        book = self._context.book
        unused = {
            channel
            for channel in book.entries
            if channel not in self._subscriber.by_channel and not self._publisher.uses(channel)
        }
        for channel in unused & self._unused:
            book.forget_entry(channel)
        self._unused = unused
