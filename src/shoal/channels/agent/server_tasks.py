"""One task for each followed server, started and cancelled as servers come and go.

Owns the tasks. The given coroutine function decides what a task does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from shoal.plan.ring import ServerAddress


class ServerTasks:
    """Runs `work` for each followed server. A task is named `name` and the server's id."""

    def __init__(self, work: Callable[[ServerAddress], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._name = name
        self._tasks: dict[ServerAddress, asyncio.Task[None]] = {}

    def follow(self, servers: Iterable[ServerAddress]) -> None:
        """Runs tasks for these servers, and for no others."""
        wanted = dict.fromkeys(servers)
        for server in [server for server in self._tasks if server not in wanted]:
            self._tasks.pop(server).cancel()
        for server in [server for server in wanted if server not in self._tasks]:
            self._tasks[server] = asyncio.create_task(self._work(server), name=f"{self._name} {server.id}")

    async def close(self) -> None:
        """Ends all tasks."""
        tasks = list(self._tasks.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)
