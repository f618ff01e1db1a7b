"""A supervised child: restarted when it exits, with growing delays, unless it is held."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from shoal.cluster.child import Child, Restarts
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.process import start
from shoal.errors import ClusterError, NotRunningError

TIMING = Timing(start_timeout_s=10, stop_grace_s=5, restart_pause_s_min=0.02, restart_pause_s_max=0.1, crashing_after=3)
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_pauses_grow_with_crashes_in_a_row_up_to_a_limit() -> None:
    restarts = Restarts(Timing(restart_pause_s_min=1, restart_pause_s_max=5, stable_after_s=10, crashing_after=3))
    assert [restarts.crashed(0.0) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert restarts.crashing


def test_a_stable_life_makes_the_next_crash_the_first() -> None:
    restarts = Restarts(Timing(restart_pause_s_min=1, restart_pause_s_max=5, stable_after_s=10, crashing_after=3))
    for _ in range(4):
        restarts.crashed(0.0)
    assert restarts.crashed(10.0) == 1
    assert not restarts.crashing


def test_a_thousand_crashes_do_not_overflow() -> None:
    restarts = Restarts(Timing())
    assert [restarts.crashed(0.0) for _ in range(2000)][-1] == Timing().restart_pause_s_max


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Child]]:
    """Create children that are stopped after the test."""
    made: list[Child] = []

    def make_child(command: list[str] = SLEEP, timing: Timing = TIMING, ready: bool = True) -> Child:
        async def is_ready() -> bool:
            return ready

        log = tmp_path / "log"
        child = Child("c1", "server", log, timing, lambda: start(command, log), is_ready, lambda: None)
        made.append(child)
        return child

    yield make_child
    for child in made:
        await child.stop()
        assert child.process is None or child.process.exit_code is not None


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


async def test_a_killed_child_is_started_again(make: Callable[..., Child]) -> None:
    child = make()
    await child.start()
    first = child.status()
    await child.kill()
    await until(lambda: child.status().state == "running" and child.status().restarts > 0)
    again = child.status()
    assert (first.restarts, again.restarts) == (0, 1)
    assert again.pid not in (None, first.pid)
    assert again.last_exit == "killed by SIGKILL"


async def test_a_held_child_stays_down_until_it_is_released(make: Callable[..., Child]) -> None:
    child = make()
    await child.start()
    child.hold()
    await child.kill()
    await until(lambda: child.status().state == "waiting")
    await asyncio.sleep(5 * TIMING.restart_pause_s_min)
    assert child.status().pid is None
    assert child.status().held
    with pytest.raises(NotRunningError):
        await child.kill()
    child.release()
    await until(lambda: child.status().state == "running")


async def test_a_restart_does_not_wait_for_the_pause(make: Callable[..., Child]) -> None:
    child = make(timing=Timing(restart_pause_s_min=600, restart_pause_s_max=600))
    await child.start()
    await child.restart()
    assert child.status().restarts == 1
    child.hold()
    await child.kill()
    await child.restart()
    assert child.status().restarts == 2
    assert not child.status().held


async def test_a_child_that_crashes_again_and_again_is_reported_and_still_tried(
    make: Callable[..., Child],
) -> None:
    child = make([sys.executable, "-c", "raise SystemExit(7)"])
    await child.start()
    await until(lambda: child.status().crashing)
    await until(lambda: child.status().restarts >= 4)
    assert child.status().last_exit == "exit status 7"


async def test_a_child_can_be_paused_and_goes_on(make: Callable[..., Child]) -> None:
    child = make()
    await child.start()
    child.pause()
    assert child.status().state == "paused"
    child.resume()
    assert child.status().state == "running"


async def test_a_first_start_that_fails_says_what_the_child_said(make: Callable[..., Child]) -> None:
    child = make([sys.executable, "-c", "print('my reason'); raise SystemExit(1)"], ready=False)
    with pytest.raises(ClusterError, match=r"(?s)exited during its start \(exit status 1\).*my reason"):
        await child.start()


async def test_a_child_that_never_gets_ready_is_ended(make: Callable[..., Child]) -> None:
    child = make(timing=Timing(start_timeout_s=0.1), ready=False)
    with pytest.raises(ClusterError, match=r"not ready after 0\.1 s"):
        await child.start()
    assert child.status().pid is None


async def test_a_program_that_is_not_there_is_an_error(make: Callable[..., Child]) -> None:
    with pytest.raises(FileNotFoundError):
        await make(["/nonexistent/program"]).start()
