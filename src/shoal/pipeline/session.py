"""The Spark session of a job.

Owns the choice of the session and the settings of our own ones. A session that already runs, such as that of
`spark-submit`, a notebook or a test, is used as it is and left running. Otherwise a job gets a new session, which ends
with the job. Settings that begin with `spark.` are passed to Spark unchanged and override ours.

    with running(SessionOptions(master="local[2]")) as spark:
        run_once(spark, job)

Java ends with this process: PySpark holds the other end of its standard input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.errors import HeapTooSmallError, PipelineError
from shoal.extras import needed
from shoal.folders import default_cache_dir
from shoal.pipeline.spark.class_cache import ClassCache
from shoal.pipeline.spark.error_translation import explained
from shoal.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP_MB_MIN: Final = 512
"""Spark refuses to start with less."""

CANCEL_EVERY_S: Final = 0.2
"""How often jobs are cancelled after Ctrl-C."""

_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Writes checkpoints by renaming files, which is faster than Spark's default."""

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a new session."""

    master: str = "local[2]"
    """`local[N]`: N threads of this machine; `spark://host:port`: a cluster."""
    heap_mb: int = 1024
    """The driver's heap. On `local[N]` the driver does all the work."""
    ui: bool = False
    """Whether Spark serves its web page."""
    conf: dict[str, str] = {}
    """Spark settings such as `spark.executor.memory`. They override ours."""
    name: str = "shoal"
    """The job's name in Spark's own lists."""


DEFAULT_SESSION: Final = SessionOptions()


@contextlib.contextmanager
def running(options: SessionOptions = DEFAULT_SESSION) -> Iterator[SparkSession]:
    """The session that already runs, which stays; otherwise a new one, which is stopped after the block. Spark's errors
    in the block are raised as Shoal's."""
    with explained():
        found = current_session()
        if found is not None:
            yield checked(found)
            return
        spark = _start(options)
        try:
            with _interruptible(spark):
                yield spark
        except Exception:
            with contextlib.suppress(Exception):  # Java may be gone
                spark.stop()
            raise
        # An interrupt leaves the connection to Java in the middle of a call. The session then ends with the process.
        spark.stop()


@contextlib.contextmanager
def _interruptible(spark: SparkSession) -> Iterator[None]:
    """Cancels the jobs on Ctrl-C, in a thread of its own, again and again until the block is left. The main thread may
    be waiting for a job, or about to start one. A handler of the application stays in force."""
    left = threading.Event()

    def cancel() -> None:
        while not left.wait(CANCEL_EVERY_S):
            spark.sparkContext.cancelAllJobs()

    def interrupt(number: int, frame: FrameType | None) -> None:
        # py4j logs the interrupt with a trace, by its own loggers and by the root logger.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
        threading.Thread(target=cancel, name="cancel", daemon=True).start()
        raise KeyboardInterrupt

    ours = _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        left.set()
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def current_session() -> SparkSession | None:
    """The session of this process, if there is one."""
    import_spark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def checked(spark: SparkSession) -> SparkSession:
    """The session. PipelineError if it is one of Spark Connect, whose driver is another process: jobs fold and commit
    in the driver."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise PipelineError(
            "jobs do not run on a session of Spark Connect",
            do="run them with spark-submit, or in a session with its own driver",
        )
    return spark


def activate(spark: SparkSession) -> None:
    """Makes a session the active one of this thread. Spark looks for Python data sources only there."""
    from pyspark.sql import SparkSession

    assert spark._jvm is not None
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def import_spark() -> Any:
    """The module `pyspark`; `MissingExtraError` if it is not installed."""
    with needed("a Spark job"):
        import pyspark
    return pyspark


def check_ready(options: SessionOptions) -> None:
    """Raises an error if a session is known to be unable to start, without starting one."""
    if current_session() is None:
        find_java()
    if options.heap_mb < HEAP_MB_MIN:
        raise HeapTooSmallError(
            f"a heap of {options.heap_mb} MB is too small for Spark", do=f"give it {HEAP_MB_MIN} MB or more (--heap-mb)"
        )


def settings_of(options: SessionOptions, cached_classes: str = "") -> dict[str, str]:
    """The settings of a new session, by Spark's names. `cached_classes` is the option of Java for the class cache."""
    settings = {
        "spark.app.name": options.name,
        "spark.master": options.master,
        "spark.driver.memory": f"{options.heap_mb}m",
        "spark.ui.enabled": str(options.ui).lower(),
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.warehouse.dir": str(default_cache_dir() / "spark" / "warehouse"),
    }
    if options.master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2"}
    given = options.conf.get("spark.driver.extraJavaOptions", "")
    # Stopping a query in the middle of a batch can overflow Java's default stack.
    java = ("-Xss8m", f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", cached_classes, given)
    return settings | options.conf | {"spark.driver.extraJavaOptions": " ".join(filter(None, java))}


def _start(options: SessionOptions) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    settings = settings_of(options, ClassCache.of(find_java()).option())
    # Otherwise workers would run the python3 of PATH, which may be another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        with _interrupts_held_back():
            return SparkSession.builder.config(map={**settings}).getOrCreate()
    except (OSError, PySparkRuntimeError) as error:
        raise PipelineError(
            f"Spark did not start: {error}", do="see its output above, unset SPARK_HOME, and run `shoal doctor`"
        ) from error


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Delays Ctrl-C until the block is done: PySpark forgets a Java that is still starting, and that one never ends.
    Restores the handler, because PySpark's own one waits until the running job is done."""
    if not _in_main_thread():
        yield
        return
    came = threading.Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: came.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came.is_set():
        signal.raise_signal(signal.SIGINT)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
