"""A throwaway real Redis (or Valkey) server for tests.

Owns one server process, its temporary directory and its port on the loopback interface. It never touches a
server that it did not start, never uses a fixed port, and leaves neither process nor files behind when the
block ends. The calls block (a start takes some tens of milliseconds); in asynchronous code run those that
wait for the server (`restart`) with `asyncio.to_thread`, so that the event loop goes on meanwhile.

    with RedisServer(aof=True, users=["alice on >secret ~* &* +@all"]) as server:
        ... connect to server.host, server.port ...
        server.kill()        # kill -9
        server.restart()     # same port, same directory
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.cluster.servers import tls_configuration
from shoal.wire.tls import TlsSettings

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
PORT_ATTEMPTS_MAX = 10
READY_LINE = b"Ready to accept connections"
PORT_TAKEN_LINES = (b"Address already in use", b"Failed listening on port", b"Could not create server TCP")


class RedisServerError(RuntimeError):
    """The throwaway server did not start or did not stop; the message ends with its log."""


class PortTakenError(RedisServerError):
    """Another process took the port between the choice and the start."""


def find_server_binary() -> str:
    """Path of the machine's server binary; an error that says what to install when there is none."""
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise RedisServerError("no redis-server or valkey-server on PATH (Debian: apt install redis-server)")


def free_port() -> int:
    """Return a loopback port that is free now. It is not reserved, so the caller must expect a conflict."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One real server on the loopback interface; a context manager that starts and stops it.

    `aof` keeps an append-only file, so that data survive `kill` and `restart`. `password` is the default
    user's. `users` are ACL lines without the word `user` ("alice on >secret ~* +@all"). `config` are lines of
    redis.conf ("maxclients 10"); they come last and win. With `tls`, the server's files, it takes TLS only.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        *,
        aof: bool = False,
        password: str | None = None,
        users: Sequence[str] = (),
        config: Sequence[str] = (),
        tls: TlsSettings | None = None,
    ) -> None:
        self._tls = tls
        self._aof = aof
        self._password = password
        self._users = tuple(users)
        self._config = tuple(config)
        self._binary = find_server_binary()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port; it stays the same over `kill`, `stop` and `restart`."""
        if self._port == 0:
            raise RedisServerError("the server was not started yet")
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise RedisServerError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def directory(self) -> Path:
        """Where the server keeps its data, configuration and log; gone after the block."""
        if self._temporary is None:
            raise RedisServerError("the server was not started yet")
        return Path(self._temporary.name)

    @property
    def log(self) -> str:
        """Everything that the server has logged, over all its starts."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start on a free port (the same one after the first start) and return when it takes connections."""
        if self.running:
            raise RedisServerError("the server is running already")
        if self._port:
            self._launch(self._port)
            return
        self._temporary = tempfile.TemporaryDirectory(prefix="shoal-test-redis-")
        try:
            self._port = self._launch_on_some_port()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """End the process in good order (SIGTERM); the data stay for a `restart`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a crash would (kill -9); with `aof` the data stay for a `restart`."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port with the same directory; a server that still runs is stopped first."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the process and remove its directory."""
        self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch_on_some_port(self) -> int:
        for _ in range(PORT_ATTEMPTS_MAX):
            port = free_port()
            try:
                self._launch(port)
            except PortTakenError:
                continue
            return port
        raise RedisServerError(f"no free port in {PORT_ATTEMPTS_MAX} attempts:\n{self.log}")

    def _launch(self, port: int) -> None:
        configuration = self.directory / "server.conf"
        configuration.write_text("\n".join(self._lines(port)) + "\n")
        log = self.directory / "server.log"
        seen = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._binary, str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
            )
        self._wait_until_ready(log, seen)

    def _lines(self, port: int) -> list[str]:
        listening = [f"port {port}"]
        if self._tls is not None:
            listening = ["port 0", f"tls-port {port}", *tls_configuration(self._tls)]
        lines = [
            *listening,
            f"bind {self.host}",
            f'dir "{self.directory}"',
            "daemonize no",
            'save ""',
            f"appendonly {'yes' if self._aof else 'no'}",
            "appendfsync always",  # with everysec a kill may come before what was acknowledged is written
        ]
        if self._password is not None:
            lines.append(f'requirepass "{self._password}"')
        lines.extend(f"user {user}" for user in self._users)
        lines.extend(self._config)
        return lines

    def _wait_until_ready(self, log: Path, seen: int) -> None:
        """Use only the log of our own process: on a port conflict, another process would answer."""
        assert self._process is not None
        give_up = time.monotonic() + START_TIMEOUT_S
        while True:
            ended = self._process.poll() is not None
            news = log.read_bytes()[seen:]
            if READY_LINE in news and not ended:
                return
            if ended:
                self._process = None
                text = news.decode(errors="replace")
                if any(line in news for line in PORT_TAKEN_LINES):
                    raise PortTakenError(f"the port is taken:\n{text}")
                raise RedisServerError(f"the server ended while it started:\n{text}")
            if time.monotonic() > give_up:
                self.kill()
                raise RedisServerError(f"not ready after {START_TIMEOUT_S:g} s:\n{self.log}")
            time.sleep(0.005)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
