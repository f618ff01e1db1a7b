"""The Java process behind a Spark session: started with what it says under our control, ended for certain.

Owns the process, its output and its end. Which settings it gets is decided in `session`. What it says goes to our
standard error, never to standard output, less what Java says at each start.
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
"""How long Java may take to end by itself: the first one writes its archive of classes. Then it is killed."""

HURRY_TIMEOUT_S: Final = 3.0
"""The same when the job has failed, or was interrupted."""

TAIL_LINES: Final = 12
"""Lines of its output that are kept for an error message."""

_NOISE: Final = re.compile(
    rb"^(WARNING: (Using incubator modules|A restricted|A terminally|sun\.misc|Please consider)|$)"
)


class Gateway:
    """One Java process, and the way to it."""

    def __init__(self, gateway: Any, relay: _Relay) -> None:
        self._gateway = gateway
        self._relay = relay
        self._closed: list[Callable[[bool], None]] = []

    @classmethod
    def launch(cls, settings: Mapping[str, str]) -> Gateway:
        """Starts Java with some settings; `PipelineError` with what it said if it does not come up."""
        from pyspark import SparkConf
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway

        relay = _Relay()
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        try:
            # A group of its own: Ctrl-C is for us, and workers would answer it with traces.
            output = {"stdout": relay.sink, "stderr": relay.sink, "process_group": 0}
            gateway = launch_gateway(conf, popen_kwargs=output)  # type: ignore[no-untyped-call]
        except (PySparkRuntimeError, OSError) as error:
            relay.close()
            raise PipelineError(
                f"Spark's Java did not start\n{relay.tail()}", do="see what it says above, and `shoal doctor`"
            ) from error
        relay.close_sink()
        return cls(gateway, relay)

    def start(self, settings: Mapping[str, str]) -> SparkSession:
        """The session in this Java."""
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        return SparkSession(SparkContext(conf=conf, gateway=self._gateway))

    def when_closed(self, done: Callable[[bool], None]) -> None:
        """Calls `done` when Java has ended, and says whether in good order."""
        self._closed.append(done)

    def close(self, *, hurry: bool = False) -> None:
        """Ends Java: its standard input is closed, and it is killed if it stays all the same."""
        from pyspark import SparkContext

        process: subprocess.Popen[bytes] = self._gateway.proc
        orderly = False
        try:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                orderly = process.wait(HURRY_TIMEOUT_S if hurry else END_TIMEOUT_S) == 0
        finally:  # also if somebody interrupts the waiting
            if process.poll() is None:
                process.kill()
                process.wait()
        # Our ends of connections come last: those that Java calls us by cannot be closed while it holds them.
        for close in (self._gateway.shutdown, self._gateway.shutdown_callback_server):
            with contextlib.suppress(Exception):
                close()
        if SparkContext._gateway is self._gateway:
            SparkContext._gateway = SparkContext._jvm = None
        self._relay.close()
        for done in self._closed:
            done(orderly)


class _Relay:
    """A pipe whose far end is Java's output: its lines come out on our standard error, less the noise."""

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
        """What was said last."""
        return b"".join(self._last).decode("utf-8", "replace").rstrip()

    def close_sink(self) -> None:
        """Leaves the far end to Java."""
        self.sink.close()

    def close(self) -> None:
        """Waits until all is said; whoever still holds the far end (a worker that ends late) is not waited for."""
        self.sink.close()
        self._thread.join(1.0)
