"""Ctrl-C around a session: held back while Java starts, quiet, and no Java stays."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.pipeline import session as sessions
from shoal.pipeline.spark import gateway as gateways
from shoal.pipeline.spark import interrupts
from shoal.pipeline.spark.error_translation import explained
from shoal.pipeline.spark.gateway import Gateway


@pytest.fixture(autouse=True)
def _handled_by_python() -> Iterator[None]:
    """The session that tests share has a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_held_back_until_the_block_is_done() -> None:
    done: list[str] = []

    def start() -> None:
        with interrupts.held_back():
            press()
            done.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_not_held_back_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "HELD_S_MAX", -1.0)

    def hang() -> None:
        with interrupts.held_back():
            press()
            pytest.fail("it goes on")

    with pytest.raises(KeyboardInterrupt):
        hang()


def test_a_handler_of_the_application_stays_in_force() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with interrupts.handler_kept():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupts.held_back():
            press()
        with interrupts.cancelling(context=SimpleNamespace()):  # type: ignore[arg-type]
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT] * 2


def test_an_interrupt_cancels_the_jobs_first() -> None:
    done: list[str] = []
    context: Any = SimpleNamespace(cancelAllJobs=lambda: done.append("cancelled"))
    with pytest.raises(KeyboardInterrupt), interrupts.cancelling(context):
        press()
    assert "cancelled" in done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_comes_of_an_interrupt_is_one() -> None:
    def collect() -> None:
        try:
            press()
        finally:
            raise RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation of all jobs")

    with pytest.raises(KeyboardInterrupt), explained(heap_mb=1):
        collect()
    with pytest.raises(RuntimeError, match="another"), explained(heap_mb=1):
        raise RuntimeError("another")


def test_py4j_is_quiet_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()

    def say(path: str) -> None:
        root.handle(root.makeRecord("root", logging.ERROR, path, 1, f"from {path}", (), None))

    with interrupts.quiet_py4j():
        say("/site-packages/py4j/java_gateway.py")
        say("/somewhere/else.py")
        logging.getLogger("py4j.clientserver").error("from its own")
    say("/site-packages/py4j/later.py")
    assert [each.getMessage() for each in caplog.records] == [
        "from /somewhere/else.py",
        "from /site-packages/py4j/later.py",
    ]


def child_that_stays() -> subprocess.Popen[bytes]:
    """A process that does not end when its standard input does."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.PIPE)


@pytest.mark.spark
@pytest.mark.parametrize("interrupted", [False, True])
def test_java_is_ended_for_certain(interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "HURRY_TIMEOUT_S", 0.05)
    process = child_that_stays()

    def wait(timeout: float | None = None) -> int:
        if interrupted and timeout is not None:
            press()
        return process.wait(timeout)

    java = SimpleNamespace(stdin=process.stdin, poll=process.poll, kill=process.kill, wait=wait)
    ended: list[str] = []
    ends = {name: partial(ended.append, name) for name in ("shutdown", "shutdown_callback_server")}
    relay: Any = SimpleNamespace(close=lambda: None)
    made = Gateway(SimpleNamespace(proc=java, **ends), relay)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            made.close(hurry=True)
    else:
        made.close(hurry=True)
        assert ended == [*ends]
    assert process.poll() == -signal.SIGKILL


@pytest.mark.spark
def test_an_interrupt_while_java_starts_ends_it_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    closed: list[bool] = []

    def launch(settings: Mapping[str, str]) -> Any:
        press()  # Java is starting, and cannot be stopped yet
        return SimpleNamespace(close=lambda hurry: closed.append(hurry))

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(sessions, "_running", [])
    monkeypatch.setattr(Gateway, "launch", launch)
    with pytest.raises(KeyboardInterrupt), sessions.running():
        pass
    assert closed == [True]
