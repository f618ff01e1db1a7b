"""A job: one message in the hands of the application.

Owns what the application sees of a message and the calls that end it. `shoal.queues.consumer_shell` carries them out.
"""

from __future__ import annotations

from typing import Literal, Protocol

from shoal.errors import JobLostError
from shoal.message import Attributes, GivenAttributes
from shoal.queues.consumer import JobCore
from shoal.queues.message_format import check_delay, check_key, check_payload, check_queue_name, decode_message


class JobKeeper(Protocol):
    """What a job asks its consumer to do."""

    async def job_done(self, job: Job, confirm: bool) -> None:
        """End a job."""

    async def job_failed(self, job: Job, reason: str, retry_in: float | None, dead: bool, confirm: bool) -> None:
        """End an attempt."""

    async def job_extended(self, job: Job) -> None:
        """Confirm that the job is held."""


class FollowUp:
    """A message that is put when the job is done."""

    __slots__ = ("attributes", "delay", "id", "key", "payload", "queue")

    def __init__(
        self,
        queue: str | None,
        payload: bytes,
        key: str | bytes | None,
        id: bytes,
        delay: float,
        attributes: GivenAttributes | None,
    ) -> None:
        self.queue = queue
        self.payload = payload
        self.key = key
        self.id = id
        self.delay = delay
        self.attributes = attributes


class Job:
    """One message. End it with `done()` or `fail()`; the next message of its key comes after that."""

    __slots__ = ("_keeper", "_stored", "attributes", "core", "ended_as", "follow_ups", "payload", "queue")

    def __init__(self, queue: str, core: JobCore, keeper: JobKeeper) -> None:
        self.queue = queue
        self.core = core
        """Not for applications."""
        self._keeper = keeper
        self._stored = decode_message(core.body)
        self.attributes: Attributes | None
        self.attributes, self.payload = self._stored.split()
        self.follow_ups: list[FollowUp] = []
        self.ended_as: Literal["done", "failed", "dead"] = "done"
        """What the application has asked for last. Not for applications."""

    def __repr__(self) -> str:
        return f"<Job {self.number} of {self.queue}, key {self.key!r}, attempt {self.attempt}>"

    @property
    def key(self) -> bytes:
        """The key. A message without one has a key of its own."""
        return self.core.key.key

    @property
    def id(self) -> bytes | None:
        """The id that the producer gave it."""
        return self._stored.id or None

    @property
    def number(self) -> str:
        """Identifies the message; the same in every attempt."""
        return self._stored.number.decode()

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.core.attempt

    @property
    def put_at(self) -> float:
        """When it was put, in seconds since 1970, by the producer's clock."""
        return self._stored.put_us / 1e6

    @property
    def token(self) -> tuple[int, int]:
        """The fencing token of this delivery. Tokens of a key only grow: a system that remembers the largest one it has
        seen can refuse a consumer that has lost its lease."""
        version, _, counter = self.core.key.token.partition(b".")
        return int(version), int(counter)

    @property
    def lost(self) -> bool:
        """Whether this consumer is known not to hold the job any more."""
        return isinstance(self.core.error, JobLostError)

    async def done(self, *, confirm: bool = True) -> None:
        """The message is processed and must not come again. Returns when the store has confirmed it, after it has
        stored the follow-ups; raises JobLostError if this consumer does not hold the job any more.

        With `confirm=False`, it returns at once. If the job is lost, the message comes again, here or elsewhere.
        """
        self.ended_as = "done"
        await self._keeper.job_done(self, confirm)

    async def fail(
        self, reason: str = "", *, retry_in: float | None = None, dead: bool = False, confirm: bool = True
    ) -> None:
        """The message was not processed. Its key waits for `retry_in` seconds (by default 1, 2, 4 ... 60), then the
        message comes again; after the last attempt, or with `dead`, it becomes a dead letter with the reason. Raises
        JobLostError as `done` does, and DeadLettersFullError if there is no room for a dead letter.
        """
        self.ended_as = "dead" if dead else "failed"
        await self._keeper.job_failed(self, reason, retry_in, dead, confirm)

    async def extend(self) -> None:
        """Return when the store has confirmed that this consumer still holds the job, for another lease; raises
        JobLostError if it does not. A consumer renews its leases by itself while its event loop runs."""
        await self._keeper.job_extended(self)

    def put(
        self,
        payload: bytes | str,
        *,
        queue: str | None = None,
        key: str | bytes | None = None,
        delay: float = 0.0,
        attributes: GivenAttributes | None = None,
    ) -> None:
        """Stage a follow-up, for this queue or another one. `done()` stores it before the job ends. It is stored once,
        even if the job runs again within `dedupe_s`: its id is derived from this message."""
        id = b"%b/%d" % (self._stored.number, len(self.follow_ups))
        if queue is not None:
            check_queue_name(queue)
        key = id if key is None else check_key(key)
        self.follow_ups.append(FollowUp(queue, check_payload(payload), key, id, check_delay(delay), attributes))
