"""The programs of docs/workers.md run as printed. Each begins with the name of its file."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from shoal.testing import QueuesBus, queues, run

PAGE = Path(__file__).parents[2] / "docs" / "workers.md"
PROGRAMS = {
    text.splitlines()[0].removeprefix("# "): text
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
}
MODULES = [name for name in PROGRAMS if not name.startswith("test_")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all programs."""
    assert all(re.fullmatch(r"\w+\.py", name) for name in PROGRAMS)
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


async def run_with(bus: QueuesBus, name: str, queue: str, *payloads: bytes) -> ModuleType:
    """Runs a program's workers on some messages."""
    module = load(name)
    for payload in payloads:
        await bus.queue(queue).put(payload, key="ann")
    await run(module.app, bus)
    return module


def test_the_tests_of_the_page_pass(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


async def test_every_program_has_a_test(folder: Path) -> None:
    tested = {"jobs.py", "payments.py", "reports.py", "traced.py", "shop.py"}
    assert set(MODULES) == tested


async def test_the_first_worker(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with queues() as bus:
        await run_with(bus, "jobs", "orders", b"book")
    assert capsys.readouterr().out == "order of ann book\n"


async def test_retries(folder: Path) -> None:
    async with queues() as bus:
        module = await run_with(bus, "payments", "payments", b"0")
        bus.clock.advance(299)
        assert (await run(module.app, bus))["payments"].done == 0
        bus.clock.advance(1)
        assert (await run(module.app, bus))["payments"].done == 1


async def test_middleware(folder: Path) -> None:
    async with queues() as bus:
        module = await run_with(bus, "traced", "orders", b"pen", b"book")
    assert module.trace == ["orders 1", "orders 1", "failed: no stock"]


async def test_putting(folder: Path) -> None:
    module = load("shop")
    async with queues() as bus:
        with module.app.using(bus):
            await module.main()
        await run(module.app, bus)
        mail = await bus.queue("mail").peek()
        assert sorted(message.payload for message in mail) == [b"stock has changed", b"thanks"]
