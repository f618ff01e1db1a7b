"""Spark sessions: light and quick on one machine, any cluster by the standard settings.

Owns how a session is started and ended, its settings, and what is said when it cannot be. A session on this machine
has no web page unless asked, one small heap, the quickest compiler, and an archive of Spark's classes that the first
session leaves in the user's cache. Settings that begin with `spark.` are handed to Spark as they are, and win.

    with running(SessionOptions(master="local[2]", conf={"spark.sql.shuffle.partitions": "4"})) as spark:
        spark.read.format("shoal").load()
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.errors import HeapTooSmallError, NoSparkError, PipelineError
from shoal.folders import default_cache_dir
from shoal.logs import get_log
from shoal.pipeline import interrupts
from shoal.pipeline.explaining import explained
from shoal.pipeline.gateway import HURRY_TIMEOUT_S, Gateway
from shoal.pipeline.java import Java, find_java
from shoal.pipeline.masters import check_master

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEFT_S_MAX: Final = 600.0
"""How old an archive of classes that nobody has put in place may be. Older ones are removed."""

ARCHIVES_MAX: Final = 2
"""Archives of classes that are kept: one for each Java and Spark, the newest."""

HEAP_MB_MIN: Final = 512
"""Spark refuses to start with less."""

_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Writes checkpoints by renaming files; the default asks the file system for more, and takes longer."""

_SOURCES: Final = str(Path(__file__).parents[2])
"""Where `shoal` and `pyspark_shoal` are: workers must find them too."""

_log: Final = get_log(__name__)


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a session shall be."""

    master: str = "local[2]"
    """`local[N]`: N threads of this machine; `local-cluster[W,C,MB]`: W processes; `spark://host:port`: a cluster."""
    heap_mb: int = 1024
    """The heap of the driver, which on `local[N]` does all the work."""
    ui: bool = False
    """Whether Spark shows its web page."""
    conf: dict[str, str] = {}
    """Settings of Spark, as `spark.executor.memory`. They win over ours."""
    name: str = "shoal"
    """What the job is called in Spark's own lists."""
    write_archive: bool = True
    """Whether a session that finds no archive of classes writes one when it ends, which takes some seconds."""


DEFAULT_SESSION: Final = SessionOptions()


def session(options: SessionOptions = DEFAULT_SESSION) -> SparkSession:
    """The session of this process: a new one, or the one that runs. Whoever wants it ended uses `running`."""
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
    archive = Archive(java, f"{pyspark.__version__} {pyspark.__file__}")
    settings = settings_of(options, archive.flags(options.write_archive))
    installed = installed_spark(options)
    home = _home_of_workers(options, installed)
    gateway: Gateway | None = None
    try:
        with _environment(options, home or installed):
            with interrupts.held_back():
                gateway = Gateway.launch(settings)
            with explained(heap_mb=_heap_mb(options)), interrupts.handler_kept():
                spark = gateway.start(settings)
        register(spark)
    except BaseException:
        if gateway is not None:
            gateway.close(hurry=True)
        _remove(home)
        raise
    gateway.when_closed(archive.close)
    _homes.append(home)
    _running.append((gateway, spark))
    return spark


@contextlib.contextmanager
def running(options: SessionOptions = DEFAULT_SESSION) -> Iterator[SparkSession]:
    """A session that ends with the block, and its Java with it; one that runs already is used, and goes on. What goes
    wrong there is said in our words."""
    with interrupts.quiet_py4j():
        with explained(heap_mb=_heap_mb(options)):
            found = len(_running)
            spark = session(options)
        try:
            # Before Java ends: it has the words of its own errors.
            with explained(heap_mb=_heap_mb(options)), interrupts.cancelling(spark.sparkContext):
                yield spark
        except BaseException:
            if not found:
                stop(spark, hurry=True)
            raise
        if not found:
            stop(spark)


def stop(spark: SparkSession, *, hurry: bool = False) -> None:
    """Ends a session and the Java process behind it; in a hurry, whatever else it would still do."""
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
    with contextlib.suppress(Exception):  # a Java that is gone cannot be asked to end
        spark.stop()


def warm_up() -> None:
    """Makes the archive of classes for all later sessions of this user, by a session that does a bit of everything."""
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
    """PySpark; `NoSparkError` with what to do if it is not there."""
    try:
        import pyspark
    except ImportError as error:
        raise NoSparkError(
            f"PySpark is not installed ({error})",
            do="run ./shoal pipeline, which installs it, or pip install shoal[spark]",
        ) from error
    return pyspark


def check_ready(options: SessionOptions) -> None:
    """Whether a session can start, as far as that is known without starting one; raises what is wrong."""
    import_spark()
    check_heap(options)
    check_master(options.conf.get("spark.master", options.master))
    if not _running:
        find_java()


def check_heap(options: SessionOptions) -> None:
    """`HeapTooSmallError` if Spark would not start."""
    heap_mb = _heap_mb(options)
    if heap_mb < HEAP_MB_MIN:
        raise HeapTooSmallError(
            f"a heap of {heap_mb} MB does not hold Spark", do=f"give it {HEAP_MB_MIN} MB or more (--heap-mb)"
        )


def settings_of(options: SessionOptions, java_flags: str = "") -> dict[str, str]:
    """The settings of a session, in Spark's names."""
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


def quoted(option: str) -> str:
    """One option of Java for `spark.driver.extraJavaOptions`, which is divided at blanks."""
    if not any(each.isspace() or each in "\"'\\" for each in option):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Archive:
    """The archive of Spark's classes: read if it is there, else written by the first Java that ends in good order."""

    def __init__(self, java: Java, spark: str) -> None:
        key = hashlib.sha256("\n".join((java.path, java.text, spark)).encode()).hexdigest()[:16]
        self._file = default_cache_dir() / "spark" / f"classes-{key}.jsa"
        self._new = self._file.with_name(f"{self._file.name}.{os.getpid()}")

    def flags(self, write: bool) -> str:
        """What Java must be told, as Spark's launcher reads it."""
        if ":" in str(self._file):  # which divides two archives for Java
            _log.info("no archive of classes is kept: sessions start more slowly", why=f"a colon in {self._file}")
            return ""
        if self._file.exists():
            return quoted(f"-XX:SharedArchiveFile={self._file}")
        if not write:
            return ""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
        except OSError as error:
            _log.info("no archive of classes is kept: sessions start more slowly", why=str(error))
            return ""
        return quoted(f"-XX:ArchiveClassesAtExit={self._new}")

    def close(self, orderly: bool) -> None:
        """Puts the archive that a Java has just written where the next one finds it; removes one that was cut off."""
        with contextlib.suppress(OSError):
            if orderly and self._new.exists():
                self._new.replace(self._file)
                self._sweep()
            elif not orderly:
                self._new.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes what sessions have left that were killed, and archives beyond the newest ones."""
        for left in self._file.parent.glob("classes-*.jsa.*"):
            if time.time() - left.stat().st_mtime > LEFT_S_MAX:
                left.unlink(missing_ok=True)
        archives = sorted(self._file.parent.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime)
        for old in archives[:-ARCHIVES_MAX]:
            old.unlink(missing_ok=True)


_running: Final[list[tuple[Gateway, SparkSession]]] = []
"""The one that this process has started."""


def _made_active(spark: SparkSession) -> SparkSession:
    """The session, as that of this thread too: Spark looks for data sources in the active one."""
    from pyspark.sql import SparkSession

    assert spark._jvm is not None
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    return spark


def _heap_mb(options: SessionOptions) -> int:
    """The heap that Spark will be given, in MB; a setting of Spark's wins."""
    text = options.conf.get("spark.driver.memory", f"{options.heap_mb}m").strip().lower()
    digits, unit = text.rstrip("bkmgt"), text[len(text.rstrip("bkmgt")) :].rstrip("b")
    factor = {"k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2, "": 1.0}.get(unit)
    try:
        return int(float(digits) * factor) if factor else options.heap_mb
    except ValueError as error:
        raise PipelineError(f"spark.driver.memory is {text!r}", do="write it as 1024m or 1g") from error


def _python_path(environ: Mapping[str, str] = os.environ) -> str:
    return os.pathsep.join(filter(None, (_SOURCES, environ.get("PYTHONPATH", ""))))


_homes: Final[list[Path | None]] = []
"""The Spark home that was made for it."""


def installed_spark(options: SessionOptions, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The Spark of `SPARK_HOME` if that fits our PySpark; None: PySpark's own.

    One that does not fit is left aside with a warning on this machine. For a cluster, whose Spark somebody has chosen,
    it is an error.
    """
    given = environ.get("SPARK_HOME")
    if given is None:
        return None
    pyspark = import_spark()
    wrong = _wrong_with(Path(given), pyspark.__version__) if given else "is empty"
    if not wrong:
        return Path(given)
    if options.master.startswith("local"):
        _log.warning("SPARK_HOME is left aside", why=f"{given} {wrong}".strip())
        return None
    raise PipelineError(
        f"SPARK_HOME ({given}) {wrong}", do=f"unset it, or set it to {Path(pyspark.__file__).parent}, which fits"
    )


def _wrong_with(home: Path, version: str) -> str:
    """Why there is no Spark of a version in a directory; empty if there is one, or nobody can say."""
    if not (home / "bin" / "spark-submit").is_file():
        return "has no bin/spark-submit"
    jars = (home / "jars").glob("spark-core_*.jar")
    found = [match[1] for jar in jars if (match := re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name))]
    if found and version not in found:
        return f"is Spark {found[0]}, and PySpark is {version}"
    return ""


def _home_of_workers(options: SessionOptions, installed: Path | None) -> Path | None:
    """A Spark home of our own for `local-cluster`, whose workers write beside Spark: links to what is installed."""
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
    """What Spark reads from the environment, for as long as a session starts: workers run this Python and find us.
    `home` is the Spark to be started; None: PySpark finds its own."""
    python = options.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    wanted = {"PYTHONPATH": _python_path(), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
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
