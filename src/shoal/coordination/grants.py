"""Grants in Redis, the common base of leases and memberships: a path belongs to a holder until it expires.

Owns the records under `@lease/` and `@member/`, their expiry by Redis's clock, their tokens and their index. It never
touches keys, and does not depend on what a grant is used for.

A grant is one Redis key with an expiry. It is taken, renewed and released in transactions that watch that key; Redis
also aborts them if the key expires in between. The index lists the names. Redis does not remove a name when its key
expires, so readers ignore names without a key, and `take` removes names that expired long ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from shoal.coordination.layout import (
    CHANNEL,
    GarbageError,
    StoredGrant,
    counter_key,
    decode_grant,
    encode,
    index_key,
    redis_key,
)
from shoal.coordination.link import Link, Session
from shoal.errors import CoordinatorError
from shoal.logs import get_log

_log: Final = get_log(__name__)

INDEX_KEEP_MS: Final = 3_600_000
"""How long the index keeps the name of an expired grant: longer than any plausible step of the clock."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A stored grant and its remaining time."""

    path: str
    holder: str
    token: int
    data: bytes
    remaining_s: float


def _milliseconds(time_reply: list[bytes]) -> int:
    return int(time_reply[0]) * 1000 + int(time_reply[1]) // 1000


class Grants:
    """Takes, renews, releases and lists grants."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def take(self, path: str, holder: str, data: bytes, ttl_s: float, takeover: bool) -> int | None:
        """Return the token of the grant, or None if another holder has it. For the current holder this is a renewal."""
        ttl_ms = round(ttl_s * 1000)

        async def attempt(session: Session) -> int | None:
            raw, time_reply = await self._watch(session, path)
            held = self._held(path, raw, takeover)
            if held is not None and held.holder != holder and not takeover:
                return None
            if held is not None and held.holder == holder:
                token = held.token
            else:
                token = int((await session.ask(("INCR", counter_key(path))))[0])
            record = encode(StoredGrant(token, holder, data))
            now_ms = _milliseconds(time_reply)
            await session.commit(
                ("SET", redis_key(path), record, "PX", ttl_ms),
                ("ZADD", index_key(path), now_ms + ttl_ms, path),
                ("ZREMRANGEBYSCORE", index_key(path), "-inf", now_ms - INDEX_KEEP_MS),
                ("PUBLISH", CHANNEL, path),
            )
            return token

        return await self._link.run(f"take {path}", attempt)

    async def keep(self, path: str, token: int, ttl_s: float) -> bool:
        """Extend the grant by `ttl_s`; return False if it has expired or has another token."""
        ttl_ms = round(ttl_s * 1000)

        async def attempt(session: Session) -> bool:
            raw, time_reply = await self._watch(session, path)
            if not self.is_held(raw, token):
                return False
            await session.commit(
                ("PEXPIRE", redis_key(path), ttl_ms),
                ("ZADD", index_key(path), _milliseconds(time_reply) + ttl_ms, path),
            )
            return True

        return await self._link.run(f"renew {path}", attempt)

    async def give_up(self, path: str, token: int) -> None:
        """Release the grant if it still has this token."""

        async def attempt(session: Session) -> None:
            raw, _ = await self._watch(session, path)
            if self.is_held(raw, token):
                await session.commit(
                    ("DEL", redis_key(path)), ("ZREM", index_key(path), path), ("PUBLISH", CHANNEL, path)
                )

        await self._link.run(f"release {path}", attempt)

    async def read(self, path: str) -> Grant | None:
        """Return the grant of a path. Raises CoordinatorError if the stored record is not Shoal's."""

        async def attempt(session: Session) -> Grant | None:
            raw, left_ms = await session.ask(("GET", redis_key(path)), ("PTTL", redis_key(path)))
            held = self._held(path, raw, ignore_garbage=False)
            return None if held is None or left_ms < 0 else _grant(path, held, left_ms)

        return await self._link.run(f"read {path}", attempt)

    async def read_all(self, prefix: str) -> list[Grant]:
        """Return all grants whose path starts with `prefix`. Invalid records are skipped and logged."""

        async def attempt(session: Session) -> list[Grant]:
            names = (await session.ask(("ZRANGE", index_key(prefix), 0, -1)))[0]
            paths = [path for path in (name.decode(errors="replace") for name in names) if path.startswith(prefix)]
            if not paths:
                return []
            keys = [redis_key(path) for path in paths]
            answers = await session.ask(("MGET", *keys), *(("PTTL", key) for key in keys))
            grants = []
            for path, raw, left_ms in zip(paths, answers[0], answers[1:], strict=True):
                held = self._held(path, raw, ignore_garbage=True)
                if held is not None and left_ms >= 0:
                    grants.append(_grant(path, held, left_ms))
            return grants

        return await self._link.run(f"list {prefix}", attempt)

    async def _watch(self, session: Session, path: str) -> tuple[bytes | None, list[bytes]]:
        """Watch and read a grant. MGET returns nil for a value of the wrong type; GET would fail."""
        (raw,), time_reply = await session.watch([redis_key(path)], ("MGET", redis_key(path)), ("TIME",))
        return raw, time_reply

    @staticmethod
    def is_held(raw: bytes | None, token: int) -> bool:
        """Return whether the stored bytes are the grant with this token."""
        if raw is None:
            return False
        try:
            return decode_grant(raw).token == token
        except GarbageError:
            return False

    @staticmethod
    def _held(path: str, raw: Any, ignore_garbage: bool) -> StoredGrant | None:
        if raw is None:
            return None
        try:
            return decode_grant(raw)
        except GarbageError as error:
            if not ignore_garbage:
                raise CoordinatorError(
                    f"the record stored as {path} is not Shoal's ({error})", do="delete it, or take it over"
                ) from error
            _log.warning("invalid record ignored", stored_as=path, reason=str(error))
            return None


def _grant(path: str, held: StoredGrant, left_ms: int) -> Grant:
    return Grant(path, held.holder, held.token, held.data, left_ms / 1000)
