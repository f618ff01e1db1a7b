"""Enrols a bus: the shell around `shoal.channels.client.enrolment`.

Owns the connections of the attempts, their order and the time limit. It asks one server after the other, with more
patience in each round, because an agent may be starting, busy or away. A bus enrols when it opens, and again when the
agents have a newer secret.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from shoal.bus.plan_source import PlanSource
from shoal.bus.waiters import agent_refusal
from shoal.channels.client.context import AgentRefused
from shoal.channels.client.enrolment import Enrolment
from shoal.channels.client.router import Router
from shoal.channels.timers import patience
from shoal.errors import EnrolmentError, ShoalError, VersionError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.book import PlanBook
from shoal.plan.ring import Ring, ServerAddress
from shoal.runtime import Runtime
from shoal.wire import control
from shoal.wire.connection import Connection
from shoal.wire.identity import KEY_BYTES, ClientKey

NONCE_BITS: Final = 60
"""Number of random bits in the nonce of an attempt."""
FRAME_BYTES_MAX: Final = 1 << 21
"""The largest frame that a server may send to an attempt."""
RENEWAL_SPREAD_S: Final = 1.0
"""Within how long all clients ask for their newer key."""
_SILENT: Final = "no answer"
_log: Final = get_log(__name__)


class _Attempt:
    """Receives the frames of one attempt."""

    def __init__(self, core: Enrolment) -> None:
        self._core = core
        self.done: asyncio.Future[ClientKey | control.Refused] = asyncio.get_running_loop().create_future()

    def received(self, frames: list[Any]) -> None:
        """See `shoal.wire.connection.Receiver`."""
        answer = self._core.received(frames)
        if answer is not None and not self.done.done():
            self.done.set_result(answer)

    def lost(self, error: Exception | None) -> None:
        """See `shoal.wire.connection.Receiver`."""
        if not self.done.done():
            self.done.set_exception(EnrolmentError(f"connection lost ({error})"))
            self.done.exception()  # seen, even if nothing awaits it any more

    def can_send(self) -> None:
        """See `shoal.wire.connection.Receiver`."""


async def enrol(
    source: PlanSource, book: PlanBook, limits: Limits, runtime: Runtime, old: ClientKey | None = None
) -> ClientKey:
    """The id and the key of a new client, or the newer key of a client that has an `old` one. Raises EnrolmentError if
    no agent has given one within `enrol_timeout_s`, and VersionError if an agent uses other versions. The book gets
    newer rings."""
    reasons: dict[str, str] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limits.enrol_timeout_s):
            rounds = 0
            while old is None or _renews(book, old):
                key = await _round(source, book, limits, runtime, rounds, reasons, old)
                if key is not None:
                    return key
                rounds += 1
                with contextlib.suppress(ShoalError):
                    if (ring := await source.ring()) is not None:
                        book.accept_ring(ring)
    why = "; ".join(f"{server}: {reason}" for server, reason in sorted(reasons.items()))
    raise EnrolmentError(
        f"no agent gave this client an id within {limits.enrol_timeout_s:g} s" + (f" ({why})" if why else ""),
        do="check `shoal status`: every server needs a running agent",
    )


def _renews(book: PlanBook, old: ClientKey) -> bool:
    """Whether agents still take an older key."""
    return book.ring is not None and any(key.generation == old.generation for key in book.ring.agent_keys)


class KeyRenewal:
    """Gets a newer key for a router, in the background."""

    def __init__(self, router: Router, source: PlanSource, limits: Limits, runtime: Runtime) -> None:
        self._router = router
        self._source = source
        self._limits = limits
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None

    def want(self, done: Callable[[], None]) -> None:
        """Begin, unless it is under way; `done` is called when the router has a new key."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(done), name="renew the key")

    def cancel(self) -> asyncio.Task[None] | None:
        """Stop; return the task, to be awaited."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self, done: Callable[[], None]) -> None:
        router, clock = self._router, asyncio.get_running_loop().time
        try:
            while router.wants_key:
                await asyncio.sleep(self._runtime.random.uniform(0.0, RENEWAL_SPREAD_S))
                book = router.book.with_ring()
                try:
                    key = await enrol(self._source, book, self._limits, self._runtime, router.renewable)
                except ShoalError as error:
                    key = None
                    _log.warning("no newer key yet, trying again", why=str(error))
                router.ring(book.signed_ring, clock())
                if key is not None:
                    if key.client != router.client:
                        _log.warning("identity of this bus revoked, continuing under another", id=f"{key.client:012x}")
                    router.enrolled(key, clock())
                done()
        finally:
            self._task = None


async def _round(
    source: PlanSource,
    book: PlanBook,
    limits: Limits,
    runtime: Runtime,
    rounds: int,
    reasons: dict[str, str],
    old: ClientKey | None,
) -> ClientKey | None:
    """Asks every server of the ring once, in random order."""
    ring = book.ring
    assert ring is not None
    for address in runtime.random.sample(ring.servers, len(ring.servers)):
        began = asyncio.get_running_loop().time()
        wait_s = patience(limits.hello_retry_s, rounds)
        reasons[address.id] = _SILENT
        try:
            async with asyncio.timeout(wait_s):
                return await _ask(source, ring, address, limits, runtime, old)
        except VersionError:
            raise
        except TimeoutError as error:
            if isinstance(error, EnrolmentError):
                reasons[address.id] = str(error)
        except (ShoalError, OSError) as error:
            reasons[address.id] = str(error)
        if len(reasons) == len(ring.servers):  # a server that refuses at once is not asked in a loop
            await asyncio.sleep(max(0.0, limits.reconnect_delay_s_min - (asyncio.get_running_loop().time() - began)))
    return None


async def _ask(
    source: PlanSource, ring: Ring, address: ServerAddress, limits: Limits, runtime: Runtime, old: ClientKey | None
) -> ClientKey:
    private, nonce = runtime.random.randbytes(KEY_BYTES), runtime.random.getrandbits(NONCE_BITS)
    core = Enrolment(ring, address.id, private, nonce, old)
    attempt = _Attempt(core)
    endpoint = runtime.address_book.reach(address)
    connection = Connection(
        endpoint.host,
        endpoint.port,
        username=source.address.username,
        password=source.address.password,
        name="shoal-enrol",
        receiver=attempt,
        dial=endpoint.dial,
        connect_timeout_s=limits.connect_timeout_s,
        frame_bytes_max=FRAME_BYTES_MAX,
    )
    try:
        await connection.open()
        connection.send_now(core.commands())
        answer = await attempt.done
    finally:
        connection.abort()
    if isinstance(answer, ClientKey):
        return answer
    refused = AgentRefused(address.id, answer.code, answer.version_min, answer.version_max, answer.text)
    raise agent_refusal(refused) or EnrolmentError(answer.text)
