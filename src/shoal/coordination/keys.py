"""Versioned keys in Redis, read: single ones, listings, watches. They are written in `writing`.

Owns what is made of the records and the index, and the loop of a watch. It never writes, and never touches leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Set
from typing import Final

from shoal.coordination.feed import Feed
from shoal.coordination.interface import Change, Versioned
from shoal.coordination.layout import GarbageError, counter_key, decode_value, index_key, redis_key
from shoal.coordination.link import Command, Link, Session
from shoal.errors import CoordinatorError, CoordinatorUnavailableError
from shoal.logs import get_log

_log: Final = get_log(__name__)

CHANGES_PER_TURN: Final = 100
"""A watch that has more to tell lets others have their turn in between: whoever hears of a change may work on it."""

_PAST_PREFIX: Final = b"\xff"
"""Greater than any byte of UTF-8: a prefix with this behind it sorts after every name with the prefix."""


class Keys:
    """Reads, lists and watches keys."""

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
            return _good_ones(keys, (await session.ask(_read(keys)))[0])

        return await self._link.run(f"read {keys[0]}", attempt)


def _read(keys: list[str]) -> Command:
    return ("MGET", *(redis_key(key) for key in keys))


def _versioned(key: str, raw: bytes) -> Versioned:
    try:
        stored = decode_value(raw)
    except GarbageError as error:
        raise not_ours(key, error) from error
    return Versioned(stored.value, stored.version)


def not_ours(key: str, error: GarbageError) -> CoordinatorError:
    """What is said of a key that holds garbage."""
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
