"""Versioned keys in Redis: get, put and delete with compare and fence, listing, watching.

Owns the records of keys, their index and the loop of a watch. It never touches leases except to check, in the
same transaction as a fenced write, that one is still held.

Versions come from a counter of the area that is raised *after* the key was watched and read. So a version
that gets written is greater than the one it replaces, whatever others do, and each attempt to write has a
version of its own: after a lost connection the version found there says whether the lost attempt was carried
out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Set
from typing import Final

from shoal.coordination.feed import Feed
from shoal.coordination.grants import Grants
from shoal.coordination.interface import Change, Lease, Versioned
from shoal.coordination.layout import (
    CHANNEL,
    LEASE,
    GarbageError,
    StoredValue,
    counter_key,
    decode_value,
    encode,
    index_key,
    redis_key,
)
from shoal.coordination.link import Command, Link, Session
from shoal.errors import ConflictError, CoordinatorError, CoordinatorUnavailableError, LeaseLostError
from shoal.logs import get_log

_log: Final = get_log(__name__)

_PAST_PREFIX: Final = b"\xff"
"""Greater than any byte of UTF-8: a prefix with this behind it sorts after every name with the prefix."""


class Keys:
    """Reads, writes, lists and watches keys."""

    def __init__(self, link: Link, feed: Feed, poll_s: float) -> None:
        self._link = link
        self._feed = feed
        self._poll_s = poll_s

    async def get(self, key: str) -> Versioned | None:
        """The newest value; CoordinatorError when what is stored is garbage."""

        async def attempt(session: Session) -> Versioned | None:
            raw = (await session.ask(("GET", redis_key(key))))[0]
            return None if raw is None else _versioned(key, raw)

        return await self._link.run(f"read {key}", attempt)

    async def put(self, key: str, value: bytes, expect: int | None, fence: Lease | None) -> int:
        """Write and return the new version; an attempt whose answer was lost is recognised by its version."""
        tried: set[int] = set()

        async def attempt(session: Session) -> int:
            found = await self._look(session, key, fence, judge=expect is not None)
            if found in tried:
                return found
            _compare(key, expect, found)
            version = int((await session.ask(("INCR", counter_key(key))))[0])
            tried.add(version)
            await session.commit(
                ("SET", redis_key(key), encode(StoredValue(version, value))),
                ("ZADD", index_key(key), 0, key),
                *_announce(key),
            )
            return version

        return await self._link.run(f"write {key}", attempt)

    async def delete(self, key: str, expect: int | None, fence: Lease | None) -> None:
        """Remove; an attempt whose answer was lost counts as carried out when the key is gone."""
        tried = False

        async def attempt(session: Session) -> None:
            nonlocal tried
            found = await self._look(session, key, fence, judge=expect is not None)
            if tried and found == 0:
                return
            _compare(key, expect, found)
            tried = True
            await session.commit(("DEL", redis_key(key)), ("ZREM", index_key(key), key), *_announce(key))

        await self._link.run(f"delete {key}", attempt)

    async def _look(self, session: Session, key: str, fence: Lease | None, judge: bool) -> int:
        """Watch a key and the lease that fences it; return the key's version (0: none).

        MGET, since it takes a value of the wrong type for none where GET fails. Garbage is an error only
        where the version matters (`judge`): otherwise the write that follows is what mends it.
        """
        keys = [redis_key(key)] if fence is None else [redis_key(key), redis_key(LEASE + fence.name)]
        raw, *raw_lease = (await session.watch(keys, ("MGET", *keys)))[0]
        if fence is not None and not Grants.is_held(raw_lease[0], fence.token):
            raise LeaseLostError(
                f"{fence.holder} lost the lease {fence.name} (token {fence.token}), so {key} was not written",
                do="stop what the lease allowed, and acquire it again",
            )
        if raw is None:
            return 0
        try:
            return decode_value(raw).version
        except GarbageError as error:
            if judge:
                raise _garbage(key, error) from error
            return 0

    async def snapshot(self, prefix: str) -> dict[str, Versioned]:
        """All keys with a prefix at one moment: the index is watched while the values are read."""

        async def attempt(session: Session) -> dict[str, Versioned]:
            low, high = b"[" + prefix.encode(), b"(" + prefix.encode() + _PAST_PREFIX
            index = index_key(prefix)
            names = (await session.watch([index], ("ZRANGEBYLEX", index, low, high)))[0]
            if not names:
                return {}
            keys = [name.decode(errors="replace") for name in names]
            return _good_ones(keys, (await session.commit(_read(keys)))[0])

        return await self._link.run(f"list {prefix}", attempt)

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """Look at everything first and after each reconnect, at single keys when notified.

        When nothing was heard for `poll_s`, the area's counter says whether anything has changed since the
        last look at everything (each change raises it, in the same transaction), so that a lost notification
        is made good.
        """
        known: dict[str, int] = {}
        counted: bytes | None = None
        with self._feed.listen(prefix) as listener:
            while not self._feed.is_closed():
                everything, paths = listener.take()
                try:
                    if not everything and not paths:
                        everything = await self._count(prefix) != counted
                    if everything:
                        counted = await self._count(prefix)
                        found = await self.snapshot(prefix)
                        paths = known.keys() | found.keys()
                    else:
                        found = await self._get_many(sorted(paths))
                except CoordinatorUnavailableError as error:
                    _log.warning("a watch waits for the coordinator", prefix=prefix, reason=str(error))
                    listener.note_everything()
                    continue
                except CoordinatorError:
                    if self._feed.is_closed():
                        return
                    raise
                for change in _differences(known, paths, found):
                    yield change
                await listener.wait(self._poll_s)

    async def _count(self, prefix: str) -> bytes | None:
        async def attempt(session: Session) -> bytes | None:
            count: bytes | None = (await session.ask(("GET", counter_key(prefix))))[0]
            return count

        return await self._link.run(f"watch {prefix}", attempt)

    async def _get_many(self, keys: list[str]) -> dict[str, Versioned]:
        if not keys:
            return {}

        async def attempt(session: Session) -> dict[str, Versioned]:
            return _good_ones(keys, (await session.ask(_read(keys)))[0])

        return await self._link.run(f"read {keys[0]}", attempt)


def _announce(key: str) -> tuple[Command, Command]:
    """What ends every change: the area's counter shows it, and a notification tells whoever listens."""
    return ("INCR", counter_key(key)), ("PUBLISH", CHANNEL, key)


def _read(keys: list[str]) -> Command:
    return ("MGET", *(redis_key(key) for key in keys))


def _compare(key: str, expect: int | None, found: int) -> None:
    if expect is None or expect == found:
        return
    is_there = f"is at version {found}" if found else "does not exist"
    wanted = f"version {expect} was expected" if expect else "it was expected not to exist"
    raise ConflictError(f"{key} {is_there}, {wanted}", do="read it again, then decide again")


def _versioned(key: str, raw: bytes) -> Versioned:
    try:
        stored = decode_value(raw)
    except GarbageError as error:
        raise _garbage(key, error) from error
    return Versioned(stored.value, stored.version)


def _garbage(key: str, error: GarbageError) -> CoordinatorError:
    return CoordinatorError(
        f"what is stored as {key} is not Shoal's ({error})", do="delete it, or write it without `expect`"
    )


def _good_ones(keys: list[str], raws: list[bytes | None]) -> dict[str, Versioned]:
    """The values that are there; garbage is logged and left out, so that it does not hide the others."""
    found = {}
    for key, raw in zip(keys, raws, strict=True):
        if raw is None:
            continue
        try:
            found[key] = _versioned(key, raw)
        except CoordinatorError as error:
            _log.warning("garbage left out of a listing", key=key, reason=str(error))
    return found


def _differences(known: dict[str, int], keys: Set[str], found: dict[str, Versioned]) -> Iterator[Change]:
    """What a watch has not told yet, oldest first; `known` (version by key) is kept up to date on the way."""
    for key in sorted(keys, key=lambda key: found[key].version if key in found else 0):
        now = found.get(key)
        if now is None:
            if known.pop(key, None) is not None:
                yield Change(key, None)
        elif known.get(key) != now.version:
            known[key] = now.version
            yield Change(key, now)
