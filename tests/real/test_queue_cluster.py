"""Queues of a local cluster: the first program of the documentation, commands, and a queue that is dropped in use."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import run_json_command

import shoal
from shoal.cluster.local import LocalCluster
from shoal.errors import QueueNotFoundError

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"
WAIT_S = 60.0


def first_program() -> str:
    """The first program of the page about queues."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found.group(1)


async def test_a_cluster_without_stores_gets_one_with_its_first_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    async with LocalCluster(1, state, balancers=1) as cluster, shoal.connect(cluster.url) as bus:
        assert await bus.queues() == []
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", first_program()],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env={**os.environ, "SHOAL_URL": cluster.url},
        )
        assert (ran.stdout, ran.stderr) == ("b'two books'\n", "")
        assert await bus.queues() == ["orders"]
        queue = bus.queue("orders")
        await queue.put(b"1")
        where = ("--state-dir", str(state))
        status, facts = await run_json_command(capsys, "queue", "drop", "orders", "--yes", *where)
        assert (status, facts["dropped"]) == (0, True)
        with pytest.raises(QueueNotFoundError):  # the caller learns that what was stored is gone
            await queue.put(b"2")
        await queue.put(b"3")  # and the next put creates the queue again
        assert [message.payload for message in await queue.peek()] == [b"3"]
        status, facts = await run_json_command(capsys, "queue", "configure", "orders", "--messages-max", "5", *where)
        assert (status, facts["configured"]) == (0, True)
        assert (await queue.stats()).settings.messages_max == 5
