"""Work beside an event loop in the simulator: it takes seeded time, and no thread runs."""

from __future__ import annotations

import asyncio
import threading
from random import Random

import pytest
from tests.lab.sim.machine import Machine

from shoal.filters.index import Index
from shoal.filters.language import parse
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.scenario import FaultTargets, Scenario
from shoal.lab.sim.world.background import SimBackground, no_threads
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.loop import THREAD_S
from shoal.lab.sim.world.process import Process

TEN = [parse(f"a = {number}") for number in range(10)]


def filled(machine: Machine, parts: int) -> Index:
    """An index of some segments."""
    index = Index(SimBackground(machine.loop))
    for part in range(parts):
        index.insert_many(range(10 * part, 10 * part + 10), TEN)
    return index


def test_an_index_is_merged_in_a_later_turn() -> None:
    machine = Machine()

    async def main() -> tuple[int, int]:
        index = filled(machine, 3)
        assert index.begin_settling()
        before = index.parts
        assert not index.begin_settling(), "a merge runs"
        await asyncio.sleep(THREAD_S[1] + 0.002)
        assert sorted(index.match({"a": 4}).tolist()) == [4, 14, 24]
        return before, index.parts

    with no_threads():
        assert machine.result_of(main()) == (3, 1)


def test_a_process_that_waits_for_a_merge_does_it_at_once() -> None:
    machine = Machine()

    async def main() -> int:
        index = filled(machine, 8)  # a merge of these has begun
        index.remove(4)
        assert index.parts == 8
        index.settle()
        assert sorted(index.match({"a": 4}).tolist()) == [*range(14, 80, 10)]
        await asyncio.sleep(1.0)  # the turn for which it was meant does nothing
        return index.parts

    with no_threads():
        assert machine.result_of(main()) == 1


def test_waiting_for_work_that_no_process_does_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no process does"):
        SimBackground(Machine().loop).wait(threading.Condition())


class Threading(Scenario):
    """A process that starts a thread, behind the back of the simulator."""

    safety_s = calm_s = 0.5

    def draw_faults(self, rng: Random) -> FaultOptions:
        return FaultOptions()

    def build(self, rng: Random) -> FaultTargets:
        self.participant("index", "index", self.merge)
        return FaultTargets((), (), ())

    async def merge(self, process: Process) -> None:
        index = Index()
        for part in range(8):
            index.insert_many(range(10 * part, 10 * part + 10), TEN)

    def quiet(self) -> bool:
        return True

    def judge(self) -> Verdict:
        return Verdict()


def test_a_run_in_which_a_process_starts_a_thread_fails() -> None:
    (violation,) = Threading(1).execute().verdict.violations
    assert "starts the thread shoal-merge" in violation
    thread = threading.Thread(target=int)
    thread.start()  # after the run, threads are allowed again
    thread.join()
