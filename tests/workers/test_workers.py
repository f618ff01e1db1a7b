"""What workers promise, on a real store and in `shoal.testing`: each test runs in both places."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.support.queue_store import until
from tests.workers.places import Place

import shoal
from shoal.errors import AlreadyAcceptedError, ConfigError, QueueFullError
from shoal.queues.job import Job
from shoal.queues.queue import NewMessage
from shoal.workers.worker import CallNext, WorkerStatistics

pytestmark = pytest.mark.real

SOON = shoal.Backoff(0.2, 0.2, jitter=0)
PAST_SOON_S = 0.3


class Overlaps:
    """Notes how many handlers run at a time, altogether and for each key."""

    def __init__(self) -> None:
        self.most = 0
        self.most_of_a_key = 0
        self._running: dict[bytes, int] = defaultdict(int)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def during(self, key: bytes) -> Iterator[None]:
        with self._lock:
            self._running[key] += 1
            self.most = max(self.most, sum(self._running.values()))
            self.most_of_a_key = max(self.most_of_a_key, self._running[key])
        try:
            yield
        finally:
            with self._lock:
                self._running[key] -= 1


async def test_a_handler_that_returns_ends_its_job(place: Place) -> None:
    app, seen = shoal.App(), defaultdict(list)

    @app.worker("orders", concurrency=4)
    async def handle(job: Job) -> None:
        await asyncio.sleep(0.001)
        seen[job.key].append(job.payload)

    queue = await place.create("orders")
    await queue.put_many([NewMessage(b"%d" % n, b"k%d" % (n % 5)) for n in range(50)])
    ended = await place.run(app)
    assert ended["orders"] == WorkerStatistics(done=50)
    assert seen == {b"k%d" % key: [b"%d" % n for n in range(key, 50, 5)] for key in range(5)}
    assert (await queue.stats()).messages == 0


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_no_more_handlers_run_than_concurrency_allows_and_one_for_a_key(place: Place, kind: str) -> None:
    app, overlaps = shoal.App(), Overlaps()

    async def in_loop(job: Job) -> None:
        with overlaps.during(job.key):
            await asyncio.sleep(0.005)

    def in_thread(job: Job) -> None:
        with overlaps.during(job.key):
            time.sleep(0.005)

    app.worker("orders", concurrency=3)(in_loop if kind == "async" else in_thread)
    queue = await place.create("orders")
    await queue.put_many([NewMessage(b"", b"k%d" % (n % 8)) for n in range(40)])
    assert (await place.run(app))["orders"].done == 40
    assert overlaps.most == 3
    assert overlaps.most_of_a_key == 1


async def test_a_handler_that_raises_is_retried_after_the_backoff_and_becomes_a_dead_letter(place: Place) -> None:
    app, attempts = shoal.App(), []

    @app.worker("orders", retry=SOON)
    async def handle(job: Job) -> None:
        attempts.append(job.attempt)
        raise ValueError("no stock")

    queue = await place.create("orders", attempts_max=2)
    await queue.put(b"book", key="ann")
    assert (await place.run(app))["orders"] == WorkerStatistics(failed=1)
    assert (await queue.stats()).messages == 1
    await place.pass_time(PAST_SOON_S)
    assert (await place.run(app))["orders"] == WorkerStatistics(dead=1)
    assert attempts == [1, 2]
    (letter,) = await queue.dead()
    assert (letter.message.payload, letter.reason, letter.attempts) == (b"book", "ValueError: no stock", 2)


async def test_the_rest_of_a_key_waits_for_the_retry_and_other_keys_do_not(place: Place) -> None:
    app, done = shoal.App(), []

    @app.worker("orders", concurrency=1, retry=SOON)
    async def handle(job: Job) -> None:
        if job.payload == b"a1" and job.attempt == 1:
            raise RuntimeError
        done.append(job.payload)

    queue = await place.create("orders")
    await queue.put_many([NewMessage(b"a1", b"a"), NewMessage(b"a2", b"a"), NewMessage(b"b1", b"b")])
    await place.run(app)
    await place.pass_time(PAST_SOON_S)
    await place.run(app)
    assert sorted(done) == [b"a1", b"a2", b"b1"]
    assert done.index(b"a1") < done.index(b"a2")
    assert done.index(b"b1") < done.index(b"a1") or done[0] == b"b1"


async def test_dead_gives_up_at_once_and_retry_says_when(place: Place) -> None:
    app, attempts = shoal.App(), []

    @app.worker("orders", retry=shoal.Backoff(1000, 1000))
    async def handle(job: Job) -> None:
        attempts.append((job.payload, job.attempt))
        if job.payload == b"hopeless":
            raise shoal.Dead("no such customer")
        if job.attempt == 1:
            raise shoal.Retry(after=0)

    queue = await place.create("orders")
    await queue.put(b"hopeless", key="a")
    await queue.put(b"later", key="b")
    await place.run(app)
    await place.pass_time(0.01)
    await place.run(app)
    assert sorted(attempts) == [(b"hopeless", 1), (b"later", 1), (b"later", 2)]
    (letter,) = await queue.dead()
    assert (letter.message.payload, letter.reason) == (b"hopeless", "no such customer")
    assert (await queue.stats()).messages == 0


async def test_an_async_handler_is_cancelled_after_its_timeout_and_the_job_fails(place: Place) -> None:
    app, cancelled = shoal.App(), []

    @app.worker("orders", timeout=0.05, retry=SOON)
    async def handle(job: Job) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(job.attempt)
            raise

    queue = await place.create("orders", attempts_max=1)
    await queue.put(b"book")
    assert (await place.run(app))["orders"] == WorkerStatistics(dead=1, timeouts=1)
    assert cancelled == [1]
    (letter,) = await queue.dead()
    assert letter.reason == "the handler took longer than 0.05 s"


async def test_a_handler_that_keeps_its_cancellation_to_itself_has_timed_out(place: Place) -> None:
    """It was done, although the page says that such a job fails."""
    app = shoal.App()

    @app.worker("swallowed", timeout=0.1, retry=shoal.Backoff(60, 60))
    async def handle(job: Job) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)

    queue = await place.create("swallowed")
    await queue.put(b"x")
    ended = (await place.run(app))["swallowed"]
    assert (ended.failed, ended.timeouts, ended.done) == (1, 1, 0)
    assert (await queue.stats()).messages == 1


async def test_a_timeout_error_of_the_handler_itself_is_an_ordinary_failure(place: Place) -> None:
    app = shoal.App()

    @app.worker("orders", timeout=1000)
    async def handle(job: Job) -> None:
        raise TimeoutError("the bank does not answer")

    queue = await place.create("orders", attempts_max=1)
    await queue.put(b"book")
    assert (await place.run(app))["orders"] == WorkerStatistics(dead=1)
    assert [letter.reason for letter in await queue.dead()] == ["TimeoutError: the bank does not answer"]


async def test_a_thread_over_its_timeout_keeps_its_job_until_it_returns(place: Place) -> None:
    app, calls = shoal.App(), []

    @app.worker("orders", timeout=0.02, retry=SOON)
    def handle(job: Job) -> None:
        calls.append(job.attempt)
        time.sleep(0.2)

    queue = await place.create("orders")
    await queue.put(b"book")
    assert (await place.run(app))["orders"] == WorkerStatistics(done=1, timeouts=1)
    assert calls == [1]
    assert (await queue.stats()).messages == 0


async def test_errors_that_end_programs_end_only_the_job(place: Place) -> None:
    app = shoal.App()

    @app.worker("orders", retry=SOON)
    async def handle(job: Job) -> None:
        sys.exit(3)

    @app.worker("mail", retry=SOON)
    def send(job: Job) -> None:
        raise StopIteration if job.payload == b"stop" else SystemExit(3)

    await (await place.create("orders")).put(b"")
    await (await place.create("mail")).put_many([b"stop", b"exit"])
    ended = await place.run(app)
    assert (ended["orders"].failed, ended["mail"].failed) == (1, 2)


async def test_any_exception_fails_the_job_also_one_without_a_text(place: Place) -> None:
    app = shoal.App()

    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    @app.worker("orders", retry=SOON)
    async def handle(job: Job) -> None:
        raise UnprintableError if job.payload == b"text" else GeneratorExit

    @app.worker("mail", retry=SOON)
    def send(job: Job) -> None:
        raise BaseException

    orders = await place.create("orders", attempts_max=1)
    await orders.put_many([b"text", b"exit"])
    await (await place.create("mail")).put(b"")
    ended = await place.run(app)
    assert (ended["orders"].dead, ended["mail"].failed) == (2, 1)
    reasons = {letter.reason for letter in await orders.dead()}
    assert reasons == {"UnprintableError: its text cannot be read: RuntimeError", "GeneratorExit: "}


async def test_a_plain_function_that_returns_what_should_run_fails(place: Place) -> None:
    """Not done: nothing of the handler has run."""
    app = shoal.App()

    async def send(job: Job) -> None:
        pass

    @app.worker("mail", retry=SOON)
    def wrapped(job: Job) -> object:
        return send(job)

    @app.worker("orders", retry=SOON)
    def handle(job: Job) -> Iterator[None]:
        yield

    mail, orders = await place.create("mail", attempts_max=1), await place.create("orders", attempts_max=1)
    await mail.put(b"")
    await orders.put(b"")
    ended = await place.run(app)
    assert (ended["mail"].dead, ended["orders"].dead) == (1, 1)
    reasons = [letter.reason for queue in (mail, orders) for letter in await queue.dead()]
    advice = "write `async def handle(job)`"
    assert reasons == [f"TypeError: the handler returned a {kind}: {advice}" for kind in ("coroutine", "generator")]


async def test_a_handler_that_cancels_itself_fails(place: Place) -> None:
    app = shoal.App()

    @app.worker("orders")
    async def handle(job: Job) -> None:
        raise asyncio.CancelledError

    await (await place.create("orders")).put(b"")
    assert (await place.run(app))["orders"] == WorkerStatistics(failed=1)


async def test_middleware_of_the_app_is_around_that_of_the_worker(place: Place) -> None:
    app, trace = shoal.App(), []

    @app.middleware
    async def outer(job: Job, call_next: CallNext) -> None:
        trace.append("outer")
        try:
            await call_next(job)
        except ValueError:
            trace.append("seen")
            raise

    @app.middleware
    async def second(job: Job, call_next: CallNext) -> None:
        trace.append("second")
        await call_next(job)

    async def own(job: Job, call_next: CallNext) -> None:
        trace.append("own")
        await call_next(job)

    @app.worker("orders", middleware=[own])
    def handle(job: Job) -> None:
        trace.append("handler")
        raise ValueError

    await (await place.create("orders")).put(b"")
    assert (await place.run(app))["orders"].failed == 1
    assert trace == ["outer", "second", "own", "handler", "seen"]


async def test_follow_ups_are_stored_when_the_job_is_done_and_only_then(place: Place) -> None:
    app, mailed = shoal.App(), []

    @app.worker("orders", retry=SOON)
    async def handle(job: Job) -> None:
        job.put(b"mail %d" % job.attempt, queue="mail")
        if job.attempt == 1:
            raise RuntimeError

    @app.worker("mail")
    def send(job: Job) -> None:
        mailed.append(job.payload)

    await place.create("mail")
    await (await place.create("orders")).put(b"book")
    await place.run(app)
    assert mailed == []
    await place.pass_time(PAST_SOON_S)
    await place.run(app)
    assert mailed == [b"mail 2"]


async def test_a_job_whose_follow_up_is_refused_fails(place: Place) -> None:
    app = shoal.App()

    @app.worker("orders")
    async def handle(job: Job) -> None:
        job.put(b"x" * 100, queue="mail", delay=-1)

    await place.create("mail")
    queue = await place.create("orders", attempts_max=1)
    await queue.put(b"book")
    ended = await place.run(app)
    assert ended["orders"].done == 0
    assert (await queue.stats()).messages + (await queue.stats()).dead == 1


async def test_handlers_put_through_the_app_also_from_threads(place: Place) -> None:
    app, got = shoal.App(), []

    @app.worker("orders")
    async def handle(job: Job) -> None:
        await app.queue("mail").put(b"from the loop", key="a")

    @app.worker("parcels")
    def pack(job: Job) -> None:
        app.queue("mail").put_from_thread(b"from a thread", key="a")

    @app.worker("mail")
    async def send(job: Job) -> None:
        got.append(job.payload)

    for name in ("mail", "orders", "parcels"):
        await place.create(name)
    await place.bus.queue("orders").put(b"")
    await place.run(app)
    await place.bus.queue("parcels").put(b"")
    await place.run(app)
    assert got == [b"from the loop", b"from a thread"]


async def test_a_handler_may_end_its_job_itself(place: Place) -> None:
    app = shoal.App()

    @app.worker("orders")
    async def handle(job: Job) -> None:
        if job.payload == b"good":
            await job.done()
            raise ValueError("it changes nothing any more")
        await job.fail("bad", dead=job.payload == b"bad")

    queue = await place.create("orders", attempts_max=1)
    await queue.put_many([b"good", b"bad", b"last attempt"])
    ended = await place.run(app)
    assert (await queue.stats()).messages == 0
    assert [letter.reason for letter in await queue.dead()] == ["bad", "bad"]
    assert ended["orders"] == WorkerStatistics(done=1, dead=2)


async def test_a_lost_job_cancels_its_handler_and_is_no_failure(place: Place) -> None:
    app, trace = shoal.App(), []
    queue = await place.create("orders")

    @app.worker("orders", concurrency=1)
    async def handle(job: Job) -> None:
        if job.payload == b"next":
            trace.append("next")
            return
        await queue.purge()
        await queue.put(b"next", key="b")
        try:
            with contextlib.suppress(shoal.errors.JobLostError):
                await job.extend()  # asks the store now; a worker does so by itself every third of the lease
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            trace.append("cancelled")
            raise

    await queue.put(b"book", key="a")
    ended = await place.run_until(app, lambda: "next" in trace)
    assert trace == ["cancelled", "next"]
    assert ended["orders"] == WorkerStatistics(done=1, lost=1)


async def test_a_key_that_was_lost_and_came_back_waits_for_the_thread_that_still_runs(place: Place) -> None:
    app, overlaps, calls = shoal.App(), Overlaps(), []
    queue = await place.create("orders")
    loop = asyncio.get_running_loop()

    @app.worker("orders", concurrency=4)
    def handle(job: Job) -> None:
        with overlaps.during(job.key):
            calls.append(job.payload)
            if job.payload == b"first":
                again = asyncio.run_coroutine_threadsafe(come_again(), loop)
                again.result()
                time.sleep(0.3)

    async def come_again() -> None:
        await queue.purge()
        await queue.put(b"second", key="a")

    await queue.put(b"first", key="a")
    ended = await place.run_until(app, lambda: calls == [b"first", b"second"])
    assert overlaps.most_of_a_key == 1
    assert ended["orders"] == WorkerStatistics(done=1, lost=1)


async def test_a_stop_lets_running_handlers_finish_and_gives_the_rest_back(place: Place) -> None:
    app, started, finished = shoal.App(), [], []
    other, taken_over = shoal.App(), []
    go_on = asyncio.Event()

    @app.worker("orders", concurrency=2)
    async def handle(job: Job) -> None:
        started.append(job.payload)
        await go_on.wait()
        finished.append(job.payload)

    @other.worker("orders")
    async def handle_elsewhere(job: Job) -> None:
        taken_over.append((job.payload, job.attempt))

    queue = await place.create("orders")
    await queue.put_many([NewMessage(b"%d" % n, b"k%d" % n) for n in range(10)])
    running = asyncio.create_task(app.run(place.bus, signals=False))
    await until(lambda: len(started) == 2)
    app.stop()
    await place.run_until(other, lambda: len(taken_over) == 8)  # while the two still run
    assert not running.done()
    go_on.set()
    assert (await running)["orders"] == WorkerStatistics(done=2)
    assert sorted(finished) == sorted(started)
    assert sorted(taken_over) == sorted((b"%d" % n, 1) for n in range(10) if b"%d" % n not in started)
    assert (await queue.stats()).messages == 0


async def test_after_the_grace_period_handlers_are_cancelled_and_their_jobs_given_back(place: Place) -> None:
    app, seen = shoal.App(), []

    @app.worker("orders")
    async def handle(job: Job) -> None:
        seen.append(job.payload)
        if len(seen) == 1:
            await asyncio.sleep(3600)

    queue = await place.create("orders")
    await queue.put(b"book")
    first = await place.run_until(app, lambda: bool(seen), grace=0.01)
    assert first["orders"] == WorkerStatistics(returned=1)
    assert (await place.run(app))["orders"] == WorkerStatistics(done=1)
    assert seen == [b"book", b"book"]
    assert await queue.dead() == []


async def test_the_job_of_a_handler_that_keeps_its_cancellation_to_itself_is_given_back(place: Place) -> None:
    """It was done, and the rest of its work was lost."""
    app, seen = shoal.App(), []

    @app.worker("orders")
    async def handle(job: Job) -> None:
        seen.append(job.payload)
        if len(seen) == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    queue = await place.create("orders")
    await queue.put(b"book")
    first = await place.run_until(app, lambda: bool(seen), grace=0.01)
    assert first["orders"] == WorkerStatistics(returned=1)
    assert (await place.run(app))["orders"] == WorkerStatistics(done=1)


async def test_a_second_stop_does_not_wait(place: Place) -> None:
    app, started = shoal.App(), asyncio.Event()

    @app.worker("orders")
    async def handle(job: Job) -> None:
        started.set()
        await asyncio.sleep(3600)

    await (await place.create("orders")).put(b"book")
    running = asyncio.create_task(app.run(place.bus, signals=False, grace=3600))
    await started.wait()
    app.stop()
    app.stop(now=True)
    assert (await running)["orders"] == WorkerStatistics(returned=1)


async def test_keys_of_threads_that_do_not_end_are_not_given_back(place: Place) -> None:
    app, release = shoal.App(), threading.Event()
    started = threading.Event()

    @app.worker("orders")
    def handle(job: Job) -> None:
        started.set()
        release.wait()

    queue = await place.create("orders")
    await queue.put(b"book", key="a")
    try:
        await place.run_until(app, started.is_set, grace=0.01)
        assert [status.state for status in await queue.keys()] == ["held"]
    finally:
        release.set()


async def test_more_delayed_messages_than_one_turn_makes_ready_are_handled(place: Place) -> None:
    app, seen = shoal.App(), []

    @app.worker("orders")
    async def handle(job: Job) -> None:
        seen.append(job.payload)

    queue = await place.create("orders")
    await queue.put_many([NewMessage(b"%d" % n, b"k", delay=0.05) for n in range(150)])
    await place.pass_time(0.1)
    await place.run_until(app, lambda: len(seen) == 150)
    assert seen == [b"%d" % n for n in range(150)]


async def test_the_queue_refuses_as_a_store_does(place: Place) -> None:
    queue = await place.create("orders", messages_max=2)
    await queue.put(b"a", key="k", id="1")
    with pytest.raises(AlreadyAcceptedError):
        await queue.put(b"a", key="k", id="1")
    await queue.put(b"b", key="k")
    with pytest.raises(QueueFullError):
        await queue.put(b"c", key="k")
    assert [message.payload for message in await queue.peek("k")] == [b"a", b"b"]


async def test_queues_and_concurrency_can_be_chosen(place: Place) -> None:
    app, overlaps = shoal.App(), Overlaps()

    @app.worker("orders", concurrency=8)
    async def handle(job: Job) -> None:
        with overlaps.during(job.key):
            await asyncio.sleep(0.002)

    @app.worker("mail")
    async def send(job: Job) -> None:
        raise AssertionError

    orders, mail = await place.create("orders"), await place.create("mail")
    await orders.put_many([b"%d" % n for n in range(20)])
    await mail.put(b"")
    left = 20

    @app.middleware
    async def count(job: Job, call_next: CallNext) -> None:
        nonlocal left
        await call_next(job)
        left -= 1

    ended = await place.run_until(app, lambda: left == 0, queues=["orders"], concurrency=2)
    assert ended == {"orders": WorkerStatistics(done=20)}
    assert overlaps.most == 2
    assert (await mail.stats()).messages == 1


async def test_an_app_can_run_again_but_not_twice_at_a_time(place: Place) -> None:
    app = shoal.App()

    @app.worker("orders")
    async def handle(job: Job) -> None:
        with pytest.raises(ConfigError, match="runs already"):
            await app.run(place.bus)

    await (await place.create("orders")).put(b"")
    assert (await place.run(app))["orders"].done == 1
    await place.bus.queue("orders").put(b"")
    assert (await place.run(app))["orders"].done == 1
