"""An agent in the simulator: the shipped core on simulated connections.

Owns the adapter's part. What the model server says is turned into RESP bytes, so that the agent's own scanner
reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from shoal.channels import states
from shoal.channels.agent_core import AgentCore
from shoal.channels.link import Command
from shoal.channels.monitor import Monitor
from shoal.channels.rules import Rules
from shoal.channels.scanner import Scanner
from shoal.coordination.interface import Change, Lease
from shoal.errors import CoordinatorError, CoordinatorUnavailableError, ProtocolError
from shoal.limits import Limits
from shoal.plan.book import PlanBook
from shoal.plan.keys import ENTRIES_PREFIX, PLAN_PREFIX, RING_KEY, recorded_pattern, report_key
from shoal.plan.moving import Report, encode_report
from shoal.plan.signing import Verifier
from shoal.sim.agent_links import RETRY_S, Ear, Wire
from shoal.sim.client_actor import CLOCK_GRAIN_S
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.link import Endpoint
from shoal.sim.network import Network
from shoal.sim.node import Node
from shoal.sim.world import Event

SERVER_SILENCE_S_MAX: Final = 1.0
REPORT_S: Final = 0.1

Heard = Callable[[str, Command], None]
"""Sees a command of an agent as it leaves, and for which server."""


def resp_bytes(frame: Any) -> bytes:
    """A frame as a RESP3 server writes it."""
    if isinstance(frame, bytes):
        return b"$%d\r\n%b\r\n" % (len(frame), frame)
    if isinstance(frame, int):
        return b":%d\r\n" % frame
    if isinstance(frame, str):
        return b"+%b\r\n" % frame.encode()
    if isinstance(frame, Exception):
        return b"-%b\r\n" % str(frame).encode()
    if isinstance(frame, dict):
        pairs = b"".join(resp_bytes(key) + resp_bytes(value) for key, value in frame.items())
        return b"%%%d\r\n%b" % (len(frame), pairs)
    if frame is None:
        return b"_\r\n"
    mark = b"*" if type(frame) is list else b">"
    return b"%b%d\r\n%b" % (mark, len(frame), b"".join(map(resp_bytes, frame)))


class AgentActor:
    """The agent of one server, for as long as its process lives. Without `peers` it has connections to the other
    servers of the ring, as that changes."""

    def __init__(
        self,
        network: Network,
        node: Node,
        server: str,
        peers: list[str] | None,
        coordinator: ModelCoordinator,
        instance: int,
        verifier: Verifier,
        limits: Limits,
        rules: Rules,
        on_lost: Callable[[], None],
        on_said: Heard,
    ) -> None:
        self.network = network
        self.node = node
        self.server = server
        self.on_lost = on_lost
        self.on_said = on_said
        self.coordinator = coordinator
        self.limits = limits
        self.core = AgentCore(server, instance, Scanner(frame_bytes_max=1 << 24), PlanBook(verifier), limits, rules)
        self.end: Endpoint | None = None
        self.monitor: Monitor | None = None
        """Who counts what the server carries, if anybody does."""
        self._heard_at = -1e9
        self._dialled_at = -1e9
        self._lapsed_until = -1e9
        self._asking = False
        self._unanswered = False
        self._lapsed = False
        self._lease: Lease | None = None
        self._timer: Event | None = None
        self._timer_at = float("inf")
        self._greeted = False
        self._unwritten: Report | None = None
        self._writing = False
        coordinator.watch(node, PLAN_PREFIX, self._plan)
        self.follows = peers is None
        self.ears = {peer: Ear(self, peer) for peer in peers or ()}
        self.wires = {peer: Wire(self, peer) for peer in peers or ()}
        self._connect()
        self._renew()
        self._report()

    # The server

    def _connect(self) -> None:
        self.network.connect(self.node, self.server, self)

    def connected(self, end: Endpoint) -> None:
        """The connection stands: log in, ask which life of the server this is."""
        self.end = end
        self._dialled_at = self.node.clock()
        self._greeted = False
        end.handler = self
        end.send_all([(b"HELLO", b"3"), (b"INFO", b"server")])

    def failed(self, reason: str) -> None:
        """Try again."""
        self.node.after(RETRY_S, self._connect)

    def lost(self, end: Endpoint, reason: str) -> None:
        """The connection is over."""
        self.end = None
        self.on_lost()
        self.core.lost(self.node.clock())
        self.node.after(RETRY_S, self._connect)

    def received(self, end: Endpoint, items: list[Any]) -> None:
        """Frames of the server, handed to the core as bytes."""
        now = self.node.clock()
        self._heard_at = now
        if not self._greeted:
            infos = [item for item in items if isinstance(item, bytes) and b"run_id:" in item]
            if not infos:
                return
            self._greeted = True
            run_id = infos[0].split(b"run_id:")[1].split()[0].decode()
            items = items[items.index(infos[0]) + 1 :]
            self.core.opened(run_id, now)
            if self.monitor is not None:
                self.monitor.opened()
        if items:
            try:
                self.core.received(b"".join(map(resp_bytes, items)), now)
            except ProtocolError:
                end.abort()
                self.lost(end, "not RESP")
        self.flush()

    def flush(self) -> None:
        """Sends what the core wants to say, here and elsewhere, and sets its timer."""
        commands, self.core.outbox = self.core.outbox, []
        if self.end is not None and self._greeted:
            for command in commands:
                self.on_said(self.server, command)
            self.end.send_all(commands)
        for server, forwards in self.core.take_forwards().items():
            for command in forwards:
                self.on_said(server, command)
            self.wires[server].send(forwards)
        at = self.core.next_timer()
        if at is not None and (self._timer is None or at < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self.node.at(max(at, self.node.clock()) + CLOCK_GRAIN_S, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.core.timer(self.node.clock())
        self.flush()

    # The coordinator

    def lapse(self, duration_s: float) -> None:
        """Does not renew the lease for a while."""
        self._lapsed_until = self.node.clock() + duration_s

    def release(self) -> None:
        """Gives the lease up at once, as a process that is asked to end."""
        if self._lease is not None:
            self.coordinator.store.release(self._lease)

    def _plan(self, change: Change) -> None:
        if change.now is None:
            return
        if change.key == RING_KEY:
            self.core.ring(change.now.value)
            self._follow()
        elif change.key.startswith(ENTRIES_PREFIX):
            self.core.entry(change.now.value)
        elif (pattern := recorded_pattern(change.key)) is not None:
            self.core.mark(pattern, True)
        self.flush()

    def _follow(self) -> None:
        """Keeps connections to the servers of the ring, and to no others."""
        ring = self.core.book.ring
        if not self.follows or ring is None:
            return
        for peer in [peer for peer in self.wires if peer not in ring.ids]:
            self.ears.pop(peer).close()
            self.wires.pop(peer).close()
        for peer in ring.ids:
            if peer != self.server and peer not in self.wires:
                self.ears[peer], self.wires[peer] = Ear(self, peer), Wire(self, peer)

    def _report(self) -> None:
        """Writes the newest report, one at a time, until the coordinator has it."""
        self.node.after(REPORT_S, self._report)
        self._unwritten = report = self.core.take_report() or self._unwritten
        if report is None or self._writing:
            return
        self._writing = True
        args = report_key(self.server), encode_report(report)
        self.coordinator.request(self.node, "put", args, lambda result: self._reported(report, result))

    def _reported(self, report: Report, result: Any) -> None:
        self._writing = False
        if self._unwritten is report and not isinstance(result, CoordinatorError):
            self._unwritten = None

    def _renew(self) -> None:
        """Renews the lease while the server answers; a server that does not is not vouched for."""
        now = self.node.clock()
        self.node.after(self.limits.word_interval_s, self._renew)
        if self.core.state is not states.Agent.AWAY:
            self.core.ask((b"PING",))
            self.flush()
        if now < self._lapsed_until:
            self.core.lease.answered()
            return
        if now - self._heard_at > SERVER_SILENCE_S_MAX:
            self.core.lease.answered()
            if self.end is not None and now - max(self._heard_at, self._dialled_at) > self.limits.server_lease_s:
                self.end.abort()
                self.lost(self.end, "silent")
            return
        name = f"servers/{self.server}"
        self.core.lease.asked(now)
        if self._lease is None:
            self.coordinator.request(self.node, "lease_of", (name,), lambda before: self._take(name, before, now))
        elif not self._asking:
            self._asking = True
            operation, args = ("lease_of", (name,)) if self._unanswered else ("renew", (self._lease,))
            self.coordinator.request(self.node, operation, args, lambda result: self._renewed(operation, result, now))

    def _take(self, name: str, before: Any, asked_at: float) -> None:
        """Takes the lease over, knowing who held it before. As in `tenure`, a process that has just begun takes no
        lease that has lapsed before it has read the plan."""
        self._heard_back(before)
        if isinstance(before, CoordinatorError):
            return
        if before is None and self.core.book.ring is None:
            self.coordinator.request(self.node, "list", (PLAN_PREFIX,), lambda plan: self._read(name, plan, asked_at))
        else:
            self._acquire(name, before, asked_at)

    def _read(self, name: str, plan: Any, asked_at: float) -> None:
        """The plan as the coordinator has it: entries first, for whoever knows the ring answers."""
        if isinstance(plan, CoordinatorError):
            return
        for key, stored in sorted(plan.items()):
            self._plan(Change(key, stored))
        self._acquire(name, None, asked_at)

    def _acquire(self, name: str, before: Any, asked_at: float) -> None:
        sent_at = self.node.clock()
        remaining_s = before.remaining_s if before is not None else 0.0

        def granted(result: Any) -> None:
            self._granted(result, sent_at, self.node.clock() - asked_at >= remaining_s)

        args = name, str(self.core.instance), self.limits.server_lease_s, True
        self.coordinator.request(self.node, "acquire", args, granted)

    def _heard_back(self, result: Any) -> None:
        """An answer of the coordinator, unless it is that there was none."""
        if not isinstance(result, CoordinatorUnavailableError):
            self.core.lease.answered()

    def _granted(self, result: Any, sent_at: float, lapsed: bool) -> None:
        self._heard_back(result)
        self._lapsed = self._lapsed or lapsed
        if isinstance(result, Lease):
            self._lease = result
            self._grant(sent_at)
        elif not isinstance(result, CoordinatorError):
            self._lapsed = False
            self.core.lease.refused()

    def _grant(self, sent_at: float) -> None:
        """The lease counts as held, unless it had lapsed and the ring could not be read since (see `tenure`)."""
        if self._lapsed:
            self.coordinator.request(self.node, "get", (RING_KEY,), lambda ring: self._ring_read(ring, sent_at))
        else:
            self.core.lease.granted(sent_at)

    def _ring_read(self, ring: Any, sent_at: float) -> None:
        self._heard_back(ring)
        if isinstance(ring, CoordinatorError):
            return
        if ring is not None:
            self._plan(Change(RING_KEY, ring))
        lapsed, self._lapsed = self._lapsed, False
        self.core.lease.granted(sent_at, self.core.book.version if lapsed else None)

    def _renewed(self, operation: str, result: Any, sent_at: float) -> None:
        """After a renewal without an answer only questions are sent, until one is answered (see `tenure`)."""
        self._asking = False
        self._heard_back(result)
        self._unanswered = isinstance(result, CoordinatorError)
        if operation == "renew" and result is True:
            self._grant(sent_at)
        elif operation == "renew" and not self._unanswered:
            self._lease = None
