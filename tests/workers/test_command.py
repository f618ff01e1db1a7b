"""`shoal worker` as real processes on a real store: signals in the middle of jobs, crashes, errors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.queue_store import StoreClient, client_of, store_server
from tests.support.redis_server import RedisServer

from shoal.queues.queue import NewMessage

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0

PROGRAM = """
import asyncio, os, signal, time
from types import SimpleNamespace
import shoal
from tests.support.queue_store import client_of

STORE = SimpleNamespace(host="127.0.0.1", port=int(os.environ["STORE_PORT"]))
app = shoal.App(connect=lambda: client_of(STORE))

def note(word, job):
    with open("trace", "a") as trace:
        trace.write(f"{word} {job.payload.decode()} {job.attempt} {os.getpid()}\\n")

@app.worker("orders", concurrency=8)
async def handle(job):
    note("start", job)
    if job.payload == b"crash" and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(3600 if job.payload == b"slow" else 0.02)
    note("end", job)

@app.worker("threads", concurrency=8)
def handle_in_thread(job):
    note("start", job)
    time.sleep(3600 if job.payload == b"slow" else 0.02)
    note("end", job)
"""


class Folder:
    """A folder with a program, and the commands that run there."""

    def __init__(self, path: Path, store: RedisServer) -> None:
        self.path = path
        self.started: list[asyncio.subprocess.Process] = []
        (path / "jobs.py").write_text(PROGRAM)
        self._environment = {
            **os.environ,
            "STORE_PORT": str(store.port),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "SHOAL_STATE_DIR": str(path / "no-cluster"),
        }
        self._environment.pop("SHOAL_URL", None)

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.cli", "worker", *words),
            cwd=self.path,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self.started.append(process)
        return process

    async def finish(self, process: asyncio.subprocess.Process) -> tuple[int, str, str]:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def run(self, *words: str) -> tuple[int, str, str]:
        return await self.finish(await self.start(*words))

    def trace(self) -> list[tuple[str, str, int, str]]:
        path = self.path / "trace"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(word, payload, int(attempt), pid) for word, payload, attempt, pid in map(str.split, lines)]

    def count(self, word: str) -> int:
        return sum(line[0] == word for line in self.trace())


@pytest.fixture
async def folder(tmp_path: Path, store: RedisServer) -> AsyncIterator[Folder]:
    made = Folder(tmp_path, store)
    yield made
    for process in made.started:
        if process.returncode is None:  # the test has failed
            process.kill()
            await process.wait()


@asynccontextmanager
async def a_queue(
    store: RedisServer, name: str, messages: list[NewMessage], **settings: Any
) -> AsyncIterator[StoreClient]:
    async with client_of(store) as client:
        queue = await client.create(name, **settings)
        try:
            await queue.put_many(messages)
            yield client
        finally:
            await queue.drop()


async def when(condition: Any, process: asyncio.subprocess.Process) -> None:
    """Waits until a condition holds; fails if the process ends before."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            assert process.returncode is None, (await process.communicate())[1].decode()
            await asyncio.sleep(0.01)


def facts_of(out: str) -> dict[str, Any]:
    (line,) = out.splitlines()
    facts: dict[str, Any] = json.loads(line)
    return facts


@pytest.mark.parametrize(("name", "processes"), [("orders", "1"), ("threads", "2")])
async def test_sigterm_in_the_middle_loses_nothing_and_repeats_nothing(
    folder: Folder, store: RedisServer, name: str, processes: str
) -> None:
    messages = [NewMessage(b"%d" % n, b"k%d" % (n % 20)) for n in range(300)]
    async with a_queue(store, name, messages) as client:
        words = ("jobs:app", "--queues", name, "--processes", processes, "--json")
        first = await folder.start(*words)
        await when(lambda: folder.count("end") >= 40, first)
        first.send_signal(signal.SIGTERM)
        status, out, err = await folder.finish(first)
        assert status == 0, err
        done = facts_of(out)["done"]
        assert done == folder.count("end") == folder.count("start")
        stats = await client.queue(name).stats()
        assert (stats.messages, stats.held, stats.consumers) == (300 - done, 0, 0)
        assert 40 <= done < 300
        second = await folder.start(*words)
        await when(lambda: folder.count("end") == 300, second)
        second.send_signal(signal.SIGINT)
        status, out, err = await folder.finish(second)
        assert status == 0, err
        assert facts_of(out)["done"] + done == 300
        started = Counter(payload for word, payload, _, _ in folder.trace() if word == "start")
        assert started == Counter(f"{n}" for n in range(300))
        assert {attempt for _, _, attempt, _ in folder.trace()} == {1}
        assert (await client.queue(name).stats()).messages == 0
        by_key = [[int(p) for word, p, _, _ in folder.trace() if word == "end" and int(p) % 20 == k] for k in range(20)]
        assert all(payloads == sorted(payloads) for payloads in by_key)


@pytest.mark.parametrize("name", ["orders", "threads"])
async def test_after_the_grace_period_the_process_ends_with_status_0(
    folder: Folder, store: RedisServer, name: str
) -> None:
    async with a_queue(store, name, [NewMessage(b"slow", b"a")]) as client:
        process = await folder.start("jobs:app", "--queues", name, "--grace", "0.1", "--json")
        await when(lambda: folder.count("start") == 1, process)
        process.send_signal(signal.SIGTERM)
        status, out, err = await folder.finish(process)
        assert status == 0, err
        assert facts_of(out)["returned"] == (1 if name == "orders" else 0)
        stats = await client.queue(name).stats()
        assert stats.messages == 1
        assert (stats.ready, stats.held) == ((1, 0) if name == "orders" else (0, 1))


async def test_the_second_signal_ends_handlers_at_once(folder: Folder, store: RedisServer) -> None:
    async with a_queue(store, "orders", [NewMessage(b"slow", b"a")]):
        process = await folder.start("jobs:app", "--queues", "orders", "--grace", "3600", "--log-level", "info")
        await when(lambda: folder.count("start") == 1, process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while b"stopping" not in (line := await process.stderr.readline()):
                assert line
        process.send_signal(signal.SIGINT)
        status, out, _ = await folder.finish(process)
        assert status == 0
        assert "0 done, 1 returned" in out


async def test_a_process_that_has_not_joined_its_queue_ends_at_once(folder: Folder, store: RedisServer) -> None:
    """It went on trying, and ended with an error."""
    with store_server() as away:
        (folder.path / "waits.py").write_text(PROGRAM.replace('int(os.environ["STORE_PORT"])', f"{away.port}"))
        async with client_of(away) as client:
            await client.create("orders")
        away.kill()
        process = await folder.start("waits:app", "--queues", "orders", "--grace", "3600", "--json")
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            assert b"running the workers" in await process.stderr.readline()
        await asyncio.sleep(0.5)  # it tries to reach the store
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(4):
            status, out, err = await folder.finish(process)
        assert (status, facts_of(out)["done"]) == (0, 0), err


async def test_a_process_that_was_paused_for_longer_than_its_lease_cancels_its_handler_and_goes_on(
    folder: Folder, store: RedisServer
) -> None:
    async with a_queue(store, "orders", [NewMessage(b"slow", b"a")], lease_s=4.0) as client:
        words = ("jobs:app", "--queues", "orders", "--json")
        paused = await folder.start(*words, "--grace", "100")
        await when(lambda: folder.count("start") == 1, paused)
        paused.send_signal(signal.SIGSTOP)
        other = await folder.start(*words, "--grace", "0.1")
        await when(lambda: folder.count("start") == 2, other)
        paused.send_signal(signal.SIGCONT)
        await client.queue("orders").put(b"more", key="b")
        await when(lambda: folder.count("end") == 1, other)
        paused.send_signal(signal.SIGTERM)
        status, out, err = await folder.finish(paused)
        facts = facts_of(out)
        assert (status, facts["lost"], facts["returned"], facts["failed"]) == (0, 1, 0, 0)
        assert "lease lost, handler cancelled" in err
        other.send_signal(signal.SIGTERM)
        status, out, _ = await folder.finish(other)
        assert (status, facts_of(out)["returned"], facts_of(out)["done"] + facts["done"]) == (0, 1, 1)


async def test_a_process_that_crashes_is_started_again_and_its_job_comes_again(
    folder: Folder, store: RedisServer
) -> None:
    messages = [NewMessage(b"crash", b"c"), *(NewMessage(b"%d" % n, b"k%d" % n) for n in range(20))]
    async with a_queue(store, "orders", messages, lease_s=4.0) as client:
        process = await folder.start("jobs:app", "--queues", "orders", "--processes", "2", "--json")
        await when(lambda: any(line[:2] == ("end", "crash") for line in folder.trace()), process)
        await when(lambda: len({p for word, p, _, _ in folder.trace() if word == "end"}) == 21, process)
        process.send_signal(signal.SIGTERM)
        status, out, err = await folder.finish(process)
        assert status == 0, err
        assert facts_of(out)["restarts"] in (1, 2)  # a start that the store has not heard of is no attempt
        assert "ended with status -9" in err
        assert (await client.queue("orders").stats()).messages == 0


async def test_processes_end_with_the_one_that_started_them(folder: Folder, store: RedisServer) -> None:
    async with a_queue(store, "orders", [NewMessage(b"%d" % n, b"k%d" % n) for n in range(16)]) as client:
        process = await folder.start("jobs:app", "--queues", "orders", "--processes", "2")
        await when(lambda: folder.count("end") == 16, process)
        process.kill()
        await process.wait()
        queue = client.queue("orders")
        async with asyncio.timeout(PATIENCE_S):
            while (await queue.stats()).consumers:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_process_whose_parent_died_before_it_was_ready_ends_too(folder: Folder, store: RedisServer) -> None:
    async with a_queue(store, "orders", []):
        status, out, err = await folder.run("jobs:app", "--queues", "orders", "--parent", "1", "--json")
        assert (status, facts_of(out)["done"]) == (0, 0), err


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["nothing:app"], 1, "there is no module nothing"),
        (["jobs:other"], 1, "module jobs has no other: write jobs:app"),
        (["jobs:note"], 1, "jobs:note is a function, not a shoal.App"),
        (["jobs/app"], 1, "is not MODULE:APP"),
        (["broken:app"], 1, "module broken cannot be imported (ZeroDivisionError"),
        (["needy:app"], 1, "module needy cannot be imported (ModuleNotFoundError"),
        (["jobs:app", "--queues", "mail"], 1, "no worker for queue mail: choose from orders, threads"),
        (["empty:app"], 1, "the app has no workers"),
        (["far:app"], 1, "no cluster"),
        (["far:app", "--processes", "2"], 1, "no cluster"),
        (["jobs:app", "--grace", "soon"], 2, "seconds from 0"),
        (["jobs:app", "--processes", "0"], 2, "above 0"),
        (["jobs:app", "--queues", ","], 1, "names no queue"),
        (["jobs:app", "--metrics-port", "65536"], 1, "--metrics-port is 65536"),
        (["leaves:app"], 1, "module leaves cannot be imported (SystemExit"),
    ],
)
async def test_errors_are_clear(folder: Folder, words: list[str], status: int, complaint: str) -> None:
    (folder.path / "broken.py").write_text("1 / 0\n")
    (folder.path / "leaves.py").write_text("raise SystemExit(0)\n")
    (folder.path / "needy.py").write_text("import a_package_that_is_missing\n")
    (folder.path / "empty.py").write_text("import shoal\napp = shoal.App()\n")
    (folder.path / "far.py").write_text(
        "import shoal\napp = shoal.App()\n@app.worker('orders')\ndef handle(job): ...\n"
    )
    ended, out, err = await folder.run(*words)
    assert (ended, out) == (status, "")
    assert complaint in err
    assert "Traceback" not in err


async def test_the_first_line_names_queues_and_concurrency(folder: Folder, store: RedisServer) -> None:
    async with a_queue(store, "orders", [NewMessage(b"1", b"a")]):
        process = await folder.start("jobs", "--queues", "orders", "--concurrency", "3")
        await when(lambda: folder.count("end") == 1, process)
        process.send_signal(signal.SIGTERM)
        status, out, err = await folder.finish(process)
        assert (status, err) == (0, "running the workers of orders (3 at a time)\n")
        assert out.startswith("stopped after ")
        assert out.endswith(" s: 1 done\n")
