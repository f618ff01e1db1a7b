"""What the scenario `balancer` sees: who writes what by which right, what is proposed and applied, how servers come and
go.

Owns the counters of `exercised` that are about balancing, and the checks of each write at the moment it takes effect.
Shares no code with the balancer but the forms of what is written.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from shoal.balance.balancer_keys import STATE_KEY, BalancerState, decode
from shoal.balance.decision_record import DecisionRecord, Outcome
from shoal.balance.proposal import Proposal, decode_proposal, digest_of
from shoal.errors import PlanError
from shoal.lab.sim.models.redis_keys import Stream
from shoal.lab.sim.world.process import FIRST_SECOND
from shoal.leader.balancer_shell import BalancerShell
from shoal.load.fold_state import FoldCounters
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.plan.entry import Phase
from shoal.plan.keys import KEEPER_LEASE, POOL_PREFIX, Mark, moves_prefix, pool_server, read_mark
from shoal.plan.move_request import MoveRequest, decode_request
from shoal.wire.record_entry import ARCHIVED_KEY, record_key

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.balancer import BalancerRun

STALE_S: Final = 3.0
"""How old what a leader goes by may be, when nothing strikes."""
SKEW_S: Final = 2.5
"""By how much the end of a window may be ahead of the time, and clocks of leaders apart."""
EMPTY_MIN_S: Final = 1.0
"""For so long, at least, a server that is drained must have been seen empty."""
MARKED_S: Final = 1.0
"""So long after the mark of a death a keeper may still go by what it saw before: whoever comes back in that very moment
is taken in, and sent out again because of the mark."""
RECORDS_KNOWN_S: Final = 4.0
"""A leader knows of records that are older than this: it asks a drained server every two seconds."""
SAMPLE_S: Final = 0.5
OLD_LOAD_S: Final = 5.0
"""How much older than a lead the load may be that it goes by: a window, the wait for late telemetry, and clocks."""
DIGEST_CHARACTERS: Final = 16
ASKED: Final = "asked for"
"""Stands for the holder where a proposal was asked for."""


class BalancerWatch:
    """Follows one run."""

    def __init__(self, run: BalancerRun) -> None:
        self.run = run
        self.seen: Counter[str] = Counter()
        self.violations: list[tuple[str, str]] = []
        self.changed_at = 0.0
        """When last anything was asked for, marked, added or removed."""
        self.pool_changed_at = 0.0
        """When last servers came, went or were marked."""
        self.at_rest = False
        """Whether load has been steady and nothing has moved for so long that nothing should."""
        self._proposals: dict[str, tuple[str, Proposal]] = {}
        self._applied: dict[str, tuple[float, str]] = {}
        """By the beginning of a digest: when the plan's first request was written, and by whom."""
        self._merged: set[bytes] = set()
        """Channels that were merged under steady load. One that is as busy as the bound of that may dip below it at any
        time by chance; then it must stay."""
        self._carried_out: dict[str, str] = {}
        """Who has applied a plan, whether or not it moves anything."""
        self._requests: dict[str, str] = {}
        """The plan of each request that stands, by key."""
        self._planned_at = -1e9
        self._marks: dict[str, Mark] = {}
        self._in_ring_at: dict[str, float] = {}
        self._lost: dict[str, float] = {}
        """Servers that have died and not come back, and when that was marked."""
        self._used_at: dict[str, float] = {}
        self._empty: dict[str, list[tuple[float, float]]] = {}
        """The time spans in which a server was seen empty, oldest first. Who looks in by an old ring, and is sent on
        before the next look, does not count."""
        self._there: dict[str, set[str]] = {}
        self._balancing: dict[str, BalancerShell] = {}
        """By holder: one life of a balancer."""
        self._counters: dict[str, tuple[int, int, int]] = {}
        self._lead_token = 0
        self._leads_since: dict[str, float] = {}
        """By holder: when its last time in the lead began."""
        self._adding: set[str] = set()
        """Servers that the balancer knows to come, and that have not been in the ring yet."""

    def violate(self, kind: str, text: str) -> None:
        """A promise is broken now."""
        self.violations.append((kind, f"{text} at t={self.run.world.now:.3f}"))
        self.run.world.note("violation", kind, text)

    @property
    def leaving(self) -> bool:
        """Whether a server that was sent away is still in the ring."""
        return any(self._marks.get(server) is Mark.OUT for server in self.run.book_ids())

    # -- what is written -------------------------------------------------------------------------------------

    def written(self, key: str) -> None:
        """The coordinator has taken a write, or a deletion."""
        self._note_lead()
        self._check_right(key)
        if key == STATE_KEY:
            self._state_written()
        elif key.startswith(moves_prefix()):
            self._request_written(key)
        elif key.startswith(POOL_PREFIX):
            self._mark_written(key)

    def _note_lead(self) -> None:
        """Notes when a lead begins: its first write comes at once."""
        lease = self.run.coordinator.store.lease_of(KEEPER_LEASE)
        if lease is not None and lease.token != self._lead_token:
            self._lead_token = lease.token
            self._leads_since[lease.holder] = self.run.world.now

    def _state_written(self) -> None:
        stored = self.run.coordinator.store.get(STATE_KEY)
        if stored is not None:
            self._adding |= decode(stored.value, BalancerState).adding.keys() - {*self._in_ring_at}

    def _check_right(self, key: str) -> None:
        """Whoever writes as a leader must be the leader at this very moment."""
        writer = self.run.coordinator.serving
        if writer is None or writer[0] not in self.run.leaders:
            return
        lease = self.run.coordinator.store.lease_of(KEEPER_LEASE)
        holder = f"{writer[0]}/{writer[1]}"
        if lease is None or lease.holder != holder:
            self.violate("deposed", f"{holder} wrote {key}, though {lease.holder if lease else 'nobody'} leads")

    def _request_written(self, key: str) -> None:
        stored = self.run.coordinator.store.get(key)
        self._requests.pop(key, None)
        if stored is None:
            return
        try:
            request = decode_request(stored.value)
        except PlanError as error:
            self.violate("failed", str(error))
            return
        if request.goes_there:
            self.seen["move hurried"] += 1
            return
        plan, dash, index = request.id.partition("-")
        if not dash:
            self.seen["move by hand"] += 1
            return
        now = self.run.world.now
        self.changed_at = now
        known = self._proposals.get(plan)
        if known is None:
            self.violate("unproposed", f"{request} belongs to no proposal")
            return
        self._check_request(request, known[1], int(index))
        self._check_alone(plan)
        self._requests[key] = plan
        if plan not in self._applied:
            self.seen["proposal applied on request"] += known[0] == ASKED
            writer = self.run.coordinator.serving
            self._applied[plan] = now, writer[0] if writer else ""
            self.seen["plan"] += 1
            self._check_basis(known[1])
            self._check_wait(known[1], known[0] == ASKED)
            self.run.plan_begun(writer[0] if writer else "")
        reason = known[1].moves[int(index)].reason
        self.seen[f"moved for {reason}"] += 1
        if self.at_rest and (reason != "merge" or request.unit in self._merged):
            self.violate("restless", f"{request} for {reason} under steady load")
        elif self.at_rest:
            self._merged.add(request.unit)

    def _check_request(self, request: MoveRequest, proposal: Proposal, index: int) -> None:
        """What is asked for is what was proposed, and names servers of the pool only."""
        move = proposal.moves[index]
        if (move.unit, move.after.mode, move.after.servers) != (request.unit, request.mode, request.servers):
            self.violate("other than proposed", f"{request} is not {move}")
        now = self.run.world.now
        for server in request.servers:
            if self._in_ring_at.get(server, -1e9) < now - STALE_S and server not in self.run.book_ids():
                self.violate("stranger", f"{request} names {server}, which is not in the ring")

    def _check_alone(self, plan: str) -> None:
        now, timeout_s = self.run.world.now, self.run.options.move_timeout_s
        for key, other in self._requests.items():
            began_at = self._applied[other][0]
            if other != plan and now - began_at < timeout_s * 0.9:
                self.violate("two at once", f"plan {plan} begins while {key} of {other} has not ended")

    def _check_wait(self, proposal: Proposal, asked: bool) -> None:
        """Between two plans of `dynamoth` there is a while, whoever makes them, unless servers have died."""
        now = self.run.world.now
        since_s, self._planned_at = now - self._planned_at, now
        lost = all(move.reason == "lost" for move in proposal.moves)
        if proposal.policy == "dynamoth" and not asked and not lost:
            wait_s = self.run.settings.wait_s
            if since_s < wait_s - SKEW_S:
                self.violate("hasty", f"a plan after {since_s:.1f} s, though {wait_s:g} s are to pass")

    def _check_basis(self, proposal: Proposal) -> None:
        """What a proposal was made from has not changed long ago."""
        run, now = self.run, self.run.world.now
        ring = run.book.ring
        if ring is not None and ring.version != proposal.ring_version and now - run.ring_at > STALE_S:
            self.violate("stale", f"a proposal of ring {proposal.ring_version} is applied to ring {ring.version}")
        for move in proposal.moves:
            entry = run.book.entry(move.unit)
            newness = entry.newness if entry else 0
            if newness != move.revision and now - run.entry_at.get(move.unit, now) > STALE_S:
                self.violate("stale", f"{move.unit.decode()} was at {move.revision}, and is at {newness}")

    # -- the pool --------------------------------------------------------------------------------------------

    def _mark_written(self, key: str) -> None:
        server = pool_server(key)
        stored = self.run.coordinator.store.get(key)
        before = self._marks.pop(server, None)
        mark = read_mark(stored.value) if stored is not None else None
        if mark is not None:
            self._marks[server] = mark
        if mark is before:
            return
        if mark is None and server in self.run.gone:
            return
        self.changed_at = self.pool_changed_at = self.run.world.now
        self.run.world.note("mark", server, str(before), str(mark))
        here = server in self.run.book_ids()
        if mark in (Mark.FREEING, Mark.DRAIN) and before in (None, Mark.GUEST):
            self.seen["server drained"] += 1
        elif mark is Mark.OUT and before is Mark.DRAIN and here:
            self._check_empty(server)
            if self.run.options.keep_records and self._has_records(server, RECORDS_KNOWN_S):
                self.violate("records lost", f"{server} is sent away, and its records are not archived")
        elif mark is Mark.LOST:
            self.seen["server lost"] += 1
            self._lost[server] = self.run.world.now
        elif mark in (None, Mark.GUEST) and before in (Mark.FREEING, Mark.DRAIN):
            self.seen["server kept after all"] += 1
        elif mark is None and before is Mark.GUEST and here:
            self.seen["guest promoted"] += 1

    def _check_empty(self, server: str) -> None:
        """A server leaves because it is empty: nobody is there, and nothing names it."""
        self.seen["server left empty"] += 1
        now, run = self.run.world.now, self.run
        ring = run.book.ring
        if ring is not None and server in ring.homes:
            self.violate("not drained", f"{server} leaves, and is a home")
        for channel, entry in run.watch.entries.items():
            placed = entry.servers if entry.phase is not Phase.END else entry.placement.servers
            if server in (*placed, *entry.helped) and now - run.entry_at.get(channel, now) > STALE_S:
                self.violate("not drained", f"{server} leaves, and {channel.decode()} is there: {entry}")
        recent_s = STALE_S + run.options.empty_s
        spans = self._empty.get(server, [])
        if not any(until - since >= EMPTY_MIN_S and now - until <= recent_s for since, until in spans):
            self.violate("not drained", f"{server} leaves, and was not seen empty: {self.users(server)}")

    def users(self, server: str) -> list[str]:
        """The channels that somebody subscribes to at a server."""
        redis = self.run.server_of(server)
        return sorted(name.decode() for name in redis.model.channels_in_use() if not name.startswith(b"__shoal:"))

    def sample(self) -> None:
        """Looks at the servers now and then."""
        now = self.run.world.now
        for server, mark in self._marks.items():
            if mark is Mark.DRAIN and self.run.is_there(server):
                self.seen["drained server with records"] += self._has_records(server)
                spans = self._empty.setdefault(server, [])
                now_there = {*self.users(server)}
                stayed = now_there & self._there.get(server, now_there)
                self._there[server] = now_there
                if not stayed:
                    goes_on = bool(spans) and now - spans[-1][1] < 2 * SAMPLE_S
                    spans.append((spans.pop()[0] if goes_on else now, now))
        self.run.world.after(SAMPLE_S, self.sample)

    def _has_records(self, server: str, age_s: float = 0.0) -> bool:
        """Whether a server has entries of a record that are at least so old and not archived."""
        model, clock = self.run.server_of(server).model, self.run.server_of(server).node.clock()
        stream = model.keys.values.get(record_key(self.run.channels[0].encode()))
        archived = model.keys.values.get(ARCHIVED_KEY, b"0")
        assert isinstance(archived, bytes)
        entries = stream.entries if isinstance(stream, Stream) else []
        return any(int(archived) <= id[0] <= (clock - age_s) * 1e3 for id, _ in entries)

    def removed(self, server: str) -> None:
        """The provider ends a server."""
        self.changed_at = self.pool_changed_at = self.run.world.now
        self.seen["server removed"] += 1
        if server in self.run.book_ids():
            self.violate("not drained", f"{server} is removed, and is in the ring")

    def added(self, server: str) -> None:
        """A server has come."""
        self.changed_at = self.pool_changed_at = self.run.world.now
        self.seen["server added"] += 1

    def ring_written(self, before: set[str], after: set[str]) -> None:
        """The ring has changed."""
        now, ring = self.run.world.now, self.run.book.ring
        assert ring is not None
        self.changed_at = self.pool_changed_at = now
        for server in before | after:
            self._in_ring_at[server] = now
        for server in sorted(self._adding & after):
            self._adding.discard(server)
            if server in ring.homes and not all(other in self._marks for other in ring.ids):
                self.violate("not a guest", f"{server} was added and joins as a home")
        for server in sorted(after - before):
            if now - self._lost.get(server, now) > MARKED_S:
                self._came_back(server)
        for server in sorted(before - after):
            if self._marks.get(server) is Mark.OUT:
                continue
            self.seen["server died"] += 1

    def _came_back(self, server: str) -> None:
        """Whoever died joins empty."""
        del self._lost[server]
        self.seen["server died and came back empty"] += 1
        run, ring = self.run, self.run.book.ring
        assert ring is not None
        if server in ring.homes and len(ring.homes) < len(ring.ids):
            self.violate("not empty", f"{server} came back as a home")
        for channel, entry in run.watch.entries.items():
            if server in entry.placement.servers and run.world.now - run.entry_at.get(channel, 0.0) > STALE_S:
                self.violate("not empty", f"{server} came back, and {channel.decode()} is there: {entry}")

    # -- what a balancer says --------------------------------------------------------------------------------

    def follow(self, holder: str, balancing: BalancerShell) -> None:
        """A life of a balancer has begun."""
        self._balancing[holder] = balancing

    def decided(self, holder: str, record: DecisionRecord) -> None:
        """A decision was put on record."""
        self.seen["decision"] += 1
        self.seen["window"] += 1
        who = ASKED if record.asked else holder
        try:
            self._proposals[digest_of(record.proposal)[:DIGEST_CHARACTERS]] = who, decode_proposal(record.proposal)
        except PlanError as error:
            self.violate("failed", f"{record.policy}: {error}")
        window = LoadWindow.from_bytes(record.window, KINDS)
        self._check_fresh(holder, record, window)
        self.seen["window with missing telemetry"] += not all(window.hosts["complete"].to_pylist())
        self._count_telemetry(holder, self._balancing[holder].fold_counters)

    def _check_fresh(self, holder: str, record: DecisionRecord, window: LoadWindow) -> None:
        """What a leader does of its own accord goes by the load of its time in the lead."""
        self._note_lead()
        began_s = FIRST_SECOND + self._leads_since.get(holder, 0.0)
        if not record.asked and window.end_s < began_s - OLD_LOAD_S:
            age_s = began_s - window.end_s
            self.violate("old load", f"{holder} goes by a window that ended {age_s:.1f} s before it led")

    def came_of(self, holder: str, outcome: Outcome) -> None:
        """What became of a decision was put on record."""
        plan = outcome.digest[:DIGEST_CHARACTERS]
        self.run.world.note("outcome", outcome.state, plan, str(outcome.facts))
        self.seen[f"plan {outcome.state}"] += 1
        if outcome.state == "failed":
            self.violate("failed", str(outcome.facts))
        elif outcome.state == "refused":
            why = str(outcome.facts.get("why", ""))
            again = "applied already" in why
            self.seen["proposal refused that was applied already"] += again
            self.seen["stale proposal refused"] += "changed since" in why and not again
            self.seen["proposal refused while a plan is under way"] += "under way" in why
        elif outcome.state == "applied":
            if plan in self._carried_out:
                self.violate("applied twice", f"{holder} applies {plan}, as {self._carried_out[plan]} did")
            self._carried_out[plan] = holder
        elif outcome.state == "ended":
            began = self._applied.get(plan)
            self.seen["standby finished a plan"] += began is not None and began[1] != holder.split("/")[0]
            self.seen["move given up"] += int(outcome.facts.get("given_up", 0))
            self.seen["late move"] += int(outcome.facts.get("late", 0))

    def _count_telemetry(self, holder: str, counters: FoldCounters) -> None:
        """Counts what became of the telemetry that a life of a balancer has read; each lead begins at 0."""
        now = counters.late, counters.duplicates, counters.early
        before = self._counters.get(holder, (0, 0, 0))
        for name, value, known in zip(("late", "duplicate", "early"), now, before, strict=True):
            self.seen[f"{name} telemetry"] += value - known if value >= known else value
        self._counters[holder] = now


class AuditTap:
    """The audit log of a simulated balancer: the watch sees what is written to it."""

    def __init__(self, watch: BalancerWatch, holder: str) -> None:
        self._watch = watch
        self._holder = holder

    def write_decision(self, record: DecisionRecord, *, quiet: bool) -> None:
        """Puts a decision on record."""
        self._watch.decided(self._holder, record)

    def write_outcome(self, outcome: Outcome) -> None:
        """Puts on record what became of one."""
        self._watch.came_of(self._holder, outcome)
