"""Sessions: their settings, and a real one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shoal.errors import HeapTooSmallError, NoJavaError, PipelineError, TrimmedError
from shoal.folders import default_cache_dir
from shoal.pipeline import session as session_module
from shoal.pipeline.session import (
    HEAP_MB_MIN,
    SessionOptions,
    check_heap,
    check_master,
    check_ready,
    installed_spark,
    running,
    settings_of,
)
from shoal.pipeline.spark.class_cache import CACHES_MAX, ClassCache, quote_option
from shoal.pipeline.spark.error_translation import explain, explained
from shoal.pipeline.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_that_says(directory: Path, text: str) -> dict[str, str]:
    """An environment with a Java that says so of itself."""
    program = directory / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"JAVA_HOME": str(directory)}


def test_java_of_java_home_is_found_and_its_version_read(tmp_path: Path) -> None:
    java = find_java(java_that_says(tmp_path, 'openjdk version "21.0.2" 2024-01-16'))
    assert (java.version, java.path) == (21, str(tmp_path / "bin" / "java"))


@pytest.mark.parametrize("text", ['java version "1.8.0_392"', 'openjdk version "11.0.2"'])
def test_a_java_that_is_too_old_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    with pytest.raises(NoJavaError, match=r"is Java (8|11); Spark needs 17 or newer: .*openjdk-17"):
        find_java(java_that_says(tmp_path, text))


def test_no_java_at_all_is_said_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NoJavaError, match=r"none in PATH, and JAVA_HOME is not set: .*openjdk-17"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(NoJavaError, match="none in JAVA_HOME"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_program_that_is_no_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoJavaError, match="-version prints no version"):
        find_java(java_that_says(tmp_path, "hello"))


def forget_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no session ran in this process."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(session_module, "_running", [])


def test_a_session_cannot_start_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_sessions(monkeypatch)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJavaError), running():
        pass


def test_settings_of_the_user_win_and_java_options_are_put_together() -> None:
    conf = {
        "spark.ui.enabled": "true",
        "spark.driver.extraJavaOptions": "-Dmine=1",
        "spark.sql.shuffle.partitions": "7",
    }
    settings = settings_of(SessionOptions(conf=conf, master="spark://host:7077"))
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.master"] == "spark://host:7077"
    assert "-Xss8m" in settings["spark.driver.extraJavaOptions"]
    assert settings["spark.driver.extraJavaOptions"].endswith("-Dmine=1")
    assert "spark.driver.host" not in settings  # a cluster must reach the driver from outside


def test_a_local_session_is_light() -> None:
    settings = settings_of(SessionOptions())
    assert settings["spark.ui.enabled"] == "false"
    assert "-XX:+UseSerialGC" in settings["spark.driver.extraJavaOptions"]
    assert "TieredStopAtLevel=1" in settings["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(
    "options", [SessionOptions(heap_mb=HEAP_MB_MIN - 1), SessionOptions(conf={"spark.driver.memory": "256m"})]
)
def test_too_small_a_heap_is_said_before_anything_starts(options: SessionOptions) -> None:
    with pytest.raises(HeapTooSmallError, match="is too small for Spark: give it 512 MB or more"):
        check_heap(options)


def test_a_heap_is_read_in_all_units_and_nonsense_refused() -> None:
    check_heap(SessionOptions(heap_mb=1, conf={"spark.driver.memory": "1g"}))
    with pytest.raises(PipelineError, match=r"write it as 1024m or 1g"):
        check_heap(SessionOptions(conf={"spark.driver.memory": "muchm"}))


@pytest.mark.parametrize(
    "master",
    ["local", "local[3]", "local[*]", "local[*, 2]", "local-cluster[2,1,1024]", "spark://a:1,b:2", "yarn", "k8s://a"],
)
def test_masters_that_spark_knows_are_taken(master: str) -> None:
    check_master(master)


@pytest.mark.spark
@pytest.mark.parametrize("master", ["foo", "", "local[", "local[x]", "local[0.5]", "local-cluster[2]", "spark://"])
def test_another_master_is_refused_before_anything_starts(master: str) -> None:
    with pytest.raises(PipelineError, match=r"is not a Spark master: write it as local, local\[N\]"):
        check_master(master)
    with pytest.raises(PipelineError, match="is not a Spark master"):
        check_ready(SessionOptions(conf={"spark.master": master}))


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (
            ": java.io.IOException: mkdir of file:/a/b failed\n\tat org.apache.x",
            "java.io.IOException: mkdir of file:/a/b failed",
        ),
        (": a.B: outer\n\tat a.b\nCaused by: c.D: middle\n\tat c.d\nCaused by: e.F: inner\n\tat e.f", "e.F: inner"),
    ],
)
def test_the_innermost_cause_of_java_is_what_is_said(page: str, reason: str) -> None:
    class FromJavaError(RuntimeError):
        java_exception = None

    error = explain(FromJavaError(f"An error occurred while calling o80.start.\n{page}"), heap_mb=1)
    assert str(error) == f"Spark failed: {reason}"


def test_what_a_worker_raised_is_said_as_it_was() -> None:
    page = RuntimeError("Aborted ...\nTraceback\nshoal.errors.TrimmedError: a stream was cut: start anew\n\tat java")
    error = explain(page, heap_mb=1)
    assert isinstance(error, TrimmedError)
    assert str(error) == "a stream was cut: start anew"


def test_a_spark_that_gave_up_is_said_so() -> None:
    page = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped ..."
    assert "it gives up a master that does not answer" in str(explain(RuntimeError(page), heap_mb=1))


def test_the_error_of_a_job_out_of_heap_says_so() -> None:
    error = explain(RuntimeError("x java.lang.OutOfMemoryError: Java heap space"), heap_mb=700)
    assert isinstance(error, HeapTooSmallError)
    assert "700 MB" in str(error)
    assert explain(RuntimeError("something else"), heap_mb=700) is None


def test_what_a_worker_raised_that_is_not_ours_is_said_by_its_last_line(spark: SparkSession) -> None:
    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise OSError(36, "File name too long") from error

    with pytest.raises(PipelineError) as caught, explained(heap_mb=1):
        spark.range(1).mapInArrow(fail, "id bigint").toArrow()
    assert str(caught.value) == "Spark failed: OSError: [Errno 36] File name too long"
    assert "in fail" in str(caught.value.__cause__)
    assert type(caught.value.__cause__) is RuntimeError  # whose words need no Java


def test_what_java_raised_is_said_too(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"Spark failed: .*PATH_NOT_FOUND.*/nowhere"), explained(heap_mb=1):
        spark.read.parquet("/nowhere")


def test_workers_can_import_us(spark: SparkSession) -> None:
    def rooms(_: object) -> list[str]:
        import shoal.pipeline.spark.java

        return [shoal.pipeline.spark.java.__name__]

    assert spark.sparkContext.parallelize([0], 1).flatMap(rooms).collect() == ["shoal.pipeline.spark.java"]


def test_workers_import_the_installed_pyspark_which_is_compiled(spark: SparkSession) -> None:
    def places(_: object) -> list[str]:
        import py4j
        import pyspark

        return [pyspark.__file__, py4j.__file__]

    import py4j
    import pyspark

    found = spark.sparkContext.parallelize([0], 1).flatMap(places).collect()
    assert found == [pyspark.__file__, py4j.__file__]  # and not the archives that Spark puts before them


def test_the_python_of_workers_gets_its_import_path_without_archives(tmp_path: Path) -> None:
    archives = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9-src.zip"]
    kept = ["/spark/jars/core.jar", str(tmp_path / "a b"), "/my/pyspark.zip"]
    environ = {"PYTHONPATH": os.pathsep.join([*archives, *kept]), "SHOAL_WORKER_PYTHON": sys.executable}
    code = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])"
    command = [str(session_module._WORKER_PYTHON), "-c", code, "one word"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"{os.pathsep.join(kept)} one word\n"


def test_a_class_cache_is_kept_if_java_ended_well_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for number in range(4):
        cache = ClassCache(Java("java", 17, "17"), f"spark {number}")
        flags = cache.flags(True)
        assert flags.startswith("-XX:ArchiveClassesAtExit=")
        Path(flags.partition("=")[2]).write_text("classes")
        cache.close(number != 3)
    names = [path.name for path in (tmp_path / "shoal" / "spark").iterdir()]
    assert len(names) == CACHES_MAX
    assert all(name.endswith(".jsa") for name in names)
    again = ClassCache(Java("java", 17, "17"), "spark 2")
    assert again.flags(False).startswith("-XX:SharedArchiveFile=")
    assert ClassCache(Java("java", 17, "17"), "another").flags(False) == ""


def test_a_path_with_blanks_is_one_option_of_java() -> None:
    assert quote_option("-XX:A=/a/b") == "-XX:A=/a/b"
    assert quote_option("-XX:A=/a b/c") == '"-XX:A=/a b/c"'
    assert quote_option('-XX:A=/a "b"\\c') == '"-XX:A=/a \\"b\\"\\\\c"'


def test_no_class_cache_is_kept_where_java_cannot_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a:b"))
    assert ClassCache(Java("java", 17, "17"), "spark").flags(True) == ""


def spark_in(home: Path, version: str) -> str:
    """A directory that looks like a Spark."""
    for name in ("bin/spark-submit", f"jars/spark-core_2.13-{version}.jar"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    return str(home)


@pytest.mark.spark
def test_a_spark_home_that_does_not_fit_is_left_aside_here_and_refused_for_a_cluster(tmp_path: Path) -> None:
    import pyspark

    fits = spark_in(tmp_path / "fits", pyspark.__version__)
    cluster = SessionOptions(master="spark://host:7077")
    assert installed_spark(cluster, {"SPARK_HOME": fits}) == Path(fits)
    assert installed_spark(cluster, {}) is None
    for wrong, words in (
        ("", "is empty"),
        (str(tmp_path / "none"), "none.* has no bin/spark-submit: unset it"),
        (spark_in(tmp_path / "old", "2.4.0"), r"old.* is Spark 2\.4\.0, and PySpark is "),
    ):
        assert installed_spark(SessionOptions(), {"SPARK_HOME": wrong}) is None
        with pytest.raises(PipelineError, match=words):
            installed_spark(cluster, {"SPARK_HOME": wrong})


_ODD = """
from shoal.pipeline.session import session, stop

spark = session()
print(spark.conf.get("spark.driver.extraJavaOptions"))
stop(spark, hurry=True)  # writing the archive would take long
"""


@pytest.mark.spark
def test_a_session_starts_with_a_cache_whose_name_has_blanks_and_a_spark_home_that_is_none(tmp_path: Path) -> None:
    cache = tmp_path / "my cache"
    (cache / "shoal" / "spark").mkdir(parents=True)
    archives = list((default_cache_dir() / "spark").glob("classes-*.jsa"))
    for archive in archives:  # a session that finds none takes twice as long to start
        (cache / "shoal" / "spark" / archive.name).symlink_to(archive)
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache), "SPARK_HOME": str(tmp_path / "none")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", _ODD], env=environ, capture_output=True, text=True, check=False)
    assert f'"-XX:{"SharedArchiveFile" if archives else "ArchiveClassesAtExit"}={cache}' in done.stdout, done.stderr
