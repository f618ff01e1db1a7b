"""What tests cost: CPU seconds by module and by test, with all processes that the tests started.

Owns the option `--cost` of the suite. On a shared machine CPU time says more than wall time. A process counts while it
is below the worker, and after something there has waited for it: a daemon that has left its parent does not count.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest

MODULES: Final = 60
"""How many modules the table has."""
TESTS: Final = 60
"""How many tests the other table has."""
_KEY: Final = "cpu_s"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class CpuCost:
    """Measures tests in a worker, and sums and prints them in the process that has started it. Without
    workers, one process does both."""

    def __init__(self, measures: bool) -> None:
        self._measures = measures
        self._before: dict[str, float] = {}
        self._modules: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._measures:
            self._before[nodeid] = cpu_s(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown" and item.nodeid in self._before:
            report.user_properties.append((_KEY, cpu_s(os.getpid()) - self._before.pop(item.nodeid)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = dict(report.user_properties).get(_KEY) if report.when == "teardown" else None
        if isinstance(cost, float):
            self._modules[report.nodeid.partition("::")[0]] += cost  # type: ignore[assignment]
            self._tests[report.nodeid] += cost  # type: ignore[assignment]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"CPU seconds: {sum(self._modules.values()):.0f}")
        for name, cost in (*self._modules.most_common(MODULES), *self._tests.most_common(TESTS)):
            terminalreporter.write_line(f"{cost:7.1f}  {name}")


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
