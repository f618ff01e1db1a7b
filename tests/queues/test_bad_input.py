"""Everything that a queue refuses has an error of its own, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest
from tests.support.queue_store import client_of, store_server, until
from tests.support.redis_server import RedisServer

from shoal.errors import (
    AlreadyAcceptedError,
    AuthenticationError,
    ConfigError,
    DeadLettersFullError,
    JobLostError,
    PayloadTooLargeError,
    PublishError,
    QueueError,
    QueueFullError,
    QueueNameError,
    QueueNotFoundError,
    QueueUnavailableError,
    StoreFullError,
    TooManyIdsError,
    TooManyKeysError,
)
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.producer import Outgoing
from shoal.queues.queue import NewMessage
from shoal.queues.settings import ConsumerSettings


async def test_an_unknown_queue_is_named_and_the_way_to_make_it(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = client.queue("nowhere")
        with pytest.raises(QueueNotFoundError, match=r"no queue nowhere on store q1.*shoal queue create nowhere"):
            await queue.put(b"x")
        with pytest.raises(QueueNotFoundError):
            await queue.stats()
        with pytest.raises(QueueNotFoundError):
            async for _ in queue.take():
                pass


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "x" * 129])
async def test_invalid_queue_names_are_refused(store: RedisServer, name: str) -> None:
    async with client_of(store) as client:
        with pytest.raises(QueueNameError, match="letters, digits"):
            client.queue(name)


async def test_invalid_messages_are_refused_before_anything_is_sent(store: RedisServer) -> None:
    async with client_of(store, payload_bytes_max=1000) as client:
        queue = await client.create("invalid-messages")
        wrong: list[tuple[type[Exception], dict[str, Any]]] = [
            (PayloadTooLargeError, {"payload": b"x" * 1001}),
            (QueueNameError, {"payload": b"x", "key": ""}),
            (QueueNameError, {"payload": b"x", "key": b"k" * 513}),
            (QueueNameError, {"payload": b"x", "key": 7}),
            (QueueNameError, {"payload": b"x", "id": "i" * 257}),
            (PublishError, {"payload": b"x", "attributes": {"a": float("nan")}}),
            (QueueNameError, {"payload": b"x", "key": "\ud800"}),
            (TypeError, {"payload": 7}),
            (TypeError, {"payload": b"x", "delay": "1"}),
            (TypeError, {"payload": b"x", "delay": None}),
            (TypeError, {"payload": b"x", "at": "tomorrow"}),
            (ValueError, {"payload": b"x", "at": float("nan")}),
            (TypeError, {"payload": b"x", "delay": 1.0, "at": 1.0}),
            (ValueError, {"payload": b"x", "delay": -1.0}),
            (ValueError, {"payload": b"x", "delay": float("nan")}),
            (ValueError, {"payload": b"x", "full": "perhaps"}),
        ]
        for error, arguments in wrong:
            with pytest.raises(error):
                await queue.put(**arguments)
        assert (await queue.stats()).messages == 0


async def test_put_many_names_messages_that_cannot_be_stored_and_stores_the_others(store: RedisServer) -> None:
    async with client_of(store, payload_bytes_max=1000) as client:
        queue = await client.create("invalid-among-many")
        large = NewMessage(b"x" * 1001, key="a")
        given: list[NewMessage | bytes] = [
            b"0",
            large,
            NewMessage(b"2", key="a"),
            NewMessage(b"3", key="b"),
            NewMessage(b"4", key=""),
            NewMessage(b"5", key="c", id=""),
            NewMessage(b"6", key="c"),
        ]
        result = await queue.put_many([*given, *[b"more"] * 600, NewMessage(b"x" * 1001)])
        found = [(position, type(error)) for position, error in result.refused]
        assert found == [
            (1, PayloadTooLargeError),
            (2, PayloadTooLargeError),  # it would overtake an earlier message of its key
            (4, QueueNameError),
            (5, QueueNameError),
            (6, QueueNameError),  # likewise
            (607, PayloadTooLargeError),
        ]
        assert result.accepted == (await queue.stats()).messages == 602


@pytest.mark.parametrize("full", ["raise", "wait"])
async def test_put_many_stores_nothing_behind_a_refused_message(
    store: RedisServer, full: Literal["raise", "wait"]
) -> None:
    """Later batches went on when there was room again: a caller that repeated what was refused changed the order. With
    full="wait" each batch waited anew."""
    async with client_of(store, queue_batch_messages_max=2, queue_put_timeout_s=0.3) as client:
        queue = await client.create(f"behind-{full}", messages_max=3)
        sent, send = 0, queue._send

        async def send_and_make_room(messages: Sequence[Outgoing], full: str) -> None:
            nonlocal sent
            await send(messages, full)
            sent += 1
            if sent == 2:
                await queue.purge()

        queue._send = send_and_make_room  # type: ignore[method-assign]
        began = time.monotonic()
        result = await queue.put_many([NewMessage(b"%d" % n, key="k") for n in range(40)], full=full)
        assert (result.accepted, [position for position, _ in result.refused]) == (3, list(range(3, 40)))
        assert all(isinstance(error, QueueFullError) for _, error in result.refused)
        assert time.monotonic() - began < 2
        assert (await queue.stats()).messages == 0


async def test_put_many_goes_on_with_other_keys_behind_a_key_too_many(store: RedisServer) -> None:
    async with client_of(store, queue_batch_messages_max=2) as client:
        queue = await client.create("behind-keys", keys_max=2)
        given = [NewMessage(b"%d" % n, key=key) for n, key in enumerate("abcacbab")]
        result = await queue.put_many(given)
        assert [position for position, _ in result.refused] == [2, 4]
        assert result.accepted == 6


@pytest.mark.parametrize("wrong", [7, None, {"payload": b"x"}])
async def test_put_many_stores_nothing_if_a_value_has_the_wrong_type(store: RedisServer, wrong: Any) -> None:
    async with client_of(store) as client:
        queue = await client.create("wrong-types")
        with pytest.raises(TypeError, match="bytes or str"):
            await queue.put_many([*[b"x"] * 600, wrong])
        with pytest.raises(TypeError, match="several messages"):
            await queue.put_many("text")
        assert (await queue.stats()).messages == 0


async def test_a_repeated_id_is_refused_with_and_without_a_key(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("repeated-ids")
        await queue.put(b"x", id="order-1")
        await queue.put(b"x", id="order-2")
        await queue.put(b"x", id="order-1", key="k")
        with pytest.raises(AlreadyAcceptedError, match="id 'order-1': if this is a repetition"):
            await queue.put(b"x", id="order-1")
        with pytest.raises(AlreadyAcceptedError, match="id 'order-1' and key 'k'"):
            await queue.put(b"x", id="order-1", key="k")
        stats = await queue.stats()
        assert (stats.messages, stats.keys) == (3, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"reason": ValueError("no stock")},
        {"reason": None},
        {"retry_in": "5"},
        {"retry_in": float("nan")},
        {"retry_in": float("inf")},
        {"retry_in": 1e300},
    ],
)
async def test_a_failure_with_an_impossible_value_leaves_the_job_as_it_is(
    store: RedisServer, arguments: dict[str, Any]
) -> None:
    async with client_of(store) as client:
        queue = await client.create("failures")
        await queue.put(b"x")
        async with queue.take() as jobs:
            job = await anext(jobs)
            async with asyncio.timeout(30):
                with pytest.raises((TypeError, ValueError), match=r"reason is text|retry_in is"):
                    await job.fail(**arguments)
                await job.done()


async def test_impossible_follow_ups_are_refused_when_they_are_staged(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("impossible-follow-ups")
        await queue.put(b"x")
        async with queue.take() as jobs:
            job = await anext(jobs)
            wrong: list[tuple[type[Exception], Any, dict[str, Any]]] = [
                (TypeError, 5, {}),  # not five zero bytes
                (TypeError, None, {}),
                (QueueNameError, b"x", {"key": 5}),
                (QueueNameError, b"x", {"queue": "two words"}),
                (ValueError, b"x", {"delay": -1}),
            ]
            for error, payload, options in wrong:
                with pytest.raises(error):
                    job.put(payload, **options)
            await job.done()
        assert (await queue.stats()).messages == 0


async def test_a_key_too_many_is_refused_and_known_keys_are_not(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("many-keys", keys_max=2)
        outcome = await queue.put_many([NewMessage(b"x", key=key) for key in ("a", "b", "c", "a", "c")])
        assert outcome.accepted == 3
        assert [(position, type(error)) for position, error in outcome.refused] == [
            (2, TooManyKeysError),
            (4, TooManyKeysError),
        ]


async def test_an_id_too_many_is_refused(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("many-ids", dedupe_ids_max=1)
        await queue.put(b"x", key="a", id="1")
        with pytest.raises(TooManyIdsError, match="dedupe_ids_max"):
            await queue.put(b"x", key="a", id="2")
        await queue.put(b"without an id", key="a")


async def test_a_producer_that_waits_for_room_gets_it_in_order(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("wait-for-room", messages_max=2)
        await queue.put_many([b"0", b"1"])
        waiting = [asyncio.create_task(queue.put(b"%d" % n, key="k", full="wait")) for n in range(2, 6)]
        got = []
        async with queue.take(max_in_flight=1) as jobs:
            async for job in jobs:
                got.append(job.payload)
                await job.done()
                if len(got) == 6:
                    break
        await asyncio.gather(*waiting)
        assert got[2:] == [b"2", b"3", b"4", b"5"]


async def test_a_producer_that_waits_in_vain_is_told(store: RedisServer) -> None:
    async with client_of(store, queue_put_timeout_s=0.1) as client:
        queue = await client.create("wait-in-vain", messages_max=1)
        await queue.put(b"0")
        with pytest.raises(QueueFullError):
            await queue.put(b"1", full="wait")


async def test_a_message_that_never_fits_is_refused_and_holds_nothing_back(store: RedisServer) -> None:
    """With full="wait" it was waited for, and all other messages of the client were refused or waited behind it."""
    async with client_of(store) as client:
        queue = await client.create("never-fits", bytes_max=1000)
        async with asyncio.timeout(5):
            for full in ("raise", "wait"):
                with pytest.raises(PayloadTooLargeError, match="raise bytes_max of the queue"):
                    await queue.put(b"x" * 1000, full=full)
                await queue.put(b"1", full=full)
            given = [NewMessage(b"x" * 1000, key="k"), NewMessage(b"y", key="k"), NewMessage(b"z")]
            result = await queue.put_many(given, full="wait")
        assert [(position, type(error)) for position, error in result.refused] == [
            (0, PayloadTooLargeError),
            (1, PayloadTooLargeError),
        ]
        await client.queue("never-fits").configure(QueueSettings(bytes_max=10_000))
        client.settings["never-fits"] = QueueSettings(bytes_max=10_000)
        client.entries["never-fits"] = msgspec.structs.replace(await client._find("never-fits"), revision=2)
        await queue.put(b"x" * 1000)  # the client reads that the limit was raised


async def test_a_put_that_is_cancelled_while_it_waits_for_room_is_withdrawn(store: RedisServer) -> None:
    """It held back all other messages of the client until its time was over, or was stored later."""
    async with client_of(store) as client:
        queue = await client.create("withdrawn", messages_max=2, bytes_max=1000)
        await queue.put(b"0" * 200)
        for large in (b"x" * 900, b"y" * 900):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.put(large, full="wait"), 0.2)
        async with asyncio.timeout(5):
            await queue.put(b"1")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.put(b"2", full="wait"), 0.2)
            await queue.purge()
            await queue.put(b"3")
        assert [message.payload for message in await queue.peek()] == [b"3"]
        assert all(core.idle for core in queue.producers)
        assert not queue._waiters


async def test_full_dead_letters_halt_the_key_and_lose_nothing(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("full-dead", dead_max=1)
        await queue.put_many([NewMessage(b"%d" % n, key="k") for n in range(3)])
        async with queue.take(max_in_flight=1) as jobs:
            await (await anext(jobs)).fail("broken", dead=True)
            with pytest.raises(DeadLettersFullError, match="halted"):
                await (await anext(jobs)).fail("broken too", dead=True)
            stats = await queue.stats()
            assert (stats.messages, stats.halted, stats.dead) == (2, 1, 1)
            assert [status.state for status in await queue.keys()] == ["halted"]
            (letter,) = await queue.dead()
            assert (letter.reason, letter.message.payload, letter.attempts) == ("broken", b"0", 1)
            assert await queue.forget(letter.entry) == 1
            assert await queue.release("k")
            assert [(await anext(jobs)).payload] == [b"1"]


async def test_a_halted_key_continues_with_the_replayed_dead_letter(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("halt", on_dead="halt", attempts_max=1)
        await queue.put_many([NewMessage(b"%d" % n, key="k") for n in range(2)])
        async with queue.take() as jobs:
            await (await anext(jobs)).fail("broken")
            assert (await queue.stats()).halted == 1
            (letter,) = await queue.dead()
            assert await queue.replay(letter.entry)
            assert not await queue.replay(letter.entry)
            for expected in (b"0", b"1"):
                job = await anext(jobs)
                assert job.payload == expected
                await job.done()


async def test_a_job_ends_once_and_a_purged_one_is_lost(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("purge")
        await queue.put_many([NewMessage(b"%d" % n, key="k") for n in range(3)] + [NewMessage(b"later", delay=60.0)])
        async with queue.take(max_in_flight=1) as jobs:
            job = await anext(jobs)
            await job.extend()
            await job.done()
            with pytest.raises(JobLostError, match="already ended"):
                await job.done()
            job = await anext(jobs)
            assert await queue.purge() == 3
            with pytest.raises(JobLostError, match="any more"):
                await job.done()
            assert job.lost
        stats = await queue.stats()
        assert (stats.messages, stats.bytes, stats.keys, stats.held, stats.delayed) == (0, 0, 0, 0, 0)
        await queue.drop()
        with pytest.raises(QueueNotFoundError):
            await queue.stats()


async def test_each_call_about_a_job_waits_for_its_own_confirmation(store: RedisServer) -> None:
    """A second `extend` left the first one waiting for ever, and its reply let `done` return too early."""
    async with client_of(store) as client:
        queue = await client.create("own-confirmation")
        await queue.put(b"x")
        async with queue.take() as jobs, asyncio.timeout(10):
            job = await anext(jobs)
            await asyncio.gather(*(job.extend() for _ in range(3)))
            (lane,) = jobs._lanes.values()
            run_turn, turns, go = lane.access.run_turn, asyncio.Semaphore(0), asyncio.Semaphore(0)

            async def slow_turn(arguments: list[bytes]) -> list[Any]:
                turns.release()
                await go.acquire()
                return await run_turn(arguments)

            lane.access.run_turn = slow_turn  # type: ignore[method-assign]
            extending = asyncio.create_task(job.extend())
            await turns.acquire()
            done = asyncio.create_task(job.done())
            go.release()
            await extending
            await turns.acquire()
            assert not done.done(), "the turn that reports it is on its way"
            go.release()
            await done
            lane.access.run_turn = run_turn  # type: ignore[method-assign]
            go.release()


async def test_a_paused_queue_gives_nothing_out_and_accepts_messages(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("paused")
        await queue.pause()
        await queue.put(b"x")
        async with queue.take() as jobs:
            waiting = asyncio.create_task(anext(jobs))
            await until(lambda: jobs.core.paused)
            assert not waiting.done()
            await queue.resume()
            await (await waiting).done()


async def test_a_store_without_memory_refuses_messages_and_lets_consumers_empty_it() -> None:
    with store_server() as server:
        async with client_of(server) as client, client_of(server) as admin:
            queue = await client.create("oom")
            await queue.put_many([NewMessage(b"x" * 1000, key="k") for _ in range(20)])
            await admin.queue("oom").stats()
            link = admin.queue("oom")._path("q1").link
            connection = await link._connected()
            await connection.ask(("CONFIG", "SET", "maxmemory", "1mb"))
            with pytest.raises(StoreFullError, match="no memory"):
                await queue.put(b"x", key="k")
            async with queue.take() as jobs:
                for _ in range(20):
                    await (await anext(jobs)).done()
            assert (await queue.stats()).messages == 0


async def test_a_store_that_is_away_is_reported_and_the_message_may_have_been_stored() -> None:
    with store_server() as server:
        async with client_of(server, queue_put_timeout_s=0.3, connect_timeout_s=0.3) as client:
            queue = await client.create("away")
            server.kill()
            with pytest.raises(QueueUnavailableError, match="same id"):
                await queue.put(b"x")
            with pytest.raises(QueueUnavailableError):
                await queue.stats()


async def test_a_wrong_password_is_reported(store: RedisServer) -> None:
    async with client_of(store, user="nobody", password="wrong") as client:
        with pytest.raises((AuthenticationError, QueueError), match=r"password|refuse"):
            await client.queue("secret").put(b"x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"shards": 0},
        {"shards": 257},
        {"shards": 2.0},
        {"messages_max": 0},
        {"messages_max": 2.5},
        {"messages_max": "5"},
        {"messages_max": True},
        {"lease_s": 1.0},
        {"lease_s": "10"},
        {"lease_s": float("nan")},
        {"dedupe_s": 0.1},
        {"on_dead": "perhaps"},
    ],
)
def test_impossible_settings_of_a_queue_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"{name} is"):
        QueueSettings(**wrong).validate()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_in_flight": 0},
        {"max_in_flight": 2.5},
        {"max_in_flight": float("nan")},  # such a consumer got nothing, without an error
        {"max_in_flight": "5"},
        {"key_messages": 10**30},
        {"slow_after_s": -1.0},
        {"slow_after_s": "1"},
        {"partition_weight": float("inf")},
        {"partition_weight": 1e300},
    ],
)
async def test_impossible_settings_of_a_consumer_are_refused(store: RedisServer, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    async with client_of(store) as client:
        with pytest.raises(ConfigError, match=f"{name} is"):
            client.queue("settings").take(settings=ConsumerSettings(**wrong))


async def test_settings_of_the_wrong_type_are_refused(store: RedisServer) -> None:
    async with client_of(store) as client:
        wrong: Any = {"messages_max": 5}
        with pytest.raises(ConfigError, match=r"shoal\.QueueSettings"):
            await client.queue("settings").create(wrong)
        with pytest.raises(ConfigError, match=r"shoal\.ConsumerSettings"):
            client.queue("settings").take(settings=wrong)


async def test_settings_of_a_consumer_are_not_replaced_by_defaults(store: RedisServer) -> None:
    """`take(settings=ConsumerSettings(max_in_flight=1))` held 64 messages."""
    async with client_of(store) as client:
        queue = await client.create("in-flight-of-settings")
        await queue.put_many([b"%d" % n for n in range(10)])
        async with queue.take(settings=ConsumerSettings(max_in_flight=2)) as jobs:
            await anext(jobs)
            assert (await queue.stats()).held == 2


async def test_settings_can_be_changed_but_not_the_shards(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("configure", messages_max=1)
        await queue.configure(QueueSettings(messages_max=2))
        assert (await queue.put_many([b"1", b"2"])).accepted == 2
        with pytest.raises(QueueError, match="16 shards"):
            await queue.configure(QueueSettings(shards=4))


async def test_follow_ups_are_stored_once_even_if_the_job_runs_again(store: RedisServer) -> None:
    async with client_of(store) as client:
        first, second = await client.create("steps-1"), await client.create("steps-2")
        await first.put(b"go", key="k")
        async with first.take() as jobs:
            job = await anext(jobs)
            job.put(b"next", queue="steps-2")
            await first._put_follow_ups(job.follow_ups)  # as if the consumer had died before `done`
            await job.done()
        assert (await second.stats()).messages == 1
        assert (await first.stats()).messages == 0


async def test_a_job_keeps_its_follow_ups_until_they_are_stored(store: RedisServer) -> None:
    async with client_of(store, queue_put_timeout_s=0.1) as client:
        first, full = await client.create("kept-1"), await client.create("kept-2", messages_max=1)
        await full.put(b"in the way")
        await first.put(b"go")
        async with first.take() as jobs:
            job = await anext(jobs)
            job.put(b"next", queue="kept-2")
            with pytest.raises(QueueFullError):
                await job.done()
            await full.purge()
            await job.done()
        assert [message.payload for message in await full.peek()] == [b"next"]


async def test_the_pause_after_many_attempts_is_the_longest_one(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("many-attempts", attempts_max=5000)
        await queue.put(b"x")
        async with queue.take() as jobs:
            job = await anext(jobs)
            job.core.attempt = 2000
            await job.fail("again")
        assert [status.state for status in await queue.keys()] == ["retry"]


@pytest.mark.parametrize("ack_timeout", [0, -1.0, float("nan"), "5"])
async def test_an_impossible_ack_timeout_is_refused(store: RedisServer, ack_timeout: Any) -> None:
    async with client_of(store) as client:
        with pytest.raises(ConfigError, match="seconds above 0"):
            client.queue("ack-timeout").take(ack_timeout=ack_timeout)


@pytest.mark.parametrize("number", ["1", "one", "-1-0", "9" * 30 + "-0", "1-0\n"])
async def test_a_name_that_no_dead_letter_can_have_names_none(store: RedisServer, number: str) -> None:
    async with client_of(store) as client:
        queue = await client.create("no-dead-letter")
        (place,) = await queue._stores_with_shards()
        assert not await queue.replay(f"{number}@{place}")
        assert await queue.forget(f"{number}@{place}", "1-0") == 0


async def test_a_key_that_was_given_back_is_ready_and_does_not_wait_for_a_retry(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("given-back")
        await queue.put_many([NewMessage(b"x", key="failed"), NewMessage(b"x", key="returned")])
        async with queue.take() as jobs:
            for job in [await anext(jobs), await anext(jobs)]:
                if job.key == b"failed":
                    await job.fail("later", retry_in=60)
                else:
                    await job.extend()  # the store knows now that it was started
        states = {status.key: (status.state, status.attempts) for status in await queue.keys()}
        assert states == {b"failed": ("retry", 1), b"returned": ("ready", 1)}
        assert (await queue.stats()).ready == 1


async def test_views_show_as_much_as_asked(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("views", shards=1, messages_max=1000)
        await queue.put_many([NewMessage(b"%d" % n, key="k") for n in range(600)])
        assert [message.payload for message in await queue.peek("k", 500)] == [b"%d" % n for n in range(500)]
        assert len(await queue.peek("k", 700)) == 600
        assert await queue.peek("k", -1) == []
        await queue.put_many([NewMessage(b"x", key=f"k{n}") for n in range(399)])
        assert len(await queue.keys(1000)) == 400


async def test_blocked_keys_are_shown_first_whatever_their_shard(store: RedisServer) -> None:
    """Ready keys of the first shards hid the blocked ones of the others."""
    async with client_of(store) as client:
        queue = await client.create("blocked-first", on_dead="halt", attempts_max=1)
        blocked = {f"k{n}".encode() for n in range(40) if zlib.crc32(b"k%d" % n) % 16 >= 12}
        await queue.put_many([NewMessage(b"x", key=key) for key in blocked])
        async with queue.take() as jobs:
            for _ in blocked:
                await (await anext(jobs)).fail("no")
        await queue.put_many([NewMessage(b"x", key=f"ready-{n}") for n in range(400)])
        shown = await queue.keys(len(blocked) + 5)
        assert {status.key for status in shown[: len(blocked)]} == blocked
        assert [status.state for status in shown] == ["halted"] * len(blocked) + ["ready"] * 5
        assert len(await queue.peek(count=7)) == 7
        assert await queue.keys(0) == await queue.keys(-1) == []
        assert await queue.peek(count=0) == []


async def test_a_delayed_message_joins_its_key_when_it_is_due(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("delayed")
        await queue.put(b"later", key="k", delay=0.3)
        await queue.put(b"now", key="k")
        stats = await queue.stats()
        assert (stats.messages, stats.delayed) == (2, 1)
        async with queue.take() as jobs:
            for expected in (b"now", b"later"):
                job = await anext(jobs)
                assert job.payload == expected
                await job.done()
