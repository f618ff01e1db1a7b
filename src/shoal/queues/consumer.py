"""The consumer's core: the keys that it holds, the job that the application gets next, and the next turn.

Owns the state of one consumer of one queue. Does no I/O and reads no clock. A turn is one call of the script `turn`: it
reports what was done, renews the lease and takes more. One turn is on its way at a time; one whose reply was lost is
sent again under the same number, and the store answers it as the first time.

    granted --next_job()--> running --done()--> done --turn--> confirmed        the next message of the key runs
                               |     --fail()--> failed --turn--> parked        the key is released
                               +-- lease over, purged, fenced --> lost

A key has at most one running message. Messages of a key are handed out in order, and `done` counts them from the front.

A consumer of a queue on several stores has one core for each of them, which share `max_in_flight`. While a shard moves,
its store says so in every reply: no message of its keys is started, and what the application reports waits. When the
plan names the new store, the keys go to its core (`release_shards`, `adopt`) with their tokens and running jobs. They
go on when the new store has confirmed them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, Final

from shoal.errors import ConsumerInactiveError, DeadLettersFullError, JobLostError, QueueError
from shoal.limits import Limits
from shoal.queues.assignment import FRONT, DelayMeter, Situation, keys_to_give, load_of
from shoal.queues.settings import CLOCK_STEP_S, LEASE_STEP_S, ConsumerSettings
from shoal.rules import ALL_RULES, Rules, rule

WAKE_POLL: Final = rule("wake_poll", "A consumer calls the store again by itself, even if nothing is pushed to it.")
GIVE_AT_BOUNDARY: Final = rule("give_at_boundary", "A key goes back only while none of its messages is running.")
LEASE_BEFORE_START: Final = rule("lease_before_start", "No message is started when the lease may be over.")

CLOCK_JUMPS_MAX: Final = 2
LEASE_SHARE: Final = 0.95
"""A consumer starts messages in this part of its lease, after the steps of `CLOCK_JUMPS_MAX` jumps of the store's clock
are subtracted. The rest covers the difference in speed between clocks."""
PUSH_TURN_S: Final = 0.005
"""How long a consumer waits after a pushed job before it asks for more, so that a fast job is reported in the same
turn."""
NEW_MESSAGES: Final = 4
"""Messages that a consumer asks for when it has done all messages of a key that it knows of."""
OPERATIONS_MAX: Final = 1024
"""Operations of one turn that a store accepts."""
ACK_ATTEMPTS_MAX: Final = 3
"""How often a message without acknowledgement is handed out again. Then the consumer is inactive."""

MOVE_CONFIRM: Final = rule("move_confirm", "A key of a shard that moves starts no message until a store confirms it.")

LOST, HELD, RELEASED, HALTED, MOVING = 0, 1, 2, 3, 4
_OPEN: Final = ord("o")
Grant = tuple[bytes, bytes]
"""A token and its key. Two stores may give the same token to two keys; a key's own tokens only grow."""
_DONE, _START, _FAIL, _GIVE, _EXTEND = b"D", b"S", b"F", b"G", b"E"
_UNSTARTED: Final = b"U"
"""A key is given back whose head was not handed to the application, even if its start was reported before."""


class JobCore:
    """A message in the hands of the application."""

    __slots__ = ("attempt", "body", "error", "extending", "key", "settled", "started_at", "tries")

    def __init__(self, key: HeldKey, body: bytes, attempt: int, started_at: float, tries: int = 1) -> None:
        self.key = key
        self.body = body
        self.attempt = attempt
        self.started_at = started_at
        self.tries = tries
        """How often this consumer has handed out the message under this token."""
        self.settled = False
        """Whether the store has confirmed its end, or it is lost."""
        self.error: QueueError | None = None
        """Why it ended otherwise than the application asked."""
        self.extending = False


class HeldKey:
    """A key that this consumer holds under one token."""

    __slots__ = (
        "attempts", "base", "bodies", "core", "done", "ended", "failure", "give", "handed", "key", "lease_until",
        "left", "running", "shard", "start_reported", "suspect", "token", "uncertain", "wants",
    )  # fmt: skip

    def __init__(
        self, core: ConsumerCore, shard: bytes, key: bytes, token: bytes, attempts: int, suspect: bool, left: int
    ) -> None:
        self.core = core
        self.shard = shard
        self.key = key
        self.token = token
        self.attempts = attempts
        self.suspect = suspect
        """Whether an earlier consumer died that may have started the head: the start is reported first."""
        self.left = left
        """Messages in the store, from number `base` on."""
        self.base = 0
        """Messages that the store has removed under this token."""
        self.done = 0
        """Messages that are done under this token."""
        self.bodies: deque[bytes] = deque()
        self.running: JobCore | None = None
        self.ended: list[JobCore] = []
        """Jobs that are done and not confirmed."""
        self.failure: tuple[JobCore, int, str] | None = None
        self.give: bytes | None = None
        self.start_reported = False
        self.handed = False
        """Whether the head was handed to the application."""
        self.wants = 0
        """Messages asked for in the turn that is on its way."""
        self.lease_until: float | None = None
        """The end of the lease as of the last turn before its shard was sealed, until a store confirms the key again.
        None: the lease of its core counts."""
        self.uncertain = False
        """Whether an operation was given up whose effect at the old store is unknown."""

    @property
    def grant(self) -> Grant:
        """Identifies the key and its token."""
        return self.token, self.key

    @property
    def number(self) -> int:
        """The second half of the token, which grows with every grant of the queue."""
        return int(self.token.partition(b".")[2])

    @property
    def have(self) -> int:
        """Messages here: running and fetched."""
        return len(self.bodies) + (self.running is not None)

    @property
    def is_running(self) -> bool:
        """Whether the application has a message of it."""
        return self.running is not None

    @property
    def is_empty(self) -> bool:
        """Whether its next message is in the store, and none is here."""
        return not self.bodies and self.running is None and self.more > 0

    @property
    def served(self) -> int:
        """Messages done since the key was granted."""
        return self.done

    @property
    def more(self) -> int:
        """Messages in the store that are not here."""
        return self.left - (self.done - self.base) - self.have

    @property
    def startable(self) -> bool:
        """Whether its next message can be handed out."""
        idle = self.running is None and self.failure is None and self.give is None
        return idle and bool(self.bodies) and not self.suspect and self.lease_until is None


class ConsumerCore:
    """One consumer. `name` identifies it on the store and is never used again."""

    def __init__(
        self,
        queue: str,
        name: bytes,
        version: int,
        lease_s: float,
        settings: ConsumerSettings,
        limits: Limits,
        rules: Rules = ALL_RULES,
        ack_timeout_s: float | None = None,
        group: list[ConsumerCore] | None = None,
    ) -> None:
        """`group` has the cores of the same consumer for all stores; this one joins it. `lease_s` counts until a reply
        says how long a lease is."""
        self.name = name
        self.meter = DelayMeter(settings)
        self.situation = Situation()
        self.paused = False
        self.inactive: ConsumerInactiveError | None = None
        self.settled: list[JobCore] = []
        """Jobs that have settled since the caller last looked."""
        self.repeated: list[JobCore] = []
        """Messages to be handed out again, because they were not acknowledged in time."""
        self.counters = {
            "turns": 0,
            "pushed": 0,
            "granted": 0,
            "given": 0,
            "lost": 0,
            "resyncs": 0,
            "rejoined": 0,
            "repeated": 0,
        }
        self._queue = queue
        self._version = version
        self._lease_s = lease_s
        self._settings = settings
        self._limits = limits
        self._rules = rules
        self._ack_timeout_s = ack_timeout_s
        self._keys: OrderedDict[Grant, HeldKey] = OrderedDict()
        """In the order of their turns."""
        self._number = 0
        self._sent: list[tuple[bytes, HeldKey, int, JobCore | None]] = []
        self._operations: list[bytes] = []
        self._in_flight = False
        self._sent_at = 0.0
        self._again = False
        self._resync = True
        self._member = False
        self._turn_at: float | None = 0.0
        self._poll_at = 0.0
        self._renew_at = 0.0
        self._lease_until = 0.0
        self._rest_until = 0.0
        self._draining = False
        self._leaving = False
        self._leave_sent = False
        self._resync_sent = False
        self._asked = 0
        self._counter = 0
        """The largest number of a token as of the last reply. Later pushes of the same connection have larger ones."""
        self._moving_delay_s = limits.queue_moving_retry_s
        self._group = [] if group is None else group
        self._group.append(self)
        self.shut: frozenset[bytes] = frozenset()
        """Shards that are not open on this store."""
        self.left = False
        """Whether the store knows that this consumer has left."""

    # What the shell asks

    @property
    def held(self) -> int:
        """Number of keys held."""
        return len(self._keys)

    @property
    def in_flight(self) -> int:
        """Messages here: running and fetched."""
        return sum(key.have for key in self._keys.values())

    @property
    def running(self) -> int:
        """Jobs that the application has."""
        return sum(key.running is not None for key in self._keys.values())

    def holds(self, key: HeldKey, now: float) -> bool:
        """Whether a key surely is still held."""
        until = self._lease_until if key.lease_until is None else key.lease_until
        return self._keys.get(key.grant) is key and now < until

    def lease_runs(self, now: float) -> bool:
        """Whether the lease surely has not ended."""
        return now < self._lease_until

    def next_at(self, now: float) -> float | None:
        """When `turn` or `check_overdue` should be called next; None while a turn is on its way."""
        overdue = self._overdue_at()
        if self._in_flight:
            return overdue
        times = [at for at in (overdue, self._turn_at) if at is not None]
        if WAKE_POLL in self._rules:
            times += (self._renew_at, self._poll_at)
        return min(times, default=None)

    def next_job(self, now: float) -> JobCore | None:
        """The next message for the application; None if there is none, or if the lease may be over."""
        if now >= self._lease_until and LEASE_BEFORE_START in self._rules:
            return None
        if self._leaving or self._draining or self.inactive is not None:
            return None
        for grant, key in self._keys.items():
            if key.bodies and key.startable and key.shard not in self.shut:
                job = JobCore(key, key.bodies.popleft(), key.attempts + 1, now)
                key.running = job
                key.handed = True
                key.start_reported = False
                self._keys.move_to_end(grant)  # keys take turns
                if not key.bodies and key.more > 0:
                    self._want_turn(now)
                return job
        return None

    # What the application does with its jobs

    def done(self, job: JobCore, now: float) -> None:
        """The message was processed."""
        key = self._end(job, now)
        if key is None:
            return
        key.done += 1
        key.handed = False
        key.attempts = 0
        key.ended.append(job)
        if self.situation.hungry or key.done >= self._settings.quantum_messages:  # otherwise no key goes back
            self._give_back(now)
        self._want_turn(now)

    def fail(self, job: JobCore, delay_s: float | None, reason: str, now: float) -> None:
        """The message was not processed: retry it after a delay, or never (None)."""
        key = self._end(job, now)
        if key is None:
            return
        key.failure = (job, -1 if delay_s is None else round(delay_s * 1000), reason)
        self._want_turn(now)

    def extend(self, job: JobCore, now: float) -> None:
        """Ask the store whether the job is still held; `settled` tells."""
        if job.key.running is job and not job.settled:
            job.extending = True
            job.started_at = now
            self._want_turn(now)

    def check_overdue(self, now: float) -> list[JobCore]:
        """Hand out messages again whose acknowledgement is overdue. Returns the jobs that they replace, which are lost.
        After `ACK_ATTEMPTS_MAX` the consumer becomes inactive."""
        at = self._overdue_at()
        replaced: list[JobCore] = []
        if at is None or now < at:
            return replaced
        assert self._ack_timeout_s is not None
        for key in list(self._keys.values()):
            job = key.running
            if job is None or now < job.started_at + self._ack_timeout_s:
                continue
            replaced.append(job)
            job.settled = True
            job.error = JobLostError(f"the job was not acknowledged within {self._ack_timeout_s:g} s")
            key.running = None
            key.bodies.appendleft(job.body)
            if job.tries >= ACK_ATTEMPTS_MAX:
                self.inactive = ConsumerInactiveError(
                    f"a message of queue {self._queue} was handed out {job.tries} times without acknowledgement",
                    do="find out why the handler hangs; the other messages went to other consumers",
                )
                self.leave(now)
                continue
            again = JobCore(key, key.bodies.popleft(), job.attempt, now, job.tries + 1)
            key.running = again
            self.repeated.append(again)
        return replaced

    # Turns

    def turn(self, now: float) -> list[bytes] | None:
        """The arguments of the next turn; None if there is no reason for one."""
        if self._in_flight or self.left:
            return None
        again = self._again
        if not again:
            at = self.next_at(now)
            if at is None or now < at:
                return None
            self._collect()
            self._number += 1
        self._again = False
        self._in_flight = True
        self._sent_at = now
        self._turn_at = None
        self._leave_sent = self._leaving
        self._resync = self._resync or (self._member and not self.lease_runs(now))
        self._resync_sent, self._resync = self._resync or again, False
        self.counters["turns"] += 1
        wants = self._asked = self._capacity(now)
        flags = (b"R" if self._resync_sent else b"") + (b"L" if self._leaving else b"")
        flags += b"S" if len(self._group) > 1 else b""  # several stores count on the same room
        messages, keys = (sum(getattr(core, name) for core in self._group) for name in ("in_flight", "held"))
        load = load_of(self.meter.service_s, messages, keys, self._settings)
        return [
            b"%d" % self._version,
            self.name,
            b"%d" % self._number,
            b"%.6f" % load,
            b"%d" % self.held,
            b"%d" % wants,
            b"%d" % min(wants, self._limits.queue_batch_messages_max),
            b"%d" % self._settings.key_messages,
            flags,
            *self._operations,
        ]

    def turn_lost(self, now: float) -> None:
        """The reply to the turn that was on its way will not come. The turn is sent again, on a new connection."""
        self.disconnected(now)
        self._in_flight = False
        self._asked = 0
        self._again = True
        self.counters["repeated"] += 1

    def disconnected(self, now: float) -> None:
        """The connection was lost, and pushed jobs may be lost with it: the next turn asks what this consumer holds."""
        self._resync = True
        self._want_turn(now)

    def reply(self, reply: list[Any], now: float) -> None:
        """The reply to the turn that was on its way."""
        joined, ready, hungry, consumers, owned, due_ms, paused, results, grants, kept, counter, *more = reply
        self._in_flight = False
        self._asked = 0
        self._counter = counter
        self._take_shut(more[0] if more else b"", now)
        self.situation = Situation(ready, hungry, consumers, owned)
        self.paused = bool(paused)
        if joined and self._member:
            self.counters["rejoined"] += 1
            for key in list(self._keys.values()):
                if key.number <= counter and key.lease_until is None:
                    self._lose(key)
        # If the lease may be over, only a list of keys says what is held: the store may have ended it, and begun
        # another one because a shard moved there with keys of this consumer. Then `joined` does not tell.
        known = not self._member or self._resync_sent or self.lease_runs(now)
        self._member = True
        if len(more) > 1:  # an operator may have changed it
            self._lease_s = more[1] / 1000
        safe_s = (self._lease_s - LEASE_STEP_S - CLOCK_JUMPS_MAX * CLOCK_STEP_S) * LEASE_SHARE
        if known:
            self._lease_until = self._sent_at + safe_s
        else:
            self.disconnected(now)
        self._renew_at = self._sent_at + self._lease_s / 3
        self._poll_at = now + self._limits.queue_poll_s
        if due_ms >= 0:
            self._poll_at = min(self._poll_at, now + max(due_ms, 1) / 1000)
        if any(key.shard in self.shut for key in self._keys.values()):
            self._poll_at = min(self._poll_at, now + self._moving_delay_s)
            self._moving_delay_s = min(2 * self._moving_delay_s, self._limits.queue_moving_retry_s_max)
        else:
            self._moving_delay_s = self._limits.queue_moving_retry_s
        sent, self._sent, self._operations = self._sent, [], []
        for (code, key, upto, job), result in zip(sent, results, strict=True):
            self._take_result(code, key, upto, job, result)
        for shard, name, token, attempts, suspect, left, bodies in grants:
            self._hold(HeldKey(self, shard, name, token, attempts, bool(suspect), left), bodies)
        if self._resync_sent:
            self._take_held(kept, {(grant[2], grant[1]) for grant in grants}, counter)
        if self._leave_sent:
            self.left = True
            for key in list(self._keys.values()):
                self._lose(key)
            return
        self._give_back(now)
        hungry_here = ready > 0 and not paused and self.held < self.situation.share and self._capacity(now) > 0
        if self._leaving or self._has_news() or hungry_here:
            self._want_turn(now)
        elif any(key.is_empty and key.shard not in self.shut for key in self._keys.values()):
            self._want_turn(now + PUSH_TURN_S)  # there is no room: the next job that ends makes some

    def pushed(self, parts: list[bytes], now: float) -> None:
        """A job was pushed to this consumer."""
        shard, name, token, attempts, suspect, left, ready, body = parts
        self.counters["pushed"] += 1
        if self._leaving or (token, name) in self._keys:
            return
        key = HeldKey(self, shard, name, token, int(attempts), suspect != b"0", int(left))
        if key.number <= self._counter:  # kept by an earlier connection; the key may have another owner since
            self.disconnected(now)
            return
        if self.held >= 2 * self._settings.max_in_flight:  # not from the store: the next turn asks what this one holds
            self.disconnected(now)
            return
        self._hold(key, [body])
        self._want_turn(now if int(ready) or suspect != b"0" else now + PUSH_TURN_S)

    def drain(self, now: float) -> None:
        """Take no more, and give back every key: at once, or when its running message ends. The consumer stays a
        member, so that running messages can end."""
        self._draining = True
        for key in self._keys.values():
            key.give = key.give or FRONT
        self._want_turn(now)

    def release_shards(self, shards: Iterable[bytes], now: float) -> list[HeldKey]:
        """Give up the keys of shards that have moved to another store, for its core. A key with an operation on its way
        stays until the old store has answered, which alone knows whether it carried it out, or until its lease is
        over."""
        gone = {*shards}
        busy = {key.grant for _, key, _, _ in self._sent}
        released = []
        for key in [key for key in self._keys.values() if key.shard in gone]:
            if key.lease_until is None:
                key.lease_until = self._lease_until
            if key.grant not in busy or now >= key.lease_until:
                key.uncertain = key.uncertain or key.grant in busy
                del self._keys[key.grant]
                released.append(key)
        return released

    def adopt(self, keys: Iterable[HeldKey], now: float) -> None:
        """Take keys whose shard has moved to this store."""
        for key in keys:
            key.core = self
            self._keys[key.grant] = key
            if MOVE_CONFIRM not in self._rules:
                key.lease_until = None
        self.disconnected(now)

    def leave(self, now: float) -> None:
        """Give back everything and leave the queue, with the next turn."""
        self._leaving = True
        self._want_turn(now)

    # Inside

    def _end(self, job: JobCore, now: float) -> HeldKey | None:
        key = job.key
        if job.settled or key.running is not job:
            return None
        key.running = None
        self.meter.note(now - job.started_at, now)
        return key

    def _overdue_at(self) -> float | None:
        if self._ack_timeout_s is None:
            return None
        times = (key.running.started_at for key in self._keys.values() if key.running is not None)
        return min((at + self._ack_timeout_s for at in times), default=None)

    def _want_turn(self, at: float) -> None:
        self._turn_at = at if self._turn_at is None else min(self._turn_at, at)

    def _has_news(self) -> bool:
        """Whether something must be told or asked without waiting for the next poll."""
        has_room = self._room() > 0
        for key in self._keys.values():
            if key.shard in self.shut:
                continue
            if key.lease_until is not None:
                return True
            if key.done > key.base or key.failure is not None or (key.give is not None and not key.is_running):
                return True
            if (key.suspect and key.bodies) or (has_room and key.is_empty):
                return True
            if key.running is not None and key.running.extending:
                return True
        return False

    def _capacity(self, now: float) -> int:
        """Messages that still fit here."""
        if self._leaving or self._draining or (now < self._rest_until and self.situation.consumers > 1):
            return 0
        return max(0, self._room())

    def _room(self) -> int:
        """Messages that the consumer may still hold, on all stores together."""
        return self._settings.max_in_flight - sum(
            core.in_flight + (core._asked if core is not self else 0) for core in self._group
        )

    def _take_shut(self, letters: bytes, now: float) -> None:
        """The state of each shard on this store. The keys of a shard that is not open keep the lease of the turn before
        this one: the new store gives them a full lease later than that. A shard that has opened may have brought keys
        that this consumer was given at the old store in a reply or a push that was lost: the next turn asks."""
        before = self.shut
        self.shut = frozenset(b"%d" % shard for shard, letter in enumerate(letters) if letter != _OPEN)
        if before - self.shut:
            self.disconnected(now)
        for key in self._keys.values() if MOVE_CONFIRM in self._rules else ():
            if key.shard in self.shut and key.lease_until is None:
                key.lease_until = self._lease_until

    def _collect(self) -> None:
        """Turn the state of the keys into operations."""
        words, sent = self._operations, self._sent
        chunk, quantum = self._settings.key_messages, self._settings.quantum_messages
        room = self._room()
        spare = room <= 0  # running jobs fill the room: other keys get one message each, and go on
        for key in self._keys.values():
            if key.shard in self.shut:
                continue
            if len(sent) > OPERATIONS_MAX - 2:
                break  # the others come with the next turn
            head = (key.shard, key.key, key.token, b"%d" % key.done)
            if key.failure is not None:
                job, delay_ms, reason = key.failure
                words += (_FAIL, *head, b"%d" % delay_ms, reason.encode(errors="replace"))
                sent.append((_FAIL, key, key.done, job))
                continue
            unstarts = self._leaving and key.start_reported and not key.handed
            gives = key.give is not None and (not key.is_running or GIVE_AT_BOUNDARY not in self._rules)
            if gives or unstarts:
                words += (_GIVE, *head, key.give or FRONT, b"" if key.handed else _UNSTARTED)
                sent.append((_GIVE, key, key.done, None))
                continue
            starts = (key.running is not None and not key.start_reported) or (key.suspect and bool(key.bodies))
            wants = 0
            if (
                key.give is None
                and key.have <= chunk // 2
                and (key.more > 0 or (key.have == 0 and key.done > key.base))
            ):
                known = key.more if key.more > 0 else NEW_MESSAGES  # the room is for keys that have messages
                left = max(quantum - key.done, 1) if self.situation.ready else chunk  # then the key goes back
                wants = max(min(chunk - key.have, left - key.have, known, room + (spare and key.have == 0)), 0)
                room -= wants
            if wants or (key.done > key.base and not starts):
                words += (_DONE, *head, b"%d" % key.have, b"%d" % wants)
                sent.append((_DONE, key, key.done, None))
            if starts:
                words += (_START, *head, b"", b"")
                sent.append((_START, key, key.done, None))
            extends = key.running is not None and key.running.extending
            if extends or key.lease_until is not None:
                words += (_EXTEND, *head[:3], b"", b"", b"")
                sent.append((_EXTEND, key, key.done, key.running if extends else None))

    def _take_result(self, code: bytes, key: HeldKey, upto: int, job: JobCore | None, result: list[Any]) -> None:
        status, left, *sent = result
        if self._keys.get(key.grant) is not key:
            return  # lost meanwhile
        if status == LOST:
            self._lose(key)
            return
        if status == MOVING:
            key.lease_until = 0.0 if key.lease_until is None else key.lease_until
            return
        if status == HELD and key.shard not in self.shut:  # a turn that comes again may be answered from memory
            key.lease_until = None
        if code == _EXTEND:
            if job is not None and job.extending:
                job.extending = False
                self.settled.append(job)
            return
        confirmed = key.ended[: upto - key.base]
        del key.ended[: upto - key.base]
        for ended in confirmed:
            self._settle(ended)
        key.base = max(key.base, upto)
        if left >= 0:
            key.left = left
        if status == HELD:
            if code == _START:
                key.start_reported = True
                key.suspect = False
            if sent:
                key.bodies += sent[0]
            return
        del self._keys[key.grant]
        if code == _FAIL and job is not None:
            full = DeadLettersFullError(
                f"queue {self._queue} has no room for another dead letter, and key {key.key!r} is halted",
                do="replay or drop dead letters, then release the key",
            )
            self._settle(job, full if status == HALTED else None)
        elif code == _GIVE:
            self.counters["given"] += 1
        if key.running is not None:
            self._settle(key.running, self._gone())

    def _take_held(self, kept: Iterable[list[Any]], granted: set[Grant], counter: int) -> None:
        """The keys that this consumer holds by the store's account. A key that was pushed after the turn has a larger
        number; the push may be read before the reply."""
        self.counters["resyncs"] += 1
        listed = set(granted)
        for shard, name, token, attempts, suspect, left, base in kept:
            listed.add((token, name))
            key = self._keys.get((token, name))
            if key is None:
                if any((token, name) in core._keys for core in self._group):
                    continue  # another core has it, because its shard moves
                key = HeldKey(self, shard, name, token, attempts, bool(suspect), left)
                key.done = base
                self._hold(key, [])
            key.base, key.left = base, left
        known = [key for key in self._keys.values() if key.number <= counter and key.lease_until is None]
        for key in [key for key in known if key.grant not in listed]:
            self._lose(key)

    def _hold(self, key: HeldKey, bodies: Iterable[bytes]) -> None:
        key.bodies += bodies
        if key.shard in self.shut:
            key.lease_until = 0.0
        self._keys[key.grant] = key
        if self._draining:
            key.give = FRONT
        self.counters["granted"] += 1

    def _lose(self, key: HeldKey) -> None:
        self._keys.pop(key.grant, None)
        jobs = [*key.ended, *([key.running] if key.running is not None else [])]
        if key.failure is not None:
            jobs.append(key.failure[0])
        for job in jobs:
            self.counters["lost"] += 1
            self._settle(job, self._gone())

    def _gone(self) -> JobLostError:
        return JobLostError(
            f"this consumer does not hold the job of queue {self._queue} any more",
            do="undo or ignore what was done for it: another consumer may have the message",
        )

    def _settle(self, job: JobCore, error: QueueError | None = None) -> None:
        if not job.settled:
            job.settled = True
            job.error = error
            self.settled.append(job)

    def _give_back(self, now: float) -> None:
        """Mark the keys that others should have."""
        if not self.situation.ready and not self.situation.hungry:
            return
        slow = self.meter.is_slow(now) and self.situation.hungry > 0
        free = [
            key for key in self._keys.values() if key.give is None and key.failure is None and key.lease_until is None
        ]
        chosen = keys_to_give(free, self.situation, self._settings, slow=slow)
        for key, side in chosen:
            assert isinstance(key, HeldKey)
            if key.more > 0 or key.bodies:
                key.give = side
                self._want_turn(now)
        if slow:
            self.meter.forget()
            self._rest_until = now + self._settings.slow_rest_s
