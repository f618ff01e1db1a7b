"""The keeper's shell: reads the coordinator, passes its state to the core, and writes the core's decisions.

Owns the keeper's lease, its clock and its calls to the coordinator, and what must be there before this process leads:
the agents' secret, and a plan of this version's format. Decides nothing: `shoal.leader.keeper` does, and for the
agents' secret `shoal.leader.secret_rotation`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import msgspec

from shoal.balance.window_source import WindowRoute
from shoal.coordination.interface import Coordinator, Lease, Versioned
from shoal.errors import ConflictError, CoordinatorError, PlanError, VersionError
from shoal.leader.conductor_shell import Leadership
from shoal.leader.host_group import read_address
from shoal.leader.keeper import Keeper, Snapshot
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.secret_rotation import SecretRotation
from shoal.limits import DEFAULT_LIMITS
from shoal.logs import get_log
from shoal.plan.format import FORMAT, stored_format
from shoal.plan.keys import (
    AGENT_SECRETS_PREFIX,
    FORMAT_KEY,
    KEEPER_LEASE,
    POOL_PREFIX,
    PUBLIC_KEY,
    RING_KEY,
    ROTATION_KEY,
    agent_secret_generation,
    agent_secret_key,
    pool_server,
    read_mark,
)
from shoal.plan.ring import AgentKey, Ring
from shoal.plan.secret_rotation import Rotation, decode, encode, generations
from shoal.plan.signature import Signer, Verifier
from shoal.plan.upgrade import upgrade_plan
from shoal.rules import ALL_RULES, Rules, rule
from shoal.wire.identity import KEY_BYTES, AgentSecret

FENCE: Final = rule("fence", "Writes of a leader count only while it holds its lease.")


SERVERS: Final = "servers"
"""The group of the servers' agents; the data of a member is its `ServerAddress` as MessagePack."""
LEASES: Final = "servers/"
STANDBY: Final = "another keeper holds the lease"

_FIRST_POLL_S: Final = 0.1
_log: Final = get_log(__name__)


class KeeperView(msgspec.Struct, frozen=True):
    """The keeper's view of the cluster."""

    contact: bool
    leader: bool
    leases: tuple[str, ...]
    ring: Ring | None
    trouble: str | None
    windows: WindowRoute | None = None
    """The source of the balancer's load windows; None if it is unknown."""
    rotation: Rotation | None = None
    """The last rotation of the agents' secret; None if there was none."""


class KeeperShell:
    """Runs a keeper against a coordinator. `holder` identifies this run of the process as lease holder."""

    def __init__(
        self,
        coordinator: Coordinator,
        signer: Signer,
        keeper: Keeper,
        timing: LeaderTiming,
        holder: str,
        random: Random,
        rules: Rules = ALL_RULES,
        rotation: SecretRotation | None = None,
        *,
        wall: Callable[[], float],
    ) -> None:
        self._coordinator = coordinator
        self._signer = signer
        self._keeper = keeper
        self._timing = timing
        self._holder = holder
        self._random = random
        self._rules = rules
        self._rotation = rotation or SecretRotation(DEFAULT_LIMITS)
        self._wall = wall
        self._wanted: Versioned | None = None
        """The record of `shoal.plan.secret_rotation`."""
        self._clock = asyncio.get_running_loop().time
        self._lease: Lease | None = None
        self._prepared = False
        self._secrets: dict[int, bytes] = {}
        self._format = 0
        self._view = KeeperView(False, False, (), None, None)

    @property
    def view(self) -> KeeperView:
        """The last view of the cluster."""
        return self._view

    @property
    def leading(self) -> Leadership | None:
        """The right of other tasks of this process to write the plan; None while another process leads."""
        if self._lease is None or not self._view.leader:
            return None
        return Leadership(self._lease, self._keeper.ring, self._fence)

    @property
    def _fence(self) -> Lease | None:
        return self._lease if FENCE in self._rules else None

    async def run(self) -> None:
        """Keeps the ring until it is cancelled; logs errors of the coordinator and retries. Raises VersionError if the
        plan is newer than this process."""
        while True:
            try:
                again = await self._look()
            except VersionError as error:
                self._lose(str(error))
                raise
            except (CoordinatorError, PlanError) as error:
                self._lose(str(error))
                again = False
            except Exception:
                _log.exception("keeper failed, retrying")
                self._lose("the keeper failed, see the supervisor's log")
                again = False
            await asyncio.sleep(0 if again else self._pause_s())

    async def release(self) -> None:
        """Releases the lease, so that a standby need not wait until it expires. Call it when `run` has ended."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.release(lease)

    async def _look(self) -> bool:
        """One round; returns whether to start the next one immediately."""
        if not await self._lead():
            self._lose(STANDBY)
            return False
        snapshot = await self._snapshot()
        await self._rotate_secret()
        put = self._keeper.observe(snapshot, self._clock())
        conflict = False
        if put is not None:
            try:
                await self._coordinator.put(RING_KEY, put.data, put.expect, fence=self._fence)
            except ConflictError:
                conflict = True
            else:
                self._keeper.written(put.ring)
                _log.info("ring written", version=put.ring.version, servers=",".join(put.ring.ids))
        self._view = KeeperView(
            True, True, tuple(sorted(snapshot.leases)), self._keeper.ring, None, None, self._rotated
        )
        return conflict

    async def _lead(self) -> bool:
        """Acquires or renews the lease. A new leader prepares the plan first."""
        if self._lease is None or not await self._coordinator.renew(self._lease):
            self._prepared = False
            stored = await self._coordinator.get(FORMAT_KEY)
            self._format = stored_format(stored.value if stored else None)  # a newer plan ends this process
            self._lease = await self._coordinator.acquire(KEEPER_LEASE, self._holder, self._timing.keeper_lease_s)
        if self._lease is not None and not self._prepared:
            await self._prepare(self._lease)
            self._prepared = True
        return self._lease is not None

    async def _prepare(self, lease: Lease) -> None:
        """Provides the agents' secret, upgrades an older plan, and publishes the public key of the plan."""
        agent_keys = await self._provide_secret(lease)
        self._keeper.use_keys(agent_keys)
        if self._format != FORMAT:
            await upgrade_plan(self._coordinator, self._signer, lease, self._keeper.lease_ms, agent_keys)
        stored = await self._coordinator.get(PUBLIC_KEY)
        if stored is None or stored.value != self._signer.public:
            expect = stored.version if stored else 0
            await self._coordinator.put(PUBLIC_KEY, self._signer.public, expect, fence=lease)

    async def _provide_secret(self, lease: Lease) -> tuple[AgentKey, ...]:
        """Reads the secret that all agents share, or draws one before the first ring. A coordinator that has lost its
        data gets the known one again. Returns the public keys."""
        secrets = await self._stored_secrets()
        stored = await self._coordinator.get(RING_KEY) if self._format == FORMAT and len(secrets) != 1 else None
        ring = Verifier(self._signer.public).ring(stored.value) if stored is not None else self._keeper.ring
        named = generations(ring) if ring is not None else []
        if not secrets:
            secrets = self._secrets or {1 + max(named, default=0): self._random.randbytes(KEY_BYTES)}
            for generation, value in secrets.items():
                await self._coordinator.put(agent_secret_key(generation), value, fence=lease)
        self._secrets = secrets
        return self._public_keys([known for known in named if known in secrets] or [max(secrets)])

    @property
    def _rotated(self) -> Rotation | None:
        return decode(self._wanted.value) if self._wanted is not None else None

    async def _stored_secrets(self) -> dict[int, bytes]:
        """The agents' secrets by generation."""
        stored = await self._coordinator.list(AGENT_SECRETS_PREFIX)
        found = {agent_secret_generation(key): versioned.value for key, versioned in stored.items()}
        return {generation: value for generation, value in found.items() if generation and len(value) == KEY_BYTES}

    def _public_keys(self, named: Iterable[int]) -> tuple[AgentKey, ...]:
        agents = [AgentSecret(generation, self._secrets[generation]) for generation in sorted(named)]
        return tuple(AgentKey(agent.generation, agent.signing, agent.exchange) for agent in agents)

    async def _rotate_secret(self) -> None:
        """The next step of a rotation of the agents' secret, if there is one."""
        ring = self._keeper.ring
        named = [known for known in generations(ring) if known in self._secrets] if ring is not None else []
        if not named or (self._wanted is None and len(self._secrets) == len(named)):
            return
        steps = self._rotation.decide(self._rotated, named, self._secrets, self._wall(), self._clock())
        if steps.draw is not None:
            value = self._random.randbytes(KEY_BYTES)
            with contextlib.suppress(ConflictError):  # an earlier attempt was stored after all
                await self._coordinator.put(agent_secret_key(steps.draw), value, 0, fence=self._fence)
            self._secrets = await self._stored_secrets()
            _log.info("new generation of the agents' secret", generation=steps.draw)
        for generation in steps.delete:
            await self._coordinator.delete(agent_secret_key(generation), fence=self._fence)
            del self._secrets[generation]
            _log.info("old generation of the agents' secret deleted", generation=generation)
        if steps.record is not None and self._wanted is not None:
            with contextlib.suppress(ConflictError):
                data = encode(steps.record)
                await self._coordinator.put(ROTATION_KEY, data, self._wanted.version, fence=self._fence)
        if list(steps.named) != named:
            self._keeper.use_keys(self._public_keys(steps.named))

    async def _snapshot(self) -> Snapshot:
        stored = await self._coordinator.list(RING_KEY)
        ring, self._wanted = stored.get(RING_KEY), stored.get(ROTATION_KEY)
        leases = await self._coordinator.leases(LEASES)
        members = await self._coordinator.members(SERVERS)
        pool = await self._coordinator.list(POOL_PREFIX)
        marks = {pool_server(key): read_mark(stored.value) for key, stored in pool.items()}
        return Snapshot(
            contact=True,
            members={member: address for member, data in members.items() if (address := read_address(member, data))},
            leases={name.removeprefix(LEASES): lease.remaining_s for name, lease in leases.items()},
            guests=frozenset(server for server, mark in marks.items() if mark.is_guest),
            outside=frozenset(server for server, mark in marks.items() if mark.is_outside),
            ring=ring.value if ring else b"",
            ring_key_version=ring.version if ring else 0,
        )

    def _lose(self, trouble: str) -> None:
        """No contact, or another process leads: the core restarts its waits when this process leads again."""
        self._keeper.observe(Snapshot(contact=False), self._clock())
        if self._view.trouble != trouble:
            report = _log.info if trouble == STANDBY else _log.warning
            report("ring not kept", why=trouble)
        self._view = KeeperView(False, False, (), self._keeper.ring, trouble)

    def _pause_s(self) -> float:
        poll_s = self._timing.keeper_poll_s if self._keeper.ring else min(_FIRST_POLL_S, self._timing.keeper_poll_s)
        wake_s = self._keeper.next_check_s
        return poll_s if wake_s is None else max(0.0, min(poll_s, wake_s))
