"""The coordinator's interface: the small consistent store for the plan, memberships, leases and barriers.

Owns the abstract `Coordinator` and the types of its results. It never touches the network; the implementations do (on
Redis: `shoal.coordination.redis`), and all of them pass the same contract tests.

The consistency contract
------------------------
- **One order.** Operations on a key, a lease, a group or a barrier take effect one at a time, in an order that all
  callers agree on. `get`, `list`, `lease_of`, `leases` and `members` see every operation that had returned before they
  began. `list` is a snapshot: a state that the store had at one moment.
- **Versions.** Each `put` gives the key a version greater than any version this key ever had, even after a `delete`. A
  version identifies one value forever, so a compare is safe against deleting and recreating a key.
- **Compare.** With `expect`, a write happens only if the key has exactly that version (0: does not exist); otherwise it
  raises `ConflictError`. Of several writers with the same `expect`, exactly one wins.
- **After a lost connection** the outcome of a write may be unknown. The implementation finds out where it can and
  returns it. A conditional write is never applied twice. An unconditional `put` may be, and a conditional write that
  was applied and then overwritten by another client is reported as `ConflictError`.
- **Leases** expire by the store's clock only, never by the holder's clock. A holder must therefore stop its work
  `ttl_s` after it *sent* its last successful `renew`. Fencing tokens grow with each new acquisition of a name; a fenced
  write is checked against the lease in the same atomic step as the write.
- **Durability.** An operation that returned survives a crash of the coordinator's process.
- **Watches** may skip intermediate states but never the last one, even across lost connections.

Names
-----
Keys and leases are paths with at least two segments, `area/name`: `plan/ring`, `servers/7`. Listings and watches cover
one area, and permissions are granted by area. Group names follow the rules for areas. The limits in
`shoal.coordination.names` apply to every implementation.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shoal.errors import CoordinatorError


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and its version."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """The newest state of a changed key; `now` is None if the key was deleted."""

    key: str
    now: Versioned | None


@dataclass(frozen=True, slots=True)
class KeyWrite:
    """One write in a batch: a value to put, or None to delete the key; `expect` as in `Coordinator.put`."""

    key: str
    value: bytes | None
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease on a name for `ttl_s` seconds after the last renewal; `token` fences off earlier holders."""

    name: str
    holder: str
    token: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """The holder of a lease and its remaining time, by the store's clock at the time of the request."""

    name: str
    holder: str
    token: int
    remaining_s: float


class Membership(ABC):
    """A membership in a group. It lasts as long as `renew` is called more often than every `ttl_s` seconds."""

    group: str
    member: str
    ttl_s: float

    @abstractmethod
    async def renew(self) -> bool:
        """Extend the membership by `ttl_s`; return False if it was lost (expired, or replaced by a later `join`)."""

    @abstractmethod
    async def leave(self) -> None:
        """End the membership immediately. Does nothing if it was already lost."""


class Barrier(ABC):
    """A barrier that opens when `parties` different members have reached it.

    It opens once and stays open. To reuse it, choose a new name (`move/17/prepare`, not `prepare`). The store deletes a
    barrier some hours after the last arrival.
    """

    name: str
    member: str
    parties: int

    @abstractmethod
    async def wait(self, timeout_s: float) -> bool:
        """Arrive, and return True when all parties have arrived.

        After `timeout_s` the arrival is withdrawn and the result is False, unless the barrier opened at the last
        moment. If the wait is cancelled, the member stays counted: a member that crashes after its arrival has arrived.
        """


class Coordinator(ABC):
    """The store; the module docstring states its guarantees.

    Every operation raises `CoordinatorUnavailableError` if the store does not answer within the timeout of the
    implementation, and `CoordinatorError` if a stored value is not Shoal's or a permission is missing. A name, value or
    time beyond its limit (see `shoal.coordination.names`) raises `CoordinatorError` before anything is sent.
    """

    @abstractmethod
    async def get(self, key: str) -> Versioned | None:
        """Return the newest value of a key, or None."""

    @abstractmethod
    async def get_all(self, keys: Sequence[str]) -> builtins.list[Versioned | None]:
        """Return the newest values of several keys in one request, as one snapshot: for each key its value, or None."""

    @abstractmethod
    async def put(self, key: str, value: bytes, expect: int | None = None, *, fence: Lease | None = None) -> int:
        """Write, and return the new version.

        `expect` is compared first: a version, or 0 for "does not exist"; a mismatch raises `ConflictError`. None writes
        unconditionally. With `fence`, the write happens only while that lease is held; otherwise it raises
        `LeaseLostError`.
        """

    @abstractmethod
    async def delete(self, key: str, expect: int | None = None, *, fence: Lease | None = None) -> None:
        """Delete a key; `expect` and `fence` as in `put`. Without `expect`, a missing key is not an error."""

    @abstractmethod
    async def write_all(
        self, writes: Sequence[KeyWrite], *, fence: Lease | None = None
    ) -> builtins.list[int | CoordinatorError]:
        """Write many different keys in few round trips.

        Each write behaves like `put` or `delete`; the batch is neither atomic nor ordered. The result has, for each
        write in order, the new version (0 for a delete) or the error of this write alone: ConflictError, or
        CoordinatorError for a stored value that is not Shoal's. Errors that concern the whole batch, including
        `LeaseLostError`, are raised; some of the writes may then have been made.
        """

    @abstractmethod
    async def list(self, prefix: str) -> dict[str, Versioned]:
        """Return all keys that start with `prefix` (at least an area: `plan/`), as one snapshot.

        Invalid records are skipped and logged.
        """

    @abstractmethod
    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """Yield the current state of all keys with `prefix`, one `Change` per key, then later changes, until `close`.

        Every change is eventually followed by a `Change` with the newest state of the key; intermediate states may be
        skipped. If the store is unreachable, the watch waits for it without a limit. If the store has lost data, it
        raises `DataLostError` and does not report what is gone; a new watch begins with what is there. Wrap it in
        `contextlib.aclosing` if you leave the loop early.
        """

    @abstractmethod
    async def acquire(self, name: str, holder: str, ttl_s: float, takeover: bool = False) -> Lease | None:
        """Take a lease; return None if another holder has it. With `takeover`, the other holder loses it.

        `holder` must be unique for each incarnation of a process. For the current holder this is a renewal with the
        same token.
        """

    @abstractmethod
    async def renew(self, lease: Lease) -> bool:
        """Extend the lease by `lease.ttl_s`; return False if it was lost."""

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Release the lease immediately. Does nothing if it was already lost."""

    @abstractmethod
    async def lease_of(self, name: str) -> LeaseInfo | None:
        """Return the holder of a lease, or None."""

    @abstractmethod
    async def leases(self, prefix: str) -> dict[str, LeaseInfo]:
        """Return the held leases that start with `prefix` (at least an area: `servers/`)."""

    @abstractmethod
    async def join(self, group: str, member: str, data: bytes, ttl_s: float) -> Membership:
        """Join a group, with data that others can read. The last `join` under a name wins."""

    @abstractmethod
    async def members(self, group: str) -> dict[str, bytes]:
        """Return the members of a group and their data."""

    @abstractmethod
    def watch_members(self, group: str) -> AsyncGenerator[dict[str, bytes], None]:
        """Yield all members now and again after each change, like `watch`. Expiry is a change."""

    @abstractmethod
    def barrier(self, name: str, member: str, parties: int) -> Barrier:
        """Return the barrier of that name for this member. Nothing is sent before `wait`."""

    def use_password(self, password: str) -> None:
        """Log in with another password from now on. Open connections stay. A store without logins ignores it."""
        del password

    @abstractmethod
    async def close(self) -> None:
        """End watches and connections. Leases and memberships stay until they expire; release them first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
