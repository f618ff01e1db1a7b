"""The agent: the process beside one server, as a state machine without I/O.

Owns the register, the answers to Hellos, enrolment, the heartbeat and the resync. `authentication` decides which
messages of clients it takes. It hears everything on its server through one
pattern subscription, whose bytes go through the scanner. `monitor.py` makes telemetry from the scanner's tables,
`dispatcher.py` handles channels that move.

    bytes of the observing connection -> scanner -> control messages, in the server's own order -> answers
                                                 -> messages on watched channels -> dispatcher -> other servers

A restarted agent knows nothing: it starts a resync, and answers no Hello before all clients of the server have sent
their Present (or `resync_s` is over). If only its connection is lost, or the server restarts, it remembers the streams
that it had heard, so that it can tell returning subscribers which publishers to wait for.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from hmac import compare_digest
from random import Random
from typing import Any, Final

from shoal.channels import states
from shoal.channels.agent.authentication import AgentAuthentication, MessageVerdict
from shoal.channels.agent.control_queue import ControlQueue
from shoal.channels.agent.deferred_hellos import DeferredHellos
from shoal.channels.agent.dispatcher import Dispatcher
from shoal.channels.agent.lane_tags import LaneTags
from shoal.channels.agent.lease import AgentLease
from shoal.channels.agent.meter import GREET_UNITS, ITEMS_PER_UNIT, STEPS_PER_UNIT, STREAMS_PER_UNIT, ControlMeter
from shoal.channels.agent.queue_requests import QueueRequests
from shoal.channels.agent.register import Register
from shoal.channels.agent.resync import ResyncCount
from shoal.channels.agent.stream_memory import StreamMemory
from shoal.channels.agent.untold_messages import UntoldMessages
from shoal.channels.agent_host import AgentCounters, ReplyHandler
from shoal.channels.recording.recorder import Recorder
from shoal.channels.telemetry.lane_check import COPY, FALSE, FRESH, UNTOLD
from shoal.channels.telemetry.scanner import Refuted, Scanner
from shoal.channels.telemetry.tables import REFUTED_MAX, SECRETS_MAX
from shoal.channels.timers import Timers, patience
from shoal.channels.token_bucket import TokenBucket
from shoal.errors import PlanError, ProtocolError
from shoal.limits import Limits
from shoal.plan.book import PlanBook
from shoal.plan.move_request import MoveReport
from shoal.rules import ALL_RULES, Rules, rule
from shoal.wire import control
from shoal.wire.commands import Command
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    CLIENT_ID_BITS,
    ENDED,
    FORWARDED,
    HEADER,
    HEARTBEAT_CHANNEL,
    RESERVED_PREFIX,
    client_of,
    inbox_channel,
    peer_channel,
)
from shoal.wire.identity import AgentSecret, enrolment_inbox, enrolment_seal

OWNERS: Final = rule("owners", "An agent takes claims about a stream only from the client whose id is in it.")
TAGS: Final = rule("tags", "An agent takes the number of a message only if its publisher has tagged it.")
TOLD: Final = rule("told", "An agent takes the messages of a stream when its publisher has told how far it had come.")
REFUTE: Final = rule("refute", "An agent names the messages with a false tag in its next heartbeat.")

CONTROL_1: Final = "control messages of format 1"
CONTROL_OTHER: Final = "control messages of other versions"
ENVELOPE_1: Final = "messages in envelopes of format 1"
UNKNOWN_FLAGS: Final = "messages with unknown flags"
"""What `AgentCore.take_other_formats` counts."""

HEARTBEAT_SPREAD: Final = 0.25
"""The part of `heartbeat_interval_s` by which a heartbeat may come earlier."""

REFUTE_PAUSE_S: Final = 0.1
"""The shortest time between two heartbeats, of which the second comes early because it names false messages."""

REFUTE_REPEAT_S: Final = 3.0
"""How long a false message is named in heartbeats: subscribers that lose their connection may miss some."""

TURN_WORK_MAX: Final = 200
"""Control messages that are handled in one turn of the event loop, about ten milliseconds; expensive ones count as
several. Heartbeats, lease and coordinator get their turn in between."""

TURN_WORK_BEHIND: Final = 20
"""The same while the agent is behind its server: then reading comes first."""

DEFERRED_PAUSE_S: Final = 0.001
"""Pause between two turns in which deferred Hellos are answered."""

REFUSALS_PER_S_MAX: Final = 20
"""Messages of other versions, schemes or generations that are answered in a second."""

HEARTBEATS_REMEMBERED: Final = 16
"""Own heartbeats that the agent recognises when they come back."""

NEW_CLIENTS: Final = -1
"""The place of all Enrols in the queue."""

ENROL_UNITS: Final = 4
"""What an Enrol adds to the work of a turn."""

REQUESTS_MAX: Final = 4096
"""Requests to publishers whose answers are taken. Beyond it the oldest are forgotten, and asked again."""


class AgentCore:
    """One agent. `instance` is a random number that identifies this process."""

    def __init__(
        self,
        server: str,
        instance: int,
        scanner: Scanner,
        book: PlanBook,
        limits: Limits,
        rules: Rules = ALL_RULES,
    ) -> None:
        self.server = server
        self.instance = instance
        self._random = Random(instance)
        self._rules = rules
        self.tags = LaneTags()
        self.scanner = scanner
        self.book = book
        self.limits = limits
        self.authentication = AgentAuthentication(server, self.client, rules)
        self.register = Register(limits)
        self.lease = AgentLease(server, limits)
        self.counters = AgentCounters()
        self.outbox: list[Command] = []
        self.state = states.AgentState.AWAY
        self.incarnation = 0
        self.second = 0
        self.timers = Timers()
        self._inflight: deque[ReplyHandler | None] = deque()
        self._memory = StreamMemory(scanner, limits.publisher_idle_s, rules)
        self._resync = ResyncCount(rules)
        self._resyncs_unfinished = 0
        self.knows_publishers = False
        """Whether all clients of the server have told their streams. From then on this process knows every publisher: a
        new one waits for an answer before it publishes."""
        self._deferred = DeferredHellos()
        self._untold = UntoldMessages()
        self._queue = ControlQueue()
        self._heard = 0
        self._refuted: dict[tuple[bytes, int, int, int], float] = {}
        """The false messages that were named lately, and until when they are named again."""
        self._repeated_at = -math.inf
        """When a heartbeat last named them again."""
        self._heartbeat_at = -math.inf
        self._heartbeat_due = math.inf
        self._incarnations = 0
        self._nonce = 0
        self._requests: dict[int, int] = {}
        """The publishers that were asked, by the nonce of the request."""
        self._heartbeats_sent: dict[int, bytes] = {}
        self._enrolled = 0
        self._requested = 0
        self._enrolments = TokenBucket(limits.enrolments_per_s_max, limits.enrolments_per_s_max, 0.0)
        self._refusals = TokenBucket(REFUSALS_PER_S_MAX, REFUSALS_PER_S_MAX, 0.0)
        self._other_formats: Counter[str] = Counter()
        self._since = 0
        self._now = 0.0
        self._worked = 0
        self._turn_work_max = TURN_WORK_MAX
        self._meter = ControlMeter(limits, scanner)
        self.queue_requests = QueueRequests(self, limits, self._name_request)
        self.recorder = Recorder(self, rules)
        self.dispatcher = Dispatcher(self, rules)

    @property
    def secrets(self) -> dict[int, AgentSecret]:
        """The agents' secrets by generation, the newest last; empty with scheme 0. Assign another dict to change
        them."""
        return self.authentication.secrets

    @secrets.setter
    def secrets(self, secrets: dict[int, AgentSecret]) -> None:
        self.authentication.secrets = secrets
        self._use_secrets()

    def _use_secrets(self) -> None:
        """Messages are tagged and checked by the secrets. With scheme 0 they are neither."""
        authentication = self.authentication
        self.tags.use(authentication.secret if authentication.active else None)
        if TAGS in self._rules:
            secrets = reversed(authentication.secrets.values()) if authentication.active else ()
            self.scanner.set_secrets(self.server, [secret.clients for secret in secrets][:SECRETS_MAX])

    # The server

    def tell_time(self, second: int, now: float) -> None:
        """A second by the wall clock begins."""
        self.second = second
        self._now = now
        for client, number, retry_ms in self._meter.take_refusals():
            text = "this client sends more control messages than control_at_once_max and control_per_s_max allow"
            refused = control.Refused(control.REFUSED_BUSY, control.VERSION, control.VERSION, retry_ms, text)
            self.tell_client(client, refused, number)

    def opened(self, run_id: str, now: float) -> None:
        """There is a new connection to the server. The agent has heard nothing since the last one."""
        self._now = now
        self.outbox.clear()
        self._inflight.clear()
        self._queue.clear()
        self.scanner.reset()
        self._begin_incarnation(run_id, now)
        self._step("server reached")
        self.outbox.append((b"PSUBSCRIBE", b"*"))
        self._resyncs_unfinished = 0
        self.recorder.opened()
        self._start_resync(now)
        self._heartbeat_due = now
        self.timers.set("heartbeat", now)

    def _begin_incarnation(self, run_id: str, now: float) -> None:
        """Starts an incarnation: a period during which this agent has heard everything on its server without a break.
        The streams of the previous one are kept apart until they are heard in this one."""
        self._memory.begin_incarnation(self.incarnation, now, self.knows_publishers)
        self._incarnations += 1
        name = f"{run_id} {self.instance} {self._incarnations}"
        self.incarnation = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") or 1
        self.register.clear()
        self._untold = UntoldMessages()
        self.dispatcher.incarnation_began()

    def lost(self, now: float) -> None:
        """The connection to the server is lost."""
        if self.state is not states.AgentState.AWAY:
            self._step("server lost")
            self._deferred.clear()
            self.recorder.lost()
            for name in ("heartbeat", "resync over", "resync again", "deferred"):
                self.timers.cancel(name)

    def _step(self, event: str) -> None:
        self.state = states.step(states.AGENT, self.state, event)

    def received(self, data: bytes, now: float, behind: bool = False, heard_at: float | None = None) -> bool:
        """Bytes of the observing connection; see `work`. They had been read by `heard_at`, if `now` may be earlier: a
        loop reads its clock once a turn."""
        self.scanner.feed(data, now if heard_at is None else heard_at)
        return self.work(now, behind)

    def work(self, now: float, behind: bool = False) -> bool:
        """Scans received bytes, and handles as many control messages as fit one turn: timers and other connections must
        not wait behind the messages of clients. The others are queued, so that the agent does not fall behind its
        server and hears its own heartbeats in time; while it is `behind`, few are handled in a turn. Returns whether
        all are handled; if not, call it again. ProtocolError if the bytes are not RESP: the connection must be dropped.

                A Hello that is answered later has a later baseline. That is safe: `subscribe` has not returned yet.
        """
        self._now = now
        self._meter.begin_turn(now)
        self._worked = 0
        self._turn_work_max = TURN_WORK_BEHIND if behind else TURN_WORK_MAX
        while self._queue and self._worked < self._turn_work_max // 2:  # the other half is for messages that come now
            self._obey_next(now)
        while (frame := self.scanner.scan()) is not None:
            if frame.push:
                self._pushed(frame.value, frame.standing, now)
            elif self._inflight:
                handler = self._inflight.popleft()
                if handler is not None:
                    handler(frame.value, now)
        if self.scanner.refutes and self.state is not states.AgentState.AWAY:
            self._hurry_heartbeat(now)
        while self._queue and self._worked < self._turn_work_max:
            self._obey_next(now)
        self._meter.end_turn()
        return not self._queue

    def ask(self, command: Command, handler: ReplyHandler | None = None) -> None:
        """Queues a command; `handler` gets its reply."""
        self.outbox.append(command)
        self._inflight.append(handler)

    @property
    def client(self) -> int:
        """The client id under which the agent asks publishers."""
        return self.instance & (1 << CLIENT_ID_BITS) - 1 or 1

    def listen(self, channel: bytes) -> None:
        """Subscribes to a channel; there is no reply to it."""
        self.outbox.append((b"SUBSCRIBE", channel))

    def tell_client(self, client: int, message: control.FromAgent, number: int = 0) -> None:
        """Publishes a control message to a client of the server; `number` is the nonce of the question."""
        seal = self.authentication.to_client(client)
        self.ask((b"PUBLISH", inbox_channel(client), control.encode(message, client, number, seal)))

    def tell_peer(self, client: int, message: control.ToPeer) -> None:
        """Asks a publisher on the server for messages, as a client does."""
        self._nonce += 1
        self._requests[self._nonce] = client
        if len(self._requests) > REQUESTS_MAX:
            del self._requests[next(iter(self._requests))]
        seal = self.authentication.to_publisher(client)
        self.ask((b"PUBLISH", peer_channel(client), control.encode(message, self.client, self._nonce, seal)))

    def _tell_all(self, message: control.ToAll, number: int) -> bytes:
        data = control.encode(message, 0, number, self.authentication.to_all())
        self.ask((b"PUBLISH", HEARTBEAT_CHANNEL, data))
        return data

    def _pushed(self, push: list[Any], standing: int, now: float) -> None:
        if push[0] != b"pmessage":
            if push[0] == b"message":
                self._told_by_publisher(push[2], now)
        elif push[2] == AGENT_CHANNEL:
            self._told_by_client(push[3], now)
        elif not push[2].startswith(RESERVED_PREFIX):
            self._published(push[2], push[3], standing, now)

    def _published(self, channel: bytes, blob: bytes, standing: int, now: float) -> None:
        """A message on a watched channel. A message that may be a copy is not recorded and not forwarded. Forwarded
        messages of a publisher that is not on this server are left to the record of the server where it is. Before
        there is a ring, nothing can be checked: publishers announce their positions once the agent has one."""
        if self.book.ring is None:
            return
        if standing == UNTOLD:
            _, flags, _, _, _, _ = HEADER.unpack_from(blob)
            standing = COPY if TOLD in self._rules else FRESH
            if standing == COPY and not flags & FORWARDED:
                self._untold.add(channel, blob)
        if self.recorder.active and standing != FALSE:
            self.recorder.heard(channel, blob, standing == FRESH, now)
        self.dispatcher.heard(channel, blob, standing, now)

    def _told(self, channel: bytes, stream: int, last: int) -> None:
        """A publisher has announced its position: messages that waited for it are taken, and dropped ones are
        requested."""
        for blob, standing in self._untold.take(channel, stream, last):
            self._published(channel, blob, standing, self._now)
        dropped = self._untold.take_dropped(channel, stream)
        if dropped and self.recorder.active:
            self.recorder.evidence(channel, stream, dropped, True, self._now)

    def _told_by_publisher(self, data: bytes, now: float) -> None:
        """An answer to a request of the recorder."""
        head = control.read_head(data)
        if head is None:
            self.counters.garbage += 1
        elif not self._is_asked(head, data):
            self.counters.unauthentic += 1
        else:
            self.recorder.told(data, now)

    def _is_asked(self, head: control.Head, data: bytes) -> bool:
        """Whether a publisher answers a request. With scheme 0 anyone may."""
        if not self.authentication.is_from_publisher(head, data):
            return False
        return not self.authentication.active or self._requests.get(head.number) == head.client

    # Clients

    def _told_by_client(self, data: bytes, now: float) -> None:
        """A message on the agents' channel: authenticated first, then metered, then handled or queued. So no client
        pays for messages that others send in its name."""
        head = control.read_head(data) if len(data) <= control.TO_AGENT_BYTES_MAX else None
        if head is None or head.version != control.VERSION:
            self._unreadable(data, head, now)
        elif control.is_kind(head, control.Enrol, control.Renew):
            self._told_to_enrol(head, data, now)
        elif (verdict := self.authentication.judge(head, data)) is not MessageVerdict.TAKEN:
            self._meter.rejected()
            self._reject(verdict, head, now)
        else:
            self._meter.charge(head.client, 1 + GREET_UNITS * control.is_kind(head, control.Greet))
            self._obey_or_queue(head.client, head, data, now)

    def _told_to_enrol(self, head: control.Head, data: bytes, now: float) -> None:
        """New clients have no id yet, so all of them share one quota and one place in the queue."""
        if not self.authentication.active or head.scheme != control.ENROL_SCHEME:
            self.counters.garbage += 1
        elif self._enrolments.take(1, now):
            self._obey_or_queue(NEW_CLIENTS, head, data, now)
        else:
            self._meter.rejected()
            self.counters.enrolments_refused += 1

    def _obey_or_queue(self, client: int, head: control.Head, data: bytes, now: float) -> None:
        if self._worked < self._turn_work_max and client not in self._queue:
            self._obey(head, data, now)
        elif self._queue.has_room(client):
            self._queue.put(client, data)
        elif client != NEW_CLIENTS:
            self._drop(head)

    def _obey_next(self, now: float) -> None:
        """Handles a message of the queue, if its client has not used up its quota meanwhile."""
        client, data = self._queue.take()
        head = control.read_head(data)
        assert head is not None
        if client != NEW_CLIENTS and not self._meter.allows(client):
            self._worked += 1
            self._drop(head)
        else:
            self._obey(head, data, now)

    def _drop(self, head: control.Head) -> None:
        """There is no room for a message, or its client is over its quota: the client will be told to wait."""
        self.counters.over_quota += 1
        self._meter.refuse(head.client, head.number)

    def _obey(self, head: control.Head, data: bytes, now: float) -> None:
        """Handles an authentic message of a client, an Enrol or a Renew."""
        self._worked += 1
        try:
            client, number, message = control.decode(data, head)
        except ProtocolError:
            self.counters.garbage += 1
            return
        if isinstance(message, control.Enrol | control.Renew):
            self._enrol(head, data, message, now)
            return
        if self.book.ring is None and not isinstance(message, control.Greet | control.Hello):
            return  # whether it is authentic is not known yet
        if self._is_of_another_incarnation(message):
            self.counters.outdated += 1
            return
        match message:
            case control.Greet():
                self._greet(client, message, now)
            case control.Hello():
                self._hello(client, number, message)
            case control.Bye():
                self._deferred.withdraw(client, number, message)
                self.register.remove(client, message.name, message.pattern, number)
                self.dispatcher.acknowledged(message.name, now)
            case control.Subscribed():
                self.register.acknowledge(client, message.name, message.revision)
                self.dispatcher.acknowledged(message.name, now)
            case control.Left():
                if self._owns(client, message.stream):
                    self.dispatcher.left(message.name, message.stream, now)
            case control.Present():
                self._present(client, message)
            case control.Introduce():
                self._introduce(client, message)
            case control.RequestQueue():
                self.queue_requests.asked(client, message, now)
            case _:
                self.counters.garbage += 1

    def _is_of_another_incarnation(self, message: control.Control) -> bool:
        """Whether a message was meant for an earlier incarnation. With scheme 0 clients need not know the present one
        before they send."""
        return (
            self.authentication.active
            and isinstance(message, control.Bye | control.Present | control.Subscribed | control.Left)
            and message.incarnation != self.incarnation
        )

    def charge_client(self, client: int, units: int) -> None:
        """Charges a client, and this turn, for a message that is more work than a short Hello, or should be rare."""
        if units:
            self._worked += units
            self._meter.charge(client, units)

    def _name_request(self) -> str:
        self._requested += 1
        return f"{self.instance:016x}-{self._requested}"

    def _owns(self, client: int, stream: int) -> bool:
        """Whether a client may make claims about a stream."""
        owns = client_of(stream) == client or OWNERS not in self._rules
        self.counters.claims_refused += not owns
        return owns

    # Messages that are not taken

    def _unreadable(self, data: bytes, head: control.Head | None, now: float) -> None:
        """A control message of another version is refused if its sender could read the refusal; the rest is garbage."""
        if control.is_format_1(data):
            self._other_formats[CONTROL_1] += 1
        elif head is not None:
            self._other_formats[CONTROL_OTHER] += 1
            text = f"control messages have version {head.version}, this agent speaks version {control.VERSION}"
            self._refuse(head, control.REFUSED_VERSION, text, now)
        else:
            self.counters.garbage += 1

    def _reject(self, verdict: MessageVerdict, head: control.Head, now: float) -> None:
        if self.book.ring is None:
            return  # the scheme of the cluster is not known yet; the client asks again
        if verdict is MessageVerdict.OTHER_SCHEME:
            self.counters.unauthentic += 1
            text = "this cluster authenticates messages, and this client does not"
            if not self.authentication.active:
                text = "this cluster does not authenticate messages, and this client does"
            self._refuse(head, control.REFUSED_SCHEME, text, now)
        elif verdict is MessageVerdict.OTHER_GENERATION:
            self.counters.unauthentic += 1
            self._refuse(head, control.REFUSED_IDENTITY, "the key of this client has expired", now)
        elif verdict is MessageVerdict.OLD:
            self.counters.outdated += 1
        else:
            self.counters.unauthentic += 1

    def _refuse(self, head: control.Head, code: str, text: str, now: float) -> None:
        """Answers a message whose sender cannot be authenticated, so the answer is signed."""
        if self._refusals.take(1, now) and self.authentication.ready:
            refused = control.Refused(code, control.VERSION, control.VERSION, 0, text)
            data = control.encode(refused, head.client, head.number, self.authentication.to_all())
            self.ask((b"PUBLISH", inbox_channel(head.client), data))

    # Clients' keys

    def _enrol(self, head: control.Head, data: bytes, enrol: control.Enrol | control.Renew, now: float) -> None:
        """A new client: draws its id and sends it its key. It listens on the inbox that follows from its public key, so
        that its answer reaches no other client. One that renews its key keeps its id."""
        self._worked += ENROL_UNITS
        secret = self.authentication.accepted(head.generation)
        if secret is None:
            self._refuse(head, control.REFUSED_IDENTITY, "the agents' key in this client's ring has expired", now)
            return
        try:
            key = secret.enrolment(enrol.exchange_key, self.server)
        except ValueError:
            self.counters.garbage += 1
            return
        if enrolment_inbox(enrol.exchange_key) != head.client or not control.is_tagged(data, key):
            self.counters.unauthentic += 1
            return
        if isinstance(enrol, control.Renew):
            old = self.authentication.accepted(enrol.generation)
            if old is None:
                self._refuse(head, control.REFUSED_IDENTITY, "the key of this client has expired", now)
                return
            if not compare_digest(old.client(enrol.id).renewal(enrol.exchange_key), enrol.proof):
                self.counters.unauthentic += 1
                return
            self.counters.renewals += 1
            new = secret.client(enrol.id)
        else:
            self.counters.enrolments += 1
            new = secret.new_client(self.instance, self._next_enrolled())
            while new.client in self.register.clients or self.authentication.knows(new.client):
                new = secret.new_client(self.instance, self._next_enrolled())
        enrolled = control.Enrolled(new.client, enrolment_seal(key, new.client, new.key))
        seal = control.KeySeal(control.ENROL_SCHEME, head.generation, key)
        self.ask((b"PUBLISH", inbox_channel(head.client), control.encode(enrolled, head.client, head.number, seal)))

    def _next_enrolled(self) -> int:
        self._enrolled += 1
        return self._enrolled

    def _introduce(self, client: int, introduce: control.Introduce) -> None:
        introduced = self.authentication.introduced(client, introduce)
        if introduced is not None:
            self.counters.introductions += 1
            self.tell_client(client, introduced, introduce.nonce)

    def secret(self, generation: int, value: bytes | None) -> None:
        """The agents' secret of a generation from the coordinator; None if it was deleted."""
        was_ready = self.authentication.ready
        secrets = {known: secret for known, secret in self.secrets.items() if known != generation}
        if value is not None:
            secrets[generation] = AgentSecret(generation, value)
        self.secrets = dict(sorted(secrets.items()))
        if not was_ready:
            self._speak_again()

    def _speak_again(self) -> None:
        """The agent can authenticate its messages now: clients may have dropped earlier ones."""
        if self.authentication.ready and self.state is not states.AgentState.AWAY:
            self._start_resync(self._now)
            self._heartbeat_due = self._now
            self.timers.set("heartbeat", self._now)

    def take_other_formats(self) -> dict[str, int]:
        """The number of messages of other versions since the last call, by kind."""
        envelopes_1, unknown_flags = self.scanner.take_other_formats()
        self._other_formats[ENVELOPE_1] += envelopes_1
        self._other_formats[UNKNOWN_FLAGS] += unknown_flags
        found = {name: count for name, count in self._other_formats.items() if count}
        self._other_formats.clear()
        return found

    # The heartbeat

    def heard_own(self, head: control.Head, data: bytes) -> bool:
        """A message on the heartbeat channel of the server; returns whether it is a heartbeat exactly as this agent
        sent it. Others do not count."""
        if self._heartbeats_sent.get(head.number) == data:
            self._heard = max(self._heard, head.number)
            return True
        self.counters.garbage += not control.is_kind(head, control.Resync)
        return False

    def _lease_ms(self, now: float) -> int:
        return int(1000 * self.lease.remaining_s(self.book.ring, now))

    def _send_heartbeat(self, now: float) -> None:
        """Sends a heartbeat. All clients of a server answer it at once, so the interval is random: agents that were
        started together do not stay in step."""
        self._heartbeat_at = now
        self._heartbeat_due = now + self.limits.heartbeat_interval_s * (1 - HEARTBEAT_SPREAD * self._random.random())
        self.timers.set("heartbeat", self._heartbeat_due)
        if not self.authentication.ready:
            return
        lease_ms = self._lease_ms(now)
        granted = self.lease.is_granted(now)
        refuted = self._take_refuted(now)
        self.counters.heartbeats += 1
        self.counters.orphan_heartbeats += not granted and lease_ms > 0
        heartbeat = control.Heartbeat(
            self.server,
            self.instance,
            self._heard,
            self.incarnation,
            lease_ms,
            granted,
            self.book.version,
            self.lease.lapsed_ms(now),
            [*refuted.messages.items()],
            refuted.overflow,
        )
        self._heartbeats_sent[self.counters.heartbeats] = self._tell_all(heartbeat, self.counters.heartbeats)
        if len(self._heartbeats_sent) > HEARTBEATS_REMEMBERED:
            del self._heartbeats_sent[next(iter(self._heartbeats_sent))]

    def _hurry_heartbeat(self, now: float) -> None:
        """The next heartbeat has false messages to name, so it comes early."""
        at = max(now, self._heartbeat_at + REFUTE_PAUSE_S)
        if at < self._heartbeat_due:
            self._heartbeat_due = at
            self.timers.set("heartbeat", at)

    def _take_refuted(self, now: float) -> Refuted:
        """The false messages that a heartbeat names: new ones and, once in `heartbeat_interval_s`, those of the last
        seconds if there is room."""
        found = self.scanner.take_refuted()
        if REFUTE not in self._rules:
            return Refuted({}, [])
        for listed in found.messages.values():
            self.counters.refuted += len(listed)
        if now < self._repeated_at + (1 - HEARTBEAT_SPREAD) * self.limits.heartbeat_interval_s:
            self._remember_refuted(found, now)
            return found
        self._repeated_at = now
        self._refuted = {named: until for named, until in self._refuted.items() if now < until}
        self._remember_refuted(found, now)
        messages: dict[bytes, list[tuple[int, int, int]]] = {}
        for channel, stream, number, mark in self._refuted:
            messages.setdefault(channel, []).append((stream, number, mark))
        return Refuted(messages, found.overflow)

    def _remember_refuted(self, found: Refuted, now: float) -> None:
        """Remembers false messages, to name them again for a while; if there are too many, only the newest."""
        known = self._refuted
        for channel, listed in found.messages.items():
            known |= {(channel, *named): now + REFUTE_REPEAT_S for named in listed}
        for named in list(known)[: max(len(known) - REFUTED_MAX, 0)]:
            del known[named]

    def _greet(self, client: int, greet: control.Greet, now: float) -> None:
        self.counters.greetings += 1
        self._worked += GREET_UNITS
        if not greet.agent:
            self._resync.greeted(client)
        ring = self.book.signed_ring if greet.ring_version < self.book.version else b""
        welcome = control.Welcome(
            self.server,
            self.instance,
            self.incarnation,
            self.counters.heartbeats,
            self._lease_ms(now),
            self.book.version,
            ring,
        )
        self.tell_client(client, welcome, greet.nonce)

    # The resync

    @property
    def complete(self) -> bool:
        """Whether all clients of the server have sent their Present."""
        return self.state is states.AgentState.SERVING and self._resync.complete

    def _start_resync(self, now: float) -> None:
        if not self.authentication.ready:
            return
        self.counters.resyncs += 1
        self._tell_all(control.Resync(self.server, self.instance, self.incarnation), self._resync.begin())
        self.ask((b"PUBSUB", b"NUMSUB", HEARTBEAT_CHANNEL), self._expect)
        self.timers.set("resync over", now + self.limits.resync_s)

    def _expect(self, reply: Any, now: float) -> None:
        """The number of clients on the server: each of them subscribes to the heartbeat channel."""
        if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], int):
            self._resync.count(reply[1])
            self._check_presents()

    def _present(self, client: int, present: control.Present) -> None:
        self.counters.presents += 1
        self.charge_client(
            client, (len(present.channels) + len(present.patterns) + len(present.streams)) // ITEMS_PER_UNIT
        )
        for name in present.channels:
            if not self.register.add(client, name, False):
                self._resync.overflowed = True
            self.dispatcher.registered(name, self._now)
        for name in present.patterns:
            if not self.register.add(client, name, True):
                self._resync.overflowed = True
        for channel, stream, last in present.streams:
            if not self._owns(client, stream):
                continue
            unheard = (self.scanner.last_of(channel, stream) or 0) & ~ENDED < last
            self.scanner.set_stream(channel, stream, last)
            self.dispatcher.presented(channel, stream)
            if self.recorder.active:
                self.recorder.evidence(channel, stream, last, True, self._now)
            self._told(channel, stream, last)
            if unheard and self.state is states.AgentState.SERVING:
                self.dispatcher.announce_here(channel, stream, last)
        for channel in dict.fromkeys(channel for channel, _, _ in present.streams):
            self.dispatcher.announce(channel)
        if present.part + 1 >= present.parts:
            self._resync.present(client, present.resync)
            self._check_presents()

    def _check_presents(self) -> None:
        if self._resync.complete:
            self.knows_publishers = True
            self.timers.cancel("resync over")
            self.timers.cancel("resync again")
            if self.state is states.AgentState.RESYNCING:
                self._serve("all present")
            self.dispatcher.all_present()

    def _resync_over(self, now: float) -> None:
        """Clients that have not answered by now are not waited for, but their subscriptions here are not known."""
        if self.state is states.AgentState.RESYNCING:
            self._serve("resync over")
        if not self._resync.complete:
            self._resyncs_unfinished += 1
            self.timers.set("resync again", now + patience(self.limits.resync_s, self._resyncs_unfinished))

    def _resync_again(self, now: float) -> None:
        """Sends another Resync because some clients have not answered, if the dispatcher needs all answers."""
        if self.dispatcher.wants_all_present:
            self._start_resync(now)
        else:
            self.timers.set("resync again", now + self.limits.resync_s)

    def _serve(self, event: str) -> None:
        self._step(event)
        self._answer_deferred()
        self.dispatcher.serves(self._now)

    def _answer_deferred(self) -> None:
        """Answers as many Hellos as fit one turn, and the rest in the next ones."""
        if self.state is not states.AgentState.SERVING or self.book.ring is None:
            return
        for client, number, hello in self._deferred.take(TURN_WORK_MAX):
            self._hello(client, number, hello)
        if self._deferred:
            self.timers.set("deferred", self._now + DEFERRED_PAUSE_S)

    # Hellos

    def _hello(self, client: int, number: int, hello: control.Hello) -> None:
        if hello.pattern and hello.name.count(b"*") > self.limits.pattern_stars_max:
            self.counters.garbage += 1
            return
        if hello.publisher and not self._owns(client, hello.stream):
            return
        if self.state is not states.AgentState.SERVING or self.book.ring is None:
            self.counters.hellos_deferred += 1
            self._deferred.add(client, number, hello)
            return
        if not hello.publisher and not self.register.add(client, hello.name, hello.pattern, number):
            self.counters.over_quota += 1
            self._meter.refuse(client, number)
            return
        self.counters.hellos += 1
        streams: list[control.Heard] = []
        absent: list[control.Heard] = []
        complete = True
        if hello.publisher:
            self.scanner.set_stream(hello.name, hello.stream, hello.last)
            self.dispatcher.came(hello.name, hello.stream, self._now)
            if self.recorder.active:
                self.recorder.evidence(hello.name, hello.stream, hello.last, False, self._now)
            self._untold.drop(hello.name, hello.stream)
            self._told(hello.name, hello.stream, hello.last)
        else:
            if not hello.pattern:
                self.dispatcher.registered(hello.name, self._now)
            current = self._memory.current(hello.name, hello.pattern, hello.fresh)
            before = self._memory.absent(hello.name, hello.pattern, current, self._now)
            streams = self._memory.listed(current.streams, self._now)
            absent = self._memory.listed(before.streams, self._now)
            complete = current.complete and (before.complete or hello.incarnation == self.incarnation)
            steps = current.steps + before.steps
            self.charge_client(client, (len(streams) + len(absent)) // STREAMS_PER_UNIT + steps // STEPS_PER_UNIT)
        self.counters.answers_incomplete += not complete
        entry = b"" if hello.pattern else self.book.signed_entry(hello.name)
        version = self.book.version if hello.pattern else self.book.revision(hello.name)
        ring = self.book.signed_ring if hello.ring_version < self.book.version else b""
        answer = control.Answer(
            self.server,
            hello.name,
            self.incarnation,
            version,
            entry,
            ring,
            self._memory.remembers(hello.incarnation),
            complete,
            self._since,
            0,
            1,
            [],
            [],
        )
        for part in control.in_parts(answer, streams, absent):
            self.tell_client(client, part, hello.nonce)

    def streams(self, channel: bytes) -> dict[int, int]:
        """The streams of a channel, each with its last sequence number (see `ENDED`)."""
        return self._memory.of(channel)

    def forget_idle(self) -> int:
        """Drops the streams that have been idle so long that they have ended; returns their number."""
        streams, _ = self.scanner.forget_idle(self._now - self.limits.publisher_idle_s)
        return streams

    def live_streams(self, channel: bytes) -> list[tuple[int, int, float]]:
        """The streams of a channel that have not ended: id, last sequence number, and seconds of quiet at least."""
        return self._memory.live(channel, self._now)

    # The plan

    def ring(self, data: bytes) -> None:
        """A ring from the coordinator. Hellos that came before the first ring are answered now. Publishers that arrive
        under a later ring than the first are answered by this process."""
        first = self.book.ring is None
        try:
            news = self.book.accept_ring(data)
        except PlanError:
            self.counters.forged += 1
            return
        if news:
            assert self.book.ring is not None
            was_ready = self.authentication.ready and not first
            self.authentication.follow(self.book.ring)
            self._use_secrets()
            if first and self.authentication.active:  # these came before the agent could judge them
                self._deferred.clear()
                self._queue.clear()
                self._memory.forget_all()
            if not was_ready:
                self._speak_again()
            self._since = self._since or self.book.version
            self.dispatcher.ring_changed(first, self._now)
        self._answer_deferred()

    def entry(self, data: bytes) -> None:
        """A plan entry from the coordinator."""
        try:
            channel, news = self.book.accept_entry(data)
        except PlanError:
            self.counters.forged += 1
            return
        if news:
            self.dispatcher.entry_changed(channel, self._now)

    def forget_entry(self, channel: bytes) -> None:
        """The coordinator has no entry of the channel any more."""
        self.book.forget_entry(channel)
        self.dispatcher.entry_changed(channel, self._now)

    def mark(self, pattern: bytes, on: bool) -> None:
        """The coordinator marks channels as recorded, or no longer; each is looked up with its next message."""
        if self.recorder.mark(pattern, on):
            self.scanner.watch_new(metered=not self.recorder.active)
            self.scanner.watch_all()

    # Other servers (`forward_links` keeps a connection to each, `report_writer` takes reports)

    def take_forwards(self) -> dict[str, list[Command]]:
        """Commands for the connections to other servers, in order: PUBLISH only."""
        return self.dispatcher.forwards.take()

    def forward_opened(self, server: str, now: float) -> None:
        """A connection to another server is open: unanswered commands of the one before are sent again."""
        self._now = now
        self.dispatcher.forwards.opened(server)

    def forward_lost(self, server: str, now: float) -> None:
        """A connection to another server is lost."""
        self._now = now
        self.dispatcher.forward_lost(server)

    def forward_replied(self, server: str, count: int, now: float) -> None:
        """Another server has replied to the `count` oldest commands."""
        self._now = now
        self.dispatcher.forward_replied(server, count)

    def take_report(self) -> MoveReport | None:
        """A report for the coordinator, if there is a new one."""
        return self.dispatcher.take_report()

    @property
    def report_may_change(self) -> bool:
        """Whether `take_report` may return one."""
        return self.dispatcher.report_may_change

    # Time

    def next_timer(self) -> float | None:
        """When `timer` wants to be called next."""
        return self.timers.next_at()

    def timer(self, now: float) -> None:
        """Runs the timers that are due."""
        self._now = now
        for key in self.timers.due(now):
            if key == "heartbeat":
                self._send_heartbeat(now)
            elif key == "resync over":
                self._resync_over(now)
            elif key == "resync again":
                self._resync_again(now)
            elif key == "deferred":
                self._answer_deferred()
            elif isinstance(key, tuple):
                self.dispatcher.notice_due(key[1], now)
            elif callable(key):
                key(now)
