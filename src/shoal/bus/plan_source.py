"""The plan from a client's view: the cluster's public key once, the newest ring on request.

Owns which places are asked, in which order, and what is trusted. A place is the coordinator or a server of the cluster,
whose agent keeps a copy of the plan there. The first place is asked first; the next one when it has failed or has not
answered for `HEAD_START_S`. If no place answers, the plan in the client's file is used.

The public key that the address pins is trusted and no other. Without it, the key that the first answering place names
is trusted, because the application named the place and its login; without an answer, the key in the file is.

It connects for each request and disconnects again: messages flow without the coordinator, so a client keeps no
connection to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

import hiredis

from shoal.bus.addresses import split_address
from shoal.bus.plan_cache import PlanCache
from shoal.coordination.interface import Coordinator, Versioned
from shoal.coordination.link import Address, parse_address
from shoal.errors import (
    AuthenticationError,
    ClusterNotFoundError,
    ConfigError,
    ConnectError,
    CoordinatorError,
    CoordinatorUnavailableError,
    ForgedEntryError,
    ShoalError,
)
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.format import read_ring_and_key
from shoal.plan.keys import PUBLIC_KEY, entries_prefix, entry_key
from shoal.plan.kinds import QUEUE
from shoal.plan.plan_copy import PLAN_COPY_KEY, PlanCopy, decode_copy
from shoal.plan.recording_marks import recorded_patterns
from shoal.runtime import Runtime
from shoal.wire.backoff import Backoff
from shoal.wire.connection import Connection

FETCH_PAUSE_S: Final = 0.25
"""Minimum time between two requests of one bus."""

HEAD_START_S: Final = 0.5
"""How long a place may take to answer before the next one is asked too."""

CLIENT_NAME: Final = "shoal-plan"

T = TypeVar("T")
_log: Final = get_log(__name__)


class PlanSource:
    """The places of one cluster, and the login there; all servers accept the same user and password."""

    def __init__(
        self,
        find_url: Callable[[], str],
        timeout_s: float,
        runtime: Runtime,
        make_cache: Callable[[str], PlanCache] | None = None,
    ) -> None:
        """`find_url` returns the cluster's address; it is called again when a login is refused."""
        self._find_url = find_url
        self._places = self._find_places()
        self._timeout_s = timeout_s
        self._runtime = runtime
        names = ",".join(sorted(str(address) for _, address in self._places))
        self.cache = make_cache(f"{self.address.username}@{names}") if make_cache else None

    def _find_places(self) -> list[tuple[str, Address]]:
        url = self._find_url()
        if "://" in url and not url.startswith(("shoal://", "shoals://")):
            scheme = url.split("://", 1)[0]
            raise ConfigError(f"{scheme}:// is not a cluster address", do="write shoal://user:password@host:port")
        found = split_address(url)
        self._pinned = found.key
        return [(place, parse_address(place, None, None)) for place in found.urls]

    @property
    def address(self) -> Address:
        """The first place, with the login that is used everywhere."""
        return self._places[0][1]

    @property
    def login(self) -> tuple[str | None, str | None]:
        """User and password for coordinator and servers."""
        return self.address.username, self.address.password

    def refresh_login(self) -> None:
        """Read the address again: a state directory or a password's file may have a new password."""
        try:
            self._places = self._find_places()
        except ShoalError as error:
            _log.info("login not read again", why=str(error))

    async def key_and_ring(self) -> tuple[bytes, bytes]:
        """Return the public key and the signed ring. Raises ClusterNotFoundError if there is none, and VersionError if
        their format is not this version's.
        """
        try:
            copy = await self._ask_places(self._plan_at)
        except CoordinatorError as error:
            cached = self.cache.read() if self.cache else None
            if cached is None:
                raise
            copy = cached
            _log.warning("cluster opened with the cached plan", why=str(error))
        if self._pinned is not None and copy.key != self._pinned:
            raise ForgedEntryError(
                "the cluster has another key than the one in its address",
                do="check that it is the right cluster; if its key was changed, change it in the address too",
            )
        self.keep(copy.key, copy.ring)
        return copy.key, copy.ring

    def keep(self, key: bytes, ring: bytes) -> None:
        """Keep a plan for the time when no place answers."""
        if self.cache is not None:
            self.cache.write(key, ring)

    async def ring(self) -> bytes | None:
        """Return the newest signed ring that a place has."""
        return (await self._ask_places(self._plan_at)).ring

    async def recorded(self) -> list[bytes]:
        """Return the patterns of recorded channels. Only the coordinator knows them."""

        async def ask(url: str, address: Address) -> list[bytes]:
            async with await self._connect(url) as coordinator:
                return await recorded_patterns(coordinator)

        return await self._ask_places(ask)

    async def queue_entry(self, name: bytes) -> bytes | None:
        """Return the signed entry of a queue; None if there is none. Only the coordinator knows it."""

        async def ask(url: str, address: Address) -> bytes | None:
            async with await self._connect(url) as coordinator:
                key, entry = await coordinator.get_all((PUBLIC_KEY, entry_key(name, QUEUE)))
            _require_plan(key, address)
            return entry.value if entry is not None else None

        return await self._ask_places(ask)

    async def queue_entries(self) -> list[bytes]:
        """Return the signed entries of all queues. Only the coordinator knows them."""

        async def ask(url: str, address: Address) -> list[bytes]:
            async with await self._connect(url) as coordinator:
                _require_plan(await coordinator.get(PUBLIC_KEY), address)
                return [stored.value for stored in (await coordinator.list(entries_prefix(QUEUE))).values()]

        return await self._ask_places(ask)

    async def _ask_places(self, ask: Callable[[str, Address], Awaitable[T]]) -> T:
        """Return the first answer. If all places fail, raises the error of the first one; a refused login at once."""
        if len(self._places) == 1:
            return await ask(*self._places[0])
        asked: dict[asyncio.Future[T], int] = {}
        errors: dict[int, ShoalError] = {}
        try:
            for number, place in enumerate(self._places):
                asked[asyncio.ensure_future(ask(*place))] = number
                last = number == len(self._places) - 1
                waiting = set(asked)
                while waiting:
                    done, waiting = await asyncio.wait(
                        waiting, timeout=None if last else HEAD_START_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    for answer in done:
                        try:
                            return answer.result()
                        except AuthenticationError:
                            raise
                        except ShoalError as error:
                            errors[asked.pop(answer)] = error
                    if not last:
                        break
        finally:
            for answer in asked:
                answer.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        unavailable = [errors[number] for number in sorted(errors)]
        if all(isinstance(error, CoordinatorUnavailableError) for error in unavailable):
            raise CoordinatorUnavailableError(
                f"none of the {len(self._places)} places of the cluster answers ({unavailable[0]})"
            )
        raise next(error for error in unavailable if not isinstance(error, CoordinatorUnavailableError))

    async def _plan_at(self, url: str, address: Address) -> PlanCopy:
        """The plan at a place: the coordinator's keys or, on a server, the copy of its agent."""
        try:
            async with await self._connect(url) as coordinator:
                ring, key = await read_ring_and_key(coordinator)
        except CoordinatorUnavailableError:
            raise
        except CoordinatorError:  # a server does not let clients read the coordinator's keys
            copy = await self._copy_at(address)
            if copy is None:
                raise
            return copy
        if key is not None and ring is not None:
            return PlanCopy(1, key, ring)
        copy = await self._copy_at(address)
        if copy is not None:
            return copy
        missing = "public key" if key is None else "ring"
        raise ClusterNotFoundError(
            f"the coordinator at {address} has no {missing}: no cluster has started there yet",
            do="run `shoal status`, and start the cluster if it is not running",
        )

    async def _copy_at(self, address: Address) -> PlanCopy | None:
        """The copy of the plan on a server; None if there is none."""
        connection = Connection(
            address.host,
            address.port,
            username=address.username,
            password=address.password,
            name=CLIENT_NAME,
            dial=self._runtime.with_tls(address.tls).coordinator_dial,
            connect_timeout_s=self._timeout_s,
            answer_timeout_s=self._timeout_s,
        )
        try:
            async with connection:
                (data,) = await connection.ask((b"GET", PLAN_COPY_KEY))
        except hiredis.ReplyError:
            return None
        except AuthenticationError:
            raise
        except ConnectError as error:
            raise CoordinatorUnavailableError(f"cannot read the plan at {address} ({error})") from error
        return decode_copy(data) if isinstance(data, bytes) else None

    async def _connect(self, url: str) -> Coordinator:
        return await self._runtime.coordinator(url, self._timeout_s)


def _require_plan(key: Versioned | None, address: Address) -> None:
    """Raise an error if a place is not the coordinator: data that it lacks may still exist."""
    if key is None:
        raise CoordinatorUnavailableError(f"there is no coordinator at {address}")


class RingFetcher:
    """Fetches the ring in the background, one request at a time, and retries until one succeeds."""

    def __init__(self, source: PlanSource, taker: Callable[[bytes], None], limits: Limits, random: Random) -> None:
        self._source = source
        self._taker = taker
        self._limits = limits
        self._random = random
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Request the newest ring, because the known one may be outdated."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="fetch the ring")

    def cancel(self) -> asyncio.Task[None] | None:
        """Stop; return the task, to be awaited."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        backoff = Backoff(
            reconnect_delay_s_min=FETCH_PAUSE_S,
            reconnect_delay_s_max=max(FETCH_PAUSE_S, self._limits.reconnect_delay_s_max),
            random=self._random,
        )
        try:
            while self._wanted:
                try:
                    ring = await self._source.ring()
                except ShoalError as error:
                    if isinstance(error, AuthenticationError):
                        self._source.refresh_login()
                    _log.info("coordinator unavailable, using the last plan", error=str(error))
                    await asyncio.sleep(backoff.next_delay_s())
                    continue
                self._wanted = False
                if ring is not None:
                    self._taker(ring)
                await asyncio.sleep(FETCH_PAUSE_S)
        finally:
            self._task = None
