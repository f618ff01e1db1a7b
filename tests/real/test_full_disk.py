"""A full disk under the state directory: what died is started again when there is room, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agent_site import until

import shoal
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.message import Message

WAIT_S = 60.0
DISK_MIB = 24


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    options = f"size={DISK_MIB}m,mode=0700"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount: {mounted.stderr.decode().strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(path: Path) -> None:
    """Writes until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for _ in range(DISK_MIB * 256):
            with contextlib.suppress(OSError):
                file.write(bytes(4096))
    with pytest.raises(OSError, match="No space left on device"):
        path.with_name("more").write_bytes(bytes(4096))


def is_running(cluster: LocalCluster, name: str) -> bool:
    return any(process.name == name and process.pid is not None for process in cluster.status().processes)


async def test_the_coordinator_returns_when_a_full_disk_has_room_again(disk: Path) -> None:
    timing = Timing(restart_pause_s_max=0.5)
    async with (
        LocalCluster(2, disk / "state", timing=timing) as cluster,
        shoal.connect(cluster.url) as bus,
        bus.subscribe("evt") as messages,
    ):
        fill(disk / "rest")
        await cluster.kill(COORDINATOR)
        await bus.publish("evt", b"while it is full", confirm=True)
        await until(lambda: not is_running(cluster, COORDINATOR))
        await asyncio.sleep(3.0)  # it is started again and again, and cannot write
        (disk / "rest").unlink()
        (disk / "more").unlink()
        await until(lambda: is_running(cluster, COORDINATOR))
        async with asyncio.timeout(WAIT_S):
            await cluster.wait_until_ready()
        async with shoal.connect(cluster.url) as other:
            await other.publish("evt", b"after it", confirm=True)
        items = [await messages.get(WAIT_S) for _ in range(2)]
        assert [item.payload for item in items if isinstance(item, Message)] == [b"while it is full", b"after it"]
