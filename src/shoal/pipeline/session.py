"""Spark sessions: small and fast on one machine, on any cluster with Spark's standard settings.

Owns the start and end of a session, its settings, and the checks before it starts. A session on this machine has no web
page unless requested, one small heap, the fast compiler, and a cache of Spark's classes that the first session writes.
Settings that begin with `spark.` are passed to Spark unchanged and override ours.

    with running(SessionOptions(master="local[2]", conf={"spark.sql.shuffle.partitions": "4"})) as spark:
        spark.read.format("shoal").load()
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import site
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.errors import HeapTooSmallError, NoSparkError, PipelineError
from shoal.folders import default_cache_dir
from shoal.logs import get_log
from shoal.pipeline.spark import interrupts
from shoal.pipeline.spark.class_cache import ClassCache
from shoal.pipeline.spark.error_translation import explained
from shoal.pipeline.spark.gateway import HURRY_TIMEOUT_S, Gateway
from shoal.pipeline.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAP_MB_MIN: Final = 512
"""Spark refuses to start with less."""

_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Writes checkpoints by renaming files, which is faster than Spark's default."""

_SOURCES: Final = str(Path(__file__).parents[2])
"""The directory of `shoal` and `pyspark_shoal`, for the import path of workers."""

_WORKER_PYTHON: Final = Path(__file__).with_name("spark") / "worker_python.sh"
"""Starts the Python that `SHOAL_WORKER_PYTHON` names."""

_COUNT: Final = r"\s*[0-9]+\s*"
_MASTERS: Final = (
    "local",
    rf"local\[(\s*\*\s*|{_COUNT})(,{_COUNT})?\]",  # threads, and how often a task may fail
    rf"local-cluster\[{_COUNT},{_COUNT},{_COUNT}\]",
    r"spark://\S+:\d+(,\S+:\d+)*",
    "yarn",
    r"k8s://\S+",
)
"""Forms of a Spark master."""

_log: Final = get_log(__name__)


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a session."""

    master: str = "local[2]"
    """`local[N]`: N threads of this machine; `local-cluster[W,C,MB]`: W processes; `spark://host:port`: a cluster."""
    heap_mb: int = 1024
    """The driver's heap. On `local[N]` the driver does all the work."""
    ui: bool = False
    """Whether Spark serves its web page."""
    conf: dict[str, str] = {}
    """Spark settings such as `spark.executor.memory`. They override ours."""
    name: str = "shoal"
    """The job's name in Spark's own lists."""
    write_archive: bool = True
    """Whether a session without a class cache writes one when it ends, which takes some seconds."""


DEFAULT_SESSION: Final = SessionOptions()


def session(options: SessionOptions = DEFAULT_SESSION) -> SparkSession:
    """The session of this process: the running one, else a new one. `running` also ends it."""
    pyspark = import_spark()
    from pyspark.sql import SparkSession

    from pyspark_shoal import register

    check_heap(options)
    check_master(options.conf.get("spark.master", options.master))
    if _running:
        return _made_active(_running[-1][1])
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    java = find_java()
    cache = ClassCache(java, f"{pyspark.__version__} {pyspark.__file__}")
    settings = settings_of(options, cache.flags(options.write_archive))
    installed = installed_spark(options)
    home = _home_of_workers(options, installed)
    gateway: Gateway | None = None
    try:
        with _environment(options, home or installed):
            with interrupts.held_back():
                gateway = Gateway.launch(settings)
            with explained(heap_mb=_heap_mb(options)), interrupts.handler_kept():
                spark = gateway.start(settings)
        if not options.master.startswith("local"):
            # Otherwise Spark looks for the source when a job first needs it, and reads with the driver's Python.
            register(spark)
    except BaseException:
        if gateway is not None:
            gateway.close(hurry=True)
        _remove(home)
        raise
    gateway.when_closed(cache.close)
    _homes.append(home)
    _running.append((gateway, spark))
    return spark


@contextlib.contextmanager
def running(options: SessionOptions = DEFAULT_SESSION) -> Iterator[SparkSession]:
    """A session that ends with the block, together with its Java process. A session that already runs is used and
    stays. Spark's errors in the block are raised as Shoal's."""
    with interrupts.quiet_py4j():
        with explained(heap_mb=_heap_mb(options)):
            found = len(_running)
            spark = session(options)
        try:
            # Errors are translated before Java ends, because their texts are fetched from Java.
            with explained(heap_mb=_heap_mb(options)), interrupts.cancelling(spark.sparkContext):
                yield spark
        except BaseException:
            if not found:
                stop(spark, hurry=True)
            raise
        if not found:
            stop(spark)


def stop(spark: SparkSession, *, hurry: bool = False) -> None:
    """Ends a session and its Java process. With `hurry`, it waits only briefly before it kills Java."""
    try:
        asking = threading.Thread(target=_ask_to_stop, args=(spark,), name="stop", daemon=True)
        asking.start()
        asking.join(HURRY_TIMEOUT_S if hurry else None)
    finally:
        while _running:
            _running.pop()[0].close(hurry=hurry)
        while _homes:
            _remove(_homes.pop())


def _ask_to_stop(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):  # Java may be gone already
        spark.stop()


def warm_up() -> None:
    """Creates the class cache for later sessions of this user, with a session that uses what jobs use."""
    with running(SessionOptions(name="shoal warm-up")) as spark, tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "in").mkdir()
        (Path(directory) / "in" / "one.txt").write_text("a line\n")
        spark.range(1000).selectExpr("id % 7 as k").groupBy("k").count().toArrow()
        lines = spark.readStream.text(str(Path(directory) / "in"))
        stream = lines.writeStream.foreachBatch(_look_at).option("checkpointLocation", f"{directory}/checkpoint")
        stream.trigger(availableNow=True).start().awaitTermination()


def _look_at(rows: DataFrame, batch: int) -> None:
    rows.toArrow()


def import_spark() -> Any:
    """The module `pyspark`; `NoSparkError` if it is not installed."""
    try:
        import pyspark
    except ImportError as error:
        raise NoSparkError(
            f"PySpark is not installed ({error})",
            do="run ./shoal pipeline, which installs it, or `pip install 'shoal[spark]'`",
        ) from error
    return pyspark


def check_ready(options: SessionOptions) -> None:
    """Raises an error if a session is known to be unable to start, without starting one."""
    import_spark()
    check_heap(options)
    check_master(options.conf.get("spark.master", options.master))
    if not _running:
        find_java()


def check_heap(options: SessionOptions) -> None:
    """`HeapTooSmallError` if Spark would not start with this heap."""
    heap_mb = _heap_mb(options)
    if heap_mb < HEAP_MB_MIN:
        raise HeapTooSmallError(
            f"a heap of {heap_mb} MB is too small for Spark", do=f"give it {HEAP_MB_MIN} MB or more (--heap-mb)"
        )


def check_master(master: str) -> None:
    """PipelineError if Spark knows no such master. Spark itself would fail after seconds, with a page of traces."""
    if not any(re.fullmatch(form, master) for form in _MASTERS):
        raise PipelineError(
            f"{master!r} is not a Spark master",
            do="write it as local, local[N], local[*], local-cluster[W,C,MB], spark://host:port, yarn or k8s://...",
        )


def settings_of(options: SessionOptions, java_flags: str = "") -> dict[str, str]:
    """The settings of a session, by Spark's names."""
    local = options.master.startswith("local")
    log_file = Path(__file__).with_name("log4j2.properties")
    flags = f"-Xss8m -Xlog:disable -Dlog4j2.configurationFile={log_file.as_uri()}"
    if local:
        flags += f" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 {java_flags}"
    settings = {
        "spark.app.name": options.name,
        "spark.master": options.master,
        "spark.driver.memory": f"{options.heap_mb}m",
        "spark.ui.enabled": str(options.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.warehouse.dir": str(default_cache_dir() / "spark" / "warehouse"),
        "spark.executorEnv.PYTHONPATH": _python_path(),
    }
    if local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.shuffle.compress": "false",
        }
    if options.master.startswith("local-cluster"):
        settings["spark.executor.extraJavaOptions"] = "-Xss8m -Xlog:disable -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    settings |= options.conf
    given = options.conf.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"{flags.strip()} {given}".strip()
    return settings


_running: Final[list[tuple[Gateway, SparkSession]]] = []
"""The session that this process started; empty or one."""


def _made_active(spark: SparkSession) -> SparkSession:
    """Makes a session the active one of this thread; Spark looks for data sources there."""
    from pyspark.sql import SparkSession

    assert spark._jvm is not None
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    return spark


def _heap_mb(options: SessionOptions) -> int:
    """The heap that Spark will get, in MB. `spark.driver.memory` overrides the option."""
    text = options.conf.get("spark.driver.memory", f"{options.heap_mb}m").strip().lower()
    digits, unit = text.rstrip("bkmgt"), text[len(text.rstrip("bkmgt")) :].rstrip("b")
    factor = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "": 1.0}.get(unit)
    try:
        return int(float(digits) * factor) if factor else options.heap_mb
    except ValueError as error:
        raise PipelineError(f"spark.driver.memory is {text!r}", do="write it as 1024m or 1g") from error


def _python_path(environ: Mapping[str, str] = os.environ) -> str:
    return os.pathsep.join(filter(None, (_SOURCES, environ.get("PYTHONPATH", ""))))


def _worker_python(options: SessionOptions) -> str:
    """The Python of workers. On this machine it is started by a script that leaves PySpark's archives out of the import
    path, if PySpark is installed where each Python finds it: a worker then starts in a third of the time."""
    packages = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    installed = str(Path(import_spark().__file__).parents[1]) in packages
    usable = options.master.startswith("local") and installed and os.access(_WORKER_PYTHON, os.X_OK)
    return str(_WORKER_PYTHON) if usable else sys.executable


_homes: Final[list[Path | None]] = []
"""The temporary Spark home of that session."""


def installed_spark(options: SessionOptions, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The Spark in `SPARK_HOME` if its version is that of PySpark; None: PySpark's own.

    On this machine an unsuitable `SPARK_HOME` is ignored with a warning. With the master of a cluster it is an error.
    """
    given = environ.get("SPARK_HOME")
    if given is None:
        return None
    pyspark = import_spark()
    wrong = _wrong_with(Path(given), pyspark.__version__) if given else "is empty"
    if not wrong:
        return Path(given)
    if options.master.startswith("local"):
        _log.warning("SPARK_HOME is ignored", why=f"{given} {wrong}".strip())
        return None
    raise PipelineError(f"SPARK_HOME ({given}) {wrong}", do=f"unset it, or set it to {Path(pyspark.__file__).parent}")


def _wrong_with(home: Path, version: str) -> str:
    """Why a directory does not hold Spark of a version; empty if it does, or if its version cannot be read."""
    if not (home / "bin" / "spark-submit").is_file():
        return "has no bin/spark-submit"
    jars = (home / "jars").glob("spark-core_*.jar")
    found = [match[1] for jar in jars if (match := re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name))]
    if found and version not in found:
        return f"is Spark {found[0]}, and PySpark is {version}"
    return ""


def _home_of_workers(options: SessionOptions, installed: Path | None) -> Path | None:
    """A temporary Spark home for `local-cluster`, whose workers write into it: links to the installed Spark."""
    if not options.master.startswith("local-cluster"):
        return None
    home = Path(tempfile.mkdtemp(prefix="shoal-spark-"))
    for entry in (installed or Path(import_spark().__file__).parent).iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def _remove(home: Path | None) -> None:
    if home is not None:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def _environment(options: SessionOptions, home: Path | None) -> Iterator[None]:
    """Sets Spark's environment variables while a session starts, so that workers run this Python and can import Shoal.
    `home` is the Spark to start; None: PySpark's own."""
    ours = _worker_python(options)
    python = options.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or ours
    wanted = {"PYTHONPATH": _python_path(), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": ours}
    wanted["SHOAL_WORKER_PYTHON"] = sys.executable
    wanted["SPARK_LAUNCHER_OPTS"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    if options.master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    if home is not None:
        wanted["SPARK_HOME"] = str(home)
    before = {name: os.environ.get(name) for name in (*wanted, "SPARK_HOME")}
    os.environ.pop("SPARK_HOME", None)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
