"""The coordinator's interface: the small consistent store that holds plan, membership, leases and barriers.

Owns the abstract `Coordinator` and the values that it hands out. It never touches a network: implementations
(on Redis in `shoal.coordination.redis`) do, and all of them pass the same contract tests.

The consistency contract
------------------------
- **One order.** Operations on a key, a lease, a group or a barrier take effect one at a time, in an order
  that all callers agree on. `get`, `list`, `lease_of`, `leases` and `members` see every operation that had
  returned before they began. `list` is a snapshot: a state that the store really had at one moment.
- **Versions.** Each `put` gives the key a version greater than any that this key ever had, also after a
  `delete`; so a version names one value for ever, and a compare cannot be fooled by a key that was deleted
  and made anew.
- **Compare.** With `expect`, a write happens only if the key has just that version (0: does not exist), else
  `ConflictError`. Of several writers with the same `expect` exactly one wins.
- **After a lost connection** the outcome of a write may be unknown. The implementation finds out and answers
  with it where it can; a conditional write is never applied twice. An unconditional `put` may be, and a
  conditional one that was applied and then overwritten by somebody else is reported as `ConflictError`.
- **Leases** end by the store's clock only, never by the clock of a holder. A holder must therefore stop what
  it does `ttl_s` after it *sent* its last successful `renew`. Fencing tokens grow with each new acquisition
  of a name; a fenced write is checked against the lease in the same atomic step as the write.
- **Durability.** What returned survives the death of the coordinator's process.
- **Watches** may skip states in between but never the last one, whatever happens to the connection.

Names
-----
Keys and leases are paths with at least two segments, `area/name`: `plan/ring`, `servers/7`.
Listings and watches are made within one area, and rights are given by area. A group is named like an area.
The limits in `shoal.coordination.names` hold for every implementation.
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
    """A value and the version under which it is stored."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """The newest state of a key that changed; `now` is None when the key does not exist any more."""

    key: str
    now: Versioned | None


@dataclass(frozen=True, slots=True)
class KeyWrite:
    """One of many writes: a value to put, or None to delete the key; `expect` as in `Coordinator.put`."""

    key: str
    value: bytes | None
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to a name for `ttl_s` seconds after the last renewal; `token` fences off earlier holders."""

    name: str
    holder: str
    token: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """Who holds a lease, and for how long unless it is renewed, by the store's clock when it was asked."""

    name: str
    holder: str
    token: int
    remaining_s: float


class Membership(ABC):
    """A place in a group, kept by calling `renew` more often than every `ttl_s` seconds."""

    group: str
    member: str
    ttl_s: float

    @abstractmethod
    async def renew(self) -> bool:
        """Stay for another `ttl_s`; False when the place was lost: too late, or a later `join` took it."""

    @abstractmethod
    async def leave(self) -> None:
        """Give up the place at once; nothing happens when it was lost already."""


class Barrier(ABC):
    """A point that nobody passes before `parties` different members have reached it.

    It opens once and stays open. Reuse needs a new name (`move/17/prepare`, not `prepare`). The store forgets
    a barrier some hours after the last arrival.
    """

    name: str
    member: str
    parties: int

    @abstractmethod
    async def wait(self, timeout_s: float) -> bool:
        """Arrive, and return True when all parties have.

        After `timeout_s` the arrival is taken back and the answer is False, unless the barrier opened in that
        very moment. A wait that is cancelled leaves the member counted: whoever dies after it arrived has
        arrived.
        """


class Coordinator(ABC):
    """The store; see the module's docstring for what can be relied on.

    Every operation raises `CoordinatorUnavailableError` when the store did not answer within the time that
    the implementation was given, and `CoordinatorError` when a stored value is not ours (garbage) or a right
    is missing. A name, a value or a time beyond its limit (see `shoal.coordination.names`) raises
    `CoordinatorError` before anything is sent.
    """

    @abstractmethod
    async def get(self, key: str) -> Versioned | None:
        """The newest value of a key, or None."""

    @abstractmethod
    async def put(self, key: str, value: bytes, expect: int | None = None, *, fence: Lease | None = None) -> int:
        """Write, and return the new version.

        `expect` compares first: a version, or 0 for "does not exist", else `ConflictError`; None writes in
        any case. `fence` lets the write happen only while that lease is held, else `LeaseLostError`.
        """

    @abstractmethod
    async def delete(self, key: str, expect: int | None = None, *, fence: Lease | None = None) -> None:
        """Remove a key; `expect` and `fence` as in `put`. Without `expect` a missing key is no error."""

    @abstractmethod
    async def write_all(
        self, writes: Sequence[KeyWrite], *, fence: Lease | None = None
    ) -> builtins.list[int | CoordinatorError]:
        """Make many writes, each of another key, in few round trips.

        Each is what `put` or `delete` would have been; together they are neither atomic nor ordered. Returns for each
        of them, in its place, the new version (0 for a delete), or what stood against this one alone: ConflictError,
        or CoordinatorError for a stored value that is not ours. Whatever stands against all of them is raised, as is
        `LeaseLostError`; then some of the writes may have been made.
        """

    @abstractmethod
    async def list(self, prefix: str) -> dict[str, Versioned]:
        """All keys that begin with `prefix` (which names at least the area: `plan/`), as one snapshot.

        Entries that are garbage are left out and logged.
        """

    @abstractmethod
    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """The current state of all keys with `prefix`, one `Change` a key, then what changes, until `close`.

        Every change is eventually followed by a `Change` with the newest state of the key; states in between
        may be left out. A store that cannot be reached is waited for, without end. Wrap it in
        `contextlib.aclosing` when you leave the loop early.
        """

    @abstractmethod
    async def acquire(self, name: str, holder: str, ttl_s: float, takeover: bool = False) -> Lease | None:
        """Take a lease; None when somebody else holds it, unless `takeover`, which ends the other's.

        `holder` must be different for each process and each of its lives: for one that holds the lease
        already this is a renewal, with the same token.
        """

    @abstractmethod
    async def renew(self, lease: Lease) -> bool:
        """Hold for another `lease.ttl_s`; False when the lease was lost."""

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Give the lease up at once; nothing happens when it was lost already."""

    @abstractmethod
    async def lease_of(self, name: str) -> LeaseInfo | None:
        """Who holds a lease, or None."""

    @abstractmethod
    async def leases(self, prefix: str) -> dict[str, LeaseInfo]:
        """The leases that are held and begin with `prefix` (which names at least the area: `servers/`)."""

    @abstractmethod
    async def join(self, group: str, member: str, data: bytes, ttl_s: float) -> Membership:
        """Become a member of a group, with data that others see. The last `join` under a name wins."""

    @abstractmethod
    async def members(self, group: str) -> dict[str, bytes]:
        """The members of a group and their data."""

    @abstractmethod
    def watch_members(self, group: str) -> AsyncGenerator[dict[str, bytes], None]:
        """All members now, then all members again after each change, as `watch` does; expiry is a change."""

    @abstractmethod
    def barrier(self, name: str, member: str, parties: int) -> Barrier:
        """The barrier of that name, to be reached by this member; nothing is sent before `wait`."""

    @abstractmethod
    async def close(self) -> None:
        """End watches and connections. Leases and memberships stay until they expire: release them before."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
