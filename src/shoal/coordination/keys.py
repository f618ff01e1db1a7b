"""Reads of versioned keys in Redis: single keys, listings and watches. Writes are in `writer`.

Owns the decoding of records and index, and the watch loop. It never writes, and never touches leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Set
from typing import Final

from shoal.coordination.feed import Feed
from shoal.coordination.interface import Change, Versioned
from shoal.coordination.layout import GarbageError, counter_key, decode_value, index_key, redis_key
from shoal.coordination.link import Link, Session
from shoal.errors import CoordinatorError, CoordinatorUnavailableError, DataLostError
from shoal.logs import get_log
from shoal.wire.commands import Request

_log: Final = get_log(__name__)

CHANGES_PER_TURN: Final = 100
"""A watch yields to other tasks after this many changes, because handling a change may take time."""

_PAST_PREFIX: Final = b"\xff"
"""Greater than any byte of UTF-8: prefix + this byte sorts after every name with the prefix."""


class KeyReader:
    """Reads, lists and watches keys."""

    def __init__(self, link: Link, feed: Feed, poll_s: float) -> None:
        self._link = link
        self._feed = feed
        self._poll_s = poll_s

    async def get(self, key: str) -> Versioned | None:
        """Return the newest value. Raises CoordinatorError if the stored record is not Shoal's."""

        async def attempt(session: Session) -> Versioned | None:
            raw = (await session.ask(("GET", redis_key(key))))[0]
            return None if raw is None else _versioned(key, raw)

        return await self._link.run(f"read {key}", attempt)

    async def get_all(self, keys: list[str]) -> list[Versioned | None]:
        """Return the newest values at one moment. Raises CoordinatorError if one of the records is not Shoal's."""
        if not keys:
            return []

        async def attempt(session: Session) -> list[Versioned | None]:
            raws = (await session.ask(_read(keys)))[0]
            return [None if raw is None else _versioned(key, raw) for key, raw in zip(keys, raws, strict=True)]

        return await self._link.run(f"read {keys[0]}", attempt)

    async def snapshot(self, prefix: str) -> dict[str, Versioned]:
        """Return all keys with a prefix at one moment: the index is watched while the values are read."""

        async def attempt(session: Session) -> dict[str, Versioned]:
            low, high = b"[" + prefix.encode(), b"(" + prefix.encode() + _PAST_PREFIX
            index = index_key(prefix)
            names = (await session.watch([index], ("ZRANGEBYLEX", index, low, high)))[0]
            if not names:
                return {}
            keys = [name.decode(errors="replace") for name in names]
            return _valid_records(keys, (await session.commit(_read(keys)))[0])

        return await self._link.run(f"list {prefix}", attempt)

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """Read everything first and after each reconnect; read single keys when notified.

        After `poll_s` without a notification, compare the area's counter with its value at the last full read. Every
        change increments the counter in the same transaction, so a lost notification is noticed. A lower counter than
        before means that the coordinator has lost data: DataLostError, and no change is reported for what is gone.
        """
        known: dict[str, int] = {}
        counted: bytes | None = None
        highest = 0
        with self._feed.listen(prefix) as listener:
            while not self._feed.is_closed():
                everything, paths = listener.take()
                try:
                    if not everything and not paths:
                        everything = await self._count(prefix) != counted
                    if everything:
                        count = await self._count(prefix)
                        if int(count or 0) < highest:
                            raise _lost(prefix)
                        counted, highest = count, int(count or 0)
                        found = await self.snapshot(prefix)
                        paths = known.keys() | found.keys()
                    else:
                        found = await self._get_many(sorted(paths))
                except CoordinatorUnavailableError as error:
                    _log.warning("watch waiting for the coordinator", prefix=prefix, reason=str(error))
                    listener.note_everything()
                    continue
                except DataLostError:
                    raise
                except CoordinatorError:
                    if self._feed.is_closed():
                        return
                    raise
                highest = max(highest, *(stored.version for stored in found.values()), 0)
                for number, change in enumerate(_differences(known, paths, found), start=1):
                    yield change
                    if number % CHANGES_PER_TURN == 0:
                        await asyncio.sleep(0)
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
            return _valid_records(keys, (await session.ask(_read(keys)))[0])

        return await self._link.run(f"read {keys[0]}", attempt)


def _lost(prefix: str) -> DataLostError:
    return DataLostError(
        f"the coordinator has lost its data: keys below {prefix} are gone or older than before",
        do="restore a backup with `shoal coordinator restore FILE`; what this process knew stays in use until it ends",
    )


def _read(keys: list[str]) -> Request:
    return ("MGET", *(redis_key(key) for key in keys))


def _versioned(key: str, raw: bytes) -> Versioned:
    try:
        stored = decode_value(raw)
    except GarbageError as error:
        raise invalid_record(key, error) from error
    return Versioned(stored.value, stored.version)


def invalid_record(key: str, error: GarbageError) -> CoordinatorError:
    """Return the error for a key whose record is not Shoal's."""
    return CoordinatorError(
        f"the record stored as {key} is not Shoal's ({error})", do="delete it, or write it without `expect`"
    )


def _valid_records(keys: list[str], raws: list[bytes | None]) -> dict[str, Versioned]:
    """Return the valid records. Invalid ones are logged and skipped, so that they do not hide the others."""
    found = {}
    for key, raw in zip(keys, raws, strict=True):
        if raw is None:
            continue
        try:
            found[key] = _versioned(key, raw)
        except CoordinatorError as error:
            _log.warning("invalid record skipped", key=key, reason=str(error))
    return found


def _differences(known: dict[str, int], keys: Set[str], found: dict[str, Versioned]) -> Iterator[Change]:
    """Yield the changes that the watch has not reported yet, oldest first; updates `known` (version by key)."""
    for key in sorted(keys, key=lambda key: found[key].version if key in found else 0):
        now = found.get(key)
        if now is None:
            if known.pop(key, None) is not None:
                yield Change(key, None)
        elif known.get(key) != now.version:
            known[key] = now.version
            yield Change(key, now)
