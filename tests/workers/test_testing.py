"""`shoal.testing`: queues without a server, on a clock that tests advance."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import shoal
from shoal.errors import AlreadyAcceptedError, MissingExtraError, QueueError
from shoal.metrics import REGISTRY
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.job import Job
from shoal.queues.queue import NewMessage
from shoal.testing import queues, run, sync_queues
from shoal.workers.worker import WorkerStatistics


def failing_app() -> tuple[shoal.App, list[tuple[bytes, int]]]:
    """An app whose handler fails for payloads that begin with `bad`."""
    app = shoal.App()
    seen: list[tuple[bytes, int]] = []

    @app.worker("orders", retry=shoal.Backoff(10, 60, jitter=0))
    async def handle(job: Job) -> None:
        seen.append((job.payload, job.attempt))
        if job.payload.startswith(b"bad"):
            raise ValueError(job.payload.decode())

    return app, seen


async def test_retries_wait_for_the_clock_of_the_test() -> None:
    app, seen = failing_app()
    async with queues() as bus:
        await bus.queue("orders").put(b"bad", key="a")
        await run(app, bus)
        await run(app, bus)
        assert seen == [(b"bad", 1)]
        bus.clock.advance(9.9)
        await run(app, bus)
        assert seen == [(b"bad", 1)]
        bus.clock.advance(0.1)
        await run(app, bus)
        assert seen == [(b"bad", 1), (b"bad", 2)]
        bus.clock.advance(20)
        assert (await run(app, bus))["orders"] == WorkerStatistics(dead=1)
        (letter,) = await bus.queue("orders").dead()
        assert letter.at == bus.clock()
        assert await bus.queue("orders").replay(letter.entry)
        assert (await run(app, bus))["orders"] == WorkerStatistics(failed=1)


async def test_delays_and_times_follow_the_clock() -> None:
    app, seen = failing_app()
    async with queues() as bus:
        queue = bus.queue("orders")
        await queue.put(b"tomorrow", delay=86_400)
        await queue.put(b"at noon", at=bus.clock() + 43_200)
        await queue.put(b"now")
        await run(app, bus)
        bus.clock.advance(43_200)
        await run(app, bus)
        assert [payload for payload, _ in seen] == [b"now", b"at noon"]
        bus.clock.advance(43_200)
        await run(app, bus)
        assert [payload for payload, _ in seen] == [b"now", b"at noon", b"tomorrow"]
        assert (await queue.stats()).messages == 0


async def test_all_delayed_messages_that_are_due_are_handled_in_one_run() -> None:
    app, seen = failing_app()
    async with queues() as bus:
        await bus.queue("orders").put_many([NewMessage(b"%d" % n, b"k", delay=5) for n in range(150)])
        bus.clock.advance(5)
        assert (await run(app, bus))["orders"].done == 150
        assert [payload for payload, _ in seen] == [b"%d" % n for n in range(150)]


async def test_ids_are_forgotten_when_time_passes() -> None:
    async with queues() as bus:
        queue = bus.queue("orders")
        await queue.put(b"a", key="k", id="1")
        with pytest.raises(AlreadyAcceptedError):
            await queue.put(b"a", key="k", id="1")
        bus.clock.advance(301)
        await queue.put(b"b", key="k")
        bus.clock.advance(301)
        await queue.put(b"a", key="k", id="1")
        assert (await queue.stats()).messages == 3


async def test_a_consumer_that_is_silent_for_longer_than_its_lease_loses_its_job() -> None:
    async with queues() as bus:
        queue = bus.queue("orders")
        await queue.put(b"a", key="k")
        async with queue.take() as jobs:
            job = await anext(jobs)
            bus.clock.advance(11)
            async with queue.take() as others:
                second = await anext(others)
                assert second.payload == b"a"
                assert second.token > job.token
                with pytest.raises(shoal.errors.JobLostError):
                    await job.done()
                await second.done()


async def test_a_message_that_kills_its_consumers_is_started_once_more_than_attempts_max() -> None:
    """A consumer that dies cannot report the start. After each death the next one reports it before the application has
    the message; it did so after every other death only."""
    async with queues() as bus:
        queue = await bus.create("orders", attempts_max=3)
        await queue.put_many([NewMessage(b"poison", key="k"), NewMessage(b"next", key="k")])
        started = []
        while b"next" not in started:
            jobs = await queue.take().__aenter__()
            async with asyncio.timeout(5):
                started.append((await anext(jobs)).payload)
            await jobs.abandon()  # as if its process had been killed
            bus.clock.advance(60)
        assert started == [b"poison"] * 4 + [b"next"]
        (letter,) = await queue.dead()
        assert (letter.attempts, letter.reason) == (3, "the consumer did not come back")


async def test_errors_of_handlers_are_raised_if_asked() -> None:
    app, _ = failing_app()
    async with queues() as bus:
        await bus.queue("orders").put(b"bad 1")
        with pytest.raises(ValueError, match="bad 1"):
            await run(app, bus, raise_errors=True)
        await bus.queue("orders").put_many([b"bad 2", b"bad 3", b"good"])
        with pytest.raises(ExceptionGroup) as caught:
            await run(app, bus, raise_errors=True)
        assert sorted(map(str, caught.value.exceptions)) == ["bad 2", "bad 3"]


async def test_jobs_are_counted_for_prometheus() -> None:
    app, _ = failing_app()

    def count(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(f"shoal_worker_{name}", {"queue": "orders", **labels}) or 0.0

    def counts() -> tuple[float, ...]:
        ended = [count("jobs_total", outcome=outcome) for outcome in ("done", "failed", "dead")]
        return (*ended, count("job_duration_seconds_count"))

    before = counts()
    async with queues({"orders": QueueSettings(attempts_max=2)}) as bus:
        await bus.queue("orders").put_many([b"good", b"bad"])
        await run(app, bus)
        bus.clock.advance(10)
        await run(app, bus)
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 1, 1, 3]
    assert count("running_jobs") == 0


async def test_runs_have_the_same_outcome() -> None:
    """Messages of each key in order, with their attempts, and dead letters. Keys may take turns in another order."""

    async def outcome() -> tuple[dict[bytes, list[Any]], int, list[Any]]:
        app = shoal.App()
        seen: dict[bytes, list[Any]] = {}
        mails = 0

        @app.worker("orders", concurrency=3, retry=shoal.Backoff(1, 60))
        async def handle(job: Job) -> None:
            await asyncio.sleep(0)
            seen.setdefault(job.key, []).append((job.number, job.payload, job.attempt))
            job.put(job.payload, queue="mail")
            if len(job.payload) == job.attempt:
                raise ValueError

        @app.worker("mail")
        async def send(job: Job) -> None:
            nonlocal mails
            mails += 1

        async with queues() as bus:
            for n in range(30):
                await bus.queue("orders").put(b"%d" % n, key=f"k{n % 7}" if n % 3 else None)
            for _ in range(4):
                await run(app, bus)
                bus.clock.advance(3)
            dead = sorted((letter.message.number, letter.reason) for letter in await bus.queue("orders").dead())
        return seen, mails, dead

    first = await outcome()
    assert sum(map(len, first[0].values())) > 30
    assert await outcome() == first


async def test_queues_have_the_limits_that_a_test_gives_them() -> None:
    async with queues({"orders": QueueSettings(attempts_max=1)}) as bus:
        app, _ = failing_app()
        await bus.queue("orders").put(b"bad")
        assert (await run(app, bus))["orders"].dead == 1
        mail = await bus.create("mail", messages_max=1)
        await mail.put(b"")
        with pytest.raises(shoal.errors.QueueFullError):
            await mail.put(b"")
        with pytest.raises(QueueError, match="in use"):
            await bus.create("mail")


async def test_an_application_creates_its_queues_as_on_a_cluster() -> None:
    async with queues({"mail": QueueSettings(messages_max=1)}) as bus:
        orders, mail = bus.queue("orders"), bus.queue("mail")
        assert await orders.create(QueueSettings(attempts_max=7))
        assert not await orders.create(QueueSettings(attempts_max=8))
        assert not await mail.create(QueueSettings(messages_max=2))
        assert (await orders.stats()).settings.attempts_max == 7
        assert (await mail.stats()).settings.messages_max == 1
        with pytest.raises(shoal.errors.ConfigError):
            await bus.queue("stock").create(QueueSettings(attempts_max=0))


async def test_the_names_of_queues_are_listed() -> None:
    async with queues({"orders": shoal.QueueSettings(messages_max=5)}) as bus:
        await bus.queue("mail").put(b"x")
        assert await bus.queues() == ["mail", "orders"]
        with pytest.raises(TypeError, match="not both"):
            await bus.create("more", shoal.QueueSettings(), attempts_max=5)


@pytest.mark.parametrize("seed", range(20))
async def test_a_run_does_not_end_before_retries_that_are_due_at_once(seed: int) -> None:
    """It looked for due retries first and for held keys later: a job that failed in between was in neither."""
    app, attempts = shoal.App(), list[int]()

    @app.worker("orders", retry=shoal.Backoff(0, 0))
    async def handle(job: Job) -> None:
        attempts.append(job.attempt)
        for _ in range(seed):  # fail at different moments
            await asyncio.sleep(0)
        raise ValueError("no stock")

    async with queues(seed=seed) as bus:
        for key in "abc":
            await bus.queue("orders").put(b"x", key=key)
        ended = await run(app, bus)
        assert sorted(attempts) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert (ended["orders"].failed, ended["orders"].dead) == (6, 3)
        assert (await bus.queue("orders").stats()).dead == 3


@pytest.mark.parametrize("seed", range(10))
async def test_a_run_does_not_end_before_jobs_that_another_job_has_put(seed: int) -> None:
    app, seen = shoal.App(), list[str]()

    @app.worker("a")
    async def handle_a(job: Job) -> None:
        seen.append("a")

    @app.worker("b")
    async def handle_b(job: Job) -> None:
        seen.append("b")
        for _ in range(seed):
            await asyncio.sleep(0)
        job.put(b"next", queue="a")

    async with queues(seed=seed) as bus:
        await bus.queue("b").put(b"x")
        await run(app, bus)
    assert seen == ["b", "a"]


async def test_a_paused_queue_has_nothing_to_do() -> None:
    app, seen = failing_app()
    async with queues() as bus:
        await bus.queue("orders").put(b"a")
        await bus.queue("orders").pause()
        await run(app, bus)
        assert seen == []
        await bus.queue("orders").resume()
        await run(app, bus)
        assert seen == [(b"a", 1)]


async def test_an_app_puts_into_the_queues_of_the_test() -> None:
    app, seen = failing_app()
    async with queues() as bus:
        with app.using(bus):
            await app.queue("orders").put(b"book")
        await run(app, bus)
    assert seen == [(b"book", 1)]


def test_without_an_event_loop() -> None:
    app, seen = failing_app()
    with sync_queues() as bus:
        bus.put("orders", b"bad", key="a")
        bus.put("orders", b"good", key="a")
        for _ in range(3):
            bus.run(app)
            bus.clock.advance(60)
        assert seen == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"good", 1)]
        assert [letter.reason for letter in bus.dead("orders")] == ["ValueError: bad"]
        assert bus.stats("orders").messages == 0
        assert bus.wait(bus.bus.queue("orders").peek()) == []


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shoal\[testing\]'"):
        async with queues():
            pass


def test_a_client_imports_workers_without_packages_that_it_does_not_have() -> None:
    code = (
        "import sys, shoal; app = shoal.App(); app.worker('orders')(lambda job: None); shoal.Dead, shoal.Backoff;"
        "import shoal.testing, shoal.cli.worker;"
        "print(*sorted({'lupa', 'numpy', 'numba', 'pyarrow', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
