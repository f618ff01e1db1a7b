"""Declaring workers: what is refused, and what the backoff is."""

from __future__ import annotations

from typing import Any

import pytest

import shoal
from shoal.errors import ConfigError, QueueNameError, ShoalError
from shoal.queues.job import Job


async def handle(job: Job) -> None:
    """A handler."""


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": 4097}, "concurrency=4097"),
        ({"concurrency": 2.5}, "concurrency=2.5"),
        ({"concurrency": "4"}, "concurrency='4'"),
        ({"concurrency": True}, "concurrency=True"),
        ({"timeout": "30"}, "timeout='30'"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"concurrency": 4000, "prefetch": 97}, "prefetch=97"),
        ({"prefetch": 0.5}, "prefetch=0.5"),
        ({"timeout": 0}, "timeout=0"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"retry": 5}, "retry=5"),
        ({"middleware": [lambda job, call_next: None]}, "not an async function"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        shoal.App().worker("orders", **options)(handle)


def test_names_and_functions_are_checked() -> None:
    app = shoal.App()
    with pytest.raises(QueueNameError):
        app.worker("or ders")
    with pytest.raises(ConfigError, match="does not take 1 argument"):
        app.worker("orders")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match=r"async def middleware\(job, call_next\)"):
        app.middleware(handle)  # type: ignore[type-var]
    app.worker("orders")(handle)
    with pytest.raises(ConfigError, match="has a worker already"):
        app.worker("orders")
    with pytest.raises(ConfigError, match=r"no worker for queue mail: choose from orders"):
        app.chosen_workers(["mail"])
    with pytest.raises(TypeError):
        shoal.App("shoal://somewhere", connect=lambda: None)  # type: ignore[arg-type, return-value]


def test_a_worker_fetches_no_more_than_a_consumer_can_hold() -> None:
    """With concurrency=3000 the worker was refused when it ran, for a max_in_flight that its author had not given."""
    app = shoal.App()
    app.worker("a", concurrency=3000)(handle)
    app.worker("b", concurrency=4000, prefetch=96)(handle)
    app.worker("c", concurrency=16)(handle)
    assert [worker.max_in_flight for worker in app.workers.values()] == [4096, 4096, 32]


@pytest.mark.parametrize("grace", [-1.0, float("nan")])
async def test_an_impossible_grace_period_is_refused(grace: float) -> None:
    app = shoal.App()
    app.worker("orders")(handle)
    with pytest.raises(ConfigError, match="grace is"):
        await app.run(grace=grace)


def test_the_decorated_function_stays_what_it_is() -> None:
    assert shoal.App().worker("orders")(handle) is handle


async def test_an_app_without_workers_does_not_run() -> None:
    with pytest.raises(ConfigError, match="has no workers"):
        await shoal.App().run()


def test_put_from_thread_needs_an_app_that_runs() -> None:
    with pytest.raises(ShoalError, match="does not run"):
        shoal.App().queue("orders").put_from_thread(b"")


def test_the_backoff_doubles_up_to_its_longest_pause() -> None:
    backoff = shoal.Backoff(1, 60, jitter=0)
    assert [backoff.pause_s("1-1", attempt) for attempt in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.pause_s("1-1", 10_000) == 60


def test_the_jitter_spreads_the_pauses_of_different_messages() -> None:
    pauses = [shoal.Backoff(10, 60, jitter=0.5).pause_s(f"1-{n}", 1) for n in range(1000)]
    assert 5 <= min(pauses) < 5.1
    assert 9.9 < max(pauses) <= 10
    assert 7.3 < sum(pauses) / 1000 < 7.7


@pytest.mark.parametrize("arguments", [(-1, 5), (5, 1), (1, float("inf")), (float("nan"), 5), (1, 5, 2), (1, 1e12)])
def test_an_impossible_backoff_is_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        shoal.Backoff(*arguments)


@pytest.mark.parametrize("after", [-1, float("inf"), float("nan"), 1e12])
def test_an_impossible_retry_is_refused(after: float) -> None:
    with pytest.raises(ValueError, match="seconds from 0"):
        shoal.Retry(after=after)


def test_a_retry_with_a_number_as_its_reason_is_refused() -> None:
    """`Retry(5)` came again at once, because its first argument is the reason."""
    wrong: Any = 5
    with pytest.raises(TypeError, match=r"Retry\(after=5\)"):
        shoal.Retry(wrong)
    assert shoal.Retry("busy", after=5).after == 5
