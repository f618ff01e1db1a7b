"""The coordinator on Redis against the model's store: the same operations, with connections cut between their steps.

A client works through a proxy that cuts its connections at chosen commands. Another client, whose connections are never
cut, may write at the same moment. After each operation the state in Redis is read. The contract in
`shoal.coordination.interface` must allow the result and the state together, given the model's state before: the test
replays every allowed history on copies of the model's store, and one of them must match.

- Without a disturbance, an operation whose connection was cut takes effect once and returns its normal result.
  `CoordinatorUnavailableError` leaves open whether it took effect.
- With a disturbance, the operation takes effect before or after it. If its reply was lost, it may also take effect
  before the disturbance and be retried after it: then a conditional write changes nothing and reports a conflict.
- Versions and tokens in Redis are other numbers than in the model. They grow, and each identifies one value or one
  grant.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from tests.coordination.contract_support import Follower
from tests.coordination.cut_proxy import Cut, CutProxy, Kind
from tests.support.connections import connect_coordinator
from tests.support.redis_server import RedisServer

from shoal.coordination.interface import Coordinator, KeyWrite, Lease, LeaseInfo, Membership, Versioned
from shoal.errors import ConflictError, CoordinatorUnavailableError, LeaseLostError
from shoal.lab.sim.models.coordinator import Store

PATIENT_S = 20.0
"""Timeout of a client that must survive all cuts."""

HASTY_S = 0.25
"""Timeout of a client that must fail in an outage."""

TTLS_S = (2000.0, 3000.0, 4000.0)
SLACK_S = 500.0
"""How much of a lease's time may have passed when it is read."""

CUTS = (Kind.BEFORE, Kind.AFTER, Kind.MID_REPLY, Kind.LATE)
WRITTEN, CONFLICT, LOST, UNAVAILABLE = "written", "conflict", "lease lost", "unavailable"

SEEDS = 6
STEPS = 30
"""Operations per seed."""

FIRST_SEED = Random().randrange(10**6) if os.environ.get("SHOAL_EXAMPLES") == "random" else 0

Expect = bytes | int | None
"""The value whose version is expected, 0 for a key that does not exist, or None."""


@dataclass(frozen=True)
class Part:
    """The effect of an operation on one key, lease or membership of the model; `apply` returns the reply."""

    name: str
    apply: Callable[[Store], Any]
    value: bytes | None = None
    fence: Lease | None = None

    def meets(self, other: Part) -> bool:
        """Whether the order of the two matters. A listing has no name and conflicts with everything."""
        names = {self.name} if self.fence is None else {self.name, self.fence.name}
        return not self.name or other.name in names


@dataclass(frozen=True)
class Operation:
    """An operation on both sides; only a batch has several parts."""

    title: str
    real: Callable[[Coordinator], Awaitable[Any]]
    parts: tuple[Part, ...]
    batch: bool = False


@dataclass(frozen=True)
class State:
    """The visible state of a store: values, holders with their remaining times, member data."""

    values: dict[str, bytes]
    holders: dict[str, tuple[str, float]]
    members: dict[str, bytes]


async def outcome_of(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except ConflictError:
        return CONFLICT
    except LeaseLostError:
        return LOST
    except CoordinatorUnavailableError:
        return UNAVAILABLE


def applied(part: Part, store: Store) -> Any:
    try:
        return part.apply(store)
    except ConflictError:
        return CONFLICT
    except LeaseLostError:
        return LOST


class Scene:
    """Some keys, leases and members, in Redis and in the model, and the operations on them."""

    _numbers = itertools.count()

    def __init__(self, client: Coordinator, other: Coordinator, proxy: CutProxy, label: str) -> None:
        number = next(self._numbers)
        self.label = label
        self.area = f"area{number}"
        self.group = f"group{number}"
        self.client = client
        self.other = other
        self.proxy = proxy
        self.model = Store(lambda: 0.0)
        self.values: dict[str, list[bytes]] = {}
        """All values each key has had. No two writes have the same value."""
        self.grants: dict[str, list[Lease]] = {}
        """The grants of each lease, with the tokens of the model."""
        self.memberships: list[tuple[Membership, int]] = []
        """With the tokens of the model."""
        self.results: Counter[str] = Counter()
        self._versions: dict[bytes, tuple[int, int]] = {}
        self._tokens: dict[tuple[str, int], int] = {}
        self._newest: Counter[str] = Counter()
        self._new_values = itertools.count(1)

    # -- Operations --------------------------------------------------------------------------------------------------

    def key(self, number: int) -> str:
        return f"{self.area}/key {number}"

    def lease(self, number: int) -> str:
        return f"{self.area}/lease {number}"

    def value(self) -> bytes:
        return b"%d" % next(self._new_values)

    def put(self, key: str, expect: Expect = None, fence: Lease | None = None) -> Operation:
        value, fenced = self.value(), self._real(fence)
        ours, theirs = self._expectation(expect)

        def apply(store: Store) -> str:
            store.put(key, value, ours, fence)
            return WRITTEN

        return Operation(
            f"put {value!r} as {key} over {expect!r}, fenced by {fence}",
            lambda client: client.put(key, value, theirs, fence=fenced),
            (Part(key, apply, value, fence),),
        )

    def delete(self, key: str, expect: Expect = None, fence: Lease | None = None) -> Operation:
        ours, theirs = self._expectation(expect)
        fenced = self._real(fence)
        return Operation(
            f"delete {key} over {expect!r}, fenced by {fence}",
            lambda client: client.delete(key, theirs, fence=fenced),
            (Part(key, lambda store: store.delete(key, ours, fence), None, fence),),
        )

    def write_all(self, writes: list[tuple[str, bool, Expect]], fence: Lease | None = None) -> Operation:
        """Each write is a key, whether it is deleted, and the expected version."""
        real_writes, parts = [], []
        for key, gone, expect in writes:
            ours, theirs = self._expectation(expect)
            write = KeyWrite(key, None if gone else self.value(), theirs)
            real_writes.append(write)
            parts.append(_batch_part(replace(write, expect=ours), fence))
        fenced = self._real(fence)

        async def real(client: Coordinator) -> list[Any]:
            outcomes = await client.write_all(real_writes, fence=fenced)
            return [CONFLICT if isinstance(outcome, ConflictError) else outcome for outcome in outcomes]

        return Operation(f"write {real_writes}, fenced by {fence}", real, tuple(parts), batch=True)

    def acquire(self, name: str, holder: str, ttl_s: float, takeover: bool = False) -> Operation:
        return Operation(
            f"acquire {name} for {holder}{', taking over' if takeover else ''}",
            lambda client: client.acquire(name, holder, ttl_s, takeover),
            (Part(name, lambda store: store.acquire(name, holder, ttl_s, takeover)),),
        )

    def renew(self, lease: Lease, ttl_s: float) -> Operation:
        real = self._real(lease)
        assert real is not None
        return Operation(
            f"renew {lease}",
            lambda client: client.renew(replace(real, ttl_s=ttl_s)),
            (Part(lease.name, lambda store: store.renew(replace(lease, ttl_s=ttl_s))),),
        )

    def release(self, lease: Lease) -> Operation:
        real = self._real(lease)
        assert real is not None
        return Operation(
            f"release {lease}",
            lambda client: client.release(real),
            (Part(lease.name, lambda store: store.release(lease)),),
        )

    def join(self, member: str) -> Operation:
        group, data, ttl_s = self.group, self.value(), TTLS_S[0]
        return Operation(
            f"join as {member} with {data!r}",
            lambda client: client.join(group, member, data, ttl_s),
            (Part(f"{group}/{member}", lambda store: store.join(group, member, f"holder {data!r}", data, ttl_s)),),
        )

    def stay(self, membership: Membership, token: int) -> Operation:
        group, member, ttl_s = self.group, membership.member, membership.ttl_s
        return Operation(
            f"stay as {member} with token {token}",
            lambda _: membership.renew(),
            (Part(f"{group}/{member}", lambda store: store.stay(group, member, token, ttl_s)),),
        )

    def leave(self, membership: Membership, token: int) -> Operation:
        group, member = self.group, membership.member
        return Operation(
            f"leave as {member} with token {token}",
            lambda _: membership.leave(),
            (Part(f"{group}/{member}", lambda store: store.leave(group, member, token)),),
        )

    def read_all(self) -> Operation:
        async def real(client: Coordinator) -> dict[str, bytes]:
            return _values(await client.list(f"{self.area}/"))

        return Operation("list", real, (Part("", lambda store: _values(store.list(f"{self.area}/"))),))

    def read_two(self) -> Operation:
        keys = [self.key(0), self.key(1)]

        async def real(client: Coordinator) -> list[bytes | None]:
            return [now.value if now else None for now in await client.get_all(keys)]

        def model(store: Store) -> list[bytes | None]:
            return [now.value if now else None for now in store.get_all(keys)]

        return Operation("get all", real, (Part("", model),))

    def _expectation(self, expect: Expect) -> tuple[int | None, int | None]:
        return self._versions[expect] if isinstance(expect, bytes) else (expect, expect)

    def _real(self, lease: Lease | None) -> Lease | None:
        return None if lease is None else replace(lease, token=self._tokens[lease.name, lease.token])

    # -- Running and checking ----------------------------------------------------------------------------------------

    async def begin_with(self, *operations: Operation) -> None:
        """Run operations without cuts and without single checks."""
        for operation in operations:
            result = await operation.real(self.client)
            self._adopt(self.model, result, [applied(operation.parts[0], self.model)])
        state, keys, leases = await self._observe()
        assert state == self._state(self.model)
        self._check_numbers(operations[0], None, self.model, keys, leases, {})

    async def run(
        self,
        operation: Operation,
        cuts: tuple[Cut, ...] = (),
        disturbance: Operation | None = None,
        outage: bool = False,
    ) -> Any:
        """Run an operation under cuts, and check its result and the resulting state."""
        done: list[tuple[Operation, State]] = []
        issued: dict[str, int] = {}

        async def disturb() -> None:
            assert disturbance is not None
            result = await disturbance.real(self.other)
            done.append((disturbance, (await self._observe())[0]))
            if disturbance.parts[0].value is not None:
                issued[disturbance.parts[0].name] = result

        self.proxy.plan, self.proxy.outage = list(cuts), outage
        self.proxy.disturb = None if disturbance is None else disturb
        described = f"{self.label}: {operation.title}, {cuts}"
        result = await outcome_of(operation.real(self.client))
        await self.proxy.settle(given_up=result == UNAVAILABLE)
        state, keys, leases = await self._observe()
        histories = list(self._histories(operation, done, result))
        for store, results in histories:
            if self._state(store) == state:
                self._check_numbers(operation, result, store, keys, leases, issued)
                self._adopt(store, result, results)
                return result
        pytest.fail(
            "\n".join(
                [
                    f"{described}, returned {result!r}",
                    f"before: {self._state(self.model)}",
                    *(f"then others {disturbance.title}: {between}" for disturbance, between in done),
                    f"after:  {state}",
                    *(f"could be {self._state(store)}" for store, _ in histories),
                ]
            )
        )

    def _histories(
        self, operation: Operation, done: list[tuple[Operation, State]], result: Any
    ) -> Iterator[tuple[Store, list[Any]]]:
        """Return the stores that the contract allows after an operation with this result, and the reply of each part.

        `done` has the operations of other clients, and the state after them.
        """
        unknown = result == UNAVAILABLE or (operation.batch and result == LOST)
        choices = []
        for part in operation.parts:
            moments = [(True, False)]
            if done:
                moments += [(False, True), (True, True)] if part.meets(done[0][0].parts[0]) else [(False, True)]
            if unknown:
                moments.append((False, False))
            choices.append(moments)
        for chosen in itertools.product(*choices):
            store = copy.deepcopy(self.model)
            results: list[Any] = [None] * len(operation.parts)
            for index, part in enumerate(operation.parts):
                if chosen[index][0]:
                    results[index] = applied(part, store)
            if done:
                disturbance, between = done[0]
                applied(disturbance.parts[0], store)
                if self._state(store) != between:
                    continue
            for index, part in enumerate(operation.parts):
                if chosen[index][1]:
                    results[index] = applied(part, store)
            if result == UNAVAILABLE:
                possible = True
            elif operation.batch and result == LOST:
                possible = not _held(store, operation.parts[0].fence)
            else:
                given = result if operation.batch else [result]
                possible = all(_same(ours, theirs) for ours, theirs in zip(results, given, strict=True))
            if possible:
                yield store, results

    async def _observe(self) -> tuple[State, dict[str, Versioned], dict[str, LeaseInfo]]:
        """Return the state of Redis."""
        keys, leases, members = await asyncio.gather(
            self.other.list(f"{self.area}/"), self.other.leases(f"{self.area}/"), self.other.members(self.group)
        )
        return State(_values(keys), _holders(leases), members), keys, leases

    def _state(self, store: Store) -> State:
        prefix = f"{self.area}/"
        return State(_values(store.list(prefix)), _holders(store.leases(prefix)), store.members(self.group))

    def _check_numbers(
        self,
        operation: Operation,
        result: Any,
        store: Store,
        keys: dict[str, Versioned],
        leases: dict[str, LeaseInfo],
        issued: dict[str, int],
    ) -> None:
        """Versions and tokens: returned values equal stored ones; new ones are greater, old ones unchanged."""
        for key, now in store.list(f"{self.area}/").items():
            real = keys[key].version
            known = self._versions.get(now.value)
            if known is not None:
                assert real == known[1], f"{key}: the version of {now.value!r} was {known[1]}, now it is {real}"
            else:
                newest = self._newest[key]
                if real != issued.get(key):
                    newest = max(newest, issued.get(key, 0))
                assert real > newest, f"{key}: version {real} after {newest}"
                self._versions[now.value] = now.version, real
        for key, version in issued.items():
            self._newest[key] = max(self._newest[key], version)
        for key, stored in keys.items():
            self._newest[key] = max(self._newest[key], stored.version)
        for name, info in store.leases(f"{self.area}/").items():
            real = leases[name].token
            known_token = self._tokens.setdefault((name, info.token), real)
            assert real == known_token, f"{name}: the token was {known_token}, now it is {real}"
            assert real >= self._newest[name], f"{name}: token {real} after {self._newest[name]}"
            self._newest[name] = real
        for part, one in zip(operation.parts, result if isinstance(result, list) else [result], strict=False):
            if isinstance(one, Lease):
                stored_lease = leases.get(part.name)
                if stored_lease is not None and stored_lease.holder == one.holder:
                    assert one.token == stored_lease.token
            elif part.value is not None and isinstance(one, int):
                stored_key = keys.get(part.name)
                if stored_key is not None and stored_key.value == part.value:
                    assert one == stored_key.version

    def _adopt(self, store: Store, result: Any, results: list[Any]) -> None:
        """Continue from the matching history."""
        self.results[result if isinstance(result, str) else "answered"] += 1
        self.model = store
        for key, now in store.list(f"{self.area}/").items():
            values = self.values.setdefault(key, [])
            if now.value not in values:
                values.append(now.value)
        for name, info in store.leases(f"{self.area}/").items():
            lease = Lease(name, info.holder, info.token, TTLS_S[0])
            grants = self.grants.setdefault(name, [])
            if lease not in grants:
                grants.append(lease)
        if isinstance(result, Membership):
            self.memberships.append((result, results[0]))


def _batch_part(write: KeyWrite, fence: Lease | None) -> Part:
    def apply(store: Store) -> str | int:
        (outcome,) = store.write_all([write], fence)
        if isinstance(outcome, ConflictError):
            raise outcome
        return 0 if write.value is None else WRITTEN

    return Part(write.key, apply, write.value, fence)


def _values(found: dict[str, Versioned]) -> dict[str, bytes]:
    return {key: now.value for key, now in found.items()}


def _holders(leases: dict[str, LeaseInfo]) -> dict[str, tuple[str, float]]:
    """Holders, and the time to live of their last acquisition or renewal."""
    holders = {}
    for name, info in leases.items():
        (ttl_s,) = [ttl_s for ttl_s in TTLS_S if ttl_s - SLACK_S < info.remaining_s <= ttl_s]
        holders[name] = info.holder, ttl_s
    return holders


def _held(store: Store, fence: Lease | None) -> bool:
    info = None if fence is None else store.lease_of(fence.name)
    return info is not None and fence is not None and info.token == fence.token


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two replies are equal except for version and token numbers."""
    if isinstance(theirs, Lease):
        return isinstance(ours, Lease) and ours.holder == theirs.holder
    if isinstance(theirs, Membership):
        return isinstance(ours, int)
    if isinstance(theirs, int) and not isinstance(theirs, bool) and theirs > 0:
        return bool(ours == WRITTEN)
    return bool(ours == theirs)


# -- The tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@asynccontextmanager
async def connected(port: int, timeout_s: float) -> AsyncIterator[Coordinator]:
    """A client. On a busy machine, one with a short timeout may need several attempts to connect."""
    while True:
        with suppress(CoordinatorUnavailableError):
            client = await connect_coordinator(f"127.0.0.1:{port}", timeout_s=timeout_s, poll_s=1.0)
            break
    async with client:
        yield client


@pytest.fixture
async def other(server: RedisServer) -> AsyncIterator[Coordinator]:
    async with connected(server.port, PATIENT_S) as coordinator:
        yield coordinator


Make = Callable[[Scene], Operation]


async def prepare(scene: Scene) -> None:
    """Create a key, a lease and a member."""
    await scene.begin_with(scene.put(scene.key(0)), scene.acquire(scene.lease(0), "me", TTLS_S[0]), scene.join("m"))


def newest(scene: Scene) -> bytes:
    return scene.values[scene.key(0)][-1]


def grant(scene: Scene) -> Lease:
    return scene.grants[scene.lease(0)][-1]


def batch(scene: Scene, fence: Lease | None = None) -> Operation:
    writes: list[tuple[str, bool, Expect]] = [
        (scene.key(0), False, newest(scene)),
        (scene.key(1), False, 0),
        (scene.key(2), True, None),
    ]
    return scene.write_all(writes, fence)


def taken_over(scene: Scene) -> Operation:
    return scene.acquire(scene.lease(0), "they", TTLS_S[1], takeover=True)


CASES: dict[str, tuple[Make, Make]] = {
    "put": (lambda s: s.put(s.key(0)), lambda s: s.put(s.key(0))),
    "put anew": (lambda s: s.put(s.key(1), 0), lambda s: s.put(s.key(1))),
    "put over a version": (lambda s: s.put(s.key(0), newest(s)), lambda s: s.put(s.key(0))),
    "put over what is deleted": (lambda s: s.put(s.key(0), newest(s)), lambda s: s.delete(s.key(0))),
    "fenced put": (lambda s: s.put(s.key(0), newest(s), grant(s)), taken_over),
    "delete": (lambda s: s.delete(s.key(0)), lambda s: s.put(s.key(0))),
    "delete a version": (lambda s: s.delete(s.key(0), newest(s)), lambda s: s.put(s.key(0))),
    "fenced delete": (lambda s: s.delete(s.key(0), newest(s), grant(s)), taken_over),
    "batch": (batch, lambda s: s.put(s.key(1))),
    "fenced batch": (lambda s: batch(s, grant(s)), taken_over),
    "acquire": (lambda s: s.acquire(s.lease(1), "me", TTLS_S[0]), lambda s: s.acquire(s.lease(1), "they", TTLS_S[1])),
    "acquire again": (lambda s: s.acquire(s.lease(0), "me", TTLS_S[2]), taken_over),
    "take over": (lambda s: s.acquire(s.lease(0), "you", TTLS_S[2], takeover=True), taken_over),
    "renew": (lambda s: s.renew(grant(s), TTLS_S[2]), taken_over),
    "release": (lambda s: s.release(grant(s)), taken_over),
    "join": (lambda s: s.join("m"), lambda s: s.join("m")),
    "stay": (lambda s: s.stay(*s.memberships[0]), lambda s: s.join("m")),
    "leave": (lambda s: s.leave(*s.memberships[0]), lambda s: s.join("m")),
    "list": (lambda s: s.read_all(), lambda s: s.put(s.key(0))),
    "get all": (lambda s: s.read_two(), lambda s: s.put(s.key(1))),
}
"""Operations, and what other clients do at the moment of the cut."""


@pytest.mark.parametrize("case", CASES)
async def test_a_cut_at_each_command_of_each_operation(server: RedisServer, other: Coordinator, case: str) -> None:
    """Every command and every kind of cut, alone and with a concurrent write."""
    make, make_disturbance = CASES[case]

    async def cut_everywhere(kind: Kind, disturb: bool) -> int:
        async with CutProxy(server.port) as proxy, connected(proxy.port, PATIENT_S) as client:
            for at in itertools.count(1):
                scene = Scene(client, other, proxy, case)
                await prepare(scene)
                fired = proxy.fired.total()
                result = await scene.run(make(scene), (Cut(at, kind, disturb),), make_disturbance(scene))
                assert result != UNAVAILABLE
                if proxy.fired.total() == fired:
                    return at - 1
        raise AssertionError("there is always a last command")

    kinds = [(kind, False) for kind in CUTS]
    kinds += [(kind, True) for kind in (Kind.PAUSE, Kind.BEFORE, Kind.AFTER, Kind.LATE)]
    commands = await asyncio.gather(*(cut_everywhere(kind, disturb) for kind, disturb in kinds))
    assert min(commands) >= (1 if case == "get all" else 2)


def some_operation(scene: Scene, random: Random) -> Operation:
    """A random operation on a few names, with current or outdated versions and leases."""
    key = scene.key(random.randrange(3))
    name = scene.lease(random.randrange(2))
    grants = scene.grants.get(name, [])
    lease = random.choice([*grants, *grants[-1:] * 3]) if grants else None
    fence = lease if random.random() < 0.4 else None
    kind = random.randrange(10)
    if kind < 3:
        return scene.put(key, some_expectation(scene, key, random), fence)
    if kind == 3:
        return scene.delete(key, some_expectation(scene, key, random), fence)
    if kind == 4:
        keys = random.sample([scene.key(number) for number in range(3)], random.randrange(1, 4))
        writes = [(key, random.random() < 0.3, some_expectation(scene, key, random)) for key in keys]
        return scene.write_all(writes, fence)
    if kind == 5 or (kind < 8 and lease is None):
        return scene.acquire(name, random.choice(("me", "you")), random.choice(TTLS_S), random.random() < 0.4)
    if lease is not None and kind == 6:
        return scene.renew(lease, random.choice(TTLS_S))
    if lease is not None and kind == 7:
        return scene.release(lease)
    if kind == 8:
        return scene.read_all()
    if not scene.memberships or random.random() < 0.5:
        return scene.join(f"m{random.randrange(2)}")
    return random.choice((scene.stay, scene.leave))(*random.choice(scene.memberships[-4:]))


def some_expectation(scene: Scene, key: str, random: Random) -> Expect:
    now = scene.model.get(key)
    right: Expect = 0 if now is None else now.value
    any_of_before: list[Expect] = [0, *scene.values.get(key, [])]
    return random.choice([None, right, right, right, random.choice(any_of_before)])


def some_disturbance(scene: Scene, operation: Operation, random: Random) -> Operation:
    """A concurrent operation that conflicts with the given one."""
    part = random.choice(operation.parts)
    if part.fence is not None and random.random() < 0.5:
        return scene.acquire(part.fence.name, "they", random.choice(TTLS_S), takeover=True)
    if part.name.startswith(scene.group):
        return scene.join(part.name.removeprefix(f"{scene.group}/"))
    if part.name.startswith(scene.lease(0)[:-1]):
        return scene.acquire(part.name, "they", random.choice(TTLS_S), random.random() < 0.7)
    key = part.name or scene.key(random.randrange(3))
    return scene.put(key) if random.random() < 0.7 else scene.delete(key)


@pytest.mark.parametrize("timeout_s", [PATIENT_S, HASTY_S])
async def test_random_operations_with_random_cuts(server: RedisServer, other: Coordinator, timeout_s: float) -> None:
    """Up to three cuts in one operation; for the client with the short timeout, the last one may begin an outage."""

    async def play(seed: int) -> Counter[str]:
        random = Random(f"{seed}/{timeout_s}")
        async with (
            CutProxy(server.port) as proxy,
            CutProxy(server.port) as watch_proxy,
            connected(proxy.port, timeout_s) as client,
            connected(watch_proxy.port, PATIENT_S) as watcher,
        ):
            scene = Scene(client, other, proxy, f"seed {seed}")
            follower = Follower(watcher, f"{scene.area}/")
            for _ in range(STEPS):
                operation = some_operation(scene, random)
                disturbance = some_disturbance(scene, operation, random) if random.random() < 0.5 else None
                cuts = tuple(
                    Cut(random.randrange(1, 13), random.choice((*CUTS, Kind.PAUSE)), random.random() < 0.6)
                    for _ in range(random.randrange(4))
                )
                outage = timeout_s == HASTY_S and random.random() < 0.3
                await scene.run(operation, cuts, disturbance, outage)
                if random.random() < 0.2:
                    watch_proxy.cut_all()
            await follower.until(_values(await other.list(f"{scene.area}/")))
            for key in scene.values:
                versions = [change.now.version for change in follower.changes if change.key == key and change.now]
                assert versions == sorted(set(versions))
            await follower.stop()
            return scene.results + Counter({f"cut {kind.value}": count for kind, count in proxy.fired.items()})

    seen = sum(await asyncio.gather(*map(play, range(FIRST_SEED, FIRST_SEED + SEEDS))), Counter[str]())
    if timeout_s == HASTY_S:
        assert seen[UNAVAILABLE]
    else:
        assert {"answered", CONFLICT, LOST, *(f"cut {kind.value}" for kind in Kind)} <= set(seen)
