"""Subscribing: the servers of each subscription, the handshake with their agents, and the reaction to servers that die
or come back and to changes of the ring.

Owns SUBSCRIBE, Hello and Bye. `receiver` judges what arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shoal.channels import states
from shoal.channels.client.context import Context
from shoal.channels.client.inbox import Inbox
from shoal.channels.client.receiver import UNBROKEN, Receiver
from shoal.channels.client.server_link import ServerLink
from shoal.channels.client.subscription import SubscribedServer, SubscriptionCore, Wanted
from shoal.channels.timers import patience
from shoal.plan.entry import Phase
from shoal.plan.ring import Members, Ring
from shoal.rules import rule
from shoal.wire import control

HANDSHAKE: Final = rule(
    "handshake", "A subscription is in force only when the agents of all its servers have answered."
)
NARROW_LAST: Final = rule("narrow_last", "Subscribers leave an old placement after its publishers.")
ALL_UNENDED_PLACEMENTS: Final = rule(
    "all_unended_placements", "Subscribers use every placement that has not ended, not only the last two."
)
FORGET_ROUNDING_S: Final = 1.0
"""Agents know to the second when a stream was heard."""
REMEMBERS: Final = rule("remembers", "Unknown publishers are reported only if no agent's memory reaches back.")
COMPLETE: Final = rule("complete", "Publishers for which an agent has no room are reported as unknown.")


UNKNOWN_SERVER: Final = "(one that joined and left unseen)"
"""The name of a server of a ring whose members are not known any more."""


class Subscriber:
    """All subscriptions of one router."""

    def __init__(self, context: Context, receiver: Receiver) -> None:
        self._context = context
        self._receiver = receiver
        self._count = 0
        self._placed_by = 0
        self.by_channel: dict[bytes, list[SubscriptionCore]] = {}
        self.by_pattern: dict[bytes, list[SubscriptionCore]] = {}
        self.asked: dict[int, SubscribedServer] = {}
        self.reviews: dict[int, SubscribedServer] = {}

    def __iter__(self) -> Iterator[SubscriptionCore]:
        for table in (self.by_channel, self.by_pattern):
            for subs in list(table.values()):
                yield from list(subs)

    def __len__(self) -> int:
        return sum(map(len, self.by_channel.values())) + sum(map(len, self.by_pattern.values()))

    def open(self, name: bytes, pattern: bool, inbox: Inbox, wanted: Wanted | None, now: float) -> SubscriptionCore:
        """A new subscription; it is in force when `in_force` becomes true."""
        self._count += 1
        sub = SubscriptionCore(self._count, name, pattern, inbox, wanted)
        (self.by_pattern if pattern else self.by_channel).setdefault(name, []).append(sub)
        self.place(sub, now)
        return sub

    def close(self, sub: SubscriptionCore) -> None:
        """Ends a subscription; the last one on a server unsubscribes there."""
        if sub.closed:
            return
        sub.closed = True
        table = self.by_pattern if sub.pattern else self.by_channel
        table[sub.name].remove(sub)
        if not table[sub.name]:
            del table[sub.name]
        for site in list(sub.sites.values()):
            site.step("closed")
            self._leave(site)

    # Servers

    def servers(self, sub: SubscriptionCore) -> tuple[str, ...]:
        """The servers on which a subscription belongs: all of them for a pattern, else those of the placement."""
        book = self._context.book
        if sub.pattern:
            return book.ring.ids if book.ring else ()
        placements = book.subscribed(sub.name)
        rules = self._context.rules
        if NARROW_LAST not in rules:
            placements = placements[-1:]
        elif ALL_UNENDED_PLACEMENTS not in rules:
            placements = placements[-2:]
        client = self._context.client
        return tuple(
            dict.fromkeys(server for placement in placements for server in placement.subscribe_servers(client))
        )

    def _earlier(self, sub: SubscriptionCore, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Servers where publishers with an older ring may be, or have been: a subscription asks there, and listens
        until they have followed."""
        if sub.pattern:
            return ()
        return tuple(server for server in self._context.book.earlier_servers(sub.name) if server not in wanted)

    def place_all(self, now: float) -> None:
        """Applies a new ring to every subscription."""
        for sub in self:
            self.place(sub, now)
        self._placed_by = self._context.book.version

    def place(self, sub: SubscriptionCore, now: float) -> None:
        """Applies the plan to the sites of a subscription. One that is in force leaves no server of the ring before the
        agent there has answered: publishers may have been there while the subscription was not."""
        homes = self.servers(sub)
        earlier = self._earlier(sub, homes)
        for server in (*homes, *earlier):
            site = sub.sites.get(server)
            if site is None:
                self._subscribe_on(sub, self._context.links[server], now)
                continue
            site.lost = False
            if site.state is states.SiteState.LINGERING and server in homes:
                site.step("moved back")
        for server, site in list(sub.sites.items()):
            asks = site.state in (states.SiteState.WAITING, states.SiteState.ASKING)
            answers = sub.in_force and asks and self._context.book.address(server) is not None
            if server in homes or answers or (server in earlier and not sub.in_force):
                continue
            if self._left_by_plan(sub, server):
                continue
            if asks and self._may_know(site):
                self._ask_outside_ring(site, now)
            else:
                self._move_away(site, now)
        self._check_in_force(sub, now)
        self._acknowledge(sub)

    def _may_know(self, site: SubscribedServer) -> bool:
        """Whether an unreachable server may know of messages that the subscription missed there: it is asked before it
        is left."""
        return site.sub.in_force and (site.incarnation != 0 or self._was_passed_by(site))

    def _ask_outside_ring(self, site: SubscribedServer, now: float) -> None:
        """A server has left the ring while the subscription had no connection to it. Its streams are in doubt; its
        agent is asked for `gap_timeout_s`, because the server may be slow and not dead."""
        if self._context.book.address(site.server) is None and not site.lost:
            site.lost = True
            self._doubt_streams(site, now)
            self._context.timers.set(("outside", site), now + self._context.limits.gap_timeout_s)

    def outside_due(self, site: SubscribedServer, now: float) -> None:
        """The agent of a server that left the ring has not answered: publishers that only it knew are unknown."""
        if not site.lost or site.state not in (states.SiteState.WAITING, states.SiteState.ASKING) or site.sub.closed:
            return
        site.lost = False
        if self._context.book.address(site.server) is None:
            site.step("closed")
            self._leave(site)
            self._receiver.report_unwatched(site.sub, site.server)

    def _left_by_plan(self, sub: SubscriptionCore, server: str) -> bool:
        """Whether a move leaves a server: then `_acknowledge` decides when, without a waiting time."""
        book = self._context.book
        entry = None if sub.pattern else book.placing_entry(sub.name)
        return entry is not None and server in entry.servers and book.address(server) is not None

    def _subscribe_on(self, sub: SubscriptionCore, link: ServerLink, now: float) -> None:
        revision = 0 if sub.pattern else self._context.book.revision(sub.name)
        site = sub.sites[link.server] = SubscribedServer(sub, link, self._placed_by, revision, now)
        link.sites[site] = None
        self._context.want(link, now)
        if sub.in_force:
            sub.whole = False
        if link.open:
            self._ask(site, now)

    def _move_away(self, site: SubscribedServer, now: float) -> None:
        """Leaves a server at once, or after a while if it still works."""
        if site.state is states.SiteState.IN_FORCE and site.sub.in_force:
            site.step("moved away")
            self._context.timers.set(("linger", site), now + self._context.limits.linger_s)
        elif site.state is not states.SiteState.LINGERING:
            site.step("closed")
            self._leave(site)

    def _was_passed_by(self, site: SubscribedServer) -> bool:
        """Whether publishers may have been at a server that left the ring before it answered. A move brings them only
        where all subscriptions are, so that is possible only where a channel follows the ring, or did when the
        subscription came to belong there."""
        book = self._context.book
        if book.address(site.server) is not None:
            return False
        entry = None if site.sub.pattern else book.placing_entry(site.sub.name)
        return entry is None or site.server not in entry.servers or self._is_entry_later(site)

    def _is_entry_later(self, site: SubscribedServer) -> bool:
        """Whether the channel's entry is newer than the one by which the subscription came to belong on a server: it
        does not tell where publishers were before."""
        return not site.sub.pattern and self._context.book.revision(site.sub.name) != site.revision

    def acknowledge_again(self, name: bytes) -> None:
        """An agent seems not to know that this client follows the channel's entry: sends Subscribed again."""
        for sub in self.by_channel.get(name, ()):
            for site in sub.sites.values():
                site.was_subscribed = 0
            self._acknowledge(sub)

    def acknowledge_all(self, link: ServerLink) -> None:
        """The agent of a server begins a new incarnation: it does not know which entries this client follows."""
        for site in list(link.sites):
            site.was_subscribed = 0
        for sub in {site.sub: None for site in link.sites}:
            self._acknowledge(sub)

    def _acknowledge(self, sub: SubscriptionCore) -> None:
        """Sends Subscribed to the agents once this client follows the channel's entry; then leaves the servers that a
        move leaves. A server that has not answered yet is left later: it may know of messages that were missed."""
        entry = None if sub.pattern else self._context.book.entry(sub.name)
        subs = self.by_channel.get(sub.name, ())
        if entry is None or not all(self._is_subscribed(other) for other in subs):
            return
        for other in list(subs):
            homes = self.servers(other)
            for server, site in list(other.sites.items()):
                if site.state is not states.SiteState.IN_FORCE:
                    continue
                if entry.phase is not Phase.END and site.was_subscribed < entry.newness:
                    site.was_subscribed = entry.newness
                    subscribed = control.Subscribed(sub.name, entry.newness, site.link.incarnation)
                    self._context.tell_agent(site.link, subscribed)
                if server not in homes and self._left_by_plan(other, server):
                    site.step("closed")
                    self._leave(site)

    def _is_subscribed(self, sub: SubscriptionCore) -> bool:
        """Whether a subscription is in force on every server where it belongs."""
        sites = (sub.sites.get(server) for server in self.servers(sub))
        return sub.in_force and all(site is not None and site.state is states.SiteState.IN_FORCE for site in sites)

    def linger_due(self, site: SubscribedServer, now: float) -> None:
        """Publishers have had time to follow: leaves the old server."""
        if site.state is not states.SiteState.LINGERING or site.sub.closed:
            return
        if self._is_subscribed(site.sub):
            site.step("linger over")
            self._leave(site)
        else:
            self._context.timers.set(("linger", site), now + self._context.limits.linger_s)

    def _leave(self, site: SubscribedServer) -> None:
        """Removes a site, unsubscribes and sends Bye."""
        link, sub = site.link, site.sub
        sub.sites.pop(site.server, None)
        link.sites.pop(site, None)
        self.asked.pop(site.nonce, None)
        self.drop_review(site)
        key = (sub.pattern, sub.name)
        count = link.listening.get(key, 0)
        if link.open and count:
            if count == 1:
                del link.listening[key]
                link.listen(b"PUNSUBSCRIBE" if sub.pattern else b"UNSUBSCRIBE", sub.name)
                self._context.say_bye(link, sub.pattern, sub.name)
                self._context.touch(link)
            else:
                link.listening[key] = count - 1
        elif not link.open:
            self._context.say_bye(link, sub.pattern, sub.name)
        if not link.wanted and self._context.book.address(link.server) is None:
            self._context.drop(link)

    # The handshake

    def _ask(self, site: SubscribedServer, now: float) -> None:
        sub, link = site.sub, site.link
        site.step("link opened")
        site.kept.clear()
        for _, stream in sub.all_streams():
            if stream.lane == site.server:
                stream.take_lane("", 0)
        key = (sub.pattern, sub.name)
        count = link.listening.get(key, 0)
        if count == 0:
            link.listen(b"PSUBSCRIBE" if sub.pattern else b"SUBSCRIBE", sub.name)
        link.listening[key] = count + 1
        self._number(site)
        self._hello(site, now)
        if HANDSHAKE not in self._context.rules and not sub.in_force:
            self._receiver.start(sub, now)

    def _number(self, site: SubscribedServer) -> None:
        """Gives a question a new nonce, so that the Answer to an earlier one is not mistaken for its own."""
        self.asked.pop(site.nonce, None)
        site.nonce = self._context.next_number()
        site.attempts = 0
        self.asked[site.nonce] = site

    def _hello(self, site: SubscribedServer, now: float) -> None:
        """Sends Hello, or waits for its turn if the agent is busy."""
        if site.link.is_busy(now):
            self._context.timers.set(("hello turn", site), self._context.queue(site.link, now))
        else:
            self._send_hello(site, now)

    def hello_turn(self, site: SubscribedServer, now: float) -> None:
        """A Hello has waited for its turn, which may have been postponed meanwhile."""
        if site.state is not states.SiteState.ASKING or not site.link.open:
            return
        if now < site.link.busy_until:
            self._hello(site, now)
        else:
            self._send_hello(site, now)

    def _send_hello(self, site: SubscribedServer, now: float) -> None:
        """Sends Hello. A repetition keeps its nonce: the Answer to any of them counts."""
        self.say_hello(site, site.nonce)
        wait_s = patience(self._context.limits.hello_retry_s, site.attempts)
        site.attempts += 1
        self._context.timers.set(("hello", site), now + wait_s)

    def say_hello(self, site: SubscribedServer, nonce: int) -> None:
        """Sends one Hello."""
        sub, book = site.sub, self._context.book
        version = book.version if sub.pattern else book.revision(sub.name)
        self._context.tell_agent(
            site.link,
            control.Hello(
                nonce,
                sub.name,
                sub.pattern,
                not sub.in_force,
                version,
                book.version,
                incarnation=site.incarnation,
            ),
        )

    def drop_review(self, site: SubscribedServer) -> None:
        """The answer to a review is not awaited any more."""
        if site.review is not None:
            self.reviews.pop(site.review.nonce, None)
            site.review = None

    def hello_due(self, site: SubscribedServer, now: float) -> None:
        """No Answer yet: sends Hello again."""
        if site.state is states.SiteState.ASKING and site.link.open:
            self._hello(site, now)

    def answered(self, site: SubscribedServer, answer: control.Answer, now: float) -> None:
        """The agent has registered the subscription and lists the position of each stream."""
        sub = site.sub
        self._context.counters.handshakes += 1
        site.step("answered")
        site.lost = False
        complete = answer.complete or COMPLETE not in self._context.rules
        if complete:
            sub.unlisted.pop(site.server, None)
        else:
            sub.unlisted[site.server] = now
        if not sub.in_force:
            site.incarnation = answer.incarnation
            for channel, stream, last, _ in (*answer.absent, *answer.streams):
                known, server = sub.baseline.get((channel, stream), (0, site.server))
                placed = last == known and site.server in self._context.book.placement(channel).servers
                sub.baseline[channel, stream] = max(known, last), site.server if last > known or placed else server
            if not complete:
                self._receiver.report_unlisted(sub, site.server)
            self._check_in_force(sub, now)
            return
        if not site.incarnation and self._is_unheard(site, answer.since):
            self._receiver.report_unwatched(sub, site.server)
        another, restarted = site.incarnation != answer.incarnation, site.incarnation not in (0, answer.incarnation)
        site.incarnation = answer.incarnation
        heard = {(channel, stream) for channel, stream, _, _ in answer.streams}
        heard -= {(channel, stream) for channel, stream, _, _ in answer.absent}
        for listed in (*answer.heard(), *(answer.heard_before() if another else ())):
            self._receiver.evidence(sub, listed, site.server, now)
        self._receiver.vouched(sub, heard, site.server)
        self._receiver.returned(sub, site, [*answer.streams, *answer.absent], now)
        if restarted:
            self._context.counters.restarts_seen += 1
        if restarted or not complete:
            self._doubt_unlisted(site, heard, now)
        if not complete:
            self._receiver.report_unlisted(sub, site.server)
        elif restarted and not (answer.remembers and REMEMBERS in self._context.rules):
            self._receiver.report_unwatched(sub, site.server)
        if sub.settled:
            self._is_back(sub, now)
        self._acknowledge(sub)
        if site.server not in self.servers(sub) and not self._left_by_plan(sub, site.server):
            self._move_away(site, now)

    def _is_back(self, sub: SubscriptionCore, now: float) -> None:
        """The subscription is in force on all its servers again. Agents forget streams that have been quiet for
        `publisher_idle_s`: after a longer absence some may be unknown that began and ended meanwhile."""
        if sub.away_since is None:
            return
        limits = self._context.limits
        remembered_s = (limits.publisher_idle_s - FORGET_ROUNDING_S) * (1 - limits.clock_drift_max)
        if (now - sub.away_since) * (1 + limits.clock_drift_max) > remembered_s:
            self._receiver.report_forgotten(sub)
        sub.away_since = None

    def _is_unheard(self, site: SubscribedServer, since: int) -> bool:
        """Whether publishers may have come to a server, by a ring that this client did not know, and died before the
        agent's process began; `since` is the ring at that time."""
        ring = self._context.book.ring
        assert ring is not None
        between = ring.memberships(site.known + 1, since)
        by_ring = self._is_entry_later(site) and (
            between is None or any(members.home(site.sub.name) == site.server for members in between)
        )
        return by_ring or site.server in self._belonged(site.sub, between, site.server)

    def _doubt_unlisted(self, site: SubscribedServer, heard: set[tuple[bytes, int]], now: float) -> None:
        """While this client was not connected, the agent lost its connection too, or the server restarted, or the
        agent's tables are full. Streams that it does not list are in doubt."""
        for chan, stream in site.sub.all_streams():
            if stream.server == site.server and (chan.name, stream.stream) not in heard:
                self._receiver.doubt(site.sub, chan, stream, now)

    def report_missed(self, known: Ring) -> None:
        """A new ring has come. A server that joined and left again since the previously known ring may have carried
        messages that are lost: its publishers may have left too, and this client never subscribed there."""
        ring = self._context.book.ring
        assert ring is not None
        between = ring.since(known)
        for sub in self:
            if not sub.in_force:
                continue
            for server in self._passed(sub, between, {*known.ids, *ring.ids}):
                self._receiver.report_unwatched(sub, server)

    def _passed(self, sub: SubscriptionCore, between: tuple[Members, ...] | None, stayed: set[str]) -> list[str]:
        """The servers that came and went on which a subscription should have been meanwhile."""
        return sorted(self._belonged(sub, between, UNKNOWN_SERVER) - stayed)

    def _belonged(self, sub: SubscriptionCore, rings: tuple[Members, ...] | None, unknown: str) -> set[str]:
        """The servers on which a subscription may belong by some rings, and not by the plan alone; `unknown` if these
        rings are not known any more."""
        entry = None if sub.pattern else self._context.book.placing_entry(sub.name)
        if rings is None:
            return {unknown} if entry is None else set()
        if sub.pattern:
            return {server for members in rings for server in members.ids}
        return {server for members in rings for server in self._context.book.used_instead(sub.name, members)}

    def _doubt_streams(self, site: SubscribedServer, now: float) -> None:
        """Doubts the streams that were last heard on a server that was lost."""
        for chan, stream in site.sub.all_streams():
            if stream.server == site.server:
                self._receiver.doubt(site.sub, chan, stream, now)

    def _check_in_force(self, sub: SubscriptionCore, now: float) -> None:
        if not sub.in_force and sub.sites and all(s.state is states.SiteState.IN_FORCE for s in sub.sites.values()):
            self._receiver.start(sub, now)
            for site in sub.sites.values():
                if site.link.state is states.LinkState.STALE:
                    self.link_stale(site.link)
            self.place(sub, now)

    # Links

    def link_opened(self, link: ServerLink, now: float) -> None:
        """A connection is open: subscribes and sends Hello for all sites in one write."""
        for site in sorted(link.sites, key=lambda site: site.sub.id):
            if site.state is states.SiteState.WAITING:
                self._ask(site, now)
        self._context.repeat_byes(link)

    def link_stale(self, link: ServerLink) -> None:
        """The lease is over: the server may leave the ring and come back while publishers use the others."""
        for site in link.sites:
            if site.sub.in_force and UNBROKEN in self._context.rules:
                site.sub.whole = False

    def link_lost(self, link: ServerLink, now: float) -> None:
        """A connection is lost: every site asks again when it is back. Messages to the agent may be lost with it, or
        with the server, so they are sent again too."""
        for site in list(link.sites):
            self.asked.pop(site.nonce, None)
            self.drop_review(site)
            site.was_subscribed = 0
            if site.sub.in_force:
                site.sub.whole = False
                if site.sub.away_since is None:
                    site.sub.away_since = max(link.carried_until, site.added_at, site.sub.owed_from)
            if site.state is states.SiteState.IN_FORCE and link.incarnation:
                site.incarnation = link.incarnation
            if site.state is not states.SiteState.WAITING:
                site.step("link lost")
            if site.state is states.SiteState.LEFT:
                site.sub.sites.pop(site.server, None)
                link.sites.pop(site, None)
                self._context.say_bye(link, site.sub.pattern, site.sub.name)
                self._doubt_streams(site, now)

    def present(self, link: ServerLink) -> tuple[list[bytes], list[bytes]]:
        """The channels and patterns to which this client listens on a server."""
        names = link.listening
        return [n for is_pattern, n in names if not is_pattern], [n for is_pattern, n in names if is_pattern]
