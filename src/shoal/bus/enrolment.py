"""Enrols a new bus: the shell around `shoal.channels.client.enrolment`.

Owns the connections of the attempts, their order and the time limit. It asks one server after the other, with more
patience in each round, because an agent may be starting, busy or away.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from shoal.bus.plan_source import PlanSource
from shoal.bus.waiters import agent_refusal
from shoal.channels.client.context import AgentRefused
from shoal.channels.client.enrolment import Enrolment
from shoal.channels.timers import patience
from shoal.errors import EnrolmentError, ShoalError, VersionError
from shoal.limits import Limits
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
_SILENT: Final = "no answer"


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


async def enrol(source: PlanSource, book: PlanBook, limits: Limits, runtime: Runtime) -> ClientKey:
    """The id and the key of a new client. Raises EnrolmentError if no agent has given one within `enrol_timeout_s`, and
    VersionError if an agent uses other versions. The book gets newer rings."""
    reasons: dict[str, str] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limits.enrol_timeout_s):
            rounds = 0
            while True:
                key = await _round(source, book, limits, runtime, rounds, reasons)
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


async def _round(
    source: PlanSource, book: PlanBook, limits: Limits, runtime: Runtime, rounds: int, reasons: dict[str, str]
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
                return await _ask(source, ring, address, limits, runtime)
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


async def _ask(source: PlanSource, ring: Ring, address: ServerAddress, limits: Limits, runtime: Runtime) -> ClientKey:
    core = Enrolment(ring, address.id, runtime.random.randbytes(KEY_BYTES), runtime.random.getrandbits(NONCE_BITS))
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
