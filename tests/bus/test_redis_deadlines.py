"""The time limit of calls of the redis-py surface: many calls share one timer, and each gets its whole time."""

from __future__ import annotations

import asyncio

import pytest
from redis import exceptions

from shoal.errors import ConnectError
from shoal.redis.deadlines import Deadline, Deadlines, TimeLimit

SHORT_S = 0.05
LONG_S = 600.0


async def held(limit: TimeLimit, seconds: float = LONG_S) -> float:
    """Stays in a block for so long; returns how long the block lasted."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        with Deadline(limit, "nothing happened"):
            await asyncio.sleep(seconds)
    except exceptions.TimeoutError:
        return loop.time() - began
    return 0.0


async def test_a_call_that_is_not_answered_ends_with_the_consequence() -> None:
    said = pytest.raises(exceptions.TimeoutError, match=r"no answer within 0.05 s: the message may still arrive")
    with said, Deadline(TimeLimit(SHORT_S), "the message may still arrive"):
        await asyncio.sleep(LONG_S)


async def test_each_call_gets_its_whole_time() -> None:
    limit = TimeLimit(SHORT_S)
    calls = []
    for _ in range(5):
        calls.append(asyncio.create_task(held(limit)))
        await asyncio.sleep(SHORT_S / 3)
    async with asyncio.timeout(LONG_S):
        assert min(await asyncio.gather(*calls)) >= SHORT_S
    assert await held(limit) >= SHORT_S  # also after the limit had no calls


async def test_many_calls_set_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, limit, timers = asyncio.get_running_loop(), TimeLimit(LONG_S), 0
    original = loop.call_at

    def counted(*args: object, **kwargs: object) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    for _ in range(100):
        assert await held(limit, 0) == 0.0
    assert timers == 1
    assert not limit._calls


async def test_a_call_that_is_cancelled_stays_cancelled() -> None:
    limit = TimeLimit(LONG_S)
    call = asyncio.create_task(held(limit))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not limit._calls


async def test_a_call_that_is_cancelled_at_its_deadline_stays_cancelled() -> None:
    limit = TimeLimit(LONG_S)
    call = asyncio.create_task(held(limit))
    await asyncio.sleep(0)
    call.cancel()
    next(iter(limit._calls)).expire()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_caller_s_own_timeout_wins_over_a_longer_limit() -> None:
    limit = TimeLimit(LONG_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S):
            await held(limit)


async def test_without_a_limit_nothing_is_timed() -> None:
    limit = Deadlines(None, 5.0).opening
    with Deadline(limit, "nothing happened"):
        assert not limit._calls
        assert limit._timer is None


async def test_errors_are_those_of_redis_py() -> None:
    with pytest.raises(exceptions.ConnectionError, match="no way"), Deadline(TimeLimit(LONG_S), "nothing happened"):
        raise ConnectError("no way", do="walk")


def test_a_client_may_be_used_in_one_event_loop_after_another() -> None:
    limit = TimeLimit(SHORT_S)
    for _ in range(2):
        assert asyncio.run(held(limit)) >= SHORT_S
    limit = TimeLimit(LONG_S)
    assert asyncio.run(held(limit, 0)) == 0.0
    limit.seconds = SHORT_S
    assert asyncio.run(held(limit)) >= SHORT_S  # the timer of the first loop is not waited for
