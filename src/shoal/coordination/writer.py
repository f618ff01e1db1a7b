"""Writes of versioned keys in Redis: compare, fence, write and notify, for one key or many.

Owns the transaction that changes keys. It reads keys only within that transaction, and touches leases only to check, in
the same transaction as a fenced write, that the lease is still held.

    WATCH keys, lease; MGET them; INCR the counter    current values, and a version for each value to write
    MULTI; SET, ZADD; DEL, ZREM; INCR, PUBLISH; EXEC  all permitted writes, atomically

Versions come from a counter of the area that is incremented *after* the key was watched and read. A written version is
therefore greater than the one it replaces, and each attempt has its own version: after a lost connection, the stored
version shows whether the lost attempt was applied.

Large batches are split into chunks. EXEC rejects a whole chunk if one of its keys has changed. After `CHUNK_TRIES`
rejections the writes of the chunk are made one by one, so that one contended key does not hold up the others for long.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from shoal.coordination.grants import Grants
from shoal.coordination.interface import KeyWrite, Lease
from shoal.coordination.keys import invalid_record
from shoal.coordination.layout import (
    CHANNEL,
    LEASE,
    GarbageError,
    StoredValue,
    counter_key,
    decode_value,
    encode,
    encode_paths,
    index_key,
    redis_key,
)
from shoal.coordination.link import Collision, Link, Session
from shoal.errors import ConflictError, CoordinatorError, LeaseLostError
from shoal.wire.commands import Request

CHUNK_KEYS: Final = 200
"""Most keys in one transaction. The server is blocked meanwhile, and a change of any key rejects them all."""

CHUNK_BYTES: Final = 1024 * 1024
"""Most bytes of values in one transaction; a single larger value is allowed."""

CHUNK_TRIES: Final = 4
"""How often a chunk is tried before its writes are made one by one."""


class _Pending:
    """A write in progress: the versions it was tried with, and its outcome."""

    __slots__ = ("_tried", "outcome", "write")

    def __init__(self, write: KeyWrite) -> None:
        self.write = write
        self.outcome: int | CoordinatorError | None = None
        self._tried: set[int] = set()

    def settle(self, raw: bytes | None, version: int) -> bool:
        """Return whether to overwrite the stored value with `version` (0 for a delete); otherwise set the outcome.

        An attempt whose reply was lost is recognised by its version, or by the missing key. An invalid record is an
        error only if `expect` is given; otherwise the write replaces it.
        """
        try:
            found = 0 if raw is None else decode_value(raw).version
        except GarbageError as error:
            if self.write.expect is not None:
                self.outcome = invalid_record(self.write.key, error)
                return False
            found = 0
        if found in self._tried:
            self.outcome = found
        elif self.write.expect not in (None, found):
            self.outcome = self._conflict(found)
        else:
            self._tried.add(version)
        return self.outcome is None

    def _conflict(self, found: int) -> ConflictError:
        expect = self.write.expect
        is_there = f"is at version {found}" if found else "does not exist"
        wanted = f"version {expect} was expected" if expect else "it was expected not to exist"
        return ConflictError(f"{self.write.key} {is_there}, {wanted}", do="read it again, then decide again")


class Writer:
    """Writes keys."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def write(self, write: KeyWrite, fence: Lease | None) -> int:
        """Make one write; return its version or raise its error."""
        return _result(await self._single(_Pending(write), fence))

    async def write_all(self, writes: Sequence[KeyWrite], fence: Lease | None) -> list[int | CoordinatorError]:
        """Make many writes; return the outcome of each, in order."""
        outcomes: list[int | CoordinatorError] = []
        for chunk in _chunks(writes):
            pending = [_Pending(write) for write in chunk]
            await self._try_chunk(pending, fence)
            outcomes += [await self._single(one, fence) if one.outcome is None else one.outcome for one in pending]
        return outcomes

    async def _single(self, one: _Pending, fence: Lease | None) -> int | CoordinatorError:
        async def attempt(session: Session) -> int | CoordinatorError:
            await _transact(session, [one], fence)
            assert one.outcome is not None, "a transaction that was neither rejected nor interrupted has an outcome"
            return one.outcome

        return await self._link.run(_title(one.write), attempt)

    async def _try_chunk(self, pending: list[_Pending], fence: Lease | None) -> None:
        """Try writes in one transaction. Those without an outcome afterwards were rejected `CHUNK_TRIES` times."""
        collisions = 0

        async def attempt(session: Session) -> None:
            nonlocal collisions
            undecided = [one for one in pending if one.outcome is None]
            if not undecided:  # the connection broke after the last of them was decided
                return
            try:
                await _transact(session, undecided, fence)
            except Collision:
                collisions += 1
                if collisions < CHUNK_TRIES:
                    raise

        await self._link.run(f"{_title(pending[0].write)} and {len(pending) - 1} more", attempt)


async def _transact(session: Session, pending: Sequence[_Pending], fence: Lease | None) -> None:
    """Make one attempt: settle conflicts, write the rest. Raises Collision if nothing was written."""
    raws, versions = await _watch_and_read(session, pending, fence)
    due: list[tuple[KeyWrite, int]] = []
    written: list[_Pending] = []
    for one, raw in zip(pending, raws, strict=True):
        version = 0 if one.write.value is None else next(versions[counter_key(one.write.key)])
        if one.settle(raw, version):
            due.append((one.write, version))
            written.append(one)
    if due:
        await session.commit(*_commands(due))
    for one, (_, version) in zip(written, due, strict=True):
        one.outcome = version


async def _watch_and_read(
    session: Session, pending: Sequence[_Pending], fence: Lease | None
) -> tuple[list[bytes | None], dict[str, Iterator[int]]]:
    """Watch the keys and the fencing lease; return the stored values, and new versions by counter.

    MGET returns nil for a value of the wrong type; GET would fail.
    """
    keys = [redis_key(one.write.key) for one in pending]
    if fence is not None:
        keys.append(redis_key(LEASE + fence.name))
    counts = Counter(counter_key(one.write.key) for one in pending if one.write.value is not None)
    raws, *tops = await session.watch(keys, ("MGET", *keys), *(_reserve_versions(*count) for count in counts.items()))
    if fence is not None and not Grants.is_held(raws.pop(), fence.token):
        raise LeaseLostError(
            f"{fence.holder} lost the lease {fence.name} (token {fence.token}), "
            f"so {pending[0].write.key} was not written",
            do="stop the work that needs the lease, then acquire it again",
        )
    versions = {
        counter: iter(range(int(top) - count + 1, int(top) + 1))
        for (counter, count), top in zip(counts.items(), tops, strict=True)
    }
    return raws, versions


def _reserve_versions(counter: str, count: int) -> Request:
    """Reserve numbers from a counter. INCR for a single one, because not every role may use INCRBY."""
    return ("INCR", counter) if count == 1 else ("INCRBY", counter, count)


def _commands(due: Sequence[tuple[KeyWrite, int]]) -> Iterator[Request]:
    """Yield the commands for the writes, then the increments of the area counters and the notification."""
    records: list[str | bytes] = []
    gone: list[str] = []
    listed: defaultdict[str, list[str | int]] = defaultdict(list)
    unlisted: defaultdict[str, list[str]] = defaultdict(list)
    for write, version in due:
        if write.value is not None:
            records += (redis_key(write.key), encode(StoredValue(version, write.value)))
            listed[index_key(write.key)] += (0, write.key)
        else:
            gone.append(redis_key(write.key))
            unlisted[index_key(write.key)].append(write.key)
    if records:
        yield ("SET" if len(records) == 2 else "MSET", *records)
    if gone:
        yield ("DEL", *gone)
    yield from (("ZADD", index, *names) for index, names in listed.items())
    yield from (("ZREM", index, *names) for index, names in unlisted.items())
    yield from (("INCR", counter) for counter in {counter_key(write.key): None for write, _ in due})
    yield ("PUBLISH", CHANNEL, encode_paths([write.key for write, _ in due]))


def _chunks(writes: Sequence[KeyWrite]) -> Iterator[list[KeyWrite]]:
    chunk: list[KeyWrite] = []
    size = 0
    for write in writes:
        added = len(write.value or b"")
        if chunk and (len(chunk) == CHUNK_KEYS or size + added > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(write)
        size += added
    if chunk:
        yield chunk


def _title(write: KeyWrite) -> str:
    return f"{'delete' if write.value is None else 'write'} {write.key}"


def _result(outcome: int | CoordinatorError) -> int:
    if isinstance(outcome, CoordinatorError):
        raise outcome
    return outcome
