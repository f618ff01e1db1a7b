"""The agent: the process beside one server, as a state machine without I/O.

Owns the register, the answers to hellos, the word and the roll-call. It hears everything on its server through one
pattern subscription, whose bytes go through the scanner; telemetry is made from the scanner's tables in `monitor.py`.

    bytes of the observing connection -> scanner -> control messages, in the server's own order -> answers

A restarted agent knows nothing: it calls the roll, and answers nobody before everyone on the server has said what they
do there (or `roll_call_s` is over). When only its connection is lost, or the server restarts, it remembers which
streams it had heard, so that it can tell returning subscribers whom to wait for.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from shoal.channels import states
from shoal.channels.lease import AgentLease
from shoal.channels.link import Command
from shoal.channels.register import Register
from shoal.channels.scanner import Scanner
from shoal.channels.timers import Timers
from shoal.errors import PlanError, ProtocolError
from shoal.limits import Limits
from shoal.plan.book import PlanBook
from shoal.wire import control
from shoal.wire.envelope import AGENT_CHANNEL, WORD_CHANNEL, client_of, inbox_channel
from shoal.wire.glob import glob_match

HELLOS_DEFERRED_MAX: Final = 100_000
"""Hellos that wait for the end of a roll-call. Who does not fit asks again."""

Handler = Callable[[Any, float], None]
Streams = dict[tuple[bytes, int], int]


class AgentCounters(msgspec.Struct):
    """What an agent has done so far."""

    greetings: int = 0
    hellos: int = 0
    hellos_deferred: int = 0
    words: int = 0
    orphan_words: int = 0
    roll_calls: int = 0
    presents: int = 0
    garbage: int = 0
    forged: int = 0


class AgentCore:
    """One agent. `instance` is a random number that tells this process from the ones before it."""

    def __init__(self, server: str, instance: int, scanner: Scanner, book: PlanBook, limits: Limits) -> None:
        self.server = server
        self.instance = instance
        self.scanner = scanner
        self.book = book
        self.limits = limits
        self.register = Register()
        self.lease = AgentLease(server, limits)
        self.counters = AgentCounters()
        self.outbox: list[Command] = []
        self.state = states.Agent.AWAY
        self.life = 0
        self.second = 0
        self.timers = Timers()
        self._inflight: deque[Handler | None] = deque()
        self._previous: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._remembers = False
        self._roll = 0
        self._awaited: int | None = None
        self._presents: set[int] = set()
        self._deferred: list[control.Hello] = []
        self._heard = 0
        self._lives = 0

    # The server

    def opened(self, run_id: str, now: float) -> None:
        """There is a connection to the server. What happened on the server since the last one, nobody has seen."""
        self.outbox.clear()
        self._inflight.clear()
        self.scanner.reset()
        self._begin_life(run_id)
        self._step("server reached")
        self.outbox.append((b"PSUBSCRIBE", b"*"))
        self._call(now)
        self.timers.set("word", now)

    def _begin_life(self, run_id: str) -> None:
        """A life is a time in which this agent has heard everything on this server without a break. What it knows of
        the life before is kept apart, until those concerned have been heard in this one."""
        self._remembers = self.life != 0
        self._lives += 1
        if self._remembers:
            self._forget_previous()
            for key, last in self._all_streams().items():
                self._previous[key] = last, self.second
            self.scanner.clear()
        name = f"{run_id} {self.instance} {self._lives}"
        self.life = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") or 1
        self.register.clear()

    def _forget_previous(self) -> None:
        """Streams that have been silent since before `publisher_idle_s` have ended; nobody waits for them."""
        oldest = self.second - self.limits.publisher_idle_s
        self._previous = {key: seen for key, seen in self._previous.items() if seen[1] >= oldest}

    def lost(self, now: float) -> None:
        """The connection to the server is gone."""
        if self.state is not states.Agent.AWAY:
            self._step("server lost")
            self._deferred.clear()
            self.timers.cancel("word")
            self.timers.cancel("call")

    def _step(self, event: str) -> None:
        self.state = states.step(states.AGENT, self.state, event)

    def received(self, data: bytes, now: float) -> None:
        """Bytes of the observing connection. ProtocolError if they are not RESP: the connection must be dropped."""
        self.scanner.feed(data, self.second)
        while (frame := self.scanner.scan()) is not None:
            if frame.push:
                self._pushed(frame.value, now)
            elif self._inflight:
                handler = self._inflight.popleft()
                if handler is not None:
                    handler(frame.value, now)

    def ask(self, command: Command, handler: Handler | None = None) -> None:
        """Queues a command; `handler` gets its reply."""
        self.outbox.append(command)
        self._inflight.append(handler)

    def _say(self, channel: bytes, message: control.Control) -> None:
        self.ask((b"PUBLISH", channel, control.encode(message)))

    def _pushed(self, push: list[Any], now: float) -> None:
        if push[0] != b"pmessage" or push[2] not in (AGENT_CHANNEL, WORD_CHANNEL):
            return
        try:
            message = control.decode(push[3])
        except ProtocolError:
            self.counters.garbage += 1
            return
        match message:
            case control.Greet():
                self._greet(message, now)
            case control.Hello():
                self._hello(message)
            case control.Bye():
                self.register.remove(message.client, message.name, message.pattern)
            case control.Present():
                self._present(message)
            case control.Word():
                if message.agent == self.instance:
                    self._heard = max(self._heard, message.number)
            case control.RollCall():
                pass
            case _:
                self.counters.garbage += 1

    # The word

    def _lease_ms(self, now: float) -> int:
        return int(1000 * self.lease.remaining_s(self.book.ring, now))

    def _speak(self, now: float) -> None:
        """Gives the agent's word, as long as it can."""
        self.timers.set("word", now + self.limits.word_interval_s)
        lease_ms = self._lease_ms(now)
        granted = self.lease.is_granted(now)
        self.counters.words += 1
        self.counters.orphan_words += not granted and lease_ms > 0
        word = control.Word(
            self.server,
            self.instance,
            self.counters.words,
            self._heard,
            self.life,
            lease_ms,
            granted,
            self.book.version,
        )
        self._say(WORD_CHANNEL, word)

    def _greet(self, greet: control.Greet, now: float) -> None:
        self.counters.greetings += 1
        ring = self.book.signed_ring if greet.ring_version < self.book.version else b""
        self._say(
            inbox_channel(greet.client),
            control.Welcome(greet.nonce, self.server, self.life, self._lease_ms(now), self.book.version, ring),
        )

    # The roll-call

    def _call(self, now: float) -> None:
        self.counters.roll_calls += 1
        self._roll += 1
        self._presents.clear()
        self._awaited = None
        self._say(WORD_CHANNEL, control.RollCall(self.instance, self._roll))
        self.ask((b"PUBSUB", b"NUMSUB", WORD_CHANNEL), self._expect)
        self.timers.set("call", now + self.limits.roll_call_s)

    def _expect(self, reply: Any, now: float) -> None:
        """How many clients are on the server: each of them hears the word channel."""
        if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], int):
            self._awaited = reply[1]
            self._check_presents()

    def _present(self, present: control.Present) -> None:
        self.counters.presents += 1
        for name in present.channels:
            self.register.add(present.client, name, False)
        for name in present.patterns:
            self.register.add(present.client, name, True)
        for channel, stream, last in present.streams:
            self._stream_stands(channel, stream, last)
        if present.roll == self._roll:
            self._presents.add(present.client)
            self._check_presents()

    def _check_presents(self) -> None:
        if self.state is states.Agent.CALLING and self._awaited is not None and len(self._presents) >= self._awaited:
            self._serve("all present")

    def _call_over(self, now: float) -> None:
        if self.state is states.Agent.CALLING:
            self._serve("call over")

    def _serve(self, event: str) -> None:
        self._step(event)
        self.timers.cancel("call")
        self._answer_deferred()

    def _answer_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for hello in deferred:
            self._hello(hello)

    # Hellos

    def _hello(self, hello: control.Hello) -> None:
        if self.state is not states.Agent.SERVING or self.book.ring is None:
            self.counters.hellos_deferred += 1
            if len(self._deferred) < HELLOS_DEFERRED_MAX:
                self._deferred.append(hello)
            return
        self.counters.hellos += 1
        streams: control.StreamList = []
        absent: control.StreamList = []
        if hello.publisher:
            self._stream_stands(hello.name, hello.stream, hello.last)
        else:
            self.register.add(hello.client, hello.name, hello.pattern)
            current = self._streams_of(hello)
            streams = [(channel, stream, last) for (channel, stream), last in current.items()]
            self._forget_previous()
            absent = [
                (channel, stream, last)
                for (channel, stream), (last, _) in self._previous.items()
                if (channel, stream) not in current and self._matches(hello, channel)
            ]
        entry = b"" if hello.pattern else self.book.signed_entry(hello.name)
        version = self.book.version if hello.pattern else self.book.placement(hello.name).version
        ring = self.book.signed_ring if hello.ring_version < self.book.version else b""
        answer = control.Answer(
            hello.nonce, hello.name, self.life, version, entry, ring, self._remembers, streams, absent
        )
        self._say(inbox_channel(hello.client), answer)

    def _stream_stands(self, channel: bytes, stream: int, last: int) -> None:
        self.scanner.set_stream(channel, stream, last)

    def _matches(self, hello: control.Hello, channel: bytes) -> bool:
        return glob_match(hello.name, channel) if hello.pattern else channel == hello.name

    def _streams_of(self, hello: control.Hello) -> Streams:
        if not hello.pattern:
            return self._listing(hello.name)
        listing: Streams = {}
        for channel in self.scanner.channels():
            if glob_match(hello.name, channel):
                listing.update(self._listing(channel))
        return listing

    def _all_streams(self) -> Streams:
        listing: Streams = {}
        for channel in self.scanner.channels():
            listing.update(self._listing(channel))
        return listing

    def _listing(self, channel: bytes) -> Streams:
        """The streams of a channel; nobody has the client id 0, so a stream with it is somebody's garbage."""
        streams = self.scanner.streams(channel).streams
        return {(channel, stream): last for stream, last in streams if client_of(stream)}

    # The plan

    def ring(self, data: bytes) -> None:
        """A ring from the coordinator. Whoever asked before there was one is answered now."""
        try:
            self.book.accept_ring(data)
        except PlanError:
            self.counters.forged += 1
        self._answer_deferred()

    def entry(self, data: bytes) -> None:
        """A plan entry from the coordinator."""
        try:
            self.book.accept_entry(data)
        except PlanError:
            self.counters.forged += 1

    # Time

    def next_timer(self) -> float | None:
        """When `timer` wants to be called next."""
        return self.timers.next_at()

    def timer(self, now: float) -> None:
        """Does what has come due."""
        for key in self.timers.due(now):
            if key == "word":
                self._speak(now)
            elif key == "call":
                self._call_over(now)
            elif callable(key):
                key(now)
