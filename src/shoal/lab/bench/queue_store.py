"""A store for benchmarks: a real server that syncs its file before it answers, in a directory that goes with it.

Owns the process and one connection for figures. The append-only file is not rewritten meanwhile: for all contenders.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from shoal.cluster import process
from shoal.cluster.servers import ServerSetup, choose_program, free_port, port_was_taken, write_setup
from shoal.errors import ConnectError
from shoal.lab.bench.contender import BenchError
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection

START_S_MAX: Final = 20.0
PORT_TRIES_MAX: Final = 100
PORTS_TAKEN_MAX: Final = 5
"""How often another process may take the chosen port before the store listens on it."""
USERS: Final = "user default on nopass ~* &* +@all\n"


class BenchStore:
    """One store; an async context manager that starts and ends it."""

    async def __aenter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="shoal-bench-")
        self._log = Path(self._directory.name) / "server.log"
        taken: set[int] = set()
        while True:
            self.port = free_port(PORT_TRIES_MAX, taken)
            setup = ServerSetup(directory=self._log.parent, port=self.port, acl=USERS, durable=True)
            command = [*write_setup(setup, choose_program()), "--auto-aof-rewrite-percentage", "0"]
            self._process = process.start(command, self._log)
            try:
                self._connection = await self._connect()
                return self
            except BenchError:
                if not port_was_taken(self._log.read_text()) or len(taken) == PORTS_TAKEN_MAX:
                    await self.__aexit__()
                    raise
                self._process.kill_now()
                self._log.unlink()
                taken.add(self.port)
            except BaseException:
                await self.__aexit__()
                raise

    async def __aexit__(self, *_: object) -> None:
        self._process.kill_now()
        self._directory.cleanup()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + START_S_MAX
        while True:
            connection = Connection(
                "127.0.0.1", self.port, username=None, password=None, name="bench", dial=PRODUCTION.dial
            )
            try:
                await connection.open()
                (info,) = await connection.ask((b"INFO", b"server"))
                if f"process_id:{self.pid}\r\n" in info.decode():
                    return connection
                connection.abort()
                raise ConnectError(f"another process listens on port {self.port}")
            except ConnectError as error:
                if self._process.exit_code is not None or loop.time() > give_up_at:
                    raise BenchError(f"the store did not start: {self._log.read_text()[-1000:]}") from error
                await asyncio.sleep(0.02)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    async def info(self, section: str) -> dict[str, str]:
        """A section of INFO."""
        (text,) = await self.ask(b"INFO", section.encode())
        lines = (text.decode() if isinstance(text, bytes) else str(text)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    async def cpu_s(self) -> float:
        """CPU time that the server has used, all threads, to a microsecond."""
        found = await self.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    async def memory_bytes(self) -> int:
        """Memory in use."""
        return int((await self.info("memory"))["used_memory"])

    async def clear(self) -> None:
        """Drop everything, so that no run pays for an earlier one."""
        await self.ask(b"FLUSHALL", b"SYNC")

    async def ask(self, *words: bytes) -> list[Any]:
        """One request."""
        return await self._connection.ask(words, timeout_s=120.0)
