"""Requests of clients to create queues, which an agent passes on to a leader.

Owns which requests are passed on, and the answers. Clients cannot write to the coordinator, so the agent does. It
checks name and settings first. `write_queue_requests` is the shell: it writes one request at a time.

    RequestQueue -> known queue: accepted                      -> QueueRequested
                 -> invalid, or too many queues: refused       ->
                 -> new: waits, is written, accepted or busy   ->

Each new name costs its client `REQUEST_UNITS` of its quota, and a token of all clients together. Clients that ask for a
queue that exists, or that was asked for already, cost neither.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from shoal.channels.token_bucket import TokenBucket
from shoal.coordination.interface import Coordinator
from shoal.errors import ConfigError, ConflictError, CoordinatorError, QueueNameError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.keys import move_key
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_request import CreateQueue, check_name, encode_queue_request
from shoal.plan.queue_settings import QueueSettings
from shoal.wire import control

REQUEST_UNITS: Final = 500
"""What a request for a new queue costs its client: with the default quota 100 at once and 10 a second."""
PENDING_S: Final = 600.0
"""How long a request counts as a queue while the plan does not list it: without a leader or a store, requests wait in
the coordinator, and clients must not fill it."""
ASKERS_MAX: Final = 4096
"""Clients that wait for an answer. Further ones are told to ask again."""

_log: Final = get_log(__name__)
_decoder: Final = msgspec.msgpack.Decoder(QueueSettings)


class QueueHost(Protocol):
    """What the requests need from their agent."""

    def tell_client(self, client: int, message: control.FromAgent, number: int = 0) -> None:
        """Sends a control message to a client."""

    def charge_client(self, client: int, units: int) -> None:
        """Charges a client for work."""


class QueueRequests:
    """The requests at one agent. `name_request` makes the id of a request."""

    def __init__(self, host: QueueHost, limits: Limits, name_request: Callable[[], str]) -> None:
        self._host = host
        self._queues_max = limits.queues_max
        self._name_request = name_request
        self._tokens = TokenBucket(limits.queue_requests_at_once_max, limits.queue_requests_per_s_max, 0.0)
        self._known: set[bytes] = set()
        self._askers: dict[bytes, list[tuple[int, int]]] = {}
        """Clients that wait, with their nonces, by the name that they asked for."""
        self._asker_count = 0
        self._pending: dict[bytes, float] = {}
        """Names that were asked for and that the plan does not list yet, with the time until which they count."""
        self._unwritten: deque[CreateQueue] = deque()
        self.refused = 0

    def __bool__(self) -> bool:
        """Whether `take` returns a request."""
        return bool(self._unwritten)

    def listed(self, name: bytes, exists: bool) -> None:
        """The plan has an entry of this queue, or no longer."""
        if exists:
            self._known.add(name)
            self._pending.pop(name, None)
        else:
            self._known.discard(name)

    def asked(self, client: int, request: control.RequestQueue, now: float) -> None:
        """A client asks for a queue."""
        if request.name in self._known:
            self._answer(client, request.nonce, request.name, control.QUEUE_ACCEPTED)
            return
        waiting = self._askers.get(request.name)
        if waiting is None:
            self._host.charge_client(client, REQUEST_UNITS)
            try:
                check_name(request.name)
                settings = read_settings(request.settings)
            except (QueueNameError, ConfigError) as error:
                self._refuse(client, request, control.QUEUE_INVALID, str(error))
                return
            while self._pending and now >= next(iter(self._pending.values())):
                del self._pending[next(iter(self._pending))]
            pending = len(self._pending.keys() - {request.name})
            if len(self._known) + pending >= self._queues_max:
                text = (
                    f"the cluster has {len(self._known)} queues and {pending} that are not created yet, "
                    f"and queues_max is {self._queues_max}"
                )
                self._refuse(client, request, control.QUEUE_TOO_MANY, text)
                return
        if self._asker_count >= ASKERS_MAX or (waiting is None and not self._tokens.take(1, now)):
            self._refuse(client, request, control.QUEUE_BUSY, "the agent is asked for many queues")
            return
        if waiting is None:
            waiting = self._askers[request.name] = []
            self._pending.pop(request.name, None)
            self._pending[request.name] = now + PENDING_S
            self._unwritten.append(CreateQueue(request.name, settings, self._name_request()))
        waiting.append((client, request.nonce))
        self._asker_count += 1

    def take(self) -> CreateQueue | None:
        """The next request to write."""
        return self._unwritten.popleft() if self._unwritten else None

    def written(self, name: bytes, error: str | None) -> None:
        """A request is in the coordinator, or could not be written."""
        waiting = self._askers.pop(name, [])
        self._asker_count -= len(waiting)
        if error is not None:
            self._pending.pop(name, None)
        for client, nonce in waiting:
            code = control.QUEUE_ACCEPTED if error is None else control.QUEUE_BUSY
            self._answer(client, nonce, name, code, error or "")

    def _refuse(self, client: int, request: control.RequestQueue, code: str, text: str) -> None:
        self.refused += 1
        self._answer(client, request.nonce, request.name, code, text)

    def _answer(self, client: int, nonce: int, name: bytes, code: str, text: str = "") -> None:
        self._host.tell_client(client, control.QueueRequested(name, code, text[:1024]), nonce)


def read_settings(data: bytes) -> QueueSettings:
    """The settings in a request; ConfigError if they are invalid."""
    try:
        settings = _decoder.decode(data) if data else QueueSettings()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the settings of a queue cannot be read: {error}") from error
    settings.validate()
    return settings


async def write_queue_requests(
    coordinator: Coordinator,
    take: Callable[[], CreateQueue | None],
    written: Callable[[bytes, str | None], None],
    asked: asyncio.Event,
) -> None:
    """Writes requests until it is cancelled. `asked`: `take` may return one. A queue that another request is about
    already is left to that one."""
    while True:
        request = take()
        if request is None:
            asked.clear()
            await asked.wait()
            continue
        error: str | None = None
        try:
            await coordinator.put(move_key(request.unit, QUEUE), encode_queue_request(request), expect=0)
        except ConflictError:
            pass
        except CoordinatorError as failure:
            error = f"the coordinator did not take the request ({failure.what})"
            _log.warning("queue not requested", queue=request.unit.decode(), why=str(failure))
        written(request.unit, error)
