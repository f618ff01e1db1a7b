"""The default coordinator, on one Redis or Valkey server with an append-only file.

Owns `RedisCoordinator`, which combines `keys` (reads of versioned keys), `writer` (writes), `grants` (leases and
memberships), `barrier`, `feed` (notifications) and `link` (connections). It never touches the servers that carry
messages; those are reached through `shoal.wire`.

Requirements: one server, and no replica that could take over with less data. `appendonly yes` and `appendfsync always`,
so that acknowledged writes are on disk (with `everysec`, Redis may answer up to two seconds before it writes). A user
`default` as in `shoal.coordination.acl.DEFAULT_USER_RULES`; otherwise a restart reads nothing back. A clock on that
server that does not jump by more than the length of a lease.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from random import Random
from typing import Final, Self

from shoal.coordination import names
from shoal.coordination.barrier import RedisBarrier
from shoal.coordination.feed import Feed
from shoal.coordination.grants import Grant, Grants
from shoal.coordination.interface import (
    Barrier,
    Change,
    Coordinator,
    KeyWrite,
    Lease,
    LeaseInfo,
    Membership,
    Versioned,
)
from shoal.coordination.keys import KeyReader
from shoal.coordination.layout import LEASE, MEMBER
from shoal.coordination.link import Diagnose, Link, parse_address
from shoal.coordination.writer import Writer
from shoal.errors import ConfigError, CoordinatorError, CoordinatorUnavailableError
from shoal.logs import get_log
from shoal.wire.dial import Dial

_log: Final = get_log(__name__)

POLL_S: Final = 5.0
"""How often an idle watch checks for missed notifications."""

EXPIRY_MARGIN_S: Final = 0.01
"""Extra wait after the earliest expiry of a membership before a member watch reads again."""


class RedisMembership(Membership):
    """A membership, stored as a grant."""

    def __init__(self, grants: Grants, group: str, member: str, token: int, ttl_s: float) -> None:
        self.group = group
        self.member = member
        self.ttl_s = ttl_s
        self._grants = grants
        self._token = token

    async def renew(self) -> bool:
        """Extend the membership by `ttl_s`."""
        return await self._grants.keep(f"{MEMBER}{self.group}/{self.member}", self._token, self.ttl_s)

    async def leave(self) -> None:
        """End the membership immediately."""
        await self._grants.give_up(f"{MEMBER}{self.group}/{self.member}", self._token)


class RedisCoordinator(Coordinator):
    """`Coordinator` on one Redis server; created with `connect`."""

    def __init__(self, link: Link, poll_s: float, random: Random) -> None:
        self._link = link
        self._poll_s = poll_s
        self._random = random
        self._feed = Feed(link)
        self._keys = KeyReader(link, self._feed, poll_s)
        self._writer = Writer(link)
        self._grants = Grants(link)

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        dial: Dial,
        random: Random,
        username: str | None = None,
        password: str | None = None,
        timeout_s: float = 5.0,
        poll_s: float = POLL_S,
        diagnose: Diagnose | None = None,
    ) -> Self:
        """Connect to `host:port`, `shoal://host:port` or `redis://user:password@host:port`.

        `timeout_s` bounds this call and each later operation, including reconnects. `poll_s` is how often an idle watch
        checks for missed notifications. `diagnose` finds out why a coordinator cannot be reached
        for the first time. Raises CoordinatorUnavailableError, AuthenticationError, TlsError or ServerTooOldError.
        """
        if not 0 < timeout_s <= 3600 or not 0 < poll_s <= 3600:
            raise ConfigError(
                f"timeout_s is {timeout_s} and poll_s is {poll_s}", do="choose values above 0 and at most 3600"
            )
        link = Link(parse_address(address, username, password), timeout_s, dial=dial, random=random, diagnose=diagnose)
        try:
            await link.check_connection()
        except BaseException:
            await link.close()
            raise
        return cls(link, poll_s, random)

    def use_password(self, password: str) -> None:
        """See `Coordinator.use_password`."""
        self._link.address = replace(self._link.address, password=password)

    async def get(self, key: str) -> Versioned | None:
        """See `Coordinator.get`."""
        return await self._keys.get(names.check_path("key", key))

    async def get_all(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        """See `Coordinator.get_all`."""
        return await self._keys.get_all([names.check_path("key", key) for key in keys])

    async def put(self, key: str, value: bytes, expect: int | None = None, *, fence: Lease | None = None) -> int:
        """See `Coordinator.put`."""
        return await self._writer.write(_checked(KeyWrite(key, value, expect)), fence)

    async def delete(self, key: str, expect: int | None = None, *, fence: Lease | None = None) -> None:
        """See `Coordinator.delete`."""
        await self._writer.write(_checked(KeyWrite(key, None, expect)), fence)

    async def write_all(
        self, writes: Sequence[KeyWrite], *, fence: Lease | None = None
    ) -> builtins.list[int | CoordinatorError]:
        """See `Coordinator.write_all`."""
        names.check_different("key", [_checked(write).key for write in writes])
        return await self._writer.write_all(writes, fence)

    async def list(self, prefix: str) -> dict[str, Versioned]:
        """See `Coordinator.list`."""
        return await self._keys.snapshot(names.check_prefix(prefix))

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """See `Coordinator.watch`."""
        return self._keys.watch(names.check_prefix(prefix))

    async def acquire(self, name: str, holder: str, ttl_s: float, takeover: bool = False) -> Lease | None:
        """See `Coordinator.acquire`."""
        names.check_path("lease", name)
        names.check_name("holder", holder)
        names.check_ttl(ttl_s)
        token = await self._grants.take(LEASE + name, holder, b"", ttl_s, takeover)
        return None if token is None else Lease(name, holder, token, ttl_s)

    async def renew(self, lease: Lease) -> bool:
        """See `Coordinator.renew`."""
        return await self._grants.keep(LEASE + lease.name, lease.token, lease.ttl_s)

    async def release(self, lease: Lease) -> None:
        """See `Coordinator.release`."""
        await self._grants.give_up(LEASE + lease.name, lease.token)

    async def lease_of(self, name: str) -> LeaseInfo | None:
        """See `Coordinator.lease_of`."""
        grant = await self._grants.read(LEASE + names.check_path("lease", name))
        return None if grant is None else _lease_info(grant)

    async def leases(self, prefix: str) -> dict[str, LeaseInfo]:
        """See `Coordinator.leases`."""
        grants = await self._grants.read_all(LEASE + names.check_prefix(prefix))
        return {info.name: info for info in map(_lease_info, grants)}

    async def join(self, group: str, member: str, data: bytes, ttl_s: float) -> Membership:
        """See `Coordinator.join`."""
        names.check_area("group", group)
        names.check_name("member", member)
        names.check_size("member's data", data, names.MEMBER_DATA_BYTES_MAX)
        names.check_ttl(ttl_s)
        holder = f"{self._random.getrandbits(64):016x}"  # each join is a separate holder, even under the same name
        token = await self._grants.take(f"{MEMBER}{group}/{member}", holder, data, ttl_s, takeover=True)
        assert token is not None, "a takeover is never refused"
        return RedisMembership(self._grants, group, member, token, ttl_s)

    async def members(self, group: str) -> dict[str, bytes]:
        """See `Coordinator.members`."""
        return (await self._members(names.check_area("group", group)))[0]

    async def _members(self, group: str) -> tuple[dict[str, bytes], float]:
        """Return the members, and the time until the first of them can expire."""
        prefix = f"{MEMBER}{group}/"
        grants = await self._grants.read_all(prefix)
        found = {grant.path.removeprefix(prefix): grant.data for grant in grants}
        return found, min((grant.remaining_s for grant in grants), default=self._poll_s)

    def watch_members(self, group: str) -> AsyncGenerator[dict[str, bytes], None]:
        """See `Coordinator.watch_members`."""
        return self._watch_members(names.check_area("group", group))

    async def _watch_members(self, group: str) -> AsyncGenerator[dict[str, bytes], None]:
        known: dict[str, bytes] | None = None
        with self._feed.listen(f"{MEMBER}{group}/") as listener:
            while not self._feed.is_closed():
                listener.take()
                try:
                    found, quiet_s = await self._members(group)
                except CoordinatorUnavailableError as error:
                    _log.warning("watch waiting for the coordinator", group=group, reason=str(error))
                    continue
                except CoordinatorError:
                    if self._feed.is_closed():
                        return
                    raise
                if found != known:
                    known = found
                    yield dict(found)
                await listener.wait(min(self._poll_s, quiet_s + EXPIRY_MARGIN_S))

    def barrier(self, name: str, member: str, parties: int) -> Barrier:
        """See `Coordinator.barrier`."""
        names.check_name("barrier", name)
        names.check_name("member", member)
        names.check_parties(parties)
        return RedisBarrier(self._link, self._feed, name, member, parties)

    async def close(self) -> None:
        """See `Coordinator.close`."""
        await self._feed.close()
        await self._link.close()


def _checked(write: KeyWrite) -> KeyWrite:
    names.check_path("key", write.key)
    if write.value is not None:
        names.check_size("value", write.value, names.VALUE_BYTES_MAX)
    return write


def _lease_info(grant: Grant) -> LeaseInfo:
    return LeaseInfo(grant.path.removeprefix(LEASE), grant.holder, grant.token, grant.remaining_s)
