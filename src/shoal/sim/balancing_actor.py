"""The balancer's part of a leader, in the simulator: the shipped fold and core between telemetry and coordinator.

Owns the adapter's part: copies of the coordinator's areas kept by watches, the order in which effects are carried out,
the calls to the provider. It works while its process leads; each time in the lead begins with a new core, from what the
coordinator holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from shoal.balance import records
from shoal.balance.balancer import Balancer
from shoal.balance.effects import (
    AddServers,
    Effect,
    HurryMove,
    ProposalReady,
    PutMark,
    PutState,
    RecordDecision,
    RecordOutcome,
    RemoveServer,
    Reply,
    View,
    WriteMove,
)
from shoal.balance.fold import fold
from shoal.balance.fold_state import FoldState
from shoal.balance.options import BalancerOptions
from shoal.balance.records import Ask, BalancerState, Why
from shoal.balance.settings import BalanceSettings
from shoal.balance.window import LoadWindow
from shoal.channels.rules import Rules
from shoal.coordination.interface import Change, Lease, Versioned
from shoal.errors import ClusterError, ConflictError, CoordinatorError, PlanError
from shoal.plan import keys
from shoal.plan.keys import Mark
from shoal.plan.moving import MoveRequest, decode_request, encode_request
from shoal.plan.signing import Verifier
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.leader_actor import Leading, ask
from shoal.sim.node import Node
from shoal.sim.provider_actor import ProviderActor
from shoal.sim.telemetry_actor import ReaderActor, WallClock

BALANCER_POLL_S: Final = 0.4
RETRY_S: Final = 1.0
"""Pause after trouble, before everything is read anew."""

Step = tuple[tuple[str, tuple[Any, ...]], ...]
"""Requests to the coordinator that are made at once; the next step waits for all answers."""


class Audit(Protocol):
    """Who hears what a balancer decides."""

    def recorded(self, holder: str, effect: RecordDecision | RecordOutcome) -> None:
        """What would be written to the audit log."""

    def folded(self, holder: str, state: FoldState, windows: list[LoadWindow]) -> None:
        """What became of all telemetry that one life of a balancer has read so far, and the windows closed now."""

    def failed(self, error: Exception) -> None:
        """The core raised what it should not."""


class Copy:
    """A copy of one area of the coordinator, kept by a watch."""

    def __init__(self, coordinator: ModelCoordinator, node: Node, prefix: str) -> None:
        self.stored: dict[str, Versioned] = {}
        coordinator.watch(node, prefix, self._changed)

    def _changed(self, change: Change) -> None:
        self.take(change.key, change.now)

    def take(self, key: str, now: Versioned | None) -> None:
        """What a key holds now; what is older than the copy is passed over."""
        known = self.stored.get(key)
        if now is None:
            self.stored.pop(key, None)
        elif known is None or now.version > known.version:
            self.stored[key] = now


class BalancingActor:
    """One life of a candidate's balancer."""

    def __init__(
        self,
        node: Node,
        coordinator: ModelCoordinator,
        verifier: Verifier,
        leading: Leading,
        reader: ReaderActor,
        provider: ProviderActor,
        wall: WallClock,
        settings: BalanceSettings,
        options: BalancerOptions,
        rules: Rules,
        audit: Audit,
        holder: str,
    ) -> None:
        self.node = node
        self.coordinator = coordinator
        self._verifier = verifier
        self._leading = leading
        self._reader = reader
        self._provider = provider
        self._wall = wall
        self._settings = settings
        self._options = options
        self._rules = rules
        self._audit = audit
        self._holder = holder
        self._core: Balancer | None = None
        self._token = 0
        self._fold = FoldState()
        self._news: list[Callable[[Balancer], None]] = []
        prefixes = (
            keys.ENTRIES_PREFIX,
            keys.MOVES_PREFIX,
            keys.POOL_PREFIX,
            records.ASKS_PREFIX,
            records.PROPOSALS_PREFIX,
        )
        self._copies = {prefix: Copy(coordinator, node, prefix) for prefix in prefixes}
        self._turn()

    # -- turns -----------------------------------------------------------------------------------------------

    def _again(self, wait_s: float = BALANCER_POLL_S) -> None:
        self.node.after(wait_s, self._turn)

    def _trouble(self) -> None:
        self._core = None
        self._again(RETRY_S)

    def _turn(self) -> None:
        lease = self._leading.right
        if lease is None:
            self._core = None
            self._reader.follow(())
            self._again()
        elif self._core is None or lease.token != self._token:
            questions = ("get", (records.STATE_KEY,)), ("list", (records.WHY_PREFIX,))
            ask(self.coordinator, self.node, questions, lambda answers: self._loaded(lease, answers))
        else:
            self._look(self._core, lease)

    def _loaded(self, lease: Lease, answers: list[Any]) -> None:
        """Begins with what the balancer before has left."""
        stored, whys = answers
        if isinstance(stored, CoordinatorError) or isinstance(whys, CoordinatorError):
            self._trouble()
            return
        state = records.decode(stored.value, BalancerState) if stored else BalancerState()
        moved_at = {
            channel: records.decode(kept.value, Why).at_s
            for key, kept in whys.items()
            if (channel := records.why_channel(key)) is not None
        }
        self._core = Balancer(self._settings, self._options, state, moved_at, self._rules)
        self._token = lease.token
        self._look(self._core, lease)

    def _look(self, core: Balancer, lease: Lease) -> None:
        ring = self._leading.ring
        self._reader.follow(ring.ids if ring else ())
        for news in self._news:
            news(core)
        self._news.clear()
        now_s = self._wall()
        try:
            windows, self._fold = fold(self._fold, self._reader.take(), now_s, self._settings)
            self._audit.folded(self._holder, self._fold, windows)
            effects = core.observe(windows, self._view(), now_s)
        except Exception as error:
            self._audit.failed(error)
            self._trouble()
            return
        self._carry_out(effects, lease if self._rules.fence else None, core)

    def _view(self) -> View:
        stored = {prefix: copy.stored for prefix, copy in self._copies.items()}
        entries = (self._verifier.entry(kept.value) for kept in stored[keys.ENTRIES_PREFIX].values())
        requests = filter(None, (_read_request(kept.value) for kept in stored[keys.MOVES_PREFIX].values()))
        return View(
            self._leading.ring,
            {entry.channel: entry for entry in entries},
            {request.channel: request for request in requests},
            {keys.pool_server(key): keys.read_mark(kept.value) for key, kept in stored[keys.POOL_PREFIX].items()},
            self._provider.state(),
            {
                key.removeprefix(records.ASKS_PREFIX): records.decode(kept.value, Ask)
                for key, kept in stored[records.ASKS_PREFIX].items()
            },
            {
                key.removeprefix(records.PROPOSALS_PREFIX): kept.value
                for key, kept in stored[records.PROPOSALS_PREFIX].items()
            },
        )

    # -- doing -----------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect], fence: Lease | None, core: Balancer) -> None:
        """Puts decisions on record, then does them, then says what came of it: in the order of
        `shoal.cluster.balancing`."""
        for effect in effects:
            if isinstance(effect, RecordDecision):
                self._audit.recorded(self._holder, effect)
        calls = [effect for effect in effects if isinstance(effect, (AddServers, RemoveServer))]
        steps: list[Step] = []
        if calls or any(isinstance(effect, PutState) for effect in effects):
            steps.append(_put(records.STATE_KEY, records.encode(core.state), fence))
        moves = [effect for effect in effects if isinstance(effect, (WriteMove, HurryMove))]
        if moves:
            steps.append(self._write_moves(moves, fence))
        for effect in effects:
            match effect:
                case PutMark(mark=None):
                    steps.append(_delete(keys.pool_key(effect.server), fence))
                case PutMark(mark=Mark() as mark):
                    steps.append(_put(keys.pool_key(effect.server), mark.value.encode(), fence))
                case ProposalReady():
                    steps.append(_put(records.proposal_key(effect.digest), effect.data, fence))
                case Reply():
                    steps.append(_put(records.answer_key(effect.id), records.encode(effect.answer), fence))
                    steps.append(_delete(records.ask_key(effect.id), fence))

        def done() -> None:
            for effect in effects:
                if isinstance(effect, RecordOutcome):
                    self._audit.recorded(self._holder, effect)
            self._call(calls)

        self._go_through(steps, done)

    def _write_moves(self, moves: list[WriteMove | HurryMove], fence: Lease | None) -> Step:
        """Requests where nobody else asks for another move of the channel, and reasons."""
        asked = self._copies[keys.MOVES_PREFIX].stored
        requests = [
            ("put", (key, encode_request(move.request), 0, fence))
            for move in moves
            if (key := keys.move_key(move.request.channel)) not in asked
        ]
        whys = [
            ("put", (records.why_key(move.request.channel), records.encode(move.why), None, fence))
            for move in moves
            if isinstance(move, WriteMove)
        ]
        return (*requests, *whys)

    def _go_through(self, steps: list[Step], then: Callable[[], None]) -> None:
        """One step after the other, until one is refused."""
        if not steps:
            then()
            self._again()
            return
        step = steps[0]

        def answered(answers: list[Any]) -> None:
            if any(isinstance(it, CoordinatorError) and not isinstance(it, ConflictError) for it in answers):
                self._trouble()
                return
            for (operation, args), answer in zip(step, answers, strict=True):
                self._written(operation, args, answer)
            self._go_through(steps[1:], then)

        ask(self.coordinator, self.node, step, answered)

    def _written(self, operation: str, args: tuple[Any, ...], answer: Any) -> None:
        """What was written is known at once, and not with the news of it."""
        for prefix, copy in self._copies.items():
            if args[0].startswith(prefix) and prefix != keys.MOVES_PREFIX:
                copy.take(args[0], None if operation == "delete" else Versioned(args[1], answer))

    # -- the provider ----------------------------------------------------------------------------------------

    def _call(self, calls: list[AddServers | RemoveServer]) -> None:
        for call in calls:
            if isinstance(call, AddServers):
                self._provider.add(self.node, call.count, self._added)
            else:
                self._provider.remove(self.node, call.server, self._removed)

    def _added(self, result: tuple[str, ...] | ClusterError) -> None:
        now_s = self._wall()
        if isinstance(result, ClusterError):
            self._news.append(lambda core: core.refused(now_s))
            return
        self._news.append(lambda core: core.added(result, now_s))

    def _removed(self, result: tuple[str, ...] | ClusterError) -> None:
        if not isinstance(result, ClusterError):
            self._news.append(lambda core: core.removed(result[0]))


def _read_request(value: bytes) -> MoveRequest | None:
    try:
        return decode_request(value)
    except PlanError:
        return None


def _put(key: str, value: bytes, fence: Lease | None) -> Step:
    return (("put", (key, value, None, fence)),)


def _delete(key: str, fence: Lease | None) -> Step:
    return (("delete", (key, None, fence)),)
