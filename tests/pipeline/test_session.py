"""Sessions: their settings, and a real one."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shoal import cli
from shoal.errors import HeapTooSmallError, NoJavaError, PipelineError, TrimmedError
from shoal.pipeline import session as session_module
from shoal.pipeline.session import (
    HEAP_MB_MIN,
    SessionOptions,
    check_ready,
    running,
    settings_of,
)
from shoal.pipeline.spark.class_cache import ClassCache
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


def test_options_that_java_echoes_are_not_its_version(tmp_path: Path) -> None:
    """The class cache is named after the version: with other options it is still the same one."""
    echo = "Picked up JAVA_TOOL_OPTIONS: -Xmx1g"
    java = find_java(java_that_says(tmp_path, f'{echo}\nopenjdk version "21.0.2" 2024-01-16'))
    assert java.text == 'openjdk version "21.0.2" 2024-01-16'


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


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no session ran in this process."""
    monkeypatch.setattr(session_module, "current_session", lambda: None)


@pytest.mark.spark
@pytest.mark.usefixtures("no_session")
def test_a_session_cannot_start_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJavaError), running():
        pass


@pytest.mark.usefixtures("no_session")
def test_too_small_a_heap_is_refused_before_anything_starts() -> None:
    with pytest.raises(HeapTooSmallError, match="is too small for Spark: give it 512 MB or more"):
        check_ready(SessionOptions(heap_mb=HEAP_MB_MIN - 1))


def test_settings_of_the_user_win_and_java_options_are_put_together() -> None:
    conf = {
        "spark.ui.enabled": "true",
        "spark.driver.extraJavaOptions": "-Dmine=1",
        "spark.sql.shuffle.partitions": "7",
    }
    settings = settings_of(SessionOptions(conf=conf, master="spark://host:7077"), "-XX:SharedArchiveFile=/a")
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.master"] == "spark://host:7077"
    assert settings["spark.driver.extraJavaOptions"].startswith("-Xss8m ")
    assert settings["spark.driver.extraJavaOptions"].endswith("-XX:SharedArchiveFile=/a -Dmine=1")
    assert "spark.driver.host" not in settings  # a cluster must reach the driver from outside


def test_the_compiler_and_the_garbage_collector_are_those_of_java() -> None:
    assert "-XX:" not in settings_of(SessionOptions())["spark.driver.extraJavaOptions"]


def test_a_session_that_runs_is_used_as_it_is_and_left_running(spark: SparkSession) -> None:
    with running(SessionOptions(name="another", master="local[7]")) as found:
        assert found is spark
    assert (spark.conf.get("spark.app.name"), spark.sparkContext.master) == ("tests", "local[2]")
    with pytest.raises(PipelineError, match="Spark failed"), running():
        spark.read.parquet("/nowhere")
    assert spark.range(3).count() == 3


def test_flags_for_a_new_session_are_refused_where_one_runs(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pipeline", "load", "--once", "--master", "local[7]"]) == 1
    assert "one already runs: give the settings to whatever started it" in capsys.readouterr().err


def test_a_session_of_spark_connect_is_refused_with_a_sentence(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    monkeypatch.setattr(session_module, "current_session", lambda: remote)
    with pytest.raises(PipelineError, match="do not run on a session of Spark Connect: run them with"), running():
        pass


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

    error = explain(FromJavaError(f"An error occurred while calling o80.start.\n{page}"))
    assert str(error) == f"Spark failed: {reason}"


def test_what_a_worker_raised_is_said_as_it_was() -> None:
    page = RuntimeError("Aborted ...\nTraceback\nshoal.errors.TrimmedError: a stream was cut: start anew\n\tat java")
    error = explain(page)
    assert isinstance(error, TrimmedError)
    assert str(error) == "a stream was cut: start anew"


def test_a_spark_that_gave_up_is_said_so() -> None:
    page = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped ..."
    assert "it gives up a master that does not answer" in str(explain(RuntimeError(page)))


def test_the_error_of_a_job_out_of_heap_says_so() -> None:
    error = explain(RuntimeError("x java.lang.OutOfMemoryError: Java heap space"))
    assert isinstance(error, HeapTooSmallError)
    assert "--heap-mb 2048" in str(error)
    assert explain(RuntimeError("something else")) is None


def test_what_a_worker_raised_that_is_not_ours_is_said_by_its_last_line(spark: SparkSession) -> None:
    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise OSError(36, "File name too long") from error

    with pytest.raises(PipelineError) as caught, explained():
        spark.range(1).mapInArrow(fail, "id bigint").toArrow()
    assert str(caught.value) == "Spark failed: OSError: [Errno 36] File name too long"
    assert "in fail" in str(caught.value.__cause__)
    assert type(caught.value.__cause__) is RuntimeError  # whose words need no Java


def test_what_java_raised_is_said_too(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"Spark failed: .*PATH_NOT_FOUND.*/nowhere"), explained():
        spark.read.parquet("/nowhere")


def test_workers_can_import_us(spark: SparkSession) -> None:
    def rooms(_: object) -> list[str]:
        import shoal.pipeline.spark.java

        return [shoal.pipeline.spark.java.__name__]

    assert spark.sparkContext.parallelize([0], 1).flatMap(rooms).collect() == ["shoal.pipeline.spark.java"]


def test_a_class_cache_is_used_where_there_is_one_that_java_can_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, usable in (("cache", True), ("my cache", False), ("a:b", False)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        cache = ClassCache.of(Java("java", 17, "17"))
        assert cache.option() == ""
        cache.path.parent.mkdir(parents=True)
        cache.path.touch()
        assert cache.option() == (f"-XX:SharedArchiveFile={cache.path}" if usable else "")
    assert ClassCache.of(Java("java", 17, "17.0.16")).path != cache.path
