"""What tests cost and when they ran: CPU seconds by module and by test, with all processes that the tests started.

Owns the options `--cost` and `--schedule` of the suite. On a shared machine CPU time says more than wall time. A
process counts while it is below the worker, and after something there has waited for it: a daemon that has left its
parent does not count.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

MODULES: Final = 60
"""How many modules the table has."""
TESTS: Final = 60
"""How many tests the other table has."""
_KEY: Final = "cost"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Run(NamedTuple):
    """When and where a test ran, and what it cost."""

    begin_s: float
    end_s: float
    cpu_s: float
    worker: str
    test: str


class CpuCost:
    """Measures tests in a worker, and sums and prints them in the process that has started it. Without
    workers, one process does both. `schedule` is a file that gets a line of tab-separated values for each test: seconds
    from the start of the run to its begin and to its end, CPU seconds, worker, test."""

    def __init__(self, measures: bool, schedule: str = "") -> None:
        self._measures = measures
        self._schedule = schedule
        self._began_s = time.time()
        self._started: dict[str, tuple[float, float]] = {}
        self._runs: list[Run] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._measures:
            self._started[nodeid] = time.time(), cpu_s(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown" and item.nodeid in self._started:
            begin_s, before = self._started.pop(item.nodeid)
            worker = os.environ.get("PYTEST_XDIST_WORKER", "")
            cost = cpu_s(os.getpid()) - before
            report.user_properties.append((_KEY, (begin_s, time.time(), cost, worker, item.nodeid)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found: Any = dict(report.user_properties).get(_KEY) if report.when == "teardown" else None
        if found is not None:
            self._runs.append(Run(*found))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        modules: Counter[str] = Counter()
        tests: Counter[str] = Counter()
        for run in self._runs:
            modules[run.test.partition("::")[0]] += run.cpu_s  # type: ignore[assignment]
            tests[run.test] += run.cpu_s  # type: ignore[assignment]
        terminalreporter.section(f"CPU seconds: {sum(modules.values()):.0f}")
        for name, cost in (*modules.most_common(MODULES), *tests.most_common(TESTS)):
            terminalreporter.write_line(f"{cost:7.1f}  {name}")
        if self._schedule:
            lines = (
                f"{run.begin_s - self._began_s:.2f}\t{run.end_s - self._began_s:.2f}\t{run.cpu_s:.2f}"
                f"\t{run.worker}\t{run.test}\n"
                for run in sorted(self._runs)
            )
            Path(self._schedule).write_text("".join(lines), encoding="utf-8")


def cpu_s(process: int) -> float:
    """CPU seconds of a process and of all below it; 0 if it has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
            ticks = sum(map(int, stat.read().rpartition(")")[2].split()[11:15]))
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return 0.0
    return ticks / _TICKS_PER_S + sum(cpu_s(child) for thread in threads for child in _children(process, thread))


def _children(process: int, thread: str) -> list[int]:
    try:
        with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as children:
            return [int(child) for child in children.read().split()]
    except OSError:  # it has ended
        return []
