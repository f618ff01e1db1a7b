"""Observes the scenario `balancer`: writes and the leases behind them, proposals and their application, changes of the
pool.

Owns the counters of `exercised` about balancing, and the checks of each write when it takes effect. Shares only the
formats of the written values with the balancer.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from shoal.balance.balancer_keys import PINS_PREFIX, STATE_KEY, BalancerState, decode, pin_channel
from shoal.balance.decision_record import DecisionRecord, Outcome
from shoal.balance.proposal import Proposal, decode_proposal, digest_of
from shoal.errors import PlanError
from shoal.lab.sim.world.process import FIRST_SECOND
from shoal.leader.balancer_shell import BalancerShell
from shoal.load.fold_state import FoldCounters
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.plan.entry import Phase
from shoal.plan.keys import KEEPER_LEASE, POOL_PREFIX, Mark, moves_prefix, pool_server, read_mark
from shoal.plan.move_request import MoveRequest, decode_request
from shoal.queues.keyspace.keys import Stream
from shoal.wire.record_entry import ARCHIVED_KEY, record_key

if TYPE_CHECKING:
    from shoal.lab.sim.scenarios.balancer import BalancerRun

STALE_S: Final = 3.0
"""How old the information of a leader may be without faults."""
SKEW_S: Final = 2.5
"""How far the end of a window may be in the future, and how far the clocks of leaders may differ."""
EMPTY_MIN_S: Final = 1.0
"""A drained server must have been observed empty for at least this long."""
MARKED_S: Final = 1.0
"""For this long after a server is marked as lost, a keeper may still act without the mark: it lets a server that
returns just then join, and removes it again when it sees the mark."""
RECORDS_KNOWN_S: Final = 4.0
"""A leader knows of all records older than this, because it asks a drained server every two seconds."""
SAMPLE_S: Final = 0.5
OLD_LOAD_S: Final = 5.0
"""How long before the start of its lead a leader's load window may have ended: a window, the wait for late telemetry,
and clock errors."""
DIGEST_CHARACTERS: Final = 16
ASKED: Final = "asked for"
"""Takes the place of the holder for a proposal on request."""


class BalancerWatch:
    """Observes and checks one run."""

    def __init__(self, run: BalancerRun) -> None:
        self.run = run
        self.seen: Counter[str] = Counter()
        self.violations: list[tuple[str, str]] = []
        self.changed_at = 0.0
        """The last time that a move was requested or the pool changed."""
        self.at_rest = False
        """Whether the load has been steady without a move for so long that there must be no further move."""
        self._proposals: dict[str, tuple[str, Proposal]] = {}
        self._applied: dict[str, tuple[float, str]] = {}
        """By digest prefix: when the plan's first request was written, and by which leader."""
        self._merged: set[bytes] = set()
        """Channels that were merged under steady load. A channel whose load is close to the threshold may fall below it
        by chance at any time; after one merge it must stay merged."""
        self._shrunk: str | None = None
        """The plan that drained a server under steady load. Load close to the threshold for removing a server may be
        measured below it by chance, once: if the balancer then drains another one, or adds one, it is restless."""
        self._carried_out: dict[str, str] = {}
        """By plan: the holder that applied it, also if it moves nothing."""
        self._requests: dict[str, str] = {}
        """The plan of each open request, by key."""
        self._pinned_at: dict[bytes, float] = {}
        """The pinned channels, and since when."""
        self._planned_at = -1e9
        self._marks: dict[str, Mark] = {}
        self._in_ring_at: dict[str, float] = {}
        self._lost: dict[str, float] = {}
        """Servers that were lost and have not come back, and when they were marked."""
        self._empty: dict[str, list[tuple[float, float]]] = {}
        """The time spans in which a server was observed empty, oldest first. Clients that come by an old ring and are
        redirected before the next sample do not count."""
        self._there: dict[str, set[str]] = {}
        self._balancing: dict[str, BalancerShell] = {}
        """By holder: its balancer."""
        self._counters: dict[str, tuple[int, int, int]] = {}
        self._lead_token = 0
        self._leads_since: dict[str, float] = {}
        """By holder: when its last lead began."""
        self._adding: set[str] = set()
        """Servers that the balancer has added and that have not joined the ring yet."""

    def violate(self, kind: str, text: str) -> None:
        """Records a broken promise, with the time."""
        self.violations.append((kind, f"{text} at t={self.run.world.now:.3f}"))
        self.run.world.note("violation", kind, text)
        self.run.violated()

    @property
    def leaving(self) -> bool:
        """Whether a server that must leave is still in the ring."""
        return any(self._marks.get(server) is Mark.OUT for server in self.run.book_ids())

    # -- writes ----------------------------------------------------------------------------------------------

    def written(self, key: str) -> None:
        """The coordinator has applied a write or a deletion."""
        self._note_lead()
        self._check_right(key)
        if key == STATE_KEY:
            self._state_written()
        elif key.startswith(moves_prefix()):
            self._request_written(key)
        elif key.startswith(POOL_PREFIX):
            self._mark_written(key)
        elif key.startswith(PINS_PREFIX):
            self._pin_written(key)

    def _note_lead(self) -> None:
        """Notes when a lead begins; a leader writes immediately after that."""
        lease = self.run.coordinator.store.lease_of(KEEPER_LEASE)
        if lease is not None and lease.token != self._lead_token:
            self._lead_token = lease.token
            self._leads_since[lease.holder] = self.run.world.now

    def _state_written(self) -> None:
        stored = self.run.coordinator.store.get(STATE_KEY)
        if stored is not None:
            self._adding |= decode(stored.value, BalancerState).adding.keys() - {*self._in_ring_at}

    def _check_right(self, key: str) -> None:
        """A process that writes as a leader must hold the lease at that moment."""
        writer = self.run.coordinator.serving
        if writer is None or writer[0] not in self.run.leaders:
            return
        lease = self.run.coordinator.store.lease_of(KEEPER_LEASE)
        holder = f"{writer[0]}/{writer[1]}"
        if lease is None or lease.holder != holder:
            self.violate("deposed", f"{holder} wrote {key}, though {lease.holder if lease else 'no process'} leads")

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
        self._check_pin(request, reason)
        self.seen[f"moved for {reason}"] += 1
        if self.at_rest and not self._is_chance(plan, reason, request.unit):
            self.violate("restless", f"{request} for {reason} under steady load")

    def _is_chance(self, plan: str, reason: str, unit: bytes) -> bool:
        """Whether a move under steady load is the first of its kind that load close to a threshold may cause."""
        if reason == "merge" and unit not in self._merged:
            self._merged.add(unit)
            return True
        if reason == "drain" and self._shrunk in (None, plan):
            self._shrunk = plan
            return True
        return False

    def _check_request(self, request: MoveRequest, proposal: Proposal, index: int) -> None:
        """A request must be the proposed move, and name only servers of the ring."""
        move = proposal.moves[index]
        if (move.unit, move.after.mode, move.after.servers) != (request.unit, request.mode, request.servers):
            self.violate("other than proposed", f"{request} differs from {move}")
        now = self.run.world.now
        for server in request.servers:
            if self._in_ring_at.get(server, -1e9) < now - STALE_S and server not in self.run.book_ids():
                self.violate("stranger", f"{request} names {server}, which is not in the ring")

    def _pin_written(self, key: str) -> None:
        channel = pin_channel(key)
        assert channel is not None
        if self.run.coordinator.store.get(key) is None:
            self.seen["pin released"] += self._pinned_at.pop(channel, None) is not None
        else:
            self.seen["channel pinned"] += 1
            self._pinned_at.setdefault(channel, self.run.world.now)

    def _check_pin(self, request: MoveRequest, reason: str) -> None:
        """The balancer moves a pinned channel only if a server of it has died."""
        now, entry = self.run.world.now, self.run.book.entry(request.unit)
        if now - self._pinned_at.get(request.unit, now) <= STALE_S:
            return
        here = {*self.run.book_ids()}
        if reason == "lost" or (entry is not None and not here.issuperset(entry.placement.servers)):
            self.seen["pinned channel lost its server"] += 1
        elif now - self.run.ring_at > STALE_S:
            self.violate("pinned", f"{request} for {reason}, though the channel is pinned")

    def _check_alone(self, plan: str) -> None:
        now, timeout_s = self.run.world.now, self.run.options.move_timeout_s
        for key, other in self._requests.items():
            began_at = self._applied[other][0]
            if other != plan and now - began_at < timeout_s * 0.9:
                self.violate("two at once", f"plan {plan} begins while {key} of {other} has not ended")

    def _check_wait(self, proposal: Proposal, asked: bool) -> None:
        """Between two plans of `dynamoth` there must be a wait, also across leaders, unless servers have died."""
        now = self.run.world.now
        since_s, self._planned_at = now - self._planned_at, now
        lost = all(move.reason == "lost" for move in proposal.moves)
        if proposal.policy == "dynamoth" and not asked and not lost:
            wait_s = self.run.settings.wait_s
            if since_s < wait_s - SKEW_S:
                self.violate("hasty", f"a plan after {since_s:.1f} s, though the wait is {wait_s:g} s")

    def _check_basis(self, proposal: Proposal) -> None:
        """The plan that a proposal was made from must not have changed, except very recently."""
        run, now = self.run, self.run.world.now
        ring = run.book.ring
        if ring is not None and ring.version != proposal.ring_version and now - run.ring_at > STALE_S:
            self.violate("stale", f"a proposal for ring {proposal.ring_version} was applied to ring {ring.version}")
        for move in proposal.moves:
            entry = run.book.entry(move.unit)
            newness = entry.newness if entry else 0
            if newness != move.revision and now - run.entry_at.get(move.unit, now) > STALE_S:
                self.violate("stale", f"{move.unit.decode()} was at {move.revision} and is at {newness}")

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
        if mark is None and server in self.run.removed:
            return
        self.changed_at = self.run.world.now
        self.run.world.note("mark", server, str(before), str(mark))
        here = server in self.run.book_ids()
        if mark in (Mark.FREEING, Mark.DRAIN) and before in (None, Mark.GUEST):
            self.seen["server drained"] += 1
        elif mark is Mark.OUT and before is Mark.DRAIN and here:
            self._check_empty(server)
            if self.run.options.keep_records and self._has_records(server, RECORDS_KNOWN_S):
                self.violate("records lost", f"{server} must leave before its records are archived")
        elif mark is Mark.LOST:
            self.seen["server lost"] += 1
            self._lost[server] = self.run.world.now
        elif mark in (None, Mark.GUEST) and before in (Mark.FREEING, Mark.DRAIN):
            self.seen["server kept after all"] += 1
        elif mark is None and before is Mark.GUEST and here:
            self.seen["guest promoted"] += 1
        elif mark is None and before is Mark.RETURNED and here:
            self.seen["returned server is a home again"] += 1

    def _check_empty(self, server: str) -> None:
        """A server that leaves must be empty: no subscribers, no entry that names it, and not a home."""
        self.seen["server left empty"] += 1
        now, run = self.run.world.now, self.run
        ring = run.book.ring
        if ring is not None and server in ring.homes:
            self.violate("not drained", f"{server} leaves although it is a home")
        for channel, entry in run.watch.entries.items():
            placed = entry.servers if entry.phase is not Phase.END else entry.placement.servers
            if server in (*placed, *entry.helped) and now - run.entry_at.get(channel, now) > STALE_S:
                self.violate("not drained", f"{server} leaves although it has {channel.decode()}: {entry}")
        recent_s = STALE_S + run.options.empty_s
        spans = self._empty.get(server, [])
        if not any(until - since >= EMPTY_MIN_S and now - until <= recent_s for since, until in spans):
            self.violate("not drained", f"{server} leaves without having been empty: {self.users(server)}")

    def users(self, server: str) -> list[str]:
        """The channels with subscribers on a server."""
        redis = self.run.server_of(server)
        return sorted(name.decode() for name in redis.model.channels_in_use() if not name.startswith(b"__shoal:"))

    def sample(self) -> None:
        """Samples the drained servers periodically."""
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
        """Whether a server has record entries of at least this age that are not archived."""
        model, clock = self.run.server_of(server).model, self.run.server_of(server).node.clock()
        stream = model.keys.values.get(record_key(self.run.channels[0].encode()))
        archived = model.keys.values.get(ARCHIVED_KEY, b"0")
        assert isinstance(archived, bytes)
        entries = stream.entries if isinstance(stream, Stream) else []
        return any(int(archived) <= id[0] <= (clock - age_s) * 1e3 for id, _ in entries)

    def removed(self, server: str) -> None:
        """The provider ends a server."""
        self.changed_at = self.run.world.now
        self.seen["server removed"] += 1
        if server in self.run.book_ids():
            self.violate("not drained", f"{server} is removed while it is in the ring")

    def added(self, server: str) -> None:
        """A server was added."""
        self.changed_at = self.run.world.now
        self.seen["server added"] += 1
        if self._shrunk is not None:
            self.violate("restless", f"{server} is added after another was drained under steady load")

    def ring_written(self, before: set[str], after: set[str]) -> None:
        """The ring has changed."""
        now, ring = self.run.world.now, self.run.book.ring
        assert ring is not None
        self.changed_at = now
        for server in before | after:
            self._in_ring_at[server] = now
        for server in sorted(self._adding & after):
            self._adding.discard(server)
            if server in ring.homes and not all(other in self._marks for other in ring.ids):
                self.violate("not a guest", f"{server} was added and joined as a home")
        for server in sorted(after - before):
            if now - self._lost.get(server, now) > MARKED_S:
                self._came_back(server)
        for server in sorted(before - after):
            if self._marks.get(server) is Mark.OUT:
                continue
            self.seen["server died"] += 1

    def _came_back(self, server: str) -> None:
        """A server that died must return empty."""
        del self._lost[server]
        self.seen["server died and came back empty"] += 1
        run, ring = self.run, self.run.book.ring
        assert ring is not None
        if server in ring.homes and len(ring.homes) < len(ring.ids):
            self.violate("not empty", f"{server} came back as a home")
        for channel, entry in run.watch.entries.items():
            if server in entry.placement.servers and run.world.now - run.entry_at.get(channel, 0.0) > STALE_S:
                self.violate("not empty", f"{server} came back although it has {channel.decode()}: {entry}")

    # -- the audit log ---------------------------------------------------------------------------------------

    def follow(self, holder: str, balancing: BalancerShell) -> None:
        """A balancer has started."""
        self._balancing[holder] = balancing

    def decided(self, holder: str, record: DecisionRecord) -> None:
        """A decision was written to the audit log."""
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
        """Decisions that were not requested must use load from the leader's current lead."""
        self._note_lead()
        began_s = FIRST_SECOND + self._leads_since.get(holder, 0.0)
        if not record.asked and window.end_s < began_s - OLD_LOAD_S:
            age_s = began_s - window.end_s
            self.violate("old load", f"{holder} used a window that ended {age_s:.1f} s before it led")

    def came_of(self, holder: str, outcome: Outcome) -> None:
        """The outcome of a decision was written to the audit log."""
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
                self.violate("applied twice", f"{holder} applied {plan}, after {self._carried_out[plan]} had")
            self._carried_out[plan] = holder
        elif outcome.state == "ended":
            began = self._applied.get(plan)
            self.seen["standby finished a plan"] += began is not None and began[1] != holder.split("/")[0]
            self.seen["move given up"] += int(outcome.facts.get("given_up", 0))
            self.seen["late move"] += int(outcome.facts.get("late", 0))

    def _count_telemetry(self, holder: str, counters: FoldCounters) -> None:
        """Counts late, early and duplicate telemetry of a balancer. Its counters start at 0 with each lead."""
        now = counters.late, counters.duplicates, counters.early
        before = self._counters.get(holder, (0, 0, 0))
        for name, value, known in zip(("late", "duplicate", "early"), now, before, strict=True):
            self.seen[f"{name} telemetry"] += value - known if value >= known else value
        self._counters[holder] = now


class AuditTap:
    """The audit log of a simulated balancer: passes everything to the watch."""

    def __init__(self, watch: BalancerWatch, holder: str) -> None:
        self._watch = watch
        self._holder = holder

    def write_decision(self, record: DecisionRecord, *, quiet: bool) -> None:
        """Records a decision."""
        self._watch.decided(self._holder, record)

    def write_outcome(self, outcome: Outcome) -> None:
        """Records the outcome of a decision."""
        self._watch.came_of(self._holder, outcome)
