"""The event loop on virtual time: its clock and turns behave like uvloop's, its pauses and crashes like a machine's."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from tests.lab.sim.machine import Machine

from shoal.lab.sim import FaultOptions
from shoal.lab.sim.world.loop import THREAD_S, TIMERS_CANCELLED_MIN, TURN_S

DRIFTING = FaultOptions(clock_drift_max=0.05, clock_offset_s=(100.0, 900.0))
ROUNDED = (-1.0, 0.0, 0.000_4, 0.000_6, 0.001, 0.001_4, 0.001_6, 0.007_4, 0.25, 1.999_6, 80_000.0)


# -- the clock --------------------------------------------------------------------------------------------------------


def test_the_clock_shows_whole_milliseconds_of_the_machine_and_stands_still_in_a_turn() -> None:
    machine = Machine(options=DRIFTING)
    shown: list[float] = []

    async def main() -> None:
        for _ in range(500):
            shown.append(machine.loop.time())
            assert machine.loop.time() == shown[-1]
            assert 0.0 <= machine.node.clock() - shown[-1] < 0.001 + TURN_S
            await asyncio.sleep(0)
        await asyncio.sleep(1.0)
        shown.append(machine.loop.time())

    machine.begin(main())
    machine.run_for(3.0)
    assert machine.failures == []
    assert len(shown) == 501
    assert shown == sorted(shown)
    assert all((time * 1000).is_integer() or abs(time * 1000 - round(time * 1000)) < 1e-6 for time in shown)
    assert 0.999 <= shown[-1] - shown[-2] <= 1.002


def test_timers_follow_the_rate_of_the_machines_clock() -> None:
    lengths = set()
    for seed in range(5):
        machine = Machine(seed, DRIFTING)
        ended: list[float] = []
        machine.process.after(0.0, machine.loop.call_later, 100.0, lambda: ended.append(machine.world.now))  # noqa: B023
        machine.run_for(200.0)
        lengths.add(round(ended[0], 3))
        assert 100 / 1.05 - 0.01 < ended[0] < 100 / 0.95 + 0.01
    assert len(lengths) == 5


def test_delays_are_rounded_as_uvloop_rounds_them() -> None:
    async def real(delay_s: float) -> int:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(delay_s, print)
        timer.cancel()
        return round((timer.when() - loop.time()) * 1000) if hasattr(timer, "when") else 0

    async def simulated(delay_s: float) -> int:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(delay_s, print)
        timer.cancel()
        return round((timer.when() - loop.time()) * 1000) if timer.when() else 0

    for delay_s in ROUNDED:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            # The loop's clock can only advance between the two readings, which makes a difference smaller.
            expected = max(runner.run(real(delay_s)) for _ in range(20))
        assert Machine(options=DRIFTING).result_of(simulated(delay_s)) == expected, delay_s


@pytest.mark.parametrize(
    ("delay_s", "waited_ms"), [(-1.0, 0), (0.0, 0), (0.000_4, 0), (0.000_6, 1), (0.001_4, 1), (0.001_6, 2), (2.0, 2000)]
)
def test_a_timer_fires_when_the_clock_shows_its_millisecond(delay_s: float, waited_ms: int) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        fired: asyncio.Future[float] = loop.create_future()
        began = loop.time()
        loop.call_at(began + delay_s, lambda: fired.set_result(loop.time()))
        return round((await fired - began) * 1000)

    for seed in range(5):
        assert Machine(seed, DRIFTING).result_of(main()) == waited_ms


# -- turns ------------------------------------------------------------------------------------------------------------


def test_callbacks_that_a_turn_adds_run_in_the_next_turn_and_timers_before_them() -> None:
    machine = Machine()
    order: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def first() -> None:
            order.append("first")
            loop.call_soon(order.append, "added")

        loop.call_soon(first)
        loop.call_soon(order.append, "second")
        cancelled = loop.call_soon(order.append, "cancelled")
        cancelled.cancel()
        assert cancelled.cancelled()
        loop.call_soon_threadsafe(order.append, "third")

    machine.result_of(main())
    assert order == ["first", "second", "third", "added"]


def test_a_turn_costs_time_so_a_task_that_spins_lets_timers_run() -> None:
    machine = Machine()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.call_later(0.1, over.set)
        turns = 0
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)
        return turns

    turns = machine.result_of(main())
    assert turns == pytest.approx(0.1 / TURN_S, rel=0.02)


def test_two_machines_that_spin_go_on_side_by_side() -> None:
    machine = Machine()
    other = machine.processes.new(machine.network.node("other"))
    turns = {"machine": 0, "other": 0}

    async def spin(name: str) -> None:
        while True:
            turns[name] += 1
            await asyncio.sleep(0)

    machine.begin(spin("machine"))
    other.begin(spin("other"))
    machine.run_for(0.5)
    assert turns["machine"] == pytest.approx(turns["other"], rel=0.01)
    assert turns["machine"] == pytest.approx(0.5 / TURN_S, rel=0.02)


def test_contexts_and_running_loop_are_those_of_the_task() -> None:
    machine = Machine()
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="unset")
    seen: list[str] = []

    async def child(own: str) -> None:
        assert asyncio.get_running_loop() is machine.loop
        name.set(own)
        await asyncio.sleep(0.01)
        seen.append(name.get())

    async def main() -> None:
        await asyncio.gather(child("a"), child("b"))
        seen.append(name.get())

    machine.result_of(main())
    assert seen == ["a", "b", "unset"]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_a_world_runs_inside_a_real_loop_and_leaves_it_running() -> None:
    async def real() -> None:
        outer = asyncio.get_running_loop()
        machine = Machine()
        machine.result_of(asyncio.sleep(1.0), 2.0)
        assert asyncio.get_running_loop() is outer

    asyncio.run(real())


def test_turns_do_not_nest() -> None:
    machine = Machine()
    refusals: list[str] = []

    async def main() -> None:
        try:
            machine.loop.run(print)
        except RuntimeError as error:
            refusals.append(str(error))

    machine.result_of(main())
    assert refusals == ["a turn of this loop is under way"]


# -- pauses and crashes -----------------------------------------------------------------------------------------------


def test_a_paused_machine_runs_nothing_and_catches_up() -> None:
    machine = Machine()
    ran: list[tuple[str, float]] = []

    def note(name: str) -> None:
        ran.append((name, machine.world.now))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for name, delay_s in (("third", 3.0), ("first", 1.0), ("second", 2.0), ("late", 20.0)):
            loop.call_later(delay_s, note, name)
        while True:
            await asyncio.sleep(0.4)
            note("tick")

    machine.begin(main())
    machine.run_for(0.5)
    machine.node.pause()
    ran.clear()
    machine.run_for(9.5)
    assert ran == []
    machine.node.resume()
    machine.run_for(0.01)
    assert [name for name, _ in ran] == ["first", "second", "third", "tick"], "the task is woken one turn later"
    assert all(10.0 < time < 10.001 for _, time in ran)
    ran.clear()
    machine.run_for(11.0)
    assert [name for name, _ in ran].count("tick") == 27
    assert [time for name, time in ran if name == "late"] == [pytest.approx(20.0, abs=0.003)]


def test_a_spinning_task_stands_still_while_paused() -> None:
    machine = Machine()
    turns = 0

    async def main() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    machine.begin(main())
    machine.run_for(0.1)
    machine.node.pause()
    before = turns
    machine.run_for(5.0)
    assert turns == before
    machine.node.resume()
    machine.run_for(0.1)
    assert turns > before


async def _wait_for_a_timer() -> None:
    await asyncio.sleep(1.0)


async def _wait_for_a_future_of_its_own() -> None:
    await asyncio.get_running_loop().create_future()


async def _wait_for_each_other() -> None:
    async def inner(other: asyncio.Future[asyncio.Task[None]]) -> None:
        await asyncio.wait([await other])

    unknown: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
    first = asyncio.create_task(inner(unknown))
    unknown.set_result(asyncio.create_task(asyncio.wait_for(first, None)))
    del unknown
    await first


async def _spin() -> None:
    for _ in range(10**9):
        await asyncio.sleep(0)


async def _hold_a_lock() -> None:
    lock = asyncio.Lock()
    async with lock, asyncio.timeout(100.0):
        await lock.acquire()


@pytest.mark.parametrize(
    "wait", [_wait_for_a_timer, _wait_for_a_future_of_its_own, _wait_for_each_other, _spin, _hold_a_lock]
)
def test_a_crash_runs_no_finally_and_nothing_later(wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
    machine = Machine()
    ran: list[str] = []

    async def task() -> None:
        try:
            await wait()
            ran.append("went on")
        except BaseException as error:
            ran.append(f"raised {error!r}")
            raise
        finally:
            ran.append("finally")

    async def main() -> None:
        background = {asyncio.create_task(task())}
        background.clear()
        asyncio.get_running_loop().call_later(2.0, ran.append, "timer")
        asyncio.get_running_loop().call_soon(ran.append, "began")

    machine.begin(main())
    machine.run_for(0.5)
    assert ran == ["began"]
    loop = machine.loop
    machine.node.crash()
    gc.collect()
    machine.run_for(1.0)
    machine.node.restart()
    machine.process = machine.processes.new(machine.node)
    machine.begin(asyncio.sleep(100.0))
    machine.run_for(20.0)
    gc.collect()
    assert ran == ["began"]
    assert loop.is_closed()
    assert not loop.is_running()
    assert machine.loop.is_running()
    assert machine.failures == []


def test_a_process_that_crashes_itself_in_a_turn_gets_no_further() -> None:
    machine = Machine()
    ran: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(machine.node.crash)
        loop.call_soon(ran.append, "in the same turn")
        await asyncio.sleep(0)
        ran.append("in the next turn")

    machine.begin(main())
    machine.run_for(1.0)
    gc.collect()
    assert ran == []


def test_nothing_of_a_dead_process_can_be_started() -> None:
    machine = Machine()
    machine.begin(asyncio.sleep(10.0))
    machine.run_for(1.0)
    ran: list[str] = []
    machine.node.crash()
    machine.loop.call_soon(ran.append, "soon")
    machine.loop.call_later(0.1, ran.append, "later")
    machine.loop.run(ran.append, "run")
    machine.process.stop()
    machine.run_for(1.0)
    assert ran == []


def test_the_end_of_a_run_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    machine = Machine()

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1.0)
            finally:
                await asyncio.sleep(1.0)

    async def tidy() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            await asyncio.wait_for(asyncio.sleep(1.0), 1.0)

    async def both() -> None:
        await asyncio.gather(stubborn(), tidy())

    machine.begin(both())
    machine.run_for(10.0)
    machine.process.loop.discard()
    machine.processes.close()
    gc.collect()
    assert machine.failures == []
    assert [str(found.message) for found in recwarn] == []


# -- threads ----------------------------------------------------------------------------------------------------------


def test_work_for_a_thread_runs_at_once_and_completes_later() -> None:
    machine = Machine()
    order: list[tuple[str, float]] = []

    def note(name: str) -> float:
        order.append((name, machine.world.now))
        return machine.world.now

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(note, "next turn")
        note("before")
        ended = await asyncio.to_thread(note, "work")
        assert ended == order[1][1]
        note("after")

    machine.result_of(main())
    assert [name for name, _ in order] == ["before", "work", "next turn", "after"]
    assert order[0][1] == order[1][1]
    took = order[3][1] - order[1][1]
    assert THREAD_S[0] - 0.001 <= took <= THREAD_S[1] + 0.002


def test_an_exception_in_a_thread_arrives_later_and_a_cancelled_wait_is_harmless() -> None:
    machine = Machine()

    def fail() -> None:
        raise OSError("disk full")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = machine.world.now
        with pytest.raises(OSError, match="disk full"):
            await asyncio.to_thread(fail)
        took = machine.world.now - began
        wait = asyncio.create_task(asyncio.to_thread(fail))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wait.cancel()
        await asyncio.wait([wait])
        assert wait.cancelled()
        await asyncio.sleep(1.0)
        assert await loop.run_in_executor(None, int, "7") == 7
        return took

    assert machine.result_of(main()) > 0.0


# -- seeds ------------------------------------------------------------------------------------------------------------


def busy_run(seed: int) -> tuple[list[tuple[float, str]], int]:
    """The actions and times of tasks that race for a lock, with sleeps and threads in between."""
    machine = Machine(seed, DRIFTING)
    seen: list[tuple[float, str]] = []

    async def worker(name: str, lock: asyncio.Lock) -> None:
        random = machine.world.rng(name)
        while True:
            await asyncio.sleep(random.random() * 0.01)
            async with lock:
                await asyncio.to_thread(seen.append, (machine.loop.time(), name))

    async def main() -> None:
        lock = asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(worker(f"worker {number}", lock))

    machine.begin(main())
    machine.run_for(1.0)
    machine.node.pause()
    machine.run_for(0.5)
    machine.node.resume()
    machine.run_for(1.0)
    assert machine.failures == []
    return seen, machine.world.events_run


def test_a_seed_is_one_history_and_another_seed_another() -> None:
    assert busy_run(7) == busy_run(7)
    assert len(busy_run(7)[0]) > 50
    assert busy_run(7)[0] != busy_run(8)[0]


# -- failures ---------------------------------------------------------------------------------------------------------


def test_an_exception_in_a_callback_is_a_failure_and_others_go_on() -> None:
    machine = Machine()
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(fail)
        loop.call_soon(ran.append, "next")
        loop.call_later(0.1, fail)
        loop.call_later(0.1, ran.append, "later")
        await asyncio.sleep(1.0)
        ran.append("end")

    machine.begin(main())
    machine.process.after(0.5, fail)
    machine.run_for(2.0)
    assert ran == ["next", "later", "end"]
    assert len(machine.failures) == 3
    assert all("machine" in failure and "ValueError('broken')" in failure for failure in machine.failures)


def test_an_exception_that_ends_the_main_task_is_a_failure_and_a_stop_is_none() -> None:
    machine = Machine()

    async def main() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("broken")

    machine.begin(main())
    machine.run_for(0.5)
    assert machine.failures == []
    machine.run_for(1.0)
    assert machine.failures == ["machine: the process ended with ValueError('broken')"]

    machine = Machine()
    ended: list[float] = []

    async def orderly() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            await asyncio.sleep(0.5)
            ended.append(machine.world.now)

    machine.begin(orderly())
    machine.run_for(1.0)
    machine.process.stop()
    machine.run_for(1.0)
    assert machine.failures == []
    assert ended == [pytest.approx(1.5, abs=0.01)]


def test_an_exception_in_a_task_that_no_code_awaits_is_a_failure() -> None:
    machine = Machine()

    async def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        background = {asyncio.create_task(fail())}
        await asyncio.sleep(1.0)
        background.clear()
        await asyncio.sleep(1.0)

    machine.begin(main())
    machine.run_for(5.0)
    machine.processes.close()
    gc.collect()
    assert len(machine.failures) == 1
    assert "ValueError('broken')" in machine.failures[0]


def test_an_exception_that_code_awaits_is_no_failure() -> None:
    machine = Machine()

    async def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        with pytest.raises(ValueError, match="broken"):
            await asyncio.create_task(fail())
        assert isinstance((await asyncio.gather(fail(), return_exceptions=True))[0], ValueError)

    machine.begin(main())
    machine.run_for(5.0)
    machine.processes.close()
    gc.collect()
    assert machine.failures == []


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_cancelled_timers_do_not_accumulate() -> None:
    machine = Machine()

    async def main() -> None:
        for _ in range(5000):
            async with asyncio.timeout(1000.0):
                await asyncio.sleep(0.001)

    machine.result_of(main())
    assert len(machine.loop._timers) <= 2 * TIMERS_CANCELLED_MIN
    assert len(machine.world._queue) <= 2 * TIMERS_CANCELLED_MIN


def test_cancelling_keeps_the_other_timers_and_their_order() -> None:
    machine = Machine()
    fired: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(1.0 + number / 1000, fired.append, number) for number in range(1000)]
        for number, timer in enumerate(timers):
            if number % 7:
                timer.cancel()
                timer.cancel()
        await asyncio.sleep(3.0)

    machine.result_of(main())
    assert fired == [number for number in range(1000) if not number % 7]


def test_finished_tasks_do_not_accumulate() -> None:
    machine = Machine()

    async def main() -> None:
        for _ in range(5000):
            await asyncio.create_task(asyncio.sleep(0))

    machine.result_of(main())
    assert len(machine.loop._tasks) < 1000
