"""The Java process behind a Spark session.

Owns the process, its output and its end; its settings come from `shoal.pipeline.session`. Java's output goes to our
standard error, never to standard output, without the warnings that Java prints at every start. No Java process
survives its session.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, Final

from shoal.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_TIMEOUT_S: Final = 30.0
"""How long Java may take to end before it is killed. The first one writes the class cache meanwhile."""

HURRY_TIMEOUT_S: Final = 3.0
"""The same after a job failed or was interrupted."""

TAIL_LINES: Final = 12
"""Last lines of Java's output, kept for an error message."""

_NOISE: Final = re.compile(
    rb"^(WARNING: (Using incubator modules|A restricted|A terminally|sun\.misc|Please consider)|$)"
)


class Gateway:
    """One Java process, and the connection to it."""

    def __init__(self, gateway: Any, relay: _Relay) -> None:
        self._gateway = gateway
        self._relay = relay
        self._closed: list[Callable[[bool], None]] = []

    @classmethod
    def launch(cls, settings: Mapping[str, str]) -> Gateway:
        """Starts Java with Spark settings; `PipelineError` with Java's output if it does not start."""
        from pyspark import SparkConf
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway

        relay = _Relay()
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        try:
            # A process group of its own: otherwise Ctrl-C would also reach the workers, which print traces.
            output = {"stdout": relay.sink, "stderr": relay.sink, "process_group": 0}
            gateway = launch_gateway(conf, popen_kwargs=output)  # type: ignore[no-untyped-call]
        except (PySparkRuntimeError, OSError) as error:
            relay.close()
            raise PipelineError(
                f"Spark's Java process did not start\n{relay.tail()}", do="see its output above, and run `shoal doctor`"
            ) from error
        relay.close_sink()
        return cls(gateway, relay)

    def start(self, settings: Mapping[str, str]) -> SparkSession:
        """Starts a session in this Java process."""
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        return SparkSession(SparkContext(conf=conf, gateway=self._gateway))

    def when_closed(self, done: Callable[[bool], None]) -> None:
        """Calls `done` when Java has ended; its argument says whether Java ended by itself without an error."""
        self._closed.append(done)

    def close(self, *, hurry: bool = False) -> None:
        """Ends Java: closes its standard input, and kills it if it does not end in time."""
        from pyspark import SparkContext

        process: subprocess.Popen[bytes] = self._gateway.proc
        orderly = False
        try:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                orderly = process.wait(HURRY_TIMEOUT_S if hurry else END_TIMEOUT_S) == 0
        finally:  # also when the wait is interrupted
            if process.poll() is None:
                process.kill()
                process.wait()
        # Our ends of the connections come last: Java's callback connection cannot be closed while Java holds it.
        for close in (self._gateway.shutdown, self._gateway.shutdown_callback_server):
            with contextlib.suppress(Exception):
                close()
        if SparkContext._gateway is self._gateway:
            SparkContext._gateway = SparkContext._jvm = None
        self._relay.close()
        for done in self._closed:
            done(orderly)


class _Relay:
    """A pipe for Java's output, which copies its lines to our standard error without the known warnings."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self.sink: IO[bytes] = os.fdopen(write, "wb")
        self._source: IO[bytes] = os.fdopen(read, "rb")
        self._last: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._run, name="spark-output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for line in self._source:
            if _NOISE.match(line.rstrip()):
                continue
            self._last.append(line)
            with contextlib.suppress(ValueError, OSError):
                sys.stderr.write(line.decode("utf-8", "replace"))
                sys.stderr.flush()

    def tail(self) -> str:
        """The last lines."""
        return b"".join(self._last).decode("utf-8", "replace").rstrip()

    def close_sink(self) -> None:
        """Closes our copy of the end that Java writes to."""
        self.sink.close()

    def close(self) -> None:
        """Waits until all output is copied, but not for a worker that ends late and still holds the pipe."""
        self.sink.close()
        self._thread.join(1.0)
