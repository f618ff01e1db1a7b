"""A soak of the redis surface: redis-py's client and ours make the same calls while their server fails.

Owns the calls, the faults and the comparison. Both clients use the same server of a cluster of one: redis-py directly
and without retries, ours through the cluster. The server is frozen, then the whole cluster dies, then it returns. At
the end each client drops subscribers without closing them.

A call differs if it ends for one client only, or in another way. A subscription leaks if the server still has it after
the client was closed.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable
from typing import Any, Final

import msgspec
from redis import asyncio as redis_py
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from shoal import redis as ours
from shoal.cluster.acl import CLIENT
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import agent_name
from shoal.coordination.link import parse_address
from shoal.lab.soak.outcome import BaseOutcome
from shoal.lab.soak.rounds import RoundProgress, Tell
from shoal.limits import Limits

SOCKET_S: Final = 1.0
"""Both timeouts of both clients."""
WATCH_S: Final = 2.0
"""How long calls that wait in a frozen cluster are watched: less than a lease, after which ours are told."""
CALL_S_MAX: Final = 10.0
"""How long any other call may take: its deadlines, and what a busy machine needs."""
RETURN_S_MAX: Final = 60.0
"""How long the clients may take to work again."""
FORGOTTEN: Final = 20
"""Subscribers that each client drops."""
SERVER: Final = "s1"
PROCESSES: Final = (COORDINATOR, agent_name(SERVER), SERVER)


class Ending(enum.StrEnum):
    """How a call ended."""

    VALUE = "value"
    NOTHING = "nothing"
    GONE = "gone"
    """TimeoutError or ConnectionError of redis-py."""
    WAITS = "waits"
    """It had not ended after the time for which it was watched."""


class Call(msgspec.Struct, frozen=True):
    """One call, by both clients."""

    phase: str
    name: str
    endings: dict[str, Ending]
    seconds: dict[str, float]

    @property
    def differs(self) -> bool:
        """Whether the clients ended differently."""
        return len(set(self.endings.values())) > 1

    def __str__(self) -> str:
        ends = ", ".join(f"{side}: {ending} after {self.seconds[side]:.1f} s" for side, ending in self.endings.items())
        return f"{self.phase} {self.name}: {ends}"


class Side:
    """One of the two clients. They have the same interface, and no common type."""

    def __init__(self, name: str, client: Any, spare: Any) -> None:
        self.name = name
        self.channel = f"soak.{name}"
        self.client = client
        self.spare = spare
        """A second client, to be closed."""
        self._heard = client.pubsub(ignore_subscribe_messages=True)
        self._polled = client.pubsub(ignore_subscribe_messages=True)

    async def open(self) -> None:
        """Subscribes."""
        await self._heard.subscribe(self.channel)
        await self._polled.subscribe(self.channel)

    async def publish(self) -> Any:
        """Publishes a message."""
        return await self.client.publish(self.channel, "x")

    async def listen(self) -> Any:
        """Waits for a message."""
        return await anext(aiter(self._heard.listen()))

    async def poll(self) -> Any:
        """Reads with a timeout until there is a message or an error."""
        while (message := await self.get_message()) is None:
            pass
        return message

    async def get_message(self) -> Any:
        """Reads once, with a timeout."""
        return await self._polled.get_message(timeout=SOCKET_S / 4)

    async def subscribe(self) -> Any:
        """Opens another subscriber."""
        return await self.client.pubsub().subscribe(self.channel)

    async def close(self) -> Any:
        """Closes the spare client."""
        return await self.spare.aclose()

    async def recover(self) -> None:
        """Returns when both clients can publish and messages arrive at both subscribers; all were read then."""
        for pubsub in (self._heard, self._polled):
            while not await self._delivers(pubsub):
                pass
        for pubsub in (self._heard, self._polled):
            while await pubsub.get_message(timeout=SOCKET_S) is not None:
                pass

    async def _delivers(self, pubsub: Any) -> bool:
        try:
            await self.publish()
            await self.spare.publish(self.channel, "x")
            return await pubsub.get_message(timeout=SOCKET_S) is not None
        except (exceptions.ConnectionError, exceptions.TimeoutError):
            await asyncio.sleep(SOCKET_S / 4)
            return False

    async def forget_subscribers(self) -> None:
        """Drops subscribers without closing them, then closes the client."""
        for _ in range(FORGOTTEN):
            await self.client.pubsub().subscribe(self.forgotten)
        await self.client.aclose()

    @property
    def forgotten(self) -> str:
        """The channel of dropped subscribers."""
        return f"forgotten.{self.name}"


class RedisOutcome(BaseOutcome):
    """What the two clients did."""

    def __init__(self) -> None:
        super().__init__("redis", [])
        self.calls: list[Call] = []
        self.leaked: dict[str, int] = {}

    @property
    def moves(self) -> int:
        """No channel is moved."""
        return 0

    @property
    def differences(self) -> list[Call]:
        """Calls that ended differently."""
        return [call for call in self.calls if call.differs]

    @property
    def holds(self) -> bool:
        """Whether our client behaved as redis-py's, and left nothing behind."""
        return super().holds and not self.differences and not self.leaked["shoal"]

    def more_facts(self) -> dict[str, Any]:
        """The calls, and the differences."""
        return {
            "deadline_differences": len(self.differences),
            "differences": [str(call) for call in self.differences],
            "leaked": self.leaked["shoal"],
            "leaked_redis_py": self.leaked["redis-py"],
            "calls": [msgspec.structs.asdict(call) for call in self.calls],
        }


class RedisRound:
    """Two clients on one cluster."""

    def __init__(self, cluster: LocalCluster, outcome: RedisOutcome, tell: Tell) -> None:
        self._cluster = cluster
        self._outcome = outcome
        self._tell = tell
        self._phase = ""
        timeouts: dict[str, Any] = {"socket_timeout": SOCKET_S, "socket_connect_timeout": SOCKET_S}
        self.probe = ours.Redis.from_url(cluster.url)
        """Counts subscriptions."""
        login = parse_address(cluster.url_for(CLIENT), None, None)
        (server,) = cluster.servers
        plain = {
            "host": server.host,
            "port": server.port,
            "username": login.username,
            "password": login.password,
            "retry": Retry(NoBackoff(), 0),
            **timeouts,
        }
        self._sides = [
            Side("redis-py", redis_py.Redis(**plain), redis_py.Redis(**plain)),
            Side("shoal", *(ours.Redis.from_url(cluster.url, **timeouts) for _ in range(2))),
        ]

    async def execute(self) -> None:
        """All phases."""
        self._begin("healthy")
        await asyncio.gather(*(side.open() for side in self._sides))
        await self._compare("publish")
        await self._recover()
        self._begin("frozen")
        self._cluster.pause(SERVER)
        waits = (self._compare(name, WATCH_S) for name in ("listen", "poll"))
        ends = (self._compare(name) for name in ("publish", "subscribe", "close"))
        await asyncio.gather(*waits, *ends)
        self._cluster.resume(SERVER)
        self._begin("thawed")
        await self._recover()
        self._begin("dead")
        await self._kill()
        names = ("publish", "listen", "poll", "subscribe", "close")
        await asyncio.gather(*(self._compare(name) for name in names))
        await self._compare("get_message")
        for name in reversed(PROCESSES):
            self._cluster.release(name)
        self._begin("returned")
        await self._recover()
        await self._compare("publish")
        self._begin("forgotten")
        await asyncio.gather(*(side.forget_subscribers() for side in self._sides))
        await self._count_leaks()
        await self.probe.aclose()

    def _begin(self, phase: str) -> None:
        self._phase = phase
        self._tell(RoundProgress(phase, faults=self._outcome.faults))

    async def _recover(self) -> None:
        async with asyncio.timeout(RETURN_S_MAX):
            await asyncio.gather(*(side.recover() for side in self._sides))

    async def _kill(self) -> None:
        for name in PROCESSES:
            self._cluster.hold(name)
            await self._cluster.kill(name)

    async def _compare(self, name: str, watch_s: float = CALL_S_MAX) -> None:
        """Both clients make a call at the same time."""
        watched = await asyncio.gather(*(_watch(getattr(side, name)(), watch_s) for side in self._sides))
        endings = {side.name: ending for side, (ending, _) in zip(self._sides, watched, strict=True)}
        seconds = {side.name: took for side, (_, took) in zip(self._sides, watched, strict=True)}
        self._outcome.calls.append(Call(self._phase, name, endings, seconds))

    async def _count_leaks(self) -> None:
        names = [side.forgotten for side in self._sides]
        give_up = time.monotonic() + CALL_S_MAX
        counts = [count for _, count in await self.probe.pubsub_numsub(*names)]
        while any(counts) and time.monotonic() < give_up:
            counts = [count for _, count in await self.probe.pubsub_numsub(*names)]
        self._outcome.leaked = {side.name: count for side, count in zip(self._sides, counts, strict=True)}


async def _watch(call: Awaitable[Any], seconds: float) -> tuple[Ending, float]:
    """How a call ends, and after how many seconds."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            ending = Ending.NOTHING if await call is None else Ending.VALUE
    except (exceptions.ConnectionError, exceptions.TimeoutError):
        ending = Ending.GONE
    except TimeoutError:
        ending = Ending.WAITS
    return ending, round(time.monotonic() - began, 2)


async def run_redis(limits: Limits, tell: Tell) -> RedisOutcome:
    """Runs the soak."""
    outcome = RedisOutcome()
    began = time.monotonic()
    async with LocalCluster(1, limits=limits, timing=Timing(restart_pause_s_max=SOCKET_S)) as cluster:
        await RedisRound(cluster, outcome, tell).execute()
    outcome.rounds, outcome.faults = 1, 2
    outcome.seconds = time.monotonic() - began
    return outcome
